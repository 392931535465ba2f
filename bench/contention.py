"""Prices with less, and with more, contention than the cost model has.

:class:`Alone` prices every group and every replica's message as if nothing
else ran. :func:`together` prices what all stages of a plan do at a time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from nest.cost.axes import groups_of
from nest.ir import GraphTopology, Plan, Problem, Strategy
from nest.ir.graph import CollectiveKind
from nest.topology import Block, ParallelGroups, Route
from nest.topology.alphabeta import NS_PER_S
from nest.topology.graph.network import GraphNetwork, Prices
from nest.topology.graph.phases import Flows, busiest

#: Of a collective whose price is looked at.
BUFFER_BYTES = 64e6

#: ZeRO stages with communication of a purpose, during the step and at its end.
ZERO_STAGES = {
    **dict.fromkeys(("tp", "cp", "ep"), (0, 1, 2, 3)),
    "data": (2, 3),
    "sync": (0,),
    "replicas": (1, 2, 3),
}
STEP_STAGES = {"data": (1, 2)}

KINDS: dict[str, CollectiveKind] = {"ep": "all-to-all"}


class Alone(GraphNetwork):
    """A network on which nothing ever shares a link."""

    def __init__(self, topology: GraphTopology) -> None:
        super().__init__(topology)
        self._alone: dict[object, Any] = {}

    def groups(self, groups: ParallelGroups) -> Any:
        """Return the prices of each group by itself."""
        groups = groups._replace(tiled=False)
        key = ("alone", groups)
        if key not in self._alone:
            self._alone[key] = frozenset(
                self._alone_prices(tuple(ranks))
                for ranks in groups.groups()
                if len(ranks) > 1
            )
        return self._alone[key]

    def _alone_prices(self, ranks: tuple[int, ...]) -> Prices:
        home = tuple(self._home(np.array([ranks]))[0].tolist())
        if home not in self._alone:
            self._alone[home] = self.prices([home])
        found: Prices = self._alone[home]
        return found

    def collective_ns(
        self, kind: CollectiveKind, groups: Any, size_bytes: float
    ) -> float:
        """Return the time of the slowest group."""
        time_ns = super().collective_ns
        return max((time_ns(kind, x, size_bytes) for x in groups), default=0.0)

    def no_slower(self, groups: Any, other: Any) -> bool:
        """Whether groups are some of the others."""
        return bool(groups <= other)

    def route(self, receiver: Block, sender: Block) -> Route:
        """Say how each replica receives, none disturbing another."""
        pairs = zip(_apart(receiver), _apart(sender), strict=True)
        return frozenset().union(*itertools.starmap(super().route, pairs))

    def inside(self, block: Block) -> Route:
        """Say how each replica's block hands on to itself."""
        return frozenset().union(*map(super().inside, _apart(block)))


def _apart(block: Block) -> Iterator[Block]:
    """Yield the block of every replica."""
    for start, _ in block.ranges():
        yield Block(1, block.replicas * block.pitch, start, block.devices)


def together(problem: Problem, plan: Plan) -> list[dict[str, Any]]:
    """Compare the rules with pricing what all stages do at once.

    Returns
    -------
    For each purpose of communication that the plan has, the time of all
    stages' groups (or messages) at once over the longest time by the rules,
    for buffers of one size.
    """
    network = GraphNetwork(problem.cluster.topology)
    pitch = problem.cluster.num_devices // plan.replicas
    blocks, offset = [], 0
    for stage in plan.stages:
        blocks.append(Block(plan.replicas, pitch, offset, stage.devices))
        offset += stage.devices
    rows = []
    purposes: dict[str, list[ParallelGroups]] = {}
    for block, stage in zip(blocks, plan.stages, strict=True):
        strategy = stage.layer_strategies[0]
        for what, groups in groups_of(strategy).items():
            size = groups.size * (plan.replicas if groups.joined else 1)
            if size > 1 and _pays(strategy, what):
                purposes.setdefault(what, []).append(
                    ParallelGroups(block, *groups)
                )
    for what, stages in purposes.items():
        kind = KINDS.get(what, "all-reduce")
        rule_ns = max(
            network.collective_ns(kind, network.groups(x), BUFFER_BYTES)
            for x in stages
        )
        everyone = [
            ranks for x in stages for ranks in x._replace(tiled=False).groups()
        ]
        all_ns = network.collective_ns(
            kind, network.prices(everyone), BUFFER_BYTES
        )
        rows.append({"what": what, "ratio": all_ns / rule_ns})
    forward = [(receiver, sender) for sender, receiver in pairwise(blocks)]
    backward = list(pairwise(blocks))
    for what, pairs in (("forward", forward), ("backward", backward)):
        if pairs:
            alone = min(network.link(*pair).beta for pair in pairs)
            ratio = alone / _beta(network, pairs)
            rows.append({"what": f"receive {what}", "ratio": ratio})
    return rows


def _pays(strategy: Strategy, what: str) -> bool:
    """Whether a strategy communicates for some purpose at all."""
    own = what.removeprefix("step-").removeprefix("expert-")
    stages = STEP_STAGES if what.startswith("step-") else ZERO_STAGES
    experts = strategy.ep > 1 or own == what.removeprefix("step-")
    return experts and strategy.zero in stages.get(own, ())


def _beta(
    network: GraphNetwork, pairs: Iterable[tuple[Block, Block]]
) -> float:
    """Return the bandwidth of messages of several stages at once."""
    flows = []
    for receiver, sender in pairs:
        for (low, high), (first, end) in zip(
            receiver.ranges(), sender.ranges(), strict=True
        ):
            targets, sources = np.meshgrid(
                np.arange(low, high), np.arange(first, end)
            )
            flows.append(Flows.of(sources, targets, 1 / sender.devices))
    return NS_PER_S / busiest(network.routes, Flows.joined(flows))
