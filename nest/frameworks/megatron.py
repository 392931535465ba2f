"""Megatron-LM: arguments, and what its parsers make of them.

Written for megatron-core 0.19. What its parsers accept although no run can
start so is refused when the arguments are read: micro-batches that interleaved
stages cannot group, empty chunks, expert degrees and optimiser instances that
do not divide the data ranks.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from nest.constraints.targets import OPTIMIZERS
from nest.errors import InvalidPlanError
from nest.frameworks.arguments import Arguments
from nest.frameworks.hosts import read_hosts
from nest.frameworks.launch import (
    Groups,
    Launch,
    Mesh,
    as_run,
    check_memory,
    length_of,
    mesh_and_expert_groups,
)
from nest.frameworks.layers import Chunk
from nest.frameworks.megatron_model import (
    Flags,
    comparable,
    model_flags,
    read_model,
)
from nest.frameworks.settings import Settings
from nest.frameworks.shell import read_script
from nest.ir.plan import OVERLAP, Overlap, Recompute
from nest.models.architectures import Architecture
from nest.models.hf.config import MOST_LAYERS

NAME = "megatron"
FILE = "args.sh"

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

#: Letters of a layout with all its repeats: repeats of repeats would fill
#: all memory.
_MOST_LAYOUT = 4 * MOST_LAYERS
_CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
#: What says the layers of stages beside a layout.
_SPLITS = (
    "--num-virtual-stages-per-pipeline-rank",
    "--num-layers-per-virtual-pipeline-stage",
    "--decoder-first-pipeline-num-layers",
    "--decoder-last-pipeline-num-layers",
    "--account-for-loss-in-pipeline-split",
    "--account-for-embedding-in-pipeline-split",
)
_INSTANCES = "--num-distributed-optimizer-instances"

_OTHER_MODEL = "it is another model than is read"
_GROUP = "--microbatch-group-size-per-virtual-pipeline-stage"
#: Arguments that change model, memory or time in ways that plans do not know.
_REFUSED = {
    "--optimizer-cpu-offload": "plans know no offloading",
    "--cpu-offloading": "plans know no offloading",
    "--fine-grained-activation-offloading": "plans know no offloading",
    "--distribute-saved-activations": (
        "plans keep the inputs of layers whole without sequence parallelism"
    ),
    "--hybrid-override-pattern": _OTHER_MODEL,
    "--encoder-num-layers": _OTHER_MODEL,
    "--retro-add-retriever": _OTHER_MODEL,
    "--standalone-embedding-stage": "say it with an E alone in a layout",
    "--pipeline-model-parallel-split-rank": "plans know no encoder there",
    "--fp8-param-gather": "plans gather weights in two bytes",
    "--moe-layer-recompute": "plans recompute no part of a layer alone",
    "--moe-expert-capacity-factor": "plans drop and pad no tokens",
}
#: Bytes of an optimiser's moments per weight in fp32: SGD with momentum and
#: Muon have one; see :data:`nest.constraints.targets.memory.OPTIMIZERS`.
_MOMENTS = {name: OPTIMIZERS[name] for name in ("adam", "sgd", "muon")}
#: Bytes of what ``--use-precision-aware-optimizer`` keeps.
_TYPE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}


def mesh_of(launch: Launch) -> Mesh:
    """Return how ranks are numbered, the fastest axis first.

    Stages come last, unless a replica has one data rank: then
    ``--use-tp-pp-dp-mapping`` keeps replicas together, as plans do. (With
    context parallelism Megatron wants the same of the groups of experts.)
    """
    inside = (("tp", launch.tp), ("cp", launch.cp), ("dp", launch.dp))
    replicas, stages = ("replicas", launch.replicas), ("stages", launch.stages)
    if pipelines_inside(launch):
        return (*inside, stages, replicas)
    return (*inside, replicas, stages)


def pipelines_inside(launch: Launch) -> bool:
    """Whether the order with data ranks slowest is that of the plan."""
    alone = launch.dp == launch.cp == 1
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


def plan_flags(launch: Launch) -> Flags:
    """Return the arguments of a plan."""
    flags: Flags = []

    def flag(name: str, *values: object, when: object = True) -> None:
        if when:
            flags.append((name, values))

    stages = launch.stages
    flag("--tensor-model-parallel-size", launch.tp)
    flag("--pipeline-model-parallel-size", stages)
    flag("--context-parallel-size", launch.cp)
    flag("--expert-model-parallel-size", launch.ep, when=launch.ep > 1)
    flag("--expert-tensor-parallel-size", launch.tp, when=launch.ep > 1)
    # Where modules for multi-token prediction are is always written.
    laid = launch.even_layers is None or (launch.mtp and stages > 1)
    flag(_LAYOUT, layout_of(launch.chunks), when=laid)
    flag(
        "--num-virtual-stages-per-pipeline-rank",
        launch.virtual_stages,
        when=launch.virtual_stages > 1 and not laid,
    )
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
    flag(
        _INSTANCES,
        launch.replicas,
        when=launch.zero and launch.replicas > 1,
    )
    # Parameters are gathered early only together with gradients.
    for name, option in _OVERLAP.items():
        flag(option, when=name in launch.overlap)
    if launch.optimizer == "sgd":
        flag("--optimizer", "sgd")
        flag("--sgd-momentum", "0.9")
    flag("--bf16", when=launch.dtype in ("bf16", "fp8"))
    flag("--fp16", when=launch.dtype == "fp16")
    flag("--fp8-format", "hybrid", when=launch.dtype == "fp8")
    flag(
        "--grad-reduce-in-bf16",
        when=launch.gradient_bytes == 2 and launch.dtype != "fp16",
    )
    flag(
        "--accumulate-allreduce-grads-in-fp32",
        when=launch.gradient_bytes == 4 and launch.dtype == "fp16",
    )
    return flags


def write(
    launch: Launch, model: Architecture, _settings: Settings, heading: str
) -> dict[str, str]:
    """Return the arguments as a bash array, by file.

    Raises
    ------
    InvalidPlanError
        If the arguments cannot say what the model is, or what is kept per
        weight.
    """
    if launch.optimizer not in ("adam", "sgd"):
        raise InvalidPlanError(
            f"optimizer.name: expected adam or sgd, got {launch.optimizer}; "
            f"Megatron-LM keeps other state for matrices than for other "
            f"weights with it"
        )
    check_memory(launch, 4 + _MOMENTS[launch.optimizer])
    length = length_of(launch)
    flags = model_flags(model, length) + plan_flags(launch)
    setting = f"export {_CONNECTIONS}=1\n"
    return {FILE: array(heading, flags, setting * _one_connection(launch))}


def array(heading: str, flags: Flags, settings: str = "") -> str:
    """Return arguments as a bash array ``ARGS``, one to a line."""
    lines = [f"  {' '.join((name, *map(_quoted, v)))}" for name, v in flags]
    return "\n".join((f"# {heading}", f"{settings}ARGS=(", *lines, ")", ""))


def read_array(
    text: str, where: str, settings: Collection[str] = ()
) -> Arguments:
    """Read what :func:`array` writes, and nothing else.

    Raises
    ------
    InvalidPlanError
        If there is more in the file, or what only a shell could tell.
    """
    script = read_script(text, where)
    if script.commands or set(script.variables) - {"ARGS", *settings}:
        line = script.commands[0].line if script.commands else 1
        raise InvalidPlanError(
            f"{where}:{line}: expected the array ARGS and settings only, got "
            f"something else; remove it"
        )
    ask = Arguments(script.variables.get("ARGS", ()), where)
    for word in ask.unknown:
        raise InvalidPlanError(
            f"{where}:{word.line}: expected values, got {word.unknown}; "
            f"write it out"
        )
    return ask


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


def _quoted(value: object) -> str:
    text = str(value)
    return shlex.quote(text)


class Reading(NamedTuple):
    """What arguments say.

    Attributes
    ----------
    launch
        What runs, as :func:`nest.frameworks.launch.as_run` has it.
    model
        The model.
    pipelines_inside
        Whether all stages of a data rank come before the next data rank.
    """

    launch: Launch
    model: Architecture
    pipelines_inside: bool = False


def said(launch: Launch) -> Launch:
    """Return what of a launch the files say: all of it."""
    return as_run(launch)


def start(launch: Launch) -> str:
    """Say in one line how to start it."""
    return (
        f"bash: source {FILE}, then torchrun (or srun) {launch.world} times "
        f'pretrain_gpt.py of Megatron-LM with "${{ARGS[@]}}" and your '
        f"arguments for data, tokenizer, learning rate and checkpoints."
    )


def read(
    files: Mapping[str, str], model: Architecture
) -> tuple[Launch, Groups]:
    """Read an export of this module, and refuse what could not run.

    Parameters
    ----------
    files
        Texts by name.
    model
        The model that they should describe.

    Raises
    ------
    InvalidPlanError
        If it is broken; the text names file, line and argument.
    """
    ask = read_array(files[FILE], FILE, (_CONNECTIONS,))
    devices = read_hosts(files)
    reading = read_arguments(ask, len(devices), "export")
    ask.check_all_used()
    launch = reading.launch
    given = read_script(files[FILE], FILE).variables.get(_CONNECTIONS, ())
    if [word.text for word in given] != ["1"] * _one_connection(launch):
        raise InvalidPlanError(
            f"{FILE}: {_CONNECTIONS}: expected "
            f"{'1' if _one_connection(launch) else 'no such setting'} with "
            f"these degrees, got another; correct it"
        )
    length = launch.sequence_length
    assert length is not None
    if comparable(model, length) != comparable(reading.model, length):
        raise InvalidPlanError(
            f"{FILE}: expected the shape of {model.name}, got another one; "
            f"correct the arguments of the model"
        )
    return launch, groups_of(reading, devices)


def groups_of(reading: Reading, devices: Sequence[int]) -> Groups:
    """Return the groups that Megatron makes of its ranks, as devices.

    Data ranks are numbered with replicas slowest; experts are spread over
    consecutive ranks of them; instances of the optimiser are equal parts of
    them, in their order (``parallel_state.py`` of megatron-core).
    """
    launch = reading.launch
    inside = (("tp", launch.tp), ("cp", launch.cp), ("dp", launch.dp))
    replicas, stages = ("replicas", launch.replicas), ("stages", launch.stages)
    experts = ("experts", launch.dp * launch.cp // launch.ep)
    split = (("tp", launch.tp), ("ep", launch.ep))
    mesh: Mesh = (*inside, replicas, stages)
    expert_mesh: Mesh = (*split, experts, replicas, stages)
    if reading.pipelines_inside:
        mesh = (*inside[:2], stages, inside[2], replicas)
        expert_mesh = (*split, stages, experts, replicas)
    return mesh_and_expert_groups(launch, mesh, expert_mesh, devices)


def read_arguments(ask: Arguments, world: int, name: str) -> Reading:
    """Return what arguments say on so many devices, without groups.

    Raises
    ------
    InvalidPlanError
        If an argument is missing, out of range, contradicts another one, or
        no run can start with it.
    """
    _check_known(ask)
    model, length = read_model(ask, name)
    modules = model.towers[0].modules
    tp = ask.count("--tensor-model-parallel-size")
    stages = ask.count("--pipeline-model-parallel-size")
    cp = ask.count("--context-parallel-size")
    if world % (tp * stages * cp):
        raise ask.refuse(
            "--tensor-model-parallel-size",
            f"tensor * pipeline * context parallel = {tp} * {stages} * {cp} "
            f"to divide the {world} devices",
            tp * stages * cp,
        )
    data = world // (tp * stages * cp)
    ep = _expert_degree(ask, model, tp, cp, data)
    samples = ask.needed("--micro-batch-size")
    batch = ask.integer("--global-batch-size", default=samples * data)
    assert batch is not None
    if batch % (samples * data):
        raise ask.refuse(
            "--global-batch-size",
            f"a multiple of --micro-batch-size * data parallel = {samples} * "
            f"{data}",
            batch,
        )
    chunks, virtual = _chunks(ask, model.layers, modules, stages)
    if virtual > 1 and batch // (samples * data) % stages:
        raise ask.refuse(
            "--global-batch-size",
            f"a number of micro-batches that the {stages} interleaved "
            f"pipeline stages divide",
            f"{batch // (samples * data)} micro-batches",
            "change the batch",
        )
    group = ask.integer(_GROUP)
    if virtual > 1 and group not in (None, stages):
        raise ask.refuse(
            _GROUP,
            f"as many micro-batches as the {stages} pipeline stages",
            group,
            "plans interleave no other groups",
        )
    sequence = ask.has("--sequence-parallel") and tp > 1
    _check_split(ask, model, tp, cp, length, sequence)
    zero, instances = _zero(ask, data, cp, ep)
    inside = ask.has("--use-tp-pp-dp-mapping")
    if inside and cp != ep:
        raise ask.refuse(
            "--use-tp-pp-dp-mapping",
            "as many context as expert ranks",
            f"{cp} and {ep}",
            "remove it",
        )
    launch = Launch(
        tp=tp,
        cp=cp,
        dp=data // instances,
        ep=ep,
        replicas=instances,
        stages=stages,
        virtual_stages=virtual,
        chunks=chunks,
        zero=zero,
        recompute=_recompute(ask, model.layers // len(chunks), modules),
        micro_batch=samples * data // instances,
        global_batch=batch,
        sequence_length=length,
        overlap=_overlap(ask, zero, sequence, modules),
        sequence_parallel=sequence,
        **_precision(ask),
    )
    _check_hidden_experts(ask, launch)
    return Reading(as_run(launch), model, inside)


def _expert_degree(
    ask: Arguments, model: Architecture, tp: int, cp: int, data: int
) -> int:
    """Return the expert parallel degree."""
    experts = _experts(model)
    ep = ask.count("--expert-model-parallel-size")
    own = ask.integer("--expert-tensor-parallel-size", default=tp)
    if ep > 1 and (not experts or experts % ep):
        raise ask.refuse(
            "--expert-model-parallel-size",
            f"a divisor of the {experts} experts",
            ep,
        )
    if experts and own != tp:
        raise ask.refuse(
            "--expert-tensor-parallel-size",
            f"--tensor-model-parallel-size {tp}",
            own,
            "plans split experts as they split other layers",
        )
    if data * cp % ep:
        raise ask.refuse(
            "--expert-model-parallel-size",
            f"a divisor of data * context parallel = {data} * {cp}",
            ep,
        )
    return ep


def _experts(model: Architecture) -> int:
    return max(block.mlp.experts for block in model.towers[0].blocks())


def _check_split(
    ask: Arguments,
    model: Architecture,
    tp: int,
    cp: int,
    length: int,
    sequence: bool,
) -> None:
    """Refuse degrees that do not divide the model."""
    block = model.towers[0].runs[0].block
    attention = block.attention
    for name, count in (
        ("--num-attention-heads", attention.heads),
        ("--ffn-hidden-size", block.mlp.hidden),
    ):
        if count % tp:
            raise ask.refuse(
                name,
                f"a multiple of --tensor-model-parallel-size {tp}",
                count,
            )
    if attention.kv_heads % tp and tp % attention.kv_heads:
        raise ask.refuse(
            "--num-query-groups",
            f"a multiple or a divisor of --tensor-model-parallel-size {tp}",
            attention.kv_heads,
        )
    pieces = 2 * cp if cp > 1 else 1
    if length % (pieces * tp if sequence else pieces):
        raise ask.refuse(
            "--seq-length",
            f"a multiple of {'2 * ' * (cp > 1)}context parallel"
            f"{' * tensor parallel' * sequence} = "
            f"{pieces * tp if sequence else pieces}",
            length,
        )
    if tp > 1 and _experts(model) and not sequence:
        raise ask.refuse(
            "--sequence-parallel",
            "it with experts and tensor parallelism",
            "none",
            "add it",
        )


def _zero(ask: Arguments, data: int, cp: int, ep: int) -> tuple[int, int]:
    """Return the ZeRO stage, and over how many instances it is replicated."""
    zero = int(ask.has("--use-distributed-optimizer"))
    strategy = ask.text(
        "--data-parallel-sharding-strategy",
        ("no_shard", "optim", *_SHARDING.values()),
    )
    checkpoint = ask.text("--ckpt-format")
    if ask.has("--use-megatron-fsdp"):
        stages = {name: stage for stage, name in _SHARDING.items()}
        stages |= {"optim": 1, "no_shard": 0}
        zero = stages[strategy or "no_shard"]
        if checkpoint != "fsdp_dtensor":
            raise ask.refuse(
                "--ckpt-format",
                "fsdp_dtensor with --use-megatron-fsdp",
                checkpoint or "none",
            )
    if ask.has("--use-torch-fsdp2"):
        raise ask.refuse(
            "--use-torch-fsdp2",
            "--use-megatron-fsdp or --use-distributed-optimizer",
            "another implementation",
            "it is not read",
        )
    instances = ask.count(_INSTANCES)
    if instances > 1 and not zero:
        raise ask.refuse(
            _INSTANCES, "an optimiser that is sharded", "none", "remove it"
        )
    if data % instances or data * cp // ep % instances:
        raise ask.refuse(
            _INSTANCES,
            f"a divisor of the {data} data ranks"
            + (f" and of the {data * cp // ep} of experts" if ep > 1 else ""),
            instances,
        )
    return zero, instances


def _recompute(ask: Arguments, layers: int, predicting: int) -> Recompute:
    """Return the recompute choice of all layers."""
    granularity = ask.text("--recompute-granularity", ("selective", "full"))
    modules = ask.texts("--recompute-modules")
    method = ask.text("--recompute-method", ("uniform", "block"))
    count = ask.integer("--recompute-num-layers")
    if ask.has("--recompute-activations"):
        if granularity == "full":
            raise ask.refuse(
                "--recompute-activations",
                "one choice of what is recomputed",
                f"{ask.place('--recompute-granularity')} full too",
                "remove one",
            )
        granularity = "selective"
    if granularity is None:
        return "none"
    if granularity == "selective":
        if modules not in (None, ("core_attn",)):
            raise ask.refuse(
                "--recompute-modules",
                "core_attn",
                " ".join(modules or ()),
                "plans recompute no other part alone",
            )
        return "selective"
    if method is None:
        raise ask.refuse(
            "--recompute-method",
            "uniform or block with --recompute-granularity full",
            "none",
        )
    if method == "uniform" and count != 1 and count is not None:
        raise ask.refuse(
            "--recompute-num-layers",
            "1 with the method uniform",
            count,
            "plans keep the input of every layer",
        )
    if method == "block" and predicting:
        raise ask.refuse(
            "--recompute-method",
            "uniform with --mtp-num-layers",
            "block",
            "Megatron recomputes no module for multi-token prediction then",
        )
    if method == "block" and (count is None or count != layers):
        raise ask.refuse(
            "--recompute-num-layers",
            f"all {layers} layers of a chunk with the method block",
            count,
            "plans recompute all layers of a stage or none",
        )
    return "full"


def _overlap(
    ask: Arguments, zero: int, sequence: bool, modules: int
) -> tuple[Overlap, ...]:
    """Return what runs behind computation."""
    found = {name for name, flag in _OVERLAP.items() if ask.has(flag)}
    if "tp" in found and not sequence:
        raise ask.refuse(
            _OVERLAP["tp"], "--sequence-parallel too", "none", "add it"
        )
    if "ep" in found and modules > 1:
        raise ask.refuse(
            _OVERLAP["ep"],
            "--mtp-num-layers of 1 at most",
            modules,
            "remove it",
        )
    if "weights" in found and ("gradients" not in found or not zero):
        raise ask.refuse(
            _OVERLAP["weights"],
            f"{_OVERLAP['gradients']} and a sharded optimiser too",
            "none",
            "add it",
        )
    return tuple(name for name in OVERLAP if name in found)


def _check_hidden_experts(ask: Arguments, launch: Launch) -> None:
    """Refuse what Megatron does not run beside the exchange of experts."""
    if "ep" not in launch.overlap:
        return
    if launch.stages > 1 and launch.virtual_stages == 1:
        raise ask.refuse(
            _OVERLAP["ep"],
            f"virtual stages with {launch.stages} pipeline stages",
            "none",
            "add them or remove it",
        )
    if launch.recompute == "full":
        raise ask.refuse(
            _OVERLAP["ep"],
            "no full recomputation",
            f"{ask.place('--recompute-granularity')} full too",
            "remove one",
        )


def _precision(ask: Arguments) -> dict[str, Any]:
    """Return the data type and the bytes of the optimiser."""
    half, brain = ask.has("--fp16"), ask.has("--bf16")
    eight = ask.text("--fp8-format", ("hybrid", "e4m3"))
    narrow = ask.has("--grad-reduce-in-bf16")
    wide = ask.has("--accumulate-allreduce-grads-in-fp32")
    if half and brain:
        raise ask.refuse("--fp16", "one data type", "--bf16 too", "keep one")
    if narrow and wide:
        raise ask.refuse(
            "--grad-reduce-in-bf16",
            "gradients of one data type",
            "--accumulate-allreduce-grads-in-fp32 too",
            "keep one",
        )
    if not (half or brain):
        raise ask.refuse(
            "--bf16", "--bf16 or --fp16", "none, which is fp32", "add one"
        )
    gradient = 4 if wide or (brain and not narrow) else 2
    bytes_of: dict[str, Any] = {
        "weight_bytes": 2,
        "state_bytes": _state_bytes(ask, gradient),
        "optimizer": ask.text("--optimizer") or "adam",
        "gradient_bytes": gradient,
    }
    dtype = "fp8" if eight else "fp16" if half else "bf16"
    return {"dtype": dtype, **bytes_of}


def _state_bytes(ask: Arguments, gradient_bytes: int) -> int:
    """Return the bytes of master weights and moments, per weight.

    The data types are those of ``--use-precision-aware-optimizer``, and
    without it all in fp32.
    """
    name = ask.text("--optimizer", tuple(_MOMENTS)) or "adam"
    if name == "sgd" and not ask.number("--sgd-momentum", 0.9) > 0:
        raise ask.refuse(
            "--sgd-momentum",
            "a momentum > 0",
            ask.text("--sgd-momentum"),
            "plans keep one moment with SGD",
        )
    aware = ask.has("--use-precision-aware-optimizer")
    bytes_of = {}
    for option, known in (
        ("--main-params-dtype", ("fp32", "fp16")),
        ("--exp-avg-dtype", ("fp32", "fp16", "bf16", "fp8")),
        ("--exp-avg-sq-dtype", ("fp32", "fp16", "bf16", "fp8")),
        ("--main-grads-dtype", ("fp32", "bf16")),
    ):
        kind = ask.text(option, known) or "fp32"
        if kind != "fp32" and not (aware and name == "adam"):
            raise ask.refuse(
                option,
                "fp32 without --use-precision-aware-optimizer and Adam",
                kind,
            )
        bytes_of[option] = _TYPE_BYTES[kind]
    grads = bytes_of.pop("--main-grads-dtype")
    if aware and grads < gradient_bytes:
        raise ask.refuse(
            "--main-grads-dtype",
            "fp32 with gradients that are reduced in fp32",
            "bf16",
            "add --grad-reduce-in-bf16 or remove it",
        )
    if name != "adam":
        return 4 + _MOMENTS[name]
    return sum(bytes_of.values())


def _check_known(ask: Arguments) -> None:
    """Refuse what changes memory or time and no plan says."""
    for name, why in _REFUSED.items():
        if ask.texts(name) is not None:
            raise ask.refuse(name, "no such argument", "it", why)
    backend = ask.text("--attention-backend")
    if backend in ("unfused", "local"):
        raise ask.refuse(
            "--attention-backend",
            "auto, flash or fused",
            backend,
            "plans keep no scores of attention",
        )


def _chunks(
    ask: Arguments, layers: int, modules: int, stages: int
) -> tuple[tuple[Chunk, ...], int]:
    """Return what every chunk holds, and how many are on a stage."""
    layout = ask.text(_LAYOUT)
    virtual = ask.integer("--num-virtual-stages-per-pipeline-rank")
    each = ask.integer("--num-layers-per-virtual-pipeline-stage")
    first = ask.integer("--decoder-first-pipeline-num-layers")
    last = ask.integer("--decoder-last-pipeline-num-layers")
    loss = ask.has("--account-for-loss-in-pipeline-split")
    embedding = ask.has("--account-for-embedding-in-pipeline-split")
    if layout is not None:
        other = next((name for name in _SPLITS if name in ask.given), None)
        if other is not None:
            raise ask.refuse(
                _LAYOUT,
                "no other argument about layers of stages",
                f"{ask.place(other)} too",
                "remove one",
            )
        return _read_layout(ask, layout, layers, modules, stages)
    counts = _counts(ask, layers + loss + embedding, stages, first, last)
    if each is not None:
        if virtual is not None:
            raise ask.refuse(
                "--num-layers-per-virtual-pipeline-stage",
                "one number of chunks",
                f"{ask.place('--num-virtual-stages-per-pipeline-rank')} too",
                "remove one",
            )
        if counts[0] % each:
            raise ask.refuse(
                "--num-layers-per-virtual-pipeline-stage",
                f"a divisor of the {counts[0]} layers of a stage",
                each,
            )
        virtual = counts[0] // each
    virtual = virtual or 1
    if virtual > 1 and stages == 1:
        raise ask.refuse(
            "--num-virtual-stages-per-pipeline-rank",
            "more than one pipeline stage",
            "one",
        )
    if any(count % virtual for count in counts):
        raise ask.refuse(
            "--num-virtual-stages-per-pipeline-rank",
            f"a divisor of the {min(counts)} layers of a stage",
            virtual,
        )
    held = [count // virtual for _ in range(virtual) for count in counts]
    held[0] -= embedding
    held[-1] -= loss
    return _with_ends(held, modules), virtual


def _with_ends(counts: Sequence[int], modules: int) -> tuple[Chunk, ...]:
    """Return chunks of so many blocks, with embedding and head around.

    Without a layout Megatron puts modules for multi-token prediction in front
    of the head.
    """
    last = len(counts) - 1
    return tuple(
        Chunk(number == 0, count, number == last, modules * (number == last))
        for number, count in enumerate(counts)
    )


def _counts(
    ask: Arguments,
    layers: int,
    stages: int,
    first: int | None,
    last: int | None,
) -> list[int]:
    """Return the layers of every stage, all its chunks together."""
    fixed = [count for count in (first, last) if count is not None]
    middle, rest = stages - len(fixed), layers - sum(fixed)
    if (
        (middle == 0 and rest)
        or middle < 0
        or rest < 0
        or (middle and rest % middle)
    ):
        raise ask.refuse(
            "--pipeline-model-parallel-size",
            f"a divisor of the {rest} layers"
            if not fixed
            else f"stages that split {layers} layers evenly beside "
            f"{' and '.join(map(str, fixed))} on the first or the last one",
            stages,
        )
    counts = [rest // middle] * middle
    if first is not None:
        counts.insert(0, first)
    if last is not None:
        counts.append(last)
    return counts


def _read_layout(
    ask: Arguments, layout: str, layers: int, modules: int, stages: int
) -> tuple[tuple[Chunk, ...], int]:
    """Read a pipeline layout, such as ``Et*7|(t*9|)*2t*7,mL``."""
    text = re.sub(r"[,\s]", "", layout)
    group = re.compile(r"\(([^()]*)\)(?:\*(\d{1,4}))?")
    while found := group.search(text):
        repeated = found[1] * int(found[2] or 1)
        text = text[: found.start()] + repeated + text[found.end() :]
        if len(text) > _MOST_LAYOUT:
            raise ask.refuse(
                _LAYOUT,
                f"at most {_MOST_LAYOUT} characters with all repeats",
                "more",
            )
    parts = []
    for number, part in enumerate(text.split("|"), 1):
        if re.fullmatch(r"(?:[EtmL](?:\*\d{1,5})?)*", part) is None:
            raise ask.refuse(
                _LAYOUT,
                "stages of E, t, t*N, m and L between |",
                f"{part!r} as stage {number}",
            )
        pairs = re.findall(r"([EtmL])(?:\*(\d+))?", part)
        if sum(int(count or 1) for _, count in pairs) > _MOST_LAYOUT:
            raise ask.refuse(
                _LAYOUT,
                f"at most {_MOST_LAYOUT} layers",
                f"more in stage {number}",
            )
        parts.append(
            "".join(letter * int(count or 1) for letter, count in pairs)
        )
    joined = "".join(parts)
    if re.fullmatch(r"E[tm]*L", joined) is None:
        raise ask.refuse(_LAYOUT, "one E first and one L last", f"{layout!r}")
    if "mt" in joined:
        raise ask.refuse(_LAYOUT, "every m behind every t", f"{layout!r}")
    if joined.count("t") != layers:
        raise ask.refuse(
            _LAYOUT, f"--num-layers {layers} times t", joined.count("t")
        )
    if joined.count("m") != modules:
        raise ask.refuse(
            _LAYOUT,
            f"--mtp-num-layers {modules} times m"
            if modules
            else "no m without --mtp-num-layers",
            joined.count("m"),
        )
    homes = [number for number, x in enumerate(parts, 1) if "m" in x]
    if len(homes) > 1:
        raise ask.refuse(
            _LAYOUT,
            "every m in the same stage",
            f"them in stages {' and '.join(map(str, homes))}",
        )
    if len(parts) % stages:
        raise ask.refuse(
            _LAYOUT,
            f"a multiple of --pipeline-model-parallel-size {stages} stages",
            len(parts),
        )
    if not all(parts):
        raise ask.refuse(
            _LAYOUT,
            "something in every stage",
            f"nothing in stage {parts.index('') + 1}",
        )
    chunks = tuple(
        Chunk("E" in part, part.count("t"), "L" in part, part.count("m"))
        for part in parts
    )
    if stages == 1 and len(parts) > 1:
        raise ask.refuse(
            _LAYOUT, "one stage without pipeline parallelism", len(parts)
        )
    return chunks, len(parts) // stages
