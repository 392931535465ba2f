"""Head-room: bytes off every type of devices, or one line why not."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from nest.cost.score import score
from nest.errors import InvalidOptionError
from nest.ir import Device, DeviceRange
from nest.present.screen import fits_text
from nest.solvers.base import SolverOutput, Status
from nest.solvers.judge import over_memory
from nest.uncertainty.headroom import (
    DEFAULT_HEADROOM,
    chance_text,
    fullest_device,
    with_headroom,
    within_memory,
)
from nest.uncertainty.intervals import stored_deviations
from tests.builders import SINGLE, make_cost, make_plan, make_problem


def on(memory_bytes: int, other_bytes: int):
    """Two devices of one type, one of another."""
    problem = make_problem({"a": make_cost(1, 1)}, devices=3, memory_bytes=memory_bytes)
    second = Device(name="second", memory_bytes=other_bytes)
    others = (DeviceRange(first=2, count=1, device=second),)
    cluster = replace(problem.cluster, others=others)
    return replace(problem, cluster=cluster)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("1kB", (9_000, 4_000)),
        ("1KiB", (8_976, 3_976)),
        ("0.5 kB", (9_500, 4_500)),
        # A third of a byte more is a whole one: 3.3 %, 330 and 165.
        ("3.3%", (9_670, 4_835)),
        ("0.001%", (9_999, 4_999)),
        ("0%", (10_000, 5_000)),
        ("0", (10_000, 5_000)),
    ],
)
def test_every_type_keeps_its_part_free(text, left):
    cluster = with_headroom(on(10_000, 5_000), text).cluster
    assert tuple(device.memory_bytes for device in cluster.types) == left


@pytest.mark.parametrize("text", ["8", "8 gb", "-1GB", "1e3kB", "%", "8GB "])
def test_other_texts_are_refused(text):
    if text == "8GB ":
        assert with_headroom(on(10**10, 10**10), text)
        return
    with pytest.raises(
        InvalidOptionError,
        match=r"--headroom: expected a size such as 8GB or 8GiB, or a part "
        rf"such as 10%, got '{text}'; correct the value",
    ):
        with_headroom(on(10_000, 5_000), text)


@pytest.mark.parametrize("text", ["5kB", "100%"])
def test_a_device_must_have_more(text):
    """5000 bytes are 4.88 KiB."""
    with pytest.raises(
        InvalidOptionError,
        match=rf"--headroom {text}: expected less than the 4\.88 KiB that "
        r"plans may use of a device \((second|device)\), got 4\.88 KiB; leave "
        r"less free",
    ):
        with_headroom(on(10_000, 5_000), text)


def test_plans_within_the_upper_end_of_their_memory():
    """e^0.25 is 1.2840: 7788 of 10,000 bytes, 3894 of 5,000."""
    numbers = stored_deviations()
    memory = replace(numbers.memory, high_90=0.25)
    wide = replace(numbers, memory=memory, memory_kinds={})
    found = within_memory(on(10_000, 5_000), wide)
    assert [x.memory_bytes for x in found.cluster.types] == [7788, 3894]
    kinds = {"unknown": replace(numbers.memory, high_90=0.5)}
    roomy = within_memory(on(10_000, 5_000), replace(wide, memory_kinds=kinds))
    assert [x.memory_bytes for x in roomy.cluster.types] == [6065, 3032]
    # What is kept free is there for it, but no plan may count on it.
    roomy = within_memory(with_headroom(on(10_000, 5_000), "10%"), wide)
    assert [x.memory_bytes for x in roomy.cluster.types] == [7788, 3894]
    roomy = within_memory(with_headroom(on(10_000, 5_000), "50%"), wide)
    assert [x.memory_bytes for x in roomy.cluster.types] == [5000, 2500]
    full = on(10_000, 5_000)
    device = replace(full.cluster.device, reserve_bytes=7789)
    cluster = replace(full.cluster, device=device)
    assert within_memory(replace(full, cluster=cluster), wide) is None


def test_the_reserve_is_nothing_that_plans_may_use():
    problem = on(10 * 2**30, 5 * 2**30)
    device = replace(problem.cluster.device, reserve_bytes=3 * 2**30)
    cluster = replace(problem.cluster, device=device, others=())
    problem = replace(problem, cluster=cluster)
    assert with_headroom(problem, "6GiB").cluster.device.memory_bytes == 4 << 30
    with pytest.raises(
        InvalidOptionError,
        match=r"--headroom 8GiB: expected less than the 7\.00 GiB that plans "
        r"may use of a device \(device\), got 8\.00 GiB; leave less free",
    ):
        with_headroom(problem, "8GiB")


def test_the_default_is_the_upper_end_of_the_50_percent_interval():
    """A plan that leaves it needs at most the whole memory there."""
    whole = 80 * 10**9
    usable = with_headroom(on(whole, whole), DEFAULT_HEADROOM).cluster
    upper = math.exp(stored_deviations().memory.high_50)
    assert whole * 0.9998 < usable.device.memory_bytes * upper <= whole


@pytest.mark.parametrize(
    ("probability", "text"),
    [
        (0.0, "1 time in 100"),
        (0.04, "1 time in 20"),
        (0.52, "1 time in 2"),
        (0.59, "3 times in 5"),
        (0.74, "3 times in 4"),
        (0.94, "19 times in 20"),
        (1.0, "99 times in 100"),
    ],
)
def test_chances_are_those_that_people_say(probability, text):
    assert chance_text(probability) == text


def test_the_fullest_device_has_its_own_numbers():
    """The first stage needs more, the second has less to spare."""
    costs = {
        "a": make_cost(1, 1, kept_bytes=1000),
        "b": make_cost(1, 1, kept_bytes=400),
    }
    problem = make_problem(costs, edges=(("a", "b", 0),), devices=2, memory_bytes=2000)
    second = Device(name="second", memory_bytes=420, headroom_bytes=30)
    others = (DeviceRange(first=1, count=1, device=second),)
    problem = replace(problem, cluster=replace(problem.cluster, others=others))
    plan = make_plan(("a", SINGLE), ("b", SINGLE))
    verdict = score(problem, plan)
    assert fullest_device(problem, plan, verdict) == ("yes", 400, 450, 420)
    small = replace(second, memory_bytes=399)
    others = (DeviceRange(first=1, count=1, device=small),)
    problem = replace(problem, cluster=replace(problem.cluster, others=others))
    verdict = score(problem, plan)
    assert fullest_device(problem, plan, verdict) == ("yes", 400, 429, 399)
    claim = SolverOutput(status=Status.FEASIBLE, plan=plan)
    judged = over_memory(problem, claim, plan, verdict)
    assert judged.over_memory_bytes == 1
    assert judged.detail == "leaves 1 byte less than the headroom"
    assert fits_text(problem, plan, verdict, None) == (
        "yes, as predicted: 400 of 429 bytes on the fullest device, 1 byte "
        "more than --headroom leaves"
    )
    others = (replace(others[0], device=replace(small, headroom_bytes=0)),)
    problem = replace(problem, cluster=replace(problem.cluster, others=others))
    assert fullest_device(problem, plan, verdict) == ("no", 400, 399, 399)
    judged = over_memory(problem, claim, plan, score(problem, plan))
    assert judged.over_memory_bytes == 1
    assert judged.detail == "1 byte (0.3 %) too much memory"
