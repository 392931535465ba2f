"""NVIDIA topograph: the JSON of its graph engine, and its model files.

Forms after ``docs/engines/graph.md`` and ``docs/modeling.md`` (commit e2b6250)
and the older forms of both: nodes and the switches above them, closest first,
or switches with nodes below them. Neither has speeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import networkx as nx

from nest.topology.files import hosts
from nest.topology.files.hostlist import MAX_HOSTS, expand
from nest.topology.files.hosts import Host
from nest.topology.files.layers import Layered, all_or_none, build
from nest.topology.files.source import Source, parse_json, parse_yaml

#: What tells which nodes share one NVLink network, newest first.
DOMAIN_KEYS = (
    "accelerator.topograph.run/domain",
    "accelerator.topology.test/domain",
    "accelerated.topology.nvidia.com/level-0",
    "nvlink",
)
_HOLDERS = ("labels", "annotations", "attributes")


def read_graph(source: Source) -> nx.Graph:
    """Read what the graph engine prints.

    Options state devices and ports of a node with their speed, and the
    uplinks of each tier.
    """
    top = source.mapping("", parse_json(source), None, ("instances",))
    nodes: list[Layered] = []
    domains: dict[str, str | None] = {}
    for location, entry in source.mappings(
        "instances", top["instances"], None, ("id",)
    ):
        name = source.name(f"{location}.id", entry["id"])
        layers = source.sequence(
            f"{location}.network_layers", entry.get("network_layers") or []
        )
        if not layers:
            raise source.refuse(
                name, "network_layers", "none", "a missing layer is unknown: add it"
            )
        names = tuple(
            source.name(f"{location}.network_layers", layer) for layer in layers
        )
        nodes.append(Layered(name, names))
        domains[name] = _domain(source, location, entry)
    if not nodes:
        raise source.refuse("instances", "instances", "none", "add some")
    return build(source, nodes, all_or_none(source, domains, DOMAIN_KEYS[0]))


def read_model(source: Source) -> nx.Graph:
    """Read a model: switches, and the nodes below them.

    Nodes stand at the switches, or in blocks that name their switch. Options
    state the same as for the graph.
    """
    top = source.mapping(
        "", parse_yaml(source), ("switches", "blocks", "nodes", "capacity_blocks"), ()
    )
    parents: dict[str, str] = {}
    leaf: dict[str, str] = {}
    for location, name, entry in _named(source, "switches", top):
        for child in source.sequence(
            f"{location}.switches", entry.get("switches") or []
        ):
            below = source.name(f"{location}.switches", child)
            hosts.set_parent(source, location, parents, below, name)
        _attach(source, location, entry, name, leaf)
    domains: dict[str, str | None] = {}
    for location, entry in source.mappings(
        "blocks", top.get("blocks") or [], None, ("switch", "nodes")
    ):
        switch = source.name(f"{location}.switch", entry["switch"])
        nodes = _attach(source, location, entry, switch, leaf)
        domains.update(dict.fromkeys(nodes, _domain(source, location, entry)))
    if not leaf:
        raise source.error(
            "expected nodes at switches or in blocks with a switch, got none; say "
            "which switch is above the nodes"
        )
    domains = {name: domains.get(name) for name in leaf}
    if not any(domains.values()):
        domains = _older(source, top, leaf)
    domain_of = all_or_none(source, domains, "an accelerator domain")
    members = [Host(node, switch, domain_of.get(node)) for node, switch in leaf.items()]
    return hosts.tree(source, members, parents)


def _older(
    source: Source, top: Mapping[str, Any], leaf: Mapping[str, str]
) -> dict[str, str | None]:
    """Return the domains of the older form, with ``capacity_blocks``.

    The capacity block of a node is its domain; it stands at the node, or the
    node in the block.
    """
    domains: dict[str, str | None] = dict.fromkeys(leaf)
    for location, name, entry in _named(source, "nodes", top):
        block = entry.get("capacity_block")
        if name in domains and block is not None:
            domains[name] = source.name(f"{location}.capacity_block", block)
    for location, name, entry in _named(source, "capacity_blocks", top):
        for node in _expanded(source, location, entry):
            if domains.get(node) not in (None, name):
                raise source.error(
                    f"{location}: expected {node} in one capacity block, got "
                    f"{domains[node]} and {name}; correct one of them"
                )
            if node in domains:
                domains[node] = name
    return domains


def _named(
    source: Source, key: str, top: Mapping[str, Any]
) -> Iterable[tuple[str, str, dict[str, Any]]]:
    """Yield location, name and fields of a map of entries, or a named list."""
    entries = top.get(key)
    if entries is None:
        return
    if isinstance(entries, list):
        seen: set[str] = set()
        for location, entry in source.mappings(key, entries, None, ("name",)):
            name = source.name(f"{location}.name", entry["name"])
            source.check_once(location, "name", name, seen)
            seen.add(name)
            yield location, name, entry
        return
    if not isinstance(entries, dict):
        source.mapping(key, entries)
    for name, item in entries.items():
        location = f"{key}.{name}"
        yield (location, source.name(key, name), source.mapping(location, item or {}))


def _expanded(source: Source, location: str, entry: Mapping[str, Any]) -> list[str]:
    nodes: list[str] = []
    where = f"{source.where}: {location}"
    for item in source.sequence(f"{location}.nodes", entry.get("nodes") or []):
        text = source.name(f"{location}.nodes", item)
        nodes += expand(text, where, MAX_HOSTS - len(nodes))
    return nodes


def _attach(
    source: Source,
    location: str,
    entry: Mapping[str, Any],
    switch: str,
    leaf: dict[str, str],
) -> list[str]:
    """Note the switch of an entry's nodes, and return the nodes."""
    nodes = _expanded(source, location, entry)
    for node in nodes:
        if node in leaf:
            raise source.error(
                f"{location}: expected {node} once, got it below {leaf[node]} and "
                f"{switch}; remove one"
            )
        leaf[node] = switch
    return nodes


def _domain(source: Source, location: str, entry: Mapping[str, Any]) -> str | None:
    for holder in _HOLDERS:
        values = entry.get(holder)
        if values is None:
            continue
        values = source.mapping(f"{location}.{holder}", values)
        for key in DOMAIN_KEYS:
            if values.get(key) is not None:
                return source.name(f"{location}.{holder}.{key}", values[key])
    return None
