"""Least-latency routes on a graph, spread over all that are tied.

Ranks are places in the rank order; arcs are numbered. A latency is an
integer in femtoseconds, so that sums of latencies that are equal are tied.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nest.ir.graph_topology import GraphTopology

FS_PER_NS = 1e6

#: A path is as long as its latency and, where that is tied, its arcs are
#: many: latency · 2^20 + arcs.
_HOP_BITS = 20


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
        self._splits: dict[tuple[int, int], list[tuple[int, int, float]]] = {}

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

    def loads(
        self, flows: Iterable[tuple[int, int, float]]
    ) -> npt.NDArray[np.float64]:
        """Return what flows put on every arc.

        At every node a message splits in proportion to the bandwidths of
        the arcs that begin a shortest path; what goes to one target goes on
        together.

        Parameters
        ----------
        flows
            Source, target and amount of each.
        """
        to: dict[int, dict[int, float]] = {}
        for source, target, amount in flows:
            sent = to.setdefault(self.ranks[target], {})
            node = self.ranks[source]
            sent[node] = sent.get(node, 0.0) + amount
        loads = [0.0] * len(self.arcs)
        for target, amounts in to.items():
            lengths = self._lengths_to(target)
            # From the farthest node on: all that enters one is known before.
            waiting = [(-lengths[node], node) for node in amounts]
            heapq.heapify(waiting)
            while waiting:
                _, node = heapq.heappop(waiting)
                if node == target:
                    break
                for number, head, share in self._onward(node, target):
                    part = amounts[node] * share
                    loads[number] += part
                    if head not in amounts:
                        amounts[head] = 0.0
                        heapq.heappush(waiting, (-lengths[head], head))
                    amounts[head] += part
        return np.array(loads)

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

    def _onward(self, node: int, target: int) -> list[tuple[int, int, float]]:
        """Return the arcs that begin shortest paths to a target.

        With the node at their end and the part that takes them.
        """
        key = (node, target)
        if key not in self._splits:
            lengths = self._lengths_to(target)
            tied = [
                number
                for number in self._leaving[node]
                if self._is_tied(self.arcs[number], lengths, target)
            ]
            total = sum(self.arcs[i].bandwidth_bytes_per_s for i in tied)
            self._splits[key] = [
                (i, arc.head, arc.bandwidth_bytes_per_s / total)
                for i, arc in ((i, self.arcs[i]) for i in tied)
            ]
        return self._splits[key]

    def _is_tied(self, arc: Arc, lengths: dict[int, int], target: int) -> bool:
        """Whether an arc begins a shortest path to a target."""
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
