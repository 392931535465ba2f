"""The label search: exact, over closed sets and offsets, from the end.

A *label* at a node is a way to place the layers beyond a closed set on the
devices from an offset on. It carries what adds up (``Σ τ``, stages) and what
takes a maximum (every pace, ``Y``, memory). It is dropped if another of its
node is at least as good in all (fewer stages behind a stage mean fewer
micro-batches in flight in front of it), or if it cannot lead to a plan that
matters: the placed part plus a lower bound on the rest. Where a job restricts
the number of stages, only labels that the same numbers of stages in front
complete are compared.

This is label setting for shortest paths with resources (Irnich and
Desaulniers, *Shortest path problems with resource constraints*, 2005).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nest.search.bounds import PlacementGraph
from nest.search.dominance import non_dominated
from nest.search.options import INFINITE, Bools, Ints, StageOptions


@dataclass(frozen=True)
class Pipeline:
    """A pipeline, per stage ``(a, b, strategy, devices)``, and its time."""

    step_quanta: int
    stages: list[tuple[int, int, int, int]]


@dataclass(frozen=True)
class StageRule:
    """Which numbers of stages are allowed; arrays indexed by a number.

    Attributes
    ----------
    fewest, most
        The extremes of what is allowed.
    complete
        Whether so many stages are a pipeline.
    open
        Whether one or more stages in front can make them one.
    group
        Numbers with equal groups are completed by the same numbers of stages
        in front, so their labels can replace each other.
    """

    fewest: int
    most: int
    complete: Bools
    open: Bools
    group: Ints

    @staticmethod
    def of(options: StageOptions) -> StageRule | None:
        """Return the rule of a split that has one, else ``None``."""
        counts, possible = options.stage_counts, options.most_stages
        if not options.restricted:
            return None
        complete = np.zeros(possible + 1, dtype=np.bool_)
        complete[counts] = True
        numbers: dict[bytes, int] = {}
        group = [
            # Beyond the largest number nothing can stand in front.
            numbers.setdefault(
                np.r_[
                    complete[number + 1 :], np.ones(number, dtype=np.bool_)
                ].tobytes(),
                len(numbers),
            )
            for number in range(possible + 1)
        ]
        return StageRule(
            counts[0],
            counts[-1],
            complete,
            np.r_[np.logical_or.accumulate(complete[:0:-1])[::-1], False],
            np.array(group),
        )


class Labels:
    """The labels of all nodes, one after the other.

    Rows of the table are the node, ``Σ τ``, one maximum per pace, ``max Y``,
    stages, memory, the option in front and the label behind it (or -1).
    Those of node ``i`` are ``first[i]`` to ``stop[i]``.
    """

    def __init__(self, num_paces: int, num_nodes: int) -> None:
        self._table = np.empty((num_paces + 7, 1024), dtype=np.int64)
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
    """Search the places of a split.

    Parameters
    ----------
    places
        Options and bounds; :meth:`~nest.search.bounds.Places.bounds` must
        have been called.
    """

    def __init__(self, places: PlacementGraph) -> None:
        self.places, self.options = places, places.options
        self._rule = StageRule.of(self.options)

    def pipelines(self, max_labels: int | None) -> list[Pipeline]:
        """Return pipelines that are faster than ``U`` of their memory.

        By ascending memory, hence descending time. Without ``max_labels``
        every plan on the frontier that matters has one of them that is as
        good.

        Parameters
        ----------
        max_labels
            Keep only so many labels per node; the answers are then plans,
            but not proven best. ``None`` is exact.

        Raises
        ------
        OutOfTimeError
            If the deadline passed.
        """
        places = self.places
        labels = Labels(len(self.options.rounds), len(places.offset))
        for rows in reversed(places.slices()):
            places.check_time()
            parts = self._extended(np.arange(rows.start, rows.stop), labels)
            new = np.concatenate(parts, axis=1)
            if new.shape[1]:
                labels.append(self._kept(new, max_labels))
        return self._pipelines(labels)

    def _pipelines(self, labels: Labels) -> list[Pipeline]:
        starts = np.flatnonzero(self.places.is_start)
        root = np.concatenate(
            [
                np.arange(labels.first[node], labels.stop[node])
                for node in starts
            ]
            or [np.zeros(0, dtype=np.int64)]
        )
        found = labels.table[:, root]
        times = self.places.step_time(found[1:-4])
        if self._rule is not None:
            times = np.where(self._rule.complete[found[-4]], times, INFINITE)
        best = int(INFINITE)
        result = []
        for row in np.lexsort((times, found[-3])).tolist():
            if times[row] < best:
                best = int(times[row])
                stages = self._stages(labels, int(root[row]))
                result.append(Pipeline(best, stages))
        return result

    def _stages(
        self, labels: Labels, label: int
    ) -> list[tuple[int, int, int, int]]:
        found, count = self.places.edges, self.places.num_sets
        stages = []
        while label >= 0:
            row, label = labels.table[-2:, label].tolist()
            stages.append(
                (
                    int(found.source[row]) % count,
                    int(found.target[row]) % count,
                    int(found.strategy[row]),
                    int(found.size[row]),
                )
            )
        return stages

    def _extended(self, rows: Ints, labels: Labels) -> list[Ints]:
        """Put every option in front of every label it can precede."""
        end = self.places.end[rows]
        last = self.places.is_end[end]
        final = rows[last]
        empty = np.zeros((labels.table.shape[0], len(final)), np.int64)
        parts = [self._useful(final, empty, np.full(len(final), -1))]
        rows, end = rows[~last], end[~last]
        first = labels.first[end]
        count = labels.stop[end] - first
        repeat = np.repeat(np.arange(len(rows)), count)
        if len(repeat):
            starts = np.cumsum(count) - count
            label = np.arange(len(repeat)) - np.repeat(starts - first, count)
            parts.append(
                self._useful(rows[repeat], labels.table[:, label], label)
            )
        return parts

    def _useful(self, rows: Ints, behind: Ints, label: Ints) -> Ints:
        """Return the new labels that fit and may lead to what matters.

        What the layers in front need at least is folded into the maxima:
        that changes no complete plan, and makes labels that differ only
        below it equal.
        """
        places, options = self.places, self.options
        found = places.edges
        node = places.begin[rows]
        front = places.prefix[:, node]
        maxima = np.stack(
            [column[rows] for column in (*found.paces, found.sync)]
        )
        maxima = np.maximum(
            np.maximum(behind[1 + 1 : -4], maxima), front[1:-2]
        )
        total = behind[1] + found.once[rows]
        stages = behind[-4] + 1
        bound = places.step_time(
            np.stack((total + front[0], *maxima)), front[-2]
        )
        need = options.inflight(stages)
        memory = np.maximum(
            behind[-3],
            found.fixed_bytes[rows] + need * found.kept_bytes[rows],
        )
        floor = places.target.floors[places.level[node]]
        memory = np.maximum(memory, floor)
        useful = (bound < places.target.upper(memory)) & (
            found.max_inflight[rows] >= need
        )
        if self._rule is not None:
            useful &= self._allowed(self._rule, node, stages)
        where = np.flatnonzero(useful)
        columns = (node, total, *maxima, stages, memory, rows, label)
        return np.stack([column[where] for column in columns])

    def _allowed(self, rule: StageRule, node: Ints, stages: Ints) -> Bools:
        """Whether some stages in front make an allowed number."""
        places = self.places
        least = stages + places.prefix[-1, node]
        smallest = self.options.smallest
        most = stages + np.minimum(
            places.num_layers[node], places.offset[node] // smallest
        )
        allowed: Bools = np.where(
            places.num_layers[node] == 0,
            rule.complete[stages],
            rule.open[stages],
        )
        allowed &= (least <= rule.most) & (most >= rule.fewest)
        return allowed

    def _kept(self, columns: Ints, max_labels: int | None) -> Ints:
        """Drop dominated labels and order the rest by node."""
        node, total, stages, memory = columns[[0, 1, -4, -3]]
        maxima = columns[2:-4]
        group = node
        if self._rule is not None:
            groups = int(self._rule.group.max()) + 1
            group = node * groups + self._rule.group[stages]
        need = self.options.inflight(stages)
        estimate = self.places.step_time(columns[1:-4])
        # No label is beaten by a later one.
        order = np.lexsort(
            (memory + need + maxima.sum(axis=0), estimate, group)
        )
        criteria: Sequence[Ints] = (total, *maxima, need, memory)
        keep = non_dominated(
            group[order], [column[order] for column in criteria], max_labels
        )
        kept: Ints = columns[:, order[keep]]
        return kept
