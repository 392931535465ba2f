"""Step times from FLOP/s, and batches of published recipes."""

from __future__ import annotations

import csv
import statistics
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from nest.validation.complete import RECIPES, complete
from nest.validation.flops import (
    FLOP_COUNTS,
    counted_flops,
    counted_time,
    flop_count_of,
)
from nest.validation.reading import read_rows
from nest.validation.rows import Row, measured_step_time_s

HALVED = "model (Megatron-LM, causal attention halved)"
IN_FULL = (
    "model (Megatron-LM num_floating_point_operations; non-causal "
    "attention), peak 989.5"
)

TIMES = {"iter_time_s", "tokens_per_s_per_gpu"}


def row(**changes: Any) -> Row:
    """Return a decoder of 2 layers of 8 channels, 3 samples of 16 tokens."""
    plain = Row(
        hardware="H100-80GB-SXM",
        num_devices=2,
        layers=2,
        hidden=8,
        heads=2,
        vocab=10,
        seq_len=16,
        global_batch=3,
        precision_class="bf16",
    )
    return replace(plain, **changes)


def test_flops_of_a_decoder():
    """Weights of a layer: 4 * 8 * 8 of attention and 2 * 8 * 32 = 768.

    A token takes 2 * 6 * 768 = 9216 of them, 6 * 8 * 10 = 480 of the head, and 2 * 12 *
    16 * 8 = 3072 of attention's products, or half; a step has 48 tokens.
    """
    assert counted_flops(row(), causal=False) == 48 * (9216 + 480 + 3072)
    assert counted_flops(row(), causal=True) == 48 * (9216 + 480 + 1536)


def test_flops_of_experts_and_of_shared_keys():
    """Keys and values of one head of 3: 2 * 8 * (2 * 3 + 3) = 144 weights.

    Two visited and one shared expert of 5 channels, three matrices each:
    3 * 3 * 8 * 5 = 360. Attention's products have 6 channels of queries.
    """
    found = counted_flops(
        row(
            head_dim=3,
            kv_heads=1,
            gated_mlp=True,
            experts=4,
            topk=2,
            shared_experts=1,
            moe_ffn_hidden=5,
        ),
        causal=False,
    )
    assert found == 48 * (2 * (6 * 504 + 12 * 16 * 6) + 480)


@pytest.mark.parametrize("name", ["layers", "vocab", "global_batch"])
def test_what_is_missing_cannot_be_counted(name):
    assert counted_flops(row(**{name: None}), causal=True) is None


def test_the_time_of_tflops():
    """Half of 48 * 11232 FLOPs on each device, at 10^12 times 3e-7 FLOP/s."""
    found = counted_time(row(tflops_per_gpu=3e-7, tflops_kind=HALVED))
    assert found is not None
    assert found.time_s == pytest.approx(48 * 11232 / (2 * 3e5))


@pytest.mark.parametrize(
    ("kind", "peak", "flops"), [(IN_FULL, 989.5e12, 12768), (HALVED, 989e12, 11232)]
)
def test_the_time_of_mfu_is_of_the_peak_that_is_named(kind, peak, flops):
    """Or else of the device's: an H100's is 989 TFLOP/s."""
    found = counted_time(row(mfu=0.5, tflops_kind=kind))
    assert found is not None
    expected_s = 48 * flops / (2 * 0.5 * peak)
    assert found.time_s == pytest.approx(expected_s, rel=1e-9, abs=0)


@pytest.mark.parametrize(
    "changes",
    [
        {"tflops_per_gpu": 100.0},
        {"tflops_per_gpu": 100.0, "tflops_kind": "hardware (x4)"},
        {"tflops_kind": HALVED},
        {"mfu": 0.5, "tflops_kind": HALVED, "hardware": "abacus"},
        {"mfu": 0.5, "tflops_kind": HALVED, "precision_class": "int8"},
        {"tflops_per_gpu": 9.0, "tflops_kind": HALVED, "num_devices": None},
    ],
)
def test_flops_that_are_counted_somehow_say_nothing(changes):
    assert counted_time(row(**changes)) is None


def test_a_row_without_a_time_takes_it_from_its_flops():
    found = complete(row(tflops_per_gpu=3e-7, tflops_kind=HALVED))
    assert found.iter_time_s == pytest.approx(48 * 11232 / (2 * 3e5))
    assert found.time_tier == "B"
    assert found.assumed[-1] == (
        "iter_time_s, time_tier: FLOPs as counted by Megatron-LM from Core 0.11"
    )


@pytest.mark.parametrize(
    "figures",
    [{"iter_time_s": 2.0}, {"tokens_per_s_per_gpu": 2.0}, {"samples_per_s": 2.0}],
)
def test_a_measured_time_is_kept(figures):
    stated = row(tflops_per_gpu=3e-7, tflops_kind=HALVED, **figures)
    assert complete(stated) == stated


def test_shapes_that_columns_cannot_say_are_not_counted():
    """DeepSeek-V3 has latent attention and dense layers."""
    model = row(
        model="DeepSeek-V3",
        layers=61,
        hidden=7168,
        heads=128,
        vocab=129280,
        experts=256,
        tflops_per_gpu=500.0,
        tflops_kind=HALVED,
    )
    assert complete(model).iter_time_s is None


def test_counts_have_a_source_and_words_of_their_own():
    for count in FLOP_COUNTS:
        assert count.reference
    for kind in (HALVED, IN_FULL):
        matching = flop_count_of(row(tflops_kind=kind))
        assert matching is not None
        assert matching.causal == (kind == HALVED)


def test_counts_agree_with_measured_times(shared_data: Path):
    """Of rows that print both, FLOP/s times time are FLOPs as counted.

    Times are printed with two or three digits, FLOP/s with three or more.
    """
    ratios: dict[str, list[float]] = {}
    for name in ("measurements.csv", "measurements-2026.csv"):
        path = shared_data / "measured" / name
        with path.open(newline="", encoding="utf-8") as file:
            cells = list(csv.DictReader(file))
        for run, stated in zip(read_rows(path), cells, strict=True):
            measured = set(stated["measured_fields"].split())
            count, time_s = flop_count_of(run), measured_step_time_s(run)
            found = counted_time(run)
            if run.experts or not (count and time_s and found):
                continue
            if "tflops_per_gpu" in measured and TIMES & measured:
                ratios.setdefault(count.name, []).append(found.time_s / time_s)
    assert {name: len(found) for name, found in ratios.items()} == {
        "Megatron-LM to Core 0.10": 4,
        "MaxText to July 2025": 9,
        "MaxText from July 2025": 5,
    }
    for values in ratios.values():
        assert statistics.median(values) == pytest.approx(1, abs=0.001)
        assert max(abs(ratio - 1) for ratio in values) < 0.005


def test_the_count_of_experts_agrees_with_measured_times(shared_data: Path):
    """Qwen3-235B-A22B: of four rows with both figures."""
    ratios = []
    for run in read_rows(shared_data / "measured" / "measurements-2026.csv"):
        found = counted_time(run)
        if run.model == "Qwen3-235B-A22B" and found and run.iter_time_s:
            ratios.append(found.time_s / run.iter_time_s)
    assert len(ratios) >= 4
    assert max(abs(ratio - 1) for ratio in ratios) < 0.006


# Batches of published recipes

LLAMA = {
    "framework": "Primus (Megatron-Core backend)",
    "model": "Llama 2 7B",
    "layers": 16,
    "seq_len": 4096,
    "tp": 1,
    "pp": 8,
    "dp": 1,
    "num_devices": 8,
    "global_batch": None,
}


def test_a_run_without_a_batch_has_that_of_its_recipe():
    found = complete(row(**LLAMA, time_tier="B"))
    assert (found.micro_batch, found.global_batch) == (1, 32)
    assert (found.time_tier, found.mem_tier) == ("C", None)
    assert found.assumed[-1].startswith(
        "micro_batch, global_batch, time_tier: tests/trainer/"
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"global_batch": 64},
        {"micro_batch": 2},
        {"layers": 32},
        {"framework": "Megatron-LM"},
        {"model": "Llama 2 70B"},
        {"model": None},
    ],
)
def test_another_run_has_no_batch_of_a_recipe(changes):
    found = complete(row(**LLAMA | changes))
    assert not any("tests/trainer" in text for text in found.assumed)


def test_recipes_have_a_source():
    for recipe in RECIPES:
        assert recipe.reference
        assert recipe.columns
