"""Objective of the CP-SAT model."""

from __future__ import annotations

from formulations.cpsat.variables import Model


def set_objective(model: Model) -> None:
    """Minimise the step time."""
    step_time(model)
    cutoff(model)
    model.engine.minimize(model.step)


def step_time(model: Model) -> None:
    """``T = Σ τ + (M-1) t_max + Y`` (15) or ``(M+S-1) t_max + Y`` (15')."""
    num_micro_batches = model.sub_problem.case.num_micro_batches
    if model.instance.preset.step_time == "sum-max":
        pipeline = (
            sum(model.load.values()) + (num_micro_batches - 1) * model.slowest
        )
    else:
        slots = num_micro_batches + model.sub_problem.num_stages - 1
        pipeline = slots * model.slowest
    model.engine.add(model.step == pipeline + model.sync).with_name(
        "step_time"
    )


def cutoff(model: Model) -> None:
    """``T <= incumbent - 1`` (16); also the domain of ``T``."""
    if model.cutoff is not None:
        model.engine.add(model.step <= model.cutoff).with_name("cutoff")
    model.engine.add(model.step >= model.sub_problem.bound)
