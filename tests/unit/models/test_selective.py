"""What torchtitan's checkpointing of operators runs again, by hand."""

from __future__ import annotations

import pytest

from nest.hardware import machine
from nest.models.blocks import Attention, Block, Mlp
from nest.models.operators.base import Execution, Split
from nest.models.operators.nodes import block_node, embedding_node
from nest.models.operators.timing import layer_cost
from nest.models.zoo import architecture

#: Four query heads and two of keys and values, of 16 values each.
BLOCK = Block(
    name="decoder",
    hidden=64,
    attention=Attention(heads=4, kv_heads=2, head_size=16, rotary=True),
    mlp=Mlp(hidden=96, gated=True),
)
SPLIT = Split(samples=1, sequence_length=128)
EVERY_OTHER = Execution(selective_operators=True)


def test_every_other_product_runs_again() -> None:
    """Of q, k, v, o, gate, input, down: k, o and input, 32 of 128 columns of qkv.

    Kept of a token are the block's 64 inputs, 64 queries, 32 values, 64 outputs of
    attention with 4 sums in fp32, 96 of the gate and the last 64.
    """
    node = block_node(BLOCK, SPLIT, EVERY_OTHER)
    assert node.repeated_shares == {
        "norm 1": 1,
        "qkv": 0.25,
        "rotary": 1,
        "attention output": 1,
        "residual 1": 1,
        "norm 2": 1,
        "mlp up": 0.5,
        "activation function": 1,
    }
    assert node.kept_bytes["selective"] == 128 * (
        2 * (64 + 64 + 32 + 64 + 96 + 64) + 4 * 4
    )
    plain = block_node(BLOCK, SPLIT)
    assert node.kept_bytes["none"] == plain.kept_bytes["none"]
    assert plain.share_repeated("attention core") == 1
    assert plain.share_repeated("qkv") == 0


def test_products_in_fp8_run_again_all_but_the_last() -> None:
    """Kept are the block's 64 inputs, and of attention 64 outputs and 4 sums."""
    node = block_node(BLOCK, SPLIT, Execution(selective_operators=True, dtype="fp8"))
    again = {name: share for name, share in node.repeated_shares.items() if share == 1}
    assert again == node.repeated_shares
    assert {"qkv", "attention output", "mlp up"} < again.keys()
    assert not {"mlp down", "attention core"} & again.keys()
    assert node.kept_bytes["selective"] == 128 * (2 * (64 + 64) + 4 * 4)


def test_a_part_of_an_operator_takes_its_share_of_the_time() -> None:
    """Without attention kernels; hosts issue the same share of launches."""
    site = machine("a100")
    node = block_node(BLOCK, SPLIT, EVERY_OTHER)
    cost = layer_cost([(node, 1)], SPLIT, site, EVERY_OTHER)
    extra = next(x for x in cost.activations if x.recompute == "selective")
    host_ns = site.calibration.host_ns
    # Five kernels beside products, and of products a quarter, one and a half.
    assert extra.extra_host_ns == pytest.approx((5 + 0.25 + 1 + 0.5) * host_ns)
    assert 0 < extra.extra_ns < cost.forward_ns


def test_a_layer_without_a_checkpoint_keeps_all() -> None:
    tower = architecture("llama2-7b").towers[0]
    node = embedding_node(tower, SPLIT)
    assert node.kept_bytes["full"] == 8 * 128
    cost = layer_cost([(node.without_checkpoint(), 1)], SPLIT, machine("a100"))
    assert {x.kept_bytes for x in cost.activations} == {node.kept_bytes["none"]}
    assert [x.reruns for x in cost.activations] == [True, True, False]
