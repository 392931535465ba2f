"""nest-check PROBLEM CERTIFICATE: a plan's step time, and that none is faster.

Or that no plan fits: see docs/certificates.md. Needs two files beside this one
and the standard library. Exit code 0: verified, 1: rejected, 2: bad input.
"""
import sys
from fractions import Fraction
from operator import add, le, mul

from .documents import BadInputError, parse, read
from .prices import NEVER, Problem, near, remember, up

MOST_LABELS, MOST_STAGES = 100_000, 2**20  # of the proof of a split

class RejectedError(Exception):
    """The certificate does not hold; maybe with a faster plan's time."""

def expected(where, right, value, why):
    """Reject a value that is not the right one."""
    if value != right:
        right, value = str(right)[:200], str(value)[:200]
        raise RejectedError(f"{where}: expected {right}, got {value}; {why}")

class Split:
    """Plans with R replicas and micro-batches of B samples."""

    def __init__(self, problem, replicas, batch):
        self.problem, self.job, self.batch = problem, problem.job, batch
        self.pitch = problem.devices // replicas
        self.starts = [r * self.pitch for r in range(replicas)]
        self.count = up(self.job["global_batch"], replicas * batch)
        self.gpipe = self.job.get("schedule") == "gpipe"
        remember(self, "terms", "sync", "levels")

    def alone(self, k):
        """Return where blocks of all replicas start, up to symmetry."""
        period = self.problem.tree.below[-1]
        return tuple(sorted({(s + k) % period for s in self.starts}))

    def sync(self, kind, strategy, k):
        """Return sync and update of a layer at the end of the step."""
        p, (dp, tp, cp, ep, _, zero, _) = self.problem, strategy
        sizes = p.sizes(kind, (*strategy[1:5], self.batch // dp))
        (weights, gradients, _), parts = sizes, (dp * cp, dp * cp // ep)
        shapes, total = p.shapes(dp, tp, cp, ep, self.alone(k)), 0
        groups = (parts[0], tp), (parts[1], tp * ep)
        if zero == 1:
            total = p.both("reduce-scatter", gradients, shapes)
        if zero in (1, 2):
            total = near(total + p.both("all-gather", weights, shapes))
        if zero:
            groups, gradients = [(1, 1)] * 2, map(up, gradients, parts)
        starts = tuple(s + k for s in self.starts)
        for group, size in zip(groups, gradients):
            own = p.tree.shapes(*group, dp * tp * cp, starts, True)
            total = near(total + p.tree.time("all-reduce", own, size))
        hidden = self.job.get("gradient_sync_overlap", 0)
        total = near(total * near(1 - hidden))
        if p.rate:
            parts = parts if zero else (1, 1)
            w, g, x = (sum(map(up, size, parts)) for size in sizes)
            traffic = near(Fraction(g + 2 * w + 2 * x) / p.rate)
            total = near(total + near(traffic * 10**9))
        return p.quanta(total)

    def terms(self, shape, strategy, k):
        """Return F, G and Y of a stage without receives, and its memory."""
        *degrees, _, zero, again = strategy
        p, key = self.problem, (*strategy[1:5], self.batch // strategy[0])
        counts, _, _, passing = shape
        shapes, found = p.shapes(*degrees, self.alone(k)), [0] * 6
        for kind, c in enumerate(counts):
            held = c and p.memory(kind, strategy, self.batch)
            if held is None:
                return None
            if c:
                own = (*p.load(kind, key, zero, again, shapes),
                       self.sync(kind, strategy, k), *held)
                most = max(found[5], own[5])
                found = [x + c * y for x, y in zip(found, own)]
                found[5] = most
        shards = p.shards(strategy)
        found[4] += sum(up(x * self.batch, shards) for x in passing)
        return found

    def flight(self, left):
        """Return the micro-batches in flight in the left-th last stage."""
        return self.count if self.gpipe else min(self.count, left)

    def levels(self, first, last):
        """Return where the replicas' devices of a range meet."""
        tree = self.problem.tree
        return {tree.level(s + first, s + last) for s in self.starts}

    def stage(self, shape, strategy, k, left, front, behind):
        """Return F, G and Y of a stage, or None where it does not fit.

        At offset k, the left-th from the end, between stages of so many
        devices, 0 for none.
        """
        p, n = self.problem, strategy[0] * strategy[1] * strategy[2]
        terms = self.terms(shape, strategy, k % p.tree.below[-1])
        if not terms or (terms[3] + terms[5] + self.flight(left) * terms[4]
                         > p.room):
            return None
        _, enter, leave, _ = shape
        wide = p.shards(strategy), self.batch
        f = g = 0
        if front:
            f = max(p.receive(enter, *wide, x, n, front)
                    for x in self.levels(k - front, k + n - 1))
        if behind:
            g = max(p.receive(leave, *wide, x, n, behind)
                    for x in self.levels(k, k + n + behind - 1))
        return terms[0] + f, terms[1] + g, terms[2]

    def bounds(self, bound):
        """Return what stages a plan below a bound may have, last ones first.

        As (set in front, set with it, devices, least load).
        """
        p, most = self.problem, (bound - 1) // self.count
        last, light, self.places, few = len(p.sets) - 1, {}, {}, self.flight(1)
        least = [[[NEVER] * len(p.costs)] * 2]
        for n in sorted({x[0] * x[1] * x[2] for x in p.choices(self.batch)}):
            if n <= self.pitch:
                ks = range(self.pitch - n + 1)
                self.places[n] = frozenset(map(self.alone, ks))
                rows = p.rows(self.batch, n, self.places[n])[1]
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
        slack = self.pitch * most - work[last]
        if slack < 0 or self.pitch * p.room < held[last]:
            return []
        left, edges = [NEVER] * last + [0], []
        need = [0] * last + [few]
        for u in range(last - 1, -1, -1):
            for v in p.after(u):
                waste = slack + work[v] - work[u]
                for n, r in light.items() if left[v] < NEVER else ():
                    if r[v] - r[u] > most or n * most > waste:
                        continue
                    for load, fit, _ in p.options(
                            p.shape(u, v), self.batch, n, self.places[n], 1):
                        if fit >= need[v]:
                            if load <= most:
                                edges.append((u, v, n, load))
                                left[u] = min(left[u], left[v] + 1)
                            break
            if len(edges) > MOST_STAGES:
                raise RejectedError("proof: too many stages")
            need[u] = self.flight(left[u] + 1)
        return edges

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
        gap = bound - cost + price * self.pitch
        if gap <= 0 or cost >= NEVER:
            return -1
        more = self.count - 1
        return min(high, up(gap, more) - 1) if more else high

    def prove(self, bound, prices):
        """Return what the cheapest paths cost, and the labels of the rest."""
        edges, high, costs = self.bounds(bound), (bound - 1) // self.count, []
        for price in prices:
            cost = self.cheapest(edges, price)[-1]
            costs.append([price, cost] if cost < NEVER else [0, None])
            high = self.longest(bound, cost, price, high)
            edges = [x for x in edges if x[3] <= high]
        price = prices[-1] if prices else 0
        return costs, self.search(bound, edges, price) if edges else 0

    def search(self, bound, edges, price):  # noqa: C901
        """Return how many ends of plans below the bound there are."""
        p, P, more, count = self.problem, self.pitch, self.count - 1, 0
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
        exact = self.job.get("pipeline_parallel")
        table = [{} for _ in p.sets]
        for n in self.places:
            ends = range(n, P + 1)
            table[last][n] = {(e, 0, 0): [(0, 0, 0, 0)] for e in ends}
        steps = ((v, x, y) for v in range(last, 0, -1) for x in into[v]
                 for y in table[v].get(x[1], {}).items())
        for v, (u, n), ((e, done, m), labels) in steps:
            shape, k, here = p.shape(u, v), e - n, table[u]
            total, pace = rest[u].get(k, (NEVER, 0))
            least = min(x[0] for x in labels) + total
            after = done + 1 if exact else min(done + 1, self.count)
            fronts = [x for x in self.places if x <= k] if u else [0]
            for load, _, strategy in p.options(
                    shape, self.batch, n, self.places[n], 0):
                if least + load + more * max(load, pace) >= bound:
                    break
                for q in fronts:
                    own = self.stage(shape, strategy, k, done + 1, q, m)
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
                        elif time < bound and (not exact or after in exact):
                            raise RejectedError(f"a plan takes {time}", time)
            if count > MOST_LABELS:
                raise RejectedError("proof: too many labels")
        return count

def splits(problem):
    """Return every (R, B) of the job."""
    job = problem.job
    return [(r, b) for r in range(1, problem.devices + 1)
            for b in sorted(job.get("micro_batches", [1]))
            if r in (job.get("replicas") or [r])
            and (job.get("uneven_batches")
                 or job["global_batch"] % (r * b) == 0)]

def score(problem, plan):
    """Return the step time of a plan in quanta."""
    stages, at, k, loads = plan["stages"], 0, 0, []
    if (plan["replicas"], plan["micro_batch"]) not in splits(problem):
        raise RejectedError("plan: replicas and samples that the job has not")
    split = Split(problem, plan["replicas"], plan["micro_batch"])
    devices = [0, *(x["devices"] for x in stages), 0]
    for i, x in enumerate(stages):
        own = sum({1 << problem.layers.get(y, len(problem.layers))
                   for y in x["layers"]})
        v = problem.at.get(problem.sets[at] | own, 0)
        s, found = x["strategy"], None
        strategy = (*(s[y] for y in ("dp", "tp", "cp", "ep")),
                    s.get("sequence_parallel", False), s["zero"],
                    s["recompute"])
        if (own and problem.sets[v] - problem.sets[at] == own
                and len(x["layers"]) == own.bit_count()
                and s["dp"] * s["tp"] * s["cp"] == x["devices"]
                and sum(devices) <= split.pitch
                and problem.legal(strategy, split.batch)):
            found = split.stage(problem.shape(at, v), strategy, k,
                                len(stages) - i, devices[i], devices[i + 2])
        if not found:
            raise RejectedError(f"plan: stage {i + 1} is illegal or too large")
        loads, at, k = [*loads, found], v, k + x["devices"]
    allowed = problem.job.get("pipeline_parallel") or [len(stages)]
    if at + 1 < len(problem.sets) or len(stages) not in allowed:
        raise RejectedError("plan: not all layers, or the wrong stages")
    f, g, y = zip(*loads)
    pace = max(f) + max(g) if split.gpipe else max(map(add, f, g))
    return sum(f) + sum(g) + (split.count - 1) * pace + max(y)

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
    expected("proof", splits(problem), [
        (x["replicas"], x["micro_batch"]) for x in proof],
             "all replicas and samples of the job, in order")
    for x in proof:
        split, where = Split(problem, x["replicas"], x["micro_batch"]), "proof"
        try:
            found = split.prove(bound, [price for price, _ in x["prices"]])
        except RejectedError as error:
            if len(error.args) == 1:
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
