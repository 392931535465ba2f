"""Times of collectives on a network, by the size of their buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from nest.ir.graph import CollectiveKind
from nest.topology.graph.bounds import bound_ns
from nest.topology.graph.network import GraphNetwork

#: Bounds of networks with more devices take longer than all times.
MOST_BOUNDED = 256

#: Buffers of ``nest topology bench``: 64 KiB to 1 GiB.
BENCH_BYTES = tuple(2**exponent for exponent in range(16, 31, 2))


def bench_rows(
    network: GraphNetwork, groups: Sequence[Sequence[int]]
) -> list[dict[str, Any]]:
    """Price every kind of collective on groups that run at the same time.

    There is one row per size: ``bytes`` and, per kind, ``ns`` and ``algorithm``; up to
    :data:`MOST_BOUNDED` devices also ``bound_ns``.
    """
    rows = []
    offered = network.offered(groups)
    bounds: dict[str, float] = {}
    if network.num_devices <= MOST_BOUNDED:
        bounds = {
            kind: bound_ns(network.routes, kind, groups, 1.0, network.places)
            for kind in get_args(CollectiveKind)
        }
    for size in BENCH_BYTES:
        row: dict[str, Any] = {"bytes": size}
        for kind in get_args(CollectiveKind):
            times = network.times_ns(kind, offered, size)
            best = min(times, key=times.__getitem__)
            row[kind] = {"ns": times[best], "algorithm": best}
            if bounds:
                least_ns = network.launch_ns + size * bounds[kind]
                row[kind]["bound_ns"] = least_ns
        rows.append(row)
    return rows
