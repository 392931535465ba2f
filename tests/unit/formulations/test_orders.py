"""The best order of passes as a CP-SAT model, rule by rule.

Passes are written (F, I, W). Searches begin with one micro-batch at a time
and no bound, so that all comes from the model.
"""

from __future__ import annotations

from typing import Any

import pytest

from formulations import orders
from formulations.orders import OrderModel, prove_order
from nest.cost.schedules import Pass
from nest.errors import SolverError
from nest.search.list_orders import ListOrder, OrderScope, first_delays, list_order
from nest.solvers.base import Deadline
from tests.orders import drawn, least_end, replayed, scope_of

NO_LIMIT = Deadline(None)


def in_turn(scope: OrderScope) -> ListOrder:
    """Return the order that runs one micro-batch at a time."""
    lists = []
    for chunks in scope.members:
        passes: list[Pass] = []
        for number in range(scope.num_micro_batches):
            passes += [Pass(chunk, number, False) for chunk in chunks]
            for chunk in reversed(chunks):
                if scope.weights[chunk]:
                    passes.append(Pass(chunk, number, True, "inputs"))
                    passes.append(Pass(chunk, number, True, "weights"))
                else:
                    passes.append(Pass(chunk, number, True))
        lists.append(tuple(passes))
    end = replayed(scope, ListOrder(0, tuple(lists)))
    return ListOrder(end, tuple(lists))


CASES = [
    # One pass at a time: 3 (1 + 2 + 3).
    pytest.param(scope_of([(1, 2, 3)], 3, (9,)), 18, id="turns"),
    # Block 2 waits for 2, then works 2 (10 + 10 + 10).
    pytest.param(scope_of([(2, 3, 4), (10, 10, 10)], 2, (9, 9)), 62, id="forward"),
    # 2 + 2 (10 + 10), then the 3 of block 1 and its second W.
    pytest.param(scope_of([(2, 3, 4), (10, 10, 1)], 2, (9, 9)), 49, id="back"),
    # 1 + 10 forward, 10 back, I and W of block 1.
    pytest.param(
        scope_of([(1, 1, 1), (10, 10, 0)], 1, (9, 9)), 23, id="weights behind"
    ),
    # A whole backward pass of block 2 has to end: 1 + 1 + 10, then 2.
    pytest.param(
        scope_of([(1, 1, 1), (1, 4, 6)], 1, (9, 9), whole=(1,)), 14, id="whole"
    ),
    # One at a time on block 1: 1 + 1 forward, 1 + 1 back, W: 3 · 5.
    pytest.param(scope_of([(1, 1, 1), (1, 1, 1)], 3, (1, 1)), 15, id="one in flight"),
    # Block 2 waits for 1, then works 9; block 1 ends beside its last W.
    pytest.param(scope_of([(1, 1, 1), (1, 1, 1)], 3, (2, 9)), 10, id="two in flight"),
    # 2 bytes on block 1, where the work is 12. The first micro-batch is back
    # in chunk 4 at 4, and out of it at 6, when the second one enters chunk 1.
    # It leaves chunk 1 at 9; then the second enters chunk 4, goes back to
    # chunk 1, and ends there: 1 + 1 + 3 + 1.
    pytest.param(
        scope_of([(1, 1, 1)] * 4, 2, (2, 9), placement="v"),
        15,
        id="two bytes for two chunks",
    ),
    # In 3 bytes both enter. Block 1 waits once, until 3.
    pytest.param(
        scope_of([(1, 1, 1)] * 4, 2, (3, 9), placement="v"),
        13,
        id="three bytes for two chunks",
    ),
    # 2 of 3 bytes are for chunk 1: 5 forward, 4 back, W, one at a time.
    pytest.param(
        scope_of(
            [(2, 1, 1), *[(1, 1, 1)] * 3], *(2, (3, 9), (2, 1, 1, 1)), placement="v"
        ),
        20,
        id="a large chunk",
    ),
    # Block 2 waits for 1, then works 4 (2 + 1 + 2 + 2 + 1 + 4), if up to two
    # micro-batches of chunk 1 are beside one of chunk 4.
    pytest.param(
        scope_of(
            [(1, 2, 1), (2, 1, 2), (2, 1, 4), (1, 2, 2)],
            *(4, (4, 99), (1, 1, 1, 2)),
            placement="v",
        ),
        49,
        id="a small chunk beside a large one",
    ),
    # Three times what the second case takes.
    pytest.param(scope_of([(6, 9, 12), (30, 30, 30)], 2, (9, 9)), 186, id="ticks"),
    # Nothing is kept: 2, then the work of block 2.
    pytest.param(
        scope_of([(2, 3, 4), (10, 10, 10)], 2, (0, 0), (0, 0)), 62, id="nothing kept"
    ),
]


@pytest.mark.parametrize(("scope", "end"), CASES)
def test_best_orders(scope: OrderScope, end: int) -> None:
    known = in_turn(scope)
    order, bound = prove_order(scope, known, 0, known.end, NO_LIMIT)
    assert (replayed(scope, order), bound) == (order.end, end)
    assert order.end == end == least_end(scope)
    for passes in order.lists:
        for one in passes:
            alike = [
                x.micro_batch
                for x in passes
                if one == x._replace(micro_batch=one.micro_batch)
            ]
            assert alike == [*range(scope.num_micro_batches)]


@pytest.mark.parametrize("scope", [x.values[0] for x in CASES])
def test_no_order_ends_too_early(scope: Any) -> None:
    """Below the best end there is none: the bound is one more than that."""
    known, best = in_turn(scope), least_end(scope)
    assert best is not None
    order, bound = prove_order(scope, known, 0, best - 1, NO_LIMIT)
    assert (order, bound) == (known, best)


@pytest.mark.parametrize("seed", range(0, 40, 2))
@pytest.mark.parametrize(("ticks", "size"), [(7, 2**16), (2**40, 2), (11, 3)])
def test_rounded_models_claim_no_more(
    seed: int, ticks: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large times and sizes are rounded down: orders stay solutions."""
    monkeypatch.setattr(orders, "MAX_TICKS", ticks)
    monkeypatch.setattr(orders, "MAX_SIZE", size)
    scope = drawn(seed, 3, 2)
    known, best = in_turn(scope), least_end(scope)
    assert best is not None
    for upper in (known.end, best, best - 1):
        order, bound = prove_order(scope, known, 0, upper, NO_LIMIT)
        assert bound <= best <= order.end == replayed(scope, order)


def test_rounded_sizes_claim_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three chunks of 9, 8 and 7 bytes, and 31 for two micro-batches."""
    scope = scope_of([(1, 1, 1)] * 6, 3, (31, 99), (9, 1, 8, 1, 7, 1))
    known, best = in_turn(scope), least_end(scope)
    assert best is not None
    for size in (2, 3, 5, 7, 31):
        monkeypatch.setattr(orders, "MAX_SIZE", size)
        order, bound = prove_order(scope, known, 0, known.end, NO_LIMIT)
        assert bound <= best <= order.end == replayed(scope, order)
    assert order.end == bound == best


def test_what_all_times_share_is_divided_out() -> None:
    scope = scope_of([(6, 9, 12), (3, 15, 3)], 2, (9, 9))
    model = OrderModel(scope, 30, 90)
    assert model.unit == 3
    assert model.times == [[2, 1], [3, 5], [4, 1]]
    assert model.horizon == 30


# What proofs are made of


def answering(monkeypatch: pytest.MonkeyPatch, *bounds: int, seen: list[bool]) -> None:
    """Let searches find nothing and prove such bounds."""
    answers = iter(bounds)

    def solve(model: OrderModel, raises_bound: bool, _: Deadline) -> Any:
        seen.append(raises_bound)
        return None, next(answers)

    monkeypatch.setattr(orders, "_solve", solve)


SCOPE = scope_of([(1, 1, 1), (1, 1, 1)], 3, (1, 1))


def test_a_second_search_raises_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    known, seen = in_turn(SCOPE), list[bool]()
    answering(monkeypatch, 9, 12, seen=seen)
    assert prove_order(SCOPE, known, 10, 99, NO_LIMIT) == (known, 12)
    assert seen == [False, True]
    seen.clear()
    answering(monkeypatch, 12, seen=seen)
    assert prove_order(SCOPE, known, 10, 12, NO_LIMIT) == (known, 12)
    assert seen == [False]
    seen.clear()
    answering(monkeypatch, 9, seen=seen)
    assert prove_order(SCOPE, known, 10, 12, Deadline(0.0)) == (known, 10)
    assert seen == [False]


def test_bounds_above_an_order_are_errors() -> None:
    known = in_turn(SCOPE)
    with pytest.raises(SolverError, match=r"at most 15 quanta, .* got 16"):
        prove_order(SCOPE, known, 16, 99, NO_LIMIT)


def test_without_time_nothing_is_proven() -> None:
    known = in_turn(SCOPE)
    assert prove_order(SCOPE, known, 10, 99, Deadline(0.0)) == (known, 10)


def test_answers_are_the_same_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the engine does not finish."""
    monkeypatch.setattr(orders, "MAX_TIME", 0.05)
    scope = drawn(551)
    known = list_order(scope, first_delays(scope)[-1])
    assert known is not None
    first, again = (prove_order(scope, known, 0, known.end, NO_LIMIT) for _ in range(2))
    assert first == again
    assert 0 < first[1] < first[0].end
