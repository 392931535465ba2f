"""The label search: exact, over closed sets and offsets, from the end.

A *label* at a node of the placement graph is the end of a pipeline: stages
for the layers outside the closed set, on the devices from the offset on. It
has the sums (``Σ τ``, number of stages) and the maxima (each period, ``Y``,
memory) of its stages. The search goes through the offsets in descending order
(:meth:`LabelSearch.pipelines`). At each offset it

1. puts every edge in front of every label at the end of the edge;
2. drops a new label if its costs plus the ``prefix`` bound of its node are
   not below the step time of a known plan;
3. drops a new label if another label of its node is at least as good in every
   cost. Fewer stages count as better, because then fewer microbatches are in
   flight in the stages before them.

A label at the start node is a complete pipeline. If a job restricts the number
of stages, a label replaces another one only if the same numbers of stages
before them complete both.

This is label setting for shortest paths with resources (Irnich and
Desaulniers, *Shortest path problems with resource constraints*, 2005).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from nest.search.stages.bounds import IncumbentCurve, PlacementGraph
from nest.search.stages.dominance import non_dominated
from nest.search.stages.neighbor_sizes import split_by_neighbor_size
from nest.search.stages.options import INFINITE, Bools, Ints, StageOptions


@dataclass(frozen=True)
class Pipeline:
    """A pipeline: its time, and ``(a, b, strategy, devices)`` per stage."""

    step_quanta: int
    stages: list[tuple[int, int, int, int]]


@dataclass(frozen=True)
class StageRule:
    """Which numbers of stages a job allows; arrays by number of stages."""

    #: The least and the largest allowed number.
    min_stages: int
    max_stages: int
    #: Whether a pipeline may have this number.
    complete: Bools
    #: Whether one or more additional stages give an allowed number.
    open: Bools
    #: Numbers of one group are completed by the same numbers of additional stages, so
    #: their labels can replace each other.
    group: Ints

    @staticmethod
    def of(options: StageOptions) -> StageRule | None:
        """Return the rule of a split that has one, else ``None``."""
        counts, max_possible = options.stage_counts, options.max_stages
        if not options.restricted:
            return None
        complete = np.zeros(max_possible + 1, dtype=np.bool_)
        complete[counts] = True
        groups: dict[bytes, int] = {}
        group = [
            # Above the largest number no stage can be added.
            groups.setdefault(
                np.r_[
                    complete[number + 1 :], np.ones(number, dtype=np.bool_)
                ].tobytes(),
                len(groups),
            )
            for number in range(max_possible + 1)
        ]
        return StageRule(
            counts[0],
            counts[-1],
            complete,
            np.r_[np.logical_or.accumulate(complete[:0:-1])[::-1], False],
            np.array(group),
        )


class Labels:
    """The labels of all nodes in one table, a column per label.

    The rows are the node, ``Σ τ``, one maximum per period, ``max Y``, the number of
    stages, the memory, the first edge of the label and the label after this edge (or
    -1). Node ``i`` has the labels ``first[i]`` to ``stop[i]``.
    """

    def __init__(self, num_periods: int, num_nodes: int) -> None:
        self._table = np.empty((num_periods + 7, 1024), dtype=np.int64)
        self.count = 0
        self.first = np.zeros(num_nodes, dtype=np.int64)
        self.stop = np.zeros(num_nodes, dtype=np.int64)

    @property
    def table(self) -> Ints:
        """All labels."""
        return self._table[:, : self.count]

    def append(self, columns: Ints) -> None:
        """Add the labels of some nodes, ordered by node."""
        start, self.count = self.count, self.count + columns.shape[1]
        while self._table.shape[1] < self.count:
            self._table = np.concatenate(
                (self._table, np.empty_like(self._table)), axis=1
            )
        self._table[:, start : self.count] = columns
        node = columns[0]
        first = np.flatnonzero(np.diff(node, prepend=-1))
        self.first[node[first]] = start + first
        self.stop[node[first]] = start + np.r_[first[1:], len(node)]


class LabelSearch:
    """Search the pipelines of a placement graph.

    Parameters
    ----------
    graph
        The graph, after :meth:`~nest.search.stages.bounds.PlacementGraph.bounds`.
    """

    def __init__(self, graph: PlacementGraph) -> None:
        self.graph, self.options = graph, graph.options
        self._rule = StageRule.of(self.options)

    def pipelines(self, max_labels: int | None) -> list[Pipeline]:
        """Return pipelines that are faster than ``U`` of their memory.

        They are ordered by ascending memory, hence descending time. Without
        ``max_labels`` no pipeline of the graph is faster than all of them
        that hold as little memory.

        Parameters
        ----------
        max_labels
            Maximum number of labels per node. The pipelines are then plans, but the
            best one may be missing. ``None`` keeps all labels, and is a proof.

        Raises
        ------
        OutOfTimeError
            If the deadline passed.
        """
        graph = self.graph
        labels = Labels(len(self.options.rounds), len(graph.offset))
        for rows in reversed(graph.slices()):
            graph.check_time()
            parts = self._extended(np.arange(rows.start, rows.stop), labels)
            new = np.concatenate(parts, axis=1)
            if new.shape[1]:
                labels.append(self._undominated(new, max_labels))
        return self._pipelines(labels)

    def _pipelines(self, labels: Labels) -> list[Pipeline]:
        starts = np.flatnonzero(self.graph.is_start)
        root = np.concatenate(
            [np.arange(labels.first[node], labels.stop[node]) for node in starts]
            or [np.zeros(0, dtype=np.int64)]
        )
        at_root = labels.table[:, root]
        times = self.graph.step_time(at_root[1:-4])
        if self._rule is not None:
            times = np.where(self._rule.complete[at_root[-4]], times, INFINITE)
        best = int(INFINITE)
        pipelines = []
        for row in np.lexsort((times, at_root[-3])).tolist():
            if times[row] < best:
                best = int(times[row])
                stages = self._stages(labels, int(root[row]))
                pipelines.append(Pipeline(best, stages))
        return pipelines

    def _stages(self, labels: Labels, label: int) -> list[tuple[int, int, int, int]]:
        edges, count = self.graph.edges, self.graph.num_sets
        stages = []
        while label >= 0:
            row, label = labels.table[-2:, label].tolist()
            stages.append(
                (
                    int(edges.source[row]) % count,
                    int(edges.target[row]) % count,
                    int(edges.strategy[row]),
                    int(edges.size[row]),
                )
            )
        return stages

    def _extended(self, rows: Ints, labels: Labels) -> list[Ints]:
        """Put every edge in front of every label at its end."""
        end = self.graph.end[rows]
        last = self.graph.is_end[end]
        final = rows[last]
        no_label = np.zeros((labels.table.shape[0], len(final)), np.int64)
        parts = [self._may_improve(final, no_label, np.full(len(final), -1))]
        rows, end = rows[~last], end[~last]
        first = labels.first[end]
        count = labels.stop[end] - first
        repeat = np.repeat(np.arange(len(rows)), count)
        if len(repeat):
            starts = np.cumsum(count) - count
            label = np.arange(len(repeat)) - np.repeat(starts - first, count)
            parts.append(self._may_improve(rows[repeat], labels.table[:, label], label))
        return parts

    def _may_improve(self, rows: Ints, old: Ints, label: Ints) -> Ints:
        """Return the new labels that fit and may lead to an improvement.

        The maxima are raised to those of the ``prefix`` bound. This changes no complete
        pipeline, and labels that differ only below the bound become equal.
        """
        graph, options = self.graph, self.options
        edges = graph.edges
        node = graph.begin[rows]
        ahead = graph.prefix[:, node]
        maxima = np.stack([column[rows] for column in (*edges.periods, edges.sync)])
        maxima = np.maximum(np.maximum(old[1 + 1 : -4], maxima), ahead[1:-2])
        total = old[1] + edges.once[rows]
        stages = old[-4] + 1
        bound = graph.step_time(np.stack((total + ahead[0], *maxima)), ahead[-2])
        need = options.inflight(stages)
        memory = np.maximum(
            old[-3], edges.fixed_bytes[rows] + need * edges.kept_bytes[rows]
        )
        floor = graph.target.floors[graph.level[node]]
        memory = np.maximum(memory, floor)
        useful = (bound < graph.target.upper(memory)) & (
            edges.max_inflight[rows] >= need
        )
        if self._rule is not None:
            useful &= self._allowed(self._rule, node, stages)
        where = np.flatnonzero(useful)
        columns = (node, total, *maxima, stages, memory, rows, label)
        return np.stack([column[where] for column in columns])

    def _allowed(self, rule: StageRule, node: Ints, stages: Ints) -> Bools:
        """Whether additional stages can give an allowed number."""
        graph = self.graph
        min_stages = stages + graph.prefix[-1, node]
        smallest = self.options.smallest
        max_stages = stages + np.minimum(
            graph.num_layers[node], graph.offset[node] // smallest
        )
        allowed: Bools = np.where(
            graph.num_layers[node] == 0, rule.complete[stages], rule.open[stages]
        )
        allowed &= min_stages <= rule.max_stages
        allowed &= max_stages >= rule.min_stages
        return allowed

    def _undominated(self, columns: Ints, max_labels: int | None) -> Ints:
        """Return the labels that no other one dominates, by node."""
        node, total, stages, memory = columns[[0, 1, -4, -3]]
        maxima = columns[2:-4]
        group = node
        if self._rule is not None:
            groups = int(self._rule.group.max()) + 1
            group = node * groups + self._rule.group[stages]
        need = self.options.inflight(stages)
        estimate = self.graph.step_time(columns[1:-4])
        # In this order no label is dominated by a later one.
        order = np.lexsort((memory + need + maxima.sum(axis=0), estimate, group))
        criteria: Sequence[Ints] = (total, *maxima, need, memory)
        keep = non_dominated(
            group[order], [column[order] for column in criteria], max_labels
        )
        kept: Ints = columns[:, order[keep]]
        return kept


def improvements(
    graph: PlacementGraph, target: Callable[[], IncumbentCurve]
) -> Iterator[Pipeline]:
    """Yield pipelines of a graph; at the end, none below the target is left.

    ``target`` returns the step time that plans must be below. It may fall when
    pipelines are taken, so it is asked again after each search of labels. No step
    drops a plan below it, so a plan of few labels only makes the proof shorter.
    """
    # One label per node is fast and finds plans; the target then is lower. The stages
    # that remain get exact receive times. All labels together are the proof.
    for exact, max_labels in ((False, 1), (True, 1), (True, None)):
        if (graph.bounds() >= INFINITE).all():
            break
        if exact and max_labels is not None:
            graph = split_by_neighbor_size(graph)
            if (graph.bounds() >= INFINITE).all():
                break
        yield from LabelSearch(graph).pipelines(max_labels)
        graph.target = target()
