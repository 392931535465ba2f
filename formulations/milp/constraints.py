"""Constraints of the MILP model.

The functions have the names of their counterparts for CP-SAT; the numbers
are those of the equations in ``formulations/README.md``.
"""

from __future__ import annotations

from itertools import pairwise

from formulations.common import Receive, check_time
from formulations.milp.variables import Model, Terms

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
        receive,
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
    """``q[κ,s,g]`` is the number of layers ``x`` of a kind if ``w[s,g]`` (6).

    ``Σ_g q[κ,s,g] = Σ_{l in κ} x[l,s]``, ``q <= |κ| p``, ``p <= w`` and, for
    every layer, ``Σ_g p[κ,s,g] >= x[l,s]``.
    """
    for kind, members in enumerate(model.instance.graph.members):
        for s, slot in model.slots.items():
            profiles = [
                g for g in range(len(slot.profiles)) if (kind, s, g) in model.q
            ]
            inside = [
                model.x[layer, s] for layer in members if (layer, s) in model.x
            ]
            name = f"linking_{kind}_{s}"
            model.add(
                name,
                [(model.q[kind, s, g], 1) for g in profiles]
                + [(x, -1) for x in inside],
                EQUAL,
            )
            present = [(model.p[kind, s, g], 1.0) for g in profiles]
            for i, x in enumerate(inside):
                model.add(f"{name}_any_{i}", [*present, (x, -1)], MORE)
            for g in profiles:
                p, w = model.p[kind, s, g], model.w[s, g]
                model.add(
                    f"{name}_{g}_number",
                    [(model.q[kind, s, g], 1), (p, -len(inside))],
                    LESS,
                )
                model.add(f"{name}_{g}_profile", [(p, 1), (w, -1)], LESS)


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


def receive(model: Model) -> None:
    """Make a receive as long as at its slowest level (8), or edge (8')."""
    for s, slot in model.slots.items():
        check_time(model.deadline)
        for name, receives, variables, boundary, used in (
            (
                f"receive_forward_{s}",
                slot.forward,
                model.receive_forward,
                s,
                [option.forward for option in slot.options],
            ),
            (
                f"receive_backward_{s}",
                slot.backward,
                model.receive_backward,
                s - 1,
                [option.backward for option in slot.options],
            ),
        ):
            if not receives:
                continue
            if model.instance.preset.receive_per_edge:
                _receive_per_edge(model, name, s, boundary == s, receives)
                continue
            uses: list[Terms] = [[] for _ in receives]
            for o, r in enumerate(used):
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
    and ``v[j,r] <= |j| Σ_{o uses r} y[o]``. Then one row per level:
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


def load(model: Model) -> None:
    """``τ_s``: the layers' time and the receives (9).

    Where recomputation hides the receive of the gradients, the larger of
    the two counts: ``hidden`` is at least either (9').
    """
    for s in model.slots:
        total: Terms = [(model.load[s], -1)]
        recomputed: Terms = []
        for kind, g, q in _counts(model, s):
            terms = model.slots[s].profiles[g].terms[kind]
            assert terms is not None
            total.append((q, model.quanta(terms.base)))
            recomputed.append((q, -model.quanta(terms.recomputed)))
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


def _counts(model: Model, s: int) -> list[tuple[int, int, object]]:
    """Return (kind, profile, ``q``) of a slot."""
    return [
        (kind, g, q) for (kind, slot, g), q in model.q.items() if slot == s
    ]


def bottleneck(model: Model) -> None:
    """``t_max >= τ_s`` (10)."""
    for s, tau in model.load.items():
        model.add(f"bottleneck_{s}", [(model.slowest, 1), (tau, -1)], MORE)


def work_bound(model: Model) -> None:
    """``P t_max >= Σ_{κ,s,g} n_g τ_{κ,g} q[κ,s,g]``, a valid inequality (11).

    Slots use at most ``P`` devices together, each for at most ``t_max``.
    """
    devices = model.sub_problem.case.devices
    work: Terms = [(model.slowest, -1)]
    for (kind, s, g), q in model.q.items():
        profile = model.slots[s].profiles[g]
        terms = profile.terms[kind]
        assert terms is not None
        share = model.quanta(terms.load) * profile.devices / devices
        work.append((q, share))
    model.add("work_bound", work, LESS)


def sync(model: Model) -> None:
    """``Y >= Σ_{κ,g} Y_{κ,g} q[κ,s,g]`` for the slots that count (12)."""
    counted = list(model.slots)
    if model.instance.preset.sync_stages == "first":
        counted = [max(model.slots)]
    for s in counted:
        total: Terms = [(model.sync, 1)]
        for kind, g, q in _counts(model, s):
            terms = model.slots[s].profiles[g].terms[kind]
            assert terms is not None
            total.append((q, -model.quanta(terms.sync)))
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
        by_kind: dict[int, Terms] = {}
        for kind, g, q in _counts(model, s):
            terms = slot.profiles[g].terms[kind]
            assert terms is not None
            total.append((q, model.size(terms.resident_bytes)))
            by_kind.setdefault(kind, []).append(
                (model.p[kind, s, g], -model.size(terms.working_bytes))
            )
        for kind, needs in by_kind.items():
            model.add(f"memory_{s}_{kind}", [(working, 1), *needs], MORE)
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


def forbid(
    model: Model, number: int, s: int, layers: list[int], g: int
) -> None:
    """Cut off one slot's content that does not fit its memory (13').

    ``w[s,g] + Σ_{l inside} x[l,s] - Σ_{l outside} x[l,s] <= |inside|``. More
    layers need no less memory unless only tensors that enter are kept, so
    that layers outside are left out otherwise.
    """
    terms: Terms = [(model.w[s, g], 1)]
    exact = bool(model.slots[s].entering_bytes)
    for layer in model.layers:
        if (layer, s) in model.x and (exact or layer in layers):
            sign = 1 if layer in layers else -1
            terms.append((model.x[layer, s], sign))
    model.add(f"forbid_{number}", terms, LESS, len(layers))
