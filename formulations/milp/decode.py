"""From values of the MILP variables to a plan: rounding, and no more."""

from __future__ import annotations

from collections import Counter

from formulations.common import Choice
from formulations.milp.variables import Content, Model
from formulations.search import make_plan
from nest.ir.plan import Plan, Strategy


def decode(name: str, model: Model) -> tuple[Plan, dict[int, Content]]:
    """Return the plan of the engine's solution, and what each slot holds.

    Each layer goes to the slot, each slot to the option with the largest
    value, and as many layers take a choice as its count says; these are
    within the engine's tolerance of an integer.
    """
    slot_of: dict[int, int] = {}
    for layer in model.layers:
        _, slot_of[layer] = max(
            (model.x[layer, s].varValue, s)
            for s in model.slots
            if (layer, s) in model.x
        )
    strategy_of: dict[int, Strategy] = {}
    contents = {}
    for s, slot in model.slots.items():
        _, o = max((model.y[s, o].varValue, o) for o in range(len(slot.options)))
        g, shared = slot.options[o].profile, slot.options[o].strategy
        layers = tuple(i for i in model.inside(s) if slot_of[i] == s)
        taken = _taken(model, s, g, layers)
        for layer, index in taken.items():
            strategy = _choice(model, s, g, index).strategy or shared
            assert strategy is not None
            strategy_of[layer] = strategy
        contents[s] = Content(
            profile=g,
            layers=layers,
            counts=Counter(taken.values()),
            passing=tuple(
                i
                for i, number in model.passes
                if number == s and _passes(model, i, s, slot_of)
            ),
            front=_choice(model, s, g, taken[layers[0]]).layout,
        )
    return make_plan(name, model.task, slot_of, strategy_of), contents


def _choice(model: Model, s: int, g: int, index: tuple[int, int]) -> Choice:
    kind, h = index
    return model.choices(kind, s, g)[h]


def _passes(model: Model, i: int, s: int, slot_of: dict[int, int]) -> bool:
    step = model.instance.graph.increments[i]
    return slot_of[step.producer] > s > min(slot_of[v] for v in step.consumers)


def _taken(
    model: Model, s: int, g: int, layers: tuple[int, ...]
) -> dict[int, tuple[int, int]]:
    """Return kind and choice of every layer of a slot.

    Layers of a kind and a layout are all alike: the first ones take the
    first choice, as many as it has, and so on.
    """
    left = {
        (kind, h): round(model.q[kind, s, g, h].varValue)
        for kind, profile, h, _ in model.counts(s)
        if profile == g
    }
    taken = {}
    for layer in layers:
        kind = model.instance.graph.kind_of[layer]
        layout = 0
        if model.slots[s].mixed:
            _, layout = max(
                (model.at[layer, s, g, j].varValue, j)
                for j in range(len(model.slots[s].profiles[g].layouts))
                if (layer, s, g, j) in model.at
            )
        index = next(
            index
            for index, count in left.items()
            if index[0] == kind
            and count > 0
            and _choice(model, s, g, index).layout == layout
        )
        left[index] -= 1
        taken[layer] = index
    return taken
