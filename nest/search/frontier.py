"""The exact frontier of step time against memory, on one cluster.

The memory axis is cut into *levels*, intervals ``(floor, cap]`` of what the
fullest device holds. A plan of a level is on the frontier only if it is
faster than ``U(floor)``, where ``U(m)`` is the least time of any known plan
with at most ``m`` bytes. Every level of every ``(R, B)`` is bounded by itself
as :mod:`nest.search.best` bounds the one level it has; where too much is left
it is cut again, at the steps of ``U``. What is left of all levels goes into
one label search. Memory below the floor counts as the floor there: a plan
that ends below it belongs to another level.

Plans of every runtime share the levels and ``U``: what one runtime is fast
with rules out what others are slow with. Only runtimes that some plan may need
are searched, as for the best plan: hiding one more axis takes no memory.

For a strategy per layer see :mod:`nest.search.layer_frontier`. Published
models with searches of their own take one solve per point, see
:func:`descend`; so do interleaved plans, after all others, see
:func:`interleaved`.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import cast

import numpy as np

from nest.cost.model import CostModel
from nest.cost.score import score
from nest.cost.space import is_single, leading_runtimes
from nest.ir.plan import Plan
from nest.search import exact
from nest.search.best import (
    Bounded,
    OpenSplit,
    Stages,
    bound_paths,
    guesses,
    make_plan,
    merged,
    open_splits,
    promising,
)
from nest.search.bounds import Places, Target
from nest.search.closed_sets import ClosedSets
from nest.search.interleaved import interleave, virtual_stages
from nest.search.labels import LabelSearch
from nest.search.meetings import tell_apart
from nest.search.options import (
    INFINITE,
    Ints,
    LooseOptions,
    PairOptions,
    StageOptions,
)
from nest.search.parallel import Link, share
from nest.search.paths import Path, Paths
from nest.search.task import SearchTask
from nest.solvers.base import (
    Deadline,
    OutOfTimeError,
    SolverOutput,
    Status,
)
from nest.units import ceil_div

#: Capacities at which plans to start from are looked for.
FIRST_CAPS = 32

#: Parts that an interval of memory is cut into.
NUM_PARTS = 4

#: Levels go to the labels when so many options are left of them: few at a
#: time keep memory small, and what one batch finds bounds the next.
BATCH = 200_000

#: So few options of a level go to the labels; more are bounded again in a
#: part of its memory.
ENOUGH = 16_000

#: Memory within this fraction of another is not worth a cut.
NEAR = 64

Say = Callable[[str], None]


def ignore(text: str) -> None:
    """Say nothing."""


@dataclass(frozen=True)
class Point:
    """A plan, its step time in quanta, and what its fullest device holds."""

    step_quanta: int
    memory_bytes: int
    plan: Plan


@dataclass(frozen=True)
class Gap:
    """Memory for which faster plans than the curve's are not ruled out.

    Attributes
    ----------
    above_bytes, up_to_bytes
        Such a plan's fullest device holds more than the one and at most the
        other.
    lower_bound_quanta
        Its step time is at least that.
    """

    above_bytes: int
    up_to_bytes: int
    lower_bound_quanta: int


def merge_gaps(gaps: Iterable[Gap]) -> list[Gap]:
    """Return gaps that do not overlap, each with the least bound there."""
    gaps = list(gaps)
    ends = {gap.above_bytes for gap in gaps} | {g.up_to_bytes for g in gaps}
    joined: list[Gap] = []
    for low, high in pairwise(sorted(ends)):
        bounds = [
            gap.lower_bound_quanta
            for gap in gaps
            if gap.above_bytes <= low and high <= gap.up_to_bytes
        ]
        if not bounds:
            continue
        last = joined[-1] if joined else None
        if last and (last.up_to_bytes, last.lower_bound_quanta) == (
            low,
            min(bounds),
        ):
            joined[-1] = replace(last, up_to_bytes=high)
        else:
            joined.append(Gap(low, high, min(bounds)))
    return joined


def leave_room(
    gaps: Iterable[Gap], memory_bytes: int, step_quanta: int
) -> bool:
    """Whether a plan as small and as fast as that is not ruled out."""
    return any(
        gap.above_bytes < memory_bytes
        and gap.lower_bound_quanta <= step_quanta
        for gap in gaps
    )


def nothing_below(model: CostModel) -> int:
    """Return a floor of memory that every plan is above."""
    return model.problem.cluster.reserve_bytes() - 1


def make_point(model: CostModel, plan: Plan) -> Point:
    """Return what a plan reaches by the shared cost model."""
    found = score(model.problem, plan, model)
    memory_bytes = max(block.memory_bytes for block in found.blocks)
    return Point(found.step_quanta, memory_bytes, plan)


class Staircase:
    """``U``: the least known step time for every memory."""

    def __init__(self) -> None:
        #: By ascending memory, hence descending time.
        self.points: list[Point] = []

    def add(self, point: Point) -> bool:
        """Add a point unless a known one is as good; drop what it beats."""
        if self.least_time(point.memory_bytes) <= point.step_quanta:
            return False
        self.points = [
            old
            for old in self.points
            if old.memory_bytes < point.memory_bytes
            or old.step_quanta < point.step_quanta
        ]
        bisect.insort(self.points, point, key=lambda p: p.memory_bytes)
        return True

    def least_time(self, memory_bytes: int) -> int:
        """Return ``U(m)``; :data:`INFINITE` below all points."""
        place = bisect.bisect_right(
            self.points, memory_bytes, key=lambda p: p.memory_bytes
        )
        return self.points[place - 1].step_quanta if place else int(INFINITE)

    def arrays(self) -> tuple[Ints, Ints]:
        """Return memories, and ``U`` below the first and from each on."""
        return (
            np.array([p.memory_bytes for p in self.points], dtype=np.int64),
            np.array(
                [int(INFINITE), *(p.step_quanta for p in self.points)],
                dtype=np.int64,
            ),
        )


@dataclass(eq=False)
class Split:
    """A split; the fullest device of any plan holds ``least_bytes``."""

    item: OpenSplit
    least_bytes: int

    @property
    def alike(self) -> object:
        """What plans that hold the same memory share: overlap takes none."""
        options = self.item.options
        sharded = options.model.runtime.distributed_optimizer
        return options.split, options.family, sharded

    @cached_property
    def found(self) -> LooseOptions:
        """What its stages may be within the capacity, without a place."""
        options = self.item.options
        capacity = options.model.problem.cluster.memory_bytes()
        return options.loose(self.item.limit(int(INFINITE)), capacity)


@dataclass(eq=False)
class Part:
    """A part of a split: intervals of memory that are not settled."""

    split: Split
    unsettled: list[Gap]


class FrontierSearch:
    """The frontier of a problem with one strategy per stage.

    Parameters
    ----------
    model, sets
        Cost terms and closed sets.
    deadline
        When to give up.
    say
        Told now and then what goes on.
    workers
        Processes that share the splits.

    Attributes
    ----------
    staircase
        What is known.
    gaps
        What is not proven, by ascending memory.
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
        #: Every plan needs more memory.
        self.least_bytes = nothing_below(model)

    def run(self) -> None:
        """Search until all is proven or the time is up."""
        splits: list[Split] = []
        parts: list[Part] = []
        try:
            items = open_splits(
                *(self.model, self.sets, self.deadline),
                runtimes=leading_runtimes(self.model.problem),
            )
            splits = [
                Split(item, least_bytes(item.options))
                for item in sorted(items, key=lambda item: item.bound)
            ]
            if not splits or not self._find_least(splits):
                self.gaps = []
                return
            self._first_sweep(splits)
            levels = self._cut(self.least_bytes, self.capacity)
            parts = self._parts(splits, levels)
            self._settle(parts)
        except OutOfTimeError:
            if not splits:
                return
            whole = self.least_bytes, self.capacity
            parts = parts or self._parts(splits, [whole])
        self.gaps = merge_gaps(gap for part in parts for gap in part.unsettled)

    def _parts(
        self, splits: Sequence[Split], levels: Sequence[tuple[int, int]]
    ) -> list[Part]:
        """Return all splits at all levels."""
        return [
            Part(split, [Gap(*level, split.item.bound)])
            for split in splits
            for level in levels
        ]

    def _settle(self, parts: Sequence[Part]) -> None:
        """Search all parts; note what is left."""

        def run(number: int, link: Link) -> list[Gap]:
            try:
                self._search(parts[number], link)
            except OutOfTimeError:
                raise OutOfTimeError(parts[number].unsettled) from None
            return []

        def begin(number: int) -> None:
            split = parts[number].split.item.options.split
            self.say(
                f"part {number + 1} of {len(parts)}: R={split.replicas}, "
                f"B={split.micro_batch}; {len(self.staircase.points)} points"
            )

        def done(number: int, left: object) -> None:
            parts[number].unsettled = cast("list[Gap]", left)

        share(len(parts), self.workers, run, self._take, done, begin)

    def _take(self, point: object) -> None:
        """Add a point that some process found."""
        self.staircase.add(cast("Point", point))

    def _check_time(self) -> None:
        if self.deadline.passed:
            raise OutOfTimeError

    def _listen(self, link: Link) -> None:
        """Add what other processes found to what is known."""
        self._check_time()
        self._tell = link.tell
        for point in link.heard():
            self._take(point)

    def _add(self, options: StageOptions, stages: Stages) -> Point:
        """Add a plan to what is known."""
        point = make_point(self.model, make_plan(options, stages))
        if self.staircase.add(point):
            self._tell(point)
        return point

    # Plans to start from

    def _find_least(self, splits: list[Split]) -> bool:
        """Find about the least memory with which there is a plan.

        Sets :attr:`least_bytes`, which is less than what any plan needs by
        at most a fraction of ``1 / NEAR``. Returns whether there is any
        plan. A path within the budget is a plan, so no place matters.
        """
        least = None
        # One runtime of those whose plans hold the same.
        first = {split.alike: split for split in reversed(splits)}
        for split in sorted(first.values(), key=lambda x: x.least_bytes):
            low = split.least_bytes - 1
            high = self.capacity if least is None else _near(least)
            if low >= high:
                continue
            options = split.item.options
            limit = split.item.limit(int(INFINITE))
            # Few splits get below what is known: first try that.
            cap = high
            while low < high:
                self._check_time()
                paths = Paths(options, split.found, limit, cap)
                path = paths.smallest()
                if path is None:
                    low = cap
                else:
                    least = self._add(options, path.stages).memory_bytes
                    high = _near(least)
                    self.say(f"least memory at most {least} bytes")
                cap = (low + high + 1) // 2
        if least is None:
            return False
        self.least_bytes = _near(least)
        return True

    def _first_sweep(self, splits: Sequence[Split]) -> None:
        """Find plans to start from, at some capacities."""
        self.say("looking for plans to start from")
        low, high = self.least_bytes, self.capacity
        ratio = high / max(low, 1)
        caps = {
            round(low * ratio ** (i / FIRST_CAPS)) for i in range(FIRST_CAPS)
        }
        todo = sorted({cap for cap in caps if low < cap < high} | {high})
        items = [split.item for split in splits]

        def run(number: int, link: Link) -> None:
            # Large capacities first: their plans come soonest.
            cap = todo[-1 - number]
            for guess in guesses(items):
                for split in splits:
                    self._listen(link)
                    upper = min(guess, self.staircase.least_time(cap))
                    if split.item.bound < upper:
                        self._bound(split, cap, cap, guess)
                if self.staircase.least_time(cap) < guess:
                    break

        share(
            len(todo),
            self.workers,
            run,
            self._take,
            lambda number, result: None,
        )

    def _bound(
        self,
        split: Split,
        floor: int,
        cap: int,
        guess: int,
    ) -> Bounded:
        """Bound the plans within a cap that are faster than ``U(floor)``."""

        def upper() -> int:
            self._check_time()
            return min(guess, self.staircase.least_time(floor))

        def offer(item: OpenSplit, path: Path) -> None:
            options = item.options
            known = self.staircase.least_time(path.memory_bytes)
            key = (options.split, options.model.runtime, path.stages)
            if promising(path, known) and key not in self._tried:
                self._tried.add(key)
                self._add(options, path.stages)

        return bound_paths(split.item, cap, upper, offer, split.found)

    # Levels

    def _cut(
        self, floor: int, cap: int, split: Split | None = None
    ) -> list[tuple[int, int]]:
        """Cut an interval of memory where ``U`` has steps."""
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
    def _most_at_once(self) -> int:
        """So many options are searched together, of several levels."""
        return BATCH

    def _wide(self, split: Split, number: int, floor: int, cap: int) -> bool:
        """Whether a level with so many options left is worth a cut."""
        return number > ENOUGH and cap - floor > max(cap // NEAR, 1)

    def _search(self, part: Part, link: Link) -> None:
        """Find all plans of a part of a split that are on the frontier."""
        split, item = part.split, part.split.item
        todo = [(gap.above_bytes, gap.up_to_bytes) for gap in part.unsettled]
        batch: list[tuple[Gap, list[PairOptions]]] = []
        num_options = 0
        while todo or batch:
            part.unsettled = [gap for gap, _ in batch]
            part.unsettled += [Gap(*level, item.bound) for level in todo]
            self._listen(link)
            if batch and (not todo or num_options >= self._most_at_once):
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
            number = sum(map(len, survivors))
            if self._wide(split, number, floor, cap):
                todo += self._cut(floor, cap, split)[::-1]
            else:
                batch.append((Gap(floor, cap, bounded.bound), survivors))
                num_options += number

    def _label(
        self, split: Split, batch: list[tuple[Gap, list[PairOptions]]]
    ) -> list[tuple[int, int]]:
        """Search levels that are left with few options; return what is left.

        Levels to be searched again, in parts.
        """
        places = self._placed(split, batch)
        if (places.bounds() < INFINITE).any():
            places = tell_apart(places)
            if (places.bounds() < INFINITE).any():
                for pipeline in LabelSearch(places).pipelines(None):
                    self._add(split.item.options, pipeline.stages)
        return []

    def _placed(
        self, split: Split, batch: list[tuple[Gap, list[PairOptions]]]
    ) -> Places:
        """Return the places of what is left of some levels."""
        options = split.item.options
        floors = np.array([gap.above_bytes for gap, _ in batch])
        uppers = np.array(
            [self.staircase.least_time(floor) for floor in floors.tolist()]
        )
        parts = [
            replace(part, level=np.full(len(part), level, dtype=np.int64))
            for level, (_, parts) in enumerate(batch)
            for part in parts
        ]
        return Places(
            options,
            options.placed(
                merged(parts), split.item.limit(uppers), self._check_time
            ),
            Target(floors, *self.staircase.arrays()),
            self.deadline,
        )


def _near(memory_bytes: int) -> int:
    return memory_bytes - 1 - memory_bytes // NEAR


def least_bytes(options: StageOptions) -> int:
    """Return a lower bound on what the fullest device of a split holds.

    The layers take ``Σ min n (static + kept)`` device-bytes, so some device
    holds a ``P``-th of it, and its stage works on some layer.
    """
    free, sizes = options.terms.free, options.terms.devices[:, None]
    assert free is not None
    usable = options.usable[:, None] & ~free.missing
    space = sizes * (free.static_bytes + free.kept_bytes)
    counts = options.shapes.kind_counts[-1].tolist()
    least = np.where(usable, space, INFINITE).min(axis=0).tolist()
    total = sum(c * s for c, s in zip(counts, least, strict=True))
    return ceil_div(total, options.split.devices) + int(
        np.where(usable, free.working_bytes, INFINITE).min()
    )


def search(
    model: CostModel,
    sets: ClosedSets,
    deadline: Deadline,
    say: Say = ignore,
    workers: int = 1,
) -> tuple[list[Point], list[Gap]]:
    """Return the frontier of a problem, and what of it is not proven.

    Stages with one strategy each are searched level by level. For a strategy
    per layer see :mod:`nest.search.layer_frontier`, for presets with programs
    of their own :func:`descend`, for interleaved plans :func:`interleaved`.

    Parameters
    ----------
    model, sets
        Cost terms and closed sets.
    deadline
        When to give up.
    say
        Told now and then what goes on.
    workers
        Processes that share the search level by level.

    Returns
    -------
    tuple
        Points by ascending memory, and gaps by ascending memory.
    """
    staircase = Staircase()
    gaps: list[Gap] = []
    job = model.problem.job
    if 1 in job.virtual_stages:
        if model.rules.search is None:
            levels = FrontierSearch(model, sets, deadline, say, workers)
            levels.run()
            staircase, gaps = levels.staircase, levels.gaps
            if job.granularity == "layer" and not is_single(model.problem):
                gaps = _merge_layers(levels)
        else:
            gaps = descend(model, sets, deadline, staircase, say)
    if virtual_stages(model.problem):
        gaps += interleaved(model, sets, deadline, staircase, say)
    return staircase.points, merge_gaps(gaps)


def _merge_layers(levels: FrontierSearch) -> list[Gap]:
    """Add plans with a strategy per layer; return what is left."""
    from nest.search.layer_frontier import LayerFrontierSearch

    search = LayerFrontierSearch(
        *(levels.model, levels.sets, levels.deadline),
        *(levels.say, levels.workers),
    )
    search.staircase = levels.staircase
    search.run()
    return search.gaps


def descend(
    model: CostModel,
    sets: ClosedSets,
    deadline: Deadline,
    staircase: Staircase,
    say: Say = ignore,
) -> list[Gap]:
    """Find the frontier from its fastest point on; return what is left.

    The ε-constraint method (Haimes, Lasdon and Wismer, *On a Bicriterion
    Formulation*, 1971): the fastest plan within a capacity, then the fastest
    within one byte less than that plan needs, until nothing fits.

    Parameters
    ----------
    model, sets
        Cost terms and closed sets.
    deadline
        When to give up.
    staircase
        Points to start from; gets those that are found.
    say
        Told now and then what goes on.
    """
    cluster = model.problem.cluster
    cap = cluster.memory_bytes()
    while cap >= cluster.reserve_bytes():
        upper = staircase.least_time(cap)
        known = [p for p in staircase.points if p.memory_bytes <= cap]
        task = SearchTask(model.within(cap), sets, deadline)
        if known:
            task = replace(task, upper=upper, plan=known[-1].plan)
        found = exact.search(task)
        if found.plan is not None:
            point = make_point(model, found.plan)
            staircase.add(point)
        if found.limit is not None:
            bound = found.lower_bound_quanta or 0
            return [Gap(nothing_below(model), cap, bound)]
        if found.plan is None:
            return []
        say(f"proven down to {point.memory_bytes} bytes")
        cap = point.memory_bytes - 1
    return []


def interleaved(
    model: CostModel,
    sets: ClosedSets,
    deadline: Deadline,
    staircase: Staircase,
    say: Say = ignore,
) -> list[Gap]:
    """Add interleaved plans to a frontier; return what may be missing.

    As :func:`descend`, one solve per point: of interleaved plans alone, within
    the memory of that point, from the plan known. What
    :func:`~nest.search.interleaved.interleave` cannot prove is a gap above its
    bound; a curve that is not proven yet stays so.

    Parameters
    ----------
    model, sets
        Cost terms and closed sets.
    deadline
        When to give up.
    staircase
        The plans that are not interleaved; gets those that are found.
    say
        Told now and then what goes on.
    """
    cluster = model.problem.cluster
    cap, gaps = cluster.memory_bytes(), list[Gap]()
    while cap >= cluster.reserve_bytes():
        known = [p for p in staircase.points if p.memory_bytes <= cap]
        best = SolverOutput(status=Status.INFEASIBLE)
        if known:
            quanta = known[-1].step_quanta
            best = SolverOutput(
                status=Status.OPTIMAL,
                plan=known[-1].plan,
                claimed_quanta=quanta,
                lower_bound_quanta=quanta,
            )
        task = SearchTask(model.within(cap), sets, deadline)
        found = interleave(task, best)
        late, bound = deadline.passed, found.lower_bound_quanta or 0
        floor = nothing_below(model)
        if found.plan is None:
            if found.status is not Status.INFEASIBLE:
                gaps.append(Gap(floor, cap, bound))
            return gaps
        point = make_point(model, found.plan)
        staircase.add(point)
        if late:
            return [*gaps, Gap(floor, cap, bound)]
        below = point.memory_bytes - 1
        if found.status is not Status.OPTIMAL:
            gaps.append(Gap(below, cap, bound))
        say(f"interleaved plans searched down to {point.memory_bytes} bytes")
        cap = below
    return gaps
