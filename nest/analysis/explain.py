"""Explain a plan: where its time goes, what bounds it, what is next to it.

The terms of the step time are those of :mod:`nest.cost.breakdown`. What bounds
the plan is found by solving relaxed problems: without a memory limit, with one
level of the network infinitely fast, with more batch sizes. The gain of a
relaxation is how much shorter the best step becomes; the largest one names
the binding constraint. Neighbors are those of :mod:`nest.analysis.neighbors`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NamedTuple

from msgspec import structs

from nest.analysis.fit import most_memory_bytes, with_memory
from nest.analysis.measured_step import MeasuredStep
from nest.analysis.neighbors import Neighbor, neighbors
from nest.constraints.pins import Restrictions, describe, restrict
from nest.cost.breakdown import STEP_TERMS, Breakdown, breakdown, with_fast_network
from nest.cost.magnitude import in_range
from nest.cost.model import CostModel
from nest.cost.rules import get_rules
from nest.cost.score import Score, score
from nest.cost.space import fills_batches
from nest.ir.io import plan_to_json, problem_hash
from nest.ir.plan import Plan
from nest.ir.problem import Problem
from nest.ir.views import Row, Tabular, ns_text
from nest.solvers.base import Deadline, SolveOptions, Status
from nest.solvers.cell import OnProgress, about, one_process
from nest.solvers.registry import solver_class
from nest.solvers.result import SolveResult
from nest.solvers.run import CellInterrupted, not_run, run_solver
from nest.uncertainty.intervals import Faster, Intervals, equal, intervals_of
from nest.units import quanta_to_ns
from nest.util.interrupts import Interrupted
from nest.util.versions import provenance


class Relaxation(NamedTuple):
    """A problem with one constraint less, by the name of what is relaxed.

    One of its steps replaces ``num_steps`` of those of the original problem.
    """

    name: str
    problem: Problem
    num_steps: int = 1


@dataclass(frozen=True)
class Relaxed:
    """What is relaxed, and what the solver says about it."""

    name: str
    result: SolveResult
    num_steps: int = 1

    @property
    def step_quanta(self) -> Fraction | None:
        """Time of one step of the problem, in quanta."""
        quanta = self.result.step_quanta
        return None if quanta is None else Fraction(quanta, self.num_steps)

    @property
    def proven(self) -> bool:
        """Whether no plan of the relaxed problem is faster."""
        return self.result.status is Status.OPTIMAL


@dataclass(frozen=True)
class Preferred:
    """The best plan under settings that somebody prefers.

    ``text`` has the settings as on the command line; without a plan there are no
    ``terms`` of a step time.
    """

    text: str
    result: SolveResult
    terms: Breakdown | None


@dataclass(frozen=True, repr=False)
class Explanation(Tabular):
    """What there is to say about a plan.

    Attributes
    ----------
    problem, plan, score
        The problem, the plan, and its score.
    terms
        Where its step time goes.
    optimum
        The best plan of the problem; ``None`` if nothing was solved.
    relaxed
        What relaxed problems lead to.
    neighbours
        What single moves lead to.
    preferred
        The preferred setting, if one was given.
    intervals
        Within which its figures are; ``None`` where nothing is known of it.
    equal
        Of every neighbor, whether its step time and the plan's differ by
        less than the noise; ``None`` where nothing is known of it.
    measured
        What would explain a measured step, if one was given.
    """

    problem: Problem
    plan: Plan
    score: Score
    terms: Breakdown
    neighbours: tuple[Neighbor, ...]
    equal: tuple[bool | None, ...]
    optimum: SolveResult | None = None
    relaxed: tuple[Relaxed, ...] = ()
    preferred: Preferred | None = None
    intervals: Intervals | None = None
    measured: MeasuredStep | None = None

    def __repr__(self) -> str:
        """Return what it is in a line."""
        binding = self.binding
        text = "" if binding is None else f", bound by {binding.name}"
        return (
            f"<Explanation of {ns_text(self.score.step_time_ns)} a step of "
            f"{self.plan.text}{text}>"
        )

    def to_rows(self) -> list[Row]:
        """Return a row per term of the step time, the longest first."""
        step = self.score.step_quanta
        return [
            {
                "term": STEP_TERMS[name],
                "time_ns": quanta_to_ns(value, self.problem.quantum_ps),
                "share": value / step if step else None,
            }
            for name, value in sorted(
                self.terms.step.items(), key=lambda item: -item[1]
            )
        ]

    @property
    def equal_to_best(self) -> bool | None:
        """Whether it and the best plan differ by less than the noise."""
        best = self.optimum
        if self.intervals is None or best is None or best.step_quanta is None:
            return None
        assert best.plan is not None
        assert best.score is not None
        other = intervals_of(self.problem, best.plan, best.score)
        assert other is not None
        return equal(
            self.problem,
            (self.score.step_quanta, best.step_quanta),
            (self.intervals.shares, other.shares),
        )

    @property
    def failed(self) -> bool:
        """Whether a solver broke its promises."""
        results = [self.optimum, *(item.result for item in self.relaxed)]
        results.append(self.preferred.result if self.preferred else None)
        return any(r is not None and r.outcome.failed for r in results)

    @property
    def fullest(self) -> int:
        """Position of the block that needs the most memory."""
        sizes = [block.memory_bytes for block in self.score.blocks]
        return sizes.index(max(sizes))

    @property
    def slack_bytes(self) -> int:
        """Memory left on the fullest device; negative if it is too small."""
        need = self.score.blocks[self.fullest].memory_bytes
        return self.problem.cluster.memory_bytes() - need

    @property
    def binding(self) -> Relaxed | None:
        """The relaxation that gains most over the optimum, if any gains.

        Where no plan fits, the one with the best plan that then does.
        """
        if self.optimum is None:
            return None
        best = self.optimum.step_quanta
        if best is None and self.optimum.status is not Status.INFEASIBLE:
            return None
        found = [
            (relaxed.step_quanta, i, relaxed)
            for i, relaxed in enumerate(self.relaxed)
            if relaxed.step_quanta is not None
            and (best is None or relaxed.step_quanta < best)
        ]
        return min(found)[2] if found else None


def relaxations(problem: Problem) -> Iterator[Relaxation]:
    """Yield the problem with one constraint less at a time.

    Batches are doubled only where that leaves the counting rules room, and
    step times in the range of the problem's quanta.
    """
    if problem.cluster.memory_bytes() < most_memory_bytes(problem):
        unlimited = with_memory(problem, most_memory_bytes(problem))
        yield Relaxation("memory without limit", unlimited)
    parts = problem.cluster.topology.parts
    for part, name in parts.items():
        yield Relaxation(
            f"network {name} infinitely fast", with_fast_network(problem, part)
        )
    if len(parts) > 1:
        fast = with_fast_network(problem)
        yield Relaxation("whole network infinitely fast", fast)
    job = problem.job
    sizes = {
        size
        for size in {2 * size for size in job.micro_batches}
        if size not in job.micro_batches
        and size <= job.global_batch
        and fills_batches(job, size)
    }
    # Ranks that take turns have one size.
    if sizes and not get_rules(problem.preset).round_robin:
        sizes |= set(job.micro_batches)
        wider = structs.replace(job, micro_batches=tuple(sorted(sizes)))
        more = structs.replace(problem, job=wider)
        if in_range(more):
            yield Relaxation("micro-batches twice as large allowed", more)
    if not get_rules(problem.preset).steady_state:
        wider = structs.replace(job, global_batch=2 * job.global_batch)
        double = structs.replace(problem, job=wider)
        if in_range(double):
            yield Relaxation("global batch doubled (time per old step)", double, 2)


@one_process()
def explain(
    problem: Problem,
    plan: Plan,
    *,
    prefer: Restrictions | None = None,
    search: bool = True,
    solver: str = "dp",
    options: SolveOptions | None = None,
    on_progress: OnProgress | None = None,
) -> Explanation:
    """Explain a legal plan, which may need too much memory.

    All searches share the time limit of ``options``. Without ``search`` there are only
    the terms and the neighbors, and nothing is solved. ``prefer`` are settings to
    compare with, as for :func:`~nest.constraints.pins.restrict`.

    Raises
    ------
    InvalidPlanError
        If the plan does not belong to the problem.
    InvalidOptionError
        If the preferred settings contradict each other or the problem.
    Interrupted
        On Ctrl-C, with the explanation as far as it is known.
    """
    options = options or SolveOptions()
    model = CostModel(problem)
    plan_score = score(problem, plan, model)
    pinned = restrict(problem, prefer, option="--prefer")
    optimum, relaxed, preferred = None, [], None
    stopped: CellInterrupted | None = None
    clock = Deadline(options.time_limit_s)
    others = tuple(relaxations(problem)) if search else ()
    num_left = search + len(others) + bool(prefer)

    def solve(name: str, other: Problem, start: Plan | None) -> SolveResult:
        nonlocal num_left
        left_s = clock.remaining_s
        warm = replace(
            options,
            warm_start=_start(other, start, solver),
            time_limit_s=left_s and left_s / num_left,
        )
        num_left -= 1
        if left_s == 0:
            return not_run(other, solver, warm)
        return run_solver(other, solver, warm, about(name, on_progress))

    try:
        if search:
            optimum = solve("best plan", problem, plan)
            for item in others:
                # The best plan stays one, and its step takes no longer.
                start = optimum.plan if item.num_steps == 1 else None
                result = solve(item.name, item.problem, start)
                relaxed.append(Relaxed(item.name, result, item.num_steps))
        if prefer:
            text = describe(prefer, {}, "").strip()
            result = solve(text, pinned, None)
            terms = None
            if result.plan is not None and result.score is not None:
                terms = breakdown(problem, result.plan, result.score)
            preferred = Preferred(text, result, terms)
    except CellInterrupted as interrupt:
        # What was solved before is known; what was not, is left out.
        stopped = interrupt
        if search and optimum is None:
            optimum = interrupt.result
    known = intervals_of(problem, plan, plan_score)
    near = tuple(neighbors(problem, plan, model))
    explanation = Explanation(
        problem=problem,
        plan=plan,
        score=plan_score,
        terms=breakdown(problem, plan, plan_score),
        neighbours=near,
        optimum=optimum,
        relaxed=tuple(relaxed),
        preferred=preferred,
        intervals=known,
        equal=_equal(problem, plan_score, known, near),
    )
    if stopped is not None:
        raise Interrupted(explanation) from stopped
    return explanation


def _equal(
    problem: Problem, found: Score, known: Intervals | None, near: Sequence[Neighbor]
) -> tuple[bool | None, ...]:
    """Return which neighbours' step times are those of the plan."""
    if known is None:
        return (None,) * len(near)
    faster = Faster(problem)

    def same(neighbor: Neighbor) -> bool | None:
        if neighbor.plan is None or neighbor.score is None:
            return None
        other = intervals_of(problem, neighbor.plan, neighbor.score, faster=faster)
        if other is None:
            return None
        return equal(
            problem,
            (neighbor.score.step_quanta, found.step_quanta),
            (other.shares, known.shares),
        )

    return tuple(map(same, near))


def _start(problem: Problem, plan: Plan | None, solver: str) -> Plan | None:
    """Return the plan if the solver can start from it."""
    able = solver_class(solver).capabilities
    if plan is None or not able.warm_start or able.beyond(plan):
        return None
    return plan if score(problem, plan).feasible else None


def to_document(found: Explanation, solver: str) -> dict[str, Any]:
    """Return the ``nest-explain/1`` document of an explanation."""
    problem = found.problem

    def ns(quanta: int | Fraction | None) -> int | float | None:
        if quanta is None:
            return None
        if isinstance(quanta, Fraction):
            return float(quanta * problem.quantum_ps / 1000)
        return quanta_to_ns(quanta, problem.quantum_ps)

    def all_ns(terms: Any) -> dict[str, Any]:
        return {name: ns(value) for name, value in terms.items()}

    def solved(result: SolveResult | None) -> dict[str, Any] | None:
        if result is None:
            return None
        return result.summary() | {"plan": plan_to_json(result.plan)}

    capacity = problem.cluster.memory_bytes()
    preferred = found.preferred
    binding = found.binding
    return {
        "schema": "nest-explain/1",
        "problem": problem.name,
        "problem_hash": problem_hash(problem),
        "solver": solver,
        "plan": plan_to_json(found.plan),
        "score": found.score.to_json(),
        "intervals": found.intervals and found.intervals.to_json(),
        "equal_to_best": found.equal_to_best,
        "measured": found.measured and found.measured.to_json(),
        "terms_ns": all_ns(found.terms.step),
        "blocks": [
            {
                "load_terms_ns": all_ns(terms),
                "memory_bytes": block.memory_bytes,
                "free_bytes": capacity - block.memory_bytes,
            }
            for terms, block in zip(found.terms.blocks, found.score.blocks, strict=True)
        ],
        "slowest_block": found.terms.slowest + 1,
        "fullest_block": found.fullest + 1,
        "free_bytes": found.slack_bytes,
        "optimum": solved(found.optimum),
        "binding": None if binding is None else binding.name,
        "relaxed": [
            {
                "name": relaxed.name,
                "step_ns": ns(relaxed.step_quanta),
                "proven": relaxed.proven,
                **(solved(relaxed.result) or {}),
            }
            for relaxed in found.relaxed
        ],
        "neighbours": [
            {
                "name": near.name,
                "detail": near.detail,
                "verdict": near.verdict,
                "reason": near.reason,
                "step_time_ns": near.score and near.score.step_time_ns,
                "difference_ns": near.score
                and ns(near.score.step_quanta - found.score.step_quanta),
                "equal_to_plan": same,
                "memory_bytes": near.memory_bytes if near.score else None,
                "free_bytes": capacity - near.memory_bytes if near.score else None,
                "plan": plan_to_json(near.plan),
            }
            for near, same in zip(found.neighbours, found.equal, strict=True)
        ],
        "preferred": None
        if preferred is None
        else {
            "prefer": preferred.text,
            "terms_ns": preferred.terms and all_ns(preferred.terms.step),
            **(solved(preferred.result) or {}),
        },
        **provenance(),
    }
