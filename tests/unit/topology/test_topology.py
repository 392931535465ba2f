"""Times on a tree network, each formula by hand.

One byte takes 1 ns at 1e9 bytes/s and 10 ns at 1e8 bytes/s.
"""

import itertools

import msgspec
import pytest

from nest.ir.cluster import GroupFraction, Hierarchy, Level
from nest.topology import HierarchyNetwork, network_of
from nest.topology.graph.algorithms import Places
from nest.topology.graph.bounds import bound_ns
from nest.topology.graph.network import GraphNetwork
from nest.topology.protocol import Block, Link, ParallelGroups
from nest.topology.shares import Share, Spread, Step, offered
from tests.builders import PAIRS, call, make_levels
from tests.graphs import make_graph

#: Fan-outs 2, 2, 2; the top link is faster than the middle one.
TREE = make_levels((2, 10.0, 1e9), (2, 100.0, 1e8), (2, 1000.0, 4e8))


def transfer_ns(network, level, size_bytes):
    """Time of a message on the links of a level."""
    link = network.links[level]
    return link.alpha_ns + size_bytes / link.beta * 1e9


def with_launches(tree, *launches_ns, **fields):
    return msgspec.structs.replace(
        tree,
        levels=tuple(
            msgspec.structs.replace(level, launch_ns=launch_ns)
            for level, launch_ns in zip(tree.levels, launches_ns, strict=True)
        ),
        **fields,
    )


def nccl(tree):
    return msgspec.structs.replace(tree, algorithms="nccl")


#: One level of nine devices, by its latency.
FLAT = {alpha: make_levels((9, alpha, 1e9)) for alpha in (10.0, 1000.0)}

#: Links to peers: 3e9 bytes/s in all, 1e9 to each of three peers.
MESH = Hierarchy(
    levels=(
        Level(fan_out=4, bandwidth_bytes_per_s=3e9, peer_bandwidth_bytes_per_s=1e9),
        Level(fan_out=2, bandwidth_bytes_per_s=2e9),
    )
)

#: Four devices of a mesh at 100 ns.
LATE_MESH = Hierarchy(
    levels=(msgspec.structs.replace(MESH.levels[0], latency_ns=100.0),)
)

#: Two fours at 100 ns, 1 and 5 ns per byte.
FOURS = make_levels((4, 100.0, 1e9), (2, 100.0, 2e8))

#: Three of three, with launch costs.
THREES = with_launches(make_levels((3, 10.0, 1e9), (3, 100.0, 1e8)), 7.0, 70.0)

#: Pairs at 1e9 bytes/s and 10 ns, two pairs at 4e8 and 100 ns.
NCCL = with_launches(nccl(make_levels((2, 10.0, 1e9), (2, 100.0, 4e8))), 7.0, 70.0)
EIGHT_PAIRS = nccl(make_levels((2, 10.0, 1e9), (8, 100.0, 4e8)))

LAUNCHED = with_launches(PAIRS, 7.0, 70.0)
LOW = make_levels((2, 0.0, 1e8), (2, 0.0, 1e9))
FIVE = (0, 1, 2, 4, 5)

BY_HAND = [
    # ring (n-1)a + (n-1)/n X = 30 + 600; doubling 2a + 600
    (FLAT[10], "all-gather", range(4), 800, 620),
    # ring 40 + 640; Bruck ceil(lg 5) = 3: 30 + 640
    (FLAT[10], "all-gather", range(5), 800, 670),
    # halving 2a + 3/4 X
    (FLAT[10], "reduce-scatter", range(4), 800, 620),
    # five ranks: pairwise only, 4a + 4/5 X
    (FLAT[10], "reduce-scatter", range(5), 800, 680),
    # ring 6a + 2*3/4 X = 1260; halving-doubling 4a + 1200
    (FLAT[10], "all-reduce", range(4), 800, 1240),
    # ring 10a + 2*5/6 X = 100 + 1000; folded p=4: 6a + 3.5 X = 2160
    (FLAT[10], "all-reduce", range(6), 600, 1100),
    # latency bound: ring 10000 + 10; folded 6000 + 3.5*6; two trees as many
    # messages, and inner ranks send to a parent and two children in one
    # tree, to a parent in the other: 6000 + 4/2*6
    (FLAT[1000], "all-reduce", range(6), 6, 6012),
    # pairwise 3a + 3/4 X = 630; Bruck 2a + 2/2 X = 820
    (FLAT[10], "all-to-all", range(4), 800, 630),
    # pairwise 30 + 6 = 36; Bruck 20 + 8
    (FLAT[10], "all-to-all", range(4), 8, 28),
    # eight ranks, small: pairwise 70 + 7; Bruck 3a + 3/2 X = 30 + 12
    (FLAT[10], "all-to-all", range(8), 8, 42),
    # three ranks: pairwise only, 2a + 2/3 X
    (FLAT[10], "all-to-all", range(3), 3, 22),
    # two ranks
    (FLAT[10], "all-reduce", range(2), 100, 120),
    (FLAT[10], "all-gather", range(2), 100, 60),
    (FLAT[10], "all-to-all", range(2), 100, 60),
    # A ring takes the slowest link of its way: one rank of each pair,
    # 1/2*100 at the 1e8 below, not at 1e9.
    (LOW, "all-gather", (0, 2), 100, 500),
    (nccl(LOW), "all-gather", (0, 2), 100, 500),
    # Groups of 2 x 2 on PAIRS with X = 1000. A ring: two hops of 10 and two
    # of 100 less one of 10; 3/4*1000 at twice the 1e8 above: 210 + 3750 a
    # half. Level by level: below, reduce-scatter and all-gather of 1000:
    # 2(10 + 500); above, all-reduce of 500: 2*100 + 5000.
    (PAIRS, "all-reduce", range(4), 1000, 6220),
    # 10 + 500, then 500: 100 + 2500
    (PAIRS, "all-gather", range(4), 1000, 3110),
    (PAIRS, "reduce-scatter", range(4), 1000, 3110),
    # direct: a peer at 10, two at 100; half of 1000 leaves the pair: 210 +
    # 5000; hierarchical 10 + 500, then 100 + 5000
    (PAIRS, "all-to-all", range(4), 1000, 5210),
    # A message has the latency of the level it climbs to: 2*10.5 + 2*100 +
    # 5, or with latencies swapped 2*100.5 + 2*10 + 5. Whatever the other
    # latency is, one message of each rank stays below.
    (PAIRS, "all-reduce", range(4), 1, 226),
    (make_levels((2, 100.0, 1e9), (2, 10.0, 1e8)), *("all-reduce", range(4), 1, 226)),
    # A ring runs on all levels at once: 5 and 10 ns/byte, of which it moves
    # 3/4 of 1000 at 5 on both: 210 + 3750; level by level 110 + 2500 + 2500,
    # direct 210 + 1/2*10000.
    (
        make_levels((2, 10.0, 2e8), (2, 100.0, 1e8)),
        *("all-gather", range(4), 1000, 3960),
    ),
    # Eight devices on three levels: level 0: 2(10 + 400) = 820; level 1 on
    # 400: 2(100 + 2000) = 4200; top on 200 at the path's 10 ns/byte: 2*1000
    # + 2000 = 4000. Flat: 2*3*1000 + 2*7/8*8000 = 20000.
    (TREE, "all-reduce", range(8), 800, 9020),
    # An uneven group is flat: ring 2*2*100 + 2*2/3*3000.
    (PAIRS, "all-reduce", (0, 1, 2), 300, 4400),
    # What runs on all ranks, by exchanges with partners, is launched once.
    (LAUNCHED, "all-reduce", range(4), 1000, 6220 + 70),
    (LAUNCHED, "all-gather", range(4), 1000, 3110 + 70),
    (LAUNCHED, "all-to-all", range(4), 1000, 5210 + 70),
    (LAUNCHED, "all-gather", (0, 1), 100, 7 + 10 + 50),
    # Every level is launched apart. Three of three, X = 900: 20 + 600 below, then 300:
    # 200 + 2000. A ring: 6*10 + 3*100 - 10, 8/9*900 at three times 1e8: 350 + 2666.7.
    (THREES, "all-gather", range(9), 900, 2820 + 7 + 70),
    (THREES, "reduce-scatter", range(9), 900, 2820 + 7 + 70),
    # 2(20 + 600) below, 2(200 + 2000) above
    (THREES, "all-reduce", range(9), 900, 5640 + 2 * 7 + 70),
    # direct 620 + 6000; level by level 620 + 6200
    (THREES, "all-to-all", range(9), 900, 6620 + 70),
    # A group of a mesh uses the links between its members: 1/2*600 at 1e9,
    # 2/3*600 at 2e9, 3/4*600 at 3e9.
    *(
        (tree, "all-gather", range(ranks), 600, expected)
        for tree in (MESH, nccl(MESH))
        for ranks, expected in ((2, 300), (3, 200), (4, 150))
    ),
    # An uneven one uses those of its members: the unit with the fewest holds
    # rings up. Three of one mesh and one of another. Direct: 1/4*600 at 1e9
    # to a peer, 3/4*600 at 2e9 away from the one. Rings: 3/4*600 at 2*1e9 in
    # the mesh and at 2e9 between both.
    (MESH, "all-gather", (0, 1, 2, 4), 600, 225),
    (nccl(MESH), "all-gather", (0, 1, 2, 4), 600, 225),
    # Three of one, two of the other. Direct: 1/5*600 at 1e9, 3/5*600 at 2e9.
    # Rings: 4/5*600 at the 1e9 of the two.
    (MESH, "all-gather", FIVE, 600, 180),
    (nccl(MESH), "all-gather", FIVE, 600, 480),
    # Two of one, one of the other: 1/3*600 at 1e9, 2/3*600 at 2e9.
    (MESH, "all-gather", (0, 1, 4), 600, 200),
    (nccl(MESH), "all-gather", (0, 1, 4), 600, 400),
    # Partners on a mesh have one link: two messages each way, 2*(2*100 + 3/4*4), where
    # links to all peers at once take 2*(3*100 + 1). Two trees: 4*100, and both join
    # ranks 1 and 2: 1/2*4 up in one, 1/2*4 down in the other, 404.
    (LATE_MESH, "all-reduce", range(4), 4, 404),
    (LATE_MESH, "reduce-scatter", range(4), 4, 203),
    (LATE_MESH, "reduce-scatter", range(4), 4000, 1300),
    # Uneven groups. Bruck, 3 messages and 4/5*5 at 5 ns; a ring 4*100 + 10
    (FOURS, "all-gather", FIVE, 5, 320),
    # folded: 6 messages, (2*3/4 + 2)*5 at 5 ns
    (FOURS, "all-reduce", FIVE, 5, 687.5),
    # halving: 2 messages, 3/4*4 at 5 ns
    (FOURS, "reduce-scatter", (0, 1, 2, 4), 4, 215),
    (FOURS, "all-reduce", (0, 1, 2, 4), 4, 430),
    # Bruck: 2 messages, 2/2*4 at 5 ns
    (FOURS, "all-to-all", (0, 1, 2, 4), 4, 220),
    # direct: 4 messages, 3/5*5000 at 5 ns out of the smaller unit
    (FOURS, "all-to-all", FIVE, 5000, 15400),
    # a ring: 4 hops, 4/5*5000 at two ports of 5 ns
    (FOURS, "all-gather", FIVE, 5000, 10400),
    # NCCL on four ranks: two rings, so beta = min(1e9, 2*4e8) = 8e8; hops
    # 2*10 + 2*100, and the last of 4 steps is not taken: - 10.
    (NCCL, "all-gather", range(4), 800, 70 + 210 + 750),
    (NCCL, "reduce-scatter", range(4), 800, 70 + 210 + 750),
    # tree: depth 10 + 100, 70 + 220 + 2000
    (NCCL, "all-reduce", range(4), 800, 70 + 420 + 1500),
    # ring: 70 + 420 + 15
    (NCCL, "all-reduce", range(4), 8, 70 + 220 + 20),
    # a peer at 10 and two at 100; 600 bytes leave the device, 400 of them
    # the pair, at 4e8
    (NCCL, "all-to-all", range(4), 800, 70 + 210 + 1000),
    # one rank of each pair: one ring at 4e8, one hop
    (NCCL, "all-gather", (0, 2), 800, 70 + 100 + 1000),
    (NCCL, "all-to-all", (0, 2), 800, 70 + 100 + 1000),
    # inside a pair: 1e9, never a tree
    (NCCL, "all-reduce", (0, 1), 800, 7 + 20 + 800),
    # uneven: one ring at 4e8, 2 hops of 100 each round
    (NCCL, "all-gather", (0, 1, 2), 300, 70 + 200 + 500),
    (NCCL, "all-reduce", (0, 1, 2), 300, 70 + 400 + 1000),
    # Trees for small all-reduces: up a chain of 2 at 10 and a tree of depth 3 at 100.
    # 2*310 + 2*16 at two ports of 4e8; a ring 2*(8*10 + 8*100 - 10) + 37.5.
    (EIGHT_PAIRS, "all-reduce", range(16), 16, 620 + 40),
    # With 15 ranks there is a ring alone: 2*(7*10 + 8*100 - 10), and
    # 14/15*15 twice at one port.
    (EIGHT_PAIRS, "all-reduce", range(15), 15, 1720 + 70),
    # What goes farther leaves the device too: 3/4*800 at 1e9, not 2/4.
    (
        nccl(make_levels((2, 0.0, 1e9), (2, 0.0, 4e9))),
        *("all-to-all", range(4), 800, 600),
    ),
    # As many rings as the smallest unit has members: of three and two of two fours two,
    # 2*2e8 between them. Three hops of 10, two of 100, less one of 10; 4/5*500 at 4e8.
    (
        nccl(make_levels((4, 10.0, 1e9), (2, 100.0, 2e8))),
        *("all-gather", FIVE, 500, 220 + 1000),
    ),
    # Rings cross a level once per unit: hops 4*10 + 2*100 + 2*1000 - 10 =
    # 2230. beta = min(1e9, 2*1e8, 4*4e8) = 2e8; 7/8*4000.
    (nccl(TREE), "all-gather", range(8), 800, 2230 + 3500),
]


def collective_ns(tree, kind, devices, size_bytes):
    network = HierarchyNetwork(tree)
    time_ns = network.collective_ns(kind, [network.shape(list(devices))], size_bytes)
    assert time_ns <= network.longest_ns(size_bytes, len(devices))
    return time_ns


@pytest.mark.parametrize(("tree", "kind", "devices", "size", "expected"), BY_HAND)
def test_a_collective_by_hand(tree, kind, devices, size, expected):
    assert collective_ns(tree, kind, devices, size) == pytest.approx(
        expected, rel=1e-11
    )


def test_level_is_the_lowest_common_subtree():
    network = HierarchyNetwork(TREE)
    pairs = {(0, 0): 0, (0, 1): 0, (1, 2): 1, (0, 3): 1, (3, 4): 2, (0, 7): 2}
    assert {pair: network.level(*pair) for pair in pairs} == pairs


def test_level_refuses_devices_outside_the_cluster():
    with pytest.raises(ValueError, match="devices 7 and 8 are not in the cluster"):
        HierarchyNetwork(TREE).level(7, 8)


def test_a_path_is_as_fast_as_its_slowest_link():
    """Level 2 offers 4e8 bytes/s, but its path runs through 1e8 links."""
    network = HierarchyNetwork(TREE)
    assert [link.beta for link in network.links] == [1e9, 1e8, 1e8]
    assert network.raw_bandwidths == (1e9, 1e8, 4e8)
    assert [transfer_ns(network, level, 500) for level in range(3)] == [510, 5100, 6000]


def test_groups_are_no_slower_than_more_of_them():
    """The worst of the groups counts: each of some is one of the others."""
    network = HierarchyNetwork(make_levels((2, 0.0, 1e9), (2, 0.0, 1e8)))
    pair, four = (frozenset({network.shape(range(n))}) for n in (2, 4))
    assert network.no_slower(pair, pair)
    assert network.no_slower(pair, pair | four)
    assert not network.no_slower(pair | four, pair)
    assert not network.no_slower(pair, four)


def test_the_slowest_link_may_be_any_level_below():
    """1e8, 1e9 and 1e9 bytes/s: 500 bytes take 5000 ns on every path."""
    network = HierarchyNetwork(make_levels((2, 0.0, 1e8), (2, 0.0, 1e9), (2, 0.0, 1e9)))
    assert [transfer_ns(network, level, 500) for level in range(3)] == [5000] * 3
    uneven = network.shape((0, 1, 4))
    assert network.collective_ns("all-gather", [uneven], 300) == (pytest.approx(2000))


@pytest.mark.parametrize(
    ("devices", "levels"),
    # members, fewest and most ranks in one, how many meet
    [
        ((0, 1), [(2, 1, 1, 2)]),
        ((0, 2), [(2, 1, 1, 1), (2, 1, 1, 2)]),
        ((1, 2), [(2, 1, 1, 1), (2, 1, 1, 2)]),  # straddles two pairs
        ((0, 1, 2), [(3, 1, 1, 2), (2, 1, 2, 2)]),
        ((0, 1, 2, 3), [(4, 1, 1, 2), (2, 2, 2, 2)]),
        ((0, 1, 4, 5), [(4, 1, 1, 2), (2, 2, 2, 1), (2, 2, 2, 2)]),
        (range(6), [(6, 1, 1, 2), (3, 2, 2, 2), (2, 2, 4, 2)]),
        ((0, 4), [(2, 1, 1, 1), (2, 1, 1, 1), (2, 1, 1, 2)]),
        ((5,), [(1, 1, 1, 1)]),
    ],
)
def test_shape_of_a_group(devices, levels):
    shape = HierarchyNetwork(TREE).shape(list(devices))
    assert shape.size == len(devices)
    assert shape.levels == tuple(Spread(*level) for level in levels)


def test_worst_group_counts():
    """Group (0, 1): 10 + 50; group (1, 2): 100 + 500."""
    network = HierarchyNetwork(PAIRS)
    shapes = [network.shape((0, 1)), network.shape((1, 2))]
    assert network.collective_ns("all-gather", shapes, 100) == 600
    assert network.collective_ns("all-gather", shapes[:1], 100) == 60
    assert network.collective_ns("all-gather", [], 100) == 0


# Launch costs


def test_flat_collectives_and_messages_are_launched_once():
    """Pair below: 7 + 10 + 50; message above: 70 + 100 + 1000."""
    network = HierarchyNetwork(LAUNCHED)
    pair = network.shape((0, 1))
    assert network.collective_ns("all-gather", [pair], 100) == 67
    assert transfer_ns(network, 1, 100) == 1170
    assert transfer_ns(network, 1, 0) == 170


@pytest.mark.parametrize("algorithms", ["best", "nccl"])
def test_nothing_to_do_is_not_launched(algorithms):
    network = HierarchyNetwork(with_launches(PAIRS, 7.0, 70.0, algorithms=algorithms))
    pair = network.shape((0, 1))
    one = network.shape((3,))
    assert network.collective_ns("all-reduce", [pair], 0) == 0
    assert network.collective_ns("all-reduce", [one], 100) == 0


# Links to peers


def test_a_message_uses_one_link_and_none_on_its_way_out():
    """600 bytes at 1e9 to a peer, at 2e9 to another mesh."""
    network = HierarchyNetwork(MESH)
    assert transfer_ns(network, 0, 600) == pytest.approx(600)
    assert transfer_ns(network, 1, 600) == pytest.approx(300)


def test_a_level_above_may_be_faster_than_the_nearest_device():
    """Of two meshes and of a slow pair of pairs.

    Devices 0-1 from 2 meet below, from 2-5 above: 2e9 instead of 1e9, and
    10 instead of 100 ns.
    """
    mesh = HierarchyNetwork(MESH)
    pairs = HierarchyNetwork(
        make_levels((4, 100.0, 1e9), (2, 10.0, 1e9), (2, 50.0, 1e9))
    )
    block = Block(1, 8, 0, 2)
    behind, front = {"forward": False}, {"forward": True}
    assert mesh.fastest(block, [1, 4], **behind) == {Link(0.0, 2e9)}
    assert pairs.fastest(block, [1, 4], **behind) == {Link(10.0, 1e9)}
    last = Block(1, 16, 7, 2)
    assert pairs.fastest(last, [1], **front) == {Link(50.0, 1e9)}


def test_a_mesh_on_the_way_up():
    """Two of each mesh, all-gather of 1200.

    Direct: 1/4 at 1e9 to the peer, 3/4 at 3e9 out of a device, 2/4 at 2e9
    out of the mesh: 300 each. Level by level: 1/2·1200 at 1e9, then 1/2·600
    at 2e9. A ring has 3/4·1200 at 1e9, two opposite ones half of that on each
    link, and so have two of which each leaves out one of the two links.
    """
    network = HierarchyNetwork(MESH)
    shape = network.shape((0, 1, 4, 5))
    found = {
        name: min(line.time_ns(1200) for _, line in lines)
        for name, lines in network.offered("all-gather", shape).items()
    }
    assert found == pytest.approx(
        {
            "direct": 300,
            "hierarchical": 750,
            "ring": 900,
            "two-way-ring": 450,
            "rotated-rings": 450,
            # 1/2·1200 at 1e9, 1/4·1200 at 2e9; or 1/2 at 2e9, 1/4 at 1e9
            "halving-doubling": 750,
            "halving-doubling-far": 600,
        }
    )
    assert network.collective_ns("all-gather", [shape], 1200) == pytest.approx(300)


# What groups reach of a bandwidth


@pytest.mark.parametrize("algorithms", ["best", "nccl"])
@pytest.mark.parametrize(
    ("devices", "expected"),
    # 1/2·600 at 0.5e9, 2/3·600 too, 3/4·600 at 0.9e9; of one rank in each
    # four nothing is lost below, and none is listed for level 1
    [((0, 1), 600), (range(3), 800), (range(4), 500), ((0, 4), 300)],
)
def test_small_groups_reach_less(algorithms, devices, expected):
    level = Level(
        fan_out=4,
        bandwidth_bytes_per_s=1e9,
        group_fractions=(
            GroupFraction(members=4, fraction=0.9),
            GroupFraction(members=2, fraction=0.5),
        ),
    )
    top = Level(fan_out=2, bandwidth_bytes_per_s=1e9)
    tree = Hierarchy(levels=(level, top), algorithms=algorithms)
    assert collective_ns(tree, "all-gather", devices, 600) == pytest.approx(expected)
    assert transfer_ns(HierarchyNetwork(tree), 0, 600) == 600
    assert HierarchyNetwork(tree).longest_ns(600, len(devices)) >= expected


# Fields


def test_defaults_are_not_written():
    """Stored problems keep their text, and with it their hash."""
    text = msgspec.json.encode(make_levels((2, 10.0, 1e9)))
    assert b"launch_ns" not in text
    assert b"peer" not in text
    assert b"fractions" not in text
    assert b"algorithms" not in text


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"launch_ns": -1.0}, "launch_ns: expected a finite number >= 0"),
        (
            {"peer_bandwidth_bytes_per_s": 0.0},
            "peer_bandwidth_bytes_per_s: expected a finite number > 0, got 0",
        ),
    ],
)
def test_bad_levels(fields, message):
    with pytest.raises(ValueError, match=message):
        Level(fan_out=2, bandwidth_bytes_per_s=1.0, **fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((1, 0.5), "members: expected at least 2, got 1; one alone reaches"),
        ((2, 0.0), "fraction: expected more than 0, got 0; give what is"),
        ((2, 1.5), "fraction: expected a fraction from 0 to 1, got 1.5"),
    ],
)
def test_bad_fractions(fields, message):
    members, fraction = fields
    with pytest.raises(ValueError, match=message):
        GroupFraction(members=members, fraction=fraction)


def test_unknown_algorithms():
    with pytest.raises(
        msgspec.ValidationError, match=r"Invalid enum value.*algorithms"
    ):
        msgspec.json.decode(
            '{"kind":"hierarchy","levels":[{"fan_out":2,'
            '"bandwidth_bytes_per_s":1}],"algorithms":"magic"}',
            type=Hierarchy,
        )


@pytest.mark.parametrize(
    "topology",
    [
        make_levels((4, 1.0, 1e9)),
        PAIRS,
        Hierarchy(levels=PAIRS.levels, algorithms="nccl"),
        make_graph("ab", [("a", "b", 1.0, 1e9)]),
    ],
    ids=["flat", "levels", "nccl", "graph"],
)
def test_a_kind_that_does_not_exist_is_refused(topology):
    """By name, and also where there is nothing to send."""
    network = network_of(topology)
    groups = network.groups(ParallelGroups(Block(1, 2, 0, 2), 2, 1))
    message = "kind: expected one of all-reduce, .* got 'broadcast'"
    for own, size_bytes in itertools.product((groups, type(groups)()), (0, 1)):
        with pytest.raises(ValueError, match=message):
            network.collective_ns("broadcast", own, size_bytes)
    with pytest.raises(ValueError, match=message):
        call("broadcast", "tp", "forward", 1)


def test_bounds_and_algorithms_refuse_a_kind_that_does_not_exist():
    network = network_of(make_graph("ab", [("a", "b", 1.0, 1e9)]))
    assert isinstance(network, GraphNetwork)
    with pytest.raises(ValueError, match="got 'broadcast'"):
        network.offered_ns("broadcast", [[0, 1]], 1)
    with pytest.raises(ValueError, match="got 'broadcast'"):
        bound_ns(network.routes, "broadcast", [[0, 1]], 1, Places())
    share = Share(2, (Step(Spread(2, 1, 1, 2), 0, 1e9),))
    with pytest.raises(ValueError, match="got 'broadcast'"):
        offered(share, "broadcast")


@pytest.mark.parametrize("offset", range(5))
@pytest.mark.parametrize(("size", "stride"), [(2, 1), (2, 2), (4, 1), (4, 2), (8, 1)])
@pytest.mark.parametrize(("replicas", "joined"), [(1, False), (3, False), (3, True)])
def test_groups_of_a_tree_have_the_shapes_of_all_of_them(
    offset, size, stride, replicas, joined
):
    """Also where some cross a node and others do not."""
    tree = network_of(make_levels((4, 1.0, 4e9), (3, 2.0, 2e9), (5, 3.0, 1e9))).tree
    groups = ParallelGroups(Block(replicas, 20, offset, 8), size, stride, joined)
    assert tree.groups(groups) == {tree.shape(x) for x in groups.groups()}
