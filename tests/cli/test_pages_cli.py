"""``--html`` and ``nest report``: pages of what commands found."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from nest.analysis.fit import with_memory
from nest.analysis.pareto import frontier
from nest.ir import read_problem, write
from nest.present.pages import draw
from nest.present.pages.html import to_html
from nest.search.frontier.staircase import Gap
from nest.solvers import registry
from nest.solvers.base import Limit, Status
from nest.solvers.result import Outcome
from nest.solvers.run import CellInterrupted, run_solver
from nest.uncertainty.headroom import DEFAULT_HEADROOM
from nest.util.interrupts import Interrupted
from tests.cli.conftest import Cli
from tests.loopback import GOOD_NS, TARGET, tiny_problem
from tests.pages import Page
from tests.unit.analysis.test_pareto import PRICE, small


@pytest.fixture(autouse=True)
def loopback() -> Iterator[None]:
    registry.register_solver("loopback", TARGET)
    yield
    registry.unregister_solver("loopback")


@pytest.fixture(autouse=True)
def tables_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw nothing: charts have tests of their own."""
    monkeypatch.setattr(draw, "find_spec", lambda _: None)


pytestmark = pytest.mark.usefixtures("files")


def page_of(path: str = "page.html") -> Page:
    return Page(Path(path).read_text())


def rows_of(page: Page, columns: int) -> dict[str, list[str]]:
    return {row[0]: row for row in page.rows if len(row) == columns}


def test_a_solver_that_crashes_costs_its_row_alone(cli: Cli) -> None:
    arguments = "compare problem.json --solvers loopback,brute"
    assert cli(f"{arguments} --option loopback.act=raise --html page.html") == 1
    page = page_of()
    rows = rows_of(page, 8)
    assert rows["loopback"][5] == "ERROR"
    assert rows["brute"][3:6] == ["90.0000", "fastest", "optimal"]
    assert "loopback failed; the rest stands." in page.text
    assert "step time 90.0000 ns" in page.text
    assert "proof optimal among 1F1B plans without overlap; brute" in page.text
    assert "--option loopback.act=raise --html page.html" in page.text


def test_what_is_there_when_it_is_interrupted_is_a_page(cli: Cli) -> None:
    """The first solver ends, the second is stopped, the third never begins."""

    def run(problem: Any, name: str, *rest: Any, alone: bool) -> Any:
        assert not alone
        result = run_solver(problem, "brute", *rest)
        if name == "brute":
            return result
        raise CellInterrupted(
            dataclasses.replace(
                result,
                solver=name,
                outcome=Outcome.INTERRUPTED,
                status=Status.NO_SOLUTION,
                limit=Limit.INTERRUPT,
                plan=None,
                score=None,
                lower_bound_quanta=None,
                detail="interrupted by the user",
            )
        )

    with mock.patch("nest.analysis.compare.run_solver", run):
        arguments = "compare problem.json --solvers brute,dp,milp"
        assert cli(f"{arguments} --html page.html --csv cells.csv") == 130
    assert "stopped before they began: milp" in cli.out
    _, *lines = Path("cells.csv").read_text().splitlines()
    assert [line.split(",")[1] for line in lines] == ["brute", "dp"]
    page = page_of()
    rows = rows_of(page, 8)
    assert [rows[x][5] for x in ("brute", "dp", "milp")] == [
        "optimal",
        "interrupted",
        "not run",
    ]
    assert "The run was stopped: dp, milp did not finish." in page.text
    assert "overlap; brute, " in page.text


def test_solve_writes_the_same_figures_as_it_prints(cli: Cli) -> None:
    arguments = "solve problem.json --solver brute"
    cli.succeeds(f"{arguments} --tokens 2e3 --price 1.5 --html page.html")
    text = Path("page.html").read_text()
    assert "90.0000 ns" in cli.out
    page = Page(text)
    assert "Plan for tiny" in page.text
    # 3 dollars an hour for two devices.
    assert "fits: yes = " not in page.text  # nothing is known of errors
    assert "or no seconds 7.5e-11 USD per step" in page.text
    # Every row is the same, and where it stands.
    labels = [x.partition(" ")[0] for x in cli.out.splitlines() if x[:1] != " "]
    assert labels[1:] == ["fits", "step", "speed", "run", "plan", "proof"]
    shown = page.text[page.text.index("The answer fits") :]
    places = [shown.index(f" {label} ") for label in labels[1:]]
    assert places == sorted(places)


def test_defaults_of_a_model_are_told_with_their_options(cli: Cli) -> None:
    model = "--model gpt2 --cluster h100x2 --tp 1,2"
    cli.succeeds(f"solve --solver megatron {model} --pin pp=1 --html page.html")
    rows = rows_of(page_of(), 4)
    assert rows["tensor parallel degree"][1:] == ["1, 2", "as asked", ""]
    assert rows["pipeline stages"][1:] == ["1", "as asked", ""]
    assert rows["ZeRO stage"][2:] == ["default", "--zero"]
    assert rows["data parallel degree"][2:] == ["default", "--pin dp="]
    assert rows["framework"][1:] == ["any", "default", "--target"]
    assert rows["memory to leave free"][1:] == [
        DEFAULT_HEADROOM,
        "default",
        "--headroom",
    ]
    assert rows["layers that are not cut apart"][1:] == [
        *("1", "default", "--layers-per-node")
    ]
    assert rows["gradients"][1:] == [*("2 bytes per weight", "default", "--gradients")]
    assert "order of the devices" not in rows


def test_what_was_chosen_is_no_default(cli: Cli) -> None:
    """Every option beside the model that says what plans may be."""
    chosen = {
        "framework": "--target any",
        "memory to leave free": "--headroom 8GB",
        "layers that are not cut apart": "--layers-per-node 2",
        "gradients": "--gradients fp32",
        "order of the devices": "--topology ring:4 --order auto",
        "ZeRO stage": "--forbid zero=3",
        "pipeline replicas": "--forbid r=4",
        "samples per micro-batch": "--pin b=1|2",
        "a strategy for every": "--granularity stage",
        "data type": "--dtype fp16",
    }
    solve = "solve --solver megatron --model gpt2 --cluster h100x4"
    cli.succeeds(f"{solve} {' '.join(chosen.values())} --html page.html")
    rows = rows_of(page_of(), 4)
    for name in chosen:
        assert rows[name][2:] == ["as asked", ""], name
    assert rows["memory to leave free"][1] == "8GB"
    assert rows["order of the devices"][1] == "auto"
    assert rows["recomputation"][2:] == ["default", "--recompute"]


def test_what_a_target_chose_is_told(cli: Cli) -> None:
    """DeepSpeed has no selective recomputation, and no such split of SP.

    torchtitan keeps gradients in 4 bytes.
    """
    solve = (
        "solve --solver megatron --model gpt2 --cluster h100x2 --pin pp=1 "
        "--html page.html"
    )
    cli.succeeds(f"{solve} --target deepspeed --sequence-parallel on,off")
    rows = rows_of(page_of(), 4)
    chosen = ["the target", "--target deepspeed"]
    assert rows["recomputation"][1:] == ["none, full", *chosen]
    assert rows["sequence parallelism"][1:] == ["off", *chosen]
    assert rows["ZeRO stage"][2:] == ["default", "--zero"]
    assert rows["pipeline stages"][2:] == ["as asked", ""]
    assert rows["optimizer"][2:] == ["default", "--optimizer"]
    cli.succeeds(f"{solve} --target torchtitan")
    rows = rows_of(page_of(), 4)
    assert rows["gradients"][2:] == ["the target", "--target torchtitan"]
    assert rows["framework"][1:] == ["torchtitan", "as asked", ""]
    cli.succeeds(f"{solve} --target torchtitan --gradients fp32")
    rows = rows_of(page_of(), 4)
    assert rows["optimizer"][2:] == ["default", "--optimizer"]
    assert rows["gradients"][2:] == ["as asked", ""]


def test_what_a_target_chose_of_a_file_is_told(cli: Cli) -> None:
    """Who chose the rest is not known; without a target nothing is said."""
    arguments = "solve llama2-7b-8 --solver megatron"
    page = "--html page.html"
    cli.succeeds(f"{arguments} --target torchtitan {page}")
    rows = rows_of(page_of(), 4)
    assert rows["gradients"][2:] == ["the target", "--target torchtitan"]
    assert rows["recomputation"][2:] == ["the problem", ""]
    cli.succeeds(f"{arguments} {page}")
    rows = rows_of(page_of(), 4)
    assert rows["gradients"][2:] == ["the problem", ""]
    assert rows["framework"][1:] == ["any", "default", "--target"]
    cli.succeeds(f"{arguments} {page} --pin zero=1")
    rows = rows_of(page_of(), 4)
    assert rows["ZeRO stage"][1:] == ["1", "as asked", ""]


def test_a_page_without_a_plan_says_why_and_what_would_do(cli: Cli) -> None:
    write("problem.json", with_memory(read_problem("problem.json"), 1))
    for command in ("solve --solver brute", "pareto"):
        cli.succeeds(f"{command} problem.json --html page.html")
        page = page_of()
        assert "There is no plan that fits: this is proven." in page.text
        assert "why: memory is short by" in page.text


# nest report


def test_a_report_of_plans_shows_the_fastest_that_fits(cli: Cli) -> None:
    """The plan with one stage is too big for a device."""
    assert cli("report problem.json big.json plan.json -o page.html --json -") == 1
    assert cli.err.endswith("\nreport: page.html\n")
    assert "\nfits " in cli.err
    text = Path("page.html").read_text()
    document = json.loads(cli.out)
    assert document["schema"] == "nest-page/1"
    assert document["answer"]["step_time_ns"] == GOOD_NS
    assert to_html(document) == text
    page = Page(text)
    assert "proof nothing proven: no lower bound is known" in page.text
    rows = rows_of(page, 6)
    assert rows["plan.json"][3:5] == ["90.0000", "fastest"]
    assert rows["big.json"][1] == "no"
    assert rows["big.json"][4] == "–"
    assert "more than a plan may use" in rows["big.json"][5]
    assert "; plan.json" in page.text


def test_a_report_goes_where_html_says(cli: Cli) -> None:
    """As every other page does; -o is the same."""
    for options in ("--html a.html", "-o a.html --html a.html"):
        cli.succeeds(f"report problem.json plan.json {options}")
        assert cli.out.endswith("\nreport: a.html\n")
        assert "Report on tiny" in Path("a.html").read_text()
        Path("a.html").unlink()
    assert not Path("report.html").exists()


def test_a_report_takes_plans_by_their_settings(cli: Cli) -> None:
    for plan in ("pp=2", "--plan pp=2"):
        cli.succeeds(f"report problem.json {plan}")
        assert "nest: PLAN is the fastest with pp=2: " in cli.err
        page = page_of("report.html")
        assert "is known; pp=2" in page.text
        assert "plan TP 1 PP 2 DP 1" in page.text


def test_a_report_of_a_plan_that_does_not_fit_says_so(cli: Cli) -> None:
    assert cli("report problem.json big.json") == 1
    page = page_of("report.html")
    assert "The plan does not fit: stage 1: expected at most 100" in page.text
    assert "fits no 1" in page.text
    assert "too much" in page.text


def test_a_report_without_a_plan_finds_one(cli: Cli) -> None:
    arguments = "report problem.json --solver brute"
    cli.succeeds(arguments)
    assert cli.out.endswith("\nreport: report.html\n")
    assert "\nproof " in cli.out
    page = page_of("report.html")
    assert "Report on tiny" in page.text
    assert "overlap; brute, " in page.text
    with mock.patch("nest.solvers.run.run_cells", side_effect=KeyboardInterrupt):
        arguments = "report problem.json --solver loopback"
        assert cli(f"{arguments} -o stopped.html") == 130
    page = page_of("stopped.html")
    assert "The run was stopped: loopback did not finish." in page.text


@pytest.mark.parametrize("command", ["solve", "compare", "report"])
def test_a_page_says_why_nothing_fits(cli: Cli, command: str) -> None:
    write("tight.json", tiny_problem(memory_bytes=30))
    option = "--solvers" if command == "compare" else "--solver"
    cli.succeeds(f"{command} tight.json {option} brute --html page.html")
    page = page_of()
    assert "There is no plan that fits: this is proven." in page.text
    assert "why: " in page.text
    assert "would do: " in page.text
    for line in cli.out.splitlines():
        if line.startswith(("why: ", "would do: ")):
            assert line in page.text


def test_a_frontier_without_points_says_why(cli: Cli) -> None:
    write("tight.json", tiny_problem(memory_bytes=30))
    cli.succeeds("pareto tight.json --html page.html")
    page = page_of()
    assert "proven of 1F1B plans without overlap: there is none" in page.text
    assert "why: " in page.text
    assert "Plans that no other beats" not in page.text


def test_a_page_has_one_bound_of_a_frontier(cli: Cli) -> None:
    """The fastest plan takes 90 ns; of the gap 70 ns are known."""
    write("small.json", small())
    for bound, card, text in (
        (70, "no plan is below 70 ns", "a step takes at least 70.0000 ns"),
        (0, "no lower bound is known", "nothing is known of the step time"),
    ):

        def stopped(*given: Any, bound: int = bound, **settings: Any) -> Any:
            found = frontier(*given, **settings)
            curve = dataclasses.replace(found.curves[0], gaps=(Gap(10, 20, bound),))
            raise Interrupted(dataclasses.replace(found, curves=(curve,)))

        with mock.patch("nest.analysis.pareto.frontier", stopped):
            assert cli("pareto small.json --html page.html") == 130
        page = page_of()
        assert card in page.text
        assert text in page.text


# nest pareto


def test_a_frontier_as_a_page(cli: Cli) -> None:
    """Two devices, 90 ns, 0.001 $ per ns: 0.18 $, a thousand times."""
    write("small.json", small())
    arguments = "pareto small.json --steps 1000"
    price = f"--price {PRICE}"
    cli.succeeds(f"{arguments} {price} --html page.html")
    page = page_of()
    assert "Frontier of" in page.text
    rows = rows_of(page, 12)
    assert [(number, row[2:4]) for number, row in [*rows.items()][1:]] == [
        ("3", ["90", "fastest"]),
        ("2 knee", ["110", "22.2"]),
        ("1", ["120", "33.3"]),
    ]
    assert "knee: point 2, the farthest from the extremes" in page.text
    assert rows["3"][4:6] == ["0.18", "180"]
    assert "proof optimal among 1F1B plans without overlap; point 3" in (page.text)
    assert "1F1B plans without overlap: each is matched or beaten" in page.text
    assert page.text.index("The frontier proven") < page.text.index("The answer fits")
    text = cli.refuses(f"{arguments} {price} --html -")
    assert text.startswith("--html: expected a file, got '-'")
