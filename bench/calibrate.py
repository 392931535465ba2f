"""Fit the calibration of devices and software to published measurements.

Least squares on the logarithm of predicted over measured step times, with a
soft-L1 loss, so that single odd runs do not decide. Rows of one source and
device weigh as the square root of their number, so that a large sweep does
not drown the others. Parameters that no row shows keep their stored values.

    python bench/calibrate.py                     fit, compare, do not write
    python bench/calibrate.py --write             store the fit
    python bench/calibrate.py --leave-one-out     predict every source with
                                                  a fit to all others

Needs scipy (dependency group ``bench``), which nothing else here does.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from result_files import write_result
from scipy.optimize import least_squares
from splits import leave_one_source_out

from nest.hardware import machine_for
from nest.hardware.calibration import (
    Calibration,
    CalibrationFile,
    Software,
    calibrated_family,
    stored_calibration,
)
from nest.validation.predict import (
    Prediction,
    PredictOptions,
    Skip,
    predict,
)
from nest.validation.report import Selection, source_of
from nest.validation.rows import (
    Row,
    measured_memory_bytes,
    measured_step_time_s,
    read_rows,
    why_unusable,
)

ROOT = Path(__file__).resolve().parent.parent
MEASUREMENTS = (
    ROOT.parent / "shared" / "data" / "measured" / "measurements.csv"
)
STORED = ROOT / "nest" / "hardware" / "data" / "device_calibration.json"

#: What is fitted, as ``family.parameter``, and what is known of it without
#: these rows; the fit begins there and is held there by a weak prior, so that
#: a parameter that the rows do not show stays. The host is much the same
#: everywhere: ``every`` family gets one value.
PRIORS = {
    # Large products of cuBLAS; NVIDIA's tables of matmul rates.
    "A100.matmul_fraction": 0.75,
    "H100.matmul_fraction": 0.7,
    "V100.matmul_fraction": 0.7,
    "TPU.matmul_fraction": 0.9,
    # A tile of 128 values is used fully from there on.
    "A100.matmul_half_size": 128.0,
    "H100.matmul_half_size": 256.0,
    # The fp32 rate of the cores that are not tensor cores: 19.5 / 312.
    "A100.misaligned_fraction": 0.0625,
    # Dao 2023, arXiv 2307.08691: 50 to 73 % on A100; Shah et al. 2024, arXiv
    # 2407.08608: 35 % on H100.
    "A100.attention_fraction": 0.6,
    "H100.attention_fraction": 0.35,
    # An operator of PyTorch, 10 to 20 µs in Python and as much in C++.
    "A100.launch_ns": 30e3,
    # Unknown.
    "every.waiting_fraction": 0.5,
    "software.weights": 0.5,
    "software.gradients": 0.5,
    "software.tp": 0.5,
}

#: Standard deviation of the prior, in the logarithm; of shares as they are.
PRIOR_SIGMA = 0.5

_HALF = ("bf16", "fp16")

#: Rows that are fitted: tier A, and of tier B the only source in 16 bit whose
#: software overlaps tensor parallel communication, and the one on TPUs.
SELECTIONS = (
    Selection(tiers=("A",), precisions=_HALF),
    Selection(
        tiers=("B",), precisions=_HALF, source="DGX Cloud", hardware="H100"
    ),
    Selection(tiers=("B",), precisions=_HALF, source="MaxText TPU"),
)

#: Largest factor between a stored and a fitted value.
LIMIT = 10.0


@dataclass
class Fit:
    """A fit: the values of ``PRIORS`` and the cached fraction."""

    values: dict[str, float]
    cached_fraction: float
    num_rows: int


@dataclass
class Problem:
    """Selected rows, with remembered predictions.

    A change of one parameter only concerns the rows of its family, or those
    whose software overlaps.
    """

    rows: Sequence[Row]
    families: list[str] = field(default_factory=list)
    measured_s: list[float] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    memory: dict[tuple[Any, ...], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        groups = Counter(map(_group, self.rows))
        for row in self.rows:
            machine = machine_for(
                row.hardware or "", row.interconnect, row.devices_per_node
            )
            self.families.append(calibrated_family(machine.calibration_family))
            time_s = measured_step_time_s(row)
            assert time_s is not None
            self.measured_s.append(time_s)
            self.weights.append(groups[_group(row)] ** -0.25)

    def residuals(self, values: dict[str, float]) -> list[float]:
        options = options_of(values)
        found = []
        for i, row in enumerate(self.rows):
            key = (i, *_relevant(values, self.families[i]))
            if key not in self.memory:
                answer = predict(row, options)
                assert isinstance(answer, Prediction)
                assert answer.step_time_s is not None
                self.memory[key] = self.weights[i] * math.log(
                    answer.step_time_s / self.measured_s[i]
                )
            found.append(self.memory[key])
        return found


def _group(row: Row) -> tuple[Any, ...]:
    return row.source, row.hardware, (row.num_devices or 0) >= 64


def _relevant(values: dict[str, float], family: str) -> tuple[float, ...]:
    prefixes = (f"{family}.", "every.", "software.")
    return tuple(v for k, v in values.items() if k.startswith(prefixes))


def stored_values() -> dict[str, float]:
    """Return the stored values of what is fitted."""
    stored = stored_calibration()
    values = {}
    for name in PRIORS:
        family, parameter = name.split(".")
        if family == "software":
            overlap: dict[str, float] = {**stored.software.overlap}
            values[name] = overlap[parameter]
            continue
        families = stored.families
        chosen = families.get(family, next(iter(families.values())))
        values[name] = getattr(chosen, parameter)
    return values


def options_of(
    values: dict[str, float], cached_fraction: float | None = None
) -> PredictOptions:
    """Return the options that predict with ``values``."""
    stored = stored_calibration()
    families: dict[str, dict[str, Any]] = {
        name: msgspec.to_builtins(calibration)
        for name, calibration in stored.families.items()
    }
    software: dict[str, Any] = msgspec.to_builtins(stored.software)
    for name, value in values.items():
        family, parameter = name.split(".")
        if family == "software":
            software["overlap"][parameter] = min(max(value, 0.0), 1.0)
        else:
            if parameter.endswith("_fraction"):
                value = min(value, 1.0)
            for record in families if family == "every" else (family,):
                families[record][parameter] = value
    if cached_fraction is not None:
        software["cached_fraction"] = cached_fraction
    return PredictOptions(
        calibration={
            name: msgspec.convert(record, Calibration)
            for name, record in families.items()
        },
        software=msgspec.convert(software, Software),
    )


def usable(rows: Sequence[Row]) -> list[Row]:
    """Return the selected rows whose step time can be predicted."""
    return [
        row
        for row in rows
        if row.status == "ok"
        and any(chosen.takes(row, row.time_tier) for chosen in SELECTIONS)
        and why_unusable(row) is None
        and measured_step_time_s(row) is not None
        and not isinstance(predict(row), Skip)
    ]


def fit(rows: Sequence[Row], begin: dict[str, float] | None = None) -> Fit:
    """Fit all parameters that ``rows`` (of :func:`usable`) show.

    ``begin`` is where the search begins, ``None`` at the priors.

    GPUs first; then TPUs with what that found about the software, which
    their rows, of another compiler and with all configuration assumed, do not
    change.
    """
    values = dict(PRIORS)
    for is_tpu in (False, True):
        chosen = [row for row in rows if _on_tpu(row) == is_tpu]
        if chosen:
            values |= _least_squares(chosen, values, is_tpu, begin or PRIORS)
    return Fit(values, _cached_fraction(rows, values), len(rows))


def _on_tpu(row: Row) -> bool:
    return (row.hardware or "").startswith("TPU")


def _least_squares(
    rows: Sequence[Row],
    known: dict[str, float],
    only_device: bool,
    begin: dict[str, float],
) -> dict[str, float]:
    """Return the values of the parameters that the rows' families have."""
    problem = Problem(rows)
    shown = set(problem.families)
    if not only_device:
        shown |= {"every", "software"}
    names = [name for name in PRIORS if name.split(".")[0] in shown]
    prior = np.array([PRIORS[name] for name in names])
    start = np.array([begin[name] for name in names])
    shares = np.array([name.startswith("software.") for name in names])

    def at(x: Any) -> Any:
        # From 1, for steps of differences are relative. Shares may be 0:
        # there steps add; all else multiplies.
        return np.where(shares, start + x - 1, start * np.exp(x - 1))

    def residuals(x: Any) -> Any:
        # Errors of 0.1 are where the loss turns from square to linear.
        values = at(x)
        named = dict(zip(names, values.tolist(), strict=True))
        of_rows = np.array(problem.residuals(known | named)) / 0.1
        ratio = np.maximum(values, 1e-9) / prior
        off = np.where(shares, values - prior, np.log(ratio))
        return np.concatenate([of_rows, off / PRIOR_SIGMA])

    found = least_squares(
        residuals,
        np.ones(len(names)),
        loss="soft_l1",
        bounds=(
            np.where(shares, 1 - start - 1e-9, 1 - math.log(LIMIT)),
            np.where(shares, 2 - start + 1e-9, 1 + math.log(LIMIT)),
        ),
        diff_step=3e-3,
        xtol=1e-4,
        ftol=1e-6,
        max_nfev=40,
    )
    values = dict(zip(names, at(found.x).tolist(), strict=True))
    for name in values:
        if not name.endswith(("_ns", "_size")):
            values[name] = min(max(values[name], 0.0), 1.0)
        values[name] = float(f"{values[name]:.4g}")
    return values


def _cached_fraction(rows: Sequence[Row], values: dict[str, float]) -> float:
    """Return the median over all rows with a figure of nvidia-smi."""
    options = options_of(values, 0.0)
    found = []
    for row in rows:
        measured = measured_memory_bytes(row)
        if row.mem_class != "nvidia-smi" or measured is None:
            continue
        answer = predict(row, options)
        if isinstance(answer, Skip) or answer.memory_bytes is None:
            continue
        reserve = answer.breakdown["reserve"]
        allocated = answer.memory_bytes - reserve
        found.append((measured - reserve) / allocated - 1)
    if not found:
        return stored_calibration().software.cached_fraction
    return round(max(statistics.median(found), 0.0), 3)


def errors(rows: Sequence[Row], options: PredictOptions) -> list[float]:
    """Return the signed relative errors of the step times of ``rows``."""
    found = []
    for row in rows:
        answer = predict(row, options)
        measured = measured_step_time_s(row)
        assert isinstance(answer, Prediction)
        assert answer.step_time_s is not None
        assert measured is not None
        found.append(answer.step_time_s / measured - 1)
    return found


def figures(found: Sequence[float]) -> dict[str, float | int]:
    """Return number, median and mean absolute error, and bias."""
    return {
        "rows": len(found),
        "median_abs_error": round(statistics.median(map(abs, found)), 4),
        "mean_abs_error": round(statistics.fmean(map(abs, found)), 4),
        "bias": round(statistics.fmean(found), 4),
    }


def by_source(
    rows: Sequence[Row], found: Sequence[float]
) -> dict[str, dict[str, float | int]]:
    """Return the figures of every source, and of all rows."""
    groups: dict[str, list[float]] = defaultdict(list)
    for row, error in zip(rows, found, strict=True):
        groups[source_of(row)].append(error)
    table = {name: figures(groups[name]) for name in sorted(groups)}
    return table | {"all": figures(found)}


def write(found: Fit, rows: Sequence[Row]) -> None:
    """Store the fit, with where it comes from."""
    stored = stored_calibration()
    options = options_of(found.values, found.cached_fraction)
    families = {}
    for name, calibration in sorted(options.calibration.items()):
        problem = Problem(rows)
        chosen = [
            row
            for row, family in zip(rows, problem.families, strict=True)
            if family == name
        ]
        parameters = [
            fitted.split(".")[1]
            for fitted in PRIORS
            if fitted.startswith((f"{name}.", "every."))
        ]
        sources = sorted({source_of(row) for row in chosen})
        families[name] = msgspec.structs.replace(
            calibration,
            provenance=f"bench/calibrate.py: {', '.join(parameters)} fitted "
            f"to {len(chosen)} step times of {len(sources)} sources "
            f"({'; '.join(sources)}); the others set by hand",
        )
    assert options.software is not None
    document = CalibrationFile(
        families=families,
        inherits=stored.inherits,
        software=msgspec.structs.replace(
            options.software,
            provenance="bench/calibrate.py: overlap of weights, gradients "
            f"and tp fitted with the devices to {len(rows)} step times, cp "
            "set like tp, ep by hand; cached_fraction the median over the "
            "rows that nvidia-smi measured",
        ),
    )
    text = msgspec.json.format(msgspec.json.encode(document), indent=2)
    STORED.write_bytes(text + b"\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", nargs="?", type=Path, default=MEASUREMENTS)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--leave-one-out", action="store_true")
    arguments = parser.parse_args()
    rows = usable(read_rows(arguments.file))
    began = time.perf_counter()
    found = fit(rows)
    seconds = time.perf_counter() - began
    options = options_of(found.values, found.cached_fraction)
    before = by_source(rows, errors(rows, PredictOptions()))
    after = by_source(rows, errors(rows, options))
    document: dict[str, Any] = {
        "command": "python bench/calibrate.py --leave-one-out",
        "rows": len(rows),
        "values": found.values | {"cached_fraction": found.cached_fraction},
        "fitted": after,
    }
    print(f"{len(rows)} rows, fitted in {seconds:.0f} s")
    for name, value in document["values"].items():
        was = stored_values().get(name)
        print(f"  {name:28} {value:10.4g}   stored {was}")
    _print(("stored", before), ("fitted", after))
    if arguments.leave_one_out:
        held = leave_one_source_out(
            rows,
            lambda others: fit(others, found.values),
            lambda row, split: errors(
                [row], options_of(split.values, split.cached_fraction)
            )[0],
        )
        answers = [answer for split in held for answer in split.answers]
        out = by_source(
            [row for row, _ in answers], [error for _, error in answers]
        )
        document["held_out"] = out
        _print(("fitted", after), ("held out", out))
        write_result("calibration", document)
    if arguments.write:
        write(found, rows)
        print(f"wrote {STORED.relative_to(ROOT)}")


def _print(*tables: tuple[str, dict[str, dict[str, float | int]]]) -> None:
    heads = "".join(f"{name:>22}" for name, _ in tables)
    print(f"{'median, mean, bias':44}{'rows':>6}{heads}")
    for source in tables[0][1]:
        cells = "".join(
            f"{100 * t[source]['median_abs_error']:8.1f}"
            f"{100 * t[source]['mean_abs_error']:7.1f}"
            f"{100 * t[source]['bias']:+7.1f}"
            for _, t in tables
        )
        print(f"{source[:43]:44}{tables[0][1][source]['rows']:>6}{cells}")


if __name__ == "__main__":
    main()
