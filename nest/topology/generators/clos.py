"""Networks of switches above single devices: fat tree, leaf and spine."""

from __future__ import annotations

import itertools

import networkx as nx

from nest.topology.generators.build import (
    add_devices,
    add_spines,
    add_switches,
    check_size,
    connect,
    refuse,
    set_units,
    uplinks,
)


def fat_tree(
    k: int,
    port_bytes_per_s: float,
    port_latency_ns: float,
    up_latency_ns: float,
) -> nx.Graph:
    """Return the k-ary fat tree, ``k³/4`` devices behind switches of k ports.

    ``k`` pods of ``k/2`` edge and ``k/2`` aggregation switches each, all
    pairs joined, and ``(k/2)²`` cores; aggregation switch ``a`` of every pod
    leads to cores ``a k/2 .. a k/2 + k/2 - 1`` (Al-Fares et al., SIGCOMM
    2008). All links are equally fast.

    Raises
    ------
    InvalidOptionError
        If k is odd, or the tree too large.
    """
    if k % 2:
        refuse("fat-tree: k", "an even number", k, "half of the ports lead up")
    half = k // 2
    check_size("fat-tree: k", k * half * half, 3 * k * half * half)
    graph = nx.Graph()
    racks: dict[str, str] = {}
    pods: dict[str, str] = {}
    add_switches(graph, (f"core{core}" for core in range(half * half)))
    for pod in range(k):
        edges = [f"pod{pod}.edge{edge}" for edge in range(half)]
        aggregations = [f"pod{pod}.agg{agg}" for agg in range(half)]
        add_switches(graph, edges + aggregations)
        for edge in edges:
            devices = [f"{edge}.dev{device}" for device in range(half)]
            add_devices(graph, devices)
            for device in devices:
                connect(graph, device, edge, port_bytes_per_s, port_latency_ns)
                racks[device], pods[device] = edge, f"pod{pod}"
        for edge, aggregation in itertools.product(edges, aggregations):
            connect(graph, edge, aggregation, port_bytes_per_s, up_latency_ns)
        for number, aggregation in enumerate(aggregations):
            for core in range(number * half, (number + 1) * half):
                connect(
                    graph,
                    aggregation,
                    f"core{core}",
                    port_bytes_per_s,
                    up_latency_ns,
                )
    set_units(graph, [racks, pods])
    return graph


def leaf_spine(
    leaves: int,
    hosts: int,
    spines: int | None,
    oversubscription: float,
    port_bytes_per_s: float,
    port_latency_ns: float,
    up_latency_ns: float,
) -> nx.Graph:
    """Return leaves of ``hosts`` devices each, all joined with all spines.

    The links of a leaf to the spines have together ``1/oversubscription`` of
    the bandwidth of its devices.

    Raises
    ------
    InvalidOptionError
        If oversubscription gives no whole number of spines, or the network
        is too large.
    """
    spines, up_bytes_per_s = uplinks(
        "leaf-spine", hosts, port_bytes_per_s, spines, oversubscription
    )
    check_size("leaf-spine", leaves * hosts, leaves * (hosts + spines))
    graph = nx.Graph()
    names = [f"leaf{leaf}" for leaf in range(leaves)]
    add_switches(graph, names)
    racks: dict[str, str] = {}
    for leaf in names:
        devices = [f"{leaf}.dev{host}" for host in range(hosts)]
        add_devices(graph, devices)
        for device in devices:
            connect(graph, device, leaf, port_bytes_per_s, port_latency_ns)
            racks[device] = leaf
    if leaves > 1:
        add_spines(graph, names, spines, up_bytes_per_s, up_latency_ns)
    set_units(graph, [racks])
    return graph
