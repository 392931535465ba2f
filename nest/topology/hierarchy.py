"""Tree networks: levels, group shapes, and the times that follow."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

from nest.ir.cluster import Hierarchy
from nest.ir.graph import COLLECTIVES, CollectiveKind, check_collective
from nest.topology.alphabeta import NS_PER_S, Line, femtoseconds, sums
from nest.topology.protocol import Block, Kinds, Link, ParallelGroups, Route
from nest.topology.shares import Share, Spread, Step, offered


class GroupShape(NamedTuple):
    """All that the time of a collective depends on.

    These are the number of ranks, and how they are spread over the members of each
    level, up to the lowest one whose subtree holds them all.
    """

    size: int
    levels: tuple[Spread, ...]


Shapes = frozenset[GroupShape]
#: Launch costs in ns, and lines.
Offers = tuple[tuple[float, Line], ...]


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

    dear: ClassVar[bool] = False

    def __init__(self, topology: Hierarchy) -> None:
        self.levels = levels = topology.levels
        self.capacities = topology.capacities
        self.algorithms = topology.algorithms
        self.latencies_ns = tuple(level.latency_ns for level in levels)
        self.latencies_fs = tuple(map(femtoseconds, self.latencies_ns))
        self.raw_bandwidths = tuple(level.bandwidth_bytes_per_s for level in levels)
        ways_up = itertools.accumulate(self.raw_bandwidths, min)
        self.links = tuple(
            Link(
                level.launch_ns + level.latency_ns,
                min(bandwidth, level.peer_bandwidth_bytes_per_s or math.inf),
            )
            for level, bandwidth in zip(levels, ways_up, strict=True)
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

    @property
    def bounding(self) -> HierarchyNetwork:
        """Return this network, on which groups are cheap to price."""
        return self

    @property
    def tree(self) -> HierarchyNetwork:
        """Return this network, which is a tree of levels."""
        return self

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
            links = self.inside(_around(receiver, sender))
            if sender.devices < receiver.devices:
                common = math.gcd(receiver.devices, sender.devices)
                links = frozenset(
                    link._replace(
                        receivers=receiver.devices // common,
                        senders=sender.devices // common,
                    )
                    for link in links
                )
            self._known[key] = links
        route: Route = self._known[key]
        return route

    def fastest(self, receiver: Block, sizes: Sequence[int], *, forward: bool) -> Route:
        """Return a route that is no slower than those from blocks beside one.

        All meet where the nearest device does, or above it.
        """
        span = receiver._replace(
            offset=receiver.offset - forward, devices=receiver.devices + 1
        )
        key = ("fastest", span)
        if key not in self._known:
            self._known[key] = frozenset(
                self._fastest[self.level(start, end - 1)]
                for start, end in span.ranges()
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

    def groups(self, groups: ParallelGroups, kinds: Kinds = COLLECTIVES) -> Shapes:
        """Return the shapes of the groups, whatever kinds of collectives they run.

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
        """Return the shapes of groups that are one group at several places.

        Shifting a group by whole subtrees just below the top level changes nothing.
        """
        if groups not in self._known:
            different = {x % self.period: x for x in groups.first_devices()}
            self._known[groups] = frozenset(
                self.shape(groups.group_from(x)) for x in different.values()
            )
        shapes: Shapes = self._known[groups]
        return shapes

    def _different(self, block: Block) -> frozenset[Block]:
        """Return the block of every replica, up to symmetry.

        Shifting one by whole subtrees of the level that holds it changes nothing.
        """
        key = ("different", block)
        if key not in self._known:
            different = set()
            offsets: set[int] = set()
            for start, end in block.ranges():
                if start % self.period in offsets:
                    break  # The places of replicas repeat below the top level.
                offsets.add(start % self.period)
                capacity = self.capacities[self.level(start, end - 1)]
                different.add(Block(1, 0, start % capacity, block.devices))
            self._known[key] = frozenset(different)
        blocks: frozenset[Block] = self._known[key]
        return blocks

    def shape(self, devices: Sequence[int]) -> GroupShape:
        """Return the shape of a group of ascending device numbers."""
        import numpy as np

        level = self.level(devices[0], devices[-1])
        spreads = []
        members, ranks = np.array(devices), np.ones(len(devices), dtype=np.int64)
        for fan_out in (x.fan_out for x in self.levels[: level + 1]):
            parents = members // fan_out
            first = np.flatnonzero(np.diff(parents, prepend=-1))
            meeting = np.diff(first, append=len(members)).tolist()
            spreads.append(
                Spread(
                    members=len(members),
                    fewest=int(ranks.min()),
                    most=int(ranks.max()),
                    meeting=min((m for m in meeting if m > 1), default=1),
                )
            )
            members, ranks = parents[first], np.add.reduceat(ranks, first)
        return GroupShape(len(devices), tuple(spreads))

    def collective_ns(
        self, kind: CollectiveKind, groups: Iterable[GroupShape], size_bytes: float
    ) -> float:
        """Return the time of parallel groups: the worst of them."""
        check_collective(kind)
        if size_bytes == 0:
            return 0.0
        times_ns = (
            min(ns + line.time_ns(size_bytes) for ns, line in self.lines(kind, shape))
            for shape in groups
            if shape.size > 1
        )
        return max(times_ns, default=0.0)

    def no_slower(
        self, groups: frozenset[GroupShape], other: frozenset[GroupShape]
    ) -> bool:
        """Whether groups are some of the others, the worst of which counts."""
        return groups <= other

    def lines(self, kind: CollectiveKind, shape: GroupShape) -> Offers:
        """Return what a group takes by each algorithm on offer."""
        key = (kind, shape)
        if key not in self._known:
            self._known[key] = tuple(
                itertools.chain(*self.offered(kind, shape).values())
            )
        lines: Offers = self._known[key]
        return lines

    def offered(self, kind: CollectiveKind, shape: GroupShape) -> dict[str, Offers]:
        """Return the same by name; one with choices has several lines.

        ``shape`` has at least two ranks.
        """
        check_collective(kind)
        share = self.share(shape)
        launch_ns = self.levels[len(shape.levels) - 1].launch_ns
        offers = _nccl if self.algorithms == "nccl" else offered
        by_name: dict[str, Offers] = {
            name: ((launch_ns, line.rounded()),)
            for name, line in offers(share, kind).items()
        }
        if self.algorithms == "best" and share.even and share.nested:
            by_name["hierarchical"] = self._hierarchical(kind, share)
        return by_name

    def share(self, shape: GroupShape) -> Share:
        """Return what a group has of the network."""
        steps = []
        for spread, latency_fs, level in zip(
            shape.levels, self.latencies_fs, self.levels, strict=False
        ):
            port = level.bandwidth_bytes_per_s * level.fraction(spread.meeting)
            pair = level.peer_bandwidth_bytes_per_s
            if spread.meeting == 1:
                pair = None
            steps.append(Step(spread, latency_fs, port, pair))
        return Share(shape.size, tuple(steps))

    def _hierarchical(self, kind: CollectiveKind, share: Share) -> Offers:
        """Return a collective that goes through the levels one by one.

        An all-reduce is a reduce-scatter going up and an all-gather coming
        down (of two levels: Jia et al., *Highly Scalable Deep Learning
        Training System with Mixed-Precision*, 2018). Each level is launched
        apart, and has a part of the buffer that the levels below leave.
        """
        launch_ns, steps = 0.0, []
        ports = itertools.accumulate((x.port for x in share.steps), min)
        for level, (step, port) in enumerate(zip(share.steps, ports, strict=True)):
            g, ranks_below = step.spread.meeting, step.spread.fewest
            if g == 1:
                continue
            lone = step._replace(spread=Spread(g, 1, 1, g), port=port)
            kinds: tuple[CollectiveKind, ...] = (kind,)
            if kind == "all-reduce" and step is not share.steps[-1]:
                kinds = ("reduce-scatter", "all-gather")
            for half in kinds:
                launch_ns += self.levels[level].launch_ns
                shards = 1 if kind == "all-to-all" else ranks_below
                steps.append(
                    [
                        line._replace(ns_per_byte=line.ns_per_byte / shards)
                        for line in offered(Share(g, (lone,)), half).values()
                    ]
                )
        return tuple((launch_ns, line.rounded()) for line in sums(steps))

    def longest_ns(self, size_bytes: float, num_ranks: int) -> float:
        """Return a time that no transfer or collective exceeds, in ns.

        A ring takes two messages per rank and less than two buffers; others
        that are offered beside it may only be faster. A collective that goes
        level by level is no longer than that on each.
        """
        alpha_ns = max(link.alpha_ns for link in self.links)
        beta = min(
            min(
                level.bandwidth_bytes_per_s * level.least_fraction,
                level.peer_bandwidth_bytes_per_s or math.inf,
            )
            for level in self.levels
        )
        volume_ns = size_bytes / beta * NS_PER_S
        return len(self.links) * 4 * (num_ranks * alpha_ns + volume_ns)


def _nccl(share: Share, kind: CollectiveKind) -> dict[str, Line]:
    """Return collectives as NCCL runs them.

    Rings visit all members of a unit before they leave it; there are as many as the
    smallest unit has ranks, each leaving through a port of its own, and between members
    that are joined in pairs they go all ways alike. Above level 0 a small all-reduce
    takes trees, chains inside a node. Sources: Hu et al., *Demystifying NCCL*, 2025,
    arXiv 2507.04786, on ring and tree; Jeaugey, *Massively Scale Your Deep Learning
    Training with NCCL 2.4*, 2019, on double binary trees at full bandwidth.
    """
    if kind == "all-to-all":
        return {"direct": share.direct()}
    rings = Share(share.size, tuple(map(_all_ways, share.steps)))
    half = rings.rings()["ring"]
    if kind != "all-reduce":
        return {"rings": half}
    lines = {"rings": half.times(2)}
    if share.even and len(share.steps) > 1:
        lines["trees"] = _trees(rings).times(2)
    return lines


def _all_ways(step: Step) -> Step:
    """Return a level on which rings use the links to all peers."""
    if step.pair is None:
        return step
    reach = min(step.port, (step.spread.meeting - 1) * step.pair)
    return step._replace(port=reach, pair=None)


def _trees(share: Share) -> Line:
    """Return the way to the roots of the trees of an even group."""
    depth_fs, slope = 0, 0.0
    for level, step in enumerate(share.steps):
        g = step.spread.meeting
        depth = g - 1 if level == 0 else (g - 1).bit_length()
        depth_fs += depth * step.latency_fs
        slope = max(slope, NS_PER_S / (step.spread.fewest * step.port))
    return Line(depth_fs, slope)
