"""What both formulations start from: sub-problems and constants, no models.

A sub-problem fixes the replicas ``R``, the micro-batch ``B`` and the number
of stages ``S``. Stages are *slots* counted from the end of the pipeline:
slot 1 is the last stage, slot ``S`` the first, so that a slot's micro-batches
in flight are a constant. Symbols and equations: ``formulations/README.md``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from msgspec.structs import replace

from formulations.graph import GraphFacts
from nest.audits.nest_artifact.rules import artifact_rules
from nest.cost.model import Block, CostModel
from nest.cost.schedules import SCHEDULES
from nest.cost.space import Case as BatchSplit
from nest.cost.space import cases as batch_splits
from nest.cost.space import stage_counts, strategies
from nest.ir.plan import Strategy
from nest.ir.problem import Problem
from nest.solvers.base import Deadline
from nest.topology import Link, Route
from nest.units import ceil_div

#: Sides of a slot: it receives activations of the slot before it, and
#: gradients of the one after it. The boundary of side ``d`` of slot ``s`` is
#: the one before slot ``s - d``.
FORWARD, BACKWARD = SIDES = (0, 1)


def why_unsupported(problem: Problem) -> str | None:
    """Return why no formulation covers the problem's preset, or ``None``."""
    rules = CostModel(problem).rules
    if rules.round_robin:
        return (
            f"preset {rules.name!r}: data ranks that take turns are not "
            f"formulated here; use solver dp, or brute for small problems"
        )
    return None


class Choice(NamedTuple):
    """One way to run a layer in a slot, and what it adds there.

    Attributes
    ----------
    loads
        Quanta per micro-batch, for each pace of the schedule.
    recomputed
        The part of the backward pass that hides the receive of gradients;
        0 where the preset adds it, it is then part of ``loads``.
    sync
        Quanta per step.
    resident_bytes
        Weights, gradients, optimiser state and all kept activations.
    working_bytes
        Needed while the layer runs.
    layout
        Position of its ``(dp, tp, cp)`` in :attr:`Profile.layouts`.
    strategy
        ``None`` where all layers of a slot have that of its option.
    """

    loads: tuple[int, ...]
    recomputed: int
    sync: int
    resident_bytes: int
    working_bytes: int
    layout: int = 0
    strategy: Strategy | None = None

    @property
    def load(self) -> int:
        """The least that the layer adds to ``τ``."""
        return sum(self.loads) + self.recomputed

    @property
    def costs(self) -> tuple[int, ...]:
        """All that is added up, quanta and bytes."""
        return (*self.loads, *self[1:5])


class Profile(NamedTuple):
    """What options that cost the same have in common.

    Attributes
    ----------
    devices
        Of the block.
    choices
        For each layer kind; one at most where all layers of a slot share a
        strategy, none if the kind is not available or does not fit memory
        even alone.
    tight
        Whether some set of layers exceeds the memory; if not, the byte terms
        are 0.
    layouts
        The ``(dp, tp, cp)`` that layers can have, as strategies; empty where
        all layers of a slot share a strategy.
    moves
        For each layout and each of ``GraphFacts.sizes``, quanta that it
        takes to redistribute a tensor to that layout; empty unless there are
        several.
    passing
        For each layout of the slot's first layer (the only one where they
        share it) and each of the sizes, bytes that a tensor which passes
        takes; empty where that cannot exceed the memory.
    """

    devices: int
    choices: tuple[tuple[Choice, ...], ...]
    tight: bool
    layouts: tuple[Strategy, ...] = ()
    moves: tuple[tuple[int, ...], ...] = ()
    passing: tuple[tuple[int, ...], ...] = ()


class Receive(NamedTuple):
    """What receiving takes: the largest of some rows of quanta.

    Each row is the message and then one time per entry of
    ``GraphFacts.sizes``; under a preset that prices every edge, the message
    is 0 and there is one time per edge.
    """

    rows: tuple[tuple[int, tuple[int, ...]], ...]


class Option(NamedTuple):
    """A place for a slot, and the strategy if its layers share one.

    ``profile`` and ``receives`` index the slot's tables; the latter, for each
    side, once for every layout that the receiving layer can have, or not at
    all if nothing is received there.
    """

    offset: int
    devices: int
    strategy: Strategy | None
    profile: int
    receives: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Slot:
    """Constants of one slot.

    Attributes
    ----------
    number
        ``s``, counted from the end of the pipeline.
    options
        What it can choose from, see :class:`Option`.
    profiles
        Distinct cost profiles.
    receives
        Distinct receives of either side; none forward in the first stage and
        backward in the last one.
    entering_bytes
        For each edge, bytes kept if it enters the slot (presets that stash
        only boundary tensors); empty if there is nothing to keep.
    sync_constant
        Part of ``Y`` that no layer accounts for.
    """

    number: int
    options: tuple[Option, ...]
    profiles: tuple[Profile, ...]
    receives: tuple[tuple[Receive, ...], ...]
    entering_bytes: tuple[int, ...] = ()
    sync_constant: int = 0

    @property
    def sides(self) -> list[int]:
        """The sides on which it receives."""
        return [side for side in SIDES if self.receives[side]]

    @property
    def mixed(self) -> bool:
        """Whether its layers can have different layouts."""
        return any(len(profile.layouts) > 1 for profile in self.profiles)


@dataclass(frozen=True)
class SubProblem:
    """One ``(R, B, S)``, and the strategy if all stages share it.

    ``bound`` is a proven lower bound on the step time of its plans.
    """

    split: BatchSplit
    num_stages: int
    strategy: Strategy | None
    bound: int

    def __str__(self) -> str:
        text = (
            f"R={self.split.replicas} B={self.split.micro_batch} "
            f"S={self.num_stages}"
        )
        return text if self.strategy is None else f"{text} {self.strategy}"


class _Candidate(NamedTuple):
    """A place, and strategies that layers choose from there.

    They are several, all of the block's size, only where every layer has one
    of its own.
    """

    offset: int
    strategies: tuple[Strategy, ...]
    profile: Profile


class Instance:
    """A problem taken apart: graph facts, sub-problems and their slots.

    Parameters
    ----------
    problem, model
        The problem and its cost model.
    deadline
        Checked all along: any method may raise ``OutOfTimeError``.
    """

    def __init__(
        self, problem: Problem, model: CostModel, deadline: Deadline
    ) -> None:
        self.problem = problem
        self.model = model
        #: The rules of NEST's artifact, if the problem has them.
        self.artifact = (
            artifact_rules(model) if model.rules.one_strategy else None
        )
        self.deadline = deadline
        self.graph = GraphFacts(model)
        self.capacity = problem.cluster.memory_bytes()
        self.per_layer = problem.job.granularity == "layer"
        self.schedule = SCHEDULES[problem.job.schedule]
        #: Increments that take memory where they pass a stage.
        self.passing = () if self.artifact else self.graph.passing
        self.num_paces = len(self.paces(0, 0))
        self._strategies: dict[int, list[Strategy]] = {}
        self._candidates: dict[tuple[BatchSplit, int], list[_Candidate]] = {}
        self._receives: dict[tuple[Route, int, int], Receive] = {}

    # Sub-problems

    def sub_problems(self) -> list[SubProblem]:
        """Return all sub-problems that may hold a plan, best bound first."""
        found = []
        for split in batch_splits(self.problem):
            usable = self._usable_strategies(split.micro_batch)
            groups: list[list[Strategy]] = (
                [[s] for s in usable] if self.artifact else [usable]
            )
            for group in groups:
                shared = group[0] if self.artifact else None
                for num_stages in stage_counts(self.problem, split):
                    self.deadline.check()
                    bound = self._bound(split, num_stages, group)
                    if bound is not None:
                        found.append(
                            SubProblem(split, num_stages, shared, bound)
                        )
        return sorted(found, key=lambda p: (p.bound, p.num_stages, p.split))

    def _usable_strategies(self, micro_batch: int) -> list[Strategy]:
        if micro_batch not in self._strategies:
            self._strategies[micro_batch] = [
                strategy
                for strategy in strategies(self.problem, micro_batch)
                if any(
                    self.model.available(kind[0], strategy, micro_batch)
                    is None
                    for kind in self.graph.members
                )
            ]
        return self._strategies[micro_batch]

    def _bound(
        self, split: BatchSplit, num_stages: int, group: list[Strategy]
    ) -> int | None:
        """Return a lower bound, equation (17), or ``None`` if no plan fits.

        Without a shared strategy all slots have the same candidates, and
        the last one has the most memory for them.
        """
        if not group:
            return None
        smallest = min(strategy.devices for strategy in group)
        largest = split.devices - (num_stages - 1) * smallest
        last = num_stages if self.artifact else 1
        profiles = {
            candidate.profile: None
            for number in range(1, last + 1)
            for candidate in self._slot_candidates(
                split, num_stages, number, group
            )
            if candidate.profile.devices <= largest
        }
        by_kind = [
            [(c, p.devices) for p in profiles for c in p.choices[kind]]
            for kind in range(len(self.graph.members))
        ]
        if not all(by_kind):
            return None
        self.deadline.check()

        def total(weight_load: int, weight_work: int) -> int:
            return sum(
                len(members)
                * min(
                    choice.load * (weight_load + devices * weight_work)
                    for choice, devices in entries
                )
                for members, entries in zip(
                    self.graph.members, by_kind, strict=True
                )
            )

        rest = split.num_micro_batches - 1
        slowest = max(min(c.load for c, _ in e) for e in by_kind)
        syncs = [min(c.sync for c, _ in e) for e in by_kind]
        sync = max(syncs)
        if self.artifact:
            sync = min(syncs)
            slowest = max(
                slowest,
                ceil_div(total(1, 0), num_stages),
                ceil_div(total(0, 1), split.devices),
            )
            return (rest + num_stages) * slowest + sync
        receives = self._least_receives(split, num_stages, group)
        paced = sum(
            max(min(c.loads[pace] for c, _ in e) for e in by_kind)
            for pace in range(self.num_paces)
        )
        return sync + max(
            total(1, 0) + receives + rest * max(slowest, paced),
            ceil_div(
                total(num_stages + rest, 0) + (num_stages + rest) * receives,
                num_stages,
            ),
            ceil_div(total(split.devices, rest), split.devices) + receives,
        )

    def paces(self, forward: int, backward: int) -> tuple[int, ...]:
        """Return what of a load counts for each pace of the schedule."""
        if self.artifact:
            return (forward + backward,)
        return self.schedule.paces(forward, backward)

    def pace_of(self, side: int) -> int:
        """Return the pace for which what happens on a side of a slot counts.

        Forward the first, backward the last.
        """
        return side and self.num_paces - 1

    def _least_receives(
        self, split: BatchSplit, num_stages: int, group: list[Strategy]
    ) -> int:
        """Return a lower bound on all receives of a plan together.

        In a connected graph at least one message with the smallest tensor
        crosses every boundary, once forward and once backward.
        """
        if num_stages == 1 or not self.graph.connected:
            return 0
        shards = max(self._shards(strategy) for strategy in group)
        transfers, size = self.model.transfers, self.graph.sizes[0]
        return (2 * (num_stages - 1)) * min(
            transfers.message(link)
            + transfers.tensor(link, size, split.micro_batch, shards)
            for link in self.model.network.links
        )

    # Slots of one sub-problem

    def slots(self, sub_problem: SubProblem) -> dict[int, Slot] | None:
        """Return the slots by number, or ``None`` if one has no option."""
        split, num_stages = sub_problem.split, sub_problem.num_stages
        shared = sub_problem.strategy
        group = (
            self._usable_strategies(split.micro_batch)
            if shared is None
            else [shared]
        )
        found: dict[int, Slot] = {}
        for number in range(1, num_stages + 1):
            slot = self._slot(split, num_stages, number, group)
            if not slot.options:
                return None
            found[number] = slot
        return found

    def _slot(
        self,
        split: BatchSplit,
        num_stages: int,
        number: int,
        group: list[Strategy],
    ) -> Slot:
        smallest = min(strategy.devices for strategy in group)
        before, after = num_stages - number, number - 1
        if self.artifact:
            before, after = after, before
        first = before * smallest
        end = split.devices - after * smallest
        profiles: dict[Profile, int] = {}
        receives: tuple[dict[Receive, int], ...] = ({}, {})
        options = []
        for offset, chosen, profile in self._slot_candidates(
            split, num_stages, number, group
        ):
            self.deadline.check()
            if (
                offset < first
                or (offset > 0 and before == 0)
                or offset + profile.devices > end
            ):
                continue
            place = (split, num_stages, number, offset)
            tables = tuple(
                tuple(
                    known.setdefault(
                        self._receive(*place, receiver, side=side), len(known)
                    )
                    for receiver in profile.layouts or chosen
                    if number != (num_stages, 1)[side]
                )
                for side, known in enumerate(receives)
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
        entering: tuple[int, ...] = ()
        sync_constant = 0
        if self.artifact:
            entering = self._entering_bytes(split, number, group[0])
            block = self._block(split, num_stages, 0, group[0])
            sync_constant = self.artifact.sync_constant(self.model, block)
        return Slot(
            number,
            tuple(options),
            tuple(profiles),
            tuple(map(tuple, receives)),
            entering,
            sync_constant,
        )

    def _block(
        self,
        split: BatchSplit,
        num_stages: int,
        offset: int,
        strategy: Strategy,
    ) -> Block:
        pitch = split.devices
        if self.artifact:
            pitch = num_stages * strategy.devices
        return Block(split.replicas, pitch, offset, strategy.devices)

    def _slot_candidates(
        self,
        split: BatchSplit,
        num_stages: int,
        number: int,
        group: list[Strategy],
    ) -> list[_Candidate]:
        """Return places and strategies that nothing else dominates.

        A candidate dominates another one at the same place if no layer, no
        receive and no byte costs more under it: in every plan it can replace
        the other one.
        """
        if self.artifact:
            strategy = group[0]
            devices = strategy.devices
            if num_stages * devices > split.devices:
                return []
            offset = (number - 1) * devices
            block = self._block(split, num_stages, offset, strategy)
            profile = self._profile(split, number, (strategy,), block)
            if profile is None:
                return []
            return [_Candidate(offset, (strategy,), profile)]

        key = (split, self._inflight(split, number))
        if key not in self._candidates:
            found: list[_Candidate] = []
            by_devices: dict[int, list[Strategy]] = {}
            for strategy in group:
                by_devices.setdefault(strategy.devices, []).append(strategy)
            for devices, equals in by_devices.items():
                rivals = (
                    [tuple(equals)]
                    if self.per_layer
                    else [(strategy,) for strategy in equals]
                )
                known: dict[Block, list[_Candidate]] = {}
                for offset in range(split.devices - devices + 1):
                    self.deadline.check()
                    block = Block(
                        split.replicas, split.devices, offset, devices
                    )
                    alike = self.model.aligned(block)
                    if alike not in known:
                        known[alike] = self._worth_a_try(
                            [
                                _Candidate(offset, chosen, profile)
                                for chosen in rivals
                                if (
                                    profile := self._profile(
                                        split, number, chosen, block
                                    )
                                )
                            ]
                        )
                    found.extend(
                        candidate._replace(offset=offset)
                        for candidate in known[alike]
                    )
            self._candidates[key] = found
        return self._candidates[key]

    def _inflight(self, split: BatchSplit, number: int) -> int:
        rules, count = self.artifact, split.num_micro_batches
        if rules is None:
            return self.schedule.inflight(number, count)
        return rules.inflight(self.model, number, count)

    def _shards(self, strategy: Strategy) -> int:
        return strategy.shards(self.problem.job.sequence_parallel)

    def _stashes(self, strategy: Strategy) -> bool:
        return bool(self.artifact) and strategy.recompute == "full"

    def _entering_bytes(
        self, split: BatchSplit, number: int, strategy: Strategy
    ) -> tuple[int, ...]:
        if not self._stashes(strategy):
            return ()
        extra = self._inflight(split, number) - 1
        samples = split.micro_batch // strategy.dp
        kept = tuple(
            min(extra * size * samples, self.capacity + 1)
            for _, _, size in self.model.transfers.edge_bytes(strategy.tp)
        )
        return kept if any(kept) else ()

    def _passing_bytes(
        self, split: BatchSplit, number: int, strategy: Strategy
    ) -> tuple[int, ...]:
        """Return what tensors of each size take in a slot they pass, (20)."""
        shards = self._shards(strategy)
        inflight = self._inflight(split, number)
        return tuple(
            min(
                inflight * ceil_div(size * split.micro_batch, shards),
                self.capacity + 1,
            )
            for size in self.graph.sizes
        )

    def _profile(
        self,
        split: BatchSplit,
        number: int,
        chosen: tuple[Strategy, ...],
        block: Block,
    ) -> Profile | None:
        """Return what a place costs whose layers choose among strategies."""
        choices = [
            [
                (strategy, choice)
                for strategy in chosen
                if (
                    choice := self._choice(
                        split, number, members[0], strategy, block
                    )
                )
            ]
            for members in self.graph.members
        ]
        if not any(choices):
            return None
        passing: dict[Strategy, tuple[int, ...]] = {}
        if self.passing:
            for strategy in chosen:
                passing[_layout(strategy)] = self._passing_bytes(
                    split, number, strategy
                )
        most = max(c.working_bytes for kind in choices for _, c in kind)
        most += sum(self._entering_bytes(split, number, chosen[0]))
        most += max(
            (
                sum(self.graph.increments[i].of(sizes) for i in self.passing)
                for sizes in passing.values()
            ),
            default=0,
        )
        for members, kind in zip(self.graph.members, choices, strict=True):
            most += len(members) * max(
                (choice.resident_bytes for _, choice in kind), default=0
            )
        tight = most > self.capacity
        if not tight:
            choices = [
                [
                    (s, c._replace(resident_bytes=0, working_bytes=0))
                    for s, c in kind
                ]
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
        """Return what a layer adds; ``None`` if it cannot be there."""
        terms = self.model.layer_terms(
            layer, strategy, split.micro_batch, block
        )
        if terms is None:
            return None
        inflight = 1
        if not self._stashes(strategy):
            inflight = self._inflight(split, number)
        resident = terms.static_bytes + inflight * terms.kept_bytes
        if resident + terms.working_bytes > self.capacity:
            return None
        backward, recomputed = terms.backward, terms.recomputed
        if self.artifact:
            backward -= recomputed
            if number == 1:
                recomputed = 0
        else:
            recomputed = 0
        return Choice(
            self.paces(terms.forward, backward),
            recomputed,
            terms.sync,
            resident,
            terms.working_bytes,
        )

    def _moves(
        self, split: BatchSplit, layouts: tuple[Strategy, ...], block: Block
    ) -> tuple[tuple[int, ...], ...]:
        """Return what redistribution inside a block takes, see (19).

        One message at the level that holds the block, the worst over
        replicas: ``α_L + X / (shards β_L)``.
        """
        if len(layouts) < 2:
            return ()
        links = self.model.network.inside(block)
        rows = [
            [self._row(link, split, self._shards(layout)) for link in links]
            for layout in layouts
        ]
        return tuple(
            tuple(
                max(message + times[i] for message, times in of_links)
                for i in range(len(self.graph.sizes))
            )
            for of_links in rows
        )

    def _row(
        self, link: Link, split: BatchSplit, shards: int
    ) -> tuple[int, tuple[int, ...]]:
        """Return the quanta of a message and of each size of tensor."""
        return self.model.transfers.message(link), tuple(
            self.model.transfers.tensor(link, size, split.micro_batch, shards)
            for size in self.graph.sizes
        )

    def _worth_a_try(self, rivals: list[_Candidate]) -> list[_Candidate]:
        """Return which candidates of one place no other one dominates.

        Of equal ones the first stays.
        """
        missing = (math.inf,) * (self.num_paces + 4)
        kept = _undominated(
            {
                i: (
                    -min(map(self._shards, chosen)),
                    *(
                        cost
                        for kind in profile.choices
                        for cost in (kind[0].costs if kind else missing)
                    ),
                )
                for i, (_, chosen, profile) in enumerate(rivals)
            }
        )
        return [rivals[i] for i in kept]

    def _receive(
        self,
        split: BatchSplit,
        num_stages: int,
        number: int,
        offset: int,
        strategy: Strategy,
        *,
        side: int,
    ) -> Receive:
        block = self._block(split, num_stages, offset, strategy)
        if self.artifact:
            sender = number - 1 if side else number + 1
            edge = self.artifact.edge(
                self.model,
                block,
                block._replace(offset=(sender - 1) * strategy.devices),
            )
            samples = split.micro_batch // strategy.dp
            times = tuple(
                self.artifact.edge_quanta(self.model, edge, size * samples)
                for _, _, size in self.model.transfers.edge_bytes(strategy.tp)
            )
            return Receive(((0, times),))
        route = self.model.network.route(
            block, block.before() if side == FORWARD else block.behind()
        )
        shards = self._shards(strategy)
        key = (route, split.micro_batch, shards)
        if key not in self._receives:
            rows = {self._row(link, split, shards) for link in route}
            # Of rows that nothing exceeds: their negatives are undominated.
            ordered = sorted(rows, reverse=True)
            kept = _undominated(
                {
                    i: (-message, *(-time for time in times))
                    for i, (message, times) in enumerate(ordered)
                }
            )
            self._receives[key] = Receive(tuple(ordered[i] for i in kept))
        return self._receives[key]


def _layout(strategy: Strategy) -> Strategy:
    """Return ``(dp, tp, cp)``, on which receives and changes depend."""
    return replace(strategy, ep=1, zero=0, recompute="none")


def _useful(
    choices: list[tuple[Strategy, Choice]],
) -> list[tuple[Strategy, Choice]]:
    """Return the choices that no other one of the same layout dominates."""
    groups: dict[Strategy, dict[int, tuple[float, ...]]] = {}
    for index, (strategy, choice) in enumerate(choices):
        groups.setdefault(_layout(strategy), {})[index] = choice.costs
    kept = [i for group in groups.values() for i in _undominated(group)]
    return [choices[i] for i in sorted(kept)]


def _undominated(vectors: dict[int, tuple[float, ...]]) -> list[int]:
    """Return the keys of vectors that no other one dominates.

    Of equal ones the first stays.
    """
    kept: list[int] = []
    for index, vector in vectors.items():
        if any(_dominates(vectors[other], vector) for other in kept):
            continue
        kept = [
            other for other in kept if not _dominates(vector, vectors[other])
        ]
        kept.append(index)
    return kept


def _dominates(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True))
