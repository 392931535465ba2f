"""How ``alpa`` clusters the layers of a graph before it cuts stages.

Alpa clusters operators into ``L`` clusters (its "layers") so that little data passes
between neighbors and none computes much more than the others (``layer_construction.py``
at alpa b8078a9f, ``cluster_jaxpr_by_cost``); stages are then runs of clusters. Here the
units are the layers of the graph in topological order:

``cost[r, q] = min_k max(cost[k, q-1], bytes(k, r))``

over the spans of layers ``k+1..r`` that are single layers or whose computation
stays below ``(1 + ε) total / L``, ``ε = 1/2``. ``bytes(k, r)`` is what layers
up to ``k`` produce and the span reads, every producer once. Ties are broken by
the sum of ``bytes`` and then by the sum of squares of the numbers of layers.

Deviations: Alpa wants three matrix products in a cluster, which every transformer layer
has, so that rule is left out; its ties are equal to 1e-4 relative, here they are equal.
Computation is the time of the least split layer instead of FLOPs.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from baselines.transfers import Transfers

#: ``(start, stop)`` in the chain.
Span = tuple[int, int]

#: A cluster of several layers stays below ``3/2`` of the mean computation.
BOUND = (3, 2)


def cluster(
    work: Sequence[int], reads: Sequence[Sequence[tuple[int, int]]], num_clusters: int
) -> list[Span]:
    """Return the clusters of a chain of layers.

    ``work`` is the computation of every layer, in any unit, ``reads`` for every layer
    the ``(producer, bytes)`` of what it reads, producers by their position in the
    chain. Where the bound leaves no such number of clusters, it is the largest smaller
    number that has one, as Alpa's search for a number of layers does. With as many as
    there are layers, or more, every layer is a cluster. Clusters are ``(start, stop)``,
    in the order of the chain.
    """
    if num_clusters >= len(work):
        return [(i, i + 1) for i in range(len(work))]
    for count in range(num_clusters, 1, -1):
        clusters = _cluster(work, reads, count)
        if clusters is not None:
            return clusters
    return [(0, len(work))]


def _cluster(
    work: Sequence[int], reads: Sequence[Sequence[tuple[int, int]]], num_clusters: int
) -> list[Span] | None:
    """Return exactly so many clusters; ``None`` if the bound forbids it."""
    spans = _spans(work, reads, num_clusters)
    # By stop: (largest bytes, their sum, squared sizes), and the starts.
    best: dict[int, tuple[tuple[int, int, int], tuple[int, ...]]]
    best = {0: ((0, 0, 0), ())}
    for _ in range(num_clusters):
        after = {}
        for stop, candidates in enumerate(spans, 1):
            options = [
                (
                    (
                        max(largest, size_bytes),
                        total + size_bytes,
                        squares + (stop - first) ** 2,
                    ),
                    (*starts, first),
                )
                for first, size_bytes in candidates
                if first in best
                for (largest, total, squares), starts in [best[first]]
            ]
            if options:
                after[stop] = min(options, key=lambda pair: pair[0])
        best = after
    if len(work) not in best:
        return None
    _, starts = best[len(work)]
    return list(zip(starts, [*starts[1:], len(work)], strict=True))


def _spans(
    work: Sequence[int], reads: Sequence[Sequence[tuple[int, int]]], num_clusters: int
) -> list[list[tuple[int, int]]]:
    """Return for every stop the ``(start, bytes read)`` of legal spans."""
    num_layers = len(work)
    sums = [0, *accumulate(work)]
    over, under = BOUND
    limit = over * sums[-1]
    spans: list[list[tuple[int, int]]] = [[] for _ in range(num_layers)]
    for start in range(num_layers):
        read: dict[int, int] = {}
        for stop in range(start + 1, num_layers + 1):
            inside = under * num_clusters * (sums[stop] - sums[start])
            if stop > start + 1 and inside >= limit > 0:
                break
            for producer, size_bytes in reads[stop - 1]:
                if producer < start:
                    read[producer] = max(read.get(producer, 0), size_bytes)
            spans[stop - 1].append((start, sum(read.values())))
    return spans


def read_graph(transfers: Transfers) -> tuple[list[int], list[list[tuple[int, int]]]]:
    """Return computation and reads of the layers of a chain.

    Computation is that of the least split cost entry, in quanta per sample,
    all its ranks together; bytes are per sample.
    """
    model, order = transfers.model, transfers.order
    work_of = {}
    for kind in model.problem.graph.kinds:
        cost = min(
            kind.costs,
            key=lambda c: (c.tp * c.cp * c.ep, c.samples, c.key),
            default=None,
        )
        time_ns = 0.0
        if cost is not None:
            time_ns = (cost.forward_ns + cost.backward_ns) / cost.samples
            time_ns *= cost.tp * cost.cp * cost.ep
        work_of[kind.name] = model.quanta.round(time_ns, f"kind {kind.name!r}")
    reads: list[list[tuple[int, int]]] = [[] for _ in order]
    for source, target, size_bytes in transfers.edges:
        reads[target].append((source, size_bytes))
    layers = model.problem.graph.layers
    return [work_of[layers[i].kind] for i in order], reads
