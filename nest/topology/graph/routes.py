"""Least-latency routes on a graph, spread over all that are tied.

Ranks are places in the rank order; arcs are numbered. A latency is an
integer in femtoseconds, so that sums of latencies that are equal are tied.
"""

from __future__ import annotations

import heapq
import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nest.ir.graph_topology import GraphTopology

FS_PER_NS = 1e6

#: A path is as long as its latency and, where that is tied, its arcs are
#: many: latency · 2^20 + arcs.
_HOP_BITS = 20

Shares = tuple[npt.NDArray[np.intp], npt.NDArray[np.float64]]


class Arc(NamedTuple):
    """One direction of a link."""

    tail: int
    head: int
    bandwidth_bytes_per_s: float
    latency_fs: int


class Routes:
    """Routes between the devices of a graph; remembers them.

    Parameters
    ----------
    topology
        The graph.

    Attributes
    ----------
    arcs
        Both directions of every link; one in a directed graph.
    bandwidths
        Of the arcs, in bytes/s.
    ranks
        The node of every rank.
    forwards
        Whether a node passes messages on.
    """

    def __init__(self, topology: GraphTopology) -> None:
        place = {node.id: i for i, node in enumerate(topology.nodes)}
        self.forwards = [node.forwards for node in topology.nodes]
        self.ranks = [place[name] for name in topology.ranks]
        self.arcs: list[Arc] = []
        for link in topology.links:
            tail, head = place[link.source], place[link.target]
            latency_fs = math.floor(link.latency_ns * FS_PER_NS + 0.5)
            speed = link.bandwidth_bytes_per_s
            self.arcs.append(Arc(tail, head, speed, latency_fs))
            if not topology.directed:
                self.arcs.append(Arc(head, tail, speed, latency_fs))
        self.bandwidths = np.array(
            [arc.bandwidth_bytes_per_s for arc in self.arcs]
        )
        self._leaving: list[list[int]] = [[] for _ in topology.nodes]
        self._entering: list[list[int]] = [[] for _ in topology.nodes]
        for number, arc in enumerate(self.arcs):
            self._leaving[arc.tail].append(number)
            self._entering[arc.head].append(number)
        self._lengths: dict[int, dict[int, int]] = {}
        self._shares: dict[tuple[int, int], Shares] = {}

    def leaving(self, rank: int) -> float:
        """Return the bandwidth of a device's arcs to others, in bytes/s."""
        return sum(
            float(self.bandwidths[i]) for i in self._leaving[self.ranks[rank]]
        )

    def entering(self, rank: int) -> float:
        """Return the bandwidth of the arcs to a device, in bytes/s."""
        return sum(
            float(self.bandwidths[i]) for i in self._entering[self.ranks[rank]]
        )

    def latency_fs(self, source: int, target: int) -> int:
        """Return the latency of the route between two ranks."""
        lengths = self._lengths_to(self.ranks[target])
        return lengths[self.ranks[source]] >> _HOP_BITS

    def shares(self, source: int, target: int) -> Shares:
        """Return the arcs that a message takes, and its part on each.

        At every node it splits in proportion to the bandwidths of the arcs
        that begin a shortest path.
        """
        key = (source, target)
        if key not in self._shares:
            self._shares[key] = self._spread(*(self.ranks[i] for i in key))
        return self._shares[key]

    def _lengths_to(self, target: int) -> dict[int, int]:
        """Return how long the way from every node to a target is."""
        if target in self._lengths:
            return self._lengths[target]
        found: dict[int, int] = {}
        waiting = [(0, target)]
        while waiting:
            length, node = heapq.heappop(waiting)
            if node in found:
                continue
            found[node] = length
            if node != target and not self.forwards[node]:
                continue
            for number in self._entering[node]:
                arc = self.arcs[number]
                if arc.tail not in found:
                    heapq.heappush(waiting, (length + _step(arc), arc.tail))
        self._lengths[target] = found
        return found

    def _spread(self, source: int, target: int) -> Shares:
        lengths = self._lengths_to(target)
        parts = {source: 1.0}
        found: dict[int, float] = {}
        # From the farthest node on: all that enters one is known before.
        waiting: list[tuple[int, int]] = [(-lengths[source], source)]
        while waiting:
            _, node = heapq.heappop(waiting)
            if node == target:
                break
            onward = [i for i in self._leaving[node] if self._tied(i, target)]
            total = sum(self.arcs[i].bandwidth_bytes_per_s for i in onward)
            for number in onward:
                arc = self.arcs[number]
                part = parts[node] * (arc.bandwidth_bytes_per_s / total)
                found[number] = part
                if arc.head not in parts:
                    heapq.heappush(waiting, (-lengths[arc.head], arc.head))
                parts[arc.head] = parts.get(arc.head, 0.0) + part
        return (
            np.fromiter(found, np.intp, len(found)),
            np.fromiter(found.values(), np.float64, len(found)),
        )

    def _tied(self, number: int, target: int) -> bool:
        """Whether an arc begins a shortest path to a target."""
        arc, lengths = self.arcs[number], self._lengths[target]
        return (
            (arc.head == target or self.forwards[arc.head])
            and arc.head in lengths
            and lengths[arc.tail] == lengths[arc.head] + _step(arc)
        )


def _step(arc: Arc) -> int:
    return (arc.latency_fs << _HOP_BITS) + 1


def network_flow(routes: Routes, ranks: frozenset[int]) -> Any:
    """Return a flow network of all that may carry messages among ranks.

    A :class:`networkx.DiGraph` with ``capacity`` in bytes/s; devices that
    pass nothing on and are not among the ranks are left out.
    """
    import networkx

    nodes = {routes.ranks[rank] for rank in ranks}
    graph = networkx.DiGraph()
    for arc in routes.arcs:
        if all(
            node in nodes or routes.forwards[node]
            for node in (arc.tail, arc.head)
        ):
            graph.add_edge(
                arc.tail, arc.head, capacity=arc.bandwidth_bytes_per_s
            )
    return graph
