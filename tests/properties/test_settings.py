"""Plans by their settings: no plan lacks a setting that was named."""

from __future__ import annotations

from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from nest.analysis.fit import most_memory_bytes, with_memory
from nest.analysis.plan_by_settings import Filled, plan_by_settings
from nest.constraints.pins import SETTINGS, Value, choices, describe, restrict
from nest.cost.score import score
from nest.errors import InvalidOptionError, InvalidPlanError
from nest.ir import Plan, Problem, Strategy
from nest.solvers.base import SolverOutput, Status
from tests.builders import with_job
from tests.inside import run_inside
from tests.properties.profiles import examples
from tests.properties.test_solvers_agree import solve
from tests.strategies import Draw, problems

Settings = dict[str, tuple[Value, ...]]


def _value(strategy: Strategy, name: str) -> Value:
    """Return a setting; experts are cut as ``tp`` where nothing else is said."""
    value: Value = getattr(strategy, name)
    return value or strategy.tp if name == "etp" else value


def values_of(plan: Plan) -> dict[str, set[Value]]:
    """Return the values that each setting has in a plan."""
    strategies = [s for x in plan.stages for s in x.layer_strategies]
    found: dict[str, set[Value]] = {
        "r": {plan.replicas},
        "b": {plan.micro_batch},
        "pp": {plan.num_blocks},
        "v": {plan.virtual_stages},
    }
    for name, setting in SETTINGS.items():
        if setting.of_strategy:
            found[name] = {_value(s, name) for s in strategies}
    return found


@st.composite
def settings(draw: Draw, interleaved: bool) -> tuple[Problem, Settings]:
    """Draw a problem whose memory may be short, and settings of its plans."""
    kinds = [problems(), problems(overlapping=True), problems(graphs=True)]
    problem = draw(st.one_of(*kinds, problems(granularity="layer")))
    if interleaved:
        problem = draw(problems(preset="standard"))
        virtual = draw(st.sampled_from(((1, 2), (2,), (1, 2, 3))))
        problem = with_job(problem, schedule="1f1b", virtual_stages=virtual)
    possible = choices(problem)
    names = draw(st.sets(st.sampled_from(sorted(possible)), max_size=4))
    if interleaved:
        names = {*names, "v"}
    pins = {
        name: (draw(st.sampled_from(possible[name])),)
        for name in sorted(names)
        if possible[name]
    }
    share = draw(st.sampled_from((1.0, 1.0, 0.6, 0.3, 0.1)))
    memory_bytes = int(share * problem.cluster.memory_bytes())
    least = problem.cluster.reserve_bytes() + 1
    return with_memory(problem, max(least, memory_bytes)), pins


def by_settings(problem: Problem, pins: Settings) -> Filled | str:
    """Return the plan of settings, or why there is none."""
    text = describe(pins, {}).removeprefix("--pin ")
    with (
        mock.patch("nest.analysis.plan_by_settings.run_solver", run_inside),
        mock.patch("nest.analysis.fit.run_solver", run_inside),
    ):
        try:
            return plan_by_settings(problem, text)
        except (InvalidOptionError, InvalidPlanError) as error:
            return str(error)


def whatever_the_memory(problem: Problem, pins: Settings) -> SolverOutput:
    """Return what enumeration says of the settings without a memory limit."""
    fields = {SETTINGS[name].field: values for name, values in pins.items()}
    narrow = with_job(problem, **fields)
    return solve("brute", with_memory(narrow, most_memory_bytes(narrow)))


def check(problem: Problem, pins: Settings) -> None:
    found = by_settings(problem, pins)
    if isinstance(found, str):
        truth = whatever_the_memory(problem, pins)
        # Of interleaved plans the search may construct none.
        assert truth.status is Status.INFEASIBLE or (
            truth.plan is not None and truth.plan.virtual_stages > 1
        ), found
        assert "contradiction" not in found or (truth.status is Status.INFEASIBLE)
        return
    values = values_of(found.plan)
    assert {name: values[name] <= {*kept} for name, kept in pins.items()} == (
        dict.fromkeys(pins, True)
    )
    narrow = restrict(problem, pins)
    verdict = score(narrow, found.plan)
    best = solve("brute", narrow)
    if found.how.startswith("the fastest"):
        assert verdict.feasible
        proven = "constructed" not in found.how
        assert not proven or verdict.step_quanta == best.claimed_quanta
    elif "not proven" not in found.how:
        assert found.how.endswith("none fits")
        assert best.status is Status.INFEASIBLE
        assert not verdict.feasible
    if found.how.endswith(", none fits"):
        need = max(block.memory_bytes for block in verdict.blocks)
        assert solve("brute", with_memory(narrow, need - 1)).status is Status.INFEASIBLE


@examples(60, full=2000)
@given(settings(interleaved=False).filter(lambda pair: pair[1]))
def test_no_plan_lacks_a_setting(pair):
    check(*pair)


@examples(40, full=1000)
@given(settings(interleaved=True))
def test_no_interleaved_plan_lacks_a_setting(pair):
    check(*pair)
