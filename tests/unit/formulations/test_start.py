"""With a time limit integer models start from a plan of even stages."""

from __future__ import annotations

import pytest

from formulations import start
from formulations.cpsat.solver import CpSatSolver
from formulations.milp.solver import MilpSolver
from formulations.search import NodeSearch
from nest.cost.score import score
from nest.ir import Problem
from nest.solvers.base import (
    Deadline,
    Limit,
    OutOfTimeError,
    Progress,
    SolveOptions,
    Status,
)
from tests.builders import make_cost, make_problem

LIMITED = SolveOptions(time_limit_s=600)


def chain(replicas: tuple[int, ...] = (1,)) -> Problem:
    """Return layers ``a``, ``b`` and ``c`` of 10 + 20 quanta, on two devices.

    A step has four microbatches. One stage takes 4 * 90 = 360 quanta, on one of the
    devices. Two take 90 for the first microbatch and 60 for each later one: 270.
    All devices together need at least 4 * 90 / 2 = 180, as two replicas do.
    """
    cost = make_cost(10, 20)
    return make_problem(
        dict.fromkeys("abc", cost),
        edges=[("a", "b", 0), ("b", "c", 0)],
        devices=2,
        global_batch=4,
        replicas=replicas,
    )


def test_the_start_is_the_best_of_even_plans() -> None:
    problem = chain(replicas=(1, 2))
    plan = start.even_start(problem, Deadline(600), CpSatSolver.capabilities)
    assert plan is not None
    assert (plan.replicas, len(plan.stages)) == (2, 1)
    assert score(problem, plan).step_quanta == 180


@pytest.mark.parametrize("solver", [CpSatSolver, MilpSolver])
def test_the_start_is_the_answer_where_the_engine_has_none(
    solver: type[CpSatSolver | MilpSolver], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is proven without an engine: no plan beats the work of all devices."""

    def stopped(*_: object) -> None:
        raise OutOfTimeError

    monkeypatch.setattr(NodeSearch, "_solve", stopped)
    seen: list[Progress] = []
    output = solver().solve(chain(), LIMITED, seen.append)
    assert (output.status, output.limit) == (Status.FEASIBLE, Limit.TIME)
    assert output.claimed_quanta == 270
    assert output.lower_bound_quanta is not None
    assert 180 <= output.lower_bound_quanta < 270
    assert output.detail.endswith("the plan is the one that the search began from")
    assert seen[0].plan == output.plan


def test_without_a_time_limit_or_with_a_plan_nothing_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(start, "even_start", None)
    options = SolveOptions()
    assert start.started(chain(), options, CpSatSolver.capabilities) is options
    assert CpSatSolver().solve(chain(), options).claimed_quanta == 270


def test_no_plan_that_fits_is_no_start() -> None:
    problem = make_problem({"a": make_cost(1, working_bytes=9)}, memory_bytes=8)
    for solver in (CpSatSolver(), MilpSolver()):
        assert solver.solve(problem, LIMITED).status is Status.INFEASIBLE
