"""FLOP/s of a plan as logs show them, by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import nest
from nest.ir.problem import Problem
from nest.models.zoo import architecture
from nest.validation.flop_rates import flop_rates, flop_rates_text
from nest.validation.flops import logged_count
from tests.unit.cost.test_score import PLAN, three_stages

TOKENS = 32768

#: FLOPs per token of Mixtral 8x7B: 32 layers of 4096 channels, keys and values of 8 of
#: 32 heads, 2 of 8 experts of 14336 channels, and a vocabulary of 32000.
MATRICES = 6 * (
    32 * (2 * 4096 * (4096 + 1024) + 2 * 3 * 4096 * 14336 + 8 * 4096) + 4096 * 32000
)
ATTENTION = 12 * 32 * 4096 * TOKENS


@pytest.fixture(scope="module")
def problem() -> Problem:
    """Return the training of Mixtral 8x7B on H100 of 989 TFLOP/s."""
    return nest.problem(
        model="mixtral-8x7b",
        cluster="h100x8",
        sequence_length=TOKENS,
        global_batch=8,
        micro_batches=1,
    )


#: The score of a plan that reaches 513 TFLOP/s with attention in full.
VERDICT = replace(nest.score(three_stages(), PLAN), mfu=513 / 989)


def test_flops_of_causal_attention():
    """The mask leaves half of the products of queries and keys, and of values."""
    model = architecture("mixtral-8x7b")
    assert model.model_flops(TOKENS) == TOKENS * (MATRICES + ATTENTION)
    assert model.model_flops(TOKENS, causal=True) == TOKENS * (
        MATRICES + ATTENTION // 2
    )


def test_513_tflops_in_full_are_410_in_the_log_of_megatron(problem: Problem):
    """Per token 76.5 · 10^9 FLOPs of matrices, and 51.5 · 10^9 of attention.

    In full that is 1.252 times as many as with the half that the mask leaves. A kernel
    with a mask computes no more than this half, and Megatron-LM logs it since Core
    0.11, so 410 is what devices do.
    """
    ratio = (MATRICES + ATTENTION) / (MATRICES + ATTENTION / 2)
    full, halved = flop_rates(problem, VERDICT)
    assert full.flop_count == "attention in full"
    assert halved.flop_count == "causal attention halved"
    assert full.mfu == VERDICT.mfu
    assert full.tflops_per_device == pytest.approx(513)
    assert halved.tflops_per_device == pytest.approx(513 / ratio)
    assert halved.tflops_per_device == pytest.approx(410, abs=0.5)


@pytest.mark.parametrize(
    ("target", "count", "software"),
    [
        ("megatron", 1, "Megatron-LM from Core 0.11"),
        ("maxtext", 1, "MaxText from July 2025"),
        ("torchtitan", 0, "torchtitan"),
        ("deepspeed", 0, "DeepSpeed's flops profiler"),
    ],
)
def test_a_target_shows_what_its_log_prints(
    problem: Problem, target: str, count: int, software: str
):
    rate = flop_rates(problem, VERDICT)[count]
    logged = logged_count(target)
    assert logged is not None
    assert logged.meaning == rate.flop_count
    assert flop_rates_text(problem, VERDICT, target) == (
        f"MFU {100 * rate.mfu:.1f} %, {rate.tflops_per_device:.0f} TFLOP/s per device "
        f"(log of {software}: {rate.flop_count})"
    )


def test_without_a_target_each_count_is_named(problem: Problem):
    full, halved = (f"{100 * rate.mfu:.1f} %" for rate in flop_rates(problem, VERDICT))
    assert flop_rates_text(problem, VERDICT, "") == (
        f"MFU {full} (attention in full), {halved} (causal attention halved)"
    )


def test_a_problem_that_names_no_model_has_one_count():
    """580 FLOPs of a sample, at the peak of 4 GFLOP/s: an MFU of a half."""
    problem = three_stages(model_flops_per_sample=580.0, peak_flops={"bf16": 4e9})
    verdict = nest.score(problem, PLAN)
    text = "MFU 50.0 % (attention in full)"
    assert flop_rates_text(problem, verdict, "megatron") == text
    assert flop_rates(three_stages(), nest.score(three_stages(), PLAN)) == ()


def test_a_model_of_a_file_is_known_where_the_file_was_read(tmp_path: Path) -> None:
    """A Llama of 2 layers of 256 channels and 4,096 tokens."""
    config = {
        "model_type": "llama",
        "hidden_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 512,
        "vocab_size": 1024,
        "max_position_embeddings": 4096,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    problem = nest.problem(model=str(path), cluster="h100x8", sequence_length=4096)
    full, halved = flop_rates(problem, VERDICT)
    matrices = 6 * (2 * (4 * 256 * 256 + 3 * 256 * 512) + 256 * 1024)
    attention = 12 * 2 * 256 * 4096
    assert halved.mfu / full.mfu == pytest.approx(
        (matrices + attention / 2) / (matrices + attention)
    )
