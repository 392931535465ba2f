"""ZB-H1: 1F1B whose gradients of weights wait, in the memory of 1F1B.

Source: Qi et al., *Zero Bubble Pipeline Parallelism*, ICLR 2024, arXiv
2401.10241, section 3.1: as many micro-batches are in flight on every block as
on the first one under 1F1B, and gradients of weights fill what is left.
"""

from __future__ import annotations

from collections.abc import Iterator

from nest.cost.schedules.base import Pass
from nest.cost.schedules.listed import ListedSchedule


class ZBH1(ListedSchedule):
    """Block ``r`` computes gradients of weights ``r`` micro-batches late.

    For equal stages with ``F = G - W = W`` the step takes
    ``M τ + (S-1)(F + (G - W) - W)``, a third of the bubble of 1F1B.
    """

    name = "zb-h1"
    title = "ZB-H1"

    def passes(
        self, block: int, num_blocks: int, num_micro_batches: int
    ) -> Iterator[Pass]:
        """Yield 1F1B, with weights ``r`` micro-batches behind inputs."""
        warm_up = num_blocks - block - 1
        for m in range(min(warm_up, num_micro_batches)):
            yield Pass(block, m, False)
        for m in range(num_micro_batches):
            if warm_up + m < num_micro_batches:
                yield Pass(block, warm_up + m, False)
            yield Pass(block, m, True, "inputs")
            if m >= block:
                yield Pass(block, m - block, True, "weights")
        for m in range(max(0, num_micro_batches - block), num_micro_batches):
            yield Pass(block, m, True, "weights")
