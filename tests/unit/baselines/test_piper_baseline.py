"""``piper``: its knapsack, loads and program on cases worked out by hand.

One byte takes 1 ns on the default link, whose latency Piper does not know.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from baselines.downsets import MAX_CLOSED_SETS, Stages, flat_bandwidth_bytes_per_s
from baselines.piper import NEVER, Option, PiperSolver, alike, extremes, greedy
from nest.cost.model import CostModel
from nest.cost.score import score
from nest.ir import Activations, Problem
from nest.solvers.base import SolveOptions, Status
from nest.solvers.registry import get_solver
from tests.builders import PAIRS, make_cost, make_levels, make_problem
from tests.planners import shape, two_layers


def solve(problem: Problem, **extra: str):
    return PiperSolver().solve(problem, SolveOptions(extra=extra))


# The knapsack

#: Saves 60 bytes for 6 quanta, and 10 for 2.
BIG = (Option(10, 100, 0, "none"), Option(16, 40, 0, "selective"))
SMALL = (Option(10, 50, 0, "none"), Option(12, 40, 0, "selective"))


@pytest.mark.parametrize(
    ("capacity", "quanta", "smallest"),
    [
        # fastest: 5 * 10 quanta, 2 * 100 + 3 * 50 = 350 bytes
        (350, 50, [0, 0]),
        # 0.1 quanta per byte comes before 0.2
        (300, 56, [1, 0]),
        (240, 62, [2, 0]),
        (225, 64, [2, 1]),
        (200, 68, [2, 3]),
        # all smallest need 2 * 40 + 3 * 40
        (199, NEVER, None),
        # 5 bytes too much: it saves 60, although 10 would do
        (345, 56, [1, 0]),
    ],
)
def test_the_knapsack_switches_the_cheapest_byte_first(capacity, quanta, smallest):
    chosen = greedy(np.array([[2, 3]]), (BIG, SMALL), 1, capacity)
    assert chosen.quanta[0] == quanta
    if smallest is not None:
        assert chosen.smallest[0].tolist() == smallest


def test_micro_batches_in_flight_change_what_is_smallest():
    """10 y + 30 against 20 y: equal at 3, and the fastest among equals."""
    options = (Option(10, 10, 30, "none"), Option(12, 20, 0, "full"))
    for inflight, size in ((1, 20), (2, 40), (4, 70)):
        fast, small = extremes(options, inflight)
        assert fast.recompute == "none"
        assert small.size_bytes(inflight) == size
    assert extremes(options, 3)[1].recompute == "none"


def test_a_layer_without_alternatives_rules_a_stage_out():
    chosen = greedy(np.array([[1, 0], [1, 1]]), (BIG, ()), 1, 1000)
    assert chosen.quanta.tolist() == [10, NEVER]


def test_all_layers_choose_alike():
    counts = np.array([[2, 3]])
    kinds = (BIG, SMALL)
    assert alike(counts, kinds, "none", 1, 350)[0] == 50
    assert alike(counts, kinds, "none", 1, 349)[0] == NEVER
    assert alike(counts, kinds, "selective", 1, 200)[0] == 68
    assert alike(counts, kinds, "full", 1, 1000)[0] == NEVER


# Loads and plans


def test_both_ends_pay_for_an_edge_twice():
    """30 + 2 * 5 and 60 + 2 * 5; M = 4. One stage would take 4 * 90."""
    output = solve(two_layers(5, replicas=(1,)))
    assert output.own_objective_ns == 4 * 70
    assert shape(output.plan) == ["a: single", "b: single"]


def test_an_edge_may_cost_more_than_a_stage_saves():
    """30 + 60 and 60 + 60 against 90 on one of two devices."""
    output = solve(two_layers(30, replicas=(1,)))
    assert output.own_objective_ns == 4 * 90
    assert shape(output.plan) == ["a b: single"]


def test_replicas_pay_for_a_parameter_server_per_micro_batch():
    """M = 2 micro-batches of 90, and 4 * 1/2 * 3w over both of them."""
    output = solve(two_layers(30, weights=10))
    assert output.plan.replicas == 2
    assert output.own_objective_ns == 2 * 90 + 4 * 0.5 * 30


def test_heavy_weights_are_not_replicated():
    """2 * 90 + 4 * 1/2 * 90 = 360 is no less than 4 * 90 = 360."""
    output = solve(two_layers(30, weights=31))
    assert output.plan.replicas == 1
    assert output.own_objective_ns == 4 * 90


def test_ranks_inside_a_stage_share_a_micro_batch():
    """One sample each: 30 + 2 * 10 * 2/2, M = 2; 4 * 1/2 * 50 per step.

    Layer b cannot be split, so it takes 80 on its one device, and the
    edge 2 * 10 * 2 more.
    """
    problem = make_problem(
        {
            "a": (make_cost(10, 20, weight_bytes=50), make_cost(30, 60, samples=2)),
            "b": make_cost(30, 50, samples=2),
        },
        edges=(("a", "b", 10),),
        devices=3,
        global_batch=4,
        micro_batches=(2,),
        replicas=(1,),
    )
    output = solve(problem)
    assert shape(output.plan) == ["a: dp2", "b: single"]
    assert output.own_objective_ns == 2 * (80 + 40)
    # on its own stage a takes 30 + 20 + 100/2, less than b
    assert score(problem, output.plan).feasible


def test_the_network_is_as_slow_as_between_the_farthest_devices():
    for devices, bandwidth in ((4, 1e8), (3, 1e8), (2, 1e9)):
        model = CostModel(two_layers(devices=devices, topology=PAIRS))
        assert flat_bandwidth_bytes_per_s(model) == bandwidth
    # 10 ns per byte, although both stages sit in one pair
    output = solve(two_layers(1, devices=4, topology=PAIRS, replicas=(1,)))
    assert output.own_objective_ns == 4 * (60 + 2 * 1 * 10)
    assert len(output.plan.stages) == 2


def test_the_fewest_devices_win_among_equals():
    """{a}, {b, c}: 60 and 60; a third device gains nothing."""
    problem = make_problem(
        {"a": make_cost(20, 40), "b": make_cost(10, 20), "c": make_cost(10, 20)},
        edges=(("a", "b", 0), ("b", "c", 0)),
        devices=3,
        replicas=(1,),
    )
    output = solve(problem)
    assert shape(output.plan) == ["a: single", "b c: single"]


# Memory


def kept(size_bytes: int, **fields):
    """A layer of 30 that keeps so much, or 10 after recomputing 10."""
    return make_cost(
        10,
        20,
        activations=(
            Activations(kept_bytes=size_bytes),
            Activations(recompute="full", kept_bytes=10),
        ),
        **fields,
    )


def chain(*costs, **fields) -> Problem:
    """A chain of layers a, b, c, … on one pipeline; B = 1."""
    names = "abcdef"[: len(costs)]
    fields.setdefault("devices", len(costs))
    fields.setdefault("global_batch", 8)
    return make_problem(
        dict(zip(names, costs, strict=True)),
        edges=tuple((before, after, 0) for before, after in itertools.pairwise(names)),
        replicas=(1,),
        **fields,
    )


def test_later_ranks_are_in_flight():
    """Two stages: y = 2 and 1, so the first one keeps 2 * 100 bytes."""
    costs = kept(100), kept(100)
    output = solve(chain(*costs, memory_bytes=200))
    assert len(output.plan.stages) == 2
    # the second stage may hold more than the first
    output = solve(chain(kept(100), kept(150), memory_bytes=200))
    assert len(output.plan.stages) == 2
    output = solve(chain(kept(150), kept(50), memory_bytes=200))
    assert len(output.plan.stages) == 1
    output = solve(chain(*costs, memory_bytes=199))
    assert output.plan is None
    assert output.status is Status.NO_SOLUTION
    assert output.detail == "no plan fits by its own memory model"


def test_a_stage_recomputes_all_or_nothing():
    """100 + 20 > 110: all of it, 2 * 40."""
    problem = chain(
        *(kept(100), kept(20)), devices=1, memory_bytes=110, recompute=("none", "full")
    )
    output = solve(problem)
    assert shape(output.plan) == ["a b: recompute-full"]
    assert output.own_objective_ns == 8 * 80


def test_layers_recompute_one_by_one_where_they_may():
    """10 + 20 fit; layer a alone recomputes, 40 + 30."""
    problem = chain(
        *(kept(100), kept(20)),
        devices=1,
        memory_bytes=110,
        recompute=("none", "full"),
        granularity="layer",
    )
    output = solve(problem)
    (stage,) = output.plan.stages
    assert [s.recompute for s in stage.layer_strategies] == ["full", "none"]
    assert output.own_objective_ns == 8 * 70
    assert score(problem, output.plan).feasible


def test_the_knapsack_costs_it_the_optimum():
    """5 bytes too much: it pays 6 for 60 of them, and 2 would do."""

    def layer(bytes_kept: int, bytes_left: int, extra_ns: float):
        return make_cost(
            10,
            activations=(
                Activations(kept_bytes=bytes_kept),
                Activations(
                    recompute="selective", kept_bytes=bytes_left, extra_ns=extra_ns
                ),
            ),
        )

    problem = make_problem(
        {"a": layer(100, 40, 6.0), "b": layer(50, 40, 2.0)},
        edges=(("a", "b", 1000),),
        devices=1,
        topology=make_levels((1, 0.0, 1e9)),
        memory_bytes=145,
        recompute=("none", "selective"),
        replicas=(1,),
        preset="piper",
    )
    assert solve(problem).own_objective_ns == 26
    best = get_solver("dp")().solve(problem, SolveOptions())
    assert best.claimed_quanta == 22


# Restrictions


def test_numbers_of_stages_are_obeyed():
    costs = [make_cost(10, 20)] * 4
    for counts, own in (
        ((1,), 120),
        ((2,), 60),
        ((3,), 60),
        ((4,), 30),
        ((1, 2), 60),
        ((9,), None),
    ):
        problem = chain(*costs, pipeline_parallel=counts)
        output = solve(problem)
        if own is None:
            assert output.plan is None
            continue
        assert len(output.plan.stages) in counts
        assert output.own_objective_ns == 8 * own


def test_the_least_degrees_it_does_not_know_are_used():
    problem = make_problem(
        {
            "a": (
                make_cost(40, 80, cp=1),
                make_cost(20, 40, cp=2),
                make_cost(30, 60, tp=2),
            )
        },
        devices=2,
        zero=(1, 3),
        replicas=(1,),
    )
    output = solve(problem)
    assert shape(output.plan) == ["a: tp2·zero1"]
    assert output.own_objective_ns == 90


# Graphs


def branches(width: int, **fields) -> Problem:
    """A source and so many independent layers behind it: 2^width + 1 sets."""
    names = [f"l{i}" for i in range(width)]
    return make_problem(
        {"s": make_cost(10, 20), **{name: make_cost(10, 20) for name in names}},
        edges=tuple(("s", name, 1) for name in names),
        devices=2,
        replicas=(1,),
        **fields,
    )


def test_every_consumer_of_a_cut_tensor_counts():
    """{s, l0}, {l1, l2}: two edges cross, 60 + 2 * 2 at both ends."""
    output = solve(branches(3))
    assert output.own_objective_ns == 60 + 4


def test_many_closed_sets_are_searched_in_one_order():
    problem = branches(9)
    assert MAX_CLOSED_SETS < 2**9 + 1
    output = solve(problem)
    assert output.detail == (
        f"one topological order of a graph with more than {MAX_CLOSED_SETS} closed sets"
    )
    # {s, l0 … l3} and the other five
    assert output.own_objective_ns == 150 + 2 * 5
    free = solve(problem, max_closed_sets="1000")
    assert free.detail == ""
    assert free.own_objective_ns == output.own_objective_ns


def test_stages_of_a_linear_order_are_its_ranges():
    stages = Stages(branches(9))
    assert stages.linear
    assert stages.count == 10 * 11 // 2
    found = {tuple(stages.layers(i)) for i in range(stages.count)}
    assert found == {
        tuple(range(start, stop)) for stop in range(1, 11) for start in range(stop)
    }


# Answers
