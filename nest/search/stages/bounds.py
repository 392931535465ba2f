"""The placement graph: stages at their offsets, with bounds from both ends.

A node is a closed set of layers and the device offset where the next stage
begins. An edge is a stage with its device range. A pipeline is a path from
the empty set at offset 0 to the set of all layers.

Each node has two relaxed bounds. ``suffix`` bounds the stages after the node, which
contain the layers outside the closed set. ``prefix`` bounds the stages before the node,
which use exactly the devices below the offset. Both relaxations minimize ``Σ``, each
maximum and ``Y`` separately. An edge stays only if its own costs with ``prefix`` and
``suffix`` may be a plan that is faster than the incumbent.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from nest.search.stages.options import (
    INFINITE,
    Bools,
    Ints,
    PlacedOptions,
    StageOptions,
    unique,
)
from nest.solvers.base import Deadline

#: The bounds are computed again if they dropped this fraction of the edges.
WORTH = 0.3

#: Maximum number of times that the bounds are computed.
ROUNDS = 3

#: Number of edges that are compared with the bounds at a time.
CHUNK = 200_000


class IncumbentCurve(NamedTuple):
    """The step time that a plan must be below, by its memory: ``U(m)``.

    ``U(m)`` is the least step time of all known plans that hold at most ``m``
    bytes on their fullest device. Levels are adjacent intervals ``(floor,
    cap]`` of this memory. Memory below the floor counts as the floor.
    """

    #: The floor of each level.
    floors: Ints
    #: ``U`` is ``times[i]`` from ``memories[i - 1]`` on.
    memories: Ints
    times: Ints

    @staticmethod
    def below(upper: int) -> IncumbentCurve:
        """Return the curve of one level: plans below ``upper`` quanta."""
        return IncumbentCurve(
            np.array([INFINITE]),
            np.zeros(0, dtype=np.int64),
            np.array([upper], dtype=np.int64),
        )

    def upper(self, memory: Ints) -> Ints:
        """Return ``U(memory)``."""
        upper: Ints = self.times[np.searchsorted(self.memories, memory, "right")]
        return upper


class PlacementGraph:
    """The stages of a split at their offsets, with bounds from both ends.

    A *node* is a closed set at an offset, on a level. If the edges have exact
    receive times (:mod:`nest.search.stages.neighbor_sizes`), a node also fixes the
    sizes of the stages that meet there. Nodes are ordered by offset and set.

    Parameters
    ----------
    options
        Stage options of the split.
    edges
        Placed options of the split.
    target
        The step time that plans must be below.
    deadline
        The clock.

    Attributes
    ----------
    edges, begin, end
        The options that remain, and the nodes at their ends.
    offset, state
        Offset of each node, and its closed set with its level.
    prefix, suffix
        Lower bounds, arrays ``(fields, nodes)``. The fields are the sum of
        the times that stages add once, the maximum of each period, ``max Y``,
        the largest ``joint``, and the number of stages.
    """

    def __init__(
        self,
        options: StageOptions,
        edges: PlacedOptions,
        target: IncumbentCurve,
        deadline: Deadline,
    ) -> None:
        self.options, self.target = options, target
        self.deadline = deadline
        self.num_sets = options.shapes.sets.count
        states = self.num_sets * len(target.floors)
        begin = edges.offset * states + edges.source
        end = (edges.offset + edges.size) * states + edges.target
        num_sizes = 1
        if edges.enter.any() or edges.leave.any():
            sizes, size_index = np.unique(
                np.stack((edges.enter, edges.leave)), return_inverse=True
            )
            num_sizes = len(sizes)
            enter, leave = size_index.reshape(2, -1)
            begin, end = begin * num_sizes + enter, end * num_sizes + leave
        nodes = unique(np.concatenate((begin, end)))
        self.offset, self.state = np.divmod(nodes // num_sizes, states)
        self.level = self.state // self.num_sets
        closed_set = self.state % self.num_sets
        self.is_start = (closed_set == 0) & (self.offset == 0)
        self.is_end = closed_set == self.num_sets - 1
        self.num_layers: Ints = options.shapes.kind_counts.sum(axis=1)[closed_set]
        self.edges = edges
        self.begin = np.searchsorted(nodes, begin)
        self.end = np.searchsorted(nodes, end)

    def slices(self) -> list[slice]:
        """Return the edges of every offset, by ascending offset."""
        offset = self.edges.offset
        first = np.flatnonzero(np.diff(offset, prepend=-1))
        ends = np.append(first, len(offset))
        return [slice(*pair) for pair in pairwise(ends.tolist())]

    def check_time(self) -> None:
        """Raise if the time is up."""
        self.deadline.check()

    def _values(self, edges: PlacedOptions) -> Ints:
        """Return the values of edges for the fields of a bound."""
        return np.stack(
            (
                edges.once,
                *edges.periods,
                edges.sync,
                edges.joint,
                np.ones(len(edges), dtype=np.int64),
            )
        )

    def _steps(self, heads: Ints) -> Iterator[tuple[Ints, Ints, Ints]]:
        """Yield edges by the offset of their head, grouped by head.

        ``heads`` is the node of each edge whose bound the edge improves.
        """
        order = np.argsort(heads, kind="stable")
        nodes = heads[order]
        first = np.flatnonzero(np.diff(nodes, prepend=-1))
        offsets = self.offset[nodes[first]]
        groups = np.append(np.flatnonzero(np.diff(offsets, prepend=-1)), len(first))
        ends = np.append(first, len(order))
        for low, high in pairwise(groups.tolist()):
            starts = first[low:high]
            yield (order[starts[0] : ends[high]], starts - starts[0], nodes[starts])

    def _relax(self, is_root: Bools, tails: Ints, heads: Ints, backward: bool) -> Ints:
        """Return the bounds of all nodes from one end of the pipeline."""
        values = self._values(self.edges)
        result = np.full((len(values), len(self.offset)), INFINITE)
        result[:, is_root] = 0
        remaining = None if backward else self.remaining_stages
        steps = list(self._steps(heads))
        for rows, starts, nodes in reversed(steps) if backward else steps:
            self.check_time()
            reached = result[:, tails[rows]]
            added = values[:, rows]
            new = np.maximum(reached, added)
            new[0] = reached[0] + added[0]
            new[-1] = reached[-1] + 1
            stages = new[-1] if remaining is None else remaining[rows]
            new[:, ~self._usable(rows, stages)] = INFINITE
            best = np.minimum.reduceat(new, starts, axis=1)
            result[:, nodes] = np.minimum(best, INFINITE)
        return result

    def _usable(self, rows: Ints | slice, remaining: Ints) -> Bools:
        """Whether edges fit with at least so many stages from them on."""
        in_flight = self.options.inflight(remaining)
        usable: Bools = (self.edges.max_inflight[rows] >= in_flight) & (
            remaining < INFINITE
        )
        return usable

    @property
    def remaining_stages(self) -> Ints:
        """Least number of stages from each edge on, the edge included."""
        remaining: Ints = self.suffix[-1, self.end] + 1
        return remaining

    def bounds(self) -> Ints:
        """Compute the bounds and drop the edges that cannot improve.

        Returns
        -------
        array
            Lower bound on the step time of the plans of each level that are
            below the target; :data:`INFINITE` if there is no such plan.

        Raises
        ------
        OutOfTimeError
            If the deadline passed.
        """
        bounds = np.zeros(len(self.target.floors), dtype=np.int64)
        for _ in range(ROUNDS):
            before = len(self.edges)
            self.suffix = self._relax(self.is_end, self.end, self.begin, backward=True)
            bounds = np.maximum(bounds, self._root_bounds())
            if (bounds >= INFINITE).all():
                break
            self.prefix = self._relax(
                self.is_start, self.begin, self.end, backward=False
            )
            self.keep_edges(self._may_improve())
            if len(self.edges) > (1 - WORTH) * before:
                break
        return bounds

    def keep_edges(self, chosen: Bools) -> None:
        """Drop all other edges."""
        self.edges = self.edges.take(chosen)
        self.begin, self.end = self.begin[chosen], self.end[chosen]

    def step_time(self, fields: Ints, joint: Ints | int = 0) -> Ints:
        """Return the step time of ``(sum, maxima of the periods, Y)``.

        It is at least the sum plus ``joint``.
        """
        apart = self.options.rounds @ fields[1:-1] + fields[-1]
        time: Ints = fields[0] + np.maximum(apart, joint)
        return time

    def _root_bounds(self) -> Ints:
        """Return the bound of each level, from its start node."""
        bounds = np.full(len(self.target.floors), INFINITE)
        starts = np.flatnonzero(
            self.is_start & (self.suffix[-1] <= self.options.stage_counts[-1])
        )
        fields = self.suffix[:, starts]
        bounds[self.level[starts]] = self.step_time(fields[:-2], fields[-2])
        upper = self.target.upper(self.target.floors)
        return np.where(bounds < upper, bounds, INFINITE)

    def _may_improve(self) -> Bools:
        """Which edges may be part of a plan below the target."""
        remaining = self.remaining_stages
        stages = self.prefix[-1, self.begin] + remaining
        useful = self._usable(slice(None), remaining)
        useful &= stages <= self.options.stage_counts[-1]
        rows = np.flatnonzero(useful)
        for start in range(0, len(rows), CHUNK):
            chosen = rows[start : start + CHUNK]
            useful[chosen] = self._promising(chosen, remaining[chosen])
        return useful

    def _promising(self, rows: Ints, remaining: Ints) -> Bools:
        """Which edges have a bound below ``U``, given remaining stages."""
        edges = self.edges.take(rows)
        begin = self.begin[rows]
        before = self.prefix[:, begin]
        after = self.suffix[:, self.end[rows]]
        added = self._values(edges)
        around = np.maximum(np.maximum(before, added), after)
        around[0] = before[0] + added[0] + after[0]
        memory = edges.fixed_bytes + edges.kept_bytes * self.options.inflight(remaining)
        floor = self.target.floors[self.level[begin]]
        upper = self.target.upper(np.maximum(memory, floor))
        promising: Bools = self.step_time(around[:-2], around[-2]) < upper
        return promising
