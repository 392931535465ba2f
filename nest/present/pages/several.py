"""The section of every problem, on a page about several problems."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from nest.analysis.page_facts import Answer
from nest.benchmarks.rows import Row, known
from nest.benchmarks.session import Ended
from nest.cost.score import score
from nest.ir.plan import Plan
from nest.ir.problem import Problem
from nest.present.pages.answers import answer_document
from nest.present.pages.sections import sections_of
from nest.units import quanta_to_ns
from nest.util.sections import Section, tables_of

#: Problems whose plans have charts; of the others there are tables.
MOST_CHARTED = 8

#: Sections of the page of one problem that are shown of several.
_SHOWN = ("answer", "stages", "memory", "terms")


def plan_sections(ended: Ended) -> list[Section]:
    """Return a section per problem of a comparison, in their order.

    Its figures are shown; its map, its memory and where its time goes when asked for.
    """
    return [
        _plan_section(ended, position, [r for r in ended.rows if r.entry == entry])
        for position, entry in enumerate(ended.folder.run.problems, 1)
    ]


def _plan_section(ended: Ended, position: int, rows: list[Row]) -> Section:
    entry = ended.folder.run.problems[position - 1]
    problem = ended.folder.problems[entry.hash]
    answer = _best_answer(ended, problem, rows)
    document = answer_document("several", problem, answer)
    document["solvers"] = [
        {"status": None if row.status is None else str(row.status)}
        for row in rows
        if not row.outcome.failed
    ]
    sections = {section.key: section for section in sections_of(document, _SHOWN)}
    charts = tuple(
        replace(chart, name=f"{chart.name}-{position}")
        for section in sections.values()
        for chart in section.charts
        if position <= MOST_CHARTED
    )
    return replace(
        sections["answer"],
        key=f"problem-{position}",
        title=entry.name,
        charts=charts,
        tables=tuple(
            table
            for section in sections.values()
            for table in (section.tables if charts else tables_of([section]))
        ),
        closed=answer is not None,
    )


def _best_answer(ended: Ended, problem: Problem, rows: list[Row]) -> Answer | None:
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
