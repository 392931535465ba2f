"""Plans timed pass by pass: what is proven of them is true."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from nest.cost.score import score
from nest.errors import UnsupportedProblemError
from nest.ir import read_problem
from nest.search.passes import interleaved_exact
from nest.solvers.base import SolveOptions, Status
from nest.solvers.registry import get_solver
from tests.builders import make_cost, make_levels, make_problem, with_job
from tests.properties.profiles import examples
from tests.strategies import Draw, problems

SCHEDULES = ("zb-h1", "zb-v", "dualpipe-v", "1f1b")

#: Problems with more plans are not enumerated.
MAX_PLANS = "30000"

#: Problems that were wrong with something broken.
STORED = Path(__file__).parents[1] / "data" / "timed"

#: Up to which ``dp`` prices all plans there are: of a part, and of all.
LIMITS = ((interleaved_exact, "FEW"), (interleaved_exact, "MAX_MAGNITUDE"))


@contextmanager
def limits_never_met(*limits: tuple[ModuleType, str]) -> Iterator[None]:
    """Have every problem beyond these limits."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name in limits:
            patch.setattr(module, name, -math.inf)
        yield


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
        recompute=job.recompute if schedule == "1f1b" else recompute or ("none",),
    )
    more = draw(st.sampled_from((1, 1, 2, 3, 8)))
    device = replace(device, memory_bytes=more * device.memory_bytes)
    return replace(problem, job=job, cluster=replace(problem.cluster, device=device))


@st.composite
def alike(draw: Draw, schedule: str):
    """Draw layers alike, one more in front and behind, and little memory."""

    def cost():
        number = st.integers(0, 9)
        return make_cost(
            draw(st.integers(1, 9)),
            draw(st.integers(1, 18)),
            kept_bytes=draw(number),
            weight_bytes=draw(st.integers(0, 2)),
            working_bytes=draw(number),
        )

    names = ["embedding", *(f"l{i}" for i in range(7)), "head"]
    few = draw(st.integers(3, 6))
    names = [
        *names[: draw(st.integers(0, 1))],
        *names[1 : 1 + few],
        *names[8 : 8 + draw(st.integers(0, 1))],
    ]
    devices = draw(st.sampled_from((2, 2, 3)))
    body = cost()
    problem = make_problem(
        {x: body if x.startswith("l") else cost() for x in names},
        edge=draw(st.sampled_from((0, 0, 2))),
        devices=devices,
        topology=make_levels((devices, 1.0, 1e9)),
        global_batch=devices * draw(st.integers(2, 4)),
        replicas=(1,),
        data_parallel=(1,),
        schedule=schedule,
        virtual_stages=(1, 2, 3) if schedule == "1f1b" else (1,),
        memory_bytes=draw(st.integers(20, 250)),
    )
    kinds = [x for x in problem.graph.kinds if not x.name[1:].isdecimal()]
    one = next(x for x in problem.graph.kinds if x.name == "l0")
    layers = tuple(
        replace(x, kind="l0") if x.id.startswith("l") else x
        for x in problem.graph.layers
    )
    graph = replace(problem.graph, kinds=(*kinds, one), layers=layers)
    return replace(problem, graph=graph)


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
@examples(15, full=1000)
def test_dp_proves_no_more_than_enumeration(schedule, data):
    problem = data.draw(timed(schedule))
    check("dp", problem, truth_of(problem))


@pytest.mark.parametrize("schedule", SCHEDULES)
@given(data=st.data())
@examples(15, full=1000)
def test_bounds_alone_are_true(schedule, data):
    """Nothing is enumerated."""
    problem = data.draw(timed(schedule))
    truth = truth_of(problem)
    with limits_never_met(*LIMITS):
        check("dp", problem, truth)


@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize("schedule", SCHEDULES)
@given(data=st.data())
@examples(20, full=1000)
def test_bounds_of_equal_layers_are_true(schedule, few, data):
    """All cases are bounded; with few plans, the rest is enumerated."""
    problem = data.draw(alike(schedule))
    truth = truth_of(problem)
    with limits_never_met(*LIMITS[: 1 if few else 2]):
        output = check("dp", problem, truth)
    if few:
        assert output.status is truth.status


@pytest.mark.parametrize(
    ("name", "limits"),
    [
        # What all chunks have in flight at all moments would not fit.
        ("chunks-in-flight", LIMITS[:1]),
        # A block waits for chunks in front of it, not for those behind.
        ("chunks-that-wait", ()),
    ],
)
def test_stored_problems_are_proven(name, limits):
    problem = read_problem(STORED / f"{name}.json")
    with limits_never_met(*limits):
        output = check("dp", problem, truth_of(problem))
    assert output.status is Status.OPTIMAL


@pytest.mark.parametrize("name", ["cpsat", "milp"])
@pytest.mark.parametrize("few", [True, False])
@given(data=st.data())
@examples(12, full=500)
def test_formulations_enumerate_or_bound(name, few, data):
    schedule = data.draw(st.sampled_from(SCHEDULES))
    problem = data.draw(timed(schedule))
    truth = truth_of(problem)
    with pytest.MonkeyPatch.context() as patch:
        if not few:
            patch.setattr("formulations.timed.MAX_PLANS", 1)
        check(name, problem, truth)


@st.composite
def parted_nowhere(draw: Draw, schedule: str):
    """Draw such problems where some layers are in one chunk."""
    problem = draw(st.one_of(timed(schedule), alike(schedule)))
    kinds = sorted({layer.kind for layer in problem.graph.layers})
    some = st.lists(st.sampled_from(kinds), min_size=1, unique=True)
    one_stage = tuple(draw(some))
    return with_job(problem, one_stage=one_stage)


@pytest.mark.parametrize("bounds", [False, True])
@pytest.mark.parametrize("schedule", SCHEDULES)
@given(data=st.data())
@examples(12, full=1000)
def test_layers_in_one_chunk_are_kept_there(schedule, bounds, data):
    """Enumerated, and with bounds alone."""
    problem = data.draw(parted_nowhere(schedule))
    truth = truth_of(problem)
    with limits_never_met(*LIMITS[: 2 if bounds else 0]):
        check("dp", problem, truth)
    if not bounds:
        check("cpsat", problem, truth)
