"""Offers: which devices to take at given prices, and the plan for them.

A candidate is a number of devices of each type of the cluster, the first ones
of the type. The best plan of a candidate is both its fastest and its cheapest
one, as its devices cost the same per hour whatever they do. So candidates are
tried one after the other, each with the question whether a plan within the
limits is better than the best so far: what says *no* to that is refuted, what
says *yes* becomes the best. All figures are whole numbers and fractions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import Any, Literal

from msgspec import structs

from nest.analysis.fit import PS_PER_S, Asker, Fit, StepTimeLimit, Trial, num_steps
from nest.cost.rules import get_rules
from nest.errors import InvalidOptionError
from nest.ir.cluster import Cluster
from nest.ir.problem import Problem
from nest.solvers.base import SolveOptions, Status
from nest.solvers.cell import OnProgress, one_process
from nest.units import MAX_TOTAL

Wish = Literal["fastest", "cheapest"]

SECONDS_PER_HOUR = 3600


@dataclass(frozen=True)
class Limits:
    """What a plan and its devices may take; ``None`` is no limit.

    ``hourly_usd`` is what the devices may cost per hour, and ``run_usd`` what a run
    over so many tokens may cost.
    """

    target: StepTimeLimit | None = None
    hourly_usd: Fraction | None = None
    run_usd: Fraction | None = None
    tokens: Fraction | None = None

    @property
    def text(self) -> str:
        """For people."""
        parts = [] if self.target is None else [self.target.text]
        if self.hourly_usd is not None:
            parts.append(f"at most {float(self.hourly_usd):g} $ per hour")
        if self.run_usd is not None and self.tokens is not None:
            parts.append(
                f"at most {float(self.run_usd):g} $ for {float(self.tokens):g} tokens"
            )
        return ", ".join(parts)


def hourly_usd(cluster: Cluster) -> Fraction:
    """Return what the devices of a cluster cost per hour.

    Prices count as they are written in decimals.
    """
    return sum(
        (
            Fraction(str(device.price_usd_per_hour)) * cluster.devices_of(number)
            for number, device in enumerate(cluster.types)
        ),
        Fraction(0),
    )


def step_usd(problem: Problem, quanta: int) -> Fraction:
    """Return what a step costs."""
    step_s = Fraction(quanta * problem.quantum_ps, PS_PER_S)
    return hourly_usd(problem.cluster) * step_s / SECONDS_PER_HOUR


def with_prices(problem: Problem, prices: Mapping[str, float]) -> Problem:
    """Return the problem with prices of some types.

    Raises
    ------
    InvalidOptionError
        If a type has no price, or steps take no seconds.
    """
    cluster = problem.cluster.priced(prices)
    for device in cluster.types:
        if device.price_usd_per_hour is None:
            raise InvalidOptionError(
                f"--price: expected a price of every type, got none of {device.name}; "
                f"add --price {device.name}=USD or its price_usd_per_hour in the file"
            )
    if problem.time_unit != "s" or get_rules(problem.preset).steady_state:
        raise InvalidOptionError(
            f"--price: expected the time of a step in seconds, got one in "
            f"{problem.time_unit!r} under preset {problem.preset!r}; leave "
            f"prices and budgets out"
        )
    return structs.replace(problem, cluster=cluster)


def type_counts(cluster: Cluster, most: int) -> list[int]:
    """Return how many devices of a type are worth a question, ascending.

    None, powers of two inside a node, then doubling numbers of nodes, and
    the most that there may be.
    """
    node = min(cluster.topology.unit_sizes, default=1)
    counts = {0, most} | {2**i for i in range(node.bit_length())}
    nodes = 1
    while nodes * node <= most:
        counts.add(nodes * node)
        nodes *= 2
    return sorted(count for count in counts if count <= most)


def candidates(
    problem: Problem, quotas: Mapping[str, int] | None = None
) -> list[Problem]:
    """Return the problem on every number of devices of each type.

    At most on ``quotas`` devices of the types that these name.

    Raises
    ------
    InvalidOptionError
        If a quota is of no type, or above what there is, or all are 0.
    """
    cluster, quotas = problem.cluster, quotas or {}
    names = [device.name for device in cluster.types]
    counts = []
    for name, quota in quotas.items():
        there = cluster.devices_of(names.index(name))
        if not 0 <= quota <= there:
            raise InvalidOptionError(
                f"--quota {name}={quota}: expected an integer from 0 to "
                f"{there}, the devices of this type, got {quota}; lower it"
            )
    for number, name in enumerate(names):
        most = quotas.get(name, cluster.devices_of(number))
        counts.append(type_counts(cluster, most))
    found = [
        structs.replace(problem, cluster=cluster.keeping(chosen))
        for chosen in product(*counts)
        if any(chosen)
    ]
    if not found:
        raise InvalidOptionError(
            "--quota: expected some devices, got 0 of every type; raise one"
        )
    return found


@one_process()
def best_offer(
    problem: Problem,
    wish: Wish,
    limits: Limits,
    quotas: Mapping[str, int] | None = None,
    solver: str = "dp",
    options: SolveOptions | None = None,
    on_progress: OnProgress | None = None,
) -> Fit:
    """Find the devices with the fastest or the cheapest plan within limits.

    Of plans that are as fast the cheapest, of those that cost as much the fastest. The
    problem has all devices that there are, with their prices (:func:`with_prices`). The
    time limit of ``options`` is that of the question.

    Raises
    ------
    InvalidOptionError
        See :func:`candidates`.
    NestError
        If the request makes no sense to the solver.
    """
    ask = Asker(solver, options or SolveOptions(), on_progress)
    todo = [
        candidate
        for candidate in candidates(problem, quotas)
        if limits.hourly_usd is None
        or hourly_usd(candidate.cluster) <= limits.hourly_usd
    ]
    trials: list[Trial] = []
    best: Trial | None = None
    proven = True
    best_index = 0
    # What is likely to be good comes first: it refutes the others.
    by_rank = sorted(enumerate(todo), key=lambda x: _likely_rank(x[1], wish))
    for index, candidate in by_rank:
        if ask.stopped is not None:
            proven = False
            break
        most = _most_quanta(candidate, limits)
        if best is not None:
            is_before = index < best_index
            most = min(most, _better_quanta(candidate, wish, best, is_before))
        if most < 0:
            continue
        trial = ask(candidate, most)
        if trial.answer == "yes":
            best = trial = ask.improved(trial)
            best_index = index
            proven = proven and trial.result.status is Status.OPTIMAL
        proven = proven and trial.answer != "open"
        trials.append(trial)
    target = limits.target or StepTimeLimit(MAX_TOTAL, "")
    target = StepTimeLimit(target.quanta, limits.text)
    return ask.ended(Fit(wish, target, tuple(trials), best, proven))


def _most_quanta(problem: Problem, limits: Limits) -> int:
    """Return how long a step of a candidate may take within its limits."""
    most = MAX_TOTAL if limits.target is None else limits.target.quanta
    if limits.run_usd is not None and limits.tokens is not None:
        steps = num_steps(problem, limits.tokens, "--budget")
        most = min(most, math.floor(limits.run_usd / steps / step_usd(problem, 1)))
    return most


def _likely_rank(problem: Problem, wish: Wish) -> tuple[float, Fraction]:
    """Return a key of candidates; what is likely to be best is first.

    Devices are taken to be as fast as they compute the first entries of cost tables.
    """
    cluster, hourly = problem.cluster, hourly_usd(problem.cluster)
    if wish == "fastest":
        return 0, -hourly
    costs = [kind.costs[0] for kind in problem.graph.kinds if kind.costs]
    speed = 0.0
    for type_index, device in enumerate(cluster.types):
        work_ns = sum(cost.on(device.name).passes_ns for cost in costs)
        speed += cluster.devices_of(type_index) / (1 + work_ns)
    return float(hourly) / speed, hourly


def _better_quanta(problem: Problem, wish: Wish, best: Trial, is_before: bool) -> int:
    """Return how long a step of a candidate takes if it is better.

    ``is_before`` is whether the candidate is better if it is as fast and costs as much.
    """
    best_quanta = best.result.step_quanta
    assert best_quanta is not None
    hourly = hourly_usd(problem.cluster)
    hourly_best = hourly_usd(best.problem.cluster)
    if hourly == hourly_best:
        return best_quanta if is_before else best_quanta - 1
    if wish == "fastest":
        return best_quanta  # by their order, later candidates are cheaper
    as_dear = hourly_best * best_quanta / hourly
    # A candidate that costs as much is faster only if its devices are dearer.
    return math.floor(as_dear) if hourly > hourly_best else math.ceil(as_dear) - 1


def to_document(document: Mapping[str, Any], fit: Fit) -> dict[str, Any]:
    """Return the ``nest-fit/1`` document of an answer with its prices."""
    found = dict(document)
    for trial, entry in zip(fit.trials, found["candidates"], strict=True):
        entry["usd_per_hour"] = float(hourly_usd(trial.problem.cluster))
    if fit.best is not None:
        quanta = fit.best.result.step_quanta
        assert quanta is not None
        found["answer"] |= {
            "usd_per_hour": float(hourly_usd(fit.best.problem.cluster)),
            "usd_per_step": float(step_usd(fit.best.problem, quanta)),
        }
    return found
