"""Graphs as arrays of arcs, and what is asked of routes on them.

Ranks are places in the rank order; nodes and arcs are numbered. A latency is
an integer in femtoseconds, so that sums of latencies that are equal are tied.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from nest.ir.graph_topology import GraphTopology
from nest.topology.alphabeta import femtoseconds

#: Lengths of any size, or in 64 bits.
Ints = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]


class Arc(NamedTuple):
    """One direction of a link."""

    tail: int
    head: int
    bandwidth_bytes_per_s: float
    latency_fs: int


class Wires:
    """The arcs of a graph.

    ``ranks`` has the node of every rank, and ``forwards`` says which nodes pass
    messages on; ``nodes`` and ``relays`` are the same as arrays. ``arcs`` are both
    directions of every link, one in a directed graph; their bandwidths are in bytes/s,
    their latencies in femtoseconds. ``coordinates`` has a row for every rank, if there
    are any.
    """

    def __init__(self, topology: GraphTopology) -> None:
        index = {node.id: i for i, node in enumerate(topology.nodes)}
        self.forwards = [node.forwards for node in topology.nodes]
        self.ranks = [index[name] for name in topology.ranks]
        self.arcs: list[Arc] = []
        for link in topology.links:
            tail, head = index[link.source], index[link.target]
            latency_fs = femtoseconds(link.latency_ns)
            speed = link.bandwidth_bytes_per_s
            self.arcs.append(Arc(tail, head, speed, latency_fs))
            if not topology.directed:
                self.arcs.append(Arc(head, tail, speed, latency_fs))
        columns = list(zip(*self.arcs, strict=True)) or [()] * 4
        self.tails, self.heads, self.latencies = (
            np.array(columns[i], np.int64) for i in (0, 1, 3)
        )
        self.bandwidths = np.array(columns[2], np.float64)
        self.nodes = np.array(self.ranks)
        self.relays = np.array(self.forwards, np.bool_)
        self.coordinates = np.array(
            [topology.coordinates[name] for name in topology.ranks]
            if topology.coordinates
            else [],
            np.int64,
        )
        self._leaving, self._entering = (
            np.bincount(ends, self.bandwidths, len(topology.nodes))
            for ends in (self.tails, self.heads)
        )

    def leaving(self, rank: int) -> float:
        """Return the bandwidth of a device's arcs to others, in bytes/s."""
        return float(self._leaving[self.ranks[rank]])

    def entering(self, rank: int) -> float:
        """Return the bandwidth of the arcs to a device, in bytes/s."""
        return float(self._entering[self.ranks[rank]])


class Ways(Protocol):
    """Routes on the links of a graph, or of one that is as good."""

    #: Of the links, in bytes/s.
    bandwidths: Floats

    def latencies_fs(self, sources: Ints, targets: Ints) -> Ints:
        """Return the latencies of the routes between ranks."""

    def loads(self, sources: Ints, targets: Ints, amounts: Floats) -> Floats:
        """Return what flows put on every link.

        The arrays are flat: of each flow its ends (ranks), and what it carries.
        """

    def farthest_fs(self, ranks: Ints) -> int:
        """Return the longest that a rank takes to all others, in turn.

        ``ranks`` has a row for each group.
        """

    def loads_of_all(self, ranks: Ints, amounts: Floats) -> Floats:
        """Return what links carry if all ranks of a row send to all others.

        ``ranks`` has a row for each group, and ``amounts`` what its ranks send to each
        other.
        """
