"""Lower bounds without device ranges: shortest paths over closed sets.

This relaxation ignores where a stage is. The time ``o`` that the stage adds
once, and the time ``w`` that all other stages wait for it, are the least over
all device ranges (1F1B: ``τ`` and ``(M-1) τ``). The devices are a budget
``P``. The stages of a plan with ``max w <= W`` are a path of closed sets whose
sizes add up to at most ``P``, so for any multiplier ``μ >= 0`` of a device

``Σ o >= min (Σ o + μ Σ n) - μ P``

over such paths (the Lagrangian bound of a constrained shortest path; Handler
and Zang, *A dual algorithm for the constrained shortest path problem*,
Networks 10, 1980). Stages are counted from the end of the pipeline, so that
in-flight counts are exact. A path within the budget is a
plan, unless types of devices differ: then its device ranges may not have the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from nest.search.stages.dominance import drop_neighbours
from nest.search.stages.options import (
    INFINITE,
    Ints,
    LooseOptions,
    PairOptions,
    StageFilter,
    StageOptions,
    unique,
)
from nest.search.stages.zones import Multipliers, Span, Zones

#: The first intervals of ``max w`` end at this fraction of what remains.
FIRST = 8

#: An interval is not cut again if ``max w`` varies by at most this fraction of
#: the step time.
FINE = 100

#: Number of bisections that search the least ``max w``.
HALVINGS = 7

#: Upper limit of the cost of a path.
EVERYTHING = int(INFINITE) - 1

#: Number of cost tables in the cache.
REMEMBERED = 16

#: Number of multipliers that are tried for one interval and zone.
NUM_MULTIPLIERS = 4


@dataclass(frozen=True)
class Path:
    """A path from the empty set to all: a plan without offsets.

    ``stages`` are tuples ``(a, b, strategy, devices)``, ``total`` and ``wait``
    are lower bounds on ``Σ o`` and ``max w``, ``used`` are the devices in each
    zone, and ``memory_bytes`` is the memory of the fullest device.
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
    """The stages on one span: pairs with a lean option, ordered by source."""

    #: Position of the span, and its zones.
    number: int
    span: Span
    #: Row of each pair's shape in the tables.
    row: Ints
    #: Closed sets of each pair.
    source: Ints
    target: Ints
    #: The sets at which pairs begin, and the first pair of each.
    sources: Ints
    first: Ints


#: Returns the costs from a stage on, given the costs after the stage.
Combine = Callable[[_Stages, Ints, Ints], Ints]

#: Returns the costs up to a stage, given the cost before the stage.
Advance = Callable[[Span, np.int64, Ints], Ints]


class Costs(NamedTuple):
    """Least costs of paths, by number of stages."""

    #: Least cost from every set on, by number of stages. A row for each zone in which
    #: the previous stage may end; :data:`INFINITE` if there is no path.
    costs_after: list[Ints]
    #: Least cost of each shape, by number of remaining stages minus 1.
    tables: list[Ints]
    #: Cost of each lean option.
    cost: Ints
    #: How costs add up.
    combine: Combine


class Surroundings(NamedTuple):
    """Least costs before and after stages, under multipliers of devices."""

    #: The multipliers; ``None`` if the cost is the number of devices.
    multipliers: Multipliers | None
    #: Maximum cost of all stages together.
    room: int
    #: Least cost up to each set; and from each set on, by number of stages. A row for
    #: each zone, or for the stages of one span.
    before: Ints
    costs_after: Ints

    def at(self, span: Span, zones: Zones) -> Surroundings:
        """Return the costs before and after the stages of one span."""
        before, after = self.before[span.first], self.costs_after[:, span.last]
        if self.multipliers is None:
            before = np.maximum(before, zones.starts[span.first])
            after = np.maximum(after, zones.devices - zones.ends[span.last])
        return self._replace(before=before, costs_after=after)


@dataclass(frozen=True)
class Interval:
    """Plans with ``max w`` in ``[least, up_to]`` that may be improvements."""

    least: int
    up_to: int
    #: Lower bound on their step time.
    bound: int
    #: The multipliers of devices that give the bound.
    multipliers: Multipliers


def _add(_span: Span, before: np.int64, cost: Ints) -> Ints:
    """Return the costs up to stages, given the cost before them."""
    total: Ints = before + cost
    return total


def _total_charge(multipliers: Multipliers, devices: Sequence[int]) -> int:
    """Return the charge of these numbers of devices in each zone."""
    return sum(p * n for p, n in zip(multipliers, devices, strict=True))


def _better_multipliers(
    paths: Sequence[Path], multipliers: Multipliers, room: Sequence[int]
) -> Multipliers | None:
    """Return multipliers with a better bound, if the known paths allow any.

    One multiplier changes, if possible that of a zone in which the last path uses too
    many devices. With the other multipliers fixed, each path bounds the result by a
    line. The new multiplier maximizes the minimum of the lines (Kelley, *The
    cutting-plane method for solving convex programs*, J. SIAM 8, 1960).
    """
    max_multiplier = int(INFINITE) // (4 * sum(room))
    for zone in sorted(range(len(room)), key=lambda z: room[z] - paths[-1].used[z]):
        others = (*multipliers[:zone], 0, *multipliers[zone + 1 :])
        lines = {
            (path.total + _total_charge(others, path.used), path.used[zone])
            for path in paths
        }
        wide = [line for line in lines if line[1] > room[zone]]
        narrow = [line for line in lines if line[1] <= room[zone]]
        if not narrow:
            # Any multiplier gives a bound. Assume a path that fits and is no faster.
            narrow = [(max(path.total for path in paths), room[zone])]
            lines |= {*narrow}
        candidates = {
            (above - cost) // (used - fewer)
            for cost, used in wide
            for above, fewer in narrow
            if above > cost
        }
        multiplier = max(
            candidates,
            key=lambda p: min(c + p * (n - room[zone]) for c, n in lines),
            default=multipliers[zone],
        )
        if multiplier != multipliers[zone] and multiplier <= max_multiplier:
            return (*multipliers[:zone], multiplier, *multipliers[zone + 1 :])
    return None


class Paths:
    """Shortest paths through the loose options of one split.

    Parameters
    ----------
    options
        Stage options of the split.
    loose
        Its loose options.
    limit
        Filter of the stages that a better plan may have.
    cap_bytes
        Memory per device.
    """

    def __init__(
        self,
        options: StageOptions,
        loose: LooseOptions,
        limit: StageFilter,
        cap_bytes: int,
    ) -> None:
        self.options, self.zones = options, options.zones
        self.shapes, self.sets = options.shapes, options.shapes.sets
        caps = np.minimum(cap_bytes, options.span_bytes)
        fit = options.fit(loose, caps[loose.span])
        useful = fit >= options.need(1)
        useful &= limit.admits(loose.once, loose.wait)
        self.loose, self.fit = loose.take(useful), fit[useful]
        columns = [self.loose.size, self.loose.once, self.loose.wait]
        group = self.loose.span * len(self.shapes) + self.loose.shape
        order = drop_neighbours(group, [*columns, -self.fit])
        #: The options that paths use: those that no other one dominates.
        self.lean, self._lean_fit = self.loose.take(order), self.fit[order]
        group = group[order]
        self._first_row = np.flatnonzero(np.diff(group, prepend=-1))
        self._stages = [
            self._of_span(span, group[self._first_row])
            for span in unique(self.lean.span).tolist()
        ]
        self._cache: dict[object, Costs] = {}

    def _of_span(self, span: int, groups: Ints) -> _Stages:
        """Return the stages of a span, given the groups of the tables."""
        first = span * len(self.shapes)
        row = np.full(len(self.shapes), -1)
        rows = np.arange(*np.searchsorted(groups, [first, first + len(row)]))
        row[groups[rows] - first] = rows
        row = row[self.shapes.of_pair]
        pairs = np.flatnonzero(row >= 0)
        sources, starts = np.unique(self.sets.pair_source[pairs], return_index=True)
        return _Stages(
            span,
            self.zones.spans[span],
            row[pairs],
            self.sets.pair_source[pairs],
            self.sets.pair_target[pairs],
            sources,
            starts,
        )

    @cached_property
    def _waits(self) -> Ints:
        """The times ``w`` of the lean options, ascending."""
        return unique(self.lean.wait)

    # From the end

    def costs_after(
        self, loads: int, multipliers: Multipliers, most_wait: int, budget: int
    ) -> Costs:
        """Return the least cost from every set on.

        The cost is ``loads Σ o`` plus the charge of the devices. Numbers of stages end
        where more stages never cost less, or where all costs exceed the budget.
        """
        key = (loads, multipliers, most_wait, budget)
        if key not in self._cache:
            cost = loads * self.lean.once + self._charge(self.lean, multipliers)
            cost[self.lean.wait > most_wait] = INFINITE
            self._remember(key, self._min_costs_after(cost, self._sum_after, budget))
        return self._cache[key]

    def min_devices_after(self, most_wait: int) -> Costs:
        """Return the least number of devices from every set on."""
        if most_wait not in self._cache:
            cost = np.where(self.lean.wait > most_wait, INFINITE, self.lean.size)
            budget = self.options.split.devices
            self._remember(
                most_wait, self._min_costs_after(cost, self._begin_from_end, budget)
            )
        return self._cache[most_wait]

    def _remember(self, key: object, costs: Costs) -> None:
        if len(self._cache) >= REMEMBERED:
            self._cache.clear()
        self._cache[key] = costs

    def _charge(self, options: LooseOptions, multipliers: Multipliers) -> Ints:
        """Return the least charge of the devices of options."""
        if not any(multipliers):
            return np.zeros_like(options.size)
        if len(multipliers) == 1:
            whole: Ints = multipliers[0] * options.size
            return whole
        paid = np.zeros_like(options.size)
        for index, span in enumerate(self.zones.spans):
            rows = options.span == index
            paid[rows] = self.zones.charge(span, options.size[rows], multipliers)
        return paid

    def _sum_after(self, stages: _Stages, after: Ints, cost: Ints) -> Ints:
        """Return the costs from stages on, given the costs after them."""
        added: Ints = cost + after[stages.span.last][stages.target]
        return added

    def _begin_from_end(self, stages: _Stages, after: Ints, size: Ints) -> Ints:
        """Return the least distance from a stage's begin to the end."""
        zones, (first, last) = self.zones, stages.span
        devices = self.options.split.devices
        end = np.maximum(after[last][stages.target], devices - zones.ends[last])
        begin = end + size
        if first < last:
            begin = np.maximum(begin, devices - zones.ends[first] + 1)
            begin[end >= devices - zones.starts[last]] = INFINITE
        begin[begin > devices - zones.starts[first]] = INFINITE
        found: Ints = begin
        return found

    def _min_costs_after(self, cost: Ints, combine: Combine, budget: int) -> Costs:
        """Return the least costs from every set on, by number of stages.

        ``cost`` is the cost of each lean option. Row ``z`` is for a previous stage that
        ends in zone ``z``: the next stage begins there or in the next zone.
        """
        shape = len(self.zones.starts), self.sets.count
        values = np.full(shape, INFINITE)
        values[:, -1] = 0
        after, min_values = [values], values
        tables: list[Ints] = []
        needs: list[int] = []
        for stages in range(1, self.options.stage_counts[-1] + 1):
            need = self.options.need(stages)
            if not needs or need > needs[-1]:
                fits = np.where(self._lean_fit >= need, cost, INFINITE)
                table = np.minimum.reduceat(fits, self._first_row)
                of_pair = [table[stage.row] for stage in self._stages]
            tables.append(table)
            needs.append(need)
            values = np.full(shape, INFINITE)
            for stage, stage_cost in zip(self._stages, of_pair, strict=True):
                begins = values[stage.span.first]
                begins[stage.sources] = np.minimum(
                    begins[stage.sources],
                    np.minimum.reduceat(
                        combine(stage, after[-1], stage_cost), stage.first
                    ),
                )
            np.minimum(values[:-1], values[1:], out=values[:-1])
            np.minimum(values, INFINITE, out=values)
            # If numbers of stages are restricted, all of them are needed.
            idle = not self.options.restricted and (values >= min_values).all()
            if idle or values.min() > budget:
                break
            after.append(values)
            min_values = np.minimum(min_values, values)
        return Costs(after, tables, cost, combine)

    def root(self, costs: Costs) -> tuple[int, int]:
        """Return the least cost of a complete path, and its stages."""
        return min(
            (
                (int(costs.costs_after[count][0, 0]), count)
                for count in self.options.stage_counts
                if count < len(costs.costs_after)
            ),
            default=(int(INFINITE), 0),
        )

    def trace(self, costs: Costs, multipliers: Multipliers | None = None) -> Path:
        """Return the cheapest path; there must be one."""
        _, count = self.root(costs)
        stages = []
        used = np.zeros(len(self.zones.starts), dtype=np.int64)
        source = zone = total = wait = memory = 0
        for remaining in range(count, 0, -1):
            need = self.options.need(remaining)
            _, stage_index, pair = min(
                self._next(stage_index, source, costs, remaining)
                for stage_index, stage in enumerate(self._stages)
                if stage.span.first in (zone, zone + 1)
            )
            stage = self._stages[stage_index]
            group = stage.row[pair]
            start = int(self._first_row[group])
            # The first row that costs as much and fits.
            row = start + int(
                np.argmax(
                    (costs.cost[start:] == costs.tables[remaining - 1][group])
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
                    stage.span, np.array(size), multipliers or self.zones.free
                )
            )
            kept_bytes = need * int(self.lean.kept_bytes[row])
            memory = max(memory, int(self.lean.fixed_bytes[row]) + kept_bytes)
        return Path(tuple(stages), total, wait, tuple(used.tolist()), memory)

    def _next(
        self, index: int, source: int, costs: Costs, remaining: int
    ) -> tuple[int, int, int]:
        """Return the least cost from a set on, and its first stage."""
        stages = self._stages[index]
        position = int(np.searchsorted(stages.sources, source))
        if position == len(stages.sources) or stages.sources[position] != source:
            return int(INFINITE), index, 0
        ends = np.append(stages.first, len(stages.row))
        pairs = slice(*ends[position : position + 2].tolist())
        stage_cost = costs.tables[remaining - 1][stages.row[pairs]]
        chosen = stages._replace(target=stages.target[pairs])
        totals = costs.combine(chosen, costs.costs_after[remaining - 1], stage_cost)
        best = int(np.argmin(totals))
        return int(totals[best]), index, pairs.start + best

    def fewest_devices(self, most_wait: int) -> Costs | None:
        """Return the devices from every set on; ``None`` if too many."""
        costs = self.min_devices_after(most_wait)
        enough = self.root(costs)[0] <= self.options.split.devices
        return costs if enough else None

    def smallest(self) -> Path | None:
        """Return the plan of the fewest devices, if there is any plan."""
        if not len(self.lean):
            return None
        costs = self.fewest_devices(int(self.lean.wait.max()))
        return costs and self.trace(costs)

    def least_wait(self) -> int | None:
        """Return a lower bound on ``max w``; ``None`` if there is no plan.

        The bisection stops early, so the bound may not be reached.
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
        self, most_wait: int, multipliers: Multipliers | None = None
    ) -> Iterator[tuple[int, Multipliers, Path]]:
        """Try multipliers of devices; yield bounds on ``Σ o`` and paths.

        Parameters
        ----------
        most_wait
            Upper limit of ``max w``.
        multipliers
            Try only these. Default: a few that improve the bound.

        Yields
        ------
        tuple
            A lower bound on ``Σ o``, its multipliers, and their best path.
        """
        room = self.zones.sizes
        rounds, paths = 1, []
        if multipliers is None:
            costs = self.fewest_devices(most_wait)
            if costs is None:
                return
            rounds, multipliers = NUM_MULTIPLIERS * len(room), self.zones.free
            paths = [self.trace(costs)]
            yield 0, multipliers, paths[0]
        for _ in range(rounds):
            costs = self.costs_after(1, multipliers, most_wait, EVERYTHING)
            value, _ = self.root(costs)
            if value >= INFINITE:
                return
            path = self.trace(costs, multipliers)
            yield value - _total_charge(multipliers, room), multipliers, path
            paths.append(path)
            better = _better_multipliers(paths, multipliers, room)
            if better is None:
                return
            multipliers = better

    # From both sides

    def _min_costs_before(
        self, costs: Costs, stages_after: Ints, advance: Advance
    ) -> Ints:
        """Return the least cost up to every set.

        Row ``z`` is for a next stage that begins in zone ``z``.
        ``stages_after`` is the least number of stages after every set.
        """
        zones, count = len(self.zones.starts), self.sets.count
        values = np.full((zones, count), INFINITE)
        values[0, 0] = 0
        tables = np.stack(costs.tables)
        steps: list[tuple[Span, Ints, Ints, list[int]]] = []
        for stages in self._stages:
            remaining = stages_after[stages.target]
            cost = np.full(len(remaining), INFINITE)
            reachable = np.flatnonzero(remaining < INFINITE)
            # More stages after a stage need more memory for activations.
            min_remaining = np.minimum(remaining[reachable], len(tables) - 1)
            cost[reachable] = tables[min_remaining, stages.row[reachable]]
            starts = np.searchsorted(stages.source, np.arange(count + 1))
            steps.append((stages.span, stages.target, cost, starts.tolist()))
        for source in range(count - 1):
            for span, targets, cost, first in steps:
                pairs = slice(first[source], first[source + 1])
                target = targets[pairs]
                new = advance(span, values[span.first, source], cost[pairs])
                for row in values[span.last : span.last + 2]:
                    row[target] = np.minimum(row[target], new)
        return values

    def _end_offset(self, span: Span, before: np.int64, size: Ints) -> Ints:
        """Return the least offset at which stages end."""
        zones, (first, last) = self.zones, span
        begin = np.maximum(before, zones.starts[first])
        if first < last:
            begin = np.maximum(begin, zones.starts[last] + 1 - size)
        end: Ints = begin + size
        end[(begin >= zones.ends[first]) | (end > zones.ends[last])] = INFINITE
        return end

    def survivors(self, interval: Interval, upper: int, level: int) -> PairOptions:
        """Return the options of plans of the interval below ``upper``."""
        most_wait, zones = interval.up_to, self.zones
        devices = self.min_devices_after(most_wait)
        stages_after = np.full(self.sets.count, INFINITE)
        for count in range(len(devices.costs_after) - 1, -1, -1):
            stages_after[(devices.costs_after[count] < INFINITE).any(axis=0)] = count
        around = [
            Surroundings(
                None,
                self.options.split.devices,
                self._min_costs_before(devices, stages_after, self._end_offset),
                np.minimum.accumulate(devices.costs_after, axis=0),
            )
        ]
        for multipliers in sorted({zones.free, interval.multipliers}):
            costs = self.costs_after(1, multipliers, most_wait, EVERYTHING)
            around.append(
                Surroundings(
                    multipliers,
                    upper - 1 + _total_charge(multipliers, zones.sizes),
                    self._min_costs_before(costs, stages_after, _add),
                    np.minimum.accumulate(costs.costs_after, axis=0),
                )
            )
        rows = self.loose.wait <= most_wait
        return PairOptions.concatenate(
            [
                self._surviving(
                    np.flatnonzero(rows & (self.loose.span == stages.number)),
                    stages,
                    interval,
                    [x.at(stages.span, zones) for x in around],
                    level,
                )
                for stages in self._stages
            ]
        )

    def _surviving(
        self,
        rows: Ints,
        stages: _Stages,
        interval: Interval,
        around: list[Surroundings],
        level: int,
    ) -> PairOptions:
        """Return which options of a span may be part of such a plan."""
        sets, shapes, zones = self.sets, self.shapes, self.zones
        options, fit = self.loose.take(rows), self.fit[rows]
        slack = np.maximum(options.wait, interval.least) + options.sync

        def cost(multipliers: Multipliers | None) -> Ints:
            if multipliers is None:
                return options.size
            paid: Ints = options.once + slack + self._charge(options, multipliers)
            return paid

        # First the best pair of every shape, then every pair.
        useful = np.ones(len(options), dtype=np.bool_)
        for multipliers, room, before, after in around:
            rest = before[sets.pair_source] + after[-1][sets.pair_target]
            best = np.minimum.reduceat(rest[shapes.pairs], shapes.first_pair[:-1])
            useful &= cost(multipliers) + best[options.shape] <= room
        options, fit, slack = options.take(useful), fit[useful], slack[useful]
        width = np.diff(shapes.first_pair)[options.shape]
        row = np.repeat(np.arange(len(options)), width)
        position = np.arange(len(row)) - np.repeat(np.cumsum(width) - width, width)
        pair = shapes.pairs[shapes.first_pair[options.shape[row]] + position]
        source, target = sets.pair_source[pair], sets.pair_target[pair]
        max_after = self.options.max_stages_after(fit)[row]
        useful = np.ones(len(row), dtype=np.bool_)
        bounds = []
        for multipliers, room, before, after in around:
            bound_after = after[np.minimum(max_after, len(after) - 1), target]
            useful &= cost(multipliers)[row] + before[source] + bound_after <= room
            bounds.append((before[source], bound_after))
        row, pair = row[useful], pair[useful]
        bounds = [(f[useful], b[useful]) for f, b in bounds]
        size = options.size[row]
        first, last = zones.window(stages.span, size)
        first = np.maximum(first, bounds[0][0])
        last = np.minimum(last, zones.devices - size - bounds[0][1])
        multipliers = around[-1].multipliers
        if multipliers and any(multipliers):
            # With few devices the stages before are slow, with many devices the stages
            # after: charging the devices of one side only bounds the offset.
            (before, after), (charged_before, charged_after) = bounds[-2:]
            free_slack = around[1].room - cost(zones.free)[row]
            paid = zones.paid(multipliers)
            first = np.maximum(
                first, np.searchsorted(paid, charged_before + after - free_slack)
            )
            max_paid = paid[-1] - (before + charged_after - free_slack)
            end = np.searchsorted(paid, max_paid, "right") - 1
            last = np.minimum(last, end - size)
        fits = first <= last
        row, pair, first, last = (c[fits] for c in (row, pair, first, last))
        return PairOptions(
            level=np.full(len(row), level, dtype=np.int64),
            span=options.span[row],
            pair=pair,
            strategy=options.strategy[row],
            size=options.size[row],
            fixed_bytes=options.fixed_bytes[row],
            kept_bytes=options.kept_bytes[row],
            max_inflight=fit[row],
            first=first,
            last=last,
        )

    def intervals(self, upper: int, offer: Callable[[Path], int]) -> list[Interval]:
        """Return the intervals that may hold a plan below ``upper``.

        Parameters
        ----------
        upper
            The step time that plans must be below.
        offer
            Called with each path that is a plan; returns the new ``upper``.
        """
        min_wait = self.least_wait()
        if min_wait is None:
            return []
        waits = self._waits[self._waits >= min_wait]
        # Other options have times ``w`` between those of lean options.
        ends = np.append(waits[1:] - 1, self.loose.wait.max())

        # Good plans are close to the least wait. Search there first, and cut
        # the intervals that stay open in halves.
        todo: list[tuple[int, int, Multipliers | None]] = []
        stop = len(waits)
        while stop > 0:
            share = min_wait + int(waits[stop - 1] - min_wait) // FIRST
            start = int(np.searchsorted(waits, share, "right"))
            start = 0 if (share - min_wait) * FINE <= upper else start
            start = min(start, stop - 1)
            todo.append((start, stop, None))
            stop = start
        intervals = []
        while todo:
            start, stop, multipliers = todo.pop()
            interval, upper = self._bounded(
                *(int(waits[start]), int(ends[stop - 1]), multipliers), upper, offer
            )
            if interval.bound >= upper:
                continue
            width = interval.up_to - interval.least
            if start + 1 < stop and width * FINE > upper:
                middle = (interval.least + interval.up_to) // 2
                half = int(np.searchsorted(waits, middle, "right"))
                half = min(max(half, start + 1), stop - 1)
                todo.append((half, stop, interval.multipliers))
                todo.append((start, half, interval.multipliers))
            else:
                intervals.append(interval)
        return [interval for interval in intervals if interval.bound < upper]

    def refined(
        self, intervals: Sequence[Interval], upper: int, offer: Callable[[Path], int]
    ) -> list[Interval]:
        """Return the intervals that stay open under multipliers of their own.

        An interval that was cut in halves has those of the whole, whose paths may
        wait longer. The parameters are those of :meth:`intervals`.
        """
        narrow = []
        for interval in intervals:
            if interval.bound < upper:
                bounded, upper = self._bounded(
                    *(interval.least, interval.up_to, None), upper, offer
                )
                narrow.append(max(interval, bounded, key=attrgetter("bound")))
        return narrow

    def _bounded(
        self,
        min_wait: int,
        up_to: int,
        multipliers: Multipliers | None,
        upper: int,
        offer: Callable[[Path], int],
    ) -> tuple[Interval, int]:
        """Bound the plans whose ``max w`` is in a range; also return ``upper``."""
        free = self.zones.free
        interval = Interval(min_wait, up_to, int(INFINITE), multipliers or free)
        bound = -1
        for value, tried, path in self.cheapest(up_to, multipliers):
            if path.devices <= self.options.split.devices:
                upper = offer(path)
            if value + min_wait > bound:
                bound = value + min_wait
                interval = Interval(min_wait, up_to, bound, tried)
            if bound >= upper:
                break
        return interval, upper
