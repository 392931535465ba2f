"""Another order of the devices for a plan: its own groups say what is close.

Which device is next to which is part of a problem (``topology.order``). What
a plan sends, how often and between whom gives weights to
:func:`nest.topology.order.auto_order`; the orders that it finds are told apart
by the step time of the plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from nest.cost.axes import groups_of
from nest.cost.model import CostModel
from nest.cost.rules import Pipeline
from nest.cost.score import lay_out, score
from nest.errors import InvalidProblemError
from nest.ir.graph_topology import GraphTopology
from nest.ir.plan import Plan
from nest.ir.problem import Problem
from nest.topology.graph.convert import networkx_of
from nest.topology.order import Group, auto_order
from nest.topology.protocol import ParallelGroups


@dataclass(frozen=True)
class Reordered:
    """A problem in another order of the devices, and step times of its plan.

    The order is the old one where no other is faster.
    """

    problem: Problem
    before_quanta: int
    after_quanta: int

    @property
    def graph(self) -> Any:
        """The network as a graph of networkx, in the new order."""
        return networkx_of(graph_of(self.problem))


def reorder(problem: Problem, plan: Plan) -> Reordered:
    """Look for an order of the devices in which a plan is faster.

    Raises ``InvalidProblemError`` if the network is a tree, whose devices have no other
    order, and ``InvalidPlanError`` if the plan does not belong to the problem.
    """
    topology = graph_of(problem)
    groups = list(plan_groups(problem, plan))
    graph = networkx_of(topology)
    orders = [auto_order(graph)]
    if groups:
        orders.append(auto_order(graph, groups))
    before = score(problem, plan).step_quanta
    best = Reordered(problem, before, before)
    for order in orders:
        other = replace(
            problem,
            cluster=replace(
                problem.cluster, topology=replace(topology, order=tuple(order))
            ),
        )
        after = score(other, plan).step_quanta
        if after < best.after_quanta:
            best = Reordered(other, before, after)
    return best


def graph_of(problem: Problem) -> GraphTopology:
    """Return the network of a problem; refuse a tree."""
    topology = problem.cluster.topology
    if topology.kind != "graph":
        raise InvalidProblemError(
            "$.cluster.topology: expected kind 'graph', got 'hierarchy', "
            "whose devices are in order as they are; put the model on a "
            "network from a file with --topology, or on torus:4x4"
        )
    return topology


def plan_groups(problem: Problem, plan: Plan) -> Iterator[Group]:
    """Yield the communication groups of one training step.

    Each has its mean message size and its number of messages: the groups of every axis,
    those of gradients at the end of the step, and the messages between stages.
    """
    pipeline = lay_out(problem, plan, CostModel(problem))
    for chunk in range(len(pipeline.members)):
        yield from _collectives(pipeline, chunk)
        if chunk:
            yield from _messages(pipeline, chunk)


def _collectives(pipeline: Pipeline, chunk: int) -> Iterator[Group]:
    """Yield the groups of a chunk's layers, those of an axis once."""
    layers = pipeline.model.layers
    batch, count = pipeline.plan.micro_batch, pipeline.split.num_micro_batches
    optimizer = pipeline.model.problem.job.optimizer
    calls: dict[ParallelGroups, list[tuple[float, int]]] = {}
    for layer, strategy in pipeline.members[chunk]:
        cost = layers.cost(layer, strategy, batch)
        assert cost is not None
        groups = {
            name: ParallelGroups(pipeline.blocks[chunk], *of)
            for name, of in groups_of(strategy).items()
        }
        sent: list[tuple[str, float, int]] = [
            (call.axis, call.size_bytes, call.count * count)
            for call in cost.collectives
        ]
        per_weight = optimizer.gradient_bytes / optimizer.weight_bytes
        often = count if strategy.zero >= 2 else 1
        sent += [
            ("sync", cost.weight_bytes * per_weight, often),
            ("expert-sync", cost.expert_weight_bytes * per_weight, often),
        ]
        for name, size_bytes, times in sent:
            if size_bytes and times:
                own = groups[name]._replace(tiled=False)
                calls.setdefault(own, []).append((size_bytes, times))
    for of, found in calls.items():
        weight = sum(times for _, times in found)
        total_bytes = sum(size_bytes * times for size_bytes, times in found)
        for ranks in of.groups():
            if len(ranks) > 1:
                yield Group(tuple(ranks), total_bytes / weight, weight)


def _messages(pipeline: Pipeline, chunk: int) -> Iterator[Group]:
    """Yield a chunk with the one before it, in every replica."""
    model, (_, strategy) = pipeline.model, pipeline.members[chunk][0]
    crossing = pipeline.crossings[chunk]
    size_bytes = sum(crossing.values()) * pipeline.plan.micro_batch
    if not size_bytes:
        return
    blocks = (pipeline.blocks[chunk - 1], pipeline.blocks[chunk])
    if blocks[0] == blocks[1]:
        return  # where chunks go down and up again
    for spans in zip(*(block.ranges() for block in blocks), strict=True):
        yield Group(
            tuple(device for span in spans for device in range(*span)),
            size_bytes / model.shards(strategy),
            2 * pipeline.split.num_micro_batches,
        )
