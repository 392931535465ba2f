"""Rounding and units."""

import math

import pytest

from nest.units import (
    MAX_TERM,
    ceil_div,
    format_bytes,
    quanta_to_ns,
    quantise,
)


@pytest.mark.parametrize(
    ("time_ns", "quantum_ps", "quanta"),
    [
        (0.0, 1000, 0),
        (0.4999, 1000, 0),
        (0.5, 1000, 1),  # half up, not half to even
        (1.5, 1000, 2),
        (2.5, 1000, 3),
        (1.0, 1, 1000),
        (1.0, 3, 333),  # 333.3
        (1.0, 2000, 1),  # half a quantum
        (7, 1000, 7),
    ],
)
def test_quantise_rounds_half_up(time_ns, quantum_ps, quanta):
    assert quantise(time_ns, quantum_ps) == quanta


def test_quantise_accepts_the_largest_term_and_nothing_above():
    assert quantise(float(MAX_TERM), 1000) == MAX_TERM
    with pytest.raises(
        OverflowError, match=r"a time of .* ns is more than 2\*\*53 quanta"
    ):
        quantise(float(MAX_TERM) * 2, 1000)


@pytest.mark.parametrize("time_ns", [math.inf, math.nan])
def test_quantise_refuses_what_is_not_a_number(time_ns):
    with pytest.raises(OverflowError, match="more than"):
        quantise(time_ns, 1000)


def test_quanta_to_ns_is_whole_where_it_can_be():
    whole = quanta_to_ns(5, 1000)
    assert (whole, type(whole)) == (5, int)
    assert quanta_to_ns(5, 200) == 1  # 5 * 200 ps
    assert quanta_to_ns(5, 500) == 2.5


@pytest.mark.parametrize(
    ("numerator", "denominator", "quotient"),
    [(0, 3, 0), (1, 3, 1), (3, 3, 1), (4, 3, 2)],
)
def test_ceil_div(numerator, denominator, quotient):
    assert ceil_div(numerator, denominator) == quotient


def test_format_bytes():
    assert format_bytes(3 * 2**29) == "1.50 GiB"
