"""Clusters in files: devices that are known, and what differs from them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from nest.errors import InvalidProblemError, UnknownNameError
from nest.hardware.fabric import Part, mixed_cluster
from nest.hardware.machines import Machine, machine, parse_clusters
from nest.ir.cluster import Cluster, Device, Hierarchy, Level
from nest.ir.io import convert, decode, read_bytes

#: Endings of files that hold a cluster.
SUFFIXES = (".json", ".yaml", ".yml")


def read_cluster(path: str | Path) -> tuple[Cluster, list[Part]]:
    """Read a cluster: the ``cluster`` of a problem file, with less in it.

    A device names the machine that it is one of (``machine: h100``), whose
    figures count for what it leaves out. The topology left out is that of
    the machines, as for ``h100x64`` and ``h100x64+a100x64``.

    Parameters
    ----------
    path
        A file in JSON, or in YAML if its name ends so.

    Returns
    -------
    tuple
        The cluster; its runs of devices of one type, in the order of ranks,
        with machines that have these devices.

    Raises
    ------
    InvalidProblemError
        If the file, a machine or the cluster is not valid.
    """
    where = str(path)
    data = read_bytes(path, InvalidProblemError, "cluster file")
    document = decode(data, where, dict, "cluster", InvalidProblemError)
    sites: dict[str, Machine] = {}
    filled = {"name": Path(path).stem, **document}
    filled["device"] = _device(document.get("device"), f"{where}: $", sites)
    if isinstance(others := document.get("others"), list):
        filled["others"] = [
            _range(part, f"{where}: $.others[{number}]", sites)
            for number, part in enumerate(others)
        ]
    cluster = convert(
        {"topology": _room(document), **filled},
        where,
        Cluster,
        InvalidProblemError,
    )
    parts = [
        (sites[device.name], end - first)
        for first, end, device in cluster.runs
    ]
    if "topology" not in document:
        (site, count), *rest = parts
        made = mixed_cluster(parts) if rest else site.cluster(count)
        cluster = replace(cluster, topology=made.topology)
    return cluster, parts


def _range(part: Any, where: str, sites: dict[str, Machine]) -> Any:
    if not isinstance(part, Mapping):
        return part
    return {**part, "device": _device(part.get("device"), where, sites)}


def _device(said: Any, where: str, sites: dict[str, Machine]) -> Device:
    """Return a device with what its machine's has; adds a machine of it."""
    where = f"{where}.device"
    if not isinstance(said, Mapping) or "machine" not in said:
        raise InvalidProblemError(
            f"{where}: expected a device with the key 'machine', such as "
            f"{{machine: h100}}, got {said!r}; see 'nest problems --clusters'"
        )
    try:
        site = machine(str(said["machine"]))
    except UnknownNameError as error:
        raise InvalidProblemError(f"{where}.{error}") from None
    own = {key: value for key, value in said.items() if key != "machine"}
    device = convert(
        {**msgspec.to_builtins(site.device), **own},
        where,
        Device,
        InvalidProblemError,
    )
    sites[device.name] = replace(site, device=device)
    return device


def _room(document: Mapping[str, Any]) -> Hierarchy:
    """Return some network for the devices, until they are known."""
    count = document.get("num_devices")
    wanted = count if isinstance(count, int) and count > 0 else 1
    return Hierarchy(
        levels=(
            Level(fan_out=wanted, bandwidth_bytes_per_s=1.0, latency_ns=0.0),
        )
    )


def find_cluster(text: str) -> tuple[list[Part], Cluster | None]:
    """Return the cluster in a file, or the one that names stand for.

    Returns
    -------
    tuple
        Runs of machines; the cluster, if it is one of a file.
    """
    if text.endswith(SUFFIXES):
        cluster, parts = read_cluster(text)
        return parts, cluster
    return parse_clusters(text), None
