"""A clock for tests of time limits: it counts instead of running."""

from __future__ import annotations

from nest.solvers.base import Deadline


class Ticking(Deadline):
    """Time is up when it was asked for so many times.

    A forked process goes on from where the clock stood.
    """

    def __init__(self, ticks: int) -> None:
        super().__init__(None)
        self.ticks = ticks

    @property
    def passed(self) -> bool:
        self.ticks -= 1
        return self.ticks < 0

    def part(self, limit_s: float | None) -> Ticking:
        """Return a clock of its own that stands as this one does."""
        return Ticking(self.ticks)
