"""What networks that are graphs take, as docs/cost-model.md has it.

Standard library only. A group is its ranks and its part of a buffer, a phase
a latency in fs and flows: {(source, target): part of the buffer}. A line is
the latency and the ns per byte of some phases.
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
        self.most = len(self.order)
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
            own, name = held[target], self.order[source]
            own[name] = own.get(name, 0) + x
        for target, own in held.items():
            for u, ways in self.routes(target)[1]:
                amount = own.pop(u, 0)
                for v, share in ways if amount else ():
                    load[u, v] += amount * share
                    own[v] = own.get(v, 0) + amount * share
        return max((x / self.arcs[arc] for arc, x in load.items()), default=0)

    def line(self, groups):
        """Return what groups take that run their phases side by side."""
        a, c = 0, 0
        for phases in zip_longest(*groups):
            running = [x for x in phases if x]
            a += max(x[0] for x in running)
            c += 10**9 * self.slowest(y for x in running for y in x[1].items())
        return a, c

    def rings(self, lists, part):
        """Return the phase of rings on such parts, all at once."""
        flows, latency = defaultdict(int), 0
        for ranks in lists:
            hops, n = [*zip(ranks, ranks[1:] + ranks[:1])], len(ranks)
            for hop in hops:
                flows[hop] += Fraction(n - 1, n) * part
            times = [self.latency(*hop) for hop in hops]
            latency = max(latency, sum(times) - min(times))
        return latency, flows

    def exchange(self, ranks, part, far):
        """Return the phases of halving and doubling."""
        phases, count = [], len(ranks).bit_length() - 1
        for j in range(count):
            bit = 1 << (count - 1 - j if far else j)
            flows = {(x, ranks[i ^ bit]): part / 2 ** (j + 1)
                     for i, x in enumerate(ranks)}
            phases.append((max(self.latency(*x) for x in flows), flows))
        return phases

    def rotated(self, ranks, part):
        """Return rings through all of a unit, begun at each of its ranks."""
        units = defaultdict(list)
        for x in ranks:
            units[self.units[0][x]].append(x)
        count = min(map(len, units.values()))
        return [self.rings([tuple(
            x for own in units.values() for x in
            (own * 2)[j % len(own):j % len(own) + len(own)])
            for j in range(count)], part / count)]

    def direct(self, ranks, part):
        """Return the phase in which all ranks send to all others."""
        flows = {(x, y): part / len(ranks) for x in ranks for y in ranks
                 if x != y}
        return [(max(sum(self.latency(x, y) for y in ranks if x != y)
                     for x in ranks), flows)]

    def trees(self, ranks, part):
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
                flows[ends] += part / 2
                flows[ends[::-1]] += part / 2
            longest = max(longest, max(to) + max(back))
        return [(longest, flows)]

    def halves(self, groups):
        """Return halves that need to know nothing but the ranks, by name."""
        found = {
            "ring": [[self.rings([x], part)] for x, part in groups],
            "two-way-ring": [[self.rings([x, x[::-1]], part / 2)]
                             for x, part in groups],
            "direct": [self.direct(*x) for x in groups]}
        if all(len(x).bit_count() == 1 for x, _ in groups):
            for far in (False, True):
                found[far] = [self.exchange(*x, far) for x in groups]
        return {name: self.line(x) for name, x in found.items()}

    def flat(self, kind, groups):
        """Return the lines of all of these, of any kind."""
        lines = self.halves(groups)
        if kind == "all-to-all":
            return [lines["direct"]]
        if kind != "all-reduce":
            return [*lines.values()]
        found = [*map(both, lines.values())]
        for far in () if True in lines else (False, True):
            whole = [(x, 1 << (len(x).bit_length() - 1), part)
                     for x, part in groups]
            inner = self.line([self.exchange(x[:w], part, far)
                               for x, w, part in whole])
            folds = [{(x[w + i], x[i]): part for i in range(len(x) - w)}
                     for x, w, part in whole]
            flows = {y: part for x in folds for y, part in x.items()}
            back = {y[::-1]: part for y, part in flows.items()}
            outer = self.line([[(max(self.latency(*y) for y in x), x)
                                for x in (flows, back)]])
            found.append((2 * inner[0] + outer[0], 2 * inner[1] + outer[1]))
        return [*found, self.line([self.trees(*x) for x in groups])]

    def levels(self, ranks):
        """Return the groups of each level with several, if they nest."""
        found, below, part = [], [[x] for x in ranks], Fraction(1)
        for unit_of in (*self.units, [0] * len(self.order)):
            held = defaultdict(list)
            for own in below:
                held[unit_of[own[0]]].append(own)
            if len({len(x) for x in held.values()}) > 1:
                return None
            count = len(next(iter(held.values())))
            if count > 1:
                found.append([(x, part) for own in held.values()
                              for x in zip(*own)])
            part /= count
            below = [sorted(y for x in own for y in x)
                     for own in held.values()]
        return found

    def nested(self, kind, groups, size):
        """Return the line of the best algorithms of all levels for a size."""
        levels = [self.levels(x) for x, _ in groups]
        if None in levels or max(map(len, levels)) < 2:
            return []
        a = c = 0
        running = [*zip_longest(*levels, fillvalue=())]
        for i, x in enumerate(running):
            own = tuple(y for z in x for y in z)
            if kind != "all-reduce" or i + 1 == len(running):
                lines = self.flat(kind, own)
            else:
                lines = map(both, self.halves(own).values())
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
                part, lists = Fraction(1, 2 * len(axes)), defaultdict(list)
                for axis in turns[:step]:
                    part /= sides[axis]
                axis = turns[step]
                for x in sorted(where):
                    lists[x[:axis], x[axis + 1:]].append(where[x])
                running += [[self.rings([x, x[::-1]], part)]
                            for x in map(tuple, lists.values()) if x[1:]]
            phases.append(self.line(running))
        return [tuple(map(sum, zip(*phases)))] if phases else []

    def lines(self, kind, groups):
        """Return what all algorithms take but those chosen by size."""
        found = self.flat(kind, groups)
        if kind != "all-to-all":
            halves = self.torus(groups)
            if self.units:
                halves.append(self.line([self.rotated(*x) for x in groups]))
            found += map(both, halves) if kind == "all-reduce" else halves
        return found

    def time(self, kind, groups, size):
        """Return what groups take at once."""
        if not groups or not size:
            return 0
        found = [*self.lines(kind, groups)]
        if self.units and kind != "all-to-all":
            found += self.nested(kind, groups, size)
        return min(near(self.launch + near(near(Fraction(a, 10**6)) + near(
            size * twelve_digits(c)))) for a, c in found)

    def shapes(self, size, stride, n, parts):
        """Return the groups of an axis, all of which run at once."""
        return tuple((tuple(x), Fraction(1))
                     for x in groups(size, stride, n, parts))

    def tiles(self, k, n, pitch):
        """Return where blocks end the step at the same time as one at k."""
        return range(k % n, pitch - n + 1, n)

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
