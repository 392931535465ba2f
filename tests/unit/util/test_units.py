"""Rounding and units."""

import math

import pytest

from nest.units import (
    MAX_TERM,
    ceil_div,
    format_bytes,
    format_sizes,
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


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (3 * 2**29, "1.50 GiB"),
        (80 * 2**30, "80.00 GiB"),
        # Half of 0.01 GiB is 2^30 / 200 = 5,368,709.12 bytes, 5.12 MiB.
        (5_368_710, "0.01 GiB"),
        (5_368_709, "5.12 MiB"),
        (2**20, "1.00 MiB"),
        (2**20 - 512, "1023.50 KiB"),
        (2**10, "1.00 KiB"),
        (1023, "1023 bytes"),
        (1, "1 byte"),
        (0, "0 bytes"),
        (-1, "-1 byte"),
        (-(2**29), "-0.50 GiB"),
    ],
)
def test_format_bytes(size_bytes: int, text: str) -> None:
    assert format_bytes(size_bytes) == text


@pytest.mark.parametrize(
    ("low", "high", "decimals", "text"),
    [
        (2**30, 2**31, 2, "1.00 – 2.00 GiB"),
        (2**30, 2**30 + 1, 2, "1.00 GiB"),
        (2**20, 2**31, 2, "1.00 MiB – 2.00 GiB"),
        (0, 7, 2, "0 – 7 bytes"),
        (1, 7, 2, "1 byte – 7 bytes"),
        # Half of 0.1 GiB is 51.2 MiB.
        (51 * 2**20, 52.0 * 2**20, 1, "51.0 MiB – 0.1 GiB"),
    ],
)
def test_sizes_from_to(low: float, high: float, decimals: int, text: str) -> None:
    assert format_sizes(low, high, decimals) == text
