"""How far devices are apart, by hand and one by one."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from nest.errors import InvalidProblemError
from nest.topology.generators import generate
from nest.topology.routes import (
    Routes,
    check_order,
    devices_of,
    message_costs_ns,
    twins,
)


def test_a_message_costs_what_its_links_add_up_to():
    """100 bytes over 2 links of 1 GB/s and 30 ns: 2 (30 + 100) ns."""
    graph = generate(
        "leaf-spine:leaves=1,hosts=3,port_bytes_per_s=1e9,port_latency_ns=30"
    )
    costs = message_costs_ns(graph, graph.graph["order"], 100)
    assert costs.dtype == np.int64
    assert costs.tolist() == [[0, 260, 260], [260, 0, 260], [260, 260, 0]]


def test_the_worse_direction_counts():
    graph = nx.DiGraph()
    graph.add_nodes_from("ab", kind="device")
    graph.add_edge("a", "b", bandwidth=1e9, latency_ns=1.0)
    graph.add_edge("b", "a", bandwidth=1e9, latency_ns=5.0)
    assert message_costs_ns(graph, ["a", "b"], 10).tolist() == [[0, 15], [15, 0]]


def test_many_devices_are_worked_on_in_parts():
    """More sources than one part, against networkx."""
    graph = generate("torus:7x6")
    devices = graph.graph["order"]
    hops = Routes(graph).distances(devices, devices).hops
    expected = dict(nx.all_pairs_shortest_path_length(graph))
    assert [[expected[s][t] for t in devices] for s in devices] == hops.tolist()


def test_costs_of_groups_are_those_of_pairs():
    graph = generate("dgx:nodes=12,devices=4,nodes_per_leaf=3")
    devices = graph.graph["order"]
    groups = [devices[i::9] for i in range(9)]
    found = list(Routes(graph).costs_ns(groups, 1e6))
    for group, costs in zip(groups, found, strict=True):
        assert (costs == message_costs_ns(graph, group, 1e6)).all()


def test_twins_have_the_same_links():
    graph = generate("leaf-spine:leaves=2,hosts=3")
    devices = graph.graph["order"]
    found = twins(graph, devices)
    assert found == {d: f"{d.split('.')[0]}.dev0" for d in devices}
    graph.edges["leaf0", "leaf0.dev1"]["bandwidth"] *= 2
    assert twins(graph, devices)["leaf0.dev1"] == "leaf0.dev1"


def test_devices_without_an_order_come_as_they_are():
    graph = nx.Graph()
    graph.add_node("s", kind="switch")
    graph.add_nodes_from(["b", "a"], kind="device")
    assert devices_of(graph) == ["b", "a"]
    graph.graph["order"] = ["a", "b"]
    assert devices_of(graph) == ["a", "b"]


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (["a", "x"], "order: expected devices of the network, got 'x'"),
        (["a", "a"], "order: expected every device once, got 'a' twice"),
        (["a"], "order: expected all 2 devices, got 1; add 'b'"),
    ],
)
def test_orders_that_are_none(order, message):
    with pytest.raises(InvalidProblemError, match=message):
        check_order(["a", "b"], order)


def test_devices_apart():
    graph = generate("rail:nodes=2,devices=2,spines=0")
    for device in graph.graph["order"]:
        graph.nodes[device]["forward"] = False
    with pytest.raises(
        InvalidProblemError,
        match=r"got none from 'node0\.gpu0' to 'node1\.gpu1'; add a link, or",
    ):
        message_costs_ns(graph, graph.graph["order"], 1.0)


@pytest.mark.parametrize(
    "text",
    [
        "leaf-spine:leaves=3,hosts=4,oversubscription=2",
        "dgx:nodes=3,devices=4,nodes_per_leaf=1",
        "rail:nodes=6,devices=4",
        "dragonfly:p=3,a=3,h=1",
    ],
)
def test_devices_behind_gates_are_as_far_as_one_by_one(text, monkeypatch):
    graph = generate(text)
    devices = graph.graph["order"]
    routes = Routes(graph)
    sources = np.array([routes.index[device] for device in devices])
    assert len(routes._gates(sources)) < len(devices)
    found = routes.distances(devices, devices[::-1])
    monkeypatch.setattr(Routes, "_gates", lambda self, sources: sources)
    expected = routes.distances(devices, devices[::-1])
    assert (found.latency_ns == expected.latency_ns).all()
    assert (found.hops == expected.hops).all()
    assert found.ns_per_byte == pytest.approx(expected.ns_per_byte)


def test_where_there_are_no_gates():
    for text in ("torus:4x4", "all-to-all:4"):
        graph = generate(text)
        routes = Routes(graph)
        sources = np.arange(len(graph))
        assert (routes._gates(sources) == sources).all()
    # A device that nothing leads away from.
    graph = generate("leaf-spine:leaves=1,hosts=4")
    graph.add_node("x", kind="device")
    graph.graph["order"].append("x")
    with pytest.raises(InvalidProblemError, match=r"from 'leaf0\.dev0' to 'x'"):
        message_costs_ns(graph, graph.graph["order"], 1.0)
