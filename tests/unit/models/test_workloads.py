"""Operator counts by hand, published figures, and the built-in problems."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from nest.errors import InvalidOptionError, UnknownNameError
from nest.hardware import machine, machines
from nest.hardware.calibration import Calibration
from nest.ir import CollectiveCall, Problem, decode_problem, encode
from nest.models import builtin
from nest.models.architectures import Architecture, blocks
from nest.models.operators.base import Execution, Node, Operator, Split
from nest.models.operators.nodes import block_node, embedding_node, head_node
from nest.models.operators.timing import layer_cost
from nest.models.weights import block_weights, final_norm_weights
from nest.models.zoo import ARCHITECTURES, architecture

GPT3 = architecture("gpt3-175b")
LLAMA2 = architecture("llama2-7b")
MIXTRAL = architecture("mixtral-8x7b")
#: Round fractions of the rates, and no other effects.
A100 = machine("dgx-a100").with_calibration(
    Calibration(
        matmul_fraction=0.7,
        matmul_half_size=0,
        misaligned_fraction=0.7,
        attention_fraction=0.5,
        memory_fraction=0.8,
    )
)


def decoder_layer(model: Architecture, split: Split) -> Node:
    return block_node(model.towers[0].runs[0].block, split)


def embedding(model: Architecture, split: Split) -> Node:
    return embedding_node(model.towers[0], split)


def head(model: Architecture, split: Split) -> Node:
    (tower,) = model.towers
    return head_node(
        model.head, tower.hidden, split, norm_weights=final_norm_weights(tower)
    )


def operators(node: Node) -> dict[str, Operator]:
    return {operator.name: operator for operator in node.operators}


def calls(node: Node, axis: str, phase: str) -> dict[str, tuple[int, int]]:
    """Size and count of the collectives, by kind."""
    found: dict[str, tuple[int, int]] = {
        call.kind: (call.size_bytes, call.count)
        for call in node.collectives
        if (call.axis, call.phase) == (axis, phase)
    }
    chosen = [c for c in node.collectives if (c.axis, c.phase) == (axis, phase)]
    assert len(found) == len(chosen)
    return found


# Architectures


def test_biased_experts_are_counted() -> None:
    """Four experts of 8 h² + 5 h each, and a router of 4 h."""
    dense = GPT3.towers[0].runs[0].block
    mlp = msgspec.structs.replace(dense.mlp, experts=4, experts_per_token=1)
    block = msgspec.structs.replace(dense, mlp=mlp)
    layer = block_node(block, Split(sequence_length=2048))
    h = 12288
    assert layer.expert_weights == 4 * (8 * h * h + 5 * h)
    assert layer.weights + layer.expert_weights == block_weights(block)
    assert block_weights(dense) == 12 * h * h + 13 * h
    assert block_weights(block) == (
        12 * h * h + 13 * h + 3 * (8 * h * h + 5 * h) + 4 * h
    )


def test_model_flops_of_gpt3() -> None:
    """Appendix A of Korthikanti et al.: 72 L s h² (1 + s/6h + V/12hL)."""
    layers, s, h, v = 96, 2048, 12288, 50257
    published = 72 * layers * s * h**2 * (1 + s / (6 * h) + v / (12 * h * layers))
    assert GPT3.model_flops(s) == pytest.approx(published, rel=1e-12)


@pytest.mark.parametrize("tp", [1, 4, 8])
@pytest.mark.parametrize(
    "name", ["llama2-7b", "llama2-70b", "gpt3-175b", "mixtral-8x7b", "gemma-7b"]
)
def test_nodes_execute_model_flops(name: str, tp: int) -> None:
    """The nodes execute the model FLOPs, less what the causal mask saves.

    Of the attention core ``c`` (forward, full) the nodes execute half,
    forward and 2.5 times that backward: 1.75 c where the model counts 3 c.
    The padded vocabulary adds less than 2 % of the head.
    """
    model = architecture(name)
    s = 2048
    split = Split(tp=tp, sequence_length=s)
    layer = sum(decoder_layer(model, split).flops())
    executed = tp * (model.layers * layer + sum(head(model, split).flops()))
    core = sum(
        4 * s * s * block.attention.heads * block.attention.head_size
        for block in blocks(model)
    )
    model_flops = model.model_flops(s)
    assert executed == pytest.approx(model_flops - 1.25 * core, rel=1e-3)


# One GPT-3 layer on 8 devices, micro-batch 1: h = 12288, s = 2048, a = 96,
# so that a sequence of activations has s h = 25,165,824 values.


@pytest.fixture
def gpt3_layer() -> Node:
    return decoder_layer(GPT3, Split(tp=8, sequence_length=2048))


def test_gpt3_layer_flops(gpt3_layer: Node) -> None:
    """Products 24 s h²/8 forward, twice that backward; core 2 s² h/8.

    24 s h² = 7.4217e12 (QKV 6, output 2, MLP 16 s h²), and the causal half
    of 4 s² h = 2.0616e11. Backward the core takes 2.5 times as much.
    """
    forward, backward = gpt3_layer.flops()
    assert forward == 7_421_703_487_488 // 8 + 103_079_215_104 // 8
    assert backward == 2 * 7_421_703_487_488 // 8 + 2.5 * 103_079_215_104 / 8
    per_operator = operators(gpt3_layer)
    assert per_operator["mlp up"].forward_flops == 2 * 2048 * 12288 * 6144


def test_gpt3_layer_bytes(gpt3_layer: Node) -> None:
    """QKV reads 2048 x 12288 and 12288 x 4608, writes 2048 x 4608, in bf16.

    The norms run on 1/8 of the tokens: 3,145,728 values, read and written.
    Dropout adds a mask byte per value to the residual additions. The core
    reads Q, K, V and writes O: four times 2048 x 1536 values.
    """
    per_operator = operators(gpt3_layer)
    qkv = 2 * (2048 * 12288 + 12288 * 4608 + 2048 * 4608)
    assert per_operator["qkv"].forward_bytes == qkv == 182_452_224
    assert per_operator["qkv"].backward_bytes == 2 * qkv
    assert per_operator["norm 2"].forward_bytes == 4 * 3_145_728
    assert per_operator["residual 2"].backward_bytes == 7 * 3_145_728
    core = per_operator["attention core"]
    assert core.forward_bytes == 2 * 4 * 2048 * 1536
    assert core.backward_bytes == 2 * 8 * 2048 * 1536
    assert "rotary" not in per_operator


def test_gpt3_layer_weights(gpt3_layer: Node) -> None:
    """(12 h² + biases 7 h of split columns)/8, and 6 h on every device.

    Whole on every device are two norms (4 h) and the biases of the two outputs (2 h).
    """
    h = 12288
    assert gpt3_layer.weights == (12 * h * h + 7 * h) // 8 + 6 * h
    assert gpt3_layer.expert_weights == 0


def test_gpt3_layer_collectives(gpt3_layer: Node) -> None:
    """Two regions: each gathers and scatters 2 s h = 50,331,648 bytes."""
    twice = {"all-gather": (50_331_648, 2), "reduce-scatter": (50_331_648, 2)}
    assert calls(gpt3_layer, "tp", "forward") == twice
    assert calls(gpt3_layer, "tp", "backward") == twice
    assert len(gpt3_layer.collectives) == 4


def test_gpt3_layer_collectives_without_sequence_parallelism() -> None:
    split = Split(tp=8, sequence_length=2048, sequence_parallel=False)
    layer = decoder_layer(GPT3, split)
    assert layer.collectives == tuple(
        CollectiveCall(
            kind="all-reduce", axis="tp", phase=phase, size_bytes=50_331_648, count=2
        )
        for phase in ("forward", "backward")
    )


def test_gpt3_layer_activations(gpt3_layer: Node) -> None:
    """34, 20 and 2 s b h/t bytes, and 4 bytes of row sum per head and token.

    Korthikanti et al. §4.2.2 without the 5 a s/h that fused attention
    removes. Selective drops both norm outputs (4), the attention output (2)
    and the GeLU output (8).
    """
    part = 2048 * 12288 // 8
    row_sums = 4 * 2048 * 96 // 8
    assert gpt3_layer.kept_bytes == {
        "none": 34 * part + row_sums,
        "selective": 20 * part,
        "full": 2 * part,
        "offload": 2 * part,
    }


def test_gpt3_activations_without_sequence_parallelism() -> None:
    """(10 + 24/t) s b h: what surrounds the regions is whole everywhere."""
    split = Split(tp=8, sequence_length=2048, sequence_parallel=False)
    whole = 2048 * 12288
    row_sums = 4 * 2048 * 96 // 8
    kept = decoder_layer(GPT3, split).kept_bytes
    assert kept["none"] == (10 + 24 // 8) * whole + row_sums
    assert kept["full"] == 2 * whole


def test_activations_published_for_gpt3(gpt3_layer: Node) -> None:
    """12.3515625 GiB: Korthikanti et al. figure 1, first of 8 stages.

    Their selective recomputation keeps what fused attention keeps, but for the row
    sums; three interleaved chunks hold (1 + 7/24) micro-batches of all 96 layers.
    """
    kept = gpt3_layer.kept_bytes["none"] - 4 * 2048 * 96 // 8
    assert kept * 96 * (1 + 7 / 24) / 2**30 == 12.3515625


def test_gpt3_layer_working_bytes(gpt3_layer: Node) -> None:
    """The gathered input and two MLP gradients."""
    whole = 2048 * 12288
    gradients = 2 * 2 * 2048 * 49152 // 8
    assert gpt3_layer.working_bytes == 2 * whole + gradients


def test_recomputation_brings_activations_back(gpt3_layer: Node) -> None:
    """What a choice does not keep is in memory while one layer runs."""
    split = Split(tp=8, sequence_length=2048)
    cost = layer_cost([(gpt3_layer, 4)], split, A100)
    kept = gpt3_layer.kept_bytes
    assert {a.recompute: a.working_bytes for a in cost.activations} == {
        "none": 0,
        "selective": kept["none"] - kept["selective"],
        "full": kept["none"] - kept["full"],
    }


def test_gpt3_layer_time(gpt3_layer: Node) -> None:
    """Products at 0.7 · 312e12, core at half peak, the rest at 0.8 HBM.

    Bytes per value of the rest, forward: two norms 4, two residuals 7, GeLU
    4 on 4 h/8 columns of all tokens; that is 22 + 16 on s h/8 values.
    """
    split = Split(tp=8, sequence_length=2048)
    cost = layer_cost([(gpt3_layer, 1)], split, A100)
    part = 2048 * 12288 / 8
    products = 24 * part * 12288 / (0.7 * 312e12)
    core = 2 * part * 2048 / (0.5 * 312e12)
    rest = 38 * part / (0.8 * 2.039e12)
    assert cost.forward_ns == pytest.approx(1e9 * (products + core + rest))
    repeated = (8 + 16) * part / (0.8 * 2.039e12)
    extra_ns = [kept.extra_ns for kept in cost.activations]
    assert extra_ns == [0, pytest.approx(1e9 * (repeated + core)), 0]
    assert cost.weight_bytes == 2 * gpt3_layer.weights


def test_gpt3_layer_gradients_of_weights(gpt3_layer: Node) -> None:
    """A third of all products, at 0.7 · 312e12; attention has no weights.

    Only where they are asked for.
    """
    split = Split(tp=8, sequence_length=2048)
    part = 2048 * 12288 / 8
    products = 24 * part * 12288 / (0.7 * 312e12)
    for flash in (True, False):
        execution = Execution(flash_attention=flash, split_backward=True)
        block = GPT3.towers[0].runs[0].block
        node = block_node(block, split, execution)
        cost = layer_cost([(node, 2)], split, A100, execution)
        assert cost.weight_backward_ns == pytest.approx(2e9 * products)
    cost = layer_cost([(gpt3_layer, 2)], split, A100)
    assert cost.weight_backward_ns is None


# Operators of other models and splits


def test_llama2_layer_activations() -> None:
    """Per token: 16 h + 6 f bytes and 4 a of row sums.

    Norm inputs and outputs 8 h, Q, K, V 6 h, attention output 2 h; gate, up
    and product 6 f. Selective drops the norm outputs (4 h), the attention
    output (2 h) and the product (2 f).
    """
    kept = decoder_layer(LLAMA2, Split(sequence_length=4096)).kept_bytes
    h, f = 4096, 11008
    assert kept["none"] == 4096 * (16 * h + 6 * f + 4 * 32)
    assert kept["selective"] == 4096 * (10 * h + 4 * f)


def test_grouped_query_heads_are_replicated_beyond_their_number() -> None:
    """Llama-2-70B has 8 KV heads of 128: 16-way, each device holds one."""
    model = architecture("llama2-70b")
    for tp in (8, 16):
        split = Split(tp=tp, sequence_length=4096)
        qkv = operators(decoder_layer(model, split))["qkv"]
        columns = 8192 // tp + 2 * 128
        assert qkv.forward_flops == 2 * 4096 * 8192 * columns


def test_context_parallelism() -> None:
    """Two ranks halve tokens and core; each gathers all K and V.

    K and V of 4096 tokens, 32/2 heads of 128, bf16: 33,554,432 bytes each over both.
    """
    one = decoder_layer(LLAMA2, Split(tp=2, sequence_length=4096))
    two = decoder_layer(LLAMA2, Split(tp=2, cp=2, sequence_length=4096))
    assert [2 * flops for flops in two.flops()] == list(one.flops())
    size_bytes = 2 * 2 * 4096 * 16 * 128
    assert calls(two, "cp", "forward") == {"all-gather": (size_bytes, 1)}
    assert calls(two, "cp", "backward") == {
        "all-gather": (size_bytes, 1),
        "reduce-scatter": (size_bytes, 1),
    }
    assert two.weights == one.weights
    assert 2 * two.kept_bytes["none"] == one.kept_bytes["none"]
    assert not calls(one, "cp", "forward")


def test_expert_parallelism() -> None:
    """A rank of 4 holds 2 of 8 experts and still computes 2 visits a token.

    Dispatch and return each move 2 T k h = 67,108,864 bytes of 4096 tokens.
    """
    one = decoder_layer(MIXTRAL, Split(sequence_length=4096))
    four = decoder_layer(MIXTRAL, Split(ep=4, sequence_length=4096))
    assert one.expert_weights == 8 * 3 * 4096 * 14336
    assert four.expert_weights * 4 == one.expert_weights
    assert four.weights == one.weights
    assert four.flops() == one.flops()
    assert four.kept_bytes == one.kept_bytes
    assert one.collectives == ()
    for phase in ("forward", "backward"):
        assert calls(four, "ep", phase) == {"all-to-all": (67_108_864, 2)}
    saved = 6 * 2 * 3 * 4096 * 14336
    for name, share in (("mlp up", 2 / 3), ("mlp down", 1 / 3)):
        before = operators(one)[name].forward_bytes
        after = operators(four)[name].forward_bytes
        assert before - after == pytest.approx(share * saved)


@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_experts_under_tensor_parallelism(sequence_parallel: bool) -> None:
    """Sequence parallel tokens are dispatched first, then gathered.

    Then an all-to-all carries half of the routed tokens, and the expert
    region gathers both visits of every token. Without it every rank
    dispatches all tokens, and what is summed is the combined output.
    """
    split = Split(tp=2, ep=2, sequence_length=4096, sequence_parallel=sequence_parallel)
    layer = decoder_layer(MIXTRAL, split)
    values = 4096 * 4096
    routed = 2 * 2 * values // (2 if sequence_parallel else 1)
    assert calls(layer, "ep", "forward") == {"all-to-all": (routed, 2)}
    found = sorted(
        (call.kind, call.size_bytes, call.count)
        for call in layer.collectives
        if (call.axis, call.phase) == ("tp", "backward")
    )
    if sequence_parallel:
        assert found == [
            ("all-gather", 2 * values, 1),
            ("all-gather", 4 * values, 1),
            ("reduce-scatter", 2 * values, 1),
            ("reduce-scatter", 4 * values, 1),
        ]
    else:
        assert found == [("all-reduce", 2 * values, 2)]


def test_mixtral_layer_activations() -> None:
    """Per token, k = 2: 4 k h of tokens in and out, 6 k f inside, 4 E gates.

    Attention with 8 of 32 heads for K and V keeps 2 (1 + 2/4) h + 2 h, the norms 8 h.
    """
    h, f = 4096, 14336
    kept = decoder_layer(MIXTRAL, Split(sequence_length=4096)).kept_bytes
    attention = 8 * h + 3 * h + 2 * h + 4 * 32
    assert kept["none"] == 4096 * (attention + 8 * h + 12 * f + 4 * 8)
    assert kept["full"] == 4096 * 2 * h


def test_embedding() -> None:
    """GPT-3, 8-way: 51200/8 rows, positions whole; kept: ids and a mask."""
    node = embedding(GPT3, Split(tp=8, sequence_length=2048))
    assert node.weights == (6400 + 2048) * 12288
    assert node.kept_bytes["none"] == 8 * 2048 + 2048 * 12288 // 8
    assert node.kept_bytes["full"] == 8 * 2048
    size = 2 * 2048 * 12288
    assert calls(node, "tp", "forward") == {"reduce-scatter": (size, 1)}
    assert calls(node, "tp", "backward") == {"all-gather": (size, 1)}
    plain = Split(tp=8, sequence_length=2048, sequence_parallel=False)
    node = embedding(GPT3, plain)
    assert calls(node, "tp", "forward") == {"all-reduce": (size, 1)}
    assert calls(node, "tp", "backward") == {}


def test_head() -> None:
    """Llama-2-7B, 4-way: 8000 rows become 8064; fp32 logits are kept."""
    split = Split(tp=4, sequence_length=4096)
    node = head(LLAMA2, split)
    rows, tokens, h = 8064, 4096, 4096
    assert node.weights == rows * h + h
    assert operators(node)["output layer"].forward_flops == 2 * tokens * h * rows
    outer = tokens * h // 4
    assert node.kept_bytes == {
        "none": 4 * outer + 4 * tokens * rows,
        "selective": 2 * outer + 4 * tokens * rows,
        "full": 2 * outer,
        "offload": 4 * outer + 4 * tokens * rows,
    }
    size = 2 * tokens * h
    assert calls(node, "tp", "forward") == {
        "all-gather": (size, 1),
        "all-reduce": (4 * tokens, 3),
    }
    assert calls(node, "tp", "backward") == {"reduce-scatter": (size, 1)}
    assert head(LLAMA2, Split(sequence_length=4096)).collectives == ()


def test_repeat_scales_all_but_working_bytes() -> None:
    split = Split(tp=2, samples=2, sequence_length=4096)
    node = decoder_layer(LLAMA2, split)
    one = layer_cost([(node, 1)], split, A100)
    four = layer_cost([(node, 4)], split, A100)
    assert four.key == one.key == (2, 1, 1, 0, False, 2)
    assert four.forward_ns == pytest.approx(4 * one.forward_ns)
    assert four.backward_ns == pytest.approx(4 * one.backward_ns)
    assert four.weight_bytes == 4 * one.weight_bytes
    assert four.working_bytes == one.working_bytes
    for a, b in zip(one.activations, four.activations, strict=True):
        assert b.kept_bytes == 4 * a.kept_bytes
        assert b.extra_ns == pytest.approx(4 * a.extra_ns)
    for x, y in zip(one.collectives, four.collectives, strict=True):
        assert (y.kind, y.size_bytes) == (x.kind, x.size_bytes)
        assert y.count == 4 * x.count


# Names


def test_names_are_distinct() -> None:
    for records in (ARCHITECTURES, machines(), builtin.RECIPES):
        names = [record.name for record in records]
        assert len(set(names)) == len(names)


# Built-in problems


@pytest.fixture(scope="module", params=builtin.names())
def problem(request: pytest.FixtureRequest) -> Problem:
    return builtin.load(request.param)


def test_default_is_listed() -> None:
    assert builtin.DEFAULT in builtin.names()
    assert builtin.names() == tuple(r.name for r in builtin.RECIPES)


def test_describe() -> None:
    assert builtin.describe("mixtral-8x7b-32") == (
        "mixtral-8x7b, 1024 × 4096 tokens per step, on 32 H100-80GB-SXM (4 nodes of 8)"
    )
    assert "blocks of" in builtin.describe(builtin.DEFAULT)


def test_unknown_problem() -> None:
    with pytest.raises(
        UnknownNameError,
        match=r"built-in problem: expected one of .*did you mean 'llama2",
    ):
        builtin.load("llama2-7b-9")
    with pytest.raises(UnknownNameError, match=r"got 'nothing'"):
        builtin.describe("nothing")


def test_blocks_must_divide_the_model() -> None:
    recipe = msgspec.structs.replace(builtin.RECIPES[0], layers_per_node=5)
    with pytest.raises(
        InvalidOptionError,
        match=r"^layers_per_node: expected a divisor of the 32 layers of "
        r"llama2-7b, got 5",
    ):
        builtin.build(recipe)


def test_problem_survives_its_file(problem: Problem) -> None:
    assert decode_problem(encode(problem)) == problem


def test_problem_is_a_chain(problem: Problem) -> None:
    graph = problem.graph
    ids = [layer.id for layer in graph.layers]
    assert (ids[0], ids[-1]) == ("embedding", "head")
    assert [(edge.source, edge.target) for edge in graph.edges] == list(pairwise(ids))


def test_problem_has_a_cost_for_every_share(problem: Problem) -> None:
    """Every b = B/dp of every candidate B, under every split."""
    shares = {
        micro_batch // dp
        for micro_batch in problem.job.micro_batches
        for dp in range(1, micro_batch + 1)
        if micro_batch % dp == 0
    }
    tables = [{cost.key for cost in kind.costs} for kind in problem.graph.kinds]
    assert tables[0] == tables[1] == tables[2]
    splits = {key[:-1] for key in tables[0]}
    assert tables[0] == {(*split, b) for split in splits for b in shares}


def test_problem_batches_divide(problem: Problem) -> None:
    job = problem.job
    assert not job.uneven_batches
    assert all(job.global_batch % size == 0 for size in job.micro_batches)


def test_problem_states_what_mfu_needs(problem: Problem) -> None:
    assert problem.preset == "standard"
    assert problem.job.dtype in problem.cluster.device.peak_flops
    assert problem.job.model_flops_per_sample is not None
    assert problem.job.sequence_parallel
    optimizer = problem.job.optimizer
    assert (
        optimizer.weight_bytes,
        optimizer.gradient_bytes,
        optimizer.state_bytes,
    ) == (2, 2, 12)


def test_problem_has_two_network_levels(problem: Problem) -> None:
    node, network = problem.cluster.topology.levels
    assert node.bandwidth_bytes_per_s > network.bandwidth_bytes_per_s
    assert problem.cluster.topology.capacities[-1] == (problem.cluster.num_devices)


def test_blocks_hold_the_same_model() -> None:
    recipe = builtin.RECIPES[0]
    fine = builtin.build(msgspec.structs.replace(recipe, layers_per_node=1))
    coarse = builtin.build(msgspec.structs.replace(recipe, layers_per_node=8))

    def weight_bytes(problem: Problem) -> int:
        costs = {kind.name: kind.costs[0] for kind in problem.graph.kinds}
        return sum(costs[x.kind].weight_bytes for x in problem.graph.layers)

    assert weight_bytes(fine) == weight_bytes(coarse)
    assert weight_bytes(fine) == 2 * LLAMA2.parameters
    assert [layer.id for layer in coarse.graph.layers[:3]] == [
        "embedding",
        "layers-0-7",
        "layers-8-15",
    ]
    assert fine.graph.layers[-2].id == "layer-31"
