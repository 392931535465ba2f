"""Put a graph together from links, and check it as a whole.

What is made is what everything that reads or draws a network returns: a
:class:`networkx.Graph` with nodes of ``kind`` device or switch, edges with
``bandwidth`` (bytes/s, one way, full duplex) and ``latency_ns``, and the
device ids in rank order as ``graph["order"]``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import networkx as nx

from nest.errors import InvalidProblemError
from nest.ir.graph_topology import check_link
from nest.topology import routes
from nest.topology.files.source import Source
from nest.topology.graph.convert import topology_of

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

    Changes ``graph``. ``order`` has the devices by rank, ``units`` partitions of them
    (node, rack, ...), finest first; ``coord`` and ``wrap`` are those of a torus.

    Raises ``InvalidProblemError`` if a link is out of range, or the graph is no
    network, see :class:`~nest.ir.graph_topology.GraphTopology`.
    """
    _check_links(source, graph)
    graph.graph["order"] = list(order)
    if name is not None:
        graph.graph["name"] = name
    if units:
        graph.graph["units"] = [dict(unit) for unit in units]
    if coord is not None and wrap is not None:
        graph.graph["coord"] = {node: list(coord[node]) for node in order}
        graph.graph["wrap"] = list(wrap)
    topology_of(graph, source.where)
    return graph


def check_order(source: Source, devices: Sequence[str], order: Sequence[str]) -> None:
    """Refuse an order that is not all devices, each once.

    Raises ``InvalidProblemError`` if one is missing, unknown, or in it twice.
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
            raise source.error(f"link from {start} to {end}: {error}{remedy}") from None


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
