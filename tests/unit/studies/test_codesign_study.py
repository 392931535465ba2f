"""The studies of operators and of other searches."""

from __future__ import annotations

from collections import Counter

import pytest

from bench.codesign import LIMITED, figures, markdown, spec_of
from bench.codesign_operators import (
    A100,
    APPLICATIONS,
    LIKE,
    TPU_V1,
    application_rows,
    measured,
    operator_rows,
)
from bench.codesign_operators import markdown as operators_markdown
from bench.result_files import page_path, read_rows
from tests import codesigns


def test_measured_operators_are_read():
    rows = measured()
    counts = Counter(row.operation for row in rows)
    assert counts == {"gemm": 20, "softmax": 22, "norm": 22, "gelu": 20}
    (square,) = [row for row in rows if row.shape == (8192, 8192, 8192)]
    assert square.time_us == pytest.approx(3961.4)
    (widest,) = [row for row in rows if row.shape == (1, 2**29)]
    assert 4 * 2**29 / widest.time_us == pytest.approx(1.5613e6, rel=1e-4)


def test_peaks_are_those_of_the_chips():
    assert A100.peak_flops == pytest.approx(312e12, rel=0.005)
    assert {chip.peak_flops for chip in LIKE.values()} == {A100.peak_flops}
    assert TPU_V1.peak_flops == pytest.approx(92e12, rel=0.005)


def test_no_operator_is_predicted_above_the_peak(capsys):
    for row in operator_rows():
        seconds = float(str(row["model_us"])) / 1e6
        if row["operation"] == "gemm":
            m, k, n = row["shape"]
            assert 2 * m * k * n <= A100.peak_flops * seconds
    assert "launched" in capsys.readouterr().out


def test_applications_are_on_their_side_of_the_roofline(capsys):
    """Four wait for memory, two for the array, under both conventions."""
    rows = application_rows()
    assert len(rows) == len(APPLICATIONS)
    sides = Counter(row["roofline_binds"] for row in rows)
    assert sides == {"memory": 4, "array": 2}
    for row in rows:
        assert row["tops"] < row["roofline_tops"]
        for convention in ("in-use", "overlapped"):
            assert row[f"{convention}_binds"] == row["roofline_binds"]
            rate = row[f"{convention}_tops"]
            assert rate <= row["roofline_tops"] * (1 + 1e-9)
    assert "CNN1" in capsys.readouterr().out


def test_the_page_has_the_tables_of_the_results():
    rows = read_rows("codesign_operators")
    page = page_path("codesign").read_text()
    assert operators_markdown(rows) in page


def test_regrets_of_other_searches():
    """A search that was stopped has intervals, a proven one has numbers."""
    stopped = codesigns.stopped()
    phaze, like = stopped.baselines[1], stopped.baselines[0]
    found = stopped._replace(
        best=stopped.best[:1],
        baselines=(
            like._replace(name=stopped.spec.objective.base_name),
            phaze._replace(most_regret=0.25),
            *(
                phaze._replace(
                    name=f"sample {seed}",
                    evaluated=tuple(range(9)),
                    regret=seed / 100,
                    most_regret=seed / 50,
                )
                for seed in (1, 2, 3, 4, 5)
            ),
        ),
    )
    step_ps = found.best[0].found.on[0].step_ps
    limits = [
        {
            "density": density,
            "attention": attention,
            "step_ps": step_ps * factor,
            "base_step_ps": 2 * step_ps,
            "chip": f"chip {factor}",
        }
        for (density, attention), factor in zip(LIMITED, (1, 4, 5), strict=True)
    ]
    of_gpt2 = {
        "model": "gpt2",
        "devices": 4,
        **figures(found),
        "w_per_mm2": 7.76,
        "limits": limits,
    }
    assert of_gpt2["regret_phaze"] == [0.0, 0.25]
    more = {**of_gpt2, "devices": 8}
    (line,) = markdown([of_gpt2, more]).splitlines()[2:]
    assert line == (
        "| gpt2 | 2.00, not proven | 7.8 | 8, 0.00 to 25.00 % | 9, 1.00 to 10.00 % |"
    )


def test_the_page_has_the_regrets_of_the_results():
    rows = read_rows("codesign")
    page = page_path("codesign").read_text()
    assert markdown(rows) in page


def test_the_question_of_the_study():
    """Phaze's list with links of 50 GB/s, four samples per device."""
    spec = spec_of("gpt2", 8)
    assert len(spec.space.points) == 29_360
    assert len(spec_of("gpt2", 8, "1.1").space.points) == 2983
    assert spec.space.axes["link_bytes_per_s"] == (50 * 10**9,)
    assert (spec.models, spec.devices) == (("gpt2",), 8)
    assert spec.job.global_batch == 32
