"""Collectives of a layer, from how it is split."""

from __future__ import annotations

from collections.abc import Iterable
from math import comb, fsum, prod
from typing import Literal

from msgspec.structs import replace

from nest.ir.graph import CollectiveCall, CollectiveKind, Phase
from nest.models.blocks import Mlp
from nest.models.operators.base import BF16, Execution, Split
from nest.units import ceil_div

#: Kind, pass and number of calls.
_Call = tuple[CollectiveKind, Phase, int]


def both_passes(split: Split, values: int) -> tuple[CollectiveCall, ...]:
    """Return the collectives of one tensor parallel region, both passes.

    Without sequence parallelism only leaving a region communicates: partial
    sums forward, partial gradients of its input backward.
    """
    enters = 1 if split.sequence_parallel else 0
    forward = regions(split, values, "forward", enters=enters, leaves=1)
    return forward + regions(split, values, "backward", enters=enters, leaves=1)


def regions(
    split: Split, values: int, phase: Phase, *, enters: int, leaves: int
) -> tuple[CollectiveCall, ...]:
    """Return what entering and leaving tensor parallel regions costs.

    Entering gathers, leaving sums: an all-reduce, or a reduce-scatter under
    sequence parallelism. ``values`` counts the whole tensor.
    """
    leave: CollectiveKind = (
        "reduce-scatter" if split.sequence_parallel else "all-reduce"
    )
    calls: tuple[_Call, ...] = ("all-gather", phase, enters), (leave, phase, leaves)
    return _calls(split, "tp", BF16 * values, *calls)


def _in_both(kind: CollectiveKind, count: int) -> tuple[_Call, _Call]:
    """Return what so many calls of a kind in each pass are for :func:`_calls`."""
    return (kind, "forward", count), (kind, "backward", count)


def _calls(
    split: Split, axis: Literal["tp", "cp", "ep"], size_bytes: int, *wanted: _Call
) -> tuple[CollectiveCall, ...]:
    """Return the calls of a count above 0, none on an axis of degree 1."""
    return tuple(
        CollectiveCall(
            kind=kind, axis=axis, phase=phase, size_bytes=size_bytes, count=count
        )
        for kind, phase, count in wanted
        if count and getattr(split, axis) > 1
    )


def gathers(
    split: Split, values: int, *, forward: int, backward: int
) -> tuple[CollectiveCall, ...]:
    """Return so many all-gathers over ``tp`` of a tensor of so many values."""
    calls: tuple[_Call, ...] = (
        ("all-gather", "forward", forward),
        ("all-gather", "backward", backward),
    )
    return _calls(split, "tp", BF16 * values, *calls)


def gathered_bytes(split: Split, values: int) -> int:
    """Return the bytes of a tensor that a region gathers and then drops."""
    return BF16 * values if split.outer_tokens < split.tokens else 0


def context_collectives(
    split: Split, key_value_bytes: int
) -> tuple[CollectiveCall, ...]:
    """Return what ring attention is approximated by, both passes."""
    calls: tuple[_Call, ...] = (
        *_in_both("all-gather", 1),
        ("reduce-scatter", "backward", 1),
    )
    return _calls(split, "cp", key_value_bytes, *calls)


def expert_exchange(
    split: Split, values: int, expert_tp: bool
) -> tuple[CollectiveCall, ...]:
    """Return dispatch and combination of routed tokens, both passes.

    Where the ``ep·tp`` ranks of consecutive tensor parallel groups hold
    different experts, ``1/ep`` of the values stay within a rank's group: they
    are exchanged there, the others with the ranks of other groups.
    """
    exchanges = _in_both("all-to-all", 2)
    within = 0 if expert_tp else BF16 * values // split.ep
    return (
        *(_calls(split, "tp", within, *exchanges) if within else ()),
        *_calls(split, "ep", BF16 * values, *exchanges),
    )


def sent_values(split: Split, shape: Mlp, values: int, execution: Execution) -> int:
    """Return of the values of all copies of tokens those that are sent.

    A copy for each expert; or, with ``dispatch_node``, for each of the parts
    (devices of a node, or nodes) that hold one of them: of ``n`` parts with as
    many experts, ``k`` different ones of ``E`` are on

        n · (1 - Π_{i<k} (E - E/n - i) / (E - i))

    in the mean. Where they are of some groups alone, the mean is over how
    many of these a part has.
    """
    node, visits = execution.dispatch_node, shape.experts_per_token
    if not node:
        return values
    spread = 1 if execution.expert_tp else split.tp
    devices = split.ep * (split.etp or split.tp)
    holders = split.ep * spread if devices <= node else ceil_div(devices, node)
    groups, chosen = shape.groups, shape.token_groups
    groups_per_holder = max(1, groups // holders)
    slice_size = shape.experts / max(holders, groups)
    eligible = shape.experts * chosen // groups

    def reached(count: int) -> float:
        """Return how likely it is that a part with so many groups has one."""
        elsewhere = eligible - count * slice_size
        return 1 - prod(max(elsewhere - i, 0.0) / (eligible - i) for i in range(visits))

    share = fsum(
        comb(groups_per_holder, count)
        * comb(groups - groups_per_holder, chosen - count)
        / comb(groups, chosen)
        * reached(count)
        for count in range(min(groups_per_holder, chosen) + 1)
    )
    return min(values, round(values * holders * share / visits))


def state_exchange(split: Split, values: int) -> tuple[CollectiveCall, ...]:
    """Return what trades a sequence for heads and back, both passes."""
    return _calls(split, "cp", BF16 * values, *_in_both("all-to-all", 1))


def merged(calls: Iterable[CollectiveCall]) -> tuple[CollectiveCall, ...]:
    """Sum the counts of calls that differ in nothing else."""
    counts: dict[CollectiveCall, int] = {}
    for call in calls:
        once = replace(call, count=1)
        counts[once] = counts.get(once, 0) + call.count
    return tuple(replace(call, count=count) for call, count in counts.items())
