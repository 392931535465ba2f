"""Megatron-LM: arguments, and what its parsers make of them.

Written for megatron-core 0.19. What its parsers accept although no run can start so is
refused when the arguments are read: micro-batches that interleaved stages cannot group,
empty chunks, expert degrees and optimizer instances that do not divide the data ranks.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from nest.constraints.targets import OPTIMIZERS
from nest.errors import InvalidPlanError
from nest.frameworks.arguments import Arguments
from nest.frameworks.hosts import read_hosts
from nest.frameworks.launch import (
    Groups,
    Launch,
    Mesh,
    Settings,
    as_run,
    check_memory,
    length_of,
    mesh_and_expert_groups,
    usual_groups,
    usual_mesh,
)
from nest.frameworks.layers import Chunk, with_ends
from nest.frameworks.megatron_details import Flag, Flags
from nest.frameworks.megatron_model import (
    check_shape,
    check_tensor_split,
    model_flags,
    read_model,
)
from nest.frameworks.shell import read_script
from nest.ir.plan import OVERLAP, Overlap, Recompute
from nest.models.architectures import Architecture
from nest.models.hf.config import MOST_LAYERS

FILE = "args.sh"
START = (
    f"bash: source {FILE}, then torchrun (or srun) {{world}} times "
    f'pretrain_gpt.py of Megatron-LM with "${{{{ARGS[@]}}}}" and your '
    f"arguments for data, tokenizer, learning rate and checkpoints."
)
#: What runs behind computation, by nest's name for it.
_OVERLAP: dict[Overlap, str] = {
    "tp": "--tp-comm-overlap",
    "ep": "--overlap-moe-expert-parallel-comm",
    "weights": "--overlap-param-gather",
    "gradients": "--overlap-grad-reduce",
}
#: Megatron-FSDP's names of the ZeRO stages that need it.
_SHARDING = {2: "optim_grads", 3: "optim_grads_params"}
_LAYOUT = "--pipeline-model-parallel-layout"

#: Maximum length of a layout with all repeats, in letters. Repeats of repeats
#: would fill all memory.
_MAX_LAYOUT = 4 * MOST_LAYERS
_CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
_VIRTUAL = "--num-virtual-stages-per-pipeline-rank"
_LAYERS_PER_CHUNK = "--num-layers-per-virtual-pipeline-stage"
#: Arguments about the layers of stages, which no layout takes in addition.
_SPLITS = (
    _VIRTUAL,
    _LAYERS_PER_CHUNK,
    "--decoder-first-pipeline-num-layers",
    "--decoder-last-pipeline-num-layers",
    "--account-for-loss-in-pipeline-split",
    "--account-for-embedding-in-pipeline-split",
)
_PARTITION = "--pp-partition-method"
#: Whether an embedding and the head count as layers, by DeepSpeed's name.
_PARTITIONS = {"type:transformer": False, "type:transformer|embedding": True}
_EXPERT_TP = "--expert-tensor-parallel-size"
_INSTANCES = "--num-distributed-optimizer-instances"

_GROUP = "--microbatch-group-size-per-virtual-pipeline-stage"
#: Bytes of an optimizer's moments per weight in fp32: SGD with momentum and
#: Muon have one; see :data:`nest.constraints.targets.memory.OPTIMIZERS`.
_MOMENTS = {name: OPTIMIZERS[name] for name in ("adam", "sgd", "muon")}
#: Bytes of what ``--use-precision-aware-optimizer`` keeps.
_TYPE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
_AWARE = "--use-precision-aware-optimizer"
_STATE_DTYPES = {
    "--main-params-dtype": ("fp32", "fp16"),
    "--exp-avg-dtype": ("fp32", "fp16", "bf16", "fp8"),
    "--exp-avg-sq-dtype": ("fp32", "fp16", "bf16", "fp8"),
    "--main-grads-dtype": ("fp32", "bf16"),
}


def stated(launch: Launch) -> Launch:
    """Return a launch as the file states it: no flag overlaps context parallelism."""
    overlap = tuple(name for name in launch.overlap if name != "cp")
    return replace(as_run(launch), overlap=overlap)


def mesh_of(launch: Launch) -> Mesh:
    """Return how ranks are numbered, the fastest axis first.

    Stages come last, unless a replica has one data rank: then
    ``--use-tp-pp-dp-mapping`` keeps replicas together, as plans do. (With
    context parallelism Megatron wants the same of the groups of experts.)
    """
    *inside, replicas, stages = usual_mesh(launch)
    if pipelines_inside(launch):
        return (*inside, stages, replicas)
    return (*inside, replicas, stages)


def pipelines_inside(launch: Launch) -> bool:
    """Whether the order with data ranks slowest is that of the plan.

    Megatron then wants experts on as many ranks as it wants tensor and context ranks.
    """
    ranks = launch.ep * launch.strategy.expert_tp
    alone = launch.dp == launch.cp == 1 and ranks == launch.tp
    return alone and launch.replicas > 1 and launch.stages > 1


def layout_of(chunks: Sequence[Chunk]) -> str:
    """Return the pipeline layout, such as ``Et*7|t*9|t*9|t*7mL``."""

    def times(letter: str, count: int) -> str:
        return f"{letter}*{count}" if count > 1 else letter * count

    return "|".join(
        "E" * chunk.embedding
        + times("t", chunk.layers)
        + times("m", chunk.mtp)
        + "L" * chunk.head
        for chunk in chunks
    )


def plan_flags(launch: Launch) -> list[Flag]:
    """Return the arguments of a plan."""
    flags = Flags()
    flag = flags.add
    stages = launch.stages
    flag("--tensor-model-parallel-size", launch.tp)
    flag("--pipeline-model-parallel-size", stages)
    flag("--context-parallel-size", launch.cp)
    flag("--expert-model-parallel-size", launch.ep, when=launch.ep > 1)
    expert_tp = launch.strategy.expert_tp
    flag(_EXPERT_TP, expert_tp, when=launch.ep > 1 or launch.etp)
    # Where modules for multi-token prediction are is always written.
    laid = launch.even_layers is None or (launch.mtp and stages > 1)
    flag(_LAYOUT, layout_of(launch.chunks), when=laid)
    virtual = launch.virtual_stages
    flag(_VIRTUAL, virtual, when=virtual > 1 and not laid)
    flag("--sequence-parallel", when=launch.sequence_parallel)
    flag("--micro-batch-size", launch.samples)
    flag("--global-batch-size", launch.global_batch)
    flag("--use-tp-pp-dp-mapping", when=pipelines_inside(launch))
    if launch.recompute == "selective":
        flag("--recompute-granularity", "selective")
        flag("--recompute-modules", "core_attn")
    elif launch.recompute == "full":
        flag("--recompute-granularity", "full")
        flag("--recompute-method", "uniform")
        flag("--recompute-num-layers", 1)
    if launch.zero in _SHARDING:
        flag("--use-megatron-fsdp")
        flag("--data-parallel-sharding-strategy", _SHARDING[launch.zero])
        flag("--ckpt-format", "fsdp_dtensor")
    elif launch.zero or launch.distributed_optimizer:
        flag("--use-distributed-optimizer")
    flag(_INSTANCES, launch.replicas, when=launch.zero and launch.replicas > 1)
    # Parameters are gathered early only together with gradients.
    for name, option in _OVERLAP.items():
        flag(option, when=name in launch.overlap)
    half_moments = _has_half_moments(launch)
    flag(_AWARE, when=half_moments)
    flag("--exp-avg-dtype", "bf16", when=half_moments)
    flag("--exp-avg-sq-dtype", "bf16", when=half_moments)
    if launch.optimizer == "sgd":
        flag("--optimizer", "sgd")
        flag("--sgd-momentum", "0.9")
    flag("--bf16", when=launch.dtype in ("bf16", "fp8"))
    flag("--fp16", when=launch.dtype == "fp16")
    flag("--fp8-format", "hybrid", when=launch.dtype == "fp8")
    half, size = launch.dtype == "fp16", launch.gradient_bytes
    flag("--grad-reduce-in-bf16", when=size == 2 and not half)
    flag("--accumulate-allreduce-grads-in-fp32", when=size == 4 and half)
    return flags


def _has_half_moments(launch: Launch) -> bool:
    """Return whether Adam keeps moments in bf16, which needs a sharded optimizer.

    See ``__post_init__`` of megatron/core/optimizer/optimizer_config.py.
    """
    return (
        launch.optimizer == "adam"
        and launch.state_bytes == 4 + OPTIMIZERS["adam-bf16"]
        and bool(launch.zero or launch.distributed_optimizer)
    )


def write(
    launch: Launch, model: Architecture, _settings: Settings, heading: str
) -> dict[str, str]:
    """Return the arguments as a bash array; ``ExportModule.write`` says its errors."""
    if launch.optimizer not in ("adam", "sgd"):
        raise InvalidPlanError(
            f"optimizer.name: expected adam or sgd, got {launch.optimizer}; "
            f"Megatron-LM keeps other state for matrices than for other weights with it"
        )
    if not _has_half_moments(launch):
        check_memory(launch, 4 + _MOMENTS[launch.optimizer])
    length = length_of(launch)
    flags = model_flags(model, length, launch.tp) + plan_flags(launch)
    setting = f"export {_CONNECTIONS}=1\n"
    return {FILE: array(heading, flags, setting * _one_connection(launch))}


def array(heading: str, flags: Sequence[Flag], settings: str = "") -> str:
    """Return arguments as a bash array ``ARGS``, one to a line."""
    rows = [shlex.join((name, *map(str, values))) for name, values in flags]
    lines = [f"  {row}" for row in rows]
    return "\n".join((f"# {heading}", f"{settings}ARGS=(", *lines, ")", ""))


def read_array(text: str, where: str, settings: Collection[str] = ()) -> Arguments:
    """Read what :func:`array` writes, and nothing else.

    Raises ``InvalidPlanError`` if there is more in the file, or what only a shell could
    tell.
    """
    script = read_script(text, where)
    if script.commands or set(script.variables) - {"ARGS", *settings}:
        line = script.commands[0].line if script.commands else 1
        raise InvalidPlanError(
            f"{where}:{line}: expected the array ARGS and settings only, got "
            f"something else; remove it"
        )
    arguments = Arguments(script.variables.get("ARGS", ()), where)
    for token in arguments.unknown:
        raise InvalidPlanError(
            f"{where}:{token.line}: expected values, got {token.unknown}; write it out"
        )
    return arguments


def _one_connection(launch: Launch) -> bool:
    """Whether Megatron asks for one queue per device.

    With tp or cp before Blackwell, but never with FSDP, and not where the
    exchange of experts is to run beside them.
    """
    return (
        (launch.tp > 1 or launch.cp > 1)
        and launch.zero not in _SHARDING
        and "ep" not in launch.overlap
    )


class Reading(NamedTuple):
    """A launch that arguments describe, as :func:`as_run` has it, and its model.

    ``pipelines_inside``: all stages of a data rank come before the next data rank.
    """

    launch: Launch
    model: Architecture
    pipelines_inside: bool = False


def read(files: Mapping[str, str], model: Architecture) -> tuple[Launch, Groups]:
    """Read an export of this module; ``ExportModule.read`` says its errors."""
    arguments = read_array(files[FILE], FILE, (_CONNECTIONS,))
    devices = read_hosts(files)
    reading = read_arguments(arguments, len(devices), "export")
    arguments.check_all_used()
    launch = reading.launch
    setting = read_script(files[FILE], FILE).variables.get(_CONNECTIONS, ())
    one = _one_connection(launch)
    if [token.text for token in setting] != ["1"] * one:
        raise InvalidPlanError(
            f"{FILE}: {_CONNECTIONS}: expected {'1' if one else 'no such setting'} "
            f"with these degrees, got another; correct it"
        )
    check_shape(FILE, model, reading.model, launch.sequence_length)
    return launch, groups_of(reading, devices)


def groups_of(reading: Reading, devices: Sequence[int]) -> Groups:
    """Return the groups that Megatron makes of its ranks, as devices.

    Data ranks are numbered with replicas slowest; experts are spread over
    consecutive ranks of them; instances of the optimizer are equal parts of
    them, in their order (``parallel_state.py`` of megatron-core).
    """
    launch = reading.launch
    if not reading.pipelines_inside:
        return usual_groups(launch, devices)
    tp, cp, dp, replicas, stages = usual_mesh(launch)
    split = launch.strategy
    cut, experts = ("tp", split.expert_tp), ("experts", split.expert_ranks)
    return mesh_and_expert_groups(
        launch,
        (tp, cp, stages, dp, replicas),
        (cut, ("ep", launch.ep), stages, experts, replicas),
        devices,
    )


def read_arguments(arguments: Arguments, world: int, name: str) -> Reading:
    """Return the launch that arguments describe on ``world`` devices.

    Raises ``InvalidPlanError`` if an argument is missing, out of range, contradicts
    another one, or no run can start with it.
    """
    _check_supported(arguments)
    model, length = read_model(arguments, name)
    modules = model.towers[0].modules
    tp = arguments.count("--tensor-model-parallel-size")
    stages = arguments.count("--pipeline-model-parallel-size")
    cp = arguments.count("--context-parallel-size")
    data = data_ranks(arguments, world, tp, stages, cp)
    ep, etp = _expert_degree(arguments, model, tp, cp, data)
    samples = arguments.needed("--micro-batch-size")
    batch = _global_batch(arguments, samples, data)
    micro_batches, rest = divmod(batch, samples * data)
    arguments.check(
        rest == 0,
        "--global-batch-size",
        f"a multiple of --micro-batch-size * data parallel = {samples} * {data}",
        batch,
    )
    chunks, virtual = chunks_of(arguments, model.layers, modules, stages)
    _check_interleaving(arguments, stages, virtual, micro_batches)
    sequence = arguments.has("--sequence-parallel") and tp > 1
    _check_split(arguments, model, tp, cp, length, sequence)
    expert_tp = etp or tp
    zero, instances = _zero(arguments, data, cp, data * cp * tp // (expert_tp * ep))
    inside = arguments.has("--use-tp-pp-dp-mapping")
    arguments.check(
        not inside or cp * tp == ep * expert_tp,
        "--use-tp-pp-dp-mapping",
        f"as many {'tensor * ' * etp}context as expert ranks",
        f"{cp * tp // expert_tp} and {ep}",
        "remove it",
    )
    launch = Launch(
        tp=tp,
        cp=cp,
        dp=data // instances,
        ep=ep,
        etp=etp,
        replicas=instances,
        stages=stages,
        virtual_stages=virtual,
        chunks=chunks,
        zero=zero,
        recompute=recompute_of(arguments, model.layers // len(chunks), modules),
        micro_batch=samples * data // instances,
        global_batch=batch,
        sequence_length=length,
        overlap=_overlap(arguments, zero, sequence, modules),
        sequence_parallel=sequence,
        **_precision(arguments),
    )
    _check_hidden_experts(arguments, launch)
    return Reading(as_run(launch), model, inside)


def data_ranks(
    arguments: Arguments, world: int, tp: int, stages: int, cp: int = 1
) -> int:
    """Return the data parallel degree on ``world`` devices.

    Raises ``InvalidPlanError`` if the other degrees do not divide the devices.
    """
    ranks = tp * stages * cp
    product = f"tensor * pipeline * context parallel = {tp} * {stages} * {cp}"
    arguments.check(
        world % ranks == 0,
        "--tensor-model-parallel-size",
        f"{product} to divide the {world} devices",
        ranks,
    )
    return world // ranks


def _global_batch(arguments: Arguments, samples: int, data: int) -> int:
    """Return the samples of a step, the last ones where they grow.

    With ``--batch-size``, of 2019 and 2020, a step has one micro-batch.
    """
    name = "--global-batch-size"
    batch = arguments.integer_or_none(name)
    arguments.texts("--rampup-batch-size")
    grows = arguments.texts("--step-batch-size-schedule")
    if batch is not None:
        return batch
    if "--batch-size" in arguments.options:
        arguments.assumed.append(
            f"the global batch is {arguments.location('--batch-size')} {samples} on "
            f"each of {data} data ranks; --say global-batch-size=N gives another"
        )
        return samples * data
    if grows is not None:
        last = " ".join(grows).replace(",", " ").rpartition(":")[2]
        raise arguments.refuse(
            *(name, "a value", f"none, and a batch that grows to {last}"),
            f"pass --say global-batch-size={last} for the last steps",
        )
    return arguments.needed(name)


def _check_interleaving(
    arguments: Arguments, stages: int, virtual: int, micro_batches: int
) -> None:
    """Refuse micro-batches that interleaved stages cannot group."""
    group = arguments.integer(_GROUP, default=stages)
    if virtual == 1:
        return
    arguments.check(
        micro_batches % stages == 0,
        "--global-batch-size",
        f"a number of micro-batches that the {stages} interleaved pipeline "
        f"stages divide",
        f"{micro_batches} micro-batches",
        "change the batch",
    )
    arguments.check(
        group == stages,
        _GROUP,
        f"as many micro-batches as the {stages} pipeline stages",
        group,
        "plans interleave no other groups",
    )


def _expert_degree(
    arguments: Arguments, model: Architecture, tp: int, cp: int, data: int
) -> tuple[int, int]:
    """Return the expert parallel degree, and ``etp`` of strategies."""
    experts = _experts(model)
    ep = arguments.count("--expert-model-parallel-size")
    expert_tp = arguments.integer(_EXPERT_TP, default=tp)
    arguments.check(
        ep == 1 or (experts > 0 and experts % ep == 0),
        "--expert-model-parallel-size",
        f"a divisor of the {experts} experts",
        ep,
    )
    arguments.check(
        not experts or expert_tp in (1, tp),
        _EXPERT_TP,
        f"--tensor-model-parallel-size {tp} or 1",
        expert_tp,
        "plans cut experts over all tensor ranks or none",
    )
    etp = int(bool(experts) and expert_tp < tp)
    whole = tp if etp else 1
    arguments.check(
        data * cp * whole % ep == 0,
        "--expert-model-parallel-size",
        f"a divisor of data * context{' * tensor' * etp} parallel = {data} * {cp}"
        + f" * {tp}" * etp,
        ep,
    )
    return ep, etp


def _experts(model: Architecture) -> int:
    return max(block.mlp.experts for block in model.towers[0].blocks())


def _check_split(
    arguments: Arguments,
    model: Architecture,
    tp: int,
    cp: int,
    length: int,
    sequence: bool,
) -> None:
    """Refuse degrees that do not divide the model."""
    check_tensor_split(arguments, model, tp)
    kv_heads = model.towers[0].runs[0].block.attention.kv_heads
    arguments.check(
        kv_heads % tp == 0 or tp % kv_heads == 0,
        "--num-query-groups",
        f"a multiple or a divisor of --tensor-model-parallel-size {tp}",
        kv_heads,
    )
    pieces = (2 * cp if cp > 1 else 1) * (tp if sequence else 1)
    arguments.check(
        length % pieces == 0,
        "--seq-length",
        f"a multiple of {'2 * ' * (cp > 1)}context parallel"
        f"{' * tensor parallel' * sequence} = {pieces}",
        length,
    )
    arguments.check(
        tp == 1 or sequence or not _experts(model),
        "--sequence-parallel",
        "it with experts and tensor parallelism",
        "none",
        "add it",
    )


#: What a command line says in place of PyTorch's FSDP2, which shards as ZeRO 3 does.
_AS_MEGATRON_FSDP = (
    *("--ignore", "use-torch-fsdp2", "--say", "use-megatron-fsdp="),
    *("--say", f"data-parallel-sharding-strategy={_SHARDING[3]}"),
    *("--say", "ckpt-format=fsdp_dtensor"),
)


def _zero(
    arguments: Arguments, data: int, cp: int, expert_ranks: int
) -> tuple[int, int]:
    """Return the ZeRO stage, and over how many instances it is replicated.

    ``expert_ranks`` hold the same experts.
    """
    zero = int(arguments.has("--use-distributed-optimizer"))
    strategy = arguments.text(
        "--data-parallel-sharding-strategy", ("no_shard", "optim", *_SHARDING.values())
    )
    checkpoint = arguments.text("--ckpt-format")
    if arguments.has("--use-megatron-fsdp"):
        stages = {name: stage for stage, name in _SHARDING.items()}
        stages |= {"optim": 1, "no_shard": 0}
        if strategy is None:
            # Its default is another one in other versions.
            raise arguments.refuse(
                *("--data-parallel-sharding-strategy", "a value", "none"),
                f"add it, such as {_SHARDING[3]}",
            )
        zero = stages[strategy]
        arguments.check(
            checkpoint == "fsdp_dtensor",
            "--ckpt-format",
            "fsdp_dtensor with --use-megatron-fsdp",
            checkpoint or "none",
        )
    if arguments.has("--use-torch-fsdp2"):
        raise arguments.refuse(
            "--use-torch-fsdp2",
            "--use-megatron-fsdp or --use-distributed-optimizer",
            "another implementation",
            "it is not read",
            _AS_MEGATRON_FSDP,
        )
    instances = arguments.count(_INSTANCES)
    arguments.check(
        instances == 1 or zero > 0,
        _INSTANCES,
        "an optimizer that is sharded",
        "none",
        "remove it",
    )
    arguments.check(
        data % instances == 0 and expert_ranks % instances == 0,
        _INSTANCES,
        f"a divisor of the {data} data ranks"
        + (f" and of the {expert_ranks} of experts" * (expert_ranks != data * cp)),
        instances,
    )
    return zero, instances


def recompute_of(arguments: Arguments, layers: int, predicting: int) -> Recompute:
    """Return the recompute choice of all layers.

    Of ``layers`` in a chunk, with ``predicting`` modules for multi-token prediction.

    Raises ``InvalidPlanError`` if the arguments contradict each other, or recompute a
    part of the layers.
    """
    granularity = arguments.text("--recompute-granularity", ("selective", "full"))
    modules = arguments.texts("--recompute-modules")
    method = arguments.text("--recompute-method", ("uniform", "block"))
    count = arguments.integer_or_none("--recompute-num-layers")
    # All that versions before granularities recomputed were whole layers.
    old = "--activations-checkpoint-method" in arguments.options
    if arguments.has("--checkpoint-activations") or old:
        granularity, method = granularity or "full", method or "uniform"
    if arguments.has("--recompute-activations"):
        arguments.check(
            granularity != "full",
            "--recompute-activations",
            "one choice of what is recomputed",
            f"{arguments.location('--recompute-granularity')} full too",
            "remove one",
        )
        granularity = "selective"
    if granularity is None:
        return "none"
    if granularity == "selective":
        arguments.check(
            modules in (None, ("core_attn",)),
            "--recompute-modules",
            "core_attn",
            " ".join(modules or ()),
            "plans recompute no other part alone",
        )
        return "selective"
    arguments.check(
        method is not None,
        "--recompute-method",
        "uniform or block with --recompute-granularity full",
        "none",
    )
    if method == "uniform":
        arguments.check(
            count in (None, 1),
            "--recompute-num-layers",
            "1 with the method uniform",
            count,
            "plans keep the input of every layer",
        )
    else:
        arguments.check(
            not predicting,
            "--recompute-method",
            "uniform with --mtp-num-layers",
            "block",
            "Megatron recomputes no module for multi-token prediction then",
        )
        arguments.check(
            count == layers,
            "--recompute-num-layers",
            f"all {layers} layers of a chunk with the method block",
            count,
            "plans recompute all layers of a stage or none",
        )
    return "full"


def _overlap(
    arguments: Arguments, zero: int, sequence: bool, modules: int
) -> tuple[Overlap, ...]:
    """Return what runs behind computation."""
    names = {name for name, flag in _OVERLAP.items() if arguments.has(flag)}
    sharded = "gradients" in names and zero > 0
    both = f"{_OVERLAP['gradients']} and a sharded optimizer too"
    needs: dict[Overlap, tuple[bool, str, object, str]] = {
        "tp": (sequence, "--sequence-parallel too", "none", "add it"),
        "ep": (modules <= 1, "--mtp-num-layers of 1 at most", modules, "remove it"),
        "weights": (sharded, both, "none", "add it"),
    }
    for name, (holds, expected, got, remedy) in needs.items():
        holds = holds or name not in names
        arguments.check(holds, _OVERLAP[name], expected, got, remedy)
    return tuple(name for name in OVERLAP if name in names)


def _check_hidden_experts(arguments: Arguments, launch: Launch) -> None:
    """Refuse what Megatron does not run beside the exchange of experts."""
    if "ep" not in launch.overlap:
        return
    arguments.check(
        launch.stages == 1 or launch.virtual_stages > 1,
        _OVERLAP["ep"],
        f"virtual stages with {launch.stages} pipeline stages",
        "none",
        "add them or remove it",
    )
    arguments.check(
        launch.recompute != "full",
        _OVERLAP["ep"],
        "no full recomputation",
        f"{arguments.location('--recompute-granularity')} full too",
        "remove one",
    )


def _precision(arguments: Arguments) -> dict[str, Any]:
    """Return the data type and the bytes of the optimizer."""
    half, brain = arguments.has("--fp16"), arguments.has("--bf16")
    eight = arguments.text("--fp8-format", ("hybrid", "e4m3"))
    narrow = arguments.has("--grad-reduce-in-bf16")
    wide = arguments.has("--accumulate-allreduce-grads-in-fp32")
    arguments.check(
        not (half and brain), "--fp16", "one data type", "--bf16 too", "keep one"
    )
    arguments.check(
        not (narrow and wide),
        "--grad-reduce-in-bf16",
        "gradients of one data type",
        "--accumulate-allreduce-grads-in-fp32 too",
        "keep one",
    )
    arguments.check(
        half or brain, "--bf16", "--bf16 or --fp16", "none, which is fp32", "add one"
    )
    # Megatron sums those in bf16 in fp32, unless the optimizer keeps them in bf16.
    narrow = narrow or arguments.text("--main-grads-dtype") == "bf16"
    gradient_bytes = 4 if wide or (brain and not narrow) else 2
    return {
        "dtype": "fp8" if eight else "fp16" if half else "bf16",
        "weight_bytes": 2,
        "state_bytes": _state_bytes(arguments, gradient_bytes),
        "optimizer": arguments.text("--optimizer") or "adam",
        "gradient_bytes": gradient_bytes,
    }


def _state_bytes(arguments: Arguments, gradient_bytes: int) -> int:
    """Return the bytes of master weights and moments, per weight.

    The data types are those of ``--use-precision-aware-optimizer``, and
    without it all in fp32.
    """
    name = arguments.text("--optimizer", tuple(_MOMENTS)) or "adam"
    if name == "sgd":
        arguments.check(
            arguments.number("--sgd-momentum", 0.9) > 0,
            "--sgd-momentum",
            "a momentum > 0",
            arguments.text("--sgd-momentum"),
            "plans keep one moment with SGD",
        )
    aware = arguments.has(_AWARE)
    bytes_of = {}
    for option, kinds in _STATE_DTYPES.items():
        kind = arguments.text(option, kinds) or "fp32"
        arguments.check(
            kind == "fp32" or (aware and name == "adam"),
            option,
            "fp32 without --use-precision-aware-optimizer and Adam",
            kind,
        )
        bytes_of[option] = _TYPE_BYTES[kind]
    main_gradient_bytes = bytes_of.pop("--main-grads-dtype")
    arguments.check(
        not aware or main_gradient_bytes >= gradient_bytes,
        "--main-grads-dtype",
        "fp32 with gradients that are reduced in fp32",
        "bf16",
        "remove one of them",
    )
    return 4 + _MOMENTS[name] if name != "adam" else sum(bytes_of.values())


def _check_supported(arguments: Arguments) -> None:
    """Refuse what changes memory or time in ways that plans do not know."""
    backend = arguments.text("--attention-backend")
    arguments.check(
        backend not in ("unfused", "local"),
        "--attention-backend",
        "auto, flash or fused",
        backend,
        "plans keep no scores of attention",
    )
    exchanges = arguments.texts("--cp-comm-type") or ()
    arguments.check(
        {"p2p", "allgather", "all_gather"}.issuperset(exchanges)
        or arguments.count("--context-parallel-size") == 1,
        "--cp-comm-type",
        "p2p or allgather with --context-parallel-size",
        " ".join(exchanges),
        "plans exchange keys and values, not heads",
    )


def chunks_of(
    arguments: Arguments, layers: int, modules: int, stages: int
) -> tuple[tuple[Chunk, ...], int]:
    """Return what every chunk holds, and how many are on a stage."""
    layout = arguments.text(_LAYOUT)
    virtual = arguments.integer_or_none(_VIRTUAL)
    each = arguments.integer_or_none(_LAYERS_PER_CHUNK)
    first = arguments.integer_or_none("--decoder-first-pipeline-num-layers")
    last = arguments.integer_or_none("--decoder-last-pipeline-num-layers")
    # DeepSpeed's stages have as many layers, or layers and embeddings, each.
    with_ends_too = arguments.text(_PARTITION, tuple(_PARTITIONS))
    loss, embedding = (
        arguments.has(f"--account-for-{end}-in-pipeline-split")
        or _PARTITIONS.get(with_ends_too or "", False)
        for end in ("loss", "embedding")
    )
    if layout is not None:
        others = (x for x in _SPLITS if x in arguments.options and x != _VIRTUAL)
        other = next(others, None)
        arguments.check(
            other is None,
            _LAYOUT,
            "no other argument about layers of stages",
            f"{arguments.location(other or '')} too",
            "remove one",
        )
        chunks, count = _read_layout(arguments, layout, layers, modules, stages)
        expected = f"{count}, as many as the layout has"
        arguments.check(virtual in (None, count), _VIRTUAL, expected, virtual)
        return chunks, count
    counts = _counts(arguments, layers + loss + embedding, stages, first, last)
    if each is not None:
        arguments.check(
            virtual is None,
            _LAYERS_PER_CHUNK,
            "one number of chunks",
            f"{arguments.location(_VIRTUAL)} too",
            "remove one",
        )
        arguments.check(
            counts[0] % each == 0,
            _LAYERS_PER_CHUNK,
            f"a divisor of the {counts[0]} layers of a stage",
            each,
        )
        virtual = counts[0] // each
    virtual = virtual or 1
    arguments.check(
        virtual == 1 or stages > 1, _VIRTUAL, "more than one pipeline stage", "one"
    )
    arguments.check(
        not any(count % virtual for count in counts),
        _VIRTUAL,
        f"a divisor of the {min(counts)} layers of a stage",
        virtual,
    )
    held = [count // virtual for _ in range(virtual) for count in counts]
    held[0] -= embedding
    held[-1] -= loss
    return with_ends(held, modules), virtual


def _counts(
    arguments: Arguments, layers: int, stages: int, first: int | None, last: int | None
) -> list[int]:
    """Return the layers of every stage, all its chunks together."""
    fixed = [count for count in (first, last) if count is not None]
    middle, rest = stages - len(fixed), layers - sum(fixed)
    expected = f"a divisor of the {rest} layers"
    if fixed:
        expected = (
            f"stages that split {layers} layers evenly beside "
            f"{' and '.join(map(str, fixed))} on the first or the last one"
        )
    arguments.check(
        middle >= 0 and rest >= 0 and (rest % middle == 0 if middle else rest == 0),
        "--pipeline-model-parallel-size",
        expected,
        stages,
    )
    between = [rest // middle] * middle if middle else []
    counts = (first, *between, last)
    return [count for count in counts if count is not None]


def _read_layout(
    arguments: Arguments, layout: str, layers: int, modules: int, stages: int
) -> tuple[tuple[Chunk, ...], int]:
    """Read a pipeline layout, such as ``Et*7|(t*9|)*2t*7,mL``."""
    letters = [
        _letters(arguments, text, stage)
        for stage, text in enumerate(_without_groups(arguments, layout).split("|"), 1)
    ]
    joined = "".join(letters)
    num_blocks = joined.count("t")
    homes = [stage for stage, text in enumerate(letters, 1) if "m" in text]
    empty = letters.index("") + 1 if "" in letters else 0
    predicting = f"--mtp-num-layers {modules} times m"
    for holds, expected, got in (
        (re.fullmatch(r"E[tm]*L", joined), "one E first and one L last", repr(layout)),
        ("mt" not in joined, "every m behind every t", repr(layout)),
        (num_blocks == layers, f"--num-layers {layers} times t", num_blocks),
        (
            joined.count("m") == modules,
            predicting if modules else "no m without --mtp-num-layers",
            joined.count("m"),
        ),
        (
            len(homes) <= 1,
            "every m in the same stage",
            f"them in stages {' and '.join(map(str, homes))}",
        ),
        (
            len(letters) % stages == 0,
            f"a multiple of --pipeline-model-parallel-size {stages} stages",
            len(letters),
        ),
        (not empty, "something in every stage", f"nothing in stage {empty}"),
        (
            stages > 1 or len(letters) == 1,
            "one stage without pipeline parallelism",
            len(letters),
        ),
    ):
        arguments.check(bool(holds), _LAYOUT, expected, got)
    chunks = tuple(
        Chunk("E" in text, text.count("t"), "L" in text, text.count("m"))
        for text in letters
    )
    return chunks, len(letters) // stages


def _without_groups(arguments: Arguments, layout: str) -> str:
    """Return a layout with its groups written as often as they repeat."""
    text = re.sub(r"[,\s]", "", layout)
    while match := re.search(r"\(([^()]*)\)(?:\*(\d{1,4}))?", text):
        repeated = match[1] * int(match[2] or 1)
        text = text[: match.start()] + repeated + text[match.end() :]
        arguments.check(
            len(text) <= _MAX_LAYOUT,
            _LAYOUT,
            f"at most {_MAX_LAYOUT} characters with all repeats",
            "more",
        )
    return text


def _letters(arguments: Arguments, text: str, stage_number: int) -> str:
    """Return the letters of one stage, such as ``Ettt`` for ``Et*3``."""
    arguments.check(
        re.fullmatch(r"(?:[EtmL](?:\*\d{1,5})?)*", text) is not None,
        _LAYOUT,
        "stages of E, t, t*N, m and L between |",
        f"{text!r} as stage {stage_number}",
    )
    pairs = [
        (letter, int(count or 1))
        for letter, count in re.findall(r"([EtmL])(?:\*(\d+))?", text)
    ]
    arguments.check(
        sum(count for _, count in pairs) <= _MAX_LAYOUT,
        _LAYOUT,
        f"at most {_MAX_LAYOUT} layers",
        f"more in stage {stage_number}",
    )
    return "".join(letter * count for letter, count in pairs)
