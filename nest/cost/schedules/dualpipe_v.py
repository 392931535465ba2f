"""DualPipe-V: forward and backward passes of two micro-batches in pairs.

Sources: DeepSeek-AI, *DeepSeek-V3 Technical Report*, arXiv 2412.19437, section
3.2.1 (DualPipe: a forward and a backward pass together, the all-to-all of each
behind the computation of the other); Qi et al., *DualPipe could be better
without the Dual*, 2025, and the DualPipe repository of DeepSeek-AI (its half
in V shape, and the order of its steps).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from typing import ClassVar

from nest.cost.schedules.base import Pass
from nest.cost.schedules.listed import ListedSchedule
from nest.ir.plan import Placement


class DualPipeV(ListedSchedule):
    """Chunks as in ZB-V; most forward passes are paired with a backward one.

    In a pair the expert all-to-all of each pass runs behind the computation
    of the other.
    """

    name = "dualpipe-v"
    title = "DualPipe-V"
    virtual_stages = 2
    placement: Placement = "v"
    paired_axes: ClassVar[frozenset[str]] = frozenset({"ep"})

    def why_not(self, num_blocks: int, num_micro_batches: int) -> str | None:
        """Return why not: there must be a micro-batch for every chunk."""
        if num_micro_batches >= 2 * num_blocks:
            return None
        return (
            f"stages: expected at most half as many blocks as micro-batches "
            f"({num_micro_batches}) under schedule {self.name!r}, got {num_blocks}"
        )

    def most_paired(self, num_blocks: int, num_micro_batches: int) -> int:
        """Return ``M - S``.

        Of the pairs, ``(F_a B_b)`` are ``M-2S+r+1`` at most, ``(F_b B_a)``
        ``M-S``, those of the third step included; ``r < S``.
        """
        return num_micro_batches - num_blocks

    def passes(
        self, block: int, num_blocks: int, num_micro_batches: int
    ) -> Iterator[Pass]:
        """Yield the steps of the block's list, docs/cost-model.md."""
        chunks = (block, 2 * num_blocks - 1 - block)
        done: Counter[tuple[int, str]] = Counter()
        #: Passes whose weights still need their gradients, the oldest first.
        waiting: deque[Pass] = deque()
        after = num_blocks - block - 1

        def forward(number: int, paired: bool = False) -> Pass:
            m = done[number, "F"]
            done[number, "F"] += 1
            return Pass(chunks[number], m, False, paired=paired)

        def backward(number: int, apart: bool = False) -> Pass:
            m = done[number, "B"]
            done[number, "B"] += 1
            run = Pass(chunks[number], m, True, "inputs" if apart else "all")
            if apart:
                waiting.append(run._replace(gradients="weights"))
            return run

        def weights() -> Iterator[Pass]:
            if waiting:
                yield waiting.popleft()

        for _ in range(2 * after):
            yield forward(0)
        for _ in range(block + 1):
            yield forward(0)
            yield forward(1)
        for _ in range(after):
            yield backward(1, apart=True)
            yield from weights()
            yield forward(1)
        for number in range(num_micro_batches - 2 * num_blocks + block + 1):
            # The last block has nothing to hide at first.
            yield forward(0, paired=number > 0 or after > 0)
            yield backward(1)
            yield forward(1, paired=True)
            yield backward(0)
        for _ in range(after):
            yield backward(1)
            yield forward(1, paired=True)
            yield backward(0)
        # From the middle on weights wait, for the bubbles behind.
        middle, late = (block + 1) // 2, block % 2 == 1
        for number in range(block + 1):
            yield backward(1, number > middle or (number == middle and late))
            yield backward(0, number >= middle)
        for _ in range(after):
            yield from weights()
            yield backward(0, apart=True)
        while waiting:
            yield from weights()
