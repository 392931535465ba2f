"""The least cost of stages at every capacity, by hand and by enumeration.

A kind of layer is options of (cost, memory, working set).
"""

from __future__ import annotations

from itertools import combinations_with_replacement, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nest.search.frontier import layer_least
from nest.search.frontier.layer_least import LeastCosts, Merged, least_costs
from nest.search.stages.options import INFINITE
from tests.properties.profiles import examples

Kind = tuple[tuple[int, int, int], ...]

#: Fast and large, or slow and small.
EITHER: Kind = ((10, 30, 0), (30, 10, 0))


def table(
    kinds: list[Kind],
    counts: list[list[int]],
    rooms: list[int],
    most_layers: int = 99,
    capacity: int = 1000,
) -> list[list[int]]:
    """Return the least cost of every stage in every room, -1 for none."""
    layers = [Merged(*np.array(kind, dtype=np.int64).T) for kind in kinds]
    rows = np.array(counts, dtype=np.int64)
    least = LeastCosts(least_costs(layers, rows, most_layers, capacity))
    stage = np.repeat(np.arange(len(counts)), len(rooms))
    found = least.of(stage, np.tile(rooms, len(counts)))
    found = np.where(found < INFINITE, found, -1)
    result: list[list[int]] = found.reshape(len(counts), -1).tolist()
    return result


def test_two_layers_are_both_small_then_one_then_none():
    """20 bytes hold 60 quanta, 40 bytes 40, 60 bytes 20."""
    rooms = [19, 20, 39, 40, 59, 60, 1000]
    assert table([EITHER], [[2]], rooms) == [[-1, 60, 60, 40, 40, 20, 20]]


def test_stages_do_not_mix():
    """One layer, or one of another kind, or both."""
    counts = [[1, 0], [0, 1], [1, 1]]
    found = table([EITHER, ((5, 7, 0),)], counts, [7, 10, 17, 37])
    assert found == [[-1, 30, 30, 10], [5, 5, 5, 5], [-1, -1, 35, 15]]


def test_the_largest_working_set_counts_once():
    """A working set of 15 costs nothing beside one of 30."""
    first: Kind = ((10, 20, 0), (10, 10, 15))
    found = table([first, ((5, 0, 30),)], [[1, 0], [1, 1]], [20, 25, 39, 40])
    assert found == [[10] * 4, [-1, -1, -1, 15]]


def test_what_holds_more_but_works_with_less_is_kept():
    """20 bytes fit 20, 10 with a working set of 15 do not."""
    assert table([((10, 20, 0), (9, 10, 15))], [[1]], [20, 25]) == [[10, 9]]


def test_large_stages_are_left_out():
    assert table([EITHER], [[1], [2]], [60], most_layers=1) == [[10], [-1]]


def test_all_of_the_capacity_may_be_used():
    assert table([EITHER], [[2]], [60], capacity=60) == [[20]]
    assert table([EITHER], [[2]], [60], capacity=59) == [[40]]


kinds = st.lists(
    st.lists(st.tuples(*[st.integers(0, 9)] * 3), max_size=4).map(tuple),
    min_size=2,
    max_size=2,
)


@pytest.mark.parametrize("most", [2000, 2])
@given(kinds=kinds, capacity=st.integers(1, 40))
@examples(40, full=2000)
def test_least_cost_is_that_of_all_choices(most, kinds, capacity):
    """Exact, and where neighbors are put together no more."""
    counts = [[1, 0], [0, 2], [2, 1], [3, 2]]
    rooms = list(range(capacity + 1))
    kinds = [kind or ((0, capacity + 1, 0),) for kind in kinds]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layer_least, "MOST", most)
        found = table(kinds, counts, rooms, capacity=capacity)
    for row, here in zip(counts, found, strict=True):
        least = dict.fromkeys(rooms, INFINITE)
        ways = (
            combinations_with_replacement(kind, number)
            for kind, number in zip(kinds, row, strict=True)
        )
        for chosen in product(*ways):
            cost, memory, working = zip(*sum(chosen, ()), strict=True)
            for room in range(sum(memory) + max(working), capacity + 1):
                least[room] = min(least[room], sum(cost))
        for room, cost in least.items():
            value = here[room] if here[room] >= 0 else INFINITE
            assert value == cost if most > 2 else value <= cost
