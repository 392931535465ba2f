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

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from nest.search.dominance import drop_neighbours
from nest.search.options import (
    INFINITE,
    Ints,
    LooseOptions,
    PairOptions,
    StageFilter,
    StageOptions,
)
from nest.search.zones import Prices, Span, Zones

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

    ``stages`` holds ``(a, b, strategy, devices)``; ``total`` and ``wait`` are
    ``Σ o`` and ``max w`` (both at least), ``used`` the devices in each zone,
    and ``memory_bytes`` what the fullest device holds.
    """

    stages: tuple[tuple[int, int, int, int], ...]
    total: int
    wait: int
    used: tuple[int, ...]
    memory_bytes: int

    @property
    def devices(self) -> int:
        """``Σ n``."""
        return sum(self.used)


class _Stages(NamedTuple):
    """Stages on one span: the pairs with some lean option, by source.

    Attributes
    ----------
    number, span
        Of the zones.
    row
        Where every pair's shape is in the tables.
    source, target
        Of every pair.
    sources, first
        Sets that some pair begins at, and the first of these pairs.
    """

    number: int
    span: Span
    row: Ints
    source: Ints
    target: Ints
    sources: Ints
    first: Ints


#: Puts stages of these costs in front of what is behind.
Combine = Callable[[_Stages, Ints, Ints], Ints]

#: Puts stages of these costs behind what is in front.
Advance = Callable[[Span, np.int64, Ints], Ints]


class Costs(NamedTuple):
    """Least costs of paths.

    Attributes
    ----------
    behind
        From every set on, by number of stages, a row for each zone that the
        stage in front may end in; :data:`INFINITE` where there is no path.
    tables
        Of every shape in use, by number of stages left less one.
    cost
        Of every lean option.
    combine
        How costs add up.
    """

    behind: list[Ints]
    tables: list[Ints]
    cost: Ints
    combine: Combine


class Surroundings(NamedTuple):
    """What stages have in front and behind at least, under some prices.

    Attributes
    ----------
    prices
        Of devices; ``None`` where they are what is counted.
    room
        What all stages together may cost.
    front, behind
        Up to every set; from every set on, by number of stages. A row for
        each zone, or for stages of one span.
    """

    prices: Prices | None
    room: int
    front: Ints
    behind: Ints

    def at(self, span: Span, zones: Zones) -> Surroundings:
        """Return what stages of a span have around them."""
        front, behind = self.front[span.first], self.behind[:, span.last]
        if self.prices is None:
            front = np.maximum(front, zones.starts[span.first])
            behind = np.maximum(behind, zones.devices - zones.ends[span.last])
        return self._replace(front=front, behind=behind)


@dataclass(frozen=True)
class Interval:
    """Plans with a longest wait in ``[least, up_to]`` that may matter.

    Attributes
    ----------
    bound
        No such plan takes less time.
    prices
        Of devices, which give the bound.
    """

    least: int
    up_to: int
    bound: int
    prices: Prices


def _sum(_span: Span, front: np.int64, cost: Ints) -> Ints:
    """Return what is in front with stages behind it."""
    total: Ints = front + cost
    return total


def _paid(prices: Prices, devices: Sequence[int]) -> int:
    """Return what so many devices of each zone cost."""
    return sum(p * n for p, n in zip(prices, devices, strict=True))


def _better_prices(
    known: Sequence[Path], prices: Prices, room: Sequence[int]
) -> Prices | None:
    """Return prices with a better bound, if the paths known allow any.

    One zone's changes, one where the last path has more devices than there
    are if possible. With the other prices as they are, every path bounds what
    its price can give by a line: it is where the lines allow most (Kelley,
    *The cutting-plane method for solving convex programs*, J. SIAM 8, 1960).
    """
    most = int(INFINITE) // (4 * sum(room))
    for zone in sorted(
        range(len(room)), key=lambda z: room[z] - known[-1].used[z]
    ):
        others = (*prices[:zone], 0, *prices[zone + 1 :])
        lines = {
            (path.total + _paid(others, path.used), path.used[zone])
            for path in known
        }
        wide = [line for line in lines if line[1] > room[zone]]
        narrow = [line for line in lines if line[1] <= room[zone]]
        found = {
            (above - cost) // (used - fewer)
            for cost, used in wide
            for above, fewer in narrow
            if above > cost
        }
        price = max(
            found,
            key=lambda p: min(c + p * (n - room[zone]) for c, n in lines),
            default=prices[zone],
        )
        if price != prices[zone] and price <= most:
            return (*prices[:zone], price, *prices[zone + 1 :])
    return None


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
        limit: StageFilter,
        cap_bytes: int,
    ) -> None:
        self.options, self.zones = options, options.zones
        self.shapes, self.sets = options.shapes, options.shapes.sets
        caps = np.minimum(cap_bytes, options.span_bytes)
        fit = options.fit(found, caps[found.span])
        useful = fit >= options.need(1)
        useful &= limit.admits(found.once, found.wait)
        self.loose, self.fit = found.take(useful), fit[useful]
        columns = [self.loose.size, self.loose.once, self.loose.wait]
        group = self.loose.span * len(self.shapes) + self.loose.shape
        order = drop_neighbours(group, [*columns, -self.fit])
        #: What paths use: no option that another one beats.
        self.lean, self._lean_fit = self.loose.take(order), self.fit[order]
        group = group[order]
        self._first_row = np.flatnonzero(np.diff(group, prepend=-1))
        self._stages = [
            self._of_span(number, group[self._first_row])
            for number in np.unique(self.lean.span).tolist()
        ]
        self._known: dict[object, Costs] = {}

    def _of_span(self, number: int, groups: Ints) -> _Stages:
        """Return the stages of a span, given what is in the tables."""
        first = number * len(self.shapes)
        row = np.full(len(self.shapes), -1)
        rows = np.arange(*np.searchsorted(groups, [first, first + len(row)]))
        row[groups[rows] - first] = rows
        row = row[self.shapes.of_pair]
        pairs = np.flatnonzero(row >= 0)
        sources, starts = np.unique(
            self.sets.pair_source[pairs], return_index=True
        )
        return _Stages(
            number,
            self.zones.spans[number],
            row[pairs],
            self.sets.pair_source[pairs],
            self.sets.pair_target[pairs],
            sources,
            starts,
        )

    @cached_property
    def _waits(self) -> Ints:
        """How long others wait for some lean option, ascending."""
        return np.unique(self.lean.wait)

    # From the end

    def behind(
        self, loads: int, prices: Prices, most_wait: int, budget: int
    ) -> Costs:
        """Return the least cost from every set on.

        The cost is ``loads Σ o`` and the prices of the devices. Ends where
        more stages are of no use, or all costs exceed the budget.
        """
        key = (loads, prices, most_wait, budget)
        if key not in self._known:
            cost = loads * self.lean.once + self._charge(self.lean, prices)
            cost[self.lean.wait > most_wait] = INFINITE
            self._keep(key, self._behind(cost, self._added, budget))
        return self._known[key]

    def devices_behind(self, most_wait: int) -> Costs:
        """Return from every set on how far from the end stages begin."""
        if most_wait not in self._known:
            cost = np.where(
                self.lean.wait > most_wait, INFINITE, self.lean.size
            )
            budget = self.options.split.devices
            self._keep(most_wait, self._behind(cost, self._stood, budget))
        return self._known[most_wait]

    def _keep(self, key: object, costs: Costs) -> None:
        if len(self._known) >= REMEMBERED:
            self._known.clear()
        self._known[key] = costs

    def _charge(self, found: LooseOptions, prices: Prices) -> Ints:
        """Return what options pay for their devices at least."""
        if not any(prices):
            return np.zeros_like(found.size)
        if len(prices) == 1:
            whole: Ints = prices[0] * found.size
            return whole
        paid = np.zeros_like(found.size)
        for number, span in enumerate(self.zones.spans):
            rows = found.span == number
            paid[rows] = self.zones.charge(span, found.size[rows], prices)
        return paid

    def _added(self, stages: _Stages, behind: Ints, cost: Ints) -> Ints:
        """Return costs with a stage in front."""
        added: Ints = cost + behind[stages.span.last][stages.target]
        return added

    def _stood(self, stages: _Stages, behind: Ints, size: Ints) -> Ints:
        """Return how far from the end a stage in front begins at least."""
        zones, (first, last) = self.zones, stages.span
        devices = self.options.split.devices
        end = np.maximum(
            behind[last][stages.target], devices - zones.ends[last]
        )
        begin = end + size
        if first < last:
            begin = np.maximum(begin, devices - zones.ends[first] + 1)
            begin[end >= devices - zones.starts[last]] = INFINITE
        begin[begin > devices - zones.starts[first]] = INFINITE
        found: Ints = begin
        return found

    def _behind(self, cost: Ints, combine: Combine, budget: int) -> Costs:
        """Return the least costs behind, given those of the lean options.

        Row ``z`` is for a stage in front that ends in zone ``z``: the next
        one begins there or in the next zone.
        """
        shape = len(self.zones.starts), self.sets.count
        values = np.full(shape, INFINITE)
        values[:, -1] = 0
        found, least = [values], values
        tables: list[Ints] = []
        needs: list[int] = []
        for stages in range(1, self.options.stage_counts[-1] + 1):
            need = self.options.need(stages)
            if not needs or need > needs[-1]:
                fits = np.where(self._lean_fit >= need, cost, INFINITE)
                table = np.minimum.reduceat(fits, self._first_row)
                of_pair = [table[part.row] for part in self._stages]
            tables.append(table)
            needs.append(need)
            values = np.full(shape, INFINITE)
            for part, own in zip(self._stages, of_pair, strict=True):
                begins = values[part.span.first]
                begins[part.sources] = np.minimum(
                    begins[part.sources],
                    np.minimum.reduceat(
                        combine(part, found[-1], own), part.first
                    ),
                )
            np.minimum(values[:-1], values[1:], out=values[:-1])
            np.minimum(values, INFINITE, out=values)
            # Where numbers of stages are restricted, all of them count.
            idle = not self.options.restricted and (values >= least).all()
            if idle or values.min() > budget:
                break
            found.append(values)
            least = np.minimum(least, values)
        return Costs(found, tables, cost, combine)

    def root(self, costs: Costs) -> tuple[int, int]:
        """Return the least cost of a whole path, and its stages."""
        return min(
            (
                (int(costs.behind[count][0, 0]), count)
                for count in self.options.stage_counts
                if count < len(costs.behind)
            ),
            default=(int(INFINITE), 0),
        )

    def trace(self, costs: Costs, prices: Prices | None = None) -> Path:
        """Return the cheapest path; there must be one."""
        _, count = self.root(costs)
        stages = []
        used = np.zeros(len(self.zones.starts), dtype=np.int64)
        source = zone = total = wait = memory = 0
        for left in range(count, 0, -1):
            need = self.options.need(left)
            _, part, pair = min(
                self._next(part, source, costs, left)
                for part, stage in enumerate(self._stages)
                if stage.span.first in (zone, zone + 1)
            )
            stage = self._stages[part]
            group = stage.row[pair]
            start = int(self._first_row[group])
            # The first row that costs as much and fits.
            row = start + int(
                np.argmax(
                    (costs.cost[start:] == costs.tables[left - 1][group])
                    & (self._lean_fit[start:] >= need)
                )
            )
            size = int(self.lean.size[row])
            target = int(stage.target[pair])
            stages.append((source, target, int(self.lean.strategy[row]), size))
            source, zone = target, stage.span.last
            total += int(self.lean.once[row])
            wait = max(wait, int(self.lean.wait[row]))
            used += np.array(
                self.zones.shares(
                    stage.span, np.array(size), prices or self.zones.free
                )
            )
            kept = need * int(self.lean.kept_bytes[row])
            memory = max(memory, int(self.lean.fixed_bytes[row]) + kept)
        return Path(tuple(stages), total, wait, tuple(used.tolist()), memory)

    def _next(
        self, number: int, source: int, costs: Costs, left: int
    ) -> tuple[int, int, int]:
        """Return the least cost of a stage from a set, and which it is."""
        part = self._stages[number]
        place = int(np.searchsorted(part.sources, source))
        if place == len(part.sources) or part.sources[place] != source:
            return int(INFINITE), number, 0
        ends = np.append(part.first, len(part.row))
        pairs = slice(*ends[place : place + 2].tolist())
        own = costs.tables[left - 1][part.row[pairs]]
        chosen = part._replace(target=part.target[pairs])
        found = costs.combine(chosen, costs.behind[left - 1], own)
        best = int(np.argmin(found))
        return int(found[best]), number, pairs.start + best

    def fewest_devices(self, most_wait: int) -> Costs | None:
        """Return the devices from every set on; ``None`` if too many."""
        costs = self.devices_behind(most_wait)
        enough = self.root(costs)[0] <= self.options.split.devices
        return costs if enough else None

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
        self, most_wait: int, prices: Prices | None = None
    ) -> Iterator[tuple[int, Prices, Path]]:
        """Try prices of devices; return bounds on ``Σ o`` and paths.

        Parameters
        ----------
        most_wait
            Of plans with ``max w`` up to that.
        prices
            Try only these; by default the best few.

        Yields
        ------
        tuple
            A lower bound on ``Σ o``, its prices, and the path of them.
        """
        room = self.zones.sizes
        rounds, known = 1, []
        if prices is None:
            costs = self.fewest_devices(most_wait)
            if costs is None:
                return
            rounds, prices = PRICES * len(room), self.zones.free
            known = [self.trace(costs)]
            yield 0, prices, known[0]
        for _ in range(rounds):
            costs = self.behind(1, prices, most_wait, EVERYTHING)
            value, _ = self.root(costs)
            if value >= INFINITE:
                return
            path = self.trace(costs, prices)
            yield value - _paid(prices, room), prices, path
            known.append(path)
            better = _better_prices(known, prices, room)
            if better is None:
                return
            prices = better

    # From both sides

    def _front(self, costs: Costs, left: Ints, advance: Advance) -> Ints:
        """Return the least cost up to every set.

        Row ``z`` is for a next stage that begins in zone ``z``. ``left`` is
        the least number of stages behind every set.
        """
        zones, count = len(self.zones.starts), self.sets.count
        values = np.full((zones, count), INFINITE)
        values[0, 0] = 0
        tables = np.stack(costs.tables)
        steps: list[tuple[Span, Ints, Ints, list[int]]] = []
        for part in self._stages:
            behind = left[part.target]
            cost = np.full(len(behind), INFINITE)
            reachable = np.flatnonzero(behind < INFINITE)
            # The more stages behind, the more in flight, the fewer fit.
            least = np.minimum(behind[reachable], len(tables) - 1)
            cost[reachable] = tables[least, part.row[reachable]]
            starts = np.searchsorted(part.source, np.arange(count + 1))
            steps.append((part.span, part.target, cost, starts.tolist()))
        for source in range(count - 1):
            for span, targets, cost, first in steps:
                pairs = slice(first[source], first[source + 1])
                target = targets[pairs]
                new = advance(span, values[span.first, source], cost[pairs])
                for row in values[span.last : span.last + 2]:
                    row[target] = np.minimum(row[target], new)
        return values

    def _stands(self, span: Span, front: np.int64, size: Ints) -> Ints:
        """Return the least offset at which a stage behind others ends."""
        zones, (first, last) = self.zones, span
        begin = np.maximum(front, zones.starts[first])
        if first < last:
            begin = np.maximum(begin, zones.starts[last] + 1 - size)
        end: Ints = begin + size
        end[(begin >= zones.ends[first]) | (end > zones.ends[last])] = INFINITE
        return end

    def survivors(
        self, interval: Interval, upper: int, level: int
    ) -> PairOptions:
        """Return the options that may be part of a plan below ``upper``.

        Only plans of the interval matter.
        """
        most_wait, zones = interval.up_to, self.zones
        devices = self.devices_behind(most_wait)
        left = np.full(self.sets.count, INFINITE)
        for count in range(len(devices.behind) - 1, -1, -1):
            left[(devices.behind[count] < INFINITE).any(axis=0)] = count
        around = [
            Surroundings(
                None,
                self.options.split.devices,
                self._front(devices, left, self._stands),
                np.minimum.accumulate(devices.behind, axis=0),
            )
        ]
        for prices in sorted({zones.free, interval.prices}):
            costs = self.behind(1, prices, most_wait, EVERYTHING)
            around.append(
                Surroundings(
                    prices,
                    upper - 1 + _paid(prices, zones.sizes),
                    self._front(costs, left, _sum),
                    np.minimum.accumulate(costs.behind, axis=0),
                )
            )
        rows = self.loose.wait <= most_wait
        return PairOptions.concatenate(
            [
                self._surviving(
                    np.flatnonzero(rows & (self.loose.span == part.number)),
                    part,
                    interval,
                    [x.at(part.span, zones) for x in around],
                    level,
                )
                for part in self._stages
            ]
        )

    def _surviving(
        self,
        rows: Ints,
        part: _Stages,
        interval: Interval,
        around: list[Surroundings],
        level: int,
    ) -> PairOptions:
        """Return the options on a span that are left, of some of them."""
        sets, shapes, zones = self.sets, self.shapes, self.zones
        found, fit = self.loose.take(rows), self.fit[rows]
        slack = np.maximum(found.wait, interval.least) + found.sync

        def cost(prices: Prices | None) -> Ints:
            if prices is None:
                return found.size
            paid: Ints = found.once + slack + self._charge(found, prices)
            return paid

        # First the best pair of every shape, then every pair.
        useful = np.ones(len(found), dtype=np.bool_)
        for prices, room, front, behind in around:
            rest = front[sets.pair_source] + behind[-1][sets.pair_target]
            best = np.minimum.reduceat(
                rest[shapes.pairs], shapes.first_pair[:-1]
            )
            useful &= cost(prices) + best[found.shape] <= room
        found, fit, slack = found.take(useful), fit[useful], slack[useful]
        width = np.diff(shapes.first_pair)[found.shape]
        row = np.repeat(np.arange(len(found)), width)
        position = np.arange(len(row)) - np.repeat(
            np.cumsum(width) - width, width
        )
        pair = shapes.pairs[shapes.first_pair[found.shape[row]] + position]
        source, target = sets.pair_source[pair], sets.pair_target[pair]
        most = self.options.most_behind(fit)[row]
        useful = np.ones(len(row), dtype=np.bool_)
        beside = []
        for prices, room, front, behind in around:
            back = behind[np.minimum(most, len(behind) - 1), target]
            useful &= cost(prices)[row] + front[source] + back <= room
            beside.append((front[source], back))
        row, pair = row[useful], pair[useful]
        beside = [(f[useful], b[useful]) for f, b in beside]
        size = found.size[row]
        first, last = zones.window(part.span, size)
        first = np.maximum(first, beside[0][0])
        last = np.minimum(last, zones.devices - size - beside[0][1])
        prices = around[-1].prices
        if prices and any(prices):
            # Few devices in front make them slow, many those behind: with
            # the prices paid on one side only, that bounds the offset.
            (front, back), (priced_front, priced_back) = beside[-2:]
            left = around[1].room - cost(zones.free)[row]
            paid = zones.paid(prices)
            first = np.maximum(
                first, np.searchsorted(paid, priced_front + back - left)
            )
            most_paid = paid[-1] - (front + priced_back - left)
            end = np.searchsorted(paid, most_paid, "right") - 1
            last = np.minimum(last, end - size)
        fits = first <= last
        row, pair, first, last = (c[fits] for c in (row, pair, first, last))
        return PairOptions(
            level=np.full(len(row), level, dtype=np.int64),
            span=found.span[row],
            pair=pair,
            strategy=found.strategy[row],
            size=found.size[row],
            fixed_bytes=found.fixed_bytes[row],
            kept_bytes=found.kept_bytes[row],
            max_inflight=fit[row],
            first=first,
            last=last,
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
        ends = np.append(waits[1:] - 1, self.loose.wait.max())

        def bounded(start: int, stop: int, prices: Prices | None) -> Interval:
            """Bound the plans with a longest wait among some waits."""
            nonlocal upper
            low, high = int(waits[start]), int(ends[stop - 1])
            free = self.zones.free
            found = Interval(low, high, int(INFINITE), prices or free)
            bound = -1
            for value, tried, path in self.cheapest(high, prices):
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
        todo: list[tuple[int, int, Prices | None]] = []
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
            start, stop, prices = todo.pop()
            interval = bounded(start, stop, prices)
            if interval.bound >= upper:
                continue
            width = interval.up_to - interval.least
            if start + 1 < stop and width * FINE > upper:
                middle = (interval.least + interval.up_to) // 2
                half = int(np.searchsorted(waits, middle, "right"))
                half = min(max(half, start + 1), stop - 1)
                todo.append((half, stop, interval.prices))
                todo.append((start, half, interval.prices))
            else:
                found.append(interval)
        return [interval for interval in found if interval.bound < upper]
