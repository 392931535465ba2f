"""A share of what ``python -m tests.forger`` forges, and what it notices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from nest.certificates import check
from nest.certificates.rules import replay
from nest.ir import Problem
from tests import forger
from tests.builders import make_cost, make_levels, make_problem
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


def test_no_forgery_is_accepted_of_plans_that_are_timed_pass_by_pass() -> None:
    found = Forger(3, timed=True)
    found.problems = iter([two_layers()])
    found.look(1)
    counts = found.counts
    assert found.wrong() == 0, counts
    assert counts["true ones"] > 0
    for name in ("bounds", "infeasibility", "plans", "fields", "of a neighbor"):
        assert counts[f"forged {name}"] > 5, counts


def two_layers() -> Problem:
    """Build two layers whose passes may run in any order."""
    cost = make_cost(10, 20, weight_bytes=10, kept_bytes=4)
    return make_problem(
        dict.fromkeys("ab", cost),
        edge=1,
        topology=replace(make_levels((2, 1.0, 1e9)), algorithms="nccl"),
        devices=2,
        global_batch=2,
        schedule="any",
    )


@pytest.mark.parametrize(
    ("place", "name", "wrong", "timed"),
    [
        (check.Split, "bounds", lambda *_: [], False),
        (check.Split, "search", lambda *_: 0, False),
        (check.Split, "longest", lambda *_: -1, False),
        (check.Split, "packed", lambda *_: 10**9, True),
        (check, "replay", lambda *x: (replay(*x)[0], [0] * len(x[0])), True),
    ],
)
def test_what_makes_the_checker_unsound_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    place: Any,
    name: str,
    wrong: Callable[..., Any],
    timed: bool,
) -> None:
    """And the problem is kept, with what was accepted."""
    monkeypatch.setattr(place, name, wrong)
    found = Forger(0, tmp_path)
    if timed:
        found.problems = iter([two_layers()])
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
