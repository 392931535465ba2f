"""Certificates of plans that are timed pass by pass: figures by hand, and drawn."""

from __future__ import annotations

import itertools
import json
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from nest.certificates import check, documents, prices, rules
from nest.certificates.certify import certify, certify_infeasible
from nest.cost.score import score
from nest.errors import InvalidPlanError, NestError, UnsupportedProblemError
from nest.ir import Plan, Problem, Strategy
from nest.ir.io import encode, plan_to_json
from nest.ir.job import Optimizer
from tests.builders import (
    kept_or_full,
    make_cost,
    make_levels,
    make_plan,
    make_problem,
    with_job,
)
from tests.certified import draw_timed
from tests.independent.generate import draw_plan, spoil
from tests.orders import best_of_all

#: Two devices: no message takes time.
FREE = replace(make_levels((2, 0.0, 1e18)), algorithms="nccl")


def read(problem: Problem) -> prices.Problem:
    return prices.Problem(documents.parse(encode(problem), "problem")[0])


def scored(terms: prices.Problem, plan: Plan) -> int | None:
    """Return what the checker says; ``None`` for a plan that it rejects."""
    try:
        return check.score(terms, plan_to_json(replace(plan, problem_hash=None)))
    except check.RejectedError:
        return None


def verify(problem: Problem, certificate: dict[str, Any]) -> str:
    data, seal = documents.parse(json.dumps(certificate), "certificate")
    found, problem_hash = documents.parse(encode(problem), "problem")
    return check.check(prices.Problem(found), problem_hash, data, seal)


def pair(**job: Any) -> Problem:
    """Build four layers of 10 + 20 ns (10 for weights), 10 B and 4 B kept."""
    cost = make_cost(
        *(10, 20),
        weight_backward_ns=10.0,
        weight_bytes=10,
        kept_bytes=4,
        working_bytes=job.pop("working_bytes", 0),
    )
    fields = {"global_batch": 4, "memory_bytes": 10**6, "schedule": "any", **job}
    return make_problem(
        dict.fromkeys("abcd", cost),
        edge=1,
        topology=FREE,
        devices=2,
        optimizer=Optimizer(weight_bytes=2, gradient_bytes=0, state_bytes=0),
        **fields,
    )


def split_plan(*stages: str, **fields: Any) -> Plan:
    """Build a plan whose stages have a device each, chunks apart."""
    plan = make_plan(*((" ".join(x), Strategy()) for x in stages))
    return replace(plan, **fields)


# Lists of passes


def words(passes: list[tuple[int, str, int]]) -> str:
    return " ".join(f"{chunk}{kind}{m}" for chunk, kind, m in passes)


@pytest.mark.parametrize(
    ("name", "r", "blocks", "v", "count", "expected"),
    [
        ("gpipe", 0, 2, 1, 2, "0F0 0F1 0B0 0B1"),
        ("1f1b", 0, 2, 1, 3, "0F0 0F1 0B0 0F2 0B1 0B2"),
        ("1f1b", 0, 3, 1, 1, "0F0 0B0"),
        ("zb-h1", 0, 2, 1, 2, "0F0 0F1 0I0 0W0 0I1 0W1"),
        ("zb-h1", 1, 2, 1, 2, "1F0 1I0 1F1 1I1 1W0 1W1"),
        ("1f1b", 1, 2, 2, 2, "1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1"),
        ("1f1b", 0, 2, 2, 2, "0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1"),
        ("zb-v", 1, 2, 2, 1, "1F0 2F0 2I0 2W0 1I0 1W0"),
        ("zb-v", 0, 2, 2, 1, "0F0 3F0 3I0 3W0 0I0 0W0"),
    ],
)
def test_the_lists_of_schedules(
    name: str, r: int, blocks: int, v: int, count: int, expected: str
) -> None:
    assert words(rules.named_passes(name, r, blocks, v, count)) == expected


@pytest.mark.parametrize(
    "texts",
    [
        ["0F0"],
        ["0F0", "0B0", "0B0"],
        ["0B0", "0F0"],
        ["0F0", "0W0", "0I0"],
        ["0F0", "0I0"],
        ["0F0", "0I0", "0W0", "0B0"],
        ["0F0", "0B0", "0F1", "0B1"],
        ["0F0", "0B0", "1F0", "1B0"],
        ["0F0", "0B0 "],
        ["0F0", "0b0"],
        ["0F0000000000", "0B0"],
    ],
)
def test_what_is_no_list_of_passes(texts: list[str]) -> None:
    assert rules.listed_passes(["0F0", "0B0"], [0], 1) is not None
    assert rules.listed_passes(texts, [0], 1) is None


def test_passes_are_replayed() -> None:
    """Two chunks of 1 + 2 + 3: the first one waits for 1 + 1 + 2 before its I."""
    times = [{"F": 1, "B": 5, "I": 2, "W": 3}] * 2
    lists = [
        [(0, "F", 0), (0, "F", 1), (0, "I", 0), (0, "W", 0), (0, "B", 1)],
        [(1, "F", 0), (1, "I", 0), (1, "F", 1), (1, "W", 0), (1, "B", 1)],
    ]
    # Block 2 ends at 1, 2, 4, 5, 8, 13, block 1 at 1, 2, 6, 9 and 13 + 5.
    assert rules.replay(lists, times, [7, 5]) == (18, [14, 10])
    stuck = [[(0, "I", 0), (0, "F", 0), (0, "W", 0)], []]
    assert rules.replay(stuck, times, [7, 5]) is None


# Plans


@pytest.mark.parametrize(
    ("schedule", "fields", "expected"),
    [
        # per micro-batch 20 + 40 on a stage; 20 in front of the second one
        ("zb-h1", {}, 4 * 60 + 20),
        ("any", {"order": "zb-h1"}, 4 * 60 + 20),
        ("any", {"order": "1f1b"}, 4 * 60 + 60),
        ("any", {"order": "gpipe"}, 4 * 60 + 60),
        (["zb-h1", "gpipe"], {"order": "gpipe"}, 4 * 60 + 60),
        (["zb-h1"], {"order": "gpipe"}, None),
        ("zb-h1", {"order": "zb-h1"}, None),
        ("any", {}, None),
        ("any", {"order": "zb-v"}, None),
        ("any", {"order": "any"}, None),
        ("any", {"order": "zb-h1", "placement": "v"}, None),
    ],
)
def test_what_plans_take(schedule: Any, fields: Any, expected: int | None) -> None:
    problem = pair(schedule="any")
    plan = plan_to_json(split_plan("ab", "cd"))
    data = documents.parse(encode(problem), "problem")[0]
    data["job"]["schedule"] = schedule
    terms = prices.Problem(data)
    try:
        found = check.score(terms, plan | fields)
    except check.RejectedError:
        found = None
    assert found == expected


@pytest.mark.parametrize(
    ("fields", "feasible"),
    [
        ({"virtual_stages": 2, "order": "1f1b"}, True),
        ({"virtual_stages": 2, "order": "zb-v", "placement": "v"}, True),
        ({"virtual_stages": 4, "order": "1f1b"}, False),
        ({"virtual_stages": 0, "order": "1f1b"}, False),
        ({"virtual_stages": 3, "order": "1f1b"}, False),
        ({"virtual_stages": 2, "order": "1f1b", "placement": "v"}, False),
        ({"virtual_stages": 2, "order": "zb-v"}, False),
        ({"virtual_stages": 2, "order": "gpipe"}, False),
        ({"virtual_stages": 2, "order": "1f1b", "placement": "x"}, False),
    ],
)
def test_chunks_and_places(fields: Any, feasible: bool) -> None:
    problem = pair(virtual_stages=(1, 2))
    plan = plan_to_json(split_plan("a", "b", "c", "d"))
    try:
        found = check.score(read(problem), plan | fields)
    except check.RejectedError:
        assert not feasible
        return
    assert feasible
    plan_of = replace(split_plan("a", "b", "c", "d"), **fields)
    assert found == score(problem, plan_of).step_quanta


def test_blocks_of_an_interleaved_plan_divide_micro_batches() -> None:
    problem = pair(virtual_stages=(2,), global_batch=3)
    plan = split_plan("a", "b", "c", "d", virtual_stages=2, order="1f1b")
    assert scored(read(problem), plan) is None


@pytest.mark.parametrize(("memory_bytes", "fits"), [(36, True), (35, False)])
def test_a_block_has_room_for_its_peak(memory_bytes: int, fits: bool) -> None:
    """Of 20 B and two micro-batches of 8 B in flight under zb-h1 on stage 2."""
    problem = pair(schedule="zb-h1", memory_bytes=memory_bytes, global_batch=2)
    assert (scored(read(problem), split_plan("ab", "cd")) is not None) == fits


@pytest.mark.parametrize(("memory_bytes", "fits"), [(39, True), (38, False)])
def test_a_block_has_room_for_all_its_chunks(memory_bytes: int, fits: bool) -> None:
    """Of 10 + 10 B, four passes of 4 B in flight, and 3 B that a layer works with."""
    problem = pair(
        virtual_stages=(2,), global_batch=2, memory_bytes=memory_bytes, working_bytes=3
    )
    plan = split_plan("a", "b", "c", "d", virtual_stages=2, order="1f1b")
    assert (scored(read(problem), plan) is not None) == fits


def test_one_block_does_not_run_chunks() -> None:
    """Of a plan that has as many stages as chunks."""
    problem = pair(virtual_stages=(2,), global_batch=1)
    plan = plan_to_json(split_plan("ab", "cd"))
    fields = {"virtual_stages": 2, "order": [["0F0", "1F0", "1B0", "0B0"]]}
    with pytest.raises(check.RejectedError, match="chunks or passes"):
        check.score(read(problem), plan | fields)


def wide(*strategies: Strategy, **job: Any) -> tuple[Problem, Plan]:
    """Build a V of four chunks on two blocks of two devices, of such strategies."""
    costs = tuple(
        make_cost(
            10, 20, tp=tp, samples=samples, weight_bytes=40, weight_backward_ns=5.0
        )
        for tp, samples in ((1, 1), (2, 2), (1, 2))
    )
    problem = make_problem(
        dict.fromkeys("abcd", costs),
        edge=30,
        topology=replace(make_levels((2, 3.0, 1e9), (2, 7.0, 1e9)), algorithms="nccl"),
        global_batch=4,
        micro_batches=(2,),
        schedule="any",
        virtual_stages=(1, 2),
        **job,
    )
    stages = zip("abcd", strategies, strict=True)
    plan = make_plan(*stages, micro_batch=2)
    fields = {"virtual_stages": 2, "placement": "v", "order": "zb-v"}
    return problem, replace(plan, **fields)


@pytest.mark.parametrize("zero", [0, 2, 3])
@pytest.mark.parametrize("last", [Strategy(tp=2), Strategy(dp=2)])
def test_what_a_turn_and_the_gradients_of_weights_take(
    last: Strategy, zero: int
) -> None:
    first = Strategy(dp=2, zero=zero)
    last = replace(last, zero=zero)
    problem, plan = wide(first, first, last, last, zero=(0, 2, 3))
    expected = score(problem, plan)
    assert expected.feasible
    assert scored(read(problem), plan) == expected.step_quanta


def test_chunks_of_a_block_have_as_many_devices() -> None:
    problem, plan = wide(*[Strategy(dp=2)] * 4)
    document = plan_to_json(plan)
    assert check.score(read(problem), document)
    narrow = document["stages"][3] | {"devices": 1}
    narrow["strategy"] = narrow["strategy"] | {"dp": 1}
    document["stages"][3] = narrow
    with pytest.raises(check.RejectedError, match="stage 4 is illegal"):
        check.score(read(problem), document)


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_what_recomputes_fully_is_not_split(recompute: str) -> None:
    cost = make_cost(10, 20, activations=kept_or_full(4, 1))
    problem = make_problem(
        dict.fromkeys("ab", cost),
        edge=1,
        topology=FREE,
        devices=2,
        global_batch=2,
        schedule="any",
        recompute=("none", "full"),
    )
    plan = make_plan(*((x, Strategy(recompute=recompute)) for x in "ab"))
    whole, split = (replace(plan, order=x) for x in ("1f1b", "zb-h1"))
    terms = read(problem)
    assert scored(terms, whole) == score(problem, whole).step_quanta
    assert (scored(terms, split) is None) == (recompute == "full")


@pytest.mark.parametrize("seed", range(6))
def test_plans_take_what_nest_says(seed: int) -> None:
    """Of legal plans and of spoilt ones; none where it says that they are illegal."""
    feasible = 0
    for number, problem in enumerate(itertools.islice(draw_timed(seed), 12)):
        random = Random(f"{seed} {number}")
        try:
            terms = read(problem)
        except documents.BadInputError:
            continue
        for turn in range(4):
            plan = draw_plan(random, problem)
            if plan is None:
                continue
            if turn > 1:
                plan = spoil(random, problem, plan)
            try:
                verdict = score(problem, plan)
                expected = verdict.step_quanta if verdict.feasible else None
            except NestError:
                expected = None
            try:
                found = scored(terms, replace(plan, solver=None))
            except (KeyError, documents.BadInputError):
                found = None
            assert found == expected, (seed, number, turn)
            feasible += expected is not None
    assert feasible > 4


# Bounds


def test_blocks_share_time_where_there_are_too_many_sets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nest.certificates.stages.MOST_PACKED", 4)
    problem = pair()
    plan = split_plan("ab", "cd", order="zb-h1")
    certificate = certify(problem, plan, encode(problem))
    assert certificate["lower_bound_quanta"] == 240
    verify(problem, certificate)


def test_the_bound_is_what_blocks_work() -> None:
    """Of two layers of 30 and four micro-batches; below, each layer has its block."""
    problem = pair()
    plan = split_plan("ab", "cd", order="zb-h1")
    certificate = certify(problem, plan, encode(problem))
    assert certificate["step_time_quanta"] == 260
    assert certificate["lower_bound_quanta"] == 240
    assert verify(problem, certificate).startswith("feasible, step time 260")
    assert certificate["proof"][0]["prices"] == [[1, 4]]


@pytest.mark.parametrize(
    "change",
    [
        {"lower_bound_quanta": 241},
        {"step_time_quanta": 259, "lower_bound_quanta": 240},
        {"status": "optimal"},
    ],
)
def test_false_claims_are_rejected(change: dict[str, Any]) -> None:
    problem = pair()
    certificate = certify(
        problem, split_plan("ab", "cd", order="zb-h1"), encode(problem)
    )
    certificate |= change
    certificate["seal"] = documents.digest(certificate)
    with pytest.raises(check.RejectedError):
        verify(problem, certificate)


@pytest.mark.parametrize("schedule", ["any", "zb-h1", ("1f1b", "zb-v")])
@pytest.mark.parametrize("most", [4096, 4])
def test_that_nothing_fits_is_certified(
    schedule: Any, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two layers on a device hold 28 B with a micro-batch in flight."""
    monkeypatch.setattr("nest.certificates.stages.MOST_PACKED", most)
    tight = pair(schedule=schedule, memory_bytes=27)
    certificate = certify_infeasible(tight, encode(tight))
    assert certificate["status"] == "infeasible"
    assert verify(tight, certificate) == "infeasible, no plan fits"
    with pytest.raises((UnsupportedProblemError, InvalidPlanError)):
        certify_infeasible(pair(schedule=schedule, memory_bytes=28))


def test_a_plan_that_fills_the_memory_fits() -> None:
    """A stage of 20 B, and two micro-batches of 8 B in flight, under 1F1B."""
    certify_infeasible(pair(schedule="1f1b", memory_bytes=35))
    with pytest.raises(InvalidPlanError):
        certify_infeasible(pair(schedule="1f1b", memory_bytes=36))


def test_jobs_with_chunks_have_cases_of_both_kinds() -> None:
    job = {"schedule": "1f1b"}
    kinds = {
        virtual: {
            x.timed for x in read(pair(**job, virtual_stages=virtual)).rules.cases()
        }
        for virtual in ((1,), (2,), (1, 2))
    }
    assert kinds == {(1,): {False}, (2,): {True}, (1, 2): {False, True}}
    problem = with_job(pair(virtual_stages=(1, 2)), schedule="1f1b")
    plan = split_plan("a", "b", "c", "d", virtual_stages=2)
    certificate = certify(problem, plan, encode(problem))
    assert certificate["lower_bound_quanta"] == 240
    verify(problem, certificate)


@pytest.mark.parametrize("seed", range(3))
def test_no_bound_is_above_the_best_of_all_orders(seed: int) -> None:
    seen = 0
    for problem in draw_timed(seed):
        if problem.job.schedule != "any" or len(problem.graph.layers) > 3:
            continue
        best, _ = best_of_all(problem)
        terms = read(problem)
        if best is not None:
            splits = [check.Split(terms, x) for x in terms.rules.cases()]
            assert min(x.packed(best + 1) - x.replica_stride for x in splits) <= 0
            seen += 1
        if seen == 1:
            return
