"""The commands of docs/torch.md run and print what it shows; so do its notebook's."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.howto import Command, Ran, complaint, follow
from tests.inside import PLACES, run_inside

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "examples" / "modules" / "models.py"


def followed(page: str, folder: Path) -> list[Command]:
    """Run the commands of a page beside the example modules."""
    shutil.copy(MODELS, folder)
    ran = []

    def check(command: Command, result: Ran) -> None:
        ran.append(command)
        if wrong := complaint(command, result):
            pytest.fail(wrong, pytrace=False)

    follow(page, folder, check)
    return ran


@pytest.fixture
def short_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nest.util.terminal.USUAL_COLUMNS", 80)
    for place in PLACES:
        monkeypatch.setattr(place, run_inside)


def test_the_page_shows_what_is_printed(
    torch: Any, short_screen: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a module to two processes that train it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    starter = folder / "torchrun"
    starter.write_text(
        f'#!/bin/sh\nexec {sys.executable} -m torch.distributed.run "$@"'
    )
    starter.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    ran = followed((ROOT / "docs" / "torch.md").read_text(), tmp_path)
    assert ran[-1].text.startswith("torchrun")


def test_the_page_quotes_the_example() -> None:
    (quoted,) = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "torch.md").read_text(), re.DOTALL
    )
    assert quoted in MODELS.read_text()


def test_the_notebook_runs(
    torch: Any, short_screen: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its commands, and then its code, as cells."""
    text = (ROOT / "docs" / "notebooks" / "my-module.md").read_text()
    cells = re.findall(r"```\{code-cell\} ipython3\n(.*?)```", text, re.DOTALL)
    shown = [cell for cell in cells if not cell.startswith(":tags:")]
    commands = [
        line.replace("!", "$ ", 1)
        for cell in shown
        for line in cell.splitlines()
        if line.startswith("!")
    ]
    followed("```console\n" + "\n".join(commands) + "\n```\n", tmp_path)
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    for cell in shown:
        if not cell.startswith("!"):
            exec(cell, namespace)
    assert "train.py" in namespace["files"]
    assert namespace["best"].memory_bytes <= 40 * 2**30
