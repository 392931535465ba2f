"""``dp``: the exact structured dynamic program as a solver."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from nest.errors import InvalidOptionError
from nest.ir.plan import Plan
from nest.ir.problem import Problem
from nest.solvers.base import (
    Capabilities,
    Deadline,
    Report,
    SolveOptions,
    SolverOutput,
    ignore_progress,
)

if TYPE_CHECKING:
    from nest.cost.model import CostModel


class DpSolver:
    """Exact over all replicas, micro-batches, stages, strategies, offsets."""

    name: ClassVar[str] = "dp"
    capabilities: ClassVar[Capabilities] = Capabilities(
        exact=True,
        anytime=True,
        warm_start=True,
        method="dynamic program over (closed set, offset, stages left)",
        requires=("numpy",),
        options={
            "max_closed_sets": "refuse graphs with more closed sets "
            "(default 3000)"
        },
    )

    def unsupported(self, problem: Problem) -> str | None:
        """Return ``None``: every problem that fits in memory is searched."""
        return None

    def solve(
        self,
        problem: Problem,
        options: SolveOptions,
        report: Report = ignore_progress,
    ) -> SolverOutput:
        """Return the best plan, or the best known when time runs out.

        Raises
        ------
        UnsupportedProblemError
            If the graph has too many closed sets.
        InvalidPlanError
            If the warm start does not fit the problem.
        """
        deadline = Deadline(options.time_limit_s)
        from nest.cost.model import CostModel
        from nest.dp.closed_sets import MAX_CLOSED_SETS, closed_sets

        limit = _read_limit(options, MAX_CLOSED_SETS)
        model = CostModel(problem)
        upper, plan = _warm_start(problem, options.warm_start, model)
        sets = closed_sets(problem.graph, limit)
        if model.preset.uniform:
            from nest.dp.uniform import search
        else:
            from nest.dp.cases import search
        return search(model, sets, deadline, report, upper, plan)


def _read_limit(options: SolveOptions, default: int) -> int:
    for key in options.extra:
        if key != "max_closed_sets":
            raise InvalidOptionError(
                f"dp.{key}: expected option max_closed_sets, got {key!r}; "
                f"correct the name"
            )
    text = options.extra.get("max_closed_sets", str(default))
    if not text.isdecimal() or int(text) < 1:
        raise InvalidOptionError(
            f"dp.max_closed_sets: expected a whole number >= 1, got {text!r}"
        )
    return int(text)


def _warm_start(
    problem: Problem, plan: Plan | None, model: CostModel
) -> tuple[int | None, Plan | None]:
    """Return step time and plan of a feasible warm start, else nothing."""
    if plan is None:
        return None, None
    from nest.cost.score import score

    result = score(problem, plan, model)
    return (result.step_quanta, plan) if result.feasible else (None, None)
