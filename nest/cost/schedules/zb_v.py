"""ZB-V: two chunks per block, down the pipeline and up again.

Source: Qi et al., *Zero Bubble Pipeline Parallelism*, ICLR 2024, arXiv
2401.10241, section 6; the order of the passes is that for equal times of the
three passes of a chunk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Literal

from nest.cost.schedules.base import Pass
from nest.cost.schedules.listed import ListedSchedule
from nest.ir.plan import Placement

#: What a block runs: forward, gradients of inputs, gradients of weights.
_Kind = Literal["F", "I", "W"]


class ZBV(ListedSchedule):
    """No bubble for equal chunks with ``F = G - W = W``, but at the ends.

    Chunks ``r`` and ``2S-1-r`` sit on block ``r``, so the loss is where the
    pipeline began, and the memory of all blocks is alike.
    """

    name = "zb-v"
    title = "ZB-V"
    virtual_stages = 2
    placement: Placement = "v"

    def passes(
        self, block: int, num_blocks: int, num_micro_batches: int
    ) -> Iterator[Pass]:
        """Yield the passes of the order for many micro-batches.

        That order is for at least ``2S - 1`` of them; with fewer, those that
        are missing are left out.
        """
        count = max(num_micro_batches, 2 * num_blocks - 1)
        chunks = (block, 2 * num_blocks - 1 - block)
        done: Counter[tuple[int, str]] = Counter()
        for turn, kind in self._order(block, num_blocks, count):
            m = done[turn, kind]
            done[turn, kind] += 1
            if m >= num_micro_batches:
                continue
            if kind == "F":
                yield Pass(chunks[turn], m, False)
            elif kind == "I":
                yield Pass(chunks[turn], m, True, "inputs")
            else:
                yield Pass(chunks[turn], m, True, "weights")

    def _order(
        self, block: int, num_blocks: int, count: int
    ) -> Iterator[tuple[int, _Kind]]:
        """Yield (chunk of the block, kind); micro-batches are in order."""
        remaining = num_blocks - block
        for _ in range(2 * remaining - 1):
            yield 0, "F"
        for _ in range(block):
            yield 1, "F"
            yield 0, "F"
        for _ in range(remaining):
            yield from ((1, "F"), (1, "I"), (1, "W"))
        # So far 2 left - 1 + block forward passes of the first chunk, and
        # block + left = S of the second one.
        ahead = 2 * remaining - 1 + block
        for m in range(num_blocks, count):
            if m + ahead - num_blocks < count:
                yield 0, "F"
            yield from ((0, "I"), (0, "W"))
            yield from ((1, "F"), (1, "I"), (1, "W"))
        for _ in range(block):
            yield from ((0, "I"), (1, "I"))
        for _ in range(remaining):
            yield from ((0, "I"), (0, "W"))
        yield from ((1, "W"),) * block
        yield from ((0, "W"),) * block
