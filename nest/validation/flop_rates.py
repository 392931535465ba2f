"""FLOP/s and model FLOPs utilization (MFU) of a plan, as software counts FLOPs.

The score counts the products of attention in full. A causal mask leaves half of them,
and some software counts only that half: at 32,768 tokens per sample the two counts
differ by a quarter. :mod:`nest.validation.flops` says which software counts how.
"""

from __future__ import annotations

from typing import NamedTuple

from nest.cost.score import Score
from nest.ir.problem import Problem
from nest.validation.flops import HALVED, IN_FULL, logged_count


class FlopRate(NamedTuple):
    """What a plan reaches by one count of FLOPs."""

    #: What counts: :data:`~nest.validation.flops.IN_FULL` or
    #: :data:`~nest.validation.flops.HALVED`.
    flop_count: str
    #: Model FLOPs utilization, a fraction of the data-sheet peak.
    mfu: float
    #: 10^12 FLOP/s of a device.
    tflops_per_device: float


def flop_rates(problem: Problem, verdict: Score) -> tuple[FlopRate, ...]:
    """Return what a plan reaches: with attention in full, then halved.

    Empty where the score has no MFU. The second count needs the model, which a problem
    names if it is one of the zoo, or of a file that this process has read.
    """
    peak = problem.cluster.peak_flops(problem.job.dtype)
    if verdict.mfu is None or peak is None:
        return ()
    from nest.models.stated import stated_models

    device_peak = peak / problem.cluster.num_devices / 1e12
    rates = [FlopRate(IN_FULL, verdict.mfu, verdict.mfu * device_peak)]
    model = next(stated_models(problem), None)
    length = problem.job.sequence_length
    if model is not None and length is not None:
        counts = [model.model_flops(length, causal) for causal in (True, False)]
        mfu = verdict.mfu * counts[0] / counts[1]
        rates.append(FlopRate(HALVED, mfu, mfu * device_peak))
    return tuple(rates)


def flop_rates_text(problem: Problem, verdict: Score, target: str) -> str:
    """Return the MFU that the log of a target shows, or that of each count.

    Empty where the score has no MFU.
    """
    rates = {rate.flop_count: rate for rate in flop_rates(problem, verdict)}
    logged = logged_count(target) if target else None
    if logged is not None and logged.meaning in rates:
        rate = rates[logged.meaning]
        return (
            f"MFU {100 * rate.mfu:.1f} %, {rate.tflops_per_device:.0f} TFLOP/s per "
            f"device (log of {logged.name}: {rate.flop_count})"
        )
    texts = [f"{100 * rate.mfu:.1f} % ({rate.flop_count})" for rate in rates.values()]
    return f"MFU {', '.join(texts)}" if texts else ""
