"""The plan with the best guaranteed step time, beside the fastest one.

A guaranteed step time is that of a problem with longer times
(:func:`nest.intervals.pessimistic`), which solvers search like any other: an
exact one proves its answer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from msgspec import structs

from nest.cost.score import score
from nest.intervals import GUARANTEED, Pessimistic
from nest.ir.io import problem_hash
from nest.ir.plan import Plan
from nest.ir.problem import Problem
from nest.solvers.base import Status
from nest.solvers.result import SolveResult


@dataclass(frozen=True)
class Robust:
    """Two plans, each with its step time and its guaranteed one.

    Attributes
    ----------
    pessimistic
        Where guaranteed figures come from.
    fastest
        What the solver says of the problem.
    safest
        What it says of the pessimistic problem.
    answer
        The plan with the lower guaranteed figure, under the problem.
    guaranteed_quanta, fastest_quanta
        Step times of the answer and of the fastest plan under the
        pessimistic problem, the noise not counted; ``None`` without a plan.
    """

    pessimistic: Pessimistic
    fastest: SolveResult
    safest: SolveResult
    answer: SolveResult
    guaranteed_quanta: int | None
    fastest_quanta: int | None

    @property
    def proven(self) -> bool:
        """Whether no plan has a lower guaranteed step time."""
        return (
            self.safest.status is Status.OPTIMAL
            and self.safest.step_quanta == self.guaranteed_quanta
        )

    @property
    def cost(self) -> Fraction | None:
        """How much longer the answer takes than the fastest plan."""
        least, quanta = self.fastest.step_quanta, self.answer.step_quanta
        if quanta is None or not least:
            return None
        return Fraction(quanta - least, least)

    @property
    def gain(self) -> Fraction | None:
        """How much less it is guaranteed to take."""
        if self.guaranteed_quanta is None or not self.fastest_quanta:
            return None
        less = self.fastest_quanta - self.guaranteed_quanta
        return Fraction(less, self.fastest_quanta)

    def guaranteed_ns(self, quanta: int | None) -> float | None:
        """Return a guaranteed step time, the noise counted."""
        if quanta is None:
            return None
        quantum_ns = self.pessimistic.problem.quantum_ps / 1000
        return self.pessimistic.noise * quanta * quantum_ns

    def to_json(self) -> dict[str, Any]:
        """Return it as part of a document."""
        cost, gain = self.cost, self.gain
        return {
            "probability": GUARANTEED,
            "factors": self.pessimistic.factors._asdict()
            | {"noise": self.pessimistic.noise},
            "guaranteed_step_time_ns": self.guaranteed_ns(
                self.guaranteed_quanta
            ),
            "proven": self.proven,
            "fastest": self.fastest.to_json()
            | {
                "guaranteed_step_time_ns": self.guaranteed_ns(
                    self.fastest_quanta
                )
            },
            "cost": None if cost is None else float(cost),
            "gain": None if gain is None else float(gain),
        }


def robust_of(
    problem: Problem,
    worse: Pessimistic,
    fastest: SolveResult,
    safest: SolveResult,
) -> Robust:
    """Return which of two plans is guaranteed to take less.

    Parameters
    ----------
    problem, worse
        The problem, and the pessimistic one.
    fastest, safest
        What a solver says of them.
    """

    def guaranteed(result: SolveResult) -> int | None:
        if result.plan is None or result.step_quanta is None:
            return None
        return score(worse.problem, result.plan).step_quanta

    known, best = guaranteed(fastest), guaranteed(safest)
    if best is None or (known is not None and known <= best):
        return Robust(worse, fastest, safest, fastest, known, known)
    assert safest.plan is not None
    answer = _adopted(problem, safest.plan, fastest, safest)
    return Robust(worse, fastest, safest, answer, best, known)


def _adopted(
    problem: Problem, plan: Plan, fastest: SolveResult, safest: SolveResult
) -> SolveResult:
    """Return a plan as an answer to the problem, with what is proven of it.

    The bound on every plan's step time holds; the plan need not meet it.
    """
    found = score(problem, plan)
    optimal = fastest.status is Status.OPTIMAL and (
        found.step_quanta == fastest.step_quanta
    )
    return replace(
        fastest,
        status=Status.OPTIMAL if optimal else Status.FEASIBLE,
        outcome=safest.outcome,
        plan=structs.replace(plan, problem_hash=problem_hash(problem)),
        score=found,
        claimed_quanta=None,
        own_objective_ns=None,
        over_memory_bytes=None,
        detail="" if optimal else "the best guaranteed step time",
        wall_s=fastest.wall_s + safest.wall_s,
    )
