"""Schedules that plans choose from, on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nest.analysis import others
from nest.ir.io import read_plan
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
        (
            "megatron",
            "1F1B and interleaved 1F1B plans",
            ["1f1b"],
            [1, 2, 4],
        ),
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
    model = f"--model {config} --cluster h100x8 {small}"
    cli.succeeds(f"problems {model} -o p.json")
    for problem in (model, "p.json"):
        problem += " --schedule any --pin pp=2,b=2"
        cli.succeeds(f"solve {problem} --target {target} --json j.json")
        assert f"of {plans} without overlap" in " ".join(
            cli.out.replace("optimal among", "of").split()
        )
        proof = json.loads(Path("j.json").read_text())["proof"]
        assert proof == {
            "schedules": schedules,
            "virtual_stages": chunks,
            "overlap": {},
            "target": target,
        }


def test_any_order_stands_alone(cli: Cli, config: str) -> None:
    said = cli.refuses(f"solve {config} --schedule any,zb-v")
    assert said == (
        "--schedule: expected names of schedules, or 'any' alone, got "
        "'any,zb-v'; remove 'any' or the others"
    )


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
            f"solve {problem} --pin pp=2,b=2 --headroom 0 -o plan.json"
        )
        says = "other orders of passes: about -" in " ".join(cli.out.split())
        seen[problem] = says, read_plan("plan.json")
    (first, plan), *rest = seen.values()
    assert first
    assert rest == [(False, plan), (False, plan)]
