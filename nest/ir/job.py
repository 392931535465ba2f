"""Jobs: what is trained, and which choices a plan may make."""

from __future__ import annotations

from typing import Literal, get_args

from nest.ir.base import Struct, check_distinct, check_integer, check_real
from nest.ir.plan import Overlap, Recompute

Schedule = Literal["1f1b", "gpipe"]
SCHEDULES: tuple[str, ...] = get_args(Schedule)

Granularity = Literal["stage", "layer"]
GRANULARITIES: tuple[Granularity, ...] = get_args(Granularity)


class Optimizer(Struct, frozen=True, kw_only=True):
    """Bytes that training keeps per weight.

    Attributes
    ----------
    weight_bytes
        Bytes of one weight as the layers count it.
    gradient_bytes
        Bytes of its gradient.
    state_bytes
        Bytes of its optimiser state, master copy included.
    buffer_bytes
        Bytes of further buffers per weight that no ZeRO stage shards, for
        example the fp32 gradient accumulation of DeepSpeed's BF16Optimizer.
    """

    name: str = "adam"
    weight_bytes: int = 2
    gradient_bytes: int = 2
    state_bytes: int = 12
    buffer_bytes: float = 0

    def __post_init__(self) -> None:
        check_integer("weight_bytes", self.weight_bytes, 1)
        check_integer("gradient_bytes", self.gradient_bytes, 0)
        check_integer("state_bytes", self.state_bytes, 0)
        check_real("buffer_bytes", self.buffer_bytes)


class Job(Struct, frozen=True, kw_only=True):
    """One training job and the choices that a plan for it has.

    Attributes
    ----------
    global_batch
        Samples ``A`` per optimiser step.
    micro_batches
        Candidates for ``B``, the samples of one pipeline step.
    sequence_length
        Tokens per sample; ``None`` if samples are not sequences.
    dtype
        Data type of the matrix products; selects the peak FLOP/s for MFU.
    schedule
        ``1f1b`` or ``gpipe``, see :mod:`nest.cost.schedules`.
    replicas, data_parallel
        Allowed values of ``R`` and ``dp``; ``None`` allows every value.
    pipeline_parallel, tensor_parallel, context_parallel, expert_parallel
        Allowed numbers of stages (of blocks where a plan is interleaved),
        and allowed values of ``tp``, ``cp`` and ``ep``; ``None`` allows
        every value.
    zero, recompute
        Allowed ZeRO stages and recompute choices.
    sequence_parallel
        Whether activations between layers are also split over ``tp``.
    uneven_batches
        Whether ``R * B`` may fail to divide ``A``; the number of
        micro-batches is then rounded up.
    gradient_sync_overlap
        Fraction of the gradient synchronisation hidden behind computation
        in every plan, however short the computation is.
    virtual_stages
        Allowed numbers ``v`` of chunks per block; above 1 a plan is
        interleaved, which needs the schedule ``1f1b``.
    overlap
        Which communication a plan may run behind computation, and the
        fraction of it that can be hidden there.
    distributed_optimizer
        Whether a plan may shard its optimiser over replicas too.
    granularity
        What has a strategy of its own: every stage, or every layer. All
        layers of a stage use the same number of devices.
    model_flops_per_sample
        Forward and backward FLOPs of one sample without recomputation;
        used for MFU only.
    """

    global_batch: int
    micro_batches: tuple[int, ...] = (1,)
    sequence_length: int | None = None
    dtype: str = "bf16"
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = "1f1b"
    replicas: tuple[int, ...] | None = None
    data_parallel: tuple[int, ...] | None = None
    pipeline_parallel: tuple[int, ...] | None = None
    tensor_parallel: tuple[int, ...] | None = None
    context_parallel: tuple[int, ...] | None = None
    expert_parallel: tuple[int, ...] | None = None
    zero: tuple[int, ...] = (0,)
    recompute: tuple[Recompute, ...] = ("none",)
    sequence_parallel: bool = False
    uneven_batches: bool = False
    gradient_sync_overlap: float = 0.0
    virtual_stages: tuple[int, ...] = (1,)
    overlap: dict[Overlap, float] = {}
    distributed_optimizer: bool = False
    granularity: Granularity = "stage"
    model_flops_per_sample: float | None = None

    def __post_init__(self) -> None:
        check_integer("global_batch", self.global_batch, 1)
        for field in (
            "micro_batches",
            "replicas",
            "data_parallel",
            "pipeline_parallel",
            "tensor_parallel",
            "context_parallel",
            "expert_parallel",
            "virtual_stages",
        ):
            values = getattr(self, field)
            if values is not None:
                check_distinct(field, values)
                for value in values:
                    check_integer(field, value, 1)
        check_distinct("zero", self.zero)
        for stage in self.zero:
            if not 0 <= stage <= 3:
                raise ValueError(f"zero: expected 0, 1, 2 or 3, got {stage}")
        check_distinct("recompute", self.recompute)
        if self.sequence_length is not None:
            check_integer("sequence_length", self.sequence_length, 1)
        if not 0 <= self.gradient_sync_overlap <= 1:
            raise ValueError(
                f"gradient_sync_overlap: expected a fraction from 0 to 1, "
                f"got {self.gradient_sync_overlap}"
            )
        for name, fraction in self.overlap.items():
            if not 0 <= fraction <= 1:
                raise ValueError(
                    f"overlap.{name}: expected a fraction from 0 to 1, "
                    f"got {fraction}"
                )
        if self.schedule != "1f1b" and self.virtual_stages != (1,):
            raise ValueError(
                f"virtual_stages: expected [1] with schedule "
                f"{self.schedule!r}, got {list(self.virtual_stages)}; only "
                f"'1f1b' can be interleaved"
            )
        if self.model_flops_per_sample is not None:
            check_real("model_flops_per_sample", self.model_flops_per_sample)
