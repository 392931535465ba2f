"""Prices on random graphs: a second reading, bounds, trees, equal networks."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nest.errors import InvalidProblemError
from nest.ir import Hierarchy, Level
from nest.ir.graph import COLLECTIVES
from nest.topology import Block, HierarchyNetwork, ParallelGroups
from nest.topology.graph import GraphNetwork
from nest.topology.graph.bounds import bound_ns
from nest.topology.graph.convert import graph_of
from tests.builders import make_levels
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
    assert GraphNetwork(topology).offered_ns(kind, groups, size) == pytest.approx(
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
        assert min(network.offered_ns(kind, [group], size).values()) <= (together)


@examples(200, full=2000)
@given(cases(), KINDS, SIZES)
def test_no_price_exceeds_the_longest(case, kind, size):
    topology, groups = case
    network = GraphNetwork(topology)
    longest = network.longest_ns(size, topology.max_devices)
    assert min(network.offered_ns(kind, groups, size).values()) <= longest


# Trees


@st.composite
def trees(
    draw, algorithms=("best", "nccl"), peers=(None, None, 1e9, 7e8, 3e8), most_levels=3
):
    """Draw a tree, and groups that tile it."""
    fan_outs = draw(
        st.lists(st.integers(1, 4), min_size=1, max_size=most_levels).filter(
            lambda found: 2 <= math.prod(found) <= 24
        )
    )
    steps_ns = st.sampled_from((0.0, 1.0, 10.0, 100.0))
    speeds = st.sampled_from((8e9, 4e9, 3e9, 2e9, 1e9, 5e8))
    latency_ns, levels = 0.0, []
    for fan_out in fan_outs:
        latency_ns += draw(steps_ns)
        levels.append(
            Level(
                fan_out=fan_out,
                bandwidth_bytes_per_s=draw(speeds),
                latency_ns=latency_ns,
                peer_bandwidth_bytes_per_s=draw(st.sampled_from(peers)),
            )
        )
    tree = Hierarchy(levels=tuple(levels), algorithms=draw(st.sampled_from(algorithms)))
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


def all_levels(tree, **fields):
    """Return a tree with the same in all levels."""
    return msgspec.structs.replace(
        tree,
        levels=tuple(msgspec.structs.replace(level, **fields) for level in tree.levels),
    )


def even_shape(tree, groups):
    """Return the shape of groups that all fill units evenly, or skip."""
    network = HierarchyNetwork(tree)
    shapes = network.groups(groups)
    assume(len(shapes) == 1)
    (shape,) = shapes
    assume(network.share(shape).even)
    return shape


def meet_alike(tree, groups):
    """Whether groups in a member meet there in the same members of its unit.

    Asked where pairs of members have links of their own.
    """
    below = 1
    for level, here in zip(tree.levels, tree.capacities, strict=True):
        others = {}
        if level.peer_bandwidth_bytes_per_s is not None:
            for ranks in groups.groups():
                for unit in {rank // here for rank in ranks}:
                    members = frozenset(
                        rank // below for rank in ranks if rank // here == unit
                    )
                    for member in members:
                        if others.setdefault(member, members) != members:
                            return False
        below = here
    return True


def tree_prices(tree, kind, shape, size):
    """Return the times of all algorithms of a tree, by the graph's names."""
    network = HierarchyNetwork(tree)
    found = {
        name: min(launch_ns + line.time_ns(size) for launch_ns, line in lines)
        for name, lines in network.offered(kind, shape).items()
    }
    if "rings" in found:
        one_level = len(shape.levels) == 1
        found["ring" if one_level else "rotated-rings"] = found.pop("rings")
    return found


#: What only trees have: levels one after the other, other messages of Bruck's, trees
#: of NCCL.
OWN = {"bruck", "hierarchical", "trees"}


@examples(400, full=4000)
@given(trees(("best",)), KINDS, SIZES)
def test_a_tree_costs_what_its_wires_cost(drawn, kind, size):
    """Every algorithm to the last bit; and graphs know better ones."""
    tree, groups = drawn
    shape = even_shape(tree, groups)
    assume(meet_alike(tree, groups))
    wires = GraphNetwork(graph_of(tree)).offered_ns(kind, list(groups.groups()), size)
    found = tree_prices(tree, kind, shape, size)
    like = {name: time for name, time in found.items() if name not in OWN}
    assert like == {name: wires[name] for name in like}
    if kind != "all-to-all":
        best = min(found.values(), default=math.inf)
        assert min(wires.values()) <= best * (1 + 1e-11)


@examples(200, full=2000)
@given(trees(("nccl",), peers=(None,)), KINDS, SIZES, st.data())
def test_rings_of_nccl_cost_what_rotated_rings_cost(drawn, kind, size, data):
    tree, groups = drawn
    shape = even_shape(tree, groups)
    launches = [data.draw(st.sampled_from((0.0, 3.0))) for _ in tree.levels]
    tree = msgspec.structs.replace(
        tree,
        levels=tuple(
            msgspec.structs.replace(level, launch_ns=launch_ns)
            for level, launch_ns in zip(tree.levels, launches, strict=True)
        ),
    )
    wires = msgspec.structs.replace(
        graph_of(tree), launch_ns=launches[len(shape.levels) - 1]
    )
    prices = GraphNetwork(wires).offered_ns(kind, list(groups.groups()), size)
    found = tree_prices(tree, kind, shape, size)
    for name in found.keys() - OWN:
        assert found[name] == prices[name]


@examples(200, full=2000)
@given(trees(("nccl",), (1e9, 7e8, 3e8), 1), KINDS, SIZES)
def test_rings_of_nccl_use_a_mesh_as_direct_messages_do(drawn, kind, size):
    tree, groups = drawn
    shape = even_shape(tree, groups)
    wires = GraphNetwork(graph_of(tree))
    direct = wires.offered_ns(kind, list(groups.groups()), size)["direct"]
    (found,) = tree_prices(tree, kind, shape, size).values()
    assert found == pytest.approx(direct, rel=1e-11)


@examples(300, full=3000)
@given(trees(), KINDS, SIZES)
def test_a_tree_is_never_below_the_bound_of_its_wires(drawn, kind, size):
    """Groups of any shape: its share is the most that a group gets.

    Those of different shapes wait for each other on a graph: for the latency
    of one, and for the bytes of another one. So there only bytes count.
    """
    tree, groups = drawn
    if len(HierarchyNetwork(tree).groups(groups)) > 1:
        tree = all_levels(tree, latency_ns=0.0)
    level, wires = HierarchyNetwork(tree), GraphNetwork(graph_of(tree))
    ranks = list(groups.groups())
    time_ns = level.collective_ns(kind, level.groups(groups), size)
    bound = bound_ns(wires.routes, kind, ranks, size, wires.places)
    assert time_ns >= bound * (1 - 1e-11)
    # On links between pairs, NCCL has other rings than graphs have.
    others = tree.algorithms == "nccl" and tree != all_levels(
        tree, peer_bandwidth_bytes_per_s=None
    )
    prices = wires.offered_ns(kind, ranks, size)
    found = [tree_prices(tree, kind, shape, size) for shape in level.groups(groups)]
    for name in ("direct",) if others else ("direct", "ring"):
        # All rings of NCCL are rings of the graph, by either name.
        like = "rotated-rings" if name == "ring" else name
        fair = max(of.get(name, of.get(like, math.inf)) for of in found)
        assert fair >= prices.get(name, 0.0) * (1 - 1e-11)


def test_links_between_other_pairs_idle():
    """Three pairs on a mesh, groups of 2 ranks 3 apart: twice too much.

    The links between pairs have 2·1e9 bytes/s, and each of three groups uses
    another one alone; the share of a rank is 1e9.
    """
    tree = Hierarchy(
        levels=(
            Level(fan_out=2, bandwidth_bytes_per_s=1e12),
            Level(
                fan_out=3, bandwidth_bytes_per_s=1e12, peer_bandwidth_bytes_per_s=1e9
            ),
        )
    )
    groups = ParallelGroups(Block(1, 0, 0, 6), 2, 3)
    assert not meet_alike(tree, groups)
    level, wires = HierarchyNetwork(tree), GraphNetwork(graph_of(tree))
    key = level.groups(groups)
    assert level.collective_ns("all-gather", key, 1000) == 500
    key = wires.groups(groups)
    assert wires.collective_ns("all-gather", key, 1000) == 250


def test_wires_are_no_shorter_further_up():
    tree = make_levels((2, 5.0, 1e9), (2, 4.0, 1e9))
    with pytest.raises(
        InvalidProblemError,
        match=r"levels\[1\].latency_ns: expected at least that of the level "
        "below, 5, got 4; raise it",
    ):
        graph_of(tree)


# Folded Clos networks


@st.composite
def leaf_spines(draw):
    """Draw leaves on equal spines, and the tree with one uplink for all."""
    leaves, per_leaf, spines = (draw(st.integers(1, 4)) for _ in range(3))
    devices = [f"d{i}" for i in range(max(2, leaves * per_leaf))]
    leaf_of = {x: f"leaf{i // per_leaf}" for i, x in enumerate(devices)}
    down = (draw(st.sampled_from((0.0, 5.0))), draw(st.sampled_from((1e9, 3e9))))
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
        places[first : first + size] for first in range(0, len(places) - size + 1, size)
    ]
    return found, groups


@examples(300, full=3000)
@given(leaf_spines(), KINDS, SIZES)
def test_a_folded_clos_is_a_tree_with_pooled_uplinks(drawn, kind, size):
    topologies, groups = drawn
    clos, tree = (
        GraphNetwork(topology).offered_ns(kind, groups, size) for topology in topologies
    )
    assert clos == pytest.approx(tree, rel=2e-12)
