"""Nodes with the switches above them, as clouds and topograph list them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import networkx as nx

from nest.topology.files import hosts
from nest.topology.files.beside import Beside
from nest.topology.files.hosts import Host
from nest.topology.files.source import Source


class Layered(NamedTuple):
    """A node: the switches above it, closest first, and its devices."""

    name: str
    layers: tuple[str, ...]
    num_devices: int | None = None


def build(
    source: Source,
    nodes: Sequence[Layered],
    domains: Mapping[str, str],
    beside: Beside,
) -> nx.Graph:
    """Return the nodes below the tree that their layers make.

    Parameters
    ----------
    source
        The file, for messages.
    nodes
        In the order of the ranks.
    domains
        The NVLink domain of each node that has one.
    beside
        What is asked for (see :func:`nest.topology.files.hosts.tree`).

    Raises
    ------
    InvalidProblemError
        If a name is not unique, or a switch is below two others.
    InvalidOptionError
        If something that is asked for is missing or does not fit.
    """
    parents: dict[str, str] = {}
    roots: dict[str, str] = {}
    found = []
    for node in nodes:
        for below, above in pairwise(node.layers):
            known = parents.setdefault(below, above)
            if known != above:
                raise source.refuse(
                    node.name,
                    f"{below} below {known}, as in an earlier node",
                    f"it below {above}",
                    "correct one of them",
                )
        roots[node.layers[-1]] = node.name
        domain = domains.get(node.name)
        found.append(Host(node.name, node.layers[0], domain, node.num_devices))
    for root, name in roots.items():
        if root in parents:
            raise source.refuse(
                name,
                f"{parents[root]} above {root}, as in another node",
                "nothing above it",
                "a missing layer is unknown: add it",
            )
    return hosts.tree(source, found, parents, beside)


def all_or_none(
    source: Source,
    values: Mapping[str, str | None],
    what: str,
) -> dict[str, str]:
    """Return the values of all nodes, or nothing if no node has one.

    Raises
    ------
    InvalidProblemError
        If some have one and some do not: unknown is not equal.
    """
    missing = [name for name, value in values.items() if value is None]
    if len(missing) == len(values):
        return {}
    if missing:
        raise source.refuse(
            missing[0],
            f"{what}, as on other nodes",
            "none",
            "a missing one is unknown: add it, or leave the node out",
        )
    return {name: str(value) for name, value in values.items()}
