"""The same words in every command: problems of models, plans by settings."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from nest.cost.score import score
from nest.ir import Problem, problem_hash, read_plan, write
from nest.solvers.base import Limit, Status
from tests.builders import SINGLE, make_cost, make_levels, make_plan, make_problem
from tests.children import python
from tests.cli.conftest import Cli
from tests.inside import PLACES, run_inside

MODEL = (
    "--model llama2-7b --cluster h100x8 --micro-batches 1 --global-batch 8 "
    "--layers-per-node 8"
)


@pytest.fixture(autouse=True)
def _inside(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in PLACES:
        monkeypatch.setattr(place, run_inside)


def chain(memory_bytes: int = 1000) -> Problem:
    """Two layers of 30 ns that keep 100 bytes each, on two devices."""
    cost = make_cost(10, 20, weight_bytes=0, kept_bytes=100)
    return make_problem(
        {"a": cost, "b": cost},
        edge=0,
        devices=2,
        memory_bytes=memory_bytes,
        topology=make_levels((2, 0.0, 1e15), (1, 0.0, 1e15)),
        global_batch=2,
    )


@pytest.fixture(autouse=True)
def _problem(tmp_path: Path) -> None:
    write(tmp_path / "problem.json", chain())


# Problems


def test_every_command_takes_a_model(cli: Cli) -> None:
    """The problem is that of 'nest problems' with the same words."""
    cli.succeeds(f"problems {MODEL} -o problem.json")
    cli.succeeds(f"solve {MODEL} --pin tp=8 -o plan.json")
    for command in ("score", "check", "simulate", "explain"):
        more = "--no-search" if command == "explain" else ""
        cli.succeeds(f"{command} problem.json plan.json {more}")
        said = cli.out
        cli.succeeds(f"{command} {MODEL} plan.json {more}")
        assert cli.out == said
        assert cli.err == ""
    traces = []
    for problem in ("problem.json", MODEL):
        cli.succeeds(f"trace {problem} plan.json -o -")
        traces.append(cli.out)
    assert traces[0] == traces[1]


def test_exports_take_a_model(cli: Cli) -> None:
    """The model's training keeps what the framework's does."""
    cli.succeeds(f"export {MODEL} --to megatron -o launch --plan tp=8,r=1")
    assert "--tensor-model-parallel-size" in Path("launch/args.sh").read_text(), cli.out


def test_certificates_are_of_the_problem_written(cli: Cli) -> None:
    cli.succeeds(f"problems {MODEL} -o problem.json")
    cli.succeeds(f"certify {MODEL} --plan tp=8,pp=1,recompute=none -o c.json")
    assert cli.out.startswith("feasible: step time 907.84 ms, lower bound")
    ran = python("-m", "nest.certificates.check", "problem.json", "c.json")
    assert ran.returncode == 0


# Plans by their settings


def test_settings_stand_for_the_fastest_plan(cli: Cli) -> None:
    """Two stages take 30 ns a pass, three of them; one takes 60 ns, twice."""
    assert cli.document("score problem.json --plan pp=2,r=1")["step_time_ns"] == 90
    assert cli.document("score problem.json pp=1,r=1")["step_time_ns"] == 120
    assert "nest: PLAN is the fastest with pp=1,r=1: r=1, b=1, pp=1" in cli.err


def test_settings_that_do_not_fit_stand_for_the_least_memory(cli: Cli) -> None:
    """One stage holds 200 bytes; of two the first holds 100 of each of two."""
    write("small.json", chain(199))
    assert cli("check small.json --plan pp=1,r=1") == 1
    assert "infeasible" in cli.out
    assert "got 200" in cli.out
    assert (
        "--plan is the one that needs least memory with pp=1,r=1, none fits: "
        "r=1, b=1, pp=1" in cli.err
    )


def interleaved(memory_bytes: int) -> Problem:
    """Four layers on two devices, in two stages or in four chunks.

    In chunks the first device holds all four passes of its two layers, 400
    bytes; of stages of one and three layers the fullest holds 300.
    """
    return make_problem(
        dict.fromkeys("abcd", make_cost(10, 20, weight_bytes=0, kept_bytes=100)),
        edge=0,
        devices=2,
        memory_bytes=memory_bytes,
        topology=make_levels((2, 0.0, 1e15), (1, 0.0, 1e15)),
        global_batch=2,
        virtual_stages=(1, 2),
    )


#: Commands with a plan by its settings, and the option that it comes from.
BY_SETTINGS = [
    (("score",), "PLAN"),
    (("check",), "PLAN"),
    (("simulate",), "PLAN"),
    (("explain", "--no-search"), "PLAN"),
    (("report", "-o", "page.html"), "PLAN"),
    (("trace", "-o", "trace.json"), "PLAN"),
    (("certify", "-o", "certificate.json"), "PLAN"),
    (("export", "--to", "chakra", "-o", "traces"), "PLAN"),
]


@pytest.mark.parametrize(("command", "name"), BY_SETTINGS)
def test_no_command_shows_a_plan_without_a_setting(
    cli: Cli,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
    name: str,
) -> None:
    """Case 28: two stages would fit; of four chunks no plan does."""
    monkeypatch.chdir(tmp_path)
    write("small.json", interleaved(350))
    assert cli(f"{command[0]} small.json pp=2,v=2,r=1", *command[1:]) in (0, 1, 2)
    said = next(x for x in cli.err.splitlines() if f"nest: {name} is" in x)
    assert "needs least memory with pp=2,v=2,r=1" in said
    assert "none fits: r=1, b=1, pp=2, v=2, strategies single" in said
    assert "feasible     yes" not in cli.out


def test_warm_starts_have_all_settings(cli: Cli) -> None:
    write("small.json", interleaved(350))
    assert cli("solve small.json --warm-start pp=2,v=2,r=1") == 2
    assert "none fits: r=1, b=1, pp=2, v=2, strategies single" in cli.err


def test_settings_count_together_with_pins(cli: Cli) -> None:
    """A plan that is explained under pins has them, too."""
    write("problem.json", interleaved(1000))
    words = "explain problem.json --plan r=1 --no-search"
    cli.succeeds(words)
    assert "--plan is the fastest with r=1" in cli.err
    assert "pp=2" in cli.err
    cli.succeeds(f"{words} --pin pp=1")
    assert "--plan is the fastest with r=1: r=1, b=1, pp=1, " in cli.err


def test_an_answer_that_is_not_proven_says_why(cli: Cli) -> None:
    """Case 23: interleaved plans are bounded; no time limit had passed."""
    words = ("--model", "llama2-7b", "--cluster", "h100x8")
    words += ("--virtual-stages", "1,2", "--plan", "pp=4,v=2")
    cli.succeeds("score", *words)
    said = next(x for x in cli.err.splitlines() if "--plan is" in x)
    assert re.search(
        r"nest: --plan is the fastest with pp=4,v=2 of those that the search "
        r"constructed; not proven: plans timed pass by pass are bounded, not "
        r"all tried; no plan is more than [0-9.]+ % faster: r=1, ",
        said,
    )
    assert "60 s" not in said


def test_an_answer_of_a_search_out_of_time_says_so(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*arguments, **named):
        found = run_inside(*arguments, **named)
        return dataclasses.replace(
            found,
            status=Status.FEASIBLE,
            limit=Limit.TIME,
            lower_bound_quanta=found.step_quanta * 3 // 4,
        )

    monkeypatch.setattr("nest.analysis.plan_by_settings.run_solver", stopped)
    cli.succeeds("score problem.json --plan pp=2")
    assert (
        "--plan is the fastest with pp=2 of those that the search "
        "constructed; not proven: it ended at its time limit of 60 s; no plan "
        "is more than 25.6 % faster: " in cli.err
    )


def test_settings_without_a_plan_say_why(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(*arguments, **named):
        return dataclasses.replace(
            run_inside(*arguments, **named),
            status=Status.NO_SOLUTION,
            plan=None,
            score=None,
            claimed_quanta=None,
            limit=Limit.TIME,
        )

    monkeypatch.setattr("nest.analysis.plan_by_settings.run_solver", nothing)
    monkeypatch.setattr("nest.analysis.fit.run_solver", nothing)
    monkeypatch.setattr("nest.search.frontier.least.covers", lambda problem: False)
    assert cli.refuses("score problem.json --plan pp=2") == (
        "--plan pp=2: expected settings for which the search constructs a "
        "plan, got none (it ended at its time limit of 60 s); name more "
        "settings, or write a plan file"
    )


# Degrees that no list has


def test_plans_name_degrees_that_no_list_has(cli: Cli) -> None:
    """Case 30: 12 data-parallel ranks, where the list has powers of two."""
    words = ("--model", "gpt3-1.3b", "--cluster", "h100x24")
    words += ("--sequence-length", "2048", "--global-batch", "48")
    words += ("--layers-per-node", "8", "--json", "-")
    for plan in ("tp=1,pp=2,dp=12,b=12,zero=1", "tp=2,pp=1,dp=12", "b=3,r=8"):
        cli.succeeds("score", *words, "--plan", plan)
        assert f"--plan is the fastest with {plan}: " in cli.err
    cli.succeeds("solve", *words, "--pin", "dp=12,tp=1")
    (cell,) = json.loads(cli.out)["cells"]
    assert {s["strategy"]["dp"] for s in cell["plan"]["stages"]} == {12}
    cli.succeeds("score", *words, "--plan", "v=2,pp=2,r=1")
    assert "pp=2, v=2, strategies" in cli.err


def test_a_hint_names_pins_with_a_plan(cli: Cli) -> None:
    """A file has the lists that it has; what the hint says works there."""
    words = ("--model", "gpt3-1.3b", "--cluster", "h100x24")
    words += ("--sequence-length", "2048", "--global-batch", "48")
    words += ("--layers-per-node", "8", "-o", "problem.json")
    cli.succeeds("problems", *words)
    for plan, reason in (
        ("tp=2,dp=12,b=12", "--plan dp=12: expected one of the data parallel"),
        ("tp=2,dp=4,b=1", "--plan dp=4,b=1: expected a plan that fulfills"),
    ):
        said = cli.refuses(f"score problem.json --plan {plan}")
        assert said.startswith(reason)
        hint = re.search(
            r"; for (\d+) data-parallel ranks in all write (\S+) or (\S+) \(r "
            r"replicas of dp ranks, b samples per replica\); "
            r"--distributed-optimizer shards over all of them$",
            said,
        )
        assert hint is not None
        for pins in hint.group(2, 3):
            assert cli(f"check problem.json --plan tp=2,{pins}") in (0, 1)
            assert f"with tp=2,{pins}" in cli.err


def test_zero_stages_that_are_one_plan_may_be_named(cli: Cli) -> None:
    """On one device all ZeRO stages are alike."""
    words = "--model gpt2 --cluster h100x1 --layers-per-node"
    for zero in "0123":
        assert cli.document(f"score {words} 6 --plan zero={zero}")["feasible"], cli.out


def test_warm_starts_are_plans_by_settings(cli: Cli) -> None:
    cli.succeeds("solve problem.json --warm-start pp=1 -o out.json")
    assert "--warm-start is the fastest with pp=1" in cli.err
    found = read_plan("out.json")
    assert found.problem_hash == problem_hash(chain())
    assert score(chain(), found).step_time_ns == 60


def test_a_file_goes_before_settings(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write("tp=1", make_plan(("a", SINGLE), ("b", SINGLE)))
    cli.succeeds("score problem.json tp=1")
    assert cli.err == ""


# Without a plan


def test_infeasible_says_what_would_do(cli: Cli) -> None:
    """Of two stages the first keeps 100 bytes of two micro-batches.

    So does one stage with both layers; on four devices two replicas keep
    those of one micro-batch.
    """
    write("small.json", chain(150))
    found = cli.document("compare small.json --solvers dp,brute")["infeasible"]
    assert found.pop("plan")["schema"] == "nest-plan/1"
    assert found == {
        "whatever_the_memory": False,
        "memory_bytes": 200,
        "refuted_memory_bytes": 199,
        "num_devices": 4,
        "refuted_devices": 2,
    }
    assert cli.err.count("why: memory is short by ") == 1
    assert cli.document("pareto small.json")["infeasible"]["num_devices"] == 4
    assert "no plan fits" in cli.err
    assert "would do: 4 such devices (2 would not)" in cli.err


# Bad input
