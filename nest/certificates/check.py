"""nest-check PROBLEM CERTIFICATE: a plan's step time, and that none is faster.

Or that no plan fits: see docs/certificates.md. Needs the standard library and
the prices beside this file. Exit code 0: verified, 1: rejected, 2: bad input.
"""
import hashlib
import json
import sys
from fractions import Fraction
from operator import add, le, mul

from .prices import NEVER, BadInputError, Problem, near, remember, typed, up

MOST_LABELS, MOST_BYTES = 100_000, 2**26  # of proofs and files
# What objects of a problem hold; nothing depends on keys with a star.
KEYS = {place.strip(): {*keys.split()} for place, keys in (
    text.split(":") for text in """
problem: schema name* source* preset graph cluster job quantum_ps time_unit*;
graph: kinds layers edges; edges: source target bytes_per_sample; activations:
recompute kept_bytes working_bytes extra_ns extra_host_ns static_bytes; layers:
id kind; kinds: name costs; cluster: name* num_devices device topology; costs:
tp cp ep sequence_parallel samples activations collectives forward_ns
backward_ns weight_backward_ns* forward_host_ns backward_host_ns weight_bytes
expert_weight_bytes working_bytes measured*; topology: kind algorithms levels;
job: global_batch micro_batches sequence_length* dtype* optimizer schedule zero
replicas data_parallel pipeline_parallel tensor_parallel context_parallel
expert_parallel recompute sequence_parallel uneven_batches overlap_needs*
gradient_sync_overlap virtual_stages weight_backward_fraction*
model_flops_per_sample*; levels: name* fan_out latency_ns bandwidth_bytes_per_s
peer_bandwidth_bytes_per_s launch_ns group_fractions; collectives: kind phase
axis size_bytes count; device: name* memory_bytes reserve_bytes hbm_bytes_per_s
peak_flops* price_usd_per_hour*; optimizer: name* weight_bytes gradient_bytes
state_bytes buffer_bytes; group_fractions: members fraction""".split(";"))}
ONLY = {"problem.preset": ["standard"], "job.virtual_stages": [[1]],
        "job.schedule": ["1f1b", "gpipe"], "topology.kind": ["hierarchy"],
        "topology.algorithms": ["nccl"]}

class RejectedError(Exception):
    """The certificate does not hold; maybe with a faster plan's time."""

def covered(value, where, place):
    """Return a value with fractions for floats, if all of it is covered."""
    own = KEYS.get(place, ())
    if type(value) is dict:
        for key, x in value.items():
            known = not place or {key, f"{key}*"} & {*own}
            only = ONLY.get(f"{place}.{key}", [x] if known else [])
            if x not in only:
                text = f"{' or '.join(map(str, only)) or 'nothing'}, for a "
                text += f"certificate, got {str(x)[:60]}; change or remove it"
                raise BadInputError(f"{where}.{key}: expected {text}")
        return {key: f"{key}*" in own or covered(
            x, f"{where}.{key}", place and key) for key, x in value.items()}
    if type(value) is list:
        return [covered(x, where, place) for x in value]
    return typed(value, where)

def distinct(pairs):
    """Return an object, if no key is there twice."""
    if len(dict(pairs)) < len(pairs):
        raise ValueError("an object with a key twice")
    return dict(pairs)

def digest(value):
    """Return the hash of a document without its seal, as nest writes it."""
    value = {key: x for key, x in value.items() if key != "seal"}
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()

def parse(data, where):
    """Return what a JSON text holds, and its hash."""
    try:
        if len(data) > MOST_BYTES:
            raise ValueError(f"more than {MOST_BYTES} bytes")
        value = json.loads(data, object_pairs_hook=distinct)
        place = value.get("schema") == "nest-problem/1" and "problem"
        return covered(value, where, place), digest(value)
    except (AttributeError, ValueError, RecursionError) as error:
        deep = type(error) is RecursionError and "too many nested brackets"
        text = " ".join((deep or str(error)).split())[:200]
        raise BadInputError(f"{where}: expected JSON, got {text}") from error

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

    def terms(self, number, strategy, k):
        """Return F, G and Y of a stage without receives, and its memory."""
        *degrees, _, zero, again = strategy
        p, key = self.problem, (*strategy[1:5], self.batch // strategy[0])
        counts, _, _, passing = p.stages[number]
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

    def stage(self, number, strategy, k, left, front, behind):
        """Return F, G and Y of a stage, or None where it does not fit.

        At offset k, the left-th from the end, between stages of so many
        devices, 0 for none.
        """
        p, n = self.problem, strategy[0] * strategy[1] * strategy[2]
        terms = self.terms(number, strategy, k % p.tree.below[-1])
        if not terms or (terms[3] + terms[5] + self.flight(left) * terms[4]
                         > p.room):
            return None
        _, enter, leave, _ = p.stages[number]
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

        As (set in front, set with it, devices, least load, shape).
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
        slack = self.pitch * most - sum(map(mul, p.counts[last], work))
        spare = self.pitch * p.room - sum(map(mul, p.counts[last], held))
        if slack < 0 or spare < 0:
            return []
        options = [[(n, p.options(number, self.batch, n, self.places[n], 1))
                    for n, r in light.items()
                    if sum(map(mul, counts, r)) <= most
                    and n * most <= slack + sum(map(mul, counts, work))]
                   for number, (counts, *_) in enumerate(p.stages)]
        left, edges = [NEVER] * last + [0], []
        need = [0] * last + [few]
        for u in range(last - 1, -1, -1):
            for v, number in p.ends[u]:
                for n, found in options[number] if left[v] < NEVER else ():
                    for load, fit, _ in found:
                        if fit >= need[v]:
                            if load <= most:
                                edges.append((u, v, n, load, number))
                                left[u] = min(left[u], left[v] + 1)
                            break
            need[u] = self.flight(left[u] + 1)
        return edges

    def cheapest(self, edges, price):
        """Return the least load, devices paid for, of a path to every set."""
        found = [0] + [NEVER] * (len(self.problem.sets) - 1)
        for u, v, n, load, _ in reversed(edges):
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

    def search(self, bound, edges, price):
        """Return how many ends of plans below the bound there are."""
        p, P, more, count = self.problem, self.pitch, self.count - 1, 0
        front, behind = self.cheapest(edges, price), [NEVER] * len(p.sets)
        behind[-1], last = 0, len(p.sets) - 1
        for u, v, n, load, _ in edges:
            behind[u] = min(behind[u], behind[v] + load + price * n)
        # In front of a set: its stages, and by devices (least sum, least max).
        into, rest = [[] for _ in p.sets], [{} for _ in p.sets]
        rest[0][0] = 0, 0
        for u, v, n, load, number in reversed(edges):
            whole = front[u] + load + price * (n - P) + behind[v]
            if whole + more * load < bound:
                into[v].append((u, n, number))
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
        for _, (u, n, number), ((e, done, m), labels) in steps:
            k, here = e - n, table[u]
            total, pace = rest[u].get(k, (NEVER, 0))
            least = min(x[0] for x in labels) + total
            after = done + 1 if exact else min(done + 1, self.count)
            fronts = [x for x in self.places if x <= k] if u else [0]
            for load, _, strategy in p.options(
                    number, self.batch, n, self.places[n], 0):
                if least + load + more * max(load, pace) >= bound:
                    break
                for q in fronts:
                    own = self.stage(number, strategy, k, done + 1, q, m)
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
        own = sum({1 << problem.layers[str(y)] for y in x["layers"]})
        ends = {problem.sets[v]: (v, y) for v, y in problem.ends[at]}
        v, number = ends.get(problem.sets[at] | own, (0, 0))
        s, found = x["strategy"], None
        strategy = (*(s[y] for y in ("dp", "tp", "cp", "ep")),
                    s.get("sequence_parallel", False), s["zero"],
                    s["recompute"])
        if (v and problem.sets[v] - problem.sets[at] == own
                and {*x} == {"layers", "devices", "strategy"}
                and len(s) == 6 + ("sequence_parallel" in s) and len(plan) < 5
                and len(x["layers"]) == own.bit_count()
                and s["dp"] * s["tp"] * s["cp"] == x["devices"]
                and sum(devices) <= split.pitch
                and problem.legal(strategy, split.batch)):
            found = split.stage(number, strategy, k, len(stages) - i,
                                devices[i], devices[i + 2])
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
    if problem_hash != certificate["problem_hash"] or certificate != {
            "schema": "nest-certificate/1", "problem_hash": problem_hash,
            "plan": None if none else plan | {"schema": "nest-plan/1"},
            "step_time_quanta": value, "lower_bound_quanta": bound,
            "status": "infeasible" if none else status, "proof": proof,
            "seal": seal} or ((value, bound) != (None, None) if none
                              else bound > value):
        raise RejectedError("problem_hash, seal, status: not as they must be")
    if none:  # without times every plan takes 0, and none takes less than 1
        problem.forget_times()
        bound = 1
    elif (found := score(problem, plan)) != value:
        raise RejectedError(f"step_time_quanta: the plan takes {found}")
    if [(x["replicas"], x["micro_batch"]) for x in proof] != splits(problem):
        raise RejectedError("proof: not the splits of the job, in order")
    for x in proof:
        split = Split(problem, x["replicas"], x["micro_batch"])
        found = split.prove(bound, [price for price, _ in x["prices"]])
        if (*found, len(x)) != (x["prices"], x["labels"], 4):
            raise RejectedError(f"proof: {x}, found {found}")
    text = f"step time {value} quanta, lower bound {bound}"
    return f"{certificate['status']}, {'no plan fits' if none else text}"

def main():
    """Check the files on the command line."""
    try:
        if {"-h", "--help"} & {*sys.argv}:
            return print(__doc__) or 0
        if len(sys.argv) != 3:
            raise BadInputError("expected PROBLEM CERTIFICATE, two JSON files")
        with open(sys.argv[1], "rb") as one, open(sys.argv[2], "rb") as two:
            (data, own), certificate = (parse(x.read(MOST_BYTES + 1), x.name)
                                        for x in (one, two))
        print("verified:", check(Problem(data, one.name), own, *certificate))
    except RejectedError as error:
        print(f"rejected: {error.args[0]}")
        return 1
    except Exception as error:  # whatever a file holds that it should not
        text = str(error)
        if not isinstance(error, (BadInputError, OSError)):
            text = ("expected a problem and a certificate as nest writes "
                    f"them, got {type(error).__name__}: {text[:60]}")
        print(f"nest-check: {text}", file=sys.stderr)
        return 2
    return 0

if __name__ == "__main__":
    sys.exit(main())
