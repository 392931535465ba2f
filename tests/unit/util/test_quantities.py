"""Quantities with units."""

from __future__ import annotations

from fractions import Fraction

import pytest

from nest.util import quantities as q
from tests.rows import rows


@pytest.mark.parametrize(
    ("text", "kind", "amount"),
    [
        ("128 MiB", q.SIZE, 2**27),
        ("32GB", q.SIZE, 32 * 10**9),
        ("7 B", q.SIZE, 7),
        ("1200 GB/s", q.RATE, 12 * 10**11),
        ("4 GiB/s", q.RATE, 2**32),
        ("100 Gbit/s", q.RATE, 125 * 10**8),
        ("400Gb/s", q.RATE, 5 * 10**10),
        ("400Gbps", q.RATE, 5 * 10**10),
        ("400GB/s", q.RATE, 4 * 10**11),
        ("1.05 GHz", q.FREQUENCY, 1_050_000_000),
        ("0.1 us", q.TIME, 100),
        ("278.8 mm2", q.AREA, 278_800_000 * 10**6),
        ("1 mm²", q.AREA, 10**12),
        ("760.041386 um2", q.AREA, 760_041_386),
        ("300 W", q.POWER, 300_000),
        ("1.1 W/mm2", q.POWER_DENSITY, 1_100_000),
        ("110 W/cm²", q.POWER_DENSITY, 1_100_000),
        ("9000 USD", q.MONEY, 9 * 10**9),
        ("7 USD/GB", q.MONEY_PER_SIZE, 7 * 10**6),
        ("0.1 /cm2", q.DENSITY, 1000),
        ("0.1/cm2", q.DENSITY, 1000),
        ("300 mm", q.LENGTH, 300_000),
    ],
)
def test_amounts_are_exact(text: str, kind: q.Kind, amount: int) -> None:
    assert q.read_quantity(text, kind) == amount
    assert q.read_whole(text, kind) == amount


def test_a_number_is_in_the_unit_that_is_expected() -> None:
    assert q.read_in("25", q.RATE, "GB/s") == 25
    assert q.read_in("200Gb/s", q.RATE, "GB/s") == 25
    with pytest.raises(ValueError, match="could not convert"):
        q.read_in("200 Hz", q.RATE, "GB/s")


def test_keys_of_documents_say_what_has_units() -> None:
    document = {
        "memory_bytes": "141 GB",
        "levels": [{"bandwidth_bytes_per_s": "400Gb/s", "latency_ns": "1 B"}],
        "name": "80GB",
        "reserve_bytes": "some",
        "fan_out": 2,
    }
    assert q.without_units(document) == {
        **document,
        "memory_bytes": 141 * 10**9,
        "levels": [{"bandwidth_bytes_per_s": 5e10, "latency_ns": "1 B"}],
    }


def test_units_may_be_parts_of_what_is_counted() -> None:
    assert q.read_quantity("1 bit/s", q.RATE) == Fraction(1, 8)
    with pytest.raises(ValueError, match="whole number of bytes/s, got '1 bit"):
        q.read_whole("1 bit/s", q.RATE)


def test_what_each_kind_counts_is_one_of_its_units() -> None:
    """So every text that is printed can be read again."""
    for kind in (
        *(q.SIZE, q.RATE, q.FREQUENCY, q.TIME),
        *(q.LENGTH, q.POWER, q.POWER_DENSITY),
    ):
        assert kind.units[kind.counted.replace("bytes", "B")] == 1
        q.read_whole(kind.example, kind)


@pytest.mark.parametrize(("value", "message"), rows("quantities", "refused"))
def test_what_is_refused(value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        q.read_whole(value, q.SIZE)
