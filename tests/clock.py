"""A clock for tests of time limits: it counts instead of running."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nest.ir.problem import Problem
from nest.solvers.base import Deadline, SolveOptions
from nest.solvers.cell import OnProgress
from nest.solvers.result import SolveResult
from tests.inside import run_inside


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

    def shortened(self, limit_s: float | None) -> Ticking:
        """Return a clock of its own that stands as this one does."""
        return Ticking(self.ticks)


class Spending(Deadline):
    """A clock that stands still but for what is spent."""

    def __init__(self, limit_s: float | None) -> None:
        super().__init__(limit_s)
        self.spent_s = 0.0

    @property
    def elapsed_s(self) -> float:
        return self.spent_s


def spending(
    monkeypatch: pytest.MonkeyPatch, module: str, seconds: float
) -> list[float]:
    """Let every run of a solver take its whole share, up to some seconds.

    Returns the limits that the runs get.
    """
    clocks: list[Spending] = []
    limits: list[float] = []

    def deadline(limit_s: float | None) -> Spending:
        clocks.append(Spending(limit_s))
        return clocks[-1]

    def run(
        problem: Problem,
        name: str,
        options: SolveOptions,
        on_progress: OnProgress | None = None,
    ) -> SolveResult:
        assert options.time_limit_s is not None
        limits.append(options.time_limit_s)
        clocks[0].spent_s += min(options.time_limit_s, seconds)
        return run_inside(problem, name, replace(options, time_limit_s=None))

    monkeypatch.setattr(f"{module}.Deadline", deadline)
    monkeypatch.setattr(f"{module}.run_solver", run)
    return limits
