"""Compare solvers: the same problem and limits for each, one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from nest.analysis.target_loss import TargetLoss
from nest.errors import SolverNotInstalledError, UnknownNameError
from nest.ir.io import problem_hash
from nest.ir.problem import Problem
from nest.ir.views import Row, Tabular
from nest.solvers.base import Progress, SolveOptions, Status
from nest.solvers.cell import OnProgress
from nest.solvers.consistency import refuted
from nest.solvers.registry import default_workers, is_plugin
from nest.solvers.result import Outcome, SolveResult
from nest.solvers.run import CellInterrupted, check_request, run_solver
from nest.uncertainty.intervals import Intervals, equal, intervals_of
from nest.util.versions import provenance

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Called with all results so far whenever a cell is finished.
OnCell = Callable[[Sequence[SolveResult]], None]

#: Called with every report: its solver, the seconds it came after, and it.
OnSolverReport = Callable[[str, float, Progress], None]


def compare(
    problem: Problem,
    solvers: Iterable[str] | Mapping[str, SolveOptions],
    options: SolveOptions | None = None,
    *,
    on_cell: OnCell | None = None,
    on_progress: OnProgress | None = None,
    on_report: OnSolverReport | None = None,
) -> list[SolveResult]:
    """Run solvers on one problem, each alone on the machine.

    Solvers come in the order of the results, with options of their own or with the same
    ones; by default each gets its number of workers, see
    :func:`~nest.solvers.registry.default_workers`. A proof that another solver's plan
    refutes turns into a mismatch.

    ``on_cell`` gets the results so far after every cell, ``on_progress`` a sign of life
    while a cell runs, and ``on_report`` every report of every solver, unchecked.

    Raises
    ------
    NestError
        If the request makes no sense, before anything runs.
    CellInterrupted
        On Ctrl-C, after ``on_cell`` got the interrupted cell.
    """
    if isinstance(solvers, Mapping):
        cells = dict(solvers)
    else:
        cells = {
            name: options or SolveOptions(num_workers=default_workers(name))
            for name in solvers
        }
    for name, cell_options in cells.items():
        try:
            check_request(problem, name, cell_options)
        except SolverNotInstalledError:
            # A broken entry point costs its cell alone, which says why.
            if not is_plugin(name):
                raise

    results: list[SolveResult] = []

    def finish(result: SolveResult) -> None:
        results[:] = cross_check([*results, result])
        if on_cell is not None:
            on_cell(tuple(results))

    for name, cell_options in cells.items():
        taken = None if on_report is None else partial(on_report, name)
        try:
            result = run_solver(
                *(problem, name, cell_options, on_progress, taken),
                alone=len(cells) == 1,
            )
            finish(result)
        except CellInterrupted as interrupt:
            finish(interrupt.result)
            raise
    return results


def cross_check(results: Sequence[SolveResult]) -> list[SolveResult]:
    """Turn every proof that another result's plan refutes into a mismatch.

    Plans carry scores of the shared cost model, so a plan that beats a lower
    bound proves the bound wrong, whoever found it.
    """
    scored = [
        (result.step_quanta, result.solver)
        for result in results
        if result.step_quanta is not None
    ]
    if not scored:
        return list(results)
    best_quanta, best_solver = min(scored)
    return [_refute(result, best_quanta, best_solver) for result in results]


def _refute(result: SolveResult, best_quanta: int, best_solver: str) -> SolveResult:
    status, bound = claimed(result)
    claim = refuted(status, bound, best_quanta)
    if claim is None or result.outcome is Outcome.MISMATCH:
        return result
    detail = f"{claim}, but the plan of {best_solver} takes {best_quanta}"
    over = result.status is Status.OVER_MEMORY
    if result.outcome is Outcome.INVALID_PLAN:
        return replace(
            result, outcome=Outcome.MISMATCH, detail=f"{detail}; {result.detail}"
        )
    return replace(
        result,
        outcome=Outcome.MISMATCH,
        status=_without_proof(result),
        lower_bound_quanta=None,
        detail=f"{detail}; {result.detail}" if over else detail,
        extra={
            **result.extra,
            "claim": {
                "status": str(result.status),
                "lower_bound_quanta": bound,
                "detail": result.detail,
            },
        },
    )


def _without_proof(result: SolveResult) -> Status:
    """Return what is left of a status if no proof counts."""
    if result.plan is None:
        return Status.NO_SOLUTION
    over = result.status is Status.OVER_MEMORY
    return Status.OVER_MEMORY if over else Status.FEASIBLE


def claimed(result: SolveResult) -> tuple[Status | None, int | None]:
    """Return the status and the bound that a solver answers for.

    Those of its claim, if that was refused for something else: what is wrong with a
    plan makes no bound true. Claims about a part of the plans count for nothing.
    """
    claim = result.extra.get("claim")
    refused = result.outcome in (Outcome.INVALID_PLAN, Outcome.MISMATCH)
    if not refused or not claim or claim.get("unsearched"):
        return result.status, result.lower_bound_quanta
    return Status(claim["status"]), claim["lower_bound_quanta"]


def fastest(results: Iterable[SolveResult]) -> SolveResult | None:
    """Return the first result with the fastest plan, if there is one."""
    with_plan = [x for x in results if x.step_quanta is not None]
    return min(with_plan, key=lambda x: x.step_quanta or 0, default=None)


@dataclass(frozen=True, repr=False)
class Comparison(Tabular):
    """The answers of several solvers to one problem, one per solver.

    It has a length, is iterated over, and gives an answer by its place or by the
    keyword of its solver. ``target_loss`` is what the target costs, if that was asked.
    """

    problem: Problem
    results: tuple[SolveResult, ...]
    target_loss: TargetLoss | None = None

    def __len__(self) -> int:
        """Return how many answers there are."""
        return len(self.results)

    def __iter__(self) -> Iterator[SolveResult]:
        """Return the answers one after the other."""
        return iter(self.results)

    def __getitem__(self, which: int | str) -> SolveResult:
        """Return the answer at a place, or of a solver."""
        if isinstance(which, int):
            return self.results[which]
        for result in self.results:
            if result.solver == which:
                return result
        raise UnknownNameError(
            "solver", which, [result.solver for result in self.results]
        )

    @property
    def best(self) -> SolveResult | None:
        """The first answer with the fastest plan; ``None`` without plans."""
        return fastest(self.results)

    def __repr__(self) -> str:
        """Return what it is in a line."""
        best = self.best
        text = "no plan" if best is None else f"best {best.solver}"
        return (
            f"<Comparison of {', '.join(x.solver for x in self.results)} on "
            f"{self.problem.name}: {text}>"
        )

    def plot(self, axes: Axes | None = None) -> Axes:
        """Draw the step times, see :mod:`nest.util.plots`."""
        from nest.util.plots import bars

        rows = self.to_rows()
        for row, result in zip(rows, self.results, strict=True):
            if result.status is Status.OVER_MEMORY and result.score:
                row["step_time_ns"] = result.score.step_time_ns
        return bars(rows, axes, title=self.problem.name)

    def to_rows(self) -> list[Row]:
        """Return a row per solver; how much longer, as a fraction."""
        best = self.best
        best_quanta = 0 if best is None else best.step_quanta
        rows = []
        for result in self.results:
            step = result.step_quanta
            longer = None
            if step and best_quanta:
                longer = (step - best_quanta) / best_quanta
            rows.append({**result.to_row(), "longer_than_best": longer})
        return rows


class Beside(NamedTuple):
    """A result beside the fastest plan.

    Attributes
    ----------
    intervals
        Those of its plan; ``None`` without one, and where none are known.
    equal
        Whether its plan and the fastest differ by less than the noise of
        predictions; ``None`` where nothing is known of it.
    """

    intervals: Intervals | None
    equal: bool | None

    def to_json(self) -> dict[str, Any]:
        """Return what a document adds to the cell of the result."""
        return {
            "intervals": self.intervals and self.intervals.to_json(),
            "equal_to_best": self.equal,
        }


def beside_best(problem: Problem, results: Iterable[SolveResult]) -> list[Beside]:
    """Return the intervals of plans, and which equal the fastest one."""
    found = [(result.step_quanta, _intervals(problem, result)) for result in results]
    known = [
        (quanta, intervals)
        for quanta, intervals in found
        if quanta is not None and intervals is not None
    ]
    if not known:
        return [Beside(intervals, None) for _, intervals in found]
    least, best = min(known, key=lambda pair: pair[0])
    return [
        Beside(
            intervals,
            None
            if quanta is None or intervals is None
            else equal(problem, (quanta, least), (intervals.shares, best.shares)),
        )
        for quanta, intervals in found
    ]


def _intervals(problem: Problem, result: SolveResult) -> Intervals | None:
    if result.plan is None or result.score is None:
        return None
    return intervals_of(problem, result.plan, result.score)


def proof_scope(problem: Problem, target: str | None = None) -> dict[str, Any]:
    """Return which plans proofs cover: those of a framework, if there is one."""
    job = problem.job
    return {
        "schedules": job.schedule_text.split(","),
        "virtual_stages": list(job.virtual_stages),
        "overlap": dict(job.overlap),
        "target": target,
    }


def to_document(
    problem: Problem,
    cells: Mapping[str, SolveOptions],
    results: Iterable[SolveResult],
    target: str | None = None,
) -> dict[str, Any]:
    """Return the ``nest-compare/1`` document of a comparison.

    ``cells`` are the solvers asked for, with their options; there are fewer
    results if it is written before the end. ``workers`` is ``null`` if they
    have not all the same number. ``proof`` says which plans proofs cover:
    those of a framework's name, if there is a ``target``.
    """
    results = list(results)
    first = next(iter(cells.values()))
    workers = {options.num_workers for options in cells.values()}
    return {
        "schema": "nest-compare/1",
        "problem": problem.name,
        "problem_hash": problem_hash(problem),
        "preset": problem.preset,
        "quantum_ps": problem.quantum_ps,
        "time_unit": problem.time_unit,
        "time_limit_s": first.time_limit_s,
        "workers": workers.pop() if len(workers) == 1 else None,
        "seed": first.seed,
        "solvers": list(cells),
        "proof": proof_scope(problem, target),
        **provenance(),
        "cells": [
            result.to_json() | beside.to_json()
            for result, beside in zip(
                results, beside_best(problem, results), strict=True
            )
        ],
    }
