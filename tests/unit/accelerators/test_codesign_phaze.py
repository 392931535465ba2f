"""Phaze's space, its order, where it stops, and which points dominate."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest
from msgspec.structs import replace

from nest.accelerators.phaze import (
    BESIDE,
    REFERENCE,
    TPU_V4_LIKE,
    Throughput,
    best_of,
    buckets,
    phaze_order,
    phaze_space,
    tpu_v4_like,
)
from nest.accelerators.points import Limit, Point, Space, axes_of
from nest.accelerators.silicon import area_e6_um2, technology

COUNTS = ("tensor_cores", "vector_cores")
CORES = (*COUNTS, "columns", "rows", "lanes", "sram_bytes")

#: TC, VC, w × d of the points that Phaze looks at before it may stop.
FIRST = [
    (8, 2, 128, 128),
    (8, 1, 256, 64),
    (32, 4, 16, 256),
    (32, 2, 32, 128),
    (16, 16, 32, 256),
    (32, 1, 64, 64),
    (32, 2, 16, 256),
    (32, 1, 32, 128),
]


@pytest.fixture(scope="module")
def space() -> Space:
    return phaze_space()


def cores(point: Point) -> tuple[int, int, int, int]:
    a = point.architecture
    return a.tensor_cores, a.vector_cores, a.columns, a.rows


# The list


def test_counts_of_the_list(space: Space) -> None:
    assert space.raw == 75_712
    assert space.cut == {"area-most": 23_769, "area-least": 22_583}
    assert len(space.points) == 29_360
    assert [point.index for point in space.points] == list(range(29_360))


def test_facts_of_the_shipped_list(space: Space) -> None:
    """Counted in cores.json."""
    tensor, vector = set(), set()
    one = small = 0
    least = 3 * space.limits["area"].most / 10
    for point in space.points:
        a = point.architecture
        tensor.add((a.tensor_cores, a.rows, a.columns, a.sram_bytes))
        vector.add((a.vector_cores, a.lanes, a.sram_bytes))
        assert a.lanes == a.columns
        if 1 in (a.tensor_cores, a.vector_cores):
            one += 1
            small += point.area_e6_um2 < least
    assert (len(tensor), len(vector), one, small) == (4186, 697, 9308, 5780)
    most = max(point.architecture.macs_per_cycle for point in space.points)
    assert most == 262_144
    assert sum(p.architecture.macs_per_cycle >= 131_072 for p in space.points) == 7141


def test_order_of_the_list(space: Space) -> None:
    """As shipped: TC, VC, w, d and buffer, each from the largest down."""
    keys = [(*cores(p), p.architecture.sram_bytes) for p in space.points]
    assert keys == sorted(keys, reverse=True)
    first = space.points[0]
    assert keys[0] == (4096, 4096, 16, 2, 2**25)
    assert first.area_e6_um2 == 246_416_424_736_000


def test_the_limit_is_met_exactly(space: Space) -> None:
    """Bounds are inclusive: Phaze's reference point is the limit."""
    largest = max(space.points, key=lambda point: point.area_e6_um2)
    assert largest.architecture == replace(tpu_v4_like(), **REFERENCE)
    assert largest.area_e6_um2 == space.limits["area"].most
    assert largest.area_e6_um2 == 278_826_676_312_160


def test_the_point_like_tpu_v4_takes_what_is_beside_it() -> None:
    own = tpu_v4_like({"hbm_bytes": 5, "tensor_cores": 4})
    assert own == replace(tpu_v4_like(), hbm_bytes=5)
    assert {k: getattr(own, k) for k in TPU_V4_LIKE} == dict(TPU_V4_LIKE)


def test_the_base_has_the_published_vector_lanes(space: Space) -> None:
    """Two cores of 128 lanes with 16 ALUs each: 1.1 % more area."""
    base = tpu_v4_like()
    assert base.vector_cores * base.lanes == 2 * 128 * 16
    area = area_e6_um2(base, technology("45nm"))
    assert area == 281_854_579_847_680
    assert 1.010 < area / space.limits["area"].most < 1.011


def test_other_memory_and_limits() -> None:
    """An own limit of the area goes instead of Phaze's and its exception."""
    least = 278 * 10**12
    found = phaze_space({"hbm_bytes": (10**9,)}, {"area": Limit(least=least)})
    assert found.raw == 75_712
    assert found.axes["hbm_bytes"] == (10**9,)
    assert found.axes["frequency_hz"] == BESIDE["frequency_hz"]
    assert min(p.area_e6_um2 for p in found.points) >= least
    assert all(1 not in cores(p)[:2] or p.area_e6_um2 >= least for p in found.points)


# Order and stop


def test_first_eight(space: Space) -> None:
    evaluated = phaze_order(space.points, lambda point: 1)
    assert [cores(point) for point, _ in evaluated] == FIRST
    for point, _ in evaluated:
        assert point.architecture.macs_per_cycle == 131_072
        assert point.architecture.sram_bytes == 2**27


def test_buckets(space: Space) -> None:
    found = buckets(space.points)
    assert len(found) == 13_506
    assert [len(bucket) for bucket in found[:5]] == [2, 1, 2, 1, 2]
    keys = [bucket[0].area_e6_um2 // 10**10 for bucket in found]
    assert keys[:5] == [27_882, 27_881, 27_880, 27_879, 27_877]
    for bucket in found[:50]:
        places = [point.index for point in bucket]
        assert places == sorted(places)


@pytest.mark.parametrize(
    "throughput_of",
    [
        lambda point: Fraction(point.area_e6_um2),
        lambda point: 1.5,
        lambda point: None,
        lambda point: point.architecture.macs_per_cycle,
    ],
    ids=["falls", "constant", "nothing-fits", "multiply-accumulates"],
)
def test_stops_after_eight(space: Space, throughput_of) -> None:
    assert len(phaze_order(space.points, throughput_of)) == 8


def test_looks_at_all_if_throughput_rises(space: Space) -> None:
    evaluated = phaze_order(space.points, lambda point: -point.area_e6_um2)
    assert len(evaluated) == 29_360
    best = best_of(evaluated)
    assert best is not None
    assert best.area_e6_um2 == 3_355_047_773_250


def listed(*areas: int) -> list[Point]:
    """Return points of such areas, in 1e4 µm²."""
    return [
        Point(i, replace(tpu_v4_like(), rows=i + 1), area * 10**10, 1, 1)
        for i, area in enumerate(areas)
    ]


@pytest.mark.parametrize(
    ("throughputs", "looked_at"),
    [
        ([5, 4, 3, 2, 1, 9], 5),
        # A bucket that is better than the one before it keeps on.
        ([5, 4, 3, 4, 1, 9, 8], 7),
        ([1, 2, 3, 3, 3, 3, 3, 9], 7),
        # What fits no model counts -1: worse than everything.
        ([0, None, None, None, None, 9], 5),
        ([None, 0, None, None, None, None, 9], 6),
        ([4, 3, 2, 1], 4),
    ],
)
def test_stop_rule(throughputs: list[Throughput], looked_at: int) -> None:
    points = listed(*range(len(throughputs), 0, -1))
    evaluated = phaze_order(points, lambda point: throughputs[point.index])
    assert len(evaluated) == looked_at


def test_a_bucket_is_as_good_as_its_best() -> None:
    """Of 9 and 3 in the third, 9 counts: 5, 4, 9, 3, 2 do not fall."""
    points = listed(6, 5, 4, 4, 3, 2, 1)
    values = [5, 4, 9, 3, 3, 2, 1]
    evaluated = phaze_order(points, lambda point: values[point.index])
    assert [value for _, value in evaluated] == values
    assert best_of(evaluated) == points[2]


def test_best_is_none_if_nothing_fits() -> None:
    assert best_of(phaze_order(listed(1, 2), lambda point: None)) is None


# Figures


def test_axes_are_what_is_listed(space: Space) -> None:
    kept = axes_of(point.architecture for point in space.points)
    assert kept["rows"] == space.axes["rows"] == tuple(2**i for i in range(1, 9))
    assert space.axes["tensor_cores"] == tuple(2**i for i in range(13))
    assert Counter(map(len, space.axes.values())) == {13: 2, 8: 3, 7: 1, 1: 7}


def test_areas_are_of_the_stored_process(space: Space) -> None:
    process = technology("45nm")
    for point in space.points[::997]:
        assert point.area_e6_um2 == area_e6_um2(point.architecture, process)
