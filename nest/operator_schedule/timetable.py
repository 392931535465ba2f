"""Timetables of a part: when its jobs start, and in which mode."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from nest.operator_schedule.parts import Job, JobGroup, Mode
from nest.operator_schedule.records import Cores


class Timetable(NamedTuple):
    """The starts of a part's jobs, and which run on the whole chip."""

    starts: tuple[int, ...]
    whole: tuple[bool, ...]


def mode_of(job: Job, whole: bool) -> Mode:
    """Return the mode in which a job runs."""
    mode = job.whole if whole else job.single
    assert mode is not None
    return mode


def is_whole(job: Job) -> bool:
    """Whether a job that is alone is faster on the whole chip."""
    return job.single is None or job.single.ticks > job.least_ticks


def length_ticks(group: JobGroup, table: Timetable) -> int:
    """Return how long a part takes: all jobs end, and the channel is done."""
    modes = [
        mode_of(job, whole) for job, whole in zip(group.jobs, table.whole, strict=True)
    ]
    end = max(
        start + mode.ticks for start, mode in zip(table.starts, modes, strict=True)
    )
    return max(end, sum(mode.channel_ticks for mode in modes))


def in_order(group: JobGroup, order: Sequence[int], whole: Sequence[bool]) -> Timetable:
    """Start jobs as early as cores allow, in an order that keeps the DAG's."""
    free = _Free(group.cores)
    starts = [0] * len(order)
    ends = [0] * len(order)
    for i in order:
        job = group.jobs[i]
        ready = max((ends[j] for j in job.after), default=0)
        ticks = mode_of(job, whole[i]).ticks
        taken = group.cores if whole[i] else Cores(job.tensor, job.vector)
        starts[i] = free.take(ready, ticks, taken)
        ends[i] = starts[i] + ticks
    return Timetable(tuple(starts), tuple(whole))


class _Free:
    """The cores that are free, from each of some times to the next."""

    def __init__(self, cores: Cores) -> None:
        self._times = [0]
        self._free = [tuple(cores)]

    def take(self, ready: int, ticks: int, taken: Cores) -> int:
        """Take cores for so long, as early as they are free; say when."""
        times, free = self._times, self._free
        tensor, vector = taken
        at = first = bisect_right(times, ready) - 1
        start = ready
        while True:
            if free[at][0] < tensor or free[at][1] < vector:
                at += 1
                first, start = at, times[at]
                continue
            at += 1
            if at == len(times) or times[at] >= start + ticks:
                break
        first = self._cut(start)
        last = self._cut(start + ticks)
        for at in range(first, last):
            free[at] = (free[at][0] - tensor, free[at][1] - vector)
        return start

    def _cut(self, time: int) -> int:
        """Return the place of a time among those that are listed."""
        at = bisect_left(self._times, time)
        if at == len(self._times) or self._times[at] != time:
            self._times.insert(at, time)
            self._free.insert(at, self._free[at - 1])
        return at


def with_cores(
    group: JobGroup, table: Timetable
) -> list[tuple[int | None, int | None]]:
    """Give every job the first core of each of its types that is free.

    There is always one: of intervals that are never more than so many at a
    time, each finds a core that those before it have left.
    """
    cores_of: list[list[int | None]] = [[None, None] for _ in group.jobs]
    order = sorted(range(len(group.jobs)), key=lambda i: table.starts[i])
    for side in (0, 1):
        ends: list[int] = []
        for i in order:
            job = group.jobs[i]
            if table.whole[i] or not job[side]:
                continue
            start = table.starts[i]
            core = next(
                (core for core, end in enumerate(ends) if end <= start), len(ends)
            )
            ends[core : core + 1] = [start + mode_of(job, False).ticks]
            cores_of[i][side] = core
    return [(tensor, vector) for tensor, vector in cores_of]


def faults(group: JobGroup, table: Timetable) -> str | None:
    """Return what a timetable breaks, or ``None``.

    A second look at what an engine says: its rules are counted anew, from
    the definition.
    """
    events = []
    ends = []
    for i, (job, start, whole) in enumerate(zip(group.jobs, *table, strict=True)):
        mode = job.whole if whole else job.single
        if mode is None:
            return f"job {i} runs in a mode that it does not have"
        ends.append(start + mode.ticks)
        if start < max((ends[j] for j in job.after), default=0):
            return f"job {i} starts before its input is there"
        taken = group.cores if whole else Cores(job.tensor, job.vector)
        events += [(start, 1, *taken), (ends[i], -1, -taken[0], -taken[1])]
    tensor = vector = 0
    for time, _, more_tensor, more_vector in sorted(events):
        tensor += more_tensor
        vector += more_vector
        if tensor > group.cores.tensor or vector > group.cores.vector:
            return f"more cores are in use at {time} than there are"
    return None
