"""From values of the MILP variables to a plan: rounding, and no more."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from formulations.milp.variables import Content, Model
from formulations.search import make_plan
from nest.ir.plan import Plan, Strategy


@dataclass(frozen=True)
class Decoded:
    """A plan, and what each slot holds."""

    plan: Plan
    contents: dict[int, Content]


def decode(name: str, model: Model) -> Decoded:
    """Return the plan of the engine's solution.

    Each layer goes to the slot, each slot to the option with the largest
    value, and as many layers take a choice as its count says; these are
    within the engine's tolerance of an integer.
    """
    slot_of = {}
    for layer in model.layers:
        _, slot_of[layer] = max(
            (x.varValue, s) for (i, s), x in model.x.items() if i == layer
        )
    strategy_of: dict[int, Strategy] = {}
    contents = {}
    for s, slot in model.slots.items():
        _, o = max((y.varValue, o) for (r, o), y in model.y.items() if r == s)
        option = slot.options[o]
        layers = tuple(layer for layer in model.layers if slot_of[layer] == s)
        chosen = _choices(model, s, option.profile, layers)
        for layer, (kind, h) in chosen.items():
            choice = model.choice(kind, s, option.profile, h)
            strategy = choice.strategy or option.strategy
            assert strategy is not None
            strategy_of[layer] = strategy
        contents[s] = Content(option.profile, layers, Counter(chosen.values()))
    plan = make_plan(
        name, model.instance, model.sub_problem, slot_of, strategy_of
    )
    return Decoded(plan, contents)


def _choices(
    model: Model, s: int, g: int, layers: tuple[int, ...]
) -> dict[int, tuple[int, int]]:
    """Return kind and choice of every layer of a slot.

    Layers of a kind and a layout are all alike: the first ones take the
    first choice, as many as it has, and so on.
    """
    graph = model.instance.graph
    left = {
        (kind, h): round(q.varValue)
        for (kind, slot, profile, h), q in model.q.items()
        if (slot, profile) == (s, g)
    }
    chosen = {}
    for layer in layers:
        kind = graph.kind_of[layer]
        layout = (
            max(
                (at.varValue, j)
                for (i, slot, profile, j), at in model.at.items()
                if (i, slot, profile) == (layer, s, g)
            )[1]
            if model.slots[s].mixed
            else 0
        )
        h = next(
            h
            for (of, h), count in left.items()
            if of == kind
            and count > 0
            and model.choice(kind, s, g, h).layout == layout
        )
        left[kind, h] -= 1
        chosen[layer] = kind, h
    return chosen
