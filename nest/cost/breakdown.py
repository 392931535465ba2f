"""Where the step time of a plan goes: terms that add up to it exactly.

Nothing is priced here. The same plan is scored under variants of its problem
that take one kind of cost away after the other: the edges of the graph, the
collectives of each axis, at last all that is left of the network. What a
block's load loses at a step is that kind's term, so hidden communication
counts only as far as it is exposed, and the terms add up to the quantum. What
passes of a pair hide behind each other is taken off the bubble.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from msgspec.structs import replace

from nest.cost.axes import AXES
from nest.cost.model import CostModel
from nest.cost.rules import get_rules
from nest.cost.score import Score, score
from nest.ir.graph import LayerCost
from nest.ir.plan import Plan
from nest.ir.problem import Problem

#: Data parallel ones last: layers seldom issue them.
_AXES = sorted(AXES, key=lambda axis: axis.name == "dp")

#: Terms of a block per micro-batch, then those of the step; for people.
LOAD_TERMS = {
    "compute": "computation",
    "recompute": "recomputation",
    **{
        axis.name: f"{axis.meaning.removesuffix(' degrees')} collectives"
        for axis in _AXES
    },
    "zero": "ZeRO gathers and scatters per micro-batch",
    "redistribution": "strategy changes inside stages",
    "receive": "receives between stages",
}
STEP_TERMS = {
    **LOAD_TERMS,
    "bubble": "filling and draining the pipeline",
    "gradient_sync": "gradient synchronization",
    "optimizer": "optimizer update",
}


@dataclass(frozen=True)
class Breakdown:
    """The terms of a plan's step time, in quanta.

    ``step`` has the terms of the step time by the names of :data:`STEP_TERMS`, and
    ``blocks`` those of the load of every block by the names of :data:`LOAD_TERMS`; they
    add up to it. ``slowest`` is the position of the block with the longest load, the
    first of equals, and its load counts ``num_loads`` times: once per micro-batch.
    """

    step: Mapping[str, int]
    blocks: tuple[Mapping[str, int], ...]
    slowest: int
    num_loads: int


def breakdown(problem: Problem, plan: Plan, scored: Score) -> Breakdown:
    """Return the terms of a plan's step time."""
    loads = {"": [block.load for block in scored.blocks]}
    variant = without_edges(problem)
    loads["receive"] = _loads(variant, plan)
    for axis in _AXES:
        variant = without_collectives(variant, axis.name)
        loads[axis.name] = _loads(variant, plan)
    variant = with_fast_network(variant)
    last = score(variant, plan)
    loads["zero"] = [block.load for block in last.blocks]
    again = _recomputed(variant, plan)

    blocks: list[dict[str, int]] = []
    for index, remaining in enumerate(loads["zero"]):
        terms = dict.fromkeys(LOAD_TERMS, 0)
        for (_, before), (name, after) in pairwise(loads.items()):
            terms[name] = before[index] - after[index]
        for chunk in plan.chunks_of(index):
            terms["redistribution"] += scored.stages[chunk].redistribution
        terms["receive"] -= terms["redistribution"]
        terms["recompute"] = again[index]
        terms["compute"] = remaining - again[index]
        blocks.append(terms)
    return _step_terms(problem, scored, last, blocks)


def _step_terms(
    problem: Problem,
    scored: Score,
    without_network: Score,
    blocks: list[dict[str, int]],
) -> Breakdown:
    rules = get_rules(problem.preset)
    loads = [block.load for block in scored.blocks]
    syncs = [block.sync for block in scored.blocks]
    slowest, syncing = rules.slowest(scored.blocks)
    num_loads = 1 if rules.steady_state else scored.num_micro_batches
    step = {name: num_loads * value for name, value in blocks[slowest].items()}
    optimizer = without_network.blocks[syncing].sync
    step["bubble"] = scored.step_quanta - num_loads * loads[slowest] - syncs[syncing]
    step["gradient_sync"] = syncs[syncing] - optimizer
    step["optimizer"] = optimizer
    return Breakdown(step, tuple(blocks), slowest, num_loads)


def _loads(problem: Problem, plan: Plan) -> list[int]:
    return [block.load for block in score(problem, plan).blocks]


def _recomputed(problem: Problem, plan: Plan) -> list[int]:
    """Return what of every block's load is recomputation, free of network."""
    model = CostModel(problem)
    index = problem.graph.index
    total = [0] * plan.num_blocks
    for chunk, stage in enumerate(plan.stages):
        positions = [index[str(layer)] for layer in stage.layers]
        members = list(zip(positions, stage.layer_strategies, strict=True))
        terms = []
        for layer, strategy in members:
            term = model.layer_terms(layer, strategy, plan.micro_batch, None)
            assert term is not None
            terms.append(term)
        last = chunk == len(plan.stages) - 1
        total[plan.block_of(chunk)] += model.rules.recomputed(members, terms, last)
    return total


# Variants of a problem


def without_edges(problem: Problem) -> Problem:
    """Return the problem with nothing to hand on between layers."""
    graph = replace(problem.graph, edges=())
    return replace(problem, graph=graph)


def without_collectives(problem: Problem, axis: str) -> Problem:
    """Return the problem without the layers' collectives of an axis."""

    def strip(cost: LayerCost) -> LayerCost:
        computing = tuple(call for call in cost.collectives if call.axis != axis)
        return replace(cost, collectives=computing)

    kinds = tuple(
        replace(kind, costs=tuple(map(strip, kind.costs)))
        for kind in problem.graph.kinds
    )
    return replace(problem, graph=replace(problem.graph, kinds=kinds))


def with_fast_network(problem: Problem, part: int | None = None) -> Problem:
    """Return the problem with a network that takes no time.

    Only one of the ``parts`` of its topology is fast, if a ``part`` is named.
    """
    cluster = problem.cluster
    fast = cluster.topology.without_cost(part)
    return replace(problem, cluster=replace(cluster, topology=fast))
