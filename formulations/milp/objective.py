"""Objective of the MILP model."""

from __future__ import annotations

from formulations.milp.constraints import EQUAL, LESS, MORE
from formulations.milp.variables import Model, Terms


def set_objective(model: Model) -> None:
    """Minimise the step time."""
    step_time(model)
    cutoff(model)
    model.engine.setObjective(1 * model.step)


def step_time(model: Model) -> None:
    """``T = Σ τ + (M-1) Σ_p t_max[p] + Y`` (15), or (15')."""
    slots = model.sub_problem.split.num_micro_batches - 1
    terms: Terms = [(model.step, -1), (model.sync, 1)]
    if model.instance.artifact:
        slots += model.sub_problem.num_stages
    else:
        terms += [(tau, 1) for tau in model.load.values()]
    terms += [(slowest, slots) for slowest in model.slowest.values()]
    model.add("step_time", terms, EQUAL)


def cutoff(model: Model) -> None:
    """``T <= incumbent - 1`` (16)."""
    if model.cutoff is not None:
        limit = model.scaled(model.cutoff)
        model.add("cutoff", [(model.step, 1)], LESS, limit)
    bound = model.scaled(model.sub_problem.bound)
    model.add("bound", [(model.step, 1)], MORE, bound)
