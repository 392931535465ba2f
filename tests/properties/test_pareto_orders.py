"""Frontiers where plans choose their order, against plans of the enumerator."""

from __future__ import annotations

from random import Random

import pytest

from nest.cost.model import CostModel
from nest.cost.score import score as product_score
from nest.ir import Problem
from nest.search.frontier.staircase import Point, Staircase
from tests.clock import Ticking
from tests.frontiers import Pairs, check_limited, pairs, search
from tests.independent.enumerator import plans
from tests.independent.generate import draw_tiny
from tests.independent.scorer import score
from tests.properties.profiles import PROFILE
from tests.unit.analysis.test_pareto import small

COUNT = {"quick": 6, "dev": 8, "full": 200}.get(PROFILE, 12)
MOST_PLANS = 60


def enumerated(problem: Problem) -> Pairs:
    """Return the frontier of plans whose schedule has a name."""
    staircase = Staircase()
    for plan in plans(problem):
        record = score(problem, plan)
        if record.feasible:
            staircase.add(
                Point(record.step, max(x.memory_bytes for x in record.blocks), plan)
            )
    return pairs(staircase.points)


def drawn(seed: int) -> Problem:
    """Draw a problem, some with devices of several types."""
    random = Random(f"frontier of orders {seed}")
    return draw_tiny(random, "standard", MOST_PLANS, orders=True)


def check(problem: Problem, ticks: int | None = None) -> int:
    """Hold a frontier against the enumeration; return how much it has proven."""
    deadline = None if ticks is None else Ticking(ticks)
    points, gaps = search(problem, deadline=deadline)
    for point in points:
        verdict = product_score(problem, point.plan, CostModel(problem))
        memory_bytes = max(x.memory_bytes for x in verdict.blocks)
        assert (verdict.step_quanta, memory_bytes) == (
            *(point.step_quanta, point.memory_bytes),
        )
        assert verdict.feasible
        assert point.plan.order is not None
    truth = enumerated(problem)
    check_limited(points, gaps, truth)
    if not gaps:
        assert pairs(points) == truth
    return not gaps


@pytest.mark.parametrize("seed", range(COUNT))
def test_points_are_found_or_in_a_gap(seed: int) -> None:
    """And where nothing is left open, they are those of all plans."""
    check(drawn(seed))


@pytest.mark.parametrize("seed", range(0, COUNT, 2))
def test_what_a_limit_leaves_open_is_said(seed: int) -> None:
    check(drawn(seed), ticks=Random(seed).randrange(400))


def test_a_list_without_time_is_open() -> None:
    problem = small(schedule=("zb-h1", "zb-v"), recompute=("none",))
    assert search(problem, deadline=Ticking(0))[1]
    assert not search(problem)[1]
