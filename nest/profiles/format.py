"""The profile file ``nest-profile/1``: what it says, how it is read.

A profile holds measured times of single layers on one device. An entry is
one layer of a model under one way of splitting it, keyed like
:class:`nest.ir.graph.LayerCost` and by the sequence length.
"""

from __future__ import annotations

from pathlib import Path

from nest.errors import NestError
from nest.ir.base import (
    Count,
    FileStruct,
    PositiveReal,
    Real,
    Size,
    Struct,
    check_distinct,
)
from nest.ir.io import decode, encode, read_bytes, write

#: Bytes of a value, by the names that :attr:`Profile.dtype` takes.
DTYPE_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}

#: How far above a device's peak a layer may seem to run: clocks jitter, and
#: boost clocks exceed the one that a data sheet's peak is stated for.
PEAK_TOLERANCE = 1.02


class InvalidProfileError(NestError, ValueError):
    """The profile cannot be read, or cannot be that of the problem."""


class Entry(Struct, frozen=True, kw_only=True):
    """One layer, measured."""

    #: Name of the architecture, and of the kind of graph node that the layer is, such
    #: as ``embedding``, ``decoder`` or ``head``.
    model: str
    kind: str
    #: Degrees, and samples per data-parallel rank.
    tp: Count = 1
    cp: Count = 1
    ep: Count = 1
    samples: Count = 1
    #: Tokens per sample of the job; a tower with a length of its own is measured at
    #: that.
    sequence_length: Count
    #: Time of one pass of one layer on one device.
    forward_ns: PositiveReal
    backward_ns: PositiveReal
    #: Whether these times contain the layer's tensor parallel collectives.
    includes_tp_collectives: bool = False
    #: Activation bytes kept from forward to backward, without recomputation; ``None``
    #: if not measured.
    kept_bytes: Size | None = None
    #: Memory needed beyond that while the layer runs; ``None`` if not measured.
    working_bytes: Size | None = None
    #: Weights per device, experts included, in the data type of the profile; ``None``
    #: if not known.
    weight_bytes: Size | None = None
    #: FLOPs of the two passes on this device, for the roofline; ``None`` if not known.
    forward_flops: Real | None = None
    backward_flops: Real | None = None

    @property
    def name(self) -> str:
        """The entry for people, such as ``decoder tp=2 samples=1``."""
        degrees = [f"tp={self.tp}"]
        degrees += [
            f"{axis}={getattr(self, axis)}"
            for axis in ("cp", "ep")
            if getattr(self, axis) > 1
        ]
        return f"{self.kind} {' '.join(degrees)} samples={self.samples}"


class Profile(FileStruct, frozen=True, kw_only=True, tag="nest-profile/1"):
    """Measured layers, and how they were measured."""

    #: For people: where the figures come from.
    source: str = ""
    #: Name of the device, as clusters name it.
    device: str
    #: What ran the layers.
    framework: str = ""
    framework_version: str = ""
    #: Data type of weights and activations: bf16, fp16 or fp32.
    dtype: str
    #: Whether activations between layers were also split over ``tp``.
    sequence_parallel: bool = False
    #: Passes before the measured ones; measured passes, whose median an entry gives.
    #: ``None`` if not known.
    warm_up: Size | None = None
    repeats: Count | None = None
    #: The layers, in no particular order.
    entries: tuple[Entry, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dtype not in DTYPE_BYTES:
            raise ValueError(
                f"dtype: expected one of {', '.join(DTYPE_BYTES)}, got {self.dtype!r}"
            )
        names = (
            f"{entry.model} {entry.name} sequence_length={entry.sequence_length}"
            for entry in self.entries
        )
        check_distinct("entries", tuple(names))

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the architectures, each once."""
        return tuple(dict.fromkeys(entry.model for entry in self.entries))


def load_profile(path: str | Path) -> Profile:
    """Read a profile file.

    Raises ``InvalidProfileError`` if there is no such file or it is no profile; the
    text says where and what.
    """
    data = read_bytes(path, InvalidProfileError, "profile")
    return decode_profile(data, str(path))


def decode_profile(data: bytes, where: str = "profile") -> Profile:
    """Decode a profile; ``where`` names the source in messages.

    Raises ``InvalidProfileError`` if it is no profile.
    """
    return decode(data, where, Profile, "profile", InvalidProfileError)


encode_profile = encode
write_profile = write


def peak_of(peak_flops: dict[str, float], dtype: str) -> float | None:
    """Return the peak FLOP/s that bounds a data type.

    The peak of the data type itself, or the highest there is where the
    device states none for it; ``None`` for a device without any.
    """
    if dtype in peak_flops:
        return peak_flops[dtype]
    return max(peak_flops.values(), default=None)


def check_roofline(entry: Entry, peak: float | None, where: str = "profile") -> None:
    """Refuse a layer that ran faster than the device's peak FLOP/s.

    A pass of ``f`` FLOPs takes at least ``f / (peak · 1.02)``, see
    :data:`PEAK_TOLERANCE`. Without a peak or without FLOPs nothing is known.

    Raises ``InvalidProfileError`` if it did; the text names entry, field, both figures
    and the unit.
    """
    if peak is None:
        return
    for phase in ("forward", "backward"):
        flops = getattr(entry, f"{phase}_flops")
        time_ns = getattr(entry, f"{phase}_ns")
        if flops is None:
            continue
        least_ns = 1e9 * flops / (peak * PEAK_TOLERANCE)
        if time_ns < least_ns:
            raise InvalidProfileError(
                f"{where}: {entry.name}: {phase}_ns: expected >= {least_ns:.0f} "
                f"({flops:.4g} FLOP at {peak / 1e12:.4g} TFLOP/s), got {time_ns:.6g}; "
                f"check the units: {phase}_ns is in ns"
            )
