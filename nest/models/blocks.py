"""Shapes of the parts of a transformer: attention, MLP, block, tower, head.

An :class:`Architecture` is one or more towers of blocks, an embedding in front of each,
and one head. Decoder-only models have one tower; an encoder-decoder has two, the second
of which reads the first; a two-tower model has two that only the head reads. Widths and
counts are whole numbers, sequence lengths are tokens per sample.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Literal

import msgspec

from nest.ir.base import Struct


class Attention(Struct, frozen=True, kw_only=True):
    """Shape of one attention."""

    #: Query heads, ``0`` where a block has no attention; key and value heads (fewer
    #: under grouped-query attention); width of a query or key head.
    heads: int
    kv_heads: int
    head_size: int
    #: Width of a value head; ``0`` means ``head_size``.
    value_size: int = 0
    #: Width of the input of queries, keys and values; ``0``: as the residual stream.
    inputs: int = 0
    #: Whether a token sees only those before it.
    causal: bool = True
    #: Tokens that one token sees at most; ``0`` means all.
    window: int = 0
    #: Whether queries and keys are rotated by position (no weights).
    rotary: bool = False
    #: Whether projections of queries, keys and values, and the output's, have biases.
    biases: bool = False
    output_bias: bool = False
    #: Whether every query and key head is normalized.
    query_key_norm: bool = False
    #: Whether these norms have a vector of weights for a head, for all heads, or none;
    #: and vectors of each (two: a LayerNorm with bias).
    norm_over: Literal["head", "heads", "nothing"] = "head"
    norm_vectors: int = 1
    #: Whether keys have no bias where queries and values have.
    unbiased_keys: bool = False
    #: Columns of a projection of the input whose sigmoid multiplies the output, ``0``
    #: without; whether it has a bias.
    gate: int = 0
    gate_bias: bool = False
    #: Whether every head has a learned score that attends to nothing.
    sinks: bool = False
    #: Whether the output is normalized before its projection.
    output_norm: bool = False
    #: Further learned numbers, of which every rank has a copy.
    common: int = 0
    #: Projections that make keys and values: one for each, one for both, or none where
    #: they are those of an earlier layer.
    key_value_parts: Literal[0, 1, 2] = 2
    #: Heads, and their width, of the indexer that picks the tokens of ``window``
    #: (DeepSeek-V3.2), ``0`` without; whether tokens scale its heads.
    index_heads: int = 0
    index_size: int = 0
    index_scales: bool = True
    #: Multi-head latent attention (DeepSeek-AI 2024, arXiv 2405.04434): ranks of the
    #: compressed query (``0``: not compressed) and of the compressed keys and values
    #: (``0``: ordinary attention), and the width of the rotated part of a head, whose
    #: key all heads share; ``head_size`` includes it.
    query_rank: int = 0
    key_value_rank: int = 0
    rotary_size: int = 0
    #: Whether keys and values come from the tower that this one reads.
    cross: bool = False


#: What a block without attention has in its place.
NO_ATTENTION = Attention(heads=0, kv_heads=0, head_size=0)


class Linear(Struct, frozen=True, kw_only=True):
    """One linear layer of a mixer."""

    #: For people.
    name: str
    #: Its widths.
    inputs: int
    outputs: int
    #: Whether it has one.
    bias: bool = False
    #: Which width tensor parallelism cuts.
    cut: Literal["inputs", "outputs", "nothing"] = "outputs"
    #: What it is cut into at most (heads, groups); ranks beyond them hold copies. ``0``
    #: means as many as there are ranks.
    units: int = 0
    #: Positions that an output sees, all of which ``inputs`` counts.
    taps: int = 1
    #: Square blocks on the diagonal that alone are not zero; ``1``: dense.
    blocks: int = 1


class Mixer(Struct, frozen=True, kw_only=True):
    """Shape of what mixes tokens by a state of fixed size.

    State-space models, linear attention and short convolutions: linear layers, a causal
    convolution of each channel, and a recurrence, which training computes in chunks.
    """

    #: Such as ``mamba2``, for names.
    kind: str
    #: What tensor and context parallelism divide.
    heads: int
    #: Its linear layers; the last one makes the output.
    linears: tuple[Linear, ...]
    #: Channels that are convolved, with how many tokens, and whether with a bias.
    channels: int = 0
    kernel: int = 0
    convolution_bias: bool = False
    #: Width of the output before its projection.
    inner: int
    #: Weights outside linear layers and convolution, those that tensor parallelism cuts
    #: and those that all ranks hold.
    vectors: int = 0
    common: int = 0
    #: Forward FLOPs per token of the matrix products of the recurrence.
    core_flops: int = 0
    #: Values per token that the recurrence reads and writes.
    core_values: int = 0
    #: Whether every linear layer has a batch norm and an activation function behind it,
    #: and nothing else mixes (convolutions of images).
    normed: bool = False


class Mlp(Struct, frozen=True, kw_only=True):
    """Shape of one MLP, or of the experts in its place."""

    #: Inner width of the MLP, or of one expert; ``0`` where a block has none.
    hidden: int
    #: Whether it has a gate (SwiGLU: three matrices instead of two).
    gated: bool = False
    #: Whether its linear layers (not the router) have biases.
    biases: bool = False
    #: Routed experts and how many of them a token visits; ``0`` is dense.
    experts: int = 0
    experts_per_token: int = 0
    #: Further experts that return their input. The router has a row for each, and
    #: transformers a gate and an inner matrix, which nothing uses.
    zero_experts: int = 0
    #: Groups of routed experts, and of how many of them the experts of a token are.
    groups: int = 1
    token_groups: int = 1
    #: Inner width of the shared experts together, which all tokens visit.
    shared_hidden: int = 0
    #: Whether the shared experts have biases, where others have none.
    shared_biases: bool = False
    #: Whether the router has a bias per expert that counts as a weight.
    router_bias: bool = False
    #: Whether a learned score multiplies what the shared experts return.
    shared_gate: bool = False
    #: Whether the inner values are normalized.
    inner_norm: bool = False
    #: Learned numbers of the activation function.
    activation_weights: int = 0
    #: Width of routed experts between two projections; ``0``: as the residual stream.
    latent: int = 0


#: What a block without an MLP has in its place.
NO_MLP = Mlp(hidden=0)


class Block(Struct, frozen=True, kw_only=True):
    """Shape of one transformer layer."""

    #: Kind of the graph nodes made of it, such as ``decoder``.
    name: str
    #: Width of the residual stream.
    hidden: int
    #: Its parts: attention, mixer, cross-attention and MLP follow in this order.
    attention: Attention
    mlp: Mlp
    mixer: Mixer | None = None
    cross_attention: Attention | None = None
    #: Norms of the residual stream (two; four where outputs are normalized too).
    norms: int = 2
    #: LayerNorm (two vectors) instead of RMSNorm (one).
    layer_norm: bool = False
    #: Vectors of weights of a norm, if others than these.
    norm_vectors: Literal[0, 1, 2] | None = None
    #: Which of the blocks it is that several layers share the weights of, from 1 on;
    #: ``0`` for a layer of its own. Graphs hold a copy in every layer.
    shared: int = 0
    #: Further vectors as wide as the residual stream, such as scales of the outputs.
    vectors: int = 0
    #: Residual streams side by side (hyper-connections, alternating updates).
    streams: int = 1
    #: Whether the outputs of attention and MLP are dropped out in training.
    dropout: bool = False


class RepeatedBlock(Struct, frozen=True, kw_only=True):
    """``count`` consecutive equal blocks."""

    block: Block
    count: int


def runs_of(blocks: Iterable[Block]) -> tuple[RepeatedBlock, ...]:
    """Return blocks as runs of equal ones."""
    return tuple(
        RepeatedBlock(block=block, count=len(list(equal)))
        for block, equal in groupby(blocks)
    )


class Convolution(Struct, frozen=True, kw_only=True):
    """Shape of a convolution in front of a tower.

    ``kernel`` are the positions that an output sees, ``positions`` those that it
    computes per token of the tower; where ``normed``, a batch norm is behind it.
    """

    inputs: int
    outputs: int
    kernel: int
    positions: int = 1
    bias: bool = True
    normed: bool = False


class Tower(Struct, frozen=True, kw_only=True):
    """A stack of blocks behind an embedding."""

    #: Prefix of its graph nodes; empty for the only tower of a model.
    name: str = ""
    #: Its blocks of one width, first to last, and how often they follow each other.
    runs: tuple[RepeatedBlock, ...]
    repeat: int = 1
    #: Rows of the token embedding; ``0`` if the input is not tokens.
    vocabulary: int = 0
    #: What the rows of a tensor rank are padded to a multiple of.
    row_multiple: int = 128
    #: Width of the token table, which a linear layer without bias widens to the
    #: residual stream (``0``: as wide); with ``narrow``, all tables and the norm are as
    #: narrow, and the layer has a bias (ELECTRA).
    embedding_size: int = 0
    narrow: bool = False
    #: Values of one image patch, which a linear layer embeds, and whether with a bias;
    #: ``0`` if the input is tokens.
    patch_values: int = 0
    patch_bias: bool = True
    #: Convolutions in front, first to last; empty if the input is tokens.
    convolutions: tuple[Convolution, ...] = ()
    #: Rows of the table of learned positions, ``0`` without.
    learned_positions: int = 0
    #: Rows of the table of token types (BERT), ``0`` without.
    token_types: int = 0
    #: Rows of the table that gives every head of a tower a bias per relative position
    #: (T5), ``0`` without.
    relative_buckets: int = 0
    #: Width of what every layer gets of a token besides the stream, ``0`` without, and
    #: rows of the table that has it for all layers (Gemma 3n); a projection of the
    #: embedding and a norm are added.
    layer_inputs: int = 0
    layer_vocabulary: int = 0
    #: Whether embeddings are normalized (BERT, BLOOM).
    embedding_norm: bool = False
    #: Whether the output is normalized.
    final_norm: bool = True
    #: Tokens per sample; ``None`` means the job's.
    sequence_length: int | None = None
    #: Name of the tower that its cross-attention reads, ``None`` without.
    reads: str | None = None
    #: Modules for multi-token prediction behind the blocks, one for every further
    #: token, see :class:`Module`.
    modules: int = 0
    #: Name of the tower whose output is its input, ``None`` without.
    follows: str | None = None
    #: Name of an earlier tower whose token embedding it shares (T5).
    shares_embedding: str | None = None

    @property
    def hidden(self) -> int:
        """Width of the residual stream."""
        return self.runs[0].block.hidden

    @property
    def last(self) -> Block:
        """The last block."""
        return self.runs[-1].block

    @property
    def layers(self) -> int:
        """Number of blocks; those of modules do not count."""
        return self.repeat * sum(run.count for run in self.runs)

    def blocks(self) -> Iterator[Block]:
        """Yield its blocks, first to last."""
        for _ in range(self.repeat):
            for run in self.runs:
                for _ in range(run.count):
                    yield run.block


class Module(Struct, frozen=True, kw_only=True):
    """A module for multi-token prediction (DeepSeek-AI 2024, §2.2).

    A linear layer joins the stream with the embeddings of later tokens, each
    behind a norm; a block like the last one of the tower and a norm in front
    of the output layer, which it shares with the model, come next
    (arXiv 2412.19437). With ``table`` it holds a copy of what embeds tokens; modules
    side by side share one.
    """

    block: Block
    table: bool = True


class Head(Struct, frozen=True, kw_only=True):
    """What turns the towers' outputs into a loss."""

    #: Vocabulary of a language model; classes of a classifier; width of the joint space
    #: of a two-tower model.
    outputs: int
    #: Whether it shares the token embedding of the last tower.
    tied: bool = False
    #: Whether the output layer has a bias, and whether there is another, as long, that
    #: nothing uses (BERT of transformers, not tied).
    bias: bool = False
    spare_bias: bool = False
    #: Whether a square linear layer, an activation function and a norm lead (BERT).
    transform: bool = False
    #: Width that this layer leads to, if another; the output layer is as wide.
    transform_size: int = 0
    #: Whether the layer has a bias, and the vectors of weights of the norm.
    transform_bias: bool = True
    transform_vectors: Literal[0, 1, 2] = 2
    #: Whether one vector per sample enters it (classifier, CLIP), not every token.
    pooled: bool = False
    #: As of :class:`Tower`.
    row_multiple: int = 128
    #: Tokens that are predicted from every token; the output layer runs once for each.
    predictions: int = 1
    #: Whether the loss has a learned temperature (CLIP).
    temperature: bool = False
    #: Vectors that enter it side by side, such as those of the class token and the mean
    #: of all others (DINOv2).
    vectors: int = 1


#: What plain transformers do not have; exports and profilers know no such.
_UNUSUAL: dict[type[Struct], tuple[str, ...]] = {
    Attention: (
        *("inputs", "norm_over", "norm_vectors", "unbiased_keys", "gate"),
        *("sinks", "output_norm", "common", "key_value_parts", "index_heads"),
    ),
    Mlp: (
        *("shared_biases", "router_bias", "shared_gate", "inner_norm"),
        *("activation_weights", "latent", "zero_experts"),
    ),
    Block: ("mixer", "norm_vectors", "shared", "vectors", "streams"),
    Tower: (
        *("embedding_size", "convolutions", "patch_bias", "follows", "modules"),
        "layer_inputs",
    ),
    Head: (
        *("predictions", "transform_size", "transform_bias"),
        *("transform_vectors", "vectors"),
    ),
}


def unusual(*shapes: Tower | Block | Head) -> str | None:
    """Return a field in which shapes differ from plain transformers.

    Or ``attention`` and ``mlp`` where a block has none; ``None`` if all are plain.
    """
    structs: list[Struct] = list(shapes)
    for shape in shapes:
        if isinstance(shape, Tower):
            structs += [run.block for run in shape.runs]
    for block in [struct for struct in structs if isinstance(struct, Block)]:
        if not block.attention.heads:
            return "attention"
        if not block.mlp.hidden:
            return "mlp"
        structs += [block.attention, block.mlp]
        if block.cross_attention is not None:
            structs.append(block.cross_attention)
    for struct in structs:
        usual = {
            field.name: field.default for field in msgspec.structs.fields(type(struct))
        }
        for name in _UNUSUAL[type(struct)]:
            if getattr(struct, name) != usual[name]:
                return name
    return None
