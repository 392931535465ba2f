"""Plain enumeration: what it counts, when it refuses, how it stops."""

from __future__ import annotations

import pytest

from formulations import brute
from formulations.brute import BruteSolver, PlanSpace
from nest.cost.model import CostModel
from nest.cost.score import score
from nest.errors import InvalidOptionError, InvalidPlanError, UnsupportedProblemError
from nest.ir import Plan, Stage, Strategy
from nest.solvers.base import Deadline, Limit, SolveOptions, Status
from nest.solvers.run import run_solver
from tests.builders import SINGLE, make_cost, make_levels, make_plan
from tests.builders import make_problem as problem_of

FREE = make_levels((4, 0.0, 1e18))
PAIR = Strategy(tp=2)


def layers(names, *costs):
    return dict.fromkeys(names, costs or (make_cost(10, 20),))


def make_problem(costs, **fields):
    fields = {"topology": FREE, "replicas": (1,), "global_batch": 4, **fields}
    return problem_of(costs, **fields)


def solve(problem, **options):
    return BruteSolver().solve(problem, SolveOptions(**options))


def plans(problem):
    return list(PlanSpace(problem, CostModel(problem), Deadline(None)).plans())


def num_plans(problem):
    return PlanSpace(problem, CostModel(problem), Deadline(None)).count(10**9)


CHAIN = (("a", "b", 1), ("b", "c", 1))
FORK = (("a", "b", 1), ("a", "c", 1))
COUNTS = {
    # cuts of a chain of 3: 1 (S=1) + 2 (S=2) + 1 (S=3), one strategy
    "chain": (make_problem(layers("abc"), edges=CHAIN, devices=3), 4),
    # as above, but three stages do not fit on two devices
    "devices": (make_problem(layers("abc"), edges=CHAIN, devices=2), 3),
    # ordered partitions of a set of 3: 1 + 6 + 6
    "no edges": (make_problem(layers("abc"), devices=3), 13),
    # abc | a,bc ab,c ac,b | a,b,c a,c,b: stages need not be connected
    "fork": (make_problem(layers("abc"), edges=FORK, devices=3), 6),
    # widths 1 and 2 on 2 devices: S=1 both, S=2 only (1,1), 1 cut
    "widths": (
        make_problem(
            layers("ab", make_cost(1), make_cost(1, tp=2)),
            edges=(("a", "b", 1),),
            devices=2,
        ),
        3,
    ),
    # a runs on one device, b on two: ab share no strategy, a|b uses three
    "availability": (
        make_problem({"a": make_cost(1), "b": make_cost(1, tp=2)}, edge=1, devices=3),
        1,
    ),
    # R=1: 1 + 1 cuts; R=2: one device each, S=1 only; R=3 does not divide 4
    "replicas": (
        make_problem(layers("ab"), edges=(("a", "b", 1),), devices=3, replicas=None),
        3,
    ),
    # one strategy for all stages: S=1 with tp 1 or 2, S=2 with tp 1
    "uniform": (
        make_problem(
            layers("ab", make_cost(1), make_cost(1, tp=2)),
            edges=(("a", "b", 1),),
            devices=3,
            preset="nest-artifact",
        ),
        3,
    ),
    # the same under the standard preset, and tp 1 | tp 2, tp 2 | tp 1
    "not uniform": (
        make_problem(
            layers("ab", make_cost(1), make_cost(1, tp=2)),
            edges=(("a", "b", 1),),
            devices=3,
        ),
        5,
    ),
    # no strategy at all: the only cost is for more devices than there are
    "none": (make_problem({"a": make_cost(1, tp=8)}), 0),
}


@pytest.mark.parametrize("case", COUNTS)
def test_counts_and_lists_every_plan_once(case):
    problem, expected = COUNTS[case]
    found = plans(problem)
    assert num_plans(problem) == len(found) == expected
    assert len(set(found)) == expected
    for plan in found:
        score(problem, plan)


def test_finds_the_optimum():
    """Two stages: 30 + 30 + 3*30 + 2*(10+1) in messages beat 60 + 3*60.

    The bottleneck is a stage with its one receive, 30 + 11: T = 82 + 3*41.
    """
    problem = problem_of(
        layers("ab"), edges=(("a", "b", 1),), devices=2, global_batch=4, replicas=(1,)
    )
    output = solve(problem)
    assert output.status is Status.OPTIMAL
    assert output.claimed_quanta == output.lower_bound_quanta == 82 + 3 * 41
    assert len(output.plan.stages) == 2
    assert output.extra == {"num_plans": 2, "num_scored": 2}


def test_infeasible_without_a_plan_that_fits():
    problem = make_problem({"a": make_cost(1, working_bytes=9)}, memory_bytes=8)
    output = solve(problem)
    assert output.status is Status.INFEASIBLE
    assert output.plan is None
    assert output.lower_bound_quanta is None
    assert output.limit is None


def test_infeasible_without_any_plan():
    assert solve(COUNTS["none"][0]).status is Status.INFEASIBLE


def test_refuses_more_plans_than_the_limit():
    problem, _ = COUNTS["no edges"]
    assert solve(problem, extra={"max_plans": "13"}).status is Status.OPTIMAL
    with pytest.raises(
        UnsupportedProblemError,
        match=r"at most 12 plans, got 13; raise the option max_plans, or use",
    ):
        solve(problem, extra={"max_plans": "12"})


def test_gives_up_counting():
    """An antichain of 18 layers has 2**18 closed sets."""
    problem = make_problem(layers("abcdefghijklmnopqr"))
    with pytest.raises(
        UnsupportedProblemError, match=r"counting was given up.*use solver dp"
    ):
        solve(problem)


@pytest.mark.parametrize("text", ["0", "-3", "many", "1.5"])
def test_max_plans_is_a_positive_integer(text):
    with pytest.raises(
        InvalidOptionError, match=f"max_plans to be an integer >= 1.*{text}"
    ):
        solve(COUNTS["chain"][0], extra={"max_plans": text})


def test_unknown_option():
    options = SolveOptions(extra={"fast": "1"})
    with pytest.raises(InvalidOptionError, match=r"\(max_plans\), got 'fast'"):
        run_solver(COUNTS["chain"][0], "brute", options)


def test_no_time_at_all():
    output = solve(COUNTS["chain"][0], time_limit_s=0.0)
    assert output.status is Status.NO_SOLUTION
    assert output.limit is Limit.TIME
    assert output.lower_bound_quanta is None


def test_time_out_keeps_the_best_plan(monkeypatch):
    """The clock passes the limit after the second plan is scored."""
    calls = []

    def counted(*args):
        calls.append(args)
        return score(*args)

    monkeypatch.setattr(brute, "score", counted)
    monkeypatch.setattr(Deadline, "passed", property(lambda self: len(calls) >= 2))
    problem, _ = COUNTS["no edges"]
    output = solve(problem, time_limit_s=100.0)
    assert output.status is Status.FEASIBLE
    assert output.limit is Limit.TIME
    assert output.lower_bound_quanta is None
    assert output.detail == "scored 2 of 13 plans"
    assert score(problem, output.plan).step_quanta == output.claimed_quanta


def test_reports_each_improvement():
    problem, _ = COUNTS["no edges"]
    seen = []
    output = BruteSolver().solve(problem, SolveOptions(), seen.append)
    claims = [progress.claimed_quanta for progress in seen]
    assert claims == sorted(set(claims), reverse=True)
    assert claims[-1] == output.claimed_quanta


def test_warm_start_survives_a_time_out():
    problem, _ = COUNTS["chain"]
    start = make_plan(("a b c", SINGLE))
    output = solve(problem, warm_start=start, time_limit_s=0.0)
    assert output.status is Status.FEASIBLE
    assert output.plan == start
    assert output.claimed_quanta == 90 * 4


@pytest.mark.parametrize(
    ("plan", "text"),
    [
        (make_plan(("a b", SINGLE)), "got none for 'c'"),
        (make_plan(("a b c", PAIR)), "expected a cost for tp=2"),
        (
            Plan(
                replicas=1,
                micro_batch=1,
                stages=(
                    Stage(
                        layers=("a", "b", "c"),
                        devices=2,
                        strategies=(PAIR, PAIR, Strategy(cp=2)),
                    ),
                ),
            ),
            "expected one strategy for all layers of a stage",
        ),
    ],
)
def test_warm_start_must_fit(plan, text):
    with pytest.raises(InvalidPlanError, match=text):
        solve(COUNTS["chain"][0], warm_start=plan)
