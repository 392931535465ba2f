"""Tasks of a search in forked processes that tell each other what they find.

The processes are forked when the search has begun, so nothing is computed
twice. They take the tasks one after the other and hand what they find to the
others, whose bounds get tighter by it.
"""

from __future__ import annotations

import multiprocessing
import signal
import warnings
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import TypeVar

from nest.errors import SolverError

R = TypeVar("R")


class OutOfTimeError(Exception):
    """The deadline passed inside a search; never leaves the solver."""


class Link:
    """What a task has of the others: findings in, findings out."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def tell(self, finding: object) -> None:
        """Hand a finding to the others."""
        self._pipe.send(("tell", finding))

    def heard(self) -> list[object]:
        """Return what the others found since the last call."""
        # Asked for, so that no side ever waits on a full pipe.
        self._pipe.send(("hear",))
        found: list[object] = self._pipe.recv()
        return found


def share(
    num_tasks: int,
    workers: int,
    run: Callable[[int, Link], R],
    take: Callable[[object], object],
    begin: Callable[[int], object],
) -> dict[int, tuple[R, bool]]:
    """Run all tasks in forked processes; return what comes of each.

    Parameters
    ----------
    num_tasks, workers
        How many tasks and processes.
    run
        Called in a process with the number of a task; what it returns comes
        back. May raise :class:`OutOfTimeError`, whose ``args`` hold what it
        would return.
    take
        Called here with everything that a process tells.
    begin
        Called here with the number of each task that begins.

    Returns
    -------
    dict
        By number of the tasks begun: the result, and whether time was left.

    Raises
    ------
    SolverError
        If a process ends without an answer.
    """
    context = multiprocessing.get_context("fork")
    counter = context.Value("i", 0)
    pipes: list[Connection] = []
    processes = []
    found: dict[int, tuple[R, bool]] = {}

    def work(pipe: Connection) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        link = Link(pipe)
        while True:
            with counter.get_lock():
                number = counter.value
                counter.value += 1
            if number >= num_tasks:
                break
            pipe.send(("begin", number))
            try:
                pipe.send(("end", number, run(number, link), True))
            except OutOfTimeError as error:
                left = error.args[0] if error.args else None
                pipe.send(("end", number, left, False))
                break
        pipe.send(("done",))

    try:
        for _ in range(min(workers, num_tasks)):
            here, there = context.Pipe()
            process = context.Process(target=work, args=(there,), daemon=True)
            with warnings.catch_warnings():
                # Other threads of this process hold no lock that is needed.
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
            there.close()
            pipes.append(here)
            processes.append(process)
        _relay(list(pipes), take, begin, found)
    finally:
        for process in processes:
            process.kill()
            process.join()
    return found


def _relay(
    pipes: Sequence[Connection],
    take: Callable[[object], object],
    begin: Callable[[int], object],
    found: dict[int, tuple[R, bool]],
) -> None:
    """Pass findings on until every process is done."""
    running = list(pipes)
    unheard: dict[Connection, list[object]] = {pipe: [] for pipe in pipes}
    while running:
        for pipe in wait(running):
            assert isinstance(pipe, Connection)
            try:
                message = pipe.recv()
            except EOFError:
                raise SolverError(
                    "a search process ended without an answer; give it more "
                    "memory, or use fewer --workers"
                ) from None
            kind = message[0]
            if kind == "begin":
                begin(message[1])
            elif kind == "end":
                found[message[1]] = (message[2], message[3])
            elif kind == "done":
                running.remove(pipe)
            elif kind == "hear":
                pipe.send(unheard[pipe])
                unheard[pipe] = []
            else:
                take(message[1])
                for other in running:
                    if other is not pipe:
                        unheard[other].append(message[1])
