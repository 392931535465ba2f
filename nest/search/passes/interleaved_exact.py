"""Plans timed pass by pass: bounds on all of them, and proofs of some.

Interleaved 1F1B and the schedules that split backward passes. Every block ``r`` runs
all micro-batches through its chunks, so that ``T >= L_r + Y_r`` with its load over the
step and its sync. Weighted with the devices of the blocks, ``P T >= Σ_r n_r (L_r +
Y_r)``: each layer adds ``n (M τ - h e + Y)`` of its strategy at least, on the place
that is cheapest for it, ``e`` what hides in a pair of passes and ``h`` how many of them
there are at most. Where all layers share one strategy some block has ``⌈c/S⌉`` of the
``c`` layers of a kind. Receives are left out.

A *case* is ``(R, B)``, a runtime, ``v`` and the strategies that chunks may
mix. The cases whose bound is least have it raised, for all numbers of blocks
(:mod:`nest.search.passes.batch_bounds`). Then chunks are chosen in pipeline order,
for as long as that takes few steps; the caller prices every plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from nest.cost.model import Block, CostModel
from nest.cost.schedules import AnyOrder, Schedule, schedule_of
from nest.cost.space import (
    PLAIN,
    BatchSplit,
    Family,
    families,
    repeated_kinds,
    runtimes,
    timed_by_passes,
)
from nest.ir.job import FIXED_CHUNKS, Job
from nest.ir.plan import Plan, Stage, Strategy
from nest.search.passes.batch_bounds import (
    BatchBound,
    RisingBound,
    layer_choices,
    least_sync,
)
from nest.search.stages.closed_sets import ClosedSets
from nest.search.stages.options import (
    INFINITE,
    BatchTerms,
    Ints,
    PassComponent,
    StageShapes,
    batch_terms,
    paired_load,
)
from nest.solvers.base import Deadline
from nest.units import ceil_div

#: Cases with more plans than that, in powers of 10, are bounded only.
MAX_MAGNITUDE = 12.0

#: Cases with no more than that are tried without raising their bound first.
FEW = 1.5

#: So many chunks are tried in all cases, at most.
MAX_STEPS = 200_000

#: A plan counts as so many of them.
STEPS_OF_PLAN = 40


@dataclass(frozen=True)
class BoundedCase:
    """Plans of one kind, and bounds on their step time.

    Attributes
    ----------
    terms, split
        Cost terms under a runtime, and ``(R, B)``.
    schedule, virtual
        The schedule, and ``v``.
    family
        Strategies that chunks may mix, and allowed numbers of blocks.
    bounds
        On ``T``, in quanta, by number of blocks.
    least
        ``n (L + Y)`` of every kind of layer at least.
    """

    terms: BatchTerms
    split: BatchSplit
    schedule: Schedule
    family: Family
    bounds: tuple[int, ...]
    least: Ints

    @property
    def virtual(self) -> int:
        """Chunks per block."""
        return self.schedule.virtual_stages

    @property
    def bound(self) -> int:
        """The least of the bounds."""
        return min(self.bounds)

    @property
    def num_paired(self) -> int:
        """How many passes may run in pairs, at most."""
        return self.schedule.most_paired(
            self.family.stage_counts[0], self.split.num_micro_batches
        )

    @property
    def batch(self) -> tuple[object, ...]:
        """What a bound on all numbers of blocks depends on."""
        runtime, strategies = self.terms.model.runtime, self.family.strategies
        return runtime, self.split, strategies, self.num_paired

    def rising_bound(self, max_blocks: int | None = None) -> RisingBound:
        """Return a bound on its plans in all orders and cuts.

        Of so many blocks at most, if that is known. Where passes run in pairs, no
        order of others says what they take.
        """
        strategies = self.family.strategies

        def bound(sync: Ints | None = None) -> BatchBound:
            return BatchBound(
                layer_choices(
                    self.terms, self.split, strategies, self.num_paired, sync
                ),
                self.terms.shapes.kind_counts[-1],
                self.split.devices,
                self.split.num_micro_batches,
                ordered=self.num_paired == 0,
                max_blocks=max_blocks,
            )

        def closer() -> BatchBound | None:
            """Return the bound with the communication of syncs."""
            sync = least_sync(self.terms, self.split, strategies)
            return None if sync is None else bound(sync)

        return RisingBound(bound(), self.bound, closer)


def cases(
    model: CostModel, sets: ClosedSets, deadline: Deadline
) -> Iterator[BoundedCase | None]:
    """Yield every case that may have a plan; ``None`` once time is up."""
    problem = model.problem
    shapes = StageShapes(model, sets)
    for runtime in runtimes(problem):
        virtual = runtime.virtual_stages
        if virtual == 1 and not timed_by_passes(problem.job):
            continue
        plain = runtime._replace(virtual_stages=PLAIN.virtual_stages)
        for split, terms in batch_terms(shapes, plain):
            if deadline.passed:
                yield None
                return
            if not terms.strategies:
                continue
            for family in families(problem, split, terms.strategies, runtime):
                width = min(s.devices for s in family.strategies)
                for schedule in schedules_of(problem.job, virtual):
                    blocks = tuple(
                        count
                        for count in family.stage_counts
                        if (count > 1 or virtual == 1)
                        and count * width <= split.devices
                        and schedule.why_not(count, split.num_micro_batches) is None
                    )
                    if blocks:
                        allowed = family._replace(stage_counts=blocks)
                        case = bounded(terms, split, schedule, allowed)
                        if case is not None:
                            yield case


def schedules_of(job: Job, virtual: int) -> list[Schedule]:
    """Return the schedules of plans with so many chunks per block."""
    schedules = [schedule_of(job.schedule, virtual)]
    if job.plans_order_passes and virtual == FIXED_CHUNKS["zb-v"]:
        schedules.append(AnyOrder(virtual, "v"))
    return schedules


def bounded(
    terms: BatchTerms, split: BatchSplit, schedule: Schedule, family: Family
) -> BoundedCase | None:
    """Return a case with its bounds, or ``None`` if nothing fits."""
    model, held = terms.model, terms.held
    problem, count = model.problem, split.num_micro_batches
    rows = [terms.row_of[x] for x in family.strategies]
    passes = terms.least_passes[rows]
    paired = schedule.most_paired(family.stage_counts[0], count)
    load = paired_load(passes, count, paired)
    sync = held.sync[rows] - held.hideable_sync[rows]
    bytes_held = (held.static_bytes + held.kept_bytes)[rows]
    most_bytes = problem.cluster.memory_bytes()
    missing = held.missing[rows]
    missing = missing | (bytes_held + held.working_bytes[rows] > most_bytes)
    if missing.all(axis=0).any():
        return None

    def cheapest(values: Ints) -> Ints:
        """Return the least value of every kind over its strategies."""
        lowest: Ints = np.where(missing, INFINITE, values).min(axis=0)
        return lowest

    devices = terms.devices[rows, None]
    min_costs, min_loads = cheapest(devices * (load + sync)), cheapest(load + sync)
    # Forward and back once, gradients of weights apart where they may wait.
    once = cheapest(
        passes[:, :, PassComponent.FORWARD] + passes[:, :, PassComponent.INPUTS]
    )
    counts = terms.shapes.kind_counts[-1]
    stages = np.array(family.stage_counts, dtype=np.int64)
    used = np.minimum(split.devices, stages * int(devices.max()))
    bounds = np.maximum(-(-(counts @ min_costs) // used), counts @ once)
    # Some block has so many layers of a kind, if all have one strategy.
    together = counts if len(rows) == 1 else np.ones_like(counts)
    most_layers = -(-together[:, None] // stages)
    bounds = np.maximum(bounds, (most_layers * min_loads[:, None]).max(axis=0))
    by_stages = tuple(bounds.tolist())
    return BoundedCase(terms, split, schedule, family, by_stages, min_costs)


class Chosen(NamedTuple):
    """The pairs of closed sets of a plan's chunks, and their strategies."""

    pairs: tuple[int, ...]
    strategies: tuple[Strategy, ...]


def make_plan(case: BoundedCase, chosen: Chosen, sets: ClosedSets) -> Plan:
    """Return the plan with such chunks."""
    model = case.terms.model
    layers, order = model.problem.graph.layers, case.terms.shapes.order
    return Plan(
        replicas=case.split.replicas,
        micro_batch=case.split.micro_batch,
        stages=tuple(
            Stage(
                layers=tuple(layers[i].id for i in sets.inside(pair, order)),
                devices=strategy.devices,
                strategy=strategy,
            )
            for pair, strategy in zip(*chosen, strict=True)
        ),
        virtual_stages=case.virtual,
        placement=case.schedule.placement,
        overlap=model.runtime.named_overlap,
        distributed_optimizer=model.runtime.distributed_optimizer,
    )


class _Chunk(NamedTuple):
    """A chunk: its pair of closed sets, strategy, and where it sits."""

    pair: int
    strategy: Strategy
    place: Block


@dataclass
class _Load:
    """What the chunks of a block add up to so far."""

    busy: int = 0
    sync: int = 0
    held_bytes: int = 0
    working_bytes: int = 0
    forward: int = 0

    def plus(self, other: _Load) -> _Load:
        """Return both together."""
        return _Load(
            self.busy + other.busy,
            self.sync + other.sync,
            self.held_bytes + other.held_bytes,
            max(self.working_bytes, other.working_bytes),
            self.forward + other.forward,
        )


class TooManyError(Exception):
    """A case has too many plans to try them all."""


@dataclass
class Enumeration:
    """All plans of a case that a bound does not rule out.

    Parameters
    ----------
    case, blocks, sets
        The case, the number of blocks, and the closed sets.
    best
        Only plans below this step time count.
    deadline
        The clock.
    price
        Returns the step time of a plan; infinite if it does not fit.
    magnitudes
        In how many ways so many chunks are cut, as far as that was counted before.
    steps, max_steps
        How many were tried before, and how many may be.
    """

    case: BoundedCase
    blocks: int
    sets: ClosedSets
    best: int
    deadline: Deadline
    price: Callable[[Plan], int]
    magnitudes: dict[int, float]
    steps: int = 0
    max_steps: int = field(default_factory=lambda: MAX_STEPS)
    _loads: dict[object, _Load | None] = field(default_factory=dict)

    def run(self) -> None:
        """Try them; :attr:`best` is then the least step time.

        Raises
        ------
        TooManyError
            If the case has too many plans, or time is up.
        """
        case, sets = self.case, self.sets
        if self.too_many:
            raise TooManyError
        self._chunks = self.blocks * case.virtual
        counts = case.terms.shapes.kind_counts
        rest = counts[-1] - counts
        self._rest = (rest @ case.least).tolist()
        self._size = sets.member.sum(axis=1).tolist()
        self._order = case.terms.shapes.order
        self._whole = sets.count - 1
        self._paired = case.schedule.most_paired(
            self.blocks, case.split.num_micro_batches
        )
        self._pairs = self._pairs_of(self._chunks)
        self._extend(0, [], [_Load()] * self.blocks)

    @property
    def few(self) -> bool:
        """Whether they are so few that none needs to be ruled out."""
        return self.magnitude <= FEW

    @property
    def too_many(self) -> bool:
        """Whether they are so many that none is tried."""
        problem = self.case.terms.model.problem
        return problem.job.granularity == "layer" or self.magnitude > MAX_MAGNITUDE

    @property
    def magnitude(self) -> float:
        """How many plans there are at most, in powers of 10.

        Minus infinity for none.
        """
        chunks = self.blocks * self.case.virtual
        if chunks not in self.magnitudes:
            self.magnitudes[chunks] = self._ways_to_cut(chunks)
        choices = math.log10(len(self.case.family.strategies))
        return self.magnitudes[chunks] + chunks * choices

    def _ways_to_cut(self, chunks: int) -> float:
        """Return in how many ways so many chunks are cut, in powers of 10."""
        sets, allowed = self.sets, even_pairs(self.case, chunks, self.sets)
        if not len(allowed):
            return -math.inf
        ways = np.zeros(sets.count)
        ways[0] = 1.0
        for _ in range(chunks):
            more = np.zeros(sets.count)
            np.add.at(more, sets.pair_target[allowed], ways[sets.pair_source[allowed]])
            ways = more
        return math.log10(ways[-1]) if ways[-1] else -math.inf

    def _pairs_of(self, chunks: int) -> list[list[tuple[int, int]]]:
        """Return the chunks that may begin at every set, and where they end.

        The first of all pairs and the target.
        """
        sets = self.sets
        pairs_from: list[list[tuple[int, int]]] = [[] for _ in range(sets.count)]
        for pair in even_pairs(self.case, chunks, sets).tolist():
            pairs_from[int(sets.pair_source[pair])].append(
                (pair, int(sets.pair_target[pair]))
            )
        return pairs_from

    def _extend(self, source: int, chosen: list[_Chunk], loads: list[_Load]) -> None:
        """Try every next chunk."""
        case, chunk_index = self.case, len(chosen)
        if chunk_index == self._chunks:
            self._price(chosen)
            return
        block = case.schedule.block_of(chunk_index, self.blocks)
        remaining = self._chunks - chunk_index - 1
        for pair, target in self._pairs[source]:
            if self._size[self._whole] - self._size[target] < remaining:
                continue
            if (target == self._whole) != (remaining == 0):
                continue
            for strategy in case.family.strategies:
                device_range = self._place(chosen, strategy)
                if device_range is None:
                    continue
                self._count(1)
                load = self._load(pair, strategy, device_range)
                if load is None:
                    continue
                more = [*loads]
                more[block] = loads[block].plus(load)
                if not self._hopeless(more, block, device_range, chosen, target):
                    chunk = _Chunk(pair, strategy, device_range)
                    self._extend(target, [*chosen, chunk], more)

    def _place(self, chosen: list[_Chunk], strategy: Strategy) -> Block | None:
        """Return the place of the next chunk, if it suits a strategy."""
        split, chunk_index = self.case.split, len(chosen)
        if chunk_index >= self.blocks:
            block = self.case.schedule.block_of(chunk_index, self.blocks)
            device_range = chosen[block].place
            fits = device_range.devices == strategy.devices
            return device_range if fits else None
        offset = 0
        if chosen:
            before = chosen[-1].place
            offset = before.offset + before.devices
        if offset + strategy.devices > split.devices:
            return None
        return Block(split.replicas, split.devices, offset, strategy.devices)

    def _load(self, pair: int, strategy: Strategy, device_range: Block) -> _Load | None:
        """Return what a chunk adds to its block, receives apart."""
        model = self.case.terms.model
        key = pair, strategy, model.alike(device_range)
        if key not in self._loads:
            terms = [
                model.layer_terms(
                    layer, strategy, self.case.split.micro_batch, device_range
                )
                for layer in self.sets.inside(pair, self._order)
            ]
            available = [term for term in terms if term is not None]
            count = self.case.split.num_micro_batches
            self._loads[key] = (
                None
                if len(available) < len(terms)
                else _Load(
                    sum(
                        count * (x.forward + x.backward)
                        - self._paired * (x.pairable_forward + x.pairable_backward)
                        for x in available
                    ),
                    sum(x.sync - x.hideable_sync for x in available),
                    sum(x.static_bytes + x.kept_bytes for x in available),
                    max(x.working_bytes for x in available),
                    sum(x.forward for x in available),
                )
            )
        return self._loads[key]

    def _hopeless(
        self,
        loads: list[_Load],
        block: int,
        device_range: Block,
        chosen: list[_Chunk],
        target: int,
    ) -> bool:
        """Whether no plan that begins so fits and is fast enough.

        A block begins when the first micro-batch has come through the first
        chunks of those in front of it.
        """
        case, block_load = self.case, loads[block]
        room = case.terms.model.capacity_bytes(device_range)
        if block_load.held_bytes + block_load.working_bytes > room:
            return True
        fill = sum(self._forward(chunk) for chunk in chosen[: min(block, len(chosen))])
        if fill + block_load.busy + block_load.sync >= self.best:
            return True
        devices = [x.place.devices for x in chosen[: self.blocks]]
        if len(devices) <= block:
            devices.append(device_range.devices)
        total = self._rest[target] + sum(
            num_devices * (load.busy + load.sync)
            for num_devices, load in zip(devices, loads, strict=False)
        )
        return ceil_div(int(total), case.split.devices) >= self.best

    def _forward(self, chunk: _Chunk) -> int:
        """Return the forward pass of a chunk, receives apart."""
        load = self._load(chunk.pair, chunk.strategy, chunk.place)
        assert load is not None
        return load.forward

    def _price(self, chosen: list[_Chunk]) -> None:
        """Price a plan."""
        self._count(STEPS_OF_PLAN)
        case = self.case
        plan = make_plan(
            case,
            Chosen(
                tuple(chunk.pair for chunk in chosen),
                tuple(chunk.strategy for chunk in chosen),
            ),
            self.sets,
        )
        self.best = min(self.best, self.price(plan))

    def _count(self, steps: int) -> None:
        self.steps += steps
        if self.steps > self.max_steps or self.deadline.passed:
            raise TooManyError


def even_pairs(case: BoundedCase, chunks: int, sets: ClosedSets) -> Ints:
    """Return the pairs that can be one of so many chunks."""
    shapes = case.terms.shapes
    problem = shapes.model.problem
    pairs = np.arange(len(sets.pair_source))
    if not problem.job.even_layers:
        return pairs
    layers = problem.graph.layers
    total = repeated_kinds(problem)
    columns = [
        (column, total[layers[layer].kind])
        for column, layer in enumerate(shapes.representatives)
        if layers[layer].kind in total
    ]
    has = shapes.counts[shapes.of_pair]
    even = np.ones(len(pairs), dtype=np.bool_)
    for column, num_layers in columns:
        even &= has[:, column] * chunks == num_layers
    return pairs[even]
