"""What studies do with solvers: proven optima, planners' plans, averages."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from nest.cost.model import CostModel
from nest.cost.score import score
from nest.errors import InvalidPlanError, SolverError
from nest.ir.plan import Plan
from nest.ir.problem import Problem
from nest.solvers.base import SolveOptions, Status
from nest.solvers.registry import default_workers, get_solver, solver_class
from nest.solvers.repair import repair
from nest.solvers.result import SolveResult
from nest.solvers.run import run_solver


def optimum(problem: Problem) -> Plan | None:
    """Return a plan that is proven to be the fastest; ``None`` if none fits.

    In this process and without a limit, for problems that take moments.

    Raises ``SolverError`` if nothing was proven.
    """
    output = get_solver("dp")().solve(problem, SolveOptions())
    if output.status not in (Status.OPTIMAL, Status.INFEASIBLE):
        raise SolverError(
            f"{problem.name}: expected an optimum, got {output.status}: "
            f"{output.detail}; report it"
        )
    return output.plan


def prove(problem: Problem, time_limit_s: float) -> Plan | None:
    """Return a plan that is proven to be the fastest within a time.

    In a process of its own; ``None`` if nothing fits or was proven in time.
    """
    options = SolveOptions(time_limit_s=time_limit_s, num_workers=default_workers("dp"))
    result = run_solver(problem, "dp", options)
    return result.plan if result.status is Status.OPTIMAL else None


def step_quanta(
    problem: Problem, plan: Plan | None, model: CostModel | None = None
) -> int | None:
    """Return the score of a plan that fits, ``None`` of any other.

    It is the shared score, but for a ``model`` with another network.
    """
    if plan is None:
        return None
    try:
        verdict = score(problem, plan, model)
    except InvalidPlanError:
        return None
    return verdict.step_quanta if verdict.feasible else None


def step_units(problem: Problem, plan: Plan | None) -> float | None:
    """Return the same in the time unit of the problem."""
    quanta = step_quanta(problem, plan)
    return None if quanta is None else quanta * problem.quantum_ps / 1e12


def ratio(step: int | None, best: int | None) -> float | None:
    """Return a step over the optimum, ``None`` if either is missing."""
    return None if step is None or not best else step / best


def geometric_mean(values: Iterable[float]) -> float | None:
    """Return the geometric mean, ``None`` of nothing."""
    logs = [math.log(value) for value in values]
    return math.exp(math.fsum(logs) / len(logs)) if logs else None


class Usable(NamedTuple):
    """A planner's plan once it has to fit.

    The plan fits, repaired if need be, and has the shared score ``step_quanta``;
    ``None`` if there is none. ``over_bytes`` says by how much it exceeded the memory
    before, ``note`` why there is none, or what repair did.
    """

    step_quanta: int | None
    plan: Plan | None
    over_bytes: int
    note: str


def usable(problem: Problem, result: SolveResult) -> Usable:
    """Return the plan of a result, repaired as its planner allows."""
    if result.plan is None:
        note = result.detail or str(result.status or result.outcome)
        return Usable(None, None, 0, note)
    over = result.over_memory_bytes or 0
    if not over:
        return Usable(step_quanta(problem, result.plan), result.plan, 0, "")
    remedies = solver_class(result.solver).capabilities.remedies
    verdict = repair(problem, result, remedies)
    note = verdict.detail.partition(" (")[0]
    if verdict.status is not Status.FEASIBLE:
        return Usable(None, None, over, note)
    return Usable(step_quanta(problem, verdict.plan), verdict.plan, over, note)
