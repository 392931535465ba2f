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
from nest.topology.files.beside import Beside
from nest.topology.files.hostlist import MAX_HOSTS, expand
from nest.topology.files.hosts import Host
from nest.topology.files.source import Source

MAX_NAME = 64
MAX_RING = 16


class Entry(NamedTuple):
    """A switch, block or ring; ``place`` is where it is in the file."""

    place: str
    name: str
    nodes: str | None
    switches: str | None = None


def nodes_of(
    source: Source, place: str, value: Any, room: int = MAX_HOSTS
) -> list[str]:
    """Return the nodes of a hostlist, of which there may be so many.

    Raises
    ------
    InvalidProblemError
        If it is none.
    """
    text = source.word(place, value)
    return expand(text, f"{source.where}: {place}", room)


def tree(
    source: Source,
    entries: Sequence[Entry],
    beside: Beside,
    name: str | None = None,
) -> nx.Graph:
    """Return nodes below switches below switches.

    Raises
    ------
    InvalidProblemError
        If names are not unique, or the switches are no tree.
    InvalidOptionError
        If something that is asked for is missing or does not fit.
    """
    _check_names(source, entries)
    known = {entry.name for entry in entries}
    parents: dict[str, str] = {}
    found: list[Host] = []
    for entry in entries:
        if (entry.nodes is None) == (entry.switches is None):
            raise source.refuse(
                entry.place,
                "nodes or switches below a switch",
                "both" if entry.nodes is not None else "neither",
                "give one of them",
            )
        room = MAX_HOSTS - len(found)
        if entry.nodes is not None:
            nodes = nodes_of(source, entry.place, entry.nodes, room)
            found += [Host(node, entry.name) for node in nodes]
            continue
        for child in nodes_of(source, entry.place, entry.switches, room):
            if child not in known:
                raise source.refuse(
                    entry.place,
                    "switches that the file lists",
                    child,
                    "add it or correct the name",
                )
            if child in parents:
                raise source.refuse(
                    entry.place,
                    f"one switch above {child}",
                    f"{parents[child]} and {entry.name}",
                    "remove one",
                )
            parents[child] = entry.name
    if not found:
        raise source.refuse("", "nodes below the switches", "none", "add some")
    return hosts.tree(source, found, parents, beside, name=name)


def blocks(
    source: Source,
    entries: Sequence[Entry],
    sizes: Sequence[Any],
    beside: Beside,
    name: str | None = None,
) -> nx.Graph:
    """Return blocks as switches below switches of so many blocks each.

    Nodes of a block beyond the base size (spares) are nodes like the others.

    Parameters
    ----------
    source
        The file, for messages.
    entries
        The blocks, in their order.
    sizes
        ``BlockSizes``, the base first; none is blocks below one switch.
    beside
        What is asked for.
    name
        Of the topology.

    Raises
    ------
    InvalidProblemError
        If names are not unique, a block is smaller than the base size, or the
        sizes do not double or are larger than the cluster.
    InvalidOptionError
        If something that is asked for is missing or does not fit.
    """
    _check_names(source, entries)
    found: list[Host] = []
    counts = []
    for entry in entries:
        room = MAX_HOSTS - len(found)
        nodes = nodes_of(source, entry.place, entry.nodes, room)
        counts.append(len(nodes))
        found += [Host(node, entry.name) for node in nodes]
    ratios = _ratios(source, entries, counts, sizes)
    parents: dict[str, str] = {}
    below = [entry.name for entry in entries]
    # Whatever the sizes leave apart, one switch joins at last.
    for tier, ratio in enumerate([*ratios, len(entries)], start=1):
        if len(below) == 1:
            break
        groups = [
            below[start : start + ratio]
            for start in range(0, len(below), ratio)
        ]
        names = [f"blocks{tier}/{number}" for number in range(len(groups))]
        for group, above in zip(groups, names, strict=True):
            parents.update(dict.fromkeys(group, above))
        below = names
    return hosts.tree(source, found, parents, beside, name=name)


def _ratios(
    source: Source,
    entries: Sequence[Entry],
    counts: Sequence[int],
    sizes: Sequence[Any],
) -> list[int]:
    """Return how many times each planning size is the one before."""
    values = [
        source.integer(f"BlockSizes[{idx}]", size, least=1)
        for idx, size in enumerate(sizes)
    ]
    if not values:
        return []
    base = values[0]
    for entry, count in zip(entries, counts, strict=True):
        if count < base:
            raise source.refuse(
                entry.place,
                f"at least the {base} nodes of the base BlockSizes in "
                f"{entry.name}",
                count,
                "add nodes or lower BlockSizes",
            )
    for low, high in pairwise(values):
        ratio = high // low
        if high % low or ratio < 2 or ratio & (ratio - 1):
            raise source.refuse(
                "BlockSizes",
                f"a size larger than {low} by a power of two",
                high,
            )
    most = base * len(entries)
    if values[-1] > most:
        raise source.refuse(
            "BlockSizes",
            f"at most the {most} nodes of {len(entries)} blocks of {base}",
            values[-1],
            "remove the sizes that are larger than the cluster",
        )
    return [high // low for low, high in pairwise(values)]


def rings(
    source: Source, entries: Sequence[Entry], beside: Beside
) -> nx.Graph:
    """Return the nodes of one ring, in the order of its list.

    Raises
    ------
    InvalidProblemError
        If names are not unique, a ring is too long, or there are several and
        ``part`` names none.
    InvalidOptionError
        If something that is asked for is missing or does not fit.
    """
    _check_names(source, entries)
    known: dict[str, list[str]] = {}
    for entry in entries:
        nodes = nodes_of(source, entry.place, entry.nodes)
        if len(nodes) > MAX_RING:
            raise source.refuse(
                entry.place,
                f"at most {MAX_RING} nodes in a ring",
                len(nodes),
                "split the ring",
            )
        known[entry.name] = nodes
    name = hosts.choose(
        source, "separate rings", known, beside, "keep one of them"
    )
    nodes = known[name]
    return hosts.torus(source, nodes, "Ring", [len(nodes)], beside, name=name)


def _check_names(source: Source, entries: Sequence[Entry]) -> None:
    seen: set[str] = set()
    for entry in entries:
        if entry.name in seen:
            raise source.refuse(
                entry.place,
                "every name once",
                f"{entry.name} twice",
                "rename or remove one",
            )
        if len(entry.name) > MAX_NAME:
            raise source.refuse(
                entry.place,
                f"a name of at most {MAX_NAME} characters",
                len(entry.name),
                "shorten it",
            )
        seen.add(entry.name)
