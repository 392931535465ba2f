"""Tree networks: levels, group shapes, and the times that follow."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from nest.ir.cluster import Hierarchy
from nest.ir.graph import CollectiveKind
from nest.topology.alphabeta import flat_collective_ns, transfer_ns


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
    """

    size: int
    level: int
    counts: tuple[int, ...] | None


class HierarchyNetwork:
    """Times on a :class:`~nest.ir.cluster.Hierarchy`.

    A path that climbs to level ``L`` is as fast as its slowest link, hence
    its bandwidth is the minimum over levels ``0..L``; its latency is the one
    given for ``L``.
    """

    def __init__(self, topology: Hierarchy) -> None:
        levels = topology.levels
        self.fan_outs = tuple(level.fan_out for level in levels)
        self.capacities = topology.capacities
        self.latencies_ns = tuple(level.latency_ns for level in levels)
        self.raw_bandwidths = tuple(
            level.bandwidth_bytes_per_s for level in levels
        )
        self.bandwidths = tuple(itertools.accumulate(self.raw_bandwidths, min))

    def level(self, first: int, last: int) -> int:
        """Return the lowest level whose subtree holds ``first..last``."""
        for level, capacity in enumerate(self.capacities):
            if first // capacity == last // capacity:
                return level
        raise ValueError(f"devices {first} and {last} are not in the cluster")

    def transfer_ns(self, level: int, size_bytes: float) -> float:
        """Time of one message between devices that meet at ``level``."""
        return transfer_ns(
            size_bytes, self.latencies_ns[level], self.bandwidths[level]
        )

    def shape(self, devices: Sequence[int]) -> GroupShape:
        """Return the shape of a group of ascending device numbers."""
        level = self.level(devices[0], devices[-1])
        counts: list[int] = []
        units: Iterable[int] = devices
        for fan_out in self.fan_outs[: level + 1]:
            members = Counter(unit // fan_out for unit in units)
            if len(set(members.values())) > 1:
                return GroupShape(len(devices), level, None)
            counts.append(next(iter(members.values())))
            units = members
        return GroupShape(len(devices), level, tuple(counts))

    def collective_ns(
        self,
        kind: CollectiveKind,
        shapes: Iterable[GroupShape],
        size_bytes: float,
    ) -> float:
        """Return the time of parallel groups: the worst of them.

        Each group uses the best of the flat algorithms of
        :func:`~nest.topology.alphabeta.flat_collective_ns` at its level and
        the hierarchical one: with ``g_l`` members at level ``l`` and
        ``X_0 = X``, ``X_{l+1} = X_l / g_l``, an all-reduce is a
        reduce-scatter of ``X_l`` going up, an all-reduce at the top, and an
        all-gather of ``X_l`` coming down (the two-level case is Jia et al.,
        *Highly Scalable Deep Learning Training System with Mixed-Precision*,
        2018); an all-to-all moves ``X`` once per level.
        """
        return max(
            (self._group_ns(kind, shape, size_bytes) for shape in shapes),
            default=0.0,
        )

    def _group_ns(
        self, kind: CollectiveKind, shape: GroupShape, size_bytes: float
    ) -> float:
        top = shape.level
        flat = flat_collective_ns(
            kind,
            shape.size,
            size_bytes,
            self.latencies_ns[top],
            self.bandwidths[top],
        )
        if shape.counts is None or top == 0:
            return flat
        total = 0.0
        piece = float(size_bytes)
        for level, count in enumerate(shape.counts):
            link = (self.latencies_ns[level], self.bandwidths[level])
            if kind == "all-reduce" and level < top:
                total += flat_collective_ns(
                    "reduce-scatter", count, piece, *link
                ) + flat_collective_ns("all-gather", count, piece, *link)
            else:
                total += flat_collective_ns(kind, count, piece, *link)
            if kind != "all-to-all":
                piece /= count
        return min(flat, total)
