"""The command line, in this process: texts, files and exit codes."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from nest.cli.main import main
from nest.ir import Problem, encode, problem_hash, read_plan, read_problem, write
from nest.models import builtin
from nest.solvers import registry
from nest.util.versions import num_cpus
from tests.cli.conftest import Cli
from tests.loopback import (
    BASELINE,
    OVERRUNNER,
    TARGET,
    Loopback,
    crowded_problem,
    good_plan,
    tiny_problem,
)

pytestmark = pytest.mark.usefixtures("files")


@pytest.fixture(autouse=True)
def _solvers() -> Iterator[None]:
    registry.register_solver("loopback", TARGET)
    registry.register_solver("baseline", BASELINE)
    registry.register_solver("overrunner", OVERRUNNER)
    registry.register_solver("engine", "tests.loopback:NeedsEngine")
    yield
    for name in ("loopback", "baseline", "overrunner", "engine"):
        registry.unregister_solver(name)


def solve(act: str) -> str:
    return f"solve problem.json --solver loopback --option loopback.act={act}"


# Help


def test_help(cli: Cli) -> None:
    cli.succeeds()
    assert "compare" in cli.out
    cli.succeeds("--help")
    cli.succeeds("compare -h")
    assert "--time-limit" in cli.out
    cli.succeeds("--version")
    assert re.fullmatch(r"nest \S+\n", cli.out)


def test_versions(cli: Cli) -> None:
    cli.succeeds("versions")
    assert re.search(r"^ortools +\S", cli.out, re.MULTILINE)
    assert re.search(r"^python +3\.", cli.out, re.MULTILINE)


# solve


def test_solve_prints_and_writes(cli: Cli) -> None:
    cli.succeeds(f"{solve('optimal')} -o out.json --json doc.json")
    assert cli.err == ""
    for line in (
        r"tiny: 2 × device, 2 samples per step$",
        r"fits +yes, as predicted: 80 of 100 bytes on the fullest device$",
        r"step time +90\.0000 ns$",
        r"speed +22,220,000 samples/s$",
        r"plan +TP 1 · PP 2 · DP 1 · CP 1 · ZeRO 0 · no recomputation · ",
        r"proof +optimal among 1F1B plans without overlap; loopback, "
        r"\d+\.\d\d s$",
    ):
        assert re.search(f"^{line}", cli.out, re.MULTILINE), line
    assert max(map(len, cli.out.splitlines())) <= 80
    cli.succeeds(f"{solve('optimal')} --verbose -o out.json")
    for line in (
        r" +simulated 90\.0000 ns",
        r" +lower bound 90\.0000 ns; ",
        r"    1 +0 +1 \(0\) +0 +single +10\.0000 ns +20\.0000 ns +.*80 bytes",
    ):
        assert re.search(f"^{line}", cli.out, re.MULTILINE), line
    written = read_plan("out.json")
    assert written.solver == "loopback"
    assert written.problem_hash == problem_hash(tiny_problem())
    assert written.stages == good_plan().stages
    cells = json.loads(Path("doc.json").read_text())["cells"]
    assert [cell["solver"] for cell in cells] == ["loopback"]
    assert msgspec.convert(cells[0]["plan"], type(written)) == written


def test_solve_without_a_plan(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan of before is gone, so that nobody takes it for this one."""
    monkeypatch.setattr("nest.analysis.feasible.remedies_within", lambda *_: None)
    # The solver is wrong: a plan fits.
    monkeypatch.setattr("nest.solvers.challenge.SHARE", 0.0)
    plan = Path("out.json")
    command = f"{solve('infeasible')} -o {plan}"
    assert cli(command) == 1
    assert re.search(r"^proof +infeasible: no plan fits \(no room\); ", cli.out, re.M)
    *_, said = cli.err.splitlines()
    assert said == "nest: out.json not written: no plan"
    plan.write_text("stale")
    assert cli(command) == 1
    *_, said = cli.err.splitlines()
    assert said == "nest: out.json removed: no plan"
    assert not plan.exists()
    cli.succeeds(solve("infeasible"))


def test_solve_to_standard_output(cli: Cli) -> None:
    cli.succeeds(f"{solve('optimal')} -o -")
    assert json.loads(cli.out)["schema"] == "nest-plan/1"
    assert "step time" in cli.err
    assert cli.document(solve("optimal"))["schema"] == "nest-compare/1"
    assert "step time" in cli.err


@pytest.mark.parametrize(("more", "limit_s"), [("", 60), ("--time-limit 7", 7)])
def test_compare_all(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, more: str, limit_s: int
) -> None:
    """Every solver that can run here, and a limit, as some take days."""
    monkeypatch.setattr(registry, "_BUILT_IN", {"dp": "nest.search.solver:Dp"})
    monkeypatch.setattr(
        registry, "_registered", {"baseline": BASELINE, "loopback": TARGET}
    )
    command = "compare problem.json --solvers all"
    document = cli.document(
        f"{command} --option baseline.act=heuristic {more} --verbose"
    )
    # 'dp' is left out: there is no such class.
    assert document["solvers"] == ["baseline", "loopback"]
    assert document["time_limit_s"] == limit_s
    assert f"time limit {limit_s} s" in cli.err


def test_traceback_is_in_the_document_only(cli: Cli) -> None:
    assert cli(f"{solve('raise')} --json -") == 1
    assert "Traceback" in json.loads(cli.out)["cells"][0]["extra"]["traceback"]
    assert "Traceback" not in cli.err


# compare


@pytest.mark.parametrize("granularity", ["", "--target megatron"])
def test_a_gap_is_said_once(cli: Cli, granularity: str) -> None:
    """By the runner: the solver has nothing to add, in either search."""
    cli.succeeds(f"solve llama2-7b-8 --gap 0.2 --workers 1 {granularity}")
    assert " ".join(cli.out.split()).count("(stopped within a gap of 20 %)") == 1


def test_parallel_solvers_get_every_cpu(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        Loopback, "capabilities", replace(Loopback.capabilities, parallel=True)
    )
    command = "compare problem.json --solvers loopback,baseline"
    acts = "--option loopback.act=optimal --option baseline.act=heuristic"
    document = cli.document(f"{command} {acts}")
    workers = [cell["options"]["num_workers"] for cell in document["cells"]]
    assert workers == [num_cpus(), 1]
    assert document["workers"] == (1 if num_cpus() == 1 else None)
    cli.succeeds(f"{command} {acts} --workers 1 --verbose")
    assert "workers 1 · seed 0" in cli.out


def test_compare_document(cli: Cli, tmp_path: Path) -> None:
    assert (
        cli(
            "compare problem.json --solvers loopback,baseline --option "
            "loopback.act=optimal --json doc.json --option "
            "baseline.act=wrong-claim --workers 1"
        )
        == 1
    )
    assert "MISMATCH" in cli.out
    document = json.loads(Path("doc.json").read_text())
    assert document["solvers"] == ["loopback", "baseline"]
    assert document["problem_hash"] == problem_hash(tiny_problem())
    good, bad = document["cells"]
    assert document["workers"] == 1
    assert good["outcome"] == "solved"
    assert good["options"]["gap"] == 0
    assert good["score"]["step_time_ns"] == 90
    assert bad["outcome"] == "mismatch"
    assert [p.name for p in tmp_path.iterdir() if "doc" in p.name] == ["doc.json"]


def test_compare_to_standard_output(cli: Cli) -> None:
    assert len(cli.document("compare problem.json --solvers loopback")["cells"]) == 1
    assert "slower, %" in " ".join(cli.err.split())


def test_compare_warm_start(cli: Cli) -> None:
    cell = cli.document(
        "compare problem.json --solvers loopback --option "
        "loopback.act=say-options --warm-start plan.json"
    )["cells"][0]
    assert cell["extra"]["warm_start"] is True
    assert cell["options"]["warm_start"] is True
    assert "warm start not used by loopback" in cli.err


def test_compare_has_a_default_problem(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def load(name: str) -> Any:
        asked.append(name)
        return tiny_problem()

    monkeypatch.setattr(builtin, "load", load)
    cli.succeeds("compare --solvers loopback")
    assert asked == [builtin.DEFAULT]


# score and check


def test_score(cli: Cli) -> None:
    cli.succeeds("score problem.json plan.json")
    assert re.search(r"^fits +yes, as predicted: ", cli.out, re.MULTILINE)
    assert re.search(r"^step time +90\.0000 ns$", cli.out, re.MULTILINE)
    document = cli.document("score problem.json plan.json")
    assert document["step_time_ns"] == 90
    assert document["feasible"] is True
    assert document["violations"] == []
    assert [s["forward_ns"] for s in document["stages"]] == [10, 10]


@pytest.mark.parametrize("command", ["score", "check"])
def test_plan_made_for_another_problem_that_fits(cli: Cli, command: str) -> None:
    write("plan.json", msgspec.structs.replace(good_plan(), problem_hash="f" * 64))
    cli.succeeds(f"{command} problem.json plan.json")
    assert cli.err.startswith(
        "nest: warning: the plan was made for problem ffffffffffff, this is"
    )


@pytest.mark.parametrize("command", ["score", "check", "simulate"])
def test_a_plan_with_an_order_of_its_own(cli: Cli, command: str) -> None:
    """Two stages; the second order runs a backward pass before its input."""
    problem = json.loads(Path("problem.json").read_text())
    problem["job"]["schedule"] = "any"
    Path("any.json").write_text(json.dumps(problem))
    plan = json.loads(Path("plan.json").read_text())
    plan |= {"problem_hash": None, "order": "gpipe"}
    num_stages = len(plan["stages"])
    count = problem["job"]["global_batch"] // plan["replicas"]
    Path("named.json").write_text(json.dumps(plan))
    cli.succeeds(f"{command} any.json named.json")
    plan["order"] = [
        [f"{chunk}{kind}{m}" for kind in "FB" for m in range(count)]
        for chunk in range(num_stages)
    ]
    Path("listed.json").write_text(json.dumps(plan))
    cli.succeeds(f"{command} any.json listed.json")
    plan["order"][0].insert(0, plan["order"][0].pop())
    Path("wrong.json").write_text(json.dumps(plan))
    assert cli.refuses(command, "any.json", "wrong.json").endswith(
        f"order, block 1: expected 0F{count - 1} in front of 0B{count - 1}, "
        f"got it later or not at all; reorder them"
    )


def test_repairs_are_in_the_document(cli: Cli) -> None:
    write("crowded.json", crowded_problem())
    option = "--option overrunner.act=too-big --repair -v"
    (cell,) = cli.document(f"compare crowded.json --solvers overrunner {option}")[
        "cells"
    ]
    assert cell["step_time_ns"] == 160
    assert cell["extra"]["repair"] == ["recompute full"]
    assert "seed 0 · plans repaired" in cli.err


# Lists


def test_solvers(cli: Cli) -> None:
    cli.succeeds("solvers")
    assert re.search(r"^loopback +yes +yes +says what", cli.out, re.MULTILINE)
    assert re.search(r"^baseline +no +yes +says what", cli.out, re.MULTILINE)
    assert re.search(r"^engine .* no .*pip install no_such", cli.out, re.M)
    assert "--option loopback.act=VALUE  what to do" in cli.out


def test_solvers_as_json(cli: Cli) -> None:
    entries = {e["solver"]: e for e in cli.document("solvers")["solvers"]}
    assert {"brute", "dp", "cpsat", "milp"} <= set(entries)
    assert entries["loopback"]["exact"] is True
    assert entries["loopback"]["reason"] is None
    assert "no_such_engine" in entries["engine"]["reason"]


def test_problems(cli: Cli) -> None:
    cli.succeeds("problems")
    for name in builtin.names():
        assert name in cli.out
    entries = cli.document("problems")["problems"]
    assert [e["name"] for e in entries] == list(builtin.names())
    assert [e["name"] for e in entries if e["default"]] == [builtin.DEFAULT]

    name = builtin.DEFAULT
    cli.succeeds(f"problems {name} -o one.json")
    assert read_problem("one.json") == builtin.load(name)
    cli.succeeds(f"problems --show {name}")
    assert cli.out.encode() == encode(builtin.load(name))


def test_file_wins_over_a_built_in_problem(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(builtin.DEFAULT, tiny_problem("from a file"))
    cli.succeeds(f"check {builtin.DEFAULT}")
    assert "from a file" in cli.out


def test_ignored_plugins_are_named(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "ignored_plugins", lambda: {"dp of theirs": "taken"})
    cli.succeeds("solvers")
    assert cli.err == "ignored: dp of theirs: taken\n"


def test_import(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def importer(path: str) -> Problem:
        asked.append(path)
        return tiny_problem("imported")

    monkeypatch.setattr(
        "nest.audits.nest_artifact.importer.import_nest_artifact", importer
    )
    cli.succeeds("import nest-artifact model.xml -o problem.json")
    assert asked == ["model.xml"]
    assert read_problem("problem.json").name == "imported"


def test_import_piper(cli: Cli) -> None:
    node = {
        "id": 0,
        "TMPCs": {
            "1": [
                {
                    "id": "vanilla",
                    "timePerSample": 2,
                    "parameterSize": 0,
                    "memoryUsageA": 1,
                    "memoryUsageB": 1,
                    "syncTimeFw": {},
                    "syncTimeBw": {},
                }
            ]
        },
    }
    source = Path("graph.json")
    source.write_text(json.dumps({"nodes": [node], "edges": []}))
    setting = "--devices 3 --micro-batches 12"
    network = "--bandwidth-bytes-per-s 1e9"
    command = f"import piper graph.json {setting} {network} -o problem.json"
    error = cli.refuses(command)
    assert "maxMemoryPerDevice: expected a value, got none" in error
    cli.succeeds(f"{command} --memory-bytes 2")
    plain = Path("problem.json").read_text()
    command = command.replace("per-s 1e9", "per-s 8Gb/s")
    cli.succeeds(f"{command} --memory-bytes 2B")
    assert Path("problem.json").read_text() == plain
    job = read_problem("problem.json").job
    assert (job.global_batch, job.micro_batches) == (12, (1,))
    # Three devices take turns: 2 units, that is seconds, in 3.
    cli.succeeds("solve problem.json --solver dp -o plan.json")
    found = cli.document("score problem.json plan.json")
    assert found["step_time_ns"] == 666666666.667
    assert found["throughput_samples_per_s"] == pytest.approx(1.5)


# Bad input


def test_places_without_permission(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    for path, text in (
        ("big.json", "got a file that may not be written; choose"),
        ("new", "got a directory .* that may not be written"),
    ):
        error = cli.refuses(f"{solve('optimal')} -o {path}")
        assert re.search(text, error)


def test_internal_errors(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(problem: object, plan: object) -> None:
        raise ZeroDivisionError("boom")

    monkeypatch.setattr("nest.cost.score.score", explode)
    arguments = ("score", "problem.json", "plan.json")
    assert cli(*arguments) == 1
    assert cli.err == (
        "nest: internal error: ZeroDivisionError: boom; "
        "run with NEST_DEBUG=1 for the traceback\n"
    )
    monkeypatch.setenv("NEST_DEBUG", "1")
    with pytest.raises(ZeroDivisionError, match="boom"):
        main(arguments)
