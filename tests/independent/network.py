"""Messages and collectives on a tree network, by docs/cost-model.md.

Written from the section *Network* of that page alone. Everything works on explicit
lists of devices, hop by hop and flow by flow, in exact fractions; algorithms are those
of :mod:`tests.independent.graph`, whose wires are here what a group has of the tree.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction

from nest.ir import Hierarchy
from tests.independent.graph import (
    Line,
    Wires,
    flat,
    half,
    levels_of,
    rotated_rings,
    twelve_digits,
    twice,
)


def capacity(network: Hierarchy, level: int) -> int:
    """Return ``C_L``, the devices of a unit of a level."""
    return math.prod(x.fan_out for x in network.levels[: level + 1])


def lowest_level(network: Hierarchy, devices: Sequence[int]) -> int:
    """Return the lowest level at which all devices are in one unit."""
    for level in range(len(network.levels)):
        size = capacity(network, level)
        if len({device // size for device in devices}) == 1:
            return level
    raise ValueError(f"devices: expected some of the cluster, got {devices}")


def through(network: Hierarchy, level: int, members: int) -> float:
    """Return the bandwidth of one of ``members`` that meet at a level."""
    found = min(x.bandwidth_bytes_per_s for x in network.levels[: level + 1])
    peer = network.levels[level].peer_bandwidth_bytes_per_s
    if peer is None or members < 2:
        return found
    return min(found, (members - 1) * peer)


class Share(Wires):
    """What a group has of a tree; device numbers are those of the tree."""

    def __init__(self, network: Hierarchy, ranks: Sequence[int]) -> None:
        self.ranks = list(ranks)
        self.top = lowest_level(network, ranks)
        self.levels = network.levels[: self.top + 1]
        self.below = [capacity(network, x - 1) for x in range(self.top + 1)]
        self.above = [capacity(network, x) for x in range(self.top + 1)]
        devices = range(self.ranks[-1] + 1)
        self.units = [[str(d // c) for d in devices] for c in self.above[:-1]]
        self.fs = [math.floor(x.latency_ns * 1e6 + 0.5) for x in self.levels]
        # Ranks by member of each level, and how many members meet.
        self.held: list[dict[int, int]] = []
        self.meeting: list[int] = []
        for below, above in zip(self.below, self.above, strict=True):
            held: dict[int, int] = {}
            for rank in self.ranks:
                held[rank // below] = held.get(rank // below, 0) + 1
            self.held.append(held)
            units: dict[int, int] = {}
            for member in held:
                unit = member * below // above
                units[unit] = units.get(unit, 0) + 1
            self.meeting.append(min((x for x in units.values() if x > 1), default=1))
        self.port = []
        self.pair: list[Fraction | None] = []
        for level, meet in zip(self.levels, self.meeting, strict=True):
            listed = {
                x.members: x.fraction
                for x in level.group_fractions
                if x.members <= meet
            }
            port = level.bandwidth_bytes_per_s
            if listed:
                port = port * listed[max(listed)]
            self.port.append(Fraction(port))
            peer = level.peer_bandwidth_bytes_per_s
            self.pair.append(None if peer is None or meet == 1 else Fraction(peer))

    @property
    def even(self) -> bool:
        return all(len(set(held.values())) == 1 for held in self.held)

    def meet(self, source: int, target: int) -> int:
        """Return the level at which two devices meet."""
        level = 0
        while source // self.above[level] != target // self.above[level]:
            level += 1
        return level

    def h(self, source: int, target: int) -> int:
        return 0 if source == target else self.fs[self.meet(source, target)]

    def busiest(self, flows: Iterable[tuple[int, int, Fraction]]) -> Fraction:
        """Return the longest that a member or a pair needs for its share."""
        load: dict[tuple[object, ...], Fraction] = {}
        for source, target, amount in flows:
            if source == target:
                continue
            top = self.meet(source, target)
            for level in range(top + 1):
                one, other = (
                    device // self.below[level] for device in (source, target)
                )
                port = self.port[level]
                leave = Fraction(amount) / (self.held[level][one] * port)
                enter = Fraction(amount) / (self.held[level][other] * port)
                at = [((level, "out", one), leave)]
                at.append(((level, "in", other), enter))
                pair = self.pair[level]
                if level == top and pair is not None:
                    ranks = min(self.held[level][x] for x in (one, other))
                    at.append(((level, one, other), amount / (ranks * pair)))
                for key, part in at:
                    load[key] = load.get(key, Fraction(0)) + part
        return max(load.values(), default=Fraction(0))


def priced(launch_ns: float, line: Line, size: float) -> float:
    return launch_ns + (line[0] / 1e6 + size * twelve_digits(line[1]))


def collective(
    network: Hierarchy, kind: str, ranks: Sequence[int], size_bytes: int
) -> float:
    """Return the time of a collective of one group, in ns."""
    if len(ranks) == 1 or size_bytes == 0:
        return 0.0
    share = Share(network, sorted(ranks))
    launch_ns = share.levels[share.top].launch_ns
    offers = nccl if network.algorithms == "nccl" else on_all_ranks
    times = [
        priced(launch_ns, line, size_bytes) for line in offers(share, kind).values()
    ]
    used = sum(m > 1 for m in share.meeting)
    if network.algorithms == "best" and share.even and used > 1:
        times.append(hierarchical(share, kind, size_bytes))
    return min(times)


def floor_log2(number: int) -> int:
    exponent = 0
    while 2 ** (exponent + 1) <= number:
        exponent += 1
    return exponent


def ceil_log2(number: int) -> int:
    exponent = 0
    while 2**exponent < number:
        exponent += 1
    return exponent


def far_off(share: Share, messages: int, volume: Fraction) -> Line:
    """Return messages at the top level, at the least bandwidth of any."""
    lanes = [*share.port, *(x for x in share.pair if x is not None)]
    return messages * share.fs[-1], volume * 10**9 / min(lanes)


def all_pairs(share: Share) -> Line:
    """Return ``direct`` by the sums for the members with fewest ranks."""
    n = len(share.ranks)
    fewest = [min(held.values()) for held in share.held]
    a, c = 0, Fraction(0)
    for level, r in enumerate(fewest):
        inside = fewest[level + 1] if level < share.top else n
        a += (inside - r) * share.fs[level]
        c = max(c, Fraction(n - r, n) / share.port[level])
        pair = share.pair[level]
        if pair is not None:
            c = max(c, Fraction(max(share.held[level].values()), n) / pair)
    return a, c * 10**9


def half_rings(share: Share) -> dict[str, Line]:
    """Return a half on one ring and on two, counting hops."""
    ranks, n = share.ranks, len(share.ranks)
    hops = [share.h(ranks[i], ranks[(i + 1) % n]) for i in range(n)]
    found = {}
    for name in ("ring", "two-way-ring"):
        slowest = []
        for level, held in enumerate(share.held):
            ways = 1 if name == "ring" else 2
            if level == share.top and len(held) == 2:
                ways = 1
            lane, pair = share.port[level], share.pair[level]
            if pair is not None:
                lane = min(lane, ways * pair)
            slowest.append(min(held.values()) * lane)
        c = Fraction(n - 1, n) * 10**9 / min(slowest)
        found[name] = (sum(hops) - min(hops), c)
    return found


def on_all_ranks(share: Share, kind: str) -> dict[str, Line]:
    """Return what runs on all ranks at once."""
    n = len(share.ranks)
    lg, q = floor_log2(n), Fraction(n - 1, n)
    power_of_two = 2**lg == n
    if kind == "all-to-all":
        found = {"direct": all_pairs(share)}
        if power_of_two:
            found["bruck"] = far_off(share, lg, Fraction(lg, 2))
        return found
    if share.even:
        group = [(share.ranks, Fraction(1))]
        found = flat(share, kind, group)
        if share.top > 0:
            line = half(share, rotated_rings, group)
            assert line is not None
            found["rotated"] = twice(line) if kind == "all-reduce" else line
    else:
        found = half_rings(share) | {"direct": all_pairs(share)}
        if power_of_two:
            found["halving"] = far_off(share, lg, q)
        if kind == "all-reduce":
            found = {name: twice(line) for name, line in found.items()}
            if not power_of_two:
                w = 2**lg
                found["folded"] = far_off(
                    share, 2 * lg + 2, Fraction(2 * (w - 1), w) + 2
                )
    if kind == "all-gather" and not power_of_two:
        found["bruck"] = far_off(share, ceil_log2(n), q)
    return found


def hierarchical(share: Share, kind: str, size: float) -> float:
    """Return the time of a collective that goes level by level, in ns."""
    groups_of = levels_of(share, share.ranks)
    assert groups_of is not None
    launch_ns, a, c = 0.0, 0, Fraction(0)
    used = [level for level, m in enumerate(share.meeting) if m > 1]
    for level, groups in zip(used, groups_of, strict=True):
        kinds = [kind]
        if kind == "all-reduce" and level < share.top:
            kinds = ["reduce-scatter", "all-gather"]
        if kind == "all-to-all":
            groups = [(ranks, Fraction(1)) for ranks, _ in groups]
        for part in kinds:
            lines = list(flat(share, part, groups).values())
            g, X = share.meeting[level], groups[0][1]
            lg = floor_log2(g)
            lanes = share.port[: level + 1]
            pair = share.pair[level]
            beta = min(lanes if pair is None else [*lanes, pair])
            if part == "all-gather" and 2**lg != g:
                volume = Fraction(g - 1, g) * X
                lines.append((ceil_log2(g) * share.fs[level], volume * 10**9 / beta))
            if part == "all-to-all" and 2**lg == g:
                volume = Fraction(lg, 2)
                lines.append((lg * share.fs[level], volume * 10**9 / beta))
            least = min(lines, key=lambda x: x[0] / Fraction(10**6) + size * x[1])
            launch_ns += share.levels[level].launch_ns
            a, c = a + least[0], c + least[1]
    return priced(launch_ns, (a, c), size)


def nccl(share: Share, kind: str) -> dict[str, Line]:
    """Return what NCCL offers."""
    n = len(share.ranks)
    if kind == "all-to-all":
        return {"direct": all_pairs(share)}
    slowest = []
    for held, port, pair, m in zip(
        share.held, share.port, share.pair, share.meeting, strict=True
    ):
        reach = port if pair is None else min(port, (m - 1) * pair)
        slowest.append(min(held.values()) * reach)
    U = Fraction(10**9) / min(slowest)
    A = half_rings(share)["ring"][0]
    line = (A, Fraction(n - 1, n) * U)
    if kind != "all-reduce":
        return {"rings": line}
    found = {"rings": twice(line)}
    if share.even and share.top > 0:
        D = (share.meeting[0] - 1) * share.fs[0] + sum(
            ceil_log2(m) * fs
            for m, fs in zip(share.meeting[1:], share.fs[1:], strict=True)
        )
        found["trees"] = (2 * D, 2 * U)
    return found
