"""Audits on a terminal: :mod:`nest.present.pages.study`, to its width."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from rich.console import RenderableType

from nest.present.table import key_lines, terminal_table
from nest.studies.study import Findings, Study
from nest.util.tables import Table

#: Cells that words may be wrapped to.
_MIN_WORD_WIDTH = 12


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
        column._replace(rank=index + 1)
        if column.holds_numbers
        else column._replace(rank=index, min_width=_MIN_WORD_WIDTH)
        for index, column in enumerate(table.columns)
    ]
    return terminal_table(replace(table, columns=columns))
