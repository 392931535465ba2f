"""Frontiers worked by hand: points, filters, costs, proofs, plots, errors.

Layers ``a`` and ``b`` take 10 + 20 ns and keep 10 bytes per micro-batch, or
4 with full recomputation, which costs another 10 ns; two micro-batches, one
replica, a network that costs nothing.

One device: 2 · 60 = 120 ns with 20 bytes, 2 · 80 = 160 ns with 8. Two devices
in a pipeline, with two micro-batches in flight on the first and one on the
second: 60 + 30 = 90 ns with 20 bytes; recomputing ``a`` 70 + 40 = 110 ns with
max(8, 10); recomputing both 80 + 40 = 120 ns with 8.
"""

from __future__ import annotations

import io
import json
import os
from dataclasses import replace
from fractions import Fraction
from unittest import mock

import pytest
from msgspec import structs

from nest.analysis.fit import with_devices, with_memory
from nest.analysis.pareto import (
    Curve,
    Frontier,
    bulges,
    frontier,
    knees,
    points_to_show,
)
from nest.analysis.prove import check_prover, prove
from nest.cost.model import CostModel
from nest.errors import (
    InvalidOptionError,
    InvalidProblemError,
    NestError,
    SolverError,
    UnknownNameError,
    UnsupportedProblemError,
)
from nest.ir import Activations, Device, Problem, problem_hash
from nest.present.frontier import (
    frontier_block,
    page_frontier,
    proof_lines,
    to_document,
    write_plot,
)
from nest.present.table import show
from nest.search import tracer as tracing
from nest.search.frontier.staircase import Gap, Point, merge_gaps
from nest.solvers.base import SolveOptions, SolverOutput, Status
from nest.solvers.cell import Running
from nest.solvers.messages import OutputMessage
from nest.solvers.process import Worker
from nest.solvers.result import Outcome, SolveResult
from nest.util.plots import check_plot
from nest.util.versions import num_cpus
from tests.builders import kept_or_full, make_cost, make_levels, make_problem
from tests.clock import Ticking
from tests.frontiers import check_limited, enumerated, pairs, search, settings
from tests.inside import run_inside

#: $ per hour that make a device cost 0.001 $ per ns.
PRICE = 3.6e9

ONE = [(120, 20, 1), (160, 8, 1)]
TWO = [(90, 20, 2), (110, 10, 2), (120, 8, 2)]


def small(devices: int = 2, **fields: object) -> Problem:
    cost = make_cost(10, 20, activations=kept_or_full(10, 4))
    for name, value in (
        ("replicas", (1,)),
        ("recompute", ("none", "full")),
        ("global_batch", 2),
        ("memory_bytes", 100),
    ):
        fields.setdefault(name, value)
    return make_problem(
        {"a": cost, "b": cost},
        edges=(("a", "b", 0),),
        devices=devices,
        topology=make_levels((devices, 0.0, 1e15)),
        **fields,
    )


def with_device(problem: Problem, **fields: object) -> Problem:
    device = structs.replace(problem.cluster.device, **fields)
    cluster = structs.replace(problem.cluster, device=device)
    return structs.replace(problem, cluster=cluster)


def vectors(found: Frontier | Curve) -> list[tuple[int, int, int]]:
    return sorted((p.step_quanta, p.memory_bytes, p.devices) for p in found.points)


# Points


def test_time_and_memory_on_all_devices():
    found = frontier(small())
    assert vectors(found) == TWO
    assert found.proven
    assert [c.devices for c in found.curves] == [2]
    # By ascending memory.
    assert [p.memory_bytes for p in found.points] == [8, 10, 20]
    assert all(p.proven for p in found.points)
    assert {p.plan.problem_hash for p in found.points} == {problem_hash(small())}


def test_per_layer_one_device_has_a_point_more():
    """Recomputing one of two layers: 2 · 70 = 140 ns with 14 bytes."""
    found = frontier(small(devices=1, granularity="layer"))
    assert vectors(found) == [(120, 20, 1), (140, 14, 1), (160, 8, 1)]


def test_the_reserve_is_part_of_the_memory():
    """As score has it; the lowest point holds 5 + 8 bytes."""
    found = frontier(with_device(small(), reserve_bytes=5))
    assert vectors(found) == [(90, 25, 2), (110, 15, 2), (120, 13, 2)]


def test_points_beyond_the_capacity_are_none():
    assert vectors(frontier(with_device(small(), memory_bytes=19))) == TWO[1:]
    assert vectors(frontier(with_device(small(), memory_bytes=8))) == TWO[2:]


def test_nothing_fits_is_proven_too():
    found = frontier(with_device(small(), memory_bytes=7))
    assert found.points == ()
    assert found.proven


@pytest.mark.parametrize("preset", ["standard", "nest-artifact"])
def test_presets_have_frontiers(preset):
    """One strategy for all: the plan that recomputes ``a`` only is gone.

    The artifact counts (M + S - 1) · max τ, recomputation as the backward
    pass, but not on the last stage, and further micro-batches in flight keep
    what enters a stage, which is nothing here.
    """
    found = frontier(small(preset=preset, pipeline_parallel=(1,)))
    assert found.proven
    if preset == "standard":
        assert vectors(found) == [(120, 20, 2), (160, 8, 2)]
    else:
        # The last stage is the only one, so that recomputation is free.
        assert vectors(found) == [(120, 8, 2)]


def test_processes_find_the_same():
    if num_cpus() < 2:
        pytest.skip("needs two CPUs")
    here = frontier(small(4), ("time", "memory", "devices"))
    there = frontier(small(4), ("time", "memory", "devices"), workers=2)
    assert [c.devices for c in there.curves] == [1, 2, 4]
    assert vectors(there) == vectors(here)
    assert there.proven


# Objectives


@pytest.mark.parametrize(
    ("objectives", "expected"),
    [
        ("time memory devices", ONE + TWO),
        ("time", TWO[:1]),
        ("time devices", [(90, 20, 2), (120, 20, 1)]),
        # 8 bytes on either number of devices, the faster one is kept.
        ("memory", [(120, 8, 2)]),
        ("memory devices", [(160, 8, 1)]),
        ("devices", [(120, 20, 1)]),
        # Costs 120 and 160; 180, 220 and 240.
        ("cost", [(120, 20, 1)]),
        ("time cost", [(90, 20, 2), (120, 20, 1)]),
        ("memory cost", [(120, 20, 1), (160, 8, 1)]),
        ("cost time memory", [(90, 20, 2), (110, 10, 2), (120, 8, 2), *ONE]),
    ],
)
def test_objectives_are_filters(objectives, expected):
    found = frontier(
        small(), objectives.split(), devices=(1, 2), price_usd_per_hour=PRICE
    )
    assert vectors(found) == sorted(expected)


def test_by_default_sizes_are_halves_where_they_matter():
    assert [c.devices for c in frontier(small(6)).curves] == [6]
    found = frontier(small(6), ["devices"])
    assert [c.devices for c in found.curves] == [1, 3, 6]


def test_sizes_are_unions_without_the_objective():
    """The one-device plan of 120 ns and 20 bytes is beaten on two."""
    assert vectors(frontier(small(), devices=(1, 2))) == TWO


def test_idle_devices_are_charged():
    """Of three devices two are used: 3 · 90 ns."""
    found = frontier(small(3), ["time"], price_usd_per_hour=PRICE)
    (point,) = found.points
    assert point.device_quanta == 270
    assert found.step_usd(point) == pytest.approx(0.27, rel=1e-12)


def test_the_price_of_the_problem_counts_unless_one_is_given():
    priced = with_device(small(), price_usd_per_hour=PRICE)
    found = frontier(priced, ["time", "cost"])
    assert found.step_usd(found.points[-1]) == pytest.approx(0.18)
    found = frontier(priced, ["time"], price_usd_per_hour=2 * PRICE)
    assert found.step_usd(found.points[-1]) == pytest.approx(0.36)
    found = frontier(small())
    assert found.step_usd(found.points[0]) is None


def test_a_price_is_part_of_the_problem():
    priced = with_device(small(), price_usd_per_hour=PRICE)
    assert problem_hash(priced) != problem_hash(small())
    free = with_device(priced, price_usd_per_hour=None)
    assert problem_hash(free) == problem_hash(small())


def test_at_most_is_the_fastest_that_fits():
    (curve,) = frontier(small()).curves
    assert curve.at_most(7) is None
    for memory, time in ((8, 120), (9, 120), (10, 110), (19, 110), (99, 90)):
        point = curve.at_most(memory)
        assert point is not None
        assert point.step_quanta == time


# What is not proven


@pytest.mark.parametrize("workers", [1, min(2, num_cpus())])
def test_without_time_nothing_is_proven(workers):
    """And the gap is all of the memory."""
    found = frontier(small(), devices=(1, 2), time_limit_s=1e-9, workers=workers)
    assert found.points == ()
    assert not found.proven
    for curve in found.curves:
        assert [g.up_to_bytes for g in curve.gaps] == [100]
        assert curve.gaps[0].above_bytes <= 0
        assert curve.gaps[0].lower_bound_quanta == 0


def test_gaps_of_processes_are_kept(monkeypatch):
    extra = {"points": (), "gaps": ((5, 100, 42),)}
    output = SolverOutput(status=Status.NO_SOLUTION, extra=extra)

    def run_cells(cells, workers, take):
        for cell in cells:
            cell.last = OutputMessage(output)
            take(cell)

    monkeypatch.setattr("nest.analysis.pareto.run_cells", run_cells)
    found = frontier(small(), devices=(1, 2), workers=2)
    assert [curve.gaps for curve in found.curves] == [(Gap(5, 100, 42),)] * 2
    assert not found.proven


def gapped(*gaps: Gap) -> Frontier:
    """Return the frontier as it were with these gaps."""

    def search(*arguments: object) -> object:
        points, _ = real(*arguments)
        return points, list(gaps)

    real = tracing.search
    with mock.patch.object(tracing, "search", search):
        return frontier(small())


@pytest.mark.parametrize(
    ("gap", "proven"),
    [
        # Nothing there is as fast as the second point.
        (Gap(8, 20, 111), [True, True, True]),
        (Gap(8, 20, 110), [True, False, True]),
        # Plans of 9 bytes and at least 100 ns may beat the second only.
        (Gap(8, 9, 100), [True, False, True]),
        (Gap(8, 9, 90), [True, False, False]),
        # As much memory and time: no better than the point itself.
        (Gap(19, 20, 90), [True, True, True]),
        (Gap(-1, 100, 0), [False, False, False]),
    ],
)
def test_gaps_leave_points_unproven(gap, proven):
    found = gapped(gap)
    assert [p.proven for p in found.points] == proven
    assert not found.proven


def test_a_process_passes_on_what_its_limit_leaves_open():
    """With some time, so that it has both points and gaps to tell."""
    points, gaps = tracing.trace(small(), Ticking(70))
    assert points
    assert gaps
    with mock.patch.object(tracing, "Deadline", return_value=Ticking(70)):
        answer = tracing.FrontierTracer().solve(small(), SolveOptions())
    assert [Gap(*gap) for gap in answer.extra["gaps"]] == gaps
    assert [found[:2] for found in answer.extra["points"]] == [
        (point.step_quanta, point.memory_bytes) for point in points
    ]


def test_gaps_that_overlap_have_the_least_bound_there():
    found = merge_gaps(
        [Gap(5, 20, 30), Gap(0, 10, 50), Gap(15, 20, 10), Gap(30, 40, 7)]
    )
    assert found == [Gap(0, 5, 50), Gap(5, 15, 30), Gap(15, 20, 10), Gap(30, 40, 7)]
    assert merge_gaps([]) == []


def test_one_open_curve_leaves_the_frontier_open():
    found = frontier(small(), ("time", "memory", "devices"))
    one, two = found.curves
    assert found.proven
    for curves in (
        (one, replace(two, gaps=(Gap(8, 9, 100),))),
        (replace(one, gaps=(Gap(8, 9, 100),)), two),
    ):
        assert not replace(found, curves=curves).proven


@pytest.mark.parametrize("workers", [1, 2])
def test_a_limit_that_passes_on_the_way_leaves_gaps(workers):
    """Wherever that is, in forked processes too: what is proven is right."""
    if num_cpus() < workers:
        pytest.skip(f"needs {workers} CPUs")
    # Forking takes far longer than what a tick stands for.
    for ticks in range(0, 200, 1 if workers == 1 else 5):
        with (
            mock.patch("nest.analysis.pareto.Deadline", lambda _, n=ticks: Ticking(n)),
            settings("labels-alone"),
        ):
            found = frontier(small(), workers=workers)
        (curve,) = found.curves
        assert found.proven == (not curve.gaps)
        if found.proven:
            break
        for time, memory, _ in TWO:
            known = curve.at_most(memory)
            assert (known is not None and known.step_quanta <= time) or any(
                gap.above_bytes < memory <= gap.up_to_bytes
                and gap.lower_bound_quanta <= time
                for gap in curve.gaps
            )
        for point in found.points:
            vector = (point.step_quanta, point.memory_bytes, point.devices)
            assert vector in TWO or not point.proven
    assert ticks > 10
    assert vectors(found) == TWO


# Plans of every runtime


def in_chunks(**fields: object) -> Problem:
    """Return four layers of 10 + 20 ns that hold 10 bytes, two samples.

    Two stages of two layers take 120 + 60 ns, one and three 120 + 90; four
    chunks on two blocks 2 · 60 + 30, and the first block holds four of them.
    """
    cost = make_cost(10, 20, kept_bytes=10)
    fields.setdefault("virtual_stages", (1, 2))
    return make_problem(
        dict.fromkeys("abcd", cost),
        edges=(("a", "b", 1), ("b", "c", 1), ("c", "d", 1)),
        devices=2,
        topology=make_levels((2, 0.0, 1e15)),
        replicas=(1,),
        global_batch=2,
        **fields,
    )


def test_interleaved_plans_are_on_the_frontier():
    """The one of 40 bytes; with 30, in flight 2 · 10 and 30, there is none."""
    found = frontier(in_chunks())
    assert vectors(found) == [(150, 40, 2), (210, 30, 2)]
    assert [p.plan.virtual_stages for p in found.points] == [1, 2]
    assert found.proven


def test_every_interleaved_plan_within_less_memory_counts():
    """Recomputing, layers hold 4 bytes and chunks take 20 ns more.

    Four blocks in flight then hold 16 bytes and take 2 · 80 + 40; the plans
    that are not interleaved 2 · 80 + 80, and 10 + 30 more with three layers.
    """
    cost = make_cost(10, 20, activations=kept_or_full(10, 4))
    problem = in_chunks(recompute=("none", "full"))
    kinds = tuple(structs.replace(kind, costs=(cost,)) for kind in problem.graph.kinds)
    graph = structs.replace(problem.graph, kinds=kinds)
    problem = structs.replace(problem, graph=graph)
    points, gaps = search(problem)
    assert gaps == []
    assert pairs(points) == enumerated(problem)
    assert sum(point.plan.virtual_stages == 2 for point in points) > 1


@pytest.mark.parametrize("setting", ["as-it-is", "labels-alone"])
def test_every_family_tells_what_its_plans_hold(setting):
    """All layers share ``tp``: the fastest family holds most, not the least.

    What is below the least memory of any plan counts as that: 60 ns with 40
    bytes would be no better there than 50 ns with 60.
    """
    problem = make_problem(
        {
            "a": (
                make_cost(10, 20, kept_bytes=100),
                make_cost(20, 30, tp=2, kept_bytes=60),
                make_cost(20, 40, tp=3, kept_bytes=40),
            )
        },
        devices=3,
        replicas=(1,),
        uniform=("tp",),
    )
    points, gaps = search(problem, setting)
    assert gaps == []
    assert pairs(points) == [(40, 60), (60, 50), (100, 30)]


def test_interleaved_plans_may_be_all_there_are():
    found = frontier(in_chunks(virtual_stages=(2,)))
    assert vectors(found) == [(150, 40, 2)]
    assert found.proven
    nothing = frontier(small(virtual_stages=(2,)))
    assert nothing.points == ()
    assert nothing.proven


def test_interleaved_plans_that_are_too_many_are_a_gap(monkeypatch):
    """Their bound is 2 · 60 ns, and what is found remains."""
    monkeypatch.setattr("nest.search.passes.interleaved_exact.MAX_STEPS", 0)
    found = frontier(in_chunks())
    assert vectors(found) == [(150, 40, 2), (210, 30, 2)]
    (curve,) = found.curves
    assert [gap.lower_bound_quanta for gap in curve.gaps] == [120]
    (gap,) = curve.gaps
    assert (gap.above_bytes, gap.up_to_bytes) == (-1, 10**9)
    assert [point.proven for point in found.points] == [False, False]
    assert not found.proven
    searched, line = proof_lines(found)
    assert searched == "searched: 1F1B and interleaved 1F1B plans without overlap"
    assert line.startswith("not proven: 2 devices from 0 bytes to 0.93 GiB")
    assert line.endswith("where a step takes at least 120.000 ns")


def test_no_time_for_interleaved_plans_is_a_gap(monkeypatch):
    """Whatever the plans that are not interleaved reach."""
    problem = in_chunks()
    truth = [(30, 210), (40, 150)]
    for ticks in range(0, 4000, 37):
        points, gaps = search(problem, deadline=Ticking(ticks))
        check_limited(points, gaps, truth)
        if not gaps:
            break
    assert gaps == []
    assert ticks > 37


def sharded(**fields: object) -> Problem:
    """Return a layer of 100 + 200 ns and 80 bytes of weights, on two replicas.

    Gradients take as much, the state 480 bytes; links move 1 byte per ns.
    """
    return make_problem(
        {"a": make_cost(100, 200, weight_bytes=80)},
        devices=2,
        topology=make_levels((2, 0.0, 1e9)),
        replicas=(2,),
        global_batch=2,
        **fields,
    )


def test_the_distributed_optimizer_is_a_way_to_hold_less():
    """80 + 80 + 480 bytes, or half of the state: 400.

    An all-reduce of 80 bytes on two devices takes 80 ns, as do half of it and
    an all-gather of 80: as fast, and smaller, so one point is left.
    """
    found = frontier(sharded(distributed_optimizer=True))
    assert vectors(found) == [(380, 400, 2)]
    assert vectors(frontier(sharded())) == [(380, 640, 2)]
    assert found.points[0].plan.distributed_optimizer


def test_gradients_that_hide_are_on_the_frontier():
    """All 80 ns of sync hide behind 200 ns of backward pass."""
    found = frontier(sharded(overlap={"gradients": 1.0}))
    assert vectors(found) == [(300, 640, 2)]
    both = frontier(sharded(overlap={"gradients": 1.0}, distributed_optimizer=True))
    assert vectors(both) == [(300, 400, 2)]
    assert proven(both, 1).verdict == "proven"


# A search that lies


LIE = (
    r"^frontier of 2 devices: expected a feasible plan of .* this is a bug "
    r"of the search, please report it$"
)


@pytest.mark.parametrize("what", ["time", "memory", "order"])
def test_a_search_that_lies_is_caught(what):
    def search(*arguments: object) -> object:
        points, gaps = real(*arguments)
        first = points[0]
        points[0] = {
            "time": Point(119, 8, first.plan),
            "memory": Point(120, 7, first.plan),
            "order": points[1],
        }[what]
        return points, gaps

    real = tracing.search
    with (
        mock.patch.object(tracing, "search", search),
        pytest.raises(SolverError, match=LIE),
    ):
        frontier(small())


def test_a_plan_that_does_not_fit_is_caught():
    """All three points, though the device has 19 bytes."""

    def search(model, *arguments):
        larger = with_memory(model.problem, 20)
        return real(CostModel(larger), *arguments)

    real = tracing.search
    with (
        mock.patch.object(tracing, "search", search),
        pytest.raises(SolverError, match=LIE),
    ):
        frontier(with_device(small(), memory_bytes=19))


# Processes


def pool(problem: Problem, **fields: object) -> Frontier:
    if num_cpus() < 2:
        pytest.skip("needs two CPUs")
    return frontier(problem, devices=(1, 2), workers=2, **fields)


def test_a_process_that_dies_is_an_error():
    with (
        mock.patch("nest.analysis.pareto._TRACER", "os:abort"),
        pytest.raises(SolverError, match=r"^frontier: .*os:abort"),
    ):
        pool(small())
    with (
        mock.patch("nest.solvers.cell.Worker", DeadWorker),
        pytest.raises(
            SolverError,
            match=r"^frontier of 2 devices: the process ended with code 3, "
            r"no answer; give it more memory, or use fewer --workers$",
        ),
    ):
        pool(small())


class DeadWorker:
    """A process that ended without a word."""

    ended = True

    def __init__(
        self, request: bytes, num_threads: int, folder: str | None = None
    ) -> None:
        self.exit_code = 3

    def poll(self, timeout_s: float) -> list[bytes]:
        return []

    def wait(self, timeout_s: float) -> None:
        pass

    def stop(self) -> DeadWorker:
        return self


def answering(message: dict[str, object]) -> type[DeadWorker]:
    class Answering(DeadWorker):
        def poll(self, timeout_s: float) -> list[bytes]:
            return [json.dumps(message).encode()]

    return Answering


@pytest.mark.parametrize(
    ("failure", "error", "text"),
    [
        ("MemoryError", SolverError, "expected enough memory, got none"),
        ("", SolverError, "^frontier: why$"),
        ("UnsupportedProblemError", UnsupportedProblemError, "^why$"),
        ("InvalidProblemError", InvalidProblemError, "^why$"),
    ],
)
def test_failures_of_processes_are_errors(failure, error, text):
    message = {"type": "failure", "text": "why", "error": failure}
    with (
        mock.patch("nest.solvers.cell.Worker", answering(message)),
        pytest.raises(error, match=text),
    ):
        pool(small())


def test_a_process_that_cannot_start_is_an_error():
    with (
        mock.patch("nest.solvers.cell.Worker", side_effect=OSError("no more")),
        pytest.raises(SolverError, match=r"^cannot start a process: no more$"),
    ):
        pool(small())


def test_an_interrupt_leaves_no_process():
    """The progress of the first sign of life raises, as Ctrl-C would."""
    started = []

    def watched(*arguments: object) -> object:
        started.append(Worker(*arguments))
        return started[-1]

    def interrupt(running: Running) -> None:
        raise KeyboardInterrupt

    with (
        mock.patch("nest.solvers.cell.Worker", watched),
        pytest.raises(KeyboardInterrupt),
    ):
        pool(small(), on_progress=interrupt)
    assert len(started) == 2
    for worker in started:
        with pytest.raises(ProcessLookupError):
            os.kill(worker.pid, 0)


# Errors


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (
            {"objectives": ["tim"]},
            UnknownNameError,
            r"^objective: expected one of cost, devices, memory, time; got "
            r"'tim'; did you mean 'time'\?$",
        ),
        (
            {"objectives": ["time", "time"]},
            InvalidOptionError,
            "^objective: expected each once, got 'time' twice; remove one$",
        ),
        (
            {"objectives": []},
            InvalidOptionError,
            "^objective: expected some of time, memory, devices, cost, got "
            "none; name one$",
        ),
        (
            {"objectives": ["cost"]},
            InvalidOptionError,
            r"^objective cost: expected a price per device, got none in "
            r"\$\.cluster\.device\.price_usd_per_hour; pass "
            r"--price$",
        ),
        (
            {"price_usd_per_hour": 0.0},
            InvalidOptionError,
            "^price_usd_per_hour: expected a finite number > 0, got 0.0; "
            "correct the value$",
        ),
        (
            {"devices": (2, 3)},
            InvalidOptionError,
            "^--devices: expected numbers from 1 to 2, the devices of the "
            "cluster, got 3; remove it$",
        ),
        (
            {"devices": (2, 2)},
            InvalidOptionError,
            r"^--devices: expected distinct numbers, at least one, got "
            r"\[2, 2\]; correct them$",
        ),
        (
            {"time_limit_s": 0.0},
            InvalidOptionError,
            "^time_limit_s: expected a finite number > 0, got 0.0; leave it "
            "out for no limit$",
        ),
        (
            {"workers": 0},
            InvalidOptionError,
            r"^workers: expected 1 to \d+ \(the CPUs at hand\), got 0; "
            r"correct the value$",
        ),
    ],
)
def test_options_are_checked(options, error, text):
    with pytest.raises(error, match=text):
        frontier(small(), **options)


def test_a_cost_needs_seconds():
    """A price is per hour; times in a unit of their own have no hours."""
    own = structs.replace(small(), time_unit="tick")
    with pytest.raises(
        InvalidOptionError,
        match=r"^objective cost: expected the time of a step in seconds, got "
        r"one in 'tick' under preset 'standard'; leave cost out$",
    ):
        frontier(own, ["cost"], price_usd_per_hour=1.0)
    assert frontier(own, price_usd_per_hour=1.0).price_usd_per_hour is None


@pytest.mark.parametrize("price", [0.0, -1.0, float("nan")])
def test_a_device_has_a_price_above_zero(price):
    with pytest.raises(
        ValueError, match=r"^price_usd_per_hour: expected a finite number > 0"
    ):
        Device(memory_bytes=1, price_usd_per_hour=price)


# Proofs


def proven(found: Frontier, number: int, solver: str = "cpsat") -> object:
    with mock.patch("nest.analysis.prove.run_solver", run_inside):
        return prove(found, found.points[number - 1], solver)


@pytest.mark.parametrize("solver", ["cpsat", "brute", "milp", "dp"])
def test_points_are_proven(solver):
    found = frontier(small())
    for number in (1, 2, 3):
        proof = proven(found, number, solver)
        assert proof.verdict == "proven"
        assert proof.within.step_quanta == [120, 110, 90][number - 1]
    assert proof.below.step_quanta == 110


def test_memory_below_the_reserve_needs_no_proof():
    nothing = make_cost(10, 20)
    problem = make_problem({"a": nothing}, devices=1)
    found = frontier(with_device(problem, reserve_bytes=5))
    (point,) = found.points
    assert point.memory_bytes == 5
    proof = proven(found, 1)
    assert (proof.verdict, proof.below) == ("proven", None)
    assert proof.results == (proof.within,)


@pytest.mark.parametrize("solver", ["cpsat", "brute", "milp", "dp"])
def test_points_of_interleaved_plans_are_proven(solver):
    found = frontier(in_chunks())
    for number in (1, 2):
        assert proven(found, number, solver).verdict == "proven"


def without(found: Frontier, place: int) -> Frontier:
    """Return a frontier that overlooks a point."""
    (curve,) = found.curves
    points = tuple(p for i, p in enumerate(found.points) if i != place)
    curve = replace(curve, points=points)
    return replace(found, points=points, curves=(curve,))


def test_an_overlooked_point_is_a_contradiction():
    """With 19 bytes, one less than the next point, 110 ns are possible."""
    proof = proven(without(frontier(small()), 1), 2)
    assert proof.verdict == "contradiction"
    assert proof.detail == ("with 19 bytes a plan takes 110 quanta, the curve has 120")
    proof = proven(without(frontier(small()), 0), 1)
    assert proof.verdict == "contradiction"
    assert proof.detail == (
        "with 9 bytes a plan takes 120 quanta, the curve has nothing"
    )


def test_a_beaten_point_is_a_contradiction_unless_it_is_not_proven():
    """As if the plan of 110 ns took 115."""
    found = frontier(small())
    slow = replace(found.points[1], step_quanta=115)
    (curve,) = found.curves
    points = (found.points[0], slow, found.points[2])
    curve = replace(curve, points=points)
    found = replace(found, points=points, curves=(curve,))
    why = "with 10 bytes a plan takes 110 quanta, the curve has 115"
    proof = proven(found, 2)
    assert (proof.verdict, proof.detail) == ("contradiction", why)
    for gap, verdict in (
        (Gap(9, 10, 110), "better"),
        # Nothing there is as fast, or as small.
        (Gap(9, 10, 111), "contradiction"),
        (Gap(10, 20, 100), "contradiction"),
    ):
        curve = replace(curve, gaps=(gap,))
        proof = proven(replace(found, curves=(curve,)), 2)
        assert (proof.verdict, proof.detail) == (verdict, why)


def claim(**fields: object) -> SolveResult:
    return SolveResult(
        **{
            "solver": "cpsat",
            "exact": True,
            "outcome": Outcome.SOLVED,
            "status": Status.NO_SOLUTION,
            "problem_hash": "",
            "quantum_ps": 1000,
            "detail": "gave up",
            **fields,
        }
    )


@pytest.mark.parametrize(
    ("result", "verdict", "detail"),
    [
        (
            claim(status=Status.INFEASIBLE),
            "contradiction",
            "with 20 bytes there is no plan, but one takes 90; with 19 bytes "
            "there is no plan, but one takes 110",
        ),
        (
            claim(lower_bound_quanta=91),
            "contradiction",
            "with 20 bytes there is none below 91 quanta, but one takes 90",
        ),
        (
            claim(outcome=Outcome.ERROR, detail="it broke"),
            "contradiction",
            "with 20 bytes the solver failed: it broke; with 19 bytes the "
            "solver failed: it broke",
        ),
        (
            claim(lower_bound_quanta=90),
            "open",
            "with 19 bytes not settled (gave up, at least 90 quanta)",
        ),
        (
            claim(outcome=Outcome.SKIPPED, status=None, detail="cannot"),
            "open",
            "with 20 bytes not settled (cannot); with 19 bytes not settled (cannot)",
        ),
        # Within a precision of 2 %, a quantum, both are shown.
        (claim(lower_bound_quanta=90, precision=0.02), "proven", ""),
        (
            claim(lower_bound_quanta=88, precision=0.02),
            "open",
            "with 20 bytes not settled (gave up, at least 88 quanta); with "
            "19 bytes not settled (gave up, at least 88 quanta)",
        ),
    ],
)
def test_answers_are_weighed(result, verdict, detail):
    found = frontier(small())
    with mock.patch("nest.analysis.prove.run_solver", return_value=result):
        proof = prove(found, found.points[2], "cpsat")
    assert (proof.verdict, proof.detail) == (verdict, detail)


def test_the_options_reach_the_solver_and_it_starts_from_the_plan():
    found = frontier(small())
    asked = []

    def run(problem, name, options, on_progress):
        asked.append((problem, options))
        return claim()

    with mock.patch("nest.analysis.prove.run_solver", run):
        prove(found, found.points[2], "cpsat", SolveOptions(seed=5))
    (first, options), (second, less) = asked
    assert first.cluster.device.memory_bytes == 20
    assert second.cluster.device.memory_bytes == 19
    assert options.seed == less.seed == 5
    assert options.warm_start.stages == found.points[2].plan.stages
    assert less.warm_start.stages == found.points[1].plan.stages


def test_provers_are_exact():
    check_prover("cpsat")
    with pytest.raises(
        InvalidOptionError,
        match=r"^--prove: expected an exact solver \(.*cpsat.*\), got 'alpa', "
        r"which proves nothing; choose one of them$",
    ):
        check_prover("alpa")


# Documents and plots


def test_the_document_has_every_point_with_plan_and_score():
    found = frontier(small(), ("time", "memory", "devices"), price_usd_per_hour=PRICE)
    document = json.loads(json.dumps(to_document(found, steps=1000)))
    assert document["schema"] == "nest-pareto/1"
    assert document["proven"] is True
    assert document["unsearched"] == []
    assert [p["number"] for p in document["points"]] == [1, 2, 3, 4, 5]
    last = document["points"][-1]
    assert last["step_time_ns"] == last["step_time_quanta"] == 90
    assert last["memory_bytes"] == 20
    assert last["usd_per_step"] == pytest.approx(0.18)
    assert last["usd_per_run"] == pytest.approx(180)
    assert last["score"]["step_time_ns"] == 90
    assert last["plan"]["problem_hash"] == last["problem_hash"]
    assert document["points"][0]["problem_hash"] == problem_hash(
        with_devices(small(), 1)
    )
    assert [len(c["points"]) for c in document["curves"]] == [2, 3]
    gaps = to_document(gapped(Gap(8, 9, 100)))["curves"][0]["gaps"]
    assert gaps == [{"above_bytes": 8, "up_to_bytes": 9, "lower_bound_ns": 100}]


@pytest.mark.parametrize("suffix", ["svg", "png", "pdf"])
def test_plots_are_written(tmp_path, suffix):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"plot.{suffix}"
    check_plot(str(path))
    found = frontier(small(), ("time", "memory", "devices"))
    write_plot(str(path), found)
    first = path.read_bytes()
    starts = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}
    assert first.startswith(starts[suffix])
    write_plot(str(path), found)
    assert path.read_bytes() == first


def test_a_plot_says_what_it_shows(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "plot.svg"
    write_plot(str(path), frontier(small(), ("time", "memory", "devices")))
    text = path.read_text()
    for word in (
        "problem: frontier of time, memory, devices",
        "memory of the fullest device (GiB)",
        "step time (ns)",
        ">1 device<",
        ">2 devices<",
    ):
        assert word in text
    assert "not proven" not in text
    write_plot(str(path), gapped(Gap(8, 9, 100)))
    assert "dashed: not proven" in path.read_text()
    nothing = frontier(with_device(small(), memory_bytes=7))
    write_plot(str(path), nothing)
    assert "2 devices (no plan)" in path.read_text()


def test_lines_are_dashed_where_they_are_not_proven():
    """Between 8 and 9 bytes plans of 100 ns are possible.

    They would stay the best of what follows up to 20 bytes.
    """
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    from nest.present.frontier import draw

    axes = Figure().add_subplot()
    draw(axes, gapped(Gap(8, 9, 100)))
    pieces = {
        tuple(round(x * 2**30) for x in line.get_xdata()): line.get_linestyle()
        for line in axes.get_lines()
        if len(line.get_xdata()) == 2 and len(set(line.get_xdata())) == 2
    }
    assert pieces == {(8, 9): "--", (9, 10): "--", (10, 20): "--", (20, 100): "-"}


@pytest.mark.parametrize(("slow", "kind"), [(3, "linear"), (40, "log")])
def test_wide_plots_are_logarithmic(slow, kind):
    """30 ns with 10 bytes, or 4 or 41 times as long with 4 bytes."""
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    from nest.present.frontier import draw

    cost = make_cost(
        10,
        20,
        activations=(
            Activations(kept_bytes=10),
            Activations(recompute="selective", kept_bytes=4, extra_ns=30 * slow),
        ),
    )
    problem = make_problem({"a": cost}, devices=1, recompute=("none", "selective"))
    found = frontier(problem)
    assert vectors(found) == [(30, 10, 1), (30 + 30 * slow, 4, 1)]
    axes = Figure().add_subplot()
    draw(axes, found)
    assert axes.get_yscale() == kind


def test_plots_need_a_known_suffix_and_matplotlib():
    for path, got in (("a.gif", ".gif"), ("a", "no suffix")):
        with pytest.raises(
            InvalidOptionError,
            match=rf"^--plot {path}: expected a file name that ends in "
            rf"\.svg, \.png, \.pdf, got {got}; rename it$",
        ):
            check_plot(path)
    with (
        mock.patch.dict("sys.modules", {"matplotlib": None}),
        pytest.raises(
            NestError,
            match=r"^--plot: expected matplotlib to be installed, got no such "
            r"package; install it with: pip install 'nest-planner\[plot\]'$",
        ),
    ):
        check_plot("a.svg")


def test_the_knee_bulges_most():
    """Two devices: 120 ns with 8 bytes, 110 with 10, 90 with 20.

    Scaled times 1, 2/3, 0 and sizes 0, 1/6, 1: 1 - 5/6 for the second.
    """
    found = frontier(small())
    assert bulges(found) == [0, Fraction(1, 6), 0]
    assert knees(found, 1) == [1]
    assert knees(found, 2) == [0, 1]
    assert knees(found, 9) == [0, 1, 2]
    document = to_document(found)
    assert document["knee"] == 2
    assert [point["bulge"] for point in document["points"]] == [0, 1 / 6, 0]


def test_bulges_of_more_objectives_than_vary():
    """The number of devices is the same for all, and so is nothing."""
    found = replace(frontier(small()), objectives=("time", "memory", "devices"))
    assert bulges(found) == [0, Fraction(1, 6), 0]
    alone = replace(found, points=found.points[:1])
    assert bulges(alone) == [0]
    assert to_document(alone)["knee"] is None
    assert bulges(replace(found, points=())) == []


def test_a_third_objective_moves_the_plane():
    """One device adds 120 ns, 20 bytes and 160 ns, 8 bytes.

    Of time 90 to 160 ns, memory 8 to 20 bytes and 1 to 2 devices: the first
    is 30/70 slow, as large as any and on one device, 1 - 3/7 - 1 - 0.
    """
    found = frontier(small(), ("time", "memory", "devices"), devices=(1, 2))
    assert [(p.devices, p.step_quanta, p.memory_bytes) for p in found.points][:2] == [
        (1, 160, 8),
        (1, 120, 20),
    ]
    assert bulges(found)[:2] == [0, Fraction(-3, 7)]
    assert knees(found, 1) == [0]


def test_a_frontier_without_a_knee_says_so():
    """The first two are behind the plane of three objectives, or on it."""
    found = frontier(small(), ("time", "memory", "devices"), devices=(1, 2))
    flat = replace(found, points=found.points[:2])
    assert max(bulges(flat)) == 0
    facts = page_frontier(flat, None)
    assert facts["knee"] is None
    assert facts["lines"][-1].startswith("no knee: ")
    assert to_document(flat)["knee"] is None
    assert text_of(flat, top=2).count("no knee: ") == 1
    assert "no knee" not in text_of(flat, top=None)
    assert "knee" in text_of(frontier(small()), top=1)


def text_of(found, top):
    file = io.StringIO()
    show(file, *frontier_block(found, [], None, None, [], top))
    return file.getvalue()


def test_points_that_say_most_are_not_neighbours():
    """Bytes 0 to 100, ns 100 to 0, each a hundredth of its range.

    B bulges most, 1 - 10/100 - 40/100, and C beside it nearly as much. From B to E the
    chord leads by (90, -40): D is 40 · -40 + 20 · 90 = 200 below it, C 2 · -40 + 1 · 90
    = 10. Then no point is below a chord, and C is the next by its bulge.
    """
    found = frontier(small())
    vectors_of = {
        "A": (0, 100),
        "B": (10, 40),
        "C": (12, 39),
        "D": (50, 20),
        "E": (100, 0),
    }
    points = tuple(
        replace(found.points[0], memory_bytes=m, step_quanta=t)
        for m, t in vectors_of.values()
    )
    made = replace(found, points=points)
    assert bulges(made) == [Fraction(n, 100) for n in (0, 50, 49, 30, 0)]
    chosen = ["".join("ABCDE"[i] for i in knees(made, count)) for count in range(7)]
    assert chosen == ["", "B", "BD", "BCD", "ABCD", "ABCDE", "ABCDE"]
    # The ends come with them: a user decides between them and the knee.
    assert [
        "".join("ABCDE"[i] for i in points_to_show(made, count))
        for count in (1, 2, 3, None)
    ] == ["ABE", "ABDE", "ABCDE", "ABCDE"]
    # B is 40/39 as slow as C and needs less; nothing is that close to D.
    for within, shown in (("1/39", "ABDE"), ("1/40", "ABCDE")):
        positions = points_to_show(made, None, Fraction(within))
        assert "".join("ABCDE"[i] for i in positions) == shown
    # A point above every chord is none of them.
    hump = replace(made, points=(points[0], points[4]))
    assert knees(hump, 1) == [0]
    above = replace(points[0], memory_bytes=90, step_quanta=90)
    hump = replace(made, points=(points[0], above, points[4]))
    assert knees(hump, 2) == [0, 2]
