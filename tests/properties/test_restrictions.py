"""Restricted jobs: exact solvers agree, and restrictions only cost time."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nest.cost.space import batch_splits, max_stages, strategies
from nest.ir import Problem
from nest.solvers.base import Status
from tests.builders import with_job
from tests.properties import test_piper
from tests.properties.profiles import examples
from tests.properties.test_solvers_agree import check, solve
from tests.strategies import Draw, problems

#: Fields of the job and what of a strategy they restrict.
FIELDS = {
    "data_parallel": "dp",
    "tensor_parallel": "tp",
    "context_parallel": "cp",
    "expert_parallel": "ep",
    "zero": "zero",
    "recompute": "recompute",
}


def some(draw: Draw, values: list[Any]) -> tuple[Any, ...]:
    return tuple(sorted(draw(st.sets(st.sampled_from(values), min_size=1, max_size=3))))


def draw_stages(draw: Draw, problem: Problem) -> Problem:
    """Allow some numbers of stages, more of them often than one can have."""
    most = max((max_stages(problem, case) for case in batch_splits(problem)), default=1)
    counts = some(draw, list(range(1, most + 2)))
    if draw(st.booleans()):
        # all but a few
        counts = tuple(c for c in range(1, most + 2) if c not in counts)
    counts = counts or (most,)
    return with_job(problem, pipeline_parallel=counts)


@st.composite
def restricted(draw: Draw, **kind: Any) -> tuple[Problem, Problem]:
    """Draw a problem and the same with a job that allows less."""
    problem = draw(problems(**kind))
    narrow = problem
    if draw(st.integers(0, 4)):
        narrow = draw_stages(draw, narrow)
    found = [
        strategy
        for size in problem.job.micro_batches
        for strategy in strategies(problem, size)
    ]
    limits = {}
    for field, name in FIELDS.items():
        values = sorted({getattr(strategy, name) for strategy in found})
        if values and not draw(st.integers(0, 3)):
            limits[field] = some(draw, values)
    return problem, with_job(narrow, **limits)


@examples(400, full=3000)
@given(restricted())
def test_restricted_problems_are_solved_exactly(pair):
    """Equal to the quantum to enumeration, infeasibility included."""
    problem, narrow = pair
    check(("dp",), narrow)
    loose, tight = solve("dp", problem), solve("dp", narrow)
    if tight.status is Status.OPTIMAL:
        assert loose.claimed_quanta is not None
        assert tight.claimed_quanta is not None
        assert loose.claimed_quanta <= tight.claimed_quanta


@examples(80, full=500)
@given(restricted())
def test_cpsat_agrees_on_restricted_problems(pair):
    check(("cpsat",), pair[1])


@examples(100, full=1000)
@given(restricted(preset="nest-artifact"))
def test_the_uniform_program_keeps_restrictions(pair):
    check(("dp",), pair[1])


@examples(100, full=1000)
@given(restricted(granularity="layer"))
def test_layers_keep_restrictions(pair):
    check(("dp",), pair[1])


@st.composite
def restricted_turns(draw: Draw) -> Problem:
    return draw_stages(draw, draw(test_piper.problems()))


@examples(200, full=1000)
@given(restricted_turns())
def test_the_program_of_turns_keeps_restrictions(problem):
    check(("dp",), problem)


@st.composite
def interleaved(draw: Draw) -> Problem:
    problem = draw(problems(preset="standard"))
    return draw_stages(draw, with_job(problem, schedule="1f1b", virtual_stages=(1, 2)))


@examples(60, full=500)
@given(interleaved())
def test_interleaved_plans_keep_the_number_of_blocks(problem):
    """Enumeration and dp list legal plans only, which score then prices."""
    truth, found = solve("brute", problem), solve("dp", problem)
    if found.plan is not None:
        assert found.plan.num_blocks in (problem.job.pipeline_parallel or ())
        assert truth.claimed_quanta is not None
        assert found.claimed_quanta is not None
        assert truth.claimed_quanta <= found.claimed_quanta
