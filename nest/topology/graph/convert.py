"""Graphs of networkx, their node-link JSON, and trees, to records and back.

Nodes have ``kind`` (device or switch) and perhaps ``forward``, edges
``bandwidth`` (bytes/s, one way) and ``latency_ns``, the graph perhaps
``order``, ``units``, ``coord`` and ``launch_ns``.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from nest.errors import InvalidProblemError
from nest.ir.cluster import MAX_DEVICES, Hierarchy
from nest.ir.graph_topology import NODE_KINDS, GraphTopology, NetworkLink, NetworkNode
from nest.util.text import count_text


def read_node_link(document: Any, where: str = "graph") -> Any:
    """Return the graph of a node-link document.

    Edges are under ``edges`` or, as older versions of networkx wrote them, ``links``.
    ``where`` is the name of the document in messages.

    The :class:`networkx.Graph` or :class:`networkx.DiGraph` has text ids; parallel
    edges are one, with the sum of their bandwidths and the worst of their latencies.
    Raises ``InvalidProblemError`` if it is no such document, or says something twice.
    """
    import networkx

    table = _table(document, where)
    directed = bool(table.get("directed", False))
    graph = networkx.DiGraph() if directed else networkx.Graph()
    graph.graph.update(_table(table.get("graph", {}), f"{where}.graph"))
    for at, entry in _entries(table, "nodes", where):
        name = _name(entry, "id", at)
        if name in graph:
            raise InvalidProblemError(
                f"{at}: expected distinct ids, got {name!r} twice; rename one"
            )
        graph.add_node(name, **{key: entry[key] for key in entry if key != "id"})
    key = "edges" if "edges" in table else "links"
    for at, entry in _entries(table, key, where):
        ends = [_name(entry, end, at) for end in ("source", "target")]
        for end in ends:
            if end not in graph:
                raise InvalidProblemError(
                    f"{at}: expected ends among the nodes, got {end!r}; add "
                    f"the node or correct the name"
                )
        edge = {
            "bandwidth": _number(entry, "bandwidth", at),
            "latency_ns": _number(entry, "latency_ns", at, 0.0),
        }
        if graph.has_edge(*ends):
            if not table.get("multigraph", False):
                raise InvalidProblemError(
                    f"{at}: expected one link between two nodes, got a "
                    f"second one from {ends[0]!r} to {ends[1]!r}; add up "
                    f'their bandwidths, or say "multigraph": true'
                )
            other = graph.edges[ends]
            edge["bandwidth"] += other["bandwidth"]
            edge["latency_ns"] = max(edge["latency_ns"], other["latency_ns"])
        graph.add_edge(*ends, **edge)
    return graph


def topology_of(graph: Any, where: str = "graph") -> GraphTopology:
    """Return the record of a graph of networkx.

    Raises ``InvalidProblemError`` if something is missing, or no network.
    """
    settings = graph.graph
    links = []
    for source, target, edge in graph.edges(data=True):
        at = f"{where}: link from {source!r} to {target!r}"
        links.append(
            {
                "source": str(source),
                "target": str(target),
                "bandwidth_bytes_per_s": _number(edge, "bandwidth", at),
                "latency_ns": _number(edge, "latency_ns", at, 0.0),
            }
        )
    coordinates = settings.get("coord") or {}
    document = {
        "kind": "graph",
        "nodes": [
            _node(str(name), node, f"{where}: node {str(name)!r}")
            for name, node in graph.nodes(data=True)
        ],
        "links": links,
        "directed": graph.is_directed(),
        "order": [str(name) for name in settings.get("order") or ()],
        "units": [
            {str(name): str(unit) for name, unit in units.items()}
            for units in settings.get("units") or ()
        ],
        "coordinates": {str(name): list(place) for name, place in coordinates.items()},
        "launch_ns": settings.get("launch_ns", 0.0),
    }
    try:
        return msgspec.convert(document, GraphTopology)
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at ")
        place = place.strip("`").removeprefix("$")
        text = text[:1].lower() + text[1:] if place else text
        text += "" if "; " in text else "; correct the value"
        raise InvalidProblemError(f"{where}{place}: {text}") from error


def networkx_of(topology: GraphTopology) -> Any:
    """Return a record as a graph of networkx."""
    import networkx

    graph = networkx.DiGraph() if topology.directed else networkx.Graph()
    graph.graph["order"] = list(topology.ranks)
    if topology.units:
        graph.graph["units"] = [dict(units) for units in topology.units]
    if topology.coordinates:
        graph.graph["coord"] = {
            name: list(position) for name, position in topology.coordinates.items()
        }
    if topology.launch_ns:
        graph.graph["launch_ns"] = topology.launch_ns
    for node in topology.nodes:
        graph.add_node(node.id, kind=node.kind, forward=node.forwards)
    for link in topology.links:
        graph.add_edge(
            link.source,
            link.target,
            bandwidth=link.bandwidth_bytes_per_s,
            latency_ns=link.latency_ns,
        )
    return graph


def graph_of(tree: Hierarchy) -> GraphTopology:
    """Return the wires of a tree whose uplinks are pooled.

    A member of a level (a device, or a unit of the level below) has one link
    to the switch of its unit, as fast as its devices together. Where pairs
    are joined by links of their own it has a switch in front of that one,
    from which as fast a link each leads to those of the others of the unit,
    no longer than the way over the unit's switch. A path that climbs to a
    level has the level's latency. A graph has one launch cost: the largest.
    What small groups lose (``group_fractions``) it does not know.

    Raises ``InvalidProblemError`` if a level has less latency than the one below, or
    its devices together more bandwidth or latency than a link may have.
    """
    count = tree.capacities[-1]
    if count > MAX_DEVICES:
        raise InvalidProblemError(
            f"levels: expected room for at most {MAX_DEVICES} devices in a "
            f"graph, got {count_text(count)}; lower fan_out"
        )
    members = [f"d{i}" for i in range(count)]
    nodes = [NetworkNode(id=name) for name in members]
    links: list[NetworkLink] = []
    below_ns, devices = 0.0, 1

    def join(one: str, other: str, bandwidth: float, ns: float) -> None:
        try:
            link = NetworkLink(
                source=one,
                target=other,
                bandwidth_bytes_per_s=devices * bandwidth,
                latency_ns=ns,
            )
        except ValueError as error:
            raise InvalidProblemError(f"levels[{index}]: as links: {error}") from None
        links.append(link)

    for index, level in enumerate(tree.levels):
        way_ns = level.latency_ns - below_ns
        if way_ns < 0:
            raise InvalidProblemError(
                f"levels[{index}].latency_ns: expected at least that of the level "
                f"below, {below_ns:g}, got {level.latency_ns:g}; raise it"
            )
        port = level.bandwidth_bytes_per_s
        peer = level.peer_bandwidth_bytes_per_s
        units = [
            members[i : i + level.fan_out]
            for i in range(0, len(members), level.fan_out)
        ]
        for unit, inside in enumerate(units):
            switch = f"{index}.{unit}"
            if peer is not None:
                hubs = [f"{switch}.{i}" for i in range(len(inside))]
                nodes += [NetworkNode(id=hub, kind="switch") for hub in hubs]
                for member, hub in zip(inside, hubs, strict=True):
                    join(member, hub, port, 0.0)
                for one, other in itertools.combinations(hubs, 2):
                    join(one, other, peer, way_ns)
                inside = hubs
            nodes.append(NetworkNode(id=switch, kind="switch"))
            for member in inside:
                join(member, switch, port, way_ns / 2)
        members = [f"{index}.{unit}" for unit in range(len(units))]
        below_ns, devices = level.latency_ns, devices * level.fan_out
    return GraphTopology(
        nodes=tuple(nodes),
        links=tuple(links),
        units=tuple(
            {f"d{i}": f"{i // capacity}" for i in range(count)}
            for capacity in tree.capacities[:-1]
        ),
        launch_ns=max(level.launch_ns for level in tree.levels),
    )


def _node(name: str, node: Mapping[str, Any], at: str) -> dict[str, Any]:
    kind = node.get("kind")
    if kind not in NODE_KINDS:
        raise InvalidProblemError(
            f"{at}: expected kind 'device' or 'switch', got "
            f"{'none' if kind is None else repr(kind)}; say which it is"
        )
    forward = node.get("forward")
    if forward not in (None, True, False):
        raise InvalidProblemError(
            f"{at}: expected forward true or false, got {forward!r}; correct the value"
        )
    return {"id": name, "kind": kind, "forward": forward}


def _table(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidProblemError(
            f"{where}: expected an object, got {value!r}; write a graph as "
            f"node-link JSON"
        )
    return value


def _entries(
    table: Mapping[str, Any], key: str, where: str
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    entries = table.get(key)
    if not isinstance(entries, list):
        raise InvalidProblemError(
            f"{where}: expected a list {key!r}, got "
            f"{'none' if entries is None else repr(entries)}; write a graph "
            f"as node-link JSON"
        )
    for index, entry in enumerate(entries):
        at = f"{where}.{key}[{index}]"
        yield at, _table(entry, at)


def _name(entry: Mapping[str, Any], key: str, at: str) -> str:
    name = entry.get(key)
    if not isinstance(name, str | int) or isinstance(name, bool):
        raise InvalidProblemError(
            f"{at}: expected {key!r} to be a text or an integer, got "
            f"{'none' if name is None else repr(name)}; add it"
        )
    return str(name)


def _number(
    entry: Mapping[str, Any], key: str, at: str, default: float | None = None
) -> float:
    value = entry.get(key, default)
    minimum = 0 if default is not None else math.ulp(0)
    if (
        not isinstance(value, int | float)
        or isinstance(value, bool)
        or not minimum <= value <= sys.float_info.max
    ):
        raise InvalidProblemError(
            f"{at}: expected {key!r} to be a finite number "
            f"{'> 0' if default is None else '>= 0'}, got "
            f"{'none' if value is None else repr(value)}; give its "
            f"{'bytes/s' if default is None else 'nanoseconds'}"
        )
    return float(value)
