"""What stages take, as docs/cost-model.md has it: a reading of its own.

Standard library only. Numbers are integers and fractions; a float only ever
rounds one of them, where the page says double precision.
"""
from collections import Counter
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, product
from operator import le, mul, sub

from .documents import BadInputError

NEVER, MOST_SETS, MOST_DEVICES, MOST_CACHED = 1 << 100, 1500, 1024, 1 << 14
KEY = "tp", "cp", "ep", "sequence_parallel", "samples"

def near(x):
    """Return the double nearest to a fraction, as a fraction."""
    return Fraction(float(x))

def up(x, parts):
    """Return a quotient rounded up."""
    return -(-x // parts)

def sane(data, where):
    """Refuse what nest refuses, where numbers would mean something else."""
    job, graph = data["job"], data["graph"]
    kinds, layers = graph["kinds"], graph["layers"]
    costs = [x for kind in kinds for x in kind["costs"]]
    named = [("kinds", [x["name"] for x in kinds]),
             ("layers", [x["id"] for x in layers])]
    named += [("costs", [tuple(y.get(z, z != KEY[3]) for z in KEY)
                         for y in x["costs"]]) for x in kinds]
    named += [("activations", [y.get("recompute", "none") for y in
                               x.get("activations", ())]) for x in costs]
    named += [x for x in job.items() if type(x[1]) is list]
    for what, x in named:
        if len({*x}) < len(x):
            raise BadInputError(f"{where}: {what}: one is there twice")
    if (any(x == [] for x in job.values()) or not layers
            or data.get("schema") != "nest-problem/1"
            or job.get("gradient_sync_overlap", 0) > 1
            or data.get("quantum_ps", 1) < 1 or job["global_batch"] < 1):
        raise BadInputError(f"{where}: not one that nest takes")

def remember(thing, *names):
    """Cache methods."""
    for name in names:
        setattr(thing, name, lru_cache(MOST_CACHED)(getattr(thing, name)))

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
        remember(self, "shapes", "lines", "time")

    def level(self, first, last):
        """Return the lowest level with a unit that holds both devices."""
        return [first // c == last // c for c in self.above].index(True)

    def shapes(self, size, stride, n, starts, joined):
        """Return n and (M, r, R, m) of each level, of groups of an axis."""
        groups = [[i + j * stride for j in range(size)] for i in range(n)
                  if i // stride % size == 0]
        parts = [starts] if joined else [(s,) for s in starts]
        groups = [[s + x for s in p for x in g] for p in parts for g in groups]
        found = set()
        for ranks in groups if len(groups[0]) > 1 else ():
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
        return [(near(Fraction(a, 10**6)), near(f"{float(c * 10**9):.12g}"))
                for a, c in found]

    def time(self, kind, shapes, size):
        """Return what groups take at once: as long as the slowest."""
        found = 0
        for shape in shapes if size else ():
            launch = self.launch[len(shape) - 2]
            found = max(found, min(near(launch + near(a + near(size * c)))
                                   for a, c in self.lines(kind, shape)))
        return found

class Problem:
    """A problem: how its layers can be cut, and what its layers take.

    Strategies are (dp, tp, cp, ep, splits the sequence, zero, recompute), keys
    of costs (tp, cp, ep, splits the sequence, samples).
    """

    def __init__(self, data, where="problem"):
        sane(data, where)
        self.where = where
        self.job, graph, cluster = data["job"], data["graph"], data["cluster"]
        self.quantum = data.get("quantum_ps", 1000)
        self.rule = self.job.get("optimizer", {})
        network = cluster["topology"]
        if network["kind"] and "algorithms" not in network:
            raise BadInputError(
                f"{where}.cluster.topology.algorithms: expected nccl, for a "
                "certificate, got none, which is best; add it")
        self.tree = Tree(network["levels"])
        self.devices, device = cluster["num_devices"], cluster["device"]
        most = min(MOST_DEVICES, self.tree.above[-1])
        if self.devices > most:
            raise BadInputError(
                f"{where}.cluster.num_devices: expected at most {most}, for a "
                f"certificate, got {self.devices}; take fewer")
        self.room = device["memory_bytes"] - device.get("reserve_bytes", 0)
        self.rate = device.get("hbm_bytes_per_s")
        self.costs = [{tuple(x.get(y, y != KEY[3]) for y in KEY): x
                       for x in kind["costs"]} for kind in graph["kinds"]]
        self.layers = {x["id"]: i for i, x in enumerate(graph["layers"])}
        if len(self.layers) >= MOST_SETS:  # each is in one cut more
            raise BadInputError(
                f"{where}.graph.layers: expected below {MOST_SETS}, for a "
                f"certificate, got {len(self.layers)}; take fewer")
        kinds = [kind["name"] for kind in graph["kinds"]]
        self.kinds = [kinds.index(x["kind"]) for x in graph["layers"]]
        self.edges = [(self.layers[x["source"]], self.layers[x["target"]],
                       x["bytes_per_sample"]) for x in graph.get("edges", ())]
        needs = [0] * len(self.kinds)
        for source, target, _ in self.edges:
            needs[target] |= 1 << source
        found, new = {0}, [0]
        while new and len(found) <= MOST_SETS:
            s = new.pop()
            more = {s | 1 << i for i, x in enumerate(needs) if not x & ~s}
            new += more - found
            found |= more
        if len(found) > MOST_SETS or (1 << len(self.layers)) - 1 not in found:
            raise BadInputError(f"{where}: a cycle, or over {MOST_SETS} cuts")
        self.sets = sorted(found, key=lambda s: (s.bit_count(), s))
        self.at = {s: i for i, s in enumerate(self.sets)}
        remember(self, "shape", "shapes", "passes", "traffic", "extra",
                 "sizes", "memory", "receive", "nearest", "choices", "rows",
                 "options")
        self.cut()

    def cut(self):
        """List what crosses the end of every set, and its layers by kind."""
        self.cuts, self.counts = [], []
        for front in self.sets:
            cross = {}
            for source, target, size in self.edges:
                if size and front >> source & 1 and not front >> target & 1:
                    cross[source] = max(cross.get(source, 0), size)
            self.cuts.append((cross, tuple(sorted(cross.values()))))
            kinds = Counter(k for i, k in enumerate(self.kinds)
                            if front >> i & 1)
            self.counts.append([kinds[k] for k in range(len(self.costs))])

    def after(self, u):
        """Return the sets with which a stage behind a set can end."""
        return [v for v in range(u + 1, len(self.sets))
                if not self.sets[u] & ~self.sets[v]]

    def shape(self, u, v):
        """Return layers of each kind, and bytes that enter, leave and pass."""
        (into, enter), (out, leave) = self.cuts[u], self.cuts[v]
        layers = map(sub, self.counts[v], self.counts[u])
        passing = sorted(out[i] for i in out.keys() & into.keys())
        return (*layers,), enter, leave, (*passing,)

    def forget_times(self):
        """Let everything take no time."""
        self.load = lambda *x: (0, 0)
        self.receive = self.quanta = lambda *x: 0

    def quanta(self, ns):
        """Round a time, half up: the only rounding of times there is."""
        if not ns:
            return 0
        time = near(near(ns * 1000) / self.quantum)
        found = near(time + Fraction(1, 2)) // 1
        if found > 1 << 53:
            raise BadInputError(
                f"{self.where}: expected times of at most 2**53 quanta, for a "
                f"certificate, got {found}; raise quantum_ps")
        return found

    def shapes(self, dp, tp, cp, ep, starts):
        """Return the shapes of tp, cp, dp, ep, data and expert-data groups."""
        axes = ((tp, 1), (cp, tp), (dp, tp * cp), (ep, tp), (dp * cp, tp),
                (dp * cp // ep, tp * ep))
        n, shapes = dp * tp * cp, self.tree.shapes
        return tuple(shapes(*x, n, starts, False) for x in axes)

    def passes(self, kind, key, shapes):
        """Return forward and backward pass of a layer."""
        cost, found = self.costs[kind][key], []
        for phase in ("forward", "backward"):
            total = cost[f"{phase}_ns"]
            for x in cost.get("collectives", ()):
                if x["phase"] == phase:
                    own = shapes[("tp", "cp", "dp", "ep").index(x["axis"])]
                    time = self.tree.time(x["kind"], own, x["size_bytes"])
                    total = near(total + near(x.get("count", 1) * time))
            host = cost.get(f"{phase}_host_ns", 0)
            found.append(self.quanta(max(total, host)))
        return found

    def extra(self, kind, key, again):
        """Return what selective recomputation takes."""
        kept = self.kept(self.costs[kind][key], again)
        times = kept.get("extra_ns", 0), kept.get("extra_host_ns", 0)
        return self.quanta(max(times)) if again == "selective" else 0

    def load(self, kind, key, zero, again, shapes):
        """Return what a layer adds to its stage, forward and backward."""
        f, g = self.passes(kind, key, shapes)
        gather, scatter = self.traffic(kind, key, zero, shapes)
        extra = f if again == "full" else self.extra(kind, key, again)
        return f + gather, g + extra + gather + scatter

    def sizes(self, kind, key):
        """Return weights, gradients and state, each of dense and experts."""
        cost, rule = self.costs[kind][key], self.rule
        w = [cost.get(f"{x}weight_bytes", 0) for x in ("", "expert_")]
        per = rule.get("weight_bytes", 2)
        each = rule.get("gradient_bytes", 2), rule.get("state_bytes", 12)
        return w, *([up(x * size, per) for x in w] for size in each)

    def both(self, what, sizes, shapes):
        """Return a collective of dense weights and then one of experts."""
        one, other = (self.tree.time(what, *x) for x in zip(shapes[4:], sizes))
        return near(one + other)

    def traffic(self, kind, key, zero, shapes):
        """Return what ZeRO gathers and scatters in each pass."""
        weights, gradients, _ = self.sizes(kind, key)
        gather = zero == 3 and self.both("all-gather", weights, shapes)
        scatter = zero > 1 and self.both("reduce-scatter", gradients, shapes)
        return self.quanta(gather), self.quanta(scatter)

    def kept(self, cost, again):
        """Return the entry of a recompute choice, if there is one."""
        return next((x for x in cost.get("activations", ())
                     if x.get("recompute", "none") == again), None)

    def memory(self, kind, strategy, batch):
        """Return bytes held all the time, per micro-batch, and at work."""
        dp, *key, zero, again = strategy
        key = *key, batch // dp
        cost = self.costs[kind].get(key, {})
        kept = self.kept(cost, again)
        if kept is None:
            return None
        work = cost.get("working_bytes", 0) + kept.get("working_bytes", 0)
        static = kept.get("static_bytes", 0)
        per = self.rule.get("weight_bytes", 2)
        parts = dp * key[1], dp * key[1] // key[2]
        for w, g, x, z in zip(*self.sizes(kind, key), parts):
            static += up(w, z if zero == 3 else 1) + up(x, z if zero else 1)
            static += up(g, z if zero > 1 else 1)
            if "buffer_bytes" in self.rule:
                buffers = near(w * self.rule["buffer_bytes"])
                static += up(near(buffers / per), 1)
            work += (w * (zero == 3) + g * (zero > 1)) * (z > 1)
        return static, kept["kept_bytes"], work

    def shards(self, strategy):
        """Return over how many ranks a boundary activation is split."""
        dp, tp, cp, _, split, *_ = strategy
        split = split or self.job.get("sequence_parallel") is True
        return dp * cp * (tp if split else 1)

    def receive(self, sizes, shards, batch, level, n, m):
        """Return what n devices take to receive from m across a level."""
        tree, quanta = self.tree, self.quanta
        found = quanta(near(tree.launch[level] + tree.alpha[level]))
        for size in sizes:
            part = near(Fraction(size * batch * n, shards * min(n, m)))
            found += quanta(near(near(part / tree.ports[level]) * 10**9))
        return found if sizes else 0

    def choices(self, batch):
        """Return the strategies that solvers list."""
        zeros, found = self.job.get("zero", [0]), set()
        for key in {x for costs in self.costs for x in costs}:
            own = zeros if batch // key[4] * key[1] > 1 else [min(zeros)]
            for x in product(own, self.job.get("recompute", ["none"])):
                strategy = batch // key[4], *key[:4], *x
                if batch % key[4] == 0 and self.legal(strategy, batch):
                    found.add(strategy)
        return sorted(found)

    def legal(self, strategy, batch):
        """Whether the job allows a strategy."""
        job, (dp, tp, cp, ep, split, zero, again) = self.job, strategy
        may = job.get("sequence_parallel", False)
        may = may if type(may) is list and tp > 1 else [False]
        named = ("data", dp), ("tensor", tp), ("context", cp), ("expert", ep)
        return (batch % dp == 0 and dp * cp % ep == 0 and split in may
                and zero in job.get("zero", [0])
                and again in job.get("recompute", ["none"])
                and all(x in (job.get(f"{name}_parallel") or [x])
                        for name, x in named))

    def rows(self, batch, n, starts):
        """Return strategies with the least load, and memory, of all kinds.

        Those with n devices; then those that no other beats in everything.
        """
        every, lean = [], []
        for x in self.choices(batch):
            *degrees, _, zero, again = x
            if x[0] * x[1] * x[2] == n:
                row, key = [], (*x[1:5], batch // x[0])
                shapes = {self.shapes(*degrees, y) for y in starts}
                for kind in range(len(self.costs)):
                    held = self.memory(kind, x, batch)
                    row.append(held and (min(sum(self.load(
                        kind, key, zero, again, y)) for y in shapes), *held))
                every.append((x, row))
        every.sort(key=lambda x: sum(y[0] for y in x[1] if y))
        for x, row in every:
            if not any(self.shards(y) >= self.shards(x) and all(
                    not a or (b and all(map(le, b, a)))
                    for a, b in zip(row, other)) for y, other in lean):
                lean.append((x, row))
        return every, lean

    def options(self, shape, batch, n, starts, lean):
        """Return (least load, most in flight, strategy) of a stage, sorted."""
        counts, enter, leave, passing = shape
        own, found = [(i, c) for i, c in enumerate(counts) if c], []
        for x, row in self.rows(batch, n, starts)[lean]:
            load = fixed = kept = work = 0
            for i, c in own:
                if not row[i]:
                    break
                one, held, more, busy = row[i]
                load, fixed = load + c * one, fixed + c * held
                kept += c * more
                if busy > work:
                    work = busy
            else:
                shards, room = self.shards(x), self.room - fixed - work
                if room >= 0:
                    load += self.nearest(enter, shards, batch, n)
                    load += self.nearest(leave, shards, batch, n)
                    for size in passing:
                        kept += up(size * batch, shards)
                    found.append((load, room // kept if kept else NEVER, x))
        return sorted(found)

    def nearest(self, sizes, shards, batch, n):
        """Return the least that n devices take to receive from others."""
        return min((self.receive(sizes, shards, batch, i, n, n) for i, c
                    in enumerate(self.tree.above) if c > n),
                   default=NEVER) if sizes else 0
