"""Strategies of single layers, and what a stage of them takes at least.

For ``i`` micro-batches in flight a layer under strategy ``s`` takes ``load_s``
and ``m_s = static_s + i kept_s`` bytes, so for every ``λ >= 0``

``load >= Σ min_s (load_s + λ m_s) - λ (capacity - working)``,

the Lagrangian bound of the multiple-choice knapsack; its best ``λ`` is the
slope of an edge of the lower convex hull of some kind's points ``(m_s,
load_s)``. Strategy changes cost nothing in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from nest.search.stages.dominance import non_dominated
from nest.search.stages.options import INFINITE, Bools, Ints

Floats = NDArray[np.float64]

#: Relative error that a bound in floating point is trusted to keep.
SLACK = 1e-9


class LayerOptions(NamedTuple):
    """Strategies of one kind of layer, as parallel arrays."""

    #: Positions of the strategy, and of its layout among those of as many devices.
    strategy: Ints
    layout: Ints
    #: Quanta of the ``sums`` of the schedule, a row each, and of ``Y`` at least.
    amounts: Ints
    sync: Ints
    #: What ``sync`` leaves out because it may hide, all of the layer's sync that may,
    #: and the backward pass, in quanta.
    hidden: Ints
    hideable: Ints
    backward: Ints
    #: As in :class:`~nest.cost.terms.LayerTerms`.
    static_bytes: Ints
    kept_bytes: Ints
    working_bytes: Ints

    def take(self, chosen: Bools | Ints) -> LayerOptions:
        """Return the chosen options."""
        return LayerOptions(*(column[..., chosen] for column in self))

    def memory(self, inflight: int) -> Ints:
        """Return what a layer holds with so many micro-batches in flight."""
        return self.static_bytes + inflight * self.kept_bytes

    def fitting(self, inflight: int, capacity: int) -> LayerOptions:
        """Return those that fit alone."""
        return self.take(self.memory(inflight) + self.working_bytes <= capacity)

    def undominated(self, group: Ints, *, hides: bool) -> LayerOptions:
        """Return those that no other one of their group beats.

        Where gradient sync hides, in what is left of it too, whatever the
        other layers are.
        """
        columns = [*self.amounts, *self[7:]]
        columns += sync_columns(self) if hides else [self.sync]
        return self.take(unbeaten(group, columns))


class Hiding(Protocol):
    """Layers of which some of the gradient sync may hide, as arrays."""

    @property
    def sync(self) -> Ints:
        """``Y`` at least."""

    @property
    def hidden(self) -> Ints:
        """What that leaves out."""

    @property
    def hideable(self) -> Ints:
        """The sync that may hide."""

    @property
    def backward(self) -> Ints:
        """The backward passes that it may hide behind."""


def sync_columns(layers: Hiding) -> list[Ints]:
    """Return in what layers must be no larger so that ``Y`` is no larger.

    ``Y = max(S - ⌊φH + 0.5⌋, S - G)`` with what all layers of a stage sync,
    what may hide of it, and their backward passes.
    """
    whole = layers.sync + layers.hidden
    return [whole, -layers.hideable, whole - layers.backward]


def unbeaten(group: Ints, columns: Sequence[Ints]) -> Ints:
    """Return the positions, ascending, of rows that no other one beats.

    See :func:`~nest.search.stages.dominance.non_dominated`; the rows may come in
    any order, and of equal ones the first stays.
    """
    order = np.lexsort((*reversed(columns), group))
    survivors = non_dominated(group[order], [column[order] for column in columns])
    rows: Ints = np.sort(order[survivors])
    return rows


def least(values: Ints) -> int:
    """Return the least value, 0 if there is none."""
    return int(values.min()) if len(values) else 0


def hull_slopes(costs: Sequence[Ints], memory: Sequence[Ints]) -> Floats:
    """Return the slopes of the lower hulls of (memory, cost), per kind."""
    slopes = set()
    for kind in zip(memory, costs, strict=True):
        hull: list[tuple[int, int]] = []
        for m, cost in sorted(zip(*(x.tolist() for x in kind), strict=True)):
            if hull and cost >= hull[-1][1]:
                continue
            while len(hull) >= 2 and (hull[-1][1] - hull[-2][1]) * (
                m - hull[-2][0]
            ) >= (cost - hull[-2][1]) * (hull[-1][0] - hull[-2][0]):
                hull.pop()
            hull.append((m, cost))
        for (m1, cost1), (m2, cost2) in pairwise(hull):
            slopes.add((cost1 - cost2) / (m2 - m1))
    return np.array(sorted(slopes), dtype=np.float64)


def priced(costs: Sequence[Ints], memory: Sequence[Ints], slopes: Floats) -> Floats:
    """Return the least ``cost + λ memory``, of shape (slopes, kinds)."""
    return np.array(
        [
            (cost + slopes[:, None] * m).min(axis=1)
            if len(cost)
            else np.zeros(len(slopes))
            for cost, m in zip(costs, memory, strict=True)
        ]
    ).T


class StageBounds:
    """The best Lagrangian bound of a cost of stages.

    Parameters
    ----------
    costs, memory
        Of the options of every kind of layer.
    """

    def __init__(self, costs: Sequence[Ints], memory: Sequence[Ints]) -> None:
        self._least = np.array([least(cost) for cost in costs])
        self._slopes = hull_slopes(costs, memory)
        self._priced = priced(costs, memory, self._slopes)

    def of(self, counts: Ints, free: Ints) -> Ints:
        """Return the bound of every stage.

        Given its layers of each kind, and the memory it has for them.
        """
        best: Ints = counts @ self._least
        if len(self._slopes) and len(counts):
            total = counts @ self._priced.T
            room = free[:, None] * self._slopes
            bound = total - room - SLACK * (total + np.abs(room))
            # Memory that is missing, or plenty, may be worth more than 64 bits.
            clipped = np.clip(bound.max(axis=1), 0.0, float(INFINITE))
            best = np.maximum(best, np.ceil(clipped).astype(np.int64))
        return best


def best_slopes(
    costs: Sequence[Ints], memory: Sequence[Ints], counts: Ints, free: int
) -> Floats:
    """Return 0 and the slopes whose bounds of a stage are best, best last.

    ``counts`` are the layers of each kind in it.
    """
    used = np.flatnonzero(counts).tolist()
    costs, memory = [costs[k] for k in used], [memory[k] for k in used]
    slopes = hull_slopes(costs, memory)
    if not len(slopes):
        return np.zeros(1)
    bounds = priced(costs, memory, slopes) @ counts[used] - slopes * free
    order = np.argsort(bounds, kind="stable")
    return np.concatenate(([0.0], slopes[order[-3:]]))
