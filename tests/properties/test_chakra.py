"""Chakra traces, replayed by a reader of their bytes, take the simulated step.

Whatever the schedule, the strategies, the graph and the network are.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nest.cost.score import score
from nest.export import chakra
from nest.simulate.events import Simulation
from tests.chakra import COLLECTIVE, RECEIVE, SEND, nodes_of, replay
from tests.independent.generate import draw_pair
from tests.independent.rules import broken_rules
from tests.properties.profiles import examples

SCHEDULES = (
    "1f1b",
    "gpipe",
    "interleaved 1f1b",
    "zb-h1",
    "zb-v",
    "dualpipe-v",
)


def check(problem, plan):
    """Compare a trace with the score; return what it is about."""
    simulation = Simulation(problem, plan)
    files = chakra.export(simulation)
    del files["README"]
    replayed = replay(files)
    step_ps = simulation.step * problem.quantum_ps
    assert replayed.end == step_ps
    assert replay(files, in_us=True).end == step_ps // 10**6
    found = simulation.score
    for number, block in enumerate(found.blocks):
        nodes = nodes_of(files[f"trace.{number}.et"])
        behind = [
            node.attributes["duration_ps"]
            for node in nodes
            if node.attributes["phase"] in ("sync", "update")
        ]
        assert sum(behind) == block.sync * problem.quantum_ps
    return found, [
        node
        for number in range(len(found.blocks))
        for node in nodes_of(files[f"trace.{number}.et"])
    ]


@examples(150)
@given(st.integers(0, 10**6), st.sampled_from(("standard", "nest-artifact")))
def test_replayed_traces_take_the_simulated_step(seed, preset):
    problem, plan = draw_pair(Random(seed), preset)
    if not broken_rules(problem, plan):
        check(problem, plan)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_is_written(schedule):
    """Among random plans of several blocks and micro-batches."""
    random, done, phases = Random(schedule), 0, set()
    while done < 4:
        problem, plan = draw_pair(random, "standard")
        if broken_rules(problem, plan) or plan.num_blocks < 2:
            continue
        found = score(problem, plan)
        if found.schedule.name != schedule or found.num_micro_batches < 2:
            continue
        found, nodes = check(problem, plan)
        phases |= {node.attributes["phase"] for node in nodes}
        assert {SEND, RECEIVE} <= {node.kind for node in nodes}
        done += 1
    split = schedule in ("zb-h1", "zb-v", "dualpipe-v")
    assert ("weight-gradient" in phases) == split
    assert ("pair" in phases) == (schedule == "dualpipe-v")


def test_layouts_that_meet_on_a_block_are_a_collective():
    """The last block of a V changes the layout between its own chunks."""
    random, done = Random(1), 0
    while done < 1:
        problem, plan = draw_pair(random, "standard")
        if plan.placement != "v" or broken_rules(problem, plan):
            continue
        found = score(problem, plan)
        last = plan.num_blocks
        if found.schedule.name != "zb-v" or not (
            found.stages[last].receive_forward
        ):
            continue
        _, nodes = check(problem, plan)
        assert any(
            node.kind == COLLECTIVE
            and node.attributes["phase"].startswith("receive")
            for node in nodes
        )
        done += 1


def test_any_size_of_the_quantum_is_exact():
    problem, plan = draw_pair(Random(3), "standard")
    for quantum_ps in (1, 7, 999_999):
        check(replace(problem, quantum_ps=quantum_ps), plan)
