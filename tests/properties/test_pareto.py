"""Frontiers equal those of plain enumeration, point for point."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formulations.brute import PlanSpace
from formulations.turns import TurnsSpace
from nest.cost.model import CostModel
from nest.cost.score import score
from nest.dp import frontier
from nest.dp.closed_sets import closed_sets
from nest.ir import Problem
from nest.pareto import frontier as pareto_frontier
from nest.pareto import with_devices
from nest.solvers.base import Deadline
from tests.properties.profiles import examples
from tests.properties.test_piper import problems as turns_problems
from tests.strategies import problems

Pairs = list[tuple[int, int]]


def enumerated(problem: Problem) -> Pairs:
    """Return (memory, step time) of the frontier, from every plan."""
    model = CostModel(problem)
    space = PlanSpace(problem, model, Deadline(None))
    found = set()
    if model.preset.ranks_take_turns:
        space = TurnsSpace(problem, model, Deadline(None))
    for plan in space.plans():
        priced = score(problem, plan, model)
        if priced.feasible:
            memory = max(block.memory_bytes for block in priced.blocks)
            found.add((memory, priced.step_quanta))
    kept: Pairs = []
    for memory, step in sorted(found):
        if not kept or step < kept[-1][1]:
            kept.append((memory, step))
    return kept


def searched(problem: Problem) -> Pairs:
    model = CostModel(problem)
    points, gaps = frontier.search(
        model, closed_sets(problem.graph), Deadline(None)
    )
    assert gaps == []
    return [(p.memory_bytes, p.step_quanta) for p in points]


@given(problem=problems(preset="standard"))
@examples(60)
def test_stage_frontier_is_that_of_all_plans(problem: Problem) -> None:
    assert searched(problem) == enumerated(problem)


@given(problem=problems(preset="standard"))
@examples(60)
def test_cutting_levels_again_changes_nothing(problem: Problem) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frontier, "ENOUGH", 0)
        patch.setattr(frontier, "NUM_PARTS", 2)
        assert searched(problem) == enumerated(problem)


@given(problem=problems(granularity="layer"))
@examples(40)
def test_layer_frontier_is_that_of_all_plans(problem: Problem) -> None:
    assert searched(problem) == enumerated(problem)


@given(problem=problems(preset="nest-artifact"))
@examples(40)
def test_frontier_with_one_strategy_for_all(problem: Problem) -> None:
    assert searched(problem) == enumerated(problem)


@given(problem=turns_problems())
@examples(40)
def test_frontier_with_ranks_that_take_turns(problem: Problem) -> None:
    assert searched(problem) == enumerated(problem)


@given(problem=problems(preset="standard"))
@examples(30)
def test_frontier_with_devices(problem: Problem) -> None:
    """Three objectives: all sizes of clusters, each enumerated."""
    everything = [
        (size, memory, step)
        for size in range(1, problem.cluster.num_devices + 1)
        for memory, step in enumerated(with_devices(problem, size))
    ]
    expected = [
        point
        for point in everything
        if not any(
            other != point
            and all(x <= y for x, y in zip(other, point, strict=True))
            for other in everything
        )
    ]
    found = pareto_frontier(
        problem,
        ("time", "memory", "devices"),
        devices=range(1, problem.cluster.num_devices + 1),
    )
    assert found.proven
    assert [
        (p.devices, p.memory_bytes, p.step_quanta) for p in found.points
    ] == expected


class Ticking(Deadline):
    """A clock that is asked for the time instead of running."""

    def __init__(self, ticks: int) -> None:
        super().__init__(None)
        self.ticks = ticks

    @property
    def passed(self) -> bool:
        self.ticks -= 1
        return self.ticks < 0


@given(
    problem=st.one_of(
        problems(preset="standard"),
        problems(preset="nest-artifact"),
        problems(granularity="layer"),
    ),
    ticks=st.integers(0, 300),
)
@examples(60)
def test_what_a_limit_leaves_open_is_said(
    problem: Problem, ticks: int
) -> None:
    """Whatever was not found lies in a gap; what is proven is right."""
    points, gaps = frontier.search(
        CostModel(problem), closed_sets(problem.graph), Ticking(ticks)
    )
    found = [(p.memory_bytes, p.step_quanta) for p in points]
    truth = enumerated(problem)
    for memory, step in truth:
        known = any(m <= memory and t <= step for m, t in found)
        assert known or any(
            gap.above_bytes < memory <= gap.up_to_bytes
            and gap.lower_bound_quanta <= step
            for gap in gaps
        )
    for memory, step in found:
        open_ = any(
            gap.above_bytes < memory and gap.lower_bound_quanta <= step
            for gap in gaps
        )
        assert open_ or (memory, step) in truth
