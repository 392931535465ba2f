"""Schedules of a layer's operators: tables with bars, and a document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding

from nest.operator_schedule import Cores, Placed, Schedule
from nest.operator_schedule.layer_file import Layer
from nest.present.table import count, key_lines, percent, terminal_table
from nest.util.tables import Column, Table

#: Cells of a bar that lasts from the first tick to the last.
BAR = 40

#: Of an operator on single cores, and on the whole chip.
_SINGLE, _WHOLE = "─", "━"

#: What is said of parts by what proves them.
_PROOFS = {"single": "by one operator", "none": "not proven"}


def schedule_document(
    layer: Layer, cores: Cores, schedules: Mapping[str, Schedule]
) -> dict[str, Any]:
    """Return the document of ``nest schedule --json``."""
    return {
        "schema": "nest-schedule/1",
        "layer": layer.name,
        "unit": layer.unit,
        "cores": cores._asdict(),
        **_totals(schedules.values()),
        "passes": {
            name: {
                **_totals([schedule]),
                "operators": {
                    operator: placed._asdict()
                    for operator, placed in schedule.operators.items()
                },
                "parts": [group._asdict() for group in schedule.parts],
            }
            for name, schedule in schedules.items()
        },
    }


def _totals(schedules: Any) -> dict[str, Any]:
    makespan = sum(x.makespan_ticks for x in schedules)
    bound = sum(x.lower_bound_ticks for x in schedules)
    return {
        "makespan_ticks": makespan,
        "lower_bound_ticks": bound,
        "optimal": makespan == bound,
    }


def schedule_block(
    layer: Layer, cores: Cores, schedules: Mapping[str, Schedule]
) -> list[RenderableType]:
    """Return what was scheduled, and a table of operators per pass."""
    total = _totals(schedules.values())
    rows = [
        ("layer", layer.name or "without a name"),
        (
            "cores",
            f"{count(cores.tensor, 'tensor core')}, "
            f"{count(cores.vector, 'vector core')}",
        ),
        ("makespan", _length(layer, total)),
    ]
    items: list[RenderableType] = [key_lines(rows)]
    for name, schedule in schedules.items():
        length = _length(layer, _totals([schedule]))
        lines = key_lines([(name, length), ("", _parts_text(schedule))])
        items += [Padding(x, (1, 0, 0, 0)) for x in (lines, _table(schedule))]
    return items


def _length(layer: Layer, totals: Mapping[str, Any]) -> str:
    ticks = f"{totals['makespan_ticks']} {layer.unit}"
    if totals["optimal"]:
        return f"{ticks}, none is shorter"
    bound = totals["lower_bound_ticks"]
    gap = Fraction(totals["makespan_ticks"] - bound, totals["makespan_ticks"])
    return f"{ticks}, not proven: at least {bound} (gap {percent(gap)} %)"


def _parts_text(schedule: Schedule) -> str:
    """Say what the parts are proven by, and how busy the channel is."""
    proofs = Counter(group.proof for group in schedule.parts)
    proof_text = ", ".join(
        f"{num_parts} {_PROOFS.get(proof, f'by {proof}')}"
        for proof, num_parts in proofs.items()
    )
    text = f"{count(len(schedule.parts), 'part')}: {proof_text}"
    channel = sum(group.channel_ticks for group in schedule.parts)
    if channel and schedule.makespan_ticks:
        busy = Fraction(channel, schedule.makespan_ticks)
        text += f"; memory channel busy {percent(busy)} % of the time"
    return text


def _table(schedule: Schedule) -> RenderableType:
    order = sorted(
        schedule.operators.items(),
        key=lambda item: (item[1].start_tick, item[1].end_tick),
    )
    columns = (
        Column("operator", min_width=12),
        Column("on", rank=1, min_width=8),
        Column("start", rank=2, right=True),
        Column("end", rank=3, right=True),
        Column("ticks", right=True),
        Column("when", rank=4),
    )
    rows = [
        (
            name,
            _cores_text(placed),
            placed.start_tick,
            placed.end_tick,
            placed.end_tick - placed.start_tick,
            _bar(placed, schedule.makespan_ticks),
        )
        for name, placed in order
    ]
    return terminal_table(Table(columns, rows))


def _cores_text(placed: Placed) -> str:
    if placed.whole:
        return "whole chip"
    used = [
        f"{kind} {core}"
        for kind, core in (
            ("tensor", placed.tensor_core),
            ("vector", placed.vector_core),
        )
        if core is not None
    ]
    return " + ".join(used) or "nothing"


def _bar(placed: Placed, makespan_ticks: int) -> str:
    """Return a bar from the start to the end, of at least one cell."""
    if placed.start_tick == placed.end_tick:
        return ""
    first = placed.start_tick * BAR // makespan_ticks
    last = -(-placed.end_tick * BAR // makespan_ticks)
    return " " * first + (_WHOLE if placed.whole else _SINGLE) * (last - first)
