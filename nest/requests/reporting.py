"""``report``: a page about a problem and plans for it."""

from __future__ import annotations

from dataclasses import dataclass

from nest.requests.restricted import RestrictedRequest
from nest.requests.settings import setting
from nest.requests.solving import (
    GapRequest,
    OneSolverRequest,
    SeedRequest,
    TimeLimitRequest,
    WorkersRequest,
)
from nest.requests.values import Words, names


@dataclass(frozen=True, kw_only=True)
class ReportRequest(
    RestrictedRequest,
    OneSolverRequest,
    TimeLimitRequest,
    WorkersRequest,
    GapRequest,
    SeedRequest,
    command="nest report",
):
    """A problem, and the plans that a page shows; or a solver finds one."""

    plans: Words = setting(
        "[PLAN]…", "Files, or settings of plans.", names, multiple=True
    )

    @property
    def plan_texts(self) -> tuple[str, ...]:
        """The plans that are settings or files."""
        return tuple(self.plans)
