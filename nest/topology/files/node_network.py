"""Copies of one node behind one switch, for files that describe one node.

How the switches beyond the node are wired such files do not know: one switch
without oversubscription joins the ports of all nodes.
"""

from __future__ import annotations

from collections.abc import Callable

import networkx as nx

from nest.topology.files.assemble import SWITCH, finish, telling
from nest.topology.files.source import Source

NETWORK = "network"


#: Adds the node of that name to a graph, linked to the network if there is one;
#: returns its devices.
AddNode = Callable[[nx.Graph, str, bool], list[str]]


def repeat(source: Source, add_node: AddNode) -> nx.Graph:
    """Return the graph of as many nodes as asked for."""
    count = int(source.option("num_nodes"))
    graph = nx.Graph()
    if count > 1:
        graph.add_node(NETWORK, kind=SWITCH)
    home: dict[str, str] = {}
    for index in range(count):
        name = f"node{index}"
        devices = add_node(graph, name, count > 1)
        home.update(dict.fromkeys(devices, name))
    return finish(source, graph, list(home), units=telling([home]))
