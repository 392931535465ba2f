"""Networks of nodes: devices joined inside a node, ports to leaves."""

from __future__ import annotations

import networkx as nx

from nest.errors import InvalidOptionError
from nest.topology.generators.build import Cable, Spines, Wiring, divide

#: NVLinks between the devices of a DGX-1 with V100, six of each device: what
#: its users see in ``nvidia-smi topo -m`` (NVIDIA/nccl issue 671).
_SINGLE = ((0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7))
_DOUBLE = ((0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7))
DGX1_NVLINKS = dict(sorted((*((x, 1) for x in _SINGLE), *((x, 2) for x in _DOUBLE))))

#: Compute trays of an NVL72 rack, and devices of a tray.
NVL72_TRAYS, NVL72_TRAY_DEVICES = 18, 4
RACK_SIZE = NVL72_TRAYS * NVL72_TRAY_DEVICES


def _add_node(
    network: Wiring, devices: int, nvlink: Cable, *units: str, forward: bool = False
) -> list[str]:
    """Add the devices of a node, the first unit, behind a switch of their own."""
    node = units[0]
    names = (f"{node}.gpu{device}" for device in range(devices))
    members = network.add_devices(names, *units, forward=forward)
    (switch,) = network.add_switches([f"{node}.nvswitch"])
    network.connect_all(members, switch, nvlink)
    return members


def _stay_inside(where: str, nvlink: Cable, out_latency_ns: float) -> None:
    """Refuse latencies with which messages in a node would leave it."""
    if out_latency_ns <= nvlink.latency_ns:
        raise InvalidOptionError(
            f"{where}: nvlink_latency_ns: expected less than {out_latency_ns:g}, the "
            f"latency of the way out, got {nvlink.latency_ns:g}; routes of least "
            f"latency would leave the node"
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
    num_links = 2 * nodes * devices + leaves * spines
    network = Wiring("dgx", nodes * devices, num_links)
    names = network.add_switches(f"leaf{leaf}" for leaf in range(leaves))
    for idx in range(nodes):
        node, leaf = f"node{idx}", names[idx // per_leaf]
        members = _add_node(network, devices, nvlink, node, leaf)
        gate, out = leaf, port
        if ports != "device":
            (gate,) = network.add_switches([f"{node}.ports"])
            out = port._replace(bytes_per_s=port.bytes_per_s * ports_of)
            network.connect(gate, leaf, out._replace(latency_ns=0.0))
        network.connect_all(members, gate, out)
    network.add_spines(names, spines, uplink)
    return network.finished()


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
        raise InvalidOptionError(
            f"rail: spines: expected at least 1 to join {segments} segments, got 0; "
            f"leave segment out for rails without spines"
        )
    spines, uplink = 0, port
    if not rails_only:
        spines, uplink = up.links("rail", per_segment, port)
    leaves = segments * devices
    num_links = 2 * nodes * devices + leaves * spines
    network = Wiring("rail", nodes * devices, num_links)
    names = network.add_switches(
        f"segment{idx}.rail{device}" if segments > 1 else f"rail{device}"
        for idx in range(segments)
        for device in range(devices)
    )
    for idx in range(nodes):
        position = idx // per_segment
        units = f"node{idx}", f"segment{position}"
        members = _add_node(network, devices, nvlink, *units, forward=rails_only)
        for device, leaf in zip(members, names[position * devices :], strict=False):
            network.connect(device, leaf, port)
    network.add_spines(names, spines, uplink)
    return network.finished()


def nvl72(racks: int, nvlink: Cable, port: Cable, up: Spines) -> nx.Graph:
    """Return racks of 72 devices on one NVLink switch plane.

    A rack has 18 trays of 4 devices; every device has a port to the leaf of
    its rack, and spines join the leaves.
    """
    _stay_inside("nvl72", nvlink, port.latency_ns)
    spines, uplink = up.links("nvl72", RACK_SIZE, port)
    num_links = racks * (2 * RACK_SIZE + spines)
    network = Wiring("nvl72", racks * RACK_SIZE, num_links)
    names = network.add_switches(f"rack{rack}.leaf" for rack in range(racks))
    tray_of: dict[str, str] = {}
    for idx, leaf in enumerate(names):
        rack = f"rack{idx}"
        members = _add_node(network, RACK_SIZE, nvlink, rack)
        network.connect_all(members, leaf, port)
        for position, device in enumerate(members):
            tray_of[device] = f"{rack}.tray{position // NVL72_TRAY_DEVICES}"
    network.partitions.insert(0, tray_of)
    network.add_spines(names, spines, uplink)
    return network.finished()


def dgx1(nodes: int, nvlink: Cable, pcie: Cable, port: Cable) -> nx.Graph:
    """Return DGX-1 nodes: a mesh of NVLinks, and a port for two devices.

    The eight devices of a node have six NVLinks each, one or two to four
    others, and forward to the rest. Devices ``2i`` and ``2i + 1`` share a
    PCIe switch with one port; all ports are on one leaf.
    """
    _stay_inside("dgx1", nvlink, pcie.latency_ns + port.latency_ns)
    per_node = 8
    num_links = nodes * (len(DGX1_NVLINKS) + per_node + 4)
    network = Wiring("dgx1", nodes * per_node, num_links)
    (leaf,) = network.add_switches(["leaf0"])
    for node in (f"node{idx}" for idx in range(nodes)):
        names = (f"{node}.gpu{device}" for device in range(per_node))
        members = network.add_devices(names, node, forward=True)
        for (one, other), count in DGX1_NVLINKS.items():
            links = nvlink._replace(bytes_per_s=count * nvlink.bytes_per_s)
            network.connect(members[one], members[other], links)
        for pair in range(per_node // 2):
            (switch,) = network.add_switches([f"{node}.pcie{pair}"])
            network.connect(switch, leaf, port)
            network.connect_all(members[2 * pair : 2 * pair + 2], switch, pcie)
    return network.finished()
