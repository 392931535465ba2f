"""``megatron``: each rule by hand, and the choice against enumeration.

Without a quoted unit times are ns and sizes bytes; a layer of ``2 w`` weight
bytes holds ``16 w`` with gradients and optimizer state (2, 2 and 12 bytes).
"""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from msgspec.structs import replace

from baselines.megatron import MegatronSolver, Rules, Setup
from nest.cost.model import CostModel
from nest.cost.score import score
from nest.ir import Activations, Graph, Layer, LayerCost, Problem, Strategy
from nest.solvers.base import SolveOptions, Status
from tests.builders import make_cost, make_levels, make_plan, make_problem

#: Nodes of four devices, two of them.
NODES = make_levels((4, 0.0, 1e9), (2, 0.0, 1e8))


def costs(
    *,
    tps: tuple[int, ...] = (1, 2, 4, 8),
    samples: tuple[int, ...] = (1,),
    weight: int = 80,
    kept: int = 0,
    full: int | None = None,
) -> tuple[LayerCost, ...]:
    """Return a layer that splits evenly over ``tp``, 40 + 80 ns on one."""
    activations = lambda tp, n: (  # noqa: E731
        Activations(kept_bytes=kept * n // tp),
        *(
            (Activations(recompute="full", kept_bytes=full * n // tp),)
            if full is not None
            else ()
        ),
    )
    return tuple(
        make_cost(
            40 * n / tp,
            80 * n / tp,
            tp=tp,
            samples=n,
            weight_bytes=weight // tp,
            activations=activations(tp, n),
        )
        for tp in tps
        for n in samples
    )


def repeat(problem: Problem, kinds: str) -> Problem:
    """Return the problem with a layer per letter, of the kind so named."""
    return replace(
        problem,
        graph=Graph(
            kinds=problem.graph.kinds,
            layers=tuple(
                Layer(id=f"{kind}{i}", kind=kind) for i, kind in enumerate(kinds)
            ),
        ),
    )


def make(kinds: str = "bbbb", memory: int = 10**9, **fields: Any) -> Problem:
    table = {kind: fields.pop(kind, None) or costs() for kind in sorted({*kinds})}
    fields.setdefault("devices", 8)
    fields.setdefault("topology", NODES)
    return repeat(make_problem(table, memory_bytes=memory, **fields), kinds)


def solve(problem: Problem, **options: Any) -> Any:
    return MegatronSolver().solve(problem, SolveOptions(**options))


def degrees(output: Any) -> tuple[int, int, int]:
    """Return (tp, stages, data parallel ranks)."""
    plan = output.plan
    strategy = plan.stages[0].strategy
    return strategy.tp, len(plan.stages), plan.replicas * strategy.dp


# Takeaways 1 and 2: how much model parallelism


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        # 4 layers of 640 bytes on one device.
        (2560, (1, 1, 8)),
        (2559, (2, 1, 4)),
        (1279, (4, 1, 2)),
        # tp 8 would span two nodes, so the next step is two stages of tp 4,
        (639, (4, 2, 1)),
    ],
)
def test_least_model_parallelism_that_fits(
    memory: int, expected: tuple[int, int, int]
) -> None:
    output = solve(make(memory=memory, global_batch=8))
    assert output.status is Status.FEASIBLE
    assert degrees(output) == expected


def test_nothing_fits() -> None:
    """Two stages of tp 4 need 320 bytes; four would need 16 devices."""
    output = solve(make(memory=319, global_batch=8))
    assert output.plan is None
    assert output.status is Status.NO_SOLUTION
    assert output.detail == (
        "no model parallel size fits by its estimate of the memory"
    )


def test_tp_larger_than_a_node_if_there_is_no_other() -> None:
    output = solve(make(b=costs(tps=(8,)), global_batch=8))
    assert degrees(output) == (8, 1, 1)


def test_one_level_is_one_node() -> None:
    flat = make_levels((8, 0.0, 1e9))
    output = solve(make(memory=320, topology=flat, global_batch=8))
    assert degrees(output) == (8, 1, 1)


def test_stage_counts_that_divide_the_layers_come_first() -> None:
    """6 layers of 640 on tp 1: 2, 3 and 6 stages before 4 and 5.

    With 4 stages 960 bytes, with 3 stages 1280, with 6 only 640.
    """
    problem = make("b" * 6, memory=960, b=costs(tps=(1,)), global_batch=8)
    assert degrees(solve(problem)) == (1, 6, 1)
    only = replace(problem, job=replace(problem.job, pipeline_parallel=(1, 4)))
    assert degrees(solve(only)) == (1, 4, 2)


def test_restrictions_of_the_job() -> None:
    output = solve(make(global_batch=8, tensor_parallel=(2, 4)))
    assert degrees(output) == (2, 1, 4)
    output = solve(make(global_batch=8, pipeline_parallel=(2,)))
    assert degrees(output) == (1, 2, 4)
    output = solve(make(global_batch=8, replicas=(2,)))
    assert output.plan.replicas == 2


# Stages


def test_single_layers_at_the_ends_come_on_top() -> None:
    """An embedding, six blocks and an output layer on three stages."""
    problem = make("ebbbbbbo", b=costs(tps=(1,)), e=costs(tps=(1,)), o=costs(tps=(1,)))
    rules = Rules(CostModel(problem))
    assert rules.split(3) == [(0, 3), (3, 5), (5, 8)]
    assert rules.split(4) == [(0, 3), (3, 5), (5, 6), (6, 8)]
    # More stages than blocks: the ends have to do.
    assert rules.split(7)[:2] == [(0, 2), (2, 3)]


def test_plan_is_an_even_split() -> None:
    problem = make(
        "ebbbbo",
        e=costs(tps=(1,)),
        o=costs(tps=(1,)),
        b=costs(tps=(1,)),
        global_batch=4,
        pipeline_parallel=(2,),
        replicas=(1,),
    )
    output = solve(problem)
    assert output.plan == make_plan(("e0 b1 b2", Strategy()), ("b3 b4 o5", Strategy()))


# Equation 1


def test_equation_1() -> None:
    """2 stages, 4 micro-batches: 5 slots of two layers of 120 ns."""
    problem = make(
        b=costs(tps=(1,)), global_batch=4, pipeline_parallel=(2,), replicas=(1,)
    )
    output = solve(problem)
    assert output.own_objective_ns == 5 * 240
    assert output.claimed_quanta is None
    assert score(problem, output.plan).step_quanta == 5 * 240


def test_micro_batch_by_equation_1() -> None:
    """On one pipeline of two stages, 8 samples; two at once are cheap.

    One sample: 9 slots of 240; two in 150 ns a layer: 5 slots of 300; four
    in 500: 3 of 1000.
    """
    table = tuple(
        make_cost(time / 3, 2 * time / 3, samples=n)
        for n, time in ((1, 120), (2, 150), (4, 501))
    )
    problem = make(
        b=table,
        micro_batches=(1, 2, 4),
        global_batch=8,
        pipeline_parallel=(2,),
        replicas=(1,),
        data_parallel=(1,),
    )
    output = solve(problem)
    assert output.plan.micro_batch == 2
    assert output.own_objective_ns == 5 * 300


def test_recompute_only_if_it_is_needed() -> None:
    """4 layers keep 50 bytes each, or 5 if recomputed; one device.

    4 * 640 + 200 fits 2760 bytes. With 2759 they recompute: 40 ns more per
    layer, still one micro-batch per rank.
    """
    fields: dict[str, Any] = {
        "recompute": ("none", "full"),
        "global_batch": 8,
        "tensor_parallel": (1,),
        "pipeline_parallel": (1,),
    }
    table = costs(tps=(1,), kept=50, full=5)
    output = solve(make(b=table, memory=2760, **fields))
    assert output.plan.stages[0].strategy == Strategy()
    assert output.own_objective_ns == 4 * 120
    output = solve(make(b=table, memory=2759, **fields))
    assert output.plan.stages[0].strategy == Strategy(recompute="full")
    assert output.own_objective_ns == 4 * 160


def test_full_recomputation_only_if_nothing_fits_without() -> None:
    """One device would do with it; two tensor parallel ranks without."""
    table = costs(kept=200, full=5)
    fields: dict[str, Any] = {
        "b": table,
        "memory": 2600,
        "recompute": ("none", "full"),
        "global_batch": 8,
    }
    # 4 * (640 + 5) = 2580 on one, 4 * (320 + 100) = 1680 on two.
    output = solve(make(**fields))
    assert degrees(output) == (2, 1, 4)
    assert output.plan.stages[0].strategy.recompute == "none"
    output = solve(make(tensor_parallel=(1,), pipeline_parallel=(1,), **fields))
    assert output.plan.stages[0].strategy.recompute == "full"
    fields["recompute"] = ("full",)
    assert degrees(solve(make(**fields))) == (1, 1, 8)


# Memory


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        # 2 layers of 640; min(8, 2) or 8 micro-batches of 2 * 50.
        ("1f1b", 1280 + 200),
        ("gpipe", 1280 + 800),
    ],
)
def test_estimate_of_the_memory(schedule: str, expected: int) -> None:
    problem = make(b=costs(kept=50), global_batch=8, replicas=(1,), schedule=schedule)
    rules = Rules(CostModel(problem))
    (setup,) = (s for s in rules.data_parallel(1, 2) if s.case.replicas == 1)
    assert isinstance(setup, Setup)
    assert rules.memory_bytes(setup, 2) == expected


def test_estimate_spreads_what_is_heavy() -> None:
    """A large output layer counts half on each stage: the plan overruns."""
    problem = make(
        "bbo",
        memory=1600,
        b=costs(tps=(1,)),
        o=costs(tps=(1,), weight=240),
        pipeline_parallel=(2,),
        replicas=(1,),
    )
    output = solve(problem)
    # (640 + 640 + 1920) / 2 = 1600; in truth 640 and 640 + 1920.
    verdict = score(problem, output.plan)
    assert [stage.memory_bytes for stage in verdict.stages] == [640, 2560]
    assert not verdict.feasible


# Data parallelism


def test_data_ranks_share_a_stage_if_zero_shards_over_them() -> None:
    """8 ranks of one sample: as replicas or as dp 8 with ZeRO 1."""
    problem = make(
        b=costs(tps=(1,)), micro_batches=(1, 2, 4, 8), global_batch=8,
        zero=(0, 1),
    )  # fmt: skip
    plan = solve(problem).plan
    assert (plan.replicas, plan.micro_batch) == (1, 8)
    assert plan.stages[0].strategy == Strategy(dp=8, zero=1)


@pytest.mark.parametrize(
    ("zero", "expected"), [((0, 1, 2, 3), 1), ((0, 3), 0), ((2, 3), 2), ((3,), 3)]
)
def test_zero(zero: tuple[int, ...], expected: int) -> None:
    problem = make(b=costs(tps=(1,)), micro_batches=(8,), global_batch=8, zero=zero)
    assert solve(problem).plan.stages[0].strategy == Strategy(dp=8, zero=expected)


def test_zero_1_makes_room() -> None:
    """4 layers of 80 + 80 + 480 bytes; the state over 8 ranks is 60."""
    fields: dict[str, Any] = {
        "b": costs(samples=(1, 2, 4, 8)),
        "micro_batches": (8,),
        "global_batch": 8,
    }
    problem = make(memory=4 * 220, zero=(0, 1), **fields)
    assert degrees(solve(problem)) == (1, 1, 8)
    problem = make(memory=4 * 220, zero=(0,), **fields)
    assert degrees(solve(problem)) == (4, 1, 2)


def test_distributed_optimizer() -> None:
    """The same over replicas: 8 of them share the state."""
    problem = make(
        memory=4 * 220,
        b=costs(tps=(1,)),
        global_batch=8,
        zero=(0, 1),
        distributed_optimizer=True,
    )
    output = solve(problem)
    assert output.plan.distributed_optimizer
    assert output.plan.replicas == 8
    assert score(problem, output.plan).feasible
    # Not with ZeRO 2 and 3: four stages then.
    sharded = solve(replace(problem, job=replace(problem.job, zero=(2,))))
    assert not sharded.plan.distributed_optimizer
    assert degrees(sharded) == (1, 4, 2)


def test_experts_stay_in_a_node() -> None:
    """ep up to 4 for tp 1, up to 2 for tp 2, as far as there are ranks."""
    table = tuple(
        make_cost(40, 80, tp=tp, ep=ep, samples=1, expert_weight_bytes=8)
        for tp in (1, 2)
        for ep in (1, 2, 4, 8)
    )
    fields: dict[str, Any] = {"micro_batches": (8,), "global_batch": 8}
    plan = solve(make(b=table, **fields)).plan
    assert plan.stages[0].strategy == Strategy(dp=8, ep=4)
    problem = make(b=table, micro_batches=(4,), global_batch=8, tensor_parallel=(2,))
    assert solve(problem).plan.stages[0].strategy == Strategy(dp=4, tp=2, ep=2)
    problem = make(b=table, expert_parallel=(8,), **fields)
    assert solve(problem).plan.stages[0].strategy == Strategy(dp=8, ep=8)


def test_context_parallelism_only_if_it_has_to_be() -> None:
    table = tuple(make_cost(40, 80, cp=cp) for cp in (1, 2, 4))
    plan = solve(make(b=table, global_batch=8)).plan
    assert plan.stages[0].strategy == Strategy()
    plan = solve(make(b=table, global_batch=8, context_parallel=(2, 4))).plan
    assert plan.stages[0].strategy == Strategy(cp=2)


# The rest


def test_stages_that_are_alike_suit_the_rules() -> None:
    problem = make(preset="nest-artifact", global_batch=8, uneven_batches=True)
    assert MegatronSolver().unsupported(problem) is None
    assert solve(problem).plan is not None


@pytest.mark.parametrize("seed", range(30))
def test_choice_against_enumeration(seed: int) -> None:
    """All uniform plans of a random table, in the order of the rules."""
    draw = random.Random(seed)
    table = tuple(
        make_cost(
            draw.randint(10, 60) * n,
            draw.randint(10, 120) * n,
            tp=tp,
            samples=n,
            weight_bytes=2 * draw.randint(4, 40) // tp,
            activations=(
                Activations(kept_bytes=draw.randint(20, 200) * n),
                Activations(recompute="full", kept_bytes=10 * n),
            ),
        )
        for tp in (1, 2)
        for n in (1, 2)
    )
    problem = make(
        b=table,
        memory=draw.randint(150, 1200),
        micro_batches=(1, 2),
        global_batch=8,
        recompute=("none", "full"),
        zero=draw.choice(((0,), (0, 1))),
        topology=make_levels((2, 0.0, 1e9), (4, 0.0, 1e8)),
    )
    output = solve(problem)
    for full, (tp, stages) in itertools.product(
        (False, True), ((1, 1), (2, 1), (2, 2), (2, 4), (2, 3))
    ):
        most, values = enumerate_plans(problem, tp, stages, full=full)
        if values:
            assert output.own_objective_ns == min(values)
            assert degrees(output) == (tp, stages, most)
            return
    assert output.plan is None


def enumerate_plans(
    problem: Problem, tp: int, stages: int, *, full: bool
) -> tuple[int, list[float]]:
    """Return the most ranks, and equation 1 of all plans that use them."""
    costs = {(cost.tp, cost.samples): cost for cost in problem.graph.kinds[0].costs}
    found: list[tuple[int, bool, float]] = []
    for replicas in (1, 2, 4, 8):
        for micro_batch in problem.job.micro_batches:
            for dp in (1, 2):
                if (
                    micro_batch % dp
                    or 8 % (replicas * micro_batch)
                    or replicas * stages * tp * dp > 8
                ):
                    continue
                cost = costs[tp, micro_batch // dp]
                count = 8 // (replicas * micro_batch)
                choices = (0, cost.forward_ns) if full else (0,)
                for i, recompute in enumerate(choices):
                    shards = dp if 1 in problem.job.zero else 1
                    weight = cost.weight_bytes
                    static = 2 * weight + -(-6 * weight // shards)
                    kept = cost.activations[i].kept_bytes
                    need = 4 * (static + min(count, stages) * kept)
                    layer = cost.forward_ns + cost.backward_ns + recompute
                    found.append(
                        (
                            replicas * dp,
                            need <= stages * memory_of(problem),
                            (count + stages - 1) * 4 * layer / stages,
                        )
                    )
    most = max((ranks for ranks, _, _ in found), default=0)
    return most, [value for ranks, fits, value in found if fits and ranks == most]


def memory_of(problem: Problem) -> int:
    return problem.cluster.device.memory_bytes
