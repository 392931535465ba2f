"""Slurm's ``topology.yaml``: named topologies, one of which is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import networkx as nx

from nest.topology.files import hosts
from nest.topology.files.hosts import Host
from nest.topology.files.slurm import Entry, blocks, nodes_of, rings, tree
from nest.topology.files.source import Source, listed, parse_yaml, shown

_DEFAULT = "cluster_default"


def read(source: Source) -> nx.Graph:
    """Read a ``topology.yaml``; ``topology`` says which of several to take.

    Without it, the only one is taken, or the one with ``cluster_default``.
    Options state the same as for ``topology.conf``; for a flat topology, the
    number of nodes too.
    """
    entries: dict[str, dict[str, Any]] = {}
    for location, entry in source.mappings(
        "", parse_yaml(source), ("topology", _DEFAULT, *_KINDS)
    ):
        if next(iter(entry), None) != "topology":
            raise source.refuse(
                location, "topology as the first key", shown([*entry][:1])
            )
        name = source.name(f"{location}.topology", entry["topology"])
        source.check_once(location, "topology", name, entries)
        entries[name] = entry
    if not entries:
        raise source.refuse("", "topologies", "none", "add one")
    name = _chosen(source, entries)
    entry = entries[name]
    kinds = [kind for kind in _KINDS if kind in entry]
    if len(kinds) != 1:
        raise source.refuse(
            name,
            f"exactly one of {', '.join(_KINDS)}",
            " and ".join(kinds) or "none",
            "keep one",
        )
    return _KINDS[kinds[0]](source, name, entry[kinds[0]])


def _chosen(source: Source, entries: Mapping[str, dict[str, Any]]) -> str:
    """Return the name of the topology to read."""
    if (chosen := source.option_among("topology", entries)) is not None:
        return chosen
    default = [x for x, entry in entries.items() if entry.get(_DEFAULT)]
    if len(entries) > 1 and not default:
        raise source.error(
            f"expected one topology, or one with {_DEFAULT}, got {len(entries)}: "
            f"{listed(entries)}; give one of them as topology"
        )
    return (default or list(entries))[0]


def _tree(source: Source, name: str, value: Any) -> nx.Graph:
    return tree(source, _entries(source, f"{name}.tree", value, "switch"), name)


def _block(source: Source, name: str, value: Any) -> nx.Graph:
    location = f"{name}.block"
    entries = _entries(source, location, value, "block", "block_sizes")
    sizes = source.sequence(f"{location}.block_sizes", value.get("block_sizes", []))
    return blocks(source, entries, sizes, name)


def _ring(source: Source, name: str, value: Any) -> nx.Graph:
    return rings(source, _entries(source, f"{name}.ring", value, "ring"))


def _torus(source: Source, name: str, value: Any) -> nx.Graph:
    location = f"{name}.torus3d"
    value = source.mapping(location, value, ("toruses",), ("toruses",))
    tori: dict[str, dict[str, Any]] = {}
    needed = ("name", "dims", "nodes")
    for at, torus in source.mappings(
        f"{location}.toruses", value["toruses"], (*needed, "placements"), needed
    ):
        torus_name = source.name(f"{at}.name", torus["name"])
        source.check_once(at, "name", torus_name, tori, "rename one")
        tori[torus_name] = torus
    if not tori:
        raise source.refuse(location, "tori", "none", "add one")
    chosen = hosts.choose(source, "separate tori", tori, "keep one of them")
    torus = tori[chosen]
    axes = ("x", "y", "z")
    dims = source.mapping(f"{chosen}.dims", torus["dims"], axes, axes)
    sizes = [
        source.integer(f"{chosen}.dims.{axis}", dims[axis], minimum=1) for axis in axes
    ]
    nodes = nodes_of(source, f"{chosen}.nodes", torus["nodes"])
    if prod(sizes) != len(nodes):
        raise source.error(
            f"{chosen}.nodes: expected {' x '.join(map(str, sizes))} = {prod(sizes)} "
            f"nodes, got {len(nodes)}; correct dims or nodes"
        )
    return hosts.torus(source, nodes, "Torus", sizes, name=chosen)


def _flat(source: Source, name: str, value: Any) -> nx.Graph:
    if value is not True:
        raise source.refuse(f"{name}.flat", "true", shown(value))
    count = int(source.option("num_nodes"))
    members = [Host(f"node{idx}", "switch") for idx in range(count)]
    return hosts.tree(source, members, {}, name=name)


#: The kinds of topologies in YAML.
_KINDS: dict[str, Callable[[Source, str, Any], nx.Graph]] = {
    "tree": _tree,
    "block": _block,
    "ring": _ring,
    "torus3d": _torus,
    "flat": _flat,
}


#: Keys of hostlists in an entry, and the key of several entries.
_LISTS = {"switch": ("children", "nodes"), "block": ("nodes",), "ring": ("nodes",)}
_SEVERAL = {"switch": "switches", "block": "blocks", "ring": "rings"}


def _entries(
    source: Source, location: str, value: Any, one: str, *others: str
) -> list[Entry]:
    """Read a list of entries: a ``switch``, a ``block`` or a ``ring`` each.

    ``others`` are keys beside the list.
    """
    several, lists = _SEVERAL[one], _LISTS[one]
    value = source.mapping(location, value, (several, *others), (several,))
    entries = []
    for at, item in source.mappings(
        f"{location}.{several}", value[several], (one, *lists), (one,)
    ):
        hosts_of = {
            key: source.name(f"{at}.{key}", item[key])
            for key in lists
            if item.get(key) is not None
        }
        name = source.name(f"{at}.{one}", item[one])
        nodes, children = hosts_of.get("nodes"), hosts_of.get("children")
        entries.append(Entry(at, name, nodes, children))
    if not entries:
        raise source.refuse(location, several, "none", "add some")
    return entries
