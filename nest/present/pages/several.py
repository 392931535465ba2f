"""The section of every problem, on a page about several problems."""

from __future__ import annotations

from dataclasses import replace

from nest.benchmarks.best import best_answer
from nest.benchmarks.rows import Row
from nest.benchmarks.session import Ended
from nest.present.pages.answers import answer_document
from nest.present.pages.sections import sections_of
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
    answer = best_answer(ended, problem, rows)
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
