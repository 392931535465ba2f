"""What a check of a solver's contract found."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from nest.solvers.cell import GRACE_S
from nest.util.versions import provenance


class State(enum.StrEnum):
    """Whether a promise was kept; a promise not made is none of both."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_APPLICABLE = "not applicable"
    #: It was interrupted before that was known.
    OPEN = "open"


class Check(NamedTuple):
    """One promise, whether it was kept, and why that is said, in one line."""

    name: str
    state: State
    reason: str


@dataclass(frozen=True)
class Report:
    """What checking a solver's contract found."""

    #: The keyword, and the version of its package and engines.
    solver: str
    version: str | None
    #: Of every run but those that ask for less.
    time_limit_s: float
    #: In the order of :data:`nest.conform.CHECKS`.
    checks: tuple[Check, ...]
    #: What every run came to, as in a ``nest-compare/1`` document but without plans.
    cells: tuple[Mapping[str, Any], ...] = ()

    def count(self, state: State) -> int:
        """Return how many checks ended so."""
        return sum(check.state is state for check in self.checks)

    @property
    def failed(self) -> tuple[str, ...]:
        """The promises that were broken, a line each."""
        return tuple(
            f"{check.name}: {check.reason}"
            for check in self.checks
            if check.state is State.FAILED
        )

    @property
    def conforms(self) -> bool | None:
        """Whether no promise was broken; None if that is open."""
        if self.failed:
            return False
        return None if self.count(State.OPEN) else True

    def to_json(self) -> dict[str, Any]:
        """Return the ``nest-conform/1`` document."""
        return {
            "schema": "nest-conform/1",
            "solver": self.solver,
            "version": self.version,
            "time_limit_s": self.time_limit_s,
            "grace_s": GRACE_S,
            "conforms": self.conforms,
            **provenance(),
            "checks": [
                {"check": check.name, "state": str(check.state), "reason": check.reason}
                for check in self.checks
            ],
            "cells": [dict(cell) for cell in self.cells],
        }
