"""Hosts below a tree of switches, and around rings and tori.

Schedulers and clouds list nodes and the switches above them. Options state
what is inside of a node, and how fast links are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import networkx as nx

from nest.errors import InvalidOptionError
from nest.topology.files import assemble
from nest.topology.files.lattice import Axis, coordinates, join
from nest.topology.files.source import Source, listed
from nest.topology.files.supplement import MEANING

#: Options that describe the links inside a node, and a port of a node.
NODE = ("node_bandwidth_bytes_per_s", "node_latency_ns")
PORT = ("port_bandwidth_bytes_per_s", "port_latency_ns")
UPLINKS = ("uplink_bandwidths_bytes_per_s", "uplink_latencies_ns")


class Host(NamedTuple):
    """A node of a cluster.

    ``leaf`` is the switch that its ports are on. ``domain`` names the devices that one
    NVLink network joins across nodes; without it, those of the node alone are joined.
    ``num_devices`` is ``None`` if the file does not say it.
    """

    name: str
    leaf: str
    domain: str | None = None
    num_devices: int | None = None


def tree(
    source: Source,
    hosts: Sequence[Host],
    parents: Mapping[str, str],
    *,
    name: str | None = None,
) -> nx.Graph:
    """Return hosts below a tree of switches, in their order.

    The tree may be unbalanced. A switch's tier is its height above the lowest switch
    below it that has hosts, and decides the speed of its uplink. Switches without hosts
    below them are left out. ``hosts`` are in the order of the ranks; ``parents`` has
    the switch above each switch that has one.
    """
    chains = {
        leaf: _chain(source, leaf, parents)
        for leaf in dict.fromkeys(host.leaf for host in hosts)
    }
    root = choose(
        source,
        "trees without a common root",
        dict.fromkeys(chain[-1] for chain in chains.values()),
        "add a switch above them",
    )
    hosts = [host for host in hosts if chains[host.leaf][-1] == root]
    _check_names(source, hosts, parents)
    height: dict[str, int] = {}
    for leaf in dict.fromkeys(host.leaf for host in hosts):
        for above, switch in enumerate(chains[leaf]):
            height[switch] = max(height.get(switch, 0), above)
    tiers = height[root]
    source.option(*_needed(source, hosts, tiers))
    bandwidths, latencies = (source.option_per_tier(name, tiers) for name in UPLINKS)
    graph = nx.Graph()
    home = add_hosts(source, graph, hosts)
    graph.add_nodes_from(height, kind=assemble.SWITCH)
    for switch, tier in height.items():
        if switch != root:
            ends = (switch, parents[switch])
            assemble.add_link(graph, ends, bandwidths[tier], latencies[tier])
    units = [
        {device: host.name for device, host in home.items()},
        {device: host.domain or host.name for device, host in home.items()},
    ]
    chain_of = {device: chains[host.leaf] for device, host in home.items()}
    for tier in range(tiers):
        units.append({x: _above(chain, height, tier) for x, chain in chain_of.items()})
    return assemble.finish(
        source, graph, list(home), name=name, units=assemble.telling(units)
    )


def set_parent(
    source: Source, location: str, parents: dict[str, str], child: str, above: str
) -> None:
    """Put a switch below another one; refuse a second one above it."""
    if child in parents:
        raise source.error(
            f"{location}: expected one switch above {child}, got {parents[child]} and "
            f"{above}; remove one"
        )
    parents[child] = above


def _needed(source: Source, hosts: Sequence[Host], tiers: int) -> list[str]:
    """Return the options that hosts need, so that one error names all."""
    names = ["ports_per_node", *PORT]
    if any(host.num_devices is None for host in hosts):
        names.append("devices_per_node")
    usual = source.supplement.devices_per_node or 1
    if any(
        host.domain is not None or (host.num_devices or usual) > 1 for host in hosts
    ):
        names += NODE
    if tiers:
        names += UPLINKS
    return names


def choose(source: Source, what: str, names: Collection[str], remedy: str) -> str:
    """Return the part of a file to read: the only one, or the named one."""
    if (part := source.option_among("part", names)) is not None:
        return part
    if len(names) > 1:
        raise source.error(
            f"expected one network, got {what}: {listed(names)}; {remedy}, or give one "
            f"of them as part"
        )
    return next(iter(names))


def add_hosts(
    source: Source, graph: nx.Graph, hosts: Sequence[Host]
) -> dict[str, Host]:
    """Add the devices of hosts and their links; return each one's host.

    A device is linked to the switch inside of its node (or domain), unless it
    is alone, and to the leaf over its ports. A port of several devices is a
    switch between them and the leaf, which all of them share.
    """
    home: dict[str, Host] = {}
    for host in hosts:
        devices = add_devices(source, graph, host)
        home.update(dict.fromkeys(devices, host))
        if len(devices) > 1 or host.domain is not None:
            inner = f"{host.domain or host.name}/nvlink"
            assemble.add_hub(graph, inner, devices, *source.option(*NODE))
        add_ports(source, graph, host, devices)
    return home


def add_devices(source: Source, graph: nx.Graph, host: Host) -> list[str]:
    """Add the devices of a host; one alone has the name of the host."""
    count, stated = host.num_devices, source.supplement.devices_per_node
    if count is None:
        count = int(source.option("devices_per_node"))
    elif stated not in (None, count):
        raise InvalidOptionError(
            f"{source.where}: devices_per_node: expected {count}, as the file "
            f"says of {host.name}, got {stated}; leave it out"
        )
    devices = (
        [host.name]
        if count == 1
        else [f"{host.name}/gpu{index}" for index in range(count)]
    )
    graph.add_nodes_from(devices, kind=assemble.DEVICE)
    return devices


def add_ports(
    source: Source, graph: nx.Graph, host: Host, devices: Sequence[str]
) -> None:
    """Link the devices of a host to its leaf over the ports of the node."""
    ports, bandwidth, latency_ns = source.option("ports_per_node", *PORT)
    if max(ports, len(devices)) % min(ports, len(devices)):
        raise InvalidOptionError(
            f"{source.where}: ports_per_node: expected a multiple or a "
            f"divisor of the {len(devices)} devices of {host.name}, got "
            f"{ports}; give {MEANING['ports_per_node']}"
        )
    if ports >= len(devices):
        bandwidth *= ports // len(devices)
        for device in devices:
            assemble.add_link(graph, (device, host.leaf), bandwidth, latency_ns)
        return
    sharing = len(devices) // ports
    for port in range(ports):
        nic = f"{host.name}/nic{port}"
        # A port is as far as the leaf: no short cut between its devices.
        members = devices[port * sharing : (port + 1) * sharing]
        assemble.add_hub(graph, nic, members, bandwidth, latency_ns)
        assemble.add_link(graph, (nic, host.leaf), bandwidth, 0.0)


def torus(
    source: Source, hosts: Sequence[str], kind: str, sizes: Sequence[int], *, name: str
) -> nx.Graph:
    """Return hosts on a ring or a torus, the first axis fastest.

    Every cable has the speed of a port. Hosts of one device are the nodes of the torus
    themselves, and forward; otherwise the node's switch is. ``kind`` is ``Ring`` or
    ``Torus`` (see :mod:`nest.topology.files.lattice`); ``hosts`` are listed by place,
    and ``sizes`` says how many of them each axis has.
    """
    members = [Host(host, "") for host in hosts]
    _check_names(source, members, {})
    cable = source.option(*PORT)
    axes = [Axis(kind, size, *cable) for size in sizes]
    graph = nx.Graph()
    home: dict[str, str] = {}
    corners = []
    for host in members:
        devices = add_devices(source, graph, host)
        home.update(dict.fromkeys(devices, host.name))
        if len(devices) == 1:
            graph.nodes[host.name]["forward"] = True
            corners.append(host.name)
            continue
        corners.append(f"{host.name}/switch")
        assemble.add_hub(graph, corners[-1], devices, *source.option(*NODE))
    join(graph, corners, axes)
    single = len(home) == len(hosts)
    coord = dict(zip(hosts, coordinates(axes), strict=True))
    return assemble.finish(
        source,
        graph,
        list(home),
        name=name,
        units=assemble.telling([home]),
        coord=coord if single else None,
        wrap=[True] * len(sizes),
    )


def _chain(source: Source, leaf: str, parents: Mapping[str, str]) -> list[str]:
    """Return a leaf and the switches above it, up to the root."""
    chain = {leaf: None}
    switch = leaf
    while (above := parents.get(switch)) is not None:
        if above in chain:
            raise source.error(
                f"expected a tree of switches, got {above} above itself; correct the "
                f"switches"
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
    for host in hosts:
        source.check_once("", "name", host.name, seen, "rename or remove one")
        seen.add(host.name)
