"""Orders of plans: what may be in them, and bounds that hold for all."""

from __future__ import annotations

import re
from typing import Any

import pytest
from msgspec import ValidationError
from msgspec.structs import replace

from nest.cost.orders import (
    plan_schedule,
    why_not_order,
    why_not_split_passes,
    with_named_order,
)
from nest.cost.schedules import (
    AnyOrder,
    Pass,
    Schedule,
    Times,
    schedule_of,
    timed_schedule,
)
from nest.cost.schedules.listed import ListedSchedule
from nest.cost.schedules.ordered import TimedSchedule, pass_text, read_order
from nest.errors import InvalidPlanError, UnsupportedProblemError
from nest.ir import Plan, Problem, Stage, Strategy, read_plan
from nest.ir.job import Job
from tests.builders import SINGLE, make_cost, make_plan, make_problem


def read(*lists: str, virtual: int = 1, placement: Any = "loop", count=2):
    order = tuple(tuple(texts.split()) for texts in lists)
    return read_order(order, len(order), virtual, placement, count)


# What a plan lists


def test_passes_are_read_in_their_order() -> None:
    schedule = read("0F0 0F1 0I0 0B1 0W0", "1F0 1B0 1F1 1B1")
    passes = [
        Pass(0, 0, False),
        Pass(0, 1, False),
        Pass(0, 0, True, "inputs"),
        Pass(0, 1, True),
        Pass(0, 0, True, "weights"),
    ]
    assert [*schedule.passes(0, 2, 2)] == passes
    assert [pass_text(x) for x in passes] == ["0F0", "0F1", "0I0", "0B1", "0W0"]
    # Block 2: 1-2-4, then 4-5-7. Block 1: F, F, I 4-5, B 7-9, W 9-10.
    times = [Times(1, 2, 1)] * 2
    assert schedule.pipeline_time(times, 2) == 10
    assert schedule.kept([7], 0, 2, 2) == ((2,), (14,), 2, 14)
    assert schedule.kept([7], 1, 2, 2) == ((1,), (7,), 1, 7)


GOOD = ("0F0 0F1 0B0 0B1", "1F0 1I0 1W0 1F1 1B1")


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        (
            GOOD[:1],
            "order: expected a list of passes for each of 2 blocks, got 1; "
            "add or remove lists",
        ),
        (
            (*GOOD, ""),
            "order: expected a list of passes for each of 2 blocks, got 3; "
            "add or remove lists",
        ),
        *(
            (
                (GOOD[0].replace("0B1", text), GOOD[1]),
                "order, block 1: expected passes such as 3F5 (chunk 3, "
                f"micro-batch 5; F, B, I or W), got {text!r}; correct it",
            )
            for text in ("0X1", "0b1", "B1", "0B", "-0B1", "0B-1", "0B1.")
        ),
        (
            (GOOD[0], GOOD[1].replace("1B1", "1B1234567890")),
            "order, block 2: expected passes such as 3F5 (chunk 3, "
            "micro-batch 5; F, B, I or W), got '1B1234567890'; correct it",
        ),
        (
            (GOOD[0].replace("0B1", "1B1"), GOOD[1]),
            "order, block 1: expected passes of its chunks [0], got 1B1; "
            "move it to the block of chunk 1, or remove it",
        ),
        (
            (GOOD[0], f"{GOOD[1]} 1F2"),
            "order, block 2: expected micro-batches 0 to 1, got 1F2; remove it",
        ),
        *(
            (
                (GOOD[0], f"{GOOD[1]} {text}"),
                f"order, block 2: expected every pass once, got {text} "
                "again; remove one",
            )
            # 1B0 does what 1I0 and 1W0 did, 1I1 and 1W1 a part of 1B1.
            for text in ("1F0", "1I0", "1W0", "1B1", "1B0", "1I1", "1W1")
        ),
        *(
            (
                (GOOD[0].replace(old, new), GOOD[1]),
                f"order, block 1: expected {front} in front of {text}, got "
                "it later or not at all; reorder them",
            )
            for old, new, front, text in (
                ("0F1 0B0 0B1", "0B1 0F1 0B0", "0F1", "0B1"),
                ("0F1 0B0 0B1", "0I1 0F1 0B0 0W1", "0F1", "0I1"),
                ("0B1", "0W1 0I1", "0I1", "0W1"),
                ("0F1 ", "", "0F1", "0B1"),
            )
        ),
        *(
            (
                (GOOD[0], GOOD[1].replace(text, "")),
                "order, block 2: expected every pass of chunk 1, got no "
                f"{text.strip()}; add it",
            )
            for text in ("1W0 ", "1B1")
        ),
        (
            (GOOD[0], GOOD[1].replace("1F1 1B1", "")),
            "order, block 2: expected every pass of chunk 1, got no 1F1; add it",
        ),
        (
            # Block 1 has its first backward pass in front of what block 2
            # needs for that.
            ("0F0 0B0 0F1 0B1", "1F1 1B1 1F0 1B0"),
            "order: expected passes that can all run, got some that wait for "
            "each other: 0B0 on block 1, 1F1 on block 2; reorder them",
        ),
    ],
)
def test_orders_that_blocks_cannot_run(lists: tuple[str, ...], message: str) -> None:
    order = tuple(tuple(texts.split()) for texts in lists)
    with pytest.raises(InvalidPlanError, match=f"^{re.escape(message)}$"):
        read_order(order, 2, 1, "loop", 2)


def test_a_text_that_is_no_pass_is_cut() -> None:
    with pytest.raises(InvalidPlanError, match=f"got '{'9' * 40}'; corr"):
        read("9" * 90, count=1)


def test_passes_of_chunks_wait_for_each_other() -> None:
    """In a loop block 1 has chunk 2, in a V block 2 has it."""
    loop = ("0F0 2F0 2B0 0B0", "1F0 3F0 3B0 1B0")
    in_v = ("0F0 3F0 3B0 0B0", "1F0 2F0 2B0 1B0")
    for lists, placement, other in ((loop, "loop", "v"), (in_v, "v", "loop")):
        schedule = read(*lists, virtual=2, placement=placement, count=1)
        assert schedule.placement == placement
        assert schedule.pipeline_time([Times(1, 2)] * 4, 1) == 12
        with pytest.raises(InvalidPlanError, match="expected passes of its"):
            read(*lists, virtual=2, placement=other, count=1)
    with pytest.raises(
        InvalidPlanError, match=r"other: 2F0 on block 1, 1F0 on block 2; reorder them$"
    ):
        read("2F0 0F0 2B0 0B0", loop[1], virtual=2, count=1)


def test_files_say_orders_as_names_or_lists(tmp_path: Any) -> None:
    path = tmp_path / "plan.json"
    text = (
        '{"schema": "nest-plan/1", "replicas": 1, "micro_batch": 1, '
        '"stages": [{"layers": ["a"], "devices": 1, "strategy": {}}], '
        '"order": %s}'
    )
    for value, order in (
        ('"zb-h1"', "zb-h1"),
        ('[["0F0", "0B0"]]', (("0F0", "0B0"),)),
        ("null", None),
    ):
        path.write_text(text % value)
        assert read_plan(path).order == order


# Which kind of order a plan may have


def job(schedule: Any, *virtual: int) -> Job:
    return Job(global_batch=2, schedule=schedule, virtual_stages=virtual or (1,))


def plan(order: Any, virtual: int = 1, placement: Any = "loop") -> Plan:
    chunks = "ab" if virtual == 1 else "abcd"
    return replace(
        make_plan(*((x, SINGLE) for x in chunks)),
        order=order,
        virtual_stages=virtual,
        placement=placement,
    )


LISTS = (("0F0",), ("1F0",))
SOME = ("1f1b", "gpipe")


@pytest.mark.parametrize(
    ("schedule", "virtual", "order", "chunks", "message"),
    [
        ("1f1b", (1,), None, 1, None),
        (
            *("1f1b", (1,), "1f1b", 1),
            "order: expected none, as the job's schedule is '1f1b', got 1f1b",
        ),
        (
            *("zb-h1", (1,), LISTS, 1),
            "order: expected none, as the job's schedule is 'zb-h1', got a "
            "list of passes",
        ),
        (SOME, (1,), "gpipe", 1, None),
        (SOME, (1,), None, 1, "order: expected one of 1f1b, gpipe, got none"),
        (
            *(SOME, (1,), LISTS, 1),
            "order: expected one of 1f1b, gpipe, got a list of passes",
        ),
        (*(SOME, (1,), "zb-h1", 1), "order: expected one of 1f1b, gpipe, got 'zb-h1'"),
        ("any", (1,), LISTS, 1, None),
        ("any", (1,), "zb-h1", 1, None),
        (
            *("any", (1,), None, 1),
            "order: expected one of 1f1b, gpipe, zb-h1, zb-v, got none",
        ),
        (
            *("any", (1,), "dualpipe-v", 1),
            "order: expected one of 1f1b, gpipe, zb-h1, zb-v, got 'dualpipe-v'",
        ),
        ("any", (1, 2), "1f1b", 2, None),
        ("any", (1, 2), "zb-v", 2, None),
        (
            *("any", (1, 2), "zb-v", 1),
            "virtual_stages: expected one of [2] with order 'zb-v', got 1",
        ),
        (
            *("any", (1, 2), "gpipe", 2),
            "virtual_stages: expected one of [1] with order 'gpipe', got 2",
        ),
        (
            *(("1f1b", "zb-v"), (1,), "1f1b", 2),
            "virtual_stages: expected one of [1] with order '1f1b', got 2",
        ),
    ],
)
def test_which_orders_a_job_allows(
    schedule: Any,
    virtual: tuple[int, ...],
    order: Any,
    chunks: int,
    message: str | None,
) -> None:
    reason = why_not_order(job(schedule, *virtual), plan(order, chunks))
    assert reason == message


def test_jobs_say_which_chunks_are_allowed() -> None:
    """``any``: what it says. A list: what its names allow."""
    assert job("any", 1, 3).chunk_counts == (1, 3)
    assert job(("1f1b", "zb-v"), 1).chunk_counts == (1, 2)
    assert job(("1f1b", "gpipe"), 2).chunk_counts == (2, 1)
    assert job("any").schedules == ("1f1b", "gpipe", "zb-h1", "zb-v")
    assert job(("zb-h1", "1f1b")).schedule_text == "zb-h1,1f1b"
    assert [job(x).plans_order_passes for x in ("any", ("1f1b",), "1f1b", "zb-h1")] == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            ("1f1b", "dualpipe-v"),
            "schedule: expected schedules that run one pass at a time in a "
            "list, got 'dualpipe-v'; give it alone",
        ),
        ((), "schedule: expected"),
        (("1f1b", "1f1b"), "schedule: expected"),
    ],
)
def test_lists_of_schedules_offer_a_choice(
    names: tuple[str, ...], message: str
) -> None:
    with pytest.raises((ValueError, ValidationError), match=f"^{message}"):
        job(names)


def test_lists_of_split_schedules_do_not_recompute_all() -> None:
    """Others may: their plans then run whole backward passes."""
    text = "recompute: expected 'none' or 'selective' with schedule 'zb-h1,"
    with pytest.raises(ValueError, match=text):
        Job(global_batch=1, schedule=("zb-h1", "zb-v"), recompute=("full",))
    for schedule in (("zb-h1", "1f1b"), "any"):
        Job(global_batch=1, schedule=schedule, recompute=("full",))


def problem_of(schedule: Any, *virtual: int) -> Problem:
    problem = make_problem(dict.fromkeys("abcd", make_cost(10, 20)), global_batch=2)
    return replace(problem, job=job(schedule, *virtual))


def test_a_named_order_is_a_job_of_that_schedule() -> None:
    problem = problem_of("any", 1, 2)
    for name, virtual, allowed in (
        ("gpipe", 1, (1,)),
        ("zb-v", 2, (1,)),
        ("1f1b", 2, (2,)),
        ("1f1b", 1, (1,)),
    ):
        one, without = with_named_order(problem, plan(name, virtual))
        assert one.job.schedule == name
        assert one.job.virtual_stages == allowed
        assert without == plan(None, virtual)
        assert replace(one, job=problem.job) == problem
    for order in (None, LISTS):
        same = problem, plan(order)
        assert with_named_order(*same) == same


def test_plans_have_the_schedule_of_their_order() -> None:
    one, several = job("zb-h1"), job("any", 1, 2)
    assert plan_schedule(one, plan(None), 2) is schedule_of("zb-h1")
    named = plan_schedule(several, plan("1f1b", 2), 2)
    assert named is timed_schedule("1f1b", 2)
    assert named.name == "interleaved 1f1b"
    order = tuple(
        tuple(f"{chunk}{kind}{m}" for kind in "FB" for m in (0, 1)) for chunk in (0, 1)
    )
    listed = plan_schedule(several, plan(order), 2)
    assert [pass_text(x) for x in listed.passes(1, 2, 2)] == [*order[1]]


FULL = Strategy(recompute="full")


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ("1f1b", None),
        ("gpipe", None),
        ("zb-h1", "stage 2: expected whole backward passes, as recompute is "),
        ((("0F0", "0I0", "0W0"), ("1F0", "1B0")), None),
        ((("0F0", "0B0"), ("1F0", "1I0", "1W0")), "stage 2: expected whole"),
    ],
)
def test_what_recomputes_all_runs_whole_backward_passes(
    order: Any, message: str | None
) -> None:
    chosen = make_plan(("a", SINGLE), ("b", FULL))
    chosen = replace(chosen, order=order)
    reason = why_not_split_passes(job("any"), chosen, 1)
    assert (reason or "").startswith(message or "")
    assert (reason is None) == (message is None)
    if isinstance(order, str):
        # A job of one schedule has said so itself.
        alone = replace(chosen, order=None)
        assert why_not_split_passes(job(order), alone, 1) is None


def test_the_chunk_that_recomputes_all_is_named() -> None:
    """Chunk 3 of a V is on block 1; its other chunk may split."""
    layers = make_plan(*((x, FULL if x == "d" else SINGLE) for x in "abcd"))
    order = (("0F0", "3F0", "3B0", "0I0", "0W0"), ("1F0", "2F0", "2I0", "2W0", "1B0"))
    chosen = replace(layers, virtual_stages=2, placement="v", order=order)
    assert why_not_split_passes(job("any", 2), chosen, 1) is None
    order = (("0F0", "3F0", "3I0", "3W0", "0B0"), order[1])
    reason = why_not_split_passes(job("any", 2), replace(chosen, order=order), 1)
    assert reason == (
        "stage 4: expected whole backward passes, as recompute is 'full', "
        "got gradients of weights apart"
    )


def test_names_say_whether_passes_split_without_all_of_them() -> None:
    """A billion micro-batches would not end."""
    chosen = make_plan(("a", FULL), ("b", FULL))
    for name, split in (("1f1b", False), ("gpipe", False), ("zb-h1", True)):
        reason = why_not_split_passes(job("any"), replace(chosen, order=name), 10**9)
        assert (reason is not None) == split


def test_one_layer_that_recomputes_all_makes_its_chunk_whole() -> None:
    stage = Stage(layers=("a", "b"), devices=1, strategies=(SINGLE, FULL))
    chosen = Plan(
        replicas=1, micro_batch=1, stages=(stage,), order=(("0F0", "0I0", "0W0"),)
    )
    reason = why_not_split_passes(job("any"), chosen, 1)
    assert reason is not None
    assert reason.startswith("stage 1: expected whole backward passes")


# Schedules with a name, pass by pass


@pytest.mark.parametrize(("name", "virtual"), [("1f1b", 1), ("gpipe", 1), ("1f1b", 2)])
def test_a_timed_schedule_runs_the_same_passes(name: str, virtual: int) -> None:
    own, timed = schedule_of(name, virtual), timed_schedule(name, virtual)
    assert isinstance(timed, ListedSchedule)
    assert isinstance(timed, TimedSchedule) == (virtual == 1)
    assert (timed.name, timed.virtual_stages, timed.placement) == (
        *(own.name, own.virtual_stages),
        own.placement,
    )
    assert timed.why_not(2, 3) == own.why_not(2, 3)
    for block in (0, 1):
        assert [*timed.passes(block, 2, 4)] == [*own.passes(block, 2, 4)]
        sizes = [3] * virtual
        assert timed.kept(sizes, block, 2, 4) == own.kept(sizes, block, 2, 4)


@pytest.mark.parametrize("name", ["zb-h1", "zb-v"])
def test_what_is_listed_already_stays(name: str) -> None:
    assert timed_schedule(name, 1) is schedule_of(name)


def test_a_timed_step_is_that_of_its_passes() -> None:
    """10 + 0, 0 + 10 and 0 + 0: the formula of 1F1B says 30."""
    stages = [Times(10, 0), Times(0, 10), Times(0, 0)]
    assert schedule_of("1f1b").pipeline_time(stages, 2) == 30
    assert timed_schedule("1f1b", 1).pipeline_time(stages, 2) == 40
    assert timed_schedule("gpipe", 1).pipeline_time(stages, 2) == 40


# What holds for every order


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        # One block, 3 micro-batches: all its work.
        ([(1, 5, 3)], 18),
        # Block 2: 2 until it starts, 2 (10 + 10 + 10).
        ([(2, 7, 4), (10, 20, 10)], 62),
        # Its gradients of weights take 1: 3 of block 1 come behind its last
        # ones of inputs, 2 + 2 (10 + 10) + 3.
        ([(2, 7, 4), (10, 11, 1)], 45),
        # Block 1 has most work: 2 (20 + 10 + 10).
        ([(20, 20, 10), (1, 2, 1)], 80),
    ],
)
def test_no_order_is_shorter_than_the_work_of_a_block(
    times: list[tuple[int, int, int]], expected: int
) -> None:
    count = 3 if len(times) == 1 else 2
    chunks = [Times(*x) for x in times]
    assert AnyOrder(1).pipeline_time(chunks, count) == expected


def test_chunks_of_a_block_work_in_turn() -> None:
    """Of a loop, block 2 has chunks 2 and 4; of a V, 2 and 3.

    Before it, chunk 1 forward, 1; behind it, its gradients of inputs, 2.
    """
    chunks = [Times(1, 5, 3), Times(4, 4), Times(2, 2), Times(8, 8)]
    # 1 + 3 (4 + 4 + 8 + 8) + 2, and 1 + 3 (4 + 4 + 2 + 2) + 2 in a V, where
    # block 1 has more: 3 (1 + 5 + 8 + 8).
    assert AnyOrder(2).pipeline_time(chunks, 3) == 75
    assert AnyOrder(2, "v").pipeline_time(chunks, 3) == 66


def test_every_order_keeps_one_micro_batch_in_each_chunk() -> None:
    kept = AnyOrder(2).kept([3, 4], 1, 2, 8)
    assert kept == ((1, 1), (3, 4), 2, 7)


def test_any_order_says_no_passes() -> None:
    schedule: Schedule = AnyOrder(1)
    with pytest.raises(
        UnsupportedProblemError,
        match=r"^\$.job.schedule: expected one schedule for a search that "
        "does not order passes, got several; use solver dp$",
    ):
        schedule.passes(0, 1, 1)


def test_schedules_of_several_names_are_any_order() -> None:
    for name in ("any", ("1f1b",), ("gpipe", "zb-h1")):
        schedule = schedule_of(name, 2)
        assert isinstance(schedule, AnyOrder)
        assert (schedule.virtual_stages, schedule.placement) == (2, "loop")
        assert schedule_of(name, 2) is schedule
