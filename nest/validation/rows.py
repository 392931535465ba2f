"""Measurements of training runs: a record per run, and what it says.

One row is one published run: what ran (model shape, mesh, batch, software), on what,
and what was measured. An attribute of :class:`Row` has the name of its column; a cell
that is empty is None. A cell that cannot be read does not stop anything: the row says
so in :attr:`Row.unreadable`, and :func:`~nest.validation.usable.why_unusable` refuses
it. Files are read by :mod:`nest.validation.reading`.
"""

from __future__ import annotations

from typing import get_args, get_type_hints

from nest.errors import NestError
from nest.ir.base import AnyText, Struct
from nest.units import GIB


class InvalidMeasurementsError(NestError, ValueError):
    """A file of measurements cannot be read."""


class Row(Struct, frozen=True, kw_only=True):
    """One published run.

    The other fields are the columns of the same name. Counts and degrees
    are integers, ``sp``, ``gated_mlp`` and ``tied_embeddings`` booleans,
    ``_s`` is seconds.
    """

    #: Line of the file on which the row begins, from 1.
    line: int = 0
    #: Cells that are not what their column holds, as ``column: expected …, got …``.
    unreadable: tuple[str, ...] = ()
    #: Columns that are empty in the file and were filled in, as ``column: why``.
    assumed: tuple[str, ...] = ()

    row_id: str | None = None
    source: str | None = None
    #: ``"measured"`` where the file does not say it.
    kind: str = "measured"
    hardware: str | None = None
    interconnect: str | None = None
    num_devices: int | None = None
    devices_per_node: int | None = None

    model: str | None = None
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    ffn_hidden: int | None = None
    gated_mlp: bool | None = None
    experts: int | None = None
    topk: int | None = None
    moe_ffn_hidden: int | None = None
    shared_experts: int | None = None
    vocab: int | None = None
    tied_embeddings: bool | None = None

    seq_len: int | None = None
    global_batch: int | None = None
    #: Samples per model replica and pipeline step.
    micro_batch: int | None = None
    #: Micro-batches of a step.
    grad_accum: int | None = None
    tp: int | None = None
    pp: int | None = None
    vpp: int | None = None
    #: Replicas of the model; ``ep`` is nested in it.
    dp: int | None = None
    cp: int | None = None
    ep: int | None = None
    #: Ranks that an expert's matrices are cut over.
    etp: int | None = None
    sp: bool | None = None
    zero_stage: int | None = None
    shard_mode: str | None = None
    recompute: str | None = None
    attention_impl: str | None = None
    precision: str | None = None
    framework: str | None = None
    overlap: str | None = None
    #: Of the pipeline, such as ``1F1B`` or ``ZB-V``.
    schedule: str | None = None
    #: Whether the kernels of a step are replayed from CUDA graphs.
    cuda_graphs: bool | None = None
    #: Whether norms and other chains of elementwise operators are one kernel, and
    #: whether softmax and gradient of the loss are.
    fused_kernels: bool | None = None
    fused_loss: bool | None = None
    #: Whether this communication runs beside computation. Of ``weights`` it is the
    #: prefetch of ZeRO 3.
    tp_overlap: bool | None = None
    cp_overlap: bool | None = None
    ep_overlap: bool | None = None
    weights_overlap: bool | None = None
    gradients_overlap: bool | None = None
    #: What sends tokens to experts, such as ``DeepEP`` or ``all-to-all``.
    dispatcher: str | None = None
    #: Bytes per weight of its gradient, and of optimizer state with master weights.
    gradient_bytes: int | None = None
    optimizer_bytes: int | None = None

    iter_time_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    samples_per_s: float | None = None
    #: What a software printed: 10^12 FLOP/s of a device, and the fraction of its peak,
    #: as ``tflops_kind`` says that FLOPs are counted; see :mod:`nest.validation.flops`.
    tflops_per_gpu: float | None = None
    mfu: float | None = None
    tflops_kind: str | None = None
    #: Peak memory of a device in ``mem_unit``, in the sense of ``mem_class``; see
    #: :func:`measured_memory_bytes`.
    peak_mem_gb: float | None = None
    #: ``"ok"`` where the file does not say it.
    status: str = "ok"
    notes: AnyText | None = None
    mem_class: str | None = None
    mem_unit: str | None = None
    precision_class: str | None = None
    time_tier: str | None = None
    mem_tier: str | None = None
    #: Date on which the row was collected, such as ``2026-11-23``.
    collected: str | None = None


#: At least one of these columns is needed.
MEASURED_COLUMNS = (
    *("iter_time_s", "tokens_per_s_per_gpu", "samples_per_s", "tflops_per_gpu"),
    *("mfu", "peak_mem_gb"),
)

#: Units of ``peak_mem_gb`` in bytes, in lower case. The tools that print it,
#: nvidia-smi and PyTorch, count in MiB and GiB, and what is printed as GB is
#: their figure: see docs/validation.md.
MEMORY_UNITS_BYTES = {
    "gib": GIB,
    "gb": GIB,
    "gb as printed": GIB,
    "mib": GIB // 1024,
    "mb": GIB // 1024,
}

#: What a figure of memory counts.
MEMORY_CLASSES = (
    *("nvidia-smi", "torch_allocated", "torch_allocated_last_rank"),
    *("torch_reserved", "formula", "unspecified"),
)

#: Column to the type of its cells (str, int, float or bool), in the order of
#: the attributes.
COLUMNS: dict[str, type] = {
    name: (get_args(hint) or (hint,))[0]
    for name, hint in get_type_hints(Row).items()
    if name not in ("line", "unreadable", "assumed")
}


def measured_step_time_s(row: Row) -> float | None:
    """Return the measured step time in seconds, if there is one.

    The first of :func:`stated_step_times_s`.
    """
    return next(iter(stated_step_times_s(row).values()), None)


def stated_step_times_s(row: Row) -> dict[str, float]:
    """Return the step time in seconds by each figure that states one.

    - ``iter_time_s``
    - ``global_batch · seq_len / (tokens_per_s_per_gpu · num_devices)``
    - ``global_batch / samples_per_s``
    """
    times_s = {}
    if row.iter_time_s is not None:
        times_s["iter_time_s"] = row.iter_time_s
    batch = row.global_batch
    if batch is None:
        return times_s
    if row.tokens_per_s_per_gpu and row.seq_len and row.num_devices:
        tokens_per_s = row.tokens_per_s_per_gpu * row.num_devices
        times_s["tokens_per_s_per_gpu"] = batch * row.seq_len / tokens_per_s
    if row.samples_per_s:
        times_s["samples_per_s"] = batch / row.samples_per_s
    return times_s


def measured_memory_bytes(row: Row) -> int | None:
    """Return the measured peak memory in bytes, if there is one.

    In GiB where the unit is not stated; see :func:`why_no_memory`.
    """
    if row.peak_mem_gb is None or why_no_memory(row) is not None:
        return None
    return round(row.peak_mem_gb * _memory_unit_bytes(row))


def why_no_memory(row: Row) -> str | None:
    """Return why a figure of memory is not compared, or None.

    Its unit is not one of :data:`MEMORY_UNITS_BYTES`, or a formula gave it.
    """
    if row.peak_mem_gb is None:
        return None
    if not _memory_unit_bytes(row):
        return f"mem_unit {(row.mem_unit or '')[:40]!r}: expected GiB or MiB"
    if row.mem_class == "formula":
        return "mem_class 'formula': not measured"
    return None


def _memory_unit_bytes(row: Row) -> int:
    """Return the bytes of the row's unit; 0 for an unknown one."""
    return MEMORY_UNITS_BYTES.get((row.mem_unit or "GiB").lower(), 0)


def ran_out_of_memory(row: Row) -> bool:
    """Return whether the run failed for lack of memory."""
    return row.status.lower() in ("oom", "out of memory")
