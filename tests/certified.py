"""Random problems and plans that certificates cover."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from nest.ir import Hierarchy, Level, Plan, Problem
from nest.ir.job import Job
from tests.independent.generate import draw_problem

NCCL = Hierarchy(
    levels=(Level(fan_out=4, latency_ns=10.0, bandwidth_bytes_per_s=1e9),),
    algorithms="nccl",
)

#: What of a job is not covered, at its default.
_USUAL = Job(global_batch=1)
_LEFT_OUT = (
    "virtual_stages",
    "overlap",
    "distributed_optimizer",
    "granularity",
    "uniform",
    "even_layers",
    "one_stage",
    "idle_devices",
    "zero_with",
    "sharded_with",
    "micro_batch_count",
    "overlap_needs",
)


def put(document: Any, path: str, value: Any) -> None:
    """Set what a path names; a function gets what was there."""
    *above, last = (int(x) if x.isdigit() else x for x in path.split("."))
    for key in above:
        document = document[key]
    document[last] = value(document[last]) if callable(value) else value


def covered(problem: Problem) -> Problem | None:
    """Return what of a problem is covered; ``None`` if that is little."""
    topology = problem.cluster.topology
    if not isinstance(topology, Hierarchy):
        return None
    job = replace(
        problem.job, **{name: getattr(_USUAL, name) for name in _LEFT_OUT}
    )
    if job.schedule not in ("1f1b", "gpipe"):
        return None
    kinds = tuple(
        replace(
            kind,
            costs=tuple(replace(cost, by_device=()) for cost in kind.costs),
        )
        for kind in problem.graph.kinds
    )
    return replace(
        problem,
        graph=replace(problem.graph, kinds=kinds),
        cluster=replace(
            problem.cluster,
            others=(),
            topology=replace(topology, algorithms="nccl"),
        ),
        job=job,
    )


def one_strategy(plan: Plan) -> bool:
    """Whether certificates can be for such a plan."""
    return (
        all(stage.strategy is not None for stage in plan.stages)
        and plan.virtual_stages == 1
        and plan.placement == "loop"
        and not plan.overlap
        and not plan.distributed_optimizer
    )


def draw_covered(seed: int, sequences: bool = False) -> Iterator[Problem]:
    """Yield random problems with few devices and layers."""
    source = random.Random(seed)
    while True:
        drawn = draw_problem(
            source,
            "standard",
            most_devices=8,
            most_layers=5,
            sequences=sequences,
        )
        problem = covered(drawn)
        if problem is not None:
            yield problem
