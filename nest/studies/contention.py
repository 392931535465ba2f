"""Prices with less contention than the cost model has."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from nest.ir import GraphTopology
from nest.ir.graph import COLLECTIVES, CollectiveKind
from nest.topology import Block, ParallelGroups, Route
from nest.topology.graph.network import GraphNetwork, Prices
from nest.topology.protocol import Kinds


class Alone(GraphNetwork):
    """A network on which nothing ever shares a link."""

    def __init__(self, topology: GraphTopology) -> None:
        super().__init__(topology)
        self._alone: dict[object, Any] = {}

    @property
    def bounding(self) -> GraphNetwork:
        """Return this network, on which groups are alone already."""
        return self

    def groups(self, groups: ParallelGroups, kinds: Kinds = COLLECTIVES) -> Any:
        """Return the prices of each group by itself, of all kinds."""
        groups = groups._replace(tiled=False)
        key = ("alone", groups)
        if key not in self._alone:
            self._alone[key] = frozenset(
                self._alone_prices(tuple(ranks))
                for ranks in groups.groups()
                if len(ranks) > 1
            )
        return self._alone[key]

    def _alone_prices(self, ranks: tuple[int, ...]) -> Prices:
        home = tuple(self._home(np.array([ranks]))[0].tolist())
        if home not in self._alone:
            self._alone[home] = self.prices([home])
        prices: Prices = self._alone[home]
        return prices

    def collective_ns(
        self, kind: CollectiveKind, groups: Any, size_bytes: float
    ) -> float:
        """Return the time of the slowest group."""
        time_ns = super().collective_ns
        return max((time_ns(kind, x, size_bytes) for x in groups), default=0.0)

    def no_slower(self, groups: Any, other: Any) -> bool:
        """Whether groups are some of the others."""
        return bool(groups <= other)

    def route(self, receiver: Block, sender: Block) -> Route:
        """Say how each replica receives, none disturbing another."""
        pairs = zip(_apart(receiver), _apart(sender), strict=True)
        return frozenset().union(*itertools.starmap(super().route, pairs))

    def inside(self, block: Block) -> Route:
        """Say how each replica's block hands on to itself."""
        return frozenset().union(*map(super().inside, _apart(block)))


def _apart(block: Block) -> Iterator[Block]:
    """Yield the block of every replica."""
    for start, _ in block.ranges():
        yield Block(1, block.replicas * block.pitch, start, block.devices)
