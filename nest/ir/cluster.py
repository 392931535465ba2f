"""Clusters: devices and the network between them."""

from __future__ import annotations

import math

from nest.ir.base import Struct, check_integer, check_real


class Device(Struct, frozen=True, kw_only=True):
    """One accelerator.

    Attributes
    ----------
    memory_bytes
        Capacity that a plan may use.
    hbm_bytes_per_s
        Memory bandwidth; prices the optimiser update. ``None`` means the
        update costs no time.
    peak_flops
        Peak FLOP/s per data type name; used for MFU only.
    """

    name: str = "device"
    memory_bytes: int
    hbm_bytes_per_s: float | None = None
    peak_flops: dict[str, float] = {}

    def __post_init__(self) -> None:
        check_integer("memory_bytes", self.memory_bytes, 0)
        if self.hbm_bytes_per_s is not None:
            check_real("hbm_bytes_per_s", self.hbm_bytes_per_s, positive=True)
        for dtype, flops in self.peak_flops.items():
            check_real(f"peak_flops.{dtype}", flops, positive=True)


class Level(Struct, frozen=True, kw_only=True):
    """One level of the network, seen from below.

    Attributes
    ----------
    fan_out
        How many units of the level below (devices at the lowest) it joins.
    bandwidth_bytes_per_s
        Per device, in one direction, when all devices talk across this
        level at once (oversubscription included).
    latency_ns
        One message between two devices that meet at this level.
    """

    name: str = ""
    fan_out: int
    bandwidth_bytes_per_s: float
    latency_ns: float = 0.0

    def __post_init__(self) -> None:
        check_integer("fan_out", self.fan_out, 1)
        check_real(
            "bandwidth_bytes_per_s", self.bandwidth_bytes_per_s, positive=True
        )
        check_real("latency_ns", self.latency_ns)


class Hierarchy(
    Struct, frozen=True, kw_only=True, tag_field="kind", tag="hierarchy"
):
    """A tree network: levels from the device up."""

    levels: tuple[Level, ...]

    def __post_init__(self) -> None:
        if not self.levels:
            raise ValueError("levels: expected at least one level, got none")

    @property
    def capacities(self) -> tuple[int, ...]:
        """Devices below one switch of each level."""
        fan_outs = [level.fan_out for level in self.levels]
        return tuple(
            math.prod(fan_outs[: i + 1]) for i in range(len(fan_outs))
        )


class Cluster(Struct, frozen=True, kw_only=True):
    """``num_devices`` equal devices in a fixed order, and their network."""

    name: str = "cluster"
    num_devices: int
    device: Device
    topology: Hierarchy

    def __post_init__(self) -> None:
        check_integer("num_devices", self.num_devices, 1)
        room = self.topology.capacities[-1]
        if self.num_devices > room:
            raise ValueError(
                f"num_devices: expected <= {room} (the product of the "
                f"fan-outs), got {self.num_devices}; raise a fan_out"
            )
