"""What a fixed order of devices loses: every order of eight devices counts.

For the groups of small plans on networks of eight devices: the cost of the given order,
of ``auto`` without and with the groups, and of random orders, each against the best of
all orders, which CP-SAT proves. Writes ``bench/results/device_order.json`` and the
table of docs/results/device-order.md.

    python bench/device_order.py
"""

from __future__ import annotations

import random
from statistics import mean
from typing import Any

from best_order import best_order
from result_files import fill, page_path, table, write_rows

from nest.topology.generators import generate
from nest.topology.order import Group, OrderCosts, auto_order

NETWORKS = (
    "dgx:nodes=2,devices=4",
    "leaf-spine:leaves=2,hosts=4,oversubscription=2",
    "dgx1:nodes=1",
    "torus:4x2",
    "torus:2x2x2",
    "ring:8",
)
NUM_RANDOM = 20


def tensor_and_data(tp: int) -> list[Group]:
    """Return tensor groups of neighbors, and data groups across them."""
    return [
        *(
            Group(tuple(range(first, first + tp)), weight=8)
            for first in range(0, 8, tp)
        ),
        *(Group(tuple(range(rank, 8, tp))) for rank in range(tp)),
    ]


def stages(size: int) -> list[Group]:
    """Return stages of neighbors, each handing on to the next."""
    return [
        *(
            Group(tuple(range(first, first + size)), weight=8)
            for first in range(0, 8, size)
        ),
        *(Group((last, last + 1)) for last in range(size - 1, 7, size)),
    ]


PLANS = {
    "tp 2, dp 4": tensor_and_data(2),
    "tp 4, dp 2": tensor_and_data(4),
    "4 stages of 2": stages(2),
}


def compare(network: str, plan: str) -> dict[str, object]:
    """Return what orders lose, relative to the best one."""
    graph, groups = generate(network), PLANS[plan]
    best = best_order(graph, groups)
    assert best.proven
    costs = OrderCosts(graph, groups)

    def loss(order: list[str]) -> float:
        return round(costs.order_ns(order) / best.cost_ns - 1, 4)

    shuffled = [
        random.Random(seed).sample(costs.devices, 8) for seed in range(NUM_RANDOM)
    ]
    return {
        "network": network,
        "plan": plan,
        "best_ns": best.cost_ns,
        "given": loss(costs.devices),
        "auto": loss(auto_order(graph)),
        "auto_with_groups": loss(auto_order(graph, groups)),
        "random": round(mean(map(loss, shuffled)), 4),
    }


def main() -> None:
    rows = [compare(network, plan) for network in NETWORKS for plan in PLANS]
    write_rows("device_order", rows)
    text = markdown(rows)
    fill(page_path("device-order"), "device-order", text)
    print(text)


def markdown(rows: list[dict[str, Any]]) -> str:
    """Return the cases in which an order loses something."""
    orders = ("given", "auto", "auto_with_groups")
    shown = [row for row in rows if any(row[name] for name in orders)]
    return table(
        "network | plan | given | `auto` | `auto`, with groups | random",
        (
            (
                f"`{row['network']}`",
                row["plan"],
                *(f"{100 * row[name]:.0f} %" for name in (*orders, "random")),
            )
            for row in shown
        ),
        "llrrrr",
    )


if __name__ == "__main__":
    main()
