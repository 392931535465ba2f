"""Proofs of frontier points by another exact solver.

A point with step time ``T`` and memory ``m`` is on the frontier of its
cluster if nothing within ``m`` bytes is faster than ``T``, and everything
within ``m - 1`` bytes takes longer: the ε-constraint method, with memory as
the constraint. Each is one run of a solver that knows nothing of the search.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

from msgspec import structs

from nest.analysis.pareto import Curve, Frontier, FrontierPoint
from nest.errors import InvalidOptionError
from nest.search.frontier.staircase import leave_room
from nest.solvers.base import SolveOptions, Status
from nest.solvers.cell import OnProgress
from nest.solvers.registry import get_solver, is_built_in, solver_class, solver_names
from nest.solvers.result import SolveResult
from nest.solvers.run import run_solver

PointVerdict = Literal["proven", "open", "better", "contradiction"]


@dataclass(frozen=True)
class Proof:
    """What another exact solver says about a point.

    ``within`` is its answer with as much memory as the point needs, where nothing may
    be faster; ``below`` the one with a byte less, where nothing may be as fast. There
    is no such answer if that is less than the reserve, which no plan can use.

    The verdict is ``proven`` if both are shown, ``contradiction`` if an answer is
    impossible, ``better`` if a plan beats a point that is not proven, and else
    ``open``.
    """

    point: FrontierPoint
    within: SolveResult
    below: SolveResult | None
    verdict: PointVerdict
    detail: str

    @property
    def results(self) -> tuple[SolveResult, ...]:
        """The answers there are."""
        if self.below is None:
            return (self.within,)
        return (self.within, self.below)


def check_prover(name: str) -> None:
    """Refuse a solver that proves nothing.

    Raises ``UnknownSolverError`` or ``SolverNotInstalledError`` if there is no such
    solver, or it cannot run here, and ``InvalidOptionError`` if it is not exact.
    """
    if not get_solver(name).capabilities.exact:
        own = filter(is_built_in, solver_names())
        exact = [n for n in own if solver_class(n).capabilities.exact]
        raise InvalidOptionError(
            f"--prove: expected an exact solver ({', '.join(exact)}), got "
            f"{name!r}, which proves nothing; choose one of them"
        )


def prove(
    found: Frontier,
    point: FrontierPoint,
    solver: str,
    options: SolveOptions | None = None,
    on_progress: OnProgress | None = None,
) -> Proof:
    """Let another exact solver examine a point of a frontier.

    It runs twice, each time under the limits of ``options``, and starts from the plans
    that are known, if it can.

    Raises ``NestError`` if the request makes no sense to the solver.
    """
    curve = found.curve(point.devices)
    options = options or SolveOptions()
    cap = point.memory_bytes
    within, below = (
        _examine(curve, capacity, solver, options, on_progress)
        for capacity in (cap, cap - 1)
    )
    assert within is not None
    verdict: PointVerdict = "proven"
    details = []
    for capacity, result in ((cap, within), (cap - 1, below)):
        if result is None:
            continue
        each, why = _weigh(curve, point, capacity, result)
        if each == "proven":
            continue
        details.append(f"with {capacity} bytes {why}")
        verdict = max(verdict, each, key=_SEVERITY.index)
    return Proof(point, within, below, verdict, "; ".join(details))


def _examine(
    curve: Curve,
    capacity: int,
    solver: str,
    options: SolveOptions,
    on_progress: OnProgress | None,
) -> SolveResult | None:
    """Solve the problem with so much memory."""
    problem = curve.problem
    if capacity < problem.cluster.reserve_bytes():
        return None
    problem = structs.replace(problem, cluster=problem.cluster.within(capacity))
    known = curve.at_most(capacity)
    if known is not None and solver_class(solver).capabilities.warm_start:
        start = structs.replace(known.plan, problem_hash=None)
        options = replace(options, warm_start=start)
    return run_solver(problem, solver, options, on_progress)


#: From the mildest to the worst.
_SEVERITY: tuple[PointVerdict, ...] = get_args(PointVerdict)


def _weigh(
    curve: Curve, point: FrontierPoint, capacity: int, result: SolveResult
) -> tuple[PointVerdict, str]:
    """Return what one answer shows.

    With as much memory as the point needs, its time must be the least; with less, every
    time must be longer. Whatever is proven must agree with the curve there.
    """
    if result.outcome.failed:
        return "contradiction", f"the solver failed: {result.detail}"
    known = curve.at_most(capacity)
    step, bound = result.step_quanta, result.lower_bound_quanta
    if known is not None and (
        result.status is Status.INFEASIBLE
        or (bound is not None and bound > known.step_quanta)
    ):
        least = "no plan" if bound is None else f"none below {bound} quanta"
        return "contradiction", (f"there is {least}, but one takes {known.step_quanta}")
    if step is not None and (known is None or step < known.step_quanta):
        better = step <= point.step_quanta and (
            step < point.step_quanta or capacity < point.memory_bytes
        )
        beaten = "nothing" if known is None else f"{known.step_quanta}"
        why = f"a plan takes {step} quanta, the curve has {beaten}"
        if not leave_room(curve.gaps, capacity, step):
            return "contradiction", why
        if better:
            return "better", why
    if result.status is Status.INFEASIBLE:
        return "proven", ""
    needed = point.step_quanta
    if capacity < point.memory_bytes:
        needed += 1
    slack = math.floor(point.step_quanta * result.precision)
    if bound is not None and bound >= needed - slack:
        return "proven", ""
    reason = result.detail or str(result.limit or result.outcome)
    at_least = "" if bound is None else f", at least {bound} quanta"
    return "open", f"not settled ({reason}{at_least})"
