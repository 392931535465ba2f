"""Variables of the MILP model; symbols as in ``formulations/README.md``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from formulations.common import Instance, Slot, SubProblem, check_time
from nest.solvers.base import Deadline

if TYPE_CHECKING:
    from pulp import LpProblem, LpVariable

#: A linear expression: pairs of a variable and its coefficient.
Terms = list[tuple[Any, float]]


@dataclass
class Model:
    """One sub-problem's model: its constants and its variables.

    Times are divided by ``scale_quanta`` and sizes by ``scale_bytes``, powers
    of two, which loses nothing.

    Attributes
    ----------
    y
        ``y[s, o]``: slot ``s`` takes option ``o``.
    w
        ``w[s, g]``: slot ``s`` has cost profile ``g``.
    x
        ``x[l, s]``: layer ``l`` is in slot ``s``.
    q
        ``q[κ, s, g]``: layers of kind ``κ`` in slot ``s`` if it has profile
        ``g``, else 0.
    p
        ``p[κ, s, g]``: whether that number is positive.
    c
        ``c[i, s]``: increment ``i`` crosses the boundary before slot ``s``.
    crossed
        ``crossed[s]``: something crosses the boundary before slot ``s``.
    receive_forward, receive_backward
        Receive of slot ``s``.
    hidden
        Recomputation and receive of gradients that overlap it.
    load
        ``τ``.
    slowest
        ``t_max``.
    sync
        ``Y``.
    step
        ``T``.
    """

    instance: Instance
    sub_problem: SubProblem
    slots: dict[int, Slot]
    cutoff: int | None
    deadline: Deadline
    engine: LpProblem
    scale_quanta: int = 1
    scale_bytes: int = 1
    y: dict[tuple[int, int], LpVariable] = field(default_factory=dict)
    w: dict[tuple[int, int], LpVariable] = field(default_factory=dict)
    x: dict[tuple[int, int], LpVariable] = field(default_factory=dict)
    q: dict[tuple[int, int, int], LpVariable] = field(default_factory=dict)
    p: dict[tuple[int, int, int], LpVariable] = field(default_factory=dict)
    c: dict[tuple[int, int], LpVariable] = field(default_factory=dict)
    crossed: dict[int, LpVariable] = field(default_factory=dict)
    receive_forward: dict[int, LpVariable] = field(default_factory=dict)
    receive_backward: dict[int, LpVariable] = field(default_factory=dict)
    hidden: dict[int, LpVariable] = field(default_factory=dict)
    load: dict[int, LpVariable] = field(default_factory=dict)
    slowest: LpVariable = None
    sync: LpVariable = None
    step: LpVariable = None

    @property
    def layers(self) -> range:
        """Positions of the layers."""
        return range(self.instance.graph.num_layers)

    def quanta(self, value: int) -> float:
        """Return a time as the engine sees it."""
        return value / self.scale_quanta

    def size(self, size_bytes: int) -> float:
        """Return a size as the engine sees it."""
        return size_bytes / self.scale_bytes

    def variable(self, name: str, high: float | None = None) -> LpVariable:
        """Return a new variable, at least 0."""
        from pulp import LpVariable

        return LpVariable(name, 0, high)

    def binary(self, name: str) -> LpVariable:
        """Return a new variable that is 0 or 1."""
        from pulp import LpVariable

        return LpVariable(name, 0, 1, "Integer")

    def add(
        self, name: str, terms: Terms, sense: int, constant: float = 0.0
    ) -> None:
        """Add the constraint ``Σ terms (<=, =, >=) constant``.

        ``sense`` is -1, 0 or 1, as in PuLP.
        """
        from pulp import LpAffineExpression, LpConstraint

        merged: dict[Any, float] = {}
        for variable, coefficient in terms:
            merged[variable] = merged.get(variable, 0.0) + coefficient
        self.engine.addConstraint(
            LpConstraint(LpAffineExpression(merged), sense, name, constant)
        )


def create(
    instance: Instance,
    sub_problem: SubProblem,
    slots: dict[int, Slot],
    cutoff: int | None,
    deadline: Deadline,
) -> Model:
    """Return a model with all variables and no constraints.

    Raises
    ------
    OutOfTime
        If the deadline passes.
    """
    from pulp import LpProblem

    model = Model(
        instance, sub_problem, slots, cutoff, deadline, LpProblem("nest")
    )
    _set_scales(model)
    graph = instance.graph
    for layer in model.layers:
        for s in graph.slots_of(layer, sub_problem.num_stages):
            model.x[layer, s] = model.binary(f"x_{layer}_{s}")
    for s, slot in slots.items():
        check_time(deadline)
        for o in range(len(slot.options)):
            model.y[s, o] = model.binary(f"y_{s}_{o}")
        for g, profile in enumerate(slot.profiles):
            model.w[s, g] = model.variable(f"w_{s}_{g}", 1)
            for kind, members in enumerate(graph.members):
                if profile.terms[kind] is not None:
                    model.q[kind, s, g] = model.variable(
                        f"q_{kind}_{s}_{g}", len(members)
                    )
                    model.p[kind, s, g] = model.variable(
                        f"p_{kind}_{s}_{g}", 1
                    )
        if slot.forward:
            model.receive_forward[s] = model.variable(f"receive_forward_{s}")
            model.crossed[s] = model.variable(f"crossed_{s}", 1)
            if not instance.preset.receive_per_edge:
                for i in range(len(graph.increments)):
                    model.c[i, s] = model.variable(f"c_{i}_{s}", 1)
        if slot.backward:
            model.receive_backward[s] = model.variable(f"receive_backward_{s}")
        if instance.preset.recompute_hides_receive:
            model.hidden[s] = model.variable(f"hidden_{s}")
        model.load[s] = model.variable(f"load_{s}")
    model.slowest = model.variable("slowest")
    model.sync = model.variable("sync")
    model.step = model.variable("step")
    return model


def _set_scales(model: Model) -> None:
    """Choose powers of two that bring the step time and memory near 2**10.

    The engines' absolute tolerances of 1e-9 are then far below 1e-6 of it.
    """
    step = max(model.sub_problem.bound, 1)
    if model.cutoff is not None:
        step = max(model.cutoff, 1)
    model.scale_quanta = 1 << max(0, step.bit_length() - 10)
    capacity = model.instance.capacity
    model.scale_bytes = 1 << max(0, capacity.bit_length() - 10)
