"""Short texts, tables and data frames of records."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import nest
from nest.analysis.compare import Comparison
from nest.analysis.explain import explain
from nest.analysis.fit import Fit, StepTimeLimit
from nest.analysis.pareto import Curve, Frontier, FrontierPoint
from nest.cost.score import score
from nest.errors import InvalidPlanError, NestError, UnknownNameError
from nest.ir.views import MOST_ROWS, Tabular, html_table
from nest.simulation.events import Simulation
from nest.solvers.base import Status
from nest.solvers.result import Outcome, SolveResult
from nest.units import GIB
from tests.builders import SINGLE, make_cost, make_plan, make_problem

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PROBLEM = make_problem(
    {"a": make_cost(10, 20, kept_bytes=7), "b": make_cost(30, 40)},
    edges=(("a", "b", 0),),
    devices=2,
    global_batch=2,
)
PLAN = make_plan(("a", SINGLE), ("b", SINGLE))
SCORE = score(PROBLEM, PLAN)


def result(solver: str, *, solved: bool = True) -> SolveResult:
    return SolveResult(
        solver=solver,
        exact=False,
        outcome=Outcome.SOLVED if solved else Outcome.SKIPPED,
        status=Status.FEASIBLE if solved else None,
        plan=PLAN if solved else None,
        score=SCORE if solved else None,
        detail="" if solved else "cannot",
        problem_hash="",
        quantum_ps=1000,
    )


POINT = FrontierPoint(2, SCORE.step_quanta, 7, PLAN, SCORE)
FRONTIER = Frontier(PROBLEM, ("time",), (Curve(2, PROBLEM, (POINT,)),), (POINT,), 3.6)
COMPARISON = Comparison(PROBLEM, (result("one"), result("two", solved=False)))
RECORDS: list[Tabular] = [
    PROBLEM,
    PLAN,
    SCORE,
    result("one"),
    COMPARISON,
    FRONTIER,
    Fit("devices", StepTimeLimit(200, "a step within 1 s"), (), None, True),
    explain(PROBLEM, PLAN, search=False),
    Simulation(PROBLEM, PLAN),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda x: type(x).__name__)
def test_records_are_short_and_have_tables(record: Tabular) -> None:
    text = repr(record)
    assert len(text) < 200
    assert "\n" not in text
    assert text.startswith(f"<{type(record).__name__}")
    html = record._repr_html_()
    assert html.startswith(f"<table><caption>&lt;{type(record).__name__}")
    names = {name for row in record.to_rows() for name in row}
    assert all(f"<th>{name}</th>" in html for name in names)
    frame = pytest.importorskip("pandas").DataFrame
    found = record.to_pandas()
    assert isinstance(found, frame)
    assert set(found.columns) == names
    assert len(found) == len(record.to_rows())


def test_a_large_problem_is_short_too() -> None:
    problem = nest.load_problem("gpt3-175b-256")
    for record in (problem, problem.graph, problem.cluster):
        assert len(repr(record)) < 200


def test_rows_of_a_plan_and_its_score() -> None:
    """The first stage takes 30 ns and keeps two micro-batches."""
    first, second = result("one").to_rows()
    assert (first["stage"], first["first_layer"], first["devices"]) == (1, "a", 1)
    assert (first["forward_ns"], first["backward_ns"]) == (10, 20)
    assert first["kept_bytes"] == 14
    assert (second["first_device"], second["forward_ns"]) == (1, 30)
    (row,) = result("one", solved=False).to_rows()
    assert row == {"status": "skipped", "reason": "cannot"}
    none = replace(
        result("one", solved=False),
        outcome=Outcome.SOLVED,
        status=Status.INFEASIBLE,
        exact=True,
        detail="",
    )
    assert "proven: no plan fits; nest.analysis.feasible" in none._repr_html_()


def test_rows_of_a_comparison() -> None:
    first, second = COMPARISON.to_rows()
    assert first["longer_than_best"] == 0
    assert first["step_time_ns"] == SCORE.step_time_ns
    assert second["detail"] == "cannot"
    assert second["longer_than_best"] is None
    assert COMPARISON["one"] is COMPARISON[0] is COMPARISON.best
    assert [x.solver for x in COMPARISON] == ["one", "two"]
    assert len(COMPARISON) == 2
    with pytest.raises(UnknownNameError, match=r"got 'twos'; did you mean"):
        COMPARISON["twos"]
    assert Comparison(PROBLEM, (result("x", solved=False),)).best is None


def test_rows_of_a_frontier() -> None:
    """A device costs 3.6 $ an hour, a thousandth of a $ a second."""
    (row,) = FRONTIER.to_rows()
    assert row["step_time_ns"] == SCORE.step_time_ns
    assert row["step_usd"] == pytest.approx(2e-12 * SCORE.step_time_ns)


def test_tables_are_escaped_and_cut() -> None:
    rows = [{"<b>": "a & b"}] * (MOST_ROWS + 2)
    html = html_table("<i>", rows)
    assert "<caption>&lt;i&gt;</caption>" in html
    assert "<th>&lt;b&gt;</th>" in html
    assert html.count("<td>a &amp; b</td>") == MOST_ROWS
    assert '<td colspan="1">2 more rows</td>' in html


def test_without_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(NestError, match="expected pandas to be installed"):
        PLAN.to_pandas()


# Pictures


@pytest.fixture
def axes() -> Axes:
    figure = pytest.importorskip("matplotlib.figure").Figure()
    return figure.add_subplot()


def test_the_timeline_has_every_pass(axes: Axes) -> None:
    """Two forward and two backward passes on each of two blocks."""
    found = replace(result("one"), problem=PROBLEM)
    assert found.plot_timeline(axes) is axes
    spans = [len(bars.get_paths()) for bars in axes.collections]
    assert sum(spans) == 8
    assert axes.get_xlabel() == "time (ns)"
    texts = [text.get_text() for text in axes.get_legend().get_texts()]
    assert texts == ["forward", "backward"]


def test_memory_has_its_parts_and_the_limit(axes: Axes) -> None:
    """What is kept on the first stage: 14 bytes; nothing else anywhere."""
    replace(result("one"), problem=PROBLEM).plot_memory(axes)
    assert [bar.get_height() * GIB for bar in axes.patches] == [14, 0]
    (line,) = axes.lines
    assert line.get_ydata()[0] * GIB == 10**9


def test_comparisons_and_frontiers_are_drawn(axes: Axes) -> None:
    COMPARISON.plot(axes)
    widths = [bar.get_width() for bar in axes.patches]
    assert widths == [SCORE.step_time_ns, 0]
    (reason,) = [text.get_text() for text in axes.texts]
    assert reason == " no plan: skipped"
    assert not any(bar.get_hatch() for bar in axes.patches)
    assert axes.get_xlim()[0] == 0
    assert axes.get_title() == PROBLEM.name
    axes.clear()
    FRONTIER.plot(axes)
    assert axes.get_xlabel() == "memory of the fullest device (GiB)"


def test_a_plan_over_memory_is_hatched_and_has_its_step_time(axes: Axes) -> None:
    """The legend stands right of the axes, where no bar is."""
    over = replace(
        result("one"),
        status=Status.OVER_MEMORY,
        score=replace(SCORE, violations=("stage 1 is too large",)),
        over_memory_bytes=1,
    )
    Comparison(PROBLEM, (over,)).plot(axes)
    (bar,) = axes.patches
    assert bar.get_width() == SCORE.step_time_ns
    assert bar.get_hatch() == "//"
    assert not axes.texts
    legend = axes.get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["over memory"]
    axes.figure.canvas.draw()
    assert legend.get_window_extent().x0 >= axes.get_window_extent().x1


def test_new_axes_are_those_of_pyplot() -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    drawn = Simulation(PROBLEM, PLAN).plot_timeline()
    assert pyplot.gcf() is drawn.figure
    pyplot.close("all")


def test_a_file_is_no_axes() -> None:
    with pytest.raises(
        NestError,
        match=r"^axes: expected axes of matplotlib, got 'a.pdf'; to write a "
        r"file, call .figure.savefig\(FILE\) on what the plot returns$",
    ):
        COMPARISON.plot("a.pdf")  # type: ignore[arg-type]


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(NestError, match="expected matplotlib to be inst"):
        COMPARISON.plot()


def test_without_a_plan_there_is_no_timeline() -> None:
    with pytest.raises(InvalidPlanError, match="got one without a plan"):
        result("one", solved=False).plot_timeline()
    with pytest.raises(InvalidPlanError, match="got one without a problem"):
        result("one").plot_memory()
