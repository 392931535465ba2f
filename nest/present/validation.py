"""Predictions beside measurements for people, with errors in per cent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from nest.present.fitted import Column
from nest.present.table import simple_table
from nest.uncertainty.headroom import MEAN_ERROR

#: Breakdowns of the error of the step time, and what each is by.
_TITLES = {
    "by_source": "source",
    "by_hardware": "device",
    "by_family": "device family",
    "by_parallelism": "parallelism",
    "by_tier": "tier",
    "by_precision": "precision",
}


def validation_block(document: Mapping[str, Any]) -> list[RenderableType]:
    """Return what is printed of a ``nest-validation/1`` document."""
    skipped, sized = document["skipped"], document["used_for_memory"]
    others = f" ({sum(sized.values())} more for memory)" if sized else ""
    summary = {document["selection"]: document, **document["selected"]}
    parts: list[RenderableType] = [
        f"{document['rows']} rows ({document['selection']}): "
        f"{document['used']} used{others}, {sum(skipped.values())} skipped"
        + _interrupted(document),
        "",
        _errors("step time", summary),
    ]
    for key, title in _TITLES.items():
        if document[key]:
            parts += ["", _errors(title, document[key])]
    ranking = document["ranking"]
    if ranking["groups"]:
        everything = {"all groups": ranking}
        parts += ["", _ranking(everything | ranking["by_source"])]
    parts += ["", *_memory(document["memory"])]
    if document.get("intervals") is not None:
        parts += ["", _intervals(document["intervals"])]
    if sized:
        rows = [(str(count), reason) for reason, count in sized.items()]
        parts += ["", _numbers("rows", "used for memory only", rows)]
    if skipped:
        rows = [(str(count), reason) for reason, count in skipped.items()]
        parts += ["", _numbers("rows", "skipped because", rows)]
    left_out = document["memory"]["left_out"]
    if left_out:
        rows = [(str(count), reason) for reason, count in left_out.items()]
        parts += ["", _numbers("rows", "memory not compared because", rows)]
    told = [
        *document["impossible"],
        *document["unreadable"],
        *document["not_understood"],
    ]
    if told:
        parts += ["", *map(Text, told)]
    return parts


def _interrupted(document: Mapping[str, Any]) -> str:
    """Say so if these are not all rows."""
    if "interrupted" not in document:
        return ""
    return f"; interrupted, the first of {document['interrupted']['of']}"


def _errors(
    title: str, groups: Mapping[str, Mapping[str, Any]]
) -> RenderableType:
    return simple_table(
        (
            Column("used", rank=1, right=True),
            Column("median %", right=True),
            Column("mean %", rank=3, right=True),
            Column("bias %", rank=2, right=True),
            Column(title, least=16),
        ),
        [
            (
                str(figures["used"]),
                _percent(figures["median_abs_error"]),
                _percent(figures["mean_abs_error"]),
                _percent(figures["bias"], sign="+"),
                name,
            )
            for name, figures in sorted(
                groups.items(), key=lambda item: -item[1]["used"]
            )
        ],
    )


def _ranking(groups: Mapping[str, Mapping[str, Any]]) -> RenderableType:
    return simple_table(
        (
            Column("groups", rank=2, right=True),
            Column("best within 5 %", right=True),
            Column("mean regret", rank=1, right=True),
            Column("median", rank=4, right=True),
            Column("bias of the best", rank=5, right=True),
            Column("ranked", rank=6, right=True),
            Column("median Spearman", rank=3, right=True),
            Column(">= 0.9", rank=7, right=True),
            Column("ranking", least=24),
        ),
        [
            (
                str(figures["groups"]),
                _percent(figures["share_best_within_5_percent"], " %"),
                _percent(figures["mean_regret"], " %"),
                _percent(figures["median_regret"], " %"),
                _percent(
                    figures["median_bias_of_predicted_best"], " %", sign="+"
                ),
                str(figures["spearman_groups"]),
                ""
                if figures["median_spearman"] is None
                else f"{figures['median_spearman']:.3f}",
                _percent(figures["share_spearman_at_least_0_9"], " %"),
                name,
            )
            for name, figures in groups.items()
        ],
    )


def _memory(figures: Mapping[str, Any]) -> list[RenderableType]:
    parts: list[RenderableType] = []
    if figures["used"]:
        classes = {"all classes": figures} | figures["by_mem_class"]
        parts = [_errors("memory", classes), ""]
    fits, oom = figures["fits"], figures["oom"]
    return [
        *parts,
        f"of {fits['ran']} runs that ran {_fit(fits, 'predicted_to_fit')} are "
        f"predicted to fit; of {oom['rows']} that went out of memory "
        f"{_fit(oom, 'predicted_not_to_fit')} are predicted not to",
    ]


def _intervals(figures: Mapping[str, Any]) -> str:
    if not figures["rows"]:
        return "no step time has an interval"
    return (
        f"of {figures['rows']} step times "
        f"{_percent(figures['within_90'], ' %')} lie within their 90 % "
        f"intervals and {_percent(figures['within_50'], ' %')} within the 50 "
        f"% ones; half of the 90 % ones are wider than "
        f"±{_percent(figures['median_half_width_90'], ' %')}"
    )


def _fit(figures: Mapping[str, Any], key: str) -> str:
    """Return a count with its share, and both with head-room."""
    count, roomy = figures[key], figures[f"{key}_with_headroom"]
    if figures["share"] is None:
        return str(count)
    return (
        f"{count} ({_percent(figures['share'], ' %')}; with "
        f"{_percent(MEAN_ERROR, ' %')} head-room {roomy}, "
        f"{_percent(figures['share_with_headroom'], ' %')})"
    )


def _numbers(
    number: str, name: str, rows: Sequence[Sequence[str]]
) -> RenderableType:
    """Return a table of numbers, to the right, and what they are of."""
    columns = (Column(number, right=True), Column(name, least=24))
    return simple_table(columns, rows)


def _percent(fraction: float | None, unit: str = "", sign: str = "") -> str:
    if fraction is None:
        return ""
    return f"{100 * fraction:{sign}.1f}{unit}"
