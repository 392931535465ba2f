"""Schedules that split the backward pass: one small case per rule.

Rules: docs/cost-model.md, *Passes of a layer* (gradients of weights) and
*Schedules and step time*. Links take 10 ns + 1 ns per byte.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from formulations import timed
from nest.cost.score import score
from nest.errors import InvalidPlanError
from nest.ir import Activations
from nest.ir.graph import DeviceTimes
from nest.ir.plan import Plan, Stage, Strategy
from nest.simulation.events import Simulation
from nest.simulation.trace import trace
from nest.solvers.base import SolveOptions
from nest.solvers.registry import get_solver, solver_names
from nest.solvers.result import Outcome
from nest.solvers.run import run_solver
from tests.builders import (
    SINGLE,
    call,
    make_cost,
    make_levels,
    make_plan,
    make_problem,
    with_others,
)

DP2, TP2 = Strategy(dp=2), Strategy(tp=2)


def chain(*costs, edge=0, **fields):
    names = "abcdefgh"[: len(costs)]
    fields.setdefault("schedule", "zb-h1")
    return make_problem(dict(zip(names, costs, strict=True)), edge=edge, **fields)


def in_v(*strategies, **fields):
    """Return a plan with a layer per chunk, chunks down and up."""
    return Plan(
        replicas=1,
        micro_batch=fields.pop("micro_batch", 1),
        stages=tuple(
            Stage(layers=(name,), devices=s.devices, strategy=s)
            for name, s in zip("abcdefgh", strategies, strict=False)
        ),
        virtual_stages=2,
        placement="v",
        **fields,
    )


# Gradients of weights


@pytest.mark.parametrize(
    ("cost", "fields", "weights"),
    [
        (make_cost(10, 21), {}, 11),  # 10.5, half up
        (make_cost(10, 21), {"weight_backward_fraction": 0.25}, 5),
        (make_cost(10, 21, weight_backward_ns=20), {}, 20),
        (make_cost(10, 21, weight_backward_ns=0), {}, 0),
        # What is computed again yields no gradients.
        (
            make_cost(
                10,
                20,
                activations=(
                    Activations(recompute="selective", kept_bytes=0, extra_ns=7),
                ),
            ),
            {"recompute": ("selective",)},
            10,
        ),
    ],
)
def test_what_gradients_of_weights_take(cost, fields, weights):
    strategy = Strategy(recompute=fields.get("recompute", ("none",))[0])
    (stage,) = score(chain(cost, **fields), make_plan(("a", strategy))).stages
    assert stage.weight_backward == weights
    assert weights <= stage.backward


def test_of_several_types_of_devices_the_slowest_counts():
    """14 of 40 on the one type, half of 36 on the other: 18."""
    cost = make_cost(
        10,
        40,
        tp=2,
        weight_backward_ns=14,
        by_device=(DeviceTimes(device="old", forward_ns=9, backward_ns=36),),
    )
    problem = with_others(chain(cost, devices=2), 1)
    (stage,) = score(problem, make_plan(("a", TP2))).stages
    assert (stage.backward, stage.weight_backward) == (40, 18)


def test_gradients_are_scattered_with_those_of_weights():
    """ZeRO 2 on 2 ranks: a reduce-scatter of 100 bytes, 10 + 50 ns.

    All-reduces over tp are in the other part: 2 · 10 + 100 ns.
    """
    cost = make_cost(10, 20, weight_bytes=100)
    problem = chain(cost, global_batch=2, micro_batches=(2,), zero=(2,))
    plan = make_plan(("a", replace(DP2, zero=2)), micro_batch=2)
    (stage,) = score(problem, plan).stages
    assert (stage.backward, stage.weight_backward) == (80, 70)
    cost = make_cost(
        *(10, 20), tp=2, collectives=(call("all-reduce", "tp", "backward", 100),)
    )
    (stage,) = score(chain(cost), make_plan(("a", TP2))).stages
    assert (stage.backward, stage.weight_backward) == (140, 10)


def test_scattering_that_overlaps_stays_in_the_pass():
    """One term, of which 20 ns of 60 hide: 20 + 60 - 20 with w = 10."""
    cost = make_cost(10, 20, weight_bytes=100)
    problem = chain(
        cost, global_batch=2, micro_batches=(2,), zero=(2,), overlap={"weights": 1.0}
    )
    plan = make_plan(("a", replace(DP2, zero=2)), micro_batch=2)
    plan = replace(plan, overlap=("weights",))
    (stage,) = score(problem, plan).stages
    assert (stage.backward, stage.weight_backward) == (60, 10)


# ZB-H1


def test_zb_h1_takes_its_critical_path():
    """tests/unit/cost/test_schedules.py works it out: 17, for 1F1B 21."""
    costs = (
        make_cost(2, 5, weight_backward_ns=3),
        make_cost(1, 6, weight_backward_ns=2),
    )
    plan = make_plan(("a", SINGLE), ("b", SINGLE))
    found = score(chain(*costs, global_batch=2), plan)
    assert found.step_quanta == found.simulated_quanta == 17
    plain = score(chain(*costs, global_batch=2, schedule="1f1b"), plan)
    assert plain.simulated_quanta == 21


def test_all_blocks_keep_what_the_first_one_does():
    """3 micro-batches each, where 1F1B keeps 3, 2 and 1 of 10 bytes."""
    costs = [make_cost(1, 2, kept_bytes=10)] * 3
    plan = make_plan(*((name, SINGLE) for name in "abc"))
    for schedule, kept in (("zb-h1", [30, 30, 30]), ("1f1b", [30, 20, 10])):
        found = score(chain(*costs, global_batch=5, schedule=schedule), plan)
        assert [stage.kept_bytes for stage in found.stages] == kept


def test_one_stage_splits_for_nothing():
    found = score(chain(make_cost(10, 20), global_batch=3), make_plan(("a", SINGLE)))
    assert found.step_quanta == 90


# Chunks down and up


def test_the_blocks_of_zb_v():
    """Four equal chunks on two blocks: 2 · 3 · 30 + 10 for M = 3 = 2S - 1.

    A block has chunks 1 and 4, or 2 and 3, and keeps at most 4 of them.
    """
    costs = [make_cost(10, 20, kept_bytes=1, weight_bytes=1)] * 4
    found = score(chain(*costs, schedule="zb-v", global_batch=3), in_v(*[SINGLE] * 4))
    assert found.step_quanta == 190
    assert [block.stages for block in found.blocks] == [(1, 4), (2, 3)]
    assert [block.inflight for block in found.blocks] == [4, 4]
    assert [block.weight_bytes for block in found.blocks] == [2, 2]


def test_chunks_that_meet_on_a_block_hand_on_for_nothing():
    """30 bytes cross every cut: 40 ns, but not from chunk 2 to chunk 3."""
    problem = chain(*[make_cost(10, 20)] * 4, schedule="zb-v", edge=30)
    stages = score(problem, in_v(*[SINGLE] * 4)).stages
    assert [stage.receive_forward for stage in stages] == [0, 40, 0, 40]
    assert [stage.receive_backward for stage in stages] == [40, 0, 40, 0]


def test_another_layout_on_the_block_has_to_be_made():
    """From dp 2 to tp 2: forward whole to every rank, 10 + 60; back 10 + 30.

    Other cuts join equal blocks of 2: 60 bytes over 2 shards, 40.
    """
    cost = (make_cost(10, 20), make_cost(10, 20, tp=2, samples=2))
    problem = chain(
        *[cost] * 4, schedule="zb-v", edge=30, global_batch=2, micro_batches=(2,)
    )
    stages = score(problem, in_v(DP2, DP2, TP2, TP2, micro_batch=2)).stages
    assert [stage.receive_forward for stage in stages] == [0, 40, 70, 70]
    assert [stage.receive_backward for stage in stages] == [40, 40, 70, 0]


@pytest.mark.parametrize("schedule", ["zb-v", "dualpipe-v"])
def test_plans_have_the_shape_of_the_schedule(schedule):
    problem = chain(*[make_cost(1, 2)] * 4, schedule=schedule, global_batch=4)
    plan = in_v(*[SINGLE] * 4)
    assert score(problem, plan).feasible
    with pytest.raises(
        InvalidPlanError,
        match=f"placement: expected 'v' under schedule '{schedule}', got "
        f"'loop'; choose another value",
    ):
        score(problem, replace(plan, placement="loop"))
    with pytest.raises(
        InvalidPlanError,
        match=r"virtual_stages: expected one of \[2\], got 1; choose another",
    ):
        score(problem, make_plan(("a b", SINGLE), ("c d", SINGLE)))
    interleaved = chain(
        *[make_cost(1, 2)] * 4, schedule="1f1b", virtual_stages=(2,), global_batch=4
    )
    with pytest.raises(
        InvalidPlanError,
        match="placement: expected 'loop' under schedule 'interleaved 1f1b', "
        "got 'v'; choose another value",
    ):
        score(interleaved, plan)


def test_dualpipe_v_needs_as_many_micro_batches_as_chunks():
    problem = chain(*[make_cost(1, 2)] * 4, schedule="dualpipe-v", global_batch=3)
    with pytest.raises(
        InvalidPlanError,
        match=r"stages: expected at most half as many blocks as micro-batches "
        r"\(3\) under schedule 'dualpipe-v', got 2; choose another value",
    ):
        score(problem, in_v(*[SINGLE] * 4))


# What a pair hides


def expert_problem(**fields):
    """Four layers of 100 + 200 ns with all-to-all of 30 and 60 bytes.

    On ep = 2 ranks, half of it leaves: 10 + 15 and 10 + 30 ns.
    """
    cost = make_cost(
        *(100, 200),
        ep=2,
        collectives=(
            call("all-to-all", "ep", "forward", 30),
            call("all-to-all", "ep", "backward", 60),
        ),
    )
    fields = {"schedule": "dualpipe-v", **fields}
    return chain(*[cost] * 4, global_batch=8, micro_batches=(2,), **fields)


EXPERTS = Strategy(dp=2, ep=2)


def test_all_to_all_hides_behind_the_other_pass():
    """F = 125 and G = 240; a pair takes 100 + 200, 65 less.

    M = 4 and S = 2: block 1 runs 3 pairs and block 2 runs 3, and what
    waits for them is as much earlier.
    """
    plan = in_v(*[EXPERTS] * 4, micro_batch=2)
    found = score(expert_problem(), plan)
    (first, *_) = found.stages
    assert (first.forward, first.backward) == (125, 240)
    assert (first.pairable_forward, first.pairable_backward) == (25, 40)
    simulation = Simulation(expert_problem(), plan, found)
    assert [use.hidden for use in simulation.uses()] == [3 * 65, 3 * 65]
    pairs = [e for e in simulation.events(0) if e.paired]
    assert {event.duration for event in pairs} == {300}
    assert len(pairs) == 6
    events = trace(simulation)["traceEvents"]
    assert sum("paired" in event["args"] for event in events) == 12


def test_only_pairs_hide_behind_each_other():
    """ZB-V has none, and a plan that overlaps ep has hidden it already."""
    plan = in_v(*[EXPERTS] * 4, micro_batch=2)
    for problem, chosen in (
        (expert_problem(schedule="zb-v"), plan),
        (expert_problem(overlap={"ep": 1.0}), replace(plan, overlap=("ep",))),
    ):
        for stage in score(problem, chosen).stages:
            assert (stage.pairable_forward, stage.pairable_backward) == (0, 0)


# Who can search them


@pytest.mark.parametrize("schedule", ["zb-h1", "zb-v", "dualpipe-v"])
def test_exact_solvers_prove_and_others_say_that_they_cannot(schedule):
    """Two layers of 10 + 20 ns, or four; on one device as on two."""
    problem = chain(
        *[make_cost(10, 20)] * 4, schedule=schedule, global_batch=4, devices=2
    )
    truth = run_solver(problem, "brute")
    assert truth.status == "optimal"
    assert truth.plan is not None
    assert truth.plan.placement == ("loop" if schedule == "zb-h1" else "v")
    takes = {
        name
        for name in solver_names()
        if get_solver(name).capabilities.unable(problem) is None
    }
    exact = {"brute", "dp", "cpsat", "milp"}
    assert takes == exact | ({"random"} if schedule == "zb-h1" else set())
    for name in exact:
        result = run_solver(problem, name)
        assert (result.status, result.step_quanta, result.lower_bound_quanta) == (
            "optimal",
            truth.step_quanta,
            truth.step_quanta,
        )
    for name in ("alpa", "piper"):
        result = run_solver(problem, name)
        assert result.outcome is Outcome.SKIPPED
        assert result.detail == (
            "$.job.schedule: expected one of 1f1b, gpipe, as this solver does "
            f"not time schedules pass by pass, got {schedule!r}; use solver "
            "dp, or solve with another schedule and score the plan with "
            "this one"
        )


@pytest.mark.parametrize("solver", ["cpsat", "milp"])
def test_gradients_of_weights_wait_on_the_types_that_have_them(monkeypatch, solver):
    """1 + 20 ns, all of the 20 for weights but on the third device.

    Two blocks on the others run F F, then W each: 2 + 20. One micro-batch
    there and back takes 2 there, not the 42 of the third.
    """
    monkeypatch.setattr(timed, "MAX_PLANS", 0)
    cost = make_cost(
        *(1, 20),
        weight_backward_ns=20,
        by_device=(
            DeviceTimes(
                device="old", forward_ns=1, backward_ns=20, weight_backward_ns=0
            ),
        ),
    )
    problem = chain(
        *(cost, cost), devices=3, replicas=(1,), topology=make_levels((3, 0.0, 1e9))
    )
    problem = with_others(problem, 2)
    assert get_solver("brute")().solve(problem, SolveOptions()).claimed_quanta == 22
    found = get_solver(solver)().solve(problem, SolveOptions())
    assert found.claimed_quanta == 22
    assert found.lower_bound_quanta <= 22


@pytest.mark.parametrize("solver", ["cpsat", "milp"])
def test_what_hides_in_a_pair_is_rounded_apart(monkeypatch, solver):
    """Of 0.5 + 0.5 ns a quantum is left where the message of 0.5 hides.

    Each of four chunks has such a layer in four, and one of 40 + 40 ns: a
    pair takes no less than the 88 ns of passes without messages.
    """
    monkeypatch.setattr(timed, "MAX_PLANS", 0)
    light = make_cost(
        *(0.5, 0.5),
        ep=2,
        collectives=(
            call("all-to-all", "ep", "forward", 1),
            call("all-to-all", "ep", "backward", 1),
        ),
    )
    heavy = make_cost(40, 40, ep=2)
    names = [f"{x}{i}" for x in "abcd" for i in range(5)]
    problem = make_problem(
        {name: heavy if name[1] == "0" else light for name in names},
        edge=0,
        topology=make_levels((4, 0.0, 1e9)),
        schedule="dualpipe-v",
        global_batch=200,
        micro_batches=(2,),
        replicas=(1,),
    )
    plan = Plan(
        replicas=1,
        micro_batch=2,
        stages=tuple(
            Stage(
                layers=tuple(name for name in names if name[0] == x),
                devices=2,
                strategy=EXPERTS,
            )
            for x in "abcd"
        ),
        virtual_stages=2,
        placement="v",
    )
    known = score(problem, plan)
    for stage in known.stages:
        assert (stage.forward, stage.pairable_forward) == (48, 4)
        assert (stage.backward, stage.pairable_backward) == (48, 4)
    assert known.step_quanta >= 100 * 2 * 88
    found = get_solver(solver)().solve(problem, SolveOptions())
    assert found.lower_bound_quanta <= known.step_quanta


def test_the_chunks_of_a_block_are_as_wide_as_each_other():
    """a and d take 40 + 80 ns or, on 2 devices, 20 + 40, as b and c do on 1.

    So block 1 has two devices of three and block 2 one: four equal chunks,
    4 · 120 + 20.
    """
    wide = (make_cost(40, 80), make_cost(20, 40, tp=2))
    plain = make_cost(20, 40)
    problem = chain(
        *(wide, plain, plain, wide),
        schedule="zb-v",
        global_batch=4,
        devices=3,
        replicas=(1,),
    )
    found = run_solver(problem, "brute")
    assert found.step_quanta == 500
    assert found.plan is not None
    assert [stage.devices for stage in found.plan.stages] == [2, 1, 1, 2]


def test_random_plans_under_zb_h1_are_scored_as_they_are():
    problem = chain(*[make_cost(10, 20)] * 3, global_batch=4, devices=2)
    truth = run_solver(problem, "brute")
    found = run_solver(problem, "random")
    assert found.outcome is Outcome.SOLVED
    assert found.step_quanta is not None
    assert truth.step_quanta is not None
    assert found.step_quanta >= truth.step_quanta
