"""``phaze``: its program on cases worked out by hand.

One byte takes 1 ns on the default link, whose latency Phaze does not know.
"""

from __future__ import annotations

import pytest

from baselines.downsets import Stages
from baselines.phaze import PhazeSolver, make_tables, settings
from nest.cost.model import CostModel
from nest.cost.score import score
from nest.cost.space import batch_splits
from nest.ir import Activations, Problem
from nest.solvers.base import SolveOptions, Status
from tests.builders import make_cost, make_levels, make_problem
from tests.planners import shape, two_layers


def solve(problem: Problem, **extra: str):
    return PhazeSolver().solve(problem, SolveOptions(extra=extra))


# Objective


def test_a_stage_pays_for_what_it_receives():
    """max(10 + 20 + 5, 5 + 20 + 40) in 4 + 2 - 1 slots, against 4 * 90."""
    output = solve(two_layers(5, replicas=(1,)))
    assert shape(output.plan) == ["a: single", "b: single"]
    assert output.own_objective_ns == 65 * 5


def test_a_slow_edge_keeps_layers_together():
    """(15 + 60) * 5 > 4 * 90."""
    output = solve(two_layers(15, replicas=(1,)))
    assert shape(output.plan) == ["a b: single"]
    assert output.own_objective_ns == 90 * 4


def test_replicas_synchronise_the_first_stage():
    """m = 2 and 4 * 1/2 * 3w, all layers being the first stage."""
    output = solve(two_layers(15, weights=10))
    assert output.plan.replicas == 2
    assert output.own_objective_ns == 90 * 2 + 4 * 0.5 * 30


def test_only_the_slowest_edge_of_a_stage_counts():
    """Both edges of s cross, 5 and 9 bytes: 30 + 9, not 30 + 14."""
    problem = make_problem(
        {"s": make_cost(20, 40), "x": make_cost(10, 20), "y": make_cost(10, 20)},
        edges=(("s", "x", 5), ("s", "y", 9)),
        devices=2,
        global_batch=100,
        replicas=(1,),
    )
    output = solve(problem)
    assert output.own_objective_ns == (60 + 9) * 101


def test_unused_devices_are_free():
    """Three stages of 2 would need 6 devices of 5; two need 4."""
    costs = {name: make_cost(10, 20, tp=2) for name in "abc"}
    problem = make_problem(
        costs,
        edges=(("a", "b", 0), ("b", "c", 0)),
        devices=5,
        global_batch=100,
        replicas=(1,),
    )
    output = solve(problem)
    assert len(output.plan.stages) == 2
    assert output.own_objective_ns == 60 * 101


def test_the_first_stage_is_small_where_weights_are_large():
    """The synthetic chain of the reference: 1, 4, 4 and 5 layers, d = 16.

    64 devices, 64 micro-batches, 14 layers: an embedding, 12 layers of 30
    with 1000 bytes of weights, a head of 2; edges of 10 bytes. Memory holds
    four layers, so at least three stages, and d <= 16 as d divides 64. The
    inner stages take 4 * 30 + 20, in 4 + 3 slots; the embedding synchronizes
    4 * 15/16 * 40 bytes. Without a stage of its own it would be 4040.
    """
    problem = make_problem(
        {
            "embedding": make_cost(1, 1, weight_bytes=40),
            **{f"l{i:02}": make_cost(10, 20, weight_bytes=1000) for i in range(12)},
            "head": make_cost(1, 1, weight_bytes=40),
        },
        edges=(
            ("embedding", "l00", 10),
            *((f"l{i:02}", f"l{i + 1:02}", 10) for i in range(11)),
            ("l11", "head", 10),
        ),
        devices=64,
        global_batch=64,
        # 8 bytes of weights, gradients and state per byte of weights
        memory_bytes=8 * 4000 + 2000,
    )
    output = solve(problem)
    assert output.plan.replicas == 16
    assert [len(stage.layers) for stage in output.plan.stages] == [1, 4, 4, 5]
    assert output.own_objective_ns == 140 * 7 + 4 * 15 / 16 * 40


# Recomputation and memory


def kept(size_bytes: int, working_bytes: int = 0, **fields):
    """A layer of 10 + 20 that keeps so much, or 10 and recomputes 10."""
    return make_cost(
        10,
        20,
        activations=(
            Activations(kept_bytes=size_bytes),
            Activations(recompute="full", kept_bytes=10, working_bytes=working_bytes),
        ),
        **fields,
    )


def pair(size_bytes: int, *, memory_bytes: int, **fields) -> Problem:
    """Two layers that keep 100 bytes each."""
    return make_problem(
        {"a": kept(100), "b": kept(100)},
        edges=(("a", "b", size_bytes),),
        devices=2,
        global_batch=8,
        replicas=(1,),
        memory_bytes=memory_bytes,
        **fields,
    )


@pytest.mark.parametrize(
    ("size_bytes", "load"),
    [
        # max(F = 10, out) + G, and in + F + out + G of the last
        (5, 40),
        (10, 40),
        (15, 45),
    ],
)
def test_a_recomputed_pass_hides_the_gradient_it_waits_for(size_bytes, load):
    """100 bytes and nothing more in flight; the last stage is spared."""
    problem = pair(size_bytes, memory_bytes=150, recompute=("none", "full"))
    output = solve(problem)
    assert shape(output.plan) == ["a: recompute-full", "b: single"]
    assert output.own_objective_ns == load * 9


def test_without_recomputation_every_micro_batch_is_stashed():
    """s = 2 needs 200 bytes, one stage too; at 199 nothing fits."""
    output = solve(pair(5, memory_bytes=200))
    assert len(output.plan.stages) == 2
    output = solve(pair(5, memory_bytes=199))
    assert output.plan is None
    assert output.status is Status.NO_SOLUTION
    assert output.detail == "no plan fits by its own memory model"


def test_the_largest_number_in_flight():
    """100 + (s-1) 100 <= 350; with recomputation 100 + (s-1) 7 <= 350."""
    problem = pair(7, memory_bytes=350, recompute=("none", "full"))
    model, stages = CostModel(problem), Stages(problem)
    (case,) = batch_splits(problem)
    plain, recomputing = settings(model, case)
    # stages: a alone, a and b, b alone
    found = [
        make_tables(model, stages, case, setting).most.tolist()
        for setting in (plain, recomputing)
    ]
    assert found[0] == [3, 1 + 150 // 200, 3]
    # nothing enters the first stage, so nothing more is kept
    assert found[1][0] > 1000
    assert found[1][2] == 1 + 250 // 7


def test_a_job_that_must_recompute_holds_everything_once():
    """10 kept and 90 computed again: 100 bytes, as without."""
    layer = make_cost(
        10,
        20,
        activations=(Activations(recompute="full", kept_bytes=10, working_bytes=90),),
    )
    for memory_bytes, fits in ((100, True), (99, False)):
        problem = make_problem(
            {"a": layer}, devices=1, memory_bytes=memory_bytes, recompute=("full",)
        )
        output = solve(problem)
        assert (output.plan is not None) == fits
    problem = make_problem({"a": layer}, devices=1, recompute=("full",))
    # nothing behind the only stage: it recomputes nothing
    assert solve(problem).own_objective_ns == 30


def test_selective_recomputation_stands_in_for_full():
    """It computes 4 again instead of 10."""
    layer = make_cost(
        10,
        20,
        activations=(
            Activations(kept_bytes=100),
            Activations(recompute="selective", kept_bytes=10, extra_ns=4.0),
        ),
    )
    problem = make_problem(
        {"a": layer, "b": layer},
        edges=(("a", "b", 0),),
        devices=2,
        global_batch=8,
        replicas=(1,),
        memory_bytes=150,
        recompute=("none", "selective"),
    )
    output = solve(problem)
    assert shape(output.plan) == ["a: recompute-selective", "b: single"]
    assert output.own_objective_ns == 34 * 9


# Plan space


def test_one_tensor_parallel_degree_for_the_model():
    """Degree 2 halves a and leaves b; each layer alone would choose."""
    problem = make_problem(
        {
            "a": (make_cost(40, 80), make_cost(20, 40, tp=2)),
            "b": (make_cost(10, 20), make_cost(10, 20, tp=2)),
        },
        edges=(("a", "b", 0),),
        devices=3,
        global_batch=100,
        replicas=(1,),
    )
    output = solve(problem)
    # 120 * 101 with two stages, 90 * 100 with one of two devices
    assert shape(output.plan) == ["a b: tp2"]
    assert output.own_objective_ns == 9000


def test_a_uniform_preset_gets_one_strategy():
    problem = pair(5, memory_bytes=10**6, preset="nest-artifact", recompute=("full",))
    assert PhazeSolver().unsupported(problem) is None
    output = solve(problem)
    assert {s.strategy.recompute for s in output.plan.stages} == {"full"}
    assert score(problem, output.plan).feasible


def test_ranks_that_take_turns_are_its_replicas():
    """d = 2 inside the only stage: 8/2 slots of 60, and no weights."""
    problem = make_problem(
        {"a": make_cost(20, 40)},
        devices=2,
        topology=make_levels((2, 0.0, 1e9)),
        global_batch=8,
        replicas=(1,),
        preset="piper",
    )
    output = solve(problem)
    assert shape(output.plan) == ["a: dp2"]
    assert output.own_objective_ns == 60 * 4


def test_there_are_as_many_micro_batches_as_ranks_that_take_turns():
    """Two stages of two ranks need four micro-batches."""
    for batch, degrees in ((4, [2, 2]), (2, [1, 1])):
        problem = make_problem(
            {
                "a": make_cost(20, 40, kept_bytes=60),
                "b": make_cost(20, 40, kept_bytes=60),
            },
            edges=(("a", "b", 0),),
            devices=4,
            topology=make_levels((4, 0.0, 1e9)),
            global_batch=batch,
            replicas=(1,),
            pipeline_parallel=(2,),
            preset="piper",
        )
        plan = solve(problem).plan
        assert [s.strategy.dp for s in plan.stages] == degrees
        assert score(problem, plan).feasible


def test_numbers_of_stages_are_obeyed():
    costs = {name: make_cost(10, 20) for name in "abcd"}
    edges = (("a", "b", 0), ("b", "c", 0), ("c", "d", 0))
    for counts, own in (
        ((1,), 120 * 8),
        ((2,), 60 * 9),
        ((3,), 60 * 10),
        ((4,), 30 * 11),
        ((5,), None),
    ):
        problem = make_problem(
            costs,
            edges=edges,
            devices=4,
            global_batch=8,
            replicas=(1,),
            pipeline_parallel=counts,
        )
        assert solve(problem).own_objective_ns == own


def test_many_closed_sets_are_searched_in_one_order():
    problem = make_problem(
        {name: make_cost(10, 20) for name in "abcdefghi"},
        devices=3,
        global_batch=10,
        replicas=(1,),
    )
    output = solve(problem)
    assert output.detail == (
        "one topological order of a graph with more than 300 closed sets"
    )
    assert output.own_objective_ns == 90 * 12
    assert solve(problem, max_closed_sets="512").detail == ""
