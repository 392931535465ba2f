"""Fewest devices and smallest memory, worked out by hand."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest

from nest.analysis.fit import (
    StepTimeLimit,
    days,
    device_counts,
    fewest_devices,
    most_memory_bytes,
    smallest_memory,
    step_target,
    to_document,
    tokens_per_s,
    with_devices,
    within,
)
from nest.errors import InvalidOptionError
from nest.ir import Activations, Device, Problem, problem_hash
from nest.solvers.base import Limit, SolveOptions, Status
from nest.solvers.result import Outcome, SolveResult
from nest.units import MAX_TOTAL
from tests.builders import PAIRS, make_cost, make_levels, make_problem
from tests.clock import spending
from tests.inside import run_inside


@pytest.fixture(autouse=True)
def _inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nest.analysis.fit.run_solver", run_inside)


def chain(**fields: object) -> Problem:
    """Two layers of 30 ns, three samples, three devices, a free network.

    One device takes 3 · 60 = 180. Two devices: two stages, 60 + 2 · 30 = 120
    (two replicas do not divide the batch). Three: three replicas, 60.
    """
    cost = make_cost(10, 20, kept_bytes=10, weight_bytes=1)
    fields.setdefault("global_batch", 3)
    fields.setdefault("devices", 3)
    fields.setdefault("topology", make_levels((4, 0.0, 1e15)))
    return make_problem({"a": cost, "b": cost}, edges=(("a", "b", 0),), **fields)


def at_most(quanta: int) -> StepTimeLimit:
    return StepTimeLimit(quanta, f"{quanta} quanta")


@pytest.mark.parametrize(
    ("quanta", "answers"),
    [
        (180, ["yes"]),
        (179, ["no", "yes"]),
        (120, ["no", "yes"]),
        (119, ["no", "no", "yes"]),
        (60, ["no", "no", "yes"]),
    ],
)
@pytest.mark.parametrize("solver", ["dp", "brute"])
def test_the_fewest_devices_within_a_time(quanta, answers, solver):
    """brute cannot stop at a target; its optimum answers as well."""
    fit = fewest_devices(chain(), at_most(quanta), [1, 2, 3], solver)
    assert [trial.answer for trial in fit.trials] == answers
    assert fit.proven
    assert fit.fastest is None
    assert fit.best is not None
    assert fit.best.num_devices == len(answers)
    assert fit.best.result.status is Status.OPTIMAL
    assert fit.best.result.step_quanta == 240 - 60 * len(answers)


def test_a_proof_is_about_the_counts_tried():
    """Two devices would do for 120, but only one and three are tried."""
    fit = fewest_devices(chain(), at_most(120), [1, 3])
    assert fit.best is not None
    assert (fit.best.num_devices, fit.proven) == (3, True)
    assert fit.among == " among the counts tried"
    assert repr(fit).endswith("GiB, proven among the counts tried>")
    assert to_document(chain(), fit, "dp")["proven_among_tried"] is True
    every = fewest_devices(chain(), at_most(120), [1, 2, 3])
    assert every.among == ""
    assert repr(every).endswith("GiB, proven>")
    none = fewest_devices(chain(), at_most(59), [1, 3])
    assert none.among == " among the counts tried"
    assert not none.without_plan
    assert smallest_memory(chain(), at_most(180)).among == ""


def test_more_devices_may_be_slower():
    """Two replicas of one layer of 30 ns and 10 bytes of gradients.

    On two devices they sync in a pair, 2 · 10 + 10. On four they are a pitch
    of two apart, in both pairs: 2 · 100 + 10 · 10.
    """
    problem = make_problem(
        {"a": make_cost(10, 20, weight_bytes=10)},
        topology=PAIRS,
        global_batch=2,
        replicas=(2,),
    )
    for quanta, counts, answers in (
        (60, [4, 2, 1], ["no", "yes"]),
        (329, [4], ["no"]),
        (330, [4], ["yes"]),
        (59, [1, 2, 4], ["no", "no", "no"]),
    ):
        fit = fewest_devices(problem, at_most(quanta), counts)
        assert [trial.answer for trial in fit.trials] == answers
    assert fit.fastest is not None
    assert fit.fastest.num_devices == 2
    assert fit.fastest.result.step_quanta == 60


def test_a_target_that_nothing_reaches_has_a_best_possible():
    fit = fewest_devices(chain(), at_most(59), [1, 2, 3])
    assert fit.best is None
    assert fit.proven
    assert fit.fastest is not None
    assert fit.fastest.num_devices == 3
    assert fit.fastest.result.step_quanta == 60


def test_without_any_plan_there_is_no_best_possible():
    """No device holds what a layer keeps."""
    problem = chain(memory_bytes=5)
    fit = fewest_devices(problem, at_most(1000), [1, 2])
    assert (fit.best, fit.fastest, fit.proven) == (None, None, True)
    assert fit.without_plan


def test_what_is_not_decided_is_open(monkeypatch):
    """A solver without proofs leaves smaller candidates open."""
    from nest.solvers import registry
    from tests.loopback import BASELINE

    registry.register_solver("baseline", BASELINE)
    try:
        fit = fewest_devices(chain(), at_most(0), [1, 2], "baseline")
    finally:
        registry.unregister_solver("baseline")
    assert [trial.answer for trial in fit.trials] == ["open", "open"]
    assert not fit.proven


def gives_up(problem: Problem, bound: int | None = None) -> SolveResult:
    """Return an answer without a plan."""
    return SolveResult(
        solver="dp",
        exact=True,
        outcome=Outcome.SOLVED,
        status=Status.NO_SOLUTION,
        problem_hash=problem_hash(problem),
        quantum_ps=problem.quantum_ps,
        lower_bound_quanta=bound,
        detail="gave up",
    )


@pytest.mark.parametrize(
    ("bound", "answer"), [(None, "open"), (120, "open"), (121, "no")]
)
def test_a_bound_above_the_target_refutes_it(monkeypatch, bound, answer):
    """Where one device is not settled, two are an answer, not a proof."""

    def run(problem, *arguments):
        if problem.cluster.num_devices == 1:
            return gives_up(problem, bound)
        return run_inside(problem, *arguments)

    monkeypatch.setattr("nest.analysis.fit.run_solver", run)
    fit = fewest_devices(chain(), at_most(120), [1, 2, 3])
    assert [trial.answer for trial in fit.trials] == [answer, "yes"]
    assert fit.best is not None
    assert fit.best.num_devices == 2
    assert fit.proven == (answer == "no")


def test_one_open_candidate_leaves_a_refusal_open(monkeypatch):
    """One device takes 180 > 119; nobody knows about two."""

    def run(problem, *arguments):
        if problem.cluster.num_devices == 2:
            return gives_up(problem)
        return run_inside(problem, *arguments)

    monkeypatch.setattr("nest.analysis.fit.run_solver", run)
    fit = fewest_devices(chain(), at_most(119), [1, 2])
    assert [trial.answer for trial in fit.trials] == ["no", "open"]
    assert fit.best is None
    assert not fit.proven


def test_an_open_size_leaves_the_smallest_memory_open(monkeypatch):
    """Only one byte less is refuted, nothing about less than that."""
    first = smallest_memory(chain(), at_most(180)).best
    assert first is not None
    limit = first.memory_bytes - 2

    def run(problem, *arguments):
        if problem.cluster.device.memory_bytes <= limit:
            return gives_up(problem)
        return run_inside(problem, *arguments)

    monkeypatch.setattr("nest.analysis.fit.run_solver", run)
    fit = smallest_memory(chain(), at_most(180))
    assert fit.best is not None
    assert fit.best.memory_bytes == first.memory_bytes
    assert not fit.proven


def test_the_smallest_memory_is_exact_to_the_byte():
    """A layer has 1 + 1 + 6 bytes and keeps 10 per micro-batch in flight.

    In 60 ns all are on each device, one micro-batch: 36. In 120 there are
    two stages, on the first two micro-batches of one layer: 8 + 20.
    """
    problem = chain()
    for quanta, memory_bytes in ((60, 36), (119, 36), (120, 28), (10**6, 28)):
        fit = smallest_memory(problem, at_most(quanta))
        assert fit.best is not None
        assert fit.best.memory_bytes == memory_bytes
        assert fit.proven
        assert fit.best.result.step_quanta is not None
        assert fit.best.result.step_quanta <= quanta
        below = [t for t in fit.trials if t.memory_bytes == memory_bytes - 1]
        assert [trial.answer for trial in below] == ["no"]


def test_no_byte_is_skipped():
    """100, 52 or 51 bytes, the fewer the slower: 50 are not enough.

    With 99, one byte below the fastest plan, the next one is found, which
    is a byte larger than the smallest.
    """
    cost = make_cost(
        10,
        20,
        activations=(
            Activations(kept_bytes=100),
            Activations(recompute="selective", kept_bytes=52, extra_ns=1.0),
            Activations(recompute="full", kept_bytes=51),
        ),
    )
    problem = make_problem(
        {"a": cost}, devices=1, recompute=("none", "selective", "full")
    )
    fit = smallest_memory(problem, at_most(1000), "brute")
    assert fit.best is not None
    assert fit.best.memory_bytes == 51
    assert fit.proven


def test_reserved_memory_counts():
    problem = chain()
    device = Device(memory_bytes=10**6, reserve_bytes=1000)
    cluster = type(problem.cluster)(
        num_devices=3, device=device, topology=problem.cluster.topology
    )
    problem = type(problem)(graph=problem.graph, cluster=cluster, job=problem.job)
    fit = smallest_memory(problem, at_most(60))
    assert fit.best is not None
    assert fit.best.memory_bytes == 1036


def test_no_memory_is_enough_for_an_impossible_time():
    fit = smallest_memory(chain(memory_bytes=1), at_most(59))
    assert fit.best is None
    assert fit.proven
    assert fit.fastest is not None
    assert fit.fastest.result.step_quanta == 60


def test_most_memory_is_enough_for_everything():
    """Two layers, 3 + 2 micro-batches in flight: more than 2 (8 + 3 · 10)."""
    assert most_memory_bytes(chain()) >= 2 * 38


# Candidates


@pytest.mark.parametrize(
    ("levels", "devices", "counts"),
    [
        (((4, 0.0, 1e9),), 3, [1, 2, 3]),
        (((8, 0.0, 1e9),), 8, [1, 2, 4, 8]),
        (((4, 0.0, 1e9), (3, 0.0, 1e9)), 12, [1, 2, 4, 8, 12]),
        # a last node in part
        (((4, 0.0, 1e9), (3, 0.0, 1e9)), 10, [1, 2, 4, 8, 10]),
        # nodes of one device: the next level counts
        (((1, 0.0, 1e9), (2, 0.0, 1e9), (2, 0.0, 1e9)), 4, [1, 2, 4]),
        # up to 16 nodes of 2 one by one, then every second, then every fourth
        (
            ((2, 0.0, 1e9), (40, 0.0, 1e9)),
            80,
            [1, *range(2, 33, 2), *range(36, 65, 4), 72, 80],
        ),
    ],
)
def test_candidates_are_parts_of_a_node_and_whole_nodes(levels, devices, counts):
    problem = chain(devices=devices, topology=make_levels(*levels))
    assert device_counts(problem) == counts


def test_a_candidate_is_the_first_devices():
    problem = with_devices(chain(), 2)
    assert problem.cluster.num_devices == 2
    assert problem.cluster.topology == chain().cluster.topology


def test_a_candidate_beyond_the_cluster_is_refused():
    with pytest.raises(
        InvalidOptionError,
        match=r"--devices-list: expected numbers from 1 to 3, the devices of "
        r"the cluster, got 4; remove it",
    ):
        fewest_devices(chain(), at_most(1), [1, 4])


# Targets


def test_targets_are_rounded_down_to_quanta():
    """0.3 s are exactly 3e8 quanta of 1 ns; a third of a ns is none."""
    problem = chain()
    assert within(problem, Fraction("0.3")).quanta == 300_000_000
    assert within(problem, Fraction("0.3")).text == "a step within 0.3 s"
    assert step_target(problem, Fraction(1, 3 * 10**9), "").quanta == 0
    assert step_target(problem, Fraction(10**20), "").quanta == MAX_TOTAL


def test_a_throughput_is_a_step_time():
    """Three samples of 10 tokens: 1e9 tokens/s are 30 ns a step."""
    problem = chain(sequence_length=10)
    target = tokens_per_s(problem, Fraction(10**9))
    assert target.quanta == 30
    assert target.text == "1e+09 tokens/s (a step within 3e-08 s)"


def test_a_run_is_a_number_of_steps():
    """100 tokens are 4 steps of 30; a day has 86,400 s."""
    problem = chain(sequence_length=10)
    target = days(problem, Fraction(1), Fraction(100))
    assert target.quanta == 21_600 * 10**9
    assert target.text == ("100 tokens in 1 days (4 steps, each within 21600 s)")


def test_tokens_need_a_sequence_length():
    with pytest.raises(
        InvalidOptionError,
        match=r"--tokens-per-s: expected a problem with a sequence_length and "
        r"times in seconds, got none; use --within",
    ):
        tokens_per_s(chain(), Fraction(1))


def test_tokens_need_seconds():
    problem = chain(sequence_length=10)
    odd = type(problem)(
        graph=problem.graph, cluster=problem.cluster, job=problem.job, time_unit="tick"
    )
    with pytest.raises(
        InvalidOptionError,
        match=r"--days: expected a problem with a sequence_length and times "
        r"in seconds, got unit 'tick'; use --within",
    ):
        days(odd, Fraction(1), Fraction(1))
    assert within(odd, Fraction(2)).text == "a step within 2 tick"


def test_the_document_has_every_candidate():
    fit = fewest_devices(chain(), at_most(120), [1, 2, 3])
    document = to_document(chain(), fit, "dp")
    assert document["schema"] == "nest-fit/1"
    assert document["target"] == {"text": "120 quanta", "step_ns": 120}
    assert document["proven"] is True
    assert document["fastest"] is None
    assert document["answer"]["num_devices"] == 2
    assert document["answer"]["step_time_ns"] == 120
    assert document["answer"]["proven_optimal"] is True
    assert [
        (c["num_devices"], c["answer"], c["lower_bound_ns"])
        for c in document["candidates"]
    ] == [(1, "no", 121), (2, "yes", 120)]


# The option that stops at a target


def test_dp_stops_at_a_target_or_refutes_it():
    from nest.search.solver import DpSolver

    def solve(target: int, **more: object):
        options = SolveOptions(extra={"at_most_quanta": str(target)}, **more)
        return DpSolver().solve(chain(), options)

    found = solve(10**9)
    assert found.status is Status.FEASIBLE
    assert found.plan is not None
    assert found.detail == "stopped at a plan within 1 s"
    none = solve(59)
    assert none.status is Status.NO_SOLUTION
    assert (none.plan, none.claimed_quanta) == (None, None)
    assert none.lower_bound_quanta == 60
    assert none.detail == "no plan within 5.9e-08 s"
    # A target that every plan keeps is none to speak of.
    assert solve(MAX_TOTAL).detail == "stopped at a plan"
    # A known plan is an answer, or stays one.
    start = solve(180).plan
    assert solve(180, warm_start=start).plan == start
    # One quantum too slow is no answer.
    slow = DpSolver().solve(with_devices(chain(), 1), SolveOptions()).plan
    assert slow is not None
    better = solve(179, warm_start=slow)
    assert better.claimed_quanta is not None
    assert better.claimed_quanta < 180
    kept = solve(59, warm_start=start)
    assert kept.status is Status.FEASIBLE
    assert kept.plan == start
    assert kept.lower_bound_quanta == 60


def test_dp_looks_for_the_best_within_a_target():
    from nest.search.solver import DpSolver

    def solve(most: int, **more: object):
        options = SolveOptions(extra={"within_quanta": str(most)}, **more)
        return DpSolver().solve(chain(), options)

    best = DpSolver().solve(chain(), SolveOptions())
    least = best.claimed_quanta
    assert least is not None
    for most in (least, least + 1, 10**9):
        found = solve(most)
        assert found.status is Status.OPTIMAL
        assert found.claimed_quanta == found.lower_bound_quanta == least
    none = solve(least - 1)
    assert none.status is Status.NO_SOLUTION
    assert none.lower_bound_quanta == least
    # A known plan counts if it is within the target, else it is kept alone.
    assert solve(10**9, warm_start=best.plan).claimed_quanta == least
    kept = solve(least - 1, warm_start=best.plan)
    assert (kept.status, kept.plan) == (Status.FEASIBLE, best.plan)
    assert kept.lower_bound_quanta == least


def test_dp_refutes_no_target_without_time():
    from nest.search.solver import DpSolver

    options = SolveOptions(extra={"at_most_quanta": "59"}, time_limit_s=1e-9)
    output = DpSolver().solve(chain(), options)
    assert output.limit is Limit.TIME
    assert (output.lower_bound_quanta or 0) < 60


@pytest.mark.parametrize("value", ["-1", "1.5", "soon"])
def test_the_target_is_a_whole_number(value):
    from nest.search.solver import DpSolver

    with pytest.raises(
        InvalidOptionError,
        match=rf"dp\.at_most_quanta: expected a whole number >= 0, got "
        rf"'{re.escape(value)}'",
    ):
        DpSolver().solve(chain(), SolveOptions(extra={"at_most_quanta": value}))


def test_signs_of_life_name_the_candidate(monkeypatch):
    """What the runner reports is handed on with the cluster in front."""
    from nest.solvers.cell import Running

    def run(problem, name, options, on_progress):
        on_progress(Running(name, 1.0, None, None, False, "busy", 1000))
        return run_inside(problem, name, options)

    monkeypatch.setattr("nest.analysis.fit.run_solver", run)
    said = []
    fewest_devices(
        chain(memory_bytes=2**30),
        at_most(120),
        [1, 2],
        on_progress=lambda running: said.append(running.message),
    )
    assert said == ["1 devices of 1.00 GiB: busy", "2 devices of 1.00 GiB: busy"]


def test_the_candidate_is_shown_with_the_plan_of_the_answer() -> None:
    """On two devices many plans keep the target of 170 ns, the best takes 120 ns."""
    problem = chain()
    found = fewest_devices(problem, StepTimeLimit(170, ""))
    assert found.best is not None
    assert found.trials[-1] is found.best
    assert found.best.result.step_quanta == 120
    (*_, last) = to_document(problem, found, "dp")["candidates"]
    assert last["step_time_ns"] == 120
    found = smallest_memory(problem, StepTimeLimit(170, ""))
    assert found.best is not None
    assert found.trials[-1] is found.best


def test_candidates_share_the_time_limit(monkeypatch):
    """Evenly; the last share is for an answer whose plan is not proven optimal."""
    limits = spending(monkeypatch, "nest.analysis.fit", 10)
    limited = SolveOptions(time_limit_s=60)
    fit = fewest_devices(chain(), at_most(150), [1, 2], options=limited)
    assert [trial.answer for trial in fit.trials] == ["no", "yes"]
    assert fit.proven
    assert limits == [60 / 3, 50 / 2]


def test_what_is_left_when_the_time_is_up_is_open(monkeypatch):
    """No solver begins, and nothing is proven that was not before."""
    limits = spending(monkeypatch, "nest.analysis.fit", 100)
    limited = SolveOptions(time_limit_s=60)
    fit = smallest_memory(chain(), at_most(180), options=limited)
    assert limits == [60]
    assert not fit.proven
    assert fit.best is not None
    limits = spending(monkeypatch, "nest.analysis.fit", 0)
    none = SolveOptions(time_limit_s=0)
    fit = fewest_devices(chain(), at_most(150), [1, 2], options=none)
    assert limits == []
    assert [trial.answer for trial in fit.trials] == ["open", "open"]
    assert {trial.result.limit for trial in fit.trials} == {Limit.TIME}
    assert (fit.proven, fit.best, fit.fastest) == (False, None, None)
