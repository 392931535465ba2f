"""Routes on switches side by side: every message goes through one of them.

So are nodes of several types of devices that hang on one more switch: two devices of a
node meet in its own switch, all others in the outer one.
"""

from __future__ import annotations

import itertools

import numpy as np

from nest.topology.graph.wires import Floats, Ints, Wires

#: Sums of latencies stay below this, so that floats hold them exactly.
_EXACT = 1 << 53


class SwitchWays:
    """Routes through the innermost switch that two devices are on.

    Every row of ``switches`` is a level, from within: it has the switch of every rank,
    or a number of its own for a rank that is on none. Devices on one switch are on one
    switch of every outer level, and the last level has a single switch. The latencies
    to the switches and from them have the same shape, and so have the bandwidths.
    ``bandwidths`` are those of the arcs to switches, and then of those from them.
    """

    def __init__(self, switches: Ints, latencies: Ints, bandwidths: Floats) -> None:
        self._switches = switches
        self._up, self._down = latencies
        self.bandwidths = bandwidths.ravel()

    def _level(self, sources: Ints, targets: Ints) -> Ints:
        """Return the level at which two ranks meet."""
        level = np.full(sources.shape, len(self._switches) - 1)
        for inner in range(len(self._switches) - 2, -1, -1):
            switch = self._switches[inner]
            level[switch[sources] == switch[targets]] = inner
        return level

    def latencies_fs(self, sources: Ints, targets: Ints) -> Ints:
        """Return the latencies of the routes between ranks."""
        sources, targets = np.broadcast_arrays(sources, targets)
        level = self._level(sources, targets)
        latencies: Ints = self._up[level, sources] + self._down[level, targets]
        latencies[sources == targets] = 0
        return latencies

    def loads(self, sources: Ints, targets: Ints, amounts: Floats) -> Floats:
        """Return what flows put on every arc, to switches and from them."""
        apart = sources != targets
        if not apart.all():
            sources, targets, amounts = (x[apart] for x in (sources, targets, amounts))
        begin = self._level(sources, targets) * self._switches.shape[1]
        size = self._switches.size
        return np.concatenate(
            [np.bincount(begin + ends, amounts, size) for ends in (sources, targets)]
        )

    def farthest_fs(self, ranks: Ints) -> int:
        """Return the longest that a rank takes to all others of its row."""
        total = np.zeros(ranks.size)
        inner = np.arange(ranks.size)
        for up, down, outer in zip(
            self._up, self._down, self._meeting(ranks), strict=True
        ):
            for group, sign in ((outer, 1), (inner, -1)):
                sent = up[ranks.ravel()] * np.bincount(group)[group]
                received = np.bincount(group, down[ranks.ravel()])[group]
                total += sign * (sent + received)
            inner = outer
        return int(total.max())

    def loads_of_all(self, ranks: Ints, amounts: Floats) -> Floats:
        """Return what arcs carry if all ranks of a row send to all others."""
        num_ranks = self._switches.shape[1]
        sent = np.repeat(amounts, ranks.shape[1])
        loads = []
        fewer = np.ones(ranks.size, np.int64)
        for outer in self._meeting(ranks):
            count = np.bincount(outer)[outer]
            loads.append(np.bincount(ranks.ravel(), sent * (count - fewer), num_ranks))
            fewer = count
        return np.tile(np.concatenate(loads), 2)

    def _meeting(self, ranks: Ints) -> list[Ints]:
        """Return numbers by level, flat: equal for ranks of a row on one switch."""
        rows = np.arange(len(ranks))[:, None] * (int(self._switches.max()) + 1)
        return [
            np.unique((rows + switch[ranks]).ravel(), return_inverse=True)[1]
            for switch in self._switches
        ]


def switch_ways(wires: Wires) -> SwitchWays | None:
    """Return the routes of a graph in which every message goes through one switch.

    Switches lead to devices only, and devices pass nothing on, so every route between
    two devices is one switch. Two devices meet in at most one switch of a level, and
    every switch of an outer level takes longer. So the innermost switch is the only
    route of the least latency.
    """
    num_ranks = len(wires.nodes)
    rank_of = np.full(len(wires.relays), -1)
    rank_of[wires.nodes] = np.arange(num_ranks)
    is_device = rank_of >= 0
    if (wires.relays == is_device).any():
        return None
    longest = 2 * int(wires.latencies.max(initial=0))
    if longest * num_ranks >= _EXACT:
        return None
    rises = is_device[wires.tails]
    ends = np.where(rises, [wires.heads, wires.tails], [wires.tails, wires.heads])
    order = np.lexsort((rank_of[ends[1]], ends[0]))
    (up, down) = (order[rises[order] == way] for way in (True, False))
    # Links between devices, or between switches, have no arc that leads back so.
    if len(up) != len(down) or (ends[:, up] != ends[:, down]).any():
        return None
    switches, ranks = ends[0, up], rank_of[ends[1, up]]
    levels = _levels(switches, ranks, wires.latencies[[up, down]], num_ranks)
    if levels is None:
        return None
    # A rank that is on no switch of a level has a number of its own there.
    shape = len(levels), num_ranks
    table = np.tile(len(wires.relays) + np.arange(num_ranks), (len(levels), 1))
    latencies = np.zeros((2, *shape), np.int64)
    bandwidths = np.full((2, *shape), np.inf)
    for level, arcs in enumerate(levels):
        table[level, ranks[arcs]] = switches[arcs]
        for side, way in enumerate((up, down)):
            latencies[side, level, ranks[arcs]] = wires.latencies[way[arcs]]
            bandwidths[side, level, ranks[arcs]] = wires.bandwidths[way[arcs]]
    return SwitchWays(table, latencies, bandwidths)


def _levels(
    switches: Ints, ranks: Ints, latencies: Ints, num_ranks: int
) -> list[Ints] | None:
    """Return the arcs of every level, from within; ``None`` if there are none such.

    Ranks of a switch are on one switch of the next level, whose switches all take
    longer; the last level is a switch with all ranks.
    """
    of_switch = np.split(
        np.arange(len(switches)), np.flatnonzero(np.diff(switches)) + 1
    )
    of_switch.sort(key=lambda arcs: int(latencies[:, arcs].min(axis=1).sum()))
    levels: list[list[Ints]] = []
    seen = np.ones(num_ranks, np.bool_)
    for arcs in of_switch:
        if seen[ranks[arcs]].any():
            levels.append([])
            seen[:] = False
        seen[ranks[arcs]] = True
        levels[-1].append(arcs)
    if len(levels[-1][0]) < num_ranks:
        return None
    for inner, outer in itertools.pairwise(levels):
        slowest = max(int(latencies[:, arcs].max(axis=1).sum()) for arcs in inner)
        fastest = min(int(latencies[:, arcs].min(axis=1).sum()) for arcs in outer)
        outside = np.full(num_ranks, -1)
        for arcs in outer:
            outside[ranks[arcs]] = switches[arcs]
        nested = all(len({*outside[ranks[arcs]].tolist()}) == 1 for arcs in inner)
        if slowest >= fastest or not nested:
            return None
    return [np.concatenate(level) for level in levels]
