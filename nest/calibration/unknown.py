"""What a user's own runs leave unknown of the times of their cluster.

Before any run, the logarithms of the times of devices, of the network and of hosts are
off by independent normal deviations (:mod:`nest.uncertainty.intervals`), and a run's
logarithm of true over predicted step time is its shares times these, beside the noise.
A calibration takes from that what devices and hosts may explain; networks are not
fitted: what is unknown of theirs stays, and is in part mistaken for the others'.

With the shares ``A`` of the runs, ``V = diag(D², N², H²)`` before them, and
``F = diag(D², 0, H²)``, the covariance after them is ``C``::

    K = F Aᵀ (A F Aᵀ + noise² I)⁻¹
    C = (I − K A) V (I − K A)ᵀ + noise² K Kᵀ
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nest.calibration.evidence import Array
from nest.ir.problem import OwnRuns
from nest.uncertainty.intervals import (
    Deviations,
    covariance_of,
    has_experts,
    shares_of,
    stored_deviations,
)
from nest.validation.predict import PredictedRun

#: Number of runs that the stored noise counts for in the mean with own runs.
NOISE_RUNS = 5

#: Of devices, the network and hosts: what a calibration fits.
FITTED = np.array([1.0, 0.0, 1.0])


class Remainder(NamedTuple):
    """What runs tell, and what they leave."""

    #: How the estimates follow from the errors of ``n`` runs, ``(3, n)``.
    gain: Array
    #: Of what the estimates are off by, ``(3, 3)``.
    covariance: Array


def left_unknown(before: Array, shares: Array, noise: float) -> Remainder:
    """Return what runs leave unknown.

    ``before`` is the covariance before any run, ``(3, 3)``, ``shares`` what the step
    times of ``n`` runs depend on, ``(n, 3)``, and ``noise`` the standard deviation of
    each that no share explains. The estimate is the most probable one if only what is
    :data:`FITTED` were unknown; its covariance is for all that is (Joseph's form, which
    holds for any gain: Bucy and Joseph 1968, *Filtering for Stochastic Processes*).
    """
    fitted = before * np.outer(FITTED, FITTED)
    count = len(shares)
    spread = shares @ fitted @ shares.T + noise**2 * np.eye(count)
    gain = np.linalg.solve(spread, shares @ fitted).T
    remainder = np.eye(len(before)) - gain @ shares
    covariance = remainder @ before @ remainder.T + noise**2 * gain @ gain.T
    return Remainder(
        np.asarray(gain, np.float64),
        np.asarray((covariance + covariance.T) / 2, np.float64),
    )


def noise_of_runs(stored: float, errors: Array) -> float:
    """Return the noise of step times of which some errors are known.

    The mean square, in which the stored noise counts as :data:`NOISE_RUNS`. Errors are
    logarithms of true over predicted step times, each predicted without itself,
    ``(n,)``.
    """
    squares = NOISE_RUNS * stored**2 + float(errors @ errors)
    return float(np.sqrt(squares / (NOISE_RUNS + len(errors))))


def own_runs_of(
    family: str,
    runs: Sequence[PredictedRun],
    errors: Array,
    deviations: Deviations | None = None,
) -> OwnRuns:
    """Return what ``n`` runs on a device family leave unknown, for intervals.

    ``errors`` are each of a fit to the others, ``(n,)``; ``deviations`` say how far
    predictions are off without runs, by default as stored.
    """
    deviations = deviations or stored_deviations()
    problems = [run.run.problem for run in runs]
    covariances = [np.array(covariance_of(p, deviations)) for p in problems]
    # With experts, or in fp8, there is more to learn.
    before = np.maximum.reduce(covariances)
    shares = np.array([shares_of(x.run.problem, x.run.plan, x.verdict) for x in runs])
    noise = noise_of_runs(deviations.noise, errors)
    covariance = left_unknown(before, shares, noise).covariance
    first, second, third = (
        (six_digits(row[0]), six_digits(row[1]), six_digits(row[2]))
        for row in covariance
    )
    return OwnRuns(
        runs=len(runs),
        family=family,
        software=tuple(sorted({p.software for p in problems})),
        covariance=(first, second, third),
        noise=six_digits(noise),
        experts=any(map(has_experts, problems)),
        low_precision=any(p.job.dtype == "fp8" for p in problems),
    )


def six_digits(value: float) -> float:
    """Return a figure as it is written."""
    return float(f"{value:.6g}")
