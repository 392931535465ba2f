"""Configurations that ``transformers`` saved, and what their models count.

``tests/models/generate.py`` wrote them; ``make test-models`` draws others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nest.hardware import machine
from nest.models.architectures import Architecture
from nest.models.choices import Request, choose
from nest.models.graphs import build_problem, count_layer
from nest.models.hf import FAMILIES, from_hf
from nest.models.operators.base import Execution, Split, vocabulary_rows
from nest.models.weights import block_weights
from tests.models.generate import COUNTED_LENGTH, stored, stored_flops

EXAMPLES = [
    pytest.param(entry, id=f"{family}-{number}")
    for family, entries in stored().items()
    for number, entry in enumerate(entries)
]


@pytest.mark.parametrize("entry", EXAMPLES)
def test_parameters(entry: dict[str, Any]) -> None:
    assert from_hf(entry["config"]).parameters == entry["parameters"]


def nodes(model: Architecture, length: int) -> list[Any]:
    """Count every node of a model on one device, attention unfused."""
    lengths = model.lengths(length)
    loose = Execution(flash_attention=False)
    found = []
    read = {t.reads for t in model.towers} | {t.follows for t in model.towers}
    for tower in model.towers:
        split = Split(
            sequence_length=lengths[tower.name],
            source_length=lengths[tower.reads] if tower.reads else 0,
        )
        shapes = [tower, *tower.blocks()]
        shapes.append(None if tower.name in read else model.head)
        if tower.name in read and not tower.final_norm:
            shapes.pop()
        found += [count_layer(shape, tower, split, loose) for shape in shapes]
    return found


@pytest.mark.parametrize("entry", EXAMPLES)
def test_graph_nodes_hold_all_weights(entry: dict[str, Any]) -> None:
    """All but the padding of vocabularies, and tied matrices twice."""
    model = from_hf(entry["config"])
    held = sum(node.weights + node.expert_weights for node in nodes(model, 8))
    more = 0
    for tower in model.towers:
        padding = vocabulary_rows(tower.vocabulary, 1) - tower.vocabulary
        if tower.vocabulary and tower.shares_embedding is None:
            more += padding * (tower.embedding_size or tower.hidden)
        # Every layer holds a copy of what layers share.
        shared = [b for b in tower.blocks() if b.shared]
        more += sum(map(block_weights, shared))
        more -= sum(map(block_weights, {b.shared: b for b in shared}.values()))
    head = model.head
    if not head.pooled:
        rows = vocabulary_rows(head.outputs, 1)
        copied = rows if head.tied else rows - head.outputs
        width = head.transform_size or model.towers[-1].hidden
        biases = head.bias + head.spare_bias
        more += copied * width + (rows - head.outputs) * biases
    assert held - more == model.parameters - head.temperature


@pytest.mark.parametrize(
    "entry", stored_flops(), ids=lambda entry: entry["config"]["model_type"]
)
def test_sizes_by_default_and_flops(entry: dict[str, Any]) -> None:
    """Within 1 in 2000: rotary angles and class tokens are not counted.

    Within 1 in 200 where a delta rule is computed another way than in kernels.
    """
    model = from_hf(entry["config"])
    assert model.parameters == entry["parameters"]
    counted = model.forward_flops(COUNTED_LENGTH)
    delta = entry["config"]["model_type"] == "qwen3_next"
    assert counted == pytest.approx(entry["flops"], rel=5.2e-3 if delta else 5e-4)


@pytest.mark.parametrize("entry", EXAMPLES)
def test_operators_take_the_flops_of_the_model(entry: dict[str, Any]) -> None:
    """Attention over all positions; a vocabulary is padded by rows."""
    model = from_hf(entry["config"])
    counted = sum(node.flops()[0] for node in nodes(model, 8))
    head, width = model.head, model.towers[-1].hidden
    if not head.pooled:
        tokens = model.lengths(8)[model.towers[-1].name]
        padding = vocabulary_rows(head.outputs, 1) - head.outputs
        counted -= 2 * tokens * padding * (head.transform_size or width)
    assert counted == model.forward_flops(8)


@pytest.mark.parametrize("family", ["deepseek_v4", "gemma3n_text"])
def test_stages_send_all_residual_streams(family: str) -> None:
    """Two bytes per value of every stream; full recomputation keeps as much."""
    model = from_hf(stored()[family][0]["config"])
    site = machine("h100")
    choices = choose(model, site, 8, Request(sequence_length=32, tp=(1,), cp=(1,)))
    graph = build_problem(model, site, 8, choices).graph
    streams = stored()[family][0]["config"].get("hc_mult", 4)
    streams = stored()[family][0]["config"].get("altup_num_inputs", streams)
    sent = {edge.bytes_per_sample for edge in graph.edges}
    assert sent == {2 * 32 * streams * model.towers[0].hidden}


def test_the_documentation_lists_every_family() -> None:
    text = (Path(__file__).parents[3] / "docs" / "models.md").read_text()
    table = text.split("| `model_type` |")[1].split("\n\n")[0]
    rows = table.split("\n")[2:]
    names = [
        name for row in rows for name in row.strip("| ").split(" | ")[0].split(", ")
    ]
    assert sorted(names) == sorted(FAMILIES)
