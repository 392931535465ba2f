"""How the margin of two plans is fitted: bench/intervals.py."""

from __future__ import annotations

import importlib
import json
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from bench.result_files import ROOT, result_path
from nest.uncertainty.intervals import Quantiles, stored_deviations
from nest.validation.rows import Row
from nest.validation.software import SOFTWARE


@pytest.fixture
def fit(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module("intervals")


def test_the_order_at_the_margin_is_right_nine_times_of_ten(fit: ModuleType) -> None:
    """The logarithm of 10 / 9 if it is, of 10 if it is not."""
    for right, expected in ((True, 10 / 9), (False, 10)):
        found = fit.misorder(np.ones(1), np.array([right]), np.ones(1))
        assert found == pytest.approx(np.log(expected))
    found = fit.misorder(np.zeros(1), np.array([True]), np.array([3.0]))
    assert found == pytest.approx(3 * np.log(2))


def test_the_margin_that_is_found_is_the_one_that_was_drawn(fit: ModuleType) -> None:
    """Ratios around 0.1, nine of ten of which there are in order."""
    random = np.random.default_rng(1)
    ratios = random.uniform(0, 0.4, 4000)
    right = random.random(4000) < 1 / (1 + 9 ** -(ratios / 0.1))

    def loss(x: np.ndarray) -> float:
        return float(fit.misorder(ratios / np.exp(x[0]), right, np.ones(4000)))

    found = float(np.exp(fit.least(loss, np.log([0.3]))[0]))
    assert found == pytest.approx(0.1, rel=0.06)
    near = abs(ratios - found) < 0.02
    assert right[near].mean() == pytest.approx(0.9, abs=0.03)


def test_pairs_are_counted_by_what_is_said_of_them(fit: ModuleType) -> None:
    orders = fit.Orders(
        equal=np.array([True, True, False, False]),
        right=np.array([True, False, True, True]),
        sources=np.array(["vTrain 1", "other", "other", "vTrain 1"]),
    )
    assert orders.figures() == {
        "pairs": 4,
        "equal": 2,
        "right_of_equal": 0.5,
        "right_of_others": 1.0,
    }
    assert orders.figures("vTrain") == {
        "pairs": 2,
        "equal": 1,
        "right_of_equal": 0.0,
        "right_of_others": 1.0,
    }


def test_a_fifth_more_is_not_equal_where_plans_differ_little() -> None:
    numbers = stored_deviations()
    assert np.sqrt(2) * numbers.plan_noise < np.log(1.2)


def test_intervals_of_own_runs_are_of_what_these_tell(fit: ModuleType) -> None:
    """All rows take e^0.2 of what is predicted, and scatter by 0.01.

    Twenty of them tell it to 0.01 / √20, and the noise is the root of
    (5 · 0.05² + 20 · 0.01²) / 25 or so: 0.024.
    """
    random = np.random.default_rng(1)
    errors = 0.2 + 0.01 * random.standard_normal(60)
    parts = np.zeros((60, 7))
    parts[:, 0] = 1.0
    table = SimpleNamespace(parts=parts, errors=errors)
    step = Quantiles(low_90=-2, low_50=-1, high_50=1, high_90=2)
    values = np.array([0.05, 0.3, 0.3, 0.3, 0.1, 0.1, 0.1, 0.1, 0.05, 1.0])
    numbers = fit.Numbers(tuple(fit.PRIORS), values, step)
    found = fit.own_runs_draw(table, numbers, np.arange(60), np.arange(20))
    assert found["within_50"] > 0.9
    assert found["within_90"] == 1
    assert found["median_half_width_90"] == pytest.approx(2 * 0.0246, rel=0.1)
    # Without runs 0.05 and 0.3 are 0.304, and e^0.608 - e^-0.608 is 1.29.
    before = found["median_half_width_90_without"]
    assert before == pytest.approx(0.646, rel=0.01)


def test_what_is_called_equal_is_seldom_in_order() -> None:
    """Of pairs of measured plans, their source held out, with all others."""
    pairs = json.loads(result_path("intervals").read_text())["pairs"]
    for figures in pairs.values():
        assert figures["right_of_equal"] < 0.9
        assert figures["right_of_equal"] < figures["right_of_others"]
    assert pairs["all"]["right_of_others"] > 0.9


def test_the_term_between_software_is_the_one_that_was_drawn(fit: ModuleType) -> None:
    """Medians e^0.1 times a normal error of 0.3; rows scatter by 0.02 around them.

    One software has a thousand rows, and counts as one of two hundred.
    """
    random = np.random.default_rng(2)
    medians = 0.1 + 0.3 * random.standard_normal(200)
    stacks = np.array([*range(200), *[0] * 1000])
    errors = medians[stacks] + 0.02 * random.standard_normal(1200)
    software, slower = fit.fit_strangers(errors, np.full(1200, 0.02), stacks)
    # A t distribution of 4 degrees is narrower for normal errors.
    assert software == pytest.approx(0.26, abs=0.03)
    assert slower == pytest.approx(0.1, abs=0.03)


def test_without_rows_the_term_between_software_is_its_prior(fit: ModuleType) -> None:
    nothing = np.zeros(0)
    found = fit.fit_strangers(nothing, nothing, np.zeros(0, int))
    assert found == pytest.approx((0.2, 0.1))


def test_the_ends_of_intervals_of_known_and_unknown_software(fit: ModuleType) -> None:
    """0.03 and 0.04 are 0.05, around 0.1."""
    table = SimpleNamespace(parts=np.zeros((2, 7)))
    step = Quantiles(low_90=-2, low_50=-1, high_50=1, high_90=3)
    values = np.array([0.03, *[0.0] * 7, 0.05, 1.0])
    numbers = fit.Numbers(tuple(fit.PRIORS), values, step, (0.04, 0.1))
    found = numbers.bounds(table, np.array([True, False]))
    assert found[0] == pytest.approx([-0.06, -0.03, 0.03, 0.09])
    assert found[1] == pytest.approx([0.0, 0.05, 0.15, 0.25])


@pytest.mark.parametrize(
    ("framework", "stack"),
    [
        ("Megatron-LM + ZB-2p", "megatron-lm"),
        ("NeMo/Megatron-Core", "nemo"),
        ("MaxText (JAX/XLA)", "maxtext"),
        ("Megatron-Core @HEAD (dev)", "megatron-core"),
        (None, "paper"),
    ],
)
def test_software_is_told_apart_by_its_first_word(
    fit: ModuleType, framework: str | None, stack: str
) -> None:
    assert fit.stack_of(Row(framework=framework, source="Paper, Table 1")) == stack


def test_runs_of_a_software_are_also_those_of_what_is_based_on_it(
    fit: ModuleType,
) -> None:
    """Two sources of recipes are of Megatron-Bridge, and not of Megatron-Core.

    Megatron-LM has the facts of Megatron-Core, and its runs.
    """

    def case(framework: str, source: str, experts: int | None) -> SimpleNamespace:
        row = Row(framework=framework, experts=experts, hardware="B200-180GB")
        return SimpleNamespace(row=row, source=source, family="B200")

    cases = [
        case("Megatron-Core 0.13", "one", None),
        case("Megatron-Bridge 25.09", "two", None),
        case("Unheard-of", "three", None),
    ]
    runs = fit.programs_of(cases)
    assert runs["Megatron-Bridge"] == {"Blackwell": {"two": 1}}
    assert runs["Megatron-Core"] == {"Blackwell": {"one": 1}}
    assert runs["Megatron-LM"] == runs["Megatron-Core"]
    assert not any(runs[entry.name] for entry in SOFTWARE if not entry.is_known)
    entries = {entry.name: entry for entry in SOFTWARE}
    tests = entries["Megatron-Core in SimuMax's runs"]
    assert fit.entries_of(tests) == [
        *(tests.name, "Megatron-Core", "Primus", "Megatron-LM")
    ]


def test_memory_of_recipes_is_that_of_recipes(fit: ModuleType) -> None:
    """Twenty errors of 0.1: they are all of a recipe's, a quarter of all software."""
    rows = [(Row(framework="Megatron-Core", mem_class="nvidia-smi"), 0.1)] * 20
    kinds = fit.memory_kinds(rows)
    assert kinds["recipe"] == pytest.approx([0.1] * 4)
    low_90, low_50, high_50, high_90 = kinds["unknown"]
    assert low_90 < -0.4 < low_50 < high_50 < 0.4 < high_90


def test_every_software_of_the_table_has_intervals() -> None:
    programs = stored_deviations().programs
    known = {entry.name: entry.kind for entry in SOFTWARE if entry.is_known}
    assert [*programs] == [*known]
    for name, program in programs.items():
        kind = "recipe" if known[name] == "recipe" else "unknown"
        assert program.kind in ("counted", kind)
    assert programs["Megatron-LM"].kind == "counted"
    assert {"recipe", "unknown"} == {*stored_deviations().memory_kinds}


def test_what_is_claimed_of_software_left_out_is_counted() -> None:
    """At least 85 % of rows of a source in the mean, 75 % of those of a software."""
    document = json.loads(result_path("intervals").read_text())
    for figures in (document["held_out"], document["held_out_software"]):
        assert figures["all"]["within_90"] >= figures["mean_of_sources"] >= 0.85
        assert figures["mean_of_software"] >= 0.75
