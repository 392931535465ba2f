"""Zones: where in a replica the devices are of the same types.

Of which types a stage's devices are, in all replicas, depends on where it
begins and ends. A *zone* is a run of offsets with devices of the same types, a
*span* are the zones that a stage has devices in, the first and the last. Where
all devices are of one type there is one zone and one span.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nest.cost.model import Block
from nest.cost.space import BatchSplit
from nest.ir.cluster import Cluster

Ints = NDArray[np.int64]

#: More zones are taken for one, whose devices may be of any type.
MAX_ZONES = 4

#: A Lagrange multiplier for the devices of each zone.
Multipliers = tuple[int, ...]


class Span(NamedTuple):
    """The zones that a stage has devices in: the first and the last."""

    first: int
    last: int


class Site(NamedTuple):
    """Of which types the devices of a stage are."""

    #: All of them; ``None`` where they may be any.
    types: tuple[int, ...] | None
    #: Those that all its devices in some replica are of.
    alone: tuple[int, ...]


class Zones:
    """The zones of a replica.

    Parameters
    ----------
    cluster, split
        The devices, and how replicas share them.

    Attributes
    ----------
    starts, ends
        Offsets: where zones begin and end.
    spans
        What a stage may span.
    sites
        Of which types the devices of every span are.
    """

    def __init__(self, cluster: Cluster, split: BatchSplit) -> None:
        self.devices = split.devices
        bounds, types = _changes(cluster, split)
        if len(types) > MAX_ZONES:
            bounds, types = [0, split.devices], [()]
        self.starts, self.ends = bounds[:-1], bounds[1:]
        self.spans = [
            Span(first, last)
            for first in range(len(types))
            for last in range(first, len(types))
        ]
        self.sites = [
            _site(
                cluster,
                Block(
                    split.replicas,
                    split.devices,
                    self.starts[first],
                    self.ends[last] - self.starts[first],
                ),
            )
            if len(types) > 1 or types != [()]
            else Site(None, ())
            for first, last in self.spans
        ]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Devices of every zone."""
        return tuple(
            end - start for start, end in zip(self.starts, self.ends, strict=True)
        )

    @property
    def free(self) -> Multipliers:
        """Multipliers that are 0 in every zone."""
        return (0,) * len(self.starts)

    def window(self, span: Span, size: Ints) -> tuple[Ints, Ints]:
        """Return the first and last offsets of stages with so many devices.

        There are none where the last is below the first.
        """
        first, last = span
        low = np.full_like(size, self.starts[first])
        high = self.ends[last] - size
        if first < last:
            low = np.maximum(low, self.starts[last] + 1 - size)
            high = np.minimum(high, self.ends[first] - 1)
        return low, high

    def shares(self, span: Span, size: Ints, multipliers: Multipliers) -> list[Ints]:
        """Return how many devices of each zone stages take at least.

        Of all ways to stand across the zones the cheapest.
        """
        first, last = span
        shares = [np.zeros_like(size) for _ in multipliers]
        if first == last:
            shares[first] = size
            return shares
        rest = size.copy()
        for zone in range(first + 1, last):
            shares[zone] = np.full_like(size, self.sizes[zone])
            rest -= self.sizes[zone]
        cheap, other = first, last
        if multipliers[last] < multipliers[first]:
            cheap, other = last, first
        shares[cheap] = np.minimum(rest - 1, self.sizes[cheap])
        shares[other] = rest - shares[cheap]
        return shares

    def charge(self, span: Span, size: Ints, multipliers: Multipliers) -> Ints:
        """Return what stages pay for their devices at least."""
        shares = self.shares(span, size, multipliers)
        paid: Ints = sum(
            (p * share for p, share in zip(multipliers, shares, strict=True)),
            np.zeros_like(size),
        )
        return paid

    def paid(self, multipliers: Multipliers) -> Ints:
        """Return what the devices in front of every offset cost."""
        of_device = np.repeat(np.array(multipliers, dtype=np.int64), self.sizes)
        return np.concatenate(([0], np.cumsum(of_device)))


def _site(cluster: Cluster, block: Block) -> Site:
    """Return the types of stages anywhere on a block and to both its ends."""
    types_of_ends = {cluster.types_in([span]) for span in block.ranges()}
    return Site(
        tuple(
            sorted({device_type for types in types_of_ends for device_type in types})
        ),
        tuple(sorted(types[0] for types in types_of_ends if len(types) == 1)),
    )


def _changes(
    cluster: Cluster, split: BatchSplit
) -> tuple[list[int], Sequence[tuple[int, ...]]]:
    """Return where the types of a replica's devices change, and the types."""
    stride = split.devices
    bounds = {0, stride}
    for start, _, _ in cluster.runs:
        if start < stride * split.replicas:
            bounds.add(start % stride)
    starts: list[int] = []
    types: list[tuple[int, ...]] = []
    for start, end in pairwise(sorted(bounds)):
        block = Block(split.replicas, stride, start, end - start)
        here = cluster.types_in(block.ranges())
        if not types or here != types[-1]:
            starts.append(start)
            types.append(here)
        if len(types) > MAX_ZONES:
            break
    return [*starts, stride], types
