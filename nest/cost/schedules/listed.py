"""Schedules without a closed form: their lists of passes say everything."""

from __future__ import annotations

from collections.abc import Sequence

from nest.cost.schedules.base import ChunkTimes, InFlight, Schedule, peak
from nest.cost.schedules.timeline import critical_path


class ListedSchedule(Schedule):
    """A schedule whose step is timed pass by pass.

    What it keeps is the peak over the whole list. No linear form bounds it,
    so searches by paces cannot take it.
    """

    def pipeline_time(
        self, chunks: Sequence[ChunkTimes], num_micro_batches: int
    ) -> int:
        """Return the critical path of all blocks' passes."""
        return critical_path(self, chunks, num_micro_batches)

    def kept(
        self,
        kept_bytes: Sequence[int],
        block: int,
        num_blocks: int,
        num_micro_batches: int,
    ) -> InFlight:
        """Return the peak over the block's whole list of passes."""
        return peak(self, kept_bytes, block, num_blocks, num_micro_batches)
