"""Layers of 10 + 20 ns that keep a byte, four micro-batches, two blocks.

With two chunks each, block 0 has up to (3, 2) and (4, 1) passes of them in
flight, block 1 (2, 1) and (3, 0).
"""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace

from nest.cost.schedules import schedule_of
from nest.search import interleaved, interleaved_exact
from nest.search.place_bounds import LayerCapacity, LayerCosts
from nest.search.solver import DpSolver
from nest.solvers.base import SolveOptions, Status
from nest.solvers.registry import get_solver
from tests.builders import make_cost, make_levels, make_problem

HIGH = 10**6


def layers(forward, backward, kept_bytes=0, sync=0, working_bytes=0):
    """Nothing hides; half of a backward pass is for gradients of weights."""
    half = backward // 2
    passes = (forward, forward, 0, backward, backward, 0, half, half)
    return LayerCosts(passes, sync, 0, kept_bytes, working_bytes)


NOTHING = layers(0, 0)


def places(capacity_bytes, schedule=("1f1b", 2), **fields):
    known = {
        "schedule": schedule_of(*schedule),
        "blocks": 2,
        "num_micro_batches": 4,
        "layer": layers(10, 20, 1),
        "count": 8,
        "first": NOTHING,
        "last": NOTHING,
        "least": (1, 1, 1),
        "capacity_bytes": capacity_bytes,
    }
    return LayerCapacity(**known | fields)


@pytest.mark.parametrize(
    ("capacity_bytes", "bound"),
    [
        # Any 4 layers: 4 · 30 · 4, and 30 through a layer of block 0.
        (100, 510),
        # (1, 3) are 3 + 6 bytes on block 0: 4 on either.
        (9, 510),
        # (1, 2) are 3 + 4 bytes on block 0, and 5 layers are left.
        (7, 630),
        # (1, 1) and (1, 4): 7 layers.
        (6, None),
    ],
)
def test_a_block_has_room_for_what_is_in_flight(capacity_bytes, bound):
    found = places(capacity_bytes)
    assert found.has_room(HIGH) is (bound is not None)
    if bound is not None:
        assert found.bound(0, HIGH) == bound
        assert not found.has_room(bound - 1)


def test_the_working_set_is_kept_free():
    """A byte more than above, for the largest of all working sets."""
    layer = layers(10, 20, 1, working_bytes=1)
    assert places(8, layer=layer).bound(0, HIGH) == 630
    # Block 1 has (1, 4) layers in 6 bytes, beside 3 on block 0.
    last = layers(0, 0, working_bytes=1)
    assert places(7, last=last).bound(0, HIGH) == 630
    # And (1, 3) in 5.
    last = layers(0, 0, working_bytes=2)
    assert places(7, last=last).has_room(HIGH) is False


def test_embedding_and_head_are_in_the_first_and_the_last_chunk():
    """Four passes of two bytes leave the first block 5 of 13: (1, 1).

    So 6 layers are on block 1: 6 · 120 + 30, and 4 · 9 ns for the head. A
    chunk of the embedding alone needs no other layer: 6 + 7 · 2 bytes.
    """
    first, last = layers(0, 0, 2), layers(3, 6)
    found = places(13, first=first, last=last)
    assert found.bound(0, HIGH) == 786
    assert places(20, first=first, least=(0, 1, 1)).room[0][0] == 7


def test_a_block_ends_with_its_sync_and_what_it_receives():
    """4 · 7 of sync behind 510.

    Block 1 receives four micro-batches twice and their gradients once, and
    then the first chunk the last gradient: 13 · 2 ns.
    """
    layer = layers(10, 20, 1, sync=7)
    assert places(100, layer=layer).bound(0, HIGH) == 510 + 4 * 7
    assert places(100, receive=2).bound(0, HIGH) == 510 + 13 * 2


def test_one_chunk_per_block_has_its_layers_alone():
    """``zb-h1``: two passes in flight on either block, 4 layers each.

    Up to its last gradients of inputs a layer of block 1 takes 100 ns: those
    of two weights come later. One of block 0 takes 10 before and 20 after.
    """
    found = places(8, ("zb-h1",))
    assert found.bound(0, HIGH) == 4 * 100 + 4 * 30
    assert places(7, ("zb-h1",)).has_room(HIGH) is False


@pytest.mark.parametrize("virtual", [2, 3])
@pytest.mark.parametrize("block", [0, 1])
@pytest.mark.parametrize("capacity_bytes", [9, 14, 20])
def test_no_layers_that_fit_are_left_out(virtual, block, capacity_bytes):
    """Every way to spread them, pass by pass."""
    schedule = schedule_of("1f1b", virtual)
    found = places(capacity_bytes, ("1f1b", virtual)).room[block]
    for own in itertools.product(range(1, 9), repeat=virtual):
        held = most = 0
        for run in schedule.passes(block, 2, 4):
            sign = -1 if run.backward else 1
            held += sign * own[run.chunk // 2]
            most = max(most, held)
        if most <= capacity_bytes:
            assert found[own[0]] >= min(sum(own[1:]), 8)


def problem_of(memory_bytes, recompute=("none",)):
    cost = make_cost(10, 20, kept_bytes=1)
    again = replace(cost.activations[0], recompute="full", kept_bytes=0)
    cost = replace(cost, activations=(*cost.activations, again))
    names = [f"l{i}" for i in range(8)]
    problem = make_problem(
        dict.fromkeys(names, cost),
        edges=tuple((a, b, 0) for a, b in itertools.pairwise(names)),
        devices=2,
        topology=make_levels((2, 0.0, 1e18)),
        global_batch=4,
        replicas=(1,),
        data_parallel=(1,),
        pipeline_parallel=(2,),
        virtual_stages=(2,),
        memory_bytes=memory_bytes,
        recompute=recompute,
    )
    graph = problem.graph
    alike = tuple(replace(layer, kind="l0") for layer in graph.layers)
    return replace(
        problem, graph=replace(graph, kinds=graph.kinds[:1], layers=alike)
    )


def test_dp_takes_the_bound(monkeypatch):
    monkeypatch.setattr(interleaved_exact, "MAX_MAGNITUDE", -1.0)
    monkeypatch.setattr(interleaved, "FEW", -1.0)
    output = DpSolver().solve(problem_of(7), SolveOptions())
    truth = get_solver("brute")().solve(problem_of(7), SolveOptions())
    assert truth.status is Status.OPTIMAL
    assert output.lower_bound_quanta == truth.claimed_quanta == 630


def test_dp_knows_that_nothing_fits(monkeypatch):
    monkeypatch.setattr(interleaved_exact, "MAX_MAGNITUDE", -1.0)
    monkeypatch.setattr(interleaved, "FEW", -1.0)
    output = DpSolver().solve(problem_of(6), SolveOptions())
    assert output.status is Status.INFEASIBLE


def test_chunks_that_may_differ_are_not_bounded_so(monkeypatch):
    """Four layers on either block fit where some recompute."""
    monkeypatch.setattr(interleaved, "FEW", -1.0)
    problem = problem_of(7, ("none", "full"))
    output = DpSolver().solve(problem, SolveOptions())
    truth = get_solver("brute")().solve(problem, SolveOptions())
    assert truth.claimed_quanta < 630
    assert output.lower_bound_quanta <= truth.claimed_quanta
    monkeypatch.setattr(interleaved_exact, "MAX_MAGNITUDE", -1.0)
    output = DpSolver().solve(problem, SolveOptions())
    assert output.lower_bound_quanta <= truth.claimed_quanta
