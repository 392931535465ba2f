"""What the runner and a solver's process say to each other: JSON lines."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from nest.ir.plan import Plan
from nest.ir.problem import Problem
from nest.solvers.base import Limit, Status


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What the process shall solve.

    Attributes
    ----------
    target
        ``"module:Class"`` of the solver.
    deadline
        When to stop, on :func:`time.monotonic`, which all processes of a
        machine share; ``None`` is never.
    """

    target: str
    problem: Problem
    deadline: float | None = None
    num_workers: int = 1
    seed: int = 0
    warm_start: Plan | None = None
    extra: dict[str, str] = {}


class Report(msgspec.Struct, frozen=True, kw_only=True, tag="report"):
    """A :class:`~nest.solvers.base.Progress` on its way."""

    plan: Plan | None = None
    claimed_quanta: int | None = None
    lower_bound_quanta: int | None = None
    message: str = ""


class Answer(msgspec.Struct, frozen=True, kw_only=True, tag="answer"):
    """A :class:`~nest.solvers.base.SolverOutput` on its way."""

    status: Status
    plan: Plan | None = None
    claimed_quanta: int | None = None
    lower_bound_quanta: int | None = None
    limit: Limit | None = None
    detail: str = ""
    own_objective_ns: float | None = None
    extra: dict[str, Any] = {}
    peak_rss_bytes: int | None = None


class Failure(msgspec.Struct, frozen=True, kw_only=True, tag="failure"):
    """An exception that left the solver.

    Attributes
    ----------
    kind
        What it means: the solver cannot do this problem, its engine is
        missing, memory ran out, the input is bad, or it is a bug.
    bad_input
        For kind ``bad-input``, which exception to raise again.
    text, traceback
        The message on one line, and the whole story.
    """

    kind: Literal[
        "unsupported", "not-installed", "memory", "bad-input", "error"
    ]
    text: str
    bad_input: Literal["problem", "option", "name"] | None = None
    traceback: str = ""
    peak_rss_bytes: int | None = None


Message = Report | Answer | Failure
