"""Plans whose chunks differ, by small moves from a plan in hand.

A move hands a layer from one chunk to another, gives some chunks another strategy of
as many devices, or splits or joins blocks. Only strategies count that no other
one of as many devices beats in work, in bytes that stay and in bytes kept. A search
makes moves in plans and in the delays of their orders at the same time: most plans are
ordered once, by the delays of the plan that they come from.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from nest.cost.schedules import AnyOrder
from nest.cost.space import breaches, runtime_of
from nest.ir.plan import Plan, Stage, Strategy
from nest.search.passes.list_orders import OrderSearch
from nest.search.passes.order_settings import Settings
from nest.search.stages.dominance import non_dominated
from nest.search.stages.options import INFINITE, PassComponent

#: How often a step changes a plan, and not its order alone; and how fast the chance
#: of a plan falls with its position among the best.
_PLAN_SHARE, _LATER_RATE = 0.7, 0.5

#: How often a move hands on a layer, and how often it hands on a layer or changes
#: strategies; the others change blocks.
_LAYER_SHARE, _STRATEGY_SHARE = 0.45, 0.9

#: Orders that a plan with other blocks gets, and plans that the search changes further.
_NEW_ORDERS, _MAX_PLANS = 8, 8


class Chunk(NamedTuple):
    """A chunk of a plan: how many layers it has, and their strategy."""

    num_layers: int
    strategy: Strategy


class PlanMoves:
    """The moves of the plans of a problem."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.problem = settings, settings.model.problem
        self._position = {
            self.problem.graph.layers[index].id: position
            for position, index in enumerate(self.problem.graph.topological_order())
        }
        self._choices: dict[object, dict[int, list[Strategy]]] = {}

    def choices(self, plan: Plan) -> dict[int, list[Strategy]]:
        """Return the strategies of every number of devices, the fastest first.

        Those that have a cost for every layer, and that no other one beats.
        """
        runtime = runtime_of(plan)._replace(virtual_stages=1)
        key = runtime, plan.replicas, plan.micro_batch
        if key not in self._choices:
            split = self.settings.splits[key[1:]]
            terms = self.settings.terms(runtime, split)
            held, passes = terms.held, terms.least_passes
            counts = terms.shapes.kind_counts[-1]
            per_pass = (
                passes[..., PassComponent.FORWARD] + passes[..., PassComponent.BACKWARD]
            )
            sync = held.sync - held.hideable_sync
            work = (split.num_micro_batches * per_pass + sync) @ counts
            columns = [work, held.static_bytes @ counts, held.kept_bytes @ counts]
            order = np.lexsort((*reversed(columns), terms.devices))
            order = order[~held.missing[order].any(axis=1)]
            rows = order[
                non_dominated(terms.devices[order], [x[order] for x in columns])
            ]
            by_devices: dict[int, list[Strategy]] = {}
            for row in rows.tolist():
                strategy = terms.strategies[row]
                by_devices.setdefault(strategy.devices, []).append(strategy)
            self._choices[key] = by_devices
        return self._choices[key]

    def is_legal(self, plan: Plan) -> bool:
        """Whether the job allows the stages of a plan, and its layers have costs.

        Moves keep devices, but a layer may get a strategy that only others have.
        """
        split = self.settings.splits[plan.replicas, plan.micro_batch]
        allowed = self.problem.job.pipeline_parallel
        if allowed is not None and plan.num_blocks not in allowed:
            return False
        if any(breaches(self.problem, plan, split.num_micro_batches)):
            return False
        index, why_not = self.settings.model.index, self.settings.model.layers.why_not
        return all(
            why_not(index[str(layer)], strategy, plan.micro_batch) is None
            for stage in plan.stages
            for layer, strategy in zip(
                stage.layers, stage.layer_strategies, strict=True
            )
        )

    def moved(self, plan: Plan, rng: random.Random) -> Plan | None:
        """Return a plan that differs by a move; ``None`` if the move has none."""
        chunks = [Chunk(len(x.layers), x.layer_strategies[0]) for x in plan.stages]
        kind = rng.random()
        if kind < _LAYER_SHARE:
            source, target = rng.choices(range(len(chunks)), k=2)
            return self._plan(plan, layer_moved(chunks, source, target))
        if kind < _STRATEGY_SHARE:
            members = _some_chunks(plan, rng)
            devices = chunks[members[0]].strategy.devices
            choices = self.choices(plan).get(devices)
            if not choices:
                return None
            return self._plan(plan, restrategied(chunks, members, rng.choice(choices)))
        blocks = [
            [chunks[chunk] for chunk in plan.chunks_of(block)]
            for block in range(plan.num_blocks)
        ]
        index = rng.randrange(len(blocks))
        change, pair = split_block, blocks[index : index + 1]
        if rng.random() < 0.5:
            change, pair = joined_blocks, blocks[index : index + 2]
        devices = sum(block[0].strategy.devices for block in pair)
        if change is split_block:
            devices = devices // 2 if devices % 2 == 0 else 0
        choices = self.choices(plan).get(devices)
        if not choices or (change is joined_blocks and len(pair) < 2):
            return None
        changed = change(blocks, index, rng.choice(choices))
        return self._plan(plan, in_order(changed, plan))

    def _plan(self, plan: Plan, chunks: Sequence[Chunk]) -> Plan | None:
        """Return a plan with other chunks; ``None`` if one is empty."""
        if any(chunk.num_layers < 1 for chunk in chunks):
            return None
        if plan.virtual_stages > 1 and len(chunks) < 2 * plan.virtual_stages:
            return None
        layers = [
            layer
            for stage in plan.stages
            for layer in sorted(stage.layers, key=self._position.__getitem__)
        ]
        stages, end = [], 0
        for num_layers, strategy in chunks:
            start, end = end, end + num_layers
            stages.append(
                Stage(
                    layers=tuple(layers[start:end]),
                    devices=strategy.devices,
                    strategy=strategy,
                )
            )
        return replace(plan, stages=tuple(stages))


def _some_chunks(plan: Plan, rng: random.Random) -> Sequence[int]:
    """Return one chunk, those of a block, or all from or up to some chunk."""
    num_chunks = len(plan.stages)
    chunk = rng.randrange(num_chunks)
    match rng.choice(("one", "one", "block", "ends")):
        case "one":
            return [chunk]
        case "block":
            return plan.chunks_of(plan.block_of(chunk))
    up_to = range(chunk + 1)
    return rng.choice((up_to, range(chunk, num_chunks)))


def layer_moved(chunks: Sequence[Chunk], source: int, target: int) -> list[Chunk]:
    """Hand a layer's worth from one chunk to another.

    The chunks between them keep their numbers of layers.
    """
    moved = list(chunks)
    for chunk, change in ((source, -1), (target, 1)):
        num_layers = moved[chunk].num_layers + change
        moved[chunk] = moved[chunk]._replace(num_layers=num_layers)
    return moved


def restrategied(
    chunks: Sequence[Chunk], members: Sequence[int], strategy: Strategy
) -> list[Chunk]:
    """Give some chunks a strategy, those that have as many devices."""
    return [
        chunk._replace(strategy=strategy)
        if index in members and chunk.strategy.devices == strategy.devices
        else chunk
        for index, chunk in enumerate(chunks)
    ]


def split_block(
    blocks: Sequence[list[Chunk]], index: int, strategy: Strategy
) -> list[list[Chunk]]:
    """Split a block into two with a strategy; the first has the odd layers."""
    halves = [
        [Chunk((chunk.num_layers + odd) // 2, strategy) for chunk in blocks[index]]
        for odd in (1, 0)
    ]
    return [*blocks[:index], *halves, *blocks[index + 1 :]]


def joined_blocks(
    blocks: Sequence[list[Chunk]], index: int, strategy: Strategy
) -> list[list[Chunk]]:
    """Join a block and the next one into one with a strategy."""
    joined = [
        Chunk(first.num_layers + second.num_layers, strategy)
        for first, second in zip(blocks[index], blocks[index + 1], strict=True)
    ]
    return [*blocks[:index], joined, *blocks[index + 2 :]]


def in_order(blocks: Sequence[list[Chunk]], plan: Plan) -> list[Chunk]:
    """Return the chunks of blocks in pipeline order, placed as in a plan."""
    placed = AnyOrder(plan.virtual_stages, plan.placement)
    chunks = {
        index: chunk
        for block, members in enumerate(blocks)
        for index, chunk in zip(
            placed.chunks_of(block, len(blocks)), members, strict=True
        )
    }
    return [chunks[index] for index in sorted(chunks)]


@dataclass(eq=False)
class OrderedPlan:
    """A plan without its order, and the search for one.

    ``extra`` is what comes behind the passes of its best order, in quanta,
    ``least_extra`` behind those of any; ``is_modeled`` whether an engine has looked
    for its best order.
    """

    plan: Plan
    search: OrderSearch
    extra: int = 0
    least_extra: int = 0
    num_orders: int = 0
    is_modeled: bool = False

    @property
    def floor(self) -> int:
        """What it takes in any order."""
        return self.search.floor + self.least_extra

    @property
    def step_quanta(self) -> int:
        """The step time with its best order."""
        best = self.search.best
        return int(INFINITE) if best is None else best.end + self.extra

    @property
    def promise(self) -> int:
        """What candidates are compared by: step time and floor."""
        return self.step_quanta + self.floor


class PlanSearch:
    """A local search over plans and their orders, which can go on later.

    Parameters
    ----------
    moves, candidate_of
        The moves; what returns the candidate of a plan that is new and fits.
    start
        The candidate to begin with; it has an order.
    seed
        Of its random numbers.

    Attributes
    ----------
    plans
        The best candidates so far, the best first.
    """

    def __init__(
        self,
        moves: PlanMoves,
        candidate_of: Callable[[Plan], OrderedPlan | None],
        start: OrderedPlan,
        seed: int = 0,
    ) -> None:
        self.moves, self.candidate_of = moves, candidate_of
        self.plans = [start]
        self._random = random.Random(seed)

    def run(self, stop: Callable[[], bool], rounds: int) -> None:
        """Make so many steps, or fewer if it is time to stop."""
        for _ in range(rounds):
            if stop():
                return
            index = int(self._random.expovariate(_LATER_RATE))
            before = self.plans[min(index, len(self.plans) - 1)]
            if before.search.done or self._random.random() < _PLAN_SHARE:
                self._vary(before, stop)
            else:
                before.search.run(stop, 1)
            self.plans.sort(key=lambda x: x.step_quanta)
            del self.plans[_MAX_PLANS:]

    def _vary(self, before: OrderedPlan, stop: Callable[[], bool]) -> None:
        """Keep a plan near another one if it is among the best."""
        plan = before.plan
        for _ in range(self._random.choice((1, 1, 2, 3))):
            plan = self.moves.moved(plan, self._random) or plan
        if not self.moves.is_legal(plan):
            return
        new = self.candidate_of(plan)
        if new is None or new.floor >= self.plans[0].step_quanta:
            return
        limit, num_orders = int(INFINITE), _NEW_ORDERS
        if len(self.plans) == _MAX_PLANS:
            limit = self.plans[-1].step_quanta
        if len(plan.stages) == len(before.plan.stages):
            new.search.begin_as(before.search)
            num_orders = 1
        new.search.run(stop, num_orders, limit - new.extra)
        if new.search.best is not None:
            self.plans.append(new)
