"""Cells: a solver at work on a problem, mostly in a process of its own.

Everything that runs in a child process runs through :func:`run_cells`: one
cell at a time for the runner, several for a frontier. Inside :func:`one_process`, runs
share a process, since nothing compares their time and memory.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field, replace

import msgspec

from nest.ir.problem import Problem
from nest.solvers import messages
from nest.solvers.base import Deadline, Progress, SolveOptions
from nest.solvers.process import Usage, Worker
from nest.units import finite
from nest.util.interrupts import deferred

#: How often a running cell shows a sign of life.
TICK_S = 0.5

#: How long a solver that gave its answer may take to leave.
_LEAVE_S = 0.5


@dataclass(frozen=True)
class Running:
    """A sign of life of a running cell.

    What it claims so far (in quanta) is not checked yet. Once it has begun, no input is
    refused any more.
    """

    solver: str
    elapsed_s: float = 0.0
    best_quanta: int | None = None
    lower_bound_quanta: int | None = None
    has_plan: bool = False
    message: str = ""
    quantum_ps: int = 1000
    begun: bool = True


OnProgress = Callable[[Running], None]

#: Called with every report of a solver, and the seconds it came after.
OnReport = Callable[[float, Progress], None]


def about(what: str, on_progress: OnProgress | None) -> OnProgress:
    """Return what hands on signs of life, with what they are about."""

    def show(running: Running) -> None:
        if on_progress is not None:
            text = ": ".join(filter(None, (what, running.message)))
            on_progress(replace(running, message=text))

    return show


#: How long after its limit a solver is killed: a last resort.
GRACE_S = 1.0


#: Processes that wait for the next run, by solver, threads and folder.
WAITING: ContextVar[dict[object, Worker] | None] = ContextVar("waiting", default=None)


@contextlib.contextmanager
def one_process() -> Iterator[None]:
    """Let runs of solvers of this project share a process, as long as they answer."""
    workers: dict[object, Worker] = {}
    token = WAITING.set(workers)
    try:
        yield
    finally:
        WAITING.reset(token)
        with deferred():
            for worker in workers.values():
                worker.stop()


@dataclass(eq=False)
class Cell:
    """One solver, one problem, one process, one clock, which has its time limit.

    Gathers what the solver says until it answers, fails, dies, has proven enough or is
    :data:`GRACE_S` too late. Nothing of it is checked.
    """

    name: str
    target: str
    problem: Problem
    options: SolveOptions
    clock: Deadline
    #: Called at every report and every :data:`TICK_S`; and with every report.
    on_progress: OnProgress | None = None
    on_report: OnReport | None = None
    #: Where the process starts; ``None`` is where this one is.
    folder: str | None = None
    #: The processes that it may share; ``None`` if it has its own.
    waiting: dict[object, Worker] | None = None
    #: The best report of a plan, the greatest lower bound in quanta, the last words,
    #: and what it ended with, if it said so.
    best: Progress = field(default_factory=Progress)
    bound: int | None = None
    message: str = ""
    last: messages.OutputMessage | messages.Failure | None = None
    #: Whether the solver was called before the process ended.
    started: bool = False
    out_of_time: bool = False
    within_gap: bool = False
    #: What its process used, once that has ended.
    usage: Usage | None = None
    _worker: Worker | None = None
    _begun: bool = False

    @property
    def num_detached(self) -> int:
        """Processes that its own has left, and that were ended."""
        found = 0 if self.usage is None else self.usage.num_detached
        return found + (0 if self.last is None else self.last.num_detached)

    def _request(self) -> messages.Request:
        """Return what the solver is asked."""
        deadline = None
        if self.clock.limit_s is not None:
            deadline = self.clock.start + self.clock.limit_s
        return messages.Request(
            target=self.target,
            problem=self.problem,
            options=replace(self.options, extra=dict(self.options.extra)),
            deadline=deadline,
            more=self.waiting is not None,
        )

    def answer_here(self) -> None:
        """Let the solver work in this process; nobody can end it but Ctrl-C.

        For :attr:`~nest.solvers.base.Capabilities.is_quick`.
        """
        from nest.solvers.worker import answered, failure_of

        start_s = time.process_time()

        def take(message: messages.Message) -> None:
            self._take(message)
            self._show()

        try:
            self.last = answered(self._request(), take)
        except Exception as error:
            self.last = failure_of(error)
        self.usage = Usage(
            exit_code=0,
            cpu_s=time.process_time() - start_s,
            peak_rss_bytes=self.last.peak_rss_bytes or 0,
            log="",
        )

    def start(self) -> None:
        """Start the process; ``OSError`` if there can be none."""
        request = msgspec.json.encode(self._request())
        key = self.target, self.options.num_workers, self.folder
        waiting = {} if self.waiting is None else self.waiting
        with deferred():
            worker = waiting.get(key)
            if worker is None or not worker.send(request):
                worker = Worker(request, *key[1:])
            self._worker = waiting[key] = worker

    def listen(self, timeout_s: float) -> bool:
        """Take what it says, for so long; return whether that was all."""
        worker = self._worker
        assert worker is not None
        end_s = math.inf
        if self.clock.limit_s is not None:
            end_s = self.clock.limit_s + GRACE_S
        remaining_s = end_s - self.clock.elapsed_s
        for line in worker.poll(min(timeout_s, remaining_s)):
            if self.last is None:
                self._take(_decoded(line))
        if self.last is not None:
            worker.wait(_LEAVE_S if self.waiting is None else 0.0)
        elif not worker.ended:
            self.within_gap = self.options.reached(self.best.claimed_quanta, self.bound)
            self.out_of_time = self.clock.elapsed_s >= end_s
            if not self.within_gap and not self.out_of_time:
                self._show()
                return False
        self.stop()
        return True

    def interrupt(self) -> None:
        """Ask the process to answer with what it knows, and wait a little."""
        self.clock.limit_s = self.clock.elapsed_s + GRACE_S
        if self._worker is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._worker.pid, signal.SIGINT)

    def stop(self) -> None:
        """End the process, if there is one that no other run can use."""
        if self._worker is not None:
            with deferred():
                self.usage = self._usage_of_answer() or self._worker.stop()

    def _usage_of_answer(self) -> Usage | None:
        """Return what an answer took whose process waits for the next run."""
        if self.waiting is None or not isinstance(self.last, messages.OutputMessage):
            return None
        return Usage(0, self.last.cpu_s, self.last.peak_rss_bytes or 0, log="")

    def _show(self) -> None:
        if self.on_progress is not None:
            self.on_progress(
                Running(
                    solver=self.name,
                    elapsed_s=self.clock.elapsed_s,
                    best_quanta=self.best.claimed_quanta,
                    lower_bound_quanta=finite(self.bound),
                    has_plan=self.best.plan is not None,
                    message=self.message,
                    quantum_ps=self.problem.quantum_ps,
                    begun=self._begun,
                )
            )

    def _take(self, message: messages.Message) -> None:
        if isinstance(message, messages.BegunMessage):
            self.started, self._begun = True, message.checked
            return
        if not isinstance(message, messages.ProgressMessage):
            self.last = message
            return
        self._begun = True
        report = message.progress
        if self.on_report is not None:
            self.on_report(self.clock.elapsed_s, report)
        if report.plan is not None:
            old, new = self.best.claimed_quanta, report.claimed_quanta
            if old is None or new is None or new <= old:
                self.best = report
        bound = report.lower_bound_quanta
        if bound is not None and (self.bound is None or bound > self.bound):
            self.bound = bound
        self.message = report.message or self.message


def _decoded(line: bytes) -> messages.Message:
    try:
        message: messages.Message = msgspec.json.decode(line, type=messages.Message)
    except msgspec.MsgspecError as error:
        text = f"its answer is malformed: {error}"
        return messages.Failure(error="", text=text)
    return message


def run_cells(
    cells: Iterator[Cell], at_once: int, on_end: Callable[[Cell], None]
) -> None:
    """Run cells until all have ended, ``at_once`` of them at the same time.

    Whatever happens, no process is left behind. The next cell is asked for when it can
    start; ``on_end`` gets every cell that has ended.

    Raises ``OSError`` if a process cannot be started.
    """
    running: list[Cell] = []
    try:
        while True:
            while len(running) < at_once and (cell := next(cells, None)):
                running.append(cell)
                cell.start()
            if not running:
                return
            for cell in tuple(running):
                if cell.listen(TICK_S / len(running)):
                    running.remove(cell)
                    on_end(cell)
    finally:
        with deferred():
            for cell in running:
                cell.stop()
