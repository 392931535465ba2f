"""The calibration by a user's runs, on a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from nest.present.table import number_form, terminal_table
from nest.util.tables import Column, Table

_percent = number_form(".1f", 100)
#: Cells of a proposed run that a table shows.
_RUN_CELLS = (
    Column("model", min_width=12),
    Column("num_devices", rank=3, right=True),
    Column("tp", right=True),
    Column("pp", right=True),
    Column("dp", right=True),
    Column("micro_batch", right=True),
    Column("seq_len", rank=5, right=True),
    Column("global_batch", rank=4, right=True),
)


def calibration_block(document: Mapping[str, Any]) -> list[RenderableType]:
    """Return what is printed of a ``nest-own-runs/1`` document."""
    items: list[RenderableType] = [
        f"{document['runs']} runs of {document['file']} on {document['device']}",
        *map(Text, document["notes"]),
        "",
        _errors(document["step_time"]),
        "",
        _parameters(document["parameters"]),
        "",
        *map(Text, _untold(document["parameters"])),
        "",
        *_proposed(document["proposed"]),
    ]
    unused = document["unused"]
    if unused:
        columns = (
            Column("line", right=True),
            Column("reason", "not used because", min_width=24),
        )
        items += ["", terminal_table(Table.of(columns, unused))]
    return items


def _errors(figures: Mapping[str, Mapping[str, Any]]) -> RenderableType:
    titles = {
        "before": "before these runs",
        "after": "after them",
        "left_out": "each run predicted by the others",
    }
    columns = (
        Column("median_abs_error", "median %", _percent, right=True),
        Column("mean_abs_error", "mean %", _percent, right=True, rank=2),
        Column("bias", "bias %", number_form("+z.1f", 100), right=True, rank=1),
        Column("title", "error of step times", min_width=16),
    )
    rows = [{**figures[key], "title": title} for key, title in titles.items()]
    return terminal_table(Table.of(columns, rows))


def _parameters(entries: list[Mapping[str, Any]]) -> RenderableType:
    columns = (
        Column("before", form=".4g", rank=1),
        Column("deviation_before", "± %", _percent, right=True, rank=3),
        Column("after", form=".4g"),
        Column("deviation_after", "± %", _percent, right=True, rank=2),
        Column("name", "parameter", min_width=16),
    )
    return terminal_table(Table.of(columns, entries))


def _untold(entries: list[Mapping[str, Any]]) -> list[str]:
    """Say what the runs could not tell: a line per reason."""
    untold = [entry for entry in entries if entry["untold"]]
    if not untold:
        return ["these runs say something about every parameter"]
    reasons = {
        False: "no run depends on",
        True: "the runs could not tell apart from others, or hardly depend on",
    }
    return [
        f"{reason} {', '.join(names)}"
        for in_runs, reason in reasons.items()
        if (names := [e["name"] for e in untold if e["in_runs"] is in_runs])
    ]


def _proposed(proposed: Mapping[str, Any]) -> list[RenderableType]:
    runs = proposed["runs"]
    if not runs:
        return ["no further run of these models fits these devices"]
    no_cells = dict.fromkeys((column.key for column in _RUN_CELLS), "")
    text = (
        f"of {proposed['candidates']} other configurations of these models two of "
        f"three step times are predicted to ± {_percent(proposed['deviation_after'])} "
        f"% (before these runs ± {_percent(proposed['deviation_before'])} %); these "
        f"runs would tell most, the first first:"
    )
    columns = (
        *_RUN_CELLS,
        Column("predicted_step_time_s", "step, s", ".4g", rank=2),
        Column("deviation", "then ± %", _percent, right=True, rank=1),
    )
    records = ({**no_cells, **run["cells"], **run} for run in runs)
    return [Text(text), "", terminal_table(Table.of(columns, records))]
