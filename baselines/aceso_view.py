"""Configurations of ``aceso``, and its own view of time and memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import NamedTuple

from baselines.common import (
    case_strategies,
    front_terms,
    make_plan,
    node_size,
    one_strategy_per_stage,
    ranges,
)
from baselines.downsets import least_degrees
from baselines.transfers import Transfers
from nest.cost.model import Block, CostModel, LayerTerms
from nest.cost.space import BatchSplit, batch_splits, is_uniform, stage_counts
from nest.ir.plan import RECOMPUTE, Plan, Recompute, Strategy
from nest.topology import Route

#: ``(dp, tp)`` of a layer.
Degrees = tuple[int, int]

#: A layer's strategy and its terms.
Priced = tuple[Strategy, LayerTerms]

#: How many loads of stages, and judged configurations, are remembered.
MOST_KNOWN = 200_000

#: What memory beyond the budget costs where ``(dp, tp)`` is chosen anew:
#: 10 ms per MB, in ns per byte.
PENALTY_NS_PER_BYTE = 10


class Config(NamedTuple):
    """A configuration, recomputation apart: that follows from the memory.

    ``stops`` says where the stages end in the chain, the last one at its end.
    """

    split: BatchSplit
    stops: tuple[int, ...]
    degrees: tuple[Degrees, ...]

    @property
    def num_stages(self) -> int:
        """Number of stages."""
        return len(self.stops)

    @property
    def stages(self) -> list[tuple[int, int]]:
        """The stages, as ranges of the chain."""
        return ranges(self.stops)

    def span(self, stage: int) -> tuple[int, int]:
        """Return the range of a stage."""
        return self.stops[stage - 1] if stage else 0, self.stops[stage]

    def of(self, stage: int) -> tuple[Degrees, ...]:
        """Return the degrees of the layers of a stage."""
        return self.degrees[slice(*self.span(stage))]

    def with_stage(self, stage: int, degrees: Sequence[Degrees]) -> Config:
        """Return the configuration with other degrees in a stage."""
        start, stop = self.span(stage)
        return self._replace(
            degrees=(*self.degrees[:start], *degrees, *self.degrees[stop:])
        )

    def moved(self, stage: int, step: int, count: int) -> Config:
        """Return it with layers moved to the stage behind, or in front.

        They take the degrees of the layer that they come to lie beside.

        ``step`` is 1 for the stage behind, -1 for that in front; ``count`` is the
        number of layers that ``stage`` loses.
        """
        start, stop = self.span(stage)
        stops, degrees = list(self.stops), list(self.degrees)
        if step > 0:
            stops[stage] = stop - count
            first, last, neighbor = stop - count, stop, stop
        else:
            stops[stage - 1] = start + count
            first, last, neighbor = start, start + count, start - 1
        if count:
            degrees[first:last] = [degrees[neighbor]] * count
        return self._replace(stops=tuple(stops), degrees=tuple(degrees))


class Load(NamedTuple):
    """A stage by the planner's own count."""

    #: Of its layers, recomputation chosen.
    strategies: tuple[Strategy, ...]
    #: Quanta of a micro-batch: both passes without, and what is computed again.
    passes: int
    recomputed: int
    #: Quanta of receiving activations and gradients: in a node, and from another.
    front: tuple[int, int]
    back: tuple[int, int]
    #: Per device.
    memory_bytes: int

    @property
    def devices(self) -> int:
        """Devices of the stage."""
        return self.strategies[0].devices

    @property
    def compute(self) -> int:
        """Quanta without what it receives."""
        return self.passes + self.recomputed

    @property
    def near(self) -> int:
        """Quanta as if it and its neighbors were on one node."""
        return self.compute + self.front[0] + self.back[0]

    def value(self, *, by_memory: bool) -> int:
        """Return what a bottleneck is measured by."""
        return self.memory_bytes if by_memory else self.near


class Judged(NamedTuple):
    """A configuration by the planner's own count.

    ``own`` are quanta of a micro-batch on every stage, nodes counted, ``times`` those
    of a step if the stage is what holds it up.
    """

    loads: tuple[Load, ...]
    own: tuple[int, ...]
    times: tuple[int, ...]
    fits: bool

    @property
    def step(self) -> int:
        """Quanta of a step."""
        return max(self.times)

    @property
    def memory_bytes(self) -> int:
        """What the fullest device holds."""
        return max(load.memory_bytes for load in self.loads)


class View:
    """What the planner knows of a problem; remembers what it computed."""

    def __init__(self, model: CostModel) -> None:
        self.problem = problem = model.problem
        self.model = model
        self.transfers = Transfers(model)
        self.order = self.transfers.order
        self.num_layers = len(self.order)
        #: Of a device.
        self.capacity = problem.cluster.memory_bytes()
        self.reserve = problem.cluster.reserve_bytes()
        #: Devices of a node: the largest ``tp`` and stage.
        self.node = node_size(problem)
        #: Whether all stages have one strategy, and layers of a stage may differ.
        self.alike = is_uniform(problem)
        self.per_layer = not (self.alike or one_strategy_per_stage(problem))
        self.splits = batch_splits(problem)
        self.counts = {
            split: frozenset(stage_counts(problem, split)) for split in self.splits
        }
        self._by_batch = {(x.replicas, x.micro_batch): x for x in self.splits}
        self.kinds = [problem.graph.layers[i].kind for i in self.order]
        self._routes = self._near_and_far()
        self.pool = cache(self._pool)
        self._terms: dict[object, dict[str, LayerTerms | None]] = {}
        self._ideals: dict[tuple[BatchSplit, str], int] = {}
        self.load = lru_cache(MOST_KNOWN)(self._load)
        self.judge = lru_cache(MOST_KNOWN)(self._judge)

    def _near_and_far(self) -> tuple[Route, Route]:
        """Return how single devices send inside a node and to the next."""
        devices = self.problem.cluster.num_devices
        route = self.model.network.route
        first, second, other = (
            Block(1, devices, min(offset, devices - 1), 1)
            for offset in (0, 1, self.node)
        )
        return route(second, first), route(other, first)

    def _pool(self, split: BatchSplit) -> dict[Degrees, list[Strategy]]:
        """Return the strategies of a split by degrees.

        Those of the same degrees by rising recomputation.
        """
        return {
            (group[0].dp, group[0].tp): sorted(
                group, key=lambda s: RECOMPUTE.index(s.recompute)
            )
            for group in least_degrees(
                case_strategies(self.problem, split),
                key=lambda s: (s.tp, s.dp),
                rest=lambda s: (s.cp, s.ep, s.zero),
            )
            if group[0].tp <= self.node
        }

    def degrees(self, micro_batch: int) -> set[Degrees]:
        """Return the degrees of all splits with a micro-batch."""
        splits = [split for split in self.splits if split.micro_batch == micro_batch]
        return set().union(*map(self.pool, splits))

    def devices(self, split: BatchSplit, degrees: Degrees) -> int:
        """Return the devices of a stage."""
        return self.pool(split)[degrees][0].devices

    def stage_devices(self, config: Config, number: int) -> int:
        """Return the devices of a stage of a configuration."""
        return self.devices(config.split, config.of(number)[0])

    def split(self, replicas: int, micro_batch: int) -> BatchSplit | None:
        """Return a split, ``None`` if it is not legal."""
        return self._by_batch.get((replicas, micro_batch))

    def widest(
        self, micro_batch: int, num_stages: int, degrees: Degrees
    ) -> BatchSplit | None:
        """Return the split with most replicas of stages that are alike."""
        for split in reversed(self.splits):
            pool = self.pool(split)
            if (
                split.micro_batch == micro_batch
                and num_stages in self.counts[split]
                and degrees in pool
                and num_stages * self.devices(split, degrees) <= split.devices
            ):
                return split
        return None

    def terms(
        self, split: BatchSplit, position: int, strategy: Strategy
    ) -> LayerTerms | None:
        """Return the terms of a layer of the chain, wherever it sits."""
        by_layer = self._terms.setdefault((split, strategy), {})
        kind = self.kinds[position]
        if kind not in by_layer:
            by_layer[kind] = front_terms(
                self.model, split, self.order[position], strategy
            )
        return by_layer[kind]

    def ideal(self, split: BatchSplit, position: int) -> int:
        """Return the device-quanta of a layer's passes on the fewest devices.

        On one, where it has such a cost.
        """
        key = (split, self.kinds[position])
        if key not in self._ideals:
            times = [
                (strategy.devices, strategy.tp, terms)
                for strategies in self.pool(split).values()
                for strategy in strategies[:1]
                if (terms := self.terms(split, position, strategy))
            ]
            devices, _, terms = min(times, key=lambda x: x[:2])
            passes = terms.forward + terms.backward - terms.recomputed
            self._ideals[key] = devices * passes
        return self._ideals[key]

    def receive(
        self, split: BatchSplit, cut: int, strategy: Strategy
    ) -> tuple[int, int]:
        """Return the quanta of receiving a cut, from near and from far."""
        near, far = (
            self.model.transfers.receive(
                route,
                self.transfers.crossing[cut],
                split.micro_batch,
                self.model.shards(strategy),
            )
            for route in self._routes
        )
        return near, far

    def receive_whole(self, split: BatchSplit, cut: int) -> int:
        """Return the quanta of receiving a cut on one device, from near."""
        return self.model.transfers.receive(
            self._routes[0], self.transfers.crossing[cut], split.micro_batch, 1
        )

    def _load(
        self,
        split: BatchSplit,
        start: int,
        degrees: tuple[Degrees, ...],
        behind: int,
        recompute: Recompute | None = None,
    ) -> Load | None:
        """Return a stage; ``None`` if some layer has no cost.

        ``start`` is its first layer, ``behind`` the number of stages behind it. By
        default its memory asks for what is computed again.
        """
        ladders = []
        for position, key in enumerate(degrees, start):
            ladder = [
                (strategy, terms)
                for strategy in self.pool(split).get(key, [])
                if recompute in (None, strategy.recompute)
                and (terms := self.terms(split, position, strategy))
            ]
            if not ladder:
                return None
            ladders.append(ladder)
        choose = self._by_layer if self.per_layer else self._by_stage
        chosen = choose(split, start, behind, ladders)
        if chosen is None:
            return None
        strategies = tuple(strategy for strategy, _ in chosen)
        if len({strategy.devices for strategy in strategies}) > 1:
            return None
        recomputed = sum(terms.recomputed for _, terms in chosen)
        passes = sum(terms.forward + terms.backward for _, terms in chosen)
        return Load(
            strategies=strategies,
            passes=passes - recomputed + self._changes(split, start, strategies),
            recomputed=recomputed,
            front=self.receive(split, start, strategies[0]),
            back=self.receive(split, start + len(degrees), strategies[-1]),
            memory_bytes=self._memory_bytes(split, start, behind, chosen),
        )

    def _by_stage(
        self,
        split: BatchSplit,
        start: int,
        behind: int,
        ladders: Sequence[Sequence[Priced]],
    ) -> list[Priced] | None:
        """Compute as little again as fits, in all layers the same."""
        chosen = None
        for recompute in RECOMPUTE:
            terms = [
                next((x for x in ladder if x[0].recompute == recompute), None)
                for ladder in ladders
            ]
            each = [x for x in terms if x is not None]
            if len(each) < len(terms):
                continue
            chosen = each
            if self._memory_bytes(split, start, behind, each) <= self.capacity:
                break
        return chosen

    def _by_layer(
        self,
        split: BatchSplit,
        start: int,
        behind: int,
        ladders: Sequence[Sequence[Priced]],
    ) -> list[Priced]:
        """Compute again what frees most, kind by kind, until it fits.

        Of the last kind only as many layers as it takes.
        """
        steps = [0] * len(ladders)
        while True:
            chosen = [x[step] for x, step in zip(ladders, steps, strict=True)]
            used = self._memory_bytes(split, start, behind, chosen)
            excess = used - self.capacity
            groups: dict[tuple[str, int], list[tuple[int, int]]] = {}
            for index, (ladder, step) in enumerate(zip(ladders, steps, strict=True)):
                if step + 1 < len(ladder):
                    freed = (behind + 1) * (
                        ladder[step][1].kept_bytes - ladder[step + 1][1].kept_bytes
                    )
                    key = (self.kinds[start + index], step)
                    groups.setdefault(key, []).append((index, freed))
            sums = {
                key: sum(freed for _, freed in group) for key, group in groups.items()
            }
            best = max(sums, key=lambda key: sums[key], default=None)
            if excess <= 0 or best is None or sums[best] <= 0:
                return chosen
            total = 0
            for index, freed in groups[best]:
                if total > excess:
                    break
                steps[index] += 1
                total += freed

    def _memory_bytes(
        self, split: BatchSplit, start: int, behind: int, chosen: Sequence[Priced]
    ) -> int:
        """Return what a stage holds on a device.

        Weights, gradients, optimizer state, the activations of as many
        micro-batches as there are stages from it on, and what is reserved:
        the largest working set, and at least as much as the weights.
        """
        terms = [each for _, each in chosen]
        kept_bytes = sum(each.kept_bytes for each in terms)
        stash = kept_bytes
        if behind:
            members = [
                (self.order[position], strategy)
                for position, (strategy, _) in enumerate(chosen, start)
            ]
            stash = self.model.rules.stash_bytes(
                self.model, members, terms, split.micro_batch
            )
        working = max(each.working_bytes for each in terms) - self.reserve
        reserved = max(working, sum(each.weight_bytes for each in terms))
        static = sum(each.static_bytes for each in terms)
        return static + kept_bytes + behind * stash + reserved + self.reserve

    def _changes(
        self, split: BatchSplit, start: int, layers: tuple[Strategy, ...]
    ) -> int:
        """Return the quanta of strategy changes inside a stage."""
        if len({strategy.layout for strategy in layers}) == 1:
            return 0
        block = Block(split.replicas, split.devices, 0, layers[0].devices)
        return self.transfers.changes(start, layers, block, split.micro_batch)

    def stage(
        self,
        config: Config,
        number: int,
        *,
        dropped: int = 0,
        degrees: Sequence[Degrees] | None = None,
    ) -> Load | None:
        """Return a stage of a configuration, as it is or changed.

        It loses ``dropped`` layers at its end, or at its start if that is negative.
        """
        start, _ = config.span(number)
        layers = tuple(degrees or config.of(number))
        if dropped > 0:
            layers = layers[:-dropped]
        elif dropped < 0:
            layers = layers[-dropped:]
            start -= dropped
        behind = config.num_stages - 1 - number
        return self.load(config.split, start, layers, behind)

    def judged(self, config: Config) -> Judged:
        """Return what :meth:`judge` says of a configuration that is a plan."""
        judged = self.judge(config)
        assert judged is not None
        return judged

    def _judge(self, config: Config) -> Judged | None:
        """Return a configuration's times; ``None`` if it is no plan."""
        split = config.split
        if config.num_stages not in self.counts[split]:
            return None
        loads = self._loads(config)
        if loads is None:
            return None
        own, offset = [], 0
        for load in loads:
            end = offset + load.devices
            own.append(
                load.compute
                + load.front[offset % self.node == 0]
                + load.back[end % self.node == 0]
            )
            offset = end
        if offset > split.devices:
            return None
        slots, total = split.num_micro_batches - 1, sum(own)
        return Judged(
            loads=loads,
            own=tuple(own),
            times=tuple(slots * x + total for x in own),
            fits=all(x.memory_bytes <= self.capacity for x in loads),
        )

    def _loads(self, config: Config) -> tuple[Load, ...] | None:
        """Return the stages; if they are alike, with one recomputation."""
        chosen = None
        for recompute in RECOMPUTE if self.alike else (None,):
            found = [
                self.load(
                    config.split,
                    start,
                    config.degrees[start:stop],
                    config.num_stages - 1 - index,
                    recompute,
                )
                for index, (start, stop) in enumerate(config.stages)
            ]
            loads = tuple(load for load in found if load is not None)
            if len(loads) < len(found):
                continue
            chosen = loads
            if all(load.memory_bytes <= self.capacity for load in loads):
                break
        return chosen

    def plan(self, config: Config) -> Plan:
        """Return the plan of a configuration."""
        judged = self.judged(config)
        return make_plan(
            self.problem,
            config.split,
            [
                (*span, load.strategies)
                for span, load in zip(config.stages, judged.loads, strict=True)
            ],
        )

    def starts(self, most_stages: int) -> list[Config]:
        """Return a balanced configuration per number of stages.

        With the fewest replicas for which there is one, and with the
        smallest micro-batch; if stages are alike, with as many replicas as
        there are devices for.
        """
        counts = range(1, min(most_stages, self.num_layers) + 1)
        if self.alike:
            starts = [self._start_alike(count) for count in counts]
            return [config for config in starts if config is not None]
        for replicas in sorted({split.replicas for split in self.splits}):
            starts = [self._start(count, replicas) for count in counts]
            configs = [config for config in starts if config is not None]
            if configs:
                return configs
        return []

    def _start(self, num_stages: int, replicas: int) -> Config | None:
        share = self.problem.cluster.num_devices // replicas
        sizes = spread(share, num_stages, self.node)
        if sizes is None:
            return None
        stops = even_stops(self.num_layers, num_stages)
        for split in self.splits:
            if split.replicas != replicas:
                continue
            widest = [
                [
                    degrees
                    for degrees in sorted(
                        self.pool(split), key=lambda x: x[1], reverse=True
                    )
                    if self.devices(split, degrees) == size
                ]
                for size in sizes
            ]
            chosen: list[Degrees] = []
            for index, (start, stop) in enumerate(ranges(stops)):
                num_after = num_stages - 1 - index
                for degrees in widest[index]:
                    layers = (degrees,) * (stop - start)
                    if self.load(split, start, layers, num_after):
                        chosen += layers
                        break
            if len(chosen) == self.num_layers:
                config = Config(split, stops, tuple(chosen))
                if self.judge(config):
                    return config
        return None

    def _start_alike(self, num_stages: int) -> Config | None:
        stops = even_stops(self.num_layers, num_stages)
        for size in sorted({split.micro_batch for split in self.splits}):
            for degrees in sorted(self.degrees(size), key=lambda x: (-x[1], x[0])):
                split = self.widest(size, num_stages, degrees)
                if split is None:
                    continue
                layers = (degrees,) * self.num_layers
                config = Config(split, stops, layers)
                if self.judge(config):
                    return config
        return None


def spread(num_devices: int, num_stages: int, most: int) -> list[int] | None:
    """Return devices per stage, powers of two that add up to all.

    Stages double in turn, the first one first, as long as there are devices
    left and up to ``most``; ``None`` if that does not use up all devices.
    """
    sizes = [1] * num_stages
    grown = True
    while grown and sum(sizes) < num_devices:
        grown = False
        for index, size in enumerate(sizes):
            remaining = num_devices - sum(sizes)
            if 2 * size <= most and size <= remaining:
                sizes[index] *= 2
                grown = True
    return sizes if sum(sizes) == num_devices else None


def even_stops(num_layers: int, num_stages: int) -> tuple[int, ...]:
    """Return where stages of even length end; the last has what is left."""
    length = num_layers // num_stages
    return (*(length * i for i in range(1, num_stages)), num_layers)
