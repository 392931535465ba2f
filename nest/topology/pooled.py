"""Folded Clos networks as trees: equal switches side by side are one.

Where a message leaves a switch for any of several, it spreads in proportion to their
links. If the switches of a set have equally much to every set of neighbors, what comes
in over one set goes on to any other evenly: the sets are the nodes of a tree, and the
links between two of them carry the same as one link with all of their bandwidth.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from nest.topology.refinement import Floats, Ints, link_kinds, mixed, refined

#: A tree with more levels is not worth the while.
_MAX_DEPTH = 16


@dataclass(frozen=True)
class PooledTree:
    """A tree of devices and sets of switches.

    What belongs to a node is that of its links to its parent. The last node
    stands for none: nothing limits it and it takes no time, like the root.
    """

    #: The node of every device.
    devices: Ints
    #: Of every node; of the root, and of none, none.
    parents: Ints
    #: Links to the root; of none, -1.
    depths: Ints
    #: Shape (depths, devices): at every depth but 0, the node that a device is or is
    #: below, or none.
    above: Ints
    #: Bandwidths to the parent and from it.
    up: Floats
    down: Floats
    #: Of these links, in whole numbers.
    up_latencies: Ints
    down_latencies: Ints

    @property
    def num_nodes(self) -> int:
        """Nodes, with the one that stands for none."""
        return len(self.parents)

    def latencies(self, sources: Ints, targets: Ints) -> Ints:
        """Return the latencies of the routes between devices."""
        return self._sums(self.up_latencies, self.down_latencies, sources, targets)

    def hops(self, sources: Ints, targets: Ints) -> Ints:
        """Return the numbers of links of the routes between devices."""
        ones = (self.depths > 0).astype(np.int64)
        return self._sums(ones, ones, sources, targets)

    def _sums(self, up: Ints, down: Ints, sources: Ints, targets: Ints) -> Ints:
        """Return the sums over the links up and down between devices."""
        sums = np.zeros(np.broadcast(sources, targets).shape, np.int64)
        for above in self.above:
            here, there = above[sources], above[targets]
            sums += np.where(here != there, up[here] + down[there], 0)
        return sums

    def cut(self, sends: npt.NDArray[np.bool_]) -> float:
        """Return the most that can flow from some devices to the others.

        Devices are ends of flows: nothing passes through. ``sends`` says of each device
        whether it sends.
        """
        # The least cut: the least that leads from the nodes with those that
        # send to those with the others, for either side of every node.
        cost = np.zeros((2, self.num_nodes))
        cost[0, self.devices[sends]] = np.inf
        cost[1, self.devices[~sends]] = np.inf
        for nodes in self._by_depth:
            parents, here = self.parents[nodes], cost[:, nodes]
            for side, link in ((0, self.up), (1, self.down)):
                across = here[1 - side] + link[nodes]
                cost[side] += np.bincount(
                    parents, np.minimum(here[side], across), self.num_nodes
                )
        return float(cost[:, self.depths == 0].min())

    @cached_property
    def _by_depth(self) -> list[Ints]:
        """Nodes of every depth but 0, the deepest first."""
        return [
            np.flatnonzero(self.depths == depth)
            for depth in range(int(self.depths.max()), 0, -1)
        ]


def pooled_tree(
    devices: Ints,
    forwards: npt.NDArray[np.bool_],
    tails: Ints,
    heads: Ints,
    bandwidths: Floats,
    latencies: Ints,
) -> PooledTree | None:
    """Return the tree that a graph is as good as, if it is one.

    Routes of the least latency, of these with the fewest arcs, that split in
    proportion to bandwidth, put the same load by bandwidth on the links of
    the tree as on those of the graph, and the most that can flow is the same.

    ``devices`` has the node of each device, and ``forwards`` says which nodes pass
    messages on. The others have an entry for every arc; latencies are whole numbers.
    """
    if len(devices) == len(forwards):
        return None
    kinds = link_kinds(bandwidths, latencies)
    colors = np.zeros(len(forwards), np.uint64)
    colors[devices] = mixed(np.arange(1, len(devices) + 1))
    count = 0
    while count < (count := len(np.unique(colors))):
        colors = refined(colors, tails, heads, kinds)
    _, sets, members = np.unique(colors, return_inverse=True, return_counts=True)
    if (members[sets[devices]] > 1).any():
        return None
    pairs = _pairs(sets, members, tails, heads, kinds)
    if pairs is None:
        return None
    parents = _parents(len(members), *pairs[:2])
    if parents is None:
        return None
    # What is between others passes on what comes from them.
    if not forwards[(np.bincount(pairs[0]) > 1)[sets]].all():
        return None
    return _rooted(sets[devices], parents, pairs, bandwidths, latencies)


def _pairs(
    sets: Ints, members: Ints, tails: Ints, heads: Ints, kinds: Ints
) -> tuple[Ints, Ints, Ints, Ints] | None:
    """Return which sets have arcs to which ones, one of these, and how many.

    ``None`` if the arcs between two sets are of several kinds or lead one way
    only, or some members of a set have more than others.
    """
    pair = sets[tails] * len(members) + sets[heads]
    keys, first, pair_index, count = np.unique(
        pair, return_index=True, return_inverse=True, return_counts=True
    )
    here, there = np.divmod(keys, len(members))
    back = np.sort(there * len(members) + here)
    equal = (kinds == kinds[first][pair_index]).all()
    equal = equal and np.array_equal(keys, back)
    for ends, side in ((tails, here), (heads, there)):
        end_pairs, of_end = np.unique(pair_index * len(sets) + ends, return_counts=True)
        max_arcs = np.zeros(len(keys), np.int64)
        np.maximum.at(max_arcs, end_pairs // len(sets), of_end)
        # As many at each member as at the one with the most.
        equal = equal and (max_arcs * members[side] == count).all()
    return (here, there, first, count) if equal else None


def _parents(count: int, here: Ints, there: Ints) -> Ints | None:
    """Return the parent of every node of a tree, of the root itself.

    The root is in the middle. ``None`` if there is a circle, if parts do not
    hang together, or if the tree is deep.
    """
    degree = np.bincount(here, minlength=count)
    neighbors = np.zeros(count, np.int64)
    np.bitwise_xor.at(neighbors, here, there)
    parents = np.arange(count)
    for _ in range(_MAX_DEPTH):
        # A node with one neighbor left is a leaf; of two that are left the
        # second one is not.
        leaves = np.flatnonzero(degree == 1)
        above = neighbors[leaves]
        last = (degree[above] == 1) & (above < leaves)
        leaves, above = leaves[~last], above[~last]
        if not len(leaves):
            break
        parents[leaves] = above
        degree[leaves] = 0
        np.subtract.at(degree, above, 1)
        np.bitwise_xor.at(neighbors, above, leaves)
    roots = parents == np.arange(count)
    return parents if roots.sum() == 1 and not degree.any() else None


def _rooted(
    devices: Ints,
    parents: Ints,
    pairs: tuple[Ints, Ints, Ints, Ints],
    bandwidths: Floats,
    latencies: Ints,
) -> PooledTree:
    """Return the tree with these parents."""
    none = len(parents)
    here, there, arcs, count = pairs
    up, down = np.full(none + 1, np.inf), np.full(none + 1, np.inf)
    up_latencies = np.zeros(none + 1, np.int64)
    down_latencies = np.zeros(none + 1, np.int64)
    for node, other, speeds, times in (
        (here, there, up, up_latencies),
        (there, here, down, down_latencies),
    ):
        rises = parents[node] == other
        speeds[node[rises]] = (bandwidths[arcs] * count)[rises]
        times[node[rises]] = latencies[arcs[rises]]
    root = int(np.flatnonzero(parents == np.arange(none))[0])
    depths = np.append(_depths(parents, root), -1)
    above, nodes = [], devices
    for depth in range(int(depths.max()), 0, -1):
        at = depths[nodes] == depth
        above.append(np.where(at, nodes, none))
        nodes = np.where(at, parents[nodes], nodes)
    parents = np.append(parents, none)
    parents[root] = none
    return PooledTree(
        devices=devices,
        parents=parents,
        depths=depths,
        above=np.array(above[::-1], np.int64).reshape(-1, len(devices)),
        up=up,
        down=down,
        up_latencies=up_latencies,
        down_latencies=down_latencies,
    )


def _depths(parents: Ints, root: int) -> Ints:
    """Return how many links each node is below the root."""
    depths, nodes = np.zeros(len(parents), np.int64), np.arange(len(parents))
    while (nodes != root).any():
        depths += nodes != root
        nodes = parents[nodes]
    return depths
