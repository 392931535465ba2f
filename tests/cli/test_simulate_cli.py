"""``nest simulate``, ``nest trace``, and the simulated step elsewhere."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from nest.ir import write
from nest.models import builtin
from tests.builders import SINGLE, make_cost, make_levels, make_plan
from tests.builders import make_problem as build
from tests.cli.conftest import Cli
from tests.loopback import good_plan


def test_simulate_shows_both_steps_and_every_block(
    cli: Cli, files: dict[str, str]
) -> None:
    """Two stages of 10 + 20 ns, two micro-batches: 60 of 90 ns busy."""
    assert cli("simulate", files["problem"], files["plan"]) == 0
    assert cli.err == ""
    for line in (
        r"problem +tiny \(preset standard\)",
        r"feasible +yes",
        r"schedule +1f1b, 2 blocks, 2 micro-batches",
        r"step time +90\.0000 ns",
        r"simulated +90\.0000 ns",
        r" +1 +1 +60\.0000 ns +30\.0000 ns +33\.33 +0\.0000 ns +0\.0000 ns "
        r"+90\.0000 ns",
        r" +2 +2 +60\.0000 ns +30\.0000 ns +33\.33 .* 70\.0000 ns",
    ):
        assert re.search(f"^{line}$", cli.out, re.MULTILINE), line


def test_simulate_says_how_far_the_formula_is(
    cli: Cli, tmp_path: Path
) -> None:
    """(F, G) = (10, 0), (0, 10), (0, 0): 40 and not 30."""
    problem, plan = str(tmp_path / "p.json"), str(tmp_path / "q.json")
    costs = {
        "a": make_cost(10, 0),
        "b": make_cost(0, 10),
        "c": make_cost(0, 0),
    }
    edges = (("a", "b", 0), ("b", "c", 0))
    write(problem, build(costs, edges=edges, global_batch=2))
    write(plan, make_plan(*((name, SINGLE) for name in "abc")))
    assert cli("simulate", problem, plan) == 0
    assert re.search(r"^simulated +40\.\d+ ns \(\+33\.33 %\)$", cli.out, re.M)


def test_simulate_writes_json(cli: Cli, files: dict[str, str]) -> None:
    assert cli("simulate", files["problem"], files["plan"], "--json", "-") == 0
    document = json.loads(cli.out)
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


def test_a_plan_that_does_not_fit_is_simulated_too(
    cli: Cli, files: dict[str, str], tmp_path: Path
) -> None:
    assert cli("simulate", files["problem"], files["big"]) == 1
    assert "violation  stage 1: expected at most 100 bytes" in cli.out
    trace = tmp_path / "trace.json"
    assert cli("trace", files["problem"], files["big"], "-o", str(trace)) == 1
    assert trace.exists()


def test_trace_writes_events_in_microseconds(
    cli: Cli, files: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    assert cli("trace", files["problem"], files["plan"], "-o", str(path)) == 0
    assert cli.out == cli.err == ""
    document = json.loads(path.read_text())
    events = [x for x in document["traceEvents"] if x["ph"] == "X"]
    assert len(events) == 8
    assert {event["tid"] for event in events} == {0, 1}
    assert (events[3]["ts"], events[3]["dur"]) == (0.07, 0.02)
    assert events[0]["args"] == {"micro_batch": 0, "chunk": 0}
    assert cli("trace", files["problem"], files["plan"], "-o", "-") == 0
    assert json.loads(cli.out) == document


def test_score_and_compare_show_the_simulated_step(
    cli: Cli, files: dict[str, str], tmp_path: Path
) -> None:
    document = tmp_path / "score.json"
    paths = (files["problem"], files["plan"])
    assert cli("score", *paths, "--json", str(document)) == 0
    assert re.search(r"^simulated +90\.0000 ns$", cli.out, re.M)
    said = json.loads(document.read_text())
    assert said["simulated_step_time_ns"] == 90
    compare = ("compare", files["problem"], "--solvers", "brute")
    assert cli(*compare, "--json", "-") == 0
    (cell,) = json.loads(cli.out)["cells"]
    assert cell["simulated_step_time_ns"] == 90
    assert cell["score"]["simulated_step_time_ns"] == 90


@pytest.mark.parametrize("command", ["simulate", "trace"])
def test_bad_input_is_one_line(
    cli: Cli, files: dict[str, str], tmp_path: Path, command: str
) -> None:
    out = tmp_path / "out.json"
    more = ("-o", str(out)) if command == "trace" else ("--json", str(out))
    said = cli.refuses(command, files["problem"], files["foreign"], *more)
    assert said.startswith("stage 2: expected layers of the problem, got 7")
    assert not out.exists()
    same = (*more[:1], files["plan"])
    said = cli.refuses(command, files["problem"], files["plan"], *same)
    assert said == (
        f"{more[0]}: expected another file than for PLAN, got "
        f"{files['plan']} for both; choose another path"
    )


@pytest.mark.parametrize("command", ["simulate", "trace"])
def test_a_steady_state_has_no_step(
    cli: Cli, tmp_path: Path, command: str
) -> None:
    problem, plan = str(tmp_path / "p.json"), str(tmp_path / "q.json")
    made = build(
        {"a": make_cost(10, 20)},
        topology=make_levels((4, 0.0, 1e9)),
        preset="piper",
        replicas=(1,),
    )
    write(problem, made)
    write(plan, make_plan(("a", SINGLE)))
    more = ("-o", str(tmp_path / "out.json")) if command == "trace" else ()
    said = cli.refuses(command, problem, plan, *more)
    assert said == (
        "$.preset: expected one that prices a whole step, got 'piper', whose "
        "step time is that of a steady state; use 'nest score'"
    )
    assert cli("score", problem, plan) == 0
    assert "simulated" not in cli.out


def test_trace_needs_a_file(cli: Cli, files: dict[str, str]) -> None:
    said = cli.refuses("trace", files["problem"], files["plan"])
    assert said == (
        "nest trace: expected --output, got none; see 'nest trace --help'"
    )


def test_a_plan_of_another_problem_is_warned_of(
    cli: Cli, files: dict[str, str], tmp_path: Path
) -> None:
    from msgspec.structs import replace

    path = str(tmp_path / "other.json")
    write(path, replace(good_plan(), problem_hash="0" * 64))
    assert cli("simulate", files["problem"], path) == 0
    assert "warning: the plan was made for problem 000000000000" in cli.err


def test_a_plan_of_a_built_in_problem_runs(cli: Cli, tmp_path: Path) -> None:
    path = str(tmp_path / "plan.json")
    name = builtin.names()[0]
    assert cli("solve", name, "--solver", "megatron", "-o", path) == 0
    assert cli("simulate", name, path, "--json", "-") == 0
    document = json.loads(cli.out)
    used = [x["busy_ns"] + x["idle_ns"] for x in document["blocks"]]
    assert set(used) == {document["simulated_step_time_ns"]}
