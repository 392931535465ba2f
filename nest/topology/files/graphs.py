"""Graphs that say everything: networkx' node-link JSON, and GraphML.

Nodes have a ``kind`` (device or switch) and may say ``forward``; edges have
``bandwidth`` (bytes/s, one way) and ``latency_ns``; the graph may have an
``order`` of its devices, ``units``, ``coord`` with ``wrap``, and a ``name``.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import networkx as nx

from nest.topology.files.assemble import DEVICE, SWITCH, add_link, finish
from nest.topology.files.source import Source, listed, parse_json, parse_xml, shown
from nest.util.files import write_atomically

Edge = tuple[str, Any, Any, Mapping[str, Any]]

_GRAPHML = "{http://graphml.graphdrawing.org/xmlns}"


def read_node_link(source: Source) -> nx.Graph:
    """Read node-link JSON; its links are ``edges`` or ``links``."""
    top = source.mapping("", parse_json(source), None, ("nodes",))
    keys = [key for key in ("edges", "links") if key in top]
    if len(keys) != 1:
        raise source.refuse(
            "", "edges or links", " and ".join(keys) or "neither", "keep one"
        )
    directed = top.get("directed", False)
    if not isinstance(directed, bool):
        raise source.refuse("directed", "true or false", shown(directed))
    nodes = [
        (location, node["id"], node)
        for location, node in source.mappings("nodes", top["nodes"], None, ("id",))
    ]
    edges = [
        (location, edge["source"], edge["target"], edge)
        for location, edge in source.mappings(
            keys[0], top[keys[0]], None, ("source", "target")
        )
    ]
    if top.get("multigraph") is False:
        _check_single(source, directed, edges)
    attributes = source.mapping("graph", top.get("graph") or {})
    return _graph(source, directed, nodes, edges, attributes)


def _check_single(source: Source, directed: bool, edges: Sequence[Edge]) -> None:
    """Refuse a second link between two nodes."""
    seen: set[object] = set()
    for location, start, end, _ in edges:
        ends = (str(start), str(end))
        pair = ends if directed else frozenset(ends)
        if pair in seen:
            raise source.refuse(
                location,
                "one link between two nodes",
                f"a second one from {shown(start)} to {shown(end)}",
                'add up their bandwidths, or say "multigraph": true',
            )
        seen.add(pair)


def read_graphml(source: Source) -> nx.Graph:
    """Read GraphML; lists and maps of the graph are JSON in a string."""
    root = parse_xml(source)
    seen: set[str] = set()
    for node in root.iter(f"{_GRAPHML}node"):
        name = node.get("id", "")
        source.check_once("nodes", "id", name, seen)
        seen.add(name)
    try:
        with warnings.catch_warnings():
            # Of keys without a type: what is needed is checked below.
            warnings.simplefilter("ignore")
            read = nx.parse_graphml(source.text)
    except (nx.NetworkXError, ValueError, KeyError, StopIteration) as error:
        raise source.refuse(
            "", "GraphML", f"malformed text ({shown(str(error))})", "correct the file"
        ) from error
    attributes = {}
    for key, value in read.graph.items():
        if key in ("order", "units", "coord", "wrap"):
            inner = Source(f"{source.where}: {key}", str(value))
            value = parse_json(inner)
        attributes[key] = value
    nodes = [(f"node {name}", name, node) for name, node in read.nodes.items()]
    edges = [
        (f"edge {start} - {end}", start, end, edge)
        for start, end, edge in read.edges(data=True)
    ]
    return _graph(source, read.is_directed(), nodes, edges, attributes)


def write_node_link(path: str | Path, graph: nx.Graph) -> None:
    """Write node-link JSON, which :func:`read_node_link` reads again.

    Raises ``NestError`` if the file cannot be written.
    """
    record = {
        "directed": graph.is_directed(),
        "multigraph": False,
        "graph": dict(graph.graph),
        "nodes": [
            {"id": node, **attributes} for node, attributes in graph.nodes.items()
        ],
        "edges": [
            {"source": start, "target": end, **attributes}
            for start, end, attributes in graph.edges(data=True)
        ],
    }
    text = json.dumps(record, indent=1, allow_nan=False)
    write_atomically(Path(path), f"{text}\n".encode())


def _graph(
    source: Source,
    directed: bool,
    nodes: Iterable[tuple[str, Any, Mapping[str, Any]]],
    edges: Sequence[Edge],
    attributes: Mapping[str, Any],
) -> nx.Graph:
    graph = nx.DiGraph() if directed else nx.Graph()
    for location, value, node in nodes:
        name = source.name(f"{location} id", value)
        source.check_once(location, "id", name, graph, "rename one")
        kind = node.get("kind")
        if kind not in (DEVICE, SWITCH):
            raise source.refuse(
                f"{location} kind",
                f"{DEVICE} or {SWITCH}",
                "none" if kind is None else shown(kind),
                f"say what {name} is",
            )
        graph.add_node(name, kind=kind)
        if "forward" in node:
            if not isinstance(node["forward"], bool):
                raise source.refuse(
                    f"{location} forward", "true or false", shown(node["forward"])
                )
            graph.nodes[name]["forward"] = node["forward"]
    for location, start, end, edge in edges:
        _add(source, graph, location, (start, end), edge)
    if directed:
        graph = _both_ways(source, graph)
    return _finish(source, graph, attributes)


def _add(
    source: Source,
    graph: nx.Graph,
    location: str,
    values: tuple[Any, Any],
    edge: Mapping[str, Any],
) -> None:
    start, end = (source.name(location, value) for value in values)
    for name in (start, end):
        if name not in graph:
            raise source.refuse(
                location, "nodes that the file lists", name, "add it or correct the id"
            )
    if start == end:
        raise source.refuse(location, "two nodes", f"{start} twice", "remove the link")
    for key in ("bandwidth", "latency_ns"):
        if edge.get(key) is None:
            raise source.refuse(
                f"{location} ({start} to {end})", f"{key!r}", "none", "add it"
            )
    bandwidth = source.number(
        f"{location} bandwidth", edge["bandwidth"], positive=True, unit="bytes/s"
    )
    latency_ns = source.number(
        f"{location} latency_ns", edge["latency_ns"], positive=False, unit="ns"
    )
    add_link(graph, (start, end), bandwidth, latency_ns)


def _both_ways(source: Source, graph: nx.DiGraph) -> nx.Graph:
    """Check that links go both ways; undirected if both are alike."""
    for start, end in graph.edges:
        if not graph.has_edge(end, start):
            raise source.error(
                f"edge {start} to {end}: expected one in the other direction too, got "
                f"none; add it, or make the graph undirected"
            )
    if all(
        graph.edges[end, start] == attributes
        for start, end, attributes in graph.edges(data=True)
    ):
        return graph.to_undirected()
    return graph


def _finish(source: Source, graph: nx.Graph, attributes: Mapping[str, Any]) -> nx.Graph:
    devices = [name for name, kind in graph.nodes(data="kind") if kind == DEVICE]
    order = devices
    if attributes.get("order") is not None:
        order = [
            source.name("order", name)
            for name in source.sequence("order", attributes["order"])
        ]
    units = [
        _per_device(source, f"units[{idx}]", unit, devices)
        for idx, unit in enumerate(
            source.sequence("units", attributes.get("units") or [])
        )
    ]
    for idx, unit in enumerate(units):
        for device, value in unit.items():
            unit[device] = source.name(f"units[{idx}] {device}", value)
    name = attributes.get("name")
    coord, wrap = attributes.get("coord"), attributes.get("wrap")
    if (coord is None) != (wrap is None):
        raise source.refuse("", "coord with wrap", "one of them", "give both or none")
    if coord is not None and wrap is not None:
        coord = _per_device(source, "coord", coord, devices)
        wrap = source.sequence("wrap", wrap)
        _check_coord(source, coord, wrap)
    return finish(
        source,
        graph,
        order,
        name=str(name) if name else None,
        units=units,
        coord=coord,
        wrap=wrap,
    )


def _per_device(
    source: Source, location: str, value: Any, devices: Sequence[str]
) -> dict[str, Any]:
    """Return a map from every device."""
    values = dict(source.mapping(location, value))
    missing = [device for device in devices if device not in values]
    if missing:
        raise source.error(
            f"{location}: expected all {len(devices)} devices, got none of "
            f"{listed(missing)}; add them"
        )
    return {device: values[device] for device in devices}


def _check_coord(source: Source, coord: Mapping[str, Any], wrap: Sequence[Any]) -> None:
    if not all(isinstance(flag, bool) for flag in wrap):
        raise source.refuse("wrap", "true or false per axis", shown(wrap))
    for device, location in coord.items():
        if (
            not isinstance(location, list)
            or len(location) != len(wrap)
            or not all(type(one) is int for one in location)
        ):
            raise source.refuse(
                f"coord {device}",
                f"{len(wrap)} integers, one per axis of wrap",
                shown(location),
            )
