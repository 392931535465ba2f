"""Built-in problems: published models and jobs on published machines.

The recipes are stored in ``data/problems.json``. Costs come from
:mod:`nest.models.operators`, shapes from :mod:`nest.models.zoo`, rates
from :mod:`nest.hardware`. All jobs train in bf16 with mixed-precision Adam (2
bytes per weight, 2 per gradient, 12 of state), 1F1B and sequence parallelism,
under the preset ``standard``.
"""

from __future__ import annotations

from nest.errors import UnknownNameError
from nest.hardware import machine
from nest.ir.problem import Problem
from nest.models.choices import Request, choose
from nest.models.graphs import build_on
from nest.models.zoo import architecture
from nest.util.stored import find, read_records


class Recipe(Request, frozen=True, kw_only=True):
    """How one built-in problem is made: a request for a model on a cluster.

    ``model`` and ``machine`` are names of an architecture and of a machine.
    """

    name: str
    model: str
    machine: str
    num_devices: int


RECIPES = read_records("nest.models", "problems", Recipe)

#: The problem that is used when none is named.
DEFAULT = "llama2-7b-8"


def names() -> tuple[str, ...]:
    """Return the names of all built-in problems."""
    return tuple(recipe.name for recipe in RECIPES)


def describe(name: str) -> str:
    """Return one line about a built-in problem.

    Raises ``UnknownNameError`` if there is no such problem; the text lists all names.
    """
    recipe = find("built-in problem", name, RECIPES)
    site = machine(recipe.machine)
    nodes, _ = site.shape(recipe.num_devices)
    grain = recipe.layers_per_node or 1
    blocks = f", decoder layers in blocks of {grain}" if grain > 1 else ""
    return (
        f"{recipe.model}, {recipe.global_batch} × {recipe.sequence_length} "
        f"tokens per step, on {recipe.num_devices} {site.device.name} "
        f"({nodes} nodes of {site.node.fan_out}){blocks}"
    )


def load(name: str) -> Problem:
    """Build a built-in problem.

    Raises ``UnknownNameError`` if there is no such problem; the text lists all names.
    """
    if name not in names():
        also = "nest.load reads files and instances, nest.read_problem files"
        raise UnknownNameError("built-in problem", name, names(), also)
    return build(find("built-in problem", name, RECIPES))


def build(recipe: Recipe) -> Problem:
    """Build the problem of a recipe.

    Raises ``InvalidOptionError`` if what the recipe chooses does not divide the model.
    """
    model, site = architecture(recipe.model), machine(recipe.machine)
    choices = choose(model, site, recipe.num_devices, recipe)
    machines = [(site, recipe.num_devices)]
    return build_on(model, machines, choices, name=recipe.name)
