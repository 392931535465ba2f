"""From values of the CP-SAT variables to a plan, and from a plan to hints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from formulations.common import Start
from formulations.cpsat.variables import Model
from formulations.search import make_plan
from nest.ir.plan import Plan, Strategy

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpSolver


def decode(name: str, model: Model, solver: CpSolver) -> Plan:
    """Return the plan of the solver's solution."""
    slot_of = {layer: s for (layer, s), x in model.x.items() if solver.value(x)}
    shared = {
        s: model.slots[s].options[o].strategy
        for (s, o), y in model.y.items()
        if solver.value(y)
    }
    strategy_of = {}
    for (layer, s, g, h), z in model.z.items():
        if solver.value(z):
            kind = model.instance.graph.kind_of[layer]
            strategy = model.choices(kind, s, g)[h].strategy or shared[s]
            assert strategy is not None
            strategy_of[layer] = strategy
    return make_plan(name, model.task, slot_of, strategy_of)


def add_hints(model: Model, start: Start) -> None:
    """Hint the slot and the choice of every layer and every option."""
    for (layer, s), x in model.x.items():
        model.engine.add_hint(x, int(start.slot_of[layer] == s))
    strategies: dict[int, set[Strategy | None]] = {}
    for layer, s in start.slot_of.items():
        strategies.setdefault(s, {None}).add(start.strategy_of[layer])
    profiles = set()
    for (s, o), y in model.y.items():
        option = model.slots[s].options[o]
        place = (option.offset, option.devices)
        taken = start.places[s] == place and option.strategy in strategies[s]
        model.engine.add_hint(y, int(taken))
        if taken:
            profiles.add((s, option.profile))
    for (layer, s, g, h), z in model.z.items():
        kind = model.instance.graph.kind_of[layer]
        strategy = model.choices(kind, s, g)[h].strategy
        taken = start.slot_of[layer] == s and (s, g) in profiles
        if strategy is not None:
            taken = taken and strategy == start.strategy_of[layer]
        model.engine.add_hint(z, int(taken))
