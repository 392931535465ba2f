"""Topology files of SimAI (its ns-3 backend).

Line 1 counts nodes, devices per server, NV switches, other switches and links, and
names the device; line 2 lists all switches; then one line per link. Form after
``inputs/topo/gen_Topo_Template.py`` of SimAI (commit cef83f9). No option completes it.
"""

from __future__ import annotations

import re

import networkx as nx

from nest.topology.files.assemble import DEVICE, SWITCH, add_link, finish, telling
from nest.topology.files.source import Source, shown

#: Bits per second and nanoseconds of a unit.
_RATES = {"bps": 1.0, "Kbps": 1e3, "Mbps": 1e6, "Gbps": 1e9, "Tbps": 1e12}
_TIMES = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
#: The counts of line 1, and the least of each.
_COUNTS = {
    "nodes": 1,
    "devices per server": 1,
    "NV switches": 0,
    "other switches": 0,
    "links": 0,
}
_QUANTITY = re.compile(r"(.*?)([A-Za-z]+)")


def read(source: Source) -> nx.Graph:
    """Read a topology of SimAI."""
    lines = [
        (f"line {line_number}", line.split())
        for line_number, line in enumerate(source.text.splitlines(), start=1)
        if line.strip()
    ]
    location, tokens = lines[0]
    if len(tokens) != len(_COUNTS) + 1:
        raise source.error(
            f"{location}: expected {', '.join(_COUNTS)} and a device, got "
            f"{shown(' '.join(tokens))}; correct the line"
        )
    num_nodes, per_server, num_nv, num_other, num_links = (
        source.integer(f"{location}: {what}", token, minimum=minimum)
        for (what, minimum), token in zip(_COUNTS.items(), tokens, strict=False)
    )
    switches = _switches(source, lines, num_nodes, num_nv + num_other, num_nv)
    links = lines[1 + bool(switches) :]
    if len(links) != num_links:
        raise source.error(
            f"{location}: expected {num_links} links, as it says, got {len(links)}; "
            f"check that the file is complete"
        )
    if num_nodes > num_links + 1:
        raise source.error(
            f"{location}: expected at most the {num_links + 1} nodes that {num_links} "
            f"links join, got {num_nodes}; correct the counts"
        )
    devices = [name for name in map(str, range(num_nodes)) if name not in switches]
    if len(devices) % per_server:
        raise source.error(
            f"{location}: expected devices in whole servers of {per_server}, got "
            f"{len(devices)}; correct the counts"
        )
    graph = nx.Graph()
    graph.add_nodes_from(devices, kind=DEVICE)
    graph.add_nodes_from(switches, kind=SWITCH)
    for location, tokens in links:
        _add(source, graph, location, tokens)
    servers = {
        device: f"server{idx // per_server}" for idx, device in enumerate(devices)
    }
    return finish(source, graph, devices, units=telling([servers]))


def _switches(
    source: Source,
    lines: list[tuple[str, list[str]]],
    num_nodes: int,
    count: int,
    num_nv: int,
) -> dict[str, None]:
    """Return the switches of line 2; there is no such line without any."""
    if count == 0:
        return {}
    location, tokens = lines[1] if len(lines) > 1 else ("line 2", [])
    if len(tokens) != count:
        raise source.error(
            f"{location}: expected {count} switches ({num_nv} of NVLink), as line 1 "
            f"says, got {len(tokens)}; check that the file is complete"
        )
    switches: dict[str, None] = {}
    for token in tokens:
        switch = source.integer(f"{location}: switch", token, minimum=0)
        if switch >= num_nodes:
            raise source.refuse(location, f"switches below {num_nodes} nodes", switch)
        source.check_once(location, "switch", str(switch), switches)
        switches[str(switch)] = None
    return switches


def _add(source: Source, graph: nx.Graph, location: str, tokens: list[str]) -> None:
    if len(tokens) != 5:
        raise source.error(
            f"{location}: expected source, target, bandwidth, latency and error rate, "
            f"got {shown(' '.join(tokens))}; correct the line"
        )
    ends = []
    for token in tokens[:2]:
        node = str(source.integer(f"{location}: node", token, minimum=0))
        if node not in graph:
            raise source.error(
                f"{location}: expected nodes below {graph.number_of_nodes()}, got "
                f"{node}; correct the link"
            )
        ends.append(node)
    if ends[0] == ends[1]:
        raise source.refuse(
            location, "two nodes", f"{ends[0]} twice", "correct the link"
        )
    rate = _quantity(source, f"{location}: bandwidth", tokens[2], _RATES, True)
    time = _quantity(source, f"{location}: latency", tokens[3], _TIMES, False)
    loss = source.number(
        f"{location}: error rate", tokens[4], positive=False, unit="a share"
    )
    if loss:
        raise source.error(
            f"{location}: error rate: expected 0, as lost packets have no price here, "
            f"got {tokens[4]}; set it to 0"
        )
    add_link(graph, (ends[0], ends[1]), rate / 8, time)


def _quantity(
    source: Source, location: str, token: str, units: dict[str, float], positive: bool
) -> float:
    # Longer ones are none, and would be looked through again and again.
    match = _QUANTITY.fullmatch(token) if len(token) < 100 else None
    if match is None or match[2] not in units:
        raise source.refuse(
            location, f"a number with {' or '.join(units)}", shown(token)
        )
    value = source.number(location, match[1] or token, positive=positive, unit=match[2])
    return value * units[match[2]]
