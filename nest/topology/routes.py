"""How far devices of a graph are apart, along routes of least latency.

Routes are those of the network model: least latency (to the ps), of these the
fewest hops, through nodes that forward. All figures of many devices are worked
out at once, arc by arc, so that thousands of devices take seconds.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from nest.errors import InvalidProblemError

#: Sources that are worked on together: bounds the memory.
_CHUNK = 32

#: A length is a latency in ps times this, plus a number of hops: the least
#: length is the least latency, and of equal ones the fewest hops.
_LATENCY = 2**18
_NO_ROUTE = 2**62
PS_PER_NS = 1000

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def forwards(attributes: dict[str, Any]) -> bool:
    """Return whether messages may pass through a node."""
    return bool(attributes.get("forward", attributes.get("kind") == "switch"))


@dataclass(frozen=True)
class Distances:
    """How far nodes are from others.

    Shape of all: (sources, targets). ``hops`` counts the links of the shortest of the
    routes with that latency, and ``ns_per_byte`` is the sum of the inverse bandwidths
    of the links of the fastest of these.
    """

    latency_ns: Floats
    hops: Ints
    ns_per_byte: Floats


class Routes:
    """The arcs of a graph, as arrays.

    Undirected links are an arc each way.
    """

    def __init__(self, graph: nx.Graph) -> None:
        self.nodes: list[Any] = list(graph)
        self.index = {node: i for i, node in enumerate(self.nodes)}
        self.forward = np.array(
            [forwards(graph.nodes[node]) for node in self.nodes], dtype=bool
        )
        arcs = sorted(
            (
                self.index[head],
                self.index[tail],
                round(link["latency_ns"] * PS_PER_NS) * _LATENCY + 1,
                1e9 / link["bandwidth"],
            )
            for tail, head, link in nx.DiGraph(graph).edges(data=True)
        )
        heads, tails, lengths, ns_per_byte = (
            zip(*arcs, strict=True) if arcs else ((),) * 4
        )
        self.tails = np.array(tails, dtype=np.int64)
        self.lengths = np.array(lengths, dtype=np.int64)
        self.ns_per_byte = np.array(ns_per_byte, dtype=np.float64)
        self.heads = np.array(heads, dtype=np.int64)

    def distances(self, sources: Sequence[Any], targets: Sequence[Any]) -> Distances:
        """Return how far each of the targets is from each of the sources.

        Raises ``InvalidProblemError`` if no route leads from a source to a target.
        """
        columns_of = [
            (distances.latency_ns, distances.hops, distances.ns_per_byte)
            for distances in self.distances_of_each(sources, targets)
        ]
        return Distances(
            *(np.concatenate(columns) for columns in zip(*columns_of, strict=True))
        )

    def distances_of_each(
        self, sources: Sequence[Any], targets: Sequence[Any]
    ) -> Iterator[Distances]:
        """Yield :meth:`distances`, for some sources after the other.

        Raises ``InvalidProblemError`` if no route leads from a source to a target.
        """
        begins, ends = (
            np.array([self.index[node] for node in nodes], dtype=np.int64)
            for nodes in (sources, targets)
        )
        gates = self._gates(begins)
        rows = (
            self._behind(begins, gates, ends)
            if len(gates) < len(begins)
            else self._from(begins, ends)
        )
        done = 0
        for length, slowness in rows:
            for j, k in np.argwhere(length >= _NO_ROUTE)[:1]:
                raise InvalidProblemError(
                    f"graph: expected a route between all devices, got none "
                    f"from {sources[done + j]!r} to {targets[k]!r}; add a "
                    f"link, or let devices forward"
                )
            done += len(length)
            yield Distances(length // _LATENCY / PS_PER_NS, length % _LATENCY, slowness)

    def costs_ns(
        self, groups: Iterable[Sequence[Any]], size_bytes: float
    ) -> Iterator[Ints]:
        """Yield what :func:`message_costs_ns` says, for groups of devices.

        Raises ``InvalidProblemError`` if no route joins two of the devices.
        """
        for batch in _batches(groups):
            together = list(itertools.chain(*batch))
            distances = self.distances(together, together)
            first = 0
            for devices in batch:
                rows = slice(first, first + len(devices))
                first += len(devices)
                costs_ns = np.rint(
                    distances.latency_ns[rows, rows]
                    + size_bytes * distances.ns_per_byte[rows, rows]
                ).astype(np.int64)
                yield np.maximum(costs_ns, costs_ns.T)

    def _gates(self, sources: Ints) -> Ints:
        """Return nodes that all routes from some sources lead through first.

        The sources themselves, if one of them forwards, or leads to nothing
        or to a node that does not forward.
        """
        is_source = np.zeros(len(self.nodes), dtype=bool)
        is_source[sources] = True
        out = np.flatnonzero(is_source[self.tails])
        gates = np.unique(self.heads[out])
        if (
            self.forward[sources].any()
            or not self.forward[gates].all()
            or len(np.unique(self.tails[out])) < is_source.sum()
        ):
            return sources
        return gates

    def _behind(
        self, sources: Ints, gates: Ints, targets: Ints
    ) -> Iterator[tuple[Ints, Floats]]:
        """Yield lengths and slownesses from sources, out of their gates'."""
        table = [
            np.concatenate(x) for x in zip(*self._from(gates, targets), strict=True)
        ]
        row = np.zeros(len(self.nodes), dtype=np.int64)
        row[gates] = np.arange(len(gates))
        by_tail = np.argsort(self.tails, kind="stable")
        tails = self.tails[by_tail]
        for i in range(0, len(sources), _CHUNK):
            lengths, slownesses = [], []
            for source in sources[i : i + _CHUNK]:
                first, last = np.searchsorted(tails, [source, source + 1])
                arcs = by_tail[first:last]
                at = row[self.heads[arcs]]
                length = table[0][at] + self.lengths[arcs, None]
                shortest = length.min(axis=0)
                slowness = table[1][at] + self.ns_per_byte[arcs, None]
                slowness[length > shortest] = np.inf
                lengths.append(np.where(targets == source, 0, shortest))
                slownesses.append(
                    np.where(targets == source, 0.0, slowness.min(axis=0))
                )
            yield np.array(lengths), np.array(slownesses)

    def _from(self, sources: Ints, targets: Ints) -> Iterator[tuple[Ints, Floats]]:
        """Yield lengths and slownesses from some sources after the other."""
        for i in range(0, len(sources), _CHUNK):
            yield self._relaxed(sources[i : i + _CHUNK], targets)

    def _relaxed(self, sources: Ints, targets: Ints) -> tuple[Ints, Floats]:
        """Relax all arcs until nothing changes (Bellman and Ford)."""
        count, nodes = len(sources), len(self.nodes)
        begins, ends = self.forward.copy(), self.forward.copy()
        begins[sources], ends[targets] = True, True
        arcs = np.flatnonzero(begins[self.tails] & ends[self.heads])
        tails, lengths = self.tails[arcs], self.lengths[arcs, None]
        ns_per_byte = self.ns_per_byte[arcs, None]
        # Nodes that arcs lead to, and where the arcs to each of them begin.
        heads, starts = np.unique(self.heads[arcs], return_index=True)
        arcs_in = np.diff(np.append(starts, len(arcs)))
        columns = np.arange(count)
        length = np.full((nodes, count), _NO_ROUTE)
        length[sources, columns] = 0
        slowness = np.full((nodes, count), np.inf)
        slowness[sources, columns] = 0.0
        passes = np.repeat(self.forward[:, None], count, axis=1)
        passes[sources, columns] = True
        closed = ~passes[tails]
        changed = len(arcs) > 0
        while changed:
            by_arc = length[tails] + lengths
            by_arc[closed] = _NO_ROUTE
            shortest = np.minimum.reduceat(by_arc, starts)
            slow_by_arc = slowness[tails] + ns_per_byte
            slow_by_arc[by_arc > np.repeat(shortest, arcs_in, axis=0)] = np.inf
            slow = np.minimum.reduceat(slow_by_arc, starts)
            # Best routes to a node have equally many hops, so all of them
            # are seen in the same round.
            before = length[heads]
            better = shortest < before
            changed = bool(better.any())
            length[heads] = np.where(better, shortest, before)
            slowness[heads] = np.where(better, slow, slowness[heads])
        return length[targets].T, slowness[targets].T


def _batches(groups: Iterable[Sequence[Any]]) -> Iterator[list[Sequence[Any]]]:
    """Yield groups together, until there are enough devices to work on."""
    batch: list[Sequence[Any]] = []
    for devices in groups:
        batch.append(devices)
        if sum(map(len, batch)) >= _CHUNK:
            yield batch
            batch = []
    if batch:
        yield batch


def devices_of(graph: nx.Graph) -> list[Any]:
    """Return the devices in the order of ranks that comes with a graph.

    Raises ``InvalidProblemError`` if the graph has an order that is not all of its
    devices, each once.
    """
    devices = [node for node, kind in graph.nodes(data="kind") if kind == "device"]
    if "order" not in graph.graph:
        return devices
    return check_order(devices, graph.graph["order"])


def check_order(devices: Sequence[Any], order: Sequence[Any]) -> list[Any]:
    """Return an order of devices, if it is one.

    Raises ``InvalidProblemError`` if it names another node, or one twice, or misses
    one.
    """
    members, seen = set(devices), set()
    for device in order:
        if device not in members:
            raise InvalidProblemError(
                f"order: expected devices of the network, got {device!r}; leave it out"
            )
        if device in seen:
            raise InvalidProblemError(
                f"order: expected every device once, got {device!r} twice; "
                f"leave one out"
            )
        seen.add(device)
    for device in devices:
        if device not in seen:
            raise InvalidProblemError(
                f"order: expected all {len(devices)} devices, got "
                f"{len(seen)}; add {device!r}"
            )
    return list(order)


def twins(graph: nx.Graph, devices: Sequence[Any]) -> dict[Any, Any]:
    """Return units of devices that have the same links to the same nodes."""
    sides = (graph.succ, graph.pred) if graph.is_directed() else (graph.adj,)
    first: dict[Any, Any] = {}
    units: dict[Any, Any] = {}
    for device in devices:
        links = tuple(
            frozenset(
                (other, link["bandwidth"], link["latency_ns"])
                for other, link in side[device].items()
            )
            for side in sides
        )
        units[device] = first.setdefault(links, device)
    return units


def message_costs_ns(
    graph: nx.Graph, devices: Sequence[Any], size_bytes: float
) -> Ints:
    """Return what a message costs between any two devices.

    The sum over the links of its route of latency and size by bandwidth,
    rounded to ns: how long it takes if every link passes it on whole, and how
    long it keeps links busy. Where the two directions differ, the worse one.

    The array has the shape (devices, devices), is symmetric, and 0 on the diagonal.
    Raises ``InvalidProblemError`` if no route joins two of them.
    """
    (costs,) = Routes(graph).costs_ns([devices], size_bytes)
    return costs
