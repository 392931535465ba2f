"""Orders of passes, and their bounds, against the best of all orders.

``python bench/orders.py`` does so on 1,000 problems and stores the figures.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formulations.orders import prove_order
from nest.cost.schedules import Times
from nest.search.passes.list_orders import (
    Delays,
    OrderScope,
    OrderSearch,
    first_delays,
    list_order,
)
from nest.search.passes.order_bounds import order_bound
from nest.solvers.base import Deadline
from tests.orders import (
    compare,
    draw_scope,
    drawn,
    least_end,
    modeled_end,
    replayed,
    scope_of,
)
from tests.properties.profiles import PROFILE, examples

#: Problems of any size, those with few passes, and so many per test.
COUNT = {"quick": 8, "dev": 8, "full": 1000}.get(PROFILE, 40)
FEW = {"quick": 40, "dev": 40, "full": 4000}.get(PROFILE, 400)
PER_TEST = {"quick": 8, "dev": 8}.get(PROFILE, 40)


@pytest.mark.parametrize("first", range(0, COUNT, PER_TEST))
def test_values_are_near_the_best_and_bounds_not_above(first: int) -> None:
    near = 0
    for seed in range(first, first + PER_TEST):
        result = compare(drawn(seed), 60, 0.3)
        assert not result.wrong, f"seed {seed}: {result}"
        near += result.near
    assert near >= PER_TEST * 3 // 4


@pytest.mark.parametrize("first", range(0, FEW, PER_TEST))
def test_no_bound_is_above_the_best_of_few_orders(first: int) -> None:
    """Both ways to the best order find it, with nothing of the search."""
    for seed in range(first, first + PER_TEST):
        scope = drawn(seed, 3, 2)
        end = least_end(scope)
        assert end is not None
        assert order_bound(scope) <= end
        if seed % 4 == 0 and len(scope.times) < 6:
            assert modeled_end(scope, None) == (end, end), f"seed {seed}"


def enlarged(random: Random, scope: OrderScope) -> OrderScope:
    """Return passes of up to some 10^9 quanta, and sizes of so many bytes."""
    scale, byte_scale = random.choice((1, 10**3, 10**8)), 10**9

    def longer(time: int) -> int:
        return time * scale + (random.randrange(scale) if time else 0)

    times = []
    for x in scope.times:
        weights = longer(x.weight_backward)
        inputs = longer(x.backward - x.weight_backward)
        times.append(Times(longer(x.forward), inputs + weights, weights))
    return replace(
        scope,
        times=times,
        kept_bytes=tuple(x * byte_scale for x in scope.kept_bytes),
        free_bytes=tuple(
            x * byte_scale + random.randrange(byte_scale) for x in scope.free_bytes
        ),
    )


@pytest.mark.parametrize("first", range(0, FEW, PER_TEST))
def test_the_best_of_few_orders_is_proven(first: int) -> None:
    """Whatever times and sizes are, and which order is known."""
    for seed in range(first, first + PER_TEST):
        scope = enlarged(Random(seed), drawn(seed, 3, 2))
        known, best = (list_order(scope, first_delays(scope)[-1]), least_end(scope))
        assert known is not None
        order, bound = prove_order(
            scope, known, order_bound(scope), known.end, Deadline(None)
        )
        assert replayed(scope, order) == order.end
        assert order.end == bound == best, f"seed {seed}"


@pytest.mark.parametrize("seed", range(1, 6))
def test_the_best_order_of_three_chunks_of_a_block_is_proven(seed: int) -> None:
    """Memory is then a sum of sizes, which may be rounded."""
    random = Random(f"three chunks {seed}")
    kept = [random.randint(1, 5) for _ in range(6)]
    needs = [sum(kept[block::2]) for block in range(2)]
    scope = enlarged(
        random,
        scope_of(
            [(random.randint(1, 9), random.randint(1, 9), seed % 3) for _ in kept],
            *(2, [random.randint(x, 2 * x - 1) for x in needs], kept),
        ),
    )
    known, best = list_order(scope, first_delays(scope)[-1]), least_end(scope)
    assert known is not None
    order, bound = prove_order(scope, known, 0, known.end, Deadline(None))
    assert replayed(scope, order) == order.end
    assert order.end == bound == best


def draw_delays(random: Random, scope: OrderScope) -> Delays:
    most = max(map(sum, zip(*(scope.forward, scope.inputs), strict=True)))

    def draw(least: int) -> tuple[int, ...]:
        return tuple(random.randint(least, most) for _ in scope.times)

    return Delays(
        random.random() < 0.5,
        draw(-most),
        draw(-most),
        draw(0),
        tuple(random.randint(1, scope.num_micro_batches) for _ in scope.times),
        is_roomy=random.random() < 0.5,
    )


@examples(200)
@given(st.randoms(use_true_random=False))
def test_every_order_can_run_and_fits(random: Random) -> None:
    """Whatever the delays are, if a micro-batch of every chunk fits."""
    scope = draw_scope(random)
    bound = order_bound(scope)
    for delays in (draw_delays(random, scope), first_delays(scope)[0]):
        order = list_order(scope, delays)
        assert order is not None
        assert replayed(scope, order) == order.end >= bound


@examples(60)
@given(st.randoms(use_true_random=False))
def test_there_is_no_order_where_one_micro_batch_does_not_fit(random: Random) -> None:
    scope = draw_scope(random, 2, 2)
    block = random.randrange(len(scope.free_bytes))
    need = sum(scope.kept_bytes[chunk] for chunk in scope.members[block])
    free = list(scope.free_bytes)
    free[block] = need - 1
    less = replace(scope, free_bytes=tuple(free))
    if need:
        assert least_end(less) is None
        assert list_order(less, draw_delays(random, less)) is None
        search = OrderSearch(less, order_bound(less))
        search.run(lambda: False, 100)
        assert search.best is None
        assert search.done


@examples(60)
@given(st.randoms(use_true_random=False))
def test_more_memory_never_raises_a_bound(random: Random) -> None:
    scope = draw_scope(random)
    more = replace(
        scope, free_bytes=tuple(x + random.randint(0, 9) for x in scope.free_bytes)
    )
    assert order_bound(more) <= order_bound(scope)


@examples(60)
@given(st.randoms(use_true_random=False))
def test_whole_backward_passes_never_lower_a_bound(random: Random) -> None:
    scope = draw_scope(random)
    chunk = random.randrange(len(scope.times))
    whole = replace(scope, whole=scope.whole | {chunk})
    assert order_bound(scope) <= order_bound(whole)
