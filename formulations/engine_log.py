"""What engines print, at the end of a file of the user's."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from nest.errors import InvalidOptionError

#: The option of a solver, and what it means.
OPTION = "log"
MEANING = "file to whose end the engine's log is written"


def check_log(solver: str, extra: Mapping[str, str]) -> str | None:
    """Return the file of a log that the options of a solver name, if any.

    Raises ``InvalidOptionError`` if it cannot be written.
    """
    path = extra.get(OPTION)
    if path is None:
        return None
    try:
        with open(path, "ab"):
            pass
    except OSError as error:
        raise InvalidOptionError(
            f"option {solver}.{OPTION}: expected a file that can be written, "
            f"got {path!r} ({error.strerror}); choose another path"
        ) from error
    return path


def write_title(path: str | None, title: str) -> None:
    """Say in a log which model comes next."""
    if path is not None:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(f"== {title}\n")


@contextlib.contextmanager
def printing_to(path: str | None) -> Iterator[None]:
    """Let everything that is printed in this process go to a file.

    Engines print from C, so that the descriptor itself has to lead there.
    """
    if path is None:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.dup2(file, 1)
    os.close(file)
    try:
        yield
    finally:
        sys.stdout.flush()
        ctypes.CDLL(None).fflush(None)
        os.dup2(kept, 1)
        os.close(kept)
