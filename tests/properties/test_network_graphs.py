"""Routes and flows of small random graphs, against all paths and networkx."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nest.errors import InvalidProblemError
from nest.topology import levels
from nest.topology.graph import GraphNetwork
from nest.topology.graph.bounds import bound_ns
from nest.topology.graph.convert import topology_of
from nest.topology.routes import Routes, devices_of
from tests.properties.profiles import examples


@st.composite
def networks(draw):
    """Draw a connected graph of up to 7 nodes, some of which forward."""
    count = draw(st.integers(2, 7))
    graph = nx.Graph()
    for node in range(count):
        kind = "device" if node < 2 else draw(st.sampled_from(["device", "switch"]))
        forward = draw(st.sampled_from([None, True, False]))
        graph.add_node(node, kind=kind)
        if forward is not None:
            graph.nodes[node]["forward"] = forward
    pairs = [(i, j) for j in range(count) for i in range(j)]
    for one, other in draw(
        st.lists(st.sampled_from(pairs), unique=True, min_size=count)
        if len(pairs) >= count
        else st.just(pairs)
    ):
        graph.add_edge(
            one,
            other,
            bandwidth=draw(st.sampled_from([1e9, 2e9, 4e9])),
            latency_ns=draw(st.sampled_from([0.0, 100.0, 200.5])),
        )
    return graph


def best_path(graph, source, target):
    """Return (latency, hops, ns per byte) of the best of all paths."""
    found = []
    for path in nx.all_simple_paths(graph, source, target):
        between = [graph.nodes[node] for node in path[1:-1]]
        if all(node.get("forward", node["kind"] == "switch") for node in between):
            links = [graph.edges[pair] for pair in nx.utils.pairwise(path)]
            found.append(
                (
                    sum(link["latency_ns"] for link in links),
                    len(links),
                    sum(1e9 / link["bandwidth"] for link in links),
                )
            )
    return min(found, default=None)


@examples(200)
@given(networks())
def test_routes_are_the_best_of_all_paths(graph):
    devices = devices_of(graph)
    expected = {
        (s, t): best_path(graph, s, t) for s in devices for t in devices if s != t
    }
    if None in expected.values():
        with pytest.raises(
            InvalidProblemError, match="expected a route between all devices"
        ):
            Routes(graph).distances(devices, devices)
        return
    found = Routes(graph).distances(devices, devices)
    for (s, t), (latency_ns, hops, ns_per_byte) in expected.items():
        at = devices.index(s), devices.index(t)
        assert found.latency_ns[at] == latency_ns
        assert found.hops[at] == hops
        assert found.ns_per_byte[at] == ns_per_byte
    assert not found.latency_ns.diagonal().any()
    assert not found.hops.diagonal().any()


@examples(200)
@given(
    st.dictionaries(
        st.tuples(st.integers(0, 6), st.integers(0, 6)).filter(
            lambda arc: arc[0] != arc[1]
        ),
        st.integers(0, 3),
        min_size=1,
    )
)
def test_merged_nodes_leave_the_flow_as_it_is(arcs):
    graph = nx.DiGraph()
    graph.add_nodes_from(range(7))
    for (tail, head), capacity in arcs.items():
        graph.add_edge(tail, head, capacity=capacity)
    table = np.array([[*arc, c] for arc, c in arcs.items()], dtype=float)
    assert levels._max_flow(table, 7) == nx.maximum_flow_value(graph, 0, 1)


@examples(60)
@given(networks(), st.data())
def test_bounds_are_those_of_a_group_of_all_devices(graph, data):
    """With and without units."""
    devices = devices_of(graph)
    if data.draw(st.booleans()):
        unit = st.sampled_from("ab")
        graph.graph["units"] = [{x: data.draw(unit) for x in devices}]
    try:
        bounds = levels.network_facts(graph).bounds_ns_per_byte
    except InvalidProblemError:
        return  # some devices cannot reach each other
    network = GraphNetwork(topology_of(graph))
    everyone = [range(len(devices))]
    for kind, bound in bounds.items():
        expected = bound_ns(network.routes, kind, everyone, 1, network.places)
        assert bound == pytest.approx(expected, rel=1e-11)
