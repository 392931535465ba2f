"""Constraints of the MILP model.

The functions have the names of their counterparts for CP-SAT; the numbers
are those of the equations in ``formulations/README.md``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from formulations.common import BACKWARD, FORWARD
from formulations.milp.variables import Content, Model, Terms
from formulations.variables import Variable
from nest.cost.rules import hidden_sync

LESS, EQUAL, MORE = -1, 0, 1

#: Memory rows may be missed by this much of the capacity; what slips through
#: is cut off when its plan turns out not to fit.
MEMORY_SLACK = 1e-7

#: What may hide of sync may be missed by this much of a quantum: it is a whole
#: number wherever a quantum can be told from none.
QUANTUM_SLACK = 1e-3


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
        add(model)


def one_option_per_slot(model: Model) -> None:
    """``Σ_o y[s,o] = 1``; ``w[s,g] = Σ_{o: g(o)=g} y[s,o]`` (L3).

    The same for ``width[s,n]``, by devices, and for ``uses[s,d,r]``, unless
    that depends on more.
    """
    for s, slot in model.slots.items():
        name = f"one_option_per_slot_{s}"
        options = [(model.y[s, o], 1.0) for o in range(len(slot.options))]
        model.add(name, options, EQUAL, 1)
        for g in range(len(slot.profiles)):
            terms = [
                y
                for y, option in zip(options, slot.options, strict=True)
                if option.profile == g
            ]
            w = (model.w[s, g], -1.0)
            model.add(f"{name}_{g}", [*terms, w], EQUAL)
        for (other, n), width in model.width.items():
            if other == s:
                terms = [
                    y
                    for y, option in zip(options, slot.options, strict=True)
                    if option.devices == n
                ]
                model.add(f"{name}_width_{n}", [*terms, (width, -1.0)], EQUAL)
        for d in slot.sides:
            if slot.chooses(d):
                continue
            for r in range(len(slot.receives[d])):
                terms = [
                    y
                    for y, option in zip(options, slot.options, strict=True)
                    if option.receives[d][0][0] == r
                ]
                uses = (model.uses[s, d, r], -1.0)
                model.add(f"{name}_uses_{d}_{r}", [*terms, uses], EQUAL)


def consecutive_blocks(model: Model) -> None:
    """Start a slot at ``p`` iff the one before it ends at ``p`` (L4)."""
    order = sorted(model.slots, reverse=True)
    if model.instance.artifact:
        order.reverse()
    for before, after in pairwise(order):
        terms: dict[int, Terms] = {}
        for o, option in enumerate(model.slots[before].options):
            end = option.offset + option.devices
            terms.setdefault(end, []).append((model.y[before, o], 1))
        for o, option in enumerate(model.slots[after].options):
            terms.setdefault(option.offset, []).append((model.y[after, o], -1))
        for p in sorted(terms):
            model.add(f"consecutive_blocks_{after}_{p}", terms[p], EQUAL)


def one_slot_per_layer(model: Model) -> None:
    """``Σ_s x[l,s] = 1`` (L5)."""
    for layer in model.layers:
        slots = _late(model, layer, len(model.slots), 1)
        model.add(f"one_slot_per_layer_{layer}", slots, EQUAL, 1)


def nonempty_slots(model: Model) -> None:
    """``Σ_l x[l,s] >= 1`` (L6)."""
    for s in model.slots:
        layers: Terms = [(model.x[layer, s], 1) for layer in model.inside(s)]
        model.add(f"nonempty_slots_{s}", layers, MORE, 1)


def even_layers(model: Model) -> None:
    """``S Σ_{l of κ} x[l,s] = c`` for each kind of ``c > 1`` layers (L19)."""
    for kind, layers, share in model.even_shares:
        for s in model.slots:
            terms: Terms = [(model.x[i, s], 1) for i in layers if (i, s) in model.x]
            model.add(f"even_layers_{kind}_{s}", terms, EQUAL, share)


def one_stage(model: Model) -> None:
    """``x[l,s] = x[m,s]`` for layers that no slots may part (L21)."""
    for layer, other in pairwise(model.together):
        for s in model.slots:
            terms: Terms = [
                (model.x[i, s], sign)
                for i, sign in ((layer, 1), (other, -1))
                if (i, s) in model.x
            ]
            if terms:
                model.add(f"one_stage_{layer}_{other}_{s}", terms, EQUAL)


def _late(model: Model, layer: int, s: int, sign: float) -> Terms:
    """Return ``± Σ_{r<=s} x[l,r]``: 1 if the layer is not before slot s."""
    return [(model.x[layer, r], sign) for r in range(1, s + 1) if (layer, r) in model.x]


def precedence(model: Model) -> None:
    """``Σ_{r<=s} x[u,r] <= Σ_{r<=s} x[v,r]`` for each edge ``(u,v)`` (L7)."""
    for source, target, _ in model.instance.graph.edges:
        for s in range(1, len(model.slots)):
            model.add(
                f"precedence_{source}_{target}_{s}",
                _late(model, source, s, 1) + _late(model, target, s, -1),
                LESS,
            )


def linking(model: Model) -> None:
    """``q[κ,s,g,h]`` counts the layers of a kind that take a choice (L8).

    ``Σ_{g,h} q[κ,s,g,h] = Σ_{l in κ} x[l,s]``, ``q <= |κ| some``, ``some <=
    w`` and, for every layer, ``Σ_{g,h} some[κ,s,g,h] >= x[l,s]``.
    """
    for s, slot in model.slots.items():
        of_kind: dict[int, list[tuple[int, int]]] = {}
        for kind, g, h, _ in model.counts(s):
            of_kind.setdefault(kind, []).append((g, h))
        for kind, members in enumerate(model.instance.graph.members):
            indices = [(kind, s, g, h) for g, h in of_kind.get(kind, [])]
            inside = [model.x[layer, s] for layer in members if (layer, s) in model.x]
            name = f"linking_{kind}_{s}"
            counted: Terms = [(model.q[index], 1) for index in indices]
            model.add(name, counted + [(x, -1) for x in inside], EQUAL)
            some: Terms = [(model.some[index], 1) for index in indices]
            for i, x in enumerate(inside):
                model.add(f"{name}_any_{i}", [*some, (x, -1)], MORE)
            for q, p, (_, _, g, h) in zip(counted, some, indices, strict=True):
                w = model.w[s, g]
                name = f"linking_{kind}_{s}_{g}_{h}"
                most = -len(inside)
                model.add(f"{name}_number", [q, (p[0], most)], LESS)
                model.add(f"{name}_profile", [p, (w, -1)], LESS)
        if slot.mixed:
            _link_layouts(model, s)


def _link_layouts(model: Model, s: int) -> None:
    """``Σ_{g,j} at[l,s,g,j] = x[l,s]``, and as many as the counts say (L8).

    ``Σ_{l in κ} at[l,s,g,j] = Σ_{h of layout j} q[κ,s,g,h]``;
    ``Σ_j at[l,s,g,j] <= w[s,g]``.
    """
    profiles = model.slots[s].profiles
    for layer in model.inside(s):
        all_of_it: Terms = [(model.x[layer, s], -1)]
        for g, profile in enumerate(profiles):
            found: Terms = [
                (model.at[layer, s, g, j], 1)
                for j in range(len(profile.layouts))
                if (layer, s, g, j) in model.at
            ]
            all_of_it += found
            name = f"linking_at_{layer}_{s}_{g}"
            model.add(name, [*found, (model.w[s, g], -1)], LESS)
        model.add(f"linking_at_{layer}_{s}", all_of_it, EQUAL)
    for kind, members in enumerate(model.instance.graph.members):
        for g, profile in enumerate(profiles):
            for j in range(len(profile.layouts)):
                terms: Terms = [
                    (model.q[kind, s, g, h], -1)
                    for h, choice in enumerate(profile.choices[kind])
                    if choice.layout == j
                ]
                terms += [
                    (model.at[layer, s, g, j], 1)
                    for layer in members
                    if (layer, s, g, j) in model.at
                ]
                model.add(f"linking_{kind}_{s}_{g}_layout_{j}", terms, EQUAL)


def crossing(model: Model) -> None:
    """``c[i,s]`` if its producer is before slot ``s``, a consumer not (L9).

    ``c[i,s] >= Σ_{r<=s} x[v,r] - Σ_{r<=s} x[u,r]`` for all its consumers;
    ``crossed[s] >= c[i,s]``, and 1 in a connected graph.
    """
    graph = model.instance.graph
    if graph.connected:
        for s, crossed in model.crossed.items():
            model.add(f"crossing_{s}", [(crossed, 1)], EQUAL, 1)
    for (i, s), c in model.c.items():
        increment = graph.increments[i]
        before = _late(model, increment.producer, s, 1)
        for consumer in increment.consumers:
            terms = [(c, 1), *_late(model, consumer, s, -1), *before]
            model.add(f"crossing_{i}_{s}_{consumer}", terms, MORE)
        if not graph.connected:
            terms = [(model.crossed[s], 1), (c, -1)]
            model.add(f"crossing_{i}_{s}", terms, MORE)


def receiver(model: Model) -> None:
    """Let both sides of a boundary say what a slot receives (L16).

    The layer next to it by its layout, and the slot beyond it by its size: ``Σ_l
    end[l,s,d] = 1`` and ``end[l,s,d] <= x[l,s] <= Σ end[m,s,d]`` over the layers ``m``
    up to ``l`` in the graph's order, backward from ``l`` on; ``Σ_j face[s,g,j,d] =
    w[s,g]``, ``face[s,g,j,d] >= end[l,s,d] + at[l,s,g,j] - 1``; ``Σ_r uses[s,d,r] =
    1``, ``uses[s,d,r] >= Σ y[s,o] + Σ face[s,g,j,d] + Σ width[s',n] - 2`` over options,
    layouts and sizes that receive so, without what makes no difference.
    """
    for s, slot in model.slots.items():
        for d in slot.sides:
            name = f"receiver_{s}_{d}"
            if slot.mixed:
                _end(model, name, s, d)
                _face(model, name, s, d)
            if slot.chooses(d):
                _uses(model, name, s, d)


def _end(model: Model, name: str, s: int, d: int) -> None:
    """Mark the first layer of a slot in the order of its side."""
    order = model.inside(s)
    if d == BACKWARD:
        order.reverse()
    so_far: Terms = []
    for layer in order:
        end, x = model.end[layer, s, d], model.x[layer, s]
        so_far = [*so_far, (end, 1)]
        model.add(f"{name}_inside_{layer}", [(end, 1), (x, -1)], LESS)
        model.add(f"{name}_first_{layer}", [*so_far, (x, -1)], MORE)
    model.add(name, so_far, EQUAL, 1)


def _face(model: Model, name: str, s: int, d: int) -> None:
    """Give a slot's receiving side the layout of the layer there."""
    for g, profile in enumerate(model.slots[s].profiles):
        sides: Terms = [
            (model.face[s, g, j, d], 1) for j in range(len(profile.layouts))
        ]
        model.add(f"{name}_layout_{g}", [*sides, (model.w[s, g], -1)], EQUAL)
    for (layer, number, g, j), at in model.at.items():
        if number == s:
            terms: Terms = [(model.face[s, g, j, d], 1), (at, -1)]
            terms.append((model.end[layer, s, d], -1))
            model.add(f"{name}_layout_{g}_{j}_{layer}", terms, MORE, -1)


def _uses(model: Model, name: str, s: int, d: int) -> None:
    """Choose the receive by option, layout and the size beyond."""
    slot, other = model.slots[s], model.sender(s, d)
    alike: dict[tuple[int, tuple[tuple[int | None, ...], ...]], Terms] = {}
    for o, option in enumerate(slot.options):
        found = alike.setdefault((option.profile, option.receives[d]), [])
        found.append((model.y[s, o], -1))
    used: Terms = [(model.uses[s, d, r], 1) for r in range(len(slot.receives[d]))]
    model.add(f"{name}_any", used, EQUAL, 1)
    for i, ((g, tables), options) in enumerate(alike.items()):
        for j, table in enumerate(dict.fromkeys(tables)):
            layouts: Terms = [
                (model.face[s, g, layout, d], -1)
                for layout, same in enumerate(tables)
                if slot.mixed and same == table
            ]
            for r in sorted({r for r in table if r is not None}):
                widths: Terms = [
                    (model.width[other, n], -1)
                    for n, found in zip(slot.beside, table, strict=True)
                    if found == r and (other, n) in model.width
                ]
                if len(set(table)) == 1:
                    widths = []
                elif not widths:
                    continue
                terms = [(model.uses[s, d, r], 1), *options]
                terms += [*layouts, *widths]
                least = -bool(layouts) - bool(widths)
                model.add(f"{name}_uses_{i}_{j}_{r}", terms, MORE, least)


def receive(model: Model) -> None:
    """Make a receive as long as at its slowest level (L10), or edge (L10').

    ``R >= Σ_r (message_r crossed_r + Σ_i Δ_{i,r} c_{i,r})`` for every level,
    of what crosses while the slot uses receive ``r``, see :func:`_split`.
    """
    for (s, d), received in model.receive.items():
        name = f"receive_{s}_{d}"
        receives = model.slots[s].receives[d]
        if model.instance.artifact:
            _receive_per_edge(model, name, s, d)
            continue
        uses = [model.uses[s, d, r] for r in range(len(receives))]
        used = _split(model, f"{name}_any", [model.crossed[s - d]], uses)
        parts = [(-1, r, part) for r, part in enumerate(used)]
        crossing = [
            model.c[i, s - d] for i in range(len(model.instance.graph.increments))
        ]
        for i, alike in _classes(model, crossing).items():
            used = _split(model, f"{name}_{i}", alike, uses)
            parts += [(i, r, part) for r, part in enumerate(used)]
        for row in range(max(map(len, receives))):
            terms: Terms = [(received, 1)]
            for i, r, part in parts:
                # Repeating a row of a receive with fewer levels is harmless.
                rows = receives[r]
                message, times = rows[min(row, len(rows) - 1)]
                if i >= 0:
                    message = model.instance.graph.increments[i].of(times)
                terms.append((part, -model.scaled(message)))
            model.add(f"{name}_level_{row}", terms, MORE)


def _classes(
    model: Model, variables: Sequence[Variable], of: Sequence[int] = ()
) -> dict[int, list[Variable]]:
    """Return variables of increments together where their sizes agree.

    By one increment of each class; ``of`` says which ones they belong to if
    these are not all.
    """
    classes: dict[tuple[int, int], tuple[int, list[Variable]]] = {}
    for i, variable in zip(of or range(len(variables)), variables, strict=True):
        step = model.instance.graph.increments[i]
        _, found = classes.setdefault((step.lower, step.upper), (i, []))
        found.append(variable)
    return dict(classes.values())


def _split(
    model: Model, name: str, amounts: list[Variable], uses: Sequence[Variable]
) -> list[Variable]:
    """Return how many of some 0/1 amounts count for which of some uses.

    ``Σ_r v[r] = Σ amounts`` and ``v[r] <= |amounts| uses[r]``: all of them
    for the use that is 1.
    """
    parts = []
    for r, used in enumerate(uses):
        part = model.variable(name, "part", r, most=len(amounts))
        terms: Terms = [(part, 1), (used, -len(amounts))]
        model.add(f"{name}_used_{r}", terms, LESS)
        parts.append(part)
    total: Terms = [(part, 1) for part in parts]
    total += [(amount, -1) for amount in amounts]
    model.add(f"{name}_split", total, EQUAL)
    return parts


def _receive_per_edge(model: Model, name: str, s: int, d: int) -> None:
    """``R_s >= time_e (x[inside,s] - x[outside,s])`` for every edge (L10')."""
    (((_, times),),) = model.slots[s].receives[d]
    for (source, target, _), time in zip(
        model.instance.graph.edges, times, strict=True
    ):
        inside, outside = (target, source) if d == FORWARD else (source, target)
        terms: Terms = [(model.receive[s, d], 1)]
        if (inside, s) in model.x:
            terms.append((model.x[inside, s], -model.scaled(time)))
        if (outside, s) in model.x:
            terms.append((model.x[outside, s], model.scaled(time)))
        model.add(f"{name}_{source}_{target}", terms, MORE)


def change(model: Model) -> None:
    """Make an edge whose layouts differ move its tensor both ways (L17).

    ``moved[e,s,g,j,d] >= at[v,s,g,j] + x[u,s] - at[u,s,g,j] - 1`` for the
    edge ``(u,v)``; backward with ``u`` and ``v`` exchanged.
    """
    edges = model.instance.graph.edges
    for (e, s, g, j, d), moved in model.moved.items():
        there, here, _ = edges[e]
        if d == BACKWARD:
            here, there = there, here
        terms: Terms = [
            (moved, 1),
            (model.at[here, s, g, j], -1),
            (model.x[there, s], -1),
        ]
        if (there, s, g, j) in model.at:
            terms.append((model.at[there, s, g, j], 1))
        model.add(f"change_{e}_{s}_{g}_{j}_{d}", terms, MORE, -1)


def load(model: Model) -> None:
    """``τ_{s,p}``: the layers' time, the receives and the changes (L11).

    What happens on a side counts for some paces of the schedule. Where
    recomputation hides the receive of the gradients, the larger of the two
    counts: ``hidden`` is at least either (L11').
    """
    counted = model.instance.counted
    totals: dict[tuple[int, ...], Terms] = {
        index: [(tau, -1)] for index, tau in model.load.items()
    }
    for (e, s, g, j, d), moved in model.moved.items():
        quanta = model.scaled(model.move(e, s, g, j))
        for p, factor in counted[d]:
            totals[s, p].append((moved, factor * quanta))
    for (s, d), received in model.receive.items():
        if d == BACKWARD and s in model.hidden:
            terms: Terms = [(model.hidden[s], 1), (received, -1)]
            model.add(f"load_{s}_receive", terms, MORE)
        else:
            for p, factor in counted[d]:
                totals[s, p].append((received, factor))
    for s in model.slots:
        recomputed: Terms = []
        for kind, g, h, choice in model.counts(s):
            q = model.q[kind, s, g, h]
            for p, quanta in enumerate(map(model.scaled, choice.loads)):
                totals[s, p].append((q, quanta))
            recomputed.append((q, -model.scaled(choice.recomputed)))
        if s in model.hidden:
            terms = [(model.hidden[s], 1), *recomputed]
            model.add(f"load_{s}_recomputed", terms, MORE)
            for p, factor in counted[BACKWARD]:
                totals[s, p].append((model.hidden[s], factor))
    for (s, p), total in totals.items():
        model.add(f"load_{s}_{p}", total, EQUAL)


def bottleneck(model: Model) -> None:
    """``t_max[p] >= τ_{s,p}`` (L12)."""
    for (s, p), tau in model.load.items():
        terms: Terms = [(model.slowest[p], 1), (tau, -1)]
        model.add(f"bottleneck_{s}_{p}", terms, MORE)


def work_bound(model: Model) -> None:
    """``P t_max[p] >= Σ n_g τ_{κ,g,h,p} q[κ,s,g,h]``, valid (L13).

    Slots use at most ``P`` devices together, each for at most ``t_max``.
    """
    devices = model.sub_problem.split.devices
    last = model.paces[-1]
    for p, slowest in model.slowest.items():
        work: Terms = [(slowest, -1)]
        for s, slot in model.slots.items():
            for kind, g, h, choice in model.counts(s):
                load = choice.loads[p] + (p == last) * choice.recomputed
                share = slot.profiles[g].devices / devices
                work.append((model.q[kind, s, g, h], model.scaled(load) * share))
        model.add(f"work_bound_{p}", work, LESS)


def hide(model: Model) -> None:
    """Let gradient sync hide behind a slot's backward pass (L20).

    ``behind[s] <= G_s``, what the layers, the changes and the receive of one
    micro-batch take, and ``behind[s] <= φ hideable[s] + 0.5``, of which the
    whole quanta count where one can be told from none.
    """
    passes: dict[int, Terms] = {
        s: [(behind, model.quantum)] for s, behind in model.behind.items()
    }
    for (s, d), received in model.receive.items():
        if d == BACKWARD and s in passes:
            passes[s].append((received, -1))
    for (e, s, g, j, d), moved in model.moved.items():
        if d == BACKWARD and s in passes:
            quanta = model.scaled(model.move(e, s, g, j))
            passes[s].append((moved, -quanta))
    for s, behind in model.behind.items():
        total: Terms = [(model.hideable[s], -1)]
        for kind, g, h, choice in model.counts(s):
            q = model.q[kind, s, g, h]
            total.append((q, model.scaled(choice.hideable)))
            passes[s].append((q, -model.scaled(choice.backward)))
        model.add(f"hideable_{s}", total, EQUAL)
        model.add(f"hide_{s}", passes[s], LESS)
        share: Terms = [(behind, model.quantum)]
        share.append((model.hideable[s], -model.instance.fraction))
        half = model.scaled(0.5 + QUANTUM_SLACK)
        model.add(f"hide_{s}_share", share, LESS, half)


def hide_less(model: Model, number: int, s: int, hideable: int) -> None:
    """Round the share of so much sync, or less, as the score does (L20').

    ``hideable[s] >= (hideable + 0.5) more``, ``behind[s] <= ⌊φ hideable +
    0.5⌋ + most more``.
    """
    more = model.binary("more", number)
    most = hidden_sync(hideable, hideable, model.instance.fraction)
    least = -model.scaled(hideable + 0.5)
    terms: Terms = [(model.hideable[s], 1), (more, least)]
    model.add(f"hide_less_{number}_more", terms, MORE)
    room = model.scaled(model.most_hideable - most)
    terms = [(model.behind[s], model.quantum), (more, -room)]
    most_hidden = model.scaled(most + QUANTUM_SLACK)
    model.add(f"hide_less_{number}", terms, LESS, most_hidden)


def sync(model: Model) -> None:
    """``Y >= Σ Y_{κ,g,h} q[κ,s,g,h] - behind[s]``, if it counts (L14)."""
    counted = list(model.slots)
    if model.instance.artifact:
        counted = [max(model.slots)]
    for s in counted:
        total: Terms = [(model.sync, 1)]
        for kind, g, h, choice in model.counts(s):
            total.append((model.q[kind, s, g, h], -model.scaled(choice.sync)))
        if s in model.behind:
            total.append((model.behind[s], model.quantum))
        constant = model.scaled(model.slots[s].sync_constant)
        model.add(f"sync_{s}", total, MORE, constant)


def passing(model: Model) -> None:
    """Let what leaves a slot that did not make it pass the slot (L18).

    ``passes[i,s] >= c[i,s-1] - x[u,s]`` for its producer ``u``.
    """
    for (i, s), passes in model.passes.items():
        producer = model.instance.graph.increments[i].producer
        terms: Terms = [(passes, 1), (model.c[i, s - 1], -1)]
        if (producer, s) in model.x:
            terms.append((model.x[producer, s], 1))
        model.add(f"passing_{i}_{s}", terms, MORE)


def memory(model: Model) -> None:
    """Fit what a slot keeps and its largest working set into memory (L15).

    Of the terms of several profiles only those of the one in use count:
    profiles exclude each other.
    """
    for s, slot in model.slots.items():
        if not any(profile.tight for profile in slot.profiles):
            continue
        working = model.variable("working", s)
        total = [(working, 1.0), *_entering(model, s), *_held(model, s)]
        needs: dict[tuple[int, int], Terms] = {}
        for kind, g, h, choice in model.counts(s):
            index = (kind, s, g, h)
            total.append((model.q[index], model.size(choice.resident_bytes)))
            needs.setdefault((kind, h), []).append(
                (model.some[index], -model.size(choice.working_bytes))
            )
        for (kind, h), row in needs.items():
            model.add(f"memory_{s}_{kind}_{h}", [(working, 1), *row], MORE)
        for g, profile in enumerate(slot.profiles):
            capacity = model.size(profile.capacity_bytes) * (1 + MEMORY_SLACK)
            total.append((model.w[s, g], -capacity))
        model.add(f"memory_{s}", total, LESS)


def _held(model: Model, s: int) -> Terms:
    """Return the bytes of tensors that pass a slot, see :func:`_split`.

    They depend on its profile and on the layout of its first layer; of a
    profile that is not tight they count nothing.
    """
    passing = [i for i in model.instance.passing if (i, s) in model.passes]
    uses: list[Variable] = []
    tables: list[tuple[int, ...]] = []
    for g in range(len(model.slots[s].profiles)):
        held = model.held(s, g) or [(model.w[s, g], ())]
        uses += [variable for variable, _ in held]
        tables += [sizes for _, sizes in held]
    total: Terms = []
    variables = [model.passes[i, s] for i in passing]
    for i, alike in _classes(model, variables, passing).items():
        step = model.instance.graph.increments[i]
        parts = _split(model, f"memory_{s}_passes_{i}", alike, uses)
        for part, sizes in zip(parts, tables, strict=True):
            if sizes:
                total.append((part, model.size(step.of(sizes))))
    return total


def _entering(model: Model, s: int) -> Terms:
    """Return the bytes kept of tensors that enter a slot (L22).

    ``enters >= x[v,s] - x[u,s]`` for edge ``(u,v)``.
    """
    total: Terms = []
    for e, size_bytes in enumerate(model.slots[s].entering_bytes):
        source, target, _ = model.instance.graph.edges[e]
        if (target, s) not in model.x:
            continue
        enters = model.share("enters", e, s)
        terms: Terms = [(enters, 1), (model.x[target, s], -1)]
        if (source, s) in model.x:
            terms.append((model.x[source, s], 1))
        model.add(f"memory_{s}_enters_{e}", terms, MORE)
        total.append((enters, model.size(size_bytes)))
    return total


def forbid(model: Model, number: int, s: int, content: Content) -> None:
    """Cut off one slot's content that does not fit its memory (L15').

    ``w[s,g] + Σ_{l inside} x[l,s] - Σ_{l outside} x[l,s] + Σ passes[i,s] <=
    |inside| + |passing|`` over the increments that pass it. More of either
    need no less memory, so that layers outside count only where tensors that
    enter are kept. Where layers choose, the number that takes each choice
    counts instead; where they can differ in layout, that of the first one
    does too if anything passes.
    """
    g, slot = content.profile, model.slots[s]
    terms: Terms = [(model.passes[i, s], 1) for i in content.passing]
    if slot.mixed and terms:
        terms.append((model.face[s, g, content.front, FORWARD], 1))
    if any(len(kind) > 1 for kind in slot.profiles[g].choices):
        for (kind, h), count in content.counts.items():
            name = f"forbid_{number}_{kind}_{h}"
            as_many = _as_many(model, name, (kind, s, g, h), count)
            terms.append((as_many, 1))
    else:
        terms.append((model.w[s, g], 1))
        terms += [(model.x[layer, s], 1) for layer in content.layers]
    most = len(terms) - 1
    if slot.entering_bytes:
        outside = set(model.inside(s)) - set(content.layers)
        terms += [(model.x[layer, s], -1) for layer in sorted(outside)]
    model.add(f"forbid_{number}", terms, LESS, most)


def _as_many(model: Model, name: str, index: tuple[int, ...], count: int) -> Variable:
    """Return whether so many layers or more take a choice (L15').

    ``q[κ,s,g,h] <= count - 1 + (|κ| - count + 1) b``.
    """
    as_many = model.binary(name, "as_many")
    most = len(model.instance.graph.members[index[0]])
    terms: Terms = [(model.q[index], 1), (as_many, count - 1 - most)]
    model.add(name, terms, LESS, count - 1)
    return as_many
