"""Audits on a terminal: :mod:`nest.present.pages.study`, to its width."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType

from nest.present.fitted import Column
from nest.present.table import key_lines, simple_table
from nest.studies.study import Findings, Study, Table

#: Cells that words may be wrapped to.
_LEAST_WORDS = 12


def audit_block(
    study: Study, findings: Findings, quick: bool
) -> Iterator[RenderableType]:
    """Yield question, method, findings, tables and limits of a study."""
    rows = [("audit", study.name), ("question", study.question)]
    rows.append(("method", study.method))
    if quick:
        rows.append(("quick run", study.quick))
    yield key_lines(rows)
    yield ""
    yield from _items("finding", findings.answers)
    for table in findings.tables:
        yield ""
        yield table.title
        yield table.text
        yield ""
        yield audit_table(table)
    yield ""
    yield from _items("limit", study.limits)


def _items(label: str, texts: Sequence[str]) -> Iterator[RenderableType]:
    if texts:
        yield key_lines([(label, text) for text in texts])


def audit_table(table: Table) -> RenderableType:
    """Return a table: words name rows and stay, numbers go from the right."""
    columns = [
        Column(column.title, rank=number + 1, right=True)
        if column.form
        else Column(column.title, rank=number, least=_LEAST_WORDS)
        for number, column in enumerate(table.columns)
    ]
    rows = [
        [
            column.text(value)
            for column, value in zip(table.columns, row, strict=True)
        ]
        for row in table.rows
    ]
    return simple_table(columns, rows)
