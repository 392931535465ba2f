"""Decoders of Hugging Face: records of families, and what reads them.

The records are ``nest/models/data/families.json``: what the fields of a
family are called, what they default to, and what its blocks are like.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import compress
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from nest.ir.base import Struct
from nest.models.blocks import (
    NO_ATTENTION,
    Attention,
    Block,
    Head,
    Mixer,
    Mlp,
    RepeatedBlock,
    Tower,
    runs_of,
)
from nest.models.hf.config import Config, Parts, Switch, shown
from nest.models.hf.layouts import LAYER_TYPES, LAYOUTS, SPARSE_LAYERS, every_nth
from nest.models.hf.mixers import MIXERS
from nest.util.stored import read_stored

#: Weights of a norm per channel, where a block does not know them.
_VECTORS: dict[str, Literal[0, 1, 2]] = {"unbiased": 1, "bare": 0}


class Experts(Struct, frozen=True, kw_only=True):
    """What the fields of routed experts are called."""

    #: Names of fields: number of experts, how many a token visits, width of one.
    count: tuple[str, ...] = ("num_experts", "num_local_experts")
    visits: tuple[str, ...] = ("num_experts_per_tok",)
    width: tuple[str, ...] = ("moe_intermediate_size",)
    #: Names of the number of shared experts, of the width of one (empty: as wide as
    #: others), or of their width together; empty without.
    shared: tuple[str, ...] = ()
    shared_each: tuple[str, ...] = ()
    shared_width: tuple[str, ...] = ()
    #: Of either; ``None``: it must be stated.
    shared_default: int = 0
    visits_default: int | None = None
    #: Rule that says which layers have experts, see
    #: :data:`~nest.models.hf.layouts.SPARSE_LAYERS`; ``None``: all.
    sparse_layers: str | None = None
    #: Whether the linear layers of all, or of the shared ones, have biases.
    biases: Switch = False
    shared_biases: Switch = False
    #: What turns the router's output into weights, where a file does not say it.
    scores: Literal["softmax", "sigmoid"] = "softmax"
    #: Whether the weights of the chosen experts sum to one, where it does not say it.
    normalized: bool = True
    #: As in :class:`nest.models.blocks.Mlp`.
    router_bias: bool = False
    shared_gate: bool = False
    gated: bool = True


class Family(Struct, frozen=True, kw_only=True):
    """A family of decoders: what its fields are called and default to."""

    #: Names of fields, ``mlp`` of the MLP's width; none if there is no such field.
    layers: tuple[str, ...] = ("num_hidden_layers",)
    hidden: tuple[str, ...] = ("hidden_size",)
    heads: tuple[str, ...] = ("num_attention_heads",)
    kv_heads: tuple[str, ...] = ("num_key_value_heads",)
    length: tuple[str, ...] = ("max_position_embeddings",)
    mlp: tuple[str, ...] = ("intermediate_size",)
    #: Defaults of the sequence length and the key and value heads (``None``: as many as
    #: heads), and of the width of a head (``None``: ``hidden / heads``).
    longest: int = 2048
    kv_default: int | None = None
    head_size: int | None = None
    #: Default width of the MLP in widths of the stream; ``0``: it must be stated.
    mlp_factor: int = 0
    #: Whether the width of a head may be stated.
    head_dim: bool = True
    #: Whether ``hidden / heads`` is rounded down, or must be whole.
    floors: bool = False
    #: Whether the MLP has a gate.
    gated: bool = True
    #: RMSNorm, LayerNorm, one without bias, or without weights; how many a block has.
    norm: Literal["rms", "layer", "unbiased", "bare"] = "rms"
    norms: int = 2
    #: Whether the output of the last block is normalized.
    final_norm: bool = True
    #: Which linear layers have biases; ``output_bias`` ``None``: as ``biases``.
    biases: Switch = False
    output_bias: Switch | None = None
    mlp_biases: Switch = False
    head_bias: Switch = False
    #: Whether attention is multi-head latent attention.
    latent: bool = False
    #: As in :class:`nest.models.blocks.Attention`.
    query_key_norm: Switch = False
    norm_over: Literal["head", "heads", "nothing"] = "head"
    norm_vectors: int = 1
    #: Whether attention has a gate as wide as its output, one that is part of the
    #: queries' projection, with their biases, or a separate one without; or a separate
    #: one of a value per head.
    gate: Literal["", "of queries", "separate", "per head"] = ""
    #: Further learned numbers of attention, per head and per channel of a head, of
    #: latent attention of its rotated part.
    head_numbers: int = 0
    channel_numbers: int = 0
    #: As in :mod:`nest.models.blocks`.
    sinks: bool = False
    rotary: bool = True
    output_norm: bool = False
    inner_norm: bool = False
    activation_weights: int = 0
    #: Default of the window, ``None`` if the family has none.
    window: int | None = None
    #: Rule that says what a layer is where ``layer_types`` is not stated, see
    #: :data:`~nest.models.hf.layouts.LAYOUTS`.
    layout: str | None = None
    #: Without such a rule: every how manyeth layer is of the first of two kinds (``0``
    #: for none), names of a field with that number, and the kinds.
    pattern: int = 0
    pattern_names: tuple[str, ...] = ()
    pattern_kinds: tuple[str, str] = ("global", "local")
    #: What layers have that ``layer_types`` calls linear, and such, see
    #: :data:`~nest.models.hf.mixers.MIXERS`.
    mixer: str | None = None
    #: ``None`` if the MLP is dense.
    experts: Experts | None = None
    #: Rows of learned positions beyond the longest sequence; ``None`` without a table.
    more_positions: int | None = None
    #: As in :mod:`nest.models.blocks`.
    embedding_norm: bool = False
    #: Name and default of the dropout rate.
    dropout: tuple[str, float] | None = None
    #: What configurations leave out, by the names of their fields.
    sizes: dict[str, Any] = {}
    #: Flags that must be as the record says; other models are refused.
    only: dict[str, bool] = {}
    #: Fields with a value per layer, and which field it is there; fields may have the
    #: same value in all of them.
    per_layer: dict[str, str] = {}
    #: Default of whether the output layer is the token table; ``None``: it never is.
    tied: bool | None = False
    #: As in :class:`nest.models.details.Rotary`.
    interleaved: bool = False
    #: What it computes otherwise than plain transformers, which no field says.
    unlike: tuple[str, ...] = ()


class Whole(Struct, frozen=True, kw_only=True):
    """What a model that sees or hears too says about its text model."""

    #: Who says whether embeddings are tied: the whole model, and by default they are
    #: ``tied`` or ``apart``; the configuration ``inside``; ``never``: they are not.
    ties: Literal["tied", "apart", "inside", "never"]
    #: Family of the text model, whose fields old configurations do not put into an
    #: object of their own.
    text: str | None = None


class _Records(Struct, frozen=True, kw_only=True):
    """The stored records; ``based_on`` names one whose facts hold too."""

    schema: Literal["nest-families/1"]
    experts: dict[str, dict[str, Any]]
    bases: dict[str, dict[str, Any]]
    families: dict[str, dict[str, Any]]
    wholes: dict[Literal["tied", "apart", "inside", "never"], tuple[str, ...]]
    flat: dict[str, str]


def _facts(
    records: dict[str, dict[str, Any]], record: dict[str, Any]
) -> dict[str, Any]:
    """Return a record with the facts of those that it is based on."""
    base = record.get("based_on")
    inherited = {} if base is None else _facts(records, records[base])
    stated = {k: v for k, v in record.items() if k != "based_on"}
    return inherited | stated


_STORED = read_stored("nest.models", "families", _Records)

#: Models of which the text model is read, by ``model_type``.
WHOLES = {
    name: Whole(ties=ties, text=_STORED.flat.get(name))
    for ties, names in _STORED.wholes.items()
    for name in names
}


def _families() -> dict[str, Family]:
    stored = _STORED
    records = stored.bases | stored.families
    families = {}
    for name in stored.families:
        facts = _facts(records, records[name])
        if facts.get("experts"):
            facts["experts"] = _facts(stored.experts, facts["experts"])
        families[name] = msgspec.convert(facts, Family)
    return families


#: Families by ``model_type``; some need a reader of their own besides.
FAMILIES = _families()

#: Returns a block as it is in a layer of that index and kind.
EditBlock = Callable[[Block, int, str], Block]


def decoder(config: Config, family: Family, edit: EditBlock | None = None) -> Parts:
    """Read a decoder whose layers are of a few kinds.

    ``edit`` changes the block of each layer that the record of the family gives.
    """
    config = config.updated(
        **{k: v for k, v in family.sizes.items() if not config.has(k)}
    )
    for name, value in family.only.items():
        config.must_be(name, value)
    layers = config.integer(*family.layers)
    experts = family.experts
    sparse = [experts is not None] * layers
    if experts is not None and experts.sparse_layers is not None:
        sparse = SPARSE_LAYERS[experts.sparse_layers](config, layers)
    kinds = layer_kinds(config, family, layers)
    others = per_layer(config, family, layers)
    keys = list(zip(kinds, sparse, others, strict=True))
    made = {
        key: _block(config.updated(**dict(key[2])), family, *key[:2])
        for key in dict.fromkeys(keys)
    }
    blocks = [made[key] for key in keys]
    if edit is not None:
        blocks = [
            edit(block, index, kind)
            for index, (block, kind) in enumerate(zip(blocks, kinds, strict=True))
        ]
    return one_tower(config, family, blocks)


#: Fields of one layer that are not those of the whole configuration.
Fields = tuple[tuple[str, Any], ...]


def per_layer(config: Config, family: Family, layers: int) -> list[Fields]:
    """Return the fields that a layer has instead of those of the configuration.

    They are in an object per layer, by its index, or in a list per field.
    """
    fields: list[dict[str, Any]] = [{} for _ in range(layers)]
    if config.has("per_layer_config"):
        inside = config.nested("per_layer_config")
        for key in inside.fields:
            if not key.isdecimal() or int(key) >= layers:
                expected = f"indices of the {layers} layers"
                raise config.refuse("per_layer_config", expected, shown(key))
            fields[int(key)].update(inside.nested(key).fields)
    for name, there in family.per_layer.items():
        values = config.fields.get(name)
        if name == there and not isinstance(values, list):
            continue
        listed = config.listed(name, int, "integers") or []
        if listed:
            config.check_length(name, listed, layers)
        for field, value in zip(fields, listed, strict=False):
            field[there] = value
    for field in fields:
        for value in field.values():
            if not isinstance(value, int | str | None):
                expected = "numbers and words"
                raise config.refuse("per_layer_config", expected, shown(value))
    return [tuple(sorted(field.items())) for field in fields]


def layer_kinds(config: Config, family: Family, layers: int) -> list[str]:
    """Return what layers are: ``global``, ``local``, ``mixer``, ``hybrid``."""
    stated = config.per_layer("layer_types", layers, LAYER_TYPES)
    if family.window is None and family.mixer is None and family.layout is None:
        return ["global"] * layers
    if stated is not None:
        return stated
    if family.layout is not None:
        return LAYOUTS[family.layout](config, layers)
    pattern = family.pattern
    if family.pattern_names:
        pattern = config.integer(*family.pattern_names, default=pattern)
    if not pattern:
        return ["local"] * layers
    return every_nth(layers, pattern, *family.pattern_kinds)


def _block(config: Config, family: Family, kind: str, sparse: bool) -> Block:
    window = 0
    if kind == "local":
        window = family.window or 0
        if "sliding_window" in config.fields:
            window = config.integer("sliding_window", default=0, minimum=0)
    mixer = None
    if kind in ("mixer", "hybrid") and family.mixer is not None:
        mixer = MIXERS[family.mixer](config)
    attention = NO_ATTENTION
    if kind != "mixer" and family.latent:
        attention = latent_attention(config, family, window)
    elif kind != "mixer":
        attention = ordinary_attention(config, family, window)
    if sparse and family.experts is not None:
        mlp = routed_mlp(config, family.experts)
    else:
        mlp = dense_mlp(config, family)
    return bare_block(config, family, attention, mlp, mixer)


def bare_block(
    config: Config,
    family: Family,
    attention: Attention,
    mlp: Mlp,
    mixer: Mixer | None = None,
) -> Block:
    """Return a block of those parts, whose name is still to be given."""
    dropout = family.dropout
    return Block(
        name="decoder",
        hidden=config.integer(*family.hidden),
        attention=attention,
        mixer=mixer,
        mlp=mlp,
        norms=family.norms,
        layer_norm=family.norm != "rms",
        norm_vectors=_VECTORS.get(family.norm),
        dropout=dropout is not None and config.drops(*dropout),
    )


def ordinary_attention(config: Config, family: Family, window: int = 0) -> Attention:
    """Return the attention of a family, with all its heads alike."""
    heads = config.integer(*family.heads)
    head_size = family.head_size
    if family.head_dim and config.has("head_dim"):
        head_size = config.integer("head_dim")
    elif head_size is None and family.floors:
        head_size = max(config.integer(*family.hidden) // heads, 1)
    elif head_size is None:
        head_size = config.head_size(family.hidden, family.heads)
    kv_heads = family.kv_default or heads
    if family.kv_heads:
        kv_heads = config.kv_heads(heads, kv_heads, *family.kv_heads)
    biases = config.switch(family.biases)
    output = family.output_bias
    normed = config.switch(family.query_key_norm)
    return Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        window=window,
        rotary=family.rotary,
        biases=biases,
        output_bias=biases if output is None else config.switch(output),
        query_key_norm=normed,
        norm_over=family.norm_over if normed else "head",
        norm_vectors=family.norm_vectors if normed else 1,
        gate=_gate(family, heads, head_size),
        gate_bias=biases and family.gate == "of queries",
        sinks=family.sinks,
        output_norm=family.output_norm,
        common=family.head_numbers * heads + family.channel_numbers * head_size,
    )


def _gate(family: Family, heads: int, value_size: int) -> int:
    """Return the columns of the projection that makes the gate of attention."""
    if not family.gate:
        return 0
    return heads if family.gate == "per head" else heads * value_size


def equal_heads(
    heads: int, head_size: int, *, biases: bool = True, **fields: Any
) -> Attention:
    """Return attention with as many heads of keys and values as of queries."""
    return Attention(
        heads=heads,
        kv_heads=heads,
        head_size=head_size,
        biases=biases,
        output_bias=biases,
        **fields,
    )


def repeated(block: Block, count: int) -> tuple[RepeatedBlock, ...]:
    """Return the runs of a tower of equal blocks."""
    return (RepeatedBlock(block=block, count=count),)


def latent_attention(config: Config, family: Family, window: int = 0) -> Attention:
    """Return multi-head latent attention, with an indexer if it has one.

    Layers with a window have none.
    """
    heads = config.integer("num_attention_heads")
    rotary_size = config.integer("qk_rope_head_dim")
    value_size = config.integer("v_head_dim")
    biases = config.flag("attention_bias", False)
    attention = Attention(
        heads=heads,
        kv_heads=heads,
        head_size=config.integer("qk_nope_head_dim") + rotary_size,
        value_size=value_size,
        rotary=True,
        biases=biases,
        output_bias=biases,
        query_rank=config.integer("q_lora_rank", default=0),
        key_value_rank=config.integer("kv_lora_rank"),
        rotary_size=rotary_size,
        gate=_gate(family, heads, value_size),
        sinks=family.sinks,
        common=family.head_numbers * heads + family.channel_numbers * rotary_size,
        window=window,
    )
    if window or not config.has("index_n_heads"):
        return attention
    return replace(
        attention,
        window=config.integer("index_topk"),
        index_heads=config.integer("index_n_heads"),
        index_size=config.integer("index_head_dim"),
    )


def dense_mlp(config: Config, family: Family) -> Mlp:
    """Return the dense MLP of a family."""
    width = family.mlp_factor * config.integer(*family.hidden)
    if family.mlp:
        width = config.integer(*family.mlp, default=width or None)
    return Mlp(
        hidden=width,
        gated=family.gated,
        biases=config.switch(family.mlp_biases),
        inner_norm=family.inner_norm,
        activation_weights=family.activation_weights,
    )


#: Names of the number of groups that routed experts are in.
_GROUPS = ("n_group", "num_expert_group")


def routed_mlp(config: Config, names: Experts) -> Mlp:
    """Return routed experts; a token visits at most all of them."""
    experts = config.integer(*names.count)
    visits = config.integer(*names.visits, default=names.visits_default)
    remedy = "correct one of them"
    all_experts = f"the {experts} experts"
    if visits > experts:
        raise config.refuse(names.visits[0], f"at most {all_experts}", visits, remedy)
    groups = config.integer(*_GROUPS, default=1)
    config.divisor(_GROUPS[0], groups, all_experts, experts)
    chosen = config.integer("topk_group", default=groups)
    if chosen > groups or experts // groups * chosen < visits:
        expected = f"at most the {groups} groups, with {visits} experts or more"
        raise config.refuse("topk_group", expected, chosen, remedy)
    width = config.integer(*names.width)
    shared = 0
    if names.shared or names.shared_width:
        fields = names.shared or names.shared_width
        shared = config.integer(*fields, default=names.shared_default, minimum=0)
    if names.shared:
        each = names.shared_each
        shared *= config.integer(*each, default=width) if each else width
    return Mlp(
        hidden=width,
        gated=names.gated,
        biases=config.switch(names.biases),
        experts=experts,
        experts_per_token=visits,
        groups=groups,
        token_groups=chosen,
        shared_hidden=shared,
        shared_biases=config.switch(names.shared_biases) and shared > 0,
        router_bias=names.router_bias,
        shared_gate=names.shared_gate and shared > 0,
    )


def named(blocks: Sequence[Block]) -> list[Block]:
    """Give every kind of block a name of its own.

    ``decoder`` if all are alike; else what tells them apart: the kind of attention, or
    of what is in its place, and of the MLP; a number where that is not enough.
    """
    kinds = list(dict.fromkeys(blocks))
    if len(kinds) == 1:
        return list(blocks)
    labels = [(_attention_label(block), _mlp_label(block)) for block in kinds]
    differ = [len(set(column)) > 1 for column in zip(*labels, strict=True)]
    final: dict[Block, Block] = {}
    counts: Counter[str] = Counter()
    for block, pair in zip(kinds, labels, strict=True):
        name = "-".join(compress(pair, differ)).strip("-") or "decoder"
        counts[name] += 1
        suffix = f"-{counts[name]}" if counts[name] > 1 else ""
        final[block] = replace(block, name=name + suffix)
    return [final[block] for block in blocks]


def _attention_label(block: Block) -> str:
    attention = block.attention
    if block.mixer is not None:
        kind = block.mixer.kind
        return f"{kind}-attention" if attention.heads else kind
    if not attention.heads:
        return ""
    return "local" if attention.window else "global"


def _mlp_label(block: Block) -> str:
    if not block.mlp.hidden:
        return ""
    return "sparse" if block.mlp.experts else "dense"


def compressed(blocks: Sequence[Block]) -> tuple[tuple[RepeatedBlock, ...], int]:
    """Return blocks as runs of equal ones, and how often these repeat."""
    count = len(blocks)
    period = next(
        step
        for step in range(1, count + 1)
        if count % step == 0
        and all(blocks[i] == blocks[i % step] for i in range(step, count))
    )
    if period == 1:
        return repeated(blocks[0], count), 1
    return runs_of(blocks[:period]), count // period


def one_tower(config: Config, family: Family, blocks: Sequence[Block]) -> Parts:
    """Return a model of those blocks, first to last."""
    vocabulary = config.integer("vocab_size")
    length = config.integer(*family.length, default=family.longest)
    more = family.more_positions
    runs, repeat = compressed(named(blocks))
    tower = Tower(
        runs=runs,
        repeat=repeat,
        vocabulary=vocabulary,
        learned_positions=0 if more is None else length + more,
        embedding_norm=family.embedding_norm,
        final_norm=family.final_norm,
    )
    tied = False
    if family.tied is not None:
        tied = config.flag("tie_word_embeddings", family.tied)
    head = Head(outputs=vocabulary, tied=tied, bias=config.switch(family.head_bias))
    return Parts((tower,), head, length)


#: Names of the number of modules for multi-token prediction.
MODULES = ("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers")


def with_predictions(config: Config, model: Parts) -> Parts:
    """Return a decoder with its modules for multi-token prediction.

    See :class:`~nest.models.blocks.Module`. Raises ``InvalidProblemError`` if the
    configuration has no such modules.
    """
    modules = config.integer(*MODULES, default=0, minimum=0)
    if not modules:
        expected = "modules for multi-token prediction"
        remedy = "import the model without them"
        raise config.refuse(MODULES[0], expected, "none", remedy)
    return model.with_tower(modules=modules).with_head(predictions=1 + modules)
