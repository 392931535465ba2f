"""Zones of a replica, held against every place of every stage."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from nest.cost.space import BatchSplit
from nest.ir import DeviceRange
from nest.search.stages.options import min_memory_bytes
from nest.search.stages.zones import MAX_ZONES, Site, Zones
from nest.topology.protocol import Block
from tests.builders import make_cost, make_problem


def cluster_of(text: str):
    """Return a cluster whose devices are of the types named by letters."""
    cluster = make_problem({"a": make_cost()}, devices=len(text)).cluster
    device = replace(cluster.device, name=text[0])
    others = tuple(
        DeviceRange(
            first=place,
            count=1,
            device=replace(device, name=name, memory_bytes=ord(name)),
        )
        for place, name in enumerate(text)
        if name != text[0]
    )
    return replace(cluster, device=device, others=others)


def zones_of(text: str, replicas: int) -> Zones:
    split = BatchSplit(replicas, 1, 1, len(text) // replicas)
    return Zones(cluster_of(text), split)


#: Types of the devices, replicas, and where the zones begin.
CASES = [
    ("aaaaaa", 1, [0]),
    ("aaabbb", 1, [0, 3]),
    # Every replica has devices of one type: all stages have both.
    ("aaabbb", 2, [0]),
    # Two replicas of three devices: ab, then ac.
    ("aabaac", 2, [0, 2]),
    ("aabbbbcc", 1, [0, 2, 6]),
    ("aabbbbcc", 2, [0, 2]),
    ("aabbaabb", 1, [0, 2, 4, 6]),
    # What is left over belongs to no replica.
    ("aaab", 3, [0]),
]


@pytest.mark.parametrize(("text", "replicas", "starts"), CASES)
def test_stages_of_a_span_stand_where_the_window_says(text, replicas, starts):
    zones = zones_of(text, replicas)
    pitch = len(text) // replicas
    assert zones.starts == starts
    assert zones.ends == [*starts[1:], pitch]
    names = [device.name for device in cluster_of(text).types]
    for span, site in zip(zones.spans, zones.sites, strict=True):
        for size in range(1, pitch + 1):
            low, high = zones.window(span, np.array([size]))
            there = [
                offset
                for offset in range(pitch - size + 1)
                if zones.starts[span.first] <= offset < zones.ends[span.first]
                and zones.starts[span.last] < offset + size <= zones.ends[span.last]
            ]
            assert list(range(low[0], high[0] + 1)) == there
            for offset in there:
                own = [
                    {names.index(text[device]) for device in range(*place)}
                    for place in Block(replicas, pitch, offset, size).ranges()
                ]
                assert set(site.types) == set.union(*own)
                assert all({number} in own for number in site.alone)


def test_a_type_is_alone_only_where_a_replica_has_no_other():
    """Replicas aab and bcc: devices 0 are a and b, devices 2 b and c."""
    zones = zones_of("aabbcc", 2)
    assert zones.starts == [0, 1, 2]
    assert zones.sites == [
        Site((0, 1), (0, 1)),
        Site((0, 1, 2), (0,)),
        Site((0, 1, 2), ()),
        Site((0, 2), (0, 2)),
        Site((0, 1, 2), (2,)),
        Site((1, 2), (1, 2)),
    ]


@pytest.mark.parametrize("prices", [(0, 0, 0), (5, 1, 3), (2, 7, 9), (4, 0, 0)])
def test_a_stage_pays_for_its_devices_at_the_cheapest_place(prices):
    text = "aabbbc"
    zones = zones_of(text, 1)
    of_device = [prices["abc".index(name)] for name in text]
    assert zones.paid(prices).tolist() == [sum(of_device[:end]) for end in range(7)]
    for span in zones.spans:
        for size in range(1, 7):
            low, high = zones.window(span, np.array([size]))
            costs = [
                sum(of_device[offset : offset + size])
                for offset in range(low[0], high[0] + 1)
            ]
            if costs:
                found = zones.charge(span, np.array([size]), prices)
                assert found.tolist() == [min(costs)]


def test_many_zones_are_taken_for_one_of_any_type():
    zones = zones_of("ab" * 3, 1)
    assert len("ab" * 3) > MAX_ZONES
    assert (zones.starts, zones.ends) == ([0], [6])
    assert zones.sites == [Site(None, ())]
    assert zones_of("ab" * 2, 1).starts == [0, 1, 2, 3]


def test_a_stage_is_as_small_as_its_smallest_device():
    cluster = cluster_of("zyx")
    cluster = replace(cluster, device=replace(cluster.device, memory_bytes=200))
    assert min_memory_bytes(cluster, (0, 1)) == ord("y")
    assert min_memory_bytes(cluster, (0, 1, 2)) == ord("x")
    assert min_memory_bytes(cluster, None) == 200
