"""Refusals, limits and warm starts of brute force and the formulations."""

from __future__ import annotations

import pytest

from formulations.milp.engines import Outcome, Verdict, read_cbc_log
from nest.errors import (
    InvalidOptionError,
    InvalidPlanError,
    SolverError,
    UnsupportedProblemError,
)
from nest.ir import Strategy
from nest.solvers.base import Limit, SolveOptions, Status
from nest.solvers.registry import get_solver
from nest.workloads import builtin
from tests.builders import SINGLE, make_cost, make_plan, make_problem


def pair(**fields):
    """Two layers of 30 ns on two devices, one or two stages."""
    costs = {name: make_cost(10, 20) for name in "ab"}
    return make_problem(
        costs, edges=(("a", "b", 0),), devices=2, replicas=(1,), **fields
    )


def solve(name, problem, **options):
    return get_solver(name)().solve(problem, SolveOptions(**options))


def test_brute_counts_plans_before_it_refuses():
    """Both layers in one stage, or each in its own."""
    assert solve("brute", pair()).extra["num_plans"] == 2
    with pytest.raises(
        UnsupportedProblemError,
        match="brute: expected at most 1 plans, got 2; raise the option "
        "max_plans",
    ):
        solve("brute", pair(), extra={"max_plans": "1"})


def test_brute_says_how_far_it_counted():
    with pytest.raises(
        UnsupportedProblemError,
        match=r"brute: expected at most 200000 plans, got more than \d{7,} ",
    ):
        solve("brute", builtin.load("gpt3-175b-64"))


@pytest.mark.parametrize("name", ["brute", "cpsat", "milp"])
def test_an_unknown_option_is_refused(name):
    with pytest.raises(InvalidOptionError, match=f"{name}.*got 'speed'"):
        solve(name, pair(), extra={"speed": "1"})


def test_an_unknown_engine_is_refused():
    with pytest.raises(
        InvalidOptionError,
        match=r"milp: expected option engine to be one of .*PULP_CBC_CMD.*, "
        "got 'abacus'; choose one or install it",
    ):
        solve("milp", pair(), extra={"engine": "abacus"})


@pytest.mark.parametrize("name", ["dp", "cpsat", "milp"])
def test_time_that_is_up_is_a_result(name):
    output = solve(name, builtin.load("gpt3-175b-256"), time_limit_s=0.05)
    assert output.status is Status.NO_SOLUTION
    assert output.limit is Limit.TIME


@pytest.mark.parametrize("name", ["dp", "cpsat", "milp"])
def test_a_warm_start_survives_the_limit(name):
    """All 98 layers on 64 devices, tp 8, cp 2, fully recomputed."""
    problem = builtin.load("gpt3-175b-256")
    layers = " ".join(str(layer.id) for layer in problem.graph.layers)
    strategy = Strategy(dp=4, tp=8, cp=2, zero=3, recompute="full")
    plan = make_plan((layers, strategy), replicas=4, micro_batch=4)
    output = solve(name, problem, time_limit_s=0.3, warm_start=plan)
    assert output.limit is Limit.TIME
    assert output.status is Status.FEASIBLE
    assert output.claimed_quanta is not None
    bound = output.lower_bound_quanta
    assert bound is None or bound <= output.claimed_quanta


@pytest.mark.parametrize("name", ["brute", "dp", "cpsat", "milp"])
def test_a_warm_start_does_not_change_the_optimum(name):
    """Two stages with receives of 10 ns: 2 * 40 + 3 * 40; one takes 240."""
    plan = make_plan(("a b", SINGLE))
    problem = pair(global_batch=4)
    output = solve(name, problem, warm_start=plan)
    assert output.status is Status.OPTIMAL
    assert output.claimed_quanta == 200


@pytest.mark.parametrize("name", ["brute", "dp", "cpsat", "milp"])
def test_a_warm_start_for_another_problem_is_refused(name):
    with pytest.raises(InvalidPlanError, match="every layer in a stage"):
        solve(name, pair(), warm_start=make_plan(("a", SINGLE)))


@pytest.mark.parametrize(
    ("log", "outcome"),
    [
        (
            "Result - Optimal solution found\n\nObjective value:      12.5\n",
            Outcome(Verdict.OPTIMAL, 12.5, 12.5),
        ),
        (
            "Result - Problem proven infeasible\n",
            Outcome(Verdict.INFEASIBLE),
        ),
        (
            "Result - Stopped on time limit\n\nObjective value:      14\n"
            "Lower bound:                  11.5\n",
            Outcome(Verdict.STOPPED, 14.0, 11.5 - 1e-3),
        ),
    ],
)
def test_cbc_is_judged_by_its_log(log, outcome):
    """The bound of a stopped run is printed with three decimals."""
    assert read_cbc_log(log) == outcome


def test_an_unknown_result_of_cbc_is_loud():
    with pytest.raises(
        SolverError, match="milp: engine CBC: expected a known result"
    ):
        read_cbc_log("Result - Struck by lightning\n")
