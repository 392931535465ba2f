"""MaxText: a configuration in YAML.

Written for maxtext 0.2.5. Which device is where in its mesh is for its
compiler to say, so that only degrees and layers are read back, no groups.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import yaml
from msgspec.structs import replace

from nest.errors import InvalidPlanError
from nest.frameworks.arguments import MAX_NUMBER
from nest.frameworks.hosts import read_hosts
from nest.frameworks.launch import (
    Launch,
    Mesh,
    as_run,
    check_memory,
    even_chunks,
    length_of,
    usual_mesh,
)
from nest.frameworks.megatron_model import comparable, why_not
from nest.frameworks.settings import Settings
from nest.ir.documents import refusing
from nest.ir.yaml_documents import parse_yaml
from nest.models.architectures import Architecture
from nest.models.blocks import (
    Attention,
    Block,
    Head,
    Mlp,
    RepeatedBlock,
    Tower,
)
from nest.util.text import count_text

NAME = "maxtext"
FILE = "config.yml"

#: Bytes of the optimiser state beside what layers count: fp32 weights.
STATE_BYTES = 10
_GRADIENTS = {2: "bfloat16", 4: "float32"}
_AXES = ("data", "fsdp", "pipeline", "context", "tensor", "expert")

#: Keys with their types.
KEYS: dict[str, type | tuple[type, ...]] = {
    "base_config": str,
    "decoder_block": str,
    "base_emb_dim": int,
    "base_num_query_heads": int,
    "base_num_kv_heads": int,
    "base_num_decoder_layers": int,
    "base_mlp_dim": int,
    "base_moe_mlp_dim": int,
    "head_dim": int,
    "vocab_size": int,
    "mlp_activations": list,
    "logits_via_embedding": bool,
    "num_experts": int,
    "num_experts_per_tok": int,
    "max_target_length": int,
    "per_device_batch_size": (int, float),
    "gradient_accumulation_steps": int,
    "num_pipeline_microbatches": int,
    "num_layers_per_pipeline_stage": int,
    "remat_policy": str,
    "shard_optimizer_over_data": bool,
    "weight_dtype": str,
    "dtype": str,
    "grad_dtype": str,
    "quantization": str,
    **{f"ici_{axis}_parallelism": int for axis in (*_AXES, "tensor_sequence")},
}


def mesh_of(launch: Launch) -> Mesh:
    """Return the plan's own order: the compiler makes the mesh."""
    mesh = usual_mesh(launch)
    return (*mesh[:3], mesh[4], mesh[3])


def said(launch: Launch) -> Launch:
    """Return what of a launch the file says: all but the overlap."""
    return replace(as_run(launch), overlap=())


def _block_of(model: Architecture) -> str:
    """Return MaxText's decoder block for a model of llama's kind.

    Raises
    ------
    InvalidPlanError
        If it is none.
    """
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
    """Return the configuration.

    Raises
    ------
    InvalidPlanError
        If it cannot say the model, what is kept per weight, or the plan.
    """
    length = length_of(launch)
    kind = _block_of(model)
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
    if run.dtype not in ("bf16", "fp8"):
        raise InvalidPlanError(
            f"dtype: expected bf16 or fp8, got {run.dtype}; MaxText's weights "
            f"are for these"
        )
    if run.even_layers is None:
        raise InvalidPlanError(
            "stages: expected as many layers in every stage, got others; "
            "choose another plan"
        )
    tower = model.towers[0]
    block = tower.runs[0].block
    attention, mlp = block.attention, block.mlp
    tensor = "tensor_sequence" if run.sequence_parallel else "tensor"
    piped = run.stages > 1
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
    if mlp.experts:
        values["base_moe_mlp_dim"] = mlp.hidden
        values["num_experts"] = mlp.experts
        values["num_experts_per_tok"] = mlp.experts_per_token
    if piped:
        values["num_layers_per_pipeline_stage"] = run.even_layers
    if run.dtype == "fp8":
        values["quantization"] = "fp8"
    text = yaml.safe_dump(values, sort_keys=False, default_flow_style=None)
    return {FILE: f"# {heading}\n{text}"}


def _batch(run: Launch) -> dict[str, Any]:
    """Return samples per device, and how a step is cut.

    A pipeline cuts the batch of a step; without one gradients accumulate.
    """
    if run.stages > 1:
        micro = run.micro_batches
        cut = {"num_pipeline_microbatches": micro}
        samples = run.global_batch
    else:
        cut = {"gradient_accumulation_steps": run.micro_batches}
        samples = run.replicas * run.micro_batch
    each, rest = divmod(samples, run.world)
    return {
        "per_device_batch_size": samples / run.world if rest else each,
        **cut,
    }


def start(launch: Launch) -> str:
    """Say in one line how to start it."""
    return (
        f"On the hosts of {launch.world} devices: python -m "
        f"maxtext.trainers.pre_train.train {FILE} and your keys for run_name, "
        f"data, tokenizer and learning rate."
    )


def read(files: Mapping[str, str], model: Architecture) -> tuple[Launch, None]:
    """Read an export of this module, and refuse what could not run.

    Raises
    ------
    InvalidPlanError
        If it is broken; the text names file and key.
    """
    world = len(read_hosts(files))
    ask = _Config(files[FILE])
    launch, found = _read(ask, world)
    length = launch.sequence_length
    assert length is not None
    wanted = comparable(replace(model, max_sequence=length), length)
    if wanted != comparable(found, length):
        raise InvalidPlanError(
            f"{FILE}: expected the shape of {model.name}, got another one; "
            f"correct the keys of the model"
        )
    return launch, None


class _Config:
    """The keys of the file, with types checked."""

    def __init__(self, text: str) -> None:
        with refusing(FILE, InvalidPlanError):
            values = parse_yaml(text)
        if not isinstance(values, dict):
            raise InvalidPlanError(
                f"{FILE}: expected keys with values, got something else; "
                f"correct it"
            )
        self.values = values
        for key, value in values.items():
            if key not in KEYS:
                raise self.refuse(key, "a known key", repr(key))
            kinds = KEYS[key]
            if not isinstance(value, kinds) or (
                isinstance(value, bool) and kinds is not bool
            ):
                raise self.refuse(key, "another type", repr(value))

    def refuse(self, key: str, expected: str, got: object) -> InvalidPlanError:
        """Return the error about one key."""
        return InvalidPlanError(
            f"{FILE}: {key}: expected {expected}, got {got}; correct it"
        )

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value; without a default it must be there."""
        value = self.values.get(key, default)
        if value is None:
            raise self.refuse(key, "a value", "none")
        # Also what is no number, and what is infinite.
        if isinstance(value, (int, float)) and not abs(value) <= MAX_NUMBER:
            shown = count_text(value) if isinstance(value, int) else value
            raise self.refuse(key, f"at most {MAX_NUMBER}", shown)
        return value

    def count(self, key: str, default: int | None = None) -> int:
        """Return a number of at least 1."""
        value: int = self.get(key, default)
        if value < 1:
            raise self.refuse(key, "at least 1", value)
        return value

    def one_of(self, key: str, *known: str, default: str = "") -> str:
        """Return one of the names known."""
        value: str = self.get(key, default)
        if value not in known:
            raise self.refuse(key, f"one of {', '.join(known)}", repr(value))
        return value


def _read(ask: _Config, world: int) -> tuple[Launch, Architecture]:
    data, fsdp, stages, cp, tensor, ep = (
        ask.count(f"ici_{axis}_parallelism", 1) for axis in _AXES
    )
    sequence = ask.count("ici_tensor_sequence_parallelism", 1)
    tp = tensor * sequence
    if tensor > 1 and sequence > 1:
        raise ask.refuse("ici_tensor_parallelism", "one tensor axis", "two")
    product = data * fsdp * stages * cp * tp * ep
    if product != world:
        raise ask.refuse(
            "ici_data_parallelism",
            f"axes whose product is the {world} devices",
            product,
        )
    model = _read_model(ask)
    block = model.towers[0].runs[0].block
    for key, count in (
        ("base_num_query_heads", block.attention.heads),
        ("base_mlp_dim", block.mlp.hidden),
    ):
        if count % tp:
            raise ask.refuse(
                key, f"a multiple of the {tp} tensor ranks", count
            )
    if ep > 1 and (not block.mlp.experts or block.mlp.experts % ep):
        raise ask.refuse(
            "ici_expert_parallelism",
            f"a divisor of the {block.mlp.experts} experts",
            ep,
        )
    sharded = fsdp * ep * cp > 1
    over_data = ask.get("shard_optimizer_over_data", False)
    if over_data and sharded:
        raise ask.refuse(
            "shard_optimizer_over_data", "false with fsdp or experts", "true"
        )
    chunks = even_chunks(model.layers, stages)
    if chunks is None or (
        stages > 1
        and ask.count("num_layers_per_pipeline_stage") != chunks[0].layers
    ):
        raise ask.refuse(
            "num_layers_per_pipeline_stage",
            f"{model.layers} layers / {stages} stages",
            ask.values.get("num_layers_per_pipeline_stage"),
        )
    ranks = fsdp * ep if sharded else data
    batch, micro = _read_batch(ask, world, stages)
    if batch % micro or batch // micro % (ranks * (data if sharded else 1)):
        raise ask.refuse(
            "per_device_batch_size",
            "whole samples of a micro-batch on every data rank",
            batch / micro,
        )
    if stages > 1 and micro % stages:
        raise ask.refuse(
            "num_pipeline_microbatches",
            f"a multiple of the {stages} stages",
            micro,
        )
    ask.one_of("weight_dtype", "float32")
    ask.one_of("dtype", "bfloat16")
    names = {name: size for size, name in _GRADIENTS.items()}
    gradients = ask.one_of("grad_dtype", *names, default="float32")
    eight = ask.values.get("quantization")
    if eight not in (None, "fp8"):
        raise ask.refuse("quantization", "fp8 or none", repr(eight))
    recompute = ask.one_of("remat_policy", "none", "full", default="full")
    return (
        Launch(
            tp=tp,
            cp=cp,
            dp=ranks,
            ep=ep,
            replicas=data if sharded else 1,
            stages=stages,
            chunks=chunks,
            schedule="gpipe" if stages > 1 else "1f1b",
            zero=3 if sharded else int(over_data and ranks > 1),
            recompute="full" if recompute == "full" else "none",
            micro_batch=batch // micro // (data if sharded else 1),
            global_batch=batch,
            sequence_length=ask.count("max_target_length"),
            sequence_parallel=sequence > 1,
            dtype=eight or "bf16",
            gradient_bytes=names[gradients],
            state_bytes=STATE_BYTES,
        ),
        model,
    )


def _read_batch(ask: _Config, world: int, stages: int) -> tuple[int, int]:
    """Return samples of a step, and its micro-batches."""
    steps = ask.count("gradient_accumulation_steps", 1)
    samples = ask.get("per_device_batch_size") * world
    if not 1 <= samples < math.inf or round(samples) != samples:
        raise ask.refuse(
            "per_device_batch_size", "whole samples on all devices", samples
        )
    if stages == 1:
        return round(samples) * steps, steps
    if steps > 1:
        raise ask.refuse(
            "gradient_accumulation_steps", "1 with a pipeline", steps
        )
    return round(samples), ask.count("num_pipeline_microbatches")


def _read_model(ask: _Config) -> Architecture:
    """Return a model of llama's kind."""
    kind = ask.one_of("decoder_block", "llama2", "mixtral")
    ask.one_of("base_config", "base.yml")
    experts = ask.count("num_experts", 1)
    if (experts > 1) != (kind == "mixtral"):
        raise ask.refuse(
            "num_experts", f"what the decoder block {kind} has", experts
        )
    if ask.get("mlp_activations") != ["silu", "linear"]:
        raise ask.refuse(
            "mlp_activations", "silu and linear", ask.get("mlp_activations")
        )
    width = ask.count("base_mlp_dim")
    mlp = Mlp(hidden=width, gated=True)
    if experts > 1:
        if ask.count("base_moe_mlp_dim", width) != width:
            raise ask.refuse(
                "base_moe_mlp_dim", f"base_mlp_dim {width}", "another"
            )
        mlp = replace(
            mlp,
            experts=experts,
            experts_per_token=ask.count("num_experts_per_tok"),
        )
    length = ask.count("max_target_length")
    block = Block(
        name="decoder",
        hidden=ask.count("base_emb_dim"),
        attention=Attention(
            heads=ask.count("base_num_query_heads"),
            kv_heads=ask.count("base_num_kv_heads"),
            head_size=ask.count("head_dim"),
            rotary=True,
        ),
        mlp=mlp,
    )
    vocabulary = ask.count("vocab_size")
    layers = ask.count("base_num_decoder_layers")
    return Architecture(
        name="",
        towers=(
            Tower(
                runs=(RepeatedBlock(block=block, count=layers),),
                vocabulary=vocabulary,
            ),
        ),
        head=Head(
            outputs=vocabulary, tied=ask.get("logits_via_embedding", False)
        ),
        max_sequence=length,
    )
