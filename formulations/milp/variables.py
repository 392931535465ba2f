"""Variables of the MILP model; symbols as in ``formulations/README.md``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from formulations.common import (
    Choice,
    Instance,
    Profile,
    Slot,
    SubProblem,
    check_time,
)
from nest.solvers.base import Deadline

if TYPE_CHECKING:
    from pulp import LpProblem, LpVariable

#: A linear expression: pairs of a variable and its coefficient.
Terms = list[tuple[Any, float]]


@dataclass(frozen=True)
class Content:
    """What a slot holds in a solution.

    Attributes
    ----------
    profile
        Its cost profile.
    layers
        Its layers.
    counts
        How many layers of a kind take a choice, by ``(κ, h)``; at least one.
    """

    profile: int
    layers: tuple[int, ...]
    counts: Mapping[tuple[int, int], int]


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
        ``q[κ, s, g, h]``: layers of kind ``κ`` in slot ``s`` that take choice
        ``h`` if it has profile ``g``, else 0.
    p
        ``p[κ, s, g, h]``: whether that number is positive.
    at
        ``at[l, s, g, j]``: layer ``l`` is in slot ``s``, which has profile
        ``g``, with layout ``j``; where layouts of a slot can differ.
    first, last
        ``first[l, s]`` (``last``): layer ``l`` receives the activations
        (gradients) of slot ``s``.
    front, back
        ``front[s, g, j]`` (``back``): that layer of slot ``s``, which has
        profile ``g``, has layout ``j``.
    into, out_of
        ``into[e, s, g, j]`` (``out_of``): edge ``e`` inside slot ``s``, which
        has profile ``g``, leads from another layout to ``j`` (from ``j`` to
        another one).
    c
        ``c[i, s]``: increment ``i`` crosses the boundary before slot ``s``.
    crossed
        ``crossed[s]``: something crosses the boundary before slot ``s``.
    uses_forward, uses_backward
        ``uses_forward[s, r]``: slot ``s`` receives activations (gradients)
        at the times of entry ``r`` of its table; where layouts can differ.
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
    q: dict[tuple[int, int, int, int], LpVariable] = field(
        default_factory=dict
    )
    p: dict[tuple[int, int, int, int], LpVariable] = field(
        default_factory=dict
    )
    at: dict[tuple[int, int, int, int], LpVariable] = field(
        default_factory=dict
    )
    first: dict[tuple[int, int], LpVariable] = field(default_factory=dict)
    last: dict[tuple[int, int], LpVariable] = field(default_factory=dict)
    front: dict[tuple[int, int, int], LpVariable] = field(default_factory=dict)
    back: dict[tuple[int, int, int], LpVariable] = field(default_factory=dict)
    into: dict[tuple[int, int, int, int], LpVariable] = field(
        default_factory=dict
    )
    out_of: dict[tuple[int, int, int, int], LpVariable] = field(
        default_factory=dict
    )
    uses_forward: dict[tuple[int, int], LpVariable] = field(
        default_factory=dict
    )
    uses_backward: dict[tuple[int, int], LpVariable] = field(
        default_factory=dict
    )
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

    def choice(self, kind: int, s: int, g: int, h: int) -> Choice:
        """Return a way to run a kind of layer in a slot under a profile."""
        return self.slots[s].profiles[g].choices[kind][h]

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

    def integer(self, name: str, high: int) -> LpVariable:
        """Return a new integer variable, at least 0."""
        from pulp import LpVariable

        return LpVariable(name, 0, high, "Integer")

    def binary(self, name: str) -> LpVariable:
        """Return a new variable that is 0 or 1."""
        return self.integer(name, 1)

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
            for kind in range(len(graph.members)):
                _create_counts(model, kind, s, g, profile)
        if slot.mixed:
            _create_layouts(model, s)
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


def _create_counts(
    model: Model, kind: int, s: int, g: int, profile: Profile
) -> None:
    """Create ``q`` and ``p``.

    Without a choice they follow from ``x`` and ``w``; ``p`` has to be 0 or 1
    only where working sets count.
    """
    num_layers = len(model.instance.graph.members[kind])
    choices = profile.choices[kind]
    for h in range(len(choices)):
        index, name = (kind, s, g, h), f"{kind}_{s}_{g}_{h}"
        model.q[index] = (
            model.variable(f"q_{name}", num_layers)
            if len(choices) == 1
            else model.integer(f"q_{name}", num_layers)
        )
        model.p[index] = (
            model.binary(f"p_{name}")
            if len(choices) > 1 and profile.tight
            else model.variable(f"p_{name}", 1)
        )


def _create_layouts(model: Model, s: int) -> None:
    graph, slot = model.instance.graph, model.slots[s]
    inside = [layer for layer in model.layers if (layer, s) in model.x]
    for name, receives, ends, faces, uses in (
        (
            "forward",
            slot.forward,
            model.first,
            model.front,
            model.uses_forward,
        ),
        (
            "backward",
            slot.backward,
            model.last,
            model.back,
            model.uses_backward,
        ),
    ):
        for r in range(len(receives)):
            uses[s, r] = model.variable(f"uses_{name}_{s}_{r}", 1)
        if not receives:
            continue
        for layer in inside:
            ends[layer, s] = model.variable(f"end_{name}_{layer}_{s}", 1)
        for g, profile in enumerate(slot.profiles):
            for j in range(len(profile.layouts)):
                faces[s, g, j] = model.variable(f"face_{name}_{s}_{g}_{j}", 1)
    for g, profile in enumerate(slot.profiles):
        for layer in inside:
            choices = profile.choices[graph.kind_of[layer]]
            for j in sorted({choice.layout for choice in choices}):
                model.at[layer, s, g, j] = model.binary(
                    f"at_{layer}_{s}_{g}_{j}"
                )
        for e, (source, target, _) in enumerate(graph.edges):
            if not profile.mixed or not {source, target} <= set(inside):
                continue
            for j in range(len(profile.layouts)):
                name = f"{e}_{s}_{g}_{j}"
                if (target, s, g, j) in model.at:
                    model.into[e, s, g, j] = model.variable(f"into_{name}", 1)
                if (source, s, g, j) in model.at:
                    model.out_of[e, s, g, j] = model.variable(
                        f"out_of_{name}", 1
                    )


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
