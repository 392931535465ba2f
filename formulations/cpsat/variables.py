"""Variables of the CP-SAT model; symbols as in ``formulations/README.md``."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from formulations.common import Line, Task, hiding_line
from formulations.variables import Model as Base
from formulations.variables import Variables
from formulations.variables import create as create_shared
from nest.errors import InvalidProblemError
from nest.units import MAX_TOTAL

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import IntVar


class Model(Base):
    """One sub-problem's model.

    ``late[l, s]``: layer ``l`` is in slot ``s`` or a later stage. ``z[l, s, g, h]``:
    layer ``l`` in slot ``s``, which has profile ``g``, takes choice ``h``.
    """

    def __init__(self, task: Task) -> None:
        from ortools.sat.python.cp_model import CpModel

        super().__init__(task)
        self.engine = CpModel()
        self.late: Variables = {}
        self.z: Variables = {}
        self._most = _largest(self)

    @cached_property
    def hiding_line(self) -> Line:
        """What hides of gradient sync at most, by what may."""
        return hiding_line(self.instance.fraction, self.most_hideable)

    def binary(self, *name: object) -> IntVar:
        """Return a new variable that is 0 or 1."""
        return self.engine.new_bool_var(_name(name))

    share = binary

    def quanta(self, *name: object) -> IntVar:
        """Return a new variable for a time; its kind is ``name[0]``."""
        most = self._most[str(name[0])]
        return self.engine.new_int_var(0, most, _name(name))


def _name(name: tuple[object, ...]) -> str:
    return "_".join(map(str, name))


def create(task: Task) -> Model:
    """Return a model with all variables and no constraints.

    Raises ``InvalidProblemError`` if a sum of times could leave the engine's 64-bit
    integers, and ``OutOfTimeError`` if the deadline passes.
    """
    model = Model(task)
    create_shared(model)
    for layer in model.layers:
        model.instance.deadline.check()
        kind = model.instance.graph.kind_of[layer]
        for s, slot in model.slots.items():
            model.late[layer, s] = model.binary("late", layer, s)
            for g in range(len(slot.profiles) if (layer, s) in model.x else 0):
                for h in range(len(model.choices(kind, s, g))):
                    model.z[layer, s, g, h] = model.binary("z", layer, s, g, h)
    return model


def _largest(model: Model) -> dict[str, int]:
    """Return upper bounds on the times, by kind."""
    profiles = [p for slot in model.slots.values() for p in slot.profiles]
    graph = model.instance.graph
    # What the longest linear expressions add up to, whatever it means, is ``peak``.
    most_load = most_sync = peak = 0
    for kind, members in enumerate(graph.members):
        choices = [(p, c) for p in profiles for c in p.choices[kind]]
        most_load += len(members) * max((c.load for _, c in choices), default=0)
        most_sync += len(members) * max((c.sync for _, c in choices), default=0)
        peak += len(members) * sum(c.load * p.devices + c.sync for p, c in choices)
    for size in graph.edge_sizes.values():
        moves = [times[size] for p in profiles for times in p.moves]
        most_load += 2 * max(moves, default=0)
        peak += 2 * sum(moves)
    most_sync += max(slot.sync_constant for slot in model.slots.values())
    most_receive = max(
        (
            message
            + sum(times)
            + sum(times[i.upper] for i in graph.increments if times)
            for slot in model.slots.values()
            for side in slot.sides
            for receive in slot.receives[side]
            for message, times in receive
        ),
        default=0,
    )
    most_load += 2 * most_receive
    num_stages = model.sub_problem.num_stages
    slots = num_stages * max(model.instance.once) + sum(model.rounds)
    most_step = slots * most_load + most_sync
    peak = max(peak, most_load * model.sub_problem.split.devices, most_step)
    b, a, c = model.hiding_line
    peak = max(peak, (a + b) * model.most_hideable + c)
    if peak > MAX_TOTAL:
        raise InvalidProblemError(
            f"$.quantum_ps: expected a quantum that keeps every sum of times "
            f"below 2**61 quanta, got {model.instance.problem.quantum_ps} "
            f"with sums up to {peak}; raise quantum_ps or use solver dp"
        )
    if model.cutoff is not None:
        most_step = min(most_step, model.cutoff)
        most_load = min(most_load, most_step // max(1, min(model.rounds)))
        most_receive = min(most_receive, most_load)
        most_sync = min(most_sync, most_step)
    return {
        "receive": most_receive,
        "hidden": most_load,
        "load": most_load,
        "slowest": most_load,
        "sync": most_sync,
        "hideable": model.most_hideable,
        "behind": model.most_hideable,
        "step": most_step,
    }
