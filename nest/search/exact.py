"""Which exact search a problem takes: that of its rules and granularity."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module

from nest.cost.model import CostModel
from nest.ir.plan import Plan
from nest.search import best
from nest.search.best import ALONE
from nest.search.closed_sets import ClosedSets
from nest.solvers.base import Deadline, Report, SolveOptions, SolverOutput

#: What finds the best plan of a problem: called with the cost model, the
#: closed sets, the clock, where progress goes, and step time and plan of a
#: warm start.
ExactSearch = Callable[
    [CostModel, ClosedSets, Deadline, Report, int | None, Plan | None],
    SolverOutput,
]


def exact_search(
    model: CostModel, options: SolveOptions = ALONE
) -> ExactSearch:
    """Return the search for the best plan that is not interleaved.

    Parameters
    ----------
    model
        Cost terms of the problem.
    options
        How many processes, and how close the answer must be.
    """
    if model.rules.search is not None:
        module, _, name = model.rules.search.partition(":")
        found: ExactSearch = getattr(import_module(module), name)
        return found
    if model.problem.job.granularity == "layer":
        return partial(_search_layers, options)
    return partial(best.search, options=options)


def _search_layers(
    options: SolveOptions,
    model: CostModel,
    sets: ClosedSets,
    deadline: Deadline,
    report: Report,
    upper: int | None,
    plan: Plan | None,
) -> SolverOutput:
    """Search strategies per layer.

    The best plan with one per stage comes first: it rules out most of the
    rest.
    """
    from nest.search import layers
    from nest.search.interleaved import without_bounds

    first = best.search(
        model, sets, deadline, without_bounds(report), upper, plan, options
    )
    if first.plan is not None:
        upper, plan = first.claimed_quanta, first.plan
    return layers.search(model, sets, deadline, report, upper, plan, options)
