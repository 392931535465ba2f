"""The plan with the best guaranteed step time, worked out by hand."""

from __future__ import annotations

from fractions import Fraction

import pytest
from msgspec.structs import replace

from nest.cost.scaled import Factors, scaled
from nest.intervals import Pessimistic
from nest.ir import Problem, problem_hash
from nest.report.robust import robust_rows
from nest.robust import Robust, robust_of
from nest.solvers.base import Status
from tests.builders import SINGLE, make_cost, make_plan, make_problem
from tests.inside import run_inside

TOGETHER = make_plan(("a b", SINGLE))


def chain(memory_bytes: int = 100) -> Problem:
    """Two layers of 60 ns, two micro-batches; a cut takes 15 ns each way.

    On one device a step takes 2 · 120 = 240, in two stages 3 · 75 = 225.
    Where the network takes twice as long: 240, and 3 · 90 = 270.
    """
    cost = make_cost(20, 40, kept_bytes=10)
    return make_problem(
        {"a": cost, "b": cost},
        edges=(("a", "b", 5),),
        devices=2,
        memory_bytes=memory_bytes,
        global_batch=2,
        replicas=(1,),
        sequence_length=1,
    )


def robust(problem: Problem, **factors: float) -> Robust:
    found = Factors(**factors)
    worse = Pessimistic(scaled(problem, found), found, 1.5)
    return robust_of(
        problem,
        worse,
        run_inside(problem, "dp"),
        run_inside(worse.problem, "dp"),
    )


def test_the_safest_plan_is_not_the_fastest() -> None:
    """15 of 225 more, 30 of 270 less; half as much again for the noise."""
    problem = chain()
    found = robust(problem, network=2.0)
    assert found.fastest.step_quanta == 225
    assert (found.guaranteed_quanta, found.fastest_quanta) == (240, 270)
    assert (found.cost, found.gain) == (Fraction(15, 225), Fraction(30, 270))
    assert found.guaranteed_ns(found.guaranteed_quanta) == 360
    assert found.proven
    answer = found.answer
    assert answer.plan == replace(TOGETHER, problem_hash=problem_hash(problem))
    assert answer.status is Status.FEASIBLE
    assert (answer.step_quanta, answer.lower_bound_quanta) == (240, 225)
    assert answer.detail == "the best guaranteed step time"


def test_the_fastest_plan_may_be_the_safest() -> None:
    found = robust(chain(), device=2.0)
    assert found.answer is found.fastest
    assert (found.guaranteed_quanta, found.fastest_quanta) == (405, 405)
    assert (found.cost, found.gain) == (0, 0)
    assert found.proven


def test_a_worse_plan_of_the_pessimistic_search_is_not_taken() -> None:
    """A search that was cut short may know less than the first one."""
    problem, found = chain(), Factors(device=2.0)
    worse = Pessimistic(scaled(problem, found), found, 1.0)
    fastest = run_inside(problem, "dp")
    # What it says of the first problem is not the best of the second.
    other = robust(problem, network=2.0).safest
    kept = robust_of(problem, worse, fastest, other)
    assert kept.answer is fastest
    assert kept.guaranteed_quanta == 405
    assert not kept.proven


def test_without_a_plan_there_is_no_guarantee() -> None:
    problem = chain(memory_bytes=5)
    found = robust(problem, network=2.0)
    assert found.answer.status is Status.INFEASIBLE
    assert (found.guaranteed_quanta, found.cost, found.gain) == (None,) * 3
    document = found.to_json()
    assert document["guaranteed_step_time_ns"] is None
    assert robust_rows(problem, found) == [
        ("guaranteed", "nothing: there is no plan")
    ]


@pytest.mark.parametrize(
    ("factors", "expected"),
    [
        (
            {"network": 2.0},
            [
                ("guaranteed",
                 "360.000 ns with 95 %, no plan's is shorter"),
                ("",
                 "the fastest plan: 405.000 ns; this one costs 6.67 % in the "
                 "step time and gains 11.11 % in the guaranteed one"),
            ],
        ),
        (
            {"device": 2.0},
            [
                ("guaranteed",
                 "607.500 ns with 95 %, no plan's is shorter"),
                ("", "the fastest plan is the safest, too"),
            ],
        ),
    ],
)  # fmt: skip
def test_what_people_read(
    factors: dict[str, float], expected: list[tuple[str, str]]
) -> None:
    problem = chain()
    assert robust_rows(problem, robust(problem, **factors)) == expected


def test_what_a_document_says() -> None:
    document = robust(chain(), network=2.0).to_json()
    assert document["probability"] == 0.95
    assert document["factors"]["network"] == 2
    assert document["factors"]["noise"] == 1.5
    assert document["guaranteed_step_time_ns"] == 360
    assert document["proven"] is True
    assert document["fastest"]["step_time_ns"] == 225
    assert document["fastest"]["guaranteed_step_time_ns"] == 405
    assert (document["cost"], document["gain"]) == (15 / 225, 30 / 270)
