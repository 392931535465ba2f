"""Tests that hold for every form of ``cpsat`` and ``milp``.

Inside :func:`checked` a solve without a limit, and without a form that is
asked for, is done in the other form, too, and both have to prove the same;
inside :func:`mixed` about half of all problems are solved in the other form.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from formulations.search import FORMS, Formulation
from nest.ir import Problem
from nest.solvers.base import SolveOptions, SolverOutput, ignore_progress


def _has_forms(solver: Formulation, problem: Problem, options: SolveOptions) -> bool:
    return (
        problem.preset == "standard"
        and problem.job.granularity == "stage"
        and "form" not in options.extra
        and options.time_limit_s is None
        and "form" in solver.capabilities.options
    )


def _in_form(options: SolveOptions, form: str) -> SolveOptions:
    return replace(options, extra={**options.extra, "form": form})


@contextmanager
def checked() -> Iterator[None]:
    """Solve in both forms."""
    original = Formulation.solve

    def solve(
        self: Formulation,
        problem: Problem,
        options: SolveOptions,
        report: Any = ignore_progress,
    ) -> SolverOutput:
        output = original(self, problem, options, report)
        if _has_forms(self, problem, options):
            other = original(self, problem, _in_form(options, FORMS[1]))
            assert other.status is output.status
            if options.gap == 0 and output.claimed_quanta is not None:
                assert other.claimed_quanta is not None
                slack = self.capabilities.precision * output.claimed_quanta
                assert abs(other.claimed_quanta - output.claimed_quanta) <= slack
        return output

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Formulation, "solve", solve)
        yield


@contextmanager
def mixed() -> Iterator[None]:
    """Solve each problem in one of the forms."""
    original = Formulation.solve

    def solve(
        self: Formulation,
        problem: Problem,
        options: SolveOptions,
        report: Any = ignore_progress,
    ) -> SolverOutput:
        if _has_forms(self, problem, options):
            # Not the problem's hash: a schedule may be of the test's own.
            number = zlib.crc32(msgspec.json.encode(problem)) % len(FORMS)
            options = _in_form(options, FORMS[number])
        return original(self, problem, options, report)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Formulation, "solve", solve)
        yield
