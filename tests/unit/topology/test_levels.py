"""What networks are like: worked out by hand, and against networkx."""

from __future__ import annotations

import random

import networkx as nx
import numpy as np
import pytest

from nest.errors import InvalidProblemError
from nest.topology import levels
from nest.topology.generators import GENERATORS, generate
from nest.topology.levels import PartitionFacts, Range, diameter, network_facts
from nest.topology.routes import Routes

GB = 1e9


def same(value: float) -> Range:
    return Range(value, value)


def network(devices, switches, links, *, directed=False):
    """Return a graph; links are (one, other, latency in ns, bandwidth)."""
    graph = nx.DiGraph() if directed else nx.Graph()
    graph.add_nodes_from(devices, kind="device")
    graph.add_nodes_from(switches, kind="switch")
    for one, other, latency_ns, bandwidth in links:
        graph.add_edge(one, other, latency_ns=latency_ns, bandwidth=bandwidth)
    return graph


def test_a_leaf_spine_network_by_hand():
    """4 leaves of 8 devices of 50 GB/s, 4 spines, 2:1.

    A leaf has 8 x 50 GB/s down and 4 x 50 GB/s up; two leaves send twice that. The
    farthest devices are 2 ports of 2000 ns and 2 links of 600 ns apart.
    """
    text = "leaf-spine:leaves=4,hosts=8,oversubscription=2"
    facts = network_facts(generate(text))
    assert facts.name == text
    assert (facts.num_devices, facts.num_switches) == (32, 8)
    assert facts.num_links == 48
    assert facts.port_bytes_per_s == same(50 * GB)
    assert facts.bisection_bytes_per_s == 400 * GB
    assert (facts.diameter_hops, facts.diameter_latency_ns) == (4, 5200.0)
    # 31/32 of a buffer over each port, twice to reduce it; of an all-to-all
    # 8·24/32 out of a leaf
    assert facts.bounds_ns_per_byte == pytest.approx(
        {
            "all-reduce": 2 * 31 / 32 / 50,
            "all-gather": 31 / 32 / 50,
            "reduce-scatter": 31 / 32 / 50,
            "all-to-all": 6 / 200,
        }
    )
    assert facts.partitions == (
        PartitionFacts(
            num_units=4,
            devices=same(8),
            out_bytes_per_s=same(200 * GB),
            oversubscription=same(2.0),
            bisection_bytes_per_s=400 * GB,
        ),
    )


@pytest.mark.parametrize(
    ("ports", "out"), [("device", 400), ("pooled", 400), ("shared", 50)]
)
def test_partitions_of_nodes_and_racks(ports, out):
    """3 racks of 2 nodes: what nodes send, and 4:1 what racks do.

    A device has 450 GB/s inside its node and, with pooled and shared ports,
    as much as those outside.
    """
    graph = generate(
        f"dgx:nodes=6,nodes_per_leaf=2,ports={ports},spines=1,oversubscription=4"
    )
    port = {"device": 50, "pooled": 400, "shared": 50}[ports]
    nodes, racks = network_facts(graph).partitions
    assert (nodes.num_units, nodes.devices) == (6, same(8))
    assert nodes.out_bytes_per_s == same(out * GB)
    assert nodes.oversubscription == same(8 * (450 + port) / out)
    # Half of the nodes are rack 0, which sends what its leaf has up, and a
    # node, which fills the ports of its neighbor.
    assert nodes.bisection_bytes_per_s == (out / 2 + out) * GB
    assert (racks.num_units, racks.devices) == (3, same(16))
    assert racks.out_bytes_per_s == same(out / 2 * GB)
    assert racks.oversubscription == same(4.0)
    assert racks.bisection_bytes_per_s == out / 2 * GB


def test_uneven_units_have_a_range():
    graph = generate("leaf-spine:leaves=2,hosts=3,spines=1")
    graph.graph["units"] = [dict(zip(graph.graph["order"], "abbbbb", strict=True))]
    (facts,) = network_facts(graph).partitions
    assert facts.devices == Range(1, 5)
    assert facts.out_bytes_per_s == same(50 * GB)
    assert facts.oversubscription == Range(1.0, 5.0)


def test_a_torus_has_no_partitions_but_a_bisection():
    facts = network_facts(generate("torus:4x8"))
    assert facts.partitions == ()
    assert facts.port_bytes_per_s == same(4 * 45 * GB)
    # 4 columns, each cut in two places.
    assert facts.bisection_bytes_per_s == 8 * 45 * GB
    assert (facts.diameter_hops, facts.diameter_latency_ns) == (6, 6000.0)


def test_the_bisection_is_that_of_the_order():
    graph = generate("torus:4x8")
    order = sorted(graph.graph["order"], key=lambda d: sum(graph.graph["coord"][d]) % 2)
    # Black and white: all 64 links cross.
    assert network_facts(graph, order).bisection_bytes_per_s == 64 * 45 * GB
    with pytest.raises(InvalidProblemError, match="expected all 32 devices"):
        network_facts(graph, order[1:])


@pytest.mark.parametrize(
    "text",
    [
        "fat-tree:k=4",
        "leaf-spine:leaves=5,hosts=4,oversubscription=2",
        "leaf-spine:leaves=3,hosts=4,spines=4,oversubscription=2",
    ],
)
def test_a_folded_clos_is_like_its_tree(text):
    """With any devices in a unit, and whichever of them send."""
    graph = generate(text)
    random_ = random.Random(text)
    order = list(graph.graph["order"])
    tree = levels._tree(graph, order)
    assert tree is not None
    assert levels._tree_diameter(tree) == diameter(graph, order)
    pooled = levels._TreeFlows(order, tree)
    flows = levels._Flows(graph, order)
    assert pooled.between([]) == pooled.between(order) == 0
    for count in range(1, len(order)):
        senders = random_.sample(order, count)
        assert pooled.between(senders) == flows.between(senders)


def test_a_tree_of_unequal_branches_by_hand():
    """Device a on the root, b and c one and d two switches below it.

    From a to d it is farthest, 100 + 7 + 0 + 2; from b to d there are most
    links, over s, root, t and u. Of what a and b send c takes 2 and d 1.
    """
    graph = network(
        "abcd",
        ("root", "s", "t", "u"),
        [
            ("a", "root", 100, 3),
            ("b", "s", 3, 2),
            ("c", "s", 1, 2),
            ("s", "root", 5, 3),
            ("t", "root", 7, 2),
            ("u", "t", 0, 5),
            ("d", "u", 2, 1),
        ],
    )
    facts = network_facts(graph)
    assert levels._tree(graph, list("abcd")) is not None
    assert (facts.diameter_hops, facts.diameter_latency_ns) == (5, 109.0)
    assert facts.bisection_bytes_per_s == 3
    assert facts.num_links == 7


def bisection_bytes_per_s(graph, order):
    """Return what passes between the halves of an order, one way, at most."""
    return levels._Flows(graph, order).between(order[: len(order) // 2])


@pytest.mark.parametrize("name", GENERATORS)
def test_flows_are_those_of_networkx(name):
    graph = generate(GENERATORS[name].example)
    order = list(graph.graph["order"])
    random.Random(name).shuffle(order)
    whole = nx.DiGraph(graph)
    half = len(order) // 2
    whole.add_edges_from(("from", device) for device in order[:half])
    whole.add_edges_from((device, "to") for device in order[half:])
    expected = nx.maximum_flow_value(whole, "from", "to", capacity="bandwidth")
    assert bisection_bytes_per_s(graph, order) == pytest.approx(expected)


@pytest.mark.parametrize(
    "text",
    [
        *(generator.example for generator in GENERATORS.values()),
        "torus:5x4",
        "torus:5x4,wrap=no",
        "torus:2x3x1",
        "torus:2x2",
        "tpu-v5e:4x16",
        "tpu-v4:4x4x8,twisted=yes",
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_diameters_are_those_of_all_pairs(text, seed):
    """Short cuts for devices that are alike lose nothing, in any order."""
    graph = generate(text)
    devices = graph.graph["order"]
    random.Random(seed).shuffle(devices)
    found = Routes(graph).distances(devices, devices)
    assert diameter(graph, devices) == (found.hops.max(), found.latency_ns.max())


def test_a_torus_with_an_odd_link_is_looked_at_from_everywhere():
    """One slow link of a ring of 6: around it is 5 hops, and 5 links."""
    graph = generate("torus:6")
    graph.edges["dev3", "dev4"]["latency_ns"] = 9000.0
    devices = graph.graph["order"]
    assert diameter(graph, devices) == (5, 5000.0)
    assert len(levels._distinct(graph, devices)) == 6
    assert len(levels._distinct(generate("torus:6"), devices)) == 1
    graph.edges["dev3", "dev4"]["latency_ns"] = 1000.0
    graph.remove_edge("dev3", "dev4")
    assert diameter(graph, devices) == (5, 5000.0)


def test_a_torus_where_a_device_does_not_forward():
    """Around the ring of 6 it is 4 hops from dev2 to dev4."""
    graph = generate("torus:6")
    graph.nodes["dev3"]["forward"] = False
    assert diameter(graph, graph.graph["order"]) == (4, 4000.0)


def test_devices_that_differ_in_what_they_receive():
    """From b to a it is 9 ns, back 2 ns; both send over equal links."""
    ends = (("a", "s", 1), ("b", "s", 1), ("s", "b", 1), ("s", "a", 8))
    links = [(*link, 1.0) for link in ends]
    graph = network("ab", "s", links, directed=True)
    assert diameter(graph, ["a", "b"]) == (2, 9.0)


def test_a_mesh_with_a_switch_is_no_torus():
    graph = generate("torus:4")
    graph.add_node("s", kind="switch")
    graph.add_edge("s", "dev0", bandwidth=1.0, latency_ns=1.0)
    graph.add_edge("s", "dev2", bandwidth=1.0, latency_ns=1.0)
    # From dev1 to dev3 it is still two links of the mesh.
    assert diameter(graph, graph.graph["order"]) == (2, 2000.0)
    assert len(levels._distinct(graph, graph.graph["order"])) == 4


def test_the_worse_direction_counts():
    links = [
        *(("a", "s", 1.0, 5.0), ("s", "b", 1.0, 5.0)),
        *(("b", "s", 1.0, 4.0), ("s", "a", 1.0, 3.0)),
    ]
    graph = network("ab", "s", links, directed=True)
    facts = network_facts(graph)
    assert facts.bisection_bytes_per_s == 3.0
    assert facts.num_links == 2
    assert facts.port_bytes_per_s == Range(4.0, 5.0)
    assert facts.name == ""


def test_one_device():
    facts = network_facts(network("a", "", []))
    assert facts.num_devices == 1
    assert facts.bisection_bytes_per_s == 0.0
    assert (facts.diameter_hops, facts.diameter_latency_ns) == (0, 0.0)


def test_networks_that_are_none():
    with pytest.raises(InvalidProblemError, match="at least one device, got"):
        network_facts(nx.Graph())
    with pytest.raises(InvalidProblemError, match="got none from 'a' to 'b'"):
        network_facts(network("ab", "", []))


@pytest.mark.parametrize(
    ("arcs", "flow"),
    [
        # One arc from the source and one to the sink, a wide one between:
        # either end may merge, but not both.
        ({(0, 2): 5, (2, 3): 100, (3, 1): 5}, 5),
        # All of the source goes to node 2, which sends three ways; together
        # they take 6, none all that it gets.
        (
            {
                (0, 2): 5,
                (2, 3): 3,
                (2, 4): 3,
                (2, 5): 3,
                (3, 4): 1,
                (4, 5): 1,
                (5, 3): 1,
                (3, 1): 2,
                (4, 1): 2,
                (5, 1): 2,
            },
            5,
        ),
    ],
)
def test_ends_that_merge_only_in_part(arcs, flow):
    table = np.array([[*arc, c] for arc, c in arcs.items()], dtype=float)
    backwards = table[:, [1, 0, 2]]
    ends = backwards[:, :2]
    backwards[:, :2] = np.where(ends < 2, 1 - ends, ends)
    assert levels._max_flow(table, 6) == flow
    assert levels._max_flow(backwards, 6) == flow


@pytest.mark.parametrize(
    "text",
    [
        "fat-tree:k=4",
        "leaf-spine:leaves=4,hosts=8,oversubscription=2",
        "dgx:nodes=4,nodes_per_leaf=2",
        "nvl72:racks=2",
    ],
)
def test_nothing_is_left_of_a_folded_clos(text, monkeypatch):
    """All switches merge, so that networkx has two nodes to look at."""
    seen = []
    flow = nx.maximum_flow_value
    monkeypatch.setattr(
        nx,
        "maximum_flow_value",
        lambda graph, *ends: seen.append(len(graph)) or flow(graph, *ends),
    )
    graph = generate(text)
    bisection_bytes_per_s(graph, graph.graph["order"])
    assert seen == [2]
