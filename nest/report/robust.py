"""Guaranteed step times for people."""

from __future__ import annotations

from fractions import Fraction

from nest.intervals import GUARANTEED
from nest.ir.problem import Problem
from nest.report.table import TimeScale, percent
from nest.robust import Robust


def robust_rows(problem: Problem, found: Robust) -> list[tuple[str, str]]:
    """Return labelled lines: what is guaranteed, and at which price."""
    guaranteed_ns = found.guaranteed_ns(found.guaranteed_quanta)
    if guaranteed_ns is None:
        return [("guaranteed", "nothing: there is no plan")]
    scale = TimeScale.fitting(guaranteed_ns, problem.time_unit)
    proof = "no plan's is shorter" if found.proven else "best known"
    rows = [
        (
            "guaranteed",
            f"{scale(guaranteed_ns)} with {100 * GUARANTEED:.0f} %, {proof}",
        )
    ]
    fastest_ns = found.guaranteed_ns(found.fastest_quanta)
    if found.answer is found.fastest or found.cost is None:
        return [*rows, ("", "the fastest plan is the safest, too")]
    return [
        *rows,
        (
            "",
            f"the fastest plan: {scale(fastest_ns)}; this one costs "
            f"{_signed(found.cost)} in the step time and gains "
            f"{_signed(found.gain)} in the guaranteed one",
        ),
    ]


def _signed(part: Fraction | None) -> str:
    sign = "-" if part is not None and part < 0 else ""
    return f"{sign}{percent(None if part is None else abs(part))} %"
