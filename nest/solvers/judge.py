"""Turn a claim into what is known: re-check, re-score, compare.

A solver never scores itself. The plan it hands back is checked and priced by
the shared cost model, and every other claim must agree with that price
exactly, for every solver alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nest.cost.rules import get_rules
from nest.errors import InvalidPlanError
from nest.ir.io import plan_to_json
from nest.ir.plan import Plan
from nest.ir.problem import Problem
from nest.solvers.base import Capabilities, Deadline, SolverOutput, Status
from nest.solvers.result import Outcome, Verdict
from nest.units import MAX_TOTAL, finite, format_bytes

if TYPE_CHECKING:
    from nest.cost.model import CostModel
    from nest.cost.score import Score


def judge(
    problem: Problem,
    claim: SolverOutput,
    *,
    capabilities: Capabilities,
    others: Iterable[Plan] = (),
    challenge: Deadline | None = None,
) -> Verdict:
    """Check a claim against the shared cost model.

    Parameters
    ----------
    problem, claim
        The problem, and what a solver says about it.
    capabilities
        Whether the solver may claim proofs, and how precise they are.
    others
        Other plans for the problem (reported earlier, a warm start); those
        that are feasible must not contradict the claimed proof.
    challenge
        How long plans of discarded batch splits are held against a proof,
        see :mod:`nest.solvers.challenge`; ``None`` is not at all.

    Returns
    -------
    Verdict
        Outcome SOLVED, INVALID_PLAN or MISMATCH. A plan that does not fit
        is accepted, as OVER_MEMORY, from solvers that may overrun. What is
        said of a plan is checked whatever the plan is worth: a false claim
        is a mismatch, also if the plan does not fit or is none. Where the job
        allows plans that an exact solver does
        not search, its proofs and bounds are dropped, and the detail says so.
        A claim that was refuted is kept in ``extra["claim"]``, the plan that
        is no plan in ``extra["rejected_plan"]``, a plan that refutes a proof
        in ``extra["contradiction"]``.
    """
    from nest.cost.model import CostModel
    from nest.cost.score import score

    model = CostModel(problem)
    found: Score | None = None
    fault: str | None = None
    if claim.plan is not None:
        try:
            found = score(problem, claim.plan, model)
        except InvalidPlanError as error:
            fault = str(error)
        else:
            fault = _outside(problem, claim.plan)
            if fault is None and not (found.feasible or capabilities.overruns):
                fault = "; ".join(found.violations)
    fits = found is not None and found.feasible and fault is None

    known = [found.step_quanta] if found is not None and fits else []
    for plan in others:
        try:
            other = score(problem, plan, model)
        except InvalidPlanError:
            continue
        if other.feasible:
            known.append(other.step_quanta)
    unsearched = capabilities.unsearched(problem) if capabilities.exact else ()
    reason = _contradiction(
        claim, found, fits, min(known, default=None), capabilities
    )
    if fault is not None:
        return _reject(claim, reason, fault, unsearched)
    refuting = None
    if reason is None and capabilities.exact and challenge is not None:
        reason, refuting = _challenged(claim, model, capabilities, challenge)
    if reason is not None:
        verdict = Verdict(
            outcome=Outcome.MISMATCH,
            status=Status.FEASIBLE if found else Status.NO_SOLUTION,
            limit=claim.limit,
            plan=claim.plan,
            score=found,
            detail=reason,
            extra={
                **claim.extra,
                "claim": claim_to_json(claim, unsearched),
                **(
                    {"contradiction": plan_to_json(refuting)}
                    if refuting
                    else {}
                ),
            },
        )
        if claim.plan is None or found is None or fits:
            return verdict
        over = over_memory(problem, claim, claim.plan, found)
        return replace(
            over,
            outcome=Outcome.MISMATCH,
            detail=f"{reason}; {over.detail}",
            extra=verdict.extra,
        )
    bound = claim.lower_bound_quanta
    if claim.status is Status.OPTIMAL and found is not None:
        bound = max(bound or 0, capabilities.proves(found.step_quanta))
    status, detail = claim.status, claim.detail
    if unsearched:
        bound = None
        status, detail = _qualify(claim, unsearched)
    if claim.plan is not None and found is not None and not fits:
        said = replace(claim, detail=detail)
        over = over_memory(problem, said, claim.plan, found)
        return replace(over, lower_bound_quanta=finite(bound))
    return Verdict(
        outcome=Outcome.SOLVED,
        status=status,
        limit=claim.limit,
        plan=claim.plan,
        score=found,
        lower_bound_quanta=finite(bound),
        own_objective_ns=claim.own_objective_ns,
        detail=detail,
        extra=claim.extra,
    )


def _challenged(
    claim: SolverOutput,
    model: CostModel,
    capabilities: Capabilities,
    challenge: Deadline,
) -> tuple[str | None, Plan | None]:
    """Return what plans of discarded splits refute, and one that does."""
    from nest.solvers.challenge import challengers, contradiction

    bound = claim.lower_bound_quanta or 0
    if claim.status is Status.INFEASIBLE:
        bound = MAX_TOTAL + 1
    elif claim.status is Status.OPTIMAL and claim.claimed_quanta is not None:
        bound = max(bound, capabilities.proves(claim.claimed_quanta))
    bounds = {(r, b): least for r, b, least in claim.split_bounds}
    if not bound and not bounds:
        return None, None
    for plan in challengers(model, claim.plan, challenge, capabilities):
        reason = contradiction(plan, bound, bounds)
        if reason is not None:
            return reason, plan.plan
    return None, None


def over_memory(
    problem: Problem, claim: SolverOutput, plan: Plan, found: Score
) -> Verdict:
    """Return the verdict on a plan that does not fit: what it lacks."""
    capacity = problem.cluster.memory_bytes()
    excess = max(block.memory_bytes for block in found.blocks) - capacity
    share = f" ({100 * excess / capacity:.1f} %)" if capacity else ""
    detail = f"{format_bytes(excess)}{share} too much memory"
    return Verdict(
        outcome=Outcome.SOLVED,
        status=Status.OVER_MEMORY,
        limit=claim.limit,
        plan=plan,
        score=found,
        own_objective_ns=claim.own_objective_ns,
        over_memory_bytes=excess,
        detail="; ".join(filter(None, (detail, claim.detail))),
        extra=claim.extra,
    )


def _outside(problem: Problem, plan: Plan) -> str | None:
    """Return why a plan that can be scored is not in the plan space."""
    if problem.job.granularity == "layer":
        return None
    if get_rules(problem.preset).recompute_per_layer:
        return None
    for number, stage in enumerate(plan.stages, 1):
        count = len(set(stage.layer_strategies))
        if count > 1:
            return (
                f"stage {number}: expected one strategy for all layers of a "
                f"stage, as job.granularity is 'stage', got {count}"
            )
    return None


def _qualify(
    claim: SolverOutput, unsearched: tuple[str, ...]
) -> tuple[Status, str]:
    """Return status and detail of a claim about part of the plan space."""
    status, detail = claim.status, f"did not search {', '.join(unsearched)}"
    without = "it" if len(unsearched) == 1 else "them"
    if status is Status.OPTIMAL:
        status = Status.FEASIBLE
        detail += f"; proven optimal without {without}"
    elif status is Status.INFEASIBLE:
        status = Status.NO_SOLUTION
        detail += f"; proven infeasible without {without}"
    return status, "; ".join(filter(None, (detail, claim.detail)))


def claim_to_json(
    claim: SolverOutput, unsearched: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the numbers of a claim for the report of a failure.

    ``unsearched`` is what the claim is not about.
    """
    return {
        "status": str(claim.status),
        "limit": None if claim.limit is None else str(claim.limit),
        "claimed_quanta": claim.claimed_quanta,
        "lower_bound_quanta": claim.lower_bound_quanta,
        "detail": claim.detail,
        "unsearched": list(unsearched),
    }


def _reject(
    claim: SolverOutput,
    reason: str | None,
    fault: str,
    unsearched: Sequence[str],
) -> Verdict:
    """Return the verdict on a plan that counts for nothing.

    ``reason`` is what is wrong with the claim besides.
    """
    return Verdict(
        outcome=Outcome.MISMATCH if reason else Outcome.INVALID_PLAN,
        status=Status.NO_SOLUTION,
        limit=claim.limit,
        detail="; ".join(filter(None, (reason, fault))),
        extra={
            **claim.extra,
            "claim": claim_to_json(claim, unsearched),
            "rejected_plan": plan_to_json(claim.plan),
        },
    )


def _contradiction(
    claim: SolverOutput,
    found: Score | None,
    fits: bool,
    best: int | None,
    capabilities: Capabilities,
) -> str | None:
    """Return what is wrong with a claim, or ``None``.

    ``found`` is the score of its plan, if that has one, ``fits`` whether it
    is legal and fits, and ``best`` the least step time of any plan at hand.
    """
    status, bound = claim.status, claim.lower_bound_quanta
    proven = status in (Status.OPTIMAL, Status.INFEASIBLE)
    planned = claim.plan is not None
    if planned != (status in (Status.OPTIMAL, Status.FEASIBLE)):
        got = "a plan" if planned else "none"
        return f"expected a plan iff optimal or feasible, got {got}: {status}"
    if not capabilities.exact and (proven or bound is not None):
        got = f"status {status}" if proven else f"a bound of {bound}"
        return f"expected no proof from a solver that is not exact, got {got}"
    if proven and claim.limit is not None:
        return f"expected no limit with {status}, got {claim.limit}"
    if status is Status.NO_SOLUTION and not (claim.limit or claim.detail):
        return "expected a limit or a detail with no solution, got neither"
    if found is not None and claim.claimed_quanta is not None:
        if claim.claimed_quanta != found.step_quanta:
            return (
                f"claims {claim.claimed_quanta} quanta for a plan that takes "
                f"{found.step_quanta} by the shared cost model"
            )
    elif claim.claimed_quanta is not None and not planned:
        return f"claims {claim.claimed_quanta} quanta without a plan"
    if status is Status.OPTIMAL and not fits:
        return "claims an optimum with a plan that does not fit or is none"
    if status is Status.OPTIMAL and found is not None:
        proves = capabilities.proves(found.step_quanta)
        if bound is not None and bound < proves:
            return (
                f"claims an optimum of {found.step_quanta} quanta with a "
                f"lower bound of only {bound}"
            )
        bound = max(bound or 0, proves)
    if best is not None and status is Status.INFEASIBLE:
        return f"claims infeasible, but a plan takes {best} quanta"
    if best is not None and bound is not None and bound > best:
        return (
            f"claims a lower bound of {bound} quanta, but a plan takes {best}"
        )
    return None
