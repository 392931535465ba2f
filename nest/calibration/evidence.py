"""Rows as evidence: the errors of predictions, and how they move."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from nest.calibration.parameters import Parameter, options_of
from nest.hardware.calibration import calibrated_family
from nest.validation.predict import Prediction, predict
from nest.validation.rows import Row, measured_step_time_s
from nest.validation.settings import machine_of

Array = NDArray[np.float64]

#: Step of a difference, in the logarithm of a parameter.
STEP = 0.03


@dataclass(frozen=True)
class Evidence:
    """Rows whose step times are measured and can be predicted."""

    #: ``n`` rows.
    rows: tuple[Row, ...]
    #: Whose parameters their devices take.
    families: tuple[str, ...]
    #: What counts as one source.
    groups: tuple[str, ...]
    #: Scale of the noise of a row's logarithm, in that of a row of tier A.
    noise: Array

    def errors(
        self,
        x: Array,
        parameters: tuple[Parameter, ...],
        chosen: Sequence[int] | None = None,
    ) -> Array:
        """Return the logarithms of predicted over measured step times.

        ``x`` are logarithms of the parameters; ``chosen`` numbers of rows, all without.
        """
        names = [parameter.name for parameter in parameters]
        values = dict(zip(names, np.exp(x).tolist(), strict=True))
        options = options_of(values, parameters)
        errors = []
        for row in self.rows if chosen is None else [self.rows[i] for i in chosen]:
            answer = predict(row, options)
            measured_s = measured_step_time_s(row)
            assert isinstance(answer, Prediction)
            assert answer.step_time_s
            assert measured_s
            errors.append(math.log(answer.step_time_s / measured_s))
        return np.array(errors)

    def slopes(
        self, x: Array, errors: Array, parameters: tuple[Parameter, ...]
    ) -> Array:
        """Return how errors move with the logarithms, ``(n, p)``."""
        slopes = np.zeros((len(self.rows), len(x)))
        for k, parameter in enumerate(parameters):
            chosen = np.flatnonzero([*map(parameter.concerns, self.families)]).tolist()
            if not chosen:
                continue
            # A share at its most moves down alone.
            moved = x.copy()
            moved[k] -= STEP
            below = self.errors(moved, parameters, chosen)
            slopes[chosen, k] = (errors[chosen] - below) / STEP
        return slopes

    def of(self, chosen: Sequence[int]) -> Evidence:
        """Return some of the rows."""
        return Evidence(
            tuple(self.rows[i] for i in chosen),
            tuple(self.families[i] for i in chosen),
            tuple(self.groups[i] for i in chosen),
            self.noise[list(chosen)],
        )

    def noisier(self, scale: float) -> Evidence:
        """Return the rows with so many times the noise."""
        return replace(self, noise=self.noise * scale)


#: How much noisier than rows of tier A those of the others are.
NOISE = {"A": 1.0, "B": 2.0, "C": 4.0, None: 1.0}


def evidence_of(rows: Sequence[Row], groups: Sequence[str]) -> Evidence:
    """Return rows as evidence, all of which must be usable."""
    families = [calibrated_family(machine_of(row).calibration_family) for row in rows]
    noise = np.array([NOISE.get(row.time_tier, 1.0) for row in rows])
    return Evidence(tuple(rows), tuple(families), tuple(groups), noise)
