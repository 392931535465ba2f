"""The findings of ``nest doctor``, on a terminal and as a document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import RenderableType
from rich.text import Text

from nest.conform.doctor import Finding
from nest.present.table import terminal_table
from nest.util.tables import Column, Table
from nest.util.versions import provenance

_STYLES = {"ok": "green", "missing": "yellow", "broken": "bold red"}


def doctor_block(findings: Sequence[Finding]) -> list[RenderableType]:
    """Return a row per finding, how to get what is missing, and a verdict.

    Remedies are commands: their lines are never broken, to be copied.
    """
    columns = (
        Column("what"),
        Column("state", form=_state_text, style=lambda x: _STYLES[x.lower()]),
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
