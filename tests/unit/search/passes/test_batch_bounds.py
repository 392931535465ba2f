"""Bounds on all plans of a batch configuration: every row by hand."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from nest.cost.model import Block, CostModel
from nest.cost.schedules import Times
from nest.cost.space import PLAIN, BatchSplit
from nest.ir.problem import Problem
from nest.search.linear_program import LinearProgram
from nest.search.passes.batch_bounds import (
    PRECISION,
    BatchBound,
    LayerChoices,
    RisingBound,
    free_sync,
    layer_choices,
    least_bound,
    least_devices,
    least_sync,
    queue_parts,
    whole_parts,
)
from nest.search.passes.list_orders import OrderScope, OrderSearch
from nest.search.passes.order_bounds import order_bound
from nest.search.stages.closed_sets import closed_sets
from nest.search.stages.options import BatchTerms, StageShapes, batch_terms
from tests.builders import make_cost, make_levels, make_problem
from tests.rows import named_rows

# Linear programs


def program() -> LinearProgram:
    """Build ``min 3 x + 2 y`` with ``x + y >= 2``, ``x <= 5``, ``y <= 1``."""
    built = LinearProgram(np.array([3.0, 2.0]), np.array([5.0, 1.0]), 1000.0)
    built.add(np.array([1.0, 1.0]), 2.0)
    return built


def test_the_bound_of_a_program_is_its_optimum() -> None:
    amounts, bound = program().solve()
    assert amounts == pytest.approx([1.0, 1.0])
    assert 5.0 * (1 - 1e-6) < bound <= 5.0


@pytest.mark.parametrize("price", [0.0, 1.0, 2.5, 3.0, 7.0, -1.0])
def test_no_price_gives_more_than_the_optimum(price: float) -> None:
    """``2 p + min(0, 3 - p) 5 + min(0, 2 - p)``, so 5 at ``p = 3``."""
    expected = 2 * max(price, 0.0) + 5 * min(0.0, 3 - price)
    expected += min(0.0, 2 - price)
    built = program()
    built.solve()
    # The row is kept in quarters.
    bound = built.bound(np.array([4 * price]))
    assert bound == pytest.approx(expected, abs=1e-4)
    assert bound <= 5.0


def test_what_nothing_satisfies_costs_the_penalty() -> None:
    built = program()
    built.add(np.array([1.0, 0.0]), 6.0)
    assert built.solve()[1] > 5.0 + 10.0


# Whole layers


def counted(sizes: list[float], most: int, single: int = -1) -> Any:
    is_single = np.arange(len(sizes)) == single
    fits = np.ones(len(sizes), dtype=np.bool_)
    parts, whole = whole_parts(np.array(sizes), most, fits, is_single)
    return parts.tolist(), whole


@pytest.mark.parametrize(
    ("sizes", "most", "expected"),
    [
        # three layers of 0.3; one of 0.6 counts for two
        ([0.3, 0.6], 3, ([1.0, 2.0], 3)),
        # two layers of 0.4 although three parts may be counted
        ([0.4], 3, ([1.0], 2)),
        # 0.1 counts for none
        ([0.1, 0.5], 2, ([0.0, 1.0], 2)),
        # exactly three
        ([1 / 3], 3, ([1.0], 3)),
    ],
)
def test_whole_layers_of_a_block(sizes: list[float], most: int, expected: Any) -> None:
    assert counted(sizes, most) == expected


@pytest.mark.parametrize(
    ("single", "parts"), [(0.1, 0.0), (0.15, 1.0), (0.5, 2.0), (0.75, 3.0)]
)
def test_a_single_layer_leaves_room_for_the_others(single: float, parts: float) -> None:
    """Three layers of 0.3 fit alone."""
    assert counted([0.3, single], 3, single=1) == ([1.0, parts], 3)


def test_layers_that_do_not_fit_count_for_nothing() -> None:
    fits = np.array([True, False])
    none = np.zeros(2, dtype=np.bool_)
    parts, whole = whole_parts(np.array([0.3, 0.9]), 3, fits, none)
    assert (parts.tolist(), whole) == ([1.0, 0.0], 3)


# The least step of some layers


def choices(*rows: dict[str, float], count: int) -> LayerChoices:
    """Build choices from passes of one micro-batch."""
    table = []
    for row in rows:
        full = {**dict.fromkeys(LayerChoices._fields, 0.0), "devices": 1.0, **row}
        for name in ("forward", "inputs", "weights"):
            full[name] *= count
        full["load"] += full["forward"] + full["inputs"] + full["weights"]
        table.append([full[name] for name in LayerChoices._fields])
    columns = [np.array(column) for column in zip(*table, strict=True)]
    columns[0] = columns[0].astype(np.int64)
    return LayerChoices._make(columns)


def least(
    *rows: dict[str, float],
    layers: tuple[int, ...] = (4,),
    devices: int = 4,
    count: int = 8,
    ordered: bool = True,
) -> int:
    """Return the first step time that is not ruled out, in thousandths."""
    bound = BatchBound(
        choices(*rows, count=count), np.array(layers), devices, count, ordered
    )
    low, high = 0, 10_000_000
    while low < high:
        middle = (low + high) // 2
        if bound.rules_out(middle):
            low = middle + 1
        else:
            high = middle
    return low


def layer(times: tuple[float, float, float], **fields: float) -> Any:
    """Build passes in units of a thousand quanta."""
    names = ("forward", "inputs", "weights")
    passes = {x: 1000 * y for x, y in zip(names, times, strict=True)}
    return {**passes, **fields}


@pytest.mark.parametrize(
    ("rows", "fields", "expected"), named_rows("bounds", "least_steps")
)
def test_the_least_step(rows: Any, fields: dict[str, Any], expected: float) -> None:
    """In thousands of quanta, to a part in a thousand."""
    found = least(*(layer(**row) for row in rows), **fields)
    assert 1000 * expected * 0.998 <= found <= 1000 * expected


def test_bytes_of_two_layers_stay_for_the_shorter_pair() -> None:
    """A quarter of a device for 30, or two quarters of two devices for 10."""
    rows = (
        {"inputs": 30.0, "kept_share": 0.25},
        {"inputs": 10.0, "kept_share": 0.25, "devices": 2.0},
    )
    bound = BatchBound(choices(*rows, count=1), np.array([2]), 2, 1)
    assert bound.stays.tolist() == [[7.5, 2.5], [2.5, 5]]


@pytest.mark.parametrize(
    ("layers", "num_small"), [((2, 1), 1), ((3, 1, 1), 2), ((1, 1), 0)]
)
def test_chunks_of_single_layers_may_be_short(
    layers: tuple[int, ...], num_small: int
) -> None:
    """If all layers are single, every chunk has one of those."""
    rows = [{"kind": kind, "forward": 1.0} for kind in range(len(layers))]
    bound = BatchBound(choices(*rows, count=1), np.array(layers), 4, 1)
    assert bound.num_small == num_small


def test_plans_with_long_trips_are_not_ruled_out() -> None:
    """A fast layer is in no plan, and trips of 40 are the longest ones."""
    rows = ({"forward": 1.0, "load": 1e9}, {"forward": 10.0})
    bound = BatchBound(choices(*rows, count=1), np.array([4]), 4, 1)
    assert bound.rules_out(39)
    assert not bound.rules_out(41)


def test_layers_that_fit_nowhere_are_in_no_plan() -> None:
    bound = BatchBound(choices({"forward": 10.0}, count=1), np.array([1, 1]), 4, 1)
    assert bound.rules_out(10**6)


@pytest.mark.parametrize(
    ("rows", "layers", "max_blocks", "expected"),
    [
        # two layers of 0.4 per device
        ([{"static": 0.4}], (5,), None, 3),
        # three do not fit with what a pass needs, nor with what is in flight
        ([{"static": 0.3, "working": 0.2}], (3,), None, 2),
        ([{"static": 0.2, "kept_share": 0.15}], (3,), None, 2),
        # a wider block holds all, and one has to do
        ([{"static": 0.4}, {"static": 0.1, "devices": 4.0}], (5,), 2, 4),
        # the largest working set of a block counts
        ([{"working": 0.6, "static": 0.3}, {"kind": 1, "static": 0.3}], (1, 3), 9, 2),
        # 0.7 leaves room for no other layer
        ([{"static": 0.7}, {"kind": 1, "static": 0.5}], (1, 2), None, 2),
        # nothing holds a layer of 1.5; only two blocks of one layer each
        ([{"static": 1.5}], (1,), None, np.inf),
        ([{"static": 0.9}], (3,), 2, np.inf),
        # the leanest strategies count, each for itself
        ([{"static": 0.8, "load": 1.0}, {"static": 0.5}], (2,), None, 1),
    ],
)
def test_the_fewest_devices_with_room(
    rows: Any, layers: tuple[int, ...], max_blocks: int | None, expected: float
) -> None:
    table = choices(*rows, count=1)
    assert least_devices(table, np.array(layers), max_blocks) == expected
    for devices in (expected - 1, expected) if expected < np.inf else ():
        bound = BatchBound(
            table, np.array(layers), int(devices), 1, max_blocks=max_blocks
        )
        assert bound.possible == (devices == expected)


def test_too_many_sets_of_layers_are_not_packed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = choices({"static": 0.9}, {"static": 0.4, "devices": 2.0}, count=1)
    monkeypatch.setattr("nest.search.passes.batch_bounds.MAX_PACKED", 12)
    assert least_devices(table, np.array([5])) == 5
    for most in (11, 5):
        monkeypatch.setattr("nest.search.passes.batch_bounds.MAX_PACKED", most)
        assert least_devices(table, np.array([5])) == 0


def test_nothing_is_ruled_out_once_it_is_told_to_stop() -> None:
    bound = BatchBound(
        choices({"forward": 10.0, "inputs": 20.0}, count=4), np.array([4]), 2, 4
    )
    assert bound.rules_out(60)
    assert not bound.rules_out(60, lambda: True)


def test_a_bound_rises_until_it_is_known_or_enough() -> None:
    bound = BatchBound(choices({"weights": 1000.0}, count=4), np.array([4]), 2, 4)
    rising = RisingBound(bound, 10)
    rising.climb(100_000, 5000, lambda: False)
    assert rising.bound == 5000
    rising.climb(100_000, 100_000, lambda: False)
    assert rising.bound <= 8000 <= rising.failed
    assert rising.failed - rising.bound <= 100_000 // PRECISION


def test_a_bound_that_is_not_enough_halves_what_is_below_the_best() -> None:
    """Four layers of 4,000 on two devices."""
    bound = BatchBound(choices({"weights": 1000.0}, count=4), np.array([4]), 2, 4)
    asked: list[int] = []

    class Asked(RisingBound):
        def rules_out(self, step_quanta: int, stop: Callable[[], bool]) -> bool:
            asked.append(step_quanta)
            return super().rules_out(step_quanta, stop)

    rising = Asked(bound, 5000)
    rising.climb(16_001, 8901, lambda: False)
    assert asked[:4] == [8900, 10_500, 7750, 9125]
    assert rising.bound <= 8000 <= rising.failed


def test_a_trip_of_any_time_is_in_some_range(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans of one trip are open. Where it was the last time is asked about first."""
    asked: list[tuple[float, float]] = []
    open_trips: list[float] = []

    def ask(_: BatchBound, step: float, start: float, end: float) -> bool:
        asked.append((start, end))
        return not any(start <= trip <= end for trip in open_trips)

    monkeypatch.setattr(BatchBound, "_needs_more", ask)
    one = choices({"forward": 10.0, "inputs": 20.0}, count=4)
    bound = BatchBound(one, np.array([4]), 2, 4)
    assert bound.rules_out(400)
    assert len(asked) == 1
    for trip in (120.0, 45.0, 45.0, 79.0, 388.0, 41.0, 390.0):
        open_trips[:] = [trip]
        assert not bound.rules_out(400), trip
        asked.clear()
        assert not bound.rules_out(400)
        assert len(asked) == 1
    open_trips.clear()
    assert bound.rules_out(400)


def test_the_least_bound_of_several_batches() -> None:
    """Batches of four layers on two devices, of 8,000 and 12,000."""
    batches = [
        RisingBound(
            BatchBound(choices({"weights": weights}, count=4), np.array([4]), 2, 4), 10
        )
        for weights in (1500.0, 1000.0)
    ]
    assert least_bound([*batches], 8000, lambda: False) == 8000
    assert least_bound([*batches], 5, lambda: False) == 5
    asked = [*batches]
    assert 8000 - 20_000 / 50 <= least_bound(asked, 20_000, lambda: False) <= 8000
    assert asked[0] is batches[1]
    # The other one is raised no further, and nothing is once time is up.
    other = RisingBound(batches[0]._plans, 10)
    new = [batches[1], other]
    assert least_bound(new, 20_000, lambda: False) == other.bound == batches[1].bound
    other = RisingBound(batches[0]._plans, 10)
    assert least_bound([batches[1], other], 20_000, lambda: True) == 10
    assert least_bound([], 70, lambda: False) == 70


# Orders that there are


def drawn(seed: int) -> tuple[BatchBound, int]:
    """Return a bound, and a step of one of its plans in some order."""
    draw = random.Random(seed)
    virtual = draw.choice((1, 1, 2, 3))
    num_blocks = draw.randint(1, 4)
    count = draw.randint(1, 6)
    scale = draw.choice((1, 1000, 10**9))
    kinds = draw.choice((1, 2, 3))
    placement = draw.choice(("loop", "v")) if virtual == 2 else "loop"
    num_chunks = num_blocks * virtual
    widths = [draw.choice((1, 2, 4)) for _ in range(num_blocks)]
    block_of = [
        min(x, num_chunks - 1 - x) if placement == "v" else x % num_blocks
        for x in range(num_chunks)
    ]
    rows: list[dict[str, float]] = []
    chunks: list[list[dict[str, float]]] = []
    for chunk in range(num_chunks):
        chunks.append([])
        for _ in range(draw.randint(1, 3)):
            row = {
                "kind": draw.randrange(kinds),
                "devices": widths[block_of[chunk]],
                "forward": scale * draw.randint(0, 9),
                "inputs": scale * draw.randint(0, 9),
                "weights": scale * draw.choice((0, draw.randint(0, 9))),
                "static": draw.randint(0, 4),
                "kept_share": draw.randint(0, 9),
                "working": draw.randint(0, 3),
            }
            chunks[-1].append(row)
            rows.append(row)
    present = sorted({int(x["kind"]) for x in rows})
    for row in rows:
        row["kind"] = present.index(int(row["kind"]))
    counts = np.bincount([int(x["kind"]) for x in rows])
    kept = [int(sum(x["kept_share"] for x in chunk)) for chunk in chunks]
    held = [0] * num_blocks
    needed = [0] * num_blocks
    for block in range(num_blocks):
        own = [x for x, y in enumerate(block_of) if y == block]
        layers = [row for x in own for row in chunks[x]]
        held[block] = int(sum(x["static"] for x in layers))
        held[block] += int(max(x["working"] for x in layers))
        needed[block] = sum(kept[x] for x in own)
    most = max(x + y for x, y in zip(held, needed, strict=True))
    capacity = most + draw.choice((0, 1, 5, 30, 200))
    for row in rows:
        for name in ("static", "kept_share", "working"):
            row[name] /= capacity
    times = [
        Times(
            int(sum(x["forward"] for x in chunk)),
            int(sum(x["inputs"] + x["weights"] for x in chunk)),
            int(sum(x["weights"] for x in chunk)),
        )
        for chunk in chunks
    ]
    scope = OrderScope(
        times=times,
        kept_bytes=tuple(kept),
        free_bytes=tuple(capacity - x for x in held),
        block_of=tuple(block_of),
        whole=frozenset(),
        num_micro_batches=count,
    )
    search = OrderSearch(scope, order_bound(scope))
    search.run(lambda: False, 30)
    assert search.best is not None
    devices = sum(widths)
    bound = BatchBound(choices(*rows, count=count), counts, devices, count)
    return bound, search.best.end


@pytest.mark.parametrize("start", range(0, 120, 20))
def test_no_order_is_ruled_out(start: int) -> None:
    """Neither its own step time, nor a longer one."""
    for seed in range(start, start + 20):
        bound, end = drawn(seed)
        assert not bound.rules_out(end), seed
        assert not bound.rules_out(end + end // 7 + 1), seed


# Blocks that wait one by one, and syncs


def test_a_room_has_as_many_parts_as_fit_behind_its_wait() -> None:
    """Layers of 0.25, 0.3 and 0.5 in parts of 0.25; 0.1 more wait at every place."""
    counted, whole = queue_parts(
        np.array([0.25, 0.3, 0.5, 0.2]), 0.25, np.array([1.0, 0.9, 0.5, 0.2, -0.1])
    )
    assert counted.tolist() == [1.0, 1.0, 2.0, 0.0]
    assert whole.tolist() == [4.0, 3.0, 2.0, 0.0, 0.0]


def test_blocks_wait_for_the_shortest_layers_on_blocks_as_wide() -> None:
    """Layers of 3, 3 and 7 on one device, of 2 on two; forward, around, behind."""
    bound = BatchBound(
        choices(
            {"forward": 3.0, "inputs": 1.0},
            {"forward": 7.0, "inputs": 9.0, "kind": 1},
            {"forward": 2.0, "inputs": 5.0, "devices": 2.0},
            count=4,
        ),
        np.array([2, 1]),
        4,
        4,
    )
    expected = [
        [[0, 3, 6, 13], [0, 2, 4, 11]],
        [[0, 4, 8, 24], [0, 4, 8, 24]],
        [[0, 1, 2, 11], [0, 1, 2, 11]],
    ]
    for waits, sums in zip(bound.queued, expected, strict=True):
        for found, times in zip(waits, sums, strict=True):
            assert found.tolist() == pytest.approx(times)
            assert (found <= times).all()


def batches_of(problem: Problem) -> Iterator[tuple[BatchTerms, BatchSplit]]:
    sets = closed_sets(problem.graph)
    for split, terms in batch_terms(StageShapes(CostModel(problem), sets), PLAIN):
        if terms.strategies:
            yield terms, split


def synced(**fields: Any) -> Problem:
    """Build two layers on nodes of three devices, so that places differ."""
    costs = {"a": make_cost(10, 20, weight_bytes=4e6), "b": make_cost(10, 20)}
    return make_problem(
        costs,
        **{
            "devices": 6,
            "global_batch": 8,
            "micro_batches": (1, 2, 4),
            "topology": make_levels((3, 10.0, 1e11), (2, 1000.0, 1e10)),
            **fields,
        },
    )


def test_the_least_sync_is_that_of_the_best_place() -> None:
    """Of every strategy; it is above what the layer takes without communication."""
    longer = differing = 0
    for terms, split in batches_of(synced()):
        found = least_sync(terms, split, terms.strategies)
        assert found is not None
        for strategy, row in zip(terms.strategies, found.tolist(), strict=True):
            unit = math.gcd(*terms.devices.tolist())
            places = range(0, split.devices - strategy.devices + 1, unit)
            every = [
                terms.terms(
                    strategy,
                    Block(split.replicas, split.devices, offset, strategy.devices),
                )
                for offset in places
            ]
            for kind, sync in enumerate(row):
                syncs = [x.sync for placed in every if (x := placed[kind]) is not None]
                assert not syncs or sync == min(syncs)
                differing += len({*syncs}) > 1
        longer += int((found > free_sync(terms, terms.strategies)).sum())
    assert longer
    assert differing


def test_a_second_program_is_asked_where_the_first_does_not_rule_out() -> None:
    """Four layers on two devices: 8,000 without syncs, 12,000 with them."""
    made: list[BatchBound] = []

    def closer() -> BatchBound:
        made.append(
            BatchBound(choices({"weights": 1500.0}, count=4), np.array([4]), 2, 4)
        )
        return made[0]

    plain = BatchBound(choices({"weights": 1000.0}, count=4), np.array([4]), 2, 4)
    bound = RisingBound(plain, 10, closer)
    assert bound.rules_out(7_000, lambda: False)
    assert not made
    assert bound.rules_out(11_000, lambda: False)
    assert len(made) == 1
    assert not bound.rules_out(12_500, lambda: False)
    assert len(made) == 1
    assert bound.bound == 11_001


def test_strategies_wider_than_a_replica_are_in_no_plan() -> None:
    for terms, split in batches_of(synced()):
        table = layer_choices(terms, split, terms.strategies, 0)
        assert table.devices.max(initial=0.0) <= split.devices
