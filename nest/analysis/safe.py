"""The recommended plan of a model fits with a margin for errors of memory.

The first search ignores the margin. If its plan leaves the margin free, it is the
recommended plan, and one search was enough. Otherwise a second search finds the
recommended plan, and the first plan is the faster one that may not fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from msgspec import structs

from nest.cost.score import score
from nest.ir.io import plan_to_json, problem_hash
from nest.ir.problem import Problem
from nest.solvers.base import Deadline, SolveOptions, Status
from nest.solvers.result import Outcome, SolveResult
from nest.uncertainty.headroom import chance_text
from nest.uncertainty.intervals import fit_probability

#: Share of the time limit that the search without the margin may take.
FREE_SHARE = 0.2

#: Searches a problem, for at most so many seconds.
Search = Callable[[Problem, float | None], SolveResult]


@dataclass(frozen=True)
class Faster:
    """A plan without headroom that is faster, but may not fit.

    Its step takes ``fraction`` less time than that of the recommended plan.
    """

    result: SolveResult
    fraction: float
    fit_probability: float

    def __str__(self) -> str:
        return (
            f"{100 * self.fraction:.1f} % faster, fits "
            f"{chance_text(self.fit_probability)}: --headroom 0"
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as part of a document."""
        return {
            "step_time_ns": self.result.step_time_ns,
            "fraction": round(self.fraction, 6),
            "fit_probability": round(self.fit_probability, 4),
            "proven": self.result.status is Status.OPTIMAL,
            "plan": plan_to_json(self.result.plan),
        }


@dataclass(frozen=True)
class SafeAnswer:
    """The recommended plan, and the one that is faster but may not fit.

    The answer has no margin where no plan leaves it free.
    """

    answer: SolveResult
    faster: Faster | None = None
    has_margin: bool = True


def solve_safely(
    problem: Problem, free: Problem, search: Search, limit_s: float | None = None
) -> SafeAnswer:
    """Return the best plan that leaves a margin, and what is faster.

    ``free`` is the problem without the margin; both searches share ``limit_s`` seconds.
    """
    clock = Deadline(limit_s)
    part_s = None if limit_s is None else FREE_SHARE * limit_s
    first = search(free, part_s)
    if first.outcome is not Outcome.SOLVED or (first.status is Status.INFEASIBLE):
        return SafeAnswer(first, has_margin=False)
    moved = _moved(first, problem)
    if moved is not None and first.limit is None:
        return SafeAnswer(moved)
    second = search(problem, clock.remaining_s)
    if second.step_quanta is None and moved is not None:
        return SafeAnswer(moved)
    if second.step_quanta is None and first.step_quanta is not None:
        return SafeAnswer(first, has_margin=False)
    return SafeAnswer(second, faster_of(second, first, free))


def options_for(
    problem: Problem, options: SolveOptions, limit_s: float | None
) -> SolveOptions:
    """Return options for one of two searches.

    A warm start that does not leave the margin free is none.
    """
    start = options.warm_start
    if start is not None:
        start = structs.replace(start, problem_hash=None)
        if not score(problem, start).feasible:
            start = None
    return replace(options, time_limit_s=limit_s, warm_start=start)


def faster_of(answer: SolveResult, other: SolveResult, free: Problem) -> Faster | None:
    """Return what another answer, without the margin, gains; if anything."""
    step, other_step = answer.step_quanta, other.step_quanta
    if step is None or other_step is None or other_step >= step:
        return None
    assert other.plan is not None
    assert other.score is not None
    probability = fit_probability(free, other.plan, other.score)
    return Faster(other, 1 - other_step / step, probability)


def _moved(result: SolveResult, problem: Problem) -> SolveResult | None:
    """Return an answer as one to the problem with the margin, if it is one.

    Its plan is the best there, too, and the lower bound holds there.
    """
    if result.plan is None:
        return None
    name = problem_hash(problem)
    plan = structs.replace(result.plan, problem_hash=name)
    verdict = score(problem, plan)
    if not verdict.feasible:
        return None
    return replace(result, plan=plan, score=verdict, problem_hash=name)
