"""The inter-operator program of ``alpa``: stages, submeshes, their order.

With ``t(i, k, m, c)`` the time of one micro-batch in a stage of clusters ``i..k`` on
submesh ``m`` in configuration ``c``, and ``M`` micro-batches, it minimizes

``T = Σ t + (M - 1) max t``

over all sequences of stages that cover the clusters and use exactly all
``D`` devices, where a stage with ``s - 1`` stages behind it needs ``s - 1 <=
max_n_succ(i, k, m, c)``. For a limit ``t_max`` on the stages,

``f(s, i, j) = min_{k, m, c} t(i, k, m, c) + f(s-1, k+1, j - n_m)``

is the least sum of ``s`` stages from cluster ``i`` on ``j`` devices (Zheng et
al. 2022, §5.2; ``training_dp`` in ``stage_construction.py`` at alpa b8078a9f).

Alpa tries every value of ``t`` as ``t_max``, ascending, until ``t_max M``
alone is no better than the best ``T``. Here fewer are tried with the same
result. Let ``f(t)`` be the least sum under limit ``t``; it falls as ``t``
rises. No pipeline whose largest stage is ``a``, at most ``t``, is better than
``f(t) + (M-1) a``. So of the values up to one that was tried those are left
for which that is better than the best ``T``, and these are halved.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

#: Above every sum of times, and still a number after adding two of them.
INFINITE = 2**61


class Pipeline(NamedTuple):
    """A sequence of stages.

    ``total`` and ``largest`` are ``Σ t`` and ``max t`` in quanta. ``stages`` are, in
    pipeline order, (first cluster, first cluster behind it, position of its submesh
    size).
    """

    total: int
    largest: int
    stages: tuple[tuple[int, int, int], ...]

    def objective(self, num_micro_batches: int) -> int:
        """Return ``T = Σ t + (M-1) max t`` in quanta."""
        return self.total + (num_micro_batches - 1) * self.largest


def best_pipeline(
    times: Ints,
    sizes: Sequence[int],
    num_devices: int,
    num_micro_batches: int,
    counts: Sequence[int],
    *,
    node: int | None = None,
    cutoff: int = INFINITE,
    check_time: Callable[[], None] = lambda: None,
) -> Pipeline | None:
    """Return the pipeline with the least ``T``, ``None`` if none is below the cutoff.

    ``times`` are quanta, of shape (stages, clusters, clusters, submeshes): ``times[s-1,
    i, k, m]`` is the least ``t(i, k, m, c)`` among the configurations that have room
    with ``s - 1`` stages behind; :data:`INFINITE` if there is none. It uses
    ``num_devices``, no fewer. ``node`` has the devices of a node, if no stage may sit
    on more nodes than it must. ``check_time`` is called before every program; what it
    raises ends the search.
    """
    counts = [count for count in counts if count <= len(times)]
    values: list[int] = np.unique(times[times < INFINITE]).tolist()
    if not counts or not values:
        return None
    times = times[: max(counts)]
    best: Pipeline | None = None
    pending = [(0, len(values) - 1)]
    while pending:
        first, last = pending.pop()
        if first > last:
            continue
        check_time()
        pipeline = least_sum(times, sizes, num_devices, values[last], counts, node)
        if pipeline is None:
            continue
        if pipeline.objective(num_micro_batches) < cutoff:
            best, cutoff = pipeline, pipeline.objective(num_micro_batches)
        # Tighter limits leave no smaller sum: those from here on are too slow.
        room = cutoff - 1 - pipeline.total
        slowest = room // max(num_micro_batches - 1, 1)
        slowest = min(slowest, pipeline.largest - 1)
        last = bisect_right(values, slowest) - 1
        middle = (first + last) // 2
        pending += [(middle + 1, last), (first, middle)]
    return best


def least_sum(
    times: Ints,
    sizes: Sequence[int],
    num_devices: int,
    limit: int,
    counts: Sequence[int],
    node: int | None = None,
) -> Pipeline | None:
    """Return the pipeline with the least ``Σ t`` and no ``t`` above a limit.

    Parameters and result as in :func:`best_pipeline`; ``limit`` in quanta.
    Of equal pipelines the one with fewer stages is taken.
    """
    num_clusters = times.shape[1]
    allowed = np.where(times > limit, INFINITE, times)
    # what a stage adds if it begins with so many devices left
    penalties = np.zeros((len(sizes), num_devices + 1), dtype=np.int64)
    if node is not None:
        for position, size in enumerate(sizes):
            for devices in range(num_devices + 1):
                if straddles(num_devices - devices, size, node):
                    penalties[position, devices] = INFINITE
    shape = (num_clusters + 1, num_devices + 1)
    sums = [np.full(shape, INFINITE, dtype=np.int64)]
    sums[0][num_clusters, 0] = 0
    for stage in allowed:
        before = sums[-1]
        lowest = np.full(shape, INFINITE, dtype=np.int64)
        for stop in range(1, num_clusters + 1):
            if before[stop].min() >= INFINITE:
                continue
            for position, size in enumerate(sizes):
                if size > num_devices:
                    continue
                column = stage[:stop, stop - 1, position]
                if column.min() >= INFINITE:
                    continue
                rows = lowest[:stop, size:]
                rest = before[stop, : num_devices + 1 - size]
                rest = np.minimum(rest + penalties[position, size:], INFINITE)
                np.minimum(rows, column[:, None] + rest[None, :], out=rows)
        sums.append(lowest)
    count = min(counts, key=lambda s: (sums[s][0, num_devices], s))
    total = int(sums[count][0, num_devices])
    if total >= INFINITE:
        return None
    return _trace(allowed, sizes, penalties, sums, count, total)


def straddles(offset: int, size: int, node: int) -> bool:
    """Whether devices ``[offset, offset + size)`` are on needless nodes."""
    nodes = (offset + size - 1) // node - offset // node + 1
    return nodes > -(-size // node)


def _trace(
    allowed: Ints,
    sizes: Sequence[int],
    penalties: Ints,
    sums: Sequence[Ints],
    count: int,
    total: int,
) -> Pipeline:
    """Follow the least sum back; the first choice that reaches it counts."""
    num_clusters = allowed.shape[1]
    start, devices, remaining = 0, sums[0].shape[1] - 1, total
    largest = 0
    stages = []
    for num_after in range(count - 1, -1, -1):
        start, stop, position = next(
            (start, stop, position)
            for stop in range(start + 1, num_clusters + 1)
            for position, size in enumerate(sizes)
            if size <= devices
            and penalties[position, devices] == 0
            and allowed[num_after, start, stop - 1, position]
            + sums[num_after][stop, devices - size]
            == remaining
        )
        time = int(allowed[num_after, start, stop - 1, position])
        stages.append((start, stop, position))
        largest = max(largest, time)
        remaining -= time
        devices -= sizes[position]
        start = stop
    return Pipeline(total, largest, tuple(stages))
