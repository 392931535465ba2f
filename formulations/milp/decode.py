"""From values of the MILP variables to a plan: rounding, and no more."""

from __future__ import annotations

from dataclasses import dataclass

from formulations.milp.variables import Model
from formulations.search import make_plan
from nest.ir.plan import Plan


@dataclass(frozen=True)
class Decoded:
    """A plan, and the content and profile of each slot."""

    plan: Plan
    layers: dict[int, list[int]]
    profiles: dict[int, int]


def decode(name: str, model: Model) -> Decoded:
    """Return the plan of the engine's solution.

    Each layer goes to the slot, each slot to the option with the largest
    value; these are within the engine's tolerance of 1.
    """
    layers: dict[int, list[int]] = {s: [] for s in model.slots}
    slot_of = {}
    for layer in model.layers:
        _, slot_of[layer] = max(
            (x.varValue, s) for (i, s), x in model.x.items() if i == layer
        )
        layers[slot_of[layer]].append(layer)
    options = {}
    for s in model.slots:
        _, o = max((y.varValue, o) for (r, o), y in model.y.items() if r == s)
        options[s] = model.slots[s].options[o]
    plan = make_plan(
        name,
        model.instance,
        model.sub_problem,
        slot_of,
        {s: option.strategy for s, option in options.items()},
    )
    profiles = {s: option.profile for s, option in options.items()}
    return Decoded(plan, layers, profiles)
