"""Cluster files to begin with: a machine, what differs, and comments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from nest.hardware.machines import Machine
from nest.ir.base import Struct


class ClusterTemplate(Struct, frozen=True, kw_only=True):
    """The figures of a cluster file; ``None`` is as the machine has it."""

    #: All devices, and those of a node.
    num_devices: int
    node_size: int | None = None
    #: Data-sheet bandwidth inside a node and between nodes, per device, in one
    #: direction.
    node_bytes_per_s: float | None = None
    network_bytes_per_s: float | None = None
    #: Of a device.
    price_usd_per_hour: float | None = None
    #: Of a device of a user's own; with one all its figures are written.
    name: str | None = None
    #: Figures of the device; FLOP/s in 16 bits.
    memory_bytes: int | None = None
    hbm_bytes_per_s: float | None = None
    peak_flops: float | None = None


def cluster_text(site: Machine, template: ClusterTemplate) -> str:
    """Return a cluster file in YAML for :func:`nest.hardware.read_cluster`.

    Bandwidths are what links reach of the data sheet by their calibration,
    see :mod:`nest.hardware.links`. A network that is the machine's own is
    left out, and a comment says how to describe it.
    """
    device = _device(site, template)
    lines = [
        "# A cluster for --cluster; docs/files.md describes every field.",
        "# Every quantity has its unit in its name; all of it may be changed.",
        f"num_devices: {template.num_devices}",
        "device:",
        *(f"  {name}: {value}" for name, value in device.items()),
        "# Devices of other types, by position:",
        "# others:",
        "#   - {first: 0, count: 8, device: {machine: a100}}",
    ]
    own_network = template.name is not None or any(
        (template.node_size, template.node_bytes_per_s, template.network_bytes_per_s)
    )
    network = _network(site, template)
    if own_network:
        lines.append("# Levels from the device up, with what links reach:")
        lines += network
    else:
        lines.append("# The network is the machine's own, unless it is said:")
        lines += [f"# {line}" for line in network]
    lines += [
        "# Any other network is a graph, such as two devices on a switch:",
        "# topology:",
        "#   kind: graph",
        "#   nodes: [{id: gpu0}, {id: gpu1}, {id: leaf, kind: switch}]",
        "#   links:",
        *(
            f"#     - {{source: {gpu}, target: leaf, "
            f"bandwidth_bytes_per_s: 5.0e+10, latency_ns: 500}}"
            for gpu in ("gpu0", "gpu1")
        ),
    ]
    return "\n".join(lines) + "\n"


def _device(site: Machine, template: ClusterTemplate) -> Mapping[str, str]:
    """Return the keys of the device."""
    device = site.device
    figures: dict[str, str] = {}
    stated = {
        "memory_bytes": template.memory_bytes,
        "hbm_bytes_per_s": template.hbm_bytes_per_s,
    }
    peaks = dict(device.peak_flops)
    if template.peak_flops is not None:
        half = site.half_precision_flops
        peaks = {
            kind: float(f"{template.peak_flops * peak / half:.4g}")
            for kind, peak in peaks.items()
        }
    if template.name is None:
        figures["machine"] = site.name
        figures |= {k: _number(v) for k, v in stated.items() if v is not None}
        if stated != dict.fromkeys(stated) or template.peak_flops is not None:
            figures["name"] = json.dumps(f"{device.name}-changed")
        if template.peak_flops is not None:
            figures["peak_flops"] = _flow(peaks)
    else:
        figures["name"] = json.dumps(template.name, ensure_ascii=False)
        figures["kernels"] = (
            f"{site.name}  # they reach as much of the peak as those of"
        )
        for name, value in stated.items():
            figures[name] = _number(value or getattr(device, name))
        figures["reserve_bytes"] = f"{device.reserve_bytes}  # what no plan can use"
        figures["peak_flops"] = _flow(peaks)
    price = template.price_usd_per_hour
    if price is not None:
        figures["price_usd_per_hour"] = _number(price)
    return figures


def _network(site: Machine, template: ClusterTemplate) -> list[str]:
    node, network = site.node, site.network
    peer = node.peer_bandwidth_bytes_per_s
    if template.node_bytes_per_s is not None:
        times = template.node_bytes_per_s / node.bandwidth_bytes_per_s
        node = replace(
            node,
            bandwidth_bytes_per_s=template.node_bytes_per_s,
            peer_bandwidth_bytes_per_s=None if peer is None else peer * times,
        )
    if template.network_bytes_per_s is not None:
        network = replace(network, bandwidth_bytes_per_s=template.network_bytes_per_s)
    node = replace(node, fan_out=template.node_size or node.fan_out)
    changed = replace(site, node=node, network=network)
    topology = msgspec.to_builtins(changed.cluster(template.num_devices).topology)
    lines = ["topology:"]
    for name, value in topology.items():
        if name != "levels":
            lines.append(f"  {name}: {value}")
    lines.append("  levels:")
    lines += [f"    - {_flow(level)}" for level in topology["levels"]]
    return lines


def _flow(value: Any) -> str:
    """Return a value in YAML on one line."""
    if isinstance(value, Mapping):
        fields = (f"{name}: {_flow(x)}" for name, x in value.items())
        return f"{{{', '.join(fields)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_flow, value))}]"
    return _number(value) if isinstance(value, int | float) else str(value)


def _number(value: float) -> str:
    """Return a number that YAML 1.1 reads as one, exactly."""
    if isinstance(value, int):
        return str(value)
    if abs(value) < 1e6:
        return repr(float(value))
    return next(
        text for digits in range(1, 18) if float(text := f"{value:.{digits}e}") == value
    )
