"""Machines: a device, its node, and the network between nodes."""

from __future__ import annotations

import re
from functools import cache

from msgspec.structs import replace

from nest.errors import InvalidOptionError, UnknownNameError
from nest.hardware.calibration import Calibration, calibration_of
from nest.hardware.devices import DeviceSpec, device_spec
from nest.hardware.links import calibrated, link_spec
from nest.ir.base import Count, PositiveReal, Struct
from nest.ir.cluster import (
    MAX_DEVICES,
    Cluster,
    Device,
    GroupFraction,
    Hierarchy,
    Level,
)
from nest.units import ceil_div
from nest.util.stored import read_records
from nest.util.text import whole_number


class Machine(Struct, frozen=True, kw_only=True):
    """A node type with its network."""

    #: Keyword, and where the figures come from.
    name: str
    source: str = ""
    #: The accelerator.
    device: Device
    #: The network inside a node (its fan-out is the node's size) and between nodes (its
    #: fan-out is replaced by the number of nodes), with data-sheet bandwidths. Their
    #: names are link families.
    node: Level
    network: Level
    #: Device family whose calibration prices operators.
    calibration_family: str
    #: Whether jobs use all nodes alike, each in part if need be (64 of the 72 devices
    #: of an NVLink domain), instead of cutting the last one.
    even: bool = False
    #: Where the same was found later, and what of it; nothing of it is part of a
    #: problem.
    confirmed_by: str = ""
    #: Parameters used instead of the family's stored ones.
    own_calibration: Calibration | None = None
    #: Power that a device may take, in W; ``None`` if it is not known.
    power_w: PositiveReal | None = None
    #: Exponentials that a device computes; ``None`` if it is not known.
    exponentials_per_s: PositiveReal | None = None
    #: Bytes/s between a device and its host in one direction; ``None`` if not known.
    host_bytes_per_s: PositiveReal | None = None

    @property
    def calibration(self) -> Calibration:
        """What operators reach on this device."""
        if self.own_calibration is not None:
            return self.own_calibration
        return calibration_of(self.calibration_family)

    @property
    def half_precision_flops(self) -> float:
        """Peak FLOP/s in 16 bits, 0 without."""
        peaks = self.device.peak_flops
        return peaks.get("bf16") or peaks.get("fp16") or 0.0

    @property
    def power_share(self) -> float:
        """What of the calibrated fractions of FLOP/s its power sustains."""
        calibration, peak = self.calibration, self.half_precision_flops
        if not (self.power_w and calibration.watts_per_tflops and peak):
            return 1.0
        watts_per_tflops = self.power_w / (peak / 1e12)
        ratio = watts_per_tflops / calibration.watts_per_tflops
        # No power takes a product beyond the peak.
        return min(
            float(ratio**calibration.power_exponent), 1 / calibration.matmul_fraction
        )

    @property
    def exponential_size(self) -> float:
        """Values of a head whose products take as long as an exponential.

        Both of a score, at peak rates, with 4 FLOPs for each value; 0 if it
        is not known.
        """
        if self.exponentials_per_s is None:
            return 0.0
        return self.half_precision_flops / (4 * self.exponentials_per_s)

    def with_calibration(self, calibration: Calibration) -> Machine:
        """Return this machine with other operator parameters."""
        return replace(self, own_calibration=calibration)

    def shape(self, num_devices: int) -> tuple[int, int]:
        """Return the nodes of so many devices, and the size of each."""
        size = self.node.fan_out
        nodes = ceil_div(num_devices, size)
        if self.even and nodes > 1:
            nodes = next(
                count
                for count in range(nodes, num_devices + 1)
                if num_devices % count == 0
            )
            size = num_devices // nodes
        return nodes, size

    def cluster(self, num_devices: int) -> Cluster:
        """Return a cluster of this machine.

        Levels carry what links reach, see
        :func:`nest.hardware.links.calibrated`, instead of data-sheet rates.
        """
        nodes, size = self.shape(num_devices)
        return Cluster(
            name=f"{self.name}-{num_devices}",
            num_devices=num_devices,
            device=self.device,
            topology=Hierarchy(
                levels=(
                    replace(calibrated(self.node), fan_out=size),
                    replace(calibrated(self.network), fan_out=nodes),
                ),
                algorithms="nccl",
            ),
        )


class MachineSpec(Struct, frozen=True, kw_only=True):
    """A machine as stored."""

    #: Keywords.
    name: str
    aliases: tuple[str, ...] = ()
    #: A name of ``devices.json``, which gives the network inside a node.
    device: str
    #: Devices per node: those joined by the device's own links.
    node_size: Count
    #: Devices of a host that starts ranks, where a node has several.
    host_size: Count | None = None
    #: A name of ``links.json``; bytes/s per device in one direction.
    network: str
    network_bytes_per_s: PositiveReal
    #: What of a device's bandwidth inside the node reaches one peer, where pairs are
    #: joined by links of their own; ``None`` behind a switch.
    peer_fraction: PositiveReal | None = None
    #: What of it groups of so many devices have, where wires say so.
    group_fractions: tuple[GroupFraction, ...] = ()
    #: See :class:`Machine`.
    even: bool = False
    #: Where the figures come from, and see :class:`Machine`.
    source: str
    confirmed_by: str = ""


@cache
def machine_specs() -> tuple[MachineSpec, ...]:
    """Return all machines as stored; the first of a device is its default."""
    return read_records("nest.hardware", "machines", MachineSpec)


def host_size(device: str) -> int | None:
    """Return how many devices of a name a host has; ``None``: all of a node."""
    sizes = (spec.host_size for spec in machine_specs() if spec.device == device)
    return next(sizes, None)


def build_machine(spec: MachineSpec, device: DeviceSpec) -> Machine:
    """Put a stored machine together with a device."""
    return Machine(
        name=spec.name,
        source=spec.source,
        confirmed_by=spec.confirmed_by,
        device=device.device,
        node=Level(
            name=device.link,
            fan_out=spec.node_size,
            bandwidth_bytes_per_s=device.link_bytes_per_s,
            latency_ns=link_spec(device.link).latency_ns,
            peer_bandwidth_bytes_per_s=(
                spec.peer_fraction and spec.peer_fraction * device.link_bytes_per_s
            ),
            group_fractions=spec.group_fractions,
        ),
        network=Level(
            name=spec.network,
            fan_out=1,
            bandwidth_bytes_per_s=spec.network_bytes_per_s,
            latency_ns=link_spec(spec.network).latency_ns,
        ),
        calibration_family=device.family,
        even=spec.even,
        power_w=device.power_w if device.power_sets_clock else None,
        exponentials_per_s=device.exponentials_per_s,
        host_bytes_per_s=(
            link_spec(device.host_link).bytes_per_s if device.host_link else None
        ),
    )


@cache
def machines() -> tuple[Machine, ...]:
    """Return all stored machines."""
    return tuple(
        build_machine(spec, device_spec(spec.device)) for spec in machine_specs()
    )


def machine(name: str) -> Machine:
    """Return the machine that goes by ``name``.

    Letter case and punctuation do not count.

    Raises ``UnknownNameError`` if there is none; the text lists all names.
    """
    names = [name for spec in machine_specs() for name in (spec.name, *spec.aliases)]
    by_letters = {
        _letters(name): record
        for spec, record in zip(machine_specs(), machines(), strict=True)
        for name in (spec.name, *spec.aliases)
    }
    if _letters(name) not in by_letters:
        raise UnknownNameError("machine", name, names)
    return by_letters[_letters(name)]


def _letters(name: str) -> str:
    return re.sub(r"[\W_]", "", name.casefold())


_CLUSTER = re.compile(
    r"(?P<name>.+?)\s*[x×:]\s*(?P<count>\d+)"
    r"|((?P<nodes>\d+)\s*[x×]\s*)?(?P<first>\d+)\s*[x×]\s*(?P<last>.+)",
    re.IGNORECASE,
)


def parse_clusters(text: str) -> list[tuple[Machine, int]]:
    """Read the names of clusters side by side: ``h100x64+a100x64``.

    Neighbors of one machine are one: ``h100x8+h100x8`` is ``h100x16``.

    Raises as :func:`parse_cluster` does.
    """
    sites: list[tuple[Machine, int]] = []
    for cluster_text in text.split("+"):
        site, count = parse_cluster(cluster_text)
        if sites and sites[-1][0] == site:
            count += sites.pop()[1]
        sites.append((site, count))
    return sites


def parse_cluster(text: str) -> tuple[Machine, int]:
    """Read a cluster name, ``<machine>x<devices>``, such as ``h100x64``.

    ``h100:64``, ``64xh100`` and ``8x8xh100`` (8 nodes) mean the same.

    Raises ``InvalidOptionError`` if the text has another form or asks for no device,
    and ``UnknownNameError`` if the machine is unknown.
    """
    match = _CLUSTER.fullmatch(text.strip())
    if match is None:
        raise InvalidOptionError(
            f"cluster: expected <machine>x<devices> such as h100x64, got {text!r}"
        )
    count = whole_number(match["count"] or match["first"]) or 0
    nodes = whole_number(match["nodes"] or "1") or 0
    count *= nodes
    if not 1 <= count <= MAX_DEVICES:
        raise InvalidOptionError(
            f"cluster: expected 1 to {MAX_DEVICES} devices, got {text!r}; "
            f"name a part of the cluster, such as h100x64"
        )
    site = machine(match["name"] or match["last"])
    if match["nodes"] and count // nodes != site.node.fan_out:
        raise InvalidOptionError(
            f"cluster: expected nodes of {site.node.fan_out} devices for {site.name}, "
            f"got {text!r}; correct it, or describe your nodes with 'nest new cluster'"
        )
    return site, count
