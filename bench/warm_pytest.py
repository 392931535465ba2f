"""Run pytest many times in one folder without loading libraries each time.

A process that has loaded the libraries forks for every run, so that a run loads only
the project and its tests. ``python bench/warm_pytest.py SECONDS`` reads a JSON list of
pytest's arguments from every line of its input, and prints a JSON list of the exit
status, ``null`` after so many seconds, and of what pytest printed.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import TextIO

#: What most runs load. Hypothesis is not among them: pytest has to rewrite
#: its plugin's assertions.
LIBRARIES = (
    *("click", "msgspec", "networkx", "numpy", "pulp", "pytest", "rich"),
    *("ortools.sat.python.cp_model", "yaml"),
)


class TooLongError(Exception):
    """Raised when a run takes longer than it may."""


def run(arguments: Sequence[str], limit_s: int) -> tuple[int | None, str]:
    """Run pytest in a fork; return its exit status and what it printed."""
    with tempfile.TemporaryFile("w+") as output:
        child = os.fork()
        if not child:
            _become_pytest(arguments, output)
        try:
            with _alarm(limit_s):
                status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        except TooLongError:
            status = None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        if status is None:
            os.waitpid(child, 0)
        output.seek(0)
        return status, output.read()


def _become_pytest(arguments: Sequence[str], output: TextIO) -> None:
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for target, source in ((0, nothing), (1, output.fileno()), (2, 1)):
        os.dup2(source, target)
    import pytest

    status = 1
    try:
        status = int(pytest.main(list(arguments)))
    finally:
        sys.stdout.flush()
        os._exit(status)


@contextlib.contextmanager
def _alarm(limit_s: int) -> Iterator[None]:
    def end(signum: int, frame: FrameType | None) -> None:
        raise TooLongError

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(limit_s)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def main(limit_s: int) -> None:
    """Answer lines until the input ends."""
    for name in LIBRARIES:
        importlib.import_module(name)
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line), limit_s)), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
