"""The least memory per device that some plan needs, to the byte.

Of one strategy per stage, a plan within some bytes per device is a path of stages
(:mod:`nest.search.stages.paths`) whose devices are enough, wherever it sits. So an
interval closes around the least size of each split: a path below, or a proof that there
is none.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from nest.cost.model import CostModel
from nest.cost.rules import get_rules
from nest.cost.space import is_single, leading_runtimes, undivided, virtual_stages
from nest.ir.plan import Plan
from nest.ir.problem import Problem
from nest.search.best import make_plan, open_splits
from nest.search.frontier.levels import NEAR, FrontierSplit, Say, ignore, least_bytes
from nest.search.frontier.staircase import make_point, nothing_below
from nest.search.stages.closed_sets import closed_sets
from nest.search.stages.options import INFINITE, StageOptions
from nest.search.stages.paths import Paths
from nest.search.task import SearchTask
from nest.solvers.base import Deadline, OutOfTimeError


class MemoryBounds(NamedTuple):
    """What is known of the least memory.

    Attributes
    ----------
    refuted_bytes
        No plan fits devices with so much.
    plan, memory_bytes
        A plan, and what its fullest device holds; ``None`` if none is known.
    impossible
        Whether no plan fits the memory that there is.
    """

    refuted_bytes: int
    plan: Plan | None = None
    memory_bytes: int | None = None
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
        items = open_splits(model, sets, deadline, runtimes=leading_runtimes(problem))
    except OutOfTimeError:
        return MemoryBounds(floor)
    splits = [FrontierSplit(item, least_bytes(item.options)) for item in items]
    # One runtime of those whose plans hold the same.
    first = {split.memory_key: split for split in reversed(splits)}
    search = _Search(model, deadline, say, floor)
    search.run(list(first.values()), enough_bytes)
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
    runtimes = leading_runtimes(model.problem)
    items = open_splits(model, task.sets, deadline, _LeanOptions, runtimes)
    splits = [FrontierSplit(item, 0) for item in items]
    for split in {x.memory_key: x for x in reversed(splits)}.values():
        if deadline.passed:
            raise OutOfTimeError
        options, limit = split.item.options, split.item.limit(int(INFINITE))
        path = Paths(options, split.loose_options, limit, capacity).smallest()
        if path is not None:
            return make_plan(options, path.stages)
    return None


class _Search:
    """An interval for every split, and the leanest plan known."""

    def __init__(
        self, model: CostModel, deadline: Deadline, say: Say, floor: int
    ) -> None:
        self.model, self.deadline, self.say = model, deadline, say
        self.floor = floor
        self.capacity = model.problem.cluster.memory_bytes()
        self.plan: Plan | None = None
        self.least: int | None = None
        self.lows: dict[int, int] = {}

    def run(self, splits: list[FrontierSplit], enough_bytes: int | None) -> None:
        """Close the intervals of all splits while there is time.

        At first to a fraction: few splits are left for the rest then.
        """
        splits.sort(key=lambda split: split.least_bytes)
        self.lows = {
            index: max(self.floor, split.least_bytes - 1)
            for index, split in enumerate(splits)
        }
        try:
            for divisor in (NEAR, None):
                for index, split in enumerate(splits):
                    if enough_bytes is not None and (
                        self.least is not None and self.least <= enough_bytes
                    ):
                        return
                    self._close(index, split, divisor)
        except OutOfTimeError:
            return

    def _high(self, divisor: int | None) -> int:
        """Return the most memory that is worth a question."""
        if self.least is None:
            return self.capacity
        return self.least - 1 - (self.least // divisor if divisor else 0)

    def _close(self, index: int, split: FrontierSplit, divisor: int | None) -> None:
        """Find the least memory of a split, if it is below what is known."""
        high = cap = self._high(divisor)
        options = split.item.options
        limit = split.item.limit(int(INFINITE))
        while self.lows[index] < high:
            if self.deadline.passed:
                raise OutOfTimeError
            path = Paths(options, split.loose_options, limit, cap).smallest()
            if path is None:
                self.lows[index] = cap
            else:
                plan = make_plan(options, path.stages)
                point = make_point(self.model, plan)
                assert point.memory_bytes <= cap
                self.plan, self.least = plan, point.memory_bytes
                high = self._high(divisor)
                self.say(f"least memory at most {self.least} bytes")
            cap = (self.lows[index] + high + 1) // 2

    def memory_bounds(self) -> MemoryBounds:
        """Return what is known."""
        low = min(self.lows.values(), default=self.capacity)
        if self.least is None:
            return MemoryBounds(low, impossible=low >= self.capacity)
        return MemoryBounds(min(low, self.least - 1), self.plan, self.least)
