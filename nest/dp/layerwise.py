"""Stage candidates where every layer of a stage has its own strategy.

A candidate is a pair of closed sets ``a ⊂ b`` and a strategy for every layer
of ``b - a``, all with the devices of the place. There are far too many to
list, so the search goes in two steps.

:class:`LayerTables` first hands the pipeline program one *relaxed* candidate
per stage and in-flight count: no load and no sync of the stage can be
smaller. For ``i`` micro-batches in flight a layer under strategy ``s`` takes
``load_s`` and ``m_s = static_s + i kept_s`` bytes, so for every ``λ >= 0``

``load >= Σ min_s (load_s + λ m_s) - λ (capacity - working)``,

the Lagrangian bound of the multiple-choice knapsack; its best ``λ`` is the
slope of an edge of the lower convex hull of some kind's points ``(m_s,
load_s)``. Strategy changes cost nothing in it.

For the stages that the program cannot rule out with these, :func:`grow` then
builds the exact set of non-dominated ``(load, sync, in-flight)``: labels grow
layer by layer in topological order. The state of a label is the layout ``(dp,
tp, cp)`` of every layer whose output is still needed inside the stage, its
value ``(load, sync, static, kept, working)``. It is dropped if another of the
same state is at least as good, or if what it has and the least that the rest
adds (by the same bound) are too slow for a plan better than the one in hand.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from nest.cost.model import Block, CostModel, LayerTerms
from nest.cost.space import Case
from nest.dp.closed_sets import ClosedSets
from nest.dp.errors import OutOfTimeError
from nest.dp.pipeline import PipelineSearch
from nest.dp.stages import INFINITE, Candidates, Ints, StageTables, concatenate
from nest.ir.plan import Strategy
from nest.solvers.base import Deadline

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
T = TypeVar("T", np.int64, np.float64)

#: In-flight counts up to this have a relaxed candidate each; larger ones
#: share them in groups that double in size.
EXACT_INFLIGHT = 12

#: Labels per layer in the sweep that only looks for good plans.
BEAM = 60

#: Relative error that a bound in floating point is trusted to keep.
SLACK = 1e-9


class Shape(NamedTuple):
    """What a stage's labels depend on, whichever layers it has.

    Attributes
    ----------
    kinds
        Kind of every layer, in topological order.
    edges
        (consumer, producer, bytes per sample) of the edges inside, by the
        position of the layers in that order.
    entering, leaving
        Sizes per sample of what crosses the two cuts.
    """

    kinds: tuple[int, ...]
    edges: tuple[tuple[int, int, int], ...]
    entering: tuple[int, ...]
    leaving: tuple[int, ...]


class Place(NamedTuple):
    """Where a stage sits, as far as its costs depend on it.

    Attributes
    ----------
    offset, size
        Offset up to symmetry, and devices.
    before, after
        Levels at which it receives; empty at the ends of a replica.
    """

    offset: int
    size: int
    before: frozenset[int]
    after: frozenset[int]


@dataclass
class Demand:
    """What of a stage's candidates can matter.

    Attributes
    ----------
    least_inflight, most_inflight
        Micro-batches in flight that it must and can have.
    load_limit, sync_limit
        Loads and syncs at or above are of no use.
    sync_floor, worst
        Some other stage of any plan takes that long to sync, and some other
        one has that load; smaller values are as good as these.
    budget
        Less than this must be left for ``τ + (M-1) max τ + max Y``.
    """

    least_inflight: int
    most_inflight: int
    load_limit: int
    sync_limit: int
    sync_floor: int
    worst: int
    budget: int

    def widen(self, other: Demand) -> None:
        """Ask for what another demand asks for, too."""
        self.least_inflight = min(self.least_inflight, other.least_inflight)
        self.most_inflight = max(self.most_inflight, other.most_inflight)
        self.load_limit = max(self.load_limit, other.load_limit)
        self.sync_limit = max(self.sync_limit, other.sync_limit)
        self.sync_floor = min(self.sync_floor, other.sync_floor)
        self.worst = min(self.worst, other.worst)
        self.budget = max(self.budget, other.budget)


class Options(NamedTuple):
    """Strategies of one kind of layer at a place, as parallel arrays.

    Attributes
    ----------
    strategy, layout
        Positions in :attr:`StageTables.strategies` and in the layouts of
        that many devices.
    load, sync
        Quanta.
    static_bytes, kept_bytes, working_bytes
        As in :class:`~nest.cost.model.LayerTerms`.
    """

    strategy: Ints
    layout: Ints
    load: Ints
    sync: Ints
    static_bytes: Ints
    kept_bytes: Ints
    working_bytes: Ints

    def take(self, chosen: Bools | Ints) -> Options:
        """Return the chosen options."""
        return Options(*(column[chosen] for column in self))

    def memory(self, inflight: int) -> Ints:
        """Return what a layer holds with so many micro-batches in flight."""
        return self.static_bytes + inflight * self.kept_bytes


class Step(NamedTuple):
    """How the labels of one more layer came about."""

    parent: Ints
    strategy: Ints


@dataclass(frozen=True)
class Frontier:
    """Non-dominated ways to run a stage; parallel arrays.

    ``label`` is the position among the labels of the last step.
    """

    load: Ints
    sync: Ints
    max_inflight: Ints
    label: Ints
    steps: tuple[Step, ...]

    def __len__(self) -> int:
        return len(self.load)

    def strategies(self, row: int) -> list[int]:
        """Return the strategy of every layer, in topological order."""
        label = int(self.label[row])
        found = []
        for step in reversed(self.steps):
            found.append(int(step.strategy[label]))
            label = int(step.parent[label])
        found.reverse()
        return found


_NONE = np.zeros(0, dtype=np.int64)
_NOTHING = Frontier(_NONE, _NONE, _NONE, _NONE, ())


class LayerTables(StageTables):
    """Stage candidates of one ``(R, B)`` at layer granularity.

    :meth:`at` returns relaxed candidates, :meth:`refine` exact ones for
    those that a pipeline search has kept.
    """

    def __init__(self, model: CostModel, sets: ClosedSets, case: Case) -> None:
        super().__init__(model, sets, case)
        self._order = np.array(
            model.problem.graph.topological_order(), dtype=np.int64
        )
        kinds = {
            model.problem.graph.layers[layer].kind: number
            for number, layer in enumerate(self._representatives)
        }
        self._kind_of = [
            kinds[layer.kind] for layer in model.problem.graph.layers
        ]
        self._layouts = {
            n: list(
                dict.fromkeys(
                    _layout(self.strategies[i]) for i in self._by_size[n]
                )
            )
            for n in self.sizes
        }
        self._shards = {
            n: [
                dp * cp * (tp if model.problem.job.sequence_parallel else 1)
                for dp, tp, cp in layouts
            ]
            for n, layouts in self._layouts.items()
        }
        differences = (
            self.kind_counts[sets.pair_target]
            - self.kind_counts[sets.pair_source]
        )
        #: Layers of each kind in every kind of stage, and which kind of
        #: stage every pair of closed sets is.
        self._counts, inverse = np.unique(
            differences, axis=0, return_inverse=True
        )
        self._count_of = inverse.reshape(-1)
        self._options: dict[Block, list[Options]] = {}
        self._relaxed: dict[Block, tuple[Ints, Ints, Ints]] = {}
        self._moves: dict[tuple[Block, int], Ints] = {}
        self._shapes: dict[tuple[int, int], int] = {}
        self._shape_numbers: dict[Shape, int] = {}
        self._shape_list: list[Shape] = []
        self._frontiers: list[Frontier] = []
        self._starts: list[int] = []
        steps = self._inflight_steps()
        self._first_inflight, self._last_inflight = steps
        self.extra_slots = case.num_micro_batches - 1

    def _inflight_steps(self) -> tuple[list[int], list[int]]:
        """Group in-flight counts: least and largest of every group."""
        smallest = self.sizes[0] if self.sizes else 1
        layers = len(self._kind_of)
        most = self.need(min(layers, self.case.devices // smallest))
        if self.need(1) == most:
            return [most], [most]
        first, last, width = [], [], 1
        start = 1
        while start <= most:
            if start > EXACT_INFLIGHT:
                width *= 2
            first.append(start)
            last.append(min(start + width - 1, most))
            start += width
        return first, last

    # What the layers cost

    def block(self, size: int, offset: int) -> Block:
        """Return the devices of a place, up to symmetry."""
        case = self.case
        return self.model.aligned(
            Block(case.replicas, case.devices, offset, size)
        )

    def options(self, size: int, offset: int) -> list[Options]:
        """Return the strategies of every kind at a place."""
        block = self.block(size, offset)
        if block not in self._options:
            self._options[block] = [
                self._kind_options(layer, block)
                for layer in self._representatives
            ]
        return self._options[block]

    def _kind_options(self, layer: int, block: Block) -> Options:
        layouts = self._layouts[block.devices]
        chosen, rows = [], []
        for index in self._by_size[block.devices]:
            strategy = self.strategies[index]
            terms = self.model.layer_terms(
                layer, strategy, self.case.micro_batch, block
            )
            if terms is not None:
                chosen.append((index, layouts.index(_layout(strategy))))
                rows.append(terms)
        too_much = self.capacity + 1

        def column(field: Callable[[LayerTerms], int]) -> Ints:
            return np.array([field(row) for row in rows], dtype=np.int64)

        found = Options(
            np.array([i for i, _ in chosen], dtype=np.int64),
            np.array([i for _, i in chosen], dtype=np.int64),
            column(lambda t: t.forward + t.backward),
            column(lambda t: t.sync),
            column(lambda t: min(t.static_bytes, too_much)),
            column(lambda t: min(t.kept_bytes, too_much)),
            column(lambda t: min(t.working_bytes, too_much)),
        )
        fits = found.memory(self.need(1)) + found.working_bytes
        found = found.take(fits <= self.capacity)
        # Of the same layout, only terms matter.
        return found.take(non_dominated(found.layout, list(found[2:])))

    def change(self, block: Block, size_bytes: int) -> Ints:
        """Cost of an edge between layouts, ``(producer, consumer)``."""
        key = (block, size_bytes)
        if key not in self._moves:
            model, case = self.model, self.case
            levels = model.network.inside(block)
            move = np.array(
                [
                    max(
                        model.message(level)
                        + model.tensor(
                            level, size_bytes, case.micro_batch, shards
                        )
                        for level in levels
                    )
                    for shards in self._shards[block.devices]
                ],
                dtype=np.int64,
            )
            # Forward in the consumer's layout, backward in the producer's.
            both = move[:, None] + move[None, :]
            np.fill_diagonal(both, 0)
            self._moves[key] = both
        return self._moves[key]

    def receive_at(self, levels: frozenset[int], size: int, cut: int) -> Ints:
        """Receive across a cut in every layout of a size."""
        return np.array(
            [
                self._receive(levels, shards)[cut] if levels else 0
                for shards in self._shards[size]
            ],
            dtype=np.int64,
        )

    # Relaxed candidates

    def _build(
        self,
        size: int,
        offset: int,
        before: frozenset[int],
        after: frozenset[int],
        ends: bool,
    ) -> Candidates:
        """Bound every stage at a place from below."""
        sets = self.sets
        chosen = sets.pair_source == 0 if offset == 0 else sets.pair_source > 0
        if ends:
            chosen &= sets.pair_target == sets.count - 1
        where = np.flatnonzero(chosen)
        source, target = sets.pair_source[where], sets.pair_target[where]
        loads, joints, syncs = self._bounds(size, offset)
        count = self._count_of[where]
        load, joint = loads[count], joints[count]
        extra = np.zeros(len(where), dtype=np.int64)
        most_shards = max(self._shards[size])
        if offset:
            extra += self._receive(before, most_shards)[source]
        if not ends:
            extra += self._receive(after, most_shards)[target]
        # The last of the groups of in-flight counts with the same bound.
        useful = np.ones(load.shape, dtype=np.bool_)
        useful[:, :-1] = (load[:, 1:] > load[:, :-1]) | (
            joint[:, 1:] > joint[:, :-1]
        )
        useful &= load < INFINITE
        useful &= load + extra[:, None] < self.max_load
        pair, group = np.nonzero(useful)
        return Candidates(
            source[pair],
            target[pair],
            np.full(len(pair), -1, dtype=np.int64),
            load[pair, group] + extra[pair],
            syncs[count][pair],
            joint[pair, group] + self.extra_slots * extra[pair],
            np.array(self._last_inflight, dtype=np.int64)[group],
        )

    def _bounds(self, size: int, offset: int) -> tuple[Ints, Ints, Ints]:
        """Bound ``τ``, ``(M-1) τ + Y`` and ``Y`` of every kind of stage.

        The first two have shape ``(counts, in-flight groups)``, the last
        one ``(counts,)``. :data:`INFINITE` where nothing fits, or no stage
        is fast enough. Receives are left out.
        """
        block = self.block(size, offset)
        if block not in self._relaxed:
            # Layouts do not matter here.
            options = [
                o.take(non_dominated(np.zeros_like(o.load), list(o[2:])))
                for o in self.options(size, offset)
            ]
            least = np.array([_least(o.load) for o in options])
            syncs = self._counts @ np.array([_least(o.sync) for o in options])
            shape = (len(self._counts), len(self._first_inflight))
            loads, joints = np.full(shape, INFINITE), np.full(shape, INFINITE)
            rows = np.flatnonzero(self._counts @ least < self.max_load)
            for group, inflight in enumerate(self._first_inflight):
                found, load, joint = self._knapsack(
                    options, self._counts[rows], inflight
                )
                rows = rows[found]
                loads[rows, group], joints[rows, group] = load, joint
                # More in flight is never faster.
                rows = rows[load < self.max_load]
                if not len(rows):
                    break
            self._relaxed[block] = (loads, joints, syncs)
        return self._relaxed[block]

    def _knapsack(
        self, options: list[Options], counts: Ints, inflight: int
    ) -> tuple[Bools, Ints, Ints]:
        """Bound stages by the layers of each kind they have.

        Returns
        -------
        tuple
            Which may fit, and the bounds of ``τ`` and ``(M-1) τ + Y`` of
            those.
        """
        options = [
            o.take(o.memory(inflight) + o.working_bytes <= self.capacity)
            for o in options
        ]
        present = counts > 0
        missing = np.array([not len(o.load) for o in options])
        working = np.array([_least(o.working_bytes) for o in options])
        free = self.capacity - np.where(present, working, 0).max(
            axis=1, initial=0
        )
        needed = counts @ np.array(
            [_least(o.memory(inflight)) for o in options]
        )
        possible = ~(present & missing).any(axis=1) & (needed <= free)
        counts, free = counts[possible], free[possible]
        load, joint = (
            _priced_bounds(costs, counts, free, inflight)
            for costs in (options, _weighted(options, self.extra_slots))
        )
        return possible, load, joint

    # Exact candidates

    def refine(
        self,
        pipeline: PipelineSearch,
        upper: int,
        max_labels: int | None,
    ) -> dict[tuple[int, int], Candidates]:
        """Return exact candidates for all stages that may still be used.

        Parameters
        ----------
        pipeline
            A search that has bounded the relaxed candidates.
        upper
            Only plans below this step time count.
        max_labels
            If given, look only for some good candidates.
        """
        self._frontiers, self._starts = [], []
        wanted: dict[tuple[Place, int], Demand] = {}
        users: list[tuple[tuple[int, int], Place, int, Ints]] = []
        examples: dict[int, tuple[int, int]] = {}
        most_stages = pipeline.most_stages()
        for (offset, size), found in pipeline.alive.items():
            if not len(found):
                continue
            place = self._place(offset, size)
            pairs, demands = _demands(
                pipeline, offset, size, found, upper, most_stages
            )
            inside: dict[int, list[int]] = {}
            for row, pair in enumerate(pairs.tolist()):
                source, target = divmod(pair, self.sets.count)
                shape = self._shape(source, target)
                examples.setdefault(shape, (source, target))
                inside.setdefault(shape, []).append(pair)
                known = wanted.get((place, shape))
                if known is None:
                    wanted[place, shape] = demands[row]
                else:
                    known.widen(demands[row])
            users += [
                ((offset, size), place, shape, np.array(stages))
                for shape, stages in inside.items()
            ]
        frontiers: dict[tuple[Place, int], int] = {}
        start = 0
        for (place, shape), demand in wanted.items():
            frontier = grow(
                self,
                place,
                self._shape_list[shape],
                examples[shape],
                demand,
                None if max_labels is None else BEAM,
                pipeline.deadline,
            )
            frontiers[place, shape] = len(self._frontiers)
            self._frontiers.append(frontier)
            self._starts.append(start)
            start += len(frontier)
        parts: dict[tuple[int, int], list[Candidates]] = {}
        for where, place, shape, stages in users:
            number = frontiers[place, shape]
            frontier = self._frontiers[number]
            if len(frontier):
                parts.setdefault(where, []).append(
                    _candidates(
                        frontier,
                        self._starts[number],
                        stages,
                        self.sets.count,
                        self.extra_slots,
                    )
                )
        return {where: concatenate(found) for where, found in parts.items()}

    def _place(self, offset: int, size: int) -> Place:
        block = Block(self.case.replicas, self.case.devices, offset, size)
        levels = frozenset[int]()
        before = after = levels
        if offset:
            before = self.model.boundary_levels(block, forward=True)
        if offset + size < self.case.devices:
            after = self.model.boundary_levels(block, forward=False)
        return Place(self.model.aligned(block).offset, size, before, after)

    def _shape(self, source: int, target: int) -> int:
        """Return the number of a stage's shape."""
        key = (source, target)
        if key not in self._shapes:
            member = self.sets.member
            inside = member[target] & ~member[source]
            layers = self._order[inside[self._order]].tolist()
            position = {layer: i for i, layer in enumerate(layers)}
            shape = Shape(
                tuple(self._kind_of[layer] for layer in layers),
                tuple(
                    sorted(
                        (position[end], position[start], size_bytes)
                        for start, end, size_bytes in self.model.edges
                        if start in position and end in position
                    )
                ),
                self._crossing[source],
                self._crossing[target],
            )
            number = self._shape_numbers.setdefault(
                shape, len(self._shape_list)
            )
            if number == len(self._shape_list):
                self._shape_list.append(shape)
            self._shapes[key] = number
        return self._shapes[key]

    def layer_strategies(self, candidate: int) -> tuple[Strategy, ...]:
        """Return the strategies of a candidate, in topological order."""
        number = bisect_right(self._starts, candidate) - 1
        found = self._frontiers[number].strategies(
            candidate - self._starts[number]
        )
        return tuple(self.strategies[i] for i in found)


def _layout(strategy: Strategy) -> tuple[int, int, int]:
    return strategy.dp, strategy.tp, strategy.cp


def _least(values: Ints) -> int:
    return int(values.min()) if len(values) else 0


def _priced_bounds(
    options: list[Options], counts: Ints, free: Ints, inflight: int
) -> Ints:
    """Return the best Lagrangian bound of every stage's load."""
    best: Ints = counts @ np.array([_least(o.load) for o in options])
    slopes = hull_slopes(options, inflight)
    if len(slopes) and len(counts):
        total = counts @ _priced(options, slopes, inflight).T
        room = free[:, None] * slopes[None, :]
        bound = total - room - SLACK * (total + np.abs(room))
        best = np.maximum(best, np.ceil(bound.max(axis=1)).astype(np.int64))
    return best


def _priced(
    options: Sequence[Options], slopes: Floats, inflight: int
) -> Floats:
    """Return the least ``load + λ memory``, of shape (slopes, kinds)."""
    return np.array(
        [
            (o.load + slopes[:, None] * o.memory(inflight)).min(axis=1)
            if len(o.load)
            else np.zeros(len(slopes))
            for o in options
        ]
    ).T


def hull_slopes(options: Sequence[Options], inflight: int) -> Floats:
    """Return the slopes of the lower hulls of (memory, load), per kind."""
    slopes = set()
    for kind in options:
        points = sorted(
            zip(
                kind.memory(inflight).tolist(), kind.load.tolist(), strict=True
            )
        )
        hull: list[tuple[int, int]] = []
        for memory, load in points:
            if hull and load >= hull[-1][1]:
                continue
            while len(hull) >= 2 and (hull[-1][1] - hull[-2][1]) * (
                memory - hull[-2][0]
            ) >= (load - hull[-2][1]) * (hull[-1][0] - hull[-2][0]):
                hull.pop()
            hull.append((memory, load))
        for (m1, l1), (m2, l2) in pairwise(hull):
            slopes.add((l1 - l2) / (m2 - m1))
    return np.array(sorted(slopes), dtype=np.float64)


def _demands(
    pipeline: PipelineSearch,
    offset: int,
    size: int,
    found: Candidates,
    upper: int,
    most_stages: Ints,
) -> tuple[Ints, list[Demand]]:
    """Return the pairs of closed sets at a place, and what they need.

    A stage of load ``τ`` and sync ``Y`` is part of a better plan only if
    ``Σ + τ + (M-1) max(w, τ) + max(y, Y) < upper``, with ``Σ``, ``w`` and
    ``y`` the least of the layers in front and behind.
    """
    tables, prefix, suffix = pipeline.tables, pipeline.prefix, pipeline.suffix
    extra = pipeline.extra_slots
    keys = found.source * tables.sets.count + found.target
    pairs, inverse = np.unique(keys, return_inverse=True)
    most = np.zeros(len(pairs), dtype=np.int64)
    np.maximum.at(most, inverse, found.max_inflight)
    load = np.full(len(pairs), INFINITE)
    np.minimum.at(load, inverse, found.load)
    sync = np.full(len(pairs), INFINITE)
    np.minimum.at(sync, inverse, found.sync)
    source, target = np.divmod(pairs, tables.sets.count)
    after = offset + size
    total = prefix.total[offset, source] + suffix.total[after, target]
    worst = np.maximum(
        prefix.worst[offset, source], suffix.worst[after, target]
    )
    floor = np.maximum(prefix.sync[offset, source], suffix.sync[after, target])
    joint = np.maximum(
        prefix.joint[offset, source], suffix.joint[after, target]
    )
    budget = upper - total
    slack = budget - np.maximum(floor, sync)
    load_limit = np.minimum(slack - extra * worst, -(-slack // (extra + 1)))
    load_limit = np.minimum(load_limit, budget - joint)
    load_limit = np.minimum(load_limit, tables.max_load)
    sync_limit = budget - load - extra * np.maximum(worst, load)
    least = suffix.stages[after, target] + 1
    demands = [
        Demand(
            tables.need(lo),
            max(min(hi, tables.need(stages)), tables.need(lo)),
            *limits,
        )
        for lo, hi, stages, *limits in zip(
            least.tolist(),
            most.tolist(),
            (most_stages[after, target] + 1).tolist(),
            load_limit.tolist(),
            sync_limit.tolist(),
            floor.tolist(),
            worst.tolist(),
            budget.tolist(),
            strict=True,
        )
    ]
    return pairs, demands


def _candidates(
    frontier: Frontier, start: int, pairs: Ints, num_sets: int, extra: int
) -> Candidates:
    """Give all pairs of one shape the candidates of a frontier."""
    number = len(frontier)
    rows = np.tile(np.arange(number), len(pairs))
    source, target = np.divmod(np.repeat(pairs, number), num_sets)
    return Candidates(
        source,
        target,
        start + rows,
        frontier.load[rows],
        frontier.sync[rows],
        extra * frontier.load[rows] + frontier.sync[rows],
        frontier.max_inflight[rows],
    )


# Growing the labels of a stage


class _Rest(NamedTuple):
    """What the layers from a position on add at least; sums by position.

    Attributes
    ----------
    load, sync, memory
        Least values; ``memory`` with the least in-flight count.
    most_sync, most_memory
        Largest values; ``most_memory`` with the most in flight.
    priced, joint
        Least of ``load + λ memory`` and of ``(M-1) load + sync + λ memory``,
        ``(slopes, positions)``.
    """

    load: Ints
    sync: Ints
    memory: Ints
    most_sync: Ints
    most_memory: Ints
    priced: Floats
    joint: Floats


def grow(
    tables: LayerTables,
    place: Place,
    shape: Shape,
    example: tuple[int, int],
    demand: Demand,
    beam: int | None,
    deadline: Deadline,
) -> Frontier:
    """Return the non-dominated ways to run a stage.

    Parameters
    ----------
    tables, place, shape
        Costs, where the stage sits, and what its layers are.
    example
        Closed sets ``(a, b)`` of one stage of that shape.
    demand
        What of them can matter.
    beam
        Keep only so many labels per layer, the most promising ones;
        ``None`` keeps all.
    deadline
        When to give up.

    Raises
    ------
    OutOfTimeError
        If the deadline passed.
    """
    size = place.size
    capacity = tables.capacity
    least, most = demand.least_inflight, demand.most_inflight
    receive_in = tables.receive_at(place.before, size, example[0])
    receive_out = tables.receive_at(place.after, size, example[1])
    receives = int(receive_in.min() + receive_out.min())
    options = _useful_options(tables, place, shape, demand, receives)
    if options is None:
        return _NOTHING
    counts = np.bincount(shape.kinds, minlength=len(options))
    present = [o for o, count in zip(options, counts, strict=True) if count]
    lightest = max(int(o.working_bytes.min()) for o in present)
    heaviest = max(int(o.working_bytes.max()) for o in present)
    free = capacity - lightest
    extra = tables.extra_slots
    weighted = _weighted(options, extra)
    slopes = _best_slopes(options, counts, least, free)
    joint_slopes = _best_slopes(weighted, counts, least, free)
    rest = _rest(
        shape, options, demand, slopes, _priced(weighted, joint_slopes, least)
    )
    block = tables.block(size, place.offset)
    sources: list[list[tuple[int, Ints]]] = [[] for _ in shape.kinds]
    last_use = [-1] * len(shape.kinds)
    for consumer, producer, size_bytes in shape.edges:
        change = tables.change(block, size_bytes)
        sources[consumer].append((producer, change))
        last_use[producer] = consumer

    # Labels; ``states`` has a row of layouts of the ``open_layers`` for
    # each state, which ``state`` numbers.
    zero = np.zeros(1, dtype=np.int64)
    state, load, sync, static, kept, working = (zero for _ in range(6))
    states = np.zeros((1, 0), dtype=np.int64)
    open_layers: list[int] = []
    steps: list[Step] = []
    tail = int(receive_out.min())
    for position, kind in enumerate(shape.kinds):
        if deadline.passed:
            raise OutOfTimeError
        found = options[kind]
        width = len(found.load)
        parent = np.repeat(np.arange(len(load)), width)
        choice = np.tile(np.arange(width), len(load))
        layout = found.layout[choice]
        change_cost = np.zeros((len(states), len(receive_in)), dtype=np.int64)
        for producer, change in sources[position]:
            column = states[:, open_layers.index(producer)]
            change_cost += change[column]
        load = load[parent] + found.load[choice]
        load += change_cost[state[parent], layout]
        if position == 0:
            load += receive_in[layout]
        if position == len(shape.kinds) - 1:
            load += receive_out[layout]
            tail = 0
        sync = sync[parent] + found.sync[choice]
        static = static[parent] + found.static_bytes[choice]
        kept = kept[parent] + found.kept_bytes[choice]
        working = np.maximum(
            np.maximum(working[parent], found.working_bytes[choice]), lightest
        )
        memory = static + least * kept
        after = position + 1
        keep = memory + rest.memory[after] + working <= capacity
        # Bounds of the whole stage; those with prices hold up to rounding.
        bound = (load + rest.load[after] + tail).astype(np.float64)
        for slope, priced in zip(slopes, rest.priced, strict=True):
            value = load + slope * memory + priced[after] + tail
            room = slope * free
            np.maximum(bound, value - room - SLACK * (value + room), out=bound)
        least_sync = sync + rest.sync[after]
        both = extra * np.maximum(bound, demand.worst) + np.maximum(
            least_sync, demand.sync_floor
        )
        for slope, priced in zip(joint_slopes, rest.joint, strict=True):
            value = extra * (load + tail) + sync + slope * memory
            value += priced[after]
            room = slope * free
            np.maximum(both, value - room - SLACK * (value + room), out=both)
        keep &= bound < demand.load_limit
        keep &= least_sync < demand.sync_limit
        keep &= (bound + both) * (1 - SLACK) < demand.budget
        where = np.flatnonzero(keep)
        if not len(where):
            return _NOTHING
        state, states, open_layers = _next_states(
            state[parent[where]],
            layout[where],
            states,
            open_layers,
            position,
            last_use,
            len(receive_in),
        )
        parent, choice = parent[where], choice[where]
        load, sync, static = load[where], sync[where], static[where]
        kept, working = kept[where], working[where]
        kept_rows = non_dominated(
            state,
            _criteria(
                load,
                np.maximum(sync, demand.sync_floor - rest.most_sync[after]),
                static,
                kept,
                working,
                least,
                most,
                capacity - heaviest - int(rest.most_memory[after]),
            ),
        )
        if beam is not None and len(kept_rows) > beam:
            slope = slopes[-1] if len(slopes) else 0.0
            merit = load + slope * (static + least * kept)
            order = np.argsort(merit[kept_rows], kind="stable")
            kept_rows = np.sort(kept_rows[order[:beam]])
        state, load, sync = state[kept_rows], load[kept_rows], sync[kept_rows]
        static, kept = static[kept_rows], kept[kept_rows]
        working = working[kept_rows]
        steps.append(
            Step(parent[kept_rows], found.strategy[choice[kept_rows]])
        )
    room = capacity - static - working
    fit = np.where(kept > 0, room // np.maximum(kept, 1), most)
    fit = np.minimum(fit, most)
    chosen = non_dominated(
        np.zeros(len(load), dtype=np.int64),
        [load, np.maximum(sync, demand.sync_floor), -fit],
    )
    return Frontier(
        load[chosen], sync[chosen], fit[chosen], chosen, tuple(steps)
    )


def _weighted(options: list[Options], extra: int) -> list[Options]:
    """Return the options with ``(M-1) τ + Y`` in place of ``τ``."""
    return [o._replace(load=extra * o.load + o.sync) for o in options]


def _useful_options(
    tables: LayerTables,
    place: Place,
    shape: Shape,
    demand: Demand,
    receives: int,
) -> list[Options] | None:
    """Return the strategies that a stage below the limits can have.

    An option is dropped if the bound of the whole stage with it, instead of
    the one that the bound chose, reaches a limit. ``None`` if no stage is
    left.
    """
    inflight = demand.least_inflight
    capacity, extra = tables.capacity, tables.extra_slots
    limit = demand.load_limit - receives
    options = tables.options(place.size, place.offset)
    counts = np.bincount(shape.kinds, minlength=len(options))
    used = np.flatnonzero(counts)
    while True:
        options = [
            o.take(o.memory(inflight) + o.working_bytes <= capacity)
            for o in options
        ]
        if any(not len(options[kind].load) for kind in used):
            return None
        before = sum(len(options[kind].load) for kind in used)
        lightest = max(int(options[k].working_bytes.min()) for k in used)
        free = capacity - lightest
        slopes = _best_slopes(options, counts, inflight, free)
        keep = [np.ones(len(o.load), dtype=np.bool_) for o in options]

        def drop(
            values: list[Floats],
            bar: float,
            keep: list[Bools] = keep,
        ) -> float:
            total = sum(counts[k] * values[k].min() for k in used)
            for k in used:
                with_it = total - values[k].min() + values[k]
                keep[k] &= with_it < bar + SLACK * (with_it + abs(bar))
            return float(total)

        drop([o.memory(inflight).astype(float) for o in options], free + 0.5)
        bound = 0.0
        for slope in slopes:
            total = drop(
                [o.load + slope * o.memory(inflight) for o in options],
                limit + slope * free,
            )
            bound = max(bound, total - slope * free - SLACK * total)
        budget = demand.budget - bound - (extra + 1) * receives
        weighted = _weighted(options, extra)
        for slope in _best_slopes(weighted, counts, inflight, free):
            drop(
                [o.load + slope * o.memory(inflight) for o in weighted],
                budget + slope * free,
            )
        total_sync = sum(counts[k] * options[k].sync.min() for k in used)
        for k in used:
            with_it = total_sync - options[k].sync.min() + options[k].sync
            keep[k] &= with_it < demand.sync_limit
        options = [
            o.take(chosen) for o, chosen in zip(options, keep, strict=True)
        ]
        after = sum(len(options[kind].load) for kind in used)
        if after == before:
            return options


def _best_slopes(
    options: Sequence[Options], counts: Ints, inflight: int, free: int
) -> Floats:
    """Return 0 and the slopes whose bounds of a stage are best, best last."""
    used = [o for o, count in zip(options, counts, strict=True) if count]
    count = counts[counts > 0]
    slopes = hull_slopes(used, inflight)
    if not len(slopes):
        return np.zeros(1)
    values = _priced(used, slopes, inflight)
    order = np.argsort(values @ count - slopes * free, kind="stable")
    return np.concatenate(([0.0], slopes[order[-3:]]))


def _rest(
    shape: Shape,
    options: list[Options],
    demand: Demand,
    slopes: Floats,
    joint: Floats,
) -> _Rest:
    """Sum up what the layers from every position on add."""
    least, most = demand.least_inflight, demand.most_inflight
    kinds = np.array(shape.kinds)

    def whole(field: Callable[[Options], int]) -> Ints:
        values = [field(o) if len(o.load) else 0 for o in options]
        return _tails(np.array(values, dtype=np.int64)[kinds])

    return _Rest(
        whole(lambda o: int(o.load.min())),
        whole(lambda o: int(o.sync.min())),
        whole(lambda o: int(o.memory(least).min())),
        whole(lambda o: int(o.sync.max())),
        whole(lambda o: int(o.memory(most).max())),
        np.array(
            [_tails(row[kinds]) for row in _priced(options, slopes, least)]
        ),
        np.array([_tails(row[kinds]) for row in joint]),
    )


def _tails(values: NDArray[T]) -> NDArray[T]:
    """Return the sum from every position on, and 0 at the end."""
    total = np.zeros(len(values) + 1, dtype=values.dtype)
    total[:-1] = np.cumsum(values[::-1])[::-1]
    return total


def _next_states(
    state: Ints,
    layout: Ints,
    states: Ints,
    open_layers: list[int],
    position: int,
    last_use: list[int],
    num_layouts: int,
) -> tuple[Ints, Ints, list[int]]:
    """Add a layer to the states, and forget those that nothing needs."""
    both = state * num_layouts + layout
    distinct, inverse = np.unique(both, return_inverse=True)
    old, new = np.divmod(distinct, num_layouts)
    rows = np.concatenate((states[old], new[:, None]), axis=1)
    layers = [*open_layers, position]
    still = [i for i, layer in enumerate(layers) if last_use[layer] > position]
    rows = rows[:, still]
    if still:
        rows, again = np.unique(rows, axis=0, return_inverse=True)
        inverse = again.reshape(-1)[inverse]
    else:
        rows, inverse = rows[:1], np.zeros(len(state), dtype=np.int64)
    return inverse, rows, [layers[i] for i in still]


def _criteria(
    load: Ints,
    sync: Ints,
    static: Ints,
    kept: Ints,
    working: Ints,
    least: int,
    most: int,
    plenty: int,
) -> list[Ints]:
    """Return the columns in which a label must be no worse to beat another.

    Memory must be no more with either in-flight count, hence with all
    between, both with and without the working set: then it is no more
    whatever is added. Labels that hold no more than ``plenty`` fit in any
    case.
    """
    columns = [load, sync]
    always = static + most * kept <= plenty
    for inflight in sorted({least, most}):
        memory = static + inflight * kept
        columns.append(np.where(always, -1, memory))
        columns.append(np.where(always, -1, memory + working))
    return columns


def non_dominated(group: Ints, columns: list[Ints]) -> Ints:
    """Return the positions, in order, of rows that no other one beats.

    A row is beaten by one of its group that is no larger in any column; of
    equal rows the first one stays.
    """
    order = np.lexsort((*reversed(columns), group))
    table = np.stack([column[order] for column in columns], axis=1)
    groups = group[order]
    # Most are beaten by a neighbour.
    alive = np.arange(len(order))
    for shift in (1, 2, 3):
        if len(alive) <= shift:
            break
        front, back = alive[:-shift], alive[shift:]
        beaten = (groups[front] == groups[back]) & (
            table[front] <= table[back]
        ).all(axis=1)
        alive = np.delete(alive, np.flatnonzero(beaten) + shift)
    table, groups = table[alive], groups[alive]
    starts = np.flatnonzero(np.r_[True, groups[1:] != groups[:-1]])
    ends = np.r_[starts[1:], len(groups)]
    kept = []
    if len(groups):
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            rest = np.arange(start, end)
            while len(rest):
                head, rest = rest[0], rest[1:]
                kept.append(head)
                beaten = (table[rest] >= table[head]).all(axis=1)
                rest = rest[~beaten]
    result: Ints = np.sort(order[alive[np.array(kept, dtype=np.int64)]])
    return result
