"""``uniap``: legal plans, never better than ``dp``."""

from __future__ import annotations

from hypothesis import given

from tests.properties.fairness import check_fair
from tests.properties.profiles import examples
from tests.strategies import problems


@examples(60, full=2000)
@given(problems())
def test_uniap_is_fair(problem):
    check_fair("uniap", problem=problem)


@examples(40, full=1000)
@given(problems(granularity="layer"))
def test_uniap_is_fair_with_a_strategy_per_layer(problem):
    check_fair("uniap", problem=problem)
