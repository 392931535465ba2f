"""Prices on random graphs: a second reading, bounds, trees, equal networks."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nest.ir import GraphTopology, Hierarchy, Level
from nest.ir.graph import COLLECTIVES
from nest.topology import Block, HierarchyNetwork, ParallelGroups
from nest.topology.graph import GraphNetwork
from nest.topology.graph.bounds import bound_ns
from tests.graphs import make_graph, random_graph
from tests.independent import graph as independent
from tests.properties.profiles import examples

KINDS = st.sampled_from(COLLECTIVES)
SIZES = st.sampled_from((1, 3, 40, 200, 12_345, 10**6))


@st.composite
def cases(draw):
    """Draw a graph and groups in any order, some of other sizes."""
    topology = random_graph(
        lambda values: draw(st.sampled_from(values)),
        draw(st.sampled_from((2, 3, 4, 5, 6, 8, 9, 12))),
    )
    places = list(range(topology.max_devices))
    if draw(st.booleans()):
        places = draw(st.permutations(places))
    size = draw(st.integers(2, len(places)))
    groups = [
        places[first : first + size]
        for first in range(0, len(places), size)[: draw(st.integers(1, 4))]
    ]
    return topology, [group for group in groups if len(group) > 1]


@examples(400, full=4000)
@given(cases(), KINDS, SIZES)
def test_every_price_is_what_the_page_says(case, kind, size):
    """Exact fractions, path by path, against sums of floats."""
    topology, groups = case
    found = GraphNetwork(topology).offered_ns(kind, groups, size)
    assert found == pytest.approx(
        independent.offered(topology, kind, groups, size), rel=2e-12
    )


@examples(200, full=2000)
@given(cases(), KINDS, SIZES)
def test_plans_pay_the_best_price(case, kind, size):
    topology, groups = case
    network = GraphNetwork(topology)
    assert network.collective_ns(kind, network.prices(groups), size) == min(
        network.offered_ns(kind, groups, size).values()
    )


@examples(400, full=4000)
@given(cases(), KINDS, SIZES)
def test_no_price_is_below_the_bound(case, kind, size):
    topology, groups = case
    network = GraphNetwork(topology)
    bound = network.launch_ns + bound_ns(
        network.routes, kind, groups, size, network.places
    )
    assert bound > 0
    for time_ns in network.offered_ns(kind, groups, size).values():
        assert time_ns >= bound


@examples(200, full=2000)
@given(cases(), KINDS, SIZES)
def test_more_groups_are_never_faster(case, kind, size):
    """What the search relies on: one replica's groups are a bound."""
    topology, groups = case
    network = GraphNetwork(topology)
    together = min(network.offered_ns(kind, groups, size).values())
    for group in groups:
        assert min(network.offered_ns(kind, [group], size).values()) <= (
            together
        )


@examples(200, full=2000)
@given(cases(), KINDS, SIZES)
def test_no_price_exceeds_the_longest(case, kind, size):
    topology, groups = case
    network = GraphNetwork(topology)
    longest = network.longest_ns(size, topology.max_devices)
    assert min(network.offered_ns(kind, groups, size).values()) <= longest


# Trees


@st.composite
def trees(draw):
    """Draw a tree without latency, and groups that fill it."""
    fan_outs = draw(
        st.lists(st.integers(1, 4), min_size=1, max_size=3).filter(
            lambda found: 2 <= math.prod(found) <= 24
        )
    )
    tree = Hierarchy(
        levels=tuple(
            Level(
                fan_out=fan_out,
                bandwidth_bytes_per_s=draw(
                    st.sampled_from((8e9, 4e9, 2e9, 1e9, 5e8))
                ),
            )
            for fan_out in fan_outs
        )
    )
    n = tree.capacities[-1]
    size, stride = draw(
        st.sampled_from(
            [
                (size, stride)
                for size in range(2, n + 1)
                for stride in range(1, n + 1)
                if n % (size * stride) == 0
            ]
        )
    )
    return tree, ParallelGroups(Block(1, 0, 0, n), size, stride)


def pooled(tree: Hierarchy) -> GraphTopology:
    """Return the same wires: a unit's uplink is that of all its devices."""
    n = tree.capacities[-1]
    devices = [f"d{i}" for i in range(n)]
    speeds = [level.bandwidth_bytes_per_s for level in tree.levels]
    links = [
        (name, f"0.{i // tree.capacities[0]}", 0.0, speeds[0])
        for i, name in enumerate(devices)
    ]
    for level in range(1, len(speeds)):
        below, here = tree.capacities[level - 1 : level + 1]
        links += [
            (
                f"{level - 1}.{unit}",
                f"{level}.{unit * below // here}",
                0.0,
                below * speeds[level],
            )
            for unit in range(n // below)
        ]
    return make_graph(
        devices,
        links,
        units=tuple(
            {x: f"{i // size}" for i, x in enumerate(devices)}
            for size in tree.capacities[:-1]
        ),
    )


@examples(300, full=3000)
@given(trees(), KINDS)
def test_a_tree_is_never_cheaper_than_its_wires(drawn, kind):
    """A level's fair share is the most that its links can carry."""
    tree, groups = drawn
    level, wires = HierarchyNetwork(tree), GraphNetwork(pooled(tree))
    fair = level.collective_ns(kind, level.groups(groups), 10**6)
    shared = wires.collective_ns(kind, wires.groups(groups), 10**6)
    assert fair >= shared * (1 - 1e-9)


@examples(300, full=3000)
@given(trees(), KINDS)
def test_a_tree_is_as_fast_as_its_wires_within_one_level(drawn, kind):
    """Groups of one shape that meet on one level fill its links."""
    tree, groups = drawn
    level, wires = HierarchyNetwork(tree), GraphNetwork(pooled(tree))
    shapes = level.groups(groups)
    fair = level.collective_ns(kind, shapes, 10**6)
    shared = wires.collective_ns(kind, wires.groups(groups), 10**6)
    counts = [shape.counts or () for shape in shapes]
    if len(counts) == 1 and sum(count > 1 for count in counts[0]) == 1:
        assert fair == pytest.approx(shared, rel=1e-9)


# Folded Clos networks


@st.composite
def leaf_spines(draw):
    """Draw leaves on equal spines, and the tree with one uplink for all."""
    leaves, per_leaf, spines = (draw(st.integers(1, 4)) for _ in range(3))
    devices = [f"d{i}" for i in range(max(2, leaves * per_leaf))]
    leaf_of = {x: f"leaf{i // per_leaf}" for i, x in enumerate(devices)}
    down = (
        draw(st.sampled_from((0.0, 5.0))),
        draw(st.sampled_from((1e9, 3e9))),
    )
    up = (draw(st.sampled_from((0.0, 7.0))), draw(st.sampled_from((1e9, 3e8))))
    links = [(name, leaf, *down) for name, leaf in leaf_of.items()]
    found = []
    for number, factor in ((spines, 1), (1, spines)):
        tops = [
            (leaf, f"spine{i}", up[0], factor * up[1])
            for leaf in dict.fromkeys(leaf_of.values())
            for i in range(number)
        ]
        found.append(make_graph(devices, links + tops, units=(leaf_of,)))
    places = draw(st.permutations(range(len(devices))))
    size = draw(st.integers(2, len(places)))
    groups = [
        places[first : first + size]
        for first in range(0, len(places) - size + 1, size)
    ]
    return found, groups


@examples(300, full=3000)
@given(leaf_spines(), KINDS, SIZES)
def test_a_folded_clos_is_a_tree_with_pooled_uplinks(drawn, kind, size):
    topologies, groups = drawn
    clos, tree = (
        GraphNetwork(topology).offered_ns(kind, groups, size)
        for topology in topologies
    )
    assert clos == pytest.approx(tree, rel=2e-12)
