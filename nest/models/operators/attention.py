"""Attention: projections, rotary embedding, and the core, fused or not."""

from __future__ import annotations

import math
from typing import NamedTuple

from nest.models.blocks import Attention, Block
from nest.models.operators.base import (
    BF16,
    FP32,
    Execution,
    Node,
    Operator,
    Product,
    Split,
    elementwise,
    linear,
    matmul,
    norm,
)
from nest.models.operators.collectives import both_passes, context_collectives
from nest.models.weights import (
    attention_heads,
    attention_weights,
    index_key_width,
    key_value_width,
)

#: Backward FLOPs of fused attention per forward FLOP: five products for two.
ATTENTION_BACKWARD = 2.5

#: Queries of one head that a thread block of a fused kernel takes (Dao 2023, §3.3).
QUERY_BLOCK = 128


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
    operators, keys, value = _entering(block, shape, split, share, execution)
    latent = 0
    if shape.key_value_rank:
        latent = shape.query_rank + shape.key_value_rank + shape.rotary_size
    gate = shape.gate // split.tp
    if execution.flash_attention:
        core = _fused_core(shape, share, split, execution)
    else:
        core = _loose_core(shape, share, split, execution, block.dropout)
    inner = _joined(core.operators, keys, value)
    made = key_value_width(shape, kv_heads)
    inputs = tokens * (share.query + latent) + own_key_tokens * made
    if shape.query_key_norm:
        inputs += tokens * rotated
    after = []
    if shape.output_norm:
        after.append(norm("inner norm", tokens * share.output, execution))
        inputs += tokens * share.output
    if gate:
        # Gate and output are multiplied; both stay for the gradient.
        after.append(
            elementwise(
                *("gated output", ("sigmoid", "multiply")),
                *(tokens * share.output, 6, 10),
            )._replace(after=((*inner, *after)[-1].name, "gate"))
        )
        inputs += tokens * (gate + share.output)
    return Node(
        operators=(*operators, *inner, *after, products),
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


def _entering(
    block: Block, shape: Attention, split: Split, share: _Share, execution: Execution
) -> tuple[list[Operator], tuple[str, ...], str]:
    """Count what is in front of the core.

    With the names of the operators that make queries and keys, queries
    first, and of the one that makes values.
    """
    tokens, hidden = split.tokens, block.hidden
    key_value = share.key + share.value
    rotated = tokens * (share.query + share.key)
    keys: tuple[str, ...] = ("qkv",)
    if shape.key_value_rank:
        keys = ("query up" if shape.query_rank else "query", "key value up")
        operators = _latent(shape, split, hidden, share, execution)
    elif shape.cross:
        keys = ("query", "key value")
        own_key_tokens = split.samples * share.length // split.cp
        other = linear("key value", own_key_tokens, hidden, key_value)
        operators = [
            linear("query", tokens, hidden, share.query),
            # Of what another tower makes.
            other._replace(after=()),
        ]
    else:
        width = shape.inputs or hidden
        made = key_value_width(shape, attention_heads(shape, split.tp)[1])
        operators = [linear("qkv", tokens, width, share.query + made)]
    first, value = operators[0].name, keys[-1]
    if shape.gate // split.tp:
        columns = linear("gate", tokens, hidden, shape.gate // split.tp)
        operators.append(columns._replace(same_inputs_as=first))
    if shape.query_key_norm:
        normed = norm("query key norm", rotated, execution)
        operators.append(normed._replace(after=keys))
        keys = (normed.name,)
    if shape.rotary:
        turned = elementwise(
            *("rotary", ("rotary",), rotated, 4, 4), kernels=1 if execution.fused else 6
        )
        operators.append(turned._replace(after=keys))
        keys = (turned.name,)
    if shape.index_heads:
        operators += _indexer(shape, split, hidden, first)
        keys = (*keys, operators[-1].name)
    return operators, keys, value


def _joined(
    core: tuple[Operator, ...], keys: tuple[str, ...], value: str
) -> tuple[Operator, ...]:
    """Return a core that needs operators of these names.

    ``keys`` make queries and keys, ``value`` values: the second factor of
    the last of several operators.
    """
    first, *others = core
    if not others:
        return (first._replace(after=tuple(dict.fromkeys((*keys, value)))),)
    *middle, last = others
    before = (middle or [first])[-1].name
    return (first._replace(after=keys), *middle, last._replace(after=(before, value)))


def _latent(
    shape: Attention, split: Split, hidden: int, share: _Share, execution: Execution
) -> list[Operator]:
    """Count the projections of latent attention.

    A rank makes its keys, without their rotated part, and its values of the
    compressed ones.
    """
    tokens, rank = split.tokens, shape.key_value_rank
    kv_heads = share.key // shape.head_size
    expanded = share.key + share.value - kv_heads * shape.rotary_size
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
        linear("key value down", tokens, hidden, rank + shape.rotary_size)._replace(
            same_inputs_as=queries[0].name
        ),
        norm("key value norm", tokens * rank, execution),
        linear("key value up", tokens, rank, expanded),
    ]


def _indexer(shape: Attention, split: Split, hidden: int, first: str) -> list[Operator]:
    """Count what scores all tokens to pick those that are attended to.

    DeepSeek-AI 2025, DeepSeek-V3.2-Exp, §2.1. Its heads are few, and no rank
    shares them. ``first`` has the same inputs.
    """
    tokens = split.tokens
    index = shape.index_heads * shape.index_size
    scores = 2 * tokens * split.sequence_length * index
    moved = BF16 * tokens * (index + shape.index_size + shape.window)
    query = linear("index query", tokens, shape.query_rank or hidden, index)
    key = linear("index key", tokens, hidden, index_key_width(shape))
    product = Product(
        tokens // split.samples,
        shape.index_size,
        split.sequence_length,
        split.samples * shape.index_heads,
    )
    return [
        query._replace(after=("query norm",))
        if shape.query_rank
        else query._replace(same_inputs_as=first),
        key._replace(same_inputs_as=first),
        Operator(
            *("index scores", "attention", scores, moved, 0, 0),
            products=(product,),
            after=("index query", "index key"),
        ),
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
    # Read Q, K, V, write O; backward reads these and dO, and writes dQ, dK, dV.
    moved = tokens * (share.query + share.output) + key_tokens * (
        share.key + share.value
    )
    kept_bytes = BF16 * tokens * share.output + FP32 * tokens * share.heads
    again = execution.repeat_attention
    value_size = shape.value_size or shape.head_size
    rows, columns = tokens // split.samples, math.ceil(seen)
    batch = split.samples * share.heads
    scores = Product(rows, shape.head_size, columns, batch)
    context = Product(rows, columns, value_size, batch)
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
                products=(scores, context),
                # The scores are computed again.
                backward_products=(scores, *context.gradients, *scores.gradients),
                values=batch * rows * columns,
                operations=("softmax",),
            ),
        ),
        kept_bytes={"none": kept_bytes, "selective": 0 if again else kept_bytes},
        repeated=("attention core",) if again else (),
    )


def _loose_core(
    shape: Attention, share: _Share, split: Split, execution: Execution, dropout: bool
) -> Node:
    """Count the core as products, softmax and dropout of all scores."""
    batches = split.samples * share.heads
    rows = split.tokens // split.samples
    scores = batches * rows * share.length
    mask = 1 if dropout else 0
    one_kernel = execution.fused_softmax and batches % execution.softmax_batches == 0

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
        elementwise(
            *("softmax", ("softmax",), scores, 4, 6), kernels=1 if one_kernel else 5
        ),
    ]
    if dropout:
        operators.append(elementwise("attention dropout", ("dropout",), scores, 5, 5))
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
