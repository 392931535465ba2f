"""Networks of switches above single devices: fat tree, leaf and spine."""

from __future__ import annotations

import itertools

import networkx as nx

from nest.topology.generators.build import (
    Cable,
    Spines,
    add_devices,
    add_spines,
    add_switches,
    check_size,
    connect,
    connect_all,
    refuse,
    set_units,
)


def fat_tree(k: int, port: Cable, up_latency_ns: float) -> nx.Graph:
    """Return the k-ary fat tree, ``k³/4`` devices behind switches of k ports.

    ``k`` pods of ``k/2`` edge and ``k/2`` aggregation switches each, all pairs joined,
    and ``(k/2)²`` cores; aggregation switch ``a`` of every pod leads to cores ``a k/2
    .. a k/2 + k/2 - 1`` (Al-Fares et al., SIGCOMM 2008). All links are equally fast.
    """
    if k % 2:
        refuse("fat-tree: k", "an even number", k, "half of the ports lead up")
    half = k // 2
    check_size("fat-tree: k", k * half * half, 3 * k * half * half)
    up = Cable(port.bytes_per_s, up_latency_ns)
    graph = nx.Graph()
    racks: dict[str, str] = {}
    pods: dict[str, str] = {}
    cores = [f"core{core}" for core in range(half * half)]
    add_switches(graph, cores)
    for pod in range(k):
        edges = [f"pod{pod}.edge{edge}" for edge in range(half)]
        aggregations = [f"pod{pod}.agg{agg}" for agg in range(half)]
        add_switches(graph, edges + aggregations)
        for edge in edges:
            devices = [f"{edge}.dev{device}" for device in range(half)]
            add_devices(graph, devices)
            connect_all(graph, devices, edge, port)
            racks |= dict.fromkeys(devices, edge)
            pods |= dict.fromkeys(devices, f"pod{pod}")
        for edge, aggregation in itertools.product(edges, aggregations):
            connect(graph, edge, aggregation, up)
        for idx, aggregation in enumerate(aggregations):
            for core in cores[idx * half : (idx + 1) * half]:
                connect(graph, aggregation, core, up)
    set_units(graph, [racks, pods])
    return graph


def leaf_spine(leaves: int, hosts: int, port: Cable, up: Spines) -> nx.Graph:
    """Return leaves of ``hosts`` devices each, all joined with all spines.

    The links of a leaf to the spines have together ``1/oversubscription`` of
    the bandwidth of its devices.
    """
    spines, uplink = up.links("leaf-spine", hosts, port)
    check_size("leaf-spine", leaves * hosts, leaves * (hosts + spines))
    graph = nx.Graph()
    names = [f"leaf{leaf}" for leaf in range(leaves)]
    add_switches(graph, names)
    racks: dict[str, str] = {}
    for leaf in names:
        devices = [f"{leaf}.dev{host}" for host in range(hosts)]
        add_devices(graph, devices)
        connect_all(graph, devices, leaf, port)
        racks |= dict.fromkeys(devices, leaf)
    add_spines(graph, names, spines, uplink)
    set_units(graph, [racks])
    return graph
