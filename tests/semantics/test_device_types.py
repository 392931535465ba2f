"""Clusters of several types of devices, worked out by hand."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from nest.ir import DeviceRange, Problem
from nest.solvers.base import SolveOptions
from nest.solvers.registry import get_solver
from tests import optima
from tests.builders import make_cost, make_problem


def with_other(problem: Problem, num_others: int, **fields) -> Problem:
    """Change the first devices of a problem's cluster."""
    cluster = problem.cluster
    other = replace(cluster.device, name="other", **fields)
    part = DeviceRange(first=0, count=num_others, device=other)
    return replace(problem, cluster=replace(cluster, others=(part,)))


def chain(
    names: str, devices: int, memory_bytes: int, weight_bytes=0, **fields
) -> Problem:
    """Layers of 10 + 20 ns; as many micro-batches.

    They keep 30 bytes per micro-batch, or have weights.
    """
    kept_bytes = 0 if weight_bytes else 30
    cost = make_cost(10, 20, kept_bytes=kept_bytes, weight_bytes=weight_bytes)
    return make_problem(
        dict.fromkeys(names, cost),
        edge=0,
        devices=devices,
        memory_bytes=memory_bytes,
        global_batch=len(names),
        replicas=(1,),
        **fields,
    )


def check(problem: Problem, step_quanta: int | None) -> None:
    """Compare enumeration and the search's proof with what is expected.

    A plan to start from may not fit: the search takes all devices for alike
    until it knows where a stage is.
    """
    brute = get_solver("brute")().solve(problem, SolveOptions())
    assert brute.claimed_quanta == step_quanta
    for setting in ("proof-alone", "proof-in-parts"):
        assert optima.search(problem, setting).claimed_quanta == step_quanta


@pytest.mark.parametrize("granularity", ["stage", "layer"])
@pytest.mark.parametrize(
    ("weight_bytes", "first_bytes", "step_quanta"),
    [
        # a keeps two micro-batches and b one: 60 + 30.
        (0, 60, 90),
        # The first device is used in any case; one stage needs 60 as well.
        (0, 59, None),
        # Weights, gradients and state take 80 bytes.
        (10, 80, 90),
        (10, 79, None),
    ],
)
def test_every_device_has_its_own_memory(
    weight_bytes, first_bytes, step_quanta, granularity
):
    problem = chain("ab", 2, 1000, weight_bytes=weight_bytes, granularity=granularity)
    check(with_other(problem, 1, memory_bytes=first_bytes), step_quanta)


@pytest.mark.parametrize("granularity", ["stage", "layer"])
@pytest.mark.parametrize(
    ("second_bytes", "step_quanta"),
    [
        # Weights, gradients and state of b, and nothing per micro-batch.
        (80, 90),
        # Both on the first device: 2 * 60.
        (79, 120),
    ],
)
def test_weights_alone_may_not_fit(second_bytes, step_quanta, granularity):
    problem = chain("ab", 2, second_bytes, weight_bytes=10, granularity=granularity)
    check(with_other(problem, 1, memory_bytes=1000), step_quanta)


@pytest.mark.parametrize("granularity", ["stage", "layer"])
@pytest.mark.parametrize(
    ("third_bytes", "step_quanta"),
    [
        # Three stages: 90 + 2 * 30.
        (30, 150),
        # The third device holds nothing. Two stages: 90 + 2 * 60.
        (29, 210),
    ],
)
def test_places_alike_to_the_network_may_differ(third_bytes, step_quanta, granularity):
    """The second and the third of four devices have a neighbor each way."""
    problem = chain("abc", 4, third_bytes, granularity=granularity)
    check(with_other(problem, 2, memory_bytes=1000), step_quanta)
