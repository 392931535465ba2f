"""Constraints of the MILP model.

The functions have the names of their counterparts for CP-SAT; the numbers
are those of the equations in ``formulations/README.md``.
"""

from __future__ import annotations

from itertools import pairwise

from formulations.common import Choice, Receive, check_time
from formulations.milp.variables import Content, Model, Terms

LESS, EQUAL, MORE = -1, 0, 1

#: Memory rows may be missed by this much of the capacity; what slips through
#: is cut off when its plan turns out not to fit.
MEMORY_SLACK = 1e-7


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
    """``Σ_o y[s,o] = 1``; ``w[s,g] = Σ_{o: g(o)=g} y[s,o]`` (1)."""
    for s, slot in model.slots.items():
        options = list(enumerate(slot.options))
        model.add(
            f"one_option_per_slot_{s}",
            [(model.y[s, o], 1) for o, _ in options],
            EQUAL,
            1,
        )
        for g in range(len(slot.profiles)):
            terms = [
                (model.y[s, o], 1.0)
                for o, option in options
                if option.profile == g
            ]
            model.add(
                f"one_option_per_slot_{s}_{g}",
                [*terms, (model.w[s, g], -1)],
                EQUAL,
            )


def consecutive_blocks(model: Model) -> None:
    """Start a slot at ``p`` iff the one before it ends at ``p`` (2)."""
    order = sorted(model.slots, reverse=True)
    if model.instance.preset.last_stage_first:
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
    """``Σ_s x[l,s] = 1`` (3)."""
    for layer in model.layers:
        model.add(
            f"one_slot_per_layer_{layer}",
            [
                (model.x[layer, s], 1)
                for s in model.slots
                if (layer, s) in model.x
            ],
            EQUAL,
            1,
        )


def nonempty_slots(model: Model) -> None:
    """``Σ_l x[l,s] >= 1`` (4)."""
    for s in model.slots:
        model.add(
            f"nonempty_slots_{s}",
            [
                (model.x[layer, s], 1)
                for layer in model.layers
                if (layer, s) in model.x
            ],
            MORE,
            1,
        )


def _late(model: Model, layer: int, s: int, sign: float) -> Terms:
    """Return ``± Σ_{r<=s} x[l,r]``: 1 if the layer is not before slot s."""
    return [
        (model.x[layer, r], sign)
        for r in range(1, s + 1)
        if (layer, r) in model.x
    ]


def precedence(model: Model) -> None:
    """``Σ_{r<=s} x[u,r] <= Σ_{r<=s} x[v,r]`` for each edge ``(u,v)`` (5)."""
    for source, target, _ in model.instance.graph.edges:
        for s in range(1, len(model.slots)):
            model.add(
                f"precedence_{source}_{target}_{s}",
                _late(model, source, s, 1) + _late(model, target, s, -1),
                LESS,
            )


def linking(model: Model) -> None:
    """``q[κ,s,g,h]`` counts the layers of a kind that take a choice (6).

    ``Σ_{g,h} q[κ,s,g,h] = Σ_{l in κ} x[l,s]``, ``q <= |κ| p``, ``p <= w``
    and, for every layer, ``Σ_{g,h} p[κ,s,g,h] >= x[l,s]``.
    """
    for kind, members in enumerate(model.instance.graph.members):
        for s in model.slots:
            choices = [
                (g, h)
                for number, slot, g, h in model.q
                if (number, slot) == (kind, s)
            ]
            inside = [
                model.x[layer, s] for layer in members if (layer, s) in model.x
            ]
            name = f"linking_{kind}_{s}"
            model.add(
                name,
                [(model.q[kind, s, g, h], 1) for g, h in choices]
                + [(x, -1) for x in inside],
                EQUAL,
            )
            present = [(model.p[kind, s, g, h], 1.0) for g, h in choices]
            for i, x in enumerate(inside):
                model.add(f"{name}_any_{i}", [*present, (x, -1)], MORE)
            for g, h in choices:
                p, w = model.p[kind, s, g, h], model.w[s, g]
                model.add(
                    f"{name}_{g}_{h}_number",
                    [(model.q[kind, s, g, h], 1), (p, -len(inside))],
                    LESS,
                )
                model.add(f"{name}_{g}_{h}_profile", [(p, 1), (w, -1)], LESS)
    for s, slot in model.slots.items():
        if slot.mixed:
            _link_layouts(model, s)


def _link_layouts(model: Model, s: int) -> None:
    """``Σ_{g,j} at[l,s,g,j] = x[l,s]``, and as many as the counts say (6).

    ``Σ_{l in κ} at[l,s,g,j] = Σ_{h of layout j} q[κ,s,g,h]``;
    ``Σ_j at[l,s,g,j] <= w[s,g]``.
    """
    for layer in model.layers:
        if (layer, s) not in model.x:
            continue
        all_of_it: Terms = [(model.x[layer, s], -1)]
        for g, profile in enumerate(model.slots[s].profiles):
            found: Terms = [
                (model.at[layer, s, g, j], 1)
                for j in range(len(profile.layouts))
                if (layer, s, g, j) in model.at
            ]
            all_of_it += found
            model.add(
                f"linking_at_{layer}_{s}_{g}",
                [*found, (model.w[s, g], -1)],
                LESS,
            )
        model.add(f"linking_at_{layer}_{s}", all_of_it, EQUAL)
    for kind, members in enumerate(model.instance.graph.members):
        for g, profile in enumerate(model.slots[s].profiles):
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
    """``c[i,s]`` if its producer is before slot ``s``, a consumer not (7).

    ``c[i,s] >= Σ_{r<=s} x[v,r] - Σ_{r<=s} x[u,r]`` for all its consumers;
    ``crossed[s] >= c[i,s]``, and 1 in a connected graph.
    """
    graph = model.instance.graph
    for s, crossed in model.crossed.items():
        if graph.connected:
            model.add(f"crossing_{s}", [(crossed, 1)], EQUAL, 1)
    for (i, s), c in model.c.items():
        increment = graph.increments[i]
        for consumer in increment.consumers:
            model.add(
                f"crossing_{i}_{s}_{consumer}",
                [
                    (c, 1),
                    *_late(model, consumer, s, -1),
                    *_late(model, increment.producer, s, 1),
                ],
                MORE,
            )
        if not graph.connected:
            model.add(
                f"crossing_{i}_{s}", [(model.crossed[s], 1), (c, -1)], MORE
            )


def receiver(model: Model) -> None:
    """Let the layer next to a boundary say what its slot receives (18).

    ``Σ_l first[l,s] = 1`` and ``first[l,s] <= x[l,s] <= Σ first[m,s]`` over
    the layers ``m`` up to ``l`` in the graph's order;
    ``Σ_j front[s,g,j] = w[s,g]``, ``front[s,g,j] >= first[l,s] +
    at[l,s,g,j] - 1``; ``Σ_r uses[s,r] = 1``, ``uses[s,r] >= Σ y[s,o] +
    Σ front[s,g,j] - 1`` over options and layouts that receive so. The same
    backward, with ``last`` and ``back``.
    """
    for s, slot in model.slots.items():
        if not slot.mixed:
            continue
        check_time(model.deadline)
        order = [i for i in model.instance.graph.order if (i, s) in model.x]
        for name, order_of, tables, ends, faces, uses in (
            (
                "forward",
                order,
                [option.forward for option in slot.options],
                model.first,
                model.front,
                model.uses_forward,
            ),
            (
                "backward",
                order[::-1],
                [option.backward for option in slot.options],
                model.last,
                model.back,
                model.uses_backward,
            ),
        ):
            if any(tables):
                name = f"receiver_{name}_{s}"
                _end(model, name, s, order_of, ends)
                _face(model, name, s, ends, faces)
                _uses(model, name, s, tables, faces, uses)


def _end(
    model: Model,
    name: str,
    s: int,
    order: list[int],
    ends: dict[tuple[int, int], object],
) -> None:
    """Mark the first layer of a slot in an order."""
    so_far: Terms = []
    for layer in order:
        end, x = ends[layer, s], model.x[layer, s]
        so_far = [*so_far, (end, 1)]
        model.add(f"{name}_inside_{layer}", [(end, 1), (x, -1)], LESS)
        model.add(f"{name}_first_{layer}", [*so_far, (x, -1)], MORE)
    model.add(name, so_far, EQUAL, 1)


def _face(
    model: Model,
    name: str,
    s: int,
    ends: dict[tuple[int, int], object],
    faces: dict[tuple[int, int, int], object],
) -> None:
    """Give a slot's receiving side the layout of the layer there."""
    for g, profile in enumerate(model.slots[s].profiles):
        sides: Terms = [
            (faces[s, g, j], 1) for j in range(len(profile.layouts))
        ]
        model.add(f"{name}_layout_{g}", [*sides, (model.w[s, g], -1)], EQUAL)
    for (layer, number, g, j), at in model.at.items():
        if number == s:
            model.add(
                f"{name}_layout_{g}_{j}_{layer}",
                [(faces[s, g, j], 1), (ends[layer, s], -1), (at, -1)],
                MORE,
                -1,
            )


def _uses(
    model: Model,
    name: str,
    s: int,
    tables: list[tuple[int, ...]],
    faces: dict[tuple[int, int, int], object],
    uses: dict[tuple[int, int], object],
) -> None:
    """Choose the receive by option and layout."""
    alike: dict[tuple[int, tuple[int, ...]], Terms] = {}
    for o, option in enumerate(model.slots[s].options):
        found = alike.setdefault((option.profile, tables[o]), [])
        found.append((model.y[s, o], -1))
    used = sorted({r for table in tables for r in table})
    model.add(f"{name}_any", [(uses[s, r], 1) for r in used], EQUAL, 1)
    for i, ((g, table), options) in enumerate(alike.items()):
        for r in sorted(set(table)):
            layouts: Terms = [
                (faces[s, g, j], -1)
                for j, other in enumerate(table)
                if other == r
            ]
            model.add(
                f"{name}_uses_{i}_{r}",
                [(uses[s, r], 1), *options, *layouts],
                MORE,
                -1,
            )


def receive(model: Model) -> None:
    """Make a receive as long as at its slowest level (8), or edge (8')."""
    for s, slot in model.slots.items():
        check_time(model.deadline)
        for name, receives, variables, boundary, used, chosen in (
            (
                f"receive_forward_{s}",
                slot.forward,
                model.receive_forward,
                s,
                [option.forward for option in slot.options],
                model.uses_forward,
            ),
            (
                f"receive_backward_{s}",
                slot.backward,
                model.receive_backward,
                s - 1,
                [option.backward for option in slot.options],
                model.uses_backward,
            ),
        ):
            if not receives:
                continue
            if model.instance.preset.receive_per_edge:
                _receive_per_edge(model, name, s, boundary == s, receives)
                continue
            uses: list[Terms] = [[] for _ in receives]
            if slot.mixed:
                uses = [[(chosen[s, r], 1)] for r in range(len(receives))]
            else:
                for o, (r,) in enumerate(used):
                    uses[r].append((model.y[s, o], 1))
            _receive(model, name, variables[s], boundary, receives, uses)


def _receive(
    model: Model,
    name: str,
    variable: object,
    boundary: int,
    receives: tuple[Receive, ...],
    uses: list[Terms],
) -> None:
    """Split what crosses by the receive that the slot uses.

    Increments with the same sizes are counted together: ``v[j,r]`` of them
    cross if the slot uses receive ``r``, else 0. ``Σ_r v[j,r] = Σ_i c[i]``
    and ``v[j,r] <= |j| uses[r]``, the options with that receive together
    unless it depends on a layer. Then one row per level:
    ``R >= Σ_r (message_r crossed_r + Σ_j Δ_{j,r} v[j,r])``.
    """
    classes: dict[tuple[int, int], list[int]] = {}
    for i, step in enumerate(model.instance.graph.increments):
        classes.setdefault((step.lower, step.upper), []).append(i)
    counted: list[tuple[tuple[int, int] | None, Terms, int]] = [
        (None, [(model.crossed[boundary], 1)], 1)
    ]
    for sizes, members in classes.items():
        crossing = [(model.c[i, boundary], 1.0) for i in members]
        counted.append((sizes, crossing, len(members)))

    num_rows = max(len(entry.rows) for entry in receives)
    rows: list[Terms] = [[(variable, 1)] for _ in range(num_rows)]
    for j, (steps, amount, most) in enumerate(counted):
        parts: Terms = []
        for r, entry in enumerate(receives):
            part = model.variable(f"{name}_part_{j}_{r}", most)
            parts.append((part, 1))
            model.add(
                f"{name}_used_{j}_{r}",
                [(part, 1), *((y, -most) for y, _ in uses[r])],
                LESS,
            )
            for i in range(num_rows):
                # Repeating a row of a receive with fewer levels is harmless.
                message, times = entry.rows[min(i, len(entry.rows) - 1)]
                if steps is None:
                    quanta = message
                else:
                    below, above = steps
                    quanta = times[above] - (times[below] if below >= 0 else 0)
                rows[i].append((part, -model.quanta(quanta)))
        model.add(
            f"{name}_split_{j}",
            parts + [(v, -k) for v, k in amount],
            EQUAL,
        )
    for i, row in enumerate(rows):
        model.add(f"{name}_{i}", row, MORE)


def _receive_per_edge(
    model: Model,
    name: str,
    s: int,
    forward: bool,
    receives: tuple[Receive, ...],
) -> None:
    """``R_s >= time_e (x[inside,s] - x[outside,s])`` for every edge (8')."""
    variables = model.receive_forward if forward else model.receive_backward
    for entry in receives:
        ((_, times),) = entry.rows
        for (source, target, _), time in zip(
            model.instance.graph.edges, times, strict=True
        ):
            inside, outside = (target, source) if forward else (source, target)
            terms: Terms = [(variables[s], 1)]
            if (inside, s) in model.x:
                terms.append((model.x[inside, s], -model.quanta(time)))
            if (outside, s) in model.x:
                terms.append((model.x[outside, s], model.quanta(time)))
            model.add(f"{name}_{source}_{target}", terms, MORE)


def change(model: Model) -> None:
    """Make an edge whose layouts differ move its tensor both ways (19).

    ``into[e,s,g,j] >= at[v,s,g,j] + x[u,s] - at[u,s,g,j] - 1`` for the edge
    ``(u,v)``; ``out_of`` with ``u`` and ``v`` exchanged.
    """
    edges = model.instance.graph.edges
    for name, moved in (("into", model.into), ("out_of", model.out_of)):
        for (e, s, g, j), changes in moved.items():
            here, there, _ = edges[e]
            if moved is model.into:
                here, there = there, here
            terms: Terms = [
                (changes, 1),
                (model.at[here, s, g, j], -1),
                (model.x[there, s], -1),
            ]
            if (there, s, g, j) in model.at:
                terms.append((model.at[there, s, g, j], 1))
            model.add(f"change_{name}_{e}_{s}_{g}_{j}", terms, MORE, -1)


def load(model: Model) -> None:
    """``τ_s``: the layers' time, the receives and the changes (9).

    Where recomputation hides the receive of the gradients, the larger of
    the two counts: ``hidden`` is at least either (9').
    """
    for s in model.slots:
        total: Terms = [(model.load[s], -1)]
        recomputed: Terms = []
        for choice, q in _counts(model, s):
            total.append((q, model.quanta(choice.base)))
            recomputed.append((q, -model.quanta(choice.recomputed)))
        for moved in (model.into, model.out_of):
            for (e, number, g, j), changes in moved.items():
                if number == s:
                    size = model.instance.graph.edge_sizes[e]
                    move = model.slots[s].profiles[g].moves[j][size]
                    total.append((changes, model.quanta(move)))
        if s in model.receive_forward:
            total.append((model.receive_forward[s], 1))
        backward: Terms = []
        if s in model.receive_backward:
            backward.append((model.receive_backward[s], 1))
        if s in model.hidden:
            hidden = (model.hidden[s], 1.0)
            model.add(f"load_{s}_recomputed", [hidden, *recomputed], MORE)
            model.add(
                f"load_{s}_receive",
                [hidden, *((v, -k) for v, k in backward)],
                MORE,
            )
            backward = [hidden]
        model.add(f"load_{s}", total + backward, EQUAL)


def _counts(model: Model, s: int) -> list[tuple[Choice, object]]:
    """Return the choices of a slot with the layers that take them."""
    return [
        (model.choice(kind, s, g, h), q)
        for (kind, slot, g, h), q in model.q.items()
        if slot == s
    ]


def bottleneck(model: Model) -> None:
    """``t_max >= τ_s`` (10)."""
    for s, tau in model.load.items():
        model.add(f"bottleneck_{s}", [(model.slowest, 1), (tau, -1)], MORE)


def work_bound(model: Model) -> None:
    """``P t_max >= Σ n_g τ_{κ,g,h} q[κ,s,g,h]``, a valid inequality (11).

    Slots use at most ``P`` devices together, each for at most ``t_max``.
    """
    devices = model.sub_problem.case.devices
    work: Terms = [(model.slowest, -1)]
    for (kind, s, g, h), q in model.q.items():
        load = model.quanta(model.choice(kind, s, g, h).load)
        share = load * model.slots[s].profiles[g].devices / devices
        work.append((q, share))
    model.add("work_bound", work, LESS)


def sync(model: Model) -> None:
    """``Y >= Σ Y_{κ,g,h} q[κ,s,g,h]`` for the slots that count (12)."""
    counted = list(model.slots)
    if model.instance.preset.sync_stages == "first":
        counted = [max(model.slots)]
    for s in counted:
        total: Terms = [(model.sync, 1)]
        for choice, q in _counts(model, s):
            total.append((q, -model.quanta(choice.sync)))
        constant = model.quanta(model.slots[s].sync_constant)
        model.add(f"sync_{s}", total, MORE, constant)


def memory(model: Model) -> None:
    """Resident bytes and the largest working set fit the capacity (13)."""
    capacity = model.size(model.instance.capacity)
    for s, slot in model.slots.items():
        if not any(profile.tight for profile in slot.profiles):
            continue
        working = model.variable(f"working_{s}")
        total: Terms = [(working, 1), *_entering(model, s)]
        # Of the choices in a row, at most one is taken: profiles exclude
        # each other.
        needs: dict[tuple[int, int], Terms] = {}
        for (kind, number, g, h), q in model.q.items():
            if number != s:
                continue
            choice = model.choice(kind, s, g, h)
            total.append((q, model.size(choice.resident_bytes)))
            needs.setdefault((kind, h), []).append(
                (model.p[kind, s, g, h], -model.size(choice.working_bytes))
            )
        for (kind, h), row in needs.items():
            model.add(f"memory_{s}_{kind}_{h}", [(working, 1), *row], MORE)
        model.add(f"memory_{s}", total, LESS, capacity * (1 + MEMORY_SLACK))


def _entering(model: Model, s: int) -> Terms:
    """Return the bytes kept of tensors that enter a slot (14).

    ``enters >= x[v,s] - x[u,s]`` for edge ``(u,v)``.
    """
    total: Terms = []
    sizes = model.slots[s].entering_bytes
    for e, size_bytes in enumerate(sizes):
        source, target, _ = model.instance.graph.edges[e]
        if (target, s) not in model.x:
            continue
        enters = model.variable(f"enters_{e}_{s}", 1)
        terms: Terms = [(enters, 1), (model.x[target, s], -1)]
        if (source, s) in model.x:
            terms.append((model.x[source, s], 1))
        model.add(f"memory_{s}_enters_{e}", terms, MORE)
        most = min(size_bytes, model.instance.capacity + 1)
        total.append((enters, model.size(most)))
    return total


def forbid(model: Model, number: int, s: int, content: Content) -> None:
    """Cut off one slot's content that does not fit its memory (13').

    ``w[s,g] + Σ_{l inside} x[l,s] - Σ_{l outside} x[l,s] <= |inside|``. More
    layers need no less memory unless only tensors that enter are kept, so
    that layers outside are left out otherwise. Where layers choose, see
    :func:`_forbid_counts`.
    """
    g = content.profile
    if any(len(kind) > 1 for kind in model.slots[s].profiles[g].choices):
        _forbid_counts(model, number, s, content)
        return
    terms: Terms = [(model.w[s, g], 1)]
    exact = bool(model.slots[s].entering_bytes)
    for layer in model.layers:
        if (layer, s) in model.x and (exact or layer in content.layers):
            sign = 1 if layer in content.layers else -1
            terms.append((model.x[layer, s], sign))
    model.add(f"forbid_{number}", terms, LESS, len(content.layers))


def _forbid_counts(
    model: Model, number: int, s: int, content: Content
) -> None:
    """Let some choice be taken by fewer layers (13').

    ``q[κ,s,g,h] <= n - 1 + (|κ| - n + 1) b[κ,h]`` for every choice that
    ``n > 0`` layers take; not all ``b`` are 1.
    """
    many: Terms = []
    for (kind, h), count in content.counts.items():
        q = model.q[kind, s, content.profile, h]
        most = len(model.instance.graph.members[kind])
        name = f"forbid_{number}_{kind}_{h}"
        as_many = model.binary(f"{name}_as_many")
        many.append((as_many, 1))
        model.add(name, [(q, 1), (as_many, count - 1 - most)], LESS, count - 1)
    model.add(f"forbid_{number}", many, LESS, len(many) - 1)
