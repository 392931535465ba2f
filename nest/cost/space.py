"""The plan space: which replicas, micro-batches, strategies, runtimes exist.

These are counting rules only; whether a plan fits memory is
decided by the cost terms.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

from nest.cost.presets import get_preset
from nest.cost.schedules import schedule_of
from nest.ir.plan import OVERLAP, RECOMPUTE, Overlap, Plan, Strategy
from nest.ir.problem import Problem
from nest.units import ceil_div


class Case(NamedTuple):
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


def why_not_case(
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


def make_case(problem: Problem, replicas: int, micro_batch: int) -> Case:
    """Return the case of a legal ``(R, B)``."""
    return Case(
        replicas,
        micro_batch,
        ceil_div(problem.job.global_batch, replicas * micro_batch),
        problem.cluster.num_devices // replicas,
    )


def cases(problem: Problem) -> list[Case]:
    """Return every legal ``(R, B)``, ordered by ``R`` and then ``B``."""
    return [
        make_case(problem, replicas, micro_batch)
        for replicas in range(1, problem.cluster.num_devices + 1)
        for micro_batch in sorted(problem.job.micro_batches)
        if why_not_case(problem, replicas, micro_batch) is None
    ]


def samples_per_rank(
    problem: Problem, strategy: Strategy, micro_batch: int
) -> int:
    """Return the samples that one data parallel rank runs at a time."""
    if get_preset(problem.preset).ranks_take_turns:
        return micro_batch
    return micro_batch // strategy.dp


def why_not_stages(
    problem: Problem, plan: Plan, num_micro_batches: int
) -> str | None:
    """Return which rule of job or preset forbids the stages, or ``None``."""
    preset = get_preset(problem.preset)
    allowed = problem.job.pipeline_parallel
    if allowed is not None and plan.num_blocks not in allowed:
        return (
            f"stages: expected one of {list(allowed)} as their number, "
            f"got {plan.num_blocks}"
        )
    if preset.recompute_per_layer:
        for number, stage in enumerate(plan.stages, 1):
            degrees = {(s.dp, s.tp) for s in stage.layer_strategies}
            if len(degrees) > 1:
                return (
                    f"stage {number}: expected one dp and one tp for its "
                    f"layers under preset {preset.name!r}, got (dp, tp) = "
                    f"{', '.join(map(str, sorted(degrees)))}"
                )
    if preset.ranks_take_turns:
        ranks = sum(stage.layer_strategies[0].dp for stage in plan.stages)
        if ranks > num_micro_batches:
            return (
                f"stages: expected dp to add up to at most one rank per "
                f"micro-batch ({num_micro_batches}), got {ranks}"
            )
    return None


def why_not_strategy(
    problem: Problem, strategy: Strategy, micro_batch: int
) -> str | None:
    """Return which counting rule forbids a strategy, or ``None``."""
    job = problem.job
    if get_preset(problem.preset).ranks_take_turns:
        num_micro_batches = job.global_batch // micro_batch
        if num_micro_batches % strategy.dp:
            return (
                f"dp: expected a divisor of the {num_micro_batches} "
                f"micro-batches, got {strategy.dp}"
            )
    elif micro_batch % strategy.dp:
        return (
            f"dp: expected a divisor of micro_batch {micro_batch}, "
            f"got {strategy.dp}"
        )
    for field, value, allowed in (
        ("dp", strategy.dp, job.data_parallel),
        ("tp", strategy.tp, job.tensor_parallel),
        ("cp", strategy.cp, job.context_parallel),
        ("ep", strategy.ep, job.expert_parallel),
        ("zero", strategy.zero, job.zero),
        ("recompute", strategy.recompute, job.recompute),
    ):
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
        for tp, cp, ep, samples in sorted(keys)
        for strategy in _expand(problem, micro_batch, tp, cp, ep, samples)
    ]
    return sorted(found, key=lambda s: (s.devices, s))


def _expand(
    problem: Problem,
    micro_batch: int,
    tp: int,
    cp: int,
    ep: int,
    samples: int,
) -> Iterator[Strategy]:
    if get_preset(problem.preset).ranks_take_turns:
        if samples == micro_batch:
            for dp in range(1, problem.cluster.num_devices // (tp * cp) + 1):
                yield from _expand_dp(problem, micro_batch, dp, tp, cp, ep)
        return
    dp, rest = divmod(micro_batch, samples)
    if not rest:
        yield from _expand_dp(problem, micro_batch, dp, tp, cp, ep)


def _expand_dp(
    problem: Problem, micro_batch: int, dp: int, tp: int, cp: int, ep: int
) -> Iterator[Strategy]:
    if (dp * cp) % ep or dp * tp * cp > problem.cluster.num_devices:
        return
    zero_stages = sorted(problem.job.zero)
    if dp * cp == 1:
        zero_stages = zero_stages[:1]
    for zero in zero_stages:
        for recompute in RECOMPUTE:
            strategy = Strategy(
                dp=dp, tp=tp, cp=cp, ep=ep, zero=zero, recompute=recompute
            )
            if why_not_strategy(problem, strategy, micro_batch) is None:
                yield strategy


def max_stages(problem: Problem, case: Case) -> int:
    """Return the most stages a plan can have: one layer and device each."""
    return min(len(problem.graph.layers), case.devices)


def stage_counts(problem: Problem, case: Case) -> list[int]:
    """Return the numbers of stages that a plan can have, ascending."""
    allowed = problem.job.pipeline_parallel
    return [
        count
        for count in range(1, max_stages(problem, case) + 1)
        if allowed is None or count in allowed
    ]


def is_uniform(problem: Problem) -> bool:
    """Whether all stages of a plan must share one strategy."""
    return get_preset(problem.preset).uniform
