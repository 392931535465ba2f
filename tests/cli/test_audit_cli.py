"""``nest audit``: the list, one study, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nest.studies import study_names
from nest.studies.study import Findings, Plot, Study, StudySetting
from tests.cli.conftest import Cli


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for all studies."""

    def run(setting: StudySetting) -> Findings:
        return Findings((f"quick: {setting.quick}",), (), Plot("", "", "", ()))

    found = Study(
        name="tiny",
        question="Why?",
        method="Look.",
        quick="Half.",
        limits=("None.",),
        run=run,
        files=("tiny/rows.csv",),
    )
    monkeypatch.setattr("nest.studies.get_study", lambda name: found)


def test_studies_are_listed(cli: Cli) -> None:
    cli.succeeds("audit")
    assert [line.split()[0] for line in cli.out.splitlines()] == list(study_names())


@pytest.mark.usefixtures("study")
def test_a_study_is_printed_and_written(cli: Cli, tmp_path: Path) -> None:
    Path("tiny").mkdir()
    Path("tiny/rows.csv").touch()
    folder = Path("out")
    arguments = f"audit tiny --data {tmp_path} --quick"
    cli.succeeds(arguments)
    assert "- quick: True" in cli.out
    cli.succeeds(f"{arguments} -o out")
    assert (folder / "audit.md").read_text() == cli.out
    assert json.loads((folder / "audit.json").read_text())["quick"] is True
    said = cli.refuses(f"{arguments} -o out")
    assert said.endswith("got one with files in it; choose another path")


@pytest.mark.usefixtures("study")
def test_missing_data_are_named(cli: Cli, tmp_path: Path) -> None:
    assert cli.refuses(f"audit tiny --data {tmp_path} -o out") == (
        f"{tmp_path}/tiny/rows.csv: expected published data for audit 'tiny' "
        f"(tiny/rows.csv), got nothing there; without --data the archive of "
        f"the package is used, docs/audits.md has its origin"
    )
    assert not Path("out").exists()
