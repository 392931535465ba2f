"""Parts of a page about several problems: one for each, with its best plan."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from nest.benchmarks.rows import Row, known
from nest.benchmarks.session import Ended
from nest.cost.score import score
from nest.ir.plan import Plan
from nest.ir.problem import Problem
from nest.present.pages.document import Answer, page_document
from nest.present.pages.parts import Part, parts_of, tables_of
from nest.units import quanta_to_ns

#: Problems whose plans have charts; of the others there are tables.
MOST_CHARTED = 8

#: Parts of the page of one problem that are shown of several.
_SHOWN = ("answer", "stages", "memory", "terms")


def plan_parts(ended: Ended) -> list[Part]:
    """Return a part per problem of a comparison, in their order.

    Its figures are shown; its map, its memory and where its time goes when
    asked for.
    """
    return [
        _part(ended, number, [r for r in ended.rows if r.entry == entry])
        for number, entry in enumerate(ended.folder.run.problems, 1)
    ]


def _part(ended: Ended, number: int, rows: list[Row]) -> Part:
    entry = ended.folder.run.problems[number - 1]
    problem = ended.folder.problems[entry.hash]
    answer = _answer(ended, problem, rows)
    document = page_document("several", problem, answer)
    document["solvers"] = [
        {"status": None if row.status is None else str(row.status)}
        for row in rows
        if not row.outcome.failed
    ]
    found = {part.key: part for part in parts_of(document, _SHOWN)}
    charts = tuple(
        replace(chart, name=f"{chart.name}-{number}")
        for part in found.values()
        for chart in part.charts
        if number <= MOST_CHARTED
    )
    return replace(
        found["answer"],
        key=f"problem-{number}",
        title=entry.name,
        charts=charts,
        tables=tuple(
            table
            for part in found.values()
            for table in (tables_of([part]) if not charts else part.tables)
        ),
        closed=answer is not None,
    )


def _answer(ended: Ended, problem: Problem, rows: list[Row]) -> Answer | None:
    """Return the fastest plan that fits, a proven one where several do."""
    fitting = [row for row in rows if row.step_quanta is not None]
    if not fitting:
        return None
    best = min(fitting, key=lambda row: (row.step_quanta, not row.proven))
    result = ended.folder.finished[best.cell.key].result
    plan = msgspec.convert(result["plan"], Plan)
    bound = known(rows)[best.entry.hash].bound_quanta
    return Answer(
        *(plan, score(problem, plan), best.solver, str(best.status)),
        None if bound is None else quanta_to_ns(bound, problem.quantum_ps),
    )
