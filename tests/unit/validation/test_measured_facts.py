"""The published runs that come along: what they hold, whence they come."""

from __future__ import annotations

import csv
import io
import re
from importlib.resources import files

import pytest

from bench.measured_facts import ORIGINS, fact_of, facts_of, origin_of, thinned
from bench.result_files import page_path
from nest.validation.predict import Prediction, predict
from nest.validation.reading import published_rows
from nest.validation.report import assess, validation_document
from nest.validation.rows import COLUMNS

#: A run as the shared file states it.
CELLS = {
    "row_id": "X1",
    "source": "torchtitan benchmarks",
    "locator": "README.md:3",
    "kind": "measured",
    "status": "ok",
    "hardware": "H100-80GB-SXM",
    "interconnect": "8 GPUs per node (not stated), NDR",
    "num_devices": "8",
    "devices_per_node": "8",
    "layers": "4",
    "hidden": "64",
    "seq_len": "16",
    "global_batch": "8",
    "micro_batch": "1",
    "grad_accum": "8",
    "iter_time_s": "2",
    "tokens_per_s_per_gpu": "8",
    "shard_mode": "FSDP within node (8)",
    "precision": "bf16 mixed",
    "precision_class": "bf16",
    "notes": "",
}


def packaged() -> list[dict[str, str]]:
    path = files("nest.validation") / "data" / "measured.csv"
    return list(csv.DictReader(io.StringIO(path.read_text("utf-8"))))


def test_every_row_has_the_licence_of_its_source():
    for fact in packaged():
        origin = origin_of(fact["source"])
        assert origin.licence == fact["licence"] != ""
        assert "-SA" not in fact["licence"]
    text = page_path("bundled-runs").read_text()
    for origin in ORIGINS:
        assert origin.notice in text


def test_there_are_facts_only():
    """No columns that nothing asks for, and no sentences."""
    facts = packaged()
    assert set(facts[0]) <= {*COLUMNS, "licence"}
    words = re.compile(
        r"(LoRA|task SFT|fine-tuning \(SFT\)|RMS\w*|grouped[-_ ]?gemm|"
        r"torch\.compile|(Deep|Hybrid)EP|; )*"
    )
    for fact in facts:
        assert words.fullmatch(fact["notes"])
        assert max(map(len, fact.values())) < 150


def test_the_file_is_small():
    path = files("nest.validation") / "data" / "measured.csv"
    assert len(path.read_bytes()) < 400_000


def test_published_runs_can_be_predicted():
    """A few of each source, by the shared cost model."""
    rows = published_rows()
    chosen = {}
    for row in rows:
        chosen.setdefault(row.source, row)
    outcomes = [assess(row, predict) for row in chosen.values()]
    document = validation_document(outcomes, shown=())
    assert document["used"] > 30
    assert "the prediction failed" not in document["skipped"]
    assert [row.row_id for row in rows if row.unreadable] == []


def test_what_is_kept_of_a_run():
    """Of times the first, of words those that are looked for; asides and
    columns that others imply are left out."""
    fact = fact_of(
        CELLS
        | {
            "notes": "LoRA of r 16; CUDA graphs on; ETP 2; RMSNorm kernel; "
            "read on the second page"
        },
        "MIT",
    )
    stated = {name: cell for name, cell in fact.items() if cell}
    kept = {
        name: cell
        for name, cell in CELLS.items()
        if cell
        and name
        not in {"locator", "status", "grad_accum", "precision", "tokens_per_s_per_gpu"}
    }
    assert stated == kept | {
        "interconnect": "8 GPUs per node, NDR",
        "etp": "2",
        "cuda_graphs": "1",
        "notes": "LoRA; RMSNorm",
        "licence": "MIT",
    }


def test_flops_are_kept_where_they_are_the_time():
    """That is without a time, and if it is known how they are counted."""
    flops = {
        "tflops_per_gpu": "400",
        "tflops_kind": "model (Megatron-LM, causal attention halved)",
    }
    timeless = {"iter_time_s": "", "tokens_per_s_per_gpu": ""}
    for others, kept in (
        (timeless, True),
        ({}, False),
        (timeless | {"tflops_kind": "model (PaLM MFU)"}, False),
    ):
        fact = fact_of(CELLS | flops | others, "MIT")
        assert bool(fact["tflops_per_gpu"]) == kept
        assert bool(fact["tflops_kind"]) == kept


def test_numbers_of_links_are_kept():
    text = 'NVLink (specs.md says "NVLink 4 inter-gpu connects"), 4 NICs'
    fact = fact_of(CELLS | {"interconnect": text}, "MIT")
    assert fact["interconnect"] == ("NVLink NVLink 4 inter-gpu connects, 4 NICs")


def test_what_may_not_be_passed_on_is_left_out():
    rows = [
        CELLS,
        CELLS | {"row_id": "X2", "source": "AWS Neuron trn1 training"},
        CELLS | {"row_id": "X3", "source": "Hagemann et al. 2311.05610"},
        CELLS | {"row_id": "X4", "kind": "analytic"},
    ]
    assert [fact["row_id"] for fact in facts_of(rows)] == ["X1"]
    with pytest.raises(SystemExit, match="a blog: no licence known; add it"):
        facts_of([CELLS | {"source": "a blog"}])


def test_every_third_group_of_vtrain_on_one_node_is_left_out():
    vtrain = CELLS | {"source": "vTrain (x) measured ground truth"}
    rows = [
        *(vtrain | {"global_batch": str(batch)} for batch in (8, 8, 16)),
        *(vtrain | {"global_batch": "24"} for _ in range(2)),
        *(vtrain | {"num_devices": str(64 * n)} for n in (1, 2, 3)),
        *(CELLS | {"global_batch": str(batch)} for batch in (8, 16, 24)),
    ]
    assert thinned(rows) == rows[:3] + rows[5:]


def test_the_file_is_what_the_script_makes_of_the_shared_one(shared_data):
    path = shared_data / "measured" / "measurements.csv"
    with path.open(newline="", encoding="utf-8") as file:
        assert facts_of(list(csv.DictReader(file))) == packaged()


def test_facts_give_the_same_ranking_groups():
    """As many as groups of published runs have, with perfect predictions."""
    outcomes = [
        assess(row, lambda row: Prediction(row.iter_time_s, None, None, {}))
        for row in published_rows()
    ]
    ranking = validation_document(outcomes, shown=())["ranking"]
    assert ranking["groups"] > 80
    assert ranking["mean_regret"] == 0
    assert ranking["median_bias_of_predicted_best"] == 0
