"""Frontiers equal those of plain enumeration, point for point."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nest.analysis.pareto import frontier as pareto_frontier
from nest.analysis.pareto import with_devices
from nest.ir import Problem
from tests.builders import with_job
from tests.clock import Ticking
from tests.frontiers import SETTINGS, check_limited, enumerated, pairs, search, searched
from tests.properties.profiles import examples
from tests.properties.test_piper import problems as turns_problems
from tests.strategies import Draw, count_plans, problems, with_long_frontier

#: Of what is enumerated in chunks too, which makes many more.
MOST_PLANS = 150


@st.composite
def long_frontiers(draw: Draw) -> Problem:
    """Draw a problem whose frontier has many points.

    Memory is mostly plenty, the pipelines are long and short, and half of
    the jobs restrict the number of stages and the degrees.
    """
    restricted = draw(st.booleans())
    problem = draw(problems(preset="standard", restricted=restricted, magnified=False))
    return with_long_frontier(draw, problem)


@pytest.mark.parametrize("setting", SETTINGS)
@given(problem=long_frontiers())
@examples(20, full=600)
def test_stage_frontier_is_that_of_all_plans(setting: str, problem: Problem) -> None:
    assert searched(problem, setting) == enumerated(problem)


@given(problem=long_frontiers())
@examples(20)
def test_two_processes_find_that_of_all_plans(problem: Problem) -> None:
    assert searched(problem, "labels-alone", workers=2) == enumerated(problem)


@given(problem=problems(granularity="layer"))
@examples(15, full=400)
def test_layer_frontier_is_that_of_all_plans(problem: Problem) -> None:
    assert searched(problem) == enumerated(problem)


@given(problem=problems(graphs=True))
@examples(15, full=400)
def test_frontier_on_graphs(problem: Problem) -> None:
    assert searched(problem) == enumerated(problem)


@pytest.mark.parametrize("setting", SETTINGS)
@given(problem=problems(overlapping=True))
@examples(15, full=300)
def test_frontier_with_overlap_and_the_distributed_optimizer(
    setting: str, problem: Problem
) -> None:
    """Of the plans of every runtime together."""
    assert searched(problem, setting) == enumerated(problem)


@given(problem=problems(overlapping=True, granularity="layer"))
@examples(15, full=300)
def test_layer_frontier_with_overlap(problem: Problem) -> None:
    assert searched(problem) == enumerated(problem)


@st.composite
def in_chunks(draw: Draw) -> Problem:
    """Draw a problem that allows interleaved plans, perhaps no others."""
    problem = draw(problems(overlapping=True, restricted=draw(st.booleans())))
    problem = with_job(
        problem,
        schedule="1f1b",
        overlap=dict(list(problem.job.overlap.items())[:1]),
        virtual_stages=draw(st.sampled_from(((1, 2), (2,), (1, 2, 3)))),
        micro_batches=problem.job.micro_batches[:1],
    )
    assume(count_plans(problem) <= MOST_PLANS)
    return problem


@given(problem=in_chunks())
@examples(25, full=300)
def test_frontier_with_interleaved_plans(problem: Problem) -> None:
    """Proven where they are few; else the rest is in gaps, as bounds say."""
    points, gaps = search(problem)
    truth = enumerated(problem)
    if not gaps:
        assert pairs(points) == truth
    check_limited(points, gaps, truth)


@given(problem=in_chunks(), ticks=st.integers(0, 300))
@examples(10, full=300)
def test_what_a_limit_leaves_open_of_interleaved_plans_is_said(
    problem: Problem, ticks: int
) -> None:
    points, gaps = search(problem, deadline=Ticking(ticks))
    check_limited(points, gaps, enumerated(problem))


@given(problem=problems(preset="nest-artifact"))
@examples(15, full=400)
def test_frontier_with_one_strategy_for_all(problem: Problem) -> None:
    assert searched(problem) == enumerated(problem)


@given(problem=turns_problems())
@examples(15, full=400)
def test_frontier_with_ranks_that_take_turns(problem: Problem) -> None:
    assert searched(problem) == enumerated(problem)


@given(problem=problems(preset="standard"))
@examples(15, full=300)
def test_frontier_with_devices(problem: Problem) -> None:
    """Three objectives: all sizes of clusters, each enumerated."""
    everything = [
        (size, memory, step)
        for size in range(1, problem.cluster.num_devices + 1)
        for memory, step in enumerated(with_devices(problem, size))
    ]
    expected = [
        point
        for point in everything
        if not any(
            other != point and all(x <= y for x, y in zip(other, point, strict=True))
            for other in everything
        )
    ]
    found = pareto_frontier(
        problem,
        ("time", "memory", "devices"),
        devices=range(1, problem.cluster.num_devices + 1),
    )
    assert found.proven
    assert [
        (p.devices, p.memory_bytes, p.step_quanta) for p in found.points
    ] == expected


@given(
    problem=st.one_of(
        long_frontiers(),
        problems(preset="nest-artifact"),
        problems(granularity="layer"),
    ),
    setting=st.sampled_from(sorted(SETTINGS)),
    ticks=st.integers(0, 300),
)
@examples(30, full=800)
def test_what_a_limit_leaves_open_is_said(
    problem: Problem, setting: str, ticks: int
) -> None:
    points, gaps = search(problem, setting, Ticking(ticks))
    check_limited(points, gaps, enumerated(problem))


@given(problem=long_frontiers(), ticks=st.integers(0, 150))
@examples(20)
def test_what_forked_processes_leave_open_is_said(problem: Problem, ticks: int) -> None:
    points, gaps = search(problem, "labels-alone", Ticking(ticks), workers=2)
    check_limited(points, gaps, enumerated(problem))
