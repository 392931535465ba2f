"""Objective of the CP-SAT model."""

from __future__ import annotations

from formulations.cpsat.variables import Model


def set_objective(model: Model) -> None:
    """Minimize the step time."""
    step_time(model)
    cutoff(model)
    model.engine.minimize(model.step)


def step_time(model: Model) -> None:
    """``T = Σ o_p τ + Σ_p r_p t_max[p] + Y`` (L1), or (L1')."""
    total = model.sync
    for (_, p), tau in model.load.items():
        total += model.instance.once[p] * tau
    for p, slowest in model.slowest.items():
        total += model.rounds[p] * slowest
    model.engine.add(model.step == total).with_name("step_time")


def cutoff(model: Model) -> None:
    """``T <= incumbent - 1`` (L2); also the domain of ``T``."""
    if model.cutoff is not None:
        model.engine.add(model.step <= model.cutoff).with_name("cutoff")
    model.engine.add(model.step >= model.sub_problem.bound)
