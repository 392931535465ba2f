"""Slurm's ``topology.yaml``: named topologies, one of which is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any

import networkx as nx

from nest.topology.files import hosts
from nest.topology.files.hostlist import MAX_HOSTS
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
    needed = ("name", "dims")
    optional = ("nodes", "regions", "placements")
    for at, torus in source.mappings(
        f"{location}.toruses", value["toruses"], (*needed, *optional), needed
    ):
        torus_name = source.name(f"{at}.name", torus["name"])
        source.check_once(at, "name", torus_name, tori, "rename one")
        if torus.get("placements") is not None:  # which jobs may use, not read
            list(source.mappings(f"{at}.placements", torus["placements"]))
        tori[torus_name] = torus
    if not tori:
        raise source.refuse(location, "tori", "none", "add one")
    chosen = hosts.choose(source, "separate tori", tori, "keep one of them")
    sizes = _per_axis(source, f"{chosen}.dims", tori[chosen]["dims"], 1)
    nodes = _nodes_by_place(source, chosen, tori[chosen], sizes)
    return hosts.torus(source, nodes, "Torus", sizes, name=chosen)


def _per_axis(source: Source, location: str, value: Any, minimum: int) -> list[int]:
    """Return the integers for x, y and z."""
    axes = ("x", "y", "z")
    value = source.mapping(location, value, axes, axes)
    return [
        source.integer(f"{location}.{axis}", value[axis], minimum=minimum)
        for axis in axes
    ]


def _nodes_by_place(
    source: Source, name: str, torus: Mapping[str, Any], sizes: Sequence[int]
) -> list[str]:
    """Return the nodes of a torus, x fastest: of one list, or of regions.

    A region is a box of places from its ``anchor`` on, with a list of its own. Regions
    cover the torus, and do not overlap.
    """
    stated = [key for key in ("nodes", "regions") if torus.get(key) is not None]
    if len(stated) != 1:
        got = " and ".join(stated) or "neither"
        raise source.refuse(name, "nodes or regions", got, "give one of them")
    regions = [(name, {"dims": torus["dims"], "nodes": torus.get("nodes")})]
    if stated == ["regions"]:
        keys = ("dims", "nodes")
        regions = list(
            source.mappings(
                f"{name}.regions", torus["regions"], ("anchor", *keys), keys
            )
        )
    nodes: dict[tuple[int, int, int], str] = {}
    for at, region in regions:
        dims = _per_axis(source, f"{at}.dims", region["dims"], 1)
        anchor = [0, 0, 0]
        if region.get("anchor") is not None:
            anchor = _per_axis(source, f"{at}.anchor", region["anchor"], 0)
        free = MAX_HOSTS - len(nodes)
        members = nodes_of(source, f"{at}.nodes", region["nodes"], free)
        if prod(dims) != len(members):
            raise source.error(
                f"{at}.nodes: expected {' x '.join(map(str, dims))} = {prod(dims)} "
                f"nodes, got {len(members)}; correct dims or nodes"
            )
        ranges = [
            range(start, start + size) for start, size in zip(anchor, dims, strict=True)
        ]
        if any(span.stop > size for span, size in zip(ranges, sizes, strict=True)):
            raise source.refuse(
                at, "a region within dims", "places beyond them", "correct its anchor"
            )
        x, y, z = ranges
        boxes = dict(zip(product(z, y, x), members, strict=True))
        if nodes.keys() & boxes.keys():
            raise source.refuse(
                at, "every place in one region", "one in two", "correct its anchor"
            )
        nodes |= boxes
    if len(nodes) < prod(sizes):
        raise source.error(
            f"{name}.regions: expected a node at each of the "
            f"{' x '.join(map(str, sizes))} = {prod(sizes)} places, got {len(nodes)}; "
            f"add regions"
        )
    return [node for _, node in sorted(nodes.items())]


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
