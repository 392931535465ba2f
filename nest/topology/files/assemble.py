"""Put a graph together from links, and check it as a whole.

What is made is what everything that reads or draws a network returns: a
:class:`networkx.Graph` with nodes of ``kind`` device or switch, edges with
``bandwidth`` (bytes/s, one way, full duplex) and ``latency_ns``, and the
device ids in rank order as ``graph["order"]``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations_with_replacement

import networkx as nx

from nest.errors import InvalidProblemError
from nest.ir.graph_topology import check_link
from nest.topology import routes
from nest.topology.files.source import Source, listed

DEVICE = "device"
SWITCH = "switch"


def add_link(
    graph: nx.Graph, ends: tuple[str, str], bandwidth: float, latency_ns: float
) -> None:
    """Add a link; parallel ones add up, and the worse latency counts."""
    source, target = ends
    if graph.has_edge(source, target):
        edge = graph.edges[source, target]
        bandwidth += edge["bandwidth"]
        latency_ns = max(latency_ns, edge["latency_ns"])
    graph.add_edge(source, target, bandwidth=bandwidth, latency_ns=latency_ns)


def add_hub(
    graph: nx.Graph,
    hub: str,
    members: Iterable[str],
    bandwidth: float,
    latency_ns: float,
) -> None:
    """Add a switch, and equal links from it to all members."""
    graph.add_node(hub, kind=SWITCH)
    for member in members:
        add_link(graph, (member, hub), bandwidth, latency_ns)


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
    try:
        routes.check_order(devices, order)
    except InvalidProblemError as error:
        raise source.error(error) from None


def _check_links(source: Source, graph: nx.Graph) -> None:
    """Refuse a link that no problem may have, parallel ones added up."""
    for start, end, edge in graph.edges(data=True):
        try:
            check_link(edge["bandwidth"], edge["latency_ns"])
        except ValueError as error:
            remedy = "" if "; " in str(error) else "; check its unit"
            raise source.error(
                f"link from {start} to {end}: {error}{remedy}"
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
        node
        for node, attributes in graph.nodes(data=True)
        if routes.forwards(attributes)
    )
    component = {
        node: index
        for index, nodes in enumerate(nx.connected_components(through))
        for node in nodes
    }
    devices_by_touched: dict[frozenset[int], list[str]] = {}
    for device in devices:
        near = [device] if device in component else both_ways[device]
        touched = frozenset(
            component[node] for node in near if node in component
        )
        devices_by_touched.setdefault(touched, []).append(device)
    if frozenset.intersection(*devices_by_touched):
        return
    for first, second in combinations_with_replacement(devices_by_touched, 2):
        if first & second:
            continue
        for device in devices_by_touched[first]:
            lost = [
                other
                for other in devices_by_touched[second]
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
    partitions: list[Mapping[str, str]] = []
    for idx, coarser in enumerate(units):
        finer = partitions[-1] if partitions else {x: x for x in coarser}
        num_finer = len(set(finer.values()))
        num_coarser = len(set(coarser.values()))
        if num_coarser == num_finer:
            tells = idx == 0 and finer != coarser
        else:
            several = num_coarser > 1 or not partitions
            tells = several and whole(finer, coarser)
        if tells:
            partitions.append(coarser)
    return partitions


def whole(finer: Mapping[str, str], coarser: Mapping[str, str]) -> bool:
    """Return whether each unit of a partition is within one of another."""
    joint = {(finer[device], coarser[device]) for device in finer}
    return len(joint) == len(set(finer.values()))
