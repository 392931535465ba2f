"""Intervals and guaranteed step times on the command line."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from nest.cli.progress import StatusLine
from nest.cost.score import score
from nest.ir import Problem, read_plan, read_problem, write
from nest.uncertainty.intervals import intervals_of
from tests.builders import SINGLE, make_cost, make_plan, make_problem
from tests.cli.conftest import Cli
from tests.unit.uncertainty.test_intervals import NUMBERS


@pytest.fixture(autouse=True)
def _numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is fitted does not decide here."""
    monkeypatch.setattr("nest.uncertainty.intervals.stored_deviations", lambda: NUMBERS)


def chain(**fields: object) -> Problem:
    """Two layers of 60 ns, two micro-batches; a cut takes 15 ns each way.

    On one device a step takes 2 · 120 = 240, in two stages 3 · 75 = 225.
    """
    cost = make_cost(20, 40, kept_bytes=10)
    return make_problem(
        {"a": cost, "b": cost},
        edge=5,
        devices=2,
        memory_bytes=10**6,
        global_batch=2,
        replicas=(1,),
        **fields,
    )


@pytest.fixture(autouse=True)
def _problem(tmp_path: Path) -> None:
    write(tmp_path / "problem.json", chain(sequence_length=1))


@pytest.fixture
def bare(tmp_path: Path) -> str:
    path = str(tmp_path / "bare.json")
    write(path, chain())
    return path


@pytest.fixture
def plan(tmp_path: Path) -> str:
    path = str(tmp_path / "plan.json")
    write(path, make_plan(("a", SINGLE), ("b", SINGLE)))
    return path


def known(plan: str) -> dict[str, object]:
    """Return the intervals as documents have them."""
    both = read_problem("problem.json"), read_plan(plan)
    found = intervals_of(*both, score(*both))
    assert found is not None
    return found.to_json()


def test_score_shows_intervals(cli: Cli, plan: str) -> None:
    assert cli.document(f"score problem.json {plan}")["intervals"] == known(plan)
    assert "; 9 of 10 measured steps take " in cli.err
    assert (
        "(from device not known, no layer profiled, software not stated (wider))"
    ) in " ".join(cli.err.split())
    cli.succeeds(f"score problem.json {plan} --verbose")
    assert "by the cost model; 50 %: " in cli.out
    assert " memory 90 %: " in cli.out


def test_of_other_costs_nothing_is_said(cli: Cli, bare: str, plan: str) -> None:
    assert cli.document(f"score {bare} {plan}")["intervals"] is None
    assert "measured steps" not in cli.err
    assert "50 %" not in cli.err


def test_compare_shows_intervals_and_equals(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One stage takes 6.67 % more than two: one link of 20 % of the step."""
    # On a busy machine progress would come between the lines.
    monkeypatch.setattr(StatusLine, "FIRST_S", math.inf)
    first, second = cli.document("compare problem.json --solvers dp,mcmc")["cells"]
    assert first["step_time_ns"] == 225
    assert second["step_time_ns"] == 240
    assert first["equal_to_best"] is True
    assert second["equal_to_best"] is True
    assert second["intervals"]["rests_on"] == first["intervals"]["rests_on"]
    rows = [" ".join(row.split()) for row in cli.err.splitlines()]
    assert re.fullmatch(r"dp \w+ 20 bytes 225 \(\d+–\d+\) fastest optimal \S+", rows[3])
    assert re.fullmatch(r"mcmc \w+ 20 bytes 240 \(\d+–\d+\) 6\.7 \* none \S+", rows[4])
    assert any(row.startswith("* within the prediction error") for row in rows)


def test_compare_says_nothing_of_other_costs(cli: Cli, bare: str) -> None:
    (cell,) = cli.document(f"compare {bare} --solvers dp")["cells"]
    assert (cell["intervals"], cell["equal_to_best"]) == (None, None)
    assert "fits: yes = " not in cli.err


def test_explain_says_what_is_equal(cli: Cli) -> None:
    write("one.json", make_plan(("a b", SINGLE)))
    document = cli.document("explain problem.json one.json")
    assert document["intervals"] == known("one.json")
    assert document["equal_to_best"] is True
    text = "the plan takes 6.67 % more, equal within the noise"
    assert text in " ".join(cli.err.split())
    near = {x["name"]: x for x in document["neighbours"]}
    # Two stages take 6.25 % less.
    assert near["one stage more"]["equal_to_plan"] is True
    assert "-6.25 % *" in cli.err


# The best guaranteed step time


def test_a_robust_plan(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """The network may take e times as long, and devices not so much."""
    unsure = replace(NUMBERS, network=1.0)
    for module in ("uncertainty.intervals", "analysis.robust"):
        monkeypatch.setattr(f"nest.{module}.stored_deviations", lambda: unsure)
    document = cli.document("solve problem.json --solver dp --robust -o robust.json")
    robust = document["robust"]
    assert 0 < robust["gap"] < 1
    assert robust["memory_kept"] is True
    assert robust["fastest"]["step_time_ns"] == 225
    assert robust["cost"] == pytest.approx(15 / 225)
    assert robust["gain"] > 0
    (cell,) = document["cells"]
    assert cell["status"] == "feasible"
    assert (cell["step_time_ns"], cell["lower_bound_ns"]) == (240, 225)
    assert len(read_plan("robust.json").stages) == 1
    assert robust["guaranteed_step_time_ns"] == cell["intervals"]["step_time_90_ns"][1]
    assert "with 95 %; 2 plans of " in cli.err
    assert "this one costs 6.67 % in the step time and gains" in (
        " ".join(cli.err.split())
    )
