"""The same words in every command: problems of models, plans by settings."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nest.cost.score import score
from nest.ir import Problem, problem_hash, read_plan, write
from tests.builders import (
    SINGLE,
    make_cost,
    make_levels,
    make_plan,
    make_problem,
)
from tests.cli.conftest import Cli
from tests.inside import PLACES, run_inside

MODEL = (
    *("--model", "llama2-7b", "--cluster", "h100x8", "--micro-batches", "1"),
    *("--global-batch", "8", "--layers-per-node", "8"),
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
        edges=(("a", "b", 0),),
        devices=2,
        memory_bytes=memory_bytes,
        topology=make_levels((2, 0.0, 1e15), (1, 0.0, 1e15)),
        global_batch=2,
    )


@pytest.fixture
def problem(tmp_path: Path) -> str:
    path = str(tmp_path / "problem.json")
    write(path, chain())
    return path


# Problems


def test_every_command_takes_a_model(cli: Cli, tmp_path: Path) -> None:
    """The problem is that of 'nest problems' with the same words."""
    problem, plan = str(tmp_path / "problem.json"), str(tmp_path / "plan.json")
    assert cli("problems", *MODEL, "-o", problem) == 0
    assert cli("solve", *MODEL, "--pin", "tp=8", "-o", plan) == 0
    for command in ("score", "check", "simulate", "explain"):
        more = ("--no-search",) if command == "explain" else ()
        assert cli(command, problem, plan, *more) == 0
        said = cli.out
        assert cli(command, *MODEL, plan, *more) == 0
        assert cli.out == said
        assert cli.err == ""
    texts = []
    for words in ((problem, plan), (*MODEL, plan)):
        out = tmp_path / f"trace-{len(texts)}.json"
        assert cli("trace", *words, "-o", str(out)) == 0
        texts.append(out.read_text())
    assert texts[0] == texts[1]


def test_exports_take_a_model(cli: Cli, tmp_path: Path) -> None:
    """The model's training keeps what the framework's does."""
    words = (*MODEL, "--to", "megatron", "-o", str(tmp_path / "launch"))
    assert cli("export", *words, "--plan", "tp=8,r=1") == 0
    assert (
        "--tensor-model-parallel-size"
        in (tmp_path / "launch/args.sh").read_text()
    ), cli.out


def test_certificates_are_of_the_problem_written(
    cli: Cli, tmp_path: Path
) -> None:
    certificate, problem = tmp_path / "c.json", str(tmp_path / "problem.json")
    assert cli("problems", *MODEL, "-o", problem) == 0
    plan = ("--plan", "tp=8,pp=1,recompute=none")
    assert cli("certify", *MODEL, *plan, "-o", str(certificate)) == 0
    assert cli.out.startswith("feasible: step time 907836660 ns, lower bound")
    ran = subprocess.run(
        [sys.executable, "-m", "nest.certificates.check", problem, certificate]
    )
    assert ran.returncode == 0


# Plans by their settings


def test_settings_stand_for_the_fastest_plan(cli: Cli, problem: str) -> None:
    """Two stages take 30 ns a pass, three of them; one takes 60 ns, twice."""
    assert cli("score", problem, "--plan", "pp=2,r=1", "--json", "-") == 0
    document = json.loads(cli.out)
    assert document["step_time_ns"] == 90
    assert cli("score", problem, "pp=1,r=1", "--json", "-") == 0
    assert json.loads(cli.out)["step_time_ns"] == 120
    assert "nest: PLAN is the fastest with pp=1,r=1: r=1, b=1, pp=1" in cli.err


def test_settings_that_do_not_fit_stand_for_the_least_memory(
    cli: Cli, tmp_path: Path
) -> None:
    """One stage holds 200 bytes; of two the first holds 100 of each of two."""
    path = str(tmp_path / "small.json")
    write(path, chain(199))
    assert cli("check", path, "--plan", "pp=1,r=1") == 1
    assert "infeasible" in cli.out
    assert "got 200" in cli.out
    assert (
        "--plan is the one that needs least memory with pp=1,r=1, none fits: "
        "r=1, b=1, pp=1" in cli.err
    )


def test_warm_starts_are_plans_by_settings(
    cli: Cli, problem: str, tmp_path: Path
) -> None:
    out = str(tmp_path / "out.json")
    assert cli("solve", problem, "--warm-start", "pp=1", "-o", out) == 0
    assert "--warm-start is the fastest with pp=1" in cli.err
    found = read_plan(out)
    assert found.problem_hash == problem_hash(chain())
    assert score(chain(), found).step_time_ns == 60


def test_a_file_goes_before_settings(
    cli: Cli, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write("tp=1", make_plan(("a", SINGLE), ("b", SINGLE)))
    assert cli("score", problem, "tp=1") == 0
    assert cli.err == ""


# Without a plan


def test_infeasible_says_what_would_do(cli: Cli, tmp_path: Path) -> None:
    """Of two stages the first keeps 100 bytes of two micro-batches.

    So does one stage with both layers; on four devices two replicas keep
    those of one micro-batch.
    """
    path = str(tmp_path / "small.json")
    write(path, chain(150))
    assert cli("compare", path, "--solvers", "dp,brute", "--json", "-") == 0
    found = json.loads(cli.out)["infeasible"]
    assert found.pop("plan")["schema"] == "nest-plan/1"
    assert found == {
        "whatever_the_memory": False,
        "memory_bytes": 200,
        "refuted_memory_bytes": 199,
        "num_devices": 4,
        "refuted_devices": 2,
    }
    assert cli.err.count("why: memory is short by ") == 1
    assert cli("pareto", path, "--json", "-") == 0
    assert json.loads(cli.out)["infeasible"]["num_devices"] == 4
    assert "no plan fits" in cli.err
    assert "would do: 4 such devices (2 would not)" in cli.err


# Bad input


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "nest score: expected PROBLEM, got none; see 'nest score --help"),
        (("P",), "nest score: expected PLAN, got none; see 'nest score --h"),
        (MODEL, "nest score: expected PLAN, got none; see 'nest score --help"),
        (
            ("P", "Q", "--plan", "tp=1"),
            "--plan: expected either it or PLAN, got 'Q' too; remove one",
        ),
        (
            ("P", "Q", *MODEL),
            "--model: expected either PROBLEM or --model with its options",
        ),
        (
            ("P", "--plan", "tp=2"),
            r"--plan tp=2: expected one of the tensor parallel .*\(1\)",
        ),
        (
            ("P", "tp=1,pp=3"),
            "PLAN pp=3: expected at most 2 stages",
        ),
        (("P", "--plan", "tpp=1"), "--plan: expected one of .* got 'tpp'"),
        (("P", "--plan", "none.json"), "none.json: expected a readable file"),
    ],
)
def test_bad_words(
    cli: Cli, problem: str, arguments: tuple[str, ...], text: str
) -> None:
    words = [problem if word == "P" else word for word in arguments]
    assert re.match(text, cli.refuses("score", *words))
