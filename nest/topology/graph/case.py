"""One collective on one graph: what every algorithm takes."""

from __future__ import annotations

from typing import Any

from nest.errors import InvalidProblemError
from nest.ir.base import Real, Struct
from nest.ir.graph import CollectiveKind
from nest.topology.graph.bounds import bound_ns
from nest.topology.graph.convert import read_node_link, topology_of
from nest.topology.graph.network import GraphNetwork


class CollectiveCase(Struct, frozen=True, kw_only=True):
    """A graph and groups that run a collective at the same time."""

    #: For people.
    name: str = ""
    #: A node-link document, see :mod:`nest.topology.graph.convert`.
    graph: dict[str, Any]
    #: Its devices in rank order; by default as the graph says.
    order: tuple[str | int, ...] | None = None
    #: Places in that order, the ranks of each group.
    groups: tuple[tuple[int, ...], ...]
    #: What the groups do.
    collective: CollectiveKind
    #: The whole buffer of a rank.
    bytes: Real
    #: The unit at each place, for each partition, finest first.
    partitions: tuple[tuple[str | int, ...], ...] | None = None
    #: Where each place is on a torus or a grid.
    coord: tuple[tuple[int, ...], ...] | None = None


def price(case: CollectiveCase, where: str = "case") -> dict[str, Any]:
    """Return what the algorithms on offer take.

    That is ``best_ns``, ``best`` (``None`` if nothing is to do), ``algorithms`` (time
    in ns by name) and ``bound_ns``. Raises ``InvalidProblemError`` if the graph is no
    network, or the rest does not fit it.
    """
    graph = read_node_link(case.graph, f"{where}: $.graph")
    settings = graph.graph
    if case.order is not None:
        settings["order"] = [str(name) for name in case.order]
    devices = [
        name for name, node in graph.nodes(data=True) if node.get("kind") == "device"
    ]
    partitions = case.partitions or ()
    for field, values in (
        *((f"partitions[{i}]", units) for i, units in enumerate(partitions)),
        ("coord", case.coord),
    ):
        if values is not None and len(values) != len(devices):
            raise InvalidProblemError(
                f"{where}: $.{field}: expected one entry for each of the "
                f"{len(devices)} devices, got {len(values)}; correct the list"
            )
    # An order that is not as long is refused with the graph.
    order = settings.get("order") or devices
    if case.partitions is not None:
        settings["units"] = [
            dict(zip(order, units, strict=False)) for units in partitions
        ]
    if case.coord is not None:
        settings["coord"] = dict(zip(order, case.coord, strict=False))
    topology = topology_of(graph, f"{where}: $.graph")
    _check_groups(case, topology.max_devices, where)
    network = GraphNetwork(topology)
    groups = [ranks for ranks in case.groups if len(ranks) > 1]
    times_ns = network.offered_ns(case.collective, groups, case.bytes)
    best = min(times_ns, key=times_ns.__getitem__, default=None)
    bound = 0.0
    if times_ns:
        bound = network.launch_ns + bound_ns(
            network.routes, case.collective, groups, case.bytes, network.places
        )
    return {
        "best_ns": 0.0 if best is None else times_ns[best],
        "best": best,
        "algorithms": times_ns,
        "bound_ns": bound,
    }


def _check_groups(case: CollectiveCase, num_devices: int, where: str) -> None:
    if not case.groups:
        raise InvalidProblemError(
            f"{where}: $.groups: expected at least one group, got none; add one"
        )
    for index, group in enumerate(case.groups):
        at = f"{where}: $.groups[{index}]"
        if not group:
            raise InvalidProblemError(
                f"{at}: expected at least one place, got none; remove the group"
            )
        for position in group:
            if not 0 <= position < num_devices:
                raise InvalidProblemError(
                    f"{at}: expected places from 0 to {num_devices - 1}, got "
                    f"{position}; correct it"
                )
        if len(set(group)) < len(group):
            raise InvalidProblemError(
                f"{at}: expected every place once, got {list(group)}; remove one"
            )
