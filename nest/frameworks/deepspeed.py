"""DeepSpeed: its configuration, and Megatron-DeepSpeed's arguments.

The configuration (written for deepspeed 0.19.8) knows batches, ZeRO and data types;
stages, degrees and shape are arguments of Megatron-DeepSpeed, which are Megatron-LM's
old ones and some of its own. Those are not checked against a package: there is none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from nest.errors import InvalidPlanError
from nest.frameworks import megatron, scripts
from nest.frameworks.arguments import Arguments, ignored_note
from nest.frameworks.faults import Correction, Fault, read_all
from nest.frameworks.hosts import read_hosts
from nest.frameworks.keyed import KeyedFile, KeyTable, read_data, split_path
from nest.frameworks.launch import (
    Groups,
    Launch,
    Settings,
    as_run,
    check_dtype,
    check_memory,
    even_chunks,
    length_of,
    usual_groups,
    usual_mesh,
)
from nest.frameworks.layers import Chunk
from nest.frameworks.megatron_details import Flag
from nest.frameworks.megatron_model import (
    check_shape,
    check_tensor_split,
    model_flags,
    read_model,
)
from nest.frameworks.megatron_options import with_present_names
from nest.frameworks.scripts import unread as unread_arguments
from nest.frameworks.shell import Script
from nest.frameworks.shell_programs import plain_path
from nest.frameworks.shell_words import Word, clean
from nest.ir.documents import parse_json, refusing
from nest.ir.plan import Recompute
from nest.models.architectures import Architecture

FILE, ARGUMENTS = "ds.json", "megatron-args.sh"
START = (
    f"bash: source {ARGUMENTS}, then deepspeed --hostfile hostfile "
    f'pretrain_gpt.py of Megatron-DeepSpeed with "${{{{ARGS[@]}}}}" and your '
    f"arguments for data, tokenizer, learning rate and checkpoints "
    f"({{world}} ranks)."
)
#: Axes pipe, data, model.
mesh_of = usual_mesh
stated = as_run


class _Arguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How arguments of Megatron-DeepSpeed differ from Megatron-LM's."""

    renamed: dict[str, str]
    unknown: dict[str, str]
    with_config: frozenset[str]


_OLD = read_data("megatron_deepspeed", _Arguments)


def write(
    launch: Launch, model: Architecture, _settings: Settings, heading: str
) -> dict[str, str]:
    """Return configuration and arguments; ``ExportModule.write`` says its errors."""
    check_memory(launch)
    run = as_run(launch)
    check_dtype(run, ("bf16", "fp16"), "DeepSpeed computes in no other")
    length = length_of(run)
    narrow = run.dtype if run.gradient_bytes == 2 else "fp32"
    stage = run.zero
    if narrow != run.dtype and not stage:
        # Over one rank a stage makes no difference but this one.
        if run.dp > 1:
            raise InvalidPlanError(
                "zero: expected a ZeRO stage with gradients in fp32, got 0; DeepSpeed "
                "sums them in no other data type than the model's without"
            )
        stage = 1
    document = {
        "train_batch_size": run.global_batch,
        "train_micro_batch_size_per_gpu": run.samples,
        "gradient_accumulation_steps": run.micro_batches,
        "zero_optimization": {
            "stage": stage,
            "overlap_comm": "gradients" in run.overlap,
        },
        run.dtype: {"enabled": True},
        "data_types": {"grad_accum_dtype": narrow},
    }
    recomputing = ("--checkpoint-activations", "--deepspeed-activation-checkpointing")
    flags = [
        *_old(model_flags(model, length, run.tp), model),
        ("--tensor-model-parallel-size", (run.tp,)),
        ("--pipeline-model-parallel-size", (run.stages,)),
        *[("--no-pipeline-parallel", ())] * (run.stages == 1),
        ("--micro-batch-size", (run.samples,)),
        ("--global-batch-size", (run.global_batch,)),
        ("--deepspeed", ()),
        ("--deepspeed_config", (FILE,)),
        ("--zero-stage", (stage,)),
        *((name, ()) for name in recomputing if run.recompute == "full"),
        (f"--{run.dtype}", ()),
    ]
    return {
        FILE: json.dumps(document, indent=1) + "\n",
        ARGUMENTS: megatron.array(heading, flags),
    }


def _old(flags: Sequence[Flag], model: Architecture) -> list[Flag]:
    """Return arguments under the names that they have there."""
    old: list[Flag] = []
    for name, values in flags:
        if name in _OLD.unknown:
            raise InvalidPlanError(
                f"model: expected one without {_OLD.unknown[name]}, got "
                f"{model.name}; Megatron-DeepSpeed's arguments do not say it"
            )
        tokens = [name, *map(str, values)]
        line = " ".join(tokens)
        if line in _OLD.renamed:
            tokens = _OLD.renamed[line].split()
        else:
            tokens[:1] = _OLD.renamed.get(name, name).split()
        if tokens:
            old.append((tokens[0], tuple(tokens[1:])))
    return old


def read(files: Mapping[str, str], model: Architecture) -> tuple[Launch, Groups]:
    """Read an export of this module; ``ExportModule.read`` says its errors."""
    devices = read_hosts(files)
    config = config_file(files[FILE], FILE)
    config.check_written()
    arguments = with_present_names(megatron.read_array(files[ARGUMENTS], ARGUMENTS))
    launch, written = _read_pair(config, arguments, len(devices))
    arguments.check_all_used()
    check_shape(ARGUMENTS, model, written, launch.sequence_length)
    return launch, usual_groups(launch, devices)


class _Pair(NamedTuple):
    """A command and its configuration, as a reader takes them."""

    start: scripts.Start
    config: KeyedFile

    def corrected(self, correction: Correction) -> _Pair:
        """Return a copy in which an argument, the cluster or a key is otherwise."""
        if is_key(correction.subject):
            return self._replace(config=self.config.corrected(correction))
        return self._replace(start=self.start.corrected(correction))


def is_key(name: str) -> bool:
    """Whether a name is one of the configuration, not of an argument."""
    sections = {path.partition(".")[0] for path in (*TABLE.keys, *TABLE.elsewhere)}
    return name.partition(".")[0] in sections


def read_launch(
    script: Script,
    where: str,
    world: int,
    find: Callable[[str], str],
    say: Sequence[tuple[str, str]] = (),
    ignored: Sequence[str] = (),
) -> tuple[Launch, Architecture, tuple[str, ...]]:
    """Read a script of Megatron-DeepSpeed with its configuration.

    Parameters are those of :func:`nest.frameworks.scripts.read_launch`; ``say`` and
    ``ignored`` name keys, too. ``find`` returns the text of the configuration of a
    name, unless the script writes it. Returned are the launch, the model, and notes for
    the user.

    Raises ``InvalidPlanError`` if they contradict each other, or no run can start with
    them.
    """
    tokens = scripts.find_words(script, where)
    keys = [(name, value) for name, value in say if is_key(name)]
    others = [(name, value) for name, value in say if not is_key(name)]
    doubled: list[Fault] = []
    ignored_keys = [*filter(is_key, ignored)]
    ignored = [name for name in ignored if name not in ignored_keys]
    stated = (*scripts.without(tokens, ignored, where), *scripts.override_words(others))
    arguments = with_present_names(Arguments(stated, where, doubled=doubled))
    option = arguments.options.get("--deepspeed-config")
    name = option.values[0].text if option and option.values else ""
    written = script.files.get(plain_path(name))
    if written is None:
        name = arguments.text("--deepspeed-config") or ""
        if not name:
            raise arguments.refuse(
                "--deepspeed-config", "the name of a configuration", "none"
            )
    text = _text_of(written, where) if written else find(name)
    config = config_file(text, name, ignored_keys)

    def read(pair: _Pair) -> tuple[Launch, Architecture, tuple[str, ...]]:
        (arguments, world, counted), config = pair
        taken: tuple[str, ...] = ()
        if counted:
            taken = scripts.check_devices(script, tokens, arguments, world)
        launch, model, notes = _read_command(arguments, config, world, tokens)
        return launch, model, (*taken, *notes)

    start = scripts.Start(arguments, world)
    return read_all(read, _Pair(start, config.with_values(keys)), doubled)


def _text_of(written: Word, where: str) -> str:
    """Return the configuration that a script writes, which must be known."""
    document = clean(written)
    if document.unknown:
        variable = re.match(r"\$(\w+)", document.unknown)
        name = variable[1] if variable else "NAME"
        raise Fault(
            f"{where}:{document.line}: expected a configuration that the script "
            f"states, got {document.unknown} in it; say it with --set {name}=VALUE",
            answers=("--set", f"{name}=<VALUE>"),
        )
    return document.text


def _read_command(
    arguments: Arguments, config: KeyedFile, world: int, tokens: Sequence[Word]
) -> tuple[Launch, Architecture, tuple[str, ...]]:
    """Return what arguments with their configuration start, with notes."""
    keys = config.ignored()
    _check_automatic(config)
    # What is read later is no other name written wrongly.
    arguments.used |= {*_OLD.with_config, "--deepspeed-config"}
    try:
        launch, model = _read_pair(config, arguments, world)
    except InvalidPlanError:
        # A name that is written wrongly may be the reason.
        unread_arguments(arguments, tokens)
        raise
    pipeline = not arguments.has("--no-pipeline-parallel")
    launch, sharding = _with_sharding(config, launch, pipeline)
    ignored = unread_arguments(arguments, tokens)
    notes = (*arguments.assumed, *sharding, *ignored, *ignored_note(config.where, keys))
    return launch, model, notes


TABLE = read_data("deepspeed", KeyTable)

#: Sizes of batches; two say the third.
_SIZES = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
)

#: Bytes of the moments per weight, by the type of the optimizer.
_MOMENTS = {
    **dict.fromkeys(("adam", "adamw", "lamb", "fusedadam"), 8),
    **dict.fromkeys(("sgd", "muon", "lion", "adagrad"), 4),
}


def config_file(text: str, where: str, ignore: Sequence[str] = ()) -> KeyedFile:
    """Return the keys of a configuration; ``ignore`` as :class:`KeyedFile` has it.

    Raises ``InvalidPlanError`` if it is no JSON object.
    """
    with refusing(where, InvalidPlanError):
        document = parse_json(text)
    if not isinstance(document, dict):
        raise InvalidPlanError(
            f"{where}: expected a JSON object, got something else; pass "
            f"the configuration of DeepSpeed"
        )
    if "bfloat16" in document:  # its older name
        document.setdefault("bf16", document.pop("bfloat16"))
    return KeyedFile(document, where, TABLE, ignore=ignore)


def _check_automatic(config: KeyedFile) -> None:
    """Refuse a key that is read and that another program fills in.

    Two sizes of batches say the third.
    """
    sizes = [config.document.get(name) for name in _SIZES]
    if sum(size not in (None, "auto") for size in sizes) >= 2:
        for name, size in zip(_SIZES, sizes, strict=True):
            if size == "auto":
                del config.document[name]
    for path in TABLE.keys:
        section, name = split_path(path)
        inside = config.document.get(section) if section else config.document
        if isinstance(inside, dict) and inside.get(name) == "auto":
            raise config.refuse(
                path,
                "a value",
                "'auto', which another program fills in",
                f"write it into the file, or pass --say {path}=VALUE",
            )


def _batches(
    config: KeyedFile, data: int, samples: int | None, batch: int | None
) -> tuple[int, int]:
    """Return samples of a micro-batch on a data rank, and of a step.

    Any two of the three sizes give the third; what arguments say as well
    must be the same.
    """
    micro_key, total_key = "train_micro_batch_size_per_gpu", "train_batch_size"
    micro, total = config.get(micro_key), config.get(total_key)
    steps = config.get("gradient_accumulation_steps")
    for path, ours, theirs in ((micro_key, micro, samples), (total_key, total, batch)):
        if None not in (ours, theirs) and ours != theirs:
            raise config.refuse(path, f"{theirs} as in the arguments", ours)
    micro, total = micro or samples, total or batch
    if micro is None and total is not None and steps is not None:
        micro = total // (steps * data)
    if total is None and micro is not None:
        total = micro * data * (steps or 1)
    if micro is None and total is not None:
        micro = total // data
    if not micro or not total:
        raise config.refuse(total_key, "sizes of batches", "none")
    if total % (micro * data) or steps not in (None, total // (micro * data)):
        raise config.refuse(
            total_key,
            f"{micro_key} * gradient_accumulation_steps * data ranks = "
            f"{micro} * {steps} * {data}",
            total,
        )
    return micro, total


def _precision(config: KeyedFile) -> dict[str, Any]:
    """Return the data type and the bytes of gradients."""
    brain, half = config.get("bf16.enabled"), config.get("fp16.enabled")
    if brain == half:
        got = "both" if brain else "none, which is fp32"
        raise config.refuse("bf16.enabled", "one of bf16 and fp16", got)
    dtype = "bf16" if brain else "fp16"
    path = "data_types.grad_accum_dtype"
    gradients = config.get(path)
    if gradients not in (None, dtype, "fp32"):
        raise config.refuse(path, f"{dtype} or fp32", gradients)
    return {
        "dtype": dtype,
        "gradient_bytes": 4 if gradients == "fp32" else 2,
        "state_bytes": _state_bytes(config),
    }


def _state_bytes(config: KeyedFile) -> int:
    """Return the bytes of master weights and moments, per weight."""
    section = config.document.get("optimizer")
    optimizer = section if isinstance(section, dict) else {}
    kind = optimizer.get("type", "Adam")
    moments = _MOMENTS.get(str(kind).lower())
    if moments is None:
        raise config.refuse("optimizer.type", f"one of {', '.join(_MOMENTS)}", kind)
    if str(kind).lower() == "sgd":
        options = optimizer.get("params")
        if not (isinstance(options, dict) and options.get("momentum")):
            moments = 0
    return 4 + moments


def _read_pair(
    config: KeyedFile, arguments: Arguments, world: int
) -> tuple[Launch, Architecture]:
    """Return the launch that both files describe on ``world`` devices."""
    experts = arguments.texts("--num-experts") or ()
    if not {"0", "1"}.issuperset(experts):
        why = "nest reads no experts of DeepSpeed"
        raise arguments.refuse("--num-experts", "1", " ".join(experts), why, ())
    arguments.options.pop("--num-experts", None)
    model, length = read_model(arguments, "export")
    tp = arguments.count("--tensor-model-parallel-size")
    stages = arguments.count("--pipeline-model-parallel-size")
    data = megatron.data_ranks(arguments, world, tp, stages)
    if arguments.has("--no-pipeline-parallel") and stages > 1:
        raise arguments.refuse(
            "--no-pipeline-parallel",
            f"no such argument with {stages} stages",
            "the opposite",
        )
    location = arguments.location("--tensor-model-parallel-size")
    _check_autotp(config, tp, f"in {location}")
    check_tensor_split(arguments, model, tp)
    samples, batch = (
        arguments.integer_or_none(f"--{name}-batch-size")
        for name in ("micro", "global")
    )
    chunks, _ = megatron.chunks_of(arguments, model.layers, 0, stages)
    launch = _launch(
        *(config, data, tp, chunks, length),
        samples=samples,
        batch=batch,
        recompute=megatron.recompute_of(arguments, model.layers // len(chunks), 0),
    )
    stated, stage = (
        arguments.integer_or_none("--zero-stage", 0),
        config.get("zero_optimization.stage"),
    )
    if stated not in (None, stage):
        raise arguments.refuse("--zero-stage", f"{stage} as in {FILE}", stated)
    if not arguments.has("--deepspeed"):
        raise arguments.refuse("--deepspeed", "it", "none")
    arguments.used.add("--deepspeed-config")
    # Whose function recomputes makes no difference.
    arguments.has("--deepspeed-activation-checkpointing")
    dtypes = [name for name in ("bf16", "fp16") if arguments.has(f"--{name}")]
    if dtypes != [launch.dtype]:
        raise arguments.refuse(
            f"--{launch.dtype}", f"{launch.dtype} as in {FILE}", "another"
        )
    return launch, model


def _launch(
    config: KeyedFile,
    data: int,
    tp: int,
    chunks: tuple[Chunk, ...],
    length: int,
    samples: int | None = None,
    batch: int | None = None,
    recompute: Recompute = "none",
) -> Launch:
    """Return what a configuration starts with these degrees and batches."""
    samples, batch = _batches(config, data, samples, batch)
    zero = config.get("zero_optimization.stage")
    if zero > 1 and len(chunks) > 1:
        raise config.refuse("zero_optimization.stage", "0 or 1 with a pipeline", zero)
    # By default with ZeRO 3 alone (``overlap_comm_valid`` of 0.19.8).
    overlap = config.get("zero_optimization.overlap_comm")
    overlap = (zero == 3 if overlap is None else overlap) and data > 1
    launch = Launch(
        tp=tp,
        dp=data,
        stages=len(chunks),
        chunks=chunks,
        zero=zero,
        recompute=recompute,
        micro_batch=samples * data,
        global_batch=batch,
        sequence_length=length,
        overlap=("gradients",) if overlap else (),
        **_precision(config),
    )
    return as_run(launch)


def _with_sharding(
    config: KeyedFile, launch: Launch, pipeline: bool
) -> tuple[Launch, tuple[str, ...]]:
    """Return a launch with the optimizer as DeepSpeed shards it, and a note of that.

    A ``pipeline`` in bf16, of one stage too, has ``BF16_Optimizer`` without ZeRO, which
    shards its state as ZeRO 1 does (``_do_optimizer_sanity_check`` of 0.19.8); so had
    older versions with gradients in fp32.
    """
    wide = launch.gradient_bytes == 4
    if launch.zero or launch.dtype != "bf16" or not (pipeline or wide):
        return launch, ()
    sharded = as_run(replace(launch, zero=1))
    if not sharded.zero:  # over one rank
        return launch, ()
    note = (
        f"{config.where}: zero_optimization.stage 0 counts as 1: DeepSpeed shards "
        f"the optimizer's state over data ranks "
        f"{'in a pipeline with bf16' if pipeline else 'with gradients in fp32'}"
    )
    return sharded, (note,)


def _check_autotp(config: KeyedFile, tp: int, location: str) -> None:
    """Refuse another tensor parallel degree than ``location`` states."""
    section = config.document.get("tensor_parallel")
    degree = section.get("autotp_size", tp) if isinstance(section, dict) else tp
    if degree != tp:
        raise config.refuse(
            "tensor_parallel.autotp_size", f"{tp} as {location}", degree
        )


def read_foreign(
    text: str,
    where: str,
    world: int,
    model: Architecture,
    sequence_length: int,
    degrees: tuple[int, int] = (1, 1),
    say: Sequence[tuple[str, str]] = (),
    ignore: Sequence[str] = (),
) -> tuple[Launch, tuple[str, ...]]:
    """Read the configuration of a user, and return notes for the user too.

    The file does not say the model, its sequence length, and the ``degrees``, of tensor
    parallelism and of pipeline stages; ``say`` has values of keys that win over those
    of the file, and ``ignore`` are keys that nest does not know, and change no plan.

    Raises ``InvalidPlanError`` if a value is out of range or contradicts another one.
    """

    def read(config: KeyedFile) -> tuple[Launch, tuple[str, ...]]:
        return _read_config(config, world, model, sequence_length, degrees)

    return read_all(read, config_file(text, where, ignore).with_values(say))


def _read_config(
    config: KeyedFile,
    world: int,
    model: Architecture,
    sequence_length: int,
    degrees: tuple[int, int],
) -> tuple[Launch, tuple[str, ...]]:
    """Return the launch of a configuration with a model and degrees, and notes."""
    tp, stages = degrees
    notes = ignored_note(config.where, config.ignored())
    _check_automatic(config)
    _check_autotp(config, tp, "in --tp")
    sequence_ranks = config.document.get("sequence_parallel_size", 1)
    if sequence_ranks != 1:
        expected = "1, as plans split sequences otherwise"
        raise config.refuse("sequence_parallel_size", expected, sequence_ranks)
    if world % (tp * stages):
        raise InvalidPlanError(
            f"--tp: expected tensor * pipeline parallel = {tp} * {stages} to "
            f"divide the {world} devices, got {tp * stages}; correct one"
        )
    chunks = even_chunks(model.layers, stages)
    if chunks is None:
        raise InvalidPlanError(
            f"--pp: expected a divisor of the {model.layers} layers of "
            f"{model.name}, got {stages}; correct it"
        )
    data = world // (tp * stages)
    launch = _launch(config, data, tp, chunks, sequence_length)
    launch, sharding = _with_sharding(config, launch, stages > 1)
    return launch, (*sharding, *notes)
