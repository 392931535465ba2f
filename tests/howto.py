"""The how-to pages: their commands, and what they say is printed.

In a fenced block ``console`` a line that starts with ``$`` is a command, with the lines
that a backslash joins to it, and those behind it are what it prints. A line of ``…``
stands for any lines, ``…`` inside one for any text, and runs of blanks and of rules for
one. ``# exit code 1`` behind a command says how it ends, if not with 0. A fenced block
below a line with nothing but a file's name and a colon is that file.

``python -m tests.howto FILE…`` runs pages and prints what their commands print.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

from nest.cli.main import main

PAGES = sorted((Path(__file__).parents[1] / "docs" / "howto").glob("*.md"))

#: A page of questions that people asked in public, in the same form.
ANSWERS = PAGES[0].parents[1] / "answers.md"

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"`([\w.-]+)`:\n\n\Z")
_EXIT = re.compile(r"# exit code (\d+)$")


class File(NamedTuple):
    """A file that a page shows."""

    name: str
    text: str


class Command(NamedTuple):
    """A command of a page, how it ends, and the lines that it prints."""

    text: str
    exit_code: int
    shown: list[str]


class Ran(NamedTuple):
    """How a command ended, and what it said."""

    exit_code: int
    out: str
    err: str


def steps(page: str) -> Iterator[File | Command]:
    """Yield the files and commands of a page in their order."""
    for fence in _FENCE.finditer(page):
        language, text = fence.groups()
        if language == "console":
            yield from _commands(text)
        elif found := _FILE.search(page, 0, fence.start()):
            yield File(found[1], text)


def _commands(text: str) -> Iterator[Command]:
    first, *rest = re.split(r"^\$ ", text, flags=re.MULTILINE)
    if first:
        raise ValueError(f"expected a command in front of {first!r}")
    for part in rest:
        line, _, shown = part.replace("\\\n", " ").partition("\n")
        code = _EXIT.search(line)
        command = _EXIT.sub("", line).strip()
        yield Command(command, int(code[1]) if code else 0, shown.rstrip().splitlines())


def run(command: str, folder: Path) -> Ran:
    """Run a command in a folder: ``nest`` here, anything else in a shell."""
    words = shlex.split(command)
    if words[0] != "nest":
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env=os.environ | {"PATH": path, "LC_ALL": "C"},
            capture_output=True,
            text=True,
            check=False,
        )
        return Ran(done.returncode, done.stdout, done.stderr)
    out, err = io.StringIO(), io.StringIO()
    here = Path.cwd()
    os.chdir(folder)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            main(words[1:])
    except SystemExit as end:
        code = end.code
    finally:
        os.chdir(here)
    if not isinstance(code, int):
        raise TypeError(f"{command}: expected an exit code, got {code!r}")
    return Ran(code, out.getvalue(), err.getvalue())


def _plain(line: str) -> str:
    return re.sub("─+", "─", re.sub(" +", " ", line)).strip()


def _alike(shown: list[str], printed: list[str]) -> int:
    """Count the lines shown until one is not printed there, the end too."""
    ends = {0}
    for number, line in enumerate(shown):
        if line.strip() == "…":
            ends = set(range(min(ends), len(printed) + 1))
            continue
        pattern = re.compile(".*".join(map(re.escape, _plain(line).split("…"))))
        ends = {
            end + 1
            for end in ends
            if end < len(printed) and pattern.fullmatch(_plain(printed[end]))
        }
        if not ends:
            return number
    return len(shown) + (len(printed) in ends)


def complaint(command: Command, ran: Ran) -> str | None:
    """Return in what a command differs from what its page says of it."""
    said = f"{ran.out}{ran.err}"
    if ran.exit_code != command.exit_code:
        return (
            f"$ {command.text}\nexpected exit code {command.exit_code}, got "
            f"{ran.exit_code}:\n{said}"
        )
    if not command.shown:
        return None
    texts = (ran.out, ran.err, f"{ran.err}{ran.out}")
    count = max(_alike(command.shown, text.splitlines()) for text in texts)
    if count > len(command.shown):
        return None
    line = [*command.shown, "(the end)"][count]
    return f"$ {command.text}\nexpected {line!r}, got:\n{said}"


def follow(page: str, folder: Path, then: Callable[[Command, Ran], None]) -> None:
    """Write the files of a page and run its commands in a folder."""
    for step in steps(page):
        if isinstance(step, File):
            (folder / step.name).write_text(step.text)
        else:
            then(step, run(step.text, folder))


def _show(command: Command, ran: Ran) -> None:
    end = f"  # exit code {ran.exit_code}" if ran.exit_code else ""
    print(f"$ {command.text}{end}\n{ran.err}{ran.out}")
    if wrong := complaint(command, ran):
        print(f"!!! {wrong.splitlines()[1]}")


if __name__ == "__main__":
    # Pages show tables as wide as the text, whoever runs them.
    os.environ.pop("COLUMNS", None)
    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            follow(Path(name).read_text(), Path(folder), _show)
