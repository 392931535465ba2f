"""Which groups a layer communicates in, as keys of the network."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Mapping

from nest.cost.axes import groups_of
from nest.ir.plan import Strategy
from nest.topology.protocol import Block, Network, ParallelGroups

#: Keys of the network for all that :func:`~nest.cost.axes.groups_of` names.
GroupKeys = Mapping[str, Hashable]


class GroupTable:
    """The groups of every strategy on every block; remembers them."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._known: dict[object, GroupKeys] = {}
        self._numbers: dict[object, int] = {}
        self._number_of: dict[object, int] = {}

    def keys(self, strategy: Strategy, block: Block) -> GroupKeys:
        """Return the key of the groups of every axis and purpose."""
        block = self._network.alike(block)
        key = (strategy.spread, block)
        if key not in self._known:
            self._known[key] = {
                name: self._network.groups(ParallelGroups(block, *groups))
                for name, groups in groups_of(strategy).items()
            }
        return self._known[key]

    def number(self, strategy: Strategy, block: Block) -> int:
        """Return a number that stands for all of a strategy's groups.

        Where it is the same on two blocks, with as many replicas, every
        collective takes the same on both.
        """
        block = self._network.alike(block)
        key = (strategy.spread, block)
        if key not in self._number_of:
            groups = tuple(self.keys(strategy, block).values())
            self._number_of[key] = self._numbers.setdefault(groups, len(self._numbers))
        return self._number_of[key]

    def fastest(self, strategy: Strategy, blocks: Iterable[Block]) -> list[Block]:
        """Return some of blocks with as many replicas, that hold the least.

        For every other one of them there is one of these on which no
        collective of the strategy is slower.
        """
        best_blocks: list[Block] = []
        for block in blocks:
            if not any(self._no_slower(strategy, x, block) for x in best_blocks):
                best_blocks = [
                    x for x in best_blocks if not self._no_slower(strategy, block, x)
                ]
                best_blocks.append(block)
        return best_blocks

    def _no_slower(self, strategy: Strategy, block: Block, other: Block) -> bool:
        """Whether no collective is slower on a block than on another."""
        here, there = (self.keys(strategy, x).values() for x in (block, other))
        keys = zip(here, there, strict=True)
        return all(itertools.starmap(self._network.no_slower, keys))
