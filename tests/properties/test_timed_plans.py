"""Plans timed pass by pass: what is proven of them is true."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from nest.cost.score import score
from nest.errors import UnsupportedProblemError
from nest.search import interleaved, interleaved_exact
from nest.solvers.base import SolveOptions, Status
from nest.solvers.registry import get_solver
from tests.properties.profiles import examples
from tests.strategies import Draw, problems

SCHEDULES = ("zb-h1", "zb-v", "dualpipe-v", "1f1b")

#: Problems with more plans are not enumerated.
MAX_PLANS = "30000"


@st.composite
def timed(draw: Draw, schedule: str):
    """Draw a problem whose plans are timed pass by pass, most of them."""
    problem = draw(
        st.one_of(
            problems(preset="standard"),
            problems(preset="standard", restricted=True),
            problems(overlapping=True),
            problems(granularity="layer"),
            problems(graphs=True),
        )
    )
    job, device = problem.job, problem.cluster.device
    batch = max(job.micro_batches) * draw(st.sampled_from((2, 4, 6, 8)))
    if draw(st.booleans()):
        job = replace(job, replicas=(1,), pipeline_parallel=None)
    recompute = tuple(x for x in job.recompute if x != "full")
    job = replace(
        job,
        schedule=schedule,
        global_batch=batch,
        virtual_stages=(1, 2) if schedule == "1f1b" else (1,),
        recompute=job.recompute
        if schedule == "1f1b"
        else recompute or ("none",),
    )
    more = draw(st.sampled_from((1, 1, 2, 3, 8)))
    device = replace(device, memory_bytes=more * device.memory_bytes)
    cluster = replace(problem.cluster, device=device)
    return replace(problem, job=job, cluster=cluster)


def truth_of(problem):
    options = SolveOptions(extra={"max_plans": MAX_PLANS})
    try:
        return get_solver("brute")().solve(problem, options)
    except UnsupportedProblemError:
        assume(False)


def check(name, problem, truth):
    """The optimum, or a bound below it and a plan no better."""
    output = get_solver(name)().solve(problem, SolveOptions())
    optimum = truth.claimed_quanta
    if optimum is None:
        assert output.plan is None
        assert output.status in (Status.INFEASIBLE, Status.NO_SOLUTION)
        return output
    assert output.status is not Status.INFEASIBLE
    assert output.lower_bound_quanta is not None
    assert output.lower_bound_quanta <= optimum
    if output.plan is not None:
        verdict = score(problem, output.plan)
        assert verdict.feasible
        assert verdict.step_quanta == output.claimed_quanta
        slack = math.floor(optimum * get_solver(name).capabilities.precision)
        assert output.claimed_quanta >= optimum
        if output.status is Status.OPTIMAL:
            assert output.claimed_quanta <= optimum + slack
    return output


@pytest.mark.parametrize("schedule", SCHEDULES)
@given(data=st.data())
@examples(40, full=1000)
def test_dp_proves_no_more_than_enumeration(schedule, data):
    problem = data.draw(timed(schedule))
    check("dp", problem, truth_of(problem))


@pytest.mark.parametrize("schedule", SCHEDULES)
@given(data=st.data())
@examples(40, full=1000)
def test_bounds_alone_are_true(schedule, data):
    """Nothing is enumerated."""
    problem = data.draw(timed(schedule))
    truth = truth_of(problem)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interleaved_exact, "MAX_MAGNITUDE", -math.inf)
        patch.setattr(interleaved, "FEW", -math.inf)
        check("dp", problem, truth)


@pytest.mark.parametrize("name", ["cpsat", "milp"])
@pytest.mark.parametrize("few", [True, False])
@given(data=st.data())
@examples(20, full=500)
def test_formulations_enumerate_or_bound(name, few, data):
    schedule = data.draw(st.sampled_from(SCHEDULES))
    problem = data.draw(timed(schedule))
    truth = truth_of(problem)
    with pytest.MonkeyPatch.context() as patch:
        if not few:
            patch.setattr("formulations.timed.MAX_PLANS", 1)
        check(name, problem, truth)
