"""What a user's runs said, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from nest.report.table import simple_table

#: Cells of a proposed run that a table shows.
_SHOWN = (
    *("model", "num_devices", "tp", "pp", "dp", "micro_batch"),
    *("seq_len", "global_batch"),
)


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
        parts += ["", simple_table(("line", "not used because"), rows, (0,))]
    return parts


def _errors(figures: Mapping[str, Mapping[str, Any]]) -> RenderableType:
    titles = {
        "before": "before these runs",
        "after": "after them",
        "left_out": "each run predicted by the others",
    }
    return simple_table(
        ("median %", "mean %", "bias %", "error of step times"),
        [
            (
                f"{100 * figures[key]['median_abs_error']:.1f}",
                f"{100 * figures[key]['mean_abs_error']:.1f}",
                f"{100 * figures[key]['bias']:+.1f}",
                title,
            )
            for key, title in titles.items()
        ],
        right=range(3),
    )


def _parameters(entries: list[Mapping[str, Any]]) -> RenderableType:
    return simple_table(
        ("before", "± %", "after", "± %", "parameter"),
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
        right=range(4),
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
            (*_SHOWN, "step, s", "then ± %"),
            [
                (
                    *(run["cells"].get(name, "") for name in _SHOWN),
                    f"{run['predicted_step_time_s']:.4g}",
                    _percent(run["deviation"]),
                )
                for run in runs
            ],
            right=range(1, len(_SHOWN) + 2),
        ),
    ]


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f}"
