"""All planners hand in legal plans, never better than ``dp``."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nest.solvers.registry import get_solver, solver_class, solver_names
from tests.properties import test_piper
from tests.properties.fairness import check_fair
from tests.properties.profiles import examples
from tests.strategies import problems

PLANNERS = [
    name for name in solver_names() if not solver_class(name).capabilities.exact
]

#: Options that bound random searches.
EXTRA = {
    "aceso": {"effort": "30"},
    "mcmc": {"budget": "300"},
    "random": {"plans": "20", "draws": "2000"},
}


def check(name: str, problem) -> None:
    check_fair(name, problem, **EXTRA.get(name, {}))


@pytest.mark.parametrize("name", PLANNERS)
@given(data=st.data())
@examples(60, full=2000)
def test_fair(name, data):
    check(name, data.draw(problems()))


@pytest.mark.parametrize("name", PLANNERS)
@given(data=st.data())
@examples(40, full=1000)
def test_fair_with_a_strategy_per_layer(name, data):
    check(name, data.draw(problems(granularity="layer")))


@pytest.mark.parametrize("name", PLANNERS)
@given(data=st.data())
@examples(30, full=1000)
def test_fair_on_graphs(name, data):
    check(name, data.draw(problems(graphs=True)))


@pytest.mark.parametrize("name", PLANNERS)
@given(data=st.data())
@examples(30, full=1000)
def test_fair_where_plans_split_sequences(name, data):
    layers = problems(choosing=True, granularity="layer")
    check(name, data.draw(st.one_of(problems(choosing=True), layers)))


@pytest.mark.parametrize("name", ["phaze", "piper", "random"])
@given(data=st.data())
@examples(40, full=1000)
def test_fair_where_ranks_take_turns(name, data):
    check(name, data.draw(test_piper.problems()))


@pytest.mark.parametrize("name", PLANNERS)
@given(problem=problems(preset="nest-artifact"))
@examples(15, full=1000)
def test_fair_where_stages_share_a_strategy(name, problem):
    """Every planner has an answer there, or says what rules it out."""
    reason = get_solver(name)().unsupported(problem)
    assert reason is None or reason.startswith(("$.job.", "$.graph."))
    check(name, problem)
