"""Lower bounds at every place: what is in front, what is behind.

Both relaxations forget how ``Σ``, maxima and ``Y`` depend on each other and
take each minimum by itself, over the options that may still be of use:
``suffix`` over the layers beyond a closed set on the devices from an offset
on, ``prefix`` over the layers of the set on exactly the devices before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from nest.search.options import (
    INFINITE,
    Bools,
    Ints,
    PlacedOptions,
    StageOptions,
)
from nest.solvers.base import Deadline, OutOfTimeError

#: Bounds are repeated while they drop this share of the options.
WORTH = 0.3

#: How often they are repeated at most.
ROUNDS = 3

#: So many options are held against the bounds at a time.
CHUNK = 200_000


class IncumbentCurve(NamedTuple):
    """Which plans matter: those faster than ``U`` of their memory.

    ``U(m)`` is the least step time known with at most ``m`` bytes. Levels are
    adjacent intervals ``(floor, cap]`` of what the fullest device holds;
    memory below the floor counts as the floor.

    Attributes
    ----------
    floors
        One per level.
    memories, times
        ``U`` is ``times[i]`` from ``memories[i - 1]`` on.
    """

    floors: Ints
    memories: Ints
    times: Ints

    @staticmethod
    def below(upper: int) -> IncumbentCurve:
        """Return the plans faster than that, whatever they hold."""
        return IncumbentCurve(
            np.array([INFINITE]),
            np.zeros(0, dtype=np.int64),
            np.array([upper], dtype=np.int64),
        )

    def upper(self, memory: Ints) -> Ints:
        """Return ``U``."""
        found: Ints = self.times[
            np.searchsorted(self.memories, memory, "right")
        ]
        return found


class PlacementGraph:
    """Places of a split: its options and bounds from both sides.

    A *node* is a closed set at an offset (and level) that some option begins
    or ends at, with the sizes that meet there if options tell them apart;
    nodes are ordered by offset and set.

    Parameters
    ----------
    options
        Of the split.
    found
        Its placed options.
    target
        Which plans matter.
    deadline
        When to give up.

    Attributes
    ----------
    found, begin, end
        Options that may still be of use, and the nodes they join.
    offset, state
        Of every node.
    prefix, suffix
        The sum of what stages add once, each pace's maximum, ``max Y``,
        the largest ``joint`` and the number of stages, at least: arrays
        ``(fields, nodes)``.
    """

    def __init__(
        self,
        options: StageOptions,
        found: PlacedOptions,
        target: IncumbentCurve,
        deadline: Deadline,
    ) -> None:
        self.options, self.target = options, target
        self.deadline = deadline
        self.num_sets = options.shapes.sets.count
        states = self.num_sets * len(target.floors)
        begin = found.offset * states + found.source
        end = (found.offset + found.size) * states + found.target
        meetings = 1
        if found.enter.any() or found.leave.any():
            met, meeting = np.unique(
                np.stack((found.enter, found.leave)), return_inverse=True
            )
            meetings = len(met)
            enter, leave = meeting.reshape(2, -1)
            begin, end = begin * meetings + enter, end * meetings + leave
        nodes = np.unique(np.concatenate((begin, end)))
        self.offset, self.state = np.divmod(nodes // meetings, states)
        self.level = self.state // self.num_sets
        at = self.state % self.num_sets
        self.is_start = (at == 0) & (self.offset == 0)
        self.is_end = at == self.num_sets - 1
        self.num_layers: Ints = options.shapes.kind_counts.sum(axis=1)[at]
        self.edges = found
        self.begin = np.searchsorted(nodes, begin)
        self.end = np.searchsorted(nodes, end)

    def slices(self) -> list[slice]:
        """Return the options of every offset, ascending."""
        offset = self.edges.offset
        first = np.flatnonzero(np.diff(offset, prepend=-1))
        ends = np.append(first, len(offset))
        return [slice(*pair) for pair in pairwise(ends.tolist())]

    def check_time(self) -> None:
        """Raise if the time is up."""
        if self.deadline.passed:
            raise OutOfTimeError

    def _values(self, found: PlacedOptions) -> Ints:
        """Return what options add to the fields."""
        return np.stack(
            (
                found.once,
                *found.paces,
                found.sync,
                found.joint,
                np.ones(len(found), dtype=np.int64),
            )
        )

    def _steps(self, toward: Ints) -> Iterator[tuple[Ints, Ints, Ints]]:
        """Yield options by the offset of a node, with the nodes' segments.

        ``toward`` is the node of every option that gets a new bound.
        """
        order = np.argsort(toward, kind="stable")
        nodes = toward[order]
        first = np.flatnonzero(np.diff(nodes, prepend=-1))
        offsets = self.offset[nodes[first]]
        groups = np.append(
            np.flatnonzero(np.diff(offsets, prepend=-1)), len(first)
        )
        ends = np.append(first, len(order))
        for low, high in pairwise(groups.tolist()):
            starts = first[low:high]
            yield (
                order[starts[0] : ends[high]],
                starts - starts[0],
                nodes[starts],
            )

    def _relax(
        self, known: Bools, come_from: Ints, toward: Ints, backward: bool
    ) -> Ints:
        """Return the bounds of all nodes from one side."""
        values = self._values(self.edges)
        result = np.full((len(values), len(self.offset)), INFINITE)
        result[:, known] = 0
        left = None if backward else self.left
        steps = list(self._steps(toward))
        for rows, starts, nodes in reversed(steps) if backward else steps:
            self.check_time()
            around = result[:, come_from[rows]]
            own = values[:, rows]
            new = np.maximum(around, own)
            new[0] = around[0] + own[0]
            new[-1] = around[-1] + 1
            stages = new[-1] if left is None else left[rows]
            new[:, ~self._usable(rows, stages)] = INFINITE
            best = np.minimum.reduceat(new, starts, axis=1)
            result[:, nodes] = np.minimum(best, INFINITE)
        return result

    def _usable(self, rows: Ints | slice, left: Ints) -> Bools:
        """Whether options fit with so many stages left, at least."""
        need = self.options.inflight(left)
        usable: Bools = (self.edges.max_inflight[rows] >= need) & (
            left < INFINITE
        )
        return usable

    @property
    def left(self) -> Ints:
        """Stages from every option on, at least."""
        left: Ints = self.suffix[-1, self.end] + 1
        return left

    def bounds(self) -> Ints:
        """Return a lower bound on every step time of interest, per level.

        Keeps the options that may still be of use. :data:`INFINITE` where a
        level has no plan that matters.

        Raises
        ------
        OutOfTimeError
            If the deadline passed.
        """
        bounds = np.zeros(len(self.target.floors), dtype=np.int64)
        for _ in range(ROUNDS):
            before = len(self.edges)
            self.suffix = self._relax(
                self.is_end, self.end, self.begin, backward=True
            )
            bounds = np.maximum(bounds, self._root_bounds())
            if (bounds >= INFINITE).all():
                break
            self.prefix = self._relax(
                self.is_start, self.begin, self.end, backward=False
            )
            self.keep(self._useful())
            if len(self.edges) > (1 - WORTH) * before:
                break
        return bounds

    def keep(self, chosen: Bools) -> None:
        """Drop all other options."""
        self.edges = self.edges.take(chosen)
        self.begin, self.end = self.begin[chosen], self.end[chosen]

    def step_time(self, fields: Ints, joint: Ints | int = 0) -> Ints:
        """Return the step time of ``(sum, maxima of the paces, Y)``.

        At least the sum and ``joint``.
        """
        apart = self.options.rounds @ fields[1:-1] + fields[-1]
        time: Ints = fields[0] + np.maximum(apart, joint)
        return time

    def _root_bounds(self) -> Ints:
        """Bound every level from its start."""
        bounds = np.full(len(self.target.floors), INFINITE)
        starts = np.flatnonzero(
            self.is_start & (self.suffix[-1] <= self.options.stage_counts[-1])
        )
        fields = self.suffix[:, starts]
        bounds[self.level[starts]] = self.step_time(fields[:-2], fields[-2])
        upper = self.target.upper(self.target.floors)
        return np.where(bounds < upper, bounds, INFINITE)

    def _useful(self) -> Bools:
        """Which options may be part of a plan that matters."""
        left = self.left
        stages = self.prefix[-1, self.begin] + left
        useful = self._usable(slice(None), left)
        useful &= stages <= self.options.stage_counts[-1]
        rows = np.flatnonzero(useful)
        for start in range(0, len(rows), CHUNK):
            chosen = rows[start : start + CHUNK]
            useful[chosen] = self._promising(chosen, left[chosen])
        return useful

    def _promising(self, rows: Ints, left: Ints) -> Bools:
        """Which options are below ``U``, with so many stages left."""
        found = self.edges.take(rows)
        begin = self.begin[rows]
        front = self.prefix[:, begin]
        back = self.suffix[:, self.end[rows]]
        own = self._values(found)
        around = np.maximum(np.maximum(front, own), back)
        around[0] = front[0] + own[0] + back[0]
        memory = found.fixed_bytes + found.kept_bytes * self.options.inflight(
            left
        )
        floor = self.target.floors[self.level[begin]]
        upper = self.target.upper(np.maximum(memory, floor))
        promising: Bools = self.step_time(around[:-2], around[-2]) < upper
        return promising
