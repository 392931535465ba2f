"""Operators of layers: DAGs by hand, and what they add up to."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

from nest.accelerators.layers import (
    BACKWARD,
    Attention,
    LayerWork,
    Pass,
    backward_pass,
    execution_of,
    forward_pass,
    layer_works,
    repeated_pass,
)
from nest.accelerators.operators import Gemm, OperatorWork, Vector, operations
from nest.accelerators.problem import base_problem
from nest.errors import InvalidOptionError
from nest.models.architectures import Architecture
from nest.models.blocks import Attention as Shape
from nest.models.blocks import Block, Mlp
from nest.models.choices import Choices, Request
from nest.models.graphs import count_kinds
from nest.models.hf import from_hf
from nest.models.operators.base import Execution, Node, Operation, Operator, Split
from nest.models.operators.nodes import block_node
from nest.models.zoo import architecture, names

UNFUSED, FUSED = execution_of("unfused"), execution_of("fused")

#: Six tokens, width 8, two heads of 4, an MLP of 32.
GPT = Block(
    name="decoder",
    hidden=8,
    attention=Shape(heads=2, kv_heads=2, head_size=4),
    mlp=Mlp(hidden=32),
    dropout=True,
)
SIX = Split(sequence_length=6)


def shown(made: Pass) -> list[tuple[str, object, list[str]]]:
    """Return name, what is computed, and the names of what is needed."""
    return [
        (
            work.name,
            [tuple(x) for x in (*work.gemms, *work.vectors)],
            [made.works[x].name for x in after],
        )
        for work, after in zip(*made, strict=True)
    ]


def needs(made: Pass) -> dict[str, set[str]]:
    return {name: set(after) for name, _, after in shown(made)}


@cache
def stored(family: str) -> Architecture:
    """Return a small model of a family of transformers."""
    path = Path(__file__).parents[2] / "data" / "models.json"
    examples = json.loads(path.read_text(encoding="utf-8"))[family]
    return from_hf(examples[0]["config"], name=family)


def choices_for(model: Architecture, request: Request | None = None) -> Choices:
    return base_problem(model, 8, 4, request, execution=UNFUSED).choices


# One block by hand


def test_the_forward_pass_of_a_block() -> None:
    """48 values outside the MLP, 192 inside, 2 · 6 · 6 = 72 scores."""
    made = forward_pass(block_node(GPT, SIX, UNFUSED))
    assert shown(made) == [
        ("norm 1", [(48, "norm")], []),
        ("qkv", [(6, 8, 24, 1)], ["norm 1"]),
        ("scores", [(6, 4, 6, 2)], ["qkv"]),
        ("softmax", [(72, "softmax")], ["scores"]),
        ("attention dropout", [(72, "dropout")], ["softmax"]),
        ("context", [(6, 6, 4, 2)], ["attention dropout"]),
        ("attention output", [(6, 8, 8, 1)], ["context"]),
        ("residual 1", [(48, "dropout"), (48, "add")], ["attention output"]),
        ("norm 2", [(48, "norm")], ["residual 1"]),
        ("mlp up", [(6, 8, 32, 1)], ["norm 2"]),
        ("activation function", [(192, "gelu")], ["mlp up"]),
        ("mlp down", [(6, 32, 8, 1)], ["activation function"]),
        ("residual 2", [(48, "dropout"), (48, "add")], ["mlp down"]),
    ]
    moved = {work.name: work.vector_bytes for work in made.works}
    assert moved["softmax"] == 4 * 72
    assert moved["attention dropout"] == 5 * 72
    assert moved["residual 1"] == 7 * 48
    assert moved["qkv"] == 0


def test_the_backward_pass_of_a_block() -> None:
    """Gradients of weights are leaves, and so is that of the values.

    ``[m,k]·[k,n]``: the input's gradient is ``[m,n]·[n,k]``, that of the
    weights ``[k,m]·[m,n]``.
    """
    made = backward_pass(block_node(GPT, SIX, UNFUSED))
    after = needs(made)
    computed = {name: what for name, what, _ in shown(made)}
    assert shown(made)[:5] == [
        ("residual 2 gradient", [(48, "add-backward"), (48, "dropout-backward")], []),
        ("mlp down input gradient", [(6, 8, 32, 1)], ["residual 2 gradient"]),
        ("mlp down weight gradient", [(32, 6, 8, 1)], ["residual 2 gradient"]),
        (
            "activation function gradient",
            [(192, "gelu-backward")],
            ["mlp down input gradient"],
        ),
        ("mlp up input gradient", [(6, 32, 8, 1)], ["activation function gradient"]),
    ]
    assert computed["context left gradient"] == [(6, 4, 6, 2)]
    assert computed["context right gradient"] == [(6, 6, 4, 2)]
    assert computed["scores left gradient"] == [(6, 6, 4, 2)]
    assert computed["scores right gradient"] == [(4, 6, 6, 2)]
    assert after["attention dropout gradient"] == {"context left gradient"}
    assert after["scores left gradient"] == {"softmax gradient"}
    assert after["scores right gradient"] == {"softmax gradient"}
    assert (
        after["qkv input gradient"]
        == after["qkv weight gradient"]
        == {"scores left gradient", "scores right gradient", "context right gradient"}
    )
    assert after["norm 1 gradient"] == {"qkv input gradient"}
    leaves = set(after) - set().union(*after.values())
    assert leaves == {
        "mlp down weight gradient",
        "mlp up weight gradient",
        "attention output weight gradient",
        "qkv weight gradient",
        "norm 1 gradient",
    }
    moved = {work.name: work.vector_bytes for work in made.works}
    assert moved["activation function gradient"] == 6 * 192
    assert moved["softmax gradient"] == 6 * 72


def test_what_selective_recomputation_repeats() -> None:
    """The core; with fused attention, operators whose inputs were kept."""
    made = repeated_pass(block_node(GPT, SIX, UNFUSED))
    assert needs(made) == {
        "scores": set(),
        "softmax": {"scores"},
        "attention dropout": {"softmax"},
        "context": {"attention dropout"},
    }
    assert needs(repeated_pass(block_node(GPT, SIX, FUSED))) == {
        name: set()
        for name in (*("norm 1", "attention core", "norm 2"), "activation function")
    }


def test_a_fused_core_is_one_operator_on_both_engines() -> None:
    """It moves queries, keys, values and outputs once: 4 · 48 values."""
    node = block_node(GPT, SIX, FUSED)
    core = next(x for x in forward_pass(node).works if x.name == "attention core")
    # Under a causal mask, half of the six positions.
    scores, context = Gemm(6, 4, 3, 2), Gemm(6, 3, 4, 2)
    softmax = Vector(36, "softmax")
    assert core == OperatorWork(
        name="attention core",
        gemms=(scores, context),
        vectors=(softmax,),
        traffic_bytes=2 * 4 * 48,
    )
    (back,) = (x for x in backward_pass(node).works if "core" in x.name)
    assert back == OperatorWork(
        name="attention core gradient",
        # Scores once more; gradients of context, then of scores.
        gemms=(
            scores,
            Gemm(6, 4, 3, 2),
            Gemm(3, 6, 4, 2),
            Gemm(6, 3, 4, 2),
            Gemm(4, 6, 3, 2),
        ),
        vectors=(softmax, Vector(36, "softmax-backward")),
        traffic_bytes=2 * 2 * 4 * 48,
    )


# Branches


def test_keys_of_another_tower_need_nothing() -> None:
    """The decoder's cross-attention: the encoder's output is there."""
    block = Block(
        name="decoder",
        hidden=8,
        attention=Shape(heads=2, kv_heads=2, head_size=4),
        cross_attention=Shape(heads=2, kv_heads=2, head_size=4, cross=True),
        mlp=Mlp(hidden=32),
        norms=3,
    )
    node = block_node(block, Split(sequence_length=6, source_length=10))
    after = needs(forward_pass(node))
    assert after["key value"] == set()
    assert after["query"] == {"norm 2"}
    assert after["attention core 2"] == {"query", "key value"}
    loose = block_node(block, Split(sequence_length=6, source_length=10), UNFUSED)
    back = needs(backward_pass(loose))
    # Queries come first: factors have gradients of their own.
    assert back["query input gradient"] == {"scores left gradient"}
    assert back["key value input gradient"] == {
        "scores right gradient",
        "context right gradient",
    }


def test_compressed_queries_and_keys_are_side_by_side() -> None:
    """DeepSeek-V3's latent attention, and its shared experts."""
    model = architecture("deepseek-v3")
    *_, sparse = model.towers[0].blocks()
    node = block_node(sparse, Split(sequence_length=64), UNFUSED)
    after = needs(forward_pass(node))
    assert after["query down"] == after["key value down"] == {"norm 1"}
    assert after["rotary"] == {"query up", "key value up"}
    assert after["router"] == after["shared up"] == {"norm 2"}
    assert after["activation function 2"] == {"shared up"}
    assert after["residual 2"] == {"combine", "shared down"}
    back = needs(backward_pass(node))
    assert back["norm 2 gradient"] == {
        "router input gradient",
        "shared up input gradient",
    }
    assert back["norm 1 gradient"] == {
        "query down input gradient",
        "key value down input gradient",
    }
    # Values are not rotated: their gradient joins behind the rotation.
    assert back["key value up input gradient"] == {
        "rotary gradient",
        "context right gradient",
    }
    assert back["query up input gradient"] == {"rotary gradient"}


def test_a_gate_is_beside_the_queries() -> None:
    """Queries and keys are normed and rotated; the gate waits for none."""
    model = stored("afmoe")
    first = next(iter(model.towers[0].blocks()))
    node = block_node(first, Split(sequence_length=64), UNFUSED)
    after = needs(forward_pass(node))
    assert after["gate"] == after["qkv"] == {"norm 1"}
    assert after["rotary"] == {"query key norm"}
    assert after["gated output"] == {"context", "gate"}
    back = needs(backward_pass(node))
    assert back["gate input gradient"] == {"gated output gradient"}
    assert back["norm 1 gradient"] == {"gate input gradient", "qkv input gradient"}


def test_what_has_no_backward_pass_is_left_out() -> None:
    """The scores that pick tokens: their factors wait for the core."""
    model = stored("deepseek_v32")
    first = next(iter(model.towers[0].blocks()))
    node = block_node(first, Split(sequence_length=64), UNFUSED)
    assert "scores" in needs(forward_pass(node))
    assert needs(forward_pass(node))["scores"] == {"rotary", "index scores"}
    back = needs(backward_pass(node))
    assert not any("index scores" in name for name in back)
    assert back["index key input gradient"] == {"scores right gradient"}


def test_latent_experts_are_dispatched_narrow() -> None:
    block = Block(
        name="sparse",
        hidden=8,
        attention=Shape(heads=2, kv_heads=2, head_size=4),
        mlp=Mlp(
            hidden=4,
            experts=4,
            experts_per_token=2,
            latent=4,
            shared_hidden=4,
            shared_gate=True,
        ),
    )
    loose = Execution(flash_attention=False, fused_router=False)
    after = needs(forward_pass(block_node(block, SIX, loose)))
    assert after["latent down"] == after["router"] == {"norm 2"}
    assert after["routing"] == {"router"}
    assert after["dispatch"] == {"latent down", "routing"}
    assert after["shared gate"] == {"norm 2"}
    assert after["shared gated"] == {"shared down", "shared gate"}
    assert after["residual 2"] == {"latent up", "shared gated"}


# All models


def flops(work: OperatorWork) -> int:
    return sum(2 * g.m * g.k * g.n * g.batch for g in work.gemms)


def counted(operator: Operator) -> tuple[float, float]:
    return operator.forward_flops, operator.backward_flops


def sums(
    model: Architecture, attention: Attention
) -> list[tuple[LayerWork, list[int], list[float]]]:
    """Return FLOPs of both passes: of the products, and as counted."""
    execution = execution_of(attention)
    choices = choices_for(model)
    works = layer_works(model, choices, execution)
    found = []
    for work, kind in zip(works, count_kinds(model, choices, execution), strict=True):
        assert (work.kind, work.key) == (kind.kind, kind.key)
        made = [
            sum(n * flops(x) for one, n in runs for x in one.works)
            for runs in (work.forward, work.backward)
        ]
        wanted = [
            sum(n * counted(x)[i] for node, n in kind.parts for x in node.operators)
            for i in range(2)
        ]
        found.append((work, made, wanted))
    return found


DENSE = ("bert-large", "gpt3-350m", "llama3-8b", "t5-large", "vit-large")


@pytest.mark.parametrize("name", DENSE)
def test_products_have_the_flops_that_are_counted(name: str) -> None:
    for work, made, wanted in sums(architecture(name), "unfused"):
        assert made == wanted, (work.kind, work.key)


def test_fused_attention_has_the_flops_that_are_counted() -> None:
    for work, made, wanted in sums(architecture("gpt3-350m"), "fused"):
        assert made == wanted, (work.kind, work.key)


def test_where_products_have_more_flops() -> None:
    """Groups of tokens are rounded up; backward passes of latent attention.

    Five products of 4096 positions, half of them masked: three of the width
    192 of keys and two of that of values, 128, where 5/2 of each are counted.
    """
    rounded = False
    for work, made, wanted in sums(stored("mixtral"), "unfused"):
        assert made[0] >= wanted[0], work.key
        assert made[1] >= wanted[1], work.key
        rounded = rounded or made != wanted
    assert rounded
    model = architecture("deepseek-v3")
    split = Split(sequence_length=4096)
    node = block_node(next(iter(model.towers[0].blocks())), split, FUSED)
    core = {x.name: x for x in backward_pass(node).works}
    made_flops = flops(core["attention core gradient"])
    per_width = 2 * 128 * 4096 * 2048
    assert made_flops == per_width * (3 * 192 + 2 * 128)
    (operator,) = (x for x in node.operators if x.name == "attention core")
    assert operator.backward_flops == per_width * 2.5 * (192 + 128)


@pytest.mark.parametrize("attention", get_args(Attention))
@pytest.mark.parametrize(
    "name", ["bert-large", "mixtral-8x7b", "deepseek-v3", "clip-vit-l-14"]
)
def test_passes_are_dags_that_move_what_is_counted(
    name: str, attention: Attention
) -> None:
    """Products move their factors and results at least; others as counted."""
    model, execution = architecture(name), execution_of(attention)
    for kind in count_kinds(model, choices_for(model), execution):
        for node, _ in kind.parts:
            check_pass(forward_pass(node), node, "forward_bytes")
            check_pass(backward_pass(node), node, "backward_bytes")


def check_pass(made: Pass, node: Node, field: str) -> None:
    assert len({work.name for work in made.works}) == len(made.works)
    for position, after in enumerate(made.after):
        assert all(x < position for x in after)
        assert list(after) == sorted(after)
    moved = 0
    for work in made.works:
        moved += work.vector_bytes + (work.traffic_bytes or 0)
        if work.traffic_bytes is None:
            moved += sum(
                2 * g.batch * (g.m * g.k + g.k * g.n + g.m * g.n) for g in work.gemms
            )
    assert moved >= sum(getattr(x, field) for x in node.operators)


def test_every_model_of_the_zoo_has_passes() -> None:
    for name in names():
        model = architecture(name)
        found = layer_works(
            model, choices_for(model, Request(tp=(1,), micro_batches=(1,))), UNFUSED
        )
        assert all(work.forward and work.backward for work in found), name


def test_every_operation_has_cycles_in_both_passes() -> None:
    known = set(get_args(Operation))
    assert known | {name + BACKWARD for name in known} <= set(operations())


def test_nodes_of_several_layers_repeat_passes() -> None:
    model = architecture("gpt3-350m")
    request = Request(layers_per_node=4, tp=(1,), micro_batches=(1,))
    found = layer_works(model, choices_for(model, request), UNFUSED)
    (blocks,) = (x for x in found if x.kind == "decoder")
    assert [count for _, count in blocks.forward] == [4]
    assert [count for _, count in blocks.backward] == [4]
    assert [count for _, count in blocks.repeated] == [4]


def test_recurrences_are_refused() -> None:
    model = stored("mamba")
    with pytest.raises(
        InvalidOptionError,
        match="model: expected operators whose matrix products are known, "
        "got the recurrence of mamba; choose a model without one",
    ):
        layer_works(model, choices_for(model), UNFUSED)
