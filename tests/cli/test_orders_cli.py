"""Schedules that plans choose from, on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from nest.analysis import others
from nest.ir.io import problem_hash, read_plan, read_problem, write
from nest.ir.plan import Plan, Stage, Strategy
from nest.requests.problems import ProblemRequest
from tests.cli.conftest import SMALL, Cli


@pytest.mark.parametrize("schedule", ["gpipe,zb-h1", "any"])
def test_the_command_below_an_answer_starts_the_nearest_plan(
    cli: Cli, config: str, schedule: str
) -> None:
    """Plans may recompute all, which zb-h1 forbids; Megatron has 1F1B only."""
    model = f"--model {config} --cluster h100x8 {SMALL}"
    cli.succeeds(f"solve {model} --schedule {schedule} --pin pp=2,r=1")
    command = cli.out[cli.out.rindex("\nnest ") :].replace("\\\n", " ")
    assert "--schedule" not in command
    cli.succeeds(command.split(maxsplit=1)[1])


@pytest.mark.parametrize(
    ("target", "plans", "schedules", "chunks"),
    [
        ("torchtitan", "plans with any order of passes", ["any"], [1, 2, 4]),
        ("megatron", "1F1B and interleaved 1F1B plans", ["1f1b"], [1, 2, 4]),
        ("deepspeed", "1F1B plans", ["1f1b"], [1]),
        ("maxtext", "GPipe plans", ["gpipe"], [1]),
    ],
    ids=["torchtitan", "megatron", "deepspeed", "maxtext"],
)
def test_any_order_under_a_target_is_what_it_runs(
    cli: Cli,
    config: str,
    target: str,
    plans: str,
    schedules: list[str],
    chunks: list[int],
) -> None:
    """The proof names it; so does a problem file with these options."""
    small = SMALL.replace("--zero 0,1", "--zero 0,1,2")
    model = f"--model {config} --cluster h100x8 {small} --overlap none"
    cli.succeeds(f"problems {model} -o p.json")
    for problem in (model, "p.json"):
        problem += " --schedule any --pin pp=2,b=2"
        cli.succeeds(f"solve {problem} --target {target} --json j.json")
        assert f"of {plans} without overlap" in " ".join(
            cli.out.replace("optimal among", "of").split()
        )
        assert json.loads(Path("j.json").read_text())["proof"] == {
            "schedules": schedules,
            "virtual_stages": chunks,
            "overlap": {},
            "target": target,
        }


def test_schedules_that_nobody_stated_are_looked_at(
    cli: Cli, config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is the same; problem files have a schedule that is stated."""
    monkeypatch.setattr(others, "SEARCH_SHARE", 1e6)
    monkeypatch.setattr(others, "MAX_LOOK_S", 1e6)
    model = f"--model {config} --cluster h100x8 {SMALL}"
    cli.succeeds(f"problems {model} -o p.json")
    seen = {}
    for problem in (model, f"{model} --schedule 1f1b", "p.json"):
        cli.succeeds(
            f"solve {problem} --pin pp=2,b=2 --headroom 0 -o plan.json --json j.json"
        )
        says = "other orders of passes: about -" in " ".join(cli.out.split())
        faster = json.loads(Path("j.json").read_text()).get("other_orders")
        seen[problem] = says, faster, read_plan("plan.json")
    (first, faster, plan), *rest = seen.values()
    assert first
    assert rest == [(False, None, plan), (False, None, plan)]
    assert "--schedule any" in [x["option"] for x in faster]
    assert all(0 < x["fraction"] < 0.99 for x in faster)


def test_a_plan_with_virtual_stages_is_refused_by_their_number(
    cli: Cli, config: str
) -> None:
    cli.succeeds(f"problems --model {config} --cluster h100x8 {SMALL} -o p.json")
    request = ProblemRequest(problem="p.json", virtual_stages=(1, 2))
    problem = request.find_problem()
    layers = [layer.id for layer in problem.graph.layers]
    stages = tuple(Stage.of([x], [Strategy()]) for x in layers[:4])
    plan = Plan(replicas=1, micro_batch=1, stages=stages, virtual_stages=2)
    write("plan.json", replace(plan, problem_hash=problem_hash(problem)))
    cli("export p.json plan.json --to csv -o out")
    assert "the plan was made with --virtual-stages 1,2; run" in cli.err


@pytest.mark.parametrize(
    ("schedule", "order"),
    [("any", "list"), ("any", "zb-h1"), ("gpipe,zb-h1", "zb-h1"), ("zb-h1", None)],
)
@pytest.mark.parametrize("is_file", [False, True])
def test_a_plan_of_another_schedule_is_refused_by_its_name(
    cli: Cli, config: str, schedule: str, order: str | None, is_file: bool
) -> None:
    """With the option that makes its problem the one that is meant."""
    words = f"--model {config} --cluster h100x8 {SMALL} --recompute none"
    cli.succeeds(f"problems {words} --schedule {schedule} -o p.json")
    problem = read_problem("p.json")
    if is_file:
        cli.succeeds(f"problems {words} -o p.json")
        words = "p.json"
        problem = ProblemRequest(problem=words, schedule=schedule).find_problem()
    layers = [layer.id for layer in problem.graph.layers]
    half = len(layers) // 2
    stages = tuple(
        Stage.of(part, [Strategy(dp=2)] * len(part))
        for part in (layers[:half], layers[half:])
    )
    plan = Plan(replicas=2, micro_batch=2, stages=stages)
    passes = tuple(
        tuple(f"{stage}{run}" for run in ("F0", "F1", "B0", "B1")) for stage in (0, 1)
    )
    order_of_plan: Any = passes if order == "list" else order
    made = replace(plan, order=order_of_plan, problem_hash=problem_hash(problem))
    write("plan.json", made)
    for command in ("score", "simulate", "trace", "export"):
        more = {"export": "--to csv -o out", "trace": "-o t.json"}
        asked = f"{command} {words} plan.json {more.get(command, '')}"
        why = (
            f"the plan was made with --schedule {schedule}; run 'nest "
            f"{command} … --schedule {schedule}'"
        )
        cli(asked)
        assert why in " ".join(cli.err.split())
        cli.succeeds(f"{asked} --schedule {schedule}")
        assert "the plan was made" not in cli.err
