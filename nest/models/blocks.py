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
    """Shape of one attention.

    Attributes
    ----------
    heads, kv_heads, head_size
        Query heads, ``0`` where a block has no attention; key and value heads
        (fewer under grouped-query attention); width of a query or key head.
    value_size
        Width of a value head; ``0`` means ``head_size``.
    inputs
        Width of what queries, keys and values are made of; ``0`` means that
        of the residual stream.
    causal
        Whether a token sees only those before it.
    window
        Tokens that one token sees at most; ``0`` means all.
    rotary
        Whether queries and keys are rotated by position (no weights).
    biases, output_bias
        Whether the query, key and value projections, and the output
        projection, have biases.
    query_key_norm
        Whether every query and key head is normalized.
    norm_over, norm_vectors
        Whether these norms have a vector of weights for a head, for all
        heads, or none; and vectors of each (two: a LayerNorm with bias).
    unbiased_keys
        Whether keys have no bias where queries and values have.
    gate, gate_bias
        Columns of a projection of the input whose sigmoid multiplies the
        output, ``0`` without; whether it has a bias.
    sinks
        Whether every head has a learned score that attends to nothing.
    output_norm
        Whether the output is normalized before its projection.
    common
        Further learned numbers, of which every rank has a copy.
    key_value_parts
        Projections that make keys and values: one for each, one for both, or none
        where they are those of an earlier layer.
    index_heads, index_size, index_scales
        Heads, and their width, of the indexer that picks the tokens of
        ``window`` (DeepSeek-V3.2), ``0`` without; whether tokens scale its heads.
    query_rank, key_value_rank, rotary_size
        Multi-head latent attention (DeepSeek-AI 2024, arXiv 2405.04434): ranks of the
        compressed query (``0``: not compressed) and of the compressed keys and values
        (``0``: ordinary attention), and the width of the rotated part of a head, whose
        key all heads share; ``head_size`` includes it.
    cross
        Whether keys and values come from the tower that this one reads.
    """

    heads: int
    kv_heads: int
    head_size: int
    value_size: int = 0
    inputs: int = 0
    causal: bool = True
    window: int = 0
    rotary: bool = False
    biases: bool = False
    output_bias: bool = False
    query_key_norm: bool = False
    norm_over: Literal["head", "heads", "nothing"] = "head"
    norm_vectors: int = 1
    unbiased_keys: bool = False
    gate: int = 0
    gate_bias: bool = False
    sinks: bool = False
    output_norm: bool = False
    common: int = 0
    key_value_parts: Literal[0, 1, 2] = 2
    index_heads: int = 0
    index_size: int = 0
    index_scales: bool = True
    query_rank: int = 0
    key_value_rank: int = 0
    rotary_size: int = 0
    cross: bool = False


#: What a block without attention has in its place.
NO_ATTENTION = Attention(heads=0, kv_heads=0, head_size=0)


class Linear(Struct, frozen=True, kw_only=True):
    """One linear layer of a mixer.

    Attributes
    ----------
    name
        For people.
    inputs, outputs
        Its widths.
    bias
        Whether it has one.
    cut
        Which width tensor parallelism cuts.
    units
        What it is cut into at most (heads, groups); ranks beyond them hold
        copies. ``0`` means as many as there are ranks.
    taps
        Positions that an output sees, all of which ``inputs`` counts.
    blocks
        Square blocks on the diagonal that alone are not zero; ``1``: dense.
    """

    name: str
    inputs: int
    outputs: int
    bias: bool = False
    cut: Literal["inputs", "outputs", "nothing"] = "outputs"
    units: int = 0
    taps: int = 1
    blocks: int = 1


class Mixer(Struct, frozen=True, kw_only=True):
    """Shape of what mixes tokens by a state of fixed size.

    State-space models, linear attention and short convolutions: linear layers, a causal
    convolution of each channel, and a recurrence, which training computes in chunks.

    Attributes
    ----------
    kind
        Such as ``mamba2``, for names.
    heads
        What tensor and context parallelism divide.
    linears
        Its linear layers; the last one makes the output.
    channels, kernel, convolution_bias
        Channels that are convolved, with how many tokens, and whether with a bias.
    inner
        Width of the output before its projection.
    vectors, common
        Weights outside linear layers and convolution, those that tensor
        parallelism cuts and those that all ranks hold.
    core_flops
        Forward FLOPs per token of the matrix products of the recurrence.
    core_values
        Values per token that the recurrence reads and writes.
    normed
        Whether every linear layer has a batch norm and an activation
        function behind it, and nothing else mixes (convolutions of images).
    """

    kind: str
    heads: int
    linears: tuple[Linear, ...]
    channels: int = 0
    kernel: int = 0
    convolution_bias: bool = False
    inner: int
    vectors: int = 0
    common: int = 0
    core_flops: int = 0
    core_values: int = 0
    normed: bool = False


class Mlp(Struct, frozen=True, kw_only=True):
    """Shape of one MLP, or of the experts in its place.

    Attributes
    ----------
    hidden
        Inner width of the MLP, or of one expert; ``0`` where a block has none.
    gated
        Whether it has a gate (SwiGLU: three matrices instead of two).
    biases
        Whether its linear layers (not the router) have biases.
    experts, experts_per_token
        Routed experts and how many of them a token visits; ``0`` is dense.
    zero_experts
        Further experts that return their input. The router has a row for each, and
        transformers a gate and an inner matrix, which nothing uses.
    groups, token_groups
        Groups that the routed experts are in, and of how many of them the
        experts of a token are.
    shared_hidden
        Inner width of the shared experts together, which all tokens visit.
    shared_biases
        Whether the shared experts have biases, where others have none.
    router_bias
        Whether the router has a bias per expert that counts as a weight.
    shared_gate
        Whether a learned score multiplies what the shared experts return.
    inner_norm
        Whether the inner values are normalized.
    activation_weights
        Learned numbers of the activation function.
    latent
        Width that routed experts work at, between two projections; ``0``
        means that of the residual stream.
    """

    hidden: int
    gated: bool = False
    biases: bool = False
    experts: int = 0
    experts_per_token: int = 0
    zero_experts: int = 0
    groups: int = 1
    token_groups: int = 1
    shared_hidden: int = 0
    shared_biases: bool = False
    router_bias: bool = False
    shared_gate: bool = False
    inner_norm: bool = False
    activation_weights: int = 0
    latent: int = 0


#: What a block without an MLP has in its place.
NO_MLP = Mlp(hidden=0)


class Block(Struct, frozen=True, kw_only=True):
    """Shape of one transformer layer.

    Attributes
    ----------
    name
        Kind of the graph nodes made of it, such as ``decoder``.
    hidden
        Width of the residual stream.
    attention, mixer, cross_attention, mlp
        Its parts, in this order.
    norms
        Normalizations of the residual stream (two; four where outputs are
        normalized too).
    layer_norm
        LayerNorm (two vectors) instead of RMSNorm (one).
    norm_vectors
        Vectors of weights of a norm, if others than these.
    shared
        Which of the blocks it is that several layers share the weights of, from 1 on;
        ``0`` for a layer of its own. Graphs hold a copy in every layer.
    vectors
        Further vectors as wide as the residual stream, such as scales of the outputs.
    streams
        Residual streams side by side (hyper-connections, alternating updates).
    dropout
        Whether the outputs of attention and MLP are dropped out in training.
    """

    name: str
    hidden: int
    attention: Attention
    mlp: Mlp
    mixer: Mixer | None = None
    cross_attention: Attention | None = None
    norms: int = 2
    layer_norm: bool = False
    norm_vectors: Literal[0, 1, 2] | None = None
    shared: int = 0
    vectors: int = 0
    streams: int = 1
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
    """A stack of blocks behind an embedding.

    Attributes
    ----------
    name
        Prefix of its graph nodes; empty for the only tower of a model.
    runs, repeat
        Its blocks, first to last, all of one width, and how often they
        follow each other.
    vocabulary
        Rows of the token embedding; ``0`` if the input is not tokens.
    row_multiple
        What the rows of a tensor rank are padded to a multiple of.
    embedding_size, narrow
        Width of the token table, which a linear layer without bias widens to
        the residual stream (``0``: as wide); with ``narrow``, all tables and
        the norm are as narrow, and the layer has a bias (ELECTRA).
    patch_values, patch_bias
        Values of one image patch, which a linear layer embeds, and whether
        with a bias; ``0`` if the input is tokens.
    convolutions
        Convolutions in front, first to last; empty if the input is tokens.
    learned_positions
        Rows of the table of learned positions, ``0`` without.
    token_types
        Rows of the table of token types (BERT), ``0`` without.
    relative_buckets
        Rows of the table that gives every head of a tower a bias per
        relative position (T5), ``0`` without.
    layer_inputs, layer_vocabulary
        Width of what every layer gets of a token besides the stream, ``0`` without,
        and rows of the table that has it for all layers (Gemma 3n); a projection of
        the embedding and a norm are added.
    embedding_norm
        Whether embeddings are normalized (BERT, BLOOM).
    final_norm
        Whether the output is normalized.
    sequence_length
        Tokens per sample; ``None`` means the job's.
    reads
        Name of the tower that its cross-attention reads, ``None`` without.
    modules
        Modules for multi-token prediction behind the blocks, one for every
        further token, see :class:`Module`.
    follows
        Name of the tower whose output is its input, ``None`` without.
    shares_embedding
        Name of an earlier tower whose token embedding it shares (T5).
    """

    name: str = ""
    runs: tuple[RepeatedBlock, ...]
    repeat: int = 1
    vocabulary: int = 0
    row_multiple: int = 128
    embedding_size: int = 0
    narrow: bool = False
    patch_values: int = 0
    patch_bias: bool = True
    convolutions: tuple[Convolution, ...] = ()
    learned_positions: int = 0
    token_types: int = 0
    relative_buckets: int = 0
    layer_inputs: int = 0
    layer_vocabulary: int = 0
    embedding_norm: bool = False
    final_norm: bool = True
    sequence_length: int | None = None
    reads: str | None = None
    modules: int = 0
    follows: str | None = None
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
    """What turns the towers' outputs into a loss.

    Attributes
    ----------
    row_multiple
        As of :class:`Tower`.
    outputs
        Vocabulary of a language model; classes of a classifier; width of the
        joint space of a two-tower model.
    tied
        Whether it shares the token embedding of the last tower.
    bias, spare_bias
        Whether the output layer has a bias, and whether there is another,
        as long, that nothing uses (BERT of transformers, not tied).
    transform
        Whether a square linear layer, an activation function and a norm come
        first (BERT).
    transform_size
        Width that this layer leads to, if another; the output layer is as wide.
    transform_bias, transform_vectors
        Whether the layer has a bias, and the vectors of weights of the norm.
    predictions
        Tokens that are predicted from every token; the output layer runs once for each.
    temperature
        Whether the loss has a learned temperature (CLIP).
    vectors
        Vectors that enter it side by side, such as those of the class token
        and the mean of all others (DINOv2).
    pooled
        Whether only one vector per sample enters it (classifier, CLIP)
        instead of every token.
    """

    outputs: int
    tied: bool = False
    bias: bool = False
    spare_bias: bool = False
    transform: bool = False
    transform_size: int = 0
    transform_bias: bool = True
    transform_vectors: Literal[0, 1, 2] = 2
    pooled: bool = False
    row_multiple: int = 128
    predictions: int = 1
    temperature: bool = False
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
