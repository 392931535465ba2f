"""``nest audit``: the list, one study, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nest.studies import study_names
from nest.studies.study import Findings, Plot, Setting, Study
from tests.cli.conftest import Cli


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for all studies."""

    def run(setting: Setting) -> Findings:
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
    assert cli("audit") == 0
    assert [line.split()[0] for line in cli.out.splitlines()] == list(
        study_names()
    )


@pytest.mark.usefixtures("study")
def test_a_study_is_printed_and_written(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "rows.csv").touch()
    folder = tmp_path / "out"
    arguments = ("audit", "tiny", "--data", str(tmp_path), "--quick")
    assert cli(*arguments) == 0
    assert "- quick: True" in cli.out
    assert cli(*arguments, "-o", str(folder)) == 0
    assert (folder / "audit.md").read_text() == cli.out
    assert json.loads((folder / "audit.json").read_text())["quick"] is True
    said = cli.refuses(*arguments, "-o", str(folder))
    assert said.endswith("got one with files in it; choose another path")


@pytest.mark.usefixtures("study")
def test_missing_data_are_named(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    said = cli.refuses(
        "audit", "tiny", "--data", str(tmp_path), "-o", str(folder)
    )
    assert said == (
        f"{tmp_path}/tiny/rows.csv: expected published data for audit 'tiny' "
        f"(tiny/rows.csv), got nothing there; docs/audits.md says where they "
        f"are from, --data says where they are"
    )
    assert not folder.exists()


def test_other_names_and_options_are_refused(cli: Cli) -> None:
    said = cli.refuses("audit", "blind")
    assert said.startswith("audit: expected one of alpa, blindness, ")
    assert said.endswith("got 'blind'; did you mean 'blindness'?")
    said = cli.refuses("audit", "-o", "there")
    assert said.startswith("-o: expected NAME of an audit too, got none; ")
