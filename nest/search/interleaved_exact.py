"""Interleaved plans: bounds on all of them, and proofs where they are few.

Every block ``r`` runs all micro-batches through its chunks, so that ``T >= M
τ_r + Y_r`` with its load ``τ_r`` and its sync. Weighted with the devices of
the blocks, ``P T >= Σ_r n_r (M τ_r + Y_r)``: each layer ``l`` adds ``n (M τ_l
+ Y_l)`` of its strategy at least, on the place that is cheapest for it. While
the first micro-batch is at its last chunk a block keeps the activations of
all its chunks, so the layers take ``n (static + kept)`` device-bytes of the
``P · capacity`` there are; the bound is the best Lagrangian one. Receives are
left out.

A *case* is ``(R, B)``, a runtime, ``v`` and the strategies that chunks may
mix. Where few plans are left, chunks are chosen in pipeline order, with the
same bound on what is chosen and what is left; ``score`` prices every plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from nest.cost.model import Block, CostModel
from nest.cost.schedules import schedule_of
from nest.cost.score import score
from nest.cost.space import (
    PLAIN,
    BatchSplit,
    Family,
    families,
    repeated_kinds,
    runtimes,
)
from nest.ir.plan import Plan, Stage, Strategy
from nest.search.closed_sets import ClosedSets
from nest.search.layer_options import stage_bounds
from nest.search.options import BatchTerms, Ints, StageShapes, of_batches
from nest.solvers.base import Deadline
from nest.units import ceil_div

#: Cases with more plans than that, in powers of 10, are bounded only.
MAX_MAGNITUDE = 8.0

#: So many chunks are tried in all cases, at most.
MAX_STEPS = 200_000

#: A plan counts as so many of them.
STEPS_OF_PLAN = 40


@dataclass
class Case:
    """Interleaved plans of one kind, and a bound on their step time.

    Attributes
    ----------
    terms, split
        Cost terms under a runtime, and ``(R, B)``.
    virtual
        ``v``.
    family
        Strategies that chunks may mix, and allowed numbers of blocks.
    bound
        On ``T``, in quanta.
    least
        ``n (M τ + Y)`` of every kind of layer at least.
    """

    terms: BatchTerms
    split: BatchSplit
    virtual: int
    family: Family
    bound: int
    least: Ints


def cases(
    model: CostModel, sets: ClosedSets, deadline: Deadline
) -> Iterator[Case | None]:
    """Yield every case that may have a plan; ``None`` once time is up."""
    problem = model.problem
    shapes = StageShapes(model, sets)
    for runtime in runtimes(problem):
        virtual = runtime.virtual_stages
        if virtual == 1:
            continue
        schedule = schedule_of(problem.job.schedule, virtual)
        plain = runtime._replace(virtual_stages=PLAIN.virtual_stages)
        for split, terms in of_batches(shapes, plain):
            if deadline.passed:
                yield None
                return
            for family in families(problem, split, terms.strategies, virtual):
                blocks = tuple(
                    count
                    for count in family.stage_counts
                    if count > 1
                    and schedule.why_not(count, split.num_micro_batches)
                    is None
                )
                if blocks:
                    allowed = family._replace(stage_counts=blocks)
                    found = bounded(terms, split, virtual, allowed)
                    if found is not None:
                        yield found


def bounded(
    terms: BatchTerms, split: BatchSplit, virtual: int, family: Family
) -> Case | None:
    """Return a case with its bound, or ``None`` if nothing fits."""
    free = terms.free
    assert free is not None
    model, schedule = terms.model, terms.schedule
    problem, count = model.problem, split.num_micro_batches
    own = {*family.strategies}
    rows = [i for i, x in enumerate(terms.strategies) if x in own]
    load = schedule.added(terms.least_anywhere)[rows]
    devices = terms.devices[rows, None]
    cost = devices * (count * load + free.sync[rows])
    most_bytes = problem.cluster.memory_bytes()
    held = (free.static_bytes + free.kept_bytes)[rows]
    memory = devices * held
    missing = free.missing[rows]
    missing = missing | (held + free.working_bytes[rows] > most_bytes)
    if missing.all(axis=0).any():
        return None
    kinds = range(cost.shape[1])
    costs = [cost[~missing[:, kind], kind] for kind in kinds]
    least = np.array([int(x.min()) for x in costs], dtype=np.int64)
    counts = terms.shapes.kind_counts[-1]
    used = min(split.devices, family.stage_counts[-1] * int(devices.max()))
    together = stage_bounds(
        costs,
        [memory[~missing[:, kind], kind] for kind in kinds],
        counts[None, :],
        np.array([used * most_bytes], dtype=np.int64),
    )
    alone = cost // devices
    heaviest = max(int(alone[~missing[:, k], k].min()) for k in kinds)
    through = sum(
        int(number) * int(load[~missing[:, k], k].min())
        for k, number in enumerate(counts.tolist())
    )
    bound = max(ceil_div(int(together[0]), used), heaviest, through)
    return Case(terms, split, virtual, family, bound, least)


class _Chosen(NamedTuple):
    """A chunk: layers, strategy, and the block that runs it."""

    layers: tuple[int, ...]
    strategy: Strategy
    block: Block


@dataclass
class _Load:
    """What the chunks of a block add up to so far."""

    busy: int = 0
    sync: int = 0
    held_bytes: int = 0
    working_bytes: int = 0

    def plus(self, other: _Load) -> _Load:
        """Return both together."""
        return _Load(
            self.busy + other.busy,
            self.sync + other.sync,
            self.held_bytes + other.held_bytes,
            max(self.working_bytes, other.working_bytes),
        )


class TooManyError(Exception):
    """A case has too many plans to try them all."""


@dataclass
class Enumeration:
    """All plans of a case that a bound does not rule out.

    Parameters
    ----------
    case, sets
        The case and the closed sets.
    best
        Only plans below this step time count.
    deadline
        The clock.
    offer
        Told every better plan with its step time.
    steps
        How many were tried before, of :data:`MAX_STEPS`.
    """

    case: Case
    sets: ClosedSets
    best: int
    deadline: Deadline
    offer: Callable[[int, Plan], None]
    steps: int = 0
    _loads: dict[object, _Load | None] = field(default_factory=dict)

    def run(self) -> None:
        """Try them; :attr:`best` is then the least step time.

        Raises
        ------
        TooManyError
            If the case has too many plans, or time is up.
        """
        case, sets = self.case, self.sets
        if case.terms.model.problem.job.granularity == "layer":
            raise TooManyError
        counts = case.terms.shapes.kind_counts
        rest = counts[-1] - counts
        self._rest = (rest @ case.least).tolist()
        self._size = sets.member.sum(axis=1).tolist()
        self._order = case.terms.shapes.order
        self._whole = sets.count - 1
        chunks = [n * case.virtual for n in case.family.stage_counts]
        if max(map(self.magnitude, chunks)) > MAX_MAGNITUDE:
            raise TooManyError
        for blocks, number in zip(
            case.family.stage_counts, chunks, strict=True
        ):
            self._blocks, self._chunks = blocks, number
            self._pairs = self._pairs_of(number)
            self._extend(0, [], [_Load()] * blocks)

    def magnitude(self, chunks: int) -> float:
        """Return how many plans so many chunks make at most, in powers of 10.

        Minus infinity for none.
        """
        sets, allowed = self.sets, even_pairs(self.case, chunks, self.sets)
        ways = np.zeros(sets.count)
        ways[0] = 1.0
        for _ in range(chunks):
            more = np.zeros(sets.count)
            np.add.at(
                more,
                sets.pair_target[allowed],
                ways[sets.pair_source[allowed]],
            )
            ways = more
        if not ways[-1]:
            return -math.inf
        choices = math.log10(len(self.case.family.strategies))
        return math.log10(ways[-1]) + chunks * choices

    def _pairs_of(self, chunks: int) -> list[list[tuple[int, int]]]:
        """Return the chunks that may begin at every set, and where they end.

        The first of all pairs and the target.
        """
        sets = self.sets
        found: list[list[tuple[int, int]]] = [[] for _ in range(sets.count)]
        for pair in even_pairs(self.case, chunks, sets).tolist():
            found[int(sets.pair_source[pair])].append(
                (pair, int(sets.pair_target[pair]))
            )
        return found

    def _extend(
        self, source: int, chosen: list[_Chosen], loads: list[_Load]
    ) -> None:
        """Try every next chunk."""
        case, number = self.case, len(chosen)
        block = number % self._blocks
        left = self._chunks - number - 1
        if number == self._chunks:
            self._price(chosen)
            return
        for pair, target in self._pairs[source]:
            if self._size[self._whole] - self._size[target] < left:
                continue
            if (target == self._whole) != (left == 0):
                continue
            for strategy in case.family.strategies:
                place = self._place(chosen, strategy)
                if place is None:
                    continue
                self._count(1)
                load = self._load(pair, strategy, place)
                if load is None:
                    continue
                more = [*loads]
                more[block] = loads[block].plus(load)
                if not self._hopeless(more, block, place, chosen, target):
                    layers = self.sets.inside(pair, self._order)
                    self._extend(
                        target,
                        [*chosen, _Chosen(tuple(layers), strategy, place)],
                        more,
                    )

    def _place(
        self, chosen: list[_Chosen], strategy: Strategy
    ) -> Block | None:
        """Return the block of the next chunk, if it suits a strategy."""
        split, number = self.case.split, len(chosen)
        if number >= self._blocks:
            block = chosen[number % self._blocks].block
            return block if block.devices == strategy.devices else None
        offset = sum(chunk.block.devices for chunk in chosen)
        if offset + strategy.devices > split.devices:
            return None
        return Block(split.replicas, split.devices, offset, strategy.devices)

    def _load(
        self, pair: int, strategy: Strategy, place: Block
    ) -> _Load | None:
        """Return what a chunk adds to its block, receives apart."""
        model = self.case.terms.model
        key = pair, strategy, model.alike(place)
        if key not in self._loads:
            terms = [
                model.layer_terms(
                    layer, strategy, self.case.split.micro_batch, place
                )
                for layer in self.sets.inside(pair, self._order)
            ]
            found = [term for term in terms if term is not None]
            self._loads[key] = (
                None
                if len(found) < len(terms)
                else _Load(
                    sum(x.forward + x.backward for x in found),
                    sum(x.sync - x.hideable_sync for x in found),
                    sum(x.static_bytes + x.kept_bytes for x in found),
                    max(x.working_bytes for x in found),
                )
            )
        return self._loads[key]

    def _hopeless(
        self,
        loads: list[_Load],
        block: int,
        place: Block,
        chosen: list[_Chosen],
        target: int,
    ) -> bool:
        """Whether no plan that begins so fits and is fast enough."""
        case = self.case
        count, own = case.split.num_micro_batches, loads[block]
        room = case.terms.model.capacity_bytes(place)
        if own.held_bytes + own.working_bytes > room:
            return True
        if count * own.busy + own.sync >= self.best:
            return True
        devices = [x.block.devices for x in chosen[: self._blocks]]
        if len(devices) <= block:
            devices.append(place.devices)
        total = self._rest[target] + sum(
            number * (count * load.busy + load.sync)
            for number, load in zip(devices, loads, strict=False)
        )
        return ceil_div(int(total), case.split.devices) >= self.best

    def _price(self, chosen: list[_Chosen]) -> None:
        """Score a plan."""
        self._count(STEPS_OF_PLAN)
        case = self.case
        model, runtime = case.terms.model, case.terms.model.runtime
        layers = model.problem.graph.layers
        plan = Plan(
            replicas=case.split.replicas,
            micro_batch=case.split.micro_batch,
            stages=tuple(
                Stage(
                    layers=tuple(layers[i].id for i in chunk.layers),
                    devices=chunk.strategy.devices,
                    strategy=chunk.strategy,
                )
                for chunk in chosen
            ),
            virtual_stages=case.virtual,
            overlap=runtime.named_overlap,
            distributed_optimizer=runtime.distributed_optimizer,
        )
        found = score(model.problem, plan, model)
        if found.feasible and found.step_quanta < self.best:
            self.best = found.step_quanta
            self.offer(self.best, plan)

    def _count(self, steps: int) -> None:
        self.steps += steps
        if self.steps > MAX_STEPS or self.deadline.passed:
            raise TooManyError


def even_pairs(case: Case, chunks: int, sets: ClosedSets) -> Ints:
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
    for column, number in columns:
        even &= has[:, column] * chunks == number
    return pairs[even]
