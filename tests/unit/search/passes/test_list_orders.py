"""Orders by list scheduling, and what no order is shorter than.

Passes are written (F, I, W): a forward pass, one for gradients of inputs and
one for gradients of weights.
"""

from __future__ import annotations

from typing import Any

import pytest

from nest.cost.schedules.ordered import pass_text
from nest.search.passes.list_orders import (
    Delays,
    ListOrder,
    OrderScope,
    OrderSearch,
    balanced,
    first_delays,
    list_order,
)
from nest.search.passes.order_bounds import order_bound
from tests.orders import scope_of
from tests.rows import named_rows, rows


def texts(order: ListOrder | None) -> list[str]:
    assert order is not None
    return [" ".join(map(pass_text, passes)) for passes in order.lists]


def plain(scope: OrderScope, forward_first: bool = False) -> Delays:
    """Return no delays at all."""
    none = (0,) * len(scope.times)
    most = (scope.num_micro_batches,) * len(scope.times)
    return Delays(forward_first, none, none, none, most)


# What a scope knows


def test_a_micro_batch_stays_for_a_trip_to_the_last_chunk_and_back() -> None:
    """A whole backward pass keeps it until all of it has ended."""
    scope = scope_of([(1, 2, 4), (8, 16, 32), (64, 128, 256)], 2, (9, 9, 9), whole=(1,))
    assert scope.weights == [4, 0, 256]
    assert scope.inputs == [2, 48, 128]
    # 8 + 64 forward, 128 + 48 back; 1 + 2 more of chunk 1, and its 4.
    assert [scope.stay(chunk) for chunk in range(3)] == [255, 248, 448]


# What no order is shorter than


@pytest.mark.parametrize(("scope", "bound"), named_rows("orders", "bounds"))
def test_bounds_of_orders(scope: dict[str, Any], bound: int) -> None:
    """One case where each of the terms is the largest."""
    assert order_bound(scope_of(**scope)) == bound


# Orders


def test_the_pass_that_can_start_first_runs_next() -> None:
    """Two equal blocks: W fills what is idle, I goes before F."""
    scope = scope_of([(1, 1, 1), (1, 1, 1)], 2, (9, 9))
    order = list_order(scope, plain(scope))
    assert texts(order) == ["0F0 0F1 0I0 0W0 0I1 0W1", "1F0 1I0 1F1 1I1 1W0 1W1"]
    assert order is not None
    assert order.end == 7
    assert order_bound(scope) == 7
    first = list_order(scope, plain(scope, forward_first=True))
    assert texts(first)[1] == "1F0 1F1 1I0 1I1 1W0 1W1"


def test_memory_holds_forward_passes_back() -> None:
    """One micro-batch fits on block 1: it waits for its own W."""
    scope = scope_of([(1, 1, 1), (1, 1, 1)], 2, (1, 9))
    order = list_order(scope, plain(scope))
    assert texts(order)[0] == "0F0 0I0 0W0 0F1 0I1 0W1"
    assert order is not None
    assert order.end == order_bound(scope) == 10


def test_an_order_that_ends_at_the_limit_is_not_made() -> None:
    """It ends at 10, whatever may have to wait; a limit of 11 changes nothing."""
    scope = scope_of([(1, 1, 1), (1, 1, 1)], 2, (1, 9))
    order = list_order(scope, plain(scope))
    assert order is not None
    assert list_order(scope, plain(scope), limit=order.end) is None
    assert list_order(scope, plain(scope), limit=order.end + 1) == order


def test_a_delay_holds_a_pass_back() -> None:
    scope = scope_of([(2, 2, 2)], 2, (9,))
    late = plain(scope)._replace(weights=(9,))
    assert texts(list_order(scope, late)) == ["0F0 0I0 0F1 0I1 0W0 0W1"]
    early = plain(scope)._replace(forward=(5,))
    assert texts(list_order(scope, early)) == ["0F0 0I0 0W0 0F1 0I1 0W1"]
    inputs = plain(scope)._replace(inputs=(1,))
    assert texts(list_order(scope, inputs)) == ["0F0 0F1 0I0 0W0 0I1 0W1"]
    one = plain(scope, forward_first=True)._replace(max_in_flight=(1,))
    assert texts(list_order(scope, one)) == ["0F0 0I0 0W0 0F1 0I1 0W1"]


def test_what_has_no_gradients_of_weights_runs_whole() -> None:
    scope = scope_of([(1, 1, 1), (1, 1, 0)], 1, (1, 1), whole=(0,))
    assert texts(list_order(scope, plain(scope))) == ["0F0 0B0", "1F0 1B0"]


@pytest.mark.parametrize("placement", ["loop", "v"])
def test_no_order_runs_dead(placement: str) -> None:
    """One micro-batch of each chunk fits to the byte: 3 and 1 of 4.

    So the chunk of 1 byte gets no second one in front of the other.
    """
    kept = (3, 1, 3, 1) if placement == "v" else (3, 1, 1, 3)
    scope = scope_of([(1, 1, 1)] * 4, 3, (4, 4), kept, placement)
    for delays in first_delays(scope):
        assert list_order(scope, delays) is not None
    less = scope_of([(1, 1, 1)] * 4, 3, (4, 3), kept, placement)
    assert list_order(less, plain(less)) is None


def test_a_later_chunk_has_room_while_it_has_none() -> None:
    """5 bytes: 2 of chunk 1 and 1 of chunk 2, which then runs in turn."""
    scope = scope_of([(1, 1, 1), (1, 1, 1)], 4, (5,), (2, 1), "v")
    (passes,) = texts(list_order(scope, plain(scope, forward_first=True)))
    assert passes.startswith("0F0 1F0 0F1")
    held = highest = 0
    for text in passes.split():
        size = 1 if text[0] == "1" else 2
        held += {"F": size, "I": 0, "W": -size, "B": -size}[text[1]]
        highest = max(highest, held)
    assert highest <= 5
    assert held == 0


def test_what_returns_leaves_its_room_to_others() -> None:
    """Block 1 of a V holds 2 of 1 byte: chunk 1 and chunk 6 in turn.

    When the first micro-batch has left chunk 6, the second enters chunk 1: it
    needs chunk 6 after the first is back.
    """
    scope = scope_of([(1, 1, 0)] * 6, 2, (2, 9, 9), placement="v", whole=range(6))
    order = list_order(scope, plain(scope, forward_first=True))
    assert texts(order)[0] == "0F0 5F0 5B0 0F1 0B0 5F1 5B1 0B1"


@pytest.mark.parametrize(
    ("count", "free", "kept", "expected"), rows("orders", "balanced")
)
def test_balanced_chunks(
    count: int, free: int, kept: list[int], expected: list[int]
) -> None:
    scope = scope_of([(1, 1, 1)] * 2, count, (free,), kept, "v")
    assert [scope.stay(0), scope.stay(1)] == [5, 3]
    assert balanced(scope) == (*expected,)


def test_first_delays_are_of_gradients_of_weights() -> None:
    scope = scope_of([(1, 1, 20), (1, 1, 1)], 4, (2, 9))
    delays = first_delays(scope)
    assert delays[0] == Delays(True, (0, 0), (0, 0), (2, 0), (4, 4), True)
    assert delays[1] == delays[0]._replace(forward_first=False)
    assert {x.max_in_flight for x in delays} == {(4, 4), balanced(scope)}
    assert {x.weights[0] for x in delays} == {*(0, 1, 2, 3, 4, 5, 7, 10, 15, 20, 40)}


# The search for better ones


def test_a_search_ends_at_its_floor() -> None:
    scope = scope_of([(1, 1, 1), (1, 1, 1)], 2, (9, 9))
    search = OrderSearch(scope, order_bound(scope))
    assert not search.done
    search.run(lambda: False, 1000)
    assert search.done
    assert search.best is not None
    assert search.best.end == 7


def test_a_search_stops_when_it_is_told() -> None:
    scope = scope_of([(1, 1, 1), (1, 1, 1)], 2, (9, 9))
    search = OrderSearch(scope, 0)
    search.run(lambda: True, 1000)
    assert search.best is None
    assert not search.done
    search.run(lambda: False, 1)
    assert search.best is not None
    assert not search.done


def test_a_search_is_done_where_nothing_fits() -> None:
    scope = scope_of([(1, 1, 1)], 2, (1,), (2,))
    search = OrderSearch(scope, order_bound(scope))
    search.run(lambda: False, 1000)
    assert search.best is None
    assert search.done


def test_a_search_goes_on_and_repeats_itself() -> None:
    """1,000 orders at once or in parts: the same best one."""
    scope = scope_of([(3, 7, 2), (5, 1, 9), (4, 4, 4)], 5, (4, 3, 2))
    whole, parts = OrderSearch(scope, 0, 1), OrderSearch(scope, 0, 1)
    whole.run(lambda: False, 120)
    for _ in range(3):
        parts.run(lambda: False, 40)
    assert whole.best == parts.best
