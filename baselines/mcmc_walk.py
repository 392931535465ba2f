"""The states, values and moves of ``mcmc``."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import NamedTuple

from baselines.common import (
    case_strategies,
    even_split,
    make_plan,
    one_strategy_per_stage,
    plainest,
    ranges,
)
from baselines.random_plans import draw_stages, drawable
from baselines.transfers import Transfers
from nest.cost.model import Block, CostModel, LayerTerms
from nest.cost.space import BatchSplit, batch_splits, stage_counts
from nest.ir.plan import Plan, Strategy

PROPAGATE = 0.25
CONTINUE = 0.75

#: How many values of stages are remembered.
MOST_KNOWN = 50_000

#: How many random plans are looked at if data parallelism is not legal.
START_DRAWS = 2000

#: Bytes of a MB.
MB = 10**6


class State(NamedTuple):
    """A point of the walk.

    ``stops`` says where the stages end in the chain, the last one at its end.
    """

    split: BatchSplit
    stops: tuple[int, ...]
    layers: tuple[Strategy, ...]

    @property
    def stages(self) -> list[tuple[int, int]]:
        """The stages, as ranges of the chain."""
        return ranges(self.stops)


#: Returns a random proposal from a generator, a state and a layer.
Move = Callable[[random.Random, State, int], State | None]


class Terms(NamedTuple):
    """What a layer adds to its stage; quanta, and bytes per device."""

    passes: int
    sync: int
    static_bytes: int
    kept_bytes: int

    @classmethod
    def of(cls, terms: LayerTerms) -> Terms:
        """Return what the walk reads of a layer's terms."""
        passes = terms.forward + terms.backward
        return cls(passes, terms.sync, terms.static_bytes, terms.kept_bytes)


class Walk:
    """States, their values and the moves between them.

    ``relative`` says whether a MB that a device lacks counts as a percent of the step,
    not as 1 ms.
    """

    relative = False

    def __init__(self, model: CostModel) -> None:
        self.problem = problem = model.problem
        self.model = model
        self.transfers = Transfers(model)
        self.order = self.transfers.order
        self.num_layers = len(self.order)
        self.alike = one_strategy_per_stage(problem)
        self.splits = batch_splits(problem)
        self.capacity = problem.cluster.memory_bytes()
        self.pool = cache(self._pool)
        self._terms: dict[object, list[Terms | None]] = {}
        self._known_stage = lru_cache(MOST_KNOWN)(self._stage)
        self._known_costs = cache(self._has_costs)
        self._weights = [0] * (self.num_layers + 1)
        for source, target, size_bytes in self.transfers.edges:
            if target == source + 1:
                self._weights[target] += size_bytes
        self.reduced = True
        self.moves: list[Move] = [
            *(self._strategy, self._split, self._merge, self._batches)
        ]

    def _pool(self, split: BatchSplit) -> list[Strategy]:
        """Return the strategies of a split that the walk may use."""
        usable = case_strategies(self.problem, split)
        return plainest(self.problem, usable) if self.reduced else usable

    def is_legal(self, state: State) -> bool:
        """Whether a state is a plan of the problem."""
        split = state.split
        if len(state.stops) not in stage_counts(self.problem, split):
            return False
        devices = 0
        for start, stop in state.stages:
            inside = set(state.layers[start:stop])
            if len({strategy.devices for strategy in inside}) > 1:
                return False
            if self.alike and len(inside) > 1:
                return False
            devices += state.layers[start].devices
        return devices <= split.devices and all(
            self._known_costs(split.micro_batch, strategy)[position]
            for position, strategy in enumerate(state.layers)
        )

    def _has_costs(self, micro_batch: int, strategy: Strategy) -> tuple[bool, ...]:
        """Return which layers of the chain can run under a strategy."""
        return tuple(
            self.model.available(layer, strategy, micro_batch) is None
            for layer in self.order
        )

    def plan(self, state: State) -> Plan:
        """Return the plan of a state."""
        return make_plan(
            self.problem,
            state.split,
            [(*span, state.layers[slice(*span)]) for span in state.stages],
        )

    def start(self, draw: random.Random) -> State | None:
        """Return data parallelism on as many devices as possible.

        With the least tensor parallelism and the fewest stages that the job allows; of
        those alike with the fewest micro-batches and replicas. Where some layer has no
        cost for it, the first legal one of a number of random plans.
        """
        starts: list[tuple[tuple[int, ...], State]] = []
        for split in self.splits:
            counts = stage_counts(self.problem, split)
            for strategy in self.pool(split) if counts else []:
                state = State(
                    split,
                    tuple(stop for _, stop in even_split(self.num_layers, counts[0])),
                    (strategy,) * self.num_layers,
                )
                rank = (
                    strategy.tp,
                    -split.replicas * strategy.dp,
                    split.num_micro_batches,
                    split.replicas,
                )
                starts.append((rank, state))
        for _, state in sorted(starts, key=lambda pair: pair[0]):
            if self.is_legal(state):
                return state
        return self._random_start(draw)

    def _random_start(self, draw: random.Random) -> State | None:
        # Some layers have no cost for the least of everything.
        self.reduced = False
        self.pool.cache_clear()
        choices = drawable(self.problem, self.model)
        for _ in range(START_DRAWS if choices else 0):
            split, usable, counts = draw.choice(choices)
            stages = draw_stages(self.problem, draw, split, usable, counts)
            if stages is None:
                continue
            state = State(
                split,
                tuple(stop for _, stop, _ in stages),
                tuple(
                    strategy
                    for start, stop, strategy in stages
                    for _ in range(start, stop)
                ),
            )
            if self.is_legal(state):
                return state
        return None

    def value(self, state: State) -> int:
        """Return the simulated time and the penalty, in quanta."""
        split = state.split
        loads: list[int] = []
        sync = lacking_bytes = offset = 0
        for index, (start, stop) in enumerate(state.stages):
            devices = state.layers[start].devices
            block = Block(split.replicas, split.devices, offset, devices)
            load, stage_sync, static_bytes, kept_bytes = self._known_stage(
                split, block, start, state.layers[start:stop]
            )
            sync = max(sync, stage_sync)
            num_kept = self.in_flight(split, len(state.stops) - index)
            need_bytes = static_bytes + num_kept * kept_bytes
            lacking_bytes += (
                max(0, need_bytes - self.capacity) * devices * split.replicas
            )
            for cut, layer in ((start, start), (stop, stop - 1)):
                if 0 < cut < self.num_layers:
                    load += self.transfers.receive(
                        *(cut, block, split.micro_batch, state.layers[layer]),
                        forward=cut == start,
                    )
            loads.append(load)
            offset += devices
        time = self.passes(loads, split.num_micro_batches) + sync
        if self.relative:
            return time + time * lacking_bytes // (100 * MB)
        # 1 ms per MB is 1 ns per byte.
        return time + lacking_bytes * 1000 // self.problem.quantum_ps

    def passes(self, loads: Sequence[int], num_micro_batches: int) -> int:
        """Return the time of all passes, given the loads of the stages.

        They run one after another.
        """
        return num_micro_batches * sum(loads)

    def in_flight(self, split: BatchSplit, stages_left: int) -> int:
        """Return the micro-batches whose activations a stage keeps.

        There is one at a time.
        """
        return 1

    def _stage(
        self, split: BatchSplit, block: Block, start: int, layers: tuple[Strategy, ...]
    ) -> Terms:
        """Return what the layers of a stage add up to, without receives."""
        passes = sync = static_bytes = kept_bytes = 0
        for position, strategy in enumerate(layers, start):
            terms = self._terms_of(split, block, strategy)[position]
            assert terms is not None
            passes += terms.passes
            sync += terms.sync
            static_bytes += terms.static_bytes
            kept_bytes += terms.kept_bytes
        if len(set(layers)) > 1:
            passes += self.transfers.changes(start, layers, block, split.micro_batch)
        return Terms(passes, sync, static_bytes, kept_bytes)

    def _terms_of(
        self, split: BatchSplit, block: Block, strategy: Strategy
    ) -> list[Terms | None]:
        key = (split, self.model.network.alike(block).offset, strategy)
        if key not in self._terms:
            of_layers = (
                self.model.layer_terms(layer, strategy, split.micro_batch, block)
                for layer in self.order
            )
            self._terms[key] = [x and Terms.of(x) for x in of_layers]
        return self._terms[key]

    def rewrite(self, draw: random.Random, state: State) -> State | None:
        """Return a random proposal, ``None`` if it breaks a rule."""
        proposal = self.propose(draw, state)
        if proposal is None or proposal == state:
            return None
        return proposal if self.is_legal(proposal) else None

    def propose(self, draw: random.Random, state: State) -> State | None:
        """Return a random proposal, which may break a rule."""
        if draw.random() < PROPAGATE:
            return self._propagate(draw, state)
        layer = draw.randrange(self.num_layers)
        return draw.choice(self.moves)(draw, state, layer)

    def _propagate(self, draw: random.Random, state: State) -> State:
        """Copy a layer's configuration along the chain."""
        layer = draw.randrange(self.num_layers)
        while True:
            neighbors = [
                (i, self._weights[max(i, layer)])
                for i in (layer - 1, layer + 1)
                if 0 <= i < self.num_layers
            ]
            if not neighbors:
                return state
            weights = [weight for _, weight in neighbors]
            if not any(weights):
                weights = [1] * len(weights)
            target = draw.choices([i for i, _ in neighbors], weights)[0]
            state = _join(state, layer, target)
            layer = target
            if draw.random() >= CONTINUE:
                return state

    def _strategy(self, draw: random.Random, state: State, layer: int) -> State | None:
        """Give a layer, or its stage, a random strategy."""
        strategy = self._draw_strategy(draw, state, layer, new=False)
        if strategy is None:
            return None
        start, stop = _stage_of(state, layer)
        if not self.alike and strategy.devices == state.layers[layer].devices:
            start, stop = layer, layer + 1
        return state._replace(layers=_with(state.layers, start, stop, strategy))

    def _split(self, draw: random.Random, state: State, layer: int) -> State | None:
        """Give the layers of a stage from this one on devices of their own."""
        start, stop = _stage_of(state, layer)
        strategy = self._draw_strategy(draw, state, layer, new=True)
        if layer == start or strategy is None:
            return None
        return state._replace(
            stops=tuple(sorted((*state.stops, layer))),
            layers=_with(state.layers, layer, stop, strategy),
        )

    def _merge(self, draw: random.Random, state: State, layer: int) -> State | None:
        """Put a stage and the next one on the devices of one of them."""
        start, stop = _stage_of(state, layer)
        if stop == self.num_layers:
            return None
        _, end = _stage_of(state, stop)
        stops = tuple(x for x in state.stops if x != stop)
        if draw.random() < 0.5:
            layers = _with(state.layers, stop, end, state.layers[stop - 1])
        else:
            layers = _with(state.layers, start, stop, state.layers[stop])
        return state._replace(stops=stops, layers=layers)

    def _batches(self, draw: random.Random, state: State, layer: int) -> State | None:
        """Draw ``(R, B)`` anew and keep ``R dp`` as far as possible."""
        split = draw.choice(self.splits)
        new: dict[Strategy, Strategy] = {}
        for old in set(state.layers):
            like = [
                strategy
                for strategy in self.pool(split)
                if shape(strategy) == shape(old)
                and split.replicas * strategy.dp <= state.split.replicas * old.dp
            ]
            if not like:
                return None
            new[old] = max(like, key=lambda strategy: strategy.dp)
        return state._replace(
            split=split, layers=tuple(new[old] for old in state.layers)
        )

    def _draw_strategy(
        self, draw: random.Random, state: State, layer: int, *, new: bool
    ) -> Strategy | None:
        """Return a random strategy for which there are devices."""
        used = sum(state.layers[start].devices for start, _ in state.stages)
        free = state.split.devices - used
        if not new:
            free += state.layers[layer].devices
        fitting = [s for s in self.pool(state.split) if s.devices <= free]
        return draw.choice(fitting) if fitting else None


def shape(strategy: Strategy) -> tuple[object, ...]:
    """Return the fields that new batches leave as they are."""
    return (strategy.tp, strategy.cp, strategy.ep, strategy.recompute)


def _stage_of(state: State, layer: int) -> tuple[int, int]:
    return next((start, stop) for start, stop in state.stages if layer < stop)


def _with(
    layers: tuple[Strategy, ...], start: int, stop: int, strategy: Strategy
) -> tuple[Strategy, ...]:
    return (*layers[:start], *(strategy,) * (stop - start), *layers[stop:])


def _join(state: State, layer: int, target: int) -> State:
    """Put a neighbor of a layer on its devices, with its strategy."""
    layers = _with(state.layers, target, target + 1, state.layers[layer])
    boundary = max(layer, target)
    if boundary not in state.stops:
        return state._replace(layers=layers)
    moved = target if target < layer else target + 1
    stops = (set(state.stops) - {boundary}) | {moved}
    # The neighbor may have been a stage of its own.
    return state._replace(stops=tuple(sorted(stops - {0})), layers=layers)
