"""A page of predictions beside measurements: ``nest validate --html``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nest.present.pages import charts
from nest.present.pages.html import page
from nest.present.pages.parts import Chart, Fact, Part, Table
from nest.present.table import count

Document = dict[str, Any]

#: Runs that a chart and its table show at most, the first ones.
MOST_RUNS = 2500

#: Breakdowns of the error of the step time, and what each is by.
_BY = {
    "by_source": "source",
    "by_hardware": "device",
    "by_family": "device family",
    "by_parallelism": "parallelism",
    "by_tier": "tier",
    "by_precision": "precision",
}


def to_html(document: Document, runs: Sequence[Document], command: str) -> str:
    """Return the page of a validation.

    Parameters
    ----------
    document
        A ``nest-validation/1`` document.
    runs
        Those whose step time is compared: ``line``, ``source``, ``device``,
        ``family``, ``model``, ``num_devices``, ``measured_s``,
        ``predicted_s`` and ``error``, a fraction.
    command
        What repeats it.
    """
    lead = (
        f"{count(document['rows'], 'row')} ({document['selection']}): "
        f"{document['used']} compared, "
        f"{sum(document['skipped'].values())} skipped. Errors are those of "
        f"the predicted step time, in per cent of the measured one."
    )
    parts = [
        _answer(document),
        _runs(runs),
        *_breakdowns(document),
        _ranking(document["ranking"]),
        _memory(document["memory"]),
        _left_out(document),
        Part("repeat", "How to repeat it", code=command),
    ]
    found = [part for part in parts if part is not None]
    return page("Predictions beside measurements", lead, found)


def _answer(document: Document) -> Part:
    if not document["used"]:
        return Part(
            "answer", "The answer", warnings=("No step time was compared.",)
        )
    fits = document["memory"]["fits"]
    facts = [
        Fact("Median error", _percent(document["median_abs_error"])),
        Fact("Mean error", _percent(document["mean_abs_error"])),
        Fact(
            "Bias",
            _percent(document["bias"], "+"),
            "above 0: predictions are too long",
        ),
    ]
    if fits["share"] is not None:
        facts.append(
            Fact(
                "Predicted to fit",
                _percent(fits["share"]),
                f"of {count(fits['ran'], 'run')} that ran",
            )
        )
    known = document.get("intervals")
    if known is not None and known["rows"]:
        facts.append(
            Fact(
                "Within 90 % intervals",
                _percent(known["within_90"]),
                f"and {_percent(known['within_50'])} within 50 % ones",
            )
        )
    return Part("answer", "The answer", facts=tuple(facts))


def _runs(runs: Sequence[Document]) -> Part | None:
    if not runs:
        return None
    shown = runs[:MOST_RUNS]
    text = f"The first {MOST_RUNS:,} of {len(runs):,} runs are shown."
    table = Table(
        "Runs",
        (
            *("line", "model", "device", "devices", "measured", "predicted"),
            *("error", "source"),
        ),
        tuple(
            (
                str(run["line"]),
                run["model"],
                run["device"],
                str(run["num_devices"]),
                f"{run['measured_s']:.4g} s",
                f"{run['predicted_s']:.4g} s",
                _percent(run["error"], "+"),
                run["source"],
            )
            for run in shown
        ),
        frozenset({1, 2, 7}),
    )
    chart = Chart(
        "runs",
        "Predicted against measured step time",
        "A dot per run, both axes logarithmic. On the line a prediction is "
        "right, above it is too long.",
        charts.scatter(shown),
        table=table,
    )
    return Part(
        "runs",
        "Runs",
        (text,) if len(runs) > len(shown) else (),
        charts=(chart,),
    )


def _breakdowns(document: Document) -> list[Part]:
    return [
        Part(
            key.replace("_", "-"),
            f"By {title}",
            tables=(_errors(f"Error by {title}", title, document[key]),),
        )
        for key, title in _BY.items()
        if len(document[key]) > 1
    ]


def _errors(caption: str, title: str, groups: Mapping[str, Document]) -> Table:
    return Table(
        caption,
        (title, "used", "median", "mean", "bias"),
        tuple(
            (
                name,
                str(figures["used"]),
                _percent(figures["median_abs_error"]),
                _percent(figures["mean_abs_error"]),
                _percent(figures["bias"], "+"),
            )
            for name, figures in sorted(
                groups.items(), key=lambda item: (-item[1]["used"], item[0])
            )
        ),
    )


def _ranking(ranking: Document) -> Part | None:
    if not ranking["groups"]:
        return None
    groups = {"all groups": ranking} | ranking["by_source"]
    table = Table(
        "Plans of one model on the same devices",
        ("groups of", "groups", "best within 5 %", "mean regret", "median"),
        tuple(
            (
                name,
                str(figures["groups"]),
                _percent(figures["share_best_within_5_percent"]),
                _percent(figures["mean_regret"]),
                _percent(figures["median_regret"]),
            )
            for name, figures in groups.items()
        ),
    )
    return Part(
        "ranking",
        "Is the plan predicted best a good one?",
        (
            "Regret is by how much the plan that is predicted best was "
            "measured to take longer than the fastest of its group.",
        ),
        tables=(table,),
    )


def _memory(figures: Document) -> Part:
    oom = figures["oom"]
    text = (
        f"{oom['predicted_not_to_fit']} of {count(oom['rows'], 'run')} that "
        f"went out of memory are predicted not to fit."
    )
    tables: tuple[Table, ...] = ()
    if figures["used"]:
        classes = {"all classes": figures} | figures["by_mem_class"]
        tables = (_errors("Error of memory", "memory", classes),)
    return Part("memory", "Memory", (text,), tables=tables)


def _left_out(document: Document) -> Part | None:
    told = [
        *document["impossible"],
        *document["unreadable"],
        *document["not_understood"],
    ]
    reasons = {**document["used_for_memory"], **document["skipped"]}
    if not reasons and not told:
        return None
    tables = []
    if reasons:
        tables.append(
            Table(
                "Rows whose step time is not compared",
                ("reason", "rows"),
                tuple((name, str(rows)) for name, rows in reasons.items()),
            )
        )
    return Part(
        "left-out", "What is left out", tuple(told), (), (), (*tables,)
    )


def _percent(share: float | None, sign: str = "") -> str:
    return "–" if share is None else f"{100 * share:{sign}.1f} %"
