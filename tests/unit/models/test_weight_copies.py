"""Copies of weights in fp8 that stay beside those in 16 bits, by hand."""

from __future__ import annotations

import pytest

from nest.hardware import machine
from nest.models.blocks import Attention, Block, Head, Mlp
from nest.models.operators.base import Dtype, Execution, Split
from nest.models.operators.nodes import block_node, head_node
from nest.models.operators.timing import layer_cost

ATTENTION = Attention(heads=4, kv_heads=2, head_size=16, rotary=True)
SPLIT = Split(samples=1, sequence_length=128)

#: Queries, keys and values, and the output of attention.
AROUND = 64 * 128 + 64 * 64


@pytest.mark.parametrize(
    ("dtype", "mlp", "weights"),
    [
        ("bf16", Mlp(hidden=96, gated=True), 0),
        ("fp8", Mlp(hidden=96, gated=True), AROUND + 3 * 64 * 96),
        # Eight experts; the router stays in 16 bits.
        (
            "fp8",
            Mlp(hidden=32, gated=True, experts=8, experts_per_token=2),
            AROUND + 8 * 3 * 64 * 32,
        ),
    ],
)
def test_weights_of_products_have_copies(dtype: Dtype, mlp: Mlp, weights: int) -> None:
    """Two bytes each, whatever is recomputed."""
    execution = Execution(dtype=dtype, weight_copy_bytes=2, offloads=True)
    block = Block(name="decoder", hidden=64, attention=ATTENTION, mlp=mlp)
    node = block_node(block, SPLIT, execution)
    cost = layer_cost([(node, 3)], SPLIT, machine("h100"), execution)
    assert len(cost.activations) == 4
    assert {x.static_bytes for x in cost.activations} == {3 * 2 * weights}


def test_the_output_layer_has_none() -> None:
    execution = Execution(dtype="fp8", weight_copy_bytes=2)
    node = head_node(Head(outputs=1024), 64, SPLIT, execution)
    cost = layer_cost([(node, 1)], SPLIT, machine("h100"), execution)
    assert {x.static_bytes for x in cost.activations} == {0}
