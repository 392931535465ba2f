"""Moves between plans whose chunks differ, and the search that makes them."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from msgspec.structs import replace

from nest.cost.model import CostModel
from nest.cost.score import score
from nest.ir import Problem, Strategy
from nest.ir.plan import Plan
from nest.search.passes import orders, plan_moves
from nest.search.passes.order_settings import Settings
from nest.search.passes.plan_moves import Chunk, OrderedPlan, PlanMoves, PlanSearch
from nest.search.solver import DpSolver
from nest.search.stages.closed_sets import closed_sets
from nest.search.task import SearchTask
from nest.solvers.base import Deadline, SolveOptions
from tests.builders import kept_or_full, make_cost, make_levels, make_plan, make_problem

ONE, TWO = Strategy(), Strategy(dp=2)


#: Of one sample and of two; full recomputation keeps a quarter.
COSTS = (
    make_cost(10, 20, activations=kept_or_full(4, 1)),
    make_cost(20, 40, activations=kept_or_full(8, 2), samples=2),
)


def chain(num_layers: int, devices: int = 4, **job: Any) -> Problem:
    """Build a chain of layers of 10 + 20 ns per sample."""
    names = "abcdefghij"[:num_layers]
    return make_problem(
        dict.fromkeys(names, COSTS),
        edges=tuple((x, y, 1) for x, y in itertools.pairwise(names)),
        topology=make_levels((devices, 0.0, 1e18)),
        devices=devices,
        **{"global_batch": 8, "micro_batches": (1, 2), "schedule": "any", **job},
    )


def counts(chunks: list[Chunk] | None) -> list[int]:
    """Return the layers of chunks."""
    assert chunks is not None
    return [chunk.num_layers for chunk in chunks]


def test_a_layer_moves_and_chunks_between_keep_their_numbers() -> None:
    chunks = [Chunk(x, ONE) for x in (3, 2, 1, 2)]
    assert counts(plan_moves.layer_moved(chunks, 0, 2)) == [2, 2, 2, 2]
    assert counts(plan_moves.layer_moved(chunks, 3, 1)) == [3, 3, 1, 1]
    assert counts(plan_moves.layer_moved(chunks, 1, 1)) == [3, 2, 1, 2]


def test_chunks_of_as_many_devices_get_a_strategy() -> None:
    other = Strategy(tp=2)
    chunks = [Chunk(1, TWO), Chunk(1, ONE), Chunk(1, TWO), Chunk(1, TWO)]
    changed = plan_moves.restrategied(chunks, range(3), other)
    assert [chunk.strategy for chunk in changed] == [other, ONE, other, TWO]


def test_blocks_split_and_join() -> None:
    blocks = [[Chunk(3, TWO), Chunk(2, TWO)], [Chunk(1, ONE), Chunk(4, ONE)]]
    split = plan_moves.split_block(blocks, 0, ONE)
    assert split == [
        [Chunk(2, ONE), Chunk(1, ONE)],
        [Chunk(1, ONE), Chunk(1, ONE)],
        [Chunk(1, ONE), Chunk(4, ONE)],
    ]
    assert plan_moves.joined_blocks(split, 1, TWO) == [
        [Chunk(2, ONE), Chunk(1, ONE)],
        [Chunk(2, TWO), Chunk(5, TWO)],
    ]


def test_chunks_of_blocks_come_in_the_order_of_their_placement() -> None:
    blocks = [[Chunk(1, ONE), Chunk(2, ONE)], [Chunk(3, ONE), Chunk(4, ONE)]]
    plan = replace(make_plan(*((x, ONE) for x in "abcd")), virtual_stages=2)
    assert counts(plan_moves.in_order(blocks, plan)) == [1, 3, 2, 4]
    down = replace(plan, placement="v")
    assert counts(plan_moves.in_order(blocks, down)) == [1, 3, 4, 2]


def test_strategies_that_others_beat_are_left_out() -> None:
    """Recomputation takes time and saves bytes; without a saving it is beaten."""
    saving = chain(4, recompute=("none", "full"))
    wasting = make_problem(
        {x: make_cost(10, 20, activations=kept_or_full(1, 1)) for x in "ab"},
        edges=(("a", "b", 1),),
        topology=make_levels((4, 0.0, 1e18)),
        global_batch=2,
        schedule="any",
        recompute=("none", "full"),
    )
    for problem, expected in ((saving, {"none", "full"}), (wasting, {"none"})):
        moves = PlanMoves(Settings(CostModel(problem)))
        plan = make_plan((" ".join(problem.graph.index), ONE))
        recompute = {x.recompute for x in moves.choices(plan)[1]}
        assert recompute == expected


def test_moves_keep_to_the_rules_of_the_job() -> None:
    """Three stages where the job asks for two; two degrees where it asks for one."""
    problem = chain(3, pipeline_parallel=(2,), uniform=("dp",))
    moves = PlanMoves(Settings(CostModel(problem)))
    assert moves.is_legal(make_plan(("a", TWO), ("b c", TWO), micro_batch=2))
    assert not moves.is_legal(make_plan(*((x, ONE) for x in "abc")))
    assert not moves.is_legal(make_plan(("a", ONE), ("b c", TWO), micro_batch=2))


def test_moves_give_no_layer_a_strategy_without_a_cost() -> None:
    """c has a cost of one sample at a time, so of two only with two data ranks."""
    problem = make_problem(
        {"a": COSTS, "b": COSTS, "c": COSTS[0]},
        edges=(("a", "b", 1), ("b", "c", 1)),
        topology=make_levels((4, 0.0, 1e18)),
        devices=4,
        **{"global_batch": 8, "micro_batches": (1, 2), "schedule": "any"},
    )
    moves = PlanMoves(Settings(CostModel(problem)))
    assert moves.is_legal(make_plan(("a b", ONE), ("c", TWO), micro_batch=2))
    assert not moves.is_legal(make_plan(("a", ONE), ("b c", ONE), micro_batch=2))


def searched(problem: Problem, plan: Plan, rounds: int = 200) -> list[OrderedPlan]:
    """Return the best plans near one, and itself with its first order."""
    task = SearchTask(CostModel(problem), closed_sets(problem.graph), Deadline(None))
    plans = orders._OrdersSearch(task)
    moves = PlanMoves(Settings(task.model))
    start = plans._candidate(plan)
    assert start is not None
    start.search.run(lambda: False, 1)
    first = start.step_quanta
    search = PlanSearch(moves, plans._candidate, start)
    search.run(lambda: False, rounds)
    assert search.plans[0].step_quanta <= first
    return search.plans


def test_uneven_stages_become_even() -> None:
    """Four layers on two devices: 2 · 30 per micro-batch, 10 · 2 to start."""
    problem = chain(4, 2, pipeline_parallel=(2,), replicas=(1,), micro_batches=(1,))
    uneven = make_plan(("a", ONE), ("b c d", ONE))
    best = searched(problem, uneven, 300)[0]
    assert [len(x.layers) for x in best.plan.stages] == [2, 2]
    assert best.step_quanta == 8 * 60 + 20


@pytest.mark.parametrize(
    "job",
    [
        {},
        {"pipeline_parallel": (2, 4)},
        {"uniform": ("dp", "tp")},
        {"virtual_stages": (1, 2), "memory_bytes": 40},
        {"recompute": ("none", "full"), "memory_bytes": 33},
        {"even_layers": True},
    ],
)
def test_plans_are_legal_never_slower_and_not_below_their_floor(job: Any) -> None:
    """Whatever the moves: each plan is one of the problem, and fits."""
    problem = chain(8, **job)
    names = "abcdefgh"
    virtual = max(problem.job.virtual_stages)
    strategy = Strategy(dp=2)
    cuts = [names[x : x + 8 // (2 * virtual)] for x in range(0, 8, 4 // virtual)]
    plan = make_plan(*((" ".join(x), strategy) for x in cuts), micro_batch=2)
    plan = replace(plan, virtual_stages=virtual)
    found = searched(problem, plan)
    steps = [x.step_quanta for x in found]
    assert steps == sorted(steps)
    assert len({x.plan for x in found}) == len(steps)
    for candidate in found:
        assert candidate.search.best is not None
        ordered = orders.with_order(candidate.plan, candidate.search.best)
        verdict = score(problem, ordered)
        assert verdict.feasible
        assert candidate.floor <= verdict.step_quanta == candidate.step_quanta
    assert [x.plan for x in searched(problem, plan)] == [x.plan for x in found]


def test_moves_keep_layers_and_devices_of_a_replica() -> None:
    problem = chain(8, virtual_stages=(2,))
    moves, rng = PlanMoves(Settings(CostModel(problem))), random.Random(0)
    parts = [(" ".join(x), TWO) for x in ("ab", "cd", "ef", "gh")]
    plan = replace(make_plan(*parts, micro_batch=2), virtual_stages=2)
    blocks = set()
    for _ in range(1000):
        moved = moves.moved(plan, rng)
        if moved is None or not moves.is_legal(moved):
            continue
        assert "".join(str(x) for s in moved.stages for x in s.layers) == "abcdefgh"
        assert moved.devices_used <= 4
        blocks.add(moved.num_blocks)
        plan = moved
    assert blocks >= {2, 3}


def test_the_answer_has_chunks_that_differ() -> None:
    """Five layers on two blocks of two and one device: 4 of 15 and 1 of 30.

    Blocks of one size leave a device idle, or have three of five layers.
    """
    problem = chain(5, 3, replicas=(1,), micro_batches=(2,), pipeline_parallel=(2,))
    output = DpSolver().solve(problem, SolveOptions())
    assert output.plan is not None
    assert sorted(x.devices for x in output.plan.stages) == [1, 2]
