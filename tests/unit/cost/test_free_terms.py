"""Terms without a block are shared by problems that agree on what they depend on."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from nest.cost.model import CostModel
from nest.cost.terms import free_prices
from nest.ir import Device, DeviceRange, Optimizer, Problem, Strategy
from tests.builders import make_cost, make_levels, make_problem


def one_layer(**fields: Any) -> Problem:
    """A layer of 30 ns and 10 bytes of weights; 2 bytes per weight, 12 of its state."""
    return make_problem({"a": make_cost(10, 20, weight_bytes=10)}, devices=4, **fields)


def free_terms(problem: Problem) -> Any:
    return CostModel(problem).layer_terms(0, Strategy(), 1, None)


def known(problem: Problem) -> Any:
    return free_prices(problem, CostModel(problem).rules)


def changed(what: str) -> Problem:
    problem = one_layer()
    device = problem.cluster.device
    match what:
        case "graph":
            return make_problem({"a": make_cost(11, 20, weight_bytes=10)}, devices=4)
        case "job":
            job = replace(problem.job, optimizer=Optimizer(state_bytes=100))
            return replace(problem, job=job)
        case "quantum":
            return replace(problem, quantum_ps=500)
        case "types":
            reserving = replace(device, reserve_bytes=7)
            return replace(problem, cluster=replace(problem.cluster, device=reserving))
        case _:
            return replace(problem, preset="megatron-interleaved")


def test_the_number_of_devices_and_their_network_change_nothing() -> None:
    problem = one_layer()
    few = replace(problem, cluster=problem.cluster.first_devices(1))
    slow = one_layer(topology=make_levels((2, 5.0, 1e3), (2, 5.0, 1e3)))
    assert free_terms(problem) == free_terms(few) == free_terms(slow)
    assert known(problem) is known(few) is known(slow)
    # And the model of one of two types is that of the type alone.
    other = DeviceRange(first=2, count=2, device=Device(name="other", memory_bytes=5))
    mixed = replace(problem, cluster=replace(problem.cluster, others=(other,)))
    assert CostModel(mixed).on_type(0).layers._free_terms is known(problem)[0]
    assert known(mixed) is not known(problem)


@pytest.mark.parametrize("what", ["graph", "job", "quantum", "types"])
def test_what_they_depend_on_tells_them_apart(what: str) -> None:
    before = free_terms(one_layer())
    assert free_terms(changed(what)) != before
    assert free_terms(one_layer()) == before


def test_rules_tell_them_apart() -> None:
    problem = one_layer()
    assert free_prices(problem, object()) is not known(problem)  # type: ignore[arg-type]


def test_passes_without_a_block_are_kept_too() -> None:
    layers, again = CostModel(one_layer()).layers, CostModel(one_layer()).layers
    passes = layers.passes(0, Strategy(), 1, None, frozenset())
    assert passes is again.passes(0, Strategy(), 1, None, frozenset())
    assert passes is not None
    assert (passes.forward, passes.backward) == (10, 20)
