"""Built-in problems: published models, jobs and machines in one table.

Costs come from :mod:`nest.workloads.operators`, shapes from
:mod:`nest.workloads.zoo`, rates from :mod:`nest.hardware`. All jobs train in
bf16 with mixed-precision Adam (2 bytes per weight, 2 per gradient, 12 of
state), 1F1B and sequence parallelism, under the preset ``standard``.
"""

from __future__ import annotations

from itertools import product

from nest.errors import UnknownNameError
from nest.hardware import machine
from nest.ir.base import Struct
from nest.ir.plan import RECOMPUTE, Recompute
from nest.ir.problem import Problem
from nest.workloads.architectures import architecture
from nest.workloads.graphs import Choices, Degrees, build_problem


class Recipe(Struct, frozen=True, kw_only=True):
    """One row of the table of built-in problems.

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


RECIPES = (
    Recipe(
        name="llama2-7b-8",
        model="llama2-7b",
        machine="quad-a100-40gb",
        num_devices=8,
        global_batch=1024,
        sequence_length=4096,
        micro_batches=(1, 2),
        tp=(1, 2, 4),
        cp=(1,),
        zero=(0, 1),
        recompute=("none", "full"),
        layers_per_node=4,
    ),
    Recipe(
        name="llama2-7b-16",
        model="llama2-7b",
        machine="dgx-a100",
        num_devices=16,
        global_batch=1024,
        sequence_length=4096,
        micro_batches=(1, 2, 4, 8),
    ),
    Recipe(
        name="llama2-70b-64",
        model="llama2-70b",
        machine="dgx-a100",
        num_devices=64,
        global_batch=1024,
        sequence_length=4096,
        micro_batches=(1, 2, 4),
    ),
    Recipe(
        name="gpt3-175b-64",
        model="gpt3-175b",
        machine="dgx-a100",
        num_devices=64,
        global_batch=1536,
        sequence_length=2048,
        micro_batches=(1, 2, 4, 8),
    ),
    Recipe(
        name="gpt3-175b-256",
        model="gpt3-175b",
        machine="dgx-a100",
        num_devices=256,
        global_batch=1536,
        sequence_length=2048,
        micro_batches=(1, 2, 4, 8, 16, 32),
    ),
    Recipe(
        name="mixtral-8x7b-32",
        model="mixtral-8x7b",
        machine="dgx-h100",
        num_devices=32,
        global_batch=1024,
        sequence_length=4096,
        micro_batches=(1, 2, 4, 8),
        ep=(1, 2, 4, 8),
    ),
)

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
    nodes = site.cluster(recipe.num_devices).topology.levels[-1].fan_out
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
