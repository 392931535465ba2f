"""What stages take, as docs/cost-model.md has it: a reading of its own.

Standard library only.
"""
from collections import Counter
from fractions import Fraction
from operator import le, sub

from .documents import BadInputError
from .graphs import Graph
from .networks import Tree, near, remember
from .rules import Rules, devices_of, up

NEVER, MOST_SETS, MOST_DEVICES, MOST_GRAPH = 1 << 100, 1500, 1 << 14, 128
KEY = "tp", "cp", "ep", "sequence_parallel", "samples"

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
    network, shared = data["cluster"]["topology"], job.get("uniform", ())
    ends = [(x["source"], x["target"]) for x in network.get("links", ())]
    if not network.get("directed"):
        ends = [tuple(sorted(x)) for x in ends]
    named += [("links", ends),
              ("nodes", [x["id"] for x in network.get("nodes", ())])]
    for what, x in named:
        if len({*x}) < len(x):
            raise BadInputError(f"{where}: {what}: one is there twice")
    if (any(x == [] for x in job.values()) or not layers
            or data.get("schema") != "nest-problem/1"
            or job.get("gradient_sync_overlap", 0) > 1
            or max(job.get("overlap", {}).values(), default=0) > 1
            or not (job.get("idle_devices", True) or "devices" in shared
                    or {"dp", "tp", "cp"} <= {*shared})
            or (type(job.get("schedule")) is list and "any" in job["schedule"])
            or data.get("quantum_ps", 1) < 1 or job["global_batch"] < 1):
        raise BadInputError(f"{where}: not one that nest takes")

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
        graph_kind = network["kind"] == "graph"
        if not graph_kind and "algorithms" not in network:
            raise BadInputError(
                f"{where}.cluster.topology.algorithms: expected nccl, for a "
                "certificate, got none, which is best; add it")
        self.devices, device = cluster["num_devices"], cluster["device"]
        self.tree = (Graph(network, self.devices) if graph_kind
                     else Tree(network["levels"]))
        limit = MOST_GRAPH if graph_kind else MOST_DEVICES
        limit = min(limit, self.tree.max_devices)
        if self.devices > limit:
            raise BadInputError(
                f"{where}.cluster.num_devices: expected at most {limit}, for a"
                f" certificate, got {self.devices}; take fewer")
        self.types = [device] * self.devices
        for x in cluster.get("others", ()):
            self.types[x["first"]:x["first"] + x["count"]] = (
                [x["device"]] * x["count"])
        if len(self.types) > self.devices:
            raise BadInputError(f"{where}.cluster.others: more than there are")
        self.mixed = "others" in cluster
        self.period = self.devices if self.mixed else self.tree.period
        self.room = max(self.room_of([i]) for i in range(self.devices))
        self.costs = [{tuple(x.get(y, y != KEY[3]) for y in KEY): x
                       for x in kind["costs"]} for kind in graph["kinds"]]
        self.layers = {x["id"]: i for i, x in enumerate(graph["layers"])}
        if len(self.layers) >= MOST_SETS:  # each is in one cut more
            raise BadInputError(
                f"{where}.graph.layers: expected below {MOST_SETS}, for a "
                f"certificate, got {len(self.layers)}; take fewer")
        kinds = [kind["name"] for kind in graph["kinds"]]
        self.kinds = [kinds.index(x["kind"]) for x in graph["layers"]]
        self.rules = Rules(self.job, self.devices, self.costs, self.kinds)
        together = self.job.get("one_stage", ())
        self.together = sum(1 << i for i, x in enumerate(graph["layers"])
                            if x["kind"] in together)
        self.edges = [(self.layers[x["source"]], self.layers[x["target"]],
                       x["bytes_per_sample"]) for x in graph.get("edges", ())]
        needs = [0] * len(self.kinds)
        for source, target, _ in self.edges:
            needs[target] |= 1 << source
        done, self.order = 0, []  # of possible layers the first in the file
        while ready := [i for i, x in enumerate(needs)
                        if not x & ~done and not done >> i & 1]:
            self.order.append(ready[0])
            done |= 1 << ready[0]
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
                 "sizes", "memory", "receive", "nearest", "rows", "options",
                 "after", "names")
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

    def after(self, u, stages):
        """Return the sets with which a stage behind a set can end.

        With equal shares of the kinds that there are many of, where the job
        wants these, for so many stages.
        """
        ends, total = [], self.counts[-1]
        for v in range(u + 1, len(self.sets)):
            layers = self.sets[v] & ~self.sets[u]
            even = not stages or all(
                x == 1 or x == stages * (b - a) for x, a, b in zip(
                    total, self.counts[u], self.counts[v]))
            if (even and not self.sets[u] & ~self.sets[v]
                    and layers & self.together in (0, self.together)):
                ends.append(v)
        return ends

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
        n, starts = dp * tp * cp, tuple((s,) for s in starts)
        return tuple(self.tree.shapes(*x, n, starts) for x in axes)

    def names(self, starts, n):
        """Return the types of the devices of blocks, where there are several.

        As (their names, their numbers).
        """
        if not self.mixed:
            return (), (0,)
        ranks = {self.types[s + i].get("name", "device"): s + i
                  for s in starts for i in range(n)}
        return (*sorted(ranks),), (*sorted(ranks.values()),)

    def room_of(self, ranks):
        """Return the memory of a block with devices of these types."""
        devices = [self.types[x] for x in ranks]
        return (min(x["memory_bytes"] for x in devices)
                - max(x.get("reserve_bytes", 0) for x in devices))

    def rate_of(self, ranks):
        """Return the lowest memory bandwidth of these types, if any."""
        rates = [self.types[x].get("hbm_bytes_per_s") for x in ranks]
        return min((x for x in rates if x), default=0)

    def longest(self, cost, name, types, usual):
        """Return a time on the slowest of some types of devices."""
        named = {x["device"]: x for x in cost.get("by_device", ())}
        return max((named[x].get(name, 0) if x in named else usual
                    for x in types), default=usual)

    def passes(self, kind, key, shapes, overlap, types, *moved):
        """Return forward and backward pass of a layer.

        With what of ZeRO's traffic in each is hidden behind it, too.
        """
        cost, found = self.costs[kind][key], []
        exposed = {x: near(1 - self.job["overlap"][x]) for x in overlap}
        for phase, both in zip(("forward", "backward"), moved):
            total = near(both * exposed.get("weights", 1))
            name = f"{phase}_ns"
            total = near(self.longest(cost, name, types, cost[name]) + total)
            for x in cost.get("collectives", ()):
                if x["phase"] == phase:
                    own = shapes[("tp", "cp", "dp", "ep").index(x["axis"])]
                    time = self.tree.time(x["kind"], own, x["size_bytes"])
                    time = near(x.get("count", 1) * time)
                    both = near(both + time)
                    time = near(exposed.get(x["axis"], 1) * time)
                    total = near(total + time)
            name = f"{phase}_host_ns"
            host = self.longest(cost, name, types, cost.get(name, 0))
            found.append(self.quanta(max(both, total, host)))
        return found

    def extra(self, kind, key, again, types):
        """Return what selective recomputation takes."""
        cost = self.costs[kind][key]
        entry = self.kept(cost, again)
        times = (self.longest(cost, x, types, entry.get(x, 0))
                 for x in ("extra_ns", "extra_host_ns"))
        return self.quanta(max(times)) if again == "selective" else 0

    def load(self, kind, key, zero, again, shapes, overlap, types):
        """Return what a layer adds to its stage, forward and backward."""
        gather, scatter = self.traffic(kind, key, zero, shapes)
        hidden, later = (0, 0), (gather, scatter)
        if "weights" in overlap:
            hidden, later = (gather, near(gather + scatter)), (0, 0)
        f, g = self.passes(kind, key, shapes, overlap, types, *hidden)
        entry = self.kept(self.costs[kind][key], again)
        transfer = self.quanta(entry.get("transfer_ns", 0))
        f, g = max(f, transfer), max(g, transfer)
        extra = self.extra(kind, key, again, types)
        entries = self.costs[kind][key].get("activations", ())
        if again == "full" and all(x.get("reruns", True) for x in entries
                                   if x.get("recompute", "none") == again):
            extra = self.passes(kind, key, shapes, overlap, types, 0, 0)[0]
        gather, scatter = map(self.quanta, later)
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
        one, other = (self.tree.time(what, *x) for x in zip(shapes, sizes))
        return near(one + other)

    def traffic(self, kind, key, zero, shapes):
        """Return what ZeRO gathers and scatters in each pass."""
        weights, gradients, _ = self.sizes(kind, key)
        gather = zero == 3 and self.both("all-gather", weights, shapes[4:])
        scatter = zero > 1 and self.both("reduce-scatter", gradients,
                                         shapes[4:])
        return gather, scatter

    def kept(self, cost, again):
        """Return the entry of a recompute choice, if there is one."""
        return next((x for x in cost.get("activations", ())
                     if x.get("recompute", "none") == again), None)

    def memory(self, kind, strategy, case):
        """Return bytes held all the time, per micro-batch, and at work."""
        dp, *key, zero, again = strategy
        key = *key, case.batch // dp
        cost = self.costs[kind].get(key, {})
        kept = self.kept(cost, again)
        if kept is None:
            return None
        work = cost.get("working_bytes", 0) + kept.get("working_bytes", 0)
        static = kept.get("static_bytes", 0)
        per = self.rule.get("weight_bytes", 2)
        parts = dp * key[1], dp * key[1] // key[2]
        for w, g, x, z in zip(*self.sizes(kind, key), parts):
            static += up(w, z if zero == 3 else 1)
            static += up(x, z * case.replicas if case.spread else
                         z if zero else 1)
            static += up(g, z if zero > 1 else 1)
            if "buffer_bytes" in self.rule:
                buffers = near(w * self.rule["buffer_bytes"])
                static += up(near(buffers / per), 1)
            work += (w * (zero == 3) + g * (zero > 1)) * (z > 1)
        if dp * key[1] > 1:
            work += self.rule.get(f"zero_{zero}_bytes", 0)
        return static, kept["kept_bytes"], work

    def shards(self, strategy):
        """Return over how many ranks a boundary activation is split."""
        dp, tp, cp, _, split, *_ = strategy
        split = split or self.job.get("sequence_parallel") is True
        return dp * cp * (tp if split else 1)

    def receive(self, sizes, shards, batch, link):
        """Return what it takes to receive from another block over a link."""
        found = self.quanta(link.latency)
        for size in sizes:
            part = near(Fraction(size * batch * link.times,
                                 shards * link.over))
            found += self.quanta(near(near(part / link.port) * 10**9))
        return found if sizes else 0

    def inside(self, chosen):
        """Return what a stage of layers with their own strategies has.

        The layers that are alike; the strategies of the first and the last
        one; what changes its layout, with its shards forward and backward.
        """
        layers = Counter((self.kinds[i], x) for i, x in chosen.items())
        moves = tuple((size, self.shards(chosen[v]), self.shards(chosen[u]))
                      for u, v, size in self.edges
                      if size and {u, v} <= chosen.keys()
                      and (chosen[u][:3] != chosen[v][:3]
                           or chosen[u][4] != chosen[v][4]))
        ranks = sorted(chosen, key=self.order.index)
        return (tuple((*x, c) for x, c in sorted(layers.items())),
                (chosen[ranks[0]], chosen[ranks[-1]]), moves)

    def rows(self, case, n, starts, alone):
        """Return strategies with the least load, and memory, of all kinds.

        Those with n devices; then those that no other beats in everything.
        """
        every, lean = [], []
        for x in self.rules.choices(case):
            *degrees, _, zero, again = x
            if devices_of(x) == n and self.rules.several(x, case, alone):
                row, key = [], (*x[1:5], case.batch // x[0])
                shapes = {(self.shapes(*degrees, y), self.names(y, n)[0])
                          for y in starts}
                for kind in range(len(self.costs)):
                    held = self.memory(kind, x, case)
                    row.append(held and (min(sum(self.load(
                        kind, key, zero, again, y, case.overlap, z))
                        for y, z in shapes), *held))
                every.append((x, row))
        every.sort(key=lambda x: sum(y[0] for y in x[1] if y))
        for x, row in every:
            if not any(self.shards(y) >= self.shards(x) and all(
                    not a or (b and all(map(le, b, a)))
                    for a, b in zip(row, other)) for y, other in lean):
                lean.append((x, row))
        return every, lean

    def options(self, shape, case, n, starts, alone, lean):
        """Return (least load, most in flight, strategy) of a stage, sorted."""
        (counts, enter, leave, passing), batch = shape, case.batch
        own, found = [(i, c) for i, c in enumerate(counts) if c], []
        for x, row in self.rows(case, n, starts, alone)[lean]:
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
        return min((self.receive(sizes, shards, batch, x)
                    for x in self.tree.nearest(n)),
                   default=NEVER) if sizes else 0
