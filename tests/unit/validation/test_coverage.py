"""What of measured step times intervals hold."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from nest.uncertainty.intervals import intervals_of
from nest.validation.coverage import assess_covered, coverage_figures
from nest.validation.predict import Skip, predict, predicted_run
from nest.validation.report import assess
from nest.validation.rows import Row
from tests.unit.uncertainty.test_intervals import NUMBERS
from tests.unit.validation.test_predict import row


@pytest.fixture(autouse=True)
def _numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is fitted does not decide here."""
    for name in ("nest.uncertainty.intervals", "nest.validation.coverage"):
        monkeypatch.setattr(f"{name}.stored_deviations", lambda: NUMBERS)


def measured(step_time_s: float) -> Row:
    return replace(row(), iter_time_s=step_time_s)


def ends() -> tuple[float, float, float, float, float]:
    """Return the ends of both intervals, and the prediction, in s."""
    found = predicted_run(row())
    assert not isinstance(found, Skip)
    (problem, plan, *_), verdict, _ = found
    known = intervals_of(problem, plan, verdict)
    assert known is not None
    low_50, high_50 = known.step_50_ns
    low_90, high_90 = known.step_90_ns
    step_ns = float(verdict.step_time_ns)
    found_ns = low_90, low_50, high_50, high_90, step_ns
    a, b, c, d, e = (time_ns / 1e9 for time_ns in found_ns)
    return a, b, c, d, e


def test_a_row_is_run_as_it_is_predicted() -> None:
    found = predicted_run(row())
    assert not isinstance(found, Skip)
    assert found.prediction == predict(row())
    step_ns = float(found.verdict.step_time_ns)
    assert found.prediction.step_time_s == step_ns / 1e9


def test_what_cannot_be_predicted_is_not_run() -> None:
    odd = replace(row(), recompute="some of it")
    assert predicted_run(odd) == predict(odd)


@pytest.mark.parametrize(
    ("end", "inside", "within"),
    [
        (0, 1.001, (False, True)),
        (0, 0.999, (False, False)),
        (1, 1.001, (True, True)),
        (1, 0.999, (False, True)),
        (2, 0.999, (True, True)),
        (2, 1.001, (False, True)),
        (3, 0.999, (False, True)),
        (3, 1.001, (False, False)),
    ],
)
def test_ends_of_intervals_decide(
    end: int, inside: float, within: tuple[bool, bool]
) -> None:
    outcome, found = assess_covered(measured(inside * ends()[end]))
    assert found is not None
    assert outcome.within_90 == within[1]
    assert outcome._replace(interval_90_s=None) == assess(outcome.row, predict)
    assert (found.within_50, found.within_90) == within
    low, _, _, high, step = ends()
    assert found.half_width == pytest.approx((high - low) / 2 / step)


@pytest.mark.parametrize(("size", "wider"), [(1, True), (2, False)])
def test_a_network_that_is_not_understood_widens_between_nodes(
    size: int, wider: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = replace(NUMBERS, software=0.2)
    monkeypatch.setattr("nest.validation.coverage.stored_deviations", lambda: numbers)
    two = replace(measured(1.0), num_devices=2, dp=2)
    known = replace(two, devices_per_node=size)
    unread = replace(known, interconnect="very fast")
    _, usual = assess_covered(known)
    _, found = assess_covered(unread)
    assert usual is not None
    assert found is not None
    assert (found.half_width > usual.half_width) is wider


def test_figures_of_three_rows() -> None:
    """One within both, one within the wider one, one within neither."""
    low_90, low_50, high_50, high_90, step = ends()
    rows = [
        measured(time_s)
        for time_s in ((low_50 + high_50) / 2, (high_50 + high_90) / 2, 9e9)
    ]
    rows.append(replace(row(), iter_time_s=None))
    rows.append(replace(row(), recompute="some of it"))
    found = [assess_covered(row)[1] for row in rows]
    assert found[3:] == [None, None]
    assert coverage_figures(found) == {
        "rows": 3,
        "within_50": pytest.approx(1 / 3, abs=1e-6),
        "within_90": pytest.approx(2 / 3, abs=1e-6),
        "median_half_width_90": pytest.approx((high_90 - low_90) / 2 / step, abs=1e-6),
    }


def test_without_rows_there_are_no_figures() -> None:
    assert coverage_figures([]) == {
        "rows": 0,
        "within_50": None,
        "within_90": None,
        "median_half_width_90": None,
    }
