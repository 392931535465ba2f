"""Clusters: devices and the network between them."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import ClassVar, Literal, get_args

from msgspec.structs import replace

from nest.ir.base import (
    FAST_BYTES_PER_S,
    Count,
    Fraction,
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

#: Larger clusters are typing errors: what asks each device would not end.
MAX_DEVICES = 2**20

#: More levels are none: each that is one has two parts at least.
MAX_LEVELS = 64

#: Ranges of devices, as (first, end).
Ranges = Iterable[tuple[int, int]]


class Device(Struct, frozen=True, kw_only=True):
    """One accelerator.

    Attributes
    ----------
    memory_bytes
        Capacity.
    hbm_bytes_per_s
        Memory bandwidth; prices the optimizer update. ``None`` means the
        update costs no time.
    peak_flops
        Peak FLOP/s per data type name; used for MFU only.
    reserve_bytes
        The part of the capacity that no plan can use: framework, driver and
        communication library.
    price_usd_per_hour
        What a device costs while it is held; ``None`` if unknown. Prices
        frontiers and offers only.
    headroom_bytes
        What a device has beyond its capacity and is kept free. No plan
        counts on it; what is said of memory that may run short does.
    """

    name: str = "device"
    memory_bytes: Size
    hbm_bytes_per_s: PositiveReal | None = None
    peak_flops: PositiveReals = {}
    reserve_bytes: Size = 0
    price_usd_per_hour: PositiveReal | None = None
    headroom_bytes: Size = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reserve_bytes > self.memory_bytes:
            raise ValueError(
                f"reserve_bytes: expected at most memory_bytes = "
                f"{self.memory_bytes}, got {self.reserve_bytes}"
            )


class GroupFraction(Struct, frozen=True, kw_only=True):
    """What groups reach of a bandwidth.

    Attributes
    ----------
    members
        How many members meet, two or more.
    fraction
        What of the bandwidth each of them reaches, above 0.
    """

    members: Count
    fraction: Fraction

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.members < 2:
            raise ValueError(
                f"members: expected at least 2, got {self.members}; one alone "
                f"reaches all of it"
            )
        if self.fraction == 0:
            raise ValueError(
                "fraction: expected more than 0, got 0; give what is reached"
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
        What a message or a collective costs once, whatever its size and group.
    peer_bandwidth_bytes_per_s
        What of the bandwidth reaches one peer where pairs are joined by
        links of their own: ``n`` members of a group reach ``n-1`` times as
        much. ``None`` behind a switch: all of it.
    group_fractions
        What of the bandwidth a collective reaches of which so many members
        meet here: that of the largest number listed that is no more than
        they are. All of it where none is. Messages reach all of it.
    """

    name: str = ""
    fan_out: Count
    bandwidth_bytes_per_s: PositiveReal
    latency_ns: Real = 0.0
    launch_ns: Real = 0.0
    peer_bandwidth_bytes_per_s: PositiveReal | None = None
    group_fractions: tuple[GroupFraction, ...] = ()

    def fraction(self, members: int) -> float:
        """Return what of the bandwidth so many members reach together."""
        reached = [
            (group.members, group.fraction)
            for group in self.group_fractions
            if group.members <= members
        ]
        return max(reached)[1] if reached else 1.0

    @property
    def least_fraction(self) -> float:
        """What of the bandwidth any number of members reaches together."""
        return min((group.fraction for group in self.group_fractions), default=1)


class Hierarchy(Struct, frozen=True, kw_only=True, tag_field="kind", tag="hierarchy"):
    """A tree network: levels from the device up.

    Attributes
    ----------
    levels
        From the device up.
    algorithms
        Collectives on offer: ``best`` is the best of the algorithms in
        :mod:`nest.topology.shares`; ``nccl`` those of that library, rings
        over all ports of a node at once.
    """

    #: The value of the key ``kind`` in files.
    kind: ClassVar[Literal["hierarchy"]] = "hierarchy"
    #: What limits the number of devices, and what to do about it.
    room: ClassVar = ("the product of the fan-outs", "raise a fan_out")

    levels: tuple[Level, ...]
    algorithms: Algorithms = "best"

    def __post_init__(self) -> None:
        if not self.levels:
            raise ValueError("levels: expected at least one level, got none")
        if len(self.levels) > MAX_LEVELS:
            raise ValueError(
                f"levels: expected at most {MAX_LEVELS}, got "
                f"{len(self.levels)}; join levels with a fan_out of 1"
            )

    @property
    def capacities(self) -> tuple[int, ...]:
        """Devices below one switch of each level."""
        fan_outs = [level.fan_out for level in self.levels]
        return tuple(math.prod(fan_outs[: i + 1]) for i in range(len(fan_outs)))

    @property
    def text(self) -> str:
        """What it looks like, for people."""
        return f"levels {' × '.join(str(x.fan_out) for x in self.levels)}"

    @property
    def parts(self) -> dict[int, str]:
        """What can be made faster apart, for people, by a number."""
        return {
            index: f"level {index}" + (f" ({level.name})" * bool(level.name))
            for index, level in enumerate(self.levels)
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
                    group_fractions=(),
                    latency_ns=0.0,
                    launch_ns=0.0,
                )
                if part in (None, index)
                else level
                for index, level in enumerate(self.levels)
            ),
        )

    def scaled(self, factor: float) -> Hierarchy:
        """Return it with everything taking so many times as long."""
        return replace(
            self,
            levels=tuple(
                replace(
                    level,
                    bandwidth_bytes_per_s=level.bandwidth_bytes_per_s / factor,
                    peer_bandwidth_bytes_per_s=(
                        level.peer_bandwidth_bytes_per_s
                        and level.peer_bandwidth_bytes_per_s / factor
                    ),
                    latency_ns=factor * level.latency_ns,
                    launch_ns=factor * level.launch_ns,
                )
                for level in self.levels
            ),
        )

    def led_by(self, _devices: Sequence[int]) -> Hierarchy:
        """Return it for some of its devices: places are all there is."""
        return self

    @property
    def unit_sizes(self) -> tuple[int, ...]:
        """Devices that are closer to each other than to others, ascending.

        Down to 2; sizes that planners prefer.
        """
        return tuple(size for size in self.capacities if size > 1)

    def nodes_of(self, devices: Sequence[int]) -> list[str]:
        """Return the node of each of some devices, as its number from 0.

        A node is the smallest unit of more than one device.
        """
        size = min(self.unit_sizes, default=1)
        return [str(device // size) for device in devices]

    @property
    def max_devices(self) -> int:
        """Devices that it has room for."""
        return self.capacities[-1]


#: The kinds of networks that a cluster may have.
Topology = Hierarchy | GraphTopology
#: Their names in files.
TOPOLOGIES: tuple[str, ...] = tuple(kind.kind for kind in get_args(Topology))


class DeviceRange(Struct, frozen=True, kw_only=True):
    """Consecutive devices of one type.

    Attributes
    ----------
    first, count
        The first device, and how many.
    device
        What each of them is.
    """

    first: Size
    count: Count
    device: Device


class Cluster(Struct, frozen=True, kw_only=True, dict=True):
    """Devices in a fixed order, and their network.

    What a device is like is asked of a range of them, or of all: the methods
    take pairs of first device and end, and ``None`` for the whole cluster.

    Attributes
    ----------
    device
        What devices are where nothing else is said.
    others
        Devices of other types, by ascending position.
    """

    name: str = "cluster"
    num_devices: Count
    device: Device
    others: tuple[DeviceRange, ...] = ()
    topology: Topology

    def __repr__(self) -> str:
        """Return what it is in a line."""
        return (
            f"<Cluster {self.name}: {self.num_devices} × {self.device_name}, "
            f"{self.topology.text}>"
        )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_devices > MAX_DEVICES:
            raise ValueError(
                f"num_devices: expected <= {MAX_DEVICES}, got "
                f"{self.num_devices}; describe a part of the cluster"
            )
        room = self.topology.max_devices
        if self.num_devices > room:
            limit, remedy = self.topology.room
            raise ValueError(
                f"num_devices: expected <= {room} ({limit}), got "
                f"{self.num_devices}; {remedy}"
            )
        end = 0
        for index, device_range in enumerate(self.others):
            if device_range.first < end:
                raise ValueError(
                    f"others[{index}].first: expected >= {end}, where the "
                    f"range before ends, got {device_range.first}; correct it"
                )
            end = device_range.first + device_range.count
        if end > self.num_devices:
            raise ValueError(
                f"others[{len(self.others) - 1}].count: expected ranges within "
                f"num_devices = {self.num_devices}, got an end of {end}; correct it"
            )
        names: set[str] = set()
        for device in self.types:
            if device.name in names:
                raise ValueError(
                    f"others: expected types of distinct names, got "
                    f"{device.name!r} twice; name them apart"
                )
            names.add(device.name)

    @cached_property
    def types(self) -> tuple[Device, ...]:
        """The types of its devices, in the order in which they appear."""
        if not self.others:
            return (self.device,)
        types: list[Device] = []
        named: dict[str, list[Device]] = {}
        for _, _, device in self.runs:
            same_name = named.setdefault(device.name, [])
            if device not in same_name:
                same_name.append(device)
                types.append(device)
        return tuple(types)

    @cached_property
    def runs(self) -> tuple[tuple[int, int, Device], ...]:
        """Runs of devices of one type: first device, end and type."""
        runs: list[tuple[int, int, Device]] = []
        end = 0
        for device_range in self.others:
            if end < device_range.first:
                runs.append((end, device_range.first, self.device))
            end = device_range.first + device_range.count
            runs.append((device_range.first, end, device_range.device))
        if end < self.num_devices:
            runs.append((end, self.num_devices, self.device))
        return tuple(runs)

    @cached_property
    def _run_bounds(self) -> tuple[list[int], list[int], list[int]]:
        """First device, end and type of every run."""
        first, end, devices = zip(*self.runs, strict=True)
        return list(first), list(end), list(map(self.types.index, devices))

    @property
    def device_name(self) -> str:
        """What its devices are called."""
        return " + ".join(device.name for device in self.types)

    @property
    def counts(self) -> dict[str, int]:
        """How many devices there are of each type, by its name."""
        return {
            device.name: self.devices_of(index)
            for index, device in enumerate(self.types)
        }

    def devices_of(self, index: int) -> int:
        """Return how many devices are of a type."""
        kind = self.types[index]
        return sum(end - first for first, end, x in self.runs if x == kind)

    @property
    def price_usd_per_hour(self) -> float | None:
        """The price of a device, if known and the same for all types.

        The first devices of a cluster must cost as much as others.
        """
        first, *others = (device.price_usd_per_hour for device in self.types)
        return first if all(price == first for price in others) else None

    def types_in(self, ranges: Ranges | None = None) -> tuple[int, ...]:
        """Return which types some devices are of, as positions, ascending."""
        if not self.others:
            return (0,)
        if ranges is None:
            return tuple(range(len(self.types)))
        starts, ends, types = self._run_bounds
        indices: set[int] = set()
        for first, end in ranges:
            low = bisect_right(ends, first)
            indices.update(types[low : bisect_left(starts, end)])
        return tuple(sorted(indices))

    def memory_bytes(self, ranges: Ranges | None = None) -> int:
        """Return what each of some devices has; of all, the largest has."""
        sizes = [self.types[i].memory_bytes for i in self.types_in(ranges)]
        return max(sizes) if ranges is None else min(sizes)

    def reserve_bytes(self, ranges: Ranges | None = None) -> int:
        """Return the most that some devices reserve; of all, the least."""
        sizes = [self.types[i].reserve_bytes for i in self.types_in(ranges)]
        return min(sizes) if ranges is None else max(sizes)

    def headroom_bytes(self, ranges: Ranges | None = None) -> int:
        """Return the least that each of some devices keeps free."""
        types = self.types_in(ranges)
        return min(self.types[i].headroom_bytes for i in types)

    def hbm_bytes_per_s(self, ranges: Ranges | None = None) -> float | None:
        """Return the memory bandwidth of the slowest of some devices."""
        bandwidths = [self.types[i].hbm_bytes_per_s for i in self.types_in(ranges)]
        return min((b for b in bandwidths if b is not None), default=None)

    def peak_flops(self, dtype: str) -> float | None:
        """Return the peak FLOP/s of all devices, if known for the type."""
        total = 0.0
        for index, device in enumerate(self.types):
            if dtype not in device.peak_flops:
                return None
            total += device.peak_flops[dtype] * self.devices_of(index)
        return total

    def first_devices(self, num_devices: int) -> Cluster:
        """Return the cluster of the first devices."""
        return replace(
            self,
            num_devices=num_devices,
            others=tuple(
                replace(
                    device_range,
                    count=min(device_range.count, num_devices - device_range.first),
                )
                for device_range in self.others
                if device_range.first < num_devices
            ),
        )

    def keeping(self, counts: Sequence[int]) -> Cluster:
        """Return the cluster of the first devices of every type.

        Those that are left out are not there: others come one after the
        other, on a graph each with its own links.

        Parameters
        ----------
        counts
            How many of each of the types, some at all.
        """
        remaining = list(counts)
        chosen_runs: list[tuple[int, int, Device]] = []
        for first, end, device in self.runs:
            index = self.types.index(device)
            taken = min(end - first, remaining[index])
            remaining[index] -= taken
            if taken:
                chosen_runs.append((first, first + taken, device))
        ranges, position = [], 0
        for first, end, device in chosen_runs:
            ranges.append(DeviceRange(first=position, count=end - first, device=device))
            position += end - first
        chosen = [d for first, end, _ in chosen_runs for d in range(first, end)]
        return replace(
            self,
            num_devices=position,
            device=ranges[0].device,
            others=tuple(x for x in ranges if x.device != ranges[0].device),
            topology=self.topology.led_by(chosen),
        )

    def priced(self, prices: Mapping[str, float]) -> Cluster:
        """Return the cluster with other prices of the types named."""
        return self.with_devices(
            lambda device: replace(
                device,
                price_usd_per_hour=prices.get(device.name, device.price_usd_per_hour),
            )
        )

    def with_memory(self, memory_bytes: int) -> Cluster:
        """Return the cluster with devices of another capacity."""
        return self.with_devices(
            lambda device: replace(device, memory_bytes=memory_bytes)
        )

    def within(self, memory_bytes: int) -> Cluster:
        """Return the cluster with devices of at most such a capacity.

        A device keeps what it reserves.
        """

        def change(device: Device) -> Device:
            limit = max(memory_bytes, device.reserve_bytes)
            return replace(device, memory_bytes=min(device.memory_bytes, limit))

        return self.with_devices(change)

    def with_devices(self, change: Callable[[Device], Device]) -> Cluster:
        """Return the cluster with every device changed, whatever its type."""
        others = tuple(
            replace(device_range, device=change(device_range.device))
            for device_range in self.others
        )
        return replace(self, device=change(self.device), others=others)
