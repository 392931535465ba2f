"""Encoders of Hugging Face, with their masked language models."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

from msgspec.structs import replace

from nest.models.blocks import Block, Head, Mlp, RepeatedBlock, Tower
from nest.models.hf.config import Config, Parts, with_attention
from nest.models.hf.family import FAMILIES, compressed, decoder, equal_heads, named
from nest.models.hf.layouts import LAYER_TYPES


class Encoder(NamedTuple):
    """A family like BERT, with its masked language model."""

    #: Names of fields.
    layers: tuple[str, ...] = ("num_hidden_layers",)
    hidden: tuple[str, ...] = ("hidden_size",)
    heads: tuple[str, ...] = ("num_attention_heads",)
    mlp: tuple[str, ...] = ("intermediate_size",)
    #: Default of the rows of the table of token types, ``None`` without.
    token_types: int | None = 2
    #: Whether it has a table of positions; else it is rotary.
    positions: bool = True
    #: As in :class:`nest.models.blocks.Tower`.
    embedding_norm: bool = True
    final_norm: bool = False
    #: Whether MLPs have a gate and linear layers of blocks no biases.
    plain: bool = False
    #: Default of the rows of a table of relative positions, ``None`` without.
    buckets: int | None = None
    #: Whether an output layer that is not tied leaves a bias without use.
    spare_bias: bool = True
    #: Name and default of the dropout rate.
    dropout: tuple[str, float] = ("hidden_dropout_prob", 0.1)


ENCODERS = {
    "bert": Encoder(),
    "camembert": Encoder(),
    "distilbert": Encoder(
        layers=("n_layers", "num_hidden_layers"),
        hidden=("dim", "hidden_size"),
        heads=("n_heads", "num_attention_heads"),
        mlp=("hidden_dim",),
        token_types=None,
        spare_bias=False,
        dropout=("dropout", 0.1),
    ),
    "megatron-bert": Encoder(embedding_norm=False, final_norm=True),
    "mpnet": Encoder(token_types=None, buckets=32),
    "nomic_bert": Encoder(positions=False, plain=True),
    "roberta": Encoder(),
    "xlm-roberta": Encoder(),
    "xlm-roberta-xl": Encoder(token_types=1, embedding_norm=False, final_norm=True),
}


def encoder(config: Config, family: Encoder) -> Parts:
    """Read BERT, or a family like it, with its masked language model."""
    block = Block(
        name="encoder",
        hidden=config.integer(*family.hidden),
        attention=equal_heads(
            config.integer(*family.heads),
            config.head_size(family.hidden, family.heads),
            biases=not family.plain,
            causal=False,
            rotary=not family.positions,
        ),
        mlp=Mlp(
            hidden=config.integer(*family.mlp),
            gated=family.plain,
            biases=not family.plain,
        ),
        layer_norm=True,
        dropout=config.drops(*family.dropout),
    )
    vocabulary = config.integer("vocab_size")
    length = config.integer("max_position_embeddings", default=512)
    types = buckets = 0
    if family.token_types is not None:
        types = config.integer("type_vocab_size", default=family.token_types, minimum=0)
    if family.buckets is not None:
        name = "relative_attention_num_buckets"
        buckets = config.integer(name, default=family.buckets)
    tower = Tower(
        runs=(RepeatedBlock(block=block, count=config.integer(*family.layers)),),
        vocabulary=vocabulary,
        learned_positions=length if family.positions else 0,
        token_types=types,
        relative_buckets=buckets,
        embedding_norm=family.embedding_norm,
        final_norm=family.final_norm,
    )
    tied = config.flag("tie_word_embeddings", True)
    head = Head(
        outputs=vocabulary,
        tied=tied,
        bias=True,
        spare_bias=family.spare_bias and not tied,
        transform=True,
    )
    return Parts((tower,), head, length)


def ernie(config: Config) -> Parts:
    """Read ERNIE, which may have a table of tasks: more rows of types."""
    model = encoder(config, Encoder())
    if not config.flag("use_task_id", False):
        return model
    return _more_types(model, config.integer("task_type_vocab_size", default=3))


def electra(config: Config) -> Parts:
    """Read ELECTRA's generator, whose tables may be narrower than blocks."""
    model = encoder(config, Encoder(spare_bias=False))
    size = config.integer("embedding_size", default=128)
    if size == model.towers[0].hidden:
        return model
    model = model.with_tower(embedding_size=size, narrow=True)
    return model.with_head(transform_size=size)


def _more_types(model: Parts, rows: int) -> Parts:
    """Return an encoder with more rows in its table of token types."""
    return model.with_tower(token_types=model.towers[0].token_types + rows)


#: Why attention with projections of relative positions is refused.
_NO_PROJECTIONS = "projections of relative positions are not supported"


def deberta(config: Config) -> Parts:
    """Read DeBERTa, refused with relative positions; its keys have no bias."""
    config.must_be("relative_attention", False, _NO_PROJECTIONS)
    return _deberta(config).with_attention(unbiased_keys=True)


def deberta_v2(config: Config) -> Parts:
    """Read DeBERTa-v2 and v3, with a table of relative positions.

    Its rows, and the two vectors of the norm behind it, count as rows of the
    table of token types; what they add to the scores is left out. Refused are relative
    positions with projections of their own, and convolutions of tokens.
    """
    model = _deberta(config)
    kernel = config.integer("conv_kernel_size", default=0, minimum=0)
    if kernel:
        remedy = "convolutions of tokens are not supported"
        raise config.refuse("conv_kernel_size", "0", kernel, remedy)
    norms = config.typed(
        "norm_rel_ebd", config.fields.get("norm_rel_ebd") or "none", str, "a string"
    )
    rows = 2 if "layer_norm" in norms else 0
    if config.flag("relative_attention", False):
        if not config.flag("share_att_key", False):
            raise config.refuse("share_att_key", "true", "false", _NO_PROJECTIONS)
        rows += 2 * _reach(config)
    return _more_types(model, rows)


def _reach(config: Config) -> int:
    """Return how far DeBERTa tells positions apart, in buckets."""
    for name in ("position_buckets", "max_relative_positions"):
        reach = config.integer(name, default=-1, minimum=-1)
        if reach > 0:
            return reach
    return config.integer("max_position_embeddings", default=512)


def _deberta(config: Config) -> Parts:
    model = encoder(config, Encoder(token_types=0))
    hidden = model.towers[0].hidden
    size = config.integer("embedding_size", default=hidden)
    if size != hidden:
        raise config.refuse("embedding_size", f"hidden_size = {hidden}", size)
    if not config.flag("position_biased_input", True):
        model = model.with_tower(learned_positions=0)
    if not config.flag("legacy", True):
        # This head multiplies with the table whatever is tied.
        model = model.with_head(tied=True, spare_bias=False)
    return model


def modernbert(config: Config, *, causal: bool = False) -> Parts:
    """Read ModernBERT; its first layer has no norm before attention."""
    layers = config.integer("num_hidden_layers")
    hidden = config.integer("hidden_size")
    heads = config.integer("num_attention_heads")
    step = config.integer("global_attn_every_n_layers", default=3)
    kinds = config.per_layer("layer_types", layers, LAYER_TYPES) or [
        "local" if i % step else "global" for i in range(layers)
    ]
    # As many tokens on either side as half of it.
    reach = config.integer("local_attention", default=128)
    if causal:
        reach = config.integer("sliding_window", default=reach // 2)
    biased = config.flag("attention_bias", False)
    vectors: Literal[1, 2] = 2 if config.flag("norm_bias", False) else 1
    mlp = Mlp(
        hidden=config.integer("intermediate_size"),
        gated=True,
        biases=config.flag("mlp_bias", False),
    )
    block = Block(
        name="encoder",
        hidden=hidden,
        attention=equal_heads(
            heads, config.head_size(), biases=biased, causal=causal, rotary=True
        ),
        mlp=mlp,
        layer_norm=True,
        norm_vectors=vectors,
    )
    blocks = [
        with_attention(block, window=reach if kind == "local" else 0) for kind in kinds
    ]
    blocks[0] = replace(blocks[0], norms=1)
    runs, repeat = compressed(named(blocks))
    vocabulary = config.integer("vocab_size")
    tower = Tower(runs=runs, repeat=repeat, vocabulary=vocabulary, embedding_norm=True)
    head = Head(
        outputs=vocabulary,
        tied=config.flag("tie_word_embeddings", True),
        bias=config.flag("decoder_bias", True),
        transform=True,
        transform_bias=config.flag("classifier_bias", False),
        transform_vectors=vectors,
    )
    length = config.integer("max_position_embeddings", default=8192)
    return Parts((tower,), head, length)


def eurobert(config: Config) -> Parts:
    """Read EuroBERT: Llama whose tokens see all others."""
    model = decoder(
        config, replace(FAMILIES["llama"], longest=8192, head_bias=("mlp_bias", False))
    )
    model = model.with_attention(causal=False)
    (run,) = model.towers[0].runs
    block = replace(run.block, name="encoder")
    return model.with_tower(runs=(replace(run, block=block),))


#: Families by ``model_type``.
READERS: dict[str, Callable[[Config], Parts]] = {
    **{name: partial(encoder, family=family) for name, family in ENCODERS.items()},
    "deberta": deberta,
    "deberta-v2": deberta_v2,
    "electra": electra,
    "ernie": ernie,
    "eurobert": eurobert,
    "modernbert": modernbert,
    "modernbert-decoder": partial(modernbert, causal=True),
}
