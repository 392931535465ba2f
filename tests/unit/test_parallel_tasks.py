"""Tasks that do not depend on each other, in processes of their own."""

from __future__ import annotations

import os
import signal
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
    return f"{os.getpid()} {before} {blocks()}".encode()


def died(task: Asked, text: str) -> bytes:
    raise AssertionError(f"{task.key}: {text}")


@pytest.mark.skipif(
    not hasattr(signal, "pthread_sigmask"), reason="no masks of signals here"
)
def test_processes_do_not_hear_ctrl_c_while_they_start() -> None:
    """Who asks hears it, and they hear it once they can end in order."""
    tasks = [Asked(str(number)) for number in range(4)]
    told: dict[str, list[list[str]]] = {}
    for data in answers(tasks, hears, died, jobs=2):
        process, *rest = data.decode().split()
        told.setdefault(process, []).append(rest)
    assert not blocks()
    assert sum(map(len, told.values())) == len(tasks)
    for first, *others in told.values():
        assert first == ["True", "False"]
        assert all(other == ["False", "False"] for other in others)
