"""Nodes with the switches above them, as clouds and topograph list them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import networkx as nx

from nest.topology.files import hosts
from nest.topology.files.hosts import Host
from nest.topology.files.source import Source


class Layered(NamedTuple):
    """A node: the switches above it, closest first, and its devices."""

    name: str
    layers: tuple[str, ...]
    num_devices: int | None = None


def build(
    source: Source, nodes: Sequence[Layered], domains: Mapping[str, str]
) -> nx.Graph:
    """Return the nodes below the tree that their layers make.

    ``nodes`` are in the order of the ranks; ``domains`` has the NVLink domain of each
    node that has one.
    """
    parents: dict[str, str] = {}
    roots: dict[str, str] = {}
    members = []
    for node in nodes:
        for below, above in pairwise(node.layers):
            parent = parents.setdefault(below, above)
            if parent != above:
                raise source.error(
                    f"{node.name}: expected {below} below {parent}, as in an earlier "
                    f"node, got it below {above}; correct one of them"
                )
        roots[node.layers[-1]] = node.name
        domain = domains.get(node.name)
        members.append(Host(node.name, node.layers[0], domain, node.num_devices))
    for root, name in roots.items():
        if root in parents:
            raise source.error(
                f"{name}: expected {parents[root]} above {root}, as in another node, "
                f"got nothing above it; a missing layer is unknown: add it"
            )
    return hosts.tree(source, members, parents)


def all_or_none(
    source: Source, values: Mapping[str, str | None], what: str
) -> dict[str, str]:
    """Return the values of all nodes, or nothing if no node has one."""
    missing = [name for name, value in values.items() if value is None]
    if len(missing) == len(values):
        return {}
    if missing:
        raise source.error(
            f"{missing[0]}: expected {what}, as on other nodes, got none; a missing "
            f"one is unknown: add it, or leave the node out"
        )
    return {name: str(value) for name, value in values.items()}
