"""Constants of the graph that all models of a problem share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from nest.cost.model import CostModel


class Increment(NamedTuple):
    """One step of a tensor's size, see equation (L9).

    The step counts for a boundary if the producer is before it and any of ``consumers``
    is after it; these are the consumers that need at least ``sizes[upper]`` bytes per
    sample. ``lower`` is the step below, -1 if there is none.
    """

    producer: int
    consumers: tuple[int, ...]
    lower: int
    upper: int

    def of(self, values: tuple[int, ...]) -> int:
        """Return what the step adds, of values for each of the sizes."""
        below = values[self.lower] if self.lower >= 0 else 0
        return values[self.upper] - below


class GraphFacts:
    """Constants of the graph.

    - ``kind_of``: index of each layer's kind; layers of a kind cost the same.
    - ``members``: the layers of each kind.
    - ``num_ancestors``, ``num_descendants``: of each layer.
    - ``connected``: whether tensors that are not empty connect the graph, directions
      ignored. Then something crosses every boundary.
    - ``sizes``: all distinct bytes per sample of tensors that are not empty, ascending.
    - ``edge_sizes``: position in ``sizes`` of every edge that is not empty.
    - ``increments``: the steps of all tensors; an empty one has none.
    - ``passing``: positions of the increments that can pass a stage: some layer is
      neither before the producer nor after all consumers.
    """

    def __init__(self, model: CostModel) -> None:
        import networkx

        graph = model.problem.graph
        self.num_layers = len(graph.layers)
        self.order = graph.topological_order()
        self.edges = model.transfers.edges
        names = {layer.kind: None for layer in graph.layers}
        kinds = {name: index for index, name in enumerate(names)}
        self.kind_of = tuple(kinds[layer.kind] for layer in graph.layers)
        self.members = tuple(
            tuple(i for i, k in enumerate(self.kind_of) if k == kind)
            for kind in range(len(kinds))
        )
        whole = networkx.DiGraph([edge[:2] for edge in self.edges])
        whole.add_nodes_from(range(self.num_layers))
        up = [networkx.ancestors(whole, i) for i in range(self.num_layers)]
        down = [networkx.descendants(whole, i) for i in range(self.num_layers)]
        self.num_ancestors = list(map(len, up))
        self.num_descendants = list(map(len, down))
        tensors = networkx.Graph([(u, v) for u, v, size in self.edges if size])
        tensors.add_nodes_from(whole)
        self.connected = networkx.is_connected(tensors)
        self.sizes = tuple(sorted({size for _, _, size in self.edges} - {0}))
        self.edge_sizes = {
            e: self.sizes.index(size)
            for e, (_, _, size) in enumerate(self.edges)
            if size
        }
        self.increments = tuple(self._increments(model))
        self.passing = tuple(
            i
            for i, step in enumerate(self.increments)
            if any(
                whole.nodes
                - up[step.producer]
                - down[consumer]
                - {step.producer, consumer}
                for consumer in step.consumers
            )
        )

    def _increments(self, model: CostModel) -> Iterator[Increment]:
        index = {size: i for i, size in enumerate(self.sizes)}
        for tensor in model.transfers.tensors:
            lower = -1
            for size in sorted({size for _, size in tensor.consumers} - {0}):
                consumers = tuple(v for v, q in tensor.consumers if q >= size)
                upper = index[size]
                yield Increment(tensor.producer, consumers, lower, upper)
                lower = upper

    def slots_of(self, layer: int, num_stages: int) -> range:
        """Return the slots in which a layer can be.

        The slots before and after it must all be filled, with layers that
        are not its descendants and not its ancestors, respectively.
        """
        others = self.num_layers - 1
        first = num_stages - (others - self.num_descendants[layer])
        last = 1 + others - self.num_ancestors[layer]
        return range(max(1, first), min(num_stages, last) + 1)
