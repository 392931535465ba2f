"""Constraints of the CP-SAT model.

The functions have the names of their counterparts for MILP; the numbers are
those of the equations in ``formulations/README.md``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from formulations.common import Choice, check_time
from formulations.cpsat.variables import Model

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import IntVar, LinearExpr, LiteralT

    Variables = dict[tuple[int, int], IntVar]


def add_constraints(model: Model) -> None:
    """Add all constraints.

    Raises
    ------
    OutOfTime
        If the deadline passes.
    """
    for add in (
        one_option_per_slot,
        consecutive_blocks,
        one_slot_per_layer,
        nonempty_slots,
        precedence,
        linking,
        crossing,
        receiver,
        receive,
        change,
        load,
        bottleneck,
        work_bound,
        sync,
        memory,
    ):
        check_time(model.deadline)
        add(model)


def one_option_per_slot(model: Model) -> None:
    """Every slot takes one option, which says what it costs (1).

    ``Σ_o y[s,o] = 1``; ``w[s,g]`` is the sum over the options with profile
    ``g``, ``uses[s,r]`` over those with receive ``r``, unless that depends
    on a layer.
    """
    engine = model.engine
    for s, slot in model.slots.items():
        engine.add_exactly_one(
            model.y[s, o] for o in range(len(slot.options))
        ).with_name(f"one_option_per_slot[{s}]")
        tables: list[tuple[str, Variables, list[tuple[int, ...]]]] = [
            ("profile", model.w, [(o.profile,) for o in slot.options])
        ]
        if not slot.mixed:
            tables += [
                (
                    "forward",
                    model.uses_forward,
                    [o.forward for o in slot.options],
                ),
                (
                    "backward",
                    model.uses_backward,
                    [o.backward for o in slot.options],
                ),
            ]
        for name, variables, classes in tables:
            for index in sorted({i for found in classes for i in found}):
                members = [o for o, c in enumerate(classes) if index in c]
                engine.add(
                    sum(model.y[s, o] for o in members) == variables[s, index]
                ).with_name(f"one_option_per_slot[{s},{name},{index}]")


def consecutive_blocks(model: Model) -> None:
    """Start a slot at ``p`` iff the one before it ends at ``p`` (2)."""
    order = sorted(model.slots, reverse=True)
    if model.instance.preset.last_stage_first:
        order.reverse()
    for before, after in pairwise(order):
        ends: dict[int, list[int]] = {}
        starts: dict[int, list[int]] = {}
        for o, option in enumerate(model.slots[before].options):
            ends.setdefault(option.offset + option.devices, []).append(o)
        for o, option in enumerate(model.slots[after].options):
            starts.setdefault(option.offset, []).append(o)
        for p in sorted(ends.keys() | starts.keys()):
            model.engine.add(
                sum(model.y[before, o] for o in ends.get(p, []))
                == sum(model.y[after, o] for o in starts.get(p, []))
            ).with_name(f"consecutive_blocks[{after},{p}]")


def one_slot_per_layer(model: Model) -> None:
    """``Σ_s x[l,s] = 1``; ``late[l,s] = Σ_{r<=s} x[l,r]`` (3)."""
    for layer in model.layers:
        before = None
        for s in sorted(model.slots):
            late = model.late[layer, s]
            new = model.x.get((layer, s), 0)
            model.engine.add(
                late == new if before is None else late == before + new
            ).with_name(f"one_slot_per_layer[{layer},{s}]")
            before = late
        assert before is not None
        model.engine.add_bool_and(before)


def nonempty_slots(model: Model) -> None:
    """``Σ_l x[l,s] >= 1`` (4)."""
    for s in model.slots:
        model.engine.add_bool_or(
            model.x[layer, s]
            for layer in model.layers
            if (layer, s) in model.x
        ).with_name(f"nonempty_slots[{s}]")


def precedence(model: Model) -> None:
    """``late[u,s]`` implies ``late[v,s]`` for every edge ``(u,v)`` (5)."""
    for source, target, _ in model.instance.graph.edges:
        for s in model.slots:
            model.engine.add_implication(
                model.late[source, s], model.late[target, s]
            ).with_name(f"precedence[{source},{target},{s}]")


def linking(model: Model) -> None:
    """``Σ_{g,h} z[l,s,g,h] = x[l,s]``; ``z[l,s,g,h] <= w[s,g]`` (6).

    ``at[l,s,g,j]`` is the sum over the choices of layout ``j``.
    """
    engine = model.engine
    for (layer, s), x in model.x.items():
        taken: list[IntVar] = []
        for g in range(len(model.slots[s].profiles)):
            choices = model.choices(layer, s, g)
            if not choices:
                engine.add_bool_or(~x, ~model.w[s, g])
            of_layout: dict[int, list[IntVar]] = {}
            for h, choice in enumerate(choices):
                z = model.z[layer, s, g, h]
                engine.add_implication(z, model.w[s, g])
                of_layout.setdefault(choice.layout, []).append(z)
                taken.append(z)
            for j, found in of_layout.items():
                if (layer, s, g, j) in model.at:
                    engine.add(sum(found) == model.at[layer, s, g, j])
        engine.add(sum(taken) == x).with_name(f"linking[{layer},{s}]")


def crossing(model: Model) -> None:
    """``c[i,s]`` if its producer is before slot ``s``, a consumer not (7).

    ``crossed[s]`` if any increment crosses; in a connected graph one always
    does.
    """
    engine, graph = model.engine, model.instance.graph
    if graph.connected:
        engine.add_bool_and(model.crossed.values())
    for (i, s), c in model.c.items():
        increment = graph.increments[i]
        before = ~model.late[increment.producer, s]
        for consumer in increment.consumers:
            engine.add_bool_or(c, ~before, ~model.late[consumer, s]).with_name(
                f"crossing[{i},{s},{consumer}]"
            )
        if not graph.connected:
            engine.add_implication(c, model.crossed[s])


def receiver(model: Model) -> None:
    """Let the layer next to a boundary say what its slot receives (18).

    ``first[l,s]`` marks the first layer of the slot in the graph's order,
    ``last[l,s]`` the last one: exactly one, one that is inside, and no layer
    inside is before the first or after the last. If it has layout ``j`` of
    profile ``g``, then ``front[s,g,j]`` (``back``), which with the option
    tells the receive that the slot uses.
    """
    for s, slot in model.slots.items():
        if not slot.mixed:
            continue
        check_time(model.deadline)
        order = [i for i in model.instance.graph.order if (i, s) in model.x]
        if slot.forward:
            received = [option.forward for option in slot.options]
            _end(model, s, order, model.first)
            _face(model, s, model.first, model.front)
            _uses(model, s, received, model.front, model.uses_forward)
        if slot.backward:
            received = [option.backward for option in slot.options]
            _end(model, s, order[::-1], model.last)
            _face(model, s, model.last, model.back)
            _uses(model, s, received, model.back, model.uses_backward)


def _end(
    model: Model, s: int, order: list[int], ends: dict[tuple[int, int], IntVar]
) -> None:
    """``x[l,s]`` implies that the first one is at ``l`` or before it."""
    engine = model.engine
    engine.add_exactly_one(ends[layer, s] for layer in order)
    for position, layer in enumerate(order, 1):
        engine.add_implication(ends[layer, s], model.x[layer, s])
        engine.add_bool_or(
            ~model.x[layer, s], *(ends[other, s] for other in order[:position])
        ).with_name(f"receiver[{s},{layer}]")


def _face(
    model: Model,
    s: int,
    ends: dict[tuple[int, int], IntVar],
    faces: dict[tuple[int, int, int], IntVar],
) -> None:
    """Give a slot's receiving side the layout of the layer there."""
    engine = model.engine
    for g, profile in enumerate(model.slots[s].profiles):
        engine.add(
            sum(faces[s, g, j] for j in range(len(profile.layouts)))
            == model.w[s, g]
        )
    for (layer, number, g, j), at in model.at.items():
        if number == s:
            engine.add_bool_or(faces[s, g, j], ~ends[layer, s], ~at).with_name(
                f"receiver[{s},{g},{j},{layer}]"
            )


def _uses(
    model: Model,
    s: int,
    received: list[tuple[int, ...]],
    faces: dict[tuple[int, int, int], IntVar],
    uses: dict[tuple[int, int], IntVar],
) -> None:
    """Choose the receive by option and layout."""
    engine = model.engine
    engine.add_exactly_one(
        uses[s, r] for r in sorted({r for table in received for r in table})
    )
    for o, option in enumerate(model.slots[s].options):
        for j, r in enumerate(received[o]):
            engine.add_bool_or(
                uses[s, r], ~model.y[s, o], ~faces[s, option.profile, j]
            ).with_name(f"receiver[{s},{o},{j}]")


def receive(model: Model) -> None:
    """Make a receive as long as at its slowest level (8).

    ``message(level) crossed + Σ_i Δ_i(level) c[i]`` for every level of the
    receive that the slot uses, where ``Δ_i`` is what increment ``i`` adds.
    """
    if model.instance.preset.receive_per_edge:
        _receive_per_edge(model)
        return
    increments = model.instance.graph.increments
    for s, slot in model.slots.items():
        for receives, uses, variables, boundary in (
            (slot.forward, model.uses_forward, model.receive_forward, s),
            (
                slot.backward,
                model.uses_backward,
                model.receive_backward,
                s - 1,
            ),
        ):
            check_time(model.deadline)
            for r, entry in enumerate(receives):
                for message, times in entry.rows:
                    total: LinearExpr | int = message * model.crossed[boundary]
                    for i, step in enumerate(increments):
                        below = times[step.lower] if step.lower >= 0 else 0
                        total += (times[step.upper] - below) * model.c[
                            i, boundary
                        ]
                    model.engine.add(variables[s] >= total).with_name(
                        f"receive[{s},{boundary},{r}]"
                    ).only_enforce_if(uses[s, r])


def _receive_per_edge(model: Model) -> None:
    """Make a receive as long as its slowest edge (8')."""
    engine = model.engine
    for s, slot in model.slots.items():
        for receives, variables, forward in (
            (slot.forward, model.receive_forward, True),
            (slot.backward, model.receive_backward, False),
        ):
            for entry in receives:
                ((_, times),) = entry.rows
                for (source, target, _), time in zip(
                    model.instance.graph.edges, times, strict=True
                ):
                    inside, outside = (
                        (target, source) if forward else (source, target)
                    )
                    if (inside, s) not in model.x:
                        continue
                    enforced: list[LiteralT] = [model.x[inside, s]]
                    if (outside, s) in model.x:
                        enforced.append(~model.x[outside, s])
                    engine.add(variables[s] >= time).with_name(
                        f"receive[{s},{source},{target},{forward}]"
                    ).only_enforce_if(enforced)


def change(model: Model) -> None:
    """Make an edge whose layouts differ move its tensor both ways (19).

    ``into[e,s,g,j] >= at[v,s,g,j] - at[u,s,g,j]`` if both ends of the edge
    ``(u,v)`` are in the slot; ``out_of`` with ``u`` and ``v`` exchanged.
    """
    edges = model.instance.graph.edges
    for moved, forward in ((model.into, True), (model.out_of, False)):
        for (e, s, g, j), changes in moved.items():
            source, target, _ = edges[e]
            here, there = (target, source) if forward else (source, target)
            clause = [changes, ~model.at[here, s, g, j], ~model.x[there, s]]
            if (there, s, g, j) in model.at:
                clause.append(model.at[there, s, g, j])
            model.engine.add_bool_or(clause).with_name(
                f"change[{e},{s},{g},{j},{forward}]"
            )


def load(model: Model) -> None:
    """``τ_s``: the layers' time, the receives and the changes (9).

    Where recomputation hides the receive of the gradients, the larger of
    the two counts (9').
    """
    for s in model.slots:
        check_time(model.deadline)
        base: LinearExpr | int = 0
        recomputed: LinearExpr | int = 0
        for choice, z in _taken(model, s):
            base += choice.base * z
            recomputed += choice.recomputed * z
        for moved in (model.into, model.out_of):
            for (e, number, g, j), changes in moved.items():
                if number == s:
                    base += model.move(e, s, g, j) * changes
        forward = model.receive_forward.get(s, 0)
        backward = model.receive_backward.get(s, 0)
        if s in model.hidden:
            model.engine.add_max_equality(
                model.hidden[s], [recomputed, backward]
            )
            backward = model.hidden[s]
        model.engine.add(model.load[s] == base + forward + backward).with_name(
            f"load[{s}]"
        )


def _taken(
    model: Model, s: int, profiles: Iterable[int] | None = None
) -> Iterator[tuple[Choice, IntVar]]:
    """Yield what the layers of a slot can choose, and whether they do."""
    if profiles is None:
        profiles = range(len(model.slots[s].profiles))
    for g in profiles:
        for layer in model.layers:
            if (layer, s) in model.x:
                for h, choice in enumerate(model.choices(layer, s, g)):
                    yield choice, model.z[layer, s, g, h]


def bottleneck(model: Model) -> None:
    """``t_max = max_s τ_s`` (10)."""
    model.engine.add_max_equality(
        model.slowest, list(model.load.values())
    ).with_name("bottleneck")


def work_bound(model: Model) -> None:
    """``P t_max >= Σ n_g τ_{l,g,h} z[l,s,g,h]``, a valid inequality (11).

    Slots use at most ``P`` devices together, each for at most ``t_max``.
    """
    work: LinearExpr | int = 0
    for (layer, s, g, h), z in model.z.items():
        choice = model.choices(layer, s, g)[h]
        work += model.slots[s].profiles[g].devices * choice.load * z
    model.engine.add(
        model.sub_problem.case.devices * model.slowest >= work
    ).with_name("work_bound")


def sync(model: Model) -> None:
    """``Y >= Σ Y_{l,g,h} z[l,s,g,h]`` for the slots that count (12)."""
    counted = list(model.slots)
    if model.instance.preset.sync_stages == "first":
        counted = [max(model.slots)]
    for s in counted:
        total: LinearExpr | int = model.slots[s].sync_constant
        for choice, z in _taken(model, s):
            total += choice.sync * z
        model.engine.add(model.sync >= total).with_name(f"sync[{s}]")


def memory(model: Model) -> None:
    """Resident bytes and the largest working set fit the capacity (13)."""
    engine, capacity = model.engine, model.instance.capacity
    for s, slot in model.slots.items():
        check_time(model.deadline)
        kept = _entering(model, s)
        for g, profile in enumerate(slot.profiles):
            if not profile.tight:
                continue
            working = engine.new_int_var(0, capacity, f"working[{s},{g}]")
            resident: LinearExpr | int = kept
            for choice, z in _taken(model, s, [g]):
                resident += choice.resident_bytes * z
                engine.add(working >= choice.working_bytes * z)
            engine.add(resident + working <= capacity).with_name(
                f"memory[{s},{g}]"
            ).only_enforce_if(model.w[s, g])


def _entering(model: Model, s: int) -> LinearExpr | int:
    """Return the bytes kept of tensors that enter a slot (14)."""
    total: LinearExpr | int = 0
    sizes = model.slots[s].entering_bytes
    if not sizes:
        return total
    for (source, target, _), size_bytes in zip(
        model.instance.graph.edges, sizes, strict=True
    ):
        if (target, s) not in model.x:
            continue
        enters = model.engine.new_bool_var(f"enters[{source},{target},{s}]")
        outside: list[IntVar] = []
        if (source, s) in model.x:
            outside.append(model.x[source, s])
        model.engine.add_bool_or(enters, ~model.x[target, s], *outside)
        total += min(size_bytes, model.instance.capacity + 1) * enters
    return total
