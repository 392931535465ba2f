"""Simulated steps: events, what blocks do with their time, and traces."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from nest.cost.schedules import SCHEDULES, Pass, Times
from nest.cost.schedules.one_f_one_b import OneFOneB
from nest.cost.schedules.timeline import run
from nest.cost.score import score
from nest.errors import InvalidProblemError, UnsupportedProblemError
from nest.ir.plan import Plan, Stage
from nest.simulation.events import Event, Simulation
from nest.simulation.trace import trace
from tests.builders import (
    SINGLE,
    make_cost,
    make_levels,
    make_plan,
    make_problem,
    two_stages,
)

PLAN = make_plan(("a", SINGLE), ("b", SINGLE))


def test_events_worked_by_hand():
    """F = 10, 30 + 15 and G = 20 + 15, 40; M = 2.

    Stage 1 runs F0 0-10 and F1 10-20. Stage 2 receives 10-25, F0 25-55, B0
    55-95, receives 95-110, F1 110-140, B1 140-180. Stage 1 receives 95-110,
    B0 110-130, waits, receives 180-195, B1 195-215.
    """
    simulation = Simulation(two_stages(), PLAN)
    assert list(simulation.events(0)) == [
        Event("forward", 0, 10, 0, 0),
        Event("forward", 10, 10, 0, 1),
        Event("receive-backward", 95, 15, 0, 0),
        Event("backward", 110, 20, 0, 0),
        Event("receive-backward", 180, 15, 0, 1),
        Event("backward", 195, 20, 0, 1),
    ]
    assert list(simulation.events(1)) == [
        Event("receive-forward", 10, 15, 1, 0),
        Event("forward", 25, 30, 1, 0),
        Event("backward", 55, 40, 1, 0),
        Event("receive-forward", 95, 15, 1, 1),
        Event("forward", 110, 30, 1, 1),
        Event("backward", 140, 40, 1, 1),
    ]
    assert simulation.step == 215
    # Σ τ + (M-1) max τ = 45 + 85 + 85: stage 2 is never waited for.
    assert simulation.score.step_quanta == 215


def test_uses_say_where_the_step_goes():
    """Stage 1 works 2 · 45 of 215, stage 2 2 · 85; neither syncs."""
    first, second = Simulation(two_stages(), PLAN).uses()
    assert (first.forward, first.backward, first.receive) == (20, 40, 30)
    assert (first.busy, first.idle) == (90, 125)
    assert first.bubble_share == pytest.approx(125 / 215)
    assert (second.busy, second.idle, second.end) == (170, 45, 180)


def test_a_block_syncs_when_its_own_passes_have_ended():
    """Update: gradients 1 b, weights 2 b, state 12 b at 1 byte/ns.

    Stage 1 has W = 1, G = 1, S = 6: 1 + 2 + 12 = 15 ns, stage 2 twice as
    much; it ends at 180 + 30, stage 1 at 215 + 15. The formula has the
    longer update behind the last pass: 215 + 30.
    """
    problem = two_stages(hbm=1e9)
    simulation = Simulation(problem, PLAN)
    assert simulation.step == 230
    assert simulation.score.step_quanta == 245
    assert list(simulation.events(0))[-1] == Event("sync", 215, 15)
    assert list(simulation.events(1))[-1] == Event("sync", 180, 30)
    first, second = simulation.uses()
    assert (first.passes_end, first.end) == (215, 230)
    assert (second.passes_end, second.end, second.sync) == (180, 210, 30)


class Split(OneFOneB):
    """1F1B whose backward passes are split: inputs, then at once weights."""

    name = "split"

    def passes(self, block, num_blocks, num_micro_batches):
        for one in super().passes(block, num_blocks, num_micro_batches):
            if one.backward:
                yield one._replace(gradients="inputs")
                yield one._replace(gradients="weights")
            else:
                yield one


def test_gradients_of_weights_are_events_of_their_own(monkeypatch):
    """Half of G for each; only gradients of inputs wait for a receive.

    Stage 2: F0 25-55, inputs 55-75 and weights 75-95. Stage 1 receives
    75-90, inputs 90-100 and weights 100-110.
    """
    monkeypatch.setitem(SCHEDULES, "1f1b", Split())
    simulation = Simulation(two_stages(), PLAN)
    assert list(simulation.events(0))[2:5] == [
        Event("receive-backward", 75, 15, 0, 0),
        Event("input-gradient", 90, 10, 0, 0),
        Event("weight-gradient", 100, 10, 0, 0),
    ]
    first, _ = simulation.uses()
    assert (first.backward, first.weight_backward) == (20, 20)
    assert first.busy == sum(x.duration for x in simulation.events(0))


def test_chunks_of_an_interleaved_plan_share_their_block():
    costs = {name: make_cost(10, 20) for name in "abcd"}
    problem = make_problem(
        costs,
        edges=(("a", "b", 0), ("b", "c", 0), ("c", "d", 0)),
        global_batch=2,
        virtual_stages=(2,),
    )
    stages = tuple(Stage(layers=(name,), devices=1, strategy=SINGLE) for name in "abcd")
    plan = Plan(replicas=1, micro_batch=1, stages=stages, virtual_stages=2)
    simulation = Simulation(problem, plan)
    # M τ_b + (S-1) τ_b / v = 2 · 60 + 30
    assert simulation.step == simulation.score.step_quanta == 150
    first, second = simulation.uses()
    assert (first.stages, second.stages) == ((1, 3), (2, 4))
    assert (first.busy, first.idle) == (120, 30)
    assert {event.chunk for event in simulation.events(0)} == {0, 2}


def test_the_trace_has_a_row_per_block():
    """2 replicas of 2 stages; times in µs."""
    problem = two_stages(global_batch=4)
    simulation = Simulation(problem, replace(PLAN, replicas=2))
    document = trace(simulation)
    events = document["traceEvents"]
    names = {
        event["tid"]: event["args"]["name"]
        for event in events
        if event["name"] == "thread_name"
    }
    assert names == {
        0: "block 1: stage 1, devices 0–0",
        1: "block 2: stage 2, devices 1–1",
    }
    assert events[0]["args"] == {"name": "replica 1 of 2"}
    complete = [event for event in events if event["ph"] == "X"]
    # 8 passes, 2 receives each way, and both blocks sync over the replicas.
    assert len(complete) == 14
    assert complete[2] == {
        "name": "receive B 0",
        "cat": "receive-backward",
        "ph": "X",
        "pid": 0,
        "tid": 0,
        "ts": 0.095,
        "dur": 0.015,
        "args": {"micro_batch": 0, "chunk": 0},
    }
    # All-reduces of 1 and 2 bytes: 2 · 10 ns and as many bytes.
    assert [(e["ts"], e["dur"]) for e in complete if e["cat"] == "sync"] == [
        (0.215, 0.021),
        (0.18, 0.022),
    ]
    assert document["otherData"]["simulated_step_time_ns"] == 236
    assert document["otherData"]["num_micro_batches"] == 2


def test_whole_microseconds_are_integers():
    costs = {"a": make_cost(3000, 4500)}
    document = trace(Simulation(make_problem(costs), make_plan(("a", SINGLE))))
    times = [(e["ts"], e["dur"]) for e in document["traceEvents"][3:]]
    assert times == [(0, 3), (3, 4.5)]
    assert [type(x) for x in times[0]] == [int, int]


def test_a_step_of_too_many_passes_is_not_run():
    """Two stages of two passes per micro-batch, up to 2**21 in all."""
    most = chain_of_two(2**19)
    assert score(most, PLAN).num_passes == 2**21
    more = chain_of_two(2**19 + 1)
    found = score(more, PLAN)
    assert found.step_quanta > 0
    assert found.simulated_quanta is None
    assert found.to_json()["simulated_step_time_ns"] is None
    with pytest.raises(
        UnsupportedProblemError,
        match="plan: expected a step of at most 2,097,152 passes to run one "
        r"by one, got 2,097,156; simulate a smaller \$.job.global_batch",
    ):
        Simulation(more, PLAN)


def test_traces_have_fewer_passes():
    more = Simulation(chain_of_two(2**15 + 1), PLAN)
    with pytest.raises(
        UnsupportedProblemError, match="at most 131,072 passes to run one by"
    ):
        trace(more)


def test_a_step_timed_pass_by_pass_has_no_more_passes_either():
    with pytest.raises(
        InvalidProblemError,
        match=r"\$.job.global_batch: expected steps of at most 2,097,152 "
        "passes where they are timed one by one, as under schedule 'zb-h1', "
        "got 2,097,156; lower it, raise micro_batches, or choose another",
    ):
        score(chain_of_two(2**19 + 1, schedule="zb-h1"), PLAN)


def chain_of_two(global_batch, **job):
    return make_problem(
        {"a": make_cost(10, 20), "b": make_cost(30, 40)},
        edges=(("a", "b", 5),),
        topology=make_levels((4, 0.0, 1e9)),
        global_batch=global_batch,
        **job,
    )


def test_a_steady_state_has_no_passes():
    problem = chain_of_two(2, preset="piper", replicas=(1,))
    found = score(problem, PLAN)
    assert found.simulated_quanta is None
    assert found.to_json()["simulated_step_time_ns"] is None
    with pytest.raises(
        UnsupportedProblemError,
        match=re.escape(
            "$.preset: expected one that prices a whole step, got 'piper', "
            "whose step time is that of a steady state; use 'nest score'"
        ),
    ):
        Simulation(problem, PLAN)


def test_passes_that_wait_for_each_other_are_refused():
    class Reversed(OneFOneB):
        def passes(self, block, num_blocks, num_micro_batches):
            found = super().passes(block, num_blocks, num_micro_batches)
            return iter(list(found)[::-1])

    with pytest.raises(
        ValueError,
        match="schedule '1f1b': expected passes that can all run, got some "
        "that wait for each other",
    ):
        run(Reversed(), [Times(1, 1)] * 2, 2)


def test_timelines_say_when_each_pass_ends():
    timeline = run(OneFOneB(), [Times(1, 2), Times(3, 4)], 2)
    assert list(timeline.passes(1)) == [
        (Pass(1, 0, False), 4),
        (Pass(1, 0, True), 8),
        (Pass(1, 1, False), 11),
        (Pass(1, 1, True), 15),
    ]
    assert timeline.ends == ([1, 2, 10, 17], [4, 8, 11, 15])
    assert timeline.block_ends == [17, 15]
