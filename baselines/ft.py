"""``ft``: TensorOpt's frontier tracking, all tensors split over all devices.

Cai, Yan, Ma, Wu, Huang, Cheng, Su and Yu, *TensorOpt: Exploring the Tradeoffs
in Distributed DNN Training with Auto-Parallelism*, IEEE TPDS 33(8), 2022
(arXiv 2004.10856). The full text and its code were not at hand: what follows
is a summary of the paper, and was not checked against recorded answers.

Search space
    A configuration per layer, how it is split over all devices: data, tensor
    and context parallelism. No pipeline, ZeRO or recomputation: the least
    that the job and its costs allow.

Search
    Of every layer and every edge a *frontier*, the pairs of time and memory
    of which none is worse than another in both, by the configurations of the
    layers concerned. Three operations: ``reduce`` drops what is worse in
    both, ``product`` adds up every pair of two frontiers, ``union`` puts
    frontiers together. The graph becomes smaller until it is a path:

    * *node elimination*: a layer with one edge in and one edge out becomes an
      edge between its neighbors;
    * *edge elimination*: two edges between the same layers become one;
    * *branch elimination*: a layer with one edge in all becomes a part of its
      neighbor;
    * *heuristic elimination*, where none of these applies: the layer with
      most edges gets a configuration, and becomes part of its neighbors. With
      ``heuristic=time`` the one in which it alone is fastest, with ``memory``
      the one in which it alone holds least. With ``none`` there is no answer.

    Then *linear dynamic programming* along the path. All but the heuristic
    elimination are exact by the objective.

Objective
    ``M Σ (f + g) + Σ sync`` over the layers, and ``M`` times the changes of
    layout on the edges. Of the frontier the fastest point within the memory.

Memory
    The sum of what the layers hold: weights, gradients, optimizer state and
    activations.

Ignored
    Working sets and the reserve of devices, pipelines, ZeRO, recomputation,
    overlap, and that collectives share links.

Deviations
    TensorOpt has no micro-batches: here every ``B`` has a frontier, with the
    fewest replicas that the job allows (the most, under a preset whose stages
    share one strategy), and the answer is the best of all. A ``B`` that cannot
    be split over all devices has the most it can have. Where a job wants one
    strategy per stage, all layers have the same one. Times come from the cost
    table of the problem and its network model instead of measurements. Which
    layer, and which configuration, the heuristic elimination takes is not in
    the summary; so is a layer without an edge out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from baselines.common import (
    Planner,
    Search,
    case_strategies,
    make_plan,
    one_strategy_per_stage,
    plainest,
    why_not_alike,
    why_not_turns,
)
from nest.cost.model import Block, CostModel
from nest.cost.schedules import paced
from nest.cost.space import BatchSplit, batch_splits
from nest.ir.plan import Plan, Strategy
from nest.ir.problem import Problem
from nest.solvers.base import SolverOutput
from nest.units import quanta_to_ns

Ints = NDArray[np.int64]

#: What the heuristic elimination looks at: the row of a frontier.
HEURISTICS: dict[str, int | None] = {"time": 0, "memory": 1, "none": None}


class Parts(NamedTuple):
    """Where the points of a frontier come from.

    A point is made of points of the other frontiers, all of them or one.
    ``rows`` holds which, a row per frontier, -1 for none.
    """

    frontiers: tuple[Frontier, ...]
    rows: Ints


@dataclass(frozen=True, eq=False)
class Frontier:
    """Times and bytes of which none is worse than another in both.

    ``values`` ``(2, points)`` are quanta and bytes, by rising quanta and falling bytes.
    There are no ``parts`` of what chooses nothing, and of a layer; ``chosen`` is the
    layer and its configuration, if it is one.
    """

    values: Ints
    parts: Parts | None = None
    chosen: tuple[int, int] | None = None

    def choices(self, point: int) -> dict[int, int]:
        """Return the configuration of every layer that a point is made of."""
        chosen: dict[int, int] = {}
        todo: list[tuple[Frontier, int]] = [(self, point)]
        while todo:
            frontier, row = todo.pop()
            if frontier.chosen is not None:
                layer, configuration = frontier.chosen
                chosen[layer] = configuration
            if frontier.parts is not None:
                rows = frontier.parts.rows[:, row].tolist()
                todo += [
                    (source, at)
                    for source, at in zip(frontier.parts.frontiers, rows, strict=True)
                    if at >= 0
                ]
        return chosen


def point(
    quanta: int, size_bytes: int, chosen: tuple[int, int] | None = None
) -> Frontier:
    """Return the frontier of one point."""
    values = np.array([[quanta], [size_bytes]], dtype=np.int64)
    return Frontier(values, None, chosen)


#: What adds nothing.
NOTHING = point(0, 0)


def reduce(values: Ints, parts: Parts) -> Frontier:
    """Return the points that no other one is as good as in both."""
    order = np.lexsort(values[::-1])
    size_bytes = values[1, order]
    smallest = np.minimum.accumulate(size_bytes)
    mask = np.ones(len(order), dtype=np.bool_)
    mask[1:] = size_bytes[1:] < smallest[:-1]
    order = order[mask]
    return Frontier(values[:, order], Parts(parts.frontiers, parts.rows[:, order]))


def product(*frontiers: Frontier) -> Frontier:
    """Return a point of each added up, in all ways."""
    result, *others = [f for f in frontiers if f is not NOTHING] or [NOTHING]
    for other in others:
        values = result.values[:, :, None] + other.values[:, None, :]
        shape = values.shape[1:]
        rows = np.indices(shape).reshape(2, -1)
        result = reduce(values.reshape(2, -1), Parts((result, other), rows))
    return result


def union(frontiers: Sequence[Frontier]) -> Frontier:
    """Return the points of all."""
    if len(frontiers) == 1:
        return frontiers[0]
    counts = [f.values.shape[1] for f in frontiers]
    rows = np.full((len(frontiers), sum(counts)), -1)
    start = 0
    for row, count in zip(rows, counts, strict=True):
        row[start : start + count] = np.arange(count)
        start += count
    values = np.concatenate([f.values for f in frontiers], axis=1)
    return reduce(values, Parts(tuple(frontiers), rows))


def through(ones: Iterable[Frontier], others: Iterable[Frontier]) -> Frontier:
    """Return the points of both added up, by what they have in common."""
    return union([product(a, b) for a, b in zip(ones, others, strict=True)])


#: Frontiers by the configurations of both ends.
Table = list[list[Frontier]]


class StuckError(Exception):
    """No exact elimination applies; ``args`` is the layer with most edges."""


class Tracking:
    """A graph of frontiers that becomes smaller.

    ``nodes`` has a frontier per configuration of every layer, ``edges`` a table of
    every edge, from its source to its target.

    ``fixed`` are the layers that the heuristic elimination chose a configuration for.
    """

    def __init__(
        self,
        nodes: Mapping[int, Sequence[Frontier]],
        edges: Mapping[tuple[int, int], Table],
    ) -> None:
        self.nodes = {layer: list(found) for layer, found in nodes.items()}
        self.edges: dict[tuple[int, int], Table] = {}
        self.fixed: list[int] = []
        self._done = NOTHING
        for (source, target), table in edges.items():
            self._join(source, target, table)

    def frontier(self, heuristic: int | None) -> Frontier:
        """Return the frontier of the graph.

        ``heuristic`` is one of :data:`HEURISTICS`. Raises ``StuckError`` if there is
        none and the exact ones do not suffice.
        """
        while not self._is_linear():
            if not (self._eliminate_branch() or self._eliminate_node()):
                layer = max(self.nodes, key=lambda x: len(self._around(x)))
                if heuristic is None:
                    raise StuckError(layer)
                self._eliminate(layer, heuristic)
        frontiers = [self._along(path) for path in self._paths()]
        return product(self._done, *frontiers)

    def _around(self, layer: int) -> list[int]:
        return [
            target if source == layer else source
            for source, target in self.edges
            if layer in (source, target)
        ]

    def _table(self, source: int, target: int) -> Table | None:
        """Return the table of the edge between two layers, if there is one.

        Its rows are the configurations of ``source``, whichever way the edge leads.
        """
        if (source, target) in self.edges:
            return self.edges[source, target]
        if (target, source) in self.edges:
            return [
                list(column) for column in zip(*self.edges[target, source], strict=True)
            ]
        return None

    def _join(self, source: int, target: int, table: Table) -> None:
        """Add an edge; with one that is there it becomes one."""
        known = self._table(source, target)
        self.edges.pop((target, source), None)
        if known is not None:
            table = [
                [product(a, b) for a, b in zip(one, other, strict=True)]
                for one, other in zip(known, table, strict=True)
            ]
        self.edges[source, target] = table

    def _drop(self, layer: int) -> None:
        del self.nodes[layer]
        for edge in [edge for edge in self.edges if layer in edge]:
            del self.edges[edge]

    def _is_linear(self) -> bool:
        """Whether all that is left are paths."""
        inner = all(len(self._around(layer)) <= 2 for layer in self.nodes)
        # A ring has no end that a path begins at.
        return inner and sum(map(len, self._paths())) == len(self.nodes)

    def _paths(self) -> Iterator[list[int]]:
        """Yield the paths that are left, from one end to the other."""
        seen: set[int] = set()
        for layer in self.nodes:
            if layer in seen or len(self._around(layer)) > 1:
                continue
            path: list[int] = []
            ahead = [layer]
            while ahead:
                path.append(ahead[0])
                seen.add(ahead[0])
                ahead = [x for x in self._around(ahead[0]) if x not in seen]
            yield path

    def _eliminate_node(self) -> bool:
        """Make a layer between two others an edge, if there is one."""
        sources = [source for source, _ in self.edges]
        targets = [target for _, target in self.edges]
        for layer in self.nodes:
            if sources.count(layer) != 1 or targets.count(layer) != 1:
                continue
            before = next(s for s, t in self.edges if t == layer)
            after = next(t for s, t in self.edges if s == layer)
            entering = self.edges[before, layer]
            leaving = self.edges[layer, after]
            frontiers = self.nodes[layer]
            joined = [
                [product(a, b) for a, b in zip(row, frontiers, strict=True)]
                for row in entering
            ]
            table = [
                [through(row, column) for column in zip(*leaving, strict=True)]
                for row in joined
            ]
            self._drop(layer)
            self._join(before, after, table)
            return True
        return False

    def _eliminate_branch(self) -> bool:
        """Make a layer with one edge a part of its neighbor."""
        for layer in self.nodes:
            around = self._around(layer)
            if len(around) != 1:
                continue
            (other,) = around
            table = self._table(other, layer)
            assert table is not None
            self._absorb(other, table, self.nodes[layer])
            self._drop(layer)
            return True
        return False

    def _absorb(self, layer: int, table: Table, added: Sequence[Frontier]) -> None:
        """Make another layer, and the edge to it, a part of a layer."""
        self.nodes[layer] = [
            product(current, through(row, added))
            for current, row in zip(self.nodes[layer], table, strict=True)
        ]

    def _eliminate(self, layer: int, row: int) -> None:
        """Choose a configuration for a layer by what it alone takes."""
        points = self.nodes[layer]
        chosen = min(range(len(points)), key=lambda c: int(points[c].values[row].min()))
        for other in self._around(layer):
            table = self._table(other, layer)
            assert table is not None
            self._absorb(other, [[r[chosen]] for r in table], [NOTHING])
        self._done = product(self._done, points[chosen])
        self.fixed.append(layer)
        self._drop(layer)

    def _along(self, path: Sequence[int]) -> Frontier:
        """Return the frontier of a path."""
        current = self.nodes[path[0]]
        for before, layer in pairwise(path):
            table = self._table(before, layer)
            assert table is not None
            columns = zip(*table, strict=True)
            current = [
                product(frontier, through(current, column))
                for frontier, column in zip(self.nodes[layer], columns, strict=True)
            ]
        return union(current)


class Offer(NamedTuple):
    """The plans of one ``(R, B)``, and the strategies they choose from."""

    case: BatchSplit
    strategies: list[Strategy]


def offers(problem: Problem, *, by_replicas: bool = False) -> Iterator[Offer]:
    """Yield what there is to choose from, for every ``B``.

    With the fewest replicas, or with as many as there are devices for, if
    the data ranks are replicas.
    """
    cases: dict[int, tuple[BatchSplit, list[Strategy]]] = {}
    for case in batch_splits(problem):
        pool = plainest(problem, case_strategies(problem, case))
        if pool and by_replicas:
            cases[case.micro_batch] = case, pool
        cases.setdefault(case.micro_batch, (case, pool))
    for case, pool in cases.values():
        largest = max((s.devices for s in pool), default=0)
        if largest:
            yield Offer(case, [s for s in pool if s.devices == largest])


def tracked(model: CostModel, offer: Offer) -> Tracking | None:
    """Return the graph of frontiers of an offer.

    Configurations are numbered as its strategies; those that a layer has no
    cost for are left out. ``None`` if some layer has none.
    """
    problem, case = model.problem, offer.case
    devices = offer.strategies[0].devices
    block = Block(case.replicas, case.devices, 0, devices)
    count = case.num_micro_batches
    inflight = paced(problem.job.schedule).inflight(1, count)
    usable: dict[int, list[int]] = {}
    nodes: dict[int, list[Frontier]] = {}
    for layer in range(len(problem.graph.layers)):
        terms = [
            model.layer_terms(layer, strategy, case.micro_batch, block)
            for strategy in offer.strategies
        ]
        usable[layer] = [i for i, t in enumerate(terms) if t is not None]
        nodes[layer] = [
            point(
                count * (t.forward + t.backward) + t.sync,
                t.static_bytes + inflight * t.kept_bytes,
                (layer, index),
            )
            for index, t in enumerate(terms)
            if t is not None
        ]
        if not nodes[layer]:
            return None
    edges = {
        (source, target): [
            [_change(model, offer, block, (a, b), size_bytes) for b in usable[target]]
            for a in usable[source]
        ]
        for source, target, size_bytes in model.transfers.edges
        if size_bytes
    }
    return Tracking(nodes, edges)


def _change(
    model: CostModel, offer: Offer, block: Block, ends: tuple[int, int], size_bytes: int
) -> Frontier:
    """Return what a tensor between two configurations takes."""
    before, after = (offer.strategies[end] for end in ends)
    if before.layout == after.layout:
        return NOTHING
    route = model.network.inside(block)
    quanta = sum(
        model.transfers.receive(
            route, [size_bytes], offer.case.micro_batch, model.shards(s)
        )
        for s in (before, after)
    )
    return point(offer.case.num_micro_batches * quanta, 0)


class FrontierPoint(NamedTuple):
    """A point of a frontier by the planner's own objective."""

    step_quanta: int
    memory_bytes: int
    plan: Plan


def frontier(
    model: CostModel, offer: Offer, heuristic: int | None
) -> tuple[list[FrontierPoint], list[int]]:
    """Return the frontier of an offer, and the layers chosen by heuristic.

    By falling memory. Where the job wants one strategy per stage, all layers have the
    same. Raises ``StuckError`` if the graph needs the heuristic elimination and there
    is none.
    """
    problem = model.problem
    order = list(problem.graph.topological_order())
    graph = tracked(model, offer)
    if graph is None:
        return [], []
    if one_strategy_per_stage(problem):
        points = _alike(graph, len(offer.strategies))
    else:
        points = graph.frontier(heuristic)
    answers = []
    for index in range(points.values.shape[1]):
        chosen = points.choices(index)
        strategies = [offer.strategies[chosen[layer]] for layer in order]
        plan = make_plan(problem, offer.case, [(0, len(order), tuple(strategies))])
        quanta, size_bytes = points.values[:, index].tolist()
        answers.append(FrontierPoint(quanta, size_bytes, plan))
    return answers, graph.fixed


def _alike(graph: Tracking, count: int) -> Frontier:
    """Return the frontier of plans whose layers have one configuration."""
    unions = []
    for index in range(count):
        pieces = [
            frontier
            for layers in graph.nodes.values()
            for frontier in layers
            if frontier.chosen is not None and frontier.chosen[1] == index
        ]
        if len(pieces) == len(graph.nodes):
            unions.append(product(*pieces))
    return union(unions) if unions else Frontier(np.zeros((2, 0), np.int64))


def why_not_whole_stage(problem: Problem) -> str | None:
    """Return why plans of one stage are not allowed, if they are not."""
    allowed = problem.job.pipeline_parallel
    if allowed is None or 1 in allowed:
        return None
    return (
        f"$.job.pipeline_parallel: expected 1 among the allowed values, as the planner "
        f"knows no pipelines, got {list(allowed)}; use another solver"
    )


class FtPlanner(Planner):
    """TensorOpt (re-impl.)."""

    name = "ft"
    refusals = (why_not_turns, why_not_alike, why_not_whole_stage)
    capabilities = Planner.promises(
        method="TensorOpt (re-impl.): frontiers, eliminations, linear DP",
        objective="M Σ(F+G) + Σ sync within a sum of memory, one stage",
        options={
            "heuristic": "what a layer that no exact elimination removes is "
            "split for: time, memory, or none to give up (default time)"
        },
    )

    def run(self, search: Search) -> SolverOutput:
        """Take the fastest point of the frontiers that fits."""
        heuristic = search.choice("heuristic", HEURISTICS, "time")
        problem = search.problem
        capacity = problem.cluster.memory_bytes()
        best: FrontierPoint | None = None
        fixed: set[str] = set()
        for offer in offers(problem, by_replicas=search.by_replicas):
            if search.out_of_time():
                break
            search.say(f"tracking frontiers of B={offer.case.micro_batch}")
            try:
                points, chosen = frontier(search.model, offer, heuristic)
            except StuckError as error:
                layer = problem.graph.layers[error.args[0]].id
                return search.answer(
                    f"no exact elimination is left with layer {layer!r}, and "
                    f"the heuristic one is off"
                )
            fixed.update(str(problem.graph.layers[i].id) for i in chosen)
            for answer in points:
                fits = answer.memory_bytes <= capacity
                if fits and (best is None or answer.step_quanta < best.step_quanta):
                    best = answer
                    own_ns = quanta_to_ns(best.step_quanta, problem.quantum_ps)
                    search.improve(best.plan, own_ns)
        if fixed:
            search.notes.append(f"chosen by heuristic: {', '.join(sorted(fixed))}")
        if best is None and not search.stopped:
            search.notes.append("no point of the frontiers fits")
        return search.answer()
