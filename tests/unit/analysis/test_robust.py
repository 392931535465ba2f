"""The plan with the best guaranteed step time, worked out by hand."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from nest.analysis.robust import Robust, factors_of, robust_of
from nest.cost.scaled import Factors
from nest.ir import Problem, problem_hash
from nest.ir.problem import OwnRuns
from nest.present.robust import robust_texts
from nest.solvers.base import Status
from nest.solvers.result import SolveResult
from nest.uncertainty.headroom import with_headroom, within_memory
from nest.uncertainty.intervals import Deviations, Quantiles, Shares
from tests.builders import SINGLE, make_cost, make_plan, make_problem
from tests.inside import run_inside

TOGETHER = make_plan(("a b", SINGLE))

#: The network's share of the fastest plan's 225 ms: all else takes 180.
SHARE = 1 - math.log(225 / (45 + 180 / 1.1)) / math.log(1.1)

#: What that is known to within, twice a deviation of 1.
WORST = 225 * math.exp(2 * SHARE)


def numbers(**fields: float) -> Deviations:
    """Only the network is unknown, with a deviation of 1."""
    return replace(
        Deviations(
            noise=0.0,
            device=0.0,
            network=1.0,
            host=0.0,
            unseen=0.0,
            experts=0.0,
            low_precision=0.0,
            plan_noise=0.05,
            apart=1.0,
            step=Quantiles(low_90=-2, low_50=-1, high_50=1, high_90=2),
            memory=Quantiles(low_90=-0.2, low_50=-0.1, high_50=0.1, high_90=0.2),
            memory_error=0.05,
            families={},
        ),
        **fields,
    )


def chain(memory_bytes: int = 100) -> Problem:
    """Two layers of 60 ms, two micro-batches; a cut takes 15 ms each way.

    On one device a step takes 2 · 120 = 240 and 20 bytes, in two stages
    3 · 75 = 225 and 20 in the first.
    """
    cost = make_cost(20e6, 40e6, kept_bytes=10)
    return make_problem(
        {"a": cost, "b": cost},
        edges=(("a", "b", 14_999_990),),
        devices=2,
        memory_bytes=memory_bytes,
        global_batch=2,
        replicas=(1,),
        sequence_length=1,
    )


def robust(problem: Problem, **fields: float) -> Robust:
    def search(other: Problem) -> SolveResult:
        return run_inside(other, "dp")

    return robust_of(problem, search(problem), search, numbers(**fields))


def test_the_safest_plan_is_not_the_fastest() -> None:
    """240 against 225 · e^(2 · 0.208) = 340.9; the bound is 225."""
    problem = chain()
    found = robust(problem)
    assert found.best is not None
    assert found.first is not None
    assert found.first.score.step_quanta == 225_000_000
    assert found.first.guaranteed_ns == pytest.approx(WORST * 1e6, rel=1e-5)
    assert found.best.guaranteed_ns == pytest.approx(240e6, rel=1e-6)
    assert found.cost(found.first) == pytest.approx(15 / 225)
    assert found.gain(found.first) == pytest.approx(1 - 240 / WORST, rel=1e-5)
    assert found.bound_ns == pytest.approx(225e6)
    assert found.gap == pytest.approx(15 / 240)
    # The direction of the fastest plan is that of the network alone.
    assert (found.candidates, found.searches) == (2, 2)
    answer = found.answer
    assert answer.plan == replace(TOGETHER, problem_hash=problem_hash(problem))
    assert answer.status is Status.FEASIBLE
    assert answer.step_quanta == 240_000_000
    assert answer.lower_bound_quanta == 225_000_000
    assert answer.detail == "the best guaranteed step time"


def test_where_the_fastest_plan_is_hurt_most_is_searched_first() -> None:
    """2 · 0.25 · a / s of devices, 2 · n / s of the network."""
    problem = chain()
    searched: list[Problem] = []

    def search(other: Problem) -> SolveResult:
        searched.append(other)
        return run_inside(other, "dp")

    fastest = run_inside(problem, "dp")
    found = robust_of(problem, fastest, search, numbers(device=0.5))
    assert found.first is not None
    shares = found.first.intervals.shares
    s = math.hypot(0.5 * shares.device, shares.network)
    (cost,) = searched[0].graph.kinds[0].costs
    device = math.exp(2 * 0.25 * shares.device / s)
    assert cost.forward_ns == pytest.approx(20e6 * device)
    before, after = (
        other.cluster.topology.scaled(1) for other in (problem, searched[0])
    )
    assert after == before.scaled(math.exp(2 * shares.network / s))
    # Then of the plan on one device, which is devices alone, then networks.
    (cost,) = searched[1].graph.kinds[0].costs
    assert cost.forward_ns == pytest.approx(20e6 * math.e)
    assert searched[1].cluster.topology == problem.cluster.topology
    assert found.searches == 4


def test_directions_are_factors_of_times() -> None:
    found = factors_of(Shares(math.log(2), math.log(3), math.log(5)))
    assert found == pytest.approx(Factors(2, 3, 5, waiting=5))


def test_the_noise_is_in_every_figure_and_in_the_bound() -> None:
    """Twice 0.1: all times e^0.2."""
    found = robust(chain(), noise=0.1)
    assert found.best is not None
    assert found.best.guaranteed_ns == pytest.approx(240e6 * math.exp(0.2))
    assert found.bound_ns == pytest.approx(225e6 * math.exp(0.2))


def test_unknown_software_has_more_noise_in_every_figure() -> None:
    """Noise of 0.06 and 0.08 are 0.1, around e^0.3."""
    found = robust(chain(), noise=0.06, software=0.08, slower=0.3)
    assert found.best is not None
    assert found.best.guaranteed_ns == pytest.approx(240e6 * math.exp(0.5))
    assert found.bound_ns == pytest.approx(225e6 * math.exp(0.5))


def test_the_fastest_plan_may_be_the_safest() -> None:
    """A deviation of 0.1 of the network: e^(0.2 · 0.208) is 1.0425."""
    found = robust(chain(), network=0.1)
    assert found.answer is found.fastest
    assert found.best is found.first
    assert (found.cost(found.first), found.gain(found.first)) == (0, 0)
    assert (found.candidates, found.searches) == (1, 2)


def test_a_worse_plan_that_a_search_finds_is_not_taken() -> None:
    """Where everything is unknown alike a plan's own share is what counts."""
    problem = chain()
    fastest = run_inside(problem, "dp")
    other = robust(problem).answer
    found = robust_of(problem, fastest, lambda _: other, numbers(network=0.1))
    assert found.candidates == 2
    assert found.answer is fastest


@pytest.mark.parametrize(
    ("memory_bytes", "kept"), [(25, True), (24, False), (20, False)]
)
def test_the_upper_end_of_what_a_plan_needs_fits(memory_bytes: int, kept: bool) -> None:
    """20 · e^0.2 is 24.4."""
    found = robust(chain(memory_bytes))
    assert found.best is not None
    assert found.best.memory_kept is kept
    roomy = within_memory(chain(memory_bytes), numbers())
    assert roomy is not None
    assert (roomy.cluster.memory_bytes() >= 20) is kept


def test_a_plan_that_keeps_its_memory_comes_first() -> None:
    """Of 24 bytes 19.6 are guaranteed: the first stage keeps 20, or 4.

    It then computes its 20 ms again.
    """
    cost = make_cost(20e6, 40e6, kept_bytes=10)
    lean = replace(cost.activations[0], recompute="full", kept_bytes=2)
    cost = replace(cost, activations=(*cost.activations, lean))
    problem = make_problem(
        {"a": cost, "b": cost},
        edges=(("a", "b", 14_999_990),),
        devices=2,
        memory_bytes=24,
        global_batch=2,
        replicas=(1,),
        recompute=("none", "full"),
        sequence_length=1,
    )
    found = robust(problem, network=0.1)
    assert found.best is not None
    assert found.first is not None
    assert (found.first.memory_kept, found.best.memory_kept) == (False, True)
    assert found.best.guaranteed_ns > found.first.guaranteed_ns
    assert found.kept is found.best
    _, fastest, kept = robust_texts(problem, found)
    assert fastest.endswith("; fits 19 times in 20")
    assert kept.startswith("the fastest plan that keeps its memory: ")
    document = found.to_json()["fastest_that_keeps_memory"]
    assert document["guaranteed_step_time_ns"] == found.best.guaranteed_ns
    assert (document["cost"], document["gain"]) == (0, 0)


def test_a_stated_headroom_is_what_is_kept() -> None:
    problem = with_headroom(chain(24), "2%")
    found = robust(problem, network=0.1)
    assert found.best is not None
    assert found.best.memory_kept is None


def test_without_a_plan_there_is_no_guarantee() -> None:
    problem = chain(memory_bytes=5)
    found = robust(problem)
    assert found.answer.status is Status.INFEASIBLE
    assert (found.best, found.gap) == (None, None)
    assert (found.cost(found.first), found.gain(None)) == (None, None)
    document = found.to_json()
    assert document["guaranteed_step_time_ns"] is None
    assert robust_texts(problem, found) == ["nothing: there is no plan"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {},
            [
                "240 ms with 95 %; 2 plans of 2 searches compared; no plan's "
                "is below 225 ms, 6.2 % less",
                "the fastest plan: 340.9 ms; fits 99 times in 100",
                "this one costs 6.67 % in the step time and gains 29.60 % in "
                "the guaranteed one",
            ],
        ),
        (
            {"network": 0.1},
            [
                "234.5 ms with 95 %; 1 plan of 2 searches compared; no plan's "
                "is below 225 ms, 4.1 % less",
                "the fastest plan is the safest, too",
            ],
        ),
    ],
)
def test_what_people_read(fields: dict[str, float], expected: list[str]) -> None:
    problem = chain()
    assert robust_texts(problem, robust(problem, **fields)) == expected


def test_what_a_document_says() -> None:
    document = robust(chain()).to_json()
    assert document["probability"] == 0.95
    assert document["guaranteed_step_time_ns"] == pytest.approx(240e6)
    assert document["memory_kept"] is True
    assert document["lower_bound_ns"] == pytest.approx(225e6)
    assert document["gap"] == pytest.approx(15 / 240)
    assert (document["candidates"], document["searches"]) == (2, 2)
    fastest = document["fastest"]
    assert fastest["step_time_ns"] == 225_000_000
    assert fastest["guaranteed_step_time_ns"] == pytest.approx(WORST * 1e6, rel=1e-5)
    assert fastest["memory_kept"] is True
    assert document["cost"] == pytest.approx(15 / 225)


def test_own_runs_say_what_is_unknown() -> None:
    """Only the sum of devices and the network is known: they differ by 1.

    So two stages are off by their shares' difference, one by all of it.
    """
    own = OwnRuns(
        runs=5,
        family="H100",
        covariance=((1.0, -1.0, 0.0), (-1.0, 1.0, 0.0), (0.0, 0.0, 0.0)),
        noise=0.0,
    )
    problem = replace(chain(), own_runs=own)
    found = robust(problem, noise=1.0)
    assert found.best is found.first
    assert found.best is not None
    off = 2 * (1 - 2 * SHARE)
    assert found.best.guaranteed_ns == pytest.approx(225e6 * math.exp(off), rel=1e-4)
    assert found.bound_ns == pytest.approx(225e6)
