"""Guaranteed step times for people."""

from __future__ import annotations

from nest.analysis.robust import Candidate, Robust
from nest.ir.problem import Problem
from nest.present.table import count
from nest.uncertainty.headroom import chance_text
from nest.uncertainty.intervals import GUARANTEED
from nest.util.time_scale import TimeScale


def robust_texts(problem: Problem, robust: Robust) -> list[str]:
    """Return what is guaranteed, and what it costs."""
    best, first = robust.best, robust.first
    if best is None or first is None:
        return ["nothing: there is no plan"]
    scale = TimeScale.fitting(best.guaranteed_ns, problem.time_unit)
    bound = "nothing is proven of others"
    if robust.bound_ns is not None and robust.gap is not None:
        bound = (
            f"no plan's is below {scale.short(robust.bound_ns)}, "
            f"{100 * robust.gap:.1f} % less"
        )
    text = (
        f"{scale.short(best.guaranteed_ns)} with {100 * GUARANTEED:.0f} %; "
        f"{count(robust.candidates, 'plan')} of "
        f"{count(robust.searches, 'search')} compared; {bound}"
    )
    if best is first:
        return [text, "the fastest plan is the safest, too"]

    def other(whose: str, candidate: Candidate) -> str:
        chance = chance_text(candidate.intervals.fit_probability)
        return f"{whose}: {scale.short(candidate.guaranteed_ns)}; fits {chance}"

    texts = [text, other("the fastest plan", first)]
    reference = robust.kept or first
    if reference is robust.kept:
        whose = "the fastest plan that keeps its memory"
        texts.append(other(whose, reference))
    if reference is not best:
        texts.append(
            f"this one costs {_percent(robust.cost(reference))} in the step time and "
            f"gains {_percent(robust.gain(reference))} in the guaranteed one"
        )
    return texts


def _percent(share: float | None) -> str:
    return "nothing" if not share else f"{100 * share:.2f} %"
