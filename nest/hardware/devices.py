"""Accelerators: data-sheet rates and memory, each figure with its source."""

from __future__ import annotations

import re
from collections.abc import Iterator
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
    #: Link to the host, a name of ``links.json``; empty if it is not known.
    host_link: str = ""
    #: Name of an entry of the file's ``reserves``.
    reserve: str
    #: Power that the device may take, in W; ``None`` if it is not known.
    power_w: PositiveReal | None = None
    power_source: str = ""
    #: Whether the power tells how fast it runs beside the devices that its family's
    #: rates were measured on: not where those are of another generation.
    power_sets_clock: bool = True
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
    """Return the device of that name or alias, ``None`` if there is none.

    Letter case and punctuation do not count, and neither does the vendor:
    ``NVIDIA H100-NVL``, ``RTX4090``, ``Gaudi 3``.
    """
    return _by_name().get("".join(_tokens(name)))


@cache
def _by_name() -> dict[str, DeviceSpec]:
    return {
        "".join(_tokens(name)): spec
        for spec in device_specs()
        for name in _all_names(spec)
    }


def device_spec(name: str) -> DeviceSpec:
    """Return the device that goes by ``name``.

    A longer text ("8 x NVIDIA A100 80 GB") matches the devices whose name it has,
    memory size and form (SXM4, PCIe, NVL, Laptop, …) left out. Of them it means the
    one whose size and form the text has; where that leaves several, the one that the
    bare name is an alias of.

    Raises ``UnknownNameError`` if no device matches, or several do: the text lists the
    devices of that name, or all.
    """
    exact = known_device(name)
    if exact is not None:
        return exact
    matching = [spec for spec in device_specs() if any(_named(spec, name))]
    candidates = _of_form(_of_size(matching, name), name)
    if len(candidates) > 1:
        candidates = [
            spec
            for spec in candidates
            if any(known_device(bare) is spec for bare in _named(spec, name))
        ] or candidates
    if len(candidates) == 1:
        return candidates[0]
    listed = candidates or matching or device_specs()
    raise UnknownNameError("hardware", name, [spec.name for spec in listed])


#: Words that do not tell devices apart.
_VENDORS = frozenset(
    {"amd", "aws", "geforce", "google", "habana", "huawei", "instinct", "intel"}
    | {"nvidia", "tesla"}
)

#: A memory size, not a rate; and words that make another device of a name.
_SIZE = r"(\d{1,4})(?:[\W_]*gi?b|g)\b(?!/)"
_FORM = r"3e|sxm\d*|pcie\d*|nvl|ada|laptop|mobile|d|ti|super"

#: By how much the size in a text may differ from what the driver reports.
_SIZE_TOLERANCE = 0.07


def _all_names(spec: DeviceSpec) -> tuple[str, ...]:
    return spec.name, *spec.aliases


def _tokens(text: str) -> list[str]:
    """Return the words of a text in lower case, without vendors."""
    tokens = re.findall(r"[a-z0-9]+", text.casefold())
    return [token for token in tokens if token not in _VENDORS]


def _named(spec: DeviceSpec, text: str) -> Iterator[str]:
    """Yield the bare names of a device that a text has as whole words."""
    for name in _all_names(spec):
        tokens = _tokens(re.sub(_SIZE, " ", name.casefold()))
        bare = " ".join(token for token in tokens if not re.fullmatch(_FORM, token))
        # Long words may be apart from their number: Gaudi 3.
        apart = re.sub(r"(?<=[a-z]{3})(?=\d)| ", r"[\\W_]*", bare)
        # A count may come before: 8xH100.
        start = r"(?:(?<![a-z0-9])|(?<=\dx))"
        if re.search(rf"{start}{apart}(?![a-z0-9])", text.casefold()):
            yield bare


def _of_size(specs: list[DeviceSpec], text: str) -> list[DeviceSpec]:
    """Return the devices with a memory size that a text has, all if it has none."""
    sizes = {int(size) for size in re.findall(_SIZE, text.casefold())}
    if not sizes:
        return specs
    named = [
        spec
        for spec in specs
        if any(f"{size}gb" in _tokens(" ".join(_all_names(spec))) for size in sizes)
    ]
    return named or [
        spec
        for spec in specs
        if any(
            abs(size * 1e9 / spec.memory_bytes - 1) <= _SIZE_TOLERANCE for size in sizes
        )
    ]


def _of_form(specs: list[DeviceSpec], text: str) -> list[DeviceSpec]:
    """Return the devices with a form that a text has, all if it has none."""
    forms = {token for token in _tokens(text) if re.fullmatch(_FORM, token)}
    return [
        spec
        for spec in specs
        if not forms or forms & {*_tokens(" ".join(_all_names(spec)))}
    ]
