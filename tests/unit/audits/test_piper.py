"""Piper's workloads and the preset ``piper``: import, and scores by hand."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from nest.audits.piper import search as piper
from nest.audits.piper.importer import import_piper
from nest.cost.model import CostModel
from nest.cost.score import score
from nest.cost.space import strategies
from nest.errors import InvalidPlanError, InvalidProblemError, UnsupportedProblemError
from nest.ir import (
    Activations,
    Edge,
    LayerCost,
    Optimizer,
    Plan,
    Problem,
    Stage,
    Strategy,
    decode_problem,
    encode,
    problem_hash,
)
from nest.search.stages.closed_sets import closed_sets
from nest.search.stages.options import INFINITE
from nest.search.task import SearchTask
from nest.solvers.base import Deadline, Limit, SolveOptions, Status
from nest.solvers.registry import get_solver
from nest.units import quantise, quantise_all
from tests.builders import SINGLE, call, make_cost, make_levels, make_plan, make_problem
from tests.documents import Document, change, check_refused, drop, write_document

# The preset. Links move a byte per nanosecond.


def piper_problem(costs: dict[str, Any], **fields: Any) -> Problem:
    devices = fields.setdefault("devices", 4)
    fields.setdefault("topology", make_levels((devices, 0.0, 1e9)))
    fields.setdefault("replicas", (1,))
    fields.setdefault("global_batch", 4)
    edges = fields.pop("extra_edges", ())
    problem = make_problem(costs, preset="piper", **fields)
    graph = replace(problem.graph, edges=(*problem.graph.edges, *edges))
    return replace(problem, graph=graph)


def choices(
    kept: int, static: int, less: int, more: int, extra_ns: float
) -> tuple[Activations, ...]:
    """Build ``none``, and ``selective`` that keeps less and holds more."""
    return (
        Activations(kept_bytes=kept, static_bytes=static),
        Activations(
            recompute="selective", kept_bytes=less, static_bytes=more, extra_ns=extra_ns
        ),
    )


@pytest.fixture
def three() -> Problem:
    """Return layers a, b, c with edges a-b, b-c and a-c."""
    return piper_problem(
        {
            "a": make_cost(
                100, 20, weight_bytes=50, activations=choices(10, 5, 2, 12, 8.0)
            ),
            "b": make_cost(
                60, 41, weight_bytes=30, activations=choices(20, 6, 4, 25, 9.0)
            ),
            "c": make_cost(
                70, 0, tp=2, weight_bytes=16, activations=choices(8, 3, 1, 4, 2.0)
            ),
        },
        edges=(("a", "b", 40),),
        extra_edges=(
            Edge(
                source="b",
                target="c",
                bytes_per_sample=30,
                source_extra_bytes_by_tp={1: 3, 2: 900},
                target_extra_bytes_by_tp={1: 900, 2: 7},
            ),
            Edge(
                source="a",
                target="c",
                bytes_per_sample=11,
                source_extra_bytes_by_tp={2: 900},
                target_extra_bytes_by_tp={2: 5},
            ),
        ),
        recompute=("none", "selective"),
    )


@pytest.fixture
def plan() -> Plan:
    """Return a plain and b recomputed on two ranks in turn, c on two wide."""
    return Plan(
        replicas=1,
        micro_batch=1,
        stages=(
            Stage(
                layers=("a", "b"),
                devices=2,
                strategies=(Strategy(dp=2), Strategy(dp=2, recompute="selective")),
            ),
            Stage(layers=("c",), devices=2, strategy=Strategy(tp=2)),
        ),
    )


def test_every_term(three: Problem, plan: Plan) -> None:
    """Four micro-batches.

    Stage 1, d = 2: forward 160/2, all of it 230/2 = 115; edges that leave
    2(30 + 3) + 2 · 11 = 88 bytes, over 2; sync 4 · 1/2 · 80 / 4 = 40; y =
    ⌈3/2⌉ = 2: 2(10 + 4) + 5 + 25 bytes.

    Stage 2, d = 1: 70; edges that enter 2(30 + 7) + 2(11 + 5) = 106; no
    sync; y = 1: 8 + 3 bytes.
    """
    verdict = score(three, plan)
    first, second = verdict.stages
    assert (first.receive_forward, first.receive_backward) == (0, 44)
    assert (first.forward, first.backward) == (80, 35 + 44)
    assert first.sync == 40
    assert first.inflight == 2
    assert first.memory["kept_bytes"] == 28
    assert first.memory["buffer_bytes"] == 30
    assert first.memory_bytes == 58
    assert (second.receive_forward, second.receive_backward) == (106, 0)
    assert (second.forward, second.backward) == (70 + 106, 0)
    assert second.sync == 0
    assert second.inflight == 1
    assert second.memory_bytes == 11
    assert verdict.step_quanta == 115 + 44 + 40
    assert verdict.num_micro_batches == 4
    assert verdict.feasible
    assert verdict.throughput_samples_per_s == pytest.approx(1e9 / 199)


def test_a_rank_of_several_has_its_turn_of_the_work() -> None:
    """Of 100 + 20 + 60 + 41 on three ranks 73.67 are 74, 160/3 are 53."""
    problem = piper_problem(
        {"a": make_cost(100, 20), "b": make_cost(60, 41)}, global_batch=6
    )
    stage = score(problem, make_plan(("a b", Strategy(dp=3)))).stages[0]
    assert (stage.forward, stage.backward) == (53, 21)


def test_edges_that_enter_and_leave_are_rounded_once() -> None:
    """Two edges of 2 · 3 bytes at 0.25 bytes per rank: 1.5 each, 3 both."""
    problem = piper_problem(
        {"a": make_cost(), "b": make_cost(), "c": make_cost()},
        edges=(("a", "b", 3), ("b", "c", 3)),
        devices=6,
    )
    plan = make_plan(("a", SINGLE), ("b", Strategy(dp=4)), ("c", SINGLE))
    with pytest.raises(InvalidPlanError, match="at most one rank"):
        score(problem, plan)
    problem = replace(problem, job=replace(problem.job, global_batch=8))
    stage = score(problem, plan).stages[1]
    assert (stage.receive_forward, stage.receive_backward) == (2, 1)


def test_the_whole_micro_batch_goes_to_one_rank() -> None:
    """Costs are those of B = 2 samples whatever dp; edges count twice."""
    problem = piper_problem(
        {"a": make_cost(10, samples=2), "b": make_cost(30, samples=2)},
        edges=(("a", "b", 5),),
        micro_batches=(2,),
        global_batch=8,
    )
    found = strategies(problem, 2)
    assert [s.dp for s in found] == [1, 2, 4]
    plan = make_plan(("a", SINGLE), ("b", Strategy(dp=2)), micro_batch=2)
    verdict = score(problem, plan)
    assert verdict.num_micro_batches == 4
    assert verdict.step_quanta == 10 + 20
    assert verdict.stages[1].forward == 15 + 10
    assert verdict.throughput_samples_per_s == pytest.approx(2e9 / 30)


def test_weights_take_no_memory_of_their_own() -> None:
    problem = piper_problem(
        {"a": make_cost(1, weight_bytes=999)},
        optimizer=Optimizer(buffer_bytes=4),
        memory_bytes=0,
    )
    assert score(problem, make_plan(("a", SINGLE))).feasible


def test_a_stage_that_needs_too_much(three: Problem, plan: Plan) -> None:
    device = replace(three.cluster.device, memory_bytes=57)
    cluster = replace(three.cluster, device=device)
    verdict = score(replace(three, cluster=cluster), plan)
    assert not verdict.feasible
    assert verdict.violations[0].startswith(
        "stage 1: expected at most 57 bytes per device (57 bytes), got 58"
    )


def test_static_bytes_count_under_the_standard_preset_too() -> None:
    activations = (Activations(kept_bytes=3, static_bytes=70),)
    cost = make_cost(1, weight_bytes=2, activations=activations)
    stage = score(make_problem({"a": cost}), make_plan(("a", SINGLE))).stages[0]
    # weights, gradients and Adam's state of one weight: 2 + 2 + 12
    assert stage.memory_bytes == 16 + 3 + 70
    assert stage.memory["buffer_bytes"] == 70


BAD_PLANS = {
    "no divisor": (
        make_plan(("a b", Strategy(dp=3)), ("c", Strategy(tp=1))),
        r"dp: expected a divisor of the 4 micro-batches, got 3",
    ),
    "too many ranks": (
        make_plan(("a", Strategy(dp=4)), ("b", SINGLE), ("c", Strategy(tp=2))),
        r"stages: expected dp to add up to at most one rank per micro-batch "
        r"\(4\), got 6; change the strategies",
    ),
    "two degrees": (
        Plan(
            replicas=1,
            micro_batch=1,
            stages=(
                Stage(
                    layers=("a", "b", "c"),
                    devices=2,
                    strategies=(*(Strategy(dp=2), Strategy(dp=2), Strategy(tp=2)),),
                ),
            ),
        ),
        r"stage 1: expected one dp and one tp for its layers under preset "
        r"'piper', got \(dp, tp\) = \(1, 2\), \(2, 1\); change",
    ),
    "replicas": (
        make_plan(("a b c", SINGLE), replicas=2),
        r"replicas: expected one of \[1\], got 2",
    ),
}


@pytest.mark.parametrize("name", BAD_PLANS)
def test_bad_plan(three: Problem, name: str) -> None:
    bad, text = BAD_PLANS[name]
    cluster = replace(three.cluster, num_devices=9, topology=make_levels((9, 0.0, 1e9)))
    with pytest.raises(InvalidPlanError, match=text):
        score(replace(three, cluster=cluster), bad)


EXPERT = make_cost(1, expert_weight_bytes=3)
COLLECTIVE = make_cost(1, collectives=(call("all-reduce", "tp", "forward", 3),))
BUSY = make_cost(1, activations=(Activations(kept_bytes=1, working_bytes=2),))

BAD_PROBLEMS: dict[str, tuple[dict[str, Any], str]] = {
    "replicas": (
        {"replicas": None},
        r"\$\.job\.replicas: expected \[1\] under preset 'piper', got None",
    ),
    "micro-batches": (
        {"micro_batches": (1, 2)},
        r"\$\.job\.micro_batches: expected \[1\] .*, got \[1, 2\]",
    ),
    "zero": ({"zero": (0, 1)}, r"\$\.job\.zero: expected \[0\] .*\[0, 1\]"),
    "gpipe": ({"schedule": "gpipe"}, r"\$\.job\.schedule: expected 1f1b"),
    "uneven": (
        {"uneven_batches": True},
        r"\$\.job\.uneven_batches: expected False .*, got True; change it",
    ),
    "sequence parallelism": (
        {"sequence_parallel": True},
        r"\$\.job\.sequence_parallel: expected False",
    ),
    "hidden sync": (
        {"gradient_sync_overlap": 0.5},
        r"\$\.job\.gradient_sync_overlap: expected 0\.0 .*, got 0\.5",
    ),
    "interleaved": (
        {"virtual_stages": (1, 2)},
        r"\$\.job\.virtual_stages: expected the default .* 'piper'",
    ),
    "levels": (
        {"topology": make_levels((2, 0.0, 1e9), (2, 0.0, 1e9))},
        r"topology\.levels: number: expected 1 under .*, got 2; change it",
    ),
    "latency": (
        {"topology": make_levels((4, 7.0, 1e9))},
        r"levels\[0\]\.latency_ns: expected 0\.0 under .*, got 7\.0",
    ),
    "context parallelism": (
        {"costs": {"a": make_cost(cp=2)}},
        r"\$\.graph\.kinds\[0\]\.costs\[0\]\.cp: expected 1 .*, got 2",
    ),
    "expert parallelism": (
        {"costs": {"a": make_cost(ep=2)}},
        r"costs\[0\]\.ep: expected 1 .*, got 2",
    ),
    "experts": (
        {"costs": {"a": EXPERT}},
        r"costs\[0\]\.expert_weight_bytes: expected 0 .*, got 3",
    ),
    "working set": (
        {"costs": {"a": make_cost(working_bytes=4)}},
        r"costs\[0\]\.working_bytes: expected 0 .*, got 4",
    ),
    "working set of a choice": (
        {"costs": {"a": BUSY}},
        r"activations\[0\]\.working_bytes: expected 0 .*, got 2",
    ),
    "collectives": (
        {"costs": {"a": COLLECTIVE}},
        r"costs\[0\]\.collectives: number: expected 0 .*, got 1",
    ),
}


@pytest.mark.parametrize("name", BAD_PROBLEMS)
def test_the_preset_cannot_express(name: str) -> None:
    fields, text = BAD_PROBLEMS[name]
    fields = dict(fields)
    costs = fields.pop("costs", {"a": make_cost()})
    with pytest.raises(InvalidProblemError, match=text):
        CostModel(piper_problem(costs, **fields))


def test_a_launch_and_links_of_pairs_are_refused() -> None:
    base = piper_problem({"a": make_cost()})
    (level,) = base.cluster.topology.levels
    for field, value in (("launch_ns", 5.0), ("peer_bandwidth_bytes_per_s", 1e8)):
        levels = (replace(level, **{field: value}),)
        topology = replace(base.cluster.topology, levels=levels)
        cluster = replace(base.cluster, topology=topology)
        with pytest.raises(
            InvalidProblemError, match=rf"levels\[0\]\.{field}: expected"
        ):
            CostModel(replace(base, cluster=cluster))


@pytest.mark.parametrize(
    "field", ["source_extra_bytes_by_tp", "target_extra_bytes_by_tp"]
)
def test_extra_bytes_need_a_preset_that_charges_them(field: str) -> None:
    base = make_problem({"a": make_cost(), "b": make_cost()})
    edge = Edge(source="a", target="b", bytes_per_sample=1, **{field: {2: 3}})
    graph = replace(base.graph, edges=(edge,))
    with pytest.raises(
        InvalidProblemError,
        match=rf"\$\.graph\.edges: expected no {field} under preset "
        r"'standard', got it on the edge from 'a' to 'b'; remove it or use "
        r"preset 'piper'",
    ):
        CostModel(replace(base, graph=graph))


def test_new_fields_are_checked() -> None:
    with pytest.raises(ValueError, match="static_bytes: expected >= 0"):
        Activations(kept_bytes=0, static_bytes=-1)
    for field in ("source_extra_bytes_by_tp", "target_extra_bytes_by_tp"):
        with pytest.raises(ValueError, match=rf"{field}\.2: expected >= 0"):
            Edge(source=0, target=1, bytes_per_sample=1, **{field: {2: -1}})
        with pytest.raises(ValueError, match=f"{field}: expected >= 1"):
            Edge(source=0, target=1, bytes_per_sample=1, **{field: {0: 1}})


def test_a_long_stage_is_refused_before_sums_overflow() -> None:
    """Three layers of 1e15 ns: 3e18 ps for one pass, over 2**61."""
    costs = {name: make_cost(1e15) for name in "abc"}
    with pytest.raises(InvalidProblemError, match=r"\$\.quantum_ps: expected"):
        CostModel(piper_problem(costs, quantum_ps=1, global_batch=1))


def test_arrays_are_rounded_like_numbers() -> None:
    """Half up, with other quanta than a nanosecond too."""
    times = [0.0, 0.4999, 0.5, 1.5, 2.4999, 1e12, 73.5e9]
    for quantum_ps in (1, 1000, 10**6):
        found = quantise_all(np.array(times), quantum_ps)
        assert found.tolist() == [quantise(t, quantum_ps) for t in times]
    with pytest.raises(OverflowError, match=r"a time of 1e\+14 ns is more"):
        quantise_all(np.array([1.0, 1e14]), 1)


def test_an_edge_that_takes_too_long_is_refused() -> None:
    """2e7 bytes at 1 byte/s are 2e16 ns, over 2**53."""
    problem = piper_problem(
        {"a": make_cost(), "b": make_cost()},
        edges=(("a", "b", 10**7),),
        topology=make_levels((4, 0.0, 1.0)),
        global_batch=1,
    )
    text = r"\$\.quantum_ps: expected .* 2e\+16 ns .* \(an edge\); correct"
    plan = make_plan(("a", SINGLE), ("b", SINGLE))
    with pytest.raises(InvalidProblemError, match=text):
        score(replace(problem, job=replace(problem.job, global_batch=2)), plan)
    with pytest.raises(InvalidProblemError, match=text):
        solve(problem)


# Solvers


@pytest.mark.parametrize("name", ["cpsat", "milp"])
def test_formulations_refuse(three: Problem, name: str) -> None:
    text = get_solver(name)().unsupported(three)
    assert text == (
        "preset 'piper': its rules are not formulated here; use solver dp, "
        "or brute for small problems"
    )


def solve(problem: Problem, name: str = "dp", **options: Any) -> Any:
    return get_solver(name)().solve(problem, SolveOptions(**options))


def test_dp_and_brute_find_the_same(three: Problem) -> None:
    best = solve(three)
    assert best.status is Status.OPTIMAL
    assert best.lower_bound_quanta == best.claimed_quanta
    assert best.claimed_quanta == solve(three, "brute").claimed_quanta
    assert score(three, best.plan).step_quanta == best.claimed_quanta


def test_the_fewest_in_flight_count_where_the_most_hold_more() -> None:
    """In the last stage d holds 20 bytes, or 50 if it recomputes.

    With four in flight it would hold 80: each is best somewhere.
    """
    problem = piper_problem(
        {
            **{name: make_cost(10, 20) for name in "abc"},
            "d": make_cost(10, 20, activations=choices(20, 0, 0, 50, 0.0)),
        },
        extra_edges=tuple(
            Edge(source=a, target=b, bytes_per_sample=0) for a, b in ("ab", "bc", "cd")
        ),
        memory_bytes=40,
        recompute=("none", "selective"),
    )
    best = solve(problem)
    assert best.status is Status.OPTIMAL
    assert best.claimed_quanta == solve(problem, "brute").claimed_quanta


def test_layers_choose_recomputation_one_by_one() -> None:
    """One stage, y = 1: of 30 bytes 13 must go.

    Recomputing a saves 6 bytes for 5 ns, b 8 for 7, c 7 for 6. Enough are
    a and b (14 for 12 ns), b and c (15 for 13), and a and c, 13 for 11.
    """
    costs = {
        name: make_cost(100, activations=choices(10, 0, 10 - saved, 0, extra))
        for name, saved, extra in (*(("a", 6, 5.0), ("b", 8, 7.0)), ("c", 7, 6.0))
    }
    problem = piper_problem(
        costs, devices=1, memory_bytes=17, recompute=("none", "selective")
    )
    for name in ("dp", "brute"):
        output = solve(problem, name)
        assert output.claimed_quanta == 311
        (stage,) = output.plan.stages
        chosen = dict(zip(stage.layers, stage.layer_strategies, strict=True))
        assert chosen["a"].recompute == "selective"
        assert chosen["b"].recompute == "none"
        assert chosen["c"].recompute == "selective"


def test_brute_counts_every_choice_of_every_layer(three: Problem) -> None:
    """On two devices: c takes both, nothing is left for a and b."""
    cluster = replace(three.cluster, num_devices=2)
    small = replace(three, cluster=cluster)
    assert solve(small, "brute").status is Status.INFEASIBLE
    assert solve(small).status is Status.INFEASIBLE
    # On three: a and b in one stage (4 choices) or two (on one device: no);
    # c with 2 choices.
    cluster = replace(three.cluster, num_devices=3)
    output = solve(replace(three, cluster=cluster), "brute")
    assert output.extra["num_plans"] == output.extra["num_scored"] == 4 * 2


def test_too_little_memory_is_proven_infeasible(three: Problem) -> None:
    device = replace(three.cluster.device, memory_bytes=4)
    cluster = replace(three.cluster, device=device)
    output = solve(replace(three, cluster=cluster))
    assert output.status is Status.INFEASIBLE
    assert output.plan is None


@pytest.mark.parametrize("name", ["dp", "brute"])
def test_a_batch_that_does_not_divide_has_no_plan(name: str) -> None:
    problem = piper_problem(
        {"a": make_cost(samples=2)}, micro_batches=(2,), global_batch=3
    )
    assert solve(problem, name).status is Status.INFEASIBLE


def test_a_warm_start_may_mix_recomputation(three: Problem, plan: Plan) -> None:
    output = solve(three, warm_start=plan)
    assert output.status is Status.OPTIMAL
    assert output.claimed_quanta <= 199
    assert output.claimed_quanta == solve(three).claimed_quanta


def test_time_runs_out(three: Problem, plan: Plan) -> None:
    task = SearchTask(CostModel(three), closed_sets(three.graph), Deadline(1e-9))
    cold = piper.search(task)
    assert (cold.status, cold.limit) == (Status.NO_SOLUTION, Limit.TIME)
    warm = piper.search(dataclasses.replace(task, upper=199, plan=plan))
    assert (warm.status, warm.limit) == (Status.FEASIBLE, Limit.TIME)
    assert (warm.plan, warm.claimed_quanta) == (plan, 199)
    assert warm.lower_bound_quanta <= 199


def test_the_optimum_is_found_one_quantum_below_a_limit() -> None:
    problem = piper_problem({"a": make_cost()}, devices=1)
    optimum = solve(problem, "brute").claimed_quanta
    task = SearchTask(CostModel(problem), closed_sets(problem.graph), Deadline(None))
    above = piper.search(dataclasses.replace(task, upper=optimum + 1))
    assert above.claimed_quanta == optimum
    at_it = piper.search(dataclasses.replace(task, upper=optimum))
    assert at_it.plan is None


def test_memory_beyond_the_tables_is_refused() -> None:
    problem = piper_problem({"a": make_cost()}, memory_bytes=2**53, devices=300)
    assert solve(problem).status is Status.OPTIMAL
    problem = piper_problem(
        {"a": make_cost(kept_bytes=2**53)}, memory_bytes=2**53, devices=300
    )
    with pytest.raises(
        UnsupportedProblemError,
        match=r"\$\.cluster\.device\.memory_bytes: expected at most .* with "
        r"so many devices and layers, got 9007199254740992; correct it",
    ):
        solve(problem)


def test_the_bound_on_the_largest_load(three: Problem) -> None:
    """(120 + 101 + 2 · 70) / 4 = 90.25 per device, less half a quantum."""
    model = CostModel(three)
    program = piper.Program(model, closed_sets(three.graph), Deadline(None))
    assert program.least_load() == 90


def test_more_in_flight_never_looks_cheaper() -> None:
    """Three choices of 18 bytes: 10 y, 6 y + 3 or 2 y + 12.

    The least memory for two in flight is the second's, 15, at 100 ns more; for three
    the third's, 18, at 50 more, and that fits for two as well. Four do not fit.
    """
    activations = (
        Activations(kept_bytes=10),
        Activations(
            recompute="selective", kept_bytes=6, static_bytes=3, extra_ns=100.0
        ),
        Activations(recompute="full", kept_bytes=2, static_bytes=12),
    )
    problem = piper_problem(
        {"a": make_cost(50, activations=activations)},
        memory_bytes=18,
        recompute=("none", "selective", "full"),
    )
    program = piper.Program(
        CostModel(problem), closed_sets(problem.graph), Deadline(None)
    )
    assert program.ways[0].compute.tolist() == [[50, 100, 100, INFINITE]]


def knapsack(*layers: tuple[tuple[int, int, int], ...]) -> piper.Knapsack:
    """Build one of layers with further options than (0, 4, 9), with room."""
    options = [
        [
            piper.Option(compute, 4 + kept, 9 + static, "none")
            for compute, kept, static in ((0, 0, 0), *layer)
        ]
        for layer in layers
    ]
    return piper.Knapsack(options, 99, 5)


def fronts(found: piper.Knapsack) -> list[piper.Front]:
    """Return the fronts of no layers, the first one, and so on."""
    layers = range(len(found.options))
    return list(itertools.accumulate(layers, found.extended, initial=piper.EMPTY))


def test_the_front_of_equal_layers_counts_them() -> None:
    """Every one recomputed saves 4 bytes in flight for 10 and holds 4."""
    front = fronts(knapsack(*[((10, -4, 4),)] * 3))[-1]
    assert front.compute.tolist() == [0, 10, 20, 30]
    assert front.kept_bytes.tolist() == [12, 8, 4, 0]
    assert front.static_bytes.tolist() == [27, 31, 35, 39]


def test_dominated_choices_are_dropped() -> None:
    """Of options (10, -4) and (7, -5) the first alone is never worth it."""
    found = knapsack(((10, -4, 4),), ((7, -5, 5),))
    _, first, both = fronts(found)
    assert both.compute.tolist() == [0, 7, 17]
    assert both.chosen.tolist() == [0, 1, 1]
    assert first.chosen[both.before].tolist() == [0, 0, 1]


def test_what_does_not_fit_is_dropped() -> None:
    """One micro-batch in flight takes 13 bytes of either layer, or 12."""
    found = knapsack(((10, -4, 3),), ((10, -4, 3),))
    found.capacity = 25
    front = fronts(found)[-1]
    assert front.compute.tolist() == [10, 20]
    assert found.inflight(front).tolist() == [1, 5]


def test_both_ends_of_the_memory_count() -> None:
    """(3, -4, 0) is best with five in flight, (4, -1, -9) with one."""
    front = fronts(knapsack(((3, -4, 0), (4, -1, -9), (5, -1, -8))))[-1]
    assert front.compute.tolist() == [0, 3, 4]


@pytest.mark.parametrize(
    ("points", "kept"),
    [
        ([(0, 9), (1, 5), (0, 9), (0, 7)], [0, 1, 3]),
        ([(5, 5), (5, 4), (5, 6), (4, 4)], [0, 1, 3]),
        ([(3, 1), (2, 2), (1, 3), (2, 3)], [0, 1, 2]),
        ([(1, 8), (3, 6), (5, 4), (2, 3)], [0, 1, 2, 3]),
        ([(1, 8), (2, 3), (3, 5), (4, 2)], [0, 1, 3]),
        ([(7, 3), (7, 3), (7, 2), (7, 4)], [0, 2]),
    ],
)
def test_choices_that_are_cheaper_or_smaller(
    points: list[tuple[int, int]], kept: list[int]
) -> None:
    """Memory at both ends of the in-flight counts; each costs 1 ns more."""
    least, most = np.array(points).T
    found = piper.cheaper_or_smaller(np.arange(len(points)), least, most)
    assert found.tolist() == kept


# Import


def alternative(name: str, time: float, a: float, b: float, **fields: Any) -> Document:
    return {
        "id": name,
        "timePerSample": time,
        "parameterSize": 200.0,
        "memoryUsageA": a,
        "memoryUsageB": b,
        "syncTimeFw": {},
        "syncTimeBw": {},
    } | fields


def pair(**fields: Any) -> list[Document]:
    return [
        alternative("vanilla", 0.5, 1000.0, 400.0, **fields),
        alternative("activation recomp", 0.75, 90.04, 1309.96, **fields),
    ]


@pytest.fixture
def document() -> Document:
    return workload()


def workload() -> Document:
    """Return nodes 7 and 3 alike but for their edges, and 5 on one width."""
    ends: Document = {"syncTimeFw": {"5": 0.0}, "syncTimeBw": {}}
    wide: Document = {"syncTimeFw": {"5": 12.0}, "syncTimeBw": {}}
    one = {"syncTimeFw": {}, "syncTimeBw": {"7": 4.0, "3": 0.0}}
    return {
        "maxDevices": 10,
        "maxMemoryPerDevice": 5000.5,
        "bandwidth": 250.0,
        "mbsInBatch": 12,
        "nodes": [
            {"id": 7, "name": "block", "TMPCs": {"1": pair(**ends), "2": pair(**wide)}},
            {"id": 3, "name": "block", "TMPCs": {"2": pair(**ends), "1": pair(**ends)}},
            {
                "id": 5,
                "name": "input",
                "TMPCs": {"1": [alternative("vanilla", 0.0, 8, 0, **one)]},
            },
        ],
        "edges": [
            {"sourceId": 5, "destId": 7, "communicationCost": 64.0},
            {"sourceId": 5, "destId": 3, "communicationCost": 32},
        ],
    }


def test_layers(tmp_path: Path, document: Document) -> None:
    graph = import_piper(write_document(tmp_path, document)).graph
    assert [layer.id for layer in graph.layers] == [5, 7, 3]
    assert [layer.kind for layer in graph.layers] == [
        *("layer-5", "layer-7", "layer-7")
    ]
    costs = {kind.name: kind.costs for kind in graph.kinds}
    assert costs["layer-5"] == (
        LayerCost(
            forward_ns=0,
            backward_ns=0,
            weight_bytes=200,
            activations=(Activations(kept_bytes=8),),
        ),
    )
    assert [cost.tp for cost in costs["layer-7"]] == [1, 2]
    assert costs["layer-7"][0] == LayerCost(
        forward_ns=0.5e9,
        backward_ns=0,
        weight_bytes=200,
        activations=(
            Activations(kept_bytes=1000, static_bytes=400),
            # 90.04 y + 1309.96: 91 y + 1309, at one in flight 1400 exactly
            Activations(
                recompute="selective", kept_bytes=91, static_bytes=1309, extra_ns=0.25e9
            ),
        ),
    )


def test_edges(tmp_path: Path, document: Document) -> None:
    first, second = import_piper(write_document(tmp_path, document)).graph.edges
    assert first == Edge(
        source=5,
        target=7,
        bytes_per_sample=64,
        source_extra_bytes_by_tp={1: 4},
        target_extra_bytes_by_tp={2: 12},
    )
    assert second == Edge(source=5, target=3, bytes_per_sample=32)


def test_the_rest_of_the_problem(tmp_path: Path, document: Document) -> None:
    problem = import_piper(write_document(tmp_path, document))
    assert (problem.name, problem.preset) == ("chain", "piper")
    assert problem.time_unit == "instance unit"
    assert problem.quantum_ps == 1
    assert problem.cluster.num_devices == 10
    assert problem.cluster.device.memory_bytes == 5000
    (level,) = problem.cluster.topology.levels
    assert (level.fan_out, level.bandwidth_bytes_per_s) == (10, 250)
    job = problem.job
    assert (job.global_batch, job.micro_batches) == (12, (1,))
    assert (job.replicas, job.recompute) == ((1,), ("none", "selective"))
    assert decode_problem(encode(problem)) == problem
    assert len(problem_hash(problem)) == 64


def test_what_is_given_takes_precedence(tmp_path: Path, document: Document) -> None:
    for key in ("maxDevices", "maxMemoryPerDevice", "bandwidth", "mbsInBatch"):
        del document[key]
    problem = import_piper(
        write_document(tmp_path, document),
        devices=6,
        micro_batches=24,
        memory_bytes=4000,
        bandwidth_bytes_per_s=1000.0,
    )
    assert problem.cluster.num_devices == 6
    assert problem.job.global_batch == 24
    assert problem.cluster.device.memory_bytes == 4000
    (level,) = problem.cluster.topology.levels
    assert level.bandwidth_bytes_per_s == 1000


def test_the_step_time_is_the_time_per_sample(
    tmp_path: Path, document: Document
) -> None:
    """All on one rank: 0 + 0.5 + 0.5 units, that is seconds."""
    problem = import_piper(write_document(tmp_path, document), devices=1)
    output = solve(problem)
    assert score(problem, output.plan).step_time_ns == 10**9


def test_a_long_time_coarsens_the_quantum(tmp_path: Path, document: Document) -> None:
    """Twice 6000 s and a little are more than 2**53 ps = 9007 s."""
    for node in document["nodes"][:2]:
        for alternatives in node["TMPCs"].values():
            alternatives[1]["timePerSample"] = 6000
    problem = import_piper(write_document(tmp_path, document))
    assert problem.quantum_ps == 10
    CostModel(problem)


NODE = ("nodes", 0, "TMPCs", "1")

BAD_FILES = {
    "unknown key": (
        change("extra", to=1),
        r"\$: expected a known key, got 'extra'; remove",
    ),
    "missing key": (drop("nodes"), r"\$: expected key 'nodes', got none; add it"),
    "missing field": (
        drop(*NODE, 1, "memoryUsageA"),
        r"\$\.nodes\[0\]\.TMPCs\[\.\.\.\]\[1\]: expected key 'memoryUsageA'",
    ),
    "text for a number": (
        change(*NODE, 0, "timePerSample", to="fast"),
        r"\$\.nodes\[0\]\.TMPCs.*timePerSample: expected `float`, got `str`",
    ),
    "text for a degree": (
        change("nodes", 0, "TMPCs", "two", to=[]),
        r"\$\.nodes\[0\]\.TMPCs: expected `int`, got `str`; correct",
    ),
    "no devices in the file": (
        drop("maxDevices"),
        r"maxDevices: expected a value, got none; add it or give devices",
    ),
    "no device": (
        change("maxDevices", to=0),
        r"\$: maxDevices: expected a number from 1 to .*, got 0; correct",
    ),
    "negative memory": (
        change("maxMemoryPerDevice", to=-1),
        r"maxMemoryPerDevice: expected .*, got -1\.0; correct",
    ),
    "dead link": (
        change("bandwidth", to=0),
        r"bandwidth: expected a number from 1 to .*, got 0\.0; correct",
    ),
    "no nodes": (
        change("nodes", to=[]),
        r"\$: nodes: expected at least one, got none; add them",
    ),
    "duplicate id": (
        change("nodes", 1, "id", to=7),
        r"nodes: expected distinct ids, got 7 twice; remove one",
    ),
    "negative edge": (
        change("edges", 0, "communicationCost", to=-3),
        r"communicationCost of edge 5 to 7: expected .*, got -3\.0; correct",
    ),
    "edge to nowhere": (
        change("edges", 0, "destId", to=99),
        r"edges: expected ids of nodes, got 99; add the node or remove",
    ),
    "duplicate edge": (
        change("edges", 1, "destId", to=7),
        r"edges: expected one edge from 5 to 7, got two; merge them",
    ),
    "no degree": (
        change("nodes", 2, "TMPCs", to={}),
        r"node 5: TMPCs: expected at least one tensor parallel degree, got",
    ),
    "degree zero": (
        change("nodes", 2, "TMPCs", "0", to=[]),
        r"node 5: TMPCs: degree: expected a number from 1 to .*, got 0",
    ),
    "no alternative": (
        change(*NODE, to=[]),
        r"node 7: TMPCs\.1: expected one or two different alternatives, got "
        r"none; correct them",
    ),
    "the same alternative twice": (
        change(*NODE, 1, "id", to="vanilla"),
        r"node 7: TMPCs\.1: expected one or two different alternatives, got "
        r"\['vanilla', 'vanilla'\]; correct them",
    ),
    "unknown alternative": (
        change(*NODE, 1, "id", to="offload"),
        r"node 7: TMPCs\.1: id: expected 'vanilla' or 'activation recomp', "
        r"got 'offload'; correct it",
    ),
    "negative time": (
        change(*NODE, 0, "timePerSample", to=-0.5),
        r"node 7: TMPCs\.1, 'vanilla': timePerSample: expected .*, got -0\.5",
    ),
    "huge weights": (
        change(*NODE, 0, "parameterSize", to=1e17),
        r"'vanilla': parameterSize: expected .* 9\.0072e\+15, got 1e\+17",
    ),
    "negative activation": (
        change(*NODE, 1, "memoryUsageA", to=-1),
        r"'activation recomp': memoryUsageA: expected .*, got -1\.0",
    ),
    "negative static memory": (
        change(*NODE, 1, "memoryUsageB", to=-1),
        r"'activation recomp': memoryUsageB: expected .*, got -1\.0",
    ),
    "edge without its bytes": (
        change(*NODE, 0, "syncTimeFw", to={}),
        r"node 7: TMPCs\.1, 'vanilla': syncTimeFw: expected the other ends "
        r"of its incoming edges \(5\), got none; list each once",
    ),
    "bytes without an edge": (
        change("nodes", 2, "TMPCs", "1", 0, "syncTimeBw", "9", to=1),
        r"node 5: TMPCs\.1, 'vanilla': syncTimeBw: expected the other ends "
        r"of its outgoing edges \(3, 7\), got 3, 7, 9; list each once",
    ),
    "negative sync": (
        change(*NODE, 0, "syncTimeFw", "5", to=-1),
        r"'vanilla': syncTimeFw\.5: expected a number from 0 to .*, got -1",
    ),
    "other weights when recomputed": (
        change(*NODE, 1, "parameterSize", to=3),
        r"node 7: TMPCs\.1: parameterSize: expected 200\.0 in both "
        r"alternatives, got 3\.0 in 'activation recomp'; recomputation",
    ),
    "other traffic when recomputed": (
        change(*NODE, 1, "syncTimeFw", "5", to=3),
        r"node 7: TMPCs\.1: syncTimeFw: expected \{5: 0\.0\} in both",
    ),
    "recomputed faster": (
        change(*NODE, 1, "timePerSample", to=0.25),
        r"node 7: TMPCs\.1: timePerSample: expected at least 0\.5 of "
        r"'vanilla' for 'activation recomp', got 0\.25; swap or correct",
    ),
    "cycle": (
        lambda document: (
            document["edges"].append(
                {"sourceId": 7, "destId": 5, "communicationCost": 1}
            ),
            [
                x["syncTimeBw"].update({"5": 0})
                for table in document["nodes"][0]["TMPCs"].values()
                for x in table
            ],
            document["nodes"][2]["TMPCs"]["1"][0]["syncTimeFw"].update({"7": 0}),
        ),
        r"\$: edges: expected no cycle, got \d -> \d -> \d; remove one of",
    ),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_file(tmp_path: Path, document: Document, name: str) -> None:
    spoil, text = BAD_FILES[name]
    check_refused(import_piper, tmp_path, document, spoil, text)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"devices": 0}, r"devices: expected a number from 1 to .*, got 0"),
        ({"micro_batches": 0}, r"micro_batches: expected .*, got 0; correct"),
        ({"memory_bytes": -1}, r"memory_bytes: expected .*, got -1; correct"),
        (
            {"bandwidth_bytes_per_s": float("nan")},
            r"bandwidth_bytes_per_s: expected .*, got nan; correct",
        ),
    ],
)
def test_bad_option(
    tmp_path: Path, document: Document, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidProblemError, match=rf"chain\.json: \$: {text}"):
        import_piper(write_document(tmp_path, document), **options)


def test_truncated_and_missing_files(tmp_path: Path, document: Document) -> None:
    path = write_document(tmp_path, document)
    path.write_text(path.read_text()[:-40])
    with pytest.raises(InvalidProblemError, match="malformed text"):
        import_piper(path)
    with pytest.raises(InvalidProblemError, match="No such file"):
        import_piper(tmp_path / "none.json")
