"""What own runs leave unknown, worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from msgspec.structs import replace

from nest.calibration.unknown import (
    NOISE_RUNS,
    left_unknown,
    noise_of_runs,
    own_runs_of,
)
from nest.hardware import machine
from nest.hardware.calibration import stored_calibration
from nest.hardware.calibration_file import own_runs_for
from nest.uncertainty.intervals import covariance_of
from nest.validation.predict import PredictedRun, predicted_run
from nest.validation.rows import Row
from tests.unit.calibration.test_own_runs import RUN, SHAPES
from tests.unit.uncertainty.test_intervals import NUMBERS, OWN


def variance(covariance: np.ndarray, *shares: float) -> float:
    """Return the variance of the logarithm of a step with such shares."""
    return float(np.array(shares) @ covariance @ np.array(shares))


def test_one_run_of_devices_alone() -> None:
    """A normal prior of 0.1 and one observation of 0.05: 1 / (100 + 400)."""
    left = left_unknown(np.diag([0.01, 0.16, 0.04]), np.array([[1.0, 0.0, 0.0]]), 0.05)
    assert variance(left.covariance, 1, 0, 0) == pytest.approx(0.002)
    assert variance(left.covariance, 0, 1, 0) == pytest.approx(0.16)
    assert variance(left.covariance, 0, 0, 1) == pytest.approx(0.04)
    assert left.gain[:, 0] == pytest.approx([0.8, 0, 0])


def test_what_the_network_does_is_mistaken_for_devices() -> None:
    """Half a step is of either, without noise: devices get twice the error.

    Then the error of a step like the run is 0, that of one of devices alone
    is the network's.
    """
    before = np.diag([0.01, 0.16, 0.0])
    left = left_unknown(before, np.array([[0.5, 0.5, 0.0]]), 1e-9)
    assert left.gain[:, 0] == pytest.approx([2, 0, 0])
    assert variance(left.covariance, 0.5, 0.5, 0) == pytest.approx(0)
    assert variance(left.covariance, 1, 0, 0) == pytest.approx(0.16)
    assert variance(left.covariance, 0, 1, 0) == pytest.approx(0.16)


def test_many_runs_leave_the_noise_alone() -> None:
    shares = np.tile([0.7, 0.2, 0.1], (400, 1))
    before = np.diag([0.01, 0.16, 0.04])
    left = left_unknown(before, shares, 0.05).covariance
    assert math.sqrt(variance(left, 0.7, 0.2, 0.1)) < 0.003
    assert left == pytest.approx(left.T)
    assert np.linalg.eigvalsh(left).min() > -1e-12


def test_the_noise_of_runs_counts_as_many_as_there_are() -> None:
    """Five of 0.06 and four of 0.03: 0.0216 by 9 is 0.0024."""
    assert NOISE_RUNS == 5
    found = noise_of_runs(0.06, np.array([0.03, -0.03, 0.03, -0.03]))
    assert found == pytest.approx(math.sqrt((5 * 0.0036 + 4 * 0.0009) / 9))
    assert noise_of_runs(0.06, np.array([])) == pytest.approx(0.06)


def runs() -> list[PredictedRun]:
    found = [
        predicted_run(Row(line=line, **RUN | shape))
        for line, shape in enumerate(SHAPES, 2)
    ]
    kept = [x for x in found if isinstance(x, PredictedRun)]
    assert len(kept) == len(SHAPES)
    return kept


def test_own_runs_are_narrower_than_what_is_known_of_others() -> None:
    numbers = replace(NUMBERS, device=0.3)
    errors = np.full(len(SHAPES), 0.02)
    own = own_runs_of("A100", runs(), errors, numbers)
    assert (own.runs, own.family) == (len(SHAPES), "A100")
    assert own.software == ("Megatron-Core",)
    assert (own.experts, own.low_precision) == (False, False)
    assert own.noise == pytest.approx(noise_of_runs(0.03, errors), rel=1e-5)
    problem = runs()[0].run.problem
    before = covariance_of(problem, numbers)
    after = covariance_of(replace(problem, own_runs=own), numbers)
    assert after[0][0] < before[0][0] / 4
    assert after[1][1] == pytest.approx(before[1][1], rel=1e-5)


def test_own_runs_hold_for_devices_like_theirs() -> None:
    own = replace(OWN, family="A100")
    found = replace(stored_calibration(), own_runs=own)
    ours = machine("dgx-a100")
    others = machine("dgx-h100")
    assert own_runs_for(found, [(ours, 8)]) == own
    assert own_runs_for(found, [(ours, 8), (others, 8)]) is None
    assert own_runs_for(found, [(others, 8)]) is None
    assert own_runs_for(stored_calibration(), [(ours, 8)]) is None
    assert own_runs_for(None, [(ours, 8)]) is None
