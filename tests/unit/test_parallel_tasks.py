"""Tasks that do not depend on each other, in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from nest.benchmarks.parallel import answers, follow


class Asked(NamedTuple):
    """A task with nothing to do."""

    key: str


def blocks() -> bool:
    """Whether this thread holds SIGINT back."""
    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def hears(_: Asked, parent: int | None) -> bytes:
    """Return whether SIGINT is held back before and after following."""
    assert parent is not None
    before = blocks()
    follow(parent)
    return json.dumps([os.getpid(), before, blocks()]).encode()


def died(task: Asked, text: str) -> bytes:
    raise AssertionError(f"{task.key}: {text}")


def main() -> None:
    """Print what four tasks in two processes say, and then this one."""
    tasks = [Asked(str(number)) for number in range(4)]
    for data in answers(tasks, hears, died, jobs=2):
        print(data.decode())
    print(json.dumps(blocks()))


@pytest.mark.skipif(
    not hasattr(signal, "pthread_sigmask"), reason="no masks of signals here"
)
def test_processes_do_not_hear_ctrl_c_while_they_start() -> None:
    """Who asks hears it, and they hear it once they can end in order.

    In a process of its own, as those of the pool outlive the call.
    """
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.test_parallel_tasks"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    *lines, last = map(json.loads, done.stdout.splitlines())
    assert last is False
    told: dict[int, list[list[bool]]] = {}
    for process, *rest in lines:
        told.setdefault(process, []).append(rest)
    assert len(lines) == 4
    for first, *others in told.values():
        assert first == [True, False]
        assert all(other == [False, False] for other in others)


if __name__ == "__main__":
    main()
