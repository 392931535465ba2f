"""What a user's runs said, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from nest.present.fitted import Column
from nest.present.table import simple_table

#: Cells of a proposed run that a table shows, by their names.
_SHOWN = {
    column.header: column
    for column in (
        Column("model", least=12),
        Column("num_devices", rank=3, right=True),
        Column("tp", right=True),
        Column("pp", right=True),
        Column("dp", right=True),
        Column("micro_batch", right=True),
        Column("seq_len", rank=5, right=True),
        Column("global_batch", rank=4, right=True),
    )
}


def calibration_block(document: Mapping[str, Any]) -> list[RenderableType]:
    """Return what is printed of a ``nest-own-runs/1`` document."""
    parts: list[RenderableType] = [
        f"{document['runs']} runs of {document['file']} on "
        f"{document['device']}",
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
        rows = [(str(entry["line"]), entry["reason"]) for entry in unused]
        columns = (
            Column("line", right=True),
            Column("not used because", least=24),
        )
        parts += ["", simple_table(columns, rows)]
    return parts


def _errors(figures: Mapping[str, Mapping[str, Any]]) -> RenderableType:
    titles = {
        "before": "before these runs",
        "after": "after them",
        "left_out": "each run predicted by the others",
    }
    return simple_table(
        (
            Column("median %", right=True),
            Column("mean %", rank=2, right=True),
            Column("bias %", rank=1, right=True),
            Column("error of step times", least=16),
        ),
        [
            (
                f"{100 * figures[key]['median_abs_error']:.1f}",
                f"{100 * figures[key]['mean_abs_error']:.1f}",
                f"{100 * figures[key]['bias']:+.1f}",
                title,
            )
            for key, title in titles.items()
        ],
    )


def _parameters(entries: list[Mapping[str, Any]]) -> RenderableType:
    return simple_table(
        (
            Column("before", rank=1, right=True),
            Column("± %", rank=3, right=True),
            Column("after", right=True),
            Column("± %", rank=2, right=True),
            Column("parameter", least=16),
        ),
        [
            (
                f"{entry['before']:.4g}",
                _percent(entry["deviation_before"]),
                f"{entry['after']:.4g}",
                _percent(entry["deviation_after"]),
                entry["name"],
            )
            for entry in entries
        ],
    )


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
    return [
        Text(
            f"of {proposed['candidates']} other configurations of these "
            f"models two of three step times are predicted to "
            f"± {_percent(proposed['deviation_after'])} % (before these "
            f"runs ± {_percent(proposed['deviation_before'])} %); these runs "
            f"would tell most, the first first:"
        ),
        "",
        simple_table(
            (
                *_SHOWN.values(),
                Column("step, s", rank=2, right=True),
                Column("then ± %", rank=1, right=True),
            ),
            [
                (
                    *(run["cells"].get(name, "") for name in _SHOWN),
                    f"{run['predicted_step_time_s']:.4g}",
                    _percent(run["deviation"]),
                )
                for run in runs
            ],
        ),
    ]


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f}"
