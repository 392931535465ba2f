"""What every planner owes: legal plans, none of them better than the proof."""

from __future__ import annotations

from nest.ir import Problem
from nest.solvers.base import SolveOptions, SolverOutput, Status
from nest.solvers.judge import judge
from nest.solvers.registry import get_solver
from nest.solvers.result import Outcome


def check_fair(name: str, problem: Problem, **extra: str) -> SolverOutput | None:
    """Hold a planner's plan against the rules and against ``dp``.

    Returns what the planner handed in, ``None`` if it cannot search the problem.
    """
    solver = get_solver(name)()
    if solver.unsupported(problem) is not None:
        return None
    output = solver.solve(problem, SolveOptions(extra=extra))
    verdict = judge(problem, output, capabilities=solver.capabilities)
    assert verdict.outcome is Outcome.SOLVED, verdict.detail
    assert output.limit is None
    assert output.claimed_quanta is None
    assert output.lower_bound_quanta is None
    if output.plan is None:
        assert output.detail
        assert output.own_objective_ns is None
        return output
    if solver.capabilities.objective:
        assert output.own_objective_ns is not None
        assert output.own_objective_ns >= 0
    if verdict.status is Status.OVER_MEMORY:
        assert solver.capabilities.overruns
        return output
    assert verdict.score is not None
    truth = get_solver("dp")().solve(problem, SolveOptions())
    assert truth.status is Status.OPTIMAL
    assert truth.claimed_quanta is not None
    assert truth.claimed_quanta <= verdict.score.step_quanta
    return output
