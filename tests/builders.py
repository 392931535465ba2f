"""Small problems for hand-derived tests.

The default link moves one byte per nanosecond (1e9 bytes/s), so that sizes
in bytes read as times in ns.
"""

from __future__ import annotations

import itertools
from typing import Any

from msgspec.structs import replace

from nest.ir import (
    Activations,
    Cluster,
    CollectiveCall,
    Device,
    Edge,
    Graph,
    Hierarchy,
    Job,
    Layer,
    LayerCost,
    LayerKind,
    Level,
    Plan,
    Problem,
    Stage,
    Strategy,
)
from nest.ir.cluster import DeviceRange, Topology

#: One switch: 10 ns per message, 1 ns per byte.
FLAT = (10.0, 1e9)


def make_levels(*levels: tuple[int, float, float]) -> Hierarchy:
    """Build a tree from (fan-out, latency in ns, bytes/s), lowest first."""
    return Hierarchy(
        levels=tuple(
            Level(
                fan_out=fan_out, latency_ns=latency_ns, bandwidth_bytes_per_s=bandwidth
            )
            for fan_out, latency_ns, bandwidth in levels
        )
    )


#: Pairs at 10 ns + 1 ns/byte; pairs of pairs at 100 ns + 10 ns/byte.
PAIRS = make_levels((2, 10.0, 1e9), (2, 100.0, 1e8))


def make_cost(
    forward_ns: float = 0, backward_ns: float = 0, **fields: Any
) -> LayerCost:
    """Build a cost entry that keeps ``kept_bytes`` (0) without recompute."""
    kept_bytes = fields.pop("kept_bytes", 0)
    fields.setdefault("activations", (Activations(kept_bytes=kept_bytes),))
    return LayerCost(forward_ns=forward_ns, backward_ns=backward_ns, **fields)


def kept_or_full(
    kept_bytes: float, full_bytes: float
) -> tuple[Activations, Activations]:
    """Return what a layer keeps without and with full recomputation."""
    return (
        Activations(kept_bytes=kept_bytes),
        Activations(recompute="full", kept_bytes=full_bytes),
    )


def call(
    kind: Any, axis: Any, phase: Any, size_bytes: int, count: int = 1
) -> CollectiveCall:
    """Build a collective call."""
    return CollectiveCall(
        kind=kind, axis=axis, phase=phase, size_bytes=size_bytes, count=count
    )


def make_problem(  # noqa: PLR0913
    costs: dict[str, LayerCost | tuple[LayerCost, ...]],
    *,
    edges: tuple[tuple[str, str, int], ...] = (),
    edge: int | None = None,
    devices: int = 4,
    topology: Topology | None = None,
    memory_bytes: int = 10**9,
    hbm: float | None = None,
    peak_flops: dict[str, float] | None = None,
    preset: str = "standard",
    quantum_ps: int = 1000,
    **job: Any,
) -> Problem:
    """Build a problem with one layer per key, each of a kind of its own.

    With ``edge`` they are a chain of edges with so many bytes per sample.
    """
    job.setdefault("global_batch", 1)
    if edge is not None:
        edges = (*((a, b, edge) for a, b in itertools.pairwise(costs)), *edges)
    return Problem(
        graph=Graph(
            kinds=tuple(
                LayerKind(name=name, costs=cost if isinstance(cost, tuple) else (cost,))
                for name, cost in costs.items()
            ),
            layers=tuple(Layer(id=name, kind=name) for name in costs),
            edges=tuple(
                Edge(source=source, target=target, bytes_per_sample=size)
                for source, target, size in edges
            ),
        ),
        cluster=Cluster(
            num_devices=devices,
            device=Device(
                memory_bytes=memory_bytes,
                hbm_bytes_per_s=hbm,
                peak_flops=peak_flops or {},
            ),
            topology=topology or make_levels((devices, *FLAT)),
        ),
        job=Job(**job),
        preset=preset,
        quantum_ps=quantum_ps,
    )


def with_job(problem: Problem, **fields: Any) -> Problem:
    """Return a problem with other fields of its job."""
    return replace(problem, job=replace(problem.job, **fields))


def with_cluster(problem: Problem, **fields: Any) -> Problem:
    """Return a problem with other fields of its cluster."""
    return replace(problem, cluster=replace(problem.cluster, **fields))


def with_device(problem: Problem, **fields: Any) -> Problem:
    """Return a problem with other fields of its device."""
    return with_cluster(problem, device=replace(problem.cluster.device, **fields))


def with_others(
    problem: Problem, first: int, count: int = 1, name: str = "old", **fields: Any
) -> Problem:
    """Return a problem some of whose devices are of another type."""
    device = replace(problem.cluster.device, name=name, **fields)
    others = (DeviceRange(first=first, count=count, device=device),)
    return with_cluster(problem, others=others)


def two_stages(**fields: Any) -> Problem:
    """Build a chain of two layers whose edge takes 10 + 5 ns each way."""
    costs = {
        "a": make_cost(10, 20, weight_bytes=1),
        "b": make_cost(30, 40, weight_bytes=2),
    }
    fields.setdefault("global_batch", 2)
    return make_problem(costs, edges=(("a", "b", 5),), **fields)


def make_plan(
    *stages: tuple[str, Strategy], replicas: int = 1, micro_batch: int = 1
) -> Plan:
    """Build a plan from (layer names in one string, strategy) per stage."""
    return Plan(
        replicas=replicas,
        micro_batch=micro_batch,
        stages=tuple(
            Stage(
                layers=tuple(layers.split()),
                devices=strategy.devices,
                strategy=strategy,
            )
            for layers, strategy in stages
        ),
    )


SINGLE = Strategy()
