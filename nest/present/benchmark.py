"""Benchmarks on a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType
from rich.padding import Padding

from nest.present.benchmark_layout import Grid, headline, sections
from nest.present.fitted import Column
from nest.present.table import simple_table

#: What is shown of a report, and what of it if every cell is asked for.
_SHOWN = ("Solvers", "What bandwidth buys")
_CELLS = ("Answers", "Solvers")

#: Numbers that go last where it is narrow.
_MATTERS = ("step time", "proven", "best", "failed", "speed-up")

#: Cells that words and notes may be wrapped to.
_LEAST_WORDS, _LEAST_NOTE = 10, 16


def benchmark_block(
    document: dict[str, Any], cells: bool = False
) -> list[RenderableType]:
    """Return what a run came to: its solvers, or also its cells."""
    parts = {part.title: part for part in sections(document)}
    grids = [
        parts[title].grid
        for title in (_CELLS if cells else _SHOWN)
        if title in parts
    ]
    tables = [grid_table(grid) for grid in grids if grid is not None]
    return [
        *(Padding(table, (0, 0, 1, 0)) for table in tables),
        headline(document),
    ]


def grid_table(grid: Grid) -> RenderableType:
    """Return a table of a report."""
    columns = [
        _column(grid, number, header)
        for number, header in enumerate(grid.headers)
    ]
    return simple_table(columns, grid.rows)


def _column(grid: Grid, number: int, header: str) -> Column:
    """Return a column: words name rows and stay, numbers go from the right.

    Notes may wrap; they and what matters most go last.
    """
    if not grid.is_word(number):
        rank = 1 if header in _MATTERS else number + 2
        return Column(header, rank, right=True)
    if number < grid.words:
        return Column(header, least=_LEAST_WORDS)
    return Column(header, rank=1, least=_LEAST_NOTE)
