"""Orders of passes for one plan, by list scheduling and local search.

Again and again the pass that can start first, over all blocks, runs next. A forward
pass runs only where what it keeps fits, and where those that have not passed all chunks
of its block leave room for one in each of these. So no order runs dead: the oldest
micro-batch always has room in its next chunk, and those in front of it return and
release the rest. Of two passes that can start together the order of their kinds
decides, and *delays* shift when a pass seems able to start: a search over delays is a
search over orders, each of which is legal.

Micro-batches are equal, so the passes of one kind of a chunk run in order
(exchange argument: the k-th pass of a neighbor needs k of them).
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import NamedTuple

from nest.cost.schedules import Pass, PassTimes

#: How many passes start before it is asked whether to stop.
_STOP_EVERY = 4096

#: No pass of a block can run yet.
_NEVER = 2**62

#: Delays of gradients of weights that are tried first, in fractions of their time.
_FIRST_DELAYS = (0.1, 0.0, 0.2, 0.5, 0.05, 0.15, 0.25, 0.35, 0.75, 1.0, 2.0)

#: How many orders the local search changes further.
_MAX_GOOD = 6


@dataclass(frozen=True, eq=False)
class OrderScope:
    """What orders of a plan's passes depend on."""

    #: The passes of every chunk, in pipeline order.
    times: Sequence[PassTimes]
    #: What a micro-batch in flight keeps, by chunk.
    kept_bytes: tuple[int, ...]
    #: What all micro-batches in flight may keep, by block.
    free_bytes: tuple[int, ...]
    #: The block of every chunk.
    block_of: tuple[int, ...]
    #: Chunks that may not compute gradients of weights apart.
    whole: frozenset[int]
    #: ``M``.
    num_micro_batches: int

    @cached_property
    def members(self) -> list[list[int]]:
        """The chunks of every block, in pipeline order."""
        members: list[list[int]] = [[] for _ in self.free_bytes]
        for chunk, block in enumerate(self.block_of):
            members[block].append(chunk)
        return members

    @cached_property
    def forward(self) -> list[int]:
        """``F`` of every chunk."""
        return [int(x.forward) for x in self.times]

    @cached_property
    def weights(self) -> list[int]:
        """``W`` of every chunk; 0 where it is no pass of its own."""
        return [
            0 if chunk in self.whole else int(x.weight_backward)
            for chunk, x in enumerate(self.times)
        ]

    @cached_property
    def inputs(self) -> list[int]:
        """``I`` of every chunk, or the whole backward pass."""
        return [
            int(x.backward) - weights
            for x, weights in zip(self.times, self.weights, strict=True)
        ]

    def stay(self, chunk: int) -> int:
        """Return how long a micro-batch is in flight in a chunk at least.

        Its passes there, and a trip from it to the last chunk and back.
        """
        trip = sum(self.forward[chunk:]) + sum(self.inputs[chunk:])
        return trip + self.weights[chunk]


class Delays(NamedTuple):
    """How much later passes of every chunk seem able to start, in quanta."""

    #: Whether of passes that seem able to start together the forward pass runs, and not
    #: that for gradients of inputs.
    forward_first: bool
    #: By chunk.
    forward: tuple[int, ...]
    inputs: tuple[int, ...]
    weights: tuple[int, ...]
    #: How many micro-batches of a chunk may be in flight.
    max_in_flight: tuple[int, ...]
    #: Whether a forward pass leaves room for one micro-batch in every later chunk of
    #: its block that has none; else for all in flight that have yet to pass the last
    #: one. No order runs dead either way.
    is_roomy: bool = False


class ListOrder(NamedTuple):
    """The passes of every block, and when the last one ends, in quanta."""

    end: int
    lists: tuple[tuple[Pass, ...], ...]


def list_order(
    scope: OrderScope,
    delays: Delays,
    stop: Callable[[], bool] = lambda: False,
    limit: int = _NEVER,
) -> ListOrder | None:
    """Return the order of some delays.

    Parameters
    ----------
    scope, delays
        The passes, and the delays.
    stop
        Whether it is time to stop.
    limit
        An end in quanta that the order must be below to matter.

    Returns
    -------
    ListOrder or None
        ``None`` if none fits, if it ends too late, or to stop.
    """
    return _Maker(scope, delays, limit).run(stop)


def first_delays(scope: OrderScope) -> list[Delays]:
    """Return the delays to begin with: of gradients of weights alone."""
    num_chunks = len(scope.times)
    none = (0,) * num_chunks
    every = (scope.num_micro_batches,) * num_chunks
    limits = dict.fromkeys((every, balanced(scope)))
    return [
        Delays(
            forward_first,
            none,
            none,
            tuple(int(fraction * weights) for weights in scope.weights),
            max_in_flight,
            is_roomy,
        )
        for fraction in _FIRST_DELAYS
        for max_in_flight in limits
        for is_roomy in (True, False)
        for forward_first in (True, False)
    ]


def balanced(scope: OrderScope) -> tuple[int, ...]:
    """Return how many micro-batches each chunk may have in flight.

    In proportion to how long they stay, as many as fit, one at least: then
    no chunk of a block passes on fewer than another one.
    """
    max_in_flight = [1] * len(scope.times)
    for chunks, free_bytes in zip(scope.members, scope.free_bytes, strict=True):
        stays = {chunk: scope.stay(chunk) for chunk in chunks}
        area = sum(scope.kept_bytes[c] * stay for c, stay in stays.items())
        for chunk, stay in stays.items():
            share = free_bytes * stay // max(area, 1)
            max_in_flight[chunk] = max(1, min(scope.num_micro_batches, share))
    return tuple(max_in_flight)


class OrderSearch:
    """A search for the best order of a plan, which can go on later.

    Parameters
    ----------
    scope
        The plan's passes.
    floor
        An end that no order is below: the search is then done.
    seed
        Of its random numbers.

    Attributes
    ----------
    best
        The order that ends first so far.
    done
        Whether no better order exists, or none at all.
    """

    def __init__(self, scope: OrderScope, floor: int, seed: int = 0) -> None:
        self.scope, self.floor = scope, floor
        self.best: ListOrder | None = None
        self._random = random.Random(seed)
        self._tie = count()
        self._good: list[tuple[int, int, Delays]] = []

    @cached_property
    def _first(self) -> list[Delays]:
        """The delays that are tried first, the next one last."""
        return first_delays(self.scope)[::-1]

    @property
    def done(self) -> bool:
        """Whether no better order exists, or none at all."""
        if self.best is None:
            return not self._first
        return self.best.end <= self.floor

    def begin_as(self, other: OrderSearch) -> None:
        """Begin with the best delays of a plan with as many chunks, no others."""
        self._first = [delays for _, _, delays in other._good[:1]]

    def run(self, stop: Callable[[], bool], rounds: int, limit: int = _NEVER) -> None:
        """Try so many orders that end below a limit, or fewer if it is time to stop."""
        for _ in range(rounds):
            if self.done or stop():
                return
            delays = self._first.pop() if self._first else self._changed()
            if len(self._good) == _MAX_GOOD:
                limit = min(limit, self._good[-1][0])
            order = list_order(self.scope, delays, stop, limit)
            if order is None:
                continue
            if self.best is None or order.end < self.best.end:
                self.best = order
            # Of orders that end together the last one stays: on a plateau that
            # leads on.
            self._good = [x for x in self._good if x[0] != order.end]
            self._good.append((order.end, next(self._tie), delays))
            self._good.sort()
            del self._good[_MAX_GOOD:]

    def _changed(self) -> Delays:
        """Return the delays of a good order, some of them changed.

        Of one chunk, those of a block, some next to each other or all; a quarter of the
        time from what they were, else drawn afresh.
        """
        rng, scope = self._random, self.scope
        index = min(int(rng.expovariate(0.7)), len(self._good) - 1)
        _, _, delays = self._good[index]
        values = [list(x) for x in delays[1:5]]
        num_chunks = len(scope.times)
        is_near = rng.random() < 0.25
        for _ in range(rng.choice((1, 1, 2, 3))):
            column = rng.choice((0, 1, 2, 2, 3))
            row, reach = values[column], rng.random()
            first, last = sorted(rng.choices(range(num_chunks), k=2))
            chunks: Sequence[int] = [rng.randrange(num_chunks)]
            if reach > 0.85:
                chunks = range(num_chunks)
            elif reach > 0.7:
                chunks = rng.choice(scope.members)
            elif reach > 0.55:
                chunks = range(first, last + 1)
            spread = 10 ** rng.uniform(-1.5, 0) if is_near else 0.3
            for chunk in chunks:
                weights = scope.weights[chunk]
                load = scope.forward[chunk] + scope.inputs[chunk] + weights
                if column == 2:
                    moved = row[chunk] + int(rng.gauss(0, spread) * weights)
                    row[chunk] = max(0, moved)
                elif column == 3:
                    drawn = rng.randint(1, scope.num_micro_batches)
                    near = row[chunk] + rng.choice((-2, -1, -1, 1, 1, 2))
                    row[chunk] = max(1, near) if is_near else drawn
                else:
                    drawn = int(rng.gauss(0, spread / 2) * load)
                    row[chunk] = row[chunk] + drawn if is_near else drawn
        forward, inputs, by_weights, in_flight = (tuple(x) for x in values)
        return delays._replace(
            forward=forward, inputs=inputs, weights=by_weights, max_in_flight=in_flight
        )


class _Maker:
    """Makes the order of some delays."""

    def __init__(self, scope: OrderScope, delays: Delays, limit: int) -> None:
        self.scope, self.delays, self.limit = scope, delays, limit
        self.last = len(scope.times) - 1
        self.count = scope.num_micro_batches
        chunks = range(len(scope.times))
        #: Forward passes, gradients of inputs and of weights that started.
        self.started = [[0, 0, 0] for _ in chunks]
        self.forward_ends: list[list[int]] = [[] for _ in chunks]
        self.inputs_ends: list[list[int]] = [[] for _ in chunks]
        self.free_at = [0] * len(scope.free_bytes)
        #: When blocks end at least, if they never wait again.
        self.ends_at = [
            self.count
            * sum(scope.forward[x] + scope.inputs[x] + scope.weights[x] for x in chunks)
            for chunks in scope.members
        ]
        self.held_bytes = [0] * len(scope.free_bytes)
        self.lists: list[list[Pass]] = [[] for _ in scope.free_bytes]

    def run(self, stop: Callable[[], bool]) -> ListOrder | None:
        """Run all passes, each time the one that seems to start first."""
        num_started = 0
        blocks = range(len(self.lists))
        version = [0] * len(self.lists)
        chosen = [self._choice(block) for block in blocks]
        heap = [(chosen[block][0], block, 0) for block in blocks]
        heapq.heapify(heap)
        while heap:
            key, block, made = heapq.heappop(heap)
            if key >= _NEVER:
                break
            if made != version[block]:
                continue
            num_started += 1
            if num_started % _STOP_EVERY == 0 and stop():
                return None
            _, _, _, chunk, kind = chosen[block]
            self._start(block, chunk, kind)
            if self.ends_at[block] >= self.limit:
                return None
            for other in self._touched(block, chunk, kind):
                version[other] += 1
                chosen[other] = self._choice(other)
                heapq.heappush(heap, (chosen[other][0], other, version[other]))
        if any(counts[2] < self.count for counts in self.started):
            return None
        lists = tuple(tuple(passes) for passes in self.lists)
        return ListOrder(max(self.free_at), lists)

    def _touched(self, block: int, chunk: int, kind: int) -> set[int]:
        """Return the blocks whose choice a pass may change."""
        touched = {block}
        if kind == 0 and chunk < self.last:
            touched.add(self.scope.block_of[chunk + 1])
        if kind == 1 and chunk:
            touched.add(self.scope.block_of[chunk - 1])
        return touched

    def _choice(self, block: int) -> tuple[int, int, int, int, int]:
        """Return the next pass of a block: key, two ranks, chunk, kind."""
        delays, free_at = self.delays, self.free_at[block]
        forward_rank, inputs_rank = (0, 1) if delays.forward_first else (1, 0)
        best = (_NEVER, 0, 0, 0, 0)
        for chunk in self.scope.members[block]:
            forward, inputs, weights = self.started[chunk]
            if weights < inputs:
                key = free_at + delays.weights[chunk]
                best = min(best, (key, 2, chunk, chunk, 2))
            if inputs < forward:
                ready = self._inputs_ready(chunk, inputs)
                if ready is not None:
                    key = max(ready, free_at) + delays.inputs[chunk]
                    best = min(best, (key, inputs_rank, chunk, chunk, 1))
            if forward < self.count and (
                chunk == 0 or len(self.forward_ends[chunk - 1]) > forward
            ):
                ready = self.forward_ends[chunk - 1][forward] if chunk else 0
                key = max(ready, free_at) + delays.forward[chunk]
                # The later of two chunks returns, and releases, sooner.
                choice = (key, forward_rank, -chunk, chunk, 0)
                if choice < best and self._fits(block, chunk):
                    best = choice
        return best

    def _inputs_ready(self, chunk: int, micro_batch: int) -> int | None:
        """Return when gradients of inputs can be computed, if that is known.

        Their own forward pass has run.
        """
        ends = (
            self.forward_ends[chunk]
            if chunk == self.last
            else self.inputs_ends[chunk + 1]
        )
        return ends[micro_batch] if len(ends) > micro_batch else None

    def _fits(self, block: int, chunk: int) -> bool:
        """Whether a forward pass fits, with room for the later chunks.

        Micro-batches that the block's last chunk has passed on need none.
        """
        forward, _, weights = self.started[chunk]
        if forward - weights >= self.delays.max_in_flight[chunk]:
            return False
        kept_bytes, members = self.scope.kept_bytes, self.scope.members[block]
        held_bytes = self.held_bytes[block] + kept_bytes[chunk]
        if self.delays.is_roomy:
            for later in members:
                counts = self.started[later]
                if later > chunk and counts[0] == counts[2]:
                    held_bytes += kept_bytes[later]
            return held_bytes <= self.scope.free_bytes[block]
        passed = self.started[members[-1]][0]
        needed_bytes = sum(
            kept_bytes[x] * max(1, self.started[x][0] + (x == chunk) - passed)
            for x in members
        )
        return max(held_bytes, needed_bytes) <= self.scope.free_bytes[block]

    def _start(self, block: int, chunk: int, kind: int) -> None:
        """Run the next pass of a chunk."""
        scope, counts = self.scope, self.started[chunk]
        micro_batch = counts[kind]
        counts[kind] += 1
        free_at, passes = self.free_at[block], self.lists[block]
        if kind == 0:
            ready = self.forward_ends[chunk - 1][micro_batch] if chunk else 0
            self.ends_at[block] += max(0, ready - free_at)
            end = max(free_at, ready) + scope.forward[chunk]
            self.forward_ends[chunk].append(end)
            self.held_bytes[block] += scope.kept_bytes[chunk]
            passes.append(Pass(chunk, micro_batch, False))
        elif kind == 1:
            ready = self._inputs_ready(chunk, micro_batch) or 0
            self.ends_at[block] += max(0, ready - free_at)
            end = max(free_at, ready) + scope.inputs[chunk]
            self.inputs_ends[chunk].append(end)
            if scope.weights[chunk]:
                passes.append(Pass(chunk, micro_batch, True, "inputs"))
            else:
                counts[2] += 1
                self.held_bytes[block] -= scope.kept_bytes[chunk]
                passes.append(Pass(chunk, micro_batch, True))
        else:
            end = free_at + scope.weights[chunk]
            self.held_bytes[block] -= scope.kept_bytes[chunk]
            passes.append(Pass(chunk, micro_batch, True, "weights"))
        self.free_at[block] = end
