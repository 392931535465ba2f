"""Short schedules without an engine; many meet a lower bound.

Jobs start as early as they can, those with the longest way to the end first;
of the modes, one at a time is changed as long as that helps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nest.operator_schedule.bounds import weights, work_ticks
from nest.operator_schedule.parts import Job, JobGroup
from nest.operator_schedule.timetable import Timetable, in_order, length_ticks, mode_of

#: Rounds of changes, at most.
ROUNDS = 4


def quick_timetable(group: JobGroup, enough_ticks: int) -> Timetable:
    """Return a good timetable of a part.

    No timetable is shorter than ``enough_ticks``: the first that is so long is
    returned.
    """
    best = min(
        (_timetable(group, whole) for whole in set(_choices(group))),
        key=lambda table: (length_ticks(group, table), table),
    )
    both = [
        i
        for i, job in enumerate(group.jobs)
        if job.single is not None and job.whole is not None
    ]
    length = length_ticks(group, best)
    for _ in range(ROUNDS):
        before = length
        for i in both:
            if length <= enough_ticks:
                return best
            whole = list(best.whole)
            whole[i] = not whole[i]
            table = _timetable(group, tuple(whole))
            ticks = length_ticks(group, table)
            if ticks < length:
                best, length = table, ticks
        if length == before:
            break
    return best


def _timetable(group: JobGroup, whole: Sequence[bool]) -> Timetable:
    """Start the job with the longest way to the end first."""
    ways = [0] * len(group.jobs)
    for i in range(len(group.jobs) - 1, -1, -1):
        job = group.jobs[i]
        ways[i] += mode_of(job, whole[i]).ticks
        for j in job.after:
            ways[j] = max(ways[j], ways[i])
    # Ticks are at least 1, so what precedes a job has the longer way.
    order = sorted(range(len(group.jobs)), key=lambda i: -ways[i])
    return in_order(group, order, whole)


def _choices(group: JobGroup) -> Iterator[tuple[bool, ...]]:
    """Yield modes to begin with."""
    yield tuple(job.single is None for job in group.jobs)
    yield tuple(_is_faster(job) for job in group.jobs)
    # What the greatest bound by work takes to be cheaper.
    weight = max(
        weights(group), key=lambda weight: work_ticks(group.jobs, group.cores, weight)
    )
    over, under = weight
    tensor, vector = group.cores
    chosen = []
    for job in group.jobs:
        if job.single is None or job.whole is None:
            chosen.append(job.single is None)
            continue
        single = job.single.ticks * (
            job.tensor * over * vector + job.vector * (under - over) * tensor
        )
        chosen.append(job.whole.ticks * under * tensor * vector < single)
    yield tuple(chosen)


def _is_faster(job: Job) -> bool:
    if job.single is None or job.whole is None:
        return job.single is None
    return job.whole.ticks < job.single.ticks
