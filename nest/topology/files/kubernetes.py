"""Node labels of Kubernetes, as ``kubectl get nodes -o json`` prints them.

Keys after topograph's ``docs/reference/node-labels.md`` (commit e2b6250).
Values are opaque: equal ones are the same switch, and a missing one is
unknown, not equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import networkx as nx

from nest.topology.files.beside import Beside
from nest.topology.files.layers import Layered, all_or_none, build
from nest.topology.files.source import Source, parse_json, shown

#: More devices in one node are a typing error.
MAX_DEVICES = 1024


class Family(NamedTuple):
    """Labels of one origin; those of tiers stand closest first."""

    origin: str
    tiers: tuple[str, ...]


#: The first of these that any node has is taken. In AWS layer 1 is the spine;
#: the host of GCP is the node itself.
FAMILIES = (
    Family(
        "topograph",
        tuple(f"fabric.topograph.run/tier-{tier}" for tier in range(8)),
    ),
    Family(
        "topograph",
        tuple(
            f"network.topology.nvidia.com/{tier}"
            for tier in ("leaf", "spine", "core")
        ),
    ),
    Family(
        "AWS",
        tuple(
            f"topology.k8s.aws/network-node-layer-{layer}"
            for layer in (3, 2, 1)
        ),
    ),
    Family(
        "GCP",
        tuple(
            f"cloud.google.com/gce-topology-{part}"
            for part in ("subblock", "block")
        ),
    ),
    Family(
        "OCI",
        tuple(
            f"oci.oraclecloud.com/host.{part}"
            for part in ("rack_id", "network_block_id")
        ),
    ),
)

#: Labels of one NVLink network; the first one that any node has is taken.
DOMAINS = (
    "nvidia.com/gpu.clique",
    "accelerator.topograph.run/domain",
    "network.topology.nvidia.com/accelerator",
    "topology.k8s.aws/ultraserver-id",
)


def read(source: Source, beside: Beside) -> nx.Graph:
    """Read a list of nodes with their labels.

    The number of devices of a node is that of its ``.../gpu`` resource, if
    the file has resources; nodes without such devices are left out. Asked for
    beside it: ports of a node, speeds, and the uplinks of each tier.

    Raises
    ------
    InvalidProblemError
        If no node has labels of a network, a node lacks one that others have,
        or names are not unique.
    InvalidOptionError
        If something that is asked for is missing or does not fit.
    """
    value = parse_json(source)
    if isinstance(value, dict):
        value = value.get("items", [value])
    labels: dict[str, dict[str, Any]] = {}
    counts: dict[str, int | None] = {}
    for idx, item in enumerate(source.sequence("items", value)):
        place = f"items[{idx}]"
        node = source.mapping(place, item, None, ("metadata",))
        if node.get("kind", "Node") != "Node":
            raise source.refuse(
                f"{place}.kind",
                "Node",
                shown(node["kind"]),
                "print nodes: kubectl get nodes -o json",
            )
        metadata = source.mapping(
            f"{place}.metadata", node["metadata"], None, ("name",)
        )
        name = source.word(f"{place}.metadata.name", metadata["name"])
        if name in labels:
            raise source.refuse(
                place, "every name once", f"{name} twice", "remove one"
            )
        labels[name] = source.mapping(
            f"{name}.metadata.labels", metadata.get("labels") or {}
        )
        counts[name] = _num_devices(source, name, node)
    labels = {name: labels[name] for name in labels if counts[name] != 0}
    if not labels:
        raise source.refuse("items", "nodes with devices", "none", "add some")
    tiers = _tiers(source, labels)
    per_tier = [
        all_or_none(source, _values(source, labels, key), key) for key in tiers
    ]
    nodes = [
        Layered(name, tuple(tier[name] for tier in per_tier), counts[name])
        for name in labels
    ]
    used = [key for key in DOMAINS if _any(labels, key)]
    domains = (
        all_or_none(source, _values(source, labels, used[0]), used[0])
        if used
        else {}
    )
    return build(source, nodes, domains, beside)


def _any(labels: Mapping[str, Mapping[str, Any]], key: str) -> bool:
    return any(key in own for own in labels.values())


def _tiers(
    source: Source, labels: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    for family in FAMILIES:
        used = [key for key in family.tiers if _any(labels, key)]
        if used:
            return used
    keys = ", ".join(family.tiers[0] for family in FAMILIES)
    raise source.refuse(
        next(iter(labels)),
        f"labels of a network, such as {keys}",
        "none on any node",
        "label the nodes, or give another file",
    )


def _values(
    source: Source, labels: Mapping[str, Mapping[str, Any]], key: str
) -> dict[str, str | None]:
    return {
        name: source.word(f"{name}.metadata.labels.{key}", own[key])
        if own.get(key)
        else None
        for name, own in labels.items()
    }


def _num_devices(
    source: Source, name: str, node: Mapping[str, Any]
) -> int | None:
    """Return how many devices a node has; None if it has no resources."""
    status = source.mapping(f"{name}.status", node.get("status") or {})
    for key in ("allocatable", "capacity"):
        if status.get(key):
            place = f"{name}.status.{key}"
            resources = source.mapping(place, status[key])
            counts = [
                source.integer(f"{place}.{resource}", count, least=0)
                for resource, count in resources.items()
                if resource.endswith("/gpu")
            ]
            if sum(counts) > MAX_DEVICES:
                raise source.refuse(
                    place, f"at most {MAX_DEVICES} devices", sum(counts)
                )
            return sum(counts)
    return None
