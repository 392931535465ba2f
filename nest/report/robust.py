"""Guaranteed step times for people."""

from __future__ import annotations

from nest.intervals import GUARANTEED
from nest.ir.problem import Problem
from nest.report.table import TimeScale, count
from nest.robust import Candidate, Robust
from nest.units import GIB, format_bytes


def robust_rows(problem: Problem, found: Robust) -> list[tuple[str, str]]:
    """Return labelled lines: what is guaranteed, and at which price."""
    best, first = found.best, found.first
    if best is None or first is None:
        return [("guaranteed", "nothing: there is no plan")]
    scale = TimeScale.fitting(best.guaranteed_ns, problem.time_unit)

    def text(candidate: Candidate) -> str:
        return scale.short(candidate.guaranteed_ns)

    searched = (
        f"{count(found.candidates, 'plan')} of "
        f"{count(found.searches, 'search')} compared"
    )
    bound = "nothing is proven of others"
    if found.bound_ns is not None and found.gap is not None:
        bound = (
            f"no plan's is below {scale.short(found.bound_ns)}, "
            f"{100 * found.gap:.1f} % less"
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
        gain = found.gain or 0.0
        verb = "gains" if gain >= 0 else "costs"
        rows.append(
            (
                "",
                f"the fastest plan: {text(first)}; this one costs "
                f"{_percent(found.cost)} in the step time and {verb} "
                f"{_percent(abs(gain))} in the guaranteed one",
            )
        )
    if best is not first and not _keeps(problem, first):
        rows.append(("", _memory(problem, first, "of the fastest plan")))
    if not _keeps(problem, best):
        rows.append(("", _memory(problem, best, "of this one")))
    return rows


def _keeps(problem: Problem, candidate: Candidate) -> bool:
    if candidate.memory_kept is not None:
        return candidate.memory_kept
    return candidate.intervals.memory_90_bytes.high <= _whole_bytes(problem)


def _whole_bytes(problem: Problem) -> int:
    cluster = problem.cluster
    return cluster.memory_bytes() + cluster.headroom_bytes()


def _memory(problem: Problem, candidate: Candidate, whose: str) -> str:
    high = candidate.intervals.memory_90_bytes.high
    return (
        f"memory {whose} is not guaranteed: one run in twenty needs more "
        f"than {high / GIB:.1f} GiB, and a device has "
        f"{format_bytes(_whole_bytes(problem))}"
    )


def _percent(part: float | None) -> str:
    return "nothing" if not part else f"{100 * part:.2f} %"
