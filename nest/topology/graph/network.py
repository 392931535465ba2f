"""Networks that are graphs: what plans on them ask."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from nest.ir.base import FAST_BYTES_PER_S
from nest.ir.graph import COLLECTIVES, CollectiveKind, check_collective
from nest.ir.graph_topology import GraphTopology
from nest.topology.alphabeta import FS_PER_NS, NS_PER_S, Line, rounded, undominated
from nest.topology.graph.algorithms import (
    ALL_COMPONENTS,
    COMPONENT_OF,
    Component,
    Components,
    Places,
    algorithms,
)
from nest.topology.graph.phases import Flows, busiest
from nest.topology.graph.routes import Routes
from nest.topology.graph.shifts import SMALL
from nest.topology.graph.symmetry import Rotation, rotations
from nest.topology.protocol import Block, Kinds, Link, ParallelGroups, Route

#: Lines of algorithms, by kind and by name.
Offered = Mapping[Component, Mapping[str, tuple[Line, ...]]]


#: Sums of floats are below exact ones times this.
_ABOVE = 1 + 1e-10


class Prices(NamedTuple):
    """What collectives of some groups take: lines, the least of which counts.

    ``half`` is what a reduce-scatter or an all-gather takes. ``None`` is not priced.
    """

    half: tuple[Line, ...] | None = ()
    all_reduce: tuple[Line, ...] | None = ()
    all_to_all: tuple[Line, ...] | None = ()

    def lines(self, kind: CollectiveKind) -> tuple[Line, ...]:
        """Return those of a kind."""
        check_collective(kind)
        lines = self[ALL_COMPONENTS.index(COMPONENT_OF[kind])]
        assert lines is not None, f"{kind} is not priced"
        return lines


#: Of groups of one rank.
NOTHING = Prices()


class GraphNetwork:
    """Times on a :class:`~nest.ir.graph_topology.GraphTopology`.

    The rules are in docs/cost-model.md, under "Graphs". Blocks and groups
    are alike that rotations of the rank order take to each other, as far as
    :mod:`nest.topology.graph.symmetry` finds any.
    """

    tree = None
    dear: ClassVar[bool] = True

    def __init__(self, topology: GraphTopology) -> None:
        self.routes = Routes(topology)
        self.places = Places.of(topology)
        self.launch_ns = topology.launch_ns
        self._has_coordinates = bool(topology.coordinates)
        self.num_devices = len(topology.ranks)
        self.links: tuple[Link, ...] = (self._fastest(), self._slowest())
        self._prices: dict[object, Prices] = {}
        self._known: dict[object, Prices] = {}
        self._moves: dict[tuple[Block, Block], Route] = {}
        self._alike: dict[Block, Block] = {}
        self._is_alone = False

    @cached_property
    def bounding(self) -> GraphNetwork:
        """A network on which one of parallel groups runs its collectives alone.

        No price is above that of all groups at once, and far fewer groups are priced.
        A network that is small, or has no coordinates, bounds itself: its own prices
        are quick to find, and tighter.
        """
        if self.num_devices <= SMALL or not self._has_coordinates:
            return self
        other = copy.copy(self)
        vars(other).update({"_prices": {}, "_known": {}, "_is_alone": True})
        return other

    @cached_property
    def rotations(self) -> list[Rotation]:
        """Symmetries of the rank order, that of the whole order first."""
        return rotations(self.routes, self.places)

    @cached_property
    def period(self) -> int:
        """Shifting all blocks by so many devices changes no group's time."""
        return self.rotations[0].step

    # What messages take

    def _fastest(self) -> Link:
        """Return a link that is no slower than any route.

        A device gets at least half of its message from others.
        """
        latency_fs = min((arc.latency_fs for arc in self.routes.arcs), default=0)
        max_entering = max(map(self.routes.entering, range(self.num_devices)))
        return Link(
            self.launch_ns + latency_fs / FS_PER_NS,
            2 * max_entering or FAST_BYTES_PER_S,
        )

    def _slowest(self) -> Link:
        """Return a link that is no faster than any route.

        A path visits no node twice, and no arc carries more than a message
        for each device.
        """
        latency_fs = max((arc.latency_fs for arc in self.routes.arcs), default=0)
        nodes = len(self.routes.forwards)
        min_bandwidth = min(self.routes.bandwidths, default=FAST_BYTES_PER_S)
        return Link(
            self.launch_ns + nodes * latency_fs / FS_PER_NS,
            float(min_bandwidth) / (self.num_devices + 1),
        )

    def route(self, receiver: Block, sender: Block) -> Route:
        """Say how a block receives from another one.

        All replicas' transfers at once, a message for each device of the
        receiver, in equal parts from all devices of the sender.
        """
        first = min(receiver.offset, sender.offset)
        shift = first - first % self.period
        receiver, sender = key = (
            receiver._replace(offset=receiver.offset - shift),
            sender._replace(offset=sender.offset - shift),
        )
        if key not in self._moves:
            home = self._move_home(receiver, sender)
            if home not in self._moves:
                self._moves[home] = frozenset({self.link(*home)})
            self._moves[key] = self._moves[home]
        return self._moves[key]

    def fastest(self, receiver: Block, sizes: Sequence[int], *, forward: bool) -> Route:
        """Return a route that is no slower than those from blocks beside one.

        In both latency and bandwidth as good as the best of them: each device of the
        receiver gets a whole message from others, over the arcs that enter it, and the
        largest sender sends all of them over the arcs that leave its devices.
        """
        first, end = receiver.offset, receiver.offset + receiver.devices
        entering = min(map(self.routes.entering, range(first, end)))
        sent = self._max_leaving * max(sizes) / receiver.devices
        beta = rounded(min(entering, sent) * _ABOVE)
        return frozenset({Link(self.links[0].alpha_ns, beta)})

    @cached_property
    def _max_leaving(self) -> float:
        """The most that leaves any device, in bytes/s."""
        return max(map(self.routes.leaving, range(self.num_devices)))

    def inside(self, block: Block) -> Route:
        """Say how a block hands on to itself, in all replicas at once."""
        return self.route(block, block)

    def _move_home(self, receiver: Block, sender: Block) -> tuple[Block, Block]:
        """Return two blocks with the same route, one pair for many.

        Symmetries take both as far to the front as they stay whole.
        """
        widest = max(receiver.devices, sender.devices)
        spans = [*receiver.ranges(), *sender.ranges()]
        back = 0
        for rotation in self.rotations:
            if rotation.length < widest:
                break
            shift = rotation.steps_back(spans) * rotation.step
            if shift:
                spans = [(start - shift, end - shift) for start, end in spans]
                back += shift
        return (
            receiver._replace(offset=receiver.offset - back),
            sender._replace(offset=sender.offset - back),
        )

    def link(self, receiver: Block, sender: Block) -> Link:
        """Return what a message takes, all of the sender's devices sending."""
        here, there = (
            np.array([start for start, _ in block.ranges()])[:, None]
            + np.arange(block.devices)
            for block in (receiver, sender)
        )
        targets = np.repeat(here, sender.devices, axis=1).ravel()
        sources = np.tile(there, receiver.devices).ravel()
        moves = sources != targets
        if not moves.all():
            sources, targets = sources[moves], targets[moves]
        if not len(sources):
            return Link(self.launch_ns, FAST_BYTES_PER_S)
        flows = Flows.of(sources, targets, 1 / sender.devices)
        latency_fs = int(self.routes.latencies_fs(flows.sources, flows.targets).max())
        beta = NS_PER_S / busiest(self.routes, flows)
        return Link(self.launch_ns + latency_fs / FS_PER_NS, rounded(beta))

    # What collectives take

    def groups(self, groups: ParallelGroups, kinds: Kinds = COLLECTIVES) -> Prices:
        """Return what collectives of some kinds take on the groups."""
        joined = groups.joined and groups.block.replicas > 1
        if groups.size == 1 and not joined:
            return NOTHING
        groups = groups._replace(block=self.alike(groups.block))
        components = frozenset(COMPONENT_OF[kind] for kind in kinds)
        key = (groups, components)
        if key not in self._prices:
            # Other ways to say so may give the same groups, or like ones.
            ranks = _ranks(groups)
            ranks = self._home(ranks[:1] if self._is_alone else ranks)
            home = (ranks.shape, ranks.tobytes(), components)
            if home not in self._known:
                self._known[home] = self.prices(ranks.tolist(), components)
            self._prices[key] = self._known[home]
        return self._prices[key]

    def _home(self, groups: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return groups that cost the same, one for many that do.

        Symmetries take the first rank as far to the front as they can.
        """
        for rotation in self.rotations:
            groups = rotation.home(groups, int(groups[0, 0]))
        return groups[np.argsort(groups[:, 0])]

    def prices(
        self, groups: Sequence[Sequence[int]], components: Components = ALL_COMPONENTS
    ) -> Prices:
        """Return what collectives take on groups of several ranks each."""
        lowest = {
            component: undominated(itertools.chain(*lines.values()))
            for component, lines in self.offered(groups, components).items()
        }
        return Prices(*map(lowest.get, ALL_COMPONENTS))

    def collective_ns(
        self, kind: CollectiveKind, groups: Prices, size_bytes: float
    ) -> float:
        """Return the time of the best algorithm on all groups at once."""
        lines = groups.lines(kind)
        if not lines or size_bytes == 0:
            return 0.0
        return self.launch_ns + best_ns(lines, size_bytes)

    def no_slower(self, groups: Prices, other: Prices) -> bool:
        """Whether every line of the others is above one of the groups."""
        return all(
            not these or (bool(lines) and all(_above(x, these) for x in lines or ()))
            for these, lines in zip(groups, other, strict=True)
        )

    def offered_ns(
        self, kind: CollectiveKind, groups: Sequence[Sequence[int]], size_bytes: float
    ) -> dict[str, float]:
        """Return the time of every algorithm on offer, by name.

        In the order in which ties are decided; none if nothing is to do.
        """
        return self.times_ns(kind, self.offered(groups), size_bytes)

    def offered(
        self, groups: Sequence[Sequence[int]], components: Components = ALL_COMPONENTS
    ) -> Offered:
        """Return what all algorithms on offer take on groups."""
        working = [ranks for ranks in groups if len(ranks) > 1]
        if not working:
            return {}
        return algorithms(
            *(self.routes, working, self.places, components),
            beside_others=self._is_alone,
        )

    def times_ns(
        self, kind: CollectiveKind, offered: Offered, size_bytes: float
    ) -> dict[str, float]:
        """Return the times of algorithms on offer, by name.

        In the order in which ties are decided; none if nothing is to do.
        """
        check_collective(kind)
        if size_bytes == 0:
            return {}
        return {
            name: self.launch_ns + best_ns(lines, size_bytes)
            for name, lines in offered.get(COMPONENT_OF[kind], {}).items()
        }

    def alike(self, block: Block) -> Block:
        """Return the first block on which all groups cost the same.

        What is tiled over a replica depends on the place modulo ``n``, where
        there is room for more than the block.
        """
        if block not in self._alike:
            home = block
            tile = block.devices if block.pitch >= 2 * block.devices else 1
            for rotation in self.rotations:
                steps = rotation.steps_back(home.ranges())
                whole = math.lcm(rotation.step, tile)
                shift = steps * rotation.step // whole * whole
                home = home._replace(offset=home.offset - shift)
            self._alike[block] = home
        return self._alike[block]

    def longest_ns(self, size_bytes: float, num_ranks: int) -> float:
        """Return a time that no transfer or collective exceeds, in ns.

        A ring takes two messages per rank, and no arc carries more than two
        buffers per rank. All pairs take fewer of each.
        """
        alpha_ns, beta = self.links[-1][:2]
        ranks = max(num_ranks, 1)
        volume_ns = size_bytes / beta * NS_PER_S / self.num_devices
        return 2 * ranks * (alpha_ns + volume_ns)


def _ranks(groups: ParallelGroups) -> npt.NDArray[np.int64]:
    """Return the devices of all groups, a row each, in their order."""
    _, size, stride = groups[:3]
    tile = size * stride
    inside = (
        np.arange(0, groups.block.devices, tile)[:, None, None]
        + np.arange(stride)[:, None]
        + np.arange(0, tile, stride)
    ).reshape(-1, 1, size)
    starts = np.array(
        [[start for start, _ in block.ranges()] for block in groups.every_block()]
    )
    ranks: npt.NDArray[np.int64] = starts[:, None, :, None] + inside
    whole = size * groups.block.replicas if groups.joined else size
    return ranks.reshape(-1, whole)


def _above(line: Line, lines: Iterable[Line]) -> bool:
    """Whether a line is nowhere below some one of others."""
    return any(
        other.latency_fs <= line.latency_fs and other.ns_per_byte <= line.ns_per_byte
        for other in lines
    )


def best_ns(lines: Iterable[Line], size_bytes: float) -> float:
    """Return the time on the lowest line."""
    return min(line.time_ns(size_bytes) for line in lines)
