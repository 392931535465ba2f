"""Where plans can be cut: closed sets, and the pairs that bound a stage."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from formulations.graph import GraphFacts
from nest.cost.model import CostModel
from nest.cost.space import undivided

Integers = NDArray[np.int64]

#: More closed sets than that have no path form.
MAX_SETS = 400


class Cuts:
    """The predecessor-closed sets of a graph, and pairs of them.

    - ``sets``: every closed set as a bit mask of layers, smaller ones first; the first
      is empty, the last is all layers.
    - ``tails``, ``heads``: positions of the sets of every pair that a stage can lie
      between: the first is a part of the second, and no rule about whole plans forbids
      the difference. Ascending by ``tails``.
    - ``crossing``: for each set, bytes per sample of the tensors that cross behind it,
      by producer.
    - ``sizes``: distinct tuples of such sizes, ascending; ``size_of`` is the position
      of that of each set.
    """

    def __init__(self, model: CostModel, facts: GraphFacts) -> None:
        self.model, self.facts = model, facts
        sets = closed_sets(facts, MAX_SETS)
        #: Whether there are few enough sets.
        self.listed = sets is not None
        self.sets = sets or [0]
        crossing = model.transfers.crossing
        self.crossing = [crossing(self.layers(0, s)) for s in self.sets]
        sizes_of: dict[tuple[int, ...], int] = {}
        self.size_of = np.array(
            [
                sizes_of.setdefault(tuple(sorted(c.values())), len(sizes_of))
                for c in self.crossing
            ],
            dtype=np.int64,
        )
        self.sizes = tuple(sizes_of)
        #: Layers that no two stages may part, as a mask.
        together = sum(1 << i for i in undivided(model.problem))
        pairs = [
            (i, j)
            for i, first in enumerate(self.sets)
            for j, second in enumerate(self.sets)
            if i < j
            and first & second == first
            and second & ~first & together in {0, together}
        ]
        self.tails: Integers
        self.heads: Integers
        self.tails, self.heads = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        #: Where the pairs with each tail begin, and where the last ones end.
        self.begins = np.searchsorted(self.tails, range(len(self.sets) + 1))

    def layers(self, first: int, second: int) -> list[int]:
        """Return the layers between two sets (masks), sources first."""
        inside = second & ~first
        return [i for i in self.facts.order if inside >> i & 1]

    @cached_property
    def counts(self) -> Integers:
        """Layers of every kind inside every pair, ``[kind, pair]``."""
        inside = np.array(
            [
                [sum(s >> i & 1 for i in members) for s in self.sets]
                for members in self.facts.members
            ],
            dtype=np.int64,
        )
        counts: Integers = inside[:, self.heads] - inside[:, self.tails]
        return counts

    @cached_property
    def passing(self) -> dict[int, Integers]:
        """How many tensors of every size pass the stage of every pair.

        Those that enter it and leave it: by bytes per sample where they leave.
        """
        passing: dict[int, Any] = {}
        before = np.array(
            [[s >> u & 1 for s in self.sets] for u in range(self.facts.num_layers)],
            dtype=bool,
        ).reshape(-1, len(self.sets))
        for head, crossing in enumerate(self.crossing):
            here = np.flatnonzero(self.heads == head)
            for producer, size in crossing.items():
                enters = before[producer, self.tails[here]]
                if enters.any():
                    counts = passing.setdefault(
                        size, np.zeros(len(self.heads), dtype=np.int64)
                    )
                    counts[here] += enters
        return passing


def closed_sets(facts: GraphFacts, max_sets: int) -> list[int] | None:
    """Return all closed sets, smaller ones first; ``None`` if too many."""
    needs = [0] * facts.num_layers
    for source, target, _ in facts.edges:
        needs[target] |= 1 << source
    closed, new = {0}, {0}
    while new:
        new = {
            s | 1 << i
            for s in new
            for i, need in enumerate(needs)
            if not s >> i & 1 and not need & ~s
        }
        closed |= new
        if len(closed) > max_sets:
            return None
    return sorted(closed, key=lambda s: (s.bit_count(), s))
