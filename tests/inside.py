"""Solvers in this process: what the runner does, without one of its own."""

from __future__ import annotations

from nest.ir import Problem, problem_hash
from nest.solvers.base import SolveOptions
from nest.solvers.cell import OnReport
from nest.solvers.judge import judge
from nest.solvers.registry import get_solver
from nest.solvers.result import SolveResult
from nest.solvers.run import OnProgress

#: Where modules have the runner.
PLACES = (
    "nest.analysis.fit.run_solver",
    "nest.analysis.plan_by_settings.run_solver",
    "nest.analysis.compare.run_solver",
    "nest.solvers.run.run_solver",
)


def run_inside(
    problem: Problem,
    name: str,
    options: SolveOptions | None = None,
    on_progress: OnProgress | None = None,
    on_report: OnReport | None = None,
    *,
    alone: bool = False,
) -> SolveResult:
    """Solve and judge; the same answers as of ``run_solver``, sooner."""
    solver = get_solver(name)
    options = options or SolveOptions()
    claim = solver().solve(problem, options)
    verdict = judge(problem, claim, capabilities=solver.capabilities)
    return SolveResult(
        solver=name,
        exact=solver.capabilities.exact,
        problem_hash=problem_hash(problem),
        quantum_ps=problem.quantum_ps,
        options=options,
        **vars(verdict),
    )
