"""Prices with more contention than the cost model has.

:func:`together` prices what all stages of a plan do at a time; prices with
less contention are in :mod:`nest.studies.contention`.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np

from nest.cost.axes import groups_of
from nest.ir import Plan, Problem, Strategy
from nest.ir.graph import CollectiveKind
from nest.topology import Block, ParallelGroups
from nest.topology.alphabeta import NS_PER_S
from nest.topology.graph.network import GraphNetwork
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
                purposes.setdefault(what, []).append(ParallelGroups(block, *groups))
    for what, stages in purposes.items():
        kind = KINDS.get(what, "all-reduce")
        rule_ns = max(
            network.collective_ns(kind, network.groups(x), BUFFER_BYTES) for x in stages
        )
        everyone = [ranks for x in stages for ranks in x._replace(tiled=False).groups()]
        all_ns = network.collective_ns(kind, network.prices(everyone), BUFFER_BYTES)
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
    purpose = what.removeprefix("step-").removeprefix("expert-")
    stages = STEP_STAGES if what.startswith("step-") else ZERO_STAGES
    experts = strategy.ep > 1 or purpose == what.removeprefix("step-")
    return experts and strategy.zero in stages.get(purpose, ())


def _beta(network: GraphNetwork, pairs: Iterable[tuple[Block, Block]]) -> float:
    """Return the bandwidth of messages of several stages at once."""
    flows = []
    for receiver, sender in pairs:
        for (low, high), (first, end) in zip(
            receiver.ranges(), sender.ranges(), strict=True
        ):
            targets, sources = np.meshgrid(np.arange(low, high), np.arange(first, end))
            flows.append(Flows.of(sources, targets, 1 / sender.devices))
    return NS_PER_S / busiest(network.routes, Flows.joined(flows))
