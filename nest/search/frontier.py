"""The exact frontier of step time against memory, on one cluster.

The memory axis is cut into *levels*, intervals ``(floor, cap]`` of what the
fullest device holds. A plan of a level is on the frontier only if it is
faster than ``U(floor)``, where ``U(m)`` is the least time of any known plan
with at most ``m`` bytes. Every level of every ``(R, B)`` is bounded by itself
as :mod:`nest.search.best` bounds the one level it has; where too much is left
it is cut again, at the steps of ``U``. What is left of all levels goes into
one label search. Memory below the floor counts as the floor there: a plan
that ends below it belongs to another level.

Strategies per layer, and published models with searches of their own, take
one solve per point; see :func:`descend`.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from nest.cost.model import CostModel
from nest.cost.score import score
from nest.ir.plan import Plan
from nest.ir.problem import Problem
from nest.search.best import OpenSplit, make_plan, merged, open_splits
from nest.search.bounds import Places, Target
from nest.search.closed_sets import ClosedSets, closed_sets
from nest.search.labels import LabelSearch
from nest.search.options import (
    INFINITE,
    LooseOptions,
    PairOptions,
    StageOptions,
)
from nest.search.parallel import Link, OutOfTimeError, share
from nest.search.paths import Path, Paths
from nest.solvers.base import (
    Capabilities,
    Deadline,
    Progress,
    Report,
    SolveOptions,
    SolverOutput,
    Status,
    ignore_progress,
)
from nest.solvers.result import plan_to_json
from nest.units import ceil_div

#: Capacities at which plans to start from are looked for.
FIRST_CAPS = 8

#: Parts that an interval of memory is cut into, and levels at most.
NUM_PARTS = 4
MOST_LEVELS = 64

#: So few options of a level go to the labels; more are bounded again in a
#: part of its memory.
ENOUGH = 4_000

#: Memory within this fraction of another is not worth a cut.
NEAR = 256

Say = Callable[[str], None]


def ignore(text: str) -> None:
    """Say nothing."""


@dataclass(frozen=True)
class Point:
    """A plan, its step time in quanta, and what its fullest device holds."""

    step_quanta: int
    memory_bytes: int
    plan: Plan


@dataclass(frozen=True)
class Gap:
    """Memory for which faster plans than the curve's are not ruled out.

    Attributes
    ----------
    above_bytes, up_to_bytes
        Such a plan's fullest device holds more than the one and at most the
        other.
    lower_bound_quanta
        Its step time is at least that.
    """

    above_bytes: int
    up_to_bytes: int
    lower_bound_quanta: int


def merge_gaps(gaps: Iterable[Gap]) -> list[Gap]:
    """Return gaps that do not overlap, each with the least bound there."""
    gaps = list(gaps)
    ends = {gap.above_bytes for gap in gaps} | {g.up_to_bytes for g in gaps}
    merged: list[Gap] = []
    for low, high in pairwise(sorted(ends)):
        bounds = [
            gap.lower_bound_quanta
            for gap in gaps
            if gap.above_bytes <= low and high <= gap.up_to_bytes
        ]
        if not bounds:
            continue
        last = merged[-1] if merged else None
        if last and (last.up_to_bytes, last.lower_bound_quanta) == (
            low,
            min(bounds),
        ):
            merged[-1] = replace(last, up_to_bytes=high)
        else:
            merged.append(Gap(low, high, min(bounds)))
    return merged


def nothing_below(model: CostModel) -> int:
    """Return a floor of memory that every plan is above."""
    return model.problem.cluster.device.reserve_bytes - 1


def make_point(model: CostModel, plan: Plan) -> Point:
    """Return what a plan reaches by the shared cost model."""
    found = score(model.problem, plan, model)
    memory_bytes = max(block.memory_bytes for block in found.blocks)
    return Point(found.step_quanta, memory_bytes, plan)


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
        place = bisect.bisect_right(
            self.points, memory_bytes, key=lambda p: p.memory_bytes
        )
        return self.points[place - 1].step_quanta if place else int(INFINITE)

    def arrays(self) -> tuple[Ints, Ints]:
        """Return memories, and ``U`` below the first and from each on."""
        return (
            np.array([p.memory_bytes for p in self.points], dtype=np.int64),
            np.array(
                [int(INFINITE), *(p.step_quanta for p in self.points)],
                dtype=np.int64,
            ),
        )
