"""Put a graph together from links, and check it as a whole.

What is made is what everything that reads or draws a network returns: a
:class:`networkx.Graph` with nodes of ``kind`` device or switch, edges with
``bandwidth`` (bytes/s, one way, full duplex) and ``latency_ns``, and the
device ids in rank order as ``graph["order"]``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations_with_replacement
from typing import Any

import networkx as nx

from nest.topology.files.source import Source, listed

DEVICE = "device"
SWITCH = "switch"


def add_link(
    graph: nx.Graph,
    ends: tuple[str, str],
    bandwidth: float,
    latency_ns: float,
) -> None:
    """Add a link; parallel ones add up, and the worse latency counts."""
    source, target = ends
    if graph.has_edge(source, target):
        edge = graph.edges[source, target]
        bandwidth += edge["bandwidth"]
        latency_ns = max(latency_ns, edge["latency_ns"])
    graph.add_edge(source, target, bandwidth=bandwidth, latency_ns=latency_ns)


def forwards(attributes: Mapping[str, Any]) -> bool:
    """Return whether messages may pass through a node with these."""
    return bool(attributes.get("forward", attributes["kind"] == SWITCH))


def finish(
    source: Source,
    graph: nx.Graph,
    order: Sequence[str],
    *,
    name: str | None = None,
    units: Iterable[Mapping[str, str]] = (),
    coord: Mapping[str, Sequence[int]] | None = None,
    wrap: Sequence[bool] | None = None,
) -> nx.Graph:
    """Check the graph, and write down what is known of all its devices.

    Parameters
    ----------
    source
        Where it comes from, for messages.
    graph
        All nodes and links; changed in place.
    order
        The devices by rank.
    name
        Of the network.
    units
        Partitions of the devices (node, rack, ...), finest first. One that
        does not consist of whole units of the one before is left out, as is
        one that says no more.
    coord, wrap
        Of tori: coordinates per device, and which axes wrap around.

    Raises
    ------
    InvalidProblemError
        If there is no device, the order is not all devices, each once, or two
        devices cannot reach each other.
    """
    devices = [
        node for node, kind in graph.nodes(data="kind") if kind == DEVICE
    ]
    if not devices:
        raise source.refuse("", "devices", "none", "add some")
    check_order(source, devices, order)
    _check_reach(source, graph, devices)
    graph.graph["order"] = list(order)
    if name is not None:
        graph.graph["name"] = name
    kept = _partitions(units, devices)
    if kept:
        graph.graph["units"] = kept
    if coord is not None and wrap is not None:
        graph.graph["coord"] = {node: list(coord[node]) for node in order}
        graph.graph["wrap"] = list(wrap)
    return graph


def check_order(
    source: Source, devices: Sequence[str], order: Sequence[str]
) -> None:
    """Refuse an order that is not all devices, each once.

    Raises
    ------
    InvalidProblemError
        If one is missing, unknown, or in it twice.
    """
    seen: set[str] = set()
    known = set(devices)
    for device in order:
        if device not in known:
            raise source.refuse(
                "order", "devices of the graph", device, "correct the order"
            )
        if device in seen:
            raise source.refuse(
                "order", "every device once", f"{device} twice", "remove one"
            )
        seen.add(device)
    missing = [device for device in devices if device not in seen]
    if missing:
        raise source.refuse(
            "order",
            f"all {len(devices)} devices",
            f"none of {listed(missing)}",
            "add them",
        )


def _check_reach(
    source: Source, graph: nx.Graph, devices: Sequence[str]
) -> None:
    """Refuse two devices without a path through what forwards.

    Whatever forwards falls into connected components; two devices reach each
    other if both touch the same one, or are linked.
    """
    both_ways = graph.to_undirected(as_view=True)
    through = both_ways.subgraph(
        node for node, kept in graph.nodes(data=True) if forwards(kept)
    )
    component = {
        node: number
        for number, nodes in enumerate(nx.connected_components(through))
        for node in nodes
    }
    alike: dict[frozenset[int], list[str]] = {}
    for device in devices:
        near = [device] if device in component else both_ways[device]
        touched = frozenset(
            component[node] for node in near if node in component
        )
        alike.setdefault(touched, []).append(device)
    if frozenset.intersection(*alike):
        return
    for first, second in combinations_with_replacement(alike, 2):
        if first & second:
            continue
        for device in alike[first]:
            lost = [
                other
                for other in alike[second]
                if other != device and not both_ways.has_edge(device, other)
            ]
            if lost:
                raise source.refuse(
                    "",
                    "a path between any two devices",
                    f"none between {device} and {listed(lost)}",
                    "add the missing links",
                )


def _partitions(
    units: Iterable[Mapping[str, str]], devices: Sequence[str]
) -> list[dict[str, str]]:
    kept: list[dict[str, str]] = []
    finer: dict[str, str] = {device: device for device in devices}
    for partition in units:
        coarser = {device: partition[device] for device in devices}
        joint = {(finer[device], coarser[device]) for device in devices}
        num_finer = len(set(finer.values()))
        if len(joint) > num_finer or len(set(coarser.values())) == num_finer:
            continue
        kept.append(coarser)
        finer = coarser
    return kept
