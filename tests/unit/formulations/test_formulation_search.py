"""What the search over sub-problems may conclude from its engine's answers.

The engine is scripted: it settles a sub-problem, gives up, or has no time.
"""

from __future__ import annotations

import pulp
import pytest
from ortools.sat.python import cp_model

from formulations.common import Instance, SubProblem, Task
from formulations.cpsat.solver import CpSatSolver
from formulations.milp import engines
from formulations.milp import solver as milp_solver
from formulations.search import Engine, EngineResult, Formulation
from nest.cost.model import CostModel
from nest.cost.score import score
from nest.errors import SolverError
from nest.ir import Strategy
from nest.solvers.base import (
    Capabilities,
    Deadline,
    Limit,
    OutOfTimeError,
    SolveOptions,
    SolverOutput,
    Status,
)
from tests.builders import make_cost, make_levels, make_plan, make_problem

#: Two layers of 10 + 20 ns, three samples, two devices, a free network:
#: 180 on one device, two stages take 60 + 2 · 30 = 120.
PROBLEM = make_problem(
    {"a": make_cost(10, 20), "b": make_cost(10, 20)},
    edge=1,
    devices=2,
    topology=make_levels((2, 0.0, 1e15)),
    global_batch=3,
)
ONE = make_plan(("a b", Strategy()))
BACK = make_plan(("b", Strategy()), ("a", Strategy()))
TWO = make_plan(("a", Strategy()), ("b", Strategy()))


#: The layer form, with a limit: what engines do not prove is open then.
LAYERS = SolveOptions(time_limit_s=600, extra={"form": "layers"})


class Scripted(Formulation):
    """Answers sub-problems in the order in which they are asked about."""

    name = "scripted"
    capabilities = Capabilities(exact=True, method="answers as written down")

    def __init__(self, *answers: EngineResult | None) -> None:
        self.answers = list(answers)
        self.asked: list[SubProblem] = []

    def engine(self, options: SolveOptions) -> Engine:
        return self.reply

    def reply(self, task: Task) -> EngineResult:
        self.asked.append(task.sub_problem)
        answer = self.answers.pop(0)
        if answer is None:
            raise OutOfTimeError
        return answer


def run(*answers: EngineResult | None) -> tuple[SolverOutput, Scripted]:
    engine = Scripted(*answers)
    return engine.solve(PROBLEM, SolveOptions()), engine


def bounds() -> list[int]:
    """Return the bounds of the sub-problems, best first."""
    instance = Instance(PROBLEM, CostModel(PROBLEM), Deadline(None))
    return [p.bound for p in instance.sub_problems()]


def test_there_are_two_sub_problems_with_bounds_of_their_own():
    assert bounds() == [120, 180]


GAVE_UP = EngineResult(finished=False)
NONE = EngineResult(finished=True)


@pytest.mark.parametrize(
    ("answers", "bound"),
    [
        # The least of what is open, and what the engine says if it is more.
        ((GAVE_UP, GAVE_UP), 120),
        ((NONE, GAVE_UP), 180),
        ((GAVE_UP, NONE), 120),
        ((EngineResult(finished=False, bound=150), GAVE_UP), 150),
        ((EngineResult(finished=False, bound=200), GAVE_UP), 180),
        ((EngineResult(finished=False, bound=90), NONE), 120),
        # Nobody has looked at the rest.
        ((None,), 120),
        ((NONE, None), 180),
        ((GAVE_UP, None), 120),
    ],
)
def test_what_is_open_has_the_least_bound(answers, bound):
    output, _ = run(*answers)
    assert output.status is Status.NO_SOLUTION
    assert output.limit is Limit.TIME
    assert output.lower_bound_quanta == bound


def test_nothing_open_and_no_plan_is_infeasible():
    output, engine = run(NONE, NONE)
    assert output.status is Status.INFEASIBLE
    assert output.limit is None
    assert len(engine.asked) == 2


def test_a_plan_settles_what_cannot_be_better():
    """The other sub-problem takes 180 at least, and is not asked about."""
    output, engine = run(
        EngineResult(finished=True, plan=TWO, claimed_quanta=120, bound=120)
    )
    assert output.status is Status.OPTIMAL
    assert output.lower_bound_quanta == 120
    assert len(engine.asked) == 1


#: Two stages of 30 and 39 ns take 69 + 2 · 39 = 147, of 60 and 9 ns 189.
UNEVEN = make_problem(
    {"a": make_cost(10, 20), "b": make_cost(10, 20), "c": make_cost(0, 9)},
    edge=1,
    devices=2,
    topology=make_levels((2, 0.0, 1e15)),
    global_batch=3,
    pipeline_parallel=(2,),
)


def test_a_plan_that_is_not_proven_best_leaves_its_sub_problem_open():
    """Two stages that are not balanced: an engine that stopped at them."""
    plan = make_plan(("a b", Strategy()), ("c", Strategy()))
    engine = Scripted(
        EngineResult(finished=False, plan=plan, claimed_quanta=189, bound=140)
    )
    output = engine.solve(UNEVEN, SolveOptions())
    assert output.status is Status.FEASIBLE
    assert output.limit is Limit.TIME
    assert output.claimed_quanta == 189
    assert output.lower_bound_quanta == 140


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (
            EngineResult(finished=True, plan=TWO, claimed_quanta=119),
            "expected the model's step time to be that of its plan, 120 "
            "quanta, got 119",
        ),
        (
            EngineResult(finished=True, plan=TWO, claimed_quanta=121),
            "120 quanta, got 121",
        ),
        (EngineResult(finished=True, plan=TWO), "120 quanta, got None"),
        (
            EngineResult(finished=True, plan=BACK),
            "expected layer 'b' no earlier than 'a'",
        ),
    ],
)
def test_an_engine_that_misprices_its_plan_is_an_error(answer, text):
    with pytest.raises(SolverError, match=text):
        run(answer)


def test_a_plan_that_does_not_fit_is_an_error():
    """Each layer has 16 bytes of weights: both are too much for a device."""
    cost = make_cost(10, 20, weight_bytes=2)
    problem = make_problem(
        {"a": cost, "b": cost},
        edge=1,
        devices=2,
        topology=make_levels((2, 0.0, 1e15)),
        memory_bytes=31,
        global_batch=3,
    )
    assert score(problem, TWO).feasible
    assert not score(problem, ONE).feasible
    engine = Scripted(EngineResult(finished=True, plan=ONE, claimed_quanta=180))
    with pytest.raises(SolverError, match="at most 31 bytes per device"):
        engine.solve(problem, SolveOptions())


@pytest.mark.usefixtures("unstarted")
@pytest.mark.parametrize(
    ("status", "bound", "expected"),
    [
        # It says that it found nothing, or did not prove what it found.
        (cp_model.UNKNOWN, 146.5, (Status.NO_SOLUTION, None, 146)),
        (cp_model.FEASIBLE, 146.5, (Status.FEASIBLE, 147, 146)),
        (cp_model.FEASIBLE, 147.0, (Status.OPTIMAL, 147, 147)),
        (cp_model.OPTIMAL, 146.5, (Status.OPTIMAL, 147, 147)),
    ],
)
def test_cpsat_is_believed_no_more_than_it_says(monkeypatch, status, bound, expected):
    solve = cp_model.CpSolver.solve

    def run(self, model):
        solve(self, model)
        return status

    monkeypatch.setattr(cp_model.CpSolver, "solve", run)
    monkeypatch.setattr(cp_model.CpSolver, "best_objective_bound", bound)
    output = CpSatSolver().solve(UNEVEN, LAYERS)
    assert (output.status, output.claimed_quanta, output.lower_bound_quanta) == expected


def test_milp_is_not_believed_to_the_last_digit(monkeypatch):
    """A bound that floats put at the optimum is no proof of it."""

    def run(problem, how):
        found = engines.run(problem, how)
        return engines.Outcome(
            engines.Verdict.STOPPED, found.objective, found.objective
        )

    monkeypatch.setattr(milp_solver, "run", run)
    output = milp_solver.MilpSolver().solve(UNEVEN, LAYERS)
    found = (output.status, output.claimed_quanta, output.lower_bound_quanta)
    assert found == (Status.FEASIBLE, 147, 146)


def test_highs_is_asked_for_the_optimum(monkeypatch):
    asked = {}

    class Recorded(pulp.HiGHS):
        def __init__(self, **settings):
            asked.update(settings)
            super().__init__(**settings)

    monkeypatch.setattr(pulp, "HiGHS", Recorded)
    options = SolveOptions(extra={"engine": "highs"})
    assert milp_solver.MilpSolver().solve(UNEVEN, options).claimed_quanta == 147
    assert (asked["gapRel"], asked["gapAbs"]) == (0, 0)
    assert asked["mip_feasibility_tolerance"] == 1e-9
    assert asked["primal_feasibility_tolerance"] == 1e-9


def test_cbc_is_asked_for_the_optimum(monkeypatch):
    """Also for one that is better by less than its own default of 1e-5."""
    asked = []

    def run(words, *others):
        asked.append(" ".join(words))
        return run_program(words, *others)

    run_program = engines._run_program
    monkeypatch.setattr(engines, "_run_program", run)
    assert milp_solver.MilpSolver().solve(UNEVEN, SolveOptions()).claimed_quanta == 147
    for option in (
        "-ratio 0",
        "-allow 0",
        "-increment 1e-09",
        "-integerTolerance 1e-09",
        "-primalTolerance 1e-09",
        "-preprocess off",
    ):
        assert all(option in words for words in asked)
