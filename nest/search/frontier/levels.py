"""The frontier of step time against memory, level by level of memory.

One level is one interval ``(floor, cap]`` of the memory that the fullest
device holds. A plan of a level is on the frontier only if it is faster than
``U(floor)``. ``U(m)``, the *staircase*, is the least step time of all known
plans that hold at most ``m`` bytes. The search of one batch configuration and
one interval of memory (:meth:`FrontierSearch._search_levels`):

1. Bound the plans of a level by paths, as :mod:`nest.search.best` does for
   its only level. The options that remain are those of plans below ``U``.
2. If too many options remain, cut the level at the steps of ``U``.
3. Otherwise collect the level. The label search searches many levels at once.

A plan that holds less than the floor of a level belongs to another level.
Within the level it counts as if it held the floor.

Plans of all runtimes share the levels and ``U``. Only runtimes that some plan
may need are searched: overlapping one more axis takes no memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import cast

import numpy as np

from nest.cost.model import CostModel
from nest.ir.plan import Plan
from nest.search.algorithm import BranchAndBound
from nest.search.frontier.least import NEAR, LeastMemory, Say, ignore
from nest.search.frontier.staircase import (
    Gap,
    Point,
    Staircase,
    make_point,
    merge_gaps,
    nothing_below,
)
from nest.search.stages.bounds import IncumbentCurve, PlacementGraph
from nest.search.stages.closed_sets import ClosedSets
from nest.search.stages.labels import improvements
from nest.search.stages.options import INFINITE, PairOptions
from nest.search.stages.splits import (
    OpenSplit,
    PathBounds,
    bound_paths,
    make_plan,
    merged,
)
from nest.solvers.base import Deadline, OutOfTimeError
from nest.units import ceil_div

#: Number of capacities at which the first plans are searched.
FIRST_CAPS = 32

#: Number of intervals into which a level is cut.
NUM_PARTS = 4

#: The label search starts when the collected levels have this many options.
#: Small batches need little memory, and each batch bounds the next one.
BATCH = 50_000

#: A level with more options is cut, and its intervals are bounded again.
ENOUGH = 16_000


@dataclass(eq=False)
class OpenRanges:
    """A split with the intervals of memory that are still open."""

    split: OpenSplit
    unsettled: list[Gap]


class FrontierSearch(BranchAndBound[OpenRanges, list[Gap]]):
    """The frontier of a problem with one strategy per stage.

    Parameters
    ----------
    model, sets
        Cost terms and closed sets.
    deadline
        The clock.
    say
        Called with messages about the progress.
    workers
        Number of processes that share the splits.

    Attributes
    ----------
    staircase
        The known points.
    """

    def __init__(
        self,
        model: CostModel,
        sets: ClosedSets,
        deadline: Deadline,
        say: Say = ignore,
        workers: int = 1,
    ) -> None:
        super().__init__(model, sets, deadline, workers)
        self.say = say
        self.staircase = Staircase()
        self.ranges: list[OpenRanges] = []
        #: Lower bound: every plan needs more memory.
        self.least_bytes = nothing_below(model)

    def _find_plans(self, splits: list[OpenSplit]) -> list[OpenSplit]:
        """Find plans at some capacities, the least one included."""
        splits = sorted(splits, key=lambda split: split.bound)
        if not self._find_min_memory(splits):
            return []
        self._first_sweep(splits)
        return splits

    def _subproblems(self, splits: list[OpenSplit]) -> list[OpenRanges]:
        """Return every split with every level."""
        levels = self._cut(self.least_bytes, self.capacity)
        self.ranges = self._open_ranges(splits, levels)
        return self.ranges

    def _answer(self, stop: Exception | None) -> list[Gap]:
        """Return the intervals without a proof, by ascending memory."""
        whole = self.least_bytes, self.capacity
        if self.splits is None:
            return [Gap(*whole, 0)]
        if stop is not None and not self.ranges:
            self.ranges = self._open_ranges(self.splits, [whole])
        return merge_gaps(
            gap for open_ranges in self.ranges for gap in open_ranges.unsettled
        )

    def _open_ranges(
        self, splits: Sequence[OpenSplit], levels: Sequence[tuple[int, int]]
    ) -> list[OpenRanges]:
        """Return every split with every level."""
        return [
            OpenRanges(split, [Gap(*level, split.bound)])
            for split in splits
            for level in levels
        ]

    def _prove(self, splits: list[OpenSplit]) -> None:
        """Search all open ranges."""
        self._share(self._subproblems(splits), self._search, self._settle, self._begin)

    def _begin(self, index: int) -> None:
        """Say which of the open ranges is searched."""
        split = self.ranges[index].split.options.split
        self.say(
            f"part {index + 1} of {len(self.ranges)}: R={split.replicas}, "
            f"B={split.micro_batch}; {len(self.staircase.points)} points"
        )

    def _settle(self, ranges: OpenRanges, result: object) -> None:
        """Store the gaps that a search of open ranges left."""
        ranges.unsettled = cast("list[Gap]", result)

    def _keep(self, finding: object) -> bool:
        """Add a point to the staircase."""
        return self.staircase.add(cast("Point", finding))

    def _incumbent(self, memory_bytes: int) -> int:
        return self.staircase.least_time(memory_bytes)

    def _offer(self, split: OpenSplit, plan: Plan) -> None:
        """Add the point of a plan, if it fits."""
        self._publish(make_point(self.model, plan))

    # The first plans

    def _find_min_memory(self, splits: list[OpenSplit]) -> bool:
        """Find a close lower bound on the memory of any plan.

        Sets :attr:`least_bytes`, which is at most a fraction ``1 / NEAR``
        below the least memory of any path. Returns whether there is a path.
        Paths suffice, because every plan is one and holds no less.
        """
        shared = self.deadline, self.say, self._offer
        search = LeastMemory(self.capacity, splits, *shared)
        search.close(NEAR)
        if search.min_bytes is None:
            return False
        self.least_bytes = search.high(NEAR)
        return True

    def _first_sweep(self, splits: Sequence[OpenSplit]) -> None:
        """Find the first plans, at some capacities."""
        self.say("looking for plans to start from")
        low, high = self.least_bytes, self.capacity
        ratio = high / max(low, 1)
        caps = {round(low * ratio ** (i / FIRST_CAPS)) for i in range(FIRST_CAPS)}
        todo = sorted({cap for cap in caps if low < cap < high} | {high})

        def run(cap: int) -> None:
            def incumbent() -> int:
                return self.staircase.least_time(cap)

            def bound_all(guess: int) -> None:
                self._bound_each(
                    splits,
                    lambda: min(guess, incumbent()),
                    lambda split: self._bound(split, cap, cap, guess),
                )

            self._bound_by_guesses(splits, incumbent, bound_all)

        # Large capacities come first: their plans are found fastest.
        self._share(todo[::-1], run, lambda cap, result: None)

    def _bound(self, split: OpenSplit, floor: int, cap: int, guess: int) -> PathBounds:
        """Bound the plans within a cap that are faster than ``U(floor)``."""

        def upper() -> int:
            self.deadline.check()
            return min(guess, self.staircase.least_time(floor))

        # Relaxed options depend on the cap.
        loose = split.loose_options if self.paths_are_plans else None
        return bound_paths(split, cap, upper, self._offer_path, loose)

    # Levels

    def _cut(
        self, floor: int, cap: int, split: OpenSplit | None = None
    ) -> list[tuple[int, int]]:
        """Cut an interval of memory at the steps of ``U``."""
        steps = [
            point.memory_bytes
            for point in self.staircase.points
            if floor < point.memory_bytes < cap
        ]
        if not steps:
            middle = (floor + cap) // 2
            return [(floor, middle), (middle, cap)]
        stride = ceil_div(len(steps) + 1, NUM_PARTS)
        return list(pairwise([floor, *steps[stride - 1 :: stride], cap]))

    @property
    def _batch_size(self) -> int:
        """Number of options that one label search gets."""
        return BATCH

    def _wide(self, split: OpenSplit, num_options: int, floor: int, cap: int) -> bool:
        """Whether to cut a level with this number of options."""
        return num_options > ENOUGH and cap - floor > max(cap // NEAR, 1)

    def _search(self, ranges: OpenRanges) -> list[Gap]:
        """Find all plans in the open ranges that are on the frontier."""
        try:
            self._search_levels(ranges)
        except OutOfTimeError:
            raise OutOfTimeError(ranges.unsettled) from None
        return []

    def _search_levels(self, ranges: OpenRanges) -> None:
        """Search the levels of open ranges, and cut those with many options."""
        split = ranges.split
        todo = [(gap.above_bytes, gap.up_to_bytes) for gap in ranges.unsettled]
        batch: list[tuple[Gap, list[PairOptions]]] = []
        num_options = 0
        while todo or batch:
            ranges.unsettled = [gap for gap, _ in batch]
            ranges.unsettled += [Gap(*level, split.bound) for level in todo]
            self._listen()
            if batch and (not todo or num_options >= self._batch_size):
                todo += self._label(split, batch)
                batch, num_options = [], 0
                continue
            floor, cap = todo.pop()
            upper = self.staircase.least_time(floor)
            if split.bound >= upper:
                continue
            bounded = self._bound(split, floor, cap, int(INFINITE))
            upper = self.staircase.least_time(floor)
            survivors = bounded.survivors(upper)
            if not survivors:
                continue
            num_survivors = sum(map(len, survivors))
            if self._wide(split, num_survivors, floor, cap):
                todo += self._cut(floor, cap, split)[::-1]
            else:
                batch.append((Gap(floor, cap, bounded.bound), survivors))
                num_options += num_survivors

    def _label(
        self, split: OpenSplit, batch: list[tuple[Gap, list[PairOptions]]]
    ) -> list[tuple[int, int]]:
        """Search collected levels; return levels that need another search."""
        graph = self._placed(split, batch)
        floors = graph.target.floors

        def target() -> IncumbentCurve:
            return IncumbentCurve(floors, *self.staircase.arrays())

        for pipeline in improvements(graph, target):
            self._offer(split, make_plan(split.options, pipeline.stages))
        return []

    def _placed(
        self, split: OpenSplit, batch: list[tuple[Gap, list[PairOptions]]]
    ) -> PlacementGraph:
        """Return the placement graph of the options of some levels."""
        options = split.options
        floors = np.array([gap.above_bytes for gap, _ in batch])
        uppers = np.array(
            [self.staircase.least_time(floor) for floor in floors.tolist()]
        )
        tables = [
            replace(table, level=np.full(len(table), level, dtype=np.int64))
            for level, (_, tables) in enumerate(batch)
            for table in tables
        ]
        return PlacementGraph(
            options,
            options.placed(merged(tables), split.limit(uppers), self.deadline.check),
            IncumbentCurve(floors, *self.staircase.arrays()),
            self.deadline,
        )
