"""Frontiers of stages, worked out by hand, and the dominance they need.

A layer is options of (load, static, kept, working bytes), perhaps with sync;
one micro-batch, so the step takes what the stage does.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nest.cost.schedules import SCHEDULES, Times
from nest.search.frontier.stages import Allowance, Cost, TooManyWaysError, grow_frontier
from nest.search.layers.growth import Demand, StageLayers, StageWays
from nest.search.layers.options import LayerOptions
from nest.search.stages import dominance
from nest.search.stages.dominance import non_dominated_sorted
from nest.solvers.base import Deadline
from tests.properties.profiles import examples

SCHEDULE = SCHEDULES["1f1b"]

#: Whatever fits is allowed.
ANYTHING = ((-1, 10**6), (10**6, 0))

#: Fast and large, or slow and small.
EITHER = ((10, 30, 0, 0), (30, 10, 0, 0))


def options(rows: tuple[tuple[int, ...], ...]) -> LayerOptions:
    load, static, kept, working, *more = np.array(rows, dtype=np.int64).T
    nothing = np.zeros_like(load)
    sync = more[0] if more else nothing
    amounts = np.array(SCHEDULE.amounts(Times(load, nothing, nothing)))
    return LayerOptions(
        *(np.arange(len(rows)), nothing, amounts, sync),
        *(nothing, nothing, nothing),
        *(static, kept, working),
    )


def grow(
    *layers: tuple[tuple[int, ...], ...],
    allowed: tuple[tuple[int, ...], tuple[int, ...]] = ANYTHING,
    inflight: tuple[int, int] = (1, 1),
    floor: int = -1,
    alone: bool = False,
    most: int | None = None,
) -> StageWays:
    """Return the ways to run a chain of layers."""
    nothing = np.zeros(1, dtype=np.int64)
    return grow_frontier(
        StageLayers(
            kinds=tuple(range(len(layers))),
            options=[options(rows) for rows in layers],
            changes=[],
            receive=nothing,
            receive_back=nothing,
            passing_bytes=nothing,
            capacity=10**6,
            schedule=SCHEDULE,
            num_micro_batches=1,
        ),
        Demand(*inflight, 0, 0, 0, 0),
        floor,
        [Cost(1, 1, 1, Allowance(*map(np.array, allowed)))],
        Deadline(None),
        alone=alone,
        max_labels=most,
    )


def points(ways: StageWays, inflight: int = 1) -> list[tuple[int, int]]:
    """Return load and memory of ways, by load."""
    load = ways.amounts[SCHEDULE.sums.index(SCHEDULE.once)]
    memory = ways.fixed_bytes + inflight * ways.kept_bytes
    return sorted(zip(load.tolist(), memory.tolist(), strict=True))


@pytest.mark.parametrize("alone", [False, True])
def test_frontiers_of_layers_add_up(alone):
    """Both fast, one of them, none: which one makes no difference."""
    found = grow(EITHER, EITHER, alone=alone)
    assert points(found) == [(20, 60), (40, 40), (60, 20)]
    assert sorted(map(found.strategies, range(3))) in (
        [[0, 0], [0, 1], [1, 1]],
        [[0, 0], [1, 0], [1, 1]],
    )


@pytest.mark.parametrize("alone", [False, True])
def test_only_what_is_allowed_for_its_memory_is_left(alone):
    """Less than 59, 41 and 21 quanta up to 20, 40 and 60 bytes.

    60 quanta are too slow for 20 bytes. A byte is worth a quantum, so what
    the slow first layer leads to takes 80 of both at least; 40 + 41 are
    allowed with 40 bytes, and 60 + 21 with 60.
    """
    allowed = (-1, 21, 41, 61), (59, 41, 21, 0)
    found = grow(EITHER, EITHER, allowed=allowed, alone=alone)
    assert points(found) == [(20, 60), (40, 40)]


def test_what_is_allowed_with_more_memory_is_looked_for():
    """The slow layer leads to 60 quanta, too slow, or to 40 that are not.

    Both hold a byte less for a quantum more: 80 of both, and up to 20 bytes
    not more than 58 + 20 are allowed.
    """
    allowed = (-1, 21, 41), (59, 41, 0)
    slow = ((30, 10, 0, 0),)
    assert points(grow(slow, EITHER, allowed=allowed)) == [(40, 40)]


def test_sync_counts_beside_the_load():
    """10 quanta, or 5 and 9 of sync: the step takes 10 or 14."""
    layer = (10, 0, 0, 0, 0), (5, 0, 0, 0, 9)
    assert points(grow(layer, alone=True)) == [(10, 0)]
    assert points(grow(layer)) == [(5, 0), (10, 0)]


def test_nothing_is_allowed_beyond_the_last_start():
    allowed = (-1, 60), (10**6, 0)
    assert points(grow(EITHER, EITHER, allowed=allowed)) == [(40, 40), (60, 20)]


@pytest.mark.parametrize("alone", [False, True])
def test_the_largest_working_set_counts_once(alone):
    """The first layer holds 20, or 10 and 15 while it runs.

    Beside a working set of 30 the latter is smaller, without the former:
    10 + 30 bytes in 10 quanta, 20 in 15.
    """
    first = (10, 20, 0, 0), (10, 10, 0, 15)
    found = grow(first, ((0, 0, 0, 30), (5, 0, 0, 0)), alone=alone)
    assert points(found) == [(10, 40), (15, 20)]


def test_memory_below_the_floor_is_alike_whatever_comes():
    """Of 25 bytes and less only the time matters, but 30 may come."""
    first = (10, 20, 0, 0), (10, 10, 0, 15)
    second = (0, 0, 0, 30), (5, 0, 0, 0)
    assert (10, 40) in points(grow(first, second, floor=25))
    assert points(grow(EITHER, EITHER, floor=60)) == [(20, 60)]


def test_memory_below_the_floor_is_alike_only_with_any_number_in_flight():
    """30, 60, 90 bytes, or 62, 74, 86: two in flight are above 65 or not."""
    layer = (10, 0, 30, 0), (10, 50, 12, 0)
    assert points(grow(layer, inflight=(1, 3), floor=65), 2) == [(10, 60), (10, 74)]
    assert len(grow(layer, inflight=(1, 3), floor=90)) == 1


def test_memory_is_compared_with_fewest_and_most_in_flight():
    """30 bytes, or 20 per micro-batch: each is better with one number."""
    layer = (10, 30, 0, 0), (10, 0, 20, 0)
    assert points(grow(layer, inflight=(1, 3))) == [(10, 20), (10, 30)]
    assert points(grow(layer, inflight=(1, 1))) == [(10, 20)]
    assert points(grow(layer, inflight=(3, 3)), 3) == [(10, 30)]


def test_too_many_labels_are_given_up():
    grow(EITHER, EITHER, most=3)
    with pytest.raises(TooManyWaysError):
        grow(EITHER, EITHER, most=2)


def test_a_layer_that_fits_nowhere():
    found = grow(((10, 10**7, 0, 0),))
    assert len(found) == 0


# Dominance of sorted rows


def beaten(rows: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return the rows that none of the same group before them beats."""
    return [
        row
        for i, row in enumerate(rows)
        if not any(
            other[0] == row[0] and all(x <= y for x, y in zip(other, row, strict=True))
            for other in rows[:i]
        )
    ]


@pytest.mark.parametrize("block", [1, 3, 256])
@given(
    rows=st.integers(3, 6).flatmap(
        lambda width: st.lists(
            st.tuples(st.integers(0, 1), *[st.integers(0, 6)] * (width - 1)),
            min_size=1,
            max_size=40,
        )
    )
)
@examples(60, full=2000)
def test_sorted_rows_are_compared_all_with_all(block, rows):
    rows = sorted(rows)
    group, *columns = np.array(rows, dtype=np.int64).T
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dominance, "BLOCK", block)
        kept = non_dominated_sorted(group, columns)
    assert [rows[i] for i in kept.tolist()] == beaten(rows)
