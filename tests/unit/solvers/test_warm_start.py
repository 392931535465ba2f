"""Every exact solver refuses the same warm starts, in the same words."""

from __future__ import annotations

import pytest

from nest.errors import InvalidPlanError
from nest.ir import Plan, Stage, Strategy
from nest.solvers.base import SolveOptions, Status
from nest.solvers.registry import get_solver
from tests.builders import SINGLE, make_cost, make_plan, make_problem

solvers = pytest.mark.parametrize("name", ["brute", "dp", "cpsat", "milp"])


def pair(**fields):
    """Two layers of 30 ns and 10 kept bytes, on a pair of devices."""
    costs = tuple(make_cost(10, 20, samples=b, kept_bytes=10) for b in (1, 2))
    return make_problem(
        {"a": costs, "b": costs},
        edges=(("a", "b", 2),),
        devices=2,
        replicas=(1,),
        micro_batches=(2,),
        global_batch=8,
        **fields,
    )


def solve(name, problem, plan):
    return get_solver(name)().solve(problem, SolveOptions(warm_start=plan))


@solvers
def test_it_does_not_change_the_optimum(name):
    """M = 4. Two stages with receives of 10 + 4 ns: 2 * 44 + 3 * 44 = 220.

    One stage takes 4 * 60 = 240, also on both devices (dp = 2).
    """
    start = make_plan(("a b", Strategy(dp=2)), micro_batch=2)
    output = solve(name, pair(), start)
    assert output.status is Status.OPTIMAL
    assert output.claimed_quanta == 220


@solvers
def test_layers_must_be_those_of_the_problem(name):
    start = make_plan(("a", SINGLE), micro_batch=2)
    with pytest.raises(InvalidPlanError, match="every layer in a stage"):
        solve(name, pair(), start)


@solvers
def test_it_must_fit_memory(name):
    start = make_plan(("a b", SINGLE), micro_batch=2)
    with pytest.raises(
        InvalidPlanError,
        match=r"stage 1: expected at most 19 bytes per device .*, got 20 .*; "
        r"start from a plan that fits",
    ):
        solve(name, pair(memory_bytes=19), start)


@solvers
def test_it_must_be_in_the_space_that_is_searched(name):
    stage = Stage(
        layers=("a", "b"),
        devices=2,
        strategies=(Strategy(dp=2), Strategy(dp=2, zero=1)),
    )
    start = Plan(replicas=1, micro_batch=2, stages=(stage,))
    with pytest.raises(
        InvalidPlanError,
        match="stage 1: expected one strategy for all layers of a stage to "
        "start from, got 2; give every stage one strategy",
    ):
        solve(name, pair(zero=(0, 1)), start)
