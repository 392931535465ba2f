"""Inside the stages of ``alpa``: submeshes, shardings, and what they cost.

A *submesh* has 1, 2, 4, … devices of a node, or whole nodes. A *logical mesh*
arranges its ``n`` devices as ``dp × mp``, with ``mp`` at most a node. A *mesh
configuration* is what the layers of a stage may choose from on one logical
mesh.

With one strategy per stage that is one strategy. With one per layer it is an
integer program (:mod:`baselines.alpa_shardings`). On a mesh ``dp × mp`` every
layer splits the batch over the first axis (``force_batch_dim_to_mesh_dim``)
and itself over the second; its experts it may split over the whole first
axis. On the one-dimensional mesh it chooses between the batch and itself. The
program knows no memory, so every single strategy is tried as well. Sources:
``get_submesh_choices`` and ``get_one_submesh_autosharding_config_choices`` in
``stage_construction.py`` at alpa b8078a9f.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from baselines.alpa_inter import INFINITE
from baselines.alpa_layers import Span
from baselines.alpa_shardings import Pairs, least_shardings
from baselines.common import check_time, front_terms
from nest.cost.model import Block, CostModel
from nest.cost.space import BatchSplit
from nest.ir.plan import Strategy
from nest.solvers.base import Deadline

Ints = NDArray[np.int64]

#: Alpa's limit on the stages behind a stage (``INFINITY_N_STAGES``).
MOST_BEHIND = 4096


class StageChoices(NamedTuple):
    """Times and memory of all stages under one mesh configuration.

    Attributes
    ----------
    size
        Devices of the submesh.
    strategies
        What its layers may choose from.
    times
        Quanta of one micro-batch, by (first cluster, last cluster);
        :data:`~baselines.alpa_inter.INFINITE` if not available.
    behind
        ``max_n_succ``: how many stages there may be behind it, -1 if it has
        no room at all.
    chosen
        For stages whose layers differ, the choice of every layer.
    """

    size: int
    strategies: tuple[Strategy, ...]
    times: Ints
    behind: Ints
    chosen: dict[tuple[int, int], tuple[Strategy, ...]]


# Submeshes


def submesh_sizes(node: int, num_devices: int, *, every: bool) -> list[int]:
    """Return the sizes of the submeshes, ascending.

    Powers of two inside a node, the node, then 2, 4, 8, … nodes (2, 3, 4, …
    with ``every``). Alpa wants nodes whose size is a power of two; here any
    will do.
    """
    sizes = {node}
    size = 1
    while size < node:
        sizes.add(size)
        size *= 2
    nodes = 2
    while nodes * node <= num_devices:
        sizes.add(nodes * node)
        nodes = nodes + 1 if every else 2 * nodes
    return sorted(sizes)


def mesh_configurations(
    usable: Sequence[Strategy], size: int, node: int, *, per_layer: bool
) -> list[tuple[Strategy, ...]]:
    """Return what the layers of a stage on ``size`` devices choose from.

    Parameters
    ----------
    usable
        Strategies with ``cp`` 1 and one ZeRO stage and recompute choice.
    size, node
        Devices of the submesh, and of a node.
    per_layer
        Whether the layers of a stage may differ.
    """
    fitting = [
        s for s in usable if s.devices == size and (s.tp <= node or s.dp == 1)
    ]
    alone: list[tuple[Strategy, ...]] = [(strategy,) for strategy in fitting]
    if not per_layer:
        return alone
    meshes = [{(s.dp, s.tp)} for s in fitting if s.tp <= node]
    meshes.append({(size, 1), (1, size)})
    together = [
        tuple(s for s in fitting if (s.dp, s.tp) in mesh) for mesh in meshes
    ]
    found = dict.fromkeys([*alone, *together])
    return [choices for choices in found if choices]


# Costs of stages


def stage_choices(
    model: CostModel,
    case: BatchSplit,
    order: Sequence[int],
    clusters: Sequence[Span],
    strategies: tuple[Strategy, ...],
    deadline: Deadline,
    known: dict[object, tuple[int, ...]],
) -> StageChoices:
    """Return times and memory of all stages under one mesh configuration.

    The time is forward plus backward pass of one micro-batch with the
    collectives inside the stage; without gradient sync, and without what
    passes between stages. ``max_n_succ`` is

    ``(capacity - peak - initial) // intermediate - 1``

    with the optimiser state initially there, the activations that one
    micro-batch keeps as intermediate, and at the peak weights, gradients,
    one micro-batch's activations and the largest working set
    (``get_merged_stages_memory_stats`` in ``stage_profiling.py``). So Alpa
    has room for one micro-batch more than are in flight.

    Parameters
    ----------
    model, case
        The cost model, and replicas and micro-batch.
    order, clusters
        The chain of layers, and its clusters.
    strategies
        The mesh configuration.
    deadline
        Bounds the integer programs.
    known
        What the integer programs found so far, kept over calls.

    Raises
    ------
    TimeoutError
        If time runs out.
    """
    size = strategies[0].devices
    table = _LayerTable(model, case, order, strategies)
    first = np.array([start for start, _ in clusters])
    last = np.array([stop for _, stop in clusters])
    cheapest = table.times.argmin(axis=0)
    mixed = _span_sums(table.switches(cheapest), first, last - 1) > 0
    times = table.sums("times", cheapest, first, last)
    behind = _behind(table, cheapest, first, last)
    chosen: dict[tuple[int, int], tuple[Strategy, ...]] = {}
    if len(strategies) > 1:
        # one choice for all layers may have the same cost as another
        plain = len({s.layout for s in strategies}) == 1
        for i in range(len(clusters)):
            for k in range(i, len(clusters)):
                if times[i, k] >= INFINITE:
                    continue
                span = range(clusters[i][0], clusters[k][1])
                picks = tuple(cheapest[span.start : span.stop].tolist())
                if not plain and mixed[i, k]:
                    check_time(deadline)
                    picks = table.shard(span, deadline, known)
                    times[i, k] = table.time(span, picks)
                    behind[i, k] = table.behind(span, picks)
                if len(set(picks)) > 1 or picks[0] > 0:
                    chosen[i, k] = tuple(strategies[a] for a in picks)
    return StageChoices(size, strategies, times, behind, chosen)


_FIELDS = ("times", "initial", "base", "kept", "working")


class _LayerTable:
    """Terms of every layer under every choice, arrays (choice, layer).

    ``initial``, ``base`` (weights, gradients, buffers) and ``kept`` add up
    over a stage, of ``working`` the largest counts.
    """

    def __init__(
        self,
        model: CostModel,
        case: BatchSplit,
        order: Sequence[int],
        strategies: tuple[Strategy, ...],
    ) -> None:
        self.model, self.case = model, case
        self.order, self.strategies = order, strategies
        shape = (len(strategies), len(order))
        self.times = np.full(shape, INFINITE, dtype=np.int64)
        self.initial = np.zeros(shape, dtype=np.int64)
        self.base = np.zeros(shape, dtype=np.int64)
        self.kept = np.zeros(shape, dtype=np.int64)
        self.working = np.zeros(shape, dtype=np.int64)
        for a, strategy in enumerate(strategies):
            for i, position in enumerate(order):
                terms = front_terms(model, case, position, strategy)
                if terms is None:
                    continue
                self.times[a, i] = terms.forward + terms.backward
                self.initial[a, i] = terms.state_bytes
                self.base[a, i] = terms.static_bytes - terms.state_bytes
                self.kept[a, i] = terms.kept_bytes
                self.working[a, i] = terms.working_bytes
        self.capacity = model.problem.cluster.memory_bytes()
        place = {position: i for i, position in enumerate(order)}
        self.edges = sorted(
            (place[source], place[target], size_bytes)
            for source, target, size_bytes in model.transfers.edges
        )
        self._pairs: dict[int, Pairs] = {}

    def row(self, field: str, picks: Ints) -> Ints:
        """Return a term of every layer under its choice."""
        values: Ints = getattr(self, field)
        return values[picks, np.arange(len(picks))]

    def sums(self, field: str, picks: Ints, first: Ints, last: Ints) -> Ints:
        """Return a term of all stages, by (first, last cluster)."""
        row = self.row(field, picks)
        sums = _span_sums(np.where(row >= INFINITE, 0, row), first, last)
        missing = _span_sums((row >= INFINITE).astype(np.int64), first, last)
        unordered = first[:, None] >= last[None, :]
        sums[(missing > 0) | unordered] = INFINITE
        return sums

    def switches(self, picks: Ints) -> Ints:
        """Return 1 for every layer whose layout is not that of the next."""
        layouts = np.array([s.layout for s in self.strategies])
        used = layouts[picks]
        different: NDArray[np.bool_] = (used[:-1] != used[1:]).any(axis=1)
        return different.astype(np.int64)

    def time(self, span: range, picks: Sequence[int]) -> int:
        """Return the time of one stage in quanta."""
        total = sum(
            int(self.times[a, i]) for i, a in zip(span, picks, strict=True)
        )
        for source, target, size_bytes in self._inside(span):
            pairs = self.pairs(size_bytes)
            total += pairs[picks[source]][picks[target]]
        return total

    def behind(self, span: range, picks: Sequence[int]) -> int:
        """Return ``max_n_succ`` of one stage."""
        inside = slice(span.start, span.stop)
        chosen = np.array(picks)

        def row(field: str) -> Ints:
            values: Ints = getattr(self, field)
            found: Ints = values[:, inside][chosen, np.arange(len(chosen))]
            return found

        static = int(row("initial").sum() + row("base").sum())
        kept = int(row("kept").sum())
        return int(
            max_n_succ(self.capacity, static, kept, int(row("working").max()))
        )

    def pairs(self, size_bytes: int) -> Pairs:
        """Return the cost of resharding a tensor, by both ends' choices.

        As in the shared model: a message in either pass, forward in the
        consumer's layout, backward in the producer's.
        """
        if size_bytes not in self._pairs:
            model, case = self.model, self.case
            route = model.network.inside(
                Block(1, 0, 0, self.strategies[0].devices)
            )
            moves = [
                model.transfers.receive(
                    route,
                    [size_bytes] if size_bytes else [],
                    case.micro_batch,
                    model.shards(strategy),
                )
                for strategy in self.strategies
            ]
            layouts = [s.layout for s in self.strategies]
            self._pairs[size_bytes] = tuple(
                tuple(
                    0 if layouts[a] == layouts[b] else moves[a] + moves[b]
                    for b in range(len(moves))
                )
                for a in range(len(moves))
            )
        return self._pairs[size_bytes]

    def shard(
        self,
        span: range,
        deadline: Deadline,
        known: dict[object, tuple[int, ...]],
    ) -> tuple[int, ...]:
        """Return the choice of every layer of a stage with the least time."""
        layers = self.model.problem.graph.layers
        edges = tuple(self._inside(span))
        kinds = tuple(layers[self.order[i]].kind for i in span)
        key = (self.case, self.strategies, kinds, edges)
        if key not in known:
            costs = [
                [
                    None if value >= INFINITE else value
                    for value in self.times[:, i].tolist()
                ]
                for i in span
            ]
            known[key] = least_shardings(
                costs,
                [(u, v, self.pairs(size)) for u, v, size in edges],
                deadline,
            )
        return known[key]

    def _inside(self, span: range) -> list[tuple[int, int, int]]:
        """Return the edges inside a stage, ends counted from its first."""
        return [
            (source - span.start, target - span.start, size_bytes)
            for source, target, size_bytes in self.edges
            if source in span and target in span
        ]


def max_n_succ(capacity: int, static: int, kept: int, working: int) -> int:
    """Return how many stages there may be behind a stage, or -1.

    Parameters
    ----------
    capacity, static, kept, working
        Bytes per device: all there is; weights, gradients, buffers and
        optimiser state; what one micro-batch keeps; the largest working set
        of a layer.
    """
    room = capacity - static - kept - working
    return min(max(room // max(kept, 1) - 1, -1), MOST_BEHIND)


def _behind(table: _LayerTable, picks: Ints, first: Ints, last: Ints) -> Ints:
    """Return ``max_n_succ`` of all stages, by (first, last cluster)."""

    def total(field: str) -> Ints:
        return _span_sums(table.row(field, picks), first, last)

    static = total("initial") + total("base")
    kept = total("kept")
    working = table.row("working", picks)
    largest = np.zeros_like(kept)
    for i, (start, stop) in enumerate(zip(first, last, strict=True)):
        own = working[start:stop].max()
        largest[:i, i] = np.maximum(largest[:i, i - 1], own) if i else 0
        largest[i, i] = own
    room = table.capacity - static - kept - largest
    behind: Ints = np.clip(room // np.maximum(kept, 1) - 1, -1, MOST_BEHIND)
    return behind


def _span_sums(row: Ints, first: Ints, last: Ints) -> Ints:
    """Return ``row[first_i:last_k].sum()`` for all ``i``, ``k``."""
    sums = np.concatenate(([0], np.cumsum(row)))
    differences: Ints = sums[last][None, :] - sums[first][:, None]
    return differences
