"""The plan with the best guaranteed step time, beside the fastest one.

The *guaranteed* step time of a plan is the upper end of its 90 % interval
(:mod:`nest.uncertainty.intervals`), the one that every command shows for it.
It is no sum of terms, so nothing searches it directly. What is searched are
problems with longer times (:func:`nest.cost.scaled.scaled`): in the direction
in which the best plan so far is hurt most, as cutting planes do, until that
leads to no better plan, and with the times of devices, the network and hosts
longer one at a time. All plans found are candidates, the fastest one among
them, and the one with the least guaranteed figure is taken.

It is proven that no plan's figure is below a bound: the noise is part of every
interval, so no figure is below the bound on step times with the noise alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from msgspec import structs

from nest.cost.magnitude import coarsened
from nest.cost.scaled import Factors, scaled
from nest.cost.score import Score, score
from nest.ir.io import plan_to_json, problem_hash
from nest.ir.plan import Plan
from nest.ir.problem import Problem
from nest.solvers.base import Status
from nest.solvers.cell import one_process
from nest.solvers.result import SolveResult
from nest.uncertainty.headroom import within_memory
from nest.uncertainty.intervals import (
    GUARANTEED,
    Deviations,
    Faster,
    Intervals,
    Shares,
    along,
    covariance_of,
    deviation,
    intervals_of,
    median_of,
    noise_of,
    stored_deviations,
)

#: How often the direction of the best plan so far is searched at most.
ROUNDS = 4

#: A direction that is as near to one searched before leads to the same plan.
NEAR = 0.02

#: What searches a problem.
Search = Callable[[Problem], SolveResult]


@dataclass(frozen=True)
class Candidate:
    """A plan with its figures under the problem.

    ``memory_kept`` is whether the upper end of its 90 % interval of memory fits;
    ``None`` where the problem states its head-room itself.
    """

    plan: Plan
    score: Score
    intervals: Intervals
    memory_kept: bool | None

    @property
    def guaranteed_ns(self) -> float:
        """The step time that it keeps with 95 %."""
        return self.intervals.step_90_ns.high

    @property
    def rank(self) -> tuple[bool, float, int]:
        """What is kept comes first, then the least guaranteed step time."""
        kept = self.memory_kept is not False
        return not kept, self.guaranteed_ns, self.score.step_quanta


@dataclass(frozen=True)
class Robust:
    """The fastest plan and the one with the best guaranteed step time.

    ``fastest`` is what the solver says of the problem, ``answer`` the other plan as an
    answer to it. ``best`` and ``first`` are that plan and the fastest one with their
    figures, and ``kept`` is the fastest plan that keeps its memory, if that is another
    one. ``candidates`` different plans of ``searches`` problems were compared. No
    plan's guaranteed step time is below ``bound_ns``.
    """

    fastest: SolveResult
    answer: SolveResult
    best: Candidate | None = None
    first: Candidate | None = None
    kept: Candidate | None = None
    candidates: int = 0
    searches: int = 1
    bound_ns: float | None = None

    def cost(self, other: Candidate | None) -> float | None:
        """Return how much longer the answer takes than another plan."""
        if self.best is None or other is None:
            return None
        steps = self.best.score.step_quanta, other.score.step_quanta
        return steps[0] / steps[1] - 1

    def gain(self, other: Candidate | None) -> float | None:
        """Return how much less it is guaranteed to take; negative for more."""
        if self.best is None or other is None:
            return None
        return 1 - self.best.guaranteed_ns / other.guaranteed_ns

    @property
    def gap(self) -> float | None:
        """How far the guaranteed step time is from what is proven."""
        if self.best is None or self.bound_ns is None:
            return None
        return 1 - self.bound_ns / self.best.guaranteed_ns

    def to_json(self) -> dict[str, Any]:
        """Return it as part of a document."""
        best, first, kept = self.best, self.first, self.kept
        return {
            "probability": GUARANTEED,
            "guaranteed_step_time_ns": best and best.guaranteed_ns,
            "memory_kept": best and best.memory_kept,
            "lower_bound_ns": self.bound_ns,
            "gap": self.gap,
            "candidates": self.candidates,
            "searches": self.searches,
            "fastest": self.fastest.to_json()
            | {
                "guaranteed_step_time_ns": first and first.guaranteed_ns,
                "memory_kept": first and first.memory_kept,
            },
            "cost": self.cost(first),
            "gain": self.gain(first),
            "fastest_that_keeps_memory": kept
            and {
                "plan": plan_to_json(kept.plan),
                "step_time_ns": kept.score.step_time_ns,
                "guaranteed_step_time_ns": kept.guaranteed_ns,
                "cost": self.cost(kept),
                "gain": self.gain(kept),
            },
        }


@one_process()
def robust_of(
    problem: Problem,
    fastest: SolveResult,
    search: Search,
    numbers: Deviations | None = None,
) -> Robust:
    """Return the plan with the best guaranteed step time that is found.

    The errors of the problem are known (:func:`nest.uncertainty.intervals.why_none`);
    ``fastest`` is what the solver ``search`` says of it. The plan keeps its memory,
    too, if any candidate does; among those that do (all of them, if none does) no
    candidate's guaranteed step time is less. A problem that states its own head-room
    keeps that.
    """
    numbers = numbers or stored_deviations()
    field = _Field(problem, numbers)
    first = field.add(fastest.plan)
    if first is None:
        return Robust(fastest, fastest)
    results = [fastest]

    def run(longer: Problem) -> Candidate | None:
        results.append(search(longer))
        return field.add(results[-1].plan)

    arena, kept = problem, None
    if first.memory_kept is False and field.roomy is not None:
        kept = run(field.roomy)
        arena = problem if kept is None else field.roomy
    searched: list[Shares] = []
    while direction := field.next_direction(searched):
        searched.append(direction)
        run(coarsened(scaled(arena, factors_of(direction))))
    best = field.best
    answer = fastest
    if best.plan is not first.plan:
        answer = _adopted(problem, best, fastest, results)
    bound_ns = None
    if fastest.lower_bound_ns is not None:
        high = numbers.step.high_90 * noise_of(problem, numbers)
        high += median_of(problem, numbers)
        bound_ns = float(fastest.lower_bound_ns) * math.exp(high)
    return Robust(
        fastest,
        answer,
        best,
        first,
        kept,
        len(field.candidates),
        len(results),
        bound_ns,
    )


class _Field:
    """Candidates, each once, and where to search next."""

    def __init__(self, problem: Problem, numbers: Deviations) -> None:
        self.problem = problem
        self.numbers = numbers
        self.covariance = covariance_of(problem, numbers)
        self.noise = noise_of(problem, numbers)
        self.faster = Faster(problem)
        self.roomy = within_memory(problem, numbers)
        self.stated = problem.cluster.headroom_bytes() > 0
        self.candidates: list[Candidate] = []

    @property
    def best(self) -> Candidate:
        """The candidate that is taken."""
        return min(self.candidates, key=lambda candidate: candidate.rank)

    def add(self, plan: Plan | None) -> Candidate | None:
        """Return a plan as a candidate, which it then is, if it is one."""
        if plan is None:
            return None
        plan = structs.replace(plan, problem_hash=problem_hash(self.problem))
        for known in self.candidates:
            if known.plan.stages == plan.stages and known.plan == plan:
                return known
        found = score(self.problem, plan)
        known_of = intervals_of(self.problem, plan, found, self.numbers, self.faster)
        if not found.feasible or known_of is None:
            return None
        kept = None
        if not self.stated:
            kept = (
                self.roomy is not None
                and (
                    score(self.roomy, structs.replace(plan, problem_hash=None))
                ).feasible
            )
        self.candidates.append(Candidate(plan, found, known_of, kept))
        return self.candidates[-1]

    def next_direction(self, searched: Sequence[Shares]) -> Shares | None:
        """Return logarithms of times to search next; ``None`` at the end."""
        for direction in self._directions(len(searched)):
            size = math.hypot(*direction)
            if size and not any(
                math.dist(direction, other) <= NEAR * size for other in searched
            ):
                return direction
        return None

    def _directions(self, number: int) -> Iterator[Shares]:
        """Yield where the best plan is hurt most, then each time alone."""
        high = self.numbers.step.high_90
        if number < ROUNDS:
            shares = self.best.intervals.shares
            s = deviation(shares, self.covariance, self.noise)
            if s:
                worst = along(self.covariance, shares)
                yield Shares(*(high * part / s for part in worst))
        for k in range(len(Shares._fields)):
            part = high * math.sqrt(max(0.0, self.covariance[k][k]))
            yield Shares(*(part * (i == k) for i in range(3)))


def factors_of(direction: Shares) -> Factors:
    """Return by what times are longer in a direction of logarithms.

    A direction may make times of one kind shorter, where a user's own runs
    tell only the sum of two.
    """
    device, network, host = map(math.exp, direction)
    return Factors(device, network, host, waiting=host)


def _adopted(
    problem: Problem,
    best: Candidate,
    fastest: SolveResult,
    results: Sequence[SolveResult],
) -> SolveResult:
    """Return a plan as an answer to the problem, with what is proven of it.

    The bound on every plan's step time holds; the plan need not meet it.
    """
    optimal = fastest.status is Status.OPTIMAL and (
        best.score.step_quanta == fastest.step_quanta
    )
    return replace(
        fastest,
        status=Status.OPTIMAL if optimal else Status.FEASIBLE,
        plan=best.plan,
        score=best.score,
        claimed_quanta=None,
        own_objective_ns=None,
        over_memory_bytes=None,
        detail="" if optimal else "the best guaranteed step time",
        wall_s=sum(result.wall_s for result in results),
    )
