"""The robust plan: no candidate has a lower guaranteed step time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nest.analysis.robust import robust_of
from nest.cost.model import CostModel
from nest.cost.scaled import Factors, scaled
from nest.cost.score import score
from nest.ir import Plan, Problem
from nest.solvers.base import Status
from nest.solvers.result import SolveResult
from nest.uncertainty.intervals import Deviations, Quantiles, intervals_of
from nest.units import quanta_to_ns
from tests.builders import with_job
from tests.independent import enumerator
from tests.inside import run_inside
from tests.properties.profiles import examples
from tests.strategies import Draw, problems, problems_with_plans

_SPREADS = st.sampled_from([0.0, 0.05, 0.2, 0.5])


@st.composite
def deviations(draw: Draw) -> Deviations:
    """Draw how far predictions are off."""
    return Deviations(
        noise=draw(_SPREADS),
        device=draw(_SPREADS),
        network=draw(_SPREADS),
        host=draw(_SPREADS),
        unseen=draw(_SPREADS),
        experts=draw(_SPREADS),
        low_precision=0.0,
        plan_noise=0.05,
        apart=1.0,
        step=Quantiles(low_90=-1.6, low_50=-0.7, high_50=0.7, high_90=1.6),
        memory=Quantiles(low_90=-0.1, low_50=0.0, high_50=0.0, high_90=0.1),
        memory_error=0.05,
        families={},
    )


@given(problems(), deviations())
@examples(20, full=300)
def test_the_robust_plan_by_every_plans_own_interval(
    problem: Problem, numbers: Deviations
) -> None:
    """No candidate is better, nor any plan below the bound."""
    problem = with_job(problem, sequence_length=1)
    found_by: list[SolveResult] = []

    def search(other: Problem) -> SolveResult:
        found_by.append(run_inside(other, "dp"))
        return found_by[-1]

    fastest = search(problem)
    found = robust_of(problem, fastest, search, numbers)
    if found.best is None or found.first is None:
        assert found.answer is fastest
        return
    assert found.searches == len(found_by)
    answer = found.answer
    assert answer.plan is not None
    assert answer.score == score(problem, answer.plan)
    assert answer.score.feasible
    known = intervals_of(problem, answer.plan, answer.score, numbers)
    assert known is not None
    assert known.step_90_ns.high == found.best.guaranteed_ns
    if found.first.memory_kept or not found.best.memory_kept:
        assert found.best.guaranteed_ns <= found.first.guaranteed_ns
    assert not (found.first.memory_kept and not found.best.memory_kept)
    capacity = problem.cluster.memory_bytes()
    if found.kept is not None:
        assert found.best.guaranteed_ns <= found.kept.guaranteed_ns
    if found.best.memory_kept:
        assert known.memory_90_bytes.high <= capacity * (1 + 1e-9)
    assert found.bound_ns is not None
    model = CostModel(problem)
    for plan in enumerator.plans(problem):
        verdict = score(problem, plan, model)
        step_ns = quanta_to_ns(verdict.step_quanta, problem.quantum_ps)
        # Upper ends are not below what is predicted: the others are above.
        if not verdict.feasible or step_ns >= found.bound_ns:
            continue
        other = intervals_of(problem, plan, verdict, numbers)
        if other is not None:
            assert other.step_90_ns.high >= found.bound_ns * (1 - 1e-9)
    assert (answer.status is Status.OPTIMAL) == (
        answer.step_quanta == fastest.step_quanta
    )


@given(
    problems_with_plans(),
    st.sampled_from(Factors._fields),
    st.sampled_from([1.1, 2.0, 10.0]),
)
@examples(100)
def test_longer_times_make_no_step_shorter(
    drawn: tuple[Problem, Plan | None], name: str, factor: float
) -> None:
    problem, plan = drawn
    if plan is None:
        return
    before = score(problem, plan).step_quanta
    after = score(scaled(problem, Factors(**{name: factor})), plan)
    assert after.step_quanta >= before
    assert after.violations == score(problem, plan).violations
