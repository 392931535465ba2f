"""Pictures of networks: they parse, and show every device and stage."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET

import networkx as nx
import pytest

from nest.errors import InvalidPlanError, InvalidProblemError
from nest.ir.plan import Plan, Stage, Strategy
from nest.topology.generators import GENERATORS, generate
from nest.topology.plot import StageColors, network_svg, plan_stages

SVG = "{http://www.w3.org/2000/svg}"

PLAN = Plan(
    replicas=2,
    micro_batch=1,
    stages=(
        Stage(layers=("a", "b"), devices=4, strategy=Strategy(tp=4)),
        Stage(layers=("c",), devices=2, strategy=Strategy(dp=2)),
    ),
)


def drawn(text: str, kind: str) -> list[ET.Element]:
    """Return the shapes of a class in a picture."""
    return [
        element
        for element in ET.fromstring(text).iter()
        if element.get("class") == kind
    ]


def titles(shapes: list[ET.Element]) -> list[str]:
    return [shape.findtext(f"{SVG}title") for shape in shapes]


@pytest.mark.parametrize("name", GENERATORS)
def test_every_node_and_link_once(name):
    graph = generate(GENERATORS[name].example)
    text = network_svg(graph)
    order = graph.graph["order"]
    assert titles(drawn(text, "device")) == [
        f"rank {rank}: {device}" for rank, device in enumerate(order)
    ]
    assert sorted(titles(drawn(text, "switch"))) == sorted(set(graph) - set(order))
    (links,) = drawn(text, "links")
    assert len(links) == graph.size()
    assert text == network_svg(generate(GENERATORS[name].example))
    root = ET.fromstring(text)
    assert root.findtext(f"{SVG}title") == GENERATORS[name].example


@pytest.mark.parametrize("name", GENERATORS)
def test_nothing_overlaps_or_leaves_the_picture(name):
    text = network_svg(generate(GENERATORS[name].example))
    _, _, width, height = map(float, ET.fromstring(text).get("viewBox").split())
    places = [
        (float(s.get("x")) + 9, float(s.get("y")) + 9) for s in drawn(text, "device")
    ] + [(float(s.get("cx")), float(s.get("cy"))) for s in drawn(text, "switch")]
    assert all(0 < x < width and 0 < y < height for x, y in places)
    for row in {y for _, y in places}:
        along = sorted(x for x, y in places if y == row)
        assert all(b - a > 11 for a, b in itertools.pairwise(along))


def test_switches_stand_as_high_as_they_are_far():
    text = network_svg(generate("fat-tree:k=4"))
    shapes = drawn(text, "switch")
    heights: dict[str, set[float]] = {}
    for shape, name in zip(shapes, titles(shapes), strict=True):
        kind = name.rpartition(".")[2].rstrip("0123456789")
        heights.setdefault(kind, set()).add(float(shape.get("cy")))
    heights["device"] = {float(s.get("y")) for s in drawn(text, "device")}
    (core,), (agg,), (edge,), (device,) = (
        heights.pop(kind) for kind in ("core", "agg", "edge", "device")
    )
    assert core < agg < edge < device
    assert not heights


def test_a_plan_colours_its_devices():
    graph = generate("leaf-spine:leaves=2,hosts=8")
    text = network_svg(graph, plan=PLAN)
    colors = [shape.get("fill") for shape in drawn(text, "device")]
    first, second, idle = colors[0], colors[4], colors[6]
    assert len({first, second, idle}) == 3
    assert colors == 2 * ([first] * 4 + [second] * 2 + [idle] * 2)
    assert [
        (entry.find(f"{SVG}rect").get("fill"), entry.findtext(f"{SVG}text"))
        for entry in drawn(text, "legend")
    ] == [
        (first, "stage 1: 2 layers, tp4"),
        (second, "stage 2: 1 layer, dp2"),
        (idle, "idle"),
    ]
    assert titles(drawn(text, "device"))[8] == (
        "rank 8: leaf1.dev0, stage 1: 2 layers, tp4"
    )
    assert titles(drawn(text, "device"))[7].endswith(", idle")


def test_a_plan_on_all_devices_has_no_idle_ones():
    graph = generate("ring:12")
    entries = drawn(network_svg(graph, plan=PLAN), "legend")
    assert len(entries) == 2


def test_without_a_plan_there_is_no_legend():
    assert drawn(network_svg(generate("ring:4")), "legend") == []


def test_chunks_on_one_block_share_a_colour():
    stage = Stage(layers=("a",), devices=1, strategy=Strategy())
    plan = Plan(replicas=1, micro_batch=1, virtual_stages=2, stages=(stage,) * 4)
    assert plan_stages(plan, 3) == StageColors(
        ("stages 1, 3: 2 layers, single", "stages 2, 4: 2 layers, single"), (0, 1, None)
    )


def test_blocks_stand_where_replicas_have_them():
    """7 devices, 2 replicas: 3 each, the last one is idle."""
    stage = Stage(layers=("a",), devices=2, strategy=Strategy(dp=2))
    plan = Plan(replicas=2, micro_batch=1, stages=(stage,))
    assert plan_stages(plan, 7).block_of == (0, 0, None, 0, 0, None, None)


def test_many_stages_have_colours_of_their_own():
    stages = tuple(
        Stage(layers=(i,), devices=1, strategy=Strategy()) for i in range(24)
    )
    plan = Plan(replicas=1, micro_batch=1, stages=stages)
    text = network_svg(generate("ring:24"), plan=plan)
    assert len({s.get("fill") for s in drawn(text, "device")}) == 24


def test_devices_stand_in_their_order():
    graph = generate("ring:4")
    order = ["dev2", "dev0", "dev3", "dev1"]
    shapes = drawn(network_svg(graph, order), "device")
    assert [t.split()[-1] for t in titles(shapes)] == order
    xs = [float(shape.get("x")) for shape in shapes]
    assert xs == sorted(xs)


def test_names_are_escaped():
    graph = nx.Graph(name="<a & b>", order=['d"<1>'])
    graph.add_node('d"<1>', kind="device")
    graph.add_node("s&", kind="switch")
    graph.add_edge('d"<1>', "s&", bandwidth=1e9, latency_ns=5.0)
    text = network_svg(graph)
    assert titles(drawn(text, "device")) == ['rank 0: d"<1>']
    (links,) = drawn(text, "links")
    assert titles(list(links)) == ['d"<1> - s&: 1 GB/s, 5 ns']


def test_switches_that_no_device_reaches_are_shown():
    graph = generate("leaf-spine:leaves=1,hosts=2")
    graph.add_node("spare", kind="switch")
    assert "spare" in titles(drawn(network_svg(graph), "switch"))


def test_bad_input():
    graph = generate("ring:5")
    with pytest.raises(
        InvalidPlanError,
        match="expected at most 5 devices, got 2 replicas of 6; plot it on",
    ):
        network_svg(graph, plan=PLAN)
    with pytest.raises(InvalidProblemError, match="expected all 5 devices"):
        network_svg(graph, ["dev0"])
