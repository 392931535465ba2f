"""``random``: how plans are drawn, and what is kept of them."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import pytest

from baselines import random_plans
from baselines.common import make_plan
from baselines.random_plans import MemoryFilter, RandomSolver, draw_stages, drawable
from nest.cost.model import CostModel
from nest.cost.score import score
from nest.cost.space import batch_splits
from nest.ir import Problem, Strategy
from nest.models import builtin
from nest.solvers.base import Progress, SolveOptions, Status
from tests.builders import make_cost, make_levels, make_problem
from tests.loopback import GOOD_NS, good_plan, tiny_problem


def solve(problem: Problem, seed: int = 0, **extra: str):
    return RandomSolver().solve(problem, SolveOptions(seed=seed, extra=extra))


def chain_of(num_layers: int, devices: int = 8, **fields) -> Problem:
    costs = {
        f"l{i}": tuple(make_cost(10, 20, tp=tp, weight_bytes=10) for tp in (1, 2, 4))
        for i in range(num_layers)
    }
    fields.setdefault("memory_bytes", 10**9)
    return make_problem(
        costs, devices=devices, topology=make_levels((devices, 10.0, 1e9)), **fields
    )


def drawn(problem: Problem, count: int, seed: int = 0):
    """Return random plans and the choices they come from."""
    choices = drawable(problem, CostModel(problem))
    draw = random.Random(seed)
    plans = []
    for _ in range(count):
        case, usable, counts = draw.choice(choices)
        stages = draw_stages(problem, draw, case, usable, counts)
        if stages is not None:
            plans.append(make_plan(problem, case, stages))
    return plans


def test_the_only_plan_that_fits_is_found() -> None:
    """Two plans can be drawn for one replica; only one fits."""
    output = solve(tiny_problem(), plans="3")
    assert output.status is Status.FEASIBLE
    assert output.plan == good_plan()
    assert output.detail.startswith("3 plans that fit in ")
    assert output.own_objective_ns is None
    assert score(tiny_problem(), good_plan()).step_quanta == GOOD_NS


def test_only_better_plans_are_reported_and_the_last_is_returned() -> None:
    reports: list[Progress] = []
    problem = chain_of(4, global_batch=4)
    output = RandomSolver().solve(
        problem, SolveOptions(extra={"plans": "50"}), reports.append
    )
    values = [report.claimed_quanta for report in reports]
    assert len(values) > 1
    assert values == sorted(values, reverse=True)
    assert len(set(values)) == len(values)
    assert reports[-1].plan == output.plan
    assert score(problem, output.plan).step_quanta == values[-1]
    assert output.detail.startswith("50 plans that fit in ")


def test_gives_up_after_the_stated_number_of_draws() -> None:
    """No plan fits a device of one byte."""
    problem = tiny_problem(memory_bytes=1)
    output = solve(problem, draws="7")
    assert output.status is Status.NO_SOLUTION
    assert output.detail == "0 plans that fit in 7 draws"
    assert output.limit is None


def test_problem_without_a_plan() -> None:
    """The only cost needs two devices, and there is one."""
    problem = make_problem({"a": make_cost(10, 20, tp=2)}, devices=1)
    output = solve(problem)
    assert output.status is Status.NO_SOLUTION
    assert output.detail == "no plan obeys the rules of the job"


def test_every_power_of_two_of_stages_is_as_likely() -> None:
    """1, 2 or 3, 4 to 7, and 8: a quarter each of 4000 draws."""
    draw = random.Random(1)
    counts = Counter(
        random_plans._draw_count(draw, list(range(1, 9))) for _ in range(4000)
    )
    buckets = [
        counts[1],
        counts[2] + counts[3],
        sum(counts[i] for i in (4, 5, 6, 7)),
        counts[8],
    ]
    assert all(900 < bucket < 1100 for bucket in buckets), buckets
    assert all(200 < counts[i] < 300 for i in (4, 5, 6, 7))
    only = Counter(random_plans._draw_count(draw, [3, 5]) for _ in range(100))
    assert set(only) == {3, 5}


def test_plans_are_legal_and_of_all_kinds() -> None:
    problem = chain_of(6, global_batch=8, micro_batches=(1,))
    plans = drawn(problem, 400)
    for plan in plans:
        score(problem, plan)  # raises if a rule is broken
    assert {len(plan.stages) for plan in plans} == {1, 2, 3, 4, 5, 6}
    assert {plan.replicas for plan in plans} == {1, 2, 4, 8}
    used = {stage.strategy for plan in plans for stage in plan.stages}
    assert used == {Strategy(), Strategy(tp=2), Strategy(tp=4)}
    mixed = [p for p in plans if len({s.strategy for s in p.stages}) > 1]
    assert mixed


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_quick_look_at_the_memory(schedule: str) -> None:
    """The same verdict as the score where nothing but sums take memory.

    Three layers of 80 bytes that keep 30: with two micro-batches, of 200.
    """
    cost = make_cost(10, 20, weight_bytes=10, kept_bytes=30)
    problem = make_problem(
        {"a": cost, "b": cost, "c": cost},
        memory_bytes=200,
        global_batch=2,
        schedule=schedule,
        replicas=(1,),
    )
    room = MemoryFilter(CostModel(problem))
    (case,) = batch_splits(problem)
    verdicts = []
    for stops in ((3,), (1, 3), (2, 3), (1, 2, 3)):
        stages = [
            (start, stop, Strategy())
            for start, stop in zip((0, *stops), stops, strict=False)
        ]
        fits = score(problem, make_plan(problem, case, stages)).feasible
        assert room.lacks(case, stages) is not fits
        verdicts.append(fits)
    # 330; 140 and 220 (280); 280 and 110; 170 at most.
    expected = [False, False, False, True]
    assert verdicts == expected


def test_a_stage_takes_at_most_twice_its_share() -> None:
    """Of 8 devices the first of 4 stages takes at most 4, not 5."""
    problem = chain_of(4, pipeline_parallel=(4,), replicas=(1,))
    for plan in drawn(problem, 200):
        free = 8
        for number, stage in enumerate(plan.stages):
            assert stage.devices <= 2 * free // (4 - number)
            free -= stage.devices


def test_stages_take_what_all_their_layers_have_a_cost_for() -> None:
    """Layer b needs two devices; only together do they use tp 2."""
    problem = make_problem(
        {
            "a": (make_cost(10, 20), make_cost(5, 10, tp=2)),
            "b": make_cost(10, 20, tp=2),
        },
        devices=4,
    )
    for plan in drawn(problem, 100):
        assert plan.stages[-1].strategy == Strategy(tp=2)
    assert {len(plan.stages) for plan in drawn(problem, 100)} == {1, 2}


def test_stages_are_alike_where_the_preset_wants_them_alike() -> None:
    problem = chain_of(4, preset="nest-artifact", uneven_batches=True)
    plans = drawn(problem, 200)
    for plan in plans:
        score(problem, plan)
        assert len({stage.strategy for stage in plan.stages}) == 1
    assert max(len(plan.stages) for plan in plans) == 4


def test_other_seeds_draw_other_plans() -> None:
    problem = chain_of(6, global_batch=8)
    others = {
        msgspec.json.encode(solve(problem, seed=seed, plans="1").plan)
        for seed in range(10)
    }
    assert len(others) > 1


@pytest.mark.parametrize("name", builtin.names())
def test_built_in_problems_get_a_plan(name: str) -> None:
    output = solve(builtin.load(name), plans="1")
    assert output.status is Status.FEASIBLE
