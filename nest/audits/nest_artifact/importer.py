"""Import the ``dp_input`` files of the NEST artifact (MLSys 2026).

Source: the artifact of NEST at commit 3e163ad, whose planner reads one JSON
file per model and cluster. The preset ``nest-artifact`` scores the imported
problem as that planner does.

A file counts time in one unit throughout, whatever that unit is (the shipped
files mix ms and s); here it is taken as one second. Sizes are bytes and
bandwidths bytes per unit. A node is a layer at one tensor parallel width; a
micro-batch is one sample per expert parallel rank.
"""

from __future__ import annotations

import math
from pathlib import Path

from msgspec.structs import replace

from nest.audits import foreign
from nest.cost.magnitude import choose_quantum_ps
from nest.errors import InvalidProblemError
from nest.ir.base import Struct
from nest.ir.cluster import Cluster, Device, Hierarchy, Level
from nest.ir.graph import Activations, Edge, Graph, LayerCost
from nest.ir.io import decode, read_bytes
from nest.ir.job import Job, Optimizer
from nest.ir.plan import Recompute
from nest.ir.problem import Problem
from nest.units import MAX_TERM

#: Relative loss of a step time to rounding aimed at.
TARGET_LOSS = 1e-9

_OPTIMIZERS = {
    "SGD": Optimizer(name="sgd", weight_bytes=2, gradient_bytes=2, state_bytes=0),
    "Adam": Optimizer(name="adam", weight_bytes=2, gradient_bytes=2, state_bytes=12),
}


class _Node(Struct, frozen=True, kw_only=True):
    """A layer at one width; the last two fields are not used."""

    id: int
    parameterSize: int
    activationSize: int
    optimalLatencyFw: float
    optimalLatencyBw: float
    energy: object = None
    isTensorParallelized: object = None

    def __post_init__(self) -> None:
        for field in ("parameterSize", "activationSize"):
            where = f"{field} of layer {self.id}"
            foreign.check_range(where, getattr(self, field), 0, MAX_TERM)
        for field in ("optimalLatencyFw", "optimalLatencyBw"):
            where = f"{field} of layer {self.id}"
            foreign.check_range(where, getattr(self, field), 0, foreign.MAX_TIME)


class _Edge(Struct, frozen=True, kw_only=True):
    """A tensor between two layers at one width."""

    sourceId: int
    destId: int
    communicationCost: int

    def __post_init__(self) -> None:
        where = f"communicationCost of edge {self.sourceId} to {self.destId}"
        foreign.check_range(where, self.communicationCost, 0, MAX_TERM)

    @property
    def ends(self) -> tuple[int, int]:
        """Ids of source and target."""
        return (self.sourceId, self.destId)


class ArtifactFile(Struct, frozen=True, kw_only=True):
    """The whole file; the last four fields are not used for problems."""

    nodes: dict[int, list[_Node]]
    edges: dict[int, list[_Edge]]
    maxDevices: int
    maxMemoryPerDevice: float
    bws: list[float]
    latency_per_level: list[float]
    devices_per_level: list[int]
    mbsInBatch: float
    ep_degree: int
    cp_degree: int
    activationRecomputation: bool
    optimizerAlgorithm: str
    bandwidth: object = None
    frequency: object = None
    sp_enabled: object = None
    baselines: object = None

    def __post_init__(self) -> None:
        for field in ("maxDevices", "ep_degree", "cp_degree", "mbsInBatch"):
            foreign.check_range(field, getattr(self, field), 1, MAX_TERM)
        foreign.check_range("maxMemoryPerDevice", self.maxMemoryPerDevice, 0, MAX_TERM)
        _check_network(self)
        if self.optimizerAlgorithm not in _OPTIMIZERS:
            raise ValueError(
                f"optimizerAlgorithm: expected one of {', '.join(_OPTIMIZERS)}, got "
                f"{self.optimizerAlgorithm!r}; correct it"
            )
        if not self.nodes:
            raise ValueError(
                "nodes: expected at least one tensor width, got none; add "
                "the layers of one"
            )
        if self.edges.keys() != self.nodes.keys():
            raise ValueError(
                f"edges: expected the tensor widths of nodes "
                f"({foreign.listed(self.nodes)}), got {foreign.listed(self.edges)}; "
                f"give both the same keys"
            )
        for width, nodes in self.nodes.items():
            _check_graph(width, nodes, self.edges[width])
        _check_edges(self)

    @property
    def recompute(self) -> Recompute:
        """The one recompute choice of the file."""
        return "full" if self.activationRecomputation else "none"


def read_artifact_file(path: str | Path) -> ArtifactFile:
    """Read a ``dp_input`` file as it is; errors are those of the import."""
    data = read_bytes(path, InvalidProblemError)
    return decode(data, str(path), ArtifactFile, "problem", InvalidProblemError)


def import_nest_artifact(path: str | Path) -> Problem:
    """Read a ``dp_input`` file of the NEST artifact.

    Every node becomes a layer under its own id, in topological order (ties in file
    order), and every tensor width a key of its cost table; equal tables become one
    kind. A layer that a width leaves out has no such key. Per micro-batch there are
    ``ep`` samples, one for each of the ``dp = ep`` ranks that share the experts.
    Collectives are part of the latencies. Energy, frequency, bandwidth, sp_enabled,
    isTensorParallelized and baselines are ignored.

    The preset is ``nest-artifact``. :func:`~nest.cost.magnitude.choose_quantum_ps`
    chooses the quantum, so that a step time loses at most 1e-9 to rounding where that
    is possible. Raises ``InvalidProblemError`` if the file cannot be read or is not
    such a file; the text names the file, the place in it, what was expected and what
    came.
    """
    return foreign.import_file(path, ArtifactFile, _problem)


def _problem(file: ArtifactFile, name: str) -> Problem:
    graph = _graph(file)
    problem = Problem(
        name=name,
        source=(
            "imported dp_input file of the NEST artifact (MLSys 2026, commit "
            "3e163ad); one time unit of the file is taken as 1 s"
        ),
        graph=graph,
        cluster=Cluster(
            num_devices=file.maxDevices,
            device=Device(memory_bytes=int(file.maxMemoryPerDevice)),
            topology=Hierarchy(
                levels=tuple(
                    Level(
                        fan_out=fan_out,
                        bandwidth_bytes_per_s=bandwidth,
                        latency_ns=latency * foreign.NS_PER_UNIT,
                    )
                    for fan_out, bandwidth, latency in zip(
                        file.devices_per_level,
                        file.bws,
                        file.latency_per_level,
                        strict=True,
                    )
                )
            ),
        ),
        job=Job(
            global_batch=int(file.mbsInBatch) * file.ep_degree,
            micro_batches=(file.ep_degree,),
            data_parallel=(file.ep_degree,),
            uneven_batches=True,
            zero=(0,),
            recompute=(file.recompute,),
            optimizer=_OPTIMIZERS[file.optimizerAlgorithm],
            schedule="1f1b",
        ),
        preset="nest-artifact",
        time_unit="instance unit",
    )
    quantum_ps = choose_quantum_ps(problem, _fine_ps(file, graph))
    return replace(problem, quantum_ps=quantum_ps)


def _graph(file: ArtifactFile) -> Graph:
    costs: dict[int, tuple[LayerCost, ...]] = {}
    for width in sorted(file.nodes):
        for node in file.nodes[width]:
            table = costs.get(node.id, ())
            costs[node.id] = (*table, _cost(file, width, node))
    sizes: dict[tuple[int, int], dict[int, int]] = {}
    for width in sorted(file.edges):
        for edge in file.edges[width]:
            by_width = sizes.setdefault(edge.ends, {})
            by_width[width] = edge.communicationCost
    return foreign.make_graph(
        costs, (_edge(ends, by_width) for ends, by_width in sizes.items())
    )


def _cost(file: ArtifactFile, width: int, node: _Node) -> LayerCost:
    return LayerCost(
        tp=width,
        cp=file.cp_degree,
        ep=file.ep_degree,
        samples=1,
        forward_ns=node.optimalLatencyFw * foreign.NS_PER_UNIT,
        backward_ns=node.optimalLatencyBw * foreign.NS_PER_UNIT,
        weight_bytes=node.parameterSize,
        activations=(
            Activations(recompute=file.recompute, kept_bytes=node.activationSize),
        ),
    )


def _edge(ends: tuple[int, int], by_width: dict[int, int]) -> Edge:
    size_bytes = by_width[min(by_width)]
    return Edge(
        source=ends[0],
        target=ends[1],
        bytes_per_sample=size_bytes,
        bytes_per_sample_by_tp={
            width: other for width, other in by_width.items() if other != size_bytes
        },
    )


def _fine_ps(file: ArtifactFile, graph: Graph) -> float:
    """Return a quantum in ps that loses little to rounding.

    A step time is ``(M + S - 1) · max τ`` plus a sum of a few terms, and a
    load ``τ`` of a stage is a sum of at most ``3n + e`` terms that each lose
    half a quantum. Some stage holds at least ``1/n`` of the computation of
    all ``n`` layers, so the relative loss is at most ``(3n + e) · q/2 /
    (shortest / n)``, with one pass at the fastest width.
    """
    shortest_s = min(
        math.fsum(
            time
            for node in nodes
            for time in (node.optimalLatencyFw, node.optimalLatencyBw)
        )
        for nodes in file.nodes.values()
    )
    num_layers = len(graph.layers)
    terms = 3 * num_layers + len(graph.edges)
    return TARGET_LOSS * shortest_s / num_layers / (terms / 2) * foreign.PS_PER_UNIT


def _check_network(file: ArtifactFile) -> None:
    levels = len(file.devices_per_level)
    for field in ("bws", "latency_per_level"):
        length = len(getattr(file, field))
        if length != levels:
            raise ValueError(
                f"{field}: expected one value for each of the {levels} levels of "
                f"devices_per_level, got {length}; give all three the same length"
            )
    for i in range(levels):
        fan_out, latency = file.devices_per_level[i], file.latency_per_level[i]
        foreign.check_range(f"devices_per_level[{i}]", fan_out, 1, MAX_TERM)
        foreign.check_range(f"latency_per_level[{i}]", latency, 0, foreign.MAX_TIME)
        foreign.check_range(f"bws[{i}]", file.bws[i], 1, foreign.MAX_RATE)
    if math.prod(file.devices_per_level) != file.maxDevices or not levels:
        raise ValueError(
            f"devices_per_level: expected factors of maxDevices = {file.maxDevices}, "
            f"got {file.devices_per_level}; correct one of them"
        )


def _check_graph(width: int, nodes: list[_Node], edges: list[_Edge]) -> None:
    foreign.check_range("nodes: tensor width", width, 1, MAX_TERM)
    if not nodes:
        raise ValueError(
            f"nodes.{width}: expected at least one layer, got none; remove "
            f"the key or add its layers"
        )
    foreign.check_ids(
        (node.id for node in nodes), (edge.ends for edge in edges), f".{width}"
    )


def _check_edges(file: ArtifactFile) -> None:
    """Refuse an edge that a width lacks although it has both its ends."""
    layers = {width: {node.id for node in nodes} for width, nodes in file.nodes.items()}
    edges = {
        width: {edge.ends for edge in edges} for width, edges in file.edges.items()
    }
    for ends in sorted(set().union(*edges.values())):
        for width in sorted(edges):
            if layers[width].issuperset(ends) and ends not in edges[width]:
                raise ValueError(
                    f"edges.{width}: expected the edge from {ends[0]} to "
                    f"{ends[1]} as at other widths, got none; add it"
                )
