"""Fit the parameters of predictions without one mechanism after the other.

    python bench/ablation.py [FILE …] [--jobs N] [--only TEXT] [--every N]

Each mechanism is switched off, all other parameters are fitted anew, and each
source is predicted by such a fit to all others. Slopes are taken once, at the
stored fit; errors are those of predictions without the mechanism. The table is
written to docs/results/ablation.md, the figures to ``bench/results/ablation.json``
as soon as a mechanism is done. With ``--only`` the other mechanisms keep theirs. It
takes six minutes of CPU; ``--every 5`` takes every fifth row, and two minutes.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from bench.calibrate import CLASSES, FILES, figures, members_of, thinned, usable
from bench.result_files import fill, page_path, result_path, table, write_result
from nest.calibration.evidence import Array, Evidence, evidence_of
from nest.calibration.fit import Fit, Linear, prior, solve
from nest.calibration.parameters import Parameter, options_of
from nest.calibration.stored import stored_fit
from nest.hardware.calibration import MAX_EXPONENT, Software, stored_calibration
from nest.validation.predict import PredictOptions, Skip, predict
from nest.validation.reading import read_rows
from nest.validation.report import source_of
from nest.validation.rows import Row, measured_step_time_s

#: Sources with fewer rows have no line of their own.
LEAST = 20

#: Rows that a process predicts at a time.
_CHUNK = 32

#: Families that had none of their own once, and what they took.
NEW_FAMILIES = {"Blackwell": "H100", "MI300": "H100"}


class Mechanism(NamedTuple):
    """What predictions can do without.

    Attributes
    ----------
    name
        Of the mechanism.
    fields
        Fields of a calibration, with the values that switch it off.
    families
        Families whose parameters are those of another.
    overlap, facts
        Whether nothing overlaps, and whether nothing is known of software.
    """

    name: str
    fields: dict[str, float] = {}
    families: dict[str, str] = {}
    overlap: bool = False
    facts: bool = False

    def options(self, options: PredictOptions) -> PredictOptions:
        """Return options that predict without it."""
        families = {
            name: replace(calibration, **self.fields)
            for name, calibration in options.calibration.items()
        }
        for name, other in self.families.items():
            families[name] = families[other]
        software = options.software or stored_calibration().software
        if self.overlap:
            software = without_overlap(software)
        return replace(options, calibration=families, software=software)

    def row(self, row: Row) -> Row:
        """Return a row as it is predicted without it."""
        return replace(row, framework=None, source=None) if self.facts else row

    def leaves(self, parameter: Parameter) -> bool:
        """Return whether a parameter is still fitted."""
        return not (
            parameter.field in self.fields
            or parameter.family in self.families
            or (self.overlap and parameter.family == "software")
        )


def without_overlap(software: Software) -> Software:
    """Return what software hides if it hides nothing."""
    return replace(software, overlap=dict.fromkeys(software.overlap, 0.0))


MECHANISMS = (
    Mechanism("all mechanisms"),
    Mechanism("host time", {"host_ns": 0.0}),
    Mechanism("half sizes", {"matmul_half_size": 0.0}),
    Mechanism("small attention", {"attention_half_blocks": 0.0}),
    Mechanism("own families", families=NEW_FAMILIES),
    Mechanism("fp8", {"low_precision_fraction": 1.0, "cast_bytes": 0.0}),
    Mechanism("experts", {"routing_passes": 1.0, "expert_kernels": 1.0}),
    Mechanism("exponentials", {"exponential_size": 0.0}),
    Mechanism("power", {"watts_per_tflops": 0.0, "power_exponent": 0.0}),
    Mechanism("overlap", overlap=True),
    Mechanism("software facts", facts=True),
)


def _predicted(rows: Sequence[Row], options: PredictOptions) -> list[float]:
    """Return logarithms of predicted over measured times; nan for none."""
    errors = []
    for row in rows:
        answer, measured_s = predict(row, options), measured_step_time_s(row)
        has_time = not isinstance(answer, Skip) and answer.step_time_s
        assert measured_s
        errors.append(
            math.log(answer.step_time_s / measured_s) if has_time else math.nan  # type: ignore[union-attr,operator]
        )
    return errors


@dataclass(frozen=True)
class Bench:
    """Rows, slopes of their errors at a fit, and what predicts them.

    Attributes
    ----------
    evidence
        ``n`` rows.
    shown
        Numbers of those that fits see.
    at
        The fit whose slopes were taken.
    slopes
        ``(n, p)``.
    predicted
        Predicts rows under options.
    """

    evidence: Evidence
    shown: list[int]
    at: Fit
    slopes: Array
    predicted: Callable[[Sequence[Row], PredictOptions], Array]

    def errors(self, mechanism: Mechanism, fit: Fit, chosen: Iterable[int]) -> Array:
        """Return errors of some rows without a mechanism."""
        rows = [mechanism.row(self.evidence.rows[i]) for i in chosen]
        values = self.at.values | fit.values
        # Nothing holds it where all devices of a family are taken for others.
        exponent = "every.power_exponent"
        if exponent in values:
            values[exponent] = min(values[exponent], float(MAX_EXPONENT))
        options = options_of(values, self.at.parameters)
        return self.predicted(rows, mechanism.options(options))

    def slopes_of(self, mechanism: Mechanism, kept: list[int]) -> Array:
        """Return slopes of the parameters that are left.

        Rows of a family that takes another's depend on the other's.
        """
        slopes = self.slopes.copy()
        names = [parameter.name for parameter in self.at.parameters]
        for k, parameter in enumerate(self.at.parameters):
            other = mechanism.families.get(parameter.family)
            name = f"{other}.{parameter.field}"
            if other is not None and name in names:
                slopes[:, names.index(name)] += self.slopes[:, k]
        return slopes[:, kept]


def refitted(bench: Bench, mechanism: Mechanism) -> tuple[Array, Array, list[int]]:
    """Return errors without a mechanism, fitted and held out, and the rows.

    Rows that cannot be expressed without it are left out.
    """
    parameters = bench.at.parameters
    kept = [k for k, p in enumerate(parameters) if mechanism.leaves(p)]
    free = tuple(parameters[k] for k in kept)
    begin = prior(free)
    fit = Fit(free, bench.at.x[kept], bench.at.covariance[np.ix_(kept, kept)])
    everything = bench.errors(mechanism, fit, range(len(bench.evidence.rows)))
    rows = [int(i) for i in np.flatnonzero(np.isfinite(everything))]
    shown = [i for i in bench.shown if np.isfinite(everything[i])]
    slopes = bench.slopes_of(mechanism, kept)
    linear = Linear(fit.x, everything[shown], slopes[shown])
    for _ in range(2):
        fit = solve(begin, linear, bench.evidence.of(shown))
        errors = bench.errors(mechanism, fit, shown)
        linear = Linear(fit.x, errors, slopes[shown])
    fitted = bench.errors(mechanism, fit, rows)
    held = np.full(len(everything), np.nan)
    for group, members in members_of(bench.evidence.of(rows)).items():
        others = [n for n, i in enumerate(shown) if bench.evidence.groups[i] != group]
        near = Linear(linear.x, linear.errors[others], linear.slopes[others])
        rest = bench.evidence.of([shown[n] for n in others])
        numbers = [rows[n] for n in members]
        held[numbers] = bench.errors(mechanism, solve(begin, near, rest), numbers)
    return fitted, held[rows], rows


def summary(
    bench: Bench, fitted: Array, held: Array, rows: list[int]
) -> dict[str, Any]:
    """Return the figures by class and by source with enough rows."""
    members: dict[str, list[int]] = {
        name: [n for n, i in enumerate(rows) if takes(bench.evidence.rows[i])]
        for name, takes in CLASSES.items()
    }
    for name, numbers in members_of(bench.evidence.of(rows)).items():
        if len(numbers) >= LEAST:
            members[name] = numbers
    return {
        name: {"fitted": figures(fitted[numbers]), "held_out": figures(held[numbers])}
        for name, numbers in members.items()
        if numbers
    }


#: Classes on the page; the results have all of them.
SHOWN = {"all", "experts"}


def tables(document: dict[str, Any]) -> str:
    """Return the table to print: medians by class.

    Means, and figures of every source with enough rows, are in the results.
    """
    ablated = document["without"]
    complete = ablated["all mechanisms"]
    names = [name for name in CLASSES if name in SHOWN & complete.keys()]
    rows = [complete[name]["fitted"]["rows"] for name in names]

    def cell(figures: dict[str, Any] | None) -> str:
        if figures is None:
            return ""
        return " / ".join(
            f"{100 * figures[kind]['median_abs_error']:.1f}"
            for kind in ("fitted", "held_out")
        )

    parts = [
        table(
            " | ".join(
                [
                    "mechanism that is left out",
                    *(f"{x} ({n})" for x, n in zip(names, rows, strict=True)),
                ]
            ),
            (
                (
                    "none" if figures_of is complete else mechanism,
                    *(cell(figures_of.get(name)) for name in names),
                )
                for mechanism, figures_of in ablated.items()
            ),
        )
    ]
    excluded = {
        name: document["rows"] - figures_of["all"]["fitted"]["rows"]
        for name, figures_of in ablated.items()
    }
    missing = [f"{name}: {count}" for name, count in excluded.items() if count]
    if missing:
        parts.append(f"Rows that cannot be expressed without it: {', '.join(missing)}.")
    return "\n\n".join(parts)


def main() -> None:
    """Print a line per mechanism, and write figures and table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, default=FILES)
    parser.add_argument("--jobs", type=int, help="processes; default: all CPUs")
    parser.add_argument("--only", default="", metavar="TEXT")
    parser.add_argument("--every", type=int, default=1, metavar="N")
    arguments = parser.parse_args()
    every = [row for path in arguments.files for row in read_rows(path)]
    rows = usable(every[:: arguments.every])
    evidence = evidence_of(rows, [source_of(row) for row in rows])
    chosen = {id(row) for row in thinned(evidence).rows}
    shown = [i for i, row in enumerate(rows) if id(row) in chosen]
    began = time.perf_counter()
    at = stored_fit()
    errors = evidence.errors(at.x, at.parameters)
    # Only rows that fits see need them.
    slopes = np.zeros((len(rows), len(at.x)))
    slopes[shown] = evidence.of(shown).slopes(at.x, errors[shown], at.parameters)
    print(f"slopes after {time.perf_counter() - began:.0f} s", flush=True)
    document: dict[str, Any] = {"rows": len(rows), "without": {}}
    if arguments.only:
        document = json.loads(result_path("ablation").read_text())
    with ProcessPoolExecutor(arguments.jobs) as pool:

        def predicted(rows: Sequence[Row], options: PredictOptions) -> Array:
            parts = [rows[i : i + _CHUNK] for i in range(0, len(rows), _CHUNK)]
            found = pool.map(_predicted, parts, [options] * len(parts))
            return np.array([x for part in found for x in part])

        bench = Bench(evidence, shown, at, slopes, predicted)
        for mechanism in MECHANISMS:
            if arguments.only not in mechanism.name:
                continue
            found = summary(bench, *refitted(bench, mechanism))
            document["without"][mechanism.name] = found
            write_result("ablation", document)
            both = found["all"]
            print(
                f"{time.perf_counter() - began:6.0f} s  without "
                f"{mechanism.name:18} median "
                f"{100 * both['fitted']['median_abs_error']:5.1f} fitted, "
                f"{100 * both['held_out']['median_abs_error']:5.1f} held out",
                flush=True,
            )
    fill(page_path("ablation"), "ablation", tables(document))
    print(tables(document))


if __name__ == "__main__":
    main()
