"""Which classes a problem is in, computed from the problem.

Those about memory need a proof and are in ``nest/instances/records.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from itertools import pairwise

from msgspec.structs import replace

from nest.constraints.targets import for_target
from nest.errors import InvalidOptionError
from nest.instances.records import CLASSES
from nest.ir.cluster import Cluster
from nest.ir.graph import Graph
from nest.ir.job import SPLIT_BACKWARD
from nest.ir.problem import Problem

#: Least number of devices of a size, from the largest down.
SIZES: Mapping[str, int] = {
    "huge": 4096,
    "large": 256,
    "medium": 64,
    "small": 9,
    "tiny": 1,
}

#: Bytes per second and device on the way to the farthest device: at least
#: what 400 Gb/s ports leave after protocol, at most 80 Gb/s.
FAST_BYTES_PER_S = 40e9
SLOW_BYTES_PER_S = 10e9

#: How much less than below a level of switches leaves, at least.
OVERSUBSCRIPTION = 2


def size_of(problem: Problem) -> str:
    """Return the size class of a problem."""
    count = problem.cluster.num_devices
    return next(name for name, least in SIZES.items() if count >= least)


def _has_experts(graph: Graph) -> bool:
    return any(
        cost.expert_weight_bytes or cost.ep > 1
        for kind in graph.kinds
        for cost in kind.costs
    )


def _branches(graph: Graph) -> bool:
    """Whether some layer has several inputs, or several readers."""
    ends = Counter(edge.source for edge in graph.edges)
    starts = Counter(edge.target for edge in graph.edges)
    return max((*ends.values(), *starts.values()), default=0) > 1


def _encodes_and_decodes(graph: Graph) -> bool:
    names = [str(layer.id) for layer in graph.layers]
    return all(
        any(name.startswith(f"{tower}-layer") for name in names)
        for tower in ("encoder", "decoder")
    )


def widest_bytes_per_s(cluster: Cluster) -> float | None:
    """Return what a device has on the way to the farthest device.

    In bytes per second, when all send; ``None`` on a graph, where it
    depends on who sends.
    """
    topology = cluster.topology
    if topology.kind != "hierarchy":
        return None
    least = topology.levels[0].bandwidth_bytes_per_s
    below = zip(topology.capacities, topology.levels[1:], strict=False)
    for capacity, level in below:
        if cluster.num_devices > capacity:
            least = min(least, level.bandwidth_bytes_per_s)
    return least


def _is_fast(problem: Problem) -> bool:
    widest = widest_bytes_per_s(problem.cluster)
    return widest is not None and widest >= FAST_BYTES_PER_S


def _is_slow(problem: Problem) -> bool:
    widest = widest_bytes_per_s(problem.cluster)
    return widest is not None and widest <= SLOW_BYTES_PER_S


def _is_oversubscribed(problem: Problem) -> bool:
    """Whether switches have less upwards than downwards.

    In a tree that is a level beyond the node with less per device than the
    one below it, in a graph a switch with more to devices than to switches.
    """
    cluster = problem.cluster
    topology = cluster.topology
    if topology.kind == "hierarchy":
        used = zip(topology.capacities, topology.levels[1:], strict=False)
        levels = [
            level.bandwidth_bytes_per_s
            for capacity, level in used
            if cluster.num_devices > capacity
        ]
        pairs = list(pairwise(levels))
    else:
        kinds = {node.id: node.kind for node in topology.nodes}
        down: Counter[str] = Counter()
        up: Counter[str] = Counter()
        for link in topology.links:
            width = int(link.bandwidth_bytes_per_s)
            for one, other in ((link.source, link.target), (link.target, link.source)):
                if kinds[one] == "switch":
                    (down if kinds[other] == "device" else up)[one] += width
        pairs = [(down[switch], up[switch]) for switch in up]
    return any(low >= OVERSUBSCRIPTION * high for low, high in pairs)


def _is_no_tree(problem: Problem) -> bool:
    topology = problem.cluster.topology
    if topology.kind == "hierarchy":
        return False
    # All of it is connected, so a tree has one link less than nodes.
    return len(topology.links) >= len(topology.nodes)


def _runs_in(name: str) -> Callable[[Problem], bool]:
    """Return whether plans are those that a framework can express."""

    def holds(problem: Problem) -> bool:
        if not problem.job.uniform:
            return False
        try:
            allowed = for_target(problem, name)
        except InvalidOptionError:
            return False
        # Which ZeRO stages go with pipelines was read after problems were stored.
        job = replace(allowed.job, zero_with=problem.job.zero_with)
        return replace(allowed, job=job) == problem

    return holds


#: Frameworks whose plans are a class.
FRAMEWORKS = ("megatron", "torchtitan", "deepspeed", "maxtext")

#: Whether a problem is in a class, by the name of the class.
HOLDS: dict[str, Callable[[Problem], bool]] = {
    **{name: lambda problem, name=name: size_of(problem) == name for name in SIZES},
    "dense": lambda problem: not _has_experts(problem.graph),
    "moe": lambda problem: _has_experts(problem.graph),
    "encoder-decoder": lambda problem: _encodes_and_decodes(problem.graph),
    "chain": lambda problem: not _branches(problem.graph),
    "dag": lambda problem: _branches(problem.graph),
    "fast": _is_fast,
    "slow": _is_slow,
    "oversubscribed": _is_oversubscribed,
    "non-tree": _is_no_tree,
    "mixed": lambda problem: len(problem.cluster.types) > 1,
    "target": lambda problem: any(_runs_in(name)(problem) for name in FRAMEWORKS),
    **{name: _runs_in(name) for name in FRAMEWORKS},
    "per-layer": lambda problem: problem.job.granularity == "layer",
    "overlap": lambda problem: bool(problem.job.overlap),
    "chunks": lambda problem: (
        problem.job.chunk_counts != (1,) or problem.job.schedule in SPLIT_BACKWARD
    ),
}


def classes_of(problem: Problem) -> tuple[str, ...]:
    """Return the classes of a problem, those of its memory left out."""
    return tuple(
        item.name
        for item in CLASSES
        if item.name in HOLDS and HOLDS[item.name](problem)
    )
