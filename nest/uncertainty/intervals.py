"""Intervals of predictions: how far off a step time or a memory may be.

The logarithm of true over predicted step time has the standard deviation

    s² = noise² + software² + (device · D)² + (network · N)² + (host · H)²

``software`` is 0 for software of which two sources have runs on such devices. The steps
of other software also take ``e^slower`` times as long as predicted, in the median: its
intervals lie around that, while predictions stay.

``device``, ``network`` and ``host`` are how the plan's step time grows with the times
of devices, network and hosts. ``D``, ``N``, ``H`` and the noise are fitted to the
errors of predictions for sources of measured runs that they have not seen
(``bench/intervals.py``), and so are the multiples of ``s`` within which half of them
lie, and nine of ten. Two plans of one problem err together: of their ratio only what
the shares differ by counts. Under a calibration of a user's own runs the matrix of what
these leave unknown takes the place of ``D²``, ``N²`` and ``H²``.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from msgspec.structs import replace

from nest.cost.model import CostModel
from nest.cost.rules import get_rules
from nest.cost.scaled import Factors, scaled
from nest.cost.score import Score, score
from nest.hardware.calibration import calibrated_family
from nest.hardware.devices import known_device
from nest.ir.base import FileStruct, Real, Struct
from nest.ir.cluster import Ranges
from nest.ir.plan import Plan
from nest.ir.problem import OwnRuns, Problem, Row
from nest.util.stored import read_stored

#: By what times are divided to see what of a step time they are.
STEP = 1.1

#: Probability that a guaranteed step time is kept: as that of staying below
#: the upper end of a 90 % interval.
GUARANTEED = 0.95

#: Of what is unknown of the logarithms of the times of devices, the network and hosts.
Covariance = tuple[Row, Row, Row]

#: Of how many sources runs of a family of devices must be that takes another
#: one's parameters: with fewer it counts as unseen.
ENOUGH_SOURCES = 3


#: Of how many sources runs of a software must be on a family of devices: with one
#: source its errors for another one cannot be checked.
CHECKED_SOURCES = 2

#: Standard normal quantiles of the ends of intervals of 50 % and 90 %.
_Z_50, _Z_90 = 0.6744897501960817, 1.6448536269514722


#: Kind of software that is not stated, or that no entry describes.
UNKNOWN = "unknown"


class Quantiles(Struct, frozen=True, kw_only=True):
    """Where half and nine tenths of the deviations lie.

    In logarithms of true over predicted figures; of step times in multiples
    of their standard deviation.
    """

    low_90: float
    low_50: float
    high_50: float
    high_90: float

    def probability_below(self, deviation: float) -> float:
        """Return the probability of a smaller deviation.

        The normal scores of deviations are taken to be linear between the
        ends of the intervals, and beyond them as next to them.
        """
        ends = (self.low_90, self.low_50, self.high_50, self.high_90)
        scores = (-_Z_90, -_Z_50, _Z_50, _Z_90)
        after = min(3, max(1, bisect_left(ends, deviation)))
        low, high = ends[after - 1], ends[after]
        fraction = (deviation - low) / (high - low)
        score = scores[after - 1]
        score += fraction * (scores[after] - score)
        return math.erfc(-score / math.sqrt(2)) / 2


class Measured(Struct, frozen=True, kw_only=True):
    """How many runs of a family of devices were measured.

    Attributes
    ----------
    runs, sources
        How many, and how many sources they are of.
    """

    runs: int
    sources: int


class Program(Struct, frozen=True, kw_only=True):
    """What was measured of a training software: one entry of the table of software.

    Attributes
    ----------
    kind
        Key of :attr:`Deviations.memory_kinds`.
    families
        Which step times were measured, by the family whose parameters devices take.
    """

    kind: str = ""
    families: dict[str, Measured] = {}

    def is_checked(self, families: Iterable[str]) -> bool:
        """Return whether two sources have runs on each of some families."""
        return all(
            family in self.families and self.families[family].sources >= CHECKED_SOURCES
            for family in families
        )


class Deviations(FileStruct, frozen=True, kw_only=True, tag="nest-intervals/2"):
    """What intervals are made of: standard deviations of logarithms.

    Attributes
    ----------
    noise
        Of every step time by itself, in addition to the following.
    device, network, host
        Of the time that devices, the network and hosts take.
    unseen, experts, low_precision
        Of devices' time, too: of a family that too few runs were measured
        of, in models with experts, and in fp8.
    plan_noise, apart
        Of the ratio from which the predicted order of two plans of one
        problem is right with 90 %: what each adds by itself, and by what the
        deviations of the differences between their shares count more.
    step
        Multiples of a step time's standard deviation.
    memory
        Of memory, of software whose kind ``memory_kinds`` does not have.
    memory_error
        By how much memory is off in the mean, in logarithms.
    families
        Families of devices with measured runs.
    software, slower
        Of step times of software of which no two sources have runs: their standard
        deviation between software, and the logarithm of their median.
    uneven
        Of devices' time, too, by family: of those whose rates are those of few
        sources, which others do not reach.
    programs
        Software by the name of its entry.
    memory_kinds
        Of memory, by kind of software; ``unknown`` is that of software that is not
        among ``programs``.
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
    memory: Quantiles
    memory_error: Real
    families: dict[str, Measured]
    software: Real = 0.0
    slower: Real = 0.0
    uneven: dict[str, float] = {}
    programs: dict[str, Program] = {}
    memory_kinds: dict[str, Quantiles] = {}
    provenance: str = ""

    def memory_of(self, software: str) -> Quantiles:
        """Return the deviations of memory of a software."""
        program = self.programs.get(software)
        kind = UNKNOWN if program is None else program.kind
        return self.memory_kinds.get(kind, self.memory)

    def of_unread_network(self) -> Deviations:
        """Return the deviations where it is not known what joins the nodes.

        How much that changes a step no run says: as much as its software, at least.
        """
        return replace(self, noise=math.hypot(self.noise, self.software))


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
    """Prediction intervals of a plan's step time and memory.

    Attributes
    ----------
    step_50_ns, step_90_ns
        Within which its step time is with a probability of 50 and 90 %.
    memory_50_bytes, memory_90_bytes
        The same of the memory of the fullest device.
    fit_probability
        With which its memory fits every device, headroom included.
    shares
        What its step time depends on.
    rests_on
        What the prediction rests on, for people.
    """

    step_50_ns: Interval
    step_90_ns: Interval
    memory_50_bytes: Interval
    memory_90_bytes: Interval
    fit_probability: float
    shares: Shares
    rests_on: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as part of a document."""
        return {
            "step_time_50_ns": list(self.step_50_ns),
            "step_time_90_ns": list(self.step_90_ns),
            "memory_50_bytes": [round(x) for x in self.memory_50_bytes],
            "memory_90_bytes": [round(x) for x in self.memory_90_bytes],
            "fit_probability": round(self.fit_probability, 4),
            "shares": {
                name: round(share, 6) for name, share in self.shares._asdict().items()
            },
            "rests_on": list(self.rests_on),
        }


#: Text in the source of problems whose costs rest on no measured run.
NOT_CALIBRATED = "not calibrated"


def why_none(problem: Problem) -> str:
    """Return why there are no intervals for a problem; empty if there are.

    Errors are known of problems made from a model, which say how long samples
    are, under the standard rules.
    """
    if problem.preset != "standard":
        return f"the rules of {problem.preset}"
    if problem.job.sequence_length is None:
        return "costs of its own"
    if NOT_CALIBRATED in problem.source:
        return "costs that are not calibrated"
    return ""


class Faster:
    """A problem whose devices, hosts, and both are faster."""

    def __init__(self, problem: Problem) -> None:
        network = CostModel(problem).network
        less = 1 / STEP

        def model(factors: Factors) -> CostModel:
            return CostModel(scaled(problem, factors), network)

        self.device = model(Factors(device=less))
        self.host = model(Factors(host=less, waiting=less))
        self.both = model(Factors(device=less, host=less, measured=less))

    def shares(self, plan: Plan, verdict: Score) -> Shares:
        """Return what a plan's step time depends on; see :func:`shares_of`."""

        def share(model: CostModel) -> float:
            quanta = score(model.problem, plan, model).step_quanta
            if not quanta:
                return 1.0
            growth = math.log(verdict.step_quanta / quanta) / math.log(STEP)
            return min(1.0, max(0.0, growth))

        both = share(self.both)
        return Shares(
            device=share(self.device), network=1 - both, host=share(self.host)
        )


def shares_of(problem: Problem, plan: Plan, verdict: Score) -> Shares:
    """Return what a plan's step time depends on.

    The plan is scored with faster devices, with faster hosts, and with both:
    what the step does not lose by then waits for the network, for all times
    together make it as much shorter.

    Parameters
    ----------
    problem, plan
        The problem, and a legal plan for it.
    verdict
        The plan's score.
    """
    return Faster(problem).shares(plan, verdict)


def covariance_of(problem: Problem, deviations: Deviations) -> Covariance:
    """Return what is unknown of what a step depends on."""
    squares = 0.0
    user_runs = problem.own_runs
    if has_experts(problem) and not (user_runs and user_runs.experts):
        squares += deviations.experts**2
    if problem.job.dtype == "fp8" and not (user_runs and user_runs.low_precision):
        squares += deviations.low_precision**2
    if user_runs is not None:
        one, two, three = user_runs.covariance
        return (one[0] + squares, one[1], one[2]), two, three
    squares += deviations.device**2
    if not all(_is_seen(x.name, deviations) for x in problem.cluster.types):
        squares += deviations.unseen**2
    uneven = (deviations.uneven.get(x, 0.0) for x in _families(problem))
    squares += max(uneven, default=0.0) ** 2
    return (
        (squares, 0.0, 0.0),
        (0.0, deviations.network**2, 0.0),
        (0.0, 0.0, deviations.host**2),
    )


def noise_of(problem: Problem, deviations: Deviations) -> float:
    """Return the deviation of a step time that no share explains."""
    user_runs = problem.own_runs
    if user_runs is not None:
        return user_runs.noise
    return math.hypot(
        deviations.noise, deviations.software * is_stranger(problem, deviations)
    )


def median_of(problem: Problem, deviations: Deviations) -> float:
    """Return the logarithm of the median of true over predicted step times."""
    return deviations.slower * is_stranger(problem, deviations)


def is_stranger(problem: Problem, deviations: Deviations) -> bool:
    """Return whether too few runs of a problem's software are of such devices.

    Under a user's own runs it is software that none of them ran, if any is named.
    """
    if problem.own_runs is not None:
        ran = problem.own_runs.software
        return bool(ran and problem.software) and problem.software not in ran
    program = deviations.programs.get(problem.software)
    return program is None or not program.is_checked(_families(problem))


def _families(problem: Problem) -> set[str]:
    """Return the families whose parameters a problem's devices take, as known."""
    specs = ((x.name, known_device(x.name)) for x in problem.cluster.types)
    return {
        name if spec is None else calibrated_family(spec.family) for name, spec in specs
    }


def along(covariance: Covariance, shares: Sequence[float]) -> Shares:
    """Return the product of a covariance with shares."""
    return Shares(*(_product(row, shares) for row in covariance))


def _product(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def deviation(shares: Sequence[float], covariance: Covariance, noise: float) -> float:
    """Return the standard deviation of a step time's logarithm.

    Parameters
    ----------
    shares, covariance
        What the step depends on, and what is unknown of that.
    noise
        Beside that.
    """
    square = _product(along(covariance, shares), shares)
    return math.sqrt(noise**2 + max(0.0, square))


def intervals_of(
    problem: Problem,
    plan: Plan,
    verdict: Score,
    deviations: Deviations | None = None,
    faster: Faster | None = None,
) -> Intervals | None:
    """Return the intervals of a plan's step time and memory.

    Parameters
    ----------
    problem, plan
        The problem, and a legal plan for it.
    verdict
        The plan's score.
    deviations
        How far predictions are off; as stored by default.
    faster
        The problem with faster devices and hosts, if the caller has it.

    Returns
    -------
    Intervals or None
        None if nothing is known of errors, see :func:`why_none`, or the step
        takes no time.
    """
    if why_none(problem) or not verdict.step_quanta:
        return None
    deviations = deviations or stored_deviations()
    shares = (faster or Faster(problem)).shares(plan, verdict)
    noise = noise_of(problem, deviations)
    s = deviation(shares, covariance_of(problem, deviations), noise)
    blocks = verdict.blocks
    memory_bytes = max(block.memory_bytes for block in blocks)
    median_ns = float(verdict.step_time_ns) * math.exp(median_of(problem, deviations))
    return Intervals(
        *_around(median_ns, deviations.step, s),
        *memory_interval(problem, memory_bytes, deviations),
        fit_probability(problem, plan, verdict, deviations),
        shares,
        rests_on(problem, deviations),
    )


def device_ranges(problem: Problem, plan: Plan) -> list[Ranges]:
    """Return the devices of every block of a plan, in all replicas."""
    share = problem.cluster.num_devices // plan.replicas
    blocks = get_rules(problem.preset).blocks(plan, share)
    return [tuple(block.ranges()) for block in blocks[: plan.num_blocks]]


def fit_probability(
    problem: Problem, plan: Plan, verdict: Score, deviations: Deviations | None = None
) -> float:
    """Return the probability that a plan's memory fits every device.

    What the problem keeps free as headroom counts as memory of the device.

    Parameters
    ----------
    problem, plan, verdict
        As :func:`intervals_of` takes them.
    deviations
        How far predictions are off; as stored by default.
    """
    deviations, cluster = deviations or stored_deviations(), problem.cluster
    whole_bytes = [
        cluster.memory_bytes(ranges) + cluster.headroom_bytes(ranges)
        for ranges in device_ranges(problem, plan)
    ]
    least_deviation = min(
        math.log(max(1, whole) / max(1, block.memory_bytes))
        for whole, block in zip(whole_bytes, verdict.blocks, strict=False)
    )
    return deviations.memory_of(problem.software).probability_below(least_deviation)


def memory_interval(
    problem: Problem, memory_bytes: int, deviations: Deviations | None = None
) -> tuple[Interval, Interval]:
    """Return the 50 % and the 90 % interval of a predicted memory."""
    deviations = deviations or stored_deviations()
    return _around(memory_bytes, deviations.memory_of(problem.software))


def _around(
    figure: float, quantiles: Quantiles, scale: float = 1.0
) -> tuple[Interval, Interval]:
    """Return the 50 % and the 90 % interval around a figure."""

    def between(low: float, high: float) -> Interval:
        return Interval(figure * math.exp(scale * low), figure * math.exp(scale * high))

    return (
        between(quantiles.low_50, quantiles.high_50),
        between(quantiles.low_90, quantiles.high_90),
    )


def equal(
    problem: Problem,
    steps: Sequence[int],
    shares: Sequence[Shares],
    deviations: Deviations | None = None,
) -> bool:
    """Return whether two plans' difference is inside the noise.

    It is where their predicted order is right with less than 90 %. That a
    plan equals two others does not make those equal.

    Parameters
    ----------
    problem
        The problem of both.
    steps
        The step times of both.
    shares
        What they depend on.
    """
    deviations = deviations or stored_deviations()
    between = Shares(
        *(deviations.apart * (a - b) for a, b in zip(*shares, strict=True))
    )
    noise = math.sqrt(2) * deviations.plan_noise
    margin = deviation(between, covariance_of(problem, deviations), noise)
    first, second = steps
    return abs(math.log(first / second)) <= margin


# What predictions rest on


def is_seen(family: str, sources: int) -> bool:
    """Whether enough runs of a family of devices were measured.

    A family with parameters of its own has them from its runs. Of one that
    takes another's, or shares them, more must be known.

    Parameters
    ----------
    family
        The family.
    sources
        Of how many sources there are runs.
    """
    has_parameters = calibrated_family(family) == family
    return sources >= (1 if has_parameters else ENOUGH_SOURCES)


def _is_seen(name: str, deviations: Deviations) -> bool:
    spec = known_device(name)
    return spec is not None and is_seen(
        spec.family, _measured(spec.family, deviations).sources
    )


def _measured(family: str, deviations: Deviations) -> Measured:
    return deviations.families.get(family, Measured(runs=0, sources=0))


def has_experts(problem: Problem) -> bool:
    """Whether its model has experts."""
    return any(
        cost.expert_weight_bytes for kind in problem.graph.kinds for cost in kind.costs
    )


def rests_on(problem: Problem, deviations: Deviations) -> tuple[str, ...]:
    """Return what the prediction of a step time rests on, for people."""
    user_runs = problem.own_runs
    texts = [_own_text(user_runs)] if user_runs is not None else []
    if user_runs is None:
        texts += [
            _device_text(device.name, deviations) for device in problem.cluster.types
        ]
    costs = [cost for kind in problem.graph.kinds for cost in kind.costs]
    profiled = sum(cost.measured for cost in costs)
    if profiled:
        texts.append(f"{profiled} of {len(costs)} layer costs profiled")
    else:
        texts.append("no layer profiled")
    if has_experts(problem):
        texts.append("experts")
    if problem.job.dtype == "fp8":
        texts.append("fp8")
    if user_runs is None:
        texts.append(_software_text(problem, deviations))
    return tuple(texts)


def _software_text(problem: Problem, deviations: Deviations) -> str:
    name, program = problem.software, deviations.programs.get(problem.software)
    if program is None:
        return f"software {'not known' if name else 'not stated'} (wider)"
    measured = [program.families.get(family) for family in _families(problem)]
    text = ", ".join(_measured_text(each) for each in measured)
    wider = " on such devices, wider" * is_stranger(problem, deviations)
    return f"{name} ({text}{wider})"


def _own_text(user_runs: OwnRuns) -> str:
    runs = f"{user_runs.runs} own runs" if user_runs.runs > 1 else "1 own run"
    return f"{runs} on {user_runs.family}" + (
        f" with {', '.join(user_runs.software)}" * bool(user_runs.software)
    )


def _device_text(name: str, deviations: Deviations) -> str:
    spec = known_device(name)
    if spec is None:
        return f"{name} not known"
    family, like = spec.family, calibrated_family(spec.family)
    counted = _measured(family, deviations)
    measured = _measured_text(counted)
    if like == family:
        return f"{family} ({measured})"
    return f"{family} with parameters of {like} ({measured} of its own)"


def _measured_text(counted: Measured | None) -> str:
    """Return how many runs there are, and of how many sources."""
    if counted is None or not counted.runs:
        return "no run"
    runs = f"{counted.runs} run{'s' * (counted.runs > 1)}"
    return f"{runs} of {counted.sources} source{'s' * (counted.sources != 1)}"
