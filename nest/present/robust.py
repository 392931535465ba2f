"""Guaranteed step times for people."""

from __future__ import annotations

from nest.analysis.robust import Candidate, Robust
from nest.ir.problem import Problem
from nest.present.table import count
from nest.uncertainty.intervals import GUARANTEED
from nest.units import format_bytes
from nest.util.time_scale import TimeScale


def robust_rows(problem: Problem, robust: Robust) -> list[tuple[str, str]]:
    """Return labelled lines: what is guaranteed, and at which price."""
    best, first = robust.best, robust.first
    if best is None or first is None:
        return [("guaranteed", "nothing: there is no plan")]
    scale = TimeScale.fitting(best.guaranteed_ns, problem.time_unit)

    def text(candidate: Candidate) -> str:
        return scale.short(candidate.guaranteed_ns)

    searched = (
        f"{count(robust.candidates, 'plan')} of "
        f"{count(robust.searches, 'search')} compared"
    )
    bound = "nothing is proven of others"
    if robust.bound_ns is not None and robust.gap is not None:
        bound = (
            f"no plan's is below {scale.short(robust.bound_ns)}, "
            f"{100 * robust.gap:.1f} % less"
        )
    rows = [
        (
            "guaranteed",
            f"{text(best)} with {100 * GUARANTEED:.0f} %; {searched}; {bound}",
        )
    ]
    if best is first:
        rows.append(("", "the fastest plan is the safest, too"))
    else:
        unfit = (
            ""
            if _keeps(problem, first)
            else ", but " + _memory(problem, first)
        )
        rows.append(("", f"the fastest plan: {text(first)}{unfit}"))
        reference = robust.kept or first
        if reference is robust.kept:
            whose = "the fastest plan that keeps its memory"
            rows.append(("", f"{whose}: {text(reference)}"))
        if reference is not best:
            rows.append(
                (
                    "",
                    f"this one costs {_percent(robust.cost(reference))} in "
                    f"the step time and gains "
                    f"{_percent(robust.gain(reference))} in the guaranteed "
                    f"one",
                )
            )
    if not _keeps(problem, best):
        rows.append(("", _memory(problem, best)))
    return rows


def _keeps(problem: Problem, candidate: Candidate) -> bool:
    if candidate.memory_kept is not None:
        return candidate.memory_kept
    return candidate.intervals.memory_90_bytes.high <= _whole_bytes(problem)


def _whole_bytes(problem: Problem) -> int:
    cluster = problem.cluster
    return cluster.memory_bytes() + cluster.headroom_bytes()


def _memory(problem: Problem, candidate: Candidate) -> str:
    high = candidate.intervals.memory_90_bytes.high
    return (
        f"its memory is not guaranteed: one run in twenty needs more than "
        f"{format_bytes(high, 1)}, and a device has "
        f"{format_bytes(_whole_bytes(problem))}"
    )


def _percent(share: float | None) -> str:
    return "nothing" if not share else f"{100 * share:.2f} %"
