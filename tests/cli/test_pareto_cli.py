"""``nest pareto`` on the command line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from unittest import mock

import pytest
from msgspec import structs

from nest.analysis.pareto import frontier
from nest.ir import Problem, problem_hash, read_plan, read_problem, write
from tests.cli.conftest import Cli
from tests.unit.analysis.test_pareto import PRICE, small, with_device


@pytest.fixture
def problem(tmp_path: Path) -> str:
    path = str(tmp_path / "problem.json")
    write(path, small())
    return path


def rows(text: str) -> list[list[str]]:
    """Return the rows of the first table, split at runs of blanks."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("─")) + 1
    end = lines.index("", start)
    return [
        [cell.strip() for cell in line.split("  ") if cell.strip()]
        for line in lines[start:end]
    ]


def test_the_table_has_a_row_per_point(cli: Cli, problem: str) -> None:
    # Signs of life are for busy machines.
    assert cli("pareto", problem, "--quiet") == 0
    table = rows(cli.out)
    assert [row[:4] for row in table] == [
        ["1", "120.0000 ns", "8 bytes", "2"],
        ["2", "110.0000 ns", "10 bytes", "2"],
        ["3", "90.0000 ns", "20 bytes", "2"],
    ]
    assert table[1][4] == (
        "r=1, b=1, pp=2, strategies recompute-full | single"
    )
    assert "proven: every plan is matched or beaten by one of these" in cli.out
    assert f"hash {problem_hash(small())[:12]}" in cli.out
    assert "$/step" not in cli.out
    assert cli.err == ""


def test_the_points_that_bulge_most(cli: Cli, problem: str) -> None:
    """Numbers stay those of the whole frontier."""
    assert cli("pareto", problem, "--top", "1") == 0
    ((number, *_, bulge, plan),) = rows(cli.out)
    assert (number, bulge) == ("2", "0.167 knee")
    assert plan.startswith("r=1, b=1, pp=2")
    assert "proven: every plan is matched or beaten by one of" in cli.out
    assert cli("pareto", problem, "--top", "2") == 0
    assert [row[0] for row in rows(cli.out)] == ["1", "2"]
    assert cli.refuses("pareto", problem, "--top", "0").startswith("--top: ")


def test_prices_steps_and_sizes(cli: Cli, problem: str) -> None:
    """Two devices, 90 ns, 0.001 $ per ns: 0.18 $, a thousand times."""
    code = cli(
        *("pareto", problem, "--objectives", "time,cost"),
        *("--price-usd-per-device-hour", str(PRICE), "--steps", "1000"),
    )
    assert code == 0
    assert [row[1:6] for row in rows(cli.out)] == [
        ["120.0000 ns", "20 bytes", "1", "0.12", "120"],
        ["90.0000 ns", "20 bytes", "2", "0.18", "180"],
    ]
    assert "3.6e+09 $ per device and hour" in cli.out


def test_the_price_in_the_problem_is_enough(cli: Cli, tmp_path: Path) -> None:
    path = str(tmp_path / "priced.json")
    write(path, with_device(small(), price_usd_per_hour=PRICE))
    assert cli("pareto", path, "--objectives", "cost") == 0
    assert [row[1] for row in rows(cli.out)] == ["120.000 ns"]


def test_plans_can_be_scored(cli: Cli, problem: str, tmp_path: Path) -> None:
    """With the problem of their size, without a word about a foreign one."""
    folder = tmp_path / "plans"
    document = tmp_path / "pareto.json"
    code = cli(
        *("pareto", problem, "--objectives", "time,memory,devices"),
        *("--devices", "2,1", "--pin", "r=1", "--forbid", "zero=3"),
        *("-o", str(folder), "--json", str(document)),
    )
    assert code == 0
    assert "only plans under --pin r=1 --forbid zero=3" in cli.out
    assert sorted(path.name for path in folder.iterdir()) == [
        *(f"plan-{number}.json" for number in (1, 2, 3, 4, 5)),
        "problem-1-devices.json",
    ]
    one = folder / "problem-1-devices.json"
    assert read_problem(one) == structs.replace(
        small(), cluster=structs.replace(small().cluster, num_devices=1)
    )
    written = json.loads(document.read_text())
    assert written["restrictions"]["pin"] == {"r": [1]}
    for point in written["points"]:
        path = str(folder / f"plan-{point['number']}.json")
        whole = str(one) if point["num_devices"] == 1 else problem
        assert cli("score", whole, path, "--json", "-") == 0
        assert "warning" not in cli.err
        assert read_plan(path).problem_hash == problem_hash(
            read_problem(whole)
        )
        assert json.loads(cli.out)["step_time_ns"] == point["step_time_ns"]


def test_the_document_on_standard_output(cli: Cli, problem: str) -> None:
    assert cli("pareto", problem, "--granularity", "layer", "--json", "-") == 0
    document = json.loads(cli.out)
    assert document["schema"] == "nest-pareto/1"
    assert document["granularity"] == "layer"
    assert document["proven"] is True
    assert "step time" in cli.err


def test_other_solvers_prove_points(
    cli: Cli, problem: str, tmp_path: Path
) -> None:
    document = tmp_path / "pareto.json"
    code = cli(
        *("pareto", problem, "--prove", "cpsat", "--points", "1,3"),
        # One thread of CP-SAT takes the same way each time, however busy the
        # machine is.
        *("--workers", "1", "--json", str(document)),
    )
    assert code == 0
    assert "contradicts" not in cli.err
    assert "cpsat says" in cli.out
    assert "120.0000 ns (optimal)" in cli.out
    assert "infeasible" in cli.out
    written = json.loads(document.read_text())
    assert written["prover"] == "cpsat"
    first, third = written["proofs"]
    assert (first["number"], first["verdict"]) == (1, "proven")
    assert first["below"]["status"] == "infeasible"
    assert (third["number"], third["verdict"]) == (3, "proven")
    assert third["within"]["step_time_ns"] == 90
    assert third["below"]["step_time_ns"] == 110


def overlooking(problem: Problem, *arguments: object, **options: object):
    """Overlook the point of 10 bytes."""
    from dataclasses import replace

    found = frontier(problem, *arguments, **options)
    (curve,) = found.curves
    points = (curve.points[0], curve.points[2])
    return replace(
        found, points=points, curves=(replace(curve, points=points),)
    )


def test_a_contradiction_is_loud(cli: Cli, problem: str) -> None:
    with mock.patch("nest.analysis.pareto.frontier", overlooking):
        code = cli("pareto", problem, "--prove", "brute", "--points", "2")
    assert code == 1
    assert "contradiction" in cli.out
    assert cli.err == (
        "nest: solver 'brute' contradicts point 2: with 19 bytes a plan "
        "takes 110 quanta, the curve has 120; one of them has a bug, please "
        "report it\n"
    )


def test_a_search_that_lies_is_loud(cli: Cli, problem: str) -> None:
    from nest.search import tracer as tracing
    from nest.search.staircase import Point

    def search(*arguments: object) -> object:
        points, gaps = real(*arguments)
        return [Point(1, 8, points[0].plan)], gaps

    real = tracing.search
    with mock.patch.object(tracing, "search", search):
        assert cli("pareto", problem) == 1
    assert cli.out == ""
    assert cli.err.startswith(
        "nest: error: frontier of 2 devices: expected a feasible plan of 1 "
        "quanta with 8 bytes, "
    )


def test_what_is_not_proven_is_said(cli: Cli, problem: str) -> None:
    assert cli("pareto", problem, "--time-limit", "1e-9") == 0
    assert "no plan was found" in cli.out
    assert "not proven: 2 devices from 0 bytes to 100 bytes" in cli.out
    assert "proven: every plan" not in cli.out


def test_nothing_fits(cli: Cli, tmp_path: Path) -> None:
    path, plot = str(tmp_path / "tight.json"), tmp_path / "plans"
    write(path, with_device(small(), memory_bytes=7))
    assert cli("pareto", path, "-o", str(plot), "--prove", "cpsat") == 0
    assert cli.out.startswith("\nno plan fits\nproven: ")
    assert list(plot.iterdir()) == []


def test_all_that_a_job_allows_is_proven(cli: Cli, tmp_path: Path) -> None:
    path = str(tmp_path / "chunks.json")
    write(path, small(virtual_stages=(1, 2), overlap={"gradients": 0.5}))
    assert cli("pareto", path) == 0
    assert "proven: every plan" in cli.out
    assert len(rows(cli.out)) == 3


def test_a_plot(cli: Cli, problem: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "plot.svg"
    assert cli("pareto", problem, "--plot", str(path)) == 0
    assert "2 devices" in path.read_text()


def test_a_model_on_a_cluster(cli: Cli) -> None:
    code = cli(
        *("pareto", "--model", "gpt3-1.3b", "--cluster", "h100x2"),
        *("--layers-per-node", "8", "--micro-batches", "1,2", "--zero", "0,1"),
        *("--objectives", "time,memory,devices", "--json", "-"),
    )
    assert code == 0
    document = json.loads(cli.out)
    assert document["proven"]
    assert {c["num_devices"] for c in document["curves"]} == {1, 2}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (
            ("--objectives", "tiem"),
            "objective: expected one of cost, devices, memory, time; got "
            "'tiem'; did you mean 'time'?",
        ),
        (
            ("--objectives", "time,time"),
            "objective: expected each once, got 'time' twice; remove one",
        ),
        (
            ("--objectives", "cost"),
            "objective cost: expected a price per device, got none in "
            "$.cluster.device.price_usd_per_hour; pass "
            "--price-usd-per-device-hour",
        ),
        (
            ("--devices", "1,4"),
            "--devices: expected numbers from 1 to 2, the devices of the "
            "cluster, got 4; remove it",
        ),
        (
            ("--devices", "1,1"),
            "--devices: expected distinct integers >= 1 separated by commas, "
            "got '1,1'; for example 1,2",
        ),
        (
            ("--price-usd-per-device-hour", "0"),
            "--price-usd-per-device-hour: expected a finite number of "
            "dollars > 0, got '0'; for example 2.5",
        ),
        (
            ("--price-usd-per-device-hour", "free"),
            "--price-usd-per-device-hour: expected a finite number of "
            "dollars > 0, got 'free'; for example 2.5",
        ),
        (
            ("--steps", "10"),
            "--steps: expected a price per device and a step time in "
            "seconds, got none; pass --price-usd-per-device-hour, or leave "
            "out --steps",
        ),
        (
            ("--points", "1"),
            "--points: expected --prove too, got none; add it, or leave out "
            "--points",
        ),
        (
            ("--prove", "cpsat", "--points", "1,4"),
            "--points: expected numbers of the frontier's 3 points, got 4; "
            "remove it",
        ),
        (
            ("--plot", "plot.jpeg"),
            "--plot plot.jpeg: expected a file name that ends in .svg, .png, "
            ".pdf, got .jpeg; rename it",
        ),
    ],
)
def test_bad_options(cli, problem, arguments, reason):
    assert cli.refuses("pareto", problem, *arguments) == reason


def test_a_solver_that_proves_nothing(cli: Cli, problem: str) -> None:
    text = cli.refuses("pareto", problem, "--prove", "alpa")
    assert text.startswith("--prove: expected an exact solver (")
    assert text.endswith(
        "got 'alpa', which proves nothing; choose one of them"
    )


def test_without_matplotlib(cli: Cli, problem: str) -> None:
    with mock.patch.dict("sys.modules", {"matplotlib": None}):
        text = cli.refuses("pareto", problem, "--plot", "plot.svg")
    assert text == (
        "--plot: expected matplotlib to be installed, got no such package; "
        "install it with: pip install 'nest-planner[plot]'"
    )


def test_plans_go_to_a_new_or_empty_directory(
    cli: Cli, problem: str, tmp_path: Path
) -> None:
    for path, got in (
        (tmp_path, "one with files in it"),
        (problem, "a file"),
        (tmp_path / "no" / "plans", f"no directory {tmp_path / 'no'}"),
    ):
        assert cli.refuses("pareto", problem, "-o", str(path)) == (
            f"-o {path}: expected a new or empty directory, got {got}; "
            f"choose another path"
        )
    sealed = tmp_path / "sealed"
    sealed.mkdir()
    with mock.patch.object(os, "access", return_value=False):
        text = cli.refuses("pareto", problem, "-o", str(sealed))
    assert "got one that may not be written; choose another path" in text


def test_a_file_is_not_written_twice(cli: Cli, problem: str) -> None:
    path = str(Path(problem).parent / "same.svg")
    text = cli.refuses("pareto", problem, "--plot", path, "--json", path)
    assert "expected another file than for" in text


def test_interrupted(cli: Cli, problem: str) -> None:
    with mock.patch(
        "nest.analysis.pareto.frontier", side_effect=KeyboardInterrupt
    ):
        assert cli("pareto", problem) == 130
    assert cli.err == "nest: interrupted\n"
