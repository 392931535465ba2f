"""The tables that ``bench/validation.py`` makes of predictions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import bench.validation
from bench.validation import (
    PACKAGED,
    TOGETHER,
    Ran,
    accuracy,
    beside,
    golden,
    large_groups,
    mfu_table,
    reached,
    rooms,
)
from nest.validation.report import Assessment, validation_document
from tests.unit.validation.test_validation import TIMED, make, outcome

RAN = Ran(
    source="paper",
    model="GPT",
    family="A100",
    num_devices=8,
    has_experts=False,
    flops_per_token=6e9,
    mfu=0.5,
    predicted_mfu=0.45,
)


def both() -> list[Assessment]:
    """Return a run that is off by a tenth, and one that ran out of memory."""
    sized = {"mem_class": "nvidia-smi", "peak_mem_gb": "40"}
    last = {"mem_class": "torch_allocated_last_rank", "peak_mem_gb": "40"}
    found = [
        outcome(1.1, **sized),
        outcome(1.1, **last, time_tier="C", tp="1", dp="4"),
        outcome(1.1, status="OOM"),
        outcome(1.1, tp=""),
    ]
    return [
        one._replace(
            fits=one.reason is None,
            fits_with_headroom=False,
            predicted_bytes=one.measured_bytes,
        )
        for one in found
    ]


@pytest.fixture
def documents() -> dict[str, dict[str, Any]]:
    document = validation_document(both())
    return {TOGETHER: document, "a file": document, PACKAGED: document}


def figures(rows: int) -> dict[str, Any]:
    return {
        "rows": rows,
        "median_abs_error": 0.1,
        "mean_abs_error": 0.2,
        "bias": -0.1,
        "interval": {"median_abs_error": [0.05, 0.15], "mean_abs_error": [0.1, 0.3]},
    }


CLASSES = {
    "classes": {"all": figures(9), "tier A, 16 bit": figures(5)},
    "sources": {"paper (arXiv)": figures(9), "rare": figures(1)},
}


def test_rows_and_fits_of_each_file(documents):
    """Of three rows that ran two fit, none with headroom."""
    assert rooms(documents[TOGETHER]) == (
        "3 runs fit in memory. nest predicts that 66.7 % of them fit, and 0.0 "
        "% if it keeps its mean memory error free. 1 runs ran out of memory. "
        "nest predicts that 1 of them do not fit, and 1 with that memory free."
    )


def test_the_page_of_accuracy(documents, monkeypatch):
    """Held-out errors come first; sources and devices need some rows."""
    monkeypatch.setattr(bench.validation, "SHOWN", 2)
    monkeypatch.setattr(bench.validation, "FEW", 2)
    text = accuracy(documents, CLASSES, CLASSES)
    lines = text.splitlines()
    assert "| all | 9 | 10.0 | -10.0 | 10.0 |" in lines
    assert "is 10.0 % (paper) to 10.0 % (paper)." in text
    assert "rare" not in text
    assert "median of all rows is 5.0 to 15.0 %, the mean 10.0 to 30.0 %" in text
    assert "| A100 | 2 | 10.0 | +10.0 |" in lines
    assert "| tier C | 1 | 10.0 | +10.0 |" in lines
    for name in ("tier A in 16 bit", "all rows"):
        assert f"\n| {name} | " in text


def test_functional_tests_by_device():
    found = golden(
        [
            outcome(1.1, source="Megatron-LM CI golden values"),
            outcome(
                0.8, source="Megatron-LM CI golden values", hardware="H100-80GB-SXM"
            ),
            outcome(3.0),
        ]
    )
    assert list(found) == ["A100", "H100"]
    assert found["A100"]["bias"] == pytest.approx(0.1)
    assert found["H100"]["bias"] == pytest.approx(-0.2)


def test_what_a_run_reached():
    """72 · 1024² + 12 · 1024² FLOPs per token and layer, and the head.

    8192 tokens in 0.01 s on 8 A100 with 312e12 FLOP/s; predicted is twice
    the time, so half of the MFU.
    """
    (ran,) = reached([outcome(0.02, "0.01", **TIMED)])
    per_token = 4 * 84 * 1024**2 + 6 * 1024 * 1000
    assert ran.flops_per_token == per_token
    assert ran.mfu == pytest.approx(per_token * 8192 / (8 * 312e12) / 0.01)
    assert ran.predicted_mfu == pytest.approx(ran.mfu / 2)
    assert not reached([outcome(0.02, "0.01", **TIMED | {"tp": ""})])
    assert not reached([outcome(1.0, time_tier="C", **TIMED)])
    fp8 = TIMED | {"precision_class": "fp8", "hardware": "H100-80GB-SXM"}
    assert not reached([outcome(1.0, **fp8)])
    assert make(**TIMED).num_devices == ran.num_devices


PLAN: dict[str, Any] = {
    "problem": "gpt-8",
    "family": "A100",
    "has_experts": False,
    "flops_per_token": 5e9,
    "mfu": 0.6,
}


def test_the_best_of_similar_runs():
    """The bias is the median of 0.45 / 0.5 and 0.4 / 0.4, less 1."""
    runs = [
        RAN,
        replace(RAN, mfu=0.4, predicted_mfu=0.4),
        replace(RAN, mfu=0.9, family="H100"),
        replace(RAN, mfu=0.9, has_experts=True),
        replace(RAN, mfu=0.9, flops_per_token=1.1e10),
        replace(RAN, mfu=0.9, flops_per_token=2e9),
    ]
    found = beside(PLAN, runs)
    assert found["similar"] == 2
    assert found["best"]["mfu"] == 0.5
    assert found["bias"] == pytest.approx(-0.05)
    assert mfu_table([found]).splitlines()[2] == (
        "| gpt-8 | 60.0 | 50.0 | 45.0 | GPT on 8 |"
    )
    alone = beside(PLAN, runs[2:])
    assert mfu_table([alone]).splitlines()[2] == ("| gpt-8 | 60.0 |  |  | none |")


def test_groups_of_many_devices_are_listed() -> None:
    """Of three meshes the one with most data parallelism is predicted to be best."""
    runs = [
        outcome(
            predicted_s,
            measured_s,
            num_devices="128",
            global_batch="128",
            micro_batch="1",
            pp="1",
            tp=str(128 // dp),
            dp=str(dp),
        )
        for dp, measured_s, predicted_s in (
            (128, "2", 0.5),
            (64, "1.5", 1.0),
            (32, "3", 1.0),
        )
    ]
    page = large_groups([*runs, *both()])
    assert page.startswith("# 1 groups of 128 devices or more")
    assert "measured best in 1 groups, less in 0." in page
    assert page.endswith("| 3 | – | 33.3 | 128 / 64 |\n")
