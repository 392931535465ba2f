"""Fits of parameters, by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest

from bench.calibrate import file_of
from nest.calibration.evidence import Evidence
from nest.calibration.fit import Fit, Linear, prior, solve
from nest.calibration.parameters import PARAMETERS, Parameter, options_of
from nest.calibration.stored import stored_fit
from nest.hardware.calibration import Calibration, stored_calibration
from nest.validation.rows import Row

ONE = Parameter(name="every.host_ns", value=1.0, deviation=0.2, spread=0.1)


def evidence(groups: str) -> Evidence:
    """Return rows of sources, a letter each."""
    rows = tuple(Row() for _ in groups)
    return Evidence(rows, ("A100",) * len(rows), tuple(groups), np.ones(len(rows)))


def linear(*errors: float, slope: float = 1.0) -> Linear:
    """Return rows with errors around 0 that one parameter moves."""
    return Linear(np.zeros(1), np.array(errors), np.full((len(errors), 1), slope))


def test_two_rows() -> None:
    """Errors of 0.1 twice, noise 0.05, prior 0.2: information 800 and 25.

    The first step is -80 / 825 = -0.09697, which leaves 0.00303; rows of
    that size weigh 3 / (2 + (0.00303 / 0.05)²) = 1.49725. Then
    information is 1197.8 + 25 and the optimum -119.78 / 1222.8.
    """
    found = solve(prior((ONE,)), linear(0.1, 0.1), evidence("aa"), rounds=1)
    assert found.x == pytest.approx([-80 / 825])
    assert found.covariance == pytest.approx(np.array([[1 / 825]]))
    found = solve(prior((ONE,)), linear(0.1, 0.1), evidence("aa"), rounds=2)
    information = 800 * 3 / (2 + ((0.1 - 80 / 825) / 0.05) ** 2)
    assert information == pytest.approx(1197.8, abs=0.1)
    assert found.x == pytest.approx([-0.1 * information / (information + 25)])


def test_noisier_rows_say_less() -> None:
    """Twice the noise is a quarter of the information: 100, beside 25."""
    rows = Evidence((Row(),), ("A100",), ("a",), np.array([2.0]))
    found = solve(prior((ONE,)), linear(0.1), rows, rounds=1)
    assert found.covariance == pytest.approx(np.array([[1 / 125]]))


def test_odd_rows_say_less() -> None:
    """One error of 3 among three of 0.1 moves x by little."""
    before = prior((ONE,))
    plain = solve(before, linear(0.1, 0.1, 0.1), evidence("abc"))
    odd = solve(before, linear(0.1, 0.1, 0.1, 3.0), evidence("abcd"))
    assert abs(odd.x[0] - plain.x[0]) < 0.02


def test_what_no_row_shows_stays() -> None:
    """A slope of 0 leaves prior and its deviation."""
    found = solve(prior((ONE,)), linear(0.3, slope=0.0), evidence("a"))
    assert found.x == pytest.approx([0.0])
    assert found.covariance == pytest.approx(np.array([[0.04]]))


def test_known_values_are_found_again() -> None:
    """Rows of many sources without noise: within the prior's pull."""
    chance = np.random.default_rng(1)
    slopes = chance.normal(size=(400, 3))
    true = np.array([0.2, -0.1, 0.05])
    parameters = tuple(replace_name(ONE, f"every.{k}") for k in ("one", "two", "three"))
    groups = tuple(str(i) for i in range(400))
    rows = Evidence((Row(),) * 400, ("A100",) * 400, groups, np.ones(400))
    at = Linear(np.zeros(3), -slopes @ true, slopes)
    found = solve(prior(parameters), at, rows)
    assert found.x == pytest.approx(true, abs=0.01)
    assert (np.sqrt(np.diag(found.covariance)) < 0.02).all()


def replace_name(parameter: Parameter, name: str) -> Parameter:
    """Return a parameter by another name."""
    return Parameter(
        name=name,
        value=parameter.value,
        deviation=parameter.deviation,
        spread=parameter.spread,
    )


def test_parameters_are_those_of_calibrations() -> None:
    """Each is a field of a family or an overlap, with a prior in range."""
    stored = stored_calibration()
    families = set(stored.families) | {"every"}
    for parameter in PARAMETERS:
        if parameter.family == "software":
            assert parameter.field in stored.software.overlap
        elif parameter.field != "slowdown":
            assert parameter.family in families
            assert parameter.field in Calibration.__struct_fields__
        assert 0 < parameter.value <= parameter.most
        assert parameter.note


def test_values_become_options() -> None:
    """One value for all families, none above its most; TPUs have no host."""
    values = prior(PARAMETERS).values
    values["every.host_ns"] = 5e4
    values["A100.matmul_fraction"] = 3.0
    values["software.tp"] = 0.25
    found = options_of(values)
    assert found.calibration["H100"].host_ns == 5e4
    assert found.calibration["TPU"].host_ns == 0
    assert found.calibration["A100"].matmul_fraction == 1
    assert found.software is not None
    assert found.software.overlap["tp"] == 0.25


def test_a_slowdown_slows_devices_and_host() -> None:
    values = prior(PARAMETERS).values
    plain = options_of(values).calibration["A100"]
    values["every.slowdown"] = 1.25
    slow = options_of(values).calibration["A100"]
    for name in ("matmul", "attention", "memory"):
        field = f"{name}_fraction"
        assert getattr(slow, field) == pytest.approx(getattr(plain, field) / 1.25)
    assert slow.host_ns == pytest.approx(1.25 * plain.host_ns)


def test_a_stored_fit_comes_back() -> None:
    """To the digits that are stored; its calibration is the stored one."""
    fit = stored_fit()
    again = file_of(fit, 1, 1)
    assert again.logarithms == tuple(round(x, 4) for x in fit.x.tolist())
    assert again.names == tuple(p.name for p in fit.parameters)
    assert (np.linalg.eigvalsh(fit.covariance) > 0).all()
    stored = stored_calibration()
    options = options_of(fit.values, fit.parameters)
    for name, calibration in options.calibration.items():
        for field in Calibration.__struct_fields__:
            if field != "provenance":
                assert getattr(stored.families[name], field) == (
                    pytest.approx(getattr(calibration, field), rel=1e-3)
                )


def test_a_parameter_at_its_most_stays_there() -> None:
    most = replace(prior((ONE,)), x=np.array([math.log(2)]))
    capped = Fit((replace_most(ONE, 1.5),), most.x, most.covariance)
    assert capped.values == {ONE.name: 1.5}


def replace_most(parameter: Parameter, most: float) -> Parameter:
    """Return a parameter with another largest value."""
    return Parameter(
        name=parameter.name,
        value=parameter.value,
        deviation=parameter.deviation,
        spread=parameter.spread,
        most=most,
    )
