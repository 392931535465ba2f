"""Chakra traces, replayed by a reader of their bytes, take the simulated step.

Whatever the schedule, the strategies, the graph and the network are.
"""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nest.cost.score import score
from nest.frameworks import chakra
from nest.simulation.events import Simulation
from tests.chakra import COLLECTIVE, RECEIVE, SEND, nodes_of, replay
from tests.independent.generate import draw_pair
from tests.independent.rules import broken_rules
from tests.properties.profiles import examples

SCHEDULES = ("1f1b", "gpipe", "interleaved 1f1b", "zb-h1", "zb-v", "dualpipe-v")


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
        behind = [
            node.attributes["duration_ps"]
            for node in nodes_of(files[f"trace.{number}.et"])
            if node.attributes["phase"] in ("sync", "update")
        ]
        assert sum(behind) == block.sync * problem.quantum_ps
    return found, [
        node
        for number in range(len(found.blocks))
        for node in nodes_of(files[f"trace.{number}.et"])
    ]


@examples(60)
@given(st.integers(0, 10**6), st.sampled_from(("standard", "nest-artifact")))
def test_replayed_traces_take_the_simulated_step(seed, preset):
    problem, plan = draw_pair(Random(seed), preset)
    if not broken_rules(problem, plan):
        check(problem, plan)


def test_every_schedule_is_written():
    """Of random plans of several blocks and micro-batches two of each.

    In a V the last block may change the layout between its own chunks.
    """
    random, done, changes = Random(2), Counter(), 0
    phases: dict[str, set[str]] = {name: set() for name in SCHEDULES}
    while min(done[name] for name in SCHEDULES) < 2 or not changes:
        problem, plan = draw_pair(random, "standard")
        if plan.num_blocks < 2 or broken_rules(problem, plan):
            continue
        found = score(problem, plan)
        name = found.schedule.name
        changed = name == "zb-v" and found.stages[plan.num_blocks].receive_forward
        if found.num_micro_batches < 2 or (done[name] >= 2 and not changed):
            continue
        done[name] += 1
        _, nodes = check(problem, plan)
        assert {SEND, RECEIVE} <= {node.kind for node in nodes}
        own = {(node.kind, node.attributes["phase"]) for node in nodes}
        phases[name] |= {phase for _, phase in own}
        if changed:
            assert (COLLECTIVE, "receive-forward") in own
            changes += 1
    split = {x for x in SCHEDULES if "weight-gradient" in phases[x]}
    assert split == {"zb-h1", "zb-v", "dualpipe-v"}
    assert [x for x in SCHEDULES if "pair" in phases[x]] == ["dualpipe-v"]


def test_any_size_of_the_quantum_is_exact():
    random = Random(3)
    problem, plan = draw_pair(random, "standard")
    while plan.num_blocks < 2 or broken_rules(problem, plan):
        problem, plan = draw_pair(random, "standard")
    for quantum_ps in (1, 7, 999_999):
        check(replace(problem, quantum_ps=quantum_ps), plan)
