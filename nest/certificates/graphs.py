"""What networks that are graphs take, as docs/cost-model.md has it.

Standard library only. A group is its ranks and its fraction of a buffer, a
phase a latency in fs and flows: {(source, target): fraction of the buffer}.
A line is the latency and the ns per byte of some phases.
"""
from collections import defaultdict
from fractions import Fraction
from heapq import heappop, heappush
from itertools import permutations, product, zip_longest

from .networks import (
    Link,
    at_once,
    groups,
    mates,
    near,
    parent,
    remember,
    twelve_digits,
    units_of,
)


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
        self.units = [[x[y] for y in self.order] for x in topology.get("units", ())]
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
        return max(self.loads(flows).values(), default=0)

    def loads(self, flows):
        """Return the load over bandwidth of every arc."""
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
        return {arc: x / self.arcs[arc] for arc, x in load.items()}

    def line(self, groups):
        """Return what groups take that run their phases side by side."""
        return self.sum(at_once(groups))

    def sum(self, phases):
        """Return what phases take one after the other."""
        return (sum(a for a, _ in phases),
                10**9 * sum(self.slowest(flows) for _, flows in phases))

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

    def sends(self, flows):
        """Return a phase of messages, each of its own."""
        return max(self.latency(*x) for x in flows), flows

    def exchange(self, ranks, fraction, far, divisor=2):
        """Return the phases of halving and doubling, or of whole buffers."""
        phases, count = [], len(ranks).bit_length() - 1
        for j in range(count):
            bit = 1 << (count - 1 - j if far else j)
            phases.append(self.sends({
                (x, ranks[i ^ bit]): fraction / divisor ** (j + 1)
                for i, x in enumerate(ranks)}))
        return phases

    def folded(self, groups, far, divisor=2):
        """Return the phases of all-reduces by exchanges on any ranks."""
        there, inner, back = [], [], []
        for ranks, fraction in groups:
            power = 1 << (len(ranks).bit_length() - 1)
            phases = self.exchange(ranks[:power], fraction, far, divisor)
            inner.append(phases * divisor)
            for ends in zip(ranks[power:], ranks):
                there.append([self.sends({ends: fraction})])
                back.append([self.sends({ends[::-1]: fraction})])
        return [*at_once(there), *at_once(inner), *at_once(back)]

    def shifts(self, ranks, fraction, count):
        """Return the phases in which ranks send parts 1, 2, 4 … farther."""
        n, phases = len(ranks), []
        for j in range((n - 1).bit_length()):
            phases.append(self.sends({
                (x, ranks[(i + 2**j) % n]): fraction * count(2**j, n) / n
                for i, x in enumerate(ranks)}))
        return phases

    def rotated(self, ranks, fraction):
        """Return rings through all of a unit, begun at each of its ranks."""
        units = units_of(ranks, self.units[0])
        count = min(map(len, units.values()))
        return [self.rings([tuple(
            x for members in units.values() for x in
            (members * 2)[j % len(members):j % len(members) + len(members)])
            for j in range(count)], fraction / count)]

    def direct(self, ranks, fraction):
        """Return the phase in which all ranks send to all others."""
        flows = {x: fraction / len(ranks) for x in permutations(ranks, 2)}
        return [(max(sum(self.latency(x, y) for y in ranks if x != y)
                     for x in ranks), flows)]

    def pipeline(self, steps):
        """Return the phase of pipelined steps."""
        flows, latency = defaultdict(int), 0
        for step in steps:
            sums = defaultdict(int)
            for (x, y), amount in step.items():
                flows[x, y] += amount
                sums[x] += self.latency(x, y)
            latency += max(sums.values(), default=0)
        return [(latency, flows)]

    def relayed(self, ranks, fraction, unit_of):
        """Return the phase of an all-to-all through ranks of the own unit."""
        units = units_of(ranks, unit_of)
        steps = defaultdict(int), defaultdict(int)
        for home, there in product(units.values(), units.values()):
            larger = len(home) >= len(there)
            ends = (there, home) if larger else (home, there)
            via = mates(*ends, unit_of)
            for x, y in product(home, there):
                middle = y if home is there else via[y if larger else x]
                for ends in (x, middle), (middle, y):
                    if ends[0] != ends[1]:
                        crosses = unit_of[ends[0]] != unit_of[ends[1]]
                        steps[crosses][ends] += fraction / len(ranks)
        return self.pipeline(steps)

    def gathered(self, ranks, fraction, unit_of):
        """Return the steps of an all-gather through mates."""
        shard, units = fraction / len(ranks), units_of(ranks, unit_of)
        spread, across = defaultdict(int), {}
        held = dict.fromkeys(ranks, shard)
        for home, there in product(units.values(), units.values()):
            if home is there:
                continue
            smaller = len(home) <= len(there)
            via = mates(home, there, unit_of) if smaller else {
                y: x for x, y in mates(there, home, unit_of).items()}
            factor = 1 if smaller else Fraction(len(home), len(there))
            for x, y in via.items():
                across[x, y] = factor * shard
                held[y] += factor * shard
                for other in home:
                    if other not in via:
                        spread[other, x] += shard / len(there)
        last = {(x, y): held[x] for members in units.values()
                for x in members for y in members if x != y}
        return [spread, across, last]

    def mated(self, kind, groups, unit_of):
        """Return the line through mates, if no group is even."""
        counts = [[*map(len, units_of(x, unit_of).values())] for x, _ in groups]
        uneven = [len({*x}) > 1 for x in counts if len(x) > 1]
        if not uneven or not all(uneven):
            return []
        steps = [self.gathered(*x, unit_of) for x in groups]
        back = [[{x[::-1]: y for x, y in z.items()} for z in reversed(w)]
                for w in steps]
        ways = [[self.pipeline(x) for x in y] for y in (steps, back)]
        if kind != "all-reduce":
            return [tuple(map(max, *map(self.line, ways)))]
        latency = sum(max(x[0] for (x,) in way) for way in ways)
        flows = (y for way in ways for (x,) in way for y in x[1].items())
        return [(latency, 10**9 * self.slowest(flows))]

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
        powers = {len(x).bit_count() == 1 for x, _ in groups}
        if powers == {True}:
            for far in (False, True):
                result[far] = [self.exchange(*x, far) for x in groups]
        if powers == {False}:
            result["bruck"] = [self.shifts(*x, lambda d, n: min(d, n - d))
                               for x in groups]
        return {name: at_once(x) for name, x in result.items()}

    def flat(self, kind, groups):
        """Return lists of phases of all of these, of any kind."""
        halves = self.halves(groups)
        if kind == "all-to-all":
            return [halves["direct"], at_once(self.shifts(
                *x, lambda d, n: sum(1 for y in range(n) if y & d))
                for x in groups)]
        if kind != "all-reduce":
            return [*halves.values()]
        result = [x * 2 for x in halves.values()]
        result += [self.folded(groups, far)
                   for far in (() if True in halves else (False, True))]
        result += [self.folded(groups, False, 1),
                   at_once(self.trees(*x) for x in groups)]
        if len({len(x) for x, _ in groups}) == 1:
            result.append(at_once(self.direct(x, y * len(x)) for x, y in groups))
        return result

    def levels(self, ranks):
        """Return the groups of each level with several, if they nest."""
        result, below, fraction = [], [[x] for x in ranks], Fraction(1)
        for unit_of in (*self.units, [0] * len(self.order)):
            held = defaultdict(list)
            for members in below:
                held[unit_of[members[0]]].append(members)
            if len({len(x) for x in held.values()}) > 1:
                return [[(tuple(ranks), Fraction(1))]]
            count = len(next(iter(held.values())))
            if count > 1:
                result.append([(x, fraction) for members in held.values()
                              for x in zip(*members)])
            fraction /= count
            below = [sorted(y for x in members for y in x)
                     for members in held.values()]
        return result

    def pipelined(self, kind, groups):
        """Return the lines of all choices of algorithms of the levels."""
        levels = [self.levels(x) for x, _ in groups]
        running = [*zip_longest(*levels, fillvalue=())]
        lines = [(0, {})]
        for i, x in enumerate(running):
            members = tuple(y for z in x for y in z)
            times = 1 + (kind == "all-reduce" and i + 1 < len(running))
            choices = {}
            for phases in self.flat("all-gather" if times > 1 else kind, members):
                a = sum(latency for latency, _ in phases) * times
                load = self.loads(y for _, flows in phases for y in flows)
                choices[a, tuple(sorted(load.items()))] = load
            best = [(a, load) for (a, _), load in choices.items() if not any(
                b < a and all(y <= load.get(arc, 0) for arc, y in other.items())
                for (b, _), other in choices.items())]
            lines = [(b + a, {arc: held.get(arc, 0) + load.get(arc, 0) * times
                              for arc in {*held, *load}})
                     for b, held in lines for a, load in best]
        return [(a, 10**9 * max(held.values())) for a, held in lines]

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
            phases += at_once(running)
        if not phases:
            return []
        flows = [y for _, x in phases for y in x]
        return [(sum(a for a, _ in phases), 10**9 * self.slowest(flows))]

    def lines(self, kind, groups):
        """Return what all algorithms take but those chosen by size."""
        result = [self.sum(x) for x in self.flat(kind, groups)]
        near = self.units if max(len(x) for x, _ in groups) <= 512 else ()
        if kind == "all-to-all":
            return result + [self.line([self.relayed(*x, unit_of) for x in groups])
                             for unit_of in near]
        halves = self.torus(groups)
        if self.units:
            halves.append(self.line([self.rotated(*x) for x in groups]))
        times = 1 + (kind == "all-reduce")
        result += [(times * a, times * c) for a, c in halves]
        for unit_of in near:
            result += self.mated(kind, groups, unit_of)
        return result + self.pipelined(kind, groups)

    def time(self, kind, groups, size):
        """Return what groups take at once."""
        if not groups or not size:
            return 0
        result = self.lines(kind, groups)
        return min(near(self.launch + near(near(Fraction(a, 10**6)) + near(
            size * twelve_digits(c)))) for a, c in result)

    def shapes(self, size, stride, n, starts):
        """Return the groups of an axis, all of which run at once."""
        return tuple((tuple(x), Fraction(1)) for x in groups(size, stride, n, starts))

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
