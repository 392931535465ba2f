"""Frontiers equal those of plain enumeration, point for point."""

from __future__ import annotations

import pytest
from hypothesis import given

from formulations.brute import PlanSpace
from formulations.turns import TurnsSpace
from nest.cost.model import CostModel
from nest.cost.score import score
from nest.dp import frontier
from nest.dp.closed_sets import closed_sets
from nest.ir import Problem
from nest.solvers.base import Deadline
from tests.properties.profiles import examples
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
