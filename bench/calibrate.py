"""Fit the parameters of predictions to published measurements.

    python bench/calibrate.py              fit, and predict every source with
                                           a fit to all others
    python bench/calibrate.py --write      store the fit, too

Fits are those of ``nest.calibration.fit``. Holding a source out refits
everything: all parameters from their priors, with slopes taken once, at the
fit to all rows. A row of the source whose configuration another source has
measured too is counted apart. Intervals are of a bootstrap by source.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bench.result_files import write_result
from nest.calibration.evidence import Array, Evidence, evidence_of
from nest.calibration.fit import Fit, Linear, fit, prior, refit
from nest.calibration.parameters import PARAMETERS, Parameter, options_of
from nest.calibration.stored import StoredFit, stored_fit
from nest.hardware.calibration import CalibrationFile, stored_calibration
from nest.validation.predict import PredictOptions, Skip, predict
from nest.validation.reading import read_rows
from nest.validation.report import source_of
from nest.validation.rows import Row, measured_memory_bytes, measured_step_time_s
from nest.validation.usable import why_unusable

ROOT = Path(__file__).resolve().parent.parent
MEASURED = ROOT.parent / "shared" / "data" / "measured"
FILES = (MEASURED / "measurements.csv", MEASURED / "measurements-2026.csv")
DEVICES = ROOT / "nest" / "hardware" / "data" / "device_calibration.json"
FIT = ROOT / "nest" / "calibration" / "data" / "fit.json"

#: Rows of tier C do not say on what mesh they ran.
TIERS = ("A", "B", None)
_HALF = ("bf16", "fp16")

#: Rows of one source that a fit is given at most.
MOST = 80

#: Samples of the bootstrap, and the sources it must draw alike every time.
SAMPLES = 2000
SEED = 14


def file_of(fit: Fit, rows: int, sources: int) -> StoredFit:
    """Return a fit as it is stored, to four digits."""

    def four(value: float) -> float:
        return float(f"{value:.4g}")

    return StoredFit(
        names=tuple(parameter.name for parameter in fit.parameters),
        logarithms=tuple(round(float(x), 4) for x in fit.x),
        covariance=tuple(tuple(four(float(c)) for c in row) for row in fit.covariance),
        rows=rows,
        sources=sources,
    )


@dataclass(frozen=True)
class Answers:
    """Rows with the logarithms of predicted over measured step times."""

    evidence: Evidence
    errors: Array

    def of(self, chosen: Iterable[int]) -> Answers:
        """Return those of some rows."""
        numbers = list(chosen)
        return Answers(self.evidence.of(numbers), self.errors[numbers])


def usable(rows: Sequence[Row]) -> list[Row]:
    """Return the rows whose step times can be predicted."""
    return [
        row
        for row in rows
        if row.status == "ok"
        and row.time_tier in TIERS
        and why_unusable(row) is None
        and measured_step_time_s(row) is not None
        and not isinstance(predict(row), Skip)
    ]


def thinned(evidence: Evidence) -> Evidence:
    """Return at most :data:`MOST` rows of every source, evenly chosen.

    More would let a large source decide what is common to all.
    """
    chosen = []
    for numbers in members_of(evidence).values():
        step = -(-len(numbers) // MOST)
        chosen += numbers[::step]
    return evidence.of(sorted(chosen))


def configuration(row: Row) -> tuple[Any, ...]:
    """Return what ran, whoever measured it."""
    return (
        *(row.hardware, row.num_devices, row.layers, row.hidden, row.heads),
        *(row.seq_len, row.global_batch, row.micro_batch, row.tp, row.pp),
        *(row.vpp, row.cp, row.ep, row.precision_class),
    )


def hold_out(linear: Linear, shown: Evidence, evidence: Evidence) -> Answers:
    """Predict all rows of every source with a fit to all others.

    ``linear`` is about the rows that are ``shown`` to fits.
    """
    begin = prior(PARAMETERS)
    errors = np.empty(len(evidence.rows))
    for group, members in members_of(evidence).items():
        others = [i for i, g in enumerate(shown.groups) if g != group]
        rest = Linear(linear.x, linear.errors[others], linear.slopes[others])
        held = refit(begin, rest, shown.of(others))
        errors[members] = evidence.errors(held.x, PARAMETERS, members)
    return Answers(evidence, errors)


def figures(errors: Array) -> dict[str, float | int]:
    """Return number, median and mean absolute error, and bias.

    ``errors`` are logarithms; the figures are relative errors.
    """
    relative = np.expm1(errors)
    return {
        "rows": len(errors),
        "median_abs_error": round(float(np.median(abs(relative))), 4),
        "mean_abs_error": round(float(np.mean(abs(relative))), 4),
        "bias": round(float(np.median(relative)), 4),
    }


def bootstrap(answers: Answers) -> dict[str, list[float]]:
    """Return 95 % intervals of median and mean, drawing whole sources."""
    members = list(members_of(answers.evidence).values())
    chance = np.random.default_rng(SEED)
    relative = abs(np.expm1(answers.errors))
    medians, means = [], []
    for _ in range(SAMPLES):
        drawn = chance.integers(len(members), size=len(members))
        errors = relative[np.concatenate([members[k] for k in drawn])]
        medians.append(np.median(errors))
        means.append(errors.mean())
    return {
        f"{name}_abs_error": [
            round(float(x), 4) for x in np.quantile(found, (0.025, 0.975))
        ]
        for name, found in (("median", medians), ("mean", means))
    }


def members_of(evidence: Evidence) -> dict[str, list[int]]:
    """Return the numbers of the rows of every source, by name."""
    members: dict[str, list[int]] = defaultdict(list)
    for i, group in enumerate(evidence.groups):
        members[group].append(i)
    return dict(sorted(members.items()))


#: Rows of which figures are given, by what they are called.
CLASSES = {
    "all": lambda row: True,
    "tier A, 16 bit": lambda row: row.time_tier == "A" and row.precision_class in _HALF,
    "16 bit": lambda row: row.precision_class in _HALF,
    "fp8": lambda row: row.precision_class == "fp8",
    "experts": lambda row: bool(row.experts),
    "functional tests": lambda row: "CI golden" in (row.source or ""),
}


def tables(
    answers: Answers, shared: set[int], files: Mapping[str, set[str]]
) -> dict[str, Any]:
    """Return the figures by class and by source.

    ``known`` are the rows whose configuration another source has too,
    ``files`` the sources of each file.
    """
    rows = answers.evidence.rows
    classes: dict[str, Any] = {}
    of_files = {
        name: lambda row, sources=sources: source_of(row) in sources
        for name, sources in files.items()
    }
    for name, takes in {**CLASSES, **of_files}.items():
        chosen = [i for i, row in enumerate(rows) if takes(row)]
        if chosen:
            some = answers.of(chosen)
            interval = {"interval": bootstrap(some)}
            classes[name] = figures(some.errors) | interval
    for name, numbers in (
        ("configuration of another source", shared),
        ("configuration of no other", set(range(len(rows))) - shared),
    ):
        if numbers:
            classes[name] = figures(answers.of(sorted(numbers)).errors)
    sources = {
        name: figures(answers.errors[chosen])
        for name, chosen in members_of(answers.evidence).items()
    }
    return {"classes": classes, "sources": sources}


def known_elsewhere(evidence: Evidence) -> set[int]:
    """Return the rows whose configuration another source has measured."""
    sources: dict[tuple[Any, ...], set[str]] = defaultdict(set)
    for row, group in zip(evidence.rows, evidence.groups, strict=True):
        sources[configuration(row)].add(group)
    return {
        i for i, row in enumerate(evidence.rows) if len(sources[configuration(row)]) > 1
    }


def cached_fraction(rows: Sequence[Row], options: PredictOptions) -> float:
    """Return the median over all rows with a figure of nvidia-smi."""
    stored = stored_calibration().software
    without = msgspec.structs.replace(
        options, software=msgspec.structs.replace(stored, cached_fraction=0.0)
    )
    fractions = []
    for row in rows:
        measured = measured_memory_bytes(row)
        if row.mem_class != "nvidia-smi" or measured is None:
            continue
        answer = predict(row, without)
        if isinstance(answer, Skip) or answer.memory_bytes is None:
            continue
        reserve = answer.breakdown["reserve"]
        allocated = answer.memory_bytes - reserve
        fractions.append((measured - reserve) / allocated - 1)
    return round(max(statistics.median(fractions), 0.0), 3)


def write(fitted: Fit, evidence: Evidence, cached: float) -> None:
    """Store a fit, and the calibration of devices and software with it."""
    sources = len(set(evidence.groups))
    document = file_of(fitted, len(evidence.rows), sources)
    options = options_of({name: float(f"{v:.4g}") for name, v in fitted.values.items()})
    stored = stored_calibration()
    families = {}
    for name, calibration in sorted(options.calibration.items()):
        shown = [
            p.field for p in PARAMETERS if p.concerns(name) and p.family != "software"
        ]
        groups = {
            group
            for group, family in zip(evidence.groups, evidence.families, strict=True)
            if family == name
        }
        families[name] = msgspec.structs.replace(
            calibration,
            provenance=f"bench/calibrate.py: {', '.join(shown)} fitted to "
            f"{evidence.families.count(name)} step times of {len(groups)} "
            f"sources on such devices, beside all others; the rest set by "
            f"hand",
        )
    assert options.software is not None
    calibration_file = CalibrationFile(
        families=families,
        inherits=stored.inherits,
        software=msgspec.structs.replace(
            options.software,
            cached_fraction=cached,
            provenance="bench/calibrate.py: overlap of weights, gradients, "
            "tp and ep fitted with the devices, cp set by hand; "
            "cached_fraction the median over the rows that nvidia-smi "
            "measured",
        ),
    )
    for path, content in ((FIT, document), (DEVICES, calibration_file)):
        text = msgspec.json.format(msgspec.json.encode(content), indent=1)
        path.write_bytes(text + b"\n")
        print(f"wrote {path.relative_to(ROOT)}")


def _print(fitted: dict[str, Any], held: dict[str, Any]) -> None:
    heads = f"{'fitted':>22}{'held out':>22}"
    print(f"{'median, mean, bias in %':52}{'rows':>5}{heads}")
    for kind in ("classes", "sources"):
        for name, row in fitted[kind].items():
            cells = "".join(
                f"{100 * one['median_abs_error']:8.1f}"
                f"{100 * one['mean_abs_error']:7.1f}"
                f"{100 * one['bias']:+7.1f}"
                for one in (row, held[kind][name])
            )
            print(f"{name[:51]:52}{row['rows']:>5}{cells}")


def numbers(parameters: tuple[Parameter, ...], values: Mapping[str, float]) -> None:
    """Print the parameters before and after."""
    before = prior(parameters).values
    for name, value in values.items():
        print(f"  {name:32} {value:10.4g}   prior {before[name]:.4g}")


def stored_start() -> Array:
    """Return where the search begins: at the stored fit, or at the prior."""
    values = prior(PARAMETERS).values | stored_fit().values
    return np.log([values[parameter.name] for parameter in PARAMETERS])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, default=FILES)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    files = {path.stem: read_rows(path) for path in arguments.files}
    rows = usable([row for some in files.values() for row in some])
    sources = {name: {source_of(row) for row in some} for name, some in files.items()}
    evidence = evidence_of(rows, [source_of(row) for row in rows])
    began = time.perf_counter()
    shown = thinned(evidence)
    best, linear = fit(prior(PARAMETERS), shown, stored_start())
    seconds = time.perf_counter() - began
    print(f"{len(shown.rows)} of {len(rows)} rows, fitted in {seconds:.0f} s")
    numbers(PARAMETERS, best.values)
    fitted = Answers(evidence, evidence.errors(best.x, PARAMETERS))
    held = hold_out(linear, shown, evidence)
    shared = known_elsewhere(evidence)
    cached = cached_fraction(rows, options_of(best.values))
    document = {
        "command": "python bench/calibrate.py",
        "rows": len(rows),
        "sources": len(set(evidence.groups)),
        "values": {name: float(f"{value:.4g}") for name, value in best.values.items()}
        | {"cached_fraction": cached},
        "fitted": tables(fitted, shared, sources),
        "held_out": tables(held, shared, sources),
    }
    _print(document["fitted"], document["held_out"])
    write_result("calibration", document)
    if arguments.write:
        write(best, shown, cached)


if __name__ == "__main__":
    main()
