"""Graphs: a DAG of layers, each of a kind, each kind with its cost table."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, Literal, NamedTuple, get_args

from nest.ir.base import (
    Count,
    LayerId,
    Real,
    Size,
    Struct,
    check_count,
    check_distinct,
    check_size,
    each,
    entries,
)
from nest.ir.plan import Recompute, check_expert_tensor, check_sequence_parallel

CollectiveKind = Literal["all-reduce", "all-gather", "reduce-scatter", "all-to-all"]
Axis = Literal["dp", "tp", "cp", "ep"]
Phase = Literal["forward", "backward"]
COLLECTIVES: tuple[CollectiveKind, ...] = get_args(CollectiveKind)
AXES: tuple[str, ...] = get_args(Axis)
PHASES: tuple[str, ...] = get_args(Phase)

#: What the host takes where nothing is said. One object: copied from record
#: to record it is still a default, which files leave out.
NO_HOST_NS = 0.0


def check_collective(kind: str) -> None:
    """Raise ``ValueError`` unless there is such a kind of collective."""
    if kind not in COLLECTIVES:
        raise ValueError(
            f"kind: expected one of {', '.join(COLLECTIVES)}, got {kind!r}; "
            f"express the collective by these"
        )


class CollectiveCall(Struct, frozen=True, kw_only=True):
    """A collective that a layer issues in one pass.

    Attributes
    ----------
    kind
        What it does.
    axis
        The parallel axis whose groups run it.
    phase
        Pass that issues it.
    size_bytes
        The full buffer: what every rank holds before an all-reduce, a
        reduce-scatter or an all-to-all, and after an all-gather.
    count
        How many times per micro-batch.
    """

    kind: CollectiveKind
    axis: Axis
    phase: Phase
    size_bytes: Size
    count: Count = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_collective(self.kind)


class Activations(Struct, frozen=True, kw_only=True):
    """What one recompute choice keeps, and what it costs.

    Attributes
    ----------
    recompute
        The choice.
    kept_bytes
        Bytes per device kept from forward to backward of a micro-batch.
    extra_ns
        Time that the backward pass adds. ``full`` takes none: it repeats the
        forward pass and its collectives.
    extra_host_ns
        What the host takes to issue that: it adds at least so much.
    working_bytes
        Memory that this choice needs while the layer runs, on top of
        :attr:`LayerCost.working_bytes`: what is computed again.
    static_bytes
        Memory that this choice holds all the time, whatever is in flight,
        beyond weights, gradients and optimizer state.
    transfer_ns
        Time that ``offload`` takes to send activations to the host, and as long to get
        them back: neither pass takes less.
    reruns
        Whether ``full`` repeats the forward pass; false for a layer that a framework
        puts no checkpoint around.
    """

    recompute: Recompute = "none"
    kept_bytes: Size
    extra_ns: Real = 0.0
    extra_host_ns: Real = NO_HOST_NS
    working_bytes: Size = 0
    static_bytes: Size = 0
    transfer_ns: Real = 0.0
    reruns: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.transfer_ns and self.recompute != "offload":
            raise ValueError(
                f"transfer_ns: expected 0 for recompute {self.recompute!r}, got "
                f"{self.transfer_ns}; only 'offload' takes it"
            )
        if self.recompute == "selective":
            return
        for name in ("extra_ns", "extra_host_ns"):
            if time_ns := getattr(self, name):
                raise ValueError(
                    f"{name}: expected 0 for recompute {self.recompute!r}, "
                    f"got {time_ns}; only 'selective' takes it"
                )


class DeviceTimes(Struct, frozen=True, kw_only=True):
    """How long a layer's computation takes on one type of device.

    Attributes
    ----------
    device
        The name of the type.
    forward_ns, backward_ns
        Computation of one micro-batch, collectives not included.
    extra_ns
        What ``selective`` recomputation adds to the backward pass.
    weight_backward_ns
        The part of ``backward_ns`` that computes gradients of weights.
    forward_host_ns, backward_host_ns, extra_host_ns
        What the host of such devices takes to issue them.
    """

    device: str
    forward_ns: Real
    backward_ns: Real
    extra_ns: Real = 0.0
    weight_backward_ns: Real | None = None
    forward_host_ns: Real = NO_HOST_NS
    backward_host_ns: Real = NO_HOST_NS
    extra_host_ns: Real = NO_HOST_NS

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_part(self.weight_backward_ns, self.backward_ns)


class ComputeTimes(NamedTuple):
    """What :class:`DeviceTimes` says of one type of device."""

    forward_ns: float
    backward_ns: float
    extra_ns: float
    weight_backward_ns: float | None = None
    forward_host_ns: float = NO_HOST_NS
    backward_host_ns: float = NO_HOST_NS
    extra_host_ns: float = NO_HOST_NS

    @property
    def passes_ns(self) -> float:
        """Forward and backward pass without any communication, in ns."""
        return max(self.forward_ns, self.forward_host_ns) + max(
            self.backward_ns, self.backward_host_ns
        )

    def weights_ns(self, fraction: float) -> float:
        """Return what gradients of weights take, if unknown a fraction."""
        if self.weight_backward_ns is None:
            return self.backward_ns * fraction
        return self.weight_backward_ns


def _check_part(weight_backward_ns: float | None, backward_ns: float) -> None:
    if weight_backward_ns is not None and weight_backward_ns > backward_ns:
        raise ValueError(
            f"weight_backward_ns: expected at most backward_ns ({backward_ns}), of "
            f"which it is a part, got {weight_backward_ns}"
        )


class LayerCost(Struct, frozen=True, kw_only=True):
    """Cost of one layer under one way of splitting it.

    Attributes
    ----------
    tp, cp, ep, etp, sequence_parallel, samples
        The key: degrees (``etp`` as of a strategy), whether activations outside
        tensor parallel regions are split over ``tp`` too (only where the job
        leaves that to plans), and samples per data-parallel rank.
    forward_ns, backward_ns
        Computation of one micro-batch, collectives not included.
    weight_backward_ns
        The part of ``backward_ns`` that computes gradients of weights;
        ``None`` if unknown: then the job's ``weight_backward_fraction`` of
        it. Only schedules ask that compute them apart.
    forward_host_ns, backward_host_ns
        What the host takes to issue a pass, its collectives included: the
        pass takes at least as long, whatever hides. ZeRO traffic, which
        depends on the strategy, is not counted.
    by_device
        The same on types of devices where it takes another time.
    weight_bytes, expert_weight_bytes
        Weights per device: dense ones and experts apart.
    working_bytes
        Memory the layer needs while it runs, beyond what it keeps.
    activations
        One entry per recompute choice that is available.
    collectives
        Collectives issued per micro-batch.
    measured
        Whether somebody measured the times, instead of counting operators.
        They cost what they cost; intervals of predictions ask for it.
    """

    tp: Count = 1
    cp: Count = 1
    ep: Count = 1
    etp: Size = 0
    sequence_parallel: bool = False
    samples: Count = 1
    forward_ns: Real
    backward_ns: Real
    weight_backward_ns: Real | None = None
    forward_host_ns: Real = NO_HOST_NS
    backward_host_ns: Real = NO_HOST_NS
    by_device: tuple[DeviceTimes, ...] = ()
    weight_bytes: Size = 0
    expert_weight_bytes: Size = 0
    working_bytes: Size = 0
    activations: tuple[Activations, ...]
    collectives: tuple[CollectiveCall, ...] = ()
    measured: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sequence_parallel(self.sequence_parallel, self.tp)
        check_expert_tensor(self.etp, self.tp)
        check_distinct("activations", tuple(a.recompute for a in self.activations))
        if self.by_device:
            check_distinct("by_device", tuple(times.device for times in self.by_device))
        _check_part(self.weight_backward_ns, self.backward_ns)

    @property
    def key(self) -> tuple[int, ...]:
        """The key: a strategy's degrees, and samples."""
        degrees = (self.tp, self.cp, self.ep, self.etp)
        return (*degrees, self.sequence_parallel, self.samples)

    def on(self, device: str) -> ComputeTimes:
        """Return the times on a type of device."""
        for times in self.by_device:
            if times.device == device:
                return ComputeTimes(
                    *(getattr(times, name) for name in ComputeTimes._fields)
                )
        return self.times

    @property
    def times(self) -> ComputeTimes:
        """The times on types of devices that ``by_device`` does not list."""
        # Only selective recomputation states any on top.
        return ComputeTimes(
            self.forward_ns,
            self.backward_ns,
            max(a.extra_ns for a in self.activations),
            self.weight_backward_ns,
            self.forward_host_ns,
            self.backward_host_ns,
            max(a.extra_host_ns for a in self.activations),
        )


class LayerKind(Struct, frozen=True, kw_only=True):
    """A kind of layer and its cost table."""

    name: str
    costs: tuple[LayerCost, ...]

    def __repr__(self) -> str:
        """Return what it is in a line."""
        return f"<LayerKind {self.name}: {len(self.costs)} costs>"

    def __post_init__(self) -> None:
        # As in files, where what is not so is left out.
        written = (
            (
                *(cost.tp, cost.cp, cost.ep),
                *(f"etp={cost.etp}" for _ in range(cost.etp)),
                *(True for _ in range(cost.sequence_parallel)),
                cost.samples,
            )
            for cost in self.costs
        )
        check_distinct("costs", tuple(written))


class Layer(Struct, frozen=True, kw_only=True):
    """A node of the graph."""

    id: LayerId
    kind: str


SizesByDegree = Annotated[dict[int, int], each(check_count), entries(check_size)]


class Edge(Struct, frozen=True, kw_only=True):
    """A tensor that one layer hands to another.

    Attributes
    ----------
    source, target
        Ids of the layers.
    bytes_per_sample
        The whole tensor of one sample, not sharded.
    bytes_per_sample_by_tp
        Other sizes for some tensor parallel degrees (padding may depend on
        the degree); only for presets where all stages share one strategy.
    source_extra_bytes_by_tp, target_extra_bytes_by_tp
        Bytes per sample on top of it that the stage of the source (of the
        target) moves at some tensor parallel degrees of its own where the
        edge crosses a boundary; only for presets that charge both stages.
    """

    source: LayerId
    target: LayerId
    bytes_per_sample: Size
    bytes_per_sample_by_tp: SizesByDegree = {}
    source_extra_bytes_by_tp: SizesByDegree = {}
    target_extra_bytes_by_tp: SizesByDegree = {}


class Graph(Struct, frozen=True, kw_only=True):
    """A DAG of layers.

    Raises ``ValueError`` if a layer id occurs twice, an edge or a kind points
    nowhere, an edge occurs twice, or the graph has a cycle.
    """

    kinds: tuple[LayerKind, ...]
    layers: tuple[Layer, ...]
    edges: tuple[Edge, ...] = ()

    def __repr__(self) -> str:
        """Return what it is in a line."""
        return (
            f"<Graph: {len(self.layers)} layers of {len(self.kinds)} kinds, "
            f"{len(self.edges)} edges>"
        )

    def __post_init__(self) -> None:
        check_distinct("kinds", tuple(kind.name for kind in self.kinds))
        check_distinct("layers", tuple(str(x.id) for x in self.layers))
        names = {kind.name for kind in self.kinds}
        for layer in self.layers:
            if layer.kind not in names:
                raise ValueError(
                    f"layers: expected kind of layer {layer.id!r} to be one "
                    f"of {', '.join(sorted(names))}, got {layer.kind!r}"
                )
        index = self.index
        seen = set()
        for edge in self.edges:
            for end in (edge.source, edge.target):
                if str(end) not in index:
                    raise ValueError(f"edges: expected ids of layers, got {end!r}")
            pair = (str(edge.source), str(edge.target))
            if pair in seen:
                raise ValueError(
                    f"edges: expected one edge from {edge.source!r} to "
                    f"{edge.target!r}, got two; merge them"
                )
            seen.add(pair)
        self.topological_order()

    @property
    def index(self) -> dict[str, int]:
        """Position of every layer, by the text of its id."""
        return {str(layer.id): i for i, layer in enumerate(self.layers)}

    def index_edges(self) -> list[tuple[int, int, int]]:
        """Return the edges as (source, target, bytes per sample)."""
        index = self.index
        return [
            (index[str(e.source)], index[str(e.target)], e.bytes_per_sample)
            for e in self.edges
        ]

    def topological_order(self) -> list[int]:
        """Return layer positions, sources first; ties keep file order.

        Raises
        ------
        ValueError
            If the graph has a cycle; the text names its layers.
        """
        edges = self.index_edges()
        if all(source < target for source, target, _ in edges):
            return list(range(len(self.layers)))
        sorter = TopologicalSorter[int]()
        for position in range(len(self.layers)):
            sorter.add(position)
        for source, target, _ in edges:
            sorter.add(target, source)
        try:
            sorter.prepare()
        except CycleError as error:
            nodes = error.args[1][:-1]
            first = nodes.index(min(nodes))
            cycle = [*nodes[first:], *nodes[: first + 1]]
            names = " -> ".join(repr(self.layers[i].id) for i in cycle)
            raise ValueError(
                f"edges: expected no cycle, got {names}; remove one of its edges"
            ) from None
        ready: list[int] = []
        order = []
        while sorter.is_active():
            for node in sorter.get_ready():
                heapq.heappush(ready, node)
            order.append(heapq.heappop(ready))
            sorter.done(order[-1])
        return order


def enumerate_masks(
    num_layers: int, edges: Iterable[tuple[int, ...]], limit: int
) -> list[int]:
    """Return the closed sets as bit masks of layer positions, by size.

    A set is closed if it has all that its layers need.

    ``edges`` begin with the positions of their source and their target. Stops soon
    after ``limit`` sets.
    """
    needed = [0] * num_layers
    for source, target, *_ in edges:
        needed[target] |= 1 << source
    level = {0}
    masks = [0]
    while level and len(masks) <= limit:
        level = {
            mask | 1 << layer
            for mask in level
            for layer in range(num_layers)
            if not mask >> layer & 1 and not needed[layer] & ~mask
        }
        masks += sorted(level)
    return masks
