"""Which measured step times lie within the intervals of predictions."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any, NamedTuple

from nest.uncertainty.intervals import intervals_of, stored_deviations
from nest.validation.predict import PredictedRun, Prediction, Skip, predicted_run
from nest.validation.report import Assessment, assess, figure
from nest.validation.rows import Row
from nest.validation.settings import machine_of
from nest.validation.words import not_understood


class Covered(NamedTuple):
    """Whether a measured step time lies within its intervals.

    ``half_width`` is that of the 90 % interval, as a fraction of the prediction.
    """

    within_50: bool
    within_90: bool
    half_width: float


def assess_covered(row: Row) -> tuple[Assessment, Covered | None]:
    """Predict a row, and whether its step time lies within its intervals.

    As of :func:`~nest.validation.report.assess` and :func:`covered`.
    """
    runs: list[PredictedRun] = []

    def predict(row: Row) -> Prediction | Skip:
        run = predicted_run(row)
        if isinstance(run, Skip):
            return run
        runs.append(run)
        return run.prediction

    outcome = assess(row, predict)
    if outcome.time_error is None or not runs:
        return outcome, None
    (problem, plan, *_), verdict, _ = runs[0]
    deviations = stored_deviations()
    nodes, _ = machine_of(row).shape(problem.cluster.num_devices)
    if nodes > 1 and "interconnect" in not_understood(row):
        deviations = deviations.of_unread_network()
    intervals = intervals_of(problem, plan, verdict, deviations)
    if intervals is None:
        return outcome, None
    low_s, high_s = (end_ns / 1e9 for end_ns in intervals.step_90_ns)
    outcome = outcome._replace(interval_90_s=(low_s, high_s))
    measured_s = outcome.measured_s or 0.0
    low_50_ns, high_50_ns = intervals.step_50_ns
    return outcome, Covered(
        low_50_ns <= measured_s * 1e9 <= high_50_ns,
        bool(outcome.within_90),
        (high_s - low_s) / 2 / (float(verdict.step_time_ns) / 1e9),
    )


def coverage_figures(within: Iterable[Covered | None]) -> dict[str, Any]:
    """Return which part of step times their intervals hold.

    Of rows that have any. Figures are fractions, ``None`` if there is no such row.
    """
    compared = [covered for covered in within if covered is not None]
    half_widths = [c.half_width for c in compared]
    return {
        "rows": len(compared),
        "within_50": figure(statistics.fmean, [c.within_50 for c in compared]),
        "within_90": figure(statistics.fmean, [c.within_90 for c in compared]),
        "median_half_width_90": figure(statistics.median, half_widths),
    }
