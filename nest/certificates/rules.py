"""Which plans a job allows, as docs/cost-model.md has it: cases and rules.

Standard library only. A case is what one entry of a proof is about: plans of
one batch and one way to run, whose stages share what the job wants shared.
"""
from collections import Counter, defaultdict
from itertools import combinations, product
from math import gcd
from re import fullmatch
from typing import NamedTuple

from .networks import remember

FIELDS = "dp", "tp", "cp", "ep", "sequence_parallel", "zero", "recompute"
CLOSED = "1f1b", "gpipe"  # with a formula, if a block has one stage
WHOLE = {"full", "offload"}  # recompute that does not split backward passes

class ProofCase(NamedTuple):
    """R replicas, B samples, what overlaps, and whether the state is split.

    Then what all stages share, in the order of job.uniform, how many there
    are (0: any number), and whether plans are timed pass by pass.
    """

    replicas: int
    batch: int
    overlap: tuple = ()
    spread: bool = False
    shared: tuple = ()
    stages: int = 0
    timed: bool = False

def block_of(plan, chunk):
    """Return the block of a chunk, both from 0."""
    chunks, v = len(plan["stages"]), plan.get("virtual_stages", 1)
    if plan.get("placement", "loop") == "v":
        return min(chunk, chunks - 1 - chunk)
    return chunk % (chunks // v)

def up(x, parts):
    """Return a quotient rounded up."""
    return -(-x // parts)

def in_turn(forward, backward, ahead):
    """Return so many passes forward, then one of each, then what is left."""
    pairs = zip(forward[ahead:], backward)
    return [*forward[:ahead], *(x for pair in pairs for x in pair),
            *backward[max(len(forward) - ahead, 0):]]

def zero_bubble(r, blocks, count):
    """Return the passes of a block under zb-h1."""
    ahead, passes = min(count, blocks - r - 1), []
    passes += [(r, "F", m) for m in range(ahead)]
    for m in range(count):
        passes += [(r, "F", ahead + m)] * (ahead + m < count)
        passes += [(r, "I", m)] + [(r, "W", m - r)] * (m >= r)
    return passes + [(r, "W", m) for m in range(max(count - r, 0), count)]

def zero_bubble_v(r, blocks, count):
    """Return the passes of a block under zb-v."""
    max_passes, later_blocks = max(count, 2 * blocks - 1), blocks - r
    labels = ["Fa"] * (2 * later_blocks - 1) + ["Fb", "Fa"] * r
    labels += ["Fb", "Ib", "Wb"] * later_blocks
    for _ in range(max_passes - blocks):
        labels += ["Fa"] * (labels.count("Fa") < max_passes)
        labels += ["Ia", "Wa", "Fb", "Ib", "Wb"]
    labels += ["Ia", "Ib"] * r + ["Ia", "Wa"] * later_blocks + ["Wb"] * r + ["Wa"] * r
    chunks, ran, passes = {"a": r, "b": 2 * blocks - 1 - r}, Counter(), []
    for label in labels:
        passes.append((chunks[label[1]], label[0], ran[label]))
        ran[label] += 1
    return [x for x in passes if x[2] < count]

def named_passes(name, r, blocks, v, count):
    """Return the passes of a block under a schedule with a name."""
    if name == "zb-h1":
        return zero_bubble(r, blocks, count)
    if name == "zb-v":
        return zero_bubble_v(r, blocks, count)
    forward, backward = [], []
    for j in range(count * v):
        turn = j // blocks % v
        m = j // (blocks * v) * blocks + j % blocks if v > 1 else j
        forward.append((r + turn * blocks * (v > 1), "F", m))
        backward.append((r + (v - 1 - turn) * blocks * (v > 1), "B", m))
    ahead = (v > 1) + 1
    ahead = ahead * (blocks - r - 1) + (v - 1) * blocks
    return in_turn(forward, backward, count if name == "gpipe" else ahead)

def listed_passes(texts, chunks, count):
    """Return the passes that a plan lists for a block of some chunks.

    If they are those of each micro-batch: F, and B or I and W in this order.
    """
    passes, kinds = [], defaultdict(str)
    for text in texts:
        match = fullmatch("([0-9]{1,9})([FBIW])([0-9]{1,9})", text)
        if not match:
            return None
        passes.append((int(match[1]), match[2], int(match[3])))
        kinds[passes[-1][0], passes[-1][2]] += match[2]
    right = {*product(chunks, range(count))} == {*kinds}
    return passes if right and {*kinds.values()} <= {"FB", "FIW"} else None

def replay(lists, times, bytes_kept):
    """Return when the last pass ends, and what each block keeps at its peak.

    Times of chunks by kind of pass. None if passes wait for each other.
    """
    last, ends, free = len(times) - 1, {}, [0] * len(lists)
    todo, moved = [[*x][::-1] for x in lists], True
    while moved:
        moved = False
        for r, passes in enumerate(todo):
            while passes:
                chunk, kind, m = passes[-1]
                if kind == "F":
                    needs = ("F", chunk - 1, m) if chunk else None
                elif kind == "W":
                    needs = "B", chunk, m
                else:
                    needs = (("F", chunk, m) if chunk == last
                             else ("B", chunk + 1, m))
                if needs and needs not in ends:
                    break
                free[r] = max(free[r], ends.get(needs, 0)) + times[chunk][kind]
                if kind != "W":
                    ends["F" if kind == "F" else "B", chunk, m] = free[r]
                passes.pop()
                moved = True
    peaks = []
    for passes in lists:
        held = peak = 0
        for chunk, kind, _ in passes:
            held += {"F": bytes_kept[chunk], "I": 0}.get(kind, -bytes_kept[chunk])
            peak = max(peak, held)
        peaks.append(peak)
    return None if any(todo) else (max(free), peaks)

def devices_of(strategy):
    """Return the number of devices of a strategy."""
    return strategy[0] * strategy[1] * strategy[2]

class Rules:
    """What the job of a problem allows."""

    def __init__(self, job, devices, costs, kinds):
        self.job, self.devices = job, devices
        self.uniform = job.get("uniform", [])
        self.keys = sorted({x for kind in costs for x in kind})
        counts = [kinds.count(kind) for kind in {*kinds}]
        self.num_layers = len(kinds)
        self.chunks = job.get("virtual_stages", [1])
        names = job.get("schedule", "1f1b")
        self.names = (["1f1b", "gpipe", "zb-h1", "zb-v"] if names == "any"
                      else [names] if type(names) is str else names)
        self.equal = gcd(*(x for x in counts if x > 1))
        # Whether it matters how many stages there are; whether it is one.
        self.counted = (
            {*job} & {"pipeline_parallel", "micro_batch_count", "even_layers"}
            or not job.get("idle_devices", True))
        self.apart = ("pp" in job.get("zero_with", {})
                      or "pp" in job.get("sharded_with", ())
                      or "interleaving" in self.needs(job.get("overlap", ())))
        remember(self, "listed", "cases")

    def cases(self):
        """Return all cases, those of the fewest replicas first."""
        cases = []
        for replicas in range(1, self.devices + 1):
            for batch in sorted(self.job.get("micro_batches", [1])):
                if self.batches(replicas, batch):
                    for way, timed in product(self.ways(), self.timings()):
                        cases += self.families(
                            ProofCase(replicas, batch, *way, timed=timed))
        return cases

    def ways(self):
        """Return what can overlap, with a split optimizer state or not."""
        names = sorted(self.job.get("overlap", ()))
        return [(x, y) for y in sorted({False, *self.spreads()})
                for i in range(len(names) + 1)
                for x in combinations(names, i)
                if "gradients" in x or "gradients" not in self.needs(x)]

    def timings(self):
        """Return whether plans are timed pass by pass: some, and others."""
        closed = self.job.get("schedule", "1f1b") in CLOSED
        chunks = self.chunks
        return ([False] * (closed and 1 in chunks)
                + [True] * (not closed or max(chunks) > 1))

    def passes(self, plan, count):
        """Return the passes of every block of a plan, if the job allows them.

        As (chunk, F, B, I or W, micro-batch). None if it does not.
        """
        v, order = plan.get("virtual_stages", 1), plan.get("order")
        location, chunks = plan.get("placement", "loop"), len(plan["stages"])
        blocks, rest = divmod(chunks, max(v, 1))
        schedule = self.job.get("schedule", "1f1b")
        leaves = schedule == "any" or type(schedule) is list
        if (rest or not v or (v > 1 and blocks < 2)
                or location not in ("loop", "v")
                or (not leaves and order is not None)):
            return None
        name = order if leaves else schedule
        if type(name) is str:
            fixed = 1 + (name == "zb-v")
            if (name not in self.names
                    or (location == "v") != (name == "zb-v")
                    or v not in (self.chunks if name == "1f1b" else [fixed])
                    or (schedule == "any" and v not in self.chunks)):
                return None
            return [named_passes(name, r, blocks, v, count)
                    for r in range(blocks)]
        if (schedule != "any" or type(name) is not list or len(name) != blocks
                or v not in self.chunks or (location == "v" and v != 2)):
            return None
        members = [[i for i in range(chunks) if block_of(plan, i) == r]
               for r in range(blocks)]
        lists = [listed_passes(x, y, count) for x, y in zip(name, members)]
        return None if None in lists else lists

    def includes(self, case):
        """Whether a case with a legal batch is one of them."""
        way = case._replace(shared=(), stages=0)
        return (way[2:4] in self.ways() and case.timed in self.timings()
                and case in self.families(way))

    def spreads(self):
        """Return whether the optimizer may be distributed, as a list."""
        return [True] if self.job.get("distributed_optimizer") else []

    def needs(self, overlap):
        """Return what is needed for such overlap."""
        named = self.job.get("overlap_needs", {})
        return {need for name in overlap for need in named.get(name, ())}

    def batches(self, replicas, batch):
        """Whether the job allows so many replicas and samples."""
        job = self.job
        if not 1 <= replicas <= self.devices:
            return False
        whole = job["global_batch"] % (replicas * batch) == 0
        return (replicas in (job.get("replicas") or [replicas])
                and batch in job.get("micro_batches", [1])
                and (whole or job.get("uneven_batches", False))
                and (job.get("idle_devices", True)
                     or self.devices % replicas == 0))

    def families(self, case):
        """Return the cases of a batch, by what stages share and their number.

        The number matters to the proof only where stages are even.
        """
        even = self.job.get("even_layers", False) and not case.timed
        counts = [x for x in range(1, self.num_layers + 1)
                  if self.equal % x == 0] if even else [0]
        return [case._replace(shared=x, stages=n)
                for x, n in product(sorted(self.listed(case)), counts)
                if not n or self.suits(case._replace(shared=x), n)]

    def common(self, strategy):
        """Return what a strategy has of what all stages share."""
        fields = dict(zip(FIELDS, strategy))
        fields["devices"] = devices_of(strategy)
        return tuple(fields[x] for x in self.uniform)

    def choices(self, case):
        """Return the strategies that solvers list, of one case."""
        return self.listed(case._replace(
            shared=(), stages=0, timed=False))[case.shared]

    def listed(self, case):
        """Return the strategies that solvers list, by what stages share."""
        job, lowest = self.job, min(self.job.get("zero", [0]))
        by_shared = {} if self.uniform else {(): []}
        for key in self.keys:
            batch, rest = divmod(case.batch, key[4])
            zeros = job.get("zero", [0])
            if not ("zero" in self.uniform or "zero_with" in job):
                single = case.spread or batch * key[1] == 1
                zeros = [lowest] if single else zeros
            for x in product(zeros, job.get("recompute", ["none"])):
                strategy = batch, *key[:4], *x
                if not rest and self.legal(strategy, case):
                    shared = self.common(strategy)
                    by_shared.setdefault(shared, []).append(strategy)
        return {shared: sorted(x) for shared, x in by_shared.items()}

    def legal(self, strategy, case):
        """Whether plans of a case may have a strategy."""
        job, (dp, tp, cp, ep, split, zero, again) = self.job, strategy
        may = job.get("sequence_parallel", False)
        splits = split or may is True
        may = may if type(may) is list and tp > 1 else [False]
        named = ("data", dp), ("tensor", tp), ("context", cp), ("expert", ep)
        needs = self.needs(case.overlap)
        return (case.batch % dp == 0 and dp * cp % ep == 0 and split in may
                and devices_of(strategy) <= self.devices // case.replicas
                and zero in job.get("zero", [0])
                and again in job.get("recompute", ["none"])
                and all(x in (job.get(f"{name}_parallel") or [x])
                        for name, x in named)
                and not (case.spread and zero > 1)
                and (splits or tp == 1 or "sequence_parallel" not in needs)
                and not ("no-full-recompute" in needs and again == "full")
                and self.sharded(strategy, r=case.replicas, cp=cp, tp=tp,
                                 ep=ep))

    def sharded(self, strategy, **counts):
        """Whether ZeRO is what the job wants of so many ranks or stages."""
        dp, _, cp, _, _, zero, _ = strategy
        job = self.job
        return (all(zero in job.get("zero_with", {}).get(name, [zero])
                    for name, x in counts.items() if x > 1)
                and ((zero > 1 and dp * cp > 1) or not any(
                    x > 1 and name in job.get("sharded_with", ())
                    for name, x in counts.items())))

    def several(self, strategy, case, alone, v=1):
        """Whether a stage may have a strategy, alone or with others."""
        return (self.sharded(strategy, pp=2 - alone) and
                (alone or v > 1
                 or "interleaving" not in self.needs(case.overlap)))

    def count(self, case):
        """Return the micro-batches of a replica."""
        return up(self.job["global_batch"], case.replicas * case.batch)

    def suits(self, case, stages):
        """Whether plans of a case may have so many stages."""
        job, count = self.job, self.count(case)
        shared = dict(zip(self.uniform, case.shared))
        n = shared.get("devices") or devices_of(
            [shared.get(x, 1) for x in FIELDS])
        rule = job.get("micro_batch_count", "any")
        return (stages in (job.get("pipeline_parallel") or [stages])
                and stages == (case.stages or stages)
                and not (rule == "at-least-stages" and count < stages)
                and not (rule == "multiple-of-stages" and count % stages)
                and (job.get("idle_devices", True)
                     or stages * n * case.replicas == self.devices))
