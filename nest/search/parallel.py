"""Tasks of a search in forked processes that tell each other what they find.

The processes are forked when the search has begun, so nothing is computed
twice. They take the tasks one after the other and hand what they find to the
others, whose bounds get tighter by it.
"""

from __future__ import annotations

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

from nest.errors import KilledError
from nest.solvers.base import Deadline, OutOfTimeError
from nest.util.interrupts import end_in_order, end_with_parent

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

Task = TypeVar("Task")


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
        findings: list[object] = self._pipe.recv()
        return findings


class Alone(Link):
    """The link of tasks that run in this process, one after the other."""

    def __init__(self, take: Callable[[object], object]) -> None:
        self._take = take

    def tell(self, finding: object) -> None:
        """Hand a finding to the caller."""
        self._take(finding)

    def heard(self) -> list[object]:
        """Return nothing: what was found here is known."""
        return []


class Exchange(ABC):
    """A search whose tasks, perhaps in several processes, exchange findings."""

    def __init__(self, deadline: Deadline, workers: int) -> None:
        self.deadline, self.workers = deadline, workers
        self._link: Link = Alone(self._take)

    @abstractmethod
    def _keep(self, finding: object) -> bool:
        """Keep a finding if it is better; return whether it is."""

    def _take(self, finding: object) -> None:
        """Receive a finding of some task in the first process."""
        self._keep(finding)

    def _publish(self, finding: object) -> None:
        """Keep a finding, and tell the other processes if it is better."""
        if self._keep(finding):
            self._link.tell(finding)

    def _listen(self) -> None:
        """Keep what other processes found, if there is time left."""
        self.deadline.check()
        for finding in self._link.heard():
            self._keep(finding)

    def _share(
        self,
        tasks: Sequence[Task],
        run: Callable[[Task], object],
        done: Callable[[Task, object], object],
        begin: Callable[[int], object] = lambda index: None,
    ) -> None:
        """Run all tasks, see :func:`share`, each with a link to the others."""

        def run_task(index: int, link: Link) -> object:
            self._link = link
            return run(tasks[index])

        def end_task(index: int, result: object) -> None:
            done(tasks[index], result)

        share(len(tasks), self.workers, run_task, self._take, end_task, begin)


def share(
    num_tasks: int,
    workers: int,
    run: Callable[[int, Link], object],
    take: Callable[[object], object],
    done: Callable[[int, object], object],
    begin: Callable[[int], object] = lambda index: None,
) -> None:
    """Run all tasks, in forked processes if there may be several.

    Parameters
    ----------
    num_tasks, workers
        How many tasks and processes; with one, all run in this process.
    run
        Called in some process with the number of a task. May raise
        :class:`OutOfTimeError`, whose ``args`` may hold what it would return.
    take
        Called here with everything that a task tells.
    done
        Called here with the number of a task and what it returned, also if
        it ran out of time and returned something.
    begin
        Called here with the number of each task that begins.

    Raises
    ------
    OutOfTimeError
        If some task ran out of time, when all have ended.
    SolverError
        If a process ends without an answer.
    """
    if min(workers, num_tasks) > 1:
        _share(num_tasks, workers, run, take, done, begin)
        return
    link = Alone(take)
    for index in range(num_tasks):
        begin(index)
        try:
            result = run(index, link)
        except OutOfTimeError as error:
            if error.args:
                done(index, error.args[0])
            raise
        done(index, result)


def _share(
    num_tasks: int,
    workers: int,
    run: Callable[[int, Link], object],
    take: Callable[[object], object],
    done: Callable[[int, object], object],
    begin: Callable[[int], object],
) -> None:
    import multiprocessing

    context = multiprocessing.get_context("fork")
    counter = context.Value("i", 0)
    pipes: list[Connection] = []
    processes = []
    parent = os.getpid()

    def work(pipe: Connection) -> None:
        end_with_parent(parent)
        end_in_order()
        link = Link(pipe)
        in_time = True
        while in_time:
            with counter.get_lock():
                index = counter.value
                counter.value += 1
            if index >= num_tasks:
                break
            pipe.send(("begin", index))
            try:
                pipe.send(("done", index, run(index, link)))
            except OutOfTimeError as error:
                in_time = False
                if error.args:
                    pipe.send(("done", index, error.args[0]))
        pipe.send(("end", in_time))

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
        if not _relay(pipes, take, done, begin):
            raise OutOfTimeError
    finally:
        for process in processes:
            process.kill()
            process.join()


def _relay(
    pipes: Sequence[Connection],
    take: Callable[[object], object],
    done: Callable[[int, object], object],
    begin: Callable[[int], object],
) -> bool:
    """Pass findings on until every process ends; return if all had time."""
    from multiprocessing.connection import wait

    running, in_time = list(pipes), True
    unheard: dict[Connection, list[object]] = {pipe: [] for pipe in pipes}
    while running:
        for pipe in cast("list[Connection]", wait(running)):
            try:
                kind, *rest = pipe.recv()
            except EOFError:
                raise KilledError(
                    "a search process ended without an answer; give it more "
                    "memory, or use fewer --workers"
                ) from None
            if kind == "begin":
                begin(*rest)
            elif kind == "done":
                done(*rest)
            elif kind == "end":
                running.remove(pipe)
                in_time &= rest[0]
            elif kind == "hear":
                pipe.send(unheard[pipe])
                unheard[pipe] = []
            else:
                take(*rest)
                for other in running:
                    if other is not pipe:
                        unheard[other].append(*rest)
    return in_time
