"""``mcmc``: FlexFlow's random walk over parallelisation strategies.

Source: Jia, Zaharia and Aiken, "Beyond data and model parallelism for deep
neural networks", MLSys'19 (arXiv 1807.05358), §6; ``FFModel::mcmc_optimize``
and ``Simulator::simulate_runtime`` of github.com/flexflow/FlexFlow, as of
2021.

Search space
    Plans with one strategy per stage, or per layer where the job allows it,
    over data and tensor parallelism. FlexFlow gives every operator degrees
    and a range of devices; here neighbours on the same devices are a stage.
    Without ZeRO, recomputation, context and expert parallelism: the least
    that the job and its costs allow of each.

Search
    From data parallelism on all devices, ``budget + 1`` proposals. Every
    ``budget / 100`` of them, at least 1 and at most 1000, the walk returns to
    the best plan found. A proposal is taken if it is better, else with
    probability ``exp(-alpha d)``, ``d`` the loss in ms. Of the proposals a
    quarter propagate: a layer's configuration, devices included, is copied to
    a neighbour, from there on to the next with probability 3/4, and so on;
    neighbours are chosen in proportion to the tensors between them. The
    others give a random layer a random configuration.

Objective
    The simulated time of a step, ``M Σ (F_s + G_s) + max Y_s``: no
    pipelining, the stages of all micro-batches run one after another, then
    all gradients are synchronised and weights updated, ``Y_s`` (FlexFlow's
    bulk-synchronous mode, the default). To it come 1 ms per MB that a device
    lacks, summed over the devices.

Memory
    Weights, gradients, optimiser state and the activations of one
    micro-batch. Nothing else in flight, no working sets, no reserve.

Ignored
    That stages overlap on different micro-batches, so that a pipeline is
    only ever worth its memory. What the job's schedule keeps in flight.

Deviations
    FlexFlow has no micro-batches and no replicas: a random configuration
    draws ``(R, B)`` anew in a quarter of the cases, keeping ``R dp``, ``tp``
    as far as the batches allow; else it gives the layer's stage a random
    strategy, or (a third each) splits the stage in front of the layer, the
    second part with a random strategy, or merges it with the next one. A
    layer alone gets the strategy where every layer may have its own and the
    devices are as many. FlexFlow draws degrees that divide the batch and the
    devices of a node, and a random first device; here they are drawn from
    what has a cost, and the devices follow from the order of the stages.
    A proposal that breaks a rule is lost. The last operator may change too.
    Times come from the problem's cost table and its network model instead of
    measurements and an event simulation of every message. With steps of
    seconds ``alpha`` = 1 per ms all but forbids steps uphill; it is kept, as
    that is how FlexFlow behaves on such models.
"""

from __future__ import annotations

import math
import random
from functools import lru_cache
from typing import NamedTuple

from baselines.common import (
    Planner,
    Search,
    case_strategies,
    even_split,
    make_plan,
    one_strategy_per_stage,
    plainest,
    ranges,
    why_not_alike,
    why_not_turns,
)
from baselines.random_plans import draw_stages, drawable
from baselines.transfers import Transfers
from nest.cost.model import Block, CostModel
from nest.cost.space import BatchSplit, batch_splits, stage_counts
from nest.ir.plan import Plan, Strategy
from nest.solvers.base import Capabilities, SolverOutput
from nest.units import quanta_to_ns

BUDGET = 20_000
ALPHA = 1.0
PROPAGATE = 0.25
CONTINUE = 0.75

#: How many values of stages are remembered.
MOST_KNOWN = 50_000

#: How many random plans are looked at if data parallelism is not legal.
START_DRAWS = 2000


class State(NamedTuple):
    """A point of the walk.

    Attributes
    ----------
    split
        ``(R, B)``.
    stops
        Where the stages end in the chain, the last one at its end.
    layers
        The strategy of every layer of the chain.
    """

    split: BatchSplit
    stops: tuple[int, ...]
    layers: tuple[Strategy, ...]

    @property
    def stages(self) -> list[tuple[int, int]]:
        """The stages, as ranges of the chain."""
        return ranges(self.stops)


class Terms(NamedTuple):
    """What a layer adds to its stage; quanta, and bytes per device."""

    passes: int
    sync: int
    memory_bytes: int


class McmcSolver(Planner):
    """Walk."""

    name = "mcmc"
    capabilities = Capabilities(
        exact=False,
        anytime=True,
        method="FlexFlow (re-impl.): random walk, no pipelining",
        searches=frozenset({"granularity"}),
        objective=(
            "simulated time without pipelining, plus 1 ms per MB that a "
            "device lacks"
        ),
        overruns=True,
        remedies=("micro_batch", "recompute", "zero"),
        options={
            "budget": f"stop after this many proposals (default {BUDGET})",
            "alpha": (
                f"take a loss of d ms with probability exp(-alpha d) "
                f"(default {ALPHA:g})"
            ),
        },
    )

    refusals = (why_not_turns, why_not_alike)

    def run(self, search: Search) -> SolverOutput:
        """Return the best plan of the walk."""
        quantum_ps = search.problem.quantum_ps
        budget = search.count("budget", BUDGET)
        per_ms = _read_alpha(search) * quantum_ps / 1e9
        draw = random.Random(search.options.seed)
        walk = Walk(search.model)
        best = walk.start(draw)
        if best is None:
            return search.answer("no plan found to start from")

        def improve(state: State, value: int, message: str) -> None:
            plan = walk.plan(state)
            search.improve(plan, quanta_to_ns(value, quantum_ps), message)

        best_value = walk.value(best)
        improve(best, best_value, "data parallel")
        current, current_value = best, best_value
        span = min(1000, max(1, budget // 100))
        number = num_taken = 0
        while number <= budget and not search.out_of_time():
            if number and number % span == 0:
                current, current_value = best, best_value
            proposal = walk.rewrite(draw, current)
            number += 1
            if proposal is None:
                continue
            value = walk.value(proposal)
            if value < current_value or draw.random() < math.exp(
                -per_ms * (value - current_value)
            ):
                current, current_value = proposal, value
                num_taken += 1
            if value < best_value:
                best, best_value = proposal, value
                improve(best, best_value, f"proposal {number}")
        return search.answer(f"{num_taken} of {number} proposals taken")


class Walk:
    """States, their values and the moves between them."""

    def __init__(self, model: CostModel) -> None:
        self.problem = problem = model.problem
        self.model = model
        self.transfers = Transfers(model)
        self.order = self.transfers.order
        self.num_layers = len(self.order)
        self.alike = one_strategy_per_stage(problem)
        self.splits = batch_splits(problem)
        self.capacity = problem.cluster.memory_bytes()
        self._pools: dict[BatchSplit, list[Strategy]] = {}
        self._terms: dict[object, list[Terms | None]] = {}
        self._known_stage = lru_cache(MOST_KNOWN)(self._stage)
        self._weights = [0] * (self.num_layers + 1)
        for source, target, size_bytes in self.transfers.edges:
            if target == source + 1:
                self._weights[target] += size_bytes
        self.reduced = True

    # What may be chosen

    def pool(self, split: BatchSplit) -> list[Strategy]:
        """Return the strategies of a split that the walk may use."""
        if split not in self._pools:
            found = case_strategies(self.problem, split)
            if self.reduced:
                found = plainest(self.problem, found)
            self._pools[split] = found
        return self._pools[split]

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
            self.model.available(position, strategy, split.micro_batch) is None
            for position, strategy in zip(
                self.order, state.layers, strict=True
            )
        )

    def plan(self, state: State) -> Plan:
        """Return the plan of a state."""
        return make_plan(
            self.problem,
            state.split,
            [(*span, state.layers[slice(*span)]) for span in state.stages],
        )

    # The start

    def start(self, draw: random.Random) -> State | None:
        """Return data parallelism on as many devices as possible.

        With the least tensor parallelism and the fewest stages that the job
        allows; of those alike with the fewest micro-batches and replicas.
        Where some layer has no cost for it, the first legal one of a number
        of random plans.
        """
        found: list[tuple[tuple[int, ...], State]] = []
        for split in self.splits:
            counts = stage_counts(self.problem, split)
            for strategy in self.pool(split) if counts else []:
                state = State(
                    split,
                    tuple(
                        stop
                        for _, stop in even_split(self.num_layers, counts[0])
                    ),
                    (strategy,) * self.num_layers,
                )
                rank = (
                    strategy.tp,
                    -split.replicas * strategy.dp,
                    split.num_micro_batches,
                    split.replicas,
                )
                found.append((rank, state))
        for _, state in sorted(found, key=lambda pair: pair[0]):
            if self.is_legal(state):
                return state
        return self._random_start(draw)

    def _random_start(self, draw: random.Random) -> State | None:
        # Some layers have no cost for the least of everything.
        self.reduced = False
        self._pools.clear()
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

    # The objective

    def value(self, state: State) -> int:
        """Return the simulated time and the penalty, in quanta."""
        split = state.split
        time = sync = lacking_bytes = offset = 0
        for number, (start, stop) in enumerate(state.stages):
            devices = state.layers[start].devices
            block = Block(split.replicas, split.devices, offset, devices)
            passes, stage_sync, memory_bytes = self._known_stage(
                split, block, start, state.layers[start:stop]
            )
            time += passes
            sync = max(sync, stage_sync)
            lacking_bytes += (
                max(0, memory_bytes - self.capacity) * devices * split.replicas
            )
            if number:
                time += self.transfers.receive(
                    start,
                    block,
                    split.micro_batch,
                    state.layers[start],
                    forward=True,
                )
            if stop < self.num_layers:
                time += self.transfers.receive(
                    stop,
                    block,
                    split.micro_batch,
                    state.layers[stop - 1],
                    forward=False,
                )
            offset += devices
        # 1 ms per MB is 1 ns per byte.
        penalty = lacking_bytes * 1000 // self.problem.quantum_ps
        return split.num_micro_batches * time + sync + penalty

    def _stage(
        self,
        split: BatchSplit,
        block: Block,
        start: int,
        layers: tuple[Strategy, ...],
    ) -> tuple[int, int, int]:
        """Return (passes, sync, bytes per device) without receives."""
        passes = sync = memory_bytes = 0
        for position, strategy in enumerate(layers, start):
            terms = self._terms_of(split, block, strategy)[position]
            assert terms is not None
            passes += terms.passes
            sync += terms.sync
            memory_bytes += terms.memory_bytes
        if len(set(layers)) > 1:
            passes += self._changes(split, block, start, layers)
        return passes, sync, memory_bytes

    def _changes(
        self,
        split: BatchSplit,
        block: Block,
        start: int,
        layers: tuple[Strategy, ...],
    ) -> int:
        stop = start + len(layers)
        return sum(
            sum(
                self.transfers.change(
                    size_bytes,
                    block,
                    split.micro_batch,
                    layers[source - start],
                    layers[target - start],
                )
            )
            for source, target, size_bytes in self.transfers.edges
            if start <= source and target < stop
        )

    def _terms_of(
        self, split: BatchSplit, block: Block, strategy: Strategy
    ) -> list[Terms | None]:
        key = (split, self.model.network.alike(block).offset, strategy)
        if key not in self._terms:
            found: list[Terms | None] = []
            for position in self.order:
                terms = self.model.layer_terms(
                    position, strategy, split.micro_batch, block
                )
                found.append(
                    None
                    if terms is None
                    else Terms(
                        terms.forward + terms.backward,
                        terms.sync,
                        terms.static_bytes + terms.kept_bytes,
                    )
                )
            self._terms[key] = found
        return self._terms[key]

    # The moves

    def rewrite(self, draw: random.Random, state: State) -> State | None:
        """Return a random proposal, ``None`` if it breaks a rule."""
        proposal: State | None
        if draw.random() < PROPAGATE:
            proposal = self._propagate(draw, state)
        else:
            moves = (self._strategy, self._split, self._merge, self._batches)
            layer = draw.randrange(self.num_layers)
            proposal = draw.choice(moves)(draw, state, layer)
        if proposal is None or proposal == state:
            return None
        return proposal if self.is_legal(proposal) else None

    def _propagate(self, draw: random.Random, state: State) -> State:
        """Copy a layer's configuration along the chain."""
        layer = draw.randrange(self.num_layers)
        while True:
            neighbours = [
                (i, self._weights[max(i, layer)])
                for i in (layer - 1, layer + 1)
                if 0 <= i < self.num_layers
            ]
            if not neighbours:
                return state
            weights = [weight for _, weight in neighbours]
            if not any(weights):
                weights = [1] * len(weights)
            target = draw.choices([i for i, _ in neighbours], weights)[0]
            state = _join(state, layer, target)
            layer = target
            if draw.random() >= CONTINUE:
                return state

    def _strategy(
        self, draw: random.Random, state: State, layer: int
    ) -> State | None:
        """Give a layer, or its stage, a random strategy."""
        strategy = self._draw_strategy(draw, state, layer, new=False)
        if strategy is None:
            return None
        start, stop = _stage_of(state, layer)
        if not self.alike and strategy.devices == state.layers[layer].devices:
            start, stop = layer, layer + 1
        return state._replace(
            layers=_with(state.layers, start, stop, strategy)
        )

    def _split(
        self, draw: random.Random, state: State, layer: int
    ) -> State | None:
        """Give the layers of a stage from this one on devices of their own."""
        start, stop = _stage_of(state, layer)
        strategy = self._draw_strategy(draw, state, layer, new=True)
        if layer == start or strategy is None:
            return None
        return state._replace(
            stops=tuple(sorted((*state.stops, layer))),
            layers=_with(state.layers, layer, stop, strategy),
        )

    def _merge(
        self, draw: random.Random, state: State, layer: int
    ) -> State | None:
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

    def _batches(
        self, draw: random.Random, state: State, layer: int
    ) -> State | None:
        """Draw ``(R, B)`` anew and keep ``R dp`` as far as possible."""
        split = draw.choice(self.splits)
        new: dict[Strategy, Strategy] = {}
        for old in set(state.layers):
            like = [
                strategy
                for strategy in self.pool(split)
                if _shape(strategy) == _shape(old)
                and split.replicas * strategy.dp
                <= state.split.replicas * old.dp
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


def _shape(strategy: Strategy) -> tuple[object, ...]:
    return (strategy.tp, strategy.cp, strategy.ep, strategy.recompute)


def _stage_of(state: State, layer: int) -> tuple[int, int]:
    return next((start, stop) for start, stop in state.stages if layer < stop)


def _with(
    layers: tuple[Strategy, ...], start: int, stop: int, strategy: Strategy
) -> tuple[Strategy, ...]:
    return (*layers[:start], *(strategy,) * (stop - start), *layers[stop:])


def _join(state: State, layer: int, target: int) -> State:
    """Put a neighbour of a layer on its devices, with its strategy."""
    layers = _with(state.layers, target, target + 1, state.layers[layer])
    boundary = max(layer, target)
    if boundary not in state.stops:
        return state._replace(layers=layers)
    moved = target if target < layer else target + 1
    stops = (set(state.stops) - {boundary}) | {moved}
    # The neighbour may have been a stage of its own.
    return state._replace(stops=tuple(sorted(stops - {0})), layers=layers)


def _read_alpha(search: Search) -> float:
    try:
        alpha = float(search.options.extra.get("alpha", ALPHA))
    except ValueError:
        alpha = math.nan
    if not 0 < alpha < math.inf:
        raise search.refusal("alpha", "a number > 0")
    return alpha
