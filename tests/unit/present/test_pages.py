"""Pages: figures are the score's, nothing is fetched, names stay texts."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from nest.analysis import page_facts
from nest.analysis.page_facts import (
    Answer,
    Wish,
    answer_facts,
    network_facts,
    nodes_text,
    plan_facts,
    timeline_facts,
)
from nest.cost.breakdown import breakdown
from nest.cost.score import score
from nest.ir import encode
from nest.ir.cluster import DeviceRange
from nest.ir.plan import Plan, Stage, Strategy
from nest.present.pages import answers, charts, draw
from nest.present.pages.answers import (
    answer_document,
    best_answer,
    plan_rows,
    solver_rows,
)
from nest.present.pages.html import to_html
from nest.present.pages.sections import device_text, sections_of
from nest.present.screen import given_rows
from nest.present.stages import runs
from nest.simulation.events import Simulation
from nest.solvers.base import Status
from nest.solvers.result import Outcome, SolveResult
from nest.topology.graph.convert import graph_of
from nest.units import GIB, quanta_to_ns
from nest.util.sections import tables_of
from nest.util.time_scale import TimeScale
from tests.builders import make_cost
from tests.loopback import tiny_problem
from tests.pages import Page, document, full, named, plan, problem, scored
from tests.unit.audits.test_piper import piper_problem

needs_charts = pytest.mark.skipif(
    find_spec("vl_convert") is None, reason="vl-convert is not installed"
)


#: What tests.pages.document() is told of the run.
WISH = Wish(tokens=1e12, price_usd_per_hour=2.0)


@pytest.fixture(scope="module")
def made() -> page_facts.Document:
    return document()


@pytest.fixture(scope="module")
def text(made: page_facts.Document) -> str:
    return to_html(made)


@pytest.fixture
def without_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draw, "find_spec", lambda _: None)


# Figures


def test_the_document_is_plain_data(made: Any):
    assert json.loads(json.dumps(made, allow_nan=False)) == made


def test_every_figure_of_the_answer_is_the_scores(made: Any):
    answer, found = made["answer"], scored()
    assert answer["step_time_quanta"] == found.step_quanta
    assert answer["step_time_ns"] == found.step_time_ns
    assert answer["tokens_per_s"] == found.throughput_tokens_per_s
    assert answer["mfu"] == found.mfu
    assert answer["memory_left_bytes"] == found.memory_left_bytes


def test_what_a_step_and_a_run_cost(made: Any):
    """8 devices at 2 $ an hour; 1e12 tokens at 1024 x 4096 a step.

    1e12 / 4,194,304 = 238,418.6 steps: the last one is a whole one.
    """
    run, step_ns = made["answer"]["run"], scored().step_time_ns
    assert run["tokens_per_step"] == 1024 * 4096
    assert run["steps"] == 238_419
    assert run["usd_per_hour"] == 16
    hours = Fraction(step_ns) / 10**9 / 3600
    assert run["usd_per_step"] == pytest.approx(float(16 * hours))
    assert run["usd_per_run"] == pytest.approx(float(238_419 * 16 * hours))
    assert run["days"] == pytest.approx(float(238_419 * hours / 24))


def test_prices_of_the_problem_count_where_none_is_given():
    device = replace(problem().cluster.device, price_usd_per_hour=3.0)
    whole = replace(problem(), cluster=replace(problem().cluster, device=device))
    answer = Answer(plan(), scored(), "x")
    facts = answer_facts(whole, answer, Wish())["run"]
    assert facts["usd_per_hour"] == 24
    assert facts["days"] is None
    assert facts["usd_per_run"] is None
    assert answer_facts(problem(), answer, Wish())["run"]["usd_per_step"] is None


def test_devices_of_several_types_cost_their_own_prices():
    """Six of 1 $ and two of 10 $ an hour; none if one is unknown."""
    own = problem().cluster
    cheap = replace(own.device, price_usd_per_hour=1.0)
    for price, total in ((10.0, 26), (None, None)):
        dear = replace(own.device, name="dear", price_usd_per_hour=price)
        others = (DeviceRange(first=6, count=2, device=dear),)
        cluster = replace(own, device=cheap, others=others)
        whole = replace(problem(), cluster=cluster)
        answer = Answer(plan(), score(whole, plan()), "x")
        facts = answer_facts(whole, answer, Wish())["run"]
        assert facts["usd_per_hour"] == total


def test_a_time_that_is_not_in_seconds_has_no_price_and_no_days():
    whole = replace(problem(), time_unit="units")
    answer = Answer(plan(), score(whole, plan()), "x")
    facts = answer_facts(whole, answer, Wish(1e12, 2.0))
    assert facts["run"]["usd_per_step"] is None
    assert facts["run"]["days"] is None


def test_stages_and_their_places(made: Any):
    first, second = made["plan"]["blocks"]
    assert first["ranges"] == [[0, 4]]
    assert second["ranges"] == [[4, 8]]
    assert first["strategies"] == ["dp2·tp2·zero1·recompute-full"]
    for block, found in zip((first, second), scored().blocks, strict=True):
        assert block["memory"] == found.memory
        assert block["memory_bytes"] == sum(block["memory"].values())
        assert block["capacity_bytes"] == problem().cluster.memory_bytes()
    for stage, found in zip(made["plan"]["stages"], scored().stages, strict=True):
        assert stage["forward_ns"] == quanta_to_ns(found.forward, 1000)
        assert stage["memory_bytes"] == found.memory_bytes


def test_replicas_have_ranges_of_their_own():
    ids = tuple(layer.id for layer in problem().graph.layers)
    strategy = Strategy(tp=2, zero=0, recompute="full")
    stages = tuple(
        Stage(layers=part, devices=2, strategy=strategy) for part in (ids[:5], ids[5:])
    )
    two = replace(plan(), replicas=2, micro_batch=1, stages=stages)
    facts = plan_facts(problem(), two, score(problem(), two))
    assert [block["ranges"] for block in facts["blocks"]] == [
        [[0, 2], [4, 6]],
        [[2, 4], [6, 8]],
    ]
    assert facts["devices_idle"] == 0


@pytest.mark.parametrize(
    ("ranges", "nodes", "said"),
    [
        ([[0, 4]], ["0"], "0–3 (node 0)"),
        ([[4, 12]], ["1–2"], "4–11 (nodes 1–2)"),
        ([[7, 8]], ["host-b"], "7 (node host-b)"),
        ([[0, 2], [2, 4]], ["", ""], "0–1, 2–3"),
        (
            [[0, 2], [4, 6], [8, 10], [12, 14]],
            ["0", "1"],
            "0–1 (node 0), 4–5 (node 1), 2 more replicas",
        ),
    ],
)
def test_devices_are_said_with_their_nodes(
    ranges: list[list[int]], nodes: list[str], said: str
):
    assert device_text({"ranges": ranges, "nodes": nodes}) == said


def test_pages_call_nodes_what_a_terminal_does(made: Any, text: str):
    whole, terms = problem(), [{}] * len(plan().stages)
    shown = [nodes_text(whole, run.devices) for run in runs(whole, plan(), terms)]
    assert shown == ["0", "1"]
    assert [x["nodes"] for x in made["plan"]["blocks"]] == [["0"], ["1"]]
    assert "0–3 (node 0)" in text
    assert "Devices and nodes are numbered from 0." in text


def test_terms_add_up_to_the_step(made: Any):
    terms = breakdown(problem(), plan(), scored()).step
    rows = {row["name"]: row["quanta"] for row in made["terms"]["step"]}
    assert rows == dict(terms)
    assert sum(rows.values()) == scored().step_quanta


def test_the_timeline_is_the_simulations(made: Any):
    timeline = made["timeline"]
    simulation = Simulation(problem(), plan())
    expected = [
        (block + 1, event.kind, event.start, event.start + event.duration)
        for block in range(2)
        for event in simulation.events(block)
    ]
    assert len(expected) == timeline["num_events"]
    shown = [
        (row["block"], row["kind"], row["start_ns"], row["end_ns"])
        for row in timeline["events"]
    ]
    low, high = timeline["windows"]
    assert shown == [row for row in expected if row[3] <= low[1] or row[2] >= high[0]]
    assert low[0] == 0
    assert high[1] == timeline["step_time_ns"] == simulation.step


def test_a_long_timeline_is_cut_in_the_middle(monkeypatch: Any):
    """512 micro-batches a stage, forward and backward, and a sync each."""
    monkeypatch.setattr(page_facts, "MOST_EVENTS", 100)
    facts = timeline_facts(problem(), plan(), scored())
    assert facts["num_events"] > 2 * 2 * 512
    assert len(facts["windows"]) == 2
    # Several may end at the same moment.
    assert 90 <= len(facts["events"]) <= 110
    monkeypatch.setattr(page_facts, "MOST_EVENTS", 10**6)
    monkeypatch.setattr(page_facts, "MOST_EVENTS_PER_BLOCK", 10**6)
    facts = timeline_facts(problem(), plan(), scored())
    assert facts["windows"] == [[0, facts["step_time_ns"]]]
    assert len(facts["events"]) == facts["num_events"]


def test_a_steady_state_has_no_timeline_and_no_step():
    """One layer of 60 + 30 ns on one device; four micro-batches a step."""
    cost = make_cost(60, 30, weight_bytes=1)
    whole = piper_problem({"a": cost}, devices=1)
    stage = Stage(layers=("a",), devices=1, strategy=Strategy())
    one = Plan(replicas=1, micro_batch=1, stages=(stage,))
    answer = Answer(one, score(whole, one), "x")
    made = answer_document("report", whole, answer, wish=Wish(1e9, 2.0))
    assert made["timeline"] is None
    assert made["answer"]["run"]["usd_per_step"] is None
    shown = {part.key for part in sections_of(made)}
    assert not {"timeline", "network"} & shown


# Solvers


def result(**changes: Any) -> SolveResult:
    """Return the plan made by hand as a proven optimum of ``dp``."""
    fields: dict[str, Any] = {
        "outcome": Outcome.SOLVED,
        "status": Status.OPTIMAL,
        "plan": plan(),
        "score": scored(),
        "lower_bound_quanta": scored().step_quanta,
        "solver": "dp",
        "exact": True,
        "problem_hash": "",
        "quantum_ps": problem().quantum_ps,
    }
    return SolveResult(**(fields | changes))


def test_solvers_that_failed_and_those_that_did_not_begin_are_rows():
    crashed = result(
        outcome=Outcome.ERROR,
        status=Status.NO_SOLUTION,
        plan=None,
        score=None,
        lower_bound_quanta=None,
        detail="Traceback:\n boom",
        solver="mine",
        exact=False,
    )
    results = [result(), crashed]
    rows = solver_rows(results, problem(), missing=["late"])
    assert [row["outcome"] for row in rows] == ["solved", "error", "not run"]
    assert rows[0]["step_time_ns"] == scored().step_time_ns
    assert rows[0]["lower_bound_ns"] == scored().step_time_ns
    assert rows[0]["cells"]["slower, %"] == "fastest"
    made = answer_document(
        "compare",
        problem(),
        best_answer(results),
        solvers=rows,
        unfinished="Interrupted.",
    )
    page = Page(to_html(made))
    assert "Interrupted." in page.text
    assert "mine failed; the rest stands." in page.text
    assert "Traceback: boom" in page.text
    names = ("dp", "mine", "late")
    table = [r for r in page.rows if r[0] in names and len(r) == 8]
    assert [row[5] for row in table] == ["optimal", "ERROR", "not run"]
    # No cell is empty: what there is not is a dash.
    assert table[2][1:5] == ["–"] * 4
    assert all(text for row in table for text in row)


def test_the_fastest_plan_that_fits_is_the_answer():
    slower = result(
        solver="alpa", exact=False, status=Status.FEASIBLE, lower_bound_quanta=None
    )
    faster = result(
        status=Status.FEASIBLE,
        score=dataclasses.replace(scored(), step_quanta=100),
        lower_bound_quanta=90,
    )
    unfit = result(
        solver="bad",
        exact=False,
        status=Status.OVER_MEMORY,
        score=dataclasses.replace(scored(), step_quanta=1, violations=("too much",)),
        lower_bound_quanta=None,
        over_memory_bytes=1,
    )
    found = best_answer([slower, faster, unfit])
    assert found is not None
    assert (found.name, found.status) == ("dp", "feasible")
    # A proof of any solver counts.
    assert found.lower_bound_ns == 90
    # What does not fit is better than nothing.
    found = best_answer([unfit])
    assert found is not None
    assert found.name == "bad"
    assert best_answer([]) is None


def test_without_a_plan_the_page_says_why():
    whole = tiny_problem()
    rows = solver_rows([], whole, missing=["dp"])
    made = answer_document("solve", whole, None, solvers=rows)
    page = Page(to_html(made))
    assert "No plan was found." in page.text
    assert made["plan"] is made["terms"] is made["timeline"] is None


def test_a_proof_that_nothing_fits_is_said():
    nothing = result(
        status=Status.INFEASIBLE, plan=None, score=None, lower_bound_quanta=None
    )
    rows = solver_rows([nothing], problem())
    made = answer_document("solve", problem(), None, solvers=rows)
    page = Page(to_html(made))
    assert "There is no plan that fits: this is proven." in page.text


def test_plans_that_were_given_are_rows():
    answers = [Answer(plan(), scored(), f"{i}.json") for i in range(2)]
    rows = plan_rows(answers, problem())
    assert [row["name"] for row in rows] == ["0.json", "1.json"]
    assert {row["step_time_ns"] for row in rows} == {scored().step_time_ns}
    assert {row["cells"]["slower, %"] for row in rows} == {"fastest"}
    assert "proof" not in rows[0]["cells"]


def test_traces_are_told_in_ns():
    traces = {"dp": [(0.5, None, 70), (1.0, 90, 80)]}
    (row,) = solver_rows([result()], problem(), traces)
    quantum = problem().quantum_ps
    assert row["trace"] == [
        {
            "wall_s": 0.5,
            "step_time_ns": None,
            "lower_bound_ns": quanta_to_ns(70, quantum),
        },
        {
            "wall_s": 1.0,
            "step_time_ns": quanta_to_ns(90, quantum),
            "lower_bound_ns": quanta_to_ns(80, quantum),
        },
    ]


def test_long_traces_are_thinned(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(answers, "MOST_POINTS", 3)
    traces = {"dp": [(float(i), None, i) for i in range(10)]}
    (row,) = solver_rows([result()], problem(), traces)
    assert [point["wall_s"] for point in row["trace"]] == [0, 4, 9]


# The network


def test_levels_of_a_network():
    facts = network_facts(problem())
    assert facts["units"] == [4]
    assert [level["devices"] for level in facts["levels"]] == [4, 8]
    assert [level["num_units"] for level in facts["levels"]] == [2, 1]


def test_a_graph_is_drawn_up_to_a_size(monkeypatch: pytest.MonkeyPatch):
    whole = problem()
    graph = graph_of(whole.cluster.topology)
    cluster = replace(whole.cluster, topology=graph)
    facts = network_facts(replace(whole, cluster=cluster))
    assert facts["picture"].startswith("<svg")
    assert facts["num_links"] == sum(link["count"] for link in facts["links"])
    monkeypatch.setattr(page_facts, "MOST_DRAWN", 4)
    large = replace(whole, cluster=cluster)
    assert network_facts(large)["picture"] == ""
    text = to_html(answer_document("report", large, None))
    assert '<svg role="img" aria-label="8 devices' not in text
    assert "Links of 8 devices and" in text


# The page


def test_what_is_shown_large_is_what_the_document_says(made: Any, text: str):
    page = Page(text)
    rows = given_rows(problem(), Answer(plan(), scored(), "x"), WISH)
    labels = [label for label, _ in rows]
    assert {"fits", "step time", "speed", "run", "plan"} <= {*labels}
    for label, said in rows:
        value = said.replace(" · ", " ").replace("see --verbose", "see below")
        for mark in (": ", "; ", ", ", " and "):
            value = value.partition(mark)[0]
        assert f"{label} {value}" in page.text.replace("by-hand.json", "x")
    assert "nest report llama2-7b-8 by-hand.json" in page.text
    assert made["problem"]["hash"] in page.text


def test_rows_stand_in_the_order_of_the_first_screen():
    """Whatever the order in which a command knows them."""
    rows = [("else", "e"), ("plan", "TP 1 · PP 2"), ("fits", "doubtful: f")]
    made = document(rows=[*rows, ("launch", "l")], launch="nest export x")
    (part,) = sections_of(made, {"answer"})
    assert [(fact.label, fact.kind) for fact in part.facts] == [
        ("fits", "fit doubtful"),
        ("plan", "chips"),
        ("launch", "row"),
        ("commands", "code"),
        ("else", "row"),
    ]
    text = to_html(made)
    assert "<span>TP 1</span> <span>PP 2</span>" in text
    assert "<pre><code>nest export x</code></pre>" in text


def test_further_figures_stand_in_the_same_card():
    """Of ``--verbose``; a label of a card is on one card."""
    rows = [("speed", "9 tokens/s, 3 per device"), ("speed", "2 samples/s")]
    (part,) = sections_of(document(rows=rows), {"answer"})
    (fact,) = part.facts
    assert (fact.value, fact.remark) == ("9 tokens/s", "3 per device; 2 samples/s")


def test_the_mark_of_an_equal_plan_is_on_the_page():
    text = to_html(full())
    assert "10.0 *" in text
    assert "* within the prediction error" in text
    assert "fits: yes = at most 5 %" in text


def test_the_frontier_is_first_on_its_page():
    parts = sections_of(full())
    assert [part.key for part in parts[:2]] == ["frontier", "answer"]
    assert "GiB suffice for" in parts[0].charts[0].title


@needs_charts
def test_charts_are_drawn_for_telephones_too(text: str):
    """Names stand in lines there, and nothing has a title to point at."""
    found = re.findall(r'<svg[^>]* class="(broad|narrow)"', text)
    assert found
    assert found.count("broad") == found.count("narrow")
    values = [{"a": "a name of several words", "b": 1}]
    axes = {"x": charts.number_axis("b", "b"), "y": charts.names("a", [values[0]["a"]])}
    spec = charts.chart(
        values,
        height={"step": 20},
        **charts.layer(charts.mark("bar"), tip=False, **axes),
    )
    made = charts.narrow(spec)
    assert made["width"] == charts.NARROW
    assert made["height"] == {"step": 34}
    assert "several words" in made["encoding"]["y"]["axis"]["labelExpr"]
    assert made["data"] == spec["data"]


def test_tables_have_the_figures_of_the_document(made: Any, text: str):
    rows = Page(text).rows
    for block in made["plan"]["blocks"]:
        (row,) = [
            row
            for row in rows
            if row[0] == f"stage {block['stages'][0]}" and len(row) == 11
        ]
        assert row[-3] == f"{block['memory_bytes'] / GIB:.2f}"
        assert row[-2] == f"{block['capacity_bytes'] / GIB:.2f}"
    scale = TimeScale.fitting(scored().step_time_ns)
    for term in made["terms"]["step"]:
        named = [term["name"], term["meaning"]]
        (row,) = [row for row in rows if row[:2] == named]
        assert row[2] == scale(term["time_ns"])


def test_the_same_document_gives_the_same_page(made: Any, text: str):
    assert to_html(json.loads(json.dumps(made))) == text
    assert to_html(document()) == text


def test_nothing_is_fetched_and_nothing_runs(text: str):
    page = Page(text)
    assert not {"script", "link", "img", "iframe", "object", "base"} & {
        tag for tag, _ in page.elements
    }
    for _, attributes in page.elements:
        for name, value in attributes.items():
            assert not name.startswith("on")
            if name in ("href", "src", "xlink:href"):
                assert value.startswith("#")
    assert "url(" not in text
    assert "@import" not in text
    addresses = {*re.findall(r"https?://[^\s\"'<>)]+", text)}
    # Names of languages, which nobody visits.
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


def test_a_page_is_small(text: str):
    assert len(text.encode()) <= 2_000_000


def test_landmarks_headings_and_tables(text: str):
    page = Page(text)
    for landmark in ("header", "nav", "main", "h1"):
        assert len(page.all(landmark)) == 1
    ids = [a["id"] for _, a in page.elements if "id" in a]
    assert len(ids) == len({*ids})
    for attributes in page.all("a"):
        assert attributes["href"].removeprefix("#") in ids
    for _, attributes in page.elements:
        for named_by in attributes.get("aria-labelledby", "").split():
            assert named_by in ids
    assert len(page.all("caption")) == len(page.all("table")) > 5
    assert {a.get("scope") for a in page.all("th")} == {"row", "col"}


@needs_charts
def test_every_chart_has_a_name_and_a_table(made: Any, text: str):
    page = Page(text)
    shown = [chart for part in sections_of(made) for chart in part.charts]
    assert len(shown) >= 5
    assert len(page.all("figure")) == len(shown)
    for attributes in page.all("svg"):
        assert attributes["role"] == "img"
        assert attributes["aria-label"]
    # Those without a table of their own stand beside one.
    for part in sections_of(made):
        for chart in part.charts:
            assert chart.table or part.tables or len(part.charts) > 1


@needs_charts
def test_charts_have_the_figures_of_the_document(made: Any, text: str):
    """A mark's title says the figure that its length stands for."""
    titles = re.findall(r"<title>([^<]*)</title>", text)
    for block in made["plan"]["blocks"]:
        name = f"stage {block['stages'][0]}"
        assert (
            f"{name}, weights: {block['memory']['weight_bytes'] / GIB:.2f} GiB"
            in titles
        )
        first, end = block["ranges"][0]
        strategy = block["strategies"][0]
        assert f"{name}: devices {first}–{end - 1}, {strategy}" in titles
    scale = TimeScale.fitting(scored().step_time_ns)
    for term in made["terms"]["step"]:
        said = f"{term['meaning']}: {scale(term['time_ns'])}"
        assert (said in titles) == (term["time_ns"] != 0)


@pytest.mark.usefixtures("without_charts")
def test_without_what_draws_there_are_tables_and_a_line(made: Any):
    text = to_html(made)
    page = Page(text)
    assert "pip install 'nest-planner[report]'" in page.text
    assert not page.all("svg")
    assert not page.all("figure")
    tables = tables_of(sections_of(made))
    assert len(page.all("table")) == len(tables)
    for table in tables:
        for row in table.texts():
            assert row in page.rows


@needs_charts
def test_a_chart_that_cannot_be_drawn_is_a_table(
    made: Any, monkeypatch: pytest.MonkeyPatch
):
    def broken(document_: Any) -> dict[str, Any]:
        return {"mark": "no such mark"}

    monkeypatch.setattr(charts, "memory", broken)
    page = Page(to_html(made))
    assert "Charts that could not be drawn are tables." in page.text
    shown = [chart for part in sections_of(made) for chart in part.charts]
    assert len(page.all("figure")) == len(shown) - 1
    assert page.text.count("Memory of a device, in GiB") == 1


@pytest.mark.parametrize(
    "name",
    [
        "</title><script>alert(1)</script>",
        "\"'><img src=x onerror=alert(1)>",
        "&lt;b&gt; </svg> ]]> <!--",
    ],
)
def test_names_stay_texts(name: str):
    text = to_html(named(name))
    page = Page(text)
    assert not page.all("script")
    assert not page.all("img")
    assert not page.all("b") or "<b>" not in name
    shown = draw.clean(name)
    assert " ".join(shown.split()) in page.text


def test_what_no_page_may_have_is_marked():
    assert draw.clean("a\ud800b\uffffc\x85\n") == "a\ufffdb\ufffdc\ufffd\n"
    assert draw.clean("ä 層 😀") == "ä 層 😀"
    assert draw.clean("x" * 4001) == "x" * 4000 + "… (1 more characters)"


def test_long_names_make_no_large_page():
    """Of 100,000 letters each: of layers, levels, the device, the problem."""
    assert len(to_html(named("long " * 20_000)).encode()) < 2_000_000


# Charts that need more than the example has


def on_many_devices() -> page_facts.Document:
    """Return the document of 2 of 32,768 devices in nodes of 8."""
    levels = problem().cluster.topology.levels
    sizes = (8, 4096)
    many = replace(
        problem().cluster,
        num_devices=8 * 4096,
        topology=replace(
            problem().cluster.topology,
            levels=tuple(
                replace(level, fan_out=size)
                for level, size in zip(levels, sizes, strict=True)
            ),
        ),
    )
    whole = replace(problem(), cluster=many)
    answer = Answer(plan(), score(whole, plan()), "x")
    return answer_document("report", whole, answer)


def test_borders_of_many_nodes_are_not_drawn_and_not_claimed(made: Any):
    found = on_many_devices()
    assert charts.bordered(found) == []
    assert charts.bordered(made) == [4]
    for document_, said in (
        (found, "Colors are strategies."),
        (made, "lines are borders between units of 4 devices."),
    ):
        (chart,) = (
            chart
            for part in sections_of(document_)
            for chart in part.charts
            if chart.name == "map"
        )
        assert chart.summary.endswith(said)


def test_units_of_a_large_level_are_one_bar():
    values = charts.levels(on_many_devices()["network"])["data"]["values"]
    assert [value["tip"].split(",")[1] for value in values] == [
        " 32768 units of 1",
        " 4096 units of 8",
        " devices 0–32767",
    ]


def test_dots_of_many_families_are_told_apart():
    """By color and shape; bars by color alone."""
    runs = [
        {
            **{"family": f"family {n}", "model": "m", "device": "d"},
            **{"num_devices": 8, "measured_s": 1.0 + n, "predicted_s": 1.0},
        }
        for n in range(20)
    ]
    _, dots = charts.scatter(runs)["layer"]
    color, shape = (dots["encoding"][channel] for channel in ("color", "shape"))
    assert color["scale"]["domain"] == shape["scale"]["domain"]
    pairs = zip(color["scale"]["range"], shape["scale"]["range"], strict=True)
    assert len(set(pairs)) == 20
    assert len({charts.color_of(n) for n in range(33)}) == 33
    assert [charts.color_of(n) for n in range(11)] == [*charts.COLORS]


def test_a_map_of_many_replicas_shows_the_first(
    made: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(charts, "MOST_RANGES", 4)
    ranges = [[i * 4, i * 4 + 2] for i in range(5)]
    blocks = [{**block, "ranges": ranges} for block in made["plan"]["blocks"]]
    many = {**made, "plan": {**made["plan"], "blocks": blocks, "replicas": 5}}
    spec, left_out = charts.device_map(many)
    assert left_out == (2, 5)
    values = spec["data"]["values"]
    assert [value["first"] for value in values] == [0, 4, 0, 4]
    assert spec["layer"][0]["encoding"]["x"]["scale"]["domain"] == [0, 6]


@needs_charts
def test_a_step_without_time_is_drawn():
    rows = [{"meaning": "computation", "name": "compute", "time_ns": 0}]
    spec = charts.terms(rows, TimeScale.fitting(None), 0)
    assert draw.picture(spec, "nothing").startswith("<svg")


@needs_charts
@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("import os; os.abort()", r"exit status -6"),
        ("import sys; sys.exit(3)", r"exit status 3"),
        # The first chart arrives, the second one only in part.
        (
            "print('null'); print('\"<svg', end='', flush=True); import os; os.abort()",
            r"exit status -6",
        ),
    ],
)
def test_a_page_is_without_charts_where_their_process_fails(
    made: Any,
    program: str,
    why: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
):
    monkeypatch.setattr(draw, "_DRAW", program)
    text = to_html(made)
    assert "Charts that could not be drawn are tables." in text
    said = capfd.readouterr().err
    assert re.fullmatch(rf"nest: note: .* are tables: .*{why}.*\n", said)


@needs_charts
def test_a_page_is_written_within_little_memory(tmp_path: Path):
    """V8 ends its process where it may not reserve what it wants."""
    code = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1_500_000 << 10,) * 2)\n"
        "from nest.cli.main import main\n"
        "main(['report', sys.argv[1], '--solver', 'dp', '-o', sys.argv[2]])\n"
    )
    path, problem_path = tmp_path / "page.html", tmp_path / "problem.json"
    problem_path.write_bytes(encode(tiny_problem()))
    done = subprocess.run(
        [sys.executable, "-c", code, str(problem_path), str(path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    notes = [x for x in done.stderr.splitlines() if "nest: note:" in x]
    assert len(notes) == 1
    assert "are tables" in notes[0]
    assert "<table" in path.read_text()
    assert "<svg" not in path.read_text()
    names = {one.name for one in tmp_path.iterdir()}
    assert names == {"page.html", "problem.json"}
