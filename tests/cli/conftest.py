"""The command line, run in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from nest.cli.main import main
from nest.ir import Plan, Problem, write
from tests.loopback import big_plan, foreign_plan, good_plan, tiny_problem


class Cli:
    """Runs ``nest`` and keeps what it said."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.out = self.err = ""

    def __call__(self, *arguments: str) -> int:
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        self.out, self.err = self._capsys.readouterr()
        assert isinstance(caught.value.code, int)
        return caught.value.code

    def refuses(self, *arguments: str) -> str:
        """Run it; it must exit with 2 and say why on one line."""
        assert self(*arguments) == 2
        assert self.out == ""
        assert self.err.count("\n") == 1
        assert self.err.startswith("nest: error: ")
        return self.err.removeprefix("nest: error: ").rstrip()


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capsys)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Return paths of a problem and of plans that fit it more or less."""
    records: dict[str, Problem | Plan] = {
        "problem": tiny_problem(),
        "plan": good_plan(),
        "big": big_plan(),
        "foreign": foreign_plan(),
    }
    paths = {name: str(tmp_path / f"{name}.json") for name in records}
    for name, record in records.items():
        write(paths[name], record)
    return paths
