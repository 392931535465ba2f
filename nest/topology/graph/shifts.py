"""Routes on tori: the same from every device, but for where it is.

A *shift* adds the same to all coordinates, modulo the extents of the box that
the devices fill. Where shifts along the axes take the graph to itself, the
routes to one device say what those to all others are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from nest.topology.graph.paths import Paths
from nest.topology.graph.wires import Floats, Ints, Wires
from nest.topology.refinement import link_kinds

#: So many flows are followed at once; more take more memory.
_FLOWS = 1 << 18

#: From so many flows to a target on, they are spread together instead of path by path.
_MANY = 16

#: Up to so many devices all paths are known as soon.
SMALL = 512

#: So few pairs of ranks are looked at one by one.
_FEW = 1 << 14

#: Up to so many flows, no pieces that are shifts of each other are looked for.
_MAX_WHOLE = 1 << 10

#: Numbers of equal pieces that are looked for, one after the other.
_NUM_COPIES = (2, 3, 5, 7)


class Box:
    """Devices that are at all places of a box, each at one.

    A place is written as one number, whose digits have room for sums and differences;
    shifts are numbers too. ``places`` has that of every rank, from 0 on; ``extents``
    are those of the box.
    """

    def __init__(self, places: Ints) -> None:
        self.places = places
        self.extents = places.max(axis=0) + 1
        radix = 2 * self.extents - 1
        self._digits = np.cumprod([1, *radix[:-1]])
        self._place = self.encoded(places)
        self._most = int(self.encoded(self.extents - 1))
        rank_at = np.empty(self._most + 1, np.int64)
        rank_at[self._place] = np.arange(len(places))
        sums = np.arange(math.prod(radix.tolist()))
        sums = sums[:, None] // self._digits % radix
        self._plus = rank_at[self.encoded(sums % self.extents)]
        sums -= self.extents - 1
        self._minus = rank_at[self.encoded(sums % self.extents)]

    def encoded(self, shifts: Ints) -> Ints:
        """Return places, or shifts, as numbers."""
        numbers: Ints = shifts @ self._digits
        return numbers

    def plus(self, ranks: Ints, by: Ints) -> Ints:
        """Return where a shift, or one for each, takes ranks."""
        shifted: Ints = self._plus[self._place[ranks] + by]
        return shifted

    def minus(self, ranks: Ints, by: Ints) -> Ints:
        """Return what a shift, or one for each, takes to ranks."""
        shifted: Ints = self._minus[self._place[ranks] - by + self._most]
        return shifted


def smallest_step(length: int, holds: Callable[[int], bool], multiple: int = 1) -> int:
    """Return the least step that generates all symmetries of a circle.

    They are a group, hence the steps are the multiples of one of them. ``holds`` says
    whether a step, which divides the length, is a symmetry; ``multiple`` divides all of
    them. As much as the length is no step at all.
    """
    step, remaining, factor = length, length // multiple, 2
    while remaining > 1:
        while remaining % factor == 0:
            remaining //= factor
            if holds(step // factor):
                step //= factor
        factor += 1
    return step


def smallest_steps(
    extents: Ints, holds: Callable[[Ints], bool], multiples: Ints
) -> Ints:
    """Return the least shift along every axis that is a symmetry.

    ``holds`` says whether a shift is a symmetry; ``multiples`` divide the steps along
    every axis.
    """
    axes = np.eye(len(extents), dtype=np.int64)
    steps = [
        smallest_step(
            int(extent),
            lambda step, axis=axis: holds(step * axis),  # type: ignore[misc]
            int(multiple),
        )
        for extent, axis, multiple in zip(extents, axes, multiples, strict=True)
    ]
    return np.array(steps, np.int64)


class ShiftedWays:
    """Routes to the devices of a corner of a box, and shifts of them.

    ``steps`` are the least shifts along every axis of the ``box`` that take the graph
    to itself. ``bandwidths`` are those of the arcs, by their ends.
    """

    def __init__(self, wires: Wires, box: Box, steps: Ints) -> None:
        self.box, self.steps = box, steps
        self._all: Ints = box.extents
        rank_of = np.argsort(wires.nodes)
        tails, heads = rank_of[wires.tails], rank_of[wires.heads]
        ways = box.minus(heads, box.encoded(box.places[tails]))
        # The arcs of a node in the order of where they lead to: those of
        # another one are at the same places.
        order = np.lexsort((ways, wires.tails))
        self._paths = Paths(wires, order)
        self.bandwidths = self._paths.bandwidths
        self._tail = tails[order]
        by_node = wires.tails[order]
        slot = np.arange(len(order)) - np.searchsorted(by_node, by_node)
        slots = int(slot.max(initial=0)) + 1
        self._slot, self._slots = slot, slots
        self._arc_at = np.zeros(len(wires.nodes) * slots, np.int64)
        self._arc_at[self._tail * slots + slot] = np.arange(len(order))
        self._shift = box.encoded(box.places - box.places % steps)
        self._corner = box.minus(np.arange(len(rank_of)), self._shift)

    def latencies_fs(self, sources: Ints, targets: Ints) -> Ints:
        """Return the latencies of the routes between ranks."""
        sources, targets = np.broadcast_arrays(sources, targets)
        here = self.box.minus(sources, self._shift[targets])
        return self._paths.latencies_fs(here, self._corner[targets])

    def loads(self, sources: Ints, targets: Ints, amounts: Floats) -> Floats:
        """Return what flows put on every arc."""
        count, shifts = self._first_piece((sources, targets), amounts, _MAX_WHOLE)
        loads = np.zeros(len(self.bandwidths))
        for begin in range(0, count, _FLOWS):
            chunk = slice(begin, min(begin + _FLOWS, count))
            loads += self._loads(sources[chunk], targets[chunk], amounts[chunk])
        return self._repeated(loads, shifts)

    def _first_piece(
        self, ranks: Sequence[Ints], amounts: Floats, max_whole: int
    ) -> tuple[int, list[Ints]]:
        """Return how many of the flows, or rows, come first and are repeated.

        The arrays of ``ranks`` are flat and have equal numbers of entries for each of
        the ``amounts``. The second value has lists of shifts for :meth:`_repeated`.

        A shift by multiples of the steps is an automorphism of the graph. It takes the
        routes from ``s`` to ``t`` to those between the shifted ranks, with the
        fractions that they carry. Where shifts take the first of ``k`` equal pieces,
        flow by flow with its amount, to each piece, the loads of all pieces are the sum
        of those of the first one, shifted as often. The first piece may be divided
        again. Up to ``max_whole`` flows or rows are not divided.
        """
        count = len(amounts)
        shifts: list[Ints] = []
        width = len(ranks[0]) // max(count, 1)
        for num_copies in _NUM_COPIES:
            while count % num_copies == 0 and count > max_whole:
                to_copies = self._shifts_to_copies(
                    [of[: width * count] for of in ranks],
                    amounts[:count].reshape(num_copies, -1),
                )
                if to_copies is None:
                    break
                shifts.append(to_copies)
                count //= num_copies
        return count, shifts

    def _shifts_to_copies(self, ranks: Sequence[Ints], amounts: Floats) -> Ints | None:
        """Return the shifts that take the first of equal pieces to each piece.

        A row of ``amounts`` is a piece. ``None`` if no shifts do.
        """
        pieces = [of.reshape(len(amounts), -1) for of in ranks]
        first = pieces[0][:, 0]
        # These are multiples of the steps, whatever the ranks.
        shifts = self._shift[self.box.minus(first, self._shift[first[0]])]
        for of in pieces:
            # Most pieces that are no shifts of each other end elsewhere.
            for some in (of[:, -1:], of):
                if (self.box.plus(some[:1], shifts[:, None]) != some).any():
                    return None
        return shifts if (amounts == amounts[0]).all() else None

    def _repeated(self, loads: Floats, shifts: Sequence[Ints]) -> Floats:
        """Return the sum of loads that all shifts of lists take to their places."""
        for copies in reversed(shifts):
            arcs = np.flatnonzero(loads)
            carried = np.broadcast_to(loads[arcs], (len(copies), len(arcs)))
            moved = self._moved(arcs, copies[:, None])
            loads = np.bincount(moved.ravel(), carried.ravel(), len(loads)).astype(
                np.float64
            )
        return loads

    def _loads(self, sources: Ints, targets: Ints, amounts: Floats) -> Floats:
        here = self.box.minus(sources, self._shift[targets])
        loads = np.zeros(len(self.bandwidths))
        if len(sources) > _MANY * np.count_nonzero(np.bincount(targets)):
            # What goes to one target goes on together.
            ends, lanes = np.unique(targets, return_inverse=True)
            for lane, ways, carried in self._paths.walk(
                self._corner[ends], lanes, here, amounts
            ):
                arcs = self._moved(ways, self._shift[ends[lane]])
                loads += np.bincount(arcs, carried, len(loads))
            return loads
        first, count = self._paths.find(here, self._corner[targets])
        total, begin = np.cumsum(count), 0
        while begin < len(count):
            done = total[begin] - count[begin]
            end = int(np.searchsorted(total, done + _FLOWS, "right"))
            chunk = slice(begin, max(end, begin + 1))
            flow, ways, carried = self._paths.steps(first[chunk], count[chunk])
            arcs = self._moved(ways, self._shift[targets[chunk]][flow])
            loads += np.bincount(arcs, amounts[chunk][flow] * carried, len(loads))
            begin = chunk.stop
        return loads

    def _moved(self, arcs: Ints, by: Ints) -> Ints:
        """Return where shifts take arcs."""
        tails = self.box.plus(self._tail[arcs], by)
        moved: Ints = self._arc_at[tails * self._slots + self._slot[arcs]]
        return moved

    def farthest_fs(self, ranks: Ints) -> int:
        """Return the longest that a rank takes to all others of its row."""
        steps = self._steps_of(ranks, np.zeros(len(ranks)))
        return max(
            int(self.latencies_fs(here[:, None], row).sum(axis=1).max())
            for here, row, _ in self._corners(ranks, steps)
        )

    def loads_of_all(self, ranks: Ints, amounts: Floats) -> Floats:
        """Return what arcs carry if all ranks of a row send to all others."""
        count, shifts = self._first_piece((ranks.ravel(),), amounts, 0)
        ranks, amounts = ranks[:count], amounts[:count]
        steps = self._steps_of(ranks, amounts)
        corner_loads = np.zeros(len(self.bandwidths))
        for there, row, group in self._corners(ranks, steps):
            targets, sources, sent = np.broadcast_arrays(
                there[:, None], row, amounts[group][:, None]
            )
            others = sources != targets
            corner_loads += self.loads(sources[others], targets[others], sent[others])
        # What goes to other targets is the same, shifted.
        corner = self.box.encoded(self.box.places % steps)
        kinds = corner[self._tail] * self._slots + self._slot
        loads: Floats = np.bincount(kinds, corner_loads)[kinds]
        return self._repeated(loads, shifts)

    def _steps_of(self, ranks: Ints, amounts: Floats) -> Ints:
        """Return the least shifts that take groups to such groups.

        The extents of the box if groups have ranks in common, or so few
        that it is not worth the while.
        """
        count = len(self._corner)
        if ranks.size * ranks.shape[1] <= _FEW:
            return self._all
        group = np.full(count, len(ranks))
        group[ranks] = np.arange(len(ranks))[:, None]
        if len(np.unique(ranks)) < ranks.size:
            return self._all
        sent = np.append(amounts, -1.0)[group]
        names = len(np.unique(group))

        def holds(by: Ints) -> bool:
            moved = self.box.plus(np.arange(count), self.box.encoded(by))
            # All of a group go to one group, and every group is gone to.
            pairs = np.unique(group * count * 2 + group[moved])
            return len(pairs) == names and bool((sent[moved] == sent).all())

        return smallest_steps(self._all, holds, self.steps)

    def _corners(self, ranks: Ints, steps: Ints) -> Iterator[tuple[Ints, Ints, Ints]]:
        """Yield ranks in the corner of the steps, their rows and groups."""
        group, position = np.nonzero((self.box.places[ranks] < steps).all(axis=2))
        some = max(1, _FLOWS // ranks.shape[1])
        for begin in range(0, len(group), some):
            chunk = slice(begin, begin + some)
            rows = ranks[group[chunk]]
            yield ranks[group[chunk], position[chunk]], rows, group[chunk]


def shifted_ways(wires: Wires) -> ShiftedWays | None:
    """Return the routes of a graph that shifts take to itself."""
    positions, count = wires.coordinates, len(wires.nodes)
    if not len(positions) or count < len(wires.relays):
        return None
    positions = positions - positions.min(axis=0)
    extents = [int(extent) for extent in positions.max(axis=0) + 1]
    if len(np.unique(positions, axis=0)) < count or math.prod(extents) > count:
        return None
    box = Box(positions)
    kinds = link_kinds(wires.bandwidths, wires.latencies)
    rank_of = np.argsort(wires.nodes)
    tails, heads = rank_of[wires.tails], rank_of[wires.heads]
    relays = wires.relays[wires.nodes]

    def arcs(moved: Ints) -> Ints:
        table = np.stack([moved[tails], moved[heads], kinds])
        result: Ints = table[:, np.lexsort(table)]
        return result

    here = np.arange(count)
    before = arcs(here)

    def holds(by: Ints) -> bool:
        moved = box.plus(here, box.encoded(by))
        return bool((relays[moved] == relays).all() and (arcs(moved) == before).all())

    steps = smallest_steps(box.extents, holds, np.ones_like(box.extents))
    if (steps == box.extents).all():
        return None
    return ShiftedWays(wires, box, steps)
