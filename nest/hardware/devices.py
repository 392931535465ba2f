"""Accelerators: data-sheet rates and memory, each figure with its source."""

from __future__ import annotations

import re
from functools import cache

from nest.errors import UnknownNameError
from nest.ir.base import Count, FileStruct, PositiveReal, PositiveReals, Size, Struct
from nest.ir.cluster import Device
from nest.util.stored import read_stored


class Reserve(Struct, frozen=True, kw_only=True):
    """Memory that framework, driver and communication library take.

    On each device ``reserve_bytes`` are out of the reach of plans; ``source`` says
    where the figure comes from.
    """

    reserve_bytes: Size
    source: str


class DeviceSpec(Struct, frozen=True, kw_only=True):
    """One accelerator as its data sheet describes it."""

    name: str
    #: Key of its calibration, see :mod:`nest.hardware.calibration`.
    family: str
    #: Further names, those of its driver among them; matched without regard to case.
    aliases: tuple[str, ...] = ()
    #: Dense peak FLOP/s per data type (no sparsity).
    peak_flops: PositiveReals
    peak_source: str
    #: Capacity. For GPUs what the driver reports, which is a little under the marketed
    #: number in GiB.
    memory_bytes: Count
    memory_source: str
    #: Memory bandwidth.
    hbm_bytes_per_s: PositiveReal
    hbm_source: str
    #: Network inside a node: a name of ``links.json``, and bytes/s per device in one
    #: direction.
    link: str
    link_bytes_per_s: PositiveReal
    link_source: str
    #: Name of an entry of the file's ``reserves``.
    reserve: str
    #: Power that the device may take, in W; ``None`` if it is not known.
    power_w: PositiveReal | None = None
    power_source: str = ""
    #: Exponentials that its special function units compute in a second; ``None`` if it
    #: is not known.
    exponentials_per_s: PositiveReal | None = None
    exponentials_source: str = ""

    @property
    def reserve_bytes(self) -> int:
        """Memory per device that no plan can use."""
        return _file().reserves[self.reserve].reserve_bytes

    @property
    def device(self) -> Device:
        """The device as problems describe it."""
        return Device(
            name=self.name,
            memory_bytes=self.memory_bytes,
            reserve_bytes=self.reserve_bytes,
            hbm_bytes_per_s=self.hbm_bytes_per_s,
            peak_flops=self.peak_flops,
        )


class DeviceFile(FileStruct, frozen=True, kw_only=True, tag="nest-devices/1"):
    """The stored devices and memory reserves."""

    reserves: dict[str, Reserve]
    devices: tuple[DeviceSpec, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        for spec in self.devices:
            if spec.reserve not in self.reserves:
                raise ValueError(
                    f"devices: {spec.name}: reserve: expected one of "
                    f"{', '.join(self.reserves)}, got {spec.reserve!r}"
                )


@cache
def _file() -> DeviceFile:
    return read_stored("nest.hardware", "devices", DeviceFile)


def device_specs() -> tuple[DeviceSpec, ...]:
    """Return all stored devices."""
    return _file().devices


def known_device(name: str) -> DeviceSpec | None:
    """Return the device of that name or alias, ``None`` if there is none."""
    name = name.strip().casefold()
    for spec in device_specs():
        if name in map(str.casefold, (spec.name, *spec.aliases)):
            return spec
    return None


def device_spec(name: str) -> DeviceSpec:
    """Return the device that goes by ``name``.

    Names and aliases match without regard to case; failing that, a longer
    text matches the device whose family it names as a word, the first one
    whose memory size it names too ("NVIDIA A100-SXM4-40GB, PCIe").

    Raises ``UnknownNameError`` if no device matches; the text lists all names.
    """
    exact = known_device(name)
    if exact is not None:
        return exact
    tokens = _words(name)
    matching = [
        spec for spec in device_specs() if f" {_words(spec.family).strip()} " in tokens
    ]
    if not matching:
        raise UnknownNameError("hardware", name, [spec.name for spec in device_specs()])
    sizes = re.findall(r" (\d+) ?gi?b ", tokens)
    for spec in matching:
        if any(f" {size}gb " in _words(spec.name) for size in sizes):
            return spec
    return matching[0]


def _words(text: str) -> str:
    """Return lower-case words, each between two blanks."""
    tokens = re.findall(r"[a-z0-9]+", text.casefold())
    return f" {' '.join(tokens)} "
