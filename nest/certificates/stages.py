"""What stages of a plan take where they are, and what they take at least.

Standard library only.
"""
from fractions import Fraction
from itertools import product
from math import gcd, prod

from .networks import near, remember
from .prices import NEVER
from .rules import devices_of, up

SCALE = 2**30  # prices of bytes are parts of this
MOST_PACKED = 4096  # sets of layers of a problem that are packed

class Stages:
    """Stages of plans with R replicas and micro-batches of B samples."""

    def __init__(self, problem, case):
        self.problem, self.job, self.case = problem, problem.job, case
        self.offsets, self.places, self.sizes = {}, {}, {*map(
            devices_of, problem.rules.choices(case))}
        self.rules = problem.rules
        self.replica_stride = problem.devices // case.replicas
        self.widths = sorted(x for x in self.sizes if x <= self.replica_stride)
        self.starts = [r * self.replica_stride for r in range(case.replicas)]
        self.count = self.rules.count(case)
        self.gpipe = self.job.get("schedule") == "gpipe"
        self.mixes = self.job.get("granularity") == "layer"
        # The decimal number in the file, not the nearest double.
        self.share = Fraction(str(float(
            self.job.get("overlap", {}).get("gradients", 0))))
        remember(self, "terms", "layer_groups", "receive", "sync", "links",
                 "layered", "lowest_sync", "leanest", "spread")

    def alone(self, k):
        """Return where blocks of all replicas start, up to symmetry."""
        period = self.problem.period
        return tuple(sorted({(s + k) % period for s in self.starts}))

    def sync(self, kind, strategy, k):
        """Return update and sync of a layer at the end of the step."""
        p, (dp, tp, cp, ep, _, zero, _) = self.problem, strategy
        sizes = p.sizes(kind, (*strategy[1:5], self.case.batch // dp))
        (weights, gradients, _), parts = sizes, (dp * cp, dp * cp // ep)
        n, total = dp * tp * cp, 0
        tiles = p.tree.tiles(k, n, self.replica_stride)
        alone = tuple(sorted({y for x in tiles for y in self.alone(x)}))
        shapes = p.shapes(dp, tp, cp, ep, alone)
        joined = tuple(tuple(s + x for s in self.starts) for x in tiles)
        joint = [p.tree.shapes(*x, n, joined)
               for x in ((parts[0], tp), (parts[1], tp * ep))]
        if self.case.spread:
            total = near(p.both("reduce-scatter", gradients, joint)
                         + p.both("all-gather", weights, joint))
            parts = [x * self.case.replicas for x in parts]
        elif zero:
            if zero == 1:
                total = p.both("reduce-scatter", gradients, shapes[4:])
            if zero < 3:
                total = near(total + p.both("all-gather", weights, shapes[4:]))
            one = p.tree.shapes(1, 1, n, joined)
            for size in map(up, gradients, parts):
                total = near(total + p.tree.time("all-reduce", one, size))
        else:
            parts = 1, 1
            for shape, size in zip(joint, gradients):
                total = near(total + p.tree.time("all-reduce", shape, size))
        hidden, traffic = self.job.get("gradient_sync_overlap", 0), 0
        total = near(total * near(1 - hidden))
        rate = p.rate_of(p.names(self.alone(k), n)[1])
        if rate:
            w, g, x = (sum(map(up, size, parts)) for size in sizes)
            traffic = near(near(Fraction(g + 2 * w + 2 * x) / rate) * 10**9)
        if "gradients" in self.case.overlap:
            return p.quanta(traffic), p.quanta(total)
        return p.quanta(near(total + traffic)), 0

    def terms(self, layers, first, passing, k):
        """Return F, G, update and sync of a stage without what it receives.

        Then the W of G, the bytes that it always holds, that a micro-batch
        keeps and that a layer works with. Where the first layer is as stated,
        and such sizes pass.
        """
        p, sums = self.problem, [0] * 8
        for kind, strategy, c in layers:
            *degrees, _, zero, again = strategy
            held = p.memory(kind, strategy, self.case)
            if held is None:
                return None
            key = *strategy[1:5], self.case.batch // strategy[0]
            shapes = p.shapes(*degrees, self.alone(k))
            types, _ = p.names(self.alone(k), devices_of(strategy))
            args = shapes, self.case.overlap, types
            layer = (*p.load(kind, key, zero, again, *args),
                     *self.sync(kind, strategy, k),
                     self.later(kind, key, zero, *args), *held)
            work = max(sums[7], layer[7])
            sums = [x + c * y for x, y in zip(sums, layer)]
            sums[7] = work
        shards = p.shards(first)
        sums[6] += sum(up(x * self.case.batch, shards) for x in passing)
        return sums

    def later(self, kind, key, zero, shapes, overlap, types):
        """Return what of a backward pass is for gradients of weights."""
        p, times = self.problem, []
        cost, share = p.costs[kind][key], self.job.get(
            "weight_backward_fraction", Fraction(1, 2))
        named = {x["device"]: x for x in cost.get("by_device", ())}
        for x in types or [None]:
            entry = named.get(x, cost)
            time = entry.get("weight_backward_ns")
            times.append(near(entry["backward_ns"] * share) if time is None
                         else time)
        moved = "weights" not in overlap and p.traffic(
            kind, key, zero, shapes)[1]
        return p.quanta(max(times)) + p.quanta(moved)

    def room(self, k, n):
        """Return the bytes of the devices of blocks of n at an offset."""
        return self.problem.room_of(self.problem.names(self.alone(k), n)[1])

    def flight(self, position):
        """Return the micro-batches in flight so far from the last stage."""
        return self.count if self.gpipe else min(self.count, position)

    def receive(self, sizes, shards, first, n, other, m):
        """Return what blocks of n devices take to receive from others of m."""
        return max(self.problem.receive(sizes, shards, self.case.batch, x)
                   for x in self.links(first, n, other, m)) if sizes else 0

    def links(self, first, n, other, m):
        """Return the links between two blocks of all replicas."""
        return self.problem.tree.link((*self.starts,), first, n, other, m)

    def stage(self, shape, strategy, k, position, before, after):
        """Return F, G and Y of a stage, or None where it does not fit.

        At offset k, so far from the end, between stages of so many
        devices, 0 for none.
        """
        layers = self.layer_groups(shape[0], strategy)
        return self.mixed(shape, layers, (strategy, strategy), (), k,
                          position, before, after)

    def layer_groups(self, counts, strategy):
        """Return the layers of a stage that are alike."""
        return tuple((i, strategy, c) for i, c in enumerate(counts) if c)

    def mixed(self, shape, layers, ends, moves, k, position, before, after):
        """Return the same of a stage whose layers have their own strategies.

        With those of its first and its last layer, and (bytes, shards forward
        and backward) of what changes its layout inside.
        """
        n = devices_of(ends[0])
        terms = self.chunk(shape, layers, ends, moves, k,
                           before and (k - before, before),
                           after and (k + n, after))
        if not terms:
            return None
        f, g, update, sync, _, fixed, retained, work = terms
        held = fixed + work + self.flight(position) * retained
        if held > self.room(k % self.problem.period, n):
            return None
        return f, g, update + sync - min(self.hidden(sync), g)

    def chunk(self, shape, layers, ends, moves, k, before, after):
        """Return the terms of a chunk, with what it receives.

        Between blocks, as (offset, devices), or none. The block itself is one
        of them where only the layout changes.
        """
        n, (_, enter, leave, passing) = devices_of(ends[0]), shape
        wide = [*map(self.problem.shards, ends)]
        terms = self.terms(layers, ends[0], passing, k % self.problem.period)
        if not terms:
            return None
        f, g, *rest = terms
        for size, *shards in moves:
            f, g = (x + self.receive((size,), y, k, n, k, n)
                    for x, y in zip((f, g), shards))
        if before:
            f += self.receive(enter, wide[0], k, n, *before)
        if after:
            g += self.receive(leave, wide[1], k, n, *after)
        return f, g, *rest

    def layered(self, u, v, n, position, steps=0):
        """Return the least load of a stage of layers of their own.

        Or of so many loads and its sync. With at least the micro-batches in
        flight of a stage so far from the end, and the price of a byte that
        bounds it best: whatever the price, what fits costs no less than the
        cheapest layers, less the price of all bytes. None where nothing fits.
        """
        p, q, lines = self.problem, self.flight(position), []
        counts, enter, leave, passing = p.shape(u, v)
        rows = p.rows(self.case, n, self.places[n], self.whole(u, v))[0]
        if not (wide := {p.shards(x) for x, _ in rows}):
            return None
        room = p.room - q * sum(min(up(x * self.case.batch, y) for y in wide)
                                for x in passing)
        base = max(steps, 1) * sum(min(p.nearest(x, y, self.case.batch, n)
                               for y in wide) for x in (enter, leave))
        busy = 0
        for kind, c in enumerate(counts):
            options = [(x, *row[kind]) for x, row in rows if c and row[kind]]
            if c and not options:
                return None
            busy = max([busy, *([min(x[4] for x in options)] if c else [])])
            lines.append([
                (c * (steps * load + self.lowest_sync(kind, x, n) if steps
                      else load), c * (held + q * retained))
                for x, load, held, retained, _ in options] or [(0, 0)])
        room -= busy
        if sum(min(x[1] for x in y) for y in lines) > room:
            return None
        best, low, price, above = 0, 0, 0, None
        while above is None or price > low:
            chosen = [min((x[0] * SCALE + price * x[1], x[1]) for x in y)
                      for y in lines]
            over = sum(x[1] for x in chosen) - room
            best = max(best, sum(x[0] for x in chosen) - price * room)
            if over <= 0:
                above = price
            else:
                low = price
            price = 4 * price + SCALE if above is None else (low + above) // 2
        return base + up(best, SCALE)

    def spread(self, n):
        """Find where blocks of n devices can start; return that of all replicas."""
        ks = range(0, self.replica_stride - n + 1, gcd(*self.sizes))
        self.offsets[n] = {x % self.problem.period for x in ks}
        starts = self.places[n] = frozenset(map(self.alone, ks))
        return starts

    def packed(self, bound):
        """Return the fewest devices of blocks that hold all layers.

        Whatever layers are together and in which order passes run: a block
        works less than the bound, and has room for a micro-batch in flight.
        """
        total, fillings = self.problem.counts[-1], []
        if prod(x + 1 for x in total) > MOST_PACKED:
            return self.pooled(bound)
        sets = [*product(*(range(x + 1) for x in total))]
        for n in self.widths:
            min_terms = [self.leanest(kind, n) for kind in range(len(total))]
            fits = {x for x in sets if self.holds(x, min_terms, bound)}
            fillings += [(n, x) for x in fits if not any(
                (*x[:i], x[i] + 1, *x[i + 1:]) in fits
                for i in range(len(total)))]
        fewest = {}
        for x in sets:
            sums = [fewest[y] + n for n, z in fillings if (y := tuple(
                max(a - b, 0) for a, b in zip(x, z))) != x]
            fewest[x] = min(sums, default=NEVER) if any(x) else 0
        return min(fewest[sets[-1]], NEVER)

    def leanest(self, kind, n):
        """Return the least that a layer works, holds and works with."""
        rows = self.problem.rows(self.case, n, self.spread(n), True)[0]
        rows = [(x, row[kind]) for x, row in rows if row[kind]]
        work = [self.count * y[0] + self.lowest_sync(kind, x, n)
                for x, y in rows]
        held = [y[1] + y[2] for _, y in rows]
        return [min(x, default=NEVER) for x in (work, held, [
            y[3] for _, y in rows])]

    def holds(self, layers, min_terms, bound):
        """Whether a block has so many layers of every kind."""
        amounts = [(c, *x) for c, x in zip(layers, min_terms) if c]
        held = sum(c * held for c, _, held, _ in amounts)
        held += max((busy for *_, busy in amounts), default=0)
        return (held <= self.problem.room
                and sum(c * work for c, work, *_ in amounts) < bound)

    def pooled(self, bound):
        """Return fewest devices, of blocks that share time and memory."""
        work = held = 0
        for kind, c in enumerate(self.problem.counts[-1]):
            min_terms = [(n, *self.leanest(kind, n)) for n in self.widths]
            work += c * min((n * x for n, x, *_ in min_terms), default=NEVER)
            held += c * min((n * x for n, _, x, _ in min_terms), default=NEVER)
        return min(NEVER, max(up(work, bound - 1) if bound > 1 else 0,
                              up(held, self.problem.room or 1)))

    def lowest_sync(self, kind, strategy, n):
        """Return the least that update and sync of a layer take anywhere.

        Rounded up, what is hidden of all layers is no less than of their sum.
        """
        times = []
        for k in self.offsets[n]:
            update, sync = self.sync(kind, strategy, k)
            times.append(update + sync - up(self.share * sync, 1))
        return min(times)

    def hidden(self, sync):
        """Return what of a sync can run after the last backward pass."""
        return sync and (2 * self.share * sync + 1) // 2
