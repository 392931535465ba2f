"""Operators by hand: what the built-in models alone do not reach.

Numbers are for one device and one micro-batch; ``T`` tokens, ``h`` width.
"""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from nest.errors import InvalidProblemError
from nest.hardware import Machine, machine
from nest.hardware.calibration import Calibration
from nest.ir.graph import CollectiveCall, Phase
from nest.models.blocks import Attention, Block, Head, Mlp, RepeatedBlock, Tower
from nest.models.operators.base import Execution, Node, Operator, Product, Split
from nest.models.operators.nodes import block_node, embedding_node, head_node
from nest.models.operators.timing import layer_cost, operator_ns

ROUND = Calibration(
    matmul_fraction=0.8,
    matmul_half_size=128,
    misaligned_fraction=0.1,
    attention_fraction=0.5,
    memory_fraction=0.8,
    host_ns=1000,
)


def at(name: str) -> Machine:
    """Return a machine that reaches round fractions of its rates."""
    return machine(name).with_calibration(ROUND)


def operators(node: Node) -> dict[str, Operator]:
    return {operator.name: operator for operator in node.operators}


def product(m: int, k: int, n: int, low_precision: bool = False) -> Operator:
    """Return a product whose backward pass is two of the same size."""
    flops, size = 2 * m * k * n, 2 * (m * k + k * n + m * n)
    return Operator(
        "product",
        "matmul",
        flops,
        size,
        2 * flops,
        2 * size,
        shape=(m, k, n),
        low_precision=low_precision,
    )


# Time


def test_waiting_for_the_host() -> None:
    """Kernels of 5 and 1 µs that the host issues in 2: 5 + 2."""
    hbm = at("a100").device.hbm_bytes_per_s
    assert hbm is not None
    us = int(hbm * 0.8 / 1e6)

    def forward_us(*times: int) -> float:
        node = Node(
            operators=tuple(
                Operator(f"{i}", "memory", 0, time * us, 0, 0)
                for i, time in enumerate(times)
            ),
            collectives=(),
            weights=0,
            kept_bytes={"none": 0, "selective": 0, "full": 0},
            working_bytes=0,
        )
        site = at("a100").with_calibration(replace(ROUND, host_ns=2000))
        cost = layer_cost([(node, 1)], Split(sequence_length=1), site)
        return cost.forward_ns / 1000

    assert forward_us(5, 1) == pytest.approx(7, rel=1e-5)
    assert forward_us(1, 1) == pytest.approx(4, rel=1e-5)


def test_small_dimensions_lower_the_efficiency() -> None:
    """128 x 128 x 384: 0.8 · 1/2 · 1/2 · 3/4 = 0.15 of 312e12 FLOP/s.

    2 · 128 · 128 · 384 = 12,582,912 FLOPs at 46.8e12: 268.86 ns. The
    2 (16,384 + 49,152 + 49,152) = 229,376 bytes take 140.62 ns.
    """
    forward_ns, backward_ns = operator_ns(product(128, 128, 384), at("a100"))
    assert forward_ns == pytest.approx(12_582_912 / 46_800)
    assert backward_ns == pytest.approx(2 * 12_582_912 / 46_800)


def test_the_memory_bound_side_of_the_roofline() -> None:
    """8 x 1024 x 1024: 2 (8192 + 1,048,576 + 8192) bytes at 1631.2 per ns.

    At 0.8 · 8/136 · (8/9)² = 0.0372 of the peak its 16.8 MFLOPs take
    1446 ns; the 2,129,920 bytes take 1305.7 ns. With 64 times the width of
    the last dimension, bytes win.
    """
    one = product(8, 1024, 1024)
    assert one.forward_bytes == 2_129_920
    e = 0.8 * (8 / 136) * (8 / 9) ** 2
    assert operator_ns(one, at("a100"))[0] == pytest.approx(16_777_216 / (312e3 * e))
    wide = product(8, 65_536, 65_536)
    assert operator_ns(wide, at("a100"))[0] == pytest.approx(
        wide.forward_bytes / 1631.2
    )


def test_misaligned_dimensions() -> None:
    """388 is no multiple of 8: 0.1 instead of 0.8 · 1/4 · 388/516 = 0.15."""
    forward_ns, _ = operator_ns(product(128, 128, 388), at("a100"))
    assert forward_ns == pytest.approx(2 * 128 * 128 * 388 / 31_200)
    # Small aligned products may be slower than the misaligned rate.
    slow = 0.8 * (8 / 136) ** 3
    forward_ns, _ = operator_ns(product(8, 8, 8), at("a100"))
    assert forward_ns == pytest.approx(1024 / (312e3 * slow))


def test_fp8_multiplies_faster_and_casts() -> None:
    """Twice the rate on an H100; 3 bytes per value for the cast."""
    h100 = at("h100")
    peak = h100.device.peak_flops["fp8"] / 1e9
    bytes_per_ns = (h100.device.hbm_bytes_per_s or 0) * 0.8 / 1e9
    large = product(8192, 8192, 8192, low_precision=True)
    e = 0.8 * (8192 / 8320) ** 3
    cast_ns = 3 * 3 * 8192**2 / bytes_per_ns
    forward_ns, backward_ns = operator_ns(large, h100, "fp8")
    assert forward_ns == pytest.approx(2 * 8192**3 / (peak * e) + cast_ns)
    assert backward_ns == pytest.approx(4 * 8192**3 / (peak * e) + cast_ns)
    plain = product(8192, 8192, 8192)
    assert operator_ns(plain, h100, "fp8") == operator_ns(plain, h100, "bf16")


def test_a_data_type_that_the_device_does_not_multiply() -> None:
    with pytest.raises(
        InvalidProblemError,
        match=r"^dtype: expected one of .*fp16.*, which A100.* multiplies, "
        r"got 'fp8'; choose another$",
    ):
        operator_ns(product(8, 8, 8, low_precision=True), at("a100"), "fp8")


def test_the_host_launches_kernels() -> None:
    """A pass takes at least 1 µs per kernel: 1 + 3 forward, 2 + 5 backward.

    ``selective`` repeats the second operator: 3 µs.
    """
    node = Node(
        operators=(
            Operator("a", "memory", 0, 8, 0, 8),
            Operator("b", "memory", 0, 8, 0, 8, kernels=3, backward_kernels=5),
        ),
        collectives=(),
        weights=0,
        kept_bytes={"none": 30, "selective": 20, "full": 10},
        repeated=("b",),
        working_bytes=7,
    )
    split = Split(sequence_length=1)
    cost = layer_cost([(node, 2)], split, at("a100"))
    assert (cost.forward_ns, cost.backward_ns) == (8000, 14_000)
    assert [a.extra_ns for a in cost.activations] == [0, 6000, 0]
    assert [a.kept_bytes for a in cost.activations] == [60, 40, 20]
    assert [a.working_bytes for a in cost.activations] == [0, 10, 20]
    assert cost.working_bytes == 7


@pytest.mark.parametrize(
    ("host_ns", "passes_ns", "extra_ns"),
    [
        # Nothing is stated: files stay what they are.
        (0, (0, 0), [0, 0, 0]),
        # Twice 4 kernels and 2 calls of 1.5 forward, twice 7 and a call
        # backward; the second operator again, without any call.
        (100, (1400, 1700), [0, 600, 0]),
    ],
)
def test_the_host_issues_kernels_and_collectives(
    host_ns: float, passes_ns: tuple[float, float], extra_ns: list[float]
) -> None:
    def reduce(phase: Phase, count: int) -> CollectiveCall:
        return CollectiveCall(
            kind="all-reduce", axis="tp", phase=phase, size_bytes=8, count=count
        )

    node = Node(
        operators=(
            Operator("a", "memory", 0, 8, 0, 8),
            Operator("b", "memory", 0, 8, 0, 8, kernels=3, backward_kernels=5),
        ),
        collectives=(reduce("forward", 2), reduce("backward", 1)),
        weights=0,
        kept_bytes={"none": 30, "selective": 20, "full": 10},
        repeated=("b",),
        working_bytes=7,
    )
    site = at("a100").with_calibration(
        replace(ROUND, host_ns=host_ns, collective_kernels=1.5)
    )
    split = Split(sequence_length=1, tp=2)
    cost = layer_cost([(node, 2)], split, site)
    assert (cost.forward_host_ns, cost.backward_host_ns) == passes_ns
    assert [a.extra_host_ns for a in cost.activations] == extra_ns
    assert (b"host" in msgspec.json.encode(cost)) == (host_ns > 0)
    # No operator takes less than its kernels, whatever collectives there are.
    device_ns = 2 * 16 / 1631.2
    assert (cost.forward_ns, cost.backward_ns) == pytest.approx(
        (800, 1400) if host_ns else (device_ns, device_ns), rel=1e-3
    )


# Attention

GPT = Block(
    name="decoder",
    hidden=1024,
    attention=Attention(
        heads=16, kv_heads=16, head_size=64, biases=True, output_bias=True
    ),
    mlp=Mlp(hidden=4096, biases=True),
    layer_norm=True,
    dropout=True,
)


def test_unfused_attention() -> None:
    """34 sbh/t + 5 as²b/t bytes, all products in full (Korthikanti §4).

    Per product 2 s² h/t FLOPs forward and twice that backward, over all
    positions. Scores are b a s²/t = 2 · 8 · 512² = 4,194,304 values; softmax
    reads and writes them (4 bytes), dropout adds a mask (5).
    """
    split = Split(tp=2, samples=2, sequence_length=512)
    node = block_node(GPT, split, Execution(flash_attention=False))
    part, scores = 2 * 512 * 1024 // 2, 4_194_304
    assert node.kept_bytes == {
        "none": 34 * part + 5 * scores,
        "selective": 34 * part,
        "full": 2 * part,
        "offload": 2 * part,
    }
    named = operators(node)
    for name in ("scores", "context"):
        flops = 2 * 2 * 512 * 512 * 512
        assert named[name].forward_flops == flops
        assert named[name].backward_flops == 2 * flops
    assert named["scores"].shape == (512, 64, 512)
    assert named["context"].shape == (512, 512, 64)
    assert named["softmax"].forward_bytes == 4 * scores
    assert named["attention dropout"].forward_bytes == 5 * scores
    assert node.repeated == ("scores", "softmax", "attention dropout", "context")
    # Gathered input, two score gradients.
    assert node.working_bytes == 2 * 2 * part + 2 * 2 * scores


def test_unfused_kernels() -> None:
    """Five kernels for a norm: four more times 2 bytes in and 2 out."""
    split = Split(sequence_length=512)
    fused = operators(block_node(GPT, split))["norm 1"]
    loose = operators(block_node(GPT, split, Execution(fused=False)))["norm 1"]
    values = 512 * 1024
    assert (fused.kernels, loose.kernels) == (1, 5)
    assert fused.forward_bytes == 4 * values
    assert loose.forward_bytes == 20 * values
    assert loose.backward_bytes == 22 * values


def test_unfused_norms_and_gates_keep_more() -> None:
    """Two norms: the input in fp32 and a 16-bit value each, 12 h per token.

    The activated gate, 2 f per token, only where there is a gate.
    """
    split = Split(sequence_length=512)
    gated = replace(GPT, mlp=Mlp(hidden=3072, gated=True))

    def more(block: Block, choice: str) -> int:
        loose = block_node(block, split, Execution(fused=False)).kept_bytes
        kept = block_node(block, split).kept_bytes
        return dict(loose)[choice] - dict(kept)[choice]

    assert more(GPT, "none") == more(GPT, "selective") == 512 * 12 * 1024
    assert more(GPT, "full") == 0
    assert more(gated, "none") == 512 * (12 * 1024 + 2 * 3072)
    assert more(gated, "selective") == 512 * 12 * 1024


def test_a_causal_mask_halves_and_a_window_bounds() -> None:
    """Per token 4 h FLOPs for every position that it sees."""
    split = Split(sequence_length=4096)

    def core(**changes: object) -> float:
        shape = replace(GPT.attention, **changes)
        block = replace(GPT, attention=shape)
        return operators(block_node(block, split))["attention core"].forward_flops

    per_position = 4096 * 4 * 1024
    assert core(causal=False) == 4096 * per_position
    assert core() == 2048 * per_position
    assert core(window=512) == 512 * per_position
    assert core(window=8192) == 2048 * per_position


def test_cross_attention() -> None:
    """Keys and values of 512 source tokens for 128 target tokens.

    Weights: query, key, value, output: 4 h². The query takes 2 · 128 h², keys
    and values 4 · 512 h² FLOPs, the core 4 · 128 · 512 h, unmasked. Kept of
    it: inputs h (query), 2 · 512 h (keys, values), the output and row sums.
    """
    cross = Attention(heads=16, kv_heads=16, head_size=64, cross=True)
    block = replace(GPT, cross_attention=cross, norms=3)
    split = Split(sequence_length=128, source_length=512)
    node, plain = block_node(block, split), block_node(GPT, split)
    h = 1024
    assert node.weights - plain.weights == 4 * h * h + 2 * h
    extra = node.flops()[0] - plain.flops()[0]
    products = (2 * 128 + 4 * 512 + 2 * 128) * h * h
    assert extra == products + 4 * 128 * 512 * h
    # Norm input and output, dropout mask; Q, K, V; output and row sums.
    kept = 5 * 128 * h + 2 * (128 + 2 * 512) * h + 2 * 128 * h + 4 * 128 * 16
    assert node.kept_bytes["none"] - plain.kept_bytes["none"] == kept


def test_latent_attention() -> None:
    """DeepSeek-V3: 187,107,328 weights, 2 FLOPs per weight and token.

    7168 · 1536 + 1536 · 128 · 192 (query), 7168 · 576 + 512 · 128 · 256 (key
    and value), 128 · 128 · 7168 (output) and two norms of 1536 and 512. The
    core multiplies heads of 192 and of 128: 2 (192 + 128) · 128 s/2.
    """
    shape = Attention(
        heads=128,
        kv_heads=128,
        head_size=192,
        value_size=128,
        rotary=True,
        query_rank=1536,
        key_value_rank=512,
        rotary_size=64,
    )
    block = Block(name="decoder", hidden=7168, attention=shape, mlp=Mlp(hidden=8))
    node = block_node(block, Split(sequence_length=4096))
    weights = (
        7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256 + 128 * 128 * 7168
    )
    assert weights + 1536 + 512 == 187_107_328
    mlp = 2 * 7168 * 8
    assert node.weights == 187_107_328 + 2 * 7168 + mlp
    core = 2 * 4096 * 2048 * 128 * (192 + 128)
    assert node.flops()[0] == 2 * 4096 * (weights + mlp) + core


def test_four_norms_keep_their_inputs() -> None:
    """Norms of the two outputs: 2 h weights and 4 h bytes per token more."""
    block = replace(GPT, norms=4)
    split = Split(sequence_length=512)
    node, plain = block_node(block, split), block_node(GPT, split)
    assert node.weights - plain.weights == 4 * 1024
    values = 512 * 1024
    assert node.kept_bytes["none"] - plain.kept_bytes["none"] == 4 * values
    assert {"output norm 1", "output norm 2"} <= set(operators(node))


# Embedding


def tower(**changes: object) -> Tower:
    plain = Tower(runs=(RepeatedBlock(block=GPT, count=2),), vocabulary=1000)
    return replace(plain, **changes)


def test_embedding_of_tokens() -> None:
    """1000 tokens become 1024 rows; on two devices 512 each.

    Positions are whole on every device. Kept: 8 bytes per token, and the
    dropout mask of half of the tokens.
    """
    split = Split(tp=2, sequence_length=256)
    node = embedding_node(tower(learned_positions=256), split)
    assert node.weights == (512 + 256) * 1024
    mask = 128 * 1024
    assert node.kept_bytes == {
        "none": 8 * 256 + mask,
        "selective": 8 * 256 + mask,
        "full": 8 * 256,
        "offload": 8 * 256 + mask,
    }
    assert [(c.kind, c.phase, c.size_bytes) for c in node.collectives] == [
        ("reduce-scatter", "forward", 2 * 256 * 1024),
        ("all-gather", "backward", 2 * 256 * 1024),
    ]
    look_up = operators(node)["look-up"]
    assert look_up.forward_bytes == 4 * 256 * 1024
    assert look_up.backward_bytes == 6 * 256 * 1024


def test_embedding_without_sequence_parallelism_is_summed_once() -> None:
    split = Split(tp=2, sequence_length=256, sequence_parallel=False)
    node = embedding_node(tower(), split)
    assert [(c.kind, c.phase) for c in node.collectives] == [("all-reduce", "forward")]


def test_embedding_of_patches() -> None:
    """16 x 16 x 3 values to h: a product, and no table to cut."""
    split = Split(sequence_length=256)
    node = embedding_node(tower(vocabulary=0, patch_values=768), split)
    assert node.weights == 769 * 1024
    assert operators(node)["patches"].forward_flops == 2 * 256 * 768 * 1024
    assert node.kept_bytes["full"] == 2 * 256 * 768


def test_a_shared_embedding_has_no_weights_of_its_own() -> None:
    split = Split(sequence_length=256)
    assert embedding_node(tower(shares_embedding="other"), split).weights == 0


def test_embedding_norm() -> None:
    split = Split(sequence_length=256)
    node = embedding_node(tower(embedding_norm=True), split)
    assert node.weights == 1024 * 1024 + 2 * 1024
    assert operators(node)["embedding norm"].forward_bytes == 4 * 256 * 1024


# Head


def test_head_of_a_language_model() -> None:
    """fp32 logits of 512 columns of two devices, and the norm in front.

    Kept: 4 bytes per logit, input and output of the norm; the working set
    holds the gathered input and the gradient of the logits.
    """
    split = Split(tp=2, sequence_length=256)
    node = head_node(Head(outputs=1000), 1024, split, norm_weights=2048)
    assert node.weights == 512 * 1024 + 2048
    logits, outer = 256 * 512, 128 * 1024
    assert node.kept_bytes == {
        "none": 4 * logits + 4 * outer,
        "selective": 4 * logits + 2 * outer,
        "full": 2 * outer,
        "offload": 4 * logits + 4 * outer,
    }
    assert node.working_bytes == 2 * 256 * 1024 + 2 * logits
    assert operators(node)["loss"].forward_bytes == 14 * logits
    assert [(c.kind, c.phase, c.count) for c in node.collectives] == [
        ("all-gather", "forward", 1),
        ("all-reduce", "forward", 3),
        ("reduce-scatter", "backward", 1),
    ]


def test_head_with_transform_and_bias() -> None:
    """BERT: h² + h and a norm of 2 h in front, a bias per row."""
    split = Split(sequence_length=256)
    node = head_node(Head(outputs=1000, transform=True, bias=True), 1024, split)
    assert node.weights == 1024 * 1024 + 1024 + 1024**2 + 3 * 1024
    assert operators(node)["transform"].forward_flops == 2 * 256 * 1024**2


def test_pooled_head() -> None:
    """One vector per sample, unpadded, whole on every device."""
    split = Split(tp=2, samples=4, sequence_length=256)
    node = head_node(Head(outputs=1000, pooled=True), 1024, split)
    assert node.weights == 1000 * 1024
    assert node.collectives == ()
    assert operators(node)["output layer"].forward_flops == 8 * 1024 * 1000
    assert node.kept_bytes["none"] == 4 * 4 * 1000 + 2 * 4 * 1024


def test_the_loss_is_fused_or_not() -> None:
    """14 bytes per logit each way; 38 and 22 in single steps."""
    split = Split(sequence_length=256)
    logits = 256 * 1024
    for fused, sizes in ((True, (14, 14)), (False, (38, 22))):
        node = head_node(Head(outputs=1000), 1024, split, Execution(fused_loss=fused))
        loss = operators(node)["loss"]
        assert loss.forward_bytes == sizes[0] * logits
        assert loss.backward_bytes == sizes[1] * logits


def test_logits_take_what_software_keeps_of_them() -> None:
    """4 bytes kept and 2 in work by default; of eager PyTorch 8 in work."""
    split = Split(sequence_length=256)
    logits = 256 * 1024
    fused = head_node(Head(outputs=1000), 1024, split)
    eager = Execution(logit_bytes=8, loss_bytes=8)
    loose = head_node(Head(outputs=1000), 1024, split, eager)
    kept = loose.kept_bytes["none"] - fused.kept_bytes["none"]
    assert kept == (8 - 4) * logits
    assert fused.working_bytes == 2 * logits
    assert loose.working_bytes == 8 * logits


def test_the_fused_softmax_takes_matrices_by_four() -> None:
    """16 heads over 8 devices: two matrices per sample."""
    unfused = Execution(flash_attention=False)
    for samples, kernels in ((1, 5), (2, 1), (3, 5), (4, 1)):
        split = Split(tp=8, samples=samples, sequence_length=512)
        node = block_node(GPT, split, unfused)
        assert operators(node)["softmax"].kernels == kernels
    single = replace(unfused, fused_softmax=False)
    split = Split(samples=4, sequence_length=512)
    softmax = operators(block_node(GPT, split, single))["softmax"]
    assert softmax.kernels == 5
    assert softmax.forward_bytes == (4 + 4 * 4) * 4 * 16 * 512 * 512


def test_rows_of_experts_are_padded() -> None:
    """512 tokens x 2 visits over 3 experts: 341.3 rows become 344."""
    moe = replace(GPT, mlp=Mlp(hidden=1024, experts=3, experts_per_token=2))
    up = operators(block_node(moe, Split(sequence_length=512)))["mlp up"]
    assert up.shape == (344, 1024, 1024)
    assert up.forward_flops == 2 * 1024 * 1024 * 1024
    assert up.kernels == 3


def _with(**changes: float) -> Machine:
    return at("h100").with_calibration(replace(ROUND, **changes))


def test_few_blocks_of_queries_occupy_a_device_in_part() -> None:
    """2048 tokens and 4 heads are 16 · 4 = 64 blocks: with a half of 192
    attention runs at 64/256 of its rate; 8 times the samples at 512/704.

    4 heads of 64: 2 · 2048 · 1024 · 512 FLOPs at 0.5 · 989e12.
    """
    block = Block(
        name="decoder",
        hidden=256,
        attention=Attention(heads=4, kv_heads=4, head_size=64),
        mlp=Mlp(hidden=1024),
    )
    flops = 2 * 2048 * 1024 * 512
    for samples, occupied in ((1, 64 / 256), (8, 512 / 704)):
        split = Split(samples=samples, sequence_length=2048)
        core = operators(block_node(block, split))["attention core"]
        assert core.blocks == samples * 64
        alone_ns = samples * flops / (0.5 * 989e3)
        site = _with(attention_half_blocks=192)
        assert operator_ns(core, at("h100"))[0] == pytest.approx(alone_ns)
        assert operator_ns(core, site)[0] == pytest.approx(alone_ns / occupied)


def test_fp8_reaches_its_own_share_and_casts_its_own_bytes() -> None:
    """7/8 of the share of the peak, 1.5 bytes per value instead of 3."""
    site = _with(low_precision_fraction=0.875, cast_bytes=1.5)
    bytes_per_ns = (site.device.hbm_bytes_per_s or 0) * 0.8 / 1e9
    e = 0.875 * 0.8 * (8192 / 8320) ** 3
    large = product(8192, 8192, 8192, low_precision=True)
    assert operator_ns(large, site, "fp8")[0] == pytest.approx(
        2 * 8192**3 / (1979e3 * e) + 1.5 * 3 * 8192**2 / bytes_per_ns
    )
    # 16 bits know neither.
    assert operator_ns(large, site) == operator_ns(large, at("h100"))


MOE = Block(
    name="decoder",
    hidden=256,
    attention=Attention(heads=4, kv_heads=4, head_size=64),
    mlp=Mlp(hidden=512, experts=16, experts_per_token=2),
)


def test_routed_tokens_pass_memory_more_often() -> None:
    """512 · 2 · 256 values: 4 bytes each to dispatch them, 2.5 times."""
    node = block_node(MOE, Split(sequence_length=512))
    dispatch = operators(node)["dispatch"]
    assert dispatch.forward_bytes == 4 * 512 * 2 * 256
    site = _with(routing_passes=2.5)
    bytes_per_ns = (site.device.hbm_bytes_per_s or 0) * 0.8 / 1e9
    assert operator_ns(dispatch, site)[0] == pytest.approx(
        2.5 * dispatch.forward_bytes / bytes_per_ns
    )
    residual = operators(node)["residual 1"]
    assert operator_ns(residual, site) == operator_ns(residual, at("h100"))


def test_hosts_issue_products_of_experts_faster() -> None:
    """16 experts: 1 + 15/4 = 4.75 kernels in place of 16, 9.5 of 32."""
    node = block_node(MOE, Split(sequence_length=512))
    found = operators(node)
    assert found["mlp up"].groups == found["mlp up"].kernels == 16
    only = replace(node, operators=(found["mlp up"],), collectives=())
    costs = [
        layer_cost(
            [(only, 1)],
            Split(sequence_length=512),
            _with(host_ns=1e6, expert_kernels=share),
        )
        for share in (1, 0.25)
    ]
    assert [c.forward_host_ns for c in costs] == [16e6, 4.75e6]
    assert [c.backward_host_ns for c in costs] == [32e6, 9.5e6]
    # Launches are what these passes take.
    assert [c.forward_ns for c in costs] == [16e6, 4.75e6]


@pytest.mark.parametrize(
    ("split", "execution", "values"),
    [
        # A copy for each expert: 512 tokens, 2 experts, 256 values.
        (Split(ep=4, sequence_length=512), Execution(), 262_144),
        # 4 devices with 4 of 16 experts: both of a token's are elsewhere
        # with 12/16 · 11/15 = 0.55, so it is sent to 4 · 0.45 = 1.8 of them.
        (Split(ep=4, sequence_length=512), Execution(dispatch_node=8), 235_930),
        # 2 nodes with 8 of them: 2 · (1 - 8/16 · 7/15) = 1.533.
        (Split(ep=4, sequence_length=512), Execution(dispatch_node=2), 200_977),
        # The same nodes, of tensor parallel groups: 4 times the devices.
        (
            Split(ep=4, tp=4, sequence_length=2048),
            Execution(dispatch_node=8, expert_tp=False),
            200_977,
        ),
        # A device for each expert: again a copy for each.
        (Split(ep=16, sequence_length=512), Execution(dispatch_node=16), 262_144),
    ],
)
def test_tokens_are_sent_once_to_a_device_or_a_node(
    split: Split, execution: Execution, values: int
) -> None:
    calls = {
        call.size_bytes
        for call in block_node(MOE, split, execution).collectives
        if call.axis == "ep"
    }
    assert calls == {2 * values}


@pytest.mark.parametrize(
    ("ep", "node", "values"),
    [
        # 8 of 16 experts are eligible, of 2 of 4 groups. A node has 2 groups:
        # of these one is with 4/6, and has an expert with
        # 1 - 4/8 · 3/7 = 11/14, both are with 1/6: 0.6905 of 2 nodes.
        (4, 2, 181_004),
        # A device has half a group, which is one of these with 1/2, and then
        # an expert with 1 - 6/8 · 5/7 = 13/28: 0.2321 of 8 devices.
        (8, 8, 243_419),
    ],
)
def test_experts_of_a_token_are_of_some_groups(ep: int, node: int, values: int) -> None:
    limited = replace(MOE, mlp=replace(MOE.mlp, groups=4, token_groups=2))
    split = Split(ep=ep, sequence_length=512)
    node_of = block_node(limited, split, Execution(dispatch_node=node))
    assert {call.size_bytes for call in node_of.collectives if call.axis == "ep"} == {
        2 * values
    }


def test_a_router_that_is_not_fused_launches_more() -> None:
    """8 kernels and 4 back; each of 512 · 16 scores moves 8 · 4 bytes."""
    split = Split(sequence_length=512)
    fused = operators(block_node(MOE, split))
    loose = operators(block_node(MOE, split, Execution(fused_router=False)))
    assert set(loose) - set(fused) == {"routing"}
    found = loose["routing"]
    assert (found.kernels, found.backward_kernels) == (8, 4)
    assert found.forward_bytes == found.backward_bytes == 512 * 16 * 8 * 4
    assert found.forward_flops == found.backward_flops == 0


def test_fused_products_of_experts_write_what_is_activated_and_cast() -> None:
    """No activation function and no casts apart; the rest is as it was."""
    split = Split(sequence_length=512)
    plain = operators(block_node(MOE, split, Execution(dtype="fp8")))
    fused = operators(
        block_node(MOE, split, Execution(dtype="fp8", fused_experts=True))
    )
    assert set(plain) - set(fused) == {"activation function"}
    site = _with(cast_bytes=1.5)
    bytes_per_ns = (site.device.hbm_bytes_per_s or 0) * 0.8 / 1e9
    for name in ("mlp up", "mlp down"):
        # Bytes are counted in 16 bits, two for each value.
        cast_ns = 1.5 * plain[name].forward_bytes / 2 / bytes_per_ns
        for apart, inside in zip(
            operator_ns(plain[name], site, "fp8"),
            operator_ns(fused[name], site, "fp8"),
            strict=True,
        ):
            assert apart - inside == pytest.approx(cast_ns)
    assert operator_ns(fused["qkv"], site, "fp8") == operator_ns(
        plain["qkv"], site, "fp8"
    )


def test_exponentials_take_their_share_of_attention() -> None:
    """989 TFLOP/s and 3.9 T/s: 63.4 values; heads of 64, 128 and 320.

    Forward 64 / 127.4 = 0.502 of the time is products, of heads of 128
    0.669; backward, with 2.5 times the products, 0.716 and 0.835. A device
    with twice the exponentials is faster with heads of 128, too.
    """
    size = 989 / 4 / 3.9
    site = _with(exponential_size=size)
    assert site.exponential_size == pytest.approx(size)
    twice = replace(site, exponentials_per_s=7.8e12)

    def core(head_size: int) -> Operator:
        block = replace(
            GPT, attention=Attention(heads=4, kv_heads=4, head_size=head_size)
        )
        node = block_node(block, Split(sequence_length=4096))
        found = operators(node)["attention core"]
        assert found.head_size == head_size
        return found

    for head_size, where, own in (
        (64, site, size),
        (128, site, size),
        (320, site, size),
        (128, twice, size / 2),
    ):
        times = operator_ns(core(head_size), where)
        plain = operator_ns(core(head_size), at("h100"))
        for time_ns, plain_ns, products in zip(times, plain, (1, 2.5), strict=True):
            busy = head_size / (head_size + own / products)
            held = 128 / (128 + size / products)
            assert time_ns == pytest.approx(plain_ns * held / busy)
    # Where a device's are not known, nothing changes.
    unknown = replace(site, exponentials_per_s=None)
    assert operator_ns(core(64), unknown) == operator_ns(core(64), at("h100"))


def test_less_power_sustains_less_of_the_peak() -> None:
    """500 of 700 W at one peak, with 1/2: 0.845 of the share.

    Nothing where either figure is not known, and nothing of memory.
    """
    low = replace(at("h100"), power_w=500.0)
    rates = replace(ROUND, watts_per_tflops=700 / 989, power_exponent=0.5)
    large = product(8192, 8192, 8192)
    full_ns = operator_ns(large, at("h100"))[0]
    assert operator_ns(large, low)[0] == full_ns
    slow = low.with_calibration(rates)
    assert operator_ns(large, slow)[0] == pytest.approx(full_ns / (5 / 7) ** 0.5)
    same = at("h100").with_calibration(rates)
    assert operator_ns(large, same)[0] == pytest.approx(full_ns)
    unknown = replace(low, power_w=None)
    assert unknown.with_calibration(rates).power_share == 1
    moved = Operator("moved", "memory", 0, 1e9, 0, 1e9)
    assert operator_ns(moved, slow) == operator_ns(moved, same)
    with pytest.raises(
        ValueError, match="power_exponent: expected a number from 0 to 6, got"
    ):
        replace(rates, power_exponent=7)


def test_gradients_are_added_to_those_of_earlier_micro_batches() -> None:
    """10⁶ weights at 6 bytes and 0.8 of 2039 GB/s: 3678 ns, backward.

    Of dense weights and experts, and all of it is for gradients of weights.
    """
    node = Node(
        operators=(product(512, 512, 512)._replace(has_weights=True),),
        weights=400_000,
        expert_weights=600_000,
        kept_bytes={"none": 0, "selective": 0, "full": 0},
    )
    site = at("a100").with_calibration(replace(ROUND, host_ns=0))
    fused, added = (
        layer_cost(
            [(node, 2)],
            Split(sequence_length=1),
            site,
            Execution(accumulation_bytes=size, split_backward=True),
        )
        for size in (0, 6)
    )
    more_ns = 2 * 6e6 / (2039e9 * 0.8) * 1e9
    assert more_ns == pytest.approx(2 * 3678.3, rel=1e-4)
    assert added.forward_ns == fused.forward_ns
    assert added.backward_ns - fused.backward_ns == pytest.approx(more_ns)
    assert (added.weight_backward_ns or 0) - (
        fused.weight_backward_ns or 0
    ) == pytest.approx(more_ns)


def test_experts_are_cut_over_tensor_ranks_or_spread() -> None:
    """16 experts of 512 over ep 2, tp 4: 8 of 128 columns, or 2 of 512.

    Of 1024 tokens a rank has 256, which visit 512 experts, 131,072 values
    of 2 bytes. Spread over 8 ranks, 1/8 stays, 3/8 goes to the other
    tensor ranks and 1/2 to the other group: half of the bytes in an
    all-to-all of 4 (of which 3/4 leave), all in one of 2 (1/2).
    """
    split = Split(tp=4, ep=2, sequence_length=1024)
    cut = block_node(MOE, split)
    spread = block_node(MOE, split, Execution(expert_tp=False))
    up = {"cut": operators(cut), "spread": operators(spread)}
    # 2048 visits over 8 experts of this rank, 512 over 2.
    assert up["cut"]["mlp up"].shape == (256, 256, 128)
    assert up["spread"]["mlp up"].shape == (256, 256, 512)
    assert [up[x]["mlp up"].groups for x in up] == [8, 2]
    assert up["cut"]["mlp up"].forward_flops == up["spread"]["mlp up"].forward_flops
    assert cut.expert_weights == spread.expert_weights

    def calls(node: Node) -> list[tuple[str, str, int, int]]:
        return [
            (call.kind, call.axis, call.size_bytes, call.count)
            for call in node.collectives
            if call.phase == "forward"
        ]

    dense = 2 * 1024 * 256
    assert calls(cut) == [
        ("all-gather", "tp", dense, 1),
        ("reduce-scatter", "tp", dense, 1),
        ("all-gather", "tp", 2 * dense, 1),
        ("reduce-scatter", "tp", 2 * dense, 1),
        ("all-to-all", "ep", 262_144, 2),
    ]
    assert calls(spread) == [
        ("all-gather", "tp", dense, 1),
        ("reduce-scatter", "tp", dense, 1),
        ("all-to-all", "tp", 131_072, 2),
        ("all-to-all", "ep", 262_144, 2),
    ]


def test_tensor_ranks_with_whole_experts_dispatch_their_own_tokens() -> None:
    """16 experts of 512 over 8 of data and tensor ranks: 2 whole ones on each.

    Of 1024 tokens a tensor rank has 256, which visit 512 experts: 131,072 values of
    2 bytes go to 8 ranks. None are gathered: the products have 512 rows. What is
    computed and kept is that of 8 experts in 4 parts, which gather all 2048 rows.
    """
    whole = block_node(MOE, Split(tp=4, ep=8, etp=1, sequence_length=1024))
    cut = block_node(MOE, Split(tp=4, ep=2, sequence_length=1024))
    up = {name: operators(node) for name, node in (("whole", whole), ("cut", cut))}
    assert up["whole"]["mlp up"].products == (Product(256, 256, 512, 2),)
    assert up["cut"]["mlp up"].products == (Product(256, 256, 128, 8),)
    for name in ("router", "dispatch", "combine", "activation function"):
        assert up["whole"][name] == up["cut"][name]
    assert whole.expert_weights == cut.expert_weights
    assert whole.weights == cut.weights
    assert whole.kept_bytes == cut.kept_bytes
    calls = [
        (call.kind, call.axis, call.size_bytes, call.count)
        for call in whole.collectives
        if call.phase == "forward"
    ]
    dense = 2 * 1024 * 256
    assert calls == [
        ("all-gather", "tp", dense, 1),
        ("reduce-scatter", "tp", dense, 1),
        ("all-to-all", "ep", 262_144, 2),
    ]


def test_shared_experts_gather_tokens_where_others_are_whole() -> None:
    """They are cut over tensor ranks: two regions, of attention and of them."""
    block = replace(MOE, mlp=replace(MOE.mlp, shared_hidden=512))
    node = block_node(block, Split(tp=4, ep=8, etp=1, sequence_length=1024))
    regions = [
        (call.kind, call.size_bytes, call.count)
        for call in node.collectives
        if (call.axis, call.phase) == ("tp", "forward")
    ]
    dense = 2 * 1024 * 256
    assert regions == [("all-gather", dense, 2), ("reduce-scatter", dense, 2)]


def test_tokens_for_whole_experts_are_sent_once_to_a_device() -> None:
    """16 experts on 8 ranks of one node, 2 each: 7/15 of pairs share a device.

    Each of two visits goes to one of 8 devices: 8 (1 - 14/16 · 13/15) = 29/15.
    """
    split = Split(tp=4, ep=8, etp=1, sequence_length=1024)
    node = block_node(MOE, split, Execution(dispatch_node=8))
    (size_bytes,) = {c.size_bytes for c in node.collectives if c.axis == "ep"}
    assert size_bytes == 2 * round(131_072 * 29 / 15 / 2)


def test_selective_recomputation_may_keep_a_fused_attention() -> None:
    """Its output, 2 · 512 · 256 bytes, and 4 · 512 · 4 of row sums stay."""
    split = Split(sequence_length=512)
    again, once = (
        block_node(MOE, split, Execution(repeat_attention=repeat))
        for repeat in (True, False)
    )
    assert set(again.repeated) - set(once.repeated) == {"attention core"}
    kept = {
        choice: once.kept_bytes[choice] - again.kept_bytes[choice]
        for choice in ("none", "selective", "full")
    }
    assert kept == {"none": 0, "selective": 2 * 512 * 256 + 4 * 512 * 4, "full": 0}
