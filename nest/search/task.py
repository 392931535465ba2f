"""What every exact search is given."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from nest.cost.model import CostModel
from nest.ir.plan import Plan
from nest.search.stages.closed_sets import ClosedSets
from nest.solvers.base import Deadline, Progress, Report, SolveOptions, ignore_progress


@dataclass(frozen=True)
class SearchTask:
    """A problem to search for its best plan."""

    #: Cost terms and closed sets.
    model: CostModel
    sets: ClosedSets
    #: The clock, and where progress goes.
    deadline: Deadline
    report: Report = ignore_progress
    #: Step time in quanta and plan of a warm start, or ``None``. Only better plans
    #: count; without a plan, ``upper`` is a mere limit.
    upper: int | None = None
    plan: Plan | None = None
    #: How many processes, and how close the answer must be.
    options: SolveOptions = field(default_factory=SolveOptions)


def without_bounds(report: Report) -> Report:
    """Return a report that passes on no lower bound.

    What the exact search proves is about plans that are not interleaved.
    """

    def forward(progress: Progress) -> None:
        report(replace(progress, lower_bound_quanta=None))

    return forward
