"""Prices of devices: one for all types, or one for each."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

import nest
from nest.errors import InvalidOptionError
from nest.ir import Device, DeviceRange
from nest.requests.prices import mean_price
from tests.builders import make_cost, make_problem


def two_types() -> nest.Problem:
    """Return three devices of one type and one of another."""
    problem = make_problem({"a": make_cost(1, 1)}, devices=4)
    other = Device(name="other", memory_bytes=10**9)
    others = (DeviceRange(first=3, count=1, device=other),)
    return replace(problem, cluster=replace(problem.cluster, others=others))


@pytest.mark.parametrize(
    ("text", "price"),
    [
        (None, None),
        ("2", 2.0),
        ("device=2,other=4", 2.5),
        ("dev=2,4", 4.0),  # the last entry is for all types
        ("device=2", None),
    ],
)
def test_the_mean_price_of_a_device(text: str | None, price: float | None) -> None:
    assert mean_price(two_types(), text) == price


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tpu=1", r"--price tpu=1: expected TYPE=VALUE with a type of the "),
        ("device=0", r"--price device=0: expected a finite number of dollars"),
        ("other=1,other=2", r"--price other=2: expected other once, got it "),
    ],
)
def test_wrong_prices_are_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        mean_price(two_types(), text)
