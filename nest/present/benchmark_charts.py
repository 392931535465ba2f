"""The charts of a benchmark's report, in Vega-Lite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nest.present.pages.charts import colors, lines, number_axis
from nest.util.sections import Chart
from nest.util.tables import Column, Table

Document = dict[str, Any]
Curves = Mapping[str, Sequence[Sequence[float]]]


@dataclass(frozen=True)
class _Axes:
    """The title of a chart, its axes, and how they are scaled."""

    title: str
    summary: str
    x: str
    y: str
    scale: str = "linear"
    most: float | None = None


#: Room for lines at 1.
_MOST_SHARE = 1.03

_SHARE = "share of problems and seeds"
_CHARTS = {
    "step_time_profile": _Axes(
        "Performance profile: step time",
        "For what share of problems a solver's plan takes at most so many "
        "times the best plan's step time.",
        *("times the best plan's step time", _SHARE),
        most=_MOST_SHARE,
    ),
    "proof_time_profile": _Axes(
        "Performance profile: time to a proof",
        "For what share of problems a solver's proof takes at most so many "
        "times the fastest proof's time.",
        *("times the fastest proof's time", _SHARE, "log"),
        most=_MOST_SHARE,
    ),
    "gap_over_time": _Axes(
        "Mean primal gap over time",
        "How far plans are from the best one known after so many seconds.",
        *("seconds", "mean primal gap", "log"),
        most=_MOST_SHARE,
    ),
    "proven": _Axes(
        "Proven after",
        "How many cells a solver had proven after so many seconds.",
        *("seconds", "cells", "symlog"),
    ),
    "close": _Axes(
        "Within 1 % of the best after",
        "How many cells had a plan so close after so many seconds.",
        *("seconds", "cells", "symlog"),
    ),
    "sweep": _Axes(
        "What bandwidth buys",
        "How many times as fast a step is with so many times the bandwidth.",
        *("times the bandwidth", "times as fast"),
    ),
}


def chart(name: str, document: Document) -> Chart | None:
    """Return a chart of a report; ``None`` if there is nothing to show.

    Parameters
    ----------
    name
        One of ``_CHARTS``.
    document
        A ``nest-bench/1`` document.
    """
    axes, curves = _CHARTS[name], _curves(name, document)
    if not any(y > 0 for curve in curves.values() for _, y in curve):
        return None
    last = _last(name, document, curves)
    values = [
        {
            "line": who,
            "x": x,
            "y": y,
            "tip": f"{who}: {y:.6g} {axes.y}, {x:.6g} {axes.x}",
        }
        for who, curve in curves.items()
        for x, y in _drawn(curve, axes.scale, last)
    ]
    y = number_axis("y", axes.y, True, maximum=axes.most)
    if axes.y == "cells":
        y["axis"]["tickMinStep"] = 1
    spec = lines(
        values,
        number_axis("x", axes.x, False, axes.scale),
        y,
        colors("line", list(curves)),
        step=name != "sweep",
        dots=name == "sweep",
    )
    table = Table(
        (
            Column("line"),
            Column(axes.x, form=".6g"),
            Column(axes.y, form=".6g"),
        ),
        [(who, x, y) for who, curve in curves.items() for x, y in curve],
        axes.title,
    )
    return Chart(name, axes.title, axes.summary, spec, table=table)


def _curves(name: str, document: Document) -> Curves:
    """Return lines by what they are called, in the order of solvers."""
    answers, times = document["answers"], document["times"]
    if name == "sweep":
        return _speed_ups(answers.get("sweep", []))
    group = times
    if name == "step_time_profile":
        group = answers
    elif name in ("proven", "close"):
        group = times["cactus"]
    curves: Curves = group[name]
    return {x: curves[x] for x in document["run"]["solvers"] if curves.get(x)}


def _speed_ups(groups: Sequence[Document]) -> Curves:
    curves: dict[str, list[tuple[float, float]]] = {}
    for group in groups:
        name = (
            f"{group['model']} {group['cluster']} b{group['batch']}, "
            f"{group['solver']}"
        )
        points = [
            (x["factor"], x["speed_up"])
            for x in group["bandwidths"]
            if x["speed_up"] is not None
        ]
        if len(points) > 1:
            curves.setdefault(name, points)  # the first seed
    return curves


def _last(name: str, document: Document, curves: Curves) -> float | None:
    """Return where lines go on to: the time limit, or behind the last one."""
    if name == "sweep":
        return None
    limit_s: float | None = document["run"]["time_limit_s"]
    if limit_s is not None and not name.endswith("_profile"):
        return limit_s
    return 1.05 * max(x for curve in curves.values() for x, _ in curve)


def _drawn(
    curve: Sequence[Sequence[float]], scale: str, last: float | None
) -> list[tuple[float, float]]:
    """Return the points of a line that its axes can show."""
    points = [(x, y) for x, y in curve]
    if last is not None:
        points.append((max(last, points[-1][0]), points[-1][1]))
    if scale != "log":
        return points
    # A time of 0 has no place on the axis; what is known then still holds.
    shortest = min((x for x, _ in points if x > 0), default=1.0)
    return [(max(x, shortest), y) for x, y in points]
