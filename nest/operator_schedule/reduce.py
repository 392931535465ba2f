"""Modes and jobs that a shortest timetable can do without.

Every rule says why; ``formulations/README.md`` has the proofs. Jobs *meet* if
they can run at the same time: neither precedes the other, both can run on
single cores, and there are enough for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nest.operator_schedule.parts import Job, JobGroup, Mode, cut, useful_cores
from nest.operator_schedule.records import Cores


def related(jobs: Sequence[Job]) -> list[int]:
    """Return what precedes or follows each job, and itself, as bits."""
    relatives = ancestors(jobs)
    for i, before in enumerate(relatives):
        relatives[i] |= 1 << i
        for j in range(i):
            if before >> j & 1:
                relatives[j] |= 1 << i
    return relatives


def ancestors(jobs: Sequence[Job]) -> list[int]:
    """Return what precedes each job, as bits."""
    before = [0] * len(jobs)
    for i, job in enumerate(jobs):
        for j in job.after:
            before[i] |= before[j] | 1 << j
    return before


def meeting(jobs: Sequence[Job], cores: Cores) -> list[list[int]]:
    """Return the jobs that each can run beside."""
    bits = related(jobs)
    return [
        [
            j
            for j, other in enumerate(jobs)
            if not bits[i] >> j & 1
            and job.single is not None
            and other.single is not None
            and job.tensor + other.tensor <= cores.tensor
            and job.vector + other.vector <= cores.vector
        ]
        for i, job in enumerate(jobs)
    ]


def with_fewer_modes(group: JobGroup) -> JobGroup:
    """Return a part without modes that a shortest timetable does not need.

    While a job runs on one core, only jobs that meet it run. If all of them, and it,
    fit one after the other into the time that it takes, they can as well: then it runs
    on the whole chip. The memory channel must not lose by that.
    """
    jobs = list(group.jobs)
    changed = True
    while changed:
        changed = False
        for i, meets in enumerate(meeting(jobs, group.cores)):
            job = jobs[i]
            if job.single is None or job.whole is None:
                continue
            alone = sum(alone_ticks(jobs[j]) for j in meets if jobs[j].single)
            if (
                job.whole.channel_ticks <= job.single.channel_ticks
                and job.whole.ticks + alone <= job.single.ticks
            ):
                jobs[i] = job._replace(single=None)
                changed = True
            elif not meets:
                jobs[i] = _alone(job)
                changed = changed or jobs[i] != job
    return JobGroup(tuple(jobs), useful_cores(jobs, group.cores))


def without_channel(group: JobGroup) -> JobGroup:
    """Return a part whose jobs need no memory channel, in fewer modes."""
    jobs = []
    for job in group.jobs:
        single, whole = (
            None if mode is None else Mode(mode.ticks, 0) for mode in job[2:4]
        )
        if single and whole and single.ticks <= whole.ticks:
            whole = None
        jobs.append(job._replace(single=single, whole=whole))
    return with_fewer_modes(JobGroup(tuple(jobs), group.cores))


def alone_ticks(job: Job) -> int:
    """Return ticks of a job alone, with no more of the channel than beside."""
    assert job.single is not None
    ticks = job.single.ticks
    if job.whole is not None and job.whole.channel_ticks <= job.single.channel_ticks:
        ticks = min(ticks, job.whole.ticks)
    return ticks


def _alone(job: Job) -> Job:
    """Return a job that meets no other, in the better of its modes.

    Both modes stay if each is better at something.
    """
    single, whole = job.single, job.whole
    assert single is not None
    assert whole is not None
    if whole.ticks <= single.ticks and whole.channel_ticks <= single.channel_ticks:
        return job._replace(single=None)
    return job


class Pieces(NamedTuple):
    """A part, cut up.

    The jobs ``first`` run alone before all others, the jobs ``last`` after them, in
    this order. ``between`` is what is left, cut where everything meets: numbers of
    jobs, and these as parts of their own, one after the other.
    """

    first: list[int]
    between: list[tuple[list[int], JobGroup]]
    last: list[int]


def in_pieces(group: JobGroup) -> Pieces:
    """Cut a part whose memory channel is not looked at.

    A job that meets no other runs alone. If nothing that is left precedes it
    or if nothing follows it, it can as well run first, or last: without it
    all others keep their order and what they take.
    """
    jobs = group.jobs
    alone = [not meets for meets in meeting(jobs, group.cores)]
    follow: list[set[int]] = [set() for _ in jobs]
    for i, job in enumerate(jobs):
        for j in job.after:
            follow[j].add(i)
    first: list[int] = []
    for i, job in enumerate(jobs):
        if alone[i] and all(j in first for j in job.after):
            first.append(i)
    last: list[int] = []
    for i in range(len(jobs) - 1, -1, -1):
        if alone[i] and i not in first and follow[i] <= {*last}:
            last.append(i)
    remaining = [i for i in range(len(jobs)) if i not in {*first, *last}]
    between = [
        (members, sub_part(group, members))
        for members in cut(ancestors(jobs), remaining)
    ]
    return Pieces(first, between, last[::-1])


def sub_part(group: JobGroup, members: Sequence[int]) -> JobGroup:
    """Return some jobs of a part, as many as there are between two cuts."""
    index_of = {i: index for index, i in enumerate(members)}
    jobs = tuple(
        group.jobs[i]._replace(
            after=tuple(index_of[j] for j in group.jobs[i].after if j in index_of)
        )
        for i in members
    )
    return JobGroup(jobs, useful_cores(jobs, group.cores))
