"""Colors of the nodes of a graph, refined until they say all they can.

Nodes get other colors while their links to nodes of some color differ
(Weisfeiler and Leman, 1968). Colors are hashes: nodes that are alike have the
same, others may by chance, so that what colors suggest has to be checked.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Hashes = npt.NDArray[np.uint64]


def link_kinds(bandwidths: Floats, latencies: Ints) -> Ints:
    """Return numbers of arcs; those that are alike have the same."""
    both = np.stack([bandwidths.view(np.int64), latencies])
    numbers: Ints = np.unique(both, axis=1, return_inverse=True)[1]
    return numbers.ravel()


def refined(colors: Hashes, tails: Ints, heads: Ints, links: Ints) -> Hashes:
    """Return the colors of all nodes after another round.

    ``colors`` has one for every node; the other arrays have the ends of every arc, and
    the number of its kind.
    """
    new = mixed(colors)
    for ends, others, side in ((tails, heads, 1), (heads, tails, 2)):
        seen = mixed(colors[others] + mixed(2 * links + side))
        np.add.at(new, ends, seen)
    return new


def mixed(values: Ints | Hashes) -> Hashes:
    """Return hashes (SplitMix64; Steele, Lea and Flood, OOPSLA 2014)."""
    hashes = values.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    result: Hashes = hashes ^ (hashes >> np.uint64(31))
    return result
