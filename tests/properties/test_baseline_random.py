"""``random``: its look at the memory drops nothing that fits."""

from __future__ import annotations

import random

from hypothesis import given

from baselines.common import make_plan
from baselines.random_plans import MemoryFilter, draw_stages, drawable
from nest.cost.model import CostModel
from nest.cost.score import score
from nest.errors import InvalidPlanError
from tests.properties.profiles import examples
from tests.strategies import problems


@examples(100, full=2000)
@given(problems())
def test_the_quick_look_at_the_memory(problem):
    model = CostModel(problem)
    room, draw = MemoryFilter(model), random.Random(0)
    for choice in drawable(problem, model):
        for _ in range(5):
            stages = draw_stages(problem, draw, *choice)
            if stages is None or not room.lacks(choice[0], stages):
                continue
            try:
                found = score(problem, make_plan(problem, choice[0], stages))
            except InvalidPlanError:
                continue
            assert not found.feasible
