"""Which exact search a problem takes: that of its rules and granularity."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module

from nest.cost.space import is_single
from nest.search import best, uniform
from nest.search.task import SearchTask, without_bounds
from nest.solvers.base import SolverOutput


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

    The best plan with one per stage comes first: it rules out most of the
    rest.
    """
    from nest.search import layers

    first = best.search(replace(task, report=without_bounds(task.report)))
    if first.plan is not None:
        task = replace(task, upper=first.claimed_quanta, plan=first.plan)
    return layers.search(task)
