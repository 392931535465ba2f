"""Which combinations of status, plan, limit and lower bound are possible.

These rules hold for the claim of a solver (:mod:`nest.solvers.judge`) and
for every result (:mod:`nest.solvers.result`):

1. There is a plan if and only if the status is optimal, feasible or
   over-memory.
2. Only exact solvers prove: the statuses optimal and infeasible, and lower
   bounds, are proofs.
3. A proof has no limit, because the search ended by itself.
4. Without a plan and without a proof, a limit or a detail says why.
5. The plan of an optimum is legal and fits the memory.
6. The lower bound of an optimum is its step time, within the precision of
   the solver.
7. No known plan refutes a proof: infeasible means that there is no plan, and
   no plan is faster than a lower bound.

So the gap, ``(step time - lower bound) / step time``, is never negative.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nest.solvers.base import SolverOutput, Status

if TYPE_CHECKING:
    from nest.solvers.result import Verdict

#: Statuses that come with a plan.
WITH_PLAN = (Status.OPTIMAL, Status.FEASIBLE, Status.OVER_MEMORY)

#: Statuses that are proofs.
PROOFS = (Status.OPTIMAL, Status.INFEASIBLE)


def inconsistency(
    stated: SolverOutput | Verdict,
    *,
    exact: bool,
    step_quanta: int | None,
    proven_quanta: int | None,
    best_quanta: int | None,
) -> str | None:
    """Return which of the rules a claim or a result breaks, or ``None``.

    ``step_quanta`` is the step time of a plan that is legal and fits, by the shared
    cost model; an optimum of it implies the bound ``proven_quanta``. ``best_quanta`` is
    the least step time of all known plans. Only ``exact`` solvers promise proofs.
    """
    status, bound = stated.status, stated.lower_bound_quanta
    proven = status in PROOFS
    if (stated.plan is not None) != (status in WITH_PLAN):
        got = "no plan" if stated.plan is None else "a plan"
        return (
            f"expected a plan if and only if the status is optimal, feasible "
            f"or over-memory, got {got} with {status}"
        )
    if not exact and (proven or bound is not None):
        found = f"status {status}" if proven else f"a bound of {bound}"
        return f"expected no proof from a solver that is not exact, got {found}"
    if proven and stated.limit is not None:
        return f"expected no limit with {status}, got {stated.limit}"
    if status is Status.NO_SOLUTION and not (stated.limit or stated.detail):
        return "expected a limit or a detail with no solution, got neither"
    if status is Status.OPTIMAL:
        if step_quanta is None or proven_quanta is None:
            return "claims an optimum with a plan that does not fit or is none"
        if bound is not None and bound < proven_quanta:
            return (
                f"claims an optimum of {step_quanta} quanta with a lower "
                f"bound of only {bound}"
            )
        bound = max(bound or 0, proven_quanta)
    if best_quanta is None:
        return None
    claim = refuted(status, bound, best_quanta)
    if claim is None:
        return None
    unit = " quanta" if status is Status.INFEASIBLE else ""
    return f"{claim}, but a plan takes {best_quanta}{unit}"


def refuted(
    status: Status | None, bound_quanta: int | None, best_quanta: int
) -> str | None:
    """Return the claim that a plan of so many quanta proves wrong, if any."""
    if status is Status.INFEASIBLE:
        return "claims infeasible"
    if bound_quanta is not None and bound_quanta > best_quanta:
        return f"claims a lower bound of {bound_quanta} quanta"
    return None
