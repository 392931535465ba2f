"""Frontiers equal those of plain enumeration, point for point."""

from __future__ import annotations

import pytest
from hypothesis import given

from formulations.brute import PlanSpace
from formulations.turns import TurnsSpace
from nest.cost.model import CostModel
from nest.cost.score import score
from nest.dp import frontier as search
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
    frontier: Pairs = []
    for memory, step in sorted(found):
        if not frontier or step < frontier[-1][1]:
            frontier.append((memory, step))
    return frontier


def searched(problem: Problem) -> Pairs:
    model = CostModel(problem)
    run = search.FrontierSearch(
        model, closed_sets(problem.graph), Deadline(None)
    )
    run.run()
    assert run.gaps == []
    return [(p.memory_bytes, p.step_quanta) for p in run.staircase.points]


@given(problem=problems(preset="standard"))
@examples(60)
def test_stage_frontier_is_that_of_all_plans(problem: Problem) -> None:
    assert searched(problem) == enumerated(problem)


@given(problem=problems(preset="standard"))
@examples(60)
def test_cutting_levels_again_changes_nothing(problem: Problem) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "ENOUGH", 0)
        patch.setattr(search, "FIRST_PARTS", 2)
        patch.setattr(search, "NEXT_PARTS", 2)
        assert searched(problem) == enumerated(problem)
