"""Interleaved plans of the dynamic program.

Messages cost nothing on :data:`FREE`; layers take 10 + 20 ns unless a test
says otherwise.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nest.cost.model import CostModel
from nest.cost.schedules import schedule_of
from nest.cost.score import score
from nest.cost.space import make_split
from nest.ir import Activations, Strategy
from nest.search.passes import chunks, interleaved, interleaved_exact
from nest.search.passes.interleaved import OPEN, interleave
from nest.search.solver import DpSolver
from nest.search.stages.closed_sets import closed_sets
from nest.search.stages.options import BatchTerms
from nest.search.task import SearchTask
from nest.solvers.base import Deadline, Limit, SolveOptions, SolverOutput, Status
from nest.solvers.registry import get_solver
from nest.solvers.result import Outcome
from nest.solvers.run import run_solver
from tests.builders import (
    FLAT,
    PAIRS,
    SINGLE,
    call,
    make_cost,
    make_levels,
    make_plan,
    make_problem,
    with_job,
)
from tests.properties.profiles import examples
from tests.strategies import pick, problems

FREE = make_levels((4, 0.0, 1e18))


@pytest.fixture(autouse=True)
def only_tried(monkeypatch):
    """Nothing is enumerated: what is found is what was tried.

    Nor are bounds raised by chains of passes.
    """
    monkeypatch.setattr(interleaved_exact, "MAX_MAGNITUDE", -math.inf)
    monkeypatch.setattr(interleaved, "RAISE", False)


def chain(costs, edge=0, skips=(), **fields):
    """Build a chain of layers ``l0``, ``l1``, … with these costs."""
    names = [f"l{i}" for i in range(len(costs))]
    return make_problem(
        dict(zip(names, costs, strict=True)),
        edge=edge,
        edges=tuple((names[i], names[j], size) for i, j, size in skips),
        **{
            "devices": 2,
            "global_batch": 4,
            "replicas": (1,),
            "virtual_stages": (1, 2),
            "topology": FREE,
            **fields,
        },
    )


def equal(count, cost=None, **fields):
    return chain([cost or make_cost(10, 20)] * count, **fields)


def solve(problem, **options):
    return DpSolver().solve(problem, SolveOptions(**options))


def task_of(problem, deadline=None):
    return SearchTask(
        CostModel(problem), closed_sets(problem.graph), deadline or Deadline(None)
    )


def plain(problem):
    return with_job(problem, virtual_stages=(1,))


# What it finds


@pytest.mark.parametrize(
    ("allowed", "step", "virtual"),
    [
        # two blocks of 4 · 30: 4 · 120 + 120 / v
        ((1,), 600, 1),
        ((1, 2), 540, 2),
        ((1, 4), 510, 4),
        ((1, 2, 4), 510, 4),
        # chunks of 2, 2, 1, 1, 1 and 1 layers
        ((1, 3), 520, 3),
        # more chunks than layers
        ((1, 5), 600, 1),
    ],
)
def test_chunks_divide_the_bubble(allowed, step, virtual):
    problem = equal(8, virtual_stages=allowed)
    output = solve(problem)
    assert output.claimed_quanta == step
    assert output.plan.virtual_stages == virtual
    assert score(problem, output.plan).step_quanta == step
    if virtual == 1:
        assert output.status is Status.OPTIMAL
    else:
        assert output.status is Status.FEASIBLE
        # what a block computes, without waiting for others
        assert output.lower_bound_quanta == 480
        assert output.detail == OPEN
        assert len(output.plan.stages) == 2 * virtual


def test_what_counts_is_the_critical_path():
    """Loads 40, 10, 10, 40, 10, 10, 40, 40: balanced, but only by block.

    Chunks of one layer give 40 + 10 + 10 + 40 = 100 to either block, and
    even chunks of 25 would take 4 · 100 + 100 / 4. These wait for each
    other: no cut is faster than two plain stages, 4 · 100 + 100.
    """
    loads = [40, 10, 10, 40, 10, 10, 40, 40]
    problem = chain([make_cost(0, x) for x in loads], virtual_stages=(1, 4))
    names = [(layer.id, SINGLE) for layer in problem.graph.layers]
    apart = replace(make_plan(*names), virtual_stages=4)
    assert score(problem, apart).step_quanta > 500
    assert solve(problem).claimed_quanta == 500


@pytest.mark.parametrize("max_moves", [chunks.MAX_MOVES, 0])
@pytest.mark.parametrize(
    ("loads", "sizes"),
    [
        # 10 + 30 and 30 + 10; in proportion to the load, and with chunks of
        # 30 at most, block 0 has 20 + 30
        ((10, 10, 20, 30, 10), [1, 2, 1, 1]),
        # 10 + 30 and 30 + 10, from 10 + 10 and 30 + 30
        ((10, 30, 10, 20, 10), [1, 1, 2, 1]),
        # 20 + 20 and 30 + 10, from 20 + 10 and 20 + 30
        ((20, 20, 10, 20, 10), [1, 2, 1, 1]),
    ],
)
def test_cuts_move_where_that_is_faster(monkeypatch, loads, sizes, max_moves):
    """Two blocks of 40: 4 · 40 + 40 / 2; without interleaving 40 more."""
    monkeypatch.setattr(chunks, "MAX_MOVES", max_moves)
    output = solve(chain([make_cost(load / 2, load / 2) for load in loads]))
    assert output.claimed_quanta == 180
    assert [len(stage.layers) for stage in output.plan.stages] == sizes


def test_communication_is_paid_per_chunk():
    """Receives of 10 + 5 ns at every cut, in both directions.

    v = 1: 4 · (120 + 15) + 135 = 675. v = 2 has three cuts and so 240 + 90
    on two blocks: at least 4 · 165 + 165 / 2, which is more.
    """
    problem = equal(8, edge=5, topology=make_levels((2, *FLAT)))
    output = solve(problem)
    assert output.claimed_quanta == 675
    assert output.plan.virtual_stages == 1
    assert output.lower_bound_quanta == 480


def test_more_blocks_than_micro_batches_cannot_interleave():
    """M = 1 with two devices; one block is no pipeline."""
    problem = equal(8, global_batch=1)
    assert solve(problem) == SolverOutput(
        status=Status.OPTIMAL,
        plan=solve(plain(problem)).plan,
        claimed_quanta=240,
        lower_bound_quanta=240,
    )


# Memory


def test_memory_limits_the_passes_in_flight():
    """Four layers that keep 10 bytes each on two devices.

    v = 1 keeps 2 · 20 on the first; v = 2 keeps 3 · 10 + 2 · 10.
    """
    cost = make_cost(10, 20, kept_bytes=10)
    fits = solve(equal(4, cost, memory_bytes=50))
    assert (fits.claimed_quanta, fits.plan.virtual_stages) == (270, 2)
    tight = solve(equal(4, cost, memory_bytes=49))
    assert (tight.claimed_quanta, tight.plan.virtual_stages) == (300, 1)


def test_recomputation_makes_room_for_more_passes():
    """Half the bytes for 1 ns a layer: 4 · 62 + 62 / 2 = 279 < 300."""
    cost = make_cost(
        10,
        20,
        activations=(
            Activations(kept_bytes=10),
            Activations(recompute="selective", kept_bytes=5, extra_ns=1),
        ),
    )
    fields = {"recompute": ("none", "selective"), "memory_bytes": 49}
    output = solve(equal(4, cost, **fields))
    assert output.claimed_quanta == 279
    assert output.plan.virtual_stages == 2
    assert {s.strategy.recompute for s in output.plan.stages} == {"selective"}


def test_one_chunk_may_keep_less_than_another():
    """Six layers of 30 ns; 80 bytes of weights and state, 7 kept.

    Three layers on either block. The first one has chunks of one and two layers: with 3
    and 2 passes in flight, or 4 and 1, they keep 3 + 2 · 2 times 7 bytes, the other way
    round 4 · 2 + 1 times. Block 1 with chunks of two and one takes 4 · 90, 10 ns before
    its first pass and 20 behind its last at least, and as the passes run 10 more. Plain
    stages of three keep 2 · 3 times 7 bytes: 4 · 90 + 90.
    """
    cost = make_cost(10, 20, weight_bytes=10, kept_bytes=7)
    needed = 3 * 80 + 7 * (3 + 2 * 2)
    output = solve(equal(6, cost, memory_bytes=needed))
    assert output.claimed_quanta == 400
    assert [len(s.layers) for s in output.plan.stages][::2] == [1, 2]
    tight = solve(equal(6, cost, memory_bytes=needed - 1))
    assert (tight.claimed_quanta, tight.plan.virtual_stages) == (450, 1)


@pytest.mark.parametrize(("memory_bytes", "step"), [(160, 270), (100, 270), (79, None)])
def test_cuts_move_until_the_plan_fits(memory_bytes, step):
    """Four layers of 30 ns; the last one has 80 bytes, so has one before it.

    That one takes no time. Without room for both it leaves the last chunk;
    plain stages would take 90 and 30: 4 · 90 + 30.
    """
    time, both = make_cost(10, 20), make_cost(10, 20, weight_bytes=10)
    costs = [time, time, time, make_cost(weight_bytes=10), both]
    problem = chain(costs, memory_bytes=memory_bytes)
    assert solve(problem).claimed_quanta == step
    if memory_bytes == 100:
        assert solve(plain(problem)).claimed_quanta == 390


# Prices


@st.composite
def ways_to_cut(draw):
    """A chain of layers of all sorts, blocks, and a way to cut it."""
    blocks, virtual = draw(st.integers(2, 3)), draw(st.integers(2, 3))
    width, replicas = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    numbers = st.integers(0, 50)
    costs = [
        make_cost(
            draw(numbers),
            draw(numbers),
            tp=width,
            weight_bytes=draw(numbers),
            kept_bytes=draw(numbers),
            working_bytes=draw(numbers),
            collectives=(call("all-reduce", "tp", "forward", 10 + draw(numbers)),),
        )
        for _ in range(blocks * virtual + draw(st.integers(0, 4)))
    ]
    micro_batches = blocks * draw(st.integers(1, 7))
    last = len(costs) - 1
    problem = chain(
        costs,
        edge=draw(numbers),
        skips=pick(draw, ((), ((0, last, 30),), ((0, 2, 7), (0, last, 3), (1, 3, 90)))),
        devices=blocks * width * replicas,
        topology=make_levels((2, 1.0, 1e9), (3, 5.0, 5e8), (2, 20.0, 1e8)),
        hbm=1e9,
        replicas=(replicas,),
        sequence_parallel=draw(st.booleans()),
        global_batch=micro_batches * replicas,
        virtual_stages=(1, 2, 3),
        memory_bytes=draw(st.one_of(st.integers(1, 1_000), st.integers(1, 10_000))),
    )
    inner = draw(
        st.sets(
            st.integers(1, len(costs) - 1),
            min_size=blocks * virtual - 1,
            max_size=blocks * virtual - 1,
        )
    )
    terms = BatchTerms(chunks.prefix_shapes(CostModel(problem)), 1)
    uniform = chunks.Uniform(
        terms,
        terms.strategies.index(Strategy(tp=width)),
        make_split(problem, replicas, 1),
    )
    return uniform, chunks.Shape(blocks, virtual), [0, *sorted(inner), len(costs)]


@examples(100)
@given(ways_to_cut())
def test_prices_are_those_of_the_score(way):
    uniform, shape, cuts = way
    problem = uniform.terms.model.problem
    found = chunks.Chunks(uniform, shape)
    prices = found.price(np.array([cuts]))
    verdict = score(problem, found.plan(cuts))
    (step,) = found.step_times(prices).tolist()
    # The bubble of further groups may still grow.
    groups = uniform.case.num_micro_batches // shape.blocks
    near = verdict.step_quanta // 20 if groups > chunks.MAX_GROUPS else 0
    assert abs(step - verdict.step_quanta) <= near
    stages = verdict.stages
    assert prices.forward[0].tolist() == [s.forward for s in stages]
    assert prices.backward[0].tolist() == [s.backward for s in stages]
    assert prices.load[0].tolist() == [b.load for b in verdict.blocks]
    assert prices.sync[0].tolist() == [b.sync for b in verdict.blocks]
    capacity = problem.cluster.device.memory_bytes
    excess = [max(0, b.memory_bytes - capacity) for b in verdict.blocks]
    assert [x > 0 for x in prices.excess[0]] == [x > 0 for x in excess]
    # sizes of layers that do not fit alone are not exact
    if all(b.memory_bytes <= capacity for b in verdict.stages):
        assert prices.excess[0].tolist() == excess


def test_even_chunks_take_the_step_time_that_orders_ways():
    """Two blocks of two layers: 4 · 60 + 60 / 2, and the update of a block.

    A layer's 10 bytes of weights, as many of gradients and 60 of state take
    10 + 2 · 10 + 2 · 60 ns.
    """
    problem = equal(4, make_cost(10, 20, weight_bytes=10), devices=2, hbm=1e9)
    shapes = chunks.prefix_shapes(CostModel(problem))
    uniform = chunks.Uniform(BatchTerms(shapes, 1), 0, make_split(problem, 1, 1))
    found = chunks.Chunks(uniform, chunks.Shape(2, 2))
    prices = found.price(np.arange(5)[None])
    assert prices.step.tolist() == [4 * 60 + 60 // 2 + 2 * 150]
    assert found.step_times(prices) == prices.step


def test_a_later_chunk_may_hold_the_most_of_a_block():
    """Only the third layer keeps anything, as the first block's second chunk.

    Two of its passes are in flight before the first backward pass.
    """
    costs = [make_cost(10, 20, kept_bytes=100 * (i == 2)) for i in range(4)]
    problem = chain(costs, memory_bytes=150)
    shapes = chunks.prefix_shapes(CostModel(problem))
    uniform = chunks.Uniform(BatchTerms(shapes, 1), 0, make_split(problem, 1, 1))
    found = chunks.Chunks(uniform, chunks.Shape(2, 2))
    assert found.price(np.arange(5)[None]).excess.tolist() == [[50, 0]]
    verdict = score(problem, found.plan([0, 1, 2, 3, 4]))
    assert [b.memory_bytes for b in verdict.blocks] == [200, 0]


@examples(100)
@given(ways_to_cut())
def test_a_plan_that_fits_is_considered_and_no_faster_than_its_bounds(way):
    uniform, shape, cuts = way
    plan = chunks.Chunks(uniform, shape).plan(cuts)
    verdict = score(uniform.terms.model.problem, plan)
    if not verdict.feasible:
        return
    (bound,) = (
        item.bound
        for item in interleaved.uniform_choices(uniform.terms.shapes)
        if item.number == uniform.number
    )
    (refined,) = (
        item.bound for item in interleaved.shapes(uniform) if item.shape == shape
    )
    assert bound <= verdict.step_quanta
    assert refined <= verdict.step_quanta


def test_bounds_of_equal_layers():
    """Two blocks of 120: 480, and 120 / v more as even chunks.

    The first estimate takes v = 4.
    """
    shapes = chunks.prefix_shapes(CostModel(equal(8, virtual_stages=(1, 2, 4))))
    (first,) = interleaved.uniform_choices(shapes)
    assert (first.bound, first.estimate, first.shape) == (480, 510, None)
    found = {x.shape: x for x in interleaved.shapes(first.uniform)}
    assert {x.bound for x in found.values()} == {480}
    assert {shape: x.estimate for shape, x in found.items()} == {
        (2, 2): 540,
        (2, 4): 510,
    }


def test_a_way_that_fits_comes_before_a_faster_one():
    """Bytes too many, then step time, then balance of blocks and chunks."""
    load = np.array([[5, 5], [5, 6], [9, 1], [5, 5]])
    zeros = np.zeros((4, 2), dtype=np.int64)
    prices = chunks.Prices(
        excess=np.array([[1, 0], [0, 0], [0, 0], [0, 0]]),
        spare=zeros,
        forward=load,
        backward=zeros,
        load=load,
        sync=zeros,
        busy=load,
        weights=zeros,
        hiding_forward=zeros,
        hiding_backward=zeros,
        step=np.array([1, 9, 8, 8]),
    )
    assert prices.order().tolist() == [3, 2, 1, 0]
    keys = [prices.key(way) for way in range(4)]
    assert sorted(range(4), key=keys.__getitem__) == [3, 2, 1, 0]


@pytest.mark.parametrize(
    ("name", "virtual"),
    [
        *(("1f1b", virtual) for virtual in (2, 3, 4)),
        *(("zb-h1", 1), ("zb-v", 2), ("dualpipe-v", 2)),
    ],
)
@pytest.mark.parametrize("blocks", [2, 3, 4])
@pytest.mark.parametrize("groups", [1, 2, 3, 4, 9])
def test_passes_in_flight_are_those_of_the_schedule(name, blocks, virtual, groups):
    """Of many micro-batches the first three groups say it all."""
    rng = np.random.default_rng(groups)
    schedule = schedule_of(name, virtual)
    if schedule.why_not(blocks, groups * blocks) is not None:
        assert (name, groups) == ("dualpipe-v", 1)
        return
    for block in range(blocks):
        counts = chunks.passes_in_flight(schedule, blocks, block, groups * blocks)
        for kept in rng.integers(0, 100, (20, virtual)).tolist():
            peak = schedule.kept(kept, block, blocks, groups * blocks)
            assert (counts @ np.array(kept)).max() == peak.kept_bytes


def test_passes_in_flight_by_hand():
    """Two blocks of two chunks, M = 4: aa cc a|c a|c c|a c|a, bb d|d d|d b.

    Behind a bar the backward pass of the one that ends before the next.
    """
    schedule = schedule_of("1f1b", 2)
    first = chunks.passes_in_flight(schedule, 2, 0, 4)
    assert sorted(first.tolist()) == [[3, 2], [4, 1]]
    second = chunks.passes_in_flight(schedule, 2, 1, 4)
    assert sorted(second.tolist()) == [[2, 1], [3, 0]]


def test_an_uneven_plan_is_not_faster_than_its_passes():
    """Six micro-batches on four blocks are refused, as by Megatron."""
    problem = equal(8, devices=4, global_batch=6, virtual_stages=(1, 2), replicas=(1,))
    output = solve(problem)
    assert output.plan.virtual_stages == 1
    assert output.claimed_quanta == 60 * (6 + 3)


# Against other searches


@examples(25)
@given(problems(preset="standard"))
def test_between_the_plain_optimum_and_brute_force(problem):
    problem = with_job(problem, schedule="1f1b", virtual_stages=(1, 2))

    def step(output):
        if output.plan is None:
            return math.inf
        assert score(problem, output.plan).feasible
        return output.claimed_quanta

    options = SolveOptions(extra={"max_plans": "1000000"})
    found = solve(problem)
    best = step(get_solver("brute")().solve(problem, options))
    assert best <= step(found) <= step(solve(plain(problem)))
    assert found == solve(problem)


@st.composite
def uniform_chains(draw):
    """Equal layers with costs on one device, or on two."""
    wide = draw(st.booleans())
    devices = draw(st.integers(2, 3)) * (2 if wide else 1)
    cost = make_cost(
        10 * draw(st.integers(1, 20)),
        draw(st.integers(1, 300)),
        tp=2 if wide else 1,
        weight_bytes=draw(st.integers(0, 3)),
        kept_bytes=draw(st.integers(0, 5)),
    )
    topologies = (FREE, PAIRS, make_levels((6, *FLAT)))
    return equal(
        draw(st.integers(2, 7)),
        cost,
        edge=draw(st.integers(0, 9)),
        devices=devices,
        topology=make_levels((2, 1.0, 1e9), (3, 3.0, 1e9))
        if devices > 4
        else pick(draw, topologies),
        replicas=pick(draw, (None, (1,))),
        global_batch=draw(st.integers(1, 8)),
        virtual_stages=pick(draw, ((1, 2), (1, 3), (1, 2, 3))),
        memory_bytes=pick(draw, (10**6, 10**6, 100, 60)),
    )


@examples(100)
@given(uniform_chains())
def test_best_where_all_plans_are_uniform(problem):
    wanted = get_solver("brute")().solve(problem, SolveOptions())
    assert solve(problem).claimed_quanta == wanted.claimed_quanta


def test_branches_are_cut_in_topological_order():
    """A diamond of 1 + 2 · 3 + 1 layers; every plan is checked by score."""
    names = ["a", "b0", "b1", "b2", "c0", "c1", "c2", "d"]
    edges = ("a b0", "b0 b1", "b1 b2", "b2 d", "a c0", "c0 c1", "c1 c2")
    pairs = [tuple(edge.split()) for edge in (*edges, "c2 d")]
    problem = make_problem(
        dict.fromkeys(names, make_cost(10, 20)),
        edges=tuple((a, b, 0) for a, b in pairs),
        devices=2,
        global_batch=4,
        replicas=(1,),
        virtual_stages=(1, 2, 4),
        topology=FREE,
    )
    assert solve(problem).claimed_quanta == 510


# What it says


def test_a_problem_without_interleaving_is_left_alone(monkeypatch):
    problem = equal(8, virtual_stages=(1,))
    output = SolverOutput(status=Status.NO_SOLUTION, detail="untouched")
    assert interleave(task_of(problem), output) is output

    monkeypatch.setattr(interleaved, "interleave", None)
    reports = []
    output = DpSolver().solve(problem, SolveOptions(), reports.append)
    assert (output.status, output.claimed_quanta) == (Status.OPTIMAL, 600)
    assert (output.lower_bound_quanta, output.detail) == (600, "")
    assert any(r.lower_bound_quanta is not None for r in reports)


def test_no_bound_is_above_that_of_plain_plans():
    """Interleaved plans take 480 at least, plain ones only 100 so far."""
    problem = equal(8)
    before = SolverOutput(
        status=Status.FEASIBLE,
        plan=solve(plain(problem)).plan,
        claimed_quanta=600,
        lower_bound_quanta=100,
        limit=Limit.TIME,
    )
    output = interleave(task_of(problem), before)
    assert (output.claimed_quanta, output.lower_bound_quanta) == (540, 100)


def test_no_bound_is_reported_where_a_plan_may_be_better():
    reports = []
    DpSolver().solve(equal(8), SolveOptions(), reports.append)
    assert {r.lower_bound_quanta for r in reports} == {None}
    assert [r.claimed_quanta for r in reports if r.plan is not None][-2:] == [600, 540]


@pytest.mark.parametrize(
    ("fields", "step", "status", "bound"),
    [
        ({}, 540, Status.FEASIBLE, 480),
        ({"global_batch": 1}, 240, Status.OPTIMAL, 240),
        ({"memory_bytes": 1}, None, Status.INFEASIBLE, None),
    ],
)
def test_the_answer_claims_no_more_than_was_done(fields, step, status, bound):
    output = solve(equal(8, make_cost(10, 20, kept_bytes=2), **fields))
    assert (output.status, output.claimed_quanta) == (status, step)
    assert output.lower_bound_quanta == bound
    assert output.detail == (OPEN if status is Status.FEASIBLE else "")


def interleaved_plan(problem):
    names = [layer.id for layer in problem.graph.layers]
    plan = make_plan(*((" ".join(names[i : i + 2]), SINGLE) for i in range(0, 8, 2)))
    return replace(plan, virtual_stages=2)


def test_a_warm_start_may_be_interleaved():
    problem = equal(8)
    start = interleaved_plan(problem)
    result = run_solver(problem, "dp", SolveOptions(warm_start=start))
    assert result.outcome is Outcome.SOLVED
    assert (result.status, result.step_quanta) == (Status.OPTIMAL, 540)


def test_an_interleaved_warm_start_stays_where_nothing_is_better():
    """No plain plan beats its 540 quanta."""
    problem = equal(8)
    start = interleaved_plan(problem)
    output = solve(problem, warm_start=start)
    assert (output.plan, output.claimed_quanta) == (start, 540)
    assert output.status is Status.FEASIBLE
    assert output.lower_bound_quanta == 480


# The clock


class Steps(Deadline):
    """A deadline that passes after so many looks at it."""

    def __init__(self, count):
        super().__init__(None)
        self.left = count

    @property
    def passed(self):
        self.left -= 1
        return self.left < 0


def test_it_stops_at_the_deadline():
    problem = equal(8, virtual_stages=(1, 2, 4), devices=4)
    before = solve(plain(problem))
    end = solve(problem)
    assert end.claimed_quanta < before.claimed_quanta
    task = task_of(problem)
    steps = []
    for count in range(100):
        clock = Steps(count)
        output = interleave(dataclasses.replace(task, deadline=clock), before)
        steps.append(output.claimed_quanta)
        if clock.left < 0:
            assert output.status is Status.FEASIBLE
            assert output.limit is Limit.TIME
        else:
            assert output == end
            break
    else:
        pytest.fail("expected an end of the search")
    assert steps[0] == before.claimed_quanta
    assert steps == sorted(steps, reverse=True)
    assert steps[-1] == end.claimed_quanta


def test_no_time_is_no_solution():
    output = solve(equal(8), time_limit_s=0.0)
    assert output.status is Status.NO_SOLUTION
    assert output.limit is Limit.TIME
    assert output.lower_bound_quanta == 0


def test_some_of_the_time_is_left_for_interleaved_plans(monkeypatch):
    limits = []

    def search(task):
        limits.append(task.deadline.limit_s)
        return SolverOutput(
            status=Status.NO_SOLUTION, limit=Limit.TIME, detail="no time"
        )

    monkeypatch.setattr("nest.search.best.search", search)
    output = solve(equal(8), time_limit_s=1000.0)
    assert limits[0] == pytest.approx(600.0, rel=0.01)
    assert output.claimed_quanta == 540
    assert (output.status, output.limit) == (Status.FEASIBLE, Limit.TIME)
    assert output.detail == f"no time; {OPEN}"
    solve(equal(8))
    assert limits[1] is None


@pytest.mark.parametrize(
    ("kinds", "count", "cuts"),
    [
        ("eaaaah", 2, [0, 3, 6]),
        # What comes once goes with what follows it.
        ("eaabaah", 2, [0, 3, 7]),
        ("aabb", 2, None),
        ("abab", 2, [0, 2, 4]),
        ("eaaah", 2, None),
    ],
)
def test_equal_shares(kinds, count, cuts):
    assert chunks.equal_shares(kinds, count) == cuts


def test_a_plan_at_hand_stays_where_time_is_short():
    """Of a schedule under which there are no plans of another kind."""
    problem = make_problem(
        {name: make_cost(10, 20, weight_bytes=2) for name in "ab"},
        devices=2,
        schedule="zb-h1",
        global_batch=4,
    )
    known = DpSolver().solve(problem, SolveOptions()).plan
    options = SolveOptions(time_limit_s=1e-9, warm_start=known)
    output = DpSolver().solve(problem, options)
    assert output.plan == known
    assert output.status is Status.FEASIBLE
