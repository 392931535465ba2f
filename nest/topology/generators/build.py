"""What all generators are made with: devices, switches, links, partitions."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import networkx as nx

from nest.errors import InvalidOptionError
from nest.ir.graph_topology import check_link
from nest.util.text import count_text

#: The most devices and links that a generator makes, so that a slip of the
#: keyboard is an error and not a machine out of memory.
MAX_DEVICES = 2**17
MAX_LINKS = 2**18

DEVICE, SWITCH = "device", "switch"


class Cable(NamedTuple):
    """A kind of link, full duplex; both figures are one way."""

    bytes_per_s: float
    latency_ns: float


class Spines(NamedTuple):
    """The switches that join all leaves.

    ``None`` stands for as many as make the links of a leaf up as fast as those down.
    ``oversubscription`` is the bandwidth of the links of a leaf down by that of its
    links up, ``latency_ns`` that of a link from a leaf to a spine.
    """

    spines: int | None
    oversubscription: float
    latency_ns: float

    def links(self, where: str, ports: int, port: Cable) -> tuple[int, Cable]:
        """Return the number of spines, and the link from a leaf to each.

        A leaf with ``ports`` links down, each as fast as ``port``, has
        ``ports * port.bytes_per_s / oversubscription`` up.

        Raises ``InvalidOptionError`` if that takes no whole number of spines.
        """
        spines = self.spines
        if spines is None:
            exact = ports / self.oversubscription
            if exact < 1 or exact != int(exact):
                raise InvalidOptionError(
                    f"{where}: oversubscription: expected a divisor of the {ports} "
                    f"links below a leaf, got {self.oversubscription:g}; or say how "
                    f"many spines there are"
                )
            spines = int(exact)
        up_bytes_per_s = ports * port.bytes_per_s / (spines * self.oversubscription)
        return spines, Cable(up_bytes_per_s, self.latency_ns)


def refuse(where: str, expected: str, got: object, remedy: str) -> NoReturn:
    """Raise the one-line error of a parameter."""
    raise InvalidOptionError(f"{where}: expected {expected}, got {got}; {remedy}")


def check_size(where: str, num_devices: int, num_links: int) -> None:
    """Refuse a network that is too large, before it is made.

    Raises ``InvalidOptionError`` if it has more than :data:`MAX_DEVICES` or
    :data:`MAX_LINKS`.
    """
    for what, count, limit in (
        ("devices", num_devices, MAX_DEVICES),
        ("links", num_links, MAX_LINKS),
    ):
        if count > limit:
            expected = f"at most {limit} {what}"
            refuse(where, expected, count_text(count), "ask for less")


def divide(where: str, what: str, total: int, divisor: int, unit: str) -> int:
    """Return ``total / divisor``, the number of units of so many each.

    Raises ``InvalidOptionError`` if that is no whole number of at least 1.
    """
    if total < divisor or total % divisor:
        expected = f"a divisor of {what} = {total}"
        refuse(where, expected, divisor, f"{unit} have equally many {what}")
    return total // divisor


class Wiring:
    """A network in the making.

    ``where`` is the parameter to blame if it will be too large. ``partitions`` has the
    units of the devices, those of the finest partition first.

    Raises ``InvalidOptionError`` if it has more than :data:`MAX_DEVICES` or
    :data:`MAX_LINKS`.
    """

    def __init__(self, where: str, num_devices: int, num_links: int) -> None:
        check_size(where, num_devices, num_links)
        self.graph = nx.Graph(order=[])
        self.partitions: list[dict[str, str]] = []

    def add_devices(
        self, devices: Iterable[str], *units: str, forward: bool = False
    ) -> list[str]:
        """Add devices of such units, finest first, as the next ranks."""
        names = list(devices)
        more = {"forward": True} if forward else {}
        self.graph.add_nodes_from(names, kind=DEVICE, **more)
        self.graph.graph["order"] += names
        self.partitions = self.partitions or [{} for _ in units]
        for partition, unit in zip(self.partitions, units, strict=True):
            partition |= dict.fromkeys(names, unit)
        return names

    def add_switches(self, switches: Iterable[str]) -> list[str]:
        """Add switches."""
        names = list(switches)
        self.graph.add_nodes_from(names, kind=SWITCH)
        return names

    def connect(self, one: str, other: str, cable: Cable) -> None:
        """Add a link.

        Of parallel links the bandwidths add up and the worse latency counts.

        Raises ``InvalidOptionError`` if no problem may have such a link.
        """
        before: Mapping[str, Any] = self.graph.get_edge_data(one, other, {})
        bandwidth = before.get("bandwidth", 0.0) + float(cable.bytes_per_s)
        latency_ns = max(before.get("latency_ns", 0.0), float(cable.latency_ns))
        try:
            check_link(bandwidth, latency_ns)
        except ValueError as error:
            raise InvalidOptionError(
                f"network: link from {one} to {other}: {error}"
            ) from None
        self.graph.add_edge(one, other, bandwidth=bandwidth, latency_ns=latency_ns)

    def connect_all(self, nodes: Iterable[str], switch: str, cable: Cable) -> None:
        """Add a link from each node to a switch."""
        for node in nodes:
            self.connect(node, switch, cable)

    def add_spines(self, leaves: Sequence[str], spines: int, up: Cable) -> None:
        """Join every leaf with every one of so many new spines, if need be."""
        if len(leaves) > 1:
            names = self.add_switches(f"spine{spine}" for spine in range(spines))
            for leaf, spine in itertools.product(leaves, names):
                self.connect(leaf, spine, up)

    def finished(self) -> nx.Graph:
        """Return the network, with its partitions.

        A partition into one unit, into single devices, or into the units of the
        one before says nothing and is left out.
        """
        units: list[dict[str, str]] = []
        sizes = {len(self.graph.graph["order"]), 1}
        for partition in self.partitions:
            count = len(set(partition.values()))
            if count not in sizes:
                sizes.add(count)
                units.append(partition)
        if units:
            self.graph.graph["units"] = units
        return self.graph
