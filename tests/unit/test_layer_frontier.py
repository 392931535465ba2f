"""Levels of memory of frontiers that are merged along the graph."""

from __future__ import annotations

from nest.ir import Problem
from tests.builders import make_cost, make_problem
from tests.frontiers import enumerated, merged, pairs


def long_and_short(**fields: object) -> Problem:
    """Build two layers; the first takes twice as long on one device."""
    costs = {
        name: tuple(
            make_cost(time // tp, 0, tp=tp, weight_bytes=8, kept_bytes=4)
            for tp in (1, 2)
        )
        for name, time in (("a", 200), ("b", 100))
    }
    return make_problem(
        costs,
        edges=(("a", "b", 1),),
        **{
            "devices": 3,
            "global_batch": 8,
            "micro_batches": (1,),
            "granularity": "layer",
            "replicas": (1,),
            **fields,
        },
    )


def test_a_small_stage_may_be_behind_a_large_one_with_more_in_flight():
    """Two devices for the first layer, two micro-batches in flight; one."""
    points, gaps = merged(long_and_short())
    assert gaps == []
    assert pairs(points) == enumerated(long_and_short())
    assert [stage.devices for stage in points[-1].plan.stages] == [2, 1]
