"""Networks without leaves and spines: dragonfly, ring, all pairs."""

from __future__ import annotations

import itertools

import networkx as nx

from nest.topology.generators.build import (
    Cable,
    add_devices,
    add_switches,
    check_size,
    connect,
    connect_all,
    refuse,
    set_units,
)


def dragonfly(
    p: int,
    a: int,
    h: int,
    g: int | None,
    port: Cable,
    local_link: Cable,
    global_link: Cable,
) -> nx.Graph:
    """Return the dragonfly of ``a p g`` devices.

    ``g`` groups of ``a`` routers, all pairs of a group joined, ``p`` devices
    and ``h`` global links at a router (Kim et al., ISCA 2008). Global link
    ``k`` of group ``i`` is at router ``k // h`` and leads to group ``k`` if
    ``k < i``, else ``k + 1``: one link between any two groups. Without ``g``
    there are ``a h + 1`` groups, and every global link is used.
    """
    max_groups = a * h + 1
    g = max_groups if g is None else g
    if g > max_groups:
        expected = f"at most a h + 1 = {max_groups}"
        refuse("dragonfly: g", expected, g, "raise a or h")
    if global_link.latency_ns <= local_link.latency_ns:
        refuse(
            "dragonfly: global_latency_ns",
            f"more than local_latency_ns = {local_link.latency_ns:g}",
            f"{global_link.latency_ns:g}",
            "routes take one global link because it is the slow one",
        )
    pairs = a * (a - 1) // 2
    check_size("dragonfly", a * p * g, g * (a * p + pairs) + g * (g - 1) // 2)
    graph = nx.Graph()
    router_of: dict[str, str] = {}
    group_of: dict[str, str] = {}
    routers = [
        [f"group{group}.router{router}" for router in range(a)] for group in range(g)
    ]
    for idx, group in enumerate(routers):
        add_switches(graph, group)
        for router in group:
            devices = [f"{router}.dev{device}" for device in range(p)]
            add_devices(graph, devices)
            connect_all(graph, devices, router, port)
            router_of |= dict.fromkeys(devices, router)
            group_of |= dict.fromkeys(devices, f"group{idx}")
        for one, other in itertools.combinations(group, 2):
            connect(graph, one, other, local_link)
    for i, j in itertools.combinations(range(g), 2):
        # To group j > i leads link j - 1 of group i; back, link i of j.
        ends = routers[i][(j - 1) // h], routers[j][i // h]
        connect(graph, *ends, global_link)
    set_units(graph, [router_of, group_of])
    return graph


def ring(devices: int, link: Cable) -> nx.Graph:
    """Return devices in a circle, each joined with the next, that forward."""
    check_size("ring", devices, devices)
    graph = nx.Graph()
    names = [f"dev{device}" for device in range(devices)]
    add_devices(graph, names, forward=True)
    for device in range(devices if devices > 2 else devices - 1):
        connect(graph, names[device], names[(device + 1) % devices], link)
    return graph


def all_to_all(devices: int, link: Cable) -> nx.Graph:
    """Return devices with a link between any two."""
    check_size("all-to-all", devices, devices * (devices - 1) // 2)
    graph = nx.Graph()
    names = [f"dev{device}" for device in range(devices)]
    add_devices(graph, names)
    for one, other in itertools.combinations(names, 2):
        connect(graph, one, other, link)
    return graph
