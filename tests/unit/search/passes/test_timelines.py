"""Critical paths of many plans at once: those of each plan alone."""

from __future__ import annotations

import numpy as np
import pytest

from nest.cost.schedules import Schedule, Times, schedule_of
from nest.cost.schedules.timeline import critical_path
from nest.search.passes.timelines import critical_paths

SCHEDULES = [
    *(schedule_of("1f1b", virtual) for virtual in (2, 3)),
    *(schedule_of(name) for name in ("zb-h1", "zb-v", "dualpipe-v")),
]


@pytest.mark.parametrize(
    "schedule", SCHEDULES, ids=lambda x: f"{x.name} {x.virtual_stages}"
)
@pytest.mark.parametrize("blocks", [2, 3])
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_many_plans_take_what_each_takes(
    schedule: Schedule, blocks: int, groups: int
) -> None:
    """Times of up to 20 quanta, some of them 0; a third of the plans is all zeros."""
    rng = np.random.default_rng(blocks + 10 * groups)
    count = 2 * blocks * groups
    chunks = []
    for _ in range(blocks * schedule.virtual_stages):
        forward, backward = rng.integers(0, 21, (2, 9))
        forward[:3] = backward[:3] = 0
        weights, hiding_there, hiding_back = (
            rng.integers(0, x + 1) for x in (backward, forward, backward)
        )
        chunks.append(Times(forward, backward, weights, hiding_there, hiding_back))
    paths = critical_paths(schedule, chunks, count)
    for plan, path in enumerate(paths.tolist()):
        one = [Times(*(int(x[plan]) for x in chunk)) for chunk in chunks]
        assert path == critical_path(schedule, one, count)
