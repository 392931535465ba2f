"""Commands and the screens that they print, in screens.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.test_refusals import fill, more_solvers
from tests.howto import Command, Ran, complaint, follow
from tests.inside import PLACES, run_inside

_, *SECTIONS = re.split(
    r"^## ", Path(__file__).with_name("screens.md").read_text(), flags=re.MULTILINE
)


@pytest.mark.parametrize("section", SECTIONS, ids=lambda text: text.split("\n")[0])
def test_a_screen_is_as_it_is_shown(
    section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Solvers run in this process, which takes less time, unless it says otherwise."""
    in_processes = "processes of their own" in " ".join(section.split())
    for place in () if in_processes else PLACES:
        monkeypatch.setattr(place, run_inside)
    fill(tmp_path)

    def compare(command: Command, ran: Ran) -> None:
        wrong = complaint(command, ran)
        assert wrong is None, wrong

    with more_solvers():
        follow(section, tmp_path, compare)
