"""Stages of planners that work on downsets of the graph (Piper, Phaze).

Both papers cut a DAG into sets of layers such that no edge leads back; a stage is the
difference of two closed sets. They keep the sets of layers that hold all successors;
here, as everywhere in the project, their complements, which hold all predecessors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from baselines.common import Search, chain, make_stage
from nest.cost.model import Block, CostModel
from nest.cost.space import BatchSplit
from nest.ir.graph import enumerate_masks
from nest.ir.plan import Plan, Strategy
from nest.ir.problem import Problem
from nest.search.stages.closed_sets import chain_sets, closed_sets

#: Above this many closed sets a graph is searched in one topological order.
MAX_CLOSED_SETS = 300

#: What the option says.
CLOSED_SETS_OPTION = {
    "max_closed_sets": (
        "search graphs with more closed sets in one topological order of the "
        f"layers (default {MAX_CLOSED_SETS})"
    )
}

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
How = Literal["sum", "max"]


class Stages:
    """Every possible stage: a pair of closed sets ``a ⊂ b``, ordered by them.

    Sizes of edges are given in the order of the graph's edges. A graph with more than
    ``limit`` closed sets is cut in one topological order; ``linear`` says whether this
    one was. ``member`` ``(stages, layers)`` is Boolean, ``first``
    ``(closed sets + 1,)`` the first stage that starts at each set.
    """

    def __init__(self, problem: Problem, limit: int = MAX_CLOSED_SETS) -> None:
        self._order = chain(problem)
        self._edges = problem.graph.index_edges()
        self._known: dict[object, Floats] = {}
        num_layers = len(problem.graph.layers)
        self.linear = len(enumerate_masks(num_layers, self._edges, limit)) > limit
        self.sets = (
            chain_sets(self._order)
            if self.linear
            else closed_sets(problem.graph, limit)
        )
        sets = self.sets
        self.source, self.target = sets.pair_source, sets.pair_target
        self.member: Bools = sets.member[self.target]
        self.member &= ~sets.member[self.source]
        self.first = sets.first

    @property
    def count(self) -> int:
        """Number of stages."""
        return len(self.source)

    def layers(self, stage: int) -> list[int]:
        """Return the positions of a stage's layers, sources first."""
        return self.sets.inside(stage, self._order)

    def sums(self, values: Sequence[int]) -> Ints:
        """Sum a whole number per layer over every stage; shape (stages,)."""
        return self.sets.sums(values)

    def entering(self, sizes: Sequence[float], how: How = "sum") -> Floats:
        """Return the sum, or the largest, of the edges that enter a stage.

        ``sizes`` is one per edge; the largest is 0 where none enters.
        """
        return self._over_edges(0, how, sizes)

    def leaving(self, sizes: Sequence[float], how: How = "sum") -> Floats:
        """Return the sum, or the largest, of the edges that leave a stage."""
        return self._over_edges(1, how, sizes)

    def _over_edges(self, side: int, how: How, sizes: Sequence[float]) -> Floats:
        key = (side, how, tuple(sizes))
        if key not in self._known:
            crosses = self._crossing[side]
            row = np.array(key[2], dtype=np.float64)
            self._known[key] = (
                crosses @ row
                if how == "sum"
                else (crosses * row).max(axis=1, initial=0.0)
            )
        return self._known[key]

    @functools.cached_property
    def _crossing(self) -> tuple[Floats, Floats]:
        """``(stages, edges)``: 1 where the edge enters, or leaves, a stage."""
        tails = [tail for tail, *_ in self._edges]
        heads = [head for _, head, _ in self._edges]
        before = self.sets.member[self.source]
        until = self.sets.member[self.target]
        # Floats, as products of Boolean matrices are slow.
        return (
            (before[:, tails] & self.member[:, heads]).astype(np.float64),
            (self.member[:, tails] & ~until[:, heads]).astype(np.float64),
        )


def flat_bandwidth_bytes_per_s(model: CostModel) -> float:
    """Return the bandwidth of a planner that knows one flat network.

    That of a path between the first and the last device of the cluster: what
    any two devices can count on.
    """
    num_devices = model.problem.cluster.num_devices
    (link,) = model.network.inside(Block(1, 0, 0, num_devices))
    return link.beta


def weight_bytes(
    model: CostModel, layer: int, strategy: Strategy, micro_batch: int
) -> int:
    """Return the weights of a layer per device, experts included.

    The layer must be available.
    """
    if model.rules.round_robin:
        return model.layers.weight_bytes(layer, strategy, micro_batch)
    terms = model.layer_terms(layer, strategy, micro_batch, None)
    assert terms is not None
    return terms.weight_bytes


def read_stages(search: Search) -> Stages:
    """Return all stages under the limit of the options; notes where it binds.

    Raises ``InvalidOptionError`` if ``max_closed_sets`` is no whole number above 0.
    """
    limit = search.count("max_closed_sets", MAX_CLOSED_SETS)
    stages = Stages(search.problem, limit)
    if stages.linear:
        search.notes.append(
            f"one topological order of a graph with more than {limit} closed sets"
        )
    return stages


def plan_of(
    problem: Problem,
    case: BatchSplit,
    stages: Iterable[tuple[Sequence[int], Sequence[Strategy]]],
) -> Plan:
    """Return the plan of sets of layers, each with its strategies."""
    return Plan(
        replicas=case.replicas,
        micro_batch=case.micro_batch,
        stages=tuple(make_stage(problem, *stage) for stage in stages),
    )


def least_degrees(
    offered: Iterable[Strategy],
    key: Callable[[Strategy], tuple[int, int]],
    rest: Callable[[Strategy], tuple[int, ...]],
) -> list[list[Strategy]]:
    """Return strategies by a key, of each only those with the least rest."""
    grouped: dict[tuple[int, int], list[Strategy]] = {}
    for strategy in offered:
        grouped.setdefault(key(strategy), []).append(strategy)
    return [
        [s for s in grouped[k] if rest(s) == min(map(rest, grouped[k]))]
        for k in sorted(grouped)
    ]
