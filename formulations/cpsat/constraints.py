"""Constraints of the CP-SAT model.

The functions have the names of their counterparts for MILP; the numbers are
those of the equations in ``formulations/README.md``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from formulations.common import BACKWARD, FORWARD, Choice
from formulations.cpsat.variables import Model
from nest.cost.rules import hidden_sync

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import IntVar, LinearExpr, LiteralT


def add_constraints(model: Model) -> None:
    """Add all constraints.

    Raises ``OutOfTimeError`` if the deadline passes.
    """
    for add in (
        one_option_per_slot,
        consecutive_blocks,
        one_slot_per_layer,
        nonempty_slots,
        even_layers,
        one_stage,
        precedence,
        linking,
        crossing,
        receiver,
        receive,
        change,
        load,
        bottleneck,
        work_bound,
        hide,
        sync,
        passing,
        memory,
    ):
        model.instance.deadline.check()
        add(model)


def one_option_per_slot(model: Model) -> None:
    """Every slot takes one option, which says what it costs (L3).

    ``Σ_o y[s,o] = 1``; ``w[s,g]`` is the sum over the options with profile
    ``g``, ``width[s,n]`` over those of ``n`` devices, ``uses[s,d,r]`` over
    those with receive ``r``, unless that depends on more.
    """
    engine = model.engine
    for s, slot in model.slots.items():
        model.instance.deadline.check()
        engine.add_exactly_one(
            model.y[s, o] for o in range(len(slot.options))
        ).with_name(f"one_option_per_slot[{s}]")
        sums: dict[int, tuple[IntVar, list[IntVar]]] = {}
        for o, option in enumerate(slot.options):
            tables = [model.w[s, option.profile]]
            if (s, option.devices) in model.width:
                tables.append(model.width[s, option.devices])
            for d in slot.sides:
                if not slot.chooses(d):
                    ((r, *_),) = option.receives[d]
                    assert r is not None
                    tables.append(model.uses[s, d, r])
            for variable in tables:
                _, found = sums.setdefault(variable.index, (variable, []))
                found.append(model.y[s, o])
        for variable, options in sums.values():
            engine.add(sum(options) == variable).with_name(
                f"one_option_per_slot[{s},{variable.name}]"
            )


def consecutive_blocks(model: Model) -> None:
    """Start a slot at ``p`` iff the one before it ends at ``p`` (L4)."""
    order = sorted(model.slots, reverse=True)
    if model.instance.artifact:
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
    """``Σ_s x[l,s] = 1``; ``late[l,s] = Σ_{r<=s} x[l,r]`` (L5)."""
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
    """``Σ_l x[l,s] >= 1`` (L6)."""
    for s in model.slots:
        model.engine.add_bool_or(
            model.x[layer, s] for layer in model.inside(s)
        ).with_name(f"nonempty_slots[{s}]")


def even_layers(model: Model) -> None:
    """``S Σ_{l of κ} x[l,s] = c`` for each kind of ``c > 1`` layers (L19)."""
    for kind, layers, share in model.even_shares:
        for s in model.slots:
            model.engine.add(
                sum(model.x[i, s] for i in layers if (i, s) in model.x) == share
            ).with_name(f"even_layers[{kind},{s}]")


def one_stage(model: Model) -> None:
    """``late[l,s] = late[m,s]`` for layers that no slots may part (L21)."""
    for layer, other in pairwise(model.together):
        for s in model.slots:
            model.engine.add(model.late[layer, s] == model.late[other, s]).with_name(
                f"one_stage[{layer},{other},{s}]"
            )


def precedence(model: Model) -> None:
    """``late[u,s]`` implies ``late[v,s]`` for every edge ``(u,v)`` (L7)."""
    for source, target, _ in model.instance.graph.edges:
        for s in model.slots:
            model.engine.add_implication(
                model.late[source, s], model.late[target, s]
            ).with_name(f"precedence[{source},{target},{s}]")


def linking(model: Model) -> None:
    """``Σ_{g,h} z[l,s,g,h] = x[l,s]``; ``z[l,s,g,h] <= w[s,g]`` (L8).

    ``at[l,s,g,j]`` is the sum over the choices of layout ``j``.
    """
    engine = model.engine
    for (layer, s), x in model.x.items():
        model.instance.deadline.check()
        kind = model.instance.graph.kind_of[layer]
        taken: list[IntVar] = []
        for g in range(len(model.slots[s].profiles)):
            choices = model.choices(kind, s, g)
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
    """``c[i,s]`` if its producer is before slot ``s``, a consumer not (L9).

    ``crossed[s]`` if any increment crosses; in a connected graph one always does.
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
    """Let both sides of a boundary say what a slot receives (L16).

    The layer next to it by its layout, and the slot beyond it by its size:
    ``end[l,s,d]`` marks the first layer of the slot in the graph's order, backward the
    last one: exactly one, one that is inside, and no layer inside is before it. If it
    has layout ``j`` of profile ``g``, then ``face[s,g,j,d]``, which with the option
    tells the receive that the slot uses.
    """
    for s, slot in model.slots.items():
        for d in slot.sides:
            model.instance.deadline.check()
            if slot.mixed:
                _end(model, s, d)
                _face(model, s, d)
            if slot.chooses(d):
                _uses(model, s, d)


def _end(model: Model, s: int, d: int) -> None:
    """``x[l,s]`` implies that the first one is at ``l`` or before it."""
    engine = model.engine
    order = model.inside(s)[:: -1 if d == BACKWARD else 1]
    ends = [model.end[layer, s, d] for layer in order]
    engine.add_exactly_one(ends)
    for position, layer in enumerate(order):
        x = model.x[layer, s]
        engine.add_implication(ends[position], x)
        engine.add_bool_or(~x, *ends[: position + 1]).with_name(
            f"receiver[{s},{d},{layer}]"
        )


def _face(model: Model, s: int, d: int) -> None:
    """Give a slot's receiving side the layout of the layer there."""
    engine = model.engine
    for g, profile in enumerate(model.slots[s].profiles):
        engine.add(
            sum(model.face[s, g, j, d] for j in range(len(profile.layouts)))
            == model.w[s, g]
        )
    for (layer, number, g, j), at in model.at.items():
        if number == s:
            engine.add_bool_or(
                model.face[s, g, j, d], ~model.end[layer, s, d], ~at
            ).with_name(f"receiver[{s},{d},{g},{j},{layer}]")


def _uses(model: Model, s: int, d: int) -> None:
    """Choose the receive by option, layout and the size beyond."""
    engine, slot = model.engine, model.slots[s]
    other = model.sender(s, d)
    engine.add_exactly_one(model.uses[s, d, r] for r in range(len(slot.receives[d])))
    for o, option in enumerate(slot.options):
        for j, table in enumerate(option.receives[d]):
            clause = [~model.y[s, o]]
            if slot.mixed:
                clause.append(~model.face[s, option.profile, j, d])
            if len(set(table)) == 1 and table[0] is not None:
                engine.add_bool_or(model.uses[s, d, table[0]], *clause).with_name(
                    f"receiver[{s},{d},{o},{j}]"
                )
                continue
            for n, r in zip(slot.beside, table, strict=True):
                if r is not None and (other, n) in model.width:
                    engine.add_bool_or(
                        model.uses[s, d, r], ~model.width[other, n], *clause
                    ).with_name(f"receiver[{s},{d},{o},{j},{n}]")


def receive(model: Model) -> None:
    """Make a receive as long as at its slowest level (L10).

    ``message(level) crossed + Σ_i Δ_i(level) c[i]`` for every level of the
    receive that the slot uses, where ``Δ_i`` is what increment ``i`` adds.
    """
    if model.instance.artifact:
        _receive_per_edge(model)
        return
    increments = model.instance.graph.increments
    for (s, d, r), uses in model.uses.items():
        model.instance.deadline.check()
        for message, times in model.slots[s].receives[d][r]:
            total: LinearExpr | int = message * model.crossed[s - d]
            for i, step in enumerate(increments):
                total += step.of(times) * model.c[i, s - d]
            model.engine.add(model.receive[s, d] >= total).with_name(
                f"receive[{s},{d},{r}]"
            ).only_enforce_if(uses)


def _receive_per_edge(model: Model) -> None:
    """Make a receive as long as its slowest edge (L10')."""
    for (s, d), received in model.receive.items():
        (((_, times),),) = model.slots[s].receives[d]
        for (source, target, _), time in zip(
            model.instance.graph.edges, times, strict=True
        ):
            inside, outside = (target, source) if d == FORWARD else (source, target)
            if (inside, s) not in model.x:
                continue
            enforced: list[LiteralT] = [model.x[inside, s]]
            if (outside, s) in model.x:
                enforced.append(~model.x[outside, s])
            model.engine.add(received >= time).with_name(
                f"receive[{s},{source},{target},{d}]"
            ).only_enforce_if(enforced)


def change(model: Model) -> None:
    """Make an edge whose layouts differ move its tensor both ways (L17).

    ``moved[e,s,g,j,d] >= at[v,s,g,j] - at[u,s,g,j]`` if both ends of the edge
    ``(u,v)`` are in the slot; backward with ``u`` and ``v`` exchanged.
    """
    edges = model.instance.graph.edges
    for (e, s, g, j, d), moved in model.moved.items():
        source, target, _ = edges[e]
        here, there = (target, source) if d == FORWARD else (source, target)
        clause = [moved, ~model.at[here, s, g, j], ~model.x[there, s]]
        if (there, s, g, j) in model.at:
            clause.append(model.at[there, s, g, j])
        model.engine.add_bool_or(clause).with_name(f"change[{e},{s},{g},{j},{d}]")


def load(model: Model) -> None:
    """``τ_{s,p}``: the layers' time, the receives and the changes (L11).

    What happens on a side counts for some paces of the schedule. Where recomputation
    hides the receive of the gradients, the larger of the two counts (L11').
    """
    totals: dict[tuple[int, ...], LinearExpr | int] = dict.fromkeys(model.load, 0)
    counted = model.instance.counted
    for (e, s, g, j, d), moved in model.moved.items():
        for p, factor in counted[d]:
            totals[s, p] += factor * model.move(e, s, g, j) * moved
    for s in model.slots:
        model.instance.deadline.check()
        recomputed: LinearExpr | int = 0
        for choice, z in _taken(model, s):
            for p, quanta in enumerate(choice.loads):
                totals[s, p] += quanta * z
            recomputed += choice.recomputed * z
        backward = model.receive.get((s, BACKWARD), 0)
        if s in model.hidden:
            model.engine.add_max_equality(model.hidden[s], [recomputed, backward])
            backward = model.hidden[s]
        forward = model.receive.get((s, FORWARD), 0)
        for received, side in zip((forward, backward), counted, strict=True):
            for p, factor in side:
                totals[s, p] += factor * received
    for (s, p), total in totals.items():
        model.engine.add(model.load[s, p] == total).with_name(f"load[{s},{p}]")


def _taken(
    model: Model, s: int, profiles: Iterable[int] | None = None
) -> Iterator[tuple[Choice, IntVar]]:
    """Yield what the layers of a slot can choose, and whether they do."""
    kind_of = model.instance.graph.kind_of
    if profiles is None:
        profiles = range(len(model.slots[s].profiles))
    for g in profiles:
        for layer in model.inside(s):
            for h, choice in enumerate(model.choices(kind_of[layer], s, g)):
                yield choice, model.z[layer, s, g, h]


def bottleneck(model: Model) -> None:
    """``t_max[p] = max_s τ_{s,p}`` (L12)."""
    for p, slowest in model.slowest.items():
        model.engine.add_max_equality(
            slowest, [model.load[s, p] for s in model.slots]
        ).with_name(f"bottleneck[{p}]")


def work_bound(model: Model) -> None:
    """``P t_max[p] >= Σ n_g τ_{l,g,h,p} z[l,s,g,h]``, valid (L13).

    Slots use at most ``P`` devices together, each for at most ``t_max``.
    """
    for p, slowest in model.slowest.items():
        work: LinearExpr | int = 0
        for s, slot in model.slots.items():
            for g, profile in enumerate(slot.profiles):
                for choice, z in _taken(model, s, [g]):
                    quanta = choice.loads[p]
                    if p == model.paces[-1]:
                        quanta += choice.recomputed
                    work += profile.devices * quanta * z
        model.engine.add(model.sub_problem.split.devices * slowest >= work).with_name(
            f"work_bound[{p}]"
        )


def hide(model: Model) -> None:
    """Let gradient sync hide behind a slot's backward pass (L20).

    ``behind[s]`` is at most ``G_s``, what the layers, the changes and the
    receive of one micro-batch take, and at most the share of ``hideable[s]``
    that the job says, by :func:`formulations.common.hiding_line`.
    """
    passes: dict[int, LinearExpr | int] = {
        s: model.receive.get((s, BACKWARD), 0) for s in model.behind
    }
    for (e, s, g, j, d), moved in model.moved.items():
        if d == BACKWARD and s in passes:
            passes[s] += model.move(e, s, g, j) * moved
    for s, behind in model.behind.items():
        model.instance.deadline.check()
        total: LinearExpr | int = 0
        for choice, z in _taken(model, s):
            total += choice.hideable * z
            passes[s] += choice.backward * z
        hideable = model.hideable[s]
        model.engine.add(hideable == total).with_name(f"hideable[{s}]")
        model.engine.add(behind <= passes[s]).with_name(f"hide[{s}]")
        b, a, c = model.hiding_line
        model.engine.add(b * behind <= a * hideable + c).with_name(f"hide[{s},share]")


def hide_less(model: Model, number: int, s: int, hideable: int) -> None:
    """Round the share of so much sync, or less, as the score does (L20')."""
    more = model.binary("more", number)
    most = hidden_sync(hideable, hideable, model.instance.fraction)
    model.engine.add(model.hideable[s] > hideable).only_enforce_if(more)
    model.engine.add(model.behind[s] <= most).only_enforce_if(~more)


def sync(model: Model) -> None:
    """``Y >= Σ Y_{l,g,h} z[l,s,g,h] - behind[s]``, if it counts (L14)."""
    counted = list(model.slots)
    if model.instance.artifact:
        counted = [max(model.slots)]
    for s in counted:
        total: LinearExpr | int = model.slots[s].sync_constant
        for choice, z in _taken(model, s):
            total += choice.sync * z
        if s in model.behind:
            total -= model.behind[s]
        model.engine.add(model.sync >= total).with_name(f"sync[{s}]")


def passing(model: Model) -> None:
    """Let what leaves a slot that did not make it pass the slot (L18).

    ``passes[i,s] >= c[i,s-1] - x[u,s]`` for its producer ``u``.
    """
    for (i, s), passes in model.passes.items():
        producer = model.instance.graph.increments[i].producer
        clause = [passes, ~model.c[i, s - 1]]
        if (producer, s) in model.x:
            clause.append(model.x[producer, s])
        model.engine.add_bool_or(clause).with_name(f"passing[{i},{s}]")


def memory(model: Model) -> None:
    """Fit what a slot keeps and its largest working set into memory (L15).

    Resident bytes of its layers, and the tensors that pass it, as the layout
    of its first layer has it.
    """
    engine = model.engine
    increments = model.instance.graph.increments
    passes: dict[int, list[tuple[int, IntVar]]] = {}
    for (i, s), passed in model.passes.items():
        passes.setdefault(s, []).append((i, passed))
    for s, slot in model.slots.items():
        kept = _entering(model, s)
        for g, profile in enumerate(slot.profiles):
            if not profile.tight:
                continue
            model.instance.deadline.check()
            capacity = profile.capacity_bytes
            working = engine.new_int_var(0, capacity, f"working_{s}_{g}")
            total: LinearExpr | int = working + kept
            for choice, z in _taken(model, s, [g]):
                engine.add(working >= choice.working_bytes * z)
                total += choice.resident_bytes * z
            rows = [(model.w[s, g], total)]
            if s in passes:
                rows = [
                    (
                        enforced,
                        total + sum(increments[i].of(sizes) * v for i, v in passes[s]),
                    )
                    for enforced, sizes in model.held(s, g)
                ]
            for enforced, row in rows:
                engine.add(row <= capacity).with_name(
                    f"memory[{s},{g}]"
                ).only_enforce_if(enforced)


def _entering(model: Model, s: int) -> LinearExpr | int:
    """Return the bytes kept of tensors that enter a slot (L22)."""
    total: LinearExpr | int = 0
    for (source, target, _), size_bytes in zip(
        model.instance.graph.edges, model.slots[s].entering_bytes, strict=False
    ):
        if (target, s) not in model.x:
            continue
        enters = model.binary("enters", source, target, s)
        outside: list[IntVar] = []
        if (source, s) in model.x:
            outside.append(model.x[source, s])
        model.engine.add_bool_or(enters, ~model.x[target, s], *outside)
        total += size_bytes * enters
    return total
