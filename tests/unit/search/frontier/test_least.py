"""The least memory on devices of several types, worked out by hand.

One layer of 10 + 20 ns keeps 100 bytes. The first of two devices reserves 20 bytes, the
second none. The plan is on the first and holds 120 bytes, but its path, which has no
device range, holds 100.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from nest.ir import DeviceRange
from tests.builders import make_cost, make_problem, with_cluster
from tests.frontiers import Pairs, enumerated, searched


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize(
    ("first_bytes", "frontier"), [(119, []), (120, [(120, 30)]), (200, [(120, 30)])]
)
def test_a_path_may_hold_less_than_its_plan(
    schedule: str, first_bytes: int, frontier: Pairs
) -> None:
    layers = {"a": make_cost(10, 20, kept_bytes=100)}
    problem = make_problem(layers, devices=2, replicas=(1,), schedule=schedule)
    device = replace(problem.cluster.device, memory_bytes=first_bytes, reserve_bytes=20)
    other = replace(device, name="other", memory_bytes=200, reserve_bytes=0)
    others = (DeviceRange(first=1, count=1, device=other),)
    problem = with_cluster(problem, device=device, others=others)
    assert searched(problem) == enumerated(problem) == frontier
