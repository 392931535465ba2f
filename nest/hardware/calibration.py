"""Calibration: what operators reach of a device's data-sheet rates.

One small set of named parameters per device family, the same for every model
and every layout; ``bench/calibrate.py`` fits them to published step times and
writes ``data/device_calibration.json`` with where they come from. Families
that were not measured take the set of the nearest one, by name.
"""

from __future__ import annotations

from functools import cache
from typing import Generic, TypeVar

from nest.ir.base import FileStruct, Struct
from nest.ir.plan import Overlap
from nest.ir.problem import OwnRuns
from nest.util.stored import read_stored

T = TypeVar("T")


#: Twice what physics suggests: power grows with the cube of the clock.
MAX_EXPONENT = 6


class Fitted(FileStruct, Generic[T], frozen=True, kw_only=True):
    """Parameters by family, and whose a family that was not fitted takes."""

    families: dict[str, T]
    inherits: dict[str, str]

    def of(self, family: str) -> T | None:
        """Return the parameters of a family, ``None`` if it has none."""
        return self.families.get(self.inherits.get(family, family))


class Calibration(Struct, frozen=True, kw_only=True):
    """Parameters of one device family."""

    #: Of peak FLOP/s that a large matrix product reaches.
    matmul_fraction: float
    #: Matrix dimension, in values, at which a product reaches half of that because of
    #: this dimension.
    matmul_half_size: float
    #: Of peak FLOP/s where a dimension is no multiple of 16 bytes.
    misaligned_fraction: float
    #: Of peak FLOP/s that a fused attention kernel reaches.
    attention_fraction: float
    #: Blocks of 128 queries of one head, over all heads and samples, with which a fused
    #: attention kernel reaches half of that: fewer do not occupy all multiprocessors
    #: evenly. 0 for no such loss.
    attention_half_blocks: float = 0.0
    #: Values of a head whose products take as long as an exponential, at peak rates, on
    #: the devices that ``attention_fraction`` holds for, with heads of 128 values; 0 if
    #: it is not known.
    exponential_size: float = 0.0
    #: Of HBM bytes/s that operators bound by memory reach.
    memory_fraction: float
    #: Power of the devices that the fractions of FLOP/s hold for, in W per peak TFLOP/s
    #: in 16 bits; 0 if it is not known.
    watts_per_tflops: float = 0.0
    #: Power of a device's own such figure over that one which these fractions go with:
    #: 0 where power does not limit clocks, 1 where clocks are what power allows.
    power_exponent: float = 0.0
    #: What a product reaches of the fp8 peak, over what it reaches of the peak in 16
    #: bits; may exceed 1.
    low_precision_fraction: float = 1.0
    #: Per value of the factors and the result of an fp8 product, what casts to fp8 move
    #: in each pass.
    cast_bytes: float = 3.0
    #: How often dispatch and combination of tokens that are routed to experts move the
    #: bytes that are counted for them.
    routing_passes: float = 1.0
    #: Kernels that the product of each further expert of a device counts as where hosts
    #: are: below 1 where one call issues all.
    expert_kernels: float = 1.0
    #: Time of the host for one kernel: no operator takes less, and a pass not less than
    #: all it issues, collectives counted too.
    host_ns: float = 0.0
    #: Kernels that a call of a collective counts as there.
    collective_kernels: float = 1.57
    #: What the set was fitted to, or which family it was taken from.
    provenance: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.power_exponent <= MAX_EXPONENT:
            raise ValueError(
                f"power_exponent: expected a number from 0 to {MAX_EXPONENT}, "
                f"got {self.power_exponent}"
            )


class Software(Struct, frozen=True, kw_only=True):
    """What the training software hides and holds, for all devices alike."""

    #: Fraction of a communication that overlapping software hides: ``tp``, ``cp``,
    #: ``ep``, ``weights`` (ZeRO-3 gathers and scatters) and ``gradients``; see
    #: docs/cost-model.md.
    overlap: dict[Overlap, float]
    #: Of the allocated memory that the allocator holds beyond it; what nvidia-smi shows
    #: includes it, what must fit does not.
    cached_fraction: float
    #: What they were fitted to.
    provenance: str = ""


class CalibrationFile(
    Fitted[Calibration], frozen=True, kw_only=True, tag="nest-calibration/1"
):
    """The stored calibration; ``software`` holds for every device.

    ``own_runs`` is what a user's own runs leave unknown, if it is fitted to such.
    """

    software: Software
    own_runs: OwnRuns | None = None


@cache
def stored_calibration() -> CalibrationFile:
    """Return the calibration that comes with the package."""
    return read_stored("nest.hardware", "device_calibration", CalibrationFile)


def calibrated_family(family: str) -> str:
    """Return the family whose parameters a device family takes."""
    return stored_calibration().inherits.get(family, family)


def calibration_of(family: str) -> Calibration:
    """Return the parameters of a device family.

    Raises ``KeyError`` if the family is neither calibrated nor inherits.
    """
    return stored_calibration().families[calibrated_family(family)]
