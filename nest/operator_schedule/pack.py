"""The shortest schedule of jobs that all run on single cores."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from nest.operator_schedule.parts import Job, JobGroup
from nest.operator_schedule.records import Cores
from nest.operator_schedule.reduce import sub_part

#: Jobs that are started, in all, before it is given up.
MAX_STARTED = 20_000

#: When each core of a type is free, the first one first.
Free = tuple[int, ...]


class Packed(NamedTuple):
    """The shortest schedule of a block, or a bound on it.

    ``ticks`` are what it takes, or at least if there is no such schedule; then there
    are no ``starts`` of its jobs, which are in their order.
    """

    ticks: int
    starts: tuple[int, ...] | None


def shortest_block(group: JobGroup, block: int, most_ticks: int) -> Packed | None:
    """Return the shortest schedule of a block, if that is short enough.

    Branch and bound: jobs are started in the order of their starts, each as
    early as what precedes it and the cores allow, but none so late that
    another could have been finished before. Of two ways to have started the
    same jobs the one is left that is nowhere later.

    ``block`` are some of its jobs, as bits; all that precedes them, but for themselves,
    is done. Schedules longer than ``most_ticks`` are not looked for.

    ``None`` if that is too much work.
    """
    members = [i for i in range(len(group.jobs)) if block >> i & 1]
    search = _Search(sub_part(group, members).jobs, group.cores, most_ticks)
    if not search.run():
        return None
    if search.starts is None:
        return Packed(most_ticks + 1, None)
    return Packed(search.best, tuple(search.starts))


class _Search:
    """Depth first; what is better than ``best`` is looked for."""

    def __init__(self, jobs: Sequence[Job], cores: Cores, limit_ticks: int) -> None:
        self._jobs = jobs
        self._cores = cores
        self._ticks = [job.single.ticks if job.single else 0 for job in jobs]
        # What follows each job, it included.
        self._ways = list(self._ticks)
        self._next: list[list[int]] = [[] for _ in jobs]
        for i in range(len(jobs) - 1, -1, -1):
            for j in jobs[i].after:
                self._next[j].append(i)
                self._ways[j] = max(self._ways[j], self._ticks[j] + self._ways[i])
        self._started = 0
        self._seen: dict[int, list[tuple[int, ...]]] = {}
        self._now = [0] * len(jobs)
        self.best = limit_ticks + 1
        self.starts: list[int] | None = None

    def run(self) -> bool:
        """Search; return whether it came to an end."""
        return self._extend(
            0, 0, ((0,) * self._cores.tensor, (0,) * self._cores.vector)
        )

    def _extend(self, begun: int, now: int, free: tuple[Free, Free]) -> bool:
        """Start one more job, in all ways; return whether that was all.

        ``begun`` are the jobs that are started, as bits; ``now`` is when the last of
        them starts, ``free`` when the cores are free.
        """
        count = len(self._jobs)
        if begun == (1 << count) - 1:
            self.best = max(
                start + ticks
                for start, ticks in zip(self._now, self._ticks, strict=True)
            )
            self.starts = list(self._now)
            return True
        heads = self._heads(begun, now, free)
        if self._bound(begun, heads, free) >= self.best:
            return True
        if self._is_behind(begun, now, free):
            return True
        ready = [
            i
            for i, job in enumerate(self._jobs)
            if not begun >> i & 1 and all(begun >> j & 1 for j in job.after)
        ]
        first_end = min(heads[i] + self._ticks[i] for i in ready)
        ready.sort(key=lambda i: (heads[i], -self._ways[i]))
        for i in ready:
            start = heads[i]
            if start >= first_end:
                break
            self._started += 1
            if self._started > MAX_STARTED:
                return False
            end = start + self._ticks[i]
            tensor, vector = free
            if self._jobs[i].tensor:
                tensor = tuple(sorted((end, *tensor[1:])))
            if self._jobs[i].vector:
                vector = tuple(sorted((end, *vector[1:])))
            self._now[i] = start
            if not self._extend(begun | 1 << i, start, (tensor, vector)):
                return False
        return True

    def _heads(self, begun: int, now: int, free: tuple[Free, Free]) -> list[int]:
        """Return when each job starts at least; when it did if it has."""
        heads = list(self._now)
        for i, job in enumerate(self._jobs):
            if begun >> i & 1:
                continue
            head = now
            for j in job.after:
                head = max(head, heads[j] + self._ticks[j])
            for side in (0, 1):
                if job[side]:
                    head = max(head, free[side][0])
            heads[i] = head
        return heads

    def _bound(self, begun: int, heads: Sequence[int], free: tuple[Free, Free]) -> int:
        """Return when all ends at least: by paths, and by work.

        Jobs of a type that start late and leave much after them share the
        cores of that type from the first of them on. A core that others keep
        busy for longer need not take any of them.
        """
        bound = max(head + way for head, way in zip(heads, self._ways, strict=True))
        for side in (0, 1):
            waiting = [
                (self._ways[i] - self._ticks[i], heads[i], self._ticks[i])
                for i, job in enumerate(self._jobs)
                if job[side] and not begun >> i & 1
            ]
            waiting.sort(reverse=True)
            for first in {head for _, head, _ in waiting}:
                begins = list(accumulate(max(time, first) for time in free[side]))
                taken = 0
                for tail, head, ticks in waiting:
                    if head >= first:
                        taken += ticks
                        end = min(
                            -(-(begin + taken) // count)
                            for count, begin in enumerate(begins, 1)
                        )
                        bound = max(bound, end + tail)
        return bound

    def _is_behind(self, begun: int, now: int, free: tuple[Free, Free]) -> bool:
        """Whether the same jobs have been started with nothing later."""
        ends = [
            max(now, self._now[i] + self._ticks[i])
            if begun >> i & 1 and any(not begun >> j & 1 for j in self._next[i])
            else 0
            for i in range(len(self._jobs))
        ]
        state = (now, *(max(now, time) for side in free for time in side), *ends)
        states = self._seen.setdefault(begun, [])
        for other in states:
            if all(a <= b for a, b in zip(other, state, strict=True)):
                return True
        states.append(state)
        return False
