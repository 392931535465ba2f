"""Statistics of benchmarks: pure functions of numbers.

A run without a result is never left out of an average: it is ``math.inf``
where only order counts, and a stated penalty where a number is needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

#: 97.5 % quantile of the normal distribution: two-sided 95 %.
Z_95 = 1.959963984540054

#: Random draws of a bootstrap.
DRAWS = 2000

#: Steps of a curve, as (x, y): y holds from x on.
Steps = tuple[tuple[float, float], ...]


def shifted_geometric_mean(values: Sequence[float], shift: float) -> float:
    """Return ``(∏ (v + shift))^(1/n) - shift``.

    The shift keeps very small values from counting as much as large ones
    (Achterberg 2007, *Constraint Integer Programming*, appendix A.3).

    There is at least one value, each finite and above minus the shift, which is in the
    unit of the values; 0 is the plain geometric mean.
    """
    logs = [math.log(value + shift) for value in values]
    return math.exp(math.fsum(logs) / len(logs)) - shift


def profile(costs: Mapping[str, Sequence[float]]) -> dict[str, Steps]:
    """Return performance profiles (Dolan and Moré 2002).

    ``ρ_s(τ)`` is the share of runs in which the cost of ``s`` is at most
    ``τ`` times the least of all solvers; the share counts every run, also
    those that nobody finished.

    ``costs`` has per solver a cost per run, at least 0, ``math.inf`` where it failed.
    What is returned are per solver the points at which its profile rises, from
    ``τ = 1`` on.
    """
    count = len(next(iter(costs.values())))
    lowest = [min(column) for column in zip(*costs.values(), strict=True)]
    profiles = {}
    for name, own in costs.items():
        ratios = [_ratio(mine, best) for mine, best in zip(own, lowest, strict=True)]
        finite = [ratio for ratio in ratios if ratio < math.inf]
        profiles[name] = _rises(finite, 1.0, count)
    return profiles


def _ratio(cost: float, lowest: float) -> float:
    if cost == math.inf:
        return math.inf
    if lowest == 0:
        return 1.0 if cost == 0 else math.inf
    return cost / lowest


def cactus(times: Iterable[float]) -> Steps:
    """Return pairs of seconds and the number of runs that were done by then.

    ``times`` are seconds each, ``math.inf`` where it never was.
    """
    return _rises([t for t in times if t < math.inf], 0.0, 1)


def _rises(values: list[float], start: float, whole: int) -> Steps:
    points = {start: 0.0}
    for number, value in enumerate(sorted(values), 1):
        points[value] = number / whole
    return tuple(points.items())


def primal_gap(value: float | None, best: float) -> float:
    """Return how far a plan is from the best, from 0 to 1.

    ``|value - best| / max(|value|, |best|)``, and 1 without a plan (Berthold
    2013, *Measuring the impact of primal heuristics*).
    """
    if value is None:
        return 1.0
    if value == best:
        return 0.0
    return abs(value - best) / max(abs(value), abs(best))


def primal_integral(
    trace: Sequence[tuple[float, float | None]], best: float, end: float
) -> float:
    """Return the mean primal gap from 0 to ``end`` (Berthold 2013).

    0 is the best plan from the first moment on, 1 no plan until the end.

    ``trace`` are times and the best plan from then on, in order; ``None`` is no plan.
    What comes after ``end``, which is above 0, does not count.
    """
    area, since, gap = 0.0, 0.0, 1.0
    for moment, value in trace:
        moment = min(moment, end)
        area += gap * (moment - since)
        since, gap = moment, primal_gap(value, best)
    whole = area + gap * (end - since)
    return whole / end


def wilson(wins: int, count: int) -> tuple[float, float]:
    """Return the 95 % interval of a share (Wilson 1927); 0 to 1 without data."""
    if count == 0:
        return (0.0, 1.0)
    share, square = wins / count, Z_95 * Z_95
    middle = share + square / (2 * count)
    half = Z_95 * math.sqrt(share * (1 - share) / count + square / (4 * count * count))
    whole = 1 + square / count
    # At the ends one limit is the end itself, but for rounding.
    return (
        0.0 if wins == 0 else (middle - half) / whole,
        1.0 if wins == count else (middle + half) / whole,
    )


def sign_test(wins: int, losses: int) -> float:
    """Return the two-sided p-value of wins against losses, exactly.

    How likely one of two that are as good as each other is to win or to lose
    at least so often.
    """
    count, less = wins + losses, min(wins, losses)
    tail = sum(math.comb(count, k) for k in range(less + 1))
    return min(1.0, 2 * tail / (1 << count))


def upper_median(values: Iterable[float]) -> float:
    """Return the median; of two middle ones the larger."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


class Interval(NamedTuple):
    """An estimate with its 95 % interval."""

    value: float
    low: float
    high: float


def bootstrap_mean(groups: Sequence[Sequence[float]]) -> Interval:
    """Return the mean of values with its 95 % percentile interval.

    Whole groups are drawn, as the values of one group go together (seeds of a problem).
    There is at least one group, and none of them is empty.
    """
    import numpy as np

    sums = np.array([math.fsum(group) for group in groups])
    counts = np.array([len(group) for group in groups])
    generator = np.random.default_rng(0)
    drawn = generator.integers(0, len(groups), (DRAWS, len(groups)))
    means = np.sort(sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1))
    return Interval(
        float(sums.sum() / counts.sum()),
        float(means[math.floor(0.025 * (DRAWS - 1))]),
        float(means[math.ceil(0.975 * (DRAWS - 1))]),
    )
