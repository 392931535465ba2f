"""The plan space: which replicas, micro-batches, strategies, runtimes exist.

These are counting rules only; whether a plan fits memory is decided by the cost terms.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import combinations
from typing import Any, Literal, NamedTuple

from msgspec.structs import replace

from nest.cost.axes import AXES, EXPERT_TENSOR_AXIS, RANK_AXES, degree_of
from nest.cost.orders import plan_schedule, why_not_order, why_not_split_passes
from nest.cost.rules import get_rules
from nest.cost.schedules import LISTED
from nest.ir.job import SHARED, Job, OverlapNeed
from nest.ir.plan import COST_AXES, OVERLAP, RECOMPUTE, Overlap, Plan, Stage, Strategy
from nest.ir.problem import Problem
from nest.units import ceil_div


class BatchSplit(NamedTuple):
    """One choice of replicas and micro-batch.

    ``R`` replicas run ``M`` micro-batches of ``B`` samples each, and each replica may
    use ``P = ⌊N/R⌋`` devices.
    """

    replicas: int
    micro_batch: int
    num_micro_batches: int
    devices: int


class Runtime(NamedTuple):
    """How a plan runs its stages; the defaults are what every job allows.

    There are ``v`` chunks per block of devices; above 1 the plan is interleaved.
    ``overlap`` is communication that runs behind computation; a distributed optimizer
    is sharded over replicas too.
    """

    virtual_stages: int = 1
    overlap: frozenset[Overlap] = frozenset()
    distributed_optimizer: bool = False

    @property
    def named_overlap(self) -> tuple[Overlap, ...]:
        """What overlaps, in the order of plans."""
        return tuple(name for name in OVERLAP if name in self.overlap)

    def strategies(self, problem: Problem, micro_batch: int) -> list[Strategy]:
        """Return all strategies that can run so.

        With the distributed optimizer ZeRO 0 and 1 are the same plan; the lowest one
        allowed stands for both, unless it matters to a rule which one it is.
        """
        runnable = [
            strategy
            for strategy in strategies(problem, micro_batch)
            if why_not_overlap(problem, strategy, self.overlap) is None
        ]
        if not self.distributed_optimizer:
            return runnable
        zero = {min(problem.job.zero)}
        if zero_is_named(problem):
            zero = {*problem.job.zero}
        return [s for s in runnable if s.zero in zero and s.zero <= 1]


#: What every job allows.
PLAIN = Runtime()

#: Overlap that no plan is better without, see :func:`leading_runtimes`.
ALWAYS: frozenset[Overlap] = frozenset(("tp", "cp", "ep"))


def runtime_of(plan: Plan) -> Runtime:
    """Return how a plan runs its stages."""
    return Runtime(
        plan.virtual_stages, frozenset(plan.overlap), plan.distributed_optimizer
    )


def overlap_needs(
    problem: Problem, overlap: Collection[Overlap]
) -> dict[OverlapNeed, Overlap]:
    """Return what is needed for such overlap, and what needs it."""
    needs = problem.job.overlap_needs
    return {
        need: name
        for name in OVERLAP
        if name in overlap
        for need in needs.get(name, ())
    }


def why_not_overlap(
    problem: Problem, strategy: Strategy, overlap: Collection[Overlap]
) -> OverlapNeed | None:
    """Return what a strategy lacks for such overlap, or ``None``."""
    needs = overlap_needs(problem, overlap)
    split = problem.job.splits_sequence(strategy)
    if "sequence_parallel" in needs and strategy.tp > 1 and not split:
        return "sequence_parallel"
    if "no-full-recompute" in needs and strategy.recompute == "full":
        return "no-full-recompute"
    return None


def always_overlap(problem: Problem) -> frozenset[Overlap]:
    """Return what overlaps in some best plan whatever else it has.

    What needs something that a plan may lack is no part of it.
    """
    job = problem.job
    lacking = {"interleaving", "gradients"}
    if "full" in job.recompute:
        lacking.add("no-full-recompute")
    if job.sequence_parallel not in (True, (True,)):
        lacking.add("sequence_parallel")
    return frozenset(
        name
        for name in ALWAYS.intersection(job.overlap)
        if not lacking.intersection(job.overlap_needs.get(name, ()))
    )


def runtimes(problem: Problem) -> list[Runtime]:
    """Return every runtime that the job allows, the plainest first."""
    job = problem.job
    names = [name for name in OVERLAP if name in job.overlap]
    return [
        Runtime(virtual, frozenset(overlap), distributed)
        for virtual in sorted(job.chunk_counts)
        for distributed in sorted({False, job.distributed_optimizer})
        for size in range(len(names) + 1)
        for overlap in combinations(names, size)
        if "gradients" in overlap or "gradients" not in overlap_needs(problem, overlap)
    ]


def leading_runtimes(problem: Problem) -> list[Runtime]:
    """Return runtimes one of which every best plan can have.

    Interleaved ones apart; the one with most overlap first. Hiding the collectives of
    one more axis takes nothing from a layer's pass but time, as its terms are rounded
    together. Behind a shorter backward pass less of the gradient sync hides: by no more
    quanta than the pass got shorter, which counts in the step at least once.
    ``weights`` and ``gradients`` are rounded otherwise where they hide nothing, so with
    and without are both left; so are they of what needs something by ``overlap_needs``.
    """
    always = always_overlap(problem)
    leading = [
        runtime
        for runtime in runtimes(problem)
        if runtime.virtual_stages == 1 and runtime.overlap >= always
    ]
    return sorted(leading, key=lambda x: (-len(x.overlap), not x.distributed_optimizer))


def why_not_runtime(problem: Problem, plan: Plan, num_micro_batches: int) -> str | None:
    """Return which counting rule forbids how a plan runs, or ``None``."""
    job, virtual = problem.job, plan.virtual_stages
    if virtual not in job.chunk_counts:
        return (
            f"virtual_stages: expected one of {list(job.chunk_counts)}, got {virtual}"
        )
    if (reason := why_not_order(problem.job, plan)) is not None:
        return reason
    schedule = plan_schedule(problem.job, plan, num_micro_batches)
    if plan.placement != schedule.placement:
        return (
            f"placement: expected {schedule.placement!r} under schedule "
            f"{schedule.name!r}, got {plan.placement!r}"
        )
    reason = schedule.why_not(plan.num_blocks, num_micro_batches)
    if reason is not None:
        return reason
    for name in plan.overlap:
        if name not in job.overlap:
            allowed = [str(x) for x in OVERLAP if x in job.overlap] or "none"
            return f"overlap: expected what the job allows ({allowed}), got {name!r}"
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


class SplitRule(NamedTuple):
    """A counting rule about replicas and micro-batch.

    It is about ``micro_batch``, ``replicas``, or ``samples``, the product of both.
    ``keeps`` says whether a number keeps it; if ``samples`` do, so do their divisors.
    ``expected`` says what it asks for, for messages.
    """

    about: Literal["micro_batch", "replicas", "samples"]
    keeps: Callable[[int], bool]
    expected: Callable[[], str]


def fills_batches(job: Job, samples: int) -> bool:
    """Whether steps of so many samples at once leave no rest of a batch."""
    return job.uneven_batches or job.global_batch % samples == 0


def _split_rules(problem: Problem) -> Iterator[SplitRule]:
    """Yield the rules that the job has, in the order of messages."""
    job, num_devices = problem.job, problem.cluster.num_devices
    yield SplitRule(
        "micro_batch",
        frozenset(job.micro_batches).__contains__,
        lambda: f"one of {list(job.micro_batches)}",
    )
    if job.replicas is not None:
        allowed = job.replicas
        yield SplitRule(
            "replicas",
            frozenset(allowed).__contains__,
            lambda: f"one of {list(allowed)}",
        )
    yield SplitRule(
        "replicas",
        num_devices.__ge__,
        lambda: f"at most one per device ({num_devices})",
    )
    yield SplitRule(
        "samples",
        partial(fills_batches, job),
        lambda: f"replicas * micro_batch to divide the global batch {job.global_batch}",
    )
    if not job.idle_devices:
        yield SplitRule(
            "replicas",
            lambda replicas: num_devices % replicas == 0,
            lambda: f"a divisor of the {num_devices} devices, as none may idle",
        )


def why_not_split(problem: Problem, replicas: int, micro_batch: int) -> str | None:
    """Return which counting rule forbids ``(R, B)``, or ``None``."""
    numbers = {
        "micro_batch": micro_batch,
        "replicas": replicas,
        "samples": replicas * micro_batch,
    }
    for about, keeps, expected in _split_rules(problem):
        if not keeps(numbers[about]):
            field, got = about, str(numbers[about])
            if about == "samples":
                field, got = "replicas", f"{replicas} * {micro_batch}"
            return f"{field}: expected {expected()}, got {got}"
    return None


def make_split(problem: Problem, replicas: int, micro_batch: int) -> BatchSplit:
    """Return the case of a legal ``(R, B)``."""
    return BatchSplit(
        replicas,
        micro_batch,
        ceil_div(problem.job.global_batch, replicas * micro_batch),
        problem.cluster.num_devices // replicas,
    )


def batch_splits(problem: Problem) -> list[BatchSplit]:
    """Return every legal ``(R, B)``, ordered by ``R`` and then ``B``.

    Those that :func:`why_not_split` has nothing against, without asking it
    about every pair: factors of what fills no batch are left out at once.
    """
    job, num_devices = problem.job, problem.cluster.num_devices
    rules = [*_split_rules(problem)]

    def kept(about: str, numbers: Iterable[int]) -> Iterable[int]:
        for rule in rules:
            if rule.about == about:
                numbers = filter(rule.keeps, numbers)
        return numbers

    every = range(1, num_devices + 1)
    counts = sorted(every if job.replicas is None else job.replicas)
    counts = [*kept("replicas", kept("samples", counts))]
    sizes = [*kept("micro_batch", kept("samples", sorted(job.micro_batches)))]
    return [
        make_split(problem, replicas, samples // replicas)
        for replicas in counts
        for samples in kept("samples", [replicas * size for size in sizes])
    ]


def why_not_stages(problem: Problem, plan: Plan, num_micro_batches: int) -> str | None:
    """Return which rule of job or preset forbids the stages, or ``None``."""
    allowed = problem.job.pipeline_parallel
    if allowed is not None and plan.num_blocks not in allowed:
        return (
            f"stages: expected one of {list(allowed)} as their number, "
            f"got {plan.num_blocks}"
        )
    breach = next(breaches(problem, plan, num_micro_batches), None)
    if breach is not None:
        return str(breach)
    reason = why_not_split_passes(problem.job, plan, num_micro_batches)
    rules = get_rules(problem.preset)
    return reason or rules.why_not_stages(plan, num_micro_batches)


class Breach(NamedTuple):
    """What a plan has that a rule about whole plans forbids.

    ``rule`` is the field of the job that states the rule, ``expected`` what it asks for
    at this place of the plan.
    """

    rule: str
    place: str
    value: str
    expected: str

    def __str__(self) -> str:
        return f"{self.place}: expected {self.expected}, got {self.value}"


def breaches(problem: Problem, plan: Plan, num_micro_batches: int) -> Iterator[Breach]:
    """Yield what the stages of a plan have that the job's rules forbid.

    Those of ``uniform``, ``even_layers``, ``one_stage``, ``idle_devices``,
    ``zero_with``, ``sharded_with``, ``overlap_needs`` and
    ``micro_batch_count``; one per stage and rule at most.
    """
    job = problem.job
    first = plan.stages[0].layer_strategies[0]
    for index, stage in enumerate(plan.stages, 1):
        for field in shared_fields(job.uniform):
            value = getattr(first, field)
            for strategy in stage.layer_strategies:
                if getattr(strategy, field) != value:
                    yield Breach(
                        "uniform",
                        f"stage {index}",
                        f"{field}={getattr(strategy, field)}",
                        f"{field}={value} as in stage 1, as all stages share it",
                    )
                    break
        for where, zero, allowed in _zero_rules(problem, plan, stage):
            if zero not in allowed:
                yield Breach(
                    "zero_with",
                    f"stage {index}",
                    f"zero={zero}",
                    f"zero to be one of {list(allowed)} with several {_SEVERAL[where]}",
                )
                break
        for strategy in stage.layer_strategies:
            asks = why_sharded(problem, strategy, plan.num_blocks)
            if asks is not None and not is_sharded(strategy):
                yield Breach(
                    "sharded_with",
                    f"stage {index}",
                    _shown(strategy),
                    f"{_SHARDED} with several {_SEVERAL[asks]}",
                )
                break
        for strategy in stage.layer_strategies:
            lacks = why_not_overlap(problem, strategy, plan.overlap)
            if lacks is not None:
                yield _overlap_breach(problem, plan, lacks, f"stage {index}")
                break
    yield from _overlaps_alone(problem, plan)
    if job.even_layers:
        yield from _uneven(problem, plan)
    yield from _parted(problem, plan)
    used = plan.replicas * plan.devices_used
    if not job.idle_devices and used != problem.cluster.num_devices:
        yield Breach(
            "idle_devices",
            "stages",
            str(used),
            f"all {problem.cluster.num_devices} devices in use",
        )
    blocks = plan.num_blocks
    if not _suits(problem, blocks, num_micro_batches):
        enough = f"a multiple of {blocks}"
        if job.micro_batch_count == "at-least-stages":
            enough = f"at least {blocks}"
        yield Breach(
            "micro_batch_count",
            "stages",
            str(num_micro_batches),
            f"{enough} micro-batches with {blocks} stages",
        )


def _overlap_breach(
    problem: Problem, plan: Plan, lacks: OverlapNeed, without: str = ""
) -> Breach:
    """Return the breach of a plan that lacks what an overlap needs."""
    name = overlap_needs(problem, plan.overlap)[lacks]
    got = {
        "interleaving": f"{plan.num_blocks} stages of one chunk",
        "sequence_parallel": f"{without} without",
        "no-full-recompute": f"{without} with it",
        "gradients": "it without",
    }[lacks]
    return Breach("overlap_needs", "overlap", got, f"{name} only {_NEEDED[lacks]}")


def _overlaps_alone(problem: Problem, plan: Plan) -> Iterator[Breach]:
    """Yield what a plan as a whole lacks for its overlap."""
    needs = overlap_needs(problem, plan.overlap)
    lacks: dict[OverlapNeed, bool] = {
        "interleaving": plan.num_blocks > 1 and plan.virtual_stages == 1,
        "gradients": "gradients" not in plan.overlap,
    }
    for need, lacking in lacks.items():
        if need in needs and lacking:
            yield _overlap_breach(problem, plan, need)


#: What an overlap needs, for messages.
_NEEDED: dict[OverlapNeed, str] = {
    "interleaving": "with virtual_stages > 1 if there are several stages",
    "sequence_parallel": "with sequence parallelism where tp > 1",
    "no-full-recompute": "without full recomputation",
    "gradients": "together with gradients",
}
#: What there are several of, for messages.
_SEVERAL = {
    "r": "replicas",
    "pp": "stages",
    "cp": "context ranks",
    "tp": "tensor ranks",
    "ep": "expert ranks",
}
_SHARDED = "zero to be 2 or 3 over several data or context ranks"


def _shown(strategy: Strategy) -> str:
    return f"zero={strategy.zero} over {strategy.data_ranks}"


def is_sharded(strategy: Strategy) -> bool:
    """Whether a layer's gradients are sharded over other ranks."""
    return strategy.zero >= 2 and strategy.data_ranks > 1


def why_sharded(
    problem: Problem, strategy: Strategy, num_blocks: int = 1
) -> str | None:
    """Return what asks for sharded gradients by ``sharded_with``, if any."""
    count = {"tp": strategy.tp, "ep": strategy.ep, "pp": num_blocks}
    return next((x for x in problem.job.sharded_with if count[x] > 1), None)


def _zero_rules(
    problem: Problem, plan: Plan, stage: Stage
) -> Iterator[tuple[str, int, tuple[int, ...]]]:
    """Yield where ``zero_with`` has a rule, with ZeRO stage and rule."""
    for where, allowed in problem.job.zero_with.items():
        for strategy in stage.layer_strategies:
            count = {"r": plan.replicas, "pp": plan.num_blocks, "cp": strategy.cp}[
                where
            ]
            if count > 1:
                yield where, strategy.zero, allowed


def repeated_kinds(problem: Problem) -> dict[str, int]:
    """Return how many layers the kinds have that occur more than once."""
    count = Counter(layer.kind for layer in problem.graph.layers)
    return {kind: number for kind, number in count.items() if number > 1}


def _uneven(problem: Problem, plan: Plan) -> Iterator[Breach]:
    """Yield where stages do not have equal shares of a kind."""
    index, layers = problem.graph.index, problem.graph.layers
    stages = len(plan.stages)
    for number, stage in enumerate(plan.stages, 1):
        has = Counter(layers[index[str(x)]].kind for x in stage.layers)
        for kind, total in repeated_kinds(problem).items():
            if has[kind] * stages != total:
                yield Breach(
                    "even_layers",
                    f"stage {number}",
                    str(has[kind]),
                    f"{total}/{stages} layers of kind {kind!r}, as all "
                    f"stages have as many",
                )


def timed_by_passes(job: Job) -> bool:
    """Whether all plans of a job are timed pass by pass."""
    return job.plans_order_passes or job.schedule in LISTED


def virtual_stages(problem: Problem) -> list[int]:
    """Return the numbers of chunks of plans timed pass by pass, sorted."""
    allowed = sorted(problem.job.chunk_counts)
    if timed_by_passes(problem.job):
        return allowed
    return [v for v in allowed if v > 1]


def has_plain(problem: Problem) -> bool:
    """Whether there are plans whose step time has a closed form."""
    job = problem.job
    return 1 in job.virtual_stages and not timed_by_passes(job)


def undivided(problem: Problem) -> tuple[int, ...]:
    """Return the positions of the layers that no two stages may part."""
    kinds = problem.job.one_stage
    return tuple(
        position
        for position, layer in enumerate(problem.graph.layers)
        if layer.kind in kinds
    )


def _parted(problem: Problem, plan: Plan) -> Iterator[Breach]:
    """Yield the first stage that has some of ``one_stage``, not all."""
    together = {*undivided(problem)}
    if not together:
        return
    index = problem.graph.index
    for number, stage in enumerate(plan.stages, 1):
        has = together & {index[str(name)] for name in stage.layers}
        if has and has != together:
            yield Breach(
                "one_stage",
                f"stage {number}",
                str(len(has)),
                f"all {len(together)} layers of kind "
                f"{' or '.join(map(repr, problem.job.one_stage))}, or none",
            )
            return


def _suits(problem: Problem, num_stages: int, num_micro_batches: int) -> bool:
    """Whether so many stages may have so many micro-batches."""
    match problem.job.micro_batch_count:
        case "at-least-stages":
            return num_micro_batches >= num_stages
        case "multiple-of-stages":
            return num_micro_batches % num_stages == 0
    return True


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
    axes = (*AXES, EXPERT_TENSOR_AXIS)
    limits = [(axis.name, getattr(job, axis.field)) for axis in axes]
    for field, allowed in (*limits, ("zero", job.zero), ("recompute", job.recompute)):
        value = degree_of(strategy, field)
        if allowed is not None and value not in allowed:
            return f"{field}: expected one of {list(allowed)}, got {value!r}"
    split, choices = strategy.sequence_parallel, job.sequence_choices
    if split not in choices(strategy.tp):
        expected = str(not split).lower()
        if job.plans_split_sequences:
            why = "which is all that the job allows with tp > 1"
        else:
            why = "as the job decides it for all plans"
        return (
            f"sequence_parallel: expected {expected}, {why}, got {str(split).lower()}"
        )
    with_others = job.zero_with.get("cp", job.zero)
    if strategy.cp > 1 and strategy.zero not in with_others:
        return (
            f"zero: expected one of {list(with_others)} with several "
            f"{_SEVERAL['cp']}, got {strategy.zero}"
        )
    asks = why_sharded(problem, strategy)
    if asks is not None and not is_sharded(strategy):
        return (
            f"expected {_SHARDED} with several {_SEVERAL[asks]}, got {_shown(strategy)}"
        )
    return None


def strategies(problem: Problem, micro_batch: int) -> list[Strategy]:
    """Return the distinct strategies that a stage may use, in a fixed order.

    A strategy is listed if at least one layer kind has a cost for it. Where no ranks
    share weights all ZeRO stages are the same plan; only the lowest
    allowed one is listed, unless it matters to a rule which one it is.
    """
    keys = {
        cost.key: None
        for kind in problem.graph.kinds
        for cost in kind.costs
        if cost.samples <= micro_batch
    }
    allowed = [
        strategy
        for *degrees, samples in sorted(keys)
        for strategy in _expand(
            problem, micro_batch, samples, dict(zip(COST_AXES, degrees, strict=True))
        )
    ]
    return sorted(allowed, key=lambda s: (s.devices, s))


def zero_is_named(problem: Problem) -> bool:
    """Whether a rule is about which ZeRO stage it is where all are alike.

    Others may have to share it.
    """
    return bool(problem.job.zero_with) or "zero" in problem.job.uniform


def _expand(
    problem: Problem, micro_batch: int, samples: int, degrees: dict[str, Any]
) -> Iterator[Strategy]:
    """Yield the strategies that a cost entry stands for."""
    job, num_devices = problem.job, problem.cluster.num_devices
    named = zero_is_named(problem)
    devices = math.prod(degrees.get(axis.name, 1) for axis in RANK_AXES)
    for dp in get_rules(problem.preset).data_degrees(
        problem, micro_batch, samples, devices
    ):
        if devices * dp > num_devices or _experts_left(dp, degrees):
            continue
        spread = Strategy(dp=dp, **degrees)
        zero_stages = sorted(job.zero)
        if not (spread.shares_weights or named):
            zero_stages = zero_stages[:1]
        for zero in zero_stages:
            for recompute in RECOMPUTE:
                strategy = replace(spread, zero=zero, recompute=recompute)
                if why_not_strategy(problem, strategy, micro_batch) is None:
                    yield strategy


def _experts_left(dp: int, degrees: dict[str, Any]) -> int:
    """Return what is left of the data ranks when experts are spread."""
    whole = Strategy(dp=dp, **{**degrees, "ep": 1})
    return whole.expert_ranks % int(degrees["ep"])


def max_stages(problem: Problem, case: BatchSplit) -> int:
    """Return the most stages a plan can have: one layer and device each."""
    return min(len(problem.graph.layers), case.devices)


def stage_counts(
    problem: Problem, case: BatchSplit, virtual_stages: int = 1
) -> list[int]:
    """Return the numbers of stages that a plan can have, ascending.

    Of blocks, where there are so many ``virtual_stages`` in each.
    """
    allowed = problem.job.pipeline_parallel
    limit = min(len(problem.graph.layers) // virtual_stages, max_stages(problem, case))
    repeated: tuple[int, ...] = ()
    if problem.job.even_layers:
        repeated = tuple(repeated_kinds(problem).values())
    return [
        count
        for count in range(1, limit + 1)
        if (allowed is None or count in allowed)
        and _suits(problem, count, case.num_micro_batches)
        and all(layers % (count * virtual_stages) == 0 for layers in repeated)
    ]


class Family(NamedTuple):
    """Plans of one ``(R, B)`` whose stages may mix some strategies.

    Every stage, or layer, may choose from the strategies. ``stage_counts`` are numbers
    of stages (of blocks, where plans are interleaved).
    """

    strategies: tuple[Strategy, ...]
    stage_counts: tuple[int, ...]


def uniform_fields(problem: Problem) -> tuple[str, ...]:
    """Return the fields of strategies that all layers of a plan share."""
    if get_rules(problem.preset).one_strategy:
        return SHARED
    return problem.job.uniform


def shared_fields(names: Iterable[str]) -> Iterator[str]:
    """Yield the fields that names of ``uniform`` stand for: ``ep`` is two."""
    for name in names:
        yield name
        if name == "ep":
            yield "etp"


def is_single(problem: Problem) -> bool:
    """Whether all layers of a plan share one strategy."""
    fields = {"dp", "tp", "cp", "ep", "zero", "recompute"}
    if problem.job.plans_split_sequences:
        fields.add("sequence_parallel")
    return fields <= {*uniform_fields(problem)}


def families(
    problem: Problem,
    case: BatchSplit,
    runnable: Sequence[Strategy],
    runtime: Runtime = PLAIN,
) -> list[Family]:
    """Return the families of a case; every plan belongs to one of them.

    ``runnable`` are the strategies for ``B`` that can run so, see
    :meth:`Runtime.strategies`.
    """
    job, shared = problem.job, uniform_fields(problem)
    counts = stage_counts(problem, case, runtime.virtual_stages)
    if runtime.virtual_stages == 1 and (
        "interleaving" in overlap_needs(problem, runtime.overlap)
    ):
        counts = [count for count in counts if count == 1]
    zero = job.zero_with.get("r", job.zero) if case.replicas > 1 else job.zero
    groups: dict[object, list[Strategy]] = {}
    for strategy in runnable:
        if strategy.zero in zero:
            key = tuple(getattr(strategy, name) for name in shared_fields(shared))
            groups.setdefault(key, []).append(strategy)
    result = []
    for group in groups.values():
        fit = counts
        if job.same_devices:
            max_count, rest = divmod(case.devices, group[0].devices)
            if job.idle_devices:
                fit = counts[: bisect_right(counts, max_count)]
            else:
                fit = [max_count] if max_count in counts and not rest else []
        with_others = job.zero_with.get("pp", job.zero)
        apart = "pp" in job.sharded_with
        staged = [
            s for s in group if s.zero in with_others and (is_sharded(s) or not apart)
        ]
        if len(staged) < len(group) and fit[:1] == [1]:
            result.append(Family(tuple(group), (1,)))
            fit = fit[1:]
        stage_sets = [(count,) for count in fit] if job.even_layers else [fit]
        result += [Family(tuple(staged), tuple(p)) for p in stage_sets if p]
    return [family for family in result if family.strategies]


def is_uniform(problem: Problem) -> bool:
    """Whether all stages of a plan must share something of a strategy."""
    return bool(uniform_fields(problem))
