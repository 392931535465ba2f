"""``frontier(problem)``: the exact trade-off between time, memory, devices.

The frontier of a problem is the set of its plans that no other plan beats;
docs/frontier.md has the definitions and the proof that every subset of the
objectives is a filter of time, memory and devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from nest.cost.score import Score
from nest.errors import InvalidOptionError
from nest.ir.plan import Plan
from nest.ir.problem import Problem

Objective = Literal["time", "memory", "devices", "cost"]
OBJECTIVES: tuple[Objective, ...] = ("time", "memory", "devices", "cost")

NS_PER_HOUR = 3600 * 10**9


@dataclass(frozen=True)
class FrontierPoint:
    """A plan that no other plan beats, and what it reaches.

    Attributes
    ----------
    devices
        Devices of the cluster that the plan is for.
    step_quanta
        Step time ``T``.
    memory_bytes
        What the fullest device holds.
    plan, score
        The plan, and its price by the shared cost model on that cluster.
    proven
        Whether it is proven that no plan for as many devices beats it.
    """

    devices: int
    step_quanta: int
    memory_bytes: int
    plan: Plan
    score: Score
    proven: bool = True

    @property
    def device_quanta(self) -> int:
        """Devices times step time: what a step is charged for."""
        return self.devices * self.step_quanta


@dataclass(frozen=True)
class Gap:
    """Memory for which better plans than the curve's are not ruled out.

    Attributes
    ----------
    above_bytes, up_to_bytes
        The fullest device of such a plan holds more than the one and at
        most the other.
    lower_bound_quanta
        Step time that every such plan takes at least.
    """

    above_bytes: int
    up_to_bytes: int
    lower_bound_quanta: int


@dataclass(frozen=True)
class Curve:
    """Step time against memory on one cluster.

    Attributes
    ----------
    devices, problem
        Size of the cluster, and the problem on it.
    points
        By ascending memory, hence descending step time; empty if nothing
        fits, or nothing was found in time.
    gaps
        What is not proven; empty unless the time limit passed.
    wall_s
        How long it took.
    """

    devices: int
    problem: Problem
    points: tuple[FrontierPoint, ...]
    gaps: tuple[Gap, ...] = ()
    wall_s: float = 0.0

    @property
    def proven(self) -> bool:
        """Whether the curve is the exact frontier."""
        return not self.gaps

    def at_most(self, memory_bytes: int) -> FrontierPoint | None:
        """Return the fastest point that needs no more memory, if any."""
        fitting = [p for p in self.points if p.memory_bytes <= memory_bytes]
        return fitting[-1] if fitting else None


@dataclass(frozen=True)
class Frontier:
    """The frontier of a problem.

    Attributes
    ----------
    problem
        The problem on its whole cluster.
    objectives
        What is minimised.
    curves
        Time against memory for every number of devices, ascending.
    points
        The frontier in the chosen objectives, ordered by devices and
        memory; one plan per point.
    price_usd_per_hour
        Of a device; ``None`` if unknown.
    unsearched
        Fields of the job that allow plans beyond those searched; the
        frontier is that of the plans without them.
    """

    problem: Problem
    objectives: tuple[Objective, ...]
    curves: tuple[Curve, ...]
    points: tuple[FrontierPoint, ...]
    price_usd_per_hour: float | None = None
    unsearched: tuple[str, ...] = ()

    @property
    def proven(self) -> bool:
        """Whether all of it is proven."""
        return not self.unsearched and all(c.proven for c in self.curves)

    def step_usd(self, point: FrontierPoint) -> float | None:
        """Return what a step of a point costs: price × devices × time."""
        if self.price_usd_per_hour is None:
            return None
        hours = Fraction(
            point.device_quanta * self.problem.quantum_ps,
            1000 * NS_PER_HOUR,
        )
        return float(hours * Fraction(self.price_usd_per_hour))


#: Called with the number of devices and a line of text.
OnProgress = Callable[[int, str], None]


def frontier(
    problem: Problem,
    objectives: Sequence[Objective] = ("time", "memory"),
    *,
    devices: Sequence[int] | None = None,
    time_limit_s: float | None = None,
    workers: int = 1,
    on_progress: OnProgress | None = None,
    **options: Any,
) -> Frontier:
    """Return the exact frontier of a problem.

    Parameters
    ----------
    problem
        The problem.
    objectives
        What to minimise, of :data:`OBJECTIVES`.
    devices
        Sizes of clusters to compare, each the first devices of the
        problem's. By default the whole cluster, and its halves, quarters
        and so on too if ``devices`` or ``cost`` is an objective.
    time_limit_s
        Wall-clock limit for all of it.
    workers
        Processes that share the sizes of clusters.
    on_progress
        Called now and then.

    Raises
    ------
    InvalidOptionError
        If an objective is unknown or twice, ``cost`` is one and the
        cluster has no price, or a number of devices does not fit.
    """
    raise InvalidOptionError("not yet")
