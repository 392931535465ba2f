"""Intervals of predictions: how far off a step time or a memory may be.

The logarithm of true over predicted step time has the standard deviation

    s² = noise² + (device · D)² + (network · N)² + (host · H)²

``device``, ``network`` and ``host`` are how the plan's step time grows with
the times of devices, network and hosts. ``D``, ``N``, ``H`` and the noise are
fitted to the errors of predictions for sources of measured runs that they
have not seen (``bench/intervals.py``), and so are the multiples of ``s``
within which half of them lie, and nine of ten. Two plans of one problem err
together: of their ratio only what the shares differ by counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import Any, NamedTuple

from nest.cost.model import CostModel
from nest.cost.scaled import Factors, scaled
from nest.cost.score import Score, score
from nest.hardware.calibration import calibrated_family
from nest.hardware.devices import known_device
from nest.ir.base import Real, Struct
from nest.ir.plan import Plan
from nest.ir.problem import Problem
from nest.stored import read_stored

#: By what times are divided to see what of a step time they are.
STEP = 1.1

#: Probability that a guaranteed step time is kept: as that of staying below
#: the upper end of a 90 % interval.
GUARANTEED = 0.95

#: How many independent deviations there are: those of devices, network and
#: hosts, and the noise.
_COMPONENTS = 4


class Quantiles(Struct, frozen=True, kw_only=True):
    """Where half and nine tenths of the deviations lie.

    In logarithms of true over predicted figures; of step times in multiples
    of their standard deviation.
    """

    low_90: float
    low_50: float
    high_50: float
    high_90: float


class Deviations(
    Struct,
    frozen=True,
    kw_only=True,
    tag_field="schema",
    tag="nest-intervals/1",
):
    """What intervals are made of: standard deviations of logarithms.

    Attributes
    ----------
    noise
        Of every step time by itself, beside what follows.
    device, network, host
        Of the time that devices, the network and hosts take.
    unseen, experts, low_precision
        Of devices' time, too: of a family without measured runs, in models
        with experts, and in fp8.
    plan_noise, apart
        Of the ratio of two plans of one problem: the noise of each, and by
        what the differences between their shares count more.
    step
        Multiples of a step time's standard deviation.
    plans
        The multiple within which nine of ten ratios of two plans lie.
    memory
        Of memory.
    memory_error
        By how much memory is off in the mean, in logarithms.
    families
        Families of devices with measured runs.
    provenance
        What all this was fitted to.
    """

    noise: Real
    device: Real
    network: Real
    host: Real
    unseen: Real
    experts: Real
    low_precision: Real
    plan_noise: Real
    apart: Real
    step: Quantiles
    plans: Real
    memory: Quantiles
    memory_error: Real
    families: tuple[str, ...]
    provenance: str = ""


@cache
def stored_deviations() -> Deviations:
    """Return what comes with the package."""
    return read_stored("nest.calibration", "intervals", Deviations)


class Shares(NamedTuple):
    """What a step time depends on: how it grows with each, in logarithms.

    Attributes
    ----------
    device
        The time of passes whose operators are counted, not measured.
    network
        What communication adds.
    host
        What hosts take: where they pace the step, and where operators are
        taken to wait for them, which is in ``device``, too.
    """

    device: float
    network: float
    host: float


class Interval(NamedTuple):
    """From where to where, in the unit of the figure."""

    low: float
    high: float


@dataclass(frozen=True)
class Intervals:
    """What is known of a plan's figures.

    Attributes
    ----------
    step_50_ns, step_90_ns
        Within which its step time is with a probability of 50 and 90 %.
    memory_50_bytes, memory_90_bytes
        The same of the memory of the fullest device.
    shares
        What its step time depends on.
    rests_on
        What the prediction rests on, for people.
    """

    step_50_ns: Interval
    step_90_ns: Interval
    memory_50_bytes: Interval
    memory_90_bytes: Interval
    shares: Shares
    rests_on: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as part of a document."""
        return {
            "step_time_50_ns": list(self.step_50_ns),
            "step_time_90_ns": list(self.step_90_ns),
            "memory_50_bytes": [round(x) for x in self.memory_50_bytes],
            "memory_90_bytes": [round(x) for x in self.memory_90_bytes],
            "shares": {
                name: round(part, 6)
                for name, part in self.shares._asdict().items()
            },
            "rests_on": list(self.rests_on),
        }


def why_none(problem: Problem) -> str:
    """Return why there are no intervals for a problem; empty if there are.

    Errors are known of problems made from a model, which say how long samples
    are, under the standard rules.
    """
    if problem.preset != "standard":
        return f"the rules of {problem.preset}"
    if problem.job.sequence_length is None:
        return "costs of its own"
    return ""


def shares_of(problem: Problem, plan: Plan, found: Score) -> Shares:
    """Return what a plan's step time depends on.

    The plan is scored with faster devices, with faster hosts, and with both:
    what the step does not lose by then waits for the network, for all times
    together make it as much shorter.

    Parameters
    ----------
    problem, plan
        The problem, and a legal plan for it.
    found
        The plan's score.
    """
    network = CostModel(problem).network
    less = 1 / STEP

    def share(factors: Factors) -> float:
        other = scaled(problem, factors)
        quanta = score(other, plan, CostModel(other, network)).step_quanta
        if not quanta:
            return 1.0
        part = math.log(found.step_quanta / quanta) / math.log(STEP)
        return min(1.0, max(0.0, part))

    both = share(Factors(device=less, host=less, measured=less))
    return Shares(
        device=share(Factors(device=less)),
        network=1 - both,
        host=share(Factors(host=less, waiting=less)),
    )


def spreads_of(problem: Problem, numbers: Deviations) -> Shares:
    """Return the standard deviations of what a step depends on."""
    squares = numbers.device**2
    if not all(_is_seen(x.name, numbers) for x in problem.cluster.types):
        squares += numbers.unseen**2
    if _has_experts(problem):
        squares += numbers.experts**2
    if problem.job.dtype == "fp8":
        squares += numbers.low_precision**2
    return Shares(math.sqrt(squares), numbers.network, numbers.host)


def deviation(shares: Shares, spreads: Shares, noise: float) -> float:
    """Return the standard deviation of a step time's logarithm.

    Parameters
    ----------
    shares, spreads
        What the step depends on, and how far off that is.
    noise
        Beside that.
    """
    parts = (a * b for a, b in zip(shares, spreads, strict=True))
    return math.hypot(noise, *parts)


def intervals_of(
    problem: Problem,
    plan: Plan,
    found: Score,
    numbers: Deviations | None = None,
) -> Intervals | None:
    """Return the intervals of a plan's step time and memory.

    Parameters
    ----------
    problem, plan
        The problem, and a legal plan for it.
    found
        The plan's score.
    numbers
        How far predictions are off; as stored by default.

    Returns
    -------
    Intervals or None
        None if nothing is known of errors, see :func:`why_none`, or the step
        takes no time.
    """
    if why_none(problem) or not found.step_quanta:
        return None
    numbers = numbers or stored_deviations()
    shares = shares_of(problem, plan, found)
    s = deviation(shares, spreads_of(problem, numbers), numbers.noise)
    blocks = found.blocks
    memory_bytes = max(block.memory_bytes for block in blocks)
    step_ns = float(found.step_time_ns)
    step, memory = numbers.step, numbers.memory

    def around(figure: float, low: float, high: float) -> Interval:
        return Interval(figure * math.exp(low), figure * math.exp(high))

    return Intervals(
        around(step_ns, s * step.low_50, s * step.high_50),
        around(step_ns, s * step.low_90, s * step.high_90),
        around(memory_bytes, memory.low_50, memory.high_50),
        around(memory_bytes, memory.low_90, memory.high_90),
        shares,
        rests_on(problem, numbers),
    )


def equal(
    problem: Problem,
    steps: Sequence[int],
    shares: Sequence[Shares],
    numbers: Deviations | None = None,
) -> bool:
    """Return whether two plans' difference is inside the noise.

    Parameters
    ----------
    problem
        The problem of both.
    steps
        The step times of both.
    shares
        What they depend on.
    """
    numbers = numbers or stored_deviations()
    between = Shares(
        *(numbers.apart * (a - b) for a, b in zip(*shares, strict=True))
    )
    noise = math.sqrt(2) * numbers.plan_noise
    s = deviation(between, spreads_of(problem, numbers), noise)
    first, second = steps
    return abs(math.log(first / second)) <= numbers.plans * s


# What predictions rest on


def _is_seen(name: str, numbers: Deviations) -> bool:
    """Whether there are measured runs of a device's family."""
    spec = known_device(name)
    return spec is not None and spec.family in numbers.families


def _has_experts(problem: Problem) -> bool:
    return any(
        cost.expert_weight_bytes
        for kind in problem.graph.kinds
        for cost in kind.costs
    )


def rests_on(problem: Problem, numbers: Deviations) -> tuple[str, ...]:
    """Return what the prediction of a step time rests on, for people."""
    found = []
    for device in problem.cluster.types:
        spec = known_device(device.name)
        if spec is None:
            found.append(f"{device.name} not known")
        elif spec.family in numbers.families:
            found.append(f"{spec.family} fitted")
        else:
            like = calibrated_family(spec.family)
            found.append(f"{spec.family} not measured, as {like}")
    costs = [cost for kind in problem.graph.kinds for cost in kind.costs]
    profiled = sum(cost.measured for cost in costs)
    if profiled:
        found.append(f"{profiled} of {len(costs)} layer costs profiled")
    else:
        found.append("no layer profiled")
    if _has_experts(problem):
        found.append("experts")
    if problem.job.dtype == "fp8":
        found.append("fp8")
    return (*found, "software not stated")


# Guaranteed figures


@dataclass(frozen=True)
class Pessimistic:
    """A problem whose step times are guaranteed figures.

    Attributes
    ----------
    problem
        The problem with longer times.
    factors
        By what they are longer.
    noise
        By what its step times are still to be multiplied.
    """

    problem: Problem
    factors: Factors
    noise: float

    def guaranteed_ns(self, plan: Plan) -> float:
        """Return the step time that a plan keeps, in ns."""
        return self.noise * float(score(self.problem, plan).step_time_ns)


def pessimistic(
    problem: Problem, numbers: Deviations | None = None
) -> Pessimistic:
    """Return the problem under which plans have their guaranteed figures.

    Devices, network, hosts and noise err independently. Each takes as long
    as it does not exceed with a probability of ``0.95 ** (1/4)``: all four
    together with 0.95, and as a step takes no longer where its parts do not,
    so does the step, whatever its shares. It is a bound on the safe side of
    the upper end of the 90 % interval.
    """
    numbers = numbers or stored_deviations()
    spreads = spreads_of(problem, numbers)
    normal = NormalDist()
    each = normal.inv_cdf(GUARANTEED ** (1 / _COMPONENTS))
    level = numbers.step.high_90 * each / normal.inv_cdf(GUARANTEED)
    device, network, host = (math.exp(level * s) for s in spreads)
    factors = Factors(device, network, host, waiting=host)
    return Pessimistic(
        scaled(problem, factors), factors, math.exp(level * numbers.noise)
    )
