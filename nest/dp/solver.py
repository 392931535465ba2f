"""``dp``: the exact structured dynamic program as a solver."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from nest.errors import InvalidOptionError
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
    from nest.dp.closed_sets import ClosedSets
    from nest.ir.plan import Plan

#: Share of the time limit for the exact search where interleaved plans are
#: tried after it.
EXACT_SHARE = 0.9


class DpSolver:
    """Exact over all replicas, micro-batches, stages, strategies, offsets.

    Where the job allows interleaving, uniform interleaved plans are tried
    after that; see :mod:`nest.dp.interleaved`.
    """

    name: ClassVar[str] = "dp"
    capabilities: ClassVar[Capabilities] = Capabilities(
        exact=True,
        anytime=True,
        warm_start=True,
        method="dynamic program over (closed set, offset, stages left)",
        searches=frozenset({"granularity"}),
        requires=("numpy",),
        options={
            "max_closed_sets": "refuse graphs with more closed sets "
            "(default 1000)"
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
            If the warm start does not fit the problem, or memory, or uses
            several strategies in a stage.
        """
        deadline = Deadline(options.time_limit_s)
        from nest.cost.model import CostModel
        from nest.dp.closed_sets import MAX_CLOSED_SETS, closed_sets
        from nest.dp.interleaved import (
            interleave,
            virtual_stages,
            without_bounds,
        )
        from nest.solvers.warm_start import check_warm_start

        limit = _read_limit(options, MAX_CLOSED_SETS)
        model = CostModel(problem)
        plan, upper = options.warm_start, None
        if plan is not None:
            upper = check_warm_start(problem, plan, model)
        sets = closed_sets(problem.graph, limit)
        if not virtual_stages(problem):
            return _search(model, sets, deadline, report, upper, plan)
        remaining_s = deadline.remaining_s
        exact = Deadline(
            None if remaining_s is None else EXACT_SHARE * remaining_s
        )
        plain_report = without_bounds(report)
        plain = _search(model, sets, exact, plain_report, upper, plan)
        return interleave(model, plain, deadline, report)


def _search(
    model: CostModel,
    sets: ClosedSets,
    deadline: Deadline,
    report: Report,
    upper: int | None,
    plan: Plan | None,
) -> SolverOutput:
    """Search all plans that are not interleaved.

    With a strategy per layer, the best plan with one per stage comes first:
    it rules out most of the rest.
    """
    if model.preset.uniform:
        from nest.dp import uniform

        return uniform.search(model, sets, deadline, report, upper, plan)
    if model.preset.ranks_take_turns:
        from nest.dp import piper

        return piper.search(model, sets, deadline, report, upper, plan)
    from nest.dp import cases

    if model.problem.job.granularity == "stage":
        return cases.search(model, sets, deadline, report, upper, plan)
    from nest.dp.interleaved import without_bounds
    from nest.dp.layerwise import LayerTables

    first = cases.search(
        model, sets, deadline, without_bounds(report), upper, plan
    )
    return cases.search(
        model,
        sets,
        deadline,
        report,
        first.claimed_quanta,
        first.plan,
        LayerTables,
    )


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
