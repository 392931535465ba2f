"""What both models of a part have in common: time without whole-chip jobs.

While a job has the whole chip nothing else runs. Both models cut these times
out of the clock: such a job becomes a moment that no other may run across,
and the makespan is what is left plus what they take.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from nest.operator_schedule.parts import Job, JobGroup
from nest.operator_schedule.reduce import related
from nest.operator_schedule.timetable import Timetable, in_order, mode_of


def pairs(part: JobGroup) -> Iterator[tuple[int, int]]:
    """Yield the pairs of jobs that may have to be put in an order, either way round.

    Neither precedes the other, and at least one can run beside others.
    """
    bits = related(part.jobs)
    for i, j in itertools.combinations(range(len(part.jobs)), 2):
        alone = part.jobs[i].single is part.jobs[j].single is None
        if not alone and not bits[i] >> j & 1:
            yield i, j
            yield j, i


def short_starts(part: JobGroup, table: Timetable) -> list[int]:
    """Return starts on the clock that stops for jobs on the whole chip."""
    stops = [
        (start, mode_of(job, True).ticks)
        for job, start, whole in zip(part.jobs, *table, strict=True)
        if whole
    ]
    return [
        start - sum(ticks for other, ticks in stops if other < start)
        for start in table.starts
    ]


def from_short(
    part: JobGroup, starts: Sequence[float], whole: Sequence[bool]
) -> Timetable:
    """Return a timetable that is no longer than what such starts stand for.

    Jobs are started in their order, as early as they can; at one moment those
    on the whole chip first.
    """
    order = sorted(range(len(part.jobs)), key=lambda i: (starts[i], not whole[i], i))
    return in_order(part, order, whole)


def ticks_of(job: Job) -> tuple[int, int]:
    """Return ticks on a single core and on the whole chip; 0 for neither."""
    single, whole = (0 if mode is None else mode.ticks for mode in job[2:4])
    return single, whole


def channel_ticks_of(job: Job) -> tuple[int, int]:
    """Return the same of the memory channel."""
    single, whole = (0 if mode is None else mode.channel_ticks for mode in job[2:4])
    return single, whole


def crowded(part: JobGroup) -> Iterator[tuple[int, list[int]]]:
    """Yield the types of cores, 0 or 1, that there may be too few of, and their jobs.

    Jobs of a type are those that may take one of its cores, by their numbers.
    """
    for side, count in enumerate(part.cores):
        users = [
            i for i, job in enumerate(part.jobs) if job[side] and job.single is not None
        ]
        if len(users) > count:
            yield side, users
