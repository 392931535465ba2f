"""Attention: projections, rotary embedding, and the core, fused or not."""

from __future__ import annotations

from typing import NamedTuple

from nest.models.blocks import Attention, Block
from nest.models.operators.base import (
    BF16,
    FP32,
    Execution,
    Node,
    Operator,
    Split,
    elementwise,
    linear,
    matmul,
    norm,
)
from nest.models.operators.collectives import (
    both_passes,
    context_collectives,
)
from nest.models.weights import attention_heads, attention_weights

#: Backward FLOPs of fused attention per forward FLOP: five products for two.
ATTENTION_BACKWARD = 2.5

#: Queries of one head that a thread block of a fused kernel takes (Dao 2023,
#: §3.3).
QUERY_BLOCK = 128

#: Matrices that one thread block of Megatron-LM's fused softmax takes: a
#: number of matrices that this does not divide runs unfused.
SOFTMAX_BATCHES = 4


class _Share(NamedTuple):
    """What one rank has of an attention.

    ``heads`` query heads; widths of all its queries, keys, values and
    outputs; ``length`` tokens per sample that it attends to.
    """

    heads: int
    query: int
    key: int
    value: int
    output: int
    length: int


def attention(
    block: Block, shape: Attention, split: Split, execution: Execution
) -> Node:
    """Count projections, rotary embedding and core; no norm, no residual."""
    tokens, hidden = split.tokens, block.hidden
    heads, kv_heads = attention_heads(shape, split.tp)
    value_size = shape.value_size or shape.head_size
    share = _Share(
        heads=heads,
        query=heads * shape.head_size,
        key=kv_heads * shape.head_size,
        value=kv_heads * value_size,
        output=heads * value_size,
        length=split.source_length if shape.cross else split.sequence_length,
    )
    # Every rank of a context parallel group sees all keys and values.
    key_tokens = split.samples * share.length
    own_key_tokens = key_tokens // split.cp
    key_value = share.key + share.value
    rotated = share.query + share.key
    products = linear("attention output", tokens, share.output, hidden)
    latent = 0
    if shape.key_value_rank:
        expanded = kv_heads * (
            shape.head_size - shape.rotary_size + value_size
        )
        operators = _latent(shape, split, hidden, share, expanded, execution)
        latent = shape.query_rank + shape.key_value_rank + shape.rotary_size
    elif shape.cross:
        operators = [
            linear("query", tokens, hidden, share.query),
            linear("key value", own_key_tokens, hidden, key_value),
        ]
    else:
        width = shape.inputs or hidden
        operators = [linear("qkv", tokens, width, share.query + key_value)]
    gate = shape.gate // split.tp
    if gate:
        operators.append(linear("gate", tokens, hidden, gate))
    if shape.index_heads:
        operators += _indexer(shape, split, hidden)
    if shape.query_key_norm:
        operators.append(norm("query key norm", tokens * rotated, execution))
    if shape.rotary:
        operators.append(
            elementwise(
                "rotary",
                tokens * rotated,
                4,
                4,
                kernels=1 if execution.fused else 6,
            )
        )
    if execution.flash_attention:
        core = _fused_core(shape, share, split, execution)
    else:
        core = _loose_core(shape, share, split, execution, block.dropout)
    inputs = tokens * (share.query + latent) + own_key_tokens * key_value
    if shape.query_key_norm:
        inputs += tokens * rotated
    after = []
    if shape.output_norm:
        after.append(norm("inner norm", tokens * share.output, execution))
        inputs += tokens * share.output
    if gate:
        # Gate and output are multiplied; both stay for the gradient.
        after.append(elementwise("gated output", tokens * share.output, 6, 10))
        inputs += tokens * (gate + share.output)
    return Node(
        operators=(*operators, *core.operators, *after, products),
        collectives=(
            *both_passes(split, tokens * hidden),
            *context_collectives(split, BF16 * key_tokens * key_value),
        ),
        weights=attention_weights(block, shape, split.tp),
        kept_bytes={
            "none": BF16 * inputs + core.kept_bytes["none"],
            "selective": BF16 * inputs + core.kept_bytes["selective"],
        },
        repeated=core.repeated,
        working_bytes=core.working_bytes,
    )


def _latent(
    shape: Attention,
    split: Split,
    hidden: int,
    share: _Share,
    expanded: int,
    execution: Execution,
) -> list[Operator]:
    """Count the projections of latent attention.

    ``expanded`` is the width of the keys, without their rotated part, and of
    the values that a rank makes of the compressed ones.
    """
    tokens, rank = split.tokens, shape.key_value_rank
    if shape.query_rank:
        queries = [
            linear("query down", tokens, hidden, shape.query_rank),
            norm("query norm", tokens * shape.query_rank, execution),
            linear("query up", tokens, shape.query_rank, share.query),
        ]
    else:
        queries = [linear("query", tokens, hidden, share.query)]
    return [
        *queries,
        linear("key value down", tokens, hidden, rank + shape.rotary_size),
        norm("key value norm", tokens * rank, execution),
        linear("key value up", tokens, rank, expanded),
    ]


def _indexer(shape: Attention, split: Split, hidden: int) -> list[Operator]:
    """Count what scores all tokens to pick those that are attended to.

    DeepSeek-AI 2025, DeepSeek-V3.2-Exp, §2.1. Its heads are few, and no rank
    shares them.
    """
    tokens = split.tokens
    index = shape.index_heads * shape.index_size
    scores = 2 * tokens * split.sequence_length * index
    moved = BF16 * tokens * (index + shape.index_size + shape.window)
    return [
        linear("index query", tokens, shape.query_rank or hidden, index),
        linear(
            "index key", tokens, hidden, shape.index_size + shape.index_heads
        ),
        Operator("index scores", "attention", scores, moved, 0, 0),
    ]


def _fused_core(
    shape: Attention, share: _Share, split: Split, execution: Execution
) -> Node:
    """Count the core as one kernel, which keeps no matrix of scores."""
    length, tokens = share.length, split.tokens
    key_tokens = split.samples * length
    seen = float(length)
    if shape.window and shape.window < length:
        seen = float(shape.window)
    elif shape.causal and not shape.cross:
        seen = length / 2
    flops = 2 * tokens * seen * (share.query + share.output)
    # Read Q, K, V, write O; backward reads these and dO, and writes dQ, dK,
    # dV.
    moved = tokens * (share.query + share.output) + key_tokens * (
        share.key + share.value
    )
    kept = BF16 * tokens * share.output + FP32 * tokens * share.heads
    again = execution.repeat_attention
    return Node(
        operators=(
            Operator(
                "attention core",
                "attention",
                flops,
                BF16 * moved,
                ATTENTION_BACKWARD * flops,
                BF16 * (2 * moved),
                backward_kernels=3,
                blocks=tokens * share.heads / QUERY_BLOCK,
                head_size=(share.query + share.output) / (2 * share.heads),
            ),
        ),
        kept_bytes={"none": kept, "selective": 0 if again else kept},
        repeated=("attention core",) if again else (),
    )


def _loose_core(
    shape: Attention,
    share: _Share,
    split: Split,
    execution: Execution,
    dropout: bool,
) -> Node:
    """Count the core as products, softmax and dropout of all scores."""
    batches = split.samples * share.heads
    rows = split.tokens // split.samples
    scores = batches * rows * share.length
    mask = 1 if dropout else 0
    one_kernel = execution.fused_softmax and batches % SOFTMAX_BATCHES == 0

    def product(name: str, k: int, n: int) -> Operator:
        """Count a product for every sample and head, all by one kernel."""
        return matmul(name, batches * rows, k, n, batches)._replace(
            kernels=1,
            backward_kernels=2,
            shape=(rows, k, n),
            has_weights=False,
            groups=1,
        )

    operators = [
        product("scores", shape.head_size, share.length),
        elementwise("softmax", scores, 4, 6, kernels=1 if one_kernel else 5),
    ]
    if dropout:
        operators.append(elementwise("attention dropout", scores, 5, 5))
    value_size = shape.value_size or shape.head_size
    operators.append(product("context", share.length, value_size))
    output_bytes = BF16 * split.tokens * share.output
    return Node(
        operators=tuple(operators),
        # Output of the softmax, of the dropout, and its mask; the input of
        # the output projection stays under selective recomputation too.
        kept_bytes={
            "none": output_bytes + (BF16 + (BF16 + 1) * mask) * scores,
            "selective": output_bytes,
        },
        repeated=tuple(operator.name for operator in operators),
        working_bytes=2 * BF16 * scores,
    )
