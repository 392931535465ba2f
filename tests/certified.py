"""Random problems and plans that certificates cover."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from nest.certificates import documents, rules
from nest.ir import Hierarchy, Level, Plan, Problem
from nest.ir.io import encode
from nest.ir.job import MICRO_BATCH_COUNTS, SHARED
from tests.independent.generate import draw_problem

#: More cases of a problem are other problems of the same kind.
MOST_CASES = 40

#: What all stages share where they have as many devices.
RANKS = ("dp", "tp", "cp")

NCCL = Hierarchy(
    levels=(Level(fan_out=4, latency_ns=10.0, bandwidth_bytes_per_s=1e9),),
    algorithms="nccl",
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
    if isinstance(topology, Hierarchy):
        topology = replace(topology, algorithms="nccl")
    job = replace(problem.job, virtual_stages=(1,))
    if job.schedule not in ("1f1b", "gpipe"):
        return None
    cluster = replace(problem.cluster, topology=topology)
    return replace(problem, cluster=cluster, job=job)


def draw_timed(seed: int) -> Iterator[Problem]:
    """Yield random problems some of whose plans are timed pass by pass."""
    source = random.Random(seed)
    while True:
        drawn = draw_problem(
            source,
            "standard",
            most_devices=4,
            most_layers=5,
            orders=source.random() < 0.6,
        )
        topology = drawn.cluster.topology
        if isinstance(topology, Hierarchy):
            topology = replace(topology, algorithms="nccl")
        problem = replace(drawn, cluster=replace(drawn.cluster, topology=topology))
        if source.random() < 0.35:
            problem = with_rules(source, problem)
        schedule = problem.job.schedule
        is_closed = schedule in ("1f1b", "gpipe") and problem.job.virtual_stages == (1,)
        is_timed = not is_closed and schedule != "dualpipe-v"
        if is_timed and count_cases(problem) <= MOST_CASES:
            yield problem


def with_rules(source: random.Random, problem: Problem) -> Problem:
    """Return a problem with some rules about whole plans."""
    job, kinds = problem.job, [kind.name for kind in problem.graph.kinds]
    fields = {*job.uniform, *source.choice((RANKS, RANKS, SHARED, ("zero",)))}
    changes = {
        "uniform": tuple(x for x in SHARED if x in fields),
        "even_layers": source.random() < 0.3,
        "one_stage": (source.choice(kinds),) * (source.random() < 0.2),
        "zero_with": source.choice(({}, {"pp": (0, 2)}, {"r": (0, 1, 3)})),
        "sharded_with": source.choice(((), (), ("pp",), ("tp", "pp"))),
        "micro_batch_count": source.choice(MICRO_BATCH_COUNTS),
        "idle_devices": not fields.issuperset(RANKS) or source.random() < 0.7,
    }
    return replace(problem, job=replace(job, **changes))


def is_covered(plan: Plan) -> bool:
    """Whether certificates can be for such a plan."""
    return plan.virtual_stages == 1 and plan.placement == "loop"


def draw_covered(seed: int, sequences: bool = False) -> Iterator[Problem]:
    """Yield random problems with few devices and layers."""
    source = random.Random(seed)
    while True:
        drawn = draw_problem(
            source,
            "standard",
            most_devices=8,
            most_layers=5,
            sequences=sequences or source.random() < 0.2,
        )
        problem = covered(drawn)
        if problem is not None and source.random() < 0.35:
            problem = with_rules(source, problem)
        if problem is not None and count_cases(problem) <= MOST_CASES:
            yield problem


def count_cases(problem: Problem) -> int:
    """Return how many entries the proof of a certificate has."""
    devices = problem.cluster.num_devices
    # Keys without etp, which no certificate covers.
    costs = [
        [(*cost.key[:3], *cost.key[4:]) for cost in x.costs]
        for x in problem.graph.kinds
    ]
    kinds = [layer.kind for layer in problem.graph.layers]
    listed = documents.parse(encode(problem), "problem")[0]["job"]
    return len(rules.Rules(listed, devices, costs, kinds).cases())
