"""GPipe: all forward passes, then all backward passes.

Source: Huang et al., *GPipe: Efficient Training of Giant Neural Networks
using Pipeline Parallelism*, NeurIPS 2019, arXiv 1811.06965.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from nest.cost.schedules.base import Pass, PassTimes, StageSchedule, Weights


class GPipe(StageSchedule):
    """``T = Σ τ + (M-1) (max F + max G)``, as long as the schedule takes.

    The slowest forward and the slowest backward pass may be those of different stages.
    """

    name = "gpipe"
    title = "GPipe"
    once: ClassVar[Weights] = (1, 1)
    steady: ClassVar[Weights] = (1, 1)
    tail: ClassVar[Weights] = (0, 0)

    def paces(self, load: PassTimes) -> tuple[Any, ...]:
        """Return ``F`` and ``G``."""
        return (load.forward, load.backward)

    def inflight(self, stages_left: int, num_micro_batches: int) -> int:
        """Return ``M``."""
        return num_micro_batches

    def passes(
        self, block: int, num_blocks: int, num_micro_batches: int
    ) -> Iterator[Pass]:
        """Yield all forward, then all backward passes."""
        return (
            Pass(block, m, is_backward)
            for is_backward in (False, True)
            for m in range(num_micro_batches)
        )
