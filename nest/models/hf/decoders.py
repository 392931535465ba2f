"""Decoders of Hugging Face: what their fields are called and default to."""

from __future__ import annotations

from itertools import groupby
from typing import Literal, NamedTuple

from nest.models.blocks import Attention, Block, Head, Mlp, Run, Tower
from nest.models.hf.config import Config, Parts, shown


class Family(NamedTuple):
    """A family of decoders: what its fields are called and default to.

    Attributes
    ----------
    layers, hidden, heads, length, mlp
        Names of fields, ``mlp`` of the MLP's width; ``None`` if there is no
        such field. ``longest`` is the default of ``length``.
    mlp_stated
        Whether the width must be stated; ``4 · hidden`` otherwise.
    llama
        Whether it has RMSNorm and gated MLPs, and may state the width of a
        head, key and value heads and biases of the MLP; else it has LayerNorm
        and MLPs of two matrices.
    head_size, kv_heads
        Defaults; ``None``: ``hidden / heads``, and as many as heads.
    biases
        Which attention has: of the input only, or of input and output
        (``both``); ``stated``: both, if ``attention_bias`` says so.
    window
        Default of the window, which ``null`` takes away; ``None`` if the
        family has none.
    experts
        Field of the number of experts; ``None`` if the MLP is dense.
    more_positions
        Rows of the table of learned positions beyond the longest sequence;
        ``None`` without a table.
    rotary, query_key_norm, norms, embedding_norm
        As in :mod:`nest.models.blocks`.
    dropout
        Name and default of the dropout rate.
    tied
        Default of whether the output layer is the token table.
    """

    layers: tuple[str, ...] = ("num_hidden_layers",)
    hidden: tuple[str, ...] = ("hidden_size",)
    heads: tuple[str, ...] = ("num_attention_heads",)
    length: tuple[str, ...] = ("max_position_embeddings",)
    longest: int = 2048
    mlp: str | None = "intermediate_size"
    mlp_stated: bool = True
    llama: bool = True
    head_size: int | None = None
    kv_heads: int | None = None
    biases: Literal["none", "input", "both", "stated"] = "none"
    window: int | None = None
    experts: str | None = None
    more_positions: int | None = None
    rotary: bool = True
    query_key_norm: bool = False
    norms: int = 2
    embedding_norm: bool = False
    dropout: tuple[str, float] = ("hidden_dropout", 0.0)
    tied: bool = False


#: What GPT-like families share.
GPT = Family(mlp=None, mlp_stated=False, llama=False, biases="both", tied=True)

FAMILIES = {
    "bloom": GPT._replace(
        layers=("n_layer", "num_hidden_layers"),
        hidden=("hidden_size", "n_embed"),
        heads=("n_head", "num_attention_heads"),
        length=("seq_length",),
        rotary=False,
        embedding_norm=True,
    ),
    "gemma": Family(longest=8192, head_size=256, tied=True),
    "gpt2": GPT._replace(
        layers=("n_layer", "num_hidden_layers"),
        hidden=("n_embd", "hidden_size"),
        heads=("n_head",),
        mlp="n_inner",
        length=("n_positions", "n_ctx"),
        longest=1024,
        more_positions=0,
        rotary=False,
        dropout=("resid_pdrop", 0.1),
    ),
    "gpt_neox": GPT._replace(
        mlp="intermediate_size", mlp_stated=True, tied=False
    ),
    "llama": Family(biases="stated"),
    "mistral": Family(longest=131072, kv_heads=8, window=4096),
    "mixtral": Family(
        longest=131072, kv_heads=8, window=0, experts="num_local_experts"
    ),
    "qwen2": Family(longest=32768, biases="input"),
    "qwen3": Family(
        longest=32768, head_size=128, biases="stated", query_key_norm=True
    ),
}

GEMMA2 = Family(longest=8192, head_size=256, kv_heads=4, norms=4, tied=True)
QWEN3_MOE = Family(
    longest=32768, kv_heads=4, biases="stated", query_key_norm=True
)
DEEPSEEK = Family(longest=4096)


def decoder(config: Config, family: Family) -> Parts:
    """Read a decoder of equal blocks."""
    window = family.window
    if window is not None and "sliding_window" in config.fields:
        window = config.integer("sliding_window", default=0)
    if family.experts is None:
        mlp = _dense(config, family)
    else:
        mlp = _experts(config, family.experts, "intermediate_size")
    block = _block(config, family, "decoder", mlp, window=window or 0)
    layers = config.integer(*family.layers)
    return _one_tower(config, family, [(block, layers)])


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
    family = GPT._replace(
        mlp="ffn_dim",
        mlp_stated=True,
        more_positions=2,
        rotary=False,
        biases="both" if config.flag("enable_bias", True) else "none",
        dropout=("dropout", 0.1),
    )
    return decoder(config, family)


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
    family = GPT._replace(
        layers=("num_hidden_layers", "n_layer"),
        hidden=("hidden_size", "n_embed"),
        heads=names,
        kv_heads=kv_heads,
        mlp="ffn_hidden_size",
        rotary=not config.flag("alibi", False),
        biases="both" if config.flag("bias", False) else "none",
        norms=config.integer(
            "num_ln_in_parallel_attn",
            default=2 if grouped or not parallel else 1,
        ),
    )
    return decoder(config, family)


def gemma2(config: Config) -> Parts:
    """Read Gemma 2: local and global blocks in turn, of four norms."""
    mlp = Mlp(hidden=config.integer("intermediate_size"), gated=True)
    reach = config.integer("sliding_window", default=4096)
    local, wide = (
        _block(config, GEMMA2, name, mlp, window=window)
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
            else _block(config, QWEN3_MOE, "dense", _dense(config, QWEN3_MOE)),
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
    config: Config, family: Family, name: str, mlp: Mlp, *, window: int = 0
) -> Block:
    """Return one block of a family."""
    heads = config.integer(*family.heads)
    stated = family.llama and config.fields.get("head_dim") is not None
    if stated or family.head_size is not None:
        head_size = config.integer("head_dim", default=family.head_size)
    else:
        head_size = config.head_size(family.hidden, family.heads)
    kv_heads = family.kv_heads or heads
    if family.llama:
        kv_heads = config.kv_heads(heads, kv_heads)
    biases = family.biases == "both" or (
        family.biases == "stated" and config.flag("attention_bias", False)
    )
    return Block(
        name=name,
        hidden=config.integer(*family.hidden),
        attention=Attention(
            heads=heads,
            kv_heads=kv_heads,
            head_size=head_size,
            window=window,
            rotary=family.rotary,
            biases=biases or family.biases == "input",
            output_bias=biases,
            query_key_norm=family.query_key_norm,
        ),
        mlp=mlp,
        norms=family.norms,
        layer_norm=not family.llama,
        dropout=not family.llama and config.drops(*family.dropout),
    )


def _dense(config: Config, family: Family) -> Mlp:
    width = 4 * config.integer(*family.hidden)
    if family.mlp is not None:
        default = None if family.mlp_stated else width
        width = config.integer(family.mlp, default=default)
    biases = family.biases == "both"
    if family.llama:
        biases = config.flag("mlp_bias", False)
    return Mlp(hidden=width, gated=family.llama, biases=biases)


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
    family: Family,
    runs: list[tuple[Block, int]],
    repeat: int = 1,
) -> Parts:
    """Return a model of those blocks."""
    vocabulary = config.integer("vocab_size")
    length = config.integer(*family.length, default=family.longest)
    more = family.more_positions
    tower = Tower(
        runs=tuple(Run(block=block, count=count) for block, count in runs),
        repeat=repeat,
        vocabulary=vocabulary,
        learned_positions=0 if more is None else length + more,
        embedding_norm=family.embedding_norm,
    )
    tied = config.flag("tie_word_embeddings", family.tied)
    return Parts((tower,), Head(outputs=vocabulary, tied=tied), length)
