"""What networks that are graphs take, as docs/cost-model.md has it.

Standard library only. A group is its ranks and its fraction of a buffer, a
phase a latency in fs and flows: {(source, target): fraction of the buffer}.
A line is the latency and the ns per byte of some phases.
"""
from collections import defaultdict
from fractions import Fraction
from heapq import heappop, heappush
from itertools import product, zip_longest

from .networks import Link, groups, near, remember, twelve_digits


def both(line):
    """Return what two halves take."""
    return 2 * line[0], 2 * line[1]

def parent(i, n):
    """Return the parent of a rank in the first of two trees."""
    lowest = i & -i
    above = (i - lowest) | 2 * lowest
    return above if above < n else i - lowest

class Graph:
    """Times of messages and collectives on a graph."""

    def __init__(self, topology, devices):
        self.launch = topology.get("launch_ns", 0)
        self.period = devices
        nodes = topology["nodes"]
        self.relays = {x["id"] for x in nodes if x.get(
            "forward", x.get("kind", "device") == "switch")}
        self.order = topology.get("order") or [
            x["id"] for x in nodes if x.get("kind", "device") == "device"]
        self.max_devices = len(self.order)
        self.arcs, self.into = {}, defaultdict(dict)
        for x in topology["links"]:
            latency = near(near(x.get("latency_ns", 0) * 10**6)
                           + Fraction(1, 2)) // 1
            ends = x["source"], x["target"]
            for u, v in [ends] if topology.get("directed") else [
                    ends, ends[::-1]]:
                self.arcs[u, v] = Fraction(x["bandwidth_bytes_per_s"])
                self.into[v][u] = latency
        at = topology.get("coordinates")
        self.units = [[x[y] for y in self.order]
                      for x in topology.get("units", ())]
        self.at = [tuple(at[x]) for x in self.order] if at else []
        self.widest = max(sum(self.arcs[u, v] for u in self.into[v])
                          for v in self.order)
        remember(self, "routes", "lines", "halves", "link", "shapes",
                 "time", "nearest")

    def routes(self, target):
        """Return latencies of all nodes to a device, and where they send.

        The nodes farthest away first, with (next node, share of a flow).
        """
        target, best, new = self.order[target], {}, [(0, 0, None)]
        new = [(0, 0, target)]
        while new:
            *way, v = heappop(new)
            if v not in best:
                best[v] = way
                for u, latency in self.into[v].items():
                    if v == target or v in self.relays:
                        heappush(new, (way[0] + latency, way[1] + 1, u))
        steps = []
        for u in sorted(best, key=best.get, reverse=True)[:-1]:
            tied = {v: self.arcs[u, v] for v in best if (u, v) in self.arcs
                    and (v == target or v in self.relays) and best[u] == [
                        best[v][0] + self.into[v][u], best[v][1] + 1]}
            steps.append((u, [(v, x / sum(tied.values()))
                              for v, x in tied.items()]))
        return [best[x][0] for x in self.order], steps

    def latency(self, source, target):
        """Return the latency of the routes between two ranks."""
        return self.routes(target)[0][source]

    def slowest(self, flows):
        """Return the largest load over bandwidth of an arc."""
        held, load = defaultdict(dict), defaultdict(int)
        for (source, target), x in flows:
            members, name = held[target], self.order[source]
            members[name] = members.get(name, 0) + x
        for target, members in held.items():
            for u, ways in self.routes(target)[1]:
                amount = members.pop(u, 0)
                for v, share in ways if amount else ():
                    load[u, v] += amount * share
                    members[v] = members.get(v, 0) + amount * share
        return max((x / self.arcs[arc] for arc, x in load.items()), default=0)

    def line(self, groups):
        """Return what groups take that run their phases side by side."""
        a, c = 0, 0
        for phases in zip_longest(*groups):
            running = [x for x in phases if x]
            a += max(x[0] for x in running)
            c += 10**9 * self.slowest(y for x in running for y in x[1].items())
        return a, c

    def rings(self, lists, fraction):
        """Return the phase of rings on such fractions, all at once."""
        flows, latency = defaultdict(int), 0
        for ranks in lists:
            hops, n = [*zip(ranks, ranks[1:] + ranks[:1])], len(ranks)
            for hop in hops:
                flows[hop] += Fraction(n - 1, n) * fraction
            times = [self.latency(*hop) for hop in hops]
            latency = max(latency, sum(times) - min(times))
        return latency, flows

    def exchange(self, ranks, fraction, far):
        """Return the phases of halving and doubling."""
        phases, count = [], len(ranks).bit_length() - 1
        for j in range(count):
            bit = 1 << (count - 1 - j if far else j)
            flows = {(x, ranks[i ^ bit]): fraction / 2 ** (j + 1)
                     for i, x in enumerate(ranks)}
            phases.append((max(self.latency(*x) for x in flows), flows))
        return phases

    def rotated(self, ranks, fraction):
        """Return rings through all of a unit, begun at each of its ranks."""
        units = defaultdict(list)
        for x in ranks:
            units[self.units[0][x]].append(x)
        count = min(map(len, units.values()))
        return [self.rings([tuple(
            x for members in units.values() for x in
            (members * 2)[j % len(members):j % len(members) + len(members)])
            for j in range(count)], fraction / count)]

    def direct(self, ranks, fraction):
        """Return the phase in which all ranks send to all others."""
        flows = {(x, y): fraction / len(ranks) for x in ranks for y in ranks
                 if x != y}
        return [(max(sum(self.latency(x, y) for y in ranks if x != y)
                     for x in ranks), flows)]

    def relayed(self, ranks, fraction):
        """Return the phase of an all-to-all through ranks of the own unit."""
        units, flows = defaultdict(list), defaultdict(int)
        for x in ranks:
            units[self.units[0][x]].append(x)
        for x, y in product(ranks, ranks):
            home, there = (units[self.units[0][z]] for z in (x, y))
            via = (y if home is there else home[there.index(y)]
                   if len(home) >= len(there) else there[home.index(x)])
            for ends in (x, via), (via, y):
                if ends[0] != ends[1]:
                    flows[ends] += fraction / len(ranks)
        sums = defaultdict(int)
        for x, y in flows:
            crosses = self.units[0][x] != self.units[0][y]
            sums[crosses, x] += self.latency(x, y)
        return [(sum(max((s for (kind, _), s in sums.items() if kind == crosses),
                         default=0) for crosses in (False, True)), flows)]

    def trees(self, ranks, fraction):
        """Return the phase of a reduction up and down two trees."""
        n, flows, longest = len(ranks), defaultdict(int), 0
        for tree in (ranks, ranks[1:] + ranks[:1] if n % 2 else ranks[::-1]):
            to, back = [0] * n, [0] * n
            for i in range(1, n):
                up = j = i
                while j:
                    up = parent(j, n)
                    to[i] += self.latency(tree[j], tree[up])
                    back[i] += self.latency(tree[up], tree[j])
                    j = up
                ends = tree[i], tree[parent(i, n)]
                flows[ends] += fraction / 2
                flows[ends[::-1]] += fraction / 2
            longest = max(longest, max(to) + max(back))
        return [(longest, flows)]

    def halves(self, groups):
        """Return halves that need to know nothing but the ranks, by name."""
        result = {
            "ring": [[self.rings([x], fraction)] for x, fraction in groups],
            "two-way-ring": [[self.rings([x, x[::-1]], fraction / 2)]
                             for x, fraction in groups],
            "direct": [self.direct(*x) for x in groups]}
        if all(len(x).bit_count() == 1 for x, _ in groups):
            for far in (False, True):
                result[far] = [self.exchange(*x, far) for x in groups]
        return {name: self.line(x) for name, x in result.items()}

    def flat(self, kind, groups):
        """Return the lines of all of these, of any kind."""
        lines = self.halves(groups)
        if kind == "all-to-all":
            return [lines["direct"]]
        if kind != "all-reduce":
            return [*lines.values()]
        result = [*map(both, lines.values())]
        for far in () if True in lines else (False, True):
            whole = [(x, 1 << (len(x).bit_length() - 1), fraction)
                     for x, fraction in groups]
            inner = self.line([self.exchange(x[:w], fraction, far)
                               for x, w, fraction in whole])
            folds = [{(x[w + i], x[i]): fraction for i in range(len(x) - w)}
                     for x, w, fraction in whole]
            flows = {y: fraction for x in folds for y, fraction in x.items()}
            back = {y[::-1]: fraction for y, fraction in flows.items()}
            outer = self.line([[(max(self.latency(*y) for y in x), x)
                                for x in (flows, back)]])
            result.append((2 * inner[0] + outer[0], 2 * inner[1] + outer[1]))
        return [*result, self.line([self.trees(*x) for x in groups])]

    def levels(self, ranks):
        """Return the groups of each level with several, if they nest."""
        result, below, fraction = [], [[x] for x in ranks], Fraction(1)
        for unit_of in (*self.units, [0] * len(self.order)):
            held = defaultdict(list)
            for members in below:
                held[unit_of[members[0]]].append(members)
            if len({len(x) for x in held.values()}) > 1:
                return None
            count = len(next(iter(held.values())))
            if count > 1:
                result.append([(x, fraction) for members in held.values()
                              for x in zip(*members)])
            fraction /= count
            below = [sorted(y for x in members for y in x)
                     for members in held.values()]
        return result

    def nested(self, kind, groups, size):
        """Return the line of the best algorithms of all levels for a size."""
        levels = [self.levels(x) for x, _ in groups]
        if None in levels or max(map(len, levels)) < 2:
            return []
        a = c = 0
        running = [*zip_longest(*levels, fillvalue=())]
        for i, x in enumerate(running):
            members = tuple(y for z in x for y in z)
            if kind != "all-reduce" or i + 1 == len(running):
                lines = self.flat(kind, members)
            else:
                lines = map(both, self.halves(members).values())
            line = min(lines, key=lambda x: Fraction(x[0], 10**6)
                       + size * x[1])
            a, c = a + line[0], c + line[1]
        return [(a, c)]

    def torus(self, groups):
        """Return a half on boxes, along their axes in turn, if they are."""
        boxes, phases = [], []
        for ranks, _ in groups if self.at else ():
            sides = [sorted({*x}) for x in zip(*(self.at[y] for y in ranks))]
            where = {self.at[x]: x for x in ranks}
            if sorted(where) != [*product(*sides)] or len(where) < len(ranks):
                return []
            boxes.append((where, [len(x) for x in sides]))
        axes = [i for i in range(len(self.at[0])) if any(
            x[i] > 1 for _, x in boxes)] if boxes else []
        for step in range(len(axes)):
            running = []
            for color, (where, sides) in product(range(len(axes)), boxes):
                turns = axes[color:] + axes[:color]
                fraction, lists = Fraction(1, 2 * len(axes)), defaultdict(list)
                for axis in turns[:step]:
                    fraction /= sides[axis]
                axis = turns[step]
                for x in sorted(where):
                    lists[x[:axis], x[axis + 1:]].append(where[x])
                running += [[self.rings([x, x[::-1]], fraction)]
                            for x in map(tuple, lists.values()) if x[1:]]
            phases.append(self.line(running))
        return [tuple(map(sum, zip(*phases)))] if phases else []

    def lines(self, kind, groups):
        """Return what all algorithms take but those chosen by size."""
        result = self.flat(kind, groups)
        if (kind == "all-to-all" and self.units
                and max(len(x) for x, _ in groups) <= 512):
            result.append(self.line([self.relayed(*x) for x in groups]))
        if kind != "all-to-all":
            halves = self.torus(groups)
            if self.units:
                halves.append(self.line([self.rotated(*x) for x in groups]))
            result += map(both, halves) if kind == "all-reduce" else halves
        return result

    def time(self, kind, groups, size):
        """Return what groups take at once."""
        if not groups or not size:
            return 0
        result = [*self.lines(kind, groups)]
        if self.units and kind != "all-to-all":
            result += self.nested(kind, groups, size)
        return min(near(self.launch + near(near(Fraction(a, 10**6)) + near(
            size * twelve_digits(c)))) for a, c in result)

    def shapes(self, size, stride, n, starts):
        """Return the groups of an axis, all of which run at once."""
        return tuple((tuple(x), Fraction(1))
                     for x in groups(size, stride, n, starts))

    def tiles(self, k, n, num_devices):
        """Return where blocks end the step at the same time as one at k."""
        return range(k % n, num_devices - n + 1, n)

    def link(self, starts, first, n, other, m):
        """Return the link from blocks of m to blocks of n devices."""
        flows = {(s + other + i, s + first + j): Fraction(1, m)
                 for s in starts for i in range(m) for j in range(n)
                 if other + i != first + j}
        a = max(self.latency(*x) for x in flows)
        beta = twelve_digits(1 / self.slowest(flows.items()))
        return [Link(near(self.launch + near(Fraction(a, 10**6))), beta)]

    def nearest(self, n):
        """Return links that are no slower than any to a block."""
        ranks = range(self.period)
        times = [self.latency(x, y) for x in ranks for y in ranks if x != y]
        return [Link(near(self.launch + near(Fraction(min(times), 10**6))),
                     twelve_digits(self.widest))] if times else []
