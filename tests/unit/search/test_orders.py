"""The search of plans and orders: what it takes apart, and in which cases."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from nest.cost.model import CostModel
from nest.cost.schedules import AnyOrder
from nest.ir import Problem, Strategy
from nest.ir.job import Job
from nest.search import orders
from nest.search.chunk_bounds import moments
from nest.search.closed_sets import closed_sets
from nest.search.interleaved_exact import schedules_of, timed_by_passes
from nest.search.list_orders import OrderSearch
from nest.search.solver import DpSolver
from nest.search.task import SearchTask
from nest.solvers.base import Deadline, SolveOptions, Status
from tests.builders import make_cost, make_levels, make_plan, make_problem

FREE = make_levels((4, 0.0, 1e18))


def chain(num_layers: int = 4, **job: Any) -> Problem:
    """Build a chain of layers of 10 + 20 ns, half of these for weights."""
    names = "abcdefgh"[:num_layers]
    return make_problem(
        dict.fromkeys(names, make_cost(10, 20, kept_bytes=1)),
        edges=tuple((x, y, 1) for x, y in itertools.pairwise(names)),
        topology=FREE,
        **{"global_batch": 2, "schedule": "any", **job},
    )


@pytest.mark.parametrize(
    ("schedule", "virtual", "recompute", "expected"),
    [
        (
            *("any", (1, 2), ("none",)),
            {"1f1b": (1, 2), "gpipe": (1,), "zb-h1": (1,), "zb-v": (1,)},
        ),
        ("any", (1,), ("none",), {"1f1b": (1,), "gpipe": (1,), "zb-h1": (1,)}),
        ("any", (2, 3), ("none",), {"1f1b": (2, 3), "zb-v": (1,)}),
        ("any", (1,), ("full",), {"1f1b": (1,), "gpipe": (1,)}),
        (
            *(("zb-v", "1f1b"), (1,), ("none", "full")),
            {"zb-v": (1,), "1f1b": (1,)},
        ),
    ],
)
def test_each_name_has_a_problem_of_its_own(
    schedule: Any,
    virtual: tuple[int, ...],
    recompute: Any,
    expected: dict[str, tuple[int, ...]],
) -> None:
    problem = chain(
        schedule=schedule, virtual_stages=virtual, recompute=recompute
    )
    named = dict(orders._named(problem))
    assert {
        name: one.job.virtual_stages for name, one in named.items()
    } == expected
    for name, one in named.items():
        assert one.job.schedule == name
        split = name in ("zb-h1", "zb-v")
        assert ("full" in one.job.recompute) == (
            "full" in recompute and not split
        )


def test_any_order_of_two_chunks_may_be_a_v() -> None:
    for schedule in ("any", ("1f1b", "zb-v")):
        job = Job(global_batch=1, schedule=schedule, virtual_stages=(1, 2, 3))
        shapes = {
            virtual: [
                (x.virtual_stages, x.placement)
                for x in schedules_of(job, virtual)
                if isinstance(x, AnyOrder)
            ]
            for virtual in (1, 2, 3)
        }
        assert shapes == {
            1: [(1, "loop")],
            2: [(2, "loop"), (2, "v")],
            3: [(3, "loop")],
        }
        assert timed_by_passes(job)
    assert not timed_by_passes(Job(global_batch=1))


def test_any_order_has_a_moment_with_one_of_each_chunk() -> None:
    assert np.array_equal(moments(AnyOrder(2), 3, 4, 1), [[1, 1]])


def test_a_bound_of_a_formula_is_none_of_its_passes() -> None:
    """Stages of 10 + 0, 0 + 10 and 0 + 0 each fill a device.

    The formula of 1F1B says 30, its passes take 40: ``dp`` may prove no more
    than 30 of the best plan alone.
    """
    costs = {
        "a": make_cost(10, 0, weight_bytes=2),
        "b": make_cost(0, 10, weight_bytes=2),
        "c": make_cost(0, 0, weight_bytes=2),
    }
    problem = make_problem(
        costs,
        edges=(("a", "b", 1), ("b", "c", 1)),
        topology=FREE,
        memory_bytes=16,
        global_batch=2,
        schedule=("1f1b",),
        replicas=(1,),
    )
    output = DpSolver().solve(problem, SolveOptions())
    assert output.claimed_quanta == 40
    assert output.plan is not None
    assert output.plan.order == "1f1b"
    assert output.lower_bound_quanta is not None
    assert output.lower_bound_quanta <= 40
    alone = replace(problem, job=replace(problem.job, schedule="1f1b"))
    formula = DpSolver().solve(alone, SolveOptions())
    assert (formula.status, formula.claimed_quanta) == (Status.OPTIMAL, 30)


def test_any_order_is_bounded_by_the_work_of_blocks() -> None:
    """Two blocks of a layer: 10 until block 2 starts, then 2 · 30."""
    output = DpSolver().solve(
        chain(2, replicas=(1,), pipeline_parallel=(2,)), SolveOptions()
    )
    assert output.claimed_quanta == 70
    assert output.lower_bound_quanta is not None
    assert 60 <= output.lower_bound_quanta <= 70


def test_plans_of_one_chunk_per_block_get_zero_bubble_orders() -> None:
    """Eight stages with room for ten micro-batches; lists take longer."""
    names = "abcdefgh"
    problem = make_problem(
        dict.fromkeys(names, make_cost(10, 18, kept_bytes=1)),
        edges=tuple((x, y, 1) for x, y in itertools.pairwise(names)),
        topology=make_levels((8, 0.0, 1e18)),
        devices=8,
        memory_bytes=10,
        **{"global_batch": 24, "schedule": "any"},
        weight_backward_fraction=1 / 3,
    )
    plan = make_plan(*((name, Strategy()) for name in names))
    sets = closed_sets(problem.graph)
    task = SearchTask(CostModel(problem), sets, Deadline(None))
    search = orders._OrdersSearch(task)
    candidate = search._candidate(plan)
    assert candidate is not None
    search._order(candidate)
    assert candidate.step_quanta == 772
    alone = OrderSearch(candidate.search.scope, candidate.floor)
    alone.run(lambda: False, orders.FIRST_ORDERS)
    assert alone.best is not None
    assert alone.best.end > 772
