"""Predecessor-closed sets of the graph: the states of the program.

A stage is the difference ``b - a`` of two closed sets ``a ⊂ b``; a pipeline is a chain
of closed sets from the empty one to the whole graph. A chain of ``V`` layers has ``V +
1`` of them; ``w`` parallel branches of ``V/w`` layers have ``(V/w + 1)^w``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from nest.errors import UnsupportedProblemError
from nest.ir.graph import Graph, enumerate_masks

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

#: Above this many closed sets the pairs take too much time and memory.
MAX_CLOSED_SETS = 1000

#: How far the sets are counted for the message that refuses a graph.
MAX_COUNTED = 100_000


@dataclass(frozen=True)
class ClosedSets:
    """All closed sets, smallest first, and the pairs ``a ⊂ b``."""

    #: Boolean ``(sets, layers)``: is the layer in the set?
    member: NDArray[np.bool_]
    #: Positions of ``a`` and ``b`` of every pair, ordered by ``(a, b)``.
    pair_source: Ints
    pair_target: Ints

    @property
    def count(self) -> int:
        """Number of closed sets; the last one is the whole graph."""
        return len(self.member)

    @cached_property
    def first(self) -> Ints:
        """The first pair that starts at each set, and their number."""
        return np.searchsorted(self.pair_source, np.arange(self.count + 1))

    def sums(self, values: Sequence[int]) -> Ints:
        """Sum a whole number per layer over every ``b - a``."""
        total = self.member.astype(np.int64) @ np.array(values, dtype=np.int64)
        sums: Ints = total[self.pair_target] - total[self.pair_source]
        return sums

    def crossed(self, source: int, target: int) -> tuple[Bools, Bools]:
        """Return which ``b - a`` an edge enters, and which ones it leaves."""
        tail, head = self.member[:, source], self.member[:, target]
        a, b = self.pair_source, self.pair_target
        # Where the target is, there is the source.
        return tail[a] & head[b] & ~head[a], tail[b] & ~tail[a] & ~head[b]

    def inside(self, pair: int, order: Iterable[int]) -> list[int]:
        """Return the layers of a pair's ``b - a``, in a given order."""
        a, b = self.pair_source[pair], self.pair_target[pair]
        inside = self.member[b] & ~self.member[a]
        return [layer for layer in order if inside[layer]]


def closed_sets(
    graph: Graph, limit: int = MAX_CLOSED_SETS, together: Sequence[int] = ()
) -> ClosedSets:
    """Enumerate the closed sets of a graph.

    Parameters
    ----------
    graph, limit
        The graph, and how many sets there may be.
    together
        Positions of layers that no two stages may part: sets with some of
        them but not all are left out, as they end no stage.

    Raises
    ------
    UnsupportedProblemError
        If there are more than ``limit``; the text says how many.
    """
    edges = graph.index_edges()
    masks = enumerate_masks(len(graph.layers), edges, max(limit, MAX_COUNTED))
    if len(masks) > limit:
        complete = masks[-1] == (1 << len(graph.layers)) - 1
        raise UnsupportedProblemError(
            f"$.graph: expected at most {limit} predecessor-closed sets, got "
            f"{'' if complete else 'more than '}{len(masks)}; merge layers "
            f"of parallel branches, use another solver, or raise "
            f"dp.max_closed_sets"
        )
    group = sum(1 << layer for layer in together)
    masks = [mask for mask in masks if mask & group in (0, group)]
    num_layers = len(graph.layers)
    member = np.array(
        [[mask >> layer & 1 for layer in range(num_layers)] for mask in masks],
        dtype=np.bool_,
    )
    sources, targets = [], []
    absent = ~member
    for a in range(len(masks)):
        # a ⊂ b: no layer of a is absent from b.
        supersets = ~(absent & member[a]).any(axis=1)
        supersets[: a + 1] = False
        larger = np.flatnonzero(supersets)
        sources.append(np.full(len(larger), a, dtype=np.int64))
        targets.append(larger.astype(np.int64))
    return ClosedSets(member, np.concatenate(sources), np.concatenate(targets))


def chain_sets(order: Sequence[int], together: Sequence[int] = ()) -> ClosedSets:
    """Return the closed sets that are prefixes of an order of the layers.

    Without those that have some of the layers ``together`` but not all.
    """
    size = len(order)
    rank = np.empty(size, dtype=np.int64)
    rank[list(order)] = np.arange(size)
    member = np.arange(size + 1)[:, None] > rank[None, :]
    group = member[:, list(together)]
    member = member[group.all(axis=1) | ~group.any(axis=1)]
    source, target = np.triu_indices(len(member), 1)
    return ClosedSets(member, source.astype(np.int64), target.astype(np.int64))
