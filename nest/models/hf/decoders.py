"""Decoders of Hugging Face: what their fields are called and default to."""

from __future__ import annotations

from itertools import groupby
from typing import Literal, NamedTuple

from nest.models.blocks import Attention, Block, Head, Mlp, Run, Tower
from nest.models.hf.config import Config, Parts, shown


class Gpt(NamedTuple):
    """A family of decoders with LayerNorm and an MLP of two matrices.

    Attributes
    ----------
    layers, hidden, heads, length
        Names of fields; ``longest`` is the default of the last.
    kv_heads
        Key and value heads; ``None``: as many as heads.
    mlp, mlp_stated
        Field of the MLP's width, ``None`` if there is none; it is
        ``4 · hidden`` unless it must be stated.
    more_positions
        Rows of the table of learned positions beyond the longest sequence;
        ``None`` without a table.
    rotary, biases, norms, embedding_norm
        As in :mod:`nest.models.blocks`.
    dropout
        Name and default of the dropout rate.
    tied
        Default of whether the output layer is the token table.
    """

    layers: tuple[str, ...] = ("num_hidden_layers",)
    hidden: tuple[str, ...] = ("hidden_size",)
    heads: tuple[str, ...] = ("num_attention_heads",)
    kv_heads: int | None = None
    mlp: str | None = None
    mlp_stated: bool = False
    length: tuple[str, ...] = ("max_position_embeddings",)
    longest: int = 2048
    more_positions: int | None = None
    rotary: bool = False
    biases: bool = True
    norms: int = 2
    embedding_norm: bool = False
    dropout: tuple[str, float] = ("hidden_dropout", 0.0)
    tied: bool = True


class Llama(NamedTuple):
    """A family of decoders with RMSNorm, rotary embedding and gated MLPs.

    Attributes
    ----------
    length
        Default of the longest sequence.
    head_size, kv_heads
        Defaults; ``None``: ``hidden / heads``, and as many as heads.
    biases
        Whether query, key and value have biases; ``stated``: these and the
        output projection, if ``attention_bias`` says so.
    query_key_norm
        Whether query and key heads are normalised.
    window
        Default of the window, which ``null`` takes away; ``None`` if the
        family has none.
    experts
        Field of the number of experts; ``None`` if the MLP is dense.
    tied
        Default of whether the output layer is the token table.
    """

    length: int
    head_size: int | None = None
    kv_heads: int | None = None
    biases: Literal["none", "input", "stated"] = "none"
    query_key_norm: bool = False
    window: int | None = None
    experts: str | None = None
    tied: bool = False


GPT_FAMILIES = {
    "bloom": Gpt(
        layers=("n_layer", "num_hidden_layers"),
        hidden=("hidden_size", "n_embed"),
        heads=("n_head", "num_attention_heads"),
        length=("seq_length",),
        embedding_norm=True,
    ),
    "gpt2": Gpt(
        layers=("n_layer", "num_hidden_layers"),
        hidden=("n_embd", "hidden_size"),
        heads=("n_head",),
        mlp="n_inner",
        length=("n_positions", "n_ctx"),
        longest=1024,
        more_positions=0,
        dropout=("resid_pdrop", 0.1),
    ),
    "gpt_neox": Gpt(
        mlp="intermediate_size", mlp_stated=True, rotary=True, tied=False
    ),
}

LLAMA_FAMILIES = {
    "gemma": Llama(length=8192, head_size=256, tied=True),
    "llama": Llama(length=2048, biases="stated"),
    "mistral": Llama(length=131072, kv_heads=8, window=4096),
    "mixtral": Llama(
        length=131072, kv_heads=8, window=0, experts="num_local_experts"
    ),
    "qwen2": Llama(length=32768, biases="input"),
    "qwen3": Llama(
        length=32768, head_size=128, biases="stated", query_key_norm=True
    ),
}

GEMMA2 = Llama(length=8192, head_size=256, kv_heads=4, tied=True)
QWEN3_MOE = Llama(
    length=32768, kv_heads=4, biases="stated", query_key_norm=True
)
DEEPSEEK = Llama(length=4096)


def gpt(config: Config, family: Gpt) -> Parts:
    """Read a decoder of equal blocks of a GPT family."""
    head_size = config.head_size(family.hidden, family.heads)
    hidden = config.integer(*family.hidden)
    heads = config.integer(*family.heads)
    mlp_hidden = 4 * hidden
    if family.mlp is not None:
        default = None if family.mlp_stated else mlp_hidden
        mlp_hidden = config.integer(family.mlp, default=default)
    block = Block(
        name="decoder",
        hidden=hidden,
        attention=Attention(
            heads=heads,
            kv_heads=family.kv_heads or heads,
            head_size=head_size,
            rotary=family.rotary,
            biases=family.biases,
            output_bias=family.biases,
        ),
        mlp=Mlp(hidden=mlp_hidden, biases=family.biases),
        norms=family.norms,
        layer_norm=True,
        dropout=config.drops(*family.dropout),
    )
    vocabulary = config.integer("vocab_size")
    length = config.integer(*family.length, default=family.longest)
    more = family.more_positions
    tower = Tower(
        runs=(Run(block=block, count=config.integer(*family.layers)),),
        vocabulary=vocabulary,
        learned_positions=0 if more is None else length + more,
        embedding_norm=family.embedding_norm,
    )
    tied = config.flag("tie_word_embeddings", family.tied)
    return Parts((tower,), Head(outputs=vocabulary, tied=tied), length)


def opt(config: Config) -> Parts:
    """Read OPT, whose table of positions has two rows more than tokens."""
    hidden = config.integer("hidden_size")
    inputs = config.integer("word_embed_proj_dim", default=hidden)
    if inputs != hidden:
        raise config.refuse(
            "word_embed_proj_dim",
            f"hidden_size = {hidden}",
            inputs,
            "models that project their embedding are not supported",
        )
    family = Gpt(
        mlp="ffn_dim",
        mlp_stated=True,
        more_positions=2,
        biases=config.flag("enable_bias", True),
        dropout=("dropout", 0.1),
    )
    return gpt(config, family)


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
    family = Gpt(
        layers=("num_hidden_layers", "n_layer"),
        hidden=("hidden_size", "n_embed"),
        heads=names,
        kv_heads=kv_heads,
        mlp="ffn_hidden_size",
        rotary=not config.flag("alibi", False),
        biases=config.flag("bias", False),
        norms=config.integer(
            "num_ln_in_parallel_attn",
            default=2 if grouped or not parallel else 1,
        ),
    )
    return gpt(config, family)


def llama(config: Config, family: Llama) -> Parts:
    """Read a decoder of equal blocks of a Llama family."""
    window = family.window
    if window is not None and "sliding_window" in config.fields:
        window = config.integer("sliding_window", default=0)
    if family.experts is None:
        mlp = _dense(config)
    else:
        mlp = _experts(config, family.experts, "intermediate_size")
    block = _block(config, family, "decoder", mlp, window=window or 0)
    return _one_tower(config, family, [(block, _layers(config))])


def gemma2(config: Config) -> Parts:
    """Read Gemma 2: local and global blocks in turn, of four norms."""
    mlp = Mlp(hidden=config.integer("intermediate_size"), gated=True)
    reach = config.integer("sliding_window", default=4096)
    local, wide = (
        _block(config, GEMMA2, name, mlp, window=window, norms=4)
        for name, window in (("local", reach), ("global", 0))
    )
    pairs, odd = divmod(_layers(config), 2)
    if odd:
        turns = [(local, 1), (wide, 1)] * pairs + [(local, 1)]
        return _one_tower(config, GEMMA2, turns)
    return _one_tower(config, GEMMA2, [(local, 1), (wide, 1)], pairs)


def qwen3_moe(config: Config) -> Parts:
    """Read Qwen3 with experts in all layers or some."""
    sparse = _experts(config, "num_experts", "moe_intermediate_size")
    step = config.integer("decoder_sparse_step", default=1)
    listed = config.fields.get("mlp_only_layers") or []
    if not isinstance(listed, list) or any(type(i) is not int for i in listed):
        raise config.refuse(
            "mlp_only_layers",
            "a list of integers",
            shown(listed),
            "correct its type",
        )
    kinds = [
        i not in listed and (i + 1) % step == 0 for i in range(_layers(config))
    ]
    name = "decoder" if all(kinds) else "sparse"
    runs = [
        (
            _block(config, QWEN3_MOE, name, sparse)
            if is_sparse
            else _block(config, QWEN3_MOE, "dense", _dense(config)),
            len(list(same)),
        )
        for is_sparse, same in groupby(kinds)
    ]
    return _one_tower(config, QWEN3_MOE, runs)


def deepseek(config: Config) -> Parts:
    """Read DeepSeek: latent attention, the first layers dense."""
    frequency = config.integer("moe_layer_freq", default=1)
    if frequency != 1:
        raise config.refuse(
            "moe_layer_freq",
            "1",
            frequency,
            "other patterns are not supported",
        )
    experts = _experts(
        config,
        "n_routed_experts",
        "moe_intermediate_size",
        shared=config.integer("n_shared_experts", default=0, least=0),
    )
    layers = _layers(config)
    dense = config.integer("first_k_dense_replace", default=0, least=0)
    if dense > layers:
        raise config.refuse(
            "first_k_dense_replace",
            f"an integer from 0 to the {layers} layers",
            dense,
        )
    heads = config.integer("num_attention_heads")
    rotary_size = config.integer("qk_rope_head_dim")
    attention = Attention(
        heads=heads,
        kv_heads=heads,
        head_size=config.integer("qk_nope_head_dim") + rotary_size,
        value_size=config.integer("v_head_dim"),
        rotary=True,
        query_rank=config.integer("q_lora_rank", default=0),
        key_value_rank=config.integer("kv_lora_rank"),
        rotary_size=rotary_size,
    )
    dense_mlp = Mlp(hidden=config.integer("intermediate_size"), gated=True)
    hidden = config.integer("hidden_size")
    runs = [
        (
            Block(name=name, hidden=hidden, attention=attention, mlp=mlp),
            count,
        )
        for name, mlp, count in (
            ("dense", dense_mlp, dense),
            ("sparse", experts, layers - dense),
        )
        if count
    ]
    return _one_tower(config, DEEPSEEK, runs)


def _layers(config: Config) -> int:
    return config.integer("num_hidden_layers")


def _block(
    config: Config,
    family: Llama,
    name: str,
    mlp: Mlp,
    *,
    window: int = 0,
    norms: int = 2,
) -> Block:
    """Return one block of a Llama family."""
    heads = config.integer("num_attention_heads")
    if config.fields.get("head_dim") is None and family.head_size is None:
        head_size = config.head_size()
    else:
        head_size = config.integer("head_dim", default=family.head_size)
    stated = family.biases == "stated" and config.flag("attention_bias", False)
    return Block(
        name=name,
        hidden=config.integer("hidden_size"),
        attention=Attention(
            heads=heads,
            kv_heads=config.kv_heads(heads, family.kv_heads or heads),
            head_size=head_size,
            window=window,
            rotary=True,
            biases=stated or family.biases == "input",
            output_bias=stated,
            query_key_norm=family.query_key_norm,
        ),
        mlp=mlp,
        norms=norms,
    )


def _dense(config: Config) -> Mlp:
    return Mlp(
        hidden=config.integer("intermediate_size"),
        gated=True,
        biases=config.flag("mlp_bias", False),
    )


def _experts(config: Config, count: str, hidden: str, shared: int = 0) -> Mlp:
    """Return routed experts; a token visits at most all of them."""
    experts = config.integer(count)
    visits = config.integer("num_experts_per_tok")
    if visits > experts:
        raise config.refuse(
            "num_experts_per_tok",
            f"at most the {experts} experts",
            visits,
            "correct one of them",
        )
    width = config.integer(hidden)
    return Mlp(
        hidden=width,
        gated=True,
        experts=experts,
        experts_per_token=visits,
        shared_hidden=shared * width,
    )


def _one_tower(
    config: Config,
    family: Llama,
    runs: list[tuple[Block, int]],
    repeat: int = 1,
) -> Parts:
    """Return a model without learned positions of those blocks."""
    vocabulary = config.integer("vocab_size")
    tower = Tower(
        runs=tuple(Run(block=block, count=count) for block, count in runs),
        repeat=repeat,
        vocabulary=vocabulary,
    )
    return Parts(
        (tower,),
        Head(
            outputs=vocabulary,
            tied=config.flag("tie_word_embeddings", family.tied),
        ),
        config.integer("max_position_embeddings", default=family.length),
    )
