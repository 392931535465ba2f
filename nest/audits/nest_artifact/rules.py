"""The objective of NEST's artifact (MLSys 2026), as coded.

Source: reference/nest-artifact.md states what the artifact's code does, with
the places; docs/cost-model.md states the formulas. They are those of a tree
network, so these rules know levels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from nest.audits.foreign import tree_of
from nest.audits.nest_artifact.plain import plain_problem
from nest.cost.rules import CostRules, Loads, Members, Pipeline
from nest.cost.schedules import InFlight
from nest.cost.verdict import BlockScore, StageScore
from nest.ir.plan import Plan
from nest.ir.problem import Problem
from nest.topology.alphabeta import NS_PER_S
from nest.topology.protocol import Block, Link, Network, TreeNetwork

if TYPE_CHECKING:
    from nest.cost.model import CostModel
    from nest.cost.terms import LayerTerms


class Edge(NamedTuple):
    """What crosses a boundary is paid edge by edge: how one travels.

    ``trips`` says how often the link counts: up and down above level 0.
    """

    link: Link
    trips: int


class NestArtifactRules(CostRules):
    """``T = (M+S-1) max τ + Y_first``, one strategy for all stages."""

    name: ClassVar[str] = "nest-artifact"
    by_groups: ClassVar[bool] = False
    summary: ClassVar[str] = "NEST (MLSys'26 artifact), objective as coded"
    extensions: ClassVar[bool] = False
    one_strategy: ClassVar[bool] = True
    search: ClassVar[str | None] = "nest.audits.nest_artifact.search:search"
    is_search_quick: ClassVar[bool] = True
    refused_sizes: ClassVar[dict[str, str]] = {
        field: remedy
        for field, remedy in CostRules.refused_sizes.items()
        if field != "bytes_per_sample_by_tp"
    }

    def check(self, problem: Problem) -> None:
        """Refuse what these rules cannot express."""
        super().check(problem)
        tree_of(problem)

    def plain(self, problem: Problem, tp: int | None = None) -> Problem:
        """Return the problem in the terms of the preset ``standard``."""
        return plain_problem(problem, tp)

    def groups_at(self, block: Block) -> Block:
        """Return the block in replica 0 only."""
        return block._replace(replicas=1)

    def recomputation(self, forward: int, backward: int) -> int:
        """Return the time of the backward pass."""
        return backward

    def layer_sync_ns(
        self, network: Network, block: Block | None, weight_bytes: int
    ) -> float:
        """Return what the switch tree charges for the layer's weights."""
        if block is None:
            return 0.0
        per_byte_ns, _ = _switch_tree(network, block)
        return per_byte_ns * weight_bytes

    def longest_sync_ns(
        self,
        network: Network,
        num_devices: int,
        weight_bytes: float,
        grown_bytes: float,
    ) -> float:
        """Return a time that no layer's gradient sync exceeds, in ns.

        Level 0 takes at most ``⌊lg R⌋ α + 2X/β`` on the slowest link, and
        every further one at most twice what those below it take together.
        """
        alpha_ns = max(link.alpha_ns for link in network.links)
        beta = min(link.beta for link in network.links)
        return 3.0 ** (len(network.links) - 1) * (
            (num_devices.bit_length() + 2) * alpha_ns
            + 2 * weight_bytes / beta * NS_PER_S
        )

    def blocks(self, plan: Plan, share: int) -> list[Block]:
        """Return where stages sit: the last on device 0, and so on.

        Replicas are as far apart as the devices they use.
        """
        offset, blocks = 0, []
        for stage in reversed(plan.stages):
            blocks.append(
                Block(plan.replicas, plan.devices_used, offset, stage.devices)
            )
            offset += stage.devices
        return blocks[::-1]

    def loads(self, pipeline: Pipeline, chunk: int) -> Loads:
        """Return what a stage does per micro-batch.

        Recomputation hides the receive of the gradient, and the last stage
        does without.
        """
        terms = pipeline.terms[chunk]
        last = chunk == len(pipeline.members) - 1
        received = received_back = 0
        if chunk > 0:
            received = self._slowest_edge(pipeline, chunk, chunk - 1)
        if not last:
            received_back = self._slowest_edge(pipeline, chunk, chunk + 1)
        backward = sum(t.backward - t.recomputed for t in terms)
        recomputed = self.recomputed(pipeline.members[chunk], terms, last)
        return Loads(
            forward=sum(t.forward for t in terms) + received,
            backward=backward + max(recomputed, received_back),
            receive_forward=received,
            receive_backward=received_back,
        )

    def _slowest_edge(self, pipeline: Pipeline, chunk: int, sender: int) -> int:
        """Return the slowest edge to any other stage, forward or backward."""
        model = pipeline.model
        inside = {layer for layer, _ in pipeline.members[chunk]}
        _, strategy = pipeline.members[chunk][0]
        edge = self.edge(model, pipeline.blocks[chunk], pipeline.blocks[sender])
        samples = pipeline.plan.micro_batch // strategy.dp
        return max(
            (
                self.edge_quanta(model, edge, size_bytes * samples)
                for source, target, size_bytes in model.transfers.edge_bytes(
                    strategy.tp
                )
                if (source in inside) != (target in inside)
                and (target in inside) == (sender < chunk)
            ),
            default=0,
        )

    def recomputed(
        self, members: Members, terms: Sequence[LayerTerms], last: bool
    ) -> int:
        """Return the recomputation; the last stage does without."""
        return 0 if last else super().recomputed(members, terms, last)

    def edge(self, model: CostModel, block: Block, other: Block) -> Edge:
        """Return how an edge between two stages travels.

        Their first devices meet, in replica 0.
        """
        network = _tree(model.network)
        first, second = sorted((block.offset, other.offset))
        trips = 2 if network.level(first, second) > 0 else 1
        return Edge(network.link(first, second), trips)

    def edge_quanta(self, model: CostModel, edge: Edge, size_bytes: int) -> int:
        """Return what an edge costs, a message of its own."""
        link, trips = edge
        time_ns = link.alpha_ns + size_bytes / link.beta * NS_PER_S
        return model.quanta.round(trips * time_ns, "an edge")

    def sync(self, pipeline: Pipeline, chunk: int) -> int:
        """Return the layers' sync and what the tree charges once."""
        return super().sync(pipeline, chunk) + self.sync_constant(
            pipeline.model, pipeline.blocks[chunk]
        )

    def sync_constant(self, model: CostModel, block: Block) -> int:
        """Return the quanta of a stage's sync that no layer accounts for."""
        _, constant_ns = _switch_tree(model.network, block)
        return model.quanta.round(constant_ns, "gradient sync")

    def inflight(
        self, model: CostModel, stages_left: int, num_micro_batches: int
    ) -> int:
        """Return the micro-batches in flight: 1F1B does not stop at ``M``."""
        if model.problem.job.schedule == "gpipe":
            return num_micro_batches
        return stages_left

    def stash_bytes(
        self,
        model: CostModel,
        members: Members,
        terms: Sequence[LayerTerms],
        micro_batch: int,
    ) -> int:
        """Return the bytes that enter the stage, under full recomputation."""
        _, strategy = members[0]
        if strategy.recompute != "full":
            return super().stash_bytes(model, members, terms, micro_batch)
        inside = {layer for layer, _ in members}
        samples = micro_batch // strategy.dp
        return sum(
            size_bytes * samples
            for source, target, size_bytes in model.transfers.edge_bytes(strategy.tp)
            if target in inside and source not in inside
        )

    def kept(self, pipeline: Pipeline, block: int) -> InFlight:
        """Return what a stage keeps.

        Under full recomputation a further micro-batch keeps the tensors
        that enter the stage; one keeps the activations.
        """
        model, members = pipeline.model, pipeline.members[block]
        inflight = self.inflight(
            model, len(pipeline.members) - block, pipeline.split.num_micro_batches
        )
        terms = pipeline.terms[block]
        once = sum(t.kept_bytes for t in terms)
        further = self.stash_bytes(model, members, terms, pipeline.plan.micro_batch)
        kept_bytes = once + (inflight - 1) * further
        return InFlight((inflight,), (kept_bytes,), inflight, kept_bytes)

    def step(
        self,
        pipeline: Pipeline,
        stages: Sequence[StageScore],
        blocks: Sequence[BlockScore],
    ) -> int:
        """Return ``(M+S-1) max τ + Y`` with the first stage's ``Y``."""
        slots = pipeline.split.num_micro_batches + len(stages) - 1
        return slots * max(b.load for b in blocks) + blocks[0].sync

    def slowest(self, blocks: Sequence[BlockScore]) -> tuple[int, int]:
        """Return the block with the longest load, and the first one."""
        slowest, _ = super().slowest(blocks)
        return slowest, 0


def artifact_rules(model: CostModel) -> NestArtifactRules:
    """Return the rules of a model that has these."""
    assert isinstance(model.rules, NestArtifactRules)
    return model.rules


def _tree(network: Network) -> TreeNetwork:
    """Return the network of a problem that :func:`tree_of` accepts."""
    assert network.tree is not None
    return network.tree


def _switch_tree(network: Network, block: Block) -> tuple[float, float]:
    """Return (ns per byte, ns) of the gradient sync as coded.

    Reference: reference/nest-artifact.md §2. Ranks 0, P, 2P, … meet at level ``L``.
    Level 0 is charged ``⌊lg R⌋`` rounds ``lat_0 + X/2^i/bw_0``; every level above
    ``2(lat + X/bw)`` and once more the totals reached at the levels between.
    """
    tree = _tree(network)
    rounds = block.replicas.bit_length() - 1
    latencies = tree.latencies_ns
    factors = [NS_PER_S / bw for bw in tree.raw_bandwidths]
    per_byte = math.fsum(factors[0] / 2**i for i in range(rounds))
    constant = rounds * latencies[0]
    top = tree.level(0, (block.replicas - 1) * block.pitch)
    before_per_byte = before = 0.0
    for level in range(1, top + 1):
        per_byte += 2 * factors[level] + before_per_byte
        constant += 2 * latencies[level] + before
        before_per_byte += per_byte
        before += constant
    return per_byte, constant
