"""The exact frontier of step time against memory, a strategy per layer.

Frontiers are merged along the graph, layer by layer into those of stages
(:mod:`nest.search.frontier.stages`), and stage by stage into those of
pipelines (:mod:`nest.search.stages.labels`). Nothing is solved per point.

Plans of one stage come first, those of an ``(R, B)`` and a number of devices
at all capacities at once. Of pipelines with several stages the bounds of
:mod:`nest.search.frontier.levels` rule out most, level by level, with relaxed options
whose loads at every capacity are merged once (:mod:`nest.search.frontier.layer_least`);
stages that are left get frontiers of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cached_property
from itertools import pairwise, product
from typing import ClassVar, NamedTuple

import numpy as np

from nest.cost.space import BatchSplit, Family
from nest.search.frontier.layer_least import LeastCosts, Merged, Stairs, least_costs
from nest.search.frontier.levels import FrontierSearch, OpenRanges
from nest.search.frontier.stages import Allowance, Cost, TooManyWaysError, grow_frontier
from nest.search.frontier.staircase import (
    Gap,
    Point,
    Staircase,
    merge_gaps,
    nothing_below,
)
from nest.search.layers.best import LayerStages
from nest.search.layers.growth import Demand, StageWays
from nest.search.layers.options import LayerOptions
from nest.search.stages.bounds import IncumbentCurve, PlacementGraph
from nest.search.stages.labels import LabelSearch
from nest.search.stages.neighbor_sizes import split_by_neighbor_size
from nest.search.stages.options import (
    INFINITE,
    BatchTerms,
    Bools,
    Ints,
    LooseOptions,
    PairOptions,
    PlacedOptions,
    StageFilter,
    StageOptions,
)
from nest.search.stages.splits import OpenSplit, make_plan
from nest.solvers.base import Deadline

#: Levels that are left with so few relaxed options get frontiers of stages.
ENOUGH = 1000

#: Levels go to frontiers of stages when so many relaxed options are left.
BATCH = 100_000

#: Levels are cut down to this fraction of the memory before that, ...
WIDE = 64

#: ... and to this one where stages have too many labels.
NEAR = 1024

#: More labels of a stage are too many.
MOST_LABELS = 4000

#: About so many levels are searched first.
FIRST_LEVELS = 64

#: Relaxed options are run in so many ways at a time.
CHUNK = 2_000_000


class Relaxed(NamedTuple):
    """Relaxed options of all stages, whatever the memory is."""

    #: The options without their costs; ``fixed_bytes`` is relative to the capacity.
    options: LooseOptions
    #: Memory of the devices of each.
    capacity: Ints
    #: What passing tensors take of it.
    passing_bytes: Ints
    #: The least of every amount.
    least: list[LeastCosts]
    #: What makes a difference to any of them, ascending.
    steps: Ints


class Pipelines(LayerStages):
    """The stage options of pipelines with several stages."""

    def __init__(
        self, terms: BatchTerms, split: BatchSplit, family: Family | None = None
    ) -> None:
        super().__init__(terms, split, family)
        self._stairs: dict[object, list[Stairs]] = {}
        self._min_costs: dict[object, list[LeastCosts]] = {}

    def loose(self, limit: StageFilter, cap_bytes: int) -> LooseOptions:
        """Return relaxed options; all layers in one stage are left out."""
        every, capacity, passing, min_costs, _ = self._relaxed_options
        room = np.minimum(capacity, cap_bytes)
        rows = np.arange(len(every))
        amounts = np.array([x.of(rows, room - passing) for x in min_costs])
        amounts, possible = self._clipped(amounts)
        once, wait = self.costs(amounts)
        rows = np.flatnonzero(possible & limit.admits(once, wait))
        options = every.take(rows)
        return replace(
            options,
            once=once[rows],
            wait=wait[rows],
            fixed_bytes=options.fixed_bytes + room[rows],
        )

    @cached_property
    def _relaxed_options(self) -> Relaxed:
        """Relaxed options at every capacity, ordered by shape."""
        shapes, zones = self.shapes, self.zones
        allowed = np.arange(len(shapes)) != shapes.of_pair[self.whole]
        if self.shapes_allowed is not None:
            allowed &= self.shapes_allowed
        rows: list[dict[str, int]] = []
        stairs: list[list[Stairs]] = [[] for _ in self.schedule.sums]
        for size, span in product(self.sizes, range(len(zones.spans))):
            low, high = zones.window(zones.spans[span], np.array(size))
            if low > high:
                continue
            options = self._options(size, None, zones.sites[span])
            sync = self._least_sync(options, np.arange(len(shapes)))
            passing = self.passing_bytes(max(self._shards[size]))
            for group, (first, last) in enumerate(self._groups):
                strategy = self._relaxed(size, group)
                stairs_of_shape = self._stairs_of(options, size, first)
                for shape in np.flatnonzero(allowed).tolist():
                    if not len(stairs_of_shape[0][shape][0]):
                        continue
                    rows.append(
                        {
                            "span": span,
                            "shape": shape,
                            "strategy": strategy,
                            "size": size,
                            "once": 0,
                            "wait": 0,
                            "sync": int(sync[shape]),
                            "fixed_bytes": -last,
                            "kept_bytes": 1,
                            "capacity": int(self.span_bytes[span]),
                            "passing_bytes": first * int(passing[shape]),
                        }
                    )
                    for mine, theirs in zip(stairs, stairs_of_shape, strict=True):
                        mine.append(theirs[shape])
        order = sorted(range(len(rows)), key=lambda row: rows[row]["shape"])
        rows = [rows[row] for row in order]
        stairs = [[mine[row] for row in order] for mine in stairs]

        def column(name: str) -> Ints:
            return np.array([row[name] for row in rows], dtype=np.int64)

        capacity, passing_bytes = column("capacity"), column("passing_bytes")
        names = (field.name for field in fields(LooseOptions))
        return Relaxed(
            options=LooseOptions(**{name: column(name) for name in names}),
            capacity=capacity,
            passing_bytes=passing_bytes,
            least=[LeastCosts(mine) for mine in stairs],
            steps=np.unique(
                np.concatenate(
                    [
                        stair[0] + passed
                        for mine in stairs
                        for stair, passed in zip(mine, passing_bytes, strict=True)
                    ]
                    or [capacity]
                )
            ),
        )

    @property
    def steps(self) -> Ints:
        """Memory from which on some relaxed option takes less, ascending."""
        return self._relaxed_options.steps

    def _bounds_within(
        self,
        options: list[LayerOptions],
        size: int,
        shape: Ints,
        group: Ints,
        room: Ints,
    ) -> Ints:
        """Bound stages by the frontiers of their layers.

        As exact as can be without places, and looked up at every capacity.
        """
        passing = self.passing_bytes(max(self._shards[size]))[shape]
        bounds = np.full((len(self.schedule.sums) + 1, len(shape)), INFINITE)
        for group_index in np.unique(group).tolist():
            rows = np.flatnonzero(group == group_index)
            first, _ = self._groups[group_index]
            min_costs = self._least_costs(options, size, first)
            free = room[rows] - first * passing[rows]
            amounts, possible = self._clipped(
                np.array([x.of(shape[rows], free) for x in min_costs])
            )
            _, wait = self.costs(amounts)
            together = wait + self._least_sync(options, shape[rows])
            bounds[:, rows[possible]] = np.stack((*amounts, together))[:, possible]
        return bounds

    def _clipped(self, amounts: Ints) -> tuple[Ints, Bools]:
        """Return amounts that no plan's stage exceeds, and which are any."""
        max_amount = INFINITE // self.split.num_micro_batches
        return np.minimum(amounts, max_amount), amounts[0] < INFINITE

    def _least_costs(
        self, options: list[LayerOptions], size: int, inflight: int
    ) -> list[LeastCosts]:
        """Return the least amounts of stages with so many in flight."""
        key = id(options), inflight
        if key not in self._min_costs:
            self._min_costs[key] = [
                LeastCosts(stairs)
                for stairs in self._stairs_of(options, size, inflight)
            ]
        return self._min_costs[key]

    def _stairs_of(
        self, options: list[LayerOptions], size: int, inflight: int
    ) -> list[list[Stairs]]:
        """Return how every amount falls with memory, by shape.

        With so many in flight there are stages behind, of one layer and the devices of
        the smallest stage at least: where these are not left, nothing fits.
        """
        stages_after = int(np.searchsorted(self._inflight, inflight))
        most_layers = int(self.shapes.kind_counts[-1].sum()) - stages_after
        if size + stages_after * self.smallest > self.split.devices:
            most_layers = 0
        capacity = self.model.problem.cluster.memory_bytes()
        stairs = []
        for costs in zip(*(o.amounts for o in options), strict=True):
            layers = [
                Merged(c, o.memory(inflight), o.working_bytes).unbeaten()
                for c, o in zip(costs, options, strict=True)
            ]
            # Most places are alike in what layers take.
            key = most_layers, *(x.tobytes() for y in layers for x in y)
            if key not in self._stairs:
                self._stairs[key] = least_costs(
                    layers, self.shapes.counts, most_layers, capacity
                )
            stairs.append(self._stairs[key])
        return stairs

    @property
    def whole(self) -> int:
        """The pair of closed sets between which all layers are."""
        sets = self.shapes.sets
        last = sets.count - 1
        whole = (sets.pair_source == 0) & (sets.pair_target == last)
        return int(np.argmax(whole))

    def frontiers(
        self,
        graph: PlacementGraph,
        caps: Ints,
        deadline: Deadline,
        max_labels: int | None = None,
    ) -> PlacedOptions:
        """Return all ways to run the stages that may still be of use.

        Parameters
        ----------
        graph
            Relaxed options with their bounds.
        caps
            The most memory of every level.
        deadline
            When to give up.
        max_labels
            More labels of a stage are too many; ``None`` for no limit.

        Raises
        ------
        TooManyWaysError
            If some stage has more.
        """
        self._ways, self._starts = [], []
        tables = []
        for demands, stage, rows in self._stages_by_cost(graph):
            level = graph.level[graph.begin[rows]]
            demanded = StageDemands.of(demands, level, graph.target, caps)
            demand = replace(demands[0])
            for other in demands[1:]:
                demand.widen(other)
            ways = grow_frontier(
                *(stage, demand, demanded.floor, demanded.costs, deadline),
                max_labels=max_labels,
            )
            if len(ways):
                row, way, fit = self._useful_ways(demanded, ways)
                options = self._run(graph.edges, rows[row], ways, way)
                tables.append(replace(options, max_inflight=fit))
        return self._ordered(tables)

    def alone(
        self, size: int, staircase: Staircase, deadline: Deadline
    ) -> tuple[Ints, Ints]:
        """Return what all layers in one stage take and hold.

        Only ways that are faster than what is known with as little memory.

        Parameters
        ----------
        size
            Devices of the stage.
        staircase
            The plans known.
        deadline
            When to give up.

        Returns
        -------
        tuple
            Step times in quanta, and bytes.
        """
        last = self.shapes.sets.count - 1
        stage = self._stage(
            self._layers(0, last), self._block(0, size), self.routes(0, size, 0, 0)
        )
        end = stage.capacity + 1
        memories, times = staircase.arrays()
        inside = memories < end
        allowance = Allowance(
            np.concatenate(([-1], memories[inside], [end])),
            np.concatenate((times[:1], times[1:][inside], [0])),
        )
        need = self.need(1)
        ways = grow_frontier(
            *(stage, Demand(need, need, 0, 0, 0, 0), -1),
            *([Cost(1, 1, 1, allowance)], deadline),
            alone=True,
        )
        self._ways, self._starts = [ways], [0]
        if not len(ways):
            return ways.sync, ways.sync
        once, wait = self.costs(ways.amounts)
        memory = ways.fixed_bytes + need * ways.kept_bytes
        return once + wait + ways.sync, memory

    def _useful_ways(self, demanded: StageDemands, ways: StageWays) -> tuple[Ints, ...]:
        """Return which demands are met by which ways, and what fits."""
        once, wait = self.costs(ways.amounts)
        width = max(1, CHUNK // len(ways))
        matches = []
        for start in range(0, len(demanded.cap), width):
            chunk = demanded.rows[:, start : start + width, None]
            need, around, longest, sync, joint, floor, cap = chunk
            memory = ways.fixed_bytes + need * ways.kept_bytes
            apart = np.maximum(longest, wait) + np.maximum(sync, ways.sync)
            apart = np.maximum(apart, wait + ways.sync)
            time = around + once + np.maximum(apart, joint)
            upper = demanded.target.upper(np.maximum(memory, floor))
            row, way = np.nonzero((time < upper) & (memory <= cap))
            free = cap[row, 0] - ways.fixed_bytes[way]
            kept_bytes = ways.kept_bytes[way]
            max_inflight = ways.max_inflight[way]
            fit = np.where(
                kept_bytes > 0, free // np.maximum(kept_bytes, 1), max_inflight
            )
            matches.append((start + row, way, np.minimum(fit, max_inflight)))
        row, way, fit = map(np.concatenate, zip(*matches, strict=True))
        return row, way, fit


class StageDemands(NamedTuple):
    """What some stages, alike but for their places, are asked for."""

    #: Which plans matter.
    target: IncumbentCurve
    #: Of every stage the in-flight count that it must have; what the stages beside it
    #: add once, and wait, sync and joint of :class:`Demand`; floor and cap of its
    #: level.
    rows: Ints

    @staticmethod
    def of(
        demands: Sequence[Demand], level: Ints, target: IncumbentCurve, caps: Ints
    ) -> StageDemands:
        """Put the demands of some stages together."""
        upper = target.upper(target.floors)[level]
        fields = [
            (d.min_inflight, d.budget, d.wait, d.sync_floor, d.joint) for d in demands
        ]
        rows = np.array(fields, dtype=np.int64).T
        rows[1] = upper - rows[1]
        return StageDemands(
            target, np.stack((*rows, target.floors[level], caps[level]))
        )

    @property
    def cap(self) -> Ints:
        """The most memory of every stage."""
        cap: Ints = self.rows[-1]
        return cap

    @property
    def floor(self) -> int:
        """The least floor of a level."""
        return int(self.rows[-2].min())

    @property
    def costs(self) -> list[Cost]:
        """What a stage may take to be of use somewhere."""
        _, around, wait, sync, joint, _, _ = self.rows
        return [
            Cost(1, 1, 1, self._allowance(around)),
            Cost(1, 1, 0, self._allowance(around + sync)),
            Cost(1, 0, 1, self._allowance(around + wait)),
            Cost(*(1, 0, 0), self._allowance(around + np.maximum(joint, wait + sync))),
        ]

    def _allowance(self, around: Ints) -> Allowance:
        """Return what is allowed beside others that take so much."""
        floor, cap = self.rows[-2:]
        levels, level = np.unique(np.stack((floor, cap)), axis=1, return_inverse=True)
        min_around = np.full(levels.shape[1], INFINITE)
        np.minimum.at(min_around, level.reshape(-1), around)
        starts = np.unique(np.concatenate(([-1], self.target.memories, levels[1] + 1)))
        starts = starts[starts <= levels[1].max() + 1]
        values = np.full(len(starts), -INFINITE)
        for (low, high), others in zip(levels.T, min_around, strict=True):
            upper = self.target.upper(np.maximum(starts, low)) - others
            upper[starts > high] = -INFINITE
            np.maximum(values, upper, out=values)
        return Allowance(starts, values)


class LayerFrontierSearch(FrontierSearch):
    """The frontier of a problem with a strategy per layer.

    Starts from what the staircase has.
    """

    stage_options: ClassVar[type[StageOptions]] = Pipelines
    paths_are_plans: ClassVar[bool] = False
    #: Plans of one stage with so many devices, until they are searched.
    one_stage: Sequence[tuple[OpenRanges, int]] = ()

    @property
    def _batch_size(self) -> int:
        """So many relaxed options are searched together."""
        return BATCH

    def _wide(self, split: OpenSplit, num_options: int, floor: int, cap: int) -> bool:
        """Whether a level with so many options left is worth a cut.

        Not where neither ``U`` nor any relaxed option has a step.
        """
        divisor = NEAR if num_options > ENOUGH else WIDE
        if not _is_wide(floor, cap, divisor):
            return False
        staircase = self.staircase
        below = staircase.least_time(floor) > staircase.least_time(cap - 1)
        return below or bool(len(_steps(split, floor, cap)))

    def _cut(
        self, floor: int, cap: int, split: OpenSplit | None = None
    ) -> list[tuple[int, int]]:
        """Cut where ``U`` has steps, or else where relaxed options have."""
        staircase = self.staircase
        if split and staircase.least_time(floor) == staircase.least_time(cap - 1):
            steps = _steps(split, floor, cap)
            if len(steps):
                middle = int(steps[len(steps) // 2]) - 1
                return [(floor, middle), (middle, cap)]
        return super()._cut(floor, cap)

    def _find_plans(self, splits: list[OpenSplit]) -> list[OpenSplit]:
        """Find the frontiers of plans of one stage."""
        splits = sorted(splits, key=lambda split: split.bound)
        everything = self.least_bytes, self.capacity
        self.splits = [s for s in splits if s.options.stage_counts[-1] > 1]
        self.one_stage = [
            (OpenRanges(split, [Gap(*everything, split.bound)]), size)
            for split in splits
            if 1 in split.options.stage_counts
            for size in reversed(split.options.sizes)
        ]
        self.say("merging plans of one stage")
        self._share(
            self.one_stage,
            self._merge_one_stage,
            lambda task, _: self._settle(task[0], []),
        )
        return self.splits

    def _subproblems(self, splits: list[OpenSplit]) -> list[OpenRanges]:
        """Return the splits with several stages, the likely levels first."""
        self.ranges = self._open_ranges(splits, self._levels())
        self.ranges.sort(key=self._unlikely)
        return self.ranges

    def _answer(self, stop: Exception | None) -> list[Gap]:
        gaps = super()._answer(stop)
        for open_ranges, _ in self.one_stage:
            gaps += open_ranges.unsettled
        return merge_gaps(gaps)

    def _levels(self) -> list[tuple[int, int]]:
        """Return levels between points that are known."""
        memories = [point.memory_bytes for point in self.staircase.points]
        inner = memories[:: max(1, len(memories) // FIRST_LEVELS)]
        ends = {nothing_below(self.model), self.capacity}
        return list(pairwise(sorted(ends.union(inner))))

    def _unlikely(self, ranges: OpenRanges) -> bool:
        """Whether no known plan of the part's memory is of its split."""
        split = ranges.split.options.split
        (gap,) = ranges.unsettled
        return not any(
            (p.plan.replicas, p.plan.micro_batch) == split[:2]
            and len(p.plan.stages) > 1
            and gap.above_bytes <= p.memory_bytes <= gap.up_to_bytes
            for p in self.staircase.points
        )

    # One stage

    def _merge_one_stage(self, task: tuple[OpenRanges, int]) -> None:
        """Find the frontier of one number of devices."""
        self._listen()
        ranges, size = task
        options = ranges.split.options
        assert isinstance(options, Pipelines)
        step, memory = options.alone(size, self.staircase, self.deadline)
        last = options.shapes.sets.count - 1
        for row in np.lexsort((step, memory)).tolist():
            quanta, held = int(step[row]), int(memory[row])
            if quanta < self.staircase.least_time(held):
                plan = make_plan(options, [(0, last, row, size)])
                self._publish(Point(quanta, held, plan))

    # Several stages

    def _label(
        self, split: OpenSplit, batch: list[tuple[Gap, list[PairOptions]]]
    ) -> list[tuple[int, int]]:
        """Search levels that are left with few options; return what is left.

        Where stages have too many labels the levels are cut.
        """
        options = split.options
        assert isinstance(options, Pipelines)
        graph = self._placed(split, batch)
        if (graph.bounds() >= INFINITE).all():
            return []
        graph = split_by_neighbor_size(graph)
        levels = [(gap.above_bytes, gap.up_to_bytes) for gap, _ in batch]
        single = len(levels) == 1
        can_cut = not single or _is_wide(*levels[0], NEAR)
        caps = np.array([cap for _, cap in levels])
        if not len(graph.edges) or (graph.bounds() >= INFINITE).all():
            return []
        try:
            placed = options.frontiers(
                *(graph, caps, self.deadline), MOST_LABELS if can_cut else None
            )
        except TooManyWaysError:
            if single:
                return self._cut(*levels[0], split)
            return [level for one in batch for level in self._label(split, [one])]
        grown = PlacementGraph(options, placed, graph.target, self.deadline)
        if len(placed) and (grown.bounds() < INFINITE).any():
            for pipeline in LabelSearch(grown).pipelines(None):
                self._offer(split, make_plan(options, pipeline.stages))
        return []


def _steps(split: OpenSplit, floor: int, cap: int) -> Ints:
    """Return memory from which on relaxed options take less, in a level.

    All of it is more than a byte above the floor: the level can end below.
    """
    options = split.options
    assert isinstance(options, Pipelines)
    steps = options.steps
    first, last = np.searchsorted(steps, [floor + 1, cap], "right")
    return steps[first:last]


def _is_wide(floor: int, cap: int, divisor: int) -> bool:
    """Whether a level is wider than a part of its memory."""
    return (cap - floor - 1) * divisor > cap
