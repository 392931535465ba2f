"""The step time, the verdict, and what does not belong to the problem."""

import pytest

from nest.cost.model import CostModel
from nest.cost.score import score
from nest.errors import InvalidPlanError
from nest.ir import Plan, Stage, Strategy
from tests.builders import PAIRS, SINGLE, make_cost, make_plan, make_problem
from tests.inside import run_inside
from tests.loopback import good_plan, tiny_problem


def three_stages(**fields):
    """Loads 30, 60, 20; one replica; no edges."""
    fields.setdefault("global_batch", 4)
    return make_problem(
        {
            "a": make_cost(10, 20, weight_bytes=100),
            "b": make_cost(20, 40, weight_bytes=50),
            "c": make_cost(10, 10),
        },
        **fields,
    )


PLAN = make_plan(("a", SINGLE), ("b", SINGLE), ("c", SINGLE))


# Step time


@pytest.mark.parametrize(
    ("batch", "step"),
    [
        # sum of the loads 110 + (M - 1) * 60
        (1, 110),
        (2, 170),
        (4, 290),
    ],
)
def test_step_time_is_sum_plus_slowest_for_every_further_micro_batch(batch, step):
    for schedule in ("1f1b", "gpipe"):
        problem = three_stages(global_batch=batch, schedule=schedule)
        result = score(problem, PLAN)
        assert (result.num_micro_batches, result.step_quanta) == (batch, step)


def test_step_time_ends_with_the_largest_update():
    """At 1 byte/ns HBM, W = G = 100 or 50: 3W + 12W = 15W: 1500 and 750."""
    result = score(three_stages(hbm=1e9), PLAN)
    assert [stage.sync for stage in result.stages] == [1500, 750, 0]
    assert result.step_quanta == 290 + 1500


def test_uneven_batches_wait_for_the_fullest_replica():
    """A = 3, R = 2: two micro-batches each: 110 + 60 (no weights)."""
    problem = make_problem(
        {"a": make_cost(40, 70)}, global_batch=3, uneven_batches=True
    )
    result = score(problem, make_plan(("a", SINGLE), replicas=2))
    assert (result.num_micro_batches, result.step_quanta) == (2, 220)


def test_the_whole_of_a_small_plan():
    """Two stages of two devices on PAIRS, A = 4, B = 2, M = 2.

    a: dp 2, forward 100, backward 200, W = G = 60, S = 360, kept 5.
    b: tp 2, forward 40, backward 90, W = G = 30, S = 180, kept 7.
    Edge of 20 bytes, 40 per micro-batch, across pairs at 10 ns per byte:
    b receives on one shard 100 + 400, a on two 100 + 200.
    a: F = 100, G = 200 + 300; b: F = 540, G = 90. Loads 600 and 630.
    Sync of a: all-reduce of 60 on two neighbors: 20 + 60. b: none.
    T = 1230 + 630 + 80. Memory: 480 + 2*5, 240 + 1*7.
    """
    problem = make_problem(
        {
            "a": make_cost(100, 200, weight_bytes=60, kept_bytes=5),
            "b": make_cost(40, 90, tp=2, samples=2, weight_bytes=30, kept_bytes=7),
        },
        edges=(("a", "b", 20),),
        topology=PAIRS,
        global_batch=4,
        micro_batches=(2,),
    )
    plan = make_plan(("a", Strategy(dp=2)), ("b", Strategy(tp=2)), micro_batch=2)
    result = score(problem, plan)
    assert [stage.load for stage in result.stages] == [600, 630]
    assert [stage.sync for stage in result.stages] == [80, 0]
    assert [stage.memory_bytes for stage in result.stages] == [490, 247]
    assert result.step_quanta == 1940
    assert result.feasible
    assert result.violations == ()


def test_idle_devices_change_the_pitch():
    """R = 2 on PAIRS uses one device each: at 0 and 2, across pairs.

    All-reduce of 10 bytes: 200 + 100; at 0 and 1 it would be 20 + 10.
    """
    problem = make_problem(
        {"a": make_cost(weight_bytes=10)}, topology=PAIRS, global_batch=2
    )
    plan = make_plan(("a", SINGLE), replicas=2)
    assert score(problem, plan).step_quanta == 300


# Throughput and utilization


def test_throughput_is_samples_per_second():
    """4 samples in 290 ns."""
    result = score(three_stages(), PLAN)
    assert result.throughput_samples_per_s == pytest.approx(4 / 290e-9)


def test_throughput_in_tokens_counts_all_devices():
    """4 samples of 5 tokens in 290 ns, on 4 devices of which 3 work."""
    result = score(three_stages(sequence_length=5), PLAN)
    assert result.throughput_tokens_per_s == pytest.approx(20 / 290e-9)
    assert result.throughput_tokens_per_s_per_device == pytest.approx(5 / 290e-9)


def test_throughput_in_tokens_is_unknown_without_their_number():
    result = score(three_stages(), PLAN)
    assert result.throughput_tokens_per_s is None
    assert result.throughput_tokens_per_s_per_device is None


def test_throughput_of_no_time_is_unknown():
    result = score(make_problem({"a": make_cost()}), make_plan(("a", SINGLE)))
    assert result.throughput_samples_per_s is None
    assert result.throughput_tokens_per_s is None
    assert result.mfu is None


def test_mfu_counts_all_devices():
    """580 FLOPs x 4 samples in 290 ns on 4 devices of 4e9 FLOP/s: 0.5."""
    problem = three_stages(model_flops_per_sample=580.0, peak_flops={"bf16": 4e9})
    assert score(problem, PLAN).mfu == pytest.approx(0.5)


@pytest.mark.parametrize(
    "fields",
    [
        {"peak_flops": {"bf16": 4e9}},
        {"model_flops_per_sample": 1.0, "peak_flops": {"fp8": 4e9}},
    ],
)
def test_mfu_is_unknown_without_its_figures(fields):
    assert score(three_stages(**fields), PLAN).mfu is None


# Memory


def test_too_little_memory_is_a_violation_that_names_the_stage():
    """Stage 1: W = G = 100 and S = 600: 800 bytes. Stage 2: 400."""
    problem = three_stages(memory_bytes=640)
    result = score(problem, PLAN)
    assert not result.feasible
    assert result.violations == (
        "stage 1: expected at most 640 bytes per device (640 bytes), got 800 "
        "(800 bytes, 25.0 % too much)",
    )
    assert result.step_quanta == 290


def test_memory_left_is_that_of_the_fullest_device():
    """Stage 1 has 640 - 800 bytes, stage 2 640 - 400."""
    assert score(three_stages(memory_bytes=640), PLAN).memory_left_bytes == -160
    assert score(three_stages(memory_bytes=801), PLAN).memory_left_bytes == 1


@pytest.mark.parametrize(("memory", "feasible"), [(800, True), (799, False)])
def test_memory_may_be_used_to_the_last_byte(memory, feasible):
    assert score(three_stages(memory_bytes=memory), PLAN).feasible is feasible


def test_every_stage_that_does_not_fit_is_listed():
    result = score(three_stages(memory_bytes=0), PLAN)
    assert [text.split(":")[0] for text in result.violations] == ["stage 1", "stage 2"]


# The document


def test_json_document():
    document = score(three_stages(quantum_ps=500), PLAN).to_json()
    assert document["schema"] == "nest-score/1"
    assert document["step_time_ns"] == 290
    assert document["step_time_quanta"] == 580
    assert document["quantum_ps"] == 500
    assert document["feasible"] is True
    assert document["num_micro_batches"] == 4
    first = document["stages"][0]
    assert first["forward_ns"] == 10
    assert first["backward_ns"] == 20
    assert first["memory_bytes"] == 800
    assert first["memory"] == {
        "weight_bytes": 100,
        "gradient_bytes": 100,
        "state_bytes": 600,
        "buffer_bytes": 0,
        "kept_bytes": 0,
        "working_bytes": 0,
        "reserve_bytes": 0,
    }
    assert "blocks" not in document


def test_a_model_can_be_shared():
    problem = three_stages()
    assert score(problem, PLAN, CostModel(problem)) == score(problem, PLAN)


# Plans of another problem


def plan_of(*stages, **fields):
    return make_plan(*((layers, SINGLE) for layers in stages), **fields)


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (
            plan_of("a", "b", "x"),
            "stage 3: expected layers of the problem, got 'x'; check that "
            "plan and problem belong together",
        ),
        (
            plan_of("a b", "c a"),
            r"stage 2: expected every layer once, got 'a' again \(stage 1 "
            r"has it\); remove one",
        ),
        (
            plan_of("a"),
            "stages: expected every layer in a stage, got none for 'b', 'c'; "
            "add what is missing",
        ),
        (
            plan_of("b", "a", "c"),
            "stage 1: expected layer 'b' no earlier than 'a', which it "
            "reads, got stage 2 for 'a'; reorder the stages",
        ),
        (
            plan_of("a", "b", "c", micro_batch=2),
            r"micro_batch: expected one of \[1\], got 2; choose another",
        ),
        (
            plan_of("a b c", replicas=3),
            r"replicas: expected replicas \* micro_batch to divide the global "
            r"batch 4, got 3 \* 1; choose another value",
        ),
        (
            plan_of("a", "b", "c", replicas=2),
            r"stages: expected at most 2 devices per replica \(4 for 2 "
            r"replicas\), got 3; use fewer devices or replicas",
        ),
        (
            make_plan(("a b c", Strategy(tp=2))),
            "stage 1: layer 'a': expected a cost for tp=2, cp=1, ep=1, "
            "samples=1, got none in kind 'a'",
        ),
        (
            make_plan(("a", SINGLE), ("b c", Strategy(recompute="full"))),
            "stage 2: recompute: expected one of .*'none'.*, got 'full'",
        ),
        (
            make_plan(("a", SINGLE), ("b c", Strategy(dp=2))),
            "stage 2: dp: expected a divisor of micro_batch 1, got 2",
        ),
        (
            make_plan(("a", SINGLE), ("b c", Strategy(zero=1))),
            r"stage 2: zero: expected one of \[0\], got 1",
        ),
    ],
)
def test_a_plan_that_does_not_fit_is_refused(plan, reason):
    problem = three_stages(edges=(("a", "b", 1),))
    with pytest.raises(InvalidPlanError, match=reason):
        score(problem, plan)


def test_more_replicas_than_devices():
    problem = three_stages(global_batch=8, devices=3)
    with pytest.raises(
        InvalidPlanError,
        match=r"replicas: expected at most one per device \(3\), got 8",
    ):
        score(problem, plan_of("a b c", replicas=8))


def test_forbidden_replicas_and_data_parallel():
    problem = three_stages(replicas=(2,), data_parallel=(2,))
    with pytest.raises(
        InvalidPlanError, match=r"replicas: expected one of \[2\], got 1"
    ):
        score(problem, PLAN)
    with pytest.raises(
        InvalidPlanError, match=r"stage 1: dp: expected one of \[2\], got 1"
    ):
        score(problem, plan_of("a b c", replicas=2))


def test_an_edge_inside_a_stage_is_fine_in_any_listed_order():
    problem = three_stages(edges=(("a", "b", 1), ("b", "c", 1)))
    plan = Plan(
        replicas=1,
        micro_batch=1,
        stages=(Stage(layers=("c", "b", "a"), devices=1, strategy=SINGLE),),
    )
    # loads 110 in one stage, four micro-batches
    assert score(problem, plan).step_quanta == 440


def test_layer_ids_may_be_numbers_or_their_text():
    problem = make_problem({"7": make_cost(3, 4)})
    plan = Plan(
        replicas=1,
        micro_batch=1,
        stages=(Stage(layers=(7,), devices=1, strategy=SINGLE),),
    )
    assert score(problem, plan).step_quanta == 7


def test_a_step_time_has_the_name_that_documents_give_it() -> None:
    found = score(tiny_problem(), good_plan())
    assert found.step_time_quanta == found.to_json()["step_time_quanta"]
    result = run_inside(tiny_problem(), "dp")
    assert result.step_time_quanta == result.to_json()["step_time_quanta"]
