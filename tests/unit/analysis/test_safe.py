"""The recommended plan of a model leaves a margin of memory."""

from __future__ import annotations

import dataclasses
import math

import pytest
from msgspec.structs import replace

from nest.analysis.safe import FREE_SHARE, options_for, solve_safely
from nest.ir import Activations, Problem, problem_hash
from nest.solvers.base import Limit, SolveOptions, Status
from nest.solvers.result import SolveResult
from nest.solvers.run import run_solver
from nest.uncertainty.headroom import DEFAULT_HEADROOM, chance_text, with_headroom
from nest.uncertainty.intervals import stored_deviations
from tests.builders import SINGLE, make_cost, make_plan, make_problem

#: Keeping all takes 1000 bytes and 30 ns; computing again 500 and 40 ns.
KEPT = make_cost(
    10,
    20,
    activations=(
        Activations(kept_bytes=1000),
        Activations(recompute="full", kept_bytes=500),
    ),
)


def on(memory_bytes: int) -> tuple[Problem, Problem]:
    """Return a problem with the default headroom, and without."""
    free = make_problem(
        {"a": KEPT},
        devices=1,
        memory_bytes=memory_bytes,
        sequence_length=1,
        recompute=("none", "full"),
    )
    return with_headroom(free, DEFAULT_HEADROOM), free


class Searches:
    """Solves problems, and notes how long each may take."""

    def __init__(self) -> None:
        self.limits_s: list[float | None] = []

    def __call__(self, problem: Problem, limit_s: float | None) -> SolveResult:
        self.limits_s.append(limit_s)
        return run_solver(problem, "dp", SolveOptions(time_limit_s=limit_s))


def test_the_fastest_plan_is_safe() -> None:
    """One search is enough, and its plan is one of the safe problem."""
    problem, free = on(1100)
    search = Searches()
    found = solve_safely(problem, free, search)
    assert search.limits_s == [None]
    assert found.has_margin
    assert found.faster is None
    assert found.answer.status is Status.OPTIMAL
    assert found.answer.step_time_ns == 30
    assert found.answer.problem_hash == problem_hash(problem)
    assert found.answer.score is not None
    assert found.answer.score.memory_left_bytes == 1100 - 45 - 1000


def test_the_fastest_plan_may_not_fit() -> None:
    """It needs 1000 of 1010 bytes."""
    problem, free = on(1010)
    search = Searches()
    found = solve_safely(problem, free, search, 60.0)
    first, second = search.limits_s
    assert first == FREE_SHARE * 60
    assert second is not None
    assert 45 < second < 60
    assert found.has_margin
    assert found.answer.step_time_ns == 40
    assert found.faster is not None
    chance = stored_deviations().memory_of("").probability_below(math.log(1.01))
    document = found.faster.to_json()
    assert document.pop("plan")["stages"][0]["strategy"]["recompute"] == "none"
    assert document == {
        "step_time_ns": 30,
        "fraction": 0.25,
        "fit_probability": pytest.approx(chance, abs=1e-4),
        "proven": True,
    }
    assert str(found.faster) == (
        f"25.0 % faster, fits {chance_text(chance)}: --headroom 0"
    )


def test_no_plan_leaves_the_margin() -> None:
    """The best plan is shown then, and what it is."""
    problem, free = on(510)
    found = solve_safely(problem, free, Searches())
    assert not found.has_margin
    assert found.answer.step_time_ns == 40
    assert found.faster is None


def test_no_plan_at_all() -> None:
    problem, free = on(490)
    search = Searches()
    found = solve_safely(problem, free, search)
    assert len(search.limits_s) == 1
    assert not found.has_margin
    assert found.answer.status is Status.INFEASIBLE


def test_an_unproven_plan_is_better_than_none() -> None:
    """The first search ended early with a safe plan; the second had none."""
    problem, free = on(1100)
    first = stopped(Searches()(free, None))

    def search(which: Problem, _limit_s: float | None) -> SolveResult:
        if which is free:
            return first
        return dataclasses.replace(
            first, status=Status.NO_SOLUTION, plan=None, score=None
        )

    found = solve_safely(problem, free, search)
    assert found.has_margin
    assert found.answer.step_time_ns == 30


def test_a_safe_plan_of_an_unfinished_search_may_not_be_the_best() -> None:
    """The second search proves what is."""
    problem, free = on(1100)
    search = Searches()
    slow = stopped(run_solver(free, "dp", SolveOptions()))

    def both(which: Problem, limit_s: float | None) -> SolveResult:
        return slow if which is free else search(which, limit_s)

    found = solve_safely(problem, free, both)
    assert found.answer.status is Status.OPTIMAL


def stopped(result: SolveResult) -> SolveResult:
    """Return an answer as one at the time limit."""
    return dataclasses.replace(
        result, status=Status.FEASIBLE, limit=Limit.TIME, lower_bound_quanta=1
    )


def test_a_start_that_needs_the_margin_is_none() -> None:
    problem, free = on(1010)
    plan = replace(make_plan(("a", SINGLE)), problem_hash=problem_hash(free))
    options = SolveOptions(warm_start=plan)
    assert options_for(free, options, 1.0).warm_start is not None
    assert options_for(problem, options, 1.0).warm_start is None
