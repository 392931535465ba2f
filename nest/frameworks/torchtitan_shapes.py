"""Shapes of models as torchtitan 0.2.2 builds them, in a module of Python, and back.

torchtitan knows shapes by name only ("flavors"). Its job file may import a module that
registers others (``experimental.custom_import``, and ``register_train_spec`` of
``torchtitan/protocols/train_spec.py``). Modules are parsed, and never executed.
"""

from __future__ import annotations

import ast
import re
from typing import Any, Literal

import msgspec
from msgspec.structs import asdict, replace

from nest.errors import InvalidPlanError
from nest.frameworks.megatron_model import comparable
from nest.ir.base import Count, PositiveReal, Real, Size, Struct
from nest.models.architectures import Architecture
from nest.models.blocks import Attention, Block, Head, Mlp, Tower, runs_of
from nest.models.details import Details, Rotary, Router
from nest.models.hf.config import MOST_LAYERS

MODULE = "nest_model"
FILE = f"{MODULE}.py"
#: What modules register their models as.
NAME = "nest"
#: Packages whose specification has no function for pipelines, although their models run
#: without the modules of other stages.
UNPIPED = ("qwen3", "gpt_oss")
#: Longest module that is read; what is behind that is not.
_MAX_CHARACTERS = 20_000
#: Functions that torchtitan's MLPs compute.
_ACTIVATIONS = ("silu", "swish")


class MoEArgs(Struct, frozen=True, kw_only=True):
    """Arguments of experts (``torchtitan/models/moe/moe.py``).

    With ``load_balance_coeff`` a bias per expert is part of the choice.
    """

    num_experts: Count = 8
    num_shared_experts: Size = 1
    score_func: Literal["softmax", "sigmoid"] = "sigmoid"
    route_norm: bool = False
    route_scale: PositiveReal = 1.0
    score_before_experts: bool = True
    top_k: Count = 1
    num_expert_groups: Count | None = None
    num_limited_groups: Count | None = None
    load_balance_coeff: PositiveReal | None = 1e-3


class RoPEScalingArgs(Struct, frozen=True, kw_only=True):
    """Arguments of scaled rotary positions (``llama3/model/args.py``)."""

    scaling_factor: PositiveReal = 8.0
    low_freq_factor: PositiveReal = 1.0
    high_freq_factor: PositiveReal = 4.0
    original_max_position_embeddings: Count = 8192


class TransformerModelArgs(Struct, frozen=True, kw_only=True):
    """Arguments of dense models (``llama3/model/args.py``).

    Their heads are as wide as the model together.
    """

    dim: Count = 4096
    n_layers: Count = 32
    n_heads: Count = 32
    n_kv_heads: Count | None = None
    vocab_size: Count = 128_256
    multiple_of: Count = 256
    ffn_dim_multiplier: PositiveReal | None = None
    norm_eps: Real = 1e-5
    rope_theta: PositiveReal = 10_000.0
    rope_scaling_args: RoPEScalingArgs = RoPEScalingArgs()
    max_seq_len: Count = 131_072

    @property
    def columns(self) -> int:
        """Columns of the MLP (``FeedForward`` of ``llama3/model/model.py``)."""
        columns = int(8 * self.dim / 3)
        if self.ffn_dim_multiplier is not None:
            columns = int(self.ffn_dim_multiplier * columns)
        return self.multiple_of * -(-columns // self.multiple_of)


class Qwen3ModelArgs(Struct, frozen=True, kw_only=True):
    """Arguments of models with heads of any width (``qwen3/model/args.py``).

    They are dense, or all of their layers have experts.
    """

    dim: Count = 1024
    n_layers: Count = 28
    n_heads: Count = 16
    n_kv_heads: Count = 8
    vocab_size: Count = 151_936
    head_dim: Count = 128
    hidden_dim: Count = 3072
    norm_eps: Real = 1e-6
    rope_theta: PositiveReal = 1_000_000.0
    qk_norm: bool = True
    max_seq_len: Count = 4096
    enable_weight_tying: bool = False
    moe_enabled: bool = False
    moe_inter_dim: Count = 768
    moe_args: MoEArgs = MoEArgs()


class DeepSeekV3ModelArgs(Struct, frozen=True, kw_only=True):
    """Arguments of models with latent attention (``deepseek_v3/model/args.py``).

    Layers have experts but for the first ones.
    """

    max_seq_len: Count = 16_384
    vocab_size: Count = 102_400
    dim: Count = 2048
    inter_dim: Count = 10_944
    moe_inter_dim: Count = 1408
    n_layers: Count = 27
    n_dense_layers: Size = 1
    n_heads: Count = 16
    norm_eps: Real = 1e-5
    moe_args: MoEArgs = MoEArgs()
    q_lora_rank: Size = 0
    kv_lora_rank: Count = 512
    qk_nope_head_dim: Count = 128
    qk_rope_head_dim: Count = 64
    v_head_dim: Count = 128
    original_seq_len: Count = 4096
    rope_theta: PositiveReal = 10_000.0
    rope_factor: PositiveReal = 40.0
    beta_fast: PositiveReal = 32.0
    beta_slow: PositiveReal = 1.0
    mscale: Real = 1.0


#: Arguments of a model.
ModelArgs = TransformerModelArgs | Qwen3ModelArgs | DeepSeekV3ModelArgs

#: Packages of ``torchtitan.models``, with the arguments of their models.
_PACKAGES: dict[str, type[ModelArgs]] = {
    "llama3": TransformerModelArgs,
    "qwen3": Qwen3ModelArgs,
    "deepseek_v3": DeepSeekV3ModelArgs,
}
#: Where torchtitan has each record.
RECORDS: dict[type[Struct], str] = {
    **{kind: f"models.{package}" for package, kind in _PACKAGES.items()},
    RoPEScalingArgs: "models.llama3.model.args",
    MoEArgs: "models.moe",
}


def flavor_of(model: Architecture) -> str:
    """Return the name under which a module registers a model."""
    return re.sub(r"[^\w.+-]+", "-", model.name, flags=re.ASCII) or "model"


def module_text(model: Architecture, sequence_length: int, stages: int) -> str:
    """Return a module that registers a model for samples of so many tokens.

    Raises ``InvalidPlanError`` if torchtitan has no such model, or not on so many
    stages; the text names the field.
    """
    if stages > 1 and model.head.tied:
        raise InvalidPlanError(
            f"stages: expected 1, as torchtitan ties embedding and head on one stage, "
            f"got {stages} for {model.name}; choose another plan, as --pin pp=1 does"
        )
    args = arguments_of(model, sequence_length)
    package = _package_of(args)
    title = type(args).__name__
    imports = {RECORDS[type(args)]: f"{title}, get_train_spec"}
    for name in args.__struct_fields__:
        value = getattr(args, name)
        if isinstance(value, Struct) and value != type(value)():
            imports[RECORDS[type(value)]] = type(value).__name__
    imports["protocols.train_spec"] = "register_train_spec"
    piped = ""
    if package in UNPIPED:
        imports["distributed.pipeline_parallel"] = "pipeline_llm"
        piped = "    pipelining_fn=pipeline_llm,\n"
    lines = [
        f"from torchtitan.{name} import {imports[name]}" for name in sorted(imports)
    ]
    return (
        f"# The shape of {model.name}, which the job file imports.\n"
        f"from dataclasses import replace\n\n"
        + "\n".join(sorted(lines))
        + f"\n\nargs = {_call(args)}\n"
        f"spec = replace(\n"
        f"    get_train_spec(),\n"
        f'    model_args={{"{flavor_of(model)}": args}},\n'
        f"{piped})\n"
        f'register_train_spec("{NAME}", spec)\n'
    )


def _package_of(args: ModelArgs) -> str:
    return next(name for name, kind in _PACKAGES.items() if type(args) is kind)


def _call(args: Struct, indent: str = "") -> str:
    """Return the call that makes arguments, without those that are the default."""
    inside = f"{indent}    "
    usual, lines = type(args)(), [f"{type(args).__name__}("]
    for name in args.__struct_fields__:
        value = getattr(args, name)
        if value != getattr(usual, name):
            nested = isinstance(value, Struct)
            text = _call(value, inside) if nested else repr(value)
            lines.append(f"{inside}{name}={text},")
    return "\n".join([*lines, f"{indent})"])


def arguments_of(model: Architecture, sequence_length: int) -> ModelArgs:
    """Return the arguments of which torchtitan builds a model.

    What no arguments say shows in the model that they describe.

    Raises ``InvalidPlanError`` if that is another model; the text names the first field
    that differs.
    """
    if len(model.towers) > 1:
        raise InvalidPlanError(
            f"model: towers: expected one, as torchtitan has it, got "
            f"{len(model.towers)} in {model.name}; choose another target"
        )
    block = model.towers[0].last
    attention = block.attention
    with_experts = {each.mlp.experts > 0 for each in model.towers[0].blocks()}
    details = model.details or Details()
    rotary = details.rotary or Rotary()
    plain = not (True in with_experts or attention.query_key_norm or model.head.tied)
    whole = attention.heads * attention.head_size == block.hidden
    args: ModelArgs
    if attention.key_value_rank:
        args = _latent(model, rotary)
    elif rotary.scaling == "llama3" or (plain and whole):
        args = _llama(model, rotary)
    else:
        args = _qwen(model)
    stated: dict[str, Any] = {
        "max_seq_len": max(model.max_sequence, sequence_length),
        "norm_eps": details.norm_epsilon,
        "rope_theta": None if details.rotary is None else rotary.base,
    }
    args = replace(args, **{k: v for k, v in stated.items() if v is not None})
    built = architecture_of(args, model.name)
    difference = _difference(
        comparable(built, sequence_length), comparable(model, sequence_length)
    )
    difference = difference or _other_details(built, model)
    if isinstance(args, Qwen3ModelArgs) and len(with_experts) > 1:
        difference = "layers", "experts in all or in none", "both kinds"
    if difference is not None:
        field, theirs, ours = difference
        raise InvalidPlanError(
            f"model: {field}: expected {theirs}, as models of torchtitan's "
            f"{_package_of(args)} have it, got {ours} in {model.name}; choose another "
            f"target, or name a flavor with nest export --flavor"
        )
    return args


def _ends(model: Architecture) -> dict[str, Any]:
    """Return the arguments that all models have."""
    tower = model.towers[0]
    return {
        "dim": tower.hidden,
        "n_layers": tower.layers,
        "n_heads": tower.last.attention.heads,
        "vocab_size": max(tower.vocabulary, 1),
    }


def _llama(model: Architecture, rotary: Rotary) -> TransformerModelArgs:
    """Return the arguments of a dense model.

    Two thirds of ``4 h`` columns, times a factor, are rounded up to a multiple: any
    number of columns is the multiple itself.
    """
    block = model.towers[0].last
    columns, usual = block.mlp.hidden, int(8 * block.hidden / 3)
    scaling = RoPEScalingArgs(scaling_factor=1.0)
    if rotary.scaling == "llama3":
        scaling = RoPEScalingArgs(
            scaling_factor=rotary.factor,
            low_freq_factor=rotary.low_frequency,
            high_freq_factor=rotary.high_frequency,
            original_max_position_embeddings=max(rotary.original_length, 1),
        )
    return TransformerModelArgs(
        **_ends(model),
        n_kv_heads=block.attention.kv_heads,
        multiple_of=columns,
        ffn_dim_multiplier=columns / usual if columns < usual else None,
        rope_scaling_args=scaling,
    )


def _qwen(model: Architecture) -> Qwen3ModelArgs:
    """Return the arguments of a model with heads of any width."""
    block = model.towers[0].last
    attention = block.attention
    args = Qwen3ModelArgs(
        **_ends(model),
        n_kv_heads=attention.kv_heads,
        head_dim=attention.head_size,
        qk_norm=attention.query_key_norm,
        enable_weight_tying=model.head.tied,
    )
    if not block.mlp.experts:
        return replace(args, hidden_dim=block.mlp.hidden)
    return replace(
        args, moe_enabled=True, moe_inter_dim=block.mlp.hidden, moe_args=_experts(model)
    )


def _latent(model: Architecture, rotary: Rotary) -> DeepSeekV3ModelArgs:
    """Return the arguments of a model with latent attention."""
    blocks = list(model.towers[0].blocks())
    attention = blocks[-1].attention
    dense = [block.mlp for block in blocks if not block.mlp.experts]
    args = DeepSeekV3ModelArgs(
        **_ends(model),
        n_dense_layers=len(dense),
        q_lora_rank=attention.query_rank,
        kv_lora_rank=attention.key_value_rank,
        qk_nope_head_dim=attention.head_size - attention.rotary_size,
        qk_rope_head_dim=attention.rotary_size,
        v_head_dim=attention.value_size or attention.head_size,
        rope_factor=1.0,
    )
    if dense:
        args = replace(args, inter_dim=dense[0].hidden)
    if len(dense) < len(blocks):
        hidden = blocks[-1].mlp.hidden
        args = replace(args, moe_inter_dim=hidden, moe_args=_experts(model))
    if rotary.scaling == "yarn":
        args = replace(
            args,
            original_seq_len=max(rotary.original_length, 1),
            rope_factor=rotary.factor,
            beta_fast=rotary.beta_fast,
            beta_slow=rotary.beta_slow,
            mscale=rotary.mscale_all,
        )
    return args


def _experts(model: Architecture) -> MoEArgs:
    """Return the arguments of the experts of the last block."""
    mlp = model.towers[0].last.mlp
    router = (model.details or Details()).router or Router()
    limited = mlp.groups > mlp.token_groups
    return MoEArgs(
        num_experts=mlp.experts,
        num_shared_experts=mlp.shared_hidden // mlp.hidden,
        score_func="sigmoid" if router.scores == "sigmoid" else "softmax",
        route_norm=router.normalized,
        route_scale=router.scale,
        score_before_experts=False,
        top_k=mlp.experts_per_token,
        num_expert_groups=mlp.groups if limited else None,
        num_limited_groups=mlp.token_groups if limited else None,
        load_balance_coeff=1e-3 if router.expert_bias else None,
    )


def architecture_of(args: ModelArgs, name: str) -> Architecture:
    """Return the model that torchtitan builds of its arguments."""
    layers, heads = args.n_layers, args.n_heads
    experts, sparse, first, tied = MoEArgs(), Mlp(hidden=0), layers, False
    if isinstance(args, DeepSeekV3ModelArgs):
        attention = Attention(
            heads=heads,
            kv_heads=heads,
            head_size=args.qk_nope_head_dim + args.qk_rope_head_dim,
            value_size=args.v_head_dim,
            rotary=True,
            query_rank=args.q_lora_rank,
            key_value_rank=args.kv_lora_rank,
            rotary_size=args.qk_rope_head_dim,
        )
        columns, first, experts = args.inter_dim, args.n_dense_layers, args.moe_args
        sparse = _read_experts(experts, args.moe_inter_dim)
    elif isinstance(args, Qwen3ModelArgs):
        attention = Attention(
            heads=heads,
            kv_heads=args.n_kv_heads,
            head_size=args.head_dim,
            rotary=True,
            query_key_norm=args.qk_norm,
        )
        columns, tied, experts = (
            args.hidden_dim,
            args.enable_weight_tying,
            args.moe_args,
        )
        if args.moe_enabled:
            first, sparse = 0, _read_experts(experts, args.moe_inter_dim)
    else:
        attention = Attention(
            heads=heads,
            kv_heads=args.n_kv_heads or heads,
            head_size=args.dim // heads,
            rotary=True,
        )
        columns = args.columns
    dense = Mlp(hidden=columns, gated=True)
    blocks = (
        Block(
            name="decoder" if index < first else "experts",
            hidden=args.dim,
            attention=attention,
            mlp=dense if index < first else sparse,
        )
        for index in range(layers)
    )
    return Architecture(
        name=name,
        towers=(Tower(runs=runs_of(blocks), vocabulary=args.vocab_size),),
        head=Head(outputs=args.vocab_size, tied=tied),
        max_sequence=args.max_seq_len,
        details=Details(
            rotary=_rotary(args),
            router=_router(args, experts) if first < layers else None,
            norm_epsilon=args.norm_eps,
            activation=_ACTIVATIONS[0],
        ),
    )


def _read_experts(experts: MoEArgs, hidden: int) -> Mlp:
    return Mlp(
        hidden=hidden,
        gated=True,
        experts=experts.num_experts,
        experts_per_token=experts.top_k,
        groups=experts.num_expert_groups or 1,
        token_groups=experts.num_limited_groups or 1,
        shared_hidden=hidden * experts.num_shared_experts,
    )


def _router(args: ModelArgs, experts: MoEArgs) -> Router:
    """Return the router that arguments describe.

    Nothing updates the bias of experts of Qwen3 (``get_train_spec`` of its package).
    """
    biased = experts.load_balance_coeff is not None
    return Router(
        scores=experts.score_func,
        normalized=experts.route_norm,
        scale=experts.route_scale,
        expert_bias=biased and isinstance(args, DeepSeekV3ModelArgs),
    )


def _rotary(args: ModelArgs) -> Rotary:
    base = args.rope_theta
    if isinstance(args, TransformerModelArgs):
        scaling = args.rope_scaling_args
        if scaling.scaling_factor != 1:
            return Rotary(
                base=base,
                scaling="llama3",
                factor=scaling.scaling_factor,
                low_frequency=scaling.low_freq_factor,
                high_frequency=scaling.high_freq_factor,
                original_length=scaling.original_max_position_embeddings,
            )
    if isinstance(args, DeepSeekV3ModelArgs) and args.rope_factor != 1:
        return Rotary(
            base=base,
            scaling="yarn",
            factor=args.rope_factor,
            original_length=args.original_seq_len,
            beta_fast=args.beta_fast,
            beta_slow=args.beta_slow,
            mscale=args.mscale,
            mscale_all=args.mscale,
        )
    return Rotary(base=base)


#: Fields that messages do not name, as they name what is in them.
_OUTER = ("towers", "runs", "block")


def _difference(built: Any, model: Any, path: str = "") -> tuple[str, Any, Any] | None:
    """Return the first field in which records differ, with both of its values."""
    if type(built) is type(model) and isinstance(built, Struct):
        # Names of parts are for people.
        names = [name for name in asdict(built) if name != "name"]
        pairs = [(name, getattr(built, name), getattr(model, name)) for name in names]
    elif isinstance(built, tuple) and isinstance(model, tuple):
        pairs = [("", *values) for values in zip(built, model, strict=False)]
        pairs.append((f"number of {path}", len(built), len(model)))
    else:
        # No text of a message is empty.
        shown = "none" if built == "" else built
        return None if built == model else (path, shown, model)
    for name, theirs, ours in pairs:
        inside = name if path in _OUTER else f"{path}.{name}".strip(".")
        difference = _difference(theirs, ours, inside)
        if difference is not None:
            return difference
    return None


def _other_details(
    built: Architecture, model: Architecture
) -> tuple[str, Any, Any] | None:
    """Return the first difference beyond shapes, of what is known of a model."""
    details, theirs = model.details, built.details
    if details is None or theirs is None:
        return None
    for name in details.others:
        return name, "a plain transformer", "another value"
    if details.activation not in (None, *_ACTIVATIONS):
        return "activation", " or ".join(_ACTIVATIONS), details.activation
    for name, value in (
        ("norm_epsilon", details.norm_epsilon),
        ("rotary", details.effective.rotary),
        ("router", details.router),
    ):
        other = getattr(theirs, name)
        difference = None
        if value is not None and other is not None:
            difference = _difference(other, value, name)
        if difference is not None:
            return difference
    return None


def read_module(text: str, where: str, flavor: str) -> Architecture:
    """Return the model that a module registers as a flavor.

    Only modules as :func:`module_text` writes them are read.

    Raises ``InvalidPlanError`` if it is no such module; the text names the file.
    """
    try:
        tree = ast.parse(text[:_MAX_CHARACTERS])
    # Also of null bytes, and of expressions inside expressions without end.
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        what = getattr(error, "msg", "") or type(error).__name__
        raise InvalidPlanError(
            f"{where}: expected Python, got a syntax error ({what}); correct it"
        ) from None
    calls = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
    ]
    kinds = {kind.__name__: kind for kind in _PACKAGES.values()}
    for call in calls:
        kind = kinds.get(getattr(call.func, "id", ""))
        if kind is not None and f'{{"{flavor}": args}}' in text:
            with_values = _keywords(call, where)
            try:
                args = msgspec.convert(with_values, type=kind)
            except msgspec.ValidationError as error:
                raise InvalidPlanError(
                    f"{where}:{call.lineno}: {kind.__name__}: {error}; correct it"
                ) from None
            if args.n_layers > MOST_LAYERS:
                raise InvalidPlanError(
                    f"{where}:{call.lineno}: n_layers: expected at most "
                    f"{MOST_LAYERS}, got {args.n_layers}; correct it"
                )
            return architecture_of(args, flavor)
    raise InvalidPlanError(
        f"{where}: expected a module as nest export writes it, with a flavor "
        f"{flavor!r}, got another one; name the model with --model"
    )


def _keywords(call: ast.Call, where: str) -> dict[str, Any]:
    """Return the keywords of a call: constants, and those of calls inside it."""
    values: dict[str, Any] = {}
    for keyword in call.keywords:
        value = keyword.value
        if isinstance(value, ast.Call):
            values[str(keyword.arg)] = _keywords(value, where)
        elif isinstance(value, ast.Constant):
            values[str(keyword.arg)] = value.value
        else:
            raise InvalidPlanError(
                f"{where}:{value.lineno}: {keyword.arg}: expected a constant, got an "
                f"expression; write its value, or name the model with --model"
            )
    return values
