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
    """``T = Σ τ + (M-1) t_max + Y`` (15) or ``(M+S-1) t_max + Y`` (15')."""
    num_micro_batches = model.sub_problem.case.num_micro_batches
    terms: Terms = [(model.step, -1), (model.sync, 1)]
    if model.instance.preset.step_time == "sum-max":
        terms += [(tau, 1) for tau in model.load.values()]
        terms.append((model.slowest, num_micro_batches - 1))
    else:
        slots = num_micro_batches + model.sub_problem.num_stages - 1
        terms.append((model.slowest, slots))
    model.add("step_time", terms, EQUAL)


def cutoff(model: Model) -> None:
    """``T <= incumbent - 1`` (16)."""
    if model.cutoff is not None:
        limit = model.quanta(model.cutoff)
        model.add("cutoff", [(model.step, 1)], LESS, limit)
    bound = model.quanta(model.sub_problem.bound)
    model.add("bound", [(model.step, 1)], MORE, bound)
