"""Questions are answered as enumeration of all plans answers them."""

from __future__ import annotations

from unittest import mock

from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from formulations.brute import PlanSpace
from nest.analysis.explain import relaxations
from nest.analysis.fit import (
    StepTimeLimit,
    fewest_devices,
    most_memory_bytes,
    smallest_memory,
    with_devices,
    with_memory,
)
from nest.analysis.neighbors import neighbors
from nest.cost.breakdown import breakdown
from nest.cost.model import CostModel
from nest.cost.score import score
from nest.ir import Plan, Problem
from nest.search.frontier.least import covers, least_memory
from nest.solvers.base import Deadline, SolveOptions, Status
from nest.solvers.registry import get_solver
from tests.inside import run_inside
from tests.properties import test_piper
from tests.properties.profiles import examples
from tests.properties.test_solvers_agree import solve
from tests.strategies import PLENTY, Draw, problems, problems_with_plans, random_plan


def draw_target(draw: Draw, times: list[int]) -> int:
    """Draw a target: a time that some plan takes, or close to it."""
    times = sorted(set(times)) or [100]
    return max(0, draw(st.sampled_from(times)) + draw(st.integers(-1, 1)))


# The least memory


@examples(60, full=2000)
@given(
    st.one_of(problems(), problems(graphs=True), problems(overlapping=True)).filter(
        covers
    )
)
def test_the_least_memory_has_a_plan_and_a_byte_less_has_none(problem):
    unlimited = with_memory(problem, most_memory_bytes(problem))
    found = least_memory(unlimited, Deadline(None))
    if found.impossible:
        assert found.plan is None
        assert solve("brute", unlimited).status is Status.INFEASIBLE
        return
    assert found.plan is not None
    assert found.memory_bytes is not None
    assert found.refuted_bytes == found.memory_bytes - 1
    assert score(with_memory(problem, found.memory_bytes), found.plan).feasible
    if found.refuted_bytes > problem.cluster.reserve_bytes():
        less = with_memory(problem, found.refuted_bytes)
        assert solve("brute", less).status is Status.INFEASIBLE


# dp up to a target


@st.composite
def targets(draw: Draw) -> tuple[Problem, int]:
    problem = draw(
        st.one_of(problems(), problems(granularity="layer"), test_piper.problems())
    )
    best = solve("brute", problem).claimed_quanta
    known = 1000 if best is None else best
    return problem, max(0, known + draw(st.integers(-2, 5)))


@examples(200, full=2000)
@given(targets())
def test_dp_finds_a_plan_within_a_target_or_refutes_it(pair):
    problem, target = pair
    best = solve("brute", problem).claimed_quanta
    options = SolveOptions(extra={"at_most_quanta": str(target)})
    output = get_solver("dp")().solve(problem, options)
    if best is not None and best <= target:
        assert output.plan is not None
        verdict = score(problem, output.plan)
        assert verdict.feasible
        assert verdict.step_quanta == output.claimed_quanta
        assert verdict.step_quanta <= target
    else:
        assert output.status is Status.NO_SOLUTION
        assert output.plan is None
        assert output.lower_bound_quanta == target + 1


# Fits


@st.composite
def device_questions(draw: Draw) -> tuple[Problem, list[int | None], int]:
    """Draw a problem, its optimum by device count, and a target."""
    problem = draw(problems())
    counts = range(1, problem.cluster.num_devices + 1)
    times = [
        solve("brute", with_devices(problem, count)).claimed_quanta for count in counts
    ]
    target = draw_target(draw, [time for time in times if time is not None])
    return problem, times, target


@examples(60, full=600)
@given(device_questions())
def test_the_fewest_devices_are_those_of_enumeration(question):
    problem, times, target = question
    counts = list(range(1, len(times) + 1))
    with mock.patch("nest.analysis.fit.run_solver", run_inside):
        fit = fewest_devices(problem, StepTimeLimit(target, ""), counts)
    keeping = [
        count
        for count, time in zip(counts, times, strict=True)
        if time is not None and time <= target
    ]
    known = [time for time in times if time is not None]
    assert fit.proven
    if keeping:
        assert fit.best is not None
        assert fit.best.num_devices == keeping[0]
        assert fit.best.result.step_quanta == times[keeping[0] - 1]
        return
    assert fit.best is None
    if known:
        assert fit.fastest is not None
        assert fit.fastest.result.step_quanta == min(known)
    else:
        assert fit.fastest is None


@st.composite
def memory_questions(draw: Draw) -> tuple[Problem, list[tuple[int, int]], int]:
    """Draw a problem, (time, memory) of all its plans, and a target."""
    problem = draw(problems())
    unlimited = with_memory(problem, most_memory_bytes(problem))
    model = CostModel(unlimited)
    points = []
    for plan in PlanSpace(unlimited, model, Deadline(None)).plans():
        verdict = score(unlimited, plan, model)
        assert verdict.feasible
        memory = max(block.memory_bytes for block in verdict.blocks)
        points.append((verdict.step_quanta, memory))
    return problem, points, draw_target(draw, [time for time, _ in points])


@examples(50, full=500)
@given(memory_questions())
def test_the_smallest_memory_is_that_of_enumeration(question):
    """To the byte; every plan fits what is called unlimited."""
    problem, points, target = question
    with mock.patch("nest.analysis.fit.run_solver", run_inside):
        fit = smallest_memory(problem, StepTimeLimit(target, ""))
    assert fit.proven
    keeping = [memory for time, memory in points if time <= target]
    if keeping:
        assert fit.best is not None
        assert fit.best.memory_bytes == min(keeping)
    else:
        assert fit.best is None


# Explanations


def check_terms(problem: Problem, plan: Plan) -> None:
    found = score(problem, plan)
    terms = breakdown(problem, plan, found)
    assert sum(terms.step.values()) == found.step_quanta
    assert min(terms.step.values()) >= 0
    for block, parts in zip(found.blocks, terms.blocks, strict=True):
        assert sum(parts.values()) == block.load
        assert min(parts.values()) >= 0


@examples(200, full=2000)
@given(problems_with_plans())
def test_terms_add_up_to_the_step_time(pair):
    problem, plan = pair
    assume(plan is not None)
    check_terms(problem, plan)


@examples(100, full=1000)
@given(st.data())
def test_terms_add_up_with_layers_and_with_turns(data):
    if data.draw(st.booleans()):
        problem = data.draw(problems(granularity="layer"))
        plan = random_plan(data.draw, problem)
    else:
        problem = data.draw(test_piper.problems())
        plan = solve("dp", problem).plan
    assume(plan is not None)
    check_terms(problem, plan)


@examples(100, full=1000)
@given(problems_with_plans())
def test_neighbours_are_what_score_says(pair):
    """And none is faster than the proven optimum."""
    problem, plan = pair
    assume(plan is not None)
    best = solve("dp", problem).claimed_quanta
    found = neighbors(problem, plan)
    assert len({near.name for near in found}) == len(found)
    for near in found:
        if near.plan is None:
            assert near.verdict == "illegal"
            assert near.reason
            continue
        assert near.plan.stages != plan.stages or (
            (near.plan.replicas, near.plan.micro_batch)
            != (plan.replicas, plan.micro_batch)
        )
        verdict = score(problem, near.plan)
        assert verdict == near.score
        assert verdict.feasible == (near.verdict == "fits")
        if verdict.feasible:
            assert best is not None
            assert verdict.step_quanta >= best


@examples(80, full=800)
@given(st.one_of(problems(), test_piper.problems()))
def test_relaxed_problems_are_no_slower(problem):
    """With one constraint less every plan stays one and takes no longer."""
    best = solve("dp", problem)
    assume(best.claimed_quanta is not None)
    for item in relaxations(problem):
        if item.num_steps > 1:
            continue
        relaxed = solve("dp", item.problem)
        assert relaxed.claimed_quanta is not None
        assert relaxed.claimed_quanta <= best.claimed_quanta
        assert best.plan is not None
        verdict = score(item.problem, best.plan)
        assert verdict.feasible
        assert verdict.step_quanta <= best.claimed_quanta


@examples(30, full=300)
@given(problems(preset="standard"))
def test_terms_of_interleaved_plans_add_up(problem):
    job = replace(problem.job, schedule="1f1b", virtual_stages=(2,))
    problem = with_memory(replace(problem, job=job), PLENTY)
    space = PlanSpace(problem, CostModel(problem), Deadline(None))
    for plan, _ in zip(space.plans(), range(20), strict=False):
        assert plan.virtual_stages == 2
        check_terms(problem, plan)
