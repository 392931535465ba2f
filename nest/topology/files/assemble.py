"""Put a graph together from links, and check it as a whole.

What is made is what everything that reads or draws a network returns: a
:class:`networkx.Graph` with nodes of ``kind`` device or switch, edges with
``bandwidth`` (bytes/s, one way, full duplex) and ``latency_ns``, and the
device ids in rank order as ``graph["order"]``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations_with_replacement

import networkx as nx

from nest.ir.graph_topology import check_link
from nest.topology.files.source import Source, listed
from nest.topology.routes import forwards

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


def finish(
    source: Source,
    graph: nx.Graph,
    order: Sequence[str],
    *,
    name: str | None = None,
    units: Sequence[Mapping[str, str]] = (),
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
        Partitions of the devices (node, rack, ...), finest first.
    coord, wrap
        Of tori: coordinates per device, and which axes wrap around.

    Raises
    ------
    InvalidProblemError
        If there is no device, the order is not all devices, each once, two
        devices cannot reach each other, or a link is out of range.
    """
    devices = [
        node for node, kind in graph.nodes(data="kind") if kind == DEVICE
    ]
    if not devices:
        raise source.refuse("", "devices", "none", "add some")
    check_order(source, devices, order)
    _check_reach(source, graph, devices)
    _check_links(source, graph)
    graph.graph["order"] = list(order)
    if name is not None:
        graph.graph["name"] = name
    if units:
        graph.graph["units"] = [dict(unit) for unit in units]
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


def _check_links(source: Source, graph: nx.Graph) -> None:
    """Refuse a link that no problem may have, parallel ones added up."""
    for start, end, kept in graph.edges(data=True):
        try:
            check_link(kept["bandwidth"], kept["latency_ns"])
        except ValueError as error:
            place, _, text = str(error).partition(": expected ")
            expected, _, rest = text.partition(", got ")
            got, _, remedy = rest.partition("; ")
            raise source.refuse(
                f"link from {start} to {end}: {place}",
                expected,
                got,
                remedy or "check its unit",
            ) from None


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


def telling(units: Sequence[Mapping[str, str]]) -> list[Mapping[str, str]]:
    """Return the partitions that say something, finest first.

    Left out are those that do not consist of whole units of the one before,
    that say the same, or that say that all are in one. The first one stays if
    its names are others than those of the devices: launchers need them.
    """
    kept: list[Mapping[str, str]] = []
    for idx, coarser in enumerate(units):
        finer = kept[-1] if kept else {device: device for device in coarser}
        num_finer = len(set(finer.values()))
        num_coarser = len(set(coarser.values()))
        if num_coarser == num_finer:
            tells = idx == 0 and finer != coarser
        else:
            tells = whole(finer, coarser) and (num_coarser > 1 or not kept)
        if tells:
            kept.append(coarser)
    return kept


def whole(finer: Mapping[str, str], coarser: Mapping[str, str]) -> bool:
    """Return whether each unit of a partition is within one of another."""
    joint = {(finer[device], coarser[device]) for device in finer}
    return len(joint) == len(set(finer.values()))
