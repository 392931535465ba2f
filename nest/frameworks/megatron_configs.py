"""Configurations of Megatron-LM, NeMo and Megatron-Bridge as its arguments.

Each age has keys of its own for the same arguments: tables below say which.
What a file leaves out is asked for, or the default of the framework, which a
note names; what it says twice and differently is refused with both places.

Sources, all read in their repositories: Megatron-LM's ``yaml_arguments.py``
and ``examples/gpt3/gpt_config.yaml`` (``--yaml-cfg``), and its model
configurations with ``MODEL_ARGS``; NeMo 1's ``megatron_gpt_config.yaml`` and
``megatron_gpt_model.py``; Megatron-Bridge's ``ConfigContainer`` as it writes
it down.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from nest.errors import InvalidPlanError
from nest.frameworks.arguments import Arguments, alike, passed_over
from nest.frameworks.configs import Config, Entry
from nest.frameworks.megatron import Reading, read_arguments
from nest.frameworks.scripts import (
    SHAPING,
    Count,
    Launched,
    check_given,
    check_world,
    notes_of,
    unread_names,
    with_model,
)
from nest.frameworks.shell import Word
from nest.models.architectures import Architecture

#: What a value says: options with their values, ``{}`` standing for it, and
#: behind ``!`` options that it switches off.
Meaning = tuple[str, ...]


class Key(NamedTuple):
    """What a key of a configuration stands for.

    Attributes
    ----------
    option
        The argument whose value it is, or that it switches on.
    means
        What each of the values that there may be says, where it is neither.
    """

    option: str = ""
    means: Mapping[Any, Meaning] | None = None


#: Arguments that have a value, and those that are switched on.
_VALUES = (
    *("num-layers", "hidden-size", "ffn-hidden-size", "kv-channels"),
    *("num-attention-heads", "max-position-embeddings"),
    *("hidden-dropout", "attention-dropout", "vocab-size"),
    *("position-embedding-type", "normalization"),
    *("tensor-model-parallel-size", "pipeline-model-parallel-size"),
    *("context-parallel-size", "expert-model-parallel-size"),
    *("expert-tensor-parallel-size", "micro-batch-size"),
    *("global-batch-size", "recompute-granularity", "recompute-method"),
    *("recompute-num-layers", "recompute-modules", "moe-router-topk"),
    *("moe-ffn-hidden-size", "moe-shared-expert-intermediate-size"),
    *("moe-layer-freq", "moe-token-dispatcher-type", "q-lora-rank"),
    *("kv-lora-rank", "v-head-dim", "qk-pos-emb-head-dim"),
    *("rampup-batch-size", "window-size", "mtp-num-layers"),
    *("num-distributed-optimizer-instances", "optimizer", "sgd-momentum"),
    *("main-grads-dtype", "main-params-dtype", "exp-avg-dtype"),
    "exp-avg-sq-dtype",
)
_SWITCHES = (
    *("sequence-parallel", "add-qkv-bias", "qk-layernorm", "bf16", "fp16"),
    *("multi-latent-attention", "moe-grouped-gemm", "tp-comm-overlap"),
    *("use-distributed-optimizer", "overlap-grad-reduce"),
    *("overlap-param-gather", "use-megatron-fsdp", "use-torch-fsdp2"),
    *("use-tp-pp-dp-mapping", "overlap-moe-expert-parallel-comm"),
    *("account-for-embedding-in-pipeline-split",),
    *("account-for-loss-in-pipeline-split",),
    *("untie-embeddings-and-output-weights", "cpu-offloading"),
    *("accumulate-allreduce-grads-in-fp32", "optimizer-cpu-offload"),
    *("distribute-saved-activations", "use-precision-aware-optimizer"),
    "fine-grained-activation-offloading",
)
_PLAIN = {
    name.replace("-", "_"): Key(f"--{name}") for name in (*_VALUES, *_SWITCHES)
}
_SWITCHED = frozenset(f"--{name}" for name in _SWITCHES)

_GATED: Mapping[Any, Meaning] = {True: ("--swiglu",), False: ()}
_GROUPS = Key(
    "--num-query-groups",
    {...: ("--group-query-attention", "--num-query-groups", "{}")},
)
#: What configurations of transformers call otherwise than the arguments.
_TRANSFORMER = {
    **_PLAIN,
    "num_query_groups": _GROUPS,
    "num_moe_experts": Key("--num-experts"),
    "add_bias_linear": Key(
        "--disable-bias-linear", {False: ("--disable-bias-linear",), True: ()}
    ),
    "gated_linear_unit": Key("--swiglu", _GATED),
    "qk_head_dim": Key("--qk-head-dim"),
    "fp8": Key("--fp8-format"),
}
_LENGTH = Key("--seq-length")


class Age(NamedTuple):
    """A kind of configuration.

    Attributes
    ----------
    title
        Of the framework, for people.
    keys
        What keys stand for.
    required
        Keys whose default the framework has not, or has elsewhere.
    nodes, each
        Keys that say how many nodes there are, and devices of each.
    refused
        Keys that plans know nothing of, with the values that change
        nothing.
    beside
        Keys that are read apart from ``keys``.
    """

    title: str
    keys: Mapping[str, Key]
    required: tuple[str, ...] = ()
    nodes: str = ""
    each: str = ""
    refused: Mapping[str, tuple[Any, ...]] = {}
    beside: tuple[str, ...] = ()

    @property
    def read(self) -> frozenset[str]:
        """All keys that are read."""
        places = (self.nodes, self.each)
        return frozenset(
            {*self.keys, *self.refused, *self.beside, *places} - {""}
        )


def _under(section: str, keys: Mapping[str, Key]) -> dict[str, Key]:
    return {f"{section}.{name}": key for name, key in keys.items()}


_MEGATRON = Age(
    title="Megatron-LM",
    keys={
        **_PLAIN,
        **_under("language_model", _TRANSFORMER),
        **_under("model_parallel", _TRANSFORMER),
        "seq_length": _LENGTH,
        "encoder_seq_length": _LENGTH,
        # Either one switches gates on, and neither switches them off.
        "language_model.activation_func": Key(
            "", {"swiglu": ("--swiglu",), "gelu": (), "squaredrelu": ()}
        ),
        "language_model.gated_linear_unit": Key("", _GATED),
        "num_layers_per_virtual_pipeline_stage": Key(
            "--num-layers-per-virtual-pipeline-stage"
        ),
    },
    required=(
        *("language_model.num_layers", "language_model.hidden_size"),
        *("language_model.num_attention_heads", "micro_batch_size"),
        "language_model.activation_func",
        "language_model.add_bias_linear",
    ),
    refused={
        "language_model.apply_residual_connection_post_layernorm": (False,)
    },
)

_BRAIN: Meaning = ("--bf16",)
_HALF: Meaning = ("--fp16",)
_UNGATED = ("gelu", "openai-gelu", "squared-relu", "relu")
_GATES = (
    "swiglu",
    "fast-swiglu",
    "geglu",
    "fast-geglu",
    "reglu",
    "fast-reglu",
)
_NEMO = Age(
    title="NeMo",
    keys={
        **_under("model", _PLAIN),
        "model.num_query_groups": _GROUPS,
        "model.num_moe_experts": Key("--num-experts"),
        "model.encoder_seq_length": _LENGTH,
        "model.data.seq_length": _LENGTH,
        "model.override_vocab_size": Key("--vocab-size"),
        "model.virtual_pipeline_model_parallel_size": Key(
            "--num-virtual-stages-per-pipeline-rank"
        ),
        "model.bias": Key(
            "--disable-bias-linear",
            {False: ("--disable-bias-linear",), True: ()},
        ),
        "model.activation": Key(
            "--swiglu",
            {
                **dict.fromkeys(_UNGATED, ()),
                **dict.fromkeys(_GATES, ("--swiglu",)),
            },
        ),
        "model.normalization": Key(
            "--normalization",
            {
                "layernorm": ("--normalization", "LayerNorm"),
                "layernorm1p": ("--normalization", "LayerNorm"),
                "rmsnorm": ("--normalization", "RMSNorm"),
            },
        ),
        "model.share_embeddings_and_output_weights": Key(
            "--untie-embeddings-and-output-weights",
            {False: ("--untie-embeddings-and-output-weights",), True: ()},
        ),
        "model.activations_checkpoint_granularity": Key(
            "--recompute-granularity"
        ),
        "model.activations_checkpoint_method": Key("--recompute-method"),
        "model.activations_checkpoint_num_layers": Key(
            "--recompute-num-layers"
        ),
        "model.ub_tp_comm_overlap": Key(
            "--tp-comm-overlap", {True: ("--tp-comm-overlap",), False: ()}
        ),
        "model.optim.name": Key(
            "--use-distributed-optimizer",
            {
                **dict.fromkeys(
                    ("distributed_fused_adam", "mcore_distributed_optim"),
                    ("--use-distributed-optimizer",),
                ),
                **dict.fromkeys(
                    ("adam", "adamw", "fused_adam", "megatron_fused_adam"), ()
                ),
            },
        ),
        "model.optim.overlap_grad_sync": Key(
            "--overlap-grad-reduce",
            {True: ("--overlap-grad-reduce",), False: ()},
        ),
        "model.optim.overlap_param_sync": Key(
            "--overlap-param-gather",
            {True: ("--overlap-param-gather",), False: ()},
        ),
        "model.optim.grad_sync_dtype": Key(
            "--grad-reduce-in-bf16",
            {
                **dict.fromkeys(
                    ("bf16", "bfloat16"), ("--grad-reduce-in-bf16",)
                ),
                **dict.fromkeys(("fp32", "float32"), ()),
            },
        ),
        "trainer.precision": Key(
            "--bf16",
            {
                **dict.fromkeys(("bf16", "bf16-mixed"), _BRAIN),
                **dict.fromkeys((16, "16", "16-mixed"), _HALF),
            },
        ),
    },
    required=(
        *("model.ffn_hidden_size", "model.optim.name", "trainer.precision"),
        *("model.num_layers", "model.hidden_size"),
        *("model.num_attention_heads", "model.micro_batch_size"),
    ),
    nodes="trainer.num_nodes",
    each="trainer.devices",
    refused={
        "trainer.accumulate_grad_batches": (1,),
        "model.transformer_block_type": ("pre_ln",),
        "model.fsdp": (False,),
        "model.encoder.num_layers": (),
    },
    beside=(
        *("model.fp8", "model.fp8_hybrid", "model.fp8_e4m3"),
        "model.megatron_amp_O2",
    ),
)

_OVERLAPS = {
    name: _PLAIN[name]
    for name in (
        "tp_comm_overlap",
        "overlap_grad_reduce",
        "overlap_param_gather",
        "overlap_moe_expert_parallel_comm",
    )
}
_GRADIENTS = Key(
    "--grad-reduce-in-bf16", {False: ("--grad-reduce-in-bf16",), True: ()}
)
_BRIDGE = Age(
    title="Megatron-Bridge",
    keys={
        **_under("model", _TRANSFORMER),
        "model.share_embeddings_and_output_weights": Key(
            "--untie-embeddings-and-output-weights",
            {False: ("--untie-embeddings-and-output-weights",), True: ()},
        ),
        "model.virtual_pipeline_model_parallel_size": Key(
            "--num-virtual-stages-per-pipeline-rank"
        ),
        "model.pipeline_model_parallel_layout": Key(
            "--pipeline-model-parallel-layout"
        ),
        "model.num_layers_in_first_pipeline_stage": Key(
            "--decoder-first-pipeline-num-layers"
        ),
        "model.num_layers_in_last_pipeline_stage": Key(
            "--decoder-last-pipeline-num-layers"
        ),
        "model.seq_length": _LENGTH,
        "dataset.sequence_length": _LENGTH,
        "dataset.seq_length": _LENGTH,
        "train.micro_batch_size": Key("--micro-batch-size"),
        "train.global_batch_size": Key("--global-batch-size"),
        "train.rampup_batch_size": Key("--rampup-batch-size"),
        "optimizer.optimizer": Key("--optimizer"),
        "optimizer.sgd_momentum": Key("--sgd-momentum"),
        "optimizer.optimizer_cpu_offload": Key("--optimizer-cpu-offload"),
        **_under("ddp", _OVERLAPS),
        **_under("comm_overlap", _OVERLAPS),
        "ddp.use_distributed_optimizer": Key("--use-distributed-optimizer"),
        "ddp.use_megatron_fsdp": Key("--use-megatron-fsdp"),
        "ddp.num_distributed_optimizer_instances": Key(
            "--num-distributed-optimizer-instances"
        ),
        "ddp.data_parallel_sharding_strategy": Key(
            "--data-parallel-sharding-strategy"
        ),
        "ddp.grad_reduce_in_fp32": _GRADIENTS,
        "mixed_precision.grad_reduce_in_fp32": _GRADIENTS,
        # Recipes by name, which overwrite what other sections say.
        "mixed_precision": Key(
            "",
            {
                **dict.fromkeys(
                    ("bf16_mixed", "bf16-mixed"),
                    ("--bf16", "!--grad-reduce-in-bf16"),
                ),
                **dict.fromkeys(
                    ("fp16_mixed", "fp16-mixed"),
                    ("--fp16", "!--bf16", "!--grad-reduce-in-bf16"),
                ),
            },
        ),
        "mixed_precision.bf16": Key("--bf16"),
        "mixed_precision.fp16": Key("--fp16"),
        "mixed_precision.fp8": Key("--fp8-format"),
        "checkpoint.ckpt_format": Key("--ckpt-format"),
        "dist.use_tp_pp_dp_mapping": Key("--use-tp-pp-dp-mapping"),
        "dist.use_torch_fsdp2": Key("--use-torch-fsdp2"),
    },
    # The class of the model has defaults of its own, in no file.
    required=(
        *("model.num_layers", "model.hidden_size", "model.ffn_hidden_size"),
        *("model.num_attention_heads", "model.num_query_groups"),
        *("model.normalization", "model.position_embedding_type"),
        *("model.gated_linear_unit", "model.add_bias_linear"),
        *("model.share_embeddings_and_output_weights",),
        *("model.hidden_dropout", "train.micro_batch_size"),
        *("mixed_precision.bf16", "ddp.grad_reduce_in_fp32"),
        *("train.global_batch_size", "ddp.use_distributed_optimizer"),
    ),
)
_ARGUMENTS = "MODEL_ARGS"

#: Keys that look like one that is read and change nothing that plans know.
_OTHERS = frozenset(
    {
        *("add_position_embedding", "decoder_seq_length"),
        *("tp_comm_overlap_ag", "tp_comm_overlap_cfg", "tp_comm_overlap_rs"),
        "ub_tp_comm_overlap_cfg",
        # Megatron-LM makes it of num_layers_per_virtual_pipeline_stage.
        "virtual_pipeline_model_parallel_size",
    }
)


def age_of(config: Config) -> Age | None:
    """Return what wrote a configuration, ``None`` for plain arguments.

    Raises
    ------
    InvalidPlanError
        If it is none that is known.
    """
    sections = config.sections
    if _ARGUMENTS in sections:
        return None
    if {"language_model", "model_parallel"} <= sections.keys():
        return _MEGATRON
    if {"model", "train"} <= sections.keys():
        return _BRIDGE
    if {"model", "trainer"} <= sections.keys() and (
        "trainer.strategy" not in sections
    ):
        return _NEMO
    names = [name for name in sections if "." not in name]
    raise InvalidPlanError(
        f"{config.where}: expected sections language_model and "
        f"model_parallel (Megatron-LM), {_ARGUMENTS} (its model "
        f"configurations), model and trainer (NeMo 1), or model and train "
        f"(Megatron-Bridge), got {', '.join(names) or 'none'}; pass another "
        f"file, or the launch script"
    )


class _Said(NamedTuple):
    """What a key says about an option, with its words."""

    key: str
    words: tuple[Word, ...]


def read_config(
    text: str,
    where: str,
    world: int,
    given: Mapping[str, str] | None = None,
    said: Sequence[tuple[str, str]] = (),
    model: Architecture | None = None,
) -> Launched:
    """Read what a configuration starts.

    Parameters
    ----------
    text, where
        The file, and its name for messages.
    world
        Devices of the cluster.
    given
        Values of environment variables.
    said
        Keys or arguments beside those of the file: name and value.
    model
        Gives the shape that the file leaves out.

    Raises
    ------
    InvalidPlanError
        If it is no configuration that is known, something is missing, out of
        range or unknown, or the file contradicts itself or the cluster.
    InvalidOptionError
        If it has no place for a given variable.
    """
    references = re.findall(r"\$\{([^}]*)", text)
    used = {x for one in references for x in re.split(r"[^\w.]+", one)}
    check_given(given or {}, used, where)
    age = age_of(Config(text, where))
    known = frozenset(() if age is None else age.keys)
    config = Config(
        text,
        where,
        given,
        {k: value for k, value in said if k in known or "." in k},
    )
    keys = _plain_keys(config) if age is None else age.keys
    found = _options(config, keys)
    if age is _NEMO:
        found |= _nemo_fp8(config)
    left = _unread(config, frozenset(keys) if age is None else age.read)
    words = [word for one in found.values() for word in one.words]
    words += [
        Word(part, 0)
        for name, value in said
        if name not in known and "." not in name
        for part in (f"--{name.lstrip('-').replace('_', '-')}", value)
        if part
    ]
    names = {option: one.key for option, one in found.items()}
    ask = Arguments(words, where, names, "file")
    if age is not None:
        _check_known(config, age)
        _check_required(config, age, ask, found, model)
    if model is not None:
        ask = with_model(ask, model, found.keys())
    check_world(None if age is None else _world(config, age), ask, world)
    name = re.sub(r"\W+", "-", where.rpartition("/")[2]).strip("-")
    if age is _NEMO:
        _check_checkpoints(config, ask)
    try:
        reading = read_arguments(ask, world, name)
    except InvalidPlanError:
        # A name that is written wrongly may be the reason.
        unread_names(ask)
        raise
    over = passed_over(where, (*left, *unread_names(ask)))
    if age is None:
        return Launched(reading, (*notes_of(ask), *over))
    notes = (*notes_of(ask, age.title, _shaping(age, ask, found)), *over)
    if age is _NEMO:
        return _as_nemo_keeps(config, reading, notes)
    return Launched(reading, notes)


def _unread(config: Config, read: Collection[str]) -> tuple[str, ...]:
    """Return the keys that nobody reads, sections of them as a whole.

    Raises
    ------
    InvalidPlanError
        If one is nearly a key that is read.
    """
    known = {place for key in read for place in _places(key)}
    beside: dict[str, list[str]] = {}
    for place in sorted(known):
        above, _, name = place.rpartition(".")
        beside.setdefault(above, []).append(name)
    left: dict[str, None] = {}
    for key in config.names:
        if key in read or config.get(key) is None:
            continue
        first = next((x for x in _places(key) if x not in known), key)
        above, _, name = first.rpartition(".")
        close = alike(name, beside.get(above, ()))
        if close not in (None, name) and name not in _OTHERS:
            raise config.refuse(
                first, "a key that is known", name, f"did you mean {close!r}?"
            )
        left[first] = None
    return tuple(left)


def _places(key: str) -> list[str]:
    """Return a key behind the sections that it is in."""
    parts = key.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


def _plain_keys(config: Config) -> dict[str, Key]:
    """Return the arguments that a file has as keys."""
    prefix = f"{_ARGUMENTS}."
    return {
        key: Key(key.removeprefix(prefix).replace("_", "-"))
        for key in config.names
        if key.startswith(f"{prefix}--")
    }


def _options(config: Config, keys: Mapping[str, Key]) -> dict[str, _Said]:
    """Return what keys say, by option.

    Raises
    ------
    InvalidPlanError
        If two keys say something else about the same option.
    """
    found: dict[str, _Said] = {}
    for name, key in keys.items():
        entry = config.get(name)
        if entry is None:
            continue
        parts = _split(_words(config, name, key, entry))
        if not parts and key.option:
            parts = {key.option: ()}
        for option, own in parts.items():
            before = found.setdefault(option, _Said(name, own))
            if [x.text for x in before.words] != [x.text for x in own]:
                raise InvalidPlanError(
                    f"{config.place(before.key)} and {config.place(name)}: "
                    f"expected them to say the same, got "
                    f"{_shown(config, before.key)} and "
                    f"{_shown(config, name)}; correct one of them"
                )
    return found


def _shown(config: Config, key: str) -> str:
    entry = config.get(key)
    assert entry is not None
    return entry.unknown or _text(entry.value)


def _split(words: Iterable[Word]) -> dict[str, tuple[Word, ...]]:
    """Return words by the option that they begin with."""
    found: dict[str, tuple[Word, ...]] = {}
    name = ""
    for word in words:
        if word.text.startswith("!"):
            found[word.text[1:]] = ()
            continue
        if word.text.startswith("--"):
            name = word.text
            found[name] = ()
        found[name] += (word,)
    return found


def _words(
    config: Config, name: str, key: Key, entry: Entry
) -> Iterator[Word]:
    """Yield what a key says, as words of a launch line."""
    value, line = entry.value, entry.line
    if entry.unknown and (key.means or key.option in _SWITCHED):
        raise config.refuse(
            name,
            "a value that the file states",
            entry.unknown,
            f"pass --say {name}=VALUE",
        )
    if isinstance(value, dict) or (
        isinstance(value, list) and any(isinstance(x, dict) for x in value)
    ):
        raise config.refuse(name, "a value", "sections")
    if key.means is not None:
        for part in _meaning(config, name, key.means, value):
            yield Word(part.replace("{}", _text(value)), line)
        return
    if key.option in _SWITCHED and not isinstance(value, bool):
        raise config.refuse(name, "true or false", _text(value))
    if value is False:
        return
    yield Word(key.option, line)
    if entry.unknown:
        yield Word("", line, entry.unknown)
    elif isinstance(value, list):
        yield from _listed(config, name, key, value, line)
    elif value is not True:
        yield Word(_text(value), line)


def _meaning(
    config: Config, name: str, means: Mapping[Any, Meaning], value: Any
) -> Meaning:
    """Return what one of the values of a key says."""
    if ... in means:
        return means[...]
    for known, meaning in means.items():
        # True is 1 to Python, and 16 is not "16".
        if known == value and type(known) is type(value):
            return meaning
    raise config.refuse(
        name,
        f"one of {', '.join(dict.fromkeys(map(_text, means)))}",
        _text(value),
    )


def _listed(
    config: Config, name: str, key: Key, value: list[Any], line: int
) -> Iterator[Word]:
    """Yield the values of a list as the argument has them."""
    if key.option == "--moe-layer-freq":
        yield Word(f"[{','.join(map(_text, value))}]", line)
    elif key.option == "--window-size":
        yield Word(",".join(map(_text, value)), line)
    elif key.option == "--pipeline-model-parallel-layout":
        raise config.refuse(
            name,
            "a text such as Et*8|t*8L",
            "a list",
            f"pass --say {name}=TEXT",
        )
    else:
        for part in value:
            yield Word(_text(part), line)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _nemo_fp8(config: Config) -> dict[str, _Said]:
    """Return the format of fp8, which counts only where fp8 is on."""
    entry = config.get("model.fp8")
    if entry is None or entry.value is False:
        return {}
    for name, text in (("fp8_hybrid", "hybrid"), ("fp8_e4m3", "e4m3")):
        own = config.get(f"model.{name}")
        if own is not None and own.value is True:
            words = Word("--fp8-format", own.line), Word(text, own.line)
            return {"--fp8-format": _Said(f"model.{name}", words)}
    raise config.refuse(
        "model.fp8",
        "fp8_hybrid or fp8_e4m3 with it",
        "neither",
        "pass --say model.fp8_hybrid=true",
    )


def _check_known(config: Config, age: Age) -> None:
    """Refuse what plans know nothing of and would change them."""
    for key, harmless in age.refused.items():
        entry = config.get(key)
        if entry is not None and entry.value not in harmless:
            raise config.refuse(
                key,
                f"{' or '.join(map(_text, harmless)) or 'no such key'}",
                _text(entry.value),
                "plans know no other",
            )


def _check_required(
    config: Config,
    age: Age,
    ask: Arguments,
    found: Mapping[str, _Said],
    model: Architecture | None,
) -> None:
    """Ask for what is not said and has no default."""
    required = list(age.required)
    gates = found.get("--swiglu")
    if age is _MEGATRON and gates and not gates.key.endswith("_func"):
        # Gates without SwiGLU have another default width.
        required.append("language_model.ffn_hidden_size")
    for key in required:
        option = age.keys[key].option
        if config.get(key) or (
            option and (option in found or option in ask.given)
        ):
            continue
        shape = _is_shape(key)
        if not (model is not None and shape):
            raise config.refuse(
                key,
                "a value",
                "none",
                f"add it, or pass --say {key}=VALUE"
                + " or --model NAME" * shape,
            )


def _is_shape(key: str) -> bool:
    """Whether a key is about the shape of the model."""
    section, _, name = key.partition(".")
    return section in ("model", "language_model") and name not in (
        "optim.name",
        "micro_batch_size",
    )


def _world(config: Config, age: Age) -> Count | None:
    """Return how many devices a configuration says that it runs on."""
    each = config.get(age.each) if age.each else None
    if each is None or type(each.value) is not int or each.value < 1:
        return None
    nodes = config.get(age.nodes)
    count, place = 1, ""
    if nodes is not None:
        if type(nodes.value) is not int:
            return None
        count = nodes.value
        place = f" and {config.place(age.nodes)} {count}"
    return Count(
        each.value * count, f"{config.place(age.each)} {each.value}{place}"
    )


def _check_checkpoints(config: Config, ask: Arguments) -> None:
    """Ask what a method of recomputation without a granularity is.

    Versions before granularities recompute whole layers then, later ones
    nothing.
    """
    method = "model.activations_checkpoint_method"
    granularity = "model.activations_checkpoint_granularity"
    if config.get(method) and "--recompute-granularity" not in ask.given:
        raise config.refuse(
            granularity,
            f"a value with {method}",
            "none",
            f"pass --say {granularity}=full for versions that have no such "
            f"key, or remove the method",
        )


def _as_nemo_keeps(
    config: Config, reading: Reading, notes: Sequence[str]
) -> Launched:
    """Return a launch with what NeMo keeps per weight.

    With ``megatron_amp_O2`` that is what Megatron-LM keeps; without, weights
    are in fp32 only, as are gradients: 2 + 4 + 10 bytes, of which layers
    count 2.
    """
    key = "model.megatron_amp_O2"
    entry = config.get(key)
    if entry is not None and not isinstance(entry.value, bool):
        raise config.refuse(
            key, "true or false", entry.unknown or _text(entry.value)
        )
    if entry is not None and entry.value:
        return Launched(reading, tuple(notes))
    launch = reading.launch
    if launch.zero or launch.distributed_optimizer:
        raise config.refuse(
            key,
            "true with a sharded optimiser",
            "none, which is false" if entry is None else "false",
            f"plans shard no state beside whole weights in fp32; pass --say "
            f"{key}=true if that is meant",
        )
    kept = replace(launch, gradient_bytes=4, state_bytes=10)
    note = f"without {key} weights and gradients are in fp32"
    return Launched(reading._replace(launch=kept), (*notes, note))


def _shaping(
    age: Age, ask: Arguments, found: Mapping[str, _Said]
) -> tuple[str, ...]:
    """Return the keys that shape a run and are not said."""
    first: dict[str, str] = {}
    for name, key in age.keys.items():
        if key.option:
            first.setdefault(key.option, name)
    return tuple(
        first.get(option, option)
        for option in SHAPING
        if option not in ask.given and option not in found
    )
