"""Draw a frontier with Matplotlib: step time against memory."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from nest.search.frontier.staircase import leave_room
from nest.units import GIB, quanta_to_ns
from nest.util.time_scale import TimeScale

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from nest.analysis.pareto import Curve, Frontier, FrontierPoint

#: Beyond this ratio of step times a plot is logarithmic.
_WIDE_RATIO = 4


def frontier_ns(frontier: Frontier, quanta: int) -> int | float:
    """Return a step time of a frontier in ns."""
    return quanta_to_ns(quanta, frontier.problem.quantum_ps)


def frontier_scale(frontier: Frontier) -> TimeScale:
    """Return the scale that suits the shortest step."""
    least = min((p.step_quanta for p in frontier.points), default=0)
    return TimeScale.fitting(frontier_ns(frontier, least), frontier.problem.time_unit)


def draw(axes: Axes, found: Frontier) -> None:
    """Draw a frontier into axes of matplotlib."""
    scale = frontier_scale(found)

    def time(point: FrontierPoint) -> float:
        return frontier_ns(found, point.step_quanta) / scale.unit_ns

    dashed = False
    for index, curve in enumerate(found.curves):
        color = f"C{index % 10}"
        label = "1 device" if curve.devices == 1 else f"{curve.devices} devices"
        if not curve.points:
            label += " (no plan)"
        axes.plot([], [], color=color, label=label)
        for low, high, point, proven in _spans(curve):
            axes.plot(
                [low / GIB, high / GIB],
                [time(point)] * 2,
                color=color,
                linestyle="-" if proven else "--",
            )
            dashed |= not proven
        for before, after in pairwise(curve.points):
            axes.plot(
                [after.memory_bytes / GIB] * 2,
                [time(before), time(after)],
                color=color,
                linewidth=0.8,
            )
        own = [p for p in found.points if p.devices == curve.devices]
        axes.plot(
            [p.memory_bytes / GIB for p in own],
            [time(p) for p in own],
            linestyle="none",
            marker="o",
            markersize=3,
            color=color,
        )
    axes.set_title(f"{found.problem.name}: frontier of {', '.join(found.objectives)}")
    axes.set_xlabel("memory of the fullest device (GiB)")
    axes.set_ylabel(f"step time ({scale.unit})")
    times = [time(p) for curve in found.curves for p in curve.points]
    if times and 0 < _WIDE_RATIO * min(times) < max(times):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:g}")
    axes.grid(alpha=0.3)
    axes.legend(title="dashed: not proven" if dashed else None)


def _spans(curve: Curve) -> list[tuple[int, int, FrontierPoint, bool]]:
    """Return the level pieces of a curve: from, to, point, proven.

    A piece ends where the next point takes over, the last one at the
    device's memory, and where a gap begins or ends.
    """
    capacity = curve.problem.cluster.memory_bytes()
    ends = [*(point.memory_bytes for point in curve.points), capacity]
    pieces = []
    for point, (low, high) in zip(curve.points, pairwise(ends), strict=True):
        cuts = sorted(
            {low, high}
            | {
                edge
                for gap in curve.gaps
                for edge in (gap.above_bytes, gap.up_to_bytes)
                if low < edge < high
            }
        )
        for start, end in pairwise(cuts):
            faster = point.step_quanta - 1
            proven = not leave_room(curve.gaps, end, faster)
            pieces.append((start, end, point, proven))
    return pieces
