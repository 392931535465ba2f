"""Link families: data-sheet bandwidth, latency, and what was fitted."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import msgspec

from nest.hardware.calibration import Fitted
from nest.ir.base import Fraction, PositiveReal, Real, Struct
from nest.ir.cluster import GroupFraction, Level
from nest.util.stored import find, read_records, read_stored

#: Up to so many members, what groups reach is listed for each number.
SMALL_GROUP = 8


class LinkSpec(Struct, frozen=True, kw_only=True):
    """One family of links.

    ``name`` is also that of the network levels that use it. The data sheet gives
    ``bytes_per_s`` per device, in one direction; ``latency_ns`` is that of one step of
    a collective, software included; ``source`` says where the figures come from.
    """

    name: str
    bytes_per_s: PositiveReal
    latency_ns: Real
    source: str


@cache
def link_specs() -> tuple[LinkSpec, ...]:
    """Return all stored link families."""
    return read_records("nest.hardware", "links", LinkSpec)


def link_spec(name: str) -> LinkSpec:
    """Return the link family of that name.

    Raises ``UnknownNameError`` if there is none; the text lists all names.
    """
    return find("link", name, link_specs())


class LinkCalibration(Struct, frozen=True, kw_only=True):
    """What a link family was measured to reach."""

    #: Of the data-sheet bandwidth that large collectives reach.
    efficiency: PositiveReal
    #: One step of a collective, and one message.
    latency_ns: Real
    #: Once per collective or message, whatever its size.
    launch_ns: Real
    #: ``c``: groups of ``m`` members reach ``1 - c/m`` of the efficiency.
    group_loss: Fraction = 0.0
    #: Measurements it was fitted to, by ``bench/calibrate_links.py``.
    num_points: int
    #: Relative errors over these: the mean that the fit minimizes (sizes and
    #: collectives count alike) with the data-sheet bandwidth and 3 µs a step, the same
    #: fitted, median and largest fitted.
    mean_error_before: float
    mean_error: float
    median_error: float
    max_error: float
    #: Where the measurements come from.
    provenance: str


class LinkCalibrationFile(
    Fitted[LinkCalibration], frozen=True, kw_only=True, tag="nest-link-calibration/1"
):
    """The stored calibration of links."""


@cache
def stored_link_calibration() -> LinkCalibrationFile:
    """Return the calibration that comes with the package."""
    return read_stored("nest.hardware", "link_calibration", LinkCalibrationFile)


def calibrated(level: Level) -> Level:
    """Return a data-sheet level with what its link family reaches.

    A level whose name is no calibrated family stays as it is.
    """
    fitted = stored_link_calibration().of(level.name)
    return level if fitted is None else reached(level, fitted)


def reached_fraction(level: Level) -> float:
    """Return what groups of all members reach of a data-sheet level."""
    fitted, members = calibrated(level), level.fan_out
    bandwidth = fitted.bandwidth_bytes_per_s * fitted.fraction(members)
    return bandwidth / (level.bandwidth_bytes_per_s * level.fraction(members))


def reached(level: Level, fitted: LinkCalibration) -> Level:
    """Return a data-sheet level with what is reached of it.

    ``β = efficiency · data sheet``, times ``1 - c/m`` for groups of ``m``
    members; latency and launch cost are as fitted. A link to one peer reaches
    what groups of all members do.
    """
    peer = level.peer_bandwidth_bytes_per_s
    whole = 1 - fitted.group_loss / max(level.fan_out, 2)
    return msgspec.structs.replace(
        level,
        bandwidth_bytes_per_s=level.bandwidth_bytes_per_s * fitted.efficiency,
        latency_ns=fitted.latency_ns,
        launch_ns=fitted.launch_ns,
        peer_bandwidth_bytes_per_s=(
            None if peer is None else peer * fitted.efficiency * whole
        ),
        group_fractions=tuple(
            GroupFraction(
                members=m, fraction=level.fraction(m) * (1 - fitted.group_loss / m)
            )
            for m in _listed(level.fan_out)
            if level.group_fractions or fitted.group_loss
        ),
    )


def _listed(fan_out: int) -> Iterator[int]:
    """Yield for how many members to list what they reach."""
    members = 2
    while members <= fan_out:
        yield members
        members += 1 if members < SMALL_GROUP else members
