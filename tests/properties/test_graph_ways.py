"""Ways that are known without all paths: those of the paths themselves.

Prices on folded Clos networks and tori against the same prices from all
paths: equal to the femtosecond in latency and to the last quantum in time;
where floats are exact, equal in every bit.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nest.ir import GraphTopology
from nest.topology.generators import generate
from nest.topology.graph import GraphNetwork, shifts
from nest.topology.graph.algorithms import Places, algorithms
from nest.topology.graph.convert import topology_of
from nest.topology.graph.paths import Paths
from nest.topology.graph.routes import Routes
from nest.topology.graph.shifts import ShiftedWays, shifted_ways
from nest.topology.graph.switches import SwitchWays, _levels, switch_ways
from nest.topology.graph.trees import TreeWays, tree_ways
from nest.topology.graph.wires import Ways
from tests.graphs import make_graph, random_graph
from tests.properties.profiles import examples
from tests.strategies import pick

#: Bandwidths whose sums and ratios are exact, and others.
EXACT = (2.0**30, 2.0**31, 2.0**28)
ANY = (1e9, 3e9, 7.7e8)
LATENCIES = (0.0, 5.0, 0.1, 1000.0)


Kind = Callable[[Routes], Ways | None]


def routes_by(kind: Kind, topology: GraphTopology) -> Routes:
    """Return routes of a kind; all paths if a graph is not of it."""
    routes = Routes(topology)
    routes.ways = kind(routes) or Paths(routes)
    return routes


def lines(routes: Routes, topology: GraphTopology, groups):
    return {
        (part, name, i): line
        for part, offered in algorithms(routes, groups, Places.of(topology)).items()
        for name, found in offered.items()
        for i, line in enumerate(found)
    }


def check(kind: Kind, topology: GraphTopology, groups, exact: bool = False) -> None:
    """Hold all prices against those from all paths."""
    found, expected = (
        lines(routes_by(way, topology), topology, groups) for way in (kind, Paths)
    )
    if exact:
        assert found == expected
        return
    # Of algorithms that choose, lines may differ in the last digit.
    if found.keys() == expected.keys():
        for key, line in found.items():
            other = expected[key]
            assert line.latency_fs == other.latency_fs
            assert line.ns_per_byte == pytest.approx(other.ns_per_byte, rel=2e-12)
    assert times(found) == times(expected)


def times(table) -> dict[tuple[str, str, int], int]:
    """Return times in quanta of 1 ns, by part, algorithm and bytes."""
    best: dict[tuple[str, str, int], float] = {}
    for (part, name, _), line in table.items():
        for size in (1, 10**6):
            key, time_ns = (part, name, size), line.time_ns(size)
            best[key] = min(best.get(key, time_ns), time_ns)
    return {key: round(time_ns) for key, time_ns in best.items()}


@st.composite
def groups_of(draw, count: int, powers: bool = False):
    """Draw groups: tiles of the order, or any, one of them smaller perhaps."""
    sizes = [
        size for size in range(2, count + 1) if not powers or size & (size - 1) == 0
    ]
    size = pick(draw, sizes)
    if draw(st.booleans()):
        strides = [s for s in range(1, count + 1) if count % (size * s) == 0] or [1]
        stride = pick(draw, strides)
        found = [
            [first + shift + stride * i for i in range(size)]
            for first in range(0, count - size * stride + 1, size * stride)
            for shift in range(stride)
        ]
        return found[: draw(st.integers(1, len(found)))] or [list(range(size))]
    order = draw(st.permutations(range(count)))
    found = [
        list(order[first : first + size])
        for first in range(0, count if not powers else count - size + 1, size)
    ]
    found = [group for group in found if len(group) > 1]
    if draw(st.booleans()):
        # Groups may have ranks in common.
        found.append(found[0][::-1])
    return found[: draw(st.integers(1, len(found)))]


# Folded Clos networks


@st.composite
def folded_clos(draw, speeds=ANY, counts=(1, 2, 3), shuffled=True):
    """Draw pods of leaves of devices, under planes of cores.

    Every switch of a pod leads to the cores of its own plane, as in a fat
    tree; one pod has no cores. Leaves differ in their devices.
    """
    pods, leaves, planes, cores = (pick(draw, counts) for _ in range(4))
    kinds = [(pick(draw, LATENCIES), pick(draw, speeds)) for _ in range(3)]
    devices, links, leaf_of, pod_of = [], [], {}, {}
    for pod, leaf in itertools.product(range(pods), range(leaves)):
        here = f"leaf{pod}.{leaf}"
        for _ in range(pick(draw, counts)):
            name = f"d{len(devices)}"
            devices.append(name)
            leaf_of[name], pod_of[name] = here, f"pod{pod}"
            links.append((name, here, *kinds[0]))
        links += [(here, f"mid{pod}.{plane}", *kinds[1]) for plane in range(planes)]
    if pods > 1:
        links += [
            (f"mid{pod}.{plane}", f"core{plane}.{core}", *kinds[2])
            for pod in range(pods)
            for plane in range(planes)
            for core in range(cores)
        ]
    if len(devices) == 1:
        devices.append("d1")
        leaf_of["d1"], pod_of["d1"] = leaf_of["d0"], pod_of["d0"]
        links.append(("d1", leaf_of["d1"], *kinds[0]))
    fields = {}
    if draw(st.booleans()):
        fields["units"] = (leaf_of, pod_of)
    if shuffled:
        links = draw(st.permutations(links))
        fields["order"] = tuple(draw(st.permutations(devices)))
    return make_graph(devices, links, **fields)


@examples(150, full=2000)
@given(st.data())
def test_a_folded_clos_is_priced_as_its_tree(data):
    topology = data.draw(folded_clos())
    assert isinstance(Routes(topology).ways, TreeWays)
    check(tree_ways, topology, data.draw(groups_of(topology.max_devices)))


@examples(80, full=1000)
@given(st.data())
def test_a_folded_clos_is_its_tree_to_the_last_bit(data):
    topology = data.draw(folded_clos(EXACT, (1, 2, 4)))
    groups = data.draw(groups_of(topology.max_devices, powers=True))
    check(tree_ways, topology, groups, exact=True)


# Switches side by side


@st.composite
def nested_switches(draw, speeds=ANY):
    """Draw nodes of devices, perhaps in racks, and a switch for all.

    Every device is on all switches around it, but for some without a node.
    """
    names = [f"d{i}" for i in range(draw(st.integers(2, 8)))]
    size = draw(st.integers(1, 3))
    links = [
        (name, "all", draw(st.sampled_from((90.0, 95.5))), pick(draw, speeds))
        for name in names
    ]
    for i, name in enumerate(names):
        if draw(st.booleans()) or i % 2:
            latency_ns = draw(st.sampled_from((5.0, 0.1)))
            links.append((name, f"node{i // size}", latency_ns, pick(draw, speeds)))
    if draw(st.booleans()):
        links += [
            (name, f"rack{i // (2 * size)}", 30.0, 1e9) for i, name in enumerate(names)
        ]
    order = tuple(draw(st.permutations(names)))
    return make_graph(names, draw(st.permutations(links)), order=order)


@examples(100, full=2000)
@given(st.data())
def test_switches_side_by_side_are_priced_as_all_paths(data):
    topology = data.draw(nested_switches())
    assert isinstance(switch_ways(Routes(topology)), SwitchWays)
    check(switch_ways, topology, data.draw(groups_of(topology.max_devices)))


def test_what_is_no_switches_side_by_side():
    """Two nodes of two devices at 5 ns, all at 20 ns: one thing is wrong each time."""
    names = [f"d{i}" for i in range(4)]
    inside = [(f"d{i}", f"node{i // 2}", 5, 1e9) for i in range(4)]
    outside = [(f"d{i}", "all", 20, 1e9) for i in range(4)]

    def ways(*links, **fields):
        return switch_ways(Routes(make_graph(names, links, **fields)))

    beside = ways(*inside, *outside)
    one = np.zeros(1, np.int64)
    assert not beside.loads(one, one, np.ones(1)).any()
    # As fast outside as inside.
    assert ways(*inside, *((d, s, 5, w) for d, s, _, w in outside)) is None
    # No switch for all: no graph of connected devices comes so far.
    assert _levels(one, one, np.ones((2, 1), np.int64), 2) is None
    # A node is in two racks; a switch for each two devices, and none for all.
    racks = [(f"d{i}", f"rack{i % 2}", 9, 1e9) for i in range(4)]
    assert ways(*inside, *racks, *outside) is None
    pairs = itertools.combinations(names, 2)
    assert ways(*((x, "".join(pair), 1, 1e9) for pair in pairs for x in pair)) is None
    # Links between devices, or between switches.
    assert ways(*inside, *outside, ("d0", "d3", 1, 1e9)) is None
    assert ways(*inside, *outside, ("node0", "node1", 1, 1e9)) is None
    # A device that passes on, or a link that leads one way only.
    topology = make_graph(names, [*inside, *outside])
    first, *rest = topology.nodes
    passing = replace(topology, nodes=(replace(first, forward=True), *rest))
    assert switch_ways(Routes(passing)) is None
    both = [*inside, *outside, *((s, d, *of) for d, s, *of in (*inside, *outside))]
    assert ways(*both, directed=True) is not None
    assert ways(*both[:8], *both[9:], directed=True) is None
    swapped = ("node1", "d0", 5, 1e9)
    assert ways(*both[:8], swapped, *both[9:], directed=True) is None
    # Sums for five ranks, a second each way, that floats may not hold.
    names.append("d4")
    far = [(name, "all", 1e9, 1e9) for name in names]
    assert ways(*inside, *far) is None


# Tori


@st.composite
def tori(draw, shapes, speeds=ANY):
    """Draw a torus, each axis with its own links, that wraps or does not."""
    shape = pick(draw, shapes)
    wraps = [pick(draw, (True, True, False)) for _ in shape]
    kinds = [(pick(draw, LATENCIES), pick(draw, speeds)) for _ in shape]
    all_places = list(itertools.product(*map(range, shape)))
    links = {}
    for place in all_places:
        for axis, side in enumerate(shape):
            other = list(place)
            other[axis] = (place[axis] + 1) % side
            if side > 1 and (wraps[axis] or other[axis]):
                links.setdefault(frozenset((place, tuple(other))), kinds[axis])
    names = {place: "d" + ".".join(map(str, place)) for place in all_places}
    from_ = draw(st.integers(-2, 2))
    fields = {
        "coordinates": {
            name: tuple(x + from_ for x in place) for place, name in names.items()
        }
    }
    if draw(st.booleans()):
        fields["order"] = tuple(draw(st.permutations(list(names.values()))))
    if draw(st.booleans()):
        fields["units"] = ({name: f"{place[0] // 2}" for place, name in names.items()},)
    topology = make_graph(
        names.values(),
        [(*(names[x] for x in sorted(ends)), *k) for ends, k in links.items()],
        forward=True,
        **fields,
    )
    symmetric = any(
        side > 1 and (wrap or side == 2)
        for side, wrap in zip(shape, wraps, strict=True)
    )
    return topology, symmetric


SHAPES = (
    *((2,), (3,), (4,), (5,), (6,), (1, 4), (2, 2), (2, 3), (3, 3), (4, 2)),
    *((4, 4), (6, 3), (5, 2), (1, 2, 3), (2, 2, 2), (3, 2, 3), (4, 2, 3)),
    (4, 4, 2),
)


@examples(200, full=3000)
@given(st.data(), st.sampled_from((0, 1, 1 << 30)))
def test_a_torus_is_priced_as_from_one_of_its_devices(data, few):
    """Whether few groups are looked at pair by pair or not."""
    topology, symmetric = data.draw(tori(SHAPES))
    assert isinstance(shifted_ways(Routes(topology)), ShiftedWays) == symmetric
    groups = data.draw(groups_of(topology.max_devices))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shifts, "_FEW", few)
        patch.setattr(shifts, "_MAX_WHOLE", few)
        patch.setattr(shifts, "_MANY", min(few, 64))
        patch.setattr(shifts, "_FLOWS", 7 if few else 1 << 18)
        check(shifted_ways, topology, groups)


@examples(80, full=1000)
@given(st.data())
def test_a_torus_is_the_same_to_the_last_bit(data):
    """Messages split in two, or between links of which one has 1/4."""
    shapes = ((2,), (3,), (4,), (5,), (7,), (8,))
    topology, _ = data.draw(tori(shapes, EXACT))
    groups = data.draw(groups_of(topology.max_devices, powers=True))
    check(shifted_ways, topology, groups, exact=True)


@examples(100, full=1000)
@given(st.data())
def test_every_message_takes_as_long_and_loads_as_much(data):
    topology, _ = data.draw(tori(SHAPES))
    pairs = itertools.permutations(range(topology.max_devices), 2)
    sources, targets = np.array(list(pairs)).T
    found, expected = (routes_by(kind, topology).ways for kind in (shifted_ways, Paths))
    latencies = expected.latencies_fs(sources, targets)
    assert (found.latencies_fs(sources, targets) == latencies).all()
    for some in (slice(None), slice(0, 1), slice(0, None, 3)):
        loads = [
            np.sort(
                ways.loads(sources[some], targets[some], 1.0 + sources[some])
                / ways.bandwidths
            )
            for ways in (found, expected)
        ]
        np.testing.assert_allclose(*loads, rtol=1e-12)


# What is neither


def damaged(draw, topology: GraphTopology) -> GraphTopology | None:
    """Return it with a slower, a longer or no link; if still connected."""
    number = draw(st.integers(0, len(topology.links) - 1))
    link = topology.links[number]
    found = {
        "slow": [replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s / 2)],
        "far": [replace(link, latency_ns=link.latency_ns + 3)],
        "gone": [],
    }[pick(draw, ("slow", "far", "gone"))]
    links = list(topology.links)
    links[number : number + 1] = found
    try:
        return replace(topology, links=tuple(links))
    except ValueError:
        return None


@examples(150, full=2000)
@given(st.data())
def test_damaged_networks_are_priced_by_their_own_paths(data):
    kind, networks = data.draw(
        st.sampled_from(
            (
                (tree_ways, folded_clos()),
                (shifted_ways, tori(SHAPES).map(lambda drawn: drawn[0])),
            )
        )
    )
    topology = damaged(data.draw, data.draw(networks))
    if topology is not None:
        check(kind, topology, data.draw(groups_of(topology.max_devices)))


@examples(200, full=3000)
@given(st.data(), st.sampled_from((tree_ways, shifted_ways)))
def test_random_graphs_are_priced_by_their_own_paths(data, kind):
    topology = random_graph(
        lambda values: data.draw(st.sampled_from(values)),
        data.draw(st.sampled_from((2, 3, 4, 6, 8, 9))),
    )
    check(kind, topology, data.draw(groups_of(topology.max_devices)))


# Which networks are of which kind


def by_name(name: str, damage: Any = None) -> GraphTopology:
    graph = generate(name)
    if damage:
        damage(graph)
    return topology_of(graph, name)


def slower(graph) -> None:
    _, _, link = next(iter(graph.edges(data=True)))
    link["bandwidth"] /= 2


def farther(graph) -> None:
    _, _, link = list(graph.edges(data=True))[-1]
    link["latency_ns"] += 1


def cut(graph) -> None:
    one = next(name for name in graph if name.startswith(("core", "dev")))
    graph.remove_edge(one, next(iter(graph[one])))


def one_way(graph) -> None:
    """A device passes nothing on, whatever the others do."""
    graph.nodes[graph.graph["order"][0]]["forward"] = False


@pytest.mark.parametrize(
    ("name", "damage", "kind"),
    [
        ("fat-tree:k=4", None, TreeWays),
        ("leaf-spine:leaves=4,hosts=4,oversubscription=2", None, TreeWays),
        ("fat-tree:k=4", slower, Paths),
        ("fat-tree:k=4", farther, Paths),
        ("fat-tree:k=4", cut, Paths),
        ("dragonfly:p=2,a=4,h=2", None, Paths),
        # Devices have two ways out, to switches that lead to devices only, or not.
        ("dgx:nodes=4", None, SwitchWays),
        ("dgx:nodes=4,nodes_per_leaf=2", None, Paths),
        ("torus:8x9x8", None, ShiftedWays),
        ("tpu-v5p:8x8x12", None, ShiftedWays),
        ("torus:8x8x9", slower, Paths),
        ("torus:8x8x9", farther, Paths),
        ("torus:8x8x9", cut, Paths),
        ("torus:8x8x9", one_way, Paths),
        ("torus:shape=8x8x9,wrap=no", None, Paths),
        ("tpu-v5p:shape=8x8x16,twisted=yes", None, Paths),
        # Few enough for all paths.
        ("torus:8x8x8", None, Paths),
    ],
)
def test_which_networks_are_of_which_kind(name, damage, kind):
    assert type(Routes(by_name(name, damage)).ways) is kind


def two_tiers(*links: tuple[str, str, float, float], **fields):
    """Return two leaves of two devices, with two spines and more links."""
    plain = [
        *((f"d{i}", f"leaf{i // 2}", 5, 1e9) for i in range(4)),
        *((f"leaf{i}", f"spine{j}", 5, 1e9) for i in (0, 1) for j in (0, 1)),
    ]
    return make_graph([f"d{i}" for i in range(4)], [*plain, *links], **fields)


def test_what_is_no_tree():
    assert tree_ways(Routes(two_tiers())) is not None
    # Spines that talk to each other.
    assert tree_ways(Routes(two_tiers(("spine0", "spine1", 1, 1e9)))) is None
    # A spine that passes nothing on.
    nodes = two_tiers().nodes
    lazy = replace(nodes[-1], forward=False)
    assert lazy.id == "spine1"
    idle = replace(two_tiers(), nodes=(*nodes[:-1], lazy))
    assert tree_ways(Routes(idle)) is None
    # Two ways from every spine to the cores, of which only one is short.
    crossed = two_tiers(
        *(
            (f"spine{i}", f"core{j}", 1 + (i + j) % 2, 1e9)
            for i in (0, 1)
            for j in (0, 1)
        ),
        *((f"core{j}", "top", 1, 1e9) for j in (0, 1)),
        ("d4", "top", 1, 1e9),
    )
    crossed = replace(
        crossed,
        nodes=tuple(
            replace(node, kind="device") if node.id == "d4" else node
            for node in crossed.nodes
        ),
    )
    assert tree_ways(Routes(crossed)) is None


def test_sums_that_need_more_than_64_bits_are_left_to_all_paths():
    """A second each way, from 5,000 devices: 10¹⁹ fs."""
    names = [f"d{i}" for i in range(5000)]
    short, far = (
        make_graph(names, [(name, "hub", ns, 1e9) for name in names])
        for ns in (1e6, 1e9)
    )
    assert tree_ways(Routes(short)) is not None
    assert tree_ways(Routes(far)) is None


def test_what_is_no_torus():
    def circle(*links, **fields):
        return make_graph(
            "abcd",
            [*((x, y, 5, 1e9) for x, y in ("ab", "bc", "cd", "da")), *links],
            forward=True,
            **fields,
        )

    at = {name: (i,) for i, name in enumerate("abcd")}
    assert shifted_ways(Routes(circle(coordinates=at))) is not None
    assert shifted_ways(Routes(circle())) is None
    # A switch, a hole, two at one place.
    switch = circle(("a", "s", 5, 1e9), coordinates=at)
    assert shifted_ways(Routes(switch)) is None
    for places in (
        {"a": (0,), "b": (1,), "c": (3,), "d": (4,)},
        {"a": (0,), "b": (1,), "c": (1,), "d": (2,)},
        {"a": (0, 0), "b": (0, 1), "c": (1, 1), "d": (2, 0)},
    ):
        assert shifted_ways(Routes(circle(coordinates=places))) is None


def circle_of(count: int, speeds=(1e9,)) -> Routes:
    """Return a circle of devices, whose links have speeds in turn."""
    names = [f"d{i}" for i in range(count)]
    links = [
        (one, names[i - 1], 5, speeds[i % len(speeds)]) for i, one in enumerate(names)
    ]
    at = {name: (i,) for i, name in enumerate(names)}
    return Routes(make_graph(names, links, forward=True, coordinates=at))


@pytest.mark.parametrize(
    ("groups", "amounts"),
    [
        # 0 and 1 send a byte to each other, 2 and 3 two bytes.
        ([[0, 1], [2, 3]], [1.0, 2.0]),
        # Only 0 and 1 are neighbors.
        ([[0, 1], [2, 4], [3, 5]], [1.0, 1.0, 1.0]),
        # 0 and 1 are in three groups, 4 and 5 in one.
        ([[0, 1], [4, 5], [0, 1], [0, 1]], [1.0] * 4),
    ],
)
def test_groups_that_are_no_shifts_of_each_other(groups, amounts, monkeypatch):
    monkeypatch.setattr(shifts, "_FEW", 0)
    ranks, sent = np.array(groups), np.array(amounts)
    routes = circle_of(ranks.size)
    found, expected = shifted_ways(routes), Paths(routes)
    assert found is not None
    assert found.farthest_fs(ranks) == expected.farthest_fs(ranks)
    assert sorted(found.loads_of_all(ranks, sent)) == sorted(
        expected.loads_of_all(ranks, sent)
    )


@pytest.mark.parametrize(
    ("flows", "amounts", "speeds", "count"),
    [
        # Four and two neighbors send to each other, all to the right.
        ([(0, 1), (2, 3), (4, 5), (6, 7)], [1.0] * 4, (1e9,), 1),
        ([(6, 7), (0, 1)], [1.0] * 2, (1e9,), 1),
        ([(0, 1), (2, 3), (4, 5)], [1.0] * 3, (1e9,), 1),
        # 4 sends twice as much.
        ([(0, 1), (4, 5)], [1.0, 2.0], (1e9,), 2),
        # 3 sends to the left, 5 two to the right.
        ([(0, 1), (3, 2)], [1.0] * 2, (1e9,), 2),
        ([(0, 1), (4, 5), (2, 3), (5, 7)], [1.0] * 4, (1e9,), 4),
        # The first of two flows goes elsewhere.
        ([(0, 1), (1, 2), (4, 6), (5, 6)], [1.0] * 4, (1e9,), 4),
        # Links differ in turn.
        ([(0, 1), (1, 2)], [1.0] * 2, (1e9, 2e9), 2),
        ([(0, 1), (2, 3)], [1.0] * 2, (1e9, 2e9), 1),
    ],
)
def test_flows_that_are_shifts_of_the_first(flows, amounts, speeds, count, monkeypatch):
    """Loads of all flows follow from the first ``count``."""
    monkeypatch.setattr(shifts, "_MAX_WHOLE", 0)
    routes = circle_of(8, speeds)
    found, expected = shifted_ways(routes), Paths(routes)
    assert found is not None
    sources, targets = np.array(flows).T
    sent = np.array(amounts)
    first, _ = found._first_piece((sources, targets), sent, 0)
    assert first == count
    assert sorted(found.loads(sources, targets, sent) / found.bandwidths) == sorted(
        expected.loads(sources, targets, sent) / expected.bandwidths
    )


def test_prices_on_a_large_torus_by_hand():
    """All to all on 16 x 16 x 16 devices, 45 GB/s and 1 us a link.

    From any device the others are 4 hops away along each axis on average,
    if those 8 away count as 8: 3·16²·(2·(1+…+7)+8) = 3·16²·64 hops in all,
    on 6 links, X/4096 each.
    """
    network = GraphNetwork(by_name("torus:16x16x16"))
    times_ns = network.offered_ns("all-to-all", [range(4096)], 4096 * 45)
    hops = 3 * 16 * 16 * 64
    assert times_ns["direct"] == pytest.approx(1000 * hops + hops / 6, rel=1e-12)


def test_prices_on_a_large_fat_tree_by_hand():
    """All to all on 8,192 devices, 16 on a leaf, 50 GB/s, 2:1.

    2000 ns to a leaf and from it, 600 ns to a spine; 16·8176 messages leave
    a leaf over 8 ports, 8191 a device over one.
    """
    network = GraphNetwork(by_name("leaf-spine:leaves=512,hosts=16,oversubscription=2"))
    size = 8192 * 50
    times_ns = network.offered_ns("all-to-all", [range(8192)], size)
    latency_ns = 8191 * 4000 + 8176 * 1200
    assert times_ns["direct"] == pytest.approx(latency_ns + 16 * 8176 / 8, rel=1e-12)
