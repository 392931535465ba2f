"""What both formulations start from: sub-problems and constants, no models.

A sub-problem fixes the replicas ``R``, the micro-batch ``B`` and the number
of stages ``S``. Stages are *slots* counted from the end of the pipeline:
slot 1 is the last stage, slot ``S`` the first, so that a slot's micro-batches
in flight are a constant. Symbols and equations: ``formulations/README.md``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from nest.cost.model import Block, CostModel
from nest.cost.space import Case, cases, stage_counts, strategies
from nest.ir.plan import Strategy
from nest.ir.problem import Problem
from nest.solvers.base import Deadline
from nest.units import ceil_div


class OutOfTime(Exception):
    """The time limit passed while a model was being built."""


def check_time(deadline: Deadline) -> None:
    """Raise :class:`OutOfTime` if the limit is used up."""
    if deadline.passed:
        raise OutOfTime


def why_unsupported(problem: Problem) -> str | None:
    """Return why no formulation covers the problem's preset, or ``None``."""
    preset = CostModel(problem).preset
    if preset.ranks_take_turns:
        return (
            f"preset {preset.name!r}: data ranks that take turns are not "
            f"formulated here; use solver dp, or brute for small problems"
        )
    if not preset.uniform and (
        preset.last_stage_first
        or preset.pitch_is_used
        or preset.receive_per_edge
        or preset.recompute_hides_receive
        or preset.stash_boundary_only
        or not preset.last_stage_recomputes
    ):
        return (
            f"preset {preset.name!r}: these choices are formulated only for "
            f"presets where all stages share one strategy"
        )
    return None


# The graph


class Increment(NamedTuple):
    """One step of a tensor's size, see equation (8).

    The step counts for a boundary if the producer is before it and any of
    ``consumers`` is after it; these are the consumers that need at least
    ``sizes[upper]`` bytes per sample. ``lower`` is the step below, -1 if
    there is none.
    """

    producer: int
    consumers: tuple[int, ...]
    lower: int
    upper: int


class GraphFacts:
    """Constants of the graph.

    Attributes
    ----------
    kind_of
        Index of each layer's kind; layers of a kind cost the same.
    members
        The layers of each kind.
    num_ancestors, num_descendants
        Of each layer.
    connected
        Whether the graph is connected, edge directions ignored. Then
        something crosses every boundary.
    sizes
        All distinct bytes per sample of the edges, ascending.
    edge_sizes
        Position in ``sizes`` of every edge.
    increments
        The steps of all tensors.
    """

    def __init__(self, model: CostModel) -> None:
        graph = model.problem.graph
        self.num_layers = len(graph.layers)
        self.order = graph.topological_order()
        self.edges = model.edges
        names = {layer.kind: None for layer in graph.layers}
        kinds = {name: index for index, name in enumerate(names)}
        self.kind_of = tuple(kinds[layer.kind] for layer in graph.layers)
        self.members = tuple(
            tuple(i for i, k in enumerate(self.kind_of) if k == kind)
            for kind in range(len(kinds))
        )
        self.num_ancestors, self.num_descendants = self._closures()
        self.connected = self._is_connected()
        self.sizes = tuple(sorted({size for _, _, size in self.edges}))
        self.edge_sizes = tuple(
            self.sizes.index(size) for _, _, size in self.edges
        )
        self.increments = tuple(self._increments(model))

    def _closures(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        up = [0] * self.num_layers
        down = [0] * self.num_layers
        sources: list[list[int]] = [[] for _ in up]
        targets: list[list[int]] = [[] for _ in up]
        for source, target, _ in self.edges:
            sources[target].append(source)
            targets[source].append(target)
        for layer in self.order:
            for source in sources[layer]:
                up[layer] |= up[source] | 1 << source
        for layer in reversed(self.order):
            for target in targets[layer]:
                down[layer] |= down[target] | 1 << target
        return (
            tuple(mask.bit_count() for mask in up),
            tuple(mask.bit_count() for mask in down),
        )

    def _is_connected(self) -> bool:
        root = list(range(self.num_layers))

        def find(layer: int) -> int:
            while root[layer] != layer:
                root[layer] = root[root[layer]]
                layer = root[layer]
            return layer

        for source, target, _ in self.edges:
            root[find(source)] = find(target)
        return len({find(layer) for layer in root}) == 1

    def _increments(self, model: CostModel) -> Iterator[Increment]:
        index = {size: i for i, size in enumerate(self.sizes)}
        for tensor in model.tensors:
            lower = -1
            for size in sorted({size for _, size in tensor.consumers}):
                consumers = tuple(v for v, q in tensor.consumers if q >= size)
                upper = index[size]
                yield Increment(tensor.producer, consumers, lower, upper)
                lower = upper

    def slots_of(self, layer: int, num_stages: int) -> range:
        """Return the slots in which a layer can be.

        The slots before and after it must all be filled, with layers that
        are not its descendants and not its ancestors, respectively.
        """
        others = self.num_layers - 1
        first = num_stages - (others - self.num_descendants[layer])
        last = 1 + others - self.num_ancestors[layer]
        return range(max(1, first), min(num_stages, last) + 1)


# Slots


class Choice(NamedTuple):
    """One way to run a layer in a slot, and what it adds there.

    Attributes
    ----------
    base
        Quanta per micro-batch.
    recomputed
        The part of the backward pass that hides the receive of gradients;
        0 where the preset adds it, it is then part of ``base``.
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

    base: int
    recomputed: int
    sync: int
    resident_bytes: int
    working_bytes: int
    layout: int = 0
    strategy: Strategy | None = None

    @property
    def load(self) -> int:
        """The least that the layer adds to ``τ``."""
        return self.base + self.recomputed

    @property
    def costs(self) -> tuple[int, ...]:
        """All that is added up, quanta and bytes."""
        return self[:5]


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
        takes to redistribute a tensor to that layout.
    """

    devices: int
    choices: tuple[tuple[Choice, ...], ...]
    tight: bool
    layouts: tuple[Strategy, ...] = ()
    moves: tuple[tuple[int, ...], ...] = ()

    @property
    def mixed(self) -> bool:
        """Whether layers of a slot can have different layouts."""
        return len(self.layouts) > 1


class Receive(NamedTuple):
    """What receiving takes: the largest of some rows of quanta.

    Each row is the message and then one time per entry of
    ``GraphFacts.sizes``; under a preset that prices every edge, the message
    is 0 and there is one time per edge.
    """

    rows: tuple[tuple[int, tuple[int, ...]], ...]


class Option(NamedTuple):
    """A place for a slot, and the strategy if its layers share one.

    ``profile``, ``forward`` and ``backward`` index the slot's tables; the
    latter two once for every layout that the receiving layer can have, or
    not at all if nothing is received.
    """

    offset: int
    devices: int
    strategy: Strategy | None
    profile: int
    forward: tuple[int, ...]
    backward: tuple[int, ...]


@dataclass(frozen=True)
class Slot:
    """Constants of one slot.

    Attributes
    ----------
    number
        ``s``, counted from the end of the pipeline.
    options
        What it can choose from, see :class:`Option`.
    profiles, forward, backward
        Distinct cost profiles and receives. ``forward`` is empty for the
        first stage, ``backward`` for the last one.
    entering_bytes
        For each edge, bytes kept if it enters the slot (presets that stash
        only boundary tensors); empty if there is nothing to keep.
    sync_constant
        Part of ``Y`` that no layer accounts for.
    """

    number: int
    options: tuple[Option, ...]
    profiles: tuple[Profile, ...]
    forward: tuple[Receive, ...]
    backward: tuple[Receive, ...]
    entering_bytes: tuple[int, ...] = ()
    sync_constant: int = 0

    @property
    def mixed(self) -> bool:
        """Whether its layers can have different layouts."""
        return any(profile.mixed for profile in self.profiles)


@dataclass(frozen=True)
class SubProblem:
    """One ``(R, B, S)``, and the strategy if all stages share it.

    ``bound`` is a proven lower bound on the step time of its plans.
    """

    case: Case
    num_stages: int
    strategy: Strategy | None
    bound: int

    def __str__(self) -> str:
        text = (
            f"R={self.case.replicas} B={self.case.micro_batch} "
            f"S={self.num_stages}"
        )
        return text if self.strategy is None else f"{text} {self.strategy}"


class _Candidate(NamedTuple):
    offset: int
    strategies: tuple[Strategy, ...]
    profile: Profile


class Instance:
    """A problem taken apart: graph facts, sub-problems and their slots."""

    def __init__(self, problem: Problem, model: CostModel) -> None:
        self.problem = problem
        self.model = model
        self.preset = model.preset
        self.graph = GraphFacts(model)
        self.capacity = problem.cluster.device.memory_bytes
        self.per_layer = problem.job.granularity == "layer"
        self._strategies: dict[int, list[Strategy]] = {}
        self._candidates: dict[tuple[Case, int], list[_Candidate]] = {}
        self._receives: dict[tuple[frozenset[int], int, int], Receive] = {}

    # Sub-problems

    def sub_problems(self, deadline: Deadline) -> list[SubProblem]:
        """Return all sub-problems that may hold a plan, best bound first.

        Raises
        ------
        OutOfTime
            If the deadline passes.
        """
        found = []
        for case in cases(self.problem):
            usable = self._usable_strategies(case.micro_batch)
            groups: list[list[Strategy]] = (
                [[s] for s in usable] if self.preset.uniform else [usable]
            )
            for group in groups:
                for num_stages in stage_counts(self.problem, case):
                    check_time(deadline)
                    bound = self._bound(case, num_stages, group)
                    if bound is not None:
                        shared = group[0] if self.preset.uniform else None
                        found.append(
                            SubProblem(case, num_stages, shared, bound)
                        )
        return sorted(found, key=lambda p: (p.bound, p.num_stages, p.case))

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
        self, case: Case, num_stages: int, group: list[Strategy]
    ) -> int | None:
        """Return a lower bound, equation (17), or ``None`` if no plan fits.

        Without a shared strategy all slots have the same candidates, and
        the last one has the most memory for them.
        """
        if not group:
            return None
        smallest = min(strategy.devices for strategy in group)
        largest = case.devices - (num_stages - 1) * smallest
        last = num_stages if self.preset.uniform else 1
        candidates = [
            c
            for number in range(1, last + 1)
            for c in self._slot_candidates(case, num_stages, number, group)
            if c.profile.devices <= largest
        ]
        by_kind: list[list[tuple[int, int, int]]] = [
            list(
                {
                    (choice.load, c.profile.devices, choice.sync): None
                    for c in candidates
                    for choice in c.profile.choices[kind]
                }
            )
            for kind in range(len(self.graph.members))
        ]
        if not all(by_kind):
            return None

        def total(weight_load: int, weight_work: int) -> int:
            return sum(
                len(members)
                * min(
                    load * weight_load + load * devices * weight_work
                    for load, devices, _ in entries
                )
                for members, entries in zip(
                    self.graph.members, by_kind, strict=True
                )
            )

        rest = case.num_micro_batches - 1
        peak = max(min(load for load, _, _ in e) for e in by_kind)
        syncs = [min(sync for _, _, sync in e) for e in by_kind]
        sync = max(syncs) if self.preset.sync_stages == "max" else min(syncs)
        if self.preset.step_time == "slots-max":
            slowest = max(
                peak,
                ceil_div(total(1, 0), num_stages),
                ceil_div(total(0, 1), case.devices),
            )
            return (rest + num_stages) * slowest + sync
        receives = self._least_receives(case, num_stages, group)
        return sync + max(
            total(1, 0) + receives + rest * peak,
            ceil_div(
                total(num_stages + rest, 0) + (num_stages + rest) * receives,
                num_stages,
            ),
            ceil_div(total(case.devices, rest), case.devices) + receives,
        )

    def _least_receives(
        self, case: Case, num_stages: int, group: list[Strategy]
    ) -> int:
        """Return a lower bound on all receives of a plan together.

        In a connected graph at least one message with the smallest tensor
        crosses every boundary, once forward and once backward.
        """
        if num_stages == 1 or not self.graph.connected:
            return 0
        shards = max(
            strategy.shards(self.problem.job.sequence_parallel)
            for strategy in group
        )
        size = self.graph.sizes[0]
        return (2 * (num_stages - 1)) * min(
            self.model.message(level)
            + self.model.tensor(level, size, case.micro_batch, shards)
            for level in range(len(self.model.network.capacities))
        )

    # Slots of one sub-problem

    def slots(
        self, sub_problem: SubProblem, deadline: Deadline
    ) -> dict[int, Slot] | None:
        """Return the slots by number, or ``None`` if one has no option.

        Raises
        ------
        OutOfTime
            If the deadline passes.
        """
        case, num_stages = sub_problem.case, sub_problem.num_stages
        shared = sub_problem.strategy
        group = (
            self._usable_strategies(case.micro_batch)
            if shared is None
            else [shared]
        )
        found: dict[int, Slot] = {}
        for number in range(1, num_stages + 1):
            check_time(deadline)
            slot = self._slot(case, num_stages, number, group)
            if not slot.options:
                return None
            found[number] = slot
        return found

    def _slot(
        self, case: Case, num_stages: int, number: int, group: list[Strategy]
    ) -> Slot:
        smallest = min(strategy.devices for strategy in group)
        before, after = num_stages - number, number - 1
        if self.preset.last_stage_first:
            before, after = after, before
        profiles: dict[Profile, int] = {}
        forward: dict[Receive, int] = {}
        backward: dict[Receive, int] = {}
        options = []
        for candidate in self._slot_candidates(
            case, num_stages, number, group
        ):
            offset, profile = candidate.offset, candidate.profile
            devices = profile.devices
            if (
                offset < before * smallest
                or (offset > 0 and before == 0)
                or offset + devices > case.devices - after * smallest
            ):
                continue
            place = (case, num_stages, number, offset)
            receivers = profile.layouts or candidate.strategies
            options.append(
                Option(
                    offset,
                    devices,
                    None if self.per_layer else candidate.strategies[0],
                    profiles.setdefault(profile, len(profiles)),
                    tuple(
                        forward.setdefault(
                            self._receive(*place, receiver, forward=True),
                            len(forward),
                        )
                        for receiver in receivers
                        if number < num_stages
                    ),
                    tuple(
                        backward.setdefault(
                            self._receive(*place, receiver, forward=False),
                            len(backward),
                        )
                        for receiver in receivers
                        if number > 1
                    ),
                )
            )
        entering: tuple[int, ...] = ()
        sync_constant = 0
        if self.preset.uniform:
            strategy = group[0]
            entering = self._entering_bytes(case, number, strategy)
            block = self._block(case, num_stages, 0, strategy)
            sync_constant = self.model.sync_constant(block)
        return Slot(
            number,
            tuple(options),
            tuple(profiles),
            tuple(forward),
            tuple(backward),
            entering,
            sync_constant,
        )

    def _block(
        self, case: Case, num_stages: int, offset: int, strategy: Strategy
    ) -> Block:
        pitch = case.devices
        if self.preset.pitch_is_used:
            pitch = num_stages * strategy.devices
        return Block(case.replicas, pitch, offset, strategy.devices)

    def _slot_candidates(
        self, case: Case, num_stages: int, number: int, group: list[Strategy]
    ) -> list[_Candidate]:
        """Return places and strategies that nothing else dominates.

        A candidate dominates another one at the same place if no layer, no
        receive and no byte costs more under it: in every plan it can replace
        the other one.
        """
        if self.preset.uniform:
            strategy = group[0]
            devices = strategy.devices
            if num_stages * devices > case.devices:
                return []
            offset = (number - 1) * devices
            if not self.preset.last_stage_first:
                offset = (num_stages - number) * devices
            block = self._block(case, num_stages, offset, strategy)
            candidate = self._candidate(case, number, (strategy,), block)
            return [] if candidate is None else [candidate]

        inflight = self._inflight(case, number)
        if (case, inflight) not in self._candidates:
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
                known: dict[tuple[Profile | None, ...], list[int]] = {}
                for offset in range(case.devices - devices + 1):
                    block = Block(case.replicas, case.devices, offset, devices)
                    here = [
                        self._candidate(case, number, chosen, block)
                        for chosen in rivals
                    ]
                    key = tuple(c and c.profile for c in here)
                    if key not in known:
                        known[key] = self._worth_a_try(here)
                    found.extend(c for i in known[key] if (c := here[i]))
            self._candidates[case, inflight] = found
        return self._candidates[case, inflight]

    def _inflight(self, case: Case, number: int) -> int:
        if self.problem.job.schedule == "gpipe":
            return case.num_micro_batches
        if self.preset.inflight_capped:
            return min(case.num_micro_batches, number)
        return number

    def _stashes(self, strategy: Strategy) -> bool:
        return self.preset.stash_boundary_only and strategy.recompute == "full"

    def _entering_bytes(
        self, case: Case, number: int, strategy: Strategy
    ) -> tuple[int, ...]:
        if not self._stashes(strategy):
            return ()
        extra = self._inflight(case, number) - 1
        samples = case.micro_batch // strategy.dp
        kept = tuple(
            extra * size * samples
            for _, _, size in self.model.edge_bytes(strategy.tp)
        )
        return kept if any(kept) else ()

    def _candidate(
        self,
        case: Case,
        number: int,
        strategies: tuple[Strategy, ...],
        block: Block,
    ) -> _Candidate | None:
        """Return a place where layers choose among strategies.

        They are several, all of the block's size, only where every layer has
        one of its own.
        """
        choices = [
            [
                (strategy, choice)
                for strategy in strategies
                if (
                    choice := self._choice(
                        case, number, members[0], strategy, block
                    )
                )
            ]
            for members in self.graph.members
        ]
        if not any(choices):
            return None
        most = max(c.working_bytes for kind in choices for _, c in kind)
        most += sum(self._entering_bytes(case, number, strategies[0]))
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
        profile = Profile(
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
            self._moves(case, layouts, block),
        )
        return _Candidate(block.offset, strategies, profile)

    def _choice(
        self,
        case: Case,
        number: int,
        layer: int,
        strategy: Strategy,
        block: Block,
    ) -> Choice | None:
        """Return what a layer adds; ``None`` if it cannot be there."""
        terms = self.model.layer_terms(
            layer, strategy, case.micro_batch, block
        )
        if terms is None:
            return None
        inflight = 1
        if not self._stashes(strategy):
            inflight = self._inflight(case, number)
        resident = terms.static_bytes + inflight * terms.kept_bytes
        if resident + terms.working_bytes > self.capacity:
            return None
        base = terms.forward + terms.backward - terms.recomputed
        recomputed = terms.recomputed
        if number == 1 and not self.preset.last_stage_recomputes:
            recomputed = 0
        if not self.preset.recompute_hides_receive:
            base, recomputed = base + recomputed, 0
        return Choice(
            base, recomputed, terms.sync, resident, terms.working_bytes
        )

    def _moves(
        self, case: Case, layouts: tuple[Strategy, ...], block: Block
    ) -> tuple[tuple[int, ...], ...]:
        """Return what redistribution inside a block takes, see (19).

        One message at the level that holds the block, the worst over
        replicas: ``α_L + X / (shards β_L)``.
        """
        if len(layouts) < 2:
            return ()
        model = self.model
        levels = {
            model.network.level(start, start + block.devices - 1)
            for start in (
                replica * block.pitch + block.offset
                for replica in range(block.replicas)
            )
        }
        return tuple(
            tuple(
                max(
                    model.message(level)
                    + model.tensor(
                        level,
                        size,
                        case.micro_batch,
                        layout.shards(self.problem.job.sequence_parallel),
                    )
                    for level in levels
                )
                for size in self.graph.sizes
            )
            for layout in layouts
        )

    def _worth_a_try(self, candidates: list[_Candidate | None]) -> list[int]:
        """Return which candidates of one place no other one dominates.

        Of equal ones the first stays.
        """
        vectors: dict[int, tuple[float, ...]] = {}
        for index, candidate in enumerate(candidates):
            if candidate is None:
                continue
            shards = min(
                strategy.shards(self.problem.job.sequence_parallel)
                for strategy in candidate.strategies
            )
            values: list[float] = [-shards]
            for kind in candidate.profile.choices:
                values.extend(kind[0].costs if kind else _MISSING)
            vectors[index] = tuple(values)
        return _undominated(vectors)

    def _receive(
        self,
        case: Case,
        num_stages: int,
        number: int,
        offset: int,
        strategy: Strategy,
        *,
        forward: bool,
    ) -> Receive:
        neighbour = 0
        if self.preset.last_stage_first:
            sender = number + 1 if forward else number - 1
            neighbour = (sender - 1) * strategy.devices
        block = self._block(case, num_stages, offset, strategy)
        levels = self.model.boundary_levels(
            block, forward=forward, neighbour=neighbour
        )
        samples = case.micro_batch // strategy.dp
        if self.preset.receive_per_edge:
            times = tuple(
                max(self.model.edge(level, size, samples) for level in levels)
                for _, _, size in self.model.edge_bytes(strategy.tp)
            )
            return Receive(((0, times),))
        shards = strategy.shards(self.problem.job.sequence_parallel)
        key = (levels, case.micro_batch, shards)
        if key not in self._receives:
            rows = {
                (
                    self.model.message(level),
                    tuple(
                        self.model.tensor(
                            level, size, case.micro_batch, shards
                        )
                        for size in self.graph.sizes
                    ),
                )
                for level in sorted(levels)
            }
            # Tensors are no faster at a higher level, messages may be.
            ordered = sorted(rows, reverse=True)
            self._receives[key] = Receive(
                tuple(
                    row
                    for row in ordered
                    if not any(
                        other != row
                        and other[0] >= row[0]
                        and all(map(int.__ge__, other[1], row[1]))
                        for other in ordered
                    )
                )
            )
        return self._receives[key]


#: Costs of a kind that is not available.
_MISSING = (math.inf,) * 5


def _layout(strategy: Strategy) -> Strategy:
    """Return ``(dp, tp, cp)``, on which receives and changes depend."""
    return Strategy(dp=strategy.dp, tp=strategy.tp, cp=strategy.cp)


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
