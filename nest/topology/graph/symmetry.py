"""Rotations of the rank order that a graph cannot tell from standing still.

A *rotation* by ``step`` of runs of ``length`` takes the rank at place ``i`` of a run to
``(i + step) mod length``, in all runs at once. It is a symmetry if some automorphism of
the graph does so to its devices and what else prices depend on goes along. What an
automorphism is said to be is checked arc by arc; that none is found says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nest.topology.graph.algorithms import Places
from nest.topology.graph.routes import Routes
from nest.topology.graph.shifts import smallest_step
from nest.topology.refinement import Hashes, link_kinds, mixed, refined

Ints = npt.NDArray[np.int64]


class Rotation(NamedTuple):
    """A rotation by ``step`` of runs of ``length`` ranks."""

    length: int
    step: int

    def turned(self, ranks: Ints, steps: int) -> Ints:
        """Return where so many steps take ranks."""
        inside = ranks % self.length
        return ranks - inside + (inside + steps * self.step) % self.length

    def home(self, ranks: Ints, anchor: int) -> Ints:
        """Return where the steps take ranks that take one to its first run."""
        return self.turned(ranks, -(anchor % self.length // self.step))

    def steps_back(self, ranges: Iterable[tuple[int, int]]) -> int:
        """Return how many steps take ranges to the front as they are.

        None if one of them is in several runs.
        """
        min_start = self.length
        for first, end in ranges:
            start = first % self.length
            if start + end - first > self.length:
                return 0
            min_start = min(min_start, start)
        return min_start // self.step


def rotations(routes: Routes, positions: Places) -> list[Rotation]:
    """Return the smallest symmetries, that of the longest runs first.

    One for each length that divides the number of devices and has any but
    itself; the whole order first, whose step is its length if it has none.
    """
    symmetry = _Symmetry(routes, positions)
    count = len(routes.ranks)
    symmetries = []
    for length in range(count, 0, -1):
        if count % length == 0:
            step = smallest_step(
                length,
                lambda step, length=length: symmetry.holds(  # type: ignore[misc]
                    Rotation(length, step)
                ),
            )
            if step < length or length == count:
                symmetries.append(Rotation(length, step))
    return symmetries


class _Symmetry:
    """Decides whether rotations are symmetries of a network."""

    def __init__(self, routes: Routes, positions: Places) -> None:
        self.devices = np.array(routes.ranks)
        self.forwards = np.array(routes.forwards, dtype=np.int64)
        self.tails, self.heads = routes.tails, routes.heads
        self.links = link_kinds(routes.bandwidths, routes.latencies)
        is_switch = np.ones(len(self.forwards), np.bool_)
        is_switch[self.devices] = False
        self.switches = np.flatnonzero(is_switch)
        self.units = positions.units
        self.coordinates = np.array(positions.coordinates, np.int64)
        self.arcs = self._sorted(np.arange(len(self.forwards)))
        self.rounds = self._rounds()
        self.colors = self._colors(self.devices, self.rounds)

    def holds(self, rotation: Rotation) -> bool:
        """Whether a rotation is found to be a symmetry."""
        target = rotation.turned(np.arange(len(self.devices)), 1)
        if not (self._keeps_units(target) and self._shifts(target)):
            return False
        moved = np.empty(len(self.forwards), np.int64)
        moved[self.devices] = self.devices[target]
        # A switch goes where the devices around it have gone; of several
        # such places the first one goes to the first.
        colors = self._colors(self.devices[target], self.rounds)
        here, there = (
            self.switches[np.argsort(of_nodes[self.switches], kind="stable")]
            for of_nodes in (self.colors, colors)
        )
        moved[here] = there
        return bool(
            (self.forwards[moved] == self.forwards).all()
            and (self._sorted(moved) == self.arcs).all()
        )

    def _keeps_units(self, target: Ints) -> bool:
        """Whether all ranks of a unit go to one unit."""
        return all(
            len(np.unique(units * len(units) + units[target])) == units.max() + 1
            for units in self.units
        )

    def _shifts(self, target: Ints) -> bool:
        """Whether the same is added to all coordinates, modulo the extent.

        That keeps boxes, and the order of a line but for where it begins.
        """
        if not len(self.coordinates):
            return True
        extents = np.ptp(self.coordinates, axis=0) + 1
        moved = (self.coordinates[target] - self.coordinates) % extents
        return bool((moved == moved[0]).all())

    def _sorted(self, moved: Ints) -> Ints:
        """Return the arcs, in one order, if nodes move."""
        table = np.stack([moved[self.tails], moved[self.heads], self.links])
        result: Ints = table[:, np.lexsort(table)]
        return result

    def _colors(self, devices: Ints, rounds: int) -> Hashes:
        """Return the colors of all nodes after rounds of refinement.

        At first every rank has its own and all switches have the same. Then
        they have the same while the links to every color are the same, or by
        chance, which is noticed.
        """
        colors = np.zeros(len(self.forwards), np.uint64)
        colors[devices] = mixed(np.arange(1, len(devices) + 1))
        for _ in range(rounds):
            colors = refined(colors, self.tails, self.heads, self.links)
        return colors

    def _rounds(self) -> int:
        """Return after how many rounds no more colors appear."""
        rounds, count = 0, 0
        while True:
            colors = self._colors(self.devices, rounds)
            num_colors = len(np.unique(colors[self.switches]))
            if num_colors <= count:
                return rounds
            rounds, count = rounds + 1, num_colors
