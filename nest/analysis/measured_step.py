"""What would explain a measured step: one term, off by a factor, and how to tell.

Each term of the predicted step is made longer or shorter alone, until the step takes
what was measured. Where the problem can be priced with this term longer, it is, so that
what overlaps counts; other terms count as they are exposed in the step, and those of
every micro-batch with the filling and draining of the pipeline that grows with them.
An experiment is a change of the run. Under each term that may be off it is predicted
to take another time; the best one has the largest smallest separation of these times.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import combinations, islice, pairwise
from typing import Any, NamedTuple

from msgspec.structs import replace

from nest.analysis.neighbors import Neighbor
from nest.cost.breakdown import LOAD_TERMS, STEP_TERMS, breakdown
from nest.cost.magnitude import in_range
from nest.cost.rules import get_rules
from nest.cost.scaled import Factors, scaled
from nest.cost.score import Score, score
from nest.errors import NestError
from nest.ir.graph import Edge, LayerCost
from nest.ir.plan import Plan, Stage
from nest.ir.problem import Problem
from nest.models.kernel_times import KernelTimes, MachineChange, kernel_times
from nest.uncertainty.intervals import (
    Intervals,
    covariance_of,
    noise_of,
    stored_deviations,
)
from nest.units import divisors

#: Factors between which a term is looked for.
LEAST_FACTOR, MOST_FACTOR = 1 / 64, 64.0

#: Bisections of a factor, and the error of a step's time that is small enough.
_BISECTIONS = 20
_CLOSE = 1e-3

#: Deviations within which nine of ten values of a normal distribution are.
_NINE_OF_TEN = 1.645

#: A term that is a smaller share of the step than this is not looked at.
_LEAST_SHARE = 1e-3

#: Free memory of the fullest device, as a share of it, below which runs may be slow
#: because the allocator frees and allocates again.
NEAR_THE_END = 0.05

#: Moves of a plan that frameworks have no setting for.
_NO_RUNS = r"a layer from|one stage"

#: Step times that differ by more than this, in the logarithm, are told apart: runs of
#: one configuration on one machine differ by less.
_APART = 0.03

#: How much longer a term takes: from the problem to the one with it.
Longer = Callable[[Problem, float], Problem]


class Cause(NamedTuple):
    """What makes a term off by ``min_factor`` to ``max_factor``, in plain words."""

    min_factor: float
    max_factor: float
    text: str


_MORE_OVERLAP = Cause(LEAST_FACTOR, 0.9, "more overlap than predicted")

#: Causes of each term that is off; communication has those of the network.
CAUSES = {
    "products": (
        Cause(1.05, 2, "lower clocks (power, heat), or odd shapes"),
        Cause(0.4, 0.95, "another precision or device than stated"),
    ),
    "attention": (
        Cause(1.3, 12, "no flash attention, or one for older devices"),
        Cause(0.3, 0.9, "a newer attention kernel"),
    ),
    "memory": (
        Cause(1.3, 6, "norms, rotary or SwiGLU not fused; loss in fp32"),
        Cause(0.2, 0.9, "a compiler fuses more kernels"),
    ),
    "compute": (
        Cause(1.05, 3, "lower clocks, slower kernels, no flash attention"),
        Cause(0.4, 0.95, "another precision or device than stated"),
    ),
    "host": (
        Cause(1.3, MOST_FACTOR, "host-bound: small kernels, loading, logging"),
        Cause(LEAST_FACTOR, 0.9, "CUDA graphs"),
    ),
    "network": (Cause(1.3, 16, "a slow network, or overlap off"), _MORE_OVERLAP),
    "zero": (
        Cause(1.3, 16, "weights not prefetched, or a slow network"),
        _MORE_OVERLAP,
    ),
    "gradient_sync": (
        Cause(1.3, 16, "overlap of gradients off, or a slow network"),
        _MORE_OVERLAP,
    ),
    "recompute": (
        Cause(1.3, 8, "more is recomputed than stated"),
        Cause(LEAST_FACTOR, 0.9, "less is recomputed than stated"),
    ),
    "bubble": (
        Cause(1.2, 4, "uneven stages, or fewer microbatches"),
        Cause(LEAST_FACTOR, 0.9, "another schedule, such as interleaving"),
    ),
    "optimizer": (
        Cause(1.5, 30, "the optimizer is not fused, or offloaded"),
        Cause(LEAST_FACTOR, 0.7, "fewer bytes of optimizer state"),
    ),
}


@dataclass(frozen=True)
class Term:
    """A term of the step."""

    #: Its name in documents.
    name: str
    #: What it is, for people.
    text: str
    #: Whose deviation it has: 0 devices, 1 the network, 2 hosts.
    group: int
    #: How it is priced; ``None``: as exposed in the step.
    longer: Longer | None = None


@dataclass(frozen=True)
class RunVariant:
    """A plan of a problem: the run itself, or an experiment."""

    problem: Problem
    plan: Plan
    name: str = ""
    detail: str = ""

    @cached_property
    def verdict(self) -> Score:
        """The score of the plan."""
        return score(self.problem, self.plan)

    @cached_property
    def exposed(self) -> dict[str, float]:
        """What terms add to the step, in quanta, by their names."""
        terms = breakdown(self.problem, self.plan, self.verdict).step
        loads = sum(terms[name] for name in LOAD_TERMS)
        filled = 1 + terms["bubble"] / loads if loads else 1.0
        return {
            name: value * (filled if name in LOAD_TERMS else 1.0)
            for name, value in terms.items()
        }

    def step_quanta(self, term: Term, factor: float) -> float:
        """Return the step time where a term takes ``factor`` times as long."""
        if term.longer is None:
            added = (factor - 1) * self.exposed[term.name]
            return self.verdict.step_quanta + added
        return score(term.longer(self.problem, factor), self.plan).step_quanta


@dataclass(frozen=True)
class Hypothesis:
    """One term that is off."""

    #: The term.
    term: Term
    #: How much longer the step is where the term takes twice as long.
    exposed_ns: float
    #: By how much it must be longer to explain the step; ``None``: no factor from
    #: :data:`LEAST_FACTOR` to :data:`MOST_FACTOR` does.
    factor: float | None
    #: What is known of its error: standard deviation of the logarithm.
    deviation: float
    #: What makes it take so long, in plain words; empty where nothing known does.
    cause: str

    @property
    def plausible(self) -> str:
        """``yes`` within known deviations, ``with a cause`` if one is known, or ``no``.

        Within known deviations are nine of ten values.
        """
        if self.factor is None:
            return "no"
        if abs(math.log(self.factor)) <= _NINE_OF_TEN * self.deviation:
            return "yes"
        return "with a cause" if self.cause else "no"


class Experiment(NamedTuple):
    """A change of the run that tells hypotheses apart."""

    #: What to change, and more about it.
    name: str
    detail: str
    #: Its step time if nothing is off.
    predicted_ns: float
    #: Its step time under each hypothesis, by the name of the term, shortest first.
    steps_ns: dict[str, float]
    #: Pairs of hypotheses whose step times differ enough to be told apart.
    pairs_apart: int
    #: Smallest difference of the logarithms of two of the step times.
    separation: float

    @property
    def confused(self) -> list[tuple[str, str]]:
        """Terms whose step times follow each other too closely to be told apart."""
        steps = [*self.steps_ns.items()]
        return [
            (first, second)
            for (first, shorter), (second, longer) in pairwise(steps)
            if math.log(longer / shorter) <= _APART
        ]


@dataclass(frozen=True)
class MeasuredStep:
    """What would explain a measured step."""

    #: Both step times.
    measured_ns: float
    predicted_ns: float
    #: Whether the measured one is in the interval that nine of ten are in; ``None``
    #: where nothing is known of errors.
    within_90: bool | None
    #: Whether computation is told apart into kernels.
    split: bool
    #: Plausible ones first, and of these the one with the smallest factor.
    hypotheses: tuple[Hypothesis, ...]
    #: The one that tells them apart best; ``None`` if none does.
    experiment: Experiment | None
    #: Whether memory is so full that the allocator may be why a step is long.
    near_the_end: bool

    def to_json(self) -> dict[str, Any]:
        """Return the field ``measured`` of ``nest-explain/1``."""
        return {
            "step_time_ns": self.measured_ns,
            "predicted_ns": self.predicted_ns,
            "within_90": self.within_90,
            "computation_split": self.split,
            "near_the_end_of_memory": self.near_the_end,
            "hypotheses": [
                {
                    "term": x.term.name,
                    "exposed_ns": x.exposed_ns,
                    "factor": x.factor,
                    "deviation": x.deviation,
                    "plausible": x.plausible,
                    "cause": x.cause,
                }
                for x in self.hypotheses
            ],
            "experiment": self.experiment and self.experiment._asdict(),
        }


def explain_measured(
    problem: Problem,
    plan: Plan,
    measured_ns: float,
    *,
    neighbors: Sequence[Neighbor] = (),
    intervals: Intervals | None = None,
    build: Callable[[MachineChange], Problem] | None = None,
) -> MeasuredStep:
    """Return what would explain a measured step of a plan.

    ``neighbors`` are plans that may be run as experiments; ``build`` makes the problem
    anew on changed machines, see :func:`~nest.models.kernel_times.kernel_times`.
    """
    run = RunVariant(problem, plan)
    experiments = list(_experiments(run, neighbors))
    kernels = kernel_times(problem, [plan, *(x.plan for x in experiments)], build)
    predicted_ns = float(run.verdict.step_time_ns)
    measured = measured_ns / predicted_ns * run.verdict.step_quanta
    hypotheses = [_hypothesis(run, term, measured) for term in _terms(run, kernels)]
    hypotheses = [x for x in hypotheses if x.exposed_ns >= _LEAST_SHARE * predicted_ns]
    hypotheses.sort(key=_rank)
    cluster = problem.cluster
    memory_bytes = max(block.memory_bytes for block in run.verdict.blocks)
    free = 1 - memory_bytes / cluster.memory_bytes()
    return MeasuredStep(
        measured_ns=measured_ns,
        predicted_ns=predicted_ns,
        within_90=None
        if intervals is None
        else intervals.step_90_ns[0] <= measured_ns <= intervals.step_90_ns[1],
        split=kernels is not None,
        hypotheses=tuple(hypotheses),
        experiment=_best(experiments, hypotheses),
        near_the_end=measured_ns > predicted_ns and free < NEAR_THE_END,
    )


def _rank(hypothesis: Hypothesis) -> tuple[int, float]:
    order = ("yes", "with a cause", "no")
    factor = abs(math.log(hypothesis.factor)) if hypothesis.factor else math.inf
    return order.index(hypothesis.plausible), factor


def _hypothesis(run: RunVariant, term: Term, measured: float) -> Hypothesis:
    """Return by how much a term must be off to explain a step of so many quanta."""
    problem = run.problem
    deviations = stored_deviations()
    variance = covariance_of(problem, deviations)[term.group][term.group]
    deviation = math.hypot(math.sqrt(variance), noise_of(problem, deviations))
    exposed = run.step_quanta(term, 2.0) - run.verdict.step_quanta
    factor = solve_factor(partial(run.step_quanta, term), measured)
    cause = ""
    if factor is not None:
        causes = CAUSES.get(term.name, CAUSES["network"])
        matching = (x for x in causes if x.min_factor <= factor <= x.max_factor)
        cause = next((x.text for x in matching), "")
    exposed_ns = exposed * problem.quantum_ps / 1000
    return Hypothesis(term, exposed_ns, factor, deviation, cause)


def solve_factor(step: Callable[[float], float], measured: float) -> float | None:
    """Return the factor of a term with which a step takes what was measured.

    ``step`` returns the step time with a factor; it never falls. ``None`` if no factor
    from :data:`LEAST_FACTOR` to :data:`MOST_FACTOR` does.
    """
    low, high = 1.0, 1.0
    if step(1.0) < measured:
        while step(high) < measured:
            if high >= MOST_FACTOR:
                return None
            low, high = high, 2 * high
    else:
        while step(low) > measured:
            if low <= LEAST_FACTOR:
                return None
            low, high = low / 2, low
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        quanta = step(middle)
        if abs(quanta - measured) <= _CLOSE * measured:
            return middle
        low, high = (middle, high) if quanta < measured else (low, middle)
    return (low + high) / 2


# Terms


def _terms(run: RunVariant, kernels: KernelTimes | None) -> Iterator[Term]:
    """Yield the terms of a step that can be off."""
    if kernels is None:
        yield Term("compute", "computation", 0, _slower_devices)
    else:
        for name, text in _KERNEL_TEXTS.items():
            longer = partial(_slower_kernels, kernels, name)
            yield Term(name, text, 0, longer)
    yield Term("host", "host (kernel launches)", 2, _slower_hosts)
    yield Term("network", "whole network", 1, _slower_network)
    costs = [cost for kind in run.problem.graph.kinds for cost in kind.costs]
    for axis in sorted({call.axis for cost in costs for call in cost.collectives}):
        yield Term(axis, STEP_TERMS[axis], 1, partial(_larger_collectives, axis))
    yield Term("receive", STEP_TERMS["receive"], 1, _larger_messages)
    groups = {"zero": 1, "gradient_sync": 1, "recompute": 0, "bubble": 0}
    for name, group in {**groups, "optimizer": 0}.items():
        yield Term(name, STEP_TERMS[name], group)


_KERNEL_TEXTS = {
    "products": "matrix products",
    "attention": "attention kernels",
    "memory": "memory-bound kernels",
}


def _slower_kernels(
    kernels: KernelTimes, name: str, problem: Problem, factor: float
) -> Problem:
    return kernels.scaled(problem, name, factor)


def _slower_devices(problem: Problem, factor: float) -> Problem:
    return scaled(problem, Factors(device=factor, measured=factor))


def _slower_hosts(problem: Problem, factor: float) -> Problem:
    return scaled(problem, Factors(host=factor, waiting=factor))


def _slower_network(problem: Problem, factor: float) -> Problem:
    return scaled(problem, Factors(network=factor))


def _larger_collectives(axis: str, problem: Problem, factor: float) -> Problem:
    """Return the problem with longer collectives of an axis."""

    def larger(cost: LayerCost) -> LayerCost:
        calls = tuple(
            replace(call, size_bytes=round(factor * call.size_bytes))
            if call.axis == axis
            else call
            for call in cost.collectives
        )
        return replace(cost, collectives=calls)

    kinds = tuple(
        replace(kind, costs=tuple(map(larger, kind.costs)))
        for kind in problem.graph.kinds
    )
    return replace(problem, graph=replace(problem.graph, kinds=kinds))


def _larger_messages(problem: Problem, factor: float) -> Problem:
    """Return the problem with larger messages between layers."""

    def larger(edge: Edge) -> Edge:
        return replace(edge, bytes_per_sample=round(factor * edge.bytes_per_sample))

    edges = tuple(map(larger, problem.graph.edges))
    return replace(problem, graph=replace(problem.graph, edges=edges))


# Experiments


def _experiments(
    run: RunVariant, neighbors: Sequence[Neighbor]
) -> Iterator[RunVariant]:
    """Yield changes of the run whose plans fit."""
    problem, plan = run.problem, run.plan
    for near in neighbors:
        if near.verdict == "fits" and near.plan and not re.match(_NO_RUNS, near.name):
            yield RunVariant(problem, near.plan, near.name, near.detail)
    if not get_rules(problem.preset).steady_state:
        batch = 2 * problem.job.global_batch
        larger = replace(problem, job=replace(problem.job, global_batch=batch))
        if in_range(larger):
            yield RunVariant(larger, plan, "global batch doubled", f"{batch} samples")
    yield from islice(_fewer_ranks(run), 1)
    yield RunVariant(
        scaled(problem, Factors(host=0.0)),
        plan,
        "with CUDA graphs",
        "hosts issue no kernels",
    )


def _fewer_ranks(run: RunVariant) -> Iterator[RunVariant]:
    """Yield runs on fewer data-parallel ranks with their shares, the fewest first."""
    problem, plan = run.problem, run.plan
    strategies = [x for stage in plan.stages for x in stage.layer_strategies]
    shared = math.gcd(plan.micro_batch, *(x.dp for x in strategies))
    for times in reversed(divisors(plan.replicas * shared)[1:]):
        replicas = math.gcd(times, plan.replicas)
        ranks = times // replicas
        batch, rest = divmod(problem.job.global_batch, times)
        if rest or shared % ranks:
            continue
        devices = problem.cluster.num_devices // times
        with suppress(NestError, ValueError):  # experts need their ranks
            smaller = replace(
                problem,
                cluster=problem.cluster.first_devices(devices),
                job=replace(problem.job, global_batch=batch),
            )
            fewer = replace(
                plan,
                replicas=plan.replicas // replicas,
                micro_batch=plan.micro_batch // ranks,
                stages=tuple(_with_fewer_ranks(x, ranks) for x in plan.stages),
            )
            run = RunVariant(
                smaller, fewer, f"on {devices} devices", f"{batch} samples"
            )
            if run.verdict.feasible:
                yield run


def _with_fewer_ranks(stage: Stage, times: int) -> Stage:
    """Return a stage with an n-th of its data-parallel ranks."""
    fewer = [replace(x, dp=x.dp // times) for x in stage.layer_strategies]
    return Stage.of(stage.layers, fewer)


def _best(
    experiments: Sequence[RunVariant], hypotheses: Sequence[Hypothesis]
) -> Experiment | None:
    """Return the experiment with the largest smallest separation, if it has any.

    Of plausible hypotheses. Those that it does not tell apart have none; of experiments
    with as many of them the next smallest separation counts.
    """
    plausible = [x for x in hypotheses if x.plausible != "no"]
    results: list[tuple[list[float], Experiment]] = []
    for run in experiments:
        quantum_ns = run.problem.quantum_ps / 1000
        try:
            steps = {
                x.term.name: quantum_ns * run.step_quanta(x.term, x.factor or 1.0)
                for x in plausible
            }
        except NestError:
            continue
        if len(steps) < 2:
            continue
        pairs = combinations(map(math.log, steps.values()), 2)
        gaps = sorted(abs(first - second) for first, second in pairs)
        apart = [gap if gap > _APART else 0.0 for gap in gaps]
        experiment = Experiment(
            name=run.name,
            detail=run.detail,
            predicted_ns=quantum_ns * run.verdict.step_quanta,
            steps_ns=dict(sorted(steps.items(), key=lambda item: item[1])),
            pairs_apart=sum(map(bool, apart)),
            separation=gaps[0],
        )
        results.append((apart, experiment))
    best = max(results, key=lambda result: result[0], default=None)
    return best[1] if best and best[1].pairs_apart else None
