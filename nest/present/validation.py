"""Predictions beside measurements for people, with errors in per cent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from nest.present.table import number_form, terminal_table
from nest.uncertainty.headroom import MEAN_ERROR
from nest.util.tables import EVERYWHERE, Column, Table, Writer

_percent, _share = number_form(".1f", 100), number_form(".1f", 100, " %")
#: Breakdowns of the error of the step time, and what each is by.
BREAKDOWNS = {
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
    early = ""
    if "interrupted" in document:
        early = f"; interrupted, the first of {document['interrupted']['of']}"
    summary = {document["selection"]: document, **document["selected"]}
    items: list[RenderableType] = [
        f"{document['rows']} rows ({document['selection']}): "
        f"{document['used']} used{others}, {sum(skipped.values())} skipped{early}",
        "",
        terminal_table(error_table("step time", summary)),
    ]
    for key, title in BREAKDOWNS.items():
        if document[key]:
            table = error_table(title, document[key])
            items += ["", terminal_table(table)]
    ranking = document["ranking"]
    if ranking["groups"]:
        items += ["", terminal_table(ranking_table(ranking))]
    items += ["", *_memory(document["memory"])]
    if document.get("intervals") is not None:
        items += ["", _intervals(document["intervals"])]
    for title, counts in (
        ("used for memory only", sized),
        ("skipped because", skipped),
        ("memory not compared because", document["memory"]["left_out"]),
    ):
        if counts:
            items += ["", _reasons(title, counts)]
    messages = messages_of(document)
    if messages:
        items += ["", *map(Text, messages)]
    return items


def messages_of(document: Mapping[str, Any]) -> list[str]:
    """Return what was wrong with rows, a line each."""
    return [
        *document["impossible"],
        *document["unreadable"],
        *document["not_understood"],
    ]


#: Columns that a terminal alone shows, and those that a page alone shows.
_ON_TERMINALS = EVERYWHERE - {Writer.PAGE}
_ON_PAGES = EVERYWHERE - {Writer.TERMINAL}


def error_table(
    title: str, groups: Mapping[str, Mapping[str, Any]], caption: str = ""
) -> Table:
    """Return the errors of groups of runs, the largest group first.

    ``title`` is what runs are grouped by.
    """
    columns = (
        Column("name", title, writers=_ON_PAGES),
        Column("used", right=True, rank=1),
        Column("median_abs_error", "median %", _percent, right=True),
        Column("mean_abs_error", "mean %", _percent, right=True, rank=3),
        Column("bias", "bias %", number_form("+z.1f", 100), right=True, rank=2),
        # Terminals are narrow: the name, which may wrap, is last there.
        Column("name", title, writers=_ON_TERMINALS, min_width=16),
    )
    rows = [
        {"name": name, **figures}
        for name, figures in sorted(groups.items(), key=lambda item: -item[1]["used"])
    ]
    return Table.of(columns, rows, caption)


def ranking_table(ranking: Mapping[str, Any], caption: str = "") -> Table:
    """Return whether the plans predicted best are good, group by group."""
    bias, spearman = number_form("+z.1f", 100, " %"), number_form(".3f")
    on_terminals = (
        Column("median_bias_of_predicted_best", "bias of the best", bias, rank=5),
        Column("spearman_groups", "ranked", rank=6),
        Column("median_spearman", "median Spearman", spearman, rank=3),
        Column("share_spearman_at_least_0_9", ">= 0.9", _share, rank=7),
    )
    columns = (
        Column("name", "groups of", writers=_ON_PAGES),
        Column("groups", right=True, rank=2),
        Column("share_best_within_5_percent", "best within 5 %", _share, right=True),
        Column("mean_regret", "mean regret", _share, right=True, rank=1),
        Column("median_regret", "median", _share, right=True, rank=4),
        *(x._replace(right=True, writers=_ON_TERMINALS) for x in on_terminals),
        Column("name", "ranking", writers=_ON_TERMINALS, min_width=24),
    )
    groups = {"all groups": ranking} | ranking["by_source"]
    rows = [{"name": name, **figures} for name, figures in groups.items()]
    return Table.of(columns, rows, caption)


def _memory(figures: Mapping[str, Any]) -> list[RenderableType]:
    items: list[RenderableType] = []
    if figures["used"]:
        classes = {"all classes": figures} | figures["by_mem_class"]
        items = [terminal_table(error_table("memory", classes)), ""]
    fits, oom = figures["fits"], figures["oom"]
    return [
        *items,
        f"of {fits['ran']} runs that ran {_fit(fits, 'predicted_to_fit')} are "
        f"predicted to fit; of {oom['rows']} that went out of memory "
        f"{_fit(oom, 'predicted_not_to_fit')} are predicted not to",
    ]


def _intervals(figures: Mapping[str, Any]) -> str:
    if not figures["rows"]:
        return "no step time has an interval"
    return (
        f"of {figures['rows']} step times {_share(figures['within_90'])} lie within "
        f"their 90 % intervals and {_share(figures['within_50'])} within the 50 % "
        f"ones; half of the 90 % ones are wider than "
        f"±{_share(figures['median_half_width_90'])}"
    )


def _fit(figures: Mapping[str, Any], key: str) -> str:
    """Return a count with its share, and both with head-room."""
    count, roomy = figures[key], figures[f"{key}_with_headroom"]
    if figures["share"] is None:
        return str(count)
    return (
        f"{count} ({_share(figures['share'])}; with {_share(MEAN_ERROR)} head-room "
        f"{roomy}, {_share(figures['share_with_headroom'])})"
    )


def _reasons(title: str, counts: Mapping[str, int]) -> RenderableType:
    columns = (Column("rows", right=True), Column(title, min_width=24))
    rows = [(count, reason) for reason, count in counts.items()]
    return terminal_table(Table(columns, rows))
