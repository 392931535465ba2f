"""A share of what ``python -m tests.forger`` forges, and what it notices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nest.certificates import check
from tests import forger
from tests.forger import Forger

#: Problems of the seed that is looked at each time.
PROBLEMS = 12


def test_no_forgery_is_accepted() -> None:
    found = Forger(1)
    found.look(PROBLEMS)
    counts = found.counts
    assert found.wrong() == 0, counts
    assert counts["problems"] == PROBLEMS
    assert counts["true ones"] > PROBLEMS
    assert counts["without a plan"] > 0
    assert counts["forged, but true"] > 50
    for name, count in (
        ("bounds", 200),
        ("infeasibility", 50),
        ("plans", 500),
        ("fields", 400),
        ("of a neighbor", 50),
        ("of another problem", 50),
    ):
        assert counts[f"forged {name}"] > count, counts


@pytest.mark.parametrize(
    ("place", "name", "wrong"),
    [
        (check.Split, "bounds", lambda *_: []),
        (check.Split, "search", lambda *_: 0),
        (check.Split, "longest", lambda *_: -1),
    ],
)
def test_what_makes_the_checker_unsound_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    place: Any,
    name: str,
    wrong: Callable[..., Any],
) -> None:
    """And the problem is kept, with what was accepted."""
    monkeypatch.setattr(place, name, wrong)
    found = Forger(0, tmp_path)
    found.look(2)
    assert found.counts["forgeries accepted"] > 0
    assert {x.suffix for x in tmp_path.iterdir()} == {".json"}


def test_true_ones_that_are_refused_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any) -> str:
        raise check.RejectedError("all")

    monkeypatch.setattr(check, "check", refuse)
    found = Forger(0)
    found.look(1)
    assert found.counts["true ones refused"] == found.counts["true ones"] > 0


def test_it_prints_what_it_counted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert forger.main(["1", "7"]) == 0
    assert (
        capsys.readouterr().out.splitlines()[-1].startswith("1 problems from seed 7: ")
    )
    monkeypatch.setattr(Forger, "wrong", lambda _: 1)
    assert forger.main(["1", "7"]) == 1
