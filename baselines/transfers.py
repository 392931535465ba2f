"""What planners with costs for moving activations share.

Times follow docs/cost-model.md: a message of ``α + X/(shards β)`` in the
layout of its receiver.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from baselines.common import chain
from nest.cost.model import Block, CostModel
from nest.ir.plan import Strategy
from nest.topology import Route


class Transfers:
    """Times of moving tensors of one problem; remembers them."""

    def __init__(self, model: CostModel) -> None:
        self.model = model
        self.order = order = chain(model.problem)
        rank = {node: i for i, node in enumerate(order)}
        self.edges = [
            (rank[source], rank[target], size_bytes)
            for source, target, size_bytes in model.transfers.edges
        ]
        #: Bytes per sample of the tensors that cross a cut in front of the
        #: i-th layer of the chain, each once with its largest size beyond.
        self.crossing = [
            list(model.transfers.crossing(set(order[:cut])).values())
            for cut in range(len(order) + 1)
        ]
        self._receive = cache(model.transfers.receive)

    def receive(
        self,
        cut: int,
        block: Block,
        micro_batch: int,
        strategy: Strategy,
        *,
        forward: bool,
    ) -> int:
        """Return the quanta of receiving a cut, from a block as large if there is room.

        ``cut`` says in front of which layer of the chain, ``strategy`` is that of the
        receiver's layer next to it. Activations come ``forward`` from the block in
        front, gradients from the block behind.
        """
        if forward:
            sender = block.before(min(block.devices, block.offset))
        else:
            end = block.offset + block.devices
            sender = block.behind(min(block.devices, block.pitch - end))
        route = self.model.network.route(block, sender)
        return self._move(route, self.crossing[cut], micro_batch, strategy)

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
        if before.layout == after.layout or not size_bytes:
            return 0, 0
        route = self.model.network.inside(block)
        forward, backward = (
            self._move(route, [size_bytes], micro_batch, strategy)
            for strategy in (after, before)
        )
        return forward, backward

    def changes(
        self, start: int, layers: Sequence[Strategy], block: Block, batch: int
    ) -> int:
        """Return the quanta of all edges inside a stage, both ways.

        ``start`` is its first layer in the order, ``layers`` are the strategies of all;
        ``block`` says where it stands, ``batch`` are the samples of a micro-batch.
        """
        stop = start + len(layers)
        return sum(
            sum(
                self.change(
                    size_bytes,
                    block,
                    batch,
                    layers[source - start],
                    layers[target - start],
                )
            )
            for source, target, size_bytes in self.edges
            if start <= source and target < stop
        )

    def _move(
        self, route: Route, sizes_bytes: list[int], micro_batch: int, strategy: Strategy
    ) -> int:
        shards = self.model.shards(strategy)
        return self._receive(route, tuple(sizes_bytes), micro_batch, shards)
