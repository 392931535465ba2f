"""Phaze's space, the order in which it looks at it, and where it stops.

Phaze (Wang et al., ICML 2024; msr-fiddle/phaze @fed7cde) lists 75,712
architectures and keeps 29,360 of them: those that are no larger than its
reference point, and no smaller than 0.3 of it unless they have one core of a
type. It takes them in buckets of similar area, the largest first, and stops
after a bucket if the best throughputs of the last five do not grow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from operator import itemgetter

from msgspec.structs import replace

from nest.accelerators.architecture import Architecture
from nest.accelerators.points import Limit, Point, Space, listed, within
from nest.accelerators.silicon import Prices, area_e6_um2, technology

#: The lists, in their order; lanes are as many as columns.
_COUNTS = tuple(2**i for i in range(12, -1, -1))
_SIDES = tuple(2**i for i in range(8, 0, -1))
CORES: Mapping[str, tuple[int, ...]] = {
    "tensor_cores": _COUNTS,
    "vector_cores": _COUNTS,
    "columns": _SIDES,
    "rows": _SIDES,
    "sram_bytes": tuple(2**i for i in range(27, 20, -1)),
}

#: What the lists leave out, unless it is said: memory and clock of TPU v4
#: (Jouppi et al., ISCA 2023, table 4), and Phaze's links: all devices alike,
#: 4 GiB/s (Estimator/architecture.py).
BESIDE: Mapping[str, tuple[int, ...]] = {
    "hbm_bytes": (32 * 2**30,),
    "hbm_bytes_per_s": (1_200_000_000_000,),
    "frequency_hz": (1_050_000_000,),
    "link_bytes_per_s": (4 * 2**30,),
    "network_bytes_per_s": (4 * 2**30,),
    "devices_per_node": (1,),
    "core_buffer_bytes": (0,),
}

#: The base: cores like those of TPU v4, each vector core with 128 lanes of 16
#: ALUs (Jouppi et al., ISCA 2023, page 2), counted as so many lanes.
TPU_V4_LIKE: Mapping[str, int] = {
    "tensor_cores": 8,
    "rows": 128,
    "columns": 128,
    "vector_cores": 2,
    "lanes": 128 * 16,
    "sram_bytes": 128 * 2**20,
}

#: The cores of Phaze's reference point, whose area is the limit of its list:
#: the same with as many lanes as columns, a sixteenth of TPU v4's.
REFERENCE: Mapping[str, int] = {**TPU_V4_LIKE, "lanes": 128}

#: The process whose areas are Phaze's.
PROCESS = "45nm"

#: Areas of a bucket differ by less than this: 1e4 µm².
_BUCKET_E6_UM2 = 10**10

#: Buckets whose best throughputs must not grow for the search to stop.
HYSTERESIS = 5


def tpu_v4_like(others: Mapping[str, int] | None = None) -> Architecture:
    """Return the point like TPU v4; ``others`` is what is not its cores."""
    first = {name: values[0] for name, values in BESIDE.items()}
    return Architecture(**{**first, **(others or {}), **TPU_V4_LIKE})


def limit() -> Limit:
    """Return the bounds of the area: the reference point, and 0.3 of it."""
    reference = replace(tpu_v4_like(), **REFERENCE)
    largest = area_e6_um2(reference, technology(PROCESS))
    return Limit(least=-(-3 * largest // 10), most=largest)


def excused(cut: str, architecture: Architecture) -> bool:
    """Whether a point may be small: one with one core of a type."""
    one = 1 in (architecture.tensor_cores, architecture.vector_cores)
    return cut == "area-least" and one


def phaze_space(
    others: Mapping[str, tuple[int, ...]] | None = None,
    limits: Mapping[str, Limit] | None = None,
    prices: Prices | None = None,
) -> Space:
    """Return Phaze's space.

    ``others`` are values of parameters that are not in Phaze's lists, by default
    :data:`BESIDE`. Of ``limits`` an own one of the area goes instead of Phaze's.
    """
    axes = {**BESIDE, **(others or {}), **CORES}
    user_limits = limits or {}
    return within(
        listed(axes, lanes_are_columns=True),
        {"area": limit(), **user_limits},
        technology(PROCESS),
        prices or Prices(),
        None if "area" in user_limits else excused,
        lanes_are_columns=True,
    )


def buckets(points: Sequence[Point]) -> list[list[Point]]:
    """Return the points by ``int(area / 1e4 µm²)``, the largest areas first.

    In a bucket they are in the order of the list.
    """
    points_by_area: dict[int, list[Point]] = defaultdict(list)
    for point in points:
        points_by_area[point.area_e6_um2 // _BUCKET_E6_UM2].append(point)
    return [points_by_area[key] for key in sorted(points_by_area, reverse=True)]


#: Of a point: a throughput, or ``None`` if the model fits it by no plan.
Throughput = int | float | Fraction | None


#: Points with their throughputs.
Evaluated = list[tuple[Point, Throughput]]


def best_of(evaluated: Evaluated) -> Point | None:
    """Return the first of the points with the highest throughput, if any fits."""
    fitting = [(point, value) for point, value in evaluated if value is not None]
    return max(fitting, key=itemgetter(1), default=(None, 0))[0]


def phaze_order(
    points: Sequence[Point], throughput_of: Callable[[Point], Throughput]
) -> Evaluated:
    """Look at points as Phaze does until it stops.

    ``points`` are those of a space, in the order of the list. What is returned is in
    the order in which Phaze comes to it.
    """
    evaluated: Evaluated = []
    best: list[int | float | Fraction] = []
    for bucket in buckets(points):
        throughputs = [(point, throughput_of(point)) for point in bucket]
        evaluated += throughputs
        best.append(max(-1 if value is None else value for _, value in throughputs))
        last = best[-HYSTERESIS:]
        falls = all(later <= earlier for earlier, later in pairwise(last))
        if falls and len(last) == HYSTERESIS:
            break
    return evaluated
