"""Decoders of Hugging Face whose layers have more than attention and an MLP.

Inputs of every layer from a table, several residual streams, two attentions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec.structs import replace

from nest.models.blocks import NO_ATTENTION, Block, Mixer
from nest.models.hf.config import Config, Parts, shown, with_attention
from nest.models.hf.family import FAMILIES, decoder, layer_kinds, one_tower, routed_mlp
from nest.models.hf.mixers import (
    compressed_attention,
    hyper_connections,
    layer_input,
    uncut,
)


def gemma4(config: Config, *, unified: bool = False) -> Parts:
    """Read Gemma 4, whose global layers have heads of their own.

    The last layers take keys and values of earlier ones. Experts, where it has them,
    are beside the dense MLP. The ``unified`` family has no inputs of layers.
    """
    family = FAMILIES[str(config.fields["model_type"])]
    layers = config.integer("num_hidden_layers")
    kinds = layer_kinds(config, family, layers)
    one_projection = config.flag("attention_k_eq_v", False)
    if not config.has("per_layer_config"):
        others = {"head_dim": config.integer("global_head_dim", default=512)}
        name = "num_global_key_value_heads"
        if (one_projection or unified) and config.has(name):
            others["num_key_value_heads"] = config.integer(name)
        config = config.updated(
            per_layer_config={
                str(i): others for i, kind in enumerate(kinds) if kind == "global"
            }
        )
    first_reader = _first_reader(config, layers, 0)
    wide = config.flag("use_double_wide_mlp", False)
    mixed = config.flag("enable_moe_block", False)
    width = 0
    if not unified:
        name = "hidden_size_per_layer_input"
        width = config.integer(name, default=256, minimum=0)

    def edit(block: Block, index: int, kind: str) -> Block:
        reads = index >= first_reader
        projections = 0 if reads else 1 if one_projection and kind == "global" else 2
        block = with_attention(block, key_value_parts=projections)
        dense = block.mlp.hidden * (2 if wide and reads else 1)
        mlp = replace(block.mlp, hidden=dense)
        if mixed:
            assert family.experts is not None
            mlp = replace(routed_mlp(config, family.experts), shared_hidden=dense)
            # The router scales its input.
            block = replace(block, norms=block.norms + 3, vectors=1)
        if width:
            mixer = layer_input(block.hidden, width)
            block = replace(block, norms=block.norms + 1, mixer=mixer)
        return replace(block, mlp=mlp)

    model = decoder(config, replace(family, experts=None), edit)
    return _with_layer_inputs(config, model, width)


def _first_reader(config: Config, layers: int, default: int) -> int:
    """Return the first of the last layers, which read keys of earlier ones."""
    name = "num_kv_shared_layers"
    shared = config.integer(name, default=default, minimum=0)
    if shared >= layers:
        raise config.refuse(name, f"fewer than the {layers} layers", shared)
    return layers - shared


def _with_layer_inputs(config: Config, model: Parts, width: int) -> Parts:
    """Return a model with the table of what its layers get."""
    if not width:
        return model
    rows = config.integer("vocab_size_per_layer_input", default=262144)
    return model.with_tower(layer_inputs=width, layer_vocabulary=rows)


def gemma3n(config: Config) -> Parts:
    """Read Gemma 3n: inputs of layers, streams updated in turn, a low-rank sum."""
    family = FAMILIES["gemma3n_text"]
    layers, hidden = config.integer("num_hidden_layers"), config.integer("hidden_size")
    first_reader = _first_reader(config, layers, 15)
    width = config.integer("hidden_size_per_layer_input", default=256)
    streams = config.integer("altup_num_inputs", default=4)
    rank = config.integer("laurel_rank", default=64)
    inside = (
        uncut("low rank down", hidden, rank),
        uncut("low rank up", rank, hidden),
        uncut("stream router", hidden, streams),
    )
    ends = {0: "streams", layers - 1: "joined streams"}

    def edit(block: Block, index: int, _kind: str) -> Block:
        more = [
            uncut(name, hidden, (streams - 1) * hidden)
            for end, name in ends.items()
            if index == end
        ]
        if layers == 1:
            more.append(uncut("streams", hidden, (streams - 1) * hidden))
        mixer = layer_input(hidden, width, (*inside, *more))
        block = replace(
            block,
            mixer=replace(mixer, common=streams**2 * (streams + 1)),
            vectors=1,
            streams=streams,
        )
        return with_attention(block, key_value_parts=0 if index >= first_reader else 2)

    model = decoder(config, family, edit)
    return _with_layer_inputs(config, model, width)


#: Types of DeepSeek-V4's layers by the tokens that are compressed into one.
_COMPRESSED = {
    0: "sliding_attention",
    4: "compressed_sparse_attention",
    128: "heavily_compressed_attention",
}


def deepseek_v4(config: Config) -> Parts:
    """Read DeepSeek-V4: compressed attention, several residual streams.

    Its own configuration has a list of how many tokens are compressed into one.
    """
    layers = config.integer("num_hidden_layers")
    ratios = config.listed("compress_ratios", int, "integers")
    if not config.has("layer_types") and ratios is not None:
        if len(ratios) < layers or not set(ratios) <= set(_COMPRESSED):
            expected = f"a number of {', '.join(map(str, _COMPRESSED))} per layer"
            raise config.refuse("compress_ratios", expected, shown(ratios))
        config = config.updated(layer_types=[_COMPRESSED[n] for n in ratios[:layers]])
    if not config.has("compress_rates"):
        rates = {kind: ratio for ratio, kind in _COMPRESSED.items() if ratio}
        config = config.updated(compress_rates=rates)
    streams = config.integer("hc_mult", default=4)
    connections = hyper_connections(config, (2 + streams) * streams, 3)
    kinds = config.fields.get("layer_types") or []

    def edit(block: Block, index: int, _kind: str) -> Block:
        mixer = compressed_attention(config, kinds[index])
        *inside, output = mixer.linears
        mixer = replace(
            mixer,
            linears=(*connections.linears, *inside, output),
            common=mixer.common + connections.common,
        )
        mixer = _with_last(mixer, block.hidden, streams, index == layers - 1)
        return replace(block, attention=NO_ATTENTION, mixer=mixer, streams=streams)

    return decoder(config, FAMILIES["deepseek_v4"], edit)


def _with_last(mixer: Mixer, hidden: int, streams: int, last: bool) -> Mixer:
    """Return the mixer of a layer; the last one joins all streams."""
    if not last:
        return mixer
    joined = uncut("head streams", streams * hidden, streams)
    return replace(
        mixer, linears=(joined, *mixer.linears), common=mixer.common + streams + 1
    )


def hy_v4(config: Config) -> Parts:
    """Read Hunyuan 4: latent attention with an indexer, several streams."""
    layers = config.integer("num_hidden_layers")
    indexers = config.per_layer(
        "indexer_types", layers, {"full": "full", "shared": "shared"}
    )
    streams = config.integer("hc_mult", default=4)
    connections = hyper_connections(config, 2 * streams, 2)

    def edit(block: Block, index: int, _kind: str) -> Block:
        last = index == layers - 1
        mixer = _with_last(connections, block.hidden, streams, last)
        block = replace(block, mixer=mixer, streams=streams)
        if indexers is None or indexers[index] == "full":
            return block
        return with_attention(block, index_heads=0, index_size=0)

    return decoder(config, FAMILIES["hy_v4"], edit)


def longcat(config: Config) -> Parts:
    """Read LongCat-Flash, a layer of which is two blocks here.

    The experts are beside the first of its two MLPs; some return their input. Of
    those that a token visits, it counts as many as experts that compute.
    """
    family = FAMILIES["longcat_flash"]
    config.must_be("router_bias", False)
    zero = config.integer("zero_expert_num", default=0, minimum=0)

    def edit(block: Block, *_: Any) -> Block:
        mlp = block.mlp
        visits = -(-mlp.experts_per_token * mlp.experts // (mlp.experts + zero))
        mlp = replace(
            mlp,
            experts_per_token=visits,
            zero_experts=zero,
            shared_hidden=config.integer("ffn_hidden_size"),
        )
        return replace(block, mlp=mlp)

    sparse = decoder(config, family, edit).towers[0]
    dense = decoder(config, replace(family, experts=None)).towers[0]
    pairs = zip(sparse.blocks(), dense.blocks(), strict=True)
    return one_tower(config, family, [block for pair in pairs for block in pair])


def minimax_m3(config: Config) -> Parts:
    """Read MiniMax M3, an indexer of which picks blocks of tokens."""
    layers = config.integer("num_hidden_layers")
    if config.has("sparse_attention_config"):
        inside = config.nested("sparse_attention_config")
        sparse = inside.listed("sparse_attention_freq", int, "integers") or [0] * layers
        config = config.updated(
            layer_types=[
                "minimax_m3_sparse" if entry else "full_attention" for entry in sparse
            ],
            index_n_heads=inside.integer("sparse_num_index_heads", default=4),
            index_head_dim=inside.integer("sparse_index_dim", default=128),
            index_block_size=inside.integer("sparse_block_size", default=128),
            index_topk_blocks=inside.integer("sparse_topk_blocks", default=16),
            index_local_blocks=inside.integer("sparse_local_block", default=1),
        )
    frequency = config.listed("moe_layer_freq", int, "integers")
    if frequency is not None and not config.has("mlp_layer_types"):
        kinds = ["sparse" if entry else "dense" for entry in frequency]
        config = config.updated(mlp_layer_types=kinds)
    blocks = config.integer("index_topk_blocks", default=16)
    blocks += config.integer("index_local_blocks", default=1, minimum=0)
    window = blocks * config.integer("index_block_size", default=128)
    heads = config.integer("index_n_heads", default=4)
    size = config.integer("index_head_dim", default=128)

    def edit(block: Block, _index: int, kind: str) -> Block:
        if kind != "local":
            return block
        return with_attention(
            block, window=window, index_heads=heads, index_size=size, index_scales=False
        )

    return decoder(config, FAMILIES["minimax_m3_vl_text"], edit)


#: Families by ``model_type``.
READERS: dict[str, Callable[[Config], Parts]] = {
    "deepseek_v4": deepseek_v4,
    "gemma3n_text": gemma3n,
    "gemma4_text": gemma4,
    "gemma4_unified_text": partial(gemma4, unified=True),
    "hy_v4": hy_v4,
    "longcat_flash": longcat,
    "minimax_m3_vl_text": minimax_m3,
}
