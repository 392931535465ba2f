"""Pipelines whose stages all stay within a limit, by dynamic programming.

A stage of degree ``d`` is short enough, or fits, up to some number of
micro-batches in flight, hence up to some sum of the degrees behind it. So
what remains to know of the layers outside a closed set is the least ``Σ d``
for every number of devices: more of either never helps the stages in front.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import numpy as np

from nest.search.stages.closed_sets import ClosedSets, Ints
from nest.units import ceil_div

#: A ``Σ d`` where nothing fits.
NEVER = np.iinfo(np.int64).max // 4


class Degrees(NamedTuple):
    """Ranks ``d`` of a stage, and its devices."""

    dp: int
    devices: int


class Placed(NamedTuple):
    """A stage: pair of closed sets, position of its degrees, in flight."""

    pair: int
    way: int
    inflight: int


class Pipelines(NamedTuple):
    """Which pipelines there are."""

    sets: ClosedSets
    #: Of every way to run a stage.
    degrees: Sequence[Degrees]
    #: Devices, and the most ``Σ d``.
    num_devices: int
    most_ranks: int
    #: Allowed numbers of stages; ``None`` allows every number.
    counts: Collection[int] | None
    #: Called now and then; may raise.
    check_time: Callable[[], object]

    def find(self, limits: Ints) -> list[Placed] | None:
        """Return one on the fewest devices, with the least ``Σ d`` on them.

        ``limits`` ``(ways, pairs)`` is the largest ``Σ d`` behind a stage, -1 where it
        is too long whatever follows.
        """
        tables = self._tables(limits)
        fewest = [
            (int(fits[0]), number)
            for number, table in enumerate(tables)
            if self.counts is None or number in self.counts
            if len(fits := np.flatnonzero(table[0] <= self.most_ranks))
        ]
        if not fewest:
            return None
        devices, number = min(fewest)
        placed: list[Placed] = []
        a = 0
        while a < self.sets.count - 1:
            ranks = int(tables[number][a, devices])
            number = max(number - 1, 0)
            pair, way = self._step(ranks, tables[number], limits, a, devices)
            dp, size = self.degrees[way]
            placed.append(Placed(pair, way, ceil_div(ranks, dp)))
            a, devices = int(self.sets.pair_target[pair]), devices - size
        return placed

    def _tables(self, limits: Ints) -> list[Ints]:
        """Return the least ``Σ d`` of the layers outside each set.

        One table ``(sets, devices + 1)``, or one per number of stages from 0
        where that number is restricted.
        """
        end = np.full((self.sets.count, self.num_devices + 1), NEVER)
        end[-1] = 0
        if self.counts is None:
            self._fill(end, end, limits)
            return [end]
        tables = [end]
        for _ in range(max(self.counts, default=0)):
            tables.append(np.full_like(end, NEVER))
            self._fill(tables[-1], tables[-2], limits)
        return tables

    def _fill(self, table: Ints, following: Ints, limits: Ints) -> None:
        """Fill a table from the one of the stages behind."""
        first = self.sets.first
        for a in range(len(table) - 2, -1, -1):
            self.check_time()
            here = limits[:, first[a] : first[a + 1]]
            ways = np.flatnonzero((here >= 0).any(axis=1))
            rows = np.flatnonzero((here >= 0).any(axis=0))
            if not len(ways):
                continue
            later = following[self.sets.pair_target[first[a] + rows]]
            for way in ways.tolist():
                dp, size = self.degrees[way]
                ranks = later[:, : self.num_devices + 1 - size]
                allowed = ranks <= here[way, rows, None]
                fewest = np.where(allowed, ranks, NEVER - dp).min(axis=0)
                after = table[a, size:]
                np.minimum(after, fewest + dp, out=after)

    def _step(
        self, ranks: int, following: Ints, caps: Ints, a: int, devices: int
    ) -> tuple[int, int]:
        """Return a stage that leads to a value, and its way."""
        first, end = self.sets.first[a : a + 2]
        targets = self.sets.pair_target[first:end]
        for way, (dp, size) in enumerate(self.degrees):
            if size > devices:
                continue
            later = following[targets, devices - size]
            good = (later <= caps[way, first:end]) & (later + dp == ranks)
            if good.any():
                return int(first + np.argmax(good)), way
        raise AssertionError("a value without a stage that leads to it")
