"""The model that a problem keeps, or names by its name and source."""

from __future__ import annotations

from collections.abc import Iterator

from nest.ir.problem import Problem
from nest.models import builtin, zoo
from nest.models.architectures import Architecture
from nest.models.named import model_of_text
from nest.util.stored import find


def stated_models(problem: Problem) -> Iterator[Architecture]:
    """Yield the models that a problem keeps or may name, with the job's FLOPs."""
    stored = model_of_text(problem.model)
    if stored is not None and not other_flops(problem, stored):
        yield stored
    for model in zoo.ARCHITECTURES:
        if _is_named(problem, model) and not other_flops(problem, model):
            yield model


def _is_named(problem: Problem, model: Architecture) -> bool:
    """Whether the problem says that it is about a model."""
    if not problem.source.startswith(f"model: {model.source};"):
        return False
    if problem.name in builtin.names():
        recipe = find("built-in problem", problem.name, builtin.RECIPES)
        return recipe.model == model.name
    return problem.name.startswith(f"{model.name}-")


def other_flops(problem: Problem, model: Architecture) -> str | None:
    """Return why the FLOPs of a model are not those of the job, or ``None``."""
    job = problem.job
    flops, length = job.model_flops_per_sample, job.sequence_length
    if flops is None or length is None:
        return None
    counted = float(model.model_flops(length))
    if counted != flops:
        return (
            f"expected a model of {flops:g} FLOPs per sample, as the job "
            f"says, got {model.name} with {counted:g}"
        )
    return None
