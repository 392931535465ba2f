"""Lower bounds without places: shortest paths over closed sets.

They forget where a stage sits: its load is the least over all places, and
the devices are a budget ``P``. The stages of a plan with ``max τ <= W`` are a
path of closed sets whose sizes add up to at most ``P``, and for any price
``μ >= 0`` of a device

``Σ τ >= min (Σ τ + μ Σ n) - μ P``

over such paths (the Lagrangian bound of a constrained shortest path; Handler
and Zang, *A dual algorithm for the constrained shortest path problem*,
Networks 10, 1980). Stages are counted from the end, so that in-flight counts
are exact, and a path within the budget is a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from nest.search.dominance import drop_neighbours
from nest.search.options import (
    INFINITE,
    Ints,
    LooseOptions,
    PairOptions,
    StageOptions,
)

#: The first intervals of the largest load end at this fraction of the rest.
FIRST = 8

#: Intervals in which ``(M-1) max τ`` varies by at most this fraction of the
#: step time are not cut again.
FINE = 100

#: How often the interval of the least largest load is halved.
HALVINGS = 7

#: How many prices of a device are tried for one interval.
PRICES = 4


@dataclass(frozen=True)
class Path:
    """A path from the empty set to all: a plan without offsets.

    ``stages`` holds ``(a, b, strategy, devices)``; ``total``, ``worst`` and
    ``devices`` are ``Σ τ``, ``max τ`` (both at least) and ``Σ n``, and
    ``memory_bytes`` what the fullest device holds.
    """

    stages: list[tuple[int, int, int, int]]
    total: int
    worst: int
    devices: int
    memory_bytes: int


@dataclass(frozen=True)
class Interval:
    """Plans with a largest load in ``[least, up_to]`` that may matter.

    Attributes
    ----------
    bound
        No such plan takes less time.
    price
        Of a device, which gives the bound.
    """

    least: int
    up_to: int
    bound: int
    price: int


class Paths:
    """Shortest paths through the loose options of one split.

    Parameters
    ----------
    options
        Stage options of the split.
    found
        Its loose options.
    limit
        Loads at or above are of no use.
    cap_bytes
        Memory per device.
    """

    def __init__(
        self,
        options: StageOptions,
        found: LooseOptions,
        limit: int,
        cap_bytes: int,
    ) -> None:
        self.options, self.limit = options, limit
        self.shapes, self.sets = options.shapes, options.shapes.sets
        fit = options.fit(found, cap_bytes)
        useful = (fit >= options.need(1)) & (found.load < limit)
        self.found, self.fit = found.take(useful), fit[useful]
        order = drop_neighbours(
            self.found.shape, [self.found.size, self.found.load, -self.fit]
        )
        #: What paths use: no option that another one beats.
        self.lean, self._lean_fit = self.found.take(order), self.fit[order]
        self._first_row = np.flatnonzero(np.diff(self.lean.shape, prepend=-1))
        self._present = self.lean.shape[self._first_row]
        source = self.sets.pair_source
        self._first_pair = np.searchsorted(
            source, np.arange(self.sets.count + 1)
        )

    def _table(
        self, inflight: int, loads: int, price: int, most_load: int
    ) -> Ints:
        """Return the least cost of every shape that fits so many."""
        lean = self.lean
        usable = (self._lean_fit >= inflight) & (lean.load <= most_load)
        cost = np.where(
            usable, loads * lean.load + price * lean.size, INFINITE
        )
        table = np.full(len(self.shapes), INFINITE)
        table[self._present] = np.minimum.reduceat(cost, self._first_row)
        return table

    def behind(
        self, loads: int, price: int, most_load: int, budget: int
    ) -> list[Ints]:
        """Return the least cost from every set on, by number of stages.

        The cost is ``loads Σ τ + price Σ n``, and :data:`INFINITE` where
        there is no path. Ends where more stages are of no use, or all costs
        exceed the budget.
        """
        sets, need = self.sets, 0
        values = np.full(sets.count, INFINITE)
        values[-1] = 0
        found, least = [values], values
        for stages in range(1, self.options.stage_counts[-1] + 1):
            if self.options.need(stages) > need:
                need = self.options.need(stages)
                table = self._table(need, loads, price, most_load)
                if stages == 1:
                    # More stages left never make a shape usable.
                    pairs = np.flatnonzero(
                        table[self.shapes.of_pair] < INFINITE
                    )
                    if not len(pairs):
                        break
                    shape = self.shapes.of_pair[pairs]
                    source = sets.pair_source[pairs]
                    target = sets.pair_target[pairs]
                    first = np.flatnonzero(np.diff(source, prepend=-1))
                    sources = source[first]
                cost = table[shape]
            values = np.full(sets.count, INFINITE)
            values[sources] = np.minimum.reduceat(
                cost + found[-1][target], first
            )
            np.minimum(values, INFINITE, out=values)
            # Where numbers of stages are restricted, all of them count.
            idle = not self.options.restricted and (values >= least).all()
            if idle or values.min() > budget:
                break
            found.append(values)
            least = np.minimum(least, values)
        return found

    def root(self, behind: list[Ints]) -> tuple[int, int]:
        """Return the least cost of a whole path, and its stages."""
        return min(
            (
                (int(behind[count][0]), count)
                for count in self.options.stage_counts
                if count < len(behind)
            ),
            default=(int(INFINITE), 0),
        )

    def trace(
        self, behind: list[Ints], loads: int, price: int, most_load: int
    ) -> Path:
        """Return the cheapest path; there must be one."""
        sets = self.sets
        _, count = self.root(behind)
        stages = []
        source = total = worst = devices = memory = 0
        for left in range(count, 0, -1):
            need = self.options.need(left)
            table = self._table(need, loads, price, most_load)
            pairs = slice(*self._first_pair[source : source + 2])
            target = sets.pair_target[pairs]
            cost = table[self.shapes.of_pair[pairs]] + behind[left - 1][target]
            best = int(np.argmin(cost))
            shape = self.shapes.of_pair[pairs][best]
            rows = np.arange(
                *np.searchsorted(self.lean.shape, [shape, shape + 1])
            )
            rows = rows[
                (self._lean_fit[rows] >= need)
                & (self.lean.load[rows] <= most_load)
            ]
            cost = loads * self.lean.load[rows] + price * self.lean.size[rows]
            row = int(rows[np.argmin(cost)])
            load, size = int(self.lean.load[row]), int(self.lean.size[row])
            stages.append(
                (source, int(target[best]), int(self.lean.strategy[row]), size)
            )
            source = int(target[best])
            total, worst = total + load, max(worst, load)
            devices += size
            kept = need * int(self.lean.kept_bytes[row])
            memory = max(memory, int(self.lean.fixed_bytes[row]) + kept)
        return Path(stages, total, worst, devices, memory)

    def fewest_devices(self, most_load: int) -> list[Ints] | None:
        """Return the devices from every set on; ``None`` if too many."""
        devices = self.options.split.devices
        behind = self.behind(0, 1, most_load, devices)
        return behind if self.root(behind)[0] <= devices else None

    def smallest(self) -> Path | None:
        """Return the plan of the fewest devices, if there is any plan."""
        most_load = int(INFINITE) - 1
        behind = self.fewest_devices(most_load) if len(self.lean) else None
        if behind is None:
            return None
        return self.trace(behind, 0, 1, most_load)

    def least_worst(self) -> int | None:
        """Return about the least ``max τ``; ``None`` if there is no plan.

        No plan has a smaller one.
        """
        if not len(self.lean):
            return None
        loads = np.unique(self.lean.load)
        if self.fewest_devices(int(loads[-1])) is None:
            return None
        low, high = 0, len(loads) - 1
        for _ in range(HALVINGS):
            if low == high:
                break
            middle = (low + high) // 2
            if self.fewest_devices(int(loads[middle])) is None:
                low = middle + 1
            else:
                high = middle
        return int(loads[low])

    def cheapest(
        self, most_load: int, price: int | None = None
    ) -> Iterator[tuple[int, int, Path]]:
        """Try prices of a device; return bounds on ``Σ τ`` and paths.

        Parameters
        ----------
        most_load
            Of plans with ``max τ`` up to that.
        price
            Try only this one; by default the best few.

        Yields
        ------
        tuple
            A lower bound on ``Σ τ``, its price, and the path of that price.
        """
        budget = self.options.split.devices
        behind = self.fewest_devices(most_load)
        if behind is None:
            return
        wide, narrow = None, self.trace(behind, 0, 1, most_load)
        yield 0, 0, narrow
        for _ in range(PRICES if price is None else 1):
            price = price or 0
            behind = self.behind(1, price, most_load, int(INFINITE) - 1)
            path = self.trace(behind, 1, price, most_load)
            yield self.root(behind)[0] - price * budget, price, path
            if path.devices > budget:
                wide = path
            else:
                narrow = path
            if wide is None or narrow.total <= wide.total:
                return
            new = (narrow.total - wide.total) // (
                wide.devices - narrow.devices
            )
            if new == price or new > INFINITE // (4 * budget):
                return
            price = new

    def front(
        self, loads: int, price: int, most_load: int, left: Ints
    ) -> Ints:
        """Return the least cost up to every set.

        ``left`` is the least number of stages behind every set.
        """
        sets, shapes = self.sets, self.shapes
        left = left[sets.pair_target]
        cost = np.full(len(left), INFINITE)
        # From M stages left on, the in-flight count is the same.
        reachable = left < INFINITE
        need = self.options.inflight(np.where(reachable, left, 0) + 1)
        for number in np.unique(need[reachable]).tolist():
            chosen = reachable & (need == number)
            table = self._table(number, loads, price, most_load)
            cost[chosen] = table[shapes.of_pair[chosen]]
        values = np.full(sets.count, INFINITE)
        values[0] = 0
        bounds = self._first_pair.tolist()
        for source in range(sets.count - 1):
            pairs = slice(bounds[source], bounds[source + 1])
            target = sets.pair_target[pairs]
            values[target] = np.minimum(
                values[target], values[source] + cost[pairs]
            )
        return values

    def survivors(
        self, interval: Interval, upper: int, level: int
    ) -> PairOptions:
        """Return the options that may be part of a plan below ``upper``.

        Only plans of the interval matter.
        """
        options, sets, shapes = self.options, self.sets, self.shapes
        budget, most_load = options.split.devices, interval.up_to
        devices = self.fewest_devices(most_load)
        assert devices is not None
        left = np.full(sets.count, INFINITE)
        for count in range(len(devices) - 1, -1, -1):
            left[devices[count] < INFINITE] = count
        # (loads, price, what must be left) of every relaxation
        checks = [(0, 1, budget)]
        checks += [
            (1, price, upper - 1 + price * budget)
            for price in sorted({0, interval.price})
        ]
        potentials: list[tuple[Ints, Ints, int]] = []
        for loads, price, room in checks:
            behind = devices
            if loads:
                behind = self.behind(
                    loads, price, most_load, int(INFINITE) - 1
                )
            potentials.append(
                (
                    self.front(loads, price, most_load, left),
                    np.minimum.accumulate(behind, axis=0),
                    room,
                )
            )
        rows = np.flatnonzero(self.found.load <= most_load)
        found, fit = self.found.take(rows), self.fit[rows]
        extra = options.extra_slots
        slack = extra * np.maximum(found.load, interval.least) + found.sync

        def cost(loads: int, price: int) -> Ints:
            if not loads:
                return found.size
            paid: Ints = found.load + slack + price * found.size
            return paid

        # First the best pair of every shape, then every pair.
        useful = np.ones(len(found), dtype=np.bool_)
        for (loads, price, _), (front, least, room) in zip(
            checks, potentials, strict=True
        ):
            around = front[sets.pair_source] + least[-1][sets.pair_target]
            best = np.minimum.reduceat(
                around[shapes.pairs], shapes.first_pair[:-1]
            )
            useful &= cost(loads, price) + best[found.shape] <= room
        found, fit, slack = found.take(useful), fit[useful], slack[useful]
        width = np.diff(shapes.first_pair)[found.shape]
        row = np.repeat(np.arange(len(found)), width)
        position = np.arange(len(row)) - np.repeat(
            np.cumsum(width) - width, width
        )
        pair = shapes.pairs[shapes.first_pair[found.shape[row]] + position]
        source, target = sets.pair_source[pair], sets.pair_target[pair]
        most = options.most_behind(fit)[row]
        useful = np.ones(len(row), dtype=np.bool_)
        spans = []
        for (loads, price, _), (front, least, room) in zip(
            checks, potentials, strict=True
        ):
            back = least[np.minimum(most, len(least) - 1), target]
            useful &= cost(loads, price)[row] + front[source] + back <= room
            spans.append((front[source], back))
        row, pair = row[useful], pair[useful]
        first, back = (column[useful] for column in spans[0])
        return PairOptions(
            np.full(len(row), level, dtype=np.int64),
            pair,
            found.strategy[row],
            found.size[row],
            found.fixed_bytes[row],
            found.kept_bytes[row],
            fit[row],
            first,
            budget - found.size[row] - back,
        )

    def intervals(
        self, upper: int, offer: Callable[[Path], int]
    ) -> list[Interval]:
        """Return the intervals that may hold a plan below ``upper``.

        Parameters
        ----------
        upper
            Only step times below this count.
        offer
            Given paths that are plans; returns ``upper`` from then on.
        """
        least = self.least_worst()
        if least is None:
            return []
        extra = self.options.extra_slots
        loads = np.unique(self.lean.load)
        loads = loads[loads >= least]
        # Options that are not lean have loads between those of lean ones.
        ends = np.append(loads[1:], self.limit) - 1

        def bounded(start: int, stop: int, price: int | None) -> Interval:
            """Bound the plans with a largest load among some loads."""
            nonlocal upper
            low, high = int(loads[start]), int(ends[stop - 1])
            found = Interval(low, high, int(INFINITE), price or 0)
            bound = -1
            for value, tried, path in self.cheapest(high, price):
                if path.devices <= self.options.split.devices:
                    upper = offer(path)
                if max(value, low) + extra * low > bound:
                    bound = max(value, low) + extra * low
                    found = Interval(low, high, bound, tried)
                if bound >= upper:
                    break
            return found

        # Good plans are near the least load: look there first, and cut in
        # halves what is left open.
        todo: list[tuple[int, int, int | None]] = []
        stop = len(loads)
        while stop > 0:
            share = least + int(loads[stop - 1] - least) // FIRST
            start = int(np.searchsorted(loads, share, "right"))
            start = 0 if extra * (share - least) * FINE <= upper else start
            start = min(start, stop - 1)
            todo.append((start, stop, None))
            stop = start
        found = []
        while todo:
            start, stop, price = todo.pop()
            interval = bounded(start, stop, price)
            if interval.bound >= upper:
                continue
            width = interval.up_to - interval.least
            if start + 1 < stop and extra * width * FINE > upper:
                middle = (interval.least + interval.up_to) // 2
                half = int(np.searchsorted(loads, middle, "right"))
                half = min(max(half, start + 1), stop - 1)
                todo.append((half, stop, interval.price))
                todo.append((start, half, interval.price))
            else:
                found.append(interval)
        return [interval for interval in found if interval.bound < upper]
