"""Benchmarks on a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType
from rich.padding import Padding

from nest.benchmarks.layout import Grid, headline, sections
from nest.report.table import simple_table

#: What is shown of a report, and what of it if every cell is asked for.
_SHOWN = ("Solvers", "What bandwidth buys")
_CELLS = ("Answers", "Solvers")


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
    columns = range(len(grid.headers))
    numbers = [column for column in columns if not grid.is_word(column)]
    return simple_table(grid.headers, grid.rows, right=numbers)
