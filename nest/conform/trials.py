"""Runs of a solver whose contract is checked, and what checks know of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from nest.conform.problems import Reference
from nest.solvers.base import Capabilities, Progress, SolveOptions, Status
from nest.solvers.result import Outcome, SolveResult


@dataclass(frozen=True)
class Trial:
    """One run of the solver, and all that is known of it."""

    reference: Reference
    options: SolveOptions
    #: What came of it; or, if it was refused, why.
    result: SolveResult | None
    error: str
    #: What it reported while it ran, unchecked.
    reports: tuple[Progress, ...] = ()
    #: The end of what it printed.
    log: str = ""
    #: Whether the runner had to kill it.
    late: bool = False
    #: Processes that it left, and the runner had to end.
    num_detached: int = 0

    @property
    def name(self) -> str:
        """Name of the problem."""
        return self.reference.name

    @property
    def outcome(self) -> Outcome:
        """What became of it."""
        return Outcome.ERROR if self.result is None else self.result.outcome

    @property
    def status(self) -> Status | None:
        """What is proven."""
        return None if self.result is None else self.result.status

    @property
    def detail(self) -> str:
        """Why, in one line."""
        text = self.error if self.result is None else self.result.detail
        return " ".join(text.split())

    @property
    def killed(self) -> bool:
        """Whether it did not stop by itself: a command is killed too."""
        extra = {} if self.result is None else self.result.extra
        return self.late or bool(extra.get("killed"))

    @property
    def ended(self) -> SolveResult | None:
        """Its result, if it is one and no limit cut it short."""
        result = self.result
        if result is None or result.outcome is not Outcome.SOLVED:
            return None
        return None if result.limit is not None or self.killed else result

    def to_json(self) -> dict[str, Any]:
        """Return what the report says of it."""
        options = self.options
        request = {
            "problem": self.name,
            "time_limit_s": options.time_limit_s,
            "workers": options.num_workers,
            "warm_start": options.warm_start is not None,
            "options": dict(options.extra),
        }
        if self.result is None:
            return {**request, "outcome": "error", "detail": self.detail}
        return {
            **request,
            "outcome": str(self.outcome),
            **self.result.summary(),
            "step_time_quanta": self.result.step_quanta,
            "lower_bound_quanta": self.result.lower_bound_quanta,
            "optimum_quanta": self.reference.optimum_quanta,
        }


class SolverCall(Protocol):
    """Runs the solver once more."""

    def __call__(
        self, reference: Reference, options: SolveOptions | None = None
    ) -> Trial:
        """Run it."""


@dataclass(frozen=True)
class Candidate:
    """A solver, what it promises, and its runs so far.

    ``trials`` are a run per problem, ``large`` is the one on the large problem, None if
    it was interrupted before; ``every`` are all runs so far, further ones too.
    ``left_behind`` returns the files that they have left.
    """

    name: str
    capabilities: Capabilities
    options: SolveOptions
    trials: tuple[Trial, ...]
    large: Trial | None
    every: Sequence[Trial]
    run: SolverCall
    left_behind: Callable[[], list[str]]
