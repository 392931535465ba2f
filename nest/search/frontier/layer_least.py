"""What stages of layers take at least, by the memory that they have.

Frontiers of time and memory are merged layer by layer, as in
:mod:`nest.search.frontier.stages`, but what a change of layout takes is left
out. Then only how many layers of each kind a stage has matters, so a few
merges hold for all stages at every capacity: a bound of a level is looked up.

What some layers of a stage take, ``c``, and hold, ``m``, with the largest working set
``w``, is dropped if others of as many layers of each kind have no more ``c``, ``m`` and
``m + w``: layers to come add the same to ``c`` and ``m``, and with a working set ``x``
of theirs ``m + max(w, x)`` is the larger of ``m + w`` and ``m + x``. So the least cost
within a capacity is exact. Where too much is left two neighbors become one that takes,
holds and works with the least of both, so that what is found is still no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from nest.search.stages.dominance import drop_neighbours, non_dominated_sorted
from nest.search.stages.options import INFINITE, Ints

#: So much of as many layers of each kind is kept apart.
MOST = 2000


class Merged(NamedTuple):
    """Cost, memory and largest working set of some layers, arrays."""

    cost: Ints
    memory: Ints
    working: Ints

    def followed(self, layer: Merged, capacity: int) -> Merged:
        """Return what these and one layer more take, if it fits."""
        memory = np.add.outer(self.memory, layer.memory).reshape(-1)
        working = np.maximum.outer(self.working, layer.working).reshape(-1)
        fits = np.flatnonzero(memory + working <= capacity)
        cost = np.add.outer(self.cost, layer.cost).reshape(-1)
        merged = Merged(cost[fits], memory[fits], working[fits])
        return merged.unbeaten().thinned()

    def unbeaten(self) -> Merged:
        """Return what is no worse than others in something."""
        columns = [self.cost, self.memory, self.memory + self.working]
        group = np.zeros_like(self.cost)
        order = drop_neighbours(group, columns)
        survivors = order[
            non_dominated_sorted(group[order], [column[order] for column in columns])
        ]
        return Merged(*(column[survivors] for column in self))

    def stairs(self) -> Stairs:
        """Return the least cost by what is held."""
        held = self.memory + self.working
        order = np.lexsort((self.cost, held))
        cost = self.cost[order]
        falls = np.ones(len(cost), dtype=np.bool_)
        falls[1:] = cost[1:] < np.minimum.accumulate(cost)[:-1]
        return held[order][falls], cost[falls]

    def thinned(self) -> Merged:
        """Return at most :data:`MOST`, two in one where there are more."""
        merged = self
        while len(merged.cost) > MOST:
            pairs = np.arange(0, len(merged.cost), 2)
            merged = Merged(*(np.minimum.reduceat(x, pairs) for x in merged))
        return merged


#: What a stage holds, ascending, and the least cost from each on, falling.
Stairs = tuple[Ints, Ints]

_NONE = np.zeros(0, dtype=np.int64)


def least_costs(
    layers: Sequence[Merged], counts: Ints, most_layers: int, capacity: int
) -> list[Stairs]:
    """Return the least cost of stages by what they hold.

    Parameters
    ----------
    layers
        Options of every kind of layer.
    counts
        Layers of each kind in every stage.
    most_layers
        Stages with more are left out: nothing of them fits.
    capacity
        No stage has more memory.
    """
    empty = Merged(*(np.zeros(1, dtype=np.int64) for _ in range(3)))
    cache = {(0,) * counts.shape[1]: empty}
    # Kinds that are rare are merged last, so that most is shared.
    kinds = np.argsort(counts.sum(axis=0), kind="stable").tolist()
    stairs = []
    for row in map(tuple, counts.tolist()):
        if sum(row) > most_layers:
            stairs.append((_NONE, _NONE))
            continue
        todo = [row]
        while todo[-1] not in cache:
            last = todo[-1]
            kind = next(kind for kind in kinds if last[kind])
            todo.append((*last[:kind], last[kind] - 1, *last[kind + 1 :]))
        for less, more in pairwise(reversed(todo)):
            kind = next(kind for kind in kinds if less[kind] < more[kind])
            cache[more] = cache[less].followed(layers[kind], capacity)
        stairs.append(cache[row].stairs())
    return stairs


class LeastCosts:
    """The least cost of stages at every capacity.

    Parameters
    ----------
    stairs
        Of every stage.
    """

    def __init__(self, stairs: Sequence[Stairs]) -> None:
        self._first = np.cumsum([0, *(len(held) for held, _ in stairs)])
        held = np.concatenate([_NONE, *(held for held, _ in stairs)])
        #: Of the step in front of each.
        self._costs = np.concatenate(
            [np.zeros(1, dtype=np.int64), *(cost for _, cost in stairs)]
        )
        #: What stages hold is numbered, so that it fits one key with the
        #: stage, whatever it is.
        self._levels = np.unique(held)
        stage = np.repeat(np.arange(len(stairs)), np.diff(self._first))
        self._keys = self._key(stage, held)

    def _key(self, stage: Ints, room: Ints) -> Ints:
        level = np.searchsorted(self._levels, room, "right")
        key: Ints = stage * (len(self._levels) + 1) + level
        return key

    def of(self, stage: Ints, room: Ints) -> Ints:
        """Return the least cost of stages that have so much memory.

        :data:`~nest.search.stages.options.INFINITE` where none fits.
        """
        position = np.searchsorted(self._keys, self._key(stage, room), "right")
        costs: Ints = np.where(
            position > self._first[stage], self._costs[position], INFINITE
        )
        return costs
