"""Decoders of Hugging Face that are more than a record of a family."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from nest.models.blocks import Block
from nest.models.hf.config import Config, Parts, shown, with_attention
from nest.models.hf.family import FAMILIES, decoder, routed_mlp
from nest.models.hf.layouts import rotary_layers


def stablelm(config: Config) -> Parts:
    """Read StableLM; in parallel, attention and MLP have one norm."""
    norms = 1 if config.flag("use_parallel_residual", False) else 2
    return decoder(config, replace(FAMILIES["stablelm"], norms=norms))


def opt(config: Config) -> Parts:
    """Read OPT, whose table of positions has two rows more than tokens."""
    hidden = config.integer("hidden_size")
    inputs = config.integer("word_embed_proj_dim", default=hidden)
    affine = config.flag("layer_norm_elementwise_affine", True)
    before = config.flag("do_layer_norm_before", True)
    removed = config.flag("_remove_final_layer_norm", False)
    norm = "layer" if affine else "bare"
    final = before and not removed
    model = decoder(config, replace(FAMILIES["opt"], norm=norm, final_norm=final))
    if inputs == hidden:
        return model
    return model.with_tower(embedding_size=inputs).with_head(
        transform=True, transform_size=inputs, transform_bias=False, transform_vectors=0
    )


def falcon(config: Config) -> Parts:
    """Read Falcon; attention and MLP count one after the other."""
    family = FAMILIES["falcon"]
    heads = config.integer(*family.heads)
    grouped = config.flag("new_decoder_architecture", False)
    if grouped:
        kv_heads = config.kv_heads(heads, heads, "num_kv_heads")
    else:
        kv_heads = 1 if config.flag("multi_query", True) else heads
    parallel = config.flag("parallel_attn", True)
    stated = config.integer("num_ln_in_parallel_attn", default=2)
    family = replace(
        family,
        kv_default=kv_heads,
        rotary=not config.flag("alibi", False),
        norms=(stated if grouped else 1) if parallel else 2,
    )
    return decoder(config, family)


def hyperclovax(config: Config) -> Parts:
    """Read HyperCLOVA X; outputs of attention and MLP may be normalized."""
    norms = 4 if config.flag("use_post_norm", True) else 2
    return decoder(config, replace(FAMILIES["hyperclovax"], norms=norms))


def gpt_bigcode(config: Config) -> Parts:
    """Read GPT BigCode: GPT-2 with one key and value head, or with all."""
    kv_heads = 1 if config.flag("multi_query", True) else None
    return decoder(config, replace(FAMILIES["gpt_bigcode"], kv_default=kv_heads))


def gpt_neox_japanese(config: Config) -> Parts:
    """Read GPT-NeoX Japanese, whose last layer alone has a bias."""
    factor = config.integer("intermediate_multiple_size", default=4)
    width = factor * config.integer("hidden_size")
    last = config.integer("num_hidden_layers") - 1
    return decoder(
        config.updated(intermediate_size=width),
        FAMILIES["gpt_neox_japanese"],
        lambda block, index, _: with_attention(block, output_bias=index == last),
    )


def gpt_neo(config: Config) -> Parts:
    """Read GPT Neo, which has a name of its own for the window."""
    window = config.integer("window_size", default=256)
    return decoder(config, replace(FAMILIES["gpt_neo"], window=window))


def internlm3(config: Config) -> Parts:
    """Read InternLM3, by its own names or by those of Llama."""
    has_names = config.has("qkv_bias") or config.has("bias")
    return decoder(config, FAMILIES["internlm3" if has_names else "llama"])


def dbrx(config: Config) -> Parts:
    """Read DBRX, whose parts have objects of their own."""
    attention, mlp = config.nested("attn_config"), config.nested("ffn_config")
    hidden = config.integer("d_model")
    inputs = mlp.integer("hidden_size", default=hidden)
    if inputs != hidden:
        raise mlp.refuse("hidden_size", f"d_model = {hidden}", inputs)
    family = FAMILIES["dbrx"]
    assert family.experts is not None
    experts = routed_mlp(mlp, family.experts)
    family = replace(
        family, kv_default=attention.integer("kv_n_heads", default=1), experts=None
    )
    return decoder(config, family, lambda block, *_: replace(block, mlp=experts))


def smollm3(config: Config) -> Parts:
    """Read SmolLM3, every fourth layer of which does not rotate."""
    rotary = rotary_layers(config, config.integer("num_hidden_layers"))

    return decoder(
        config,
        FAMILIES["smollm3"],
        lambda block, index, _: with_attention(block, rotary=rotary[index]),
    )


def llama4(config: Config) -> Parts:
    """Read the text model of Llama 4.

    Layers that rotate see a chunk of the sequence, and normalize queries and
    keys without weights.
    """
    rotary = rotary_layers(config, config.integer("num_hidden_layers"))
    chunk = config.integer("attention_chunk_size", default=8192)
    normed = config.flag("use_qk_norm", True)

    def edit(block: Block, index: int, kind: str) -> Block:
        has_norm = normed and rotary[index]
        return with_attention(
            block,
            window=chunk if kind == "local" else 0,
            rotary=rotary[index],
            query_key_norm=has_norm,
            norm_over="nothing" if has_norm else "head",
        )

    return decoder(config, FAMILIES["llama4_text"], edit)


def hunyuan_moe(config: Config) -> Parts:
    """Read Hunyuan's mixture: experts and an MLP that all tokens visit."""
    visits = config.fields.get("moe_topk")
    if isinstance(visits, list):
        if len(set(map(str, visits))) != 1:
            raise config.refuse(
                "moe_topk",
                "one number for all layers",
                shown(visits),
                "other models are not supported",
            )
        config = config.updated(moe_topk=visits[0])
    return decoder(config, FAMILIES["hunyuan_v1_moe"])


def cohere2_moe(config: Config) -> Parts:
    """Read Cohere's mixture, the first layers of which may be dense."""
    family = FAMILIES["cohere2_moe"]
    if config.has("rms_norm_eps"):
        family = replace(family, norm="rms")
    return decoder(config, family)


def mimo(config: Config) -> Parts:
    """Read MiMo: values narrower than keys, sinks in layers with windows."""
    window = config.integer("sliding_window", default=129)
    value_size = config.integer("v_head_dim", default=128)

    def edit(block: Block, _index: int, kind: str) -> Block:
        local = kind == "local"
        return with_attention(
            block,
            kv_heads=block.attention.kv_heads * (2 if local else 1),
            value_size=value_size,
            window=window if local else 0,
            sinks=local,
        )

    return decoder(config, FAMILIES["mimo_v2_flash"], edit)


def deepseek(config: Config) -> Parts:
    """Read DeepSeek: latent attention, the first layers dense."""
    name = str(config.fields["model_type"])
    frequency = config.integer("moe_layer_freq", default=1)
    if frequency != 1:
        raise config.refuse(
            "moe_layer_freq", "1", frequency, "other patterns are not supported"
        )
    # Layers may take over what the indexer of one before them has picked.
    layers = config.integer("num_hidden_layers")
    kinds = {"full": "full", "shared": "shared"}
    indexers = config.per_layer("indexer_types", layers, kinds)

    def edit(block: Block, index: int, _kind: str) -> Block:
        if name == "axk1" and block.mlp.experts:
            block = replace(block, norms=3)
        if indexers is None or indexers[index] == "full":
            return block
        return with_attention(block, index_heads=0, index_size=0)

    return decoder(config, FAMILIES[name], edit)


#: Families that are more than a record.
READERS: dict[str, Callable[[Config], Parts]] = {
    **dict.fromkeys(
        (
            *("axk1", "deepseek_v2", "deepseek_v3", "deepseek_v32"),
            *("glm4_moe_lite", "glm_moe_dsa", "kimi_k2"),
        ),
        deepseek,
    ),
    "cohere2_moe": cohere2_moe,
    "dbrx": dbrx,
    "falcon": falcon,
    "gpt_bigcode": gpt_bigcode,
    "gpt_neo": gpt_neo,
    "gpt_neox_japanese": gpt_neox_japanese,
    "hunyuan_v1_moe": hunyuan_moe,
    "hyperclovax": hyperclovax,
    "internlm3": internlm3,
    "llama4_text": llama4,
    "mimo_v2_flash": mimo,
    "opt": opt,
    "smollm3": smollm3,
    "stablelm": stablelm,
}
