"""Networks of nodes: devices joined inside a node, ports to leaves."""

from __future__ import annotations

import networkx as nx

from nest.topology.generators.build import (
    Cable,
    Spines,
    add_devices,
    add_spines,
    add_switches,
    check_size,
    connect,
    connect_all,
    divide,
    refuse,
    set_units,
)

#: NVLinks between the devices of a DGX-1 with V100, six of each device: what
#: its users see in ``nvidia-smi topo -m`` (NVIDIA/nccl issue 671).
_SINGLE = ((0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7))
_DOUBLE = ((0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7))
DGX1_NVLINKS = dict(sorted((*((x, 1) for x in _SINGLE), *((x, 2) for x in _DOUBLE))))

#: Compute trays of an NVL72 rack, and devices of a tray.
NVL72_TRAYS, NVL72_TRAY_DEVICES = 18, 4
RACK_SIZE = NVL72_TRAYS * NVL72_TRAY_DEVICES


def _node(
    graph: nx.Graph, node: str, devices: int, nvlink: Cable, *, forward: bool = False
) -> list[str]:
    """Add devices behind a switch of their own; return them."""
    names = [f"{node}.gpu{device}" for device in range(devices)]
    add_devices(graph, names, forward=forward)
    add_switches(graph, [f"{node}.nvswitch"])
    connect_all(graph, names, f"{node}.nvswitch", nvlink)
    return names


def _stay_inside(where: str, nvlink: Cable, out_latency_ns: float) -> None:
    """Refuse latencies with which messages in a node would leave it."""
    if out_latency_ns <= nvlink.latency_ns:
        refuse(
            f"{where}: nvlink_latency_ns",
            f"less than {out_latency_ns:g}, the latency of the way out",
            f"{nvlink.latency_ns:g}",
            "routes of least latency would leave the node",
        )


def dgx(
    nodes: int,
    devices: int,
    ports: str,
    nodes_per_leaf: int | None,
    nvlink: Cable,
    port: Cable,
    up: Spines,
) -> nx.Graph:
    """Return nodes of devices behind NVSwitches, and leaves above them.

    With ``ports`` "device" every device has a port to the leaf of its node. With
    "pooled" any device can fill all ports of its node, as many as it has devices, and
    with "shared" a node has one port. The last two are links from the leaf to a switch
    ``ports`` of the node, which adds no latency. Several leaves are joined by spines.
    """
    _stay_inside("dgx", nvlink, port.latency_ns)
    per_leaf = nodes if nodes_per_leaf is None else nodes_per_leaf
    leaves = divide("dgx: nodes_per_leaf", "nodes", nodes, per_leaf, "leaves")
    ports_of = {"device": devices, "pooled": devices, "shared": 1}[ports]
    spines, uplink = up.links("dgx", per_leaf * ports_of, port)
    check_size("dgx", nodes * devices, 2 * nodes * devices + leaves * spines)
    graph = nx.Graph()
    names = [f"leaf{leaf}" for leaf in range(leaves)]
    add_switches(graph, names)
    node_of: dict[str, str] = {}
    leaf_of: dict[str, str] = {}
    for idx in range(nodes):
        node, leaf = f"node{idx}", names[idx // per_leaf]
        members = _node(graph, node, devices, nvlink)
        node_of |= dict.fromkeys(members, node)
        leaf_of |= dict.fromkeys(members, leaf)
        gate, out = leaf, port
        if ports != "device":
            gate = f"{node}.ports"
            out = port._replace(bytes_per_s=port.bytes_per_s * ports_of)
            add_switches(graph, [gate])
            connect(graph, gate, leaf, out._replace(latency_ns=0.0))
        connect_all(graph, members, gate, out)
    add_spines(graph, names, spines, uplink)
    set_units(graph, [node_of, leaf_of])
    return graph


def rail(
    nodes: int,
    devices: int,
    segment: int | None,
    nvlink: Cable,
    port: Cable,
    up: Spines,
) -> nx.Graph:
    """Return nodes whose device ``r`` has its port on leaf ``r``.

    There are as many leaves in a segment of nodes as devices in a node, and
    spines above all leaves. With 0 spines there are none: rails only (Wang
    et al., arXiv 2307.12169), where a message to another rail passes through
    the device of its node on that rail, hence devices forward.
    """
    _stay_inside("rail", nvlink, port.latency_ns)
    per_segment = nodes if segment is None else segment
    segments = divide("rail: segment", "nodes", nodes, per_segment, "segments")
    rails_only = up.spines == 0
    if rails_only and segments > 1:
        refuse(
            "rail: spines",
            f"at least 1 to join {segments} segments",
            0,
            "leave segment out for rails without spines",
        )
    spines, uplink = 0, port
    if not rails_only:
        spines, uplink = up.links("rail", per_segment, port)
    leaves = segments * devices
    check_size("rail", nodes * devices, 2 * nodes * devices + leaves * spines)
    graph = nx.Graph()
    names = [
        f"segment{idx}.rail{device}" if segments > 1 else f"rail{device}"
        for idx in range(segments)
        for device in range(devices)
    ]
    add_switches(graph, names)
    node_of: dict[str, str] = {}
    segment_of: dict[str, str] = {}
    for idx in range(nodes):
        node, of_segment = f"node{idx}", idx // per_segment
        members = _node(graph, node, devices, nvlink, forward=rails_only)
        node_of |= dict.fromkeys(members, node)
        segment_of |= dict.fromkeys(members, f"segment{of_segment}")
        rails = names[of_segment * devices :]
        for device, leaf in zip(members, rails, strict=False):
            connect(graph, device, leaf, port)
    add_spines(graph, names, spines, uplink)
    set_units(graph, [node_of, segment_of])
    return graph


def nvl72(racks: int, nvlink: Cable, port: Cable, up: Spines) -> nx.Graph:
    """Return racks of 72 devices on one NVLink switch plane.

    A rack has 18 trays of 4 devices; every device has a port to the leaf of
    its rack, and spines join the leaves.
    """
    _stay_inside("nvl72", nvlink, port.latency_ns)
    spines, uplink = up.links("nvl72", RACK_SIZE, port)
    check_size("nvl72", racks * RACK_SIZE, racks * (2 * RACK_SIZE + spines))
    graph = nx.Graph()
    names = [f"rack{rack}.leaf" for rack in range(racks)]
    add_switches(graph, names)
    tray_of: dict[str, str] = {}
    rack_of: dict[str, str] = {}
    for idx, leaf in enumerate(names):
        rack = f"rack{idx}"
        members = _node(graph, rack, RACK_SIZE, nvlink)
        connect_all(graph, members, leaf, port)
        rack_of |= dict.fromkeys(members, rack)
        for position, device in enumerate(members):
            tray_of[device] = f"{rack}.tray{position // NVL72_TRAY_DEVICES}"
    add_spines(graph, names, spines, uplink)
    set_units(graph, [tray_of, rack_of])
    return graph


def dgx1(nodes: int, nvlink: Cable, pcie: Cable, port: Cable) -> nx.Graph:
    """Return DGX-1 nodes: a mesh of NVLinks, and a port for two devices.

    The eight devices of a node have six NVLinks each, one or two to four
    others, and forward to the rest. Devices ``2i`` and ``2i + 1`` share a
    PCIe switch with one port; all ports are on one leaf.
    """
    _stay_inside("dgx1", nvlink, pcie.latency_ns + port.latency_ns)
    per_node = 8
    check_size("dgx1", nodes * per_node, nodes * (len(DGX1_NVLINKS) + per_node + 4))
    graph = nx.Graph()
    add_switches(graph, ["leaf0"])
    node_of: dict[str, str] = {}
    for idx in range(nodes):
        node = f"node{idx}"
        members = [f"{node}.gpu{device}" for device in range(per_node)]
        add_devices(graph, members, forward=True)
        node_of |= dict.fromkeys(members, node)
        for (one, other), count in DGX1_NVLINKS.items():
            links = nvlink._replace(bytes_per_s=count * nvlink.bytes_per_s)
            connect(graph, members[one], members[other], links)
        for pair in range(per_node // 2):
            switch = f"{node}.pcie{pair}"
            add_switches(graph, [switch])
            connect(graph, switch, "leaf0", port)
            connect_all(graph, members[2 * pair : 2 * pair + 2], switch, pcie)
    set_units(graph, [node_of])
    return graph
