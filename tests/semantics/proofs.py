"""Optima that every exact solver has to prove."""

from __future__ import annotations

from nest.cost.score import score
from nest.ir import Problem
from nest.solvers.base import SolveOptions, Status
from nest.solvers.registry import get_solver
from tests.independent.enumerator import optimum

SOLVERS = ("brute", "dp", "cpsat", "milp")


def check(problem: Problem, optimum_ns: int | None) -> None:
    """All solvers prove the optimum, or that there is none.

    Enumeration by the rules of the page comes to the same.
    """
    assert optimum(problem)[0] == optimum_ns
    for name in SOLVERS:
        output = get_solver(name)().solve(problem, SolveOptions())
        if optimum_ns is None:
            assert output.status is Status.INFEASIBLE, name
        else:
            assert output.status is Status.OPTIMAL, name
            assert output.plan is not None
            assert score(problem, output.plan).step_quanta == optimum_ns, name
