"""What the runner and a solver's process say to each other: JSON lines."""

from __future__ import annotations

import msgspec

from nest.ir.problem import Problem
from nest.solvers.base import Progress, SolveOptions, SolverOutput


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What the process shall solve: a problem, by the ``"module:Class"`` of a solver.

    The deadline, if there is one, is on :func:`time.monotonic`, which all processes of
    a machine share; the options have no limit of their own. ``more`` is whether other
    requests may follow the answer.
    """

    target: str
    problem: Problem
    options: SolveOptions
    deadline: float | None = None
    more: bool = False


class ProgressMessage(msgspec.Struct, frozen=True, tag="progress"):
    """What a running solver reports."""

    progress: Progress


class BegunMessage(msgspec.Struct, frozen=True, tag="begun"):
    """The solver is called; ``checked`` if it has no options to refuse."""

    checked: bool


class OutputMessage(msgspec.Struct, frozen=True, tag="output"):
    """What a solver hands back in the end.

    ``num_detached`` is as in :class:`~nest.solvers.process.Usage`; ``cpu_s`` is what
    this answer took.
    """

    output: SolverOutput
    peak_rss_bytes: int | None = None
    cpu_s: float = 0.0
    num_detached: int = 0


class Failure(msgspec.Struct, frozen=True, kw_only=True, tag="failure"):
    """An exception that left the solver.

    ``error`` is the closest class of it in :mod:`nest.errors`, or ``MemoryError``, or
    empty for a bug; ``text`` is the message on one line.
    """

    error: str
    text: str
    traceback: str = ""
    peak_rss_bytes: int | None = None
    num_detached: int = 0


Message = BegunMessage | ProgressMessage | OutputMessage | Failure
