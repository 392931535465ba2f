"""Bounds on discarded batch splits hold, and true proofs stand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nest.ir import Problem
from nest.solvers.base import Deadline, SolveOptions
from nest.solvers.judge import judge
from nest.solvers.registry import get_solver
from nest.units import MAX_TOTAL
from tests.properties.profiles import examples
from tests.strategies import problems


def least_of_split(problem: Problem, replicas: int, micro_batch: int) -> int:
    """Return what ``brute`` proves of the plans of one batch split."""
    job = replace(problem.job, replicas=(replicas,), micro_batches=(micro_batch,))
    output = get_solver("brute")().solve(replace(problem, job=job), SolveOptions())
    return MAX_TOTAL + 1 if output.plan is None else output.claimed_quanta


@pytest.mark.parametrize("name", ["dp", "cpsat", "milp"])
@examples(25, full=1000)
@given(
    problem=st.one_of(
        problems(),
        problems(restricted=True),
        problems(graphs=True),
        problems(overlapping=True),
        problems(granularity="layer"),
    )
)
def test_bounds_of_splits_hold_and_true_proofs_stand(name, problem):
    solver = get_solver(name)
    output = solver().solve(problem, SolveOptions())
    for replicas, micro_batch, bound in output.split_bounds:
        assert bound <= least_of_split(problem, replicas, micro_batch)
    verdict = judge(
        problem, output, capabilities=solver.capabilities, challenge=Deadline(None)
    )
    assert verdict.outcome == "solved", verdict.detail
