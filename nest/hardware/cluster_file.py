"""Clusters in files: devices that are known, and what differs from them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from nest.errors import InvalidProblemError, UnknownNameError
from nest.hardware.fabric import MachineRun, mixed_cluster
from nest.hardware.machines import Machine, machine, parse_clusters
from nest.ir.cluster import Cluster, Device, Hierarchy, Level
from nest.ir.io import convert, decode, read_bytes
from nest.units import MAX_TERM
from nest.util.quantities import without_units

#: Where the figures of such a device come from.
_SOURCE = "the cluster file"

#: What a device of no known machine must say.
OWN = ("name", "memory_bytes", "hbm_bytes_per_s", "peak_flops")

#: Endings of files that hold a cluster.
SUFFIXES = (".json", ".yaml", ".yml")


def read_cluster(path: str | Path) -> tuple[Cluster, list[MachineRun]]:
    """Read a cluster: the ``cluster`` of a problem file, with less in it.

    A device names the machine that it is one of (``machine: h100``), whose figures
    count for what it leaves out. The topology left out is that of the machines, as for
    ``h100x64`` and ``h100x64+a100x64``. A device of no known machine says all of
    :data:`OWN` and the machine whose kernels its own are taken to be like (``kernels:
    h100``): that part of the peak they reach. Its topology must be said.

    The file is in JSON, or in YAML if its name ends so. Returns the cluster, and its
    runs of devices of one type, in the order of ranks, with machines that have these
    devices.

    Raises ``InvalidProblemError`` if the file, a machine or the cluster is not valid.
    """
    data = read_bytes(path, InvalidProblemError, "cluster file")
    return decode_cluster(data, str(path))


def decode_cluster(data: bytes, where: str) -> tuple[Cluster, list[MachineRun]]:
    """Return the cluster that a text describes, see :func:`read_cluster`.

    Raises ``InvalidProblemError`` if the text, a machine or the cluster is not valid.
    """
    document = without_units(decode(data, where, dict, "cluster", InvalidProblemError))
    sites: dict[str, Machine] = {}
    filled = {"name": Path(where).stem, **document}
    filled["device"] = _device(document.get("device"), f"{where}: $", sites)
    if isinstance(others := document.get("others"), list):
        filled["others"] = [
            _range(entry, f"{where}: $.others[{index}]", sites)
            for index, entry in enumerate(others)
        ]
    cluster = convert(
        {"topology": _room(document), **filled}, where, Cluster, InvalidProblemError
    )
    machines = [
        (_joined(sites[device.name], cluster), end - first)
        for first, end, device in cluster.runs
    ]
    if "topology" not in document:
        unknown = [x.name for x, _ in machines if x.source == _SOURCE]
        if unknown:
            raise InvalidProblemError(
                f"{where}: $.topology: expected the network of {unknown[0]}, which is "
                f"no known machine, got none; add it, see 'nest new cluster'"
            )
        (site, count), *rest = machines
        made = mixed_cluster(machines) if rest else site.cluster(count)
        cluster = replace(cluster, topology=made.topology)
    return cluster, machines


def _range(device_range: Any, where: str, sites: dict[str, Machine]) -> Any:
    if not isinstance(device_range, Mapping):
        return device_range
    return {**device_range, "device": _device(device_range.get("device"), where, sites)}


def _device(entry: Any, where: str, sites: dict[str, Machine]) -> Device:
    """Return a device with what its machine's has; adds a machine of it."""
    where = f"{where}.device"
    if isinstance(entry, Mapping) and "kernels" in entry:
        return _own_device(entry, where, sites)
    if not isinstance(entry, Mapping) or "machine" not in entry:
        raise InvalidProblemError(
            f"{where}: expected a device with the key 'machine', such as "
            f"{{machine: h100}}, got {entry!r}; see 'nest problems "
            f"--clusters', or for a device of your own 'nest new cluster'"
        )
    site = _machine(entry["machine"], where)
    changes = {key: value for key, value in entry.items() if key != "machine"}
    device = convert(
        {**msgspec.to_builtins(site.device), **changes},
        where,
        Device,
        InvalidProblemError,
    )
    sites[device.name] = replace(site, device=device)
    return device


def _own_device(
    entry: Mapping[str, Any], where: str, sites: dict[str, Machine]
) -> Device:
    """Return a device of no known machine; adds a machine of it."""
    if "machine" in entry:
        raise InvalidProblemError(
            f"{where}: expected either the key 'machine' or 'kernels', got "
            f"both; keep 'machine' for a known one"
        )
    like = _machine(entry["kernels"], where, "kernels")
    for name in OWN:
        if name not in entry:
            raise InvalidProblemError(
                f"{where}: expected key {name!r} of a device with the key "
                f"'kernels', got none; add it"
            )
    figures = {key: value for key, value in entry.items() if key != "kernels"}
    device = convert(figures, where, Device, InvalidProblemError)
    sites[device.name] = replace(
        like,
        name=device.name,
        source=_SOURCE,
        device=device,
        power_w=None,
        exponentials_per_s=None,
    )
    return device


def _machine(name: Any, where: str, key: str = "machine") -> Machine:
    try:
        return machine(str(name))
    except UnknownNameError as error:
        text = str(error).replace("machine:", f"{key}:", 1)
        raise InvalidProblemError(f"{where}.{text}") from None


def _joined(site: Machine, cluster: Cluster) -> Machine:
    """Return a machine of a user's own with the nodes of its network."""
    sizes = cluster.topology.unit_sizes
    if site.source != _SOURCE or not sizes:
        return site
    return replace(site, node=replace(site.node, fan_out=min(sizes)))


def _room(document: Mapping[str, Any]) -> Hierarchy:
    """Return some network for the devices, until they are known."""
    count = document.get("num_devices")
    fan_out = 1
    if isinstance(count, int) and 0 < count <= MAX_TERM:
        fan_out = count
    return Hierarchy(
        levels=(Level(fan_out=fan_out, bandwidth_bytes_per_s=1.0, latency_ns=0.0),)
    )


def find_cluster(text: str) -> tuple[list[MachineRun], Cluster | None]:
    """Return the cluster in a file, or the one that names stand for.

    Returns runs of machines, and the cluster if it is one of a file.
    """
    if text.endswith(SUFFIXES):
        cluster, machines = read_cluster(text)
        return machines, cluster
    return parse_clusters(text), None
