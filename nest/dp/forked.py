"""Cases of a frontier in processes that tell each other what they find.

The processes are forked when all cases are bounded and some plans known, so
nothing is computed twice. They take the cases one after the other and hand
every new point to the others, whose bounds get tighter by it.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import TypeVar

from nest.dp.errors import OutOfTimeError
from nest.errors import SolverError

P = TypeVar("P")
R = TypeVar("R")


class Link:
    """What a forked process has of the others: points in, points out."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def tell(self, point: object) -> None:
        """Hand a point to the others."""
        self._pipe.send(("point", point))

    def heard(self) -> list[object]:
        """Return what the others found since the last call."""
        # Asked for, so that no side ever waits on a full pipe.
        self._pipe.send(("hear",))
        found: list[object] = self._pipe.recv()
        return found


def share(
    num_cases: int,
    workers: int,
    run: Callable[[int, Link], R],
    take: Callable[[P], object],
    say: Callable[[str], None],
    name: Callable[[int], str],
) -> dict[int, tuple[R, bool]]:
    """Run all cases in forked processes; return what is left of each.

    Parameters
    ----------
    num_cases, workers
        How many cases and processes.
    run
        Called in a process with the number of a case; what it returns comes
        back. May raise :class:`OutOfTimeError`, whose ``args`` hold what it
        would return.
    take
        Called here with every point that a process tells.
    say, name
        Told the name of each case that begins.

    Returns
    -------
    dict
        By number of the cases begun: the result, and whether time was left.

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
            if number >= num_cases:
                break
            pipe.send(("begin", number))
            try:
                pipe.send(("end", number, run(number, link), True))
            except OutOfTimeError as error:
                pipe.send(("end", number, error.args[0], False))
                break
        pipe.send(("done",))

    try:
        for _ in range(min(workers, num_cases)):
            here, there = context.Pipe()
            process = context.Process(target=work, args=(there,), daemon=True)
            process.start()
            there.close()
            pipes.append(here)
            processes.append(process)
        _relay(list(pipes), take, say, name, found)
    finally:
        for process in processes:
            process.kill()
            process.join()
    return found


def _relay(
    pipes: Sequence[Connection],
    take: Callable[[P], object],
    say: Callable[[str], None],
    name: Callable[[int], str],
    found: dict[int, tuple[R, bool]],
) -> None:
    """Pass points on until every process is done."""
    running = list(pipes)
    unheard: dict[Connection, list[object]] = {pipe: [] for pipe in pipes}
    while running:
        for pipe in wait(running):
            assert isinstance(pipe, Connection)
            try:
                message = pipe.recv()
            except EOFError:
                raise SolverError(
                    "frontier: a process ended without an answer; give it "
                    "more memory, or use fewer --workers"
                ) from None
            kind = message[0]
            if kind == "begin":
                say(name(message[1]))
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
