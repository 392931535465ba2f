"""Least-latency routes on a graph, spread over all that are tied.

Ranks are places in the rank order; arcs are numbered. A latency is an
integer in femtoseconds, so that sums of latencies that are equal are tied.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nest.ir.graph_topology import GraphTopology
from nest.topology.alphabeta import femtoseconds

#: Lengths of any size, or in 64 bits.
Ints = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]

#: How many targets' routes are looked for at once; more take more memory.
_BATCH = 256

#: From so many flows per rank on, what goes to one target is spread together
#: instead of path by path.
_MANY = 4


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
            latency_fs = femtoseconds(link.latency_ns)
            speed = link.bandwidth_bytes_per_s
            self.arcs.append(Arc(tail, head, speed, latency_fs))
            if not topology.directed:
                self.arcs.append(Arc(head, tail, speed, latency_fs))
        self.bandwidths = np.array(
            [arc.bandwidth_bytes_per_s for arc in self.arcs], np.float64
        )
        self._leaving, self._entering = (
            np.bincount(
                np.array([arc[end] for arc in self.arcs], np.int64),
                self.bandwidths,
                len(topology.nodes),
            )
            for end in (0, 1)
        )
        self._nodes = np.array(self.ranks)
        self._relays = np.array(self.forwards, np.bool_)
        # By tail, so that the arcs of a node are side by side.
        self._order = np.array(
            sorted(range(len(self.arcs)), key=lambda i: self.arcs[i].tail),
            np.int64,
        )
        tails = [self.arcs[i].tail for i in self._order]
        self._heads = np.array(
            [self.arcs[i].head for i in self._order], np.int64
        )
        self._tails, self._begins = np.unique(
            np.array(tails, np.int64), return_index=True
        )
        self._tail = np.array(tails, np.int64)
        self._set_lengths()
        shape = len(self.ranks), len(self.forwards)
        self._lengths = np.full(shape, self._far, self._steps.dtype)
        self._first = np.zeros(shape, np.int64)
        self._count = np.zeros(shape, np.int64)
        self._known = np.zeros(len(self.ranks), np.bool_)
        self._ways = np.zeros(0, np.int64)
        self._shares = np.zeros(0, np.float64)
        self._path_count = np.full(len(self.ranks) ** 2, -1)
        self._path_first = np.zeros(len(self.ranks) ** 2, np.int64)
        self._paths_end = 0
        self._path_ways = np.zeros(0, np.int64)
        self._path_shares = np.zeros(0, np.float64)

    def _set_lengths(self) -> None:
        """Choose how lengths are written, and whether 64 bits hold them.

        A path is as long as its latency and, where that is tied, its arcs
        are many: ``latency << bits | arcs``. Sums over all ranks fit too.
        """
        self._bits = len(self.forwards).bit_length()
        latencies = [self.arcs[i].latency_fs for i in self._order]
        most = (max(latencies, default=0) + 1) * len(self.forwards)
        self._far: int = most << self._bits
        fits = 4 * max(self._far, len(self.ranks) * most) < 1 << 63
        self._steps = np.array(
            [(latency << self._bits) + 1 for latency in latencies],
            np.int64 if fits else object,
        )

    def leaving(self, rank: int) -> float:
        """Return the bandwidth of a device's arcs to others, in bytes/s."""
        return float(self._leaving[self.ranks[rank]])

    def entering(self, rank: int) -> float:
        """Return the bandwidth of the arcs to a device, in bytes/s."""
        return float(self._entering[self.ranks[rank]])

    def latencies_fs(self, sources: Ints, targets: Ints) -> Ints:
        """Return the latencies of the routes between ranks."""
        self._find(targets)
        lengths = self._lengths[targets, self._nodes[sources]]
        latencies: Ints = lengths >> self._bits
        return latencies

    def loads(self, sources: Ints, targets: Ints, amounts: Floats) -> Floats:
        """Return what flows put on every arc.

        At every node a message splits in proportion to the bandwidths of
        the arcs that begin a shortest path; what goes to one target goes on
        together.

        Parameters
        ----------
        sources, targets, amounts
            Of each flow: ranks, and what it carries.
        """
        self._find(targets)
        found = np.zeros(len(self.arcs))
        if len(sources) > _MANY * len(self.ranks):
            lanes = np.arange(len(self.ranks))
            for _, ways, parts in self._walk(lanes, targets, sources, amounts):
                found[self._order] += np.bincount(ways, parts, len(found))
            return found
        pairs = targets * len(self.ranks) + sources
        self._find_paths(pairs)
        count = self._path_count[pairs]
        end = np.cumsum(count)
        steps: Ints = np.repeat(self._path_first[pairs] - end + count, count)
        steps += np.arange(len(steps))
        parts = np.repeat(amounts, count) * self._path_shares[steps]
        ways = self._path_ways[steps]
        found[self._order] = np.bincount(ways, parts, len(found))
        return found

    def busiest(self, sources: Ints, targets: Ints, amounts: Floats) -> float:
        """Return the largest load over bandwidth that flows make, in s."""
        loads = self.loads(sources, targets, amounts)
        return float((loads / self.bandwidths).max())

    def _find_paths(self, pairs: Ints) -> None:
        """Note what the arcs between a source and a target carry."""
        wanted = np.unique(pairs[self._path_count[pairs] < 0])
        if not len(wanted):
            return
        lanes = np.arange(len(wanted))
        targets, sources = np.divmod(wanted, len(self.ranks))
        walk = list(self._walk(targets, lanes, sources, np.ones(len(wanted))))
        if not walk:
            self._path_count[wanted] = 0
            return
        lane, ways, parts = map(np.concatenate, zip(*walk, strict=True))
        order = np.argsort(lane, kind="stable")
        count = np.bincount(lane, minlength=len(wanted))
        used = self._paths_end
        end = used + np.cumsum(count)
        self._path_count[wanted], self._path_first[wanted] = count, end - count
        self._path_ways = _put(self._path_ways, used, ways[order])
        self._path_shares = _put(self._path_shares, used, parts[order])
        self._paths_end = used + len(order)

    def _walk(
        self, targets: Ints, lanes: Ints, sources: Ints, amounts: Floats
    ) -> Iterator[tuple[Ints, Ints, Floats]]:
        """Yield what arcs carry, step by step: lanes, arcs and amounts.

        Parameters
        ----------
        targets
            Of every lane; flows in one go on together.
        lanes, sources, amounts
            Of each flow.
        """
        num_nodes = len(self.forwards)
        nodes = self._nodes[sources]
        hops = self._hops(targets[lanes] * num_nodes + nodes)
        # Every arc of a path is one more closer to the target.
        order = np.argsort(-hops, kind="stable")
        keys = (lanes * num_nodes + nodes)[order]
        amounts, hops = amounts[order], hops[order]
        left = int(hops[0]) if len(hops) else 0
        ends = np.searchsorted(-hops, -np.arange(left, -1, -1), "right")
        moving, parts, begin = keys[:0], amounts[:0], 0
        for stop in ends[:left]:
            moving = np.concatenate([moving, keys[begin:stop]])
            parts = np.concatenate([parts, amounts[begin:stop]])
            begin = stop
            moving, where = np.unique(moving, return_inverse=True)
            parts = np.bincount(where, parts).astype(np.float64)
            lane, node = np.divmod(moving, num_nodes)
            count = self._count[targets[lane], node]
            first = self._first[targets[lane], node]
            ways: Ints = np.repeat(first - np.cumsum(count) + count, count)
            ways += np.arange(len(ways))
            parts = np.repeat(parts, count) * self._shares[ways]
            taken, lane = self._ways[ways], np.repeat(lane, count)
            yield lane, taken, parts
            moving = lane * num_nodes + self._heads[taken]

    def _hops(self, keys: Ints) -> npt.NDArray[np.int64]:
        """Return the number of arcs from nodes to targets."""
        lengths = self._lengths.ravel()[keys]
        hops: npt.NDArray[np.int64] = (lengths & (1 << self._bits) - 1).astype(
            np.int64
        )
        return hops

    def _find(self, targets: Ints) -> None:
        """Find the routes to ranks."""
        wanted = np.unique(targets[~self._known[targets]])
        for begin in range(0, len(wanted), _BATCH):
            self._find_batch(wanted[begin : begin + _BATCH])

    def _find_batch(self, targets: Ints) -> None:
        columns, nodes = np.arange(len(targets)), self._nodes[targets]
        lengths = np.full(
            (len(self.forwards), len(targets)), self._far, self._steps.dtype
        )
        lengths[nodes, columns] = 0
        while True:
            relayed = np.where(self._relays[:, None], lengths, self._far)
            relayed[nodes, columns] = 0
            ways = relayed[self._heads] + self._steps[:, None]
            least = lengths.copy()
            least[self._tails] = np.minimum(
                lengths[self._tails],
                np.minimum.reduceat(ways, self._begins, axis=0),
            )
            if (least == lengths).all():
                break
            lengths = least
        tied = (ways == lengths[self._tail]) & (ways < self._far)
        tied &= self._tail[:, None] != nodes
        self._lengths[targets] = lengths.T
        self._known[targets] = True
        self._remember(targets, tied)

    def _remember(self, targets: Ints, tied: npt.NDArray[np.bool_]) -> None:
        """Note which arcs begin shortest paths, and what part takes them."""
        speeds = self.bandwidths[self._order][:, None] * tied
        total = np.add.reduceat(speeds, self._begins, axis=0)
        of_tail = np.searchsorted(self._tails, self._tail)
        count = np.add.reduceat(tied.astype(np.int64), self._begins, axis=0).T
        end = len(self._ways) + np.cumsum(count).reshape(count.shape)
        place = np.ix_(targets, self._tails)
        self._count[place], self._first[place] = count, end - count
        column, way = np.nonzero(tied.T)
        self._ways = np.concatenate([self._ways, way])
        self._shares = np.concatenate(
            [self._shares, speeds[way, column] / total[of_tail[way], column]]
        )


def _put(array: Ints, used: int, more: Ints) -> Ints:
    """Append to the used part of an array, which grows by half at least."""
    end = used + len(more)
    if end > len(array):
        room = np.zeros(end + end // 2 - used, array.dtype)
        array = np.concatenate([array[:used], room])
    array[used:end] = more
    return array


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
