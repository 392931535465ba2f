"""What the rest of the project asks a network, and in which terms.

A network says how long a transfer between two blocks takes and how long collectives of
groups that run at the same time, and which blocks are alike. What it is made of stays
inside: routes and groups are opaque, hashable keys, and equal keys cost the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

from nest.ir.graph import COLLECTIVES, CollectiveKind

#: Kinds of collectives that groups run.
Kinds = Collection[CollectiveKind]


class Block(NamedTuple):
    """A stage's devices: ``[qP + k, qP + k + n)`` of each replica ``q``.

    There are ``R`` replicas at a pitch of ``P``; ``k`` is the offset, ``n`` the number
    of devices.
    """

    replicas: int
    pitch: int
    offset: int
    devices: int

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Yield (first device, end) in every replica."""
        for replica in range(self.replicas):
            start = replica * self.pitch + self.offset
            yield start, start + self.devices

    def before(self, devices: int) -> Block:
        """Return the block of so many devices in front of this one."""
        return self._replace(offset=self.offset - devices, devices=devices)

    def behind(self, devices: int) -> Block:
        """Return the block of so many devices behind this one."""
        return self._replace(offset=self.offset + self.devices, devices=devices)


class ParallelGroups(NamedTuple):
    """Groups that run a collective at the same time."""

    #: Where; in every replica.
    block: Block
    #: Ranks of a group inside the block, and how far they are apart. ``stride``
    #: interleaved groups fill ``size * stride`` consecutive devices, and such fillings
    #: tile the block.
    size: int
    stride: int
    #: Whether a group spans the replicas: its ranks are those at the same places in all
    #: of them.
    joined: bool = False
    #: Whether other stages do the same meanwhile: as if every replica were full of such
    #: blocks, at the places that are equal modulo ``n``.
    tiled: bool = False

    def groups(self) -> Iterator[list[int]]:
        """Yield the devices of every group, ascending."""
        return map(self.group_from, self.first_devices())

    def first_devices(self) -> Iterator[int]:
        """Yield the first device of every group."""
        tile = self.size * self.stride
        for block in self.every_block():
            replicas = 1 if self.joined else block.replicas
            starts = [start for start, _ in block._replace(replicas=replicas).ranges()]
            for first in range(0, block.devices, tile):
                for shift in range(first, first + self.stride):
                    for start in starts:
                        yield start + shift

    def group_from(self, first: int) -> list[int]:
        """Return the devices of the group whose first device is given."""
        end = first + self.size * self.stride
        inside = range(first, end, self.stride)
        replicas = self.block.replicas if self.joined else 1
        block = self.block._replace(offset=0, replicas=replicas)
        return [start + device for start, _ in block.ranges() for device in inside]

    def every_block(self) -> Iterator[Block]:
        """Yield the blocks that have such groups, that of the stage or all."""
        _, pitch, offset, devices = self.block
        if not self.tiled or pitch < offset + devices:
            yield self.block
            return
        for start in range(offset % devices, pitch - devices + 1, devices):
            yield self.block._replace(offset=start)


class Link(NamedTuple):
    """Messages of ``X`` bytes, which take ``alpha_ns + X w / beta``.

    ``alpha_ns`` is latency and launch, ``beta`` the bandwidth in bytes/s. So many
    receivers get a message each from so many senders, in lowest terms: ``w = receivers
    / senders``, 1 where each has a sender to itself.
    """

    alpha_ns: float
    beta: float
    receivers: int = 1
    senders: int = 1


#: The links that the replicas' messages take at the same time; the message
#: takes as long as the slowest of them.
Route = frozenset[Link]


class Network(Protocol):
    """Times of transfers and collectives on one cluster's network."""

    #: Whether prices take longer to find than most searches that need them.
    dear: ClassVar[bool]
    #: Links that every route lies between: none is faster in anything than
    #: all of these, nor slower.
    links: tuple[Link, ...]

    @property
    def tree(self) -> TreeNetwork | None:
        """The network itself if it is a tree of levels, else ``None``."""

    @property
    def bounding(self) -> Network:
        """A network on which no collective is slower, and groups are cheap to price."""

    @property
    def period(self) -> int:
        """Shifting all blocks by so many devices changes no group's time."""

    def route(self, receiver: Block, sender: Block) -> Route:
        """Return how a block receives from another one, in each replica."""

    def fastest(self, receiver: Block, sizes: Sequence[int], *, forward: bool) -> Route:
        """Return a route that is no slower than those from blocks beside one.

        ``sizes`` has the devices of such blocks, at least one; they are in front of the
        receiver if ``forward``, else behind it.
        """

    def inside(self, block: Block) -> Route:
        """Return how a block hands on to itself, in each replica."""

    def groups(self, groups: ParallelGroups, kinds: Kinds = COLLECTIVES) -> Any:
        """Return a hashable key for groups; equal keys take equal times.

        They do so in collectives of the given ``kinds``; the key has no times of
        others. Groups of one rank, which communicate nothing, have the key of no
        groups.
        """

    def collective_ns(
        self, kind: CollectiveKind, groups: Any, size_bytes: float
    ) -> float:
        """Return the time of a collective on all groups at once, in ns.

        ``groups`` is a key of :meth:`groups`, ``size_bytes`` the whole buffer; 0 bytes
        take no time.
        """

    def no_slower(self, groups: Any, other: Any) -> bool:
        """Whether collectives on groups are known to be as fast as on others.

        Of every kind and size, given two keys of :meth:`groups` for equal kinds.
        """

    def alike(self, block: Block) -> Block:
        """Return the first block on which all groups cost the same."""

    def longest_ns(self, size_bytes: float, num_ranks: int) -> float:
        """Return a time that no transfer or collective exceeds, in ns."""


class TreeNetwork(Protocol):
    """What a tree of levels has beyond other networks.

    ``latencies_ns`` and ``raw_bandwidths`` are those of the levels from the device up,
    the latter in bytes/s for each device.
    """

    latencies_ns: tuple[float, ...]
    raw_bandwidths: tuple[float, ...]

    def level(self, first: int, last: int) -> int:
        """Return the lowest level whose subtree holds ``first..last``."""

    def link(self, first: int, last: int) -> Link:
        """Return the link between devices ``first`` and ``last``."""
