"""Routes of any graph, found target by target and remembered."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from nest.topology.graph.wires import Floats, Ints, Wires

#: How many targets' routes are looked for at once; more take more memory.
_BATCH = 256

#: From so many flows per rank on, what goes to one target is spread together
#: instead of path by path.
_MANY = 4

#: Numbers below this are merged with an array of marks instead of a sort.
_MAX_MARKED = 1 << 22


class Paths:
    """Least-latency routes, spread over all that are tied.

    Arcs are put in order, so that those of a node are side by side. That order, by
    tail, may be given. ``bandwidths`` are those of the arcs in this order.
    """

    def __init__(self, wires: Wires, order: Ints | None = None) -> None:
        if order is None:
            order = np.argsort(wires.tails, kind="stable")
        self._wires, self._nodes = wires, wires.nodes
        self.bandwidths = wires.bandwidths[order]
        self._tail, self._heads = wires.tails[order], wires.heads[order]
        self._tails, self._begins = np.unique(self._tail, return_index=True)
        self._set_lengths(wires.latencies[order].tolist())
        # No memory is used for what is never written.
        ranks, shape = len(self._nodes), (len(self._nodes), len(wires.relays))
        self._lengths = np.empty(shape, self._steps.dtype)
        self._first = np.zeros(shape, np.int64)
        self._count = np.zeros(shape, np.int64)
        self._known = np.zeros(ranks, np.bool_)
        self._ways = np.zeros(0, np.int64)
        self._shares = np.zeros(0, np.float64)
        self._path_known = np.zeros(ranks**2, np.bool_)
        self._path_count = np.zeros(ranks**2, np.int64)
        self._path_first = np.zeros(ranks**2, np.int64)
        self._paths_end = 0
        self._path_ways = np.zeros(0, np.int64)
        self._path_shares = np.zeros(0, np.float64)

    def _set_lengths(self, latencies: list[int]) -> None:
        """Choose how lengths are written, and whether 64 bits hold them.

        A path is as long as its latency and, where that is tied, its arcs
        are many: ``latency << bits | arcs``. Sums over all ranks fit too.
        """
        num_nodes = len(self._wires.relays)
        self._bits = num_nodes.bit_length()
        longest = (max(latencies, default=0) + 1) * num_nodes
        self._far: int = longest << self._bits
        fits = 4 * max(self._far, len(self._nodes) * longest) < 1 << 63
        self._steps = np.array(
            [(latency << self._bits) + 1 for latency in latencies],
            np.int64 if fits else object,
        )

    def latencies_fs(self, sources: Ints, targets: Ints) -> Ints:
        """Return the latencies of the routes between ranks."""
        self._find(targets)
        lengths = self._lengths[targets, self._nodes[sources]]
        latencies: Ints = lengths >> self._bits
        return latencies

    def farthest_fs(self, ranks: Ints) -> int:
        """Return the longest that a rank takes to all others of its row."""
        latencies = self.latencies_fs(ranks[:, :, None], ranks[:, None, :])
        return int(latencies.sum(axis=2).max())

    def loads(self, sources: Ints, targets: Ints, amounts: Floats) -> Floats:
        """Return what flows put on every arc.

        At every node a message splits in proportion to the bandwidths of the arcs that
        begin a shortest path; what goes to one target goes on together.
        """
        if len(sources) > _MANY * len(self._nodes):
            loads = np.zeros(len(self.bandwidths))
            lanes = np.arange(len(self._nodes))
            for _, ways, carried in self.walk(lanes, targets, sources, amounts):
                loads += np.bincount(ways, carried, len(loads))
            return loads
        first, count = self.find(sources, targets)
        flow, ways, carried = self.steps(first, count)
        return np.bincount(ways, amounts[flow] * carried, len(self.bandwidths)).astype(
            np.float64
        )

    def loads_of_all(self, ranks: Ints, amounts: Floats) -> Floats:
        """Return what arcs carry if all ranks of a row send to all others."""
        return self.loads(*all_pairs(ranks, amounts))

    def loads_each(self, flows: Sequence[tuple[Ints, Ints, Floats]]) -> Floats:
        """Return :meth:`loads` of several lots of flows, a row each."""
        num_arcs, max_flows = len(self.bandwidths), _MANY * len(self._nodes)
        loads = np.zeros((len(flows), num_arcs))
        few = []
        for row, lot in enumerate(flows):
            if len(lot[0]) > max_flows:
                loads[row] = self.loads(*lot)
            elif len(lot[0]):
                few.append(row)
        if few:
            sources, targets, amounts = map(
                np.concatenate, zip(*(flows[row] for row in few), strict=True)
            )
            lots = np.repeat(np.arange(len(few)), [len(flows[row][0]) for row in few])
            first, count = self.find(sources, targets)
            flow, ways, carried = self.steps(first, count)
            loads[few] = np.bincount(
                lots[flow] * num_arcs + ways,
                amounts[flow] * carried,
                len(few) * num_arcs,
            ).reshape(-1, num_arcs)
        return loads

    def steps(self, first: Ints, count: Ints) -> tuple[Ints, Ints, Floats]:
        """Return what arcs carry of messages that :meth:`find` has found.

        Three flat arrays: message, arc, and the part that it carries of it.
        """
        message = np.repeat(np.arange(len(count)), count)
        steps: Ints = (first - np.cumsum(count) + count)[message]
        steps += np.arange(len(steps))
        return message, self._path_ways[steps], self._path_shares[steps]

    def find(self, sources: Ints, targets: Ints) -> tuple[Ints, Ints]:
        """Find what arcs carry of messages, for :meth:`steps`.

        Returns where that is noted of each message, and of how many arcs.
        """
        self._find(targets)
        pairs = targets * len(self._nodes) + sources
        missing = pairs[~self._path_known[pairs]]
        if len(missing):
            self._find_paths(np.unique(missing))
        return self._path_first[pairs], self._path_count[pairs]

    def _find_paths(self, pairs: Ints) -> None:
        self._path_known[pairs] = True
        lanes = np.arange(len(pairs))
        targets, sources = np.divmod(pairs, len(self._nodes))
        walk = list(self.walk(targets, lanes, sources, np.ones(len(pairs))))
        if not walk:
            return
        lane, ways, fractions = map(np.concatenate, zip(*walk, strict=True))
        order = np.argsort(lane, kind="stable")
        count = np.bincount(lane, minlength=len(pairs))
        used = self._paths_end
        end = used + np.cumsum(count)
        self._path_count[pairs], self._path_first[pairs] = count, end - count
        self._path_ways = _put(self._path_ways, used, ways[order])
        self._path_shares = _put(self._path_shares, used, fractions[order])
        self._paths_end = used + len(order)

    def walk(
        self, targets: Ints, lanes: Ints, sources: Ints, amounts: Floats
    ) -> Iterator[tuple[Ints, Ints, Floats]]:
        """Yield what arcs carry, step by step: lanes, arcs and amounts.

        ``targets`` has the target of every lane; flows in one lane go on together.
        """
        self._find(targets)
        num_nodes = len(self._wires.relays)
        nodes = self._nodes[sources]
        hops = self._hops(targets[lanes] * num_nodes + nodes)
        # Every arc of a path is one more closer to the target.
        order = np.argsort(-hops, kind="stable")
        keys = (lanes * num_nodes + nodes)[order]
        amounts, hops = amounts[order], hops[order]
        remaining = int(hops[0]) if len(hops) else 0
        ends = np.searchsorted(-hops, -np.arange(remaining, -1, -1), "right")
        moving, carried, begin = keys[:0], amounts[:0], 0
        merge = _merging(len(targets) * num_nodes)
        for stop in ends[:remaining]:
            moving = np.concatenate([moving, keys[begin:stop]])
            carried = np.concatenate([carried, amounts[begin:stop]])
            begin = stop
            moving, where = merge(moving)
            carried = np.bincount(where, carried).astype(np.float64)
            lane, node = np.divmod(moving, num_nodes)
            count = self._count[targets[lane], node]
            first = self._first[targets[lane], node]
            ways: Ints = np.repeat(first - np.cumsum(count) + count, count)
            ways += np.arange(len(ways))
            carried = np.repeat(carried, count) * self._shares[ways]
            taken, lane = self._ways[ways], np.repeat(lane, count)
            yield lane, taken, carried
            moving = lane * num_nodes + self._heads[taken]

    def _hops(self, keys: Ints) -> npt.NDArray[np.int64]:
        """Return the number of arcs from nodes to targets."""
        lengths = self._lengths.ravel()[keys]
        hops: npt.NDArray[np.int64] = (lengths & (1 << self._bits) - 1).astype(np.int64)
        return hops

    def _find(self, targets: Ints) -> None:
        """Find the routes to ranks."""
        missing = targets[~self._known[targets]]
        if not len(missing):
            return
        missing_targets = np.unique(missing)
        for begin in range(0, len(missing_targets), _BATCH):
            self._find_batch(missing_targets[begin : begin + _BATCH])

    def _find_batch(self, targets: Ints) -> None:
        columns, nodes = np.arange(len(targets)), self._nodes[targets]
        lengths = np.full(
            (len(self._wires.relays), len(targets)), self._far, self._steps.dtype
        )
        lengths[nodes, columns] = 0
        while True:
            relayed = np.where(self._wires.relays[:, None], lengths, self._far)
            relayed[nodes, columns] = 0
            ways = relayed[self._heads] + self._steps[:, None]
            shortest = lengths.copy()
            shortest[self._tails] = np.minimum(
                lengths[self._tails], np.minimum.reduceat(ways, self._begins, axis=0)
            )
            if (shortest == lengths).all():
                break
            lengths = shortest
        tied = (ways == lengths[self._tail]) & (ways < self._far)
        tied &= self._tail[:, None] != nodes
        self._lengths[targets] = lengths.T
        self._known[targets] = True
        self._remember(targets, tied)

    def _remember(self, targets: Ints, tied: npt.NDArray[np.bool_]) -> None:
        """Note which arcs begin shortest paths, and what part takes them."""
        speeds = self.bandwidths[:, None] * tied
        total = np.add.reduceat(speeds, self._begins, axis=0)
        of_tail = np.searchsorted(self._tails, self._tail)
        count = np.add.reduceat(tied.astype(np.int64), self._begins, axis=0).T
        end = len(self._ways) + np.cumsum(count).reshape(count.shape)
        rows = np.ix_(targets, self._tails)
        self._count[rows], self._first[rows] = count, end - count
        column, way = np.nonzero(tied.T)
        self._ways = np.concatenate([self._ways, way])
        self._shares = np.concatenate(
            [self._shares, speeds[way, column] / total[of_tail[way], column]]
        )


def _merging(end: int) -> Callable[[Ints], tuple[Ints, Ints]]:
    """Return a function like ``np.unique`` for numbers below ``end``.

    It returns the distinct numbers, ascending, and the position of each one in them.
    """
    if end > _MAX_MARKED:
        return lambda numbers: np.unique(numbers, return_inverse=True)
    marks, positions = np.zeros(end, np.bool_), np.empty(end, np.int64)

    def merge(numbers: Ints) -> tuple[Ints, Ints]:
        marks[numbers] = True
        different = np.flatnonzero(marks)
        marks[different] = False
        positions[different] = np.arange(len(different))
        return different, positions[numbers]

    return merge


def all_pairs(ranks: Ints, amounts: Floats) -> tuple[Ints, Ints, Floats]:
    """Return the flows if all ranks of a row send to all others of theirs."""
    here, there, sent = np.broadcast_arrays(
        ranks[:, :, None], ranks[:, None, :], amounts[:, None, None]
    )
    others = ~np.eye(ranks.shape[1], dtype=np.bool_)
    return (here[:, others].ravel(), there[:, others].ravel(), sent[:, others].ravel())


def _put(array: Ints, used: int, more: Ints) -> Ints:
    """Append to the used part of an array, which grows by half at least."""
    end = used + len(more)
    if end > len(array):
        room = np.zeros(end + end // 2 - used, array.dtype)
        array = np.concatenate([array[:used], room])
    array[used:end] = more
    return array
