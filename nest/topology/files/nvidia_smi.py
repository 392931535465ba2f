"""The matrix that ``nvidia-smi topo -m`` prints.

Codes: NV<k> are k bonded NVLinks; PIX and PXB pass PCIe switches only, PHB
and NODE stay on one processor, SYS crosses to another one. The matrix has no
speeds, and shows an NVSwitch as the same NV<k> between all pairs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial
from itertools import combinations
from typing import NamedTuple

import networkx as nx

from nest.topology.files.assemble import DEVICE, SWITCH, add_hub, add_link
from nest.topology.files.hosts import PORT, Host, add_ports
from nest.topology.files.node_network import NETWORK, repeat
from nest.topology.files.source import Source, listed

#: How far two devices are from each other without NVLink, closest first.
DISTANCE = {
    "PIX": 0,
    "PXB": 1,
    "PHB": 2,
    "NODE": 3,
    "SYS": 4,
    "SOC": 4,  # older drivers
}
_SAME_SWITCH = DISTANCE["PXB"]
_SAME_SOCKET = DISTANCE["NODE"]

#: No device has more NVLinks (H100 and B200 have 18).
MAX_NVLINKS = 18

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_GPU = re.compile(r"GPU\d+")
_CODE = re.compile(r"X|NV[1-9]\d?|" + "|".join(DISTANCE))

Matrix = dict[tuple[str, str], str]


class Node(NamedTuple):
    """What the matrix says.

    Devices, network cards, the codes of all pairs, and the processors near a
    device, if there is such a column.
    """

    devices: list[str]
    nics: list[str]
    codes: Matrix
    affinity: dict[str, str]

    def nvlinks(self, device: str, other: str) -> int:
        """Return the NVLinks between two devices, as the matrix has them."""
        code = self.codes[device, other]
        return int(code[2:]) if code.startswith("NV") else 0

    def distance(self, device: str, other: str) -> int:
        """Return how far two are from each other over PCIe."""
        return DISTANCE.get(self.codes[device, other], 0)


def read(source: Source) -> nx.Graph:
    """Read the matrix of one node.

    A device is linked to the network cards that are closest to it; further cards (of
    storage) are left out. Options state the number of nodes; the speed of an NVLink and
    of a port, where there are any; that of PCIe and between processors, for devices
    that NVLink does not join; the ports, if the matrix has no network cards.
    """
    node = _matrix(source)
    switched = _is_switched(source, node)
    return repeat(source, partial(_add_node, source, node, switched))


def _add_node(
    source: Source,
    node: Node,
    switched: bool,
    graph: nx.Graph,
    name: str,
    network: bool,
) -> list[str]:
    ids = {device: f"{name}/{device.lower()}" for device in node.devices}
    devices = list(ids.values())
    graph.add_nodes_from(devices, kind=DEVICE)
    _add_nvlinks(source, graph, node, ids, f"{name}/nvswitch", switched)
    pairs = list(combinations(node.devices, 2))
    if not all(node.nvlinks(*pair) for pair in pairs):
        _add_pcie(source, graph, node, ids, name)
    if not network:
        return devices
    if not node.nics:
        add_ports(source, graph, Host(name, NETWORK), devices)
        return devices
    bandwidth, latency_ns = source.option(*PORT)
    for device in node.devices:
        closest = min(node.distance(device, nic) for nic in node.nics)
        for nic in node.nics:
            if node.distance(device, nic) == closest:
                port = f"{name}/{nic.lower()}"
                if port not in graph:
                    graph.add_node(port, kind=SWITCH)
                    add_link(graph, (port, NETWORK), bandwidth, 0.0)
                # A card is as far as the network: no short cut inside.
                add_link(graph, (ids[device], port), bandwidth, latency_ns)
    return devices


def _add_nvlinks(
    source: Source,
    graph: nx.Graph,
    node: Node,
    ids: dict[str, str],
    hub: str,
    switched: bool,
) -> None:
    links = {
        pair: node.nvlinks(*pair)
        for pair in combinations(node.devices, 2)
        if node.nvlinks(*pair)
    }
    if not links:
        return
    bandwidth, latency_ns = source.option(
        "nvlink_bandwidth_bytes_per_s", "node_latency_ns"
    )
    if not switched:
        for (device, other), count in links.items():
            ends = (ids[device], ids[other])
            add_link(graph, ends, count * bandwidth, latency_ns)
        return
    count = next(iter(links.values()))
    add_hub(graph, hub, ids.values(), count * bandwidth, latency_ns)


def _is_switched(source: Source, node: Node) -> bool:
    """Return whether NVLinks go to switches, not from device to device.

    A row adds up to the NVLinks of a device in a mesh, and to more behind a
    switch. Between two devices both are the same wires.
    """
    rows = {
        device: sum(
            node.nvlinks(device, other) for other in node.devices if other != device
        )
        for device in node.devices
    }
    counts = {node.nvlinks(*pair) for pair in combinations(node.devices, 2)}
    longest = max(rows.values())
    stated = source.supplement.nvlinks_per_device
    uniform = len(counts) == 1 and longest > 0 and len(node.devices) > 2
    if not uniform:
        limit = stated or MAX_NVLINKS
        if longest > limit:
            device = max(rows, key=rows.__getitem__)
            raise source.error(
                f"{device}: expected a row of at most {limit} NVLinks, or the same "
                f"between all, got {longest}; correct the matrix"
            )
        return False
    if stated is None and longest > MAX_NVLINKS:
        return True
    limit = int(source.option("nvlinks_per_device"))
    if max(counts) > limit:
        raise source.error(
            f"{node.devices[0]}: expected at most nvlinks_per_device = {limit} NVLinks "
            f"to one other, got {max(counts)}; correct one of them"
        )
    return longest > limit


def _add_pcie(
    source: Source, graph: nx.Graph, node: Node, ids: dict[str, str], name: str
) -> None:
    """Add the PCIe tree that the codes between the devices tell."""
    bandwidth, latency_ns = source.option(
        "pcie_bandwidth_bytes_per_s", "pcie_latency_ns"
    )
    sockets = _joined(node, _SAME_SOCKET)
    switches = _joined(node, _SAME_SWITCH)
    roots = []
    for index, members in enumerate(sockets):
        root = f"{name}/cpu{index}"
        graph.add_node(root, kind=SWITCH)
        roots.append(root)
        for idx, group in enumerate(switches):
            if not group <= members:
                continue
            above = root
            if len(group) > 1:
                above = f"{name}/pcie{idx}"
                add_hub(graph, above, [root], bandwidth, latency_ns)
            inside = [ids[x] for x in sorted(group, key=node.devices.index)]
            add_hub(graph, above, inside, bandwidth, latency_ns)
    if len(roots) > 1:
        between = source.option("socket_bandwidth_bytes_per_s")
        for ends in combinations(roots, 2):
            add_link(graph, ends, between, latency_ns)


def _joined(node: Node, max_distance: int) -> list[set[str]]:
    """Return the devices that PCIe joins within a distance.

    Where NVLink hides the code of a pair, network cards that are close to
    both tell, or the same affinity that they are on one processor.
    """
    near = nx.Graph()
    near.add_nodes_from(node.devices)
    for pair in combinations([*node.devices, *node.nics], 2):
        if not node.codes[pair].startswith("NV"):
            joined = node.distance(*pair) <= max_distance
        else:
            one, other = (node.affinity.get(name) for name in pair)
            same_socket = one is not None and one == other
            joined = same_socket and max_distance >= _SAME_SOCKET
        if joined:
            near.add_edge(*pair)
    groups = [
        {name for name in group if name in node.devices}
        for group in nx.connected_components(near)
    ]
    return sorted(
        (group for group in groups if group),
        key=lambda group: min(map(node.devices.index, group)),
    )


def _matrix(source: Source) -> Node:
    lines = [
        (f"line {line_number}", _ANSI.sub("", line).split())
        for line_number, line in enumerate(source.text.splitlines(), start=1)
    ]
    start = next(
        (
            idx
            for idx, (_, tokens) in enumerate(lines)
            if tokens and _GPU.fullmatch(tokens[0]) and "X" not in tokens
        ),
        None,
    )
    if start is None:
        raise source.error(
            "expected a header that begins with GPU0, got none; give all that "
            "nvidia-smi topo -m prints"
        )
    names = _columns(lines[start][1])
    has_affinity = "Affinity" in lines[start][1]
    affinity: dict[str, str] = {}
    codes: Matrix = {}
    rows: list[str] = []
    for location, tokens in lines[start + 1 :]:
        if not tokens or tokens[0] not in names:
            continue
        row = tokens[0]
        source.check_once(location, "row", row, rows, "keep one matrix")
        rows.append(row)
        row_codes = tokens[1 : 1 + len(names)]
        for other, code in zip(names, row_codes, strict=False):
            if not _CODE.fullmatch(code):
                raise source.error(
                    f"{location}: {row} to {other}: expected X, NV<k>, "
                    f"{', '.join(DISTANCE)}, got {code}; correct the code"
                )
            codes[row, other] = code
        if len(row_codes) < len(names):
            raise source.error(
                f"{location}: {row}: expected {len(names)} codes, as the header has "
                f"names, got {len(row_codes)}; give the whole matrix"
            )
        if has_affinity and len(tokens) > len(names) + 1:
            affinity[row] = tokens[len(names) + 1]
    missing = [name for name in names if name not in rows]
    if missing:
        raise source.error(
            f"expected a row for each of the {len(names)} columns, got none for "
            f"{listed(missing)}; give the whole matrix"
        )
    _check_symmetric(source, names, codes)
    devices = [name for name in names if _GPU.fullmatch(name)]
    nics = [name for name in names if name not in devices]
    return Node(devices, nics, codes, affinity)


def _columns(tokens: Iterable[str]) -> list[str]:
    """Return the names in a header, up to the columns about processors."""
    names: list[str] = []
    for token in tokens:
        if token in ("CPU", "NUMA", "GPU"):
            break
        names.append(token)
    return names


def _check_symmetric(source: Source, names: list[str], codes: Matrix) -> None:
    for idx, name in enumerate(names):
        source.check_once("header", "name", name, names[:idx])
    for one in names:
        if codes[one, one] != "X":
            raise source.refuse(
                f"{one} to {one}", "X", codes[one, one], "correct the matrix"
            )
    for one, other in combinations(names, 2):
        if codes[one, other] != codes[other, one] or codes[one, other] == "X":
            raise source.error(
                f"{one} to {other}: expected the code of {other} to {one}, "
                f"{codes[other, one]}, got {codes[one, other]}; correct one of them"
            )
