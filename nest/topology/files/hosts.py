"""Hosts below a tree of switches, and around rings and tori.

Schedulers and clouds list nodes and the switches above them, and leave out
what is inside of a node and how fast anything is. That is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import networkx as nx

from nest.errors import InvalidOptionError
from nest.topology.files.assemble import (
    DEVICE,
    SWITCH,
    add_link,
    finish,
    telling,
)
from nest.topology.files.beside import MEANING, Beside
from nest.topology.files.lattice import Axis, coordinates, join
from nest.topology.files.source import Source, listed


class Host(NamedTuple):
    """A node of a cluster.

    Attributes
    ----------
    name
        Of the node.
    leaf
        The switch that its ports are on.
    domain
        Name of the devices that one NVLink network joins across nodes, or
        None: those of the node alone.
    num_devices
        How many devices it has, or None if the file does not say.
    """

    name: str
    leaf: str
    domain: str | None = None
    num_devices: int | None = None


def tree(
    source: Source,
    hosts: Sequence[Host],
    parents: Mapping[str, str],
    beside: Beside,
    *,
    name: str | None = None,
) -> nx.Graph:
    """Return hosts below a tree of switches, in their order.

    The tree may be unbalanced. A switch's tier is its height above the lowest
    switch below it that has hosts, and decides the speed of its uplink.
    Switches without hosts below them are left out.

    Parameters
    ----------
    source
        The file, for messages.
    hosts
        In the order of the ranks.
    parents
        The switch above each switch that has one.
    beside
        Devices and ports of a node and their speed, and the uplinks' speed.
    name
        Of the network.

    Raises
    ------
    InvalidProblemError
        If names are not unique, switches are above each other, or there are
        several roots and ``part`` names none of them.
    InvalidOptionError
        If an option is missing or does not fit.
    """
    chains = {
        leaf: _chain(source, leaf, parents)
        for leaf in dict.fromkeys(host.leaf for host in hosts)
    }
    root = choose(
        source,
        "trees without a common root",
        dict.fromkeys(chain[-1] for chain in chains.values()),
        beside,
        "add a switch above them",
    )
    hosts = [host for host in hosts if chains[host.leaf][-1] == root]
    _check_names(source, hosts, parents)
    height: dict[str, int] = {}
    for leaf in dict.fromkeys(host.leaf for host in hosts):
        for above, switch in enumerate(chains[leaf]):
            height[switch] = max(height.get(switch, 0), above)
    tiers = height[root]
    beside.ask(source.where, *_needed(hosts, tiers, beside))
    bandwidths = beside.per_tier(
        source.where, "uplink_bandwidths_bytes_per_s", tiers
    )
    latencies = beside.per_tier(source.where, "uplink_latencies_ns", tiers)
    graph = nx.Graph()
    home = add_hosts(source, graph, hosts, beside)
    graph.add_nodes_from(height, kind=SWITCH)
    for switch, tier in height.items():
        if switch != root:
            ends = (switch, parents[switch])
            add_link(graph, ends, bandwidths[tier], latencies[tier])
    units = [
        {device: host.name for device, host in home.items()},
        {device: host.domain or host.name for device, host in home.items()},
        *(
            {
                device: _above(chains[host.leaf], height, tier)
                for device, host in home.items()
            }
            for tier in range(tiers)
        ),
    ]
    return finish(source, graph, list(home), name=name, units=telling(units))


def _needed(hosts: Sequence[Host], tiers: int, beside: Beside) -> list[str]:
    """Return the options to ask for, so that one error names all of them."""
    names = ["ports_per_node", "port_bandwidth_bytes_per_s", "port_latency_ns"]
    if any(host.num_devices is None for host in hosts):
        names.append("devices_per_node")
    if any(
        host.domain is not None
        or (host.num_devices or beside.devices_per_node or 1) > 1
        for host in hosts
    ):
        names += ["node_bandwidth_bytes_per_s", "node_latency_ns"]
    if tiers:
        names += ["uplink_bandwidths_bytes_per_s", "uplink_latencies_ns"]
    return names


def choose(
    source: Source,
    what: str,
    names: Mapping[str, object],
    beside: Beside,
    remedy: str,
) -> str:
    """Return the part of a file to read: the only one, or the named one.

    Raises
    ------
    InvalidProblemError
        If there are several, none of them named.
    InvalidOptionError
        If ``part`` names another one.
    """
    if beside.part is not None:
        if beside.part not in names:
            raise InvalidOptionError(
                f"{source.where}: part: expected one of {listed(names)}, got "
                f"{beside.part!r}; give {MEANING['part']}"
            )
        return beside.part
    if len(names) > 1:
        raise source.refuse(
            "",
            "one network",
            f"{what}: {listed(names)}",
            f"{remedy}, or give one of them as part",
        )
    return next(iter(names))


def add_hosts(
    source: Source,
    graph: nx.Graph,
    hosts: Sequence[Host],
    beside: Beside,
) -> dict[str, Host]:
    """Add the devices of hosts and their links; return each one's host.

    A device is linked to the switch inside of its node (or domain), unless it
    is alone, and to the leaf over its ports. A port of several devices is a
    switch between them and the leaf, which all of them share.

    Raises
    ------
    InvalidOptionError
        If an option is missing, or devices and ports do not divide.
    """
    where = source.where
    home: dict[str, Host] = {}
    for host in hosts:
        devices = add_devices(source, graph, host, beside)
        home.update(dict.fromkeys(devices, host))
        if len(devices) > 1 or host.domain is not None:
            inner = f"{host.domain or host.name}/nvlink"
            graph.add_node(inner, kind=SWITCH)
            bandwidth, latency_ns = beside.ask(
                where, "node_bandwidth_bytes_per_s", "node_latency_ns"
            )
            for device in devices:
                add_link(graph, (device, inner), bandwidth, latency_ns)
        add_ports(source, graph, host, devices, beside)
    return home


def add_devices(
    source: Source, graph: nx.Graph, host: Host, beside: Beside
) -> list[str]:
    """Add the devices of a host; one alone has the name of the host.

    Raises
    ------
    InvalidOptionError
        If nobody says how many there are, or file and option disagree.
    """
    count = host.num_devices
    if count is None:
        count = int(beside.ask(source.where, "devices_per_node"))
    elif beside.devices_per_node not in (None, count):
        raise InvalidOptionError(
            f"{source.where}: devices_per_node: expected {count}, as the file "
            f"says of {host.name}, got {beside.devices_per_node}; leave it out"
        )
    devices = (
        [host.name]
        if count == 1
        else [f"{host.name}/gpu{number}" for number in range(count)]
    )
    graph.add_nodes_from(devices, kind=DEVICE)
    return devices


def add_ports(
    source: Source,
    graph: nx.Graph,
    host: Host,
    devices: Sequence[str],
    beside: Beside,
) -> None:
    """Link the devices of a host to its leaf over the ports of the node.

    Raises
    ------
    InvalidOptionError
        If an option is missing, or devices and ports do not divide.
    """
    ports, bandwidth, latency_ns = beside.ask(
        source.where,
        "ports_per_node",
        "port_bandwidth_bytes_per_s",
        "port_latency_ns",
    )
    if max(ports, len(devices)) % min(ports, len(devices)):
        raise InvalidOptionError(
            f"{source.where}: ports_per_node: expected a multiple or a "
            f"divisor of the {len(devices)} devices of {host.name}, got "
            f"{ports}; give {MEANING['ports_per_node']}"
        )
    if ports >= len(devices):
        own = ports // len(devices)
        for device in devices:
            add_link(graph, (device, host.leaf), own * bandwidth, latency_ns)
        return
    sharing = len(devices) // ports
    for port in range(ports):
        nic = f"{host.name}/nic{port}"
        graph.add_node(nic, kind=SWITCH)
        add_link(graph, (nic, host.leaf), bandwidth, 0.0)
        # A port is as far as the leaf: no short cut between its devices.
        for device in devices[port * sharing : (port + 1) * sharing]:
            add_link(graph, (device, nic), bandwidth, latency_ns)


def torus(
    source: Source,
    hosts: Sequence[str],
    kind: str,
    sizes: Sequence[int],
    beside: Beside,
    *,
    name: str,
) -> nx.Graph:
    """Return hosts on a ring or a torus, the first axis fastest.

    Every cable has the speed of a port. Hosts of one device are the nodes of
    the torus themselves, and forward; otherwise the node's switch is.

    Parameters
    ----------
    source
        The file, for messages.
    hosts
        Names by place.
    kind
        ``Ring`` or ``Torus`` (see :mod:`nest.topology.files.lattice`).
    sizes
        Hosts per axis.
    beside
        Devices of a node, their speed and that of a port.
    name
        Of the network.

    Raises
    ------
    InvalidProblemError
        If names are not unique.
    InvalidOptionError
        If an option is missing.
    """
    places = [Host(host, "") for host in hosts]
    _check_names(source, places, {})
    where = source.where
    bandwidth, latency_ns = beside.ask(
        where, "port_bandwidth_bytes_per_s", "port_latency_ns"
    )
    axes = [Axis(kind, size, bandwidth, latency_ns) for size in sizes]
    graph = nx.Graph()
    home: dict[str, str] = {}
    corners = []
    for host in places:
        devices = add_devices(source, graph, host, beside)
        home.update(dict.fromkeys(devices, host.name))
        if len(devices) == 1:
            graph.nodes[host.name]["forward"] = True
            corners.append(host.name)
            continue
        inner = f"{host.name}/switch"
        graph.add_node(inner, kind=SWITCH)
        corners.append(inner)
        inside = beside.ask(
            where, "node_bandwidth_bytes_per_s", "node_latency_ns"
        )
        for device in devices:
            add_link(graph, (device, inner), *inside)
    join(graph, corners, axes)
    single = len(home) == len(hosts)
    coord = dict(zip(hosts, coordinates(axes), strict=True))
    return finish(
        source,
        graph,
        list(home),
        name=name,
        units=telling([home]),
        coord=coord if single else None,
        wrap=[True] * len(sizes),
    )


def _chain(source: Source, leaf: str, parents: Mapping[str, str]) -> list[str]:
    """Return a leaf and the switches above it, up to the root."""
    chain = {leaf: None}
    switch = leaf
    while (above := parents.get(switch)) is not None:
        if above in chain:
            raise source.refuse(
                "",
                "a tree of switches",
                f"{above} above itself",
                "correct the switches",
            )
        chain[above] = None
        switch = above
    return list(chain)


def _above(chain: Sequence[str], height: Mapping[str, int], tier: int) -> str:
    """Return the highest of a chain's switches up to a tier."""
    return max(
        (switch for switch in chain if height[switch] <= tier),
        key=height.__getitem__,
        default=chain[0],
    )


def _check_names(
    source: Source, hosts: Sequence[Host], parents: Mapping[str, str]
) -> None:
    seen = set(parents) | set(parents.values())
    seen.update(host.leaf for host in hosts)
    for name in (host.name for host in hosts):
        if name in seen:
            raise source.refuse(
                "",
                "every name once",
                f"{name} twice",
                "rename or remove one",
            )
        seen.add(name)
