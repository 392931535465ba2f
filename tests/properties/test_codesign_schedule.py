"""Schedules are the shortest there are, whoever finds them.

``python -m tests.schedules [NUMBER]`` does it for 500 random DAGs, or as many.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nest.codesign.schedule import Cores, bounds, makespan_ticks, schedule
from tests.properties.profiles import examples
from tests.schedules import least_makespan, passes, replay


@pytest.mark.parametrize("solver", ["dp", "cpsat", "milp"])
@given(drawn=passes(most=7))
@examples(20, full=200)
def test_shortest(solver: str, drawn: Any) -> None:
    operators, cores = drawn
    found = schedule(operators, cores, solver=solver)
    replay(operators, cores, found)
    assert found.makespan_ticks == least_makespan(operators, cores)
    assert found.lower_bound_ticks == found.makespan_ticks


@given(drawn=passes(most=10))
@examples(40)
def test_shortest_of_ten(drawn: Any) -> None:
    operators, cores = drawn
    least = least_makespan(operators, cores)
    lower, upper = bounds(operators, cores)
    assert lower <= least <= upper
    assert makespan_ticks(operators, cores) == least


@given(drawn=passes(most=9), data=st.data())
@examples(60)
def test_more_never_takes_longer(drawn: Any, data: Any) -> None:
    """More cores, and operators that take less of everything."""
    operators, cores = drawn
    before = schedule(operators, cores).makespan_ticks
    more = Cores(
        cores.tensor + data.draw(st.integers(0, 2)),
        cores.vector + data.draw(st.integers(0, 2)),
    )
    shorter = [
        replace(
            x,
            **{
                field: data.draw(st.integers(low, getattr(x, field)))
                for field, low in (
                    ("single_channel_ticks", 0),
                    ("whole_channel_ticks", 0),
                )
            },
        )
        if x.engine != "none"
        else x
        for x in operators
    ]
    shorter = [
        replace(
            x,
            **{
                field: data.draw(
                    st.integers(max(1, getattr(x, channel)), ticks)
                )
                for field, channel in (
                    ("single_ticks", "single_channel_ticks"),
                    ("whole_ticks", "whole_channel_ticks"),
                )
                if (ticks := getattr(x, field)) is not None
            },
        )
        if x.engine != "none"
        else x
        for x in shorter
    ]
    assert schedule(shorter, more).makespan_ticks <= before
