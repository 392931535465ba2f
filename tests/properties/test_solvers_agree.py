"""All exact solvers prove the same: the optimum, or that there is none.

A disagreement writes the problem to ``.hypothesis/disagreements`` and says
how to store it as a regression instance; instance files, not seeds, are kept.
"""

from __future__ import annotations

from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path
from random import Random
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nest.analysis.fit import StepTimeLimit, fewest_devices
from nest.cost.score import score
from nest.ir import Problem, write
from nest.solvers.base import SolveOptions, SolverOutput, Status
from nest.solvers.registry import get_solver
from tests import optima
from tests.builders import with_job
from tests.frontiers import enumerated, searched
from tests.half_quanta import half_quanta
from tests.inside import run_inside
from tests.properties.profiles import examples
from tests.strategies import problems

#: Relative difference that solvers may have at most (DESIGN §4); those not
#: listed have none.
TOLERANCE = {"milp": 1e-6}


#: ``milp`` with every engine that is here; the first is the default.
MILP = ("milp", *(["milp highs"] if find_spec("highspy") else []))

#: What is held against ``brute``; ``milp`` up to :data:`TOLERANCE`.
EXACT = ("dp", "cpsat", *MILP)


def solve(name: str, problem: Problem) -> SolverOutput:
    """Solve with a solver and, if one is named, an engine."""
    solver, _, engine = name.partition(" ")
    extra = {"engine": engine} if engine else {}
    return get_solver(solver)().solve(problem, SolveOptions(extra=extra))


def why_wrong(
    name: str, problem: Problem, truth: SolverOutput, output: SolverOutput
) -> str | None:
    """Return what a solver got wrong, or ``None``."""
    if output.status is not truth.status:
        return f"{name}: status {output.status}, expected {truth.status}"
    if output.limit is not None:
        return f"{name}: limit {output.limit} without one"
    optimum = truth.claimed_quanta
    bound = output.lower_bound_quanta
    if optimum is None:
        if output.plan is not None or output.claimed_quanta is not None:
            return f"{name}: a plan of an infeasible problem"
        return None
    if output.plan is None or output.claimed_quanta is None:
        return f"{name}: optimal without a plan"
    verdict = score(problem, output.plan)
    if not verdict.feasible:
        return f"{name}: infeasible plan, {verdict.violations}"
    if verdict.step_quanta != output.claimed_quanta:
        return f"{name}: claims {output.claimed_quanta}, scored {verdict.step_quanta}"
    slack = TOLERANCE.get(name, 0) * optimum
    if not optimum <= output.claimed_quanta <= optimum + slack:
        return f"{name}: {output.claimed_quanta}, optimum {optimum}"
    if bound is None or not optimum - slack <= bound <= optimum:
        return f"{name}: lower bound {bound}, optimum {optimum}"
    return None


def check(names: tuple[str, ...], problem: Problem) -> None:
    """Compare solvers with plain enumeration."""
    truth = solve("brute", problem)
    assert truth.status in (Status.OPTIMAL, Status.INFEASIBLE)
    wrong = [
        text
        for name in names
        if (text := why_wrong(name.split()[0], problem, truth, solve(name, problem)))
    ]
    if wrong:
        folder = Path(".hypothesis", "disagreements")
        folder.mkdir(parents=True, exist_ok=True)
        # one file per comparison: the smallest example is written last
        path = folder / f"{names[0]}-{problem.preset}.json"
        write(path, problem)
        pytest.fail(
            f"{'; '.join(wrong)}. Keep it: python -m tests.regression.store "
            f"{path} NAME WHY"
        )


def test_no_solver_promises_less_than_it_must():
    """The bar is set here, not by the solver's own word."""
    for name in ("brute", "dp", "cpsat", "milp"):
        assert get_solver(name).capabilities.precision <= TOLERANCE.get(name, 0)


@examples(300, full=3000)
@given(problems())
def test_exact_solvers_prove_the_optimum_of_brute_force(problem):
    """Equal to the quantum, or to 1e-6; infeasibility included."""
    check(EXACT, problem)


@examples(120, full=2000)
@given(
    st.one_of(
        problems(graphs=True),
        problems(graphs=True),
        problems(graphs=True, restricted=True),
        problems(graphs=True, granularity="layer"),
    )
)
def test_exact_solvers_prove_the_optimum_on_graphs(problem):
    """Shared links, any order of devices, any shape; infeasible ones too."""
    check(EXACT, problem)


@examples(200, full=3000)
@given(
    problems(),
    st.sampled_from(["dp", "cpsat", "cpsat", "milp"]),
    st.sampled_from([0.05, 0.15, 0.3]),
)
def test_a_gap_is_kept_and_its_bound_is_true(problem, name, gap):
    """``bound <= optimum <= cost``, and cost and bound as close as asked."""
    truth = solve("brute", problem)
    output = get_solver(name)().solve(problem, SolveOptions(gap=gap))
    optimum, cost = truth.claimed_quanta, output.claimed_quanta
    assert (output.status is Status.INFEASIBLE) == (optimum is None)
    if optimum is None:
        return
    assert output.limit is None
    assert output.lower_bound_quanta <= optimum <= cost
    slack = TOLERANCE.get(name, 0) * cost
    assert cost - output.lower_bound_quanta <= Fraction(gap) * cost + slack


@examples(100, full=1000)
@given(problems(preset="nest-artifact"))
def test_exact_solvers_agree_under_the_nest_artifact_preset(problem):
    check(EXACT, problem)


@examples(120, full=2000)
@given(problems(granularity="layer"))
def test_exact_solvers_prove_the_optimum_with_a_strategy_per_layer(problem):
    """Equal to the quantum, and never worse than one strategy per stage."""
    check(EXACT, problem)
    coarse = with_job(problem, granularity="stage")
    fine = solve("dp", problem).claimed_quanta
    best = solve("dp", coarse).claimed_quanta
    if best is not None:
        assert fine is not None
        assert fine <= best


@examples(80, full=1500)
@given(st.one_of(problems(overlapping=True), problems(overlapping=True, graphs=True)))
def test_exact_solvers_prove_the_optimum_with_overlap(problem):
    """Overlap and the distributed optimizer, equal to the quantum."""
    check(EXACT, problem)


@examples(50, full=1500)
@given(problems(overlapping=True, granularity="layer"))
def test_exact_solvers_prove_the_optimum_with_overlap_per_layer(problem):
    check(EXACT, problem)


@examples(15, full=500)
@given(st.one_of(problems(), problems(overlapping=True), problems(granularity="layer")))
def test_milp_needs_no_wide_windows(problem):
    """Step times of a model differ by a factor of two at most."""
    with mock.patch("formulations.milp.windows.SPREAD", 2):
        check(MILP, problem)


@examples(40, full=1000)
@given(
    st.one_of(problems(restricted=True), problems(granularity="layer", restricted=True))
)
def test_formulations_keep_to_the_degrees_that_a_job_allows(problem):
    """Numbers of stages, and tensor, context and expert parallelism."""
    check(("cpsat", *MILP), problem)


def choosing() -> st.SearchStrategy[Problem]:
    """Draw problems whose plans choose where sequences are split."""
    return st.one_of(
        problems(choosing=True),
        problems(choosing=True, granularity="layer"),
        problems(choosing=True, graphs=True),
        problems(choosing=True, overlapping=True),
    )


#: Problems whose plans choose where tensor ranks hold whole experts.
FOLDING = {
    "stage": problems(folding=True),
    "layer": problems(folding=True, granularity="layer"),
    "graph": problems(folding=True, graphs=True),
    "sequences": problems(folding=True, choosing=True),
    "overlap": problems(folding=True, overlapping=True),
}


@examples(100, full=3000)
@given(st.one_of(*FOLDING.values()))
def test_exact_solvers_prove_the_optimum_where_experts_are_whole(problem):
    """Experts are then spread over other ranks than those that share data."""
    check(EXACT, problem)


@pytest.mark.parametrize("kind", FOLDING)
@examples(100, full=2000)
@given(st.data())
def test_a_thousand_problems_with_whole_experts(kind, data):
    """1,000 of each kind and more in a full run, 50 by default."""
    check(EXACT, data.draw(FOLDING[kind]))


@examples(100, full=2000)
@given(choosing())
def test_exact_solvers_prove_the_optimum_where_plans_split_sequences(problem):
    """Per stage and per layer, shared by all or not."""
    check(EXACT, problem)


@examples(60, full=2000)
@given(choosing(), st.sampled_from(sorted(optima.SETTINGS)))
def test_dp_needs_no_plan_where_plans_split_sequences(problem, setting):
    check_setting(setting, problem)


@examples(40, full=1000)
@given(choosing(), st.sampled_from([(1, 2), (2,), (2, 3)]))
def test_dp_bounds_interleaved_plans_that_split_sequences(problem, allowed):
    problem = with_job(
        problem,
        schedule="1f1b",
        overlap={},
        distributed_optimizer=False,
        virtual_stages=allowed,
    )
    truth, output = solve("brute", problem), solve("dp", problem)
    best = truth.claimed_quanta
    if best is None:
        assert output.plan is None
        return
    assert output.lower_bound_quanta is not None
    assert output.lower_bound_quanta <= best
    if output.claimed_quanta is not None:
        assert output.claimed_quanta >= best
    if output.status is Status.OPTIMAL:
        assert output.claimed_quanta == best


@examples(40, full=1000)
@given(st.one_of(problems(choosing=True), problems(choosing=True, granularity="layer")))
def test_frontiers_of_plans_that_split_sequences(problem):
    assert searched(problem) == enumerated(problem)


@examples(40, full=1000)
@given(choosing())
def test_a_choice_of_where_to_split_never_hurts(problem):
    """Each value alone is a part of the choice of both."""
    whole = with_job(problem, sequence_parallel=(False, True))
    best = solve("dp", whole).claimed_quanta
    for value in (False, True):
        alone = solve("dp", with_job(whole, sequence_parallel=(value,))).claimed_quanta
        if alone is not None:
            assert best is not None
            assert best <= alone


@pytest.mark.parametrize("setting", optima.SETTINGS)
@given(
    problem=st.one_of(
        problems(preset="standard"),
        problems(preset="standard", restricted=True),
        problems(granularity="layer"),
        problems(granularity="layer"),
        problems(overlapping=True),
        problems(overlapping=True, granularity="layer"),
    )
)
@examples(50, full=2000)
def test_dp_needs_no_plan_to_start_from(setting, problem):
    """The optimum is the same if the search starts without a bound."""
    check_setting(setting, problem)


@pytest.mark.parametrize("setting", optima.SETTINGS)
@given(
    problem=st.one_of(problems(graphs=True), problems(graphs=True, granularity="layer"))
)
@examples(20, full=1000)
def test_dp_needs_no_plan_to_start_from_on_graphs(setting, problem):
    check_setting(setting, problem)


def check_setting(setting: str, problem: Problem) -> None:
    truth = solve("brute", problem)
    output = optima.search(problem, setting)
    assert output.status is truth.status
    assert output.claimed_quanta == truth.claimed_quanta
    assert output.lower_bound_quanta == truth.lower_bound_quanta


@given(
    problem=st.one_of(
        problems(preset="standard"),
        problems(granularity="layer"),
        problems(graphs=True),
    ),
    setting=st.sampled_from(sorted(optima.SETTINGS)),
    ticks=st.integers(0, 100),
)
@examples(50, full=2000)
def test_what_dp_proves_in_time_is_true(problem, setting, ticks):
    optima.check_limited(problem, setting, ticks, solve("brute", problem))


@examples(150, full=2000)
@given(st.integers(0, 2**63))
def test_all_answers_agree_where_only_rounding_decides(seed):
    """All exact solvers, the frontier, and what ``nest fit`` says."""
    problem = half_quanta(Random(seed))
    check(("dp", "cpsat"), problem)
    best = solve("brute", problem).claimed_quanta
    assert best is not None
    assert searched(problem) == enumerated(problem)
    assert enumerated(problem)[-1][1] == best
    with mock.patch("nest.analysis.fit.run_solver", run_inside):
        kept = fewest_devices(problem, StepTimeLimit(best, ""))
        missed = fewest_devices(problem, StepTimeLimit(best - 1, ""))
    assert kept.proven
    assert kept.best is not None
    assert kept.best.result.step_quanta <= best
    assert missed.proven
    assert missed.best is None


@examples(40, full=1000)
@given(st.integers(0, 2**63))
def test_milp_agrees_where_only_rounding_decides(seed):
    check(("milp",), half_quanta(Random(seed)))
