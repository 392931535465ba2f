"""What Slurm's topologies are made of: trees, blocks and rings of nodes.

Rules after the manual pages ``topology.conf.5`` and ``topology.yaml.5``
(commit 284c3b9). A link speed in the files has no unit and is never used.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import networkx as nx

from nest.topology.files import hosts
from nest.topology.files.hostlist import MAX_HOSTS, expand
from nest.topology.files.hosts import Host
from nest.topology.files.source import Source

MAX_NAME = 64
MAX_RING = 16


class Entry(NamedTuple):
    """A switch, block or ring; ``location`` is where it is in the file."""

    location: str
    name: str
    nodes: str | None
    switches: str | None = None


def nodes_of(
    source: Source, location: str, value: Any, max_hosts: int = MAX_HOSTS
) -> list[str]:
    """Return the nodes of a hostlist, at most ``max_hosts``."""
    text = source.name(location, value)
    return expand(text, f"{source.where}: {location}", max_hosts)


def tree(source: Source, entries: Sequence[Entry], name: str | None = None) -> nx.Graph:
    """Return nodes below switches below switches."""
    _check_names(source, entries)
    switches = {entry.name for entry in entries}
    parents: dict[str, str] = {}
    members: list[Host] = []
    for entry in entries:
        if (entry.nodes is None) == (entry.switches is None):
            raise source.refuse(
                entry.location,
                "nodes or switches below a switch",
                "both" if entry.nodes is not None else "neither",
                "give one of them",
            )
        free = MAX_HOSTS - len(members)
        if entry.nodes is not None:
            nodes = nodes_of(source, entry.location, entry.nodes, free)
            members += [Host(node, entry.name) for node in nodes]
            continue
        for child in nodes_of(source, entry.location, entry.switches, free):
            if child not in switches:
                raise source.error(
                    f"{entry.location}: expected switches that the file lists, got "
                    f"{child}; add it or correct the name"
                )
            hosts.set_parent(source, entry.location, parents, child, entry.name)
    if not members:
        raise source.refuse("", "nodes below the switches", "none", "add some")
    return hosts.tree(source, members, parents, name=name)


def blocks(
    source: Source,
    entries: Sequence[Entry],
    sizes: Sequence[Any],
    name: str | None = None,
) -> nx.Graph:
    """Return blocks as switches below switches of so many blocks each.

    Nodes of a block beyond the base size (spares) are nodes like the others. ``sizes``
    are the ``BlockSizes``, the base first; without any, one switch joins the blocks. A
    size beyond all blocks joins them all, as Slurm takes it.
    """
    _check_names(source, entries)
    members: list[Host] = []
    counts = []
    for entry in entries:
        free = MAX_HOSTS - len(members)
        nodes = nodes_of(source, entry.location, entry.nodes, free)
        counts.append(len(nodes))
        members += [Host(node, entry.name) for node in nodes]
    ratios = _ratios(source, entries, counts, sizes)
    parents: dict[str, str] = {}
    below = [entry.name for entry in entries]
    # Whatever the sizes leave apart, one switch joins at last.
    for tier, ratio in enumerate([*ratios, len(entries)], start=1):
        if len(below) == 1:
            break
        groups = [below[start : start + ratio] for start in range(0, len(below), ratio)]
        names = [f"blocks{tier}/{index}" for index in range(len(groups))]
        for group, above in zip(groups, names, strict=True):
            parents.update(dict.fromkeys(group, above))
        below = names
    return hosts.tree(source, members, parents, name=name)


def _ratios(
    source: Source,
    entries: Sequence[Entry],
    counts: Sequence[int],
    sizes: Sequence[Any],
) -> list[int]:
    """Return how many times each planning size is the one before."""
    values = [
        source.integer(f"BlockSizes[{idx}]", size, minimum=1)
        for idx, size in enumerate(sizes)
    ]
    if not values:
        return []
    base = values[0]
    for entry, count in zip(entries, counts, strict=True):
        if count < base:
            raise source.error(
                f"{entry.location}: expected at least the {base} nodes of the base "
                f"BlockSizes in {entry.name}, got {count}; add nodes or lower "
                f"BlockSizes"
            )
    for low, high in pairwise(values):
        ratio = high // low
        if high % low or ratio < 2 or ratio & (ratio - 1):
            raise source.refuse(
                "BlockSizes", f"a size larger than {low} by a power of two", high
            )
    return [high // low for low, high in pairwise(values)]


def rings(source: Source, entries: Sequence[Entry]) -> nx.Graph:
    """Return the nodes of one ring, in the order of its list."""
    _check_names(source, entries)
    nodes_by_ring: dict[str, list[str]] = {}
    for entry in entries:
        nodes = nodes_of(source, entry.location, entry.nodes)
        if len(nodes) > MAX_RING:
            raise source.error(
                f"{entry.location}: expected at most {MAX_RING} nodes in a ring, got "
                f"{len(nodes)}; split the ring"
            )
        nodes_by_ring[entry.name] = nodes
    name = hosts.choose(source, "separate rings", nodes_by_ring, "keep one of them")
    nodes = nodes_by_ring[name]
    return hosts.torus(source, nodes, "Ring", [len(nodes)], name=name)


def _check_names(source: Source, entries: Sequence[Entry]) -> None:
    seen: set[str] = set()
    for entry in entries:
        source.check_once(
            entry.location, "name", entry.name, seen, "rename or remove one"
        )
        if len(entry.name) > MAX_NAME:
            raise source.error(
                f"{entry.location}: expected a name of at most {MAX_NAME} characters, "
                f"got {len(entry.name)}; shorten it"
            )
        seen.add(entry.name)
