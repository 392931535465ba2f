"""Weights of the parts of a model, whole or on one of ``tp`` ranks."""

from __future__ import annotations

from nest.models.blocks import Attention, Block, Head, Mlp, Tower


def norm_weights(block: Block) -> int:
    """Return the weights of one norm: ``2h`` with LayerNorm, else ``h``."""
    return block.hidden * (2 if block.layer_norm else 1)


def attention_heads(attention: Attention, tp: int) -> tuple[int, int]:
    """Return the query heads, and the key and value heads, of a rank."""
    return attention.heads // tp, max(attention.kv_heads // tp, 1)


def attention_matrices(
    block: Block, attention: Attention, tp: int = 1
) -> tuple[int, int]:
    """Return matrix weights that tokens, and that source tokens, visit.

    ``h·d(a + a_kv) + h·d_v(a_kv + a)`` in all; of cross-attention, keys and
    values are made from the source. Latent attention has ``h·r_q + r_q·a·d``
    for queries, ``h(r + d_r) + r·a_kv(d - d_r + d_v)`` for keys and values
    and ``h·a·d_v`` for the output (DeepSeek-AI 2024, arXiv 2405.04434, §2.1).
    Key and value heads are replicated where there are fewer than ``tp``.
    """
    hidden = block.hidden
    value_size = attention.value_size or attention.head_size
    heads, kv_heads = attention_heads(attention, tp)
    query = heads * attention.head_size
    output = hidden * heads * value_size
    if attention.key_value_rank:
        rank, rotary = attention.key_value_rank, attention.rotary_size
        own = kv_heads * (attention.head_size - rotary + value_size)
        matrices = output + hidden * (rank + rotary) + rank * own
        if attention.query_rank:
            matrices += attention.query_rank * (hidden + query)
        else:
            matrices += hidden * query
        return matrices, 0
    key_value = hidden * kv_heads * (attention.head_size + value_size)
    if attention.cross:
        return hidden * query + output, key_value
    return hidden * query + output + key_value, 0


def attention_weights(block: Block, attention: Attention, tp: int = 1) -> int:
    """Return all weights of an attention: matrices, biases, inner norms."""
    value_size = attention.value_size or attention.head_size
    heads, kv_heads = attention_heads(attention, tp)
    weights = sum(attention_matrices(block, attention, tp))
    if attention.key_value_rank:
        weights += attention.query_rank + attention.key_value_rank
    if attention.biases:
        weights += heads * attention.head_size
        weights += kv_heads * (attention.head_size + value_size)
    if attention.output_bias:
        weights += block.hidden
    if attention.query_key_norm:
        weights += 2 * attention.head_size
    return weights


def dense_mlp_weights(hidden: int, width: int, mlp: Mlp) -> int:
    """Return the weights of an MLP of an inner width, or of one expert."""
    inner = 2 if mlp.gated else 1
    weights = (inner + 1) * hidden * width
    return weights + (inner * width + hidden if mlp.biases else 0)


def expert_weights(block: Block) -> int:
    """Return the weights of one routed expert, or of the dense MLP."""
    return dense_mlp_weights(block.hidden, block.mlp.hidden, block.mlp)


def mlp_weights(block: Block) -> int:
    """Return the weights of the MLP: experts, shared experts, router."""
    mlp = block.mlp
    if not mlp.experts:
        return expert_weights(block)
    weights = mlp.experts * (expert_weights(block) + block.hidden)
    if mlp.shared_hidden:
        weights += dense_mlp_weights(block.hidden, mlp.shared_hidden, mlp)
    return weights


def block_weights(block: Block) -> int:
    """Return the weights of one block with all its experts."""
    weights = attention_weights(block, block.attention)
    if block.cross_attention is not None:
        weights += attention_weights(block, block.cross_attention)
    return weights + mlp_weights(block) + block.norms * norm_weights(block)


def embedding_weights(tower: Tower, vocabulary: int | None = None) -> int:
    """Return the weights in front of a tower's blocks.

    ``h`` per row of the token, position and type tables; ``h`` per value of
    a patch and ``h`` of bias; a norm. A shared token table counts where it
    is. ``vocabulary`` are the rows of a rank instead of all.
    """
    rows = tower.learned_positions + tower.token_types
    if tower.shares_embedding is None:
        rows += tower.vocabulary if vocabulary is None else vocabulary
    if tower.patch_values:
        rows += tower.patch_values + 1
    weights = rows * tower.hidden
    if tower.embedding_norm:
        weights += norm_weights(tower.runs[0].block)
    return weights


def final_norm_weights(tower: Tower) -> int:
    """Return the weights of the norm behind a tower's blocks."""
    return norm_weights(tower.runs[-1].block) if tower.final_norm else 0


def head_weights(head: Head, hidden: int, rows: int | None = None) -> int:
    """Return the weights of the head for one tower, without final norm.

    With ``rows``, those of a rank that has so many of the output layer and
    holds them itself where they are tied.
    """
    outputs = head.outputs if rows is None else rows
    weights = 0 if head.tied and rows is None else outputs * hidden
    if head.bias:
        weights += outputs
    if head.transform:
        weights += hidden * hidden + 3 * hidden
    return weights
