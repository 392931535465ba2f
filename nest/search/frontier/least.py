"""The least memory per device that some plan needs, to the byte.

Of one strategy per stage, a plan within some bytes per device is a path of stages
(:mod:`nest.search.stages.paths`) whose devices are enough, wherever it sits. So an
interval closes around the least size of each split: a path below, or a proof that there
is none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from nest.cost.model import CostModel
from nest.cost.rules import get_rules
from nest.cost.space import is_single, undivided, virtual_stages
from nest.ir.plan import Plan
from nest.ir.problem import Problem
from nest.search.frontier.staircase import nothing_below
from nest.search.stages.closed_sets import closed_sets
from nest.search.stages.options import INFINITE, StageOptions
from nest.search.stages.paths import Paths
from nest.search.stages.splits import OpenSplit, make_plan, open_splits
from nest.search.task import SearchTask
from nest.solvers.base import Deadline, OutOfTimeError

#: At first the least memory is found to this fraction of it: few splits are left then.
#: A level narrower than that is not cut.
NEAR = 64

Say = Callable[[str], None]


def ignore(text: str) -> None:
    """Ignore a message."""


class MemoryBounds(NamedTuple):
    """What is known of the least memory."""

    #: No plan fits devices with so much.
    refuted_bytes: int
    #: A plan, and what its fullest device holds; ``None`` if none is known.
    plan: Plan | None = None
    memory_bytes: int | None = None
    #: Whether no plan fits the memory that there is.
    impossible: bool = False


def covers(problem: Problem) -> bool:
    """Whether :func:`least_memory` looks at all plans of a problem.

    Each stage with one strategy, none timed pass by pass, devices of one
    type, and a preset without a program of its own.
    """
    return (
        not virtual_stages(problem)
        and (problem.job.granularity == "stage" or is_single(problem))
        and len(problem.cluster.types) == 1
        and get_rules(problem.preset).search is None
    )


def least_memory(
    problem: Problem,
    deadline: Deadline,
    say: Say = ignore,
    enough_bytes: int | None = None,
) -> MemoryBounds:
    """Return how little memory per device some plan needs.

    Parameters
    ----------
    problem
        A problem that is covered (:func:`covers`), its devices with more
        memory than any plan is asked for.
    deadline
        When to give up; what is known then is returned.
    say
        Told now and then what goes on.
    enough_bytes
        Stop at a plan with so little.

    Raises
    ------
    UnsupportedProblemError
        If the graph has too many closed sets.
    """
    model = CostModel(problem)
    floor = nothing_below(model)
    try:
        sets = closed_sets(problem.graph, together=undivided(problem))
        splits = open_splits(model, sets, deadline)
    except OutOfTimeError:
        return MemoryBounds(floor)
    capacity = problem.cluster.memory_bytes()

    search = LeastMemory(capacity, splits, deadline, say, lambda *_: None, floor)
    with suppress(OutOfTimeError):
        for divisor in (NEAR, None):
            search.close(divisor, -1 if enough_bytes is None else enough_bytes)
    return search.memory_bounds()


class _LeanOptions(StageOptions):
    """Stages with one micro-batch in flight: no order of passes needs fewer."""

    def __init__(self, *fields: Any) -> None:
        super().__init__(*fields)
        self._inflight = np.ones_like(self._inflight)


def leanest_plan(task: SearchTask) -> Plan | None:
    """Return a plan that fits with one micro-batch in flight, or ``None``.

    Of a problem that is covered (:func:`covers`). Raises ``OutOfTimeError``.
    """
    model, deadline = task.model, task.deadline
    capacity = model.problem.cluster.memory_bytes()
    splits = open_splits(model, task.sets, deadline, _LeanOptions)
    for split in {x.memory_key: x for x in reversed(splits)}.values():
        deadline.check()
        options, limit = split.options, split.limit(int(INFINITE))
        path = Paths(options, split.loose_options, limit, capacity).smallest()
        if path is not None:
            return make_plan(options, path.stages)
    return None


class LeastMemory:
    """The interval of the least memory of every split, and the leanest plan known.

    Parameters
    ----------
    capacity, splits, deadline, say
        Memory of the devices, open splits, the clock, and where messages go.
    offer
        Called with a split and a plan of a path; of several types of devices it may
        not fit, and the path is a bound alone.
    floor
        Every plan needs more memory.
    """

    def __init__(
        self,
        capacity: int,
        splits: Sequence[OpenSplit],
        deadline: Deadline,
        say: Say,
        offer: Callable[[OpenSplit, Plan], object],
        floor: int = -1,
    ) -> None:
        self.capacity, self.deadline = capacity, deadline
        self.say, self.offer = say, offer
        # One runtime of those whose plans need equal memory.
        first = {split.memory_key: split for split in reversed(splits)}
        self.splits = sorted(first.values(), key=lambda split: split.least_bytes)
        self.lows = [max(floor, split.least_bytes - 1) for split in self.splits]
        self.plan: Plan | None = None
        self.min_bytes: int | None = None

    def close(self, divisor: int | None, enough_bytes: int = -1) -> None:
        """Close all intervals, to a fraction of the memory or to the byte."""
        for index, split in enumerate(self.splits):
            if self.min_bytes is not None and self.min_bytes <= enough_bytes:
                return
            self._close(index, split, divisor)

    def high(self, divisor: int | None) -> int:
        """Return the most memory that is worth a question."""
        if self.min_bytes is None:
            return self.capacity
        return self.min_bytes - 1 - (self.min_bytes // divisor if divisor else 0)

    def _close(self, index: int, split: OpenSplit, divisor: int | None) -> None:
        """Find the least memory of a split, if it is below what is known."""
        # Few splits need less than the least known memory: test it first.
        high = cap = self.high(divisor)
        options = split.options
        limit = split.limit(int(INFINITE))
        while self.lows[index] < high:
            self.deadline.check()
            path = Paths(options, split.loose_options, limit, cap).smallest()
            if path is None:
                self.lows[index] = cap
            else:
                self.plan = make_plan(options, path.stages)
                # Device ranges of another type may hold more than the path.
                self.min_bytes = path.memory_bytes
                self.offer(split, self.plan)
                high = self.high(divisor)
                self.say(f"least memory at most {self.min_bytes} bytes")
            cap = (self.lows[index] + high + 1) // 2

    def memory_bounds(self) -> MemoryBounds:
        """Return what is known."""
        low = min(self.lows, default=self.capacity)
        if self.min_bytes is None:
            return MemoryBounds(low, impossible=low >= self.capacity)
        return MemoryBounds(min(low, self.min_bytes - 1), self.plan, self.min_bytes)
