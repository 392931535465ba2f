"""Inside the stages of ``alpa``: submeshes, shardings, and what they cost.

A *submesh* has 1, 2, 4, … devices of a node, or whole nodes. A *logical mesh*
arranges its ``n`` devices as ``dp × mp``, with ``mp`` at most a node. A *mesh
configuration* is what the layers of a stage may choose from on one logical
mesh.

With one strategy per stage that is one strategy. With one per layer it is an
integer program over one-hot ``s_i`` (layer ``i`` takes sharding ``a``) and
one-hot ``e_ij`` (edge ``ij`` sees the pair ``ab``),

``min Σ_i c_i·s_i + Σ_ij r_ij·e_ij``,  ``Σ_b e_ij[a, b] <= s_i[a]``,
``Σ_a e_ij[a, b] <= s_j[b]``

(Zheng et al. 2022, eq. 1; ``_call_solver_serialized_args`` in
``auto_sharding.py`` at alpa b8078a9f). On a mesh ``dp × mp`` every layer
splits the batch over the first axis (``force_batch_dim_to_mesh_dim``) and
itself over the second; its experts it may split over the whole first axis. On
the one-dimensional mesh it chooses between the batch and itself. The program
knows no memory, so every single strategy is tried as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from baselines.alpa_inter import INFINITE
from baselines.alpa_layers import Span
from baselines.common import front_terms
from nest.cost.model import CostModel
from nest.cost.space import Case
from nest.ir.plan import Strategy
from nest.solvers.base import Deadline

Ints = NDArray[np.int64]

#: Alpa's limit on the stages behind a stage (``INFINITY_N_STAGES``).
MOST_BEHIND = 4096

#: Alpa's time limit for one integer program.
ILP_LIMIT_S = 600.0

#: Cost of every pair of choices of two layers, in quanta.
Pairs = tuple[tuple[int, ...], ...]


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


def node_size(fan_outs: Sequence[int], num_devices: int) -> int:
    """Return the devices of a node: the lowest level that joins several."""
    size = 1
    for fan_out in fan_outs:
        size *= fan_out
        if size > 1:
            break
    return min(size, num_devices)


def submesh_sizes(node: int, num_devices: int, *, every: bool) -> list[int]:
    """Return the sizes of the submeshes, ascending.

    Powers of two inside a node, the node, then 2, 4, 8, … nodes (2, 3, 4, …
    with ``every``), as ``get_submesh_choices`` in ``stage_construction.py``.
    Alpa wants nodes whose size is a power of two; here any will do.
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
    case: Case,
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
        plain = len({(s.dp, s.tp, s.cp) for s in strategies}) == 1
        for i in range(len(clusters)):
            for k in range(i, len(clusters)):
                if times[i, k] >= INFINITE:
                    continue
                span = range(clusters[i][0], clusters[k][1])
                picks = tuple(cheapest[span.start : span.stop].tolist())
                if not plain and mixed[i, k]:
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
        case: Case,
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
        self.capacity = model.problem.cluster.device.memory_bytes
        place = {position: i for i, position in enumerate(order)}
        self.edges = sorted(
            (place[source], place[target], size_bytes)
            for source, target, size_bytes in model.edges
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
        layouts = np.array([(s.dp, s.tp, s.cp) for s in self.strategies])
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
            level = model.network.level(0, self.strategies[0].devices - 1)
            sequence_parallel = model.problem.job.sequence_parallel
            moves = [
                model.message(level)
                + model.tensor(
                    level,
                    size_bytes,
                    case.micro_batch,
                    strategy.shards(sequence_parallel),
                )
                for strategy in self.strategies
            ]
            layouts = [(s.dp, s.tp, s.cp) for s in self.strategies]
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


# The integer program


def least_shardings(
    costs: Sequence[Sequence[int | None]],
    edges: Sequence[tuple[int, int, Pairs]],
    deadline: Deadline,
) -> tuple[int, ...]:
    """Return the choice of every node with the least sum of costs.

    Nodes with one neighbour are first merged into it, which changes no
    optimum (Alpa's ``CostGraph`` merges nodes as well); what is left is an
    integer program for CBC.

    Parameters
    ----------
    costs
        Quanta of every node under every choice; ``None`` if it is not
        available. Every node has an available one.
    edges
        (source, target, quanta by source's and target's choice).
    deadline
        If time runs out, the best choice known is returned, as Alpa does.
    """
    nodes: list[dict[int, int]] = [
        {a: value for a, value in enumerate(row) if value is not None}
        for row in costs
    ]
    around: list[dict[int, dict[tuple[int, int], int]]] = [{} for _ in nodes]
    for source, target, pairs in edges:
        for a in nodes[source]:
            for b in nodes[target]:
                for u, v, pair in (
                    (source, target, (a, b)),
                    (target, source, (b, a)),
                ):
                    table = around[u].setdefault(v, {})
                    table[pair] = table.get(pair, 0) + pairs[a][b]
    answers: list[tuple[int, int, dict[int, int]]] = []
    leaves = [u for u in range(len(nodes)) if len(around[u]) == 1]
    while leaves:
        leaf = leaves.pop()
        if len(around[leaf]) != 1:
            continue
        ((other, table),) = around[leaf].items()
        reply = {
            b: min(
                nodes[leaf],
                key=lambda a: (nodes[leaf][a] + table[a, b], a),
            )
            for b in nodes[other]
        }
        for b, a in reply.items():
            nodes[other][b] += nodes[leaf][a] + table[a, b]
        answers.append((leaf, other, reply))
        around[leaf].clear()
        del around[other][leaf]
        if len(around[other]) == 1:
            leaves.append(other)
    left = [u for u in range(len(nodes)) if around[u]]
    picks = [min(node, key=lambda a: (node[a], a)) for node in nodes]
    if left:
        picks = _solve(nodes, around, left, picks, deadline)
    for leaf, other, reply in reversed(answers):
        picks[leaf] = reply[picks[other]]
    return tuple(picks)


def _solve(
    nodes: Sequence[dict[int, int]],
    around: Sequence[dict[int, dict[tuple[int, int], int]]],
    left: Sequence[int],
    picks: list[int],
    deadline: Deadline,
) -> list[int]:
    """Return the picks, those of the nodes left from the integer program."""
    import pulp

    limit_s = ILP_LIMIT_S
    if deadline.remaining_s is not None:
        limit_s = min(limit_s, deadline.remaining_s)
    program = pulp.LpProblem("shardings", pulp.LpMinimize)
    s = {
        u: {a: pulp.LpVariable(f"s_{u}_{a}", cat="Binary") for a in nodes[u]}
        for u in left
    }
    terms = []
    for u in left:
        program += pulp.lpSum(s[u].values()) == 1
        least = min(nodes[u].values())
        terms += [(nodes[u][a] - least) * s[u][a] for a in nodes[u]]
    for u in left:
        for v, table in around[u].items():
            if u > v:
                continue
            e = {
                (a, b): pulp.LpVariable(f"e_{u}_{v}_{a}_{b}", cat="Binary")
                for a, b in table
            }
            program += pulp.lpSum(e.values()) == 1
            for a in nodes[u]:
                program += pulp.lpSum(e[a, b] for b in nodes[v]) <= s[u][a]
            for b in nodes[v]:
                program += pulp.lpSum(e[a, b] for a in nodes[u]) <= s[v][b]
            terms += [table[pair] * e[pair] for pair in table]
    program += pulp.lpSum(terms)
    best = _descend(nodes, around, left, picks)
    if limit_s > 0:
        program.solve(
            pulp.PULP_CBC_CMD(msg=False, gapRel=0, timeLimit=limit_s)
        )
        found = list(best)
        for u in left:
            values = {a: s[u][a].value() or 0.0 for a in s[u]}
            found[u] = max(values, key=lambda a: (values[a], -a))
        if _total(nodes, around, left, found) < _total(
            nodes, around, left, best
        ):
            best = found
    return best


def _total(
    nodes: Sequence[dict[int, int]],
    around: Sequence[dict[int, dict[tuple[int, int], int]]],
    left: Sequence[int],
    picks: Sequence[int],
) -> int:
    return sum(nodes[u][picks[u]] for u in left) + sum(
        table[picks[u], picks[v]]
        for u in left
        for v, table in around[u].items()
        if u < v
    )


def _descend(
    nodes: Sequence[dict[int, int]],
    around: Sequence[dict[int, dict[tuple[int, int], int]]],
    left: Sequence[int],
    picks: list[int],
) -> list[int]:
    """Return picks that no change of one node makes better."""
    picks = list(picks)
    changed = True
    while changed:
        changed = False
        for u in left:
            cost = {
                a: nodes[u][a]
                + sum(table[a, picks[v]] for v, table in around[u].items())
                for a in nodes[u]
            }
            best = min(cost, key=lambda a: (cost[a], a))
            if cost[best] < cost[picks[u]]:
                picks[u], changed = best, True
    return picks
