"""Encoder-decoders of Hugging Face."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from msgspec.structs import replace

from nest.models.blocks import (
    Attention,
    Block,
    Convolution,
    Head,
    Mlp,
    RepeatedBlock,
    Tower,
)
from nest.models.hf.config import Config, Parts
from nest.models.hf.family import compressed, equal_heads, named, repeated

#: Tokens of the targets of an encoder-decoder, as a share of its input: T5
#: trains on 114 (padded: 128) of 512.
TARGET_SHARE = 4

#: Input of a T5 whose configuration does not state a length.
T5_SEQUENCE = 512


def t5(config: Config, *, in_all: bool = False) -> Parts:
    """Read an encoder-decoder whose decoder layers all read the encoder.

    Relative positions have a bias per head, of a table in either tower, or
    ``in_all`` layers.
    """
    heads, head_size = config.integer("num_heads"), config.integer("d_kv")
    form = config.typed(
        "feed_forward_proj",
        config.fields.get("feed_forward_proj", "relu"),
        str,
        "a string",
    )
    dense = Mlp(hidden=config.integer("d_ff"), gated=form.startswith("gated"))
    drops = config.drops("dropout_rate", default=0.1)
    layers = config.integer("num_layers")
    decoder_layers = config.integer("num_decoder_layers", default=layers)
    buckets = config.integer("relative_attention_num_buckets", default=32)
    attention = equal_heads(heads, head_size, biases=False, causal=False)

    def tower(name: str, count: int, step: int) -> Tower:
        block = _half_block(
            name,
            hidden=config.integer("d_model"),
            attention=attention,
            mlp=dense,
            dropout=drops,
        )
        blocks = [block] * count
        if step:
            sparse = replace(block, mlp=_switched(config, dense))
            blocks = [
                sparse if step == 1 or i % step == 1 else block for i in range(count)
            ]
        runs, repeat = compressed(named(blocks) if step else blocks)
        return Tower(
            name=name,
            runs=runs,
            repeat=repeat,
            vocabulary=vocabulary,
            relative_buckets=buckets * (count if in_all else 1),
        )

    vocabulary = config.integer("vocab_size")
    length = config.integer("n_positions", default=T5_SEQUENCE)
    steps = (0, 0)
    if config.has("encoder_sparse_step") or config.has("decoder_sparse_step"):
        steps = (
            config.integer("encoder_sparse_step", default=0, minimum=0),
            config.integer("decoder_sparse_step", default=0, minimum=0),
        )
    towers = (
        tower("encoder", layers, steps[0]),
        replace(
            tower("decoder", decoder_layers, steps[1]),
            sequence_length=max(length // TARGET_SHARE, 1),
            reads="encoder",
            shares_embedding="encoder",
        ),
    )
    tied = config.flag("tie_word_embeddings", True)
    return Parts(towers, Head(outputs=vocabulary, tied=tied), length)


def _switched(config: Config, dense: Mlp) -> Mlp:
    """Return the experts of a Switch Transformer, one per token."""
    return replace(
        dense,
        experts=config.integer("num_experts", default=8),
        experts_per_token=1,
        router_bias=config.flag("router_bias", False),
    )


class Pair(NamedTuple):
    """A family of encoder-decoders like BART.

    ``more_positions`` are rows of the tables of positions beyond the longest sequence,
    ``None`` without tables; norms are as in :class:`nest.models.blocks.Tower`.
    """

    more_positions: int | None = 0
    embedding_norm: bool = False
    final_norm: bool = False


PAIRS = {
    "bart": Pair(2, embedding_norm=True),
    "blenderbot": Pair(final_norm=True),
    "blenderbot-small": Pair(embedding_norm=True),
    "m2m_100": Pair(None, final_norm=True),
    "marian": Pair(),
    "mbart": Pair(2, embedding_norm=True, final_norm=True),
    "pegasus": Pair(final_norm=True),
    "plbart": Pair(2, embedding_norm=True),
}


def pair(config: Config, family: Pair) -> Parts:
    """Read an encoder-decoder with LayerNorm and biases."""
    length = config.integer("max_position_embeddings", default=1024)
    vocabulary = config.integer("vocab_size")
    more = family.more_positions
    remedy = "tables of their own are not supported"
    config.must_be("share_encoder_decoder_embeddings", True, remedy)

    tied = config.flag("tie_word_embeddings", True)
    head = Head(outputs=vocabulary, tied=tied)
    first = Tower(
        name="encoder",
        runs=_half(config, "encoder"),
        vocabulary=vocabulary,
        learned_positions=0 if more is None else length + more,
        embedding_norm=family.embedding_norm,
        final_norm=family.final_norm,
    )
    if _is_decoder_alone(config):
        alone = replace(first, name="", runs=_decoder_alone(config))
        return Parts((alone,), head, length)
    second = replace(
        first,
        name="decoder",
        runs=_half(config, "decoder"),
        reads="encoder",
        shares_embedding="encoder",
    )
    return Parts((first, second), head, length)


def whisper(config: Config) -> Parts:
    """Read Whisper, which begins with two convolutions, one of stride 2."""
    hidden = config.integer("d_model")
    inputs = config.integer("max_source_positions", default=1500)
    outputs = config.integer("max_target_positions", default=448)
    vocabulary = config.integer("vocab_size")
    first = Tower(
        name="encoder",
        runs=_half(config, "encoder", unbiased_keys=True),
        convolutions=(
            Convolution(
                inputs=config.integer("num_mel_bins", default=80),
                outputs=hidden,
                kernel=3,
                positions=2,
            ),
            Convolution(inputs=hidden, outputs=hidden, kernel=3),
        ),
        learned_positions=inputs,
        sequence_length=inputs,
    )
    second = Tower(
        name="decoder",
        runs=_half(config, "decoder", unbiased_keys=True),
        vocabulary=vocabulary,
        learned_positions=outputs,
        sequence_length=outputs,
        reads="encoder",
    )
    tied = config.flag("tie_word_embeddings", True)
    head = Head(outputs=vocabulary, tied=tied)
    if _is_decoder_alone(config):
        runs = _decoder_alone(config, unbiased_keys=True)
        alone = replace(second, name="", runs=runs, reads=None, sequence_length=None)
        return Parts((alone,), head, outputs)
    return Parts((first, second), head, max(inputs, outputs))


def _is_decoder_alone(config: Config) -> bool:
    """Whether the class of the model is that of the decoder alone."""
    names = config.listed("architectures", str, "strings") or []
    return any(name.endswith("ForCausalLM") for name in names)


def _decoder_alone(
    config: Config, *, unbiased_keys: bool = False
) -> tuple[RepeatedBlock, ...]:
    """Read the blocks of a decoder without its encoder.

    They hold the weights of the cross-attention, with its norm, for nothing: so many
    vectors as wide as the stream.
    """
    (run,) = _half(config, "decoder", unbiased_keys=unbiased_keys)
    idle = 4 * run.block.hidden + (3 if unbiased_keys else 4) + 2
    block = replace(run.block, cross_attention=None, norms=2, vectors=idle)
    return (replace(run, block=block),)


def _half_block(name: str, *, attention: Attention, **fields: Any) -> Block:
    """Return a block of an encoder, or of a decoder that reads one."""
    if name == "encoder":
        return Block(name=name, attention=attention, **fields)
    return Block(
        name=name,
        attention=replace(attention, causal=True),
        cross_attention=replace(attention, cross=True),
        norms=3,
        **fields,
    )


def _half(
    config: Config, name: str, *, unbiased_keys: bool = False
) -> tuple[RepeatedBlock, ...]:
    """Read the equal blocks of an encoder or of a decoder."""
    hidden = config.integer("d_model")
    heads = config.integer(f"{name}_attention_heads")
    config.divisor(f"{name}_attention_heads", heads, f"d_model = {hidden}", hidden)
    block = _half_block(
        name,
        hidden=hidden,
        attention=equal_heads(
            heads, hidden // heads, causal=False, unbiased_keys=unbiased_keys
        ),
        mlp=Mlp(hidden=config.integer(f"{name}_ffn_dim"), biases=True),
        layer_norm=True,
        dropout=config.drops("dropout", 0.1),
    )
    return repeated(block, config.integer(f"{name}_layers"))


#: Families by ``model_type``.
READERS: dict[str, Callable[[Config], Parts]] = {
    **{name: partial(pair, family=family) for name, family in PAIRS.items()},
    "mt5": t5,
    "switch_transformers": t5,
    "t5": t5,
    "umt5": partial(t5, in_all=True),
    "whisper": whisper,
}
