"""Every solver on every stored instance; tolerance 0 quanta."""

from __future__ import annotations

import pytest

from nest.cost.score import score
from nest.ir import problem_hash
from nest.solvers.base import SolveOptions, SolverOutput, Status
from nest.solvers.registry import get_solver
from tests import optima
from tests.regression.store import load, solve, stored

EXACT = ("brute", "dp", "cpsat", "milp")


def test_instances_are_there():
    """At least the first 15; files come in pairs."""
    assert len(stored()) >= 15


@pytest.mark.parametrize("name", stored())
def test_a_stored_problem_is_the_one_that_was_solved(name):
    """Its hash has not changed: neither the file nor what hashing means."""
    known = load(name)
    assert problem_hash(known.problem) == known.problem_hash


def pairs() -> list[tuple[str, str]]:
    """Return every instance with every solver that searches all its plans."""
    return [
        (name, solver)
        for name in stored()
        for solver in EXACT
        if not get_solver(solver).capabilities.unsearched(load(name).problem)
    ]


@pytest.mark.parametrize(("name", "solver"), pairs())
def test_the_known_optimum_is_proven_again(name, solver):
    known = load(name)
    capabilities = get_solver(solver).capabilities
    assert capabilities.exact
    output = solve(solver, known.problem)
    assert output.status == known.status
    assert output.claimed_quanta == known.step_quanta
    if known.step_quanta is not None:
        bound = output.lower_bound_quanta
        assert bound is not None
        assert capabilities.proves(known.step_quanta) <= bound
        assert bound <= known.step_quanta
        assert output.plan is not None
        verdict = score(known.problem, output.plan)
        assert verdict.feasible
        assert verdict.step_quanta == known.step_quanta


@pytest.mark.parametrize(
    "name", [name for name in stored() if name.startswith("spread")]
)
def test_highs_proves_it_too(name):
    """Where plans take up to 10^6 times as long as the best one."""
    pytest.importorskip("highspy")
    known = load(name)
    options = SolveOptions(extra={"engine": "highs"})
    output = get_solver("milp")().solve(known.problem, options)
    assert output.status == known.status
    assert output.claimed_quanta == known.step_quanta


def choosing() -> list[str]:
    """Return the instances whose stages choose their own strategies."""
    return [name for name in stored() if load(name).problem.preset == "standard"]


@pytest.mark.parametrize("setting", optima.SETTINGS)
@pytest.mark.parametrize("name", choosing())
def test_dp_needs_no_plan_to_start_from(name, setting):
    known = load(name)
    output = optima.search(known.problem, setting)
    assert output.status == known.status
    assert output.claimed_quanta == known.step_quanta
    assert output.lower_bound_quanta == known.step_quanta


@pytest.mark.parametrize("setting", ["as-it-is", "proof-alone"])
@pytest.mark.parametrize("name", choosing())
def test_what_dp_proves_in_time_is_true(name, setting):
    """Wherever the time is up."""
    known = load(name)
    truth = SolverOutput(status=Status(known.status), claimed_quanta=known.step_quanta)
    ticks = 0
    while not optima.check_limited(known.problem, setting, ticks, truth):
        ticks += 1 + ticks // 4
