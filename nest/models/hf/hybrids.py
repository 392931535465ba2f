"""Hybrids of Hugging Face that are more than a record of a family."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from nest.models.blocks import NO_ATTENTION, NO_MLP, Attention, Block, Mlp
from nest.models.hf.config import LARGEST, Config, Parts, shown
from nest.models.hf.family import (
    FAMILIES,
    bare_block,
    decoder,
    dense_mlp,
    one_tower,
    ordinary_attention,
    routed_mlp,
)
from nest.models.hf.mixers import MIXERS, adapter


def granite_hybrid(config: Config) -> Parts:
    """Read Granite 4: Mamba-2 and attention, experts or not."""
    rotary = config.fields.get("position_embedding_type") == "rope"
    family = replace(FAMILIES["granitemoehybrid"], rotary=rotary)
    if not config.integer("num_local_experts", default=0, minimum=0):
        family = replace(family, experts=None)
    return decoder(config, family)


def jamba(config: Config) -> Parts:
    """Read Jamba; with one expert all MLPs are dense."""
    family = FAMILIES["jamba"]
    if config.integer("num_experts", default=16) == 1:
        family = replace(family, experts=None)
    return decoder(config, family)


def lfm2(config: Config) -> Parts:
    """Read LFM2, whose MLP is narrower than its configuration says."""
    width = config.integer("block_ff_dim", "intermediate_size")
    if config.flag("block_auto_adjust_ff_dim", True):
        width = 2 * width // 3
        factor = config.fields.get("block_ffn_dim_multiplier", 1.0)
        if factor is not None:
            multiplier = float(factor) if type(factor) is int else factor
            scale = config.typed(
                "block_ffn_dim_multiplier", multiplier, float, "a number"
            )
            if not 0 < scale <= LARGEST:
                expected = f"a number above 0, up to {LARGEST}"
                raise config.refuse("block_ffn_dim_multiplier", expected, shown(factor))
            multiple = config.integer("block_multiple_of", default=256)
            width = multiple * -(-int(scale * width) // multiple)
    tied = config.fields.get("tie_word_embeddings")
    config = config.updated(
        intermediate_size=width,
        tie_word_embeddings=config.fields.get("tie_embedding", tied),
    )
    return decoder(config, FAMILIES["lfm2"])


def recurrent_gemma(config: Config) -> Parts:
    """Read RecurrentGemma, whose MLP is half as wide as it says."""
    config = config.updated(
        intermediate_size=config.integer("intermediate_size") // 2,
        sliding_window=config.integer("attention_window_size", default=2048),
    )
    return decoder(config, FAMILIES["recurrent_gemma"])


#: Letters of ``hybrid_override_pattern``, words of ``layers_block_type``.
_NEMOTRON = {
    "M": "mixer",
    "*": "attention",
    "-": "mlp",
    "E": "moe",
    "mamba": "mixer",
    "linear_attention": "mixer",
    "attention": "attention",
    "full_attention": "attention",
    "mlp": "mlp",
    "moe": "moe",
}


def nemotron_h(config: Config) -> Parts:
    """Read Nemotron-H, whose blocks are a norm and one other part each."""
    name = "hybrid_override_pattern"
    pattern = config.fields.get(name)
    if isinstance(pattern, str):
        entries = list(pattern)
    else:
        listed = config.has("layers_block_type")
        name = "layers_block_type" if listed else "layer_types"
        entries = config.listed(name, str, "strings") or []
    for entry in entries:
        if entry not in _NEMOTRON:
            raise config.refuse(name, f"entries among {', '.join(_NEMOTRON)}", entry)
    if not entries:
        raise config.refuse(
            "layers_block_type", "a list of layers", "no such field", "add it"
        )
    family = FAMILIES["nemotron_h"]
    experts = family.experts
    assert experts is not None

    def block(kind: str) -> Block:
        attention, mlp, mixer = NO_ATTENTION, NO_MLP, None
        if kind == "attention":
            attention = ordinary_attention(config, family)
        elif kind == "mixer":
            mixer = MIXERS["nemotron"](config)
        elif kind == "mlp":
            mlp = dense_mlp(config, family)
        else:
            latent = config.integer("moe_latent_size", default=0)
            mlp = replace(routed_mlp(config, experts), latent=latent)
        return bare_block(config, family, attention, mlp, mixer)

    kinds = [_NEMOTRON[entry] for entry in entries]
    made = {kind: block(kind) for kind in dict.fromkeys(kinds)}
    return one_tower(config, family, [made[kind] for kind in kinds])


def kimi_linear(config: Config) -> Parts:
    """Read Kimi Linear: delta attention, and latent attention between.

    Its own configuration has an object for the former, with the numbers of
    the layers that have the latter, from 1 on.
    """
    if config.has("linear_attn_config"):
        inside = config.nested("linear_attn_config")
        listed = inside.listed("full_attn_layers", int, "integers") or []
        layers = range(1, config.integer("num_hidden_layers") + 1)
        config = config.updated(
            linear_num_heads=inside.integer("num_heads"),
            linear_head_dim=inside.integer("head_dim"),
            linear_conv_kernel_dim=inside.integer("short_conv_kernel_size", default=4),
            layer_types=[
                "full_attention" if layer in listed else "linear_attention"
                for layer in layers
            ],
        )
    return decoder(config, FAMILIES["kimi_linear"])


#: Words of Zamba2's ``layers_block_type``.
_ZAMBA = {"linear_attention": "mixer", "mamba": "mixer", "hybrid": "hybrid"}


def zamba2(config: Config) -> Parts:
    """Read Zamba2: Mamba-2, and blocks that several layers share between.

    A hybrid layer has three parts, which are three blocks here: a shared
    block, whose input is the stream and the embeddings, twice as wide; a
    linear layer after it with an adapter of its MLP; and Mamba-2. Refused are adapters
    of attention, biases of linear layers, and models without ties.
    """
    for name in ("use_shared_attention_adapter", "add_bias_linear"):
        config.must_be(name, False)
    remedy = "transformers then shares no blocks either"
    config.must_be("tie_word_embeddings", True, remedy)
    layers = config.integer("num_hidden_layers")
    kinds = config.per_layer("layers_block_type", layers, _ZAMBA)
    if kinds is None:
        listed = config.listed("hybrid_layer_ids", int, "integers")
        if listed is None:
            raise config.refuse(
                "layers_block_type", "a list of layers", "no such field"
            )
        kinds = ["hybrid" if i in listed else "mixer" for i in range(layers)]
    hidden = config.integer("hidden_size")
    heads = config.integer("num_attention_heads")
    config.divisor("num_attention_heads", heads, "twice the width", 2 * hidden)
    mixer = MIXERS["zamba2"](config)
    family = FAMILIES["zamba2"]
    width = config.integer("intermediate_size", default=4 * hidden)
    attention = Attention(
        heads=heads,
        kv_heads=config.kv_heads(heads, heads),
        head_size=2 * hidden // heads,
        inputs=2 * hidden,
        rotary=config.flag("use_mem_rope", False),
    )
    block = bare_block(config, family, attention, Mlp(hidden=width, gated=True))
    # Its first norm is as wide as both inputs.
    shared = replace(block, vectors=1)
    rank = config.integer("adapter_rank", default=128)
    plain = bare_block(config, family, NO_ATTENTION, NO_MLP)
    adapted = replace(plain, mixer=adapter(hidden, rank, width), norms=0)
    mamba = replace(plain, mixer=mixer, norms=1)
    several = config.integer("num_mem_blocks", default=1)
    blocks: list[Block] = []
    for kind in kinds:
        if kind == "hybrid":
            index = sum(block.shared > 0 for block in blocks) % several
            blocks += [replace(shared, shared=index + 1), adapted]
        blocks.append(mamba)
    return one_tower(config, family, blocks)


#: Families by ``model_type``.
READERS: dict[str, Callable[[Config], Parts]] = {
    "granitemoehybrid": granite_hybrid,
    "jamba": jamba,
    "kimi_linear": kimi_linear,
    "lfm2": lfm2,
    "nemotron_h": nemotron_h,
    "recurrent_gemma": recurrent_gemma,
    "zamba2": zamba2,
}
