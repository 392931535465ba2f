"""Orders of passes that plans have of their own, worked out by hand.

Layers ``a`` and ``b`` take 10 ns forward and 20 ns backward, half of it for
gradients of weights; messages take no time unless a test says otherwise.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from nest.cost.score import score
from nest.ir import Plan, Problem, Strategy
from nest.solvers.registry import get_solver, solver_names
from nest.solvers.result import Outcome
from nest.solvers.run import run_solver
from tests.builders import (
    SINGLE,
    kept_or_full,
    make_cost,
    make_levels,
    make_plan,
    make_problem,
)

FREE = make_levels((4, 0.0, 1e18))
FULL = Strategy(recompute="full")


def chain(num_layers: int = 2, **job: Any) -> Problem:
    """Build a chain of equal layers of one byte per micro-batch."""
    cost = make_cost(10, 20, kept_bytes=1)
    names = "abcdefgh"[:num_layers]
    return make_problem(
        dict.fromkeys(names, cost),
        edge=1,
        topology=FREE,
        **{"global_batch": 2, "schedule": "any", **job},
    )


def ordered(*lists: str, **fields: Any) -> Plan:
    """Return a plan of a layer per chunk that lists its passes."""
    virtual = fields.get("virtual_stages", 1)
    names = "abcdefgh"[: len(lists) * virtual]
    plan = make_plan(*((x, SINGLE) for x in names))
    order = tuple(tuple(texts.split()) for texts in lists)
    return replace(plan, order=order, **fields)


@pytest.mark.parametrize(
    ("lists", "step", "in_flight"),
    [
        # Block 2: F 10-20 and I 20-30, then F, I and at last both W.
        # Block 1: its first I at 30, its second when block 2 ends its second
        # I, at 50; W, W behind: 60 + 20.
        (("0F0 0F1 0I0 0I1 0W0 0W1", "1F0 1I0 1F1 1I1 1W0 1W1"), 80, (2, 2)),
        # Whole backward passes: block 2 runs 10-20-40, 40-50-70. Block 1
        # goes back at 40 and at 70, 20 each.
        (("0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"), 90, (2, 1)),
        # One micro-batch at a time: 60 each.
        (("0F0 0B0 0F1 0B1", "1F0 1B0 1F1 1B1"), 120, (1, 1)),
        # The second micro-batch overtakes the first: as the second case.
        (("0F1 0F0 0B1 0B0", "1F1 1B1 1F0 1B0"), 90, (2, 1)),
        # Kinds may differ by block. Block 2 gives at 30 and 70; block 1 ends
        # its first I at 40 and W at 50, and its last B at 90.
        (("0F0 0F1 0I0 0W0 0B1", "1F0 1I0 1W0 1F1 1B1"), 90, (2, 1)),
    ],
)
def test_steps_of_lists(
    lists: tuple[str, ...], step: int, in_flight: tuple[int, ...]
) -> None:
    """A micro-batch is in flight until its gradients of weights are there."""
    verdict = score(chain(), ordered(*lists))
    assert verdict.step_quanta == step
    assert tuple(x.inflight for x in verdict.blocks) == in_flight
    assert tuple(x.kept_bytes for x in verdict.blocks) == in_flight


def test_chunks_of_a_list_sit_in_a_loop_or_a_v() -> None:
    """One micro-batch, four chunks: F 10 each, I 10 each.

    Down and up: 40 + 40, and a W of the first chunk; the other W fit in what is idle.
    In a V block 2 has both chunks in the middle: a W between their I takes 10 more.
    """
    problem = chain(4, global_batch=1, virtual_stages=(2,))
    loop = ordered(
        *("0F0 2F0 2I0 2W0 0I0 0W0", "1F0 3F0 3I0 3W0 1I0 1W0"), virtual_stages=2
    )
    between, behind = (
        ordered("0F0 3F0 3I0 3W0 0I0 0W0", second, virtual_stages=2, placement="v")
        for second in ("1F0 2F0 2I0 2W0 1I0 1W0", "1F0 2F0 2I0 1I0 2W0 1W0")
    )
    steps = [score(problem, x).step_quanta for x in (loop, behind, between)]
    assert steps == [90, 90, 100]
    assert [x.kept_bytes for x in score(problem, loop).blocks] == [2, 2]


@pytest.mark.parametrize("schedule", ["any", ("1f1b", "gpipe", "zb-h1")])
def test_named_orders_are_timed_pass_by_pass(schedule: Any) -> None:
    """Of stages of 10 + 0, 0 + 10 and 0 + 0, under 1F1B.

    Its formula says 10 + 10 + 10; its passes take 40
    (tests/independent/test_simulator.py). Under GPipe the second stage goes
    back at 20: 20 + 20, as its formula says.
    """
    costs = {"a": make_cost(10, 0), "b": make_cost(0, 10), "c": make_cost(0, 0)}
    edges = (("a", "b", 1), ("b", "c", 1))
    problem = make_problem(
        costs, edges=edges, topology=FREE, global_batch=2, schedule=schedule
    )
    plan = make_plan(("a", SINGLE), ("b", SINGLE), ("c", SINGLE))
    one = replace(problem, job=replace(problem.job, schedule="1f1b"))
    assert score(one, plan).step_quanta == 30
    for name in ("1f1b", "gpipe"):
        assert score(problem, replace(plan, order=name)).step_quanta == 40


def test_memory_is_that_of_the_list() -> None:
    """Two micro-batches of a byte fit; the step does not change that."""
    problem = chain(1, memory_bytes=1)
    ahead = ordered("0F0 0F1 0B0 0B1")
    late = ordered("0F0 0I0 0F1 0W0 0I1 0W1")
    in_turn = ordered("0F0 0I0 0W0 0F1 0B1")
    assert not score(problem, ahead).feasible
    assert not score(problem, late).feasible
    assert score(problem, in_turn).feasible
    assert score(problem, in_turn).step_quanta == 60


@pytest.mark.parametrize("name", sorted({*solver_names()} - {"zb"}))
@pytest.mark.parametrize(
    ("schedule", "order"), [("any", "1f1b"), (("zb-h1", "gpipe"), "gpipe")]
)
def test_planners_that_order_no_passes_plan_one_schedule(
    name: str, schedule: Any, order: str
) -> None:
    """Their plans name it, and are scored in the problem that was asked.

    Exact solvers have no proof for other orders, so they are refused.
    """
    problem = chain(schedule=schedule, devices=2)
    capabilities = get_solver(name).capabilities
    result = run_solver(problem, name)
    if name == "dp" or not capabilities.exact:
        assert result.outcome is Outcome.SOLVED
        assert result.plan is not None
        assert result.score == score(problem, result.plan)
        if name != "dp":
            assert result.plan.order == order
            assert result.lower_bound_quanta is None
        return
    shown = "any" if schedule == "any" else ",".join(schedule)
    assert result.outcome is Outcome.SKIPPED
    assert result.detail == (
        f"$.job.schedule: expected one schedule, as this solver does not "
        f"order passes, got {shown!r}; use solver dp"
    )


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        ({"schedule": ("zb-h1", "zb-v")}, "expected one schedule, as"),
        ({"virtual_stages": (2,)}, "expected 1 among the allowed values"),
    ],
)
def test_planners_need_a_schedule_that_they_know(
    job: dict[str, Any], reason: str
) -> None:
    result = run_solver(chain(**job), "alpa")
    assert result.outcome is Outcome.SKIPPED
    assert reason in result.detail


def test_chunks_that_recompute_all_run_whole_backward_passes() -> None:
    """10 forward again: 10 + 30 alone; elsewhere backward passes may split."""
    cost = make_cost(10, 20, activations=kept_or_full(1, 1))
    problem = make_problem(
        {"a": cost, "b": cost},
        edge=1,
        topology=FREE,
        schedule="any",
        recompute=("none", "full"),
    )
    plan = make_plan(("a", FULL), ("b", SINGLE))
    for order in ("1f1b", "gpipe"):
        # 10 + 10 + 20 + 30
        assert score(problem, replace(plan, order=order)).step_quanta == 70
    lists = (("0F0", "0B0"), ("1F0", "1I0", "1W0"))
    # The other stage goes back 10 earlier.
    assert score(problem, replace(plan, order=lists)).step_quanta == 60


def test_schedules_whose_chunks_are_not_allowed_are_left_out() -> None:
    """``any`` allows two chunks alone, so no plan is under GPipe or ZB-H1.

    One micro-batch, a layer per chunk: 40 + 40, and a W of the first chunk.
    """
    problem = chain(4, global_batch=1, virtual_stages=(2,), replicas=(1,))
    problem = replace(problem, job=replace(problem.job, pipeline_parallel=(2,)))
    result = run_solver(problem, "dp")
    assert result.plan is not None
    assert result.plan.virtual_stages == 2
    assert result.step_quanta == 90
