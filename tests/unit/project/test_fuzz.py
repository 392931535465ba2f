"""A share of what ``make fuzz`` reads, and what it would notice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from nest.errors import NestError
from tests import fuzz
from tests.broken import broken
from tests.commands import COMMANDS, READ, line_of, run
from tests.fuzz import complaint, made
from tests.readers import READERS, Reader

#: Files per reader, of the seed that is taken each time; a command gets one
#: in four, the others are read, which takes less.
FILES = 10
SEED = 0


@pytest.mark.parametrize("reader", READERS)
def test_files_that_are_fine_are_read(reader: str, tmp_path: Path) -> None:
    """Or else fuzzing would break what is refused at its first line."""
    for data in READERS[reader].examples():
        assert complaint(reader, data, tmp_path) is None


@pytest.mark.parametrize("reader", READERS)
def test_broken_files_are_read_or_refused(reader: str, tmp_path: Path) -> None:
    for number in range(FILES):
        line = READ if number % 4 else line_of(reader, SEED, number)
        folder = tmp_path / str(number)
        folder.mkdir()
        complaint(reader, made(reader, SEED, number), folder, line)


@pytest.mark.parametrize("reader", sorted(COMMANDS))
def test_commands_take_files_that_are_fine(reader: str, tmp_path: Path) -> None:
    """Or else fuzzing would break what no command looks at."""
    data, suffix = READERS[reader].examples()[0], READERS[reader].suffix
    codes = set()
    for number, line in enumerate({*COMMANDS[reader]} - {READ}):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = folder / f"file{suffix}"
        path.write_bytes(data)
        codes.add(run(line, path).code)
    assert codes & {0, 1}


@pytest.mark.parametrize(
    ("act", "message"),
    [
        ("print('nest: internal error: x', file=sys.stderr)", "internal"),
        ("print('Traceback (most recent', file=sys.stderr)", "Traceback"),
        ("pass  # An end without a code is none.\nraise SystemExit", "None"),
        ("sys.exit(3)", "3"),
        ("print('nest: error: a\\nnest: error: b', file=sys.stderr)", "b"),
        ("sys.exit(2)", "2"),
        ("open('stray', 'w').close()", "left .*stray"),
        ("open(os.environ['TMPDIR'] + '/x', 'w').close()", "left .*x"),
        ("subprocess.Popen(['sleep', '9'])", "child"),
    ],
)
def test_how_no_command_may_end_is_noticed(
    act: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []

    def popen(*words: Any) -> None:
        started.append(subprocess.Popen(*words))

    def acts(_: Any) -> None:
        exec(act, {"sys": sys, "os": os, "subprocess": SimpleNamespace(Popen=popen)})
        sys.exit(0)

    monkeypatch.setattr("tests.commands.main", acts)
    path = tmp_path / "file.json"
    path.write_text("{}")
    try:
        with pytest.raises(AssertionError, match=message):
            run("topology show FILE", path)
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_files_are_broken_in_many_ways() -> None:
    """The same seed breaks them the same way, and hardly two are equal."""
    data = READERS["plan"].examples()

    def some(seed: int) -> list[bytes]:
        rng = Random(seed)
        return [broken(rng, data, ".json") for _ in range(200)]

    assert some(1) == some(1)
    assert len(set(some(1))) > 150
    assert len(set(some(1)) & set(some(2))) < 50


def raising(error: BaseException) -> Any:
    def read(path: Path) -> None:
        raise error

    return Reader("", lambda: [b"x"], read)


def waiting(path: Path) -> None:
    while True:
        pass


def hoarding(path: Path) -> None:
    bytearray(2 * fuzz.MOST_BYTES)


@pytest.mark.parametrize(
    ("reader", "error"),
    [
        (raising(KeyError("x")), KeyError),
        (raising(RecursionError()), RecursionError),
        (raising(NestError("")), AssertionError),
        (Reader("", lambda: [b"x"], waiting), fuzz.TooSlowError),
        (Reader("", lambda: [b"x"], hoarding), MemoryError),
    ],
)
def test_what_should_not_come_is_noticed(
    reader: Reader,
    error: type[BaseException],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fuzz, "MOST_S", 0.05)
    monkeypatch.setitem(READERS, "mine", reader)
    with pytest.raises(error):
        complaint("mine", b"x", tmp_path)


def test_a_process_that_dies_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As one does in which a parser of C has no stack left."""
    dies = Reader("", lambda: [b"x"], lambda path: os._exit(3))
    readers = {"dies": dies, "fine": Reader("", lambda: [b"x"], lambda path: None)}
    monkeypatch.setattr(fuzz, "READERS", readers)
    monkeypatch.setattr("tests.commands.COMMANDS", {})
    assert fuzz.fuzz(6, 5, jobs=2) == 1
    said = capsys.readouterr().out
    assert "'dies' 5 0: the process ended with 3" in said
    assert "4 files of 2 readers, seed 5: 3 read, 0 refused, 1 wrong" in said
