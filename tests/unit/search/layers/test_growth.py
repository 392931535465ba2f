"""Ways to run a stage with a strategy per layer, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from nest.cost.schedules import SCHEDULES, Times
from nest.search.layers.growth import Demand, StageLayers, grow
from nest.search.layers.options import LayerOptions
from nest.solvers.base import Deadline

SCHEDULE = SCHEDULES["1f1b"]


@pytest.mark.parametrize("swapped", [False, True])
def test_stages_alike_ask_for_what_any_of_them_does(swapped):
    one, other = Demand(1, 5, 20, 3, 40, 600), Demand(2, 6, 10, 4, 30, 500)
    if swapped:
        one, other = other, one
    one.widen(other)
    assert one == Demand(
        min_inflight=1, max_inflight=6, sync_floor=10, wait=3, joint=30, budget=600
    )


def options(*rows: tuple[int, int, int, int, int]) -> LayerOptions:
    """Build options from (layout, load, sync, static, kept bytes)."""
    layout, load, sync, static, kept = np.array(rows, dtype=np.int64).T
    no_options = np.zeros_like(load)
    amounts = np.array(SCHEDULE.amounts(Times(load, no_options, no_options)))
    return LayerOptions(
        *(np.arange(len(rows)), layout, amounts, sync),
        *(no_options, no_options, no_options),
        *(static, kept, no_options),
    )


def ways(
    *layers: LayerOptions, change: int = 0, capacity: int = 60, **demand: int
) -> set[tuple[int, int, int]]:
    """Return (load, sync, most in flight) of all ways to run a chain.

    A change of layout, of which there are two, takes ``change`` quanta each way.
    """
    move = change * (1 - np.eye(2, dtype=np.int64))
    no_options = np.zeros(2, dtype=np.int64)
    asked = {"min_inflight": 1, "max_inflight": 4, "sync_floor": 0}
    found = grow(
        StageLayers(
            kinds=tuple(range(len(layers))),
            options=list(layers),
            changes=[(1, 0, move, move)] if change else [],
            receive=no_options,
            receive_back=no_options,
            passing_bytes=no_options,
            capacity=capacity,
            schedule=SCHEDULE,
            num_micro_batches=4,
        ),
        Demand(wait=0, joint=0, budget=10**6, **(asked | demand)),
        None,
        Deadline(None),
    )
    load = found.amounts[SCHEDULE.sums.index(SCHEDULE.once)]
    columns = load, found.sync, found.max_inflight
    return set(zip(*(c.tolist() for c in columns), strict=True))


def test_memory_is_compared_with_fewest_and_most_in_flight():
    """50 bytes hold less than 20 each with four in flight, more with one.

    The second layer takes 10 quanta and 30 bytes, or 50 quanta: beside 20 bytes one
    micro-batch has room for the former, and beside 50 only the latter fits.
    """
    first = options((0, 30, 0, 50, 0), (0, 30, 0, 0, 20))
    second = options((0, 10, 0, 30, 0), (0, 50, 0, 0, 0))
    assert ways(first, second) == {(40, 0, 1), (80, 0, 4)}


def test_sync_below_the_floor_is_alike_only_at_the_end():
    """The second layer lifts 0 to the floor of 10, and 5 above it."""
    first = options((0, 31, 0, 0, 0), (0, 30, 5, 0, 0))
    second = options((0, 10, 10, 0, 0))
    assert ways(first, second, sync_floor=10) == {(41, 10, 4), (40, 15, 4)}
    # Below the floor to the end.
    assert ways(first, second, sync_floor=15) == {(40, 15, 4)}


def test_layouts_that_are_still_read_are_kept_apart():
    """The slower layout first, as a change takes 20 + 20."""
    first = options((0, 30, 0, 0, 0), (1, 35, 0, 0, 0))
    assert ways(first, options((1, 10, 0, 0, 0)), change=20) == {(45, 0, 4)}
