"""Which model a problem trains: its record, where it can be told."""

from __future__ import annotations

from nest.errors import InvalidOptionError
from nest.frameworks.layers import Placement
from nest.ir.problem import Problem
from nest.models.architectures import Architecture
from nest.models.stated import other_flops, stated_models


def model_of(
    problem: Problem, placement: Placement, named: Architecture | None = None
) -> Architecture:
    """Return the model of a problem.

    A problem keeps the name of its model and where its shape comes from. A record
    counts only if it has as many blocks as the graph and as many FLOPs as the job says.
    ``named`` is the model that the user names, if any.

    Raises ``InvalidOptionError`` if it cannot be told, or does not fit the problem.
    """
    if named is not None:
        reason = _why_not(problem, placement, named)
        if reason is not None:
            raise InvalidOptionError(
                f"--model: {reason}; name the model of the problem"
            )
        return named
    for model in stated_models(problem):
        if not _why_not(problem, placement, model):
            return model
    raise InvalidOptionError(
        f"--model: expected the model of {problem.name}, got none, and the "
        f"problem does not say; pass its name or its config.json"
    )


def _why_not(problem: Problem, placement: Placement, model: Architecture) -> str | None:
    """Return why a model does not fit a problem, or ``None``."""
    if model.layers != placement.layers:
        return (
            f"expected a model of {placement.layers} blocks, as the graph "
            f"has, got {model.name} with {model.layers}"
        )
    modules = sum(tower.modules for tower in model.towers)
    if modules != placement.mtp:
        return (
            f"expected a model with as many modules for multi-token prediction as the "
            f"graph, {placement.mtp}, got {model.name} with {modules}"
        )
    return other_flops(problem, model)
