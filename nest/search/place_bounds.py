"""Bounds on plans timed pass by pass where all layers share one strategy.

Then a layer of a kind takes as long and keeps as much wherever it is, and a
plan says little more than how many layers each *place* has: chunk ``j`` of
block ``r``. Most layers are of one kind; the others count with the first and
the last chunk if all layers come behind or in front of them.

What is in flight differs by place: at a moment ``t`` of its list block ``r``
keeps ``n_tj`` passes of its chunk ``j``, so ``x_j`` layers on each fit only if
``Σ_j x_j (static + n_tj kept)`` does, for every ``t``. Within ``T`` a block
has as many layers as its list takes no longer for, with what comes in front
of and behind it: one pass each way of the first chunks of the blocks in front,
see :func:`nest.cost.schedules.chains.chain_through`, and its sync. With ``A``
layers in those chunks, block after block,

``N_{r+1}(A + x_0) = max_x N_r(A) + Σ_j x_j``

is the most layers that all blocks so far have room for. A plan within ``T``
needs room for all of them. All of it is exact, in integers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from nest.cost.schedules import AnyOrder, Schedule
from nest.cost.schedules.chains import chain_through
from nest.search.chunk_bounds import Relaxation, moments
from nest.search.options import Bools, Ints, PassComponent, receive_weights


class LayerCosts(NamedTuple):
    """What one layer, or some of them together, take.

    Attributes
    ----------
    passes
        In quanta, a column per :class:`~nest.search.options.PassComponent`.
    sync
        What is left of ``Y``, in quanta.
    static_bytes, kept_bytes, working_bytes
        Per device; of some layers together the largest working set.
    """

    passes: tuple[int, ...]
    sync: int
    static_bytes: int
    kept_bytes: int
    working_bytes: int


@dataclass(eq=False)
class LayerCapacity:
    """The places of so many blocks, and what they have room for.

    Attributes
    ----------
    schedule, blocks, num_micro_batches
        The schedule, ``S`` and ``M``.
    layer, count
        One of most layers, and how many of them there are.
    first, last
        What else is in the first and in the last chunk.
    least
        How many of them every chunk has at least: the first, the last, and
        each of the others.
    capacity_bytes
        Of a device.
    receive
        The least that a chunk receives in a pass, in quanta.
    """

    schedule: Schedule
    blocks: int
    num_micro_batches: int
    layer: LayerCosts
    count: int
    first: LayerCosts
    last: LayerCosts
    least: tuple[int, int, int]
    capacity_bytes: int
    receive: int = 0

    @property
    def last_chunk(self) -> int:
        """Position of the last chunk in pipeline order."""
        return self.blocks * self.schedule.virtual_stages - 1

    @property
    def others(self) -> dict[int, LayerCosts]:
        """The layers of other kinds, by their chunk."""
        return {0: self.first, self.last_chunk: self.last}

    def _chunks(self, block: int) -> list[int]:
        """Return the chunks of a block, in pipeline order."""
        return self.schedule.chunks_of(block, self.blocks)

    def _min_layers(self, chunk: int) -> int:
        """Return how many layers a chunk has at least."""
        return self.least[{0: 0, self.last_chunk: 1}.get(chunk, 2)]

    @cached_property
    def room(self) -> list[Ints]:
        """The most layers that fit, per block, by those in its first chunk.

        Those in its other chunks; -1 where the first chunk alone has too
        many or too few.
        """
        return [self._room(block) for block in range(self.blocks)]

    def _room(self, block: int) -> Ints:
        """Return the most layers that fit in the other chunks of a block."""
        chunks, layer = self._chunks(block), self.layer
        flying = moments(
            self.schedule, self.blocks, self.num_micro_batches, block
        )
        each = layer.static_bytes + flying * layer.kept_bytes
        min_layers = np.array([self._min_layers(chunk) for chunk in chunks])
        used, working = self._other_layers(block, flying)
        used = used + each[:, 1:] @ min_layers[1:]
        max_layers = np.full(self.count + 1, -1, dtype=np.int64)
        for in_first in range(int(min_layers[0]), self.count + 1):
            if in_first or min_layers.any():
                working = max(working, layer.working_bytes)
            free_bytes = self.capacity_bytes - working - used
            free_bytes = free_bytes - in_first * each[:, 0]
            if free_bytes.min() < 0:
                break
            rest = int(min_layers[1:].sum())
            if len(chunks) > 1:
                lightest = each[:, 1:].min(axis=1)
                heavy = lightest > 0
                more = free_bytes[heavy] // lightest[heavy]
                rest += int(more.min(initial=self.count))
            max_layers[in_first] = min(rest, self.count)
        return max_layers

    def _other_layers(self, block: int, flying: Ints) -> tuple[Ints, int]:
        """Return what other layers take at each moment, and as a work area."""
        used, working = np.zeros(len(flying), dtype=np.int64), 0
        for column, chunk in enumerate(self._chunks(block)):
            other = self.others.get(chunk)
            if other is not None:
                used += other.static_bytes
                used += flying[:, column] * other.kept_bytes
                working = max(working, other.working_bytes)
        return used, working

    @cached_property
    def _layer_times(self) -> list[tuple[int, int, int, int]]:
        """Per block: what a layer in its first chunk and in the others adds.

        To the chain through it, and what else is in it and its sync do; and
        what a layer in the first chunks of the blocks in front adds.
        """
        times = []
        for block in range(self.blocks):
            chain = chain_through(
                *(self.schedule, self.blocks, self.num_micro_batches, block)
            )
            count = len(chain.passes)
            weights = np.zeros((count, len(PassComponent)), dtype=np.int64)
            columns = [
                PassComponent.FORWARD,
                PassComponent.BACKWARD,
                PassComponent.INPUTS,
                PassComponent.WEIGHTS,
            ]
            weights[:, columns] = np.array(chain.passes)
            for i, j, repeats in chain.pairs:
                weights[i, PassComponent.FORWARD_ALONE] += repeats
                weights[j, PassComponent.BACKWARD_ALONE] += repeats
            chunks = self._chunks(block)
            each = (weights @ np.array(self.layer.passes)).tolist()
            fixed = sum(
                int(weights[chunk] @ np.array(x.passes))
                + (x.sync if chunk in chunks else 0)
                for chunk, x in self.others.items()
            )
            fixed += self._received(weights)
            sync = self.layer.sync
            times.append(
                (
                    each[chunks[0]] + sync,
                    min((each[x] for x in chunks[1:]), default=0) + sync,
                    fixed,
                    min(each[:block], default=0),
                )
            )
        return times

    def _received(self, weights: Ints) -> int:
        """Return what a chain receives at least."""
        there, back = receive_weights(weights)
        num_receives = 0
        for chunk in range(1, len(weights)):
            blocks_of = (
                self.schedule.block_of(chunk - 1, self.blocks),
                self.schedule.block_of(chunk, self.blocks),
            )
            if blocks_of[0] != blocks_of[1]:
                num_receives += int(there[chunk] + back[chunk - 1])
        return num_receives * self.receive

    def has_room(self, step_quanta: int) -> bool:
        """Whether all layers may be on some places within a step time."""
        none = -1
        max_layers = np.full(self.count + 1, none, dtype=np.int64)
        max_layers[0] = 0
        numbers = np.arange(self.count + 1)
        for block in range(self.blocks):
            first_time, other_time, fixed, fill_time = self._layer_times[block]
            chunks = self._chunks(block)
            min_layers = sum(self._min_layers(chunk) for chunk in chunks[1:])
            free = step_quanta - fixed - fill_time * numbers
            after = np.full_like(max_layers, none)
            for first in np.flatnonzero(self.room[block] >= 0).tolist():
                spare = free - first * first_time
                rest = np.where(
                    spare < 0,
                    -1,
                    self._max_layers(spare, other_time, len(chunks) > 1),
                )
                rest = np.minimum(rest, self.room[block][first])
                ways = (max_layers >= 0) & (rest >= min_layers)
                reached = np.where(ways, max_layers + first + rest, none)
                ends = self.count + 1 - first
                np.maximum(after[first:], reached[:ends], out=after[first:])
            max_layers = np.minimum(after, self.count)
        return bool(max_layers.max() >= self.count)

    def _max_layers(self, spare: Ints, each: int, several: bool) -> Ints:
        """Return how many layers take no longer, if there are chunks."""
        if not several:
            return np.zeros_like(spare)
        if not each:
            return np.full_like(spare, self.count)
        return spare // each

    def bound(self, low: int, high: int) -> int:
        """Return the least step time with room, between two of them."""
        while low < high:
            middle = (low + high) // 2
            if self.has_room(middle):
                high = middle
            else:
                low = middle + 1
        return low


def layer_capacity(relaxation: Relaxation) -> LayerCapacity | None:
    """Return the places of a relaxation, if all layers share a strategy.

    Or if none is better than one of the strategies in anything.
    """
    scope, sets = relaxation.scope, relaxation.sets
    if isinstance(scope.schedule, AnyOrder):
        return None
    if len(relaxation.strategies) > 1 or relaxation.count == 1:
        return None
    shapes = scope.terms.shapes
    source = sets.pair_source[scope.allowed]
    target = sets.pair_target[scope.allowed]
    counts = shapes.counts[shapes.of_pair[scope.allowed]]
    is_first, is_last = source == 0, target == sets.count - 1
    total = shapes.kind_counts[-1]
    kind = int(total.argmax())

    def least(pairs: Bools) -> Ints:
        min_counts: Ints = counts[pairs].min(axis=0, initial=int(total.max()))
        return min_counts

    first, last = least(is_first & ~is_last), least(is_last & ~is_first)
    between = least(~is_first & ~is_last)
    terms, held = scope.terms, scope.terms.held
    row = terms.strategies.index(relaxation.strategies[0])
    passes = terms.least_passes[row]
    static, kept_bytes = held.static_bytes[row], held.kept_bytes[row]
    working = held.working_bytes[row]
    sync = relaxation.sync[0].astype(np.int64)
    inner = relaxation.received[1:-1]

    def together(num_layers: Ints) -> LayerCosts:
        return LayerCosts(
            tuple(int(x) for x in num_layers @ passes),
            int(num_layers @ sync),
            int(num_layers @ static),
            int(num_layers @ kept_bytes),
            int((working * (num_layers > 0)).max()),
        )

    one = np.zeros_like(total)
    one[kind] = 1
    others = 1 - one
    return LayerCapacity(
        schedule=scope.schedule,
        blocks=scope.blocks,
        num_micro_batches=scope.num_micro_batches,
        layer=together(one),
        count=int(total[kind]),
        first=together(first * others),
        last=together(last * others),
        least=(int(first[kind]), int(last[kind]), int(between[kind])),
        capacity_bytes=terms.max_bytes - 1,
        receive=int(inner.min()) if len(inner) else 0,
    )
