"""Which plans a job allows, as docs/cost-model.md has it: cases and rules.

Standard library only. A case is what one entry of a proof is about: plans of
one batch and one way to run, whose stages share what the job wants shared.
"""
from itertools import combinations, product
from math import gcd
from typing import NamedTuple

from .networks import remember

FIELDS = "dp", "tp", "cp", "ep", "sequence_parallel", "zero", "recompute"

class ProofCase(NamedTuple):
    """R replicas, B samples, what overlaps, and whether the state is split.

    Then what all stages share, in the order of job.uniform, and how many
    there are (0: any number).
    """

    replicas: int
    batch: int
    overlap: tuple = ()
    spread: bool = False
    shared: tuple = ()
    stages: int = 0

def up(x, parts):
    """Return a quotient rounded up."""
    return -(-x // parts)

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
                    for way in self.ways():
                        cases += self.families(
                            ProofCase(replicas, batch, *way))
        return cases

    def ways(self):
        """Return what can overlap, with a split optimizer state or not."""
        names = sorted(self.job.get("overlap", ()))
        return [(x, y) for y in sorted({False, *self.spreads()})
                for i in range(len(names) + 1)
                for x in combinations(names, i)
                if "gradients" in x or "gradients" not in self.needs(x)]

    def includes(self, case):
        """Whether a case with a legal batch is one of them."""
        way = case._replace(shared=(), stages=0)
        return way[2:4] in self.ways() and case in self.families(way)

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
        even = self.job.get("even_layers", False)
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
        return self.listed(case._replace(shared=(), stages=0))[case.shared]

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

    def several(self, strategy, case, alone):
        """Whether a stage may have a strategy, alone or with others."""
        return (self.sharded(strategy, pp=2 - alone) and
                (alone or "interleaving" not in self.needs(case.overlap)))

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
