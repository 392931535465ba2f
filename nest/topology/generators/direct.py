"""Networks without leaves and spines: dragonfly, ring, all pairs."""

from __future__ import annotations

import itertools

import networkx as nx

from nest.topology.generators.build import (
    add_devices,
    add_switches,
    check_size,
    connect,
    refuse,
    set_units,
)


def dragonfly(  # noqa: PLR0913
    p: int,
    a: int,
    h: int,
    g: int | None,
    port_bytes_per_s: float,
    port_latency_ns: float,
    local_bytes_per_s: float,
    local_latency_ns: float,
    global_bytes_per_s: float,
    global_latency_ns: float,
) -> nx.Graph:
    """Return the dragonfly of ``a p g`` devices.

    ``g`` groups of ``a`` routers, all pairs of a group joined, ``p`` devices
    and ``h`` global links at a router (Kim et al., ISCA 2008). Global link
    ``k`` of group ``i`` is at router ``k // h`` and leads to group ``k`` if
    ``k < i``, else ``k + 1``: one link between any two groups. Without ``g``
    there are ``a h + 1`` groups, and every global link is used.

    Raises
    ------
    InvalidOptionError
        If there are more groups than that, global links have no more latency
        than local ones, or the network is too large.
    """
    most = a * h + 1
    g = most if g is None else g
    if g > most:
        refuse("dragonfly: g", f"at most a h + 1 = {most}", g, "raise a or h")
    if global_latency_ns <= local_latency_ns:
        refuse(
            "dragonfly: global_latency_ns",
            f"more than local_latency_ns = {local_latency_ns:g}",
            f"{global_latency_ns:g}",
            "routes take one global link because it is the slow one",
        )
    pairs = a * (a - 1) // 2
    check_size("dragonfly", a * p * g, g * (a * p + pairs) + g * (g - 1) // 2)
    graph = nx.Graph()
    router_of: dict[str, str] = {}
    group_of: dict[str, str] = {}
    routers = [
        [f"group{group}.router{router}" for router in range(a)]
        for group in range(g)
    ]
    for number, group in enumerate(routers):
        add_switches(graph, group)
        for router in group:
            devices = [f"{router}.dev{device}" for device in range(p)]
            add_devices(graph, devices)
            for device in devices:
                connect(
                    graph, device, router, port_bytes_per_s, port_latency_ns
                )
                router_of[device], group_of[device] = router, f"group{number}"
        for one, other in itertools.combinations(group, 2):
            connect(graph, one, other, local_bytes_per_s, local_latency_ns)
    for i, j in itertools.combinations(range(g), 2):
        # To group j > i leads link j - 1 of group i; back, link i of j.
        connect(
            graph,
            routers[i][(j - 1) // h],
            routers[j][i // h],
            global_bytes_per_s,
            global_latency_ns,
        )
    set_units(graph, [router_of, group_of])
    return graph


def ring(
    devices: int, link_bytes_per_s: float, link_latency_ns: float
) -> nx.Graph:
    """Return devices in a circle, each joined with the next, that forward.

    Raises
    ------
    InvalidOptionError
        If the network is too large.
    """
    check_size("ring", devices, devices)
    graph = nx.Graph()
    names = [f"dev{device}" for device in range(devices)]
    add_devices(graph, names, forward=True)
    for device in range(devices if devices > 2 else devices - 1):
        connect(
            graph,
            names[device],
            names[(device + 1) % devices],
            link_bytes_per_s,
            link_latency_ns,
        )
    return graph


def all_to_all(
    devices: int, link_bytes_per_s: float, link_latency_ns: float
) -> nx.Graph:
    """Return devices with a link between any two.

    Raises
    ------
    InvalidOptionError
        If the network is too large.
    """
    check_size("all-to-all", devices, devices * (devices - 1) // 2)
    graph = nx.Graph()
    names = [f"dev{device}" for device in range(devices)]
    add_devices(graph, names)
    for one, other in itertools.combinations(names, 2):
        connect(graph, one, other, link_bytes_per_s, link_latency_ns)
    return graph
