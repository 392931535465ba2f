"""The best of all orders of devices, as an assignment model in CP-SAT.

An exact check on tiny networks (up to about 8 devices): what an order of
:mod:`nest.topology.order` loses against it. The numbers are those of the
section "Order of devices" in ``formulations/README.md``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

import networkx as nx

from formulations.cp_sat import new_solver, solve_interruptibly
from nest.errors import SolverError
from nest.topology.order import Group, OrderCosts

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel, IntVar

#: Variable ``x[p,d]``: position ``p`` has device ``d``.
Assignment = dict[tuple[int, int], "IntVar"]


@dataclass(frozen=True)
class BestOrder:
    """What the search over all orders found.

    Attributes
    ----------
    order
        Devices by position.
    cost_ns
        What the order costs, see :class:`~nest.topology.order.OrderCosts`.
    bound_ns
        What no order is below.
    """

    order: tuple[Any, ...]
    cost_ns: int
    bound_ns: int

    @property
    def proven(self) -> bool:
        """Whether no order costs less."""
        return self.cost_ns == self.bound_ns


@dataclass(frozen=True)
class OrderLoss:
    """What an order costs, and the best one, in ns."""

    cost_ns: int
    best: BestOrder

    @property
    def relative(self) -> float:
        """How much more than the best one it costs; 0 if nothing costs."""
        if self.cost_ns == self.best.cost_ns:
            return 0.0
        if not self.best.cost_ns:
            return math.inf
        return self.cost_ns / self.best.cost_ns - 1


def best_order(
    graph: nx.Graph, groups: Sequence[Group], time_limit_s: float | None = None
) -> BestOrder:
    """Return the cheapest of all orders of the devices of a graph.

    Parameters
    ----------
    graph
        The network.
    groups
        Groups of a plan, by position.
    time_limit_s
        Ends the search with what it has; the order that comes with the graph
        is where it starts.

    Raises
    ------
    InvalidProblemError
        If devices cannot reach each other, or a group is not one.
    SolverError
        If the engine fails.
    """
    from ortools.sat.python import cp_model

    costs = OrderCosts(graph, groups)
    if not costs.groups:
        return BestOrder(tuple(costs.devices), 0, 0)
    model = cp_model.CpModel()
    x = one_device_per_position(model, len(costs.devices))
    spans = [
        group_span(model, x, costs, group_idx) for group_idx in range(len(costs.groups))
    ]
    set_objective(model, costs, spans)
    for (position, device), variable in x.items():
        model.add_hint(variable, position == device)
    solver = new_solver(time_limit_s)
    status = solve_interruptibly(solver, model)
    if status == cp_model.UNKNOWN and time_limit_s is not None:
        given = costs.devices
        return BestOrder(tuple(given), costs.order_ns(given), 0)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        raise SolverError(
            f"device order: expected an order, got status "
            f"{solver.status_name(status)}: {model.validate()}"
        )
    found = {p: d for (p, d), taken in x.items() if solver.value(taken)}
    order = tuple(costs.devices[found[p]] for p in range(len(found)))
    cost_ns = costs.order_ns(order)
    proven = status == cp_model.OPTIMAL
    bound_ns = cost_ns if proven else math.floor(solver.best_objective_bound)
    if proven and solver.objective_value != cost_ns:
        raise SolverError(
            f"device order: expected the claimed {solver.objective_value:g} "
            f"ns, got {cost_ns} ns from its order"
        )
    return BestOrder(order, cost_ns, bound_ns)


def order_loss(
    graph: nx.Graph,
    order: Sequence[Any],
    groups: Sequence[Group],
    time_limit_s: float | None = None,
) -> OrderLoss:
    """Return what an order loses against the best of all orders.

    Raises
    ------
    InvalidProblemError
        If the order is not all devices, each once, devices cannot reach each
        other, or a group is not one.
    SolverError
        If the engine fails.
    """
    cost_ns = OrderCosts(graph, groups).order_ns(order)
    return OrderLoss(cost_ns, best_order(graph, groups, time_limit_s))


def one_device_per_position(model: CpModel, num_devices: int) -> Assignment:
    """``Σ_d x[p,d] = 1`` and ``Σ_p x[p,d] = 1`` (O2)."""
    numbers = range(num_devices)
    x = {(p, d): model.new_bool_var(f"x[{p},{d}]") for p in numbers for d in numbers}
    for i in numbers:
        model.add_exactly_one(x[i, d] for d in numbers)
        model.add_exactly_one(x[p, i] for p in numbers)
    return x


def group_span(
    model: CpModel, x: Assignment, costs: OrderCosts, group_idx: int
) -> IntVar:
    """``x[p,d]`` implies ``t_g >= Σ_e D_g[d,e] x[q,e]``, all p, q in g (O3).

    ``t_g`` is the most that a message of the group costs between two of its devices.
    """
    table = costs.pair_costs_ns[group_idx]
    span = model.new_int_var(0, int(table.max()), f"t[{group_idx}]")
    numbers = range(len(table))
    for p, q in combinations(costs.groups[group_idx].positions, 2):
        for d in numbers:
            model.add(
                span >= sum(int(table[d, e]) * x[q, e] for e in numbers)
            ).only_enforce_if(x[p, d])
    return span


def set_objective(model: CpModel, costs: OrderCosts, spans: Sequence[IntVar]) -> None:
    """Minimize ``Σ_g w_g t_g`` (O1)."""
    model.minimize(
        sum(
            group.weight * span for group, span in zip(costs.groups, spans, strict=True)
        )
    )
