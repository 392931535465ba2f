"""Decoders of Hugging Face: what their fields are called and default to."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from nest.models.blocks import Attention, Head, Mlp
from nest.models.hf.config import Config, Parts, Switch, shown
from nest.models.hf.family import (
    Experts,
    Family,
    bare_block,
    decoder,
    dense_mlp,
    every_nth,
    layer_kinds,
    one_tower,
    ordinary_attention,
    routed_mlp,
)

#: Words of ``mlp_layer_types``: whether a layer has experts.
MLP_TYPES = {"dense": "dense", "sparse": "sparse"}


def all_but_listed(config: Config, layers: int) -> list[bool]:
    """Every ``decoder_sparse_step``-th layer but ``mlp_only_layers``."""
    step = config.integer("decoder_sparse_step", default=1)
    listed = config.listed("mlp_only_layers", int, "integers") or []
    return [i not in listed and (i + 1) % step == 0 for i in range(layers)]


def all_but_first(config: Config, layers: int) -> list[bool]:
    """Layers behind the first dense ones, or those that are listed.

    Raises
    ------
    InvalidProblemError
        If there are more dense layers than layers.
    """
    stated = config.per_layer("mlp_layer_types", layers, MLP_TYPES)
    if stated is not None:
        return [word == "sparse" for word in stated]
    names = ("first_k_dense_replace", "num_dense_layers")
    name = names[1] if config.has(names[1]) else names[0]
    dense = config.integer(name, default=0, least=0)
    if dense > layers:
        raise config.refuse(
            name, f"an integer from 0 to the {layers} layers", dense
        )
    return [i >= dense for i in range(layers)]


def all_or_listed(config: Config, layers: int) -> list[bool]:
    """Return what ``mlp_layer_types`` says, else all layers."""
    stated = config.per_layer("mlp_layer_types", layers, MLP_TYPES)
    return [word == "sparse" for word in stated or ["sparse"] * layers]


def one_dense(config: Config, layers: int) -> list[bool]:
    """Return what ``mlp_layer_types`` says, else all but the first layer."""
    if config.has("mlp_layer_types") or config.has("first_k_dense_replace"):
        return all_but_first(config, layers)
    return [i > 0 for i in range(layers)]


def ernie_places(config: Config, layers: int) -> list[bool]:
    """Every ``moe_layer_interval``-th layer from a first to a last one."""
    step = config.integer("moe_layer_interval", default=1)
    first = config.integer("moe_layer_start_index", default=1, least=0)
    last = config.integer("moe_layer_end_index", default=-1, least=-1)
    if last < 0:
        last = layers - 1
    return [(i + 1) % step == 0 and first <= i <= last for i in range(layers)]


def llama4_places(config: Config, layers: int) -> list[bool]:
    """Layers that are listed, or every ``interleave_moe_layer_step``-th."""
    listed = config.listed("moe_layers", int, "integers")
    if listed is None:
        step = config.integer("interleave_moe_layer_step", default=1)
        return [(i + 1) % step == 0 for i in range(layers)]
    return [i in listed for i in range(layers)]


def qwen_kinds(config: Config, layers: int) -> list[str]:
    """Layers from ``max_window_layers`` on, if windows are switched on."""
    if not config.flag("use_sliding_window", False):
        return ["global"] * layers
    first = config.integer("max_window_layers", default=28, least=0)
    return ["local" if i >= first else "global" for i in range(layers)]


#: What GPT-like families share.
GPT = Family(
    mlp=(),
    mlp_factor=4,
    gated=False,
    head_dim=False,
    kv_heads=(),
    norm="layer",
    biases=True,
    mlp_biases=True,
    dropout=("hidden_dropout", 0.0),
    tied=True,
)
#: GPT-like families that call their fields as GPT-2 does.
GPT2 = GPT._replace(
    layers=("n_layer", "num_hidden_layers"),
    hidden=("n_embd", "hidden_size"),
    heads=("n_head",),
    mlp=("n_inner",),
    length=("n_positions", "n_ctx"),
    longest=1024,
    more_positions=0,
    rotary=False,
    dropout=("resid_pdrop", 0.1),
)
#: GPT-J and what is built as it is.
GPTJ = GPT2._replace(
    biases=False,
    longest=2048,
    more_positions=None,
    rotary=True,
    norms=1,
    head_bias=True,
    dropout=("resid_pdrop", 0.0),
    tied=False,
)

BIASED = Family(biases=("attention_bias", False))
LLAMA = BIASED._replace(mlp_biases=("mlp_bias", False))
MISTRAL = Family(longest=131072, kv_default=8, window=4096)
GEMMA = BIASED._replace(longest=8192, head_size=256, tied=True)
GEMMA2 = GEMMA._replace(kv_default=4, norms=4, window=4096, pattern=2)
QWEN3 = BIASED._replace(
    longest=32768,
    head_size=128,
    query_key_norm=True,
    window=4096,
    kinds=qwen_kinds,
)
OLMO2 = BIASED._replace(query_key_norm=True, norm_over="heads")
COHERE = BIASED._replace(longest=8192, norm="unbiased", norms=1, tied=True)
GLM = BIASED._replace(longest=131072, output_bias=False, head_size=128)
PHI = GPT._replace(
    mlp=("intermediate_size",),
    kv_heads=("num_key_value_heads",),
    norms=1,
    query_key_norm=("qk_layernorm", False),
    norm_vectors=2,
    head_bias=True,
    dropout=("resid_pdrop", 0.0),
    tied=False,
)

QWEN_EXPERTS = Experts(places=all_but_listed)
SHARED_EXPERT = QWEN_EXPERTS._replace(
    shared_width=("shared_expert_intermediate_size",), shared_gate=True
)
LOCAL_EXPERTS = Experts(
    number=("num_local_experts", "num_experts"), width=("intermediate_size",)
)
SHARED_MLP = LOCAL_EXPERTS._replace(shared_width=("shared_intermediate_size",))
GLM_EXPERTS = Experts(
    number=("n_routed_experts", "num_local_experts", "num_experts"),
    shared=("n_shared_experts", "num_shared_experts"),
    places=all_but_first,
)

FAMILIES = {
    "afmoe": BIASED._replace(
        longest=16384,
        norms=4,
        head_size=128,
        query_key_norm=True,
        gate="beside",
        window=1024,
        pattern=4,
        pattern_names=("global_attn_every_n_layers",),
        experts=GLM_EXPERTS._replace(router_bias=True),
    ),
    "apertus": BIASED._replace(
        longest=65536, gated=False, query_key_norm=True, activation_weights=2
    ),
    "arcee": LLAMA._replace(gated=False),
    "aria_text": LLAMA._replace(
        experts=Experts(
            number=("moe_num_experts",),
            visits=("moe_topk",),
            width=("intermediate_size",),
            shared=("moe_num_shared_experts",),
            shared_default=2,
            shared_biases=("mlp_bias", False),
        )
    ),
    "biogpt": GPT._replace(
        mlp=("intermediate_size",),
        longest=1024,
        rotary=False,
        more_positions=2,
        dropout=("hidden_dropout_prob", 0.1),
    ),
    "bitnet": BIASED._replace(output_norm=True, inner_norm=True),
    "bloom": GPT._replace(
        layers=("n_layer", "num_hidden_layers"),
        hidden=("hidden_size", "n_embed"),
        heads=("n_head", "num_attention_heads"),
        length=("seq_length",),
        rotary=False,
        embedding_norm=True,
    ),
    "codegen": GPTJ,
    "cohere": COHERE._replace(
        query_key_norm=("use_qk_norm", False), norm_over="heads"
    ),
    "cohere2": COHERE._replace(
        window=4096,
        pattern=4,
        pattern_names=("sliding_window_pattern",),
        head_size=128,
    ),
    "ctrl": GPT2._replace(
        mlp=("dff",),
        longest=256,
        more_positions=None,
        head_bias=True,
    ),
    "cwm": LLAMA._replace(
        window=8192, kv_default=8, head_size=128, longest=131072
    ),
    "dots1": BIASED._replace(
        query_key_norm=True,
        experts=GLM_EXPERTS,
        window=4096,
    ),
    "ernie4_5": Family(
        biases=("use_bias", False),
        mlp_biases=("use_bias", False),
        longest=131072,
        head_size=128,
        tied=True,
    ),
    "ernie4_5_moe": Family(
        biases=("use_bias", False),
        mlp_biases=("use_bias", False),
        head_bias=("use_bias", False),
        longest=131072,
        experts=Experts(
            number=("moe_num_experts", "num_experts"),
            visits=("moe_k", "num_experts_per_tok"),
            shared=("moe_num_shared_experts",),
            router_bias=True,
            shared_biases=("use_bias", False),
            places=ernie_places,
        ),
        tied=True,
    ),
    "exaone4": Family(
        query_key_norm=True,
        window=4096,
        pattern=4,
        pattern_names=("sliding_window_pattern",),
    ),
    "exaone_moe": Family(
        query_key_norm=True,
        window=4096,
        pattern=4,
        pattern_names=("sliding_window_pattern",),
        experts=GLM_EXPERTS,
    ),
    "flex_olmo": OLMO2._replace(experts=Experts(width=("intermediate_size",))),
    "gemma": GEMMA,
    "gemma2": GEMMA2,
    "gemma3_text": GEMMA2._replace(
        longest=131072,
        query_key_norm=True,
        pattern=6,
        pattern_names=("sliding_window_pattern", "_sliding_window_pattern"),
        # Of the text models inside others only some are stated.
        sizes={
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "num_attention_heads": 8,
            "num_hidden_layers": 26,
            "vocab_size": 262208,
        },
    ),
    "glm": GLM,
    "glm4": GLM._replace(norms=4),
    "glm4_moe": BIASED._replace(
        longest=131072,
        output_bias=False,
        floors=True,
        query_key_norm=("use_qk_norm", False),
        experts=GLM_EXPERTS,
    ),
    "gpt2": GPT2,
    "gpt_bigcode": GPT2,
    "gpt_neo": GPT._replace(
        layers=("num_layers", "num_hidden_layers"),
        heads=("num_heads", "num_attention_heads"),
        mlp=("intermediate_size",),
        biases=False,
        output_bias=True,
        rotary=False,
        more_positions=0,
        window=256,
        dropout=("resid_dropout", 0.0),
    ),
    "gpt_neox": GPT._replace(
        mlp=("intermediate_size",),
        mlp_factor=0,
        biases=("attention_bias", True),
        tied=False,
    ),
    "gpt_oss": Family(
        longest=131072,
        biases=("attention_bias", True),
        head_size=64,
        sinks=True,
        window=128,
        pattern=2,
        experts=LOCAL_EXPERTS._replace(biases=True, router_bias=True),
    ),
    "gptj": GPTJ,
    "granite": LLAMA,
    "granite_swa": LLAMA._replace(window=128, sinks=True, tied=True),
    "granitemoe": BIASED._replace(experts=LOCAL_EXPERTS),
    "granitemoe_swa": BIASED._replace(
        window=128, sinks=True, experts=SHARED_MLP
    ),
    "granitemoeshared": BIASED._replace(experts=SHARED_MLP),
    "helium": LLAMA._replace(output_bias=False, head_size=128),
    "hunyuan_v1_dense": BIASED._replace(query_key_norm=True),
    "hy_v3": LLAMA._replace(
        longest=131072,
        query_key_norm=True,
        experts=GLM_EXPERTS._replace(
            places=one_dense, shared_biases=("mlp_bias", False)
        ),
    ),
    "internlm2": Family(
        biases=("bias", False), longest=32768, mlp_biases=False
    ),
    "internlm3": Family(
        biases=("qkv_bias", False),
        output_bias=("bias", False),
        mlp_biases=("bias", False),
        longest=32768,
    ),
    "iquestcoder": LLAMA,
    "jais2": LLAMA._replace(
        gated=False,
        norm="layer",
        biases=("attention_bias", True),
        mlp_biases=("mlp_bias", True),
    ),
    "llama": LLAMA,
    "mellum": BIASED._replace(
        longest=131072,
        head_size=128,
        query_key_norm=True,
        window=1024,
        experts=Experts(places=all_or_listed),
    ),
    "minimax_m2": Family(
        longest=196608,
        head_size=128,
        query_key_norm=True,
        norm_over="heads",
        experts=LOCAL_EXPERTS,
    ),
    "ministral": MISTRAL,
    "ministral3": MISTRAL._replace(head_size=128),
    "mistral": MISTRAL,
    "mixtral": MISTRAL._replace(window=0, experts=LOCAL_EXPERTS),
    "mpt": Family(
        layers=("n_layers", "num_hidden_layers"),
        hidden=("d_model", "hidden_size"),
        heads=("n_heads", "num_attention_heads"),
        kv_heads=(),
        length=("max_seq_len",),
        mlp=(),
        mlp_factor=4,
        gated=False,
        head_dim=False,
        norm="unbiased",
        rotary=False,
        dropout=("resid_pdrop", 0.0),
        tied=True,
    ),
    "nanochat": BIASED._replace(
        gated=False, norm="bare", query_key_norm=True, norm_over="nothing"
    ),
    "nemotron": LLAMA._replace(longest=4096, gated=False, norm="layer"),
    "olmo": BIASED._replace(norm="bare"),
    "olmo2": OLMO2,
    "olmo3": OLMO2._replace(window=4096, pattern=4),
    "olmoe": OLMO2._replace(
        longest=4096, experts=Experts(width=("intermediate_size",))
    ),
    "persimmon": GPT._replace(
        mlp=("intermediate_size",),
        longest=16384,
        query_key_norm=("qk_layernorm", True),
        norm_vectors=2,
        tied=False,
    ),
    "phi": PHI,
    "phi3": Family(longest=4096, window=0, dropout=("resid_pdrop", 0.0)),
    "phimoe": BIASED._replace(
        longest=131072,
        norm="layer",
        window=0,
        head_bias=("lm_head_bias", False),
        experts=LOCAL_EXPERTS,
    ),
    "qwen2": Family(
        longest=32768,
        biases=True,
        output_bias=False,
        window=4096,
        kinds=qwen_kinds,
    ),
    "qwen2_moe": Family(
        longest=32768,
        biases=("qkv_bias", True),
        output_bias=False,
        window=4096,
        kinds=qwen_kinds,
        experts=SHARED_EXPERT,
    ),
    "qwen3": QWEN3,
    "qwen3_moe": QWEN3._replace(
        head_size=None, floors=True, kv_default=4, experts=QWEN_EXPERTS
    ),
    "seed_oss": LLAMA._replace(
        longest=524288,
        biases=("attention_bias", True),
        output_bias=("attention_out_bias", False),
        head_size=128,
        dropout=("residual_dropout", 0.1),
    ),
    "smollm3": LLAMA._replace(longest=32768, tied=True),
    "solar_open": BIASED._replace(
        longest=131072,
        output_bias=False,
        head_size=128,
        experts=GLM_EXPERTS._replace(places=None),
    ),
    "stablelm": Family(
        longest=4096,
        norm="layer",
        biases=("use_qkv_bias", False),
        output_bias=False,
        query_key_norm=("qk_layernorm", False),
        norm_over="heads",
        dropout=("hidden_dropout", 0.0),
    ),
    "starcoder2": Family(
        longest=4096,
        kv_default=2,
        gated=False,
        norm="layer",
        biases=("use_bias", True),
        mlp_biases=("use_bias", True),
        window=0,
        dropout=("residual_dropout", 0.0),
        tied=True,
    ),
    "vaultgemma": GEMMA2._replace(norms=2),
    "xglm": GPT._replace(
        layers=("num_layers", "num_hidden_layers"),
        hidden=("d_model", "hidden_size"),
        heads=("attention_heads", "num_attention_heads"),
        mlp=("ffn_dim",),
        rotary=False,
        dropout=("dropout", 0.1),
    ),
}

#: Text models inside others that are like a family.
FAMILIES |= {
    name: FAMILIES[family]
    for name, family in {
        "glm4v_moe_text": "glm4_moe",
        "qwen2_5_vl_text": "qwen2",
        "qwen2_vl_text": "qwen2",
        "qwen3_vl_moe_text": "qwen3_moe",
        "qwen3_vl_text": "qwen3",
    }.items()
}

DEEPSEEK = Family(longest=4096, heads=("num_attention_heads",))


def stablelm(config: Config) -> Parts:
    """Read StableLM; in parallel, attention and MLP have one norm."""
    family = FAMILIES["stablelm"]
    if config.flag("use_parallel_residual", False):
        family = family._replace(norms=1)
    return decoder(config, family)


def opt(config: Config) -> Parts:
    """Read OPT, whose table of positions has two rows more than tokens."""
    hidden = config.integer("hidden_size")
    inputs = config.integer("word_embed_proj_dim", default=hidden)
    biased = config.flag("enable_bias", True)
    affine = config.flag("layer_norm_elementwise_affine", True)
    family = GPT._replace(
        mlp=("ffn_dim",),
        mlp_factor=0,
        more_positions=2,
        rotary=False,
        biases=biased,
        mlp_biases=biased,
        norm="layer" if affine else "bare",
        dropout=("dropout", 0.1),
    )
    parts = decoder(config, family)
    head, tower = parts.head, parts.towers[0]
    before = config.flag("do_layer_norm_before", True)
    if not before or config.flag("_remove_final_layer_norm", False):
        tower = replace(tower, final_norm=False)
    if inputs != hidden:
        tower = replace(tower, embedding_size=inputs)
        head = replace(
            head,
            transform=True,
            transform_size=inputs,
            transform_bias=False,
            transform_vectors=0,
        )
    return parts._replace(towers=(tower,), head=head)


def falcon(config: Config) -> Parts:
    """Read Falcon; attention and MLP count one after the other."""
    names = ("num_attention_heads", "n_head")
    heads = config.integer(*names)
    grouped = config.flag("new_decoder_architecture", False)
    if grouped:
        kv_heads = config.kv_heads(heads, heads, "num_kv_heads")
    else:
        kv_heads = 1 if config.flag("multi_query", True) else heads
    parallel = config.flag("parallel_attn", True)
    stated = config.integer("num_ln_in_parallel_attn", default=2)
    family = GPT._replace(
        layers=("num_hidden_layers", "n_layer"),
        hidden=("hidden_size", "n_embed"),
        heads=names,
        kv_default=kv_heads,
        mlp=("ffn_hidden_size",),
        rotary=not config.flag("alibi", False),
        biases=("bias", False),
        mlp_biases=("bias", False),
        norms=(stated if grouped else 1) if parallel else 2,
    )
    return decoder(config, family)


def openai_gpt(config: Config) -> Parts:
    """Read GPT, whose norms are behind attention and MLP: none at the end."""
    parts = decoder(config, GPT2._replace(longest=512, mlp=()))
    tower = replace(parts.towers[0], final_norm=False)
    return parts._replace(towers=(tower,))


def hyperclovax(config: Config) -> Parts:
    """Read HyperCLOVA X; outputs of attention and MLP may be normalised."""
    post = config.flag("use_post_norm", True)
    return decoder(config, LLAMA._replace(norms=4 if post else 2))


def gpt_bigcode(config: Config) -> Parts:
    """Read GPT BigCode: GPT-2 with one key and value head, or with all."""
    single = config.flag("multi_query", True)
    return decoder(config, GPT2._replace(kv_default=1 if single else None))


def gpt_neo(config: Config) -> Parts:
    """Read GPT Neo, whose layers are listed in types that repeat."""
    words = {"global": "global", "local": "local"}
    layers = config.integer("num_layers", "num_hidden_layers")
    listed = config.per_layer("attention_layers", layers, words)
    if listed is None:
        listed = every_nth(layers, 2, "local", "global")
    window = config.integer("window_size", default=256)
    family = FAMILIES["gpt_neo"]._replace(
        window=window, kinds=lambda *_: listed
    )
    return decoder(config, family)


def internlm3(config: Config) -> Parts:
    """Read InternLM3, by its own names or by those of Llama."""
    own = config.has("qkv_bias") or config.has("bias")
    return decoder(config, FAMILIES["internlm3"] if own else LLAMA)


def dbrx(config: Config) -> Parts:
    """Read DBRX, whose parts have objects of their own."""
    attention, mlp = config.part("attn_config"), config.part("ffn_config")
    family = Family(
        layers=("n_layers",),
        hidden=("d_model",),
        heads=("n_heads",),
        kv_heads=(),
        kv_default=attention.integer("kv_n_heads", default=1),
        length=("max_seq_len",),
        norm="unbiased",
        dropout=("resid_pdrop", 0.0),
    )
    hidden = config.integer("d_model")
    inputs = mlp.integer("hidden_size", default=hidden)
    if inputs != hidden:
        raise mlp.refuse("hidden_size", f"d_model = {hidden}", inputs)
    names = Experts(
        number=("moe_num_experts",),
        visits=("moe_top_k",),
        width=("ffn_hidden_size",),
    )
    block = bare_block(
        config,
        family,
        ordinary_attention(config, family),
        routed_mlp(mlp, names),
    )
    return one_tower(config, family, [block] * config.integer("n_layers"))


def no_rope(config: Config, layers: int) -> list[bool]:
    """Return which layers rotate queries and keys: those listed as 1."""
    listed = config.listed("no_rope_layers", int, "integers")
    if not listed:
        step = config.integer("no_rope_layer_interval", default=4)
        return [(i + 1) % step != 0 for i in range(layers)]
    if len(listed) != layers:
        raise config.refuse(
            "no_rope_layers",
            f"as many entries as there are layers, {layers}",
            len(listed),
            "correct one of them",
        )
    return [bool(entry) for entry in listed]


def smollm3(config: Config) -> Parts:
    """Read SmolLM3, every fourth layer of which does not rotate."""
    family = FAMILIES["smollm3"]._replace(window=4096, kinds=qwen_kinds)
    layers = config.integer("num_hidden_layers")
    kinds = layer_kinds(config, family, layers)
    mlp = dense_mlp(config, family)
    reach = config.integer("sliding_window", default=0, least=0)
    blocks = []
    for kind, rotary in zip(kinds, no_rope(config, layers), strict=True):
        window = reach if kind == "local" else 0
        attention = ordinary_attention(config, family, window)
        attention = replace(attention, rotary=rotary)
        blocks.append(bare_block(config, family, attention, mlp))
    return one_tower(config, family, blocks)


def llama4(config: Config) -> Parts:
    """Read the text model of Llama 4.

    Layers that rotate see a chunk of the sequence, and normalise queries and
    keys without weights.
    """
    family = BIASED._replace(
        longest=131072, head_size=128, kv_default=8, window=8192
    )
    layers = config.integer("num_hidden_layers")
    rotated = no_rope(config, layers)
    stated = config.per_layer("layer_types", layers, _CHUNKS)
    kinds = stated or ["local" if rotary else "global" for rotary in rotated]
    chunk = config.integer("attention_chunk_size", default=8192)
    width = config.integer("intermediate_size")
    experts = replace(routed_mlp(config, LOCAL_EXPERTS), shared_hidden=width)
    dense = Mlp(
        hidden=config.integer("intermediate_size_mlp", default=16384),
        gated=True,
    )
    normed = config.flag("use_qk_norm", True)
    blocks = []
    places = llama4_places(config, layers)
    for kind, rotary, sparse in zip(kinds, rotated, places, strict=True):
        attention = ordinary_attention(config, family)
        has_norm = normed and rotary
        attention = replace(
            attention,
            window=chunk if kind == "local" else 0,
            rotary=rotary,
            query_key_norm=has_norm,
            norm_over="nothing" if has_norm else "head",
        )
        mlp = experts if sparse else dense
        blocks.append(bare_block(config, family, attention, mlp))
    return one_tower(config, family, blocks)


_CHUNKS = {"chunked_attention": "local", "full_attention": "global"}


def hunyuan_moe(config: Config) -> Parts:
    """Read Hunyuan's mixture: experts and an MLP that all tokens visit."""
    top = config.fields.get("moe_topk")
    if isinstance(top, list):
        if len(set(map(str, top))) != 1:
            raise config.refuse(
                "moe_topk",
                "one number for all layers",
                shown(top),
                "other models are not supported",
            )
        config = Config({**config.fields, "moe_topk": top[0]}, config.where)
    names = LOCAL_EXPERTS._replace(
        number=("num_experts",),
        visits=("moe_topk",),
        shared_width=("intermediate_size",),
    )
    family = BIASED._replace(query_key_norm=True, experts=names)
    return decoder(config, family)


def cohere2_moe(config: Config) -> Parts:
    """Read Cohere's mixture, the first layers of which may be dense."""
    rms = config.has("rms_norm_eps")
    family = FAMILIES["cohere2"]._replace(
        norm="rms" if rms else "unbiased",
        experts=LOCAL_EXPERTS._replace(
            shared=("num_shared_experts",), places=all_but_first
        ),
    )
    if config.has("prefix_dense_intermediate_size"):
        family = family._replace(mlp=("prefix_dense_intermediate_size",))
    return decoder(config, family)


def mimo(config: Config) -> Parts:
    """Read MiMo: values narrower than keys, sinks in layers with windows."""
    layers = config.integer("num_hidden_layers")
    words = {"full_attention": "global", "sliding_attention": "local"}
    kinds = config.per_layer("layer_types", layers, words) or [
        "global" if i == 0 or (i + 1) % 6 == 0 else "local"
        for i in range(layers)
    ]
    family = BIASED._replace(longest=131072, output_bias=False)
    heads = config.integer("num_attention_heads")
    kv_heads = config.kv_heads(heads, 4)
    reach = config.integer("sliding_window", default=129)
    experts = routed_mlp(config, GLM_EXPERTS._replace(shared=()))
    dense = dense_mlp(config, family)
    places = one_dense(config, layers)
    blocks = []
    for kind, sparse in zip(kinds, places, strict=True):
        local = kind == "local"
        attention = ordinary_attention(config, family)
        attention = replace(
            attention,
            kv_heads=2 * kv_heads if local else kv_heads,
            value_size=config.integer("v_head_dim", default=128),
            window=reach if local else 0,
            sinks=local,
        )
        mlp = experts if sparse else dense
        blocks.append(bare_block(config, family, attention, mlp))
    return one_tower(config, family, blocks)


def latent_attention(config: Config) -> Attention:
    """Return multi-head latent attention, with an indexer if it has one."""
    heads = config.integer("num_attention_heads")
    rotary_size = config.integer("qk_rope_head_dim")
    biases = config.flag("attention_bias", False)
    attention = Attention(
        heads=heads,
        kv_heads=heads,
        head_size=config.integer("qk_nope_head_dim") + rotary_size,
        value_size=config.integer("v_head_dim"),
        rotary=True,
        biases=biases,
        output_bias=biases,
        query_rank=config.integer("q_lora_rank", default=0),
        key_value_rank=config.integer("kv_lora_rank"),
        rotary_size=rotary_size,
    )
    if not config.has("index_n_heads"):
        return attention
    return replace(
        attention,
        window=config.integer("index_topk"),
        index_heads=config.integer("index_n_heads"),
        index_size=config.integer("index_head_dim"),
    )


def latent_decoder(config: Config) -> Parts:
    """Read a dense decoder with latent attention."""
    attention = latent_attention(config)
    mlp = dense_mlp(config, LLAMA)
    block = bare_block(config, LLAMA, attention, mlp)
    tied = config.flag("tie_word_embeddings", True)
    head = Head(outputs=config.integer("vocab_size"), tied=tied)
    layers = config.integer("num_hidden_layers")
    return one_tower(config, LLAMA, [block] * layers, head=head)


def deepseek_v2(config: Config) -> Parts:
    """Read DeepSeek-V2, whose MLPs may have biases."""
    return deepseek(config, ("mlp_bias", False))


def deepseek(
    config: Config, biases: Switch = False, norms_of_sparse: int | None = None
) -> Parts:
    """Read DeepSeek: latent attention, the first layers dense."""
    frequency = config.integer("moe_layer_freq", default=1)
    if frequency != 1:
        raise config.refuse(
            "moe_layer_freq",
            "1",
            frequency,
            "other patterns are not supported",
        )
    attention = latent_attention(config)
    names = GLM_EXPERTS._replace(visits_default=6, shared_biases=biases)
    experts = routed_mlp(config, names)
    dense = dense_mlp(config, DEEPSEEK._replace(mlp_biases=biases))
    layers = config.integer("num_hidden_layers")
    # Layers may take over what the indexer of one before them has picked.
    words = {"full": "full", "shared": "shared"}
    indexed = config.per_layer("indexer_types", layers, words)
    family = DEEPSEEK
    places = all_but_first(config, layers)
    blocks = []
    for number, sparse in enumerate(places):
        own = attention
        if indexed is not None and indexed[number] == "shared":
            own = replace(attention, index_heads=0, index_size=0)
        mlp = experts if sparse else dense
        norms = norms_of_sparse if sparse else None
        blocks.append(bare_block(config, family, own, mlp, norms=norms))
    return one_tower(config, family, blocks)


#: Families that are more than a record.
READERS: dict[str, Callable[[Config], Parts]] = {
    "axk1": partial(deepseek, norms_of_sparse=3),
    "cohere2_moe": cohere2_moe,
    "dbrx": dbrx,
    "deepseek_v2": deepseek_v2,
    "deepseek_v3": deepseek,
    "deepseek_v32": deepseek,
    "falcon": falcon,
    "glm4_moe_lite": deepseek,
    "glm_moe_dsa": deepseek,
    "hyperclovax": hyperclovax,
    "kimi_k2": deepseek,
    "gpt_bigcode": gpt_bigcode,
    "gpt_neo": gpt_neo,
    "hunyuan_v1_moe": hunyuan_moe,
    "internlm3": internlm3,
    "llama4_text": llama4,
    "mimo_v2_flash": mimo,
    "minicpm3": latent_decoder,
    "openai-gpt": openai_gpt,
    "opt": opt,
    "smollm3": smollm3,
    "stablelm": stablelm,
    "youtu": latent_decoder,
}
