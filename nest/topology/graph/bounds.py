"""Times that no algorithm on a graph beats: ports and cuts.

Switches add nothing up, so that what has to leave some ranks is as in
Patarasuk and Yuan, JPDC 69(2), 2009, for ports, and all that enters or leaves
crosses every cut between these ranks and the others.

``out(U)`` and ``in(U)`` are the maximum flows out of the ranks ``U`` (a rank or a unit)
to all other ranks of the groups, and into them; for a single rank its arcs. The sums of
:data:`CROSSING` over the groups, over ``out(U)`` and over ``in(U)``, are bounds. For an
all-reduce so is ``Σ 2(m-1)·X`` over the sum of ``out``, or of ``in``, of all ranks or
of the units of a partition, ``m`` of which a group has ranks in. Each group alone and
all together count. The largest slope is rounded to 12 significant decimal digits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from nest.ir.graph import CollectiveKind, check_collective
from nest.topology.alphabeta import NS_PER_S, rounded
from nest.topology.graph.algorithms import Places
from nest.topology.graph.routes import Routes, network_flow

#: Cuts around units times arcs of the network: with more, only ports count.
MAX_CUTS = 2_000_000

Ranks = Sequence[int]
Side = frozenset[int]

#: Parts of the buffer of ``n`` ranks that leave ``k`` of them, and enter.
CROSSING: Mapping[CollectiveKind, Callable[[int, int], tuple[float, float]]] = {
    "all-reduce": lambda k, n: (1, 1),
    "all-gather": lambda k, n: (k / n, (n - k) / n),
    "reduce-scatter": lambda k, n: ((n - k) / n, k / n),
    "all-to-all": lambda k, n: (k * (n - k) / n, k * (n - k) / n),
}


def bound_ns(
    routes: Routes,
    kind: CollectiveKind,
    groups: Sequence[Ranks],
    size_bytes: float,
    positions: Places,
) -> float:
    """Return a time that groups take at least that run at the same time.

    Every group has more than one rank, and every rank a buffer of ``size_bytes``. Cuts
    around units count, unless there are too many on a large network.
    """
    check_collective(kind)
    together = [groups, *([group] for group in groups)]
    cuts = len(together) * sum(len({*map(int, x)}) for x in positions.units)
    if cuts * len(routes.arcs) > MAX_CUTS:
        positions = Places()
    s_per_byte = max(
        (
            need / speed
            for chosen in together[len(groups) == 1 :]
            for need, speed in _ratios(routes, kind, chosen, positions)
        ),
        default=0.0,
    )
    # As slopes are, so that it stays below what it bounds.
    return size_bytes * rounded(s_per_byte * NS_PER_S)


def _ratios(
    routes: Routes, kind: CollectiveKind, groups: Sequence[Ranks], positions: Places
) -> Iterator[tuple[float, float]]:
    """Yield what has to cross, in buffers, and at which speed it can."""
    everyone = frozenset(rank for group in groups for rank in group)
    partitions = [{frozenset({rank}) for rank in everyone}]
    for unit_of in positions.units:
        units: dict[int, set[int]] = {}
        for rank in everyone:
            units.setdefault(int(unit_of[rank]), set()).add(rank)
        partitions.append({frozenset(unit) for unit in units.values()})
    speeds = _speeds(routes, everyone, set().union(*partitions))
    for sides in partitions:
        for side in sides:
            for i, speed in enumerate(speeds[side]):
                need = sum(_need(kind, group, side)[i] for group in groups)
                if need:
                    yield need, speed
        if kind == "all-reduce":
            counts = [
                sum(not side.isdisjoint(group) for side in sides) for group in groups
            ]
            need = sum(2 * (count - 1) for count in counts)
            for i in range(2) if need else ():
                yield need, sum(speeds[side][i] for side in sides)


def _need(kind: CollectiveKind, group: Ranks, side: Side) -> tuple[float, float]:
    k, n = len(side.intersection(group)), len(group)
    return CROSSING[kind](k, n) if 0 < k < n else (0, 0)


def _speeds(
    routes: Routes, everyone: Side, sides: set[Side]
) -> dict[Side, tuple[float, float]]:
    """Return bytes/s out of some ranks to all others, and back."""
    import networkx

    speeds = {}
    graph = None
    for side in sides:
        if len(side) == 1:
            (rank,) = side
            speeds[side] = routes.leaving(rank), routes.entering(rank)
        elif side == everyone:
            speeds[side] = 0.0, 0.0
        else:
            graph = graph or network_flow(routes, everyone)
            ends = [
                [routes.ranks[rank] for rank in ranks]
                for ranks in (side, everyone - side)
            ]
            for end, nodes in zip(("side", "rest"), ends, strict=True):
                # Without a capacity, an arc has no limit.
                graph.add_edges_from((end, node) for node in nodes)
                graph.add_edges_from((node, f"from {end}") for node in nodes)
            speeds[side] = (
                float(networkx.maximum_flow_value(graph, "side", "from rest")),
                float(networkx.maximum_flow_value(graph, "rest", "from side")),
            )
            graph.remove_nodes_from(["side", "rest", "from side", "from rest"])
    return speeds
