"""Which sizes of stages meet at a cut, where receives depend on them.

A receive depends on the size of the sender. Options are priced with the least
receives of any sizes first; those that bounds leave over are told apart here:
each becomes one option for every pair of sizes that can stand beside it, with
its exact receives, and ends only where those sizes begin. Sizes are alike, and
one stands for all of them, where no stage across the cut receives otherwise
from one than from the other. So where sizes do not matter there is one
option, as before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from nest.search.bounds import PlacementGraph
from nest.search.options import Ints, PlacedOptions, StageOptions
from nest.topology import Route

#: A size that stands for its like, by size. Sizes here are numbered as in
#: ``StageOptions.sizes`` from 1 on; 0 is no stage.
SizeClasses = dict[int, int]


class CutSizes(NamedTuple):
    """The sizes in front of a cut and behind it, and which are alike."""

    front: SizeClasses
    behind: SizeClasses


def split_by_neighbor_size(places: PlacementGraph) -> PlacementGraph:
    """Return the options that are left with their exact receives.

    Each once for all sizes beside it that make a difference, of those that
    some option beside it has.
    """
    options, found = places.options, places.edges
    size = np.searchsorted(options.sizes, found.size) + 1
    width = len(options.sizes) + 1
    behind = _sizes(places.begin, size, width)
    front = _sizes(places.end, size, width)
    known: dict[object, CutSizes] = {}
    meetings = []
    for node, offset in enumerate(places.offset.tolist()):
        key = offset, tuple(front.get(node, ())), tuple(behind.get(node, ()))
        if key not in known:
            known[key] = _meeting(options, *key)
        meetings.append(known[key])
    own_behind = _likes([m.behind for m in meetings], places.begin, size)
    own_front = _likes([m.front for m in meetings], places.end, size)

    # One option for every way in with every way out.
    ways_in = [sorted(set(m.front.values())) for m in meetings]
    ways_out = [sorted(set(m.behind.values())) for m in meetings]
    for node in np.flatnonzero(places.is_start).tolist():
        ways_in[node] = [0]
    for node in np.flatnonzero(places.is_end).tolist():
        ways_out[node] = [0]
    num_in, first_in, flat_in = _joined(ways_in)
    num_out, first_out, flat_out = _joined(ways_out)
    count = num_in[places.begin] * num_out[places.end]
    row = np.repeat(np.arange(len(found)), count)
    place = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    begin, end = places.begin[row], places.end[row]
    enter, leave = np.divmod(place, num_out[end])
    before = flat_in[first_in[begin] + enter]
    after = flat_out[first_out[end] + leave]
    told = replace(
        found.take(row),
        enter=before * width + own_behind[row],
        leave=own_front[row] * width + after,
    )
    return PlacementGraph(
        options, _received(options, told), places.target, places.deadline
    )


def neighbor_sizes(
    options: StageOptions, found: PlacedOptions
) -> tuple[Ints, Ints]:
    """Return sizes in front of options and behind them, 0 for no stage."""
    sizes = np.array([0, *options.sizes], dtype=np.int64)
    return sizes[found.enter // len(sizes)], sizes[found.leave % len(sizes)]


def _sizes(node: Ints, size: Ints, width: int) -> dict[int, list[int]]:
    """Return the sizes of the options at every node, ascending."""
    found: dict[int, list[int]] = {}
    for key in np.unique(node * width + size).tolist():
        found.setdefault(key // width, []).append(key % width)
    return found


def _meeting(
    options: StageOptions,
    offset: int,
    front: tuple[int, ...],
    behind: tuple[int, ...],
) -> CutSizes:
    """Return which sizes are alike that end and begin at an offset."""
    sizes = [0, *options.sizes]

    def forward(sender: int) -> tuple[Route | None, ...]:
        return tuple(
            options.routes(offset, sizes[size], sizes[sender], 0)[0]
            for size in behind
        )

    def backward(sender: int) -> tuple[Route | None, ...]:
        return tuple(
            options.routes(
                offset - sizes[size], sizes[size], 0, sizes[sender]
            )[1]
            for size in front
        )

    return CutSizes(_alike(front, forward), _alike(behind, backward))


def _alike(sizes: Iterable[int], key: Callable[[int], object]) -> SizeClasses:
    """Return the first size with the same key, by size."""
    first: dict[object, int] = {}
    return {size: first.setdefault(key(size), size) for size in sizes}


def _joined(lists: list[list[int]]) -> tuple[Ints, Ints, Ints]:
    """Return how long lists are, where each begins, and all they hold."""
    count = np.array([len(x) for x in lists], dtype=np.int64)
    flat = np.array([x for found in lists for x in found], dtype=np.int64)
    return count, np.cumsum(count) - count, flat


def _likes(likes: list[SizeClasses], node: Ints, size: Ints) -> Ints:
    """Return the sizes that stand for those of options at nodes."""
    found = [
        likes[node][size]
        for node, size in zip(node.tolist(), size.tolist(), strict=True)
    ]
    return np.array(found, dtype=np.int64)


def _received(options: StageOptions, found: PlacedOptions) -> PlacedOptions:
    """Put the exact receives of options in place of the least ones."""
    width = len(options.sizes) + 1
    size = np.searchsorted(options.sizes, found.size)
    beside = found.enter // width * width + found.leave % width
    _, first, which = np.unique(
        (found.offset * width + size) * width**2 + beside,
        return_index=True,
        return_inverse=True,
    )
    places = zip(
        *(
            column[first].tolist()
            for column in (
                found.offset,
                found.size,
                *neighbor_sizes(options, found),
            )
        ),
        strict=True,
    )
    routes = [
        (options.routes(*place), options.least_routes(*place[:2]))
        for place in places
    ]
    (exact, back), (least, least_back) = (
        options.received(found, [pair[i] for pair in routes], which)
        for i in range(2)
    )
    more = exact - least
    once, wait = options.costs(more)
    backward = found.backward + back - least_back
    late = np.maximum(found.hidden - backward, 0)
    return replace(
        found,
        once=found.once + once,
        paces=found.paces + more[: len(found.paces)],
        sync=found.sync + late,
        joint=found.joint + wait + late,
        backward=backward,
    )
