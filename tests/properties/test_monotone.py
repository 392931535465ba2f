"""More of anything never makes the optimum worse, and no plan beats it."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nest.cost.score import score
from nest.ir import RECOMPUTE, Problem
from nest.solvers.base import SolveOptions
from nest.solvers.registry import get_solver
from tests.builders import with_cluster, with_device, with_job
from tests.properties.profiles import examples
from tests.strategies import problems, problems_with_plans


def optimum(problem: Problem, solver: str = "dp") -> float:
    """Return the optimum in quanta; infinite if there is no plan."""
    output = get_solver(solver)().solve(problem, SolveOptions())
    if output.claimed_quanta is None:
        assert output.status == "infeasible"
        return math.inf
    return output.claimed_quanta


def with_level(problem: Problem, number: int, **fields) -> Problem:
    levels = list(problem.cluster.topology.levels)
    levels[number] = replace(levels[number], **fields)
    topology = replace(problem.cluster.topology, levels=tuple(levels))
    return with_cluster(problem, topology=topology)


@examples(60)
@given(problems(), st.sampled_from((1, 10, 100, 1000)))
def test_more_memory_never_hurts(problem, extra):
    memory = problem.cluster.device.memory_bytes
    more = with_device(problem, memory_bytes=memory + extra)
    assert optimum(more) <= optimum(problem)


@examples(10)
@given(problems(), st.sampled_from((1, 100)))
def test_more_memory_never_hurts_brute_force(problem, extra):
    memory = problem.cluster.device.memory_bytes
    more = with_device(problem, memory_bytes=memory + extra)
    assert optimum(more, "brute") <= optimum(problem, "brute")


@examples(60)
@given(problems(), st.integers(0, 2), st.sampled_from((1.1, 2.0, 10.0)))
def test_more_bandwidth_never_hurts(problem, number, factor):
    number %= len(problem.cluster.topology.levels)
    level = problem.cluster.topology.levels[number]
    faster = with_level(
        problem, number, bandwidth_bytes_per_s=level.bandwidth_bytes_per_s * factor
    )
    assert optimum(faster) <= optimum(problem)


@examples(40)
@given(problems(), st.integers(0, 2), st.sampled_from((0.0, 0.5)))
def test_less_latency_never_hurts(problem, number, factor):
    number %= len(problem.cluster.topology.levels)
    level = problem.cluster.topology.levels[number]
    faster = with_level(problem, number, latency_ns=level.latency_ns * factor)
    assert optimum(faster) <= optimum(problem)


@examples(30)
@given(problems())
def test_faster_memory_never_hurts(problem):
    hbm = problem.cluster.device.hbm_bytes_per_s
    faster = with_device(problem, hbm_bytes_per_s=None if hbm is None else 2 * hbm)
    assert optimum(faster) <= optimum(problem)


@examples(40)
@given(problems())
def test_one_more_device_never_hurts_a_single_pipeline(problem):
    """With replicas it may: their pitch changes, and what they straddle."""
    cluster = problem.cluster
    room = with_level(problem, -1, fan_out=cluster.topology.levels[-1].fan_out + 1)
    one = replace(room, job=replace(problem.job, replicas=(1,)))
    more = with_cluster(one, num_devices=cluster.num_devices + 1)
    assert optimum(more) <= optimum(one)


@examples(60)
@given(problems(preset="standard"), st.integers(0, 5))
def test_more_choices_never_hurt(problem, number):
    job = problem.job
    largest = max(job.micro_batches)
    wider = (
        replace(job, zero=(0, 1, 2, 3)),
        replace(job, recompute=RECOMPUTE),
        replace(job, replicas=None),
        replace(job, data_parallel=None),
        replace(job, micro_batches=(*job.micro_batches, 2 * largest)),
        replace(job, gradient_sync_overlap=1.0),
    )[number]
    assert optimum(replace(problem, job=wider)) <= optimum(problem)


@examples(40)
@given(problems(preset="standard"))
def test_one_forward_one_backward_needs_no_more_memory_than_gpipe(problem):
    """Same step time, fewer micro-batches in flight."""
    eager, late = (
        with_job(problem, schedule=schedule) for schedule in ("1f1b", "gpipe")
    )
    assert optimum(eager) <= optimum(late)


@examples(200)
@given(problems_with_plans())
def test_no_legal_plan_beats_the_optimum(pair):
    problem, plan = pair
    if plan is None:
        return
    verdict = score(problem, plan)
    if verdict.feasible:
        assert optimum(problem) <= verdict.step_quanta


@examples(60)
@given(problems_with_plans())
def test_the_step_time_is_what_its_stages_add_up_to(pair):
    """Bounds that hold for every plan: between max and sum of loads."""
    problem, plan = pair
    if plan is None:
        return
    verdict = score(problem, plan)
    loads = [stage.load for stage in verdict.stages]
    syncs = [stage.sync for stage in verdict.stages]
    further = verdict.num_micro_batches - 1
    pace = max(loads)
    if problem.job.schedule == "gpipe":
        # The slowest forward and backward pass may be of two stages.
        pace = max(stage.forward for stage in verdict.stages)
        pace += max(stage.backward for stage in verdict.stages)
    assert verdict.num_micro_batches * max(loads) <= verdict.step_quanta
    assert verdict.step_quanta <= (
        len(loads) * max(loads) + further * pace + max(syncs)
    )
    assert all(
        stage.forward >= stage.receive_forward
        and stage.backward >= stage.receive_backward
        for stage in verdict.stages
    )
