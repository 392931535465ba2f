"""Measurements, errors of predictions, ranking, and splits by source."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from nest.errors import InvalidProblemError, UnknownNameError
from nest.ir.plan import OVERLAP
from nest.units import GIB
from nest.validation.predict import Prediction, Skip
from nest.validation.reading import UNUSED_COLUMNS, parse_rows, read_rows
from nest.validation.report import (
    BREAKDOWNS,
    Assessment,
    RankingGroup,
    Selection,
    assess,
    average_ranks,
    details_csv,
    device_family,
    error_figures,
    memory_figures,
    parallelism,
    ranking_figures,
    ranking_groups,
    spearman,
    validation_document,
)
from nest.validation.rows import (
    COLUMNS,
    InvalidMeasurementsError,
    Row,
    measured_memory_bytes,
    measured_step_time_s,
    ran_out_of_memory,
)
from nest.validation.software import FACT_COLUMNS
from nest.validation.usable import Reason, impossible, why_unusable

ROOT = Path(__file__).parents[3]

#: A complete run of 8 samples per step on 8 devices.
CELLS = {
    "row_id": "X1",
    "source": "paper",
    "kind": "measured",
    "status": "ok",
    "hardware": "A100-80GB-SXM",
    "num_devices": "8",
    "layers": "4",
    "hidden": "64",
    "heads": "8",
    "vocab": "100",
    "seq_len": "16",
    "global_batch": "8",
    "micro_batch": "1",
    "tp": "2",
    "pp": "2",
    "dp": "2",
    "iter_time_s": "2",
    "peak_mem_gb": "",
    "mem_class": "",
    "mem_unit": "",
    "time_tier": "A",
    "mem_tier": "",
    "precision_class": "bf16",
}


def text_of(*rows: dict[str, str]) -> bytes:
    names = list(dict.fromkeys(name for row in rows for name in row))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, names, restval="")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue().encode()


def without(*names: str) -> bytes:
    """Return a file that lacks columns."""
    return text_of({k: v for k, v in CELLS.items() if k not in names})


def figures(used: int, *values: float | None) -> dict[str, float | None]:
    """Return figures of errors: median, mean (without sign) and bias."""
    names = ("median_abs_error", "mean_abs_error", "bias")
    return {"used": used, **dict(zip(names, values, strict=True))}


def make(**cells: str) -> Row:
    (row,) = parse_rows(text_of(CELLS | cells))
    return row


def time_s(seconds: float | None) -> Prediction:
    return Prediction(seconds, None, None, {})


def outcome(predicted_s: float, measured_s: str = "1", **cells: str):
    row = make(iter_time_s=measured_s, **cells)
    return assess(row, lambda row: time_s(predicted_s))


# Reading


def test_cells_become_typed_values():
    row = make(
        micro_batch="4.0",
        layers="1e2",
        kv_heads="nan",
        experts="0",
        sp="1.0",
        gated_mlp="0",
        tied_embeddings="true",
        samples_per_s="0.5",
        recompute="none",
        notes='several, "quoted"\nwords',
    )
    assert (row.micro_batch, row.layers, row.kv_heads) == (4, 100, None)
    assert isinstance(row.micro_batch, int)
    assert (row.experts, row.sp, row.gated_mlp) == (0, True, False)
    assert (row.tied_embeddings, row.samples_per_s) == (True, 0.5)
    assert row.recompute == "none"
    assert row.notes == 'several, "quoted"\nwords'
    assert row.unreadable == ()


def test_every_column_is_documented():
    text = (ROOT / "docs" / "validation.md").read_text(encoding="utf-8")
    table = text.split("## Which columns does a file have?")[1].split("## ")[0]
    for name in [*COLUMNS, *UNUSED_COLUMNS]:
        assert f"`{name}`" in table, name


def test_absent_columns_take_their_defaults():
    cells = CELLS | {"mfu": "0.5"}
    for name in ("kind", "status", "source"):
        del cells[name]
    (row,) = parse_rows(b"\xef\xbb\xbf" + text_of(cells))
    assert (row.kind, row.status, row.source) == ("measured", "ok", None)
    assert row.hardware == "A100-80GB-SXM"
    assert make(kind="", status="").status == "ok"


def test_lines_are_counted_in_the_file():
    """A quoted line break and a blank line move what follows."""
    text = text_of(CELLS | {"notes": "two\nlines"}, CELLS).decode()
    lines = text.splitlines()
    rows = parse_rows("\n".join([*lines[:3], "", *lines[3:]]).encode())
    assert [row.line for row in rows] == [2, 5]


@pytest.mark.parametrize(
    ("cells", "text"),
    [
        ({"layers": "many"}, "layers: expected an integer >= 1, got 'many'"),
        ({"layers": "0"}, "layers: expected an integer >= 1, got '0'"),
        ({"layers": "2.5"}, "layers: expected an integer >= 1, got '2.5'"),
        ({"layers": "1e99"}, "layers: expected an integer >= 1, got '1e99'"),
        ({"layers": "inf"}, "layers: expected an integer >= 1, got 'inf'"),
        ({"experts": "-1"}, "experts: expected an integer >= 0, got '-1'"),
        ({"iter_time_s": "-2"}, "iter_time_s: expected a finite number > 0, got '-2'"),
        (
            {"samples_per_s": "inf"},
            "samples_per_s: expected a finite number > 0, got 'inf'",
        ),
        ({"sp": "perhaps"}, "sp: expected 0 or 1, got 'perhaps'"),
        (
            {"collected": "30/11/2026"},
            "collected: expected a date such as 2026-11-23, got '30/11/2026'",
        ),
    ],
)
def test_a_cell_that_is_no_number_makes_the_row_unusable(cells, text):
    row = make(**cells)
    assert row.unreadable == (text,)
    column = text.split(":")[0]
    assert why_unusable(row) == Reason(f"unreadable cell: {column}", text)


def test_rows_of_the_wrong_length_are_unusable():
    header, line = text_of(CELLS).decode().splitlines()
    rows = parse_rows(f"{header}\n{line},9\n{line[:-5]}\n{line}".encode())
    count = len(CELLS)
    assert [row.unreadable for row in rows] == [
        (f"number of cells: expected {count}, got {count + 1}",),
        (f"number of cells: expected {count}, got {count - 1}",),
        (),
    ]
    reason = why_unusable(rows[0])
    assert reason is not None
    assert reason.reason == "unreadable cell: number of cells"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "expected a line of column names, got an empty file"),
        (b"\n\n", "expected a line of column names, got an empty file"),
        (b"a\n\xff", "t.csv: line 2: expected text in UTF-8, got byte 0xff"),
        (b"a,b\n1,2\n", r"expected the columns hardware, .*, pp, got only 'a, b'; add"),
        (b"{}", "expected the columns hardware, .* got only '{}'"),
        (
            without("tp"),
            "expected the columns tp, got only 'row_id, source, kind, "
            "status, hardware, …'",
        ),
        (
            without("iter_time_s", "peak_mem_gb"),
            "expected one of the columns iter_time_s, .*, got none",
        ),
        (
            without("layers"),
            "expected one of the columns layers, model, got none; add one",
        ),
        (
            without("num_devices", "dp"),
            "expected one of the columns num_devices, dp, got none; add one",
        ),
        (
            without("micro_batch"),
            "expected one of the columns micro_batch, grad_accum, got none",
        ),
        (
            without("precision_class"),
            "expected one of the columns precision_class, precision, got none",
        ),
        (
            text_of(CELLS | {"shade": "red"}),
            "expected the columns of docs/validation.md, got 'shade'; "
            "rename or remove it",
        ),
        (
            text_of(CELLS | {"micro_batch_size": "1"}),
            "got 'micro_batch_size'; did you mean 'micro_batch'\\? rename or remove it",
        ),
        (
            text_of(CELLS).replace(b"row_id", b"tp"),
            "expected distinct columns, got 'tp' twice; remove one",
        ),
        (
            text_of(CELLS).splitlines()[0],
            "expected at least one row, got only the column names",
        ),
        (
            text_of(CELLS) + b'"open',
            "t.csv:3: expected a CSV file, got malformed text "
            r"\(unexpected end of data\); correct the line",
        ),
        (b"PK\0\0", r"t.csv: line 1: expected text in UTF-8, got binary data"),
    ],
)
def test_files_that_are_no_measurements_are_refused(data, text):
    with pytest.raises(InvalidMeasurementsError, match=text) as raised:
        parse_rows(data, "t.csv")
    assert str(raised.value).startswith("t.csv:")


def test_missing_files_and_directories_are_refused(tmp_path):
    match = "expected a readable CSV file, got No such file"
    with pytest.raises(InvalidMeasurementsError, match=match):
        read_rows(tmp_path / "none.csv")
    with pytest.raises(
        InvalidMeasurementsError, match="expected a CSV file, got a directory"
    ):
        read_rows(tmp_path)


# What was measured


def test_the_step_time_is_the_first_figure_there_is():
    """8 samples of 16 tokens: at 2 tokens/s on each of 8 devices 8 s; at 4
    samples/s 2 s."""
    all_three = make(iter_time_s="3", tokens_per_s_per_gpu="2", samples_per_s="4")
    assert measured_step_time_s(all_three) == 3
    two = make(iter_time_s="", tokens_per_s_per_gpu="2", samples_per_s="4")
    assert measured_step_time_s(two) == 8 * 16 / (2 * 8)
    assert measured_step_time_s(make(iter_time_s="", samples_per_s="4")) == 2
    assert measured_step_time_s(make(iter_time_s="")) is None
    no_batch = make(iter_time_s="", samples_per_s="4", global_batch="")
    assert measured_step_time_s(no_batch) is None


@pytest.mark.parametrize(
    ("cells", "size_bytes"),
    [
        ({"peak_mem_gb": "2", "mem_unit": "GiB"}, 2 * GIB),
        ({"peak_mem_gb": "1.5", "mem_unit": "GB as printed"}, 3 * GIB // 2),
        ({"peak_mem_gb": "40", "mem_unit": "percent"}, None),
        ({"peak_mem_gb": "40", "mem_unit": ""}, 40 * GIB),
        ({"peak_mem_gb": "", "mem_unit": "GiB"}, None),
        ({"peak_mem_gb": "2", "mem_unit": "GiB", "mem_class": "formula"}, None),
    ],
)
def test_memory_is_in_binary_units(cells, size_bytes):
    assert measured_memory_bytes(make(**cells)) == size_bytes


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({}, None),
        ({"status": "OOM", "iter_time_s": ""}, None),
        ({"iter_time_s": "", "peak_mem_gb": "1", "mem_unit": "GiB"}, None),
        ({"kind": "analytic"}, ("not a measurement of a whole step", "analytic")),
        (
            {"status": "inconsistent"},
            ("the run failed or contradicts itself", "inconsistent"),
        ),
        ({"iter_time_s": ""}, ("no measured figure", "")),
        (
            {"iter_time_s": "", "mfu": "0.4", "tflops_kind": "of ours"},
            (
                "no measured figure",
                "tflops_kind of ours: not known how FLOPs are counted",
            ),
        ),
        ({"hardware": ""}, ("hardware not stated", "hardware")),
        ({"vocab": "", "heads": ""}, ("model shape not stated", "heads, vocab")),
        ({"tp": ""}, ("mesh not stated", "tp")),
        ({"micro_batch": ""}, ("batch not stated", "micro_batch")),
        (
            {"cp": "2"},
            ("tp·cp·pp·dp is not the number of devices", "2·2·2·2 = 16, num_devices 8"),
        ),
        (
            {"micro_batch": "3"},
            (
                "the micro-batches do not divide the global batch",
                "micro_batch 3 · dp 2, global_batch 8",
            ),
        ),
    ],
)
def test_why_a_row_is_unusable(cells, reason):
    assert why_unusable(make(**cells)) == reason


#: A model of 12 x 1024^2 x 4 weights and a head of 1024 x 1000, in fp16.
TIMED = {
    "layers": "4",
    "hidden": "1024",
    "heads": "8",
    "ffn_hidden": "4096",
    "vocab": "1000",
    "seq_len": "1024",
    "precision_class": "fp16",
}


def least_s(**cells: str) -> float:
    """Return the shortest step of :data:`TIMED` that is possible."""
    why = impossible(make(**TIMED | {"iter_time_s": "1e-9"} | cells))
    assert why is not None
    return float(why.split("at least ")[1].split()[0])


def test_no_step_is_faster_than_the_peak():
    """6 FLOPs per weight and token, 8 samples of 1024 on 8 A100 at 312e12.

    (12 · 1024² · 4 + 1024 · 1000) weights · 6 · 8192 / (8 · 312e12 /s) =
    1.01 ms; a gate adds 4 · 4096 · 1024 weights.
    """
    weights = 12 * 1024**2 * 4 + 1024 * 1000
    seconds = 6 * weights * 8192 / (8 * 312e12)
    assert least_s() == pytest.approx(seconds, rel=5e-3)
    assert impossible(make(**TIMED, iter_time_s="0.00102")) is None
    why = impossible(make(**TIMED, iter_time_s="0.001"))
    assert why == (
        "step time: expected at least 0.00101 s, that of the model's products at the "
        "peak of 8 x A100-80GB-SXM, got 0.001 s; correct the row"
    )
    gated = weights + 4 * 4096 * 1024
    assert least_s(gated_mlp="1") == pytest.approx(seconds * gated / weights, rel=5e-3)
    # What is not stated is not counted.
    assert least_s(ffn_hidden="") == pytest.approx(
        seconds * (weights - 4 * 8 * 1024**2) / weights, rel=5e-3
    )
    adapters = least_s(notes="LoRA")
    assert adapters == pytest.approx(seconds * 2 / 3, rel=5e-3)


def test_of_experts_only_what_a_token_visits_counts():
    """Two of eight experts of 512 and a shared one, no attention."""
    moe = {"experts": "8", "topk": "2", "moe_ffn_hidden": "512"}
    weights = 4 * 3 * 2 * 1024 * 512 + 1024 * 1000
    assert least_s(**moe, shared_experts="1") == pytest.approx(
        6 * weights * 8192 / (8 * 312e12), rel=5e-3
    )


@pytest.mark.parametrize(
    "cells",
    [
        {"hardware": "Cerebras WSE-3"},
        {"precision_class": "int8"},
        {"layers": ""},
        {"iter_time_s": "", "peak_mem_gb": "1", "mem_unit": "GiB"},
    ],
)
def test_what_is_not_stated_is_not_judged(cells):
    assert impossible(make(**TIMED | {"iter_time_s": "1e-9"} | cells)) is None


def test_no_device_holds_more_than_it_has():
    cells = {"iter_time_s": "9", "mem_unit": "GB as printed"}
    assert impossible(make(**cells, peak_mem_gb="80")) is None
    why = impossible(make(**cells, peak_mem_gb="96"))
    assert why is not None
    assert why.startswith("memory: expected at most 79.")
    assert why.endswith("got 96.0 GiB; correct the row or its unit")


def test_impossible_figures_leave_the_statistics():
    outcomes = [outcome(1.1, **TIMED), outcome(1.1, measured_s="1e-9", **TIMED)]
    assert outcomes[1].predicted_s is None
    document = validation_document(outcomes)
    assert document["used"] == 1
    assert document["skipped"] == {"impossible figure": 1}
    (text,) = document["impossible"]
    assert text.startswith("line 2: step time: expected at least")


def test_only_some_runs_went_out_of_memory():
    assert ran_out_of_memory(make(status="OOM"))
    assert not ran_out_of_memory(make())
    assert not ran_out_of_memory(make(status="Other Error"))


# From a row to an outcome


def test_a_prediction_stands_beside_the_measurement():
    """3 s instead of 2 s is +50 %; 1 GiB instead of 2 GiB is -50 %."""
    row = make(peak_mem_gb="2", mem_unit="GiB")
    found = assess(row, lambda row: Prediction(3.0, GIB, True, {}))
    assert found == Assessment(row, None, 2.0, 3.0, 2 * GIB, GIB, True)
    assert (found.time_error, found.memory_error) == (0.5, -0.5)


def raising(error: Exception):
    def predict(row: Row) -> Prediction:
        raise error

    return predict


@pytest.mark.parametrize(
    ("cells", "predict", "reason"),
    [
        ({"tp": ""}, None, ("mesh not stated", "tp")),
        (
            {},
            lambda row: Skip("no such plan: 5 heads"),
            ("no such plan", "no such plan: 5 heads"),
        ),
        (
            {},
            raising(UnknownNameError("device", "abacus", ["a100"])),
            (
                "unknown device or link",
                "device: expected one of a100; got 'abacus'; choose one of them",
            ),
        ),
        (
            {},
            raising(InvalidProblemError("$: too large")),
            ("cannot be expressed", "$: too large"),
        ),
        (
            {},
            raising(ZeroDivisionError("by 0")),
            ("the prediction failed", "ZeroDivisionError: by 0"),
        ),
        ({}, raising(KeyError("x")), ("the prediction failed", "KeyError: 'x'")),
        ({}, lambda row: time_s(None), ("no predicted step time", "")),
        (
            {},
            lambda row: time_s(float("inf")),
            ("the prediction failed", "step_time_s inf"),
        ),
        ({}, lambda row: time_s(0.0), ("the prediction failed", "step_time_s 0.0")),
        (
            {"status": "OOM"},
            lambda row: time_s(1.0),
            ("the run went out of memory", ""),
        ),
        (
            {"iter_time_s": "", "peak_mem_gb": "1", "mem_unit": "GiB"},
            lambda row: time_s(1.0),
            ("no measured step time", ""),
        ),
    ],
)
def test_what_cannot_be_compared_has_a_reason(cells, predict, reason, monkeypatch):
    monkeypatch.delenv("NEST_DEBUG", raising=False)
    found = assess(make(**cells), predict)
    assert found.reason == reason
    assert found.time_error is None


def test_a_failing_prediction_is_shown_when_debugging(monkeypatch):
    monkeypatch.setenv("NEST_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        assess(make(), raising(ZeroDivisionError("by 0")))


# Statistics


def test_error_figures():
    """Of -10 %, +20 %, +30 % and -40 %: absolute 10, 20, 30, 40, median 25,
    mean 25; their mean with signs is 0."""
    four = error_figures([-0.1, 0.2, 0.3, -0.4])
    assert four == figures(4, 0.25, 0.25, 0.0)
    assert error_figures([-0.1, 0.2, 0.6]) == figures(3, 0.2, 0.3, 0.233333)
    assert error_figures([]) == figures(0, None, None, None)


def test_equal_values_share_their_ranks():
    """30, 10, 20, 20, 20: 10 is first, the three 20s share (2+3+4)/3."""
    assert average_ranks([30, 10, 20, 20, 20]) == [5, 1, 3, 3, 3]
    assert average_ranks([]) == []


def test_spearman():
    """Without ties 1 - 6·Σd²/(n(n²-1)): ranks 1 2 3 4 and 1 2 4 3 differ by
    Σd² = 2, 1 - 12/60 = 0.8."""
    assert spearman([1, 2, 3, 4], [10, 20, 40, 30]) == pytest.approx(0.8)
    assert spearman([1, 2, 3], [1, 4, 9]) == pytest.approx(1)
    assert spearman([1, 2, 3], [9, 4, 1]) == pytest.approx(-1)


def test_spearman_with_ties():
    """Ranks 1, 2.5, 2.5, 4 and 1, 2, 3, 4: deviations -1.5, 0, 0, 1.5 and
    -1.5, -0.5, 0.5, 1.5, so 4.5 / sqrt(4.5 · 5)."""
    assert spearman([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(4.5 / (4.5 * 5) ** 0.5)


def test_spearman_of_constants():
    assert spearman([1, 2, 3], [5, 5, 5]) is None
    assert spearman([5, 5, 5], [1, 2, 3]) == 0


def group(predicted_s, measured_s) -> RankingGroup:
    return RankingGroup("paper", "model", predicted_s, measured_s)


def test_the_regret_of_the_predicted_best():
    """Predicted best is the first, 1.04 s; the best takes 1 s: 4 % lost. Of
    two that are predicted equal the slower counts."""
    assert group([1, 2, 3], [1.04, 1, 3]).regret == pytest.approx(0.04)
    assert group([1, 1, 3], [1, 1.2, 3]).regret == pytest.approx(0.2)
    assert group([1, 2], [1, 2]).regret == 0


def test_the_error_of_the_predicted_best():
    """Predicted to take 0.9 s, measured 1 s: 10 % too little, though the
    others are right. Of two that are predicted equal the slower counts:
    1 s predicted, 1.25 s measured."""
    assert group([0.9, 2, 3], [1, 2, 3]).best_error == pytest.approx(-0.1)
    assert group([1, 1, 3], [1, 1.25, 3]).best_error == pytest.approx(-0.2)
    assert group([1, 2], [1, 9]).best_error == 0


def test_ranking_figures():
    """Correlations 1, 0.8 and none (3 configurations): median 0.9, one of
    two high. Regrets 0, 0.5 and 0.04, 0.18 in the mean: two of three within
    5 %. The predicted best takes 1 s for measured 1, 1.5 and 1.04 s: errors
    0, -1/3 and -0.04/1.04."""
    groups = [
        group([1, 2, 3, 4], [1, 2, 3, 4]),
        group([1, 2, 3, 4], [1.5, 1, 2, 3]),
        group([1, 2, 3], [1.04, 1, 3]),
    ]
    assert groups[1].correlation == pytest.approx(0.8)
    assert ranking_figures(groups) == {
        "groups": 3,
        "spearman_groups": 2,
        "median_spearman": 0.9,
        "share_spearman_at_least_0_9": 0.5,
        "share_best_within_5_percent": 0.666667,
        "median_loss_of_predicted_best": 0.04,
        "mean_regret": 0.18,
        "median_regret": 0.04,
        "median_bias_of_predicted_best": -0.038462,
    }
    nothing = dict.fromkeys(ranking_figures(groups))
    nothing |= {"groups": 0, "spearman_groups": 0}
    assert ranking_figures([]) == nothing


MESHES = (
    {"tp": "8", "pp": "1", "dp": "1"},
    {"tp": "1", "pp": "8", "dp": "1"},
    {"tp": "1", "pp": "1", "dp": "8"},
)


def test_groups_share_model_cluster_and_batch():
    """Three meshes make a group; the first, measured twice, counts once with
    the mean of 1 s and 3 s. A failed run, another batch, another source and
    another model are not in it."""
    outcomes = [
        outcome(1.0, "1", **MESHES[0]),
        outcome(2.0, "3", **MESHES[0]),
        outcome(4.0, "4", **MESHES[1]),
        outcome(5.0, "6", **MESHES[2]),
        outcome(9.0, "9", status="failed"),
        outcome(9.0, "9", global_batch="16"),
        outcome(9.0, "9", source="other"),
        outcome(9.0, "9", layers="5"),
        outcome(9.0, "9", seq_len="32"),
    ]
    (found,) = ranking_groups(outcomes)
    assert found.predicted_s == [1.5, 4.0, 5.0]
    assert found.measured_s == [2.0, 4.0, 6.0]
    assert found.source == "paper"
    assert found.title == "model, 8 devices, batch 8"
    assert ranking_groups(outcomes[:3]) == []


def test_memory_figures():
    """2 GiB predicted for 1, 3 for 4: errors +1 and -0.25. Of three that ran
    two are predicted to fit, one with head-room; of two that did not, one is
    predicted not to, both with head-room."""

    def one(
        size: int, fits: bool | None, roomy: bool = False, **cells: str
    ) -> Assessment:
        return assess(
            make(**cells), lambda row: Prediction(1.0, size * GIB, fits, {}, roomy)
        )

    gib = {"mem_unit": "GiB"}
    outcomes = [
        one(2, True, peak_mem_gb="1", mem_class="nvidia-smi", **gib),
        one(3, False, peak_mem_gb="4", mem_class="", source="b", **gib),
        one(5, True, True),
        one(5, None),
        one(9, False, status="OOM", iter_time_s=""),
        one(9, True, status="OOM", iter_time_s=""),
    ]
    up, down = figures(1, 1.0, 1.0, 1.0), figures(1, 0.25, 0.25, -0.25)
    assert memory_figures(outcomes) == {
        **figures(2, 0.625, 0.625, 0.375),
        "by_mem_class": {"nvidia-smi": up, "not stated": down},
        "by_source": {"b": down, "paper": up},
        "fits": {
            "ran": 3,
            "predicted_to_fit": 2,
            "share": 0.666667,
            "predicted_to_fit_with_headroom": 1,
            "share_with_headroom": 0.333333,
        },
        "oom": {
            "rows": 2,
            "predicted_not_to_fit": 1,
            "share": 0.5,
            "predicted_not_to_fit_with_headroom": 2,
            "share_with_headroom": 1.0,
        },
    }
    empty = memory_figures([])
    assert empty["fits"]["share"] is None
    assert empty["oom"]["share_with_headroom"] is None


# Classes


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ({"tp": "1", "pp": "1", "dp": "1", "num_devices": "1"}, "one device"),
        ({"tp": "1", "pp": "1", "dp": "8"}, "dp only"),
        ({"tp": "8", "pp": "1", "dp": "1"}, "tp"),
        ({"tp": "1", "pp": "2", "dp": "4"}, "pp"),
        ({}, "tp+pp"),
        ({"vpp": "2"}, "interleaved"),
        ({"vpp": "2", "pp": "1", "dp": "4"}, "tp"),
        ({"zero_stage": "3"}, "zero3"),
        ({"zero_stage": "3", "dp": "1", "tp": "4"}, "tp+pp"),
        ({"cp": "2", "vpp": "2", "tp": "1"}, "cp"),
        ({"ep": "2", "cp": "2"}, "ep"),
        ({"tp": "", "pp": "", "dp": ""}, "one device"),
    ],
)
def test_classes_of_parallelism(cells, expected):
    assert parallelism(make(**cells)) == expected


@pytest.mark.parametrize(
    ("hardware", "family"),
    [
        ("A100-80GB-SXM (source says NVIDIA Ampere GPUs)", "A100"),
        ("GB200", "GB200"),
        ("TPU v5p", "TPU v5p"),
        ("TPU v6e Trillium", "TPU v6e"),
        ("TPU7x Ironwood", "TPU7x"),
        ("Trainium1 (NeuronCore-v2)", "Trainium1"),
        ("", "not stated"),
    ],
)
def test_device_families(hardware, family):
    assert device_family(make(hardware=hardware)) == family


# Documents


def test_the_document():
    """Errors +10 % (A100, tp+pp) and -30 % (H100, dp only); one row skipped.

    Median and mean are 20 %, the bias -10 %.
    """
    outcomes = [
        outcome(1.1, source="paper"),
        outcome(
            0.7,
            source="log",
            hardware="H100-80GB-SXM",
            tp="1",
            pp="1",
            dp="8",
            time_tier="B",
            precision_class="fp8",
        ),
        outcome(1.0, tp=""),
    ]
    document = validation_document(outcomes)
    up, down = figures(1, 0.1, 0.1, 0.1), figures(1, 0.3, 0.3, -0.3)
    total = {
        "rows": 3,
        **figures(2, 0.2, 0.2, -0.1),
        "used_for_memory": {},
        "skipped": {"mesh not stated": 1},
        "impossible": [],
        "by_source": {"log": down, "paper": up},
        "by_hardware": {"A100-80GB-SXM": up, "H100-80GB-SXM": down},
        "by_family": {"A100": up, "H100": down},
        "by_parallelism": {"dp only": down, "tp+pp": up},
        "by_tier": {"A": up, "B": down},
        "by_precision": {"bf16": up, "fp8": down},
    }
    assert {key: document[key] for key in total} == total
    assert document["schema"] == "nest-validation/1"
    assert document["selection"] == "all rows"
    strict = document["selected"]["tier A, bf16/fp16"]
    assert (strict["rows"], strict["used"], strict["bias"]) == (2, 1, 0.1)
    assert strict.keys() == document.keys() - {"schema", "selection", "selected"}
    (other,) = document["selected"].keys() - {"tier A, bf16/fp16"}
    assert other == "tier A, bf16/fp16, source vTrain, >= 64 devices"
    assert document["selected"][other]["rows"] == 0


def test_runs_without_a_step_time_are_used_for_their_memory():
    """One went out of memory, one has nothing but its memory."""
    outcomes = [
        outcome(1.1),
        assess(make(status="OOM"), lambda row: time_s(1.0)),
        assess(
            make(iter_time_s="", peak_mem_gb="1", mem_unit="GiB"),
            lambda row: time_s(1.0),
        ),
    ]
    document = validation_document(outcomes)
    assert (document["rows"], document["used"]) == (3, 1)
    assert document["used_for_memory"] == {
        "the run went out of memory": 1,
        "no measured step time": 1,
    }
    assert document["skipped"] == {}


def test_a_selection_takes_rows_by_their_time_and_by_their_memory():
    """A row of time tier B and memory tier A counts in memory alone."""
    row = make(time_tier="B", mem_tier="A", peak_mem_gb="1", mem_unit="GiB")
    outcomes = [assess(row, lambda row: Prediction(1.0, GIB, True, {}))]
    document = validation_document(outcomes, Selection(tiers=("A",)), ())
    assert (document["rows"], document["memory"]["used"]) == (0, 1)
    document = validation_document(outcomes, Selection(tiers=("B",)), ())
    assert (document["rows"], document["memory"]["used"]) == (1, 0)
    assert document["selection"] == "tier B"


@pytest.mark.parametrize(
    ("selection", "text", "taken"),
    [
        (Selection(), "all rows", True),
        (Selection(tiers=("B", "A")), "tier B/A", True),
        (Selection(tiers=("B",)), "tier B", False),
        (Selection(precisions=("fp8",)), "fp8", False),
        (Selection(source="PAP"), "source PAP", True),
        (Selection(source="log"), "source log", False),
        (Selection(hardware="a100"), "hardware a100", True),
        (Selection(hardware="h100"), "hardware h100", False),
        (Selection(min_devices=8), ">= 8 devices", True),
        (Selection(min_devices=9), ">= 9 devices", False),
        (Selection(after="2026-11-30"), "collected on or after 2026-11-30", True),
        (Selection(after="2026-12-01"), "collected on or after 2026-12-01", False),
    ],
)
def test_selections(selection, text, taken):
    assert str(selection) == text
    assert selection.takes(make(collected="2026-11-30"), "A") is taken


def test_rows_without_a_date_were_collected_before_any() -> None:
    assert not Selection(after="2000-01-01").takes(make(), "A")


def test_details_have_a_line_per_row():
    row = make(peak_mem_gb="2", mem_unit="GiB")
    outcomes = [
        assess(row, lambda row: Prediction(3.0, GIB, False, {})),
        assess(make(tp=""), lambda row: time_s(1.0)),
    ]
    first, second = csv.DictReader(io.StringIO(details_csv(outcomes)))
    assert first["row_id"] == "X1"
    assert first["step_time_error"] == "0.5"
    assert first["memory_error"] == "-0.5"
    assert first["measured_memory_bytes"] == str(2 * GIB)
    assert (first["fits"], first["reason"]) == ("0", "")
    assert (second["step_time_error"], second["fits"]) == ("", "")
    assert (second["reason"], second["detail"]) == ("mesh not stated", "tp")


# The published measurements


def test_every_published_row_is_used_or_skipped_with_a_reason(shared_data):
    """With a prediction of 1.1 times the measured time every error is 10 %."""
    path = shared_data / "measured" / "measurements.csv"
    rows = read_rows(path)
    with path.open(newline="") as file:
        header = next(csv.reader(file))
    assert set(header) <= set(COLUMNS) | UNUSED_COLUMNS
    own = {"etp", "schedule", "cuda_graphs", "dispatcher", "collected", *FACT_COLUMNS}
    own |= {f"{name}_overlap" for name in OVERLAP}
    assert set(header) >= set(COLUMNS) - own
    assert len(rows) == 1745
    assert [row.row_id for row in rows if row.unreadable] == []

    def predict(row: Row) -> Prediction:
        measured_s = measured_step_time_s(row)
        return time_s(None if measured_s is None else 1.1 * measured_s)

    document = validation_document([assess(row, predict) for row in rows])
    assert document["rows"] == 1745
    sized = document["used_for_memory"]
    assert sized["the run went out of memory"] == 4
    counts = (*sized.values(), *document["skipped"].values())
    assert document["used"] + sum(counts) == 1745
    assert document["used"] > 1400
    assert document["median_abs_error"] == pytest.approx(0.1)
    for key in BREAKDOWNS:
        total = sum(figures["used"] for figures in document[key].values())
        assert total == document["used"]
    ranking = document["ranking"]
    assert ranking["groups"] > 100
    assert ranking["median_spearman"] == pytest.approx(1)
    assert ranking["share_best_within_5_percent"] == 1


def test_published_times_agree_with_each_other(shared_data):
    """Step time and tokens per second of a row differ by at most 4 %."""
    rows = read_rows(shared_data / "measured" / "measurements.csv")
    compared = 0
    for row in rows:
        if row.iter_time_s is None or row.tokens_per_s_per_gpu is None:
            continue
        cells = {name: getattr(row, name) for name in COLUMNS if name != "iter_time_s"}
        other_s = measured_step_time_s(Row(**cells))
        if other_s is not None:
            compared += 1
            assert other_s == pytest.approx(row.iter_time_s, rel=0.04)
    assert compared > 1500
