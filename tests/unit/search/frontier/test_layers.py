"""Levels of memory of frontiers that are merged along the graph."""

from __future__ import annotations

from nest.ir import Problem
from nest.search.frontier import levels as memory_levels
from nest.search.stages import splits
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


def test_memory_that_no_plan_uses_is_one_level(monkeypatch):
    """Devices with 2^40 bytes have a few levels more than others at most."""
    levels = []

    def bound_paths(item, cap_bytes, *args):
        levels.append(cap_bytes)
        return splits.bound_paths(item, cap_bytes, *args)

    monkeypatch.setattr(memory_levels, "bound_paths", bound_paths)
    found = []
    for memory_bytes in (1000, 2**40):
        levels.clear()
        points, _ = merged(long_and_short(memory_bytes=memory_bytes))
        found.append((pairs(points), len(levels)))
    (some, few), (same, more) = found
    assert some == same
    assert more <= few + 5


def test_what_passes_a_stage_counts_once_per_micro_batch_in_flight():
    """The second of three stages holds 300 bytes twice, and a layer's 8."""
    costs = {name: make_cost(1000, 2000, weight_bytes=1) for name in "abc"}
    edges = (("a", "b", 1), ("b", "c", 1), ("a", "c", 300))
    problem = make_problem(
        costs,
        edges=edges,
        devices=3,
        global_batch=4,
        micro_batches=(1,),
        granularity="layer",
        replicas=(1,),
        memory_bytes=616,
    )
    points, gaps = merged(problem)
    assert gaps == []
    assert pairs(points) == enumerated(problem)
    assert points[-1].memory_bytes == 2 * 300 + 8
    assert len(points[-1].plan.stages) == 3
