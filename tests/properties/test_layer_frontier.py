"""Frontiers merged along the graph: nothing else is known when they begin.

Elsewhere the curve with one strategy per stage is there first, which hides
what the merging itself would miss.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nest.analysis.fit import with_memory
from nest.ir import Problem
from nest.solvers.base import SolveOptions, Status
from nest.solvers.registry import get_solver
from tests.clock import Ticking
from tests.frontiers import MERGING, check_limited, enumerated, merged, pairs, searched
from tests.properties.profiles import examples
from tests.strategies import Draw, problems, with_long_frontier


@st.composite
def layered(draw: Draw, magnified: bool = True) -> Problem:
    """Draw a problem whose layers choose strategies, often with room."""
    overlapping = draw(st.booleans())
    problem = draw(
        problems(granularity="layer", overlapping=overlapping, magnified=magnified)
    )
    return with_long_frontier(draw, problem)


#: The setting ``cut-again`` cuts levels down to bytes, if they have few.
SMALL = layered(magnified=False)


@pytest.mark.parametrize("setting", MERGING)
@given(data=st.data())
@examples(8, full=600)
def test_merged_frontier_is_that_of_all_plans(
    setting: str, data: st.DataObject
) -> None:
    problem = data.draw(SMALL if setting == "cut-again" else layered())
    points, gaps = merged(problem, setting)
    assert gaps == []
    assert pairs(points) == enumerated(problem)


@pytest.mark.parametrize("workers", [1, 2])
@given(problem=SMALL, ticks=st.integers(0, 300))
@examples(15, full=400)
def test_what_a_limit_leaves_open_is_said(
    workers: int, problem: Problem, ticks: int
) -> None:
    points, gaps = merged(problem, "cut-again", Ticking(ticks), workers)
    check_limited(points, gaps, enumerated(problem))


@given(problem=layered())
@examples(1, full=300)
def test_dp_proves_every_point(problem: Problem) -> None:
    """Nothing is faster in its memory, and nothing as fast in a byte less."""
    solver = get_solver("dp")()
    slower = None
    for memory, step in searched(problem):
        best = solver.solve(with_memory(problem, memory), SolveOptions())
        assert best.status is Status.OPTIMAL
        assert best.claimed_quanta == step
        if memory > 1:
            found = solver.solve(with_memory(problem, memory - 1), SolveOptions())
            assert found.claimed_quanta == slower
        slower = step
