"""Variables of the CP-SAT model; symbols as in ``formulations/README.md``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from formulations.common import (
    Choice,
    Instance,
    Slot,
    SubProblem,
    check_time,
)
from nest.errors import InvalidProblemError
from nest.solvers.base import Deadline
from nest.units import MAX_TOTAL

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel, IntVar


@dataclass
class Model:
    """One sub-problem's model: its constants and its variables.

    Attributes
    ----------
    y
        ``y[s, o]``: slot ``s`` takes option ``o``.
    w
        ``w[s, g]``: slot ``s`` has cost profile ``g``.
    late
        ``late[l, s]``: layer ``l`` is in slot ``s`` or a later stage.
    x
        ``x[l, s]``: layer ``l`` is in slot ``s``.
    z
        ``z[l, s, g, h]``: layer ``l`` in slot ``s``, which has profile ``g``,
        takes choice ``h``.
    at
        ``at[l, s, g, j]``: the same with a choice of layout ``j``, if the
        profile has several layouts.
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
    uses_forward, uses_backward
        ``uses_forward[s, r]``: slot ``s`` receives activations (gradients)
        at the times of entry ``r`` of its table.
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
    engine: CpModel
    y: dict[tuple[int, int], IntVar] = field(default_factory=dict)
    w: dict[tuple[int, int], IntVar] = field(default_factory=dict)
    late: dict[tuple[int, int], IntVar] = field(default_factory=dict)
    x: dict[tuple[int, int], IntVar] = field(default_factory=dict)
    z: dict[tuple[int, int, int, int], IntVar] = field(default_factory=dict)
    at: dict[tuple[int, int, int, int], IntVar] = field(default_factory=dict)
    first: dict[tuple[int, int], IntVar] = field(default_factory=dict)
    last: dict[tuple[int, int], IntVar] = field(default_factory=dict)
    front: dict[tuple[int, int, int], IntVar] = field(default_factory=dict)
    back: dict[tuple[int, int, int], IntVar] = field(default_factory=dict)
    into: dict[tuple[int, int, int, int], IntVar] = field(default_factory=dict)
    out_of: dict[tuple[int, int, int, int], IntVar] = field(
        default_factory=dict
    )
    c: dict[tuple[int, int], IntVar] = field(default_factory=dict)
    uses_forward: dict[tuple[int, int], IntVar] = field(default_factory=dict)
    uses_backward: dict[tuple[int, int], IntVar] = field(default_factory=dict)
    crossed: dict[int, IntVar] = field(default_factory=dict)
    receive_forward: dict[int, IntVar] = field(default_factory=dict)
    receive_backward: dict[int, IntVar] = field(default_factory=dict)
    hidden: dict[int, IntVar] = field(default_factory=dict)
    load: dict[int, IntVar] = field(default_factory=dict)
    slowest: IntVar = field(init=False)
    sync: IntVar = field(init=False)
    step: IntVar = field(init=False)

    @property
    def layers(self) -> range:
        """Positions of the layers."""
        return range(self.instance.graph.num_layers)

    def choices(
        self, layer: int, number: int, profile: int
    ) -> tuple[Choice, ...]:
        """Return how a layer can run in a slot under a profile."""
        kind = self.instance.graph.kind_of[layer]
        return self.slots[number].profiles[profile].choices[kind]

    def move(self, edge: int, number: int, profile: int, layout: int) -> int:
        """Return what it takes to bring an edge's tensor to a layout."""
        moves = self.slots[number].profiles[profile].moves[layout]
        return moves[self.instance.graph.edge_sizes[edge]]


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
    InvalidProblemError
        If a sum of times could leave the engine's 64-bit integers.
    OutOfTime
        If the deadline passes.
    """
    from ortools.sat.python.cp_model import CpModel

    model = Model(instance, sub_problem, slots, cutoff, deadline, CpModel())
    engine, graph = model.engine, instance.graph
    for s, slot in slots.items():
        check_time(deadline)
        for o in range(len(slot.options)):
            model.y[s, o] = engine.new_bool_var(f"y[{s},{o}]")
        for g in range(len(slot.profiles)):
            model.w[s, g] = engine.new_bool_var(f"w[{s},{g}]")
        for r in range(len(slot.forward)):
            model.uses_forward[s, r] = engine.new_bool_var(
                f"uses_forward[{s},{r}]"
            )
        for r in range(len(slot.backward)):
            model.uses_backward[s, r] = engine.new_bool_var(
                f"uses_backward[{s},{r}]"
            )
    for layer in model.layers:
        check_time(deadline)
        allowed = graph.slots_of(layer, sub_problem.num_stages)
        for s, slot in slots.items():
            model.late[layer, s] = engine.new_bool_var(f"late[{layer},{s}]")
            if s not in allowed:
                continue
            model.x[layer, s] = engine.new_bool_var(f"x[{layer},{s}]")
            for g in range(len(slot.profiles)):
                for h in range(len(model.choices(layer, s, g))):
                    model.z[layer, s, g, h] = engine.new_bool_var(
                        f"z[{layer},{s},{g},{h}]"
                    )
    for s, slot in slots.items():
        if slot.mixed:
            check_time(deadline)
            _create_layouts(model, s)
    _create_times(model)
    return model


def _create_layouts(model: Model, s: int) -> None:
    engine, graph, slot = model.engine, model.instance.graph, model.slots[s]
    inside = [layer for layer in model.layers if (layer, s) in model.x]
    for received, ends, faces, names in (
        (slot.forward, model.first, model.front, ("first", "front")),
        (slot.backward, model.last, model.back, ("last", "back")),
    ):
        if not received:
            continue
        for layer in inside:
            ends[layer, s] = engine.new_bool_var(f"{names[0]}[{layer},{s}]")
        for g, profile in enumerate(slot.profiles):
            for j in range(len(profile.layouts)):
                faces[s, g, j] = engine.new_bool_var(
                    f"{names[1]}[{s},{g},{j}]"
                )
    for g, profile in enumerate(slot.profiles):
        if not profile.mixed:
            continue
        for layer in inside:
            used = {choice.layout for choice in model.choices(layer, s, g)}
            for j in sorted(used):
                model.at[layer, s, g, j] = engine.new_bool_var(
                    f"at[{layer},{s},{g},{j}]"
                )
        for e, (source, target, _) in enumerate(graph.edges):
            if (source, s) not in model.x or (target, s) not in model.x:
                continue
            for j in range(len(profile.layouts)):
                index = (e, s, g, j)
                if (target, s, g, j) in model.at:
                    model.into[index] = engine.new_bool_var(
                        f"into[{e},{s},{g},{j}]"
                    )
                if (source, s, g, j) in model.at:
                    model.out_of[index] = engine.new_bool_var(
                        f"out_of[{e},{s},{g},{j}]"
                    )


def _create_times(model: Model) -> None:
    engine, graph = model.engine, model.instance.graph
    most_receive, most_load, most_sync, most_step = _largest(model)
    for s, slot in model.slots.items():
        if slot.forward:
            model.receive_forward[s] = engine.new_int_var(
                0, most_receive, f"receive_forward[{s}]"
            )
            model.crossed[s] = engine.new_bool_var(f"crossed[{s}]")
            if not model.instance.preset.receive_per_edge:
                for i in range(len(graph.increments)):
                    model.c[i, s] = engine.new_bool_var(f"c[{i},{s}]")
        if slot.backward:
            model.receive_backward[s] = engine.new_int_var(
                0, most_receive, f"receive_backward[{s}]"
            )
        if model.instance.preset.recompute_hides_receive:
            model.hidden[s] = engine.new_int_var(0, most_load, f"hidden[{s}]")
        model.load[s] = engine.new_int_var(0, most_load, f"load[{s}]")
    model.slowest = engine.new_int_var(0, most_load, "slowest")
    model.sync = engine.new_int_var(0, most_sync, "sync")
    model.step = engine.new_int_var(0, most_step, "step")


def _largest(model: Model) -> tuple[int, int, int, int]:
    """Return upper bounds on a receive, a load, a sync and the step time."""
    num_micro_batches = model.sub_problem.case.num_micro_batches
    profiles = [p for slot in model.slots.values() for p in slot.profiles]
    graph = model.instance.graph
    # What the longest linear expressions add up to, whatever it means, is
    # ``peak``.
    most_load = most_sync = peak = 0
    for kind, members in enumerate(graph.members):
        choices = [(p, c) for p in profiles for c in p.choices[kind]]
        most_load += len(members) * max(
            (c.load for _, c in choices), default=0
        )
        most_sync += len(members) * max(
            (c.sync for _, c in choices), default=0
        )
        peak += len(members) * sum(
            c.load * p.devices + c.sync for p, c in choices
        )
    for size in graph.edge_sizes:
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
            for receive in (*slot.forward, *slot.backward)
            for message, times in receive.rows
        ),
        default=0,
    )
    most_load += 2 * most_receive
    num_stages = model.sub_problem.num_stages
    most_step = (num_micro_batches + num_stages) * most_load + most_sync
    peak = max(peak, most_load * model.sub_problem.case.devices, most_step)
    if peak > MAX_TOTAL:
        raise InvalidProblemError(
            f"$.quantum_ps: expected a quantum that keeps every sum of times "
            f"below 2**61 quanta, got {model.instance.problem.quantum_ps} "
            f"with sums up to {peak}; raise quantum_ps or use solver dp"
        )
    if model.cutoff is not None:
        most_step = min(most_step, model.cutoff)
        most_load = min(most_load, most_step // num_micro_batches)
        most_receive = min(most_receive, most_load)
        most_sync = min(most_sync, most_step)
    return most_receive, most_load, most_sync, most_step
