"""What all generators are made with: devices, switches, links, partitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

import networkx as nx

from nest.errors import InvalidOptionError
from nest.ir.graph_topology import check_link
from nest.util.text import count_text

#: The most devices and links that a generator makes, so that a slip of the
#: keyboard is an error and not a machine out of memory.
MAX_DEVICES = 2**17
MAX_LINKS = 2**18

DEVICE, SWITCH = "device", "switch"


def refuse(where: str, expected: str, got: object, remedy: str) -> NoReturn:
    """Raise the one-line error of a parameter.

    Raises
    ------
    InvalidOptionError
        Always.
    """
    raise InvalidOptionError(
        f"{where}: expected {expected}, got {got}; {remedy}"
    )


def check_size(where: str, num_devices: int, num_links: int) -> None:
    """Refuse a network that is too large, before it is made.

    Raises
    ------
    InvalidOptionError
        If it has more than :data:`MAX_DEVICES` or :data:`MAX_LINKS`.
    """
    for what, count, most in (
        ("devices", num_devices, MAX_DEVICES),
        ("links", num_links, MAX_LINKS),
    ):
        if count > most:
            refuse(
                *(where, f"at most {most} {what}", count_text(count)),
                "ask for less",
            )


def divide(where: str, what: str, total: int, part: int, remedy: str) -> int:
    """Return ``total / part``.

    Raises
    ------
    InvalidOptionError
        If that is no whole number of at least 1.
    """
    if total < part or total % part:
        refuse(where, f"a divisor of {what} = {total}", part, remedy)
    return total // part


def add_devices(
    graph: nx.Graph, devices: Iterable[str], *, forward: bool = False
) -> None:
    """Add devices, behind those that are there in the order of ranks."""
    new = list(devices)
    more = {"forward": True} if forward else {}
    graph.add_nodes_from(new, kind=DEVICE, **more)
    graph.graph.setdefault("order", []).extend(new)


def add_switches(graph: nx.Graph, switches: Iterable[str]) -> None:
    """Add switches."""
    graph.add_nodes_from(switches, kind=SWITCH)


def connect(
    graph: nx.Graph,
    one: str,
    other: str,
    bandwidth_bytes_per_s: float,
    latency_ns: float,
) -> None:
    """Add a link, full duplex, both figures one way.

    Of parallel links the bandwidths add up and the worse latency counts.

    Raises
    ------
    InvalidOptionError
        If no problem may have such a link.
    """
    before: Mapping[str, Any] = graph.get_edge_data(one, other, {})
    bandwidth = before.get("bandwidth", 0.0) + float(bandwidth_bytes_per_s)
    latency_ns = max(before.get("latency_ns", 0.0), float(latency_ns))
    try:
        check_link(bandwidth, latency_ns)
    except ValueError as error:
        raise InvalidOptionError(
            f"network: link from {one} to {other}: {error}"
        ) from None
    graph.add_edge(one, other, bandwidth=bandwidth, latency_ns=latency_ns)


def set_units(
    graph: nx.Graph, partitions: Sequence[Mapping[str, str]]
) -> None:
    """Store the partitions of the devices, finest first.

    A partition into one unit, into single devices, or into the units of the
    one before says nothing and is left out.
    """
    kept: list[dict[str, str]] = []
    sizes = {len(graph.graph["order"]), 1}
    for partition in partitions:
        count = len(set(partition.values()))
        if count not in sizes:
            sizes.add(count)
            kept.append(dict(partition))
    if kept:
        graph.graph["units"] = kept


def uplinks(
    where: str,
    ports: int,
    port_bytes_per_s: float,
    spines: int | None,
    oversubscription: float,
) -> tuple[int, float]:
    """Return the number of spines, and the bandwidth of a link to each.

    A leaf with ``ports`` links of ``port_bytes_per_s`` down has
    ``ports * port_bytes_per_s / oversubscription`` up. Without a number of
    spines the links up are as fast as those down.

    Raises
    ------
    InvalidOptionError
        If that asks for no whole number of spines.
    """
    if spines is None:
        wanted = ports / oversubscription
        if wanted < 1 or wanted != int(wanted):
            refuse(
                f"{where}: oversubscription",
                f"a divisor of the {ports} links below a leaf",
                f"{oversubscription:g}",
                "or say how many spines there are",
            )
        spines = int(wanted)
    up_bytes_per_s = ports * port_bytes_per_s / (spines * oversubscription)
    return spines, up_bytes_per_s


def add_spines(
    graph: nx.Graph,
    leaves: Sequence[str],
    spines: int,
    up_bytes_per_s: float,
    up_latency_ns: float,
) -> None:
    """Join every leaf with every one of so many new spines."""
    names = [f"spine{spine}" for spine in range(spines)]
    add_switches(graph, names)
    for leaf in leaves:
        for spine in names:
            connect(graph, leaf, spine, up_bytes_per_s, up_latency_ns)
