"""From rows to a network whose paths are plans, and nothing else.

Three graphs, each with fewer stages and truer prices than the one before. In the first
one a stage may be anywhere; in the second it has a place; in the third also the stages
beside it are known, and every price is that of a plan. Stages through which no path is
as fast as a step time are left out all along.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from formulations.common import undominated
from formulations.paths.bounds import Arcs, step_through
from formulations.paths.cuts import Integers
from formulations.paths.stages import NEVER, StageTable, TooLargeError
from nest.cost.rules import hidden_sync
from nest.cost.schedules.base import weighted
from nest.topology.protocol import Block

#: More stages than that are not priced one by one.
MAX_STAGES = 2_000_000


class Network(NamedTuple):
    """A graph whose paths are all plans of a case up to a step time."""

    #: Stages, from where they begin to where they end.
    arcs: Arcs
    #: What every stage adds to the sum, its paces, and its sync.
    once: Integers
    paces: tuple[Integers, ...]
    sync: Integers
    #: Where it is in the table.
    row: Integers
    #: What no path is faster than.
    bound: int

    def only(self, mask: Any, bound: int) -> Network:
        """Return the network with fewer stages."""
        return Network(
            self.arcs.only(mask),
            self.once[mask],
            tuple(pace[mask] for pace in self.paces),
            self.sync[mask],
            self.row[mask],
            bound,
        )


class Placed(NamedTuple):
    """Stages with places, as columns."""

    row: Integers
    level: Integers
    below: Integers
    offset: Integers


@dataclass
class Builder:
    """Makes networks of a table.

    The last network is ``complete`` if it had all plans: no stage was left out for the
    time that it takes. No plan of it, or left out of it, is faster than ``bound``.
    """

    table: StageTable
    complete: bool = field(default=True, init=False)

    def network(self, max_step: int) -> Network | None:
        """Return a network of all plans up to a step time.

        ``None`` if there are none.

        Raises ``OutOfTimeError`` if the deadline passes, and ``TooLargeError`` if there
        are too many stages.
        """
        self.complete = True
        placed = self._placed(max_step)
        if placed is None:
            return None
        self.table.deadline.check()
        placed = self._at_places(placed, max_step)
        if not len(placed.row):
            return None
        self.table.deadline.check()
        network = self._priced(placed, max_step)
        return network if len(network.row) else None

    def _fast(self, bound: Integers, max_step: int) -> Any:
        """Return which stages some plan up to a step time may have."""
        fast = bound <= max_step
        self.complete &= bool((fast | (bound >= NEVER)).all())
        return fast

    # Stages anywhere

    def least(self) -> int | None:
        """Return what no plan is faster than; ``None`` if there is none."""
        anywhere = self._anywhere(np.arange(len(self.table.row_alone)))
        if anywhere is None:
            return None
        arcs, bound, *_ = anywhere
        starts = np.isin(arcs.tail, arcs.starts)
        min_bound = int(bound[starts].min(initial=NEVER))
        return None if min_bound >= NEVER else min_bound

    def _anywhere(self, rows: Integers) -> Any:
        """Return the first graph, and what its stages stand for."""
        table = self.table
        cuts, levels = table.cuts, table.levels
        wide = table.split.devices + 1
        keys = table.pair[rows] * wide + table.devices[rows]
        order = np.argsort(keys, kind="stable")
        rows, keys = rows[order], keys[order]
        firsts = np.flatnonzero(np.diff(keys, prepend=-1))
        if not len(firsts):
            return None
        own, devices = keys[firsts] // wide, keys[firsts] % wide
        tails, heads = cuts.tails[own], cuts.heads[own]
        columns = [
            column[rows]
            for column in (*(table.once, table.work, table.sync_least), *table.paces)
        ]
        limits = table.most[rows]
        high = levels.top + 1
        parts: list[tuple[Integers, ...]] = []
        for level, below in levels.steps():
            table.deadline.check()
            fits = limits >= levels.inflight[level - 1]
            least = [
                np.minimum.reduceat(np.where(fits, column, NEVER), firsts)
                for column in columns
            ]
            here = np.flatnonzero(least[0] < NEVER)
            # Behind the last stage nothing is left, before it something is.
            last = heads[here] == len(cuts.sets) - 1
            here = here[last == (below == 0)]
            parts.append(
                (
                    tails[here] * high + level,
                    heads[here] * high + below,
                    here,
                    devices[here],
                    *(column[here] for column in least),
                )
            )
        tail, head, key, size, *prices = (
            np.concatenate(column) for column in zip(*parts, strict=True)
        )
        arcs, sort = Arcs.of(
            tail,
            head,
            lambda nodes: np.isin(nodes, levels.starts),
            lambda nodes: nodes == (len(cuts.sets) - 1) * high,
        )
        once, work, sync, *paces = (column[sort] for column in prices)
        size = size[sort]
        room = arcs.sum_through(size) <= table.split.devices
        bound = step_through(arcs, once, paces, table.rounds, sync)
        shared = arcs.sum_through(work) + arcs.largest_through(sync)
        bound = np.maximum(bound, np.minimum(shared, NEVER))
        bound = np.where(room, bound, NEVER)
        return (arcs, bound, key[sort], size, rows, firsts, tail[sort], head[sort])

    def _placed(self, max_step: int) -> Placed | None:
        """Return the stages that may be part of a plan, at all places."""
        table = self.table
        levels, split = table.levels, table.split
        alone = self._fast(table.row_alone, max_step)
        anywhere = self._anywhere(np.flatnonzero(alone))
        if anywhere is None:
            return None
        arcs, bound, key, size, rows, firsts, tail, head = anywhere
        fast = self._fast(bound, max_step)
        if not fast.any():
            return None
        arcs = arcs.only(fast)
        key, size, tail, head = key[fast], size[fast], tail[fast], head[fast]
        used = arcs.least(size, sums=True)
        high = levels.top + 1
        ends = np.append(firsts[1:], len(rows))
        lows = used.ahead[arcs.tail]
        highs = split.devices - size - used.behind[arcs.head]
        # Every row of every stage, then every offset of every row.
        many = ends[key] - firsts[key]
        arc = np.repeat(np.arange(len(key)), many)
        skipped = np.repeat(np.cumsum(many) - many, many)
        row = rows[firsts[key][arc] + np.arange(len(arc)) - skipped]
        level, below = tail % high, head % high
        inflight = np.array(levels.inflight, dtype=np.int64)
        fits = table.most[row] >= inflight[level[arc] - 1]
        arc, row = arc[fits], row[fits]
        highs = np.where(tail // high == 0, np.minimum(highs, 0), highs)
        tables: list[Placed] = []
        total = 0
        for index, place in enumerate(table.places):
            table.deadline.check()
            here = np.flatnonzero(table.place[row] == index)
            offsets = np.array(place.offsets, dtype=np.int64)
            first = np.searchsorted(offsets, lows[arc[here]])
            last = np.searchsorted(offsets, highs[arc[here]], side="right")
            number_of = np.maximum(last - first, 0)
            total += int(number_of.sum())
            if total > MAX_STAGES:
                raise TooLargeError
            again = np.repeat(here, number_of)
            before = np.repeat(np.cumsum(number_of) - number_of, number_of)
            which = np.repeat(first, number_of) + np.arange(len(again))
            tables.append(
                Placed(
                    row[again],
                    level[arc[again]],
                    below[arc[again]],
                    offsets[which - before],
                )
            )
        if not total:
            return None
        return Placed(*(np.concatenate(c) for c in zip(*tables, strict=True)))

    # Stages at places

    def _graph(self, placed: Placed) -> tuple[Arcs, Integers]:
        """Return the second graph, and the order of its stages."""
        table = self.table
        levels, wide = table.levels, table.split.devices + 1
        pair, size = table.pair[placed.row], table.devices[placed.row]
        high, last = levels.top + 1, len(table.cuts.sets) - 1
        return Arcs.of(
            (table.cuts.tails[pair] * high + placed.level) * wide + placed.offset,
            (table.cuts.heads[pair] * high + placed.below) * wide
            + placed.offset
            + size,
            lambda nodes: (nodes % wide == 0) & np.isin(nodes // wide, levels.starts),
            lambda nodes: nodes // wide == last * high,
        )

    def _at_places(self, placed: Placed, max_step: int) -> Placed:
        """Return the stages through which a path leads in time."""
        table = self.table
        arcs, order = self._graph(placed)
        placed = Placed(*(column[order] for column in placed))
        row = placed.row
        bound = step_through(
            arcs,
            table.once[row],
            [pace[row] for pace in table.paces],
            table.rounds,
            table.sync_least[row],
        )
        fast = self._fast(bound, max_step)
        return Placed(*(column[fast] for column in placed))

    # Stages with their neighbors

    def _priced(self, placed: Placed, max_step: int) -> Network:
        """Return the third graph, priced as plans are."""
        table = self.table
        arcs, order = self._graph(placed)
        placed = Placed(*(column[order] for column in placed))
        sizes = np.array([0, *table.sizes], dtype=np.int64)
        size = np.searchsorted(sizes, table.devices[placed.row])
        count = len(sizes)
        entering = _beside(arcs.head, size, arcs.starts, count)
        leaving = _beside(arcs.tail, size, arcs.ends, count)
        stage, before = _joined(arcs.tail, entering)
        again, after = _joined(arcs.head[stage], leaving)
        stage, before = stage[again], before[again]
        if len(stage) > MAX_STAGES:
            raise TooLargeError
        stage_size = size[stage]
        found, order = Arcs.of(
            (arcs.tail[stage] * count + before) * count + stage_size,
            (arcs.head[stage] * count + stage_size) * count + after,
            lambda nodes: nodes // count % count == 0,
            lambda nodes: nodes % count == 0,
        )
        stage, before, after = stage[order], before[order], after[order]
        row, offset = placed.row[stage], placed.offset[stage]
        ahead = self._received(row, offset, sizes[before], ahead=True)
        received_after = self._received(row, offset, sizes[after], ahead=False)
        backward = table.backward[row] + received_after
        sync = table.sync[row]
        if table.fraction:
            hidden = [
                hidden_sync(int(h), int(g), table.fraction)
                for h, g in zip(table.hideable[row], backward, strict=True)
            ]
            sync = sync - np.array(hidden, dtype=np.int64)
        loads = [load[row] for load in table.loads]
        paces = table.received(loads, ahead, received_after)
        once = 0 * sync + weighted(table.schedule.once, paces)
        network = Network(found, once, paces, sync, row, 0)
        network = network.only(_distinct(network), 0)
        return self.faster(network, max_step)

    def faster(self, network: Network, max_step: int) -> Network:
        """Return the network with the plans up to a step time only."""
        while len(network.row):
            self.table.deadline.check()
            bound = step_through(
                network.arcs,
                network.once,
                network.paces,
                self.table.rounds,
                network.sync,
            )
            fast = self._fast(bound, max_step)
            min_bound = int(bound.min())
            if fast.all():
                return network._replace(bound=min_bound)
            network = network.only(fast, min_bound)
        return network

    def holds(self, network: Network, max_step: int) -> bool:
        """Whether a network has a plan up to a step time, in whole numbers.

        Its plans are told apart by a largest pace or sync, until every part
        is bounded (P8) above the step time, or one has a single value of
        each: there the bound is the step time of a path, or more.

        Raises ``OutOfTimeError`` if the deadline passes.
        """
        complete = self.complete
        networks = [network]
        while networks:
            network_part = self.faster(networks.pop(), max_step)
            if not len(network_part.row):
                continue
            columns = (*network_part.paces, network_part.sync)
            spreads = [
                weight * int(np.ptp(column))
                for weight, column in zip((*self.table.rounds, 1), columns, strict=True)
            ]
            if not any(spreads):
                break
            which = spreads.index(max(spreads))
            column = columns[which]
            middle = (int(column.min()) + int(column.max())) // 2
            above = np.maximum(column, column[column > middle].min())
            columns = (*columns[:which], above, *columns[which + 1 :])
            networks += [
                network_part.only(column <= middle, 0),
                network_part._replace(paces=columns[:-1], sync=columns[-1]),
            ]
        else:
            network_part = None
        self.complete = complete
        return network_part is not None

    def _received(
        self, row: Integers, offset: Integers, beside: Integers, *, ahead: bool
    ) -> Integers:
        """Return what stages receive from neighbors of some sizes."""
        table, split = self.table, self.table.split
        cuts = table.cuts.tails if ahead else table.cuts.heads
        sizes_at_cut = table.cuts.size_of[cuts[table.pair[row]]]
        columns = (table.place[row], table.choice[row], offset, beside, sizes_at_cut)
        _, first, which = np.unique(
            np.stack(columns), axis=1, return_index=True, return_inverse=True
        )
        times = []
        for i in first:
            place = table.places[table.place[row[i]]]
            block = Block(
                *(split.replicas, split.devices), *(int(offset[i]), place.devices)
            )
            size = int(beside[i])
            sender = block.before(size) if ahead else block.behind(size)
            strategy = place.choices[table.choice[row[i]]].strategy
            took = 0
            if size:
                took = table.receive(block, sender, int(sizes_at_cut[i]), strategy)
            times.append(took)
        return np.array(times, dtype=np.int64)[which.reshape(-1)]


def _beside(
    node: Integers, size: Integers, outer: Integers, count: int
) -> tuple[Integers, Integers]:
    """Return, by node, which sizes stages have there; 0 at the ends."""
    known = np.unique(np.concatenate([node * count + size, outer * count]))
    return known // count, known % count


def _joined(
    node: Integers, beside: tuple[Integers, Integers]
) -> tuple[Integers, Integers]:
    """Return every stage as often as it has neighbors, and their sizes."""
    nodes, sizes = beside
    first = np.searchsorted(nodes, node)
    many = np.searchsorted(nodes, node, side="right") - first
    stage = np.repeat(np.arange(len(node)), many)
    skipped = np.repeat(np.cumsum(many) - many, many)
    return stage, sizes[first[stage] + np.arange(len(stage)) - skipped]


def _distinct(network: Network) -> Any:
    """Return which stages no other one from and to the same places beats."""
    arcs = network.arcs
    order = np.lexsort((arcs.head, arcs.tail))
    mask = np.zeros(len(order), dtype=bool)
    both = np.stack([arcs.tail[order], arcs.head[order]])
    if not len(order):
        return mask
    begins = np.flatnonzero(np.diff(both, prepend=-1).any(axis=0))
    for begin, end in zip(begins, [*begins[1:], len(order)], strict=True):
        same = order[begin:end]
        if end - begin > 1:
            costs: dict[int, tuple[float, ...]] = {
                int(i): (
                    *(int(pace[i]) for pace in network.paces),
                    int(network.sync[i]),
                )
                for i in same
            }
            mask[undominated(costs)] = True
        else:
            mask[same] = True
    return mask
