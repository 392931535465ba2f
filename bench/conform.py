"""Store the optima of the problems of ``nest/conform/data``.

Usage: python bench/conform.py

``brute`` and ``dp`` must agree on each, to the quantum.
"""

from __future__ import annotations

from pathlib import Path

from nest.conform.problems import OWN, Optima, Optimum, own_problem
from nest.ir import problem_hash, write
from nest.solvers.base import Status
from nest.solvers.run import run_solver

SOLVERS = ("brute", "dp")
PLACE = Path(__file__).parents[1] / "nest" / "conform" / "data"


def main() -> None:
    optima = {}
    for name in OWN:
        problem = own_problem(name)
        results = [run_solver(problem, solver) for solver in SOLVERS]
        assert all(result.status is Status.OPTIMAL for result in results), name
        first, second = results
        assert first.step_quanta == second.step_quanta, name
        assert second.plan is not None
        assert second.step_quanta is not None
        optima[name] = Optimum(
            problem_hash=problem_hash(problem),
            value_quanta=second.step_quanta,
            plan=second.plan,
        )
    write(PLACE / "optima.json", Optima(solvers=SOLVERS, optima=optima))


if __name__ == "__main__":
    main()
