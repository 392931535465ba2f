"""What planners with costs for moving activations share.

Times follow docs/cost-model.md: a message of ``α + X/(shards β)`` in the
layout of its receiver, over the lowest level that holds both ends.
"""

from __future__ import annotations

from baselines.common import chain
from nest.cost.model import Block, CostModel
from nest.ir.plan import Strategy
from nest.ir.problem import Problem


class Transfers:
    """Times of moving tensors of one problem; remembers them."""

    def __init__(self, problem: Problem, model: CostModel) -> None:
        self.model = model
        self.sequence_parallel = problem.job.sequence_parallel
        rank = {node: i for i, node in enumerate(chain(problem))}
        self.edges = [
            (rank[source], rank[target], size_bytes)
            for source, target, size_bytes in model.edges
        ]
        #: Bytes per sample of the tensors that cross a cut in front of the
        #: i-th layer of the chain, each once with its largest size beyond.
        self.crossing: list[list[int]] = []
        for cut in range(len(rank) + 1):
            sizes = []
            for tensor in model.tensors:
                beyond = [
                    size
                    for node, size in tensor.consumers
                    if rank[node] >= cut
                ]
                if rank[tensor.producer] < cut and beyond:
                    sizes.append(max(beyond))
            self.crossing.append(sizes)
        self._known: dict[object, int] = {}

    def receive(
        self,
        cut: int,
        block: Block,
        micro_batch: int,
        strategy: Strategy,
        *,
        forward: bool,
    ) -> int:
        """Return the quanta of receiving a cut on a block.

        Parameters
        ----------
        cut
            In front of which layer of the chain.
        block, strategy
            The receiver's, and of its layer next to the cut.
        forward
            Activations from the block in front, else gradients from the
            block behind.
        """
        levels = self.model.boundary_levels(block, forward=forward)
        return max(
            self._move(level, self.crossing[cut], micro_batch, strategy)
            for level in levels
        )

    def change(
        self,
        size_bytes: int,
        block: Block,
        micro_batch: int,
        before: Strategy,
        after: Strategy,
    ) -> tuple[int, int]:
        """Return the quanta of an edge whose ends differ in layout.

        Forward in the layout ``after``, backward in ``before``; nothing if
        ``(dp, tp, cp)`` are the same.
        """
        if (before.dp, before.tp, before.cp) == (after.dp, after.tp, after.cp):
            return 0, 0
        network = self.model.network
        levels = {
            network.level(start, start + block.devices - 1)
            for replica in range(block.replicas)
            for start in [replica * block.pitch + block.offset]
        }
        forward, backward = (
            max(
                self._move(level, [size_bytes], micro_batch, strategy)
                for level in levels
            )
            for strategy in (after, before)
        )
        return forward, backward

    def _move(
        self,
        level: int,
        sizes_bytes: list[int],
        micro_batch: int,
        strategy: Strategy,
    ) -> int:
        if not sizes_bytes:
            return 0
        shards = strategy.shards(self.sequence_parallel)
        key = (level, tuple(sizes_bytes), micro_batch, shards)
        if key not in self._known:
            self._known[key] = self.model.message(level) + sum(
                self.model.tensor(level, size, micro_batch, shards)
                for size in sizes_bytes
            )
        return self._known[key]
