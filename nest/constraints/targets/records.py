"""Records of targets, the frameworks that run plans, and their files."""

from __future__ import annotations

from functools import cache
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import msgspec

from nest.errors import UnknownNameError
from nest.ir.graph import LayerCost
from nest.ir.job import (
    ANY_ORDER,
    PAIRED,
    MicroBatchCount,
    OverlapNeed,
    Schedule,
    Schedules,
    Several,
    Sharding,
    Shared,
    named_schedules,
)
from nest.ir.plan import Overlap, Recompute, Strategy
from nest.ir.problem import Problem
from nest.util.stored import read_stored

T = TypeVar("T")

#: The target of those who have none: every plan can be said.
ANY = "any"

#: Targets with a file.
NAMES = ("megatron", "torchtitan", "deepspeed", "maxtext", "accelerate")

Gradients = Literal["fp32", "bf16"]


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a file; unknown keys are refused."""


class Rule(Record, Generic[T], frozen=True):
    """What a framework can express about one property of plans."""

    #: See :class:`Rules`.
    value: T
    #: How that is known: tested, or read in which version of a package.
    source: str


class Rules(Record, frozen=True, kw_only=True):
    """The plans that a framework can express.

    ``uniform``, ``even_layers``, ``idle_devices``, ``zero_with``, ``sharded_with`` and
    ``micro_batch_count`` are as the fields of :class:`~nest.ir.job.Job`.
    """

    uniform: Rule[tuple[Shared, ...]]
    #: Degrees that are 1 there.
    single: Rule[tuple[Sharding, ...]]
    even_layers: Rule[bool]
    #: As the field of :class:`~nest.ir.job.Job`, as far as a graph has these kinds.
    one_stage: Rule[tuple[str, ...]]
    #: Kinds of layers that do not exist there.
    unknown_kinds: Rule[tuple[str, ...]]
    idle_devices: Rule[bool]
    #: Values that exist there, as ``recompute`` and ``context_parallel`` are; ``None``
    #: for every value.
    zero: Rule[tuple[int, ...]]
    zero_with: Rule[dict[Several, tuple[int, ...]]]
    sharded_with: Rule[tuple[Sharding, ...]]
    recompute: Rule[tuple[Recompute, ...]]
    #: What ``selective`` is there, as the field of :class:`~nest.ir.job.Job`.
    selective_operators: Rule[bool]
    #: Schedules that exist there; the first one is the usual.
    schedule: Rule[tuple[Schedule, ...]]
    #: Whether exports can say any order of single passes.
    orders: Rule[bool]
    #: Whether a stage may have several chunks.
    interleaving: Rule[bool]
    micro_batch_count: Rule[MicroBatchCount]
    #: Whether ``R * B`` may fail to divide the global batch.
    uneven_batches: Rule[bool]
    context_parallel: Rule[tuple[int, ...] | None]
    #: Whether several tensor ranks may have the same head of keys and values.
    copied_heads: Rule[bool]
    #: What the tokens of a sample for a tensor rank are a multiple of.
    sequence_pieces: Rule[int]
    #: What comes with tensor parallelism; ``None`` for a choice.
    sequence_parallel: Rule[bool | None]
    #: The same where a model has experts.
    sequence_parallel_with_experts: Rule[bool | None]
    #: Smallest ``ep`` with which tensor ranks may hold whole experts (``etp`` 1);
    #: ``None`` where they cannot.
    whole_experts_from: Rule[int | None]
    #: What exists there of the extensions, with ``distributed_optimizer``.
    overlap: Rule[tuple[Overlap, ...]]
    #: Kinds of which a graph has one layer at most where something overlaps.
    overlap_with_one: Rule[dict[Overlap, tuple[str, ...]]]
    #: As the field of :class:`~nest.ir.job.Job`.
    overlap_needs: Rule[dict[Overlap, tuple[OverlapNeed, ...]]]
    distributed_optimizer: Rule[bool]
    #: Data types that gradients may be kept in; the first is the default.
    gradients: Rule[tuple[Gradients, ...]]
    #: Of the optimizer state per weight, beside moments: what an exact copy needs on
    #: top of the 2 bytes that a layer counts.
    master_bytes: Rule[int]
    #: Axes from the fastest to the slowest; empty where unknown.
    rank_order: Rule[tuple[str, ...]]
    #: What takes the place of ``zero_with`` where products are in bf16, if anything.
    zero_with_bf16: Rule[dict[Several, tuple[int, ...]]] | None = None

    def zero_rule(self, dtype: str) -> Rule[dict[Several, tuple[int, ...]]]:
        """Return the rule about ZeRO stages where products are in a data type."""
        return (self.zero_with_bf16 if dtype == "bf16" else None) or self.zero_with


class Shape(NamedTuple):
    """What degrees must divide of a model, which a problem does not say.

    ``kv_heads`` are the numbers of heads that keys and values have in its layers.
    """

    kv_heads: tuple[int, ...] = ()


def degree_rule(
    rules: Rules, tokens: int | None, shape: Shape, tp: int
) -> tuple[Rule[Any], str] | None:
    """Return which rule forbids a tensor degree, and what it allows, or ``None``.

    ``tokens`` are those of a sample.
    """
    for heads in shape.kv_heads:
        if heads % tp and not rules.copied_heads.value:
            return rules.copied_heads, f"tp to divide the {heads} key and value heads"
    pieces = rules.sequence_pieces.value
    if tokens is not None and tokens % (tp * pieces):
        return rules.sequence_pieces, f"{pieces} * tp to divide the {tokens} tokens"
    return None


def has_schedule(rules: Rules, schedule: Schedules) -> bool:
    """Return whether plans of a schedule can be said, if pass by pass."""
    if schedule in rules.schedule.value:
        return True
    return rules.orders.value and schedule not in PAIRED


def schedules_there(rules: Rules, schedule: Schedules) -> Schedules:
    """Return what a target runs of a job's schedules, or else its usual one.

    Any order of passes stays where the target runs all of them.
    """
    if has_schedule(rules, schedule):
        return schedule
    names = named_schedules(schedule)
    there = tuple(name for name in names if has_schedule(rules, name))
    if len(there) > 1:
        return there
    return there[0] if there else rules.schedule.value[0]


def stated_schedules(target: Framework, stated: Schedules) -> Schedules:
    """Return schedules as they were stated; of ``any``, those of a target."""
    if target.rules is None or stated != ANY_ORDER:
        return stated
    return schedules_there(target.rules, stated)


def rules_of_plans(rules: Rules, problem: Problem) -> dict[str, Any]:
    """Return the fields of a job that hold the rules about whole plans."""
    return {
        "uniform": tuple(
            name
            for name in rules.uniform.value
            if name != "sequence_parallel" or problem.job.plans_split_sequences
        ),
        "one_stage": kinds_in_one_stage(rules, problem),
        "even_layers": rules.even_layers.value,
        "idle_devices": rules.idle_devices.value,
        "zero_with": rules.zero_rule(problem.job.dtype).value,
        "sharded_with": rules.sharded_with.value,
        "micro_batch_count": rules.micro_batch_count.value,
        "overlap_needs": rules.overlap_needs.value,
    }


def kinds_in_one_stage(rules: Rules, problem: Problem) -> tuple[str, ...]:
    """Return which kinds of several layers no two stages may part."""
    kinds = [layer.kind for layer in problem.graph.layers]
    present = tuple(name for name in rules.one_stage.value if name in kinds)
    return present if sum(map(kinds.count, present)) > 1 else ()


#: The fields of a job that hold the degrees that may be single.
FIELDS: dict[Sharding, str] = {
    "tp": "tensor_parallel",
    "ep": "expert_parallel",
    "pp": "pipeline_parallel",
}


def unknown_layers(rules: Rules, problem: Problem) -> dict[str, int]:
    """Return how many layers there are of kinds that do not exist there."""
    kinds = [layer.kind for layer in problem.graph.layers]
    return {
        name: kinds.count(name) for name in rules.unknown_kinds.value if name in kinds
    }


def overlap_rule(rules: Rules, problem: Problem) -> Rule[tuple[Overlap, ...]]:
    """Return what may overlap in plans of a problem."""
    kinds = [layer.kind for layer in problem.graph.layers]
    barred = [
        name
        for name, single in rules.overlap_with_one.value.items()
        if sum(map(kinds.count, single)) > 1
    ]
    if not barred:
        return rules.overlap
    names = tuple(name for name in rules.overlap.value if name not in barred)
    return Rule(value=names, source=rules.overlap_with_one.source)


def recompute_rule(rules: Rules, problem: Problem) -> Rule[tuple[Recompute, ...]]:
    """Return what plans of a problem may recompute.

    Without ``selective`` where the problem's is not the one of the framework.
    """
    allowed = rules.recompute.value
    selective = rules.selective_operators
    if problem.job.selective_operators is selective.value or "selective" not in allowed:
        return rules.recompute
    names = tuple(name for name in allowed if name != "selective")
    return Rule(value=names, source=selective.source)


def sequence_rule(rules: Rules, problem: Problem) -> Rule[bool | None]:
    """Return what comes with tensor parallelism in the plans of a problem."""
    experts = any(
        cost.expert_weight_bytes for kind in problem.graph.kinds for cost in kind.costs
    )
    if experts:
        return rules.sequence_parallel_with_experts
    return rules.sequence_parallel


def has_experts_cut_so(rules: Rules, cut: LayerCost | Strategy) -> bool:
    """Return whether tensor ranks hold experts there as a strategy or a cost says."""
    start = rules.whole_experts_from.value
    return not cut.etp or (start is not None and cut.ep >= start)


class Framework(Record, frozen=True, kw_only=True):
    """A framework."""

    #: On the command line, and for people.
    name: str
    title: str
    #: Which versions the rules are about.
    packages: str = ""
    #: What it can say; ``None`` for everything.
    rules: Rules | None = None


def names() -> tuple[str, ...]:
    """Return the names of all targets, ``any`` last."""
    return (*NAMES, ANY)


@cache
def target(name: str, what: str = "target") -> Framework:
    """Return the target of that name; ``what`` is what messages call it.

    Raises ``UnknownNameError`` if there is none; the text lists all names.
    """
    if name == ANY:
        return Framework(name=ANY, title="any plan")
    if name not in NAMES:
        raise UnknownNameError(what, name, names())
    return read_stored("nest.constraints.targets", name, Framework)
