"""Built-in problems: published models and jobs on published machines.

The recipes are stored in ``data/problems.json``. Costs come from
:mod:`nest.models.operators`, shapes from :mod:`nest.models.zoo`, rates
from :mod:`nest.hardware`. All jobs train in bf16 with mixed-precision Adam (2
bytes per weight, 2 per gradient, 12 of state), 1F1B and sequence parallelism,
under the preset ``standard``.
"""

from __future__ import annotations

from itertools import product

from nest.errors import UnknownNameError
from nest.hardware import machine
from nest.ir.base import Struct
from nest.ir.plan import RECOMPUTE, Recompute
from nest.ir.problem import Problem
from nest.models.choices import Choices, Degrees
from nest.models.graphs import build_problem
from nest.models.zoo import architecture
from nest.stored import read_stored


class Recipe(Struct, frozen=True, kw_only=True):
    """How one built-in problem is made.

    Attributes
    ----------
    name
        Keyword on the command line.
    model, machine
        Names of an architecture and of a machine.
    num_devices
        Devices of the cluster.
    global_batch, sequence_length
        Samples per step, tokens per sample.
    micro_batches
        Candidates for ``B``.
    tp, cp, ep
        Degrees that get a cost table.
    zero, recompute
        Choices the job allows.
    layers_per_node
        Consecutive decoder layers that one graph node stands for; a plan
        cannot cut between them. Shrinks the search, not the model.
    """

    name: str
    model: str
    machine: str
    num_devices: int
    global_batch: int
    sequence_length: int
    micro_batches: tuple[int, ...]
    tp: tuple[int, ...] = (1, 2, 4, 8)
    cp: tuple[int, ...] = (1, 2)
    ep: tuple[int, ...] = (1,)
    zero: tuple[int, ...] = (0, 1, 2, 3)
    recompute: tuple[Recompute, ...] = RECOMPUTE
    layers_per_node: int = 1


class RecipeFile(
    Struct,
    frozen=True,
    kw_only=True,
    tag_field="schema",
    tag="nest-built-in-problems/1",
):
    """The stored recipes."""

    problems: tuple[Recipe, ...]


RECIPES = read_stored("nest.models", "problems.json", RecipeFile).problems

#: The problem that is used when none is named.
DEFAULT = "llama2-7b-8"


def names() -> tuple[str, ...]:
    """Return the names of all built-in problems."""
    return tuple(recipe.name for recipe in RECIPES)


def describe(name: str) -> str:
    """Return one line about a built-in problem.

    Raises
    ------
    UnknownNameError
        If there is no such problem; the text lists all names.
    """
    recipe = _recipe(name)
    site = machine(recipe.machine)
    nodes, _ = site.shape(recipe.num_devices)
    grain = recipe.layers_per_node
    blocks = f", decoder layers in blocks of {grain}" if grain > 1 else ""
    return (
        f"{recipe.model}, {recipe.global_batch} × {recipe.sequence_length} "
        f"tokens per step, on {recipe.num_devices} {site.device.name} "
        f"({nodes} nodes of {site.node.fan_out}){blocks}"
    )


def load(name: str) -> Problem:
    """Build a built-in problem.

    Raises
    ------
    UnknownNameError
        If there is no such problem; the text lists all names.
    """
    return build(_recipe(name))


def build(recipe: Recipe) -> Problem:
    """Build the problem of a recipe.

    Degrees that do not divide the model are left out. Cost tables have every
    power of two up to the largest micro-batch as samples per rank, which
    covers every ``b = B/dp`` of micro-batches that are powers of two.

    Raises
    ------
    InvalidProblemError
        If the blocks of decoder layers do not divide the model.
    """
    model, site = architecture(recipe.model), machine(recipe.machine)
    samples = [2**i for i in range(max(recipe.micro_batches).bit_length())]
    length = recipe.sequence_length
    return build_problem(
        model,
        site,
        recipe.num_devices,
        Choices(
            global_batch=recipe.global_batch,
            sequence_length=length,
            micro_batches=recipe.micro_batches,
            degrees=tuple(
                Degrees(*key)
                for key in product(recipe.tp, recipe.cp, recipe.ep, samples)
                if model.why_not_split(*key[:3], length) is None
            ),
            zero=recipe.zero,
            recompute=recipe.recompute,
            layers_per_node=recipe.layers_per_node,
        ),
        name=recipe.name,
    )


def _recipe(name: str) -> Recipe:
    for recipe in RECIPES:
        if recipe.name == name:
            return recipe
    raise UnknownNameError("built-in problem", name, names())
