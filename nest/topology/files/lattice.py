"""Products of rings, switches and complete graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import combinations, pairwise, product
from typing import NamedTuple

import networkx as nx

from nest.topology.files.assemble import SWITCH, add_link


class Axis(NamedTuple):
    """One dimension of a product graph.

    ``kind`` is a key of :data:`PAIRS` or :data:`HUB`; ``bandwidth`` (bytes/s,
    one way) and ``latency_ns`` are those of one link.
    """

    kind: str
    size: int
    bandwidth: float
    latency_ns: float


def _neighbors(size: int, *, closed_from: int) -> Iterator[tuple[int, int]]:
    """Yield the neighbors on a circle, which from so many members on is closed."""
    yield from pairwise(range(size))
    if size >= closed_from:
        yield size - 1, 0


#: Which members of a line are linked, by kind of axis.
PAIRS: dict[str, Callable[[int], Iterator[tuple[int, int]]]] = {
    # Two members of a ring share one cable, two of a torus two.
    "Ring": partial(_neighbors, closed_from=3),
    "Torus": partial(_neighbors, closed_from=2),
    "FullyConnected": lambda size: combinations(range(size), 2),
}

#: An axis whose members are each linked to a switch of their line.
HUB = "Switch"


def num_links(axis: Axis) -> int:
    """Return how many links one line of an axis has, at most."""
    pairs = axis.size * (axis.size - 1) // 2
    return pairs if axis.kind == "FullyConnected" else axis.size


def coordinates(axes: Sequence[Axis]) -> list[tuple[int, ...]]:
    """Return the places of a product graph; the first axis is fastest."""
    ranges = [range(axis.size) for axis in reversed(axes)]
    return [location[::-1] for location in product(*ranges)]


def join(graph: nx.Graph, names: Sequence[str], axes: Sequence[Axis]) -> None:
    """Link nodes as the product of the axes, the first one fastest.

    A node is on one line of every axis. An axis with a switch gets one switch per line,
    named by the axis and the number of the line. Changes ``graph``, which has the
    nodes; there are as many ``names`` as the product of the sizes.
    """
    stride = 1
    for dimension, axis in enumerate(axes):
        starts = [
            start for start in range(len(names)) if start // stride % axis.size == 0
        ]
        for line, start in enumerate(starts):
            nodes = [names[start + i * stride] for i in range(axis.size)]
            if axis.kind == HUB:
                hub = f"dim{dimension}/switch{line}"
                graph.add_node(hub, kind=SWITCH)
                pairs = [(node, hub) for node in nodes]
            else:
                pairs = [(nodes[i], nodes[j]) for i, j in PAIRS[axis.kind](axis.size)]
            for ends in pairs:
                add_link(graph, ends, axis.bandwidth, axis.latency_ns)
        stride *= axis.size
