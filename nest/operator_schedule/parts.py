"""A pass as a series of parts, each in a form that equal ones share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nest.operator_schedule.records import Cores, Operator


class Mode(NamedTuple):
    """One way to run: ticks, and those of the memory channel among them."""

    ticks: int
    channel_ticks: int


class Job(NamedTuple):
    """An operator that runs on something, without its name."""

    #: Cores of each type that it takes in mode ``single``: 0 or 1.
    tensor: int
    vector: int
    #: The modes that can be part of a shortest schedule; one may be ``None``.
    single: Mode | None
    whole: Mode | None
    #: Jobs of the same part, by their numbers, that it directly follows; all are
    #: smaller than its own.
    after: tuple[int, ...]

    @property
    def least_ticks(self) -> int:
        """Ticks that it takes at least."""
        return min(mode.ticks for mode in self[2:4] if mode is not None)

    @property
    def least_channel_ticks(self) -> int:
        """Ticks of the memory channel that it takes at least."""
        return min(mode.channel_ticks for mode in self[2:4] if mode is not None)


class JobGroup(NamedTuple):
    """Jobs that are scheduled together, and the cores that they can use.

    Equal parts have equal makespans.
    """

    jobs: tuple[Job, ...]
    cores: Cores


def in_series(
    operators: Sequence[Operator], cores: Cores
) -> list[tuple[tuple[int, ...], JobGroup]]:
    """Cut a pass where all before precedes all that comes after.

    Every operator of a part precedes every operator of the next one, so the
    shortest schedule is that of the parts, one after the other. Operators
    that are free take no time and are left out; what precedes them precedes
    what follows them. The cut is the finest one.

    ``operators`` are a DAG, in any order.

    Parts are numbers of their operators, and these as jobs.
    """
    before = _ancestors(operators)
    running = [i for i, x in enumerate(operators) if x.engine != "none"]
    running.sort(key=lambda i: _key(operators[i]))
    return [
        (tuple(members), _part(operators, members, before, cores))
        for members in cut(before, running)
    ]


def cut(before: Sequence[int], numbers: Sequence[int]) -> list[list[int]]:
    """Cut where all before precedes all that comes after.

    ``before`` is what precedes each number, as bits. Whatever is between two of
    ``numbers`` is among them.

    It is the finest cut, each part in an order that keeps what precedes what.
    """
    bits = sum(1 << i for i in numbers)
    order = sorted(numbers, key=lambda i: (before[i] & bits).bit_count())
    pieces = []
    done = begin = 0
    for end, i in enumerate(order, 1):
        done |= 1 << i
        # The next one needs all that is done. So do those after it: the first
        # that did not would, by its number, follow one that does.
        if end == len(order) or done & ~before[order[end]] == 0:
            pieces.append(order[begin:end])
            begin = end
    return pieces


def _ancestors(operators: Sequence[Operator]) -> list[int]:
    """Return the operators that run before each, as bits; free ones not."""
    index_of = {operator.name: i for i, operator in enumerate(operators)}
    ancestors: dict[int, int] = {}

    def visit(i: int) -> None:
        stack = [i]
        while stack:
            at = stack[-1]
            after = [index_of[name] for name in operators[at].after]
            missing = [j for j in after if j not in ancestors]
            if missing:
                stack += missing
                continue
            stack.pop()
            bits = 0
            for j in after:
                bits |= ancestors[j]
                if operators[j].engine != "none":
                    bits |= 1 << j
            ancestors[at] = bits

    for i in range(len(operators)):
        if i not in ancestors:
            visit(i)
    return [ancestors[i] for i in range(len(operators))]


def _key(operator: Operator) -> tuple[int | str, ...]:
    """Return what tells operators apart but for their names and order."""
    return (
        operator.engine,
        operator.single_ticks or 0,
        operator.whole_ticks or 0,
        operator.single_channel_ticks,
        operator.whole_channel_ticks,
    )


def _part(
    operators: Sequence[Operator],
    members: Sequence[int],
    before: Sequence[int],
    cores: Cores,
) -> JobGroup:
    index_of = {i: j for j, i in enumerate(members)}
    jobs = []
    for i in members:
        direct = [j for j in members if before[i] >> j & 1]
        through = 0
        for j in direct:
            through |= before[j]
        jobs.append(
            _job(
                operators[i], tuple(index_of[j] for j in direct if not through >> j & 1)
            )
        )
    return JobGroup(tuple(jobs), useful_cores(jobs, cores))


def useful_cores(jobs: Sequence[Job], cores: Cores) -> Cores:
    """Return as many cores as jobs that take one; more are of no use."""
    counts = (
        sum((job.tensor, job.vector)[side] for job in jobs if job.single is not None)
        for side in (0, 1)
    )
    return Cores(
        *(
            max(1, min(count, available))
            for count, available in zip(cores, counts, strict=True)
        )
    )


def _job(operator: Operator, after: tuple[int, ...]) -> Job:
    single = whole = None
    if operator.single_ticks is not None:
        single = Mode(operator.single_ticks, operator.single_channel_ticks)
    if operator.whole_ticks is not None:
        whole = Mode(operator.whole_ticks, operator.whole_channel_ticks)
    # The whole chip gains nothing: one core does as well, beside others.
    if (
        single is not None
        and whole is not None
        and single.ticks <= whole.ticks
        and single.channel_ticks <= whole.channel_ticks
    ):
        whole = None
    return Job(
        int(operator.engine in ("tensor", "both")),
        int(operator.engine in ("vector", "both")),
        single,
        whole,
        after,
    )
