"""From a row of published measurements to a problem, a plan and its score.

A row says what ran: model shape, mesh, micro-batch, recomputation, software.
:func:`build` writes that down as a problem with one choice of everything and
the one plan for it; :func:`predict` scores it with the shared cost model.
Nothing here is fitted, and no row is treated apart.

:mod:`nest.validation.settings` says what a row leaves open.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice, product
from typing import NamedTuple

from msgspec.structs import replace

from nest.cost.score import Score, score
from nest.errors import NestError, UnknownNameError
from nest.hardware import Machine, device_spec
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
from nest.ir.job import FIXED_CHUNKS, SPLIT_BACKWARD, Job, Optimizer, Schedule
from nest.ir.plan import Overlap, Plan, Recompute, Stage, Strategy
from nest.ir.problem import Problem
from nest.models.architectures import Architecture
from nest.models.blocks import Attention, Block, Head, Mlp, RepeatedBlock, Tower
from nest.models.choices import Choices, Degrees
from nest.models.graphs import build_graph, in_range
from nest.models.operators.base import BF16, DTYPES, Execution, vocabulary_rows
from nest.uncertainty.headroom import MEAN_ERROR
from nest.units import ceil_div
from nest.validation.complete import architecture_of
from nest.validation.negation import says
from nest.validation.rows import Row, ran_out_of_memory
from nest.validation.settings import (
    Stated,
    attention_share,
    dispatch_node,
    expert_ranks,
    has_cuda_graphs,
    is_flash,
    is_fused,
    is_per_operator,
    machine_of,
    overlap_of,
    periods,
    recomputations,
    schedule_of,
    sharding_group,
    task_of,
    virtual_stages,
)
from nest.validation.software import Software, software_of, splits_sequences

#: Family whose parameters devices of Hopper take.
HOPPER = "H100"

#: ZeRO stage from which a micro-batch's gradients are sharded.
SHARDED_GRADIENTS = 2

#: Values of ``mem_class`` that have what the allocator caches.
CACHED_CLASSES = ("torch_reserved", "nvidia-smi")

#: Workspaces for matrix products. cuBLAS in PyTorch has 2 x 4 MiB and 8 x 16 KiB, from
#: Hopper on 8 x 4 MiB (parseChosenWorkspaceSize in
#: aten/src/ATen/cuda/CublasHandlePool.cpp); Transformer Engine 4 MiB, from Hopper on 32
#: (get_cublas_workspace_size_bytes), and four more for grouped products
#: (get_multi_stream_cublas_workspace in transformer_engine/pytorch/module/base.py).
CUBLAS_WORKSPACE_BYTES = 2 * 2**22 + 8 * 2**14
LARGE_WORKSPACE_BYTES = 2**25
ENGINE_WORKSPACE_BYTES = 2**22
GROUPED_STREAMS = 4


#: What casts to fp4 move over what casts to fp8 do: these read a value in 16 bits and
#: write it twice in 8, 4 bytes; fp4 has a scale of the whole tensor beside those of its
#: blocks, so that its maximum is read first, 2 bytes more (pytorch/ao#3050: two level
#: scaling of NVFP4).
FP4_CASTS = 1.5


class PredictOptions(Struct, frozen=True, kw_only=True):
    """Options of a prediction."""

    #: Parameter sets instead of the stored ones, by device family, or by the one whose
    #: parameters it takes, see :func:`~nest.hardware.calibration.calibrated_family`.
    calibration: dict[str, Calibration] = {}
    #: Parameters that do not depend on the device, instead of the stored ones.
    software: SoftwareCalibration | None = None
    #: Factors on the host's time instead of those of the table, by the name of the
    #: entry of :data:`~nest.validation.software.SOFTWARE`.
    host_shares: dict[str, float] = {}


#: The stored calibration.
STORED = PredictOptions()


class Prediction(NamedTuple):
    """What the cost model says about a row."""

    #: Step time.
    step_time_s: float | None
    #: Memory of the device that the row's figure is about, in its sense.
    memory_bytes: int | None
    #: Whether the plan fits the devices' memory.
    fits: bool | None
    #: Parts of the memory of that device, in bytes.
    breakdown: dict[str, float]
    #: Whether it fits too with head-room of the model's error
    #: (:data:`~nest.uncertainty.headroom.MEAN_ERROR`) left free.
    fits_with_headroom: bool | None = None


class Skip(NamedTuple):
    """Why a row cannot be predicted."""

    reason: str


class ModeledRun(NamedTuple):
    """A row as a problem with one plan.

    Libraries of matrix products keep ``workspace_bytes`` on a device.
    """

    problem: Problem
    plan: Plan
    workspace_bytes: int = 0


class PredictedRun(NamedTuple):
    """A row as a problem with one plan, scored."""

    run: ModeledRun
    verdict: Score
    prediction: Prediction


def predict(row: Row, options: PredictOptions = STORED) -> Prediction | Skip:
    """Predict the step time and the memory of a row, or say why not.

    A row that does not state its recomputation takes the least with which
    the plan fits, or the most if none fits. A run that went out of memory
    takes the least, as its software does by default. The prediction with
    head-room takes the least with which the plan fits with head-room.
    """
    run = predicted_run(row, options)
    return run if isinstance(run, Skip) else run.prediction


def predicted_run(row: Row, options: PredictOptions = STORED) -> PredictedRun | Skip:
    """Return what :func:`predict` scores of a row."""
    choices = recomputations(row)
    if not choices:
        return Skip("recomputation that no plan expresses")
    if ran_out_of_memory(row) and not row.recompute:
        choices = choices[:1]
    first_fit: PredictedRun | None = None
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
        if first_fit is None or not first_fit.prediction.fits:
            first_fit = PredictedRun(case, verdict, prediction)
        if prediction.fits_with_headroom:
            roomy = first_fit.prediction._replace(fits_with_headroom=True)
            return first_fit._replace(prediction=roomy)
    assert first_fit is not None
    return first_fit


def predict_under(row: Row, calibration: CalibrationFile) -> Prediction | Skip:
    """Predict a row with a user's own calibration.

    It says nothing about devices that it is not of: their rows are skipped.
    """
    try:
        family = device_spec(row.hardware or "").family
    except UnknownNameError:
        return Skip("unknown device")
    rates = calibration.of(family)
    if rates is None:
        return Skip("a device that the calibration is not of")
    options = PredictOptions(calibration={family: rates}, software=calibration.software)
    return predict(row, options)


def _software(options: PredictOptions) -> SoftwareCalibration:
    return options.software or stored_calibration().software


def _prediction(
    row: Row, case: ModeledRun, verdict: Score, options: PredictOptions
) -> Prediction:
    """Return the step time, and the memory in the sense of the row.

    PyTorch's counters of what is allocated know the libraries' workspaces too; what is
    reserved also has what the allocator caches, and nvidia-smi the reserve besides.
    """
    blocks = verdict.blocks
    outputs = _output_bytes(row, case, [block.inflight for block in blocks])
    copies = _copied_bytes(row, len(blocks))
    strategy = case.plan.stages[0].layer_strategies[0]
    buckets = case.problem.job.optimizer.bucket_bytes(strategy)
    activations = [
        max(
            block.kept_bytes + block.working_bytes - buckets,
            block.kept_bytes * (block.inflight - 1) // block.inflight + copy,
        )
        for block, copy in zip(blocks, copies, strict=True)
    ]
    needed = [
        block.memory_bytes
        - (block.kept_bytes + block.working_bytes)
        + activated
        + size
        + buckets
        for block, activated, size in zip(blocks, activations, outputs, strict=True)
    ]
    index = needed.index(max(needed))
    if (row.mem_class or "").endswith("last_rank"):
        index = len(blocks) - 1
    block = blocks[index]
    parts = {
        "weights": block.weight_bytes,
        "gradients": block.gradient_bytes,
        "optimizer": block.state_bytes,
        "activations": activations[index],
        "outputs": outputs[index],
        "buffers": block.buffer_bytes + buckets,
        "workspaces": case.workspace_bytes,
    }
    cluster = case.problem.cluster
    if row.mem_class in CACHED_CLASSES:
        cached = _software(options).cached_fraction * sum(parts.values())
        parts["cached"] = round(cached)
    if row.mem_class == "nvidia-smi":
        parts["reserve"] = cluster.reserve_bytes()
    memory_bytes = cluster.device.memory_bytes
    free_bytes = memory_bytes - max(needed)
    step_ns = float(verdict.step_time_ns) + _broadcasts_ns(row, case)
    return Prediction(
        step_time_s=step_ns / 1e9,
        memory_bytes=sum(parts.values()),
        fits=verdict.feasible and free_bytes >= 0,
        fits_with_headroom=verdict.feasible and free_bytes >= MEAN_ERROR * memory_bytes,
        breakdown={name: float(size) for name, size in parts.items()},
    )


def _broadcasts_ns(row: Row, case: ModeledRun) -> float:
    """Return what broadcasts take longer than one all-gather does.

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


def _output_bytes(row: Row, case: ModeledRun, in_flight: Sequence[int]) -> list[int]:
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


def _copied_bytes(row: Row, blocks: int) -> list[int]:
    """Return what the copy of one weight's gradient takes, of each block.

    Of software that converts gradients one weight after the other when a
    backward pass is over: its activations are gone, those of the other passes
    in flight are there. The largest weight is the matrix of the vocabulary on
    the first and the last block, elsewhere one of the MLP or the attention.
    """
    value_bytes = software_of(row).gradient_copy_bytes
    if not value_bytes or (row.zero_stage or 0) >= SHARDED_GRADIENTS:
        return [0] * blocks
    tp, hidden = row.tp or 1, row.hidden or 1
    width = max(row.ffn_hidden or 4 * hidden, 3 * hidden)
    inner = hidden * ceil_div(width, tp)
    outer = max(inner, hidden * vocabulary_rows(row.vocab or 1, tp))
    weights = [inner] * blocks
    weights[0] = weights[-1] = outer
    return [value_bytes * count for count in weights]


class _Setting(NamedTuple):
    """What ran, as far as a problem and its plan have it."""

    #: The cells that a row must have, its software, and the schedule of its pipeline.
    stated: Stated
    software: Software
    schedule: Schedule
    #: The machine, with the rates that the run reaches.
    site: Machine
    #: See :func:`~nest.validation.settings.expert_ranks`.
    ep: int
    expert_tp: bool
    #: As in a plan.
    cp: int
    virtual: int
    sequence_parallel: bool
    zero: int
    #: Groups of data-parallel ranks that states are sharded within, and ranks of a
    #: group.
    replicas: int
    ranks: int

    @property
    def micro_batch(self) -> int:
        """Samples of a pipeline step in a group of ranks."""
        return self.stated.micro_batch * self.ranks


def build(
    row: Row,
    recompute: Recompute,
    options: PredictOptions = STORED,
    every: int | None = None,
) -> ModeledRun | Skip:
    """Write a row down as a problem and its plan, or say why not.

    Every so many layers recompute; ``None``: by what the row says, the least.
    """
    setting = _setting(row, options)
    if isinstance(setting, Skip):
        return setting
    stated, software, site = setting.stated, setting.software, setting.site
    if recompute == "offload" and site.host_bytes_per_s is None:
        return Skip("offloading to a host whose link is not known")
    tp, ranks = stated.tp, setting.ranks
    execution = _execution(row, setting)
    model = architecture_of(row) or _model(row, stated, software)
    choices = Choices(
        global_batch=stated.global_batch,
        sequence_length=stated.seq_len,
        micro_batches=(setting.micro_batch,),
        degrees=(Degrees(tp, setting.cp, setting.ep, stated.micro_batch),),
        sequence_parallel=setting.sequence_parallel and tp > 1,
        recompute=tuple({recompute: None, "none": None}),
        dtype=execution.dtype,
        optimizer=_optimizer(setting, model.parameters),
        execution=execution,
    )
    graph = build_graph(model, site, choices)
    if stated.pp == 1 and model.head.tied:
        rows = vocabulary_rows(model.head.outputs, tp)
        graph = _with_one_matrix(graph, BF16 * rows * stated.hidden)
    num_chunks = stated.pp * setting.virtual
    chunks = _chunks(stated.layers, num_chunks, software, graph)
    if chunks is None:
        return Skip("more pipeline stages than layers")
    strategy = Strategy(
        dp=ranks,
        tp=tp,
        cp=setting.cp,
        ep=setting.ep,
        zero=setting.zero,
        recompute=recompute,
    )
    fractions = _software(options).overlap
    overlap = {name: fractions[name] for name in overlap_of(row, software)}
    problem = Problem(
        name=row.row_id or "row",
        software=software.name,
        graph=graph,
        cluster=site.cluster(stated.num_devices),
        job=_job(setting, choices, overlap),
    )
    plan = Plan(
        replicas=setting.replicas,
        micro_batch=setting.micro_batch,
        stages=_stages(graph, chunks, strategy, every or periods(row)[0]),
        virtual_stages=setting.virtual,
        placement="v" if setting.schedule in FIXED_CHUNKS else "loop",
        overlap=tuple(overlap),
    )
    return ModeledRun(problem, plan, _workspace_bytes(row, site.device, software))


def _setting(row: Row, options: PredictOptions) -> _Setting | Skip:
    """Return what ran, or why no problem says it."""
    reason = _why_not(row)
    if reason is not None:
        return Skip(reason)
    schedule = schedule_of(row)
    assert schedule is not None
    stated = Stated(*(getattr(row, name) for name in Stated._fields))
    if None in stated:
        return Skip(f"not stated: {Stated._fields[stated.index(None)]}")
    software = software_of(row)
    tp, dp, cp = stated.tp, stated.dp, row.cp or 1
    if tp * stated.pp * dp * cp != stated.num_devices:
        return Skip("tp·cp·pp·dp is not the number of devices")
    sequence_parallel = splits_sequences(row, software)
    ep, expert_tp = expert_ranks(row, stated, software, sequence_parallel)
    if (dp * cp) % ep:
        return Skip("expert parallelism over tensor parallel ranks")
    try:
        site = machine_of(row)
    except UnknownNameError:
        return Skip("unknown device")
    if row.precision_class not in site.device.peak_flops:
        return Skip(f"the device does not multiply {row.precision_class}")
    for name, degree, size in (
        ("tp", tp, stated.heads),
        ("tp", tp, row.ffn_hidden or 4 * stated.hidden),
        ("cp", cp, stated.seq_len),
        ("ep", ep, row.experts or ep),
    ):
        if size % degree:
            return Skip(f"{name} does not divide what it splits")
    ranks = sharding_group(row, dp)
    setting = _Setting(
        stated=stated,
        software=software,
        schedule=schedule,
        site=reached_by(row, software, site, options),
        ep=ep,
        expert_tp=expert_tp,
        cp=cp,
        virtual=virtual_stages(row, stated, schedule, software),
        sequence_parallel=sequence_parallel,
        zero=software.zero if row.zero_stage is None else row.zero_stage,
        replicas=dp // ranks,
        ranks=ranks,
    )
    if stated.global_batch % (setting.replicas * setting.micro_batch):
        return Skip("the micro-batches do not divide the global batch")
    return setting


def _why_not(row: Row) -> str | None:
    """Return which words of a row no problem can express, or None."""
    if schedule_of(row) is None:
        return "a schedule that no plan has"
    if row.precision_class is None:
        return "precision not stated"
    if _dtype(row) not in DTYPES:
        return "precision that operators are not counted in"
    if says(r"\bLoRA\b", f"{row.model}; {row.notes}") and not re.search(
        r"\bSFT\b", f"{row.model} {task_of(row)}"
    ):
        return "fine-tuning of adapters"
    return None


def _dtype(row: Row) -> str | None:
    """Return the data type that products are counted in."""
    return "fp8" if row.precision_class == "fp4" else row.precision_class


def _execution(row: Row, setting: _Setting) -> Execution:
    stated, software = setting.stated, setting.software
    (dtype,) = (name for name in DTYPES if name == _dtype(row))
    count = stated.global_batch // (setting.replicas * setting.micro_batch)
    return replace(
        execution_of(row, software, setting.site, stated.num_devices),
        dtype=dtype,
        split_backward=setting.schedule in SPLIT_BACKWARD,
        expert_tp=setting.expert_tp,
        accumulation_bytes=_accumulation_bytes(software, setting.zero, count),
    )


def execution_of(
    row: Row, software: Software, site: Machine, num_devices: int
) -> Execution:
    """Return how operators are run: as a row states it, else as its software does."""
    return Execution(
        flash_attention=is_flash(row, software),
        fused=is_fused(row, software),
        fused_softmax="torch" not in (row.attention_impl or "").lower(),
        fused_loss=software.fused_loss,
        logit_bytes=software.logit_bytes,
        loss_bytes=software.loss_bytes,
        repeat_attention=software.repeat_attention,
        selective_operators=software.selective_operators or is_per_operator(row),
        dispatch_node=dispatch_node(row, site, num_devices, software),
        fused_router=software.fused_router,
        fused_experts=software.fused_experts,
        weight_copy_bytes=software.weight_copy_bytes,
        checkpointed_ends=False,
    )


def _stages(
    graph: Graph, chunks: Sequence[int], strategy: Strategy, every: int
) -> tuple[Stage, ...]:
    """Return a stage of each chunk; every so many blocks recompute.

    Embedding and head never do.
    """
    plain = replace(strategy, recompute="none")
    numbered = enumerate(graph.layers)
    stages = []
    for size in chunks:
        members = list(islice(numbered, size))
        stages.append(
            Stage(
                layers=tuple(layer.id for _, layer in members),
                devices=strategy.dp * strategy.tp * strategy.cp,
                strategies=tuple(
                    plain
                    if layer.kind in ("embedding", "head") or index % every
                    else strategy
                    for index, layer in members
                ),
            )
        )
    return tuple(stages)


def _optimizer(setting: _Setting, weights: int) -> Optimizer:
    """Return what is kept of a model of so many weights."""
    software = setting.software
    is_summed = setting.zero < SHARDED_GRADIENTS
    optimizer = Optimizer(
        weight_bytes=BF16,
        gradient_bytes=software.gradient_bytes,
        state_bytes=software.state_bytes,
        buffer_bytes=software.buffer_bytes if is_summed else 0,
    )
    return software.with_buckets(optimizer, weights)


def _job(setting: _Setting, choices: Choices, overlap: dict[Overlap, float]) -> Job:
    stated = {
        "schedule": setting.schedule,
        "zero": (setting.zero,),
        "virtual_stages": (setting.virtual,),
        "overlap": overlap,
    }
    return Job(**choices.of_job | stated)


def _with_one_matrix(graph: Graph, matrix_bytes: int) -> Graph:
    """Leave the matrix that the head shares to the embedding.

    A head has a copy of its own, which it needs on another stage; software
    makes none where both are on the same.
    """
    *others, head = graph.kinds
    costs = tuple(
        replace(cost, weight_bytes=cost.weight_bytes - matrix_bytes)
        for cost in head.costs
    )
    return replace(graph, kinds=(*others, replace(head, costs=costs)))


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
    deterministic = software.deterministic and not is_flash(row, software)
    cublas = (
        LARGE_WORKSPACE_BYTES if is_hopper or deterministic else CUBLAS_WORKSPACE_BYTES
    )
    engine = LARGE_WORKSPACE_BYTES if is_hopper else ENGINE_WORKSPACE_BYTES
    grouped = row.experts and says(r"grouped[-_ ]?gemm", f"{row.notes}; {row.model}")
    return 2 * cublas + engine * (1 + GROUPED_STREAMS * bool(grouped))


def reached_by(
    row: Row, software: Software, site: Machine, options: PredictOptions = STORED
) -> Machine:
    """Return the machine with the rates that a row's run reaches.

    Products in fp4 take the place of those in fp8: they are the same ones. Their casts
    move more.
    """
    family = site.calibration_family
    like = calibrated_family(family)
    stated = options.calibration
    rates = stated.get(family) or stated.get(like) or site.calibration
    share = attention_share(row, software, like == HOPPER)
    host_share = options.host_shares.get(software.name, software.host_share)
    if has_cuda_graphs(row, software):
        host_share = 0.0
    rates = replace(
        rates,
        attention_fraction=share * rates.attention_fraction,
        host_ns=host_share * rates.host_ns,
    )
    if row.precision_class == "fp4":
        peaks = site.device.peak_flops
        peaks = peaks | {"fp8": peaks["fp4"]}
        rates = replace(rates, cast_bytes=FP4_CASTS * rates.cast_bytes)
        site = replace(site, device=replace(site.device, peak_flops=peaks))
    return site.with_calibration(rates)


def _chunks(
    layers: int, count: int, software: Software, graph: Graph
) -> list[int] | None:
    """Split embedding, ``layers`` blocks and head into pipeline chunks.

    Blocks are spread evenly, or embedding and head count as blocks too; or, unless the
    software is known to do one, they do where only all of them together divide evenly
    (as Megatron-LM's options to account for them in the split, and DeepSpeed's
    ``type:transformer|embedding``, do). What is left over goes to the first chunks.
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
    time_ns = {kind.name: kind.costs[0].times.passes_ns for kind in graph.kinds}
    loads, sizes = [0.0] * count, [0] * count
    for index, end in ((0, "embedding"), (-1, "head")):
        loads[index] += time_ns[end]
        sizes[index] += 1
    for _ in range(layers):
        lightest = min(range(count), key=loads.__getitem__)
        loads[lightest] += time_ns["decoder"]
        sizes[lightest] += 1
    return sizes


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
