"""The assignment model: against every permutation of up to 7 devices."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from bench.best_order import BestOrder, OrderLoss, best_order, order_loss
from nest.errors import InvalidProblemError
from nest.topology.generators import generate
from nest.topology.order import Group, OrderCosts, auto_order


def random_groups(source: random.Random, num_devices: int) -> list[Group]:
    return [
        Group(
            tuple(
                source.sample(
                    range(num_devices), source.randint(1, min(4, num_devices))
                )
            ),
            source.choice([1e3, 1e6, 1e8]),
            source.randint(0, 3),
        )
        for _ in range(source.randint(1, 4))
    ]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "text",
    [
        "dgx:nodes=3,devices=2",
        "leaf-spine:leaves=2,hosts=3,oversubscription=3",
        "torus:3x2",
        "torus:6,wrap=no",
        "rail:nodes=2,devices=3,spines=0",
    ],
)
def test_the_model_finds_the_best_of_all_permutations(text, seed):
    graph = generate(text)
    groups = random_groups(random.Random(seed), 6)
    costs = OrderCosts(graph, groups)
    least = min(
        costs.order_ns(order) for order in itertools.permutations(costs.devices)
    )
    found = best_order(graph, groups)
    assert found.cost_ns == found.bound_ns == least
    assert found.proven
    assert costs.order_ns(found.order) == least
    assert costs.order_ns(auto_order(graph, groups)) >= least


def test_seven_devices():
    graph = generate("ring:7")
    groups = [Group((0, 3)), Group((3, 6, 1), weight=2), Group((2, 5, 4, 0))]
    costs = OrderCosts(graph, groups)
    least = min(map(costs.order_ns, itertools.permutations(costs.devices)))
    assert best_order(graph, groups).cost_ns == least


def test_what_an_order_loses():
    """Pairs across nodes of two: 24 ns each instead of 8."""
    graph = generate(
        "dgx:nodes=2,devices=2,nvlink_bytes_per_s=100e9,nvlink_latency_ns=3,"
        "port_bytes_per_s=20e9,port_latency_ns=7"
    )
    a, b, c, d = graph.graph["order"]
    groups = [Group((0, 1), 100.0), Group((2, 3), 100.0)]
    loss = order_loss(graph, [a, c, b, d], groups)
    assert (loss.cost_ns, loss.best.cost_ns) == (48, 16)
    assert loss.relative == 2.0
    assert order_loss(graph, [a, b, c, d], groups).relative == 0.0


def test_losses_against_nothing():
    free = BestOrder(("a", "b"), 0, 0)
    assert OrderLoss(0, free).relative == 0.0
    assert OrderLoss(1, free).relative == math.inf


def test_without_groups_every_order_is_best():
    graph = generate("ring:3")
    assert best_order(graph, []) == BestOrder(("dev0", "dev1", "dev2"), 0, 0)


def test_without_time_the_bound_still_holds():
    graph = generate("torus:4x4")
    source = random.Random(1)
    groups = [Group(tuple(source.sample(range(16), 4))) for _ in range(12)]
    costs = OrderCosts(graph, groups)
    found = best_order(graph, groups, time_limit_s=0.0)
    assert 0 <= found.bound_ns <= found.cost_ns
    assert costs.order_ns(found.order) == found.cost_ns
    assert found.cost_ns <= costs.order_ns(costs.devices)


def test_bad_orders_and_groups():
    graph = generate("ring:3")
    with pytest.raises(InvalidProblemError, match="expected all 3 devices"):
        order_loss(graph, ["dev0"], [Group((0, 1))])
    with pytest.raises(InvalidProblemError, match=r"expected positions 0\.\.2"):
        best_order(graph, [Group((0, 3))])
