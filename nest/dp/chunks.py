"""Chunks of an interleaved plan: what they cost and where to cut.

A way to cut the layers, in topological order, into ``S v`` chunks is an array
of ``S v + 1`` rising positions, ``0`` and the number of layers included. Many
ways are priced at a time, from sums over the first layers; the prices equal
those of ``score``. Cuts start in proportion to the loads, and where the
heaviest chunk is lightest. Then runs of neighbouring cuts move by one layer
for as long as that makes the plan fit, or faster.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from nest.cost.model import Block, CostModel, LayerTerms
from nest.cost.space import Case
from nest.dp.closed_sets import Ints
from nest.dp.stages import INFINITE
from nest.ir.plan import Plan, Stage, Strategy
from nest.solvers.base import Deadline
from nest.topology import Route
from nest.units import ceil_div

#: Ways to move cuts that are tried at a time, at most, before those of the
#: heaviest blocks only.
MAX_MOVES = 1500


class LayerOrder(NamedTuple):
    """The layers in topological order, and the tensors that cross cuts.

    Attributes
    ----------
    model
        Cost terms.
    positions
        Of the layers in the graph, in topological order.
    kinds
        Number of every layer's kind.
    representatives
        Position of one layer of every kind; all cost the same.
    sizes, crossing
        Across cut ``i``, in front of the ``i``-th layer, pass tensors of
        ``sizes[crossing[i]]`` bytes per sample.
    """

    model: CostModel
    positions: list[int]
    kinds: Ints
    representatives: list[int]
    sizes: list[tuple[int, ...]]
    crossing: Ints

    @staticmethod
    def of(model: CostModel) -> LayerOrder:
        """Read the graph of a problem."""
        graph = model.problem.graph
        positions = graph.topological_order()
        numbers: dict[str, int] = {}
        kinds = [
            numbers.setdefault(graph.layers[i].kind, len(numbers))
            for i in positions
        ]
        place = {layer: i for i, layer in enumerate(positions)}
        known: dict[tuple[int, ...], int] = {}
        crossing = []
        for cut in range(len(positions) + 1):
            beyond = (
                [size for node, size in tensor.consumers if place[node] >= cut]
                for tensor in model.tensors
                if place[tensor.producer] < cut
            )
            sizes = tuple(sorted(max(found) for found in beyond if found))
            crossing.append(known.setdefault(sizes, len(known)))
        return LayerOrder(
            model=model,
            positions=positions,
            kinds=np.array(kinds),
            representatives=[
                positions[kinds.index(number)]
                for number in range(len(numbers))
            ],
            sizes=list(known),
            crossing=np.array(crossing),
        )


@dataclass(frozen=True, eq=False)
class Uniform:
    """A case and the strategy of all blocks."""

    layers: LayerOrder
    case: Case
    strategy: Strategy

    @property
    def number(self) -> tuple[int, int, Strategy]:
        """Its place among all, for a fixed order."""
        return self.case.replicas, self.case.micro_batch, self.strategy

    def most_blocks(self, virtual: int) -> int:
        """Return the most blocks of ``v`` chunks: devices, ``M``, layers."""
        return min(
            self.case.devices // self.strategy.devices,
            self.case.num_micro_batches,
            len(self.layers.positions) // virtual,
        )

    @property
    def fewest_blocks(self) -> int:
        """The fewest blocks that may hold weights and one micro-batch."""
        terms = self.terms(None)
        device = self.layers.model.problem.cluster.device
        free = device.memory_bytes - min(t.working_bytes for t in terms)
        need = [t.static_bytes + t.kept_bytes for t in terms]
        total = sum(need[kind] for kind in self.layers.kinds)
        # A device-byte less than nothing is as good as one.
        return max(2, ceil_div(total, max(free, 1)))

    def block(self, number: int) -> Block:
        """Return where a block sits."""
        size = self.strategy.devices
        return Block(
            self.case.replicas, self.case.devices, number * size, size
        )

    def terms(self, block: Block | None) -> list[LayerTerms]:
        """Return the terms of every kind on a block; all are available."""
        found = (
            self.layers.model.layer_terms(
                layer, self.strategy, self.case.micro_batch, block
            )
            for layer in self.layers.representatives
        )
        return [terms for terms in found if terms is not None]

    def receive(self, levels: Route) -> Ints:
        """Return the receive across every cut at the worst of some levels."""
        model = self.layers.model
        shards = self.strategy.shards(model.problem.job.sequence_parallel)
        times = [
            max(
                model.message(level)
                + sum(
                    model.tensor(level, size, self.case.micro_batch, shards)
                    for size in sizes
                )
                for level in levels
            )
            if sizes
            else 0
            for sizes in self.layers.sizes
        ]
        return np.array(times, dtype=np.int64)[self.layers.crossing]


class Shape(NamedTuple):
    """Number of blocks ``S`` and chunks per block ``v``."""

    blocks: int
    virtual: int


class Pieces(NamedTuple):
    """What chunks cost: sums over the first layers, a row per block.

    Attributes
    ----------
    load, sync
        ``(S, layers + 1)``, in quanta.
    receive, receive_back
        Receives across every cut, of the block behind it and before it.
    static_bytes, kept_bytes
        ``(layers + 1,)``.
    has_kind
        ``(layers + 1, kinds)``: layers of every kind.
    working_bytes
        Per kind.
    inflight
        Passes in flight per block and chunk, ``(S, v)``.
    """

    load: Ints
    sync: Ints
    receive: Ints
    receive_back: Ints
    static_bytes: Ints
    kept_bytes: Ints
    has_kind: Ints
    working_bytes: Ints
    inflight: Ints


def make_pieces(uniform: Uniform, shape: Shape) -> Pieces:
    """Sum up what the layers cost on every block."""
    layers = uniform.layers
    model, kinds = layers.model, layers.kinds
    blocks = [uniform.block(number) for number in range(shape.blocks)]
    terms = [uniform.terms(block) for block in blocks]
    wrap = uniform.receive(model.wrap_levels(blocks[0], blocks[-1]))
    # A layer that does not fit alone never fits; see StageTables.
    too_much = model.problem.cluster.device.memory_bytes + 1

    def sums(values: list[list[int]]) -> Ints:
        total = np.zeros((len(values), len(kinds) + 1), dtype=np.int64)
        np.cumsum(np.array(values)[:, kinds], axis=1, out=total[:, 1:])
        return total

    def sizes(values: list[int]) -> Ints:
        total: Ints = sums([[min(value, too_much) for value in values]])[0]
        return total

    return Pieces(
        load=sums([[t.forward + t.backward for t in row] for row in terms]),
        sync=sums([[t.sync for t in row] for row in terms]),
        receive=np.array(
            [wrap]
            + [
                uniform.receive(model.boundary_levels(block, forward=True))
                for block in blocks[1:]
            ]
        ),
        receive_back=np.array(
            [
                uniform.receive(model.boundary_levels(block, forward=False))
                for block in blocks[:-1]
            ]
            + [wrap]
        ),
        static_bytes=sizes([t.static_bytes for t in terms[0]]),
        kept_bytes=sizes([t.kept_bytes for t in terms[0]]),
        has_kind=np.pad(
            np.cumsum(
                kinds[:, None] == np.arange(len(layers.representatives)),
                axis=0,
            ),
            ((1, 0), (0, 0)),
        ),
        working_bytes=np.array(
            [min(t.working_bytes, too_much) for t in terms[0]], dtype=np.int64
        ),
        inflight=passes_in_flight(*shape, uniform.case.num_micro_batches),
    )


def passes_in_flight(
    num_blocks: int, virtual: int, num_micro_batches: int
) -> Ints:
    """Return the passes in flight of every block's chunks, ``(S, v)``.

    Block ``r`` starts ``min(M v, 2(S-r-1) + (v-1)S + 1)`` forward passes
    before its first backward pass, in groups of ``S`` micro-batches (the
    last one may be smaller), each group through one chunk after the other;
    sources in docs/cost-model.md.
    """
    count = np.zeros((num_blocks, virtual), dtype=np.int64)
    chunk = np.arange(virtual)
    for block in range(num_blocks):
        passes = min(
            num_micro_batches * virtual,
            2 * (num_blocks - block - 1) + (virtual - 1) * num_blocks + 1,
        )
        left = num_micro_batches
        while passes > 0:
            width = min(num_blocks, left)
            count[block] += np.clip(passes - chunk * width, 0, width)
            passes -= width * virtual
            left -= width
    return count


class Prices(NamedTuple):
    """What some ways to cut cost: arrays with a row for each of them.

    Attributes
    ----------
    excess
        ``(ways, S)``: bytes over the capacity, or 0.
    load, sync
        ``(ways, S)``: per block, in quanta.
    step
        Step time in quanta.
    """

    excess: Ints
    load: Ints
    sync: Ints
    step: Ints

    def best(self) -> int:
        """Return the first of the best: it fits, is fast, is balanced."""
        squares = np.square(self.load.astype(np.float64)).sum(axis=1)
        keys = (squares, self.step, self.excess.sum(axis=1))
        return int(np.lexsort(keys)[0])

    def key(self, way: int) -> tuple[int, int, float]:
        """Return what :meth:`best` compares."""
        squares = np.square(self.load[way].astype(np.float64)).sum()
        return int(self.excess[way].sum()), int(self.step[way]), float(squares)


def price(
    uniform: Uniform, shape: Shape, pieces: Pieces, cuts: Ints
) -> Prices:
    """Price ways to cut; ``cuts`` has a row of ``S v + 1`` for each."""
    size, virtual = shape
    start, end = cuts[:, :-1], cuts[:, 1:]
    block = np.arange(size * virtual) % size

    def per_block(values: Ints) -> Ints:
        total: Ints = values.reshape(len(cuts), virtual, size).sum(axis=1)
        return total

    load = per_block(
        pieces.load[block, end]
        - pieces.load[block, start]
        + pieces.receive[block, start]
        + pieces.receive_back[block, end]
    )
    sync = per_block(pieces.sync[block, end] - pieces.sync[block, start])
    kept = pieces.kept_bytes[end] - pieces.kept_bytes[start]
    static = pieces.static_bytes[end] - pieces.static_bytes[start]
    memory = per_block(static + kept * pieces.inflight.T.ravel())
    working = np.zeros_like(memory)
    for kind in np.argsort(pieces.working_bytes, kind="stable"):
        inside = pieces.has_kind[end, kind] > pieces.has_kind[start, kind]
        working[per_block(inside) > 0] = pieces.working_bytes[kind]
    capacity = uniform.layers.model.problem.cluster.device.memory_bytes
    worst = load.max(axis=1)
    others = load.sum(axis=1) - worst
    step = (
        uniform.case.num_micro_batches * worst
        + (2 * others + virtual) // (2 * virtual)
        + sync.max(axis=1)
    )
    return Prices(np.maximum(memory + working - capacity, 0), load, sync, step)


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


def _moves(cuts: Ints, size: int, blocks: Ints) -> Ints:
    """Return all ways to move a run of neighbouring cuts by one layer.

    That hands a layer's worth from the chunk at one end to the one at the
    other. Of many ways, those that leave the given blocks alone are left out.
    """
    chunks = len(cuts) - 1
    first, last = np.triu_indices(chunks - 1)
    if len(first) > MAX_MOVES:
        ends = np.isin([first % size, (last + 1) % size], blocks)
        first, last = first[ends.any(axis=0)], last[ends.any(axis=0)]
    cut = np.arange(chunks + 1)
    inside = (cut > first[:, None]) & (cut <= last[:, None] + 1)
    moved = np.concatenate((cuts + inside, cuts - inside))
    legal = (moved[:, 1:] > moved[:, :-1]).all(axis=1)
    found: Ints = moved[legal]
    return found


def best_plan(
    uniform: Uniform, shape: Shape, best: int | None, deadline: Deadline
) -> Plan | None:
    """Return a plan that fits and takes less than ``best``, or ``None``."""
    pieces = make_pieces(uniform, shape)
    chunks = shape.blocks * shape.virtual
    load = pieces.load.min(axis=0)
    starts = np.array([_proportional(load, chunks), _lightest(load, chunks)])
    found = [
        _improved(uniform, shape, pieces, cuts, best, deadline)
        for cuts in np.unique(starts, axis=0)
    ]
    cuts = np.array(found)
    prices = price(uniform, shape, pieces, cuts)
    way = prices.best()
    if prices.excess[way].any():
        return None
    if best is not None and prices.step[way] >= best:
        return None
    return make_plan(uniform, shape, cuts[way].tolist())


def _improved(
    uniform: Uniform,
    shape: Shape,
    pieces: Pieces,
    cuts: Ints,
    best: int | None,
    deadline: Deadline,
) -> Ints:
    """Move cuts for as long as that makes a plan fit, or faster.

    A plan that does not fit gets slower as it is made to; it is given up
    when it is no faster than ``best``.
    """
    prices, way = price(uniform, shape, pieces, cuts[None]), 0
    while not deadline.passed:
        load, sync = prices.load[way], prices.sync[way]
        excess = prices.excess[way]
        if best is not None and excess.any() and prices.step[way] >= best:
            break
        blocks = np.array([load.argmax(), sync.argmax(), excess.argmax()])
        moved = _moves(cuts, shape.blocks, blocks)
        if not len(moved):
            break
        further = price(uniform, shape, pieces, moved)
        found = further.best()
        if further.key(found) >= prices.key(way):
            break
        cuts, prices, way = moved[found], further, found
    return cuts


def make_plan(uniform: Uniform, shape: Shape, cuts: list[int]) -> Plan:
    """Return the plan of one way to cut."""
    graph = uniform.layers.model.problem.graph
    names = [graph.layers[i].id for i in uniform.layers.positions]
    return Plan(
        replicas=uniform.case.replicas,
        micro_batch=uniform.case.micro_batch,
        stages=tuple(
            Stage(
                layers=tuple(names[start:end]),
                devices=uniform.strategy.devices,
                strategy=uniform.strategy,
            )
            for start, end in pairwise(cuts)
        ),
        virtual_stages=shape.virtual,
    )
