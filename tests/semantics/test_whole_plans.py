"""Rules about whole plans: small instances, their optima derived by hand.

The network is free, so ``T = Σ τ + (M-1) max τ + max Y``.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from msgspec.structs import replace

from nest.cost.score import score
from nest.cost.space import Runtime, breaches, families, make_split
from nest.errors import InvalidPlanError
from nest.ir import Activations, LayerCost, Optimizer, Plan, Problem, Stage, Strategy
from nest.ir.plan import OVERLAP, RECOMPUTE
from nest.search.tracer import trace
from nest.solvers.base import Deadline, SolveOptions, Status
from nest.solvers.registry import get_solver
from tests.builders import SINGLE, call, make_cost, make_levels, make_plan, make_problem
from tests.frontiers import enumerated, pairs
from tests.independent.enumerator import optimum
from tests.semantics.proofs import check


def chain(costs: dict[str, Any], **job: Any) -> Problem:
    """Layers one after the other, in one pipeline unless said otherwise."""
    edges = tuple((a, b, 0) for a, b in itertools.pairwise(list(costs)))
    devices = job.pop("devices", 2)
    job.setdefault("replicas", (1,))
    return make_problem(
        costs, edges=edges, devices=devices, topology=make_levels((8, 0.0, 1e18)), **job
    )


def alike(problem: Problem, *names: str) -> Problem:
    """Give layers the kind of the first of them."""
    graph = problem.graph
    layers = tuple(
        replace(layer, kind=names[0]) if layer.id in names else layer
        for layer in graph.layers
    )
    return replace(problem, graph=replace(graph, layers=layers))


def with_rules(problem: Problem, **rules: Any) -> Problem:
    return replace(problem, job=replace(problem.job, **rules))


def of_widths(*times: int) -> tuple[LayerCost, ...]:
    """Costs at tp = 1, 2, … that take so long, a third of it forward."""
    return tuple(
        make_cost(time / 3, 2 * time / 3, tp=tp) for tp, time in enumerate(times, 1)
    )


def layer(time: int) -> LayerCost:
    return make_cost(time / 3, 2 * time / 3)


def test_stages_share_what_uniform_names():
    """Three devices, M = 4: a takes 30 or 21 ns, b 60 or 30.

    Free: a on one device, b on two, 60 + 3·30. One tp: both on one device
    each, 90 + 3·60 = 270, or one stage on two, 4·51 = 204.
    """
    problem = chain(
        {"a": of_widths(30, 21), "b": of_widths(60, 30)}, devices=3, global_batch=4
    )
    check(problem, 150)
    check(with_rules(problem, uniform=("tp",)), 204)
    check(with_rules(problem, uniform=("devices",)), 204)
    every = ("dp", "tp", "cp", "ep", "zero", "recompute")
    check(with_rules(problem, uniform=every), 204)
    check(with_rules(problem, uniform=every, granularity="layer"), 204)
    check(with_rules(problem, uniform=("cp", "zero")), 150)


def test_stages_have_even_shares_of_a_kind():
    """Two devices, M = 2: one layer of 30 ns, two of a kind of 15.

    Free: the two on their own, 60 + 30. Even: one of them in each stage, so 45 and 15:
    60 + 45. Three of a kind cannot be split in two: one stage, 2·75.
    """
    problem = chain({"in": layer(30), "b": layer(15), "c": layer(15)}, global_batch=2)
    two = alike(problem, "b", "c")
    check(two, 90)
    check(with_rules(two, even_layers=True), 105)
    # Kinds of one layer may be anywhere.
    check(with_rules(problem, even_layers=True), 90)
    three = chain(
        {x: layer(15) for x in ("b", "c", "d")} | {"out": layer(30)}, global_batch=2
    )
    check(with_rules(alike(three, "b", "c", "d"), even_layers=True), 150)


def test_layers_of_some_kinds_are_in_one_stage():
    """Three devices, M = 2: layers of 30, 15, 15 and 30 ns.

    Free: three stages, b and c between a and d, or with them: 90 + 30.
    With a and b together a stage takes 45 ns at least: 90 + 45. With a and
    c everything but d is in one stage: 90 + 60. All together: 2·90.
    """
    problem = chain(
        {"a": layer(30), "b": layer(15), "c": layer(15), "d": layer(30)},
        devices=3,
        global_batch=2,
    )
    check(problem, 120)
    check(with_rules(problem, one_stage=("b", "c")), 120)
    check(with_rules(problem, one_stage=("b",)), 120)
    check(with_rules(problem, one_stage=("a", "b")), 135)
    check(with_rules(problem, one_stage=("a", "c")), 150)
    check(with_rules(problem, one_stage=("a", "d")), 180)
    # Layers of one kind are asked for as two kinds are.
    two = alike(problem, "b", "c")
    check(with_rules(two, one_stage=("b",)), 120)
    check(with_rules(two, one_stage=("b",), even_layers=True), 180)
    # Every layer with a strategy of its own changes nothing.
    check(with_rules(problem, one_stage=("a", "c"), granularity="layer"), 150)


def test_frontiers_keep_layers_together():
    """Three stages hold a layer each; with b and c in one, one holds two."""
    cost = make_cost(10, 20, weight_bytes=100)
    problem = chain(dict.fromkeys("abc", cost), devices=3, global_batch=2, hbm=1e9)
    for rules in ({}, {"one_stage": ("b", "c")}):
        ruled = with_rules(problem, **rules)
        points, gaps = trace(ruled, Deadline(None))
        assert not gaps
        assert pairs(points) == enumerated(ruled)
        fewest = 1 + len(rules)
        assert points[0].memory_bytes == fewest * 800
    assert len(points[0].plan.stages) == 2


def test_chunks_of_interleaved_plans_keep_layers_together():
    """Two devices, M = 2, v = 2: the four chunks are the four layers.

    With b and c together there are three chunks at most, so no such plan.
    """
    costs = {x: layer(30) for x in "abcd"}
    problem = chain(costs, global_batch=2, virtual_stages=(2,))
    check(problem, 150)
    check(with_rules(problem, one_stage=("b", "c")), None)
    five = chain({**costs, "e": layer(30)}, global_batch=2, virtual_stages=(2,))
    for kinds in (("a", "b"), ("b", "c"), ("d", "e")):
        ruled = with_rules(five, one_stage=kinds)
        found = [
            get_solver(name)().solve(ruled, SolveOptions()).claimed_quanta
            for name in ("brute", "dp", "cpsat")
        ]
        assert found[0] == optimum(ruled)[0]
        assert len(set(found)) == 1


def test_no_device_idles():
    """Three devices, M = 6, layers of 30 ns, 45 and 50 on two and three.

    Free: two stages on two devices, 60 + 5·30. All three: one stage, 6·100,
    as two devices would leave the third idle, with which 6·90 is possible;
    the numbers of replicas that leave none idle are 1 and 3: 2·60.
    """
    costs = of_widths(30, 45, 50)
    problem = chain({"a": costs, "b": costs}, devices=3, global_batch=6)
    rules = {"idle_devices": False, "uniform": ("devices",)}
    check(problem, 210)
    check(with_rules(problem, **rules), 600)
    check(with_rules(problem, **rules, replicas=None), 120)
    check(with_rules(problem, **rules, replicas=(2,)), None)
    check(with_rules(problem, **rules, tensor_parallel=(1,)), None)


def sharded(**job: Any) -> Problem:
    """Two layers on 4 devices, two data ranks each, M = 4.

    A layer takes 30 ns, its update 100 + 2·100 ns, half of it when sharded.
    """
    cost = make_cost(10, 20, weight_bytes=100)
    return chain(
        {"a": cost, "b": cost},
        **{
            "devices": 4,
            "hbm": 1e9,
            "global_batch": 8,
            "micro_batches": (2,),
            "data_parallel": (2,),
            "optimizer": Optimizer(state_bytes=0),
            "zero": (0, 1),
            **job,
        },
    )


def test_zero_stages_beside_several_stages():
    """Free: two stages, 60 + 3·30 + 150. ZeRO 0 there: + 300.

    One stage with ZeRO 1 takes 4·60 + 2·150.
    """
    problem = sharded()
    check(problem, 300)
    check(with_rules(problem, zero_with={"pp": (0,)}), 450)
    check(with_rules(problem, zero_with={"pp": (0,)}, zero=(1,)), 540)
    every = ("dp", "tp", "cp", "ep", "zero", "recompute")
    only = {"uniform": every, "zero_with": {"pp": (0,)}}
    check(with_rules(problem, **only), 450)
    check(with_rules(problem, **only, zero=(1,)), 540)


def test_zero_stages_beside_several_replicas():
    """Two replicas of one stage: 2·60 + 2·150, under ZeRO 0 + 2·300."""
    problem = sharded(replicas=(2,), pipeline_parallel=(1,))
    check(problem, 420)
    check(with_rules(problem, zero_with={"r": (0,)}), 720)
    check(with_rules(problem, zero_with={"r": (0,)}, zero=(1,)), None)


def test_zero_stages_beside_several_context_ranks():
    """One stage on two context ranks: 4·60 + 2·150, ZeRO 0 + 2·300."""
    cost = make_cost(10, 20, cp=2, weight_bytes=100)
    problem = chain(
        {"a": cost, "b": cost},
        hbm=1e9,
        global_batch=4,
        optimizer=Optimizer(state_bytes=0),
        zero=(0, 1),
    )
    check(problem, 540)
    check(with_rules(problem, zero_with={"cp": (0,)}), 840)


def test_stages_ask_for_sharded_gradients():
    """Two stages under ZeRO 1 or 2, whose traffic is free: 60 + 3·30 + 150.

    Without ZeRO 2 one stage is left: 4·60 + 2·150.
    """
    problem = sharded()
    check(problem, 300)
    check(with_rules(problem, sharded_with=("pp",)), 540)
    check(with_rules(problem, sharded_with=("pp",), zero=(0, 1, 2)), 300)
    check(with_rules(problem, sharded_with=("tp", "ep")), 300)


def test_one_data_rank_shards_nothing():
    """Whatever its ZeRO stage: two stages take 60 + 30, one 2·60."""
    problem = chain({"a": layer(30), "b": layer(30)}, global_batch=2, zero=(2,))
    check(problem, 90)
    check(with_rules(problem, sharded_with=("pp",)), 120)


def test_tensor_and_expert_ranks_ask_for_sharded_gradients():
    """Two tensor ranks take 2·20, as do two data ranks with two experts.

    Their gradients are sharded under ZeRO 2 on two data ranks only: 20 for
    both samples. One rank takes 2·30.
    """
    costs = make_cost(10, 20), make_cost(10, 10, tp=2)
    problem = chain({"a": costs}, devices=2, global_batch=2, zero=(0, 2))
    rule = {"sharded_with": ("tp", "ep")}
    check(with_rules(problem, data_parallel=(1,)), 40)
    check(with_rules(problem, data_parallel=(1,), **rule), 60)
    wide = with_rules(
        problem,
        micro_batches=(2,),
        data_parallel=(2,),
        tensor_parallel=(2,),
        replicas=(1,),
    )
    wide = replace(wide, cluster=replace(wide.cluster, num_devices=4))
    check(replace(wide, job=replace(wide.job, zero=(0,))), 20)
    check(with_rules(wide, **rule), 20)
    check(with_rules(wide, zero=(0,), **rule), None)
    spread = chain(
        {"a": make_cost(10, 10, ep=2)},
        devices=2,
        global_batch=2,
        micro_batches=(2,),
        zero=(0,),
    )
    check(spread, 20)
    check(with_rules(spread, **rule), None)
    check(with_rules(spread, zero=(2,), **rule), 20)


def test_a_single_rank_keeps_the_zero_stage_that_a_rule_wants():
    """On one data rank all stages are the same plan: two stages, 60 + 30.

    Yet ZeRO 1 is what two stages may have, so it must be listed.
    """
    problem = chain({"a": layer(30), "b": layer(30)}, global_batch=2, zero=(0, 1))
    check(problem, 90)
    check(with_rules(problem, zero_with={"pp": (1,)}), 90)
    check(with_rules(problem, zero_with={"pp": (1,)}, zero=(0,)), 120)


def test_stages_ask_for_micro_batches():
    """Three layers of 30 ns, M = 2: three stages 90 + 30, two 90 + 60.

    M = 3 is no multiple of 2: on two devices one stage, 3·90, instead of 90 + 2·60.
    """
    costs = {name: layer(30) for name in "abc"}
    problem = chain(costs, devices=3, global_batch=2)
    check(problem, 120)
    check(with_rules(problem, micro_batch_count="at-least-stages"), 150)
    check(with_rules(problem, micro_batch_count="multiple-of-stages"), 150)
    problem = chain(costs, global_batch=3)
    check(problem, 210)
    check(with_rules(problem, micro_batch_count="at-least-stages"), 210)
    check(with_rules(problem, micro_batch_count="multiple-of-stages"), 270)


# What overlap needs

#: Of 10 bytes on two devices: 2 · 10 ns + 10 ns.
ALL_REDUCE = call("all-reduce", "tp", "forward", 10)


@pytest.mark.parametrize(("split", "expected"), [(105, 115), (140, 140)])
def test_overlap_of_tensor_ranks_needs_split_sequences(split, expected):
    """100 + 10 with 30 hidden; split 105 or 140, + 10 and 30 hidden.

    Where it must be split: 105 + 10, or whole with nothing hidden, 100 + 30 +
    10, which is less than 140 + 10.
    """
    reduced = {"collectives": (ALL_REDUCE,), "tp": 2}
    problem = make_problem(
        {
            "a": (
                make_cost(100, 10, **reduced),
                make_cost(split, 10, sequence_parallel=True, **reduced),
            )
        },
        devices=2,
        overlap={"tp": 1.0},
        sequence_parallel=(False, True),
    )
    check(problem, 110)
    need = {"tp": ("sequence_parallel",)}
    check(with_rules(problem, overlap_needs=need), expected)
    always = with_rules(problem, sequence_parallel=(True,))
    check(with_rules(always, overlap_needs=need), split + 10)


@pytest.mark.parametrize(("batch", "free", "expected"), [(4, 150, 200), (6, 200, 280)])
def test_overlap_of_experts_needs_interleaving(batch, free, expected):
    """Two layers of 50 + 20 ns, the 20 of which hide; two data ranks each.

    Two stages take (M + 1)·50, one M·100. Where one stage alone may hide:
    with M = 2 it takes 200, two stages 3·70; with M = 3 these 4·70, it 300.
    """
    cost = make_cost(
        50, 0, ep=2, collectives=(call("all-to-all", "ep", "forward", 20),)
    )
    problem = make_problem(
        {"a": cost, "b": cost},
        edge=0,
        global_batch=batch,
        micro_batches=(2,),
        replicas=(1,),
        overlap={"ep": 1.0},
    )
    check(problem, free)
    need = {"ep": ("interleaving",)}
    for rules in ({}, {"uniform": ("dp", "tp", "cp", "ep")}):
        check(with_rules(problem, overlap_needs=need, **rules), expected)


def test_interleaved_plans_overlap_experts_on_several_stages():
    problem = chain(
        dict.fromkeys("abcd", make_cost(1, 1)),
        overlap={"ep": 0.5},
        overlap_needs={"ep": ("interleaving",)},
        virtual_stages=(1, 2),
    )
    split = make_split(problem, 1, 1)
    for virtual, counts in ((1, (1,)), (2, (1, 2))):
        runtime = Runtime(virtual, frozenset({"ep"}))
        (family,) = families(problem, split, [SINGLE], runtime)
        assert family.stage_counts == counts


def test_overlap_needs_layers_that_are_not_recomputed():
    """100 + 10 with 30 hidden; all kept only without ``full``.

    Recomputed 100 more with as much hidden, or 130 + 130 + 10 without.
    """
    kept = (Activations(kept_bytes=10), Activations(recompute="full", kept_bytes=0))
    cost = make_cost(100, 10, tp=2, collectives=(ALL_REDUCE,), activations=kept)
    problem = make_problem(
        {"a": cost}, devices=2, overlap={"tp": 1.0}, recompute=("none", "full")
    )
    need = {"tp": ("no-full-recompute",)}
    check(with_rules(problem, overlap_needs=need), 110)
    device = replace(problem.cluster.device, memory_bytes=9)
    small = replace(problem, cluster=replace(problem.cluster, device=device))
    check(small, 210)
    check(with_rules(small, overlap_needs=need), 270)


def test_overlap_of_weights_needs_that_of_gradients():
    """ZeRO 3 of 8 bytes on two data ranks gathers in 14, and twice 14.

    100 + 7 and 200 + 14 with half of it hidden.
    """
    problem = make_problem(
        {"a": make_cost(100, 200, weight_bytes=8)},
        devices=2,
        global_batch=2,
        micro_batches=(2,),
        data_parallel=(2,),
        zero=(3,),
        overlap={"weights": 0.5},
    )
    check(problem, 321)
    alone = with_rules(problem, overlap_needs={"weights": ("gradients",)})
    check(alone, 342)
    check(with_rules(alone, overlap={"weights": 0.5, "gradients": 0.5}), 321)


def test_plans_without_what_their_overlap_needs_are_refused():
    costs = make_cost(1, 1), make_cost(1, 1, tp=2)
    everything = dict.fromkeys(OVERLAP, 0.5)
    problem = chain(
        {"a": costs, "b": costs}, devices=4, global_batch=2, overlap=everything
    )
    two = make_plan(("a", SINGLE), ("b", SINGLE))
    wide = make_plan(("a b", Strategy(tp=2)))
    again = Strategy(recompute="full")
    for name, need, plan, message in (
        (
            "ep",
            "interleaving",
            two,
            "with virtual_stages > 1 if there are several stages, got 2 "
            "stages of one chunk",
        ),
        (
            "tp",
            "sequence_parallel",
            wide,
            "with sequence parallelism where tp > 1, got stage 1 without",
        ),
        (
            "ep",
            "no-full-recompute",
            make_plan(("a b", again)),
            "without full recomputation, got stage 1 with it",
        ),
        ("weights", "gradients", two, "together with gradients, got it without"),
    ):
        rules = {"overlap_needs": {name: (need,)}, "recompute": RECOMPUTE}
        assert refusal(
            with_rules(problem, **rules), replace(plan, overlap=(name,))
        ) == (f"overlap: expected {name} only {message}; change the strategies")
    four = [(name, SINGLE) for name in "abab"]
    looped = replace(make_plan(*four), virtual_stages=2, overlap=("ep",))
    rules = {"overlap_needs": {"ep": ("interleaving",)}}
    chunks = with_rules(problem, virtual_stages=(2,), **rules)
    assert next(breaches(chunks, looped, 2), None) is None


# Plans that break a rule


def refusal(problem: Problem, plan: Plan) -> str:
    with pytest.raises(InvalidPlanError, match="expected") as caught:
        score(problem, plan)
    return str(caught.value)


def test_plans_that_break_a_rule_are_refused():
    costs = make_cost(1, 1), make_cost(1, 1, tp=2)
    problem = alike(
        chain({"a": costs, "b": costs}, devices=4, global_batch=3), "a", "b"
    )
    two = make_plan(("a", SINGLE), ("b", SINGLE))
    mixed = make_plan(("a", SINGLE), ("b", Strategy(tp=2)))
    assert refusal(with_rules(problem, uniform=("tp",)), mixed) == (
        "stage 2: expected tp=1 as in stage 1, as all stages share it, got "
        "tp=2; change the strategies"
    )
    idle = {"idle_devices": False, "uniform": ("devices",)}
    assert refusal(with_rules(problem, **idle), two) == (
        "stages: expected all 4 devices in use, got 2; change the strategies"
    )
    assert refusal(with_rules(problem, zero_with={"pp": (1,)}), two) == (
        "stage 1: expected zero to be one of [1] with several stages, got "
        "zero=0; change the strategies"
    )
    zero = "zero to be 2 or 3 over several data or context ranks"
    assert refusal(with_rules(problem, sharded_with=("pp",)), two) == (
        f"stage 1: expected {zero} with several stages, got zero=0 over 1; "
        f"change the strategies"
    )
    multiple = with_rules(problem, micro_batch_count="multiple-of-stages")
    assert refusal(multiple, two) == (
        "stages: expected a multiple of 2 micro-batches with 2 stages, got 3; "
        "change the strategies"
    )
    few = with_rules(problem, global_batch=1, micro_batch_count="at-least-stages")
    assert refusal(few, two) == (
        "stages: expected at least 2 micro-batches with 2 stages, got 1; "
        "change the strategies"
    )
    third = chain(dict.fromkeys("abc", costs), devices=4, global_batch=3)
    even = with_rules(alike(third, "b", "c"), even_layers=True)
    assert refusal(even, make_plan(("a", SINGLE), ("b c", SINGLE))) == (
        "stage 1: expected 2/2 layers of kind 'b', as all stages have as "
        "many, got 0; change the strategies"
    )
    assert score(even, make_plan(("a b", SINGLE), ("c", SINGLE))).feasible
    together = with_rules(third, one_stage=("b", "c"))
    assert refusal(together, make_plan(("a b", SINGLE), ("c", SINGLE))) == (
        "stage 1: expected all 2 layers of kind 'b' or 'c', or none, got 1; "
        "change the strategies"
    )
    assert score(together, make_plan(("a", SINGLE), ("b c", SINGLE))).feasible


def test_context_ranks_ask_for_zero_stages():
    cost = make_cost(1, 1, cp=2)
    problem = chain({"a": cost}, global_batch=1, zero=(0, 1), zero_with={"cp": (1,)})
    assert refusal(problem, make_plan(("a", Strategy(cp=2)))) == (
        "stage 1: expected zero to be one of [1] with several context ranks, "
        "got zero=0; change the strategies"
    )


def test_tensor_ranks_ask_for_sharded_gradients():
    problem = chain({"a": make_cost(1, 1, tp=2)}, global_batch=1, sharded_with=("tp",))
    zero = "zero to be 2 or 3 over several data or context ranks"
    assert zero in refusal(problem, make_plan(("a", Strategy(tp=2))))


def test_no_replica_number_may_leave_devices_idle():
    problem = chain(
        {"a": make_cost(1, 1)},
        devices=3,
        global_batch=2,
        replicas=None,
        idle_devices=False,
        uniform=("devices",),
    )
    assert refusal(problem, make_plan(("a", SINGLE), replicas=2)) == (
        "replicas: expected a divisor of the 3 devices, as none may idle, "
        "got 2; choose another value"
    )


def test_chunks_have_even_shares_too():
    """Four layers of a kind in two blocks of two chunks: one each."""
    costs = {x: layer(30) for x in "abcd"}
    problem = alike(chain(costs, global_batch=2, virtual_stages=(1, 2)), *"abcd")
    even = with_rules(problem, even_layers=True)

    def chunks(*parts: str) -> Plan:
        return Plan(
            replicas=1,
            micro_batch=1,
            virtual_stages=2,
            stages=tuple(
                Stage(layers=tuple(part), devices=1, strategy=SINGLE) for part in parts
            ),
        )

    assert score(even, chunks(*"abcd")).feasible
    five = chain({x: layer(30) for x in "abcde"}, global_batch=2, virtual_stages=(2,))
    with pytest.raises(InvalidPlanError, match="5/4 layers of kind 'a'"):
        score(
            with_rules(alike(five, *"abcde"), even_layers=True),
            chunks("ab", "c", "d", "e"),
        )


def test_interleaved_plans_with_even_chunks_are_proven():
    """One way to cut is left for every number of chunks."""
    costs = {x: layer(30) for x in "abcd"}
    problem = alike(chain(costs, global_batch=2, virtual_stages=(1, 2)), *"abcd")
    even = with_rules(problem, even_layers=True)
    output, best = (
        get_solver(name)().solve(even, SolveOptions()) for name in ("dp", "brute")
    )
    assert output.status is best.status is Status.OPTIMAL
    assert output.claimed_quanta == best.claimed_quanta
