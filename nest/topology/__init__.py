"""Networks: the time of a transfer and of a collective, α–β models.

One module per kind of network. A new one is a module here, its record in
:mod:`nest.ir.cluster` and a line in :data:`NETWORKS`.
"""

from __future__ import annotations

from collections.abc import Callable

from nest.ir.cluster import Hierarchy, Topology
from nest.ir.graph_topology import GraphTopology
from nest.topology.hierarchy import HierarchyNetwork
from nest.topology.protocol import Block, Link, Network, ParallelGroups, Route

__all__ = [
    "NETWORKS",
    "Block",
    "HierarchyNetwork",
    "Link",
    "Network",
    "ParallelGroups",
    "Route",
    "network_of",
]


def _graph_network(topology: GraphTopology) -> Network:
    from nest.topology.graph import GraphNetwork  # loads NumPy

    return GraphNetwork(topology)


#: What makes the network of a topology, by the topology's kind.
NETWORKS: dict[str, Callable[..., Network]] = {
    Hierarchy.kind: HierarchyNetwork,
    GraphTopology.kind: _graph_network,
}


def network_of(topology: Topology) -> Network:
    """Return the network that a cluster's topology describes."""
    return NETWORKS[topology.kind](topology)
