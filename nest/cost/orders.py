"""Which order of passes a plan may have, and its schedule."""

from __future__ import annotations

from msgspec.structs import replace

from nest.cost.schedules import SCHEDULES, Schedule, schedule_of, timed_schedule
from nest.cost.schedules.ordered import read_order
from nest.ir.job import ANY_ORDER, FIXED_CHUNKS, SPLIT_BACKWARD, Job
from nest.ir.plan import NOT_SPLIT, Plan, Stage
from nest.ir.problem import Problem


def plan_schedule(job: Job, plan: Plan, num_micro_batches: int) -> Schedule:
    """Return the schedule of a plan.

    Raises ``InvalidPlanError`` if the plan lists passes that no block can run, see
    :func:`~nest.cost.schedules.ordered.read_order`.
    """
    if plan.order is None:
        return schedule_of(job.schedule, plan.virtual_stages)
    if isinstance(plan.order, str):
        return timed_schedule(plan.order, plan.virtual_stages)
    return read_order(
        *(plan.order, plan.num_blocks, plan.virtual_stages),
        *(plan.placement, num_micro_batches),
    )


def named_job(job: Job, name: str) -> Job | None:
    """Return a job of one of its schedules, which has a name.

    Without the choices that the schedule cannot have; ``None`` if nothing is left.
    """
    fixed = FIXED_CHUNKS.get(name, 1)
    recompute = job.recompute
    if name in SPLIT_BACKWARD:
        recompute = tuple(x for x in recompute if x not in NOT_SPLIT)
    if not recompute or (name != "1f1b" and fixed not in job.chunk_counts):
        return None
    chunks = job.virtual_stages if name == "1f1b" else (1,)
    return replace(job, schedule=name, recompute=recompute, virtual_stages=chunks)


def planner_job(job: Job) -> Job:
    """Return a job as planners read it that order no passes.

    Where plans order passes, it is a job of 1F1B, else of GPipe, if plans may
    have one of them; every other job stays as it is.
    """
    if not job.plans_order_passes:
        return job
    jobs = (named_job(job, x) for x in SCHEDULES if x in job.schedules)
    return next(filter(None, jobs), job)


def with_named_order(problem: Problem, plan: Plan) -> tuple[Problem, Plan]:
    """Return a plan of a named schedule under a job of that schedule.

    A plan that lists its passes, or none, is returned as it is.
    """
    if not isinstance(plan.order, str):
        return problem, plan
    job = named_job(problem.job, plan.order)
    assert job is not None
    if plan.order == "1f1b":
        job = replace(job, virtual_stages=(plan.virtual_stages,))
    return replace(problem, job=job), replace(plan, order=None)


def why_not_order(job: Job, plan: Plan) -> str | None:
    """Return why a plan may not have its kind of order, or ``None``."""
    order = plan.order
    if not job.plans_order_passes:
        if order is None:
            return None
        text = order if isinstance(order, str) else "a list of passes"
        return (
            f"order: expected none, as the job's schedule is "
            f"{job.schedule!r}, got {text}"
        )
    names = ", ".join(job.schedules)
    if not isinstance(order, str):
        if job.schedule == ANY_ORDER and order is not None:
            return None
        text = "none" if order is None else "a list of passes"
        return f"order: expected one of {names}, got {text}"
    if order not in job.schedules:
        return f"order: expected one of {names}, got {order!r}"
    chunks = job.virtual_stages
    if order != "1f1b":
        chunks = (FIXED_CHUNKS.get(order, 1),)
    if plan.virtual_stages not in chunks:
        return (
            f"virtual_stages: expected one of {list(chunks)} with order "
            f"{order!r}, got {plan.virtual_stages}"
        )
    return None


def _not_split(stage: Stage) -> str:
    """Return the first choice of a stage that passes cannot be split with."""
    used = (x.recompute for x in stage.layer_strategies)
    return next(choice for choice in used if choice in NOT_SPLIT)


def why_not_split_passes(job: Job, plan: Plan, num_micro_batches: int) -> str | None:
    """Return which chunk may not compute gradients of weights apart."""
    if not job.plans_order_passes:
        return None
    if isinstance(plan.order, str) and plan.order not in SPLIT_BACKWARD:
        return None
    schedule = plan_schedule(job, plan, num_micro_batches)
    for index, stage in enumerate(plan.stages):
        if all(x.recompute not in NOT_SPLIT for x in stage.layer_strategies):
            continue
        passes = schedule.passes(
            plan.block_of(index), plan.num_blocks, num_micro_batches
        )
        if any(x.chunk == index and x.gradients != "all" for x in passes):
            return (
                f"stage {index + 1}: expected whole backward passes, as "
                f"recompute is {_not_split(stage)!r}, got gradients of weights apart"
            )
    return None
