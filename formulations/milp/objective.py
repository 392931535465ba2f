"""Objective of the MILP model."""

from __future__ import annotations

from formulations.milp.constraints import EQUAL, LESS, MORE
from formulations.milp.variables import Model, Terms
from formulations.milp.windows import limits


def set_objective(model: Model) -> None:
    """Minimize the step time."""
    step_time(model)
    cutoff(model)
    model.engine.setObjective(1 * model.step)


def step_time(model: Model) -> None:
    """``T = Σ o_p τ + Σ_p r_p t_max[p] + Y`` (L1), or (L1')."""
    terms: Terms = [(model.step, -1), (model.sync, 1)]
    for (_, p), tau in model.load.items():
        terms.append((tau, model.instance.once[p]))
    for p, slowest in model.slowest.items():
        terms.append((slowest, model.rounds[p]))
    model.add("step_time", terms, EQUAL)


def cutoff(model: Model) -> None:
    """``T <= incumbent - 1`` (L2), and at least the bound, with slack."""
    if model.cutoff is None:
        return
    least, most = limits(model.sub_problem.bound, model.cutoff)
    model.add("cutoff", [(model.step, 1)], LESS, model.scaled(most))
    model.add("bound", [(model.step, 1)], MORE, model.scaled(least))
