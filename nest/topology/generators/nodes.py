"""Networks of nodes: devices joined inside a node, ports to leaves."""

from __future__ import annotations

import networkx as nx

from nest.topology.generators.build import (
    add_devices,
    add_spines,
    add_switches,
    check_size,
    connect,
    divide,
    refuse,
    set_units,
    uplinks,
)

#: NVLinks between the devices of a DGX-1 with V100, six of each device: what
#: its users see in ``nvidia-smi topo -m`` (NVIDIA/nccl issue 671).
DGX1_NVLINKS = {
    (0, 1): 1,
    (0, 2): 1,
    (0, 3): 2,
    (0, 4): 2,
    (1, 2): 2,
    (1, 3): 1,
    (1, 5): 2,
    (2, 3): 2,
    (2, 6): 1,
    (3, 7): 1,
    (4, 5): 1,
    (4, 6): 1,
    (4, 7): 2,
    (5, 6): 2,
    (5, 7): 1,
    (6, 7): 2,
}

#: Compute trays of an NVL72 rack, and devices of a tray.
NVL72_TRAYS, NVL72_TRAY_DEVICES = 18, 4


def _node(
    graph: nx.Graph,
    node: str,
    devices: int,
    bandwidth_bytes_per_s: float,
    latency_ns: float,
    *,
    forward: bool = False,
) -> list[str]:
    """Add devices behind a switch of their own; return them."""
    names = [f"{node}.gpu{device}" for device in range(devices)]
    add_devices(graph, names, forward=forward)
    add_switches(graph, [f"{node}.nvswitch"])
    for name in names:
        connect(
            graph, name, f"{node}.nvswitch", bandwidth_bytes_per_s, latency_ns
        )
    return names


def _stay_inside(
    where: str, nvlink_latency_ns: float, out_latency_ns: float
) -> None:
    """Refuse latencies with which messages in a node would leave it."""
    if out_latency_ns <= nvlink_latency_ns:
        refuse(
            f"{where}: nvlink_latency_ns",
            f"less than {out_latency_ns:g}, the latency of the way out",
            f"{nvlink_latency_ns:g}",
            "routes of least latency would leave the node",
        )


def dgx(  # noqa: PLR0913
    nodes: int,
    devices: int,
    ports: str,
    nodes_per_leaf: int | None,
    spines: int | None,
    oversubscription: float,
    nvlink_bytes_per_s: float,
    nvlink_latency_ns: float,
    port_bytes_per_s: float,
    port_latency_ns: float,
    up_latency_ns: float,
) -> nx.Graph:
    """Return nodes of devices behind NVSwitches, and leaves above them.

    With ``ports`` "device" every device has a port to the leaf of its node.
    With "pooled" any device can fill all ports of its node, as many as it
    has devices, and with "shared" a node has one port. The last two are
    links from the leaf to a switch ``ports`` of the node, which adds no
    latency. Several leaves are joined by spines.

    Raises
    ------
    InvalidOptionError
        If leaves do not divide the nodes, oversubscription gives no whole
        number of spines, the way out has no more latency than NVLink, or the
        network is too large.
    """
    _stay_inside("dgx", nvlink_latency_ns, port_latency_ns)
    per_leaf = nodes if nodes_per_leaf is None else nodes_per_leaf
    leaves = divide(
        "dgx: nodes_per_leaf",
        "nodes",
        nodes,
        per_leaf,
        "leaves have equally many nodes",
    )
    ports_of = {"device": devices, "pooled": devices, "shared": 1}[ports]
    spines, up_bytes_per_s = uplinks(
        "dgx",
        per_leaf * ports_of,
        port_bytes_per_s,
        spines,
        oversubscription,
    )
    check_size("dgx", nodes * devices, 2 * nodes * devices + leaves * spines)
    graph = nx.Graph()
    names = [f"leaf{leaf}" for leaf in range(leaves)]
    add_switches(graph, names)
    node_of: dict[str, str] = {}
    leaf_of: dict[str, str] = {}
    for number in range(nodes):
        node, leaf = f"node{number}", names[number // per_leaf]
        inside = _node(
            graph, node, devices, nvlink_bytes_per_s, nvlink_latency_ns
        )
        node_of |= dict.fromkeys(inside, node)
        leaf_of |= dict.fromkeys(inside, leaf)
        gate = leaf if ports == "device" else f"{node}.ports"
        out_bytes_per_s = port_bytes_per_s
        if ports != "device":
            out_bytes_per_s *= ports_of
            add_switches(graph, [gate])
            connect(graph, gate, leaf, out_bytes_per_s, 0.0)
        for device in inside:
            connect(graph, device, gate, out_bytes_per_s, port_latency_ns)
    if leaves > 1:
        add_spines(graph, names, spines, up_bytes_per_s, up_latency_ns)
    set_units(graph, [node_of, leaf_of])
    return graph


def rail(  # noqa: PLR0913
    nodes: int,
    devices: int,
    segment: int | None,
    spines: int | None,
    oversubscription: float,
    nvlink_bytes_per_s: float,
    nvlink_latency_ns: float,
    port_bytes_per_s: float,
    port_latency_ns: float,
    up_latency_ns: float,
) -> nx.Graph:
    """Return nodes whose device ``r`` has its port on leaf ``r``.

    There are as many leaves in a segment of nodes as devices in a node, and
    spines above all leaves. With ``spines`` 0 there are none: rails only
    (Wang et al., arXiv 2307.12169), where a message to another rail passes
    through the device of its node on that rail, hence devices forward.

    Raises
    ------
    InvalidOptionError
        If segments do not divide the nodes, or are not joined, or
        oversubscription gives no whole number of spines, the way out has no
        more latency than NVLink, or the network is too large.
    """
    _stay_inside("rail", nvlink_latency_ns, port_latency_ns)
    per_segment = nodes if segment is None else segment
    segments = divide(
        "rail: segment",
        "nodes",
        nodes,
        per_segment,
        "segments have equally many nodes",
    )
    only = spines == 0
    up_bytes_per_s = 0.0
    if not only:
        spines, up_bytes_per_s = uplinks(
            "rail", per_segment, port_bytes_per_s, spines, oversubscription
        )
    elif segments > 1:
        refuse(
            "rail: spines",
            f"at least 1 to join {segments} segments",
            0,
            "leave segment out for rails without spines",
        )
    assert spines is not None
    leaves = segments * devices
    check_size("rail", nodes * devices, 2 * nodes * devices + leaves * spines)
    graph = nx.Graph()
    names = [
        f"segment{part}.rail{device}" if segments > 1 else f"rail{device}"
        for part in range(segments)
        for device in range(devices)
    ]
    add_switches(graph, names)
    node_of: dict[str, str] = {}
    segment_of: dict[str, str] = {}
    for number in range(nodes):
        part = number // per_segment
        inside = _node(
            graph,
            f"node{number}",
            devices,
            nvlink_bytes_per_s,
            nvlink_latency_ns,
            forward=only,
        )
        node_of |= dict.fromkeys(inside, f"node{number}")
        segment_of |= dict.fromkeys(inside, f"segment{part}")
        for device, leaf in zip(inside, names[part * devices :], strict=False):
            connect(graph, device, leaf, port_bytes_per_s, port_latency_ns)
    if leaves > 1:
        add_spines(graph, names, spines, up_bytes_per_s, up_latency_ns)
    set_units(graph, [node_of, segment_of])
    return graph


def nvl72(
    racks: int,
    spines: int | None,
    oversubscription: float,
    nvlink_bytes_per_s: float,
    nvlink_latency_ns: float,
    port_bytes_per_s: float,
    port_latency_ns: float,
    up_latency_ns: float,
) -> nx.Graph:
    """Return racks of 72 devices on one NVLink switch plane.

    A rack has 18 trays of 4 devices; every device has a port to the leaf of
    its rack, and spines join the leaves.

    Raises
    ------
    InvalidOptionError
        If oversubscription gives no whole number of spines, the way out has
        no more latency than NVLink, or the network is too large.
    """
    _stay_inside("nvl72", nvlink_latency_ns, port_latency_ns)
    per_rack = NVL72_TRAYS * NVL72_TRAY_DEVICES
    spines, up_bytes_per_s = uplinks(
        "nvl72", per_rack, port_bytes_per_s, spines, oversubscription
    )
    check_size("nvl72", racks * per_rack, racks * (2 * per_rack + spines))
    graph = nx.Graph()
    names = [f"rack{rack}.leaf" for rack in range(racks)]
    add_switches(graph, names)
    tray_of: dict[str, str] = {}
    rack_of: dict[str, str] = {}
    for number, leaf in enumerate(names):
        rack = f"rack{number}"
        inside = _node(
            graph, rack, per_rack, nvlink_bytes_per_s, nvlink_latency_ns
        )
        for position, device in enumerate(inside):
            tray_of[device] = f"{rack}.tray{position // NVL72_TRAY_DEVICES}"
            rack_of[device] = rack
            connect(graph, device, leaf, port_bytes_per_s, port_latency_ns)
    if racks > 1:
        add_spines(graph, names, spines, up_bytes_per_s, up_latency_ns)
    set_units(graph, [tray_of, rack_of])
    return graph


def dgx1(
    nodes: int,
    nvlink_bytes_per_s: float,
    nvlink_latency_ns: float,
    pcie_bytes_per_s: float,
    pcie_latency_ns: float,
    port_bytes_per_s: float,
    port_latency_ns: float,
) -> nx.Graph:
    """Return DGX-1 nodes: a mesh of NVLinks, and a port for two devices.

    The eight devices of a node have six NVLinks each, one or two to four
    others, and forward to the rest. Devices ``2i`` and ``2i + 1`` share a
    PCIe switch with one port; all ports are on one leaf.

    Raises
    ------
    InvalidOptionError
        If the way out has no more latency than NVLink, or the network is too
        large.
    """
    _stay_inside("dgx1", nvlink_latency_ns, pcie_latency_ns + port_latency_ns)
    per_node = 8
    check_size(
        "dgx1", nodes * per_node, nodes * (len(DGX1_NVLINKS) + per_node + 4)
    )
    graph = nx.Graph()
    add_switches(graph, ["leaf0"])
    node_of: dict[str, str] = {}
    for number in range(nodes):
        node = f"node{number}"
        inside = [f"{node}.gpu{device}" for device in range(per_node)]
        add_devices(graph, inside, forward=True)
        node_of |= dict.fromkeys(inside, node)
        for (one, other), links in DGX1_NVLINKS.items():
            connect(
                graph,
                inside[one],
                inside[other],
                links * nvlink_bytes_per_s,
                nvlink_latency_ns,
            )
        for pair in range(per_node // 2):
            switch = f"{node}.pcie{pair}"
            add_switches(graph, [switch])
            connect(graph, switch, "leaf0", port_bytes_per_s, port_latency_ns)
            for device in inside[2 * pair : 2 * pair + 2]:
                connect(
                    graph, device, switch, pcie_bytes_per_s, pcie_latency_ns
                )
    set_units(graph, [node_of])
    return graph
