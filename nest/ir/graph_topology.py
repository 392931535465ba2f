"""Networks as graphs: devices and switches, joined by links."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, ClassVar, Literal, get_args

from msgspec.structs import replace

from nest.ir.base import (
    FAST_BYTES_PER_S,
    PositiveReal,
    Real,
    Struct,
    check_positive,
    check_real,
)

NodeKind = Literal["device", "switch"]
NODE_KINDS: tuple[str, ...] = get_args(NodeKind)

#: The longest latency of a link: sums of them stay within 64-bit integers.
MAX_LATENCY_NS = 1e9


def _check_latency(field: str, value: float) -> None:
    check_real(field, value)
    if value > MAX_LATENCY_NS:
        raise ValueError(
            f"{field}: expected <= {MAX_LATENCY_NS:g} (1 s), got {value:g}; "
            f"check its unit"
        )


def check_link(bandwidth_bytes_per_s: float, latency_ns: float) -> None:
    """Raise ``ValueError`` unless a link may have these values."""
    check_positive("bandwidth (bytes/s)", bandwidth_bytes_per_s)
    _check_latency("latency_ns", latency_ns)


class NetworkNode(Struct, frozen=True, kw_only=True):
    """A device or a switch.

    ``forward`` says whether it passes on what is meant for others; by default switches
    do and devices do not.
    """

    id: str
    kind: NodeKind = "device"
    forward: bool | None = None

    @property
    def forwards(self) -> bool:
        """Whether it passes messages on."""
        if self.forward is None:
            return self.kind == "switch"
        return self.forward


class NetworkLink(Struct, frozen=True, kw_only=True):
    """A link between two nodes, the same in both directions.

    In a directed graph it leads from ``source`` to ``target`` only. The bandwidth is
    that of one direction; the latency, of one message, is at most 1 s.
    """

    source: str
    target: str
    bandwidth_bytes_per_s: PositiveReal
    latency_ns: Annotated[float, _check_latency] = 0.0


class GraphTopology(Struct, frozen=True, kw_only=True, tag_field="kind", tag="graph"):
    """Any network of devices and switches.

    Raises ``ValueError`` if two nodes have one name, a link has an end that is no node
    or joins what is joined already, order, units or coordinates miss a device or name
    what is none, or two devices are not connected.
    """

    #: The value of the key ``kind`` in files.
    kind: ClassVar[Literal["graph"]] = "graph"
    #: What limits the number of devices, and what to do about it.
    room: ClassVar = ("the devices of the graph", "add some")

    #: Devices and switches.
    nodes: tuple[NetworkNode, ...]
    #: At most one between two nodes; in a directed graph at most one each way.
    links: tuple[NetworkLink, ...]
    #: Whether links lead one way only.
    directed: bool = False
    #: All devices in rank order; by default as in ``nodes``.
    order: tuple[str, ...] = ()
    #: Partitions of the devices, finest first: the unit (node, rack, …) of each. A
    #: finer unit lies within one coarser unit.
    units: tuple[dict[str, str], ...] = ()
    #: Where each device is on a torus or a grid: as many axes for all.
    coordinates: dict[str, tuple[int, ...]] = {}
    #: What a message or a collective costs once, whatever its size.
    launch_ns: Real = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        node_ids = {node.id for node in self.nodes}
        for name, count in Counter(node.id for node in self.nodes).items():
            if count > 1:
                raise ValueError(
                    f"nodes: expected distinct ids, got {name!r} twice; rename one"
                )
        if not any(node.kind == "device" for node in self.nodes):
            raise ValueError("nodes: expected at least one device, got none")
        self._check_links(node_ids)
        if self.order:
            self._check_devices("order", self.order)
        for index, partition in enumerate(self.units):
            self._check_devices(f"units[{index}]", partition)
        self._check_nesting()
        if self.coordinates:
            self._check_coordinates()
        self._check_connected()

    def _check_links(self, node_ids: set[str]) -> None:
        seen = set()
        for index, link in enumerate(self.links):
            where, ends = f"links[{index}]", (link.source, link.target)
            for end in ends:
                if end not in node_ids:
                    raise ValueError(
                        f"{where}: expected ends among the nodes, got "
                        f"{end!r}; add the node or correct the name"
                    )
            if link.source == link.target:
                raise ValueError(
                    f"{where}: expected two ends, got {link.source!r} twice; "
                    f"remove the link"
                )
            key = ends if self.directed else tuple(sorted(ends))
            if key in seen:
                raise ValueError(
                    f"{where}: expected one link between two nodes, got a second one "
                    f"from {link.source!r} to {link.target!r}; add up their bandwidths"
                )
            seen.add(key)

    def _check_devices(self, field: str, names: Iterable[str]) -> None:
        """Refuse names that are not those of all devices, each once."""
        kinds = {node.id: node.kind for node in self.nodes}
        counts = Counter(iter(names))
        for name, count in counts.items():
            if name not in kinds:
                raise ValueError(
                    f"{field}: expected devices, got {name!r}, which is no "
                    f"node; correct the name"
                )
            if kinds[name] != "device":
                raise ValueError(
                    f"{field}: expected devices, got the switch {name!r}; remove it"
                )
            if count > 1:
                raise ValueError(
                    f"{field}: expected every device once, got {name!r} "
                    f"{count} times; remove one"
                )
        for name, kind in kinds.items():
            if kind == "device" and name not in counts:
                raise ValueError(
                    f"{field}: expected every device, got none for {name!r}; add it"
                )

    def _check_nesting(self) -> None:
        for index in range(1, len(self.units)):
            finer, coarser = self.units[index - 1 : index + 1]
            outer_of: dict[str, str] = {}
            for name, unit in finer.items():
                other = outer_of.setdefault(unit, coarser[name])
                if other != coarser[name]:
                    raise ValueError(
                        f"units[{index}]: expected units that hold whole "
                        f"finer ones, got {unit!r} in {other!r} and in "
                        f"{coarser[name]!r}; list the finest first"
                    )

    def _check_coordinates(self) -> None:
        self._check_devices("coordinates", self.coordinates)
        axes = {len(position) for position in self.coordinates.values()}
        if len(axes) > 1 or 0 in axes:
            raise ValueError(
                f"coordinates: expected as many axes for every device, got "
                f"{' and '.join(map(str, sorted(axes)))}; complete them"
            )

    def _check_connected(self) -> None:
        """Refuse devices that a message from another one cannot reach."""
        forwards = {node.id: node.forwards for node in self.nodes}
        onward: dict[str, list[str]] = defaultdict(list)
        back: dict[str, list[str]] = defaultdict(list)
        for link in self.links:
            onward[link.source].append(link.target)
            back[link.target].append(link.source)
            if not self.directed:
                onward[link.target].append(link.source)
                back[link.source].append(link.target)
        devices = self.ranks
        hub = next((name for name in forwards if forwards[name]), None)
        if hub is not None:
            # Enough for nearly all networks: every device reaches a node
            # that passes messages on, and is reached from it.
            reached = _reached(hub, onward, forwards)
            reaching = _reached(hub, back, forwards)
            if reached.issuperset(devices) and reaching.issuperset(devices):
                return
        for device in devices:
            reached = _reached(device, onward, forwards)
            for other in devices:
                if other not in reached:
                    raise ValueError(
                        f"links: expected a path between all devices, got "
                        f"none from {device!r} to {other!r}; add a link, or "
                        f"let nodes in between forward"
                    )

    @property
    def ranks(self) -> tuple[str, ...]:
        """All devices in rank order."""
        return self.order or tuple(
            node.id for node in self.nodes if node.kind == "device"
        )

    def led_by(self, devices: Sequence[int]) -> GraphTopology:
        """Return it with some devices, by rank, in front of all others."""
        ranks, chosen = self.ranks, set(devices)
        if list(devices) == list(range(len(devices))):
            return self
        others = [i for i in range(len(ranks)) if i not in chosen]
        order = tuple(ranks[i] for i in (*devices, *others))
        return replace(self, order=order)

    @property
    def text(self) -> str:
        """What it looks like, for people."""
        switches = len(self.nodes) - self.max_devices
        return (
            f"graph of {self.max_devices} devices, {switches} switches and "
            f"{len(self.links)} links"
        )

    @property
    def _speeds(self) -> list[float]:
        """Bandwidths that links have, fastest first."""
        speeds = {link.bandwidth_bytes_per_s for link in self.links}
        return sorted(speeds, reverse=True)

    @property
    def parts(self) -> dict[int, str]:
        """What can be made faster apart, for people, by a number.

        Links of one bandwidth are a part.
        """
        return {
            index: f"links of {speed / 1e9:g} GB/s"
            for index, speed in enumerate(self._speeds)
        }

    def without_cost(self, part: int | None = None) -> GraphTopology:
        """Return it with one of its parts (or all) taking no time.

        Messages may then take other routes.
        """
        speeds = self._speeds if part is None else [self._speeds[part]]
        return replace(
            self,
            launch_ns=0.0 if part is None else self.launch_ns,
            links=tuple(
                replace(link, bandwidth_bytes_per_s=FAST_BYTES_PER_S, latency_ns=0.0)
                if link.bandwidth_bytes_per_s in speeds
                else link
                for link in self.links
            ),
        )

    def scaled(self, factor: float) -> GraphTopology:
        """Return it with everything taking so many times as long."""
        return replace(
            self,
            launch_ns=factor * self.launch_ns,
            links=tuple(
                replace(
                    link,
                    bandwidth_bytes_per_s=link.bandwidth_bytes_per_s / factor,
                    latency_ns=min(factor * link.latency_ns, MAX_LATENCY_NS),
                )
                for link in self.links
            ),
        )

    @property
    def unit_sizes(self) -> tuple[int, ...]:
        """Devices that are closer to each other than to others, ascending.

        Down to 2; sizes that planners prefer.
        """
        sizes = {max(Counter(units.values()).values()) for units in self.units}
        return tuple(sorted({*sizes, self.max_devices} - {1}))

    def nodes_of(self, devices: Sequence[int]) -> list[str]:
        """Return the node of each of some devices: its finest unit's name.

        Empty if the graph has no units.
        """
        if not self.units:
            return []
        ranks = self.ranks
        return [self.units[0][ranks[device]] for device in devices]

    @property
    def max_devices(self) -> int:
        """Devices that it has room for."""
        return sum(node.kind == "device" for node in self.nodes)


def _reached(
    start: str, neighbors: Mapping[str, list[str]], forwards: Mapping[str, bool]
) -> set[str]:
    reached, remaining = {start}, [start]
    while remaining:
        node = remaining.pop()
        if node != start and not forwards[node]:
            continue
        fresh = [name for name in neighbors[node] if name not in reached]
        reached.update(fresh)
        remaining += fresh
    return reached
