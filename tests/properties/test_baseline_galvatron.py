"""Galvatron's plans are in the plan space, and none beats the optimum."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baselines.galvatron import GalvatronSolver
from nest.cost.score import score
from nest.ir import Problem
from nest.ir.job import Granularity
from nest.solvers.base import SolveOptions, Status
from nest.solvers.judge import judge
from nest.solvers.registry import get_solver
from nest.solvers.result import Outcome
from tests.properties.profiles import examples
from tests.strategies import problems


def check_fair(problem: Problem) -> None:
    """The plan is legal, and no better than the proven optimum."""
    solver = GalvatronSolver()
    output = solver.solve(problem, SolveOptions())
    assert output.limit is None
    if output.plan is None:
        assert output.status is Status.NO_SOLUTION
        assert output.detail
        return
    verdict = judge(problem, output, capabilities=solver.capabilities)
    assert verdict.outcome is Outcome.SOLVED, verdict.detail
    assert output.own_objective_ns is not None
    assert output.own_objective_ns >= 0
    found = score(problem, output.plan)
    if found.feasible:
        best = get_solver("dp")().solve(problem, SolveOptions())
        assert best.claimed_quanta is not None
        assert best.claimed_quanta <= found.step_quanta


@pytest.mark.parametrize("granularity", ["stage", "layer"])
@given(data=st.data())
@examples(30)
def test_fair(granularity: Granularity, data: st.DataObject) -> None:
    check_fair(data.draw(problems(preset="standard", granularity=granularity)))
