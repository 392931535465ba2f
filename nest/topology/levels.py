"""What a network is like: counts, ports, bisection, diameter, levels.

All bandwidths are one way, in bytes/s, and flows are maximum flows: what
could pass at best if messages took any way through the switches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, get_args

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from nest.errors import InvalidProblemError
from nest.ir.graph import CollectiveKind
from nest.topology.alphabeta import NS_PER_S
from nest.topology.graph.bounds import CROSSING
from nest.topology.pooled import PooledTree, pooled_tree
from nest.topology.routes import (
    PS_PER_NS,
    Routes,
    check_order,
    devices_of,
    forwards,
    twins,
)


@dataclass(frozen=True)
class Range:
    """The least and the most of something."""

    least: float
    most: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Range:
        """Return the range of values, of which there is at least one."""
        numbers = list(values)
        return cls(min(numbers), max(numbers))


@dataclass(frozen=True)
class PartitionFacts:
    """A partition of the devices, such as nodes or racks."""

    #: Of the partition.
    num_units: int
    #: Of a unit.
    devices: Range
    #: What a unit's devices can send to all others.
    out_bytes_per_s: Range
    #: What the parts of a unit can send out of themselves by what it can: its units of
    #: the finer partition, its devices in the finest. 1 where all can talk to the
    #: outside at once.
    oversubscription: Range
    #: Between the first half of the units, by their first device, and the others; of an
    #: odd number the half has one less.
    bisection_bytes_per_s: float


@dataclass(frozen=True)
class NetworkFacts:
    """What ``nest topology show`` says of a network."""

    #: Of the graph, if it has one.
    name: str
    #: Parallel cables are one link, and so are the two arcs of a directed graph.
    num_devices: int
    num_switches: int
    num_links: int
    #: All links of a device together.
    port_bytes_per_s: Range
    #: Between the first half of the devices in order and the others; 0 for one device.
    bisection_bytes_per_s: float
    #: The most over all pairs of devices, each on its route of least latency.
    diameter_hops: int
    diameter_latency_ns: float
    #: What collectives of all devices take at least for every byte of their buffer, by
    #: kind, because of ports and of cuts around the units; none where the two
    #: directions of links differ.
    bounds_ns_per_byte: Mapping[str, float]
    #: Finest first.
    partitions: tuple[PartitionFacts, ...]


def network_facts(graph: nx.Graph, order: Sequence[Any] | None = None) -> NetworkFacts:
    """Return what a network is like.

    The halves are those of ``order``, by default of the order that comes with the
    graph.

    Raises ``InvalidProblemError`` if devices cannot reach each other, or an order is
    not all of them, each once.
    """
    devices = devices_of(graph)
    if not devices:
        raise InvalidProblemError(
            "graph: expected at least one device, got none; give nodes the "
            "kind 'device'"
        )
    if order is not None:
        devices = check_order(devices, order)
    tree = _tree(graph, devices)
    flows: _Flows | _TreeFlows
    if tree is None:
        hops, latency_ns = diameter(graph, devices)
        flows = _Flows(graph, devices)
    else:
        hops, latency_ns = _tree_diameter(tree)
        flows = _TreeFlows(devices, tree)
    cuts = list(_cuts(graph, devices, flows))
    return NetworkFacts(
        name=str(graph.graph.get("name", "")),
        num_devices=len(devices),
        num_switches=len(graph) - len(devices),
        num_links=(nx.Graph(graph) if graph.is_directed() else graph).number_of_edges(),
        port_bytes_per_s=Range.of(cuts[0].out_bytes_per_s.values()),
        bisection_bytes_per_s=flows.between(devices[: len(devices) // 2]),
        diameter_hops=hops,
        diameter_latency_ns=latency_ns,
        bounds_ns_per_byte={} if graph.is_directed() else _bounds(cuts),
        partitions=tuple(_partitions(cuts, flows)),
    )


def diameter(graph: nx.Graph, devices: Sequence[Any]) -> tuple[int, float]:
    """Return the most hops and the most latency (ns) between two devices.

    Raises ``InvalidProblemError`` if devices cannot reach each other.
    """
    classes: dict[Any, list[Any]] = {}
    for device, twin in twins(graph, devices).items():
        classes.setdefault(twin, []).append(device)
    # Others are as far from a device as from its twin, which is one of them.
    targets = [device for same_links in classes.values() for device in same_links[:2]]
    hops, latency_ns = 0, 0.0
    for distances in Routes(graph).distances_of_each(
        _distinct(graph, devices) if "coord" in graph.graph else list(classes), targets
    ):
        hops = max(hops, int(distances.hops.max()))
        latency_ns = max(latency_ns, float(distances.latency_ns.max()))
    return hops, latency_ns


def _tree(graph: nx.Graph, devices: Sequence[Any]) -> PooledTree | None:
    """Return the tree that an undirected graph is as good as, if it is."""
    if graph.is_directed():
        return None
    index = {node: i for i, node in enumerate(graph)}
    links = [
        (
            index[one],
            index[other],
            link["bandwidth"],
            round(link["latency_ns"] * PS_PER_NS),
        )
        for one, other, link in graph.edges(data=True)
    ]
    ones, others, speeds, latencies = zip(*links, strict=True) if links else (((),) * 4)
    return pooled_tree(
        np.array([index[device] for device in devices]),
        np.array([forwards(graph.nodes[node]) for node in graph], np.bool_),
        np.array(ones + others, np.int64),
        np.array(others + ones, np.int64),
        np.array(speeds * 2, np.float64),
        np.array(latencies * 2, np.int64),
    )


def _tree_diameter(tree: PooledTree) -> tuple[int, float]:
    """Return the most hops and the most latency (ns) between two devices.

    What is farthest from anywhere is an end of the longest way.
    """
    everyone = np.arange(len(tree.devices))
    longest = []
    for between in (tree.hops, tree.latencies):
        end = between(everyone[:1], everyone).argmax()
        longest.append(int(between(everyone[end, None], everyone).max()))
    hops, latency_ps = longest
    return hops, latency_ps / PS_PER_NS


def _distinct(graph: nx.Graph, devices: Sequence[Any]) -> list[Any]:
    """Return devices of a torus from which the others are as far as from any.

    One of those that shifts along the axes turn into each other.
    """
    coord = graph.graph["coord"]
    position = {device: tuple(at) for device, at in coord.items()}
    axes = [
        axis for axis in range(len(coord[devices[0]])) if _shifts(graph, position, axis)
    ]
    return [
        device for device in devices if not any(position[device][axis] for axis in axes)
    ]


def _shifts(
    graph: nx.Graph, positions: Mapping[Any, tuple[int, ...]], axis: int
) -> bool:
    """Return whether a step along an axis turns a network into itself."""
    at = {position: device for device, position in positions.items()}
    length = 1 + max(position[axis] for position in at)
    step = {
        device: at.get(
            (*position[:axis], (position[axis] + 1) % length, *position[axis + 1 :])
        )
        for device, position in positions.items()
    }
    return (
        len(at) == len(graph)
        and all(
            step[one] is not None
            and step[other] is not None
            and graph.get_edge_data(step[one], step[other]) == link
            for one, other, link in graph.edges(data=True)
        )
        and all(
            forwards(graph.nodes[device]) == forwards(graph.nodes[to])
            for device, to in step.items()
            if to is not None
        )
    )


class _Cut(NamedTuple):
    """A partition: the devices of its units, and what leaves these."""

    members: dict[Any, list[Any]]
    out_bytes_per_s: dict[Any, float]


def _cuts(
    graph: nx.Graph, devices: Sequence[Any], flows: _Flows | _TreeFlows
) -> Iterator[_Cut]:
    """Yield the devices by themselves, then the partitions, finest first."""
    ports = {
        device: float(sum(x["bandwidth"] for x in graph[device].values()))
        for device in devices
    }
    yield _Cut({device: [device] for device in devices}, ports)
    for units in graph.graph.get("units", []):
        members: dict[Any, list[Any]] = {}
        for device in devices:
            members.setdefault(units[device], []).append(device)
        outs = {unit: flows.between(inner) for unit, inner in members.items()}
        yield _Cut(members, outs)


def _partitions(
    cuts: Sequence[_Cut], flows: _Flows | _TreeFlows
) -> Iterator[PartitionFacts]:
    """Yield what the partitions of a graph are like, finest first."""
    for (finer, finer_outs), (members, outs) in pairwise(cuts):
        unit_of = {device: unit for unit, inner in members.items() for device in inner}
        inside = dict.fromkeys(members, 0.0)
        for finer_unit, (device, *_) in finer.items():
            inside[unit_of[device]] += finer_outs[finer_unit]
        half = list(members)[: len(members) // 2]
        yield PartitionFacts(
            num_units=len(members),
            devices=Range.of(map(len, members.values())),
            out_bytes_per_s=Range.of(outs.values()),
            oversubscription=Range.of(
                inside[unit] / out if out else 1.0 for unit, out in outs.items()
            ),
            bisection_bytes_per_s=flows.between(
                [device for unit in half for device in members[unit]]
            ),
        )


def _bounds(cuts: Sequence[_Cut]) -> dict[str, float]:
    """Return what collectives of all devices take at least, in ns per byte.

    As :func:`nest.topology.graph.bounds.bound_ns` says of one group.
    """
    num_devices = len(cuts[0].members)
    if num_devices < 2:
        return {}
    bounds = dict.fromkeys(get_args(CollectiveKind), 0.0)
    for members, outs in cuts:
        if len(members) < 2:
            continue
        total = 2 * (len(members) - 1) / sum(outs.values())
        bounds["all-reduce"] = max(bounds["all-reduce"], total)
        for unit, inner in members.items():
            for kind in bounds:
                need = max(CROSSING[kind](len(inner), num_devices))
                bounds[kind] = max(bounds[kind], need / outs[unit])
    return {kind: bound * NS_PER_S for kind, bound in bounds.items()}


class _TreeFlows:
    """What :class:`_Flows` says, of a network that is as good as a tree."""

    def __init__(self, devices: Sequence[Any], tree: PooledTree) -> None:
        self.tree = tree
        self.place = {device: i for i, device in enumerate(devices)}

    def between(self, senders: Sequence[Any]) -> float:
        """Return the most from some devices to the others."""
        if not 0 < len(senders) < len(self.place):
            return 0.0
        sends = np.zeros(len(self.place), np.bool_)
        sends[[self.place[device] for device in senders]] = True
        return self.tree.cut(sends)


class _Flows:
    """Maximum flows from some devices to all others, in bytes/s.

    Devices are ends of a flow, so what is left between them is switches: node
    0 is all that send, node 1 all that receive, and switches follow.
    """

    def __init__(self, graph: nx.Graph, devices: Sequence[Any]) -> None:
        self.directed = graph.is_directed()
        self.arcs = nx.DiGraph(graph)
        self.num_devices = len(devices)
        self.switches = {
            node: 2 + i
            for i, node in enumerate(
                node for node, kind in graph.nodes(data="kind") if kind != "device"
            )
        }
        self.into = self._to_devices(self.arcs, devices)
        self.out_of = self._to_devices(self.arcs.reverse(), devices)
        inner = [
            (self.switches[tail], self.switches[head], capacity)
            for tail, head, capacity in self.arcs.edges(data="bandwidth")
            if tail in self.switches and head in self.switches
        ]
        self.inner = np.array(inner, dtype=np.float64).reshape(-1, 3)

    def _to_devices(
        self, arcs: nx.DiGraph, devices: Sequence[Any]
    ) -> NDArray[np.float64]:
        """Return what the arcs of every switch to devices carry."""
        carried = np.zeros(2 + len(self.switches))
        for device in devices:
            for other, link in arcs.pred[device].items():
                if other in self.switches:
                    carried[self.switches[other]] += link["bandwidth"]
        return carried

    def between(self, senders: Sequence[Any]) -> float:
        """Return the most from some devices to the others.

        Where directions differ, the lesser one.
        """
        if not 0 < len(senders) < self.num_devices:
            return 0.0
        forth = self._flow(self.arcs, self.into, senders)
        if not self.directed:
            return forth
        back = self._flow(self.arcs.reverse(), self.out_of, senders)
        return min(forth, back)

    def _flow(
        self, arcs: nx.DiGraph, into: NDArray[np.float64], senders: Sequence[Any]
    ) -> float:
        members = set(senders)
        out = np.zeros_like(into)
        direct = 0.0
        for device in senders:
            for other, link in arcs[device].items():
                if other in self.switches:
                    out[self.switches[other]] += link["bandwidth"]
                elif other not in members:
                    direct += link["bandwidth"]
        inner = self.inner if arcs is self.arcs else self.inner[:, [1, 0, 2]]
        rest = into - self._to_devices(arcs, senders)
        nodes = np.arange(len(into))
        outer = [
            np.stack([np.zeros_like(nodes), nodes, out], axis=1),
            np.stack([nodes, np.ones_like(nodes), rest], axis=1),
        ]
        return direct + _max_flow(np.concatenate([inner, *outer]), len(into))


def _max_flow(arcs: NDArray[np.float64], num_nodes: int) -> float:
    """Return the maximum flow from node 0 to node 1.

    ``arcs`` has shape (arcs, 3): tail, head and capacity of each.
    """
    tails, heads = arcs[:, :2].T.astype(np.int64)
    merged = _merged(tails, heads, arcs[:, 2], num_nodes)
    network = nx.DiGraph()
    network.add_nodes_from((0, 1))
    capacities: dict[tuple[int, int], float] = {}
    ends = merged[tails], merged[heads]
    used = (ends[0] != ends[1]) & (arcs[:, 2] > 0)
    for tail, head, capacity in zip(
        ends[0][used].tolist(),
        ends[1][used].tolist(),
        arcs[used, 2].tolist(),
        strict=True,
    ):
        capacities[tail, head] = capacities.get((tail, head), 0.0) + capacity
    network.add_edges_from(
        (tail, head, {"capacity": capacity})
        for (tail, head), capacity in capacities.items()
    )
    return float(nx.maximum_flow_value(network, 0, 1))


def _merged(
    tails: NDArray[np.int64],
    heads: NDArray[np.int64],
    capacities: NDArray[np.float64],
    num_nodes: int,
) -> NDArray[np.int64]:
    """Return which node each one can be merged with at the same flow.

    A node that can send as much to the sink as ever reaches it might be the
    sink, and one that can receive as much from the source as ever leaves it
    the source. In folded Clos networks little is left.
    """
    merged = np.arange(num_nodes)
    while True:
        tail, head = merged[tails], merged[heads]
        live = (tail != head) & (tail != 1) & (head != 0)
        tail, head, capacity = tail[live], head[live], capacities[live]
        to_sink, from_source = head == 1, tail == 0
        received = _totals(head, capacity, num_nodes)
        sent = _totals(tail, capacity, num_nodes)
        delivered = _totals(tail[to_sink], capacity[to_sink], num_nodes)
        supplied = _totals(head[from_source], capacity[from_source], num_nodes)
        open_ = merged == np.arange(num_nodes)
        open_[:2] = False
        # Merging into the sink leaves all that the source can send as it is,
        # and no node carries more; the same the other way round.
        sinks = open_ & (delivered >= np.minimum(received, sent[0]))
        sources = open_ & (supplied >= np.minimum(sent, received[1]))
        if sinks.any():
            merged[sinks] = 1
        elif sources.any():
            merged[sources] = 0
        else:
            return merged


def _totals(
    nodes: NDArray[np.int64], capacities: NDArray[np.float64], num_nodes: int
) -> NDArray[np.float64]:
    """Return the capacities of the arcs at each node, added up."""
    totals = np.bincount(nodes, capacities, minlength=num_nodes)
    return totals.astype(np.float64)
