"""What a file of a network leaves out, and the user states as options."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any

from nest.errors import InvalidOptionError, UnknownNameError

#: What each option is, for the error that asks for it.
MEANING = {
    "devices_per_node": "the devices of one node",
    "num_nodes": "how many such nodes there are",
    "node_bandwidth_bytes_per_s": ("what one device sends into its node, one way"),
    "node_latency_ns": "the latency of a link between a device and its node",
    "ports_per_node": "the network ports of one node",
    "port_bandwidth_bytes_per_s": "the speed of one network port, one way",
    "port_latency_ns": "the latency of a link from a port to its switch",
    "uplink_bandwidths_bytes_per_s": (
        "per tier of switches, from the leaves up, what one switch sends to "
        "the tier above over all its cables"
    ),
    "uplink_latencies_ns": (
        "per tier of switches, from the leaves up, the latency of a link to "
        "the tier above"
    ),
    "nvlink_bandwidth_bytes_per_s": "the speed of one NVLink, one way",
    "nvlinks_per_device": "the NVLinks that one device has",
    "pcie_bandwidth_bytes_per_s": "the speed of one PCIe link, one way",
    "pcie_latency_ns": "the latency of one PCIe link",
    "socket_bandwidth_bytes_per_s": (
        "the speed between two processors of a node, one way"
    ),
    "topology": "which of the topologies in the file to take",
    "part": "which of the separate parts in the file to take",
}


@dataclass(frozen=True, kw_only=True)
class FileSupplement:
    """Options that complete a file; ``None`` is an option without a value.

    Bandwidths are in bytes/s, one way and full duplex, above 0; latencies in
    ns, at least 0. :data:`MEANING` describes each. An option that a format
    needs and that has no value is an error; nothing is guessed.

    Raises ``InvalidOptionError`` if a value is of another type or out of range.
    """

    devices_per_node: int | None = None
    num_nodes: int | None = None
    node_bandwidth_bytes_per_s: float | None = None
    node_latency_ns: float | None = None
    ports_per_node: int | None = None
    port_bandwidth_bytes_per_s: float | None = None
    port_latency_ns: float | None = None
    uplink_bandwidths_bytes_per_s: tuple[float, ...] | None = None
    uplink_latencies_ns: tuple[float, ...] | None = None
    nvlink_bandwidth_bytes_per_s: float | None = None
    nvlinks_per_device: int | None = None
    pcie_bandwidth_bytes_per_s: float | None = None
    pcie_latency_ns: float | None = None
    socket_bandwidth_bytes_per_s: float | None = None
    topology: str | None = None
    part: str | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None:
                _check(field.name, value)

    def check_names(self, where: str, title: str, names: Collection[str]) -> None:
        """Refuse options that a format does not read.

        Raises ``InvalidOptionError`` if an option has a value and is none of these
        names.
        """
        for field in fields(self):
            stated = getattr(self, field.name) is not None
            if stated and field.name not in names:
                expected = ", ".join(names) or "nothing"
                raise InvalidOptionError(
                    f"{where}: expected {expected} beside a file of {title}, "
                    f"got {field.name}; leave it out"
                )


def supplement_of(options: Mapping[str, Any]) -> FileSupplement:
    """Return the options by name; one that is ``None`` has no value.

    Raises ``UnknownNameError`` if a name is none of them, and ``InvalidOptionError`` if
    a value is out of range.
    """
    for name in options:
        if name not in MEANING:
            raise UnknownNameError("option beside the file", name, MEANING)
    return FileSupplement(**options)


def _check(name: str, value: object) -> None:
    """Refuse a value that an option cannot have; its name says the type."""
    if name in ("topology", "part"):
        valid, expected = isinstance(value, str) and bool(value), "a name"
    elif name.endswith(("_bytes_per_s", "_ns")):
        positive = name.endswith("_bytes_per_s")
        several = "uplink" in name
        expected = f"{'numbers' if several else 'a number'} " + (
            "> 0" if positive else ">= 0"
        )
        values = value if several else (value,)
        valid = isinstance(values, (tuple, list)) and all(
            isinstance(one, (int, float))
            and not isinstance(one, bool)
            and math.isfinite(one)
            and (one > 0 if positive else one >= 0)
            for one in values
        )
    else:
        expected = "an integer >= 1"
        valid = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    if not valid:
        raise InvalidOptionError(
            f"{name}: expected {expected}, got {value!r}; give {MEANING[name]}"
        )
