"""``nest pareto`` on the command line."""

from __future__ import annotations

import json
import os
from itertools import takewhile
from pathlib import Path
from unittest import mock

import pytest
from msgspec import structs

from nest.analysis.pareto import frontier
from nest.ir import Problem, problem_hash, read_plan, read_problem, write
from tests.cli.conftest import Cli
from tests.unit.analysis.test_pareto import PRICE, small, with_device


@pytest.fixture(autouse=True)
def _problem(tmp_path: Path) -> None:
    write(tmp_path / "problem.json", small())


def rows(text: str) -> list[list[str]]:
    """Return the rows of the first table, split at runs of blanks."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("─")) + 1
    return [
        [cell.strip() for cell in line.split("  ") if cell.strip()]
        for line in takewhile(lambda line: line[:1].isdigit(), lines[start:])
    ]


def test_the_table_has_a_row_per_point(cli: Cli) -> None:
    # Signs of life are for busy machines.
    cli.succeeds("pareto problem.json --quiet")
    assert rows(cli.out) == [
        ["3", "20", "90", "fastest", "2", "1", "1", "1", "0", "none"],
        ["2 knee", "10", "110", "22.2", "2", "1", "1", "1", "0", "none–full"],
        ["1", "8", "120", "33.3", "2", "1", "1", "1", "0", "full"],
    ]
    assert "\n3 plans on the time–memory frontier\n" in cli.out
    assert "proven of 1F1B plans without overlap: each is matched or beaten" in cli.out
    assert "$/step" not in cli.out
    assert cli.err == ""
    cli.succeeds("pareto problem.json --verbose")
    assert "r=1, b=1, pp=2, strategies recompute-full | single" in cli.out
    assert f"hash {problem_hash(small())[:12]}" in cli.out


def test_the_price_in_the_problem_is_enough(cli: Cli) -> None:
    write("priced.json", with_device(small(), price_usd_per_hour=PRICE))
    cli.succeeds("pareto priced.json --objectives cost")
    assert [row[2] for row in rows(cli.out)] == ["120"]


def test_plans_can_be_scored(cli: Cli) -> None:
    """With the problem of their size, without a word about a foreign one."""
    folder = Path("plans")
    cli.succeeds(
        "pareto problem.json --objectives time,memory,devices --devices 2,1 "
        "--pin r=1 --forbid zero=3 -o plans --json pareto.json"
    )
    assert "only plans under --pin r=1 --forbid zero=3" in cli.out
    assert sorted(path.name for path in folder.iterdir()) == [
        *(f"plan-{number}.json" for number in (1, 2, 3, 4, 5)),
        "problem-1-devices.json",
    ]
    one = folder / "problem-1-devices.json"
    assert read_problem(one) == structs.replace(
        small(), cluster=structs.replace(small().cluster, num_devices=1)
    )
    written = json.loads(Path("pareto.json").read_text())
    assert written["restrictions"]["pin"] == {"r": [1]}
    for point in written["points"]:
        path = str(folder / f"plan-{point['number']}.json")
        whole = str(one) if point["num_devices"] == 1 else "problem.json"
        cli.succeeds(f"score {whole} {path} --json -")
        assert "warning" not in cli.err
        assert read_plan(path).problem_hash == problem_hash(read_problem(whole))
        assert json.loads(cli.out)["step_time_ns"] == point["step_time_ns"]


def test_the_document_on_standard_output(cli: Cli) -> None:
    document = cli.document("pareto problem.json --granularity layer")
    assert document["schema"] == "nest-pareto/1"
    assert document["granularity"] == "layer"
    assert document["proven"] is True
    assert "step time" in cli.err


def test_other_solvers_prove_points(cli: Cli) -> None:
    cli.succeeds(
        "pareto problem.json --prove cpsat --points 1,3 --workers 1 --json pareto.json"
    )
    assert "contradicts" not in cli.err
    assert "cpsat says" in cli.out
    assert "120.0000 ns (optimal)" in cli.out
    assert "infeasible" in cli.out
    written = json.loads(Path("pareto.json").read_text())
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
    return replace(found, points=points, curves=(replace(curve, points=points),))


def test_a_contradiction_is_loud(cli: Cli) -> None:
    with mock.patch("nest.analysis.pareto.frontier", overlooking):
        code = cli("pareto problem.json --prove brute --points 2")
    assert code == 1
    assert "contradiction" in cli.out
    assert cli.err == (
        "nest: solver 'brute' contradicts point 2: with 19 bytes a plan "
        "takes 110 quanta, the curve has 120; one of them has a bug, please "
        "report it\n"
    )


def test_a_search_that_lies_is_loud(cli: Cli) -> None:
    from nest.search import tracer as tracing
    from nest.search.frontier.staircase import Point

    def search(*arguments: object) -> object:
        points, gaps = real(*arguments)
        return [Point(1, 8, points[0].plan)], gaps

    real = tracing.search
    with mock.patch.object(tracing, "search", search):
        assert cli("pareto problem.json") == 1
    assert cli.out == ""
    assert cli.err.startswith(
        "nest: error: frontier of 2 devices: expected a feasible plan of 1 "
        "quanta with 8 bytes, "
    )


def test_nothing_fits(cli: Cli) -> None:
    write("tight.json", with_device(small(), memory_bytes=7))
    cli.succeeds("pareto tight.json -o plans --prove cpsat")
    assert "\nno plan fits\nproven of 1F1B plans" in cli.out
    assert list(Path("plans").iterdir()) == []


@pytest.mark.parametrize(
    ("schedule", "points"),
    [
        ("any", [(70, 20, "zb-h1"), (90, 10, "list"), (120, 8, "1f1b")]),
        ("1f1b,zb-h1", [(70, 20, "zb-h1"), (100, 10, "1f1b"), (120, 8, "1f1b")]),
    ],
)
def test_points_carry_their_order_of_passes(
    cli: Cli, schedule: str, points: list[tuple[int, int, str]]
) -> None:
    """Half of a backward pass is for weights; one bound holds for all orders.

    ZB-H1 fills 20 ns that 1F1B waits. With ``a`` recomputed, 1F1B takes 20 ns
    until ``b`` starts, 2 · 30 ns there, and 20 ns of ``a`` after it.
    """
    write("small.json", small())
    cli.succeeds(f"pareto small.json --schedule {schedule} -o plans --json p.json")
    document = json.loads(Path("p.json").read_text())
    found = [
        (x["step_time_quanta"], x["memory_bytes"], x["plan"]["order"])
        for x in reversed(document["points"])
    ]
    assert [(*x[:2], x[2] if isinstance(x[2], str) else "list") for x in found] == [
        *points
    ]
    assert document["proof"]["schedules"] == schedule.split(",")
    assert not document["proven"]
    assert "not proven: 2 devices from 0 bytes to 100 bytes" in cli.out
    assert "where a step takes at least 70.0000 ns" in " ".join(cli.out.split())
    for row, point in zip(rows(cli.out), points, strict=True):
        assert point[2] in row
    for file in Path("plans").glob("*.json"):
        cli.succeeds(f"score small.json {file} --schedule {schedule}")


def test_schedules_that_split_backward_passes_have_a_proven_frontier(cli: Cli) -> None:
    """Without recomputation there is one point: F 10, 10; two of 10 + 20; W 10."""
    write("small.json", small(recompute=("none",)))
    for schedule in ("zb-h1", "zb-h1,zb-v"):
        cli.succeeds(f"pareto small.json --schedule {schedule}")
        assert "each is matched or beaten by a point" in " ".join(cli.out.split())
        assert [row[1:3] for row in rows(cli.out)] == [["20", "70"]]


def test_a_document_says_which_plans_its_proof_covers(cli: Cli) -> None:
    write("small.json", small())
    cli.succeeds("pareto small.json --schedule gpipe --json p.json")
    assert "proven of GPipe plans without overlap" in cli.out
    assert json.loads(Path("p.json").read_text())["proof"] == {
        "schedules": ["gpipe"],
        "virtual_stages": [1],
        "overlap": {},
        "target": None,
    }


def test_all_that_a_job_allows_is_proven(cli: Cli) -> None:
    write("chunks.json", small(virtual_stages=(1, 2), overlap={"gradients": 0.5}))
    cli.succeeds("pareto chunks.json")
    assert "proven of 1F1B and interleaved 1F1B plans that overlap" in cli.out
    assert len(rows(cli.out)) == 3


def test_a_plot(cli: Cli) -> None:
    pytest.importorskip("matplotlib")
    cli.succeeds("pareto problem.json --plot plot.svg")
    assert "2 devices" in Path("plot.svg").read_text()


def test_a_model_on_a_cluster(cli: Cli) -> None:
    document = cli.document(
        "pareto --model gpt3-1.3b --cluster h100x2 --layers-per-node 8 "
        "--micro-batches 1,2 --zero 0,1 --objectives time,memory,devices "
    )
    assert document["proven"]
    assert {c["num_devices"] for c in document["curves"]} == {1, 2}


def test_without_matplotlib(cli: Cli) -> None:
    with mock.patch.dict("sys.modules", {"matplotlib": None}):
        text = cli.refuses("pareto problem.json --plot plot.svg")
    assert text == (
        "--plot: expected matplotlib to be installed, got no such package; "
        "install it with: pip install 'nest-planner[plot]'"
    )


def test_plans_go_to_a_directory_that_may_be_written(cli: Cli) -> None:
    Path("sealed").mkdir()
    with mock.patch.object(os, "access", return_value=False):
        text = cli.refuses("pareto problem.json -o sealed")
    assert "got one that may not be written; choose another path" in text


def test_interrupted(cli: Cli) -> None:
    with mock.patch("nest.analysis.pareto.frontier", side_effect=KeyboardInterrupt):
        assert cli("pareto problem.json") == 130
    assert cli.err == "nest: interrupted\n"
