"""A page of predictions and measurements: ``nest validate --html``."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from nest.present.pages import charts
from nest.present.pages.html import page_html
from nest.present.table import count
from nest.present.validation import BREAKDOWNS, error_table, messages_of, ranking_table
from nest.util.sections import Chart, Fact, Page, Section
from nest.util.tables import Column, Table

Document = dict[str, Any]

#: Runs that a chart and its table show at most, the first ones.
MOST_RUNS = 2500


def to_html(document: Document, runs: Sequence[Document], command: str) -> str:
    """Return the page of a ``nest-validation/1`` document; ``command`` repeats it.

    ``runs`` are those whose step time is compared: ``line``, ``source``, ``device``,
    ``family``, ``model``, ``num_devices``, ``measured_s``, ``predicted_s`` and
    ``error``, a fraction.
    """
    lead = (
        f"{count(document['rows'], 'row')} ({document['selection']}): "
        f"{document['used']} compared, {sum(document['skipped'].values())} skipped. "
        f"Errors are those of the predicted step time, in per cent of the measured one."
    )
    sections = [
        _answer(document),
        _runs(runs),
        *_breakdowns(document),
        _ranking(document["ranking"]),
        _memory(document["memory"]),
        _left_out(document),
        Section("repeat", "How to repeat it", code=command),
    ]
    shown = (section for section in sections if section is not None)
    return page_html(Page("Predictions and measurements", lead, tuple(shown)))


def _answer(document: Document) -> Section:
    if not document["used"]:
        return Section("answer", "The answer", warnings=("No step time was compared.",))
    fits = document["memory"]["fits"]
    bias = _percent(document["bias"], "+")
    facts = [
        Fact("Median error", _percent(document["median_abs_error"])),
        Fact("Mean error", _percent(document["mean_abs_error"])),
        Fact("Bias", bias, "above 0: predictions are too long"),
    ]
    if fits["share"] is not None:
        remark = f"of {count(fits['ran'], 'run')} that ran"
        facts.append(Fact("Predicted to fit", _percent(fits["share"]), remark))
    intervals = document.get("intervals")
    if intervals is not None and intervals["rows"]:
        within = _percent(intervals["within_90"])
        remark = f"and {_percent(intervals['within_50'])} within 50 % ones"
        facts.append(Fact("Within 90 % intervals", within, remark))
    return Section("answer", "The answer", facts=tuple(facts))


def _runs(runs: Sequence[Document]) -> Section | None:
    if not runs:
        return None
    shown = runs[:MOST_RUNS]
    text = f"The first {MOST_RUNS:,} of {len(runs):,} runs are shown."
    columns = (
        Column("line", right=True),
        Column("model"),
        Column("device"),
        Column("num_devices", "devices", right=True),
        Column("measured_s", "measured s", ".4g"),
        Column("predicted_s", "predicted s", ".4g"),
        Column("error", "error %", lambda x: f"{100 * x:+z.1f}", right=True),
        Column("source"),
    )
    table = Table.of(columns, shown, "Runs")
    error = statistics.median(abs(run["error"]) for run in shown)
    chart = Chart(
        "runs",
        f"Half of the predictions are within {_percent(error)} of the "
        f"measured step time",
        "A dot per run, both axes logarithmic. On the line a prediction is "
        "right, above it is too long.",
        charts.scatter(shown),
        table=table,
    )
    return Section(
        "runs", "Runs", (text,) if len(runs) > len(shown) else (), charts=(chart,)
    )


def _breakdowns(document: Document) -> list[Section]:
    return [
        Section(
            key.replace("_", "-"),
            f"By {title}",
            tables=(error_table(title, document[key], f"Error by {title}"),),
        )
        for key, title in BREAKDOWNS.items()
        if len(document[key]) > 1
    ]


def _ranking(ranking: Document) -> Section | None:
    if not ranking["groups"]:
        return None
    title = "Plans of one model on the same devices"
    return Section(
        "ranking",
        "Is the plan with the best prediction fast?",
        (
            "Regret is how much longer the plan with the best prediction "
            "took than the fastest plan of its group.",
        ),
        tables=(ranking_table(ranking, title),),
    )


def _memory(figures: Document) -> Section:
    oom = figures["oom"]
    text = (
        f"{oom['predicted_not_to_fit']} of {count(oom['rows'], 'run')} that "
        f"ran out of memory are predicted not to fit."
    )
    tables: tuple[Table, ...] = ()
    if figures["used"]:
        classes = {"all classes": figures} | figures["by_mem_class"]
        tables = (error_table("memory", classes, "Error of memory"),)
    return Section("memory", "Memory", (text,), tables=tables)


def _left_out(document: Document) -> Section | None:
    messages = messages_of(document)
    reasons = {**document["used_for_memory"], **document["skipped"]}
    if not reasons and not messages:
        return None
    table = Table(
        (Column("reason"), Column("rows", right=True)),
        tuple(reasons.items()),
        "Rows whose step time is not compared",
    )
    return Section(
        "left-out",
        "What is left out",
        tuple(messages),
        tables=(table,) if reasons else (),
    )


def _percent(share: float | None, sign: str = "") -> str:
    return "–" if share is None else f"{100 * share:{sign}z.1f} %"
