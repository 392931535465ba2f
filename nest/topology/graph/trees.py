"""Routes on folded Clos networks, which are as good as trees."""

from __future__ import annotations

import numpy as np

from nest.topology.graph.wires import Floats, Ints, Wires
from nest.topology.pooled import PooledTree, pooled_tree


class TreeWays:
    """Routes on a tree: up to where two ways meet, and down.

    ``bandwidths`` are those of the links up, and then of those down.
    """

    def __init__(self, tree: PooledTree) -> None:
        self.tree = tree
        self.bandwidths = np.concatenate([tree.up, tree.down])

    def latencies_fs(self, sources: Ints, targets: Ints) -> Ints:
        """Return the latencies of the routes between ranks."""
        return self.tree.latencies(sources, targets)

    def loads(self, sources: Ints, targets: Ints, amounts: Floats) -> Floats:
        """Return what flows put on every link, up and down."""
        num_nodes = self.tree.num_nodes
        loads = np.zeros(2 * num_nodes)
        for above in self.tree.above:
            here, there = above[sources], above[targets]
            apart = here != there
            ends = np.concatenate(
                [here[apart], there[apart] + num_nodes], dtype=np.int64
            )
            loads += np.bincount(ends, np.tile(amounts[apart], 2), len(loads))
        return loads

    def farthest_fs(self, ranks: Ints) -> int:
        """Return the longest that a rank takes to all others of its row."""
        latencies = np.zeros(ranks.shape, np.int64)
        for above in self.tree.above:
            nodes = above[ranks]
            inside = self._inside(nodes)
            down = self.tree.down_latencies[nodes]
            latencies += self.tree.up_latencies[nodes] * (len(ranks.T) - inside)
            latencies += down.sum(axis=1, keepdims=True) - down * inside
        return int(latencies.max())

    def loads_of_all(self, ranks: Ints, amounts: Floats) -> Floats:
        """Return what links carry if all ranks of a row send to all others."""
        num_nodes = self.tree.num_nodes
        loads = np.zeros(num_nodes)
        for above in self.tree.above:
            nodes = above[ranks]
            outside = ranks.shape[1] - self._inside(nodes)
            sent = amounts[:, None] * outside
            loads += np.bincount(nodes.ravel(), sent.ravel(), num_nodes)
        return np.tile(loads, 2)

    def _inside(self, nodes: Ints) -> Ints:
        """Return how many ranks of its row are below the node of each."""
        rows = np.arange(len(nodes))[:, None] * self.tree.num_nodes
        _, group, count = np.unique(
            (rows + nodes).ravel(), return_inverse=True, return_counts=True
        )
        inside: Ints = count[group].reshape(nodes.shape)
        return inside


def tree_ways(wires: Wires) -> TreeWays | None:
    """Return the routes of a graph that is as good as a tree."""
    tree = pooled_tree(
        wires.nodes,
        wires.relays,
        wires.tails,
        wires.heads,
        wires.bandwidths,
        wires.latencies,
    )
    if tree is None:
        return None
    # Sums over all ranks, there and back, fit into 64 bits.
    longest = 2 * len(tree.above) * (int(wires.latencies.max()) + 1)
    if 4 * len(wires.ranks) * longest >= 1 << 63:
        return None
    return TreeWays(tree)
