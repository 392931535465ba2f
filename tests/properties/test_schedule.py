"""Schedules of operators are shortest, and keep every rule."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nest.operator_schedule import Cores, bounds, schedule, search
from nest.operator_schedule.bounds import lower_bound_ticks
from nest.operator_schedule.parts import in_series
from nest.operator_schedule.reduce import with_fewer_modes
from nest.operator_schedule.search import How
from nest.operator_schedule.timetable import faults, length_ticks
from nest.solvers.base import Deadline
from tests.properties.profiles import examples
from tests.schedules import (
    least_makespan,
    least_of_part,
    one_by_one,
    passes,
    preceding,
    replay,
)

HOW = How(Deadline(None))


@examples(200, full=5000)
@given(passes())
def test_schedules_are_as_short_as_any(drawn: Any) -> None:
    operators, cores = drawn
    search._kept.clear()
    found = schedule(operators, cores)
    assert found.optimal
    replay(operators, cores, found)
    assert found.makespan_ticks == least_makespan(operators, cores)
    lower, upper = bounds(operators, cores)
    assert lower <= found.makespan_ticks <= upper


@pytest.mark.parametrize("solver", search.SOLVERS)
@examples(60, full=500)
@given(passes())
def test_engines_have_the_same_optimum(solver: str, drawn: Any) -> None:
    """Of every part as it is, from one job after the other, with no bound."""
    operators, cores = drawn
    before = preceding(operators)
    engine = import_module(search.SOLVERS[solver].partition(":")[0])
    for members, part in in_series(operators, cores):
        truth = least_of_part([operators[i] for i in members], before, cores)
        table, bound = engine.schedule_part(part, one_by_one(part), 0, HOW)
        assert faults(part, table) is None
        assert length_ticks(part, table) == truth == bound
        assert lower_bound_ticks(part) <= truth
        # What is left out makes nothing longer.
        fewer = with_fewer_modes(part)
        table, _ = engine.schedule_part(fewer, one_by_one(fewer), 0, HOW)
        assert length_ticks(part, table) == truth


@examples(60, full=1000)
@given(passes(), st.data())
def test_more_cores_and_shorter_ticks_lengthen_nothing(drawn: Any, data: Any) -> None:
    operators, cores = drawn
    before = schedule(operators, cores).makespan_ticks
    more = Cores(*(count + data.draw(st.integers(0, 2)) for count in cores))
    assert schedule(operators, more).makespan_ticks <= before
    number = data.draw(st.integers(0, len(operators) - 1))
    chosen = operators[number]
    changes = {}
    for mode in ("single", "whole"):
        ticks = getattr(chosen, f"{mode}_ticks")
        channel = getattr(chosen, f"{mode}_channel_ticks")
        if ticks is not None:
            less = data.draw(st.integers(1, ticks))
            changes[f"{mode}_ticks"] = less
            changes[f"{mode}_channel_ticks"] = min(less, channel)
    shorter = list(operators)
    shorter[number] = replace(chosen, **changes)
    assert schedule(shorter, cores).makespan_ticks <= before
