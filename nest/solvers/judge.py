"""The verdict on a solver's claim: check and score its plan again.

No solver scores itself. The judge checks the plan, computes its step time
with the shared cost model, and compares every other claim with that time
exactly. The rules for all solvers are in :mod:`nest.solvers.consistency`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from nest.cost.model import CostModel
from nest.cost.rules import get_rules
from nest.cost.score import Score, score
from nest.errors import InvalidPlanError
from nest.ir.io import plan_to_json
from nest.ir.plan import Plan
from nest.ir.problem import Problem
from nest.solvers.base import Capabilities, Deadline, SolverOutput, Status
from nest.solvers.consistency import inconsistency
from nest.solvers.result import Outcome, Verdict
from nest.uncertainty.headroom import fullest_device
from nest.units import MAX_TOTAL, finite, format_bytes


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
        The problem, and the claim of a solver about it.
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
        Outcome SOLVED, INVALID_PLAN or MISMATCH. A plan that does not fit is accepted,
        as OVER_MEMORY, from solvers that may overrun. A false claim is a mismatch, also
        if the plan does not fit or is not legal. If the job allows plans that an exact
        solver does not search, the verdict has no proof and no bound, and the detail
        says so. A refuted claim is in ``extra["claim"]``, a plan that is not legal in
        ``extra["rejected_plan"]``, and a plan that refutes a proof in
        ``extra["contradiction"]``.
    """
    model = CostModel(problem)
    scored = _score(problem, claim.plan, model, capabilities)
    unsearched = capabilities.unsearched(problem) if capabilities.exact else ()
    best = min(_known_times(problem, scored, others, model), default=None)
    reason = _contradiction(claim, scored, best, capabilities)
    if scored.fault is not None:
        return _reject(claim, reason, scored.fault, unsearched)
    refuting = None
    if reason is None and capabilities.exact and challenge is not None:
        reason, refuting = _challenged(claim, model, capabilities, challenge)
    if reason is not None:
        return _mismatch(problem, claim, scored, reason, refuting, unsearched)
    return _accept(problem, claim, scored, capabilities, unsearched)


class _ScoredPlan(NamedTuple):
    """The score of a claimed plan, if it is legal, and why it counts for nothing."""

    score: Score | None = None
    fault: str | None = None

    @property
    def step_quanta(self) -> int | None:
        """Step time of a plan that is legal and fits."""
        if self.score is None or self.fault or not self.score.feasible:
            return None
        return self.score.step_quanta


def _score(
    problem: Problem, plan: Plan | None, model: CostModel, capabilities: Capabilities
) -> _ScoredPlan:
    """Score the plan of a claim, and check that it is in the plan space."""
    if plan is None:
        return _ScoredPlan()
    try:
        result = score(problem, plan, model)
    except InvalidPlanError as error:
        return _ScoredPlan(fault=str(error))
    fault = _outside(problem, plan)
    if fault is None and not (result.feasible or capabilities.overruns):
        fault = "; ".join(result.violations)
    return _ScoredPlan(result, fault)


def _known_times(
    problem: Problem, scored: _ScoredPlan, others: Iterable[Plan], model: CostModel
) -> Iterator[int]:
    """Yield the step times of all known plans that fit."""
    if scored.step_quanta is not None:
        yield scored.step_quanta
    for plan in others:
        with suppress(InvalidPlanError):
            result = score(problem, plan, model)
            if result.feasible:
                yield result.step_quanta


def _mismatch(
    problem: Problem,
    claim: SolverOutput,
    scored: _ScoredPlan,
    reason: str,
    refuting: Plan | None,
    unsearched: Sequence[str],
) -> Verdict:
    """Return the verdict on a false claim, and on its plan, which keeps its score."""
    extra = {**claim.extra, "claim": claim_to_json(claim, unsearched)}
    if refuting:
        extra["contradiction"] = plan_to_json(refuting)
    if claim.plan is None or scored.score is None or scored.score.feasible:
        return Verdict(
            outcome=Outcome.MISMATCH,
            status=Status.FEASIBLE if scored.score else Status.NO_SOLUTION,
            limit=claim.limit,
            plan=claim.plan,
            score=scored.score,
            detail=reason,
            extra=extra,
        )
    over = over_memory(problem, claim, claim.plan, scored.score)
    return replace(
        over, outcome=Outcome.MISMATCH, detail=f"{reason}; {over.detail}", extra=extra
    )


def _accept(
    problem: Problem,
    claim: SolverOutput,
    scored: _ScoredPlan,
    capabilities: Capabilities,
    unsearched: tuple[str, ...],
) -> Verdict:
    """Return the verdict on a claim that nothing contradicts."""
    bound = claim.lower_bound_quanta
    if claim.status is Status.OPTIMAL and scored.score is not None:
        bound = max(bound or 0, capabilities.proves(scored.score.step_quanta))
    status, detail = claim.status, claim.detail
    if unsearched:
        bound = None
        status, detail = _qualify(claim, unsearched)
    plan, result = claim.plan, scored.score
    if plan is not None and result is not None and not result.feasible:
        over = over_memory(problem, replace(claim, detail=detail), plan, result)
        return replace(over, lower_bound_quanta=finite(bound))
    return Verdict(
        outcome=Outcome.SOLVED,
        status=status,
        limit=claim.limit,
        plan=plan,
        score=result,
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
    problem: Problem, claim: SolverOutput, plan: Plan, plan_score: Score
) -> Verdict:
    """Return the verdict on a plan that does not fit: what it lacks."""
    full = fullest_device(problem, plan, plan_score)
    capacity, missing_bytes = full.device_bytes, -plan_score.memory_left_bytes
    excess = full.memory_bytes - capacity
    detail = f"leaves {format_bytes(missing_bytes)} less than the headroom"
    if excess > 0:
        share = f" ({100 * excess / capacity:.1f} %)" if capacity else ""
        detail = f"{format_bytes(excess)}{share} too much memory"
    return Verdict(
        outcome=Outcome.SOLVED,
        status=Status.OVER_MEMORY,
        limit=claim.limit,
        plan=plan,
        score=plan_score,
        own_objective_ns=claim.own_objective_ns,
        over_memory_bytes=missing_bytes,
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


def _qualify(claim: SolverOutput, unsearched: tuple[str, ...]) -> tuple[Status, str]:
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
    """Return the numbers of a claim, and what it is not about, for a report."""
    return {
        "status": str(claim.status),
        "limit": None if claim.limit is None else str(claim.limit),
        "claimed_quanta": claim.claimed_quanta,
        "lower_bound_quanta": claim.lower_bound_quanta,
        "detail": claim.detail,
        "unsearched": list(unsearched),
    }


def _reject(
    claim: SolverOutput, reason: str | None, fault: str, unsearched: Sequence[str]
) -> Verdict:
    """Return the verdict on a plan that counts for nothing, for two reasons."""
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
    scored: _ScoredPlan,
    best_quanta: int | None,
    capabilities: Capabilities,
) -> str | None:
    """Return what is wrong with a claim, if anything is."""
    if claim.status is Status.OVER_MEMORY:
        return f"expected a status that solvers may claim, got {claim.status}"
    claimed = claim.claimed_quanta
    if claimed is not None and claim.plan is None:
        return f"claims {claimed} quanta without a plan"
    if claimed is not None and scored.score is not None:
        step_quanta = scored.score.step_quanta
        if claimed != step_quanta:
            return (
                f"claims {claimed} quanta for a plan that takes "
                f"{step_quanta} by the shared cost model"
            )
    step = scored.step_quanta
    return inconsistency(
        claim,
        exact=capabilities.exact,
        step_quanta=step,
        proven_quanta=None if step is None else capabilities.proves(step),
        best_quanta=best_quanta,
    )
