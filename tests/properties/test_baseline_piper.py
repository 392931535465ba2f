"""``piper``: its program is optimal, and its objective under its preset."""

from __future__ import annotations

from hypothesis import given

from baselines.downsets import Stages
from baselines.piper import Program, make_ways
from nest.cost.model import CostModel
from nest.cost.score import score
from nest.cost.space import batch_splits
from nest.ir import Problem
from nest.solvers.base import Deadline
from nest.units import ceil_div
from tests.properties import test_piper
from tests.properties.fairness import check_fair
from tests.properties.profiles import examples
from tests.strategies import problems


@examples(60, full=1000)
@given(test_piper.problems())
def test_its_objective_is_the_shared_one_under_its_preset(problem):
    """There every plan fits as well."""
    output = check_fair("piper", problem)
    if output is not None and output.plan is not None:
        found = score(problem, output.plan)
        assert found.feasible
        assert output.own_objective_ns is not None
        own = output.own_objective_ns * 1000 / problem.quantum_ps
        # four terms of a stage are rounded apart
        assert abs(own - found.step_quanta) <= 2


def least_load(program: Program) -> float:
    """Return the least largest load by trying every pipeline."""
    stages = program.stages
    last = stages.sets.count - 1

    def pipelines(at, devices):
        """Yield lists of (stage, way) from a set to the whole graph."""
        if at == last:
            yield []
            return
        for stage in range(stages.first[at], stages.first[at + 1]):
            for way in program.ways:
                if way.devices <= devices:
                    left = devices - way.devices
                    for rest in pipelines(stages.target[stage], left):
                        yield [(stage, way), *rest]

    best = float("inf")
    for placed in pipelines(0, program.pipelines.num_devices):
        counts = program.pipelines.counts
        if counts is not None and len(placed) not in counts:
            continue
        ranks = sum(way.dp for _, way in placed)
        if ranks > program.pipelines.most_ranks:
            continue
        worst = 0.0
        for stage, way in placed:
            inflight = ceil_div(ranks, way.dp)
            loads = way.load_ns[stage]
            load = float("inf")
            if inflight <= len(loads):
                load = float(loads[inflight - 1])
            worst = max(worst, load)
            ranks -= way.dp
        best = min(best, worst)
    return best


def check_optimum(problem: Problem) -> None:
    model = CostModel(problem)
    stages = Stages(problem)
    for case in batch_splits(problem):
        deadline = Deadline(None)
        ways = make_ways(model, stages, case, deadline)
        allowed = problem.job.pipeline_parallel
        program = Program(
            *(stages, ways, case.devices, case.devices, allowed, deadline)
        )
        found = program.best(float("inf"))
        truth = least_load(program)
        assert (found.load_ns if found else float("inf")) == truth


@examples(40, full=500)
@given(problems(preset="standard"))
def test_its_program_is_optimal(problem):
    """Equal to plain enumeration over the same loads."""
    check_optimum(problem)


@examples(40, full=500)
@given(test_piper.problems())
def test_its_program_is_optimal_under_its_own_preset(problem):
    check_optimum(problem)
