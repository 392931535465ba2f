"""Blocks that are no plain transformers: weights, work, and who refuses them.

Every figure is derived by hand from the shapes.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from nest.errors import InvalidOptionError, InvalidPlanError
from nest.frameworks.megatron_model import model_flags
from nest.hardware import machine
from nest.ir.plan import RECOMPUTE
from nest.models.architectures import Architecture
from nest.models.blocks import (
    Attention,
    Block,
    Convolution,
    Head,
    Linear,
    Mixer,
    Mlp,
    Module,
    RepeatedBlock,
    Tower,
    unusual,
)
from nest.models.choices import Request, choose
from nest.models.graphs import build_graph, build_problem
from nest.models.hf import from_hf
from nest.models.operators.base import Node, Split
from nest.models.operators.nodes import (
    block_node,
    embedding_node,
    head_node,
    module_node,
)
from nest.models.weights import (
    attention_weights,
    embedding_weights,
    head_weights,
    mixer_flops,
    mixer_weights,
    mlp_weights,
)
from nest.models.zoo import architecture
from nest.profiles.torch_profiler import layer_shapes

SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100}
DECODER = {**SIZES, "intermediate_size": 96, "num_attention_heads": 4}
ATTENTION = Attention(heads=4, kv_heads=2, head_size=16)
BLOCK = Block(
    name="decoder", hidden=64, attention=ATTENTION, mlp=Mlp(hidden=96, gated=True)
)


def mixer_of(**fields: Any) -> Mixer:
    """Return the mixer of a model's first block that has one."""
    model = from_hf({**SIZES, **fields})
    found = [b.mixer for b in model.towers[0].blocks() if b.mixer is not None]
    return found[0]


# State-space models and linear attention

MAMBA = {
    "model_type": "mamba",
    "conv_kernel": 4,
    "expand": 2,
    "state_size": 16,
    "time_step_rank": 4,
}
MAMBA2 = {
    "model_type": "mamba2",
    "num_heads": 8,
    "head_dim": 16,
    "n_groups": 2,
    "state_size": 32,
    "conv_kernel": 4,
}


def test_weights_and_flops_of_mamba() -> None:
    """128 channels, 16 states each, steps of rank 4."""
    mixer = mixer_of(**MAMBA)
    matrices = 64 * 256 + 128 * (4 + 32) + 4 * 128 + 128 * 64
    vectors = 128 * (16 + 1) + 128  # A, D and the bias of the steps
    assert mixer_weights(mixer) == matrices + vectors + 128 * (4 + 1)
    convolution, read = 2 * 4 * 128, 2 * 128 * 16
    assert mixer_flops(mixer) == 2 * matrices + convolution + read


def test_weights_and_flops_of_mamba2() -> None:
    """8 heads of 16 in 2 groups with states of 32, chunks of 64 tokens."""
    mixer = mixer_of(**MAMBA2, chunk_size=64)
    inner, shared = 128, 2 * 2 * 32
    matrices = 64 * (2 * inner + 8 + shared) + inner * 64
    vectors = 3 * 8 + inner  # A, D and steps of the heads, and a norm
    convolution = (inner + shared) * 5
    assert mixer_weights(mixer) == matrices + vectors + convolution
    core = 2 * 64 * (2 * 32 + inner) + 2 * 2 * 32 * inner
    assert mixer.core_flops == core
    assert mixer_flops(mixer) == (2 * matrices + 2 * 4 * (inner + shared) + core)


def test_groups_are_copied_beyond_their_number() -> None:
    """Over 4 ranks either of 2 groups is held twice."""
    mixer = mixer_of(**MAMBA2)
    matrices = 64 * ((2 * 128 + 8) // 4 + 128 // 2) + 128 // 4 * 64
    rest = (3 * 8 + 128) // 4 + (128 + 128) // 4 * 5
    assert mixer_weights(mixer, 4) == matrices + rest


def test_weights_and_flops_of_a_delta_rule() -> None:
    """2 heads of keys of 8, 4 of values of 16, chunks of 64 tokens."""
    mixer = mixer_of(
        model_type="qwen3_5_text",
        intermediate_size=96,
        num_attention_heads=4,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=8,
        linear_value_head_dim=16,
    )
    keys, values = 16, 64
    matrices = 64 * (2 * keys + 2 * values + 2 * 4) + values * 64
    channels = 2 * keys + values
    assert mixer_weights(mixer) == matrices + 4 * channels + 2 * 4 + 16
    per_head = 4 * 64 * 8 + 2 * 64 * (8 + 16) + 2 * 64 * 16 + 6 * 8 * 16
    assert mixer.core_flops == 4 * per_head
    assert mixer_flops(mixer) == (2 * matrices + 2 * 4 * channels + 4 * per_head)


def test_gates_of_griffin_are_diagonal_blocks() -> None:
    """64 channels in 4 heads: two gates of 4 matrices of 16 × 16."""
    mixer = mixer_of(
        model_type="recurrent_gemma",
        intermediate_size=96,
        num_attention_heads=4,
        num_hidden_layers=3,
    )
    matrices = 64 * 128 + 2 * 4 * 16**2 + 64 * 64
    biases = 128 + 128 + 64
    assert mixer_weights(mixer) == matrices + biases + 64 + 64 * 5


def test_operators_of_a_mixer_on_two_ranks() -> None:
    """Half of the channels each; 8 samples of 16 tokens over cp 2."""
    model = from_hf({**SIZES, **MAMBA})
    block = model.towers[0].runs[0].block
    split = Split(tp=2, cp=2, samples=8, sequence_length=16)
    node = block_node(block, split)
    tokens = 8 * 16 // 2
    names = [operator.name for operator in node.operators]
    assert names == [
        "norm 1",
        "in",
        "scan inputs",
        "time steps",
        "convolution",
        "recurrence",
        "gated output",
        "out",
        "residual 1",
    ]
    work = {o.name: o.forward_flops for o in node.operators}
    assert work["in"] == 2 * tokens * 64 * 128
    assert work["scan inputs"] == 2 * tokens * 64 * 36
    assert work["convolution"] == 2 * tokens * 4 * 64
    assert work["recurrence"] == 2 * tokens * 64 * 16
    assert node.weights == mixer_weights(block.mixer, 2) + 64
    # In: 128, the scan's inputs: 36, steps: 64; then the convolved, the
    # outputs and the gated ones, 64 each. The norm keeps input and output.
    made, rest = 128 + 36 + 64, 3 * 64
    own = 2 * (tokens // 2) * 64
    assert node.kept_bytes["none"] == 2 * tokens * (made + rest) + 2 * own
    assert node.kept_bytes["selective"] == 2 * tokens * made + own
    exchanges = [call for call in node.collectives if call.axis == "cp"]
    assert {(c.kind, c.phase, c.count) for c in exchanges} == {
        ("all-to-all", "forward", 1),
        ("all-to-all", "backward", 1),
    }
    assert {c.size_bytes for c in exchanges} == {2 * tokens * (made + 64)}


def test_layers_of_zamba2_share_blocks() -> None:
    """Three hybrid layers take two shared blocks in turn, 128 wide inside."""
    model = from_hf(
        {
            **SIZES,
            "model_type": "zamba2",
            "num_hidden_layers": 4,
            "layers_block_type": ["mamba", "hybrid", "hybrid", "hybrid"],
            "num_attention_heads": 4,
            "num_mem_blocks": 2,
            "adapter_rank": 8,
            "n_mamba_heads": 4,
            "mamba_d_state": 16,
            "tie_word_embeddings": True,
        }
    )
    shared = 128 * 128 * 3 + 128 * 64 + 3 * 64 * 256 + 3 * 64
    own = 64 * 8 + 8 * 2 * 256 + 64 * 64
    channels = 128 + 2 * 16
    mamba = 64 * (2 * 128 + 4 + 2 * 16) + 128 * 64 + 3 * 4 + 128
    mamba += channels * 5 + 64
    assert model.parameters == 100 * 64 + 64 + 2 * shared + 3 * own + 4 * mamba
    names = [block.name for block in model.towers[0].blocks()]
    assert names[1:4] == ["global-dense", "adapter", "mamba2"]
    assert len(names) == 1 + 3 * 3


def test_short_convolutions_exchange_nothing() -> None:
    mixer = Mixer(
        kind="convolution",
        heads=64,
        linears=(
            Linear(name="in", inputs=64, outputs=192),
            Linear(name="out", inputs=64, outputs=64, cut="inputs"),
        ),
        channels=64,
        kernel=3,
        inner=64,
    )
    block = replace(BLOCK, mixer=mixer)
    node = block_node(block, Split(cp=2, samples=1, sequence_length=16))
    kinds = {call.kind for call in node.collectives if call.axis == "cp"}
    assert kinds == {"all-gather", "reduce-scatter"}  # of attention


@pytest.mark.parametrize(
    ("degrees", "reason"),
    [
        (
            (3, 1),
            "tp: expected a divisor of the 128 heads of mamba of m, got 3; "
            "choose 1, 2, 4, 8, 16, 32 or 64",
        ),
        (
            (2, 3),
            "cp: expected a divisor of the 64 heads of mamba that a rank of "
            "m has, got 3; choose 1",
        ),
    ],
)
def test_degrees_that_do_not_divide_a_mixer(
    degrees: tuple[int, int], reason: str
) -> None:
    model = from_hf({**SIZES, **MAMBA}, name="m")
    tp, cp = degrees
    assert model.why_not_split(tp, cp, 1, 96) == reason


def test_degrees_that_do_not_divide_groups() -> None:
    model = from_hf({**SIZES, **MAMBA2, "num_heads": 12}, name="m")
    assert model.why_not_split(3, 1, 1, 96) == (
        "tp: expected a divisor or a multiple of the 2 groups of mamba2 of "
        "m, got 3; choose 1, 2 or 4"
    )


# Attention and MLPs


@pytest.mark.parametrize(
    ("change", "more"),
    [
        ({"query_key_norm": True}, 2 * 16),
        ({"query_key_norm": True, "norm_vectors": 2}, 4 * 16),
        ({"query_key_norm": True, "norm_over": "heads"}, (4 + 2) * 16),
        ({"query_key_norm": True, "norm_over": "nothing"}, 0),
        ({"biases": True}, (4 + 2 + 2) * 16),
        ({"biases": True, "unbiased_keys": True}, (4 + 2) * 16),
        ({"sinks": True}, 4),
        ({"gate": 64}, 64 * 64),
        ({"gate": 64, "gate_bias": True}, 64 * 65),
        ({"output_norm": True}, 4 * 16),
        ({"heads": 0}, -64 * 16 * (4 + 2 + 2 + 4)),
    ],
)
def test_weights_of_attention(change: dict[str, Any], more: int) -> None:
    plain = 64 * 16 * (4 + 2 + 2 + 4)
    shape = replace(ATTENTION, **change)
    assert attention_weights(BLOCK, shape) == plain + more


def test_an_indexer_has_queries_keys_and_a_weight_per_head() -> None:
    """2 heads of 8 behind queries of rank 12; a LayerNorm of the keys."""
    latent = Attention(
        heads=4,
        kv_heads=4,
        head_size=12,
        query_rank=12,
        key_value_rank=8,
        rotary_size=4,
    )
    indexed = replace(latent, index_heads=2, index_size=8, window=6)
    more = attention_weights(BLOCK, indexed) - attention_weights(BLOCK, latent)
    assert more == 12 * 2 * 8 + 64 * 8 + 64 * 2 + 2 * 8
    node = block_node(replace(BLOCK, attention=indexed), Split(sequence_length=32))
    work = {o.name: o.forward_flops for o in node.operators}
    assert work["index scores"] == 2 * 32 * 32 * 2 * 8
    # The core reaches 6 of 32 tokens.
    assert work["attention core"] == 2 * 32 * 6 * 4 * (12 + 12)


#: Four experts, two of which a token visits.
FOUR = {"experts": 4, "experts_per_token": 2}


@pytest.mark.parametrize(
    ("change", "weights"),
    [
        ({}, 3 * 64 * 96),
        ({"inner_norm": True}, 3 * 64 * 96 + 96),
        ({"activation_weights": 2}, 3 * 64 * 96 + 2),
        (FOUR, 4 * 3 * 64 * 96 + 4 * 64),
        (FOUR | {"router_bias": True}, 4 * 3 * 64 * 96 + 4 * 65),
        (
            FOUR | {"shared_hidden": 32, "shared_gate": True, "shared_biases": True},
            4 * (3 * 64 * 96 + 64) + 3 * 64 * 32 + 2 * 32 + 64 + 64,
        ),
        (FOUR | {"latent": 16}, 4 * (3 * 16 * 96 + 64) + 2 * 64 * 16),
        ({"hidden": 0}, 0),
    ],
)
def test_weights_of_mlps(change: dict[str, Any], weights: int) -> None:
    block = replace(BLOCK, mlp=replace(BLOCK.mlp, **change))
    assert mlp_weights(block) == weights


def test_experts_of_a_latent_width_exchange_less() -> None:
    """16 of 64 values of a token travel to its experts."""
    wide = replace(BLOCK.mlp, **FOUR)
    sizes = {}
    for latent in (0, 16):
        block = replace(BLOCK, mlp=replace(wide, latent=latent))
        node = block_node(block, Split(ep=2, sequence_length=8))
        (call, *_) = [c for c in node.collectives if c.axis == "ep"]
        sizes[latent] = call.size_bytes
    assert sizes == {0: 2 * 8 * 2 * 64, 16: 2 * 8 * 2 * 16}


@pytest.mark.parametrize(
    ("change", "vectors"),
    [
        ({}, 2),
        ({"layer_norm": True}, 4),
        ({"layer_norm": True, "norm_vectors": 1}, 2),
        ({"layer_norm": True, "norm_vectors": 0}, 0),
        ({"vectors": 2}, 4),
    ],
)
def test_vectors_of_blocks(change: dict[str, Any], vectors: int) -> None:
    node = block_node(replace(BLOCK, **change), Split(sequence_length=8))
    matrices = 64 * 16 * 12 + 3 * 64 * 96
    assert node.weights == matrices + vectors * 64


# In front and behind


def test_narrow_tables() -> None:
    """100 tokens and 10 positions, 16 wide, in front of 64."""
    tower = Tower(
        runs=(RepeatedBlock(block=replace(BLOCK, layer_norm=True), count=1),),
        vocabulary=100,
        learned_positions=10,
        embedding_size=16,
        embedding_norm=True,
    )
    assert embedding_weights(tower) == 100 * 16 + 16 * 64 + 10 * 64 + 2 * 64
    narrow = replace(tower, narrow=True)
    assert embedding_weights(narrow) == 110 * 16 + 17 * 64 + 2 * 16
    head = Head(outputs=100, tied=True, transform=True, transform_size=16)
    assert head_weights(head, 64) == 64 * 16 + 3 * 16


def test_convolutions_in_front() -> None:
    """Whisper's: 80 channels, then stride 2, on 10 tokens of a sample."""
    tower = Tower(
        runs=(RepeatedBlock(block=BLOCK, count=1),),
        convolutions=(
            Convolution(inputs=80, outputs=64, kernel=3, positions=2),
            Convolution(inputs=64, outputs=64, kernel=3),
        ),
    )
    assert embedding_weights(tower) == (3 * 80 + 1) * 64 + (3 * 64 + 1) * 64
    node = embedding_node(tower, Split(sequence_length=10))
    assert node.flops()[0] == 2 * (20 * 240 * 64 + 10 * 192 * 64)
    # Inputs, and outputs before and behind the activation function.
    made = 20 * 64 + 10 * 64
    assert node.kept_bytes["none"] == 2 * 20 * 80 + 4 * made
    assert node.kept_bytes["selective"] == node.kept_bytes["none"]
    assert node.kept_bytes["full"] == 2 * 20 * 80


TOWER = Tower(runs=(RepeatedBlock(block=BLOCK, count=2),), vocabulary=500, modules=1)


def test_a_module_for_multi_token_prediction() -> None:
    """Embedding, two norms, 128 to 64 on two ranks, a block and a norm.

    Each of two ranks has 3 of the 6 times 128 rows of the token table, and
    half of the tokens outside of regions.
    """
    split = Split(tp=2, sequence_length=8)
    plain = block_node(BLOCK, split)
    node = module_node(Module(block=BLOCK), TOWER, split)
    more = module_node(Module(block=BLOCK, table=False), TOWER, split)
    assert node.weights - more.weights == 256 * 64
    assert more.weights - plain.weights == 128 * 32 + 3 * 64
    # All tokens, half of the columns.
    assert node.flops()[0] - plain.flops()[0] == 2 * 8 * 128 * 32
    names = [operator.name for operator in node.operators]
    assert names[:4] == [*("look-up", "next token norm", "stream norm", "join")]
    assert names[-1] == "module norm"
    # Token ids; inputs of three norms and of the product, twice as wide.
    kept = {k: node.kept_bytes[k] - plain.kept_bytes[k] for k in RECOMPUTE}
    whole = 8 * 8 + 2 * 4 * 64 * (2 + 2 + 1)
    # Recomputed in full: token ids and the inputs of both norms, instead of
    # the block's own.
    full = 8 * 8 + 2 * 4 * 64
    others = dict.fromkeys(("none", "selective", "offload"), whole)
    assert kept == {**others, "full": full}
    # Bytes of a stream: its table's sum, the input of the product and its
    # gradient, twice as wide, its output and that one's gradient.
    size = 2 * 8 * 64
    assert calls_beside(node, plain) == {
        ("reduce-scatter", "forward", size): 1,
        ("all-gather", "forward", size): 1,
        ("all-gather", "forward", 2 * size): 1,
        ("all-gather", "backward", size): 2,
        ("reduce-scatter", "backward", 2 * size): 1,
    }


def calls_beside(node: Node, plain: Node) -> dict[tuple[str, str | None, float], int]:
    """Return how many calls a node has more, by kind, phase and bytes."""
    calls = {
        (call.kind, call.phase, call.size_bytes): call.count
        for call in node.collectives
    }
    for call in plain.collectives:
        calls[call.kind, call.phase, call.size_bytes] -= call.count
    return {key: count for key, count in calls.items() if count}


def test_a_module_without_sequence_parallelism() -> None:
    """The table's sums and the gradient of the product's input, all of it."""
    split = Split(tp=2, sequence_length=8, sequence_parallel=False)
    plain = block_node(BLOCK, split)
    node = module_node(Module(block=BLOCK), TOWER, split)
    size = 2 * 8 * 64
    assert calls_beside(node, plain) == {
        ("all-reduce", "forward", size): 1,
        ("all-gather", "forward", size): 1,
        ("all-reduce", "backward", 2 * size): 1,
    }
    alone = module_node(Module(block=BLOCK), TOWER, Split(sequence_length=8))
    assert alone.collectives == ()


def test_a_head_that_predicts_two_tokens() -> None:
    """Twice the work, but for the norm: the module has one of its own."""
    head = Head(outputs=128)
    split = Split(sequence_length=8)
    once = head_node(head, 64, split, norm_weights=64)
    twice = head_node(replace(head, predictions=2), 64, split, norm_weights=64)
    assert twice.flops()[0] == 2 * once.flops()[0]
    # The norm's input of one stream: 8 tokens, 64 values of 2 bytes.
    more = twice.kept_bytes["none"] - once.kept_bytes["none"]
    assert more == once.kept_bytes["none"] - 2 * 8 * 64
    assert twice.weights == once.weights


def test_modules_are_layers_in_front_of_the_head() -> None:
    """Two of them: the first holds the table; the head reads three streams."""
    model = from_hf(
        {
            "model_type": "deepseek_v3",
            **SIZES,
            "num_hidden_layers": 4,
            "intermediate_size": 96,
            "moe_intermediate_size": 32,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "first_k_dense_replace": 1,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 16,
            "v_head_dim": 16,
            "num_nextn_predict_layers": 2,
        },
        mtp=True,
    )
    site = machine("h100")
    asked = Request(global_batch=8, sequence_length=128, layers_per_node=2)
    problem = build_problem(model, site, 2, choose(model, site, 2, asked))
    assert problem.job.one_stage == ("mtp", "mtp-next")
    graph = problem.graph
    layers = [(str(x.id), x.kind) for x in graph.layers]
    assert layers == [
        ("embedding", "embedding"),
        ("layers-0-1", "dense+sparse"),
        ("layers-2-3", "sparse"),
        ("mtp-0", "mtp"),
        ("mtp-1", "mtp-next"),
        ("head", "head"),
    ]
    stream = 2 * 128 * 64
    assert [edge.bytes_per_sample for edge in graph.edges] == [
        *(stream, stream, stream, 2 * stream, 3 * stream)
    ]
    held = {
        kind.name: next(
            cost.weight_bytes
            for cost in kind.costs
            if (cost.tp, cost.cp, cost.ep, cost.samples) == (1, 1, 1, 1)
        )
        for kind in graph.kinds
    }
    assert held["mtp"] - held["mtp-next"] == held["embedding"]
    assert held["embedding"] == 2 * 128 * 64
    assert held["head"] == 2 * (128 * 64 + 64)


def test_modules_are_cut_by_columns() -> None:
    narrow = replace(BLOCK, hidden=66)
    tower = replace(TOWER, runs=(RepeatedBlock(block=narrow, count=1),))
    model = Architecture(
        name="narrow",
        towers=(tower,),
        head=Head(outputs=500, predictions=2),
        max_sequence=8,
    )
    assert model.why_not_split(4, 1, 1, 8, sequence_parallel=False) == (
        "tp: expected a divisor of the 66 columns that join tokens of narrow, "
        "got 4; choose 1 or 2"
    )
    plain = replace(model, towers=(replace(tower, modules=0),))
    assert plain.why_not_split(4, 1, 1, 8, sequence_parallel=False) is None


def test_blocks_of_a_resnet() -> None:
    """A bottleneck of 256 on 56 × 56: 1 × 1, 3 × 3, 1 × 1 behind 64."""
    model = from_hf({"model_type": "resnet", "num_labels": 1000})
    # ResNet-50: He et al. 2016, arXiv 1512.03385; torchvision's count.
    assert model.parameters == 25_557_032
    towers = model.towers
    assert [tower.layers for tower in towers] == [2, 3, 5, 2]
    assert [tower.follows for tower in towers] == [None, "stage1", "stage2", "stage3"]
    block = towers[0].runs[0].block
    node = block_node(block, Split(sequence_length=3136))
    matrices = 256 * 64 + 9 * 64 * 64 + 64 * 256
    assert node.weights == matrices + 2 * (64 + 64 + 256)
    assert node.flops()[0] == 2 * 3136 * matrices
    sizes = {o.name: o.forward_bytes for o in node.operators}
    assert sizes["convolution 2"] == 2 * (3136 * 128 + 9 * 64 * 64)
    made = 3136 * (64 + 64 + 256)
    own = 2 * 3136 * 256  # the input, which is added at the end
    assert node.kept_bytes["none"] == 3 * 2 * made + own
    assert node.kept_bytes["selective"] == 2 * 2 * made + own
    assert [o.name for o in node.operators][-1] == "residual 1"


def test_stages_of_a_resnet_are_a_chain() -> None:
    """What leaves a stage is a position's width per position."""
    model = from_hf({"model_type": "resnet"}, name="resnet-50")
    site = machine("h100")
    graph = build_graph(model, site, choose(model, site, 8))
    ids = [layer.id for layer in graph.layers]
    assert [(e.source, e.target) for e in graph.edges] == list(pairwise(ids))
    assert [i for i in ids if i.endswith("embedding")] == [
        f"stage{number}-embedding" for number in (1, 2, 3, 4)
    ]
    sizes = {edge.target: edge.bytes_per_sample for edge in graph.edges}
    assert sizes["stage2-embedding"] == 2 * 56 * 56 * 256
    assert sizes["stage4-embedding"] == 2 * 14 * 14 * 1024
    assert model.why_not_split(2, 1, 1, 3136) == (
        "tp: expected a divisor of the 1 heads of convolutions of resnet-50, "
        "got 2; choose 1"
    )


# Who refuses them


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({**SIZES, **MAMBA}, "attention"),
        ({**DECODER, "model_type": "cohere"}, "norm_vectors"),
        (
            {
                **DECODER,
                "model_type": "gpt_oss",
                "num_local_experts": 4,
                "num_experts_per_tok": 2,
            },
            "sinks",
        ),
    ],
)
def test_exports_and_profilers_refuse_them(fields: dict[str, Any], part: str) -> None:
    model = from_hf(fields, name="odd")
    assert unusual(*model.towers, model.head) == part
    with pytest.raises(
        InvalidPlanError,
        match=f"^model: {part}: expected a plain transformer, got odd; Meg",
    ):
        model_flags(model, 64)
    with pytest.raises(
        InvalidOptionError,
        match=f"^--model: expected a plain transformer, got one with {part};",
    ):
        layer_shapes(model.towers, model.head)


@pytest.mark.parametrize("name", ["gpt2", "t5-large", "bert-large"])
def test_the_zoo_is_plain(name: str) -> None:
    model = architecture(name)
    assert unusual(*model.towers, model.head) is None
    cross = model.towers[-1].runs[0].block
    bare = replace(cross, mlp=Mlp(hidden=0))
    assert unusual(bare) == "mlp"
