"""Times on a tree network, each formula by hand.

One byte takes 1 ns at 1e9 bytes/s and 10 ns at 1e8 bytes/s.
"""

import msgspec
import pytest

from nest.ir.cluster import Hierarchy, Level
from nest.topology import GroupShape, HierarchyNetwork
from nest.topology.alphabeta import flat_collective_ns
from nest.topology.protocol import Block, Link
from tests.builders import PAIRS, make_levels

#: Fan-outs 2, 2, 2; the top link is faster than the middle one.
TREE = make_levels((2, 10.0, 1e9), (2, 100.0, 1e8), (2, 1000.0, 4e8))


def transfer_ns(network, level, size_bytes):
    """Time of a message on the links of a level."""
    link = network.links[level]
    return link.alpha_ns + size_bytes / link.beta * 1e9


# (kind, n, X, alpha, expected) at 1 ns per byte
FLAT_CASES = [
    # ring (n-1)a + (n-1)/n X = 30 + 600; doubling 2a + 600
    ("all-gather", 4, 800, 10, 620),
    # ring 40 + 640; Bruck ceil(lg 5) = 3: 30 + 640
    ("all-gather", 5, 800, 10, 670),
    # halving 2a + 3/4 X
    ("reduce-scatter", 4, 800, 10, 620),
    # five ranks: pairwise only, 4a + 4/5 X
    ("reduce-scatter", 5, 800, 10, 680),
    # ring 6a + 2*3/4 X = 1260; halving-doubling 4a + 1200
    ("all-reduce", 4, 800, 10, 1240),
    # ring 10a + 2*5/6 X = 100 + 1000; folded p=4: 6a + 3.5 X = 2160
    ("all-reduce", 6, 600, 10, 1100),
    # latency bound: ring 10000 + 10; folded 6000 + 3.5*6
    ("all-reduce", 6, 6, 1000, 6021),
    # pairwise 3a + 3/4 X = 630; Bruck 2a + 2/2 X = 820
    ("all-to-all", 4, 800, 10, 630),
    # pairwise 30 + 6 = 36; Bruck 20 + 8
    ("all-to-all", 4, 8, 10, 28),
    # eight ranks, small: pairwise 70 + 7; Bruck 3a + 3/2 X = 30 + 12
    ("all-to-all", 8, 8, 10, 42),
    # three ranks: pairwise only, 2a + 2/3 X
    ("all-to-all", 3, 3, 10, 22),
    # two ranks
    ("all-reduce", 2, 100, 10, 120),
    ("all-gather", 2, 100, 10, 60),
    ("all-to-all", 2, 100, 10, 60),
]


@pytest.mark.parametrize(
    ("kind", "n", "size", "alpha", "expected"), FLAT_CASES
)
def test_flat_collective(kind, n, size, alpha, expected):
    assert flat_collective_ns(kind, n, size, alpha, 1e9) == pytest.approx(
        expected, rel=1e-12
    )


@pytest.mark.parametrize(
    "kind", ["all-gather", "reduce-scatter", "all-reduce", "all-to-all"]
)
def test_one_rank_or_no_bytes_cost_nothing(kind):
    assert flat_collective_ns(kind, 1, 800, 10, 1e9) == 0
    assert flat_collective_ns(kind, 4, 0, 10, 1e9) == 0


def test_level_is_the_lowest_common_subtree():
    network = HierarchyNetwork(TREE)
    pairs = {(0, 0): 0, (0, 1): 0, (1, 2): 1, (0, 3): 1, (3, 4): 2, (0, 7): 2}
    assert {pair: network.level(*pair) for pair in pairs} == pairs


def test_level_refuses_devices_outside_the_cluster():
    with pytest.raises(
        ValueError, match="devices 7 and 8 are not in the cluster"
    ):
        HierarchyNetwork(TREE).level(7, 8)


def test_a_path_is_as_fast_as_its_slowest_link():
    """Level 2 offers 4e8 bytes/s, but its path runs through 1e8 links."""
    network = HierarchyNetwork(TREE)
    assert network.bandwidths == (1e9, 1e8, 1e8)
    assert network.raw_bandwidths == (1e9, 1e8, 4e8)
    assert [transfer_ns(network, level, 500) for level in range(3)] == [
        510,
        5100,
        6000,
    ]


def test_the_slowest_link_may_be_any_level_below():
    """1e8, 1e9 and 1e9 bytes/s: 500 bytes take 5000 ns on every path."""
    network = HierarchyNetwork(
        make_levels((2, 0.0, 1e8), (2, 0.0, 1e9), (2, 0.0, 1e9))
    )
    assert [transfer_ns(network, level, 500) for level in range(3)] == [
        5000
    ] * 3
    uneven = network.shape((0, 1, 4))
    assert network.collective_ns("all-gather", [uneven], 300) == 2000


@pytest.mark.parametrize(
    ("devices", "shape"),
    [
        ((0, 1), (2, 0, (2,))),
        ((0, 2), (2, 1, (1, 2))),
        ((1, 2), (2, 1, (1, 2))),  # straddles two pairs
        ((0, 1, 2), (3, 1, None, 1e8)),  # 2 + 1
        ((0, 1, 2, 3), (4, 1, (2, 2))),
        ((0, 1, 4, 5), (4, 2, (2, 1, 2))),
        ((0, 1, 2, 3, 4, 5), (6, 2, None, 1e8)),  # 2 pairs + 1 pair
        ((0, 4), (2, 2, (1, 1, 2))),
        ((5,), (1, 0, (1,))),
    ],
)
def test_shape_of_a_group(devices, shape):
    assert HierarchyNetwork(TREE).shape(devices) == GroupShape(*shape)


# Groups of 2 x 2 on PAIRS with X = 1000; flat runs at 100 ns + 10 ns/byte.
HIERARCHICAL = [
    # flat 4*100 + 2*3/4*10000 = 15400; hierarchical: below, reduce-scatter
    # and all-gather of 1000: 2(10 + 500); above, all-reduce of 500: 2*100 +
    # 5000
    ("all-reduce", 6220),
    # flat 200 + 7500; hierarchical 10 + 500, then 500: 100 + 2500
    ("all-gather", 3110),
    ("reduce-scatter", 3110),
    # flat pairwise 300 + 7500; hierarchical 10 + 500, then 100 + 5000
    ("all-to-all", 5610),
]


@pytest.mark.parametrize(("kind", "expected"), HIERARCHICAL)
def test_hierarchical_collective(kind, expected):
    network = HierarchyNetwork(PAIRS)
    shape = network.shape((0, 1, 2, 3))
    assert network.collective_ns(kind, [shape], 1000) == pytest.approx(
        expected, rel=1e-12
    )


def test_flat_wins_where_going_through_the_tree_is_longer():
    """X = 1: flat 4 messages 4*100 + 15; hierarchical 2*10.5 + 200 + 5.

    With latencies swapped (100 below, 10 above) flat is 4*10 + 15 = 55 and
    hierarchical 2*100.5 + 20 + 5 = 226.
    """
    swapped = HierarchyNetwork(make_levels((2, 100.0, 1e9), (2, 10.0, 1e8)))
    shape = swapped.shape((0, 1, 2, 3))
    assert swapped.collective_ns("all-reduce", [shape], 1) == pytest.approx(55)
    network = HierarchyNetwork(PAIRS)
    assert network.collective_ns("all-reduce", [shape], 1) == pytest.approx(
        226
    )


def test_three_levels():
    """Eight devices, all-reduce of 800 bytes.

    Level 0: 2(10 + 400) = 820; level 1 on 400: 2(100 + 2000) = 4200; top on
    200 at the path's 10 ns/byte: 2*1000 + 2000 = 4000. Total 9020. Flat:
    2*3*1000 + 2*7/8*8000 = 20000.
    """
    network = HierarchyNetwork(TREE)
    shape = network.shape(range(8))
    assert network.collective_ns("all-reduce", [shape], 800) == pytest.approx(
        9020
    )


def test_uneven_group_is_flat():
    """Devices 0, 1, 2: ring 2*2*100 + 2*2/3*3000 = 4400 for 300 bytes."""
    network = HierarchyNetwork(PAIRS)
    shape = network.shape((0, 1, 2))
    assert network.collective_ns("all-reduce", [shape], 300) == pytest.approx(
        4400
    )


def test_worst_group_counts():
    """Group (0, 1): 10 + 50; group (1, 2): 100 + 500."""
    network = HierarchyNetwork(PAIRS)
    shapes = [network.shape((0, 1)), network.shape((1, 2))]
    assert network.collective_ns("all-gather", shapes, 100) == 600
    assert network.collective_ns("all-gather", shapes[:1], 100) == 60
    assert network.collective_ns("all-gather", [], 100) == 0


# Launch costs


def with_launches(tree, *launches_ns, **fields):
    return msgspec.structs.replace(
        tree,
        levels=tuple(
            msgspec.structs.replace(level, launch_ns=launch_ns)
            for level, launch_ns in zip(tree.levels, launches_ns, strict=True)
        ),
        **fields,
    )


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        # one launch per phase: two below and one above
        ("all-reduce", 6220 + 2 * 7 + 70),
        ("all-gather", 3110 + 7 + 70),
        ("all-to-all", 5610 + 7 + 70),
    ],
)
def test_every_phase_is_launched_once(kind, expected):
    network = HierarchyNetwork(with_launches(PAIRS, 7.0, 70.0))
    shape = network.shape((0, 1, 2, 3))
    assert network.collective_ns(kind, [shape], 1000) == pytest.approx(
        expected
    )


def test_flat_collectives_and_messages_are_launched_once():
    """Pair below: 7 + 10 + 50; message above: 70 + 100 + 1000."""
    network = HierarchyNetwork(with_launches(PAIRS, 7.0, 70.0))
    pair = network.shape((0, 1))
    assert network.collective_ns("all-gather", [pair], 100) == 67
    assert transfer_ns(network, 1, 100) == 1170
    assert transfer_ns(network, 1, 0) == 170


@pytest.mark.parametrize("algorithms", ["best", "nccl"])
def test_nothing_to_do_is_not_launched(algorithms):
    network = HierarchyNetwork(
        with_launches(PAIRS, 7.0, 70.0, algorithms=algorithms)
    )
    pair = network.shape((0, 1))
    one = network.shape((3,))
    assert network.collective_ns("all-reduce", [pair], 0) == 0
    assert network.collective_ns("all-reduce", [one], 100) == 0


# Links to peers: 3e9 bytes/s in all, 1e9 to each of three peers

MESH = Hierarchy(
    levels=(
        Level(
            fan_out=4,
            bandwidth_bytes_per_s=3e9,
            peer_bandwidth_bytes_per_s=1e9,
        ),
        Level(fan_out=2, bandwidth_bytes_per_s=2e9),
    )
)


@pytest.mark.parametrize("algorithms", ["best", "nccl"])
@pytest.mark.parametrize(
    ("ranks", "expected"),
    # 1/2·600 at 1e9, 2/3·600 at 2e9, 3/4·600 at 3e9
    [(2, 300), (3, 200), (4, 150)],
)
def test_a_group_uses_the_links_between_its_members(
    algorithms, ranks, expected
):
    network = HierarchyNetwork(
        msgspec.structs.replace(MESH, algorithms=algorithms)
    )
    shape = network.shape(range(ranks))
    assert network.collective_ns("all-gather", [shape], 600) == pytest.approx(
        expected
    )


@pytest.mark.parametrize("algorithms", ["best", "nccl"])
@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        # three of one mesh at 2·1e9 and one of another, which uses none of
        # its links: 3/4·600 at 2e9
        ((0, 1, 2, 4), 225),
        # three of one, two of the other at 1e9: 4/5·600
        ((0, 1, 2, 4, 5), 480),
        # two of one, one of the other: 2/3·600
        ((0, 1, 4), 400),
    ],
)
def test_an_uneven_group_uses_the_links_of_its_members(
    algorithms, devices, expected
):
    """The unit with the fewest links between its members holds it up."""
    network = HierarchyNetwork(
        msgspec.structs.replace(MESH, algorithms=algorithms)
    )
    shape = network.shape(devices)
    assert shape.counts is None
    assert network.collective_ns("all-gather", [shape], 600) == pytest.approx(
        expected
    )


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
    senders = [block.behind(1), block.behind(4)]
    assert mesh.fastest(block, senders) == {Link(0.0, 2e9)}
    assert pairs.fastest(block, senders) == {Link(10.0, 1e9)}
    last = Block(1, 16, 7, 2)
    assert pairs.fastest(last, [last.before(1)]) == {Link(50.0, 1e9)}


def test_a_mesh_inside_a_hierarchical_collective():
    """Two of each mesh, all-gather of 1200: 1/2·1200 at 1e9, then 1/2·600
    at 2e9: 750. Flat is 3/4·1200 at 1e9: 900.
    """
    network = HierarchyNetwork(MESH)
    shape = network.shape((0, 1, 4, 5))
    assert network.collective_ns("all-gather", [shape], 1200) == pytest.approx(
        750
    )


# NCCL: pairs at 1e9 bytes/s and 10 ns, two pairs at 4e8 and 100 ns

NCCL = with_launches(
    make_levels((2, 10.0, 1e9), (2, 100.0, 4e8)), 7.0, 70.0, algorithms="nccl"
)


@pytest.mark.parametrize(
    ("kind", "devices", "size", "expected"),
    [
        # Four ranks: two rings, so beta = min(1e9, 2·4e8) = 8e8; hops
        # 2·10 + 100 = 120.
        ("all-gather", (0, 1, 2, 3), 800, 70 + 120 + 750),
        ("reduce-scatter", (0, 1, 2, 3), 800, 70 + 120 + 750),
        # tree: depth 10 + 100, 70 + 220 + 2000
        ("all-reduce", (0, 1, 2, 3), 800, 70 + 240 + 1500),
        # ring: 70 + 240 + 15
        ("all-reduce", (0, 1, 2, 3), 8, 70 + 220 + 20),
        # 200 bytes to the other of the pair, 400 at 4e8 to the other pair
        ("all-to-all", (0, 1, 2, 3), 800, 70 + 120 + 1000),
        # one rank of each pair: one ring at 4e8, one hop
        ("all-gather", (0, 2), 800, 70 + 100 + 1000),
        ("all-to-all", (0, 2), 800, 70 + 100 + 1000),
        # inside a pair: 1e9, never a tree
        ("all-reduce", (0, 1), 800, 7 + 20 + 800),
        # uneven: one ring at 4e8, 2 hops of 100 each round
        ("all-gather", (0, 1, 2), 300, 70 + 200 + 500),
        ("all-reduce", (0, 1, 2), 300, 70 + 400 + 1000),
    ],
)
def test_nccl_collective(kind, devices, size, expected):
    network = HierarchyNetwork(NCCL)
    shape = network.shape(devices)
    assert network.collective_ns(kind, [shape], size) == pytest.approx(
        expected
    )


def test_nccl_rings_cross_a_level_once_per_unit():
    """Eight ranks in three levels: hops 4·10 + 2·100 + 1000 = 1240.

    beta = min(1e9, 2·1e8, 4·4e8) = 2e8; all-gather of 800: 1240 + 7/8·4000.
    """
    network = HierarchyNetwork(
        msgspec.structs.replace(TREE, algorithms="nccl")
    )
    shape = network.shape(range(8))
    assert network.collective_ns("all-gather", [shape], 800) == pytest.approx(
        1240 + 3500
    )


# Fields


def test_defaults_are_not_written():
    """Stored problems keep their text, and with it their hash."""
    text = msgspec.json.encode(make_levels((2, 10.0, 1e9)))
    assert b"launch_ns" not in text
    assert b"peer" not in text
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


def test_unknown_algorithms():
    with pytest.raises(
        msgspec.ValidationError, match=r"Invalid enum value.*algorithms"
    ):
        msgspec.json.decode(
            '{"kind":"hierarchy","levels":[{"fan_out":2,'
            '"bandwidth_bytes_per_s":1}],"algorithms":"magic"}',
            type=Hierarchy,
        )
