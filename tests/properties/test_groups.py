"""Parallel groups against their definition, rank by rank.

All solvers price blocks through the same cost model, so that comparing them
cannot find a wrong group; a literal reading of DESIGN §1 can.
"""

from __future__ import annotations

import itertools
from fractions import Fraction

from hypothesis import assume, given
from hypothesis import strategies as st

from nest.cost.model import Block, CostModel
from nest.ir import Hierarchy, Level, Strategy
from nest.topology import HierarchyNetwork
from tests.builders import make_cost, make_problem
from tests.properties.profiles import examples

AXES = (
    "tp", "cp", "dp", "ep", "data", "expert-data",
    "sync", "expert-sync", "replicas",
)  # fmt: skip


def groups_by_definition(
    axis: str, strategy: Strategy, block: Block
) -> set[tuple[int, ...]]:
    """Return the groups of more than one rank.

    A rank is (replica, dp, cp, tp) and sits at tp + cp * TP + dp * TP * CP
    in its block. Its data rank is cp + dp * CP; experts are spread over the
    data ranks modulo ep. Ranks of one group differ in the axis only.
    """
    members: dict[object, list[int]] = {}
    for r, d, c, t in itertools.product(
        range(block.replicas),
        range(strategy.dp),
        range(strategy.cp),
        range(strategy.tp),
    ):
        device = r * block.pitch + block.offset
        device += t + c * strategy.tp + d * strategy.tp * strategy.cp
        data = c + d * strategy.cp
        expert, copy = data % strategy.ep, data // strategy.ep
        same = {
            "tp": (r, d, c),
            "cp": (r, d, t),
            "dp": (r, c, t),
            "ep": (r, copy, t),
            "data": (r, t),
            "expert-data": (r, expert, t),
            "sync": (t,),
            "expert-sync": (expert, t),
            "replicas": (d, c, t),
        }[axis]
        members.setdefault(same, []).append(device)
    return {tuple(sorted(m)) for m in members.values() if len(m) > 1}


@st.composite
def places(draw):
    """Draw a tree, a strategy and a block that fits, all replicas."""
    tree = Hierarchy(
        levels=tuple(
            # every level has a latency of its own, to tell links apart
            Level(
                fan_out=draw(st.integers(1, 4)),
                bandwidth_bytes_per_s=1e9,
                latency_ns=number,
            )
            for number in range(draw(st.integers(1, 4)))
        )
    )
    num_devices = draw(st.integers(1, tree.capacities[-1]))
    size = st.sampled_from((1, 1, 2, 2, 3, 4))
    dp, tp, cp = draw(size), draw(size), draw(size)
    divisors = [e for e in range(1, dp * cp + 1) if dp * cp % e == 0]
    strategy = Strategy(dp=dp, tp=tp, cp=cp, ep=draw(st.sampled_from(divisors)))
    assume(strategy.devices <= num_devices)
    replicas = draw(st.integers(1, num_devices // strategy.devices))
    pitch = num_devices // replicas
    offset = draw(st.integers(0, pitch - strategy.devices))
    return tree, strategy, Block(replicas, pitch, offset, strategy.devices)


def model_of(tree: Hierarchy) -> CostModel:
    return CostModel(
        make_problem({"a": make_cost()}, devices=tree.capacities[-1], topology=tree)
    )


@examples(300, full=5000)
@given(places())
def test_groups_are_what_the_design_says(place):
    tree, strategy, block = place
    model, network = model_of(tree), HierarchyNetwork(tree)
    for axis in AXES:
        expected = {
            network.shape(group)
            for group in groups_by_definition(axis, strategy, block)
        }
        assert model.groups.keys(strategy, block)[axis] == expected, axis


@examples(300, full=5000)
@given(places())
def test_aligning_a_block_changes_no_group(place):
    tree, strategy, block = place
    network = HierarchyNetwork(tree)
    aligned = network.alike(block)
    for axis in AXES:
        here, there = (
            {network.shape(group) for group in groups_by_definition(axis, strategy, b)}
            for b in (block, aligned)
        )
        assert here == there, axis


@examples(100)
@given(st.data(), places())
def test_routes_hold_both_blocks(data, place):
    """The lowest level whose units hold the devices, over all replicas."""
    tree, _, block = place
    network = model_of(tree).network
    end = block.offset + block.devices
    for forward in (True, False):
        room = block.offset if forward else block.pitch - end
        if room == 0:
            continue
        size = data.draw(st.integers(1, room))
        sender = block.before(size) if forward else block.behind(size)
        first = min(block.offset, sender.offset)
        last = max(end, sender.offset + size) - 1
        levels = {
            min(
                level
                for level, capacity in enumerate(tree.capacities)
                if len(
                    {
                        (r * block.pitch + device) // capacity
                        for device in range(first, last + 1)
                    }
                )
                == 1
            )
            for r in range(block.replicas)
        }
        share = Fraction(max(block.devices, size), size)
        assert network.route(block, sender) == {
            network.links[level]._replace(
                receivers=share.numerator, senders=share.denominator
            )
            for level in levels
        }


@examples(200)
@given(st.data(), places())
def test_no_sender_of_any_size_is_faster_than_the_fastest(data, place):
    """Of any sizes beside a block, for messages of any size."""
    tree, _, block = place
    model = model_of(tree)
    end = block.offset + block.devices
    for forward in (True, False):
        room = block.offset if forward else block.pitch - end
        if room == 0:
            continue
        sizes = sorted(data.draw(st.sets(st.integers(1, room), min_size=1)))
        senders = [
            block.before(size) if forward else block.behind(size) for size in sizes
        ]
        message = ([data.draw(st.integers(0, 10**9))], 1, 1)
        receive, network = model.transfers.receive, model.network
        least = receive(network.fastest(block, sizes, forward=forward), *message)
        for sender in senders:
            assert least <= receive(network.route(block, sender), *message)
