"""The frontier of step time against memory where plans choose their order of passes.

The frontiers of the schedules with a name come first, each as that of a job with this
schedule alone. Every plan of them is timed pass by pass under each schedule of the job,
and those that no other one beats are the points. Where any order may be, each point
gets an order of its own by list scheduling, within its own memory.

The merged frontier is proven where that of each schedule is, as no plan has another
one. The step time of 1F1B and GPipe that their search minimizes is a formula, so with
one of these, and with any order, one bound on all plans in all orders is what is
proven: it holds for every memory.
"""

from __future__ import annotations

from msgspec.structs import replace

from nest.cost.model import CostModel
from nest.cost.space import has_plain
from nest.errors import InvalidPlanError
from nest.ir.job import ANY_ORDER
from nest.ir.plan import Plan
from nest.search.frontier.exact import interleaved, search
from nest.search.frontier.least import Say, ignore
from nest.search.frontier.staircase import (
    Gap,
    Point,
    Staircase,
    make_point,
    merge_gaps,
    nothing_below,
)
from nest.search.passes.interleaved import bound_all
from nest.search.passes.orders import (
    CLOSED_FORM,
    named_problems,
    ordered_plan,
    without_order,
)
from nest.search.stages.closed_sets import ClosedSets
from nest.search.stages.options import INFINITE
from nest.search.task import SearchTask
from nest.solvers.base import Deadline

#: Parts of the time that is left: for all schedules with a name, for one memory of a
#: schedule that is timed pass by pass, and for orders of points.
NAMED_SHARE, MEMORY_SHARE, ORDERED_SHARE = 0.6, 0.25, 0.5


def ordered(
    model: CostModel,
    sets: ClosedSets,
    deadline: Deadline,
    say: Say = ignore,
    workers: int = 1,
) -> tuple[list[Point], list[Gap]]:
    """Return the frontier of a problem whose plans choose their order.

    Parameters and values as of :func:`nest.search.frontier.exact.search`; every plan
    has its ``order``.
    """
    job = model.problem.job
    staircase, gaps = Staircase(), list[Gap]()
    problems = dict(named_problems(model.problem))
    named_deadline = deadline.share(NAMED_SHARE)
    for index, (name, problem) in enumerate(problems.items()):
        clock = named_deadline.share(1 / (len(problems) - index))
        named_model = CostModel(problem, model.network)
        if has_plain(problem):
            points, named_gaps = search(named_model, sets, clock, say, workers)
        else:
            steps = Staircase()
            for point in staircase.points:
                _add(steps, named_model, without_order(point.plan))
            named_gaps = interleaved(named_model, sets, clock, steps, say, MEMORY_SHARE)
            points = steps.points
        gaps += named_gaps
        for point in points:
            for other in job.schedules:
                _add(staircase, model, replace(point.plan, order=other))
        say(f"{name}: {len(points)} points")
    if job.schedule == ANY_ORDER:
        _order(model, sets, deadline.share(ORDERED_SHARE), staircase, say)
    is_timed = job.schedule != ANY_ORDER and CLOSED_FORM.isdisjoint(job.schedules)
    if not is_timed or len(problems) < len(job.schedules):
        gaps = _bounded(model, sets, deadline, staircase)
    return staircase.points, merge_gaps(gaps)


def _order(
    model: CostModel,
    sets: ClosedSets,
    deadline: Deadline,
    staircase: Staircase,
    say: Say,
) -> None:
    """Give points orders of their own, from the fastest point on."""
    for point in reversed(staircase.points):
        if deadline.passed:
            return
        within = model.within(point.memory_bytes)
        task = SearchTask(within, sets, deadline, upper=point.step_quanta)
        plan = ordered_plan(task, point.plan)
        if plan is not None:
            staircase.add(make_point(model, plan))
        say(f"orders for {point.memory_bytes} bytes")


def _bounded(
    model: CostModel, sets: ClosedSets, deadline: Deadline, staircase: Staircase
) -> list[Gap]:
    """Return the gap of all memories above a bound on all plans in all orders."""
    fastest = staircase.points[-1] if staircase.points else None
    best = fastest.step_quanta if fastest else int(INFINITE)
    task = SearchTask(model, sets, deadline)
    bound, _ = bound_all(task, best, lambda *_: None)
    if bound >= INFINITE:
        return []
    return [Gap(nothing_below(model), model.problem.cluster.memory_bytes(), bound)]


def _add(staircase: Staircase, model: CostModel, plan: Plan) -> None:
    """Add a plan unless it breaks a rule or does not fit."""
    try:
        staircase.add(make_point(model, plan))
    except InvalidPlanError:  # such as other numbers of chunks
        return
