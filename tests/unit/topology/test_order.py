"""Orders of devices: what they keep together, and what they cost."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import networkx as nx
import pytest

from nest.errors import InvalidProblemError, UnknownNameError
from nest.topology import order as order_module
from nest.topology.generators import generate
from nest.topology.order import (
    Group,
    NodeRanks,
    OrderCosts,
    auto_order,
    find_order,
    node_ranks,
)
from nest.topology.routes import message_costs_ns


def shuffled(text: str, seed: int = 0, *, units: bool = True) -> nx.Graph:
    """Return a network in a random order."""
    graph = generate(text)
    random.Random(seed).shuffle(graph.graph["order"])
    if not units:
        graph.graph.pop("units", None)
    return graph


def runs(order, units) -> int:
    """Return how many runs of the same unit an order has."""
    return len(list(itertools.groupby(units[device] for device in order)))


@pytest.mark.parametrize("units", [True, False])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "text",
    [
        "fat-tree:k=4",
        "leaf-spine:leaves=3,hosts=4,oversubscription=2",
        "dgx:nodes=6,devices=4,nodes_per_leaf=2",
        "dgx:nodes=4,devices=4,ports=shared",
        "rail:nodes=4,segment=2,devices=4",
        "rail:nodes=4,devices=4,spines=0",
        "dragonfly:p=2,a=3,h=1",
        "dgx1:nodes=3",
    ],
)
def test_auto_keeps_units_whole(text, seed, units):
    """Whether or not the network says what its units are."""
    partitions = generate(text).graph["units"]
    graph = shuffled(text, seed, units=units)
    found = auto_order(graph)
    assert sorted(found) == sorted(graph.graph["order"])
    assert found == auto_order(graph)
    for partition in partitions:
        assert runs(found, partition) == len(set(partition.values()))


def test_auto_goes_around_a_ring():
    found = auto_order(shuffled("ring:8"))
    numbers = [int(device.removeprefix("dev")) for device in found]
    steps = {(b - a) % 8 for a, b in itertools.pairwise(numbers)}
    assert steps in ({1}, {7})


@pytest.mark.parametrize(
    ("shape", "size", "box"),
    [
        ("4x4", 4, (2, 2)),
        ("8x8", 16, (4, 4)),
        ("4x4x4", 8, (2, 2, 2)),
        ("4x4x8", 64, (4, 4, 4)),
        # 4 and 2 along the longest axis: boxes of powers of two stay whole.
        ("6x2", 4, (2, 2)),
        ("12x4", 16, (4, 4)),
    ],
)
def test_auto_makes_boxes_of_tori(shape, size, box):
    graph = shuffled(f"torus:{shape}")
    coord = graph.graph["coord"]
    found = auto_order(graph)
    for first in range(0, len(found), size):
        places = [coord[device] for device in found[first : first + size]]
        assert tuple(len(set(axis)) for axis in zip(*places, strict=True)) == box


def test_auto_keeps_the_order_of_devices_that_are_alike():
    graph = generate("leaf-spine:leaves=2,hosts=4")
    assert auto_order(graph) == graph.graph["order"]


def test_units_too_many_to_compare_keep_their_order(monkeypatch):
    monkeypatch.setattr(order_module, "MAX_CLUSTERS", 2)
    graph = shuffled("dgx:nodes=6,devices=4,nodes_per_leaf=2")
    nodes = graph.graph["units"][0]
    first = list(dict.fromkeys(nodes[d] for d in graph.graph["order"]))
    del graph.graph["units"][1]
    found = auto_order(graph)
    assert list(dict.fromkeys(nodes[device] for device in found)) == first
    assert runs(found, nodes) == 6


@pytest.mark.parametrize(
    "text",
    [
        "dgx:nodes=2,devices=4",
        "rail:nodes=2,devices=4",
        "fat-tree:k=4",
        "dgx:nodes=2,devices=4,ports=pooled",
    ],
)
def test_devices_that_meet_at_one_switch_are_equally_far(text):
    """The short cut says so of all devices of a unit, and it is true."""
    graph = generate(text)
    units = graph.graph["units"][0]
    for unit in set(units.values()):
        members = [device for device in units if units[device] == unit]
        assert order_module._alike(graph, members)
        costs = message_costs_ns(graph, members, 1e6)
        assert len(set(costs[costs > 0].tolist())) <= 1


def test_devices_that_meet_at_no_switch_are_compared():
    assert not order_module._alike(
        generate("dgx1:nodes=1"), [f"node0.gpu{i}" for i in range(8)]
    )
    # Two links that are equally near.
    graph = generate("dgx:nodes=2,devices=2")
    for link in graph.edges.values():
        link["latency_ns"] = 1.0
    assert not order_module._alike(graph, ["node0.gpu0", "node0.gpu1"])
    # One slower link.
    graph = generate("leaf-spine:leaves=1,hosts=3")
    devices = graph.graph["order"]
    assert order_module._alike(graph, devices)
    graph.edges["leaf0", devices[2]]["bandwidth"] /= 2
    assert not order_module._alike(graph, devices)
    # A link between two of them, longer than one to the switch, not than two.
    graph = generate("leaf-spine:leaves=1,hosts=3")
    graph.add_edge(*devices[:2], bandwidth=1e9, latency_ns=3000.0)
    assert not order_module._alike(graph, devices)
    # A device that does not forward in the middle.
    star = nx.Graph(nx.star_graph(3))
    nx.set_node_attributes(star, "device", "kind")
    nx.set_edge_attributes(star, 1.0, "latency_ns")
    nx.set_edge_attributes(star, 1e9, "bandwidth")
    assert not order_module._alike(star, [1, 2, 3])


def test_a_slow_device_comes_last():
    """Two of a leaf's devices have half the bandwidth: they stay together."""
    graph = generate("leaf-spine:leaves=1,hosts=6")
    for slow in ("leaf0.dev1", "leaf0.dev4"):
        graph.edges["leaf0", slow]["bandwidth"] /= 2
    found = auto_order(graph)
    assert abs(found.index("leaf0.dev1") - found.index("leaf0.dev4")) == 1


def costs_by_hand():
    """Two nodes of two: 8 within a node, 24 across, in ns.

    100 bytes over two links of 100 GB/s and 3 ns: 2 (3 + 1); of 20 GB/s and
    7 ns: 2 (7 + 5).
    """
    graph = generate(
        "dgx:nodes=2,devices=2,nvlink_bytes_per_s=100e9,nvlink_latency_ns=3,"
        "port_bytes_per_s=20e9,port_latency_ns=7"
    )
    groups = [
        Group((0, 1), 100.0),
        Group((2, 3), 100.0, weight=5),
        Group((0, 2, 3), 100.0),
    ]
    return graph, groups


def test_costs_worked_out_by_hand():
    graph, groups = costs_by_hand()
    a, b, c, d = graph.graph["order"]
    total = OrderCosts(graph, groups)
    # Pairs in nodes: 8, 5 x 8, 24. Pairs across: 24, 5 x 24, 24.
    assert total.order_ns([a, b, c, d]) == 8 + 40 + 24
    assert total.order_ns([a, c, b, d]) == 24 + 120 + 24
    assert OrderCosts(graph, []).order_ns([a, b, c, d]) == 0


def test_groups_change_what_auto_finds():
    graph, _ = costs_by_hand()
    groups = [Group((0, 2), 100.0), Group((1, 3), 100.0)]
    found = auto_order(graph, groups)
    node = graph.graph["units"][0]
    assert node[found[0]] == node[found[2]] != node[found[1]]


@pytest.mark.parametrize("seed", range(5))
def test_auto_with_groups_costs_no_more_than_the_given_order(seed):
    source = random.Random(seed)
    graph = shuffled("torus:3x4", seed)
    groups = [
        Group(
            tuple(source.sample(range(12), source.randint(2, 4))),
            source.choice([1e3, 1e8]),
            source.randint(0, 3),
        )
        for _ in range(4)
    ]
    costs = OrderCosts(graph, groups)
    found = costs.order_ns(auto_order(graph, groups))
    assert found <= costs.order_ns(graph.graph["order"])
    assert found <= costs.order_ns(auto_order(graph))


def test_auto_takes_the_shape_that_groups_want():
    """Rows of 8 on a torus of 8 x 8 want rows, not boxes."""
    graph = shuffled("torus:8x8")
    groups = [Group(tuple(range(8 * i, 8 * i + 8))) for i in range(8)]
    costs = OrderCosts(graph, groups)
    hop_ns = OrderCosts(graph, [Group((0, 1))]).order_ns(
        generate("torus:8x8").graph["order"]
    )
    # 4 hops at most in a ring of 8; a box of 4 x 2 has 2 + 1 without wrap.
    found = costs.order_ns(auto_order(graph, groups))
    assert found <= 8 * 4 * hop_ns
    assert found <= costs.order_ns(auto_order(graph))


def test_the_number_of_swaps_is_bounded(monkeypatch):
    monkeypatch.setattr(order_module, "MAX_SWAPS", 0)
    graph, _ = costs_by_hand()
    groups = [Group((0, 2), 100.0), Group((1, 3), 100.0)]
    assert auto_order(graph, groups) == graph.graph["order"]


def test_nodes_and_ranks():
    graph = generate("dgx:nodes=2,devices=2")
    a, b, c, d = graph.graph["order"]
    assert node_ranks(graph, [c, a, b, d]) == [
        NodeRanks("node1", (c, d), (0, 3)),
        NodeRanks("node0", (a, b), (1, 2)),
    ]
    ring = generate("ring:2")
    assert node_ranks(ring, ["dev1", "dev0"]) == [
        NodeRanks("dev1", ("dev1",), (0,)),
        NodeRanks("dev0", ("dev0",), (1,)),
    ]


def test_orders_by_name_or_listed():
    graph = shuffled("torus:4x4")
    given = graph.graph["order"]
    assert find_order(graph, "given") == given
    assert find_order(graph, "auto") == auto_order(graph) != given
    assert find_order(graph, given[::-1]) == given[::-1]
    with pytest.raises(UnknownNameError, match=r"order: .* did you mean 'auto'"):
        find_order(graph, "atuo")
    with pytest.raises(InvalidProblemError, match="expected all 16 devices"):
        find_order(graph, given[:-1])
    with pytest.raises(InvalidProblemError, match="expected all 16 devices"):
        node_ranks(graph, given[:-1])


@pytest.mark.parametrize(
    ("group", "message"),
    [
        (Group(()), r"groups\[1\]: expected distinct positions, got \[\]"),
        (Group((1, 1)), r"groups\[1\]: expected distinct positions"),
        (Group((0, 4)), r"groups\[1\]: expected positions 0..3, got \[0, 4\]"),
        (Group((-1, 0)), r"groups\[1\]: expected positions 0..3"),
        (Group((0, 1), weight=-1), r"groups\[1\]: expected a weight >= 0"),
    ],
)
def test_groups_that_are_none(group, message):
    graph, _ = costs_by_hand()
    with pytest.raises(InvalidProblemError, match=message):
        OrderCosts(graph, [Group((0, 1)), group])


@pytest.mark.parametrize("text", ["fat-tree:k=4", "torus:4x4", "dgx1:nodes=2"])
def test_names_do_not_matter(text):
    """Other names, the same order of ranks: the same orders."""
    graph = shuffled(text)
    new = {node: f"n{i}" for i, node in enumerate(graph)}
    other = nx.relabel_nodes(graph, new)
    other.graph = {
        "order": [new[device] for device in graph.graph["order"]],
        **(
            {"coord": {new[d]: c for d, c in graph.graph["coord"].items()}}
            if "coord" in graph.graph
            else {}
        ),
    }
    graph.graph.pop("units", None)
    assert [new[d] for d in auto_order(graph)] == auto_order(other)
    assert Counter(auto_order(other)).most_common(1)[0][1] == 1
