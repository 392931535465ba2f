"""Random graphs of devices and switches, and some that people have."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from nest.ir import GraphTopology, NetworkLink, NetworkNode

#: Picks one of several values.
Choose = Callable[[Sequence[Any]], Any]

_SPEEDS = (4e9, 1e9, 1e9, 3e8, 7.7e8, 1e8)
_LATENCIES = (0.0, 1.5, 20.0, 0.1, 100.0)


def make_graph(
    devices: Iterable[str] | str,
    links: Iterable[tuple[str, str, float, float]],
    **fields: Any,
) -> GraphTopology:
    """Build a graph from (end, end, latency in ns, bytes/s).

    What is no device is a switch; ``forward`` says whether devices pass messages on.
    """
    links, devices = list(links), list(devices)
    forward = fields.pop("forward", None)
    ends = dict.fromkeys(end for link in links for end in link[:2])
    return GraphTopology(
        nodes=(
            *(NetworkNode(id=x, kind="device", forward=forward) for x in devices),
            *(NetworkNode(id=x, kind="switch") for x in ends if x not in devices),
        ),
        links=tuple(
            NetworkLink(
                source=source,
                target=target,
                latency_ns=latency_ns,
                bandwidth_bytes_per_s=bandwidth,
            )
            for source, target, latency_ns, bandwidth in links
        ),
        **fields,
    )


def random_graph(choose: Choose, num_devices: int) -> GraphTopology:
    """Return a connected graph with room for so many devices.

    Parameters
    ----------
    choose
        Where all chances come from.
    num_devices
        How many devices a cluster on it has; sometimes there is one more.
    """
    devices = [f"d{i}" for i in range(num_devices + choose((0, 0, 1)))]
    if len(devices) == 1:
        return make_graph(devices, [])
    shape = choose(("star", "leaves", "leaves", "rails", "grid", "mesh", "any"))
    pairs, forward, fields = _SHAPES[shape](choose, devices)
    kinds = [(choose(_LATENCIES), choose(_SPEEDS)) for _ in range(3)]
    if choose((True, True, False)):
        # links of one sort are alike: then routes are tied
        links = [(a, b, *kinds[sort]) for a, b, sort in pairs]
    else:
        links = [(a, b, choose(_LATENCIES), choose(_SPEEDS)) for a, b, _ in pairs]
    if choose((False, False, False, True)):
        fields["directed"] = True
        links += [(b, a, choose(_LATENCIES), choose(_SPEEDS)) for a, b, *_ in links]
    if choose((False, False, True)):
        left = list(devices)
        fields["order"] = tuple(left.pop(choose(range(len(left)))) for _ in devices)
    if "units" not in fields and choose((False, True)):
        fields["units"] = _random_units(choose, devices)
    graph = make_graph(devices, links, forward=forward, **fields)
    return replace(graph, launch_ns=choose((0.0, 0.0, 3.3, 50.0)))


def _random_units(choose: Choose, devices: list[str]) -> tuple[Any, ...]:
    first = {name: f"u{choose((0, 1, 2))}" for name in devices}
    of = {f"u{i}": f"r{choose((0, 1))}" for i in range(3)}
    second = {name: of[unit] for name, unit in first.items()}
    return (first, second)[: choose((1, 2))]


Shape = tuple[list[tuple[str, str, int]], bool | None, dict[str, Any]]


def _star(choose: Choose, devices: list[str]) -> Shape:
    return [(name, "switch", 0) for name in devices], None, {}


def _leaves(choose: Choose, devices: list[str]) -> Shape:
    """Devices on leaves, each leaf on every spine."""
    per_leaf = choose((1, 2, 2, 3, 4))
    leaf_of = {x: f"leaf{i // per_leaf}" for i, x in enumerate(devices)}
    links = [(name, leaf, 0) for name, leaf in leaf_of.items()]
    links += [
        (leaf, f"spine{i}", 1)
        for i in range(choose((1, 2, 2)))
        for leaf in dict.fromkeys(leaf_of.values())
    ]
    return links, None, {"units": (leaf_of,)}


def _rails(choose: Choose, devices: list[str]) -> Shape:
    """Nodes with a switch inside; device ``i`` of each on leaf ``i``."""
    per_node = choose((2, 2, 3))
    node_of = {x: f"node{i // per_node}" for i, x in enumerate(devices)}
    links = [(name, node, 0) for name, node in node_of.items()]
    links += [(name, f"rail{i % per_node}", 1) for i, name in enumerate(devices)]
    if choose((False, True)):
        links += [(f"rail{i}", "spine", 2) for i in range(min(per_node, len(devices)))]
    return links, True, {"units": (node_of,)}


def _grid(choose: Choose, devices: list[str]) -> Shape:
    """A torus or a grid of one or two axes."""
    n = len(devices)
    width = choose([w for w in range(1, n + 1) if n % w == 0])
    sides = (n // width, width)
    at = {x: divmod(i, width) for i, x in enumerate(devices)}
    name_of = {place: name for name, place in at.items()}
    wrap = choose((True, True, False))
    links = {}
    for (row, column), name in name_of.items():
        for axis, place in enumerate(((row + 1, column), (row, column + 1))):
            if place[axis] == sides[axis] and not wrap:
                continue
            other = name_of[place[0] % sides[0], place[1] % sides[1]]
            if other != name:
                links.setdefault(tuple(sorted((name, other))), axis)
    return ([(*ends, axis) for ends, axis in links.items()], True, {"coordinates": at})


def _mesh(choose: Choose, devices: list[str]) -> Shape:
    pairs = itertools.combinations(devices, 2)
    return [(a, b, choose((0, 0, 1))) for a, b in pairs], None, {}


def _any(choose: Choose, devices: list[str]) -> Shape:
    """Switches in a random tree, devices on any of them, more links."""
    switches = [f"s{i}" for i in range(choose((1, 2, 3, 4)))]
    links = {
        (switches[i], switches[choose(range(i))]): 0 for i in range(1, len(switches))
    }
    links |= {(name, choose(switches)): 1 for name in devices}
    nodes = [*devices, *switches]
    for _ in range(choose((0, 1, 2, 3))):
        a, b = choose(nodes), choose(nodes)
        if a != b and (b, a) not in links:
            links.setdefault((a, b), 2)
    forward = choose((None, None, True))
    return [(*ends, sort) for ends, sort in links.items()], forward, {}


_SHAPES: dict[str, Callable[[Choose, list[str]], Shape]] = {
    "star": _star,
    "leaves": _leaves,
    "rails": _rails,
    "grid": _grid,
    "mesh": _mesh,
    "any": _any,
}
