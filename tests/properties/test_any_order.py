"""``dp`` where plans order their passes, against all plans in all orders.

Plans are listed by the independent enumerator and scored by its scorer; the
best of all orders of a plan is found by :mod:`tests.orders`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nest.cost.model import CostModel
from nest.cost.schedules import PassTimes
from nest.cost.score import score as product_score
from nest.ir import Problem
from nest.ir.job import Job
from nest.search.passes.order_bounds import order_bound
from nest.search.passes.orders import order_scope
from nest.search.solver import DpSolver
from nest.solvers.base import SolveOptions, SolverOutput, Status
from tests.independent.enumerator import in_turn, optimum, plans
from tests.independent.generate import draw_pair, draw_tiny, with_memory
from tests.independent.rules import allowed_chunks, broken_rules, schedule_names
from tests.independent.scorer import score
from tests.orders import best_of_all, scope_of_plan
from tests.properties.profiles import PROFILE, examples

COUNT = {"quick": 2, "dev": 4, "full": 1000}.get(PROFILE, 20)
PER_TEST = {"quick": 1, "dev": 2}.get(PROFILE, 10)
MOST_PLANS = 80


def solved(problem: Problem) -> SolverOutput:
    return DpSolver().solve(problem, SolveOptions())


def drawn(first: int, wanted: str) -> list[tuple[int, Problem]]:
    """Draw as many problems as a test takes, of ``any`` or of lists."""
    problems = []
    seed = 1000 * first
    while len(problems) < PER_TEST:
        seed += 1
        problem = draw_tiny(
            Random(f"any order {seed}"), "standard", MOST_PLANS, orders=True
        )
        if (problem.job.schedule == "any") == (wanted == "any"):
            problems.append((seed, problem))
    return problems


def step_of(problem: Problem, output: SolverOutput) -> int | None:
    """Return the step time of an answer, scored twice."""
    if output.plan is None:
        assert output.status in (Status.INFEASIBLE, Status.NO_SOLUTION)
        return None
    record = score(problem, output.plan)
    assert record.feasible
    verdict = product_score(problem, output.plan)
    assert record.step == verdict.step_quanta == output.claimed_quanta
    return record.step


def check_bound(output: SolverOutput, best: int | None, said: str) -> None:
    """Check what is proven against a step time that can be had."""
    if best is None:
        return
    assert output.status is not Status.INFEASIBLE, said
    if output.lower_bound_quanta is not None:
        assert output.lower_bound_quanta <= best, said
    if output.status is Status.OPTIMAL:
        assert output.claimed_quanta == output.lower_bound_quanta, said


# Lists of schedules


@pytest.mark.parametrize("first", range(0, COUNT, PER_TEST))
def test_lists_of_schedules_agree_with_an_enumeration(first: int) -> None:
    """Of all plans under each name; a plan is found wherever there is one."""
    seen: Counter[str] = Counter()
    for seed, problem in drawn(first, "lists"):
        best, _ = optimum(problem)
        output = solved(problem)
        step = step_of(problem, output)
        said = f"seed {seed}: {output.status}, {step}, {best}"
        check_bound(output, best, said)
        assert (step is None) == (best is None), said
        if step is not None and best is not None:
            assert step >= best, said
            seen["best"] += step == best
            seen["all"] += 1
    assert seen["best"] >= 0.9 * seen["all"] - 1


# Any order


@examples(30, full=2000)
@given(st.randoms(use_true_random=False))
def test_orders_depend_on_what_scores_say(random: Random) -> None:
    """Of passes, memory and sync; a part of which may hide behind passes."""
    problem, plan = draw_pair(random, "standard", orders=True)
    if not isinstance(plan.order, tuple) or broken_rules(problem, plan):
        return
    expected, sync = scope_of_plan(problem, replace(plan, order=in_turn(problem, plan)))
    scope, least = order_scope(problem, replace(plan, order=None), CostModel(problem))
    assert [*map(times_of, scope.times)] == [*map(times_of, expected.times)]
    assert (scope.kept_bytes, scope.free_bytes) == (
        expected.kept_bytes,
        expected.free_bytes,
    )
    assert (scope.block_of, scope.whole, scope.num_micro_batches) == (
        *(expected.block_of, expected.whole),
        expected.num_micro_batches,
    )
    assert least == sync or ("gradients" in plan.overlap and least < sync)
    step = score(problem, plan).step
    assert order_bound(scope) + least <= step or not score(problem, plan).feasible


def times_of(passes: PassTimes) -> tuple[int, int, int]:
    return passes.forward, passes.backward, passes.weight_backward


@pytest.mark.parametrize("first", range(0, COUNT, PER_TEST))
def test_any_order_is_bounded_and_near_the_best(first: int) -> None:
    seen: Counter[str] = Counter()
    for seed, problem in drawn(first, "any"):
        output = solved(problem)
        step = step_of(problem, output)
        best, known = best_of_all(problem)
        said = f"seed {seed}: {output.status}, {step}, {best}"
        check_bound(output, best, said)
        if known:
            assert (step is None) == (best is None), said
            assert step is None or best is None or step >= best, said
        if step is not None and best is not None:
            seen["near"] += 100 * step <= 101 * best
            seen["all"] += 1
            if problem.job.granularity == "stage":
                seen["proven"] += output.status is Status.OPTIMAL
                seen["listed"] += 1
    assert seen["near"] >= 0.95 * seen["all"] - 1, seen
    assert seen["proven"] >= 0.9 * seen["listed"], seen


# No plan fits


@pytest.mark.parametrize("wanted", ["any", "lists"])
@pytest.mark.parametrize("first", range(0, COUNT, PER_TEST))
def test_that_no_plan_fits_is_proven_of_most(first: int, wanted: str) -> None:
    """With a byte less than the leanest plan holds; with as much it is false."""
    seen: Counter[str] = Counter()
    for seed, problem in drawn(first, wanted):
        roomy = with_memory(problem, 10**15)
        records = (score(roomy, x) for x in plans(roomy, listed=wanted == "any"))
        need_bytes = min(max(b.memory_bytes for b in x.blocks) for x in records)
        output = solved(with_memory(problem, need_bytes))
        assert output.status is not Status.INFEASIBLE, f"seed {seed}"
        less = with_memory(problem, need_bytes - 1)
        if less.cluster.memory_bytes() < need_bytes:
            output = solved(less)
            assert output.plan is None, f"seed {seed}"
            seen["proven"] += output.status is Status.INFEASIBLE
            seen["all"] += 1
    assert seen["proven"] >= 0.6 * seen["all"] - 1, seen


# More choice


def step_under(problem: Problem, name: str, job: Job) -> int | None:
    """Return the best step time under one schedule, as its passes take."""
    plan = solved(replace(problem, job=job)).plan
    if plan is None:
        return None
    record = score(problem, replace(plan, order=name))
    return record.step if record.feasible else None


def jobs_of_one(problem: Problem) -> Iterator[tuple[str, Job]]:
    """Yield a job for each schedule of a problem, and its name."""
    for name in schedule_names(problem):
        assert name is not None
        chunks = allowed_chunks(problem, name)
        recompute = problem.job.recompute
        if name in ("zb-h1", "zb-v"):
            recompute = tuple(x for x in recompute if x not in ("full", "offload"))
        if chunks and recompute:
            yield (
                name,
                replace(
                    problem.job,
                    schedule=name,
                    virtual_stages=chunks if name == "1f1b" else (1,),
                    recompute=recompute,
                ),
            )


def jobs_of_chunks(problem: Problem) -> Iterator[Job]:
    """Yield a job for each number of chunks, of the schedules that have it."""
    job = problem.job
    for virtual in job.virtual_stages:
        schedule = job.schedule
        if isinstance(schedule, tuple):
            schedule = tuple(
                name for name in schedule if virtual in allowed_chunks(problem, name)
            )
        if schedule:
            yield replace(job, schedule=schedule, virtual_stages=(virtual,))


@pytest.mark.parametrize("wanted", ["any", "lists", "chunks"])
@pytest.mark.parametrize("first", range(0, COUNT, PER_TEST))
def test_more_choice_is_never_slower(first: int, wanted: str) -> None:
    """Than one schedule alone, timed pass by pass, or one number of chunks."""
    for seed, problem in drawn(first, "lists" if wanted == "lists" else "any"):
        less = {}
        if wanted == "chunks":
            chunks = tuple(sorted({1, 2, *problem.job.virtual_stages}))
            job = replace(problem.job, schedule="1f1b", virtual_stages=chunks)
            problem = replace(problem, job=job)
        else:
            for name, job in jobs_of_one(problem):
                less[name] = step_under(problem, name, job)
        step = step_of(problem, solved(problem))
        for job in jobs_of_chunks(problem):
            pinned = solved(replace(problem, job=job)).claimed_quanta
            less[f"v={job.virtual_stages[0]}"] = pinned
        said = f"seed {seed}: {step}, {less}"
        known = [x for x in less.values() if x is not None]
        assert not known or (step is not None and step <= min(known)), said
