"""Sub-problems and their constants, which all formulations share.

A sub-problem fixes how stages run, the replicas ``R``, the micro-batch ``B`` and the
number of stages ``S``. Stages are *slots* counted from the end of the pipeline: slot 1
is the last stage, slot ``S`` the first, so that a slot's micro-batches in flight are a
constant. Symbols and equations: ``formulations/README.md``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property
from itertools import starmap
from typing import ClassVar, NamedTuple

from formulations.graph import GraphFacts
from nest.cost.model import CostModel
from nest.cost.schedules import PassTimes, Times, paced
from nest.cost.schedules.base import Weights, weighted
from nest.cost.space import (
    PLAIN,
    BatchSplit,
    Family,
    Runtime,
    batch_splits,
    families,
    is_single,
)
from nest.ir.plan import Plan, Strategy
from nest.ir.problem import Problem
from nest.solvers.base import Deadline
from nest.topology.protocol import Block, Link, Route
from nest.units import MAX_TOTAL, ceil_div, decimal

#: Sides of a slot: it receives activations of the slot before it, and
#: gradients of the one after it. The boundary of side ``d`` of slot ``s`` is
#: the one before slot ``s - d``.
FORWARD, BACKWARD = SIDES = (0, 1)


@dataclass(frozen=True)
class EngineResult:
    """The result of an engine for some of the plans."""

    #: Whether the engine proved that no plan is faster than ``plan``, or than the
    #: cutoff if there is no plan.
    finished: bool
    #: The best plan of the engine.
    plan: Plan | None = None
    #: Step time of the plan by the model. It may be too long if the engine did not
    #: finish.
    claimed_quanta: float | None = None
    #: Lower bound on plans that are faster than the cutoff; ``None`` if unknown.
    bound: int | None = None


class Choice(NamedTuple):
    """One way to run a layer in a slot, and what it adds there."""

    #: Quanta per micro-batch, for each pace of the schedule.
    loads: tuple[int, ...]
    #: The part of the backward pass that hides the receive of gradients, under rules
    #: where it does; not part of ``loads``.
    recomputed: int
    #: Quanta per step.
    sync: int
    #: Weights, gradients, optimizer state and all kept activations.
    resident_bytes: int
    #: Needed while the layer runs.
    working_bytes: int
    #: Position of its layout in :attr:`Profile.layouts`.
    layout: int = 0
    #: ``None`` where all layers of a slot have that of its option.
    strategy: Strategy | None = None
    #: Where gradient sync hides behind backward passes: what of ``sync`` may, the most
    #: that it adds to what hides, and the layer's backward pass; else 0.
    hideable: int = 0
    hidden: int = 0
    backward: int = 0
    #: What the layer adds to the step where these passes are too short: once its loads
    #: and its sync, less its backward pass; else 0.
    late: int = 0

    @property
    def load(self) -> int:
        """The most that the layer adds to a load, whatever it means."""
        return sum(self.loads) + self.recomputed

    @property
    def costs(self) -> tuple[int, ...]:
        """Quanta and bytes: no plan is slower or larger if none is larger.

        What hides of a slot's sync is limited by how much of it may, and by
        the backward pass, whatever the other layers are.
        """
        return (*self.loads, *self[1:5], -self.hideable, self.late)


class Profile(NamedTuple):
    """What options that cost the same have in common."""

    #: Of the block.
    devices: int
    #: For each layer kind; one at most where all layers of a slot share a strategy,
    #: none if the kind is not available or does not fit memory even alone.
    choices: tuple[tuple[Choice, ...], ...]
    #: Memory of each device.
    capacity_bytes: int
    #: Whether some set of layers exceeds it; if not, the byte terms are 0.
    tight: bool
    #: The ``(dp, tp, cp)`` that layers can have, as strategies; empty where all layers
    #: of a slot share a strategy.
    layouts: tuple[Strategy, ...] = ()
    #: For each layout and each of ``GraphFacts.sizes``, quanta that it takes to
    #: redistribute a tensor to that layout; empty unless there are several.
    moves: tuple[tuple[int, ...], ...] = ()
    #: For each layout of the slot's first layer (the only one where they share it) and
    #: each of the sizes, bytes that a tensor which passes takes; empty where that
    #: cannot exceed the memory.
    passing: tuple[tuple[int, ...], ...] = ()


#: What receiving takes: the largest of some rows of quanta. Each row is the
#: message and then one time per entry of ``GraphFacts.sizes``; under rules
#: that price every edge, the message is 0 and there is one time per edge.
Receive = tuple[tuple[int, tuple[int, ...]], ...]


class Option(NamedTuple):
    """A place for a slot, and the strategy if its layers share one.

    ``profile`` and ``receives`` index the slot's tables; the latter, for each
    side, for every layout that the receiving layer can have, or not at all if
    nothing is received there, once for each of the sizes :attr:`Slot.beside`
    that the slot next to it can have; ``None`` where such a one has no room.
    """

    offset: int
    devices: int
    strategy: Strategy | None
    profile: int
    receives: tuple[tuple[tuple[int | None, ...], ...], ...]


@dataclass(frozen=True)
class Slot:
    """Constants of one slot."""

    #: ``s``, counted from the end of the pipeline.
    number: int
    #: What it can choose from, see :class:`Option`.
    options: tuple[Option, ...]
    #: Distinct cost profiles.
    profiles: tuple[Profile, ...]
    #: Distinct receives of either side; none forward in the first stage and backward in
    #: the last one.
    receives: tuple[tuple[Receive, ...], ...]
    #: Devices that the slots next to it can have.
    beside: tuple[int, ...] = ()
    #: For each edge, bytes kept if it enters the slot, under rules that keep only such
    #: tensors; else empty.
    entering_bytes: tuple[int, ...] = ()
    #: Part of ``Y`` that no layer accounts for.
    sync_constant: int = 0

    @property
    def sides(self) -> list[int]:
        """The sides on which it receives."""
        return [side for side in SIDES if self.receives[side]]

    def varies(self, side: int) -> bool:
        """Whether a receive depends on the size of the slot beside."""
        return any(
            len(set(table)) > 1
            for option in self.options
            for table in option.receives[side]
        )

    def chooses(self, side: int) -> bool:
        """Whether a receive depends on more than the slot's own option."""
        return self.mixed or self.varies(side)

    @property
    def mixed(self) -> bool:
        """Whether its layers can have different layouts."""
        return any(len(profile.layouts) > 1 for profile in self.profiles)


@dataclass(frozen=True)
class SubProblem:
    """One ``(R, B, S)``, and what its stages may mix."""

    #: ``R``, ``B`` and ``S``.
    split: BatchSplit
    num_stages: int
    #: That of all stages, if they share it.
    strategy: Strategy | None
    #: A proven lower bound on the step time of its plans.
    bound: int
    #: The strategies that its slots choose from.
    group: tuple[Strategy, ...]
    #: How its plans run their stages.
    runtime: Runtime = PLAIN

    def __str__(self) -> str:
        settings = [
            f"R={self.split.replicas} B={self.split.micro_batch} S={self.num_stages}"
        ]
        if self.strategy is not None:
            settings.append(str(self.strategy))
        if self.runtime.overlap:
            settings.append(f"overlap={'+'.join(sorted(self.runtime.overlap))}")
        if self.runtime.distributed_optimizer:
            settings.append("distributed_optimizer")
        return " ".join(settings)


class Start(NamedTuple):
    """A known plan in the terms of a sub-problem: what an engine is hinted."""

    #: Slot and strategy of each layer.
    slot_of: dict[int, int]
    strategy_of: dict[int, Strategy]
    #: Offset and devices of each slot.
    places: dict[int, tuple[int, int]]


class Place(NamedTuple):
    """A place, and strategies that layers choose from there.

    They are several, all of the block's size, only where every layer has one
    of its own.
    """

    offset: int
    strategies: tuple[Strategy, ...]
    profile: Profile


class Minima:
    """The least that the layers of each kind add, over some profiles.

    ``members`` are the layers of each kind, and ``profiles`` what any slot may have;
    ``once`` and ``rounds`` say how often each pace of every slot, and the largest,
    counts.
    """

    def __init__(
        self,
        members: tuple[tuple[int, ...], ...],
        profiles: list[Profile],
        once: Weights,
        rounds: Weights,
    ) -> None:
        self._members, self._rounds = members, rounds
        self._by_kind = [
            [(c, p.devices) for p in profiles for c in p.choices[kind]]
            for kind in range(len(members))
        ]
        #: Per choice of a kind: what it adds once, what waits for it, and its devices.
        self._costs = [
            [
                (
                    weighted(once, choice.loads) + choice.recomputed,
                    weighted(rounds, choice.loads) + choice.recomputed,
                    devices,
                )
                for choice, devices in entries
            ]
            for entries in self._by_kind
        ]

    @property
    def complete(self) -> bool:
        """Whether every layer can be somewhere."""
        return all(self._by_kind)

    def total(self, cost: Callable[[int, int, int], int]) -> int:
        """Return ``Σ_l min cost(once, wait, devices)``."""
        return sum(
            len(members) * min(starmap(cost, entries))
            for members, entries in zip(self._members, self._costs, strict=True)
        )

    @cached_property
    def once(self) -> int:
        """What layers add once, together."""
        return self.total(lambda once, wait, devices: once)

    @cached_property
    def syncs(self) -> list[int]:
        """``min Y`` of each kind, with as much of it hidden as can be."""
        return [min(c.sync - c.hidden for c, _ in found) for found in self._by_kind]

    @cached_property
    def wait(self) -> int:
        """All wait so long for the slowest layers alone."""
        together: int = max(min(w for _, w, _ in e) for e in self._costs)
        apart = [
            max(min(c.loads[p] for c, _ in e) for e in self._by_kind)
            for p in range(len(self._rounds))
        ]
        wait: int = weighted(self._rounds, apart)
        return max(together, wait)


class Instance:
    """A problem taken apart: graph facts, sub-problems and their slots.

    The deadline is checked all along: any method may raise ``OutOfTimeError``.
    """

    #: Whether the rules are those of NEST's artifact, see
    #: :mod:`formulations.nest_artifact`.
    artifact: ClassVar[bool] = False

    def __init__(self, problem: Problem, model: CostModel, deadline: Deadline) -> None:
        self.problem = problem
        self.model = model
        self.deadline = deadline
        self.graph = GraphFacts(model)
        self.per_layer = problem.job.granularity == "layer"
        self.schedule = paced(problem.job.schedule)
        self.runtime = model.runtime
        #: Whether gradient sync hides behind backward passes, and how much.
        self.hides = "gradients" in self.runtime.overlap
        self.fraction = problem.job.overlap.get("gradients", 0.0)
        #: Increments that take memory where they pass a stage.
        self.passing = self.graph.passing
        self.usable = cache(self._usable)
        self._known_places: dict[object, list[Place]] = {}
        self._receives: dict[tuple[Route, int, int], Receive] = {}

    # Schedules

    def paces(self, load: PassTimes) -> tuple[int, ...]:
        """Return what of a load counts for each pace of the schedule."""
        return self.schedule.paces(load)

    @property
    def once(self) -> Weights:
        """How often each pace of every slot counts."""
        return self.schedule.once

    def rounds(self, split: BatchSplit, num_stages: int) -> Weights:
        """Return how often the largest of each pace counts."""
        return self.schedule.rounds(split.num_micro_batches)

    @cached_property
    def num_paces(self) -> int:
        """Number of paces."""
        return len(self.paces(Times(0, 0)))

    @cached_property
    def counted(self) -> tuple[list[tuple[int, int]], ...]:
        """Paces for which what happens on a side counts, and how often."""
        return tuple(
            [(p, factor) for p, factor in enumerate(factors) if factor]
            for factors in map(self.paces, (Times(1, 0), Times(0, 1)))
        )

    def inflight(self, split: BatchSplit, number: int) -> int:
        """Return the micro-batches in flight in a slot."""
        return self.schedule.inflight(number, split.num_micro_batches)

    # Sub-problems

    def cases(self) -> Iterator[tuple[BatchSplit, Family]]:
        """Yield every split with every family of strategies."""
        for split in batch_splits(self.problem):
            usable = self.usable(split.micro_batch)
            for family in families(self.problem, split, usable, self.runtime):
                yield split, family

    def sub_problems(self) -> list[SubProblem]:
        """Return all sub-problems that may hold a plan, best bound first."""
        sub_problems = [
            sub_problem
            for split, family in self.cases()
            for sub_problem in self.of_case(split, family)
        ]
        return sorted(sub_problems, key=lambda p: (p.bound, p.num_stages, p.split))

    def of_case(self, split: BatchSplit, family: Family) -> Iterator[SubProblem]:
        """Yield the sub-problems of a case that may hold a plan."""
        group = family.strategies
        shared = group[0] if is_single(self.problem) else None
        for num_stages in family.stage_counts:
            self.deadline.check()
            bound = self.bound(split, num_stages, group)
            if bound is not None:
                yield SubProblem(
                    *(split, num_stages, shared, bound), *(group, self.runtime)
                )

    def _usable(self, micro_batch: int) -> list[Strategy]:
        """Return the strategies that some layer can have."""
        return [
            strategy
            for strategy in self.runtime.strategies(self.problem, micro_batch)
            if any(
                self.model.available(kind[0], strategy, micro_batch) is None
                for kind in self.graph.members
            )
        ]

    def bound(
        self, split: BatchSplit, num_stages: int, group: Sequence[Strategy]
    ) -> int | None:
        """Return a lower bound, equation (L23), or ``None`` if no plan fits.

        All slots have the same places, and the last one has the most memory for them.
        """
        smallest = min(strategy.devices for strategy in group)
        largest = split.devices - (num_stages - 1) * smallest
        profiles = {
            place.profile: None
            for place in self._slot_places(split, 1, group)
            if place.profile.devices <= largest
        }
        rounds = self.rounds(split, num_stages)
        minima = Minima(self.graph.members, list(profiles), self.once, rounds)
        if not minima.complete:
            return None
        self.deadline.check()
        received = self._least_receives(split, num_stages, group)
        paces = self.paces(Times(received, received))
        once: int = weighted(self.once, paces)
        wait: int = weighted(rounds, paces)
        stages, devices = num_stages, split.devices
        mean = minima.total(lambda once, wait, _: stages * once + wait)
        work = minima.total(lambda once, wait, n: devices * once + n * wait)
        return max(minima.syncs) + max(
            minima.once + once + minima.wait,
            ceil_div(mean + stages * once + wait, stages),
            ceil_div(work, devices) + once,
        )

    def _least_receives(
        self, split: BatchSplit, num_stages: int, group: Sequence[Strategy]
    ) -> int:
        """Return a lower bound on the receives of a plan in one direction.

        In a connected graph at least one message with the smallest tensor
        crosses every boundary.
        """
        if num_stages == 1 or not self.graph.connected:
            return 0
        shards = max(map(self.model.shards, group))
        size = self.graph.sizes[0]
        transfers = self.model.transfers
        return (num_stages - 1) * min(
            transfers.message(link)
            + transfers.tensor(link, size, split.micro_batch, shards)
            for link in self.model.network.links
        )

    # Slots of one sub-problem

    def slots(self, sub_problem: SubProblem) -> dict[int, Slot] | None:
        """Return the slots by number, or ``None`` if one has no option."""
        slots: dict[int, Slot] = {}
        for number in range(1, sub_problem.num_stages + 1):
            slot = self._slot(sub_problem, number)
            if not slot.options:
                return None
            slots[number] = slot
        return slots

    def _slot(self, sub_problem: SubProblem, number: int) -> Slot:
        split = sub_problem.split
        profiles: dict[Profile, int] = {}
        receives: tuple[dict[Receive, int], ...] = ({}, {})
        neighbor_sizes = self._beside(sub_problem)
        options = []
        for offset, chosen, profile in self._fitting(sub_problem, number):
            self.deadline.check()
            block = Block(split.replicas, split.devices, offset, profile.devices)
            tables = tuple(
                tuple(
                    self._table(sub_problem, number, block, of, side, table)
                    for of in profile.layouts or chosen
                    if number != (sub_problem.num_stages, 1)[side]
                )
                for side, table in enumerate(receives)
            )
            options.append(
                Option(
                    offset,
                    profile.devices,
                    None if self.per_layer else chosen[0],
                    profiles.setdefault(profile, len(profiles)),
                    tables,
                )
            )
        return Slot(
            number,
            tuple(options),
            tuple(profiles),
            tuple(map(tuple, receives)),
            neighbor_sizes,
            *self._extras(sub_problem, number),
        )

    def _beside(self, sub_problem: SubProblem) -> tuple[int, ...]:
        """Return the devices that slots can have, ascending."""
        return tuple(sorted({s.devices for s in sub_problem.group}))

    def _table(
        self,
        sub_problem: SubProblem,
        number: int,
        block: Block,
        strategy: Strategy,
        side: int,
        table: dict[Receive, int],
    ) -> tuple[int | None, ...]:
        """Return what a slot receives from neighbors of every size.

        Where it is the same from all that have room, so it is from others.
        """
        rows: list[int | None] = []
        for size in self._beside(sub_problem):
            sender = block.behind(size) if side == BACKWARD else block.before(size)
            end = sender.offset + size
            if sender.offset < 0 or end > sub_problem.split.devices:
                rows.append(None)
                continue
            receive = self._receive(sub_problem, number, block, strategy, side, sender)
            rows.append(table.setdefault(receive, len(table)))
        distinct = {r for r in rows if r is not None}
        return tuple([*distinct] * len(rows) if len(distinct) == 1 else rows)

    def _extras(
        self, sub_problem: SubProblem, number: int
    ) -> tuple[tuple[int, ...], int]:
        """Return ``entering_bytes`` and ``sync_constant`` of a slot."""
        return (), 0

    def _fitting(self, sub_problem: SubProblem, number: int) -> list[Place]:
        """Return the places that leave enough devices for the others."""
        split, num_stages = sub_problem.split, sub_problem.num_stages
        group = sub_problem.group
        smallest = min(strategy.devices for strategy in group)
        first = (num_stages - number) * smallest
        end = split.devices - (number - 1) * smallest
        return [
            place
            for place in self._slot_places(split, number, group)
            if place.offset >= first
            and place.offset + place.profile.devices <= end
            and (number < num_stages or place.offset == 0)
        ]

    def _slot_places(
        self, split: BatchSplit, number: int, group: Sequence[Strategy]
    ) -> list[Place]:
        """Return places with strategies that nothing else dominates.

        One dominates another one at the same place if no layer, no receive and no byte
        costs more under it: in every plan it can replace the other one.
        """
        key = (split, self.inflight(split, number), tuple(group))
        if key not in self._known_places:
            places: list[Place] = []
            by_devices: dict[int, list[Strategy]] = {}
            for strategy in group:
                by_devices.setdefault(strategy.devices, []).append(strategy)
            for devices, equals in by_devices.items():
                rivals = (
                    [tuple(equals)]
                    if self.per_layer
                    else [(strategy,) for strategy in equals]
                )
                by_cost: dict[object, list[Place]] = {}
                for offset in range(split.devices - devices + 1):
                    self.deadline.check()
                    block = Block(split.replicas, split.devices, offset, devices)
                    cost_key = (
                        self.model.network.alike(block),
                        self.problem.cluster.types_in(block.ranges()),
                    )
                    if cost_key not in by_cost:
                        by_cost[cost_key] = self._worth_a_try(
                            [
                                Place(offset, chosen, profile)
                                for chosen in rivals
                                if (
                                    profile := self._profile(
                                        split, number, chosen, block
                                    )
                                )
                            ]
                        )
                    places.extend(
                        place._replace(offset=offset) for place in by_cost[cost_key]
                    )
            self._known_places[key] = places
        return self._known_places[key]

    def _worth_a_try(self, rivals: list[Place]) -> list[Place]:
        """Return which of the same place no other one dominates.

        Of equal ones the first stays.
        """
        missing = (math.inf,) * (self.num_paces + 6)
        undominated_places = undominated(
            {
                i: (
                    -min(map(self.model.shards, chosen)),
                    *(
                        cost
                        for kind in profile.choices
                        for cost in (kind[0].costs if kind else missing)
                    ),
                )
                for i, (_, chosen, profile) in enumerate(rivals)
            }
        )
        return [rivals[i] for i in undominated_places]

    # What a place costs

    def _profile(
        self,
        split: BatchSplit,
        number: int,
        chosen: tuple[Strategy, ...],
        block: Block,
        extra_bytes: int = 0,
    ) -> Profile | None:
        """Return what a place costs whose layers choose among strategies.

        ``extra_bytes`` is what may take memory there beside them.
        """
        capacity = self.model.capacity_bytes(block)
        choices = [
            [
                (strategy, choice)
                for strategy in chosen
                if (choice := self._choice(split, number, members[0], strategy, block))
                and choice.resident_bytes + choice.working_bytes <= capacity
            ]
            for members in self.graph.members
        ]
        if not any(choices):
            return None
        passing: dict[Strategy, tuple[int, ...]] = {}
        if self.passing:
            for strategy in chosen:
                passing[_layout(strategy)] = self._passing_bytes(
                    split, number, strategy, capacity + 1
                )
        max_bytes = max(c.working_bytes for kind in choices for _, c in kind)
        max_bytes += extra_bytes + max(
            (
                sum(self.graph.increments[i].of(sizes) for i in self.passing)
                for sizes in passing.values()
            ),
            default=0,
        )
        for members, kind in zip(self.graph.members, choices, strict=True):
            max_bytes += len(members) * max(
                (choice.resident_bytes for _, choice in kind), default=0
            )
        tight = max_bytes > capacity
        if not tight:
            choices = [
                [(s, c._replace(resident_bytes=0, working_bytes=0)) for s, c in kind]
                for kind in choices
            ]
        layouts: tuple[Strategy, ...] = ()
        if self.per_layer:
            choices = [_useful(kind) for kind in choices]
            layouts = tuple(
                dict.fromkeys(_layout(s) for kind in choices for s, _ in kind)
            )
        return Profile(
            block.devices,
            tuple(
                tuple(
                    c._replace(layout=layouts.index(_layout(s)), strategy=s)
                    if layouts
                    else c
                    for s, c in kind
                )
                for kind in choices
            ),
            capacity,
            tight,
            layouts,
            self._moves(split, layouts, block),
            tuple(passing[layout] for layout in layouts or passing)
            if tight and passing
            else (),
        )

    def _choice(
        self,
        split: BatchSplit,
        number: int,
        layer: int,
        strategy: Strategy,
        block: Block,
    ) -> Choice | None:
        """Return what a layer adds; ``None`` if it is not available."""
        terms = self.model.layer_terms(layer, strategy, split.micro_batch, block)
        if terms is None:
            return None
        kept_bytes = self.inflight(split, number) * terms.kept_bytes
        choice = Choice(
            loads=self.paces(terms),
            recomputed=0,
            sync=terms.sync,
            resident_bytes=terms.static_bytes + kept_bytes,
            working_bytes=terms.working_bytes,
        )
        if not self.hides:
            return choice
        # Rounded up, so that their sum is no less than what hides of all.
        max_hidden = math.ceil(decimal(self.fraction) * terms.hideable_sync)
        once = weighted(self.once, choice.loads)
        return choice._replace(
            hideable=terms.hideable_sync,
            hidden=max_hidden,
            backward=terms.backward,
            late=once + terms.sync - terms.backward,
        )

    def _passing_bytes(
        self, split: BatchSplit, number: int, strategy: Strategy, max_bytes: int
    ) -> tuple[int, ...]:
        """Return what tensors of each size take in a slot they pass (L18)."""
        shards = self.model.shards(strategy)
        inflight = self.inflight(split, number)
        return tuple(
            min(inflight * ceil_div(size * split.micro_batch, shards), max_bytes)
            for size in self.graph.sizes
        )

    # What receiving costs

    def _moves(
        self, split: BatchSplit, layouts: tuple[Strategy, ...], block: Block
    ) -> tuple[tuple[int, ...], ...]:
        """Return what redistribution inside a block takes, see (L17).

        One message, the worst over replicas: ``α_L + X / (shards β_L)``.
        """
        if len(layouts) < 2:
            return ()
        route = self.model.network.inside(block)
        return tuple(
            tuple(
                max(message + times[i] for message, times in rows)
                for i in range(len(self.graph.sizes))
            )
            for rows in (self._rows(route, split, of) for of in layouts)
        )

    def _rows(
        self, route: Route, split: BatchSplit, strategy: Strategy
    ) -> list[tuple[int, tuple[int, ...]]]:
        """Return the quanta of a message and of each size, on each link."""
        transfers, shards = self.model.transfers, self.model.shards(strategy)

        def row(link: Link) -> tuple[int, tuple[int, ...]]:
            return transfers.message(link), tuple(
                transfers.tensor(link, size, split.micro_batch, shards)
                for size in self.graph.sizes
            )

        return sorted(map(row, route), reverse=True)

    def _receive(
        self,
        sub_problem: SubProblem,
        number: int,
        block: Block,
        strategy: Strategy,
        side: int,
        sender: Block,
    ) -> Receive:
        """Return what a slot at a block receives from one on a side."""
        route = self.model.network.route(block, sender)
        split = sub_problem.split
        key = (route, split.micro_batch, self.model.shards(strategy))
        if key not in self._receives:
            rows = self._rows(route, split, strategy)
            # Rows that no other one exceeds.
            largest = undominated(
                {
                    i: (-message, *(-time for time in times))
                    for i, (message, times) in enumerate(rows)
                }
            )
            self._receives[key] = tuple(rows[i] for i in largest)
        return self._receives[key]


class Task(NamedTuple):
    """The task of an engine: the best plan of one sub-problem."""

    #: The sub-problem and its constants.
    instance: Instance
    sub_problem: SubProblem
    slots: dict[int, Slot]
    #: Longest step time of a useful plan; ``None`` for no limit.
    cutoff: int | None = None
    #: A known plan to start from, or ``None``.
    start: Start | None = None


class Line(NamedTuple):
    """``b·x <= a·H + c``, in integers."""

    b: int
    a: int
    c: int


def hiding_line(fraction: float, max_value: int) -> Line:
    """Return a line above ``⌊φH + 0.5⌋`` for every ``H`` up to ``max_value``.

    ``φ`` is replaced by a fraction ``a/b`` so small that products stay
    integers of 61 bits; what this takes away is added to ``c``. Where ``φ``
    has few decimals nothing is.
    """
    exact = decimal(fraction)
    largest = max(1, min(2**20, MAX_TOTAL // (8 * (max_value + 1))))
    near = exact.limit_denominator(largest)
    slack = abs(exact - near) * max_value
    a, b = 2 * near.numerator, 2 * near.denominator
    return Line(b, a, math.floor(b * (slack + Fraction(1, 2))))


def _layout(strategy: Strategy) -> Strategy:
    """Return what receives and changes depend on, see ``layout``."""
    return Strategy(
        dp=strategy.dp,
        tp=strategy.tp,
        cp=strategy.cp,
        sequence_parallel=strategy.sequence_parallel,
    )


def _useful(choices: list[tuple[Strategy, Choice]]) -> list[tuple[Strategy, Choice]]:
    """Return the choices that no other one of the same layout dominates."""
    groups: dict[Strategy, dict[int, tuple[float, ...]]] = {}
    for index, (strategy, choice) in enumerate(choices):
        groups.setdefault(_layout(strategy), {})[index] = choice.costs
    indices = [i for group in groups.values() for i in undominated(group)]
    return [choices[i] for i in sorted(indices)]


def undominated(vectors: dict[int, tuple[float, ...]]) -> list[int]:
    """Return the keys of vectors that no other one dominates.

    Of equal ones the first stays.
    """
    keys: list[int] = []
    for index, vector in vectors.items():
        if any(_dominates(vectors[other], vector) for other in keys):
            continue
        keys = [other for other in keys if not _dominates(vector, vectors[other])]
        keys.append(index)
    return keys


def _dominates(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True))
