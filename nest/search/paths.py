"""Lower bounds without places: shortest paths over closed sets.

They forget where a stage sits: what it adds once, ``o``, and what the others
wait for it, ``w``, are the least over all places (1F1B: ``τ`` and ``(M-1)
τ``), and the devices are a budget ``P``. The stages of a plan with ``max w <=
W`` are a path of closed sets whose sizes add up to at most ``P``, and for any
price ``μ >= 0`` of a device

``Σ o >= min (Σ o + μ Σ n) - μ P``

over such paths (the Lagrangian bound of a constrained shortest path; Handler
and Zang, *A dual algorithm for the constrained shortest path problem*,
Networks 10, 1980). Stages are counted from the end, so that in-flight counts
are exact, and a path within the budget is a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from nest.search.dominance import drop_neighbours
from nest.search.options import (
    INFINITE,
    Below,
    Ints,
    LooseOptions,
    PairOptions,
    StageOptions,
)

#: The first intervals of the longest wait end at this fraction of the rest.
FIRST = 8

#: Intervals in which the longest wait varies by at most this fraction of the
#: step time are not cut again.
FINE = 100

#: How often the interval of the least longest wait is halved.
HALVINGS = 7

#: No cost of a path is larger.
EVERYTHING = int(INFINITE) - 1

#: So many costs of all sets are remembered.
REMEMBERED = 16

#: How many prices of a device are tried for one interval.
PRICES = 4


@dataclass(frozen=True)
class Path:
    """A path from the empty set to all: a plan without offsets.

    ``stages`` holds ``(a, b, strategy, devices)``; ``total``, ``wait`` and
    ``devices`` are ``Σ o``, ``max w`` (both at least) and ``Σ n``, and
    ``memory_bytes`` what the fullest device holds.
    """

    stages: tuple[tuple[int, int, int, int], ...]
    total: int
    wait: int
    devices: int
    memory_bytes: int


class Costs(NamedTuple):
    """Least costs of paths.

    Attributes
    ----------
    behind
        From every set on, by number of stages; :data:`INFINITE` where there
        is no path.
    tables
        Of every shape in use, by number of stages left less one.
    cost
        Of every lean option.
    """

    behind: list[Ints]
    tables: list[Ints]
    cost: Ints


@dataclass(frozen=True)
class Interval:
    """Plans with a longest wait in ``[least, up_to]`` that may matter.

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
        Which stages are of use.
    cap_bytes
        Memory per device.
    """

    def __init__(
        self,
        options: StageOptions,
        found: LooseOptions,
        limit: Below,
        cap_bytes: int,
    ) -> None:
        self.options = options
        self.shapes, self.sets = options.shapes, options.shapes.sets
        fit = options.fit(found, cap_bytes)
        useful = fit >= options.need(1)
        useful &= limit.admits(found.once, found.wait)
        self.found, self.fit = found.take(useful), fit[useful]
        columns = [self.found.size, self.found.once, self.found.wait]
        order = drop_neighbours(self.found.shape, [*columns, -self.fit])
        #: What paths use: no option that another one beats.
        self.lean, self._lean_fit = self.found.take(order), self.fit[order]
        self._first_row = np.flatnonzero(np.diff(self.lean.shape, prepend=-1))
        shape = self.lean.shape[self._first_row]
        row = np.full(len(self.shapes), -1)
        row[shape] = np.arange(len(shape))
        row = row[self.shapes.of_pair]
        #: Pairs with some option, where its shape is in the tables, and
        #: where the pairs of each source begin.
        self._pairs = np.flatnonzero(row >= 0)
        self._row = row[self._pairs]
        self._source = self.sets.pair_source[self._pairs]
        self._target = self.sets.pair_target[self._pairs]
        self._first = np.searchsorted(
            self._source, np.arange(self.sets.count + 1)
        )
        self._known: dict[tuple[int, int, int, int], Costs] = {}

    @cached_property
    def _waits(self) -> Ints:
        """How long others wait for some lean option, ascending."""
        return np.unique(self.lean.wait)

    def behind(
        self, loads: int, price: int, most_wait: int, budget: int
    ) -> Costs:
        """Return the least cost from every set on.

        The cost is ``loads Σ o + price Σ n``. Ends where more stages are of
        no use, or all costs exceed the budget.
        """
        key = (loads, price, most_wait, budget)
        if key not in self._known:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            self._known[key] = self._behind(*key)
        return self._known[key]

    def _behind(
        self, loads: int, price: int, most_wait: int, budget: int
    ) -> Costs:
        count, lean = self.sets.count, self.lean
        cost = loads * lean.once + price * lean.size
        cost[lean.wait > most_wait] = INFINITE
        sources = np.flatnonzero(np.diff(self._first))
        first = self._first[sources]
        values = np.full(count, INFINITE)
        values[-1] = 0
        found, least = [values], values
        tables: list[Ints] = []
        needs: list[int] = []
        for stages in range(1, self.options.stage_counts[-1] + 1):
            need = self.options.need(stages)
            if not needs or need > needs[-1]:
                fits = np.where(self._lean_fit >= need, cost, INFINITE)
                table = np.minimum.reduceat(fits, self._first_row)
                of_pair = table[self._row]
            tables.append(table)
            needs.append(need)
            values = np.full(count, INFINITE)
            values[sources] = np.minimum.reduceat(
                of_pair + found[-1][self._target], first
            )
            np.minimum(values, INFINITE, out=values)
            # Where numbers of stages are restricted, all of them count.
            idle = not self.options.restricted and (values >= least).all()
            if idle or values.min() > budget:
                break
            found.append(values)
            least = np.minimum(least, values)
        return Costs(found, tables, cost)

    def root(self, costs: Costs) -> tuple[int, int]:
        """Return the least cost of a whole path, and its stages."""
        return min(
            (
                (int(costs.behind[count][0]), count)
                for count in self.options.stage_counts
                if count < len(costs.behind)
            ),
            default=(int(INFINITE), 0),
        )

    def trace(self, costs: Costs) -> Path:
        """Return the cheapest path; there must be one."""
        _, count = self.root(costs)
        stages = []
        source = total = wait = devices = memory = 0
        for left in range(count, 0, -1):
            need = self.options.need(left)
            pairs = slice(*self._first[source : source + 2])
            target, shape = self._target[pairs], self._row[pairs]
            cost = costs.tables[left - 1][shape]
            best = int(np.argmin(cost + costs.behind[left - 1][target]))
            first = self._first_row[shape[best]]
            # The first row that costs as much and fits.
            row = first + int(
                np.argmax(
                    (costs.cost[first:] == cost[best])
                    & (self._lean_fit[first:] >= need)
                )
            )
            size = int(self.lean.size[row])
            stages.append(
                (source, int(target[best]), int(self.lean.strategy[row]), size)
            )
            source = int(target[best])
            total += int(self.lean.once[row])
            wait = max(wait, int(self.lean.wait[row]))
            devices += size
            kept = need * int(self.lean.kept_bytes[row])
            memory = max(memory, int(self.lean.fixed_bytes[row]) + kept)
        return Path(tuple(stages), total, wait, devices, memory)

    def fewest_devices(self, most_wait: int) -> Costs | None:
        """Return the devices from every set on; ``None`` if too many."""
        devices = self.options.split.devices
        costs = self.behind(0, 1, most_wait, devices)
        return costs if self.root(costs)[0] <= devices else None

    def smallest(self) -> Path | None:
        """Return the plan of the fewest devices, if there is any plan."""
        if not len(self.lean):
            return None
        costs = self.fewest_devices(int(self.lean.wait.max()))
        return costs and self.trace(costs)

    def least_wait(self) -> int | None:
        """Return about the least ``max w``; ``None`` if there is no plan.

        No plan has a smaller one.
        """
        if not len(self.lean):
            return None
        waits = self._waits
        if self.fewest_devices(int(waits[-1])) is None:
            return None
        low, high = 0, len(waits) - 1
        for _ in range(HALVINGS):
            if low == high:
                break
            middle = (low + high) // 2
            if self.fewest_devices(int(waits[middle])) is None:
                low = middle + 1
            else:
                high = middle
        return int(waits[low])

    def cheapest(
        self, most_wait: int, price: int | None = None
    ) -> Iterator[tuple[int, int, Path]]:
        """Try prices of a device; return bounds on ``Σ o`` and paths.

        Parameters
        ----------
        most_wait
            Of plans with ``max w`` up to that.
        price
            Try only this one; by default the best few.

        Yields
        ------
        tuple
            A lower bound on ``Σ o``, its price, and the path of that price.
        """
        budget = self.options.split.devices
        wide = narrow = None
        rounds = 1
        if price is None:
            costs = self.fewest_devices(most_wait)
            if costs is None:
                return
            rounds, price, narrow = PRICES, 0, self.trace(costs)
            yield 0, 0, narrow
        for _ in range(rounds):
            costs = self.behind(1, price, most_wait, EVERYTHING)
            value, _ = self.root(costs)
            if value >= INFINITE:
                return
            path = self.trace(costs)
            yield value - price * budget, price, path
            if path.devices > budget:
                wide = path
            else:
                narrow = path
            if not wide or not narrow or narrow.total <= wide.total:
                return
            new = (narrow.total - wide.total) // (
                wide.devices - narrow.devices
            )
            if new == price or new > INFINITE // (4 * budget):
                return
            price = new

    def front(self, costs: Costs, left: Ints) -> Ints:
        """Return the least cost up to every set.

        ``left`` is the least number of stages behind every set.
        """
        count = self.sets.count
        left = left[self._target]
        cost = np.full(len(left), INFINITE)
        reachable = np.flatnonzero(left < len(costs.tables))
        tables = np.stack(costs.tables)
        cost[reachable] = tables[left[reachable], self._row[reachable]]
        values = np.full(count, INFINITE)
        values[0] = 0
        first = self._first.tolist()
        for source in range(count - 1):
            pairs = slice(first[source], first[source + 1])
            target = self._target[pairs]
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
        budget, most_wait = options.split.devices, interval.up_to
        devices = self.behind(0, 1, most_wait, budget)
        left = np.full(sets.count, INFINITE)
        for count in range(len(devices.behind) - 1, -1, -1):
            left[devices.behind[count] < INFINITE] = count
        # (loads, price, what must be left) of every relaxation
        checks = [(0, 1, budget)]
        checks += [
            (1, price, upper - 1 + price * budget)
            for price in sorted({0, interval.price})
        ]
        potentials = []
        for loads, price, _ in checks:
            costs = devices
            if loads:
                costs = self.behind(loads, price, most_wait, EVERYTHING)
            potentials.append(
                (
                    self.front(costs, left),
                    np.minimum.accumulate(costs.behind, axis=0),
                )
            )
        rows = np.flatnonzero(self.found.wait <= most_wait)
        found, fit = self.found.take(rows), self.fit[rows]
        slack = np.maximum(found.wait, interval.least) + found.sync

        def cost(loads: int, price: int) -> Ints:
            if not loads:
                return found.size
            paid: Ints = found.once + slack + price * found.size
            return paid

        # First the best pair of every shape, then every pair.
        useful = np.ones(len(found), dtype=np.bool_)
        for (loads, price, room), (front, behind) in zip(
            checks, potentials, strict=True
        ):
            rest = front[sets.pair_source] + behind[-1][sets.pair_target]
            best = np.minimum.reduceat(
                rest[shapes.pairs], shapes.first_pair[:-1]
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
        around = []
        for (loads, price, room), (front, behind) in zip(
            checks, potentials, strict=True
        ):
            back = behind[np.minimum(most, len(behind) - 1), target]
            useful &= cost(loads, price)[row] + front[source] + back <= room
            around.append((front[source], back))
        row, pair = row[useful], pair[useful]
        around = [(f[useful], b[useful]) for f, b in around]
        size = found.size[row]
        first, last = around[0][0], budget - size - around[0][1]
        price = checks[-1][1]
        if price:
            # Few devices in front make them slow, many those behind: with
            # the price paid on one side only, that bounds the offset.
            (front, back), (priced_front, priced_back) = around[-2:]
            left = upper - 1 - cost(1, 0)[row]
            first = np.maximum(first, -((left - priced_front - back) // price))
            last = np.minimum(
                last,
                (left - front - priced_back) // price + budget - size,
            )
        fits = first <= last
        row, pair, first, last = (c[fits] for c in (row, pair, first, last))
        return PairOptions(
            np.full(len(row), level, dtype=np.int64),
            pair,
            found.strategy[row],
            found.size[row],
            found.fixed_bytes[row],
            found.kept_bytes[row],
            fit[row],
            first,
            last,
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
        least = self.least_wait()
        if least is None:
            return []
        waits = self._waits[self._waits >= least]
        # Options that are not lean have waits between those of lean ones.
        ends = np.append(waits[1:] - 1, self.found.wait.max())

        def bounded(start: int, stop: int, price: int | None) -> Interval:
            """Bound the plans with a longest wait among some waits."""
            nonlocal upper
            low, high = int(waits[start]), int(ends[stop - 1])
            found = Interval(low, high, int(INFINITE), price or 0)
            bound = -1
            for value, tried, path in self.cheapest(high, price):
                if path.devices <= self.options.split.devices:
                    upper = offer(path)
                if value + low > bound:
                    bound = value + low
                    found = Interval(low, high, bound, tried)
                if bound >= upper:
                    break
            return found

        # Good plans are near the least wait: look there first, and cut in
        # halves what is left open.
        todo: list[tuple[int, int, int | None]] = []
        stop = len(waits)
        while stop > 0:
            share = least + int(waits[stop - 1] - least) // FIRST
            start = int(np.searchsorted(waits, share, "right"))
            start = 0 if (share - least) * FINE <= upper else start
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
            if start + 1 < stop and width * FINE > upper:
                middle = (interval.least + interval.up_to) // 2
                half = int(np.searchsorted(waits, middle, "right"))
                half = min(max(half, start + 1), stop - 1)
                todo.append((half, stop, interval.price))
                todo.append((start, half, interval.price))
            else:
                found.append(interval)
        return [interval for interval in found if interval.bound < upper]
