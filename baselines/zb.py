"""``zb``: zero-bubble orders of passes on the stages of the 1F1B optimum.

Source: Qi, Wan, Huang and Lin, "Zero bubble pipeline parallelism", ICLR'24
(arXiv 2401.10241), section 3.1, the heuristic algorithm, and the appendix, the
integer program that the authors start from its order.

Search space
    The plan that ``dp`` finds best under 1F1B: its stages, strategies and
    batches. The order of its passes is that of
    :mod:`nest.search.passes.zero_bubble`, the best of all options; where a step has at
    most 400 passes, it is the start of :mod:`formulations.orders`. As in the paper's
    program, variables say when each pass ends, a stage runs one pass at a time
    behind those that it waits for, and what is in flight fits in memory.

Objective
    The end of the last pass. Times are those of the stages, receives
    included; memory is what a stage has free for micro-batches in flight.

Ignored
    Gradient synchronization behind the last pass.

Deviations
    The authors choose no stages: their layers are cut evenly. What an F keeps
    is kept until its W, as everywhere in nest; in the paper B frees a part.
    Stages that recompute all have no W of their own. The paper's program minimizes
    the longest span of a stage, from its first pass to its last; here every stage
    waits for the last one, so it is the end of all passes. CP-SAT solves it, with
    intervals instead of order variables, for about two seconds. Left out are what
    runs on after the optimizer step without waiting for other stages, and two
    chunks per block, which are the schedule zb-v.
"""

from __future__ import annotations

import dataclasses

from msgspec.structs import replace

from baselines.common import Planner, Search, why_not_turns
from nest.cost.orders import planner_job
from nest.ir.job import ANY_ORDER
from nest.ir.problem import Problem
from nest.search.passes.order_bounds import order_bound
from nest.search.passes.orders import MOST_PROVEN, order_scope, with_order
from nest.search.passes.zero_bubble import best_zero_bubble_order
from nest.search.solver import DpSolver
from nest.solvers.base import (
    Capabilities,
    Report,
    SolveOptions,
    SolverOutput,
    ignore_progress,
)
from nest.solvers.registry import order_prover
from nest.units import quanta_to_ns

#: The part of the time for the best plan under 1F1B.
STAGES_SHARE = 0.9


class ZbSolver(Planner):
    """Order the passes of the best plan under 1F1B."""

    name = "zb"
    capabilities = Capabilities(
        exact=False,
        method="zero bubble (re-impl.): F, B and W on the stages of 1F1B",
        requires=("numpy",),
        searches=frozenset(
            {
                *("overlap", "distributed_optimizer", "granularity"),
                *("sequence_parallel", "order"),
            }
        ),
        objective="end of the last pass, without gradient sync",
    )

    def unsupported(self, problem: Problem) -> str | None:
        """Return why passes cannot be ordered, or ``None``."""
        schedule = problem.job.schedule
        if schedule != ANY_ORDER:
            return (
                f"$.job.schedule: expected {ANY_ORDER!r}, as the planner orders "
                f"passes, got {problem.job.schedule_text!r}; use --schedule {ANY_ORDER}"
            )
        return why_not_turns(problem)

    def solve(
        self, problem: Problem, options: SolveOptions, report: Report = ignore_progress
    ) -> SolverOutput:
        """Return the best order that the rules lead to."""
        return self.run(Search(self.name, problem, options, report))

    def run(self, search: Search) -> SolverOutput:
        """Return the best plan under 1F1B in its best order."""
        problem, limit_s = search.problem, search.deadline.remaining_s
        options = dataclasses.replace(
            search.options,
            time_limit_s=None if limit_s is None else STAGES_SHARE * limit_s,
        )
        job = replace(planner_job(problem.job), virtual_stages=(1,))
        output = DpSolver().solve(replace(problem, job=job), options)
        search.stopped = output.limit is not None
        if output.plan is None:
            return search.answer("no plan under 1F1B fits")
        scope, _ = order_scope(problem, output.plan, search.model)
        best = best_zero_bubble_order(scope)
        num_passes = 3 * len(scope.times) * scope.num_micro_batches
        prove, floor = order_prover(), order_bound(scope)
        if (
            prove is not None
            and num_passes <= MOST_PROVEN
            and floor < best.end
            and not search.deadline.passed
        ):
            best, _ = prove(scope, best, floor, best.end, search.deadline)
        search.improve(
            with_order(output.plan, best), quanta_to_ns(best.end, problem.quantum_ps)
        )
        return search.answer()
