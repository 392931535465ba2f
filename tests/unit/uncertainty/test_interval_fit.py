"""How the margin of two plans is fitted: bench/intervals.py."""

from __future__ import annotations

import importlib
import json
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from bench.result_files import ROOT, result_path
from nest.uncertainty.intervals import Quantiles, stored_deviations


@pytest.fixture
def fit(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module("intervals")


def test_the_order_at_the_margin_is_right_nine_times_of_ten(fit: ModuleType) -> None:
    """The logarithm of 10 / 9 if it is, of 10 if it is not."""
    for right, expected in ((True, 10 / 9), (False, 10)):
        found = fit.misorder(np.ones(1), np.array([right]), np.ones(1))
        assert found == pytest.approx(np.log(expected))
    found = fit.misorder(np.zeros(1), np.array([True]), np.array([3.0]))
    assert found == pytest.approx(3 * np.log(2))


def test_the_margin_that_is_found_is_the_one_that_was_drawn(fit: ModuleType) -> None:
    """Ratios around 0.1, nine of ten of which there are in order."""
    random = np.random.default_rng(1)
    ratios = random.uniform(0, 0.4, 4000)
    right = random.random(4000) < 1 / (1 + 9 ** -(ratios / 0.1))

    def loss(x: np.ndarray) -> float:
        return float(fit.misorder(ratios / np.exp(x[0]), right, np.ones(4000)))

    found = float(np.exp(fit.least(loss, np.log([0.3]))[0]))
    assert found == pytest.approx(0.1, rel=0.06)
    near = abs(ratios - found) < 0.02
    assert right[near].mean() == pytest.approx(0.9, abs=0.03)


def test_pairs_are_counted_by_what_is_said_of_them(fit: ModuleType) -> None:
    orders = fit.Orders(
        equal=np.array([True, True, False, False]),
        right=np.array([True, False, True, True]),
        sources=np.array(["vTrain 1", "other", "other", "vTrain 1"]),
    )
    assert orders.figures() == {
        "pairs": 4,
        "equal": 2,
        "right_of_equal": 0.5,
        "right_of_others": 1.0,
    }
    assert orders.figures("vTrain") == {
        "pairs": 2,
        "equal": 1,
        "right_of_equal": 0.0,
        "right_of_others": 1.0,
    }


def test_a_fifth_more_is_not_equal_where_plans_differ_little() -> None:
    numbers = stored_deviations()
    assert np.sqrt(2) * numbers.plan_noise < np.log(1.2)


def test_intervals_of_own_runs_are_of_what_these_tell(fit: ModuleType) -> None:
    """All rows take e^0.2 of what is predicted, and scatter by 0.01.

    Twenty of them tell it to 0.01 / √20, and the noise is the root of
    (5 · 0.05² + 20 · 0.01²) / 25 or so: 0.024.
    """
    random = np.random.default_rng(1)
    errors = 0.2 + 0.01 * random.standard_normal(60)
    parts = np.zeros((60, 6))
    parts[:, 0] = 1.0
    table = SimpleNamespace(parts=parts, errors=errors)
    step = Quantiles(low_90=-2, low_50=-1, high_50=1, high_90=2)
    values = np.array([0.05, 0.3, 0.3, 0.3, 0.1, 0.1, 0.1, 0.05, 1.0])
    numbers = fit.Numbers(tuple(fit.PRIORS), values, step)
    found = fit.own_runs_draw(table, numbers, np.arange(60), np.arange(20))
    assert found["within_50"] > 0.9
    assert found["within_90"] == 1
    assert found["median_half_width_90"] == pytest.approx(2 * 0.0246, rel=0.1)
    # Without runs 0.05 and 0.3 are 0.304, and e^0.608 - e^-0.608 is 1.29.
    before = found["median_half_width_90_without"]
    assert before == pytest.approx(0.646, rel=0.01)


def test_what_is_called_equal_is_seldom_in_order() -> None:
    """Of pairs of measured plans, their source held out, with all others."""
    pairs = json.loads(result_path("intervals").read_text())["pairs"]
    for figures in pairs.values():
        assert figures["right_of_equal"] < 0.9
        assert figures["right_of_equal"] < figures["right_of_others"]
    assert pairs["all"]["right_of_others"] > 0.9
