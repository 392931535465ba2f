"""``--pin``, ``nest fit`` and ``nest explain`` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from nest.constraints.pins import restrict
from nest.ir import DeviceRange, Problem, problem_hash, read_plan, write
from tests.builders import SINGLE, make_cost, make_levels, make_plan, make_problem
from tests.cli.conftest import Cli


def chain(**fields: object) -> Problem:
    """Two layers of 30 ns; 180, 120 and 60 ns on one to three devices."""
    cost = make_cost(10, 20, kept_bytes=10)
    fields.setdefault("global_batch", 3)
    return make_problem(
        {"a": cost, "b": cost},
        edge=0,
        devices=3,
        topology=make_levels((4, 0.0, 1e15)),
        **fields,
    )


@pytest.fixture(autouse=True)
def _files(tmp_path: Path) -> None:
    write(tmp_path / "problem.json", chain(sequence_length=10))
    write(tmp_path / "plan.json", make_plan(("a", SINGLE), ("b", SINGLE)))
    write(tmp_path / "two.json", chain_of_two_types())


# Pins


def test_pins_restrict_solve(cli: Cli) -> None:
    """The plan is one of the whole problem, and says so."""
    cli.succeeds(
        "solve problem.json --solver dp --pin pp=2,r=1 --forbid tp=2|3 -o "
        "out.json --json doc.json"
    )
    said = " ".join(cli.out.split())
    assert "without overlap under --pin pp=2,r=1 --forbid tp=2|3;" in said
    found = read_plan("out.json")
    assert len(found.stages) == 2
    assert found.problem_hash == problem_hash(chain(sequence_length=10))
    cli.succeeds("score problem.json out.json")
    assert cli.err == ""
    written = json.loads(Path("doc.json").read_text())
    assert written["restrictions"] == {
        "pin": {"pp": [2], "r": [1]},
        "forbid": {"tp": [2, 3]},
    }
    assert written["cells"][0]["step_time_ns"] == 120


def test_without_pins_nothing_is_said(cli: Cli) -> None:
    assert "restrictions" not in cli.document("compare problem.json --solvers dp")
    assert "only plans under" not in cli.err


# fit


def test_fit_writes_a_document(cli: Cli) -> None:
    document = cli.document("fit problem.json --memory --within 60e-9")
    assert document["schema"] == "nest-fit/1"
    assert document["question"] == "memory"
    assert document["answer"]["memory_bytes"] == 20
    answer = cli.document("fit two.json --hourly-budget 1 --price new=0.5")["answer"]
    assert answer["devices_by_type"] == {"New-80GB": 2}
    assert (answer["usd_per_hour"], answer["step_time_ns"]) == (1, 120)


def chain_of_two_types() -> Problem:
    """Two devices, 1 and 2 $ per hour; the step times of the plain chain."""
    problem = chain(sequence_length=10)
    device = replace(problem.cluster.device, price_usd_per_hour=1.0)
    part = DeviceRange(first=1, count=2, device=replace(device, name="New-80GB"))
    cluster = replace(problem.cluster, device=device, others=(part,))
    return replace(problem, cluster=cluster)


# explain


def test_explain_without_a_search(cli: Cli) -> None:
    document = cli.document("explain problem.json plan.json --no-search")
    assert document["schema"] == "nest-explain/1"
    assert document["optimum"] is None
    assert "What bounds it" not in cli.err


def test_explain_under_pins(cli: Cli) -> None:
    document = cli.document("explain problem.json plan.json --pin pp=2")
    assert document["optimum"]["step_time_ns"] == 120
    assert document["restrictions"] == {"pin": {"pp": [2]}, "forbid": {}}
    assert "only plans under --pin pp=2" in cli.err
    assert "the plan is as good" in cli.err


def test_explain_says_where_a_plan_comes_from(cli: Cli) -> None:
    """Plans of pinned problems belong to the whole one; others do not."""
    write("narrow.json", restrict(chain(), {"pp": (2,)}))
    cli.succeeds("solve narrow.json --solver dp -o foreign.json")
    cli.succeeds("explain problem.json foreign.json --no-search")
    assert "warning: the plan was made for problem" in cli.err
