"""Read what a configuration of Hugging Face computes beyond shapes."""

from __future__ import annotations

import math
from typing import Any

from nest.models.blocks import Tower
from nest.models.details import Details, Rotary, Router
from nest.models.hf.config import Config, shown
from nest.models.hf.family import Experts, Family

#: Names of one figure, the first that has a value counts.
_EPSILON = (
    *("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "layernorm_epsilon"),
    *("norm_epsilon", "norm_eps"),
)
_ACTIVATION = (
    *("hidden_act", "hidden_activation", "activation_function", "mlp_hidden_act"),
    "activation",
)
_BASE = ("rope_theta", "rotary_emb_base")
_FRACTION = ("partial_rotary_factor", "rotary_pct")
_SCALE = ("routed_scaling_factor", "router_scaling_factor", "route_scale")

#: Scalings that take the longest sequence of a model for that before, by default.
_FROM_LENGTH = ("llama3", "longrope", "yarn")

#: Values of fields with which a model is a plain transformer, beside none at all.
_PLAIN: dict[str, Any] = {
    "apply_residual_connection_post_layernorm": False,
    "attn_logit_softcapping": 0,
    "clip_qkv": 0,
    "do_layer_norm_before": True,
    "embedding_multiplier": 1,
    "final_logit_softcapping": 0,
    "log_scaling_n_floor": 0,
    "logit_scale": 1,
    "logits_scaling": 1,
    "parallel_attn": False,
    "residual_multiplier": 1,
    "scale_attn_by_inverse_layer_idx": False,
    "scale_depth": 0,
    "scale_emb": 1,
    "scale_embedding": False,
    "swiglu_limit": 0,
    "use_bidirectional_attention": False,
    "use_parallel_residual": False,
}


def details_of(config: Config, tower: Tower, family: Family | None) -> Details:
    """Return what a configuration states of a model beyond its shape.

    ``family`` is its record, if it has one. Raises ``InvalidProblemError`` if a field
    is of another type.
    """
    block = tower.last
    heads = [run.block.attention for run in tower.runs if run.block.attention.heads]
    rotates = any(attention.rotary for attention in heads)
    fields = config.fields
    others = [
        name
        for name, plain in _PLAIN.items()
        if fields.get(name) is not None and fields[name] != plain
    ]
    if heads:
        size = heads[0].head_size
        others += [
            name
            for name, plain in (
                ("attention_multiplier", size**-0.5),
                ("query_pre_attn_scalar", size),
            )
            if config.has(name) and abs(_positive(config, name) / plain - 1) > 1e-6
        ]
    family = family or Family()
    others += family.unlike
    experts = any(run.block.mlp.experts for run in tower.runs)
    epsilon = next((name for name in _EPSILON if config.has(name)), None)
    name = next((name for name in _ACTIVATION if config.has(name)), None)
    activation = None
    if name is not None and block.mlp.hidden:
        activation = config.typed(name, fields[name], str, "a word")
    return Details(
        rotary=_rotary(config, interleaved=family.interleaved) if rotates else None,
        router=_router(config, family.experts or Experts()) if experts else None,
        norm_epsilon=None if epsilon is None else _positive(config, epsilon),
        activation=activation,
        others=tuple(sorted(others)),
    )


def _positive(config: Config, name: str) -> float:
    """Read a finite number above 0."""
    value = config.fields[name]
    if type(value) not in (int, float) or not 0 < value < 1e18:
        raise config.refuse(name, "a number above 0", shown(value))
    return float(value)


def _first_positive(config: Config, names: tuple[str, ...], default: float) -> float:
    """Read the first of several fields that has a value."""
    name = next((name for name in names if config.has(name)), None)
    return default if name is None else _positive(config, name)


def _rotary(config: Config, *, interleaved: bool) -> Rotary:
    """Read rotary positions by the names of transformers 4 and 5."""
    stated = Config({}, config.where)
    for name in ("rope_parameters", "rope_scaling"):
        if config.has(name):
            stated = config.nested(name)
            break
    for kind in ("full_attention", "sliding_attention", "main"):
        # Each type of layers has its own.
        if isinstance(stated.fields.get(kind), dict):
            stated = stated.nested(kind)
            break
    both = config.updated(
        **{
            key: value
            for key, value in stated.fields.items()
            if key in (*_BASE, *_FRACTION)
        }
    )
    fields = stated.fields
    scaling = fields.get("rope_type") or fields.get("type") or ""
    scaling = stated.typed("rope_type", scaling, str, "a word")
    base = _first_positive(both, _BASE, 10_000.0)
    fraction = _first_positive(both, _FRACTION, 1.0)
    if scaling in ("", "default"):
        return Rotary(base=base, fraction=fraction, interleaved=interleaved)

    def scaling_field(name: str, default: float) -> float:
        return _first_positive(stated, (name,), default)

    original = "original_max_position_embeddings"
    default_length = 0
    if scaling in _FROM_LENGTH:
        default_length = config.integer("max_position_embeddings", default=0, minimum=0)
    length = config.integer(original, default=default_length, minimum=0)
    # A product of zero turns this factor off.
    whole_scale = 0.0
    if fields.get("mscale_all_dim"):
        whole_scale = _positive(stated, "mscale_all_dim")
    factor, scale = scaling_field("factor", 1.0), scaling_field("mscale", 1.0)
    if scaling == "yarn" and stated.has("attention_factor") and factor > 1:
        # This factor is 1 + 0.1 mscale ln(factor), and is stated itself.
        stated_factor = _positive(stated, "attention_factor")
        scale, whole_scale = (stated_factor - 1) / (0.1 * math.log(factor)), 0.0
    return Rotary(
        base=base,
        fraction=fraction,
        interleaved=interleaved,
        scaling=scaling,
        factor=factor,
        original_length=stated.integer(original, default=length, minimum=0),
        low_frequency=scaling_field("low_freq_factor", 1.0),
        high_frequency=scaling_field("high_freq_factor", 4.0),
        beta_fast=scaling_field("beta_fast", 32.0),
        beta_slow=scaling_field("beta_slow", 1.0),
        mscale=scale,
        mscale_all=whole_scale,
        rounded=stated.flag("truncate", True),
    )


def _router(config: Config, experts: Experts) -> Router:
    scores = config.fields.get("scoring_func") or config.fields.get("score_function")
    name = str(scores or experts.scores)
    return Router(
        scores=name,
        normalized=config.flag("norm_topk_prob", experts.normalized),
        scale=_first_positive(config, _SCALE, 1.0),
        expert_bias=name == "sigmoid",
    )
