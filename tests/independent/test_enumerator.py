"""The best plan of the independent list is the solvers' optimum."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from nest.ir import Problem, read_problem
from nest.solvers.base import SolveOptions, Status
from nest.solvers.judge import judge
from nest.solvers.registry import get_solver
from nest.solvers.result import Outcome
from tests.independent.enumerator import optimum
from tests.independent.generate import draw_tiny
from tests.properties.profiles import PROFILE

SOLVERS = ("brute",)
PRESETS = ("standard", "standard", "nest-artifact", "standard", "piper")
COUNT = {"quick": 10, "dev": 10, "full": 2000}.get(PROFILE, 100)
MOST_PLANS = 300
PER_TEST = 10

#: Problems on which solvers were wrong once, with optima worked out by hand:
#: every layer takes no time, links and HBM move one byte per s.
STORED = {
    # On 2 devices, dp = 2 runs an all-reduce of 1 byte, 2 · 1/2 s, backward;
    # dp = 1 has 1 byte of experts, whose update moves 1 + 2 · 1 + 2 · 6 bytes.
    "pass_or_update": 1_000_000_000,
    # cp = 2 gathers 1 byte in the backward pass, 1/2 s; dp = 2 reduces the
    # gradient of 1 byte of experts at the end of the step, 2 · 1/2 s.
    "pass_or_sync": 500_000_000,
    # The same on 4 devices, where cp = 2 also has dp = 2; dp = 2 alone may
    # have two replicas, which makes its sync longer: 2 · 3/4 s.
    "pass_or_sync_recompute": 500_000_000,
    # The one plan changes the strategy of a tensor of 0 bytes, which costs no
    # message, not even its launch.
    "change_of_nothing": 0,
    # Both layers fill a device, so there are two stages, M = 2 and a tensor
    # of 4 bytes: 4 s + 4 s, and (M - 1) (4 s + 4 s).
    "gpipe_by_layer": 16_000_000_000,
}


def check(problem: Problem, solver: str, best: int | None) -> None:
    """Check that a solver proves an optimum, or that there is none."""
    backend = get_solver(solver)()
    verdict = judge(
        problem,
        backend.solve(problem, SolveOptions()),
        capabilities=backend.capabilities,
    )
    said = f"{solver}: {verdict.status} {verdict.detail}"
    assert verdict.outcome is Outcome.SOLVED, said
    if best is None:
        assert verdict.status is Status.INFEASIBLE, said
    else:
        assert verdict.status is Status.OPTIMAL, said
        assert verdict.score is not None
        assert verdict.score.step_quanta == best, said


def without_extensions(problem: Problem) -> Problem:
    job = replace(
        problem.job, virtual_stages=(1,), overlap={}, distributed_optimizer=False
    )
    return replace(problem, job=job)


@pytest.mark.parametrize("first", range(0, COUNT, PER_TEST))
def test_optima_agree(first: int) -> None:
    for seed in range(first, first + PER_TEST):
        problem = draw_tiny(Random(seed), PRESETS[seed % 5], MOST_PLANS)
        check(problem, "brute", optimum(problem)[0])
        plain = without_extensions(problem)
        best, _ = optimum(plain)
        for solver in SOLVERS:
            check(plain, solver, best)


@pytest.mark.parametrize("name", STORED)
def test_stored_optima(name: str) -> None:
    problem = read_problem(Path(__file__).parent / "data" / f"{name}.json")
    assert optimum(problem)[0] == STORED[name]
    for solver in SOLVERS:
        check(problem, solver, STORED[name])


@pytest.mark.parametrize("first", range(0, COUNT * 4 // 5, PER_TEST))
def test_optima_agree_where_plans_split_sequences(first: int) -> None:
    for seed in range(first, first + PER_TEST):
        problem = draw_tiny(*(Random(seed), "standard", MOST_PLANS), sequences=True)
        check(problem, "brute", optimum(problem)[0])
