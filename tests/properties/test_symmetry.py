"""Symmetries of graphs: what is said to cost the same does."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nest.ir import GraphTopology
from nest.ir.graph import CollectiveKind
from nest.topology import Block, ParallelGroups
from nest.topology.alphabeta import Line
from nest.topology.generators import generate
from nest.topology.graph import GraphNetwork, Prices
from nest.topology.graph.convert import topology_of
from nest.topology.graph.symmetry import Rotation
from tests.graphs import random_graph
from tests.properties.profiles import examples

#: With the rotations of their orders.
SYMMETRIC = {
    "ring:6": [(6, 1)],
    "torus:3x4": [(12, 3), (3, 1)],
    "torus:2x2x3": [(12, 4), (4, 2), (2, 1)],
    "tpu-v4:4x4x4": [(64, 16), (16, 8), (4, 2)],
    "all-to-all:devices=4": [(4, 1), (2, 1)],
    "leaf-spine:leaves=3,hosts=4,oversubscription=2": [
        (12, 4), (4, 1), (2, 1)
    ],
    "fat-tree:k=4": [(16, 4), (8, 4), (4, 2), (2, 1)],
    "rail:nodes=4,devices=2": [(8, 2), (4, 2), (2, 1)],
    "dgx:nodes=3,devices=2,ports=shared": [(6, 2), (2, 1)],
    "dgx1:nodes=2": [(16, 8), (8, 4), (2, 1)],
    "torus:2x3,wrap=no": [(6, 6), (2, 1)],
    "torus:5,wrap=no": [(5, 5)],
}  # fmt: skip


@pytest.mark.parametrize("text", SYMMETRIC)
def test_rotations_of_known_networks(text):
    network = GraphNetwork(topology_of(generate(text)))
    assert network.rotations == SYMMETRIC[text]
    assert network.period == SYMMETRIC[text][0][1]


@st.composite
def networks(draw):
    """Draw a symmetric graph, one of them broken at a place, or any one."""
    kind = draw(st.sampled_from(("symmetric", "broken", "any")))
    if kind == "any":
        return random_graph(
            lambda values: draw(st.sampled_from(values)),
            draw(st.sampled_from((2, 3, 4, 6, 8))),
        )
    texts = [text for text in SYMMETRIC if "tpu" not in text]
    topology = topology_of(generate(draw(st.sampled_from(texts))))
    return topology if kind == "symmetric" else draw(broken(topology))


@st.composite
def broken(draw, topology: GraphTopology):
    """Make a device differ from all others, in one thing."""
    devices = [node.id for node in topology.nodes if node.kind == "device"]
    device = draw(st.sampled_from(devices))
    how = draw(st.sampled_from(("passes on", "speed", "latency", "units")))
    if how == "passes on" and any(
        node.forwards for node in topology.nodes if node.kind == "device"
    ):
        how = "speed"  # they all do, and may have to
    if how == "passes on":
        return replace(
            topology,
            nodes=tuple(
                replace(node, forward=True) if node.id == device else node
                for node in topology.nodes
            ),
        )
    if how == "units":
        others = dict.fromkeys(devices, "others")
        return replace(topology, units=({**others, device: "own"},))
    field = "bandwidth_bytes_per_s" if how == "speed" else "latency_ns"
    return replace(
        topology,
        links=tuple(
            replace(link, **{field: getattr(link, field) * 1.5 + 1})
            if device in (link.source, link.target)
            else link
            for link in topology.links
        ),
    )


@st.composite
def blocks(draw, num_devices: int) -> Block:
    replicas = draw(st.integers(1, min(3, num_devices)))
    pitch = num_devices // replicas
    devices = draw(st.integers(1, pitch))
    return Block(replicas, pitch, draw(st.integers(0, pitch - devices)), devices)


@examples(200, full=3000)
@given(st.data(), networks())
def test_groups_cost_what_they_would_without_symmetry(data, topology):
    network = GraphNetwork(topology)
    block = data.draw(blocks(topology.max_devices))
    size, stride = data.draw(
        st.sampled_from(
            [
                (size, stride)
                for size in range(1, block.devices + 1)
                for stride in range(1, block.devices + 1)
                if block.devices % (size * stride) == 0
            ]
        )
    )
    groups = ParallelGroups(block, size, stride, data.draw(st.booleans()))
    ranks = list(groups.groups())
    found = network.groups(groups)
    assert network.groups(groups._replace(block=network.alike(block))) is found
    if len(ranks[0]) > 1:
        assert found == network.prices(ranks)


@examples(200, full=3000)
@given(st.data(), networks())
def test_routes_are_what_they_would_be_without_symmetry(data, topology):
    network = GraphNetwork(topology)
    block = data.draw(blocks(topology.max_devices))
    assert network.inside(block) == {network.link(block, block)}
    if block.offset:
        front = block.before(data.draw(st.integers(1, block.offset)))
        assert network.route(block, front) == {network.link(block, front)}


@examples(300, full=3000)
@given(st.data(), networks(), st.sampled_from(get_args(CollectiveKind)))
def test_groups_that_are_no_slower_are_so_whatever_they_do(data, topology, kind):
    network = GraphNetwork(topology)
    block = data.draw(blocks(topology.max_devices))
    strides = [n for n in (1, 2, 3) if block.devices % n == 0]
    here, there = (
        network.groups(
            ParallelGroups(
                block._replace(
                    offset=data.draw(st.integers(0, block.pitch - block.devices))
                ),
                block.devices // stride,
                stride,
            )
        )
        for stride in (data.draw(st.sampled_from(strides)) for _ in range(2))
    )
    if network.no_slower(here, there):
        for size_bytes in (1, 1e3, 1e6, 1e9, 1e12):
            fast, slow = (
                network.collective_ns(kind, groups, size_bytes)
                for groups in (here, there)
            )
            assert fast <= slow


#: A line of more latency and one of more bytes, and both at once.
LATE, STEEP, WORST = Line(2, 1.0), Line(1, 2.0), Line(2, 2.0)


@pytest.mark.parametrize(
    ("groups", "other", "expected"),
    [
        ((), (), True),
        ((), (LATE,), True),
        ((LATE,), (), False),
        ((LATE,), (LATE,), True),
        ((LATE,), (STEEP,), False),
        ((STEEP,), (LATE,), False),
        ((LATE,), (WORST,), True),
        ((STEEP,), (WORST,), True),
        ((WORST,), (STEEP,), False),
        ((WORST, LATE), (WORST,), True),
        # Small buffers would take longer.
        ((LATE,), (WORST, STEEP), False),
        ((STEEP, LATE), (WORST, STEEP), True),
    ],
)
def test_groups_are_no_slower_whose_lines_are_below_all(groups, other, expected):
    network = GraphNetwork(topology_of(generate("ring:6")))
    assert network.no_slower(Prices(half=groups), Prices(half=other)) == expected


@examples(100, full=1000)
@given(st.data(), networks())
def test_no_sender_of_any_size_is_faster_than_the_fastest(data, topology):
    network = GraphNetwork(topology)
    block = data.draw(blocks(topology.max_devices))
    if not block.offset:
        return
    sizes = data.draw(st.sets(st.integers(1, block.offset), min_size=1))
    (least,) = network.fastest(block, sorted(sizes), forward=True)
    for size in sizes:
        (link,) = network.route(block, block.before(size))
        assert least.alpha_ns <= link.alpha_ns
        assert least.beta >= link.beta


@examples(200, full=2000)
@given(st.data(), st.sampled_from(list(SYMMETRIC)))
def test_a_device_unlike_all_others_breaks_every_rotation(data, text):
    topology = data.draw(broken(topology_of(generate(text))))
    count = topology.max_devices
    assert GraphNetwork(topology).rotations == [(count, count)]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("ring:6", 2),
        ("torus:3x4", 3),
        ("leaf-spine:leaves=3,hosts=4,oversubscription=2", 2),
    ],
)
def test_groups_that_turn_into_each_other_have_one_key(text, size):
    network = GraphNetwork(topology_of(generate(text)))
    keys = [
        network.groups(ParallelGroups(Block(1, 0, first, size), size, 1))
        for first in range(0, network.num_devices, size)
    ]
    assert all(key is keys[0] for key in keys)


def test_turning_back_and_forth_moves_nothing():
    rotation, ranks = Rotation(6, 2), np.arange(12)
    assert rotation.turned(ranks, 1).tolist() == [
        2, 3, 4, 5, 0, 1, 8, 9, 10, 11, 6, 7
    ]  # fmt: skip
    assert (rotation.turned(rotation.turned(ranks, 2), -2) == ranks).all()
    assert rotation.home(ranks, 11)[11] == 7


@pytest.mark.parametrize(
    ("ranges", "steps"),
    [
        ([(4, 6)], 2),
        ([(11, 12), (2, 3)], 1),
        ([(9, 12), (1, 3)], 0),
        # Devices 5 and 6 are in two runs.
        ([(5, 7), (8, 10)], 0),
    ],
)
def test_blocks_turn_to_the_front_as_far_as_all_of_them_stay_whole(ranges, steps):
    assert Rotation(6, 2).steps_back(ranges) == steps
