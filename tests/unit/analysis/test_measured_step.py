"""Which term would explain a measured step, by hand."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

import nest
from nest.analysis.measured_step import (
    CAUSES,
    LEAST_FACTOR,
    MOST_FACTOR,
    Hypothesis,
    MeasuredStep,
    RunVariant,
    Term,
    _best,
    _fewer_ranks,
    explain_measured,
    solve_factor,
)
from nest.analysis.neighbors import neighbors
from nest.cost.model import CostModel
from nest.cost.score import score
from nest.hardware import machine
from nest.ir.plan import Plan, Stage, Strategy
from nest.ir.problem import Problem
from nest.models.choices import Request, choose
from nest.models.graphs import build_problem
from nest.models.kernel_times import KERNELS, kernel_times
from nest.models.zoo import architecture
from tests.builders import SINGLE, make_cost, make_plan, make_problem
from tests.unit.cost.test_score import PLAN, three_stages


@pytest.mark.parametrize(
    ("measured", "factor"), [(18, 4), (12, 1), (11, 0.5), (9, None), (1000, None)]
)
def test_the_factor_of_a_term(measured: float, factor: float | None) -> None:
    """A step of 10 and a term of 2; the term is 128 at most."""
    solved = solve_factor(lambda x: 10 + 2 * x, measured)
    assert solved == (factor and pytest.approx(factor, rel=0.02))


def test_a_term_that_overlaps_is_off_by_what_it_is_hidden_behind_too() -> None:
    """It takes 3 behind 10: a step of 15 needs five times as much."""
    solved = solve_factor(lambda x: max(10, 3 * x), 15)
    assert solved == pytest.approx(5, rel=0.02)


def measured_step(measured_ns: float, problem: Problem, plan: Plan) -> MeasuredStep:
    near = list(neighbors(problem, plan, CostModel(problem)))
    return explain_measured(problem, plan, measured_ns, neighbors=near)


def test_terms_of_three_stages() -> None:
    """Loads of 60, 30 and 20 ns with receives, 4 micro-batches: 290 ns.

    The step ends with nothing else, so computation and receives are all. A step of
    580 ns is explained where both are doubled; of computation alone it is more.
    """
    problem: Problem = three_stages()  # type: ignore[no-untyped-call]
    step = measured_step(580, problem, PLAN)
    assert (step.predicted_ns, step.measured_ns) == (290, 580)
    assert step.within_90 is None
    assert not step.split
    by_name = {x.term.name: x for x in step.hypotheses}
    assert set(by_name) <= {"compute", "receive", "network", "bubble"}
    for name, hypothesis in by_name.items():
        assert hypothesis.factor is not None, name
        run = RunVariant(problem, PLAN)
        quanta = run.step_quanta(hypothesis.term, hypothesis.factor)
        assert quanta == pytest.approx(580, rel=0.02)


def test_all_of_a_step_is_computation() -> None:
    """Four passes of 110 ns; one and a half as long is 660 of 440 ns."""
    problem = make_problem({"a": make_cost(40, 70)}, global_batch=4)
    plan = make_plan(("a", SINGLE))
    (only,) = measured_step(660, problem, plan).hypotheses
    assert only.term.name == "compute"
    assert only.exposed_ns == 440
    assert only.factor == pytest.approx(1.5, rel=0.01)
    assert only.plausible == "with a cause"
    assert only.cause == CAUSES["compute"][0].text
    (slow,) = measured_step(6 * 440, problem, plan).hypotheses
    assert (slow.plausible, slow.cause) == ("no", "")
    (none,) = measured_step(100 * 440, problem, plan).hypotheses
    assert (none.factor, none.plausible, none.cause) == (None, "no", "")


def test_memory_that_is_nearly_full_is_told() -> None:
    """200 bytes of weights need 1,600 in all, of 1,650 or of twice as much."""
    plan = make_plan(("a", SINGLE))
    for memory, near in ((1650, True), (3300, False)):
        cost = make_cost(40, 70, weight_bytes=200)
        problem = make_problem({"a": cost}, memory_bytes=memory)
        assert measured_step(220, problem, plan).near_the_end == near
        assert not measured_step(55, problem, plan).near_the_end


# Kernels


def small(calibration: dict[str, Any] | None = None, **choices: Any) -> Problem:
    """Return the training of a small model on two A100."""
    site = machine("a100")
    if calibration:
        rates = replace(site.calibration, **calibration)
        site = site.with_calibration(rates)
    model = architecture("gpt2")
    request = Request(
        global_batch=8, sequence_length=512, micro_batches=(2,), tp=(1, 2), **choices
    )
    return build_problem(model, site, 2, choose(model, site, 2, request))


def plan_of(problem: Problem) -> Plan:
    """Return all layers on both devices, which share them."""
    layers = tuple(layer.id for layer in problem.graph.layers)
    stage = Stage.of(layers, [Strategy(tp=2)] * len(layers))
    return Plan(replicas=1, micro_batch=2, stages=(stage,))


@pytest.mark.parametrize("kernels", KERNELS)
def test_kernels_that_take_twice_as_long_are_those_of_half_the_rate(
    kernels: str,
) -> None:
    problem = small()
    plan = plan_of(problem)
    times = kernel_times(problem, [plan])
    assert times is not None
    field = KERNELS[kernels]
    rate = getattr(machine("a100").calibration, field)
    halved = small({field: rate / 2})
    longer = times.scaled(problem, kernels, 2)
    assert score(longer, plan).step_quanta == pytest.approx(
        score(halved, plan).step_quanta, rel=1e-6
    )
    same = times.scaled(problem, kernels, 1)
    assert score(same, plan).step_quanta == score(problem, plan).step_quanta


def test_costs_that_are_not_those_of_the_machine_are_not_split() -> None:
    """As with a calibration of the user's, or another model."""
    other = small({"matmul_fraction": 0.123})
    assert kernel_times(other, [plan_of(other)]) is None
    plain = make_problem({"a": make_cost(40, 70)})
    assert kernel_times(plain, [make_plan(("a", SINGLE))]) is None


def test_a_problem_that_is_built_anew_is_split_whatever_its_rates() -> None:
    """That of a target, from Python; without devices of another type."""
    settings: dict[str, Any] = {
        "model": "gpt2",
        "global_batch": 8,
        "sequence_length": 512,
        "micro_batches": 2,
        "tp": (1, 2),
        "plan": "tp=2",
        "search": False,
        "measured": "200 ms",
    }
    explained = nest.explain(cluster="a100x2", target="megatron", **settings)
    assert explained.measured is not None
    assert explained.measured.measured_ns == 200e6
    assert explained.measured.split
    mixed = nest.explain(cluster="a100x2+h100x2", **settings | {"plan": "tp=2,pp=2"})
    assert mixed.measured is not None
    assert not mixed.measured.split


# Experiments


@pytest.fixture(scope="module")
def explained() -> MeasuredStep:
    problem = small()
    plan = plan_of(problem)
    predicted_ns = float(score(problem, plan).step_time_ns)
    return measured_step(1.3 * predicted_ns, problem, plan)


def test_the_best_experiment_tells_pairs_apart(explained: MeasuredStep) -> None:
    """Its times are predicted under each term that may be off."""
    experiment = explained.experiment
    assert explained.split
    assert experiment is not None
    names = {x.term.name for x in explained.hypotheses if x.plausible != "no"}
    assert experiment.steps_ns.keys() == names
    assert experiment.pairs_apart >= 1
    assert max(experiment.steps_ns.values()) > 1.03 * min(experiment.steps_ns.values())


def test_the_smallest_separation_decides() -> None:
    """Of three causes; step times within 3 % of each other are not separated."""
    problem = make_problem({"a": make_cost(40, 70)}, global_batch=4)

    class Predicted(RunVariant):
        """An experiment whose step times are its detail."""

        def step_quanta(self, term: Term, factor: float) -> float:
            return float(self.detail.split()[int(term.name)])

    def best(*steps: str) -> tuple[str, int, list[tuple[str, str]]] | None:
        runs = [Predicted(problem, make_plan(("a", SINGLE)), x, x) for x in steps]
        terms = [Term(str(index), "", 0) for index in range(3)]
        found = _best(runs, [Hypothesis(x, 1, 2.0, 1.0, "cause") for x in terms])
        return found and (found.name, found.pairs_apart, found.confused)

    assert best("100 101 900", "121 100 110", "144 120 100") == ("144 120 100", 3, [])
    one, other = ("0", "1"), ("1", "2")
    assert best("100 100.1 150", "100 100.2 104") == ("100 100.1 150", 2, [one])
    assert best("300 100 101", "150 100 101") == ("300 100 101", 2, [other])
    assert best("100 101 102") is None


def test_the_document(explained: MeasuredStep) -> None:
    document = explained.to_json()
    assert document["computation_split"] is True
    ranked = [x["plausible"] for x in document["hypotheses"]]
    assert ranked == sorted(ranked, key=["yes", "with a cause", "no"].index)
    assert document["experiment"]["name"]


def test_fewer_ranks_have_their_share_of_the_batch() -> None:
    """Two replicas of two ranks: on one device with a quarter, then on two."""
    problem = make_problem(
        {"a": make_cost(40, 70, samples=1)},
        global_batch=8,
        devices=4,
        micro_batches=(1, 2),
    )
    plan = make_plan(("a", Strategy(dp=2)), replicas=2, micro_batch=2)
    alone, two = _fewer_ranks(RunVariant(problem, plan))
    assert (alone.name, alone.detail) == ("on 1 devices", "2 samples")
    assert (alone.plan.replicas, alone.plan.micro_batch) == (1, 1)
    assert (two.name, two.plan.stages[0].devices) == ("on 2 devices", 2)


def test_causes_are_within_the_factors_that_are_looked_at() -> None:
    for causes in CAUSES.values():
        for cause in causes:
            assert LEAST_FACTOR <= cause.min_factor < cause.max_factor <= MOST_FACTOR
