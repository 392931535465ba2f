"""What paths through an acyclic graph take at least, through every arc.

Everything is whole numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from formulations.paths.cuts import Integers
from formulations.paths.stages import NEVER


class Best(NamedTuple):
    """The least of something on paths up to every node, and from it on."""

    ahead: Integers
    behind: Integers


class Arcs(NamedTuple):
    """The arcs of an acyclic graph, by ascending tail."""

    #: Their nodes, each tail smaller than its head.
    tail: Integers
    head: Integers
    #: How many nodes there are.
    num_nodes: int
    #: Where paths begin and end: nothing leads to a start or from an end.
    starts: Integers
    ends: Integers

    @classmethod
    def of(
        cls, tail: Integers, head: Integers, starts: Any, ends: Any
    ) -> tuple[Arcs, Integers]:
        """Return the graph of some arcs, and their order in it.

        ``starts`` and ``ends`` say of nodes whether they are some. Nodes get
        numbers of their own, in the same order.
        """
        nodes, where = np.unique(np.concatenate([tail, head]), return_inverse=True)
        tails, heads = where[: len(tail)], where[len(tail) :]
        order = np.argsort(tails, kind="stable")
        arcs = cls(
            tails[order],
            heads[order],
            len(nodes),
            np.flatnonzero(starts(nodes)),
            np.flatnonzero(ends(nodes)),
        )
        return arcs, order

    def only(self, mask: NDArray[np.bool_]) -> Arcs:
        """Return the graph with fewer arcs and the same nodes."""
        return self._replace(tail=self.tail[mask], head=self.head[mask])

    def least(self, value: Integers, *, sums: bool) -> Best:
        """Return the least sum, or the least largest, of a value.

        ``NEVER`` where no path leads.
        """
        join: Any = np.add if sums else np.maximum
        ahead = np.full(self.num_nodes, NEVER, dtype=np.int64)
        costs_after = ahead.copy()
        ahead[self.starts] = costs_after[self.ends] = 0
        if not len(self.tail):
            return Best(ahead, costs_after)
        firsts = np.flatnonzero(np.diff(self.tail, prepend=-1))
        segments = list(zip(firsts, [*firsts[1:], len(self.tail)], strict=True))
        for start, end in segments:
            here = ahead[self.tail[start]]
            if here < NEVER:
                candidates = np.minimum(join(here, value[start:end]), NEVER)
                np.minimum.at(ahead, self.head[start:end], candidates)
        for start, end in reversed(segments):
            candidates = join(value[start:end], costs_after[self.head[start:end]])
            costs_after[self.tail[start]] = min(NEVER, candidates.min())
        return Best(ahead, costs_after)

    def sum_through(self, value: Integers) -> Integers:
        """Return the least sum of the paths through every arc."""
        best = self.least(value, sums=True)
        before = np.minimum(best.ahead[self.tail] + value, NEVER)
        through: Integers = np.minimum(before + best.behind[self.head], NEVER)
        return through

    def largest_through(self, value: Integers) -> Integers:
        """Return the least largest value of the paths through every arc."""
        best = self.least(value, sums=False)
        around = np.maximum(best.ahead[self.tail], best.behind[self.head])
        largest: Integers = np.minimum(np.maximum(around, value), NEVER)
        return largest


def step_through(
    arcs: Arcs,
    once: Integers,
    paces: Sequence[Integers],
    rounds: Sequence[int],
    sync: Integers,
) -> Integers:
    """Return what plans through every stage take at least (P8).

    The least sum of a path through it; for every pace, and for the sync, the
    least that the largest on a path through it is.
    """
    found = arcs.sum_through(once)
    for pace, weight in zip(paces, rounds, strict=True):
        if weight:
            largest = np.minimum(arcs.largest_through(pace), NEVER // weight)
            found = np.minimum(found + weight * largest, NEVER)
    step: Integers = np.minimum(found + arcs.largest_through(sync), NEVER)
    return step
