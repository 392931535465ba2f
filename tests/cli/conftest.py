"""The command line, run in this process."""

from __future__ import annotations

import pytest

from nest.cli.main import main


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
