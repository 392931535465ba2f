"""The charts of a benchmark's report, in Vega-Lite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nest.present.pages.charts import colors, lines, mark, number_axis
from nest.util.sections import Chart
from nest.util.tables import Column, Table

Document = dict[str, Any]
Curves = Mapping[str, Sequence[Sequence[float]]]


@dataclass(frozen=True)
class _Axes:
    """The message of a chart, its axes, and how they are scaled.

    The message names the lines that lead at a point: the first or last one.
    """

    message: str
    summary: str
    x: str
    y: str
    scale: str = "linear"
    most: float | None = None
    leads_at: int = -1


#: Room for lines at 1.
_MOST_SHARE = 1.03

_SHARE = "share of problems and seeds"
_CHARTS = {
    "step_time_profile": _Axes(
        "Best plan most often: {who} ({percent:.0f} %)",
        "Share of problems on which the plan of a solver takes at most x "
        "times the best plan's step time.",
        *("times the best plan's step time", _SHARE),
        most=_MOST_SHARE,
        leads_at=0,
    ),
    "proof_time_profile": _Axes(
        "Fastest proof most often: {who} ({percent:.0f} %)",
        "Share of problems on which the proof of a solver takes at most x "
        "times the fastest proof's time.",
        *("times the fastest proof's time", _SHARE, "log"),
        most=_MOST_SHARE,
        leads_at=0,
    ),
    "gap_over_time": _Axes(
        "Closest to the best plans at the end: {who} (mean gap {y:.3g})",
        "Mean distance of plans from the best known plan, over time.",
        *("seconds", "mean primal gap", "log"),
        most=_MOST_SHARE,
    ),
    "proven": _Axes(
        "Most proofs: {who} ({y:.0f} cells)",
        "Number of cells that a solver had proven, over time.",
        *("seconds", "cells", "symlog"),
    ),
    "close": _Axes(
        "Most plans within 1 % of the best: {who} ({y:.0f} cells)",
        "Number of cells with a plan within 1 % of the best, over time.",
        *("seconds", "cells", "symlog"),
    ),
    "sweep": _Axes(
        "× {x:g} bandwidth makes a step up to {y:.3f} times as fast",
        "Speed of a step against that at the least or present bandwidth.",
        *("times the bandwidth", "times as fast"),
    ),
}


def chart(name: str, document: Document) -> Chart | None:
    """Return a chart of a ``nest-bench/1`` document; ``None`` without points.

    ``name`` is one of ``_CHARTS``.
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
    channels = {
        "x": number_axis("x", axes.x, False, axes.scale),
        "y": y,
        "color": colors("line", list(curves)),
    }
    # Without dots there still is something to point at.
    size, opacity, interpolate = 60, 0, "step-after"
    if name == "sweep":
        size, opacity, interpolate = 40, 1, "linear"
    dot = mark("point", filled=True, size=size, opacity=opacity)
    spec = lines(values, channels, dot, interpolate=interpolate)
    title = _message(axes, curves)
    table = Table(
        (Column("line"), Column(axes.x, form=".6g"), Column(axes.y, form=".6g")),
        [(who, x, y) for who, curve in curves.items() for x, y in curve],
        title,
    )
    return Chart(name, title, axes.summary, spec, table=table)


def _message(axes: _Axes, curves: Curves) -> str:
    """Return the message of a chart, with the names of the leading lines."""
    points = {who: curve[axes.leads_at] for who, curve in curves.items()}
    sign = -1 if axes.y == "mean primal gap" else 1
    # A profile that starts later has no best plan, or no fastest proof.
    earliest = min(x for x, _ in points.values())
    if axes.leads_at == 0:
        points = {who: p for who, p in points.items() if p[0] == earliest}
    x, y = max(points.values(), key=lambda point: sign * point[1])
    leaders = [who for who, point in points.items() if point[1] == y]
    return axes.message.format(who=", ".join(leaders), x=x, y=y, percent=100 * y)


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
            f"{group['model']} {group['cluster']} b{group['batch']}, {group['solver']}"
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
