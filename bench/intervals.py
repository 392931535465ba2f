"""Fit the intervals of predictions to the errors for held-out sources.

    python bench/intervals.py              fit, and say what intervals cover
    python bench/intervals.py --write      store the fit, too
    python bench/intervals.py --keep FILE  keep the held-out errors there, or
                                           take them from there

Every source of step times is predicted with a fit to all others, and every software
with a fit without any of its rows: the rows of ``bench/calibrate.py`` with slopes taken
once, at the fit to all. What intervals cover is counted for every source, and for every
software, with numbers fitted to the errors for all others.

The standard deviations are the most probable ones if a deviation has a
t distribution, under a weak prior; a row of a source of ``n`` weighs
``n ** -0.35``, so that a large sweep does not drown the others (of 0.2, 0.35 and 0.5
the largest with which intervals of known software cover at most 95 % of rows). All
software weighs as much where the term between software is fitted. Pairs of plans are
neighbors among the rows of one source, model, cluster and batch. The odds
that the predicted order of a pair is right are ``9 ** (ratio / margin)``, in
logarithms; the margin has the most probable parts, too.
"""

from __future__ import annotations

import argparse
import pickle
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist
from typing import Any

import msgspec
import numpy as np
from calibrate import FILES, ROOT, hold_out, stored_start, thinned, usable
from result_files import fill, page_path, short_source, table, write_result

from nest.calibration.evidence import Array, Evidence, evidence_of
from nest.calibration.fit import fit, prior
from nest.calibration.parameters import PARAMETERS, options_of
from nest.calibration.unknown import left_unknown, noise_of_runs
from nest.hardware import machine_for
from nest.hardware.calibration import calibrated_family
from nest.uncertainty.intervals import (
    UNKNOWN,
    Deviations,
    Measured,
    Program,
    Quantiles,
    Shares,
    is_seen,
    shares_of,
)
from nest.validation.predict import PredictOptions, Skip, predict, predicted_run
from nest.validation.reading import read_rows
from nest.validation.report import SAME_PROBLEM, device_family, parallelism, source_of
from nest.validation.rows import Row, measured_memory_bytes, measured_step_time_s
from nest.validation.software import MATCHERS, SOFTWARE, Software, software_of
from nest.validation.usable import why_unusable

INTERVALS = ROOT / "nest" / "calibration" / "data" / "intervals.json"

#: Degrees of freedom of the distribution of deviations.
FREEDOM = 4.0

#: Power of a source's number of rows with which each of them weighs.
WEIGHT = -0.35

#: The same of a figure of memory.
MEMORY_WEIGHT = -0.2

#: What is fitted: the most probable value without any row, and the standard
#: deviation of its logarithm. Those of network and host are what their
#: parameters (``nest/calibration/data/parameters.json``) are unsure by, and
#: differ by from source to source. Those of pairs are 1.28 deviations: a
#: normal error is less with a probability of 90 %.
PRIORS = {
    "noise": 0.05,
    "device": 0.08,
    "network": 0.3,
    "host": 0.3,
    "unseen": 0.1,
    "experts": 0.1,
    "low_precision": 0.1,
    "uneven": 0.1,
    "plan_noise": 0.05,
    "apart": 1.28,
}
PRIOR_SPREAD = 0.5

#: By what deviations are larger for rows that nobody knew when facts of software were
#: chosen. Of 68 such rows of known software 80 % were inside intervals of 90 %: 59 % of
#: 169 less 45 % of 101. Normal quantiles of 95 % and 89.9 % have this ratio.
HINDSIGHT = 1.29

#: The same of software without runs, as an independent reader found them: the standard
#: deviation between software, and the logarithm of the median.
STRANGERS = {"software": 0.2, "slower": 0.1}

#: Families whose rates are those of one fast source, which others do not reach.
UNEVEN = ("A100",)

#: Probability with which the order of two plans is right that are not equal.
ORDERED = 0.9

#: Memory is compared where the tool counts what the model counts.
MEMORY = ("torch_allocated", "torch_allocated_last_rank", "nvidia-smi")


@dataclass(frozen=True)
class Case:
    """A row, its error, and what its prediction rests on.

    Attributes
    ----------
    row
        The row.
    error, stranger_error
        Logarithm of measured over predicted step time, its source held out, and all
        rows of its software.
    shares
        What the predicted step time is made of.
    family
        The device's own family.
    experts, low_precision
        Whether the model has experts, and whether the run was in fp8.
    """

    row: Row
    error: float
    stranger_error: float
    shares: Shares
    family: str
    experts: bool
    low_precision: bool

    @property
    def source(self) -> str:
        """Its source."""
        return source_of(self.row)

    @property
    def stack(self) -> str:
        """Its software, as :func:`stack_of` tells it apart."""
        return stack_of(self.row)

    @property
    def problem(self) -> tuple[Any, ...]:
        """What rows that differ in their plans alone have in common."""
        return tuple(getattr(self.row, name) for name in SAME_PROBLEM)


def stack_of(row: Row) -> str:
    """Return the first word of the software's name, in lower case."""
    name = row.framework or row.source or "none"
    return re.split(r"[ /(+@,]", name)[0].lower()


def case_of(
    row: Row, error: float, stranger_error: float, options: PredictOptions
) -> Case:
    """Return a row with what its prediction rests on."""
    run = predicted_run(row, options)
    assert not isinstance(run, Skip)
    (problem, plan, *_), verdict, _ = run
    site = machine_for(row.hardware or "", row.interconnect, row.devices_per_node)
    costs = [cost for kind in problem.graph.kinds for cost in kind.costs]
    return Case(
        row=row,
        error=error,
        stranger_error=stranger_error,
        shares=shares_of(problem, plan, verdict),
        family=site.calibration_family,
        experts=any(cost.expert_weight_bytes for cost in costs),
        low_precision=problem.job.dtype == "fp8",
    )


def cases_of(files: Iterable[Path]) -> list[Case]:
    """Predict every source, and every software, with a fit to all others."""
    rows = usable([row for path in files for row in read_rows(path)])
    evidence = evidence_of(rows, [source_of(row) for row in rows])
    shown = thinned(evidence)
    best, linear = fit(prior(PARAMETERS), shown, stored_start())
    held = hold_out(linear, shown, evidence)
    strangers = hold_out(linear, by_stack(shown), by_stack(evidence))
    options = options_of(best.values)
    return [
        case_of(row, -float(error), -float(stranger_error), options)
        for row, error, stranger_error in zip(
            rows, held.errors, strangers.errors, strict=True
        )
    ]


def by_stack(evidence: Evidence) -> Evidence:
    """Return rows of which all of one software are a group."""
    return replace(evidence, groups=tuple(map(stack_of, evidence.rows)))


def programs_of(cases: Sequence[Case]) -> dict[str, dict[str, Counter[str]]]:
    """Return how many rows of a source there are by software and family of parameters.

    By entry of the table of software, of those in :func:`entries_of` a row.
    """
    runs: dict[str, dict[str, Counter[str]]] = {e.name: {} for e in SOFTWARE}
    for case in cases:
        family = calibrated_family(case.family)
        for name in entries_of(software_of(case.row)):
            runs[name].setdefault(family, Counter())[case.source] += 1
    return runs


#: Fields that are no facts of a software.
ABOUT = (*MATCHERS, "kind")


def entries_of(entry: Software) -> list[str]:
    """Return the entries whose software a row of one is of.

    The entry, those that it is based on and has the beginning of the name of, and
    entries that are based on one of these and state no facts of their own. None if the
    software is not known.
    """
    if not entry.is_known:
        return []
    entries = {each.name: each for each in SOFTWARE}
    names = [entry.name]
    base = entries.get(entry.based_on)
    while base is not None:
        if entry.name.startswith(base.name):
            names.append(base.name)
        base = entries.get(base.based_on)
    for name in names:  # which grows
        names += [
            each.name
            for each in SOFTWARE
            if each.based_on == name
            and each.name not in names
            and facts_of(each) == facts_of(entries[name])
        ]
    return names


def facts_of(entry: Software) -> list[Any]:
    """Return the facts of an entry."""
    return [getattr(entry, x) for x in Software.__struct_fields__ if x not in ABOUT]


class Table:
    """Cases as arrays."""

    def __init__(self, cases: Sequence[Case]) -> None:
        self.cases = cases
        self.errors = np.array([case.error for case in cases])
        sources: dict[str, set[str]] = defaultdict(set)
        for case in cases:
            sources[case.family].add(case.source)
        device = np.array([case.shares.device for case in cases])
        programs = programs_of(cases)
        families = [calibrated_family(case.family) for case in cases]
        #: Whether other sources have runs of the software on such devices.
        self.known = np.array(
            [
                bool({*programs[software_of(c.row).name].get(family, ())} - {c.source})
                for c, family in zip(cases, families, strict=True)
            ]
        )
        self.stranger_errors = np.array([case.stranger_error for case in cases])
        self.stacks = np.array([case.stack for case in cases])
        # What the other sources know of the device of each.
        flags = [
            [
                not is_seen(c.family, len(sources[c.family]) - 1),
                c.experts,
                c.low_precision,
                family in UNEVEN,
            ]
            for c, family in zip(cases, families, strict=True)
        ]
        self.parts = np.column_stack(
            [
                device,
                [case.shares.network for case in cases],
                [case.shares.host for case in cases],
                device[:, None] * np.array(flags, float),
            ]
        )
        self.sources = np.array([case.source for case in cases])
        counts = Counter(self.sources.tolist())
        self.weights = np.array([counts[s] ** WEIGHT for s in self.sources])

    @cached_property
    def apart(self) -> tuple[Array, Array]:
        """Logarithms of the measured and of the predicted ratios of pairs."""
        steps = [measured_step_time_s(case.row) for case in self.cases]
        measured = np.log(np.array(steps, float))
        one, other = np.array(self.pairs).reshape(-1, 2).T
        between = measured[one] - measured[other]
        return between, between - (self.errors[one] - self.errors[other])

    @cached_property
    def pairs(self) -> list[tuple[int, int]]:
        """Neighbors among the plans of one problem, in order of the file."""
        members: dict[Any, list[int]] = defaultdict(list)
        for i, case in enumerate(self.cases):
            members[case.problem].append(i)
        return [pair for group in members.values() for pair in pairwise(group)]


@dataclass(frozen=True)
class Numbers:
    """Standard deviations, multiples of them, and margins of pairs."""

    names: tuple[str, ...]
    values: Array
    step: Quantiles
    strangers: tuple[float, float] = (0.0, 0.0)

    def spread(self, table: Table) -> Array:
        """Return the standard deviations of errors."""
        noise, *parts = self.values[:-2]
        return np.sqrt(noise**2 + table.parts**2 @ np.array(parts) ** 2)

    def bounds(self, table: Table, known: Array) -> Array:
        """Return the ends of the intervals of 90 % and 50 %, ``(n, 4)``.

        In logarithms of true over predicted step times; ``known`` is whether the
        software is, ``(n,)``.
        """
        software, slower = (np.where(known, 0.0, x) for x in self.strangers)
        spread = np.hypot(self.spread(table), software)
        ends = np.array(msgspec.structs.astuple(self.step))
        bounds: Array = slower[:, None] + spread[:, None] * ends
        return bounds

    def pair_margin(self, table: Table) -> Array:
        """Return from which ratios on pairs are no longer equal."""
        _, *parts, noise, apart = self.values
        one, other = np.array(table.pairs).reshape(-1, 2).T
        between = apart * (table.parts[one] - table.parts[other])
        return np.sqrt(2 * noise**2 + between**2 @ np.array(parts) ** 2)


def quantiles(values: Array, weights: Array, at: Sequence[float]) -> Array:
    """Return quantiles of weighted values."""
    order = np.argsort(values)
    below = np.cumsum(weights[order]) - weights[order] / 2
    return np.interp(np.array(at) * weights.sum(), below, values[order])


def misorder(margins: Array, right: Array, weights: Array) -> float:
    """Return how little probable the order of pairs is.

    Parameters
    ----------
    margins
        Logarithms of the predicted ratios in multiples of that from which
        the order is right with :data:`ORDERED`, ``(n,)``.
    right
        Whether the order was as predicted, ``(n,)``.
    weights
        What each counts, ``(n,)``.
    """
    odds = np.log(ORDERED / (1 - ORDERED)) * np.where(right, margins, -margins)
    return float(weights @ np.logaddexp(0, -odds))


def fit_numbers(table: Table, chosen: Array) -> Numbers:
    """Fit standard deviations and their multiples to some rows."""
    begin = np.log(list(PRIORS.values()))
    everything, chosen = chosen, chosen & table.known
    errors, weights = table.errors[chosen], table.weights[chosen]
    inside = set(np.flatnonzero(chosen).tolist())
    mask = np.array([set(pair) <= inside for pair in table.pairs], bool)
    pairs = np.array(table.pairs).reshape(-1, 2)
    measured, predicted = table.apart
    told = mask & (measured != 0)
    right = (measured * predicted > 0)[told]
    pair_weights = table.weights[pairs[:, 0]][told]

    def loss(x: Array) -> float:
        numbers = Numbers(tuple(PRIORS), np.exp(x), NO_QUANTILES)
        margins = (abs(predicted) / numbers.pair_margin(table))[told]
        return (
            surprise(errors, numbers.spread(table)[chosen], weights)
            + misorder(margins, right, pair_weights)
            + float(np.sum((x - begin) ** 2)) / (2 * PRIOR_SPREAD**2)
        )

    values = np.exp(least(loss, begin))
    numbers = Numbers(tuple(PRIORS), values, NO_QUANTILES)
    ratios = errors / numbers.spread(table)[chosen]
    low_90, low_50, high_50, high_90 = quantiles(
        ratios, weights, (0.05, 0.25, 0.75, 0.95)
    )
    step = Quantiles(low_90=low_90, low_50=low_50, high_50=high_50, high_90=high_90)
    values[:-2] *= HINDSIGHT
    values[-1] /= HINDSIGHT
    numbers = replace(numbers, values=values)
    strangers = fit_strangers(
        table.stranger_errors[everything],
        numbers.spread(table)[everything],
        table.stacks[everything],
    )
    return replace(numbers, step=step, strangers=strangers)


def fit_strangers(errors: Array, spread: Array, stacks: Array) -> tuple[float, float]:
    """Return the deviation between software, and the logarithm of the median.

    Parameters
    ----------
    errors
        Logarithms of measured over predicted step times, without any row of the
        software, ``(n,)``.
    spread
        Their standard deviations were the software known, ``(n,)``.
    stacks
        The software of each, ``(n,)``; every one weighs as much.
    """
    counts = Counter(stacks.tolist())
    weights = np.array([1 / counts[stack] for stack in stacks.tolist()])
    begin = np.log(list(STRANGERS.values()))

    def loss(x: Array) -> float:
        software, slower = np.exp(x)
        before = float(np.sum((x - begin) ** 2)) / (2 * PRIOR_SPREAD**2)
        return before + surprise(errors - slower, np.hypot(spread, software), weights)

    software, slower = np.exp(least(loss, begin))
    return float(software), float(slower)


def surprise(errors: Array, spread: Array, weights: Array) -> float:
    """Return how improbable errors are that have a t distribution."""
    odd = np.log1p((errors / spread) ** 2 / FREEDOM) * (FREEDOM + 1) / 2
    return float(weights @ (np.log(spread) + odd))


NO_QUANTILES = Quantiles(low_90=0.0, low_50=0.0, high_50=0.0, high_90=0.0)


def least(loss: Callable[[Array], float], begin: Array) -> Array:
    """Return where a smooth function of a few numbers is least.

    One coordinate after the other, by steps that shrink.
    """
    x, best = begin.copy(), loss(begin)
    steps = np.full(len(x), 0.25)
    while steps.max() > 0.005:
        for k in range(len(x)):
            for sign in (1, -1):
                trial = x.copy()
                trial[k] += sign * steps[k]
                if (value := loss(trial)) < best:
                    x, best = trial, value
                    break
            else:
                steps[k] /= 2
    return x


@dataclass(frozen=True)
class Coverage:
    """Which rows lie within their intervals, and how wide these are."""

    within_50: Array
    within_90: Array
    half_width: Array

    def figures(self, chosen: Array) -> dict[str, float | int]:
        """Return the figures of some rows."""
        return {
            "rows": int(chosen.sum()),
            "within_50": round(float(self.within_50[chosen].mean()), 4),
            "within_90": round(float(self.within_90[chosen].mean()), 4),
            "median_half_width_90": round(float(np.median(self.half_width[chosen])), 4),
        }


@dataclass(frozen=True)
class Orders:
    """Which pairs of plans are called equal, and which are ordered right.

    Pairs that take exactly as long have no order, and are left out.
    """

    equal: Array
    right: Array
    sources: Array

    def figures(self, but: str | None = None) -> dict[str, float | int]:
        """Return the figures of all pairs but those of a source."""
        mask = np.array([but is None or not s.startswith(but) for s in self.sources])
        apart = mask & ~self.equal

        def share(chosen: Array) -> float:
            return round(float(self.right[chosen].mean()), 4)

        return {
            "pairs": int(mask.sum()),
            "equal": int((mask & self.equal).sum()),
            "right_of_equal": share(mask & self.equal),
            "right_of_others": share(apart),
        }


def hold_out_numbers(table: Table) -> tuple[Coverage, Orders]:
    """Count what intervals cover, and orders, with numbers of all others."""
    bounds = np.empty((len(table.errors), 4))
    pairs = np.array(table.pairs).reshape(-1, 2)
    measured, predicted = table.apart
    same = np.zeros(len(pairs), bool)
    for source in sorted(set(table.sources)):
        of_source = table.sources == source
        numbers = fit_numbers(table, ~of_source)
        bounds[of_source] = numbers.bounds(table, table.known)[of_source]
        mine = of_source[pairs[:, 0]]
        limit = numbers.pair_margin(table)
        same[mine] = abs(predicted[mine]) <= limit[mine]
    return (
        covered(table.errors, bounds),
        Orders(
            same[measured != 0],
            (measured * predicted > 0)[measured != 0],
            table.sources[pairs[:, 0]][measured != 0],
        ),
    )


def covered(errors: Array, bounds: Array) -> Coverage:
    """Return which errors lie within their intervals."""
    low_90, low_50, high_50, high_90 = bounds.T
    return Coverage(
        (low_50 <= errors) & (errors <= high_50),
        (low_90 <= errors) & (errors <= high_90),
        (np.exp(high_90) - np.exp(low_90)) / 2,
    )


def hold_out_software(table: Table) -> Coverage:
    """Count what intervals of unknown software cover, with numbers of all others."""
    bounds = np.empty((len(table.errors), 4))
    for stack in sorted(set(table.stacks)):
        mine = table.stacks == stack
        numbers = fit_numbers(table, ~mine)
        bounds[mine] = numbers.bounds(table, ~mine)[mine]
    return covered(table.stranger_errors, bounds)


#: Own runs, how often they are drawn, and rows that a source needs for that.
OWN = 20
DRAWS = 10
LEAST = 30


def own_run_tables(table: Table) -> dict[str, dict[str, float | int]]:
    """Return what intervals cover that rest on some runs of a source.

    Some rows of a held-out source are drawn, and what they tell of the times
    of devices and hosts corrects its other rows, as a calibration would.
    """
    random = np.random.default_rng(0)
    tables: dict[str, dict[str, float | int]] = {}
    for source in sorted(set(table.sources)):
        of_source = np.flatnonzero(table.sources == source)
        if len(of_source) < LEAST:
            continue
        numbers = fit_numbers(table, table.sources != source)
        draws = [
            own_runs_draw(table, numbers, of_source, drawn[:OWN])
            for drawn in (random.permutation(of_source) for _ in range(DRAWS))
        ]
        tables[str(source)] = {
            "rows": len(of_source),
            **{
                key: round(float(np.mean([draw[key] for draw in draws])), 4)
                for key in draws[0]
            },
        }
    return tables


def own_runs_draw(
    table: Table, numbers: Numbers, of_source: Array, drawn: Array
) -> dict[str, float]:
    """Return what intervals of a source cover under some of its rows."""
    noise, device, network, host, *more = numbers.values[:-2]
    rest = np.setdiff1d(of_source, drawn)
    shares, others = table.parts[drawn, :3], table.parts[rest, :3]
    errors = table.errors[drawn]
    flags = (table.parts[drawn, 3:] > 0).any(axis=0)
    squares = device**2 + float(np.sum((np.array(more) * flags) ** 2))
    before = np.diag([squares, network**2, host**2])
    left_out = []
    for i in range(len(drawn)):
        mask = np.arange(len(drawn)) != i
        gain = left_unknown(before, shares[mask], noise).gain
        left_out.append(errors[i] - shares[i] @ gain @ errors[mask])
    own_noise = noise_of_runs(noise, np.array(left_out))
    rest_of = left_unknown(before, shares, own_noise)
    after = table.errors[rest] - others @ rest_of.gain @ errors
    squares_left = np.sum(others @ rest_of.covariance * others, axis=1)
    spread = np.sqrt(own_noise**2 + squares_left)
    low_90, low_50, high_50, high_90 = (
        end * spread for end in msgspec.structs.astuple(numbers.step)
    )
    old = numbers.spread(table)[rest]

    def width(spread: Array) -> float:
        ends = np.exp(np.outer(spread, [numbers.step.low_90, numbers.step.high_90]))
        return float(np.median(ends[:, 1] - ends[:, 0])) / 2

    return {
        "within_50": float(((low_50 <= after) & (after <= high_50)).mean()),
        "within_90": float(((low_90 <= after) & (after <= high_90)).mean()),
        "median_half_width_90": width(spread),
        "median_half_width_90_without": width(old),
    }


def own_runs_text(figures: dict[str, dict[str, float | int]]) -> str:
    """Return the table of what intervals cover that rest on own runs."""
    width = "median_half_width_90"
    keys = ("within_90", width, f"{width}_without")
    return table(
        f"with {OWN} runs of | within 90 %, % | median ±, % | without them, %",
        (
            (short_source(name), *(percent(row[key]) for key in keys))
            for name, row in figures.items()
        ),
    )


def memory_errors(files: Iterable[Path]) -> list[tuple[Row, float]]:
    """Return logarithms of measured over predicted memory, however measured."""
    errors: list[tuple[Row, float]] = []
    for path in files:
        for row in read_rows(path):
            measured = measured_memory_bytes(row)
            if row.status != "ok" or why_unusable(row) is not None or measured is None:
                continue
            answer = predict(row)
            if isinstance(answer, Skip) or not answer.memory_bytes:
                continue
            error = float(np.log(measured / answer.memory_bytes))
            errors.append((row, error))
    return errors


def memory_weights(errors: Sequence[tuple[Row, float]]) -> Array:
    """Return what each error of memory counts."""
    counts = Counter(source_of(row) for row, _ in errors)
    return np.array([counts[source_of(row)] ** MEMORY_WEIGHT for row, _ in errors])


#: Kind of software of which there are figures that count what the model counts.
COUNTED = "counted"

#: Software of which figures of memory are taken to be known, and what that weighs.
MEMORY_STRANGERS = 3
MEMORY_DEVIATION = 0.3


def memory_kinds(rows: Sequence[tuple[Row, float]]) -> dict[str, Array]:
    """Return quantiles of the errors of memory by kind of software.

    For recipes those of recipes, where a software of ``n`` figures weighs ``√n``. For
    all others those of everything, where every software weighs as much, beside
    :data:`MEMORY_STRANGERS` with a normal error of :data:`MEMORY_DEVIATION`.
    """
    recipes = [(row, e) for row, e in rows if software_of(row).kind == "recipe"]
    normal = MEMORY_DEVIATION * np.array(
        [NormalDist().inv_cdf((i + 0.5) / 40) for i in range(40)]
    )
    others = quantiles(
        np.concatenate([[error for _, error in rows], normal]),
        np.concatenate([stack_weights(rows, -1), np.full(40, MEMORY_STRANGERS / 40)]),
        ENDS,
    )
    errors = np.array([error for _, error in recipes])
    return {
        "recipe": quantiles(errors, stack_weights(recipes, -0.5), ENDS),
        UNKNOWN: others,
    }


#: Quantiles at the ends of intervals of 90 % and 50 %.
ENDS = (0.05, 0.25, 0.75, 0.95)


def counted_memory(rows: Sequence[tuple[Row, float]]) -> Array:
    """Return quantiles of figures of tools that count what the model counts."""
    counted = [x for x in rows if x[0].mem_class in MEMORY]
    errors = np.array([error for _, error in counted])
    return quantiles(errors, memory_weights(counted), ENDS)


def memory_kind(entry: Software) -> str:
    """Return which quantiles the memory of a software has that has no figures."""
    return entry.kind if entry.kind == "recipe" else UNKNOWN


def stack_weights(rows: Sequence[tuple[Row, float]], power: float) -> Array:
    """Return what each figure weighs: the number of its software's to a power."""
    counts = Counter(stack_of(row) for row, _ in rows)
    return np.array([counts[stack_of(row)] ** power for row, _ in rows], float)


def hold_out_memory(
    rows: Sequence[tuple[Row, float]],
) -> dict[str, dict[str, float | int]]:
    """Return what intervals of memory cover without any figure of the software."""
    tables = {}
    for stack in sorted({stack_of(row) for row, _ in rows}):
        kinds = memory_kinds([x for x in rows if stack_of(x[0]) != stack])
        mine = [x for x in rows if stack_of(x[0]) == stack]
        bounds = np.array([kinds[memory_kind(software_of(row))] for row, _ in mine])
        coverage = covered(np.array([error for _, error in mine]), bounds)
        tables[stack] = coverage.figures(np.ones(len(mine), bool))
    return tables


#: By what errors of memory are told apart.
MEMORY_CLASSES: dict[str, Callable[[Row], str]] = {
    "experts": lambda row: "experts" if row.experts else "dense",
    "pipeline": lambda row: "stages" if (row.pp or 1) > 1 else "one stage",
    "recompute": lambda row: f"recompute {row.recompute or 'not stated'}",
}


def memory_tables(
    rows: Sequence[tuple[Row, float]],
) -> dict[str, dict[str, float | int]]:
    """Return how far memory is off by class."""
    errors = np.array([error for _, error in rows])
    names: dict[str, list[int]] = {"all": list(range(len(rows)))}
    for class_of in MEMORY_CLASSES.values():
        for i, (row, _) in enumerate(rows):
            names.setdefault(class_of(row), []).append(i)
    tables = {}
    for name, chosen in names.items():
        low, middle, high = np.quantile(errors[chosen], (0.05, 0.5, 0.95))
        counts = Counter(source_of(rows[i][0]) for i in chosen)
        tables[name] = {
            "rows": len(chosen),
            "sources": len(counts),
            "rows_of_largest": max(counts.values()),
            "low_90": round(float(low), 4),
            "median": round(float(middle), 4),
            "high_90": round(float(high), 4),
        }
    return tables


#: Rows that a class, and a software, needs to be on the page.
SHOWN = 20
FEW = 5

#: By what coverage is told apart.
CLASSES: dict[str, Callable[[Case], str]] = {
    "by_source": lambda case: case.source,
    "by_software": lambda case: case.stack,
    "by_family": lambda case: device_family(case.row),
    "by_parallelism": lambda case: parallelism(case.row),
    "by_precision": lambda case: case.row.precision_class or "",
    "by_tier": lambda case: case.row.time_tier or "",
    "by_experts": lambda case: BY_EXPERTS[bool(case.experts)],
}


def tables(table: Table, coverage: Coverage) -> dict[str, Any]:
    """Return what intervals cover, of all rows and by class."""
    every = np.ones(len(table.errors), bool)
    by_class: dict[str, Any] = {
        "all": coverage.figures(every),
        "mean_of_software": mean_of(coverage, table.stacks),
        "mean_of_sources": mean_of(coverage, table.sources),
    }
    for key, class_of in CLASSES.items():
        names = np.array([class_of(case) for case in table.cases])
        by_class[key] = {
            str(name): coverage.figures(names == name) for name in sorted(set(names))
        }
    return by_class


def mean_of(coverage: Coverage, names: Array) -> float:
    """Return the mean of what groups are covered by, each counting as much."""
    return round(
        float(np.mean([coverage.within_90[names == x].mean() for x in set(names)])), 4
    )


def percent(value: float) -> str:
    """Return a fraction in per cent."""
    return f"{100 * value:.1f}"


#: The source of most pairs, which are of small models.
LARGEST = "vTrain"


def pairs_text(pairs: dict[str, dict[str, float | int]]) -> str:
    """Return a sentence about pairs of plans, with and without vTrain's."""
    parts = [
        f"{start} {row['equal']} of {row['pairs']} pairs of plans equal. It "
        f"predicts the measured order for {percent(row['right_of_equal'])} % "
        f"of these, and for {percent(row['right_of_others'])} % of the others"
        for start, row in zip(
            ("nest calls", f"Without {LARGEST}, it calls"), pairs.values(), strict=True
        )
    ]
    return ". ".join(parts) + "."


#: The two classes of models.
BY_EXPERTS = ("dense", "experts")


def memory_text(figures: dict[str, dict[str, float | int]]) -> str:
    """Return the table of errors of memory by class."""
    return table(
        "memory of | rows | sources | 5 % below, % | median, % | 5 % above, %",
        (
            (
                *(name, row["rows"], row["sources"]),
                *(
                    f"{100 * np.expm1(row[key]):+.1f}"
                    for key in ("low_90", "median", "high_90")
                ),
            )
            for name, row in figures.items()
            if name in ("all", *BY_EXPERTS)
        ),
    )


def page(document: dict[str, Any]) -> str:
    """Return the tables of docs/results/intervals.md."""
    figures = document["held_out"]
    shown = {"all held-out sources": figures["all"]}
    for key in ("by_experts", "by_family"):
        shown |= {name: x for name, x in figures[key].items() if x["rows"] >= SHOWN}
    left_out = document["held_out_software"]
    shown["all held-out software"] = left_out["all"]
    shown |= {
        name: x for name, x in left_out["by_software"].items() if x["rows"] >= FEW
    }
    sources = [
        (name, row)
        for name, row in figures["by_source"].items()
        if row["rows"] >= SHOWN
    ]
    name, lowest = min(sources, key=lambda item: item[1]["within_90"])
    keys = ("within_50", "within_90", "median_half_width_90")
    covered = table(
        "rows of | rows | within 50 %, % | within 90 %, % | median ±, %",
        (
            (short_source(name), row["rows"], *(percent(row[key]) for key in keys))
            for name, row in shown.items()
        ),
    )
    return "\n\n".join(
        [
            "## How many step times do the intervals contain?",
            f"Held-out sources, and classes with {SHOWN} rows or more. *±* is "
            "half the width of the 90 % interval.",
            covered,
            f"The mean over sources is {percent(figures['mean_of_sources'])} %, "
            f"{percent(left_out['mean_of_sources'])} % with their software left out; "
            f"over software it is then {percent(left_out['mean_of_software'])} %. "
            f"{short_source(name)} has the lowest coverage of 90 % intervals "
            f"of all sources: {percent(lowest['within_90'])} %.",
            "## How often is the order of equal plans predicted correctly?",
            pairs_text(document["pairs"]),
            "## How much do your own runs help?",
            f"{OWN} runs of a held-out source, drawn {DRAWS} times, and the "
            "coverage of its other rows:",
            own_runs_text(document["own_runs"]),
            "## How far off is memory?",
            "Measured over predicted memory, less 1:",
            memory_text(document["memory"]),
        ]
    )


def measured_families(cases: Sequence[Case]) -> dict[str, Measured]:
    """Return how many runs there are of every family of devices."""
    return {
        family: Measured(
            runs=sum(case.family == family for case in cases),
            sources=len({c.source for c in cases if c.family == family}),
        )
        for family in sorted({case.family for case in cases})
    }


def four(value: float) -> float:
    """Return four significant digits."""
    return float(f"{float(value):.4g}")


def _print(figures: dict[str, Any]) -> None:
    print(f"{'in %':52}{'rows':>6}{'50 %':>8}{'90 %':>8}{'+-':>8}")

    def line(name: str, row: dict[str, Any]) -> None:
        print(
            f"{name[:51]:52}{row['rows']:>6}{100 * row['within_50']:8.1f}"
            f"{100 * row['within_90']:8.1f}"
            f"{100 * row['median_half_width_90']:8.1f}"
        )

    line("all", figures["all"])
    for key in CLASSES:
        for name, row in figures[key].items():
            line(name, row)


def stored_of(
    table: Table, numbers: Numbers, memories: Sequence[tuple[Row, float]]
) -> Deviations:
    """Return what is stored, to four digits.

    Headroom is that of figures that count what the model counts.
    """
    comparable = [x for x in memories if x[0].mem_class in MEMORY]
    errors = np.array([error for _, error in comparable])
    weights = memory_weights(comparable)
    values = dict(zip(numbers.names, map(four, numbers.values), strict=True))
    uneven = values.pop("uneven")
    software, slower = map(four, numbers.strangers)
    runs = programs_of(table.cases)
    counted = {x for row, _ in comparable for x in entries_of(software_of(row))}
    programs = {
        entry.name: Program(
            kind=COUNTED if entry.name in counted else memory_kind(entry),
            families={
                family: Measured(runs=sources.total(), sources=len(sources))
                for family, sources in sorted(runs[entry.name].items())
            },
        )
        for entry in SOFTWARE
        if entry.is_known
    }
    return Deviations(
        **values,
        step=quantiles_of(msgspec.structs.astuple(numbers.step)),
        memory=quantiles_of(counted_memory(memories)),
        memory_error=four(np.average(np.abs(errors), weights=weights)),
        families=measured_families(table.cases),
        software=software,
        slower=slower,
        uneven=dict.fromkeys(UNEVEN, uneven),
        programs=programs,
        memory_kinds={
            kind: quantiles_of(ends) for kind, ends in memory_kinds(memories).items()
        },
        provenance=f"bench/intervals.py: errors of {len(table.cases)} step times of "
        f"{len(set(table.sources))} sources and {len(set(table.stacks))} software, "
        f"each predicted by a fit to all others, "
        f"and of {len(memories)} figures of memory",
    )


def quantiles_of(ends: Iterable[float]) -> Quantiles:
    """Return quantiles as they are stored."""
    names = Quantiles.__struct_fields__
    return Quantiles(**dict(zip(names, map(four, ends), strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, default=FILES)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--keep", type=Path)
    arguments = parser.parse_args()
    if arguments.keep and arguments.keep.exists():
        cases = pickle.loads(arguments.keep.read_bytes())
    else:
        cases = cases_of(arguments.files)
        if arguments.keep:
            arguments.keep.write_bytes(pickle.dumps(cases))
    held_out = Table(cases)
    numbers = fit_numbers(held_out, np.ones(len(cases), bool))
    coverage, orders = hold_out_numbers(held_out)
    memories = memory_errors(arguments.files)
    stored = stored_of(held_out, numbers, memories)
    figures = tables(held_out, coverage)
    strangers = tables(held_out, hold_out_software(held_out))
    classes = memory_tables(memories)
    own_runs = own_run_tables(held_out)
    document = {
        "command": "python bench/intervals.py",
        "deviations": msgspec.to_builtins(stored),
        "held_out": figures,
        "held_out_software": strangers,
        "pairs": {
            "all": orders.figures(),
            f"without_{LARGEST}": orders.figures(LARGEST),
        },
        "memory": classes,
        "held_out_memory": hold_out_memory(memories),
        "own_runs": own_runs,
    }
    print(msgspec.json.format(msgspec.json.encode(stored), indent=1).decode())
    _print(figures)
    _print(strangers)
    print(document["held_out_memory"])
    text = page(document)
    print(text)
    write_result("intervals", document)
    fill(page_path("intervals"), "intervals", text)
    if arguments.write:
        text = msgspec.json.format(msgspec.json.encode(stored), indent=1)
        INTERVALS.write_bytes(text + b"\n")
        print(f"wrote {INTERVALS.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
