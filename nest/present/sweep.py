"""What each value of a setting buys: a table, and a page with charts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import RenderableType

from nest.present.pages import charts
from nest.present.pages.html import page_html
from nest.present.table import number_form, terminal_table
from nest.units import GIB
from nest.util.sections import Chart, Page, Section
from nest.util.tables import Column, Table, Writer

Row = Mapping[str, Any]


def _step(row: Row) -> str:
    """Return a step time with its interval, or why there is none."""
    if row["step_time_ns"] is None:
        return str(row["status"])
    seconds = row["step_time_ns"] / 1e9
    decimals = max(0, 2 - math.floor(math.log10(seconds)))
    step, *within = (
        f"{x / 1e9:.{decimals}f}"
        for x in (row["step_time_ns"], *(row["step_time_90_ns"] or ()))
    )
    return f"{step} ({'–'.join(within)})" if within else step


def _label(row: Row) -> str:
    return f"{row['axis']}={row['value']}" if row["axis"] else "base"


_CHANGE = Column("change", value=_label, min_width=14)
_PLAN = Column("degrees", "plan", lambda text: text or "–", min_width=24)

_COLUMNS = (
    _CHANGE,
    Column("step", "step, s (90 %)", value=_step, right=True, min_width=17),
    Column("tokens_per_s", "tokens/s", number_form(",.0f"), right=True, rank=2),
    Column("speed_up", "speed-up", number_form(".3f"), right=True),
    Column(
        "memory",
        "GiB",
        number_form(".1f"),
        lambda row: row["memory_bytes"] and row["memory_bytes"] / GIB,
        right=True,
    ),
    Column("fits", "fits", lambda value: value or ""),
    Column("days", "days", number_form(".1f"), right=True),
    Column("usd", "USD", number_form(",.0f"), right=True),
    _PLAN._replace(writers=frozenset({Writer.PAGE})),
)


def _table(rows: Sequence[Row], title: str = "") -> Table:
    """Return a table without the columns that no row has a value for."""
    columns = (
        column
        for column in _COLUMNS
        if any(column.value_of(row) is not None for row in rows)
    )
    return Table.of(columns, rows, title)


def sweep_block(document: Mapping[str, Any]) -> list[RenderableType]:
    """Return the screen: the base, and what every other value buys."""
    rows = document["rows"]
    return [
        f"{document['model']} on {document['cluster']}; base: {rows[0]['value']}",
        terminal_table(_table(rows)),
        *(f"{_label(row)}: {row['note']}" for row in rows if row["note"]),
        "speed-up: tokens per second against the base",
        "",
        terminal_table(Table.of((_CHANGE, _PLAN), rows)),
    ]


def sweep_page(document: Mapping[str, Any]) -> str:
    """Return the page: a section with a chart for every axis."""
    base, *others = document["rows"]
    sections = []
    for axis, values in document["axes"].items():
        first = {**base, "axis": axis, "value": values[0]}
        rows = [first, *(row for row in others if row["axis"] == axis)]
        key, unit = ("tokens_per_s", "tokens/s")
        title = _gain(axis, rows)
        if axis == "price":
            key, unit = ("usd", "USD")
            title = _cost(rows)
        shown = [row for row in rows if row[key]]
        texts = [f"{row[key]:,.0f} {unit}" for row in shown]
        summary = "; ".join(
            f"{_label(row)}: {text}" for row, text in zip(shown, texts, strict=True)
        )
        spec = _bars(shown, key, unit)
        drawn = (Chart(axis, title, summary, spec),) if shown else ()
        table = _table(rows, f"Values of {axis}")
        heading = axis.capitalize()
        sections.append(Section(axis, heading, (), (), drawn, (table,)))
    lead = (
        f"{document['model']} on {document['cluster']}; base: "
        f"{base['value']}. Every value has its own best plan."
    )
    return page_html(Page("What each value buys", lead, tuple(sections)))


def _gain(axis: str, rows: Sequence[Row]) -> str:
    """Return what the fastest value of an axis buys against the first."""
    best = max(rows, key=lambda row: row["speed_up"] or 0.0)
    if rows[-1]["note"]:
        return f"{axis}: {rows[-1]['note']}"
    if (best["speed_up"] or 0.0) <= 1:
        return f"{axis}: no value is faster than {rows[0]['value']}"
    times = f"{best['speed_up']:.3f} times the tokens/s"
    return f"{_label(best)}: {times} of {rows[0]['value']}"


def _cost(rows: Sequence[Row]) -> str:
    """Return what the run costs at the first and at the last price."""
    costs = ", ".join(
        f"{row['usd']:,.0f} USD at {_label(row)}"
        for row in (rows[0], rows[-1])
        if row["usd"]
    )
    return f"The run costs {costs}" if costs else "No plan fits"


def _bars(rows: Sequence[Row], key: str, unit: str) -> dict[str, Any]:
    """Return a bar of throughput, or of dollars, for every value."""
    values = [
        {
            "value": str(row["value"]),
            "amount": row[key],
            "text": f"{row[key]:,.0f}",
            "tip": f"{_label(row)}: {row[key]:,.0f} {unit}",
        }
        for row in rows
    ]
    largest = max((row[key] for row in rows), default=1.0)
    x = charts.number_axis("amount", unit, maximum=1.2 * largest)
    y = charts.names("value", [value["value"] for value in values])
    beyond = charts.mark("text", align="left", dx=5)
    return charts.chart(
        values,
        height={"step": 34},
        layer=[
            charts.layer(charts.mark("bar", color=charts.COLORS[0]), x=x, y=y),
            charts.layer(beyond, tip=False, x=x, y=y, text=charts.text_of("text")),
        ],
    )
