"""From values of the CP-SAT variables to a plan, and from a plan to hints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from formulations.cpsat.variables import Model
from formulations.search import Start, make_plan
from nest.ir.plan import Plan

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpSolver


def decode(name: str, model: Model, solver: CpSolver) -> Plan:
    """Return the plan of the solver's solution."""
    slot_of = {
        layer: s for (layer, s), x in model.x.items() if solver.value(x)
    }
    strategy_of = {
        s: model.slots[s].options[o].strategy
        for (s, o), y in model.y.items()
        if solver.value(y)
    }
    return make_plan(
        name, model.instance, model.sub_problem, slot_of, strategy_of
    )


def add_hints(model: Model, start: Start) -> None:
    """Hint the stage of every layer and the option of every slot."""
    for (layer, s), x in model.x.items():
        model.engine.add_hint(x, int(start.slot_of[layer] == s))
    for (s, o), y in model.y.items():
        option = model.slots[s].options[o]
        place = (option.offset, option.strategy)
        model.engine.add_hint(y, int(start.places[s] == place))
