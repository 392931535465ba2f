"""1F1B: one forward, one backward, after a warm-up that fills the pipeline.

Source: Narayanan et al., *PipeDream: Generalized Pipeline Parallelism for DNN
Training*, SOSP 2019; with a flush at the end of the step, Narayanan et al.,
*Memory-Efficient Pipeline-Parallel DNN Training*, ICML 2021.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from nest.cost.schedules.base import Pass, PassTimes, StageSchedule, Weights, alternate


class OneFOneB(StageSchedule):
    """``T = Σ τ + (M-1) max τ``: no less than the schedule takes.

    For equal stages it takes exactly that.
    """

    name = "1f1b"
    title = "1F1B"
    once: ClassVar[Weights] = (1,)
    steady: ClassVar[Weights] = (1,)
    tail: ClassVar[Weights] = (0,)

    def paces(self, load: PassTimes) -> tuple[Any, ...]:
        """Return ``τ``."""
        return (load.forward + load.backward,)

    def inflight(self, stages_left: int, num_micro_batches: int) -> int:
        """Return ``min(M, S-s+1)``."""
        return min(num_micro_batches, stages_left)

    def passes(
        self, block: int, num_blocks: int, num_micro_batches: int
    ) -> Iterator[Pass]:
        """Yield ``S-r-1`` forward passes, then one of each in turn."""
        forward = (Pass(block, m, False) for m in range(num_micro_batches))
        backward = (Pass(block, m, True) for m in range(num_micro_batches))
        return alternate(forward, backward, num_blocks - block - 1)
