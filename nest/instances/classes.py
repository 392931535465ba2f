"""Classes of instances: what is true of a problem, computed from it.

Those about memory need a proof and are in :mod:`nest.instances.records`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

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


@dataclass(frozen=True)
class Class:
    """A class.

    Attributes
    ----------
    name, dimension, meaning
        For people: what it is called, what it is about, what it says.
    holds
        Whether a problem is in it; ``None`` where that needs a proof.
    """

    name: str
    dimension: str
    meaning: str
    holds: Callable[[Problem], bool] | None = None


def size_of(problem: Problem) -> str:
    """Return the size class of a problem."""
    count = problem.cluster.num_devices
    return next(
        name for name, min_devices in SIZES.items() if count >= min_devices
    )


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
    lowest = topology.levels[0].bandwidth_bytes_per_s
    below = zip(topology.capacities, topology.levels[1:], strict=False)
    for capacity, level in below:
        if cluster.num_devices > capacity:
            lowest = min(lowest, level.bandwidth_bytes_per_s)
    return lowest


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
            for one, other in (
                (link.source, link.target),
                (link.target, link.source),
            ):
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
        from nest.constraints.targets import for_target
        from nest.errors import InvalidOptionError

        if not problem.job.uniform:
            return False
        try:
            return for_target(problem, name) == problem
        except InvalidOptionError:
            return False

    return holds


def _of_size(name: str) -> Callable[[Problem], bool]:
    return lambda problem: size_of(problem) == name


def _sizes() -> tuple[Class, ...]:
    sizes = []
    below: int | None = None
    for name, min_devices in SIZES.items():
        end = "or more" if below is None else f"to {below - 1:,}"
        text = f"{min_devices:,} {end} devices"
        sizes.append(Class(name, "size", text, _of_size(name)))
        below = min_devices
    return tuple(reversed(sizes))


#: All classes, in the order of lists.
CLASSES: tuple[Class, ...] = (
    *_sizes(),
    Class(
        "dense",
        "model",
        "no layer has experts",
        lambda problem: not _has_experts(problem.graph),
    ),
    Class(
        "moe",
        "model",
        "layers with experts",
        lambda problem: _has_experts(problem.graph),
    ),
    Class(
        "encoder-decoder",
        "model",
        "layers of an encoder and of a decoder",
        lambda problem: _encodes_and_decodes(problem.graph),
    ),
    Class(
        "chain",
        "graph",
        "every layer has one input and one reader at most",
        lambda problem: not _branches(problem.graph),
    ),
    Class(
        "dag",
        "graph",
        "some layer has several inputs or readers",
        lambda problem: _branches(problem.graph),
    ),
    Class(
        "loose",
        "memory",
        "the optimum is the one without a memory limit: proven",
    ),
    Class(
        "tight",
        "memory",
        "a plan that does not fit is faster than all that do: proven",
    ),
    Class("infeasible", "memory", "no plan fits: proven"),
    Class(
        "fast",
        "network",
        "a tree; at least 40 GB/s per device to the farthest device",
        _is_fast,
    ),
    Class(
        "slow",
        "network",
        "a tree; at most 10 GB/s per device to the farthest device",
        _is_slow,
    ),
    Class(
        "oversubscribed",
        "network",
        "a level of switches has half as much upwards as below, or less",
        _is_oversubscribed,
    ),
    Class(
        "non-tree",
        "network",
        "a graph of devices and switches with a circle",
        _is_no_tree,
    ),
    Class(
        "mixed",
        "devices",
        "devices of several types",
        lambda problem: len(problem.cluster.types) > 1,
    ),
    Class(
        "target",
        "plans",
        "those of one framework, which launches them",
        lambda problem: any(
            _runs_in(name)(problem)
            for name in ("megatron", "torchtitan", "deepspeed", "maxtext")
        ),
    ),
    *(
        Class(name, "plans", f"those of {title}", _runs_in(name))
        for name, title in (
            ("megatron", "Megatron-LM"),
            ("torchtitan", "torchtitan"),
            ("deepspeed", "DeepSpeed"),
            ("maxtext", "MaxText"),
        )
    ),
    Class(
        "per-layer",
        "plans",
        "a strategy per layer, not per stage",
        lambda problem: problem.job.granularity == "layer",
    ),
    Class(
        "overlap",
        "plans",
        "communication may run behind computation",
        lambda problem: bool(problem.job.overlap),
    ),
    Class(
        "chunks",
        "plans",
        "several chunks per block, or backward passes that are split",
        lambda problem: (
            problem.job.chunk_counts != (1,)
            or problem.job.schedule in SPLIT_BACKWARD
        ),
    ),
)

#: Classes that follow from what is known, not from the problem alone.
MEMORY = tuple(item.name for item in CLASSES if item.holds is None)


def classes_of(problem: Problem) -> tuple[str, ...]:
    """Return the classes of a problem, those of its memory left out."""
    return tuple(
        item.name
        for item in CLASSES
        if item.holds is not None and item.holds(problem)
    )
