"""DeepSpeed: its configuration, and Megatron-DeepSpeed's arguments.

The configuration (written for deepspeed 0.19.8) knows batches, ZeRO and data types;
stages, degrees and shape are arguments of Megatron-DeepSpeed, which are Megatron-LM's
old ones and some of its own. Those are not checked against a package: there is none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from nest.errors import InvalidPlanError
from nest.frameworks.arguments import Arguments, ignored_note
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
from nest.frameworks.megatron import array, data_ranks, read_array
from nest.frameworks.megatron_details import Flags
from nest.frameworks.megatron_model import (
    check_shape,
    check_tensor_split,
    model_flags,
    read_model,
)
from nest.frameworks.scripts import unread as unread_arguments
from nest.frameworks.shell_words import Word
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
    document = {
        "train_batch_size": run.global_batch,
        "train_micro_batch_size_per_gpu": run.samples,
        "gradient_accumulation_steps": run.micro_batches,
        "zero_optimization": {
            "stage": run.zero,
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
        ("--zero-stage", (run.zero,)),
        *((name, ()) for name in recomputing if run.recompute == "full"),
        (f"--{run.dtype}", ()),
    ]
    return {
        FILE: json.dumps(document, indent=1) + "\n",
        ARGUMENTS: array(heading, flags),
    }


def _old(flags: Flags, model: Architecture) -> Flags:
    """Return arguments under the names that they have there."""
    old: Flags = []
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


#: Present names of arguments that have another one there.
_PRESENT = {"--layernorm-epsilon": "--norm-epsilon", "--rope-theta": "--rotary-base"}


def present(arguments: Arguments) -> Arguments:
    """Return arguments under the names of Megatron-LM's present ones."""
    norms = {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}
    tokens: list[Word] = []
    for name, option in arguments.options.items():
        values = option.values
        if name == "--num-key-value-heads":
            tokens.append(Word("--group-query-attention", option.line))
            name = "--num-query-groups"
        elif name in _PRESENT:
            name = _PRESENT[name]
        elif name == "--normalization":
            values = tuple(
                token._replace(text=norms.get(token.text, token.text))
                for token in values
            )
        tokens += [Word(name, option.line), *values]
    return arguments.with_tokens(tokens)


def read(files: Mapping[str, str], model: Architecture) -> tuple[Launch, Groups]:
    """Read an export of this module; ``ExportModule.read`` says its errors."""
    devices = read_hosts(files)
    config = config_file(files[FILE], FILE)
    config.check_written()
    arguments = present(read_array(files[ARGUMENTS], ARGUMENTS))
    launch, written = _read_pair(config, arguments, len(devices))
    arguments.check_all_used()
    check_shape(ARGUMENTS, model, written, launch.sequence_length)
    return launch, usual_groups(launch, devices)


def read_script(
    tokens: Sequence[Word], where: str, world: int, find: Callable[[str], str]
) -> tuple[Launch, Architecture, tuple[str, ...]]:
    """Read arguments of Megatron-DeepSpeed with their configuration.

    Returns the launch on ``world`` devices, the model, and notes for the user.
    ``tokens`` are the command that starts it, and ``find`` returns the text of the
    configuration of that name.

    Raises
    ------
    InvalidPlanError
        If they contradict each other, or no run can start with them.
    """
    arguments = present(Arguments(tokens, where))
    name = arguments.text("--deepspeed-config")
    if name is None:
        raise arguments.refuse(
            "--deepspeed-config", "the name of a configuration", "none"
        )
    config = config_file(find(name), name)
    keys = config.ignored()
    # What is read later is no other name written wrongly.
    arguments.used |= _OLD.with_config
    try:
        launch, model = _read_pair(config, arguments, world)
    except InvalidPlanError:
        # A name that is written wrongly may be the reason.
        unread_arguments(arguments, tokens)
        raise
    ignored = unread_arguments(arguments, tokens)
    notes = (*arguments.assumed, *ignored, *ignored_note(name, keys))
    return launch, model, notes


TABLE = read_data("deepspeed", KeyTable)

#: Bytes of the moments per weight, by the type of the optimizer.
_MOMENTS = {
    **dict.fromkeys(("adam", "adamw", "lamb", "fusedadam"), 8),
    **dict.fromkeys(("sgd", "muon", "lion", "adagrad"), 4),
}


def config_file(text: str, where: str) -> KeyedFile:
    """Return the keys of a configuration.

    Raises
    ------
    InvalidPlanError
        If it is no JSON object.
    """
    with refusing(where, InvalidPlanError):
        document = parse_json(text)
    if not isinstance(document, dict):
        raise InvalidPlanError(
            f"{where}: expected a JSON object, got something else; pass "
            f"the configuration of DeepSpeed"
        )
    return KeyedFile(document, where, TABLE)


def _automatic(config: KeyedFile) -> str | None:
    """Return a key that is read and that another program fills in."""
    for path in TABLE.keys:
        section, name = split_path(path)
        inside = config.document.get(section) if section else config.document
        if isinstance(inside, dict) and inside.get(name) == "auto":
            return path
    return None


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
    model, length = read_model(arguments, "export")
    tp = arguments.count("--tensor-model-parallel-size")
    stages = arguments.count("--pipeline-model-parallel-size")
    data = data_ranks(arguments, world, tp, stages)
    if arguments.has("--no-pipeline-parallel") != (stages == 1):
        raise arguments.refuse(
            "--no-pipeline-parallel",
            f"{'it' if stages == 1 else 'no such argument'} with {stages} stages",
            "the opposite",
        )
    location = arguments.location("--tensor-model-parallel-size")
    _check_autotp(config, tp, f"in {location}")
    check_tensor_split(arguments, model, tp)
    samples, batch = (
        arguments.integer_or_none(f"--{name}-batch-size")
        for name in ("micro", "global")
    )
    chunks = even_chunks(model.layers, stages)
    if chunks is None:
        raise arguments.refuse(
            "--num-layers", f"a multiple of the {stages} stages", model.layers
        )
    full = arguments.has("--checkpoint-activations")
    launch = _launch(
        *(config, data, tp, chunks, length),
        samples=samples,
        batch=batch,
        recompute="full" if full else "none",
    )
    stated = arguments.integer_or_none("--zero-stage", 0)
    if stated not in (None, launch.zero):
        raise arguments.refuse("--zero-stage", f"{launch.zero} as in {FILE}", stated)
    if not arguments.has("--deepspeed"):
        raise arguments.refuse("--deepspeed", "it", "none")
    arguments.text("--deepspeed-config")
    if arguments.has("--deepspeed-activation-checkpointing") != full:
        expected = "it together with --deepspeed-activation-checkpointing"
        raise arguments.refuse("--checkpoint-activations", expected, "one of them")
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
    overlap = config.get("zero_optimization.overlap_comm") and data > 1
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
    tp: int = 1,
    stages: int = 1,
) -> tuple[Launch, tuple[str, ...]]:
    """Read the configuration of a user, and return notes for the user too.

    The file does not say the model, its sequence length, and the degrees.

    Raises
    ------
    InvalidPlanError
        If a value is out of range or contradicts another one.
    """
    config = config_file(text, where)
    notes = ignored_note(where, config.ignored())
    automatic = _automatic(config)
    if automatic is not None:
        raise InvalidPlanError(
            f"{where}: {automatic}: expected a value, got 'auto', which "
            f"another program fills in; write it into the file"
        )
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
    return _launch(config, data, tp, chunks, sequence_length), notes
