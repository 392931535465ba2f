"""Generated networks: numbers counted by hand, wiring, bad input."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from pathlib import Path

import networkx as nx
import pytest

from nest.errors import InvalidOptionError, UnknownNameError
from nest.topology.generators import GENERATORS, build, generate
from nest.topology.generators.nodes import DGX1_NVLINKS
from nest.topology.generators.text import enlarged
from tests.rows import rows

GB = 1e9
ROOT = Path(__file__).parents[3]


def devices(graph: nx.Graph) -> list[str]:
    return [n for n, kind in graph.nodes(data="kind") if kind == "device"]


def cut(graph: nx.Graph, part: list[str]) -> float:
    """Return the most bytes/s from a part of the devices to the others."""
    whole = nx.DiGraph(graph)
    for device in devices(graph):
        if device in part:
            whole.add_edge("from", device)
        else:
            whole.add_edge(device, "to")
    return nx.maximum_flow_value(whole, "from", "to", capacity="bandwidth")


def half(graph: nx.Graph) -> list[str]:
    order = graph.graph["order"]
    return order[: len(order) // 2]


@pytest.mark.parametrize("name", GENERATORS)
def test_what_every_network_has(name):
    graph = generate(GENERATORS[name].example)
    order = graph.graph["order"]
    assert type(graph) is nx.Graph
    assert graph.graph["name"] == GENERATORS[name].example
    assert sorted(order) == sorted(devices(graph))
    assert len(set(order)) == len(order) > 1
    assert set(nx.get_node_attributes(graph, "kind").values()) <= {"device", "switch"}
    assert nx.is_connected(graph)
    for one, other, link in graph.edges(data=True):
        assert one != other
        assert set(link) == {"bandwidth", "latency_ns"}
        assert link["bandwidth"] > 0
        assert link["latency_ns"] >= 0
    before = {device: device for device in order}
    for units in graph.graph.get("units", []):
        assert set(units) == set(order)
        inside = {before[device]: units[device] for device in order}
        # A unit holds whole units of the finer partition.
        assert all(inside[before[d]] == units[d] for d in order)
        assert 1 < len(set(units.values())) < len(set(before.values()))
        before = units


@pytest.mark.parametrize("name", GENERATORS)
def test_devices_without_forwarding_need_none(name):
    """Without the devices that do not forward, any two are still joined."""
    graph = generate(GENERATORS[name].example)
    order = graph.graph["order"]
    stops = {d for d in order if not graph.nodes[d].get("forward")}
    for one, other in itertools.islice(itertools.combinations(order, 2), 100):
        assert nx.has_path(
            graph.subgraph(graph.nodes - stops | {one, other}), one, other
        )


@pytest.mark.parametrize(
    ("text", "num_devices", "num_switches", "num_links"), rows("generators", "counts")
)
def test_numbers_counted_by_hand(text, num_devices, num_switches, num_links):
    graph = generate(text)
    count = len(devices(graph))
    assert (count, len(graph) - count, graph.size()) == (
        num_devices,
        num_switches,
        num_links,
    )


def test_bandwidths_may_have_units():
    plain, with_unit = (
        generate(f"fat-tree:k=4,port_bytes_per_s={value}")
        for value in ("5e10", "400Gb/s")
    )
    assert list(plain.edges(data=True)) == list(with_unit.edges(data=True))


@pytest.mark.parametrize(("text", "bytes_per_s"), rows("generators", "bisections"))
def test_bisection_between_the_halves(text, bytes_per_s):
    graph = generate(text)
    assert cut(graph, half(graph)) == pytest.approx(bytes_per_s * GB)


@pytest.mark.parametrize(("text", "degrees"), rows("generators", "degrees"))
def test_degrees(text, degrees):
    assert Counter(dict(generate(text).degree).values()) == degrees


@pytest.mark.parametrize(("text", "hops"), rows("generators", "diameters"))
def test_diameters(text, hops):
    assert nx.diameter(generate(text)) == hops


@pytest.mark.parametrize(
    ("text", "port", "up", "up_ports"),
    [
        ("leaf-spine:leaves=4,hosts=8,oversubscription=2", 50, 50, 4),
        ("leaf-spine:leaves=4,hosts=8,spines=2,oversubscription=4", 50, 50, 2),
        ("leaf-spine:leaves=4,hosts=8,spines=16", 50, 25, 16),
    ],
)
def test_oversubscription(text, port, up, up_ports):
    """What the devices of a leaf send by what its links up take."""
    graph = generate(text)
    ups = [n for n in graph["leaf0"] if n.startswith("spine")]
    downs = [n for n in graph["leaf0"] if not n.startswith("spine")]
    assert {graph["leaf0"][n]["bandwidth"] for n in downs} == {port * GB}
    assert [graph["leaf0"][n]["bandwidth"] for n in ups] == [up * GB] * up_ports


def test_a_fat_tree_joins_pods_by_the_formula():
    """Aggregation a of every pod leads to cores a k/2 .. a k/2 + k/2 - 1."""
    graph = generate("fat-tree:k=4")
    for pod, aggregation in itertools.product(range(4), range(2)):
        above = [n for n in graph[f"pod{pod}.agg{aggregation}"] if "core" in n]
        assert above == [f"core{2 * aggregation}", f"core{2 * aggregation + 1}"]


@pytest.mark.parametrize(
    ("a", "h", "g"), [(4, 2, 9), (3, 1, 4), (2, 3, 5), (2, 2, 2), (1, 4, 5)]
)
def test_a_dragonfly_is_wired_by_the_formula(a, h, g):
    """Link k of group i is at router k // h, to group k < i ? k : k + 1."""
    graph = build(GENERATORS["dragonfly"], {"p": 1, "a": a, "h": h, "g": g})
    expected = set()
    for i in range(g):
        for k in range(g - 1):
            to = k if k < i else k + 1
            back = i if i < to else i - 1
            expected.add(
                frozenset({f"group{i}.router{k // h}", f"group{to}.router{back // h}"})
            )
    routers = [n for n, kind in graph.nodes(data="kind") if kind == "switch"]
    found = {
        frozenset(link)
        for link in graph.subgraph(routers).edges
        if link[0].split(".")[0] != link[1].split(".")[0]
    }
    assert found == expected
    assert len(found) == g * (g - 1) // 2
    for router in routers:
        others = [n for n in graph[router] if n in routers]
        assert len(others) <= a - 1 + h


@pytest.mark.parametrize(("shape", "wrap"), rows("generators", "wraps"))
def test_the_wrap_around_rules_of_tpus(shape, wrap):
    graph = generate(f"tpu-{shape}")
    assert graph.graph["wrap"] == wrap
    sizes = [int(n) for n in shape.split(":")[1].split("x")]
    coord = graph.graph["coord"]
    at = {tuple(place): device for device, place in coord.items()}
    for axis, length in enumerate(sizes):
        far = [0] * len(sizes)
        far[axis] = length - 1
        first = at[(0,) * len(sizes)]
        assert graph.has_edge(first, at[tuple(far)]) == (wrap[axis] or length == 2)


def test_ranks_of_a_torus_count_along_the_first_axis_first():
    graph = generate("torus:3x2")
    order, coord = graph.graph["order"], graph.graph["coord"]
    assert [coord[device] for device in order] == [
        [0, 0],
        [1, 0],
        [2, 0],
        [0, 1],
        [1, 1],
        [2, 1],
    ]


def test_an_axis_of_two_has_two_cables():
    graph = generate("torus:2x3,link_bytes_per_s=10")
    assert Counter(bw for _, _, bw in graph.edges(data="bandwidth")) == {
        20.0: 3,
        10.0: 6,
    }
    mesh = generate("torus:2x3,link_bytes_per_s=10,wrap=no")
    assert {bw for _, _, bw in mesh.edges(data="bandwidth")} == {10.0}


@pytest.mark.parametrize("shape", ["4x4x8", "4x8x4", "8x4x4", "4x8x8", "8x8x4"])
def test_a_twisted_torus_makes_all_axes_alike(shape):
    """All-to-all traffic loads all links alike, and less than the torus.

    In the torus the links of long axes carry more.
    """
    plain, twisted = (
        generate(f"tpu-v4:{shape}{more}") for more in ("", ",twisted=yes")
    )
    loads = [nx.edge_betweenness_centrality(graph) for graph in (plain, twisted)]
    assert max(loads[0].values()) > 1.2 * min(loads[0].values())
    assert max(loads[1].values()) == pytest.approx(min(loads[1].values()))
    assert max(loads[1].values()) < max(loads[0].values())
    assert nx.diameter(twisted) < nx.diameter(plain)
    assert "coord" not in twisted.graph
    assert "wrap" not in twisted.graph


def test_a_dgx1_has_six_nvlinks_a_device():
    rows = Counter()
    for pair, links in DGX1_NVLINKS.items():
        rows.update(dict.fromkeys(pair, links))
    assert rows == dict.fromkeys(range(8), 6)
    # One or two to four others, and the double links are a circle.
    double = nx.Graph([pair for pair, n in DGX1_NVLINKS.items() if n == 2])
    assert set(DGX1_NVLINKS.values()) == {1, 2}
    assert nx.is_isomorphic(double, nx.cycle_graph(8))
    assert nx.diameter(nx.Graph(list(DGX1_NVLINKS))) == 2
    graph = generate("dgx1:nodes=1")
    for device in graph.graph["order"]:
        out = sum(
            link["bandwidth"]
            for other, link in graph[device].items()
            if graph.nodes[other]["kind"] == "device"
        )
        assert out == 150 * GB


@pytest.mark.parametrize(
    ("ports", "alone", "together"),
    [("device", 50, 400), ("pooled", 400, 400), ("shared", 50, 50)],
)
def test_ports_of_a_node(ports, alone, together):
    """What one device and what all devices of a node send out of it."""
    graph = generate(f"dgx:nodes=2,ports={ports}")
    order = graph.graph["order"]
    for senders, expected in ((order[:1], alone), (order[:8], together)):
        outside = nx.DiGraph(graph)
        outside.remove_node("node0.nvswitch")
        for device in senders:
            outside.add_edge("from", device)
        for device in order[8:]:
            outside.add_edge(device, "to")
        assert nx.maximum_flow_value(
            outside, "from", "to", capacity="bandwidth"
        ) == pytest.approx(expected * GB)


def test_routes_of_least_latency_stay_in_a_node():
    for text in ("dgx:nodes=2", "dgx:nodes=2,ports=pooled", "rail:nodes=2"):
        graph = generate(text)
        route = nx.shortest_path(graph, "node0.gpu0", "node0.gpu1", weight="latency_ns")
        assert route == ["node0.gpu0", "node0.nvswitch", "node0.gpu1"]


def test_a_rail_joins_the_same_device_of_all_nodes():
    graph = generate("rail:nodes=4,segment=2,devices=3")
    for segment, rail in itertools.product(range(2), range(3)):
        below = [
            n for n in graph[f"segment{segment}.rail{rail}"] if n.startswith("node")
        ]
        assert below == [f"node{2 * segment + i}.gpu{rail}" for i in range(2)]


def test_an_nvl72_rack_is_18_trays_of_4():
    graph = generate("nvl72:racks=2")
    trays, racks = graph.graph["units"]
    assert set(Counter(trays.values()).values()) == {4}
    assert set(Counter(racks.values()).values()) == {72}
    assert len(set(trays.values())) == 36


def test_units_of_slices_of_tpus():
    hosts, cubes = generate("tpu-v4:4x4x8").graph["units"]
    assert set(Counter(hosts.values()).values()) == {4}
    assert set(Counter(cubes.values()).values()) == {64}
    assert hosts["dev0.0.0"] == hosts["dev1.1.0"] != hosts["dev0.0.1"]
    assert cubes["dev3.3.3"] == cubes["dev0.0.0"] != cubes["dev0.0.4"]
    # Hosts that do not tile the slice are left out.
    assert "units" not in generate("tpu-v4:1x1x4").graph


@pytest.mark.parametrize("name", GENERATORS)
def test_figures_can_be_given(name):
    """Every bandwidth and latency of the table reaches some link."""
    generator = GENERATORS[name]
    for parameter in generator.parameters:
        attribute, given = {
            "bytes/s": ("bandwidth", 7e12),
            "ns": ("latency_ns", 12345.0),
        }.get(parameter.unit, ("", 0.0))
        if not attribute:
            continue
        text = f"{generator.example},{parameter.name}={given:g}"
        if parameter.name == "up_latency_ns" and name == "dgx":
            text += ",nodes_per_leaf=2"
        if parameter.name in ("nvlink_latency_ns", "local_latency_ns"):
            other = "global" if name == "dragonfly" else "port"
            text += f",{other}_latency_ns=99999"
        values = {v for _, _, v in generate(text).edges(data=attribute)}
        assert given in values


@pytest.mark.parametrize("name", GENERATORS)
def test_networks_survive_json(name):
    graph = generate(GENERATORS[name].example)
    document = json.dumps(nx.node_link_data(graph, edges="edges"))
    again = nx.node_link_graph(json.loads(document), edges="edges")
    assert nx.utils.graphs_equal(graph, again)


def test_parameters_have_units_and_a_way_to_start():
    for generator in GENERATORS.values():
        assert generator.example.startswith(f"{generator.name}:")
        for parameter in generator.parameters:
            assert parameter.meaning
            assert (parameter.unit == "bytes/s") == parameter.name.endswith(
                "_bytes_per_s"
            )
            assert (parameter.unit == "ns") == parameter.name.endswith("_ns")


def test_blanks_case_and_names_do_not_matter():
    one = generate("Torus: 2x3 , wrap = NO")
    other = build(GENERATORS["torus"], {"shape": (2, 3), "wrap": False})
    assert nx.utils.graphs_equal(
        nx.Graph(one.edges(data=True)), nx.Graph(other.edges(data=True))
    )
    assert nx.utils.graphs_equal(
        nx.Graph(generate("fat-tree:4").edges), nx.Graph(generate("fat-tree:k=4").edges)
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fat-tre:k=2", "topology generator: .* did you mean 'fat-tree'"),
        ("", "topology generator: expected one of all-to-all, dgx"),
        ("torus:shpe=4x4", "torus: parameter: .* did you mean 'shape'"),
        ("dgx:nodes=4,ports=poled", "dgx: ports: .* did you mean 'pooled'"),
    ],
)
def test_unknown_names(text, message):
    with pytest.raises(UnknownNameError, match=message) as error:
        generate(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("text", "message"), rows("generators", "names"))
def test_bad_input(text, message):
    with pytest.raises(InvalidOptionError, match=message) as error:
        generate(text)
    assert "\n" not in str(error.value)
    assert str(error.value).count(";") >= 1


def test_the_largest_slices_are_allowed():
    assert len(generate("tpu-v4:16x16x16")) == 4096
    assert len(generate("tpu-v5p:16x20x28")) == 8960


def shown(parameter) -> str:
    """Return a parameter as the page has it."""
    if parameter.required or parameter.default is None:
        return f"`{parameter.name}`"
    value = parameter.default
    if isinstance(value, bool):
        value = "yes" if value else "no"
    elif parameter.unit == "bytes/s":
        value = f"{value / GB:g}e9"
    elif not isinstance(value, str):
        value = f"{value:g}"
    return f"`{parameter.name}={value}`"


def test_the_page_lists_all_generators_with_their_defaults():
    page = (ROOT / "docs" / "topologies-generators.md").read_text()
    (stated,) = re.findall(r"\*fabric\* stands for\s([^.]+)\.", page)
    fabric = stated.replace("\n", " ").split(", ")
    for generator in GENERATORS.values():
        parameters = [*map(shown, generator.parameters)]
        if set(fabric) <= set(parameters):
            kept = [each for each in parameters if each not in fabric]
            parameters = [*kept, "*fabric*"]
        assert f"| `{generator.example}` | {', '.join(parameters)} |" in page


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "fat-tre",
            "topology generator: expected one of all-to-all, .*; got "
            "'fat-tre'; did you mean 'fat-tree'?",
        ),
        (
            "leaf-spine:leaves=2,hosts=7,oversubscription=2",
            "leaf-spine: oversubscription: expected a divisor of the 7 links "
            "below a leaf, got 2; or say how many spines there are",
        ),
        (
            "tpu-v4:32x16x16",
            "tpu-v4: shape: expected at most 4096 devices, got 32x16x16 = "
            "8192; that is the largest slice",
        ),
    ],
)
def test_errors_state_the_place_and_a_remedy(text, message):
    with pytest.raises((UnknownNameError, InvalidOptionError), match=message):
        generate(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ring:devices=4,link_bytes_per_s=1e300", "expected <= 1e21"),
        ("ring:devices=4,link_bytes_per_s=1e-300", "expected >= 1e-21"),
        ("torus:2x2,link_bytes_per_s=9e20", "expected <= 1e21"),
        ("ring:devices=4,link_latency_ns=1e10", r"expected <= 1e\+09"),
    ],
)
def test_links_that_no_problem_may_have_are_refused(text, message):
    with pytest.raises(InvalidOptionError, match=message):
        generate(text)


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("dgx:nodes=1,oversubscription=2", "raise nodes"),
        ("dgx:nodes=7,spines=2", "write nodes_per_leaf=1"),
        ("nvl72:racks=1,up_latency_ns=9", "raise racks"),
        ("leaf-spine:leaves=1,hosts=4,spines=4", "raise leaves"),
        ("rail:nodes=4,spines=0,oversubscription=2", "remove spines=0"),
    ],
)
def test_figures_of_spines_without_spines_are_refused(text, remedy):
    got = r"got (one for all \w+|none), so it has no effect"
    with pytest.raises(InvalidOptionError, match=f"spines, {got}; {remedy}"):
        generate(text)


def test_the_example_of_every_remedy_is_a_network():
    for text, larger in (
        ("leaf-spine:leaves=4,hosts=4", "leaf-spine:leaves=4,hosts=32"),
        ("dgx:nodes=4", "dgx:nodes=16"),
        ("dgx1", "dgx1:nodes=16"),
    ):
        remedy = enlarged(text, 128)
        assert remedy.split()[:2] == ["write", larger.split(":")[1].split(",")[-1]]
        assert len(generate(larger).graph["order"]) >= 128
    assert enlarged("torus:4x4", 128) == ""
    assert enlarged("fat-tree:k=4", 128) == ""
    assert enlarged("dgx:nodes=4,nodes_per_leaf=4", 40) == ""
