"""The shortest timetable of a part as a chain of blocks, by closed sets.

There is a moment in a timetable when a set of jobs is done and no other has begun: that
set is closed, it holds what precedes its members. Between two such moments there is one
job alone, or a *block* of jobs on single cores that follow and overlap each other. So a
timetable is a path through the closed sets, which takes ticks of the cores and ticks of
the memory channel: its length is the larger of both sums. What a block takes is bounded
first, and found out only where a path that can be shortest needs it.
``formulations/README.md`` has the proofs.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nest.operator_schedule.pack import shortest_block
from nest.operator_schedule.parts import Job, JobGroup, Mode
from nest.operator_schedule.reduce import alone_ticks, ancestors
from nest.operator_schedule.search import How
from nest.operator_schedule.timetable import Timetable, length_ticks
from nest.solvers.base import Deadline

Ints = NDArray[np.int64]

#: Maximum numbers of closed sets, in a quick search and in any other, and of
#: pairs of them.
MAX_QUICK_SETS = 4000
MAX_SETS = 10_000
MAX_PAIRS = 2_000_000

#: Sets whose pairs are formed at once.
ROWS = 128

#: Jobs that fit into the bits of a whole number.
MAX_JOBS = 62

#: Maximum number of labels that the search extends.
MAX_REACHED = 200_000


#: Upper limits of two successive searches, in quarters of the range from the
#: lower bound to the best known length. A low limit rejects long paths early.
SHARES = (1, 4)


class GivenUpError(Exception):
    """It is too much work."""


class _Steps(NamedTuple):
    """Steps from one closed set to a larger one.

    ``source`` and ``target`` are numbers of sets; ``ticks`` are what the jobs between
    take at least, and ``channel_ticks`` of the memory channel. ``block`` are these
    jobs, as bits, if they overlap, 0 for one job alone; ``whole`` says whether that is
    on the whole chip: 0 or 1.
    """

    source: Ints
    target: Ints
    ticks: Ints
    channel_ticks: Ints
    block: Ints
    whole: Ints

    def where(self, chosen: NDArray[np.generic]) -> _Steps:
        return _Steps(*(values[chosen] for values in self))


def schedule_part(
    group: JobGroup, table: Timetable, bound_ticks: int, how: How
) -> tuple[Timetable | None, int]:
    """Return a shortest timetable of a part, and what none is shorter than.

    ``table`` is returned if no timetable is shorter; ``bound_ticks``, with no
    timetable, if finding out more is too much work.

    Raises ``OutOfTimeError`` if the deadline passes.
    """
    given_up = None, bound_ticks
    if len(group.jobs) > MAX_JOBS:
        return given_up
    masks = _closed_sets(group.jobs, MAX_QUICK_SETS if how.quick else MAX_SETS)
    if masks is None:
        return given_up
    sets = np.array(masks, dtype=np.int64)
    steps = _steps(group, sets)
    if steps is None:
        return given_up
    known_ticks = length_ticks(group, table)
    around = []
    rest = []
    for ticks in (steps.ticks, steps.channel_ticks):
        before, after = _distances(steps, ticks, len(sets))
        around.append(before[steps.source] + after[steps.target])
        rest.append(after)
    useful = around[0] + steps.ticks < known_ticks
    useful &= around[1] + steps.channel_ticks < known_ticks
    steps = steps.where(useful)
    search = _Search(group, masks, steps, around[0][useful], rest, how.deadline)
    min_ticks = int(max(after[0] for after in rest))
    try:
        # What is too long is seen sooner by a limit that is lower.
        for share in SHARES:
            limit = min_ticks + -(-(known_ticks - min_ticks) * share // SHARES[-1])
            shorter = search.below(limit)
            if shorter is not None:
                return shorter, length_ticks(group, shorter)
    except GivenUpError:
        return given_up
    return table, known_ticks


def _closed_sets(jobs: tuple[Job, ...], limit: int) -> list[int] | None:
    """Return all closed sets as bits, smaller ones first, if not too many."""
    before = ancestors(jobs)
    masks = [0]
    seen = {0}
    for mask in masks:
        for i, needed in enumerate(before):
            if not mask >> i & 1 and not needed & ~mask:
                larger = mask | 1 << i
                if larger not in seen:
                    if len(masks) == limit:
                        return None
                    seen.add(larger)
                    masks.append(larger)
    return masks


def _steps(group: JobGroup, sets: Ints) -> _Steps | None:
    """Return all steps that can be part of a shortest path."""
    jobs = group.jobs
    parallel = sum(1 << i for i, job in enumerate(jobs) if job.single)
    pairs = _pairs(sets, parallel)
    if pairs is None:
        return None
    source, target = pairs
    member = (sets[:, None] >> np.arange(len(jobs))) & 1
    single, channel = np.array(
        [job.single or Mode(0, 0) for job in jobs], dtype=np.int64
    ).T
    alone = member @ np.array(
        [alone_ticks(job) if job.single else 0 for job in jobs], dtype=np.int64
    )
    slowest = (alone[target] - alone[source]).astype(np.int64)
    ticks = np.zeros(len(source), dtype=np.int64)
    for side, count in enumerate(group.cores):
        uses = np.array([job[side] for job in jobs], dtype=np.int64)
        work = member @ (uses * single)
        np.maximum(ticks, -((work[source] - work[target]) // count), out=ticks)
    # A block that one job after the other is not longer than, with no more of
    # the channel, is none.
    useful = ticks < slowest
    source, target, ticks = source[useful], target[useful], ticks[useful]
    _lengthen_by_paths(jobs, member, single, source, target, ticks)
    moved = member @ channel
    blocks = _Steps(
        *(source, target, ticks, moved[target] - moved[source]),
        *(sets[source] ^ sets[target], np.zeros_like(source)),
    )
    blocks = blocks.where(ticks < alone[target] - alone[source])
    singles = _single_steps(sets, jobs)
    joined = _Steps(
        *(np.concatenate(both) for both in zip(blocks, singles, strict=True))
    )
    return joined.where(np.argsort(joined.source, kind="stable"))


def _pairs(sets: Ints, parallel: int) -> tuple[Ints, Ints] | None:
    """Return pairs of sets between which there are only such jobs, or more.

    At least two of them. ``None`` if there are too many pairs.
    """
    order = np.argsort(sets & ~parallel, kind="stable")
    kinds = (sets & ~parallel)[order]
    ends = np.flatnonzero(np.diff(kinds, append=-1)) + 1
    sources, targets = [], []
    begin = count = 0
    for end in ends.tolist():
        members = order[begin:end]
        begin = end
        for first in range(0, len(members), ROWS):
            some = members[first : first + ROWS]
            between = sets[members][None, :] & ~sets[some][:, None]
            inside = sets[some][:, None] & ~sets[members][None, :] == 0
            several = (between & (between - 1)) != 0
            a, b = np.nonzero(inside & several)
            sources.append(some[a])
            targets.append(members[b])
            count += len(a)
            if count > MAX_PAIRS:
                return None
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


def _single_steps(sets: Ints, jobs: tuple[Job, ...]) -> _Steps:
    """Return the steps of one job alone, one for every mode worth it."""
    index_of = {mask: index for index, mask in enumerate(sets.tolist())}
    steps = []
    for index, mask in enumerate(sets.tolist()):
        for i, job in enumerate(jobs):
            larger = index_of.get(mask | 1 << i)
            if larger is not None and larger != index:
                steps += [
                    (index, larger, *mode, 0, whole)
                    for whole, mode in _modes_alone(job)
                ]
    return _Steps(*np.array(steps, dtype=np.int64).T)


def _modes_alone(job: Job) -> list[tuple[bool, Mode]]:
    """Return the modes of a job alone of which none is as good at both."""
    single, whole = job.single, job.whole
    if single is None or whole is None:
        return [(single is None, single or whole or Mode(0, 0))]
    if all(a <= b for a, b in zip(single, whole, strict=True)):
        return [(False, single)]
    if all(a <= b for a, b in zip(whole, single, strict=True)):
        return [(True, whole)]
    return [(False, single), (True, whole)]


def _distances(steps: _Steps, ticks: Ints, count: int) -> tuple[Ints, Ints]:
    """Return the least ticks to each set from the first, and to the last.

    Steps are ordered by source, and sources by size.
    """
    far = np.iinfo(np.int64).max // 4
    before = np.full(count, far, dtype=np.int64)
    after = np.full(count, far, dtype=np.int64)
    before[0] = after[-1] = 0
    first = np.searchsorted(steps.source, np.arange(count + 1))
    target = steps.target
    for index in range(count - 1, -1, -1):
        leaving = slice(first[index], first[index + 1])
        if leaving.start < leaving.stop:
            after[index] = (ticks[leaving] + after[target[leaving]]).min()
    for index in range(count):
        leaving = slice(first[index], first[index + 1])
        # There may be several steps to one set.
        np.minimum.at(before, target[leaving], before[index] + ticks[leaving])
    return before, after


class _Label(NamedTuple):
    """A label: one path to a closed set.

    ``source`` is the number of what was reached before, ``block`` and ``whole`` are as
    of the last step.
    """

    source: int
    block: int
    ticks: int
    channel_ticks: int
    whole: int


class _Search:
    """Paths through the closed sets of a part, best first (A*).

    In the order of what they have taken and what is left at least, of cores
    or channel. What a block takes is found out when it would be the next to
    be taken. A set is not reached again by what takes as much of both.
    """

    def __init__(
        self,
        group: JobGroup,
        masks: list[int],
        steps: _Steps,
        around: Ints,
        rest: list[Ints],
        deadline: Deadline,
    ) -> None:
        self._part, self._masks = group, masks
        self._deadline = deadline
        self._rest: list[tuple[int, int]] = list(
            zip(*(after.tolist() for after in rest), strict=True)
        )
        # What paths with a block take at least beside it, and the block.
        self._around: dict[int, int] = {}
        self._least: dict[int, int] = {}
        self._leaving: dict[int, list[tuple[int, int, int, int, int]]] = {}
        for source, *step, around_ticks in zip(
            *(values.tolist() for values in (*steps, around)), strict=True
        ):
            target, ticks, channel_ticks, block, whole = step
            self._leaving.setdefault(source, []).append(
                (target, ticks, channel_ticks, block, whole)
            )
            self._around[block] = min(
                self._around.get(block, around_ticks), around_ticks
            )
            self._least[block] = ticks
        self._packed: dict[int, tuple[int, ...]] = {}

    def below(self, limit_ticks: int) -> Timetable | None:
        """Return the timetable of the shortest path below a number of ticks.

        ``None`` if there is none.

        Raises ``GivenUpError`` if it is too much work.
        """
        reached: list[tuple[int, _Label]] = []
        fronts: dict[int, list[tuple[int, int]]] = {}
        last = len(self._masks) - 1
        # Of what may take equally long first what is nearest to the end.
        queue: list[tuple[int, int, _Label]] = []

        def push(target: int, step: _Label) -> None:
            ticks, channel_ticks = self._rest[target]
            total = max(step.ticks + ticks, step.channel_ticks + channel_ticks)
            if total < limit_ticks and not is_behind(target, step):
                heappush(queue, (total, -target, step))

        def is_behind(target: int, step: _Label) -> bool:
            return any(
                ticks <= step.ticks and channel_ticks <= step.channel_ticks
                for ticks, channel_ticks in fronts.get(target, ())
            )

        push(0, _Label(-1, 0, 0, 0, 0))
        while queue:
            _, nearness, step = heappop(queue)
            target = -nearness
            if is_behind(target, step):
                continue
            if step.block:
                ticks = self._pack(step.block, limit_ticks)
                if ticks is None:
                    continue
                end = reached[step.source][1].ticks + ticks
                if end > step.ticks:
                    push(target, step._replace(ticks=end))
                    continue
            if target == last:
                return self._timetable([*reached, (target, step)])
            if len(reached) == MAX_REACHED:
                raise GivenUpError
            self._deadline.check()
            index = len(reached)
            reached.append((target, step))
            fronts.setdefault(target, []).append(step[2:4])
            for following in self._leaving.get(target, ()):
                larger, ticks, channel_ticks, block, whole = following
                if block:
                    ticks = self._least[block]
                ends = step.ticks + ticks, step.channel_ticks + channel_ticks
                push(larger, _Label(index, block, *ends, whole))
        return None

    def _pack(self, block: int, limit_ticks: int) -> int | None:
        """Return what a block takes; ``None`` if no path can be so short."""
        limit = limit_ticks - 1 - self._around[block]
        if block not in self._packed and self._least[block] <= limit:
            self._deadline.check()
            packed = shortest_block(self._part, block, limit)
            if packed is None:
                raise GivenUpError
            self._least[block] = packed.ticks
            if packed.starts is not None:
                self._packed[block] = packed.starts
        return self._least[block] if block in self._packed else None

    def _timetable(self, reached: list[tuple[int, _Label]]) -> Timetable:
        """Return the timetable of the path to what was reached last."""
        starts = [0] * len(self._part.jobs)
        whole = [False] * len(self._part.jobs)
        at, step = reached[-1]
        while step.source >= 0:
            before, earlier = reached[step.source]
            now = earlier.ticks
            between = self._masks[before] ^ self._masks[at]
            members = [i for i in range(len(starts)) if between >> i & 1]
            if step.block:
                inside = self._packed[step.block]
                for i, start in zip(members, inside, strict=True):
                    starts[i] = now + start
            else:
                (i,) = members
                starts[i] = now
                whole[i] = bool(step.whole)
            at, step = before, earlier
        return Timetable(tuple(starts), tuple(whole))
