"""Certificates: what they say, and that ``nest-check`` believes no other."""

from __future__ import annotations

import ast
import copy
import itertools
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from nest.certificates import certify as certifying
from nest.certificates import check, documents, prices
from nest.certificates.certify import certify, certify_infeasible
from nest.cost.score import score
from nest.errors import InvalidPlanError, NestError, UnsupportedProblemError
from nest.hardware import parse_cluster
from nest.ir import Activations, Optimizer, Plan, Problem, Strategy
from nest.ir.io import decode_problem, encode, problem_hash
from nest.models import builtin
from nest.models.choices import Request, choose
from nest.models.graphs import build_problem
from nest.models.zoo import architecture
from nest.solvers.base import SolveOptions
from nest.solvers.run import run_solver
from tests.builders import (
    SINGLE,
    make_cost,
    make_levels,
    make_plan,
    make_problem,
    two_stages,
)
from tests.certified import (
    MOST_CASES,
    NCCL,
    count_cases,
    covered,
    draw_covered,
    is_covered,
    put,
    with_rules,
)
from tests.independent.generate import draw_plan, draw_problem, spoil, with_memory
from tests.properties.test_solvers_agree import solve
from tests.rows import rows
from tests.strategies import count_plans

FOLDER = Path(check.__file__).parent
Certificate = dict[str, Any]


def written(problem: Problem) -> bytes:
    """Return its file: numbers are of the type of their field."""
    return encode(decode_problem(encode(problem)))


def read(problem: Problem) -> prices.Problem:
    return prices.Problem(documents.parse(written(problem), "problem")[0])


def verify(problem: Problem, certificate: Certificate) -> None:
    """Check a certificate as it would be read from a file."""
    data, own = documents.parse(written(problem), "problem")
    found, seal = documents.parse(json.dumps(certificate), "certificate")
    check.check(prices.Problem(data), own, found, seal)


def proves(problem: Problem, plan: Plan, best: int) -> Certificate:
    """Certify a best plan, and find it below a bound that is too high."""
    certificate = certify(problem, plan)
    assert certificate["step_time_quanta"] == best
    assert certificate["status"] == "optimal"
    assert refuted(problem, best + 1) == best
    return certificate


def test_activations_at_the_host_are_waited_for() -> None:
    """14 ns there beside 10, and 24 back beside 20, in each of four micro-batches."""
    offload = Activations(recompute="offload", kept_bytes=5, transfer_ns=14)
    costs = [make_cost(10, x, activations=(offload,)) for x in (20, 12)]
    problem = make_problem(
        {"a": costs[0], "b": costs[1]},
        devices=1,
        topology=NCCL,
        global_batch=4,
        recompute=("offload",),
    )
    plan = make_plan(("a b", Strategy(recompute="offload")))
    proves(problem, plan, 4 * (14 + 20 + 14 + 14))


def second(plan: Plan) -> Plan:
    return replace(plan, problem_hash=None, solver=None)


def sealed(certificate: Certificate) -> Certificate:
    return certificate | {"seal": documents.digest(certificate)}


# By hand


def best_of_two_stages() -> tuple[Problem, Certificate]:
    problem = two_stages(topology=NCCL)
    return problem, certify(problem, make_plan(("a b", SINGLE), replicas=2))


def test_a_certificate_derived_by_hand() -> None:
    """Two replicas of one stage: 10 + 20 + 30 + 40 ns, and the sync.

    Two ranks that all-reduce X bytes pay 2 (10 + X / 2) ns: 21 for the 1 byte of a, 22
    for the 2 of b, 143 in all. One replica has two micro-batches: no load may exceed
    142 // 2 = 71 ns for less than 143, and whatever has b takes 70, and 10 + 5 for what
    it receives, or 30 for a: nothing is left to have a price. Of two replicas the
    cheapest path is one stage, 100; b alone takes 85, a 45 in front of it, with a sync
    of 22: 152. So nothing is left to search.
    """
    problem, certificate = best_of_two_stages()
    assert certificate["problem_hash"] == problem_hash(problem)
    assert certificate["step_time_quanta"] == 143
    assert certificate["lower_bound_quanta"] == 143
    assert certificate["status"] == "optimal"
    assert certificate["proof"] == [
        {"replicas": 1, "micro_batch": 1, "prices": [], "labels": 0},
        {"replicas": 2, "micro_batch": 1, "prices": [[0, 100]], "labels": 0},
    ]
    verify(problem, certificate)


def test_ids_may_be_numbers() -> None:
    problem, _ = best_of_two_stages()
    numbers = {"a": 0, "b": 1}
    text = to_builtins(problem)
    for layer in text["graph"]["layers"]:
        layer["id"] = numbers[layer["id"]]
    for edge in text["graph"]["edges"]:
        edge |= {end: numbers[edge[end]] for end in ("source", "target")}
    numbered = decode_problem(json.dumps(text).encode())
    plan = make_plan(("a b", SINGLE), replicas=2)
    stages = (replace(plan.stages[0], layers=(0, 1)),)
    certificate = certify(numbered, replace(plan, stages=stages))
    assert certificate["status"] == "optimal"
    verify(numbered, certificate)


def test_a_layer_without_a_checkpoint_runs_once() -> None:
    """Two micro-batches of 10 + 20 ns, although full recomputation alone fits."""
    kept = (Activations(recompute="full", kept_bytes=0, reruns=False),)
    problem = make_problem(
        {"a": (make_cost(10, 20, activations=kept),)},
        devices=1,
        topology=NCCL,
        global_batch=2,
        recompute=("full",),
    )
    plan = make_plan(("a", Strategy(recompute="full")))
    verify(problem, proves(problem, plan, 60))


def test_prices_of_devices_bound_the_sum() -> None:
    """Layers of 100 ns, 60 on two devices; two devices for both.

    One micro-batch. One stage of two devices takes 120, so a plan below that
    has no load above 119: a layer is a stage. With two devices for one of
    them, 238 of 2 · 119 device-ns are gone, and the other takes 100 at least.
    So each has one device, and the cheapest path takes 200.
    """
    costs = {name: (make_cost(50, 50), make_cost(30, 30, tp=2)) for name in "ab"}
    problem = make_problem(costs, devices=2, topology=NCCL)
    plan = make_plan(("a b", Strategy(tp=2)))
    certificate = certify(problem, plan)
    assert certificate["step_time_quanta"] == 120
    assert certificate["proof"] == [
        {"replicas": 1, "micro_batch": 1, "prices": [[0, 200]], "labels": 0}
    ]


def test_devices_have_a_price_where_they_are_short() -> None:
    """Three layers of 100 ns, 60 on two devices; four devices, two for one.

    No two fit on a stage. At a price of 40 a device a stage costs 140 on one
    and on two devices, three of them 420: with four devices paid for that is
    260, what the best plan takes. At no other price are 260 proven.
    """
    costs = {
        name: (
            make_cost(50, 50, weight_bytes=10),
            make_cost(30, 30, tp=2, weight_bytes=10),
        )
        for name in "abc"
    }
    problem = make_problem(
        costs,
        topology=NCCL,
        memory_bytes=100,
        replicas=(1,),
        optimizer=Optimizer(gradient_bytes=2, state_bytes=12),
    )
    plan = make_plan(("a", SINGLE), ("b", SINGLE), ("c", Strategy(tp=2)))
    assert proves(problem, plan, 260)["proof"] == [
        {"replicas": 1, "micro_batch": 1, "prices": [[40, 420]], "labels": 0}
    ]


@pytest.mark.parametrize(
    ("count", "apart_ns", "together_ns", "best"),
    [(1, (100, 100), (90, 90), 430), (2, (190, 10), (179, 1), 610)],
)
def test_what_is_in_front_may_be_run_in_several_ways(
    count: int, apart_ns: tuple[int, int], together_ns: tuple[int, int], best: int
) -> None:
    """Layers a and b take 180 ns on two devices, c 100, and 150 to update.

    (10 + 2 · 10 + 2 · 60 bytes at 1 ns each.) That is 180 + 100 + 150, with a
    second micro-batch 180 more. On a device each a and b add up to 200: no
    better, but not by the 150 of the update.
    """
    costs = {
        name: (make_cost(0, one_ns), make_cost(0, two_ns, tp=2))
        for name, one_ns, two_ns in zip("ab", apart_ns, together_ns, strict=True)
    } | {"c": (make_cost(50, 50, weight_bytes=10),)}
    problem = make_problem(
        costs,
        edges=(("a", "b", 0), ("b", "c", 0)),
        topology=NCCL,
        devices=3,
        hbm=1e9,
        replicas=(1,),
        global_batch=count,
        optimizer=Optimizer(gradient_bytes=2, state_bytes=12),
    )
    plan = make_plan(("a b", Strategy(tp=2)), ("c", SINGLE))
    proves(problem, plan, best)


def test_a_search_of_many_ends_misses_no_plan() -> None:
    """Prices do not settle it, and the best plan is found if it is allowed."""
    model = architecture("gemma2-27b")
    site, devices = parse_cluster("dgx-h100x16")
    problem = build_problem(
        model, site, devices, choose(model, site, devices, Request())
    )
    plan = run_solver(problem, "dp", SolveOptions()).plan
    assert plan is not None
    certificate = certify(problem, plan)
    assert certificate["status"] == "optimal"
    assert sum(x["labels"] for x in certificate["proof"]) > 1000
    best = certificate["step_time_quanta"]
    assert refuted(problem, best + 1) == best


def test_stages_are_tried_with_what_is_in_flight_at_least() -> None:
    """Two micro-batches: two of a in flight, 2 · 50 bytes, one of b.

    With 5 bytes received each way the loads are 45 and 85, the step 45 + 2 ·
    85. They add up to 130, so below 215 the largest is at most 84, and b has
    none. With three of a in flight, or two of b, nothing would fit.
    """
    costs = {
        "a": make_cost(10, 20, kept_bytes=50),
        "b": make_cost(30, 40, kept_bytes=100),
    }
    problem = make_problem(
        costs,
        edge=5,
        topology=NCCL,
        devices=2,
        memory_bytes=100,
        global_batch=2,
        replicas=(1,),
    )
    certificate = certify(problem, make_plan(("a", SINGLE), ("b", SINGLE)))
    assert certificate["step_time_quanta"] == 215
    assert certificate["proof"][0]["prices"] == [[0, 130], [0, None]]


def test_the_least_loads_are_over_strategies_that_receive_less() -> None:
    """A load of 100 beats one of 101, unless it receives twice as much.

    Layers a and b on two devices each, as a stage of both holds 30 of 20
    bytes. Of 200 bytes each way a tensor-parallel stage receives all, 10 +
    200 ns, one with context parallelism 10 + 100: loads of 310 and of 211.
    """
    costs = {
        name: (
            make_cost(50, 50, tp=2, kept_bytes=15),
            make_cost(50, 51, cp=2, kept_bytes=15),
        )
        for name in "ab"
    }
    problem = make_problem(costs, edge=200, topology=NCCL, memory_bytes=20)
    context = Strategy(cp=2)
    proves(problem, make_plan(("a", context), ("b", context)), 422)


def test_a_stage_is_tried_in_front_of_the_best_end_of_a_state() -> None:
    """Two ends of one state: b takes 100 and a sync of 50, or 200 and none.

    In front of it a takes 10 and a sync of 1000, or 60 and none. So 60 + 100
    + 50 is best, while 60 in front of the end of 200 is too long: that of 100
    has to be tried. (Context-parallel ranks all-reduce X bytes in 20 + X ns.)
    """
    costs = {
        "a": (
            make_cost(30, 30, tp=2, weight_bytes=980),
            make_cost(5, 5, cp=2, weight_bytes=980),
        ),
        "b": (
            make_cost(100, 100, tp=2, weight_bytes=30),
            make_cost(50, 50, cp=2, weight_bytes=30),
        ),
    }
    problem = make_problem(
        costs,
        edge=0,
        topology=NCCL,
        optimizer=Optimizer(gradient_bytes=2, state_bytes=0),
    )
    plan = make_plan(("a", Strategy(tp=2)), ("b", Strategy(cp=2)))
    proves(problem, plan, 210)


def test_what_passes_a_stage_is_split_over_its_ranks() -> None:
    """58 bytes from a to c pass b, 29 on each rank, where 31 are kept: 60.

    That fits exactly, and no two layers do. Each of two cuts is crossed both
    ways in 10 + 29 ns, and three layers take 20: 216. Whole, b would not fit.
    """
    costs = {x: make_cost(10, 10, cp=2, kept_bytes=31) for x in "abc"}
    problem = make_problem(
        costs,
        edges=(("a", "b", 0), ("b", "c", 0), ("a", "c", 58)),
        devices=6,
        topology=replace(NCCL, levels=(replace(NCCL.levels[0], fan_out=6),)),
        memory_bytes=60,
    )
    plan = make_plan(*((x, Strategy(cp=2)) for x in "abc"))
    proves(problem, plan, 216)


def test_groups_of_uneven_units() -> None:
    """Five devices in threes: three meet and two meet, so the fewest are two.

    Per level: units, the fewest and most ranks in one, the fewest that meet.
    """
    levels = [{"fan_out": 3, "bandwidth_bytes_per_s": 1}] * 2
    shapes = prices.Tree(levels).shapes(5, 1, 5, ((0,),))
    assert shapes == {(5, (5, 1, 1, 2), (2, 2, 3, 2))}


def test_trees_are_over_even_units() -> None:
    """Four nodes of two: 2 · (4 + 40 - 1) ns around, 2 · (1 + 20) on trees.

    Five in threes are no tree.
    """
    levels = [
        {"fan_out": fan_out, "latency_ns": ns, "bandwidth_bytes_per_s": 10**9}
        for fan_out, ns in ((2, 1), (4, 10))
    ]
    tree = prices.Tree(levels)
    (shape,) = tree.shapes(8, 1, 8, ((0,),))
    assert [a for a, _ in tree.lines("all-reduce", shape)] == [2 * 43, 2 * 21]
    levels[0]["fan_out"] = 3
    tree = prices.Tree(levels)
    (shape,) = tree.shapes(5, 1, 5, ((0,),))
    assert len(tree.lines("all-reduce", shape)) == 1


def test_the_least_load_is_that_of_the_stage_alone() -> None:
    """Of both layers cp takes 70 and tp 110, yet a alone takes 10 with tp."""
    costs = {
        "a": (make_cost(5, 5, tp=2), make_cost(25, 25, cp=2)),
        "b": (make_cost(50, 50, tp=2), make_cost(10, 10, cp=2)),
    }
    problem = make_problem(costs, edge=0, topology=NCCL, replicas=(1,), global_batch=1)
    plan = make_plan(("a", Strategy(tp=2)), ("b", Strategy(cp=2)))
    proves(problem, plan, 30)


def test_the_best_plan_of_a_worse_one_is_the_bound() -> None:
    """One replica takes 2 · 100 ns; the bound is what two take, see above."""
    problem = two_stages(topology=NCCL)
    certificate = certify(problem, make_plan(("a b", SINGLE)))
    assert certificate["step_time_quanta"] == 200
    assert certificate["lower_bound_quanta"] == 143
    assert certificate["status"] == "feasible"
    verify(problem, certificate)


def test_a_search_that_is_too_long_costs_some_of_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem, plan = solved("llama2-7b-8")
    monkeypatch.setattr(check, "MOST_LABELS", 0)
    certificate = certify(problem, plan)
    assert certificate["status"] == "feasible"
    gap = certificate["step_time_quanta"] - certificate["lower_bound_quanta"]
    assert 0 < gap < certificate["step_time_quanta"] / 50
    assert not any(split["labels"] for split in certificate["proof"])
    monkeypatch.undo()
    verify(problem, certificate)


# Random problems


def random_pairs(seed: int, count: int) -> Iterator[tuple[Problem, Plan]]:
    """Yield covered problems with plans that are mostly legal."""
    source = random.Random(seed)
    while count:
        problem = covered(draw_problem(source, "standard", sequences=count % 3 == 0))
        if problem is not None and count % 4 == 0:
            problem = with_rules(source, problem)
        plan = None if problem is None else draw_plan(source, problem)
        if problem is None or plan is None:
            continue
        if source.random() < 0.15:
            plan = spoil(source, problem, plan)
        if is_covered(plan):
            yield problem, plan
            count -= 1


@pytest.mark.parametrize("count", [40, 170])
def test_plans_take_what_they_are_scored_with(count: int) -> None:
    """Whether they fit, too: with all of their memory, and a byte less."""
    seen = Counter[str]()
    for problem, plan in random_pairs(1, count):
        try:
            found = score(problem, plan)
        except NestError:
            seen["illegal"] += 1
            with pytest.raises((check.RejectedError, LookupError)):
                check.score(read(problem), to_builtins(second(plan)))
            continue
        need = max(stage.memory_bytes for stage in found.stages)
        seen["legal"] += 1
        document = to_builtins(second(plan))
        for lacking in (0, 1):
            tight = with_memory(problem, need - lacking)
            if score(tight, plan).feasible:
                assert check.score(read(tight), document) == found.step_quanta
                continue
            seen["infeasible"] += 1
            with pytest.raises(check.RejectedError, match="too large"):
                check.score(read(tight), document)
    assert seen["legal"] > 0.45 * count
    assert seen["infeasible"] > 0.35 * count
    assert seen["illegal"] > 0.05 * count


def test_no_bound_is_above_the_best_plan() -> None:
    """Those of best plans meet them, those of others prove the best one.

    ``brute`` prices every plan.
    """
    source = random.Random(5)
    met = others = searched = 0
    for problem in itertools.islice(draw_small(5), 70):
        plan = solve("brute", problem).plan
        if plan is None:
            continue
        best = score(problem, plan).step_quanta
        certificate = certify(problem, plan)
        verify(problem, certificate)
        assert certificate["step_time_quanta"] == best
        assert certificate["lower_bound_quanta"] <= best
        if is_exact(problem):
            assert certificate["lower_bound_quanta"] == best
            assert refuted(problem, best + 1) == best
        met += certificate["lower_bound_quanta"] == best
        searched += sum(x["labels"] for x in certificate["proof"])
        for _ in range(4):
            worse = draw_plan(source, problem)
            if worse is None or not is_covered(worse):
                continue
            try:
                certificate = certify(problem, worse)
            except NestError:
                continue
            bound = certificate["lower_bound_quanta"]
            assert bound <= best
            # Only jobs with a strategy per layer list such plans.
            listed = all(x.strategy is not None for x in worse.stages)
            assert bound == best or not (is_exact(problem) and listed)
            others += certificate["step_time_quanta"] > best
            break
    assert met > 40
    assert others > 20
    assert searched


def refuted(problem: Problem, bound: int) -> int | None:
    """Return what a plan below a bound takes, if the proof finds one."""
    found = []
    terms = read(problem)
    for split in terms.rules.cases():
        try:
            certifying.prove_split(terms, split, bound)
        except check.RejectedError as error:
            found.append(error.args[1])
    return min(found, default=None)


def is_exact(problem: Problem) -> bool:
    """Whether bounds meet best plans: not with a strategy per layer."""
    return problem.job.granularity == "stage"


def draw_small(seed: int) -> Iterator[Problem]:
    """Yield problems with few plans, memory for one of them or plenty."""
    source = random.Random(seed)
    for problem in draw_covered(seed):
        if not 2 <= count_plans(problem) <= 300:
            continue
        plan = draw_plan(source, problem)
        if plan is not None and source.random() < 0.6:
            try:
                found = score(problem, plan)
            except NestError:
                continue
            need = max(stage.memory_bytes for stage in found.stages)
            problem = with_memory(problem, need - source.choice((0, 1)))
        yield problem


def solved(name: str) -> tuple[Problem, Plan]:
    problem = builtin.load(name)
    plan = run_solver(problem, "dp", SolveOptions()).plan
    assert plan is not None
    return problem, plan


@pytest.fixture(scope="module")
def examples() -> list[tuple[Problem, Certificate]]:
    """Certificates of a model, and of random problems with several stages."""
    problem, plan = solved("llama2-7b-8")
    found = [(problem, certify(problem, plan))]
    for problem, plan in random_pairs(11, 300):
        fits = count_cases(problem) <= MOST_CASES
        if fits and len(plan.stages) > 1 and len(found) < 12:
            try:
                certificate = certify(problem, plan)
            except NestError:
                continue
            found.append((problem, certificate))
    return found


# Mutations: each changes a certificate, and says whether it is another claim.

Mutation = Callable[[random.Random, Certificate], None]


def numbers(name: str) -> Mutation:
    def change(source: random.Random, found: Certificate) -> None:
        found[name] += source.choice((-1000, -1, 1, 2, 10**6))

    return change


def raise_bound(source: random.Random, found: Certificate) -> None:
    found["lower_bound_quanta"] = found["step_time_quanta"] + source.choice(
        (1, 7, 10**5)
    )


def turn_status(_source: random.Random, found: Certificate) -> None:
    found["status"] = {"optimal": "feasible", "feasible": "optimal"}[found["status"]]


def other_hash(source: random.Random, found: Certificate) -> None:
    place = source.randrange(64)
    old = found["problem_hash"]
    digit = "0" if old[place] != "0" else "1"
    found["problem_hash"] = old[:place] + digit + old[place + 1 :]


def drop_split(source: random.Random, found: Certificate) -> None:
    found["proof"].pop(source.randrange(len(found["proof"])))


def repeat_split(source: random.Random, found: Certificate) -> None:
    found["proof"].append(source.choice(found["proof"]))


def reverse_splits(_source: random.Random, found: Certificate) -> None:
    found["proof"].reverse()
    if len(found["proof"]) < 2:
        found["proof"] = []


def change_label(source: random.Random, found: Certificate) -> None:
    split = source.choice(found["proof"])
    split["labels"] = abs(split["labels"] + source.choice((-1, 1, 5)))
    if split["labels"] == 1:
        split["labels"] = 10**4


def change_split(source: random.Random, found: Certificate) -> None:
    source.choice(found["proof"])[source.choice(("replicas", "micro_batch"))] += 1


def with_price(change: Callable[[random.Random, list[Any]], None]) -> Mutation:
    def apply(source: random.Random, found: Certificate) -> None:
        listed = [x["prices"] for x in found["proof"] if x["prices"]]
        if listed:
            change(source, source.choice(listed))
        else:
            found["proof"][0]["prices"] = [[1, 1]]

    return apply


def change_price(source: random.Random, listed: list[Any]) -> None:
    source.choice(listed)[0] += source.choice((1, 2, 10**4))


def change_path(source: random.Random, listed: list[Any]) -> None:
    pair = source.choice(listed)
    pair[1] = 5 if pair[1] is None else pair[1] + source.choice((1, 100))


def add_price(source: random.Random, listed: list[Any]) -> None:
    listed.append([source.randrange(10), source.randrange(10**6)])


def change_plan(source: random.Random, found: Certificate) -> None:
    plan = found["plan"]
    stage = source.choice(plan["stages"])
    strategy = stage.get("strategy") or source.choice(stage["strategies"])
    what = source.choice(
        ("replicas", "micro_batch", "dp", "tp", "zero", "recompute", "cut")
    )
    if what in plan:
        plan[what] = source.choice((1, 2, 3, 4, 8))
    elif what in ("dp", "tp"):
        strategy[what] *= 2
        stage["devices"] *= 2
    elif what == "zero":
        strategy["zero"] = source.randrange(4)
    elif what == "recompute":
        strategy["recompute"] = source.choice(("none", "selective", "full"))
    elif len(plan["stages"]) > 1:
        number = source.randrange(len(plan["stages"]) - 1)
        here, after = plan["stages"][number : number + 2]
        if len(here["layers"]) > 1:
            after["layers"].insert(0, here["layers"].pop())
        else:
            here["layers"] += after["layers"]
            del plan["stages"][number + 1]


#: Whatever they do, what they leave is not what the problem says.
MUTATIONS: dict[str, Mutation] = {
    "value": numbers("step_time_quanta"),
    "bound raised": raise_bound,
    "bound": numbers("lower_bound_quanta"),
    "status": turn_status,
    "hash": other_hash,
    "split dropped": drop_split,
    "split twice": repeat_split,
    "splits reversed": reverse_splits,
    "labels": change_label,
    "split": change_split,
    "price": with_price(change_price),
    "path": with_price(change_path),
    "price added": with_price(add_price),
    "plan": change_plan,
}


def still_true(problem: Problem, old: Certificate, new: Certificate, name: str) -> bool:
    """Whether a changed certificate claims nothing wrong.

    A bound that is lower, of a plan that was not optimal, holds; one that is
    higher may, too. A plan may change and take as long.
    """
    if new == old:
        return True
    if name == "bound":
        return (
            new["status"] == "feasible"
            and new["lower_bound_quanta"] < new["step_time_quanta"]
        )
    if name != "plan":
        return False
    try:
        found = check.score(read(problem), new["plan"])
    except (check.RejectedError, LookupError, TypeError):
        return False
    return bool(found == old["step_time_quanta"])


@pytest.mark.parametrize("name", MUTATIONS)
def test_no_mutation_is_believed(
    name: str, examples: list[tuple[Problem, Certificate]]
) -> None:
    """At least 600 in all, sealed again: none is told by its seal."""
    source, seen = random.Random(name), 0
    for _ in range(1000):
        problem, certificate = source.choice(examples)
        changed = copy.deepcopy(certificate)
        MUTATIONS[name](source, changed)
        if still_true(problem, certificate, changed, name):
            continue
        seen += 1
        with pytest.raises((check.RejectedError, documents.BadInputError, LookupError)):
            verify(problem, sealed(changed))
        with pytest.raises((check.RejectedError, documents.BadInputError)):
            verify(problem, changed)  # nor with the seal it had
        if seen == 45:
            break
    assert seen == 45


def test_what_says_the_same_in_other_words_holds(
    examples: list[tuple[Problem, Certificate]],
) -> None:
    """Layers of a stage are a set, and other prices may prove a bound too.

    What the checker finds with them has to stand beside them.
    """
    turned = 0
    for problem, certificate in examples:
        changed = copy.deepcopy(certificate)
        for stage in changed["plan"]["stages"]:
            stage["layers"].reverse()
            stage.get("strategies", []).reverse()
        verify(problem, sealed(changed))
        turned += changed != certificate
        bound, terms = changed["lower_bound_quanta"], read(problem)
        for case, entry in zip(terms.rules.cases(), changed["proof"], strict=True):
            split = check.Split(terms, case)
            doubled = [2 * price for price, _ in entry["prices"]]
            entry["prices"], entry["labels"] = split.prove(bound, doubled)
        verify(problem, sealed(changed))
    assert turned


def test_a_certificate_is_for_one_problem(
    examples: list[tuple[Problem, Certificate]],
) -> None:
    for problem, certificate in examples:
        other = replace(problem, name="another")
        with pytest.raises(check.RejectedError, match="problem_hash"):
            verify(other, certificate)


# Problems without a plan


def crowded(**fields: Any) -> Problem:
    """Return three layers that fit only where too few are in flight.

    Memory of 100 bytes; a and b keep 40 each, c keeps 80, a quarter of it on
    four devices, on which a cannot run.
    """
    costs = {
        "a": (make_cost(kept_bytes=40),),
        "b": (make_cost(kept_bytes=40), make_cost(kept_bytes=10, tp=4)),
        "c": (make_cost(kept_bytes=80), make_cost(kept_bytes=20, tp=4)),
    }
    fields = {"memory_bytes": 100, "global_batch": 3, **fields}
    return make_problem(costs, topology=NCCL, replicas=(1,), **fields)


def test_a_problem_without_a_plan_by_hand() -> None:
    """No two layers fit on a device: 2 · (40 + 40), 40 + 80 bytes.

    Behind a come at least one stage, of b and c on four devices, so with two in flight,
    80 bytes, a is left: but these are five devices of four. Of the paths with four
    devices or fewer one is left, three stages of three devices. At a price of 1 it
    costs 3, so nothing is settled. The search lists two ends, c, and b with c, where
    one device or more is left for a: a has three in flight, 120 bytes.
    """
    certificate = certify_infeasible(crowded())
    assert certificate["status"] == "infeasible"
    for name in ("plan", "step_time_quanta", "lower_bound_quanta"):
        assert certificate[name] is None
    (split,) = certificate["proof"]
    assert split["labels"] > 0
    verify(crowded(), certificate)
    # With two micro-batches two are in flight at most; or with more memory.
    for fields in ({"global_batch": 2}, {"memory_bytes": 120}):
        assert solve("brute", crowded(**fields)).plan is not None
        with pytest.raises(InvalidPlanError, match="there are plans that fit"):
            certify_infeasible(crowded(**fields))
        wrong = certificate | {"problem_hash": problem_hash(crowded(**fields))}
        with pytest.raises(check.RejectedError, match="plan that fits, got one"):
            verify(crowded(**fields), sealed(wrong))


@pytest.mark.parametrize(
    ("kept_bytes", "prices"),
    [
        # Each of three layers needs a device of its own, and there are two.
        (6, [[1, 3]]),
        # They hold 21 bytes, and two devices 20: no path is looked for.
        (7, []),
    ],
)
def test_devices_that_are_too_few_by_hand(
    kept_bytes: int, prices: list[list[int]]
) -> None:
    costs = {name: make_cost(kept_bytes=kept_bytes) for name in "abc"}
    problem = make_problem(
        costs, devices=2, memory_bytes=10, topology=NCCL, replicas=(1,)
    )
    certificate = certify_infeasible(problem)
    assert certificate["proof"] == [
        {"replicas": 1, "micro_batch": 1, "prices": prices, "labels": 0}
    ]
    verify(problem, certificate)


def test_sums_of_memory_have_the_fewest_micro_batches_in_flight() -> None:
    """Two of two stages: one in the last, so two of 5 and one of 10 bytes.

    That fits exactly. Under GPipe all of both are in flight, 30 bytes of 20.
    """
    costs = {"a": make_cost(kept_bytes=5), "b": make_cost(kept_bytes=10)}
    problem = make_problem(
        costs, devices=2, memory_bytes=10, global_batch=2, topology=NCCL, replicas=(1,)
    )
    with pytest.raises(InvalidPlanError, match="there are plans that fit"):
        certify_infeasible(problem)
    gpipe = replace(problem, job=replace(problem.job, schedule="gpipe"))
    certificate = certify_infeasible(gpipe)
    assert certificate["proof"][0]["prices"] == []
    verify(gpipe, certificate)


def test_none_is_certified_where_there_is_a_plan() -> None:
    """``brute`` says where there is none."""
    source, seen = random.Random(9), Counter[str]()
    for problem in itertools.islice(draw_small(9), 60):
        memory = problem.cluster.device.memory_bytes
        tight = with_memory(problem, int(memory * source.choice((1, 0.5))))
        if solve("brute", tight).plan is None:
            seen["none"] += 1
            try:
                verify(tight, certify_infeasible(tight))
            except UnsupportedProblemError:
                assert not is_exact(tight)
            continue
        seen["some"] += 1
        error, match = InvalidPlanError, "there are plans that fit"
        if not is_exact(tight):
            error, match = UnsupportedProblemError, "that may$"
        with pytest.raises(error, match=match):
            certify_infeasible(tight)
        for empty in (True, False):
            with pytest.raises(check.RejectedError):
                verify(tight, forged(source, tight, empty))
    assert seen["none"] > 5
    assert seen["some"] > 15


def forged(source: random.Random, problem: Problem, empty: bool) -> Certificate:
    """Return a certificate of nothing for a problem with plans."""
    prices = [] if empty else [[source.randrange(3), source.randrange(9)]]
    found = {
        "schema": "nest-certificate/1",
        "problem_hash": problem_hash(decode_problem(encode(problem))),
        "plan": None,
        "step_time_quanta": None,
        "lower_bound_quanta": None,
        "status": "infeasible",
        "proof": [
            {"replicas": r, "micro_batch": b, "prices": prices, "labels": 0}
            for r, b, *_ in read(problem).rules.cases()
        ],
    }
    return sealed(found)


def test_a_search_for_a_plan_that_is_too_long_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(check, "MOST_LABELS", 0)
    with pytest.raises(UnsupportedProblemError, match="more than 0 labels"):
        certify_infeasible(crowded())


def claim(name: str) -> Mutation:
    def change(source: random.Random, found: Certificate) -> None:
        found[name] = source.randrange(10**6)

    return change


def claim_plan(_source: random.Random, found: Certificate) -> None:
    found["plan"] = to_builtins(second(make_plan(("a b c", SINGLE))))


#: Those of plans that are about any proof, and claims of a plan.
NONE_MUTATIONS: dict[str, Mutation] = {
    name: MUTATIONS[name]
    for name in (
        *("hash", "split dropped", "split twice", "splits reversed"),
        *("labels", "split", "price", "path", "price added"),
    )
} | {
    "value": claim("step_time_quanta"),
    "bound": claim("lower_bound_quanta"),
    "status": lambda _, found: found.update(status="optimal"),
    "plan": claim_plan,
}


def test_no_mutation_of_none_is_believed() -> None:
    """Of 260, sealed again."""
    source, examples = random.Random(4), [crowded()]
    for problem in draw_small(3):
        tight = with_memory(problem, problem.cluster.device.memory_bytes // 2)
        exact = is_exact(tight) and len(examples) < 6
        if exact and solve("brute", tight).plan is None:
            examples.append(tight)
        if len(examples) == 6:
            break
    certificates = [(x, certify_infeasible(x)) for x in examples]
    for mutate in NONE_MUTATIONS.values():
        seen = 0
        while seen < 20:
            problem, certificate = source.choice(certificates)
            changed = copy.deepcopy(certificate)
            mutate(source, changed)
            if changed == certificate:
                continue
            seen += 1
            with pytest.raises(
                (check.RejectedError, documents.BadInputError, LookupError)
            ):
                verify(problem, sealed(changed))


# What is covered


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: replace(p, preset="nest-artifact"),
         "preset: expected standard, for a certificate, got nest-artifact"),
        (lambda p: replace(
            p, cluster=replace(p.cluster, topology=make_levels((4, 1, 1)))),
         "problem.cluster.topology.algorithms: expected nccl, for a "
         "certificate, got none, which is best; add it"),
    ],
)  # fmt: skip
def test_what_is_not_covered_is_refused_by_name(
    change: Callable[[Problem], Problem], message: str
) -> None:
    problem = change(two_stages(topology=NCCL))
    plan = make_plan(("a b", SINGLE))
    if problem.job.plans_order_passes:
        plan = replace(plan, order="1f1b")
    with pytest.raises(UnsupportedProblemError, match=message):
        certify(problem, plan)


def test_times_that_are_too_long_are_refused() -> None:
    """Even of a strategy that no plan can have, as b has no such cost."""
    long = make_cost(10**16, 0, tp=2)
    problem = make_problem(
        {"a": (make_cost(1, 1), long), "b": (make_cost(1, 1),)}, topology=NCCL
    )
    plan = make_plan(("a b", SINGLE))
    assert score(problem, plan).feasible
    with pytest.raises(
        UnsupportedProblemError, match=r"expected times of at most 2\*\*53 quanta"
    ):
        certify(problem, plan)


def test_experts_are_on_ranks_that_share_them() -> None:
    """One rank cannot be two ranks of experts."""
    problem = make_problem({"a": make_cost(1, 1, ep=2)}, topology=NCCL)
    strategy = {"dp": 1, "tp": 1, "cp": 1, "ep": 2, "zero": 0}
    stage = {
        "layers": ["a"],
        "devices": 1,
        "strategy": {**strategy, "recompute": "none"},
    }
    plan = {"replicas": 1, "micro_batch": 1, "stages": [stage]}
    with pytest.raises(check.RejectedError, match="stage 1 is illegal"):
        check.score(read(problem), plan)


def test_a_layer_is_in_a_stage_once() -> None:
    problem = two_stages(topology=NCCL)
    plan = to_builtins(second(make_plan(("a b", SINGLE))))
    assert check.score(read(problem), plan) == 200
    plan["stages"][0]["layers"] = ["a", "b", "a"]
    with pytest.raises(check.RejectedError, match="stage 1 is illegal"):
        check.score(read(problem), plan)


def test_replicas_have_devices_of_their_own() -> None:
    """Two replicas of three devices on four."""
    problem = make_problem(
        {name: make_cost() for name in "abc"}, topology=NCCL, global_batch=2
    )
    stages = ((name, SINGLE) for name in "abc")
    plan = to_builtins(second(make_plan(*stages, replicas=2)))
    with pytest.raises(check.RejectedError, match="stage 1 is illegal"):
        check.score(read(problem), plan)


@pytest.mark.parametrize("replicas", [0, 5, 10**20])
def test_there_are_no_more_replicas_than_devices(replicas: int) -> None:
    """Nor are so many counted, even if batches may be uneven."""
    problem = two_stages(topology=NCCL, uneven_batches=True)
    plan = to_builtins(second(make_plan(("a b", SINGLE))))
    assert check.score(read(problem), plan) == 200
    with pytest.raises(check.RejectedError, match="plan: replicas and sam"):
        check.score(read(problem), plan | {"replicas": replicas})


def test_plans_without_a_certificate_are_refused() -> None:
    costs = {"a": (make_cost(weight_bytes=11),)}
    problem = make_problem(costs, topology=NCCL, memory_bytes=10)
    with pytest.raises(InvalidPlanError, match="expected one that fits"):
        certify(problem, make_plan(("a", SINGLE)))


def test_a_graph_with_too_many_cuts_is_refused() -> None:
    """Eleven layers without edges are 2,048 closed sets."""
    costs = {name: make_cost() for name in "abcdefghijk"}
    problem = make_problem(costs, topology=NCCL)
    plan = make_plan((" ".join(costs), SINGLE))
    with pytest.raises(UnsupportedProblemError, match="over 1500 cuts"):
        certify(problem, plan)


# The program


Program = Callable[..., tuple[int, str, str]]


@pytest.fixture
def program(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Program:
    """Return a function that runs ``nest-check``: exit code and output."""

    def run(*arguments: Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["nest-check", *map(str, arguments)])
        return check.main(), *capsys.readouterr()

    return run


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    problem, certificate = best_of_two_stages()
    paths = tmp_path / "problem.json", tmp_path / "certificate.json"
    paths[0].write_bytes(written(problem))
    paths[1].write_text(json.dumps(certificate))
    return paths


def test_it_says_what_it_verified(program: Program, files: tuple[Path, Path]) -> None:
    assert program(*files) == (
        0,
        "verified: optimal, step time 143 quanta, lower bound 143\n",
        "",
    )


def test_it_says_that_no_plan_fits(program: Program, files: tuple[Path, Path]) -> None:
    files[0].write_bytes(written(crowded()))
    files[1].write_text(json.dumps(certify_infeasible(crowded())))
    assert program(*files) == (0, "verified: infeasible, no plan fits\n", "")


def test_it_says_why_it_rejects(program: Program, files: tuple[Path, Path]) -> None:
    certificate = json.loads(files[1].read_text())
    certificate["step_time_quanta"] = 144
    certificate["status"] = "feasible"
    files[1].write_text(json.dumps(sealed(certificate)))
    code, out, err = program(*files)
    assert (code, err) == (1, "")
    assert out == "rejected: step_time_quanta: the plan takes 143\n"


def test_a_bound_above_the_value_is_no_bound() -> None:
    problem, certificate = best_of_two_stages()
    wrong = {"lower_bound_quanta": 144, "status": "feasible"}
    with pytest.raises(
        check.RejectedError,
        match="lower_bound_quanta: expected at most 143, what the plan takes",
    ):
        verify(problem, sealed(certificate | wrong))


def test_a_bound_between_two_quanta_is_none() -> None:
    """Times are whole: with L = 142.5, steps above 142 would be left out.

    So would be 142.5 above an optimum of 142, by the rounding of ⌊(L-1)/M⌋.
    """
    problem, certificate = best_of_two_stages()
    for bound, text in ((142.5, "142.5"), (143.0, "143.0"), (True, "True")):
        wrong = {"lower_bound_quanta": bound, "status": "feasible"}
        with pytest.raises(
            documents.BadInputError,
            match=f"lower_bound_quanta: expected a whole number, got {text}",
        ):
            verify(problem, sealed(certificate | wrong))


def test_nothing_is_in_a_certificate_that_is_not_read() -> None:
    problem, certificate = best_of_two_stages()
    verify(problem, certificate)
    for part in ("certificate", "plan", "stages", "strategy", "proof"):
        changed = copy.deepcopy(certificate)
        where = {
            "certificate": changed,
            "plan": changed["plan"],
            "stages": changed["plan"]["stages"][0],
            "strategy": changed["plan"]["stages"][0]["strategy"],
            "proof": changed["proof"][0],
        }
        where[part]["members"] = 1
        with pytest.raises(documents.BadInputError, match="members: expected nothing"):
            verify(problem, sealed(changed))


@pytest.mark.parametrize(
    ("path", "value", "message"), rows("certificates", "refused_problems")
)
def test_problems_that_nest_refuses_are_refused(
    path: str, value: Any, message: str
) -> None:
    document = json.loads(written(two_stages(topology=NCCL)))
    prices.Problem(documents.parse(json.dumps(document), "problem")[0])
    if isinstance(value, dict) and "again" in value:
        put(document, path, lambda listed: [*listed, listed[0] | value["again"]])
    else:
        put(document, path, value)
    with pytest.raises(documents.BadInputError, match=message):
        prices.Problem(documents.parse(json.dumps(document), "problem")[0])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.1", Fraction(3602879701896397, 1 << 55)),
        ("1.00000000000000000001", 1),
        ("9007199254740993", (1 << 53) + 1),
    ],
)
def test_fractions_are_the_nearest_doubles(text: str, value: Fraction | int) -> None:
    """As nest reads them; whole numbers are as they stand there."""
    document = f'{{"forward_ns": {text}}}'
    assert documents.parse(document, "problem")[0] == {"forward_ns": value}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected JSON, got Expecting value"),
        ("[]", "expected JSON, got 'list' object"),
        ("[" * 100_000, "bad.json: expected JSON, got too many nested brack"),
        ('{"seal": 1, "seal": 1}', "an object with a key twice"),
        ('{"labels": NaN}', r"labels: expected 0 to 1e21, got nan"),
        ('{"labels": -1}', "labels: expected 0 to 1e21, got -1"),
        ('{"labels": 1e999}', "labels: expected 0 to 1e21, got inf"),
        ('{"labels": ' + "9" * 5000 + "}", r"value has 5000 digits\n$"),
        ('{"labels": ' + "9" * 30 + "}", "labels: expected 0 to 1e21, got 9"),
        (
            '{"schema": "nest-problem/1", "color": 1}',
            "bad.json.color: expected nothing, for a certificate, got 1; ",
        ),
        ('{"schema": "nest-problem/1", "\\ud800\\n": 1}', r"\\ud800\\n: exp"),
        ("{}", "expected a problem and a certificate as nest writes them"),
        ('{"schema": "nest-certificate/1"}', "got one without the field '"),
        ('{"plan": 5, "proof": 1}', "expected a problem and a certificate"),
    ],
)
def test_malformed_files_are_bad_input(
    program: Program, files: tuple[Path, Path], text: str, message: str
) -> None:
    """One line each, whichever of the two files it is."""
    bad = files[0].with_name("bad.json")
    bad.write_text(text)
    for arguments in ((files[0], bad), (bad, files[1])):
        code, out, err = program(*arguments)
        assert (code, out) == (2, "")
        assert err.startswith("nest-check: ")
        assert err.count("\n") == 1
        assert re.search(message, err), err


@pytest.mark.parametrize(
    ("path", "value"), rows("certificates", "known_keys_elsewhere")
)
def test_known_keys_elsewhere_are_bad_input(path: str, value: int) -> None:
    document = json.loads(written(two_stages(topology=NCCL)))
    put(document, path, value)
    where = f"problem.{path.replace('.0', '')}"
    with pytest.raises(
        documents.BadInputError,
        match=rf"^{where}: expected nothing, for a certificate, got "
        rf"{value}; change or remove it$",
    ):
        documents.parse(json.dumps(document), "problem")


def test_it_says_how_it_is_used(program: Program) -> None:
    for word in ("-h", "--help"):
        code, out, err = program(Path(word))
        assert (code, err) == (0, "")
        assert out.startswith("nest-check PROBLEM CERTIFICATE: ")


def test_missing_files_are_bad_input(
    program: Program, files: tuple[Path, Path]
) -> None:
    code, _, err = program(files[0], Path("none.json"))
    assert code == 2
    assert "none.json" in err
    code, _, err = program(files[0])
    assert code == 2
    assert "expected PROBLEM CERTIFICATE" in err


def test_it_rests_on_little() -> None:
    """The standard library, and seven files of at most 400 lines."""
    names = {*("check", "documents", "graphs", "networks", "prices", "rules"), "stages"}
    for path in (FOLDER / f"{name}.py" for name in names):
        text = path.read_text()
        assert text.count("\n") <= 400
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                assert {alias.name for alias in node.names} <= sys.stdlib_module_names
            if isinstance(node, ast.ImportFrom):
                own = node.level == 1 and node.module in names
                assert own or node.module in sys.stdlib_module_names
