"""The robust plan: no other has a lower guaranteed step time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nest.cost.scaled import Factors, scaled
from nest.cost.score import score
from nest.intervals import Deviations, Quantiles, pessimistic
from nest.ir import Plan, Problem
from nest.robust import robust_of
from nest.solvers.base import Status
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
        plans=1.6,
        memory=Quantiles(low_90=-0.1, low_50=0.0, high_50=0.0, high_90=0.1),
        memory_error=0.05,
        families=(),
    )


@given(problems(), deviations())
@examples(40)
def test_no_plan_is_guaranteed_to_take_less(
    problem: Problem, numbers: Deviations
) -> None:
    """Of all plans that fit, priced one by one under longer times."""
    worse = pessimistic(problem, numbers)
    found = robust_of(
        problem,
        worse,
        run_inside(problem, "dp"),
        run_inside(worse.problem, "dp"),
    )
    fitting = [
        plan
        for plan in enumerator.plans(problem)
        if score(problem, plan).feasible
    ]
    if not fitting:
        assert found.guaranteed_quanta is None
        assert found.answer is found.fastest
        return
    quanta = [score(worse.problem, plan).step_quanta for plan in fitting]
    assert found.guaranteed_quanta == min(quanta)
    assert found.proven
    nominal = [score(problem, plan).step_quanta for plan in fitting]
    assert found.fastest.step_quanta == min(nominal)
    answer = found.answer
    assert answer.plan is not None
    assert answer.score == score(problem, answer.plan)
    assert answer.lower_bound_quanta == min(nominal)
    assert (answer.status is Status.OPTIMAL) == (
        answer.step_quanta == min(nominal)
    )
    assert found.cost is None or found.cost >= 0
    assert found.gain is None or found.gain >= 0


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
