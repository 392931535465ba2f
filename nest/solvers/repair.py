"""Make a plan that exceeds the memory fit, as a planner's users would.

A planner whose memory model differs from the shared one may hand in a plan that does
not fit. Its users would turn on more recomputation, shard more, or shrink the
micro-batch, and keep the rest; :func:`repair` does that and says what it did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import msgspec

from nest.cost.score import Score, score
from nest.cost.space import is_uniform
from nest.errors import InvalidPlanError
from nest.ir.plan import RECOMPUTE, Plan, Stage, Strategy
from nest.ir.problem import Problem
from nest.solvers.base import Status
from nest.solvers.result import Verdict

Change = Callable[[Strategy], Strategy]


def repair(problem: Problem, verdict: Verdict, remedies: Sequence[str]) -> Verdict:
    """Return the verdict on the plan that fits, or say that none was found.

    ``remedies`` (of ``recompute``, ``zero`` and ``micro_batch``) are applied one after
    the other to the plan of a verdict OVER_MEMORY, each to the stages that do not fit
    (to all, where a preset wants them alike), the mildest form first, until everything
    fits. One that is not legal for a stage, or saves it nothing, is left out there.
    """
    assert verdict.plan is not None
    assert verdict.score is not None
    plan, found = verdict.plan, verdict.score
    done: list[str] = []
    for remedy in remedies:
        for name, changed in _REMEDIES[remedy](problem, plan):
            better = _apply(problem, plan, found, changed)
            if better is None:
                continue
            plan, found = better
            done.append(name)
            if found.feasible:
                text = f"repaired: {', '.join(done)}"
                return replace(
                    verdict,
                    status=Status.FEASIBLE,
                    plan=plan,
                    score=found,
                    over_memory_bytes=None,
                    detail=f"{text} (was {verdict.detail})",
                    extra={**verdict.extra, "repair": done},
                )
    tried = ", ".join(done) or "no remedy helps"
    return replace(verdict, detail=f"{verdict.detail}; could not be repaired: {tried}")


def _apply(
    problem: Problem, plan: Plan, found: Score, changed: Plan | Change
) -> tuple[Plan, Score] | None:
    """Return the changed plan and its score, ``None`` if nothing is gained."""
    if isinstance(changed, Plan):
        return _if_smaller(problem, changed, found)
    if is_uniform(problem):
        stages = tuple(_changed(stage, changed) for stage in plan.stages)
        uniform = msgspec.structs.replace(plan, stages=stages)
        return _if_smaller(problem, uniform, found)
    capacity = problem.cluster.memory_bytes()
    gained = False
    for number in range(len(plan.stages)):
        block = found.blocks[plan.block_of(number)]
        if block.memory_bytes <= capacity:
            continue
        stage = plan.stages[number]
        new = _changed(stage, changed)
        if new == stage:
            continue
        stages = (*plan.stages[:number], new, *plan.stages[number + 1 :])
        better = _scored(problem, msgspec.structs.replace(plan, stages=stages))
        if better is None:
            continue
        before = found.blocks[plan.block_of(number)].memory_bytes
        after = better[1].blocks[plan.block_of(number)].memory_bytes
        if after < before:
            plan, found = better
            gained = True
    return (plan, found) if gained else None


def _scored(problem: Problem, plan: Plan) -> tuple[Plan, Score] | None:
    try:
        return plan, score(problem, plan)
    except InvalidPlanError:
        return None


def _if_smaller(
    problem: Problem, plan: Plan, found: Score
) -> tuple[Plan, Score] | None:
    """Return a plan and its score if its fullest device holds less."""
    better = _scored(problem, plan)
    if better is None or _most_bytes(better[1]) >= _most_bytes(found):
        return None
    return better


def _most_bytes(found: Score) -> int:
    return max(block.memory_bytes for block in found.blocks)


def _changed(stage: Stage, change: Change) -> Stage:
    return Stage.of(stage.layers, tuple(map(change, stage.layer_strategies)))


def _more_recompute(problem: Problem, plan: Plan) -> Iterator[tuple[str, Change]]:
    for rank, choice in enumerate(RECOMPUTE):
        if choice in problem.job.recompute and rank:

            def change(old: Strategy, rank: int = rank) -> Strategy:
                if RECOMPUTE.index(old.recompute) >= rank:
                    return old
                return msgspec.structs.replace(old, recompute=RECOMPUTE[rank])

            yield f"recompute {choice}", change


def _more_zero(problem: Problem, plan: Plan) -> Iterator[tuple[str, Change]]:
    for zero in sorted(problem.job.zero):
        if zero:

            def change(old: Strategy, zero: int = zero) -> Strategy:
                if old.zero >= zero or not old.shares_weights:
                    return old
                return msgspec.structs.replace(old, zero=zero)

            yield f"zero {zero}", change


def _smaller_micro_batch(problem: Problem, plan: Plan) -> Iterator[tuple[str, Plan]]:
    for micro_batch in sorted(problem.job.micro_batches, reverse=True):
        if micro_batch < plan.micro_batch:
            yield (
                f"micro-batch {micro_batch}",
                msgspec.structs.replace(plan, micro_batch=micro_batch),
            )


_Remedy = Callable[[Problem, Plan], Iterator[tuple[str, Plan | Change]]]

_REMEDIES: dict[str, _Remedy] = {
    "recompute": _more_recompute,
    "zero": _more_zero,
    "micro_batch": _smaller_micro_batch,
}
