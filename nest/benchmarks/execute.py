"""Run one cell: the one function behind every way to run many."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import msgspec

from nest.analysis.compare import claimed
from nest.benchmarks.cells import BenchCell, Finished, TracePoint
from nest.cost.score import score
from nest.errors import InvalidPlanError, NestError
from nest.ir.plan import Plan
from nest.ir.problem import Problem
from nest.solvers.base import Progress, Status
from nest.solvers.registry import register_solver, solver_names
from nest.solvers.result import Outcome, SolveResult
from nest.solvers.run import run_solver
from nest.units import finite
from nest.util.versions import machine, nest_version


@dataclass(frozen=True)
class CellTask:
    """A cell with all that a process elsewhere needs to run it.

    ``problem`` is in JSON, ``target`` is its solver as ``"module:Class"``, ``at_once``
    the number of cells that run at the same time on the machine, as far as is known.
    """

    cell: BenchCell
    problem: bytes
    target: str
    at_once: int = 1

    @property
    def key(self) -> str:
        """The key of its cell."""
        return self.cell.key


def run_cell(work: CellTask) -> bytes:
    """Run a cell and return its :class:`Finished` in JSON.

    Whatever the solver does, there is an answer.

    Raises ``NestError`` if another version of the project is installed here.
    """
    version = nest_version()
    if version != work.cell.version:
        raise NestError(
            f"worker on {os.uname().nodename}: expected nest {work.cell.version}, as "
            f"where the run began, got {version}; install the same version everywhere"
        )
    if work.cell.planner or work.cell.solver not in solver_names():
        register_solver(work.cell.solver, work.target)
    problem = msgspec.json.decode(work.problem, type=Problem)
    recorder = Recorder()
    try:
        result = run_solver(
            problem, work.cell.solver, work.cell.options, on_report=recorder.take
        )
    except Exception as error:  # of the solver, or of how it was called
        text = " ".join(str(error).split()) or type(error).__name__
        result = failed(work.cell, problem.quantum_ps, text)
    return msgspec.json.encode(
        Finished(
            key=work.cell.key,
            cell=work.cell,
            result=result.to_json(),
            trace=recorder.trace(problem, result),
            machine={**machine(), "host": os.uname().nodename, "at_once": work.at_once},
        )
    )


def died(work: CellTask, text: str) -> bytes:
    """Return the answer of a cell whose process is gone."""
    return without_answer(work, text, killed=text)


def without_answer(work: CellTask, text: str, **extra: str) -> bytes:
    """Return the answer of a cell that failed before its solver began."""
    quantum_ps = msgspec.json.decode(work.problem, type=Problem).quantum_ps
    result = failed(work.cell, quantum_ps, text, **extra)
    return msgspec.json.encode(
        Finished(key=work.cell.key, cell=work.cell, result=result.to_json())
    )


def failed(cell: BenchCell, quantum_ps: int, text: str, **extra: str) -> SolveResult:
    """Return the result of a cell that came to nothing."""
    return SolveResult(
        outcome=Outcome.ERROR,
        status=Status.NO_SOLUTION,
        detail=text,
        extra=extra,
        solver=cell.solver,
        exact=False,
        problem_hash=cell.problem_hash,
        quantum_ps=quantum_ps,
        options=cell.options,
    )


@dataclass
class Recorder:
    """Gathers what a solver reports; plans are scored when it has ended."""

    reports: list[tuple[float, Progress]] = field(default_factory=list)

    def take(self, wall_s: float, report: Progress) -> None:
        """Take a report, if it says anything of a plan or of a bound."""
        if report.plan is not None or report.lower_bound_quanta is not None:
            self.reports.append((wall_s, report))

    def trace(self, problem: Problem, result: SolveResult) -> tuple[TracePoint, ...]:
        """Return what it had and when, its answer last.

        A claim counts for nothing: plans that do not fit are left out, the
        others stand with their shared score.
        """
        if not result.outcome.ran:
            return ()
        points: list[TracePoint] = []
        step: int | None = None
        bound: int | None = None
        for wall_s, report in self.reports:
            before = step, bound
            if report.plan is not None:
                step = _least(step, _step_quanta(problem, report.plan))
            claim = finite(report.lower_bound_quanta)
            if result.exact and claim is not None:
                bound = max(bound or 0, claim)
            if (step, bound) != before:
                points.append(_point(wall_s, step, bound))
        claim = result.lower_bound_quanta
        if result.outcome is Outcome.INVALID_PLAN and result.exact:
            _, claim = claimed(result)
        claim = finite(claim)
        if claim is not None:
            bound = max(bound or 0, claim)
        # A better plan than the one it hands in is of no use to anybody.
        points.append(_point(result.wall_s, result.step_quanta, bound))
        return tuple(points)


def _point(wall_s: float, step: int | None, bound: int | None) -> TracePoint:
    return TracePoint(wall_s=round(wall_s, 6), step_quanta=step, bound_quanta=bound)


def _least(one: int | None, other: int | None) -> int | None:
    return min((x for x in (one, other) if x is not None), default=None)


def _step_quanta(problem: Problem, plan: Plan) -> int | None:
    """Return the step time of a plan that fits."""
    try:
        verdict = score(problem, plan)
    except InvalidPlanError:
        return None
    return verdict.step_quanta if verdict.feasible else None
