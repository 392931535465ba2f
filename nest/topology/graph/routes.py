"""Least-latency routes on a graph, spread over all that are tied."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np

from nest.topology.graph.paths import Paths, all_pairs
from nest.topology.graph.shifts import SMALL, shifted_ways
from nest.topology.graph.switches import switch_ways
from nest.topology.graph.trees import tree_ways
from nest.topology.graph.wires import Floats, Ints, Ways, Wires

__all__ = ["Floats", "Ints", "Routes", "network_flow"]


class Routes(Wires):
    """Routes between the devices of a graph."""

    @cached_property
    def ways(self) -> Ways:
        """What knows the routes."""
        ways: Ways | None = tree_ways(self) or switch_ways(self)
        if ways is None and len(self.ranks) > SMALL:
            ways = shifted_ways(self)
        return ways or Paths(self)

    def latencies_fs(self, sources: Ints, targets: Ints) -> Ints:
        """Return the latencies of the routes between ranks."""
        return self.ways.latencies_fs(sources, targets)

    def busiest(
        self,
        sources: Ints,
        targets: Ints,
        amounts: Floats,
        pairs: Sequence[tuple[Ints, Floats]] = (),
    ) -> float:
        """Return the largest load over bandwidth that flows make, in s.

        The first three arrays are flat: of each flow its ends (ranks), and what it
        carries. ``pairs`` are groups, a row each, all of whose ranks send to all
        others, with what goes from one to another.
        """
        return float(self._loads((sources, targets, amounts), pairs).max(initial=0))

    def _loads(
        self, flows: tuple[Ints, Ints, Floats], pairs: Sequence[tuple[Ints, Floats]]
    ) -> Floats:
        """Return load over bandwidth of every link, in s."""
        loads = np.zeros(len(self.ways.bandwidths))
        if len(flows[0]):
            loads += self.ways.loads(*flows)
        for ranks, fractions in pairs:
            loads += self.ways.loads_of_all(ranks, fractions)
        return loads / self.ways.bandwidths

    def loads_each(
        self,
        phases: Sequence[
            tuple[tuple[Ints, Ints, Floats], Sequence[tuple[Ints, Floats]]]
        ],
    ) -> Iterator[Floats]:
        """Yield load over bandwidth of every link, in s, for each phase.

        A phase has flows and pairs, as :meth:`busiest`.
        """
        if not isinstance(self.ways, Paths):
            computed: dict[bytes, tuple[Floats, Floats]] = {}
            for single, pairs in phases:
                key = b"" if pairs else single[0].tobytes() + single[1].tobytes()
                load = _scaled(computed.get(key), single[2])
                if load is None:
                    load = self._loads(single, pairs)
                    computed[key] = single[2], load
                yield load
            return
        flows = [
            [single, *(all_pairs(*rows) for rows in pairs)] for single, pairs in phases
        ]
        loads = self.ways.loads_each(list(chain(*flows)))
        if len(loads) > len(phases):
            # A phase's own flows first, then its pairs.
            first = np.cumsum([0, *map(len, flows[:-1])])
            loads = np.add.reduceat(loads, first)
        yield from loads / self.ways.bandwidths


def _scaled(earlier: tuple[Floats, Floats] | None, amounts: Floats) -> Floats | None:
    """Return the loads of flows whose amounts are multiples of earlier ones.

    ``earlier`` has amounts of flows between the same ends, and their loads. Partners
    that exchange in another order, or the whole buffer each time, send powers of two
    times as much, so that the loads are exact. ``None`` for others.
    """
    if earlier is None or not len(amounts):
        return None
    factor = amounts[0] / earlier[0][0]
    return earlier[1] * factor if (earlier[0] * factor == amounts).all() else None


def network_flow(routes: Routes, ranks: frozenset[int]) -> Any:
    """Return a flow network of all that may carry messages among ranks.

    A :class:`networkx.DiGraph` with ``capacity`` in bytes/s; devices that
    pass nothing on and are not among the ranks are left out.
    """
    import networkx

    nodes = {routes.ranks[rank] for rank in ranks}
    graph = networkx.DiGraph()
    for arc in routes.arcs:
        if all(node in nodes or routes.forwards[node] for node in (arc.tail, arc.head)):
            graph.add_edge(arc.tail, arc.head, capacity=arc.bandwidth_bytes_per_s)
    return graph
