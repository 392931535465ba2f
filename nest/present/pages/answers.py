"""The rows of a page about solvers and plans, and the plan that it shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nest.analysis.page_facts import Answer, Document, Wish, page_document
from nest.ir.io import problem_hash
from nest.ir.problem import Problem
from nest.present import comparison
from nest.present.screen import Rows, given_rows, place_of, title
from nest.present.table import scale_of
from nest.solvers.base import Status
from nest.solvers.result import Outcome, SolveResult
from nest.units import quanta_to_ns
from nest.util.tables import Table, Writer
from nest.util.time_scale import TimeScale

#: Points of a solver's curves over time; of more, so many evenly chosen ones.
MOST_POINTS = 200

#: What a page has of every answer, in addition to the cells of its table.
_ANSWER_KEYS = (*("outcome", "status", "step_time_ns", "lower_bound_ns", "intervals"),)


def solver_rows(
    results: Iterable[SolveResult],
    problem: Problem,
    traces: Mapping[str, Sequence[Sequence[float | None]]] | None = None,
    missing: Iterable[str] = (),
) -> list[Document]:
    """Return a row per solver, those included that did not run.

    ``traces`` are what each solver had and when, as (wall_s, step quanta, bound
    quanta); ``missing`` are the solvers that did not begin.
    """
    traces = traces or {}

    def ns(quanta: float | None) -> int | float | None:
        if quanta is None:
            return None
        return quanta_to_ns(int(quanta), problem.quantum_ps)

    results = [*results]
    scale = scale_of(problem, results)
    rows = []
    for fields in comparison.answer_fields(problem, results):
        points = _thinned(traces.get(fields["solver"], ()))
        rows.append(
            {
                "name": fields["solver"],
                **{key: fields[key] for key in _ANSWER_KEYS},
                "failed": Outcome(fields["outcome"]).failed,
                "cells": _cells(problem, scale, fields),
                "note": comparison.answer_note(fields, scale),
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


def _thinned(points: Sequence[Sequence[float | None]]) -> list[Sequence[float | None]]:
    """Return the points to show, the first and the last among them."""
    last = len(points) - 1
    if last < MOST_POINTS:
        return list(points)
    return [points[i * last // (MOST_POINTS - 1)] for i in range(MOST_POINTS)]


def _cells(problem: Problem, scale: TimeScale, fields: Mapping[str, Any]) -> Document:
    """Return the texts of a row of the first screen, by their headings."""
    columns = comparison.columns(Writer.PAGE, problem, scale)
    table = Table.of(columns, [fields])
    return dict(zip(table.headings, table.texts()[0], strict=True))


def _not_run(name: str) -> Document:
    """Return the row of a solver that did not begin."""
    return {
        **dict.fromkeys(_ANSWER_KEYS),
        "name": name,
        "outcome": "not run",
        "failed": False,
        "cells": {"solver": name, "proof": "not run"},
        "note": "",
        "trace": [],
    }


def plan_rows(answers: Sequence[Answer], problem: Problem) -> list[Document]:
    """Return a row per plan that was given."""
    scored = [
        SolveResult(
            solver=answer.name,
            exact=False,
            outcome=Outcome.SOLVED,
            status=Status.FEASIBLE if answer.score.feasible else Status.OVER_MEMORY,
            plan=answer.plan,
            score=answer.score,
            over_memory_bytes=max(0, -answer.score.memory_left_bytes) or None,
            problem_hash=problem_hash(problem),
            quantum_ps=problem.quantum_ps,
        )
        for answer in answers
    ]
    rows = solver_rows(scored, problem)
    for row in rows:
        row["outcome"] = "scored"
        row["cells"] = {
            {"solver": "plan"}.get(heading, heading): text
            for heading, text in row["cells"].items()
            if heading not in ("proof", "search, s")
        }
    return rows


def answer_document(
    kind: str,
    problem: Problem,
    answer: Answer | None,
    *,
    rows: Rows | None = None,
    launch: str = "",
    wish: Wish | None = None,
    **more: Any,
) -> Document:
    """Return the document of a page, with the rows of the first screen.

    ``launch`` is what starts the plan. See :func:`page_document` for the rest.
    """
    if rows is None:
        rows = [] if answer is None else given_rows(problem, answer, wish)
    return {
        **page_document(kind, problem, answer, wish=wish, **more),
        "title": title(problem),
        "rows": [list(row) for row in sorted(rows, key=place_of)],
        "launch": launch,
    }


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
        best.plan, best.score, best.solver, str(best.status), max(bounds, default=None)
    )
