"""Facts about software that a row states, also off."""

from __future__ import annotations

from typing import Any

import pytest

from nest.ir.plan import OVERLAP
from nest.validation.reading import parse_rows
from nest.validation.rows import Row
from nest.validation.settings import (
    assumed_settings,
    is_fused,
    is_per_operator,
    overlap_of,
    periods,
    recomputations,
)
from nest.validation.software import FACT_COLUMNS, software_of, splits_sequences
from nest.validation.words import not_understood


def overlapped(**cells: Any) -> tuple[str, ...]:
    row = Row(framework="Megatron-Core", **cells)
    return overlap_of(row, software_of(row))


def test_each_overlap_is_switched_on_and_off() -> None:
    """Megatron-Core overlaps all but the communication of experts."""
    assert overlapped() == ("tp", "cp", "weights", "gradients")
    assert overlapped(tp_overlap=False) == ("cp", "weights", "gradients")
    assert overlapped(weights_overlap=False, ep_overlap=True) == (
        *("tp", "cp", "ep", "gradients"),
    )
    assert overlapped(overlap="none") == ()
    assert overlapped(overlap="none", gradients_overlap=True) == ("gradients",)


@pytest.mark.parametrize("name", ["Megatron-Core", "NeMo", "Megatron-Bridge"])
def test_megatron_overlaps_tensor_ranks_with_split_sequences(name: str) -> None:
    """Its target says so (``--tp-comm-overlap`` needs ``--sequence-parallel``).

    Recipes split sequences where a row does not say it.
    """
    for sp, overlaps in ((None, True), (True, True), (False, False)):
        row = Row(framework=name, tp=8, sp=sp)
        software = software_of(row)
        assert splits_sequences(row, software) == overlaps
        assert ("tp" in overlap_of(row, software)) == overlaps
        assert "gradients" in overlap_of(row, software)
    stated = Row(framework=name, sp=False, tp_overlap=True)
    assert "tp" in overlap_of(stated, software_of(stated))


def test_what_is_stated_replaces_the_fact_of_the_software() -> None:
    stated = Row(
        framework="Megatron-Core",
        fused_kernels=False,
        fused_loss=False,
        gradient_bytes=2,
        optimizer_bytes=4,
    )
    software = software_of(stated)
    assert not software.fused_loss
    assert (software.gradient_bytes, software.state_bytes) == (2, 4)
    plain = software_of(Row(framework="Megatron-Core"))
    assert software.overlap == plain.overlap
    assert plain.fused_loss
    assert not is_fused(stated, software)
    noted = Row(fused_kernels=False, notes="RMSNorm kernel")
    assert not is_fused(noted, software_of(noted))


@pytest.mark.parametrize(
    ("text", "once"), [("DeepEP", True), ("hybrid-ep", True), ("all-to-all", False)]
)
def test_the_dispatcher_is_stated(text: str, once: bool) -> None:
    row = Row(framework="Megatron-Bridge", model="qwen3_30b", dispatcher=text)
    assert software_of(row).dispatch_once == once


def test_cells_say_on_and_off() -> None:
    """Every fact has a column, which an empty cell leaves to the software."""
    columns = [*FACT_COLUMNS, *(f"{name}_overlap" for name in OVERLAP), "dispatcher"]
    text = (
        "hardware,seq_len,global_batch,tp,pp,layers,dp,micro_batch,precision,"
        "iter_time_s," + ",".join(columns) + "\n"
        "A100,1024,8,1,1,2,1,1,bf16,1.0,off,no,2,0,on,yes,1,off,0,DeepEP\n"
        "A100,1024,8,1,1,2,1,1,bf16,1.0,,,,,,,,,,\n"
    )
    first, second = parse_rows(text.encode())
    assert first.unreadable == ()
    assert [getattr(first, name) for name in columns] == [
        *(False, False, 2, 0, True, True, True, False, False, "DeepEP")
    ]
    assert {getattr(second, name) for name in columns} == {None}


@pytest.mark.parametrize(
    ("text", "choices", "every", "per_operator"),
    [
        ("selective (op)", ("selective",), (1,), True),
        ("selective_ac_option=op", ("selective",), (1,), True),
        ("SAC", ("selective",), (1,), True),
        ("selective_ac_option=2", ("full",), (2,), False),
        ("selective_ac_option=1", ("full",), (1,), False),
        ("core_attn", ("selective",), (1,), False),
        ("recompute_modules=core_attn", ("selective",), (1,), False),
        ("uniform 1", ("full",), (1,), False),
    ],
)
def test_recomputation_in_the_words_of_options(
    text: str, choices: tuple[str, ...], every: tuple[int, ...], per_operator: bool
) -> None:
    row = Row(recompute=text)
    assert recomputations(row) == choices
    assert periods(row) == every
    assert is_per_operator(row) == per_operator


def test_what_empty_cells_mean_is_told() -> None:
    usual = "recompute: the first of none, selective, full that fits"
    assert assumed_settings(Row(framework="Megatron-Core", tp=2)) == (
        f"{usual} (Megatron-Core)",
        "sp: on (Megatron-Core)",
    )
    stated = Row(framework="Megatron-DeepSpeed", recompute="full")
    assert assumed_settings(stated) == (
        "framework: a release up to 2022, as no year is stated (Megatron-DeepSpeed)",
    )


@pytest.mark.parametrize(
    ("framework", "text", "overlap"),
    [
        ("DeepSpeed", "overlap_comm false", ()),
        ("DeepSpeed", "overlap_comm true", ("gradients",)),
        ("Megatron-Core", "no tp overlap", ("cp", "weights", "gradients")),
    ],
)
def test_overlap_that_a_text_denies(
    framework: str, text: str, overlap: tuple[str, ...]
) -> None:
    row = Row(framework=framework, overlap=text)
    assert overlap_of(row, software_of(row)) == overlap
    assert ("overlap" in not_understood(row)) == ("true" in text)
