"""Networks of switches above single devices: fat tree, leaf and spine."""

from __future__ import annotations

import itertools

import networkx as nx

from nest.topology.generators.build import Cable, Spines, Wiring, refuse


def fat_tree(k: int, port: Cable, up_latency_ns: float) -> nx.Graph:
    """Return the k-ary fat tree, ``k³/4`` devices behind switches of k ports.

    ``k`` pods of ``k/2`` edge and ``k/2`` aggregation switches each, all pairs joined,
    and ``(k/2)²`` cores; aggregation switch ``a`` of every pod leads to cores ``a k/2
    .. a k/2 + k/2 - 1`` (Al-Fares et al., SIGCOMM 2008). All links are equally fast.
    """
    if k % 2:
        refuse("fat-tree: k", "an even number", k, "half of the ports lead up")
    half = k // 2
    network = Wiring("fat-tree: k", k * half * half, 3 * k * half * half)
    up = Cable(port.bytes_per_s, up_latency_ns)
    cores = network.add_switches(f"core{core}" for core in range(half * half))
    for pod in range(k):
        edges, aggregations = (
            network.add_switches(f"pod{pod}.{kind}{switch}" for switch in range(half))
            for kind in ("edge", "agg")
        )
        for edge in edges:
            devices = (f"{edge}.dev{device}" for device in range(half))
            members = network.add_devices(devices, edge, f"pod{pod}")
            network.connect_all(members, edge, port)
        for edge, aggregation in itertools.product(edges, aggregations):
            network.connect(edge, aggregation, up)
        for idx, aggregation in enumerate(aggregations):
            for core in cores[idx * half : (idx + 1) * half]:
                network.connect(aggregation, core, up)
    return network.finished()


def leaf_spine(leaves: int, hosts: int, port: Cable, up: Spines) -> nx.Graph:
    """Return leaves of ``hosts`` devices each, all joined with all spines.

    The links of a leaf to the spines have together ``1/oversubscription`` of
    the bandwidth of its devices.
    """
    spines, uplink = up.links("leaf-spine", hosts, port)
    network = Wiring("leaf-spine", leaves * hosts, leaves * (hosts + spines))
    names = network.add_switches(f"leaf{leaf}" for leaf in range(leaves))
    for leaf in names:
        devices = (f"{leaf}.dev{host}" for host in range(hosts))
        network.connect_all(network.add_devices(devices, leaf), leaf, port)
    network.add_spines(names, spines, uplink)
    return network.finished()
