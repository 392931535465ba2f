"""Recorded answers of Galvatron's own search engine.

Hetu-Galvatron at cea12ff was run on the profiles that it ships, Llama-2-7B
with 2,048 tokens on eight devices in bf16; reference/galvatron-runs.md has
its answers with predicted times in four decimals and MB per stage. The answer
for 36 GB and 16 samples is a file of the repository itself. What was recorded
for v2.1 needs profiles that are not among the shared data.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.galvatron_profiles import (
    HardwareProfile,
    ModelProfile,
    ProfileAnswer,
    Search,
    read_hardware,
    read_model,
    search_profiles,
)
from tests.rows import named_rows

#: Half of the last recorded digit.
ROUNDED_S = 0.5e-4


@pytest.fixture(scope="module")
def folder(shared_data: Path) -> Path:
    return shared_data / "profiles" / "galvatron"


@pytest.fixture(scope="module")
def model(folder: Path) -> ModelProfile:
    return read_model(
        folder / "configs",
        "llama2-7b",
        num_layers=32,
        hidden_size=4096,
        sequence_length=2048,
    )


@pytest.fixture(scope="module")
def hardware(folder: Path) -> HardwareProfile:
    return read_hardware(folder / "hardware_configs", 1, 8)


def run(model: ModelProfile, hardware: HardwareProfile, **fields: Any) -> ProfileAnswer:
    answer = search_profiles(model, hardware, Search(**fields))
    assert answer is not None
    return answer


def test_shipped_configuration(
    folder: Path, model: ModelProfile, hardware: HardwareProfile
) -> None:
    search = Search(memory_gib=36, batch_sizes=(16,), chunks=(1,))
    answer = search_profiles(model, hardware, search)
    assert answer is not None
    name = "galvatron_config_llama2-7b_1nodes_8gpus_per_node_36GB_bf16.json"
    shipped = json.loads((folder / "configs" / name).read_text())
    assert answer.config(search) == shipped
    assert answer.summary() == "20x 1-1-8f-c, 12x 1-1-8f"
    assert answer.time_s == pytest.approx(1.0860, abs=ROUNDED_S)
    assert answer.memory_mb == (36757,)


@pytest.mark.parametrize(
    ("fields", "chunks", "plan", "vtp", "time_s", "memory_mb"),
    named_rows("galvatron", "answers_for_64_samples"),
)
def test_recorded_answers_for_64_samples(
    model: ModelProfile,
    hardware: HardwareProfile,
    fields: dict[str, Any],
    chunks: int,
    plan: str | None,
    vtp: int | None,
    time_s: float,
    memory_mb: list[int],
) -> None:
    answer = run(model, hardware, batch_sizes=(64,), **fields)
    assert answer.task.chunks == chunks
    assert answer.time_s == pytest.approx(time_s, abs=ROUNDED_S)
    assert [*answer.memory_mb] == memory_mb
    # not recorded for two answers
    assert vtp in (None, answer.embedding.degree)
    if plan is not None:
        assert answer.summary() == plan
        return
    assert answer.division == (8, 8, 8, 8)
    assert [f"{s}" for s in answer.strategies[:8]] == ["4-1-2-c"] * 8
    assert {f"{s}" for s in answer.strategies[8:]} == {"4-2*-1", "4-2*-1-c"}
