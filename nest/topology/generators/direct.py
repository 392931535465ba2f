"""Networks without leaves and spines: dragonfly, ring, all pairs."""

from __future__ import annotations

import itertools

import networkx as nx

from nest.errors import InvalidOptionError
from nest.topology.generators.build import Cable, Wiring, refuse


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
        raise InvalidOptionError(
            f"dragonfly: global_latency_ns: expected more than local_latency_ns = "
            f"{local_link.latency_ns:g}, got {global_link.latency_ns:g}; routes take "
            f"one global link because it is the slow one"
        )
    pairs = a * (a - 1) // 2
    num_links = g * (a * p + pairs) + g * (g - 1) // 2
    network = Wiring("dragonfly", a * p * g, num_links)
    routers: list[list[str]] = []
    for group in (f"group{idx}" for idx in range(g)):
        members = network.add_switches(f"{group}.router{x}" for x in range(a))
        routers.append(members)
        for router in members:
            names = (f"{router}.dev{device}" for device in range(p))
            devices = network.add_devices(names, router, group)
            network.connect_all(devices, router, port)
        for one, other in itertools.combinations(members, 2):
            network.connect(one, other, local_link)
    for i, j in itertools.combinations(range(g), 2):
        # To group j > i leads link j - 1 of group i; back, link i of j.
        network.connect(routers[i][(j - 1) // h], routers[j][i // h], global_link)
    return network.finished()


def ring(devices: int, link: Cable) -> nx.Graph:
    """Return devices in a circle, each joined with the next, that forward."""
    network = Wiring("ring", devices, devices)
    names = network.add_devices((f"dev{x}" for x in range(devices)), forward=True)
    for device in range(devices if devices > 2 else devices - 1):
        network.connect(names[device], names[(device + 1) % devices], link)
    return network.finished()


def all_to_all(devices: int, link: Cable) -> nx.Graph:
    """Return devices with a link between any two."""
    network = Wiring("all-to-all", devices, devices * (devices - 1) // 2)
    names = network.add_devices(f"dev{device}" for device in range(devices))
    for one, other in itertools.combinations(names, 2):
        network.connect(one, other, link)
    return network.finished()
