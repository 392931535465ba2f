"""Documents and pages of answers about a space."""

from __future__ import annotations

import io
import re
from html.parser import HTMLParser

import pytest
from msgspec.structs import replace
from rich.console import Console

from nest.accelerators.document import answers_document, point_text, rows_of, value_text
from nest.present.codesign import (
    answers_block,
    change,
    contribution_texts,
    cut_lines,
    footer_lines,
    step,
)
from nest.present.pages.codesign import to_html
from tests.codesigns import SPEC, answers, document, found, spec_of


class Headings(HTMLParser):
    """Gathers the headings of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._open = False

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._open = tag in ("h1", "h2")

    def handle_data(self, data: str) -> None:
        if self._open:
            self.found.append(data)
            self._open = False


def test_the_page_answers_first() -> None:
    page = to_html(document(), "nest codesign spec.yaml --frontier")
    headings = Headings()
    headings.feed(page)
    assert headings.found == [
        "Which accelerator",
        "The answer",
        "Throughput against area, power and price",
        "What would change the answer",
        "What contributed",
        "Other searches",
        "What was searched, and what not",
        "How to repeat it",
    ]
    assert "No point of the space fits bert-large." in page
    assert "nest codesign spec.yaml --frontier" in page
    assert page.count("analytic accelerator model, not calibrated") >= 3
    assert "5 points cut by area-most (area at most 56 mm2)." in page
    assert "<script" not in page


def test_charts_are_drawn() -> None:
    pytest.importorskip("vl_convert")
    page = to_html(document(), "x")
    found = re.findall(r'<figure aria-labelledby="([\w-]+)-caption"', page)
    assert found == ["area", "power", "price", "sensitivity", "contributions"]
    assert "could not be drawn" not in page


def test_a_page_of_little() -> None:
    """Only the best points were asked for, and the search was stopped."""
    little = answers(
        frontier=(), sensitivity=(), contributions=(), baselines=(), best=()
    )
    page = to_html(answers_document(little, "The search was stopped."), "x")
    assert "The search was stopped." in page
    assert "What contributed" not in page


def test_power_per_area_of_the_best_points_and_the_base() -> None:
    """On the screen, on the page and in rows, from TDP and area."""
    made = document()
    out = io.StringIO()
    console = Console(file=out, width=220)
    console.print(*answers_block(made))
    rows = rows_of(made)
    for point, kind in (
        (made["base"]["point"], "base"),
        (made["best"][-1]["found"]["point"], "best"),
    ):
        density = point["power_density_w_per_mm2"]
        assert density == pytest.approx(point["tdp_w"] / point["area_mm2"], abs=1e-6)
        assert f"{density:.2f} W/mm²" in out.getvalue()
        assert f"{density:.2f} W/mm²" in to_html(made, "x")
        assert any(
            row["kind"] == kind and row["power_density_w_per_mm2"] == density
            for row in rows
        )


@pytest.mark.parametrize("attention", ["unfused", "fused"])
def test_answers_say_that_they_depend_on_attention(attention: str) -> None:
    spec = spec_of(f"{SPEC}attention: {attention}\n")
    made = answers_document(answers(spec=spec))
    other = {"unfused": "fused", "fused": "unfused"}[attention]
    line = f"attention {attention}: another point may be best with attention {other}"
    assert line in footer_lines(made)
    assert line in to_html(made, "x")


def test_a_die_that_fits_no_wafer_has_no_price() -> None:
    made = answers()
    point = replace(made.best[0].found.point, price_micro_usd=0)
    other = made._replace(frontier=(found(point, 1.0, 10**12, 10**12),))
    (one,) = answers_document(other)["frontier"]
    assert one["point"]["price_usd"] is None
    assert "With the price of the base" in to_html(document(), "x")
    assert "With the price of the base" not in to_html(answers_document(other), "x")


def test_rates_are_said_where_they_vary() -> None:
    text = SPEC.replace("600 GB/s", "[600 GB/s, 1200 GB/s]")
    spec = spec_of(text.replace("56 mm2", "560 mm2"))
    texts = {point_text(p.architecture, spec) for p in spec.space.points}
    assert len(texts) == len(spec.space.points)
    assert {text.rpartition(", ")[2] for text in texts} == {
        "HBM bandwidth 600 GB/s",
        "HBM bandwidth 1,200 GB/s",
    }


@pytest.mark.parametrize(
    ("parameter", "value", "text"),
    [
        ("sram_bytes", 2**21, "2 MiB"),
        ("frequency_hz", 1_050_000_000, "1.05 GHz"),
        ("link_bytes_per_s", 4 * 2**30, "4.29497 GB/s"),
        ("rows", 4096, "4,096"),
    ],
)
def test_values_for_people(parameter: str, value: int, text: str) -> None:
    assert value_text(parameter, value) == text


def test_figures_for_people() -> None:
    assert step(None) == "no plan fits"
    assert [change(x) for x in (None, 0.0, 1e-9, -1e-9, 0.25)] == [
        *("–", "0 %", "+<0.01 %", "-<0.01 %", "+25.00 %")
    ]
    assert contribution_texts(None) == ["–"] * 4
    factors = {"architecture": 2.0, "schedule": 1.5, "placement": 1.0}
    assert contribution_texts(factors) == ["2×", "1.5×", "1×", "3×"]
    assert cut_lines({"limits": [], "cut": {"wafer": 1}}) == [
        "1 point cut by wafer (a die that fits the wafer)"
    ]


def test_equal_steps_change_nothing() -> None:
    """Whatever the means of logarithms are rounded to."""
    made = answers()
    best = made.best[-1].found
    assert best is not None
    (row, _) = made.sensitivity
    same = found(row.found.point, best.relative * (1 + 1e-15), 5 * 10**11)
    row = row._replace(found=same._replace(on=best.on))
    changed = answers_document(made._replace(sensitivity=(row,)))
    assert changed["sensitivity"][0]["change"] == 0
