"""Paths: bounds of intervals under multipliers of devices."""

from __future__ import annotations

from nest.cost.model import CostModel
from nest.search.stages.closed_sets import closed_sets
from nest.search.stages.paths import Path, _better_multipliers
from nest.search.stages.splits import bound_paths, open_splits
from nest.solvers.base import Deadline
from tests.builders import make_cost, make_problem


def test_an_interval_gets_multipliers_of_its_own() -> None:
    """Eight layers take 300 ns on one device, 180 on two and 120 on four each.

    The best plan has two stages of four devices: 960 + 3 · 480 = 2400. Stages that the
    others wait less than 1440 for have at most one, two or three layers. Without a
    charge they take 960, so 1080 + 960 = 2040. If a device costs 180, a layer costs
    360 at least, so they take 8 · 360 - 8 · 180 = 1440, and 1080 + 1440 = 2520.
    """
    costs = tuple(make_cost(x, 2 * x, tp=tp) for tp, x in ((1, 100), (2, 60), (4, 40)))
    problem = make_problem(
        {f"layer {i}": costs for i in range(8)},
        edge=0,
        devices=8,
        global_batch=4,
        micro_batches=(1,),
        replicas=(1,),
        tensor_parallel=(1, 2, 4),
    )
    model = CostModel(problem)
    (split,) = open_splits(model, closed_sets(problem.graph), Deadline(None))
    bounds = bound_paths(split, 10**9, lambda: 2401, lambda *_: None)
    assert [(x.least, x.bound) for x in bounds.intervals] == [
        (1080, 2040),
        (1440, 2400),
    ]
    refined = bounds.refined(lambda: 2600)
    assert [(x.least, x.bound) for x in refined.intervals] == [
        (1080, 2520),
        (1440, 2400),
    ]
    assert refined.bound == 2400
    assert [x.least for x in bounds.refined(lambda: 2401).intervals] == [1440]


def test_devices_are_charged_where_every_path_has_too_many() -> None:
    """Then one is assumed that fits and takes as long as the longest.

    (3800 - 670) / (1088 - 512) is 5.
    """
    paths = [Path((), 3800, 0, (1007, 1), 0), Path((), 670, 0, (1088, 0), 0)]
    assert _better_multipliers(paths, (0, 0), (512, 512)) == (5, 0)
