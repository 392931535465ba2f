"""What a file does not say, and has to be said beside it."""

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
    "node_bandwidth_bytes_per_s": (
        "what one device sends into its node, one way"
    ),
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
class Beside:
    """What is said beside a file; None was not said.

    Bandwidths are in bytes/s, one way and full duplex, above 0; latencies in
    ns, at least 0. :data:`MEANING` says what each is. An option that a format
    needs and has no value is an error; nothing is guessed.

    Raises
    ------
    InvalidOptionError
        If a value is of another type or out of range.
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

    def only(self, where: str, title: str, names: Collection[str]) -> None:
        """Refuse what was said and a format does not ask for.

        Raises
        ------
        InvalidOptionError
            If an option has a value and is none of these names.
        """
        for field in fields(self):
            said = getattr(self, field.name) is not None
            if said and field.name not in names:
                expected = ", ".join(names) or "nothing"
                raise InvalidOptionError(
                    f"{where}: expected {expected} beside a file of {title}, "
                    f"got {field.name}; leave it out"
                )

    def ask(self, where: str, *names: str) -> Any:
        """Return the values of options, one alone or a tuple.

        Raises
        ------
        InvalidOptionError
            If one was not said; the text names all that are missing.
        """
        missing = [name for name in names if getattr(self, name) is None]
        if missing:
            asked = ", ".join(f"{name} ({MEANING[name]})" for name in missing)
            raise InvalidOptionError(
                f"{where}: expected {asked} beside the file, got none, and "
                f"the file does not say; give {' and '.join(missing)}"
            )
        values = tuple(getattr(self, name) for name in names)
        return values[0] if len(values) == 1 else values

    def per_tier(self, where: str, name: str, count: int) -> tuple[float, ...]:
        """Return the values of an option that has one per tier.

        Raises
        ------
        InvalidOptionError
            If there are fewer or more; none are needed for no tiers.
        """
        if count == 0 and getattr(self, name) is None:
            return ()
        values: tuple[float, ...] = self.ask(where, name)
        if len(values) != count:
            raise InvalidOptionError(
                f"{where}: {name}: expected {count} numbers, one per tier "
                f"that has one above, got {len(values)}; give {MEANING[name]}"
            )
        return tuple(values)


def beside(options: Mapping[str, Any]) -> Beside:
    """Return the options by name; those that are None were not said.

    Raises
    ------
    UnknownNameError
        If a name is none of them.
    InvalidOptionError
        If a value is out of range.
    """
    known = {field.name for field in fields(Beside)}
    for name in options:
        if name not in known:
            raise UnknownNameError("option beside the file", name, known)
    return Beside(**options)


def _check(name: str, value: object) -> None:
    """Refuse a value that an option cannot have; its name tells."""
    if name in ("topology", "part"):
        fine, expected = isinstance(value, str) and bool(value), "a name"
    elif name.endswith(("_bytes_per_s", "_ns")):
        positive = name.endswith("_bytes_per_s")
        several = "uplink" in name
        expected = f"{'numbers' if several else 'a number'} " + (
            "> 0" if positive else ">= 0"
        )
        values = value if several else (value,)
        fine = isinstance(values, (tuple, list)) and all(
            isinstance(one, (int, float))
            and not isinstance(one, bool)
            and math.isfinite(one)
            and (one > 0 if positive else one >= 0)
            for one in values
        )
    else:
        expected = "an integer >= 1"
        fine = (
            isinstance(value, int)
            and not isinstance(value, bool)
            and value >= 1
        )
    if not fine:
        raise InvalidOptionError(
            f"{name}: expected {expected}, got {value!r}; give {MEANING[name]}"
        )
