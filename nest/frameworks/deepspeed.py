"""DeepSpeed: its configuration, and Megatron-DeepSpeed's arguments.

The configuration (written for deepspeed 0.19.8) knows batches, ZeRO and data
types; stages, degrees and shape are arguments of Megatron-DeepSpeed, which
are Megatron-LM's old ones and some of its own. Those are not checked against
a package: there is none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nest.errors import InvalidPlanError
from nest.frameworks.arguments import Arguments, alike, passed_over
from nest.frameworks.hosts import read_hosts
from nest.frameworks.launch import (
    Groups,
    Launch,
    Mesh,
    as_run,
    check_memory,
    even_chunks,
    length_of,
    usual_groups,
    usual_mesh,
)
from nest.frameworks.megatron import array, read_array
from nest.frameworks.megatron_model import (
    Flags,
    comparable,
    model_flags,
    read_model,
)
from nest.frameworks.scripts import unread as unread_arguments
from nest.frameworks.settings import Settings
from nest.frameworks.shell import Word
from nest.ir.documents import parse_json, refusing
from nest.models.architectures import Architecture

NAME = "deepspeed"
FILE, ARGUMENTS = "ds.json", "megatron-args.sh"

#: What Megatron-LM's present arguments are called there: name and values.
_RENAMED: dict[tuple[str, ...], tuple[str, ...]] = {
    ("--group-query-attention",): (),
    ("--num-query-groups",): ("--num-key-value-heads",),
    ("--position-embedding-type", "rope"): (
        "--use-rotary-position-embeddings",
    ),
    ("--position-embedding-type", "learned_absolute"): (),
    ("--normalization", "RMSNorm"): ("--normalization", "rmsnorm"),
}
#: What it does not know.
_UNKNOWN = {
    "--multi-latent-attention": "latent attention",
    "--qk-layernorm": "norms of queries and keys",
    "--window-size": "windows",
    "--add-qkv-bias": "biases of queries, keys and values only",
    "--num-experts": "experts",
}
_GRADIENTS = {2: "bf16", 4: "fp32"}


def mesh_of(launch: Launch) -> Mesh:
    """Return how ranks are numbered: axes pipe, data, model."""
    return usual_mesh(launch)


def said(launch: Launch) -> Launch:
    """Return what of a launch the files say: all of it."""
    return as_run(launch)


def write(
    launch: Launch, model: Architecture, _settings: Settings, heading: str
) -> dict[str, str]:
    """Return configuration and arguments.

    Raises
    ------
    InvalidPlanError
        If they cannot say what is kept per weight, the data type, or a part
        of the model or the plan.
    """
    check_memory(launch)
    run = as_run(launch)
    if run.dtype not in ("bf16", "fp16"):
        raise InvalidPlanError(
            f"dtype: expected bf16 or fp16, got {run.dtype}; DeepSpeed "
            f"computes in no other"
        )
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
    flags = [
        *_old(model_flags(model, length), model),
        ("--tensor-model-parallel-size", (run.tp,)),
        ("--pipeline-model-parallel-size", (run.stages,)),
        *([("--no-pipeline-parallel", ())] if run.stages == 1 else []),
        ("--micro-batch-size", (run.samples,)),
        ("--global-batch-size", (run.global_batch,)),
        ("--deepspeed", ()),
        ("--deepspeed_config", (FILE,)),
        ("--zero-stage", (run.zero,)),
        *(
            [
                ("--checkpoint-activations", ()),
                ("--deepspeed-activation-checkpointing", ()),
            ]
            if run.recompute == "full"
            else []
        ),
        (f"--{run.dtype}", ()),
    ]
    return {
        FILE: json.dumps(document, indent=1) + "\n",
        ARGUMENTS: array(heading, flags),
    }


def _old(flags: Flags, model: Architecture) -> Flags:
    """Return arguments under the names that they have there."""
    found: Flags = []
    for name, values in flags:
        if name in _UNKNOWN:
            raise InvalidPlanError(
                f"model: expected one without {_UNKNOWN[name]}, got "
                f"{model.name}; Megatron-DeepSpeed's arguments do not say it"
            )
        words = (name, *map(str, values))
        if words in _RENAMED:
            new = _RENAMED[words]
        else:
            new = (*_RENAMED.get((name,), (name,)), *words[1:])
        if new:
            found.append((new[0], new[1:]))
    return found


def present(arguments: Arguments) -> Arguments:
    """Return arguments under the names of Megatron-LM's present ones."""
    words: list[Word] = []
    for name, given in arguments.given.items():
        new: tuple[str, ...] = (name,)
        values = given.values
        if name == "--num-key-value-heads":
            words.append(Word("--group-query-attention", given.line))
            new = ("--num-query-groups",)
        elif name == "--normalization":
            values = tuple(
                word._replace(
                    text={"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}.get(
                        word.text, word.text
                    )
                )
                for word in values
            )
        words += [Word(text, given.line) for text in new]
        words += values
    found = Arguments(words, arguments.where)
    found.unknown = arguments.unknown
    found.underscored = arguments.underscored
    return found


def start(launch: Launch) -> str:
    """Say in one line how to start it."""
    return (
        f"bash: source {ARGUMENTS}, then deepspeed --hostfile hostfile "
        f'pretrain_gpt.py of Megatron-DeepSpeed with "${{ARGS[@]}}" and your '
        f"arguments for data, tokenizer, learning rate and checkpoints "
        f"({launch.world} ranks)."
    )


def read(
    files: Mapping[str, str], model: Architecture
) -> tuple[Launch, Groups]:
    """Read an export of this module, and refuse what could not run.

    Raises
    ------
    InvalidPlanError
        If it is broken; the text names file and key.
    """
    devices = read_hosts(files)
    config = Config(files[FILE], FILE)
    config.check_known()
    raw = read_array(files[ARGUMENTS], ARGUMENTS)
    ask = present(raw)
    launch, found = read_pair(config, ask, len(devices))
    ask.check_all_used()
    length = launch.sequence_length
    assert length is not None
    if comparable(model, length) != comparable(found, length):
        raise InvalidPlanError(
            f"{ARGUMENTS}: expected the shape of {model.name}, got another "
            f"one; correct the arguments of the model"
        )
    return launch, usual_groups(launch, devices)


#: Arguments that are read together with a configuration.
_READ_WITH_CONFIG = frozenset(
    {
        *("--bf16", "--checkpoint-activations", "--deepspeed"),
        *("--deepspeed-activation-checkpointing", "--fp16"),
        *("--global-batch-size", "--micro-batch-size"),
        *("--no-pipeline-parallel", "--zero-stage"),
    }
)


def read_script(
    words: Sequence[Word],
    where: str,
    world: int,
    find: Callable[[str], str],
) -> tuple[Launch, Architecture, tuple[str, ...]]:
    """Read arguments of Megatron-DeepSpeed with their configuration.

    Returns what runs, the model, and what to tell people.

    Parameters
    ----------
    words, where
        The command that starts it, and the name of its script.
    world
        Devices.
    find
        Returns the text of the configuration of that name.

    Raises
    ------
    InvalidPlanError
        If they contradict each other, or no run can start with them.
    """
    ask = present(Arguments(words, where))
    name = ask.text("--deepspeed-config")
    if name is None:
        raise ask.refuse(
            "--deepspeed-config", "the name of a configuration", "none"
        )
    config = Config(find(name), name)
    keys = config.check_foreign()
    # What is read later is no other name written wrongly.
    ask.used |= _READ_WITH_CONFIG
    try:
        launch, model = read_pair(config, ask, world)
    except InvalidPlanError:
        # A name that is written wrongly may be the reason.
        unread_arguments(ask, words)
        raise
    notes = (*unread_arguments(ask, words), *passed_over(name, keys))
    return launch, model, notes


#: Keys of the configuration with their types, by block; "" is the top.
KEYS: dict[str, dict[str, type]] = {
    "": {
        "train_batch_size": int,
        "train_micro_batch_size_per_gpu": int,
        "gradient_accumulation_steps": int,
        "zero_optimization": dict,
        "bf16": dict,
        "fp16": dict,
        "data_types": dict,
    },
    "zero_optimization": {"stage": int, "overlap_comm": bool},
    "bf16": {"enabled": bool},
    "fp16": {"enabled": bool},
    "data_types": {"grad_accum_dtype": str},
}
#: Keys of others that are read beside these.
_FOREIGN = ("optimizer", "sequence_parallel_size", "tensor_parallel")
_OFF = (False, None, "none")
_OFFLOADING = "plans know no offloading"
#: Keys that change memory or time in ways that plans do not know: the values
#: that change nothing, and why others are refused.
_REFUSED: dict[tuple[str, str], tuple[tuple[Any, ...], str]] = {
    **{
        ("zero_optimization", key): (_OFF, _OFFLOADING)
        for key in (
            *("offload_optimizer", "offload_param"),
            *("cpu_offload", "cpu_offload_param", "zenflow"),
        )
    },
    **{
        ("zero_optimization", key): (_OFF, "plans quantise no messages")
        for key in ("zero_quantized_weights", "zero_quantized_gradients")
    },
    ("zero_optimization", "zero_hpz_partition_size"): (
        (1, None),
        "plans know no second partition of weights",
    ),
    ("zero_optimization", "mics_shard_size"): (
        (-1, None),
        "plans shard over all data ranks of a replica",
    ),
    ("", "communication_data_type"): (
        (None,),
        "plans reduce gradients in the data type that they are kept in",
    ),
}
#: Bytes of the moments per weight, by the type of the optimiser.
_MOMENTS = {
    **dict.fromkeys(("adam", "adamw", "lamb", "fusedadam"), 8),
    **dict.fromkeys(("sgd", "muon", "lion", "adagrad"), 4),
}
_KINDS = {
    int: "an integer",
    bool: "true or false",
    str: "a text",
    dict: "an object",
}


class Config:
    """A configuration, with types checked.

    Every reader raises :class:`~nest.errors.InvalidPlanError`; the text
    names file and key.
    """

    def __init__(self, text: str, where: str) -> None:
        self.where = where
        with refusing(where, InvalidPlanError):
            self.document = parse_json(text)
        if not isinstance(self.document, dict):
            raise InvalidPlanError(
                f"{where}: expected a JSON object, got something else; pass "
                f"the configuration of DeepSpeed"
            )

    def check_known(self) -> None:
        """Refuse keys that exports do not write."""
        for key, value in self.document.items():
            if key not in KEYS[""]:
                raise self.refuse("", key, "a known key", repr(key))
            for inner in value if isinstance(value, dict) else ():
                if inner not in KEYS.get(key, {}):
                    raise self.refuse(key, inner, "a known key", repr(inner))

    def check_foreign(self) -> tuple[str, ...]:
        """Return the keys that nobody reads, such as ``scheduler``.

        Raises
        ------
        InvalidPlanError
            If one is nearly a key that is read, or changes memory or time in
            a way that plans do not know.
        """
        left = []
        for block, known in KEYS.items():
            inside = self.document if not block else self.document.get(block)
            for key, value in (
                inside.items() if isinstance(inside, dict) else ()
            ):
                if key in known or (not block and key in _FOREIGN):
                    continue
                unchanged, why = _REFUSED.get((block, key), ((value,), ""))
                if isinstance(value, dict) and "device" in value:
                    value = value["device"]
                if value not in unchanged and why:
                    raise self.refuse(
                        block, key, f"none, as {why}", json.dumps(value)[:40]
                    )
                close = alike(key, known)
                if close and (block, key) not in _REFUSED:
                    raise self.refuse(
                        block,
                        key,
                        "a key that is known",
                        key,
                        f"did you mean {close!r}?",
                    )
                left.append(f"{block}.{key}" if block else key)
        return tuple(left)

    def automatic(self) -> str | None:
        """Return a key that is read and left to another program."""
        for block, keys in KEYS.items():
            inside = self.document if not block else self.document.get(block)
            for key in keys if isinstance(inside, dict) else ():
                if inside.get(key) == "auto":
                    return f"{block}.{key}" if block else key
        return None

    def refuse(
        self,
        block: str,
        key: str,
        expected: str,
        got: object,
        remedy: str = "correct it",
    ) -> InvalidPlanError:
        """Return the error about one key."""
        place = f"{block}.{key}" if block else key
        return InvalidPlanError(
            f"{self.where}: {place}: expected {expected}, got {got}; {remedy}"
        )

    def get(self, block: str, key: str) -> Any:
        """Return a value, ``None`` where there is none."""
        inside = self.document if not block else self.get("", block) or {}
        value = inside.get(key)
        if value is None:
            return None
        if type(value) is not KEYS[block][key]:
            raise self.refuse(
                block, key, _KINDS[KEYS[block][key]], json.dumps(value)[:40]
            )
        return value

    def count(self, key: str) -> int | None:
        """Return a number of samples or steps."""
        value: int | None = self.get("", key)
        if value is not None and value < 1:
            raise self.refuse("", key, "at least 1", value)
        return value


def batches(
    config: Config, data: int, samples: int | None, batch: int | None
) -> tuple[int, int]:
    """Return samples of a micro-batch on a data rank, and of a step.

    Any two of the three sizes give the third; what arguments say as well
    must be the same.
    """
    micro = config.count("train_micro_batch_size_per_gpu")
    total = config.count("train_batch_size")
    steps = config.count("gradient_accumulation_steps")
    for key, ours, theirs in (
        ("train_micro_batch_size_per_gpu", micro, samples),
        ("train_batch_size", total, batch),
    ):
        if None not in (ours, theirs) and ours != theirs:
            raise config.refuse("", key, f"{theirs} as in the arguments", ours)
    micro, total = micro or samples, total or batch
    if micro is None and total is not None and steps is not None:
        micro = total // (steps * data)
    if total is None and micro is not None:
        total = micro * data * (steps or 1)
    if micro is None and total is not None:
        micro = total // data
    if not micro or not total:
        raise config.refuse("", "train_batch_size", "sizes of batches", "none")
    if total % (micro * data) or steps not in (None, total // (micro * data)):
        raise config.refuse(
            "",
            "train_batch_size",
            f"train_micro_batch_size_per_gpu * gradient_accumulation_steps "
            f"* data ranks = {micro} * {steps} * {data}",
            total,
        )
    return micro, total


def precision(config: Config) -> dict[str, Any]:
    """Return the data type and the bytes of gradients."""
    brain, half = (config.get(name, "enabled") for name in ("bf16", "fp16"))
    if bool(brain) == bool(half):
        raise config.refuse(
            "bf16",
            "enabled",
            "one of bf16 and fp16",
            "both" if brain else "none, which is fp32",
        )
    dtype = "bf16" if brain else "fp16"
    gradients = config.get("data_types", "grad_accum_dtype")
    if gradients not in (None, dtype, "fp32"):
        raise config.refuse(
            "data_types", "grad_accum_dtype", f"{dtype} or fp32", gradients
        )
    return {
        "dtype": dtype,
        "gradient_bytes": 4 if gradients == "fp32" else 2,
        "state_bytes": _state_bytes(config),
    }


def _state_bytes(config: Config) -> int:
    """Return the bytes of master weights and moments, per weight."""
    found = config.document.get("optimizer")
    kind = found.get("type", "Adam") if isinstance(found, dict) else "Adam"
    moments = _MOMENTS.get(str(kind).lower())
    if moments is None:
        raise config.refuse(
            "optimizer", "type", f"one of {', '.join(_MOMENTS)}", kind
        )
    if str(kind).lower() == "sgd":
        options = found.get("params") if isinstance(found, dict) else None
        if not (isinstance(options, dict) and options.get("momentum")):
            moments = 0
    return 4 + moments


def unread(text: str, where: str) -> tuple[str, ...]:
    """Return the note about keys that are passed over, if there are any.

    Raises
    ------
    InvalidPlanError
        As for :meth:`Config.check_foreign`.
    """
    return passed_over(where, Config(text, where).check_foreign())


def zero_stage(config: Config, stages: int) -> int:
    """Return the ZeRO stage."""
    zero: int = config.get("zero_optimization", "stage") or 0
    if not 0 <= zero <= 3:
        raise config.refuse("zero_optimization", "stage", "0 to 3", zero)
    if zero > 1 and stages > 1:
        raise config.refuse(
            "zero_optimization", "stage", "0 or 1 with a pipeline", zero
        )
    return zero


def read_pair(
    config: Config, ask: Arguments, world: int
) -> tuple[Launch, Architecture]:
    """Return what configuration and arguments say on so many devices.

    Raises
    ------
    InvalidPlanError
        If they contradict each other, or no run can start with them.
    """
    model, length = read_model(ask, "export")
    tp = ask.count("--tensor-model-parallel-size")
    stages = ask.count("--pipeline-model-parallel-size")
    if world % (tp * stages):
        raise ask.refuse(
            "--tensor-model-parallel-size",
            f"tensor * pipeline parallel = {tp} * {stages} to divide the "
            f"{world} devices",
            tp * stages,
        )
    data = world // (tp * stages)
    if ask.has("--no-pipeline-parallel") != (stages == 1):
        raise ask.refuse(
            "--no-pipeline-parallel",
            f"{'it' if stages == 1 else 'no such argument'} with "
            f"{stages} stages",
            "the opposite",
        )
    _check_autotp(
        config, tp, f"in {ask.place('--tensor-model-parallel-size')}"
    )
    block = model.towers[0].runs[0].block
    for name, count in (
        ("--num-attention-heads", block.attention.heads),
        ("--ffn-hidden-size", block.mlp.hidden),
    ):
        if count % tp:
            raise ask.refuse(
                name,
                f"a multiple of --tensor-model-parallel-size {tp}",
                count,
            )
    samples, batch = batches(
        config,
        data,
        ask.integer("--micro-batch-size"),
        ask.integer("--global-batch-size"),
    )
    zero = zero_stage(config, stages)
    stated = ask.integer("--zero-stage", 0)
    if stated not in (None, zero):
        raise ask.refuse("--zero-stage", f"{zero} as in {FILE}", stated)
    if not ask.has("--deepspeed"):
        raise ask.refuse("--deepspeed", "it", "none")
    ask.text("--deepspeed-config")
    chunks = even_chunks(model.layers, stages)
    if chunks is None:
        raise ask.refuse(
            "--num-layers",
            f"a multiple of the {stages} stages",
            model.layers,
        )
    full = ask.has("--checkpoint-activations")
    if ask.has("--deepspeed-activation-checkpointing") != full:
        raise ask.refuse(
            "--checkpoint-activations",
            "it together with --deepspeed-activation-checkpointing",
            "one of them",
        )
    types = precision(config)
    half = {name: ask.has(f"--{name}") for name in ("bf16", "fp16")}
    if [name for name, given in half.items() if given] != [types["dtype"]]:
        raise ask.refuse(
            f"--{types['dtype']}", f"{types['dtype']} as in {FILE}", "another"
        )
    overlap = config.get("zero_optimization", "overlap_comm")
    return (
        as_run(
            Launch(
                tp=tp,
                dp=data,
                stages=stages,
                chunks=chunks,
                zero=zero,
                recompute="full" if full else "none",
                micro_batch=samples * data,
                global_batch=batch,
                sequence_length=length,
                overlap=("gradients",) if overlap and data > 1 else (),
                **types,
            )
        ),
        model,
    )


def _check_autotp(config: Config, tp: int, place: str) -> None:
    """Refuse another tensor parallel degree than is said elsewhere."""
    own = config.document.get("tensor_parallel", {})
    degree = own.get("autotp_size", tp) if isinstance(own, dict) else tp
    if degree != tp:
        raise config.refuse(
            "tensor_parallel", "autotp_size", f"{tp} as {place}", degree
        )


def read_foreign(
    text: str,
    where: str,
    world: int,
    model: Architecture,
    sequence_length: int,
    tp: int = 1,
    stages: int = 1,
) -> Launch:
    """Read somebody's configuration.

    Parameters
    ----------
    text, where
        The file, and its name for messages.
    world
        Devices.
    model, sequence_length, tp, stages
        What the file does not say.

    Raises
    ------
    InvalidPlanError
        If a value is out of range or contradicts another one.
    """
    config = Config(text, where)
    config.check_foreign()
    automatic = config.automatic()
    if automatic is not None:
        raise InvalidPlanError(
            f"{where}: {automatic}: expected a value, got 'auto', which "
            f"another program fills in; write it into the file"
        )
    _check_autotp(config, tp, "in --tp")
    if config.document.get("sequence_parallel_size", 1) != 1:
        raise config.refuse(
            "",
            "sequence_parallel_size",
            "1, as plans split sequences otherwise",
            config.document["sequence_parallel_size"],
        )
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
    samples, batch = batches(config, data, None, None)
    overlap = config.get("zero_optimization", "overlap_comm")
    return as_run(
        Launch(
            tp=tp,
            dp=data,
            stages=stages,
            chunks=chunks,
            zero=zero_stage(config, stages),
            micro_batch=samples * data,
            global_batch=batch,
            sequence_length=sequence_length,
            overlap=("gradients",) if overlap and data > 1 else (),
            **precision(config),
        )
    )
