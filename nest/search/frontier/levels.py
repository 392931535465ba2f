"""The frontier of step time against memory, level by level of memory.

One level is one interval ``(floor, cap]`` of the memory that the fullest
device holds. A plan of a level is on the frontier only if it is faster than
``U(floor)``. ``U(m)``, the *staircase*, is the least step time of all known
plans that hold at most ``m`` bytes. The search of one batch configuration and
one interval of memory (:meth:`FrontierSearch._search`):

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

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import cast

import numpy as np

from nest.cost.model import CostModel
from nest.cost.space import leading_runtimes
from nest.search.best import (
    OpenSplit,
    PathBounds,
    Stages,
    bound_paths,
    guesses,
    make_plan,
    merged,
    open_splits,
    promising,
)
from nest.search.frontier.staircase import (
    Gap,
    Point,
    Staircase,
    make_point,
    merge_gaps,
    nothing_below,
)
from nest.search.parallel import Link, share
from nest.search.stages.bounds import IncumbentCurve, PlacementGraph
from nest.search.stages.closed_sets import ClosedSets
from nest.search.stages.labels import LabelSearch
from nest.search.stages.neighbor_sizes import split_by_neighbor_size
from nest.search.stages.options import INFINITE, LooseOptions, PairOptions, StageOptions
from nest.search.stages.paths import Path, Paths
from nest.solvers.base import Deadline, OutOfTimeError
from nest.units import ceil_div

#: Number of capacities at which the first plans are searched.
FIRST_CAPS = 32

#: Number of intervals into which a level is cut.
NUM_PARTS = 4

#: The label search starts when the collected levels have this many options.
#: Small batches need little memory, and each batch bounds the next one.
BATCH = 200_000

#: A level with more options is cut, and its intervals are bounded again.
ENOUGH = 16_000

#: A level narrower than this fraction of its memory is not cut.
NEAR = 64

Say = Callable[[str], None]


def ignore(text: str) -> None:
    """Ignore a message."""


@dataclass(eq=False)
class FrontierSplit:
    """A split with a lower bound on the memory of its plans.

    Attributes
    ----------
    item
        The split.
    least_bytes
        Lower bound on the memory of the fullest device of any of its plans.
    """

    item: OpenSplit
    least_bytes: int

    @property
    def memory_key(self) -> object:
        """Key of splits with equal memory, because overlap needs no memory."""
        options = self.item.options
        sharded = options.model.runtime.distributed_optimizer
        return options.split, options.family, sharded

    @cached_property
    def loose_options(self) -> LooseOptions:
        """Its options within the capacity, without a device range."""
        options = self.item.options
        capacity = options.model.problem.cluster.memory_bytes()
        return options.loose(self.item.limit(int(INFINITE)), capacity)


@dataclass(eq=False)
class OpenRanges:
    """A split with the intervals of memory that are still open."""

    split: FrontierSplit
    unsettled: list[Gap]


class FrontierSearch:
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
    gaps
        The intervals without a proof, by ascending memory.
    """

    def __init__(
        self,
        model: CostModel,
        sets: ClosedSets,
        deadline: Deadline,
        say: Say = ignore,
        workers: int = 1,
    ) -> None:
        self.model, self.sets = model, sets
        self.deadline, self.say = deadline, say
        self.workers = workers
        self._tried: set[object] = set()
        self._tell: Callable[[object], object] = self._take
        self.capacity = model.problem.cluster.memory_bytes()
        self.staircase = Staircase()
        self.gaps = [Gap(nothing_below(model), self.capacity, 0)]
        #: Lower bound: every plan needs more memory.
        self.least_bytes = nothing_below(model)

    def run(self) -> None:
        """Search until everything is proven or the time is up."""
        splits: list[FrontierSplit] = []
        ranges: list[OpenRanges] = []
        try:
            items = open_splits(
                *(self.model, self.sets, self.deadline),
                runtimes=leading_runtimes(self.model.problem),
            )
            splits = [
                FrontierSplit(item, least_bytes(item.options))
                for item in sorted(items, key=lambda item: item.bound)
            ]
            if not splits or not self._find_min_memory(splits):
                self.gaps = []
                return
            self._first_sweep(splits)
            levels = self._cut(self.least_bytes, self.capacity)
            ranges = self._open_ranges(splits, levels)
            self._settle(ranges)
        except OutOfTimeError:
            if not splits:
                return
            whole = self.least_bytes, self.capacity
            ranges = ranges or self._open_ranges(splits, [whole])
        self.gaps = merge_gaps(
            gap for open_ranges in ranges for gap in open_ranges.unsettled
        )

    def _open_ranges(
        self, splits: Sequence[FrontierSplit], levels: Sequence[tuple[int, int]]
    ) -> list[OpenRanges]:
        """Return every split with every level."""
        return [
            OpenRanges(split, [Gap(*level, split.item.bound)])
            for split in splits
            for level in levels
        ]

    def _settle(self, ranges: Sequence[OpenRanges]) -> None:
        """Search all open ranges; store the gaps that remain."""

        def run(index: int, link: Link) -> list[Gap]:
            try:
                self._search(ranges[index], link)
            except OutOfTimeError:
                raise OutOfTimeError(ranges[index].unsettled) from None
            return []

        def begin(index: int) -> None:
            split = ranges[index].split.item.options.split
            self.say(
                f"part {index + 1} of {len(ranges)}: R={split.replicas}, "
                f"B={split.micro_batch}; {len(self.staircase.points)} points"
            )

        def done(index: int, gaps: object) -> None:
            ranges[index].unsettled = cast("list[Gap]", gaps)

        share(len(ranges), self.workers, run, self._take, done, begin)

    def _take(self, point: object) -> None:
        """Add a point that another process found."""
        self.staircase.add(cast("Point", point))

    def _check_time(self) -> None:
        if self.deadline.passed:
            raise OutOfTimeError

    def _listen(self, link: Link) -> None:
        """Add the points that other processes found."""
        self._check_time()
        self._tell = link.tell
        for point in link.heard():
            self._take(point)

    def _add(self, options: StageOptions, stages: Stages) -> Point:
        """Add the point of a plan."""
        point = make_point(self.model, make_plan(options, stages))
        if self.staircase.add(point):
            self._tell(point)
        return point

    # The first plans

    def _find_min_memory(self, splits: list[FrontierSplit]) -> bool:
        """Find a close lower bound on the memory of any plan.

        Sets :attr:`least_bytes`, which is at most a fraction ``1 / NEAR``
        below the least memory of any plan. Returns whether there is a plan.
        Paths suffice, because a path within the budget is a plan.
        """
        min_bytes = None
        # One runtime of those whose plans need equal memory.
        first = {split.memory_key: split for split in reversed(splits)}
        for split in sorted(first.values(), key=lambda x: x.least_bytes):
            low = split.least_bytes - 1
            high = self.capacity if min_bytes is None else _near(min_bytes)
            if low >= high:
                continue
            options = split.item.options
            limit = split.item.limit(int(INFINITE))
            # Few splits need less than the least known memory: test it first.
            cap = high
            while low < high:
                self._check_time()
                paths = Paths(options, split.loose_options, limit, cap)
                path = paths.smallest()
                if path is None:
                    low = cap
                else:
                    min_bytes = self._add(options, path.stages).memory_bytes
                    high = _near(min_bytes)
                    self.say(f"least memory at most {min_bytes} bytes")
                cap = (low + high + 1) // 2
        if min_bytes is None:
            return False
        self.least_bytes = _near(min_bytes)
        return True

    def _first_sweep(self, splits: Sequence[FrontierSplit]) -> None:
        """Find the first plans, at some capacities."""
        self.say("looking for plans to start from")
        low, high = self.least_bytes, self.capacity
        ratio = high / max(low, 1)
        caps = {round(low * ratio ** (i / FIRST_CAPS)) for i in range(FIRST_CAPS)}
        todo = sorted({cap for cap in caps if low < cap < high} | {high})
        items = [split.item for split in splits]

        def run(index: int, link: Link) -> None:
            # Large capacities come first: their plans are found fastest.
            cap = todo[-1 - index]
            for guess in guesses(items):
                for split in splits:
                    self._listen(link)
                    upper = min(guess, self.staircase.least_time(cap))
                    if split.item.bound < upper:
                        self._bound(split, cap, cap, guess)
                if self.staircase.least_time(cap) < guess:
                    break

        share(len(todo), self.workers, run, self._take, lambda index, result: None)

    def _bound(
        self, split: FrontierSplit, floor: int, cap: int, guess: int
    ) -> PathBounds:
        """Bound the plans within a cap that are faster than ``U(floor)``."""

        def upper() -> int:
            self._check_time()
            return min(guess, self.staircase.least_time(floor))

        def offer(item: OpenSplit, path: Path) -> None:
            options = item.options
            incumbent = self.staircase.least_time(path.memory_bytes)
            key = (options.split, options.model.runtime, path.stages)
            if promising(path, incumbent) and key not in self._tried:
                self._tried.add(key)
                self._add(options, path.stages)

        return bound_paths(split.item, cap, upper, offer, split.loose_options)

    # Levels

    def _cut(
        self, floor: int, cap: int, split: FrontierSplit | None = None
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

    def _wide(
        self, split: FrontierSplit, num_options: int, floor: int, cap: int
    ) -> bool:
        """Whether to cut a level with this number of options."""
        return num_options > ENOUGH and cap - floor > max(cap // NEAR, 1)

    def _search(self, ranges: OpenRanges, link: Link) -> None:
        """Find all plans in the open ranges that are on the frontier."""
        split, item = ranges.split, ranges.split.item
        todo = [(gap.above_bytes, gap.up_to_bytes) for gap in ranges.unsettled]
        batch: list[tuple[Gap, list[PairOptions]]] = []
        num_options = 0
        while todo or batch:
            ranges.unsettled = [gap for gap, _ in batch]
            ranges.unsettled += [Gap(*level, item.bound) for level in todo]
            self._listen(link)
            if batch and (not todo or num_options >= self._batch_size):
                todo += self._label(split, batch)
                batch, num_options = [], 0
                continue
            floor, cap = todo.pop()
            upper = self.staircase.least_time(floor)
            if item.bound >= upper:
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
        self, split: FrontierSplit, batch: list[tuple[Gap, list[PairOptions]]]
    ) -> list[tuple[int, int]]:
        """Search collected levels; return levels that need another search."""
        graph = self._placed(split, batch)
        if (graph.bounds() < INFINITE).any():
            graph = split_by_neighbor_size(graph)
            if (graph.bounds() < INFINITE).any():
                for pipeline in LabelSearch(graph).pipelines(None):
                    self._add(split.item.options, pipeline.stages)
        return []

    def _placed(
        self, split: FrontierSplit, batch: list[tuple[Gap, list[PairOptions]]]
    ) -> PlacementGraph:
        """Return the placement graph of the options of some levels."""
        options = split.item.options
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
            options.placed(merged(tables), split.item.limit(uppers), self._check_time),
            IncumbentCurve(floors, *self.staircase.arrays()),
            self.deadline,
        )


def _near(memory_bytes: int) -> int:
    return memory_bytes - 1 - memory_bytes // NEAR


def least_bytes(options: StageOptions) -> int:
    """Return a lower bound on the memory of the fullest device.

    The layers need ``Σ min n (static + kept)`` device-bytes. Some device holds
    at least a ``P``-th of them, plus the working set of a layer.
    """
    free, sizes = options.terms.free, options.terms.devices[:, None]
    assert free is not None
    usable = options.usable[:, None] & ~free.missing
    space = sizes * (free.static_bytes + free.kept_bytes)
    counts = options.shapes.kind_counts[-1].tolist()
    min_bytes = np.where(usable, space, INFINITE).min(axis=0).tolist()
    total = sum(c * s for c, s in zip(counts, min_bytes, strict=True))
    return ceil_div(total, options.split.devices) + int(
        np.where(usable, free.working_bytes, INFINITE).min()
    )
