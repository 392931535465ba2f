"""Lines for people, and documents on standard output."""

from __future__ import annotations

import sys

from nest.util.terminal import in_columns
from nest.util.text import printable


def say(text: str, err: bool = False, end: str = "\n") -> None:
    """Write a message to standard output or standard error, to its width.

    What is in it came from files and from other programs: a terminal gets
    no control characters of theirs.
    """
    file = sys.stderr if err else sys.stdout
    file.write(in_columns(printable(text), file) + end)
    file.flush()


def say_error(text: str) -> None:
    """Write an error; in one line where a program reads it."""
    if sys.stderr.isatty():
        say(text, err=True)
    else:
        say_log(f"{text}\n")


def say_log(text: str) -> None:
    """Write text to standard error, however wide it is."""
    sys.stderr.write(printable(text))
    sys.stderr.flush()


def say_data(text: str) -> None:
    """Write a document to standard output; as it is, unless people read it."""
    sys.stdout.write(printable(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()
