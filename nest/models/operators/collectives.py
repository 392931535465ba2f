"""Collectives of a layer, from how it is split."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from nest.ir.graph import CollectiveCall, CollectiveKind, Phase
from nest.models.operators.base import BF16, Split


def both_passes(split: Split, values: int) -> tuple[CollectiveCall, ...]:
    """Return the collectives of one tensor parallel region, both passes.

    Without sequence parallelism only leaving a region communicates: partial
    sums forward, partial gradients of its input backward.
    """
    enters = 1 if split.sequence_parallel else 0
    return regions(
        split, values, "forward", enters=enters, leaves=1
    ) + regions(split, values, "backward", enters=enters, leaves=1)


def regions(
    split: Split, values: int, phase: Phase, *, enters: int, leaves: int
) -> tuple[CollectiveCall, ...]:
    """Return what entering and leaving tensor parallel regions costs.

    Entering gathers, leaving sums: an all-reduce, or a reduce-scatter under
    sequence parallelism. ``values`` counts the whole tensor.
    """
    if split.tp == 1:
        return ()
    leave: CollectiveKind = (
        "reduce-scatter" if split.sequence_parallel else "all-reduce"
    )
    kinds: tuple[tuple[CollectiveKind, int], ...] = (
        ("all-gather", enters),
        (leave, leaves),
    )
    return tuple(
        CollectiveCall(
            kind=kind,
            axis="tp",
            phase=phase,
            size_bytes=BF16 * values,
            count=count,
        )
        for kind, count in kinds
        if count
    )


def gathered_bytes(split: Split, values: int) -> int:
    """Return the bytes of a tensor that a region gathers and then drops."""
    return BF16 * values if split.outer_tokens < split.tokens else 0


def context_collectives(
    split: Split, key_value_bytes: int
) -> tuple[CollectiveCall, ...]:
    """Return what ring attention is approximated by, both passes."""
    if split.cp == 1:
        return ()
    calls: tuple[tuple[CollectiveKind, Phase], ...] = (
        ("all-gather", "forward"),
        ("all-gather", "backward"),
        ("reduce-scatter", "backward"),
    )
    return tuple(
        CollectiveCall(
            kind=kind, axis="cp", phase=phase, size_bytes=key_value_bytes
        )
        for kind, phase in calls
    )


def expert_exchange(split: Split, values: int) -> tuple[CollectiveCall, ...]:
    """Return dispatch and combination of routed tokens, both passes."""
    if split.ep == 1:
        return ()
    phases: tuple[Phase, ...] = ("forward", "backward")
    return tuple(
        CollectiveCall(
            kind="all-to-all",
            axis="ep",
            phase=phase,
            size_bytes=BF16 * values,
            count=2,
        )
        for phase in phases
    )


def merged(calls: Iterable[CollectiveCall]) -> tuple[CollectiveCall, ...]:
    """Sum the counts of calls that differ in nothing else."""
    counts: dict[CollectiveCall, int] = {}
    for call in calls:
        once = msgspec.structs.replace(call, count=1)
        counts[once] = counts.get(once, 0) + call.count
    return tuple(
        msgspec.structs.replace(call, count=count)
        for call, count in counts.items()
    )
