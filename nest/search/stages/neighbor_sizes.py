"""Copies of stage options for each size of their neighbors.

The receive time of a stage depends on the size of the sender. The search first costs
each option with the shortest receive times over all sizes of its neighbors. This module
splits the options that survive the bounds: it makes one copy for each pair of neighbor
sizes, with the exact receive times. A copy ends only at nodes of these sizes.

Two sizes are equivalent at a cut if every stage on the other side has the same
receive times from both. The first size of such a class represents all of them,
so an option whose receive times do not depend on the sizes has one copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from nest.search.stages.bounds import PlacementGraph
from nest.search.stages.options import Ints, PlacedOptions, StageOptions, unique
from nest.topology import Route

#: The representative of each size. Sizes are numbered from 1 on as in
#: ``StageOptions.sizes``; 0 means that there is no stage.
SizeClasses = dict[int, int]


class CutSizes(NamedTuple):
    """The size classes of the stages before a cut and after it."""

    before: SizeClasses
    after: SizeClasses


def split_by_neighbor_size(graph: PlacementGraph) -> PlacementGraph:
    """Return the graph with exact receive times.

    Each edge is copied for every pair of size classes of its neighbors that
    occur in the graph.
    """
    options, edges = graph.options, graph.edges
    size = np.searchsorted(options.sizes, edges.size) + 1
    width = len(options.sizes) + 1
    sizes_after = _sizes(graph.begin, size, width)
    sizes_before = _sizes(graph.end, size, width)
    cache: dict[object, CutSizes] = {}
    cuts = []
    for node, offset in enumerate(graph.offset.tolist()):
        key = (
            offset,
            tuple(sizes_before.get(node, ())),
            tuple(sizes_after.get(node, ())),
        )
        if key not in cache:
            cache[key] = _cut_sizes(options, *key)
        cuts.append(cache[key])
    own_after = _representatives([m.after for m in cuts], graph.begin, size)
    own_before = _representatives([m.before for m in cuts], graph.end, size)

    # One copy for each class before the stage and each class after it.
    ways_in = [sorted(set(m.before.values())) for m in cuts]
    ways_out = [sorted(set(m.after.values())) for m in cuts]
    for node in np.flatnonzero(graph.is_start).tolist():
        ways_in[node] = [0]
    for node in np.flatnonzero(graph.is_end).tolist():
        ways_out[node] = [0]
    num_in, first_in, flat_in = _joined(ways_in)
    num_out, first_out, flat_out = _joined(ways_out)
    count = num_in[graph.begin] * num_out[graph.end]
    row = np.repeat(np.arange(len(edges)), count)
    combination = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    begin, end = graph.begin[row], graph.end[row]
    enter, leave = np.divmod(combination, num_out[end])
    enter_size = flat_in[first_in[begin] + enter]
    leave_size = flat_out[first_out[end] + leave]
    split = replace(
        edges.take(row),
        enter=enter_size * width + own_after[row],
        leave=own_before[row] * width + leave_size,
    )
    return PlacementGraph(
        options, _received(options, split), graph.target, graph.deadline
    )


def neighbor_sizes(options: StageOptions, edges: PlacedOptions) -> tuple[Ints, Ints]:
    """Return the devices of the stages before and after each option.

    The size is 0 where there is no stage.
    """
    sizes = np.array([0, *options.sizes], dtype=np.int64)
    return sizes[edges.enter // len(sizes)], sizes[edges.leave % len(sizes)]


def _sizes(node: Ints, size: Ints, width: int) -> dict[int, list[int]]:
    """Return the ascending sizes of the options at each node."""
    sizes_at: dict[int, list[int]] = {}
    for key in unique(node * width + size).tolist():
        sizes_at.setdefault(key // width, []).append(key % width)
    return sizes_at


def _cut_sizes(
    options: StageOptions, offset: int, before: tuple[int, ...], after: tuple[int, ...]
) -> CutSizes:
    """Return the classes of the sizes that end and begin at an offset."""
    sizes = [0, *options.sizes]

    def forward(sender: int) -> tuple[Route | None, ...]:
        return tuple(
            options.routes(offset, sizes[size], sizes[sender], 0)[0] for size in after
        )

    def backward(sender: int) -> tuple[Route | None, ...]:
        return tuple(
            options.routes(offset - sizes[size], sizes[size], 0, sizes[sender])[1]
            for size in before
        )

    return CutSizes(_classes(before, forward), _classes(after, backward))


def _classes(sizes: Iterable[int], key: Callable[[int], object]) -> SizeClasses:
    """Return the first size with the same key, for each size."""
    first: dict[object, int] = {}
    return {size: first.setdefault(key(size), size) for size in sizes}


def _joined(lists: list[list[int]]) -> tuple[Ints, Ints, Ints]:
    """Return the lengths of lists, their starts, and all their entries."""
    count = np.array([len(x) for x in lists], dtype=np.int64)
    flat = np.array([x for entries in lists for x in entries], dtype=np.int64)
    return count, np.cumsum(count) - count, flat


def _representatives(classes: list[SizeClasses], node: Ints, size: Ints) -> Ints:
    """Return the representatives of the sizes of options at nodes."""
    representatives = [
        classes[node][size]
        for node, size in zip(node.tolist(), size.tolist(), strict=True)
    ]
    return np.array(representatives, dtype=np.int64)


def _received(options: StageOptions, edges: PlacedOptions) -> PlacedOptions:
    """Replace the shortest receive times of options by the exact ones."""
    width = len(options.sizes) + 1
    size = np.searchsorted(options.sizes, edges.size)
    neighbors = edges.enter // width * width + edges.leave % width
    _, first, which = np.unique(
        (edges.offset * width + size) * width**2 + neighbors,
        return_index=True,
        return_inverse=True,
    )
    positions = zip(
        *(
            column[first].tolist()
            for column in (edges.offset, edges.size, *neighbor_sizes(options, edges))
        ),
        strict=True,
    )
    routes = [
        (options.routes(*position), options.least_routes(*position[:2]))
        for position in positions
    ]
    (exact, back), (least, least_back) = (
        options.received(edges, [pair[i] for pair in routes], which) for i in range(2)
    )
    extra = exact - least
    once, wait = options.costs(extra)
    backward = edges.backward + back - least_back
    exposed_sync = np.maximum(edges.hidden - backward, 0)
    return replace(
        edges,
        once=edges.once + once,
        periods=edges.periods + extra[: len(edges.periods)],
        sync=edges.sync + exposed_sync,
        joint=edges.joint + wait + exposed_sync,
        backward=backward,
    )
