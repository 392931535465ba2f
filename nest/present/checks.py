"""The results of ``nest conform`` and ``nest doctor``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.text import Text

from nest.conform.doctor import Finding
from nest.conform.records import State
from nest.present.table import terminal_table
from nest.util.tables import Column, Table
from nest.util.versions import provenance

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
    conclusion = _VERDICTS[report.conforms]
    who = f"{report.solver} ({report.version})" if report.version else (report.solver)
    return [table, Text(f"\n{who} {conclusion}: {counts}")]


_FINDING_STYLES = {"ok": "green", "missing": "yellow", "broken": "bold red"}


def doctor_block(findings: Sequence[Finding]) -> list[RenderableType]:
    """Return a row per finding, how to get what is missing, and a verdict.

    Remedies are commands: their lines are never broken, to be copied.
    """
    columns = (
        Column("what"),
        Column("state", form=_state_text, style=lambda x: _FINDING_STYLES[x.lower()]),
        Column("found", min_width=20),
    )
    table = terminal_table(Table.of(columns, findings))
    items: list[RenderableType] = [table, ""]
    remedies = [(x.what, x.remedy) for x in findings if x.remedy]
    if remedies:
        wide = max(cell_len(what) for what, _ in remedies) + 2
        lines = ["to get what is missing:"]
        lines += [f"  {what.ljust(wide)}{text}" for what, text in remedies]
        items += [Text("\n".join(lines), no_wrap=True), ""]
    return [*items, verdict(findings)]


def _state_text(state: str) -> str:
    """Return the state; what keeps nest from working is in capitals."""
    return state.upper() if state == "broken" else state


def verdict(findings: Sequence[Finding]) -> str:
    """Return the answer in a line."""
    broken = [x.what for x in findings if x.state == "broken"]
    if broken:
        return f"nest cannot work here: {', '.join(broken)}"
    missing = [x.what for x in findings if x.state == "missing"]
    if missing:
        return f"nest works; optional and not here: {', '.join(missing)}"
    return "nest works, and nothing is missing"


def doctor_document(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the ``nest-doctor/1`` document."""
    return {
        "schema": "nest-doctor/1",
        "works": all(finding.state != "broken" for finding in findings),
        "findings": [finding._asdict() for finding in findings],
        **provenance(),
    }
