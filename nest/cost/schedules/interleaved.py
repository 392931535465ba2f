"""Interleaved 1F1B: every block runs several chunks of the model.

Source: Narayanan et al., *Efficient Large-Scale Language Model Training on GPU
Clusters Using Megatron-LM*, SC 2021, arXiv 2104.04473, section 2.2; the order
of the passes is that of Megatron-LM.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nest.cost.schedules.base import InFlight, Pass, alternate
from nest.cost.schedules.listed import ListedSchedule


class Interleaved(ListedSchedule):
    """1F1B with ``v`` chunks per block, timed pass by pass.

    For equal chunks the step takes ``M τ_b + (S-1) τ_b / v``.
    """

    name = "interleaved 1f1b"
    title = "interleaved 1F1B"

    def __init__(self, virtual_stages: int) -> None:
        self.virtual_stages = virtual_stages

    def why_not(self, num_blocks: int, num_micro_batches: int) -> str | None:
        """Return why not: micro-batches come in groups of ``S``."""
        if num_micro_batches % num_blocks == 0:
            return None
        return (
            f"virtual_stages: expected a number of blocks that divides the "
            f"micro-batches ({num_micro_batches}) of an interleaved plan, got "
            f"{num_blocks}"
        )

    def kept(
        self,
        kept_bytes: Sequence[int],
        block: int,
        num_blocks: int,
        num_micro_batches: int,
    ) -> InFlight:
        """Return what the micro-batches in flight keep.

        Behind the warm-up as many passes of every chunk are in flight as
        ``S v`` forward passes earlier, so the most is kept by the end of the
        first such round: within ``2(S-1) + (v-1)S + S v < 3 S v`` forward
        passes, those of ``3 S`` micro-batches.
        """
        enough = min(num_micro_batches, 3 * num_blocks)
        return super().kept(kept_bytes, block, num_blocks, enough)

    def passes(
        self, block: int, num_blocks: int, num_micro_batches: int
    ) -> Iterator[Pass]:
        """Yield ``2(S-r-1) + (v-1)S`` forward passes, then one of each.

        Micro-batches in groups of ``S``, each group through the block's
        chunks in order, backward in the opposite order.
        """
        virtual = self.virtual_stages
        turns = range(virtual)
        groups = [
            range(first, first + num_blocks)
            for first in range(0, num_micro_batches, num_blocks)
        ]

        def passes(backward: bool) -> Iterator[Pass]:
            order = reversed(turns) if backward else turns
            chunks = [turn * num_blocks + block for turn in order]
            return (
                Pass(chunk, micro_batch, backward)
                for group in groups
                for chunk in chunks
                for micro_batch in group
            )

        warm_up = 2 * (num_blocks - block - 1) + (virtual - 1) * num_blocks
        return alternate(passes(False), passes(True), warm_up)
