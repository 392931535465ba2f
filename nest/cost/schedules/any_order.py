"""What holds for every order of passes, where a job leaves it to plans.

Source of the bounds: docs/cost-model.md, *Orders of plans*.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nest.cost.schedules.base import ChunkTimes, InFlight, Pass, Schedule
from nest.errors import UnsupportedProblemError
from nest.ir.plan import Placement


class AnyOrder(Schedule):
    """A schedule that says nothing but how chunks sit on blocks."""

    name = "any"
    title = "any order of passes"

    def __init__(self, virtual_stages: int, placement: Placement = "loop") -> None:
        self.virtual_stages, self.placement = virtual_stages, placement

    def passes(
        self, block: int, num_blocks: int, num_micro_batches: int
    ) -> Iterator[Pass]:
        """Raise ``UnsupportedProblemError``: plans say them."""
        raise UnsupportedProblemError(
            "$.job.schedule: expected one schedule for a search that does "
            "not order passes, got several; use solver dp"
        )

    def pipeline_time(
        self, chunks: Sequence[ChunkTimes], num_micro_batches: int
    ) -> int:
        """Return what no order is shorter than, whatever fits in memory.

        Before its first pass a block waits for a forward pass of each chunk
        in front, and gives them gradients after its last ones of inputs.
        """
        num_blocks = len(chunks) // self.virtual_stages
        fill = drain = longest = 0
        for block in range(num_blocks):
            members = [chunks[x] for x in self.chunks_of(block, num_blocks)]
            load = sum(x.forward + x.backward for x in members)
            late = sum(x.weight_backward for x in members)
            rest = max(num_micro_batches * late, drain)
            time = fill + num_micro_batches * (load - late) + rest
            longest = max(longest, time)
            fill += chunks[block].forward
            drain += chunks[block].backward - chunks[block].weight_backward
        return longest

    def kept(
        self,
        kept_bytes: Sequence[int],
        block: int,
        num_blocks: int,
        num_micro_batches: int,
    ) -> InFlight:
        """Return what every order keeps: a micro-batch in every chunk.

        When it reaches the last chunk of a block it is in all of them.
        """
        count = len(kept_bytes)
        total = sum(kept_bytes)
        return InFlight((1,) * count, tuple(kept_bytes), count, total)
