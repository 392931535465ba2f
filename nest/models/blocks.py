"""Shapes of the parts of a transformer: attention, MLP, block, tower, head.

An :class:`Architecture` is one or more towers of blocks, an embedding in
front of each, and one head. Decoder-only models have one tower; an
encoder-decoder has two, the second of which reads the first; a two-tower
model has two that only the head reads. Widths and counts are whole numbers,
sequence lengths are tokens per sample.
"""

from __future__ import annotations

from collections.abc import Iterator

from nest.ir.base import Struct


class Attention(Struct, frozen=True, kw_only=True):
    """Shape of one attention.

    Attributes
    ----------
    heads, kv_heads, head_size
        Query heads; key and value heads (fewer under grouped-query
        attention); width of a query or key head.
    value_size
        Width of a value head; ``0`` means ``head_size``.
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
        Whether every query and key head is normalised.
    query_rank, key_value_rank, rotary_size
        Multi-head latent attention (DeepSeek-AI 2024, arXiv 2405.04434):
        ranks of the compressed query (``0``: not compressed) and of the
        compressed keys and values (``0``: ordinary attention), and the width
        of the rotated part of a head, whose key all heads share;
        ``head_size`` includes it.
    cross
        Whether keys and values come from the tower that this one reads.
    """

    heads: int
    kv_heads: int
    head_size: int
    value_size: int = 0
    causal: bool = True
    window: int = 0
    rotary: bool = False
    biases: bool = False
    output_bias: bool = False
    query_key_norm: bool = False
    query_rank: int = 0
    key_value_rank: int = 0
    rotary_size: int = 0
    cross: bool = False


class Mlp(Struct, frozen=True, kw_only=True):
    """Shape of one MLP, or of the experts in its place.

    Attributes
    ----------
    hidden
        Inner width of the MLP, or of one expert.
    gated
        Whether it has a gate (SwiGLU: three matrices instead of two).
    biases
        Whether its linear layers (not the router) have biases.
    experts, experts_per_token
        Routed experts and how many of them a token visits; ``0`` is dense.
    shared_hidden
        Inner width of the shared experts together, which all tokens visit.
    """

    hidden: int
    gated: bool = False
    biases: bool = False
    experts: int = 0
    experts_per_token: int = 0
    shared_hidden: int = 0


class Block(Struct, frozen=True, kw_only=True):
    """Shape of one transformer layer.

    Attributes
    ----------
    name
        Kind of the graph nodes made of it, such as ``decoder``.
    hidden
        Width of the residual stream.
    attention, cross_attention, mlp
        Its parts, in this order.
    norms
        Normalisations of the residual stream (two; four where outputs are
        normalised too).
    layer_norm
        LayerNorm (two vectors) instead of RMSNorm (one).
    dropout
        Whether the outputs of attention and MLP are dropped out in training.
    """

    name: str
    hidden: int
    attention: Attention
    mlp: Mlp
    cross_attention: Attention | None = None
    norms: int = 2
    layer_norm: bool = False
    dropout: bool = False


class Run(Struct, frozen=True, kw_only=True):
    """``count`` consecutive equal blocks."""

    block: Block
    count: int


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
    patch_values
        Values of one image patch, which a linear layer embeds; ``0`` if the
        input is tokens.
    learned_positions
        Rows of the table of learned positions, ``0`` without.
    token_types
        Rows of the table of token types (BERT), ``0`` without.
    embedding_norm
        Whether embeddings are normalised (BERT, BLOOM).
    final_norm
        Whether the output is normalised.
    sequence_length
        Tokens per sample; ``None`` means the job's.
    reads
        Name of the tower that its cross-attention reads, ``None`` without.
    shares_embedding
        Name of an earlier tower whose token embedding it shares (T5).
    """

    name: str = ""
    runs: tuple[Run, ...]
    repeat: int = 1
    vocabulary: int = 0
    patch_values: int = 0
    learned_positions: int = 0
    token_types: int = 0
    embedding_norm: bool = False
    final_norm: bool = True
    sequence_length: int | None = None
    reads: str | None = None
    shares_embedding: str | None = None

    @property
    def hidden(self) -> int:
        """Width of the residual stream."""
        return self.runs[0].block.hidden

    @property
    def layers(self) -> int:
        """Number of blocks."""
        return self.repeat * sum(run.count for run in self.runs)

    def blocks(self) -> Iterator[Block]:
        """Yield its blocks, first to last."""
        for _ in range(self.repeat):
            for run in self.runs:
                for _ in range(run.count):
                    yield run.block


class Head(Struct, frozen=True, kw_only=True):
    """What turns the towers' outputs into a loss.

    Attributes
    ----------
    outputs
        Vocabulary of a language model; classes of a classifier; width of the
        joint space of a two-tower model.
    tied
        Whether it shares the token embedding of the last tower.
    bias
        Whether the output layer has a bias.
    transform
        Whether a square linear layer, an activation function and a norm come
        first (BERT).
    pooled
        Whether only one vector per sample enters it (classifier, CLIP)
        instead of every token.
    """

    outputs: int
    tied: bool = False
    bias: bool = False
    transform: bool = False
    pooled: bool = False
