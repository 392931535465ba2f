"""Bounds on plans that are timed pass by pass, from chains of passes.

A step takes at least as long as every chain of passes that wait for each
other (:mod:`nest.cost.schedules.chains`), and the sync of some block behind
it: ``T >= Σ n_ij t_ij + Y_r``, ``t_ij`` the passes of chunk ``i``. Any mean
of such chains, with weights ``λ_p >= 0`` that add up to 1, is a bound as well,
and is a sum over chunks. So the least that any plan has is a shortest path
over (chunk, closed set), where a chunk takes the strategy that is best for
it. Devices and memory have prices ``μ, ν_r >= 0`` (Lagrange): with
``Σ n <= P`` devices and ``m_r <= C`` bytes of block ``r``,

``T >= min Σ_p λ_p (chain_p + Y_r(p)) + μ (Σ n / P - 1)``
``+ Σ_r ν_r (m_r / C - 1)``.

Blocks may differ in devices, and ``P T >= Σ_r n_r (L_r + Y_r)`` with what a
block does over the step is then closer: it has a weight ``ω`` beside the
``λ``, and ``Σ_r n_r m_r <= P C`` a price ``ρ`` beside the ``ν_r``.

Layers count with the least that they take on any place, a receive with the
least over the routes between blocks, nothing where blocks may differ in size.
In a pair of passes ``max(F - e_F, e_G) + max(G - e_G, e_F)`` one side of each
maximum counts. ``m_r`` is what the chunks of a block keep at one moment of its
list; a chunk that does not fit alone is no chunk.

Weights and prices climb by subgradients. The plan that is least under them
says which chain is missing: the critical one of its own passes. It is a plan
to try as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nest.cost.model import Block
from nest.cost.schedules import AnyOrder, Schedule, Times
from nest.cost.schedules.chains import (
    Chain,
    any_chains,
    chain_through,
    critical_chain,
)
from nest.ir.plan import Strategy
from nest.search.closed_sets import ClosedSets
from nest.search.layer_options import SLACK
from nest.search.options import (
    BatchTerms,
    Bools,
    Ints,
    PassComponent,
    paired_load,
    receive_weights,
)
from nest.solvers.base import Deadline
from nest.topology import Route

Floats = NDArray[np.float64]

#: Maximum number of rounds in which weights and prices change.
MAX_ROUNDS = 60

#: Rounds of one call; and rounds without progress before steps get smaller.
ROUNDS = 12
PATIENCE = 4

#: A critical chain is added in every third round only, because simulating the
#: passes takes most of the time.
CHAIN_EVERY = 3

#: First prices of all bytes together, as fractions of the step time.
FIRST_PRICES = (0.0, 0.03, 0.1, 0.3, 1.0)

#: Maximum number of chains in addition to those through every block.
MAX_CHAINS = 16

#: Penalty for an impossible choice, such as a strategy without a cost, in
#: units of ``scale``. No legal plan contains such a choice, so the lower bound
#: is valid for any penalty.
NEVER = 1e6

#: Lists of passes repeat. They are counted for this multiple of ``S``
#: microbatches only.
MAX_LISTED = 3


class RelaxationScope(NamedTuple):
    """The plans that one relaxation bounds together.

    They have one batch configuration, one schedule and one number of
    pipeline ranks, and mix a set of strategies.

    Attributes
    ----------
    terms
        Cost terms of a micro-batch size under a runtime.
    schedule
        The schedule of so many chunks per block.
    replicas, devices, num_micro_batches
        ``R``, ``P`` and ``M``.
    strategies
        Those that chunks may mix.
    blocks
        ``S``.
    allowed
        Pairs of closed sets that may be chunks.
    """

    terms: BatchTerms
    schedule: Schedule
    replicas: int
    devices: int
    num_micro_batches: int
    strategies: tuple[Strategy, ...]
    blocks: int
    allowed: Ints


@lru_cache(maxsize=256)
def moments(
    schedule: Schedule, blocks: int, num_micro_batches: int, block: int
) -> Ints:
    """Return the distinct numbers of passes in flight of a block's chunks.

    The shape is (moments, chunks). Lists repeat after the warm-up, so ``3 S``
    microbatches are enough. In any order there is a moment with one of each.
    """
    if isinstance(schedule, AnyOrder):
        return np.ones((1, schedule.virtual_stages), dtype=np.int64)
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


class _Chains:
    """Chains as arrays: times ``(chains, chunks, parts)``, and whose sync."""

    def __init__(self, scope: RelaxationScope) -> None:
        self._schedule, self._blocks = scope.schedule, scope.blocks
        self._count = scope.blocks * scope.schedule.virtual_stages
        self.parts, blocks = _first_chains(
            scope.schedule, scope.blocks, scope.num_micro_batches
        )
        self.block = [*blocks]

    def __len__(self) -> int:
        return len(self.block)

    def add(self, chain: Chain, at: Sequence[Times], block: int) -> bool:
        """Add a chain, its pairs as they are at some times of passes."""
        row = _parts_of(chain, at)
        for parts, own_block in zip(self.parts, self.block, strict=True):
            if own_block == block and (parts == row).all():
                return False
        self.parts = np.concatenate((self.parts, row[None]))
        self.block.append(block)
        return True


def _parts_of(chain: Chain, at: Sequence[Times]) -> Floats:
    """Return a chain's times, its pairs as they are at some times."""
    row = np.zeros((len(chain.passes), len(PassComponent)))
    columns = (
        PassComponent.FORWARD,
        PassComponent.BACKWARD,
        PassComponent.INPUTS,
        PassComponent.WEIGHTS,
    )
    row[:, columns] += np.array(chain.passes, dtype=np.float64)
    for i, j, times in chain.pairs:
        there, back = at[i], at[j]
        if there.forward - there.pairable_forward >= (back.pairable_backward):
            row[i, PassComponent.FORWARD_ALONE] += times
        else:
            row[j, PassComponent.BACKWARD_HIDING] += times
        if back.backward - back.pairable_backward >= (there.pairable_forward):
            row[j, PassComponent.BACKWARD_ALONE] += times
        else:
            row[i, PassComponent.FORWARD_HIDING] += times
    return row


@lru_cache(maxsize=1024)
def _first_chains(
    schedule: Schedule, blocks: int, num_micro_batches: int
) -> tuple[Floats, tuple[int, ...]]:
    """Return the chains through all blocks, and whose sync comes behind.

    Where the last chunk is not on the last block, the critical chain of
    equal chunks as well.
    """
    count = blocks * schedule.virtual_stages
    even = [Times(6, 12, 6)] * count
    if isinstance(schedule, AnyOrder):
        chains = any_chains(schedule, blocks, num_micro_batches)
        rows = np.array([_parts_of(chain, even) for chain, _ in chains])
        return rows, tuple(block for _, block in chains)
    chains = [
        (chain_through(schedule, blocks, num_micro_batches, block), block)
        for block in range(blocks)
    ]
    if schedule.placement == "v":
        _, chain = critical_chain(schedule, even, num_micro_batches)
        chains += [(chain, 0), (chain, blocks - 1)]
    rows = np.array([_parts_of(chain, even) for chain, _ in chains])
    return rows, tuple(block for _, block in chains)


class Chosen(NamedTuple):
    """The least plan under some prices: pairs and strategies of its chunks."""

    pairs: tuple[int, ...]
    strategies: tuple[Strategy, ...]


class Suffix(NamedTuple):
    """The costs of chunks in a bound, and lower bounds on later chunks.

    Attributes
    ----------
    scale, paid
        Quanta per unit, and the refund for devices and memory.
    chunks
        Costs of chunks, ``(chunks, strategies, shapes)``.
    cuts
        Costs of the cut before each chunk, ``(chunks, sets)``.
    left
        Least cost of a chunk and all later ones from a set on, ``(chunks + 1,
        sets)``.
    row, shape, source
        Row of each strategy, and shape and source of each pair.
    """

    scale: float
    paid: float
    chunks: Floats
    cuts: Floats
    left: Floats
    row: dict[Strategy, int]
    shape: Ints
    source: Ints

    def chunk(self, chunk: int, pair: int, strategy: Strategy) -> float:
        """Return the cost of a chunk, with the cut before it."""
        if self.shape[pair] < 0:
            return NEVER * NEVER
        # A strategy that another one beats takes no less than that.
        costs = self.chunks[chunk, :, self.shape[pair]]
        row = self.row.get(strategy)
        cost = costs.min() if row is None else costs[row]
        return float(cost + self.cuts[chunk, self.source[pair]])

    def at_least(self, spent: float, chunk: int, start: int) -> float:
        """Return a bound in quanta, given the costs of the earlier chunks."""
        total = spent + float(self.left[chunk, start])
        return (total * (1 - SLACK) - self.paid * (1 + SLACK)) * self.scale


class _Prices(NamedTuple):
    """Weights and prices.

    Attributes
    ----------
    chains, work
        Weights of every chain, and of the work of all devices: 1 together.
    devices, memory, together
        Prices of devices, of every block's bytes, and of those of all
        devices together.
    """

    chains: Floats
    work: float
    devices: float
    memory: Floats
    together: float


class _RelaxedPlan(NamedTuple):
    """The least plan under some prices.

    Attributes
    ----------
    value
        The bound, in units of the scale.
    pairs, rows
        Of every chunk; rows of the strategies, by kind.
    chunks
        ``(chunks, strategies, shapes)``: what a chunk adds.
    cuts
        ``(chunks, sets)``: what the cut in front of a chunk adds.
    paid
        What devices and memory there are is worth.
    """

    value: float
    pairs: Ints
    rows: Ints
    chunks: Floats
    cuts: Floats
    paid: float


class _Used(NamedTuple):
    """What a plan uses, in parts of what there is.

    Attributes
    ----------
    lengths
        Of every chain, and of the work of all devices, in units of the scale.
    devices, memory, together
        Beyond 1: as the prices of :class:`_Prices`.
    """

    lengths: Floats
    devices: float
    memory: Floats
    together: float


class Relaxation:
    """All plans of a :class:`RelaxationScope`, bounded together.

    Parameters
    ----------
    scope, sets
        What it is about, and the closed sets.
    best
        Only plans below this step time count.
    scale
        A step time in quanta that is close.
    """

    def __init__(
        self, scope: RelaxationScope, sets: ClosedSets, best: int, scale: int
    ) -> None:
        self.scope, self.sets, self.scale = scope, sets, float(scale)
        terms, schedule, size = scope.terms, scope.schedule, scope.blocks
        self.count = size * schedule.virtual_stages
        self.block = np.array(
            [schedule.block_of(chunk, size) for chunk in range(self.count)]
        )
        allowed = {*scope.strategies}
        rows = [i for i, x in enumerate(terms.strategies) if x in allowed]
        self.strategies = [terms.strategies[row] for row in rows]
        self.devices = terms.devices[rows]
        #: ``(strategies, kinds, parts)``
        self.passes = terms.least_passes[rows].astype(np.float64)
        held = terms.held
        self.missing = held.missing[rows]
        self._capacity = terms.max_bytes - 1
        self._static = held.static_bytes[rows].astype(np.float64)
        self._kept = held.kept_bytes[rows].astype(np.float64)
        self._working = held.working_bytes[rows].astype(np.float64)
        self.sync = held.sync[rows] - held.hideable_sync[rows]
        self.received = np.zeros(sets.count)
        if len({*self.devices.tolist()}) == 1:
            self._place()
        self.sync = self.sync.astype(np.float64)
        self._drop_dominated()
        layered = terms.model.problem.job.granularity == "layer"
        groups = self.devices if layered else np.arange(len(self.devices))
        self._groups, self._group = np.unique(groups, return_inverse=True)
        self._layered = layered
        self._choose_pairs(best)
        self._weigh_memory()
        self.chains = _Chains(scope)
        #: The prices of the best bound.
        self.best: _Prices | None = None
        self.value = 0.0
        #: Whether further rounds are of little use.
        self.done = False
        self._prices = _Prices(
            np.full(len(self.chains), 1.0 / len(self.chains)),
            *(0.0, 0.0, np.zeros(scope.blocks), 0.0),
        )
        self._bold, self._stuck, self._rounds = 1.0, 0, 0
        self._tried = float("inf")
        #: A bound of another kind, in quanta.
        self.floor = 0

    def _drop_dominated(self) -> None:
        """Drop strategies that another one of as many devices beats in all."""
        columns = np.concatenate(
            (
                self.passes.reshape(len(self.devices), -1),
                *(self.sync, self._static, self._kept, self._working),
            ),
            axis=1,
        )
        survives = np.ones(len(self.devices), dtype=np.bool_)
        for row in range(len(survives)):
            no_worse = (columns <= columns[row]).all(axis=1)
            no_worse &= ~(self.missing & ~self.missing[row]).any(axis=1)
            no_worse &= self.devices == self.devices[row]
            no_worse[row] = False
            survives[row] = not (no_worse & survives).any()
        self.strategies = [
            x
            for x, stays in zip(self.strategies, survives, strict=True)
            if stays
        ]
        self.devices, self.missing = (
            self.devices[survives],
            self.missing[survives],
        )
        self.passes, self.sync = self.passes[survives], self.sync[survives]
        self._static, self._kept = self._static[survives], self._kept[survives]
        self._working = self._working[survives]

    def _choose_pairs(self, best: int) -> None:
        """Choose the pairs that may be chunks, and their shapes.

        The block of one does not take ``best`` or more with it alone.
        """
        scope, sets, shapes = self.scope, self.sets, self.scope.terms.shapes
        count = scope.num_micro_batches
        paired = scope.schedule.most_paired(scope.blocks, count)
        load = paired_load(self.passes, count, paired)
        self._load = load.copy()
        load += np.where(self.missing, NEVER * self.scale, 0.0)
        used = np.unique(shapes.of_pair[scope.allowed])
        busy = self._by_group(load) @ shapes.counts[used].T
        used = used[busy.min(axis=0) < best]
        pairs = scope.allowed[np.isin(shapes.of_pair[scope.allowed], used)]
        order = np.argsort(sets.pair_target[pairs], kind="stable")
        self._pairs = pairs[order]
        self._source = sets.pair_source[self._pairs]
        self._target = sets.pair_target[self._pairs]
        self._ends, self._first = np.unique(self._target, return_index=True)
        used, shape = np.unique(
            shapes.of_pair[self._pairs], return_inverse=True
        )
        self._shape = shape.reshape(-1)
        self.counts = shapes.counts[used]

    def _place(self) -> None:
        """Take sync and receives from where the blocks have to be."""
        scope, terms = self.scope, self.scope.terms
        model, width = terms.model, int(self.devices[0])
        blocks = [
            Block(scope.replicas, scope.devices, index * width, width)
            for index in range(scope.blocks)
        ]
        distinct = list(
            {model.alike(block): block for block in blocks}.values()
        )
        for row, strategy in enumerate(self.strategies):
            for kind, layer in enumerate(terms.shapes.representatives):
                if self.missing[row, kind]:
                    continue
                terms_of = [
                    model.layer_terms(
                        layer, strategy, terms.micro_batch, block
                    )
                    for block in distinct
                ]
                self.sync[row, kind] = min(
                    x.sync - x.hideable_sync for x in terms_of if x is not None
                )
        last = scope.blocks - 1
        neighbors = {(r, r + 1) for r in range(last)}
        if scope.schedule.placement == "loop" and last > 0:
            neighbors.add((last, 0))
        routes: set[Route] = set()
        for a, b in neighbors:
            routes.add(model.network.route(blocks[a], blocks[b]))
            routes.add(model.network.route(blocks[b], blocks[a]))
        if not routes:
            return
        shards = {model.shards(strategy) for strategy in self.strategies}
        times = [
            min(
                model.transfers.receive(route, sizes, terms.micro_batch, index)
                for route in routes
                for index in shards
            )
            for sizes in terms.shapes.cuts
        ]
        self.received = np.array(times, dtype=np.float64)[terms.shapes.cut_of]

    def _weigh_memory(self) -> None:
        """Set up which chunks fit alone, and what a block keeps at a time."""
        scope = self.scope
        flying = np.zeros(self.count, dtype=np.int64)
        alone = np.zeros(self.count, dtype=np.int64)
        for block in range(scope.blocks):
            seen = moments(
                scope.schedule, scope.blocks, scope.num_micro_batches, block
            )
            of_block = self.block == block
            flying[of_block] = seen[seen.sum(axis=1).argmax()]
            alone[of_block] = seen.max(axis=0)
        self._flying = flying
        lacking: Floats = self._by_group(np.where(self.missing, NEVER, 0.0))
        has = (self.counts > 0).astype(np.float64)
        never: Bools = np.greater(lacking @ has.T, 0.0)
        working_bytes = self._by_group(self._working)
        working = np.max(
            [
                np.outer(working_bytes[:, k], has[:, k])
                for k in range(has.shape[1])
            ],
            axis=0,
        )
        static = self._by_group(self._static) @ self.counts.T
        kept_bytes = self._by_group(self._kept) @ self.counts.T
        #: ``(numbers in flight, groups, shapes)``
        numbers, self._number = np.unique(alone, return_inverse=True)
        self._unfit: Bools = np.array(
            [
                never | (static + n * kept_bytes + working > self._capacity)
                for n in numbers.tolist()
            ]
        )

    def _by_group(self, values: Floats) -> Floats:
        """Return the least over the strategies that a chunk may mix."""
        if not self._layered:
            return values
        return np.array(
            [
                values[self._group == group].min(axis=0)
                for group in range(len(self._groups))
            ]
        )

    @property
    def possible(self) -> bool:
        """Whether there are chunks that fit alone, one behind the other."""
        if not len(self._pairs):
            return False
        unfit: Bools = np.all(self._unfit, axis=1)
        fits = ~unfit[self._number]
        reached = np.zeros(self.sets.count, dtype=np.bool_)
        reached[0] = True
        for chunk in range(self.count):
            ways = reached[self._source] & fits[chunk, self._shape]
            reached = np.zeros(self.sets.count, dtype=np.bool_)
            reached[self._target[ways]] = True
        return bool(reached[-1])

    # The least plan

    def least(
        self, prices: _Prices, widths: Ints | None = None
    ) -> _RelaxedPlan:
        """Return the plan that is least under some prices.

        Parameters
        ----------
        prices
            Of what.
        widths
            Devices of every block, where these are fixed.
        """
        scope, scale = self.scope, self.scale
        mean = np.tensordot(prices.chains, self.chains.parts, 1) / scale
        sync_weights = np.zeros(scope.blocks)
        np.add.at(sync_weights, self.chains.block, prices.chains / scale)
        nu = prices.memory[self.block] / self._capacity
        layers = np.einsum("cp,skp->csk", mean, self.passes)
        layers += sync_weights[self.block, None, None] * self.sync
        layers += nu[:, None, None] * self._static
        layers += (nu * self._flying)[:, None, None] * self._kept
        share = self.devices[:, None] / scope.devices
        layers += prices.work * share * (self._load + self.sync) / scale
        together = prices.together * share / self._capacity
        layers += together * self._static
        layers += self._flying[:, None, None] * (together * self._kept)
        layers += np.where(self.missing, NEVER, 0.0)
        if self._layered:
            by_group = [
                layers[:, self._group == group]
                for group in range(len(self._groups))
            ]
            members = [
                np.flatnonzero(self._group == group)
                for group in range(len(self._groups))
            ]
            row_of = np.stack(
                [
                    rows_of_group[group_costs.argmin(axis=1)]
                    for rows_of_group, group_costs in zip(
                        members, by_group, strict=True
                    )
                ],
                axis=1,
            )
            layers = np.stack(
                [group_costs.min(axis=1) for group_costs in by_group], axis=1
            )
            devices = self._groups
        else:
            devices = self.devices
        chunks = layers @ self.counts.T
        price = prices.devices / scope.devices / scope.schedule.virtual_stages
        chunks += (price * devices)[None, :, None]
        chunks += np.where(self._unfit[self._number], NEVER, 0.0)
        if widths is not None:
            other = widths[self.block][:, None] != devices[None, :]
            chunks += np.where(other, NEVER, 0.0)[:, :, None]
        row = chunks.argmin(axis=1)
        cheapest = np.take_along_axis(chunks, row[:, None], axis=1)[:, 0]
        cuts = self._cuts(mean)
        value, pairs = self._shortest(cheapest, cuts)
        chosen = row[np.arange(self.count), self._shape[pairs]]
        if self._layered:
            rows = row_of[np.arange(self.count), chosen]
        else:
            rows = np.repeat(chosen[:, None], self.counts.shape[1], axis=1)
        paid = prices.devices + float(prices.memory.sum()) + prices.together
        # All terms are non-negative but what is paid back.
        value -= paid + SLACK * (value + paid)
        return _RelaxedPlan(value, pairs, rows, chunks, cuts, paid)

    def _cuts(self, mean: Floats) -> Floats:
        """Return what every cut in front of a chunk adds, (chunks, sets).

        The chunk behind it receives in its forward passes, the one in front
        of it in its backward passes.
        """
        there, back = receive_weights(mean)
        weight = np.zeros(self.count)
        weight[1:] = there[1:] + back[:-1]
        weight[1:][self.block[1:] == self.block[:-1]] = 0.0
        return np.outer(weight, self.received)

    def _shortest(self, chunks: Floats, cuts: Floats) -> tuple[float, Ints]:
        """Return the shortest path over (chunk, set), and its pairs."""
        reached = np.full(self.sets.count, NEVER * NEVER)
        reached[0] = 0.0
        came = np.zeros((self.count, self.sets.count), dtype=np.int64)
        for chunk in range(self.count):
            start = reached + cuts[chunk]
            through = start[self._source] + chunks[chunk, self._shape]
            best = np.minimum.reduceat(through, self._first)
            reached = np.full(self.sets.count, NEVER * NEVER)
            reached[self._ends] = best
            near = np.flatnonzero(through == reached[self._target])
            came[chunk, self._target[near]] = near
        value = float(reached[-1])
        pairs = np.zeros(self.count, dtype=np.int64)
        here = self.sets.count - 1
        for chunk in range(self.count - 1, -1, -1):
            pairs[chunk] = came[chunk, here]
            here = int(self._source[pairs[chunk]])
        return value, pairs

    def suffix(self) -> Suffix:
        """Return what chunks add under the prices of the best bound."""
        assert self.best is not None
        weights = np.zeros(len(self.chains))
        weights[: len(self.best.chains)] = self.best.chains
        relaxed = self.least(self.best._replace(chains=weights))
        cheapest = relaxed.chunks.min(axis=1)
        costs_after = np.full((self.count + 1, self.sets.count), NEVER * NEVER)
        costs_after[self.count, -1] = 0.0
        for chunk in range(self.count - 1, -1, -1):
            through = (
                cheapest[chunk, self._shape]
                + costs_after[chunk + 1][self._target]
            )
            np.minimum.at(costs_after[chunk], self._source, through)
            costs_after[chunk] += relaxed.cuts[chunk]
        shape = np.full(len(self.sets.pair_source), -1)
        shape[self._pairs] = self._shape
        return Suffix(
            scale=self.scale,
            paid=relaxed.paid,
            chunks=relaxed.chunks,
            cuts=relaxed.cuts,
            left=costs_after,
            row={x: row for row, x in enumerate(self.strategies)},
            shape=shape,
            source=self.sets.pair_source,
        )

    # What a plan says

    def times(self, plan: _RelaxedPlan) -> list[Times]:
        """Return the least passes of the chunks of a plan."""
        counts = self.counts[self._shape[plan.pairs]]
        kinds = np.arange(counts.shape[1])
        total = np.einsum("ck,ckp->cp", counts, self.passes[plan.rows, kinds])
        start = self.received[self._source[plan.pairs]]
        start[1:][self.block[1:] == self.block[:-1]] = 0.0
        there = total[:, PassComponent.FORWARD] + start
        back = total[:, PassComponent.BACKWARD] + np.append(start[1:], 0.0)
        weights = np.minimum(total[:, PassComponent.WEIGHTS], back)
        return [
            Times(*map(int, values))
            for values in zip(
                *(there, back, weights),
                np.minimum(total[:, PassComponent.FORWARD_HIDING], there),
                np.minimum(total[:, PassComponent.BACKWARD_HIDING], back),
                strict=True,
            )
        ]

    def _used(self, plan: _RelaxedPlan) -> _Used:
        """Return how long all chains of a plan are, and what it uses."""
        scope = self.scope
        counts = self.counts[self._shape[plan.pairs]]
        kinds = np.arange(counts.shape[1])

        def summed(values: Any) -> Floats:
            total_of_chunk: Floats = (counts * values[plan.rows, kinds]).sum(
                axis=1
            )
            return total_of_chunk

        total = np.einsum("ck,ckp->cp", counts, self.passes[plan.rows, kinds])
        parts = self.chains.parts
        length = np.einsum("pcx,cx->p", parts, total)
        start = self.received[self._source[plan.pairs]]
        start[1:][self.block[1:] == self.block[:-1]] = 0.0
        back = np.append(start[1:], 0.0)
        forward, backward = receive_weights(parts)
        length += forward @ start
        length += backward @ back
        sync, held = np.zeros(scope.blocks), np.zeros(scope.blocks)
        own_sync = summed(self.sync)
        own_held = summed(self._static) + self._flying * summed(self._kept)
        np.add.at(sync, self.block, own_sync)
        np.add.at(held, self.block, own_held)
        length += sync[self.chains.block]
        devices = self.devices[plan.rows[:, 0]] / scope.devices
        work = float(devices @ (summed(self._load) + own_sync))
        return _Used(
            np.append(length, work) / self.scale,
            float(devices.sum()) / scope.schedule.virtual_stages - 1.0,
            held / self._capacity - 1.0,
            float(devices @ own_held) / self._capacity - 1.0,
        )

    def _begin(self) -> None:
        """Take the better of two weights to begin with, and a price of bytes.

        Chains through all blocks alike, or the work of all devices.
        """
        uniform = self._prices
        work = uniform._replace(chains=0.0 * uniform.chains, work=1.0 - 1e-12)
        if len({*self.devices.tolist()}) > 1:
            priced = [work._replace(together=x) for x in FIRST_PRICES]
        else:
            priced = [
                uniform._replace(memory=np.full(self.scope.blocks, x))
                for x in (0.0, 0.5 / self.scope.blocks)
            ]
        bounds = [(self.least(prices).value, prices) for prices in priced]
        value, self._prices = max(bounds, key=lambda x: x[0])
        self.value, self.best = max(value, 0.0), self._prices

    def climb(
        self,
        best: int,
        enough: int,
        deadline: Deadline,
        try_plan: Callable[[Chosen], None] | None = None,
    ) -> int:
        """Return the best bound found so far, in quanta.

        Goes on where it stopped, for :data:`ROUNDS` rounds at a time.

        Parameters
        ----------
        best
            The step time of the best plan known.
        enough
            A bound that is as good as any above it.
        deadline
            The clock.
        try_plan
            Told plans whose passes may take less than ``best``.
        """
        aim = min(best / self.scale, 2.0)
        if self.best is None:
            self._begin()
            return int(np.ceil(min(float(best), self.value * self.scale)))
        for _ in range(ROUNDS):
            if deadline.passed:
                break
            relaxed = self.least(self._prices)
            self._rounds += 1
            if relaxed.value <= self.value * (1 + 1e-4):
                self._stuck += 1
            if relaxed.value > self.value:
                self.value, self.best = relaxed.value, self._prices
            if self.value * self.scale >= enough:
                break
            if self._stuck >= PATIENCE:
                self._bold, self._stuck = self._bold / 2, 0
            if self._bold < 0.05 or self._rounds >= MAX_ROUNDS:
                self.done = True
                break
            prices = self._prices
            if self._rounds % CHAIN_EVERY == 1:
                prices = self._with_chain(relaxed, best, try_plan)
            self._prices = self._moved(relaxed, prices, self._bold, aim)
        return int(np.ceil(min(float(best), self.value * self.scale)))

    def _with_chain(
        self,
        relaxed: _RelaxedPlan,
        best: int,
        try_plan: Callable[[Chosen], None] | None,
    ) -> _Prices:
        """Add the critical chain of a plan."""
        scope, prices = self.scope, self._prices
        if isinstance(scope.schedule, AnyOrder):
            return prices
        if len(self.chains) >= scope.blocks + 2 + MAX_CHAINS:
            return prices
        times = self.times(relaxed)
        time, chain = critical_chain(
            scope.schedule, times, scope.num_micro_batches
        )
        sync = np.zeros(scope.blocks)
        counts = self.counts[self._shape[relaxed.pairs]]
        kinds = np.arange(counts.shape[1])
        np.add.at(
            sync,
            self.block,
            (counts * self.sync[relaxed.rows, kinds]).sum(axis=1),
        )
        step = time + float(sync.max())
        if try_plan is not None and step < min(best, self._tried):
            self._tried = step
            chosen = self._consistent(relaxed, prices)
            if chosen is not None:
                try_plan(chosen)
        if not self.chains.add(chain, times, int(sync.argmax())):
            return prices
        return prices._replace(chains=np.append(prices.chains, 0.0))

    def _consistent(
        self, relaxed: _RelaxedPlan, prices: _Prices
    ) -> Chosen | None:
        """Return a plan whose blocks have devices for all their chunks."""
        if self._layered:
            return None
        scope, widths = self.scope, self.devices[relaxed.rows[:, 0]]
        block_widths = np.array(
            [widths[self.block == r].min() for r in range(scope.blocks)]
        )
        if int(block_widths.sum()) > scope.devices:
            return None
        if (widths != block_widths[self.block]).any():
            relaxed = self.least(prices, block_widths)
            if relaxed.value > NEVER / 10:
                return None
        return Chosen(
            tuple(self._pairs[relaxed.pairs].tolist()),
            tuple(self.strategies[row] for row in relaxed.rows[:, 0].tolist()),
        )

    def _moved(
        self, relaxed: _RelaxedPlan, prices: _Prices, bold: float, aim: float
    ) -> _Prices:
        """Return the prices one step up the subgradient."""
        used = self._used(relaxed)
        weights = np.append(prices.chains, prices.work)
        multipliers = np.array(
            [prices.devices, *prices.memory, prices.together]
        )
        more = np.array([used.devices, *used.memory, used.together])
        up = used.lengths - used.lengths.mean()
        # Where nothing can become cheaper or lighter, nothing moves.
        more = np.where((more < 0) & (multipliers == 0), 0.0, more)
        up = np.where(
            (used.lengths < used.lengths @ weights) & (weights == 0), 0.0, up
        )
        norm = float((up**2).sum() + (more**2).sum())
        if norm == 0.0:
            return prices
        step = bold * max(aim - relaxed.value, 1e-3) / norm
        weights = _on_simplex(weights + step * up)
        multipliers = np.maximum(multipliers + step * more, 0.0)
        return _Prices(
            weights[:-1],
            float(weights[-1]),
            float(multipliers[0]),
            multipliers[1:-1],
            float(multipliers[-1]),
        )


def _on_simplex(weights: Floats) -> Floats:
    """Return the closest weights that are not negative and add up to 1.

    Rounding leaves them a little less than 1 together: no bound is above
    what it would be.
    """
    order = np.sort(weights)[::-1]
    over = (np.cumsum(order) - 1.0) / np.arange(1, len(order) + 1)
    last = np.flatnonzero(order > over)[-1]
    projected: Floats = np.maximum(weights - over[last], 0.0)
    projected /= projected.sum() * (1 + 1e-12)
    return projected
