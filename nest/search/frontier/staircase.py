"""Points of the frontier, the staircase that they make, and its gaps."""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from nest.cost.model import CostModel
from nest.cost.score import score
from nest.ir.plan import Plan
from nest.search.stages.options import INFINITE, Ints


@dataclass(frozen=True)
class Point:
    """A plan, its step time in quanta, and what its fullest device holds."""

    step_quanta: int
    memory_bytes: int
    plan: Plan


@dataclass(frozen=True)
class Gap:
    """Memory for which faster plans than the curve's are not ruled out."""

    #: Such a plan's fullest device holds more than the one and at most the other.
    above_bytes: int
    up_to_bytes: int
    #: Its step time is at least that.
    lower_bound_quanta: int


def merge_gaps(gaps: Iterable[Gap]) -> list[Gap]:
    """Return gaps that do not overlap, each with the least bound there."""
    gaps = list(gaps)
    ends = {gap.above_bytes for gap in gaps} | {g.up_to_bytes for g in gaps}
    joined: list[Gap] = []
    for low, high in pairwise(sorted(ends)):
        bounds = [
            gap.lower_bound_quanta
            for gap in gaps
            if gap.above_bytes <= low and high <= gap.up_to_bytes
        ]
        if not bounds:
            continue
        last = joined[-1] if joined else None
        if last and (last.up_to_bytes, last.lower_bound_quanta) == (low, min(bounds)):
            joined[-1] = replace(last, up_to_bytes=high)
        else:
            joined.append(Gap(low, high, min(bounds)))
    return joined


def leave_room(gaps: Iterable[Gap], memory_bytes: int, step_quanta: int) -> bool:
    """Whether a plan as small and as fast as that is not ruled out."""
    return any(
        gap.above_bytes < memory_bytes and gap.lower_bound_quanta <= step_quanta
        for gap in gaps
    )


def nothing_below(model: CostModel) -> int:
    """Return a floor of memory that every plan is above."""
    return model.problem.cluster.reserve_bytes() - 1


def make_point(model: CostModel, plan: Plan) -> Point:
    """Return what a plan reaches by the shared cost model.

    The step time of a plan that does not fit is infinite: no staircase takes it. Of
    several types of devices, the path of a plan may fit and its device ranges not.
    """
    result = score(model.problem, plan, model)
    memory_bytes = max(block.memory_bytes for block in result.blocks)
    step_quanta = result.step_quanta if result.feasible else int(INFINITE)
    return Point(step_quanta, memory_bytes, plan)


class Staircase:
    """``U``: the least known step time for every memory."""

    def __init__(self) -> None:
        #: By ascending memory, hence descending time.
        self.points: list[Point] = []

    def add(self, point: Point) -> bool:
        """Add a point unless a known one is as good; drop what it beats."""
        if self.least_time(point.memory_bytes) <= point.step_quanta:
            return False
        self.points = [
            old
            for old in self.points
            if old.memory_bytes < point.memory_bytes
            or old.step_quanta < point.step_quanta
        ]
        bisect.insort(self.points, point, key=lambda p: p.memory_bytes)
        return True

    def least_time(self, memory_bytes: int) -> int:
        """Return ``U(m)``; :data:`INFINITE` below all points."""
        position = bisect.bisect_right(
            self.points, memory_bytes, key=lambda p: p.memory_bytes
        )
        return self.points[position - 1].step_quanta if position else int(INFINITE)

    def arrays(self) -> tuple[Ints, Ints]:
        """Return memories, and ``U`` below the first and from each on."""
        return (
            np.array([p.memory_bytes for p in self.points], dtype=np.int64),
            np.array(
                [int(INFINITE), *(p.step_quanta for p in self.points)], dtype=np.int64
            ),
        )
