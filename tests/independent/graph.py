"""Graphs as networks, written from docs/cost-model.md alone.

Naive on purpose: exact fractions, every route found anew, every algorithm
followed rank by rank. Names are those of the section "Graphs".
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction

from nest.ir import GraphTopology

#: Bytes by (source, target), as fractions of X.
Flows = dict[tuple[int, int], Fraction]
#: Latency in fs, and flows.
Phase = tuple[int, Flows]
#: Seconds per byte by arc.
Loads = dict[tuple[str, str], Fraction]
#: ``a`` in fs and ``c`` in ns per byte.
Line = tuple[int, Fraction]

HALVES = ("all-gather", "reduce-scatter")


def twelve_digits(value: Fraction) -> float:
    return float(f"{float(value):.12g}")


class Wires:
    """A graph with numbered nodes; devices by place in the order."""

    def __init__(self, topology: GraphTopology) -> None:
        devices = [x.id for x in topology.nodes if x.kind == "device"]
        self.order = list(topology.order) or devices
        self.launch_ns = topology.launch_ns
        self.passes_on = {}
        for node in topology.nodes:
            on = node.forward
            self.passes_on[node.id] = node.kind == "switch" if on is None else on
        self.arcs: dict[tuple[str, str], tuple[Fraction, int]] = {}
        for link in topology.links:
            femto = math.floor(link.latency_ns * 1e6 + 0.5)
            arc = (Fraction(link.bandwidth_bytes_per_s), femto)
            self.arcs[link.source, link.target] = arc
            if not topology.directed:
                self.arcs[link.target, link.source] = arc
        self.units = [
            [partition[name] for name in self.order] for partition in topology.units
        ]
        self.coordinates = [
            topology.coordinates[name] for name in self.order if topology.coordinates
        ]
        self.lengths: dict[str, dict[str, tuple[int, int]]] = {}

    def to(self, target: str) -> dict[str, tuple[int, int]]:
        """Return (latency, arcs) of the shortest way from every node."""
        if target not in self.lengths:
            best = {target: (0, 0)}
            for _ in self.passes_on:
                for (u, v), (_, femto) in self.arcs.items():
                    if v in best and (v == target or self.passes_on[v]):
                        way = (best[v][0] + femto, best[v][1] + 1)
                        if u not in best or way < best[u]:
                            best[u] = way
            self.lengths[target] = best
        return self.lengths[target]

    def h(self, source: int, target: int) -> int:
        return self.to(self.order[target])[self.order[source]][0]

    def spread(
        self, node: str, target: str, amount: Fraction
    ) -> list[tuple[tuple[str, str], Fraction]]:
        """Return what a flow puts on arcs, path by path."""
        if node == target:
            return []
        best = self.to(target)
        tied = {
            (u, v): speed
            for (u, v), (speed, femto) in self.arcs.items()
            if u == node
            and (v == target or self.passes_on[v])
            and v in best
            and best[u] == (best[v][0] + femto, best[v][1] + 1)
        }
        found = []
        for arc, speed in tied.items():
            part = amount * speed / sum(tied.values())
            found += [(arc, part), *self.spread(arc[1], target, part)]
        return found

    def busiest(self, flows: Iterable[tuple[int, int, Fraction]]) -> Fraction:
        """Return the largest load over bandwidth, in seconds."""
        return max(self.loads(flows).values(), default=Fraction(0))

    def loads(self, flows: Iterable[tuple[int, int, Fraction]]) -> Loads:
        """Return the load over bandwidth of every arc, in seconds."""
        load: dict[tuple[str, str], Fraction] = {}
        for source, target, amount in flows:
            for arc, part in self.spread(
                self.order[source], self.order[target], amount
            ):
                load[arc] = load.get(arc, Fraction(0)) + part
        return {arc: size / self.arcs[arc][0] for arc, size in load.items()}

    def line(self, phases: Iterable[list[Phase]]) -> Line:
        """Return what phases take; of each, those of all groups."""
        latency, slope = 0, Fraction(0)
        for of_groups in phases:
            latency += max((x[0] for x in of_groups), default=0)
            slope += 10**9 * self.busiest(
                (s, t, amount)
                for _, flows in of_groups
                for (s, t), amount in flows.items()
            )
        return latency, slope


def side_by_side(groups: list[list[Phase]]) -> list[list[Phase]]:
    longest = max((len(x) for x in groups), default=0)
    return [[x[k] for x in groups if k < len(x)] for k in range(longest)]


def add(flows: Flows, source: int, target: int, amount: Fraction) -> None:
    flows[source, target] = flows.get((source, target), Fraction(0)) + amount


# Halves of one group; X is the part of the buffer


def rings(wires: Wires, lists: list[list[int]], X: Fraction) -> Phase:
    """Return rings of ``X`` each."""
    flows: Flows = {}
    latency = 0
    for ranks in lists:
        n = len(ranks)
        hops = []
        for i in range(n):
            here, after = ranks[i], ranks[(i + 1) % n]
            add(flows, here, after, Fraction(n - 1, n) * X)
            hops.append(wires.h(here, after))
        latency = max(latency, sum(hops) - min(hops))
    return latency, flows


def ring(wires: Wires, ranks: list[int], X: Fraction) -> list[Phase] | None:
    return [rings(wires, [ranks], X)]


def two_way_ring(wires: Wires, ranks: list[int], X: Fraction) -> list[Phase] | None:
    return [rings(wires, [ranks, ranks[::-1]], X / 2)]


def rotated_rings(wires: Wires, ranks: list[int], X: Fraction) -> list[Phase] | None:
    names = list(dict.fromkeys(wires.units[0][rank] for rank in ranks))
    units = [[x for x in ranks if wires.units[0][x] == u] for u in names]
    k = min(len(unit) for unit in units)
    lists = []
    for j in range(k):
        lists.append([u[(j + i) % len(u)] for u in units for i in range(len(u))])
    return [rings(wires, lists, X / k)]


def exchange(wires: Wires, ranks: list[int], X: Fraction, far: bool) -> list[Phase]:
    phases = []
    q = len(ranks).bit_length() - 1
    for j in range(q):
        bit = 2 ** (q - 1 - j) if far else 2**j
        flows = {}
        for i, rank in enumerate(ranks):
            flows[rank, ranks[i ^ bit]] = X / 2 ** (j + 1)
        phases.append((max(wires.h(*pair) for pair in flows), flows))
    return phases


def near(wires: Wires, ranks: list[int], X: Fraction) -> list[Phase] | None:
    if 2 ** (len(ranks).bit_length() - 1) != len(ranks):
        return None
    return exchange(wires, ranks, X, far=False)


def far(wires: Wires, ranks: list[int], X: Fraction) -> list[Phase] | None:
    if 2 ** (len(ranks).bit_length() - 1) != len(ranks):
        return None
    return exchange(wires, ranks, X, far=True)


def direct(wires: Wires, ranks: list[int], X: Fraction) -> list[Phase] | None:
    flows = {(s, t): X / len(ranks) for s in ranks for t in ranks if s != t}
    latency = max(sum(wires.h(s, t) for t in ranks if t != s) for s in ranks)
    return [(latency, flows)]


def one_step(wires: Wires, flows: Flows) -> int:
    """Return the largest sum of ``h`` over what a rank sends in a step."""
    sums: dict[int, int] = {}
    for s, t in flows:
        sums[s] = sums.get(s, 0) + wires.h(s, t)
    return max(sums.values(), default=0)


def at_once(wires: Wires, steps: list[Flows]) -> list[Phase]:
    """Return steps that are pipelined."""
    joined: Flows = {}
    for flows in steps:
        for (s, t), amount in flows.items():
            add(joined, s, t, amount)
    return [(sum(one_step(wires, flows) for flows in steps), joined)]


def units_of(wires: Wires, ranks: list[int]) -> list[list[int]]:
    names = list(dict.fromkeys(wires.units[0][rank] for rank in ranks))
    return [[x for x in ranks if wires.units[0][x] == u] for u in names]


def mates(wires: Wires, small: list[int], large: list[int]) -> dict[int, int]:
    """Return the mate in the larger unit of every rank of the smaller."""

    def slot(rank: int) -> int:
        unit = wires.units[0][rank]
        return sum(wires.units[0][x] == unit for x in range(rank))

    slots = {slot(x): x for x in large}
    left = [x for x in large if slot(x) not in {slot(y) for y in small}]
    found = {}
    for x in small:
        found[x] = slots[slot(x)] if slot(x) in slots else left.pop(0)
    return found


def pxn(wires: Wires, ranks: list[int], X: Fraction) -> list[Phase] | None:
    units = units_of(wires, ranks)
    inside: Flows = {}
    across: Flows = {}
    for own in units:
        for there in units:
            if len(own) >= len(there):
                pairs = mates(wires, there, own)
            else:
                pairs = mates(wires, own, there)
            for i in own:
                for j in there:
                    relay = pairs[j if len(own) >= len(there) else i]
                    for s, t in ((i, j),) if own is there else ((i, relay), (relay, j)):
                        step = across if (s in own) != (t in own) else inside
                        if s != t:
                            add(step, s, t, X / len(ranks))
    return at_once(wires, [inside, across])


def gather_steps(wires: Wires, ranks: list[int], X: Fraction) -> list[Flows]:
    """Return the steps of an all-gather through mates."""
    units = units_of(wires, ranks)
    shard = X / len(ranks)
    first: Flows = {}
    across: Flows = {}
    held = dict.fromkeys(ranks, shard)
    for own in units:
        for there in units:
            if own is there:
                continue
            k, m = len(own), len(there)
            if k <= m:
                pairs = mates(wires, own, there)
            else:
                pairs = {mine: x for x, mine in mates(wires, there, own).items()}
            for i in own:
                if i in pairs:
                    amount = shard * max(Fraction(1), Fraction(k, m))
                    add(across, i, pairs[i], amount)
                    held[pairs[i]] += amount
                    continue
                for relay in pairs:
                    add(first, i, relay, shard / m)
    last = {(s, t): held[s] for u in units for s in u for t in u if s != t}
    return [first, across, last]


def backwards(steps: list[Flows]) -> list[Flows]:
    return [{(t, s): x for (s, t), x in flows.items()} for flows in steps[::-1]]


def partitions(wires: Wires) -> list[Wires]:
    """Return the wires with one partition each."""
    found = []
    for units in wires.units:
        alone = copy.copy(wires)
        alone.units = [units]
        found.append(alone)
    return found


def best(size: float, lines: list[Line | None]) -> Line | None:
    able = [line for line in lines if line is not None]
    return (
        min(able, key=lambda x: x[0] / Fraction(10**6) + Fraction(size) * x[1])
        if able
        else None
    )


def through_mates(wires: Wires, kind: str, groups: Groups) -> Line | None:
    """Return a half or an all-reduce of groups none of which is even."""
    sizes = []
    for ranks, _ in groups:
        counts = [len(unit) for unit in units_of(wires, ranks)]
        if len(counts) > 1:
            sizes.append(len(set(counts)))
    if not sizes or min(sizes) == 1:
        return None
    ways = []
    for turn in (list, backwards):
        running = []
        for ranks, X in groups:
            running += at_once(wires, turn(gather_steps(wires, ranks, X)))
        ways.append(running)
    if kind == "all-reduce":
        latency = sum(max(x[0] for x in running) for running in ways)
        flows = [(0, flows) for running in ways for _, flows in running]
        return latency, wires.line([flows])[1]
    there, back = (wires.line([running]) for running in ways)
    return max(there[0], back[0]), max(there[1], back[1])


def bruck(
    wires: Wires, ranks: list[int], X: Fraction, everyone: bool = False
) -> list[Phase] | None:
    n = len(ranks)
    if n == 2 ** (n.bit_length() - 1) and not everyone:
        return None
    phases = []
    d = 1
    while d < n:
        parts = min(d, n - d)
        if everyone:
            parts = sum(x // d % 2 for x in range(n))
        flows: Flows = {}
        for i in range(n):
            flows[ranks[i], ranks[(i + d) % n]] = Fraction(parts, n) * X
        phases.append((max(wires.h(*pair) for pair in flows), flows))
        d *= 2
    return phases


def to_everyone(wires: Wires, ranks: list[int], X: Fraction) -> list[Phase] | None:
    return bruck(wires, ranks, X, everyone=True)


Half = Callable[[Wires, list[int], Fraction], list[Phase] | None]

FLAT: dict[str, Half] = {
    "ring": ring,
    "two-way-ring": two_way_ring,
    "halving-doubling": near,
    "halving-doubling-far": far,
    "direct": direct,
}

Groups = list[tuple[list[int], Fraction]]


def half(wires: Wires, algorithm: Half, groups: Groups) -> Line | None:
    phases = [algorithm(wires, ranks, X) for ranks, X in groups]
    able = [found for found in phases if found is not None]
    if len(able) < len(phases):
        return None
    return wires.line(side_by_side(able))


def twice(line: Line) -> Line:
    return 2 * line[0], 2 * line[1]


def fold(wires: Wires, groups: Groups, is_far: bool) -> Line:
    there: list[Phase] = []
    back: list[Phase] = []
    inner = []
    for ranks, X in groups:
        w = 2 ** (len(ranks).bit_length() - 1)
        inner.append(exchange(wires, ranks[:w], X, is_far))
        for i in range(len(ranks) - w):
            extra, other = ranks[w + i], ranks[i]
            there.append((wires.h(extra, other), {(extra, other): X}))
            back.append((wires.h(other, extra), {(other, extra): X}))
    main = twice(wires.line(side_by_side(inner)))
    ends = wires.line([there, back])
    return main[0] + ends[0], main[1] + ends[1]


def parent(i: int, n: int) -> int:
    b = 1
    while i % (2 * b) == 0:
        b *= 2
    up = (i - b) | (2 * b)
    return up if up < n else i - b


def two_trees(wires: Wires, groups: Groups) -> Line:
    phases = []
    for ranks, X in groups:
        n = len(ranks)
        flows: Flows = {}
        latencies = []
        if n % 2 == 0:
            other = [ranks[n - 1 - i] for i in range(n)]
        else:
            other = [ranks[(i + 1) % n] for i in range(n)]
        for tree in (ranks, other):
            to_root, from_root = [0], [0]
            for i in range(1, n):
                add(flows, tree[i], tree[parent(i, n)], X / 2)
                add(flows, tree[parent(i, n)], tree[i], X / 2)
                to = back = 0
                j = i
                while j > 0:
                    to += wires.h(tree[j], tree[parent(j, n)])
                    back += wires.h(tree[parent(j, n)], tree[j])
                    j = parent(j, n)
                to_root.append(to)
                from_root.append(back)
            latencies.append(max(to_root) + max(from_root))
        phases.append([(max(latencies), flows)])
    return wires.line(side_by_side(phases))


def flat(wires: Wires, kind: str, groups: Groups) -> dict[str, Line]:
    """Return all that need no units and no coordinates."""
    if kind == "all-to-all":
        line = half(wires, direct, groups)
        assert line is not None
        return {"direct": line}
    found = {}
    for name, algorithm in FLAT.items():
        line = half(wires, algorithm, groups)
        if line is not None:
            found[name] = twice(line) if kind == "all-reduce" else line
        elif kind == "all-reduce":
            found[name] = fold(wires, groups, name.endswith("far"))
    if kind == "all-reduce":
        found["two-trees"] = two_trees(wires, groups)
    return found


# Where more is known


def levels_of(wires: Wires, ranks: list[int]) -> list[Groups] | None:
    """Return the groups of every level with ``g_l > 1``, with ``X_l``."""
    partitions = [{x: units[x] for x in ranks} for units in wires.units]
    partitions.append(dict.fromkeys(ranks, "all"))
    below = [[rank] for rank in ranks]
    levels = []
    X = Fraction(1)
    for partition in partitions:
        names = list(dict.fromkeys(partition[x] for x in ranks))
        holds = {u: [b for b in below if partition[b[0]] == u] for u in names}
        counts = {len(blocks) for blocks in holds.values()}
        if len(counts) != 1:
            return None
        g = counts.pop()
        if g > 1:
            groups: Groups = []
            for blocks in holds.values():
                for place in range(len(blocks[0])):
                    groups.append(([block[place] for block in blocks], X))
            levels.append(groups)
        X /= g
        below = [[x for x in ranks if partition[x] == u] for u in names]
    return levels


def doubling(wires: Wires, groups: Groups) -> list[list[Phase]]:
    """Return all-reduces that exchange the whole buffer each time."""
    there: list[Phase] = []
    back: list[Phase] = []
    inner = []
    for ranks, X in groups:
        w = 2 ** (len(ranks).bit_length() - 1)
        phases = []
        for j in range(w.bit_length() - 1):
            flows = {(ranks[i], ranks[i ^ 2**j]): X for i in range(w)}
            phases.append((max(wires.h(*pair) for pair in flows), flows))
        inner.append(phases)
        for extra, other in zip(ranks[w:], ranks, strict=False):
            there.append((wires.h(extra, other), {(extra, other): X}))
            back.append((wires.h(other, extra), {(other, extra): X}))
    return [there, *side_by_side(inner), back]


def folded(wires: Wires, groups: Groups, is_far: bool) -> list[list[Phase]]:
    """Return :func:`fold` phase by phase: both halves."""
    ends = doubling(wires, groups)
    inner = []
    for ranks, X in groups:
        w = 2 ** (len(ranks).bit_length() - 1)
        inner.append(exchange(wires, ranks[:w], X, is_far) * 2)
    return [ends[0], *side_by_side(inner), ends[-1]]


def one_phase(wires: Wires, groups: Groups) -> list[list[Phase]] | None:
    if len({len(ranks) for ranks, _ in groups}) > 1:
        return None
    phases = []
    for ranks, X in groups:
        phases += direct(wires, ranks, X * len(ranks)) or []
    return [phases]


def trees(wires: Wires, groups: Groups) -> list[list[Phase]]:
    """Return :func:`two_trees` as phases."""
    running = []
    for ranks, X in groups:
        alone = Recorder(wires)
        latency, _ = two_trees(alone, [(ranks, X)])
        running.append((latency, alone.flows))
    return [running]


class Recorder(Wires):
    """Wires that note what flows they are asked about."""

    def __init__(self, wires: Wires) -> None:
        self.__dict__ |= vars(wires)

    def busiest(self, flows: Iterable[tuple[int, int, Fraction]]) -> Fraction:
        self.flows = {(s, t): amount for s, t, amount in flows}
        return Fraction(0)


def choices(wires: Wires, kind: str, groups: Groups) -> list[list[list[Phase]]]:
    """Return all that groups on one level may do: a list of phases each."""
    found = []
    for name, algorithm in {**FLAT, "bruck": bruck}.items():
        phases = [algorithm(wires, ranks, X) for ranks, X in groups]
        if all(phases):
            half = side_by_side([x for x in phases if x])
            found.append(half * (2 if kind == "all-reduce" else 1))
        elif kind == "all-reduce" and name.startswith("halving"):
            found.append(folded(wires, groups, name.endswith("far")))
    if kind == "all-reduce":
        found += [doubling(wires, groups), trees(wires, groups)]
        alone = one_phase(wires, groups)
        found += [] if alone is None else [alone]
    return found


def pipelined(
    wires: Wires, kind: str, lists: list[list[int]], size: float
) -> Line | None:
    """Return the best choice of all levels, all phases of which run at once."""
    nested = [
        (wires.units and levels_of(wires, ranks)) or [[(ranks, Fraction(1))]]
        for ranks in lists
    ]
    steps = max(len(levels) for levels in nested)
    of_levels = []
    for step in range(steps):
        groups = []
        for levels in nested:
            groups += levels[step] if step < len(levels) else []
        below = kind == "all-reduce" and step < steps - 1
        found = choices(wires, "all-gather" if below else kind, groups)
        if below:
            found = [half * 2 for half in found]
        weighed = []
        for phases in found:
            latency = sum(max((x[0] for x in p), default=0) for p in phases)
            load = wires.loads(
                (s, t, amount)
                for p in phases
                for _, flows in p
                for (s, t), amount in flows.items()
            )
            weighed.append((latency, load))
        of_levels.append(weighed)

    def line(chosen: tuple[tuple[int, Loads], ...]) -> Line:
        total: Loads = {}
        for _, load in chosen:
            for arc, part in load.items():
                total[arc] = total.get(arc, Fraction(0)) + part
        return sum(x[0] for x in chosen), 10**9 * max(total.values())

    def time(of: Line) -> Fraction:
        return of[0] / Fraction(10**6) + Fraction(size) * of[1]

    return min(map(line, itertools.product(*of_levels)), key=time)


def torus(wires: Wires, kind: str, lists: list[list[int]]) -> Line | None:
    if not wires.coordinates:
        return None
    at = wires.coordinates
    for ranks in lists:
        sides = [sorted({at[x][a] for x in ranks}) for a in range(len(at[0]))]
        if sorted(at[x] for x in ranks) != sorted(itertools.product(*sides)):
            return None
    extents = [
        [len({at[x][a] for x in ranks}) for a in range(len(at[0]))] for ranks in lists
    ]
    axes = [a for a in range(len(at[0])) if any(e[a] > 1 for e in extents)]
    d = len(axes)
    phases = []
    for j in range(d):
        running = []
        for x in range(d):
            axis = axes[(x + j) % d]
            for ranks, extent in zip(lists, extents, strict=True):
                part = Fraction(1, d)
                for i in range(j):
                    part /= extent[axes[(x + i) % d]]
                lines: dict[object, list[int]] = {}
                for rank in sorted(ranks, key=lambda r: at[r][axis]):
                    rest = tuple(v for a, v in enumerate(at[rank]) if a != axis)
                    lines.setdefault(rest, []).append(rank)
                for line in lines.values():
                    if len(line) > 1:
                        running.append(rings(wires, [line, line[::-1]], part / 2))
        phases.append(running)
    latency = sum(max(x[0] for x in running) for running in phases)
    _, slope = wires.line([[x for running in phases for x in running]])
    found = latency, slope
    return twice(found) if kind == "all-reduce" else found


# What a collective and a message take


def offered(
    topology: GraphTopology, kind: str, groups: Sequence[Sequence[int]], size: float
) -> dict[str, float]:
    """Return the time of every algorithm, in ns."""
    wires = Wires(topology)
    lists = [list(group) for group in groups if len(group) > 1]
    if not lists or size == 0:
        return {}
    whole = [(ranks, Fraction(1)) for ranks in lists]
    lines: dict[str, Line | None] = dict(flat(wires, kind, whole))
    near = wires.units and max(map(len, lists)) <= 512
    if kind == "all-to-all":
        lines["bruck"] = half(wires, to_everyone, whole)
        if near:
            lines["pxn"] = best(size, [half(x, pxn, whole) for x in partitions(wires)])
    else:
        lines["bruck"] = half(wires, bruck, whole)
        if lines["bruck"] is not None and kind == "all-reduce":
            lines["bruck"] = twice(lines["bruck"])
        if wires.units:
            line = half(wires, rotated_rings, whole)
            assert line is not None
            lines["rotated-rings"] = twice(line) if kind == "all-reduce" else line
        if near:
            lines["pxn"] = best(
                size, [through_mates(x, kind, whole) for x in partitions(wires)]
            )
        lines["pipelined"] = pipelined(wires, kind, lists, size)
        lines["torus"] = torus(wires, kind, lists)
    if kind == "all-reduce":
        lines["doubling"] = wires.line(doubling(wires, whole))
        alone = one_phase(wires, whole)
        lines["one-phase"] = None if alone is None else wires.line(alone)
    return {
        name: topology.launch_ns + (line[0] / 1e6 + size * twelve_digits(line[1]))
        for name, line in lines.items()
        if line is not None
    }


def collective(
    topology: GraphTopology, kind: str, groups: Sequence[Sequence[int]], size: int
) -> float:
    return min(offered(topology, kind, groups, size).values(), default=0.0)


def link(
    topology: GraphTopology, transfers: Sequence[tuple[Sequence[int], Sequence[int]]]
) -> tuple[float, float]:
    """Return ``launch + α`` and ``β`` of receivers with their senders."""
    wires = Wires(topology)
    flows = [
        (source, target, Fraction(1, len(senders)))
        for receivers, senders in transfers
        for target in receivers
        for source in senders
        if source != target
    ]
    alpha = max(wires.h(source, target) for source, target, _ in flows)
    return (topology.launch_ns + alpha / 1e6, twelve_digits(1 / wires.busiest(flows)))
