"""What all generators are made with: devices, switches, links, partitions."""

from __future__ import annotations

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

    Attributes
    ----------
    spines
        How many; ``None`` for as many as make the links of a leaf up as fast
        as those down.
    oversubscription
        Bandwidth of the links of a leaf down by that of its links up.
    latency_ns
        Of a link from a leaf to a spine.
    """

    spines: int | None
    oversubscription: float
    latency_ns: float

    def links(self, where: str, ports: int, port: Cable) -> tuple[int, Cable]:
        """Return the number of spines, and the link from a leaf to each.

        A leaf with ``ports`` links down, each as fast as ``port``, has
        ``ports * port.bytes_per_s / oversubscription`` up.

        Raises
        ------
        InvalidOptionError
            If that takes no whole number of spines.
        """
        spines = self.spines
        if spines is None:
            exact = ports / self.oversubscription
            if exact < 1 or exact != int(exact):
                refuse(
                    f"{where}: oversubscription",
                    f"a divisor of the {ports} links below a leaf",
                    f"{self.oversubscription:g}",
                    "or say how many spines there are",
                )
            spines = int(exact)
        up_bytes_per_s = ports * port.bytes_per_s / (spines * self.oversubscription)
        return spines, Cable(up_bytes_per_s, self.latency_ns)


def refuse(where: str, expected: str, got: object, remedy: str) -> NoReturn:
    """Raise the one-line error of a parameter."""
    raise InvalidOptionError(f"{where}: expected {expected}, got {got}; {remedy}")


def check_size(where: str, num_devices: int, num_links: int) -> None:
    """Refuse a network that is too large, before it is made.

    Raises
    ------
    InvalidOptionError
        If it has more than :data:`MAX_DEVICES` or :data:`MAX_LINKS`.
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

    Raises
    ------
    InvalidOptionError
        If that is no whole number of at least 1.
    """
    if total < divisor or total % divisor:
        expected = f"a divisor of {what} = {total}"
        refuse(where, expected, divisor, f"{unit} have equally many {what}")
    return total // divisor


def add_devices(
    graph: nx.Graph, devices: Iterable[str], *, forward: bool = False
) -> None:
    """Add devices after those that are there in the order of ranks."""
    new = list(devices)
    more = {"forward": True} if forward else {}
    graph.add_nodes_from(new, kind=DEVICE, **more)
    graph.graph.setdefault("order", []).extend(new)


def add_switches(graph: nx.Graph, switches: Iterable[str]) -> None:
    """Add switches."""
    graph.add_nodes_from(switches, kind=SWITCH)


def connect(graph: nx.Graph, one: str, other: str, cable: Cable) -> None:
    """Add a link.

    Of parallel links the bandwidths add up and the worse latency counts.

    Raises
    ------
    InvalidOptionError
        If no problem may have such a link.
    """
    before: Mapping[str, Any] = graph.get_edge_data(one, other, {})
    bandwidth = before.get("bandwidth", 0.0) + float(cable.bytes_per_s)
    latency_ns = max(before.get("latency_ns", 0.0), float(cable.latency_ns))
    try:
        check_link(bandwidth, latency_ns)
    except ValueError as error:
        raise InvalidOptionError(
            f"network: link from {one} to {other}: {error}"
        ) from None
    graph.add_edge(one, other, bandwidth=bandwidth, latency_ns=latency_ns)


def connect_all(
    graph: nx.Graph, nodes: Iterable[str], switch: str, cable: Cable
) -> None:
    """Add a link from each node to a switch."""
    for node in nodes:
        connect(graph, node, switch, cable)


def set_units(graph: nx.Graph, partitions: Sequence[Mapping[str, str]]) -> None:
    """Store the partitions of the devices, finest first.

    A partition into one unit, into single devices, or into the units of the
    one before says nothing and is left out.
    """
    units: list[dict[str, str]] = []
    sizes = {len(graph.graph["order"]), 1}
    for partition in partitions:
        count = len(set(partition.values()))
        if count not in sizes:
            sizes.add(count)
            units.append(dict(partition))
    if units:
        graph.graph["units"] = units


def add_spines(graph: nx.Graph, leaves: Sequence[str], spines: int, up: Cable) -> None:
    """Join every leaf with every one of so many new spines, if need be."""
    if len(leaves) < 2:
        return
    names = [f"spine{spine}" for spine in range(spines)]
    add_switches(graph, names)
    for leaf in leaves:
        for spine in names:
            connect(graph, leaf, spine, up)
