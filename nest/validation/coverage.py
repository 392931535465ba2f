"""Which measured step times lie within the intervals of predictions."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any, NamedTuple

from nest.intervals import Interval, intervals_of
from nest.validation.predict import Skip, predicted_run
from nest.validation.report import Assessment


class Covered(NamedTuple):
    """A measured step time beside its intervals.

    Attributes
    ----------
    within_50, within_90
        Whether it lies within them.
    half_width
        Half the width of the 90 % interval, as a fraction of the prediction.
    """

    within_50: bool
    within_90: bool
    half_width: float


def covered(outcome: Assessment) -> Covered | None:
    """Return whether a measured step time lies within its intervals.

    ``None`` if it is not compared with a prediction.
    """
    measured_s = outcome.measured_s
    if outcome.time_error is None or measured_s is None:
        return None
    found = predicted_run(outcome.row)
    if isinstance(found, Skip):
        return None
    (problem, plan, *_), verdict, _ = found
    known = intervals_of(problem, plan, verdict)
    if known is None:
        return None

    def holds(interval: Interval) -> bool:
        return interval.low <= measured_s * 1e9 <= interval.high

    low, high = known.step_90_ns
    return Covered(
        holds(known.step_50_ns),
        holds(known.step_90_ns),
        (high - low) / 2 / float(verdict.step_time_ns),
    )


def coverage_figures(outcomes: Iterable[Assessment]) -> dict[str, Any]:
    """Return which part of step times their intervals hold.

    Figures are fractions, ``None`` if there is no row.
    """
    found = [c for outcome in outcomes if (c := covered(outcome)) is not None]
    if not found:
        return {"rows": 0} | dict.fromkeys(
            ("within_50", "within_90", "median_half_width_90")
        )
    return {
        "rows": len(found),
        "within_50": round(statistics.fmean(c.within_50 for c in found), 6),
        "within_90": round(statistics.fmean(c.within_90 for c in found), 6),
        "median_half_width_90": round(
            statistics.median(c.half_width for c in found), 6
        ),
    }
