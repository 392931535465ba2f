"""The command line, run in this process."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from nest.cli.main import main
from nest.ir import Plan, Problem, write
from tests.loopback import big_plan, foreign_plan, good_plan, tiny_problem


class Cli:
    """Runs ``nest`` and keeps what it wrote.

    A command is text as in a shell, such as ``"score p.json plan.json"``;
    more arguments are taken as they are.
    """

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.out = self.err = ""

    def __call__(self, command: str = "", *more: str) -> int:
        with pytest.raises(SystemExit) as caught:
            main([*shlex.split(command), *more])
        self.out, self.err = self._capsys.readouterr()
        assert isinstance(caught.value.code, int)
        return caught.value.code

    def succeeds(self, command: str = "", *more: str) -> None:
        """Run a command, which must exit with 0."""
        assert self(command, *more) == 0, self.err

    def refuses(self, command: str, *more: str) -> str:
        """Run a command that must exit with 2; return its line of error."""
        assert self(command, *more) == 2
        assert self.out == ""
        assert self.err.count("\n") == 1
        assert self.err.startswith("nest: error: ")
        return self.err.removeprefix("nest: error: ").rstrip()


@pytest.fixture
def cli(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Cli:
    """Return what runs commands, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return Cli(capsys)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Write a problem, and plans that fit it more or less, NAME.json each."""
    records: dict[str, Problem | Plan] = {
        "problem": tiny_problem(),
        "plan": good_plan(),
        "big": big_plan(),
        "foreign": foreign_plan(),
    }
    for name, record in records.items():
        write(tmp_path / f"{name}.json", record)
    return {name: f"{name}.json" for name in records}
