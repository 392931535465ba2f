"""A problem of NEST's artifact as planners read it that know no such model.

Other planners have cost models of their own and would be given the same
tables: this says the input in the terms of the preset ``standard``.
"""

from __future__ import annotations

from msgspec.structs import replace

from nest.cost.magnitude import choose_quantum_ps
from nest.ir.graph import Edge, Graph, LayerCost
from nest.ir.problem import Problem


def plain_problem(problem: Problem, tp: int | None = None) -> Problem:
    """Return a problem of preset ``nest-artifact`` under ``standard``.

    It has the same layers, cluster, job and plans. Two things are said
    otherwise, as the preset means something else by them:

    - Under ``full`` recomputation a layer's activations are there once, and
      every further micro-batch in flight keeps what enters its stage. Here
      they are static bytes, and a micro-batch keeps what enters the layer
      (of layers of one kind the most), as if every layer began a stage.
    - A tensor has the size that it has at one tensor parallel width.

    ``tp`` is the width that tensors are at, by default the least that they have a size
    for.
    """
    graph = problem.graph
    edges = tuple(_at_width(edge, tp) for edge in graph.edges)
    entering: dict[int | str, int] = dict.fromkeys(
        (layer.id for layer in graph.layers), 0
    )
    for edge in edges:
        entering[edge.target] += edge.bytes_per_sample
    biggest: dict[str, int] = {}
    for layer in graph.layers:
        size_bytes = entering[layer.id]
        biggest[layer.kind] = max(biggest.get(layer.kind, 0), size_bytes)
    kinds = tuple(
        replace(
            kind,
            costs=tuple(
                _plain_cost(cost, biggest.get(kind.name, 0)) for cost in kind.costs
            ),
        )
        for kind in graph.kinds
    )
    plain = replace(
        problem,
        preset="standard",
        graph=Graph(layers=graph.layers, kinds=kinds, edges=edges),
    )
    # Its steps may be longer: the quantum is as fine only if they fit.
    quantum_ps = choose_quantum_ps(plain, problem.quantum_ps)
    return replace(plain, quantum_ps=quantum_ps)


def _at_width(edge: Edge, tp: int | None) -> Edge:
    sizes = edge.bytes_per_sample_by_tp
    size_bytes = edge.bytes_per_sample
    if tp is not None:
        size_bytes = sizes.get(tp, size_bytes)
    return replace(edge, bytes_per_sample=size_bytes, bytes_per_sample_by_tp={})


def _plain_cost(cost: LayerCost, entering_bytes: int) -> LayerCost:
    """Return a cost entry whose layer keeps what enters it if recomputed."""
    kept_bytes = cost.samples * entering_bytes
    return replace(
        cost,
        activations=tuple(
            replace(
                choice,
                kept_bytes=kept_bytes,
                static_bytes=choice.static_bytes
                + max(0, choice.kept_bytes - kept_bytes),
            )
            if choice.recompute == "full"
            else choice
            for choice in cost.activations
        ),
    )
