"""Fit the intervals of predictions to the errors for held-out sources.

    python bench/intervals.py              fit, and say what intervals cover
    python bench/intervals.py --write      store the fit, too
    python bench/intervals.py --keep FILE  keep the held-out errors there, or
                                           take them from there

Every source of step times is predicted with a fit to all others, the rows of
``bench/calibrate.py`` with slopes taken once, at the fit to all. What
intervals cover is counted for every source with numbers fitted to the errors
for all others.

The standard deviations are the most probable ones if a deviation has a
t distribution, under a weak prior; a row of a source of ``n`` weighs
``n ** -0.2``, so that a large sweep does not drown the others (of 0 to -0.5
what covers between 85 and 95 % in the least width). Pairs of plans are
neighbours among the rows of one source, model, cluster and batch.
"""

from __future__ import annotations

import argparse
import pickle
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from calibrate import (
    FILES,
    ROOT,
    hold_out,
    stored_start,
    thinned,
    usable,
)
from result_files import fill, write_result

from nest.calibration.evidence import Array, evidence_of
from nest.calibration.fit import fit, prior
from nest.calibration.parameters import PARAMETERS, options_of
from nest.hardware import machine_for
from nest.intervals import Deviations, Quantiles, Shares, shares_of
from nest.validation.predict import (
    PredictOptions,
    Skip,
    predict,
    predicted_run,
)
from nest.validation.report import (
    SAME_PROBLEM,
    device_family,
    parallelism,
    source_of,
)
from nest.validation.rows import (
    Row,
    measured_memory_bytes,
    read_rows,
    why_unusable,
)

INTERVALS = ROOT / "nest" / "calibration" / "data" / "intervals.json"

#: Degrees of freedom of the distribution of deviations.
FREEDOM = 4.0

#: Power of a source's number of rows with which each of them weighs.
WEIGHT = -0.2

#: What is fitted: the most probable value without any row, and the standard
#: deviation of its logarithm. Those of network and host are what their
#: parameters (``nest/calibration/data/parameters.json``) are unsure by, and
#: differ by from source to source.
PRIORS = {
    "noise": 0.05,
    "device": 0.08,
    "network": 0.3,
    "host": 0.3,
    "unseen": 0.1,
    "experts": 0.1,
    "low_precision": 0.1,
    "plan_noise": 0.03,
    "apart": 1.0,
}
PRIOR_SPREAD = 0.5

#: Memory is compared where the tool counts what the model counts.
MEMORY = ("torch_allocated", "torch_allocated_last_rank", "nvidia-smi")


@dataclass(frozen=True)
class Case:
    """A row, its error, and what its prediction rests on.

    Attributes
    ----------
    row
        The row.
    error
        Logarithm of measured over predicted step time, its source held out.
    shares
        What the predicted step time is made of.
    family
        The device's own family.
    experts, low_precision
        Whether the model has experts, and whether the run was in fp8.
    """

    row: Row
    error: float
    shares: Shares
    family: str
    experts: bool
    low_precision: bool

    @property
    def source(self) -> str:
        """Its source."""
        return source_of(self.row)

    @property
    def problem(self) -> tuple[Any, ...]:
        """What rows that differ in their plans alone have in common."""
        return tuple(getattr(self.row, name) for name in SAME_PROBLEM)


def case_of(row: Row, error: float, options: PredictOptions) -> Case:
    """Return a row with what its prediction rests on."""
    found = predicted_run(row, options)
    assert not isinstance(found, Skip)
    (problem, plan, *_), verdict, _ = found
    site = machine_for(
        row.hardware or "", row.interconnect, row.devices_per_node
    )
    costs = [cost for kind in problem.graph.kinds for cost in kind.costs]
    return Case(
        row=row,
        error=error,
        shares=shares_of(problem, plan, verdict),
        family=site.calibration_family,
        experts=any(cost.expert_weight_bytes for cost in costs),
        low_precision=problem.job.dtype == "fp8",
    )


def cases_of(files: Iterable[Path]) -> list[Case]:
    """Predict every source with a fit to all others."""
    rows = usable([row for path in files for row in read_rows(path)])
    evidence = evidence_of(rows, [source_of(row) for row in rows])
    shown = thinned(evidence)
    found, linear = fit(prior(PARAMETERS), shown, stored_start())
    held = hold_out(linear, shown, evidence)
    options = options_of(found.values)
    return [
        case_of(row, -float(error), options)
        for row, error in zip(rows, held.errors, strict=True)
    ]


class Table:
    """Cases as arrays."""

    def __init__(self, cases: Sequence[Case]) -> None:
        self.cases = cases
        self.errors = np.array([case.error for case in cases])
        sources: dict[str, set[str]] = defaultdict(set)
        for case in cases:
            sources[case.family].add(case.source)
        device = np.array([case.shares.device for case in cases])
        # Of every source the device counts as unseen that no other has.
        flags = [
            [len(sources[c.family]) == 1, c.experts, c.low_precision]
            for c in cases
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
    def pairs(self) -> list[tuple[int, int]]:
        """Neighbours among the plans of one problem, in order of the file."""
        members: dict[Any, list[int]] = defaultdict(list)
        for i, case in enumerate(self.cases):
            members[case.problem].append(i)
        return [pair for group in members.values() for pair in pairwise(group)]


@dataclass(frozen=True)
class Numbers:
    """Standard deviations, and the multiples of them."""

    names: tuple[str, ...]
    values: Array
    step: Quantiles
    plans: float

    def spread(self, table: Table) -> Array:
        """Return the standard deviations of errors."""
        noise, *parts = self.values[:-2]
        return np.sqrt(noise**2 + table.parts**2 @ np.array(parts) ** 2)

    def pair_spread(self, table: Table) -> Array:
        """Return those of the ratios of pairs."""
        _, *parts, noise, apart = self.values
        one, other = np.array(table.pairs).reshape(-1, 2).T
        between = apart * (table.parts[one] - table.parts[other])
        return np.sqrt(2 * noise**2 + between**2 @ np.array(parts) ** 2)


def quantiles(values: Array, weights: Array, at: Sequence[float]) -> Array:
    """Return quantiles of weighted values."""
    order = np.argsort(values)
    below = np.cumsum(weights[order]) - weights[order] / 2
    return np.interp(np.array(at) * weights.sum(), below, values[order])


def fit_numbers(table: Table, chosen: Array) -> Numbers:
    """Fit standard deviations and their multiples to some rows."""
    begin = np.log(list(PRIORS.values()))
    errors, weights = table.errors[chosen], table.weights[chosen]
    inside = set(np.flatnonzero(chosen).tolist())
    kept = np.array([set(pair) <= inside for pair in table.pairs], bool)
    pairs = np.array(table.pairs).reshape(-1, 2)
    apart = table.errors[pairs[:, 0]] - table.errors[pairs[:, 1]]
    pair_weights = table.weights[pairs[:, 0]]

    def surprise(errors: Array, spread: Array, weights: Array) -> float:
        odd = np.log1p((errors / spread) ** 2 / FREEDOM) * (FREEDOM + 1) / 2
        return float(weights @ (np.log(spread) + odd))

    def loss(x: Array) -> float:
        numbers = Numbers(tuple(PRIORS), np.exp(x), NO_QUANTILES, 0.0)
        return (
            surprise(errors, numbers.spread(table)[chosen], weights)
            + surprise(
                apart[kept],
                numbers.pair_spread(table)[kept],
                pair_weights[kept],
            )
            + float(np.sum((x - begin) ** 2)) / (2 * PRIOR_SPREAD**2)
        )

    values = np.exp(least(loss, begin))
    numbers = Numbers(tuple(PRIORS), values, NO_QUANTILES, 0.0)
    ratios = errors / numbers.spread(table)[chosen]
    low_90, low_50, high_50, high_90 = quantiles(
        ratios, weights, (0.05, 0.25, 0.75, 0.95)
    )
    beside = abs(apart[kept] / numbers.pair_spread(table)[kept])
    plans = quantiles(beside, pair_weights[kept], (0.9,))[0]
    step = Quantiles(
        low_90=low_90, low_50=low_50, high_50=high_50, high_90=high_90
    )
    return Numbers(tuple(PRIORS), values, step, float(plans))


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
            "median_half_width_90": round(
                float(np.median(self.half_width[chosen])), 4
            ),
        }


def hold_out_numbers(table: Table) -> tuple[Coverage, float]:
    """Count what intervals cover, and ratios, with numbers of all others."""
    count = len(table.errors)
    bounds = np.empty((count, 4))
    pairs = np.array(table.pairs).reshape(-1, 2)
    apart = table.errors[pairs[:, 0]] - table.errors[pairs[:, 1]]
    covered = np.zeros(len(pairs), bool)
    for source in sorted(set(table.sources)):
        own = table.sources == source
        numbers = fit_numbers(table, ~own)
        step = np.array(msgspec.structs.astuple(numbers.step))
        bounds[own] = numbers.spread(table)[own, None] * step
        mine = own[pairs[:, 0]]
        limit = numbers.plans * numbers.pair_spread(table)
        covered[mine] = abs(apart[mine]) <= limit[mine]
    low_90, low_50, high_50, high_90 = bounds.T
    errors = table.errors
    return (
        Coverage(
            (low_50 <= errors) & (errors <= high_50),
            (low_90 <= errors) & (errors <= high_90),
            (np.exp(high_90) - np.exp(low_90)) / 2,
        ),
        float(covered.mean()),
    )


def memory_errors(files: Iterable[Path]) -> tuple[Array, Array]:
    """Return logarithms of measured over predicted memory, and weights."""
    found: list[tuple[str, float]] = []
    for path in files:
        for row in read_rows(path):
            measured = measured_memory_bytes(row)
            if (
                row.status != "ok"
                or why_unusable(row) is not None
                or row.mem_class not in MEMORY
                or measured is None
            ):
                continue
            answer = predict(row)
            if isinstance(answer, Skip) or not answer.memory_bytes:
                continue
            error = float(np.log(measured / answer.memory_bytes))
            found.append((source_of(row), error))
    counts = Counter(source for source, _ in found)
    return (
        np.array([error for _, error in found]),
        np.array([counts[source] ** WEIGHT for source, _ in found]),
    )


#: Rows that a class needs to be on the page.
SHOWN = 20

#: By what coverage is told apart.
CLASSES: dict[str, Callable[[Case], str]] = {
    "by_source": lambda case: case.source,
    "by_family": lambda case: device_family(case.row),
    "by_parallelism": lambda case: parallelism(case.row),
    "by_precision": lambda case: case.row.precision_class or "",
    "by_tier": lambda case: case.row.time_tier or "",
    "by_experts": lambda case: "experts" if case.experts else "dense",
}


def tables(table: Table, coverage: Coverage) -> dict[str, Any]:
    """Return what intervals cover, of all rows and by class."""
    every = np.ones(len(table.errors), bool)
    found: dict[str, Any] = {"all": coverage.figures(every)}
    for key, class_of in CLASSES.items():
        names = np.array([class_of(case) for case in table.cases])
        found[key] = {
            str(name): coverage.figures(names == name)
            for name in sorted(set(names))
        }
    return found


def percent(value: float) -> str:
    """Return a fraction in per cent."""
    return f"{100 * value:.1f}"


def page(figures: dict[str, Any], pairs: int, ratios: float) -> str:
    """Return the tables of docs/validation.md."""
    lines = [
        "| rows of | rows | within 50 %, % | within 90 %, % | median ±, % |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    shown = {"all held-out sources": figures["all"]}
    for key in ("by_experts", "by_tier", "by_precision"):
        shown |= {name or "not stated": x for name, x in figures[key].items()}
    for key in ("by_family", "by_parallelism", "by_source"):
        shown |= {
            name: x for name, x in figures[key].items() if x["rows"] >= SHOWN
        }
    for name, row in shown.items():
        cells = (
            name,
            str(row["rows"]),
            percent(row["within_50"]),
            percent(row["within_90"]),
            percent(row["median_half_width_90"]),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(
        [
            "Held-out sources; devices, parallelism and sources with "
            f"{SHOWN} rows or more:",
            "",
            *lines,
            "",
            f"Of {pairs} pairs of plans {percent(ratios)} % have a ratio "
            "that lies within the noise around the",
            "predicted one.",
        ]
    )


def four(value: float) -> float:
    """Return four significant digits."""
    return float(f"{value:.4g}")


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
    table = Table(cases)
    numbers = fit_numbers(table, np.ones(len(cases), bool))
    coverage, ratios = hold_out_numbers(table)
    errors, weights = memory_errors(arguments.files)
    memory = Quantiles(
        **{
            name: four(float(value))
            for name, value in zip(
                Quantiles.__struct_fields__,
                quantiles(errors, weights, (0.05, 0.25, 0.75, 0.95)),
                strict=True,
            )
        }
    )
    sources = len(set(table.sources))
    stored = Deviations(
        **{
            name: four(float(value))
            for name, value in zip(numbers.names, numbers.values, strict=True)
        },
        step=Quantiles(
            **{
                name: four(float(value))
                for name, value in msgspec.structs.asdict(numbers.step).items()
            }
        ),
        plans=four(numbers.plans),
        memory=memory,
        memory_error=four(float(np.average(np.abs(errors), weights=weights))),
        families=tuple(sorted({case.family for case in cases})),
        provenance=f"bench/intervals.py: errors of {len(cases)} step times "
        f"of {sources} sources, each predicted by a fit to all others, and "
        f"of {len(errors)} figures of memory",
    )
    figures = tables(table, coverage)
    document = {
        "command": "python bench/intervals.py",
        "deviations": msgspec.to_builtins(stored),
        "held_out": figures,
        "pairs": {"pairs": len(table.pairs), "within_90": round(ratios, 4)},
    }
    print(msgspec.json.format(msgspec.json.encode(stored), indent=1).decode())
    _print(figures)
    print(f"ratios of {len(table.pairs)} pairs: {100 * ratios:.1f} % within")
    write_result("intervals", document)
    fill(
        ROOT / "docs" / "validation.md",
        "intervals",
        page(figures, len(table.pairs), ratios),
    )
    if arguments.write:
        text = msgspec.json.format(msgspec.json.encode(stored), indent=1)
        INTERVALS.write_bytes(text + b"\n")
        print(f"wrote {INTERVALS.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
