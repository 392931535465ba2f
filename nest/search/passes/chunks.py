"""Chunks of an interleaved plan: what they cost and where to cut.

A way to cut the layers, in topological order, into ``S v`` chunks is an array
of ``S v + 1`` rising positions among the places where chunks may end, the
first and the last of these included. Many ways are priced at a time, from sums
over the first layers: loads, sync and memory as ``score`` has them, the step
time as even chunks would take it. Cuts start in proportion to the loads, and
where the heaviest chunk is lightest.
Then runs of neighboring cuts move by one layer for as long as that makes the
plan fit, or faster; at last by the critical path of the passes, which
:mod:`nest.cost.schedules` lists.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nest.cost.model import CostModel
from nest.cost.schedules import Schedule, Times, schedule_of
from nest.cost.space import BatchSplit, families, repeated_kinds, undivided
from nest.ir.job import ANY_ORDER, SPLIT_BACKWARD
from nest.ir.plan import Placement, Plan, Stage, Strategy
from nest.search.passes.timelines import critical_paths
from nest.search.stages.closed_sets import chain_sets
from nest.search.stages.dominance import non_dominated
from nest.search.stages.options import (
    INFINITE,
    BatchTerms,
    Ints,
    PassComponent,
    StageShapes,
    Table,
    pass_components,
)
from nest.solvers.base import Deadline
from nest.topology import Block, Route
from nest.units import ceil_div

#: Ways to move cuts that are tried at a time, at most, before those of the
#: heaviest blocks only.
MAX_MOVES = 1500

#: Ways of them that are timed pass by pass, the most promising ones.
MAX_TIMED = 8

#: Groups of ``S`` micro-batches that are timed pass by pass.
MAX_GROUPS = 4

#: Lists of passes repeat. They are counted for this multiple of ``S``
#: microbatches only.
MAX_LISTED = 3


def prefix_shapes(model: CostModel) -> StageShapes:
    """Return the stages that runs of layers in topological order make."""
    order = model.problem.graph.topological_order()
    return StageShapes(model, chain_sets(order, undivided(model.problem)))


class Shape(NamedTuple):
    """Number of blocks ``S`` and chunks per block ``v``."""

    blocks: int
    virtual: int


@dataclass(frozen=True, eq=False)
class Uniform:
    """A case and the strategy of all blocks."""

    #: Terms of runs of layers, see :func:`prefix_shapes`, and the position of the
    #: strategy there; it has a cost for every layer.
    terms: BatchTerms
    row: int
    #: ``R``, ``B`` and ``M``.
    case: BatchSplit

    @property
    def strategy(self) -> Strategy:
        """The strategy."""
        return self.terms.strategies[self.row]

    @property
    def number(self) -> tuple[object, ...]:
        """Its place among all, for a fixed order."""
        runtime = self.terms.model.runtime
        return (
            *(self.case.replicas, self.case.micro_batch, self.strategy),
            *(runtime.named_overlap, runtime.distributed_optimizer),
        )

    def schedule(self, virtual: int) -> Schedule:
        """Return the job's schedule with so many chunks per block."""
        name = self.terms.model.problem.job.schedule
        return schedule_of(name, virtual)

    @cached_property
    def anywhere(self) -> Table:
        """Terms of every kind without a device range, in one row."""
        return self.terms.held.take([self.row])

    @cached_property
    def kinds(self) -> Ints:
        """Kind of every layer, in topological order."""
        shapes = self.terms.shapes
        return np.array(shapes.kind_of)[shapes.order]

    @cached_property
    def ends(self) -> Ints:
        """How many layers are in front of every place to cut, ascending."""
        ends: Ints = self.terms.shapes.sets.member.sum(axis=1)
        return ends

    def blocks(self, virtual: int) -> Ints:
        """Return the numbers of blocks that ``v`` chunks each may have.

        The schedule can run them, they have devices and layers, and they may
        hold all weights and one micro-batch.
        """
        problem, case, kinds = self.terms.model.problem, self.case, self.kinds
        max_blocks = min(
            case.devices // self.strategy.devices, (len(self.ends) - 1) // virtual
        )
        terms = self.anywhere
        free = self.terms.max_bytes - 1 - int(terms.working_bytes.min())
        need = terms.static_bytes + terms.kept_bytes
        # A device-byte less than nothing is as good as one.
        min_blocks = ceil_div(int(need[0, kinds].sum()), max(free, 1))
        min_blocks = max(min(virtual, 2), min_blocks)
        runtime = self.terms.model.runtime._replace(virtual_stages=virtual)
        every = families(problem, case, [self.strategy], runtime)
        count, schedule = case.num_micro_batches, self.schedule(virtual)
        numbers = sorted({x for family in every for x in family.stage_counts})
        runnable = [
            x
            for x in numbers
            if min_blocks <= x <= max_blocks and schedule.why_not(x, count) is None
        ]
        return np.array(runnable, dtype=np.int64)

    def block(self, index: int) -> Block:
        """Return where a block sits."""
        size = self.strategy.devices
        return Block(self.case.replicas, self.case.devices, index * size, size)

    def table(self, blocks: Sequence[Block]) -> Table:
        """Return the terms of every kind, a row per block."""
        rows = [self.terms.terms(self.strategy, block) for block in blocks]
        return Table.of(rows, pass_components, self.terms.max_bytes)

    def route(self, receiver: int, sender: int) -> Route:
        """Return how a block receives from another one."""
        network = self.terms.model.network
        return network.route(self.block(receiver), self.block(sender))

    def receive(self, route: Route) -> Ints:
        """Return the receive across every cut."""
        shapes = self.terms.shapes
        times = [
            self.terms.model.transfers.receive(
                route, sizes, self.case.micro_batch, self.terms.shards[self.row]
            )
            for sizes in shapes.cuts
        ]
        return np.array(times, dtype=np.int64)[shapes.cut_of]

    def passing_bytes(self) -> Ints:
        """Return what passes a chunk between two cuts, per micro-batch."""
        shapes, shards = self.terms.shapes, self.terms.shards[self.row]
        passing_bytes = shapes.passing_bytes(self.case.micro_batch, int(shards))
        table = np.zeros((shapes.sets.count,) * 2, dtype=np.int64)
        table[shapes.sets.pair_source, shapes.sets.pair_target] = passing_bytes[
            shapes.of_pair
        ]
        return table

    def even_cuts(self, num_chunks: int) -> list[int] | None:
        """Return cuts into chunks of about the same load, wherever they sit.

        ``None`` if the job asks for equal shares and there are none.
        """
        problem = self.terms.model.problem
        if problem.job.even_layers and repeated_kinds(problem):
            return self.equal_cuts(num_chunks)
        passes = self.terms.least_passes[self.row, self.kinds]
        load = passes[:, PassComponent.FORWARD] + passes[:, PassComponent.BACKWARD]
        sums = np.concatenate(([0], np.cumsum(load)))[self.ends]
        cuts: list[int] = _proportional(sums, num_chunks).tolist()
        return cuts

    def equal_cuts(self, num_chunks: int) -> list[int] | None:
        """Return cuts into equal shares of every kind; ``None`` if none are."""
        layers = self.terms.model.problem.graph.layers
        ends = equal_shares(
            [layers[i].kind for i in self.terms.shapes.order], num_chunks
        )
        if ends is None or not np.isin(ends, self.ends).all():
            return None
        cuts: list[int] = np.searchsorted(self.ends, ends).tolist()
        return cuts

    def plan(self, cuts: list[int], virtual: int, placement: Placement) -> Plan:
        """Return the plan of one way to cut, with so many chunks per block."""
        shapes, runtime = self.terms.shapes, self.terms.model.runtime
        graph = shapes.model.problem.graph
        names = [graph.layers[i].id for i in shapes.order]
        return Plan(
            replicas=self.case.replicas,
            micro_batch=self.case.micro_batch,
            stages=tuple(
                Stage(
                    layers=tuple(names[start:end]),
                    devices=self.strategy.devices,
                    strategy=self.strategy,
                )
                for start, end in pairwise(self.ends[cuts].tolist())
            ),
            virtual_stages=virtual,
            placement=placement,
            overlap=runtime.named_overlap,
            distributed_optimizer=runtime.distributed_optimizer,
        )


def moments(
    schedule: Schedule, blocks: int, num_micro_batches: int, block: int
) -> Ints:
    """Return the distinct numbers of passes in flight of a block's chunks.

    The shape is (moments, chunks). Lists repeat after the warm-up, so ``3 S``
    microbatches are enough.
    """
    count = min(num_micro_batches, MAX_LISTED * blocks)
    flying = dict.fromkeys(schedule.chunks_of(block, blocks), 0)
    distinct = {tuple(flying.values())}
    for run in schedule.passes(block, blocks, count):
        if not run.backward:
            flying[run.chunk] += 1
        elif run.gradients != "inputs":
            flying[run.chunk] -= 1
        distinct.add(tuple(flying.values()))
    return np.array(sorted(distinct), dtype=np.int64)


@cache
def paired_passes(
    schedule: Schedule, blocks: int, block: int, num_micro_batches: int
) -> Counter[tuple[int, int]]:
    """Return how often which chunks of a block run passes in pairs."""
    if not schedule.paired_axes:
        return Counter()
    runs = schedule.passes(block, blocks, num_micro_batches)
    return Counter(
        (run.chunk, after.chunk) for run, after in pairwise(runs) if run.paired
    )


@cache
def passes_in_flight(
    schedule: Schedule, blocks: int, block: int, num_micro_batches: int
) -> Ints:
    """Return the passes in flight of a block's chunks that matter.

    Returns
    -------
    Ints
        ``(times, v)``; times at which no chunk has more are left out.
    """
    rows = moments(schedule, blocks, num_micro_batches, block)[::-1]
    peaks: Ints = rows[non_dominated(np.zeros(len(rows), np.int64), list(-rows.T))]
    return peaks


def bubble_part(schedule: Schedule) -> int:
    """Return by what the bubble of equal chunks is divided.

    Where gradients of weights wait, it is about a third.
    """
    return 3 if schedule.name in (*SPLIT_BACKWARD, ANY_ORDER) else 1


class Prices(NamedTuple):
    """What some ways to cut cost: arrays with a row for each of them."""

    #: ``(ways, S)``: bytes over the capacity, and below it, or 0.
    excess: Ints
    spare: Ints
    #: ``(ways, S v)``: per chunk, in quanta.
    forward: Ints
    backward: Ints
    #: ``(ways, S)``: per block, in quanta.
    load: Ints
    sync: Ints
    #: ``(ways, S)``: what a block does in the step, in quanta.
    busy: Ints
    #: ``(ways, S v)``: parts of the passes, as in ``Times``.
    weights: Ints
    hiding_forward: Ints
    hiding_backward: Ints
    #: Step time if chunks were even, in quanta.
    step: Ints

    def take(self, ways: Ints | list[int]) -> Prices:
        """Return some of the ways."""
        return Prices(*(column[ways] for column in self))

    def merits(self) -> tuple[NDArray[np.float64], Ints, Ints]:
        """Return what makes ways worse, the most telling one last.

        How uneven blocks and chunks are, the step time, and the excess.
        """
        chunks = np.square((self.forward + self.backward).astype(np.float64))
        blocks = np.square(self.load.astype(np.float64))
        uneven = blocks.sum(axis=1) + chunks.mean(axis=1)
        return uneven, self.step, self.excess.sum(axis=1)

    def order(self) -> Ints:
        """Return the ways, the best first: they fit, are fast, balanced."""
        order: Ints = np.lexsort(self.merits())
        return order

    def key(self, way: int) -> tuple[float, ...]:
        """Return what :meth:`order` compares."""
        return tuple(column[way] for column in self.merits()[::-1])


class Chunks:
    """What chunks of a uniform choice and shape cost, wherever they are cut.

    A way to cut is a row of ``S v + 1`` positions. Sums over the first layers
    have a row per block and a column per cut.
    """

    def __init__(self, uniform: Uniform, shape: Shape) -> None:
        self.uniform, self.shape = uniform, shape
        size, kinds = shape.blocks, uniform.kinds
        blocks = [uniform.block(index) for index in range(size)]
        table = uniform.table(blocks)

        def sums(values: Ints) -> Ints:
            total: Ints = np.cumsum(values[:, kinds], axis=1)
            return np.pad(total, ((0, 0), (1, 0)))[:, uniform.ends]

        self.schedule = uniform.schedule(shape.virtual)
        self.block_of = np.array(
            [self.schedule.block_of(chunk, size) for chunk in range(math.prod(shape))]
        )
        #: ``(S, v)``
        self._chunks = np.argsort(self.block_of, kind="stable").reshape(size, -1)
        columns = np.moveaxis(table.periods, 2, 0)
        self.forward = sums(columns[PassComponent.FORWARD])
        self.backward = sums(columns[PassComponent.BACKWARD])
        self._weights = sums(columns[PassComponent.WEIGHTS])
        self._hiding_forward = sums(columns[PassComponent.FORWARD_HIDING])
        self._hiding_backward = sums(columns[PassComponent.BACKWARD_HIDING])
        self._sync = sums(table.sync)
        self._static_bytes = sums(table.static_bytes)[0]
        self._kept_bytes = sums(table.kept_bytes)[0]
        self._passing_bytes = uniform.passing_bytes()
        #: ``(S, kinds)``
        self._working_bytes = table.working_bytes
        self._capacity_bytes = np.array(
            [uniform.terms.model.capacity_bytes(block) for block in blocks]
        )
        #: By chunk and cut: nothing between two chunks of a block.
        zeros = np.zeros(len(uniform.ends), dtype=np.int64)
        cache: dict[tuple[int, int], Ints] = {}

        def receive(chunk: int, sender: int) -> Ints:
            pair = int(self.block_of[chunk]), int(self.block_of[sender])
            if pair[0] == pair[1]:
                return zeros
            if pair not in cache:
                cache[pair] = uniform.receive(uniform.route(*pair))
            return cache[pair]

        last = len(self.block_of) - 1
        self._receive = np.array([receive(i, max(i - 1, 0)) for i in range(last + 1)])
        self._receive_back = np.array(
            [receive(i, min(i + 1, last)) for i in range(last + 1)]
        )
        count = uniform.case.num_micro_batches
        self._inflight = [
            passes_in_flight(self.schedule, size, index, min(count, MAX_LISTED * size))
            for index in range(size)
        ]
        self._paired = [
            paired_passes(self.schedule, size, index, count) for index in range(size)
        ]

    def price(self, cuts: Ints) -> Prices:
        """Price ways to cut."""
        size, virtual = self.shape
        start, end = cuts[:, :-1], cuts[:, 1:]
        block, chunk = self.block_of, np.arange(size * virtual)

        def per_block(values: Ints) -> Ints:
            total: Ints = values[:, self._chunks].sum(axis=2)
            return total

        def between(sums: Ints) -> Ints:
            inside: Ints = sums[block, end] - sums[block, start]
            return inside

        forward = between(self.forward) + self._receive[chunk, start]
        backward = between(self.backward) + self._receive_back[chunk, end]
        load = per_block(forward + backward)
        sync = per_block(between(self._sync))
        count = self.uniform.case.num_micro_batches
        hiding_forward = between(self._hiding_forward)
        hiding_backward = between(self._hiding_backward)
        busy = count * load
        for block_index, pairs in enumerate(self._paired):
            for (i, j), times in pairs.items():
                there, back = hiding_forward[:, i], hiding_backward[:, j]
                together = np.maximum(forward[:, i] - there, back)
                together += np.maximum(backward[:, j] - back, there)
                busy[:, block_index] += times * (
                    together - forward[:, i] - backward[:, j]
                )
        kept_bytes = self._kept_bytes[end] - self._kept_bytes[start]
        kept_bytes += self._passing_bytes[start, end]
        static_bytes = self._static_bytes
        memory = per_block(static_bytes[end] - static_bytes[start])
        for block_index, inflight in enumerate(self._inflight):
            peaks = kept_bytes[:, self._chunks[block_index]] @ inflight.T
            memory[:, block_index] += peaks.max(axis=1)
        working = np.zeros_like(memory)
        for size_bytes, layers in zip(
            self._working_bytes.T, self.uniform.terms.shapes.kind_counts.T, strict=True
        ):
            has = per_block(layers[end] > layers[start]) > 0
            np.maximum(working, np.where(has, size_bytes, 0), out=working)
        worst = load.max(axis=1)
        bubble = (load.sum(axis=1) - worst) // (virtual * bubble_part(self.schedule))
        step = busy.max(axis=1) + bubble + sync.max(axis=1)
        over = memory + working - self._capacity_bytes
        return Prices(
            excess=np.maximum(over, 0),
            spare=np.maximum(-over, 0),
            forward=forward,
            backward=backward,
            load=load,
            sync=sync,
            busy=busy,
            weights=between(self._weights),
            hiding_forward=hiding_forward,
            hiding_backward=hiding_backward,
            step=step,
        )

    def step_times(self, prices: Prices) -> Ints:
        """Return the step times of some ways, by the passes of the first groups.

        The rest are taken to last as long as the last of them. Schedules
        that are not interleaved take micro-batches one by one.
        """
        columns = (
            *(prices.forward.T, prices.backward.T, prices.weights.T),
            *(prices.hiding_forward.T, prices.hiding_backward.T),
        )
        chunks = [Times(*x) for x in zip(*columns, strict=True)]
        num_micro_batches = self.uniform.case.num_micro_batches
        unit, few = self.shape.blocks, MAX_GROUPS
        if self.schedule.name in SPLIT_BACKWARD:
            unit, few = 1, MAX_GROUPS * self.shape.blocks

        def paths(groups: int) -> Ints:
            return critical_paths(self.schedule, chunks, groups * unit)

        groups = num_micro_batches // unit
        times = paths(min(groups, few))
        if groups > few:
            times = times + (groups - few) * (times - paths(few - 1))
        slowest: Ints = times + prices.sync.max(axis=1)
        return slowest

    def plan(self, cuts: list[int]) -> Plan:
        """Return the plan of one way to cut."""
        return self.uniform.plan(cuts, self.shape.virtual, self.schedule.placement)


def _proportional(load: Ints, num_chunks: int) -> Ints:
    """Cut in proportion to the load, at least one layer per chunk."""
    targets = load[-1] * np.arange(1, num_chunks) / num_chunks
    nearest = np.searchsorted((load[1:] + load[:-1]) / 2, targets)
    chunk = np.arange(1, num_chunks)
    last = len(load) - 1
    cuts = np.maximum(nearest, chunk)
    cuts = np.maximum.accumulate(cuts - chunk) + chunk
    cuts = np.minimum(cuts, last - num_chunks + chunk)
    return np.concatenate(([0], cuts, [last]))


def equal_shares(kinds: Sequence[str], num_chunks: int) -> list[int] | None:
    """Cut so that chunks have equal shares of every repeated kind.

    What comes once goes with the layers behind it. ``None`` if a chain of
    these kinds cannot be cut so.
    """
    positions: dict[str, list[int]] = {}
    for position, kind in enumerate(kinds):
        positions.setdefault(kind, []).append(position)
    repeated = [of_kind for of_kind in positions.values() if len(of_kind) > 1]
    if any(len(of_kind) % num_chunks for of_kind in repeated):
        return None
    cuts = [0]
    for index in range(1, num_chunks):
        share = [index * len(of_kind) // num_chunks for of_kind in repeated]
        both = list(zip(share, repeated, strict=True))
        first = 1 + max(of_kind[count - 1] for count, of_kind in both)
        if first > min(of_kind[count] for count, of_kind in both):
            return None
        cuts.append(first)
    return [*cuts, len(kinds)]


def _lightest(load: Ints, num_chunks: int) -> Ints:
    """Cut so that the heaviest chunk is as light as can be."""
    last = len(load) - 1
    alone = load[None, :] - load[:, None]
    alone = np.where(np.tri(last + 1, dtype=np.bool_), INFINITE, alone)
    # worst[i]: heaviest chunk of the layers in front of cut i
    worst = alone[0]
    before = []
    for _ in range(1, num_chunks):
        through = np.maximum(worst[:, None], alone)
        before.append(through.argmin(axis=0))
        worst = through.min(axis=0)
    cuts = [last]
    for choice in reversed(before):
        cuts.append(int(choice[cuts[-1]]))
    return np.array([0, *reversed(cuts)])


def _moves(cuts: Ints, block_of: Ints, blocks: Ints) -> Ints:
    """Return all ways to move a run of neighboring cuts by one layer.

    That hands a layer's worth from the chunk at one end to the one at the
    other. Of many ways, those that leave the given blocks alone are left out.
    """
    chunks = len(cuts) - 1
    first, last = np.triu_indices(chunks - 1)
    if len(first) > MAX_MOVES:
        ends = np.isin([block_of[first], block_of[last + 1]], blocks)
        first, last = first[ends.any(axis=0)], last[ends.any(axis=0)]
    cut = np.arange(chunks + 1)
    inside = (cut > first[:, None]) & (cut <= last[:, None] + 1)
    moved = np.concatenate((cuts + inside, cuts - inside))
    legal = (moved[:, 1:] > moved[:, :-1]).all(axis=1)
    moves: Ints = moved[legal]
    return moves


class Cutter:
    """Looks where to cut.

    Parameters
    ----------
    chunks
        Of one uniform choice and shape.
    best
        Step time in quanta that a plan must be below to matter.
    deadline
        When to stop.
    """

    def __init__(self, chunks: Chunks, best: int, deadline: Deadline) -> None:
        self.chunks, self.best, self.deadline = chunks, best, deadline

    def plan(self) -> Plan | None:
        """Return a plan that fits and may take less than ``best``."""
        count = math.prod(self.chunks.shape)
        problem = self.chunks.uniform.terms.model.problem
        if problem.job.even_layers and repeated_kinds(problem):
            return self._with_equal_shares(count)
        load = (self.chunks.forward + self.chunks.backward).min(axis=0)
        starts = [_proportional(load, count), _lightest(load, count)]
        # Where blocks together have no room, moving layers makes none.
        prices = self.chunks.price(np.array(starts))
        fit = prices.excess.sum(axis=1) <= prices.spare.sum(axis=1)
        starts = [cuts for cuts, fits in zip(starts, fit, strict=True) if fits]
        if not starts:
            return None
        starts += [self._even(cuts) for cuts in starts]
        ways = np.unique(starts, axis=0)
        fits = ~self.chunks.price(ways).excess.any(axis=1)
        timed = [self._timed(cuts) for cuts in ways[fits]]
        step, cuts = min(timed, default=(self.best, []))
        if step >= self.best:
            return None
        return self.chunks.plan(cuts)

    def _with_equal_shares(self, count: int) -> Plan | None:
        """Return the plan whose chunks have equal shares of every kind."""
        cuts = self.chunks.uniform.equal_cuts(count)
        if cuts is None:
            return None
        prices = self.chunks.price(np.array([cuts]))
        if prices.excess.any() or self.chunks.step_times(prices)[0] >= self.best:
            return None
        return self.chunks.plan(cuts)

    def _further(self, cuts: Ints, prices: Prices) -> tuple[Ints, Prices]:
        """Return ways that differ by one move, the best first."""
        load, sync, excess = prices.load, prices.sync, prices.excess
        blocks = [column[0].argmax() for column in (load, sync, excess)]
        moved = _moves(cuts, self.chunks.block_of, np.array(blocks))
        if not len(moved):
            return moved, prices
        further = self.chunks.price(moved)
        order = further.order()
        return moved[order], further.take(order)

    def _even(self, cuts: Ints) -> Ints:
        """Move cuts for as long as that makes even chunks fit, or faster.

        A plan that does not fit gets slower as it is made to; it is given up
        when it is no faster than ``best``.
        """
        prices = self.chunks.price(cuts[None])
        while not self.deadline.passed:
            if prices.excess.any() and prices.step[0] >= self.best:
                break
            moved, further = self._further(cuts, prices)
            if not len(moved) or further.key(0) >= prices.key(0):
                break
            cuts, prices = moved[0], further.take([0])
        return cuts

    def _timed(self, cuts: Ints) -> tuple[int, list[int]]:
        """Move cuts for as long as that shortens the critical path."""
        prices = self.chunks.price(cuts[None])
        step = int(self.chunks.step_times(prices)[0])
        while not self.deadline.passed:
            moved, further = self._further(cuts, prices)
            if not len(moved):
                break
            bounds = further.busy.max(axis=1) + further.sync.max(axis=1)
            useful = (bounds < step) & ~further.excess.any(axis=1)
            ways = np.flatnonzero(useful)[:MAX_TIMED]
            if not len(ways):
                break
            further = further.take(ways)
            times = self.chunks.step_times(further)
            way = int(times.argmin())
            if times[way] >= step:
                break
            step, cuts = int(times[way]), moved[ways[way]]
            prices = further.take([way])
        return step, cuts.tolist()
