"""Plans under a software cost what predictions of rows say."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

import nest
from nest.constraints.targets import for_target
from nest.errors import InvalidOptionError
from nest.frameworks.export import export
from nest.hardware import machine
from nest.hardware.calibration import stored_calibration
from nest.ir.job import Optimizer
from nest.ir.plan import Plan, Stage, Strategy
from nest.ir.problem import Problem
from nest.models.choices import Request, choose
from nest.models.graphs import build_problem
from nest.uncertainty.intervals import (
    intervals_of,
    is_stranger,
    rests_on,
    stored_deviations,
)
from nest.validation.complete import complete
from nest.validation.planned import planned
from nest.validation.predict import PredictedRun, Skip, predicted_run
from nest.validation.rows import Row
from tests.builders import with_device, with_job
from tests.exports import small_model
from tests.independent.enumerator import optimum

#: Published runs: model and cluster of a plan, cells of the row, strategy of the plan
#: and measured seconds.
RUNS: dict[str, tuple[str, str, dict[str, Any], Strategy, float]] = {
    "DeepSpeed": (
        "llama2-7b",
        "a800x8",
        {
            "framework": "DeepSpeed",
            "hardware": "A800-80GB",
            "global_batch": 64,
            "seq_len": 4096,
            "micro_batch": 8,
            "recompute": "full",
        },
        Strategy(dp=8, zero=3, recompute="full"),
        14.4,
    ),
    "torchtitan on B200": (
        "llama3-8b",
        "b200x8",
        {
            "framework": "torchtitan",
            "hardware": "B200-180GB",
            "global_batch": 8,
            "seq_len": 8192,
            "micro_batch": 1,
            "recompute": "selective (per-op SAC)",
        },
        Strategy(dp=8, zero=3, recompute="selective"),
        0.99,
    ),
    "Megatron-LLaMA": (
        "llama2-13b",
        "dgx-a100x256",
        {
            "framework": "Megatron-LLaMA",
            "hardware": "A100-80GB-SXM",
            "global_batch": 2048,
            "seq_len": 2048,
            "micro_batch": 4,
            "recompute": "none",
            "sp": True,
            "zero_stage": 2,
        },
        Strategy(dp=128, tp=2, zero=2),
        8.67,
    ),
    "NeMo AutoModel": (
        "qwen3-30b-a3b",
        "dgx-h100x8",
        {
            "framework": "NeMo AutoModel with DeepEP",
            "hardware": "H100-80GB-SXM",
            "global_batch": 512,
            "seq_len": 4096,
            "micro_batch": 4,
            "recompute": "none",
        },
        Strategy(dp=8, ep=8, zero=3),
        21.8,
    ),
    "torchtitan on H100": (
        "llama3-8b",
        "h100-96gbx128",
        {
            "framework": "torchtitan",
            "hardware": "H100-96GB-HBM2e",
            "global_batch": 256,
            "seq_len": 8192,
            "micro_batch": 2,
            "recompute": "selective (per-op SAC)",
        },
        Strategy(dp=128, zero=3, recompute="selective"),
        2.92,
    ),
}


def row_of(model: str, cells: dict[str, Any], strategy: Strategy) -> Row:
    """Return the row of a run."""
    stated = {
        "model": model,
        "num_devices": strategy.dp * strategy.tp,
        "devices_per_node": 8,
        "pp": 1,
        "precision_class": "bf16",
        "zero_stage": strategy.zero,
        **{axis: getattr(strategy, axis) for axis in ("dp", "tp", "ep")},
    }
    return complete(Row(**stated | cells))


def in_planning(
    model: str, cluster: str, cells: dict[str, Any], strategy: Strategy, **more: Any
) -> tuple[Problem, Plan]:
    """Return a run as a problem that options make, and a plan of one stage."""
    problem = nest.problem(
        **{
            "model": model,
            "cluster": cluster,
            "software": cells["framework"],
            "global_batch": cells["global_batch"],
            "sequence_length": cells["seq_len"],
            "micro_batches": (cells["micro_batch"] * strategy.dp,),
            "tp": (strategy.tp,),
            "ep": (strategy.ep,),
            "cp": (1,),
            "zero": (strategy.zero,),
            "recompute": tuple({"none": None, strategy.recompute: None}),
            **more,
        }
    )
    plan = Plan(
        replicas=1,
        micro_batch=cells["micro_batch"] * strategy.dp,
        stages=(
            Stage(
                layers=tuple(layer.id for layer in problem.graph.layers),
                devices=strategy.dp * strategy.tp,
                strategy=strategy,
            ),
        ),
        overlap=tuple(problem.job.overlap),
    )
    return problem, plan


@pytest.mark.parametrize("name", RUNS)
def test_validate_score_and_solve_agree(name: str) -> None:
    """Of a plan that has one choice of everything, in nanoseconds.

    Run with ``-s`` to see each beside what was measured.
    """
    model, cluster, cells, strategy, measured_s = RUNS[name]
    run = predicted_run(row_of(model, cells, strategy))
    assert isinstance(run, PredictedRun)
    interval = intervals_of(run.run.problem, run.run.plan, run.verdict)
    assert interval is not None
    low_s, high_s = (time_ns / 1e9 for time_ns in interval.step_90_ns)
    assert run.prediction.step_time_s is not None
    print(
        f"{name}: {run.prediction.step_time_s:.3f} s predicted, {measured_s} s "
        f"measured, 90 % of steps {low_s:.2f} to {high_s:.2f} s"
    )
    assert low_s <= measured_s <= high_s
    problem, plan = in_planning(model, cluster, cells, strategy)
    assert problem.software == run.run.problem.software
    assert problem.job.optimizer == run.run.problem.job.optimizer
    score = nest.score(problem, plan)
    assert score.step_time_ns == run.prediction.step_time_s * 1e9
    pins = {"pp": 1, "r": 1, "recompute": strategy.recompute}
    solved = nest.solve(problem, "dp", pin=pins, workers=1)
    if score.feasible:
        assert solved.plan is not None
        assert nest.score(problem, solved.plan).step_time_ns == score.step_time_ns


@pytest.mark.parametrize("target", [None, "deepspeed"])
@pytest.mark.parametrize(
    ("zero", "buckets"),
    [
        (1, 0),
        # Two buffers of 5e8 gradients where they overlap; one, and 1e9 weights.
        (2, 4 * 500_000_000),
        (3, 2 * 500_000_000 + 2 * 1_000_000_000),
    ],
)
def test_buckets_of_deepspeed_are_in_every_memory(
    target: str | None, zero: int, buckets: int
) -> None:
    """Of a row, a score, and the plans that a solver looks for."""
    model, cluster, cells, _, _ = RUNS["DeepSpeed"]
    strategy = Strategy(dp=8, zero=zero, recompute="full")
    run = predicted_run(row_of(model, cells, strategy))
    assert isinstance(run, PredictedRun)
    assert run.prediction.breakdown["buffers"] == buckets
    only = {"target": target, "recompute": ("full",)}
    problem, plan = in_planning(model, cluster, cells, strategy, **only)
    score = nest.score(problem, plan)
    assert score.step_time_ns == run.verdict.step_time_ns
    (block,), (of_row,) = score.blocks, run.verdict.blocks
    assert block.memory_bytes == of_row.memory_bytes
    plain = nest.score(with_job(problem, optimizer=plainly(problem)), plan)
    assert block.memory_bytes - plain.blocks[0].memory_bytes == buckets
    fits = with_device(problem, memory_bytes=block.memory_bytes)
    tight = with_device(problem, memory_bytes=block.memory_bytes - 1)
    pins = {"pp": 1, "r": 1, "dp": 8}
    solved = nest.solve(fits, "dp", pin=pins, workers=1).plan
    assert solved is not None
    assert solved.stages == plan.stages
    assert nest.solve(tight, "dp", pin=pins, workers=1).plan is None


def plainly(problem: Problem) -> Optimizer:
    """Return the optimizer of a problem without buckets."""
    return replace(problem.job.optimizer, zero_2_bytes=0, zero_3_bytes=0)


def test_a_row_offloads_as_a_plan_does() -> None:
    """Where the link to the host is known; elsewhere the row is skipped."""
    model, cluster, cells, _, _ = RUNS["DeepSpeed"]
    strategy = Strategy(dp=8, zero=3, recompute="offload")
    row = row_of(model, cells | {"recompute": "offload"}, strategy)
    run = predicted_run(row)
    assert isinstance(run, PredictedRun)
    problem, plan = in_planning(model, cluster, cells, strategy)
    score = nest.score(problem, plan)
    assert score.step_time_ns == run.verdict.step_time_ns
    assert score.blocks[0].kept_bytes == run.verdict.blocks[0].kept_bytes
    assert score.blocks[0].memory_bytes == run.verdict.blocks[0].memory_bytes
    unlinked = predicted_run(replace(row, hardware="Ascend-910B"))
    assert unlinked == Skip("offloading to a host whose link is not known")


def test_checkpointing_by_operator_is_planned_for_torchtitan() -> None:
    """A row, a plan for the target and the plan that its export reads agree."""
    cells = RUNS["torchtitan on B200"][2]
    strategy = Strategy(dp=8, zero=2, recompute="selective")
    run = predicted_run(row_of("llama3-8b", cells, strategy))
    assert isinstance(run, PredictedRun)
    assert run.run.problem.job.selective_operators
    problem = nest.problem(
        model="llama3-8b",
        cluster="b200x8",
        target="torchtitan",
        global_batch=8,
        sequence_length=8192,
        micro_batches=(8,),
        tp=(1,),
        cp=(1,),
        recompute=("selective",),
    )
    plan = nest.solve(problem, "dp", target="torchtitan", workers=1).plan
    assert plan is not None
    assert plan.stages[0].strategy == strategy
    step_ns = nest.score(problem, plan).step_time_ns
    assert run.prediction.step_time_s is not None
    assert step_ns == run.prediction.step_time_s * 1e9
    files = export(problem, plan, "torchtitan")
    assert 'mode = "selective"\nselective_ac_option = "op"\n' in files["job.toml"]


def small_jobs(memory_bytes: int) -> Problem:
    """Return a model of two blocks on two devices with so much memory."""
    model = small_model()
    tower = replace(model.towers[0], runs=(replace(model.towers[0].runs[0], count=2),))
    model = replace(model, towers=(tower,))
    site = machine("h100")
    software = planned(None, "torchtitan", "small", site.device.name, "bf16")
    assert software is not None
    request = Request(
        global_batch=8, micro_batches=(2, 4), tp=(1, 2), cp=(1,), target="torchtitan"
    )
    choices = choose(model, site, 2, request)
    choices = software.choices(choices, [(site, 2)], frozenset({"optimizer"}))
    problem = for_target(build_problem(model, site, 2, choices), "torchtitan")
    return with_device(problem, memory_bytes=memory_bytes, reserve_bytes=0)


@pytest.mark.parametrize(
    ("memory_bytes", "recompute"),
    [(10**9, "none"), (48 * 10**6, "selective"), (40 * 10**6, "full")],
)
def test_exact_solvers_agree_where_operators_are_checkpointed(
    memory_bytes: int, recompute: str
) -> None:
    """The less memory there is, the more the best plan computes again."""
    problem = small_jobs(memory_bytes)
    step, _ = optimum(problem)
    for name in ("brute", "dp", "cpsat"):
        plan = nest.solve(problem, name, workers=1).plan
        assert plan is not None
        assert nest.score(problem, plan).step_quanta == step, name
        assert plan.stages[0].strategy.recompute == recompute


def problem_of(**stated: Any) -> Problem:
    """Return the problem of a small job, with what is stated of it."""
    return nest.problem(
        **{
            "model": "llama2-7b",
            "cluster": "h100x8",
            "global_batch": 8,
            "tp": (1,),
            "micro_batches": (8,),
            **stated,
        }
    )


@pytest.mark.parametrize(
    ("stated", "name"),
    [
        ({}, ""),
        ({"target": "megatron"}, "Megatron-LM"),
        ({"target": "any"}, ""),
        ({"target": "torchtitan"}, "torchtitan"),
        ({"target": "megatron", "software": "NeMo 2.0"}, "NeMo"),
        ({"target": "deepspeed", "software": "XTuner"}, "XTuner and ATorch"),
        ({"target": "maxtext", "software": "our own"}, "unknown software"),
        ({"software": "HF Trainer with DeepSpeed"}, "DeepSpeed"),
        ({"software": "a trainer of our own"}, "unknown software"),
        ({"software": "Megtron-LM"}, "unknown software"),
    ],
)
def test_a_problem_has_the_software_of_its_options(
    stated: dict[str, str], name: str
) -> None:
    """A name goes before the target; the screen says which entry counts."""
    problem = problem_of(**stated)
    assert problem.software == name
    assert problem.job.selective_operators is (name == "torchtitan")
    expected = {"": "software not stated", "unknown software": "software not known"}
    text = rests_on(problem, stored_deviations())[-1]
    assert text.startswith(expected.get(name, name))


@pytest.mark.parametrize(
    ("software", "entry"),
    [
        ("NeMo", "NeMo"),
        ("NeMo 2.0", "NeMo"),
        ("NeMo 24.07", "NeMo"),
        ("NeMo 24.03.01/25.04", "NeMo"),
        ("NeMo 25.05", "NeMo after 25.04"),
        ("NeMo Framework 26.02.01", "NeMo after 25.04"),
        ("NeMo 99.1", "NeMo after 25.04"),
    ],
)
def test_a_release_that_no_run_has_is_known_less(software: str, entry: str) -> None:
    problem = problem_of(software=software)
    assert problem.software == entry
    wider = rests_on(problem, stored_deviations())[-1].endswith("wider)")
    assert is_stranger(problem, stored_deviations()) is wider is (entry != "NeMo")


def test_what_options_state_goes_before_the_software() -> None:
    """Overlap, and bytes per weight; a target has bytes of its own."""
    stored = stored_calibration().software.overlap
    job = problem_of(software="DeepSpeed").job
    assert job.overlap == {"gradients": stored["gradients"]}
    assert (job.optimizer.gradient_bytes, job.optimizer.state_bytes) == (2, 12)
    job = problem_of(software="DeepSpeed", overlap="none", gradients="fp32").job
    assert job.overlap == {}
    assert (job.optimizer.gradient_bytes, job.optimizer.state_bytes) == (4, 12)
    job = problem_of(software="PyTorch", overlap={"tp": 0.5}).job
    assert job.overlap == {"tp": 0.5}
    assert job.optimizer.state_bytes == 10
    assert problem_of(software="NeMo", target="megatron").job.optimizer == (
        problem_of(target="megatron").job.optimizer
    )


@pytest.mark.parametrize(
    ("target", "software"),
    [
        ("torchtitan", "NeMo"),
        ("torchtitan", "PyTorch FSDP"),
        ("megatron", "NeMo AutoModel"),
        ("deepspeed", "Megatron-LM"),
        ("maxtext", "DeepSpeed"),
    ],
)
def test_software_that_does_not_run_a_target_is_refused(
    target: str, software: str
) -> None:
    with pytest.raises(
        InvalidOptionError,
        match=f"software.*expected one that runs plans for {target}.*{software}",
    ):
        problem_of(target=target, software=software)


def test_the_same_facts_hold_on_every_machine_of_a_cluster() -> None:
    """Eager kernels are slower on both."""
    plain, eager = (
        problem_of(cluster="h100x8+a100x8", **more)
        for more in ({}, {"software": "PyTorch", "overlap": "none"})
    )
    for one, other in zip(plain.graph.kinds, eager.graph.kinds, strict=True):
        if one.name != "embedding":
            (first,), (second,) = (kind.costs[:1] for kind in (one, other))
            assert second.forward_ns > first.forward_ns
            assert second.by_device[0].forward_ns > first.by_device[0].forward_ns


def test_plans_in_fp8_hold_copies_of_weights() -> None:
    """Of Megatron-LM, not of Megatron-Bridge, whose weights are in fp8 alone."""
    held = {
        name: max(
            activations.static_bytes
            for kind in problem_of(
                target="megatron", software=name, dtype="fp8"
            ).graph.kinds
            for cost in kind.costs
            for activations in cost.activations
        )
        for name in (None, "Megatron-Bridge")
    }
    # A block of Llama 2 7B: 4 matrices of attention, 3 of the MLP.
    assert held[None] == 2 * (4 * 4096**2 + 3 * 4096 * 11008)
    assert held["Megatron-Bridge"] == 0
