"""Targets: what their files say, and what becomes of problems and plans."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from nest.constraints.targets import (
    Shape,
    for_target,
    inexpressible,
    names,
    optimizer_of,
    target,
)
from nest.errors import InvalidOptionError, UnknownNameError
from nest.ir import Activations, Optimizer, Plan, Problem, Stage, Strategy
from nest.ir.plan import RECOMPUTE
from tests.builders import SINGLE, make_cost, make_plan, make_problem

FRAMEWORKS = tuple(name for name in names() if name != "any")


def four_layers(**job: object) -> Problem:
    """An embedding, four blocks and a head, on 8 devices."""
    every = tuple(
        make_cost(
            1,
            1,
            tp=tp,
            cp=cp,
            samples=samples,
            activations=tuple(
                Activations(recompute=name, kept_bytes=0) for name in RECOMPUTE
            ),
        )
        for tp in (1, 2)
        for cp in (1, 2)
        for samples in (1, 2)
    )
    whole = make_problem(
        {"in": every, "block": every, "out": every},
        devices=8,
        **{
            "global_batch": 8,
            "micro_batches": (1, 2),
            "zero": (0, 1, 2, 3),
            "recompute": RECOMPUTE,
            **job,
        },
    )
    first, block, last = whole.graph.layers
    blocks = tuple(replace(block, id=f"b{i}") for i in range(4))
    graph = replace(whole.graph, layers=(first, *blocks, last))
    return replace(whole, graph=graph)


def test_every_rule_has_a_source():
    for name in FRAMEWORKS:
        rules = target(name).rules
        assert rules is not None
        for field in rules.__struct_fields__:
            if getattr(rules, field) is None:
                assert field == "zero_with_bf16"  # the one that may be absent
                continue
            assert getattr(rules, field).source.startswith(
                ("tested", "read in", "not checked", "fewer ranks")
            ), (name, field)


def test_unknown_targets_are_refused_with_a_hint():
    with pytest.raises(
        UnknownNameError,
        match=r"target: expected one of accelerate, any, deepspeed, maxtext, megatron, "
        r"torchtitan; got 'megatrn'; did you mean 'megatron'\?",
    ):
        target("megatrn")


def test_any_target_leaves_the_problem_alone():
    problem = four_layers()
    assert for_target(problem, "any") == problem


def test_what_training_keeps_per_weight():
    """Bytes: Megatron 2 + 4 + 12 = 18, torchtitan 4 + 4 + 8 = 16.

    The fp32 weights of the latter are 2 bytes of the layer and 2 of state.
    """
    kept = {
        name: (made.weight_bytes, made.gradient_bytes, made.state_bytes)
        for name in names()
        for made in [optimizer_of(target(name))]
    }
    assert kept == {
        "megatron": (2, 4, 12),
        "torchtitan": (2, 4, 10),
        "deepspeed": (2, 2, 12),
        "maxtext": (2, 4, 10),
        "accelerate": (2, 4, 10),
        "any": (2, 2, 12),
    }
    smaller = optimizer_of(target("megatron"), "bf16", "adam-8bit")
    assert (smaller.gradient_bytes, smaller.state_bytes) == (2, 6)
    for name in ("adam-bf16", "sgd", "muon"):
        assert optimizer_of(target("any"), None, name).state_bytes == 8


def test_gradients_that_a_target_cannot_keep_are_refused():
    with pytest.raises(
        InvalidOptionError,
        match="gradients: expected one of fp32, which torchtitan can keep, "
        "got bf16; choose it or another target",
    ):
        optimizer_of(target("torchtitan"), "bf16")
    with pytest.raises(UnknownNameError, match=r"optimizer: .*did you mean"):
        optimizer_of(target("any"), None, "adan")
    with pytest.raises(UnknownNameError, match="gradients: expected one of"):
        optimizer_of(target("any"), "fp8")


def test_jobs_keep_what_they_say_about_the_optimizer():
    said = Optimizer(name="own", gradient_bytes=4, state_bytes=4)
    kept = for_target(four_layers(optimizer=said), "megatron")
    assert kept.job.optimizer == said
    usual = for_target(four_layers(), "megatron").job.optimizer
    assert usual.gradient_bytes == 4
    wanted = for_target(four_layers(), "megatron", optimizer=said)
    assert wanted.job.optimizer == said


@pytest.mark.parametrize(
    ("name", "schedule", "allowed", "there", "chunks"),
    [
        ("torchtitan", "any", (1, 2), "any", (1, 2)),
        ("torchtitan", ("1f1b", "zb-v"), (1, 3), ("1f1b", "zb-v"), (1, 3)),
        ("torchtitan", "zb-v", (2,), "zb-v", (2,)),
        ("torchtitan", "dualpipe-v", (2,), "1f1b", (1,)),
        ("megatron", "any", (1, 2), "1f1b", (1, 2)),
        ("megatron", ("zb-h1", "1f1b"), (1, 2), "1f1b", (1, 2)),
        ("megatron", ("zb-h1", "gpipe"), (1,), "1f1b", (1,)),
        ("megatron", "zb-v", (2,), "1f1b", (1,)),
        ("deepspeed", "any", (1, 2), "1f1b", (1,)),
        ("maxtext", "any", (1, 2), "gpipe", (1,)),
        ("maxtext", ("1f1b", "zb-h1"), (1, 2), "gpipe", (1,)),
    ],
)
def test_of_the_schedules_of_a_job_those_of_the_target_are_left(
    name, schedule, allowed, there, chunks
):
    """All of them where it takes the order of single passes."""
    problem = four_layers(
        schedule=schedule, virtual_stages=allowed, recompute=("none",)
    )
    job = for_target(problem, name).job
    assert (job.schedule, job.virtual_stages) == (there, chunks)


def test_rules_become_fields_of_the_job():
    job = for_target(four_layers(), "maxtext").job
    assert job.zero == (0, 1, 3)
    assert job.recompute == ("none", "full")
    assert job.schedule == "gpipe"
    assert (job.even_layers, job.idle_devices) == (True, False)
    assert job.micro_batch_count == "multiple-of-stages"
    assert job.uniform == ("dp", "tp", "cp", "ep", "zero", "recompute")
    deepspeed = for_target(four_layers(), "deepspeed").job
    assert deepspeed.context_parallel == (1,)
    assert deepspeed.zero_with == {"pp": (1,), "r": (0,)}
    half = for_target(four_layers(dtype="fp16"), "deepspeed").job
    assert half.zero_with == {"pp": (0, 1), "r": (0,)}
    assert deepspeed.sharded_with == ()
    torchtitan = for_target(four_layers(), "torchtitan").job
    assert torchtitan.sharded_with == ("tp", "ep", "pp")


def test_extensions_are_left_as_far_as_they_exist():
    problem = four_layers(
        virtual_stages=(1, 2),
        overlap={"tp": 0.5, "cp": 0.5},
        distributed_optimizer=True,
        granularity="layer",
        uneven_batches=True,
    )
    job = for_target(problem, "megatron").job
    assert job.virtual_stages == (1, 2)
    assert job.overlap == {"tp": 0.5, "cp": 0.5}
    assert job.distributed_optimizer
    assert (job.granularity, job.uneven_batches) == ("stage", False)
    job = for_target(problem, "deepspeed").job
    assert job.virtual_stages == (1,)
    assert job.overlap == {}


def test_sequence_parallelism_decides_about_tensor_parallelism():
    """torchtitan always splits activations over tp, DeepSpeed never does."""
    job = for_target(four_layers(), "torchtitan").job
    assert job.tensor_parallel == (1,)
    job = for_target(four_layers(), "deepspeed").job
    assert job.tensor_parallel is None
    split = four_layers(sequence_parallel=True)
    assert for_target(split, "torchtitan").job.tensor_parallel is None
    assert for_target(split, "deepspeed").job.tensor_parallel == (1,)


ONE_HEAD = Shape(kv_heads=(1, 4))


def test_heads_that_are_not_copied_limit_tensor_parallelism():
    """torchtitan cuts heads of keys and values, Megatron-LM copies them."""
    split = four_layers(sequence_parallel=True, sequence_length=8)
    whole = for_target(split, "torchtitan")
    assert whole.job.tensor_parallel is None
    assert for_target(split, "torchtitan", shape=Shape((4,))) == whole
    narrow = for_target(split, "torchtitan", shape=ONE_HEAD).job
    assert narrow.tensor_parallel == (1,)
    assert for_target(split, "megatron", shape=ONE_HEAD).job.tensor_parallel is None
    plan = make_plan(("in b0 b1 b2 b3 out", Strategy(tp=2)))
    obstacle, *_ = inexpressible("torchtitan", whole, plan, ONE_HEAD)
    assert str(obstacle).startswith(
        "stage 1: expected tp to divide the 1 key and value heads, got tp=2 (tested"
    )
    message = "target torchtitan: expected tensor_parallel to have one of 1, which"
    with pytest.raises(InvalidOptionError, match=message):
        for_target(
            four_layers(sequence_parallel=True, tensor_parallel=(2,)),
            *("torchtitan", None, ONE_HEAD),
        )


@pytest.mark.parametrize(
    ("name", "by_operator", "left"),
    [
        ("torchtitan", True, ("none", "selective", "full")),
        ("torchtitan", False, ("none", "full")),
        ("megatron", True, ("none", "full")),
        ("megatron", False, ("none", "selective", "full")),
        ("maxtext", True, ("none", "full")),
    ],
)
def test_selective_recomputation_is_that_of_the_target(name, by_operator, left):
    """Of torchtitan by operator, of Megatron-LM that of attention alone."""
    problem = four_layers(selective_operators=by_operator, sequence_parallel=True)
    assert for_target(problem, name).job.recompute == left
    plan = make_plan(("in b0 b1 b2 b3 out", Strategy(recompute="selective")))
    known = f"stage 1: recompute=selective | recompute {' or '.join(left)}"
    assert (known in texts(name, problem, plan)) is ("selective" not in left)


def test_data_ranks_alone_are_left():
    """Accelerate has no stages, and neither tensor nor expert ranks."""
    job = for_target(four_layers(sequence_parallel=True), "accelerate").job
    assert (job.tensor_parallel, job.expert_parallel) == ((1,), (1,))
    assert (job.pipeline_parallel, job.context_parallel) == ((1,), (1,))
    plan = make_plan(("in b0 b1", Strategy(tp=2)), ("b2 b3 out", SINGLE))
    listed = texts("accelerate", four_layers(sequence_parallel=True), plan)
    assert "stages: 2 | 1" in listed
    assert "stage 1: tp=2 | tp 1" in listed


def test_samples_are_cut_into_pieces():
    """torchtitan asks for 2 · tp pieces of a sample, also without context ranks."""
    split = four_layers(sequence_parallel=True, sequence_length=6)
    assert for_target(split, "torchtitan").job.tensor_parallel == (1,)
    plan = make_plan(("in b0 b1 b2 b3 out", Strategy(tp=2)))
    known = "stage 1: tp=2 | 2 * tp to divide the 6 tokens"
    assert known in texts("torchtitan", split, plan)
    assert known not in texts("megatron", split, plan)


def choosing(*, experts: bool = False, **job: object) -> Problem:
    """The same, where plans split sequences or not; perhaps with experts."""
    whole = four_layers(sequence_parallel=(False, True), **job)
    kinds = tuple(
        replace(
            kind,
            costs=tuple(
                replace(cost, sequence_parallel=split, expert_weight_bytes=int(experts))
                for cost in kind.costs
                for split in ((False, True) if cost.tp > 1 else (False,))
            ),
        )
        for kind in whole.graph.kinds
    )
    return replace(whole, graph=replace(whole.graph, kinds=kinds))


@pytest.mark.parametrize(
    ("name", "experts", "left"),
    [
        ("megatron", False, (False, True)),
        # Refused without it.
        ("megatron", True, (True,)),
        ("torchtitan", False, (True,)),
        ("deepspeed", False, (False,)),
        ("deepspeed", True, (False,)),
        ("maxtext", True, (False, True)),
    ],
)
def test_a_target_leaves_what_it_can_say_of_sequences(name, experts, left):
    job = for_target(choosing(experts=experts), name).job
    assert job.sequence_parallel == left
    assert job.tensor_parallel is None
    # One value for all stages, where it is no fact of the job.
    assert "sequence_parallel" in job.uniform
    decided = for_target(four_layers(sequence_parallel=True), name).job
    assert decided.sequence_parallel is True
    assert "sequence_parallel" not in decided.uniform


def test_no_tensor_parallelism_where_no_way_to_split_is_left():
    whole = choosing()
    job = replace(whole.job, sequence_parallel=(False,))
    narrow = for_target(replace(whole, job=job), "torchtitan").job
    assert narrow.tensor_parallel == (1,)
    assert narrow.sequence_parallel == (False,)


def test_plans_that_split_otherwise_are_named():
    split = Strategy(tp=2, sequence_parallel=True)
    both = make_plan(("in b0", Strategy(tp=2)), ("b1 b2 b3 out", split))
    known = " | tp 1, or more {} sequence parallelism".format
    assert texts("deepspeed", choosing(even_layers=False), both)[:1] == [
        "stage 2: tp=2" + known("without")
    ]
    assert "stage 1: tp=2" + known("with") in texts("torchtitan", choosing(), both)
    assert texts("megatron", choosing(), both) == [
        "stage 2: sequence_parallel=True | sequence_parallel=False as in "
        "stage 1, as all stages share it"
    ]
    whole = make_plan(("in b0 b1 b2 b3 out", Strategy(tp=2)))
    assert texts("megatron", choosing(), whole) == []
    assert texts("megatron", choosing(experts=True), whole) == [
        "stage 1: tp=2" + known("with")
    ]


def test_nothing_left_of_a_choice_is_refused():
    with pytest.raises(
        InvalidOptionError,
        match="target torchtitan: expected zero to have one of 0, 2, 3, "
        "which torchtitan can express, got 1; allow one",
    ):
        for_target(four_layers(zero=(1,)), "torchtitan")
    with pytest.raises(InvalidOptionError, match="virtual_stages to have"):
        for_target(four_layers(virtual_stages=(2,)), "deepspeed")


def predicting(count: int = 2, one_stage: tuple[str, ...] = ()) -> Problem:
    """The same, the last blocks modules for multi-token prediction."""
    whole = four_layers()
    graph = whole.graph
    kinds = {kind.name: kind for kind in graph.kinds}
    more = tuple(replace(kinds["block"], name=name) for name in ("mtp", "mtp-next"))
    layers = list(graph.layers)
    for number in range(count):
        at = len(layers) - 1 - count + number
        kind = more[min(number, 1)].name
        layers[at] = replace(layers[at], kind=kind)
    return replace(
        whole,
        graph=replace(graph, kinds=(*graph.kinds, *more), layers=tuple(layers)),
        job=replace(whole.job, one_stage=one_stage),
    )


def test_modules_of_predictions_stay_in_one_stage_for_megatron():
    two = for_target(predicting(), "megatron").job
    assert two.one_stage == ("mtp", "mtp-next")
    # One is in one stage anyway.
    assert for_target(predicting(1), "megatron").job.one_stage == ()
    assert for_target(four_layers(), "megatron").job.one_stage == ()
    assert for_target(predicting(), "any").job.one_stage == ()
    own = for_target(predicting(one_stage=("mtp", "out")), "megatron").job
    assert own.one_stage == ("mtp", "out", "mtp-next")
    with pytest.raises(
        InvalidOptionError,
        match=r"^target megatron: expected one_stage with the kinds mtp, "
        "mtp-next, which Megatron-LM has in one stage, got in; remove it$",
    ):
        for_target(predicting(one_stage=("in",)), "megatron")


def test_experts_are_not_exchanged_behind_several_modules_of_predictions():
    overlap = {"ep": 0.5, "gradients": 0.5}
    for count, left in ((1, overlap), (2, {"gradients": 0.5})):
        whole = predicting(count)
        job = replace(whole.job, overlap=overlap)
        whole = replace(whole, job=job)
        assert for_target(whole, "megatron").job.overlap == left
        plan = make_plan(("in b0 b1 b2 b3 out", SINGLE))
        plan = replace(plan, overlap=("ep",))
        found = texts("megatron", whole, plan)
        assert found == ["overlap: ep | tp or cp or weights or gradients"] * (count > 1)


@pytest.mark.parametrize(
    ("name", "title", "source"),
    [
        ("torchtitan", "torchtitan", "read in torchtitan 0.2.2, no such"),
        ("deepspeed", "DeepSpeed", "read in deepspeed 0.19.8, its training"),
        ("maxtext", "MaxText", "read in maxtext 0.2.5, mtp_num_layers runs"),
    ],
)
def test_targets_without_modules_of_predictions_say_so(name, title, source):
    with pytest.raises(
        InvalidOptionError,
        match=f"^target {name}: expected no layers of kind 'mtp', which "
        f"plans for {title} cannot have \\({source}.*\\), got 1; import the "
        f"model without them, or choose another target$",
    ):
        for_target(predicting(), name)
    plan = make_plan(("in b0 b1 b2 b3 out", SINGLE))
    found = texts(name, predicting(), plan)
    for kind in ("mtp", "mtp-next"):
        assert f"graph: 1 | no layers of kind {kind!r}" in found


def test_parted_modules_of_predictions_are_listed():
    parted = make_plan(("in b0 b1 b2", SINGLE), ("b3 out", SINGLE))
    assert texts("megatron", predicting(), parted) == [
        "stage 1: 1 | all 2 layers of kind 'mtp' or 'mtp-next', or none"
    ]
    (obstacle,) = inexpressible("megatron", predicting(), parted)
    assert obstacle.source.startswith("tested, validate_layer_layout")
    alone = make_plan(("in b0 b1", SINGLE), ("b2 b3", SINGLE), ("out", SINGLE))
    assert texts("megatron", predicting(), alone) == []


# What a plan has that a target cannot say


def texts(name: str, problem: Problem, plan: Plan) -> list[str]:
    return [
        f"{found.field}: {found.value} | {found.rule}"
        for found in inexpressible(name, problem, plan)
    ]


MIXED = make_plan(
    ("in b0", Strategy(tp=2)),
    ("b1 b2", Strategy(dp=2, recompute="selective", zero=1)),
    ("b3 out", Strategy(dp=2)),
    micro_batch=2,
)


def test_a_plan_of_the_target_has_no_obstacles():
    plan = make_plan(("in b0 b1 b2", SINGLE), ("b3 out", SINGLE))
    assert inexpressible("megatron", four_layers(), plan) == []
    assert inexpressible("any", four_layers(), MIXED) == []


def test_stages_that_differ_are_listed():
    """Stage 2 and 3 differ from stage 1 in dp and tp, 2 in two more."""
    assert texts("megatron", four_layers(), MIXED) == [
        "stage 2: dp=2 | dp=1 as in stage 1, as all stages share it",
        "stage 2: tp=1 | tp=2 as in stage 1, as all stages share it",
        "stage 2: zero=1 | zero=0 as in stage 1, as all stages share it",
        "stage 2: recompute=selective | recompute=none as in stage 1, as all "
        "stages share it",
        "stage 3: dp=2 | dp=1 as in stage 1, as all stages share it",
        "stage 3: tp=1 | tp=2 as in stage 1, as all stages share it",
    ]


def test_values_that_do_not_exist_are_listed():
    found = texts("torchtitan", four_layers(optimizer=Optimizer()), MIXED)
    assert found[:4] == [
        "optimizer.gradient_bytes: 2 | gradients in fp32",
        "stage 1: tp=2 | tp 1, or more with sequence parallelism",
        "stage 2: zero=1 | zero 0 or 2 or 3",
        "stage 2: recompute=selective | recompute none or full",
    ]


def test_rules_about_whole_plans_are_listed():
    """On 8 devices: 4 idle, M = 8 no multiple of 3 stages, uneven."""
    plan = make_plan(("in b0", SINGLE), ("b1 b2", SINGLE), ("b3 out", SINGLE))
    fp32 = Optimizer(gradient_bytes=4)
    problem = four_layers(schedule="gpipe", optimizer=fp32)
    assert texts("maxtext", problem, plan) == [
        "stage 1: 1 | 4/3 layers of kind 'block', as all stages have as many",
        "stage 2: 2 | 4/3 layers of kind 'block', as all stages have as many",
        "stage 3: 1 | 4/3 layers of kind 'block', as all stages have as many",
        "stages: 3 | all 8 devices in use",
        "stages: 8 | a multiple of 3 micro-batches with 3 stages",
    ]


def test_sharding_that_is_asked_for_is_listed():
    """ZeRO 2 over one data rank shards nothing."""
    plan = make_plan(
        ("in b0 b1", Strategy(dp=2, zero=2)),
        ("b2 b3 out", Strategy(tp=2, zero=2)),
        micro_batch=2,
    )
    zero = "zero to be 2 or 3 over several data or context ranks"
    assert f"stage 2: zero=2 over 1 | {zero} with several tensor ranks" in texts(
        "torchtitan", four_layers(), plan
    )


@pytest.mark.parametrize(
    ("dp", "replicas", "distributed", "sharded"),
    [(1, 1, False, True), (2, 1, False, False), (1, 2, False, False),
     (1, 2, True, True)],
)  # fmt: skip
def test_deepspeed_shards_all_pipelines_in_bf16(dp, replicas, distributed, sharded):
    """Stage 0 is the same over one rank, or with an optimizer sharded over all."""
    split = Strategy(dp=dp)
    plan = replace(
        make_plan(
            ("in b0 b1", split), ("b2 b3 out", split), replicas=replicas, micro_batch=2
        ),
        distributed_optimizer=distributed,
    )
    allowed = {"distributed_optimizer": True}
    assert (texts("deepspeed", four_layers(**allowed), plan) == []) == sharded
    assert texts("deepspeed", four_layers(dtype="fp16", **allowed), plan) == []


def test_zero_with_stages_and_replicas_is_listed():
    plan = make_plan(
        ("in b0 b1", Strategy(dp=2, zero=2)),
        ("b2 b3 out", Strategy(dp=2, zero=2)),
        replicas=2,
        micro_batch=2,
    )
    half = four_layers(dtype="fp16")
    for problem, stages in ((half, "[0, 1]"), (four_layers(), "[1]")):
        assert texts("deepspeed", problem, plan) == [
            f"stage {n}: zero=2 | zero to be one of {stages} with several stages"
            for n in (1, 2)
        ]
    one = make_plan(
        ("in b0 b1 b2 b3 out", Strategy(dp=2, zero=2)), replicas=2, micro_batch=2
    )
    assert texts("deepspeed", four_layers(), one) == [
        "stage 1: zero=2 | zero to be one of [0] with several replicas"
    ]


def test_extensions_that_do_not_exist_are_listed():
    chunks = (("in", "b0"), ("b1",), ("b2",), ("b3", "out"))
    plan = Plan(
        replicas=1,
        micro_batch=1,
        virtual_stages=2,
        overlap=("ep",),
        distributed_optimizer=True,
        stages=tuple(
            Stage(layers=names, devices=1, strategy=SINGLE) for names in chunks
        ),
    )
    fp32 = Optimizer(gradient_bytes=4)
    problem = four_layers(
        virtual_stages=(1, 2),
        overlap={"ep": 0.5},
        distributed_optimizer=True,
        optimizer=fp32,
    )
    assert texts("torchtitan", problem, plan) == [
        "overlap: ep | tp or weights or gradients",
        "distributed_optimizer: true | false",
        *(
            f"stage {number}: zero=0 over 1 | zero to be 2 or 3 over several "
            f"data or context ranks with several stages"
            for number in (1, 2, 3, 4)
        ),
    ]
    assert texts("megatron", problem, plan) == []
    assert "virtual_stages: 2 | 1" in texts("deepspeed", problem, plan)


def test_an_uneven_batch_is_listed():
    problem = four_layers(global_batch=9, uneven_batches=True)
    plan = make_plan(("in b0 b1 b2 b3 out", SINGLE), micro_batch=2)
    assert texts("megatron", problem, plan) == [
        "micro_batch: 1 * 2 samples | a divisor of the global batch 9"
    ]


def test_an_obstacle_says_where_it_comes_from():
    problem = four_layers(schedule="gpipe")
    plan = make_plan(("in b0 b1 b2 b3 out", SINGLE))
    found = inexpressible("megatron", problem, plan)
    assert [str(x) for x in found] == [
        "schedule: expected 1f1b, got gpipe (read in megatron-core 0.19.2, "
        "its schedules are 1F1B)"
    ]
