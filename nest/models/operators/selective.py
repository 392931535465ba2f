"""What torchtitan's selective checkpointing of operators computes again.

Its policy (``torchtitan/distributed/activation_checkpoint.py``) keeps what a fused
attention and every matrix product yield, but of each second product of a block; all
other operators run again in the backward pass. Grouped products of experts are none of
the products that it knows, nor are those in fp8: ``_scaled_mm`` is not in the list of
``torchtitan/models/llama3/infra/parallelize.py`` (``_op_sac_save_list``, 0.2.2).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nest.models.blocks import Block
from nest.models.operators.base import BF16, FP32, Dtype, Operator, Split
from nest.models.weights import attention_heads


def by_operators(
    block: Block, split: Split, operators: Sequence[Operator], dtype: Dtype
) -> tuple[dict[str, float], int]:
    """Return what of each operator runs again, and the bytes that are kept.

    The last operator, the sum with the stream, is not needed again, nor is the last
    product in fp8: a compiler, without which nobody uses fp8 there, leaves it out. Kept
    bytes are without those of the block's input.
    """
    shares: dict[str, float] = {}
    kept_bytes = num_products = 0
    for operator in operators[:-1]:
        if operator.unit == "attention":
            tokens = split.tokens
            heads, _ = attention_heads(block.attention, split.tp)
            value_size = block.attention.value_size or block.attention.head_size
            kept_bytes += BF16 * tokens * heads * value_size + FP32 * tokens * heads
        elif dtype == "fp8" and operator.low_precision:
            if operator is not operators[-2]:
                shares[operator.name] = 1.0
        elif operator.has_weights and operator.groups == 1:
            rows, _, columns = operator.shape
            again = 0
            for width in _widths(operator, block, split):
                num_products += 1
                again += width if num_products % 2 == 0 else 0
            kept_bytes += BF16 * rows * (columns - again)
            if again:
                shares[operator.name] = again / columns
        else:
            shares[operator.name] = 1.0
    return shares, kept_bytes


def _widths(operator: Operator, block: Block, split: Split) -> Iterator[int]:
    """Yield the columns of the products that torchtitan has for one of ours.

    Queries, keys and values are products of their own, and so are gate and input of a
    gated MLP.
    """
    columns = operator.shape[2]
    if operator.name == "qkv":
        shape = block.attention
        heads, kv_heads = attention_heads(shape, split.tp)
        values = 0
        if shape.key_value_parts == 2:
            values = kv_heads * (shape.value_size or shape.head_size)
        yield heads * shape.head_size
        yield columns - heads * shape.head_size - values
        yield values
    elif operator.name in ("mlp up", "shared up") and block.mlp.gated:
        yield columns // 2
        yield columns - columns // 2
    else:
        yield columns
