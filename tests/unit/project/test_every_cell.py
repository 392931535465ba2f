"""The table of every solver on every problem: what counts as what."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench import every_cell
from bench.every_cell import beaten, kind_of, markdown, not_run
from nest.solvers.base import Limit, Status
from nest.solvers.result import Outcome


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("plan", {"status": Status.OPTIMAL, "step_quanta": 5}),
        ("plan", {"step_quanta": 5, "limit": Limit.TIME}),
        ("infeasible", {"status": Status.INFEASIBLE}),
        ("over memory", {"status": Status.OVER_MEMORY, "detail": "by far"}),
        ("failed", {"status": Status.OVER_MEMORY}),
        ("no plan", {"detail": "none is small enough"}),
        ("failed", {"detail": "two\nlines"}),
        ("failed", {}),
        ("out of time", {"limit": Limit.TIME, "detail": "all gone"}),
        ("skipped", {"outcome": Outcome.SKIPPED, "detail": "no such field"}),
        ("failed", {"outcome": Outcome.SKIPPED}),
        ("failed", {"outcome": Outcome.ERROR, "detail": "it fell over"}),
        ("failed", {"outcome": Outcome.MISMATCH, "step_quanta": 5}),
        ("failed", {"outcome": Outcome.INVALID_PLAN, "detail": "odd"}),
    ],
)
def test_what_a_cell_came_to(kind: str, fields: dict[str, Any]) -> None:
    row: Any = SimpleNamespace(
        **{
            "outcome": Outcome.SOLVED,
            "status": Status.FEASIBLE,
            "limit": None,
            "detail": "",
            "step_quanta": None,
            **fields,
        }
    )
    assert kind_of(row) == kind


def result(solver: str, kind: str, **fields: Any) -> dict[str, Any]:
    return {
        "set": every_cell.SMALL,
        "instance": "x",
        "problem_hash": "1",
        "solver": solver,
        "kind": kind,
        "status": "feasible",
        "detail": "",
        "step_quanta": None,
        "bound_quanta": None,
        **fields,
    }


def optimal(solver: str, quanta: int, **fields: Any) -> dict[str, Any]:
    values = {"status": "optimal", "bound_quanta": quanta, **fields}
    return result(solver, "plan", step_quanta=quanta, **values)


NOTHING = {"status": "infeasible"}


def test_who_beats_a_proof() -> None:
    """Less time, a plan where there is none, a proof that says otherwise."""
    best = optimal("dp", 10)
    fair = [
        best,
        optimal("milp", 10),
        result("alpa", "plan", step_quanta=10),
        result("ft", "plan", step_quanta=9, problem_hash="2"),
        result("piper", "over memory", step_quanta=None, detail="x"),
        result("random", "plan", step_quanta=11),
    ]
    assert beaten(fair) == []
    none = result("dp", "infeasible", **NOTHING)
    assert beaten([none, result("milp", "infeasible", **NOTHING)]) == []
    for bad in (
        result("alpa", "plan", step_quanta=9),
        optimal("milp", 11),
        result("cpsat", "infeasible", **NOTHING),
    ):
        (line,) = beaten([best, bad])
        assert line.startswith(f"x: {bad['solver']}: ")
        assert line.endswith("where dp proves 10")
    (line,) = beaten([none, result("alpa", "plan", step_quanta=9)])
    assert line == "x: alpa: feasible with 9 quanta, where dp proves None"
    # Without a proof nothing is refuted.
    assert beaten([result("dp", "plan", step_quanta=10), *fair[1:]]) == []


def test_tables() -> None:
    """Means are of plans where dp has a proof: sqrt(2 · 4.5) = 3."""
    rows = [
        *(optimal("dp", 10, problem_hash=x, instance=x) for x in "12"),
        result("alpa", "plan", step_quanta=20),
        result("alpa", "plan", step_quanta=45, problem_hash="2"),
        result("alpa", "no plan", problem_hash="3", detail="3 of 4, 5 or 6"),
        result("alpa", "no plan", problem_hash="4", detail="1 of 2, 2 or 1.5"),
        result("ft", "out of time", problem_hash="3"),
    ]
    text = markdown(rows, 9)
    assert text.startswith(
        "7 of 9 cells were run, on 0 of *NEST's*, 4 of *NEST's, small*, 0 of "
        "*planners*. 4 are answered, 2 explained, 1 out of time without a "
        "plan and 0 failed. `dp` answers 2 and is beaten 0 times.\n"
    )
    lines = text.splitlines()
    # Of four problems, dp has run two, alpa all and ft one; others none.
    assert lines[1].startswith("Not run: `brute` on 4 of *NEST's, small*, `dp`")
    assert "`dp` on 2 of *NEST's, small*, `cpsat` on 4 of" in lines[1]
    assert "`alpa`" not in lines[1]
    assert "`ft` on 3 of" in lines[1]
    assert not_run([row for row in rows if row["solver"] == "none"]) == []
    assert "| alpa | 2 | 0 | 3.000 (2) |" in lines


def test_problems_come_in_order() -> None:
    names = ["rnd10.json", "rnd2.json", "a_64.json"]
    paths = sorted(map(Path, names), key=every_cell._numbered)
    assert [path.stem for path in paths] == ["a_64", "rnd2", "rnd10"]
