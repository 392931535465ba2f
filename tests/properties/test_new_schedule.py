"""A schedule that no solver has heard of needs nothing but itself.

Its backward passes are split; gradients of weights hold up no other stage, so
what a stage adds once is less than its load, and the largest of the rest
counts once: weights of all three kinds, other than those of 1F1B and GPipe.
"""

from __future__ import annotations

import pytest
from hypothesis import given

from nest.cost.schedules import SCHEDULES
from tests.builders import with_job
from tests.properties.profiles import examples
from tests.properties.test_solvers_agree import EXACT, solve, why_wrong
from tests.strategies import problems
from tests.unit.cost.test_schedules import Split


@pytest.fixture(autouse=True, scope="module")
def _registered():
    SCHEDULES[Split.name] = Split()
    yield
    del SCHEDULES[Split.name]


def check(names, problem):
    problem = with_job(problem, schedule=Split.name)
    truth = solve("brute", problem)
    wrong = [
        why_wrong(name.split()[0], problem, truth, solve(name, problem))
        for name in names
    ]
    assert not any(wrong), wrong


@examples(25, full=2000)
@given(problems(preset="standard"))
def test_exact_solvers_take_a_schedule_as_it_is(problem):
    check(EXACT, problem)


@examples(12, full=1000)
@given(problems(granularity="layer"))
def test_a_schedule_holds_with_a_strategy_per_layer(problem):
    check(EXACT, problem)
