"""The command line, run in this process."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from nest.cli.main import main
from nest.ir import Plan, Problem, write
from tests.loopback import big_plan, foreign_plan, good_plan, tiny_problem

#: A model that every solver is done with at once.
TINY = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "max_position_embeddings": 1024,
    "model_type": "llama",
    "num_attention_heads": 8,
    "num_hidden_layers": 4,
    "num_key_value_heads": 4,
    "vocab_size": 1024,
}

#: What plans of it may be.
SMALL = "--global-batch 8 --micro-batches 1,2 --tp 1,2 --zero 0,1 --recompute none,full"


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

    def document(self, command: str, *more: str) -> Any:
        """Run a command, which must exit with 0; return what ``--json -`` writes."""
        self.succeeds(command, *more, "--json", "-")
        return json.loads(self.out)

    def refuses(self, command: str, *more: str) -> str:
        """Run a command that must exit with 2; return its error message."""
        assert self(command, *more) == 2
        assert self.out == ""
        self.err = re.sub(r"(?m)^nest: then run: .*\n", "", self.err)
        assert self.err.count("\n") == 1
        assert self.err.startswith("nest: error: ")
        return self.err.removeprefix("nest: error: ").rstrip()


@pytest.fixture
def cli(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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


@pytest.fixture
def config(tmp_path: Path) -> str:
    """Write the configuration of a small model, and return its path."""
    path = "tiny/config.json"
    (tmp_path / "tiny").mkdir()
    (tmp_path / path).write_text(json.dumps(TINY))
    return path
