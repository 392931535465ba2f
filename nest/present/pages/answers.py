"""The rows of a page about solvers and plans, and the plan that it shows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from nest.analysis.page_facts import Answer, Document
from nest.ir.problem import Problem
from nest.present import comparison
from nest.solvers.base import Status
from nest.solvers.result import Outcome, SolveResult
from nest.units import quanta_to_ns

#: Points of a solver's curves over time; of more, so many evenly chosen ones.
MOST_POINTS = 200

#: What a page has of every answer, in addition to the columns of its table.
_ANSWER_KEYS = (
    *("version", "exact", "outcome", "status", "limit", "step_time_ns"),
    *("lower_bound_ns", "gap", "over_memory_bytes", "own_objective_ns"),
    *("wall_s", "peak_rss_bytes", "detail"),
)


def solver_rows(
    results: Iterable[SolveResult],
    problem: Problem,
    traces: Mapping[str, Sequence[Sequence[float | None]]] | None = None,
    missing: Iterable[str] = (),
) -> list[Document]:
    """Return a row per solver, those that did not run included.

    Parameters
    ----------
    results
        What they answered.
    problem
        The problem.
    traces
        By solver: what it had and when, as (wall_s, step quanta, bound
        quanta).
    missing
        Solvers that were asked for and did not begin.
    """
    traces = traces or {}

    def ns(quanta: float | None) -> int | float | None:
        if quanta is None:
            return None
        return quanta_to_ns(int(quanta), problem.quantum_ps)

    keys = (*_ANSWER_KEYS, *comparison.page_keys())
    rows = []
    for fields in comparison.answer_fields(problem, results):
        longer = fields["longer_than_best"]
        points = _thinned(traces.get(fields["solver"], ()))
        rows.append(
            {
                "name": fields["solver"],
                **{key: fields[key] for key in keys if key in fields},
                "failed": Outcome(fields["outcome"]).failed,
                "over_best": None if longer == math.inf else longer,
                "trace": [
                    {
                        "wall_s": wall_s,
                        "step_time_ns": ns(step_quanta),
                        "lower_bound_ns": ns(bound_quanta),
                    }
                    for wall_s, step_quanta, bound_quanta in points
                ],
            }
        )
    return rows + [_not_run(name) for name in missing]


def _thinned(
    points: Sequence[Sequence[float | None]],
) -> list[Sequence[float | None]]:
    """Return the points to show, the first and the last among them."""
    last = len(points) - 1
    if last < MOST_POINTS:
        return list(points)
    return [points[i * last // (MOST_POINTS - 1)] for i in range(MOST_POINTS)]


def _not_run(name: str) -> Document:
    row: Document = dict.fromkeys((*_ANSWER_KEYS, *comparison.page_keys()))
    return row | {
        "name": name,
        "outcome": "not run",
        "failed": False,
        "over_best": None,
        "detail": "",
        "trace": [],
    }


def plan_rows(answers: Sequence[Answer], problem: Problem) -> list[Document]:
    """Return a row per plan that was given."""
    steps = [a.score.step_quanta for a in answers if a.score.feasible]
    best = min(steps, default=None)
    rows = []
    for answer in answers:
        score = answer.score
        step = score.step_quanta if score.feasible else None
        over = None if score.feasible else -score.memory_left_bytes
        rows.append(
            {
                **_not_run(answer.name),
                "outcome": "scored",
                "status": "fits"
                if score.feasible
                else str(Status.OVER_MEMORY),
                "step_time_ns": None
                if step is None
                else quanta_to_ns(step, problem.quantum_ps),
                "over_best": None
                if step is None or not best
                else (step - best) / best,
                "over_memory_bytes": over,
            }
        )
    return rows


def best_answer(results: Iterable[SolveResult]) -> Answer | None:
    """Return the fastest plan that fits, else one that does not, if any."""
    with_plan = [r for r in results if r.plan is not None]
    fitting = [r for r in with_plan if r.step_quanta is not None]
    bounds = [
        r.lower_bound_ns
        for r in with_plan
        if r.lower_bound_ns is not None and not r.outcome.failed
    ]
    pool = fitting or with_plan
    if not pool:
        return None

    def rank(result: SolveResult) -> tuple[int, bool]:
        assert result.score is not None
        return result.score.step_quanta, result.status is not Status.OPTIMAL

    best = min(pool, key=rank)
    assert best.plan is not None
    assert best.score is not None
    return Answer(
        best.plan,
        best.score,
        best.solver,
        str(best.status),
        max(bounds, default=None),
    )
