"""State-space models, linear attention, and hybrids of Hugging Face."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from nest.models.blocks import (
    NO_ATTENTION,
    NO_MLP,
    Attention,
    Block,
    Head,
    Linear,
    Mixer,
    Mlp,
)
from nest.models.hf.config import Config, Parts
from nest.models.hf.decoders import (
    BIASED,
    GLM_EXPERTS,
    LLAMA,
    LOCAL_EXPERTS,
    MISTRAL,
    OLMO2,
    QWEN_EXPERTS,
    SHARED_EXPERT,
    latent_attention,
    one_dense,
)
from nest.models.hf.family import (
    LAYER_TYPES,
    Family,
    bare_block,
    decoder,
    dense_mlp,
    every_nth,
    one_tower,
    ordinary_attention,
    routed_mlp,
)

#: Tokens of a chunk in which linear attention with a delta rule is trained
#: (Yang et al. 2024, arXiv 2406.06484, §3).
DELTA_CHUNK = 64


def selective_scan(config: Config) -> Mixer:
    """Return a mixer of Mamba (Gu and Dao 2023, arXiv 2312.00752, §3).

    Every channel has a state of its own, which elementwise operations
    advance; reading it is a product with the state.
    """
    hidden = config.integer("hidden_size")
    jamba = config.has("mamba_d_state")
    if jamba:
        inner = hidden * config.integer("mamba_expand", default=2)
        state = config.integer("mamba_d_state")
        kernel = config.integer("mamba_d_conv", default=4)
        biases = config.flag("mamba_proj_bias", False)
        convolved = config.flag("mamba_conv_bias", True)
        name = "mamba_dt_rank"
    else:
        usual = hidden * config.integer("expand", default=2)
        inner = config.integer("intermediate_size", default=usual)
        state = config.integer("state_size", default=16)
        kernel = config.integer("conv_kernel", default=4)
        biases = config.flag("use_bias", False)
        convolved = config.flag("use_conv_bias", True)
        name = "time_step_rank"
    rank = -(-hidden // 16)
    if config.fields.get(name) != "auto":
        rank = config.integer(name, default=rank)
    return Mixer(
        kind="mamba",
        heads=inner,
        linears=(
            Linear(name="in", inputs=hidden, outputs=2 * inner, bias=biases),
            Linear(
                name="scan inputs",
                inputs=inner,
                outputs=rank + 2 * state,
                cut="inputs",
            ),
            Linear(name="time steps", inputs=rank, outputs=inner, bias=True),
            Linear(
                name="out",
                inputs=inner,
                outputs=hidden,
                bias=biases,
                cut="inputs",
            ),
        ),
        channels=inner,
        kernel=kernel,
        convolution_bias=convolved,
        inner=inner,
        vectors=inner * (state + 1),
        # Jamba normalises what the scan reads.
        common=rank + 2 * state if jamba else 0,
        core_flops=2 * inner * state,
        core_values=4 * inner + 2 * state,
    )


def duality(  # noqa: PLR0913
    *,
    hidden: int,
    heads: int,
    head_size: int,
    groups: int,
    state: int,
    kernel: int,
    chunk: int,
    biases: bool,
    convolution_bias: bool,
    output_bias: bool,
    norm: bool,
) -> Mixer:
    """Return a mixer of Mamba-2 (Dao and Gu 2024, arXiv 2405.21060, §6).

    In chunks of ``Q`` tokens, per token: ``2QGN`` FLOPs for the scores of
    the groups, ``2Qd`` to apply them, ``2Nd`` each to make a state and to
    read it, for ``d`` channels of all heads.
    """
    inner = heads * head_size
    shared = 2 * groups * state
    return Mixer(
        kind="mamba2",
        heads=heads,
        linears=(
            Linear(
                name="in",
                inputs=hidden,
                outputs=2 * inner + heads,
                bias=biases,
                units=heads,
            ),
            Linear(
                name="scan inputs",
                inputs=hidden,
                outputs=shared,
                bias=biases,
                units=groups,
            ),
            Linear(
                name="out",
                inputs=inner,
                outputs=hidden,
                bias=output_bias,
                cut="inputs",
            ),
        ),
        channels=inner + shared,
        kernel=kernel,
        convolution_bias=convolution_bias,
        inner=inner,
        vectors=3 * heads + (inner if norm else 0),
        core_flops=2 * chunk * (groups * state + inner) + 4 * state * inner,
        core_values=3 * inner + shared + heads,
    )


def mamba2(config: Config) -> Mixer:
    """Read the mixer of Mamba-2 by the names of its own family."""
    biases = config.flag("use_bias", False)
    return duality(
        hidden=config.integer("hidden_size"),
        heads=config.integer("num_heads", "mamba_num_heads"),
        head_size=config.integer("head_dim", "mamba_head_dim"),
        groups=config.integer("n_groups", default=8),
        state=config.integer("state_size", "ssm_state_size", default=128),
        kernel=config.integer("conv_kernel", default=4),
        chunk=config.integer("chunk_size", default=256),
        biases=biases,
        convolution_bias=config.flag("use_conv_bias", True),
        output_bias=biases,
        norm=True,
    )


def nemotron_mixer(config: Config) -> Mixer:
    """Read the mixer of Nemotron-H, whose own ``head_dim`` is attention's."""
    fields = {**config.fields, "head_dim": None}
    return mamba2(Config(fields, config.where))


def bamba_mixer(config: Config) -> Mixer:
    """Read the mixer of Mamba-2 by the names that Bamba gives it."""
    hidden = config.integer("hidden_size")
    heads = config.integer("mamba_n_heads", default=128)
    inner = hidden * config.integer("mamba_expand", default=2)
    parallel = config.fields.get("model_type") == "falcon_h1"
    if parallel:
        inner = config.integer("mamba_d_ssm", default=inner)
    config.divisor("mamba_n_heads", heads, f"{inner} channels", inner)
    biases = config.flag("mamba_proj_bias", False)
    return duality(
        hidden=hidden,
        heads=heads,
        head_size=inner // heads,
        groups=config.integer("mamba_n_groups", default=1),
        state=config.integer("mamba_d_state", default=256),
        kernel=config.integer("mamba_d_conv", default=4),
        chunk=config.integer("mamba_chunk_size", default=256),
        biases=biases,
        convolution_bias=config.flag("mamba_conv_bias", True),
        output_bias=config.flag("projectors_bias", False)
        if parallel
        else biases,
        norm=config.flag("mamba_rms_norm", False) if parallel else True,
    )


def delta_rule(config: Config) -> Mixer:
    """Return a gated delta net (Yang et al. 2024, arXiv 2412.06464, §3).

    In chunks of ``Q`` tokens, per token and head: two products of keys and
    queries with keys, ``4Q d_k``, the solved system times keys and values,
    ``2Q(d_k + d_v)``, scores times values, ``2Q d_v``, and three products
    with the state, ``6 d_k d_v``.
    """
    hidden = config.integer("hidden_size")
    key_heads = config.integer("linear_num_key_heads")
    heads = config.integer("linear_num_value_heads")
    key_size = config.integer("linear_key_head_dim")
    value_size = config.integer("linear_value_head_dim")
    config.divisor(
        "linear_num_key_heads", key_heads, f"the {heads} value heads", heads
    )
    keys, inner = key_heads * key_size, heads * value_size
    return Mixer(
        kind="delta",
        heads=heads,
        linears=(
            Linear(
                name="query key",
                inputs=hidden,
                outputs=2 * keys,
                units=key_heads,
            ),
            Linear(
                name="value gate",
                inputs=hidden,
                outputs=2 * inner + 2 * heads,
                units=heads,
            ),
            Linear(name="out", inputs=inner, outputs=hidden, cut="inputs"),
        ),
        channels=2 * keys + inner,
        kernel=config.integer("linear_conv_kernel_dim", default=4),
        inner=inner,
        vectors=2 * heads,
        common=value_size,
        core_flops=heads * _delta_flops(key_size, value_size),
        core_values=2 * keys + 3 * inner + 2 * heads,
    )


def _delta_flops(key_size: int, value_size: int) -> int:
    """Return the FLOPs per token and head of a delta rule in chunks."""
    inside = DELTA_CHUNK * (6 * key_size + 4 * value_size)
    return inside + 6 * key_size * value_size


def lightning(config: Config) -> Mixer:
    """Return lightning attention (Qin et al. 2024, arXiv 2401.04658, §3).

    In blocks of ``Q`` tokens, per token and head: ``4Qd`` as attention
    inside the block, ``4d²`` with the state of all blocks before it.
    """
    hidden = config.integer("hidden_size")
    heads = config.integer("num_attention_heads")
    size = config.head_size()
    if config.has("head_dim"):
        size = config.integer("head_dim")
    inner = heads * size
    block = config.integer("block_size", default=256)
    return Mixer(
        kind="lightning",
        heads=heads,
        linears=(
            Linear(name="qkv", inputs=hidden, outputs=3 * inner, units=heads),
            Linear(name="gate", inputs=hidden, outputs=inner, units=heads),
            Linear(name="out", inputs=inner, outputs=hidden, cut="inputs"),
        ),
        inner=inner,
        vectors=inner,
        core_flops=4 * inner * (block + size),
        core_values=4 * inner,
    )


def short_convolution(config: Config) -> Mixer:
    """Return the gated short convolution of LFM2."""
    hidden = config.integer("hidden_size")
    biases = config.flag("conv_bias", False)
    return Mixer(
        kind="convolution",
        heads=hidden,
        linears=(
            Linear(name="in", inputs=hidden, outputs=3 * hidden, bias=biases),
            Linear(
                name="out",
                inputs=hidden,
                outputs=hidden,
                bias=biases,
                cut="inputs",
            ),
        ),
        channels=hidden,
        kernel=config.integer("conv_L_cache", default=3),
        convolution_bias=biases,
        inner=hidden,
    )


def gated_recurrence(config: Config) -> Mixer:
    """Return the RG-LRU of Griffin (De et al. 2024, arXiv 2402.19427, §2.4).

    Its gates are matrices of one block per head.
    """
    hidden = config.integer("hidden_size")
    heads = config.integer("num_attention_heads")
    width = config.integer("lru_width", default=hidden)
    config.divisor("num_attention_heads", heads, f"lru_width = {width}", width)
    return Mixer(
        kind="recurrence",
        heads=heads,
        linears=(
            Linear(
                name="in",
                inputs=hidden,
                outputs=2 * width,
                bias=True,
                units=heads,
            ),
            Linear(
                name="gates",
                inputs=width,
                outputs=2 * width,
                bias=True,
                units=heads,
                blocks=heads,
            ),
            Linear(
                name="out",
                inputs=width,
                outputs=hidden,
                bias=True,
                cut="inputs",
            ),
        ),
        channels=width,
        kernel=config.integer("conv1d_width", default=4),
        convolution_bias=True,
        inner=width,
        vectors=width,
        core_values=4 * width,
    )


def kimi_delta(config: Config, *, whole: bool = False) -> Mixer:
    """Return Kimi's delta attention: a decay per channel.

    Decay and gate have low rank, or are ``whole`` matrices.
    """
    hidden = config.integer("hidden_size")
    heads = config.integer("linear_num_heads")
    size = config.integer("linear_head_dim")
    inner = heads * size
    low = Linear(name="low", inputs=hidden, outputs=size, cut="nothing")
    high = Linear(name="high", inputs=size, outputs=inner, units=heads)
    gates: tuple[Linear, ...] = (
        replace(low, name="decay down"),
        replace(high, name="decay up"),
        replace(low, name="gate down"),
        replace(high, name="gate up"),
    )
    if whole:
        gates = (
            replace(high, name="gates", inputs=hidden, outputs=2 * inner),
        )
    return Mixer(
        kind="delta",
        heads=heads,
        linears=(
            Linear(
                name="qkv",
                inputs=hidden,
                outputs=3 * inner + heads,
                units=heads,
            ),
            *gates,
            Linear(name="out", inputs=inner, outputs=hidden, cut="inputs"),
        ),
        channels=3 * inner,
        kernel=config.integer("linear_conv_kernel_dim", default=4),
        inner=inner,
        vectors=inner + heads,
        common=size,
        core_flops=heads * _delta_flops(size, size),
        core_values=6 * inner,
    )


def mixers_alone(
    config: Config, mixer: Callable[[Config], Mixer], tied: bool
) -> Parts:
    """Read a model whose blocks are a norm and a mixer each."""
    family = Family(longest=2048, tied=tied)
    block = bare_block(
        config, family, NO_ATTENTION, NO_MLP, mixer(config), norms=1
    )
    layers = config.integer("num_hidden_layers")
    return one_tower(config, family, [block] * layers)


def periodic(
    period: str, offset: str, first: tuple[int, int]
) -> Callable[[Config, int], list[bool]]:
    """Return what says of every layer whether it is the one of its period."""

    def places(config: Config, layers: int) -> list[bool]:
        every = config.integer(period, default=first[0])
        at = config.integer(offset, default=first[1], least=0)
        return [i % every == at for i in range(layers)]

    return places


def _jamba_kinds(config: Config, layers: int) -> list[str]:
    places = periodic("attn_layer_period", "attn_layer_offset", (8, 4))
    return ["global" if here else "mixer" for here in places(config, layers)]


def _bamba_kinds(config: Config, layers: int) -> list[str]:
    listed = config.listed("attn_layer_indices", int, "integers") or []
    return ["global" if i in listed else "mixer" for i in range(layers)]


def _lfm2_kinds(config: Config, layers: int) -> list[str]:
    listed = config.listed("full_attn_idxs", int, "integers")
    if listed is None:
        return ["global"] * layers
    return ["global" if i in listed else "mixer" for i in range(layers)]


def _griffin_kinds(config: Config, layers: int) -> list[str]:
    words = config.listed("block_types", str, "strings") or [
        "recurrent",
        "recurrent",
        "attention",
    ]
    kinds = {"recurrent": "mixer", "attention": "local"}
    for word in words:
        if word not in kinds:
            raise config.refuse(
                "block_types", f"entries among {', '.join(kinds)}", word
            )
    return [kinds[words[i % len(words)]] for i in range(layers)]


QWEN3_NEXT = BIASED._replace(
    longest=32768,
    head_size=256,
    query_key_norm=True,
    gate="of queries",
    mixer=delta_rule,
    kinds=lambda config, layers: every_nth(
        layers,
        config.integer("full_attention_interval", default=4),
        "global",
        "mixer",
    ),
)
BAMBA = LLAMA._replace(
    longest=262144, kv_default=8, mixer=bamba_mixer, kinds=_bamba_kinds
)
LFM2 = Family(
    longest=128000,
    kv_default=8,
    query_key_norm=True,
    mixer=short_convolution,
    kinds=_lfm2_kinds,
    tied=True,
)

FAMILIES = {
    "bamba": BAMBA,
    "falcon_h1": BAMBA._replace(
        longest=8192, kinds=lambda _config, layers: ["hybrid"] * layers
    ),
    "jamba": MISTRAL._replace(
        window=None,
        longest=262144,
        rotary=False,
        mixer=selective_scan,
        kinds=_jamba_kinds,
        experts=LOCAL_EXPERTS._replace(
            places=periodic(
                "expert_layer_period", "expert_layer_offset", (2, 1)
            )
        ),
    ),
    "lfm2_moe": LFM2._replace(experts=GLM_EXPERTS._replace(shared=())),
    "minimax": MISTRAL._replace(
        window=None,
        mixer=lightning,
        kinds=lambda _config, layers: every_nth(layers, 2, "mixer", "global"),
        experts=LOCAL_EXPERTS,
    ),
    "olmo_hybrid": OLMO2._replace(
        longest=65536,
        mixer=delta_rule,
        kinds=lambda _config, layers: every_nth(layers, 4, "global", "mixer"),
    ),
    "qwen3_5_moe_text": QWEN3_NEXT._replace(
        experts=SHARED_EXPERT._replace(places=None)
    ),
    "qwen3_5_text": QWEN3_NEXT,
    "qwen3_next": QWEN3_NEXT._replace(
        experts=SHARED_EXPERT._replace(places=QWEN_EXPERTS.places)
    ),
    "recurrent_gemma": BIASED._replace(
        longest=8192,
        output_bias=True,
        mlp_biases=True,
        window=2048,
        mixer=gated_recurrence,
        kinds=_griffin_kinds,
        tied=True,
    ),
}


def granite_hybrid(config: Config) -> Parts:
    """Read Granite 4: Mamba-2 and attention, experts or not."""
    family = BIASED._replace(
        rotary=config.fields.get("position_embedding_type") == "rope",
        mixer=bamba_mixer,
        kinds=lambda _config, layers: ["mixer"] * layers,
    )
    if config.integer("num_local_experts", default=0, least=0):
        names = LOCAL_EXPERTS._replace(
            shared_width=("shared_intermediate_size",), shared_default=1024
        )
        return decoder(config, family._replace(experts=names))
    return decoder(config, family._replace(mlp=("shared_intermediate_size",)))


def jamba(config: Config) -> Parts:
    """Read Jamba; with one expert all MLPs are dense."""
    family = FAMILIES["jamba"]
    if config.integer("num_experts", default=16) == 1:
        family = family._replace(experts=None)
    return decoder(config, family)


def lfm2(config: Config) -> Parts:
    """Read LFM2, whose MLP is narrower than its configuration says."""
    width = config.integer("block_ff_dim", "intermediate_size")
    if config.flag("block_auto_adjust_ff_dim", True):
        width = 2 * width // 3
        factor = config.fields.get("block_ffn_dim_multiplier", 1.0)
        if factor is not None:
            number = float(factor) if type(factor) is int else factor
            scale = config.typed(
                "block_ffn_dim_multiplier", number, float, "a number"
            )
            multiple = config.integer("block_multiple_of", default=256)
            width = multiple * -(-int(scale * width) // multiple)
    family = LFM2._replace(mlp=("intermediate_size",))
    fields = {
        **config.fields,
        "intermediate_size": width,
        "tie_word_embeddings": config.fields.get(
            "tie_embedding", config.fields.get("tie_word_embeddings")
        ),
    }
    return decoder(Config(fields, config.where), family)


def recurrent_gemma(config: Config) -> Parts:
    """Read RecurrentGemma, whose MLP is half as wide as it says."""
    fields = dict(config.fields)
    fields["intermediate_size"] = config.integer("intermediate_size") // 2
    fields["sliding_window"] = config.integer(
        "attention_window_size", default=2048
    )
    return decoder(Config(fields, config.where), FAMILIES["recurrent_gemma"])


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
    """Read Nemotron-H, each block of which is one thing behind one norm."""
    pattern = config.fields.get("hybrid_override_pattern")
    name = "hybrid_override_pattern"
    if isinstance(pattern, str):
        words = list(pattern)
    else:
        name = "layers_block_type"
        if not config.has(name):
            name = "layer_types"
        words = config.listed(name, str, "strings") or []
    for word in words:
        if word not in _NEMOTRON:
            raise config.refuse(
                name, f"entries among {', '.join(_NEMOTRON)}", word
            )
    if not words:
        raise config.refuse(
            "layers_block_type", "a list of layers", "no such field", "add it"
        )
    family = LLAMA._replace(
        longest=4096, gated=False, biases=False, head_size=128, kv_default=8
    )
    family = family._replace(norms=1)

    def block(kind: str) -> Block:
        attention, mlp, mixer = NO_ATTENTION, NO_MLP, None
        if kind == "attention":
            attention = ordinary_attention(config, family)
        elif kind == "mixer":
            mixer = nemotron_mixer(config)
        elif kind == "mlp":
            mlp = dense_mlp(config, family)
        else:
            names = GLM_EXPERTS._replace(
                gated=False,
                shared=(),
                shared_width=("moe_shared_expert_intermediate_size",),
                shared_biases=("mlp_bias", False),
            )
            mlp = replace(
                routed_mlp(config, names),
                latent=config.integer("moe_latent_size", default=0),
            )
        return bare_block(config, family, attention, mlp, mixer)

    made = {kind: block(kind) for kind in {_NEMOTRON[word] for word in words}}
    blocks = [made[_NEMOTRON[word]] for word in words]
    return one_tower(config, family, blocks, head=_own_head(config))


def _own_head(config: Config) -> Head:
    """Return an output layer that is never the token table."""
    return Head(outputs=config.integer("vocab_size"))


def bailing_hybrid(config: Config) -> Parts:
    """Read Ling's hybrid: Kimi's mixers, and a gate per head between."""
    return kimi_linear(config, whole=True)


def kimi_linear(config: Config, *, whole: bool = False) -> Parts:
    """Read Kimi Linear: delta attention, and latent attention between.

    Its own configuration has an object for the former, with the numbers of
    the layers that have the latter, from 1 on.
    """
    if config.has("linear_attn_config"):
        inside = config.part("linear_attn_config")
        listed = inside.listed("full_attn_layers", int, "integers") or []
        fields = {
            **config.fields,
            "linear_attn_config": None,
            "linear_num_heads": inside.integer("num_heads"),
            "linear_head_dim": inside.integer("head_dim"),
            "linear_conv_kernel_dim": inside.integer(
                "short_conv_kernel_size", default=4
            ),
            "layer_types": [
                "full_attention" if i + 1 in listed else "linear_attention"
                for i in range(config.integer("num_hidden_layers"))
            ],
        }
        return kimi_linear(Config(fields, config.where))
    layers = config.integer("num_hidden_layers")
    kinds = config.per_layer("layer_types", layers, LAYER_TYPES) or every_nth(
        layers,
        config.integer("layer_group_size", default=4),
        "global",
        "mixer",
    )
    names = GLM_EXPERTS._replace(
        visits=("num_experts_per_token", "num_experts_per_tok"),
        shared=("num_shared_experts",),
    )
    family = LLAMA._replace(
        mlp_biases=False, length=("model_max_length",), longest=1048576
    )
    experts, dense = routed_mlp(config, names), dense_mlp(config, family)
    latent, mixer = latent_attention(config), kimi_delta(config, whole=whole)
    if whole:
        latent = replace(latent, gate=latent.heads)
    places = one_dense(config, layers)
    blocks = []
    for kind, sparse in zip(kinds, places, strict=True):
        mixed = kind == "mixer"
        blocks.append(
            bare_block(
                config,
                family,
                NO_ATTENTION if mixed else latent,
                experts if sparse else dense,
                mixer if mixed else None,
            )
        )
    return one_tower(config, family, blocks, head=_own_head(config))


#: Words of Zamba2's ``layers_block_type``.
_ZAMBA = {"linear_attention": "mixer", "mamba": "mixer", "hybrid": "hybrid"}


def zamba2(config: Config) -> Parts:
    """Read Zamba2: Mamba-2, and blocks that several layers share between.

    A hybrid layer is a shared block on the stream beside the embeddings,
    twice as wide; what the layer has of its own, a linear layer behind it
    and an adapter of its MLP; and Mamba-2. They are three blocks here.

    Raises
    ------
    InvalidProblemError
        If attention has adapters too, linear layers have biases, or nothing
        is tied.
    """
    for name in ("use_shared_attention_adapter", "add_bias_linear"):
        config.must_be(
            name, False, default=False, why="such models are not supported"
        )
    config.must_be(
        "tie_word_embeddings",
        True,
        default=True,
        why="transformers then shares no blocks either",
    )
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
    inner = hidden * config.integer("mamba_expand", default=2)
    mamba_heads = config.integer("n_mamba_heads", default=8)
    config.divisor("n_mamba_heads", mamba_heads, f"{inner} channels", inner)
    mixer = duality(
        hidden=hidden,
        heads=mamba_heads,
        head_size=inner // mamba_heads,
        groups=config.integer("mamba_ngroups", default=1),
        state=config.integer("mamba_d_state", default=64),
        kernel=config.integer("mamba_d_conv", default=4),
        chunk=config.integer("chunk_size", default=256),
        biases=False,
        convolution_bias=True,
        output_bias=False,
        norm=True,
    )
    family = Family(longest=4096, tied=True)
    width = config.integer("intermediate_size", default=4 * hidden)
    attention = Attention(
        heads=heads,
        kv_heads=config.kv_heads(heads, heads),
        head_size=2 * hidden // heads,
        inputs=2 * hidden,
        rotary=config.flag("use_mem_rope", False),
    )
    mlp = Mlp(hidden=width, gated=True)
    # Its first norm is as wide as both inputs.
    shared = replace(bare_block(config, family, attention, mlp), vectors=1)
    rank = config.integer("adapter_rank", default=128)
    adapter = Mixer(
        kind="adapter",
        heads=width,
        linears=(
            Linear(name="down", inputs=hidden, outputs=rank, cut="nothing"),
            Linear(name="up", inputs=rank, outputs=2 * width),
            Linear(name="out", inputs=hidden, outputs=hidden, cut="inputs"),
        ),
        inner=hidden,
    )
    own = bare_block(config, family, NO_ATTENTION, NO_MLP, adapter, norms=0)
    mamba = bare_block(config, family, NO_ATTENTION, NO_MLP, mixer, norms=1)
    several = config.integer("num_mem_blocks", default=1)
    blocks: list[Block] = []
    for kind in kinds:
        if kind == "hybrid":
            number = sum(block.shared > 0 for block in blocks) % several
            blocks += [replace(shared, shared=number + 1), own]
        blocks.append(mamba)
    return one_tower(config, family, blocks)


#: Families by ``model_type``.
READERS: dict[str, Callable[[Config], Parts]] = {
    "bailing_hybrid": bailing_hybrid,
    **{
        name: partial(decoder, family=family)
        for name, family in FAMILIES.items()
    },
    "falcon_mamba": partial(mixers_alone, mixer=selective_scan, tied=True),
    "granitemoehybrid": granite_hybrid,
    "jamba": jamba,
    "kimi_linear": kimi_linear,
    "lfm2": lfm2,
    "mamba": partial(mixers_alone, mixer=selective_scan, tied=True),
    "mamba2": partial(mixers_alone, mixer=mamba2, tied=False),
    "nemotron_h": nemotron_h,
    "recurrent_gemma": recurrent_gemma,
    "zamba2": zamba2,
}
