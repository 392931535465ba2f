"""Prices on graphs by hand: the tables in docs/graphs.md, bounds."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from nest.errors import InvalidProblemError
from nest.ir import GraphTopology, Hierarchy, Level
from nest.ir.graph import COLLECTIVES
from nest.topology import Block, Link, ParallelGroups, network_of
from nest.topology.generators import generate
from nest.topology.graph import GraphNetwork
from nest.topology.graph import network as graph_network
from nest.topology.graph.algorithms import NAMES, Places, algorithms
from nest.topology.graph.bounds import bound_ns
from nest.topology.graph.convert import graph_of, read_node_link, topology_of
from nest.topology.graph.routes import Routes
from tests.graphs import make_graph

PAGE = Path(__file__).parents[3] / "docs" / "graphs.md"

FOUR = ("0", "1", "2", "3")
NODES = ({"0": "a", "1": "a", "2": "b", "3": "b"},)


def star(**fields) -> GraphTopology:
    return make_graph(FOUR, [(x, "s", 5, 1e9) for x in FOUR], **fields)


def around(axis: list[list[str]]) -> list[tuple[str, str, float, float]]:
    return [
        (line[i], line[(i + 1) % len(line)], 10, 1e9)
        for line in axis
        for i in range(len(line))
    ]


def torus() -> GraphTopology:
    rows = [[str(3 * i + j) for j in range(3)] for i in range(3)]
    columns = [list(column) for column in zip(*rows, strict=True)]
    return make_graph(
        map(str, range(9)),
        around(rows + columns),
        forward=True,
        coordinates={str(3 * i + j): (i, j) for i in range(3) for j in range(3)},
    )


NETWORKS: dict[str, GraphTopology] = {
    "star": star(),
    "launch": star(launch_ns=50.0),
    "slow-down": make_graph(
        FOUR,
        [
            *((x, "s", 5, 1e9) for x in FOUR),
            *(("s", x, 5, 5e8) for x in FOUR),
        ],
        directed=True,
    ),
    "clos": make_graph(
        FOUR,
        [
            *((x, NODES[0][x], 5, 1e9) for x in FOUR),
            *((x, y, 5, 5e8) for x in "ab" for y in ("s1", "s2")),
        ],
        units=NODES,
    ),
    "shared": make_graph(
        FOUR,
        [
            *((x, NODES[0][x], 5, 2e9) for x in FOUR),
            *((x, "core", 5, 1e9) for x in "ab"),
        ],
        units=NODES,
    ),
    "rails": make_graph(
        FOUR,
        [
            *((x, NODES[0][x], 1, 1e10) for x in FOUR),
            *((x, f"rail{int(x) % 2}", 10, 1e9) for x in FOUR),
        ],
        units=NODES,
        forward=True,
    ),
    "uneven": make_graph(
        (*FOUR, "4"),
        [
            *((x, "a" if x in "01" else "b", 5, 1e10) for x in "01234"),
            *((x, "core", 10, 1e9) for x in "01234"),
        ],
        units=({x: "a" if x in "01" else "b" for x in "01234"},),
    ),
    "ring": make_graph(
        FOUR,
        around([list(FOUR)]),
        forward=True,
        coordinates={x: (int(x),) for x in FOUR},
    ),
    "torus": torus(),
    "mesh": make_graph(
        FOUR, [(*pair, 10, 1e9) for pair in itertools.combinations(FOUR, 2)]
    ),
    "paths": make_graph(
        ("0", "1"),
        [
            *((x, "a", 5, 3e9) for x in "01"),
            *((x, "b", 5, 1e9) for x in "01"),
            *((x, "c", 50, 1e11) for x in "01"),
        ],
    ),
}  # fmt: skip


def rows(columns: int) -> list[tuple[str, ...]]:
    """Return the cells of the page's table with so many columns."""
    lines = PAGE.read_text("utf-8").splitlines()
    cells = [
        tuple(cell.strip() for cell in line.strip("|").split("|"))
        for line in lines
        if line.startswith("|")
    ]
    return [row for row in cells if len(row) == columns and row[0] in NETWORKS]


def read_groups(text: str) -> list[list[int]]:
    return [[int(x) for x in group.split()] for group in text.split(";")]


def test_the_page_has_every_network_and_algorithm():
    assert len(rows(7)) >= 29
    assert {row[0] for row in rows(7)} == set(NETWORKS)
    assert {row[4] for row in rows(7)} == set(NAMES)


@pytest.mark.parametrize("row", rows(7), ids=lambda row: " ".join(row[:5]))
def test_a_price_is_what_the_page_derives(row):
    name, groups, kind, size, algorithm, expected, _ = row
    network = GraphNetwork(NETWORKS[name])
    times = network.offered_ns(kind, read_groups(groups), int(size))
    assert times[algorithm] == pytest.approx(float(expected), rel=1e-11)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(
    "kind", ["all-reduce", "all-gather", "reduce-scatter", "all-to-all"]
)
def test_what_is_on_offer(name, kind):
    topology = NETWORKS[name]
    everyone = list(range(topology.max_devices))
    power = len(everyone) in (2, 4)
    offered = list(GraphNetwork(topology).offered_ns(kind, [everyone], 100))
    expected = {
        "ring": True,
        "two-way-ring": True,
        "rotated-rings": bool(topology.units),
        "halving-doubling": power or kind == "all-reduce",
        "halving-doubling-far": power or kind == "all-reduce",
        "direct": True,
        "one-phase": kind == "all-reduce",
        "bruck": not power,
        "doubling": kind == "all-reduce",
        "pxn": name == "uneven",
        "two-trees": kind == "all-reduce",
        "pipelined": True,
        "torus": bool(topology.coordinates),
    }
    if kind == "all-to-all":
        expected = {"direct": True, "bruck": True, "pxn": bool(topology.units)}
    assert offered == [name for name in NAMES if expected.get(name)]


def test_groups_that_cannot_all_run_an_algorithm_do_without():
    """3 ranks are no power of two, 2 are one; 0, 1, 4 are no box.

    3 and 0 have a rank in each of two nodes.
    """
    clos, torus = (GraphNetwork(NETWORKS[name]) for name in ("clos", "torus"))
    together = clos.offered_ns("all-reduce", [[0, 1, 2], [3, 0]], 100)
    assert not {"pxn", "one-phase", "bruck"} & {*together}
    assert "halving-doubling" not in clos.offered_ns("all-gather", [[0, 1, 2]], 100)
    corner = torus.offered_ns("all-gather", [[0, 1, 4]], 100)
    assert "torus" not in corner


def spined() -> GraphTopology:
    """Return 2 nodes of 2 devices: 0.1 ns per byte inside, rails with a thin spine.

    Each device has 1 ns per byte on its rail, each rail 4 ns per byte to the spine.
    """
    return make_graph(
        FOUR,
        [
            *((x, NODES[0][x], 5, 1e10) for x in FOUR),
            *((x, f"rail{int(x) % 2}", 5, 1e9) for x in FOUR),
            *((f"rail{x}", "spine", 5, 2.5e8) for x in range(2)),
        ],
        units=NODES,
    )


def test_through_the_own_node_an_all_to_all_stays_on_its_rails():
    """Of 800 bytes each rank sends 200 to every other one.

    Direct, a rail sends 2 of them over the spine, 400 bytes at 4 ns, after 10 + 10 + 20
    ns. Through the node a rank sends 2 inside and 2 on its rail: 10 + 10 + 400 ns.
    """
    times = GraphNetwork(spined()).offered_ns("all-to-all", [[0, 1, 2, 3]], 800)
    assert times["direct"] == 40 + 1600
    assert times["pxn"] == 20 + 400


def test_ranks_of_a_large_node_use_the_rails_of_a_small_one():
    """Rank 0 is alone in its node, and 2 is on its rail.

    Of 300 bytes 2 passes on 100 to 3 and 100 from 3: 0 and 2 exchange 200. Direct,
    100 bytes take 400 ns on the spine.
    """
    times = GraphNetwork(spined()).offered_ns("all-to-all", [[0, 2, 3]], 300)
    assert times["direct"] == pytest.approx(30 + 400)
    assert times["pxn"] == pytest.approx(20 + 200)


def rails_only(node_bytes_per_s: float = 1e10) -> GraphTopology:
    """Return 2 nodes of 3 devices that forward, and 3 rails.

    Each device has 1 ns, by default 0.1 ns per byte, into its node, and 10 ns and 1 ns
    per byte to its rail.
    """
    node_of = {str(i): "ab"[i // 3] for i in range(6)}
    return make_graph(
        node_of,
        [
            *((name, node, 1, node_bytes_per_s) for name, node in node_of.items()),
            *((name, f"rail{int(name) % 3}", 10, 1e9) for name in node_of),
        ],
        units=(node_of,),
        forward=True,
    )


def test_mates_are_on_one_rail():
    """1 and 2 are on the rails of 4 and 5; the other node's 3 has no mate.

    Of shards of 100, 3 sends 50 to 4 and 5, at 2 ns each. They send 150 across, 20 ns.
    Inside 4 ns more. All-to-all, 1 sends 300 to 4, which passes on 200 to two others.
    """
    network = GraphNetwork(rails_only())
    group = [[1, 2, 3, 4, 5]]
    gather = network.offered_ns("all-gather", group, 500)
    assert gather["pxn"] == pytest.approx(4 + 20 + 4 + 150)
    exchange = network.offered_ns("all-to-all", group, 500)
    assert exchange["pxn"] == pytest.approx(4 + 20 + 300)


def test_colors_of_a_torus_do_not_wait_for_each_other():
    """3 × 2 devices, 1 ns per byte along the first axis and 0.8 along the other one.

    The color of 300 bytes that begins along the first puts 100 there each way and 50 on
    the second; the other one 150 on the second, and 50 on the first. So the first
    carries 150, 150 ns, and the second 200, 160 ns. A ring of 3 takes 20 ns twice.
    """
    at = {str(i): (i // 2, i % 2) for i in range(6)}
    first = around([["0", "2", "4"], ["1", "3", "5"]])
    second = [(str(i), str(i + 1), 10, 1.25e9) for i in (0, 2, 4)]
    topology = make_graph(at, [*first, *second], forward=True, coordinates=at)
    times = GraphNetwork(topology).offered_ns("all-gather", [range(6)], 600)
    assert times["torus"] == pytest.approx(40 + 160)


def test_large_groups_send_directly():
    """513 ranks on one node do not pass anything on."""
    names = [str(i) for i in range(513)]
    links = [(name, "s", 5, 1e9) for name in names]
    node = (dict.fromkeys(names, "node"),)
    network = GraphNetwork(make_graph(names, links, units=node))
    for size in (512, 513):
        offered = network.offered_ns("all-to-all", [range(size)], 100)
        assert ("pxn" in offered) == (size == 512)


def test_groups_of_different_shapes_go_through_their_levels_together():
    """0 1 2 3 have two levels, 4 5 one, all on leaves of 2 of a larger clos.

    A half of 200 bytes: 10 inside the leaves and 20 across, where ranks send 100
    inside and 50 across: 150 on a port. An all-reduce of 4 5 stays with the first
    step, as two halves, 2·10, beside an all-reduce across, 20: 300 on a port. 4 6
    have one level too, their first: 20 beside 10 inside.
    """
    leaf_of = {str(i): f"leaf{i // 2}" for i in range(8)}
    topology = make_graph(
        leaf_of,
        [
            *((name, leaf, 5, 1e9) for name, leaf in leaf_of.items()),
            *((f"leaf{i}", "spine", 5, 1e9) for i in range(4)),
        ],
        units=(leaf_of,),
    )
    network = GraphNetwork(topology)

    def pipelined(kind, other):
        times = network.offered_ns(kind, [[0, 1, 2, 3], other], 200)
        return times["pipelined"]

    assert pipelined("all-gather", [4, 5]) == 30 + 150
    assert pipelined("all-reduce", [4, 5]) == 40 + 300
    assert pipelined("all-gather", [4, 6]) == 40 + 150


def test_nothing_to_do_takes_no_time():
    network = GraphNetwork(NETWORKS["launch"])
    assert network.offered_ns("all-reduce", [[0], [1]], 100) == {}
    assert network.offered_ns("all-reduce", [[0, 1]], 0) == {}
    block = Block(1, 0, 0, 4)
    nobody = network.groups(ParallelGroups(block, 1, 1))
    assert network.collective_ns("all-reduce", nobody, 100) == 0
    pairs = network.groups(ParallelGroups(block, 2, 1))
    assert network.collective_ns("all-reduce", pairs, 0) == 0
    assert network.collective_ns("all-reduce", pairs, 100) == 50 + 10 + 100


def test_prices_are_those_of_the_kinds_that_are_asked_for():
    """In any order, and of equal groups."""
    groups = ParallelGroups(Block(1, 0, 0, 4), 4, 1)
    whole = GraphNetwork(NETWORKS["clos"]).groups(groups)
    network = GraphNetwork(NETWORKS["clos"])
    for kind in COLLECTIVES:
        prices = network.groups(groups, (kind,))
        assert prices.lines(kind) == whole.lines(kind)
        assert sum(lines is not None for lines in prices) == 1
    with pytest.raises(AssertionError, match="all-reduce is not priced"):
        network.collective_ns("all-reduce", network.groups(groups, ("all-gather",)), 1)


def test_equal_prices_are_equal_keys():
    """The pairs of the star are alike; those across the leaves are not."""
    flat, clos = (GraphNetwork(NETWORKS[name]) for name in ("star", "clos"))
    for network, equal in ((flat, True), (clos, False)):
        near, far = (
            network.groups(ParallelGroups(Block(1, 0, 0, 4), 2, stride))
            for stride in (1, 2)
        )
        assert (near == far) is equal
        assert hash(near) == hash(near)


def test_blocks_use_the_devices_in_their_order():
    """Devices 0, 2, 1, 3 in this order: neighbors are on different leaves."""
    clos = NETWORKS["clos"]
    turned = GraphNetwork(
        GraphTopology(nodes=clos.nodes, links=clos.links, order=("0", "2", "1", "3"))
    )
    assert turned.offered_ns("all-reduce", [[0, 1]], 100)["ring"] == 140
    assert turned.offered_ns("all-reduce", [[0, 2]], 100)["ring"] == 120


def test_latencies_of_any_size_are_exact():
    """Seconds in femtoseconds, times hops: more than 64 bits."""
    n = 100
    names = [str(i) for i in range(n)]
    topology = make_graph(
        names, [(a, b, 1e9, 1e9) for a, b in itertools.pairwise(names)], forward=True
    )
    times = GraphNetwork(topology).offered_ns("all-gather", [range(n)], n)
    # The first one sends to all, one after the other.
    assert times["direct"] == 1e9 * sum(range(n)) + 50 * 50
    # From hop to hop, and back.
    assert times["ring"] == 1e9 * 2 * (n - 1) - 1e9 + n - 1


# Messages


@pytest.mark.parametrize("row", rows(8), ids=lambda row: " ".join(row[:5]))
def test_a_receive_is_what_the_page_derives(row):
    name, replicas, pitch, *places, alpha_ns, ns_per_byte, _ = row
    network = GraphNetwork(NETWORKS[name])
    blocks = [
        Block(int(replicas), int(pitch), devices[0], len(devices))
        for devices in ([int(x) for x in place.split()] for place in places)
    ]
    link = Link(float(alpha_ns), 1e9 / float(ns_per_byte))
    assert network.route(*blocks) == {link}


def test_replicas_receive_at_the_same_time():
    """0 to 2 and 1 to 3 of turned devices share the ports of the nodes.

    A message each, 2 on a port of 1 ns per byte.
    """
    shared = NETWORKS["shared"]
    turned = GraphNetwork(
        GraphTopology(
            nodes=shared.nodes, links=shared.links, order=("0", "2", "1", "3")
        )
    )
    both, one = (turned.route(Block(n, 2, 1, 1), Block(n, 2, 0, 1)) for n in (2, 1))
    assert both == {Link(20, 5e8)}
    assert one == {Link(20, 1e9)}


def test_inside_a_block_a_quarter_stays_where_it_is():
    network = GraphNetwork(NETWORKS["star"])
    (link,) = network.inside(Block(1, 0, 0, 4))
    assert link == Link(10, 1.33333333333e9)
    (alone,) = network.inside(Block(1, 0, 0, 1))
    assert alone.alpha_ns == 0


@pytest.mark.parametrize("name", NETWORKS)
def test_links_enclose_all_routes(name):
    network = network_of(NETWORKS[name])
    n = NETWORKS[name].max_devices
    fast, slow = network.links
    blocks = [Block(1, n, k, size) for size in (1, 2, n) for k in range(n - size + 1)]
    found = [network.inside(block) for block in blocks if block.devices > 1]
    found += [
        network.route(a, b)
        for a, b in itertools.permutations(blocks, 2)
        if a.offset + a.devices <= b.offset or b.offset + b.devices <= a.offset
    ]
    for (link,) in found:
        assert fast.alpha_ns <= link.alpha_ns <= slow.alpha_ns
        assert slow.beta <= link.beta <= fast.beta


#: The first of them says which blocks are alike.
ROTATIONS = {
    "star": [(4, 1), (2, 1)],
    "clos": [(4, 2), (2, 1)],
    "rails": [(4, 2), (2, 1)],
    # By one it takes a device to the other rail, and a node apart.
    "shared": [(4, 2), (2, 1)],
    "uneven": [(5, 5)],
    "ring": [(4, 1)],
    "torus": [(9, 3), (3, 1)],
    # Both are on the same switches.
    "paths": [(2, 1)],
}


@pytest.mark.parametrize("name", ROTATIONS)
def test_rotations_that_change_nothing(name):
    network = GraphNetwork(NETWORKS[name])
    assert network.rotations == ROTATIONS[name]
    assert network.period == ROTATIONS[name][0][1]


@pytest.mark.parametrize(
    ("block", "first"),
    [
        # by units of 3; blocks of 2 are tiled by twos
        (Block(2, 4, 3, 1), Block(2, 4, 0, 1)),
        (Block(2, 4, 2, 1), Block(2, 4, 2, 1)),
        (Block(1, 9, 6, 2), Block(1, 9, 0, 2)),
        (Block(1, 9, 3, 2), Block(1, 9, 3, 2)),
        # two blocks fill a replica of 8, one a replica of 7 or none at all
        (Block(1, 8, 3, 4), Block(1, 8, 3, 4)),
        (Block(1, 7, 3, 4), Block(1, 7, 0, 4)),
        (Block(1, 0, 3, 2), Block(1, 0, 0, 2)),
    ],
)
def test_blocks_are_like_those_whole_units_away(block, first):
    assert GraphNetwork(NETWORKS["torus"]).alike(block) == first


@pytest.mark.parametrize(
    ("groups", "expected_ns"),
    [
        # 0 and 2 alone, over four links of 5, exchange all at once: 20 + 100
        (ParallelGroups(Block(2, 2, 0, 1), 1, 1, True), 120),
        # 1 and 3 as well, on the same ports
        (ParallelGroups(Block(2, 2, 0, 1), 1, 1, True, True), 220),
        (ParallelGroups(Block(2, 2, 1, 1), 1, 1, True, True), 220),
        # 1, 2 sit alone in a replica of 4: at 3 there is no room
        (ParallelGroups(Block(1, 4, 1, 2), 2, 1, False, True), 120),
        # 0, 1 and 2, 3: inside their nodes, 10 + 50
        (ParallelGroups(Block(1, 4, 2, 2), 2, 1, False, True), 60),
        # without a replica nothing is tiled
        (ParallelGroups(Block(1, 0, 2, 2), 2, 1, False, True), 60),
    ],
)
def test_what_ends_the_step_all_stages_do_at_once(groups, expected_ns):
    network = GraphNetwork(NETWORKS["shared"])
    found = network.collective_ns("all-reduce", network.groups(groups), 100)
    assert found == expected_ns


def test_the_least_receive_is_as_near_and_as_fast_as_any():
    """Every route is 10 ns or more, of arcs of 5 ns.

    A device sends and receives 1 ns per byte. Two messages enter two devices in 1 ns
    per byte, and leave a single one in 2.
    """
    network = GraphNetwork(NETWORKS["clos"])
    for devices, sizes, beta in ((1, [1, 2], 1e9), (2, [1, 2], 1e9), (2, [1], 5e8)):
        receiver = Block(1, 4, 0, devices)
        (least,) = network.fastest(receiver, sizes, forward=False)
        assert least == pytest.approx(Link(5.0, beta), rel=1e-9)
        assert least.beta > beta
    # Ports of 3e9, 3e9 and 1e9 bytes/s on a switch.
    star = make_graph("abc", [(x, "s", 1.0, 3e9 - 2e9 * (x == "c")) for x in "abc"])
    for offset, beta in ((1, 3e9), (2, 1e9)):
        receiver = Block(1, 3, offset, 1)
        (least,) = GraphNetwork(star).fastest(receiver, [1], forward=True)
        assert least.beta == pytest.approx(beta)


# Bounds

BOUNDS = [
    # ports: 2·3·X over 4 of 1 ns per byte
    ("star", "0 1 2 3", "all-reduce", 1.5),
    ("star", "0 1 2 3", "all-gather", 0.75),
    # leaves: 2·X over 2 of 1; ports still 1.5
    ("clos", "0 1 2 3", "all-reduce", 1.5),
    # a leaf gets 2/4 of the buffer of each of two groups in at 1 ns a byte
    ("clos", "0 2; 1 3", "all-gather", 1.0),
    ("clos", "0 2; 1 3", "all-reduce", 2.0),
    ("clos", "0 2", "all-reduce", 1.0),
    # 2·2/4 leave a leaf, 3/4 a device
    ("clos", "0 1 2 3", "all-to-all", 1.0),
    # a port for two: X of both groups
    ("shared", "0 2; 1 3", "all-reduce", 2.0),
    # nodes: 2·X over the ports of 2 devices each: 0.5; X out of either: 0.5;
    # ports of 11 a device: 6/44
    ("rails", "0 1 2 3", "all-reduce", 0.5),
    # 4 units of 3 devices: none are given; ports of 4: 2·8/36
    ("torus", "0 1 2 3 4 5 6 7 8", "all-reduce", 16 / 36),
    # what enters a device takes 2 ns a byte
    ("slow-down", "0 1", "all-gather", 1.0),
]  # fmt: skip


@pytest.mark.parametrize(("name", "groups", "kind", "slope"), BOUNDS)
def test_bound(name, groups, kind, slope):
    network = GraphNetwork(NETWORKS[name])
    found = bound_ns(network.routes, kind, read_groups(groups), 1000, network.places)
    assert found == pytest.approx(1000 * slope, rel=1e-11)


def test_cuts_do_not_bound_large_networks(monkeypatch):
    """On "clos" a leaf lets half the buffer of two groups in at 1 ns a byte.

    Ports alone: 2/4 of a buffer at 2 bytes per ns.
    """
    network = GraphNetwork(NETWORKS["clos"])
    asked = (
        *(network.routes, "all-gather", read_groups("0 2; 1 3"), 1000),
        network.places,
    )
    with_cuts = bound_ns(*asked)
    monkeypatch.setattr("nest.topology.graph.bounds.MAX_CUTS", 0)
    assert bound_ns(*asked) < with_cuts == pytest.approx(1000)


@pytest.mark.parametrize(
    ("bandwidth", "latency_ns", "message"),
    [
        (1e21, 0.0, r"levels\[1\]: as links: .*expected <= 1e21, got 2e\+21"),
        (1e9, 1e10, r"levels\[0\]: as links: latency_ns: expected <= 1e\+09"),
    ],
)
def test_trees_whose_links_are_out_of_range_have_no_graph(
    bandwidth, latency_ns, message
):
    level = Level(fan_out=2, bandwidth_bytes_per_s=bandwidth, latency_ns=latency_ns)
    with pytest.raises(InvalidProblemError, match=message):
        graph_of(Hierarchy(levels=(level, level)))


def test_trees_with_room_for_too_many_devices_have_no_graph():
    level = Level(fan_out=2**40, bandwidth_bytes_per_s=1e9)
    with pytest.raises(InvalidProblemError, match="room for at most 1048576"):
        graph_of(Hierarchy(levels=(level, level)))


def test_numbers_that_no_float_holds_are_refused():
    link = {"source": "a", "target": "b", "bandwidth": 10**400}
    nodes = [{"id": "a", "kind": "device"}, {"id": "b", "kind": "device"}]
    document = {"nodes": nodes, "edges": [link]}
    with pytest.raises(InvalidProblemError, match="to be a finite number > 0"):
        read_node_link(document)


def test_a_group_alone_is_no_slower_than_beside_others(monkeypatch):
    """On a torus of 3 × 3, at every offset: what bounds say of all groups."""
    network, faster = network_of(torus()), 0
    monkeypatch.setattr(graph_network, "SMALL", 8)
    for size, stride in itertools.product((2, 3, 4), (1, 2, 3)):
        for devices in range(size * stride, 10, size * stride):
            for offset in range(10 - devices):
                groups = ParallelGroups(Block(1, 0, offset, devices), size, stride)
                prices, bounds = network.groups(groups), network.bounding.groups(groups)
                for kind, size_bytes in itertools.product(COLLECTIVES, (1.0, 1e9)):
                    least_ns = network.collective_ns(kind, bounds, size_bytes)
                    all_ns = network.collective_ns(kind, prices, size_bytes)
                    assert least_ns <= all_ns
                    faster += least_ns < all_ns
    assert faster


def test_a_box_beside_one_with_another_axis_may_be_faster():
    """2 × 2 ranks of a torus of 2 × 4 × 3, beside three along the third axis.

    Alone half of the buffer takes the second axis first, with three colors a third.
    """
    topology = topology_of(generate("torus:2x4x3"))
    routes, places = Routes(topology), Places.of(topology)
    box, other = [0, 1, 2, 3], [6, 14, 22]

    def half_ns(groups, **options):
        lines = algorithms(routes, groups, places, ["half"], **options)["half"]["torus"]
        return min(line.time_ns(1e9) for line in lines)

    beside_ns = half_ns([box, other])
    assert half_ns([box], beside_others=True) <= beside_ns < half_ns([box])
