"""Which exact search a problem takes: that of its rules and granularity."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module

from nest.cost.space import has_plain, is_single, virtual_stages
from nest.search import best, uniform
from nest.search.task import SearchTask, without_bounds
from nest.solvers.base import Deadline, SolverOutput, Status

#: Share of the time limit for the exact search where plans timed pass by pass
#: are tried after it.
EXACT_SHARE = 0.6


def search(task: SearchTask) -> SolverOutput:
    """Search for the best plan that is not interleaved."""
    model = task.model
    if model.rules.search is not None:
        module, _, name = model.rules.search.partition(":")
        program: Callable[[SearchTask], SolverOutput]
        program = getattr(import_module(module), name)
        return program(task)
    if is_single(model.problem):
        return uniform.search(task)
    if model.problem.job.granularity == "layer":
        return _search_layers(task)
    return best.search(task)


def _search_layers(task: SearchTask) -> SolverOutput:
    """Search strategies per layer.

    The best plan with one per stage comes first: it rules out most of the rest.
    """
    from nest.search.layers import best as layers

    first = best.search(replace(task, report=without_bounds(task.report)))
    if first.plan is not None:
        task = replace(task, upper=first.claimed_quanta, plan=first.plan)
    return layers.search(task)


def search_schedule(task: SearchTask, with_bounds: bool = True) -> SolverOutput:
    """Search all plans of one schedule, those timed pass by pass last.

    Without bounds these are tried alone, for all the time that is left.
    """
    if not virtual_stages(task.model.problem):
        return search(task)
    from nest.search.passes.interleaved import interleave

    if not has_plain(task.model.problem):
        return interleave(task, _known(task), with_bounds)
    remaining_s = task.deadline.remaining_s
    limit_s = None if remaining_s is None else EXACT_SHARE * remaining_s
    plain = search(
        replace(task, deadline=Deadline(limit_s), report=without_bounds(task.report))
    )
    return interleave(task, plain, with_bounds)


def _known(task: SearchTask) -> SolverOutput:
    """Return what is known before anything is searched."""
    if task.plan is None:
        return SolverOutput(status=Status.INFEASIBLE)
    return SolverOutput(
        status=Status.FEASIBLE, plan=task.plan, claimed_quanta=task.upper
    )
