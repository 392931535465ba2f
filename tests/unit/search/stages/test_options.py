"""Stage options: what a stage takes at least, wherever it is."""

from __future__ import annotations

from typing import Any

from nest.cost.model import CostModel
from nest.cost.space import families, leading_runtimes
from nest.search.stages.closed_sets import closed_sets
from nest.search.stages.options import (
    INFINITE,
    LooseOptions,
    StageFilter,
    StageOptions,
    StageShapes,
    batch_terms,
)
from tests.builders import make_cost, make_levels, make_problem

EVERY = StageFilter(int(INFINITE), 0)


def joint_options(**job: Any) -> tuple[StageOptions, LooseOptions, LooseOptions]:
    """Return the loose options of two replicas of five devices, and joint ones.

    Nodes have three devices. A layer of 100 bytes takes 60 ns on one device, and 30
    on two.
    """
    costs = (
        make_cost(10, 20, samples=1, weight_bytes=100),
        make_cost(20, 40, samples=2, weight_bytes=100),
    )
    problem = make_problem(
        {"a": costs},
        devices=10,
        topology=make_levels((3, 0.0, 1e9), (4, 0.0, 1e8)),
        global_batch=8,
        micro_batches=(2,),
        replicas=(2,),
        zero=(1,),
        data_parallel=(1, 2),
        **job,
    )
    model = CostModel(problem)
    shapes = StageShapes(model, closed_sets(problem.graph))
    runtime = leading_runtimes(problem)[0]
    (split, terms), *_ = batch_terms(shapes, runtime)
    family, *_ = families(problem, split, terms.strategies, runtime)
    options = StageOptions(terms, split, family)
    loose = options.loose(EVERY, 10**9)
    return options, loose, options.joint(loose)


def test_a_stage_waits_for_its_sync_at_the_best_place() -> None:
    """Two microbatches: all others wait 60 ns, or 30; sync takes 1000 ns, or 600.

    Replicas all-reduce 100 bytes at 10 ns each, or 50 bytes if two devices share
    them. These scatter and gather 100 bytes in 100 ns at offset 1 only; elsewhere a
    pair crosses nodes.
    """
    options, loose, joint = joint_options()
    assert loose.size.tolist() == [1, 2]
    assert loose.wait.tolist() == [60, 30]
    assert joint.wait.tolist() == [60 + 1000, 30 + 600]
    assert joint.sync.tolist() == [0, 0]
    assert not len(options.joint(loose.take(slice(0))))
    sync = [
        options._table(options._block(offset, 2), loose.strategy[1:]).sync.item()
        for offset in range(4)
    ]
    assert sync == [1500, 600, 1500, 1500]


def test_sync_that_overlaps_hides_behind_one_backward_pass() -> None:
    """All others wait for one micro-batch less, so for none; all of the sync counts.

    With a single micro-batch nobody waits, and all of the sync may hide.
    """
    options, loose, joint = joint_options(overlap={"gradients": 1.0})
    assert options.bounds_sync
    assert loose.wait.tolist() == [60, 30]
    assert joint.wait.tolist() == [1000, 600]
    options.split = options.split._replace(num_micro_batches=1)
    assert not options.bounds_sync


def test_sync_is_not_counted_where_groups_do_not_tell_it() -> None:
    assert not joint_options(preset="nest-artifact")[0].bounds_sync
    assert joint_options()[0].bounds_sync
