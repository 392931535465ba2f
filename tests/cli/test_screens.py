"""Commands and the screens that they print, in screens.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nest.ir import write
from tests.builders import SINGLE, make_plan
from tests.cli.test_questions_cli import chain, chain_of_two_types
from tests.cli.test_targets_cli import stages_differ
from tests.howto import Command, Ran, complaint, follow
from tests.inside import PLACES, run_inside
from tests.unit.analysis.test_pareto import small

_, *SECTIONS = re.split(
    r"^## ", Path(__file__).with_name("screens.md").read_text(), flags=re.MULTILINE
)

RECORDS = {
    "chain.json": chain(sequence_length=10),
    "tight.json": chain(memory_bytes=19),
    "tighter.json": chain(memory_bytes=5),
    "two-types.json": chain_of_two_types(),
    "plan.json": make_plan(("a", SINGLE), ("b", SINGLE)),
    "small.json": small(),
    "stages-differ.json": stages_differ(),
}


@pytest.mark.parametrize("section", SECTIONS, ids=lambda text: text.split("\n")[0])
def test_a_screen_is_as_it_is_shown(
    section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Solvers run in this process, which takes less time."""
    for place in PLACES:
        monkeypatch.setattr(place, run_inside)
    for name, record in RECORDS.items():
        write(tmp_path / name, record)

    def compare(command: Command, ran: Ran) -> None:
        wrong = complaint(command, ran)
        assert wrong is None, wrong

    follow(section, tmp_path, compare)
