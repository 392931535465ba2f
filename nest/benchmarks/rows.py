"""The answers of a run, held against the cost model and each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgspec

from nest.benchmarks.cells import BenchCell, Entry, Finished, TracePoint
from nest.benchmarks.store import RunFolder
from nest.errors import InvalidPlanError
from nest.ir.plan import Plan
from nest.ir.problem import Problem
from nest.solvers.base import Limit, Status
from nest.solvers.consistency import refuted
from nest.solvers.result import Outcome
from nest.units import quanta_to_ns


@dataclass(frozen=True)
class Row:
    """A finished cell, as reports have it."""

    entry: Entry
    cell: BenchCell
    exact: bool
    #: As in :class:`~nest.solvers.result.SolveResult`.
    outcome: Outcome
    status: Status | None
    limit: Limit | None
    detail: str
    #: Step time of a plan that fits, and a lower bound on all plans.
    step_quanta: int | None
    bound_quanta: int | None
    #: As in :class:`~nest.solvers.result.Verdict`.
    over_memory_bytes: int | None
    own_objective_ns: float | None
    wall_s: float
    cpu_s: float | None
    peak_rss_bytes: int | None
    trace: tuple[TracePoint, ...]
    #: Where it ran, and whether on CPUs that it shared with other cells.
    host: str
    shares_cpus: bool
    quantum_ps: int
    time_unit: str

    @property
    def problem(self) -> str:
        """What reports call the problem."""
        return self.entry.name

    @property
    def solver(self) -> str:
        """The solver."""
        return self.cell.solver

    @property
    def proven(self) -> bool:
        """Whether it proved its answer."""
        return self.status in (Status.OPTIMAL, Status.INFEASIBLE)

    @property
    def step_time_ns(self) -> int | float | None:
        """The step time in ns."""
        return self.in_ns(self.step_quanta)

    @property
    def lower_bound_ns(self) -> int | float | None:
        """The lower bound in ns."""
        return self.in_ns(self.bound_quanta)

    @property
    def word(self) -> str:
        """What became of it, in one word: status, limit or failure."""
        if self.outcome is not Outcome.SOLVED:
            return str(self.outcome)
        if self.limit is not None:
            return f"{self.status}, {self.limit} limit"
        return str(self.status)

    def in_ns(self, quanta: int | None) -> int | float | None:
        """Return a time of its problem in ns."""
        return None if quanta is None else quanta_to_ns(quanta, self.quantum_ps)


class ProblemSummary(NamedTuple):
    """What is known of a problem after the run."""

    #: The least step time of any plan, of the run or known before.
    best_quanta: int | None
    #: The solvers of the run that found it.
    by: tuple[str, ...]
    #: The greatest lower bound that a solver of the run proved.
    bound_quanta: int | None
    infeasible: bool
    #: The solvers that proved the best plan optimal, or that there is none.
    proven_by: tuple[str, ...]

    @property
    def closed(self) -> bool:
        """Whether nothing is left to find."""
        return bool(self.proven_by)


def read_rows(folder: RunFolder) -> list[Row]:
    """Return the finished cells of a run, in the order of reports.

    Every plan is scored again. A cell whose file says something else than
    the cost model counts as not run, with a line in the folder's complaints.
    A proof that a plan of the run refutes is a mismatch.
    """
    rows = []
    for entry, cell in folder.run.cells():
        finished = folder.finished.get(cell.key)
        if finished is None:
            continue
        problem = folder.problems[entry.hash]
        try:
            _check(problem, finished)
            rows.append(_row(entry, cell, problem, finished))
        except (ValueError, KeyError, TypeError) as error:
            text = " ".join(str(error).split())
            folder.forget(cell.key, f"expected its own plan and score, {text}")
    return _cross_checked(rows)


def _check(problem: Problem, finished: Finished) -> None:
    """Raise ``ValueError`` unless the plan takes what the file says."""
    from nest.cost.score import score

    result: dict[str, Any] = finished.result
    if result["plan"] is None:
        if result["step_time_quanta"] is not None:
            raise ValueError("got a step time without a plan")
        return
    try:
        priced = score(problem, msgspec.convert(result["plan"], Plan))
    except InvalidPlanError as error:
        raise ValueError(f"got {error}") from None
    step = priced.step_quanta if priced.feasible else None
    if step != result["step_time_quanta"]:
        raise ValueError(
            f"got a step of {result['step_time_quanta']} quanta for a plan "
            f"that takes {step}"
        )


def _row(entry: Entry, cell: BenchCell, problem: Problem, finished: Finished) -> Row:
    result: dict[str, Any] = finished.result
    status, limit = result["status"], result["limit"]
    return Row(
        entry=entry,
        cell=cell,
        exact=result["exact"],
        outcome=Outcome(result["outcome"]),
        status=None if status is None else Status(status),
        limit=None if limit is None else Limit(limit),
        detail=" ".join(result["detail"].split()),
        step_quanta=result["step_time_quanta"],
        bound_quanta=result["lower_bound_quanta"],
        over_memory_bytes=result["over_memory_bytes"],
        own_objective_ns=result["own_objective_ns"],
        wall_s=result["wall_s"],
        cpu_s=result["cpu_s"],
        peak_rss_bytes=result["peak_rss_bytes"],
        trace=finished.trace,
        host=str(finished.machine.get("host", "")),
        shares_cpus=_shares_cpus(finished),
        quantum_ps=problem.quantum_ps,
        time_unit=problem.time_unit,
    )


def _shares_cpus(finished: Finished) -> bool:
    machine = finished.machine
    at_once, cpus = (int(machine.get(x, 1)) for x in ("at_once", "cpus"))
    return at_once * finished.cell.num_workers > cpus


def _cross_checked(rows: Sequence[Row]) -> list[Row]:
    """Turn proofs that a plan refutes into mismatches.

    Plans are those of the run, and those known before.
    """
    best: dict[str, tuple[int, str]] = {}
    for row in rows:
        for step, whose in (
            (row.step_quanta, f"the plan of {row.solver}"),
            (row.entry.best_quanta, "a plan known before"),
        ):
            if step is not None:
                key = row.entry.hash
                best[key] = min(best.get(key, (step, whose)), (step, whose))
    return [
        _refute(row, *best[row.entry.hash]) if row.entry.hash in best else row
        for row in rows
    ]


def _refute(row: Row, best_quanta: int, whose: str) -> Row:
    bounds = [row.bound_quanta, *(point.bound_quanta for point in row.trace)]
    bound = max((x for x in bounds if x is not None), default=None)
    claim = refuted(row.status, bound, best_quanta)
    if claim is None:
        return row
    detail = f"{claim}, but {whose} takes {best_quanta}"
    over = row.status is Status.OVER_MEMORY
    if over or row.outcome is Outcome.INVALID_PLAN:
        detail = f"{detail}; {row.detail}"
    status = row.status
    if not over:
        planned = row.step_quanta is not None
        status = Status.FEASIBLE if planned else Status.NO_SOLUTION
    return replace(
        row,
        outcome=Outcome.MISMATCH,
        status=status,
        bound_quanta=None,
        detail=detail,
        trace=tuple(
            msgspec.structs.replace(point, bound_quanta=None) for point in row.trace
        ),
    )


def known(rows: Sequence[Row]) -> dict[str, ProblemSummary]:
    """Return what is known of every problem by its hash."""
    by_problem: dict[str, list[Row]] = {}
    for row in rows:
        by_problem.setdefault(row.entry.hash, []).append(row)
    return {key: _known(group) for key, group in by_problem.items()}


def _known(rows: Sequence[Row]) -> ProblemSummary:
    steps = [row.step_quanta for row in rows if row.step_quanta is not None]
    before = rows[0].entry.best_quanta
    best = min([*steps, *([before] if before is not None else [])], default=None)
    bounds = [x.bound_quanta for x in rows if x.bound_quanta is not None]
    infeasible = any(row.status is Status.INFEASIBLE for row in rows)
    return ProblemSummary(
        best_quanta=best,
        by=_solvers(
            row for row in rows if best is not None and row.step_quanta == best
        ),
        bound_quanta=max(bounds, default=None),
        infeasible=infeasible,
        proven_by=_solvers(
            row
            for row in rows
            if row.proven and (infeasible or row.step_quanta == best)
        ),
    )


def _solvers(rows: Iterable[Row]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(row.solver for row in rows))
