"""MaxText: a configuration in YAML.

Written for maxtext 0.2.5. Which device is where in its mesh is for its
compiler to say, so that only degrees and layers are read back, no groups.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import yaml
from msgspec.structs import replace

from nest.errors import InvalidPlanError, UnknownNameError
from nest.frameworks.arguments import ignored_note
from nest.frameworks.faults import Fault, read_all
from nest.frameworks.hosts import read_hosts
from nest.frameworks.keyed import KeyedFile, KeyTable, read_data
from nest.frameworks.launch import (
    Launch,
    Mesh,
    Settings,
    as_run,
    check_dtype,
    check_memory,
    even_chunks,
    length_of,
    usual_mesh,
)
from nest.frameworks.megatron_model import check_shape, comparable, why_not
from nest.ir.documents import refusing
from nest.ir.yaml_documents import parse_yaml
from nest.models.architectures import Architecture
from nest.models.blocks import Attention, Block, Head, Mlp, RepeatedBlock, Tower
from nest.models.details import Details, Rotary, Router
from nest.models.zoo import architecture

FILE = "config.yml"
START = (
    f"On the hosts of {{world}} devices: python -m maxtext.trainers.pre_train.train "
    f"{FILE} and your keys for run_name, data, tokenizer and learning rate."
)

#: Bytes of the optimizer state beside what layers count: fp32 weights.
STATE_BYTES = 10
_GRADIENTS = {2: "bfloat16", 4: "float32"}
_AXES = (
    *("data", "fsdp", "pipeline", "context"),
    *("tensor", "tensor_sequence", "expert"),
)
_NETWORKS = ("ici", "dcn")

TABLE = read_data("maxtext", KeyTable)
_BASE = read_data("maxtext_base", dict[str, Any])

#: Keys of the shape, which a file that names its model leaves out.
_SHAPE = tuple(name for name in _BASE if name in TABLE.keys and name[:4] == "base")
#: What MaxText calls models, where nest has another name.
_MODELS = {"deepseek3-671b": "deepseek-v3", "kimi-k2-1t": "kimi-k2"}
#: What its scaling for Llama 3.1 takes as given (``LLaMARotaryEmbedding``).
_LLAMA3: dict[str, Any] = {
    "scaling": "llama3",
    "factor": 8.0,
    "low_frequency": 1.0,
    "high_frequency": 4.0,
    "original_length": 8192,
}
#: Keys of rotary positions.
_ROTARY = tuple(name for name in TABLE.keys if name.startswith("rope_"))
#: Policies that keep parts of a layer (``get_remat_policy`` of its decoders), with the
#: closest choice of plans and why.
_POLICIES = {
    **dict.fromkeys(
        ("minimal", "minimal_with_context", "minimal_flash", "save_all"),
        ("none", "computes no product with weights again"),
    ),
    **dict.fromkeys(
        ("minimal_offloaded", "qkv_proj_offloaded"),
        ("full", "keeps little on the device, and plans know no offloading"),
    ),
    **dict.fromkeys(
        ("save_dot_except_mlp", "save_dot_with_context_except_mlp", "save_out_proj"),
        ("full", "computes the MLP again"),
    ),
    **dict.fromkeys(
        ("save_dot_except_mlpwi", "save_qkv_proj", "proj", "custom"),
        ("full", "computes large products again"),
    ),
}
#: Numbers that are texts in YAML 1.2.
_NUMBER = re.compile(r"\d[\d_]{0,20}(\.\d{0,20})?([eE][+-]?\d{1,2})?")
#: Values that stand for none.
_NONE = {"quantization": "", "base_moe_mlp_dim": -1, "num_pipeline_microbatches": -1}


def mesh_of(launch: Launch) -> Mesh:
    """Return the plan's own order: the compiler makes the mesh."""
    *inside, replicas, stages = usual_mesh(launch)
    return (*inside, stages, replicas)


def stated(launch: Launch) -> Launch:
    """Return a launch as the file states it: without the overlap."""
    return replace(as_run(launch), overlap=())


def _block_of(model: Architecture) -> str:
    """Return MaxText's decoder block for a model, which must be of llama's kind."""
    reason = why_not(model)
    tower = model.towers[0]
    block = tower.runs[0].block
    attention, mlp = block.attention, block.mlp
    if reason is None and (
        len({replace(b, name="") for b in tower.blocks()}) > 1
        or block.layer_norm
        or not attention.rotary
        or attention.biases
        or attention.key_value_rank
        or attention.query_key_norm
        or attention.window
        or not mlp.gated
        or mlp.shared_hidden
    ):
        reason = "expected equal blocks like those of llama or mixtral"
    if reason is not None:
        raise InvalidPlanError(
            f"model: {reason}, got {model.name}; this export writes no other"
        )
    return "mixtral" if mlp.experts else "llama2"


def write(
    launch: Launch, model: Architecture, _settings: Settings, heading: str
) -> dict[str, str]:
    """Return the configuration; ``ExportModule.write`` says its errors."""
    length = length_of(launch)
    kind = _block_of(model)
    details = _details_keys(model)
    model = comparable(model, length)
    check_memory(launch, STATE_BYTES)
    run = as_run(launch)
    if run.ep > 1 and run.zero != 3:
        raise InvalidPlanError(
            f"zero: expected 3 with expert parallelism, whose axis shards "
            f"all weights, got {run.zero}; choose another plan"
        )
    if run.dp % run.ep:
        raise InvalidPlanError(
            f"ep: expected a divisor of dp {run.dp}, as experts are an axis "
            f"beside cp, got {run.ep}; choose another plan"
        )
    check_dtype(run, ("bf16", "fp8"), "MaxText's weights are for these")
    if run.even_layers is None:
        raise InvalidPlanError(
            "stages: expected as many layers in every stage, got others; "
            "choose another plan"
        )
    tower = model.towers[0]
    block = tower.runs[0].block
    attention, mlp = block.attention, block.mlp
    tensor = "tensor_sequence" if run.sequence_parallel else "tensor"
    values: dict[str, Any] = {
        "base_config": "base.yml",
        "decoder_block": kind,
        "base_emb_dim": tower.hidden,
        "base_num_query_heads": attention.heads,
        "base_num_kv_heads": attention.kv_heads,
        "base_num_decoder_layers": tower.layers,
        "base_mlp_dim": mlp.hidden,
        "head_dim": attention.head_size,
        "vocab_size": tower.vocabulary,
        "mlp_activations": ["silu", "linear"],
        "logits_via_embedding": model.head.tied,
        "max_target_length": length,
        "ici_data_parallelism": run.replicas if run.zero == 3 else run.dp,
        "ici_fsdp_parallelism": run.dp // run.ep if run.zero == 3 else 1,
        "ici_pipeline_parallelism": run.stages,
        "ici_context_parallelism": run.cp,
        f"ici_{tensor}_parallelism": run.tp,
        "ici_expert_parallelism": run.ep,
        "shard_optimizer_over_data": run.zero == 1,
        "remat_policy": run.recompute,
        "weight_dtype": "float32",
        "dtype": "bfloat16",
        "grad_dtype": _GRADIENTS[run.gradient_bytes],
        **_batch(run),
    }
    values |= details
    if model.head.tied:
        # By default its logits of tied embeddings are divided by a root of the width.
        values["normalize_embedding_logits"] = False
    if mlp.experts:
        values["base_moe_mlp_dim"] = mlp.hidden
        values["num_experts"] = mlp.experts
        values["num_experts_per_tok"] = mlp.experts_per_token
    if run.stages > 1:
        values["num_layers_per_pipeline_stage"] = run.even_layers
    if run.dtype == "fp8":
        values["quantization"] = "fp8"
    text = yaml.safe_dump(values, sort_keys=False, default_flow_style=None)
    return {FILE: f"# {heading}\n{text}"}


def _details_keys(model: Architecture) -> dict[str, Any]:
    """Return the keys of what a model computes beyond its shape, as far as known.

    Blocks of llama and mixtral have SiLU, and weigh experts by a softmax over those
    that are chosen.

    Raises ``InvalidPlanError`` if no key says it; the text names the field.
    """
    details = model.details or Details()

    def refuse(field: str, expected: object, got: object) -> InvalidPlanError:
        return InvalidPlanError(
            f"model: {field}: expected {expected}, got {got} in {model.name}; this "
            f"export writes no other"
        )

    for name in details.others:
        raise refuse(name, "a plain transformer", "another value")
    if details.activation not in (None, "silu", "swish"):
        raise refuse("activation", "silu", details.activation)
    if details.router not in (None, Router()):
        raise refuse("router", "a softmax over the chosen experts", "another one")
    keys: dict[str, Any] = {}
    if details.norm_epsilon is not None:
        keys["normalization_layer_epsilon"] = details.norm_epsilon
    rotary = details.rotary
    if rotary is None:
        return keys
    whole = rotary.base == int(rotary.base)
    keys["rope_max_timescale"] = int(rotary.base) if whole else rotary.base
    if rotary.scaling == "llama3":
        keys["rope_type"] = "llama3.1"
    elif rotary.scaling == "linear":
        keys["rope_linear_scaling_factor"] = rotary.factor
    if _rotary(keys) != rotary.effective:
        raise refuse("rotary positions", "those of Llama 2 or 3.1", "others")
    return keys


def _rotary(keys: Mapping[str, Any]) -> Rotary:
    """Return the rotary positions of keys, of which others have their default."""
    kind = str(keys.get("rope_type", "default"))
    factor = keys.get("rope_linear_scaling_factor", 1.0)
    rotary = Rotary(base=float(keys.get("rope_max_timescale", 10_000)))
    if kind.startswith("llama3.1"):
        scaled = keys.get("rope_use_scale", True)
        return replace(rotary, **_LLAMA3) if scaled else rotary
    if kind == "default" and factor != 1:
        return replace(rotary, scaling="linear", factor=factor)
    return replace(rotary, scaling="" if kind == "default" else kind)


def _batch(run: Launch) -> dict[str, Any]:
    """Return samples per device, and how a step is cut.

    A pipeline cuts the batch of a step; without one gradients accumulate.
    """
    if run.stages > 1:
        key, samples = "num_pipeline_microbatches", run.global_batch
    else:
        key, samples = "gradient_accumulation_steps", run.replicas * run.micro_batch
    each, rest = divmod(samples, run.world)
    size = samples / run.world if rest else each
    return {"per_device_batch_size": size, key: run.micro_batches}


def read(files: Mapping[str, str], model: Architecture) -> tuple[Launch, None]:
    """Read an export of this module; ``ExportModule.read`` says its errors."""
    world = len(read_hosts(files))
    config = KeyedFile(document_of(files[FILE], FILE), FILE, TABLE)
    config.check_written()
    config.check_values()
    written = _read_model(config)
    launch = _read(config, world, written)
    length = length_of(launch)
    details = model.details and model.details.effective
    model = replace(model, max_sequence=length, details=details)
    check_shape(FILE, model, written, length)
    return launch, None


def document_of(text: str, where: str) -> dict[str, Any]:
    """Return the keys of a configuration."""
    with refusing(where, InvalidPlanError):
        document = parse_yaml(text)
    if not isinstance(document, dict):
        raise InvalidPlanError(
            f"{where}: expected keys with values, got something else; correct it"
        )
    return document


class Configuration(NamedTuple):
    """The keys that a job starts with.

    ``lines`` is where they are, and ``faults`` are questions that are known already.
    """

    document: dict[str, Any]
    lines: Mapping[str, int]
    faults: tuple[Fault, ...] = ()


def configuration_of(text: str, where: str) -> Configuration:
    """Return the keys of a configuration.

    Raises ``InvalidPlanError`` if it has none.
    """
    lines = enumerate(text.splitlines(), 1)
    named = {line.partition(":")[0].strip(): index for index, line in lines}
    return Configuration(document_of(text, where), named)


def read_foreign(
    configuration: Configuration,
    where: str,
    world: int,
    overrides: Sequence[tuple[str, str]] = (),
    model: Architecture | None = None,
    ignore: Sequence[str] = (),
) -> tuple[Launch, Architecture, tuple[str, ...]]:
    """Read a configuration of a user, and return notes for the user too.

    It has what differs from ``base.yml``. Other parameters and errors are those of
    :func:`nest.frameworks.torchtitan.read_foreign`.
    """
    document, lines, faults = configuration
    for name, value in overrides:
        with refusing(f"--say {name}", InvalidPlanError):
            document[name] = parse_yaml(value)
    document.pop("base_config", None)  # its name differs with the release
    names = [name for name, _ in overrides]
    faults = tuple(fault for fault in faults if fault.subject not in names)

    def read(file: KeyedFile) -> tuple[Launch, Architecture, tuple[str, ...]]:
        # Reading fills in keys of its own copy.
        return _read_filled(file.with_values(()), world, model)

    return read_all(read, KeyedFile(document, where, TABLE, lines.get, ignore), faults)


def _read_filled(
    config: KeyedFile, world: int, model: Architecture | None
) -> tuple[Launch, Architecture, tuple[str, ...]]:
    """Read a configuration with what ``base.yml`` adds."""
    notes = ignored_note(config.where, config.ignored())
    model = _named_model(config, model)
    document = config.document
    document |= {name: value for name, value in _BASE.items() if name not in document}
    for name, none in _NONE.items():
        if document.get(name) == none:
            del document[name]
    document["base_config"] = "base.yml"
    for name, value in document.items():
        key = TABLE.keys.get(name)
        if key is not None and key.type in ("integer", "number"):
            document[name] = _as_omegaconf(value)
    _check_policy(config)
    stages = prod(config.get(f"{x}_pipeline_parallelism") for x in _NETWORKS)
    if stages > 1:
        document.setdefault("num_pipeline_microbatches", stages)
    _fill_axes(config, world)
    config.check_values()
    model = model or _read_model(config)
    # Plans for MaxText have its schedule, also those of one stage.
    launch = replace(_read(config, world, model), schedule="gpipe")
    return launch, model, notes


def _as_omegaconf(value: Any) -> Any:
    """Return a number that OmegaConf reads as one, such as 1e-5 or 500_000."""
    if not isinstance(value, str) or not _NUMBER.fullmatch(value):
        return value
    digits = value.replace("_", "")
    return int(digits) if digits.isdigit() else float(digits)


def _check_policy(config: KeyedFile) -> None:
    """Refuse recomputation of parts of a layer, with the closest that plans have."""
    policy = config.document.get("remat_policy")
    if not isinstance(policy, str) or policy not in _POLICIES:
        return
    closest, why = _POLICIES[policy]
    answer = f"remat_policy={closest}"
    raise config.refuse(
        "remat_policy",
        "none or full, which plans have",
        f"{policy!r}",
        f"the closest is {closest}, as it {why}: --say {answer}",
        ("--say", answer),
    )


def _named_model(config: KeyedFile, model: Architecture | None) -> Architecture | None:
    """Return the model that a file names, ``None`` if it states a shape."""
    name = config.document.pop("model_name", "default")
    if model is None and name != "default":
        try:
            model = architecture(_MODELS.get(str(name), str(name)))
        except UnknownNameError:
            expected = "a model that is known, or --model"
            raise config.refuse("model_name", expected, name) from None
    for key in _SHAPE if model is not None else ():
        if key in config.document:
            raise config.refuse(key, "it or the name of a model", "both of them")
    return model


def _fill_axes(config: KeyedFile, world: int) -> None:
    """Write the number of devices that are left where an axis is -1.

    Two of them are so in ``base.yml``: with the axis inside a slice there is one slice.
    """
    names = [f"{x}_{axis}_parallelism" for x in _NETWORKS for axis in _AXES]
    degrees = {name: config.get(name) for name in names}
    slices, fsdp = "dcn_data_parallelism", "ici_fsdp_parallelism"
    if degrees[slices] == degrees[fsdp] == -1:
        degrees[slices] = config.document[slices] = 1
    others = max(1, abs(prod(degrees.values())))
    for name in (slices, fsdp):
        if degrees[name] == -1:
            config.document[name] = max(1, world // others)


def _read(config: KeyedFile, world: int, model: Architecture) -> Launch:
    data, fsdp, stages, cp, tensor, sequence, ep = (
        prod(config.get(f"{network}_{axis}_parallelism") for network in _NETWORKS)
        for axis in _AXES
    )
    tp = tensor * sequence
    if tensor > 1 and sequence > 1:
        raise config.refuse("ici_tensor_parallelism", "one tensor axis", "two")
    product = data * fsdp * stages * cp * tp * ep
    if product != world or min(data, fsdp) < 1:
        expected = f"axes whose product is the {world} devices"
        raise config.refuse("ici_data_parallelism", expected, product)
    _check_split(config, model, tp, ep)
    sharded = fsdp * ep * cp > 1
    over_data = config.get("shard_optimizer_over_data")
    if over_data and sharded:
        raise config.refuse(
            "shard_optimizer_over_data", "false with fsdp or experts", "true"
        )
    chunks = even_chunks(model.layers, stages)
    layers = config.get("num_layers_per_pipeline_stage")
    if chunks is None or (stages > 1 and layers != chunks[0].layers):
        expected = f"{model.layers} layers / {stages} stages"
        raise config.refuse("num_layers_per_pipeline_stage", expected, layers)
    ranks = fsdp * ep if sharded else data
    replicas = data if sharded else 1
    batch, micro = _read_batch(config, world, stages)
    if batch % micro or batch // micro % (ranks * replicas):
        expected = "whole samples of a micro-batch on every data rank"
        raise config.refuse("per_device_batch_size", expected, batch / micro)
    if stages > 1 and micro % stages:
        raise config.refuse(
            "num_pipeline_microbatches", f"a multiple of the {stages} stages", micro
        )
    gradient_bytes = {name: size for size, name in _GRADIENTS.items()}
    return Launch(
        tp=tp,
        cp=cp,
        dp=ranks,
        ep=ep,
        replicas=replicas,
        stages=stages,
        chunks=chunks,
        schedule="gpipe" if stages > 1 else "1f1b",
        zero=3 if sharded else int(over_data and ranks > 1),
        recompute=config.get("remat_policy"),
        micro_batch=batch // micro // replicas,
        global_batch=batch,
        sequence_length=config.get("max_target_length"),
        sequence_parallel=sequence > 1,
        dtype=config.get("quantization") or "bf16",
        gradient_bytes=gradient_bytes[config.get("grad_dtype")],
        state_bytes=STATE_BYTES,
    )


def _check_split(config: KeyedFile, model: Architecture, tp: int, ep: int) -> None:
    """Refuse degrees that do not divide the model."""
    block = model.towers[0].runs[0].block
    for key, count in (
        ("base_num_query_heads", block.attention.heads),
        ("base_mlp_dim", block.mlp.hidden),
    ):
        if count % tp:
            raise config.refuse(key, f"a multiple of the {tp} tensor ranks", count)
    if ep > 1 and (not block.mlp.experts or block.mlp.experts % ep):
        expected = f"a divisor of the {block.mlp.experts} experts"
        raise config.refuse("ici_expert_parallelism", expected, ep)


def _read_batch(config: KeyedFile, world: int, stages: int) -> tuple[int, int]:
    """Return samples of a step, and its micro-batches."""
    steps: int = config.get("gradient_accumulation_steps")
    samples = config.get("per_device_batch_size") * world
    if samples < 1 or round(samples) != samples:
        raise config.refuse(
            "per_device_batch_size", "whole samples on all devices", samples
        )
    if stages == 1:
        return round(samples) * steps, steps
    if steps > 1:
        raise config.refuse("gradient_accumulation_steps", "1 with a pipeline", steps)
    micro = config.get("num_pipeline_microbatches")
    if micro is None:
        raise config.refuse("num_pipeline_microbatches", "a value", "none")
    return round(samples), micro


def _read_model(config: KeyedFile) -> Architecture:
    """Return a model of llama's kind."""
    kind, experts = config.get("decoder_block"), config.get("num_experts")
    if (experts > 1) != (kind == "mixtral"):
        raise config.refuse(
            "num_experts", f"what the decoder block {kind} has", experts
        )
    width = config.get("base_mlp_dim")
    mlp = Mlp(hidden=width, gated=True)
    if experts > 1:
        if config.get("base_moe_mlp_dim") not in (None, width):
            raise config.refuse("base_moe_mlp_dim", f"base_mlp_dim {width}", "another")
        per_token = config.get("num_experts_per_tok")
        if per_token is None:
            raise config.refuse("num_experts_per_tok", "a value", "none")
        mlp = replace(mlp, experts=experts, experts_per_token=per_token)
    block = Block(
        name="decoder",
        hidden=config.get("base_emb_dim"),
        attention=Attention(
            heads=config.get("base_num_query_heads"),
            kv_heads=config.get("base_num_kv_heads"),
            head_size=config.get("head_dim"),
            rotary=True,
        ),
        mlp=mlp,
    )
    vocabulary, tied = config.get("vocab_size"), config.get("logits_via_embedding")
    if tied and config.get("normalize_embedding_logits"):
        remedy = "models of nest do not divide logits by the root of their width"
        raise config.refuse(
            *("normalize_embedding_logits", "false with tied embeddings", "true"),
            remedy,
        )
    run = RepeatedBlock(block=block, count=config.get("base_num_decoder_layers"))
    return Architecture(
        name="",
        towers=(Tower(runs=(run,), vocabulary=vocabulary),),
        head=Head(outputs=vocabulary, tied=tied),
        max_sequence=config.get("max_target_length"),
        details=Details(
            rotary=_rotary({name: config.get(name) for name in _ROTARY}),
            norm_epsilon=config.get("normalization_layer_epsilon"),
            activation="silu",
        ),
    )
