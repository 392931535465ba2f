"""Every solver on every stored instance; tolerance 0 quanta."""

from __future__ import annotations

import pytest

from nest.cost.score import score
from nest.ir import problem_hash
from nest.solvers.registry import get_solver
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
