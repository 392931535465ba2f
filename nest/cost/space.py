"""The plan space: which replicas, micro-batches, strategies, runtimes exist.

These are counting rules only; whether a plan fits memory is
decided by the cost terms.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations
from typing import Any, NamedTuple

from msgspec.structs import replace

from nest.cost.axes import AXES, EXPERT_AXIS, RANK_AXES
from nest.cost.rules import get_rules
from nest.cost.schedules import schedule_of
from nest.ir.plan import (
    COST_AXES,
    OVERLAP,
    RECOMPUTE,
    Overlap,
    Plan,
    Strategy,
)
from nest.ir.problem import Problem
from nest.units import ceil_div


class BatchSplit(NamedTuple):
    """One choice of replicas and micro-batch.

    Attributes
    ----------
    replicas, micro_batch
        ``R`` and ``B``.
    num_micro_batches
        ``M``, per replica.
    devices
        Devices one replica may use, ``P = ⌊N/R⌋``.
    """

    replicas: int
    micro_batch: int
    num_micro_batches: int
    devices: int


class Runtime(NamedTuple):
    """How a plan runs its stages; the defaults are what every job allows.

    Attributes
    ----------
    virtual_stages
        Chunks ``v`` per block of devices; above 1 interleaved.
    overlap
        Communication that runs behind computation.
    distributed_optimizer
        Whether the optimiser is sharded over replicas too.
    """

    virtual_stages: int = 1
    overlap: frozenset[Overlap] = frozenset()
    distributed_optimizer: bool = False


#: What every solver searches.
PLAIN = Runtime()


def runtime_of(plan: Plan) -> Runtime:
    """Return how a plan runs its stages."""
    return Runtime(
        plan.virtual_stages,
        frozenset(plan.overlap),
        plan.distributed_optimizer,
    )


def runtimes(problem: Problem) -> list[Runtime]:
    """Return every runtime that the job allows, the plainest first."""
    job = problem.job
    names = [name for name in OVERLAP if name in job.overlap]
    return [
        Runtime(virtual, frozenset(overlap), distributed)
        for virtual in sorted(job.virtual_stages)
        for distributed in sorted({False, job.distributed_optimizer})
        for size in range(len(names) + 1)
        for overlap in combinations(names, size)
    ]


def why_not_runtime(
    problem: Problem, plan: Plan, num_micro_batches: int
) -> str | None:
    """Return which counting rule forbids how a plan runs, or ``None``."""
    job, virtual = problem.job, plan.virtual_stages
    if virtual not in job.virtual_stages:
        return (
            f"virtual_stages: expected one of {list(job.virtual_stages)}, "
            f"got {virtual}"
        )
    schedule = schedule_of(job.schedule, virtual)
    reason = schedule.why_not(plan.num_blocks, num_micro_batches)
    if reason is not None:
        return reason
    for name in plan.overlap:
        if name not in job.overlap:
            allowed = [str(x) for x in OVERLAP if x in job.overlap] or "none"
            return (
                f"overlap: expected what the job allows ({allowed}), "
                f"got {name!r}"
            )
    if plan.distributed_optimizer:
        if not job.distributed_optimizer:
            return (
                "distributed_optimizer: expected false, as the job does not "
                "allow it, got true"
            )
        for number, stage in enumerate(plan.stages, 1):
            zero = max(strategy.zero for strategy in stage.layer_strategies)
            if zero > 1:
                return (
                    f"distributed_optimizer: expected zero 0 or 1 in every "
                    f"strategy, got {zero} in stage {number}"
                )
    return None


def why_not_split(
    problem: Problem, replicas: int, micro_batch: int
) -> str | None:
    """Return which counting rule forbids ``(R, B)``, or ``None``."""
    job, num_devices = problem.job, problem.cluster.num_devices
    if micro_batch not in job.micro_batches:
        return (
            f"micro_batch: expected one of {list(job.micro_batches)}, "
            f"got {micro_batch}"
        )
    if job.replicas is not None and replicas not in job.replicas:
        return (
            f"replicas: expected one of {list(job.replicas)}, got {replicas}"
        )
    if replicas > num_devices:
        return (
            f"replicas: expected at most one per device ({num_devices}), "
            f"got {replicas}"
        )
    if not job.uneven_batches and job.global_batch % (replicas * micro_batch):
        return (
            f"replicas: expected replicas * micro_batch to divide the global "
            f"batch {job.global_batch}, got {replicas} * {micro_batch}"
        )
    return None


def make_split(
    problem: Problem, replicas: int, micro_batch: int
) -> BatchSplit:
    """Return the case of a legal ``(R, B)``."""
    return BatchSplit(
        replicas,
        micro_batch,
        ceil_div(problem.job.global_batch, replicas * micro_batch),
        problem.cluster.num_devices // replicas,
    )


def batch_splits(problem: Problem) -> list[BatchSplit]:
    """Return every legal ``(R, B)``, ordered by ``R`` and then ``B``."""
    return [
        make_split(problem, replicas, micro_batch)
        for replicas in range(1, problem.cluster.num_devices + 1)
        for micro_batch in sorted(problem.job.micro_batches)
        if why_not_split(problem, replicas, micro_batch) is None
    ]


def why_not_stages(
    problem: Problem, plan: Plan, num_micro_batches: int
) -> str | None:
    """Return which rule of job or preset forbids the stages, or ``None``."""
    allowed = problem.job.pipeline_parallel
    if allowed is not None and plan.num_blocks not in allowed:
        return (
            f"stages: expected one of {list(allowed)} as their number, "
            f"got {plan.num_blocks}"
        )
    rules = get_rules(problem.preset)
    return rules.why_not_stages(plan, num_micro_batches)


def why_not_strategy(
    problem: Problem, strategy: Strategy, micro_batch: int
) -> str | None:
    """Return which counting rule forbids a strategy, or ``None``."""
    job = problem.job
    reason = get_rules(problem.preset).why_not_data_degree(
        problem, strategy.dp, micro_batch
    )
    if reason is not None:
        return reason
    limits = [(axis.name, getattr(job, axis.field)) for axis in AXES]
    for field, allowed in (
        *limits,
        ("zero", job.zero),
        ("recompute", job.recompute),
    ):
        value = getattr(strategy, field)
        if allowed is not None and value not in allowed:
            return f"{field}: expected one of {list(allowed)}, got {value!r}"
    return None


def strategies(problem: Problem, micro_batch: int) -> list[Strategy]:
    """Return the distinct strategies that a stage may use, in a fixed order.

    A strategy is listed if at least one layer kind has a cost for it. On a
    single data rank all ZeRO stages are the same plan; only the lowest
    allowed one is listed.
    """
    keys = {
        cost.key: None
        for kind in problem.graph.kinds
        for cost in kind.costs
        if cost.samples <= micro_batch
    }
    found = [
        strategy
        for *degrees, samples in sorted(keys)
        for strategy in _expand(
            problem,
            micro_batch,
            samples,
            dict(zip(COST_AXES, degrees, strict=True)),
        )
    ]
    return sorted(found, key=lambda s: (s.devices, s))


def _expand(
    problem: Problem, micro_batch: int, samples: int, degrees: dict[str, Any]
) -> Iterator[Strategy]:
    """Yield the strategies that a cost entry stands for."""
    job, num_devices = problem.job, problem.cluster.num_devices
    devices = math.prod(degrees.get(axis.name, 1) for axis in RANK_AXES)
    for dp in get_rules(problem.preset).data_degrees(
        problem, micro_batch, samples, devices
    ):
        if devices * dp > num_devices or _experts_left(dp, degrees):
            continue
        spread = Strategy(dp=dp, **degrees)
        zero_stages = sorted(job.zero)
        if spread.data_ranks == 1:
            zero_stages = zero_stages[:1]
        for zero in zero_stages:
            for recompute in RECOMPUTE:
                strategy = replace(spread, zero=zero, recompute=recompute)
                if why_not_strategy(problem, strategy, micro_batch) is None:
                    yield strategy


def _experts_left(dp: int, degrees: dict[str, Any]) -> int:
    """Return what is left of the data ranks when experts are spread."""
    ranks = Strategy(dp=dp, **{**degrees, EXPERT_AXIS.name: 1}).data_ranks
    return ranks % int(degrees[EXPERT_AXIS.name])


def max_stages(problem: Problem, case: BatchSplit) -> int:
    """Return the most stages a plan can have: one layer and device each."""
    return min(len(problem.graph.layers), case.devices)


def stage_counts(problem: Problem, case: BatchSplit) -> list[int]:
    """Return the numbers of stages that a plan can have, ascending."""
    allowed = problem.job.pipeline_parallel
    return [
        count
        for count in range(1, max_stages(problem, case) + 1)
        if allowed is None or count in allowed
    ]


def is_uniform(problem: Problem) -> bool:
    """Whether all stages of a plan must share one strategy."""
    return get_rules(problem.preset).one_strategy
