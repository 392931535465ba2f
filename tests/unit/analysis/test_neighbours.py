"""Neighbors of a plan, worked out by hand."""

from __future__ import annotations

import pytest

from nest.analysis.neighbors import Neighbor, neighbors
from nest.ir import Activations, Plan, Problem, Stage, Strategy
from tests.builders import SINGLE, make_cost, make_levels, make_plan, make_problem

#: Messages take no time.
FREE = make_levels((4, 0.0, 1e9))


def chain(**job: object) -> Problem:
    """Four layers of 30 ns that keep 10 bytes, four devices of 100 bytes."""
    cost = make_cost(10, 20, kept_bytes=10)
    job.setdefault("global_batch", 4)
    return make_problem(
        dict.fromkeys("abcd", cost),
        edges=(("a", "b", 0), ("b", "c", 0), ("c", "d", 0)),
        topology=FREE,
        memory_bytes=100,
        **job,
    )


HALVES = make_plan(("a b", SINGLE), ("c d", SINGLE))


def found(problem: Problem, plan: Plan) -> dict[str, Neighbor]:
    return {near.name: near for near in neighbors(problem, plan)}


def test_moves_of_a_pipeline():
    """Loads of 60 and 60, four micro-batches: T = 120 + 3 · 60 = 300.

    Split: 30, 30, 60. Merged: 4 · 120. Two replicas have two micro-batches
    each: 120 + 60. A layer handed on: 30 and 90, 120 + 3 · 90.
    """
    near = found(chain(), HALVES)
    fits = {
        name: item.score.step_quanta
        for name, item in near.items()
        if item.verdict == "fits" and item.score is not None
    }
    assert fits == {
        "one stage more": 300,
        "one stage less": 480,
        "replicas doubled": 180,
        "a layer from stage 1 to 2": 390,
        "a layer from stage 2 to 1": 390,
    }
    assert near["a layer from stage 1 to 2"].detail == "b"
    assert near["a layer from stage 2 to 1"].detail == "c"
    assert near["one stage less"].detail == "stages 1 and 2 merged, single"
    assert near["one stage more"].detail == ("stage 1 split before b, single")


def test_moves_of_a_plan_that_chooses_where_to_split():
    """30 ns on one device, 12 on two ranks, 15 where they split sequences.

    One tensor rank has none to split.
    """
    costs = (
        make_cost(10, 20),
        make_cost(4, 8, tp=2),
        make_cost(5, 10, tp=2, sequence_parallel=True),
    )
    problem = make_problem({"a": costs}, topology=FREE, sequence_parallel=(False, True))
    split = Strategy(tp=2, sequence_parallel=True)
    near = found(problem, make_plan(("a", split)))
    assert near["sequence parallelism nowhere"].score.step_quanta == 12
    assert near["tp halved"].score.step_quanta == 30
    assert "sequence parallelism everywhere" not in near
    near = found(problem, make_plan(("a", Strategy(tp=2))))
    assert near["sequence parallelism everywhere"].score.step_quanta == 15
    near = found(problem, make_plan(("a", SINGLE)))
    assert not any("sequence" in name for name in near)
    decided = make_problem({"a": costs[:2]}, topology=FREE)
    near = found(decided, make_plan(("a", Strategy(tp=2))))
    assert not any("sequence" in name for name in near)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("micro-batch doubled", r"micro_batch: expected one of \[1\], got 2"),
        ("tp doubled", "expected a cost for tp=2"),
        ("dp doubled", "dp: expected a divisor of micro_batch 1, got 2"),
        ("ep doubled", "ep: expected a divisor of dp"),
        ("zero raised by 1", r"zero: expected one of \[0\], got 1"),
        (
            "recompute full everywhere",
            r"recompute: expected one of \['none'\], got 'full'",
        ),
    ],
)
def test_illegal_moves_say_why(name, reason):
    import re

    near = found(chain(), HALVES)[name]
    assert near.verdict == "illegal"
    assert near.plan is None
    assert near.score is None
    assert near.memory_bytes == 0
    assert re.search(reason, near.reason)


def test_moves_that_change_nothing_are_left_out():
    """There is nothing to halve, to lower, or to recompute less."""
    names = set(found(chain(), HALVES))
    assert (
        not {
            *("micro-batch halved", "replicas halved", "tp halved"),
            *("dp halved", "cp halved", "ep halved", "zero lowered by 1"),
            "recompute none everywhere",
        }
        & names
    )


def test_what_does_not_fit_says_how_much_it_needs():
    """Two micro-batches of two layers in flight: 40 bytes.

    Three layers on the first stage keep 60.
    """
    problem = chain(global_batch=4)
    device = problem.cluster.device
    small = type(problem)(
        graph=problem.graph,
        cluster=type(problem.cluster)(
            num_devices=4, device=type(device)(memory_bytes=50), topology=FREE
        ),
        job=problem.job,
    )
    near = found(small, HALVES)["a layer from stage 2 to 1"]
    assert near.verdict == "too large"
    assert near.memory_bytes == 60


def test_degrees_are_traded_for_each_other():
    """tp = 2 of half the time; dp = 2 has half the samples per rank."""
    costs = (
        make_cost(10, 20),
        make_cost(20, 40, samples=2),
        make_cost(6, 12, tp=2),
        make_cost(12, 24, tp=2, samples=2),
    )
    problem = make_problem(
        {"a": costs}, topology=FREE, global_batch=4, micro_batches=(1, 2), zero=(0, 1)
    )
    plan = make_plan(("a", Strategy(dp=2)), micro_batch=2)
    near = found(problem, plan)
    # Two steps of B = 2 take 30 each.
    steps = {
        name: item.score.step_quanta
        for name, item in near.items()
        if item.score is not None
    }
    assert steps == {
        # dp = 2 of one sample each, twice; with dp = 1, B = 1: 4 · 30
        "micro-batch halved": 120,
        "replicas doubled": 30,
        "tp doubled, dp halved": 2 * 36,
        "dp halved, replicas doubled": 60,
        "tp doubled": 2 * 18,
        "dp halved": 2 * 60,
        "zero raised by 1": 60,
    }
    assert near["micro-batch halved"].detail == "dp halved too"


def test_merged_stages_may_take_the_devices_of_both():
    """With tp = 2 the merged stage takes 4 · 66 instead of 4 · 120."""
    costs = (make_cost(10, 20), make_cost(6, 12, tp=2))
    problem = make_problem(
        dict.fromkeys("ab", costs),
        edges=(("a", "b", 0),),
        topology=FREE,
        global_batch=4,
    )
    plan = make_plan(("a", SINGLE), ("b", SINGLE))
    near = found(problem, plan)["one stage less"]
    assert near.score is not None
    assert near.score.step_quanta == 4 * 36
    assert near.detail == "stages 1 and 2 merged, tp2"
    back = found(problem, make_plan(("a b", Strategy(tp=2))))
    # 4 devices: both parts keep tp = 2, 18 and 18, 36 + 3 · 18
    assert back["one stage more"].score is not None
    assert back["one stage more"].score.step_quanta == 90


def test_only_layers_without_ties_are_handed_on():
    """c reads a and b; of stage 1 only b, which nothing else there reads."""
    cost = make_cost(10, 20)
    problem = make_problem(
        dict.fromkeys("abc", cost),
        edges=(("a", "b", 0), ("b", "c", 0), ("a", "c", 0)),
        topology=FREE,
    )
    plan = make_plan(("a b", SINGLE), ("c", SINGLE))
    near = found(problem, plan)
    assert near["a layer from stage 1 to 2"].detail == "b"
    assert "a layer from stage 2 to 1" not in near


def test_interleaved_plans_have_neighbours_too():
    """Four chunks on two blocks: stages are neither merged nor split."""
    problem = chain(virtual_stages=(1, 2))
    plan = Plan(
        replicas=1,
        micro_batch=1,
        virtual_stages=2,
        stages=tuple(
            Stage(layers=(name,), devices=1, strategy=SINGLE) for name in "abcd"
        ),
    )
    near = found(problem, plan)
    assert near["replicas doubled"].verdict == "fits"
    assert "one stage less" not in near
    assert "one stage more" not in near


def test_strategies_per_layer_change_together():
    """One layer of a stage recomputes; both do, or none."""
    both = (Activations(kept_bytes=0), Activations(recompute="full", kept_bytes=0))
    cost = make_cost(10, 20, activations=both)
    problem = make_problem(
        {"a": cost, "b": cost},
        topology=FREE,
        granularity="layer",
        recompute=("none", "full"),
    )
    mixed = Stage(
        layers=("a", "b"), devices=1, strategies=(SINGLE, Strategy(recompute="full"))
    )
    near = found(problem, Plan(replicas=1, micro_batch=1, stages=(mixed,)))
    steps = {
        name: item.score.step_quanta
        for name, item in near.items()
        if item.score is not None and name.startswith("recompute")
    }
    assert steps == {"recompute none everywhere": 60, "recompute full everywhere": 80}
