"""Forge certificates: ``python -m tests.forger COUNT [SEED]``.

Draws so many small problems, whose times have one to fifteen digits of quanta, and asks
``brute`` for the best plan of each. ``nest-check`` must accept what ``nest certify``
writes for them, and no forgery, unless its claim holds: that of a bound above the best
plan, of no plan where one fits, of a plan that is illegal, too large or slower, or with
another value in any field. All are sealed, and have the figures that the checker itself
computes as far as it does. A forgery that is accepted, or a certificate that is not, is
written to ``.hypothesis/forged``. The same seed draws the same.
"""

from __future__ import annotations

import copy
import itertools
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from msgspec.structs import replace

from nest.certificates import check, documents, prices
from nest.certificates.certify import certify, certify_infeasible
from nest.cost.model import CostModel
from nest.cost.score import score
from nest.errors import NestError, UnsupportedProblemError
from nest.ir import Plan, Problem
from nest.ir.io import convert, decode_problem, encode
from nest.solvers.base import SolveOptions
from nest.solvers.registry import get_solver
from tests.certified import draw_covered, draw_timed
from tests.independent.enumerator import plans as list_plans
from tests.independent.generate import (
    draw_plan,
    enlarged,
    spoil,
    with_costs,
    with_memory,
)
from tests.strategies import count_plans

#: Plans of a problem, at most.
MOST_PLANS = 300

#: Plans of a problem whose plans may have any order, at most.
MOST_LISTED = 150

#: How many times as long a problem may take.
FACTORS = (1, 7, 1001, 100_003, 10_000_019, 3 * 10**8)

#: Forged fields of a certificate; all have the same chance to be chosen.
FIELDS = 40

#: What stands in a field instead of a value of it.
ODD = (
    *(None, True, False, 0, 1, 2, -1, 0.0, 1.0, 10**9, 2**53, 10**21, 10**30),
    *("", "0", "1", "none", "full", "optimal", "feasible", "infeasible"),
    *([], {}, [0], [[0, 0]], [None], {"0": 0}),
)

Document = dict[str, Any]


# Problems


def draw(random: Random, timed: bool = False) -> Iterator[Problem]:
    """Yield problems of all magnitudes, with memory for one plan or all.

    Or some with plans that are timed pass by pass.
    """
    problems, most = (draw_timed, 60) if timed else (draw_covered, MOST_PLANS)
    for problem in problems(random.getrandbits(64)):
        if not 2 <= count_plans(problem) <= most:
            continue
        plan = draw_plan(random, problem)
        try:
            if random.random() < 0.7:
                problem = enlarged(problem, random.choice(FACTORS))
                # A quantum of 2 ns makes halves, one of 1 ms makes zeros.
                quantum_ps = random.choice((1, 1, 500, 1000, 2000, 10**9))
                problem = replace(problem, quantum_ps=quantum_ps)
            if random.random() < 0.5:
                problem = alike(random, problem)
            if plan is not None and random.random() < 0.6:
                need_bytes = memory_bytes(problem, plan)
                problem = with_memory(problem, need_bytes - random.choice((0, 0, 1)))
            best_plan(problem)
        except (NestError, ValueError):
            continue  # too long or too large, or the plan is illegal
        yield decode_problem(encode(problem))


def alike(random: Random, problem: Problem) -> Problem:
    """Return a problem whose strategies hold as much, and take nearly as long.

    So one of them often beats another one in nearly everything.
    """
    kinds = []
    for kind in problem.graph.kinds:
        one = random.choice(kind.costs)
        times = [random.choice((1, 1, 1.01, 1.5)) for _ in kind.costs]
        kinds.append(
            replace(
                kind,
                costs=tuple(
                    replace(
                        cost,
                        forward_ns=factor * one.forward_ns,
                        backward_ns=factor * one.backward_ns,
                        weight_backward_ns=None,
                        weight_bytes=one.weight_bytes,
                        expert_weight_bytes=one.expert_weight_bytes,
                        working_bytes=one.working_bytes,
                        activations=one.activations,
                        collectives=random.choice(((), cost.collectives)),
                    )
                    for cost, factor in zip(kind.costs, times, strict=True)
                ),
            )
        )
    return replace(problem, graph=replace(problem.graph, kinds=tuple(kinds)))


def memory_bytes(problem: Problem, plan: Plan) -> int:
    """Return what the fullest device holds."""
    return max(x.memory_bytes for x in score(problem, plan).stages)


def best_plan(problem: Problem) -> Plan | None:
    """Return the best plan of all; of any order, of those with a name or in turn."""
    if problem.job.schedule == "any":
        plans = itertools.chain(list_plans(problem), list_plans(problem, listed=True))
        listed = list(itertools.islice(plans, MOST_LISTED + 1))
        if len(listed) > MOST_LISTED:
            raise ValueError("too many plans")
        model = CostModel(problem)
        scored = [(score(problem, x, model), x) for x in listed]
        fitting = [(x.step_quanta, i) for i, (x, _) in enumerate(scored) if x.feasible]
        return scored[min(fitting)[1]][1] if fitting else None
    plan = get_solver("brute")().solve(problem, SolveOptions()).plan
    return plan and bare(plan)


def bare(plan: Plan) -> Plan:
    return replace(plan, problem_hash=None, solver=None)


class Case:
    """A problem, its best plan, and what ``nest-check`` says of it."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.plan = best_plan(problem)
        self.best = self.plan and score(problem, self.plan).step_quanta
        self.data, self.hash = documents.parse(encode(problem), "problem")
        self.terms = prices.Problem(self.data)

    def accepts(self, certificate: Document) -> bool:
        """Whether the program would exit with 0: it takes any error for 2."""
        try:
            read, seal = documents.parse(json.dumps(certificate), "forged")
            none = read.get("plan") is None  # that makes all terms 0
            terms = prices.Problem(self.data) if none else self.terms
            check.check(terms, self.hash, read, seal)
        except Exception:
            return False
        return True

    def holds(self, certificate: Document) -> bool:
        """Whether what a certificate claims is true, by ``brute``."""
        value = certificate["step_time_quanta"]
        bound = certificate["lower_bound_quanta"]
        if certificate["plan"] is None:
            return self.plan is None and value is bound is None
        try:
            plan = convert(certificate["plan"], "plan", Plan, NestError)
            scored = score(self.problem, plan)
        except NestError:
            return False
        return (
            scored.feasible
            and (type(value), type(bound)) == (int, int)
            and scored.step_quanta == value
            and self.best is not None
            and bound <= self.best
        )


# Certificates


def sealed(certificate: Document, **fields: Any) -> Document:
    """Return a copy with other fields, its status and its seal as they are."""
    found = copy.deepcopy(certificate) | fields
    if "status" not in fields:
        value, bound = found["step_time_quanta"], found["lower_bound_quanta"]
        found["status"] = "optimal" if value == bound else "feasible"
        if found["plan"] is None:
            found["status"] = "infeasible"
    return found | {"seal": documents.digest(found)}


def proven(case: Case, certificate: Document, random: Random) -> Document:
    """Return a certificate with the figures that the checker computes.

    With the prices that it has, or others. A split for which the checker
    refuses the bound has none.
    """
    terms, bound = case.terms, certificate["lower_bound_quanta"]
    if certificate["plan"] is None:
        terms, bound = prices.Problem(case.data), 1
        terms.forget_times()
    old = [[price for price, _ in x["prices"]] for x in certificate["proof"]]
    others = random.random() < 0.5
    proof = []
    for index, case in enumerate(terms.rules.cases()):
        listed = old[index] if index < len(old) else []
        if others:
            most = random.choice((1, 10, 10**4, 10**14))
            count = random.choice((0, 1, 1, 3))
            listed = [random.randrange(most) for _ in range(count)]
        costs, labels = [], 0
        try:
            costs, labels = check.Split(terms, case).prove(bound, listed)
        except check.RejectedError:
            costs = [[price, 0] for price in listed]
        proof.append(
            {
                "replicas": case.replicas,
                "micro_batch": case.batch,
                "prices": costs,
                "labels": labels,
            }
        )
    return sealed(certificate, proof=proof)


def written(case: Case, random: Random) -> Iterator[Document]:
    """Yield true certificates: of two plans, or of that there is none."""
    try:
        if case.plan is None:
            yield certify_infeasible(case.problem, encode(case.problem))
            return
        yield certify(case.problem, case.plan, encode(case.problem))
    except UnsupportedProblemError:
        return  # the search would be too long, or a time is
    for _ in range(4):
        plan = draw_plan(random, case.problem)
        if plan is not None:
            try:
                yield certify(case.problem, plan, encode(case.problem))
            except NestError:
                continue
            return


# Forgeries


def bounds(case: Case, random: Random, certificate: Document) -> Iterator[Document]:
    """Yield bounds above the best plan, between, and at the plan's time."""
    if case.best is None or certificate["plan"] is None:
        return
    best, value = case.best, certificate["step_time_quanta"]
    for bound in {
        *(best + 1, best + 2, best + 1 + best // 10**6, best + 1 + best // 50),
        *((best + value + 1) // 2, value, 2 * value, best),
    }:
        shown = sealed(certificate, lower_bound_quanta=bound)
        yield shown
        yield proven(case, shown, random)
        yield sealed(shown, step_time_quanta=max(bound, value))


def nothing_fits(
    case: Case, random: Random, certificate: Document
) -> Iterator[Document]:
    """Yield claims that no plan fits."""
    none = dict.fromkeys(("plan", "step_time_quanta", "lower_bound_quanta"))
    shown = sealed(certificate, **none)
    yield shown
    empty = [x | {"prices": [], "labels": 0} for x in certificate["proof"]]
    yield sealed(shown, proof=empty)
    yield proven(case, shown, random)
    yield proven(case, shown, random)


def plans(
    case: Case, random: Random, certificate: Document, others: list[Document]
) -> Iterator[Document]:
    """Yield plans that are spoilt, of other problems, or that are moved."""
    drawn = []
    plan = case.plan or draw_plan(random, case.problem)
    if plan is not None:
        drawn += [spoil(random, case.problem, plan) for _ in range(3)]
    drawn += filter(None, (draw_plan(random, case.problem) for _ in range(3)))
    listed = [json.loads(encode(bare(plan))) for plan in drawn]
    listed += [x["plan"] for x in others if x["plan"] is not None]
    listed += [moved(random, x) for x in listed]
    for document in listed:
        value = certificate["step_time_quanta"]
        try:
            plan = convert(document, "plan", Plan, NestError)
            value = score(case.problem, plan).step_quanta
        except NestError:
            value = 1 if value is None else value
        for step in (value, value + 1, max(value - 1, 0)):
            shown = sealed(
                certificate,
                plan=document | {"schema": "nest-plan/1"},
                step_time_quanta=step,
                lower_bound_quanta=min(step, random.choice((0, step, 10**30))),
            )
            yield shown
        yield proven(case, shown, random)


def moved(random: Random, plan: Document) -> Document:
    """Return a plan with a layer or a device on another stage."""
    plan = copy.deepcopy(plan)
    one, other = (random.choice(plan["stages"]) for _ in range(2))
    match random.randrange(4):
        case 0:
            place = random.randrange(len(other["layers"]) + 1)
            other["layers"].insert(place, one["layers"].pop())
        case 1:
            other["layers"].append(random.choice(one["layers"]))
        case 2:
            one["devices"] += random.choice((1, -1))
        case 3:
            random.shuffle(plan["stages"])
    return plan


def fields(case: Case, random: Random, certificate: Document) -> Iterator[Document]:
    """Yield certificates with another value in one field each."""
    everywhere = list(places(certificate))
    for path in random.sample(everywhere, min(FIELDS, len(everywhere))):
        changed = copy.deepcopy(certificate)
        at: Any = changed
        for key in path[:-1]:
            at = at[key]
        key, old = path[-1], at[path[-1]]
        near: list[Any] = [*ODD]
        if type(old) is int:
            near += [old + 1, old - 1, 2 * old, old / 1, str(old), [old]] * 3
        elif type(old) is list:
            near += [old[1:], old[:-1], old[::-1], old + old[-1:]] * 4
            near += [dict(enumerate(old)), {str(x): 0 for x in old}] * 2
        elif type(old) is dict:
            near += [{**old, "x": 0}, [*old.items()], [*old]] * 2
            near += [{k: old[k] for k in [*old][1:]}] * 4
        else:
            near += [f"{old} ", [old], str(old).upper()] * 3
        if random.random() < 0.1:
            del at[key]
        else:
            at[key] = random.choice(near)
        if len(path) == 1 and key in ("seal", "status"):
            yield (
                changed
                if key == "seal"
                else changed | {"seal": documents.digest(changed)}
            )
        else:
            yield changed | {"seal": documents.digest(changed)}


def places(value: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the keys that lead to every field."""
    listed: Any = ()
    if isinstance(value, dict):
        listed = value.items()
    elif isinstance(value, list):
        listed = enumerate(value)
    for key, x in listed:
        yield (key,)
        yield from ((key, *path) for path in places(x))


def neighbors(random: Random, case: Case) -> Iterator[Problem]:
    """Yield problems that are nearly the same: memory, or one cost."""
    if case.plan is not None:
        yield with_memory(case.problem, memory_bytes(case.problem, case.plan) - 1)
    costs = [x for kind in case.problem.graph.kinds for x in kind.costs]
    chosen = random.choice(costs)
    quantum_ns = case.problem.quantum_ps / 1000

    def slower(cost: Any) -> Any:
        if cost is not chosen:
            return cost
        return replace(cost, forward_ns=cost.forward_ns + quantum_ns)

    yield replace(case.problem, graph=with_costs(case.problem.graph, slower))


# Counts


class Forger:
    """Forges certificates of problems, one after the other."""

    def __init__(
        self, seed: int, folder: Path | None = None, timed: bool = False
    ) -> None:
        self.random = Random(f"forger {seed}")
        self.problems = draw(self.random, timed)
        self.folder = folder
        self.counts: Counter[str] = Counter()
        self.others: list[Document] = []

    def wrong(self) -> int:
        """Return how many answers were wrong."""
        names = ("true ones refused", "forgeries accepted")
        return sum(self.counts[name] for name in names)

    def look(self, count: int) -> None:
        """Forge certificates of so many problems."""
        for problem in itertools.islice(self.problems, count):
            case = Case(problem)
            self.counts["problems"] += 1
            self.counts["without a plan"] += case.plan is None
            digits = len(str(case.best or 0))
            self.counts[f"best plan of {digits:2} digits"] += 1
            for certificate in written(case, self.random):
                self.counts["true ones"] += 1
                searched = any(x["labels"] for x in certificate["proof"])
                self.counts["true ones with a search"] += searched
                if not (case.holds(certificate) and case.accepts(certificate)):
                    self.tell("true ones refused", case, certificate)
                self.forge(case, certificate)
                self.others = [*self.others[-3:], certificate]

    def forge(self, case: Case, certificate: Document) -> None:
        """Try forgeries of a certificate."""
        random, others = self.random, self.others
        for name, forged in (
            ("bounds", bounds(case, random, certificate)),
            ("infeasibility", nothing_fits(case, random, certificate)),
            ("plans", plans(case, random, certificate, others)),
            ("fields", fields(case, random, certificate)),
            ("of another problem", iter(others)),
        ):
            for x in forged:
                self.examine(name, case, x)
        for problem in neighbors(random, case):
            try:
                near = Case(decode_problem(encode(problem)))
            except NestError:
                continue
            shown = sealed(certificate, problem_hash=near.hash)
            self.examine("of a neighbor", near, certificate)
            self.examine("of a neighbor", near, shown)
            self.examine("of a neighbor", near, proven(near, shown, random))

    def examine(self, name: str, case: Case, forged: Document) -> None:
        """Count a forgery: no claim that is false may be accepted."""
        self.counts[f"forged {name}"] += 1
        if case.accepts(forged):
            self.counts["forged, but true"] += 1
            if not case.holds(forged):
                self.counts["forged, but true"] -= 1
                self.tell("forgeries accepted", case, forged)

    def tell(self, what: str, case: Case, certificate: Document) -> None:
        """Count a wrong answer, and keep the files."""
        self.counts[what] += 1
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            start = self.folder / f"{case.hash[:12]}-{certificate['seal'][:6]}"
            start.with_suffix(".problem.json").write_bytes(encode(case.problem))
            text = json.dumps(certificate, indent=1)
            start.with_suffix(".certificate.json").write_text(text)
            print(f"{what}: {start}.*.json", flush=True)


def main(arguments: list[str]) -> int:
    """Print the counts; return 1 if an answer was wrong."""
    numbers = [*map(int, arguments)]
    count, seed = [*numbers, *(100, 0)[len(numbers) :]]
    forger = Forger(seed, Path(".hypothesis", "forged"))
    forger.look((count + 1) // 2)
    forger.problems = draw(forger.random, timed=True)
    forger.look(count // 2)
    for name, number in sorted(forger.counts.items()):
        print(f"{name:28} {number:8}")
    forged = sum(n for name, n in forger.counts.items() if "forged " in name)
    print(
        f"{count} problems from seed {seed}: {forged} forgeries, "
        f"{forger.wrong()} wrong answers"
    )
    return int(forger.wrong() > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
