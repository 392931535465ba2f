"""Topology files of NCCL (``NCCL_TOPO_FILE``, ``NCCL_TOPO_DUMP_FILE``).

They describe one node: processors, PCIe, devices with their NVLinks and links
between chips, network cards. Elements and figures after ``src/graph/xml.cc``,
``topo.cc`` and ``topo.h`` of NVIDIA/nccl (commit 5067397).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from xml.etree.ElementTree import Element

import networkx as nx

from nest.topology.files.assemble import DEVICE, SWITCH, add_hub, add_link
from nest.topology.files.hosts import Host, add_ports
from nest.topology.files.node_network import NETWORK, repeat
from nest.topology.files.source import Source, listed, parse_xml, shown
from nest.units import GB

VERSION = "1"

#: 80ths of GB/s per lane, by transfer rate in GT/s (``topo.cc``).
LANE = {
    "2.5": 15,
    "5": 30,
    "5.0": 30,
    "8": 60,
    "8.0": 60,
    "16": 120,
    "16.0": 120,
    "32": 240,
    "32.0": 240,
    "64": 480,
    "64.0": 480,
}

#: GB/s of one NVLink from a compute capability on, highest first; 86 has its
#: own (``topo.h``).
NVLINK = ((100, 40.1), (90, 20.6), (80, 20.0), (70, 20.0), (60, 18.0))
NVLINK_OF = {86: 12.0}

_GPU = ("0x0302", "0x0300")
_NIC = "0x02"
_SWITCH = "0x0680"
_PROCESSOR = "0x068001"

#: Bytes/s of a link between two PCIe switches of a card (``LOC_BW`` in ``topo.h``).
_LOCAL = 5000 * GB
_INSIDE = {
    "system": ("cpu",),
    "cpu": ("pci", "nic"),
    "pci": ("pci", "gpu", "nic", "pcilink"),
    "gpu": ("nvlink", "c2c"),
    "nic": ("net",),
}
_MAX_DEPTH = 32


@dataclass
class _Node:
    """What a file says of a node; ids are bus ids, or names of processors.

    ``devices`` has the element of each device, if there is one, by its bus id;
    ``bridges`` are switches of PCIe. ``cards`` has the speed of each network card, and
    ``links`` has those over PCIe (from, to, speed), in bytes/s; ``None`` is unknown.
    ``joined`` are pairs of bridges that are one switch.
    """

    processors: list[str] = field(default_factory=list)
    devices: dict[str, Element | None] = field(default_factory=dict)
    bridges: list[str] = field(default_factory=list)
    cards: dict[str, float | None] = field(default_factory=dict)
    links: list[tuple[str, str, float | None]] = field(default_factory=list)
    joined: set[frozenset[str]] = field(default_factory=set)
    seen: set[str] = field(default_factory=set)

    def ids(self) -> list[str]:
        return [*self.processors, *self.devices, *self.bridges, *self.cards]

    def processor_of(self, device: str) -> str:
        """Return the processor that a device is below."""
        above = {below: upper for below, upper, _ in self.links}
        while device in above:
            device = above[device]
        return device


@dataclass
class _NvLinks:
    """Bytes/s of the NVLinks of devices, and of their links between chips.

    ``to_device`` has those between two devices, in each direction; ``to_switch`` and
    ``to_processor`` those of a device to switches and to the processor above it.
    """

    to_device: dict[tuple[str, str], float] = field(default_factory=dict)
    to_switch: dict[str, float] = field(default_factory=dict)
    to_processor: dict[str, float] = field(default_factory=dict)


def read(source: Source) -> nx.Graph:
    """Read the topology of one node.

    Options state the number of nodes, the latencies of PCIe, NVLink and ports; the
    speed between processors, if there are several; and what the file leaves out: the
    speed of PCIe links and ports, the ports if it has no network cards, and what
    devices send into the node if it has no ``gpu`` elements, which could have NVLinks.
    """
    root = parse_xml(source)
    if root.tag != "system" or root.get("version") != VERSION:
        raise source.refuse(
            "",
            f'<system version="{VERSION}">',
            f"<{root.tag}> of version {shown(root.get('version'))}",
            "give a topology file of NCCL",
        )
    hashes = {cpu.get("host_hash") for cpu in root} - {None}
    if len(hashes) > 1:
        raise source.error(
            f"expected one node, got {len(hashes)} values of host_hash; keep the "
            f"elements of one node"
        )
    node = _Node()
    _walk(source, node, root, None, 0)
    if not node.devices:
        raise source.refuse("", "devices (class 0x0302)", "none", "add the GPUs")
    for ends in node.joined:
        if len(ends) != 2 or not ends.issubset(node.bridges):
            raise source.refuse(
                f"<pcilink> of {max(ends & node.seen)}",
                "another PCIe switch of the file as the target",
                listed(sorted(ends - set(node.bridges))) or "itself",
                "correct the target",
            )
    nvlinks = _nvlinks(source, node)
    return repeat(source, partial(_add_node, source, node, nvlinks))


def _walk(
    source: Source, node: _Node, element: Element, above: str | None, depth: int
) -> None:
    """Note what an element is, and what is in it."""
    location = _place(element)
    parent = above
    if element.tag == "cpu":
        parent = f"cpu{_attribute(source, element, 'numaid')}"
        _once(source, node, parent, location)
        node.processors.append(parent)
    elif element.tag == "pci" and above is not None:
        parent = _attribute(source, element, "busid").lower()
        _once(source, node, parent, location)
        kind = _attribute(source, element, "class")
        gpu = element.find("gpu")
        if (count := len(element.findall("gpu"))) > 1:
            expected, remedy = "one <gpu> in a device", "give a file of whole devices"
            raise source.refuse(location, expected, count, remedy)
        if kind.startswith(_GPU) or gpu is not None:
            node.devices[parent] = gpu
        elif kind.startswith(_NIC):
            node.cards[parent] = _speed(source, element, "nic/net")
        else:
            node.bridges.append(parent)
        node.links.append((parent, above, _pci_speed(source, element)))
        for link in element.findall("pcilink"):
            target = (link.get("target") or "").lower()
            node.joined.add(frozenset((parent, target)))
    elif element.tag == "nic" and above in node.processors:
        # One without a PCIe device, which NCCL joins to the processor itself.
        parent = f"{above}-nic{len(node.cards)}"
        _once(source, node, parent, location)
        node.cards[parent] = _speed(source, element, "net")
        node.links.append((parent, above, _LOCAL))
    if depth > _MAX_DEPTH:
        raise source.refuse(
            location, f"at most {_MAX_DEPTH} levels", "more", "correct the file"
        )
    tags = _INSIDE.get(element.tag, ())
    for inner in element:
        if inner.tag not in tags:
            raise source.refuse(
                location,
                f"elements {' or '.join(tags)}" if tags else "no elements",
                f"<{inner.tag}>",
                "remove or correct it",
            )
        _walk(source, node, inner, parent, depth + 1)


def _once(source: Source, node: _Node, name: str, location: str) -> None:
    if name in node.seen:
        raise source.refuse(
            location, "every busid and numaid once", "one twice", "remove one"
        )
    node.seen.add(name)


def _place(element: Element) -> str:
    name = element.get("busid") or element.get("numaid")
    return f"<{element.tag}>" if name is None else f"<{element.tag} {name}>"


def _attribute(source: Source, element: Element, name: str) -> str:
    value = element.get(name)
    if not value:
        raise source.refuse(_place(element), f"attribute {name}", "none", "add it")
    return value


def _pci_speed(source: Source, element: Element) -> float | None:
    """Return bytes/s of the link above an element; None if unknown."""
    tokens = (element.get("link_speed") or "").split()
    width = source.integer(
        f"{_place(element)} link_width", element.get("link_width", "0"), minimum=0
    )
    lane = LANE.get(tokens[0]) if tokens else None
    if lane is None:
        if tokens and tokens[0].lower() != "unknown":
            raise source.refuse(
                f"{_place(element)} link_speed",
                f"{', '.join(LANE)} GT/s",
                shown(" ".join(tokens)),
            )
        return None
    return (width or 16) * lane * GB / 80


def _speed(source: Source, card: Element, ports: str) -> float | None:
    """Return bytes/s of a network card over all its ports."""
    speeds = []
    for net in card.findall(ports):
        mbit_per_s = source.number(
            f"{_place(card)} speed", net.get("speed", "0"), positive=False, unit="Mb/s"
        )
        if mbit_per_s == 0:
            return None
        speeds.append(mbit_per_s * 1e6 / 8)
    return sum(speeds) if speeds else None


def _nvlinks(source: Source, node: _Node) -> _NvLinks:
    """Return what the devices say of their NVLinks and links between chips."""
    links = _NvLinks()
    for bus, gpu in node.devices.items():
        if gpu is None:
            continue
        for link in gpu.findall("c2c"):
            location = f"<c2c> of {bus}"
            speed = source.integer(location, link.get("count"), minimum=1) * 1e6
            speed *= source.number(location, link.get("bw"), positive=True, unit="MB/s")
            links.to_processor[bus] = links.to_processor.get(bus, 0.0) + speed
        for link in gpu.findall("nvlink"):
            _add_nvlink(source, node, links, bus, link)
    for (bus, target), speed in links.to_device.items():
        if links.to_device.get((target, bus)) != speed:
            raise source.error(
                f"<nvlink> of {bus}: expected as many NVLinks from {target} back, got "
                f"others; correct the counts"
            )
    return links


def _add_nvlink(
    source: Source, node: _Node, links: _NvLinks, bus: str, link: Element
) -> None:
    """Add what one element says of the NVLinks of a device."""
    location = f"<nvlink> of {bus}"
    gpu = node.devices[bus]
    assert gpu is not None
    count = source.integer(location, link.get("count"), minimum=1)
    speed = count * _per_link(source, bus, gpu) * GB
    target = (link.get("target") or "").lower()
    kind = link.get("tclass") or ""
    if target == bus:
        raise source.error(
            f"{location}: expected another device or a switch as the target, got "
            f"{bus} itself; correct the target, or remove the NVLinks"
        )
    if target in node.devices:
        pair = (bus, target)
        links.to_device[pair] = links.to_device.get(pair, 0.0) + speed
    elif kind == _PROCESSOR:
        links.to_processor[bus] = links.to_processor.get(bus, 0.0) + speed
    elif kind.startswith(_SWITCH):
        links.to_switch[bus] = links.to_switch.get(bus, 0.0) + speed
    else:
        raise source.error(
            f"{location}: expected a target that is a device of the file, or "
            f"of class 0x068000, got {shown(target)}; correct the target"
        )


def _per_link(source: Source, bus: str, gpu: Element) -> float:
    """Return GB/s of one NVLink of a device."""
    location = f"<gpu> of {bus}: sm"
    capability = source.integer(location, gpu.get("sm"), minimum=1)
    for minimum, speed in NVLINK:
        if capability >= minimum:
            return NVLINK_OF.get(capability, speed)
    raise source.error(
        f"{location}: expected at least {NVLINK[-1][0]} with NVLinks, got "
        f"{capability}; correct the compute capability"
    )


def _add_node(
    source: Source,
    node: _Node,
    nvlinks: _NvLinks,
    graph: nx.Graph,
    name: str,
    network: bool,
) -> list[str]:
    ids = {one: f"{name}/{one}" for one in node.ids()}
    ids.update(
        (bus, f"{name}/gpu{index}") for bus, index in _numbers(source, node).items()
    )
    devices = sorted(
        (ids[bus] for bus in node.devices),
        key=lambda device: int(device.rpartition("gpu")[2]),
    )
    graph.add_nodes_from(devices, kind=DEVICE)
    inner = [*node.processors, *node.bridges]
    if network:
        inner += node.cards
    graph.add_nodes_from((ids[one] for one in inner), kind=SWITCH)
    latency_ns = source.option("pcie_latency_ns")
    for below, above, stated in node.links:
        # Messages take the link between the chips instead.
        is_hidden = below in nvlinks.to_processor and above in node.processors
        if ids[below] in graph and not is_hidden:
            speed = stated or source.option("pcie_bandwidth_bytes_per_s")
            add_link(graph, (ids[below], ids[above]), speed, latency_ns)
    for one, other in map(sorted, node.joined):
        add_link(graph, (ids[one], ids[other]), _LOCAL, latency_ns)
    for ends in combinations(node.processors, 2):
        between = source.option("socket_bandwidth_bytes_per_s")
        add_link(graph, (ids[ends[0]], ids[ends[1]]), between, latency_ns)
    _add_nvlinks(source, graph, node, nvlinks, ids, name)
    if not network:
        return devices
    if not node.cards:
        add_ports(source, graph, Host(name, NETWORK), devices)
    for card, card_speed in node.cards.items():
        speed = card_speed or source.option("port_bandwidth_bytes_per_s")
        latency = source.option("port_latency_ns")
        add_link(graph, (ids[card], NETWORK), speed, latency)
    return devices


def _numbers(source: Source, node: _Node) -> dict[str, int]:
    """Return the number of each device: as in the file, or counted."""
    stated = [None if gpu is None else gpu.get("dev") for gpu in node.devices.values()]
    if None in stated:
        return {bus: index for index, bus in enumerate(node.devices)}
    numbers = {
        bus: source.integer(f"<gpu> of {bus}: dev", dev, minimum=0)
        for bus, dev in zip(node.devices, stated, strict=True)
    }
    if len(set(numbers.values())) < len(numbers):
        raise source.error(
            f"<gpu>: expected every dev once, got {listed(sorted(numbers.values()))}; "
            f"correct the numbers"
        )
    return numbers


def _add_nvlinks(
    source: Source,
    graph: nx.Graph,
    node: _Node,
    nvlinks: _NvLinks,
    ids: dict[str, str],
    name: str,
) -> None:
    to_switch = nvlinks.to_switch
    if len(node.devices) > 1 and not any(
        gpu is not None for gpu in node.devices.values()
    ):
        speed = source.option("node_bandwidth_bytes_per_s")
        to_switch = dict.fromkeys(node.devices, speed)
    if not nvlinks.to_device and not to_switch and not nvlinks.to_processor:
        return
    latency_ns = source.option("node_latency_ns")
    for (bus, target), speed in nvlinks.to_device.items():
        if bus < target:
            add_link(graph, (ids[bus], ids[target]), speed, latency_ns)
    for bus, speed in to_switch.items():
        add_hub(graph, f"{name}/nvswitch", [ids[bus]], speed, latency_ns)
    for bus, speed in nvlinks.to_processor.items():
        add_link(graph, (ids[bus], ids[node.processor_of(bus)]), speed, latency_ns)
