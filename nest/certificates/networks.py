"""What networks take for messages and collectives, as docs/cost-model.md says.

Standard library only. Numbers are integers and fractions; a float only ever
rounds one of them, where the page says double precision.
"""
from collections import Counter, defaultdict
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, zip_longest
from operator import mul

MOST_CACHED = 1 << 14

def near(x):
    """Return the double nearest to a fraction, as a fraction."""
    return Fraction(float(x))

def remember(thing, *names):
    """Cache methods."""
    for name in names:
        setattr(thing, name, lru_cache(MOST_CACHED)(getattr(thing, name)))

def twelve_digits(x):
    """Return a number rounded to 12 significant digits, to a double."""
    return near(f"{float(x):.12g}")

def groups(size, stride, n, starts):
    """Return the groups of an axis on n devices at starts, joined or not.

    Those of the starts in one part of several are one group.
    """
    one = [[i + j * stride for j in range(size)] for i in range(n)
           if i // stride % size == 0]
    ranks = [[s + x for s in p for x in g] for p in starts for g in one]
    return [x for x in ranks if len(x) > 1]

def parent(i, n):
    """Return the parent of a rank in the first of two trees."""
    lowest = i & -i
    above = (i - lowest) | 2 * lowest
    return above if above < n else i - lowest

def at_once(groups):
    """Return the phases of groups that run them side by side."""
    phases = []
    for running in zip_longest(*groups):
        running = [x for x in running if x]
        phases.append((max(a for a, _ in running),
                       [y for _, flows in running for y in flows.items()]))
    return phases

def units_of(ranks, unit_of):
    """Return the ranks of each unit."""
    units = defaultdict(list)
    for x in ranks:
        units[unit_of[x]].append(x)
    return units

def mates(small, large, unit_of):
    """Return pairs of ranks of two units: of one slot, then in order."""
    slot = {x: unit_of[:x].count(unit_of[x]) for x in (*small, *large)}
    same = {slot[x]: x for x in large}
    rest = iter([x for x in large
                 if slot[x] not in [slot[y] for y in small]])
    return {x: same[slot[x]] if slot[x] in same else next(rest)
            for x in small}

class Link:
    """What a message takes: a latency, and a bandwidth for a part of it.

    Compared by what it is, not by what it holds: numbers are slow to hash.
    """

    def __init__(self, latency, port, times=1, over=1):
        self.latency, self.port = latency, port
        self.times, self.over = times, over

class Tree:
    """Times of messages and collectives on a hierarchy."""

    def __init__(self, levels):
        self.levels = levels
        self.above = [*accumulate((x["fan_out"] for x in levels), mul)]
        self.below = [1, *self.above[:-1]]
        self.alpha = [x.get("latency_ns", 0) for x in levels]
        self.launch = [x.get("launch_ns", 0) for x in levels]
        self.bands = [x["bandwidth_bytes_per_s"] for x in levels]
        self.peers = [x.get("peer_bandwidth_bytes_per_s") for x in levels]
        ports = zip(accumulate(self.bands, min), self.peers)
        self.ports = [min(b, p or b) for b, p in ports]
        self.period, self.max_devices = self.below[-1], self.above[-1]
        remember(self, "shapes", "lines", "time", "wire")

    def level(self, first, last):
        """Return the lowest level with a unit that holds both devices."""
        return [first // c == last // c for c in self.above].index(True)

    def shapes(self, size, stride, n, starts):
        """Return n and (M, r, R, m) of each level, of groups of an axis."""
        found = set()
        for ranks in groups(size, stride, n, starts):
            rows = []
            for i in range(self.level(min(ranks), max(ranks)) + 1):
                held = Counter(x // self.below[i] for x in ranks)
                units = (x // self.levels[i]["fan_out"] for x in held)
                meet = (x for x in Counter(units).values() if x > 1)
                r = held.values()
                rows.append((len(r), min(r), max(r), min(meet, default=1)))
            found.add((len(ranks), *rows))
        return frozenset(found)

    def lines(self, kind, shape):
        """Return latency and ns per byte of the algorithms of NCCL."""
        n, *rows = shape
        direct, depth, hops, slopes, reach = 0, 0, [], [], []
        after = [*rows[1:], (0, n)]
        for i, (members, least, most, m) in enumerate(rows):
            fs = near(near(self.alpha[i] * 10**6) + Fraction(1, 2)) // 1
            parts = {x["members"]: x["fraction"] for x in
                     self.levels[i].get("group_fractions", ())}
            share = parts.get(max((x for x in parts if x <= m), default=0), 1)
            port = lane = near(self.bands[i] * share)
            slopes.append(Fraction(n - least, n) / port)
            if self.peers[i] and m > 1:
                slopes.append(Fraction(most, n) / self.peers[i])
                lane = min(port, (m - 1) * self.peers[i])
            reach.append(1 / Fraction(least * lane))
            direct += (after[i][1] - least) * fs
            depth += (m - 1 if i == 0 else (m - 1).bit_length()) * fs
            hops += [fs] * (members - after[i][0])
        found = [(sum(hops) - min(hops), Fraction(n - 1, n) * max(reach))]
        if kind == "all-to-all":
            found = [(direct, max(slopes))]
        if kind == "all-reduce":
            found = [(2 * a, 2 * c) for a, c in found]
            if len(rows) > 1 and all(row[1] == row[2] for row in rows):
                found.append((2 * depth, 2 * max(reach)))
        return [(near(Fraction(a, 10**6)), twelve_digits(c * 10**9))
                for a, c in found]

    def time(self, kind, shapes, size):
        """Return what groups take at once: as long as the slowest."""
        found = 0
        for shape in shapes if size else ():
            launch = self.launch[len(shape) - 2]
            found = max(found, min(near(launch + near(a + near(size * c)))
                                   for a, c in self.lines(kind, shape)))
        return found

    def tiles(self, k, n, num_devices):
        """Return where blocks end the step at the same time as one at k."""
        return [k]

    def link(self, starts, first, n, other, m):
        """Return the links from blocks of m to blocks of n devices."""
        ends = min(first, other), max(first + n, other + m) - 1
        levels = {self.level(*(s + x for x in ends)) for s in starts}
        return [self.wire(x, n, min(n, m)) for x in levels]

    def wire(self, level, times, over):
        """Return a link across a level."""
        latency = near(self.launch[level] + near(self.alpha[level]))
        return Link(latency, self.ports[level], times, over)

    def nearest(self, n):
        """Return links one of which is no slower than any to n devices."""
        return [self.wire(i, 1, 1) for i, c in enumerate(self.above) if c > n]
