"""Jobs: what is trained, and which choices a plan may make."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from nest.ir.base import (
    Count,
    Counts,
    Distinct,
    Fraction,
    Real,
    Size,
    Struct,
    check_distinct,
    check_fraction,
    each,
    entries,
)
from nest.ir.plan import NOT_SPLIT, Overlap, Recompute, Strategy, check_zero_stage

Schedule = Literal["1f1b", "gpipe", "zb-h1", "zb-v", "dualpipe-v"]
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)

#: What a job says where a plan may run its passes in any order.
ANY_ORDER: Literal["any"] = "any"

#: What jobs say of schedules: one, several that plans choose from, or any.
Schedules = Schedule | Literal["any"] | tuple[Schedule, ...]

#: Schedules whose blocks run so many chunks, no more and no less.
FIXED_CHUNKS: dict[str, int] = {"zb-v": 2, "dualpipe-v": 2}

#: Schedules that run passes two at a time, see *dualpipe-v*: their layers have
#: other costs, so no plan chooses between them and others.
PAIRED = frozenset({"dualpipe-v"})

#: Schedules that compute gradients of weights apart.
SPLIT_BACKWARD = frozenset({"zb-h1", "zb-v", "dualpipe-v"})


def named_schedules(schedule: Schedules) -> tuple[Schedule, ...]:
    """Return the schedules with a name that plans of a job may have."""
    if schedule == ANY_ORDER:
        return tuple(x for x in SCHEDULES if x not in PAIRED)
    return (schedule,) if isinstance(schedule, str) else schedule


def splits_backward(schedule: Schedules) -> bool:
    """Whether some plan may compute gradients of weights apart."""
    return not SPLIT_BACKWARD.isdisjoint(named_schedules(schedule))


Granularity = Literal["stage", "layer"]
GRANULARITIES: tuple[Granularity, ...] = get_args(Granularity)

#: What all layers of a plan can be asked to share: fields of a strategy, and
#: the number of devices.
Shared = Literal[
    "dp", "tp", "cp", "ep", "sequence_parallel", "zero", "recompute", "devices"
]
SHARED: tuple[Shared, ...] = get_args(Shared)

#: Where a plan has several of something: replicas, stages, context ranks.
Several = Literal["r", "pp", "cp"]
SEVERAL: tuple[Several, ...] = get_args(Several)

#: Degrees that may ask for sharded weights.
Sharding = Literal["tp", "ep", "pp"]
SHARDING: tuple[Sharding, ...] = get_args(Sharding)

#: What the number of stages asks of the number of micro-batches.
MicroBatchCount = Literal["any", "at-least-stages", "multiple-of-stages"]
MICRO_BATCH_COUNTS: tuple[MicroBatchCount, ...] = get_args(MicroBatchCount)


#: What communication may need to run behind computation: chunks wherever
#: there are several stages, sequence parallelism wherever there are several
#: tensor ranks, no full recomputation, or that gradients overlap too.
OverlapNeed = Literal[
    "interleaving", "sequence_parallel", "no-full-recompute", "gradients"
]
OVERLAP_NEEDS: tuple[OverlapNeed, ...] = get_args(OverlapNeed)


def _check_shared(field: str, values: tuple[str, ...]) -> None:
    """Raise ``ValueError`` if a name occurs twice; none is fine."""
    if values:
        check_distinct(field, values)


def _check_choices(field: str, values: bool | tuple[bool, ...]) -> None:
    """Raise ``ValueError`` if a list is empty or has a value twice."""
    if isinstance(values, tuple):
        check_distinct(field, values)


def _check_schedules(field: str, value: str | tuple[str, ...]) -> None:
    """Raise ``ValueError`` if a list of schedules offers no choice."""
    if isinstance(value, str):
        return
    check_distinct(field, value)
    for name in value:
        if name in PAIRED:
            raise ValueError(
                f"{field}: expected schedules that run one pass at a time in "
                f"a list, got {name!r}; give it alone"
            )


class Optimizer(Struct, frozen=True, kw_only=True):
    """Bytes that training keeps per weight.

    Attributes
    ----------
    weight_bytes
        Bytes of one weight as the layers count it.
    gradient_bytes
        Bytes of its gradient.
    state_bytes
        Bytes of its optimizer state, master copy included.
    buffer_bytes
        Bytes of further buffers per weight that no ZeRO stage shards, for
        example the fp32 gradient accumulation of DeepSpeed's BF16Optimizer.
    zero_2_bytes, zero_3_bytes
        Bytes of a device beside its shards under ZeRO 2 and 3 over several ranks,
        such as DeepSpeed's buckets of gradients, and weights for their next use.
    """

    name: str = "adam"
    weight_bytes: Count = 2
    gradient_bytes: Size = 2
    state_bytes: Size = 12
    buffer_bytes: Real = 0
    zero_2_bytes: Size = 0
    zero_3_bytes: Size = 0

    def bucket_bytes(self, strategy: Strategy) -> int:
        """Return the bytes of a device beside its shards."""
        by_stage = {2: self.zero_2_bytes, 3: self.zero_3_bytes}
        return by_stage.get(strategy.zero, 0) if strategy.data_ranks > 1 else 0


class Job(Struct, frozen=True, kw_only=True):
    """One training job and the choices that a plan for it has.

    Attributes
    ----------
    global_batch
        Samples ``A`` per optimizer step.
    micro_batches
        Candidates for ``B``, the samples of one pipeline step.
    sequence_length
        Tokens per sample; ``None`` if samples are not sequences.
    dtype
        Data type of the matrix products; selects the peak FLOP/s for MFU.
    schedule
        ``1f1b``, ``gpipe``, ``zb-h1``, ``zb-v`` or ``dualpipe-v``, see
        :mod:`nest.cost.schedules`. With several of them, or ``any``, every
        plan says its ``order``, and all are timed pass by pass.
    replicas, data_parallel
        Allowed values of ``R`` and ``dp``; ``None`` allows every value.
    pipeline_parallel, tensor_parallel, context_parallel, expert_parallel
        Allowed numbers of stages (of blocks where a plan is interleaved), and allowed
        values of ``tp``, ``cp`` and ``ep``; ``None`` allows every value.
    expert_tensor_parallel
        Allowed numbers of tensor ranks that an expert is cut over, ``tp`` or 1.
    zero, recompute
        Allowed ZeRO stages and recompute choices.
    selective_operators
        Whether costs of ``selective`` are those of torchtitan's checkpointing by
        operator, not of Megatron-LM's. For targets only.
    sequence_parallel
        Whether activations between layers are also split over ``tp``. A list
        leaves it to plans: then it holds what strategies with ``tp > 1`` may
        have as their own, and costs are told apart by it.
    uneven_batches
        Whether ``R * B`` may fail to divide ``A``; the number of
        micro-batches is then rounded up.
    gradient_sync_overlap
        Fraction of the gradient synchronization hidden behind computation
        in every plan, however short the computation is.
    virtual_stages
        Allowed numbers ``v`` of chunks per block; above 1 a plan is interleaved, which
        needs the schedule ``1f1b``. Some schedules fix it, see :attr:`chunk_counts`.
    weight_backward_fraction
        What part of a layer's backward computation yields gradients of
        weights, where its cost does not say.
    overlap
        Which communication a plan may run behind computation, and the
        fraction of it that can be hidden there.
    distributed_optimizer
        Whether a plan may shard its optimizer over replicas too.
    granularity
        What has a strategy of its own: every stage, or every layer. All
        layers of a stage use the same number of devices.
    uniform
        Fields of a strategy that are the same for all layers of a plan.
    even_layers
        Whether all stages (all chunks where a plan is interleaved) have as
        many layers of each kind that occurs more than once.
    one_stage
        Kinds of layers, all of which are in one stage (one chunk where a
        plan is interleaved) together.
    idle_devices
        Whether a plan may leave devices of the cluster idle; ``False`` needs
        stages that all have as many devices, see ``uniform``.
    zero_with
        Allowed ZeRO stages where a plan has several replicas (``r``) or
        stages (``pp``), or a layer several context ranks (``cp``); they
        must be in ``zero`` too.
    sharded_with
        What asks for sharded gradients, ``zero >= 2`` over several data or
        context ranks: several stages (``pp``), or a layer's tensor or expert
        ranks (``tp``, ``ep``).
    micro_batch_count
        Whether there must be at least as many micro-batches as stages, or a
        multiple of their number.
    overlap_needs
        What a plan needs to overlap a communication: ``v > 1`` if it has
        several stages (``interleaving``), sequence parallelism of every
        layer with ``tp > 1`` (``sequence_parallel``), no full recomputation
        (``no-full-recompute``), or the overlap of ``gradients``.
    model_flops_per_sample
        Forward and backward FLOPs of one sample without recomputation;
        used for MFU only.
    """

    global_batch: Count
    micro_batches: Counts = (1,)
    sequence_length: Count | None = None
    dtype: str = "bf16"
    optimizer: Optimizer = Optimizer()
    schedule: Annotated[Schedules, _check_schedules] = "1f1b"
    replicas: Counts | None = None
    data_parallel: Counts | None = None
    pipeline_parallel: Counts | None = None
    tensor_parallel: Counts | None = None
    context_parallel: Counts | None = None
    expert_parallel: Counts | None = None
    expert_tensor_parallel: Counts | None = None
    zero: Annotated[Distinct[int], each(check_zero_stage)] = (0,)
    recompute: Distinct[Recompute] = ("none",)
    selective_operators: bool = False
    sequence_parallel: Annotated[bool | tuple[bool, ...], _check_choices] = False
    uneven_batches: bool = False
    gradient_sync_overlap: Fraction = 0.0
    virtual_stages: Counts = (1,)
    weight_backward_fraction: Fraction = 0.5
    overlap: Annotated[dict[Overlap, float], entries(check_fraction)] = {}
    distributed_optimizer: bool = False
    granularity: Granularity = "stage"
    uniform: Annotated[tuple[Shared, ...], _check_shared] = ()
    even_layers: bool = False
    one_stage: Annotated[tuple[str, ...], _check_shared] = ()
    idle_devices: bool = True
    zero_with: Annotated[
        dict[Several, tuple[int, ...]],
        entries(check_distinct),
        entries(each(check_zero_stage)),
    ] = {}
    sharded_with: Annotated[tuple[Sharding, ...], _check_shared] = ()
    micro_batch_count: MicroBatchCount = "any"
    overlap_needs: Annotated[
        dict[Overlap, tuple[OverlapNeed, ...]], entries(check_distinct)
    ] = {}
    model_flops_per_sample: Real | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        fixed = max(FIXED_CHUNKS.get(x, 1) for x in self.schedules)
        if "1f1b" not in self.schedules and self.virtual_stages not in ((1,), (fixed,)):
            raise ValueError(
                f"virtual_stages: expected [{fixed}] with schedule "
                f"{self.schedule_text!r}, got {list(self.virtual_stages)}; "
                f"only '1f1b' can be interleaved"
            )
        if not (self.idle_devices or self.same_devices):
            raise ValueError(
                f"idle_devices: expected true where stages may differ in devices, got "
                f"false; add 'devices' to uniform, which is {list(self.uniform)}"
            )
        split = SPLIT_BACKWARD.issuperset(self.schedules)
        for choice in NOT_SPLIT.intersection(self.recompute) if split else ():
            raise ValueError(
                f"recompute: expected 'none' or 'selective' with schedule "
                f"{self.schedule_text!r}, got {[str(x) for x in self.recompute]}; what "
                f"{choice!r} does not keep is needed until weights have their gradients"
            )

    @property
    def schedules(self) -> tuple[Schedule, ...]:
        """The schedules with a name that plans may have."""
        return named_schedules(self.schedule)

    @property
    def schedule_text(self) -> str:
        """What it says of schedules, for people and options."""
        if isinstance(self.schedule, str):
            return self.schedule
        return ",".join(self.schedule)

    @property
    def plans_order_passes(self) -> bool:
        """Whether plans say in which order passes run, not the job."""
        return self.schedule == ANY_ORDER or not isinstance(self.schedule, str)

    @property
    def same_devices(self) -> bool:
        """Whether all stages of a plan have as many devices."""
        return "devices" in self.uniform or {"dp", "tp", "cp"} <= {*self.uniform}

    @property
    def plans_split_sequences(self) -> bool:
        """Whether plans say where sequences are split, not the job."""
        return not isinstance(self.sequence_parallel, bool)

    def sequence_choices(self, tp: int) -> tuple[bool, ...]:
        """Return what ``sequence_parallel`` of a strategy may be."""
        if isinstance(self.sequence_parallel, bool) or tp == 1:
            return (False,)
        return self.sequence_parallel

    def splits_sequence(self, strategy: Strategy) -> bool:
        """Whether activations between layers are also split over ``tp``."""
        if isinstance(self.sequence_parallel, bool):
            return self.sequence_parallel
        return strategy.sequence_parallel

    def shards(self, strategy: Strategy) -> int:
        """Return over how many ranks a boundary activation is split."""
        split = self.splits_sequence(strategy)
        return strategy.data_ranks * (strategy.tp if split else 1)

    @property
    def chunk_counts(self) -> tuple[int, ...]:
        """Numbers of chunks per block that a plan may have."""
        if self.schedule == ANY_ORDER:
            return self.virtual_stages
        counts: dict[int, None] = {}
        for name in self.schedules:
            if name == "1f1b":
                counts |= dict.fromkeys(self.virtual_stages)
            else:
                counts[FIXED_CHUNKS.get(name, 1)] = None
        return tuple(counts)
