"""The tables of planners: their problems, their rows, what they say."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from bench import aceso, every_cell, instances, launchability, planners
from bench.planners import PIPELINED, REFERENCE, SOLVERS, details, markdown
from bench.result_files import page_path, read_rows
from nest.models import builtin
from nest.solvers.base import SolveOptions
from nest.solvers.run import run_solver


def row(solver: str, kind: str, shared_ns: float | None, **more: Any) -> Any:
    return {
        "instance": "x-64",
        "solver": solver,
        "kind": kind,
        "status": "feasible",
        "limit": None,
        "over_memory_bytes": None,
        "own_objective_ns": None,
        "shared_step_time_ns": shared_ns,
        "repaired_step_time_ns": None,
        "wall_s": 1.25,
        **more,
    }


def summary(text: str, solver: str) -> list[str]:
    """Return the line of a solver in the first table."""
    (found, *_) = re.findall(rf"^\| {solver} \| (.*) \|$", text, re.M)
    return str(found).split(" | ")


def test_tables() -> None:
    """2 s is the optimum of x, 4 s of y; means of 2 and 4.5 are 3.

    Piper's plan is 3 s and does not fit, repaired it is 4 s, twice the
    optimum; that of Phaze cannot be repaired.
    """
    best = {"status": "optimal"}
    over = {"over_memory_bytes": 1_500_000_000}
    rows = [
        row(REFERENCE, "plan", 2e9, **best),
        row(REFERENCE, "plan", 4e9, instance="y-8", **best),
        row("alpa", "plan", 4e9, own_objective_ns=3e9),
        row("alpa", "plan", 18e9, instance="y-8"),
        row("piper", "over memory", 3e9, repaired_step_time_ns=4e9, **over),
        row("phaze", "over memory", 3e9, own_objective_ns=1.5e9, **over),
        row("galvatron", "no plan", None),
        row("uniap", "out of time", None, limit="time", wall_s=60.04),
        row(PIPELINED, "skipped", None),
    ]
    text = markdown(["x-64", "y-8"], rows)
    assert summary(text, REFERENCE) == ["1.000 (2)"] * 2 + ["–", "1.2, 1.2"]
    assert summary(text, "alpa") == [
        *("3.000 (2)", "3.000 (2)", "0.75 to 0.75", "1.2, 1.2")
    ]
    assert summary(text, "piper") == ["–", "2.000 (1)", "–", "1.2, 1.2"]
    assert summary(text, "phaze")[2] == "0.50 to 0.50"
    assert summary(text, "uniap")[3] == "60.0, 60.0"
    assert summary(text, "random") == ["–"] * 4


def test_plans_are_repaired_as_the_runner_does_it() -> None:
    problem = builtin.load("llama2-7b-16")
    answer = run_solver(problem, "megatron", SolveOptions()).to_json()
    found = details(problem, answer)
    assert answer["over_memory_bytes"]
    assert found["shared_step_time_ns"] == answer["score"]["step_time_ns"]
    repaired = run_solver(problem, "megatron", SolveOptions(repair=True))
    assert found["repaired_step_time_ns"] == repaired.step_time_ns
    assert found["repair"] == repaired.extra["repair"] != []
    # A plan that fits is left as it is, and there may be none.
    fits = details(problem, repaired.to_json())
    assert fits["shared_step_time_ns"] == repaired.step_time_ns
    assert (fits["repaired_step_time_ns"], fits["repair"]) == (None, [])
    none = details(problem, {**answer, "plan": None, "score": None})
    assert none["shared_step_time_ns"] is None
    assert none["peak_rss_bytes"] == answer["peak_rss_bytes"]


def block(mark: str, page_name: str = "planners") -> str:
    page = page_path(page_name).read_text()
    before, _, rest = page.partition(f"<!-- {mark}: begin -->\n")
    assert before
    return rest.partition(f"\n<!-- {mark}: end -->")[0]


def test_the_page_shows_the_stored_rows() -> None:
    rows = read_rows("every_cell")
    own = [row for row in rows if row["set"] == every_cell.PLANNERS]
    names = [entry["name"] for entry in planners.read_entries()]
    assert block("planners") == markdown(names, own)
    text = block("every cell")
    num_all = re.match(r"\d+ of (\d+) cells", text)
    assert num_all is not None
    assert text == every_cell.markdown(rows, int(num_all[1]))


def test_the_page_of_launchability_shows_the_stored_rows() -> None:
    rows = read_rows("launchability")
    assert block("launchability", "launchability") == launchability.markdown(rows)
    assert {row["instance"] for row in rows} == {
        entry["name"] for entry in planners.read_entries()
    }


def test_the_page_of_aceso_shows_the_stored_rows() -> None:
    *rows, recorded = read_rows("aceso")
    assert block("gaps", "aceso") == aceso.markdown(rows)
    assert block("fidelity", "aceso") == aceso.recorded_steps(recorded)


def test_the_page_of_instances_shows_the_library() -> None:
    assert block("instances", "instances") == instances.tables()


def test_rows_are_of_the_problems_as_they_are_built() -> None:
    """Every planner has a row, and none beats the optimum, repaired or not.

    If costs changed on purpose: ``python bench/planners.py``, then ``python
    bench/every_cell.py``.
    """
    rows = {
        (row["problem_hash"], row["solver"]): row for row in read_rows("every_cell")
    }
    for one in planners.instances():
        best = rows[one.hash, REFERENCE]
        assert best["instance"] == one.name
        assert best["status"] == "optimal"
        for solver in SOLVERS:
            time_ns = planners.fitting_ns(rows[one.hash, solver], repaired=True)
            assert time_ns is None or time_ns >= best["shared_step_time_ns"]


@pytest.fixture
def one_entry(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A file with one problem, whose hash is that of another."""
    path = tmp_path / "planners.json"
    entry = {
        "name": "small",
        "problem": "llama2-7b-8",
        "arguments": [],
        "granularity": "layer",
        "problem_hash": "f00",
    }
    path.write_text(json.dumps([entry]))
    monkeypatch.setattr(planners, "INSTANCES", path)
    return path


def test_changed_costs_are_noticed(one_entry: Any, capsys: Any) -> None:
    with pytest.raises(
        SystemExit,
        match=r"small: expected the problem with hash f00, got \w{64}; its "
        r"costs changed: run bench/planners.py, then all of its cells again",
    ):
        planners.instances()
    planners.main()
    (said,) = capsys.readouterr().out.splitlines()
    (one,) = planners.instances()
    assert said == f"small: f00 is now {one.hash}"
    assert one.problem.job.granularity == "layer"
    planners.main()
    assert capsys.readouterr().out == ""
