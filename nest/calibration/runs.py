"""A user's own runs: what they say about the parameters, and what not.

The runs are one more source. Its parameters are the common ones and what
differs from source to source, so before any run their logarithms are normal
around the stored fit, with its covariance and the spreads:
``N(x, C + diag(spread²))``. The runs update that by
:func:`nest.calibration.fit.fit`.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec.structs import asdict, replace

from nest.calibration.evidence import Array, Evidence, evidence_of
from nest.calibration.fit import Fit, Linear, fit, solve
from nest.calibration.parameters import SOFTWARE, options_of
from nest.calibration.stored import stored_fit
from nest.calibration.unknown import own_runs_of
from nest.errors import NestError
from nest.hardware import Machine, machine_for
from nest.hardware.calibration import CalibrationFile, calibrated_family
from nest.ir.problem import OwnRuns
from nest.validation.predict import Skip, predict, predicted_run
from nest.validation.rows import (
    Row,
    impossible,
    measured_step_time_s,
    ran_out_of_memory,
    read_rows,
    why_unusable,
)

#: Runs that a calibration needs at least.
FEWEST = 2

#: A parameter of which so much of the deviation is left was not told.
UNTOLD = 0.8

#: Deviation, in the logarithm, with which a parameter counts as known.
KNOWN = 0.02


class InvalidRunsError(NestError, ValueError):
    """Runs cannot calibrate predictions."""


class Unused(NamedTuple):
    """A row that is no run to calibrate with.

    Attributes
    ----------
    line
        Of the file, from 1.
    reason
        Why not.
    """

    line: int
    reason: str


@dataclass(frozen=True)
class Runs:
    """Runs of one cluster.

    Attributes
    ----------
    where
        Their file, for messages.
    rows
        ``n`` rows with a measured step time that can be predicted.
    unused
        The other rows of the file.
    site
        The machine that they ran on.
    """

    where: str
    rows: tuple[Row, ...]
    unused: tuple[Unused, ...]
    site: Machine

    @property
    def family(self) -> str:
        """Device family of the machine."""
        return self.site.calibration_family

    @property
    def evidence(self) -> Evidence:
        """The rows as one source."""
        return evidence_of(self.rows, [self.where] * len(self.rows))


def read_runs(
    path: str | Path, hardware: str = "", interconnect: str = ""
) -> Runs:
    """Read the runs of a file; see :func:`runs_of`.

    Raises
    ------
    InvalidMeasurementsError
        If the file is no table of runs.
    InvalidRunsError
        If its runs cannot calibrate predictions.
    """
    return runs_of(read_rows(path), str(path), hardware, interconnect)


def runs_of(
    rows: Sequence[Row],
    where: str = "runs",
    hardware: str = "",
    interconnect: str = "",
) -> Runs:
    """Return the runs among rows, which must be of one cluster.

    Parameters
    ----------
    rows
        All rows of a file.
    where
        Its name, for messages.
    hardware, interconnect
        Only rows with this text in the column, upper or lower case.

    Raises
    ------
    InvalidRunsError
        If a figure is impossible, fewer than :data:`FEWEST` rows can be
        used, or they are of several clusters.
    """
    used: list[Row] = []
    unused: list[Unused] = []
    for row in rows:
        reason = _left_out(row, hardware, interconnect)
        if reason is None and (why := impossible(row)) is not None:
            raise InvalidRunsError(f"{where}:{row.line}: {why}")
        reason = reason or _why_unused(row)
        if reason is None:
            used.append(row)
        else:
            unused.append(Unused(row.line, reason))
    if len(used) < FEWEST:
        got = f"{len(used)} (line {used[0].line})" if used else "none"
        whys = [f"; line {line}: {reason}" for line, reason in unused[:1]]
        raise InvalidRunsError(
            f"{where}: expected at least {FEWEST} runs with a step time that "
            f"can be predicted, got {got} of {len(rows)}"
            f"{''.join(whys)}; add runs, 5 to 20 are good"
        )
    return Runs(where, tuple(used), tuple(unused), _one_site(used, where))


def _left_out(row: Row, hardware: str, interconnect: str) -> str | None:
    """Return which option leaves a row out."""
    for name, text in (("hardware", hardware), ("interconnect", interconnect)):
        cell = getattr(row, name) or ""
        if text.lower() not in cell.lower():
            return f"left out by --{name} {text}"
    return None


def _why_unused(row: Row) -> str | None:
    reason = why_unusable(row)
    if reason is not None:
        return ": ".join(filter(None, reason))
    if ran_out_of_memory(row):
        return "the run went out of memory, and only step times are fitted"
    if measured_step_time_s(row) is None:
        return "no measured step time"
    try:
        answer = predict(row)
    except NestError as error:
        return f"cannot be expressed: {error}"
    return answer.reason if isinstance(answer, Skip) else None


def _site(row: Row) -> Machine:
    return machine_for(
        row.hardware or "", row.interconnect, row.devices_per_node
    )


def _one_site(rows: Sequence[Row], where: str) -> Machine:
    """Return the machine of all rows, or say which there are."""
    first = _site(rows[0])
    for row in rows:
        other = _site(row)
        if other == first:
            continue
        if other.device != first.device:
            names = first.device.name, other.device.name
            option = f"--hardware {shlex.quote(first.device.name)}"
        else:
            names = _network(first), _network(other)
            option = "--interconnect TEXT"
        raise InvalidRunsError(
            f"{where}: expected runs of one cluster, got {names[0]} (line "
            f"{rows[0].line}) and {names[1]} (line {row.line}); choose one "
            f"with {option}, or put them into two files"
        )
    return first


def _network(site: Machine) -> str:
    """Return what tells clusters of one device apart."""
    network = site.network
    return (
        f"nodes of {site.node.fan_out} on {network.name} with "
        f"{network.bandwidth_bytes_per_s / 1e9:g} GB/s per device"
    )


def prior_of(families: Collection[str], common: Fit | None = None) -> Fit:
    """Return what is known of the parameters of a new source.

    Parameters
    ----------
    families
        Device families with parameters of their own; the parameters are
        those that concern them.
    common
        The fit of all sources; the stored one without.
    """
    common = common or stored_fit()
    chosen = [
        number
        for number, parameter in enumerate(common.parameters)
        if any(map(parameter.concerns, families))
    ]
    parameters = tuple(common.parameters[number] for number in chosen)
    spreads = np.array([parameter.spread for parameter in parameters])
    return Fit(
        parameters,
        common.x[chosen],
        common.covariance[np.ix_(chosen, chosen)] + np.diag(spreads**2),
    )


@dataclass(frozen=True)
class Learned:
    """What runs say.

    Attributes
    ----------
    runs
        ``n`` runs.
    before, after
        The ``p`` parameters without and with the runs.
    errors_before, errors_after
        Logarithms of predicted over measured step times, ``(n,)``.
    errors_left_out
        Each of a fit to the other runs, ``(n,)``.
    slopes
        How the logarithms move with those of the parameters, ``(n, p)``.
    """

    runs: Runs
    before: Fit
    after: Fit
    errors_before: Array
    errors_after: Array
    errors_left_out: Array
    slopes: Array

    @property
    def shares_left(self) -> Array:
        """Deviations after the runs, as shares of those before, ``(p,)``."""
        return self.after.deviations / self.before.deviations

    @property
    def untold(self) -> list[int]:
        """Numbers of the parameters that the runs could not tell."""
        found = (self.shares_left > UNTOLD) & (self.after.deviations > KNOWN)
        return [int(number) for number in np.flatnonzero(found)]

    @property
    def file(self) -> CalibrationFile:
        """The calibration, for predictions of this device family."""
        values = self.after.values
        options = options_of(values, self.after.parameters)
        assert options.software is not None
        source = (
            f"fitted to {len(self.runs.rows)} runs of "
            f"{Path(self.runs.where).name} on {self.runs.site.device.name}"
        )
        own = options.calibration[calibrated_family(self.runs.family)]
        rounded = {
            field: float(f"{value:.4g}")
            for field, value in asdict(own).items()
            if isinstance(value, int | float)
        }
        overlap = {
            name: float(f"{value:.4g}")
            for name, value in options.software.overlap.items()
        }
        names = [p.name for p in self.after.parameters if p.family != SOFTWARE]
        fractions = [
            p.field for p in self.after.parameters if p.family == SOFTWARE
        ]
        return CalibrationFile(
            families={
                self.runs.family: replace(
                    own,
                    **rounded,
                    provenance=f"nest calibrate: {', '.join(names)} {source}; "
                    f"the others as stored",
                )
            },
            inherits={},
            software=replace(
                options.software,
                overlap=overlap,
                provenance=f"nest calibrate: overlap of "
                f"{', '.join(fractions)} {source}; the others as stored",
            ),
            own_runs=self.own_runs,
        )

    @property
    def own_runs(self) -> OwnRuns:
        """What the runs leave unknown."""
        options = options_of(self.after.values, self.after.parameters)
        found = [predicted_run(row, options) for row in self.runs.rows]
        names = {row.framework for row in self.runs.rows}
        return own_runs_of(
            self.runs.family,
            [run for run in found if not isinstance(run, Skip)],
            self.errors_left_out,
            tuple(sorted(name for name in names if name)),
        )


def learn(
    runs: Runs,
    before: Fit | None = None,
    tell: Callable[[str], None] | None = None,
) -> Learned:
    """Update the parameters with runs.

    Parameters
    ----------
    runs
        Of one cluster.
    before
        What is known without them; :func:`prior_of` their device family.
    tell
        Called now and then with what is being done.
    """
    evidence = runs.evidence
    before = before or prior_of(set(evidence.families))
    errors_before = evidence.errors(before.x, before.parameters)
    after, linear = fit(before, evidence)
    errors_after = evidence.errors(after.x, before.parameters)
    near = Linear(after.x, errors_after, linear.slopes)
    left_out = []
    for number in range(len(runs.rows)):
        if tell is not None:
            tell(f"fit without run {number + 1} of {len(runs.rows)}")
        rest = [i for i in range(len(runs.rows)) if i != number]
        others = solve(
            before,
            Linear(near.x, near.errors[rest], near.slopes[rest]),
            evidence.of(rest),
        )
        left_out.append(
            evidence.errors(others.x, before.parameters, [number])[0]
        )
    return Learned(
        runs,
        before,
        after,
        errors_before,
        errors_after,
        np.array(left_out),
        linear.slopes,
    )
