"""``nest simulate``, ``nest trace``, and the simulated step elsewhere."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from nest.ir import Problem, read_plan, write
from nest.models import builtin
from tests.builders import SINGLE, make_cost, make_levels, make_plan
from tests.builders import make_problem as build
from tests.cli.conftest import Cli
from tests.loopback import good_plan, tiny_problem
from tests.rows import rows

pytestmark = pytest.mark.usefixtures("files")


def test_simulate_says_how_far_the_formula_is(cli: Cli) -> None:
    """(F, G) = (10, 0), (0, 10), (0, 0): 40 and not 30."""
    costs = {"a": make_cost(10, 0), "b": make_cost(0, 10), "c": make_cost(0, 0)}
    edges = (("a", "b", 0), ("b", "c", 0))
    write("p.json", build(costs, edges=edges, global_batch=2))
    write("q.json", make_plan(*((name, SINGLE) for name in "abc")))
    cli.succeeds("simulate p.json q.json")
    assert re.search(r"^ +simulated 40\.\d+ ns \(\+33\.33 %\)$", cli.out, re.M)


def test_simulate_writes_json(cli: Cli) -> None:
    document = cli.document("simulate problem.json plan.json")
    assert document["schema"] == "nest-simulation/1"
    assert document["step_time_ns"] == 90
    assert document["simulated_step_time_ns"] == 90
    assert document["schedule"] == "1f1b"
    assert document["blocks"][1] == {
        "stages": [2],
        "busy_ns": 60,
        "idle_ns": 30,
        "bubble_share": pytest.approx(1 / 3),
        "forward_ns": 20,
        "backward_ns": 40,
        "weight_backward_ns": 0,
        "receive_ns": 0,
        "sync_ns": 0,
        "hidden_ns": 0,
        "passes_end_ns": 70,
        "end_ns": 70,
    }
    assert "simulated" in cli.err


def test_a_plan_that_does_not_fit_is_simulated_too(cli: Cli) -> None:
    assert cli("simulate problem.json big.json") == 1
    assert "fits       no: 160 of 100 bytes" in cli.out
    assert cli("trace problem.json big.json -o trace.json") == 1
    assert Path("trace.json").exists()


def test_trace_writes_events_in_microseconds(cli: Cli) -> None:
    cli.succeeds("trace problem.json plan.json -o trace.json")
    assert cli.out == cli.err == ""
    document = json.loads(Path("trace.json").read_text())
    events = [x for x in document["traceEvents"] if x["ph"] == "X"]
    assert len(events) == 8
    assert {event["tid"] for event in events} == {0, 1}
    assert (events[3]["ts"], events[3]["dur"]) == (0.07, 0.02)
    assert events[0]["args"] == {"micro_batch": 0, "chunk": 0}
    cli.succeeds("trace problem.json plan.json -o -")
    assert json.loads(cli.out) == document


def test_score_and_compare_show_the_simulated_step(cli: Cli) -> None:
    cli.succeeds("score problem.json plan.json --json score.json -v")
    assert re.search(r"^ +simulated 90\.0000 ns$", cli.out, re.M)
    assert json.loads(Path("score.json").read_text())["simulated_step_time_ns"] == 90
    (cell,) = cli.document("compare problem.json --solvers brute")["cells"]
    assert cell["simulated_step_time_ns"] == 90
    assert cell["score"]["simulated_step_time_ns"] == 90


#: The tiny problem's two stages: F 10, G 20, two micro-batches.
ORDER = "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n"


def test_an_order_of_somebody_else_is_simulated_and_imported(cli: Cli) -> None:
    """The second stage starts its backward passes at 30: 30 + 2·20 + 20.

    Gradients of weights behind the last input gradients, 10 of 20: the first
    stage has its last input gradients at 60, and the weights of both by 80.
    """
    Path("s.csv").write_text(ORDER)
    command = "simulate problem.json plan.json --json - --schedule"
    cli.succeeds(f"{command} s.csv")
    document = json.loads(cli.out)
    assert document["simulated_step_time_ns"] == 90
    assert document["step_time_ns"] == 90
    assert document["schedule"] == "order"
    apart = "0F0,0F1,0I0,0I1,0W0,0W1\n1F0,1F1,1I0,1I1,1W0,1W1\n"
    Path("s.csv").write_text(apart)
    cli.succeeds(f"{command} s.csv")
    assert json.loads(cli.out)["simulated_step_time_ns"] == 80
    cli.succeeds("import schedule-csv s.csv --plan plan.json -o ordered.json")
    order = tuple(tuple(row.split(",")) for row in apart.split())
    assert read_plan("ordered.json") == replace(good_plan(), order=order)
    assert cli.refuses("simulate problem.json ordered.json").startswith(
        "order: expected none, as the job's schedule is '1f1b', got a list"
    )
    job = replace(tiny_problem().job, schedule="any")
    write("any.json", replace(tiny_problem(), job=job))
    assert (
        cli.document("simulate any.json ordered.json")["simulated_step_time_ns"] == 80
    )
    Path("s.csv").write_text(ORDER)
    assert (
        cli.document("simulate any.json ordered.json --schedule s.csv")[
            "simulated_step_time_ns"
        ]
        == 90
    )
    cli.succeeds("export any.json ordered.json --to csv -o out")
    assert Path("out/schedule.csv").read_text() == apart
    assert cli.out == Path("out/README").read_text()


@pytest.mark.parametrize(
    ("old", "new", "message"), rows("commands", "orders_of_passes")
)
def test_bad_orders_are_refused_by_row_and_pass(
    cli: Cli, old: str, new: str, message: str
) -> None:
    """In a file of PyTorch, and the same in a plan of ours."""
    text = ORDER.replace(old, new)
    Path("s.csv").write_text(text)
    for command in (
        "simulate problem.json plan.json --schedule s.csv",
        "import schedule-csv s.csv --plan plan.json -o -",
    ):
        assert cli.refuses(command).startswith(f"s.csv{message}")
    job = replace(tiny_problem().job, schedule="any")
    write("any.json", replace(tiny_problem(), job=job))
    order = tuple(tuple(row.split(",")) for row in text.split())
    write("ordered.json", replace(good_plan(), order=order))
    for command in ("score", "simulate", "check", "export --to csv -o out"):
        said = cli.refuses(f"{command} any.json ordered.json")
        assert said.startswith("order")
        assert "; " in said


def test_names_of_schedules_are_no_files(cli: Cli) -> None:
    cli.succeeds("simulate problem.json plan.json --schedule zb-h1")


def steady() -> Problem:
    """Return a problem whose step time is that of a steady state."""
    return build(
        {"a": make_cost(10, 20)},
        topology=make_levels((4, 0.0, 1e9)),
        preset="piper",
        replicas=(1,),
    )


def test_a_steady_state_has_no_step(cli: Cli) -> None:
    """Nor can it be simulated: see refusals.txt."""
    write("p.json", steady())
    write("q.json", make_plan(("a", SINGLE)))
    cli.succeeds("score p.json q.json -v")
    assert "simulated" not in cli.out


def test_a_plan_of_another_problem_is_warned_of(cli: Cli) -> None:
    from msgspec.structs import replace

    write("other.json", replace(good_plan(), problem_hash="0" * 64))
    cli.succeeds("simulate problem.json other.json")
    assert "warning: the plan was made for problem 000000000000" in cli.err


def test_a_plan_of_a_built_in_problem_runs(cli: Cli) -> None:
    name = builtin.names()[0]
    cli.succeeds(f"solve {name} --solver megatron -o plan.json")
    document = cli.document(f"simulate {name} plan.json")
    used = [x["busy_ns"] + x["idle_ns"] for x in document["blocks"]]
    assert set(used) == {document["simulated_step_time_ns"]}
