"""Weights of the parts of a model, whole or on one of ``tp`` ranks."""

from __future__ import annotations

from msgspec.structs import replace

from nest.models.blocks import (
    Attention,
    Block,
    Convolution,
    Head,
    Linear,
    Mixer,
    Mlp,
    Tower,
)


def norm_weights(block: Block) -> int:
    """Return the weights of one norm: ``2h`` with LayerNorm, else ``h``."""
    return block.hidden * norm_vectors(block)


def norm_vectors(block: Block) -> int:
    """Return the vectors of weights of one norm of a block."""
    if block.norm_vectors is not None:
        return block.norm_vectors
    return 2 if block.layer_norm else 1


def attention_heads(attention: Attention, tp: int) -> tuple[int, int]:
    """Return the query heads, and the key and value heads, of a rank."""
    heads = attention.heads // tp
    return heads, max(attention.kv_heads // tp, 1) if heads else 0


def index_key_width(attention: Attention) -> int:
    """Return the columns that the indexer makes of the stream besides queries."""
    scales = attention.index_heads if attention.index_scales else 0
    return attention.index_size + scales


def key_value_width(attention: Attention, kv_heads: int) -> int:
    """Return the columns of the projections that make keys and values."""
    value_size = attention.value_size or attention.head_size
    widths = (0, attention.head_size, attention.head_size + value_size)
    return kv_heads * widths[attention.key_value_parts]


def attention_matrices(
    block: Block, attention: Attention, tp: int = 1
) -> tuple[int, int]:
    """Return matrix weights that tokens, and that source tokens, visit.

    ``h·d(a + a_kv) + h·d_v(a_kv + a)`` in all; of cross-attention, keys and values are
    made from the source. Latent attention has ``h·r_q + r_q·a·d`` for queries, ``h(r +
    d_r) + r·a_kv(d - d_r + d_v)`` for keys and values and ``h·a·d_v`` for the output
    (DeepSeek-AI 2024, arXiv 2405.04434, §2.1). Key and value heads are replicated where
    there are fewer than ``tp``. A gate has ``h`` per column, an indexer ``h (d_i + a_i)
    + r_q·a_i·d_i``, which no rank shares.
    """
    hidden = block.hidden
    inputs = attention.inputs or hidden
    value_size = attention.value_size or attention.head_size
    heads, kv_heads = attention_heads(attention, tp)
    query = heads * attention.head_size
    output = hidden * (heads * value_size + attention.gate // tp)
    if attention.index_heads:
        index = attention.index_heads * attention.index_size
        output += (attention.query_rank or hidden) * index
        output += hidden * index_key_width(attention)
    if attention.key_value_rank:
        rank, rotary = attention.key_value_rank, attention.rotary_size
        expanded = kv_heads * (attention.head_size - rotary + value_size)
        matrices = output + hidden * (rank + rotary) + rank * expanded
        if attention.query_rank:
            matrices += attention.query_rank * (hidden + query)
        else:
            matrices += hidden * query
        return matrices, 0
    key_value = inputs * key_value_width(attention, kv_heads)
    if attention.cross:
        return hidden * query + output, key_value
    return inputs * query + output + key_value, 0


def attention_weights(block: Block, attention: Attention, tp: int = 1) -> int:
    """Return all weights of an attention: matrices, biases, inner norms."""
    value_size = attention.value_size or attention.head_size
    heads, kv_heads = attention_heads(attention, tp)
    weights = sum(attention_matrices(block, attention, tp)) + attention.common
    latent = attention.query_rank + attention.key_value_rank
    if attention.key_value_rank:
        weights += latent
    if attention.biases and attention.key_value_rank:
        weights += latent + attention.rotary_size
    elif attention.biases:
        weights += heads * attention.head_size
        weights += key_value_width(attention, kv_heads)
        if attention.unbiased_keys:
            weights -= kv_heads * attention.head_size
    if attention.output_bias:
        weights += block.hidden
    if attention.query_key_norm:
        each = 2 if attention.key_value_parts else 1
        normed = {"head": each, "heads": heads + kv_heads, "nothing": 0}
        weights += (
            attention.norm_vectors * normed[attention.norm_over] * attention.head_size
        )
    if attention.gate_bias:
        weights += attention.gate // tp
    if attention.sinks:
        weights += heads
    if attention.output_norm:
        weights += heads * value_size
    return weights + 2 * attention.index_size


def rank_width(linear: Linear, tp: int) -> int:
    """Return what a rank has of the width that ``tp`` cuts."""
    width = linear.inputs if linear.cut == "inputs" else linear.outputs
    if linear.cut == "nothing":
        return width
    if not linear.units:
        return width // tp
    return width // linear.units * max(linear.units // tp, 1)


def rank_outputs(linear: Linear, tp: int) -> int:
    """Return the width of what a rank's share of a linear layer makes."""
    return linear.outputs if linear.cut == "inputs" else rank_width(linear, tp)


def linear_matrix(linear: Linear, tp: int = 1) -> int:
    """Return the weights of a linear layer's matrix, of one rank."""
    width = rank_width(linear, tp)
    other = linear.outputs if linear.cut == "inputs" else linear.inputs
    return width * other // linear.blocks


def mixer_weights(mixer: Mixer, tp: int = 1) -> int:
    """Return all weights of a mixer: matrices, biases, convolution."""
    weights = mixer.common + mixer.vectors // tp
    for linear in mixer.linears:
        weights += linear_matrix(linear, tp)
        if linear.bias:
            weights += rank_outputs(linear, tp)
    taps = mixer.kernel + (1 if mixer.convolution_bias else 0)
    return weights + taps * (mixer.channels // tp)


def mixer_flops(mixer: Mixer) -> int:
    """Return the forward FLOPs per token of a mixer's products."""
    return (
        2 * sum(map(linear_matrix, mixer.linears))
        + 2 * mixer.channels * mixer.kernel
        + mixer.core_flops
    )


def dense_mlp_weights(hidden: int, width: int, mlp: Mlp) -> int:
    """Return the weights of an MLP of an inner width, or of one expert."""
    if not width:
        return 0
    inner = 2 if mlp.gated else 1
    weights = (inner + 1) * hidden * width + mlp.activation_weights
    if mlp.inner_norm:
        weights += width
    return weights + (inner * width + hidden if mlp.biases else 0)


def expert_weights(block: Block) -> int:
    """Return the weights of one routed expert, or of the dense MLP."""
    mlp = block.mlp
    return dense_mlp_weights(mlp.latent or block.hidden, mlp.hidden, mlp)


def idle_weights(hidden: int, mlp: Mlp) -> int:
    """Return the weights that an expert which returns its input has for nothing."""
    return (2 if mlp.gated else 1) * hidden * mlp.hidden


def router_weights(hidden: int, mlp: Mlp) -> int:
    """Return the weights around the experts, which all ranks hold.

    The router, the score of the shared experts, and the projections to the
    width of the experts and back.
    """
    weights = hidden * (mlp.experts + mlp.zero_experts + 2 * mlp.latent)
    if mlp.router_bias:
        weights += mlp.experts
    return weights + (hidden if mlp.shared_gate else 0)


def mlp_weights(block: Block) -> int:
    """Return the weights of the MLP: experts, shared experts, router."""
    mlp = block.mlp
    if not mlp.experts:
        return expert_weights(block)
    weights = mlp.experts * expert_weights(block)
    weights += mlp.zero_experts * idle_weights(block.hidden, mlp)
    weights += router_weights(block.hidden, mlp)
    shared = shared_mlp(mlp)
    return weights + dense_mlp_weights(block.hidden, shared.hidden, shared)


def shared_mlp(mlp: Mlp) -> Mlp:
    """Return the shared experts together, as one dense MLP."""
    return replace(
        mlp,
        hidden=mlp.shared_hidden,
        biases=mlp.biases or mlp.shared_biases,
        experts=0,
        experts_per_token=0,
        shared_hidden=0,
    )


def block_weights(block: Block) -> int:
    """Return the weights of one block with all its experts."""
    weights = attention_weights(block, block.attention)
    if block.cross_attention is not None:
        weights += attention_weights(block, block.cross_attention)
    if block.mixer is not None:
        weights += mixer_weights(block.mixer)
    return weights + mlp_weights(block) + vector_weights(block)


def module_weights(block: Block) -> int:
    """Return the weights of a module for multi-token prediction of its own.

    Its block, a linear layer from ``2h`` to ``h``, and three norms; not the
    token table and the output layer, which the model has.
    """
    weights = block_weights(block) + join_weights(block.hidden)
    return weights + 3 * norm_weights(block)


def join_weights(hidden: int, tp: int = 1) -> int:
    """Return the weights of what joins the stream with embeddings."""
    return 2 * hidden * (hidden // tp)


def vector_weights(block: Block) -> int:
    """Return the weights of a block's norms and of its other vectors."""
    return block.norms * norm_weights(block) + block.vectors * block.hidden


def embedding_weights(tower: Tower, vocabulary: int | None = None) -> int:
    """Return the weights before a tower's blocks.

    ``h`` per row of the token, position and type tables; ``h`` per value of
    a patch and ``h`` of bias; convolutions; a norm; a bias per head and
    bucket of relative positions. A shared token table counts where it is.
    ``vocabulary`` are the rows of a rank instead of all. A table of what layers get
    has ``d`` per layer and row, and a projection and a norm.
    """
    hidden, first = tower.hidden, tower.runs[0].block
    size = tower.embedding_size or hidden
    inside = size if tower.narrow else hidden
    weights = inside * (tower.learned_positions + tower.token_types)
    if tower.shares_embedding is None:
        rows = tower.vocabulary if vocabulary is None else vocabulary
        weights += rows * size
        if tower.embedding_size:
            weights += hidden * (size + (1 if tower.narrow else 0))
    if tower.patch_values:
        weights += hidden * (tower.patch_values + (1 if tower.patch_bias else 0))
    weights += sum(map(convolution_weights, tower.convolutions))
    if tower.embedding_norm:
        weights += inside * norm_vectors(first)
    if tower.layer_inputs:
        width = tower.layers * tower.layer_inputs
        weights += width * (tower.layer_vocabulary + hidden) + tower.layer_inputs
    return weights + tower.relative_buckets * first.attention.heads


def embedding_flops(tower: Tower) -> int:
    """Return the FLOPs per token before a tower's blocks, forward."""
    flops = 2 * tower.patch_values * tower.hidden
    if tower.embedding_size:
        flops += 2 * tower.embedding_size * tower.hidden
    flops += 2 * tower.hidden * tower.layers * tower.layer_inputs
    for shape in tower.convolutions:
        taps = shape.inputs * shape.kernel * shape.outputs
        flops += 2 * shape.positions * taps
    return flops


def convolution_weights(shape: Convolution) -> int:
    """Return the weights of a convolution before a tower."""
    taps = shape.inputs * shape.kernel + (1 if shape.bias else 0)
    return (taps + (2 if shape.normed else 0)) * shape.outputs


def final_norm_weights(tower: Tower) -> int:
    """Return the weights of the norm after a tower's blocks."""
    return norm_weights(tower.runs[-1].block) if tower.final_norm else 0


def head_weights(head: Head, hidden: int, rows: int | None = None) -> int:
    """Return the weights of the head for one tower, without final norm.

    With ``rows``, those of a rank that has so many of the output layer and
    holds them itself where they are tied.
    """
    outputs = head.outputs if rows is None else rows
    width = head_width(head, hidden)
    weights = 0 if head.tied and rows is None else outputs * width
    weights += outputs * (int(head.bias) + int(head.spare_bias))
    if head.transform:
        weights += transform_matrix(head, hidden)
        weights += width * head.transform_vectors
        if head.transform_bias:
            weights += width
    return weights


def head_width(head: Head, hidden: int) -> int:
    """Return the width of what enters the output layer."""
    return (head.transform_size or hidden) * head.vectors


def transform_matrix(head: Head, hidden: int) -> int:
    """Return the weights of the matrix before the output layer."""
    return hidden * (head.transform_size or hidden) if head.transform else 0
