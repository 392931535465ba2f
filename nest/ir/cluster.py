"""Clusters: devices and the network between them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import ClassVar, Literal, get_args

from msgspec.structs import replace

from nest.ir.base import (
    FAST_BYTES_PER_S,
    Count,
    PositiveReal,
    PositiveReals,
    Real,
    Size,
    Struct,
)
from nest.ir.graph_topology import GraphTopology

#: Which collective algorithms a network offers.
Algorithms = Literal["best", "nccl"]
ALGORITHMS: tuple[str, ...] = get_args(Algorithms)

#: Ranges of devices, as (first, end).
Ranges = Iterable[tuple[int, int]]


class Device(Struct, frozen=True, kw_only=True):
    """One accelerator.

    Attributes
    ----------
    memory_bytes
        Capacity.
    hbm_bytes_per_s
        Memory bandwidth; prices the optimiser update. ``None`` means the
        update costs no time.
    peak_flops
        Peak FLOP/s per data type name; used for MFU only.
    reserve_bytes
        The part of the capacity that no plan can use: framework, driver and
        communication library.
    price_usd_per_hour
        What a device costs while it is held; ``None`` if unknown. Prices
        frontiers only.
    """

    name: str = "device"
    memory_bytes: Size
    hbm_bytes_per_s: PositiveReal | None = None
    peak_flops: PositiveReals = {}
    reserve_bytes: Size = 0
    price_usd_per_hour: PositiveReal | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reserve_bytes > self.memory_bytes:
            raise ValueError(
                f"reserve_bytes: expected at most memory_bytes = "
                f"{self.memory_bytes}, got {self.reserve_bytes}"
            )


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
        One message between two devices that meet at this level; one step of
        a collective.
    launch_ns
        What a message or a collective costs once, whatever its size and
        group.
    peer_bandwidth_bytes_per_s
        What of the bandwidth reaches one peer where pairs are joined by
        links of their own: ``n`` members of a group reach ``n-1`` times as
        much. ``None`` behind a switch: all of it.
    """

    name: str = ""
    fan_out: Count
    bandwidth_bytes_per_s: PositiveReal
    latency_ns: Real = 0.0
    launch_ns: Real = 0.0
    peer_bandwidth_bytes_per_s: PositiveReal | None = None


class Hierarchy(
    Struct, frozen=True, kw_only=True, tag_field="kind", tag="hierarchy"
):
    """A tree network: levels from the device up.

    Attributes
    ----------
    levels
        From the device up.
    algorithms
        Collectives on offer: ``best`` is the best of the algorithms in
        :mod:`nest.topology.alphabeta` on one port per device; ``nccl`` those
        of that library, rings over all ports of a node at once.
    """

    #: What limits the number of devices, and what to do about it.
    room: ClassVar = ("the product of the fan-outs", "raise a fan_out")

    levels: tuple[Level, ...]
    algorithms: Algorithms = "best"

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

    @property
    def text(self) -> str:
        """What it looks like, for people."""
        return f"levels {' × '.join(str(x.fan_out) for x in self.levels)}"

    @property
    def parts(self) -> dict[int, str]:
        """What can be made faster apart, for people, by a number."""
        return {
            number: f"level {number}" + (f" ({level.name})" * bool(level.name))
            for number, level in enumerate(self.levels)
            if level.fan_out > 1
        }

    def without_cost(self, part: int | None = None) -> Hierarchy:
        """Return it with one of its parts (or all) taking no time."""
        return replace(
            self,
            levels=tuple(
                replace(
                    level,
                    bandwidth_bytes_per_s=FAST_BYTES_PER_S,
                    peer_bandwidth_bytes_per_s=None,
                    latency_ns=0.0,
                    launch_ns=0.0,
                )
                if part in (None, number)
                else level
                for number, level in enumerate(self.levels)
            ),
        )

    @property
    def unit_sizes(self) -> tuple[int, ...]:
        """Devices that are closer to each other than to others, ascending.

        Down to 2; sizes that planners prefer.
        """
        return tuple(size for size in self.capacities if size > 1)

    @property
    def max_devices(self) -> int:
        """Devices that it has room for."""
        return self.capacities[-1]


#: The kinds of networks that a cluster may have.
Topology = Hierarchy | GraphTopology
#: Their names in files.
TOPOLOGIES: tuple[str, ...] = tuple(
    str(kind.__struct_config__.tag) for kind in get_args(Topology)
)


class Cluster(Struct, frozen=True, kw_only=True):
    """Devices in a fixed order, and their network.

    What a device is like is asked of a range of them, or of all: the methods
    take pairs of first device and end, and ``None`` for the whole cluster.
    """

    name: str = "cluster"
    num_devices: Count
    device: Device
    topology: Topology

    def __post_init__(self) -> None:
        super().__post_init__()
        room = self.topology.max_devices
        if self.num_devices > room:
            limit, remedy = self.topology.room
            raise ValueError(
                f"num_devices: expected <= {room} ({limit}), got "
                f"{self.num_devices}; {remedy}"
            )

    @property
    def types(self) -> tuple[Device, ...]:
        """The types of its devices."""
        return (self.device,)

    @property
    def device_name(self) -> str:
        """What its devices are called."""
        return " + ".join(device.name for device in self.types)

    @property
    def price_usd_per_hour(self) -> float | None:
        """The price of a device, if known."""
        return self.device.price_usd_per_hour

    def types_in(self, ranges: Ranges | None = None) -> tuple[int, ...]:
        """Return which types some devices are of, as positions, ascending."""
        return (0,)

    def memory_bytes(self, ranges: Ranges | None = None) -> int:
        """Return what each of some devices has; of all, the largest has."""
        found = [self.types[i].memory_bytes for i in self.types_in(ranges)]
        return max(found) if ranges is None else min(found)

    def reserve_bytes(self, ranges: Ranges | None = None) -> int:
        """Return the most that some devices reserve; of all, the least."""
        found = [self.types[i].reserve_bytes for i in self.types_in(ranges)]
        return min(found) if ranges is None else max(found)

    def hbm_bytes_per_s(self, ranges: Ranges | None = None) -> float | None:
        """Return the memory bandwidth of the slowest of some devices."""
        known = [self.types[i].hbm_bytes_per_s for i in self.types_in(ranges)]
        return min((b for b in known if b is not None), default=None)

    def peak_flops(self, dtype: str) -> float | None:
        """Return the peak FLOP/s of all devices, if known for the type."""
        peak = self.device.peak_flops.get(dtype)
        return None if peak is None else peak * self.num_devices

    def with_memory(self, memory_bytes: int) -> Cluster:
        """Return the cluster with devices of another capacity."""
        device = replace(self.device, memory_bytes=memory_bytes)
        return replace(self, device=device)
