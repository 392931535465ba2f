"""The zoo against published counts, and the graphs that are made of it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from bench.hardware_tables import models_table
from nest.cost.score import score
from nest.errors import InvalidOptionError, InvalidProblemError, UnknownNameError
from nest.hardware import Machine, machine
from nest.ir import Plan, Problem, Stage, Strategy
from nest.ir.graph import Activations, CollectiveCall, LayerCost
from nest.ir.io import encode
from nest.models import graphs
from nest.models.architectures import Architecture, head_towers
from nest.models.blocks import Block
from nest.models.choices import MAX_NODES, Choices, Degrees, Request, choose
from nest.models.graphs import build_graph, build_on, build_problem
from nest.models.operators.base import Dtype, Node, Operator, Split
from nest.models.operators.timing import layer_cost
from nest.models.weights import (
    attention_weights,
    block_weights,
    embedding_weights,
    final_norm_weights,
    head_weights,
    mlp_weights,
)
from nest.models.zoo import ARCHITECTURES, architecture, kind_of, names
from tests.rows import rows

ROOT = Path(__file__).parents[3]
H100 = machine("h100")


def by_name(model: Architecture) -> str:
    return model.name


def block_of(name: str, run: int = 0, tower: int = 0) -> Block:
    return architecture(name).towers[tower].runs[run].block


def with_block(name: str, block: Block) -> Architecture:
    """Return a model of one run with another block."""
    model = architecture(name)
    run = replace(model.towers[0].runs[0], block=block)
    tower = replace(model.towers[0], runs=(run,))
    return replace(model, towers=(tower,))


# Parameters


@pytest.mark.parametrize("model", ARCHITECTURES, ids=by_name)
def test_parameters_are_the_published_ones(model: Architecture) -> None:
    """To the last printed digit; exactly where all digits are known.

    ``left_out`` are published weights without a place in the shapes: T5's
    biases of relative positions (32 per head and tower), the biases that
    balance DeepSeek-V3's router (256 per layer), CLIP's temperature.
    """
    published, unit = model.published_parameters, model.published_unit
    assert published > 0
    counted = model.parameters + model.left_out
    assert abs(counted - published) <= (unit // 2 if unit > 1 else 0)
    assert model.parameters == pytest.approx(published, rel=0.03)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("llama2-7b", 6_738_415_616),
        ("llama3-70b", 70_553_706_496),
        ("llama3-405b", 405_853_388_800),
        ("deepseek-v3", 671_026_419_200 - 58 * 256),
        ("t5-11b", 11_307_321_344),
    ],
)
def test_parameters(name: str, parameters: int) -> None:
    """Of models without a row of tests/data/published-configs.json."""
    assert architecture(name).parameters == parameters


@pytest.mark.parametrize(
    ("name", "active"),
    [
        ("llama2-7b", 6.738e9),
        ("mixtral-8x7b", 12.88e9),
        ("mixtral-8x22b", 39.15e9),
        ("deepseek-v3", 37.55e9),
        ("qwen3-30b-a3b", 3.35e9),
        ("qwen3-235b-a22b", 22.19e9),
    ],
)
def test_active_parameters(name: str, active: float) -> None:
    """Published: 12.9, 39, 37, 3.3 and 22 billion.

    Mixtral-8x7B leaves out 6 of 8 experts of 3 · 4096 · 14336 weights in 32
    layers: 46.703e9 - 33.822e9. DeepSeek-V3 leaves out 248 of 256 experts
    of 3 · 7168 · 2048 in 58 layers: 671.026e9 - 633.480e9.
    """
    model = architecture(name)
    assert model.active_parameters == pytest.approx(active, rel=2e-3)


def test_the_zoo_is_complete() -> None:
    assert len(names()) >= 24
    assert len(set(names())) == len(names())
    assert all(model.source for model in ARCHITECTURES)
    kinds = {kind_of(model) for model in ARCHITECTURES}
    assert kinds == {
        "decoder",
        "decoder, mixture of experts",
        "decoder, mixture of experts, latent attention",
        "encoder",
        "encoder-decoder",
        "two towers",
    }


@pytest.mark.parametrize(("text", "name"), rows("models", "names"))
def test_models_go_by_the_names_that_people_write(text: str, name: str) -> None:
    assert architecture(text).name == name


@pytest.mark.parametrize(
    "text",
    ["Llama-3.1-80B", "Llama-3-1-8B", "Qwen3-8B-FP8", "Mistral-7B-v0.2", "t5-base"],
)
def test_no_other_model_is_taken(text: str) -> None:
    with pytest.raises(UnknownNameError, match=f"names, such as .*; got '{text}'"):
        architecture(text)


def test_names_and_aliases_are_distinct() -> None:
    every = [name for model in ARCHITECTURES for name in (model.name, *model.aliases)]
    assert [architecture(name).name for name in every] == [
        model.name for model in ARCHITECTURES for _ in (model.name, *model.aliases)
    ]


def test_a_record_of_the_zoo_has_known_keys_only() -> None:
    (record,) = msgspec.to_builtins([architecture("gpt2")])
    assert msgspec.convert(record, Architecture) == architecture("gpt2")
    record["towers"][0]["runs"][0]["block"]["width"] = 768
    with pytest.raises(
        msgspec.ValidationError,
        match=r"unknown field `width` - at `\$\.towers\[0\]\.runs",
    ):
        msgspec.convert(record, Architecture)


def test_alternating_blocks() -> None:
    """Gemma 2 has 23 pairs; each of its 46 blocks counts."""
    model = architecture("gemma2-27b")
    (tower,) = model.towers
    names = [block.name for block in tower.blocks()]
    assert names == ["local", "global"] * 23
    assert tower.layers == model.layers == len(names)


def test_parts_of_gpt2() -> None:
    """h = 768: 4 h² + 4 h, 8 h² + 5 h, two norms of 2 h."""
    block = block_of("gpt2")
    h = 768
    assert attention_weights(block, block.attention) == 4 * h * h + 4 * h
    assert mlp_weights(block) == 8 * h * h + 5 * h
    assert block_weights(block) == 12 * h * h + 13 * h
    model = architecture("gpt2")
    assert embedding_weights(model.towers[0]) == (50257 + 1024) * h
    assert final_norm_weights(model.towers[0]) == 2 * h
    assert head_weights(model.head, h) == 0


def test_parts_of_latent_attention() -> None:
    """DeepSeek-V3: ranks 1536 and 512, 128 heads of 128 + 64, values 128.

    Queries 7168 · 1536 + 1536 · 128 · 192, keys and values 7168 · 576 +
    512 · 128 · 256, output 7168 · 128 · 128, norms 1536 + 512.
    """
    block = block_of("deepseek-v3", run=1)
    queries = 7168 * 1536 + 1536 * 128 * 192
    keys = 7168 * 576 + 512 * 128 * 256
    output = 7168 * 128 * 128
    assert attention_weights(block, block.attention) == (
        queries + keys + output + 1536 + 512
    )
    # 256 experts, one shared, router of 256 columns.
    assert mlp_weights(block) == 257 * 3 * 7168 * 2048 + 256 * 7168
    runs = architecture("deepseek-v3").towers[0].runs
    assert [(run.block.name, run.count) for run in runs] == [
        ("dense", 3),
        ("sparse", 58),
    ]


def test_parts_of_latent_attention_without_query_compression() -> None:
    block = block_of("deepseek-v3")
    plain = replace(block.attention, query_rank=0)
    difference = attention_weights(block, block.attention)
    difference -= attention_weights(block, plain)
    assert difference == (1536 * (7168 + 1 + 128 * 192) - 7168 * 128 * 192)


def test_parts_of_an_encoder_decoder() -> None:
    """T5-11B: attention 4 · 1024 · 16384, twice in a decoder block."""
    attention, mlp, norm = 4 * 1024 * 16384, 2 * 1024 * 65536, 1024
    encoder = block_weights(block_of("t5-11b"))
    decoder = block_weights(block_of("t5-11b", tower=1))
    assert encoder == attention + mlp + 2 * norm
    assert decoder == 2 * attention + mlp + 3 * norm
    first, second = architecture("t5-11b").towers
    # Either tower has a bias per head for each of 32 relative positions.
    assert embedding_weights(first) == 32128 * 1024 + 32 * 128
    assert embedding_weights(second) == 32 * 128
    assert head_towers(architecture("t5-11b")) == (second,)


def test_parts_of_bert_and_vit_heads() -> None:
    """BERT: h² + h, a norm, and a bias per token; ViT: 1000 (h + 1)."""
    bert, vit = architecture("bert-large"), architecture("vit-large")
    assert head_weights(bert.head, 1024) == 1024**2 + 3 * 1024 + 30522
    assert final_norm_weights(bert.towers[0]) == 0
    assert embedding_weights(bert.towers[0]) == ((30522 + 512 + 2) * 1024 + 2 * 1024)
    assert head_weights(vit.head, 1024) == 1000 * 1025
    # 196 patches of 768 values and a bias, a class token, 197 positions.
    assert embedding_weights(vit.towers[0]) == (769 + 1 + 197) * 1024


# FLOPs


@pytest.mark.parametrize(
    "model",
    [m for m in ARCHITECTURES if len(m.towers) == 1 and not m.head.pooled],
    ids=by_name,
)
def test_flops_per_token_are_six_per_weight(model: Architecture) -> None:
    """FLOPs per token are 6 N, and attention 12 L s a d, `s` at most the window.

    A weight takes one multiplication and one addition forward and twice that
    backward. ``N`` are the weights a token visits, of the token and position
    tables only what the output layer multiplies with.
    """
    s = min(model.max_sequence, 2048)
    core = 0
    for block in model.towers[0].blocks():
        attention = block.attention
        value = attention.value_size or attention.head_size
        width = attention.heads * (attention.head_size + value)
        core += 6 * min(s, attention.window or s) * width
    visited = model.active_parameters - embedding_weights(model.towers[0])
    if model.head.tied:
        visited += model.head.outputs * model.towers[0].hidden
    per_token = model.model_flops(s) / s
    assert per_token == pytest.approx(6 * visited + core, rel=1e-3)


def test_model_flops_of_a_window() -> None:
    """At 8192 tokens Mistral's 4096 of them halve the core, not the rest.

    Two products with 4096 positions, 32 heads of 128, 32 layers, three
    passes: 3 · 32 · 8192 · 4 · 4096 · 4096 FLOPs less than without window.
    """
    model, block = architecture("mistral-7b"), block_of("mistral-7b")
    wide = replace(block.attention, window=0)
    without = with_block("mistral-7b", replace(block, attention=wide))
    saved = without.model_flops(8192) - model.model_flops(8192)
    assert saved == 3 * 32 * 8192 * 4 * 4096 * 4096


def test_model_flops_of_an_encoder_decoder() -> None:
    """T5-large, h = 1024 = a d, 512 and 128 tokens, 24 layers each.

    Encoder, per token: 2 · 12 h² and 4 · 512 h. Decoder, per token: queries,
    outputs and MLP of 14 h² and keys and values of 2 h² for itself, 4 · 128 h
    and 4 · 512 h; keys and values of the source: 2 · 2 h² per source token.
    The output layer: 2 · 32128 h per target token.
    """
    h = 1024
    encoder = 512 * (24 * h * h + 4 * 512 * h)
    own = 4 * h * h + 2 * h * h + 8 * h * h
    decoder = 128 * (2 * own + 4 * 128 * h + 4 * 512 * h)
    decoder += 512 * 4 * h * h
    head = 128 * 2 * 32128 * h
    assert architecture("t5-large").model_flops(512) == 3 * (
        24 * (encoder + decoder) + head
    )


def test_model_flops_of_a_classifier() -> None:
    """ViT-L: 197 tokens through 24 layers, 196 + 1 patches, one vector out.

    The class token is counted like a patch: 2 · 768 h.
    """
    h, s = 1024, 197
    blocks = 24 * s * (24 * h * h + 4 * s * h)
    forward = blocks + 2 * s * 768 * h + 2 * 1000 * h
    assert architecture("vit-large").model_flops(197) == 3 * forward


def test_model_flops_of_two_towers() -> None:
    """CLIP: each tower with its own length, each output projected."""

    def tower(h: int, s: int, layers: int) -> int:
        return layers * s * (24 * h * h + 4 * s * h)

    forward = tower(1024, 257, 24) + 2 * 257 * 588 * 1024
    forward += tower(768, 77, 12)
    forward += 2 * 768 * (1024 + 768)
    assert architecture("clip-vit-l-14").model_flops(257) == 3 * forward


# What divides


@pytest.mark.parametrize(
    ("name", "degrees", "text"),
    [
        (
            "gpt3-13b",
            (16, 1, 1),
            "tp: expected a divisor of the 40 attention heads of gpt3-13b, "
            "got 16; choose 1, 2, 4 or 8",
        ),
        (
            "llama3-8b",
            (3, 1, 1),
            "tp: expected a divisor of the 32 attention heads of llama3-8b, "
            "got 3; choose 1, 2, 4, 8, 16 or 32",
        ),
        (
            "mixtral-8x7b",
            (1, 1, 3),
            "ep: expected a divisor of the 8 experts of mixtral-8x7b, got 3; choose 2",
        ),
        (
            "llama3-8b",
            (1, 1, 2),
            "ep: expected 1, as llama3-8b has no experts, got 2; choose 1",
        ),
        (
            "llama3-8b",
            (1, 3, 1),
            "cp: expected a divisor of half the 4096 tokens of a sample of "
            "llama3-8b, got 3; choose 1",
        ),
        (
            "vit-large",
            (2, 1, 1),
            "tp: expected a divisor of the 197 tokens that sequence parallelism cuts, "
            "got 2; choose another degree or sequence length",
        ),
    ],
)
def test_why_not_split(name: str, degrees: tuple[int, int, int], text: str) -> None:
    assert architecture(name).why_not_split(*degrees, 4096) == text


LLAMA3 = block_of("llama3-8b")


@pytest.mark.parametrize(
    ("block", "tp", "text"),
    [
        # 6 is no divisor and no multiple of 4.
        (
            replace(LLAMA3, attention=replace(LLAMA3.attention, heads=12, kv_heads=4)),
            6,
            "a divisor or a multiple of the 4 key and value heads of "
            "llama3-8b, got 6; choose 1, 2 or 4",
        ),
        (
            replace(LLAMA3, mlp=replace(LLAMA3.mlp, hidden=14338)),
            4,
            "a divisor of the 14338 columns of the MLP of llama3-8b, got 4; "
            "choose 1 or 2",
        ),
        (
            replace(
                LLAMA3,
                mlp=replace(
                    LLAMA3.mlp, experts=8, experts_per_token=1, shared_hidden=2050
                ),
            ),
            4,
            "a divisor of the 2050 columns of the shared experts of "
            "llama3-8b, got 4; choose 1 or 2",
        ),
    ],
)
def test_shapes_that_tp_does_not_divide(block: Block, tp: int, text: str) -> None:
    model = with_block("llama3-8b", block)
    assert model.why_not_split(tp, 1, 1, 3072) == f"tp: expected {text}"


def test_what_divides() -> None:
    """KV heads are replicated; without sequence parallelism 197 is fine."""
    assert architecture("llama3-70b").why_not_split(16, 2, 1, 8192) is None
    assert architecture("mixtral-8x7b").why_not_split(8, 2, 8, 8192) is None
    vit = architecture("vit-large")
    assert vit.why_not_split(2, 1, 1, 197, sequence_parallel=False) is None


# Graphs


ONE = (Degrees(),)


def plain(model: Architecture, layers_per_node: int = 1) -> Choices:
    """Choices of one cost per kind, for any model."""
    length = min(model.max_sequence, 2048)
    return Choices(
        global_batch=8,
        sequence_length=length,
        micro_batches=(1,),
        degrees=ONE,
        layers_per_node=layers_per_node,
    )


@pytest.mark.parametrize("model", ARCHITECTURES, ids=by_name)
def test_graphs_hold_all_parameters(model: Architecture) -> None:
    """On one device, 2 bytes per weight; padding and tied copies added.

    Tables and output layers of tokens have rows up to a multiple of 128; a
    tied output layer is there twice. The temperature of a loss is nowhere.
    """
    graph = build_graph(model, H100, plain(model))
    costs = {kind.name: kind.costs[0] for kind in graph.kinds}
    held = sum(
        costs[x.kind].weight_bytes + costs[x.kind].expert_weight_bytes
        for x in graph.layers
    )
    extra = -int(model.head.temperature)
    for tower in model.towers:
        if tower.vocabulary and tower.shares_embedding is None:
            extra += -tower.vocabulary % 128 * tower.hidden
    hidden = head_towers(model)[-1].hidden
    head = model.head
    if not head.pooled:
        rows = -(-head.outputs // 128) * 128
        extra += (rows - head.outputs) * (hidden + head.bias)
        if head.tied:
            extra += head.outputs * hidden
    assert held == 2 * (model.parameters + extra)


def test_a_decoder_is_a_chain() -> None:
    model = architecture("llama3-8b")
    graph = build_graph(model, H100, plain(model))
    ids = [layer.id for layer in graph.layers]
    assert ids == ["embedding", *[f"layer-{i}" for i in range(32)], "head"]
    assert [(e.source, e.target) for e in graph.edges] == list(pairwise(ids))
    assert {e.bytes_per_sample for e in graph.edges} == {2 * 2048 * 4096}


def test_every_decoder_layer_reads_the_encoder() -> None:
    """T5-large: 24 layers behind an embedding, twice; 512 x 1024 values."""
    model = architecture("t5-large")
    graph = build_graph(model, H100, plain(model))
    assert [kind.name for kind in graph.kinds] == [
        "encoder-embedding",
        "encoder",
        "encoder-norm",
        "decoder-embedding",
        "decoder",
        "head",
    ]
    crossing = [e for e in graph.edges if e.source == "encoder-norm"]
    assert [e.target for e in crossing] == [f"decoder-layer-{i}" for i in range(24)]
    assert {e.bytes_per_sample for e in crossing} == {2 * 512 * 1024}
    (last,) = [e for e in graph.edges if e.target == "head"]
    assert (last.source, last.bytes_per_sample) == ("decoder-layer-23", 2 * 128 * 1024)
    assert len(graph.edges) == (24 + 1) + 24 + (24 + 1)


def test_towers_meet_in_the_head() -> None:
    """One vector per sample of 1024 and of 768 values, in bf16."""
    model = architecture("clip-vit-l-14")
    graph = build_graph(model, H100, plain(model, layers_per_node=12))
    into = {e.source: e.bytes_per_sample for e in graph.edges if e.target == "head"}
    assert into == {"vision-layers-12-23": 2 * 1024, "text-layers-0-11": 2 * 768}
    assert [layer.id for layer in graph.layers] == [
        "vision-embedding",
        "vision-layers-0-11",
        "vision-layers-12-23",
        "text-embedding",
        "text-layers-0-11",
        "head",
    ]
    assert len(graph.edges) == 2 + 1 + 2


def test_nodes_of_unequal_blocks() -> None:
    """A pair of Gemma-2's blocks costs what its two blocks cost."""
    model = architecture("gemma2-27b")
    fine = build_graph(model, H100, plain(model))
    coarse = build_graph(model, H100, plain(model, layers_per_node=2))
    alone = {kind.name: kind.costs[0] for kind in fine.kinds}
    pair = {kind.name: kind.costs[0] for kind in coarse.kinds}
    assert list(pair) == ["embedding", "local+global", "head"]
    both = pair["local+global"]
    parts = (alone["local"], alone["global"])
    assert both.forward_ns == pytest.approx(sum(c.forward_ns for c in parts))
    assert both.weight_bytes == sum(c.weight_bytes for c in parts)
    assert len(coarse.layers) == 25
    # 61 layers are one node here: 3 dense, 58 sparse.
    whole = architecture("deepseek-v3")
    graph = build_graph(whole, H100, plain(whole, layers_per_node=61))
    assert [kind.name for kind in graph.kinds][1] == "3-dense+58-sparse"


def test_costs_add_up() -> None:
    """Times and kept bytes add up, working memory is the largest.

    Nothing but launches takes time: 1 ns each, 10 forward and 20 backward,
    of which 4 forward are repeated.
    """

    def call(size_bytes: int, count: int = 1) -> CollectiveCall:
        return CollectiveCall(
            kind="all-gather",
            axis="tp",
            phase="forward",
            size_bytes=size_bytes,
            count=count,
        )

    def node(scale: int, *calls: CollectiveCall) -> Node:
        return Node(
            operators=tuple(
                Operator(
                    *(name, "memory", 0, 0, 0, 0),
                    kernels=count * scale,
                    backward_kernels=2 * count * scale,
                )
                for name, count in (("once", 6), ("twice", 4))
            ),
            collectives=calls,
            weights=50 * scale,
            expert_weights=7 * scale,
            kept_bytes={"none": 1000 * scale, "selective": 500 * scale, "full": 10},
            repeated=("twice",),
            working_bytes=50 * scale,
        )

    site = H100.with_calibration(
        replace(H100.calibration, host_ns=1, collective_kernels=0)
    )
    parts = [(node(1, call(8, 2)), 4), (node(3, call(8), call(16)), 1)]
    split = Split(tp=2, samples=3, sequence_length=4)
    assert layer_cost(parts, split, site) == LayerCost(
        tp=2,
        samples=3,
        forward_ns=70,
        backward_ns=140,
        forward_host_ns=70,
        backward_host_ns=140,
        weight_bytes=700,
        expert_weight_bytes=98,
        working_bytes=150,
        activations=(
            Activations(kept_bytes=7000),
            Activations(
                recompute="selective",
                kept_bytes=3500,
                extra_ns=28,
                extra_host_ns=28,
                working_bytes=1500,
            ),
            Activations(recompute="full", kept_bytes=50, working_bytes=2990),
        ),
        collectives=(call(8, 9), call(16)),
    )


def test_nodes_must_divide_the_towers() -> None:
    model = architecture("llama3-8b")
    with pytest.raises(
        InvalidProblemError,
        match=r"^layers_per_node: expected a divisor of the 32 layers of "
        r"llama3-8b, got 5; choose another$",
    ):
        build_graph(model, H100, plain(model, layers_per_node=5))


def test_models_that_are_too_large() -> None:
    """A matrix of 10¹² rows of 28672 does not fit 2**53 bytes."""
    huge = with_block("llama3-8b", replace(LLAMA3, hidden=10**12))
    huge = replace(huge, name="huge")
    with pytest.raises(
        InvalidProblemError,
        match=r"^huge: \w+: expected <= 2\*\*53, got \d+; check its unit; "
        r"check the shape of the model$",
    ):
        build_problem(huge, H100, 8, plain(huge))


# Choices


@pytest.mark.parametrize("model", ARCHITECTURES, ids=by_name)
def test_defaults_suit_every_model(model: Architecture) -> None:
    choices = choose(model, H100, 64)
    longest = max(model.lengths(choices.sequence_length).values())
    tokens = choices.global_batch * longest
    assert 2 * 2**20 < tokens <= 4 * 2**20
    assert choices.sequence_length <= min(model.max_sequence, 8192)
    for size in choices.micro_batches:
        assert choices.global_batch % size == 0
    assert Degrees() in choices.degrees
    for tp, cp, ep, samples, etp in choices.degrees:
        assert etp == 0
        assert samples * longest <= 2**15
        assert (
            model.why_not_split(
                tp, cp, ep, choices.sequence_length, choices.sequence_parallel
            )
            is None
        )
    nodes = model.layers // choices.layers_per_node
    assert min(16, model.layers) <= nodes <= MAX_NODES


@pytest.mark.parametrize(
    ("etp", "named", "whole", "cut"),
    [
        (None, None, set(), {2, 4}),
        ((1,), None, {2, 4}, set()),
        ((1, 2, 4), None, {2, 4}, {2, 4}),
        ((4,), None, set(), {4}),
        ((1, 2), {"etp": {1}}, {2, 4}, {2}),
        (None, {"etp": {1}}, {2, 4}, {2, 4}),
    ],
)
def test_experts_are_whole_where_it_is_asked(etp, named, whole, cut) -> None:
    """On several tensor ranks; a name adds to the default, not to a list."""
    request = Request(tp=(2, 4), ep=(1, 8), etp=etp)
    choices = choose(architecture("qwen3-30b-a3b"), H100, 16, request, named)
    assert {d.tp for d in choices.degrees if d.etp} == whole
    assert {d.tp for d in choices.degrees if not d.etp} == cut
    graph = build_graph(architecture("qwen3-30b-a3b"), H100, choices)
    (keys,) = {tuple(cost.key for cost in kind.costs) for kind in graph.kinds}
    assert {(key[0], key[3]) for key in keys} == {
        *((tp, 1) for tp in whole),
        *((tp, 0) for tp in cut),
    }


def test_one_tensor_rank_has_whole_experts_anyway() -> None:
    request = Request(tp=(1, 2), ep=(8,), etp=(1,))
    choices = choose(architecture("mixtral-8x7b"), H100, 16, request)
    assert {(d.tp, d.etp) for d in choices.degrees} == {(1, 0), (2, 1)}


def test_whole_experts_need_experts_and_split_sequences() -> None:
    dense, sparse = architecture("llama3-8b"), architecture("mixtral-8x7b")
    with pytest.raises(InvalidOptionError, match="etp: expected none, as llama3-8b"):
        choose(dense, H100, 16, Request(etp=(1,)))
    named = {"etp": {1}}
    assert choose(dense, H100, 16, None, named) == choose(dense, H100, 16)
    request = Request(tp=(2,), etp=(1,), sequence_parallel=(False,))
    with pytest.raises(InvalidOptionError, match="etp: expected sequence parallelism"):
        choose(sparse, H100, 16, request)
    # Where plans choose, whole experts come with it.
    request = Request(tp=(2,), ep=(8,), etp=(1, 2), sequence_parallel=(False, True))
    graph = build_graph(sparse, H100, choose(sparse, H100, 16, request))
    for kind in graph.kinds:
        assert {(cost.etp, cost.sequence_parallel) for cost in kind.costs} == {
            (0, False),
            (0, True),
            (1, True),
        }


#: Devices and degrees of a size that launch scripts of Megatron-LM have with
#: ``--expert-tensor-parallel-size 1``.
RECIPES = {
    "mixtral-8x7b": (128, {"tp": 2, "pp": 4, "ep": 8}),
    "qwen3-30b-a3b": (16, {"tp": 4, "pp": 2, "ep": 4}),
    "deepseek-v3": (1024, {"tp": 2, "pp": 16, "ep": 64}),
}


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_with_whole_experts_have_a_cost(name) -> None:
    """Their degrees are among those of plans that name them."""
    devices, settings = RECIPES[name]
    named = {key: {value} for key, value in {**settings, "etp": 1}.items()}
    choices = choose(architecture(name), H100, devices, None, named)
    assert Degrees(settings["tp"], 1, settings["ep"], 1, 1) in choices.degrees


def test_plans_may_choose_where_sequences_are_split() -> None:
    """Both tables side by side, each as if the job had decided."""
    model = architecture("gpt2")
    both, whole, split = (
        build_graph(
            model, H100, choose(model, H100, 8, Request(sequence_parallel=values))
        )
        for values in ((True, False), (False,), (True,))
    )
    for kind, without, always in zip(both.kinds, whole.kinds, split.kinds, strict=True):
        assert {cost.sequence_parallel for cost in kind.costs} == {False, True}
        one = [cost for cost in kind.costs if not cost.sequence_parallel]
        assert tuple(one) == without.costs
        assert [
            replace(cost, sequence_parallel=False)
            for cost in kind.costs
            if cost.tp == 1 or cost.sequence_parallel
        ] == list(always.costs)
        assert without.costs != always.costs


def test_what_the_user_says_of_sequences_is_the_job_s() -> None:
    model = architecture("gpt2")
    for values, said in (
        (None, True),
        ((True,), True),
        ((False,), False),
        ((True, False), (False, True)),
    ):
        request = Request(sequence_parallel=values)
        choices = choose(model, H100, 8, request)
        job = build_problem(model, H100, 8, choices).job
        assert job.sequence_parallel == said


def test_hosts_are_stated_where_a_calibration_has_them() -> None:
    """Twice as long on the slower host; all other costs are as they were."""
    model = architecture("gpt2")
    choices = choose(model, H100, 8)

    def on(*hosts_ns: float) -> Problem:
        sites = [
            machine(name).with_calibration(
                replace(machine(name).calibration, host_ns=host_ns)
            )
            for name, host_ns in zip(("h100", "a100"), hosts_ns, strict=True)
        ]
        return build_on(model, [(x, 8) for x in sites], choices)

    def costs(problem: Problem) -> list[LayerCost]:
        return [cost for kind in problem.graph.kinds for cost in kind.costs]

    plain, hosted = on(0.0, 0.0), on(1000.0, 2000.0)
    assert b"host_ns" not in encode(plain)
    for cost in costs(hosted):
        (slower,) = cost.by_device
        assert cost.forward_host_ns >= 1000.0
        assert slower.forward_host_ns == 2 * cost.forward_host_ns
        assert slower.backward_host_ns == 2 * cost.backward_host_ns
        assert slower.extra_host_ns == 2 * cost.times.extra_host_ns
    for cost, bare in zip(costs(hosted), costs(plain), strict=True):
        assert cost.forward_ns >= bare.forward_ns
        assert cost.backward_ns >= bare.backward_ns
        assert timeless(cost) == timeless(bare)


def timeless(cost: LayerCost) -> LayerCost:
    """Return a cost without its times."""
    return replace(
        cost,
        forward_ns=0.0,
        backward_ns=0.0,
        forward_host_ns=0.0,
        backward_host_ns=0.0,
        activations=tuple(
            replace(x, extra_ns=0.0, extra_host_ns=0.0) for x in cost.activations
        ),
        by_device=(),
    )


def test_only_tokens_that_divide_are_split() -> None:
    """257 tokens of an image: no tensor degree divides them."""
    model = architecture("vit-huge")
    both = choose(model, H100, 8, Request(sequence_parallel=(False, True)))
    assert {degrees.tp for degrees in both.degrees} == {1, 2, 4, 8}
    for kind in build_graph(model, H100, both).kinds:
        assert not any(cost.sequence_parallel for cost in kind.costs)
    only = choose(model, H100, 8, Request(sequence_parallel=(True,)))
    assert {degrees.tp for degrees in only.degrees} == {1}


def test_defaults_of_llama3_70b() -> None:
    choices = choose(architecture("llama3-70b"), H100, 64)
    assert choices.global_batch == 512
    assert choices.sequence_length == 8192
    assert choices.micro_batches == (1, 2, 4, 8, 16, 32, 64)
    assert choices.degrees == tuple(
        Degrees(tp, cp, 1, samples)
        for tp in (1, 2, 4, 8)
        for cp in (1, 2)
        for samples in (1, 2, 4)
    )
    assert choices.zero == (0, 1, 2, 3)
    assert choices.recompute == ("none", "selective", "full")
    assert choices.layers_per_node == 1
    assert choices.sequence_parallel
    assert choices.dtype == "bf16"


def test_defaults_that_depend_on_the_model() -> None:
    """126 layers in pairs; 257 tokens do not cut; experts spread out."""
    assert choose(architecture("llama3-405b"), H100, 64).layers_per_node == 2
    assert choose(architecture("megatron-530b"), H100, 64).layers_per_node == 3
    assert not choose(architecture("vit-huge"), H100, 8).sequence_parallel
    mixtral = choose(architecture("mixtral-8x7b"), H100, 64)
    assert {d.ep for d in mixtral.degrees} == {1, 2, 4, 8}
    deepseek = choose(architecture("deepseek-v3"), H100, 2048)
    assert {d.ep for d in deepseek.degrees} == {1, 2, 4, 8, 16, 32, 64}
    assert choose(architecture("gpt2"), machine("v100"), 8).dtype == "fp16"
    # 25 heads of GPT-2 XL.
    assert {d.tp for d in choose(architecture("gpt2-xl"), H100, 8).degrees} == {1}


def test_large_clusters_get_large_batches() -> None:
    """512 samples are 4 Mi tokens of 8192; 8 devices to a sample need more."""
    model = architecture("llama3-405b")
    for num_devices, batch in ((4096, 512), (8192, 1024), (16384, 2048)):
        assert choose(model, H100, num_devices).global_batch == batch


def test_named_micro_batches_get_every_share() -> None:
    """Of 6 samples a rank may take 1, 2, 3 or 6."""
    request = Request(global_batch=12, micro_batches=(6,), tp=(1,), cp=(1,))
    choices = choose(architecture("llama2-7b"), H100, 8, request)
    assert [d.samples for d in choices.degrees] == [1, 2, 3, 6]
    assert choices.micro_batches == (6,)


#: What the defaults have of 8 devices, 48 samples of 1024 tokens.
USUAL = choose(architecture("gpt2"), H100, 8, Request(global_batch=48))


@pytest.mark.parametrize(
    "named",
    [
        {},
        {"tp": (1, 2, 4), "dp": (1, 2, 4, 8), "b": (1, 2, 16), "zero": (1,)},
        {"dp": (4,), "b": (16,), "v": (1,), "recompute": ("full",), "r": (3,)},
        # What does not divide batch or model is refused where pins are.
        {"b": (5,), "tp": (5,), "dp": (48, 7)},
        {"dp": (7,)},
        {"dp": (5,), "b": (8,)},
        {"ep": (2,), "cp": (1,)},
    ],
)
def test_named_values_that_the_defaults_have_change_nothing(named) -> None:
    request = Request(global_batch=48)
    found = choose(architecture("gpt2"), H100, 8, request, named)
    assert found == USUAL


@pytest.mark.parametrize("named", [{"dp": (8,)}, {"b": (16,), "dp": (4, 8)}])
def test_named_degrees_that_have_a_micro_batch_get_no_other(named) -> None:
    """32 samples on 8 ranks, or 64 on 16, are not among the defaults."""
    model = architecture("llama2-7b")
    assert choose(model, H100, 8, None, named) == choose(model, H100, 8)


def test_named_values_join_the_defaults() -> None:
    """Of b=24 ranks take shares of at most what they are offered anyway.

    12 ranks take 12 samples or a multiple; two of 16 samples take eight.
    """
    model, request = architecture("gpt2"), Request(global_batch=48)

    def added(**named: tuple[int, ...]) -> tuple[Any, ...]:
        found = choose(model, H100, 8, request, named)
        return (
            {*found.micro_batches} - {*USUAL.micro_batches},
            {d.samples for d in found.degrees} - {d.samples for d in USUAL.degrees},
            {d.tp for d in found.degrees} - {d.tp for d in USUAL.degrees},
            found.virtual_stages,
            found.sequence_parallel,
        )

    assert USUAL.micro_batches == (1, 2, 4, 8, 16)
    assert {d.samples for d in USUAL.degrees} == {1, 2, 4, 8, 16}
    nothing: set[int] = set()
    assert added(b=(24,)) == ({24}, {3, 6, 12}, nothing, (1,), True)
    assert added(dp=(12,)) == ({12, 24, 48}, nothing, nothing, (1,), True)
    assert added(b=(24,), dp=(8,))[:2] == ({24}, {3, 6, 12})
    assert added(v=(2, 4)) == (nothing, nothing, nothing, (1, 2, 4), True)
    # 1024 tokens are not split over three ranks; others still may split them.
    assert added(tp=(3,)) == (nothing, nothing, {3}, (1,), (False, True))
    own = Request(
        global_batch=48,
        micro_batches=(8,),
        tp=(1,),
        virtual_stages=(1,),
        schedule="1f1b",
    )
    named = {"b": (24,), "tp": (3,), "v": (2,), "dp": (3,)}
    assert choose(model, H100, 8, own, named) == choose(model, H100, 8, own)
    split = Request(schedule="zb-h1")
    assert choose(model, H100, 8, split, {"v": (2,)}).virtual_stages == (1,)


@pytest.mark.parametrize(
    ("model", "request_", "text"),
    [
        (
            "gpt3-13b",
            Request(tp=(1, 3)),
            "tp: expected a divisor of the 40 attention heads of gpt3-13b, "
            "got 3; choose 1, 2, 4 or 8",
        ),
        (
            "llama3-8b",
            Request(ep=(2,)),
            "ep: expected 1, as llama3-8b has no experts, got 2; choose 1",
        ),
        (
            "llama3-8b",
            Request(tp=(32,)),
            "tp: expected at most the 8 devices, got 32; choose less",
        ),
        (
            "llama3-8b",
            Request(layers_per_node=10**9),
            "layers_per_node: expected a divisor of the 32 layers of "
            "llama3-8b, got 1000000000; choose 32",
        ),
        (
            "llama3-8b",
            Request(layers_per_node=5),
            "layers_per_node: expected a divisor of the 32 layers of "
            "llama3-8b, got 5; choose 4",
        ),
        (
            "llama3-8b",
            Request(global_batch=10, micro_batches=(3, 4)),
            "micro_batches: expected at least one divisor of global_batch "
            "10, got 3, 4; choose others",
        ),
        (
            "gpt2",
            Request(sequence_length=2048),
            "sequence_length: expected at most the 1024 learned positions "
            "of gpt2, got 2048; choose less",
        ),
        (
            "clip-vit-l-14",
            Request(sequence_length=128),
            "sequence_length: expected 257, which clip-vit-l-14 fixes, got "
            "128; leave it out",
        ),
        (
            "llama3-8b",
            Request(sequence_length=16, tp=(8,), cp=(4,)),
            "tp: expected degrees that divide llama3-8b together with cp "
            "and ep, got tp 8, cp 4 and ep 1; choose smaller ones",
        ),
    ],
)
def test_bad_choices(model: str, request_: Request, text: str) -> None:
    with pytest.raises(InvalidOptionError) as caught:
        choose(architecture(model), H100, 8, request_)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("peaks", "dtype", "text"),
    [
        (
            {"fp16": 1e12},
            "bf16",
            "dtype: expected one of fp16, which toy multiplies, got 'bf16'; "
            "choose another",
        ),
        (
            {"fp32": 1e12},
            None,
            "dtype: expected a device that multiplies one of bf16, fp16, "
            "fp8, got toy with fp32; choose another",
        ),
    ],
)
def test_data_types(peaks: dict[str, float], dtype: Dtype | None, text: str) -> None:
    device = replace(H100.device, name="toy", peak_flops=peaks)
    site: Machine = replace(H100, device=device)
    with pytest.raises(InvalidOptionError) as caught:
        choose(architecture("gpt2"), site, 8, Request(dtype=dtype))
    assert str(caught.value) == text


# Problems


def test_a_problem_of_the_zoo() -> None:
    model = architecture("llama3-70b")
    choices = choose(model, H100, 64)
    problem = build_problem(model, H100, 64, choices)
    assert problem.name == "llama3-70b-dgx-h100x64"
    assert "one graph node per layer" in problem.source
    assert problem.cluster.num_devices == 64
    assert problem.job.model_flops_per_sample == model.model_flops(8192)
    assert problem.job.sequence_parallel


def test_mfu_of_llama3_70b() -> None:
    """Appendix B of PaLM, 6 N + 12 L h s per token, by hand.

    80 layers of 8192 channels: queries and the output take 2 · 8192² weights, keys and
    values 2 · 8192 · 1024, the gated MLP 3 · 8192 · 28672, and the head 8192 · 128256.
    A step has 512 samples of 8192 tokens, on 64 devices of 989 TFLOP/s.
    """
    layer = 2 * 8192**2 + 2 * 8192 * 1024 + 3 * 8192 * 28672
    assert layer == 855_638_016
    matrices = 80 * layer + 8192 * 128256
    assert matrices == 69_501_714_432
    per_token = 6 * matrices + 12 * 80 * 8192 * 8192
    assert per_token == 481_434_796_032
    model = architecture("llama3-70b")
    choices = choose(model, H100, 64, Request(tp=(8,), cp=(1,), micro_batches=(1,)))
    problem = build_problem(model, H100, 64, choices)
    layers = [layer.id for layer in problem.graph.layers]
    strategy = Strategy(tp=8, recompute="full")
    plan = Plan(
        replicas=1,
        micro_batch=1,
        stages=tuple(
            Stage(layers=tuple(layers[first:last]), devices=8, strategy=strategy)
            for first, last in pairwise((0, 11, 21, 31, 41, 51, 61, 71, 82))
        ),
    )
    found = score(problem, plan)
    step_s = float(found.step_time_ns) / 1e9
    tokens = 512 * 8192
    assert found.throughput_tokens_per_s == pytest.approx(tokens / step_s)
    assert found.throughput_tokens_per_s_per_device == pytest.approx(
        tokens / step_s / 64
    )
    assert found.mfu == pytest.approx(per_token * tokens / (step_s * 64 * 989e12))


def one_stage(problem: Problem, strategy: Strategy, micro_batch: int) -> Plan:
    layers = tuple(layer.id for layer in problem.graph.layers)
    return Plan(
        replicas=1,
        micro_batch=micro_batch,
        stages=(Stage(layers=layers, devices=strategy.devices, strategy=strategy),),
    )


@pytest.mark.parametrize("name", ["t5-large", "clip-vit-l-14", "gpt2"])
def test_plans_do_not_depend_on_the_grain(name: str) -> None:
    """One stage holds all layers: nodes of one or of 12 layers are alike.

    Times are rounded per node, hence the tolerance.
    """
    model = architecture(name)
    times = []
    for count in (1, 12):
        request = Request(global_batch=8, micro_batches=(1,), layers_per_node=count)
        choices = choose(model, H100, 8, request)
        problem = build_problem(model, H100, 8, choices)
        verdict = score(problem, one_stage(problem, Strategy(tp=1), 1))
        assert verdict.feasible
        times.append(verdict.step_time_ns)
    assert times[0] == pytest.approx(times[1], rel=1e-6)


def test_equal_layers_of_a_graph_are_priced_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Embedding, decoder and head of 126 layers, under every split."""
    priced = []

    def priced_cost(*arguments: Any) -> LayerCost:
        priced.append(arguments)
        return layer_cost(*arguments)

    monkeypatch.setattr(graphs, "layer_cost", priced_cost)
    model = architecture("llama3-405b")
    choices = choose(model, H100, 16384, Request(layers_per_node=1))
    graph = build_graph(model, H100, choices)
    assert len(graph.layers) == 128
    assert len(priced) == 3 * len(choices.degrees)


def test_activations_go_to_the_host_where_asked() -> None:
    """By PCIe 5 with 63 GB/s: of blocks what full recomputation does not keep."""
    request = Request(recompute=("none", "full", "offload"), tp=(1,))
    model = architecture("llama2-7b")
    graph = build_graph(model, H100, choose(model, H100, 8, request))
    for kind in graph.kinds:
        for cost in kind.costs:
            entries = {x.recompute: x for x in cost.activations}
            moved = entries["none"].kept_bytes - entries["offload"].kept_bytes
            assert entries["offload"].transfer_ns == pytest.approx(moved / 63)
            assert entries["offload"].working_bytes == 2 * moved
            whole = entries["full" if kind.name == "decoder" else "none"].kept_bytes
            assert entries["offload"].kept_bytes == whole
    plain = build_graph(model, H100, choose(model, H100, 8, Request(tp=(1,))))
    assert "offload" not in {
        x.recompute for kind in plain.kinds for x in kind.costs[0].activations
    }


def test_a_slow_link_of_several_machines_counts() -> None:
    request = Request(recompute=("offload",), tp=(1,))
    model, other = architecture("llama2-7b"), machine("a100")
    choices = choose(model, H100, 16, request)
    both = build_on(model, [(H100, 8), (other, 8)], choices).graph.kinds
    slow = build_graph(model, other, choices).kinds
    for mixed, alone in zip(both, slow, strict=True):
        for cost, there in zip(mixed.costs, alone.costs, strict=True):
            assert cost.activations[-1] == there.activations[-1]


def test_links_to_hosts_have_to_be_known() -> None:
    site = machine("tpu-v4")
    model = architecture("llama2-7b")
    choices = choose(model, site, 8, Request(recompute=("offload",)))
    with pytest.raises(
        InvalidProblemError,
        match=r"^recompute: expected a device whose link to the host is known, for "
        r"'offload', got TPU v4; leave it out$",
    ):
        build_graph(model, site, choices)


# Documentation


def test_the_table_of_models_is_up_to_date() -> None:
    page = (ROOT / "docs" / "models.md").read_text()
    assert models_table() in page
