"""Every command of the how-to pages runs and prints what they show."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.howto import ANSWERS, PAGES, Command, Ran, complaint, follow, steps
from tests.inside import PLACES, run_inside
from tests.rows import rows

INDEX = "index.md"
QUESTIONS = [page for page in PAGES if page.name != INDEX]

#: What these show of gaps and tolerances is of solvers in their own processes;
#: the others save starting them.
APART = ("search-time", "solvers")


@pytest.mark.parametrize("page", [*QUESTIONS, ANSWERS], ids=lambda page: page.stem)
def test_the_page_shows_what_is_printed(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nest.util.terminal.USUAL_COLUMNS", 80)
    for place in () if page.stem in APART else PLACES:
        monkeypatch.setattr(place, run_inside)
    ran = []

    def check(command: Command, result: Ran) -> None:
        ran.append(command)
        if wrong := complaint(command, result):
            pytest.fail(f"{page.name}: {wrong}", pytrace=False)

    follow(page.read_text(), tmp_path, check)
    assert any(command.shown for command in ran)


def test_the_index_lists_every_page_by_its_question() -> None:
    (index,) = (page for page in PAGES if page.name == INDEX)
    listed = re.findall(r"^\| \[(.+)\]\((.+)\) \|", index.read_text(), re.M)
    titles = {
        page.read_text().partition("\n")[0].removeprefix("# "): page.name
        for page in QUESTIONS
    }
    assert len(listed) == len(QUESTIONS) == 18
    assert dict(listed) == titles


def said(out: str, exit_code: int = 0) -> Ran:
    return Ran(exit_code, out, "a note\n")


@pytest.mark.parametrize(
    ("shown", "out", "wrong"), rows("commands", "lines_that_differ")
)
def test_a_line_that_differs_is_named(shown: str, out: str, wrong: str | None) -> None:
    found = complaint(Command("nest", 0, shown.splitlines()), said(out))
    assert (found is None) == (wrong is None)
    if found is not None:
        assert f"expected {wrong!r}, got:" in found


def test_another_exit_code_is_named() -> None:
    command = Command("nest", 1, [])
    assert complaint(command, said("", exit_code=1)) is None
    assert "expected exit code 1, got 0" in str(complaint(command, said("")))


def test_a_page_is_files_and_commands() -> None:
    page = (
        "# Why?\n\n`a.csv`:\n\n```csv\nx\n```\n\n```console\n"
        "$ nest fit a \\\n    --memory  # exit code 1\nno\n\n$ ls\n```\n"
        "\n```python\ny\n```\n"
    )
    assert list(steps(page)) == [
        ("a.csv", "x\n"),
        ("nest fit a      --memory", 1, ["no"]),
        ("ls", 0, []),
    ]
