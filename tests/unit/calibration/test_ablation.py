"""Fits without one mechanism: what is switched off, and the tables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from bench.ablation import MECHANISMS, Bench, Mechanism, refitted, tables
from bench.calibrate import figures
from nest.calibration.evidence import Evidence
from nest.calibration.fit import Fit
from nest.calibration.parameters import PARAMETERS, Parameter
from nest.hardware.calibration import MAX_EXPONENT, Calibration, stored_calibration
from nest.validation.predict import PredictOptions
from nest.validation.rows import Row

STORED = PredictOptions(
    calibration=stored_calibration().families, software=stored_calibration().software
)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: m.name)
def test_what_is_switched_off_is_not_fitted(mechanism: Mechanism) -> None:
    """Fields have their value everywhere, families another's."""
    options = mechanism.options(STORED)
    for calibration in options.calibration.values():
        for field, value in mechanism.fields.items():
            assert field in Calibration.__struct_fields__
            assert getattr(calibration, field) == value
    for name, other in mechanism.families.items():
        assert options.calibration[name] == options.calibration[other]
    assert options.software is not None
    if mechanism.overlap:
        assert set(options.software.overlap.values()) == {0.0}
    left = [p for p in PARAMETERS if mechanism.leaves(p)]
    gone = [p for p in PARAMETERS if p not in left]
    assert all(
        p.field in mechanism.fields
        or p.family in mechanism.families
        or p.family == "software"
        for p in gone
    )
    row = mechanism.row(Row(framework="NeMo", source="paper", layers=2))
    assert row.layers == 2
    assert (row.framework is None) == mechanism.facts


def test_without_nothing_nothing_changes() -> None:
    nothing = MECHANISMS[0]
    assert nothing.options(STORED) == STORED
    assert all(map(nothing.leaves, PARAMETERS))


def parameter(name: str) -> Parameter:
    return Parameter(name=name, value=1.0, deviation=10.0, spread=0.1)


def test_a_fit_without_a_mechanism_by_hand() -> None:
    """Times are x · y of H100 rows and x · z of Blackwell's.

    Rows of source a are off by 0.05 in the logarithm, those of b by 0.15. With priors
    that say next to nothing all but x is left, and x absorbs what is common: the fit is
    near the middle, 0.1, and a source is predicted by the other: off by 0.1 either way.
    A row that cannot be predicted is left out.
    """
    names = ("every.slowdown", "Blackwell.matmul_fraction")
    at = Fit(tuple(map(parameter, names)), np.zeros(2), np.eye(2))
    groups = ("a", "a", "b", "b", "b")
    evidence = Evidence(
        tuple(Row(line=i) for i in range(5)), ("H100",) * 5, groups, np.ones(5)
    )
    true = np.array([0.05, 0.05, 0.15, 0.15, np.nan])

    def predicted(
        rows: Sequence[Row], options: PredictOptions
    ) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        stored = stored_calibration().families["A100"].matmul_fraction
        own = options.calibration["A100"].matmul_fraction
        return np.array([np.log(stored / own) + true[r.line] for r in rows])

    slopes = np.array([[1.0, 0.0]] * 5)
    bench = Bench(evidence, [0, 1, 2, 3, 4], at, slopes, predicted)
    without = Mechanism("families", families={"Blackwell": "H100"})
    fitted, held, rows = refitted(bench, without)
    assert rows == [0, 1, 2, 3]
    assert fitted == pytest.approx([-0.05, -0.05, 0.05, 0.05], abs=2e-3)
    assert held == pytest.approx([-0.1, -0.1, 0.1, 0.1], abs=2e-3)


def test_an_exponent_of_power_stays_within_its_limit() -> None:
    """A fit may leave it free, a calibration may not have more."""
    at = Fit((parameter("every.power_exponent"),), np.log([100.0]), np.eye(1))
    evidence = Evidence((Row(),), ("H100",), ("a",), np.ones(1))

    def predicted(
        rows: Sequence[Row], options: PredictOptions
    ) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.array([options.calibration["H100"].power_exponent] * len(rows))

    bench = Bench(evidence, [0], at, np.ones((1, 1)), predicted)
    assert bench.errors(MECHANISMS[0], at, [0]).tolist() == [MAX_EXPONENT]


def test_rows_of_a_family_that_takes_anothers_depend_on_it() -> None:
    names = ("H100.matmul_fraction", "Blackwell.matmul_fraction")
    at = Fit(tuple(map(parameter, names)), np.zeros(2), np.eye(2))
    evidence = Evidence((Row(), Row()), ("H100", "Blackwell"), ("a", "b"), np.ones(2))
    slopes = np.array([[-1.0, 0.0], [0.0, -0.5]])
    bench = Bench(evidence, [0, 1], at, slopes, lambda rows, options: slopes)
    without = Mechanism("families", families={"Blackwell": "H100"})
    assert bench.slopes_of(without, [0]).tolist() == [[-1.0], [-0.5]]


def test_the_table_has_fitted_and_held_out_errors() -> None:
    """Of classes, a line for each mechanism; sources are left out."""
    low, high = figures(np.log([1.1] * 3)), figures(np.log([1.2] * 3))
    both = {"fitted": low, "held_out": high}
    fewer = {"fitted": figures(np.log([1.3] * 2)), "held_out": high}
    text = tables(
        {
            "rows": 3,
            "without": {
                "all mechanisms": {"all": both, "experts": both, "paper": both},
                "host time": {"all": fewer},
            },
        }
    )
    lines = text.splitlines()
    assert lines[0] == "| mechanism that is left out | all (3) | experts (3) |"
    assert lines[2:4] == [
        "| none | 10.0 / 20.0 | 10.0 / 20.0 |",
        "| host time | 30.0 / 20.0 |  |",
    ]
    assert lines[-1] == "Rows that cannot be expressed without it: host time: 1."
