"""What all plans of a batch configuration take at least, in any order.

For a step time ``T``, a linear program says how few devices plans within it
need; if these are more than there are, no plan is. Its amounts are how many
blocks there are of each number of devices, and how many layers of each kind
have which strategy. All numbers of blocks and chunks, all cuts and all orders
of passes are in it, so there is one program per batch configuration, for each
of some ranges of the time that a micro-batch takes forward.

Rules and proofs: docs/cost-model.md, *Orders of plans*.
"""

from __future__ import annotations

import enum
import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from nest.cost.model import Block
from nest.cost.space import BatchSplit
from nest.ir.plan import Strategy
from nest.search.layers.options import Floats
from nest.search.linear_program import LinearProgram
from nest.search.stages.dominance import non_dominated_sorted
from nest.search.stages.options import (
    INFINITE,
    BatchTerms,
    Bools,
    Ints,
    PassComponent,
    paired_load,
)

#: Ranges of the time of a micro-batch forward, and parts of one that stays open.
NUM_RANGES, NUM_PARTS = 4, 12

#: Times that a linear program is solved with more rows, at most.
MAX_ROUNDS = 20

#: Most layers of a block whose number is rounded down; those of blocks in a queue.
MAX_WHOLE, MAX_QUEUED = 64, 12

#: Of rates of forward time per byte, the next lower one is below this part.
RATE_STEP = 0.93

#: What rows have to be violated by, relative to all devices or a block.
VIOLATED = 1e-4

#: What comparisons of floats forgive; it only ever weakens a bound.
ROUNDING = 1e-9

#: Step times are told apart to such a part of the best one; such a part of it stays
#: open at first.
PRECISION, OPEN_AT_FIRST = 500, 6

#: Cost of rows that nothing satisfies, in all devices of a replica.
PENALTY = 1000.0

#: Sets of layers that are packed into blocks, times blocks, at most.
MAX_PACKED = 1_000_000


class _Queue(enum.IntEnum):
    """What blocks wait for, one by one.

    Forward passes in front; these and gradients of inputs; those behind.
    """

    FRONT = 0
    AROUND = 1
    BEHIND = 2


class LayerChoices(NamedTuple):
    """A kind of layer under a strategy each, in parallel arrays."""

    #: Of which kind of layer.
    kind: Ints
    #: Of the block that it is on.
    devices: Floats
    #: What a step takes at least, with sync, in quanta.
    load: Floats
    #: Passes of all micro-batches together, in quanta.
    forward: Floats
    inputs: Floats
    weights: Floats
    #: Bytes, in parts of the largest memory of a device.
    static: Floats
    kept_share: Floats
    working: Floats

    def take(self, rows: Ints) -> LayerChoices:
        """Return some of them."""
        return LayerChoices._make([column[rows] for column in self])


def free_sync(terms: BatchTerms, strategies: Sequence[Strategy]) -> Ints:
    """Return what of syncs cannot hide, without communication, by strategy and kind."""
    rows = [terms.row_of[x] for x in strategies]
    sync: Ints = terms.held.sync[rows] - terms.held.hideable_sync[rows]
    return sync


def least_sync(
    terms: BatchTerms, split: BatchSplit, strategies: Sequence[Strategy]
) -> Ints | None:
    """Return what of syncs cannot hide, the least over all places, as such.

    A block may begin at multiples of what divides all widths. ``None`` where places
    are many, or dear to tell apart.
    """
    model = terms.model
    if model.network.dear or len(model.problem.cluster.types) > 1:
        return None
    sync = free_sync(terms, strategies)
    unit = math.gcd(*terms.devices.tolist())
    period = math.lcm(model.network.period, unit)
    for row, strategy in enumerate(strategies):
        offsets = range(0, min(split.devices - strategy.devices + 1, period), unit)
        blocks = {
            model.alike(Block(split.replicas, split.devices, offset, strategy.devices))
            for offset in offsets
        }
        every = [
            [0 if x is None else x.sync - x.hideable_sync for x in placed]
            for placed in (terms.terms(strategy, block) for block in blocks)
        ]
        if every:
            sync[row] = np.min(every, axis=0)
    return sync


def layer_choices(
    terms: BatchTerms,
    split: BatchSplit,
    strategies: Sequence[Strategy],
    num_paired: int,
    sync: Ints | None = None,
) -> LayerChoices:
    """Return what layers take and keep, without what others beat.

    Parameters
    ----------
    terms, split, strategies
        Of a batch configuration; the strategies that plans may mix.
    num_paired
        How many passes may run in pairs.
    sync
        Of every strategy and kind, in quanta. Default: :func:`free_sync`.
    """
    rows = [terms.row_of[x] for x in strategies]
    count, held = split.num_micro_batches, terms.held
    passes = terms.least_passes[rows]
    inputs = count * passes[..., PassComponent.INPUTS]
    backward = count * passes[..., PassComponent.BACKWARD]
    if sync is None:
        sync = free_sync(terms, strategies)
    capacity = float(terms.max_bytes - 1)
    num_kinds = passes.shape[1]
    shape = (len(rows), num_kinds)
    table = LayerChoices(
        np.broadcast_to(np.arange(num_kinds), shape),
        np.broadcast_to(terms.devices[rows, None].astype(np.float64), shape),
        (paired_load(passes, count, num_paired) + sync).astype(np.float64),
        (count * passes[..., PassComponent.FORWARD]).astype(np.float64),
        inputs.astype(np.float64),
        np.maximum(backward - inputs, 0).astype(np.float64),
        held.static_bytes[rows] / capacity,
        held.kept_bytes[rows] / capacity,
        held.working_bytes[rows] / capacity,
    )
    fits = table.static + table.kept_share + table.working <= 1 + ROUNDING
    fits &= table.devices <= split.devices
    chosen = np.flatnonzero(~held.missing[rows] & fits)
    flat = LayerChoices._make([x.reshape(-1)[chosen] for x in table])
    if len(rows) == 1:
        return flat
    widths = np.unique(flat.devices, return_inverse=True)[1].reshape(-1)
    group = flat.kind * (len(rows) + 1) + widths
    rest = flat.load - flat.forward
    columns: list[Any] = [*flat[2:], rest, rest - flat.weights, -_rates(flat)]
    order = np.lexsort((*reversed(columns), group))
    useful = non_dominated_sorted(group[order], [x[order] for x in columns])
    return flat.take(order[useful])


def _rates(choices: LayerChoices) -> Floats:
    """Return forward time per byte kept; infinity where nothing is kept."""
    with np.errstate(divide="ignore", invalid="ignore"):
        rates = choices.forward / choices.kept_share
    return np.where(choices.kept_share > 0, rates, np.inf)


def least_devices(
    choices: LayerChoices, counts: Ints, max_blocks: int | None = None
) -> float:
    """Return how few devices blocks have that hold all layers together.

    A block needs room for one micro-batch in flight in all its chunks, whatever the
    order. Infinity where no blocks do; 0 where layers make too many sets to tell.

    Parameters
    ----------
    choices, counts, max_blocks
        As of :class:`BatchBound`.
    """
    shape = tuple((counts + 1).tolist())
    if math.prod(shape) > MAX_PACKED:
        return 0.0
    sets = np.indices(shape).reshape(len(shape), -1)
    min_devices = np.where(sets.any(axis=0), np.inf, 0.0)
    fillings: list[tuple[float, Ints]] = []
    for width in np.unique(choices.devices).tolist():
        largest = _largest_sets(choices, width, sets, shape)
        if (len(fillings) + len(largest)) * sets.shape[1] > MAX_PACKED:
            return 0.0
        for layers in largest:
            rest = np.maximum(sets - layers[:, None], 0)
            fillings.append((width, np.ravel_multi_index(tuple(rest), shape)))
    for _ in range(int(counts.sum()) if max_blocks is None else max_blocks):
        before = min_devices.copy()
        for width, rest in fillings:
            np.minimum(min_devices, before[rest] + width, out=min_devices)
        if (min_devices == before).all():
            break
    return float(min_devices[-1])


def _largest_sets(
    choices: LayerChoices, width: float, sets: Ints, shape: tuple[int, ...]
) -> Ints:
    """Return the largest sets of layers that a block of a width has room for.

    A row each: how many layers of every kind. Each layer has its leanest strategy.
    """
    held, working = (np.full(len(shape), np.inf) for _ in range(2))
    rows = choices.devices == width
    kinds = choices.kind[rows]
    np.minimum.at(held, kinds, (choices.static + choices.kept_share)[rows])
    np.minimum.at(working, kinds, choices.working[rows])
    needs = np.zeros((2, sets.shape[1]))
    for kind, num_layers in enumerate(sets):
        has = num_layers > 0
        needs[0, has] += held[kind] * num_layers[has]
        needs[1, has] = np.maximum(needs[1, has], working[kind])
    fits = (needs.sum(axis=0) <= 1 + ROUNDING).reshape(shape)
    is_largest = fits.copy()
    for axis in range(len(shape)):
        fewer = (slice(None),) * axis + (slice(None, -1),)
        more = (slice(None),) * axis + (slice(1, None),)
        is_largest[fewer] &= ~fits[more]
    largest: Ints = np.argwhere(is_largest)
    return largest[largest.any(axis=1)]


class BatchBound:
    """Bounds on all plans of a batch configuration.

    Parameters
    ----------
    choices
        What layers take.
    counts
        How many layers there are of each kind.
    num_devices, num_micro_batches
        ``P`` and ``M``.
    ordered
        Whether a pass takes the same wherever it is in an order. Else only
        loads and bytes count.
    max_blocks
        How many blocks a plan has at most, if that is known.
    """

    def __init__(
        self,
        choices: LayerChoices,
        counts: Ints,
        num_devices: int,
        num_micro_batches: int,
        ordered: bool = True,
        max_blocks: int | None = None,
    ) -> None:
        self.choices, self.counts = choices, counts
        self.num_devices, self.ordered = num_devices, ordered
        self.num_micro_batches = num_micro_batches
        #: The range that a step time was not ruled out for comes first, and in each
        #: range such a part.
        self._ranges = [*range(NUM_RANGES)]
        self._open_parts: dict[int, int] = {}
        self.possible = len({*choices.kind.tolist()}) == len(counts) and (
            least_devices(choices, counts, max_blocks) <= num_devices
        )
        if not self.possible:
            return
        self.widths = np.unique(choices.devices)
        #: Choices of every width.
        self.of_width = [np.flatnonzero(choices.devices == x) for x in self.widths]
        self.working = np.array([choices.working[x].min() for x in self.of_width])
        self.rates = _rates(choices) / num_micro_batches
        self.rate_steps = [_falling(self.rates[rows]) for rows in self.of_width]
        self._shortest_trip = (
            sum(
                count * float(choices.forward[choices.kind == kind].min())
                for kind, count in enumerate(counts.tolist())
            )
            / num_micro_batches
            * (1 - ROUNDING)
        )
        single = counts == 1
        self.single_kinds = np.flatnonzero(single)
        work = choices.devices * choices.load
        self.largest_single = max(
            self.single_kinds.tolist(),
            key=lambda kind: work[choices.kind == kind].min(),
            default=-1,
        )
        #: Blocks whose first or last chunk may have only single layers.
        self.num_small = 0 if single.all() else int(single.sum())
        plain = ~single[choices.kind] | single.all()
        forward = choices.forward / num_micro_batches
        inputs = choices.inputs / num_micro_batches
        self.waits_ahead = self._pairs_of_blocks(forward, plain)
        self.waits_back = self._pairs_of_blocks(inputs, plain)
        self.waits_both = self._pairs_of_blocks(forward + inputs, plain)
        #: What a block waits for in a queue, see :class:`_Queue`: its case, the
        #: widest blocks of it.
        self.queued = [
            [self._waits_in_queue(x, width) for width in self.widths]
            for x in (forward, forward + inputs, inputs)
        ]
        bytes_kept = choices.devices * choices.kept_share
        trip = choices.forward + choices.inputs
        pairs = np.outer(bytes_kept, trip)
        self.stays = np.minimum(pairs, pairs.T)
        self.own_stays = bytes_kept * (trip / 2 + choices.weights)

    def _pairs_of_blocks(self, times: Floats, plain: Bools) -> Floats:
        """Return device-time that one of two blocks waits for the other.

        For every pair of widths: at least a pass of one layer.
        """
        least = [
            min(times[rows[plain[rows]]].tolist(), default=0.0)
            for rows in self.of_width
        ]
        pairs = np.outer(self.widths, least)
        return np.minimum(pairs, pairs.T)

    def _waits_in_queue(self, times: Floats, max_width: float) -> Floats:
        """Return the least time of a layer each of 0, 1, 2, … other blocks.

        The layers differ; the blocks have no more devices than ``max_width``.
        """
        shortest: list[float] = []
        for kind, count in enumerate(self.counts.tolist()):
            here = (self.choices.kind == kind) & (self.choices.devices <= max_width)
            if here.any():
                shortest += [float(times[here].min())] * count
        sums: Floats = np.cumsum([0.0, *sorted(shortest)]) * (1 - ROUNDING)
        return sums

    def rules_out(
        self, step_quanta: int, stop: Callable[[], bool] = lambda: False
    ) -> bool:
        """Whether no plan takes so long or less.

        ``stop`` is asked again and again; then the answer is no.
        """
        if not self.possible:
            return True
        if step_quanta < 1:
            return False
        step, shortest = float(step_quanta), self._shortest_trip
        if not self.ordered:
            return self._needs_more(step, 0.0, step)
        if shortest > step:
            return True
        growth = (step / max(shortest, 1.0)) ** (1 / NUM_RANGES)
        ends = [
            shortest,
            *(max(shortest, 1.0) * growth**i for i in range(1, NUM_RANGES)),
            step,
        ]
        if not (stop() or self._open_parts) and self._needs_more(step, shortest, step):
            return True
        for index in self._ranges:
            start, end = ends[index], ends[index + 1]
            if stop() or not self._range_needs_more(step, index, start, end):
                self._ranges.remove(index)
                self._ranges.insert(0, index)
                return False
        return True

    def _range_needs_more(
        self, step: float, index: int, start: float, end: float
    ) -> bool:
        """Whether plans of a range of times need too many devices.

        In parts, where those of the whole range do not. The part for which that was
        not so the last time comes first.
        """
        spans = [*pairwise(np.linspace(start, end, NUM_PARTS + 1).tolist())]
        last = self._open_parts.get(index)
        if last is not None and not self._needs_more(step, *spans[last]):
            return False
        if self._needs_more(step, start, end):
            return True
        for span_index, span in enumerate(spans):
            if span_index != last and not self._needs_more(step, *span):
                self._open_parts[index] = span_index
                return False
        return True

    def _needs_more(self, step: float, start: float, end: float) -> bool:
        """Whether plans within a step need more devices than there are.

        Plans whose layers' forward passes take a micro-batch from ``start``
        to ``end`` together.
        """
        program = _Program(self, step, start, end)
        return program.least_devices() > self.num_devices


def _falling(rates: Floats) -> list[float]:
    """Return some finite rates, the largest first."""
    steps: list[float] = []
    for rate in sorted({*rates[np.isfinite(rates)].tolist()}, reverse=True):
        if not steps or rate < RATE_STEP * steps[-1]:
            steps.append(rate)
    return steps


class RisingBound:
    """A bound on the plans of a batch configuration, raised step by step.

    Parameters
    ----------
    plans, bound
        A program that rules out step times, and a bound that is known.
    closer
        Makes one that rules out more, which is asked from the first step time on
        that the other one does not rule out. ``None``: there is none.

    Attributes
    ----------
    bound
        No plan takes less, in quanta.
    failed
        A step time that could not be ruled out.
    """

    def __init__(
        self,
        plans: BatchBound,
        bound: int,
        closer: Callable[[], BatchBound | None] = lambda: None,
    ) -> None:
        self._plans, self._closer = plans, closer
        self._is_closest = False
        self.bound, self.failed = bound, int(INFINITE)

    def _shown(self, step_quanta: int, stop: Callable[[], bool]) -> bool:
        """Whether a program shows that no plan takes so long or less."""
        if self._plans.rules_out(step_quanta, stop):
            return True
        if self._is_closest or stop():
            return False
        self._is_closest = True
        closer = self._closer()
        if closer is None:
            return False
        self._plans = closer
        return closer.rules_out(step_quanta, stop)

    def rules_out(self, step_quanta: int, stop: Callable[[], bool]) -> bool:
        """Whether no plan takes so long or less, as far as that is shown."""
        if self.bound <= step_quanta < self.failed:
            if self._shown(step_quanta, stop):
                self.bound = step_quanta + 1
            else:
                self.failed = step_quanta
        return step_quanta < self.bound

    def climb(self, best: int, enough: int, stop: Callable[[], bool]) -> None:
        """Rule out all step times below ``enough``, or what bisection does.

        It halves what is between the bound and the ``best`` step time. ``stop`` is
        as for :meth:`BatchBound.rules_out`.
        """
        low, high = self.bound, min(best - 1, self.failed)
        if self.rules_out(enough - 1, stop):
            return
        while (high - low) * PRECISION > best and low < enough and not stop():
            step_quanta = (low + high) // 2
            if self.rules_out(step_quanta, stop):
                low = self.bound
            else:
                high = step_quanta


def least_bound(
    batches: list[RisingBound], enough: int, stop: Callable[[], bool]
) -> int:
    """Return a bound on the plans of all batches; the least is first then.

    Each is raised no further than the least one before it: most are asked once. A
    part of ``enough`` comes first, so that a bound is known whenever time ends.
    """
    for bound in (enough - enough // OPEN_AT_FIRST, enough):
        for batch in batches:
            if stop():
                break
            batch.climb(bound, bound, stop)
            bound = min(bound, batch.bound)
        batches.sort(key=lambda batch: batch.bound)
    return min([enough, *(batch.bound for batch in batches)])


class _Program:
    """The least devices of plans within a step, as a linear program.

    Times are in parts of the step. Its amounts are the blocks of each width,
    then the layers of each choice.
    """

    def __init__(
        self, bound: BatchBound, step: float, start: float, end: float
    ) -> None:
        self.bound, self.choices = bound, bound.choices
        self.step, self.start = step, start / step
        choices, widths = self.choices, bound.widths
        self.num_widths = len(widths)
        self.load = choices.load / step
        self.forward = choices.forward / step
        self.weights = choices.weights / step
        self.fits = np.ones(len(choices.kind), dtype=np.bool_)
        #: By width, sizes and rooms for every rate.
        self._ahead_of = [self._ahead(width) for width in range(self.num_widths)]
        self.limits = [self._limits(width) for width in range(self.num_widths)]
        blocks = [
            bound.num_devices / width if self.fits[rows].any() else 0.0
            for width, rows in zip(widths, bound.of_width, strict=True)
        ]
        layers = np.where(self.fits, bound.counts[choices.kind], 0)
        self._upper = np.concatenate((blocks, layers))
        self._end = end / step
        self._seen: set[tuple[int, int, int]] = set()
        self._whole_parts: dict[tuple[int, int, int], tuple[Floats, int]] = {}

    def least_devices(self) -> float:
        """Return a bound on the devices of a plan; infinity if none is."""
        counts, kinds = self.bound.counts, self.choices.kind
        missing = {*range(len(counts))} - {*kinds[self.fits].tolist()}
        if missing:
            return np.inf
        if self.num_widths == 1 and len(kinds) == len(counts):
            # Without a choice, rooms say how many blocks there are.
            filled = self.limits[0] @ counts[kinds] * (1 - ROUNDING)
            devices = float(self.bound.widths[0] * filled.max(initial=0.0))
            if devices > self.bound.num_devices:
                return devices
        costs = np.zeros(len(self._upper))
        costs[: self.num_widths] = self.bound.widths
        most_devices = self.bound.num_devices
        self._program = LinearProgram(costs, self._upper, PENALTY * most_devices)
        for kind, count in enumerate(counts.tolist()):
            self._add(0.0, 1.0 * (kinds == kind), count)
        if self.bound.ordered:
            # A micro-batch counts once, the passes for all of them.
            count = self.bound.num_micro_batches
            self._add(0.0, -self.forward / count, -self._end)
        value = 0.0
        for _ in range(MAX_ROUNDS):
            amounts, value = self._program.solve()
            if value > most_devices or not self._add_violated(amounts):
                break
        return value

    def _add(self, blocks: Any, layers: Floats, least: float) -> None:
        """Add a row, from the weights of blocks and of layers."""
        weights = np.broadcast_to(blocks, self.num_widths)
        self._program.add(np.concatenate((weights, layers)), least)

    def _add_limit(self, width: int, capacity: float, sizes: Floats) -> None:
        """Add a row: blocks of a width have room for layers of such sizes."""
        blocks, layers = np.zeros(self.num_widths), np.zeros(len(self.load))
        blocks[width] = capacity
        layers[self.bound.of_width[width]] = -sizes
        self._add(blocks, layers, 0.0)

    def _limits(self, width: int) -> Floats:
        """Return sizes of layers, a row for all that blocks of a width limit.

        In parts of what a block has room for: its work and bytes; and from its
        first gradients on, see *ahead* in the docs, its other work. What has no
        room is noted.
        """
        rows = self.bound.of_width[width]
        held = self.choices.static[rows] + self.choices.kept_share[rows]
        sizes = np.stack((self.load[rows], held))
        rooms = np.array((1.0, 1.0 - self.bound.working[width]))
        if self.bound.ordered:
            ahead, rooms_ahead = self._ahead_of[width]
            sizes = np.concatenate((sizes, ahead))
            rooms = np.concatenate((rooms, rooms_ahead))
        none = rooms <= 0.0
        sizes[~none] /= rooms[~none, None]
        max_sizes = np.where(none, ROUNDING, 1 + ROUNDING)
        self.fits[rows] &= (sizes <= max_sizes[:, None]).all(axis=0)
        return sizes[~none]

    def _ahead(self, width: int) -> tuple[Floats, Floats]:
        """Return sizes and rooms where forward passes run ahead of a gradient.

        Without bytes, then for every rate of forward time per byte.
        """
        rows = self.bound.of_width[width]
        rates = np.array([0.0, *self.bound.rate_steps[width]]) / self.step
        count = self.bound.num_micro_batches
        spared = self.forward[rows] / count - np.outer(
            rates, self.choices.kept_share[rows]
        )
        rest = spared + (count - 1) * np.maximum(spared, 0.0)
        sizes = self.load[rows] - rest + np.outer(rates, self.choices.static[rows])
        rooms = 1.0 - self.start + rates * (1.0 - self.bound.working[width])
        return sizes, rooms

    # Rows that amounts violate

    def _add_violated(self, amounts: Floats) -> bool:
        """Add rows that some amounts violate; whether there are any."""
        blocks = amounts[: self.num_widths]
        layers = amounts[self.num_widths :]
        before = len(self._program.rows)
        for width in np.flatnonzero(blocks > ROUNDING).tolist():
            self._add_single(width, blocks[width], layers)
        for width in range(self.num_widths):
            self._add_parts(width, blocks[width], layers)
        if self.bound.ordered:
            self._add_waits(blocks, layers)
            self._add_stays(blocks, layers)
            for case in _Queue:
                self._add_queue(case, blocks, layers)
        return len(self._program.rows) > before

    def _add_single(self, width: int, blocks: float, layers: Floats) -> None:
        """Add that the one layer of a kind needs a whole block."""
        rows = self.bound.of_width[width]
        for kind in self.bound.single_kinds.tolist():
            sizes = 1.0 * (self.choices.kind[rows] == kind)
            if sizes @ layers[rows] > blocks + VIOLATED:
                self._add_limit(width, 1.0, sizes)

    def _add_parts(self, width: int, blocks: float, layers: Floats) -> None:
        """Add rows of what blocks have room for, if they are violated.

        In parts of the room; then in whole parts of it, the most violated.
        """
        layers_here = layers[self.bound.of_width[width]]
        kinds = self.choices.kind[self.bound.of_width[width]]
        single = kinds == self.bound.largest_single
        spared = blocks - float(layers_here[single].sum())
        filled = self.limits[width] @ layers_here
        for index in np.flatnonzero(2 * filled > spared + VIOLATED).tolist():
            sizes = self.limits[width][index]
            if filled[index] <= blocks + VIOLATED:
                self._add_whole_parts((width, index), blocks, layers_here, single)
            elif (width, index, 0) not in self._seen:
                self._seen.add((width, index, 0))
                self._add_limit(width, 1.0, sizes)

    def _add_whole_parts(
        self, limit: tuple[int, int], blocks: float, layers_here: Floats, single: Bools
    ) -> None:
        """Add the row of whole parts of a room that is violated most."""
        width, index = limit
        sizes = self.limits[width][index]
        filled = float(sizes @ layers_here)
        spared = blocks - float(layers_here[single].sum())
        used = sizes[(layers_here > VIOLATED) & (sizes > 0) & ~single]
        most_violated, best = VIOLATED, None
        for max_layers in sorted({int(1.0 / size) for size in used.tolist()}):
            # Whole parts are little more than what is filled.
            useful = (max_layers + 1) * filled > max_layers * spared
            key = (width, index, max_layers)
            if not useful or not 0 < max_layers <= MAX_WHOLE or key in self._seen:
                continue
            if key not in self._whole_parts:
                fits = self.fits[self.bound.of_width[width]]
                self._whole_parts[key] = whole_parts(sizes, max_layers, fits, single)
            parts, capacity = self._whole_parts[key]
            if capacity:
                violated = float(parts @ layers_here) / capacity - blocks
                if violated > most_violated:
                    most_violated, best = violated, key
        if best is not None:
            self._seen.add(best)
            parts, capacity = self._whole_parts[best]
            self._add_limit(width, float(capacity), parts)

    def _add_waits(self, blocks: Floats, layers: Floats) -> None:
        """Add that all blocks together have time to wait for each other."""
        bound, choices = self.bound, self.choices
        widths, devices = bound.widths, choices.devices
        late_room, late = np.empty(self.num_widths), np.empty(len(self.load))
        for width, rows in enumerate(bound.of_width):
            sizes, rooms = self._ahead_of[width]
            tightest = int((rooms * blocks[width] - sizes @ layers[rows]).argmin())
            late[rows] = sizes[tightest]
            late_room[width] = rooms[tightest] * widths[width]
        cases = (
            (widths, self.load, bound.waits_ahead),
            (widths, self.load - self.weights, bound.waits_both),
            (late_room, late, bound.waits_back),
            (late_room, late - self.weights, 2 * bound.waits_back),
        )
        for room, sizes, pairs in cases:
            pairs = pairs / self.step
            slope = pairs @ blocks - np.diag(pairs) / 2
            fixed = blocks @ pairs @ blocks / 2
            fixed += bound.num_small * max(float(slope.max()), 0.0)
            spare = (room - slope) @ blocks - devices * sizes @ layers + fixed
            if spare < -VIOLATED * bound.num_devices:
                self._add(room - slope, -devices * sizes, -float(fixed))

    def _add_stays(self, blocks: Floats, layers: Floats) -> None:
        """Add that bytes times stays fit in the bytes of all blocks."""
        bound = self.bound
        room = bound.widths * (1.0 - bound.working)
        held = self.choices.devices * self.choices.static
        used = np.flatnonzero(layers)
        stays = layers[used] @ bound.stays[used] / self.step
        fixed = layers @ stays / 2
        weights = held + bound.own_stays / self.step + stays
        if room @ blocks + fixed < (weights @ layers - VIOLATED * bound.num_devices):
            self._add(room, -weights, -float(fixed))

    def _add_queue(self, case: _Queue, blocks: Floats, layers: Floats) -> None:
        """Add that blocks wait for each other one by one, if it is violated.

        Of blocks up to some width, the row that is violated most.
        """
        most_violated, best = VIOLATED, None
        for last in np.flatnonzero(blocks > ROUNDING).tolist():
            waits = self.bound.queued[case][last] / self.step
            position = min(int(blocks[: last + 1].sum() + ROUNDING), len(waits) - 1)
            rooms, shares = np.zeros(self.num_widths), np.zeros(len(self.load))
            fixed = np.zeros(position)
            for width in np.flatnonzero(blocks[: last + 1] > ROUNDING).tolist():
                rows = self.bound.of_width[width]
                counted, whole = self._queue_parts(
                    *(case, width, waits[: position + 1], blocks[width], layers[rows])
                )
                if not whole[0]:
                    continue
                scale = self.bound.widths[width] / whole[0]
                shares[rows], rooms[width] = scale * counted, scale * whole[position]
                spared = scale * (whole[:position] - whole[position])
                fixed = np.maximum(fixed, spared)
            violated = float(shares @ layers - rooms @ blocks - fixed.sum())
            violated /= self.bound.num_devices
            if violated > most_violated:
                most_violated, best = violated, (rooms, -shares, -float(fixed.sum()))
        if best is not None:
            self._add(*best)

    def _queue_parts(
        self,
        case: _Queue,
        width: int,
        waits: Floats,
        blocks: float,
        layers_here: Floats,
    ) -> tuple[Floats, Floats]:
        """Return whole parts of a room: of layers, and of blocks by their place.

        Those of the room and part whose row for this width alone is violated most.
        """
        rows = self.bound.of_width[width]
        sizes, rooms = self._ahead_of[width]
        if case is not _Queue.BEHIND:
            is_early = case is _Queue.AROUND
            sizes = (self.load - is_early * self.weights)[rows][None]
            rooms = np.ones(1)
        fits, used = self.fits[rows], layers_here > VIOLATED
        best, shares = -np.inf, (np.zeros(len(rows)), np.zeros(len(waits)))
        for room, row in zip(rooms.tolist(), sizes, strict=True):
            if room <= 0.0 or 2 * float(row @ layers_here) <= room * blocks:
                continue
            for size in {*row[used].tolist()}:
                if MAX_QUEUED * size <= room or size > room:
                    continue
                counted, whole = queue_parts(row, size, room - waits)
                counted = np.where(fits, counted, 0.0)
                spared = float((whole - whole[-1]).sum())
                violated = float(counted @ layers_here) - whole[-1] * blocks - spared
                violated /= max(whole[0], 1.0)
                if violated > best:
                    best, shares = violated, (counted, whole)
        return shares


def queue_parts(sizes: Floats, size: float, rooms: Floats) -> tuple[Floats, Floats]:
    """Return how many whole parts of a size layers count for, and rooms have.

    Sums of the first are at most the second where the sizes fit in the room.
    """
    unit = size * (1 - 2 * ROUNDING)
    whole = np.floor(np.maximum(rooms + ROUNDING, 0.0) / unit)
    return np.floor(sizes * (1 - ROUNDING) / unit), whole


def whole_parts(
    sizes: Floats, max_layers: int, fits: Bools, single: Bools
) -> tuple[Floats, int]:
    """Return whole parts that layers count for, and those of a block.

    A layer counts for ``⌊(max_layers + 1) size⌋`` of them: for one, if no
    more than ``max_layers`` of its size fit. A block has as many as sizes up
    to 1 count for at most. The one layer that is ``single`` counts for all
    those that it leaves no room for.

    Parameters
    ----------
    sizes
        Of layers, in parts of what a block has room for.
    max_layers
        How many of the layers in question fit.
    fits, single
        Layers that may be there, and choices of that one.
    """
    counted = np.floor((max_layers + 1) * sizes * (1 - ROUNDING))
    counted[~fits] = 0.0
    min_sizes: dict[int, float] = {}
    ordinary = fits & ~single & (counted > 0)
    for share, size in zip(
        counted[ordinary].tolist(), sizes[ordinary].tolist(), strict=True
    ):
        min_sizes[int(share)] = min(size, min_sizes.get(int(share), size))
    if not min_sizes:
        return counted, 0
    needed = [0.0]
    for total in range(1, max_layers + 2):
        needed.append(
            min(
                needed[max(total - share, 0)] + size
                for share, size in min_sizes.items()
            )
        )
    whole = bisect_right(needed, 1.0 + ROUNDING) - 1
    chosen = np.flatnonzero(single & fits)
    free = 1.0 - sizes[chosen] + ROUNDING
    counted[chosen] = whole - (np.searchsorted(needed, free, "right") - 1)
    return counted, whole
