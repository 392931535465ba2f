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
from nest.search.passes.list_orders import (
    ListOrder,
    OrderScope,
    first_delays,
    list_order,
)
from nest.solvers.base import Deadline
from tests.orders import drawn, least_end, replayed, scope_of
from tests.rows import named_rows

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


CASES = named_rows("orders", "best")


@pytest.mark.parametrize(("fields", "end"), CASES)
def test_best_orders(fields: dict[str, Any], end: int) -> None:
    scope = scope_of(**fields)
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


@pytest.mark.parametrize(("fields", "best"), CASES)
def test_no_order_ends_too_early(fields: dict[str, Any], best: int) -> None:
    """Below the best end there is none: the bound is one more than that."""
    scope = scope_of(**fields)
    known = in_turn(scope)
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
