"""The best plan where every layer of a stage has its own strategy.

A stage is a pair of closed sets ``a ⊂ b`` and a strategy for every layer of ``b - a``,
all with the same number of devices. These are too many to list. The search therefore
starts with one *relaxed* option for each stage, number of devices and group of
in-flight counts. Its load and sync are lower bounds for any choice of strategies
(:mod:`nest.search.layers.options`). For the stages that the bounds leave, the search
then lists all non-dominated choices of strategies (:mod:`nest.search.layers.growth`).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from itertools import product
from typing import ClassVar, NamedTuple

import numpy as np

from nest.cost.space import BatchSplit, Family
from nest.ir.plan import Strategy
from nest.search.best import BestSearch
from nest.search.layers.growth import Demand, StageLayers, StageWays, grow
from nest.search.layers.options import LayerOptions, StageBounds, least
from nest.search.stages.bounds import IncumbentCurve, PlacementGraph
from nest.search.stages.labels import LabelSearch, Pipeline
from nest.search.stages.neighbor_sizes import neighbor_sizes, split_by_neighbor_size
from nest.search.stages.options import (
    INFINITE,
    BatchTerms,
    Bools,
    Ints,
    LooseOptions,
    PairOptions,
    PlacedOptions,
    Routes,
    StageFilter,
    StageOptions,
    no_options,
)
from nest.search.stages.zones import Site
from nest.search.task import SearchTask
from nest.solvers.base import Deadline, SolverOutput
from nest.topology import Block, Route
from nest.units import decimal

#: Each in-flight count up to this has a relaxed option of its own. Larger
#: counts share one in groups that double in size.
EXACT_INFLIGHT = 12

#: Number of labels per layer in the first search, which only finds plans.
BEAM = 60


class LayerSequence(NamedTuple):
    """The layers of a stage, up to layers that have the same costs."""

    #: Kind of every layer, in topological order.
    kinds: tuple[int, ...]
    #: (consumer, producer, bytes per sample) of the edges inside, by the position of
    #: the layers in that order.
    edges: tuple[tuple[int, int, int], ...]
    #: The cuts before and after the stage, and the shape of the stage.
    cuts: tuple[int, int]
    shape: int


class Fitting(NamedTuple):
    """The options of layers that fit alone, and bounds on their stages."""

    #: Least memory and least working set of each kind of layer.
    memory: Ints
    working: Ints
    #: The kinds without an option.
    missing: Bools
    #: Bounds on the amounts, and on the time that all wait plus ``Y``.
    amounts: list[StageBounds]
    together: StageBounds


class LayerStages(StageOptions):
    """The stage options of one ``(R, B)`` at layer granularity.

    They are relaxed until :meth:`grown` lists the exact ones. The strategy of a relaxed
    option encodes its devices and in-flight counts, see :meth:`_relaxed`.
    """

    def __init__(
        self, terms: BatchTerms, split: BatchSplit, family: Family | None = None
    ) -> None:
        super().__init__(terms, split, family)
        self._of_size = {
            size: np.flatnonzero(self.usable & (terms.devices == size)).tolist()
            for size in self.sizes
        }
        self._layouts = {
            size: list(dict.fromkeys(terms.strategies[i].layout for i in chosen))
            for size, chosen in self._of_size.items()
        }
        self._shards = {
            size: [
                next(
                    terms.shards[i]
                    for i in chosen
                    if terms.strategies[i].layout == layout
                )
                for layout in self._layouts[size]
            ]
            for size, chosen in self._of_size.items()
        }
        self._groups = self._inflight_groups()
        self._kind_options_cache: dict[object, list[LayerOptions]] = {}
        self._layer_needs: dict[object, tuple[list[LayerOptions], list[Ints]]] = {}
        self._fits: dict[object, Fitting] = {}
        self._sequences: dict[tuple[int, int], LayerSequence] = {}
        self._changes: dict[object, tuple[Ints, Ints]] = {}
        self._ways: list[StageWays] = []
        self._starts: list[int] = []

    def _inflight_groups(self) -> list[tuple[int, int]]:
        """Return the least and the largest in-flight count of each group."""
        start, max_inflight = self.need(1), self.max_inflight
        groups, width = [], 1
        while start <= max_inflight:
            if start > EXACT_INFLIGHT:
                width *= 2
            groups.append((start, min(start + width - 1, max_inflight)))
            start += width
        return groups

    def shards(self, options: PlacedOptions) -> Ints:
        """Return the largest number of ranks over which options shard."""
        max_shards = {size: max(shards) for size, shards in self._shards.items()}
        return np.array([max_shards[x] for x in options.size.tolist()], np.int64)

    @property
    def bounds_sync(self) -> bool:
        """Relaxed options have no strategy whose sync is known."""
        return False

    def layer_strategies(self, chosen: int) -> tuple[Strategy, ...]:
        """Return the strategies of a grown option, in topological order."""
        index = bisect_right(self._starts, chosen) - 1
        rows = self._ways[index].strategies(chosen - self._starts[index])
        return tuple(self.terms.strategies[i] for i in rows)

    # What the layers cost

    def _options(
        self, size: int, block: Block | None, site: Site | None = None
    ) -> list[LayerOptions]:
        """Return the options of every kind of layer on a block.

        Without a block, the loads are the least on devices of the site.
        """
        if block is not None:
            block = self.model.alike(block)
        key = size, block, site
        if key not in self._kind_options_cache:
            load = None if site is None else self.terms.load_on(site)
            self._kind_options_cache[key] = [
                self._kind_options(size, kind, block, load)
                for kind in range(len(self.shapes.representatives))
            ]
        return self._kind_options_cache[key]

    def _kind_options(
        self, size: int, kind: int, block: Block | None, load: Ints | None
    ) -> LayerOptions:
        terms, layouts = self.terms, self._layouts[size]
        rows = []
        for index in self._of_size[size]:
            strategy = terms.strategies[index]
            layer = self.model.layer_terms(
                self.shapes.representatives[kind],
                strategy,
                self.split.micro_batch,
                block,
                replicas=terms.replicas,
            )
            if layer is None:
                continue
            amounts = (
                self.schedule.amounts(layer)
                if load is None
                else load[:, index, kind].tolist()
            )
            sizes = layer.static_bytes, layer.kept_bytes, layer.working_bytes
            hidden = self._most_hidden(layer.hideable_sync)
            rows.append(
                (
                    *(index, layouts.index(strategy.layout)),
                    *(layer.sync - hidden, hidden),
                    *(layer.hideable_sync, layer.backward),
                    *(min(x, terms.max_bytes) for x in sizes),
                    *amounts,
                )
            )
        width = 9 + len(self.schedule.sums)
        table = np.array(rows, dtype=np.int64).reshape(len(rows), width).T
        strategies, found_layouts, *others = table[:9]
        options = LayerOptions(strategies, found_layouts, table[9:], *others)
        # Options of one layout differ in costs only. Without a block, the
        # layout does not matter either.
        group = options.layout
        if block is None:
            group = np.zeros_like(group)
        return options.undominated(group, hides=self.overlaps_sync)

    def _most_hidden(self, overlappable: int) -> int:
        """Return an upper bound on the sync of a layer that is overlapped.

        It is ``⌈φ s⌉`` exactly, because the sum over the layers of a stage is
        at least ``⌊φ Σs + 0.5⌋``.
        """
        return math.ceil(decimal(self.fraction) * overlappable)

    # Relaxed options

    def _relaxed(self, size: int, group: int) -> int:
        """Return the strategy index of relaxed options of a size and group."""
        size_index: int = self.sizes.index(size)
        return -1 - size_index * len(self._groups) - group

    def loose(self, limit: StageFilter, cap_bytes: int) -> LooseOptions:
        """Return the relaxed options that pass the filter.

        Their bytes are set so that they fit the in-flight counts of their group.
        """
        tables = []
        shapes = np.arange(len(self.shapes))
        zones = self.zones
        for size, span in product(self.sizes, range(len(zones.spans))):
            low, high = zones.window(zones.spans[span], np.array(size))
            if low > high:
                continue
            room = min(cap_bytes, int(self.span_bytes[span]))
            options = self._options(size, None, zones.sites[span])
            sync = self._least_sync(options, shapes)
            rows = shapes
            for group, (first, last) in enumerate(self._groups):
                rows, amounts, _ = self._bounds(
                    options, size, rows, first, room, joint=False
                )
                once, wait = self.costs(amounts)
                fast = limit.admits(once, wait)
                rows, once, wait = rows[fast], once[fast], wait[fast]
                full = np.full_like(rows, 1)
                tables.append(
                    LooseOptions(
                        span=span * full,
                        shape=rows,
                        strategy=self._relaxed(size, group) * full,
                        size=size * full,
                        once=once,
                        wait=wait,
                        sync=sync[rows],
                        fixed_bytes=(room - last) * full,
                        kept_bytes=full,
                    )
                )
        if not tables:
            none = np.zeros(0, dtype=np.int64)
            return LooseOptions(*(none for _ in fields(LooseOptions)))
        found = LooseOptions.concatenate(tables)
        found = found.take(np.argsort(found.shape, kind="stable"))
        return self.permitted(found)

    def _least_sync(self, options: list[LayerOptions], shape: Ints) -> Ints:
        syncs = np.array([least(o.sync) for o in options])
        total: Ints = self.shapes.counts[shape] @ syncs
        return total

    def _bounds(
        self,
        options: list[LayerOptions],
        size: int,
        shape: Ints,
        inflight: int,
        capacity: int,
        *,
        joint: bool,
    ) -> tuple[Ints, Ints, Ints]:
        """Bound stages by their shapes, for one in-flight count.

        Returns
        -------
        tuple
            The shapes that may fit; bounds on their amounts, a row each; and, with
            ``joint``, on the time that all wait plus ``Y``. Receive times are left out.
        """
        fitting = self._fitting(options, inflight, capacity)
        counts = self.shapes.counts[shape]
        present = counts > 0
        free = capacity - np.where(present, fitting.working, 0).max(axis=1, initial=0)
        most_shards = max(self._shards[size])
        free -= inflight * self.passing_bytes(most_shards)[shape]
        needed = counts @ fitting.memory
        possible = ~(present & fitting.missing).any(axis=1) & (needed <= free)
        counts, free = counts[possible], free[possible]
        # No stage of a plan has more.
        max_amount = INFINITE // self.split.num_micro_batches
        amounts = [
            np.minimum(cost.of(counts, free), max_amount) for cost in fitting.amounts
        ]
        together = np.zeros(0, dtype=np.int64)
        if joint:
            together = fitting.together.of(counts, free)
        return shape[possible], np.array(amounts), together

    def _bounds_within(
        self,
        options: list[LayerOptions],
        size: int,
        shape: Ints,
        group: Ints,
        room: Ints,
    ) -> Ints:
        """Bound stages, each for its group of in-flight counts and memory.

        Returns
        -------
        array
            Bounds on the amounts, a row each, and on the time that all wait plus ``Y``;
            :data:`~nest.search.stages.options.INFINITE` where nothing fits.
        """
        values = np.full((len(self.schedule.sums) + 1, len(shape)), INFINITE)
        which, of_row = np.unique(np.stack((group, room)), axis=1, return_inverse=True)
        for row, (group_index, held) in enumerate(which.T.tolist()):
            rows = np.flatnonzero(of_row.reshape(-1) == row)
            distinct, inverse = np.unique(shape[rows], return_inverse=True)
            table = np.full((len(values), len(distinct)), INFINITE)
            fits, amounts, together = self._bounds(
                options, size, distinct, self._groups[group_index][0], held, joint=True
            )
            table[:, np.searchsorted(distinct, fits)] = [*amounts, together]
            values[:, rows] = table[:, inverse]
        return values

    def _fitting(
        self, options: list[LayerOptions], inflight: int, capacity: int
    ) -> Fitting:
        """Return the bounds on stages of layers that fit alone."""
        key = id(options), inflight
        if key not in self._layer_needs:
            # The options are stored, so that their id is not used again.
            self._layer_needs[key] = (
                options,
                [np.sort(o.memory(inflight) + o.working_bytes) for o in options],
            )
        # If equally many options fit, the same options fit.
        count = [
            int(np.searchsorted(needs, capacity, "right"))
            for needs in self._layer_needs[key][1]
        ]
        full = (*key, *count)
        if full not in self._fits:
            fitting = [o.fitting(inflight, capacity) for o in options]
            memory = [o.memory(inflight) for o in fitting]
            self._fits[full] = Fitting(
                np.array([least(m) for m in memory]),
                np.array([least(o.working_bytes) for o in fitting]),
                np.array([not len(o.strategy) for o in fitting]),
                [
                    StageBounds(cost, memory)
                    for cost in zip(*(o.amounts for o in fitting), strict=True)
                ],
                StageBounds(
                    [self.costs(o.amounts)[1] + o.sync for o in fitting], memory
                ),
            )
        return self._fits[full]

    def _priced(
        self, pairs: PairOptions, block: Block, limit: StageFilter
    ) -> tuple[PlacedOptions, Ints]:
        """Bound relaxed options at one device range.

        Returns
        -------
        tuple
            The options that remain, and their rows in ``pairs``.
        """
        sets, shapes, size = self.shapes.sets, self.shapes, block.devices
        options = self._options(size, block)
        capacity = self.model.capacity_bytes(block)
        group = (-1 - pairs.strategy) % len(self._groups)
        last = np.array([max_inflight for _, max_inflight in self._groups])
        # The memory with which they were bounded, which depends on the level.
        room = np.minimum(pairs.fixed_bytes + last[group], capacity)
        shape = shapes.of_pair[pairs.pair]
        values = self._bounds_within(options, size, shape, group, room)
        source = sets.pair_source[pairs.pair]
        target = sets.pair_target[pairs.pair]
        before, after = self.least_routes(block.offset, block.devices)
        most_shards = np.full(len(pairs), max(self._shards[size]))
        received = self._received(
            self._receive(before, shapes.cut_of[source], most_shards),
            self._receive(after, shapes.cut_of[target], most_shards),
        )
        possible = values[0] < INFINITE
        amounts = np.where(possible, values[:-1], 0) + received
        once, wait = self.costs(amounts)
        joint = np.minimum(values[-1], INFINITE) + self.costs(received)[1]
        fast = np.flatnonzero(possible & limit.admits(once, wait, pairs.level))
        base = pairs.level * sets.count
        none = np.zeros(len(pairs), dtype=np.int64)
        priced = PlacedOptions(
            offset=none,
            size=pairs.size,
            source=base + source,
            target=base + target,
            enter=none,
            leave=none,
            strategy=pairs.strategy,
            once=once,
            periods=amounts[: len(self.rounds)],
            sync=self._least_sync(options, shape),
            joint=joint,
            hidden=none,
            backward=none,
            fixed_bytes=none,
            kept_bytes=none,
            max_inflight=last[group],
        )
        return priced.take(fast), fast

    # Exact options

    def grown(
        self, graph: PlacementGraph, beam: int | None, deadline: Deadline
    ) -> PlacedOptions:
        """Return all choices of strategies for the stages that remain.

        Parameters
        ----------
        graph
            Relaxed options with their bounds.
        beam
            Maximum number of labels per layer; ``None`` for an exact search.
        deadline
            The clock.
        """
        self._ways, self._starts = [], []
        tables = []
        for demands, stage, rows in self._stages_by_cost(graph):
            demand = replace(demands[0])
            for other in demands[1:]:
                demand.widen(other)
            ways = grow(stage, demand, beam, deadline)
            if len(ways):
                way = np.tile(np.arange(len(ways)), len(rows))
                row = np.repeat(rows, len(ways))
                tables.append(self._run(graph.edges, row, ways, way))
        return self._ordered(tables)

    def _run(
        self, relaxed: PlacedOptions, row: Ints, ways: StageWays, way: Ints
    ) -> PlacedOptions:
        """Return relaxed options with the exact costs of their ways.

        The ways are stored, so that the strategies can be looked up.
        """
        start = sum(map(len, self._ways[-1:]), sum(self._starts[-1:]))
        self._ways.append(ways)
        self._starts.append(start)
        once, wait = self.costs(ways.amounts)
        none = np.zeros_like(row)
        return replace(
            relaxed.take(row),
            strategy=start + way,
            once=once[way],
            periods=ways.amounts[: len(self.rounds), way],
            sync=ways.sync[way],
            joint=wait[way] + ways.sync[way],
            hidden=none,
            backward=none,
            fixed_bytes=ways.fixed_bytes[way],
            kept_bytes=ways.kept_bytes[way],
            max_inflight=ways.max_inflight[way],
        )

    def _ordered(self, tables: list[PlacedOptions]) -> PlacedOptions:
        """Return all options, ordered by offset and source."""
        if not tables:
            return no_options(len(self.rounds))
        joined = PlacedOptions.concatenate(tables)
        return joined.take(np.lexsort((joined.source, joined.offset)))

    def _stages_by_cost(
        self, graph: PlacementGraph
    ) -> Iterator[tuple[list[Demand], StageLayers, Ints]]:
        """Group the stages of equal costs, with a demand for each of them.

        Yields
        ------
        tuple
            The demands, the layers of the stage, and the row of one option for
            each device range and pair.
        """
        edges = graph.edges
        key = np.stack(
            (
                edges.offset,
                edges.size,
                edges.source,
                edges.target,
                edges.enter,
                edges.leave,
            )
        )
        _, first, inverse = np.unique(
            key, axis=1, return_index=True, return_inverse=True
        )
        demands = self._demands(graph, first, inverse.reshape(-1))
        by_cost: dict[object, tuple[list[Demand], StageLayers, list[int]]] = {}
        cache: dict[object, tuple[object, Routes]] = {}
        neighbors = np.stack(neighbor_sizes(self, edges))
        for demand, row in zip(demands, first.tolist(), strict=True):
            offset, size = int(edges.offset[row]), int(edges.size[row])
            position = (offset, size, *neighbors[:, row].tolist())
            if position not in cache:
                routes = self.routes(*position)
                cache[position] = (self._place(offset, size, routes), routes)
            pair = int(edges.source[row]), int(edges.target[row])
            pair = pair[0] % graph.num_sets, pair[1] % graph.num_sets
            cost_key, routes = cache[position]
            layers = self._layers(*pair)
            stage_key = cost_key, layers
            if stage_key in by_cost:
                by_cost[stage_key][0].append(demand)
                by_cost[stage_key][2].append(row)
            else:
                stage = self._stage(layers, self._block(offset, size), routes)
                by_cost[stage_key] = [demand], stage, [row]
        for demands_here, stage, rows in by_cost.values():
            yield demands_here, stage, np.array(rows)

    def _demands(
        self, graph: PlacementGraph, first: Ints, inverse: Ints
    ) -> Iterator[Demand]:
        """Yield the demands on stages, given one option of each."""
        edges = graph.edges
        max_inflight = np.zeros(len(first), dtype=np.int64)
        np.maximum.at(max_inflight, inverse, edges.max_inflight)
        before = graph.prefix[:, graph.begin[first]]
        after = graph.suffix[:, graph.end[first]]
        around = np.maximum(before, after)
        wait, (floor, joint) = self.rounds @ around[1:-3], around[-3:-1]
        target = graph.target
        level = graph.level[graph.begin[first]]
        budget = target.upper(target.floors)[level] - before[0] - after[0]
        fewest = after[-1] + 1
        # Each later stage has at least one layer and the fewest devices.
        end = edges.offset[first] + edges.size[first]
        layers = self.shapes.kind_counts.sum(axis=1)
        stages_after = np.minimum(
            layers[-1] - layers[edges.target[first] % graph.num_sets],
            (self.split.devices - end) // self.smallest,
        )
        max_inflight = np.minimum(max_inflight, self.inflight(stages_after + 1))
        need = self.inflight(fewest)
        for row in zip(
            need.tolist(),
            np.maximum(max_inflight, need).tolist(),
            floor.tolist(),
            wait.tolist(),
            joint.tolist(),
            budget.tolist(),
            strict=True,
        ):
            yield Demand(*row)

    def _layers(self, source: int, target: int) -> LayerSequence:
        """Return the layers of a stage, from the cache."""
        if (source, target) not in self._sequences:
            layers = self._find_layers(source, target)
            self._sequences[source, target] = layers
        return self._sequences[source, target]

    def _find_layers(self, source: int, target: int) -> LayerSequence:
        sets, shapes = self.shapes.sets, self.shapes
        inside = sets.member[target] & ~sets.member[source]
        layers = [layer for layer in shapes.order if inside[layer]]
        position = {layer: i for i, layer in enumerate(layers)}
        first, end = np.searchsorted(sets.pair_source, [source, source + 1])
        pair = first + np.searchsorted(sets.pair_target[first:end], target)
        return LayerSequence(
            tuple(shapes.kind_of[layer] for layer in layers),
            tuple(
                sorted(
                    (position[end], position[start], size_bytes)
                    for start, end, size_bytes in self.model.transfers.edges
                    if size_bytes and start in position and end in position
                )
            ),
            (int(shapes.cut_of[source]), int(shapes.cut_of[target])),
            int(shapes.of_pair[pair]),
        )

    def _stage(
        self, layers: LayerSequence, block: Block, routes: Routes
    ) -> StageLayers:
        """Return the costs of the layers of a stage on a block."""
        size, shards = block.devices, np.array(self._shards[block.devices])
        route_before, route_after = routes
        cuts_before, cuts_after = (np.full(len(shards), cut) for cut in layers.cuts)
        route = self.model.network.inside(block)
        return StageLayers(
            kinds=layers.kinds,
            options=self._options(size, block),
            changes=[
                (consumer, producer, *self._change(route, size, size_bytes))
                for consumer, producer, size_bytes in layers.edges
            ],
            receive=self._receive(route_before, cuts_before, shards),
            receive_back=self._receive(route_after, cuts_after, shards),
            passing_bytes=np.array(
                [self.passing_bytes(x)[layers.shape] for x in shards.tolist()]
            ),
            capacity=self.model.capacity_bytes(block),
            schedule=self.schedule,
            num_micro_batches=self.split.num_micro_batches,
            hidden=self.hidden if self.overlaps_sync else None,
        )

    def _change(self, route: Route, size: int, size_bytes: int) -> tuple[Ints, Ints]:
        """Return the time of an edge between layouts, forward and backward.

        The forward pass moves the tensor to the layout of the consumer, the backward
        pass to that of the producer. Rows are the layouts of the producer.
        """
        key = (route, size, size_bytes)
        if key not in self._changes:
            move = np.array(
                [
                    self.model.transfers.receive(
                        route, [size_bytes], self.split.micro_batch, shards
                    )
                    for shards in self._shards[size]
                ],
                dtype=np.int64,
            )
            differs = 1 - np.eye(len(move), dtype=np.int64)
            self._changes[key] = (differs * move, differs * move[:, None])
        return self._changes[key]


class LayerSearch(BestSearch):
    """The best plan of a problem with a strategy per layer."""

    stage_options: ClassVar[type[StageOptions]] = LayerStages
    paths_are_plans: ClassVar[bool] = False

    def _pipelines(
        self, graph: PlacementGraph, goal: Callable[[], int]
    ) -> Iterator[Pipeline]:
        """Yield pipelines of a split; at the end, none below the goal is left."""
        options = graph.options
        assert isinstance(options, LayerStages)
        if graph.bounds()[0] >= INFINITE:
            return
        relaxed = split_by_neighbor_size(graph)
        for beam in (BEAM, None):
            target = relaxed.target = IncumbentCurve.below(goal())
            if not len(relaxed.edges) or relaxed.bounds()[0] >= INFINITE:
                break
            placed = options.grown(relaxed, beam, self.deadline)
            grown = PlacementGraph(options, placed, target, self.deadline)
            if not len(placed) or grown.bounds()[0] >= INFINITE:
                continue
            yield from LabelSearch(grown).pipelines(None if beam is None else 1)


def search(task: SearchTask) -> SolverOutput:
    """Search every ``(R, B)`` of a problem; see :class:`LayerSearch`."""
    return LayerSearch(task).run()
