"""From a row of published measurements to a problem, a plan and its score.

A row says what ran: model shape, mesh, micro-batch, recomputation, software.
:func:`build` writes that down as a problem with one choice of everything and
the one plan for it; :func:`predict` scores it with the shared cost model.
Nothing here is fitted, and no row is treated apart.

What a row leaves open is filled in as the software it names does by default,
see :mod:`nest.validation.software`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice, product
from typing import NamedTuple

from msgspec.structs import replace

from nest.cost.score import Score, score
from nest.errors import NestError, UnknownNameError
from nest.hardware import Machine, device_spec, machine_for
from nest.hardware.calibration import (
    Calibration,
    CalibrationFile,
    calibrated_family,
    stored_calibration,
)
from nest.hardware.calibration import Software as SoftwareCalibration
from nest.ir.base import Struct
from nest.ir.cluster import Device
from nest.ir.graph import Graph
from nest.ir.job import (
    FIXED_CHUNKS,
    SPLIT_BACKWARD,
    Job,
    Optimizer,
    Schedule,
)
from nest.ir.plan import (
    OVERLAP,
    RECOMPUTE,
    Overlap,
    Plan,
    Recompute,
    Stage,
    Strategy,
)
from nest.ir.problem import Problem
from nest.models.architectures import Architecture
from nest.models.blocks import (
    Attention,
    Block,
    Head,
    Mlp,
    RepeatedBlock,
    Tower,
)
from nest.models.choices import Choices, Degrees
from nest.models.graphs import build_graph, in_range
from nest.models.operators import BF16, DTYPES, Execution, vocabulary_rows
from nest.uncertainty.headroom import MEAN_ERROR
from nest.units import ceil_div
from nest.validation.complete import architecture_of
from nest.validation.rows import Row, ran_out_of_memory
from nest.validation.software import (
    FIRST_FLASH,
    SECOND_FLASH_ON_HOPPER,
    Software,
    software_of,
)

#: Patterns of ``recompute`` that mean choices of a plan. Of MaxText's
#: policies ``qkv_proj_offloaded`` computes all again but queries, keys and
#: values, which come back from the host, and ``custom`` does not say what.
RECOMPUTATION: dict[str, tuple[Recompute, ...]] = {
    r"none": ("none",),
    r"selective": ("selective",),
    r"(.*\bremat_policy=)?minimal(_with_context)?\)?": ("selective",),
    r"full\b.*": ("full",),
    r".*\bqkv_proj_offloaded\)?": ("full",),
    r"custom": RECOMPUTE,
}

#: Patterns of ``recompute`` that mean every so many layers in full, the
#: least recomputation first. What torchtitan computes again "per op" is
#: every other matrix product, and all that is cheap: as if every other layer
#: did it. PyTorch FSDP's wrapper takes every k-th block, where "selective"
#: does not say which k.
PERIODS: dict[str, tuple[int, ...]] = {
    r".*\bevery (other|2nd|second) layer\)?": (2,),
    r".*\bper-op sac\b.*": (2,),
}
FSDP_PERIODS = (8, 4, 3, 2)

#: Names of schedules and those of a job. A schedule that was found by a
#: search within the memory of 1F1B (ZB-1p) is the nearest to ZB-H1, which
#: has that memory.
SCHEDULES: dict[str, Schedule] = {
    "1f1b": "1f1b",
    "1f1b-i": "1f1b",
    "interleaved": "1f1b",
    "gpipe": "gpipe",
    "zb-h1": "zb-h1",
    "zb-1p": "zb-h1",
    "zb-v": "zb-v",
    "zbv": "zb-v",
    "dualpipe-v": "dualpipe-v",
    "dualpipev": "dualpipe-v",
}


#: Family whose parameters devices of Hopper take.
HOPPER = "H100"

#: ZeRO stage from which a micro-batch's gradients are sharded.
SHARDED_GRADIENTS = 2

#: Values of ``mem_class`` that have what the allocator caches.
CACHED_CLASSES = ("torch_reserved", "nvidia-smi")

#: Workspaces for matrix products. cuBLAS in PyTorch has 2 x 4 MiB and 8 x 16
#: KiB, from Hopper on 8 x 4 MiB (parseChosenWorkspaceSize in
#: aten/src/ATen/cuda/CublasHandlePool.cpp); Transformer Engine 4 MiB, from
#: Hopper on 32 (get_cublas_workspace_size_bytes), and four more for grouped
#: products (get_multi_stream_cublas_workspace in
#: transformer_engine/pytorch/module/base.py).
CUBLAS_WORKSPACE_BYTES = 2 * 2**22 + 8 * 2**14
LARGE_WORKSPACE_BYTES = 2**25
ENGINE_WORKSPACE_BYTES = 2**22
GROUPED_STREAMS = 4


class PredictOptions(Struct, frozen=True, kw_only=True):
    """Options of a prediction.

    Attributes
    ----------
    calibration
        Parameter sets instead of the stored ones, by device family, or by
        the one whose parameters it takes, see
        :func:`~nest.hardware.calibration.calibrated_family`.
    software
        Parameters that do not depend on the device, instead of the stored
        ones.
    host_shares
        Factors on the host's time instead of those of the table, by the name
        of the entry of :data:`~nest.validation.software.SOFTWARE`.
    """

    calibration: dict[str, Calibration] = {}
    software: SoftwareCalibration | None = None
    host_shares: dict[str, float] = {}


#: The stored calibration.
STORED = PredictOptions()


class Prediction(NamedTuple):
    """What the cost model says about a row.

    Attributes
    ----------
    step_time_s
        Step time.
    memory_bytes
        Memory of the device that the row's figure is about, in its sense.
    fits
        Whether the plan fits the devices' memory.
    breakdown
        Parts of the memory of that device, in bytes.
    fits_with_headroom
        Whether it fits too with head-room of the model's error
        (:data:`~nest.uncertainty.headroom.MEAN_ERROR`) left free.
    """

    step_time_s: float | None
    memory_bytes: int | None
    fits: bool | None
    breakdown: dict[str, float]
    fits_with_headroom: bool | None = None


class Skip(NamedTuple):
    """Why a row cannot be predicted."""

    reason: str


class Stated(NamedTuple):
    """What a row must say."""

    num_devices: int
    layers: int
    hidden: int
    heads: int
    vocab: int
    seq_len: int
    global_batch: int
    micro_batch: int
    tp: int
    pp: int
    dp: int


class ModelledRun(NamedTuple):
    """A row as a problem with one plan.

    Attributes
    ----------
    problem, plan
        The problem and its plan.
    workspace_bytes
        What libraries of matrix products keep on a device.
    """

    problem: Problem
    plan: Plan
    workspace_bytes: int = 0


class PredictedRun(NamedTuple):
    """A row as a problem with one plan, scored."""

    run: ModelledRun
    verdict: Score
    prediction: Prediction


def predict(row: Row, options: PredictOptions = STORED) -> Prediction | Skip:
    """Predict the step time and the memory of a row, or say why not.

    A row that does not say what is recomputed takes the least that fits, as
    whoever tuned the run did, or else the most there is; a run that went out
    of memory takes the least there is, as its software does by itself. With
    head-room it is the least that fits with head-room.
    """
    found = predicted_run(row, options)
    return found if isinstance(found, Skip) else found.prediction


def predicted_run(
    row: Row, options: PredictOptions = STORED
) -> PredictedRun | Skip:
    """Return what :func:`predict` scores of a row."""
    choices = recomputations(row)
    if not choices:
        return Skip("recomputation that no plan expresses")
    if ran_out_of_memory(row) and not row.recompute:
        choices = choices[:1]
    found: PredictedRun | None = None
    for choice, every in product(choices, periods(row)):
        with in_range(row.row_id or "row"):
            case = build(row, choice, options, every)
        if isinstance(case, Skip):
            return case
        try:
            verdict = score(case.problem, case.plan)
        except NestError as error:
            return Skip(f"no such plan: {str(error).split(':')[0]}")
        prediction = _prediction(row, case, verdict, options)
        if found is None or not found.prediction.fits:
            found = PredictedRun(case, verdict, prediction)
        if prediction.fits_with_headroom:
            roomy = found.prediction._replace(fits_with_headroom=True)
            return found._replace(prediction=roomy)
    assert found is not None
    return found


def predict_under(row: Row, calibration: CalibrationFile) -> Prediction | Skip:
    """Predict a row with a user's own calibration.

    It says nothing about devices that it is not of: their rows are skipped.
    """
    try:
        family = device_spec(row.hardware or "").family
    except UnknownNameError:
        return Skip("unknown device")
    own = calibration.of(family)
    if own is None:
        return Skip("a device that the calibration is not of")
    return predict(
        row,
        PredictOptions(
            calibration={family: own}, software=calibration.software
        ),
    )


def recomputations(row: Row) -> tuple[Recompute, ...]:
    """Return what a row may have recomputed, the least first.

    What its software does by default if it does not say it.
    """
    stated = (row.recompute or "").lower()
    if not stated:
        return software_of(row).recompute
    if periods(row) != (1,):
        return ("full",)
    return next(
        (
            choices
            for pattern, choices in RECOMPUTATION.items()
            if re.fullmatch(pattern, stated)
        ),
        (),
    )


def periods(row: Row) -> tuple[int, ...]:
    """Return of how many layers one may recompute, most first."""
    stated = (row.recompute or "").lower()
    if stated == "selective" and (row.framework or "").startswith(
        "PyTorch FSDP"
    ):
        return FSDP_PERIODS
    return next(
        (
            found
            for text, found in PERIODS.items()
            if re.fullmatch(text, stated)
        ),
        (1,),
    )


def schedule_of(row: Row) -> Schedule | None:
    """Return the schedule of a row's pipeline, None for an unknown one.

    Stated, or "schedule NAME" in ``overlap``; 1F1B if neither says it.
    """
    stated = row.schedule
    if stated is None:
        found = re.search(r"\bschedule ([^;,]+)", row.overlap or "")
        stated = found.group(1) if found else "1f1b"
    return SCHEDULES.get(stated.strip().lower())


def _software(options: PredictOptions) -> SoftwareCalibration:
    return options.software or stored_calibration().software


def _prediction(
    row: Row, case: ModelledRun, verdict: Score, options: PredictOptions
) -> Prediction:
    """Return the step time, and the memory in the sense of the row.

    PyTorch's counters of what is allocated know the libraries' workspaces
    too; what is reserved also has what the allocator caches, and nvidia-smi
    the reserve besides.
    """
    reserve = case.problem.cluster.reserve_bytes()
    blocks = verdict.blocks
    outputs = _output_bytes(row, case, [block.inflight for block in blocks])
    activations = [
        max(
            block.kept_bytes + block.working_bytes,
            block.kept_bytes * (block.inflight - 1) // block.inflight + size,
        )
        for block, size in zip(
            blocks, _copied_bytes(row, case, len(blocks)), strict=True
        )
    ]
    needed = [
        block.memory_bytes
        - (block.kept_bytes + block.working_bytes)
        + activated
        + size
        for block, activated, size in zip(
            blocks, activations, outputs, strict=True
        )
    ]
    number = needed.index(max(needed))
    if (row.mem_class or "").endswith("last_rank"):
        number = len(blocks) - 1
    block = blocks[number]
    parts = {
        "weights": block.weight_bytes,
        "gradients": block.gradient_bytes,
        "optimizer": block.state_bytes,
        "activations": activations[number],
        "outputs": outputs[number],
        "buffers": block.buffer_bytes,
        "workspaces": case.workspace_bytes,
    }
    if row.mem_class in CACHED_CLASSES:
        cached = _software(options).cached_fraction * sum(parts.values())
        parts["cached"] = round(cached)
    if row.mem_class == "nvidia-smi":
        parts["reserve"] = reserve
    memory_bytes = case.problem.cluster.device.memory_bytes
    left_bytes = memory_bytes - max(needed)
    return Prediction(
        step_time_s=(float(verdict.step_time_ns) + _broadcasts_ns(row, case))
        / 1e9,
        memory_bytes=sum(parts.values()),
        fits=verdict.feasible and left_bytes >= 0,
        fits_with_headroom=verdict.feasible
        and left_bytes >= MEAN_ERROR * memory_bytes,
        breakdown={name: float(size) for name, size in parts.items()},
    )


def _broadcasts_ns(row: Row, case: ModelledRun) -> float:
    """Return what broadcasts take beside the all-gather of the same bytes.

    Of software whose ZeRO 1 gives ranks whole tensors: each rank that has any
    broadcasts them in its turn. A broadcast is launched, and goes through all
    ranks, one step of the network between them each (as NCCL takes it, in
    ncclTopoTuneModel of src/graph/tuning.cc).
    """
    tensors = software_of(row).broadcast_tensors
    stage = case.plan.stages[0]
    strategy = stage.layer_strategies[0]
    ranks = strategy.dp * strategy.cp
    if not tensors or strategy.zero != 1 or ranks == 1:
        return 0.0
    network = case.problem.cluster.topology
    assert network.kind == "hierarchy"
    level = next(
        level
        for level, size in zip(network.levels, network.capacities, strict=True)
        if size >= stage.devices
    )
    blocks = ceil_div(row.layers or 1, row.pp or 1)
    roots = min(ranks, tensors * blocks)
    return roots * (level.launch_ns + ranks * level.latency_ns)


def _output_bytes(
    row: Row, case: ModelledRun, in_flight: Sequence[int]
) -> list[int]:
    """Return what each block's passes in flight hold of their outputs.

    Of software that keeps what a stage has sent on until its backward pass.
    The last stage sends nothing.
    """
    if not software_of(row).keeps_outputs:
        return [0] * len(in_flight)
    tokens = (row.micro_batch or 1) * (row.seq_len or 1) // (row.cp or 1)
    if case.problem.job.sequence_parallel:
        tokens //= row.tp or 1
    size_bytes = BF16 * tokens * (row.hidden or 1)
    return [size_bytes * count for count in in_flight[:-1]] + [0]


def _copied_bytes(row: Row, case: ModelledRun, blocks: int) -> list[int]:
    """Return what the copy of one weight's gradient takes, of each block.

    Of software that converts gradients one weight after the other when a
    backward pass is over: its activations are gone, those of the other passes
    in flight are there. The largest weight is the matrix of the vocabulary on
    the first and the last block, elsewhere one of the MLP or the attention.
    """
    value_bytes = software_of(row).gradient_copy_bytes
    if not value_bytes:
        return [0] * blocks
    tp, hidden = row.tp or 1, row.hidden or 1
    width = max(row.ffn_hidden or 4 * hidden, 3 * hidden)
    inner = hidden * -(-width // tp)
    outer = max(inner, hidden * vocabulary_rows(row.vocab or 1, tp))
    weights = [inner] * blocks
    weights[0] = weights[-1] = outer
    return [value_bytes * count for count in weights]


def build(  # noqa: C901
    row: Row,
    recompute: Recompute,
    options: PredictOptions = STORED,
    every: int | None = None,
) -> ModelledRun | Skip:
    """Write a row down as a problem and its plan, or say why not.

    Parameters
    ----------
    row
        What ran.
    recompute, every
        What every so many layers recompute; ``None``: by what the row says,
        the least.
    options
        Calibration.
    """
    every = every or periods(row)[0]
    schedule = schedule_of(row)
    if schedule is None:
        return Skip("a schedule that no plan has")
    if row.precision_class is None:
        return Skip("precision not stated")
    dtype = "fp8" if row.precision_class == "fp4" else row.precision_class
    if dtype not in DTYPES:
        return Skip("precision that operators are not counted in")
    if re.search(r"\bLoRA\b", f"{row.model} {row.notes}") and not re.search(
        r"\bSFT\b", f"{row.model} {task_of(row)}"
    ):
        return Skip("fine-tuning of adapters")
    stated = Stated(*(getattr(row, name) for name in Stated._fields))
    if None in stated:
        return Skip(f"not stated: {Stated._fields[stated.index(None)]}")
    software = software_of(row)
    tp, pp, dp, cp = stated.tp, stated.pp, stated.dp, row.cp or 1
    virtual = _virtual(row, stated, schedule, software)
    if tp * pp * dp * cp != stated.num_devices:
        return Skip("tp·cp·pp·dp is not the number of devices")
    sequence_parallel = (
        software.sequence_parallel if row.sp is None else bool(row.sp)
    )
    ep, expert_tp = _expert_ranks(row, stated, software, sequence_parallel)
    if (dp * cp) % ep:
        return Skip("expert parallelism over tensor parallel ranks")
    try:
        site = machine_for(
            row.hardware or "", row.interconnect, row.devices_per_node
        )
    except UnknownNameError:
        return Skip("unknown device")
    if row.precision_class not in site.device.peak_flops:
        return Skip(f"the device does not multiply {row.precision_class}")
    site = _calibrated(row, site, software, options)
    for name, degree, size in (
        ("tp", tp, stated.heads),
        ("tp", tp, row.ffn_hidden or 4 * stated.hidden),
        ("cp", cp, stated.seq_len),
        ("ep", ep, row.experts or ep),
    ):
        if size % degree:
            return Skip(f"{name} does not divide what it splits")
    zero = software.zero if row.zero_stage is None else row.zero_stage
    group = _sharding_group(row, dp)
    replicas, ranks = dp // group, group
    micro_batch = stated.micro_batch * ranks
    if stated.global_batch % (replicas * micro_batch):
        return Skip("the micro-batches do not divide the global batch")

    execution = Execution(
        dtype=DTYPES[DTYPES.index(dtype)],
        flash_attention=_flash(row, software),
        fused=_fused(row, software),
        fused_softmax="torch" not in (row.attention_impl or "").lower(),
        fused_loss=software.fused_loss,
        repeat_attention=software.repeat_attention,
        split_backward=schedule in SPLIT_BACKWARD,
        expert_tp=expert_tp,
        dispatch_node=_dispatch_node(row, site, stated, software),
        fused_router=software.fused_router,
        fused_experts=software.fused_experts,
        accumulation_bytes=_accumulation_bytes(
            software, zero, stated.global_batch // (replicas * micro_batch)
        ),
    )
    choices = Choices(
        global_batch=stated.global_batch,
        sequence_length=stated.seq_len,
        micro_batches=(micro_batch,),
        degrees=(Degrees(tp, cp, ep, stated.micro_batch),),
        sequence_parallel=sequence_parallel and tp > 1,
        dtype=execution.dtype,
    )
    model = architecture_of(row) or _model(row, stated, software)
    graph = build_graph(model, site, choices, execution)
    if pp == 1 and model.head.tied:
        rows = vocabulary_rows(model.head.outputs, tp)
        graph = _with_one_matrix(graph, BF16 * rows * stated.hidden)
    chunks = _chunks(stated.layers, pp * virtual, software, graph)
    if chunks is None:
        return Skip("more pipeline stages than layers")

    strategies = {
        choice: Strategy(
            dp=ranks, tp=tp, cp=cp, ep=ep, zero=zero, recompute=choice
        )
        for choice in ("none", recompute)
    }

    def chosen(number: int, kind: str) -> Recompute:
        """Return what a layer recomputes; the embedding is number 0."""
        if kind in ("embedding", "head") or number % every:
            return "none"
        return recompute

    numbered = enumerate(graph.layers)
    stages = []
    for size in chunks:
        members = list(islice(numbered, size))
        stages.append(
            Stage(
                layers=tuple(layer.id for _, layer in members),
                devices=ranks * tp * cp,
                strategies=tuple(
                    strategies[chosen(number, layer.kind)]
                    for number, layer in members
                ),
            )
        )
    fractions = _software(options).overlap
    overlap = {name: fractions[name] for name in _overlap(row, software)}
    problem = Problem(
        name=row.row_id or "row",
        graph=graph,
        cluster=site.cluster(stated.num_devices),
        job=Job(
            global_batch=choices.global_batch,
            micro_batches=choices.micro_batches,
            sequence_length=choices.sequence_length,
            dtype=choices.dtype,
            optimizer=Optimizer(
                weight_bytes=BF16,
                gradient_bytes=software.gradient_bytes,
                state_bytes=software.state_bytes,
                buffer_bytes=software.buffer_bytes,
            ),
            schedule=schedule,
            zero=(zero,),
            recompute=tuple({recompute: None, "none": None}),
            sequence_parallel=choices.sequence_parallel,
            virtual_stages=(virtual,),
            overlap=overlap,
        ),
    )
    plan = Plan(
        replicas=replicas,
        micro_batch=micro_batch,
        stages=tuple(stages),
        virtual_stages=virtual,
        placement="v" if schedule in FIXED_CHUNKS else "loop",
        overlap=tuple(overlap),
    )
    return ModelledRun(
        problem, plan, _workspace_bytes(row, site.device, software)
    )


def _with_one_matrix(graph: Graph, matrix_bytes: int) -> Graph:
    """Leave the matrix that the head shares to the embedding.

    A head has a copy of its own, which it needs on another stage; software
    makes none where both are on the same.
    """
    return replace(
        graph,
        kinds=tuple(
            replace(
                kind,
                costs=tuple(
                    replace(
                        cost, weight_bytes=cost.weight_bytes - matrix_bytes
                    )
                    for cost in kind.costs
                ),
            )
            if kind.name == "head"
            else kind
            for kind in graph.kinds
        ),
    )


def _accumulation_bytes(software: Software, zero: int, count: int) -> float:
    """Return what adds up gradients of ``count`` micro-batches, per weight.

    On average over them: the first finds none to be added to. From ZeRO 2
    on shards are added, which is next to nothing.
    """
    if zero >= SHARDED_GRADIENTS:
        return 0.0
    return software.accumulation_bytes * (count - 1) / count


def _workspace_bytes(row: Row, device: Device, software: Software) -> int:
    """Return what libraries of matrix products keep.

    PyTorch gives cuBLAS a workspace per thread, which are two: that of the
    forward and that of the backward passes. Transformer Engine has one of
    its own, and as many as its streams for grouped products. They are larger
    from Hopper on, the first devices that multiply fp8, and where runs are
    deterministic (``CUBLAS_WORKSPACE_CONFIG=:4096:8``).
    """
    if not software.transformer_engine:
        return 0
    is_hopper = "fp8" in device.peak_flops
    deterministic = software.deterministic and not _flash(row, software)
    cublas = (
        LARGE_WORKSPACE_BYTES
        if is_hopper or deterministic
        else CUBLAS_WORKSPACE_BYTES
    )
    engine = LARGE_WORKSPACE_BYTES if is_hopper else ENGINE_WORKSPACE_BYTES
    grouped = bool(row.experts) and re.search(
        r"grouped[-_ ]?gemm", f"{row.notes} {row.model}", re.IGNORECASE
    )
    return 2 * cublas + engine * (1 + GROUPED_STREAMS * bool(grouped))


def task_of(row: Row) -> str:
    """Return what the notes name as the task, such as ``SFT Performance``."""
    found = re.search(
        r"\btask ([^;]+)|\bfine-tuning \(([^)]+)\)", row.notes or ""
    )
    return found.group(1) or found.group(2) if found else ""


def _virtual(
    row: Row, stated: Stated, schedule: Schedule, software: Software
) -> int:
    """Return the chunks per block: stated, or by schedule and software."""
    if stated.pp == 1:
        return 1
    fixed = FIXED_CHUNKS.get(schedule)
    if fixed is not None:
        return fixed
    if row.vpp is not None or not software.chunk_layers:
        return row.vpp or 1
    blocks = stated.pp * software.chunk_layers
    layers = stated.layers
    return next(
        (n // blocks for n in (layers, layers + 2) if n % blocks == 0), 1
    )


def _expert_ranks(
    row: Row, stated: Stated, software: Software, sequence_parallel: bool
) -> tuple[int, bool]:
    """Return the plan's ``ep``, and whether ``tp`` cuts experts.

    Where experts are cut over fewer ranks than ``tp``, expert parallelism
    spans tensor parallel ranks: a strategy's ``ep`` is what is beside them.
    Whole experts are spread over ``tp`` too, which needs sequence
    parallelism. Else every expert is cut over all ``tp`` ranks: a device
    keeps the same weights and does the same work, but sends tokens to fewer
    groups and has narrower products. Experts of which there would be copies
    within ``tp`` are cut all the same.
    """
    ep, tp = row.ep or 1, stated.tp
    if not row.experts or ep == 1:
        return ep, True
    cut = row.etp or _stated_etp(row) or software.etp
    if not cut and (stated.dp * (row.cp or 1)) % ep:
        # There is no room for it beside all ranks of tp.
        cut = 1
    if not cut or cut >= tp:
        return ep, True
    spread = cut == 1 and ep % tp == 0 and sequence_parallel
    return max(1, ep * cut // tp), not spread


def _stated_etp(row: Row) -> int | None:
    """Return what the words of a row say of it."""
    found = re.search(
        r"expert[- ]tensor[- ]parallel(?:[- ]size)?\W{1,3}(\d+)|\bETP (\d+)"
        r"|[_\d]etp(\d+)",
        f"{row.notes} {row.model}",
    )
    return int(next(filter(None, found.groups()))) if found else None


def _calibrated(
    row: Row, site: Machine, software: Software, options: PredictOptions
) -> Machine:
    """Return the machine with the rates that a row's run reaches.

    Products in fp4 take the place of those in fp8: they are the same ones.
    """
    own = site.calibration_family
    for family in (own, calibrated_family(own)):
        if family in options.calibration:
            site = site.with_calibration(options.calibration[family])
            break
    rates = site.calibration
    rates = replace(
        rates,
        attention_fraction=_attention_share(
            row, software, calibrated_family(own) == HOPPER
        )
        * rates.attention_fraction,
        host_ns=rates.host_ns
        * options.host_shares.get(software.name, software.host_share),
    )
    if _cuda_graphs(row, software):
        rates = replace(rates, host_ns=0.0)
    if row.precision_class == "fp4":
        peaks = site.device.peak_flops
        site = replace(
            site,
            device=replace(
                site.device, peak_flops=peaks | {"fp8": peaks["fp4"]}
            ),
        )
    return site.with_calibration(rates)


def _cuda_graphs(row: Row, software: Software) -> bool:
    """Return whether graphs replay the kernels: stated, or by software."""
    if row.cuda_graphs is not None:
        return row.cuda_graphs
    # Graphs with a scope are of parts of a layer.
    stated = re.search(
        r"(?<!scoped_)cuda ?graph", f"{row.notes} {row.model}", re.IGNORECASE
    )
    return software.cuda_graphs or stated is not None


def _dispatch_node(
    row: Row, site: Machine, stated: Stated, software: Software
) -> int:
    """Return the devices of a node that a token is sent to once.

    0 where it is sent once for each of its experts: stated, or by software.
    """
    once = software.dispatch_once
    if re.search(r"\b(Deep|Hybrid)EP\b", row.notes or ""):
        once = True
    elif re.search(r"\bAlltoAll dispatcher\b", row.notes or ""):
        once = False
    return site.shape(stated.num_devices)[1] if once else 0


def _overlap(row: Row, software: Software) -> tuple[Overlap, ...]:
    """Return what is overlapped: what a row switches off is not."""
    stated = (row.overlap or "").lower()
    if stated.startswith("none"):
        return ()
    off: set[str] = set()
    if "gradient and parameter overlap off" in stated:
        off = {"weights", "gradients"}
    on = {"ep"} if re.search(r"all-to-all\b.*\boverlap", stated) else set()
    return tuple(
        name
        for name in OVERLAP
        if name in on or (name in software.overlap and name not in off)
    )


def _sharding_group(row: Row, dp: int) -> int:
    """Return over how many of the ``dp`` ranks states are sharded.

    "within groups of 8", "FSDP within node (8)", "copies of 8" and "shard=8"
    say it, and "HSDP", whose groups are nodes (HYBRID_SHARD of PyTorch's
    FSDP); otherwise all ranks.
    """
    text = row.shard_mode or ""
    found = re.search(
        r"(?:(?:groups|copies) of |within (?:node|slice) \(|(?:shard|FSDP)=)"
        r"(\d+)",
        text,
    )
    if found is not None:
        group = int(found.group(1))
    elif "HSDP" in text:
        group = (row.devices_per_node or 0) // ((row.tp or 1) * (row.cp or 1))
    else:
        return dp
    return group if 0 < group < dp and dp % group == 0 else dp


def _chunks(
    layers: int, count: int, software: Software, graph: Graph
) -> list[int] | None:
    """Split embedding, ``layers`` blocks and head into pipeline chunks.

    Blocks are spread evenly, or embedding and head count as blocks too; or,
    unless the software is known to do one, they do where only all of them
    together divide evenly (as Megatron-LM's options to account for them in
    the split, and DeepSpeed's ``type:transformer|embedding``, do). What is
    left over goes to the first chunks.
    """
    balance = software.balance
    if balance == "either":
        even = layers % count == 0
        balance = "blocks" if even or (layers + 2) % count else "all"
    counted = layers + 2 if balance == "all" and count > 1 else layers
    if counted < count:
        return None
    if balance == "times":
        return _balanced_chunks(layers, count, graph)
    whole, rest = divmod(counted, count)
    sizes = [whole + (1 if i < rest else 0) for i in range(count)]
    if counted == layers:
        sizes[0] += 1
        sizes[-1] += 1
    return sizes


def _balanced_chunks(layers: int, count: int, graph: Graph) -> list[int]:
    """Split so that the heaviest chunk is as light as can be.

    One block after the other goes to the chunk that is then lightest, which
    is best for equal blocks; embedding and head stay where they are.
    """
    time_ns = {
        kind.name: kind.costs[0].times.passes_ns for kind in graph.kinds
    }
    loads = [0.0] * count
    loads[0] += time_ns["embedding"]
    loads[-1] += time_ns["head"]
    sizes = [0] * count
    sizes[0] += 1
    sizes[-1] += 1
    for _ in range(layers):
        lightest = min(range(count), key=loads.__getitem__)
        loads[lightest] += time_ns["decoder"]
        sizes[lightest] += 1
    return sizes


def _flash(row: Row, software: Software) -> bool:
    """Return whether attention is one kernel: stated, or by software."""
    stated = (row.attention_impl or "").lower()
    if re.search("unfused|torch|megatron|softmax", stated):
        return False
    if software.deterministic:
        return (row.cp or 1) > 1
    if "flash" in stated:
        return True
    return software.flash_attention


def _attention_share(row: Row, software: Software, is_hopper: bool) -> float:
    """Return the share of the rate of attention: stated, or by software."""
    version = re.search(
        r"flash[-_ ]?att\w*[-_ ]*v?([123])", (row.attention_impl or "").lower()
    )
    stated = version and version.group(1)
    if stated == "3" or (stated is None and software.hopper_attention):
        return 1.0
    share = {"1": FIRST_FLASH, "2": 1.0, None: software.attention_share}[
        stated
    ]
    return share * SECOND_FLASH_ON_HOPPER if is_hopper else share


def _fused(row: Row, software: Software) -> bool:
    text = f"{row.attention_impl} {row.notes}"
    return software.fused or "RMS" in text


def _model(row: Row, stated: Stated, software: Software) -> Architecture:
    gated = bool(row.gated_mlp)
    hidden = stated.hidden
    classic = not gated and software.classic
    experts = row.experts or 0
    width = row.moe_ffn_hidden if experts else row.ffn_hidden
    width = width or row.ffn_hidden or 4 * hidden
    shared = (row.shared_experts or 0) * width if experts else 0
    block = Block(
        name="decoder",
        hidden=hidden,
        attention=Attention(
            heads=stated.heads,
            kv_heads=row.kv_heads or stated.heads,
            head_size=row.head_dim or hidden // stated.heads,
            rotary=gated,
            biases=classic,
            output_bias=classic,
        ),
        mlp=Mlp(
            hidden=width,
            gated=gated,
            biases=classic,
            experts=experts,
            experts_per_token=row.topk or (1 if experts else 0),
            shared_hidden=shared,
        ),
        layer_norm=not gated,
        dropout=classic,
    )
    tower = Tower(
        runs=(RepeatedBlock(block=block, count=stated.layers),),
        vocabulary=stated.vocab,
        learned_positions=0 if gated else stated.seq_len,
    )
    return Architecture(
        name=row.model or "model",
        towers=(tower,),
        head=Head(outputs=stated.vocab, tied=bool(row.tied_embeddings)),
        max_sequence=stated.seq_len,
    )
