"""Stages of a plan: where they sit, and equal ones in one line."""

from __future__ import annotations

import io
from itertools import pairwise

import msgspec

from nest.analysis.page_facts import nodes_text
from nest.cost.score import score
from nest.ir import Edge, Layer, Plan, Problem, Stage, Strategy
from nest.present.screen import plan_rows, screen, stage_parts
from nest.present.stages import rank_text, runs
from nest.present.table import show
from nest.present.verbosity import VERBOSE
from tests.builders import SINGLE, make_cost, make_levels, make_plan, make_problem
from tests.graphs import make_graph

#: Nodes of four devices.
NODES = make_levels((4, 10.0, 1e9), (4, 100.0, 1e8))
DP2 = Strategy(dp=2)


def chain(count: int, heavy: str = "", **fields) -> Problem:
    """Return layers ``a``, ``b``, … of one kind, some of a heavy one."""
    names = "abcdefgh"[:count]
    costs = {
        kind: tuple(
            make_cost(10 * times, 20 * times, samples=n, kept_bytes=100) for n in (1, 2)
        )
        for kind, times in (("light", 1), ("heavy", 2))
    }
    fields = {"devices": 16, "topology": NODES, "global_batch": 8} | fields
    problem = make_problem(costs, micro_batches=(2,), **fields)
    graph = msgspec.structs.replace(
        problem.graph,
        layers=tuple(
            Layer(id=name, kind="heavy" if name in heavy else "light") for name in names
        ),
        edges=tuple(
            Edge(source=a, target=b, bytes_per_sample=1) for a, b in pairwise(names)
        ),
    )
    return msgspec.structs.replace(problem, graph=graph)


def lines_of(problem: Problem, plan: Plan) -> list[str]:
    file = io.StringIO()
    verdict = score(problem, plan)
    show(
        file,
        *screen(problem, plan_rows(problem, plan, verdict)),
        *stage_parts(problem, plan, verdict),
    )
    return [" ".join(line.split()) for line in file.getvalue().splitlines()]


def test_equal_stages_in_a_row_are_one_line() -> None:
    """All but ``a`` are of one kind; they sit on nodes of four devices."""
    problem = chain(6, heavy="a")
    plan = make_plan(*((name, DP2) for name in "abcdef"), micro_batch=2)
    lines = lines_of(problem, plan)
    rows = lines[lines.index(next(x for x in lines if "strategy" in x)) + 2 :]
    assert [row.split(" dp2")[0] for row in rows] == [
        "1 a 2 (0–1) 0",
        "2–6 1 each (b – f) 2 each (2–11) 0–2",
    ]
    token = VERBOSE.set(True)
    try:
        rows = lines_of(problem, plan)[-6:]
    finally:
        VERBOSE.reset(token)
    assert [row.split(" dp2")[0] for row in rows] == [
        "1 a 2 (0–1) 0",
        "2 b 2 (2–3) 0",
        "3 c 2 (4–5) 1",
        "4 d 2 (6–7) 1",
        "5 e 2 (8–9) 2",
        "6 f 2 (10–11) 2",
    ]


def test_what_differs_within_a_run_is_a_range() -> None:
    """Stage 5 receives from another node, which takes longer.

    A byte per sample, two samples: 10 + 2 ns within a node, 100 + 20 ns
    between two. Stage ``s`` of ``S`` holds what ``min(M, S-s+1)`` of M = 4
    micro-batches keep: from 4 down to 1 times 100 bytes.
    """
    problem = chain(6)
    plan = make_plan(*((name, SINGLE) for name in "abcdef"), micro_batch=2)
    document = score(problem, plan).to_json()
    (run,) = runs(problem, plan, document["stages"])
    assert (run.first, run.last, run.devices) == (1, 6, (0, 6))
    forward = [terms["forward_ns"] for terms in run.terms]
    assert forward == [10, 22, 22, 22, 130, 22]
    memory = [terms["memory_bytes"] for terms in run.terms]
    assert memory == [400, 400, 400, 300, 200, 100]
    row = lines_of(problem, plan)[-1]
    assert "10.000 – 130.000 ns" in row


def test_two_equal_stages_stay_apart() -> None:
    problem = chain(2)
    plan = make_plan(("a", SINGLE), ("b", SINGLE), micro_batch=2)
    document = score(problem, plan).to_json()
    found = runs(problem, plan, document["stages"])
    assert [(run.first, run.last) for run in found] == [(1, 1), (2, 2)]


def test_stages_of_another_strategy_or_size_are_not_equal() -> None:
    problem = chain(8)
    plan = make_plan(
        *((name, SINGLE) for name in "abc"),
        *((name, DP2) for name in "def"),
        ("g h", DP2),
        micro_batch=2,
    )
    document = score(problem, plan).to_json()
    found = runs(problem, plan, document["stages"])
    assert [(run.first, run.last) for run in found] == [(1, 3), (4, 6), (7, 7)]


def test_chunks_of_a_block_sit_where_it_does() -> None:
    """Four chunks on two blocks: the third one is back on device 0."""
    stages = tuple(Stage(layers=(name,), devices=1, strategy=SINGLE) for name in "abcd")
    plan = Plan(replicas=1, micro_batch=2, stages=stages, virtual_stages=2)
    problem, terms = chain(4), [{}] * 4
    assert [run.devices for run in runs(problem, plan, terms)] == [
        (0, 1),
        (1, 2),
        (0, 1),
        (1, 2),
    ]


def test_nodes_of_graphs_have_names() -> None:
    devices = "uvwxyz"
    links = [("hub", device, 1.0, 1e9) for device in devices]
    units = {d: f"host-{n}" for d, n in zip(devices, "aabbcd", strict=True)}
    for given, size, text in (
        ((units,), 2, "host-a"),
        ((units,), 4, "host-a, host-b"),
        ((units,), 6, "host-a … host-d (4)"),
        ((), 4, ""),
    ):
        topology = make_graph(devices, links, units=given)
        problem = chain(1, devices=6, topology=topology)
        strategy = Strategy(dp=2, tp=size // 2)
        plan = make_plan(("a", strategy), micro_batch=2)
        (run,) = runs(problem, plan, [{}])
        assert nodes_text(problem, run.devices) == text


def test_the_micro_batch_of_a_rank() -> None:
    """Two samples: one on each of two data-parallel ranks, both on one."""
    plan = make_plan(("a", DP2), ("b", SINGLE), micro_batch=2)
    assert rank_text(plan) == "1 or 2 per data-parallel rank"
    problem = chain(2)
    text = " ".join(lines_of(problem, plan))
    assert "micro-batch size 1 or 2 per data-parallel rank, 4 micro" in text


def test_where_replicas_begin_is_said() -> None:
    problem = chain(1, devices=13, topology=make_levels((13, 10.0, 1e9)))
    plan = make_plan(("a", SINGLE), replicas=4, micro_batch=2)
    assert " ".join(lines_of(problem, plan)).endswith(
        "devices above are those of the first replica; each begins 3 devices "
        "after the one before"
    )
