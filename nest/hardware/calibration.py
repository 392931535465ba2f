"""Calibration: what operators reach of a device's data-sheet rates.

One small set of named parameters per device family, the same for every model
and every layout; ``bench/calibrate.py`` fits them to published step times and
writes ``data/device_calibration.json`` with where they come from. Families
that were not measured take the set of the nearest one, by name.
"""

from __future__ import annotations

from functools import cache
from typing import Generic, TypeVar

from nest.ir.base import Struct
from nest.ir.plan import Overlap
from nest.stored import read_stored

T = TypeVar("T")


class Fitted(Struct, Generic[T], frozen=True, kw_only=True):
    """Parameters by family, and whose a family that was not fitted takes."""

    families: dict[str, T]
    inherits: dict[str, str]

    def of(self, family: str) -> T | None:
        """Return the parameters of a family, ``None`` if it has none."""
        return self.families.get(self.inherits.get(family, family))


class Calibration(Struct, frozen=True, kw_only=True):
    """Parameters of one device family.

    Attributes
    ----------
    matmul_fraction
        Of peak FLOP/s that a large matrix product reaches.
    matmul_half_size
        Matrix dimension, in values, at which a product reaches half of that
        because of this dimension.
    misaligned_fraction
        Of peak FLOP/s where a dimension is no multiple of 16 bytes.
    attention_fraction
        Of peak FLOP/s that a fused attention kernel reaches.
    memory_fraction
        Of HBM bytes/s that operators bound by memory reach.
    launch_ns
        Time of the host for one kernel; a pass takes at least the sum.
    waiting_fraction
        How little the host runs ahead of the device: 0 hides all launches
        behind earlier kernels, 1 none.
    host_ns
        Time of the host for one kernel, collectives counted too, stated
        beside the time of a pass as what it takes at least; 0 states none.
        Apart from ``launch_ns``, which is in the time of a pass.
    collective_kernels
        Kernels that a call of a collective counts as there.
    provenance
        What the set was fitted to, or which family it was taken from.
    """

    matmul_fraction: float
    matmul_half_size: float
    misaligned_fraction: float
    attention_fraction: float
    memory_fraction: float
    launch_ns: float
    waiting_fraction: float = 0.0
    host_ns: float = 0.0
    collective_kernels: float = 1.57
    provenance: str = ""


class Software(Struct, frozen=True, kw_only=True):
    """What the training software hides and holds, for all devices alike.

    Attributes
    ----------
    overlap
        Fraction of a communication that overlapping software hides: ``tp``,
        ``cp``, ``ep``, ``weights`` (ZeRO-3 gathers and scatters) and
        ``gradients``; see docs/cost-model.md.
    cached_fraction
        Of the allocated memory that the allocator holds beyond it; what
        nvidia-smi shows includes it, what must fit does not.
    provenance
        What they were fitted to.
    """

    overlap: dict[Overlap, float]
    cached_fraction: float
    provenance: str = ""


class CalibrationFile(
    Fitted[Calibration],
    frozen=True,
    kw_only=True,
    tag_field="schema",
    tag="nest-calibration/1",
):
    """The stored calibration; ``software`` holds for every device."""

    software: Software


@cache
def stored_calibration() -> CalibrationFile:
    """Return the calibration that comes with the package."""
    return read_stored("nest.hardware", "device_calibration", CalibrationFile)


def calibrated_family(family: str) -> str:
    """Return the family whose parameters a device family takes."""
    return stored_calibration().inherits.get(family, family)


def calibration_of(family: str) -> Calibration:
    """Return the parameters of a device family.

    Raises
    ------
    KeyError
        If the family is neither calibrated nor inherits.
    """
    return stored_calibration().families[calibrated_family(family)]
