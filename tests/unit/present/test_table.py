"""Tables: units, exact zeros, and texts that fit."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import msgspec
import pytest

from nest.cost.score import score
from nest.instances import best_known
from nest.instances import problem as problem_of
from nest.ir import Plan, Stage, Strategy
from nest.present import comparison
from nest.present.comparison import compare_screen, repeat_texts
from nest.present.fitted import FittedTable
from nest.present.pages.answers import solver_rows
from nest.present.pages.html import to_html
from nest.present.screen import answer_rows, stage_parts
from nest.present.table import percent, show, signed_percent, terminal_table
from nest.present.verbosity import VERBOSE
from nest.solvers.base import Limit, SolveOptions, Status
from nest.solvers.result import Outcome, SolveResult
from nest.util.tables import Column, Table
from nest.util.time_scale import TimeScale
from tests.loopback import big_plan, good_plan, tiny_problem
from tests.pages import document


@pytest.fixture
def verbose() -> Iterator[None]:
    """Show all that ``--verbose`` shows."""
    token = VERBOSE.set(True)
    yield
    VERBOSE.reset(token)


def text_of(*parts: object) -> list[str]:
    file = io.StringIO()
    show(file, *parts)  # type: ignore[arg-type]
    return file.getvalue().splitlines()


def texts(names: Sequence[str], *rows: Sequence[str]) -> FittedTable:
    """Return a table of texts."""
    return terminal_table(Table([Column(name) for name in names], rows))


@pytest.mark.parametrize(
    ("reference_ns", "time_ns", "text"),
    [
        (41_237_000_000, 41_237_000_000, "41.2370 s"),
        (1_000_000_000, 1_234_567_890, "1.23457 s"),
        (412_370_000, 1_412_370_000, "1412.370 ms"),
        (1_500, 1_500, "1.50000 µs"),
        (90, 90, "90.0000 ns"),
        (0.5, 0.5, "0.500000 ns"),
        (1e15, 1e15, "1000000 s"),
        (None, 0, "0.00000 s"),
    ],
)
def test_time_scale(reference_ns: float | None, time_ns: float, text: str) -> None:
    assert TimeScale.fitting(reference_ns)(time_ns) == text


@pytest.mark.parametrize(
    ("reference_ns", "time_ns", "text"),
    [
        (None, None, ""),
        (None, 0, "no bound yet"),
        (1_500, 0, "no bound yet"),
        (41_237_000_000, 3, "3e-09 s"),
        (41_237_000_000, 41_000_000_000, "41.0000 s"),
    ],
)
def test_bounds_of_nothing_are_no_figures(
    reference_ns: float | None, time_ns: float | None, text: str
) -> None:
    assert TimeScale.fitting(reference_ns).bound(time_ns) == text


def test_time_scale_of_a_foreign_unit() -> None:
    scale = TimeScale.fitting(5_000_000, "cycles")
    assert scale(5_000_000) == "0.00500000 cycles"
    assert scale(None) == ""


def test_only_zero_is_zero_per_cent() -> None:
    assert percent(None) == ""
    assert percent(Fraction(0)) == "0"
    assert percent(Fraction(1, 10**9)) == "<0.01"
    assert percent(Fraction(1, 3)) == "33.33"


def make_results() -> list[SolveResult]:
    problem, plan = tiny_problem(), good_plan()
    best = SolveResult(
        solver="dp",
        exact=True,
        outcome=Outcome.SOLVED,
        status=Status.OPTIMAL,
        problem_hash="0" * 64,
        quantum_ps=1000,
        plan=plan,
        score=score(problem, plan),
        lower_bound_quanta=90,
        wall_s=1.234,
    )
    slow = replace(
        best,
        solver="slow",
        status=Status.FEASIBLE,
        limit=Limit.TIME,
        score=replace(score(problem, plan), step_quanta=120),
        lower_bound_quanta=60,
    )
    failed = replace(
        slow,
        solver="liar",
        outcome=Outcome.MISMATCH,
        lower_bound_quanta=None,
        limit=None,
        detail="claims 1 quanta\nfor nothing " + "x" * 300,
    )
    skipped = replace(
        failed,
        solver="small",
        outcome=Outcome.SKIPPED,
        status=None,
        plan=None,
        score=None,
        detail="too [bold]big[/bold]",
    )
    return [best, slow, failed, skipped]


def screen_of(results: list[SolveResult]) -> list[str]:
    """Return the lines of a comparison's first screen, blanks as one."""
    lines = text_of(*compare_screen(tiny_problem(), results))
    return [" ".join(line.split()) for line in lines]


def test_compare_screen_in_a_pipe() -> None:
    """A failure tells why below the table; long words are cut."""
    _, header, rule, *rows = screen_of(make_results())
    assert header == (
        "solver fits memory, bytes of 100 step time, ns (90 %) slower, % "
        "proof search, s"
    )
    assert set(rule) == {"─"}
    assert rows[0].endswith(" 90.0000 fastest optimal 1.23")
    assert rows[1].endswith(" 120.0000 33.3 within 50.00 % 1.23")
    assert " MISMATCH " in rows[2]
    assert rows[3] == "small – – – – skipped 1.23"
    assert rows[4] == "slow: time limit"
    assert rows[5].startswith("liar: claims 1 quanta for nothing")
    assert max(map(len, rows)) <= 80
    assert "small: too [bold]big[/bold]" in rows
    assert any(row.startswith("plan of dp: TP 1 · PP ") for row in rows)


def test_a_small_difference_is_no_negative_zero() -> None:
    assert signed_percent(-0.0001) == "0.0 %"
    assert signed_percent(0.0001) == "0.0 %"
    assert signed_percent(-0.012) == "-1.2 %"
    assert signed_percent(0.065) == "+6.5 %"


@pytest.mark.parametrize(
    ("bound", "text"),
    [
        (60, "; lower bound 60.0000 ns"),
        (0, ""),  # it says nothing
        (None, ""),
    ],
)
def test_a_bound_without_a_plan_is_kept(bound: int | None, text: str) -> None:
    """A gap says it where there is a plan: 30 of 90 quanta are open."""
    best, slow, *_ = make_results()
    stopped = replace(
        slow,
        outcome=Outcome.INTERRUPTED,
        limit=Limit.INTERRUPT,
        status=Status.NO_SOLUTION,
        plan=None,
        score=None,
        lower_bound_quanta=bound,
        detail="interrupted by the user",
    )
    half = replace(best, status=Status.FEASIBLE, lower_bound_quanta=60)
    rows = screen_of([stopped, half])
    assert rows[3].startswith("slow – – – – interrupted")
    assert " within 33.33 % " in rows[4]
    assert rows[5] == f"slow: interrupted by the user{text}"


def test_a_rule_is_as_long_as_the_widest_line() -> None:
    names = [f"a column of {n:02}" for n in range(10)]
    table = texts(names, ["x"] * 10)
    header, rule, _ = text_of(table)
    assert len(rule) == len(header) > 100
    _, rule, _ = text_of(texts(["name"], ["x" * 300]))
    assert len(rule) == 300
    _, rule, _ = text_of(texts(["name"], ["x" * 30]))
    assert len(rule) == 30


def over_memory_result(**changes: Any) -> SolveResult:
    problem, plan = tiny_problem(), big_plan()
    fields: dict[str, Any] = {
        "solver": "alpha",
        "exact": False,
        "outcome": Outcome.SOLVED,
        "status": Status.OVER_MEMORY,
        "problem_hash": "0" * 64,
        "quantum_ps": 1000,
        "plan": plan,
        "score": score(problem, plan),
        "over_memory_bytes": 60,
        "own_objective_ns": 75.5,
        "wall_s": 2.0,
        "detail": "60 bytes (60.0 %) too much memory",
    }
    return SolveResult(**(fields | changes))


def test_plans_that_do_not_fit_are_set_apart() -> None:
    best, slow, *_ = make_results()
    rows = screen_of([best, over_memory_result(), slow])[3:]
    assert " fastest optimal " in rows[0]
    assert re.fullmatch(r"alpha no 160 \[120\.0000\] – over memory 2\.00", rows[1])
    assert " 33.3 within 50.00 % " in rows[2]
    assert "alpha: 60 bytes (60.0 %) too much memory" in rows


def test_a_plan_that_does_not_fit_sets_the_unit_if_it_is_alone() -> None:
    rows = screen_of([over_memory_result()])
    assert "[120.000]" in rows[3]


def test_answer_of_a_planner_with_an_objective_of_its_own(verbose: None) -> None:
    rows = answer_rows(tiny_problem(), over_memory_result())
    (proof, search) = (text for label, text in rows if label == "proof")
    assert "over memory" in proof
    assert "(60 bytes (60.0 %) too much memory)" in proof
    assert "own estimate 75.500 ns" in search
    assert "lower bound" not in search


def test_footer_says_how_to_repeat_the_table() -> None:
    for cells, text in (
        ({"dp": SolveOptions()}, "workers 1 · seed 0"),
        ({"dp": SolveOptions(gap=0.025)}, "workers 1 · seed 0 · gap 2.5 %"),
        (
            {"dp": SolveOptions(repair=True), "alpa": SolveOptions()},
            "workers 1 · seed 0 · plans repaired",
        ),
        (
            {"dp": SolveOptions(num_workers=2), "milp": SolveOptions()},
            "workers dp 2, milp 1 · seed 0",
        ),
    ):
        *_, last = repeat_texts(tiny_problem(), "0" * 64, cells)
        assert last == f"time limit none · {text}"


def test_a_column_is_added_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry of ``all_columns`` is on terminals, on pages and in CSV files."""
    added = Column("claimed_quanta", "claimed, quanta", ",d", rank=6)
    before = comparison.all_columns
    monkeypatch.setattr(comparison, "all_columns", lambda *a: [*before(*a), added])
    problem = tiny_problem()
    results = [replace(make_results()[0], claimed_quanta=4096)]
    csv = [x.split(",") for x in comparison.result_csv(problem, results).splitlines()]
    assert [x[-1] for x in csv] == ["claimed_quanta", "4096"]
    _, header, _, row, *_ = text_of(*compare_screen(problem, results))
    assert re.search("claimed, quanta$", header)
    assert re.search(" 4,096$", row)
    page = to_html(document(solvers=solver_rows(results, problem)))
    assert re.search("<th[^>]*>claimed, quanta</th>", page)
    assert re.search("<td[^>]*>4,096</td>", page)


def test_encoding_without_unicode() -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="latin-1")
    show(file, texts(("µs", "name"), ("1", "dp2·tp4 – 层")))
    file.flush()
    lines = raw.getvalue().decode("latin-1").splitlines()
    assert lines[0] == "us   name"
    assert set(lines[1]) == {"-"}
    assert lines[2] == "1    dp2,tp4 - ?"


def test_strategies_of_a_mixed_stage() -> None:
    problem = tiny_problem(memory_bytes=1000)
    strategies = (Strategy(), Strategy(zero=1))
    plan = Plan(
        replicas=1,
        micro_batch=1,
        stages=(Stage(layers=(0, 1), devices=1, strategies=strategies),),
    )
    job = msgspec.structs.replace(problem.job, zero=(0, 1))
    problem = msgspec.structs.replace(problem, job=job)
    row = text_of(*stage_parts(problem, plan, score(problem, plan)))[-1]
    assert "0 – 1 (2)" in row
    assert "single | zero1" in row


def test_tokens_per_second_beside_the_intervals(verbose: None) -> None:
    """Those of the score: 62.3283 s for 512 samples of 8192 tokens."""
    problem = problem_of("llama3-70b-dgx-h100x64-megatron")
    plan = best_known(problem.name).plan
    assert plan is not None
    found = score(problem, plan)
    best = replace(
        make_results()[0], plan=plan, score=found, lower_bound_quanta=found.step_quanta
    )
    text = "\n".join(text_of(*compare_screen(problem, [best])))
    tokens = 512 * 8192 / (found.step_time_ns / 10**9)
    assert "tokens/s" in text
    assert f" {float(f'{tokens:.6g}'):,g} " in text
