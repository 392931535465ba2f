"""The shortest timetable of a part as a chain of blocks, by closed sets.

There is a moment in a timetable when a set of jobs is done and no other has
begun: that set is closed, it holds what precedes its members. Between two
such moments there is one job alone, or a *block* of jobs on single cores that
follow and overlap each other. So a timetable is a path through the closed
sets. What a block takes is bounded first, and found out only where a path
that can be shortest needs it. The memory channel is not looked at.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nest.codesign.schedule.pack import shortest_block
from nest.codesign.schedule.parts import Job, Part
from nest.codesign.schedule.reduce import ancestors
from nest.codesign.schedule.search import How
from nest.codesign.schedule.timetable import (
    Timetable,
    is_whole,
    length_ticks,
)
from nest.solvers.base import Deadline

Ints = NDArray[np.int64]

#: Closed sets that are looked at, at most, and pairs of them.
MAX_SETS = 4000
MAX_PAIRS = 2_000_000

#: Jobs that fit into the bits of a whole number.
MAX_JOBS = 62


#: How far from the bound to the timetable at hand shorter ones are looked
#: for, one after the other; the last one is the whole.
SHARES = (1, 4)


class GivenUpError(Exception):
    """It is too much work."""


class _Steps(NamedTuple):
    """Steps from one closed set to a larger one.

    Attributes
    ----------
    source, target
        Numbers of the sets.
    ticks
        What the jobs between take at least.
    block
        These jobs, as bits, if they overlap; 0 for one job alone.
    """

    source: Ints
    target: Ints
    ticks: Ints
    block: Ints

    def where(self, chosen: NDArray[np.generic]) -> _Steps:
        """Return some of the steps."""
        return _Steps(*(values[chosen] for values in self))


def schedule_part(
    part: Part, table: Timetable, bound_ticks: int, how: How
) -> tuple[Timetable | None, int]:
    """Return a shortest timetable of a part, and what none is shorter than.

    Parameters
    ----------
    part
        A part; its memory channel is not looked at.
    table
        A timetable; it is returned if none is shorter.
    bound_ticks
        What none is shorter than; returned, with no timetable, if finding
        out more is too much work.
    how
        The deadline.

    Raises
    ------
    OutOfTimeError
        If the deadline passes.
    """
    given_up = None, bound_ticks
    if len(part.jobs) > MAX_JOBS:
        return given_up
    masks = _closed_sets(part.jobs)
    if masks is None:
        return given_up
    sets = np.array(masks, dtype=np.int64)
    steps = _steps(part, sets)
    if steps is None:
        return given_up
    most = length_ticks(part, table)
    before, after = _distances(steps, len(sets))
    steps = steps.where(
        before[steps.source] + steps.ticks + after[steps.target] < most
    )
    search = _Search(part, masks, steps, (before, after), how.deadline)
    least = int(after[0])
    try:
        # What is too long is seen sooner by a limit that is lower.
        for share in SHARES:
            limit = least + -(-(most - least) * share // SHARES[-1])
            found = search.below(limit)
            if found is not None:
                return found, length_ticks(part, found)
    except GivenUpError:
        return given_up
    return table, most


def _closed_sets(jobs: tuple[Job, ...]) -> list[int] | None:
    """Return all closed sets as bits, smaller ones first."""
    before = ancestors(jobs)
    found = [0]
    seen = {0}
    for mask in found:
        for i, needed in enumerate(before):
            if not mask >> i & 1 and not needed & ~mask:
                larger = mask | 1 << i
                if larger not in seen:
                    if len(found) == MAX_SETS:
                        return None
                    seen.add(larger)
                    found.append(larger)
    return found


def _steps(part: Part, sets: Ints) -> _Steps | None:
    """Return all steps that can be part of a shortest path."""
    jobs = part.jobs
    beside = sum(1 << i for i, job in enumerate(jobs) if job.single)
    source, target = _pairs(sets, beside)
    if len(source) > MAX_PAIRS:
        return None
    member = (sets[:, None] >> np.arange(len(jobs))) & 1
    least = np.array([job.least_ticks for job in jobs], dtype=np.int64)
    single = np.array(
        [job.single.ticks if job.single else 0 for job in jobs],
        dtype=np.int64,
    )
    alone = member @ least
    slowest = (alone[target] - alone[source]).astype(np.int64)
    ticks = np.zeros(len(source), dtype=np.int64)
    for side, count in enumerate(part.cores):
        uses = np.array([job[side] for job in jobs], dtype=np.int64)
        work = member @ (uses * single)
        np.maximum(ticks, -((work[source] - work[target]) // count), out=ticks)
    # A block that one job after the other is not longer than is none.
    kept = ticks < slowest
    source, target, ticks = source[kept], target[kept], ticks[kept]
    _lengthen_by_paths(jobs, member, single, source, target, ticks)
    kept = ticks < (alone[target] - alone[source])
    blocks = _Steps(source, target, ticks, sets[source] ^ sets[target])
    blocks = blocks.where(kept)
    singles = _single_steps(sets, least)
    joined = _Steps(
        *(np.concatenate(both) for both in zip(blocks, singles, strict=True))
    )
    return joined.where(np.argsort(joined.source, kind="stable"))


def _pairs(sets: Ints, beside: int) -> tuple[Ints, Ints]:
    """Return pairs of sets between which there are only such jobs, or more.

    At least two of them.
    """
    order = np.argsort(sets & ~beside, kind="stable")
    kinds = (sets & ~beside)[order]
    ends = np.flatnonzero(np.diff(kinds, append=-1)) + 1
    sources, targets = [], []
    begin = 0
    for end in ends.tolist():
        members = order[begin:end]
        begin = end
        values = sets[members]
        between = values[None, :] & ~values[:, None]
        inside = values[:, None] & ~values[None, :] == 0
        several = (between & (between - 1)) != 0
        a, b = np.nonzero(inside & several)
        sources.append(members[a])
        targets.append(members[b])
    return np.concatenate(sources), np.concatenate(targets)


def _lengthen_by_paths(
    jobs: tuple[Job, ...],
    member: Ints,
    single: Ints,
    source: Ints,
    target: Ints,
    ticks: Ints,
) -> None:
    """Raise ticks to the longest path inside each block, in place."""
    heads = np.zeros(member.shape, dtype=np.int64)
    for i, job in enumerate(jobs):
        for j in job.after:
            ends = np.where(member[:, j], 0, heads[:, j] + single[j])
            np.maximum(heads[:, i], ends, out=heads[:, i])
        between = member[target, i] > member[source, i]
        ends = heads[source, i] + single[i]
        np.maximum(ticks, np.where(between, ends, 0), out=ticks)


def _single_steps(sets: Ints, least: Ints) -> _Steps:
    """Return the steps of one job alone."""
    place = {mask: number for number, mask in enumerate(sets.tolist())}
    source, target, ticks = [], [], []
    for number, mask in enumerate(sets.tolist()):
        for i, job_ticks in enumerate(least.tolist()):
            larger = place.get(mask | 1 << i)
            if larger is not None and larger != number:
                source.append(number)
                target.append(larger)
                ticks.append(job_ticks)
    return _Steps(
        np.array(source, dtype=np.int64),
        np.array(target, dtype=np.int64),
        np.array(ticks, dtype=np.int64),
        np.zeros(len(source), dtype=np.int64),
    )


def _distances(steps: _Steps, count: int) -> tuple[Ints, Ints]:
    """Return the least ticks to each set from the first, and to the last.

    Steps are ordered by source, and sources by size.
    """
    far = np.iinfo(np.int64).max // 4
    before = np.full(count, far, dtype=np.int64)
    after = np.full(count, far, dtype=np.int64)
    before[0] = after[-1] = 0
    first = np.searchsorted(steps.source, np.arange(count + 1))
    target, ticks = steps.target, steps.ticks
    for number in range(count - 1, -1, -1):
        own = slice(first[number], first[number + 1])
        if own.start < own.stop:
            after[number] = (ticks[own] + after[target[own]]).min()
    for number in range(count):
        own = slice(first[number], first[number + 1])
        ends = target[own]
        before[ends] = np.minimum(before[ends], before[number] + ticks[own])
    return before, after


class _Reached(NamedTuple):
    """How a closed set is reached: from which, after which block, when."""

    source: int
    block: int
    ticks: int


class _Search:
    """Paths through the closed sets of a part, best first (A*).

    In the order of what they have taken and what is left at least. What a
    block takes is found out when it would be the next to be taken.
    """

    def __init__(
        self,
        part: Part,
        masks: list[int],
        steps: _Steps,
        distances: tuple[Ints, Ints],
        deadline: Deadline,
    ) -> None:
        self._part, self._masks = part, masks
        self._deadline = deadline
        before, after = distances
        self._rest: list[int] = after.tolist()
        # What paths with a block take at least beside it, and the block.
        self._around: dict[int, int] = {}
        self._least: dict[int, int] = {}
        self._leaving: dict[int, list[tuple[int, int, int]]] = {}
        around = before[steps.source] + after[steps.target]
        for source, target, ticks, block, others in zip(
            *(values.tolist() for values in (*steps, around)), strict=True
        ):
            self._leaving.setdefault(source, []).append((target, ticks, block))
            self._around[block] = min(self._around.get(block, others), others)
            self._least[block] = ticks
        self._packed: dict[int, tuple[int, ...]] = {}

    def below(self, most: int) -> Timetable | None:
        """Return the timetable of the shortest path below a number of ticks.

        ``None`` if there is none.

        Raises
        ------
        GivenUpError
            If finding out what a block takes is too much work.
        """
        reached: dict[int, _Reached] = {}
        last = len(self._masks) - 1
        # Of what may take equally long first what is nearest to the end.
        queue = [(self._rest[0], 0, _Reached(-1, 0, 0))]

        def push(target: int, step: _Reached) -> None:
            total = step.ticks + self._rest[target]
            if target not in reached and total < most:
                heappush(queue, (total, -target, step))

        while queue:
            _, nearness, step = heappop(queue)
            target = -nearness
            if target in reached:
                continue
            if step.block:
                ticks = self._pack(step.block, most)
                if ticks is None:
                    continue
                end = reached[step.source].ticks + ticks
                if end > step.ticks:
                    push(target, step._replace(ticks=end))
                    continue
            reached[target] = step
            if target == last:
                return self._timetable(reached)
            for following, ticks, block in self._leaving.get(target, ()):
                if block:
                    ticks = self._least[block]
                push(following, _Reached(target, block, step.ticks + ticks))
        return None

    def _pack(self, block: int, most: int) -> int | None:
        """Return what a block takes; ``None`` if no path can be so short."""
        limit = most - 1 - self._around[block]
        if block not in self._packed and self._least[block] <= limit:
            self._deadline.check()
            found = shortest_block(self._part, block, limit)
            if found is None:
                raise GivenUpError
            self._least[block] = found.ticks
            if found.starts is not None:
                self._packed[block] = found.starts
        return self._least[block] if block in self._packed else None

    def _timetable(self, reached: dict[int, _Reached]) -> Timetable:
        """Return the timetable of the path to the last closed set."""
        starts = [0] * len(self._part.jobs)
        whole = [False] * len(self._part.jobs)
        at = len(self._masks) - 1
        while at:
            step = reached[at]
            now = reached[step.source].ticks
            between = self._masks[step.source] ^ self._masks[at]
            members = [i for i in range(len(starts)) if between >> i & 1]
            if step.block:
                inside = self._packed[step.block]
                for i, start in zip(members, inside, strict=True):
                    starts[i] = now + start
            else:
                (i,) = members
                starts[i] = now
                whole[i] = is_whole(self._part.jobs[i])
            at = step.source
        return Timetable(tuple(starts), tuple(whole))
