"""Machines side by side: the graph of a network that joins several kinds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from nest.hardware.links import calibrated
from nest.hardware.machines import Machine
from nest.ir.cluster import Cluster, DeviceRange
from nest.ir.graph_topology import GraphTopology, NetworkLink, NetworkNode

#: Some machines, and how many of their devices.
MachineRun = tuple[Machine, int]


def mixed_cluster(machines: Sequence[MachineRun]) -> Cluster:
    """Return a cluster of several kinds of machines, one after the other.

    Ranks have the order of the machines.
    """
    others, first = [], 0
    for machine, count in machines:
        device_range = DeviceRange(first=first, count=count, device=machine.device)
        if machine.device != machines[0][0].device:
            others.append(device_range)
        first += count
    return Cluster(
        name="+".join(f"{machine.name}-{count}" for machine, count in machines),
        num_devices=first,
        device=machines[0][0].device,
        others=tuple(others),
        topology=joined(machines),
    )


def joined(machines: Sequence[MachineRun]) -> GraphTopology:
    """Return nodes of machines on one switch that all ports lead to.

    Devices of a node meet at a switch of its own, or by links between pairs
    where the machine has such; each has a port of its own to the network.
    Links carry what they reach, see :func:`nest.hardware.links.calibrated`, in
    groups of whole nodes. A path of two links has the latency of the machine's
    level; a collective has the launch cost of the slowest level.
    """
    nodes: list[NetworkNode] = []
    links: list[NetworkLink] = []
    unit_of: dict[str, str] = {}
    for index, (machine, node) in enumerate(_nodes(machines)):
        names = [f"{machine.name}-{index}-{i}" for i in range(node)]
        unit_of |= dict.fromkeys(names, f"{machine.name}-{index}")
        nodes += [NetworkNode(id=name) for name in names]
        links += _inside(machine, f"{machine.name}-{index}", names, nodes)
        port = calibrated(machine.network)
        links += [
            _link(name, "network", port.bandwidth_bytes_per_s, port.latency_ns)
            for name in names
        ]
    nodes.append(NetworkNode(id="network", kind="switch"))
    return GraphTopology(
        nodes=tuple(nodes),
        links=tuple(links),
        units=(unit_of,),
        launch_ns=max(
            calibrated(level).launch_ns
            for machine, _ in machines
            for level in (machine.node, machine.network)
        ),
    )


def _nodes(machines: Sequence[MachineRun]) -> Iterator[tuple[Machine, int]]:
    """Yield the nodes of all machines: how many devices each has in use."""
    for machine, count in machines:
        _, size = machine.shape(count)
        while count > 0:
            yield machine, min(size, count)
            count -= size


def _inside(
    machine: Machine, name: str, devices: Sequence[str], nodes: list[NetworkNode]
) -> list[NetworkLink]:
    """Return the links inside a node; adds its switch, if it has one."""
    level = calibrated(machine.node)
    peer = level.peer_bandwidth_bytes_per_s
    if peer is not None:
        return [
            NetworkLink(
                source=one,
                target=other,
                bandwidth_bytes_per_s=peer,
                latency_ns=level.latency_ns,
            )
            for one, other in combinations(devices, 2)
        ]
    nodes.append(NetworkNode(id=name, kind="switch"))
    return [
        _link(
            device,
            name,
            level.bandwidth_bytes_per_s * level.fraction(len(devices)),
            level.latency_ns,
        )
        for device in devices
    ]


def _link(device: str, switch: str, bandwidth: float, latency_ns: float) -> NetworkLink:
    """Return a link to a switch: half of a path between two devices."""
    return NetworkLink(
        source=device,
        target=switch,
        bandwidth_bytes_per_s=bandwidth,
        latency_ns=latency_ns / 2,
    )
