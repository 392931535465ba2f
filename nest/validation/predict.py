"""From a row of published measurements to a problem, a plan and its score.

A row says what ran: model shape, mesh, micro-batch, recomputation, software.
:func:`build` writes that down as a problem with one choice of everything and
the one plan for it; :func:`predict` scores it with the shared cost model.
Nothing here is fitted, and no row is treated apart.

What a row leaves open is filled in as the software it names does by default;
:data:`SOFTWARE` is the table.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import NamedTuple

from msgspec.structs import replace

from nest.cost.score import Score, score
from nest.errors import NestError, UnknownNameError
from nest.hardware import machine_for
from nest.hardware.calibration import (
    Calibration,
    calibrated_family,
    stored_calibration,
)
from nest.hardware.calibration import Software as SoftwareCalibration
from nest.ir.base import Struct
from nest.ir.graph import Graph
from nest.ir.job import Job, Optimizer
from nest.ir.plan import (
    RECOMPUTE,
    Overlap,
    Plan,
    Recompute,
    Stage,
    Strategy,
)
from nest.ir.problem import Problem
from nest.models.architectures import Architecture
from nest.models.blocks import Attention, Block, Head, Mlp, Run, Tower
from nest.models.choices import Choices, Degrees
from nest.models.graphs import build_graph
from nest.models.operators import BF16, DTYPES, Execution
from nest.stored import read_stored
from nest.validation.rows import Row


class Software(Struct, frozen=True, kw_only=True):
    """What a training framework does where a row does not say it.

    Attributes
    ----------
    prefix
        Beginning of the framework's name in the rows, or of the source's
        where no framework is named; upper or lower case.
    flash_attention, fused
        Whether attention is one fused kernel, and whether norms and other
        chains of elementwise operators are.
    attention_share
        What its attention kernel reaches of the calibrated rate: half for
        the first FlashAttention (Dao 2023, arXiv 2307.08691, abstract).
    overlap
        Communication that it overlaps with computation.
    gradient_bytes
        Of the gradient that is kept and communicated, per weight.
    zero
        ZeRO stage.
    sequence_parallel
        Whether tensor parallelism splits all activations.
    classic
        Whether it is Megatron-LM of up to 2023 or built on it: trains GPT
        models with biases and dropout, and has no fused loss.
    note
        Why it is as it is.
    """

    prefix: str
    note: str = ""
    flash_attention: bool = True
    fused: bool = True
    attention_share: float = 1.0
    overlap: tuple[Overlap, ...] = ()
    gradient_bytes: int = 2
    zero: int = 0
    sequence_parallel: bool = False
    classic: bool = False


#: What the first FlashAttention reaches of what the second does.
FIRST_FLASH = 0.5

#: First match wins.
SOFTWARE = read_stored("nest.validation", "software", tuple[Software, ...])

#: Patterns of ``recompute`` that mean one of the three choices of a plan.
RECOMPUTATION: dict[str, Recompute] = {
    r"none": "none",
    r"selective": "selective",
    r"(.*\bremat_policy=)?minimal(_with_context)?\)?": "selective",
    r"full\b.*": "full",
}


class PredictOptions(Struct, frozen=True, kw_only=True):
    """Options of a prediction.

    Attributes
    ----------
    calibration
        Parameter sets instead of the stored ones, by device family (one with
        parameters of its own, see
        :func:`~nest.hardware.calibration.calibrated_family`).
    software
        Parameters that do not depend on the device, instead of the stored
        ones.
    """

    calibration: dict[str, Calibration] = {}
    software: SoftwareCalibration | None = None


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
    """

    step_time_s: float | None
    memory_bytes: int | None
    fits: bool | None
    breakdown: dict[str, float]


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
    """A row as a problem with one plan."""

    problem: Problem
    plan: Plan


def predict(row: Row, options: PredictOptions = STORED) -> Prediction | Skip:
    """Predict the step time and the memory of a row, or say why not.

    A row that does not say what is recomputed takes the least that fits, as
    whoever tuned the run did.
    """
    choices = recomputations(row)
    if not choices:
        return Skip("recomputation that no plan expresses")
    first: Prediction | None = None
    for choice in choices:
        case = build(row, choice, options)
        if isinstance(case, Skip):
            return case
        try:
            verdict = score(case.problem, case.plan)
        except NestError as error:
            return Skip(f"no such plan: {str(error).split(':')[0]}")
        prediction = _prediction(row, case, verdict, options)
        if prediction.fits:
            return prediction
        first = first or prediction
    assert first is not None
    return first


def recomputations(row: Row) -> tuple[Recompute, ...]:
    """Return what a row may have recomputed: all if it does not say it."""
    stated = (row.recompute or "").lower()
    if not stated:
        return RECOMPUTE
    if stated.startswith("selective") and (row.framework or "").startswith(
        "PyTorch FSDP"
    ):
        # Some of the layers, in full.
        return ()
    return tuple(
        choice
        for pattern, choice in RECOMPUTATION.items()
        if re.fullmatch(pattern, stated)
    )


def software_of(row: Row) -> Software:
    """Return what is known of the software of a row."""
    name = (row.framework or row.source or "").lower()
    return next(s for s in SOFTWARE if name.startswith(s.prefix.lower()))


def _software(options: PredictOptions) -> SoftwareCalibration:
    return options.software or stored_calibration().software


def _prediction(
    row: Row, case: ModelledRun, verdict: Score, options: PredictOptions
) -> Prediction:
    """Return the step time, and the memory in the sense of the row.

    PyTorch's counters know what is allocated; nvidia-smi also shows what the
    allocator caches and the reserve.
    """
    reserve = case.problem.cluster.reserve_bytes()
    blocks = verdict.blocks
    block = max(blocks, key=lambda block: block.memory_bytes)
    if (row.mem_class or "").endswith("last_rank"):
        block = blocks[-1]
    parts = {
        "weights": block.weight_bytes,
        "gradients": block.gradient_bytes,
        "optimizer": block.state_bytes,
        "activations": block.kept_bytes + block.working_bytes,
        "buffers": block.buffer_bytes,
    }
    if row.mem_class == "nvidia-smi":
        cached = _software(options).cached_fraction * sum(parts.values())
        parts |= {"cached": round(cached), "reserve": reserve}
    return Prediction(
        step_time_s=float(verdict.step_time_ns) / 1e9,
        memory_bytes=sum(parts.values()),
        fits=verdict.feasible,
        breakdown={name: float(size) for name, size in parts.items()},
    )


def build(
    row: Row,
    recompute: Recompute,
    options: PredictOptions = STORED,
) -> ModelledRun | Skip:
    """Write a row down as a problem and its plan, or say why not."""
    if "schedule ZB" in (row.overlap or ""):
        return Skip("zero-bubble schedule")
    if row.precision_class not in DTYPES:
        return Skip("precision that operators are not counted in")
    if re.search(r"\b(LoRA|SFT)\b", f"{row.model} {row.notes}"):
        return Skip("fine-tuning")
    stated = Stated(*(getattr(row, name) for name in Stated._fields))
    if None in stated:
        return Skip(f"not stated: {Stated._fields[stated.index(None)]}")
    tp, pp, dp = stated.tp, stated.pp, stated.dp
    cp, ep = row.cp or 1, row.ep or 1
    virtual = (row.vpp or 1) if pp > 1 else 1
    if tp * pp * dp * cp != stated.num_devices:
        return Skip("tp·cp·pp·dp is not the number of devices")
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
    for name, degree, size in (
        ("tp", tp, stated.heads),
        ("tp", tp, row.ffn_hidden or 4 * stated.hidden),
        ("cp", cp, stated.seq_len),
        ("ep", ep, row.experts or ep),
    ):
        if size % degree:
            return Skip(f"{name} does not divide what it splits")
    family = calibrated_family(site.calibration_family)
    if family in options.calibration:
        site = site.with_calibration(options.calibration[family])
    software = software_of(row)
    share = _attention_share(row, software)
    calibration = site.calibration
    site = site.with_calibration(
        replace(
            calibration,
            attention_fraction=share * calibration.attention_fraction,
        )
    )
    zero = software.zero if row.zero_stage is None else row.zero_stage
    group = _sharding_group(row, dp)
    replicas, ranks = dp // group, group
    micro_batch = stated.micro_batch * ranks
    if stated.global_batch % (replicas * micro_batch):
        return Skip("the micro-batches do not divide the global batch")

    execution = Execution(
        dtype=DTYPES[DTYPES.index(row.precision_class)],
        flash_attention=_flash(row, software),
        fused=_fused(row, software),
        fused_softmax="torch" not in (row.attention_impl or "").lower(),
        fused_loss=not software.classic,
    )
    sequence_parallel = (
        software.sequence_parallel if row.sp is None else bool(row.sp)
    )
    choices = Choices(
        global_batch=stated.global_batch,
        sequence_length=stated.seq_len,
        micro_batches=(micro_batch,),
        degrees=(Degrees(tp, cp, ep, stated.micro_batch),),
        sequence_parallel=sequence_parallel and tp > 1,
        dtype=execution.dtype,
    )
    model = _model(row, stated, software)
    graph = build_graph(model, site, choices, execution)
    chunks = _chunks(stated.layers, pp * virtual)
    if "layer redistribution" in (row.framework or ""):
        chunks = _balanced_chunks(stated.layers, pp * virtual, graph)
    if chunks is None:
        return Skip("more pipeline stages than layers")

    def strategy(choice: Recompute) -> Strategy:
        return Strategy(
            dp=ranks, tp=tp, cp=cp, ep=ep, zero=zero, recompute=choice
        )

    stages = []
    rest = iter(graph.layers)
    for size in chunks:
        members = list(islice(rest, size))
        stages.append(
            Stage(
                layers=tuple(layer.id for layer in members),
                devices=ranks * tp * cp,
                strategies=tuple(
                    strategy(recompute if layer.kind == "decoder" else "none")
                    for layer in members
                ),
            )
        )
    fractions = _software(options).overlap
    overlap = {name: fractions[name] for name in software.overlap}
    problem = Problem(
        name=row.row_id or "row",
        graph=graph,
        cluster=site.cluster(stated.num_devices),
        job=Job(
            global_batch=choices.global_batch,
            micro_batches=choices.micro_batches,
            sequence_length=choices.sequence_length,
            dtype=choices.dtype,
            optimizer=_optimizer(row, software),
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
        overlap=tuple(overlap),
    )
    return ModelledRun(problem, plan)


def _sharding_group(row: Row, dp: int) -> int:
    """Return over how many of the ``dp`` ranks states are sharded.

    "within groups of 8", "FSDP within node (8)" and "shard=8" say it;
    otherwise all ranks.
    """
    text = row.shard_mode or ""
    found = re.search(
        r"(?:groups of |within node \(|within slice \(|shard=|FSDP=)(\d+)",
        text,
    )
    if found is None:
        return dp
    group = int(found.group(1))
    return group if 0 < group < dp and dp % group == 0 else dp


def _chunks(layers: int, count: int) -> list[int] | None:
    """Split embedding, ``layers`` blocks and head into pipeline chunks.

    Blocks are spread evenly; where only embedding and head together with the
    blocks divide evenly, they count as blocks (as Megatron-LM's options to
    account for them in the split, and DeepSpeed's ``type:transformer|
    embedding``, do). What is left over goes to the first chunks.
    """
    if layers < count:
        return None
    if layers % count and (layers + 2) % count == 0 and count > 1:
        return [(layers + 2) // count] * count
    whole, rest = divmod(layers, count)
    sizes = [whole + (1 if i < rest else 0) for i in range(count)]
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
    if "@HEAD" in software.prefix:
        # Functional tests are deterministic, which fused attention is not,
        # unless they are about speed or split the sequence.
        name = row.model or ""
        return "speed" in name or (row.cp or 1) > 1
    if "flash" in stated:
        return True
    return software.flash_attention


def _attention_share(row: Row, software: Software) -> float:
    """Return the share of the rate of attention: stated, or by software."""
    version = re.search(
        r"flash[-_ ]?att\w*[-_ ]*v?([123])", (row.attention_impl or "").lower()
    )
    if version is None:
        return software.attention_share
    return FIRST_FLASH if version.group(1) == "1" else 1.0


def _fused(row: Row, software: Software) -> bool:
    text = f"{row.attention_impl} {row.notes}"
    return software.fused or "RMS" in text


def _optimizer(row: Row, software: Software) -> Optimizer:
    """Return the bytes per weight of mixed-precision Adam.

    DeepSpeed keeps gradients in 2 bytes and, under ZeRO 1 in fp16, an fp32
    copy of those of its own shard, next to master copy and moments; its
    BF16Optimizer accumulates all gradients in fp32 beside them, and the
    BLOOM runs show two more bytes per weight.
    Megatron-LM accumulates in fp32 in bf16 training.
    """
    deepspeed = "DeepSpeed" in software.prefix
    half = row.precision_class == "bf16"
    gradient_bytes, state_bytes = software.gradient_bytes, 12
    buffer_bytes = 0
    if deepspeed and half:
        buffer_bytes = 6
    elif deepspeed:
        state_bytes = 16
    elif software.prefix == "Megatron-LM" and half:
        gradient_bytes = 4
    return Optimizer(
        weight_bytes=BF16,
        gradient_bytes=gradient_bytes,
        state_bytes=state_bytes,
        buffer_bytes=buffer_bytes,
    )


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
        runs=(Run(block=block, count=stated.layers),),
        vocabulary=stated.vocab,
        learned_positions=0 if gated else stated.seq_len,
    )
    return Architecture(
        name=row.model or "model",
        towers=(tower,),
        head=Head(outputs=stated.vocab, tied=bool(row.tied_embeddings)),
        max_sequence=stated.seq_len,
    )
