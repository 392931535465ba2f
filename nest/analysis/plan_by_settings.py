"""Plans by their settings: ``tp=8,pp=4,zero=1`` instead of a plan file.

What the settings leave open (which layers a stage has, the micro-batch, …) is
filled by one rule: the plan is the fastest that has them, as the exact solver
finds it; if none fits the memory, the one that needs least of it, and of these
the fastest. No plan is shown that lacks a setting.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from nest.analysis.feasible import least_memory
from nest.analysis.fit import with_memory
from nest.constraints.pins import Restrictions, describe, parse, restrict
from nest.errors import InvalidPlanError
from nest.ir.io import problem_hash
from nest.ir.plan import Plan
from nest.ir.problem import Problem
from nest.solvers.base import Limit, SolveOptions, Status
from nest.solvers.cell import OnProgress
from nest.solvers.registry import default_workers
from nest.solvers.result import SolveResult
from nest.solvers.run import run_solver

#: Wall-clock seconds to fill in what is left open.
TIME_LIMIT_S = 60.0

#: Who fills it in.
SOLVER = "dp"


class Filled(NamedTuple):
    """A plan with all settings that were named, and what it is among such."""

    plan: Plan
    how: str


def plan_by_settings(
    problem: Problem,
    text: str,
    option: str = "--plan",
    on_progress: OnProgress | None = None,
) -> Filled:
    """Return the plan that settings such as ``tp=8,pp=4`` stand for.

    ``option`` names them in messages. What the job does not allow no plan has.

    Raises ``InvalidOptionError`` or ``UnknownNameError`` if the text is malformed, or
    no plan has such settings, and ``InvalidPlanError`` if no plan is found in time.
    """
    pins: Restrictions = parse([text], option)
    narrow = restrict(problem, pins, option=option)
    options = SolveOptions(
        time_limit_s=TIME_LIMIT_S, num_workers=default_workers(SOLVER)
    )
    result = run_solver(narrow, SOLVER, options, on_progress)
    said = describe(pins, {}, option).removeprefix(f"{option} ")
    plan, how = result.plan, f"the fastest with {said}"
    if plan is not None and result.status is not Status.OPTIMAL:
        how += f" of those that the search constructed; {_open(result)}"
    if plan is None and len(problem.cluster.types) == 1:
        own = problem.cluster.memory_bytes()
        least = least_memory(narrow, own, TIME_LIMIT_S, SOLVER)
        if least.plan is not None and least.memory_bytes is not None:
            lean = with_memory(narrow, max(least.memory_bytes, own))
            fastest = run_solver(lean, SOLVER, options, on_progress)
            plan = fastest.plan or least.plan
        how = f"the one that needs least memory with {said}"
        if result.status is not Status.INFEASIBLE:
            how += (
                " of those that the search constructed; whether one fits is not proven"
            )
        elif least.proven:
            how += ", none fits"
        else:
            how += " of those that the search constructed; none fits"
    if plan is not None:
        own_plan = replace(plan, problem_hash=problem_hash(problem))
        return Filled(own_plan, how)
    raise InvalidPlanError(
        f"{option} {text}: expected settings for which the search constructs "
        f"a plan, got none ({_why(result) or result.status}); name more "
        f"settings, or write a plan file"
    )


def _why(result: SolveResult) -> str:
    """Return why a search proved nothing; empty if it does not say."""
    if result.limit is Limit.TIME:
        return f"it ended at its time limit of {result.options.time_limit_s:g} s"
    return result.detail


def _open(result: SolveResult) -> str:
    """Say why a plan is not proven to be the fastest, and by how much."""
    text = f"not proven: {_why(result)}"
    if result.gap is not None:
        percent = 100 * float(result.gap)
        text += f"; no plan is more than {percent:.3g} % faster"
    return text
