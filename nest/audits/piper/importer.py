"""Import Piper's workloads: layers with alternatives per tensor degree.

Piper (NeurIPS'21) reads one JSON file with the nodes of a graph, per node and
tensor parallel degree ``t`` at most two alternatives (``TMPCs[t]``), and the
bytes of the edges. Formulas: reference/piper.md.
"""

from __future__ import annotations

from decimal import ROUND_CEILING, Decimal
from pathlib import Path

from msgspec.structs import replace

from nest.audits import foreign
from nest.cost.magnitude import choose_quantum_ps
from nest.ir.base import Struct
from nest.ir.cluster import Cluster, Device, Hierarchy, Level
from nest.ir.graph import Activations, Edge, Graph, LayerCost
from nest.ir.job import Job
from nest.ir.plan import Recompute
from nest.ir.problem import Problem
from nest.units import MAX_TERM

#: Ids of the alternatives, and what they are here.
ALTERNATIVES: dict[str, Recompute] = {
    "vanilla": "none",
    "activation recomp": "selective",
}


class _Alternative(Struct, frozen=True, kw_only=True):
    """One way to run a node at one tensor parallel degree.

    ``memoryUsageA * y + memoryUsageB`` bytes with ``y`` micro-batches in
    flight; ``syncTimeFw`` and ``syncTimeBw`` are bytes too, per neighbor.
    """

    id: str
    timePerSample: float
    parameterSize: float
    memoryUsageA: float
    memoryUsageB: float
    syncTimeFw: dict[int, float]
    syncTimeBw: dict[int, float]


class _Node(Struct, frozen=True, kw_only=True):
    """A layer; its name is not used."""

    id: int
    TMPCs: dict[int, list[_Alternative]]
    name: object = None


class _Edge(Struct, frozen=True, kw_only=True):
    """A tensor between two nodes, in bytes."""

    sourceId: int
    destId: int
    communicationCost: float


class _File(Struct, frozen=True, kw_only=True):
    """The whole file; the caller may give the first four fields instead."""

    nodes: list[_Node]
    edges: list[_Edge]
    maxDevices: int | None = None
    mbsInBatch: int | None = None
    maxMemoryPerDevice: float | None = None
    bandwidth: float | None = None


#: What a caller may give instead of a field of the file, and its limits.
_SETTING = {
    "devices": ("maxDevices", 1, MAX_TERM),
    "micro_batches": ("mbsInBatch", 1, MAX_TERM),
    "memory_bytes": ("maxMemoryPerDevice", 0, MAX_TERM),
    "bandwidth_bytes_per_s": ("bandwidth", 1, foreign.MAX_RATE),
}


def import_piper(
    path: str | Path,
    *,
    devices: int | None = None,
    micro_batches: int | None = None,
    memory_bytes: int | None = None,
    bandwidth_bytes_per_s: float | None = None,
) -> Problem:
    """Read one of Piper's input files.

    Every node becomes a layer under its own id, and every degree of its alternatives a
    key of its cost table; equal tables become one kind. The alternative ``vanilla`` is
    recompute ``none``; ``activation recomp`` is ``selective``, its longer time the
    extra time. One time unit of the file counts as 1 s. Sizes are rounded up to whole
    bytes, those of memory so that no number of micro-batches in flight needs less than
    in the file, and one in flight at most one byte more per layer.

    Number of devices, micro-batches per step, memory per device, and bandwidth of the
    flat network are by default what the file says. The preset is ``piper``, whose step
    time is Piper's TPS; :func:`~nest.cost.magnitude.choose_quantum_ps` chooses the
    quantum. Raises ``InvalidProblemError`` if the file cannot be read or is not such a
    file; the text names the file, the place in it, what was expected and what came.
    """
    options = {
        "devices": devices,
        "micro_batches": micro_batches,
        "memory_bytes": memory_bytes,
        "bandwidth_bytes_per_s": bandwidth_bytes_per_s,
    }

    def make_problem(file: _File, name: str) -> Problem:
        setting = {
            option: _choose(file, option, value) for option, value in options.items()
        }
        _check(file)
        return _problem(file, setting, name)

    return foreign.import_file(path, _File, make_problem)


def _choose(file: _File, option: str, chosen: float | None) -> float:
    """Return what was given, or else what the file says."""
    field, minimum, maximum = _SETTING[option]
    value: float | None = getattr(file, field) if chosen is None else chosen
    if value is None:
        raise ValueError(
            f"{field}: expected a value, got none; add it or give {option}"
        )
    name = field if chosen is None else option
    foreign.check_range(name, value, minimum, maximum)
    return value


def _check(file: _File) -> None:
    if not file.nodes:
        raise ValueError("nodes: expected at least one, got none; add them")
    foreign.check_ids(
        (node.id for node in file.nodes),
        ((edge.sourceId, edge.destId) for edge in file.edges),
    )
    sources: dict[int, set[int]] = {node.id: set() for node in file.nodes}
    targets: dict[int, set[int]] = {node.id: set() for node in file.nodes}
    for edge in file.edges:
        where = f"communicationCost of edge {edge.sourceId} to {edge.destId}"
        foreign.check_range(where, edge.communicationCost, 0, MAX_TERM)
        targets[edge.sourceId].add(edge.destId)
        sources[edge.destId].add(edge.sourceId)
    for node in file.nodes:
        _check_node(node, sources[node.id], targets[node.id])


def _check_node(node: _Node, sources: set[int], targets: set[int]) -> None:
    if not node.TMPCs:
        raise ValueError(
            f"node {node.id}: TMPCs: expected at least one tensor parallel "
            f"degree, got none; add one"
        )
    for degree, alternatives in node.TMPCs.items():
        foreign.check_range(f"node {node.id}: TMPCs: degree", degree, 1, MAX_TERM)
        where = f"node {node.id}: TMPCs.{degree}"
        names = [alternative.id for alternative in alternatives]
        if not names or len(set(names)) < len(names):
            raise ValueError(
                f"{where}: expected one or two different alternatives, got "
                f"{names or 'none'}; correct them"
            )
        for alternative in alternatives:
            _check_alternative(where, alternative, sources, targets)
        _check_pair(where, alternatives)


def _check_alternative(
    where: str, alternative: _Alternative, sources: set[int], targets: set[int]
) -> None:
    if alternative.id not in ALTERNATIVES:
        raise ValueError(
            f"{where}: id: expected 'vanilla' or 'activation recomp', got "
            f"{alternative.id!r}; correct it"
        )
    where = f"{where}, {alternative.id!r}"
    for field in ("parameterSize", "memoryUsageA", "memoryUsageB"):
        value = getattr(alternative, field)
        foreign.check_range(f"{where}: {field}", value, 0, MAX_TERM)
    time = alternative.timePerSample
    foreign.check_range(f"{where}: timePerSample", time, 0, foreign.MAX_TIME)
    for field, neighbors, kind in (
        ("syncTimeFw", sources, "incoming"),
        ("syncTimeBw", targets, "outgoing"),
    ):
        sizes: dict[int, float] = getattr(alternative, field)
        if sizes.keys() != neighbors:
            raise ValueError(
                f"{where}: {field}: expected the other ends of its {kind} edges "
                f"({foreign.listed(neighbors)}), got {foreign.listed(sizes.keys())}; "
                f"list each once"
            )
        for neighbor, size in sizes.items():
            foreign.check_range(f"{where}: {field}.{neighbor}", size, 0, MAX_TERM)


def _check_pair(where: str, alternatives: list[_Alternative]) -> None:
    """Refuse two alternatives that differ in more than time and memory."""
    by_id = {alternative.id: alternative for alternative in alternatives}
    if len(by_id) < 2:
        return
    plain, recomputing = (by_id[name] for name in ALTERNATIVES)
    for field in ("parameterSize", "syncTimeFw", "syncTimeBw"):
        expected, got = getattr(plain, field), getattr(recomputing, field)
        if got != expected:
            raise ValueError(
                f"{where}: {field}: expected {expected} in both alternatives, "
                f"got {got} in 'activation recomp'; recomputation changes "
                f"time and memory only"
            )
    if recomputing.timePerSample < plain.timePerSample:
        raise ValueError(
            f"{where}: timePerSample: expected at least "
            f"{plain.timePerSample:g} of 'vanilla' for 'activation recomp', "
            f"got {recomputing.timePerSample:g}; swap or correct them"
        )


def _problem(file: _File, setting: dict[str, float], name: str) -> Problem:
    devices = int(setting["devices"])
    problem = Problem(
        name=name,
        source=(
            "imported input file of Piper (NeurIPS 2021, commit d7fc8cf); "
            "one time unit of the file is taken as 1 s"
        ),
        graph=_graph(file),
        cluster=Cluster(
            num_devices=devices,
            device=Device(memory_bytes=int(setting["memory_bytes"])),
            topology=Hierarchy(
                levels=(
                    Level(
                        fan_out=devices,
                        bandwidth_bytes_per_s=setting["bandwidth_bytes_per_s"],
                    ),
                )
            ),
        ),
        job=Job(
            global_batch=int(setting["micro_batches"]),
            micro_batches=(1,),
            replicas=(1,),
            recompute=("none", "selective"),
        ),
        preset="piper",
        time_unit="instance unit",
    )
    return replace(problem, quantum_ps=choose_quantum_ps(problem))


def _graph(file: _File) -> Graph:
    nodes = {node.id: node for node in file.nodes}
    costs = {
        node.id: tuple(
            _cost(degree, node.TMPCs[degree]) for degree in sorted(node.TMPCs)
        )
        for node in file.nodes
    }
    return foreign.make_graph(costs, (_edge(edge, nodes) for edge in file.edges))


def _cost(degree: int, alternatives: list[_Alternative]) -> LayerCost:
    first = min(alternatives, key=lambda x: list(ALTERNATIVES).index(x.id))
    return LayerCost(
        tp=degree,
        forward_ns=first.timePerSample * foreign.NS_PER_UNIT,
        backward_ns=0.0,
        weight_bytes=_whole(_exact(first.parameterSize)),
        activations=tuple(
            _activations(alternative, first) for alternative in alternatives
        ),
    )


def _activations(alternative: _Alternative, first: _Alternative) -> Activations:
    """Return kept and static bytes: ``⌈a⌉`` and ``⌈a + b⌉ - ⌈a⌉``.

    ``⌈a⌉ y + ⌈a + b⌉ - ⌈a⌉ >= a y + b`` for every ``y >= 1``.
    """
    kept_bytes = _exact(alternative.memoryUsageA)
    total = kept_bytes + _exact(alternative.memoryUsageB)
    extra = alternative.timePerSample - first.timePerSample
    return Activations(
        recompute=ALTERNATIVES[alternative.id],
        kept_bytes=_whole(kept_bytes),
        static_bytes=_whole(total) - _whole(kept_bytes),
        extra_ns=extra * foreign.NS_PER_UNIT,
    )


def _edge(edge: _Edge, nodes: dict[int, _Node]) -> Edge:
    size = _exact(edge.communicationCost)
    size_bytes = _whole(size)

    def extra(node: _Node, field: str, neighbor: int) -> dict[int, int]:
        more_bytes = {}
        for degree in sorted(node.TMPCs):
            sizes: dict[int, float] = getattr(node.TMPCs[degree][0], field)
            more = _whole(size + _exact(sizes[neighbor])) - size_bytes
            if more:
                more_bytes[degree] = more
        return more_bytes

    return Edge(
        source=edge.sourceId,
        target=edge.destId,
        bytes_per_sample=size_bytes,
        source_extra_bytes_by_tp=extra(nodes[edge.sourceId], "syncTimeBw", edge.destId),
        target_extra_bytes_by_tp=extra(nodes[edge.destId], "syncTimeFw", edge.sourceId),
    )


def _exact(size: float) -> Decimal:
    """Return the number that the file says, not its binary neighbor."""
    return Decimal(repr(size))


def _whole(size: Decimal) -> int:
    return int(size.to_integral_value(rounding=ROUND_CEILING))
