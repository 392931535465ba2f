"""The process in which one solver works on one problem, or on several in turn.

Started by :mod:`nest.solvers.process` as the leader of a process group of
its own. It reads a :class:`Request` from a file. A byte on standard input says that
the next one is there; its end means that the parent is gone, and the group is killed.
It writes messages to what was standard output; whatever an engine prints goes
to standard error, which the parent keeps in a file.
"""

from __future__ import annotations

import faulthandler
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import msgspec

import nest.errors
from nest.cost.orders import planner_job
from nest.errors import InvalidPlanError, SolverError, UnsupportedProblemError
from nest.ir.problem import Problem
from nest.solvers import messages
from nest.solvers.base import Capabilities, Limit, Progress, SolverOutput, Status
from nest.solvers.descendants import adopt, end_detached
from nest.solvers.process import REQUEST
from nest.solvers.registry import load_target

_Answer = TypeVar("_Answer", Progress, SolverOutput)


def main(directory: str) -> None:
    """Serve requests until none may follow, and return.

    The parent removes ``directory``, which has temporary files; else this process does.
    """
    faulthandler.enable()
    adopt()
    lifeline, channel = os.dup(0), _Channel(os.dup(1))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    requests = threading.Semaphore(1)  # the first one is there
    guard = threading.Thread(
        target=_guard, args=(lifeline, directory, requests), daemon=True
    )
    guard.start()
    while requests.acquire() and _serve(directory, channel):
        pass


def _serve(directory: str, channel: _Channel) -> bool:
    """Answer a request; return whether another one may come."""
    num_detached = 0
    try:
        data = Path(directory, REQUEST).read_bytes()
        request = msgspec.json.decode(data, type=messages.Request)
        try:
            answer = answered(request, channel.send)
        finally:
            # While it is here they are its descendants.
            num_detached = end_detached(os.getpid())
        channel.send(msgspec.structs.replace(answer, num_detached=num_detached))
        return request.more
    except BaseException as error:  # whatever it is, the parent must know
        failure = failure_of(error)
        channel.send(msgspec.structs.replace(failure, num_detached=num_detached))
        return False


class _Channel:
    """The pipe to the parent; engines report from threads of their own."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def send(self, message: messages.Message) -> None:
        # Encode before writing: what fails to encode leaves no half line.
        data = memoryview(msgspec.json.encode(message) + b"\n")
        with self._lock:
            while data:
                data = data[os.write(self._descriptor, data) :]


def _guard(descriptor: int, directory: str, requests: threading.Semaphore) -> None:
    """Count requests; kill the group, and those who left it, when the parent ends."""
    try:
        while os.read(descriptor, 1):
            requests.release()
        end_detached(os.getpid())
        shutil.rmtree(directory, ignore_errors=True)
    finally:
        os.killpg(0, signal.SIGKILL)


def answered(
    request: messages.Request, send: Callable[[messages.Message], object]
) -> messages.OutputMessage:
    """Return what a solver answers, and send what it says until then."""
    start_s = sum(os.times()[:4])
    output = _solve(request, send)
    output = replace(output, extra=dict(output.extra))
    cpu_s = sum(os.times()[:4]) - start_s
    return messages.OutputMessage(output, _peak_rss_bytes(), cpu_s)


def _solve(
    request: messages.Request, send: Callable[[messages.Message], object]
) -> SolverOutput:
    solver = load_target(request.target)()
    problem, order = _planned(request.problem, solver.capabilities)
    reason = solver.unsupported(problem)
    if reason is not None:
        raise UnsupportedProblemError(reason)
    remaining_s = None
    if request.deadline is not None:
        remaining_s = request.deadline - time.monotonic()
        if remaining_s <= 0:
            return SolverOutput(
                status=Status.NO_SOLUTION,
                limit=Limit.TIME,
                detail="the limit passed before the search began",
            )

    options = replace(request.options, time_limit_s=remaining_s)

    def report(progress: Progress) -> None:
        send(messages.ProgressMessage(_ordered(progress, order)))

    send(messages.BegunMessage(checked=not options.extra))
    output: object = solver.solve(problem, options, report)
    if not isinstance(output, SolverOutput):
        raise TypeError(
            f"expected a SolverOutput from {request.target}, "
            f"got {type(output).__name__}"
        )
    return _ordered(output, order)


def _planned(
    problem: Problem, capabilities: Capabilities
) -> tuple[Problem, str | None]:
    """Return what a solver searches, and the order that its plans have."""
    if capabilities.exact or "order" in capabilities.searches:
        return problem, None
    job = planner_job(problem.job)
    if job is problem.job:
        return problem, None
    return msgspec.structs.replace(problem, job=job), job.schedule_text


def _ordered(answer: _Answer, order: str | None) -> _Answer:
    """Return an answer whose plan names its schedule, if that is known.

    What the formula of the schedule says is no claim about its passes.
    """
    plan = answer.plan
    if order is None or plan is None:
        return answer
    plan = msgspec.structs.replace(plan, order=order, problem_hash=None)
    return replace(answer, plan=plan, claimed_quanta=None)


def failure_of(error: BaseException) -> messages.Failure:
    """Return what is told of an error that left a solver."""
    names = [each.__name__ for each in type(error).__mro__]
    known = [name for name in names if name in _KNOWN]
    text = " ".join(str(error).split())
    if not known or isinstance(error, SolverError | InvalidPlanError):
        text = f"{type(error).__name__}: {text}" if text else repr(error)
    return messages.Failure(
        error=known[0] if known else "",
        text=text,
        traceback="".join(traceback.format_exception(error)),
        peak_rss_bytes=_peak_rss_bytes(),
    )


#: What the parent tells apart; everything else is a bug.
_KNOWN = {"MemoryError", *vars(nest.errors)}


def _peak_rss_bytes() -> int:
    """Return the peak of this process or of a child it waited for."""
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit
    try:
        # On Linux ru_maxrss starts from the size of the parent; this does not.
        with open("/proc/self/status", encoding="ascii") as file:
            for line in file:
                if line.startswith("VmHWM:"):
                    own = int(line.split()[1]) * 1024
    except OSError:
        pass
    return max(own, children)
