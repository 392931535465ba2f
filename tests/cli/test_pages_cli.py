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
from nest.search.staircase import Gap
from nest.solvers import registry
from nest.solvers.base import Limit, Status
from nest.solvers.result import Outcome
from nest.solvers.run import CellInterrupted, run_solver
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


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rows_of(page: Page, columns: int) -> dict[str, list[str]]:
    return {row[0]: row for row in page.rows if len(row) == columns}


def settings(place: Path) -> dict[str, list[str]]:
    """Return the values of every setting, who chose them, and the option."""
    page = Page((place / "page.html").read_text())
    return {name: row[1:] for name, row in rows_of(page, 4).items()}


def test_a_solver_that_crashes_costs_its_row_alone(
    cli: Cli, files: dict[str, str], place: Path
) -> None:
    arguments = ("compare", files["problem"], "--solvers", "loopback,brute")
    option = ("--option", "loopback.act=raise")
    assert cli(*arguments, *option, "--html", "page.html") == 1
    page = Page((place / "page.html").read_text())
    rows = rows_of(page, 8)
    assert rows["loopback"][1] == "ERROR"
    assert rows["brute"][1:4] == ["optimal", "90.0000 ns", "best"]
    assert "loopback failed; the rest stands." in page.text
    assert "Step time 90.0000 ns" in page.text
    assert "Plan of brute (optimal): 1 replica × 2 stages" in page.text
    assert "--option loopback.act=raise --html page.html" in page.text


def test_what_is_there_when_it_is_interrupted_is_a_page(
    cli: Cli, files: dict[str, str], place: Path
) -> None:
    """The first solver ends, the second is stopped, the third never begins."""

    def run(problem: Any, name: str, *rest: Any) -> Any:
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
        arguments = ("compare", files["problem"], "--solvers", "brute,dp,milp")
        written = ("--html", "page.html", "--csv", "cells.csv")
        assert cli(*arguments, *written) == 130
    assert "stopped before they began: milp" in cli.out
    _, *lines = (place / "cells.csv").read_text().splitlines()
    assert [line.split(",")[1] for line in lines] == ["brute", "dp"]
    page = Page((place / "page.html").read_text())
    rows = rows_of(page, 8)
    assert [rows[x][1] for x in ("brute", "dp", "milp")] == [
        "optimal",
        "interrupted",
        "not run",
    ]
    assert "The run was stopped: dp, milp did not finish." in page.text
    assert "Plan of brute (optimal)" in page.text


def test_solve_writes_the_same_figures_as_it_prints(
    cli: Cli, files: dict[str, str], place: Path
) -> None:
    arguments = ("solve", files["problem"], "--solver", "brute")
    price = ("--tokens", "2e3", "--price-usd-per-device-hour", "1.5")
    assert cli(*arguments, *price, "--html", "page.html") == 0
    text = (place / "page.html").read_text()
    assert "90.0000 ns" in cli.out
    page = Page(text)
    assert "Plan for tiny" in page.text
    assert "Step time 90.0000 ns proven: no plan is faster" in page.text
    # 3 dollars an hour for two devices.
    assert "Cost per step $7.5e-11 $3 per hour for all devices" in page.text


GPT2 = ("solve", "--solver", "megatron", "--model", "gpt2")
TO_PAGE = ("--html", "page.html")


def test_defaults_of_a_model_are_told_with_their_options(
    cli: Cli, place: Path
) -> None:
    model = ("--cluster", "h100x2", "--tp", "1,2", "--pin", "pp=1")
    assert cli(*GPT2, *model, *TO_PAGE) == 0
    rows = settings(place)
    assert "order of the devices" not in rows
    for name, *row in (
        ("tensor parallel degree", "1, 2", "as asked", ""),
        ("pipeline stages", "1", "as asked", ""),
        ("ZeRO stage", "0, 1, 2, 3", "default", "--zero"),
        ("data parallel degree", "every number", "default", "--pin dp="),
        ("framework", "any", "default", "--target"),
        ("memory to leave free", "none", "default", "--headroom"),
        ("layers that are not cut apart", "1", "default", "--layers-per-node"),
        ("gradients", "2 bytes per weight", "default", "--gradients"),
    ):
        assert rows[name] == row


def test_what_was_chosen_is_no_default(cli: Cli, place: Path) -> None:
    """Every option beside the model that says what plans may be."""
    chosen = {
        "framework": ("--target", "any"),
        "memory to leave free": ("--headroom", "8GB"),
        "layers that are not cut apart": ("--layers-per-node", "2"),
        "gradients": ("--gradients", "fp32"),
        "order of the devices": ("--topology", "ring:4", "--order", "auto"),
        "ZeRO stage": ("--forbid", "zero=3"),
        "pipeline replicas": ("--forbid", "r=4"),
        "samples per micro-batch": ("--pin", "b=1|2"),
        "a strategy for every": ("--granularity", "stage"),
        "data type": ("--dtype", "fp16"),
    }
    options = [word for words in chosen.values() for word in words]
    assert cli(*GPT2, "--cluster", "h100x4", *options, *TO_PAGE) == 0
    rows = settings(place)
    for name in chosen:
        assert rows[name][1:] == ["as asked", ""], name
    assert rows["memory to leave free"][0] == "8GB"
    assert rows["order of the devices"][0] == "auto"
    assert rows["recomputation"][1:] == ["default", "--recompute"]


@pytest.mark.parametrize(
    ("target", "options", "expected"),
    [
        (
            # It has no selective recomputation, and no such split of SP.
            "deepspeed",
            ("--sequence-parallel", "on,off"),
            {
                "recomputation": ("the target", "none, full"),
                "sequence parallelism": ("the target", "off"),
                "ZeRO stage": ("default", "--zero"),
                "pipeline stages": ("as asked", ""),
                "optimiser": ("default", "--optimizer"),
            },
        ),
        (
            # It keeps gradients in 4 bytes.
            "torchtitan",
            (),
            {
                "gradients": ("the target", "4 bytes per weight"),
                "framework": ("as asked", ""),
            },
        ),
        (
            "torchtitan",
            ("--gradients", "fp32"),
            {
                "optimiser": ("default", "--optimizer"),
                "gradients": ("as asked", ""),
            },
        ),
    ],
)
def test_what_a_target_chose_is_told(
    cli: Cli, place: Path, target: str, options: Any, expected: Any
) -> None:
    model = ("--cluster", "h100x2", "--pin", "pp=1", "--target", target)
    assert cli(*GPT2, *model, *options, *TO_PAGE) == 0
    rows = settings(place)
    for name, (who, text) in expected.items():
        values, chooser, option = rows[name]
        assert chooser == who, name
        if who == "the target":
            assert (values, option) == (text, f"--target {target}")
        else:
            assert option == text


def test_what_a_target_chose_of_a_file_is_told(cli: Cli, place: Path) -> None:
    """Who chose the rest is not known; without a target nothing is said."""
    arguments = ("solve", "llama2-7b-8", "--solver", "megatron", *TO_PAGE)
    assert cli(*arguments, "--target", "torchtitan") == 0
    rows = settings(place)
    assert rows["gradients"][1:] == ["the target", "--target torchtitan"]
    assert rows["recomputation"][1:] == ["the problem", ""]
    assert cli(*arguments) == 0
    rows = settings(place)
    assert rows["gradients"][1:] == ["the problem", ""]
    assert rows["framework"] == ["any", "default", "--target"]
    assert cli(*arguments, "--pin", "zero=1") == 0
    assert settings(place)["ZeRO stage"] == ["1", "as asked", ""]


@pytest.mark.parametrize("command", ["solve", "compare"])
def test_where_a_page_cannot_go(
    cli: Cli, files: dict[str, str], place: Path, command: str
) -> None:
    solver = ("--solver", "brute")
    arguments = (command, files["problem"], *solver * (command == "solve"))
    for option, value, message in (
        ("--html", "-", "--html: expected a file, got '-'; name one"),
        ("--html", "no/page.html", "--html no/page.html: expected a writable"),
        (
            "--html",
            files["problem"],
            "--html: expected another file than for PROBLEM",
        ),
        ("--tokens", "-3", "--tokens: expected a number > 0, got '-3'"),
        ("--tokens", "1e12", "--tokens: expected --html too, whose page show"),
        (
            "--price-usd-per-device-hour",
            "2",
            "--price-usd-per-device-hour: expected --html too",
        ),
    ):
        assert cli.refuses(*arguments, option, value).startswith(message)


def test_a_benchmark_has_no_run_to_price(
    cli: Cli, files: dict[str, str], place: Path
) -> None:
    arguments = ("compare", files["problem"], "--html", "page.html")
    text = cli.refuses(*arguments, "--tokens", "1e9", "--resume", "kept")
    assert text.startswith("--tokens: expected one PROBLEM without --resume")
    assert text.endswith("got --resume; leave it out")


def test_a_page_without_a_plan_says_why_and_what_would_do(
    cli: Cli, files: dict[str, str], place: Path
) -> None:
    problem = read_problem(files["problem"])
    write(files["problem"], with_memory(problem, 1))
    for command, *solver in (("solve", "--solver", "brute"), ("pareto",)):
        words = (command, files["problem"], *solver, "--html", "page.html")
        assert cli(*words) == 0
        page = Page((place / "page.html").read_text())
        assert "There is no plan that fits: this is proven." in page.text
        assert "why: memory is short by" in page.text


# nest report


def test_a_report_of_plans_shows_the_fastest_that_fits(
    cli: Cli, files: dict[str, str], place: Path
) -> None:
    """The plan with one stage is too big for a device."""
    arguments = ("report", files["problem"], files["big"], files["plan"])
    assert cli(*arguments, "-o", "page.html", "--json", "-") == 1
    assert cli.err == "report: page.html\n"
    text = (place / "page.html").read_text()
    document = json.loads(cli.out)
    assert document["schema"] == "nest-page/1"
    assert document["answer"]["step_time_ns"] == GOOD_NS
    assert to_html(document) == text
    page = Page(text)
    assert "not proven: no lower bound is known" in page.text
    rows = rows_of(page, 5)
    assert rows[files["plan"]][1:4] == ["fits", "90.0000 ns", "best"]
    assert rows[files["big"]][1:3] == ["over memory", ""]
    assert "too much" in rows[files["big"]][4]
    assert f"Plan of {files['plan']}: 1 replica × 2 stages" in page.text


def test_a_report_goes_where_html_says(
    cli: Cli, files: dict[str, str], place: Path
) -> None:
    """As every other page does; -o is the same."""
    arguments = ("report", files["problem"], files["plan"])
    for words in (("--html", "a.html"), ("-o", "a.html", "--html", "a.html")):
        assert cli(*arguments, *words) == 0
        assert cli.out == "report: a.html\n"
        assert "Report on tiny" in (place / "a.html").read_text()
        (place / "a.html").unlink()
    assert not (place / "report.html").exists()
    said = cli.refuses(*arguments, "-o", "a.html", "--html", "b.html")
    assert said == (
        "--html: expected the page that -o names, a.html, got b.html; pass "
        "one of the two"
    )
    assert not list(place.glob("?.html"))


def test_a_report_takes_plans_by_their_settings(
    cli: Cli, files: dict[str, str], place: Path
) -> None:
    for words in (("pp=2",), ("--plan", "pp=2")):
        assert cli("report", files["problem"], *words) == 0
        assert "nest: PLAN is the fastest with pp=2: " in cli.err
        page = Page((place / "report.html").read_text())
        assert "Plan of pp=2: 1 replica × 2 stages" in page.text


def test_a_report_of_a_plan_that_does_not_fit_says_so(
    cli: Cli, files: dict[str, str], place: Path
) -> None:
    assert cli("report", files["problem"], files["big"]) == 1
    page = Page((place / "report.html").read_text())
    assert "The plan does not fit: stage 1: expected at most 100" in page.text
    assert "Memory short by" in page.text


def test_a_report_without_a_plan_finds_one(
    cli: Cli, files: dict[str, str], place: Path
) -> None:
    arguments = ("report", files["problem"], "--solver", "brute")
    assert cli(*arguments) == 0
    assert cli.out == "report: report.html\n"
    page = Page((place / "report.html").read_text())
    assert "Report on tiny" in page.text
    assert "Plan of brute (optimal): 1 replica × 2 stages" in page.text
    option = "loopback"
    with mock.patch(
        "nest.solvers.run.run_cells", side_effect=KeyboardInterrupt
    ):
        arguments = ("report", files["problem"], "--solver", option)
        assert cli(*arguments, "-o", "stopped.html") == 130
    page = Page((place / "stopped.html").read_text())
    assert "The run was stopped: loopback did not finish." in page.text


@pytest.mark.parametrize("command", ["solve", "compare", "report"])
def test_a_page_says_why_nothing_fits(
    cli: Cli, place: Path, command: str
) -> None:
    write("tight.json", tiny_problem(memory_bytes=30))
    option = "--solvers" if command == "compare" else "--solver"
    arguments = (command, "tight.json", option, "brute")
    assert cli(*arguments, "--html", "page.html") == 0
    page = Page((place / "page.html").read_text())
    assert "There is no plan that fits: this is proven." in page.text
    assert "why: " in page.text
    assert "would do: " in page.text
    for line in cli.out.splitlines():
        if line.startswith(("why: ", "would do: ")):
            assert line in page.text


def test_a_frontier_without_points_says_why(cli: Cli, place: Path) -> None:
    write("tight.json", tiny_problem(memory_bytes=30))
    assert cli("pareto", "tight.json", "--html", "page.html") == 0
    page = Page((place / "page.html").read_text())
    assert "Proven: no plan fits." in page.text
    assert "why: " in page.text
    assert "Plans that no other beats" not in page.text


def test_a_page_has_one_bound_of_a_frontier(cli: Cli, place: Path) -> None:
    """The fastest plan takes 90 ns; of the gap 70 ns are known."""
    write("small.json", small())
    arguments = ("pareto", "small.json", "--html", "page.html")
    for bound, card, text in (
        (70, "no plan is below 70 ns", "a step takes at least 70.0000 ns"),
        (0, "no lower bound is known", "nothing is known of the step time"),
    ):

        def stopped(*given: Any, bound: int = bound, **settings: Any) -> Any:
            found = frontier(*given, **settings)
            gap = Gap(10, 20, bound)
            curve = dataclasses.replace(found.curves[0], gaps=(gap,))
            raise Interrupted(dataclasses.replace(found, curves=(curve,)))

        with mock.patch("nest.analysis.pareto.frontier", stopped):
            assert cli(*arguments) == 130
        page = Page((place / "page.html").read_text())
        assert card in page.text
        assert text in page.text


def test_what_a_report_refuses(
    cli: Cli, files: dict[str, str], place: Path
) -> None:
    text = cli.refuses("report")
    assert text.startswith("nest report: expected PROBLEM, got none")
    text = cli.refuses("report", files["problem"], files["foreign"])
    assert text.startswith(f"{files['foreign']}: stage 2: expected")
    text = cli.refuses("report", files["problem"], "-o", "-")
    assert text.startswith("-o: expected a file, got '-'; name one")
    text = cli.refuses("report", files["problem"], "-o", files["problem"])
    assert text.startswith("-o: expected another file than for PROBLEM")
    text = cli.refuses("report", files["problem"], "--html", "-")
    assert text.startswith("--html: expected a file, got '-'; name one")
    text = cli.refuses("report", files["problem"], "--html", files["problem"])
    assert text.startswith("--html: expected another file than for PROBLEM")
    assert not (place / "report.html").exists()


# nest pareto


def test_a_frontier_as_a_page(cli: Cli, place: Path) -> None:
    """Two devices, 90 ns, 0.001 $ per ns: 0.18 $, a thousand times."""
    write("small.json", small())
    arguments = ("pareto", "small.json", "--steps", "1000")
    price = ("--price-usd-per-device-hour", str(PRICE))
    assert cli(*arguments, *price, "--html", "page.html") == 0
    page = Page((place / "page.html").read_text())
    assert "Frontier of" in page.text
    rows = rows_of(page, 8)
    assert [(number, row[1]) for number, row in [*rows.items()][1:]] == [
        ("1", "120.0000 ns"),
        ("2 (knee)", "110.0000 ns"),
        ("3", "90.0000 ns"),
    ]
    assert "Point 2 is the knee: it is farthest from" in page.text
    assert rows["3"][4:7] == ["0.18", "180", "yes"]
    assert "Plan of point 3 (the fastest of the frontier)" in page.text
    assert "Step time 90.0000 ns proven: no plan is faster" in page.text
    assert "Proven: every plan is matched or beaten by one" in page.text
    text = cli.refuses(*arguments, *price, "--html", "-")
    assert text.startswith("--html: expected a file, got '-'")
