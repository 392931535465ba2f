"""Inside the stages of ``alpa``: submeshes, shardings, and what they cost.

A *submesh* has 1, 2, 4, … devices of a node, or whole nodes. A *logical mesh* arranges
its ``n`` devices as ``dp × mp``, with ``mp`` at most a node. A *mesh configuration* is
what the layers of a stage may choose from on one logical mesh.

With one strategy per stage that is one strategy. With one per layer it is an
integer program: over one-hot ``s_i`` (layer ``i`` takes sharding ``a``) and
one-hot ``e_ij`` (edge ``ij`` sees the pair ``ab``) it minimizes

``Σ_i c_i·s_i + Σ_ij r_ij·e_ij``

(Zheng et al. 2022, eq. 1). On a mesh ``dp × mp`` every layer splits the batch over the
first axis (``force_batch_dim_to_mesh_dim``) and itself over the second; its experts it
may split over the whole first axis. On the one-dimensional mesh it chooses between the
batch and itself. So at most two layouts meet in a stage, and moving a tensor from one
to the other and back takes the same either way round: the optimum is a minimum cut,
found without an integer program. It knows no memory, so every single strategy is tried
as well. Sources: ``get_submesh_choices`` and
``get_one_submesh_autosharding_config_choices`` in ``stage_construction.py`` at alpa
b8078a9f.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from baselines.alpa_layers import Span
from baselines.common import front_terms
from baselines.transfers import Transfers
from nest.cost.model import Block, CostModel, LayerTerms
from nest.cost.space import BatchSplit
from nest.ir.plan import Strategy
from nest.solvers.base import Deadline

#: Alpa's limit on the stages behind a stage (``INFINITY_N_STAGES``).
MOST_BEHIND = 4096

#: ``(dp, tp, cp)`` of a strategy.
Layout = tuple[int, ...]


class Pick(NamedTuple):
    """A strategy that a layer may choose, and what it takes with it.

    Ordered by time, those of equal time as they are on offer.
    """

    time: int
    rank: int
    strategy: Strategy
    terms: LayerTerms


class Sums(NamedTuple):
    """What layers take together: quanta, and bytes per device."""

    time: int = 0
    static_bytes: int = 0
    kept_bytes: int = 0
    working_bytes: int = 0

    def plus(self, picks: Sequence[Pick]) -> Sums:
        """Return the sums, of working sets the largest, with more layers."""
        time, static_bytes, kept_bytes, working_bytes = self
        for pick in picks:
            time += pick.time
            static_bytes += pick.terms.static_bytes
            kept_bytes += pick.terms.kept_bytes
            working_bytes = max(working_bytes, pick.terms.working_bytes)
        return Sums(time, static_bytes, kept_bytes, working_bytes)


class Candidate(NamedTuple):
    """A way to run a stage."""

    #: Its clusters ``[start, stop)``, and number of devices.
    clusters: Span
    size: int
    #: Quanta of one micro-batch, forward and backward, with the collectives and the
    #: changes of layout inside the stage; without gradient sync, and without what
    #: passes between stages.
    time: int
    #: ``max_n_succ``: how many stages may be behind it, -1 if it has no room at all.
    behind: int
    #: Of its clusters.
    strategies: tuple[Strategy, ...]


def submesh_sizes(node: int, num_devices: int, *, every: bool) -> list[int]:
    """Return the sizes of the submeshes, ascending.

    Powers of two inside a node, the node, then 2, 4, 8, … nodes (2, 3, 4, … with
    ``every``). Alpa wants nodes whose size is a power of two; here any will do.
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

    ``usable`` strategies have ``cp`` 1 and one ZeRO stage and recompute choice. Layers
    of a stage may differ with ``per_layer``.
    """
    fitting = [s for s in usable if s.devices == size and (s.tp <= node or s.dp == 1)]
    alone: list[tuple[Strategy, ...]] = [(strategy,) for strategy in fitting]
    if not per_layer:
        return alone
    meshes = [{(s.dp, s.tp)} for s in fitting if s.tp <= node]
    meshes.append({(size, 1), (1, size)})
    together = [tuple(s for s in fitting if (s.dp, s.tp) in mesh) for mesh in meshes]
    configurations = dict.fromkeys([*alone, *together])
    return [choices for choices in configurations if choices]


def candidates(
    transfers: Transfers,
    case: BatchSplit,
    clusters: Sequence[Span],
    strategies: tuple[Strategy, ...],
    deadline: Deadline,
) -> Iterator[Candidate]:
    """Yield how all stages run under one mesh configuration.

    ``strategies`` are the mesh configuration, of one or two layouts. The deadline is
    checked before every cut; then ``OutOfTimeError`` is raised.
    """
    model = transfers.model
    shapes = {s.layout: s for s in strategies}
    options = [_fastest(model, case, i, strategies) for i in transfers.order]
    kinds = [model.problem.graph.layers[i].kind for i in transfers.order]
    block = Block(case.replicas, case.devices, 0, strategies[0].devices)
    edges = [
        (*(source, target), sum(transfers.change(size, block, case.micro_batch, *ends)))
        for source, target, size in transfers.edges
        for ends in [shapes.values()]
        if len(ends) == 2
    ]
    capacity = model.problem.cluster.memory_bytes()
    solved: dict[object, list[Pick]] = {}
    for start, (first, _) in enumerate(clusters):
        picks: list[Pick] = []
        sums = Sums()
        for stop, span in enumerate(clusters[start:], start + 1):
            added = options[slice(*span)]
            if not all(added):
                break
            more = [min(choices.values()) for choices in added]
            picks, sums = picks + more, sums.plus(more)
            chosen, total = picks, sums
            if len({pick.strategy.layout for pick in picks}) > 1:
                here = [
                    (u - first, v - first, quanta)
                    for u, v, quanta in edges
                    if first <= u and v < span[1]
                ]
                key = (*kinds[first : span[1]], *here)
                if key not in solved:
                    deadline.check()
                    solved[key] = least_shardings(
                        options[first : span[1]], here, list(shapes)
                    )
                chosen = solved[key]
                used = [pick.strategy.layout for pick in chosen]
                total = Sums(sum(q for u, v, q in here if used[u] != used[v])).plus(
                    chosen
                )
            yield Candidate(
                (start, stop),
                block.devices,
                total.time,
                max_n_succ(capacity, *total[1:]),
                tuple(pick.strategy for pick in chosen),
            )


def _fastest(
    model: CostModel, case: BatchSplit, layer: int, strategies: Sequence[Strategy]
) -> dict[Layout, Pick]:
    """Return what a layer may choose: the fastest of every layout."""
    fastest: dict[Layout, Pick] = {}
    for rank, strategy in enumerate(strategies):
        terms = front_terms(model, case, layer, strategy)
        if terms is not None:
            time = terms.forward + terms.backward
            pick = Pick(time, rank, strategy, terms)
            incumbent = fastest.get(strategy.layout, pick)
            fastest[strategy.layout] = min(incumbent, pick)
    return fastest


def least_shardings(
    options: Sequence[Mapping[Layout, Pick]],
    edges: Sequence[tuple[int, int, int]],
    layouts: Sequence[Layout],
) -> list[Pick]:
    """Return the pick of every layer with the least sum of quanta.

    ``options`` are what each may choose by layout, at least one; ``edges`` are (source,
    target, quanta if their layouts differ).
    """
    import networkx

    first, second = layouts
    # Layers on the side of the source have the first layout, so that what
    # leads from them to the sink is cut. Edges without a capacity never are.
    graph = networkx.DiGraph()
    for i, picks in enumerate(options):
        for layout, ends in ((first, (i, "sink")), (second, ("source", i))):
            graph.add_edge(*ends)
            if layout in picks:
                graph.edges[ends]["capacity"] = picks[layout].time
    for u, v, quanta in edges:
        graph.add_edge(u, v, capacity=quanta)
        graph.add_edge(v, u, capacity=quanta)
    _, (_, sink_side) = networkx.minimum_cut(graph, "source", "sink")
    return [
        picks[second if i in sink_side else first] for i, picks in enumerate(options)
    ]


def max_n_succ(capacity: int, static: int, kept: int, working: int) -> int:
    """Return how many stages there may be behind a stage, or -1.

    ``(capacity - peak - initial) // intermediate - 1``, with the optimizer state
    initially there, the activations that one micro-batch keeps as intermediate, and at
    the peak weights, gradients, one micro-batch's activations and the largest working
    set (``get_merged_stages_memory_stats`` in ``stage_profiling.py``). So Alpa has room
    for one micro-batch more than are in flight.

    All are bytes per device: ``static`` of weights, gradients, buffers and optimizer
    state, ``kept`` by one micro-batch, ``working`` of the layer that needs most.
    """
    room = capacity - static - kept - working
    return min(max(room // max(kept, 1) - 1, -1), MOST_BEHIND)
