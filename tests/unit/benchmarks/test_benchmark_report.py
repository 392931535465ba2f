"""What a report says of rows that are made by hand."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from nest.benchmarks import rows as rows_module
from nest.benchmarks.cells import TracePoint
from nest.benchmarks.rows import Row, known
from nest.benchmarks.summary import to_document
from nest.present.benchmark_charts import chart
from nest.present.benchmark_layout import answer_sections, measured_sections
from nest.present.pages.benchmark import reports, to_html
from nest.solvers.base import Limit, Status
from nest.solvers.result import Outcome
from nest.util.tables import fields_csv
from nest.util.versions import package_version
from tests.benchmarks import instances, make_run
from tests.pages import Page

LIMIT_S = 10.0
PROBLEMS = instances(3)
RUN = make_run(PROBLEMS, ["brute", "alpa"], time_limit_s=LIMIT_S)


def row(
    problem: int,
    solver: str,
    step: int | None,
    wall_s: float = 1.0,
    status: Status | None = None,
    run: Any = RUN,
    seed: int = 0,
    **changes: Any,
) -> Row:
    """Return a cell: by default ``brute`` proves, ``alpa`` finds."""
    entry, cell = next(
        (entry, cell)
        for entry, cell in run.cells()
        if (entry.name, cell.solver, cell.seed) == (f"tiny-{problem}", solver, seed)
    )
    exact = solver == "brute"
    if status is None:
        status = Status.OPTIMAL if exact else Status.FEASIBLE
    bound = step if status is Status.OPTIMAL else None
    fields: dict[str, Any] = {
        "entry": entry,
        "cell": cell,
        "exact": exact,
        "outcome": Outcome.SOLVED,
        "status": status,
        "limit": None,
        "detail": "",
        "step_quanta": step,
        "bound_quanta": bound,
        "over_memory_bytes": None,
        "own_objective_ns": None,
        "wall_s": wall_s,
        "cpu_s": wall_s / 2,
        "peak_rss_bytes": 2**30,
        "trace": (TracePoint(wall_s=wall_s, step_quanta=step, bound_quanta=bound),),
        "host": "here",
        "shares_cpus": False,
        "quantum_ps": 1000,
        "time_unit": "s",
    }
    return Row(**(fields | changes))


def timed_out(problem: int, solver: str, **changes: Any) -> Row:
    return row(
        problem, solver, None, LIMIT_S, Status.NO_SOLUTION, limit=Limit.TIME, **changes
    )


ROWS = [
    row(0, "brute", 100, 3.0),
    row(0, "alpa", 120, 1.0, detail="10 | clusters"),
    timed_out(1, "brute", bound_quanta=40),
    row(1, "alpa", 50, 0.0),
    row(2, "brute", None, 1.0, Status.INFEASIBLE),
    row(2, "alpa", None, 1.0, Status.NO_SOLUTION, detail="none fits"),
]


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return to_document(RUN, ROWS)


@pytest.fixture(scope="module")
def files(document: dict[str, Any]) -> dict[str, str]:
    return reports(document)


def by_name(parts: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(part for part in parts if part["solver"] == name)


def test_what_is_known_of_problems(document):
    first, second, third = document["answers"]["problems"]
    assert first["best_step_time_ns"] == 100
    assert (first["best_by"], first["proven_by"]) == (["brute"], ["brute"])
    assert first["closed"]
    assert (second["best_step_time_ns"], second["lower_bound_ns"]) == (50, 40)
    assert not second["closed"]
    assert third["infeasible"]
    assert third["closed"]
    assert third["best_step_time_ns"] is None


def test_a_better_plan_known_before():
    """The best is that of the library, which nobody in the run found."""
    entry = msgspec.structs.replace(ROWS[1].entry, best_quanta=90)
    fact = known([replace(ROWS[1], entry=entry)])[entry.hash]
    assert (fact.best_quanta, fact.by, fact.closed) == (90, (), False)


def test_what_solvers_found(document):
    """Over the best: brute 1; alpa 1.2 and 1, geometric mean √1.2."""
    brute = by_name(document["answers"]["solvers"], "brute")
    alpa = by_name(document["answers"]["solvers"], "alpa")
    assert brute["outcomes"] == {
        "infeasible": 1,
        "no-solution, time limit": 1,
        "optimal": 1,
    }
    assert (brute["proven"], brute["best"], brute["with_plan"]) == (2, 1, 1)
    assert brute["solvable"] == alpa["solvable"] == 2
    assert (alpa["proven"], alpa["best"], alpa["close"]) == (0, 1, 1)
    assert alpa["over_best"] == {
        "geometric_mean": pytest.approx(math.sqrt(1.2)),
        "median": pytest.approx(1.1),
        "max": 1.2,
    }


def test_pairs(document):
    """brute wins the first, alpa the second (a plan beats none)."""
    (pair,) = document["answers"]["pairs"]
    assert [pair[x] for x in ("wins", "ties", "losses", "neither")] == [*(1, 0, 1, 1)]
    assert pair["win_share"] == 0.5
    assert pair["sign_test_p"] == 1
    assert pair["problems_with_both"] == 1
    assert pair["step_time_ratio"] == pytest.approx(100 / 120)


def test_a_problem_has_one_voice():
    """Seeds 1 and 3 of a against 2 and 2 of b: the worse middle loses."""
    run = make_run(PROBLEMS[:1], ["alpa", "random"], seeds=[0, 1])
    steps = {("alpa", 0): 1, ("alpa", 1): 3, ("random", 0): 2, ("random", 1): 2}
    made = [
        row(0, solver, step, run=run, seed=seed)
        for (solver, seed), step in steps.items()
    ]
    (pair,) = to_document(run, made)["answers"]["pairs"]
    assert (pair["wins"], pair["losses"]) == (0, 1)
    assert pair["step_time_ratio"] == pytest.approx(math.sqrt(3 / 4))
    (unfinished,) = to_document(run, made[:-1])["answers"]["pairs"]
    assert (unfinished["wins"], unfinished["losses"]) == (0, 0)


def test_profiles_count_failures(document):
    """Without the infeasible one: each leads one of two, alpa has both."""
    found = document["answers"]["step_time_profile"]
    assert found == {"brute": ((1.0, 0.5),), "alpa": ((1.0, 0.5), (1.2, 1.0))}
    assert document["times"]["proof_time_profile"] == {"brute": ((1.0, 2 / 3),)}


def test_mean_times_have_penalties(document):
    """brute: 3 s, 1 s and the limit of 10 s, shifted by 1 s.

    ∛(4·2·11) - 1 = 3.448; at ten limits ∛(4·2·101) - 1 = 8.314. alpa has
    no plan where there is none, which is an answer: ∛(2·1·2) - 1.
    """
    brute = by_name(document["times"]["solvers"], "brute")
    assert (brute["answered"], brute["cells"]) == (2, 3)
    assert brute["shifted_geometric_mean_s"] == {
        "1": pytest.approx(88 ** (1 / 3) - 1),
        "10": pytest.approx(808 ** (1 / 3) - 1),
    }
    alpa = by_name(document["times"]["solvers"], "alpa")
    assert alpa["answered"] == 3
    assert alpa["shifted_geometric_mean_s"]["1"] == pytest.approx(4 ** (1 / 3) - 1)


def test_no_penalty_without_a_limit():
    run = make_run(PROBLEMS, ["brute", "alpa"], time_limit_s=None)
    made = [
        replace(each, cell=row(0, each.solver, 1, run=run).cell) for each in ROWS[2:4]
    ]
    times = to_document(run, made)["times"]
    brute = by_name(times["solvers"], "brute")
    assert brute["shifted_geometric_mean_s"] == {"1": None, "10": None}
    assert brute["primal_integral"] is None
    assert times["gap_over_time"] == {}


def test_primal_integrals(document):
    """brute: 3 of 10 s without a plan, and 10 of 10: mean 0.65.

    alpa: 1 s of none and 9 s of 1/6 too slow make 0.25; the other is at once
    the best: mean 0.125.
    """
    brute = by_name(document["times"]["solvers"], "brute")
    alpa = by_name(document["times"]["solvers"], "alpa")
    assert brute["primal_integral_cells"] == 2
    assert brute["primal_integral"] == pytest.approx(0.65)
    assert alpa["primal_integral"] == pytest.approx(0.125)


def test_cactus(document):
    found = document["times"]["cactus"]
    assert found["proven"] == {"brute": ((0.0, 0.0), (1.0, 1.0), (3.0, 2.0))}
    assert found["close"]["brute"] == ((0.0, 0.0), (3.0, 1.0))
    assert found["close"]["alpa"] == ((0.0, 1.0),)


def test_a_refuted_proof_is_a_mismatch():
    """Another solver's plan of 120 quanta beats the bound of 130."""
    check = rows_module._cross_checked
    wrong = row(0, "brute", 130)
    fixed, other = check([wrong, ROWS[1]])
    assert other == ROWS[1]
    assert fixed.outcome is Outcome.MISMATCH
    assert fixed.status is Status.FEASIBLE
    assert fixed.bound_quanta is None
    assert fixed.trace[-1].bound_quanta is None
    assert fixed.detail == (
        "claims a lower bound of 130 quanta, but the plan of alpa takes 120"
    )
    nothing = row(0, "brute", None, status=Status.INFEASIBLE)
    fixed, _ = check([nothing, ROWS[1]])
    assert fixed.status is Status.NO_SOLUTION
    assert fixed.detail.startswith("claims infeasible, but the plan of alpa")


def test_a_plan_known_before_refutes_a_proof():
    entry = msgspec.structs.replace(ROWS[0].entry, best_quanta=99)
    (fixed,) = rows_module._cross_checked([replace(ROWS[0], entry=entry)])
    assert fixed.outcome is Outcome.MISMATCH
    assert fixed.detail == (
        "claims a lower bound of 100 quanta, but a plan known before takes 99"
    )


def test_a_bound_on_the_way_is_a_claim_too():
    """It was 130 for a while, and then forgotten."""
    lapse = replace(
        row(0, "brute", 120, status=Status.FEASIBLE, limit=Limit.TIME),
        trace=(TracePoint(wall_s=1, bound_quanta=130),),
    )
    fixed, _ = rows_module._cross_checked([lapse, ROWS[1]])
    assert fixed.outcome is Outcome.MISMATCH


def test_a_refused_plan_hides_no_false_bound():
    """A bound of 130 with it; another solver's plan takes 120."""
    refused = replace(
        row(0, "brute", None, status=Status.NO_SOLUTION),
        outcome=Outcome.INVALID_PLAN,
        detail="stage 2: too large",
        trace=(TracePoint(wall_s=1, bound_quanta=130),),
    )
    fixed, _ = rows_module._cross_checked([refused, ROWS[1]])
    assert fixed.outcome is Outcome.MISMATCH
    assert fixed.detail == (
        "claims a lower bound of 130 quanta, but the plan of alpa takes 120; "
        "stage 2: too large"
    )
    over = replace(refused, outcome=Outcome.SOLVED, status=Status.OVER_MEMORY)
    fixed, _ = rows_module._cross_checked([over, ROWS[1]])
    assert fixed.status is Status.OVER_MEMORY


def test_failures_stay_failures():
    bad = row(
        0,
        "alpa",
        None,
        0.1,
        Status.NO_SOLUTION,
        outcome=Outcome.ERROR,
        detail="ZeroDivisionError",
    )
    document = to_document(RUN, [ROWS[0], bad])
    alpa = by_name(document["answers"]["solvers"], "alpa")
    assert (alpa["failed"], alpa["outcomes"]) == (1, {"error": 1})
    times = by_name(document["times"]["solvers"], "alpa")
    assert times["answered"] == 0
    assert times["shifted_geometric_mean_s"]["1"] == pytest.approx(LIMIT_S)


# Files


def test_nothing_measured_is_among_the_answers(document, files):
    """Twice as slow on another machine, the answers are the same."""
    slower = [
        replace(
            each,
            wall_s=2 * each.wall_s,
            cpu_s=9.0,
            peak_rss_bytes=1,
            host="there",
            trace=(),
        )
        for each in ROWS
    ]
    other = to_document(RUN, slower)
    assert other["answers"] == document["answers"]
    assert other["times"] != document["times"]
    one, two = files, reports(other)
    assert one["answers.csv"] == two["answers.csv"]
    before, after = (
        text["report.md"].partition("## Measured")[0] for text in (one, two)
    )
    assert before == after
    assert "### Pairs" in before


def test_what_a_limit_cut_short_is_not_quoted():
    """Its last words may be others the next time."""
    made = [timed_out(0, "brute", detail="killed after 10.2 s")]
    document = to_document(RUN, made)
    told = document["answers"]["rows"][0]["detail"]
    assert told == "ended by the time limit, see times"
    assert document["times"]["rows"][0]["detail"] == "killed after 10.2 s"


def test_names_in_a_csv_do_nothing_to_a_terminal():
    text = fields_csv(("name", "size"), [{"name": "a\x1b[2Jb", "size": None}])
    assert text == "name,size\na\\x1b[2Jb,\n"


def test_csv(files):
    text = files["answers.csv"]
    found = list(csv.DictReader(io.StringIO(text)))
    assert [each["solver"] for each in found] == ["brute", "alpa"] * 3
    assert found[0]["step_time_quanta"] == "100"
    assert found[1]["detail"] == "10 | clusters"
    assert found[2]["step_time_ns"] == ""
    times = list(csv.DictReader(io.StringIO(files["times.csv"])))
    assert times[0]["wall_s"] == "3.0"


def test_json(files):
    text = files["report.json"]
    found = json.loads(text)
    assert found["schema"] == "nest-bench/1"
    assert "NaN" not in text
    assert "Infinity" not in text


def test_markdown(files):
    """Every table has as many cells in every line; bars are escaped."""
    text = files["report.md"]
    tables = re.findall(r"(?:^\|.*\n)+", text, re.M)
    assert len(tables) == 8
    for table in tables:
        counts = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(counts) == 1
    assert "10 \\| clusters" in text


def test_settings():
    """Whoever runs it again finds what was run, and with what."""
    run = make_run(PROBLEMS, ["milp"], {"milp": {"engine": "highs"}})
    (part,) = (
        part
        for part in answer_sections(to_document(run, []))
        if part.title == "Settings"
    )
    rows = dict(part.tables[0].texts())
    assert rows["problem tiny-0"] == f"test, {PROBLEMS[0].hash}"
    assert rows["workers of milp"] == "1"
    assert rows["option milp.engine"] == "highs"
    assert rows["version of ortools"] == package_version("ortools")


def test_charts_name_who_leads(document):
    """The first point of a profile, the last one of other curves."""
    profile = document["answers"]["step_time_profile"]
    starts = {name: curve[0] for name, curve in profile.items() if curve}
    share = max(y for ratio, y in starts.values() if ratio == 1)
    leaders = [x for x, y in starts.items() if tuple(y) == (1, share)]
    made = chart("step_time_profile", document)
    assert made.title == (
        f"Best plan most often: {', '.join(leaders)} ({100 * share:.0f} %)"
    )
    curves = {"dp": [(1, 2)], "cpsat": [(1, 1), (3, 2)], "milp": [(5, 1)]}
    times = {**document["times"], "cactus": {"proven": curves, "close": {}}}
    run = {**document["run"], "solvers": [*curves]}
    many = {**document, "run": run, "times": times}
    assert chart("proven", many).title == "Most proofs: dp, cpsat (2 cells)"


def test_html_stands_alone(document, files):
    """In light and dark, with plots, and nothing from anywhere else."""
    pytest.importorskip("vl_convert")
    text = files["report.html"]
    assert to_html(document) == text
    # Five charts, each for wide pages and for telephones.
    assert text.count("<svg") == 2 * 5
    assert "prefers-color-scheme: dark" in text
    assert "currentColor" in text
    assert "#010203" not in text
    links = set(re.findall(r"\w+://[^\"'<> ]+", text))
    assert links <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert not re.search(r"<(script|img|link)\b", text)


def test_html_of_nothing(document):
    """A run that was stopped before a cell was finished."""
    empty = to_document(RUN, [])
    assert "0 of 6 cells finished" in to_html(empty)
    parts = [*answer_sections(empty), *measured_sections(empty)]
    assert [part.title for part in parts] == [
        *("Solvers", "Pairs", "Outcomes", "Settings", "Times", "Cactus")
    ]


def test_html_without_what_draws(document, monkeypatch):
    monkeypatch.setattr("nest.present.pages.draw.find_spec", lambda _: None)
    page = Page(to_html(document))
    assert "pip install 'nest-planner[report]'" in page.text
    assert not page.all("svg")
    # The figures of a chart are a table.
    for solver, curve in document["answers"]["step_time_profile"].items():
        for x, y in curve:
            assert [solver, f"{x:.6g}", f"{y:.6g}"] in page.rows


def test_html_escapes_what_it_is_told(document):
    title = "<script>alert(1)</script>"
    named = {**document, "run": {**document["run"], "title": title}}
    assert "<script" not in to_html(named)
