"""Proofs are held against plans of what they discard.

Layers ``a`` (10 + 20 ns) and ``b`` (30 + 40 ns) have no weights and send
nothing; two micro-batches, two devices. One replica on one device takes
2 · 100 = 200 ns, as two stages 30 + 70 + 70 = 170; two replicas with a
micro-batch each take 100. A device holds 8 bytes: a layer keeps 4 per
micro-batch in flight, so two stages keep 2 · 4 and 4.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from formulations.common import Instance
from formulations.paths.search import least_work
from formulations.paths.stages import StageFamilyCase
from nest.analysis.pareto import Curve, _checked_curve, _Traced
from nest.cost.model import CostModel
from nest.errors import SolverError
from nest.ir import Plan, Problem, decode_problem, problem_hash
from nest.search.frontier.staircase import Gap, Point
from nest.search.stages.options import StageOptions
from nest.search.stages.splits import work_bound
from nest.solvers import challenge, registry
from nest.solvers.base import Capabilities, Deadline, SolveOptions, SolverOutput, Status
from nest.solvers.challenge import challengers
from nest.solvers.judge import judge
from nest.solvers.registry import get_solver
from nest.solvers.result import Outcome, Verdict
from nest.solvers.run import run_solver
from tests.builders import SINGLE, call, make_cost, make_plan, make_problem
from tests.clock import Ticking
from tests.loopback import TARGET, tiny_problem

EXACT = Capabilities(exact=True, method="none")
ONE_STAGE = make_plan(("a b", SINGLE))
TWO_STAGES = make_plan(("a", SINGLE), ("b", SINGLE))
TWO_REPLICAS = make_plan(("a b", SINGLE), replicas=2)


def problem(memory_bytes: int = 8) -> Problem:
    costs = {"a": make_cost(10, 20, kept_bytes=4), "b": make_cost(30, 40, kept_bytes=4)}
    return make_problem(
        costs,
        edges=(("a", "b", 0),),
        devices=2,
        memory_bytes=memory_bytes,
        global_batch=2,
    )


def claim(
    plan: Plan | None, step: int | None, *split_bounds: tuple[int, int, int]
) -> SolverOutput:
    return SolverOutput(
        status=Status.OPTIMAL if plan else Status.INFEASIBLE,
        plan=plan,
        claimed_quanta=step,
        split_bounds=split_bounds,
    )


def judged(output: SolverOutput) -> Verdict:
    return judge(problem(), output, capabilities=EXACT, challenge=Deadline(None))


def test_plans_of_every_split_are_priced() -> None:
    """Those most like the best plan first."""
    plans = [*challengers(CostModel(problem()), TWO_STAGES, Deadline(None))]
    assert [(x.plan, x.step_quanta, x.memory_bytes) for x in plans] == [
        (TWO_STAGES, 170, 8),
        (TWO_REPLICAS, 100, 8),
        (ONE_STAGE, 200, 8),
    ]


def test_without_a_plan_lean_ones_come_first() -> None:
    plans = [*challengers(CostModel(problem()), None, Deadline(None))]
    assert [x.plan for x in plans] == [TWO_STAGES, TWO_REPLICAS, ONE_STAGE]
    # One byte less, and nothing fits but the one layer that is last.
    assert not [*challengers(CostModel(problem(7)), None, Deadline(None))]


def test_a_true_proof_stands() -> None:
    verdict = judged(claim(TWO_REPLICAS, 100, (1, 1, 170), (2, 1, 100)))
    assert (verdict.outcome, verdict.status) == ("solved", "optimal")


@pytest.mark.parametrize(
    ("output", "text", "refuting"),
    [
        (
            claim(TWO_STAGES, 170),
            "wrong proof: expected no plan with r=2,b=1 of less than 170 "
            "quanta, got one of 100 quanta (r=2, b=1, pp=1, "
            "strategies single)",
            TWO_REPLICAS,
        ),
        (
            claim(TWO_REPLICAS, 100, (1, 1, 171), (2, 1, 100)),
            "wrong proof: expected no plan with r=1,b=1 of less than 171 "
            "quanta, got one of 170 quanta (r=1, b=1, pp=2, "
            "strategies single)",
            TWO_STAGES,
        ),
        (
            claim(None, None),
            "wrong proof: expected no plan with r=1,b=1, got one of 170 "
            "quanta (r=1, b=1, pp=2, strategies single)",
            TWO_STAGES,
        ),
        (
            SolverOutput(
                status=Status.NO_SOLUTION,
                lower_bound_quanta=101,
                detail="no plan within 100 quanta",
            ),
            "wrong proof: expected no plan with r=2,b=1 of less than 101 "
            "quanta, got one of 100 quanta (r=2, b=1, pp=1, "
            "strategies single)",
            TWO_REPLICAS,
        ),
    ],
    ids=["optimum", "split", "infeasible", "bound"],
)
def test_a_wrong_proof_is_refuted(
    output: SolverOutput, text: str, refuting: Plan
) -> None:
    verdict = judged(output)
    assert (verdict.outcome, verdict.detail) == (Outcome.MISMATCH, text)
    plan = replace(refuting, problem_hash=None)
    found = verdict.extra["contradiction"]
    assert found["replicas"] == plan.replicas
    assert len(found["stages"]) == len(plan.stages)


@pytest.mark.parametrize("name", ["dp", "cpsat", "milp"])
def test_exact_solvers_say_what_discarded_a_split(name: str) -> None:
    output = get_solver(name)().solve(problem(), SolveOptions())
    bounds = {(r, b): bound for r, b, bound in output.split_bounds}
    assert output.claimed_quanta == 100
    assert 100 <= bounds[1, 1] <= 170
    assert bounds.get((2, 1), 100) == 100


def test_the_least_family_bounds_a_split() -> None:
    """On one rank a step takes 10 + 20 ns, on two, listed last, 100 + 100."""
    costs = make_cost(10, 20), make_cost(100, 100, tp=2)
    some = make_problem({"a": costs}, devices=2, replicas=(1,), uniform=("tp",))
    output = get_solver("dp")().solve(some, SolveOptions())
    assert output.split_bounds == ((1, 1, 30),)


@pytest.mark.parametrize("name", ["dp", "cpsat"])
def test_a_plan_below_the_bound_of_its_split_is_an_error(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first bounds of splits are 100 too large; 100 is the optimum."""
    if name == "dp":

        def too_large(options: StageOptions) -> tuple[int, int]:
            bound, least_total = work_bound(options)
            return bound + 1, least_total

        monkeypatch.setattr("nest.search.stages.splits.work_bound", too_large)
    else:

        def too_much(instance: Instance, case: StageFamilyCase) -> int | None:
            bound = least_work(instance, case)
            return None if bound is None else bound + 1

        monkeypatch.setattr("formulations.paths.search.least_work", too_much)
    with pytest.raises(
        SolverError,
        match="wrong proof: expected no plan with r=2,b=1 of less than 101 "
        "quanta, got one of 100 quanta; please report this problem",
    ):
        get_solver(name)().solve(problem(), SolveOptions())


def test_no_time_no_plan() -> None:
    """The budget is a deadline, which may pass before the first plan."""
    assert not [*challengers(CostModel(problem()), None, Deadline(0))]
    assert len([*challengers(CostModel(problem()), None, Ticking(2))]) == 2


def test_what_a_solver_does_not_search_refutes_nothing() -> None:
    """Overlap hides all of the 60 ns of communication of two ranks."""
    costs = (
        make_cost(100, 100),
        make_cost(
            *(50, 50), tp=2, collectives=(call("all-reduce", "tp", "forward", 50),)
        ),
    )
    some = make_problem({"a": costs}, devices=2, overlap={"tp": 1.0})
    model = CostModel(some)
    plans = [*challengers(model, None, Deadline(None), EXACT)]
    assert plans
    assert not any(x.plan.overlap for x in plans)
    searched = Capabilities(exact=True, method="none", searches=frozenset(["overlap"]))
    plans = [*challengers(model, None, Deadline(None), searched)]
    assert any(x.plan.overlap for x in plans)


def test_rules_about_whole_plans_are_kept() -> None:
    """Strategies that stages may not mix, numbers of stages, idle devices."""
    some = problem()
    job = replace(some.job, pipeline_parallel=(2,), replicas=(1,))
    model = CostModel(replace(some, job=job))
    plans = [*challengers(model, None, Deadline(None))]
    assert [x.plan for x in plans] == [TWO_STAGES]


def test_interleaved_plans_have_two_blocks() -> None:
    costs = {name: make_cost(10, 20) for name in "abcd"}
    some = make_problem(
        costs,
        edges=tuple((x, y, 0) for x, y in ("ab", "bc", "cd")),
        devices=2,
        global_batch=2,
        virtual_stages=(2,),
    )
    plans = [*challengers(CostModel(some), None, Deadline(None))]
    assert {(x.plan.num_blocks, x.plan.virtual_stages) for x in plans} == {(2, 2)}


def test_the_runner_stores_the_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, and what it says names the file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(challenge, "SHARE", 1e6)
    registry.register_solver("loopback", TARGET)
    try:
        for _ in range(2):
            options = SolveOptions(extra={"act": "infeasible"})
            result = run_solver(tiny_problem(), "loopback", options)
    finally:
        registry.unregister_solver("loopback")
    assert (result.outcome, result.status) == ("mismatch", "no-solution")
    name = f"nest-contradiction-{problem_hash(tiny_problem())[:12]}.json"
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert result.detail == (
        "wrong proof: expected no plan with r=1,b=1, got one of 90 quanta "
        f"(r=1, b=1, pp=2, strategies single); please report ./{name}"
    )
    stored = decode_problem((tmp_path / name).read_bytes())
    assert problem_hash(stored) == problem_hash(tiny_problem())
    assert result.extra["claim"]["status"] == "infeasible"


def test_a_problem_that_cannot_be_stored_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    missing = tmp_path / "missing"
    monkeypatch.setattr(challenge, "os", _Elsewhere(missing))
    monkeypatch.setattr(challenge.tempfile, "gettempdir", lambda: str(missing))
    some = tiny_problem()
    assert challenge.reported(some, "why") == "why; please report problem tiny"


class _Elsewhere:
    """A stand-in for ``os`` whose working directory does not exist."""

    def __init__(self, folder: Path) -> None:
        import os

        self.curdir, self.path = str(folder), os.path


def traced(gaps: tuple[Gap, ...], *points: Point) -> Curve:
    return _checked_curve(_Traced(problem(), points, gaps, 1.0))


def test_a_frontier_without_a_point_is_refuted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(challenge, "SHARE", 1e6)
    monkeypatch.setattr("nest.analysis.pareto.SHARE", 1e6)
    slow, fast = Point(170, 8, TWO_STAGES), Point(100, 8, TWO_REPLICAS)
    assert len(traced((), fast).points) == 1
    with pytest.raises(
        SolverError,
        match="wrong proof: expected no plan of 2 devices within 8 bytes "
        r"that takes 100 quanta, got one \(r=2, b=1, pp=1, strategies single"
        r"\); please report \./nest-contradiction-",
    ):
        traced((), slow)
    # Where it says itself that faster plans are not ruled out, it is not.
    traced((Gap(7, 8, 100),), slow)
    with pytest.raises(SolverError, match="wrong proof"):
        traced((Gap(7, 8, 101),), slow)
