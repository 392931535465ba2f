"""Directories of runs, each used by one process at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from nest.errors import NestError

#: The file that a process holds while it works in the directory.
LOCK = "lock"


@contextlib.contextmanager
def taken(path: Path) -> Iterator[None]:
    """Hold a directory, for nobody else at the same time.

    Raises ``NestError`` if somebody else holds it, or it cannot be written.
    """
    # Through a link a file of others would be overwritten.
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    try:
        lock = os.open(path / LOCK, flags, 0o666)
    except OSError as error:
        raise not_writable(path, error) from None
    try:
        _take(lock, path)
        yield
    finally:
        os.close(lock)


def not_writable(path: Path, error: OSError) -> NestError:
    """Return the error that says why a directory cannot be written."""
    return NestError(
        f"-o {path}: expected a directory that can be written, got "
        f"{error.strerror or error}; choose another path"
    )


def _take(lock: int, path: Path) -> None:
    """Take the lock; the system frees it when this process is gone."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(lock, 200, 0).decode(errors="replace").strip()
        raise NestError(
            f"-o {path}: expected a directory that no run works in, got one "
            f"taken by {owner or 'a run that just begins'}; wait for its "
            f"end, or choose another path"
        ) from None
    now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    owner = f"process {os.getpid()} on {os.uname().nodename} since {now}\n"
    os.ftruncate(lock, 0)
    os.pwrite(lock, owner.encode(), 0)
