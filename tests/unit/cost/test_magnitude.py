"""Quanta of problems of models: the default one, unless times need another."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

import nest
from nest.analysis.explain import relaxations
from nest.analysis.fit import most_memory_bytes, with_memory
from nest.benchmarks import instances
from nest.cost.magnitude import coarsened, in_range, longest, with_quantum
from nest.cost.model import CostModel
from nest.errors import InvalidProblemError
from nest.ir import Problem, encode
from nest.ir.graph import Activations
from nest.models import builtin
from nest.units import MAX_TERM, MAX_TOTAL
from tests.builders import make_cost, make_problem

#: Problems of models that nanoseconds cannot hold, by the words for them.
LARGE: dict[str, dict[str, Any]] = {
    "several kinds of machines": {"model": "gpt3-175b", "cluster": "h100x512+a100x512"},
    "a torus": {
        "model": "llama3-70b",
        "cluster": "tpu-v5px4096",
        "topology": "torus:16x16x16",
    },
    "a batch of 65,536": {
        "model": "llama3-405b",
        "cluster": "h100x98304",
        "global_batch": 65536,
    },
    "sequences of a million tokens": {
        "model": "llama3-405b",
        "cluster": "h100x1024",
        "sequence_length": 2**20,
        "global_batch": 65536,
    },
}


def test_the_way_to_the_host_counts() -> None:
    """Of one layer there and back, in place of passes of 10 and 20 ns at most."""
    offload = Activations(recompute="offload", kept_bytes=0, transfer_ns=1000)
    jobs = {"devices": 1, "global_batch": 1, "recompute": ("offload",)}
    far = make_problem({"a": make_cost(10, 20, activations=(offload,))}, **jobs)
    near = make_problem({"a": make_cost(10, 20)}, devices=1, global_batch=1)
    assert longest(far).step_ns >= longest(near).step_ns + 2 * 1000


@pytest.mark.parametrize("words", LARGE.values(), ids=LARGE)
def test_problems_of_models_can_be_solved(words: dict[str, Any]) -> None:
    """Every step and term fits, with the finest quantum that leaves room."""
    problem = nest.problem(**words)
    assert problem.quantum_ps == 10_000
    CostModel(problem)
    step_ns, term_ns = longest(problem)
    assert MAX_TOTAL < step_ns <= 10 * MAX_TOTAL
    assert term_ns <= 10 * MAX_TERM
    with pytest.raises(
        InvalidProblemError,
        match=r"\$\.quantum_ps: expected a quantum that keeps every step time "
        r"below 2\*\*61 quanta, got 1000 ps with steps of up to .* quanta; "
        r"correct the costs or raise quantum_ps",
    ):
        CostModel(replace(problem, quantum_ps=1000))
    # What a device can have limits what plans may need.
    with_memory(problem, most_memory_bytes(problem))


def test_every_way_to_a_problem_chooses_the_same_quantum() -> None:
    words = {**LARGE["several kinds of machines"]}
    asked = nest.problem(**words)
    listed = instances.build(instances.Recipe(**words))
    assert encode(listed) == encode(asked)


def test_a_network_of_its_own_decides_alone() -> None:
    """What the machine's own network would need is not left behind."""
    words = {**LARGE["several kinds of machines"], "topology": "torus:32x32"}
    assert b"quantum_ps" not in encode(nest.problem(**words))


@pytest.mark.parametrize("name", builtin.names())
def test_problems_within_range_keep_the_default(name: str) -> None:
    """So files leave it out, and hashes stay."""
    problem = builtin.load(name)
    assert b"quantum_ps" not in encode(problem)
    assert encode(with_quantum(problem)) == encode(problem)


def long_chain(step_quanta: float, **fields: Any) -> Problem:
    """One layer; a step takes at most four passes, so many quanta in all."""
    return make_problem(
        {"a": make_cost(step_quanta / 8, step_quanta / 8)},
        devices=1,
        memory_bytes=2**40,
        **fields,
    )


def test_own_quanta_are_kept_as_far_as_they_do() -> None:
    problem = long_chain(2.0**40, quantum_ps=7)
    assert coarsened(problem) is problem
    refused = long_chain(2.0**52, quantum_ps=1, global_batch=2)
    assert coarsened(refused).quantum_ps in (1, 10, 100, 1000, 10_000)
    assert in_range(coarsened(refused))


def test_no_quantum_is_coarse_enough_for_some() -> None:
    problem = make_problem({"a": make_cost(1e21)}, global_batch=2**50)
    with pytest.raises(
        InvalidProblemError,
        match=r"problem: expected step times below 9e\+18 s, got up to .* s; "
        r"correct the times, bandwidths or sizes",
    ):
        with_quantum(problem)


def test_relaxations_out_of_range_are_left_out() -> None:
    """A batch twice as large would take more than 2**61 quanta."""
    batch = 2**40
    problem = make_problem(
        {"a": make_cost(2.0**18, 2.0**18)},
        devices=1,
        global_batch=batch,
        micro_batches=(1,),
    )
    step_ns, _ = longest(problem)
    assert MAX_TOTAL / 2 < step_ns <= MAX_TOTAL
    names = [item.name for item in relaxations(problem)]
    assert "global batch doubled (time per old step)" not in names
    half = replace(problem, job=replace(problem.job, global_batch=batch // 2))
    names = [item.name for item in relaxations(half)]
    assert "global batch doubled (time per old step)" in names
