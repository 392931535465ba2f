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

A first sweep with one label per state fills ``U``. The exact one cuts the
memory where ``U`` has steps. Where too much is left for the labels it cuts
again, which makes the bounds closer.

Strategies per layer, and presets with programs of their own, take one solve
per point; see :func:`descend`.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nest.cost.model import CostModel
from nest.cost.score import score
from nest.cost.space import Case, cases
from nest.dp.cases import make_plan, work_bound
from nest.dp.closed_sets import ClosedSets
from nest.dp.errors import OutOfTimeError
from nest.dp.forked import Link, share
from nest.dp.pipeline import Chosen, PipelineSearch, Relaxation
from nest.dp.stages import (
    INFINITE,
    Candidates,
    Ints,
    KindTerms,
    StageTables,
    concatenate,
)
from nest.ir.plan import Plan
from nest.solvers.base import Deadline, SolverOutput, ignore_progress
from nest.units import ceil_div

Bools = NDArray[np.bool_]

#: The first sweep: levels; guesses at the largest step time of interest, as
#: multiples of the least bound; and which share of the cases it visits.
FIRST_LEVELS = 8
FIRST_GUESSES = (1.25, 2.0, 4.0)
FIRST_SHARE = 3

#: Parts that an interval of memory is cut into, and levels at most.
NUM_PARTS = 4
MOST_LEVELS = 64

#: So few candidates of a level go to the labels; more are bounded again in a
#: part of its memory.
ENOUGH = 4_000

#: Memory within this fraction of another is not worth a cut.
NEAR = 256

#: So few labels are compared all with all.
SQUARE = 160

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
    merged: list[Gap] = []
    for low, high in pairwise(sorted(ends)):
        bounds = [
            gap.lower_bound_quanta
            for gap in gaps
            if gap.above_bytes <= low and high <= gap.up_to_bytes
        ]
        if not bounds:
            continue
        last = merged[-1] if merged else None
        if last and (last.up_to_bytes, last.lower_bound_quanta) == (
            low,
            min(bounds),
        ):
            merged[-1] = replace(last, up_to_bytes=high)
        else:
            merged.append(Gap(low, high, min(bounds)))
    return merged


def nothing_below(model: CostModel) -> int:
    """Return a floor of memory that every plan is above."""
    return model.problem.cluster.device.reserve_bytes - 1


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
    kept_bytes``. ``max_inflight`` is under the cap of its level; ``size`` is
    the number of devices.
    """

    fixed_bytes: Ints
    kept_bytes: Ints
    size: Ints

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

    def forget(self) -> None:
        """Drop all candidates; they take much memory."""
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
            return self._spread([np.zeros(0, dtype=np.int64)] * 9, size)
        return self._spread(
            [np.concatenate(columns) for columns in zip(*parts, strict=True)],
            size,
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

    def _spread(self, columns: list[Ints], size: int) -> SizedCandidates:
        """Make one candidate per level, without most dominated ones."""
        levels, count = self.levels, self.sets.count
        columns = self._less_dominated(columns)
        lowest, end = columns[7:]
        width = end - lowest
        rows = np.repeat(np.arange(len(width)), width)
        level = np.arange(len(rows)) - np.repeat(
            np.cumsum(width) - width, width
        )
        level += lowest[rows]
        # By level, in the order of the rows: small integers sort fast.
        order = np.argsort(level.astype(np.int16), kind="stable")
        rows, level = rows[order], level[order]
        a, b, strategy, load, sync, fixed, kept = (
            column[rows] for column in columns[:7]
        )
        fit = levels.caps[level] - fixed
        fit //= np.maximum(kept, 1)
        fit[kept == 0] = self.most_inflight
        np.minimum(fit, self.most_inflight, out=fit)
        # What holds no more than the floor whatever is in flight, or no
        # more as long as the other one fits, and is no slower.
        once = fixed + self.need(1) * kept
        floor = levels.floors[level]
        pair = (level * count + b) * count + a
        useful = np.ones(len(rows), dtype=np.bool_)
        for shift in (1, 2):
            if len(rows) <= shift:
                break
            front, back = slice(None, -shift), slice(shift, None)
            most = fit[back]
            highest = fixed[front] + most * kept[front]
            useful[back] &= (
                (pair[front] != pair[back])
                | (sync[front] > sync[back])
                | (
                    (highest > floor[back])
                    & (
                        (once[front] > once[back])
                        | (highest > fixed[back] + most * kept[back])
                    )
                )
            )
        where = np.flatnonzero(useful)
        level = level[where] * count
        load, sync = load[where], sync[where]
        return SizedCandidates(
            level + a[where],
            level + b[where],
            strategy[where],
            load,
            sync,
            (self.case.num_micro_batches - 1) * load + sync,
            fit[where],
            fixed[where],
            kept[where],
            np.full(len(where), size, dtype=np.int64),
        )

    def _less_dominated(self, columns: list[Ints]) -> list[Ints]:
        """Order candidates by pair and load; drop most dominated ones.

        A dominated one is no faster, takes no less to sync and holds no
        less, whatever is in flight.
        """
        source, target, _, load, sync, fixed, kept, _, _ = columns
        once = fixed + self.need(1) * kept
        most = fixed + self.most_inflight * kept
        order = np.lexsort((once, sync, load, source, target))
        for _ in range(2):
            a, b = source[order], target[order]
            table = [column[order] for column in (sync, once, most)]
            beaten = np.zeros(len(order), dtype=np.bool_)
            for shift in (1, 2, 3):
                if len(order) <= shift:
                    break
                front, back = slice(None, -shift), slice(shift, None)
                worse = (a[front] == a[back]) & (b[front] == b[back])
                for column in table:
                    worse &= column[front] <= column[back]
                beaten[back] |= worse
            order = order[~beaten]
        return [column[order] for column in columns]


class _Labels:
    """The labels of all states at all offsets, one after the other.

    Columns are named by :attr:`NAMES`. Those of state ``a`` at offset ``k``
    are ``first[k, a]`` to ``first[k, a + 1]``; ``next_label`` is the one
    behind the label's stage, or -1.
    """

    NAMES = (
        *("state", "total", "worst", "sync", "stages", "memory"),
        *("target", "strategy", "size", "next_label"),
    )

    def __init__(self, num_offsets: int, num_states: int) -> None:
        self._table = np.empty((len(self.NAMES), 1024), dtype=np.int64)
        self._states = np.arange(num_states + 1)
        self.count = 0
        self.first = np.zeros((num_offsets, num_states + 1), dtype=np.int64)

    def __getitem__(self, name: str) -> Ints:
        return self._table[self.NAMES.index(name), : self.count]

    def append(self, offset: int, columns: Sequence[Ints]) -> None:
        """Add the labels at an offset, ordered by state."""
        start, self.count = self.count, self.count + len(columns[0])
        while self._table.shape[1] < self.count:
            self._table = np.concatenate(
                (self._table, np.empty_like(self._table)), axis=1
            )
        for row, column in zip(self._table, columns, strict=True):
            row[start : self.count] = column
        self.first[offset] = start + np.searchsorted(columns[0], self._states)

    def stages(
        self, label: int, num_sets: int
    ) -> list[tuple[int, int, int, int]]:
        """Return the stages that a label stands for."""
        found = []
        while label >= 0:
            row = dict(
                zip(self.NAMES, self._table[:, label].tolist(), strict=True)
            )
            source, target = row["state"] % num_sets, row["target"] % num_sets
            found.append((source, target, row["strategy"], row["size"]))
            label = row["next_label"]
        return found


class LevelSearch:
    """Search one ``(R, B)`` at all levels of its tables.

    The relaxations and labels are those of :mod:`nest.dp.pipeline`, for all
    levels at once.

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

    def __init__(
        self,
        tables: LevelTables,
        deadline: Deadline,
        staircase: Staircase,
        least_bytes: int,
    ) -> None:
        self.tables, self.deadline = tables, deadline
        self.num_devices = tables.case.devices
        self.num_sets = tables.sets.count
        self.num_states = tables.num_states
        self.extra_slots = tables.case.num_micro_batches - 1
        self.memories, self.times = staircase.arrays()
        self.floors = np.maximum(tables.levels.floors, least_bytes)
        self.uppers = self._upper(self.floors)
        self._floor_of = np.repeat(self.floors, self.num_sets)
        #: Closed sets at which a pipeline starts and ends, per level.
        self.starts = np.arange(0, self.num_states, self.num_sets)
        self.ends = self.starts + self.num_sets - 1
        self._is_end = np.zeros(self.num_states, dtype=np.bool_)
        self._is_end[self.ends] = True
        self._stage_counts = tables.model.problem.job.pipeline_parallel
        #: Per offset the candidates that may still be of use, in parts.
        self.alive: list[list[SizedCandidates]] | None = None

    def _check_time(self) -> None:
        if self.deadline.passed:
            raise OutOfTimeError

    def _upper(self, memory: Ints) -> Ints:
        upper: Ints = self.times[
            np.searchsorted(self.memories, memory, "right")
        ]
        return upper

    def _need(self, stages: Ints) -> Ints:
        """Return the in-flight counts with so many stages left."""
        tables = self.tables
        most = tables.case.num_micro_batches
        if tables.need(1) == most:
            return np.full(len(stages), most, dtype=np.int64)
        return np.minimum(stages, most)

    # Bounds

    def bounds(self) -> Ints:
        """Return a lower bound on every step time of interest per level.

        Keeps the candidates that may still be of use. :data:`INFINITE` where
        a level has no plan faster than ``U``.

        Raises
        ------
        OutOfTimeError
            If the deadline passed.
        """
        if self.alive is None:
            self._gather()
        bounds = np.zeros(len(self.uppers), dtype=np.int64)
        for _ in range(3):
            before = self.num_alive().sum()
            self._relax_suffix()
            bounds = np.maximum(bounds, self._root_bounds())
            if (bounds >= INFINITE).all():
                break
            self._relax_prefix()
            self._filter()
            if self.num_alive().sum() > 0.7 * before:
                break
        return bounds

    def _gather(self) -> None:
        self.alive = []
        for offset in range(self.num_devices):
            parts = []
            for size in self.tables.sizes:
                if offset + size <= self.num_devices:
                    self._check_time()
                    found = self.tables.at(offset, size)
                    assert isinstance(found, SizedCandidates)
                    if len(found):
                        parts.append(found)
            self.alive.append(parts)

    def narrow(self, other: LevelSearch, children: Sequence[int]) -> None:
        """Start from what another search has kept.

        Parameters
        ----------
        other
            A search of the same case whose levels hold those of this one.
        children
            How many levels of this one each of its levels holds.
        """
        count = self.num_sets
        number = np.array(children, dtype=np.int64)
        first = np.cumsum(number) - number
        caps, most = self.tables.levels.caps, self.tables.most_inflight
        least = self.tables.need(1)
        assert other.alive is not None
        self.alive = [[] for _ in other.alive]
        for offset, parts in enumerate(other.alive):
            for found in parts:
                parent = found.source // count
                width = number[parent]
                rows = np.repeat(np.arange(len(found)), width)
                if not len(rows):
                    continue
                level = np.arange(len(rows)) - np.repeat(
                    np.cumsum(width) - width, width
                )
                level += first[parent][rows]
                fixed, kept = found.fixed_bytes[rows], found.kept_bytes[rows]
                fit = (caps[level] - fixed) // np.maximum(kept, 1)
                fit[(kept == 0) & (fit >= 0)] = most
                fit = np.minimum(fit, most)
                fits = np.flatnonzero(fit >= least)
                rows, level = rows[fits], level[fits]
                taken = found.take(rows)
                self.alive[offset].append(
                    replace(
                        taken,
                        source=taken.source % count + level * count,
                        target=taken.target % count + level * count,
                        max_inflight=fit[fits],
                    )
                )

    def num_alive(self) -> Ints:
        """Return how many candidates of every level are of use."""
        total = np.zeros(len(self.uppers), dtype=np.int64)
        for parts in self.alive or ():
            for found in parts:
                level = found.source // self.num_sets
                total += np.bincount(level, minlength=len(total))
        return total

    def restrict(self, chosen: Bools) -> None:
        """Drop the candidates of all other levels."""
        self.alive = [
            [
                found.take(chosen[found.source // self.num_sets])
                for found in parts
            ]
            for parts in self.alive or ()
        ]

    def _relax_suffix(self) -> None:
        """Bound the layers beyond ``a`` on devices from ``k`` on."""
        self.suffix = Relaxation.empty(self.num_devices + 1, self.num_states)
        for field in self.suffix.fields:
            field[:, self.ends] = 0
        flat = [field.reshape(-1) for field in self.suffix.fields]
        alive = self.alive or []
        for offset in range(self.num_devices - 1, -1, -1):
            self._check_time()
            for found in alive[offset]:
                behind = self._behind(offset, found)
                stages = flat[-1][behind] + 1
                usable = (found.max_inflight >= self._need(stages)) & (
                    stages < INFINITE
                )
                where = np.flatnonzero(usable)
                if not len(where):
                    continue
                behind, source = behind[where], found.source[where]
                load, sync = found.load[where], found.sync[where]
                for field, values in zip(
                    self.suffix.fields,
                    (
                        flat[0][behind] + load,
                        np.maximum(flat[1][behind], load),
                        np.maximum(flat[2][behind], sync),
                        np.maximum(flat[3][behind], found.joint[where]),
                        stages[where],
                    ),
                    strict=True,
                ):
                    np.minimum.at(field[offset], source, values)

    def _relax_prefix(self) -> None:
        """Bound the layers of ``a`` on exactly the first ``k`` devices."""
        self.prefix = Relaxation.empty(self.num_devices + 1, self.num_states)
        for field in self.prefix.fields:
            field[0, self.starts] = 0
        flat = [field.reshape(-1) for field in self.prefix.fields]
        left = self.suffix.stages.reshape(-1)
        for offset, parts in enumerate(self.alive or ()):
            self._check_time()
            front = [field[offset] for field in self.prefix.fields]
            for found in parts:
                behind = self._behind(offset, found)
                stages = left[behind] + 1
                usable = (found.max_inflight >= self._need(stages)) & (
                    stages < INFINITE
                )
                usable &= front[-1][found.source] < INFINITE
                where = np.flatnonzero(usable)
                if not len(where):
                    continue
                behind, source = behind[where], found.source[where]
                load, sync = found.load[where], found.sync[where]
                for field, values in zip(
                    flat,
                    (
                        front[0][source] + load,
                        np.maximum(front[1][source], load),
                        np.maximum(front[2][source], sync),
                        np.maximum(front[3][source], found.joint[where]),
                        front[4][source] + 1,
                    ),
                    strict=True,
                ):
                    np.minimum.at(field, behind, values)

    def _behind(self, offset: int, found: SizedCandidates) -> Ints:
        """Return where the states behind candidates are in flat tables."""
        behind: Ints = (offset + found.size) * self.num_states + found.target
        return behind

    def _root_bounds(self) -> Ints:
        suffix, root = self.suffix, self.starts
        reached = suffix.stages[0, root] < INFINITE
        total, worst, sync, joint = (
            np.where(reached, field[0, root], 0) for field in suffix.fields[:4]
        )
        bound = total + np.maximum(self.extra_slots * worst + sync, joint)
        result: Ints = np.where(
            reached & (bound < self.uppers), bound, INFINITE
        )
        return result

    def _filter(self) -> None:
        """Drop candidates that are part of no plan faster than ``U``."""
        front = [field.reshape(-1) for field in self.prefix.fields]
        back = [field.reshape(-1) for field in self.suffix.fields]
        alive = self.alive or []
        for offset, parts in enumerate(alive):
            self._check_time()
            kept = []
            for found in parts:
                at = offset * self.num_states + found.source
                behind = self._behind(offset, found)
                stages = back[-1][behind] + 1
                usable = (found.max_inflight >= self._need(stages)) & (
                    stages < INFINITE
                )
                usable &= front[-1][at] < INFINITE
                where = np.flatnonzero(usable)
                at, behind, stages = at[where], behind[where], stages[where]
                load = found.load[where]
                worst = np.maximum(
                    np.maximum(front[1][at], load), back[1][behind]
                )
                sync = np.maximum(
                    np.maximum(front[2][at], found.sync[where]),
                    back[2][behind],
                )
                joint = np.maximum(
                    np.maximum(front[3][at], found.joint[where]),
                    back[3][behind],
                )
                bound = front[0][at] + load + back[0][behind]
                bound += np.maximum(self.extra_slots * worst + sync, joint)
                memory = found.fixed_bytes[where]
                memory = memory + self._need(stages) * found.kept_bytes[where]
                floor = self._floor_of[found.source[where]]
                upper = self._upper(np.maximum(memory, floor))
                where = where[bound < upper]
                if len(where):
                    kept.append(found.take(where))
            # From here on there are few: one part is faster than many.
            alive[offset] = [concatenate(kept)] if len(kept) > 1 else kept

    # Labels

    def plans(self, max_labels: int | None) -> list[Chosen]:
        """Return pipelines that are faster than ``U`` of their memory.

        Without ``max_labels`` every point of the frontier with memory of
        some level is one of them, or known.

        Raises
        ------
        OutOfTimeError
            If the deadline passed.
        """
        labels = _Labels(self.num_devices + 1, self.num_states)
        alive = self.alive or []
        for offset in range(self.num_devices - 1, -1, -1):
            self._check_time()
            parts = [
                part
                for found in alive[offset]
                if len(found)
                for part in self._extended(found, offset, labels)
            ]
            if parts:
                joined = [
                    np.concatenate(columns)
                    for columns in zip(*parts, strict=True)
                ]
                labels.append(offset, self._kept(joined, max_labels))
        # The labels at offset 0 are the last ones.
        root = np.arange(labels.first[0, 0], labels.first[0, -1])
        total, worst, sync, stages, memory = (
            labels[name][root]
            for name in ("total", "worst", "sync", "stages", "memory")
        )
        times = total + self.extra_slots * worst + sync
        if self._stage_counts is not None:
            legal = np.isin(stages, self._stage_counts)
            times = np.where(legal, times, INFINITE)
        best = int(INFINITE)
        result = []
        for row in np.lexsort((times, memory)).tolist():
            if times[row] < best:
                best = int(times[row])
                chosen = labels.stages(int(root[row]), self.num_sets)
                result.append(Chosen(best, chosen))
        return result

    def _extended(
        self, found: SizedCandidates, offset: int, labels: _Labels
    ) -> list[list[Ints]]:
        """Put every candidate in front of every label it can precede."""
        parts = []
        last = self._is_end[found.target]
        if last.any():
            final = found.take(last)
            one = np.ones(len(final), dtype=np.int64)
            parts.append(
                self._useful(
                    final,
                    offset,
                    [final.load, final.load, final.sync, one],
                    np.zeros_like(one),
                    -one,
                )
            )
            found = found.take(~last)
        after = offset + found.size
        first = labels.first[after, found.target]
        count = labels.first[after, found.target + 1] - first
        repeat = np.repeat(np.arange(len(found)), count)
        if len(repeat):
            starts = np.cumsum(count) - count
            label = np.arange(len(repeat)) - np.repeat(starts - first, count)
            front = found.take(repeat)
            parts.append(
                self._useful(
                    front,
                    offset,
                    [
                        labels["total"][label] + front.load,
                        np.maximum(labels["worst"][label], front.load),
                        np.maximum(labels["sync"][label], front.sync),
                        labels["stages"][label] + 1,
                    ],
                    labels["memory"][label],
                    label,
                )
            )
        return parts

    def _useful(
        self,
        front: SizedCandidates,
        offset: int,
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
        need = self._need(stages)
        memory = np.maximum(memory, front.memory(need))
        memory = np.maximum(memory, self._floor_of[source])
        where = np.flatnonzero(
            (bound < self._upper(memory)) & (front.max_inflight >= need)
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
            front.size[where],
            label[where],
        ]

    def _kept(self, columns: list[Ints], max_labels: int | None) -> list[Ints]:
        """Drop dominated labels and order the rest by state."""
        state, total, worst, sync, stages, memory = columns[:6]
        need = self._need(stages)
        estimate = total + self.extra_slots * worst + sync
        # No label is beaten by a later one.
        order = np.lexsort((memory + need + worst, estimate, state))
        criteria = [total, worst, sync, need, memory]
        if self._stage_counts is not None:
            # As many stages, or it is no substitute.
            criteria += [stages, -stages]
        keep = non_dominated_rows(
            state[order], [column[order] for column in criteria], max_labels
        )
        return [column[order[keep]] for column in columns]


def non_dominated_rows(
    state: Ints, columns: Sequence[Ints], max_rows: int | None
) -> Ints:
    """Return the rows of each state that no earlier one beats.

    Rows are ordered by state, and so that none is beaten by a later one of
    its state unless they are equal.
    """
    alive = np.arange(len(state))
    kept: list[Ints] = []
    number = 0
    # The first row of every state is kept, and drops what it beats.
    while len(alive) > SQUARE or (max_rows is not None and len(alive)):
        states = state[alive]
        first = np.flatnonzero(np.r_[True, states[1:] != states[:-1]])
        heads = alive[first]
        kept.append(heads)
        number += 1
        if number == max_rows:
            return np.sort(np.concatenate(kept))
        head = np.repeat(heads, np.diff(np.r_[first, len(alive)]))
        beaten = columns[0][head] <= columns[0][alive]
        for column in columns[1:]:
            beaten &= column[head] <= column[alive]
        alive = alive[~beaten]
    if len(alive):
        # Compare all with all.
        states = state[alive]
        beats = np.tri(len(alive), k=-1, dtype=np.bool_).T
        beats &= states[:, None] == states[None, :]
        for column in columns:
            values = column[alive]
            beats &= values[:, None] <= values[None, :]
        kept.append(alive[~beats.any(axis=0)])
    if not kept:
        return alive
    return np.sort(np.concatenate(kept))


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
    """A case: its bounds, and what is not settled about it.

    Attributes
    ----------
    bound, least_total, least_bytes
        Lower bounds on ``T``, ``Σ τ`` and what the fullest device holds.
    unsettled
        Intervals of memory with a lower bound on ``T`` each.
    """

    case: Case
    tables: LevelTables
    bound: int
    least_total: int
    least_bytes: int
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
        Processes that share the cases.

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
        self._link: Link | None = None
        self.capacity = model.problem.cluster.device.memory_bytes
        self.staircase = Staircase()
        self.gaps = [Gap(nothing_below(model), self.capacity, 0)]
        #: No plan needs less memory.
        self.least_bytes = 0

    def run(self) -> None:
        """Search until all is proven or the time is up."""
        opened: list[_Open] = []
        try:
            opened = self._open_cases()
            if not opened or not self._find_least(opened):
                self.gaps = []
                return
            opened.sort(key=lambda item: len(item.tables.strategies))
            whole = (self.least_bytes - 1, self.capacity)
            for item in opened:
                item.unsettled = [Gap(*whole, item.bound)]
            self._first_sweep(opened)
            if self.workers > 1:
                self._share_cases(opened, whole)
                return
            for number, item in enumerate(opened):
                self.say(self._name(opened, number))
                self._search(item, self._split(whole, NUM_PARTS), None)
        except OutOfTimeError:
            if any(item.unsettled for item in opened):
                gaps = [gap for item in opened for gap in item.unsettled]
                self.gaps = merge_gaps(gaps)
            return
        self.gaps = []

    def _name(self, opened: Sequence[_Open], number: int) -> str:
        case = opened[number].case
        return (
            f"case {number + 1} of {len(opened)}: R={case.replicas}, "
            f"B={case.micro_batch}; {len(self.staircase.points)} points"
        )

    def _share_cases(
        self, opened: Sequence[_Open], whole: tuple[int, int]
    ) -> None:
        """Search the cases in several processes; note what is left."""

        def run(number: int, link: Link) -> list[Gap]:
            self._link = link
            item = opened[number]
            self._hear()
            try:
                self._search(item, self._split(whole, NUM_PARTS), None)
            except OutOfTimeError:
                raise OutOfTimeError(item.unsettled) from None
            return item.unsettled

        found = share(
            len(opened),
            self.workers,
            run,
            self.staircase.add,
            self.say,
            lambda number: self._name(opened, number),
        )
        gaps = []
        for number, item in enumerate(opened):
            left, in_time = found.get(number, (item.unsettled, False))
            if not in_time:
                gaps += left
        self.gaps = merge_gaps(gaps)

    def _hear(self) -> None:
        """Add what other processes found to what is known."""
        if self._link is not None:
            for point in self._link.heard():
                assert isinstance(point, Point)
                self.staircase.add(point)

    def _first_sweep(self, opened: Sequence[_Open]) -> None:
        """Find plans to start from, in the cases that are searched fast."""
        low, high = self.least_bytes, self.capacity
        ratio = high / max(low, 1)
        caps = {
            round(low * ratio ** (i / FIRST_LEVELS))
            for i in range(1, FIRST_LEVELS)
        }
        caps = {cap for cap in caps if low < cap < high} | {high}
        intervals = list(pairwise([low - 1, *sorted(caps)]))
        self.say("looking for plans to start from")
        # Only fast plans first: the fewer stages are of use, the faster.
        least_bound = min(item.bound for item in opened)
        for factor in FIRST_GUESSES:
            guess = int(factor * least_bound)
            self._search(opened[0], intervals, 1, guess)
        for item in opened[: ceil_div(len(opened), FIRST_SHARE)]:
            self._search(item, intervals, 1)

    def _open_cases(self) -> list[_Open]:
        found = []
        for case in cases(self.model.problem):
            if self.deadline.passed:
                raise OutOfTimeError
            tables = LevelTables(self.model, self.sets, case)
            bound, least_total = work_bound(tables)
            if bound < INFINITE:
                least_bytes = _least_bytes(tables)
                found.append(
                    _Open(
                        case,
                        tables,
                        bound,
                        least_total,
                        least_bytes,
                        [Gap(nothing_below(self.model), self.capacity, bound)],
                    )
                )
        return found

    def _add(self, tables: StageTables, chosen: Chosen) -> int:
        """Add a plan to what is known; return its memory."""
        plan = make_plan(self.model, tables, chosen)
        point = make_point(self.model, plan)
        if self.staircase.add(point) and self._link is not None:
            self._link.tell(point)
        return point.memory_bytes

    def _find_least(self, opened: list[_Open]) -> bool:
        """Find about the least memory with which there is a plan.

        Sets :attr:`least_bytes`, which is less than what any plan needs by
        at most a fraction of ``1 / NEAR`` unless the number of stages is
        restricted. Returns whether there is any plan, or may be one.
        """
        least = None
        for item in sorted(opened, key=lambda item: item.least_bytes):
            tables = FitTables(self.model, self.sets, item.case)
            low = item.least_bytes - 1
            high = self.capacity if least is None else _near(least)
            while low < high:
                cap = high
                if least is not None:
                    cap = min(high, (low + least) // 2)
                chosen = _fitting(tables, cap, self.deadline)
                if chosen is None:
                    low = cap
                    continue
                if self._allowed(len(chosen.stages)):
                    least = self._add(tables, chosen)
                else:
                    least = cap
                self.say(f"least memory at most {least} bytes")
                high = _near(least)
        if least is None:
            return False
        self.least_bytes = _near(least) + 1
        return True

    def _allowed(self, num_stages: int) -> bool:
        allowed = self.model.problem.job.pipeline_parallel
        return allowed is None or num_stages in allowed

    def _split(
        self, interval: tuple[int, int], parts: int
    ) -> list[tuple[int, int]]:
        """Cut an interval of memory where ``U`` has steps."""
        floor, cap = interval
        steps = [
            point.memory_bytes
            for point in self.staircase.points
            if floor < point.memory_bytes < cap
        ]
        if not steps:
            middle = (floor + cap) // 2
            return [(floor, middle), (middle, cap)]
        stride = ceil_div(len(steps) + 1, parts)
        return list(pairwise([floor, *steps[stride - 1 :: stride], cap]))

    def _levels(
        self,
        item: _Open,
        intervals: Sequence[tuple[int, int]],
        guess: int,
    ) -> Levels:
        extra = item.case.num_micro_batches - 1
        limits = []
        for floor, _ in intervals:
            upper = self.staircase.least_time(max(floor, self.least_bytes))
            upper = min(upper, guess)
            limit = int(INFINITE)
            if extra and upper < INFINITE:
                # As in nest.dp.cases: T >= (M-1) τ + max(τ, least Σ τ).
                limit = min(
                    ceil_div(upper, extra + 1),
                    ceil_div(upper - item.least_total, extra),
                )
            limits.append(limit if item.bound < upper else 0)
        return Levels(
            *(
                np.array(column, dtype=np.int64)
                for column in (*zip(*intervals, strict=True), limits)
            )
        )

    def _search(
        self,
        item: _Open,
        intervals: list[tuple[int, int]],
        max_labels: int | None,
        guess: int = int(INFINITE),
    ) -> None:
        """Search a case for plans whose memory is in some intervals.

        Where too much is left for labels, an interval is cut and bounded
        again.

        Parameters
        ----------
        item, intervals
            The case, and ascending intervals.
        max_labels
            Labels per state; ``None`` is exact.
        guess
            Only plans faster than this matter.
        """
        before: LevelSearch | None = None
        children: list[int] = []
        while intervals:
            self._hear()
            levels = self._levels(item, intervals, guess)
            item.tables.set_levels(levels)
            search = LevelSearch(
                item.tables, self.deadline, self.staircase, self.least_bytes
            )
            if before is not None:
                search.narrow(before, children)
            bounds = search.bounds()
            is_open = bounds < INFINITE
            if max_labels is not None:
                if is_open.any():
                    self._add_plans(search, is_open, max_labels)
                break
            item.unsettled = [
                Gap(*interval, int(bound))
                for interval, bound in zip(intervals, bounds, strict=True)
                if bound < INFINITE
            ]
            if not is_open.any():
                break
            width = levels.caps - levels.floors
            ready = is_open & (
                (search.num_alive() <= ENOUGH)
                | (width <= np.maximum(levels.caps // NEAR, 1))
            )
            if len(intervals) >= MOST_LEVELS:
                ready = is_open
            rest = is_open & ~ready
            kept = search.alive
            # Plans of the intervals to be cut again tell where to cut.
            self._add_plans(search, rest, 1)
            search.alive = kept
            self._add_plans(search, ready, None)
            search.alive = kept
            parts = [
                self._split(interval, NUM_PARTS) if more else []
                for interval, more in zip(intervals, rest, strict=True)
            ]
            before, children = search, [len(part) for part in parts]
            intervals = [interval for part in parts for interval in part]
        else:
            item.unsettled = []
        item.tables.forget()

    def _add_plans(
        self, search: LevelSearch, chosen: Bools, max_labels: int | None
    ) -> None:
        """Add the plans of some levels to what is known."""
        if chosen.any():
            search.restrict(chosen)
            for pipeline in search.plans(max_labels):
                self._add(search.tables, pipeline)


def _near(memory_bytes: int) -> int:
    return memory_bytes - 1 - memory_bytes // NEAR


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


def _fitting(tables: FitTables, cap: int, deadline: Deadline) -> Chosen | None:
    """Return a pipeline of the fewest stages within a capacity.

    Fewer stages behind a stage never ask for more in flight, so there is
    none if this finds none.
    """
    tables.fit_within(cap)
    search = PipelineSearch(tables, deadline)
    return search.shortest()


def search(
    model: CostModel,
    sets: ClosedSets,
    deadline: Deadline,
    say: Say = ignore,
    workers: int = 1,
) -> tuple[list[Point], list[Gap]]:
    """Return the frontier of a problem, and what of it is not proven.

    Stages with one strategy each are searched level by level. For a strategy
    per layer, and under presets with programs of their own, see
    :func:`descend`.

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
    uniform, turns = model.preset.uniform, model.preset.ranks_take_turns
    if not uniform and not turns:
        levels = FrontierSearch(model, sets, deadline, say, workers)
        levels.run()
        if model.problem.job.granularity == "stage":
            return levels.staircase.points, levels.gaps
        staircase = levels.staircase
    gaps = descend(model, sets, deadline, staircase, say)
    return staircase.points, gaps


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
    device = model.problem.cluster.device
    cap = device.memory_bytes
    while cap >= device.reserve_bytes:
        upper = staircase.least_time(cap)
        known = [p for p in staircase.points if p.memory_bytes <= cap]
        found = _fastest(
            model.within(cap),
            sets,
            deadline,
            upper if known else None,
            known[-1].plan if known else None,
        )
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


def _fastest(
    model: CostModel,
    sets: ClosedSets,
    deadline: Deadline,
    upper: int | None,
    plan: Plan | None,
) -> SolverOutput:
    """Return the fastest plan, as solver ``dp`` does."""
    if model.preset.uniform:
        from nest.audits.nest_artifact import search as uniform

        return uniform.search(
            model, sets, deadline, ignore_progress, upper, plan
        )
    if model.preset.ranks_take_turns:
        from nest.audits.piper import search as piper

        return piper.search(
            model, sets, deadline, ignore_progress, upper, plan
        )
    from nest.search import layers

    return layers.search(
        model, sets, deadline, ignore_progress, upper, plan
    )
