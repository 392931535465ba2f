"""Searches that end soon run in the process that asks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

import nest
from nest.analysis.compare import compare
from nest.cost.rules import get_rules
from nest.ir import Problem
from nest.search.solver import DpSolver, is_quick
from nest.solvers import cell, registry
from nest.solvers.base import Capabilities, Progress, SolveOptions, SolverOutput, Status
from nest.solvers.result import Outcome, SolveResult
from nest.solvers.run import CellInterrupted, run_solver
from tests.builders import make_cost, make_problem
from tests.loopback import GOOD_NS, TARGET, good_plan, tiny_problem


@pytest.fixture
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise AssertionError("a process is started")

    monkeypatch.setattr(cell, "Worker", refused)


def solved(**more: Any) -> SolveResult:
    return run_solver(tiny_problem(), "dp", SolveOptions(**more), alone=True)


def test_the_answer_is_that_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    apart = run_solver(tiny_problem(), "dp", SolveOptions())
    monkeypatch.setattr(cell, "Worker", None)
    here = solved()
    assert here.status is Status.OPTIMAL
    taken = {"wall_s": 0.0, "cpu_s": None, "peak_rss_bytes": None}
    assert here.cpu_s is not None
    assert here.peak_rss_bytes
    assert replace(here, **taken) == replace(apart, **taken)


@pytest.mark.usefixtures("no_process")
def test_one_solver_is_not_compared() -> None:
    (result,) = compare(tiny_problem(), ["dp"])
    assert result.status is Status.OPTIMAL
    with pytest.raises(AssertionError, match="a process is started"):
        compare(tiny_problem(), ["dp", "brute"])
    assert nest.solve(tiny_problem()).status is Status.OPTIMAL


@pytest.mark.usefixtures("no_process")
def test_solvers_of_others_get_a_process() -> None:
    registry.register_solver("loopback", TARGET)
    try:
        with pytest.raises(AssertionError, match="a process is started"):
            run_solver(tiny_problem(), "loopback", alone=True)
    finally:
        registry.unregister_solver("loopback")


@pytest.mark.usefixtures("no_process")
def test_what_a_quick_search_says_is_shown_as_it_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []

    def solve(_: Any, problem: Problem, options: Any, report: Any) -> Any:
        assert options.time_limit_s is None
        report(Progress(message="one"))
        said.append("two")
        return SolverOutput(status=Status.NO_SOLUTION)

    monkeypatch.setattr(DpSolver, "solve", solve)
    run_solver(
        *(tiny_problem(), "dp", None),
        lambda running: said.append(running.message),
        alone=True,
    )
    assert said == ["", "one", "two"]


@pytest.mark.usefixtures("no_process")
@pytest.mark.parametrize(
    ("error", "outcome", "detail"),
    [
        (ValueError("what"), Outcome.ERROR, "ValueError: what"),
        (MemoryError(), Outcome.SOLVED, "ran out of memory"),
        (KeyboardInterrupt(), Outcome.INTERRUPTED, "interrupted by the user"),
    ],
)
def test_however_a_quick_search_ends_there_is_a_result(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, outcome: Outcome, detail: str
) -> None:
    def solve(_: Any, problem: Problem, options: Any, report: Any) -> Any:
        report(Progress(plan=good_plan(), claimed_quanta=GOOD_NS))
        raise error

    monkeypatch.setattr(DpSolver, "solve", solve)
    try:
        result = solved()
    except CellInterrupted as interrupt:
        result = interrupt.result
    assert (result.outcome, result.detail) == (outcome, detail)
    assert result.step_quanta == GOOD_NS


@pytest.mark.usefixtures("no_process")
def test_without_time_a_quick_search_does_not_begin() -> None:
    result = solved(time_limit_s=1e-9)
    assert result.detail == "the limit passed before the search began"
    assert result.status is Status.NO_SOLUTION


def test_few_stages_of_a_chain_are_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two layers are three stages, of which two strategies are six.

    On two devices they have 12 places, with an overlap 24.
    """
    two = make_cost(10, 20), make_cost(5, 10, tp=2)
    chain = make_problem(
        {"a": two, "b": two}, edges=(("a", "b", 0),), devices=2, replicas=(1,)
    )
    for size, quick in ((11, False), (12, True)):
        monkeypatch.setattr("nest.search.solver.MAX_QUICK_PLACEMENTS", size)
        assert is_quick(chain) == quick
    job = replace_job(chain, overlap={"gradients": 0.5})
    assert not is_quick(job)
    # Of plans with a strategy per layer both layers count.
    monkeypatch.setattr("nest.search.solver.MAX_QUICK_PLACEMENTS", 23)
    assert not is_quick(replace_job(chain, granularity="layer"))
    monkeypatch.setattr("nest.search.solver.MAX_QUICK_PLACEMENTS", 24)
    assert is_quick(replace_job(chain, granularity="layer"))
    monkeypatch.undo()
    assert is_quick(job)


def replace_job(problem: Problem, **fields: Any) -> Problem:
    return structs.replace(problem, job=structs.replace(problem.job, **fields))


@pytest.mark.parametrize("fields", [{"virtual_stages": (1, 2)}, {"schedule": "zb-v"}])
def test_plans_timed_pass_by_pass_are_not_quick(fields: dict[str, Any]) -> None:
    assert not is_quick(replace_job(tiny_problem(), **fields))


def test_branches_are_not_quick() -> None:
    cost = make_cost(10, 20)
    apart = make_problem({"a": cost, "b": cost}, devices=2)
    assert not is_quick(apart)


def test_rules_say_whether_their_own_search_is_quick() -> None:
    problem = tiny_problem()
    for name, quick in (("nest-artifact", True), ("piper", False)):
        assert get_rules(name).search is not None
        assert is_quick(structs.replace(problem, preset=name)) == quick


def test_by_default_no_search_is_quick() -> None:
    assert not Capabilities(exact=False, method="").is_quick(tiny_problem())
    with pytest.raises(TypeError, match="capabilities: is_quick: expected"):
        Capabilities(exact=False, method="", is_quick=True)  # type: ignore[arg-type]
