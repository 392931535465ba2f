"""Which device comes after which: orders of the devices of a graph.

Plans number devices from 0: stages take consecutive ones, and so do the
groups inside a stage. An order says which device has which number. ``given``
is the order that comes with a graph, ``auto`` keeps together what is close:

- boxes on a torus or mesh (graphs with ``coord``): the longest axis is split
  in two, and each part again;
- else hierarchical clustering (average linkage) of what a message of 64 MiB
  costs between two devices (:func:`~nest.topology.routes.message_costs_ns`),
  partition by partition where the graph has ``units``.

With groups of a plan, ``auto`` takes the cheapest of several such orders and
swaps devices as long as that helps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx
import numpy as np

from nest.errors import InvalidProblemError, UnknownNameError
from nest.topology.routes import (
    Ints,
    Routes,
    check_order,
    devices_of,
    forwards,
    message_costs_ns,
    twins,
)

#: The message that says how close two devices are.
_SIZE_BYTES = 2.0**26

#: Clusters above this number keep their order: each merge looks at all pairs.
MAX_CLUSTERS = 2048

#: How many swaps of two devices are tried at most.
MAX_SWAPS = 20_000

Order = list[Any]


@dataclass(frozen=True)
class Group:
    """Ranks of a plan that talk to each other.

    ``positions`` are the numbers of their devices, from 0; they send messages of
    ``size_bytes``, and ``weight`` says how often.
    """

    positions: tuple[int, ...]
    size_bytes: float = _SIZE_BYTES
    weight: int = 1


class OrderCosts:
    """What orders of the devices of a graph cost.

    A group costs its weight times the most that a message costs between two of its
    devices; an order costs the sum over its groups. This is linear in the assignment of
    devices to positions but for the maximum, so that an exact model stays small. It is
    no price of a collective: it knows neither algorithms nor who shares a link.

    Raises ``InvalidProblemError`` if a group names no position, one twice, or one that
    no device has, or has a weight below 0.
    """

    def __init__(self, graph: nx.Graph, groups: Sequence[Group]) -> None:
        self.devices: Order = devices_of(graph)
        self.groups = tuple(groups)
        _check_groups(self.groups, len(self.devices))
        self._index = {device: i for i, device in enumerate(self.devices)}
        costs_by_size = {
            size: message_costs_ns(graph, self.devices, size)
            for size in sorted({group.size_bytes for group in self.groups})
        }
        #: Per group, shape (devices, devices) in the order of the graph.
        self.pair_costs_ns: tuple[Ints, ...] = tuple(
            costs_by_size[group.size_bytes] for group in self.groups
        )

    def group_ns(self, group_idx: int, assigned: Ints) -> int:
        """Return what a group costs, from the device number per position."""
        group = self.groups[group_idx]
        ranks = assigned[list(group.positions)]
        costs = self.pair_costs_ns[group_idx][np.ix_(ranks, ranks)]
        return group.weight * int(costs.max())

    def assigned(self, order: Sequence[Any]) -> Ints:
        """Return the device number, as in the graph, of every position.

        Raises ``InvalidProblemError`` if the order is not all devices, each once.
        """
        return np.array(
            [self._index[device] for device in check_order(self.devices, order)],
            dtype=np.int64,
        )

    def order_ns(self, order: Sequence[Any]) -> int:
        """Return what an order costs, in ns; 0 without groups.

        Raises ``InvalidProblemError`` if the order is not all devices, each once.
        """
        assigned = self.assigned(order)
        costs = [self.group_ns(i, assigned) for i in range(len(self.groups))]
        return sum(costs)


def _check_groups(groups: Sequence[Group], num_devices: int) -> None:
    for i, group in enumerate(groups):
        where = f"groups[{i}]"
        positions = group.positions
        if not positions or len(set(positions)) != len(positions):
            raise InvalidProblemError(
                f"{where}: expected distinct positions, got "
                f"{list(positions)}; name each once"
            )
        if min(positions) < 0 or max(positions) >= num_devices:
            raise InvalidProblemError(
                f"{where}: expected positions 0..{num_devices - 1}, got "
                f"{list(positions)}; there are {num_devices} devices"
            )
        if group.weight < 0:
            raise InvalidProblemError(
                f"{where}: expected a weight >= 0, got {group.weight}; leave "
                f"the group out"
            )


def auto_order(graph: nx.Graph, groups: Sequence[Group] = ()) -> Order:
    """Return an order that keeps together what is close.

    The same graph gives the same order. With groups it costs no more than
    the order that comes with the graph.

    Raises ``InvalidProblemError`` if devices cannot reach each other, or a group is not
    one.
    """
    orders = _orders(graph)
    if not groups:
        return next(orders)
    costs = OrderCosts(graph, groups)
    best = min(itertools.chain(orders, [costs.devices]), key=costs.order_ns)
    return _swapped(costs, best)


#: Ways to find an order.
ORDERS = ("given", "auto")


def find_order(graph: nx.Graph, how: str | Sequence[Any]) -> Order:
    """Return an order by its name in :data:`ORDERS`, or one that is listed.

    Raises ``UnknownNameError`` if there is no such way, and ``InvalidProblemError`` if
    the order is not all devices, each once.
    """
    if not isinstance(how, str):
        return check_order(devices_of(graph), how)
    if how not in ORDERS:
        raise UnknownNameError("order", how, ORDERS)
    if how == "given":
        return devices_of(graph)
    return auto_order(graph)


@dataclass(frozen=True)
class NodeRanks:
    """A node, its devices and their ranks, in the order of ranks."""

    node: Any
    devices: tuple[Any, ...]
    ranks: tuple[int, ...]


def node_ranks(graph: nx.Graph, order: Sequence[Any]) -> list[NodeRanks]:
    """Return an order as nodes, by their first rank, and their ranks.

    A node is a unit of the finest partition; a device, if there is none.

    Raises ``InvalidProblemError`` if the order is not all devices, each once.
    """
    check_order(devices_of(graph), order)
    ranks_by_node: dict[Any, list[int]] = {}
    units = graph.graph.get("units") or [{device: device for device in order}]
    for rank, device in enumerate(order):
        ranks_by_node.setdefault(units[0][device], []).append(rank)
    return [
        NodeRanks(node, tuple(order[rank] for rank in ranks), tuple(ranks))
        for node, ranks in ranks_by_node.items()
    ]


def _orders(graph: nx.Graph) -> Iterator[Order]:
    """Yield orders that keep together what is close, the usual one first."""
    devices = devices_of(graph)
    coord = graph.graph.get("coord")
    if coord is None:
        yield _clustered(graph, devices)
        return
    axes = range(len(coord[devices[0]]))
    for turn in itertools.islice(itertools.permutations(axes), 24):
        turned = {d: [coord[d][axis] for axis in turn] for d in devices}
        yield _boxes(turned, devices)
    for turn in itertools.islice(itertools.permutations(axes), 24):
        turned = {d: [coord[d][axis] for axis in turn] for d in devices}
        yield sorted(devices, key=turned.__getitem__)


def _boxes(coord: Mapping[Any, Sequence[int]], devices: Order) -> Order:
    """Order by boxes: split the longest axis, the last of several, in two.

    The first part has a multiple of the largest power of two that is at most
    half of the axis, so that boxes of powers of two stay whole.
    """
    if len(devices) <= 1:
        return devices
    seen = [
        sorted({coord[device][axis] for device in devices})
        for axis in range(len(coord[devices[0]]))
    ]
    axis = max(range(len(seen)), key=lambda i: (len(seen[i]), i))
    if len(seen[axis]) == 1:
        return devices
    half = -(-len(seen[axis]) // 2)
    power = 2 ** int(math.log2(len(seen[axis]) // 2))
    border = seen[axis][-(-half // power) * power]
    halves: tuple[Order, Order] = ([], [])
    for device in devices:
        halves[coord[device][axis] >= border].append(device)
    return _boxes(coord, halves[0]) + _boxes(coord, halves[1])


def _clustered(graph: nx.Graph, devices: Order) -> Order:
    """Order the units of every partition, coarsest first, then devices."""
    routes = Routes(graph)
    partitions = graph.graph.get("units") or [twins(graph, devices)]
    # Members of what is still to be put in order, in order so far.
    blocks = [devices]
    for units in [*reversed(partitions), {d: d for d in devices}]:
        split = [_split(block, units) for block in blocks]
        compared = [
            2 < len(clusters) <= MAX_CLUSTERS
            and not _alike(graph, [cluster[0] for cluster in clusters])
            for clusters in split
        ]
        firsts = (
            [cluster[0] for cluster in clusters]
            for clusters in itertools.compress(split, compared)
        )
        costs = routes.costs_ns(firsts, _SIZE_BYTES)
        blocks = []
        for clusters, among in zip(split, compared, strict=True):
            turn = _linkage(next(costs)) if among else range(len(clusters))
            blocks += [clusters[i] for i in turn]
    return [device for block in blocks for device in block]


def _split(devices: Order, units: Mapping[Any, Any]) -> list[Order]:
    """Return the devices of each unit, in the order they come."""
    members: dict[Any, Order] = {}
    for device in devices:
        members.setdefault(units[device], []).append(device)
    return list(members.values())


def _alike(graph: nx.Graph, devices: Order) -> bool:
    """Return whether all devices meet at one switch, at equal links.

    Where the link to it has the least latency of each device, and no link
    joins two of them, the route between any two is these two links.
    """
    members = set(devices)

    def nearest(device: Any) -> tuple[float, float, Any] | None:
        links = [
            (link["latency_ns"], link["bandwidth"], other)
            for other, link in graph[device].items()
        ]
        links.sort(key=lambda link: link[0])
        if not links or (len(links) > 1 and links[0][0] == links[1][0]):
            return None
        if any(other in members for *_, other in links):
            return None
        return links[0]

    first = nearest(devices[0])
    return (
        not graph.is_directed()
        and first is not None
        and forwards(graph.nodes[first[2]])
        and all(nearest(device) == first for device in devices[1:])
    )


def _linkage(costs_ns: Ints) -> list[int]:
    """Order by average linkage: merge the two clusters closest on average.

    Ties go to the lowest numbers. A merged cluster is its parts one after
    the other, turned so that the ends that meet are closest.
    """
    count = len(costs_ns)
    away = ~np.eye(count, dtype=bool)
    if np.unique(costs_ns[away]).size <= 1:
        return list(range(count))
    # Sums are whole numbers: equal averages are equal floats.
    sums = costs_ns.astype(np.float64)
    sizes = np.ones(count)
    average = np.where(np.triu(away), sums, np.inf)
    clusters = {i: [i] for i in range(count)}
    while len(clusters) > 1:
        one, other = divmod(int(np.argmin(average)), count)
        clusters[one] = _joined(clusters[one], clusters.pop(other), costs_ns)
        sums[one] += sums[other]
        sums[:, one] += sums[:, other]
        sizes[one] += sizes[other]
        average[other], average[:, other] = np.inf, np.inf
        for i in clusters:
            if i != one:
                low, high = min(i, one), max(i, one)
                average[low, high] = sums[i, one] / (sizes[i] * sizes[one])
    (cluster,) = clusters.values()
    return cluster


def _joined(one: list[int], other: list[int], costs_ns: Ints) -> list[int]:
    """Return two clusters as one, turned so that close ends meet."""
    first, second = min(
        itertools.product((one, one[::-1]), (other, other[::-1])),
        key=lambda pair: costs_ns[pair[0][-1], pair[1][0]],
    )
    return first + second


def _swapped(costs: OrderCosts, order: Order) -> Order:
    """Swap two devices as long as that makes an order cost less."""
    assigned = costs.assigned(order)
    groups_of: dict[int, list[int]] = {}
    for i, group in enumerate(costs.groups):
        for position in group.positions:
            groups_of.setdefault(position, []).append(i)
    now = [costs.group_ns(i, assigned) for i in range(len(costs.groups))]
    tries, improved = 0, True
    while improved:
        improved = False
        for one, other in itertools.combinations(range(len(assigned)), 2):
            touched = set(groups_of.get(one, ())) ^ set(groups_of.get(other, ()))
            if not touched:
                continue
            tries += 1
            if tries > MAX_SWAPS:
                break
            assigned[[one, other]] = assigned[[other, one]]
            new = list(now)
            for i in touched:
                new[i] = costs.group_ns(i, assigned)
            if sum(new) < sum(now):
                now, improved = new, True
            else:
                assigned[[one, other]] = assigned[[other, one]]
    return [costs.devices[i] for i in assigned]
