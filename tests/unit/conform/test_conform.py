"""The contract: who keeps it conforms, and every way to break it is seen."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from msgspec.structs import replace

from nest.analysis.compare import compare
from nest.conform import CHECKS, State, conform, references
from nest.conform import run as conform_run
from nest.conform.problems import OWN, Reference, large
from nest.conform.trials import Candidate, Trial
from nest.cost.score import score
from nest.errors import InvalidOptionError, UnknownSolverError
from nest.solvers import cell, challenge, registry
from nest.solvers.base import Capabilities, SolveOptions, Status
from nest.solvers.result import Outcome
from nest.solvers.run import run_solver
from tests.children import wait_until
from tests.independent.enumerator import optimum
from tests.inside import run_inside
from tests.loopback import GOOD_NS, good_plan, tiny_problem
from tests.loopback import TARGET as LOOPBACK
from tests.orders import best_of_all
from tests.wrong import TARGET

NAMES = ("wrong", "moody", "misnamed", "no-plans")


@pytest.fixture(autouse=True)
def _unchallenged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave false proofs to the other checks; see test_challenge.py."""
    monkeypatch.setattr(challenge, "SHARE", 0.0)


@pytest.fixture(autouse=True)
def _solvers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in NAMES:
        words = name.title().replace("-", "")
        registry.register_solver(name, f"tests.wrong:{words}")
    # A small one, for which nobody waits.
    small = reference("conform-mixed")
    problem = replace(small.problem, name="large")
    big = small._replace(name="large", problem=problem)
    monkeypatch.setattr(conform_run, "large", lambda: big)
    yield
    for name in NAMES:
        registry.unregister_solver(name)


def reference(name: str) -> Reference:
    (found,) = (x for x in references() if x.name == name)
    return found


OWN_PROBLEMS = {name: reference(f"conform-{name}") for name in OWN}

#: Those whose plans order their passes.
ORDERED = ("any-order", "schedules")


@pytest.mark.parametrize("solver", ["brute", "dp"])
def test_the_stored_optima_are_optima(solver: str) -> None:
    for name, known in OWN_PROBLEMS.items():
        if name in ORDERED:
            continue
        found = run_inside(known.problem, solver)
        assert found.status is Status.OPTIMAL
        assert found.step_quanta == known.optimum_quanta


def test_the_stored_optima_of_orders_are_optima() -> None:
    """Of all plans in all orders, or under each name; names alone are worse."""
    problems = [OWN_PROBLEMS[name] for name in ORDERED]
    values = [best_of_all(problems[0].problem), (optimum(problems[1].problem)[0], True)]
    assert values == [(x.optimum_quanta, True) for x in problems]
    for known in problems:
        found = run_inside(known.problem, "dp")
        assert found.step_quanta == known.optimum_quanta
    ordered = problems[0]
    assert ordered.plan is not None
    assert isinstance(ordered.plan.order, tuple)


@pytest.mark.parametrize(
    ("solver", "name"),
    [("zb", "any-order"), ("random", "schedules"), ("dp", "schedules")],
)
def test_planners_of_orders_conform(solver: str, name: str) -> None:
    """A bound is proof enough; a planner of 1F1B claims nothing about passes."""
    report = conform(solver, problems=[OWN_PROBLEMS[name]])
    assert report.failed == ()
    assert report.cells[0]["outcome"] == "solved"


def test_the_references_are_proven_and_of_all_kinds() -> None:
    known = [*references(), large()]
    for _, problem, optimum_quanta, plan in known:
        if plan is None:
            assert optimum_quanta is None
        else:
            assert score(problem, plan).step_quanta == optimum_quanta
    assert sum(x.plan is None for x in known) == 1
    problems = [x.problem for x in known]
    assert any(len(x.cluster.types) > 1 for x in problems)
    assert any(x.job.granularity == "layer" for x in problems)
    assert any(x.preset == "nest-artifact" for x in problems)
    assert any(len(x.graph.edges) >= len(x.graph.layers) for x in problems)


def test_an_own_solver_conforms() -> None:
    """One of them here; docs/your-planner.md has a command for all."""
    report = conform("brute", problems=[reference("conform-dag")])
    assert report.failed == ()
    assert [x.name for x in report.checks] == [x.name for x in CHECKS]
    missing = [x for x in report.checks if x.state is State.NOT_APPLICABLE]
    assert [x.name for x in missing] == ["workers", "unsupported"]
    assert report.version is not None
    first, *_ = report.cells
    assert first["step_time_quanta"] == first["optimum_quanta"]


def test_a_file_that_an_option_names_is_no_mess() -> None:
    """The option ``log`` writes a file of any name."""
    report = conform("cpsat", problems=[reference("conform-dag")])
    reasons = {x.name: x.state for x in report.checks}
    assert reasons["tidy"] is State.PASSED


def test_every_wrong_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """One planner, another wrong on every problem."""
    monkeypatch.setattr(cell, "GRACE_S", 0.2)
    report = conform("wrong")
    reasons = {x.name: x.reason for x in report.checks}
    assert {x.name for x in report.checks if x.state is State.FAILED} == {
        *("runs", "options", "plans", "claims", "proofs", "warm start"),
        *("decides", "reports", "time limit", "quiet", "tidy"),
    }
    assert len(report.failed) == 11
    assert all("\n" not in text for text in report.failed)
    for name, text in {
        "loads": "a class; wrong in every way",
        "runs": "conform-artifact: ZeroDivisionError: division by zero",
        "options": "size='no such value': expected it to be refused in one "
        "line or to do no harm, got ValueError: invalid literal",
        "plans": "conform-per-layer: stage 2: ",
        "claims": "conform-dag: claims ",
        "proofs": "conform-mixed: claims infeasible, but a plan takes ",
        "decides": "gpt2-large-a10gx2: expected optimal or infeasible from",
        "warm start": "conform-dag: expected the ",
        "reports": "gpt2-large-a10gx2: reports a bound of ",
        "time limit": "large: expected it to stop within 3 s "
        "and 1 s of grace, got none: it was killed",
        "quiet": "llama2-7b-a100-40gbx2: expected no output, got 'searching …'",
        "tidy": "expected no file where it runs, got 'left.txt' (and 1 more)",
    }.items():
        assert reasons[name].startswith(text), name
    wait_until(lambda: not sleeping())
    document = report.to_json()
    assert document["conforms"] is False
    assert [x["check"] for x in document["checks"]] == [x.name for x in CHECKS]


def sleeping() -> list[Path]:
    """Return the processes that the planner left."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes() == b"sleep\x0061.5\x00":
                found.append(path)
    return found


def test_another_answer_every_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MOODY", str(tmp_path / "runs"))
    report = conform("moody", problems=[reference("conform-dag")])
    reasons = {x.name: x.reason for x in report.checks}
    assert {x.name for x in report.checks if x.state is State.FAILED} == {
        "repeatable",
        "warm start",
    }
    assert "another plan or value" in reasons["repeatable"]
    assert reasons["proofs"] == "it proves nothing"


def test_a_class_of_another_name() -> None:
    named = SimpleNamespace(name="misnamed")
    assert CHECKS[0].check(cast("Candidate", named)) == (
        State.FAILED,
        "expected the class to have the name 'misnamed', got 'moody'",
    )


def test_who_skips_everything_does_not_conform() -> None:
    report = conform("no-plans", problems=[reference("conform-dag")])
    answers, unsupported = report.failed
    assert answers == "answers: a plan for 0 of 1 problems that have one"
    assert unsupported.startswith(
        "unsupported: conform-dag: expected a reason of 1 to 500 characters, "
        "got 'it gives no reason'"
    )


def test_a_solver_that_cannot_be_loaded() -> None:
    registry.register_solver("missing", "tests.no_such_module:Solver")
    try:
        report = conform("missing")
    finally:
        registry.unregister_solver("missing")
    (reason,) = report.failed
    assert reason.startswith("loads: expected a solver class at 'tests.no_")
    assert report.count(State.NOT_APPLICABLE) == len(CHECKS) - 1


def test_bad_requests() -> None:
    with pytest.raises(UnknownSolverError, match="got 'wrogn'; did you mean"):
        conform("wrogn")


def test_the_runner_catches_it_too() -> None:
    """Each costs its own cell, and the others stand."""
    expected = {
        "claim": (Outcome.MISMATCH, "claims "),
        "plan": (Outcome.INVALID_PLAN, "stage 2: "),
        "infeasible": (Outcome.MISMATCH, "claims infeasible, but the plan of"),
        "crash": (Outcome.ERROR, "ZeroDivisionError: division by zero"),
    }
    cells = {"random": SolveOptions()}
    for act in expected:
        registry.register_solver(f"wrong-{act}", TARGET)
        cells[f"wrong-{act}"] = SolveOptions(extra={"act": act})
    try:
        first, *others = compare(reference("conform-dag").problem, cells)
    finally:
        for act in expected:
            registry.unregister_solver(f"wrong-{act}")
    assert first.status is Status.FEASIBLE
    for wrong, (outcome, detail) in zip(others, expected.values(), strict=True):
        assert wrong.outcome is outcome
        assert wrong.detail.startswith(detail)


def test_a_false_claim_does_not_hide_behind_its_plan() -> None:
    """Nor the plan behind the claim: each breaks a promise of its own."""
    tiny = Reference("tiny", tiny_problem(), GOOD_NS, good_plan())
    expected = {
        # What it says, and of which promises that is wrong.
        "big-plan": {"plans"},
        "big-plan-and-bound": {"plans", "proofs"},
        "big-optimum": {"plans", "claims"},
        "too-big-and-lie": {"plans", "claims"},
        "feasible": set[str](),
    }
    checks = [x for x in CHECKS if x.name in ("plans", "claims", "proofs")]
    registry.register_solver("loopback", LOOPBACK)
    try:
        for act, broken in expected.items():
            options = SolveOptions(extra={"act": act})
            result = run_solver(tiny.problem, "loopback", options)
            trial = Trial(tiny, options, result, "")
            candidate = cast("Candidate", SimpleNamespace(every=[trial]))
            found = {x.name: x.check(candidate)[0] for x in checks}
            failed = {x for x, state in found.items() if state == "failed"}
            assert failed == broken, act
    finally:
        registry.unregister_solver("loopback")


def test_a_false_proof_decides_nothing() -> None:
    """An optimum of one quantum above the best plan's is no proof."""
    problem = tiny_problem()
    (decides,) = (x for x in CHECKS if x.name == "decides")
    registry.register_solver("loopback", LOOPBACK)
    try:
        result = run_solver(problem, "loopback")
    finally:
        registry.unregister_solver("loopback")
    assert result.status is Status.OPTIMAL
    for best, state, reason in (
        (GOOD_NS, State.PASSED, "1 of 1 problems proven"),
        (GOOD_NS - 1, State.FAILED, "tiny: expected a proof, got a false one"),
    ):
        tiny = Reference("tiny", problem, best, None)
        trial = Trial(tiny, SolveOptions(), result, "")
        able = Capabilities(exact=True, method="says so")
        candidate = cast(
            "Candidate", SimpleNamespace(trials=[trial], capabilities=able)
        )
        assert decides.check(candidate) == (state, reason)


def test_options_must_be_known() -> None:
    with pytest.raises(InvalidOptionError, match="expected one of the opt"):
        conform("wrong", extra={"speed": "1"})
