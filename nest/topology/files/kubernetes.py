"""Node labels of Kubernetes, as ``kubectl get nodes -o json`` prints them.

Keys after topograph's ``docs/reference/node-labels.md`` (commit e2b6250). Values are
opaque: equal ones are the same switch, and a missing one is unknown, not equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import networkx as nx

from nest.topology.files.layers import Layered, all_or_none, build
from nest.topology.files.source import Source, parse_json, shown

#: More devices in one node are a typing error.
MAX_DEVICES = 1024


#: Labels of tiers, closest first: what they begin with, and their ends. The first row
#: that any node has is taken. The rows are those of topograph (new and old), of AWS,
#: where layer 1 is the spine, of GCP, whose host is the node itself, and of OCI.
TIERS = (
    ("fabric.topograph.run/tier-", tuple(map(str, range(8)))),
    ("network.topology.nvidia.com/", ("leaf", "spine", "core")),
    ("topology.k8s.aws/network-node-layer-", ("3", "2", "1")),
    ("cloud.google.com/gce-topology-", ("subblock", "block")),
    ("oci.oraclecloud.com/host.", ("rack_id", "network_block_id")),
)

#: Labels of one NVLink network; the first one that any node has is taken.
DOMAINS = (
    "nvidia.com/gpu.clique",
    "accelerator.topograph.run/domain",
    "network.topology.nvidia.com/accelerator",
    "topology.k8s.aws/ultraserver-id",
)


def read(source: Source) -> nx.Graph:
    """Read a list of nodes with their labels.

    The number of devices of a node is that of its ``.../gpu`` resource, if
    the file has resources; nodes without such devices are left out. Options
    state ports of a node, speeds, and the uplinks of each tier.
    """
    value = parse_json(source)
    if isinstance(value, dict):
        value = value.get("items", [value])
    labels: dict[str, dict[str, Any]] = {}
    counts: dict[str, int | None] = {}
    for location, node in source.mappings("items", value, None, ("metadata",)):
        if node.get("kind", "Node") != "Node":
            raise source.error(
                f"{location}.kind: expected Node, got {shown(node['kind'])}; print "
                f"nodes: kubectl get nodes -o json"
            )
        metadata = source.mapping(
            f"{location}.metadata", node["metadata"], None, ("name",)
        )
        name = source.name(f"{location}.metadata.name", metadata["name"])
        source.check_once(location, "name", name, labels)
        labels[name] = source.mapping(
            f"{name}.metadata.labels", metadata.get("labels") or {}
        )
        counts[name] = _num_devices(source, name, node)
    labels = {name: labels[name] for name in labels if counts[name] != 0}
    if not labels:
        raise source.refuse("items", "nodes with devices", "none", "add some")
    tiers = _tiers(source, labels)
    per_tier = [all_or_none(source, _values(source, labels, key), key) for key in tiers]
    nodes = [
        Layered(name, tuple(tier[name] for tier in per_tier), counts[name])
        for name in labels
    ]
    domains: dict[str, str] = {}
    for key in _used(labels, DOMAINS)[:1]:
        domains = all_or_none(source, _values(source, labels, key), key)
    return build(source, nodes, domains)


def _used(labels: Mapping[str, Mapping[str, Any]], keys: Iterable[str]) -> list[str]:
    """Return the keys that any node has."""
    return [key for key in keys if any(key in x for x in labels.values())]


def _tiers(source: Source, labels: Mapping[str, Mapping[str, Any]]) -> list[str]:
    for prefix, ends in TIERS:
        if used := _used(labels, [prefix + end for end in ends]):
            return used
    keys = ", ".join(prefix + ends[0] for prefix, ends in TIERS)
    raise source.error(
        f"{next(iter(labels))}: expected labels of a network, such as {keys}, got none "
        f"on any node; label the nodes, or give another file"
    )


def _values(
    source: Source, labels: Mapping[str, Mapping[str, Any]], key: str
) -> dict[str, str | None]:
    return {
        name: source.name(f"{name}.metadata.labels.{key}", of_node[key])
        if of_node.get(key)
        else None
        for name, of_node in labels.items()
    }


def _num_devices(source: Source, name: str, node: Mapping[str, Any]) -> int | None:
    """Return how many devices a node has; None if it has no resources."""
    status = source.mapping(f"{name}.status", node.get("status") or {})
    for key in ("allocatable", "capacity"):
        if status.get(key):
            location = f"{name}.status.{key}"
            resources = source.mapping(location, status[key])
            counts = [
                source.integer(f"{location}.{resource}", count, minimum=0)
                for resource, count in resources.items()
                if resource.endswith("/gpu")
            ]
            if sum(counts) > MAX_DEVICES:
                raise source.refuse(
                    location, f"at most {MAX_DEVICES} devices", sum(counts)
                )
            return sum(counts)
    return None
