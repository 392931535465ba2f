"""``nest validate``: texts, files, selections and errors."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from pathlib import Path

import pytest

from nest.cli.progress import StatusLine
from nest.uncertainty.headroom import MEAN_ERROR
from nest.validation import predict
from nest.validation.predict import Prediction
from nest.validation.rows import Row, measured_step_time_s
from tests.children import python
from tests.pages import Page
from tests.unit.validation.test_validation import CELLS, MESHES, text_of

ROOT = Path(__file__).parents[2]


def longer_by_a_tenth(row: Row) -> Prediction:
    measured_s = measured_step_time_s(row)
    return Prediction(
        None if measured_s is None else 1.1 * measured_s, None, True, {}, True
    )


@pytest.fixture(autouse=True)
def _predictor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict, "predict", longer_by_a_tenth)


#: Three meshes of one model, an fp8 run, and one without its tp.
MEASURED = text_of(
    *(CELLS | mesh for mesh in MESHES),
    CELLS
    | {"source": "vTrain", "precision_class": "fp8", "time_tier": "B"}
    | {"collected": "2026-11-24"},
    CELLS | {"tp": "", "hardware": "H100"},
)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "runs.csv"
    path.write_bytes(MEASURED)
    return path


def test_the_tables(cli, table):
    """Every error is 10 %, that of the predicted best too; it is best."""
    cli.succeeds(f"validate {table}")
    lines = [line.split() for line in cli.out.splitlines()]
    assert cli.out.splitlines()[0] == ("5 rows (all rows): 4 used, 1 skipped")
    for name in ("all rows", "paper", "A100", "A100-80GB-SXM"):
        assert any(line[4:] == name.split() for line in lines)
    assert ["3", "10.0", "10.0", "+10.0", "paper"] in lines
    ranking = ["1", "100.0", "%", "0.0", "%", "0.0", "%", "+10.0", "%", "0"]
    assert [*ranking, "all", "groups"] in lines
    assert ["1", "mesh", "not", "stated"] in lines
    assert (
        f"of 4 runs that ran 4 (100.0 %; with {100 * MEAN_ERROR:.1f} % "
        f"head-room 4, 100.0 %) are predicted to fit; of 0 "
        "that went out of memory 0 are predicted not to"
    ) in " ".join(cli.out.split())
    assert cli.err == ""


def test_impossible_figures_have_a_line_each(cli):
    Path("runs.csv").write_bytes(text_of(CELLS, CELLS | {"iter_time_s": "1e-12"}))
    cli.succeeds("validate runs.csv")
    assert cli.out.startswith("2 rows (all rows): 1 used, 1 skipped")
    lines = " ".join(cli.out.split())
    assert "1 impossible figure line 3: step time: expected at" in lines


def test_json_document(cli, table):
    document = cli.document(f"validate {table}")
    assert (document["rows"], document["used"]) == (5, 4)
    assert document["median_abs_error"] == pytest.approx(0.1)
    assert document["selected"]["tier A, bf16/fp16"]["used"] == 3


def test_details_have_intervals(cli, table):
    """Two rows say what ran. Their 2 s are far from what that takes."""
    details = Path("details.csv")
    document = cli.document(f"validate {table} --details details.csv")
    assert "5 rows (all rows)" in cli.err
    assert "intervals" not in document
    lines = list(csv.DictReader(io.StringIO(details.read_text())))
    assert lines[4]["reason"] == "mesh not stated"
    within = sorted((line["within_90"], bool(line["high_90_s"])) for line in lines)
    assert within == [("", False)] * 3 + [("0", True)] * 2


def test_details_on_standard_output(cli, table):
    cli.succeeds(f"validate {table} --details -")
    assert len(cli.out.splitlines()) == 6
    assert cli.out.startswith("row_id,line,source,")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("--tier B,C", "1 rows (tier B/C): 1 used, 0 skipped"),
        ("--precision fp8", "1 rows (fp8): 1 used, 0 skipped"),
        ("--source VTRAIN", "1 rows (source VTRAIN): 1 used"),
        ("--hardware h100", "1 rows (hardware h100): 0 used, 1 skip"),
        ("--min-devices 8", "5 rows (>= 8 devices): 4 used"),
        ("--after 2026-11-24", "1 rows (collected on or after 2026-11-24): 1 used"),
        ("--limit 2", "2 rows (all rows): 2 used"),
        ("--tier A --limit 4", "4 rows (tier A): 3 used, 1 skipped"),
    ],
)
def test_selections(cli, table, options, text):
    cli.succeeds(f"validate {table} {options}")
    assert cli.out.startswith(text)


def test_a_selection_shows_no_other(cli, table):
    assert cli.document(f"validate {table} --tier A")["selected"] == {}


def test_measurements_from_standard_input(cli, table, monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(table.read_bytes()))
    monkeypatch.setattr(sys, "stdin", stream)
    assert cli.document("validate -")["rows"] == 5


def test_without_a_file_the_published_runs_are_predicted(cli):
    cli.succeeds("validate --limit 20")
    assert cli.out.startswith("20 rows (all rows): ")
    assert "Megatron-LM SC21 Table 1" in cli.out


def test_signs_of_life(cli, table, monkeypatch):
    monkeypatch.setattr(StatusLine, "FIRST_S", 0.0)
    monkeypatch.setattr(StatusLine, "PIPE_S", 0.0)
    cli.succeeds(f"validate {table}")
    lines = cli.err.splitlines()
    assert [line.partition(",")[0] for line in lines] == [
        f"{n} of 5 rows" for n in range(1, 6)
    ]
    assert [line.endswith(" s left") for line in lines] == [True] * 4 + [False]


def test_a_page_of_a_validation(cli, table, monkeypatch):
    """Every prediction is a tenth too long."""
    monkeypatch.setattr("nest.present.pages.draw.find_spec", lambda _: None)
    cli.succeeds(f"validate {table} --html page.html")
    page = Page(Path("page.html").read_text())
    assert "Median error 10.0 %" in page.text
    assert "Bias +10.0 %" in page.text
    runs = [row for row in page.rows if len(row) == 8 and row[0] != "line"]
    assert runs
    assert {row[6] for row in runs} == {"+10.0"}
    for row in runs:
        measured, predicted = (float(x.split()[0]) for x in row[4:6])
        assert predicted == pytest.approx(1.1 * measured, rel=1e-3)
    assert f"nest validate {table} --html page.html" in page.text


def test_the_chart_of_a_validation_states_the_error(cli, table):
    pytest.importorskip("vl_convert")
    cli.succeeds(f"validate {table} --html page.html")
    text = " ".join(Page(Path("page.html").read_text()).text.split())
    assert "Half of the predictions are within 10.0 % of the" in text


def test_an_interrupt_is_clean(cli, table, monkeypatch):
    def interrupted(row: Row) -> Prediction:
        raise KeyboardInterrupt

    monkeypatch.setattr(predict, "predict", interrupted)
    assert cli(f"validate {table}") == 130
    assert (cli.out, cli.err) == ("", "nest: interrupted\n")


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two CPUs")
def test_processes_give_the_same_document(table):
    """The real predictor: its rows are compared or skipped alike."""
    texts = [
        python("-m", "nest", "validate", table, "--jobs", jobs, "--json", "-").stdout
        for jobs in ("1", "2")
    ]
    assert json.loads(texts[0])["rows"] == 5
    assert texts[0] == texts[1]


def test_all_published_rows(cli, shared_data):
    path = shared_data / "measured" / "measurements.csv"
    document = cli.document(f"validate {path}")
    assert document["rows"] == 1745
    counts = (*document["used_for_memory"].values(), *document["skipped"].values())
    assert document["used"] + sum(counts) == 1745


def test_intervals_are_counted(cli, table):
    """Two rows say what ran. Their 2 s are far from what that takes."""
    path = Path("out.json")
    cli.succeeds(f"validate {table} --intervals --json out.json")
    figures = json.loads(path.read_text())["intervals"]
    assert figures["rows"] == 2
    assert (figures["within_50"], figures["within_90"]) == (0, 0)
    assert figures["median_half_width_90"] > 0
    assert (
        "of 2 step times 0.0 % lie within their 90 % intervals and 0.0 % "
        "within the 50 % ones; half of the 90 % ones are wider than ±"
    ) in cli.out
    cli.succeeds(f"validate {table} --json out.json")
    assert "intervals" not in json.loads(path.read_text())


def test_no_interval_is_said(cli):
    Path("runs.csv").write_bytes(text_of(CELLS | {"tp": ""}))
    cli.succeeds("validate runs.csv --intervals")
    assert "no step time has an interval" in cli.out


def test_the_rest_is_told_when_enough_is_done(monkeypatch):
    """The first rows wait for processes: nothing is known of the others."""

    from nest.cli import measuring, progress

    said, now = [], iter(range(0, 10**6, 10))
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    monkeypatch.setattr(
        measuring.StatusLine, "show", lambda _, __, text: said.append(text)
    )
    assert len([*measuring._progress(iter(range(100)), 100)]) == 100
    assert said[8] == "9 of 100 rows"
    assert said[9] == "10 of 100 rows, about 15 min left"
