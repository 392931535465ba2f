"""The results of checks of a solver's contract, on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from nest.conform.records import State
from nest.present.table import terminal_table
from nest.util.tables import Column, Table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from nest.conform.records import Report

_STYLES = {
    State.PASSED: "green",
    State.FAILED: "bold red",
    State.NOT_APPLICABLE: "dim",
    State.OPEN: "yellow",
}

_VERDICTS = {
    True: "conforms",
    False: "does not conform",
    None: "was not checked to the end",
}


def conform_block(report: Report) -> list[RenderableType]:
    """Return a row per check, and what it comes to."""
    columns = (
        Column("name", "check", min_width=16),
        Column("state", "result", str, style=lambda text: _STYLES[State(text)]),
        Column("reason", min_width=24),
    )
    table = terminal_table(Table.of(columns, report.checks))
    counts = ", ".join(
        f"{report.count(state)} {state}"
        for state in State
        if state is not State.OPEN or report.count(state)
    )
    verdict = _VERDICTS[report.conforms]
    who = f"{report.solver} ({report.version})" if report.version else (report.solver)
    return [table, Text(f"\n{who} {verdict}: {counts}")]
