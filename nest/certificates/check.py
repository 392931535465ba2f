"""nest-check PROBLEM CERTIFICATE: a plan's step time, and that none is faster.

Or that no plan fits: see docs/certificates.md. Needs six files beside this one
and the standard library. Exit code 0: verified, 1: rejected, 2: bad input.
"""
import sys
from itertools import accumulate
from operator import add, le, mul

from .documents import BadInputError, parse, read
from .prices import NEVER, Problem
from .rules import CLOSED, FIELDS, WHOLE, ProofCase, block_of, devices_of, replay, up
from .stages import Stages

MOST_LABELS, MOST_STAGES = 100_000, 2**20  # of the proof of a split
MOST_PASSES = 2**20  # forward, of a plan that is timed pass by pass

class RejectedError(Exception):
    """The certificate does not hold; maybe with a faster plan's time.

    And ``None`` behind it if the bounds say so, but maybe no plan takes it.
    """

def expected(where, right, value, why):
    """Reject a value that is not the right one."""
    if value != right:
        right, value = str(right)[:200], str(value)[:200]
        raise RejectedError(f"{where}: expected {right}, got {value}; {why}")

class Split(Stages):
    """What plans of a case take, and the proof that none is below a bound."""

    def whole(self, u, v):
        """Whether a stage has all layers, where it may then have others."""
        return self.rules.apart and v - u == len(self.problem.sets) - 1

    def bounds(self, bound):
        """Return what stages a plan below a bound may have, last ones first.

        As (set in front, set with it, devices, least load).
        """
        p, P, most = self.problem, self.replica_stride, (bound - 1) // self.count
        last, light, few = len(p.sets) - 1, {}, self.flight(1)
        least = [[[NEVER] * len(p.costs)] * 2]
        for n in sorted(self.sizes):
            if n <= P:
                starts = self.spread(n)
                rows = [x for y in {False, self.rules.apart} for x in p.rows(
                    self.case, n, starts, y)[1]]
                kinds = [[x for x in kind if x] or [(NEVER, NEVER, 0, 0)]
                         for kind in zip(*(row for _, row in rows))]
                light[n] = [min(x[0] for x in kind) for kind in kinds]
                held = [min(x[1] + few * x[2] for x in y) for y in kinds]
                least.append([[n * x for x in r] for r in (light[n], held)])
        work, held = ([min(x) for x in zip(*rows)] for rows in zip(*least))
        # Sums up to the end of every set: a stage has what they differ by.
        light = {n: [sum(map(mul, x, r)) for x in p.counts]
                 for n, r in light.items()}
        work, held = ([sum(map(mul, x, r)) for x in p.counts]
                      for r in (work, held))
        slack = P * most - work[last]
        if slack < 0 or P * p.room < held[last]:
            return []
        left, edges = [NEVER] * last + [0], []
        for u in range(last - 1, -1, -1):
            for v in p.after(u, self.case.stages):
                waste = slack + work[v] - work[u]
                for n, r in light.items() if left[v] < NEVER else ():
                    if r[v] - r[u] > most or n * most > waste:
                        continue
                    load = self.lowest(u, v, n, left[v] + 1)
                    if load is not None and load <= most:
                        edges.append((u, v, n, load))
                        left[u] = min(left[u], left[v] + 1)
            if len(edges) > MOST_STAGES:
                raise RejectedError("proof: too many stages")
        return edges

    def lowest(self, u, v, n, position):
        """Return the least load of a stage that is so far from the end."""
        if self.mixes:
            return self.layered(u, v, n, position)
        options = self.problem.options(
            self.problem.shape(u, v), self.case, n, self.places[n],
            self.whole(u, v), 1)
        need = self.flight(position)
        return next((x[0] for x in options if x[1] >= need), None)

    def cheapest(self, edges, price):
        """Return the least load, devices paid for, of a path to every set."""
        found = [0] + [NEVER] * (len(self.problem.sets) - 1)
        for u, v, n, load in reversed(edges):
            cost = found[u] + load + price * n
            if cost < found[v]:
                found[v] = cost
        return found

    def longest(self, bound, cost, price, high):
        """Return what the longest load of plans below a bound is at most."""
        gap = bound - cost + price * self.replica_stride
        if gap <= 0 or cost >= NEVER:
            return -1
        more = self.count - 1
        return min(high, up(gap, more) - 1) if more else high

    def prove(self, bound, prices):
        """Return what the cheapest paths cost, and the labels of the rest.

        Of plans that are timed pass by pass the fewest devices cost 1 each.
        """
        if self.case.timed:
            fewest = self.packed(bound)
            if fewest <= self.replica_stride:
                raise RejectedError("proof: blocks may take less", 0, None)
            return [[1, fewest] if fewest < NEVER else [0, None]], 0
        edges, high, costs = self.bounds(bound), (bound - 1) // self.count, []
        for price in prices:
            cost = self.cheapest(edges, price)[-1]
            costs.append([price, cost] if cost < NEVER else [0, None])
            high = self.longest(bound, cost, price, high)
            edges = [x for x in edges if x[3] <= high]
        price = prices[-1] if prices else 0
        return costs, self.search(bound, edges, price) if edges else 0

    def ways(self, u, v, n, position):
        """Return (least load, any, strategy) of a stage, sorted.

        Where layers have their own: (least load, what a step takes beyond
        that, None) if it has all layers, else with 0.
        """
        if not self.mixes:
            return self.problem.options(
                self.problem.shape(u, v), self.case, n, self.places[n],
                self.whole(u, v), 0)
        load, rest = self.layered(u, v, n, position), 0
        if load is not None and v - u == len(self.problem.sets) - 1:
            time = self.layered(u, v, n, position, self.count)
            rest = max(time - self.count * load, 0)
        return [] if load is None else [(load, rest, None)]

    def search(self, bound, edges, price):  # noqa: C901
        """Return how many ends of plans below the bound there are."""
        p, P, more, count = self.problem, self.replica_stride, self.count - 1, 0
        front, behind = self.cheapest(edges, price), [NEVER] * len(p.sets)
        behind[-1], last = 0, len(p.sets) - 1
        for u, v, n, load in edges:
            behind[u] = min(behind[u], behind[v] + load + price * n)
        # In front of a set: its stages, and by devices (least sum, least max).
        into, rest = [[] for _ in p.sets], [{} for _ in p.sets]
        rest[0][0] = 0, 0
        for u, v, n, load in reversed(edges):
            whole = front[u] + load + price * (n - P) + behind[v]
            if whole + more * load < bound:
                into[v].append((u, n))
                for k, (total, pace) in rest[u].items():
                    if k + n <= P:
                        a, b = rest[v].get(k + n, (NEVER, NEVER))
                        new = min(a, total + load), min(b, max(pace, load))
                        rest[v][k + n] = new
        # Labels (sum, largest F + G, or F and G, largest Y), by set, devices
        # of the stage in front, and (offset, stages, devices of this one).
        exact = self.rules.counted
        table = [{} for _ in p.sets]
        for n in self.places:
            ends = range(n, P + 1)
            table[last][n] = {(e, 0, 0): [(0, 0, 0, 0)] for e in ends}
        steps = ((v, x, y) for v in range(last, 0, -1) for x in into[v]
                 for y in table[v].get(x[1], {}).items())
        for v, (u, n), ((e, done, m), labels) in steps:
            shape, k, here = p.shape(u, v), e - n, table[u]
            total, pace = rest[u].get(k, (NEVER, 0))
            lowest_load = min(x[0] for x in labels) + total
            after = done + 1 if exact else min(done + 1, self.count)
            fronts = [x for x in self.places if x <= k] if u else [0]
            for load, beyond, strategy in self.ways(u, v, n, done + 1):
                if lowest_load + load + more * max(load, pace) >= bound:
                    break
                for q in fronts:
                    own = (self.stage(shape, strategy, k, done + 1, q, m)
                           if strategy else (load, 0, beyond))
                    for s, a, b, y in labels if own else ():
                        f, g = own[:2] if self.gpipe else (own[0] + own[1], 0)
                        a, b, y = max(a, f), max(b, g), max(y, own[2])
                        new = s + own[0] + own[1], a, b, y
                        time = new[0] + total + more * max(a + b, pace) + y
                        if time < bound and u:
                            known = here.setdefault(q, {})
                            known = known.setdefault((k, after, n), [])
                            if not any(all(map(le, x, new)) for x in known):
                                known[:] = [x for x in known if not all(
                                    map(le, new, x))] + [new]
                            count += 1
                        elif time < bound and (not exact or self.rules.suits(
                                self.case, after)):
                            raise RejectedError(f"a plan takes {time}", time,
                                                *[] if strategy else [None])
            if count > MOST_LABELS:
                raise RejectedError("proof: too many labels")
        return count

def score(problem, plan):
    """Return the step time of a plan in quanta."""
    stages, rules, at, chunks = plan["stages"], problem.rules, 0, []
    v = plan.get("virtual_stages", 1)
    chosen = [[tuple(s.get(y, False) if y == FIELDS[4] else s[y]
                     for y in FIELDS) for s in (
                         x["strategies"] if "strategies" in x
                         else [x["strategy"]] * len(x["layers"]))]
              for x in stages]
    even = problem.job.get("even_layers", False) and len(stages)
    timed = v > 1 or problem.job.get("schedule", "1f1b") not in CLOSED
    case = ProofCase(
        plan["replicas"], plan["micro_batch"],
        tuple(sorted(plan.get("overlap", ()))),
        plan.get("distributed_optimizer", False),
        rules.common(chosen[0][0]), 0 if timed else even, timed)
    if not rules.batches(*case[:2]):
        raise RejectedError("plan: replicas and samples that the job has not")
    if not rules.includes(case):
        raise RejectedError("plan: overlap or shared strategies that the job "
                            "has not")
    split = Stages(problem, case)
    if timed and len(stages) * split.count > MOST_PASSES:
        raise RejectedError("plan: too many passes")
    lists = rules.passes(plan, split.count if timed else 0)
    if lists is None:
        raise RejectedError("plan: chunks or passes that the job has not")
    at_block = [block_of(plan, i) for i in range(len(stages))]
    devices = [x["devices"] for x in stages]
    offsets = [0, *accumulate(devices[:len(lists)])]
    for i, (x, strategies) in enumerate(zip(stages, chosen)):
        layers = [problem.layers.get(y, -1) for y in x["layers"]]
        own = sum({1 << max(y, 0) for y in layers})
        end = problem.at.get(problem.sets[at] | own, 0)
        found, r = None, at_block[i]
        if (min(layers) >= 0 and problem.sets[end] - problem.sets[at] == own
                and end in problem.after(at, even)
                and len(layers) == own.bit_count() == len(strategies)
                and offsets[-1] <= split.replica_stride and devices[i] == devices[r]
                and all(devices_of(y) == x["devices"]
                        and rules.legal(y, case)
                        and rules.common(y) == case.shared
                        and rules.several(y, case, len(lists) == 1, v)
                        and (y[6] not in WHOLE or not any(
                            chunk == i and kind in "IW"
                            for chunk, kind, _ in lists[r]))
                        for y in strategies)):
            groups, ends, moves = problem.inside(dict(zip(layers, strategies)))
            chunks.append((problem.shape(at, end), groups, ends, moves))
            found = True
        if not found:
            raise RejectedError(f"plan: stage {i + 1} is illegal or too large")
        at = end
    if at + 1 < len(problem.sets) or not rules.suits(case, len(lists)):
        raise RejectedError("plan: not all layers, or the wrong stages")
    return run(split, chunks, [(offsets[r], devices[r]) for r in at_block],
               at_block, lists)

def run(split, chunks, locations, at_block, lists):
    """Return the step time of chunks at places, if their blocks have room."""
    terms = []
    for i, (shape, groups, ends, moves) in enumerate(chunks):
        near_by = []
        for j, end, other in (i - 1, 0, 1), (i + 1, 1, 0):
            near_by.append(None)
            if 0 <= j < len(chunks):
                one, two = ends[end], chunks[j][2][other]
                same = one[:3] == two[:3] and one[4] == two[4]
                near_by[-1] = (None if at_block[i] == at_block[j] and same
                               else locations[j])
        terms_of_chunk = split.chunk(
            shape, groups, ends, moves, locations[i][0], *near_by)
        if not terms_of_chunk:
            raise RejectedError(f"plan: stage {i + 1} is illegal or too large")
        terms.append(terms_of_chunk)
    syncs, f, g = [], *zip(*(x[:2] for x in terms))
    times = [{"F": x[0], "B": x[1], "I": x[1] - x[4], "W": x[4]}
             for x in terms]
    bytes_kept = [x[6] for x in terms]
    timeline = 0, [split.flight(len(lists) - r) * x for r, x in enumerate(bytes_kept)]
    if split.case.timed and not (timeline := replay(lists, times, bytes_kept)):
        raise RejectedError("plan: passes wait for each other")
    for r, peak in enumerate(timeline[1]):
        of_block = [x for x, block in zip(terms, at_block) if block == r]
        held = peak + sum(x[5] for x in of_block) + max(x[7] for x in of_block)
        if held > split.room(locations[r][0] % split.problem.period, locations[r][1]):
            raise RejectedError(f"plan: block {r + 1} is too large")
        sync = sum(x[3] for x in of_block)
        syncs.append(sum(x[2] for x in of_block) + sync - min(
            split.hidden(sync), sum(x[1] for x in of_block)))
    if split.case.timed:
        return timeline[0] + max(syncs)
    pace = max(f) + max(g) if split.gpipe else max(map(add, f, g))
    return sum(f) + sum(g) + (split.count - 1) * pace + max(syncs)

def check(problem, problem_hash, certificate, seal):
    """Return what the certificate says, if it holds."""
    plan, proof = certificate["plan"], certificate["proof"]
    value = certificate["step_time_quanta"]
    bound = certificate["lower_bound_quanta"]
    none, status = plan is None, "optimal" if value == bound else "feasible"
    for key, right, why in (
            ("schema", "nest-certificate/1", "pass a certificate"),
            ("problem_hash", problem_hash, "it is for another problem"),
            ("seal", seal, "it was changed after it was written"),
            ("status", "infeasible" if none else status, "a false claim")):
        expected(key, right, certificate[key], why)
    if none:  # without times every plan takes 0, and none takes less than 1
        for key in ("step_time_quanta", "lower_bound_quanta"):
            expected(key, None, certificate[key], "there is no plan")
        problem.forget_times()
        bound = 1
    else:
        expected("plan.schema", "nest-plan/1", plan["schema"], "pass a plan")
        if (found := score(problem, plan)) != value:
            raise RejectedError(f"step_time_quanta: the plan takes {found}")
        if bound > value:
            raise RejectedError(f"lower_bound_quanta: expected at most {value}"
                                f", what the plan takes, got {bound}")
    cases = problem.rules.cases()
    expected("proof", [x[:2] for x in cases], [
        (x["replicas"], x["micro_batch"]) for x in proof],
             "all replicas and samples of the job, in order")
    for case, x in zip(cases, proof):
        split, where = Split(problem, case), "proof"
        try:
            found = split.prove(bound, [price for price, _ in x["prices"]])
        except RejectedError as error:
            if len(error.args) != 2:
                raise
            raise RejectedError(
                "status: expected no plan that fits, got one" if none else
                f"lower_bound_quanta: expected at most {error.args[1]}, what "
                f"some plan takes, got {bound}") from error
        where += f": replicas {x['replicas']}, micro_batch {x['micro_batch']}"
        for key, right in zip(("prices", "labels"), found):
            expected(f"{where}: {key}", right, x[key],
                     "the checker computes other figures")
    text = f"step time {value} quanta, lower bound {bound}"
    return f"{certificate['status']}, {'no plan fits' if none else text}"

def plain(text):
    """Return a text in one line that every terminal can print."""
    return "".join(x if x.isprintable() else repr(x)[1:-1] for x in text)

def main():
    """Check the files on the command line."""
    try:
        if {"-h", "--help"} & {*sys.argv}:
            return print(__doc__) or 0
        if len(sys.argv) != 3:
            raise BadInputError("expected PROBLEM CERTIFICATE, two JSON files")
        (data, own), found = map(parse, map(read, sys.argv[1:]), sys.argv[1:])
        print("verified:", check(Problem(data, sys.argv[1]), own, *found))
    except RejectedError as error:
        print("rejected:", plain(error.args[0]))
        return 1
    except Exception as error:  # whatever a file holds that it should not
        text = str(error)
        if not isinstance(error, (BadInputError, OSError)):
            got = ("one without the field" if isinstance(error, KeyError)
                   else f"{type(error).__name__}:")
            text = ("expected a problem and a certificate as nest writes "
                    f"them, got {got} {text[:60]}")
        print("nest-check:", plain(text), file=sys.stderr)
        return 2
    return 0

if __name__ == "__main__":
    sys.exit(main())
