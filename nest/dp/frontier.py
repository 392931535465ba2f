"""The exact frontier of step time against memory, on one cluster.

The memory axis is cut into *levels*, intervals ``(floor, cap]`` of what the
fullest device holds. A plan of a level is on the frontier only if it is
faster than ``U(floor)``, where ``U(m)`` is the least time of any known plan
with at most ``m`` bytes. For one ``(R, B)`` all levels are searched in one
run of the program of :mod:`nest.dp.pipeline`: its closed sets are numbered
once per level, a candidate is one of a level if it fits the cap, and the
relaxations bound every level by itself. Labels carry their memory as one more
maximum and are dropped unless what they have and the least of the rest is
faster than ``U`` of that memory. Memory below the floor counts as the floor:
a plan that ends below it belongs to another level.

A first sweep over the cases with one label per state fills ``U``; the second
one is exact, with levels that end where ``U`` has a step.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nest.cost.model import Block, CostModel
from nest.cost.score import score
from nest.cost.space import Case, cases
from nest.dp.cases import make_plan, work_bound
from nest.dp.closed_sets import ClosedSets
from nest.dp.pipeline import Chosen, OutOfTimeError, PipelineSearch
from nest.dp.stages import (
    INFINITE,
    Candidates,
    Ints,
    KindTerms,
    StageTables,
)
from nest.ir.plan import Plan
from nest.solvers.base import Deadline
from nest.units import ceil_div

Bools = NDArray[np.bool_]

#: Levels of the first sweep, and of the exact one.
FIRST_LEVELS = 16
EXACT_LEVELS = 32


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


class Levels(NamedTuple):
    """Intervals ``(floor, cap]`` of memory, ascending and adjacent.

    Attributes
    ----------
    floors, caps
        Bytes per device.
    limits
        Stages with a load at or above are part of no plan of the level that
        matters; never larger at a higher level.
    """

    floors: Ints
    caps: Ints
    limits: Ints


@dataclass(frozen=True)
class SizedCandidates(Candidates):
    """Candidates of all levels, with what they hold.

    With ``i`` micro-batches in flight a stage holds ``fixed_bytes + i
    kept_bytes``. ``max_inflight`` is under the cap of its level.
    """

    fixed_bytes: Ints
    kept_bytes: Ints

    def memory(self, inflight: Ints) -> Ints:
        """Return the bytes per device with so many in flight."""
        return self.fixed_bytes + inflight * self.kept_bytes


class LevelTables(StageTables):
    """Stage candidates of one ``(R, B)`` at several levels of memory.

    Closed set ``a`` at level ``j`` has number ``j * sets + a``.
    """

    def __init__(self, model: CostModel, sets: ClosedSets, case: Case) -> None:
        super().__init__(model, sets, case)
        self.most_inflight = self.need(sets.count)

    def set_levels(self, levels: Levels) -> None:
        """Choose the levels; forgets the candidates of others."""
        self.levels = levels
        self.num_states = len(levels.caps) * self.sets.count
        self._candidates.clear()

    def _build(
        self,
        size: int,
        offset: int,
        before: frozenset[int],
        after: frozenset[int],
        ends: bool,
    ) -> Candidates:
        sets, levels = self.sets, self.levels
        last = sets.count - 1
        chosen = sets.pair_source == 0 if offset == 0 else sets.pair_source > 0
        if ends:
            chosen &= sets.pair_target == last
        source, target = sets.pair_source[chosen], sets.pair_target[chosen]
        # Another stage follows unless the pair ends the graph.
        least = np.where(target == last, self.need(1), self.need(2))
        terms = self._kind_terms(size, offset)
        counts = self.kind_counts
        ascending = levels.limits[::-1]
        num_levels = len(levels.caps)
        parts: list[list[Ints]] = []
        for row, index in enumerate(terms.strategies):
            shards = self.strategies[index].shards(
                self.model.problem.job.sequence_parallel
            )
            load_of = counts @ terms.load[row]
            load = load_of[target] - load_of[source]
            if offset:
                load += self._receive(before, shards)[source]
            if not ends:
                load += self._receive(after, shards)[target]
            missing_of = counts @ terms.missing[row]
            where = np.flatnonzero(
                (missing_of[target] == missing_of[source])
                & (load < ascending[-1])
            )
            a, b, load = source[where], target[where], load[where]
            fixed, kept = self._memory(terms, row, a, b)
            lowest = np.searchsorted(levels.caps, fixed + least[where] * kept)
            end = num_levels - np.searchsorted(ascending, load, "right")
            some = np.flatnonzero(lowest < end)
            a, b, load = a[some], b[some], load[some]
            sync_of = counts @ terms.sync[row]
            parts.append(
                [
                    a,
                    b,
                    np.full(len(a), index, dtype=np.int64),
                    load,
                    sync_of[b] - sync_of[a],
                    fixed[some],
                    kept[some],
                    lowest[some],
                    end[some],
                ]
            )
        if not parts:
            return self._spread([np.zeros(0, dtype=np.int64)] * 9)
        return self._spread(
            [np.concatenate(columns) for columns in zip(*parts, strict=True)]
        )

    def _memory(
        self, terms: KindTerms, row: int, source: Ints, target: Ints
    ) -> tuple[Ints, Ints]:
        """Return what stages hold whatever is in flight, and per pass."""
        counts = self.kind_counts
        static_of = counts @ terms.static_bytes[row]
        kept_of = counts @ terms.kept_bytes[row]
        working = np.zeros(len(source), dtype=np.int64)
        for kind in np.argsort(terms.working_bytes[row], kind="stable"):
            has = counts[target, kind] > counts[source, kind]
            working[has] = terms.working_bytes[row, kind]
        return (
            static_of[target] - static_of[source] + working,
            kept_of[target] - kept_of[source],
        )

    def _spread(self, columns: list[Ints]) -> SizedCandidates:
        """Make one candidate per level, without most dominated ones."""
        levels = self.levels
        lowest, end = columns[7:]
        width = end - lowest
        rows = np.repeat(np.arange(len(width)), width)
        level = np.arange(len(rows)) - np.repeat(
            np.cumsum(width) - width, width
        )
        level += lowest[rows]
        a, b, strategy, load, sync, fixed, kept = (
            column[rows] for column in columns[:7]
        )
        room = levels.caps[level] - fixed
        most = self.most_inflight
        fit = np.where(kept > 0, room // np.maximum(kept, 1), most)
        fit = np.minimum(fit, most)
        count = self.sets.count
        found = SizedCandidates(
            level * count + a,
            level * count + b,
            strategy,
            load,
            sync,
            (self.case.num_micro_batches - 1) * load + sync,
            fit,
            fixed,
            kept,
        )
        return self._without_dominated(found)

    def _without_dominated(self, found: SizedCandidates) -> SizedCandidates:
        """Drop most candidates that another one of the same pair beats.

        It must hold no more as long as the beaten one fits, or no more than
        the floor of the level.
        """
        once = found.fixed_bytes + self.need(1) * found.kept_bytes
        order = np.lexsort(
            (once, found.sync, found.load, found.source, found.target)
        )
        found, once = found.take(order), once[order]
        for _ in range(2):
            beaten = np.zeros(len(found), dtype=np.bool_)
            floor = self.levels.floors[found.source // self.sets.count]
            for shift in (1, 2, 3):
                if len(found) <= shift:
                    break
                front, back = slice(None, -shift), slice(shift, None)
                most = found.max_inflight[back]
                highest = found.fixed_bytes[front]
                highest = highest + most * found.kept_bytes[front]
                other = found.fixed_bytes[back]
                other = other + most * found.kept_bytes[back]
                beaten[back] |= (
                    (found.source[front] == found.source[back])
                    & (found.target[front] == found.target[back])
                    & (found.sync[front] <= found.sync[back])
                    & (
                        (highest <= floor[back])
                        | ((once[front] <= once[back]) & (highest <= other))
                    )
                )
            if not beaten.any():
                break
            found, once = found.take(~beaten), once[~beaten]
        return found


class _Labels(NamedTuple):
    """Labels of all states at one offset, ordered by state."""

    state: Ints
    total: Ints
    worst: Ints
    sync: Ints
    stages: Ints
    memory: Ints
    target: Ints
    strategy: Ints
    size: Ints
    next_label: Ints
    first: Ints


class LevelSearch(PipelineSearch):
    """Search one ``(R, B)`` at all levels of its tables.

    Parameters
    ----------
    tables
        Its stage candidates, with levels.
    deadline
        When to give up.
    staircase
        ``U``.
    least_bytes
        No plan of the problem needs less memory.
    """

    tables: LevelTables

    def __init__(
        self,
        tables: LevelTables,
        deadline: Deadline,
        staircase: Staircase,
        least_bytes: int,
    ) -> None:
        super().__init__(tables, deadline)
        self.memories, self.times = staircase.arrays()
        count = tables.sets.count
        self.floors = np.maximum(tables.levels.floors, least_bytes)
        self.uppers = self._upper(self.floors)
        self._floor_of = np.repeat(self.floors, count)
        self._is_end = np.zeros(self.num_sets, dtype=np.bool_)
        self._is_end[self.ends] = True

    def _upper(self, memory: Ints) -> Ints:
        upper: Ints = self.times[
            np.searchsorted(self.memories, memory, "right")
        ]
        return upper

    def bounds(self) -> Ints:
        """Return a lower bound on every step time of interest per level.

        Keeps the candidates that may still be of use. :data:`INFINITE` where
        a level has no plan faster than ``U``.

        Raises
        ------
        OutOfTimeError
            If the deadline passed.
        """
        self.alive = {}
        self._gather()
        bounds = np.zeros(len(self.uppers), dtype=np.int64)
        for _ in range(3):
            before = self._num_alive()
            self.suffix = self._relax_suffix()
            bounds = np.maximum(bounds, self._root_bounds())
            if (bounds >= INFINITE).all():
                break
            self.prefix = self._relax_prefix()
            self._filter_levels()
            if self._num_alive() > 0.7 * before:
                break
        return bounds

    def _root_bounds(self) -> Ints:
        suffix, root = self.suffix, self.starts
        reached = suffix.stages[0, root] < INFINITE
        apart = self.extra_slots * np.where(reached, suffix.worst[0, root], 0)
        apart += np.where(reached, suffix.sync[0, root], 0)
        joint = np.where(reached, suffix.joint[0, root], 0)
        total = np.where(reached, suffix.total[0, root], 0)
        bound = total + np.maximum(apart, joint)
        result: Ints = np.where(
            reached & (bound < self.uppers), bound, INFINITE
        )
        return result

    def _filter_levels(self) -> None:
        """Drop candidates that are part of no plan faster than ``U``."""
        prefix, suffix = self.prefix, self.suffix
        for (offset, size), found in self.alive.items():
            if not len(found):
                continue
            self._check_time()
            after = offset + size
            reachable = (prefix.stages[offset, found.source] < INFINITE) & (
                suffix.stages[after, found.target] < INFINITE
            )
            found = found.take(reachable)
            assert isinstance(found, SizedCandidates)
            source, target = found.source, found.target
            worst = np.maximum(
                np.maximum(prefix.worst[offset, source], found.load),
                suffix.worst[after, target],
            )
            sync = np.maximum(
                np.maximum(prefix.sync[offset, source], found.sync),
                suffix.sync[after, target],
            )
            joint = np.maximum(
                np.maximum(prefix.joint[offset, source], found.joint),
                suffix.joint[after, target],
            )
            bound = (
                prefix.total[offset, source]
                + found.load
                + suffix.total[after, target]
                + np.maximum(self.extra_slots * worst + sync, joint)
            )
            stages = suffix.stages[after, target] + 1
            memory = found.memory(self._need(stages))
            upper = self._upper(np.maximum(memory, self._floor_of[source]))
            useful = (bound < upper) & self._fits(found, stages)
            self.alive[offset, size] = found.take(useful)

    def plans(self, max_labels: int | None) -> list[Chosen]:
        """Return pipelines that are faster than ``U`` of their memory.

        Without ``max_labels`` every point of the frontier with memory of
        some level is one of them, or known.

        Raises
        ------
        OutOfTimeError
            If the deadline passed.
        """
        labels: dict[int, _Labels] = {}
        for offset in range(self.num_devices - 1, -1, -1):
            self._check_time()
            parts = [
                part
                for size in self.tables.sizes
                if (found := self.alive.get((offset, size))) is not None
                and len(found)
                for part in self._extended(
                    found, offset, size, labels.get(offset + size)
                )
            ]
            if parts:
                joined = [
                    np.concatenate(columns)
                    for columns in zip(*parts, strict=True)
                ]
                labels[offset] = self._kept(joined, max_labels)
        root = labels.get(0)
        if root is None or not len(root.total):
            return []
        times = root.total + self.extra_slots * root.worst + root.sync
        order = np.lexsort((times, root.memory))
        best = INFINITE
        result = []
        for label in order.tolist():
            if times[label] < best:
                best = times[label]
                result.append(
                    Chosen(int(times[label]), self._traced(labels, label))
                )
        return result

    def _extended(
        self,
        found: Candidates,
        offset: int,
        size: int,
        behind: _Labels | None,
    ) -> list[list[Ints]]:
        """Put every candidate in front of every label it can precede."""
        assert isinstance(found, SizedCandidates)
        parts = []
        last = self._is_end[found.target]
        if last.any():
            final = found.take(last)
            one = np.ones(len(final), dtype=np.int64)
            parts.append(
                self._useful(
                    final,
                    offset,
                    size,
                    [final.load, final.load, final.sync, one],
                    np.zeros_like(one),
                    -one,
                )
            )
        if behind is not None and not last.all():
            front = found.take(~last)
            first = behind.first[front.target]
            count = behind.first[front.target + 1] - first
            repeat = np.repeat(np.arange(len(front)), count)
            if len(repeat):
                starts = np.cumsum(count) - count
                label = np.arange(len(repeat)) - np.repeat(
                    starts - first, count
                )
                front = front.take(repeat)
                parts.append(
                    self._useful(
                        front,
                        offset,
                        size,
                        [
                            behind.total[label] + front.load,
                            np.maximum(behind.worst[label], front.load),
                            np.maximum(behind.sync[label], front.sync),
                            behind.stages[label] + 1,
                        ],
                        behind.memory[label],
                        label,
                    )
                )
        return parts

    def _useful(
        self,
        front: SizedCandidates,
        offset: int,
        size: int,
        values: list[Ints],
        memory: Ints,
        label: Ints,
    ) -> list[Ints]:
        """Keep the new labels that fit and may lead below ``U``."""
        prefix, source = self.prefix, front.source
        total, worst, sync, stages = values
        worst = np.maximum(worst, prefix.worst[offset, source])
        sync = np.maximum(sync, prefix.sync[offset, source])
        bound = (
            prefix.total[offset, source]
            + total
            + np.maximum(
                self.extra_slots * worst + sync,
                prefix.joint[offset, source],
            )
        )
        memory = np.maximum(memory, front.memory(self._need(stages)))
        memory = np.maximum(memory, self._floor_of[source])
        where = np.flatnonzero(
            (bound < self._upper(memory)) & self._fits(front, stages)
        )
        return [
            source[where],
            total[where],
            worst[where],
            sync[where],
            stages[where],
            memory[where],
            front.target[where],
            front.strategy[where],
            np.full(len(where), size, dtype=np.int64),
            label[where],
        ]

    def _kept(self, columns: list[Ints], max_labels: int | None) -> _Labels:
        """Drop dominated labels and order the rest by state."""
        state, total, worst, sync, stages, memory = columns[:6]
        need = self._need(stages)
        estimate = total + self.extra_slots * worst + sync
        order = np.lexsort((memory, need, sync, worst, total, estimate, state))
        table = np.stack(
            [column[order] for column in (total, worst, sync, need, memory)],
            axis=1,
        )
        keep = non_dominated_rows(state[order], table, max_labels)
        kept = [column[order[keep]] for column in columns]
        kept.append(np.searchsorted(kept[0], np.arange(self.num_sets + 1)))
        return _Labels(*kept)

    def _traced(
        self, labels: dict[int, _Labels], label: int
    ) -> list[tuple[int, int, int, int]]:
        stages = []
        count = self.tables.sets.count
        offset = 0
        while label >= 0:
            at = labels[offset]
            size = int(at.size[label])
            stages.append(
                (
                    int(at.state[label]) % count,
                    int(at.target[label]) % count,
                    int(at.strategy[label]),
                    size,
                )
            )
            label = int(at.next_label[label])
            offset += size
        return stages


def non_dominated_rows(
    state: Ints, table: Ints, max_rows: int | None
) -> NDArray[np.intp]:
    """Return the rows of each state that no earlier one beats.

    Rows are ordered by state, and so that none is beaten by a later one of
    its state unless they are equal.
    """
    alive = np.arange(len(state))
    if max_rows is not None:
        first = np.flatnonzero(np.r_[True, state[1:] != state[:-1]])
        if max_rows == 1:
            return first
    for shift in (1, 2, 3):
        if len(alive) <= shift:
            break
        front, back = alive[:-shift], alive[shift:]
        beaten = (state[front] == state[back]) & (
            table[front] <= table[back]
        ).all(axis=1)
        alive = np.delete(alive, np.flatnonzero(beaten) + shift)
    states = state[alive]
    starts = np.flatnonzero(np.r_[True, states[1:] != states[:-1]])
    ends = np.r_[starts[1:], len(states)]
    kept = []
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        rest = alive[start:end]
        number = 0
        while len(rest):
            head = rest[0]
            kept.append(head)
            number += 1
            if number == max_rows:
                break
            rest = rest[1:]
            rest = rest[~(table[rest] >= table[head]).all(axis=1)]
    return np.array(kept, dtype=np.intp)


class FitTables(StageTables):
    """Which stages fit, whatever they take: one candidate per pair."""

    def fit_within(self, capacity: int) -> None:
        """Choose the capacity; forgets the candidates of another."""
        self.capacity = capacity
        self._candidates.clear()

    def _build(
        self,
        size: int,
        offset: int,
        before: frozenset[int],
        after: frozenset[int],
        ends: bool,
    ) -> Candidates:
        sets = self.sets
        chosen = sets.pair_source == 0 if offset == 0 else sets.pair_source > 0
        if ends:
            chosen &= sets.pair_target == sets.count - 1
        source, target = sets.pair_source[chosen], sets.pair_target[chosen]
        terms = self._kind_terms(size, offset)
        counts = self.kind_counts
        most = np.zeros(len(source), dtype=np.int64)
        strategy = np.zeros(len(source), dtype=np.int64)
        for row, index in enumerate(terms.strategies):
            missing_of = counts @ terms.missing[row]
            fit = self._max_inflight(terms, row, source, target)
            fit[missing_of[target] != missing_of[source]] = 0
            better = fit > most
            most[better], strategy[better] = fit[better], index
        fits = most > 0
        nothing = np.zeros(np.count_nonzero(fits), dtype=np.int64)
        return Candidates(
            source[fits],
            target[fits],
            strategy[fits],
            nothing,
            nothing,
            nothing,
            most[fits],
        )


@dataclass(eq=False)
class _Open:
    """A case: its bounds, and what proves more about it."""

    case: Case
    tables: LevelTables
    bound: int
    least_total: int
    least_bytes: int


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
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.model, self.sets = model, sets
        self.deadline, self.say = deadline, say
        self.capacity = model.problem.cluster.device.memory_bytes
        self.staircase = Staircase()
        self.gaps: list[Gap] = [Gap(0, self.capacity, 0)]
        #: No plan needs less memory.
        self.least_bytes = 0

    def run(self) -> None:
        """Search until all is proven or the time is up."""
        try:
            opened = self._open_cases()
            self._find_least(opened)
            if not self.staircase.points:
                self.gaps = []
                return
            self._sweep(opened, self._grid(FIRST_LEVELS), 1)
            caps = self._steps(EXACT_LEVELS)
            self._sweep(opened, caps, None)
        except OutOfTimeError:
            return
        self.gaps = []

    def _check_time(self) -> None:
        if self.deadline.passed:
            raise OutOfTimeError

    def _open_cases(self) -> list[_Open]:
        found = []
        for case in cases(self.model.problem):
            self._check_time()
            tables = LevelTables(self.model, self.sets, case)
            bound, least_total = work_bound(tables)
            if bound < INFINITE:
                least_bytes = _least_bytes(tables)
                found.append(
                    _Open(case, tables, bound, least_total, least_bytes)
                )
        return found

    def _add(self, tables: StageTables, chosen: Chosen) -> int:
        """Add a plan to what is known; return its memory."""
        plan = make_plan(self.model, tables, chosen)
        found = score(self.model.problem, plan, self.model)
        memory = max(block.memory_bytes for block in found.blocks)
        self.staircase.add(Point(found.step_quanta, memory, plan))
        return memory

    def _find_least(self, opened: list[_Open]) -> None:
        """Find the least memory with which there is a plan."""
        least = self.capacity + 1
        for item in sorted(opened, key=lambda item: item.least_bytes):
            tables = FitTables(self.model, self.sets, item.case)
            low, middle = item.least_bytes - 1, False
            # Either halve what is open, or try to close it.
            while low < least - 1:
                cap = (low + least) // 2 if middle else least - 1
                middle = not middle
                chosen = _fitting(tables, cap, self.deadline)
                if chosen is None:
                    low = cap
                else:
                    least = self._add(tables, chosen)
                    self.say(f"least memory at most {least} bytes")
        self.least_bytes = least

    def _grid(self, number: int) -> list[int]:
        """Return caps of about equal ratio."""
        low, high = self.least_bytes, self.capacity
        caps = {
            round(low * (high / max(low, 1)) ** (i / number))
            for i in range(1, number)
        }
        return sorted({cap for cap in caps if low < cap < high} | {high})

    def _steps(self, number: int) -> list[int]:
        """Return caps where ``U`` has a step, at most so many."""
        steps = [p.memory_bytes for p in self.staircase.points]
        steps = [m for m in steps if self.least_bytes < m < self.capacity]
        stride = ceil_div(len(steps) + 1, number)
        return [*steps[stride - 1 :: stride], self.capacity]

    def _levels(self, item: _Open, caps: Sequence[int]) -> Levels:
        floors = np.array([self.least_bytes - 1, *caps[:-1]], dtype=np.int64)
        extra = item.case.num_micro_batches - 1
        limits = []
        for floor in floors.tolist():
            upper = self.staircase.least_time(max(floor, self.least_bytes))
            limit = int(INFINITE)
            if extra and upper < INFINITE:
                # As in nest.dp.cases: T >= (M-1) τ + max(τ, least Σ τ).
                limit = min(
                    ceil_div(upper, extra + 1),
                    ceil_div(upper - item.least_total, extra),
                )
            limits.append(limit if item.bound < upper else 0)
        return Levels(
            floors,
            np.array(caps, dtype=np.int64),
            np.array(limits, dtype=np.int64),
        )

    def _sweep(
        self,
        opened: list[_Open],
        caps: Sequence[int],
        max_labels: int | None,
    ) -> None:
        """Search all cases at all levels."""
        #: Lower bound of every case and level that is not settled.
        floors = [self.least_bytes - 1, *caps[:-1]]
        todo = sorted(opened, key=lambda item: len(item.tables.strategies))
        for number, item in enumerate(todo, 1):
            self.say(
                f"{'search' if max_labels is None else 'first sweep'}, case "
                f"{number} of {len(todo)}: R={item.case.replicas}, "
                f"B={item.case.micro_batch}"
            )
            tables = item.tables
            tables.set_levels(self._levels(item, caps))
            search = LevelSearch(
                tables, self.deadline, self.staircase, self.least_bytes
            )
            bounds = search.bounds()
            if (bounds < INFINITE).any():
                for chosen in search.plans(max_labels):
                    self._add(tables, chosen)
            tables.set_levels(tables.levels)


def _least_bytes(tables: StageTables) -> int:
    """Return a lower bound on what the fullest device of a case holds.

    The layers take ``Σ min n (static + kept)`` device-bytes, so some device
    holds a ``P``-th of it, and its stage works on some layer.
    """
    counts = [int(count) for count in tables.kind_counts[-1]]
    spaces, working = tables.least(
        (
            lambda t, n: n * (t.static_bytes + t.kept_bytes),
            lambda t, n: t.working_bytes,
        )
    )
    total = sum(c * space for c, space in zip(counts, spaces, strict=True))
    return ceil_div(total, tables.case.devices) + min(working)


def _fitting(
    tables: FitTables, cap: int, deadline: Deadline
) -> Chosen | None:
    """Return a pipeline of the fewest stages within a capacity.

    Fewer stages behind a stage never ask for more in flight, so there is
    none if this finds none.
    """
    tables.fit_within(cap)
    search = PipelineSearch(tables, deadline)
    return search.shortest()
