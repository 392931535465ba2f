"""Store the optima of the problems of ``nest/conform/data``.

Usage: python bench/conform.py

``brute`` and ``dp`` must agree on each, to the quantum. Where plans order their
passes, all plans and orders are enumerated instead of ``brute``, and ``dp`` need
not prove the optimum.
"""

from __future__ import annotations

import sys
from pathlib import Path

from nest.conform.problems import OWN, Optima, Optimum, own_problem
from nest.ir import Problem, problem_hash, write
from nest.ir.job import ANY_ORDER
from nest.solvers.base import Status
from nest.solvers.run import run_solver

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.independent.enumerator import optimum
from tests.orders import best_of_all

SOLVERS = ("brute", "dp")
PLACE = Path(__file__).parents[1] / "nest" / "conform" / "data"


def enumerated(problem: Problem) -> int | None:
    """Return the least step time of all plans, in quanta."""
    if not problem.job.plans_order_passes:
        result = run_solver(problem, "brute")
        assert result.status is Status.OPTIMAL, problem.name
        return result.step_quanta
    if problem.job.schedule != ANY_ORDER:
        return optimum(problem)[0]
    best, is_known = best_of_all(problem)
    assert is_known, problem.name
    return best


def main() -> None:
    """Store the optima, with the plans of ``dp``."""
    optima = {}
    for name in OWN:
        problem = own_problem(name)
        result = run_solver(problem, "dp")
        assert result.status is Status.OPTIMAL or problem.job.plans_order_passes, name
        assert result.step_quanta == enumerated(problem), name
        assert result.plan is not None
        assert result.step_quanta is not None
        optima[name] = Optimum(
            problem_hash=problem_hash(problem),
            value_quanta=result.step_quanta,
            plan=result.plan,
        )
    write(PLACE / "optima.json", Optima(solvers=SOLVERS, optima=optima))


if __name__ == "__main__":
    main()
