"""Tree networks: levels, group shapes, and the times that follow."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from nest.ir.cluster import Hierarchy
from nest.ir.graph import CollectiveKind
from nest.topology.alphabeta import NS_PER_S, flat_collective_ns
from nest.topology.protocol import Block, Link, ParallelGroups, Route


class GroupShape(NamedTuple):
    """All that the time of a collective depends on.

    Attributes
    ----------
    size
        Number of ranks.
    level
        Lowest level whose subtree holds them all.
    counts
        Ranks per unit of level 0, units of level 0 per unit of level 1, and
        so on up to ``level``, if the same everywhere; else ``None``, and the
        hierarchical algorithm does not apply.
    bandwidth
        Of an uneven group, the least that a member has on any level, in
        bytes/s; the counts of an even one say what it is.
    """

    size: int
    level: int
    counts: tuple[int, ...] | None
    bandwidth: float | None = None


Shapes = frozenset[GroupShape]


def _around(block: Block, other: Block) -> Block:
    """Return the smallest block that holds two of the same replicas."""
    first = min(block.offset, other.offset)
    end = max(block.offset + block.devices, other.offset + other.devices)
    return block._replace(offset=first, devices=end - first)


class HierarchyNetwork:
    """Times on a :class:`~nest.ir.cluster.Hierarchy`.

    The formulas are in docs/cost-model.md, under "Network". A path that
    climbs to level ``L`` is as fast as its slowest link, hence its bandwidth
    is the minimum over levels ``0..L`` (at ``L`` itself what reaches one
    peer); its latency and launch cost are those of ``L``.
    """

    def __init__(self, topology: Hierarchy) -> None:
        levels = topology.levels
        self.fan_outs = tuple(level.fan_out for level in levels)
        self.capacities = topology.capacities
        self.algorithms = topology.algorithms
        self.latencies_ns = tuple(level.latency_ns for level in levels)
        self.launches_ns = tuple(level.launch_ns for level in levels)
        self.raw_bandwidths = tuple(
            level.bandwidth_bytes_per_s for level in levels
        )
        self.peer_bandwidths = tuple(
            level.peer_bandwidth_bytes_per_s for level in levels
        )
        self.path_bandwidths = tuple(
            itertools.accumulate(self.raw_bandwidths, min)
        )
        self.bandwidths = tuple(
            self._through(level, 2) for level in range(len(levels))
        )
        self.links = tuple(
            Link(launch_ns + latency_ns, bandwidth)
            for launch_ns, latency_ns, bandwidth in zip(
                self.launches_ns,
                self.latencies_ns,
                self.bandwidths,
                strict=True,
            )
        )
        #: Links that none of a level or above it is faster than.
        self._fastest = tuple(
            Link(
                min(link.alpha_ns for link in self.links[level:]),
                max(link.beta for link in self.links[level:]),
            )
            for level in range(len(levels))
        )
        #: Whole subtrees just below the top level.
        self.period = self.capacities[-2] if len(levels) > 1 else 1
        self._known: dict[object, Any] = {}

    # Where blocks and groups meet

    def level(self, first: int, last: int) -> int:
        """Return the lowest level whose subtree holds ``first..last``."""
        for level, capacity in enumerate(self.capacities):
            if first // capacity == last // capacity:
                return level
        raise ValueError(f"devices {first} and {last} are not in the cluster")

    def link(self, first: int, last: int) -> Link:
        """Return the link between devices ``first`` and ``last``."""
        return self.links[self.level(first, last)]

    def route(self, receiver: Block, sender: Block) -> Route:
        """Say how a block receives from another one.

        They meet where a subtree holds both blocks. The devices of a smaller
        sender each have several to send to.
        """
        key = (receiver, sender)
        if key not in self._known:
            found = self.inside(_around(receiver, sender))
            if sender.devices < receiver.devices:
                common = math.gcd(receiver.devices, sender.devices)
                found = frozenset(
                    link._replace(
                        receivers=receiver.devices // common,
                        senders=sender.devices // common,
                    )
                    for link in found
                )
            self._known[key] = found
        route: Route = self._known[key]
        return route

    def fastest(self, receiver: Block, senders: Sequence[Block]) -> Route:
        """Return a route that is no slower than those from some blocks.

        All meet where the nearest device does, or above it.
        """
        key = ("fastest", _around(receiver, senders[0]))
        if key not in self._known:
            self._known[key] = frozenset(
                self._fastest[self.level(start, end - 1)]
                for start, end in key[1].ranges()
            )
        route: Route = self._known[key]
        return route

    def inside(self, block: Block) -> Route:
        """Say how a block hands on to itself: where a subtree holds it."""
        if block not in self._known:
            self._known[block] = frozenset(
                self.link(start, end - 1) for start, end in block.ranges()
            )
        route: Route = self._known[block]
        return route

    def alike(self, block: Block) -> Block:
        """Return the first block on which all groups cost the same.

        Shifting all replicas by whole subtrees just below the top level
        changes no group's shape.
        """
        return block._replace(offset=block.offset % self.period)

    def groups(self, groups: ParallelGroups) -> Shapes:
        """Return the shapes of the groups.

        Bandwidths are those when all devices talk: what other stages do
        meanwhile changes nothing.
        """
        groups = groups._replace(block=self.alike(groups.block), tiled=False)
        if groups.joined and groups.block.replicas > 1:
            return self._shapes(groups)
        if groups.size == 1:
            return frozenset()
        return frozenset().union(
            *(
                self._shapes(groups._replace(block=block, joined=False))
                for block in self._different(groups.block)
            )
        )

    def _shapes(self, groups: ParallelGroups) -> Shapes:
        if groups not in self._known:
            self._known[groups] = frozenset(map(self.shape, groups.groups()))
        shapes: Shapes = self._known[groups]
        return shapes

    def _different(self, block: Block) -> frozenset[Block]:
        """Return the block of every replica, up to symmetry.

        Shifting one by whole subtrees of the level that holds it changes
        nothing.
        """
        key = ("different", block)
        if key not in self._known:
            self._known[key] = frozenset(
                Block(
                    1,
                    0,
                    start % self.capacities[self.level(start, end - 1)],
                    block.devices,
                )
                for start, end in block.ranges()
            )
        blocks: frozenset[Block] = self._known[key]
        return blocks

    def shape(self, devices: Sequence[int]) -> GroupShape:
        """Return the shape of a group of ascending device numbers."""
        level = self.level(devices[0], devices[-1])
        counts: list[int] = []
        bandwidth = math.inf
        even = True
        units: Iterable[int] = devices
        for below, fan_out in enumerate(self.fan_outs[: level + 1]):
            members = Counter(unit // fan_out for unit in units)
            found = set(members.values())
            even = even and len(found) == 1
            bandwidth = min(bandwidth, *(self._reach(below, n) for n in found))
            counts.append(max(found))
            units = members
        if even:
            return GroupShape(len(devices), level, tuple(counts))
        return GroupShape(len(devices), level, None, bandwidth)

    def collective_ns(
        self,
        kind: CollectiveKind,
        groups: Iterable[GroupShape],
        size_bytes: float,
    ) -> float:
        """Return the time of parallel groups: the worst of them."""
        time_ns = self._nccl_ns if self.algorithms == "nccl" else self._best_ns
        return max(
            (time_ns(kind, shape, size_bytes) for shape in groups),
            default=0.0,
        )

    def longest_ns(self, size_bytes: float, num_ranks: int) -> float:
        """Return a time that no transfer or collective exceeds, in ns.

        The slowest algorithm takes ``2n`` messages and ``4 X/β`` per level.
        """
        alpha_ns = max(link.alpha_ns for link in self.links)
        peers = (peer for peer in self.peer_bandwidths if peer is not None)
        beta = min((*self.raw_bandwidths, *peers))
        volume_ns = size_bytes / beta * NS_PER_S
        return len(self.links) * 4 * (num_ranks * alpha_ns + volume_ns)

    def _reach(self, level: int, members: int) -> float:
        """Bandwidth of one of ``members`` that meet at ``level``."""
        full, peer = self.raw_bandwidths[level], self.peer_bandwidths[level]
        if peer is None or members < 2:
            return full
        return min(full, (members - 1) * peer)

    def _through(self, level: int, members: int) -> float:
        """Bandwidth of ``members`` at ``level`` on the path up to it."""
        reach = self._reach(level, members)
        if level == 0:
            return reach
        return min(self.path_bandwidths[level - 1], reach)

    def _best_ns(
        self, kind: CollectiveKind, shape: GroupShape, size_bytes: float
    ) -> float:
        """Price the better of a flat and, of even groups, a level-wise one.

        Level by level an all-reduce is a reduce-scatter going up and an
        all-gather coming down (of two levels: Jia et al., *Highly Scalable
        Deep Learning Training System with Mixed-Precision*, 2018).
        """
        n, top, counts, beta = shape
        if n == 1 or size_bytes == 0:
            return 0.0
        if counts is not None:
            beta = min(self._reach(i, count) for i, count in enumerate(counts))
        assert beta is not None
        flat = self.launches_ns[top] + flat_collective_ns(
            kind, n, size_bytes, self.latencies_ns[top], beta
        )
        if counts is None or top == 0:
            return flat
        total = 0.0
        piece = float(size_bytes)
        for level, count in enumerate(counts):
            if count == 1:
                continue
            link = (self.latencies_ns[level], self._through(level, count))
            launch_ns = self.launches_ns[level]
            if kind == "all-reduce" and level < top:
                total += (
                    2 * launch_ns
                    + flat_collective_ns("reduce-scatter", count, piece, *link)
                    + flat_collective_ns("all-gather", count, piece, *link)
                )
            else:
                total += launch_ns + flat_collective_ns(
                    kind, count, piece, *link
                )
            if kind != "all-to-all":
                piece /= count
        return min(flat, total)

    def _nccl_ns(
        self, kind: CollectiveKind, shape: GroupShape, size_bytes: float
    ) -> float:
        """Price a collective as NCCL runs it.

        Rings visit all members of a unit before they leave it; there are as
        many as a unit has members, each leaving through a port of its own.
        Above level 0 a small all-reduce takes a tree, a chain inside a node.
        A group that fills units unevenly has one ring. Sources: Hu et al.,
        *Demystifying NCCL*, 2025, arXiv 2507.04786, on ring and tree;
        Jeaugey, *Massively Scale Your Deep Learning Training with NCCL 2.4*,
        2019, on double binary trees at full bandwidth.
        """
        n, top, counts, bandwidth = shape
        if n == 1 or size_bytes == 0:
            return 0.0
        volume_ns = size_bytes * NS_PER_S
        launch_ns = self.launches_ns[top]
        if counts is None:
            assert bandwidth is not None
            rounds = 2 if kind == "all-reduce" else 1
            return launch_ns + rounds * (
                (n - 1) * self.latencies_ns[top]
                + (n - 1) / n * volume_ns / bandwidth
            )
        beta = math.inf
        hops_ns = depth_ns = slowest_ns = 0.0
        below = 1
        for level, count in enumerate(counts):
            if count > 1:
                alpha_ns = self.latencies_ns[level]
                reach = self._reach(level, count)
                beta = min(beta, below * reach)
                hops_ns += (n // below - n // (below * count)) * alpha_ns
                depth = count - 1 if level == 0 else (count - 1).bit_length()
                depth_ns += depth * alpha_ns
                share = (count - 1) * below / n
                slowest_ns = max(slowest_ns, share * volume_ns / reach)
            below *= count
        if kind == "all-to-all":
            return launch_ns + hops_ns + slowest_ns
        ring_ns = hops_ns + (n - 1) / n * volume_ns / beta
        if kind != "all-reduce":
            return launch_ns + ring_ns
        if top == 0:
            return launch_ns + 2 * ring_ns
        return launch_ns + 2 * min(ring_ns, depth_ns + volume_ns / beta)
