"""Plans by their settings where a search constructs no plan that fits."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from nest.analysis.feasible import LeastMemory
from nest.analysis.plan_by_settings import plan_by_settings
from nest.constraints.pins import are_settings
from nest.cost.score import score
from nest.ir import Problem
from nest.solvers.base import Status
from tests.builders import make_cost, make_levels, make_problem
from tests.inside import PLACES, run_inside


@pytest.fixture(autouse=True)
def _inside(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in PLACES:
        monkeypatch.setattr(place, run_inside)


def full(memory_bytes: int) -> Problem:
    """Eight layers in eight chunks on four devices, one way to cut them.

    All bounds of memory take each device's own chunks in flight least; the
    first holds more of them than the last.
    """
    cost = make_cost(10, 20, weight_bytes=0, kept_bytes=100)
    names = "abcdefgh"
    return make_problem(
        dict.fromkeys(names, cost),
        edges=tuple((a, b, 0) for a, b in itertools.pairwise(names)),
        devices=4,
        memory_bytes=memory_bytes,
        topology=make_levels((4, 0.0, 1e15)),
        global_batch=8,
        virtual_stages=(1, 2),
    )


def most_bytes(problem: Problem) -> int:
    """Return what the fullest device of the one interleaved plan holds."""
    found = plan_by_settings(problem, "pp=4,v=2,r=1,b=1")
    assert found.plan.virtual_stages == 2
    assert found.plan.num_blocks == 4
    blocks = score(problem, found.plan).blocks
    return max(block.memory_bytes for block in blocks)


def test_no_proof_that_none_fits_is_no_claim() -> None:
    """The one plan is shown, whatever the search proves of the others."""
    need = most_bytes(full(10**6))
    assert plan_by_settings(full(need), "pp=4,v=2,r=1,b=1").how.startswith(
        "the fastest with pp=4,v=2,r=1,b=1"
    )
    for memory_bytes in (need - 1, need // 2, 100):
        problem = full(memory_bytes)
        assert most_bytes(problem) == need
        how = plan_by_settings(problem, "pp=4,v=2,r=1,b=1").how
        assert how.startswith("the one that needs least memory with pp=4,v=2")


def test_what_is_not_proven_is_not_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that ends without plan and proof says nothing of others."""
    problem = full(100)

    def unsure(given: Problem, *rest: object) -> object:
        result = run_inside(given, *rest)  # type: ignore[arg-type]
        if given.cluster.memory_bytes() > 100:
            return result
        return dataclasses.replace(
            result,
            status=Status.NO_SOLUTION,
            lower_bound_quanta=None,
            detail="left open",
        )

    monkeypatch.setattr("nest.analysis.plan_by_settings.run_solver", unsure)
    found = plan_by_settings(problem, "pp=4,v=2,r=1,b=1")
    assert found.plan.virtual_stages == 2
    assert found.how == (
        "the one that needs least memory with pp=4,v=2,r=1,b=1 of those that "
        "the search constructed; whether one fits is not proven"
    )


def test_of_plans_that_need_least_the_fastest_is_shown() -> None:
    """One replica holds what two hold, and takes twice as long."""
    cost = make_cost(10, 20, weight_bytes=0, kept_bytes=100)
    problem = make_problem({"a": cost}, devices=2, memory_bytes=50, global_batch=2)
    found = plan_by_settings(problem, "pp=1")
    assert found.how == "the one that needs least memory with pp=1, none fits"
    assert found.plan.replicas == 2


def test_a_least_memory_that_is_not_proven_is_not_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = full(100)
    plan = plan_by_settings(full(10**6), "pp=4,v=1,r=1,b=1").plan
    least = LeastMemory(refuted_bytes=100, memory_bytes=10**6, plan=plan)
    monkeypatch.setattr("nest.analysis.plan_by_settings.least_memory", lambda *_: least)
    assert plan_by_settings(problem, "pp=4,v=1,r=1,b=1").how == (
        "the one that needs least memory with pp=4,v=1,r=1,b=1 of those that "
        "the search constructed; none fits"
    )


def test_settings_are_told_from_files() -> None:
    assert are_settings("tp=8")
    assert not are_settings("plan.json")
