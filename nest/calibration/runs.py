"""A user's own runs: what they say about the parameters, and what not.

The runs are one more source. Its parameters are the common ones and what
differs from source to source, so before any run their logarithms are normal
around the stored fit, with its covariance and the spreads:
``N(x, C + diag(spread²))``. The runs update that by
:func:`nest.calibration.fit.fit`. Runs that scatter more than published ones
do are noisier, and say less: :func:`noise_scale`.
"""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec.structs import asdict, replace

from nest.calibration.causes import causes
from nest.calibration.evidence import Array, Evidence, evidence_of
from nest.calibration.fit import FREEDOM, NOISE, Fit, Linear, fit, refit, solve
from nest.calibration.parameters import SOFTWARE, options_of
from nest.calibration.stored import stored_fit
from nest.calibration.template import is_example
from nest.calibration.unknown import own_runs_of
from nest.errors import NestError, UnknownNameError
from nest.hardware import Machine
from nest.hardware.calibration import CalibrationFile, calibrated_family
from nest.ir.problem import OwnRuns
from nest.validation.predict import PredictOptions, Skip, predict, predicted_run
from nest.validation.reading import read_rows
from nest.validation.rows import Row, measured_step_time_s, ran_out_of_memory
from nest.validation.settings import machine_of
from nest.validation.software import software_of
from nest.validation.usable import impossible, why_unusable

#: Runs that a calibration needs at least.
FEWEST = 2

#: A parameter of which so much of the deviation is left was not told.
UNTOLD = 0.8

#: Deviation, in the logarithm, with which a parameter counts as known.
KNOWN = 0.02

#: Fewer runs hardly say how much runs scatter.
FEW = 5

#: How many runs as quiet as published ones their scatter is averaged with.
QUIET_RUNS = 4

#: Rounds in which the scatter is estimated.
NOISE_ROUNDS = 8

#: Within so many scales two of three values of the noise lie: 0.683 = t /
#: (2 + t²)^1/2, the t distribution with two degrees of freedom.
TWO_OF_THREE = 1.32

#: Step times that are off by more than this factor, on the same side in the
#: median, are not those of the runs: a slower cluster is not.
UNLIKE = 10.0

#: A common factor beyond this, either way, is not that of the cluster unless the user
#: says so: a fact that rows do not state, or state falsely, is more likely.
ACCEPTED = 1.4

#: Causes of a factor that a message names.
MOST_CAUSES = 3

#: So many runs or more that are off by more than this factor, and among themselves by
#: no more than a third of it (in logarithms), are off by one factor: the cluster's own.
ALIKE = 1.25
ALIKE_SHARE = 1 / 3
FEWEST_ALIKE = 3

#: A run disagrees with the others where what is left of its error is more
#: than so many times the scatter, and more than this in the logarithm.
ODD = 6.0
ODD_LEAST = 0.25


class InvalidRunsError(NestError, ValueError):
    """Runs cannot calibrate predictions."""


class Unused(NamedTuple):
    """A row that is no run to calibrate with: its line, from 1, and why not."""

    line: int
    reason: str


@dataclass(frozen=True)
class Runs:
    """Runs of one cluster on a machine, from the file ``where``.

    There are ``n`` rows with a measured step time that can be predicted; the other
    rows of the file are unused.
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
    path: str | Path,
    hardware: str = "",
    interconnect: str = "",
    devices_per_node: int = 0,
) -> Runs:
    """Read the runs of a file; see :func:`runs_of`.

    Raises ``InvalidMeasurementsError`` if the file is no table of runs, and
    ``InvalidRunsError`` if its runs cannot calibrate predictions.
    """
    return runs_of(read_rows(path), str(path), hardware, interconnect, devices_per_node)


def runs_of(
    rows: Sequence[Row],
    where: str = "runs",
    hardware: str = "",
    interconnect: str = "",
    devices_per_node: int = 0,
) -> Runs:
    """Return the runs among the rows of a file, which must be of one cluster.

    Only rows count with ``hardware`` and ``interconnect`` in the column, upper or lower
    case, and of nodes with so many devices; 0 for all.

    Raises ``InvalidRunsError`` if a figure is impossible, fewer than :data:`FEWEST`
    rows can be used, or they are of several clusters.
    """
    used: list[Row] = []
    unused: list[Unused] = []
    for row in rows:
        reason = _left_out(row, hardware, interconnect) or _of_other_node(
            row, devices_per_node
        )
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


def _of_other_node(row: Row, devices_per_node: int) -> str | None:
    """Return why ``--devices-per-node`` leaves a row out."""
    if not devices_per_node:
        return None
    try:
        size = machine_of(row).node.fan_out
    except UnknownNameError:
        return None
    if size == devices_per_node:
        return None
    return f"left out by --devices-per-node {devices_per_node}: {size}"


def _why_unused(row: Row) -> str | None:
    if is_example(row):
        return "the example of the template, not a run of yours"
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


def _one_site(rows: Sequence[Row], where: str) -> Machine:
    """Return the machine of all rows, or say which there are."""
    first = machine_of(rows[0])
    for row in rows:
        other = machine_of(row)
        if other == first:
            continue
        if other.device != first.device:
            names = first.device.name, other.device.name
            option = f"--hardware {shlex.quote(first.device.name)}"
        else:
            names = _network(first), _network(other)
            option = "--interconnect TEXT"
            size = first.node.fan_out
            if other.node.fan_out != size:
                option = f"--devices-per-node {size}"
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
    """Return what is known of a new source: parameters that concern its families.

    ``common`` is the fit of all sources, by default the stored one.
    """
    common = common or stored_fit()
    chosen = [
        index
        for index, parameter in enumerate(common.parameters)
        if any(map(parameter.concerns, families))
    ]
    parameters = tuple(common.parameters[index] for index in chosen)
    spreads = np.array([parameter.spread for parameter in parameters])
    covariance = common.covariance[np.ix_(chosen, chosen)] + np.diag(spreads**2)
    return Fit(parameters, common.x[chosen], covariance)


@dataclass(frozen=True)
class Learned:
    """What runs say."""

    #: ``n`` runs.
    runs: Runs
    #: The ``p`` parameters without and with the runs.
    before: Fit
    after: Fit
    #: Logarithms of predicted over measured step times, ``(n,)``.
    errors_before: Array
    errors_after: Array
    #: Each of a fit to the other runs, ``(n,)``.
    errors_left_out: Array
    #: How the logarithms move with those of the parameters, ``(n, p)``.
    slopes: Array
    #: How much the runs scatter, in what published ones do.
    scale: float = 1.0
    #: By how much all runs alike are slower than predicted, where the model has no
    #: reason for so much; 1 elsewhere. The prior of the factor on all times of devices
    #: and hosts lies there.
    factor: float = 1.0

    @property
    def noise(self) -> float:
        """What two of three runs scatter by at most, in the logarithm."""
        return TWO_OF_THREE * NOISE * self.scale

    @property
    def odd(self) -> list[int]:
        """Numbers of the runs that disagree with the others."""
        threshold = max(ODD * NOISE * self.scale, ODD_LEAST)
        return np.flatnonzero(np.abs(self.errors_after) > threshold).tolist()

    @property
    def shares_left(self) -> Array:
        """Deviations after the runs, as shares of those before, ``(p,)``."""
        return self.after.deviations / self.before.deviations

    @property
    def untold(self) -> list[int]:
        """Numbers of the parameters that the runs could not tell."""
        mask = (self.shares_left > UNTOLD) & (self.after.deviations > KNOWN)
        return np.flatnonzero(mask).tolist()

    @property
    def file(self) -> CalibrationFile:
        """The calibration, for predictions of this device family."""
        values = self.after.values
        options = options_of(values, self.after.parameters)
        assert options.software is not None
        calibration = options.calibration[calibrated_family(self.runs.family)]
        rounded = {
            field: float(f"{value:.4g}")
            for field, value in asdict(calibration).items()
            if isinstance(value, int | float)
        }
        overlap = {
            name: float(f"{value:.4g}")
            for name, value in options.software.overlap.items()
        }
        names = [p.name for p in self.after.parameters if p.family != SOFTWARE]
        fractions = [p.field for p in self.after.parameters if p.family == SOFTWARE]
        family, software = (
            f"nest calibrate: {what} fitted to {len(self.runs.rows)} runs of "
            f"{Path(self.runs.where).name} on {self.runs.site.device.name}; "
            f"the others as stored"
            for what in (", ".join(names), f"overlap of {', '.join(fractions)}")
        )
        rates = replace(calibration, **rounded, provenance=family)
        return CalibrationFile(
            families={self.runs.family: rates},
            inherits={},
            software=replace(options.software, overlap=overlap, provenance=software),
            own_runs=self.own_runs,
        )

    @property
    def own_runs(self) -> OwnRuns:
        """What the runs leave unknown."""
        options = options_of(self.after.values, self.after.parameters)
        predictions = [predicted_run(row, options) for row in self.runs.rows]
        return own_runs_of(
            self.runs.family,
            [run for run in predictions if not isinstance(run, Skip)],
            self.errors_left_out,
        )


def learn(
    runs: Runs, tell: Callable[[str], None] | None = None, accept: bool = False
) -> Learned:
    """Update the parameters with runs of one cluster.

    Without them :func:`prior_of` their device family is known. ``tell`` is called now
    and then with what is being done. With ``accept`` a common factor beyond
    :data:`ACCEPTED` is the cluster's own.

    Raises ``InvalidRunsError`` if step times are off by a factor that no parameter
    explains; the message has what would explain it.
    """
    evidence = runs.evidence
    before = prior_of(set(evidence.families))
    errors_before = evidence.errors(before.x, before.parameters)
    _check_unit(runs, errors_before)
    if not accept:
        _check_factor(runs, errors_before, options_of(before.values, before.parameters))
    factor = common_factor(errors_before)
    center = _slower(before, factor)
    after, linear = fit(center, evidence)
    near = Linear(after.x, evidence.errors(after.x, before.parameters), linear.slopes)
    scale = noise_scale(center, near, evidence)
    if scale > 1:  # a few quiet runs are not trusted more than others
        evidence = evidence.noisier(scale)
        after = refit(center, near, evidence)
        errors_after = evidence.errors(after.x, before.parameters)
        near = Linear(after.x, errors_after, linear.slopes)
    left_out = []
    for index in range(len(runs.rows)):
        if tell is not None:
            tell(f"fit without run {index + 1} of {len(runs.rows)}")
        others = _without(index, center, near, evidence)
        left_out.append(evidence.errors(others.x, before.parameters, [index])[0])
    return Learned(
        *(runs, before, after, errors_before, near.errors, np.array(left_out)),
        *(linear.slopes, scale, factor),
    )


def common_factor(errors: Array) -> float:
    """Return by how much all runs alike are slower than predicted, or 1.

    A common factor of this size is far out in the prior, which sources that
    were published make: one that all runs agree on is the cluster's. Without
    it the fit would take most runs for odd ones.
    """
    if len(errors) < FEWEST_ALIKE:
        return 1.0
    middle = float(np.median(errors))
    apart = float(np.median(np.abs(errors - middle)))
    if abs(middle) < math.log(ALIKE) or apart > ALIKE_SHARE * abs(middle):
        return 1.0
    return math.exp(-middle)


def _slower(before: Fit, factor: float) -> Fit:
    """Return a prior whose factor on all times is another."""
    moved = [math.log(factor) * (p.field == "slowdown") for p in before.parameters]
    return dataclasses.replace(before, x=before.x + np.array(moved))


def _without(index: int, before: Fit, linear: Linear, evidence: Evidence) -> Fit:
    """Return the fit to all rows but one, near the fit to all."""
    rest = [i for i in range(len(linear.errors)) if i != index]
    return solve(
        before,
        Linear(linear.x, linear.errors[rest], linear.slopes[rest]),
        evidence.of(rest),
    )


def noise_scale(before: Fit, linear: Linear, evidence: Evidence) -> float:
    """Return how much noisier rows are than those of published runs.

    Each row is predicted by the others. Its error has a t distribution whose scale is
    that of the noise and of the prediction together; the factor on the noise is the
    most probable one (Lange et al. 1989, doi 10.2307/2290063), where :data:`QUIET_RUNS`
    rows with the noise of published ones count too.
    """
    count, scale = len(linear.errors), 1.0
    for _ in range(NOISE_ROUNDS):
        noisier = evidence.noisier(scale)
        total = 0.0
        for index in range(count):
            others = _without(index, before, linear, noisier)
            slopes = linear.slopes[index]
            error = linear.at(others.x)[index]
            spread = float(slopes @ others.covariance @ slopes)
            noise = float(NOISE * noisier.noise[index])
            ratio = float(error**2) / (noise**2 + spread)
            total += ratio * (FREEDOM + 1) / (FREEDOM + ratio)
        squared = (QUIET_RUNS + scale**2 * total) / (QUIET_RUNS + count)
        scale = squared**0.5
    return scale


def _check_unit(runs: Runs, errors: Array) -> None:
    """Refuse step times that are off by a factor that nothing explains."""
    middle = float(np.median(errors))
    if abs(middle) < math.log(UNLIKE):
        return
    factor = math.exp(abs(middle))
    remedy = "check what was timed, and the shape and batch of the runs"
    for unit, seconds in (("milliseconds", 1000), ("minutes", 60)):
        towards = middle < 0 if unit == "milliseconds" else middle > 0
        if towards and 1 / 3 < factor / seconds < 3:
            remedy = f"are these {unit}? iter_time_s is in seconds"
    raise InvalidRunsError(f"{_off(runs, errors)}; {remedy}")


def _off(runs: Runs, errors: Array) -> str:
    """Say by how much step times are off in the median, and name such a run."""
    middle = float(np.median(errors))
    index = int(np.argmin(np.abs(errors - middle)))
    row = runs.rows[index]
    measured_s = measured_step_time_s(row)
    assert measured_s is not None
    return (
        f"{runs.where}: expected step times near the predicted ones, got "
        f"{math.exp(abs(middle)):.3g} times as {'long' if middle < 0 else 'short'} in "
        f"the median (line {row.line}: {measured_s:.4g} s, predicted "
        f"{measured_s * math.exp(float(errors[index])):.4g} s)"
    )


def _check_factor(runs: Runs, errors: Array, options: PredictOptions) -> None:
    """Refuse a common factor that is too large for a cluster's own."""
    if abs(float(np.median(errors))) <= math.log(ACCEPTED):
        return
    likely = causes(runs.rows, options)
    why = "no fact of these rows is known to explain it"
    if likely:
        texts = ", ".join(cause.text for cause in likely[:MOST_CAUSES])
        why = f"likely cause: {texts}"
        if not likely[0].explains:
            why = f"no single fact explains it; nearest: {texts}"
    names = dict.fromkeys(
        f"framework {row.framework or 'not stated'!r} is taken as "
        f"{software_of(row).name!r}"
        for row in runs.rows
    )
    raise InvalidRunsError(
        f"{_off(runs, errors)}; {why}; {'; '.join(names)}; correct the rows, or pass "
        f"--accept to take the factor as the cluster's own"
    )
