"""The runner survives every solver and believes none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from nest.analysis.compare import compare, cross_check, to_document
from nest.errors import (
    InvalidOptionError,
    InvalidPlanError,
    InvalidProblemError,
    SolverNotInstalledError,
    UnknownSolverError,
)
from nest.ir import Plan, Stage, Strategy, problem_hash
from nest.solvers import cell, challenge, descendants, process, registry
from nest.solvers.base import (
    Capabilities,
    Deadline,
    Limit,
    SolveOptions,
    SolverOutput,
    Status,
)
from nest.solvers.cell import GRACE_S, Cell, Running
from nest.solvers.judge import judge
from nest.solvers.result import Outcome, SolveResult
from nest.solvers.run import CellInterrupted, run_solver
from nest.util.versions import num_cpus
from tests.children import HANG_S, children, is_alive, wait_until
from tests.clock import Spending
from tests.loopback import (
    BASELINE,
    EXACT_OVERRUNNER,
    GOOD_NS,
    OVERRUNNER,
    TARGET,
    big_plan,
    crowded_problem,
    foreign_plan,
    good_plan,
    tiny_problem,
)


@pytest.fixture(autouse=True)
def _solvers() -> Iterator[None]:
    registry.register_solver("loopback", TARGET)
    registry.register_solver("baseline", BASELINE)
    registry.register_solver("overrunner", OVERRUNNER)
    registry.register_solver("exact-overrunner", EXACT_OVERRUNNER)
    yield
    for name in (*("loopback", "baseline", "overrunner", "exact-overrunner"), "engine"):
        registry.unregister_solver(name)


@pytest.fixture(autouse=True)
def _unchallenged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave false proofs to the other checks; see test_challenge.py."""
    monkeypatch.setattr(challenge, "SHARE", 0.0)


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell, "GRACE_S", 0.3)


def solve(
    act: str,
    *,
    solver: str = "loopback",
    time_limit_s: float | None = None,
    gap: float = 0.0,
    **extra: str,
) -> SolveResult:
    options = SolveOptions(
        time_limit_s=time_limit_s, gap=gap, extra={"act": act, **extra}
    )
    return run_solver(tiny_problem(), solver, options)


def solve_late(
    monkeypatch: pytest.MonkeyPatch,
    act: str,
    until: Callable[[Running], bool] = lambda running: running.has_plan,
    *,
    solver: str = "loopback",
    on_end: Callable[[Cell], None] | None = None,
    **extra: str,
) -> SolveResult:
    """Solve on a clock that stands still until a condition holds.

    Then the limit passes, one sign of life later the grace, too.
    """
    clock = Spending(HANG_S)
    monkeypatch.setattr("nest.solvers.run.Deadline", lambda _: clock)

    def show(running: Running) -> None:
        if clock.spent_s:
            clock.spent_s = HANG_S + GRACE_S
        elif until(running):
            clock.spent_s = HANG_S + GRACE_S / 2

    options = SolveOptions(time_limit_s=HANG_S, extra={"act": act, **extra})
    return run_solver(tiny_problem(), solver, options, show, on_end=on_end)


def has_begun(pids: Path) -> Callable[[Running], bool]:
    """Return whether a solver has told of its processes, as a condition."""
    return lambda _: pids.exists() and pids.read_text() != ""


def assert_gone(pids_file: Path) -> None:
    pids = [int(pid) for pid in pids_file.read_text().split()]
    assert pids
    wait_until(lambda: not any(map(is_alive, pids)))


# Honest solvers


def test_optimum() -> None:
    result = solve("optimal")
    assert result.outcome is Outcome.SOLVED
    assert result.status is Status.OPTIMAL
    assert result.step_time_ns == GOOD_NS == result.lower_bound_ns
    assert result.claimed_quanta == GOOD_NS
    assert result.gap == 0
    assert result.problem_hash == problem_hash(tiny_problem())
    assert 0 < result.wall_s < 30
    assert result.cpu_s is not None
    assert 0 < result.cpu_s < 30
    assert result.peak_rss_bytes is not None
    assert 2**22 < result.peak_rss_bytes < 2**30


def test_plan_is_stamped() -> None:
    plan = solve("optimal").plan
    assert plan == msgspec.structs.replace(
        good_plan(), problem_hash=problem_hash(tiny_problem()), solver="loopback"
    )


def test_optimum_needs_no_claims() -> None:
    result = solve("optimal-without-claims")
    assert result.outcome is Outcome.SOLVED
    assert result.lower_bound_quanta == GOOD_NS


def test_feasible_with_a_gap() -> None:
    result = solve("feasible")
    assert result.status is Status.FEASIBLE
    assert result.limit is Limit.TIME
    assert result.gap is not None
    assert 3 * result.gap == 1


@pytest.mark.parametrize(
    ("step", "bound", "gap", "expected"),
    [
        (90, 88, 0.0, False),
        (90, 90, 0.0, False),  # no gap is asked for
        (90, None, 0.5, False),
        (None, 88, 0.5, False),
        (96, 93, 0.03125, True),  # 3 / 96 is 1 / 32, exactly
        (96, 92, 0.03125, False),
        (2**60, 2**60 - 1, 2.0**-60, True),
        (2**60 - 1, 2**60 - 2, 2.0**-60, False),  # beyond floats
        (0, 0, 0.5, True),
    ],
)
def test_a_gap_is_reached_exactly(
    step: int | None, bound: int | None, gap: float, expected: bool
) -> None:
    options = SolveOptions(gap=gap)
    assert options.reached(step, bound) is expected


@pytest.mark.parametrize(
    ("act", "extra", "gap", "detail"),
    [
        # 2 of 90 quanta are open: reported, then claimed in the end
        ("hang", {"report": "close"}, 0.05, "stopped within a gap of 5 %"),
        ("close", {}, 0.05, "stopped within a gap of 5 %; enough"),
        ("close", {}, 0.02, "enough"),
        ("close", {}, 0.0, "enough"),
    ],
)
def test_stops_within_a_certified_gap(
    act: str, extra: dict[str, str], gap: float, detail: str
) -> None:
    result = solve(act, gap=gap, **extra)
    assert result.outcome is Outcome.SOLVED
    assert result.status is Status.FEASIBLE
    assert (result.step_quanta, result.lower_bound_quanta) == (90, 88)
    assert (result.limit, result.detail) == (None, detail)
    assert result.options.gap == gap


def test_a_gap_that_closes_is_a_proof() -> None:
    result = solve("hang", gap=0.05, report="proof")
    assert (result.status, result.detail) == (Status.OPTIMAL, "")


def test_infeasible_and_no_solution_are_results() -> None:
    result = solve("infeasible")
    assert (result.outcome, result.status) == ("solved", "infeasible")
    assert result.detail == "no room"
    result = solve("no-solution")
    assert (result.outcome, result.status) == ("solved", "no-solution")
    assert result.lower_bound_quanta == 60


def test_heuristic() -> None:
    result = solve("heuristic", solver="baseline")
    assert (result.outcome, result.status) == ("solved", "feasible")
    assert result.lower_bound_quanta is None
    assert result.detail == "optimal in own space"


def test_options_reach_the_solver() -> None:
    options = SolveOptions(
        time_limit_s=3000,
        num_workers=1,
        seed=5,
        warm_start=good_plan(),
        extra={"act": "say-options"},
    )
    result = run_solver(tiny_problem(), "loopback", options)
    said = dict(result.extra)
    assert 0 < said.pop("time_limit_s") < 3000
    assert said == {
        "num_workers": 1,
        "seed": 5,
        "warm_start": True,
        "hash_seed": "0",
        "threads": "1",
    }


def test_noise_of_engines_is_kept_out(capfd: pytest.CaptureFixture[str]) -> None:
    assert solve("print").outcome is Outcome.SOLVED
    assert capfd.readouterr() == ("", "")


def test_problem_larger_than_a_pipe() -> None:
    problem = msgspec.structs.replace(tiny_problem(), source="x" * 10**6)
    assert run_solver(problem, "loopback").outcome is Outcome.SOLVED
    assert run_solver(
        problem, "loopback", SolveOptions(extra={"act": "kill"})
    ).detail.startswith("the process was killed")


def test_bad_reports_do_not_spoil_a_good_answer() -> None:
    for report in ("foreign", "infeasible"):
        assert solve("optimal", report=report).outcome is Outcome.SOLVED


# Liars


@pytest.mark.parametrize(
    ("act", "text"),
    [
        ("wrong-claim", "claims 89 quanta for a plan that takes 90"),
        ("high-bound", "claims a lower bound of 91 quanta, but a plan takes"),
        ("low-optimum", "claims an optimum of 90 quanta with a lower bound"),
        ("optimal-with-limit", "expected no limit with optimal, got time"),
        ("optimal-without-plan", "got no plan with optimal"),
        ("infeasible-with-plan", "got a plan with infeasible"),
        ("claim-without-plan", "claims 90 quanta without a plan"),
        ("nothing", "expected a limit or a detail with no solution"),
    ],
)
def test_mismatch(act: str, text: str) -> None:
    result = solve(act)
    assert result.outcome is Outcome.MISMATCH
    assert text in result.detail
    assert result.lower_bound_quanta is None
    assert result.status in (Status.FEASIBLE, Status.NO_SOLUTION)
    assert "status" in result.extra["claim"]


@pytest.mark.parametrize(
    ("act", "text"),
    [
        ("optimal", "got status optimal"),
        ("infeasible", "got status infeasible"),
        ("feasible", "got a bound of 60"),
    ],
)
def test_baselines_prove_nothing(act: str, text: str) -> None:
    result = solve(act, solver="baseline")
    assert result.outcome is Outcome.MISMATCH
    assert "expected no proof from a solver that is not exact" in result.detail
    assert text in result.detail


@pytest.mark.parametrize("solver", ["loopback", "baseline"])
def test_plan_that_does_not_fit(solver: str) -> None:
    result = solve("big-plan", solver=solver)
    assert result.outcome is Outcome.INVALID_PLAN
    assert result.plan is None
    assert "expected at most 100 bytes per device" in result.detail
    assert "got 160" in result.detail
    assert "60.0 % too much" in result.detail
    assert len(result.extra["rejected_plan"]["stages"]) == 1


def test_plan_of_a_planner_with_a_memory_model_of_its_own() -> None:
    result = solve("too-big", solver="overrunner")
    assert result.outcome is Outcome.SOLVED
    assert result.status is Status.OVER_MEMORY
    assert result.plan is not None
    assert result.plan.stages == big_plan().stages
    # 160 bytes on a device of 100.
    assert result.over_memory_bytes == 60
    assert result.detail == "60 bytes (60.0 %) too much memory; best of 7"
    assert result.own_objective_ns == 75.5
    assert result.step_time_ns is None
    assert result.score is not None
    assert result.score.step_time_ns == 120
    cell = result.to_json()
    assert cell["status"] == "over-memory"
    assert cell["step_time_ns"] is None
    assert cell["step_time_quanta"] is None
    assert cell["over_memory_bytes"] == 60
    assert cell["own_objective_ns"] == 75.5
    assert cell["score"]["step_time_ns"] == 120
    assert len(cell["plan"]["stages"]) == 1


@pytest.mark.parametrize(
    ("solver", "act", "text"),
    [
        ("overrunner", "too-big-and-lie", "claims 119 quanta for a plan that"),
        ("overrunner", "too-big-and-bound", "expected no proof from a solver"),
        ("overrunner", "too-big-and-optimal", "got status optimal"),
        ("exact-overrunner", "too-big-and-optimal", "claims an optimum with"),
    ],
)
def test_a_false_claim_about_a_plan_that_does_not_fit(
    solver: str, act: str, text: str
) -> None:
    """The plan is over memory, which it may be; the claim is a mismatch."""
    result = solve(act, solver=solver)
    assert result.outcome is Outcome.MISMATCH
    assert result.status is Status.OVER_MEMORY
    assert result.over_memory_bytes == 60
    assert result.lower_bound_quanta is None
    assert text in result.detail
    assert "60.0 %) too much memory" in result.detail
    assert "rejected_plan" not in result.extra


@pytest.mark.parametrize(
    ("solver", "act", "text"),
    [
        ("loopback", "big-optimum", "claims an optimum with a plan that"),
        ("baseline", "big-plan-and-bound", "expected no proof from a solver"),
    ],
)
def test_a_false_claim_about_a_plan_that_is_none(
    solver: str, act: str, text: str
) -> None:
    result = solve(act, solver=solver)
    assert (result.outcome, result.status) == ("mismatch", "no-solution")
    assert result.detail.startswith(text)
    assert "60.0 % too much" in result.detail
    assert result.extra["rejected_plan"] is not None


def test_a_true_claim_about_a_plan_that_does_not_fit() -> None:
    result = solve("too-big-and-claim", solver="overrunner")
    assert (result.outcome, result.status) == ("solved", "over-memory")
    assert result.claimed_quanta == 120


@pytest.mark.parametrize(
    ("solver", "act", "before", "after"),
    [
        ("loopback", "big-plan-and-bound", "invalid-plan", "no-solution"),
        ("exact-overrunner", "too-big-and-bound", "solved", "over-memory"),
    ],
)
def test_a_bound_beside_a_plan_that_counts_for_nothing(
    solver: str, act: str, before: str, after: str
) -> None:
    """Another plan, of 90 quanta, refutes 91 and 161."""
    result = solve(act, solver=solver)
    assert result.outcome == before
    checked, _ = cross_check([result, solve("optimal")])
    assert (checked.outcome, checked.status) == ("mismatch", after)
    assert checked.lower_bound_quanta is None
    claim = checked.extra["claim"]["lower_bound_quanta"]
    assert checked.detail.startswith(
        f"claims a lower bound of {claim} quanta, but the plan of loopback"
    )
    assert checked.detail.endswith(result.detail)
    assert "60.0 %" in result.detail


def test_a_bound_is_refuted_by_the_plan_that_was_repaired() -> None:
    """It takes 160 quanta, see test_repair_is_part_of_the_run."""
    options = SolveOptions(repair=True, extra={"act": "too-big-and-bound"})
    result = run_solver(crowded_problem(), "exact-overrunner", options)
    assert (result.outcome, result.status) == ("mismatch", "over-memory")
    assert "bound of 161 quanta, but a plan takes 160" in result.detail
    options = SolveOptions(extra={"act": "too-big-and-bound"})
    result = run_solver(crowded_problem(), "exact-overrunner", options)
    assert (result.outcome, result.lower_bound_quanta) == ("solved", 161)


def test_only_the_judge_says_over_memory() -> None:
    result = solve("over-memory", solver="overrunner")
    assert result.outcome is Outcome.MISMATCH
    assert result.detail == (
        "expected a status that solvers may claim, got over-memory"
    )


def test_report_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    result = solve_late(monkeypatch, "hang", solver="overrunner", report="infeasible")
    assert result.outcome is Outcome.SOLVED
    assert (result.status, result.limit) == ("over-memory", "time")
    assert result.over_memory_bytes == 60
    assert "too much memory; did not stop at its limit" in result.detail


def test_repair_is_part_of_the_run() -> None:
    options = SolveOptions(repair=True, extra={"act": "too-big"})
    result = run_solver(crowded_problem(), "overrunner", options)
    assert (result.outcome, result.status) == ("solved", "feasible")
    assert result.step_time_ns == 160
    assert result.over_memory_bytes is None
    assert result.own_objective_ns == 75.5
    assert result.extra["repair"] == ["recompute full"]
    assert result.detail == (
        "repaired: recompute full (was 12 bytes (12.0 %) too much memory; best of 7)"
    )
    assert result.plan is not None
    assert result.plan.stages[0].layer_strategies[0].recompute == "full"
    assert result.to_json()["options"]["repair"] is True
    plain = replace(options, repair=False)
    result = run_solver(crowded_problem(), "overrunner", plain)
    assert result.status is Status.OVER_MEMORY
    assert result.over_memory_bytes == 12


def test_repair_leaves_other_plans_alone() -> None:
    options = SolveOptions(repair=True, extra={"act": "heuristic"})
    result = run_solver(tiny_problem(), "overrunner", options)
    assert (result.status, result.step_time_ns) == ("feasible", GOOD_NS)
    assert "repair" not in result.extra


def test_mixed_strategies_need_granularity_layer() -> None:
    mixed = Stage(
        layers=(0, 1), devices=1, strategies=(Strategy(), Strategy(recompute="full"))
    )
    claim = SolverOutput(
        status=Status.FEASIBLE, plan=Plan(replicas=1, micro_batch=1, stages=(mixed,))
    )
    problem = crowded_problem()
    capabilities = Capabilities(exact=False, method="none")
    verdict = judge(problem, claim, capabilities=capabilities)
    assert verdict.outcome is Outcome.INVALID_PLAN
    assert verdict.detail == (
        "stage 1: expected one strategy for all layers of a stage, as "
        "job.granularity is 'stage', got 2"
    )
    job = msgspec.structs.replace(problem.job, granularity="layer")
    fine = msgspec.structs.replace(problem, job=job)
    verdict = judge(fine, claim, capabilities=capabilities)
    assert (verdict.outcome, verdict.status) == ("solved", "feasible")


def test_plan_of_another_problem() -> None:
    result = solve("foreign-plan")
    assert result.outcome is Outcome.INVALID_PLAN
    assert "expected layers of the problem, got 7" in result.detail


def test_infeasible_is_refuted_by_an_earlier_report() -> None:
    result = solve("infeasible", report="good")
    assert result.outcome is Outcome.MISMATCH
    assert result.detail == "claims infeasible, but a plan takes 90 quanta"


def test_infeasible_is_refuted_by_the_warm_start() -> None:
    options = SolveOptions(warm_start=good_plan(), extra={"act": "infeasible"})
    result = run_solver(tiny_problem(), "loopback", options)
    assert result.outcome is Outcome.MISMATCH


# Exceptions


def test_exception_is_one_line_and_a_traceback() -> None:
    result = solve("raise")
    assert result.outcome is Outcome.ERROR
    assert result.detail == "ZeroDivisionError: two lines"
    assert "Traceback" in result.extra["traceback"]
    assert result.status is Status.NO_SOLUTION


@pytest.mark.parametrize(
    ("act", "text"),
    [
        ("raise-engine", "SolverError: the engine failed"),
        ("exit", "SystemExit: 3"),
        ("wrong-type", "TypeError: expected a SolverOutput"),
        ("unjsonable", "TypeError: Encoding objects of type object"),
    ],
)
def test_other_errors(act: str, text: str) -> None:
    result = solve(act)
    assert result.outcome is Outcome.ERROR
    assert result.detail.startswith(text)


def test_error_after_a_report_keeps_the_plan() -> None:
    result = solve("raise", report="good")
    assert result.outcome is Outcome.ERROR
    assert result.status is Status.FEASIBLE
    assert result.step_time_ns == GOOD_NS
    assert result.lower_bound_quanta == 60


def test_unsupported_is_skipped() -> None:
    result = solve("raise-unsupported")
    assert (result.outcome, result.status) == (Outcome.SKIPPED, None)
    assert result.detail == "too many layers"
    result = run_solver(tiny_problem("unsupported"), "loopback")
    assert (result.outcome, result.status) == (Outcome.SKIPPED, None)
    assert result.detail == "it is unsupported"


def test_engine_missing_at_the_last_moment() -> None:
    result = solve("raise-not-installed")
    assert result.outcome is Outcome.NOT_INSTALLED
    assert result.detail == "no engine"


def test_out_of_memory_is_a_limit() -> None:
    result = solve("raise-memory", report="good")
    assert result.outcome is Outcome.SOLVED
    assert result.status is Status.FEASIBLE
    assert result.limit is Limit.MEMORY


def test_bad_input_found_by_the_solver_is_raised() -> None:
    with pytest.raises(
        InvalidOptionError, match="'loopback': option pids: expected none"
    ):
        solve("raise-option")
    with pytest.raises(InvalidProblemError, match="layer 1: expected a cost"):
        solve("raise-problem")


# Requests that make no sense


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (SolveOptions(time_limit_s=0), "time_limit_s: expected a finite"),
        (SolveOptions(time_limit_s=float("nan")), "time_limit_s: expected"),
        (SolveOptions(gap=1.0), "^gap: expected a fraction from 0 to below 1"),
        (SolveOptions(gap=-0.1), "^gap: .*, got -0.1; 0.02 is 2 %$"),
        (SolveOptions(num_workers=0), r"num_workers: expected 1 to \d+"),
        (SolveOptions(num_workers=num_cpus() + 1), "num_workers: expected 1"),
        (SolveOptions(seed=-1), "seed: expected 0 to"),
        (
            SolveOptions(extra={"acts": "x"}),
            r"option loopback\.acts: expected one of .*"
            r"\(act, pids, report, until\)",
        ),
    ],
)
def test_bad_options(options: SolveOptions, text: str) -> None:
    with pytest.raises(InvalidOptionError, match=text):
        run_solver(tiny_problem(), "loopback", options)


def test_bad_warm_start() -> None:
    with pytest.raises(InvalidPlanError, match=r"^warm start: stage 2: "):
        run_solver(tiny_problem(), "loopback", SolveOptions(warm_start=foreign_plan()))
    with pytest.raises(
        InvalidPlanError, match=r"^warm start: expected a feasible plan"
    ):
        run_solver(tiny_problem(), "loopback", SolveOptions(warm_start=big_plan()))


def test_unknown_and_missing_solvers() -> None:
    with pytest.raises(UnknownSolverError, match="did you mean 'loopback'"):
        run_solver(tiny_problem(), "lopback")
    registry.register_solver("engine", "tests.loopback:NeedsEngine")
    result = run_solver(tiny_problem(), "engine")
    assert result.outcome is Outcome.NOT_INSTALLED
    assert "pip install no_such_engine" in result.detail
    with pytest.raises(SolverNotInstalledError, match="pip install"):
        compare(tiny_problem(), ["loopback", "engine"])


# Solvers that hang or die


def test_a_limit_holds_to_a_second_whatever_a_solver_does() -> None:
    assert GRACE_S <= 1


def test_solver_that_keeps_its_limit() -> None:
    result = solve("feasible", time_limit_s=HANG_S)
    assert result.status is Status.FEASIBLE
    assert result.limit is Limit.TIME
    assert result.detail == ""


@pytest.mark.parametrize("report", ["none", "good", "weaker"])
def test_solver_that_ignores_its_limit(
    tmp_path: Path, report: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = tmp_path / "pids"
    result = solve_late(
        *(monkeypatch, "hang-grandchild"),
        lambda running: (
            has_begun(pids)(running) and (running.has_plan or report == "none")
        ),
        pids=str(pids),
        report=report,
    )
    assert result.wall_s == HANG_S + GRACE_S
    assert result.outcome is Outcome.SOLVED
    assert result.limit is Limit.TIME
    assert "did not stop at its limit; killed after" in result.detail
    if report != "none":
        assert result.status is Status.FEASIBLE
        assert result.step_time_ns == GOOD_NS
        assert result.lower_bound_quanta == 60
    else:
        assert result.status is Status.NO_SOLUTION
    assert result.cpu_s is not None
    assert result.peak_rss_bytes
    assert_gone(pids)


@pytest.mark.parametrize(
    ("report", "outcome"), [("lie", "mismatch"), ("infeasible", "invalid-plan")]
)
def test_reports_are_checked_too(
    report: str, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = solve_late(monkeypatch, "hang", report=report)
    assert result.outcome == outcome
    assert "did not stop at its limit" in result.detail


@pytest.mark.parametrize(
    ("extra", "begun"),
    [
        ({}, True),
        ({"act": "raise-option"}, False),
        ({"report": "good", "act": "raise-option"}, True),
    ],
)
def test_a_search_begins_when_its_options_are_checked(
    extra: dict[str, str], begun: bool
) -> None:
    """By the solver itself, so at the latest when it reports something."""
    options = SolveOptions(extra=extra)
    one = Cell(*("loopback", TARGET, tiny_problem(), options, Deadline(None)))
    one.start()
    try:
        while not one.listen(HANG_S):
            pass
    finally:
        one.stop()
    assert one._begun is begun
    assert one.last is not None


def test_limit_shorter_than_the_start(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    result = solve("hang", time_limit_s=0.01, pids=str(pids))
    assert (result.status, result.limit) == ("no-solution", "time")
    assert result.detail == "the limit passed before the search began"
    assert not pids.exists()


def test_a_process_that_starts_late_is_not_the_solvers_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The grace passes before the process has said anything."""
    clock = Spending(HANG_S)
    clock.spent_s = HANG_S + GRACE_S
    monkeypatch.setattr("nest.solvers.run.Deadline", lambda _: clock)
    result = solve("hang", time_limit_s=HANG_S)
    assert (result.status, result.limit) == ("no-solution", "time")
    assert result.detail == "the limit passed before the search began"


@pytest.mark.parametrize(
    ("act", "text"),
    [
        ("kill", r"killed by SIGKILL (out of memory?)"),
        ("abort", "killed by SIGABRT: Fatal Python error: Aborted"),
        ("leave", "ended with code 5, no answer"),
    ],
)
def test_death_is_an_error(act: str, text: str, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    result = solve(f"{act}-grandchild", pids=str(pids))
    assert result.outcome is Outcome.ERROR
    assert text in result.detail
    assert_gone(pids)


def test_death_after_a_report_keeps_the_plan() -> None:
    result = solve("kill", report="good")
    assert result.outcome is Outcome.ERROR
    assert result.status is Status.FEASIBLE
    assert result.step_time_ns == GOOD_NS
    result = solve("kill", report="lie")
    assert result.outcome is Outcome.ERROR
    assert "killed by SIGKILL" in result.detail
    assert "claims 89 quanta" in result.detail


def test_grandchild_dies_with_a_good_answer(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    result = solve("optimal-grandchild", pids=str(pids))
    assert result.outcome is Outcome.SOLVED
    assert_gone(pids)


@pytest.mark.parametrize(
    ("act", "outcome"),
    [
        # Descendants of a process that is there, whatever they hide,
        ("optimal-hidden", "solved"),
        ("raise-hidden", "error"),
        ("hang-hidden", "solved"),
        # or known by their environment.
        ("leave-daemon", "error"),
    ],
)
def test_daemons_end_with_the_cell(
    act: str, outcome: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = tmp_path / "pids"
    ended: list[Cell] = []
    result = solve_late(
        *(monkeypatch, act),
        has_begun(pids) if act.startswith("hang") else lambda _: False,
        pids=str(pids),
        on_end=ended.append,
    )
    assert result.outcome == outcome
    assert_gone(pids)
    assert [x.num_detached for x in ended] == [1]


def test_daemons_of_a_dead_process_are_known_by_a_mark() -> None:
    leader = subprocess.Popen(
        ["sh", "-c", "setsid sleep 60 >/dev/null & echo $!"],
        stdout=subprocess.PIPE,
        env={**os.environ, descendants.MARK: "cell-7"},
        start_new_session=True,
        text=True,
    )
    with leader:
        assert leader.stdout is not None
        pid = int(leader.stdout.read())
        os.waitid(os.P_PID, leader.pid, os.WEXITED | os.WNOWAIT)
        while os.getsid(pid) != pid:
            time.sleep(0.001)
        assert descendants.end_all(leader.pid, "cell-8") == 0
        assert descendants.end_all(leader.pid, "cell-7") == 1
    assert not is_alive(pid)


def test_where_processes_are_not_shown_groups_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(descendants, "PROC", tmp_path / "none")
    assert not descendants.visible()
    pids = tmp_path / "pids"
    result = solve("kill-grandchild", pids=str(pids))
    assert result.outcome is Outcome.ERROR
    assert_gone(pids)


def test_temporary_files_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    solve("kill")
    assert list(tmp_path.iterdir()) == []


def test_process_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    result = solve("optimal")
    assert result.outcome is Outcome.ERROR
    assert result.detail.startswith("cannot start a process: ")


# Interrupts


def test_interrupt_keeps_the_best_plan(tmp_path: Path) -> None:
    pids = tmp_path / "pids"

    def interrupt(running: Running) -> None:
        if running.has_plan:
            assert running.best_quanta == GOOD_NS
            assert running.lower_bound_quanta == 60
            assert running.message == "found one"
            # What a Ctrl-C does here; real signals are sent to processes of
            # their own, in tests/cli.
            raise KeyboardInterrupt

    options = SolveOptions(
        extra={"act": "hang-grandchild", "report": "good", "pids": str(pids)}
    )
    seen: list[SolveResult] = []
    with pytest.raises(CellInterrupted, match="was interrupted") as caught:
        compare(
            tiny_problem(),
            ["loopback", "baseline"],
            options,
            on_cell=lambda results: seen.extend(results),
            on_progress=interrupt,
        )
    result = caught.value.result
    assert seen == [result]
    assert result.outcome is Outcome.INTERRUPTED
    assert result.limit is Limit.INTERRUPT
    assert result.step_time_ns == GOOD_NS
    assert result.lower_bound_ns == 60
    assert isinstance(caught.value, KeyboardInterrupt)
    assert_gone(pids)


def test_what_no_plan_takes_is_no_bound() -> None:
    """A search that has nothing left has an endless bound."""
    heard: list[Running] = []
    options = SolveOptions(extra={"act": "endless", "report": "endless"})
    result = run_solver(tiny_problem(), "loopback", options, heard.append)
    assert (result.status, result.lower_bound_quanta) == ("infeasible", None)
    assert {running.lower_bound_quanta for running in heard} <= {None}
    # At its limit it is all that is known.
    output = SolverOutput(status=Status.NO_SOLUTION, lower_bound_quanta=2**61 + 1)
    verdict = judge(tiny_problem(), output, capabilities=Capabilities(True, "none"))
    assert verdict.lower_bound_quanta is None


@pytest.fixture
def _heard() -> Iterator[None]:
    """Shells start what runs in the background with this signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_heard")
@pytest.mark.parametrize(
    ("module", "name"),
    [(subprocess, "Popen"), (process.os, "wait4"), (process.shutil, "rmtree")],
)
def test_an_interrupt_of_a_start_or_an_end_is_not_lost(
    module: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What was begun is done first, so that nothing is left behind."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    work, once = getattr(module, name), iter([signal.SIGINT])
    before = children()

    def interrupted(*arguments: Any, **settings: Any) -> Any:
        found = work(*arguments, **settings)
        for number in once:
            os.kill(os.getpid(), number)
        return found

    monkeypatch.setattr(module, name, interrupted)
    with pytest.raises(CellInterrupted, match="'loopback' was interrupted"):
        solve("optimal")
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []
    assert children() <= before


def test_an_interrupt_before_the_process_is_a_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such as while the solver is imported: a page has a row of it."""

    def check_request(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("nest.solvers.run.check_request", check_request)
    with pytest.raises(CellInterrupted) as caught:
        solve("optimal")
    result = caught.value.result
    assert (result.outcome, result.plan) == (Outcome.INTERRUPTED, None)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_process_survives_its_parent(tmp_path: Path, number: signal.Signals) -> None:
    pids = tmp_path / "pids"
    code = (
        "from nest.solvers.registry import register_solver\n"
        "from nest.solvers.base import SolveOptions\n"
        "from nest.solvers.run import run_solver\n"
        "from tests.loopback import TARGET, tiny_problem\n"
        "register_solver('loopback', TARGET)\n"
        "options = SolveOptions(extra={'act': 'hang-hidden-grandchild', "
        f"'pids': {str(pids)!r}}})\n"
        "run_solver(tiny_problem(), 'loopback', options)\n"
    )
    root = Path(__file__).parents[3]
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    parent = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=root,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    try:
        wait_until(lambda: pids.exists() and pids.read_text())
    finally:
        parent.send_signal(number)
        parent.wait()
    assert_gone(pids)
    assert list(temporary.iterdir()) == []


def test_runner_works_in_a_thread() -> None:
    results: list[SolveResult] = []
    thread = threading.Thread(target=lambda: results.append(solve("optimal")))
    thread.start()
    thread.join()
    assert results[0].outcome is Outcome.SOLVED


# Comparisons


def acts(**names: str) -> Mapping[str, SolveOptions]:
    return {name: SolveOptions(extra={"act": act}) for name, act in names.items()}


def test_compare_runs_in_order_and_reports_cells() -> None:
    counts: list[int] = []
    results = compare(
        tiny_problem(),
        acts(baseline="heuristic", loopback="optimal"),
        on_cell=lambda results: counts.append(len(results)),
    )
    assert [result.solver for result in results] == ["baseline", "loopback"]
    assert counts == [1, 2]
    assert [result.outcome for result in results] == ["solved", "solved"]


def test_compare_holds_proofs_against_plans() -> None:
    results = compare(tiny_problem(), acts(loopback="infeasible", baseline="heuristic"))
    assert results[0].outcome is Outcome.MISMATCH
    assert results[0].status is Status.NO_SOLUTION
    assert results[0].detail == ("claims infeasible, but the plan of baseline takes 90")
    assert results[1].outcome is Outcome.SOLVED


def test_cross_check_of_bounds() -> None:
    good = solve("optimal")
    assert cross_check([good, good]) == [good, good]
    bound = replace(solve("no-solution"), solver="other", lower_bound_quanta=91)
    checked = cross_check([bound, good])
    assert checked[0].outcome is Outcome.MISMATCH
    assert "claims a lower bound of 91 quanta" in checked[0].detail
    assert checked[0].lower_bound_quanta is None
    assert checked[0].extra["claim"]["lower_bound_quanta"] == 91
    assert cross_check([bound]) == [bound]


def test_document() -> None:
    problem = tiny_problem()
    document = to_document(problem, {"dp": SolveOptions(seed=1)}, [])
    assert document["schema"] == "nest-compare/1"
    assert document["problem"] == "tiny"
    assert document["problem_hash"] == problem_hash(problem)
    assert document["preset"] == "standard"
    assert document["quantum_ps"] == 1000
    assert document["time_limit_s"] is None
    assert (document["workers"], document["seed"]) == (1, 1)
    assert document["versions"]["python"]
    assert document["machine"]["cpus"] == num_cpus()
    assert document["solvers"] == ["dp"]
    assert document["cells"] == []
