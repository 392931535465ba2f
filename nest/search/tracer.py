"""Step time against memory on one cluster, here or in another process."""

from __future__ import annotations

from typing import Any, ClassVar

from nest.cost.model import CostModel
from nest.cost.space import undivided
from nest.ir.io import plan_to_json
from nest.ir.problem import Problem
from nest.search.frontier.exact import search
from nest.search.frontier.least import Say, ignore
from nest.search.frontier.orders import ordered
from nest.search.frontier.staircase import Gap, Point
from nest.search.stages.closed_sets import closed_sets
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
from nest.util.interrupts import Ending


def trace(
    problem: Problem, deadline: Deadline, say: Say = ignore, workers: int = 1
) -> tuple[list[Point], list[Gap]]:
    """Return the frontier of step time and memory, and what is not proven.

    Parameters
    ----------
    problem
        The problem.
    deadline
        When to give up.
    say
        Told now and then what goes on.
    workers
        Processes that share the cases of it.

    Returns
    -------
    tuple
        The points known, by ascending memory; intervals of memory that may
        hold better ones, none if all is proven.

    Raises
    ------
    InvalidProblemError
        If the cost model cannot price the problem.
    UnsupportedProblemError
        If the graph has too many closed sets.
    """
    model = CostModel(problem)
    sets = closed_sets(problem.graph, together=undivided(problem))
    trace_all = ordered if problem.job.plans_order_passes else search
    return trace_all(model, sets, deadline, say, workers)


class FrontierTracer:
    """:func:`trace` for the processes of :mod:`nest.solvers.worker`.

    The answer is in ``extra``: ``points`` (step time in quanta, bytes, plan)
    and ``gaps`` (above, up to, lower bound).
    """

    name: ClassVar[str] = "frontier"
    capabilities: ClassVar[Capabilities] = Capabilities(
        exact=True, method="frontier of step time and memory"
    )

    def unsupported(self, problem: Problem) -> str | None:
        """Return ``None``: what cannot be searched raises."""
        return None

    def solve(
        self, problem: Problem, options: SolveOptions, report: Report = ignore_progress
    ) -> SolverOutput:
        """Trace the frontier."""
        deadline = Deadline(options.time_limit_s)
        with Ending(deadline.expire):
            points, gaps = trace(
                problem, deadline, lambda text: report(Progress(message=text))
            )
        extra: dict[str, Any] = {
            "points": [
                (p.step_quanta, p.memory_bytes, plan_to_json(p.plan)) for p in points
            ],
            "gaps": [
                (g.above_bytes, g.up_to_bytes, g.lower_bound_quanta) for g in gaps
            ],
        }
        return SolverOutput(status=Status.NO_SOLUTION, extra=extra)
