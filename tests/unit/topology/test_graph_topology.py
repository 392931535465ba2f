"""Graphs as records: what they refuse, what they say, files and networkx."""

from __future__ import annotations

import msgspec
import networkx
import pytest

from nest.errors import InvalidProblemError
from nest.ir import Cluster, Device, GraphTopology, encode, problem_hash
from nest.ir.io import decode_problem
from nest.topology.graph.convert import networkx_of, read_node_link, topology_of
from tests.builders import make_cost, make_problem
from tests.graphs import make_graph
from tests.rows import rows

LINKS = [("a", "s", 5.0, 1e9), ("b", "s", 5.0, 1e9)]
PAIR = make_graph("ab", LINKS, launch_ns=7.0)


def document(**fields):
    """Return the JSON of a pair of devices on a switch, changed."""
    return msgspec.to_builtins(PAIR) | fields


def problem_text(**fields) -> bytes:
    problem = make_problem({"x": make_cost()}, devices=2, topology=PAIR)
    whole = msgspec.to_builtins(problem)
    whole["cluster"]["topology"] = document(**fields)
    return msgspec.json.encode(whole)


A, B, S = ({"id": "a"}, {"id": "b"}, {"id": "s", "kind": "switch"})
WIRE = {"target": "s", "bandwidth_bytes_per_s": 1e9}
UP, DOWN = ({"source": x, **WIRE} for x in "ab")

WRONG = rows("graphs", "fields")


@pytest.mark.parametrize(("fields", "message"), WRONG)
def test_a_graph_that_is_no_network_is_refused(fields, message):
    with pytest.raises(InvalidProblemError, match=message) as caught:
        decode_problem(problem_text(**fields))
    assert "\n" not in str(caught.value)


def test_devices_that_forward_nothing_do_not_connect_others():
    links = [("a", "b", 0.0, 1e9), ("b", "c", 0.0, 1e9)]
    with pytest.raises(ValueError, match="got none from 'a' to 'c'"):
        make_graph("abc", links)
    assert make_graph("abc", links, forward=True).max_devices == 3


def test_two_switches_that_a_device_joins_do_not_connect_others():
    links = [
        ("a", "s", 0.0, 1e9), ("b", "s", 0.0, 1e9),
        ("b", "t", 0.0, 1e9), ("c", "t", 0.0, 1e9),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="got none from 'a' to 'c'"):
        make_graph("abc", links)


def test_more_devices_than_the_graph_has():
    with pytest.raises(ValueError, match=r"num_devices: expected <= 2 \(the d"):
        Cluster(num_devices=3, device=Device(memory_bytes=1), topology=PAIR)


def test_what_a_graph_says_of_itself():
    units = ({"a": "n", "b": "n", "c": "m"}, dict.fromkeys("abc", "r"))
    graph = make_graph(
        "abc", [*LINKS, ("c", "s", 1.0, 2e9)], units=units, launch_ns=9.0
    )
    assert graph.ranks == ("a", "b", "c")
    assert graph.max_devices == 3
    assert graph.unit_sizes == (2, 3)
    assert graph.text == "graph of 3 devices, 1 switches and 3 links"
    assert graph.parts == {0: "links of 2 GB/s", 1: "links of 1 GB/s"}
    one, free = graph.without_cost(1), graph.without_cost()
    assert [x.bandwidth_bytes_per_s for x in one.links] == [1e21, 1e21, 2e9]
    assert [x.latency_ns for x in one.links] == [0, 0, 1]
    assert (one.launch_ns, free.launch_ns) == (9, 0)
    assert {x.bandwidth_bytes_per_s for x in free.links} == {1e21}


FULL = make_graph(
    "ab",
    [*LINKS, ("s", "a", 1.0, 2e9), ("s", "b", 1.0, 2e9)],
    directed=True,
    forward=True,
    order=("b", "a"),
    units=({"a": "n", "b": "m"},),
    coordinates={"a": (0, 1), "b": (0, 0)},
    launch_ns=3.0,
)


@pytest.mark.parametrize("graph", [PAIR, FULL])
def test_files_hold_all_of_it(graph):
    assert msgspec.json.decode(encode(graph), type=GraphTopology) == graph
    problem = make_problem({"x": make_cost()}, devices=2, topology=graph)
    again = decode_problem(encode(problem))
    assert again == problem
    assert problem_hash(again) == problem_hash(problem)


# networkx


def settled(graph: GraphTopology) -> GraphTopology:
    """Return the same graph with all that is left open said."""
    return topology_of(networkx_of(graph))


@pytest.mark.parametrize("key", ["edges", "links"])
@pytest.mark.parametrize("graph", [PAIR, FULL])
def test_networkx_holds_all_of_it(graph, key):
    expected = settled(graph)
    assert expected.ranks == graph.ranks
    assert expected.launch_ns == graph.launch_ns
    assert expected.units == graph.units
    assert expected.coordinates == graph.coordinates
    text = networkx.node_link_data(networkx_of(graph), edges=key)
    # as JSON has it: no tuples
    text = msgspec.json.decode(msgspec.json.encode(text))
    assert topology_of(read_node_link(text)) == expected


def node_link(**fields):
    return {
        "nodes": [
            {"id": "a", "kind": "device"},
            {"id": 1, "kind": "device"},
            {"id": "s", "kind": "switch"},
        ],
        "edges": [
            {"source": "a", "target": "s", "bandwidth": 1e9},
            {"source": 1, "target": "s", "bandwidth": 1e9, "latency_ns": 3},
        ],
    } | fields


def test_numbers_as_names_become_text():
    graph = topology_of(read_node_link(node_link(graph={"order": [1, "a"]})))
    assert graph.ranks == ("1", "a")
    assert graph.links[0].latency_ns == 0


def test_parallel_links_add_up():
    link = {"source": "s", "target": "a", "bandwidth": 2e9, "latency_ns": 4}
    edges = [*node_link()["edges"], link]
    graph = topology_of(read_node_link(node_link(edges=edges, multigraph=True)))
    assert len(graph.links) == 2
    assert graph.links[0].bandwidth_bytes_per_s == 3e9
    assert graph.links[0].latency_ns == 4
    with pytest.raises(InvalidProblemError, match=r"edges\[2\]: expected one l"):
        read_node_link(node_link(edges=edges))


@pytest.mark.parametrize(("text", "message"), rows("graphs", "node-link"))
def test_what_is_no_node_link_document_is_refused(text, message):
    with pytest.raises(InvalidProblemError, match=message) as caught:
        topology_of(read_node_link(text))
    assert "\n" not in str(caught.value)
