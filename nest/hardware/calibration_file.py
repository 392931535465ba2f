"""Calibrations in files: a user's own parameters instead of the stored ones.

``nest calibrate`` writes such a file (:class:`~nest.hardware.calibration.
CalibrationFile`); it holds for the device families that it names, and for no other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec.structs import asdict, replace

from nest.errors import NestError
from nest.hardware.calibration import Calibration, CalibrationFile, calibrated_family
from nest.hardware.fabric import MachineRun
from nest.ir.io import decode, read_bytes
from nest.ir.plan import OVERLAP
from nest.ir.problem import OwnRuns, Problem

#: Parameters that something is divided by.
_DIVISORS = (
    *("matmul_fraction", "misaligned_fraction", "attention_fraction"),
    *("memory_fraction", "low_precision_fraction", "routing_passes"),
)

#: The most that a parameter may be. Shares of a peak are at most all of it;
#: the others are far beyond what a device or a host was seen to do, so that a
#: slip of the pen or a wrong unit is noticed.
_MOST = {
    **dict.fromkeys(
        (
            *("matmul_fraction", "misaligned_fraction", "memory_fraction"),
            "attention_fraction",
        ),
        1.0,
    ),
    "low_precision_fraction": 4.0,
    "matmul_half_size": 1e5,
    "attention_half_blocks": 1e5,
    "cast_bytes": 1e3,
    "routing_passes": 1e3,
    "expert_kernels": 1e3,
    "collective_kernels": 1e3,
    "host_ns": 1e8,
    "cached_fraction": 10.0,
}


class InvalidCalibrationError(NestError, ValueError):
    """A calibration cannot be read, or is not one of the devices."""


def read_calibration(path: str | Path) -> CalibrationFile:
    """Read a calibration.

    Raises ``InvalidCalibrationError`` if the file is no calibration, or a number in it
    is out of range.
    """
    where = str(path)
    data = read_bytes(path, InvalidCalibrationError, "calibration")
    calibration = decode(
        data, where, CalibrationFile, "calibration", InvalidCalibrationError
    )
    if not calibration.families:
        raise InvalidCalibrationError(
            f"{where}: families: expected a device family, got none; make "
            f"the file with 'nest calibrate'"
        )
    for family, other in calibration.inherits.items():
        if other not in calibration.families:
            raise InvalidCalibrationError(
                f"{where}: inherits.{family}: expected one of "
                f"{', '.join(calibration.families)}, got {other!r}; correct it"
            )
    for name in OVERLAP:
        if name not in calibration.software.overlap:
            raise InvalidCalibrationError(
                f"{where}: software.overlap: expected {', '.join(OVERLAP)}, "
                f"got no {name}; add it"
            )
    for place, value in _numbers(calibration):
        expected = _wrong(place.rsplit(".", 1)[-1], place, value)
        if expected:
            raise InvalidCalibrationError(
                f"{where}: {place}: expected {expected}, got {value:g}; correct it"
            )
    return calibration


def _numbers(stored: CalibrationFile) -> Iterator[tuple[str, float]]:
    for family, calibration in stored.families.items():
        for field, value in asdict(calibration).items():
            if isinstance(value, int | float):
                yield f"families.{family}.{field}", value
    for name, value in stored.software.overlap.items():
        yield f"software.overlap.{name}", value
    yield "software.cached_fraction", stored.software.cached_fraction


def _wrong(field: str, place: str, value: float) -> str:
    """Return what was expected of a number, empty if it is that."""
    maximum = 1.0 if "overlap" in place else _MOST.get(field, math.inf)
    positive = field in _DIVISORS
    if math.isfinite(value) and 0 <= value <= maximum and (value or not positive):
        return ""
    if not positive and maximum == 1:
        return "a number from 0 to 1"
    text = f"a finite number {'>' if positive else '>='} 0"
    return text if maximum == math.inf else f"{text} and <= {maximum:g}"


def calibrated_parts(
    machines: Sequence[MachineRun], calibration: CalibrationFile, where: str
) -> list[MachineRun]:
    """Return machines with the parameters of a calibration.

    Raises ``InvalidCalibrationError`` if it is not one of all these devices.
    """
    calibrated = []
    for machine, count in machines:
        family = machine.calibration_family
        parameters = calibration_for(calibration, family, where)
        calibrated.append((machine.with_calibration(parameters), count))
    return calibrated


def with_calibration(
    machines: list[MachineRun], path: str | None
) -> tuple[list[MachineRun], CalibrationFile | None]:
    """Return machines under the calibration of a file, and the calibration.

    As they are without a file.

    Raises ``InvalidCalibrationError`` if it cannot be read, or is not one of all these
    devices.
    """
    if path is None:
        return machines, None
    calibration = read_calibration(path)
    return calibrated_parts(machines, calibration, path), calibration


def resting_on(
    problem: Problem,
    calibration: CalibrationFile,
    machines: Sequence[MachineRun],
    path: str,
) -> Problem:
    """Return the problem of such machines, saying what its costs rest on."""
    return replace(
        problem,
        source=f"{problem.source}; calibration: {Path(path).name}",
        own_runs=own_runs_for(calibration, machines),
    )


def own_runs_for(
    calibration: CalibrationFile | None, machines: Sequence[MachineRun]
) -> OwnRuns | None:
    """Return the own runs of a calibration if they ran on such machines."""
    if calibration is None or calibration.own_runs is None:
        return None
    families = {machine.calibration_family for machine, _ in machines}
    return calibration.own_runs if families == {calibration.own_runs.family} else None


def calibration_for(
    calibrations: CalibrationFile, family: str, where: str
) -> Calibration:
    """Return the parameters of a device family.

    Raises ``InvalidCalibrationError`` if the calibration is not one of these devices.
    """
    calibration = calibrations.of(family)
    if calibration is None:
        families = ", ".join([*calibrations.families, *calibrations.inherits])
        similar = [
            name
            for name in calibrations.families
            if calibrated_family(name) == calibrated_family(family)
        ]
        remedy = (
            f", or, as {family} and {similar[0]} are taken to be alike where "
            f'nothing is known, add "{family}": "{similar[0]}" to its inherits'
            if similar
            else ""
        )
        raise InvalidCalibrationError(
            f"{where}: expected a calibration of {family}, got one of {families}; "
            f"leave --calibration out, or calibrate with runs on {family}{remedy}"
        )
    return calibration
