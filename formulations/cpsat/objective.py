"""Objective of the CP-SAT model."""

from __future__ import annotations

from formulations.cpsat.variables import Model


def set_objective(model: Model) -> None:
    """Minimise the step time."""
    step_time(model)
    cutoff(model)
    model.engine.minimize(model.step)


def step_time(model: Model) -> None:
    """``T = Σ τ + (M-1) Σ_p t_max[p] + Y`` (15), or (15')."""
    rest = model.sub_problem.split.num_micro_batches - 1
    slowest = sum(model.slowest.values())
    if model.instance.artifact:
        pipeline = (rest + model.sub_problem.num_stages) * slowest
    else:
        pipeline = sum(model.load.values()) + rest * slowest
    model.engine.add(model.step == pipeline + model.sync).with_name(
        "step_time"
    )


def cutoff(model: Model) -> None:
    """``T <= incumbent - 1`` (16); also the domain of ``T``."""
    if model.cutoff is not None:
        model.engine.add(model.step <= model.cutoff).with_name("cutoff")
    model.engine.add(model.step >= model.sub_problem.bound)
