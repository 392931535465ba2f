"""A lower and an upper bound on the length of the shortest schedule.

Bounds on the makespan of a part, in ticks, see ``formulations/README.md``:

- the longest path of least ticks;
- the least ticks of the memory channel;
- work: in any window every core has no more ticks than the window. A job on
  the whole chip takes all cores of both types; weighing the types shares what
  it takes between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nest.operator_schedule.checks import checked_cores
from nest.operator_schedule.parts import Job, JobGroup, in_series
from nest.operator_schedule.records import Cores, Operator

#: Weight of the tensor cores, that of the vector cores being the rest: a
#: numerator and a denominator.
Weight = tuple[int, int]

TENSOR: Weight = (1, 1)
VECTOR: Weight = (0, 1)


def bounds(operators: Sequence[Operator], cores: Cores) -> tuple[int, int]:
    """Return bounds on the shortest schedule, without an engine.

    ``operators`` are a DAG, in any order. No schedule is shorter than the first, in
    ticks, and one is no longer than the second: one operator after the other, each the
    faster way.

    Raises ``InvalidProblemError`` as :func:`~nest.operator_schedule.schedule` does.
    """
    cores = checked_cores(operators, cores)
    lower = upper = 0
    for _, group in in_series(operators, cores):
        lower += lower_bound_ticks(group)
        upper += sum(job.least_ticks for job in group.jobs)
    return lower, upper


def lower_bound_ticks(group: JobGroup) -> int:
    """Return what no schedule of a part is shorter than."""
    jobs = group.jobs
    if len(jobs) == 1:
        return jobs[0].least_ticks
    heads, tails = heads_and_tails(jobs)
    bound = max(
        head + job.least_ticks + tail
        for job, head, tail in zip(jobs, heads, tails, strict=True)
    )
    bound = max(bound, sum(job.least_channel_ticks for job in jobs))
    for weight in weights(group):
        bound = max(bound, work_ticks(jobs, group.cores, weight))
    for head, tail, inside in _windows(jobs, heads, tails):
        for weight in (TENSOR, VECTOR):
            work = work_ticks(inside, group.cores, weight)
            bound = max(bound, head + work + tail)
    return bound


def heads_and_tails(jobs: Sequence[Job]) -> tuple[list[int], list[int]]:
    """Return the least ticks before each job, and those after it."""
    heads = [0] * len(jobs)
    tails = [0] * len(jobs)
    for i, job in enumerate(jobs):
        for j in job.after:
            heads[i] = max(heads[i], heads[j] + jobs[j].least_ticks)
    for i in range(len(jobs) - 1, -1, -1):
        for j in jobs[i].after:
            tails[j] = max(tails[j], tails[i] + jobs[i].least_ticks)
    return heads, tails


def _windows(
    jobs: Sequence[Job], heads: Sequence[int], tails: Sequence[int]
) -> Iterable[tuple[int, int, list[Job]]]:
    """Yield heads and tails, and the jobs that have at least these."""
    for head in set(heads):
        late = [i for i, value in enumerate(heads) if value >= head]
        for tail in {tails[i] for i in late}:
            if head or tail:
                yield head, tail, [jobs[i] for i in late if tails[i] >= tail]


def weights(group: JobGroup) -> Iterable[Weight]:
    """Yield the weights at which the work of a part may be greatest.

    It is a concave function of the weight, of pieces that are lines: the
    greatest is at an end of one, where a job changes its cheaper mode.
    """
    yield TENSOR
    yield VECTOR
    tensor, vector = group.cores
    for job in group.jobs:
        if job.single is None or job.whole is None:
            continue
        # whole = single (w / tensor cores + (1 - w) / vector cores)
        single, whole = job.single.ticks, job.whole.ticks
        over = (whole * vector - single * job.vector) * tensor
        under = single * (vector * job.tensor - tensor * job.vector)
        if under < 0:
            over, under = -over, -under
        if 0 < over < under:
            yield over, under


def work_ticks(jobs: Iterable[Job], cores: Cores, weight: Weight) -> int:
    """Return ticks that some jobs take at least, one type weighed or both.

    The sum over all jobs of ``min(whole, single (w t / T + (1 - w) v / V))``, rounded
    up: ``t`` and ``v`` are the cores it takes, ``T`` and ``V`` those there are.
    """
    over, under = weight
    tensor, vector = cores
    scale = under * tensor * vector
    tensor_share, vector_share = over * vector, (under - over) * tensor
    total = 0
    for job in jobs:
        ways = []
        if job.whole is not None:
            ways.append(scale * job.whole.ticks)
        if job.single is not None:
            ways.append(
                job.single.ticks
                * (job.tensor * tensor_share + job.vector * vector_share)
            )
        total += min(ways)
    return -(-total // scale)
