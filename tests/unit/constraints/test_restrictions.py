"""Pins: what they allow, and which contradict each other."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from msgspec.structs import replace

from nest.constraints.pins import Restrictions, choices, describe, parse, restrict
from nest.errors import InvalidOptionError, UnknownNameError
from nest.ir import Activations, Problem
from nest.solvers.base import SolveOptions, Status
from nest.solvers.registry import get_solver
from tests.builders import make_cost, make_problem, with_job

ACTS = (Activations(kept_bytes=0), Activations(recompute="full", kept_bytes=0))


def small() -> Problem:
    """Two layers, four devices, tp 1 or 2, micro-batch 1 or 2, A = 4."""
    costs = tuple(
        make_cost(10, 20, tp=tp, samples=samples, activations=ACTS)
        for tp in (1, 2)
        for samples in (1, 2)
    )
    return make_problem(
        {"a": costs, "b": costs},
        edges=(("a", "b", 1),),
        global_batch=4,
        micro_batches=(1, 2),
        zero=(0, 1),
        recompute=("none", "full"),
    )


def refuses(problem: Problem, pins: Restrictions, message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        restrict(problem, pins)


def test_choices_are_what_plans_can_have():
    """dp is 1, or 2 where B = 2; R divides 4 / B; at most a stage a layer."""
    assert choices(small()) == {
        "r": (1, 2, 4),
        "b": (1, 2),
        "pp": (1, 2),
        "tp": (1, 2),
        "dp": (1, 2),
        "cp": (1,),
        "ep": (1,),
        "etp": (1, 2),
        "zero": (0, 1),
        "recompute": ("none", "full"),
        "v": (1,),
    }


def test_pins_and_forbidden_values_become_the_job():
    problem = small()
    narrow = restrict(
        problem,
        parse(["tp=2, pp=1|2", "replicas=1,micro_batch=2"], "--pin"),
        parse(["zero=1", "recompute=full,dp=2", "zero=3"], "--forbid"),
    )
    job = narrow.job
    assert job.tensor_parallel == (2,)
    assert job.pipeline_parallel == (1, 2)
    assert job.replicas == (1,)
    assert job.micro_batches == (2,)
    assert job.zero == (0,)
    assert job.recompute == ("none",)
    assert job.data_parallel == (1,)
    assert job.context_parallel is None
    assert narrow.graph is problem.graph
    assert narrow.cluster is problem.cluster


def test_a_pin_leaves_out_what_is_forbidden_of_others():
    """Forbidding one stage leaves two; without both nothing is changed."""
    problem = small()
    narrow = restrict(problem, forbids={"pp": (1,)})
    assert narrow.job.pipeline_parallel == (2,)
    assert restrict(problem) is problem


def test_solvers_honour_them():
    """On one device each: τ = 30 a layer, the cut takes 11 twice.

    Without a pin 4 replicas of a stage of tp = 1 take 60. With r = 1, b = 1,
    tp = 1, pp = 2, four micro-batches: Σ τ = 60 + 22, three more of 30 + 11.
    """
    problem = small()
    for name in ("dp", "brute"):
        free = get_solver(name)().solve(problem, SolveOptions())
        assert free.claimed_quanta == 60
        narrow = restrict(
            problem, parse(["r=1,b=1,tp=1,pp=2"], "--pin"), {"recompute": ("full",)}
        )
        pinned = get_solver(name)().solve(narrow, SolveOptions())
        assert pinned.status is Status.OPTIMAL
        assert pinned.claimed_quanta == 82 + 3 * 41


def test_restrictions_are_described_as_they_are_given():
    pins = parse(["tp=4|8,recompute=none"], "--pin")
    assert describe(pins, {}) == "--pin tp=4|8,recompute=none"
    assert (
        describe(pins, {"zero": (3,)}) == "--pin tp=4|8,recompute=none --forbid zero=3"
    )
    assert describe({}, {}) == ""


def test_the_same_pin_may_come_twice():
    assert parse(["tp=2|1", "tp=1|2"], "--pin") == {"tp": (1, 2)}


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        (["tp"], "--pin: expected SETTING=VALUE, .* got 'tp'; for example"),
        (["tp=1,"], "--pin: expected SETTING=VALUE, .* got ''; for example"),
        (["tp=0"], "--pin tp: expected an integer >= 1, got '0'; correct"),
        (["tp=1||2"], "--pin tp: expected an integer >= 1, got ''; correct"),
        (["zero=4"], "--pin zero: expected 0, 1, 2 or 3, got '4'; correct"),
        (["recompute=some"], "--pin recompute: expected one of none, "
         "selective, full, offload, got 'some'; correct"),
        (["tp=8,tp=4"], r"--pin: expected tp once, got tp=8 and tp=4, which "
         r"contradict each other; keep one, or write tp=8\|4 for either"),
        (["replicas=2", "r=4"], r"--pin: expected r once, got r=2 and r=4, "
         r"which contradict each other; keep one, or write r=2\|4 for "),
    ],
)  # fmt: skip
def test_pins_that_cannot_be_read(texts, reason):
    with pytest.raises(InvalidOptionError, match=reason):
        parse(texts, "--pin")


def test_an_unknown_setting_is_refused():
    with pytest.raises(
        UnknownNameError,
        match=r"--forbid: expected one of b, cp, .*zero; got 'zer0'; did you "
        r"mean 'zero'\?",
    ):
        parse(["zer0=1"], "--forbid")


@pytest.mark.parametrize(
    ("pin", "forbid", "reason"),
    [
        ("tp=3", "", "--pin tp=3: expected one of the tensor parallel degrees "
         "that the job allows and the layers have costs for (1, 2), got 3; "
         "choose one of them"),
        ("zero=0|3", "", "--pin zero=3: expected one of the ZeRO stages that "
         "the job allows and the layers have costs for (0, 1), got 3; choose"),
        ("pp=3", "", "--pin pp=3: expected at most 2 stages (2 layers, 4 "
         "devices), got 3; pin fewer"),
        ("zero=0|1", "zero=1", "--pin zero=0|1: expected values that are not "
         "forbidden, got zero=1 in --forbid too; remove one"),
        ("", "zero=0|1", "--forbid zero=0|1: expected at least one of the "
         "ZeRO stages (0, 1) to be left, got all forbidden; allow one"),
        # dp = 2 needs B = 2; tp has nothing to do with it
        ("b=1,tp=1,dp=2", "", "--pin b=1,dp=2: expected a plan that fulfills "
         "all of it on 4 devices with a global batch of 4, got a "
         "contradiction: no such plan exists, whatever the memory; for 2 "
         "data-parallel ranks in all write r=1,dp=2,b=2 or r=2,dp=1,b=1 (r "
         "replicas of dp ranks, b samples per replica); "
         "--distributed-optimizer shards over all of them"),
        # 4 ranks shard only as one replica of several
        ("zero=1,b=1", "", "--pin zero=1,b=1: expected replicas of several "
         "data-parallel ranks, which ZeRO shards over, got replicas of one, as b "
         "counts the samples of a replica; for 4 data-parallel ranks in all write "
         "r=2,dp=2,b=2 or r=4,dp=1,b=1 (r replicas of dp ranks"),
        # two stages of two devices in each of two replicas
        ("r=2,pp=2", "tp=1", "--pin r=2,pp=2 --forbid tp=1: expected a plan "
         "that fulfills all of it on 4 devices"),
    ],
)  # fmt: skip
def test_pins_that_contradict_each_other_or_the_problem(pin, forbid, reason):
    pins = parse([pin], "--pin") if pin else {}
    forbids = parse([forbid], "--forbid") if forbid else {}
    with pytest.raises(InvalidOptionError, match=re.escape(reason)):
        restrict(small(), pins, forbids)


@pytest.mark.parametrize(
    "pin",
    [
        *("zero=1,b=1,r=4", "zero=1,b=1,dp=1", "zero=1,b=1,tp=2,pp=2"),
        *("zero=0|1,b=1", "zero=1,b=1|2", "zero=1,b=2"),
    ],
)
def test_zero_may_be_pinned_where_it_shards_or_as_degrees_say(pin: str) -> None:
    restrict(small(), parse([pin], "--pin"))


def test_zero_may_shard_over_replicas() -> None:
    pins = parse(["zero=1,b=1"], "--pin")
    restrict(with_job(small(), distributed_optimizer=True), pins)


def ranks(**job: Any) -> Problem:
    """Four layers on 24 devices; a rank may take 1, 2 or 4 samples."""
    costs = tuple(make_cost(10, 20, samples=samples) for samples in (1, 2, 4))
    return make_problem(
        dict.fromkeys("abcd", costs),
        edges=(("a", "b", 1), ("b", "c", 1), ("c", "d", 1)),
        devices=24,
        **{"global_batch": 48, "micro_batches": (1, 2, 4, 8)} | job,
    )


@pytest.mark.parametrize(
    ("pins", "either", "refused"),
    [
        # 12 ranks of a sample each, in replicas of 4 or of 1
        ("dp=12,b=12", ("r=3,dp=4,b=4", "r=12,dp=1,b=1"), "dp=12"),
        ("dp=12,b=24", ("r=3,dp=4,b=8", "r=12,dp=1,b=2"), "dp=12"),
        ("dp=12", ("r=3,dp=4", "r=12,dp=1"), "dp=12"),
        ("dp=12,r=2,b=12", ("r=3,dp=8,b=8", "r=24,dp=1,b=1"), "dp=12"),
        # 4 ranks of one sample each, if b=1 is what a rank takes
        ("dp=4,b=1", ("r=1,dp=4,b=4", "r=4,dp=1,b=1"), "dp=4,b=1"),
        ("dp=4,b=1,pp=4", ("r=1,dp=4,b=4", "r=4,dp=1,b=1"), "dp=4,b=1"),
        # one way only: 6 stages of 3 ranks have no room for two replicas
        ("dp=3,b=3,pp=4", ("r=3,dp=1,b=1",), "dp=3"),
    ],
)
def test_pins_of_data_ranks_that_have_no_plan_get_others(
    pins: str, either: tuple[str, ...], refused: str
) -> None:
    """What the message names has a plan."""
    given = parse([pins], "--plan")
    with pytest.raises(InvalidOptionError) as caught:
        restrict(ranks(), given, option="--plan")
    count = math.prod(given.get(name, (1,))[0] for name in ("r", "dp"))
    text = str(caught.value)
    assert text.startswith(f"--plan {refused}: expected ")
    assert text.endswith(
        f"; for {count} data-parallel ranks in all write "
        f"{' or '.join(either)} (r replicas of dp ranks, b samples per "
        f"replica); --distributed-optimizer shards over all of them"
    )
    for other in either:
        restrict(ranks(), {**given, **parse([other], "--plan")})


@pytest.mark.parametrize(
    ("pins", "forbids", "text"),
    [
        # 7 ranks take a batch that 7 divides
        ({"dp": (7,)}, {}, "got 7; choose one of them"),
        ({"dp": (12,)}, {"r": (3, 6, 12)}, "got 12; choose one of them"),
        ({"dp": (12, 24)}, {}, "got 12; choose one of them"),
        ({"dp": (4,), "b": (1,)}, {"r": (2, 4), "b": (4,)},
         "write dp=1 for dp=4 or b=8 for b=1"),
        ({"pp": (4,), "r": (24,)}, {}, "got a contradiction: r × pp is 96 "
         "devices; no such plan exists, whatever the memory; write pp=1 for "
         "pp=4 or r=6 for r=24"),
        ({"r": (24,)}, {"pp": (1,), "r": (1, 2, 3, 4, 6, 8, 12)},
         "drop or change one"),
        # 12 ranks on each of four stages are too many for 24 devices
        ({"dp": (12,), "pp": (4,)}, {}, "got 12; choose one of them"),
        # nothing about ranks
        ({"b": (3,)}, {}, "got 3; choose one of them"),
    ],
)  # fmt: skip
def test_without_pins_that_have_a_plan_there_is_no_hint(
    pins: Restrictions, forbids: Restrictions, text: str
) -> None:
    with pytest.raises(InvalidOptionError, match=f"{text}$"):
        restrict(ranks(), pins, forbids)


def test_zero_stages_that_are_one_plan_are_all_named():
    """On one data rank only the lowest is listed, and all are legal."""
    single = make_problem({"a": make_cost(1, 1)}, devices=1, zero=(0, 1, 3))
    assert choices(single)["zero"] == (0, 1, 3)
    assert restrict(single, {"zero": (1,)}).job.zero == (1,)
    refuses(single, {"zero": (2,)}, r"--pin zero=2: .* \(0, 1, 3\), got 2; choose")
    # Where a rule is about the stage, they are told apart.
    job = replace(single.job, zero_with={"pp": (0,)})
    assert choices(replace(single, job=job))["zero"] == (0, 1, 3)


def test_chunks_that_no_plan_has_are_refused():
    """Four layers are two chunks on two blocks; batches come in pairs."""
    problem = ranks(virtual_stages=(1, 2, 4), replicas=(1,), global_batch=4)
    assert choices(problem)["v"] == (1, 2)
    refuses(
        problem,
        {"v": (4,)},
        r"--pin v=4: expected one of the chunks per stage that the job "
        r"allows and the layers have costs for \(1, 2\), got 4; choose",
    )
    # Chunks of one block are no plan; one micro-batch does not divide by two blocks.
    for name, value in (("pp", 3), ("pp", 1), ("b", 4)):
        message = f"--pin v=2,{name}={value}: expected a plan that fulf"
        refuses(problem, {"v": (2,), name: (value,)}, message)
    assert restrict(problem, {"v": (2,)}).job.virtual_stages == (2,)
    fixed = ranks(schedule="dualpipe-v")
    assert choices(fixed)["v"] == (2,)
    assert restrict(fixed, {"v": (2,)}).job.chunk_counts == (2,)


def test_long_lists_are_shortened():
    """R may be 1..16 on 16 devices if batches may be uneven."""
    problem = make_problem(
        {"a": make_cost(1, 1)}, devices=16, global_batch=16, uneven_batches=True
    )
    refuses(problem, {"r": (17,)}, r"\(1, 2, .*, 10, …, 16\), got 17")


def test_a_job_that_restricts_stages_itself_lists_them():
    problem = restrict(small(), {"pp": (1,)})
    refuses(
        problem,
        {"pp": (2,)},
        r"--pin pp=2: expected one of the numbers of stages that the "
        r"job allows and the layers have costs for \(1\), got 2",
    )


def test_stages_that_must_be_even_are_listed():
    """Three layers of a kind are in one stage or in three, never in two."""
    cost = make_cost(1, 1)
    problem = make_problem(
        {"a": cost, "b": cost, "c": cost},
        edges=(("a", "b", 0), ("b", "c", 0)),
        global_batch=4,
        even_layers=True,
    )
    kind, *_ = problem.graph.kinds
    layers = tuple(replace(layer, kind=kind.name) for layer in problem.graph.layers)
    graph = replace(problem.graph, kinds=(kind,), layers=layers)
    problem = replace(problem, graph=graph)
    refuses(
        problem,
        {"pp": (2,)},
        r"--pin pp=2: expected one of the numbers of stages that the "
        r"job allows and the layers have costs for \(1, 3\), got 2; choose",
    )
    refuses(problem, {"pp": (4,)}, "at most 3 stages")
