"""The most probable parameters under priors and rows.

In logarithms, around parameters ``x0``, a row ``i`` has the error
``e_i = e0_i + J_i (x - x0) + noise``, where the noise follows a t
distribution, so that odd rows weigh less (Lange et al. 1989, doi
10.2307/2290063). Gauss-Newton steps on a normal prior of ``x`` and these rows
find the most probable ``x``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from nest.calibration.evidence import Array, Evidence
from nest.calibration.parameters import Parameter

#: Degrees of freedom of the noise, and its scale in the logarithm.
FREEDOM = 2.0
NOISE = 0.05

#: Iterations of a fit, and the largest step of a logarithm in one.
ITERATIONS = 6
LARGEST_STEP = 0.5

#: Step of a logarithm up to which errors are taken to be linear.
FAR = 0.3


@dataclass(frozen=True)
class Linear:
    """Errors and their slopes around a point."""

    x: Array
    errors: Array
    slopes: Array

    def at(self, x: Array) -> Array:
        """Return the errors at another point, were they linear."""
        return self.errors + self.slopes @ (x - self.x)


@dataclass(frozen=True)
class Fit:
    """Parameters after a fit."""

    #: What was fitted, ``p`` of them.
    parameters: tuple[Parameter, ...]
    #: Logarithms of their values.
    x: Array
    #: Of the logarithms, ``(p, p)``.
    covariance: Array

    @property
    def values(self) -> dict[str, float]:
        """The parameters by name."""
        return {
            p.name: min(float(v), p.most)
            for p, v in zip(self.parameters, np.exp(self.x), strict=True)
        }

    @property
    def deviations(self) -> Array:
        """Standard deviations of the logarithms, ``(p,)``."""
        deviations: Array = np.sqrt(np.diag(self.covariance))
        return deviations


def prior(parameters: tuple[Parameter, ...]) -> Fit:
    """Return what is known without rows."""
    return Fit(
        parameters,
        np.log([p.value for p in parameters]),
        np.diag([p.deviation**2 for p in parameters]),
    )


def solve(before: Fit, linear: Linear, evidence: Evidence, rounds: int = 8) -> Fit:
    """Return the most probable parameters under a prior if errors are linear.

    The weights of odd rows are taken anew ``rounds`` times.
    """
    inverse = np.linalg.inv(before.covariance)
    scales = NOISE * evidence.noise
    x = before.x
    weights = np.ones(len(scales))
    for _ in range(rounds):
        weighted = linear.slopes.T * (weights / scales**2)
        information = inverse + weighted @ linear.slopes
        covariance = np.linalg.inv(information).astype(np.float64)
        gradient = inverse @ (x - before.x) + weighted @ linear.at(x)
        x = x - covariance @ gradient
        ratio = linear.at(x) / scales
        weights = (FREEDOM + 1) / (FREEDOM + ratio**2)
    return replace(before, x=x, covariance=covariance)


def fit(
    before: Fit, evidence: Evidence, start: Array | None = None
) -> tuple[Fit, Linear]:
    """Return the most probable parameters, and the rows around them.

    A parameter that turns back takes half a step.
    """
    upper_bounds = np.log([p.most for p in before.parameters])
    x = before.x if start is None else start
    damping = np.ones(len(x))
    last = np.zeros(len(x))
    for iteration in range(ITERATIONS):
        errors = evidence.errors(x, before.parameters)
        if iteration % 2 == 0:
            slopes = evidence.slopes(x, errors, before.parameters)
        linear = Linear(x, errors, slopes)
        solution = solve(before, linear, evidence)
        step = np.clip(solution.x - x, -LARGEST_STEP, LARGEST_STEP)
        damping = np.where(step * last < 0, damping / 2, damping)
        last = step
        x = np.minimum(x + damping * step, upper_bounds)
        if np.abs(damping * step).max() < 0.01:
            break
    return replace(solution, x=x), linear


def refit(before: Fit, linear: Linear, evidence: Evidence) -> Fit:
    """Return a fit near a point whose slopes are known.

    Slopes stay; where it moves far, errors are computed anew.
    """
    solution = solve(before, linear, evidence)
    if np.abs(solution.x - linear.x).max() > FAR:
        errors = evidence.errors(solution.x, before.parameters)
        linear = Linear(solution.x, errors, linear.slopes)
        solution = solve(before, linear, evidence)
    return solution
