"""The exact frontier of step time against memory, on one cluster.

A plan is on the frontier if no plan is at least as fast and holds at most as
much memory on its fullest device. :func:`search` chooses the method:

- One strategy per stage: level by level of memory (:mod:`nest.search.frontier.levels`).
- A strategy per layer: by merging frontiers of layers and stages
  (:mod:`nest.search.frontier.layers`).
- Published cost models with a search of their own: one solve per point
  (:func:`descend`).
- Interleaved plans and schedules timed pass by pass: one solve per point, after all
  others (:func:`interleaved`).

Plans that choose their order of passes have :mod:`nest.search.frontier.orders`.
"""

from __future__ import annotations

from dataclasses import replace

from nest.cost.model import CostModel
from nest.cost.space import has_plain, is_single, virtual_stages
from nest.search import exact
from nest.search.frontier.layers import LayerFrontierSearch
from nest.search.frontier.least import Say, ignore
from nest.search.frontier.levels import FrontierSearch
from nest.search.frontier.staircase import (
    Gap,
    Point,
    Staircase,
    make_point,
    merge_gaps,
    nothing_below,
)
from nest.search.passes.interleaved import interleave
from nest.search.stages.closed_sets import ClosedSets
from nest.search.task import SearchTask
from nest.solvers.base import Deadline, SolverOutput, Status


def search(
    model: CostModel,
    sets: ClosedSets,
    deadline: Deadline,
    say: Say = ignore,
    workers: int = 1,
) -> tuple[list[Point], list[Gap]]:
    """Return the frontier of a problem, and what of it is not proven.

    Parameters
    ----------
    model, sets
        Cost terms and closed sets.
    deadline
        When to give up.
    say
        Told now and then what goes on.
    workers
        Processes that share the search level by level.

    Returns
    -------
    tuple
        Points by ascending memory, and gaps by ascending memory.
    """
    staircase = Staircase()
    gaps: list[Gap] = []
    job = model.problem.job
    if has_plain(model.problem):
        if model.rules.search is None:
            levels = FrontierSearch(model, sets, deadline, say, workers)
            gaps, staircase = levels.run(), levels.staircase
            if job.granularity == "layer" and not is_single(model.problem):
                layers = LayerFrontierSearch(model, sets, deadline, say, workers)
                layers.staircase = staircase
                gaps = layers.run()
        else:
            gaps = descend(model, sets, deadline, staircase, say)
    if virtual_stages(model.problem):
        gaps += interleaved(model, sets, deadline, staircase, say)
    return staircase.points, merge_gaps(gaps)


def descend(
    model: CostModel,
    sets: ClosedSets,
    deadline: Deadline,
    staircase: Staircase,
    say: Say = ignore,
) -> list[Gap]:
    """Find the frontier from its fastest point on; return what is left.

    The ε-constraint method (Haimes, Lasdon and Wismer, *On a Bicriterion
    Formulation*, 1971): the fastest plan within a capacity, then the fastest
    within one byte less than that plan needs, until nothing fits.

    Parameters
    ----------
    model, sets
        Cost terms and closed sets.
    deadline
        When to give up.
    staircase
        Points to start from; gets those that are found.
    say
        Told now and then what goes on.
    """
    cluster = model.problem.cluster
    cap = cluster.memory_bytes()
    while cap >= cluster.reserve_bytes():
        upper = staircase.least_time(cap)
        points = [p for p in staircase.points if p.memory_bytes <= cap]
        task = SearchTask(model.within(cap), sets, deadline)
        if points:
            task = replace(task, upper=upper, plan=points[-1].plan)
        output = exact.search(task)
        if output.plan is not None:
            point = make_point(model, output.plan)
            staircase.add(point)
        if output.limit is not None:
            bound = output.lower_bound_quanta or 0
            return [Gap(nothing_below(model), cap, bound)]
        if output.plan is None:
            return []
        say(f"proven down to {point.memory_bytes} bytes")
        cap = point.memory_bytes - 1
    return []


def interleaved(
    model: CostModel,
    sets: ClosedSets,
    deadline: Deadline,
    staircase: Staircase,
    say: Say = ignore,
    share: float = 1.0,
) -> list[Gap]:
    """Add plans timed pass by pass to a frontier; return what may be missing.

    As :func:`descend`, one solve per point: of such plans alone, within
    the memory of that point, from the plan known. What
    :func:`~nest.search.passes.interleaved.interleave` cannot prove is a gap above its
    bound; a curve that is not proven yet stays so.

    Parameters
    ----------
    model, sets
        Cost terms and closed sets.
    deadline
        When to give up.
    staircase
        The plans that are known; gets those that are found.
    say
        Told now and then what goes on.
    share
        The part of the time that is left for one point.
    """
    cluster = model.problem.cluster
    cap, gaps = cluster.memory_bytes(), list[Gap]()
    while cap >= cluster.reserve_bytes():
        points = [p for p in staircase.points if p.memory_bytes <= cap]
        best = SolverOutput(status=Status.INFEASIBLE)
        if points:
            quanta = points[-1].step_quanta
            best = SolverOutput(
                status=Status.OPTIMAL,
                plan=points[-1].plan,
                claimed_quanta=quanta,
                lower_bound_quanta=quanta,
            )
        task = SearchTask(model.within(cap), sets, deadline.share(share))
        output = interleave(task, best)
        late, bound = deadline.passed, output.lower_bound_quanta or 0
        floor = nothing_below(model)
        if output.plan is None:
            if output.status is not Status.INFEASIBLE:
                gaps.append(Gap(floor, cap, bound))
            return gaps
        point = make_point(model, output.plan)
        staircase.add(point)
        if late:
            return [*gaps, Gap(floor, cap, bound)]
        below = point.memory_bytes - 1
        if output.status is not Status.OPTIMAL:
            gaps.append(Gap(below, cap, bound))
        say(f"interleaved plans searched down to {point.memory_bytes} bytes")
        cap = below
    return gaps
