"""Schedules without a closed form: their lists of passes say everything."""

from __future__ import annotations

from collections.abc import Sequence

from nest.cost.schedules.base import ChunkTimes, InFlight, Schedule, peak
from nest.cost.schedules.timeline import MOST_PASSES, critical_path
from nest.errors import InvalidProblemError


class ListedSchedule(Schedule):
    """A schedule whose step is timed pass by pass.

    What it keeps is the peak over the whole list. No linear form bounds it,
    so searches by paces cannot take it.
    """

    def pipeline_time(
        self, chunks: Sequence[ChunkTimes], num_micro_batches: int
    ) -> int:
        """Return the critical path of all blocks' passes.

        Raises ``InvalidProblemError`` if there are more than :data:`MOST_PASSES`.
        """
        self.check_passes(len(chunks), num_micro_batches)
        return critical_path(self, chunks, num_micro_batches)

    def kept(
        self,
        kept_bytes: Sequence[int],
        block: int,
        num_blocks: int,
        num_micro_batches: int,
    ) -> InFlight:
        """Return the peak over the block's whole list of passes.

        Raises ``InvalidProblemError`` if a step has more than :data:`MOST_PASSES`.
        """
        self.check_passes(num_blocks * self.virtual_stages, num_micro_batches)
        return peak(self, kept_bytes, block, num_blocks, num_micro_batches)

    def check_passes(self, num_chunks: int, num_micro_batches: int) -> None:
        """Raise ``InvalidProblemError`` if a step has too many passes to run them."""
        count = 2 * num_chunks * num_micro_batches
        if count > MOST_PASSES:
            raise InvalidProblemError(
                f"$.job.global_batch: expected steps of at most "
                f"{MOST_PASSES:,} passes where they are timed one by one, as "
                f"under schedule {self.name!r}, got {count:,}; lower it, "
                f"raise micro_batches, or choose another schedule"
            )
