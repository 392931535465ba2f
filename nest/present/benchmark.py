"""Benchmarks on a terminal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding

from nest.present.benchmark_layout import answer_sections, headline
from nest.present.table import terminal_table
from nest.util.tables import Column, Table

#: What is shown of a report, and what of it if every cell is asked for.
_SHOWN = ("Solvers", "What bandwidth buys")
_CELLS = ("Answers", "Solvers")

#: Numbers that go last where it is narrow.
_MATTERS = ("step time", "proven", "best", "failed", "speed-up")

#: Cells that names and notes may be wrapped to.
_MIN_NAME_WIDTH, _MIN_NOTE_WIDTH = 10, 16


def benchmark_block(
    document: dict[str, Any], cells: bool = False
) -> list[RenderableType]:
    """Return what a run came to: its solvers, or also its cells."""
    sections = {x.title: x for x in answer_sections(document)}
    tables = [
        table
        for title in (_CELLS if cells else _SHOWN)
        if title in sections
        for table in sections[title].tables
    ]
    return [
        *(Padding(_fitting(table), (0, 0, 1, 0)) for table in tables),
        headline(document),
    ]


def _fitting(table: Table) -> RenderableType:
    """Return a table whose columns go in a fixed order where it is narrow.

    Names stay, and numbers go from the right. A note may wrap; it goes last
    together with the numbers that matter most.
    """
    columns = [_ranked(column, index) for index, column in enumerate(table.columns)]
    return terminal_table(replace(table, columns=columns))


def _ranked(column: Column, index: int) -> Column:
    if column.holds_numbers:
        rank = 1 if column.heading in _MATTERS else index + 2
        return column._replace(rank=rank)
    if column.heading == "note":
        return column._replace(rank=1, min_width=_MIN_NOTE_WIDTH)
    return column._replace(min_width=_MIN_NAME_WIDTH)
