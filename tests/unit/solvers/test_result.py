"""Results are consistent or do not exist."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import msgspec
import pytest

from nest.cost.score import score
from nest.ir import encode
from nest.solvers.base import Limit, SolveOptions, Status
from nest.solvers.result import Outcome, SolveResult
from tests.loopback import GOOD_NS, good_plan, tiny_problem


def make_result(**changes: Any) -> SolveResult:
    plan = good_plan()
    fields: dict[str, Any] = {
        "solver": "dp",
        "exact": True,
        "outcome": Outcome.SOLVED,
        "status": Status.OPTIMAL,
        "problem_hash": "0" * 64,
        "quantum_ps": 1000,
        "plan": plan,
        "score": score(tiny_problem(), plan),
        "lower_bound_quanta": GOOD_NS,
    }
    return SolveResult(**(fields | changes))


NO_PLAN: dict[str, Any] = {"plan": None, "score": None, "lower_bound_quanta": None}


def test_consistent_results_exist() -> None:
    assert make_result().gap == 0
    assert make_result(status=Status.INFEASIBLE, **NO_PLAN).gap is None
    make_result(status=Status.NO_SOLUTION, limit=Limit.TIME, **NO_PLAN)
    make_result(status=Status.NO_SOLUTION, detail="gave up", **NO_PLAN)
    make_result(outcome=Outcome.SKIPPED, status=None, detail="too big", **NO_PLAN)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"plan": None, "score": None},
            "expected a plan if and only if the status is optimal, feasible "
            "or over-memory, got no plan with optimal",
        ),
        (
            {"status": Status.INFEASIBLE},
            "expected a plan if and only if the status is optimal, feasible "
            "or over-memory, got a plan with infeasible",
        ),
        ({"plan": None}, "expected a score if and only if"),
        ({"score": None}, "expected a score if and only if"),
        ({"status": None}, "expected a status if and only if the solver ran"),
        (
            {"outcome": Outcome.SKIPPED},
            "expected a status if and only if the solver ran",
        ),
        (
            {"outcome": Outcome.ERROR, "status": Status.FEASIBLE},
            "expected a detail with outcome error",
        ),
        (
            {"outcome": Outcome.MISMATCH, "detail": "lies"},
            "expected no proof with outcome mismatch",
        ),
        ({"exact": False}, "expected no proof .* not exact, got status optimal"),
        (
            {"exact": False, "status": Status.FEASIBLE},
            "expected no proof .* exact, got a bound of 90",
        ),
        ({"limit": Limit.TIME}, "expected no limit with optimal, got time"),
        (
            {"status": Status.INFEASIBLE, "limit": Limit.SIZE, **NO_PLAN},
            "expected no limit with infeasible, got size",
        ),
        (
            {"status": Status.NO_SOLUTION, **NO_PLAN},
            "expected a limit or a detail with no solution",
        ),
        (
            {"lower_bound_quanta": None},
            "expected a lower bound with an optimum, got none",
        ),
        (
            {"lower_bound_quanta": 89},
            "claims an optimum of 90 quanta with a lower bound of only 89",
        ),
        (
            {"status": Status.OVER_MEMORY, "lower_bound_quanta": None},
            "expected over_memory_bytes if and only if the plan does not fit, "
            "got None with over-memory",
        ),
        (
            {"over_memory_bytes": 1},
            "expected over_memory_bytes if and only if the plan does not fit, "
            "got 1 with optimal",
        ),
        (
            {"lower_bound_quanta": 91, "status": Status.FEASIBLE},
            "claims a lower bound of 91 quanta, but a plan takes 90",
        ),
    ],
)
def test_contradictions_are_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=f"^result of solver 'dp': {text}"):
        make_result(**changes)


def test_a_plan_that_does_not_fit_takes_no_time_that_counts() -> None:
    result = make_result(
        exact=False,
        status=Status.OVER_MEMORY,
        over_memory_bytes=7,
        lower_bound_quanta=None,
    )
    assert result.step_quanta is None
    assert result.step_time_ns is None
    assert result.gap is None
    assert result.score is not None
    assert result.score.step_quanta == GOOD_NS


def test_gap_is_exact() -> None:
    result = make_result(status=Status.FEASIBLE, lower_bound_quanta=60)
    assert result.gap == Fraction(1, 3)
    assert result.to_json()["gap"] == pytest.approx(1 / 3)
    unknown = make_result(status=Status.FEASIBLE, lower_bound_quanta=None)
    assert unknown.gap is None
    assert unknown.to_json()["gap"] is None


def test_times_are_in_ns_whatever_the_quantum() -> None:
    result = make_result(quantum_ps=500)
    assert result.step_time_ns == 45
    assert result.lower_bound_ns == 45


def test_json_has_the_promised_keys_and_the_whole_plan() -> None:
    warm = SolveOptions(seed=3, warm_start=good_plan(), extra={"a": "b"})
    cell = make_result(options=warm, wall_s=0.25, extra={"nodes": 7}).to_json()
    assert cell == json.loads(json.dumps(cell, allow_nan=False))
    promised = {
        "solver": "dp",
        "outcome": "solved",
        "status": "optimal",
        "step_time_ns": 90,
        "step_time_quanta": 90,
        "lower_bound_ns": 90,
        "gap": 0.0,
        "limit": None,
        "wall_s": 0.25,
        "cpu_s": None,
        "peak_rss_bytes": None,
        "detail": "",
        "plan": msgspec.json.decode(encode(good_plan())),
        "extra": {"nodes": 7},
    }
    assert {key: cell[key] for key in promised} == promised
    assert cell["options"] == {
        "time_limit_s": None,
        "gap": 0.0,
        "num_workers": 1,
        "seed": 3,
        "warm_start": True,
        "repair": False,
        "extra": {"a": "b"},
    }


def test_json_of_a_cell_without_a_plan() -> None:
    cell = make_result(
        outcome=Outcome.NOT_INSTALLED, status=None, detail="no engine", **NO_PLAN
    ).to_json()
    for key in ("status", "plan", "score", "step_time_ns", "gap"):
        assert cell[key] is None
